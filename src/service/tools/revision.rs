//! The revisions of MCP, and what each asks of a request's headers.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::{Map, Value, json};

use super::outcome::{Error, code};

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub(super) const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// A revision of MCP that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names are the dates
pub enum Revision {
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    /// Every request says by itself who asks and in which revision; there is no handshake.
    V2026_07_28,
}

impl Revision {
    /// Every revision that is served, the oldest first.
    pub const ALL: [Revision; 4] = [
        Revision::V2025_03_26,
        Revision::V2025_06_18,
        Revision::V2025_11_25,
        Revision::V2026_07_28,
    ];

    /// The revision as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Revision::V2025_03_26 => "2025-03-26",
            Revision::V2025_06_18 => "2025-06-18",
            Revision::V2025_11_25 => "2025-11-25",
            Revision::V2026_07_28 => "2026-07-28",
        }
    }

    /// Whether requests stand for themselves; older revisions begin with `initialize`.
    pub fn is_stateless(self) -> bool {
        self >= Revision::V2026_07_28
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == text)
    }

    /// What `initialize` agrees on: the client's revision, or else the newest with a handshake.
    pub(super) fn negotiated(wanted: Option<&str>) -> Self {
        let known = wanted.and_then(Self::parse);
        known
            .filter(|known| !known.is_stateless())
            .unwrap_or(Revision::V2025_11_25)
    }

    /// What the header says; `None` where there is none.
    pub(super) fn of_headers(headers: &HeaderMap) -> Result<Option<Self>, Error> {
        let said = single(headers, &PROTOCOL_VERSION)?;
        said.map(|said| Self::parse(said).ok_or_else(|| unsupported(said)))
            .transpose()
    }

    /// The revision of a request. Everything that 2026-07-28 asks of any request is checked here.
    pub(super) fn of_request(
        headers: &HeaderMap,
        method: &str,
        params: &Map<String, Value>,
    ) -> Result<Self, Error> {
        let header = single(headers, &PROTOCOL_VERSION)?;
        let meta = params.get("_meta").and_then(Value::as_object);
        let Some(declared) = meta.and_then(|meta| meta.get(META_VERSION)) else {
            return match header.map(|said| (said, Self::parse(said))) {
                // 2025-03-26 knows no such header.
                None => Ok(Revision::V2025_03_26),
                Some((_, Some(old))) if !old.is_stateless() => Ok(old),
                Some((_, Some(_))) => Err(malformed_meta(META_VERSION)),
                // The handshake is about the revision; its header says nothing yet.
                Some((_, None)) if method == "initialize" => Ok(Revision::V2025_03_26),
                Some((said, None)) => Err(unsupported(said)),
            };
        };
        let declared = declared
            .as_str()
            .ok_or_else(|| malformed_meta(META_VERSION))?;
        if header != Some(declared) {
            return Err(mismatch(&PROTOCOL_VERSION, META_VERSION));
        }
        let revision = Self::parse(declared)
            .filter(|known| known.is_stateless())
            .ok_or_else(|| unsupported(declared))?;
        let meta = |key| meta.and_then(|meta| meta.get(key));
        if !meta(META_CAPABILITIES).is_some_and(Value::is_object) {
            return Err(malformed_meta(META_CAPABILITIES));
        }
        if !meta(META_CLIENT).is_none_or(Value::is_object) {
            return Err(malformed_meta(META_CLIENT));
        }
        if single(headers, &METHOD)? != Some(method) {
            return Err(mismatch(&METHOD, "method"));
        }
        Ok(revision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// All that are served, as `server/discover` and refusals tell them. Which of them begin with a handshake clients know.
pub(super) fn supported() -> [&'static str; 4] {
    Revision::ALL.map(Revision::as_str)
}

/// The capabilities that the client of a stateless request declared.
pub(super) fn capabilities(meta: &Map<String, Value>) -> Option<&Map<String, Value>> {
    meta.get(META_CAPABILITIES)?.as_object()
}

/// Whether `Mcp-Name` names the tool that the body names.
pub(super) fn check_name(headers: &HeaderMap, name: &str) -> Result<(), Error> {
    let header = single(headers, &NAME)?.and_then(decoded);
    match header {
        Some(header) if header == name.as_bytes() => Ok(()),
        _ => Err(mismatch(&NAME, "params.name")),
    }
}

/// A header that may be there once. Twice is a mismatch: two readers could each take another one.
pub(super) fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h str>, Error> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    let text = first.map(|value| value.to_str().map(str::trim)).transpose();
    match (text, second) {
        (Ok(text), None) => Ok(text),
        _ => Err(Error::header_mismatch(format!(
            "the header {name} must be there once, and plain ASCII"
        ))),
    }
}

/// The value of a mirrored header: plain, or between `=?base64?` and `?=` (2026-07-28, Streamable HTTP, "Value
/// Encoding"). `None` where the base64 is wrong.
pub(super) fn decoded(value: &str) -> Option<Vec<u8>> {
    match value
        .strip_prefix("=?base64?")
        .and_then(|rest| rest.strip_suffix("?="))
    {
        Some(encoded) => STANDARD.decode(encoded).ok(),
        None => Some(value.into()),
    }
}

pub(super) fn mismatch(header: &HeaderName, member: &str) -> Error {
    Error::header_mismatch(format!(
        "the header {header} must say what `{member}` says in the body"
    ))
}

fn malformed_meta(member: &str) -> Error {
    Error::invalid_params(format!(
        "the member `{member}` of `params._meta` is missing or has the wrong type"
    ))
    .with_status(StatusCode::BAD_REQUEST)
}

fn unsupported(requested: &str) -> Error {
    Error::new(
        code::UNSUPPORTED_PROTOCOL_VERSION,
        "this revision of MCP is not served",
    )
    .with_data(json!({"supported": supported(), "requested": requested}))
    .with_status(StatusCode::BAD_REQUEST)
}
