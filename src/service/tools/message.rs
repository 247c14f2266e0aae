//! JSON-RPC 2.0: which message is it, and what goes back.

use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::{Map, Number, Value};

use super::outcome::Error;

/// A request's id, sent back as it came: a string or an integer, as MCP has it; never `null`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Id {
    /// An integer.
    Number(Number),
    /// A string.
    Text(String),
}

impl Id {
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Number(number) if !number.is_f64() => Some(Self::Number(number.clone())),
            _ => None,
        }
    }
}

pub(super) enum Message {
    Request {
        id: Id,
        method: String,
        params: Map<String, Value>,
    },
    Notification,
    /// An answer to a request that we never made.
    Response,
}

/// Something that is no message, with its id where that can be told.
pub(super) struct NoMessage {
    pub(super) id: Option<Id>,
    pub(super) error: Error,
}

impl Message {
    pub(super) fn read(value: Value) -> Result<Self, NoMessage> {
        let Value::Object(mut members) = value else {
            return Err(NoMessage {
                id: None,
                error: Error::invalid_request("a message is a JSON object"),
            });
        };
        let id = members.get("id").map(Id::of);
        let wrong = |why| NoMessage {
            id: id.clone().flatten(),
            error: Error::invalid_request(why),
        };
        if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Err(wrong("the member `jsonrpc` must be \"2.0\""));
        }
        let method = match members.remove("method") {
            Some(Value::String(method)) => method,
            Some(_) => return Err(wrong("the member `method` must be a string")),
            None if members.contains_key("result") != members.contains_key("error") => {
                return Ok(Self::Response);
            }
            None => return Err(wrong("the member `method` is required")),
        };
        let params = match members.remove("params") {
            Some(Value::Object(params)) => params,
            None => Map::new(),
            Some(_) => return Err(wrong("the member `params` must be an object")),
        };
        match id {
            Some(Some(id)) => Ok(Self::Request { id, method, params }),
            Some(None) => Err(wrong("the member `id` must be a string or an integer")),
            None => Ok(Self::Notification),
        }
    }
}

/// The answer to one message, with what HTTP says where it is the only one.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) json: Vec<u8>,
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    jsonrpc: &'static str,
    /// `null` where it could not be told (JSON-RPC 2.0 §5).
    id: Option<&'a Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Error>,
}

impl Reply {
    pub(super) fn of<T: Serialize>(id: &Id, result: Result<T, Error>) -> Self {
        match result {
            Ok(result) => Self {
                status: StatusCode::OK,
                headers: Vec::new(),
                json: json(Some(id), Some(result), None),
            },
            Err(error) => Self::error(Some(id), error),
        }
    }

    pub(super) fn error(id: Option<&Id>, error: Error) -> Self {
        Self {
            status: error.status,
            json: json::<()>(id, None, Some(&error)),
            headers: error.headers,
        }
    }

    /// The answers to a batch, each in its place. Whatever HTTP would have said of one of them alone is left out.
    pub(super) fn batch(replies: &[Self]) -> Self {
        let mut json = vec![b'['];
        json.extend(
            replies
                .iter()
                .map(|reply| &*reply.json)
                .collect::<Vec<_>>()
                .join(&b','),
        );
        json.push(b']');
        Self {
            status: StatusCode::OK,
            headers: Vec::new(),
            json,
        }
    }
}

fn json<T: Serialize>(id: Option<&Id>, result: Option<T>, error: Option<&Error>) -> Vec<u8> {
    let envelope = Envelope {
        jsonrpc: "2.0",
        id,
        result,
        error,
    };
    // What most answers take.
    let mut json = Vec::with_capacity(2048);
    serde_json::to_writer(&mut json, &envelope).expect("results are JSON already");
    json
}
