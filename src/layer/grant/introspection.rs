//! RFC 7662 introspection: asked on every call, never cached (INV-7).

use std::time::Duration;

use zeroize::Zeroizing;

use crate::{protocol::grant::Introspection as Answer, store::BoxFuture};

/// Asks the authorization server about a token. [`Introspection`] is the one over HTTP; a marketplace whose grants
/// are in reach another way gives its own.
pub trait Introspect: Send + Sync + 'static {
    /// What the authorization server says of the token now. Implementations must not cache.
    ///
    /// # Errors
    /// When it did not say anything sensible; the request is then answered 503.
    fn introspect<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Answer, IntrospectError>>;
}

/// The authorization server is out of reach, slow, or talks nonsense. For logs; agents see 503 only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("introspection failed: {0}")]
pub struct IntrospectError(pub String);

/// An introspection endpoint and the gateway's credentials there.
#[derive(Clone)]
pub struct Introspection {
    endpoint: String,
    client_id: String,
    client_secret: Zeroizing<String>,
    timeout: Duration,
}

impl std::fmt::Debug for Introspection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Introspection")
            .field("endpoint", &self.endpoint)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

impl Introspection {
    /// The endpoint's URL: https, or http to loopback in dev mode.
    pub fn endpoint(url: impl Into<String>) -> Self {
        Self {
            endpoint: url.into(),
            client_id: String::new(),
            client_secret: Zeroizing::default(),
            timeout: Duration::from_secs(5),
        }
    }

    /// The gateway's credentials, sent by `client_secret_basic` (RFC 6749 §2.3.1).
    #[must_use]
    pub fn client_secret_basic(
        mut self,
        client_id: impl Into<String>,
        client_secret: impl Into<String>,
    ) -> Self {
        self.client_id = client_id.into();
        self.client_secret = Zeroizing::new(client_secret.into());
        self
    }

    /// How long an answer may take, from the connection to the last byte; 5 s by default. After that the request is
    /// answered 503.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    pub(crate) fn check(&self, dev: bool) -> Result<(), String> {
        crate::layer::authenticate::fetch::allowed_url(&self.endpoint, dev)
            .map_err(|why| format!("introspection: {why}"))?;
        if self.client_id.is_empty() || self.client_secret.is_empty() {
            return Err(
                "introspection: the gateway's client id and secret are missing; add client_secret_basic(id, secret)"
                    .into(),
            );
        }
        if self.timeout.is_zero() {
            return Err("introspection: timeout is 0; write some seconds".into());
        }
        Ok(())
    }
}

#[cfg(feature = "fetch")]
pub(crate) use http::HttpIntrospect;

#[cfg(feature = "fetch")]
mod http {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use reqwest::header;
    use url::form_urlencoded::{Serializer, byte_serialize};

    use super::*;
    use crate::layer::trace;

    const MAX_BODY: usize = 64 * 1024;
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

    pub(crate) struct HttpIntrospect {
        client: reqwest::Client,
        endpoint: String,
        authorization: header::HeaderValue,
    }

    impl HttpIntrospect {
        pub(crate) fn new(settings: &Introspection, dev: bool) -> Result<Self, String> {
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let pair = Zeroizing::new(format!(
                "{}:{}",
                encoded(&settings.client_id),
                encoded(&settings.client_secret)
            ));
            let basic = format!("Basic {}", STANDARD.encode(pair.as_bytes()));
            let mut authorization = header::HeaderValue::from_str(&basic)
                .map_err(|_| "introspection: the credentials do not fit a header".to_owned())?;
            authorization.set_sensitive(true);
            let client = reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(settings.timeout)
                .https_only(!dev)
                .build()
                .map_err(|e| format!("introspection: TLS cannot be set up: {e}"))?;
            Ok(Self {
                client,
                endpoint: settings.endpoint.clone(),
                authorization,
            })
        }

        async fn ask(&self, token: &str) -> Result<Answer, IntrospectError> {
            // The token is in the request's body, so only kinds of errors are told, no messages that might quote it.
            let failed = |e: reqwest::Error| {
                IntrospectError(
                    if e.is_timeout() {
                        "the endpoint did not answer in time"
                    } else if e.is_connect() {
                        "the endpoint is out of reach"
                    } else {
                        "the exchange with the endpoint broke off"
                    }
                    .into(),
                )
            };
            let form = Serializer::new(String::new())
                .append_pair("token", token)
                .append_pair("token_type_hint", "access_token")
                .finish();
            let request = self
                .client
                .post(&self.endpoint)
                .header(header::AUTHORIZATION, self.authorization.clone())
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .header(header::ACCEPT, "application/json")
                .body(form);
            let response = trace::send("introspect", request).await;
            let mut response = response.map_err(failed)?;
            if response.status() != reqwest::StatusCode::OK {
                return Err(IntrospectError(format!(
                    "the endpoint answered {}; with 401 or 403, check the gateway's client id and secret",
                    response.status().as_u16()
                )));
            }
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(failed)? {
                if body.len() + chunk.len() > MAX_BODY {
                    return Err(IntrospectError(format!(
                        "the answer is larger than {MAX_BODY} bytes"
                    )));
                }
                body.extend_from_slice(&chunk);
            }
            serde_json::from_slice(&body)
                .map_err(|_| IntrospectError("the answer is no RFC 7662 response".into()))
        }
    }

    impl Introspect for HttpIntrospect {
        fn introspect<'a>(
            &'a self,
            token: &'a str,
        ) -> BoxFuture<'a, Result<Answer, IntrospectError>> {
            Box::pin(self.ask(token))
        }
    }
}
