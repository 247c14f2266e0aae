//! What is signed: a message, its components, and the signature base made of them (RFC 9421 §2).

use std::{borrow::Cow, collections::HashMap, fmt, str::FromStr};

use http::{HeaderMap, HeaderName, Method, StatusCode};
use sfv::{
    Dictionary, FieldType, ItemSerializer, KeyRef, ListEntry, ListSerializer, Parser, RefBareItem,
    StringRef, key_ref,
    visitor::{DictionaryVisitor, EntryVisitor},
};

use super::presented::MAX_FIELD;

/// A request or a response, seen as the thing that is signed.
///
/// Borrows everything; make one where it is needed.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    line: Line<'a>,
    headers: &'a HeaderMap,
}

#[derive(Clone, Copy, Debug)]
enum Line<'a> {
    Request {
        method: &'a Method,
        authority: &'a Authority,
        path: &'a str,
        query: Option<&'a str>,
    },
    Response(StatusCode),
}

impl<'a> Message<'a> {
    /// A request: its method, the authority it was meant for, path and query as they were sent (the query
    /// without its `?`, `Some("")` if the target ends in `?`), and its headers.
    #[must_use]
    pub fn request(
        method: &'a Method,
        authority: &'a Authority,
        path: &'a str,
        query: Option<&'a str>,
        headers: &'a HeaderMap,
    ) -> Self {
        let line = Line::Request {
            method,
            authority,
            path: if path.is_empty() { "/" } else { path },
            query,
        };
        Self { line, headers }
    }

    /// A response: its status and its headers.
    #[must_use]
    pub fn response(status: StatusCode, headers: &'a HeaderMap) -> Self {
        let line = Line::Response(status);
        Self { line, headers }
    }

    pub(super) fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    pub(super) fn method(&self) -> Option<&'a Method> {
        match self.line {
            Line::Request { method, .. } => Some(method),
            Line::Response(_) => None,
        }
    }

    pub(super) fn has_query(&self) -> bool {
        matches!(self.line, Line::Request { query: Some(_), .. })
    }

    /// The signature base (RFC 9421 §2.5) over these components, `params` being the serialised value of
    /// `@signature-params`.
    pub(super) fn base(&self, components: &[Component], params: &str) -> Result<String, NoValue> {
        let mut base = String::with_capacity(params.len() + 512);
        let mut read = Read::default();
        for (place, component) in components.iter().enumerate() {
            component.write_identifier(&mut base);
            base.push_str(": ");
            self.write_value(component, &mut read, &mut base)
                .ok_or(NoValue(place))?;
            base.push('\n');
        }
        base.push_str("\"@signature-params\": ");
        base.push_str(params);
        Ok(base)
    }

    /// Appends the value of a component, or gives `None` if it has none here.
    fn write_value(&self, component: &Component, read: &mut Read, out: &mut String) -> Option<()> {
        if let Component::Field(name) = component {
            return self.write_field(name, out);
        }
        if let Component::FieldKey(name, key) = component {
            let member = read.field(self, name)?.get(key.as_str())?;
            out.push_str(&serialised(member)?);
            return Some(());
        }
        match self.line {
            Line::Response(status) => match component {
                Component::Status => out.push_str(status.as_str()),
                _ => return None,
            },
            Line::Request {
                method,
                authority,
                path,
                query,
            } => {
                // A caller's own text must not bring a line of its own into the base.
                if !is_visible(path) || !query.is_none_or(is_visible) {
                    return None;
                }
                match component {
                    Component::Method => out.push_str(method.as_str()),
                    Component::Authority => out.push_str(authority.as_str()),
                    Component::Scheme => out.push_str(&authority.scheme),
                    Component::Path => out.push_str(path),
                    Component::Query => {
                        out.push('?');
                        out.push_str(query.unwrap_or(""));
                    }
                    Component::QueryParam(name) => out.push_str(read.query_param(query?, name)?),
                    Component::TargetUri | Component::RequestTarget => {
                        if *component == Component::TargetUri {
                            out.push_str(&authority.scheme);
                            out.push_str("://");
                            out.push_str(authority.as_str());
                        }
                        out.push_str(path);
                        if let Some(query) = query {
                            out.push('?');
                            out.push_str(query);
                        }
                    }
                    _ => return None,
                }
            }
        }
        Some(())
    }

    /// The lines of a field, each trimmed, joined with `, ` (RFC 9421 §2.1). Obsolete folding cannot occur:
    /// a `HeaderValue` holds no line break. Text that is not ASCII has no place in a base (§2.5).
    fn write_field(&self, name: &HeaderName, out: &mut String) -> Option<()> {
        let mut lines = self.headers.get_all(name).iter();
        let mut line = lines.next()?;
        loop {
            out.push_str(line.to_str().ok()?.trim_matches([' ', '\t']));
            match lines.next() {
                Some(next) => line = next,
                None => return Some(()),
            }
            out.push_str(", ");
        }
    }

    /// A field read as a Dictionary; `None` if it is absent, too long, is none, or repeats a member.
    pub(super) fn dictionary(&self, name: &HeaderName) -> Option<Dictionary> {
        let text = joined(self.headers, name, MAX_FIELD)?.ok()?;
        let mut members = Dictionary::new();
        Parser::new(&*text)
            .parse_dictionary_with_visitor(Distinct(&mut members))
            .ok()?;
        Some(members)
    }
}

