//! An operation over MCP (binding 13): its REST request as a tool call, and what that came to as a REST answer, so that
//! whoever reads answers need not know the transport. Both are made by the table.

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use serde_json::{Map, Value, json};
use url::form_urlencoded;

use super::{Error, call::Raw};
use crate::{
    layer::authenticate::IDEMPOTENCY_KEY,
    protocol::{
        decision::{self, Decision},
        operation::Op,
        refusal::{ProtocolError, Reason},
    },
};

/// Which operation a request is, in its extensions.
#[derive(Clone)]
pub(super) struct Of {
    pub(super) op: Op,
    /// The id of its path, with its name.
    pub(super) id: Option<(&'static str, String)>,
}

/// The tool call of a request; `None` where the operation has no tool, and goes over REST.
pub(super) fn call(
    request: &Request<Bytes>,
    endpoint: &str,
) -> Result<Option<Request<Bytes>>, Error> {
    let Some(Of { op, id }) = request.extensions().get::<Of>() else {
        return Ok(None);
    };
    if !op.row().tool {
        return Ok(None);
    }
    let mut arguments: Map<String, Value> =
        serde_json::from_slice(request.body()).unwrap_or_default();
    if let Some((name, id)) = id {
        arguments.insert((*name).to_owned(), json!(id));
    }
    let query = request.uri().query().unwrap_or_default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let value: Option<u64> = value.parse().ok();
        arguments.insert(name.into_owned(), json!(value));
    }
    let key = request.headers().get(IDEMPOTENCY_KEY);
    if let Some(key) = key.and_then(|key| key.to_str().ok()) {
        arguments.insert("meta".into(), json!({"idempotency-key": key}));
    }
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": op.name(), "arguments": arguments},
    });
    let mut call = Request::post(format!("{endpoint}/mcp"))
        .body(Bytes::from(message.to_string()))
        .map_err(|_| Error::Request("its address does not parse"))?;
    *call.headers_mut() = request.headers().clone();
    let json = HeaderValue::from_static("application/json");
    call.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(Some(call))
}

/// What the tool call of `op` came to; an answer that is none of a tool stays as it is.
pub(super) fn answer(op: Op, mut raw: Raw) -> Raw {
    let Some(Value::Object(mut message)) = raw.json() else {
        return raw;
    };
    let data = |error: &mut Value| error.get_mut("data").map(Value::take);
    let result = message.get_mut("result");
    let result = result.and_then(|result| result.get_mut("structuredContent").map(Value::take));
    let error = message.get_mut("error").and_then(data);
    let (status, said, body) = match (result, error) {
        (Some(mut result), _) => {
            let decision = result["decision"].take();
            let status = match decision["decision"].as_str() {
                Some("ask") => StatusCode::ACCEPTED,
                _ if creates(op) => StatusCode::CREATED,
                _ => StatusCode::OK,
            };
            (status, decision, result["result"].take())
        }
        (None, Some(Value::Object(mut body))) => {
            let code = body.remove("code").unwrap_or_default();
            let decision = body.remove("decision").unwrap_or_default();
            let status = status_of(code.as_str().unwrap_or_default());
            if let Some(seconds) = body.get("retry_after").and_then(Value::as_u64) {
                raw.headers.insert(header::RETRY_AFTER, seconds.into());
            }
            body.insert("error".into(), code);
            (status, decision, Value::Object(body))
        }
        _ => return raw,
    };
    raw.status = status;
    // A read states none over REST; that it is `auto` says nothing.
    let stated = serde_json::from_value::<Decision>(said).ok();
    if let Some(stated) = stated.filter(|_| op.row().writes() || !status.is_success()) {
        raw.headers.insert(decision::HEADER, stated.to_header());
    }
    raw.body = body.to_string().into();
    raw
}

/// Whether what is carried out is 201 over REST (binding 6).
fn creates(op: Op) -> bool {
    matches!(
        op,
        Op::CreateListing | Op::CreateOffer | Op::CounterOffer | Op::CreateDeal | Op::PostDealEvent
    )
}

/// The status of a code over REST. One that nobody knows is as good as none: the gateway's own fault.
fn status_of(code: &str) -> StatusCode {
    let reason = Reason::ALL
        .into_iter()
        .find(|reason| reason.as_str() == code);
    let error = ProtocolError::ALL
        .into_iter()
        .find(|error| error.as_str() == code);
    let status = reason
        .map(Reason::status)
        .or(error.map(ProtocolError::status));
    status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
