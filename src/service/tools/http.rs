//! What HTTP says of a request: may it come here, and in which form does the answer go back?

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use url::Url;

use super::{
    message::Reply,
    outcome::{Error, code},
};
use crate::{
    layer::{body::Body, validate::is_json},
    wire::signature::Authority,
};

/// Which hosts are ours, and whose pages may call (DNS rebinding, cross-site requests).
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    /// With the scheme, which says the default port.
    hosts: Vec<(String, Authority)>,
    origins: Vec<String>,
}

impl Guard {
    /// The endpoint is reached at this URL, from pages of the same origin too.
    pub(super) fn add_host(&mut self, url: &str) -> Result<(), String> {
        let url = self.add_origin(url)?;
        let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let authority = Authority::new(host, url.scheme()).map_err(|error| error.to_string())?;
        self.hosts.push((url.scheme().to_owned(), authority));
        Ok(())
    }

    /// Pages of this origin may call.
    pub(super) fn add_origin(&mut self, url: &str) -> Result<Url, String> {
        let parsed = Url::parse(url).map_err(|error| format!("`{url}` is no URL: {error}"))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(format!("`{url}` is neither http nor https"));
        }
        self.origins.push(parsed.origin().ascii_serialization());
        Ok(parsed)
    }

    pub(super) fn has_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
        let refused =
            |why: &'static str| Err(Error::invalid_request(why).with_status(StatusCode::FORBIDDEN));
        let hosts = headers.get_all(header::HOST);
        let named = hosts.iter().map(|value| value.to_str().unwrap_or_default());
        // HTTP/2 has the host in the target; where it is in both, both must be ours.
        let mut named = named.chain(uri.authority().map(|a| a.as_str())).peekable();
        if named.peek().is_none() || !named.all(|host| self.is_ours(host)) {
            return refused("the request is for a host that is not served here");
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        // Byte for byte: Fetch has browsers send the serialised form.
        if !origins.all(|origin| self.origins.iter().any(|known| known == origin)) {
            return refused("pages of this origin may not call");
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        let mut hosts = self.hosts.iter();
        hosts.any(|(scheme, ours)| Authority::new(host, scheme).is_ok_and(|host| host == *ours))
    }
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    /// A stream of one event, for clients that accept nothing else.
    Event,
}

impl Form {
    /// JSON wherever it is acceptable, since clients differ in what they send and all of them read it.
    pub(super) fn accepted(headers: &HeaderMap) -> Result<Self, Error> {
        let lines = headers.get_all(header::ACCEPT);
        let accept: Vec<&str> = lines.iter().filter_map(|line| line.to_str().ok()).collect();
        let accept = accept.join(",");
        if accept.is_empty() || accepts(&accept, "application", "json") {
            return Ok(Self::Json);
        }
        if accepts(&accept, "text", "event-stream") {
            return Ok(Self::Event);
        }
        Err(
            Error::invalid_request("the client must accept application/json or text/event-stream")
                .with_status(StatusCode::NOT_ACCEPTABLE),
        )
    }

    /// That of an answer which goes out in any case.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self::accepted(headers).unwrap_or(Self::Json)
    }

    pub(super) fn response(self, reply: Reply) -> Response<Body> {
        let (kind, body) = match self {
            Self::Json => ("application/json", reply.json),
            Self::Event => ("text/event-stream", {
                // JSON as we write it has no line breaks.
                let mut event = b"event: message\ndata: ".to_vec();
                event.extend_from_slice(&reply.json);
                event.extend_from_slice(b"\n\n");
                event
            }),
        };
        let mut response = Response::new(Body::from(Bytes::from(body)));
        *response.status_mut() = reply.status;
        response.headers_mut().extend(reply.headers);
        if self == Self::Event {
            // Proxies would wait for more.
            let no = HeaderValue::from_static("no");
            response.headers_mut().insert("x-accel-buffering", no);
        }
        for (name, value) in [
            (header::CONTENT_TYPE, kind),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            let headers = response.headers_mut();
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// The most specific range that names the type decides (RFC 9110 §12.5.1).
fn accepts(accept: &str, kind: &str, subtype: &str) -> bool {
    let ranges = accept.split(',').filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let (k, s) = parts.next()?.split_once('/')?;
        let exactness = match (k, s) {
            (k, s) if k.eq_ignore_ascii_case(kind) && s.eq_ignore_ascii_case(subtype) => 2,
            (k, "*") if k.eq_ignore_ascii_case(kind) => 1,
            ("*", "*") => 0,
            _ => return None,
        };
        let quality = parts.find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim()
                .eq_ignore_ascii_case("q")
                .then_some(value.trim())
        });
        let refused = quality.is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q == 0.0));
        Some((exactness, !refused))
    });
    ranges.max().is_some_and(|(_, accepted)| accepted)
}

/// A browser sends this type across sites only where the site allows it.
pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), Error> {
    match is_json(headers) {
        true => Ok(()),
        false => Err(Error::invalid_request(
            "the content type must be application/json in UTF-8, once, without a content encoding",
        )
        .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)),
    }
}

pub(super) fn method_not_allowed() -> Error {
    Error::invalid_request("the endpoint takes POST only; there are no sessions and no streams")
        .with_status(StatusCode::METHOD_NOT_ALLOWED)
        .with_header(header::ALLOW, HeaderValue::from_static("POST"))
}

pub(super) fn busy() -> Error {
    Error::new(
        code::INTERNAL_ERROR,
        "the gateway has too many requests at once; nothing was done, try again in a second",
    )
    .with_data(serde_json::json!({"code": "GATEWAY_BUSY", "retryable": true}))
    .with_status(StatusCode::SERVICE_UNAVAILABLE)
    .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
}