/// What was read of a message for its base, so that a part that is named many times is read once: whoever sends it need
/// not have a key.
#[derive(Default)]
struct Read {
    fields: Vec<(HeaderName, Option<Dictionary>)>,
    query: Option<HashMap<String, Option<String>>>,
}

impl Read {
    fn field(&mut self, message: &Message<'_>, name: &HeaderName) -> Option<&Dictionary> {
        let known = self.fields.iter().position(|(known, _)| known == name);
        let place = known.unwrap_or_else(|| {
            self.fields.push((name.clone(), message.dictionary(name)));
            self.fields.len() - 1
        });
        self.fields[place].1.as_ref()
    }

    /// The one parameter of this name, decoded as a form and encoded again (RFC 9421 §2.2.8); `None` if it is absent
    /// or occurs twice.
    fn query_param(&mut self, query: &str, name: &str) -> Option<&str> {
        fn encoded(text: &str) -> String {
            // The form encoding writes a space as `+` and a plus as `%2B`; RFC 9421 wants `%20`.
            url::form_urlencoded::byte_serialize(text.as_bytes())
                .collect::<String>()
                .replace('+', "%20")
        }
        let params = self.query.get_or_insert_with(|| {
            let mut params = HashMap::new();
            for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
                params
                    .entry(encoded(&name))
                    .and_modify(|value| *value = None)
                    .or_insert_with(|| Some(encoded(&value)));
            }
            params
        });
        params.get(name)?.as_deref()
    }
}

/// Where a message is sent: host and port in normal form, and the scheme.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    host_and_port: Box<str>,
    scheme: Cow<'static, str>,
}

impl Authority {
    /// Brings an authority into the form of RFC 9421 §2.2.3: lower case, without the default port.
    ///
    /// # Errors
    ///
    /// [`BadAuthority`] if `raw` is no `host[:port]`, or `scheme` no scheme. User information is refused.
    pub fn new(raw: &str, scheme: &str) -> Result<Self, BadAuthority> {
        let scheme: Cow<'static, str> = match scheme.to_ascii_lowercase() {
            known if known == "https" => "https".into(),
            known if known == "http" => "http".into(),
            other => other.into(),
        };
        let mut characters = scheme.bytes();
        if !(characters.next().is_some_and(|c| c.is_ascii_lowercase())
            && characters.all(|c| c.is_ascii_alphanumeric() || b"+-.".contains(&c)))
        {
            return Err(BadAuthority);
        }

        let parsed: http::uri::Authority = raw.parse().map_err(|_| BadAuthority)?;
        let host = parsed.host();
        if raw.contains('@') || host.is_empty() || !is_visible(host) {
            return Err(BadAuthority);
        }
        let port = match raw.get(host.len()..) {
            Some("" | ":") => None,
            Some(_) => Some(parsed.port_u16().ok_or(BadAuthority)?),
            None => return Err(BadAuthority),
        };
        let default = match &*scheme {
            "https" => Some(443),
            "http" => Some(80),
            _ => None,
        };
        let mut host_and_port = host.to_ascii_lowercase();
        if let Some(port) = port.filter(|port| Some(*port) != default) {
            host_and_port.push(':');
            host_and_port.push_str(&port.to_string());
        }
        Ok(Self {
            host_and_port: host_and_port.into(),
            scheme,
        })
    }

    /// Host and port, as in `@authority`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.host_and_port
    }

    /// The scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host_and_port)
    }
}

/// [`Authority::new`] as a function.
///
/// # Errors
///
/// As [`Authority::new`].
pub fn authority(raw: &str, scheme: &str) -> Result<Authority, BadAuthority> {
    Authority::new(raw, scheme)
}

