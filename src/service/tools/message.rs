//! JSON-RPC 2.0: which messages are there, and what goes back.

use std::collections::HashMap;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::{Map, Number, Value};

use super::{
    outcome::{Error, code},
    revision::{Revision, check_name},
};
use crate::protocol::schema;

/// The most messages in a batch.
pub const BATCH_LIMIT: usize = 20;

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

pub(crate) enum Message {
    Request {
        id: Id,
        /// What its headers and its `_meta` agree on.
        revision: Revision,
        method: String,
        params: Map<String, Value>,
    },
    Notification,
    /// An answer to a request that we never made.
    Response,
}

/// Something that is no message, with its id where that can be told.
pub(crate) struct NoMessage {
    pub(super) id: Option<Id>,
    pub(super) error: Error,
}

/// What a body holds. Whoever asks what is in it, before the endpoint or within, asks this.
pub(crate) enum Messages {
    One(Result<Message, NoMessage>),
    Batch(Vec<Result<Message, NoMessage>>),
}

impl Messages {
    /// Reads a body. What is malformed as a whole is one thing that is no message.
    pub(crate) fn read(headers: &HeaderMap, body: &[u8]) -> Self {
        let whole = |error| Self::One(Err(NoMessage { id: None, error }));
        let value = match schema::parse(body) {
            Ok(value) => value,
            Err(malformed) => {
                let error = Error::new(code::PARSE_ERROR, malformed.to_string());
                return whole(error.with_status(StatusCode::BAD_REQUEST));
            }
        };
        let revision = Revision::of_headers(headers);
        if let Value::Array(messages) = value {
            if let Err(error) = check_batch(&revision, messages.len()) {
                return whole(error);
            }
            let read = |message| Message::read(headers, message, true);
            let mut messages: Vec<_> = messages.into_iter().map(read).collect();
            refuse_alike(&mut messages);
            return Self::Batch(messages);
        }
        match (Message::read(headers, value, false), revision) {
            (Ok(Message::Response), Ok(Some(revision))) if revision.is_stateless() => whole(
                Error::invalid_request("the server asks nothing of its clients"),
            ),
            // A request's own errors, this one too, come with its id.
            (Ok(Message::Notification | Message::Response), Err(error)) => whole(error),
            (message, _) => Self::One(message),
        }
    }

    /// The tools that its requests call, in their order.
    pub(crate) fn tools(&self) -> impl Iterator<Item = &str> {
        self.all().iter().flatten().filter_map(Message::tool)
    }

    /// How many are answered.
    pub(crate) fn answers(&self) -> usize {
        let answered = |message: &&Result<Message, NoMessage>| {
            !matches!(message, Ok(Message::Notification | Message::Response))
        };
        self.all().iter().filter(answered).count()
    }

    fn all(&self) -> &[Result<Message, NoMessage>] {
        match self {
            Self::One(message) => std::slice::from_ref(message),
            Self::Batch(messages) => messages,
        }
    }

    pub(crate) fn is_batch(&self) -> bool {
        matches!(self, Self::Batch(_))
    }

    /// The id of a message that stands alone.
    pub(super) fn id(&self) -> Option<&Id> {
        match self {
            Self::One(Ok(message)) => message.id(),
            Self::One(Err(NoMessage { id, .. })) => id.as_ref(),
            Self::Batch(_) => None,
        }
    }

    /// Puts an error in the place of everything in a batch that is answered, but calls of these tools; how much there was.
    pub(crate) fn refuse_beside(&mut self, tools: impl Fn(&str) -> bool, error: &Error) -> usize {
        let Self::Batch(messages) = self else {
            return 0;
        };
        let mut refused = 0;
        for message in messages {
            let id = match &*message {
                Ok(request @ Message::Request { id, .. })
                    if !request.tool().is_some_and(&tools) =>
                {
                    Some(id.clone())
                }
                Ok(_) => continue,
                Err(NoMessage { id, .. }) => id.clone(),
            };
            refused += 1;
            *message = Err(NoMessage {
                id,
                error: error.clone(),
            });
        }
        refused
    }
}

/// Only 2025-03-26 has batches, and it is what a request without the header speaks.
fn check_batch(revision: &Result<Option<Revision>, Error>, messages: usize) -> Result<(), Error> {
    if !matches!(revision, Ok(None | Some(Revision::V2025_03_26))) {
        return Err(Error::invalid_request(
            "this revision of MCP has no batches; send each message by itself",
        ));
    }
    match messages {
        0 => Err(Error::invalid_request("the batch is empty")),
        1..=BATCH_LIMIT => Ok(()),
        _ => Err(Error::invalid_request(format!(
            "a batch has at most {BATCH_LIMIT} messages"
        ))),
    }
}

/// Refuses requests that no client could tell apart by their answers.
fn refuse_alike(messages: &mut [Result<Message, NoMessage>]) {
    let mut uses: HashMap<Id, usize> = HashMap::new();
    for message in &*messages {
        // What is no message is answered under its id as well.
        if let Ok(Message::Request { id, .. }) | Err(NoMessage { id: Some(id), .. }) = message {
            *uses.entry(id.clone()).or_default() += 1;
        }
    }
    for message in messages {
        if let Ok(Message::Request { id, .. }) | Err(NoMessage { id: Some(id), .. }) = &*message
            && uses[id] > 1
        {
            *message = Err(NoMessage {
                id: Some(id.clone()),
                error: Error::invalid_request("several requests of the batch have this id"),
            });
        }
    }
}

impl Message {
    pub(super) fn id(&self) -> Option<&Id> {
        match self {
            Self::Request { id, .. } => Some(id),
            Self::Notification | Self::Response => None,
        }
    }

    /// The tool that it calls.
    pub(super) fn tool(&self) -> Option<&str> {
        match self {
            Self::Request { method, params, .. } if method == "tools/call" => {
                params.get("name")?.as_str()
            }
            _ => None,
        }
    }

    fn read(headers: &HeaderMap, value: Value, batched: bool) -> Result<Self, NoMessage> {
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
            // 2025-03-26, Lifecycle.
            Some(Some(_)) if batched && method == "initialize" => {
                Err(wrong("initialize goes by itself, not in a batch"))
            }
            Some(Some(id)) => match checked(headers, &method, &params) {
                Ok(revision) => Ok(Self::Request {
                    id,
                    revision,
                    method,
                    params,
                }),
                Err(error) => Err(NoMessage {
                    id: Some(id),
                    error,
                }),
            },
            Some(None) => Err(wrong("the member `id` must be a string or an integer")),
            None => Ok(Self::Notification),
        }
    }
}

/// The revision of a request. One whose headers contradict it, or that no revision knows, asks for nothing.
fn checked(
    headers: &HeaderMap,
    method: &str,
    params: &Map<String, Value>,
) -> Result<Revision, Error> {
    let revision = Revision::of_request(headers, method, params)?;
    if !params.get("_meta").is_none_or(Value::is_object) {
        return Err(Error::invalid_params("`params._meta` must be an object"));
    }
    if method == "tools/call"
        && revision.is_stateless()
        && let Some(name) = params.get("name").and_then(Value::as_str)
    {
        check_name(headers, name)?;
    }
    Ok(revision)
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
