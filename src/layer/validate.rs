//! Is it well-formed? The body against the row's closed schema, after the grant (R7).

use std::{future::ready, sync::Arc};

use futures_util::future::Either;
use http::{HeaderMap, Request, Response, header};
use serde_json::Value;
use tracing::Span;

use super::{
    arrive::{Arrived, refuse},
    body::Body,
    part::row_of,
    step::{Next, Step},
};
use crate::protocol::{
    grant::Grant,
    operation::{Operation, TierRule},
    refusal::{Reason, Refusal},
    schema,
};

/// The body as JSON, where a step outside has read it already, as strictly as it is read here. Private as [`Validated`] is.
#[derive(Clone)]
pub(crate) struct Parsed(pub(crate) Arc<Value>);

/// The body as JSON that satisfies its schema, in the request's extensions. It may hold a proposed floor, so it has no
/// `Debug`.
#[derive(Clone)]
pub(crate) struct Validated(pub(crate) Arc<Value>);

/// Validates the body. The two always-403 verbs are answered before it (R7, INV-3).
#[derive(Clone, Copy, Debug)]
pub struct Validate;

impl Step for Validate {
    fn run<N: Next>(
        self,
        mut request: Request<Body>,
        next: N,
    ) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
        let parsed = request.extensions_mut().remove::<Parsed>();
        match body(&request, parsed) {
            Ok(body) => {
                request.extensions_mut().insert(Validated(body));
                Either::Left(next.run(request))
            }
            Err(refusal) => Either::Right(ready(Ok(refuse(&refusal)))),
        }
    }

    fn span(&self, _: &Request<Body>) -> Span {
        tracing::debug_span!("rctp.validate")
    }
}

fn body(request: &Request<Body>, parsed: Option<Parsed>) -> Result<Arc<Value>, Refusal> {
    let (arrived, row) = row_of(request.extensions())?;
    if row.tier == TierRule::Forbid {
        let sub = request.extensions().get::<Grant>().map(|g| g.sub.clone());
        return Err(
            Refusal::forbid(Reason::ActionForbidden, "no agent may do this")
                .action(row.verb)
                .of_seller(sub),
        );
    }
    read(arrived, row, request, parsed)
}

fn read(
    arrived: &Arrived,
    row: &Operation,
    request: &Request<Body>,
    parsed: Option<Parsed>,
) -> Result<Arc<Value>, Refusal> {
    let Some(name) = row.body else {
        return if arrived.body().is_empty() {
            Ok(Arc::new(Value::Null))
        } else {
            Err(Refusal::invalid("this request takes no body"))
        };
    };
    if arrived.body().is_empty() && name == "empty-request" {
        return Ok(Arc::new(Value::Object(serde_json::Map::new())));
    }
    if !is_json(request.headers()) {
        return Err(Refusal::invalid(
            "the body must be plain JSON in UTF-8; send Content-Type: application/json and no Content-Encoding",
        ));
    }
    let body = match parsed {
        Some(Parsed(body)) => body,
        None => schema::parse(arrived.body())
            .map(Arc::new)
            .map_err(|e| Refusal::invalid(format!("the body was not understood: {e}")))?,
    };
    schema::validate(name, &body)
        .map_err(|e| Refusal::invalid(format!("the body does not satisfy {name}: {e}")))?;
    Ok(body)
}

/// One `Content-Type`, JSON in UTF-8 (RFC 8259 knows no other), and nothing that has to be decoded first: what is read
/// here must be what everybody behind reads.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let mut parts = value.to_str().unwrap_or_default().split(';').map(str::trim);
    let json = parts
        .next()
        .is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
    let utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.eq_ignore_ascii_case("charset") => {
            value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    });
    let encodings = headers.get_all(header::CONTENT_ENCODING);
    let plain = encodings
        .iter()
        .all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    json && utf8 && plain
}