/// A text is no authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an authority is a host and an optional port, without user information")]
pub struct BadAuthority;

/// A part of a message that a signature can cover (RFC 9421 §2.1, §2.2).
///
/// An enum rather than text, so that a signature base can be built only from what was understood.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Component {
    /// `"@method"`: the method, as sent (§2.2.1).
    Method,
    /// `"@target-uri"`: scheme, authority, path and query (§2.2.2).
    TargetUri,
    /// `"@authority"`: host and port in normal form (§2.2.3).
    Authority,
    /// `"@scheme"`: the scheme in lower case (§2.2.4).
    Scheme,
    /// `"@request-target"`: path and query (§2.2.5, origin form).
    RequestTarget,
    /// `"@path"`: the path, as sent (§2.2.6).
    Path,
    /// `"@query"`: `?` and the query, as sent; `?` alone where it is empty or absent (§2.2.7).
    Query,
    /// `"@query-param";name="…"`: one parameter of the query; the name is percent-encoded (§2.2.8).
    QueryParam(String),
    /// `"@status"`: the status code of a response (§2.2.9).
    Status,
    /// A header field, all its lines (§2.1).
    Field(HeaderName),
    /// One member of a header field that is a Dictionary: `;key="…"` (§2.1.2).
    FieldKey(HeaderName, String),
}

impl Component {
    /// Reads an identifier from its name and parameters. The name of a field is in lower case.
    pub(super) fn new(name: &str, key: Option<String>, param: Option<String>) -> Option<Self> {
        let component = match (name.strip_prefix('@'), key, param) {
            (Some("query-param"), None, Some(name)) => Self::QueryParam(name),
            (Some(derived), None, None) => match derived {
                "method" => Self::Method,
                "target-uri" => Self::TargetUri,
                "authority" => Self::Authority,
                "scheme" => Self::Scheme,
                "request-target" => Self::RequestTarget,
                "path" => Self::Path,
                "query" => Self::Query,
                "status" => Self::Status,
                _ => return None,
            },
            (None, None, None) => Self::Field(field_name(name)?),
            (None, Some(key), None) => Self::FieldKey(field_name(name)?, key),
            _ => return None,
        };
        Some(component)
    }

    fn name(&self) -> &str {
        match self {
            Self::Method => "@method",
            Self::TargetUri => "@target-uri",
            Self::Authority => "@authority",
            Self::Scheme => "@scheme",
            Self::RequestTarget => "@request-target",
            Self::Path => "@path",
            Self::Query => "@query",
            Self::QueryParam(_) => "@query-param",
            Self::Status => "@status",
            Self::Field(name) | Self::FieldKey(name, _) => name.as_str(),
        }
    }

    fn parameter(&self) -> Option<(&'static KeyRef, &str)> {
        match self {
            Self::QueryParam(name) => Some((key_ref("name"), name)),
            Self::FieldKey(_, key) => Some((key_ref("key"), key)),
            _ => None,
        }
    }

    /// Whether the identifier has a serialisation: a parameter may hold visible ASCII and spaces only.
    pub(super) fn is_serialisable(&self) -> bool {
        self.parameter()
            .is_none_or(|(_, value)| StringRef::from_str(value).is_ok())
    }

    fn write_identifier(&self, out: &mut String) {
        let item = ItemSerializer::with_buffer(out).bare_item(string(self.name()));
        if let Some((name, value)) = self.parameter() {
            let _ = item.parameter(name, string(value));
        }
    }
}

impl fmt::Display for Component {
    /// Writes the identifier as it stands in a signature base, such as `"@method"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut identifier = String::new();
        self.write_identifier(&mut identifier);
        f.write_str(&identifier)
    }
}

impl FromStr for Component {
    type Err = UnknownComponent;

    /// Reads a name without parameters, such as `@method` or `content-type`.
    fn from_str(name: &str) -> Result<Self, UnknownComponent> {
        Self::new(name, None, None).ok_or(UnknownComponent)
    }
}

impl From<HeaderName> for Component {
    fn from(name: HeaderName) -> Self {
        Self::Field(name)
    }
}

/// A name is no component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a component is a derived one such as `@method`, or a header's name in lower case")]
pub struct UnknownComponent;

/// A component, by its place in the list from 0, that has no value in the message.
pub(super) struct NoValue(pub(super) usize);

/// What one signature covers, and its parameters, in order: the value of `@signature-params`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) components: Vec<Component>,
    pub(super) parameters: Vec<Parameter>,
}

