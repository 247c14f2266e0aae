//! What a call comes to: a result, or a JSON-RPC error.

use std::{borrow::Cow, fmt};

use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};

/// The codes of JSON-RPC 2.0, and those that MCP adds (2026-07-28, Overview, "Error Codes").
pub mod code {
    #![allow(missing_docs)] // the names are the specifications'
    pub const PARSE_ERROR: i64 = -32700;
    pub const INVALID_REQUEST: i64 = -32600;
    pub const METHOD_NOT_FOUND: i64 = -32601;
    pub const INVALID_PARAMS: i64 = -32602;
    pub const INTERNAL_ERROR: i64 = -32603;
    pub const HEADER_MISMATCH: i64 = -32020;
    pub const MISSING_REQUIRED_CLIENT_CAPABILITY: i64 = -32021;
    pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
}

/// What comes of a tool call.
pub type Outcome = Result<ToolResult, Error>;

/// A part of a result that people and models read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Content {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    Image {
        /// Its bytes in base64.
        data: String,
        /// Its media type.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
    /// Sound; clients know it from 2025-03-26 on.
    Audio {
        /// Its bytes in base64.
        data: String,
        /// Its media type.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
    /// A resource with what is in it: `uri`, `mimeType`, and `text` or `blob`.
    Resource {
        /// The resource.
        resource: Value,
    },
}

impl Content {
    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// The result of a tool, or its failure: what the model reads and can act on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ToolResult {
    /// Never empty where [`ToolResult::structured`] made it: older clients read nothing else.
    pub content: Vec<Content>,
    /// The same for programs: an object, since the revisions of 2025 know nothing else. Written once, for the text too.
    #[serde(rename = "structuredContent", skip_serializing_if = "Option::is_none")]
    structured: Option<Box<RawValue>>,
    /// Whether the tool failed.
    #[serde(rename = "isError")]
    pub is_error: bool,
    /// `_meta`: what is for neither model nor program, such as a receipt. Keys have a prefix of one's own.
    #[serde(skip)]
    pub meta: Map<String, Value>,
}

impl ToolResult {
    /// These parts, in their order.
    pub fn new(content: Vec<Content>) -> Self {
        Self {
            content,
            ..Self::default()
        }
    }

    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(vec![Content::text(text)])
    }

    /// A structured result, with the same as JSON text.
    pub fn structured(structured: Map<String, Value>) -> Self {
        Self::of_members(&structured)
    }

    /// The same of anything that is written as an object, without line breaks.
    pub(crate) fn of_members(members: &impl Serialize) -> Self {
        let structured = to_raw_value(members).expect("a value is JSON");
        Self {
            content: vec![Content::text(structured.get())],
            structured: Some(structured),
            ..Self::default()
        }
    }

    pub(super) fn drop_structured(&mut self) {
        self.structured = None;
    }

    /// A failure: `{"error": {"code", "message", "retryable"}}` as text, and in `structuredContent` where the tool has no
    /// output schema, which it would not fit; and `message` as a text of its own.
    pub fn failure(code: &str, message: &str, retryable: bool) -> Self {
        let error = json!({"code": code, "message": message, "retryable": retryable});
        let mut failure = Self::structured(Map::from_iter([("error".to_owned(), error)]));
        failure.content.push(Content::text(message));
        failure.is_error = true;
        failure
    }
}

/// A JSON-RPC error, with the HTTP status and headers that go with it.
///
/// Status and headers are those of the response where the message came alone; in a batch, each error stands in its
/// place under HTTP 200. So `Error::new(…).with_status(401).with_header(WWW_AUTHENTICATE, …)` makes an OAuth client
/// refresh its token.
#[derive(Clone, Debug, Serialize)]
pub struct Error {
    code: i64,
    message: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<Value>>,
    #[serde(skip)]
    pub(super) status: StatusCode,
    #[serde(skip)]
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Error {
    /// An error under HTTP 200.
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
            status: StatusCode::OK,
            headers: Vec::new(),
        }
    }

    /// `-32600`, 400: this is no message that MCP knows.
    pub fn invalid_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(code::INVALID_REQUEST, message).with_status(StatusCode::BAD_REQUEST)
    }

    /// `-32602`: the parameters are not those of the method, or there is no such tool.
    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(code::INVALID_PARAMS, message)
    }

    /// `-32020`, 400: a header is missing, or says something else than the body.
    pub fn header_mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(code::HEADER_MISMATCH, message).with_status(StatusCode::BAD_REQUEST)
    }

    /// `-32021`, 400: the tool needs what the client did not declare, as in `{"sampling": {}}`.
    pub fn missing_capability(required: Value) -> Self {
        Self::new(
            code::MISSING_REQUIRED_CLIENT_CAPABILITY,
            "the tool needs capabilities that the client has not declared",
        )
        .with_data(json!({ "requiredCapabilities": required }))
        .with_status(StatusCode::BAD_REQUEST)
    }

    /// Adds `data`.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(Box::new(data));
        self
    }

    /// The status of the response, where the message came alone.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Adds a header to the response, where the message came alone.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The code.
    pub fn code(&self) -> i64 {
        self.code
    }

    /// The sentence for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What programs read.
    pub fn data(&self) -> Option<&Value> {
        self.data.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}
