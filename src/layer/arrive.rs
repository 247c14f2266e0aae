//! Which row is it? Matches the table, collects the body once, hashes it once; on the way out it completes refusals
//! for their surface.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, Uri};
use tracing::Span;

use super::{
    body::{Body, CollectError},
    step::{Next, Step},
    trace,
};
use crate::{
    protocol::{
        decision::Decision,
        operation::{Match, Op, Operation, Side, find_under},
        refusal::{Code, ProtocolError, Refusal},
    },
    wire::digest::{Sha256, sha256},
};

/// The default limit of a body: 256 KiB.
pub const BODY_LIMIT: usize = 256 * 1024;

/// A request as it arrived, in the request's extensions. Cheap to clone.
#[derive(Clone)]
pub struct Arrived(Arc<Inner>);

struct Inner {
    route: Route,
    uri: Uri,
    body: Bytes,
    hash: Sha256,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// A row of the table, with the id in its path.
    Row(Op, Option<String>),
    /// Under the table's first segments, but no row.
    Unknown,
    /// The layers are used without the table.
    NoTable,
}

/// Shows no body, which may hold a proposed floor, and no hash of one (R28).
impl fmt::Debug for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrived")
            .field("route", &self.0.route)
            .field("uri", &self.0.uri)
            .finish_non_exhaustive()
    }
}

impl Arrived {
    /// The row, if it is one.
    pub fn row(&self) -> Option<&'static Operation> {
        match self.0.route {
            Route::Row(op, _) => Some(op.row()),
            Route::Unknown | Route::NoTable => None,
        }
    }

    /// Where it goes.
    pub fn route(&self) -> &Route {
        &self.0.route
    }

    /// The id in its path.
    pub fn id(&self) -> Option<&str> {
        match &self.0.route {
            Route::Row(_, id) => id.as_deref(),
            Route::Unknown | Route::NoTable => None,
        }
    }

    /// The target as the client sent it (R8).
    pub fn uri(&self) -> &Uri {
        &self.0.uri
    }

    /// The whole body.
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }

    /// The SHA-256 of the raw body.
    pub fn hash(&self) -> &Sha256 {
        &self.0.hash
    }

    /// The arrival of `request`: the one that an outer layer left, or a new one without a table. Puts the collected
    /// body back, whole.
    pub(crate) async fn of(
        request: Request<Body>,
        limit: usize,
    ) -> Result<(Self, Request<Body>), Refusal> {
        if let Some(arrived) = request.extensions().get::<Arrived>() {
            return Ok((arrived.clone(), request));
        }
        Self::collect(request, Route::NoTable, limit).await
    }

    /// The arrival of an action that was parked.
    pub(crate) fn parked(route: Route, uri: Uri, body: Bytes) -> Self {
        Self(Arc::new(Inner {
            route,
            uri,
            hash: sha256(&body),
            body,
        }))
    }

    async fn collect(
        request: Request<Body>,
        route: Route,
        limit: usize,
    ) -> Result<(Self, Request<Body>), Refusal> {
        let uri = uri_as_sent(&request).clone();
        let (mut parts, body) = request.into_parts();
        let body = body.collect(limit).await.map_err(|error| match error {
            CollectError::TooLarge => Refusal::protocol(
                ProtocolError::TooLarge,
                format!("the body is over the limit of {limit} bytes"),
            ),
            CollectError::Broken => Refusal::invalid("the body broke off before its end"),
        })?;
        let arrived = Self(Arc::new(Inner {
            route,
            uri,
            hash: sha256(&body),
            body: body.clone(),
        }));
        parts.extensions.insert(arrived.clone());
        Ok((arrived, Request::from_parts(parts, Body::from(body))))
    }
}

/// The target before any router stripped a prefix from it, where that can be known (R8).
fn uri_as_sent(request: &Request<Body>) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = request.extensions().get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    request.uri()
}