/// A signature parameter (RFC 9421 §2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    Created(i64),
    Expires(i64),
    Nonce(String),
    Alg(String),
    KeyId(String),
    Tag(String),
}

impl Input {
    /// Appends the strict serialisation (RFC 9421 §2.3, RFC 9651 §4.1.1.1).
    pub(super) fn write(&self, out: &mut String) {
        let mut list = ListSerializer::with_buffer(out);
        let mut inner = list.inner_list();
        for component in &self.components {
            let item = inner.bare_item(string(component.name()));
            if let Some((name, value)) = component.parameter() {
                let _ = item.parameter(name, string(value));
            }
        }
        let mut parameters = inner.finish();
        for parameter in &self.parameters {
            let (name, value) = match parameter {
                Parameter::Created(time) => (key_ref("created"), integer(*time)),
                Parameter::Expires(time) => (key_ref("expires"), integer(*time)),
                Parameter::Nonce(text) => (key_ref("nonce"), string(text).into()),
                Parameter::Alg(text) => (key_ref("alg"), string(text).into()),
                Parameter::KeyId(text) => (key_ref("keyid"), string(text).into()),
                Parameter::Tag(text) => (key_ref("tag"), string(text).into()),
            };
            parameters = parameters.parameter(name, value);
        }
    }

    /// Whether every text and number in it has a serialisation. What was parsed always has one.
    pub(super) fn is_serialisable(&self) -> bool {
        self.components.iter().all(Component::is_serialisable)
            && self.parameters.iter().all(|parameter| match parameter {
                Parameter::Created(time) | Parameter::Expires(time) => {
                    sfv::Integer::try_from(*time).is_ok()
                }
                Parameter::Nonce(text)
                | Parameter::Alg(text)
                | Parameter::KeyId(text)
                | Parameter::Tag(text) => StringRef::from_str(text).is_ok(),
            })
    }
}

/// A String, or the empty one for a text that has no serialisation: those are kept out when they are read,
/// and `is_serialisable` keeps them out of what we sign.
fn string(text: &str) -> &StringRef {
    StringRef::from_str(text).unwrap_or(sfv::string_ref(""))
}

fn integer<'a>(value: i64) -> RefBareItem<'a> {
    RefBareItem::Integer(sfv::Integer::try_from(value).unwrap_or(sfv::integer(0)))
}

/// All lines of a field, each trimmed, joined with `, ` (RFC 9651 §4.2); `None` if there are none, an error
/// if they are longer than `limit` bytes.
pub(super) fn joined<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    limit: usize,
) -> Option<Result<Cow<'h, [u8]>, TooLong>> {
    let mut lines = headers
        .get_all(name)
        .iter()
        .map(|line| trimmed(line.as_bytes()));
    let mut text = Cow::Borrowed(lines.next()?);
    for line in lines {
        if text.len() > limit {
            break;
        }
        let text = text.to_mut();
        text.extend_from_slice(b", ");
        text.extend_from_slice(line);
    }
    Some(if text.len() > limit {
        Err(TooLong)
    } else {
        Ok(text)
    })
}

/// A line without the white space around it (RFC 9110 §5.5); a server has usually taken it off already.
fn trimmed(mut line: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = line {
        line = rest;
    }
    line
}

#[derive(Debug)]
pub(super) struct TooLong;

/// Collects a Dictionary and refuses a member that occurs twice: the last would win.
struct Distinct<'a>(&'a mut Dictionary);

impl<'de> DictionaryVisitor<'de> for Distinct<'_> {
    type Out = ();
    type Error = Repeated;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, Repeated> {
        if self.0.contains_key(key) {
            return Err(Repeated);
        }
        match <Dictionary as DictionaryVisitor<'de>>::entry(self.0, key) {
            Ok(entry) => Ok(entry),
            Err(never) => match never {},
        }
    }

    fn finish(self) -> Result<(), Repeated> {
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("a member occurs twice")]
struct Repeated;

fn serialised(member: &ListEntry) -> Option<String> {
    match member {
        ListEntry::Item(item) => Some(item.serialize()),
        ListEntry::InnerList(_) => {
            let list: sfv::List = vec![member.clone()];
            list.serialize()
        }
    }
}

/// A field name in lower case. The `http` crate also takes quotes, which are no token (RFC 9110 §5.1).
fn field_name(name: &str) -> Option<HeaderName> {
    HeaderName::from_lowercase(name.as_bytes())
        .ok()
        .filter(|_| !name.contains('"'))
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
