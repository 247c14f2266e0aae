//! What tracing tells of a request: an INFO span for the request, made where it arrives, and a DEBUG span for each step,
//! one within the other as the layers are. The fields are told in `docs/operations.md`.
//!
//! No field holds a header, a body, a query, a token, a private term or a seller's pseudonym.

use futures_util::TryFutureExt;
use http::{Method, Request, Response};
use tracing::{Instrument, Span, field};

use super::{
    arrive::{Answered, stated},
    body::Body,
    step::{Next, Step},
};
use crate::protocol::{
    decision::Decision,
    operation::{Op, Verb},
    refusal::{Code, Refusal},
};

/// The step in its span. A combinator rather than an async block, which would hold the step's future twice.
pub(super) fn run<S: Step, N: Next>(
    step: S,
    request: Request<Body>,
    next: N,
) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
    let span = step.span(&request);
    let run = step.run(request, next).instrument(span.clone());
    run.inspect_ok(move |response| {
        if !span.is_disabled() {
            S::told(&span, response);
        }
    })
}

/// The span of a request. `find` tells its row; it is asked only where somebody wants to know.
pub(super) fn request(method: &Method, path: &str, find: impl FnOnce() -> Option<Op>) -> Span {
    let span = tracing::info_span!(
        "rctp.request",
        otel.kind = "server",
        otel.name = field::Empty,
        otel.status_code = field::Empty,
        http.request.method = known(method),
        http.route = field::Empty,
        http.response.status_code = field::Empty,
        url.path = path,
        rctp.operation = field::Empty,
        rctp.operator = field::Empty,
        rctp.verb = field::Empty,
        rctp.decision = field::Empty,
        rctp.reason = field::Empty,
        rctp.error = field::Empty,
        rctp.replayed = field::Empty,
    );
    if span.is_disabled() {
        return span;
    }
    match find().map(Op::row) {
        Some(row) => {
            span.record("otel.name", format!("{} {}", row.method, row.path));
            span.record("http.route", row.path);
            span.record("rctp.operation", row.name);
            span.record("rctp.verb", row.verb.map(Verb::as_str));
        }
        None => {
            span.record("otel.name", known(method));
        }
    }
    span
}

/// What came of the request.
pub(super) fn answered(span: &Span, response: &Response<Body>) {
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    if let Some(answered) = response.extensions().get::<Answered>() {
        span.record("rctp.operator", answered.operator.as_deref());
        span.record("rctp.replayed", answered.replayed.then_some(true));
        outcome(span, answered.decision.as_ref(), answered.refused);
    }
}

/// What was decided.
pub(super) fn decided(span: &Span, response: &Response<Body>) {
    let refused = response.extensions().get().map(Refusal::code);
    outcome(span, stated(response).as_ref(), refused);
}

fn outcome(span: &Span, decision: Option<&Decision>, refused: Option<Code>) {
    span.record("rctp.decision", decision.map(Decision::outcome));
    match refused {
        Some(Code::Reason(reason)) => {
            span.record("rctp.reason", reason.as_str());
        }
        Some(Code::Protocol(error)) => {
            span.record("rctp.error", error.as_str());
        }
        None => {}
    }
}

/// Methods are the caller's bytes; only those of RFC 9110 and PATCH are repeated, as semantic conventions have it.
fn known(method: &Method) -> &str {
    match *method {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::DELETE
        | Method::CONNECT
        | Method::OPTIONS
        | Method::TRACE
        | Method::PATCH => method.as_str(),
        _ => "_OTHER",
    }
}
