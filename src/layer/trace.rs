//! What tracing tells of a request: an INFO span for the request, made where it arrives, and a DEBUG span for each step,
//! one within the other as the layers are. The fields are told in `docs/operations.md`.
//!
//! No field holds a header, a body, a query, a token, a private term or a seller's pseudonym.

use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Method, Request, Response};
use pin_project_lite::pin_project;
use tracing::{Span, field};

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

pin_project! {
    /// A step in its span. One future rather than `Instrumented` and a combinator: with every wrapper, the futures of all
    /// steps within are moved once more.
    pub(super) struct Traced<S, F> {
        span: Span,
        #[pin]
        run: F,
        step: PhantomData<fn() -> S>,
    }
}

/// Runs the step in its span.
pub(super) fn run<S: Step, N: Next>(
    step: S,
    request: Request<Body>,
    next: N,
) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
    let span = step.span(&request);
    // Some steps have done their part when they give their future.
    let run = span.in_scope(|| step.run(request, next));
    Traced {
        span,
        run,
        step: PhantomData::<fn() -> S>,
    }
}

impl<S, E, F> Future for Traced<S, F>
where
    S: Step,
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.span.enter();
        let poll = this.run.poll(context);
        if let Poll::Ready(Ok(response)) = &poll
            && !this.span.is_disabled()
        {
            S::told(this.span, response);
        }
        poll
    }
}

/// The span of a request, within the trace that its headers name. `find` tells its route, and the row where that is one; it
/// is asked only where somebody wants to know.
pub(super) fn request(
    request: &Request<Body>,
    path: &str,
    find: impl FnOnce() -> Option<(&'static str, Option<Op>)>,
) -> Span {
    let method = request.method();
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
    #[cfg(feature = "otel")]
    context::join(&span, request.headers());
    match find() {
        Some((route, op)) => {
            span.record("otel.name", format!("{} {route}", known(method)));
            span.record("http.route", route);
            if let Some(op) = op {
                operation(&span, op);
            }
        }
        None => {
            span.record("otel.name", known(method));
        }
    }
    span
}

/// Which operation a request is; of a tool call that is known only when it has been read.
pub(super) fn operation(span: &Span, op: Op) {
    let row = op.row();
    span.record("rctp.operation", row.name);
    span.record("rctp.verb", row.verb.map(Verb::as_str));
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

/// A task that goes on by itself, within the span that begins it, and within its trace: what exports may have filtered the
/// span out.
pub(super) fn detached<F: Future>(task: F) -> impl Future<Output = F::Output> {
    use tracing::Instrument;

    #[cfg(feature = "otel")]
    let task = opentelemetry::context::FutureExt::with_current_context(task);
    task.in_current_span()
}

/// Sends a request of our own in a span, whose context goes with it. No URL is told: some are for their owner alone.
#[cfg(feature = "fetch")]
pub(crate) async fn send(
    call: &'static str,
    request: reqwest::RequestBuilder,
) -> reqwest::Result<reqwest::Response> {
    use tracing::Instrument;

    let (client, request) = request.build_split();
    #[cfg_attr(not(feature = "otel"), allow(unused_mut))]
    let mut request = request?;
    let span = tracing::debug_span!(
        "rctp.call",
        otel.kind = "client",
        otel.name = call,
        otel.status_code = field::Empty,
        http.request.method = request.method().as_str(),
        http.response.status_code = field::Empty,
        server.address = request.url().host_str(),
        server.port = request.url().port_or_known_default(),
    );
    #[cfg(feature = "otel")]
    context::send(&span, request.headers_mut());
    let response = client.execute(request).instrument(span.clone()).await;
    let status = response.as_ref().map(reqwest::Response::status);
    if let Ok(status) = status {
        span.record("http.response.status_code", status.as_u16());
    }
    if !status.is_ok_and(|status| status.is_success()) {
        span.record("otel.status_code", "ERROR");
    }
    response
}

/// W3C trace context, or whatever else the program's propagator reads and writes. The context at hand is
/// OpenTelemetry's own and not that of `Span::current`, which the layer that exports may have filtered out.
#[cfg(feature = "otel")]
mod context {
    use http::HeaderMap;
    use opentelemetry::{Context, global::get_text_map_propagator, trace::TraceContextExt};
    use opentelemetry_http::HeaderExtractor;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    /// Makes the caller's span the parent. Where the program has begun a trace of its own around us, ours is part of that.
    pub(super) fn join(span: &Span, headers: &HeaderMap) {
        if Context::current().has_active_span() {
            return;
        }
        let caller = get_text_map_propagator(|p| p.extract(&HeaderExtractor(headers)));
        if caller.has_active_span() {
            // It fails only where nobody exports spans.
            let _ = span.set_parent(caller);
        }
    }

    /// Writes the span's context into headers; where it is not exported, that of the one around it.
    #[cfg(feature = "fetch")]
    pub(super) fn send(span: &Span, headers: &mut HeaderMap) {
        let mut headers = opentelemetry_http::HeaderInjector(headers);
        span.in_scope(|| get_text_map_propagator(|p| p.inject(&mut headers)));
    }
}
