//! Signed requests (binding 2.1) for a client that knows nothing of them: its HTTP client, with a signature on each POST.

use std::{collections::HashMap, sync::Arc};

use futures_util::stream::BoxStream;
use http::{HeaderName, HeaderValue, Request, header};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage},
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    },
};
use serde_json::Value;
use sse_stream::Sse;
use tower_rctp::client::Signer;

type Headers = HashMap<HeaderName, HeaderValue>;
type Failed = StreamableHttpError<reqwest::Error>;

#[derive(Clone)]
pub struct Signed {
    http: reqwest::Client,
    signer: Arc<Signer>,
}

impl Signed {
    pub fn new(http: &reqwest::Client, signer: Signer) -> Self {
        Self {
            http: http.clone(),
            signer: signer.into(),
        }
    }

    /// The POST that `reqwest::Client` is going to make of this, signed; answers the headers that that adds.
    fn sign(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        token: Option<&str>,
    ) -> Result<Headers, Failed> {
        let failed = |error: &dyn std::error::Error| {
            StreamableHttpError::UnexpectedServerResponse(error.to_string().into())
        };
        let mut request = Request::post(uri);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(key) = idempotency_key(message) {
            request = request.header("idempotency-key", key);
        }
        let mut request = request
            .body(serde_json::to_vec(message)?)
            .map_err(|error| failed(&error))?;
        self.signer
            .sign(&mut request)
            .map_err(|error| failed(&error))?;
        // These two the client sets itself.
        let headers = request.into_parts().0.headers.into_iter();
        let added = headers.filter_map(|(name, value)| Some((name?, value)));
        Ok(added
            .filter(|(name, _)| *name != header::AUTHORIZATION && *name != header::CONTENT_TYPE)
            .collect())
    }
}

/// That of a tool call, where it has one: the header must not be another (binding 13.2).
fn idempotency_key(message: &ClientJsonRpcMessage) -> Option<&str> {
    let JsonRpcMessage::Request(request) = message else {
        return None;
    };
    let ClientRequest::CallToolRequest(call) = &request.request else {
        return None;
    };
    let meta = call.params.arguments.as_ref()?.get("meta")?;
    meta.get("idempotency-key").and_then(Value::as_str)
}

impl StreamableHttpClient for Signed {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        mut headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        headers.extend(self.sign(&uri, &message, token.as_deref())?);
        self.http
            .post_message(uri, message, session, token, headers)
            .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), Failed> {
        self.http.delete_session(uri, session, token, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        self.http
            .get_stream(uri, session, last_event, token, headers)
            .await
    }
}