/// How a request was answered, in the response's extensions; for logs and metrics.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The row; `None` where there was none.
    pub operation: Option<Op>,
    /// The profile of the operator whose agent was proven to call.
    pub operator: Option<String>,
    /// The decision that the answer states; `None` for reads, protocol errors and repeats.
    pub decision: Option<Decision>,
    /// The refusal's code.
    pub refused: Option<Code>,
    /// Whether the answer is a stored one.
    pub replayed: bool,
}

/// Marks an answer that comes from the store (binding 2.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replayed;

/// Marks an answer to a proven caller, with its operator.
#[derive(Clone, Debug)]
pub(crate) struct Operator(pub(crate) String);

/// The outermost step.
#[derive(Clone, Debug)]
pub struct Arrive(Arc<Config>);

#[derive(Debug)]
struct Config {
    /// The path of the public URL, without its trailing slash.
    prefix: String,
    limit: usize,
    /// Whether a step further in answers the seller's browser.
    browser: bool,
}

impl Arrive {
    pub(crate) fn new(prefix: String, limit: usize, browser: bool) -> Self {
        Self(Arc::new(Config {
            prefix,
            limit,
            browser,
        }))
    }

    fn find(&self, request: &Request<Body>) -> Found {
        let find = |uri: &Uri| find_under(&self.0.prefix, request.method(), uri.path());
        match find(uri_as_sent(request)) {
            Match::Row(op, id) => Found::Row(op, id),
            Match::Unknown => Found::Unknown,
            // A router outside has stripped a prefix, so what we let pass could be ours to a handler.
            Match::Elsewhere if find(request.uri()) != Match::Elsewhere => Found::Misplaced,
            Match::Elsewhere => Found::Elsewhere,
        }
    }
}

enum Found {
    Row(Op, Option<String>),
    Unknown,
    /// The layers sit inside a router that strips a prefix (R8).
    Misplaced,
    Elsewhere,
}

impl Step for Arrive {
    fn concerns(&self, request: &Request<Body>) -> bool {
        match self.find(request) {
            Found::Elsewhere => false,
            // Without an approver, the marketplace's own pages answer the seller's browser.
            Found::Row(op, _) => self.0.browser || op.row().side != Side::Browser,
            Found::Unknown | Found::Misplaced => true,
        }
    }

    async fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        let route = match self.find(&request) {
            Found::Row(op, id) => Route::Row(op, id),
            Found::Unknown | Found::Elsewhere => Route::Unknown,
            Found::Misplaced => {
                tracing::error!(
                    "the layers sit inside a router that strips a prefix, so nothing is served; wrap that router \
                     from outside, or add the prefix to public_url"
                );
                Route::Unknown
            }
        };
        let operation = match &route {
            Route::Row(op, _) => Some(*op),
            Route::Unknown | Route::NoTable => None,
        };
        let mut response = match Arrived::collect(request, route, self.0.limit).await {
            Ok((_, request)) => next.run(request).await?,
            Err(refusal) => refuse(&refusal),
        };
        let operator = response.extensions_mut().remove::<Operator>();
        let extensions = response.extensions();
        let answered = Answered {
            operation,
            operator: operator.map(|operator| operator.0),
            decision: stated(&response),
            refused: extensions.get().map(Refusal::code),
            replayed: extensions.get::<Replayed>().is_some(),
        };
        response.extensions_mut().insert(answered);
        Ok(response)
    }

    fn span(&self, request: &Request<Body>) -> Span {
        let path = uri_as_sent(request).path();
        trace::request(request, path, || match self.find(request) {
            Found::Row(op, _) => Some(op),
            Found::Unknown | Found::Misplaced | Found::Elsewhere => None,
        })
    }

    fn told(span: &Span, response: &Response<Body>) {
        trace::answered(span, response);
    }
}

/// The decision that an answer states.
pub(crate) fn stated<B>(response: &Response<B>) -> Option<Decision> {
    match response.extensions().get::<Refusal>() {
        Some(refusal) => refusal.decision(),
        None => response.extensions().get::<Decision>().cloned(),
    }
}

/// A refusal as a response of the stack.
pub(crate) fn refuse(refusal: &Refusal) -> Response<Body> {
    refusal.to_response().map(Body::from)
}
