//! Which row is it? Matches the table, collects the body once, hashes it once; on the way out it completes refusals
//! for their surface.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, Uri};
use tracing::Span;

#[cfg(feature = "mcp")]
use super::mcp::{MCP, Surface};
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
    /// The MCP endpoint.
    Tools(Called),
    /// The layers are used without the table.
    NoTable,
}

/// What a request to the MCP endpoint calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// One tool that is a row.
    Tool(Op),
    /// The rows that a batch calls, in their order; other messages may be beside them.
    Tools(Vec<Op>),
    /// No row.
    Other,
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
    /// The row, if it is one, or calls one as a tool.
    pub fn row(&self) -> Option<&'static Operation> {
        match &self.0.route {
            Route::Row(op, _) | Route::Tools(Called::Tool(op)) => Some(op.row()),
            Route::Unknown | Route::Tools(_) | Route::NoTable => None,
        }
    }

    /// The rows: one, or those that a batch calls as tools.
    pub(crate) fn rows(&self) -> &[Op] {
        match &self.0.route {
            Route::Row(op, _) | Route::Tools(Called::Tool(op)) => std::slice::from_ref(op),
            Route::Tools(Called::Tools(rows)) => rows,
            Route::Unknown | Route::Tools(Called::Other) | Route::NoTable => &[],
        }
    }

    /// Whether it came to the MCP endpoint.
    pub(crate) fn is_mcp(&self) -> bool {
        matches!(self.0.route, Route::Tools(_))
    }

    /// Where it goes.
    pub fn route(&self) -> &Route {
        &self.0.route
    }

    /// The id in its path.
    pub fn id(&self) -> Option<&str> {
        match &self.0.route {
            Route::Row(_, id) => id.as_deref(),
            Route::Unknown | Route::Tools(_) | Route::NoTable => None,
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
        Self::collect(request, |_| Route::NoTable, limit).await
    }

    /// The arrival of an action that did not come as a request of its own: a parked one, or a tool call.
    pub(crate) fn within(route: Route, uri: Uri, body: Bytes) -> Self {
        Self(Arc::new(Inner {
            route,
            uri,
            hash: sha256(&body),
            body,
        }))
    }

    pub(super) async fn collect(
        request: Request<Body>,
        route: impl FnOnce(&[u8]) -> Route,
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
            route: route(&body),
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
    /// How each call of several was answered, in a batch over MCP; nothing else is then told.
    pub calls: Vec<Answered>,
    /// Whether it was refused for the access token itself.
    pub(crate) of_token: bool,
}

impl Answered {
    /// What the response says of itself.
    pub(crate) fn of(operation: Option<Op>, response: &Response<Body>) -> Self {
        let extensions = response.extensions();
        Self {
            operation,
            operator: None,
            decision: stated(response),
            refused: extensions.get().map(Refusal::code),
            replayed: extensions.get::<Replayed>().is_some(),
            calls: Vec::new(),
            of_token: extensions.get().is_some_and(|r: &Refusal| r.of_token),
        }
    }

    /// What several calls in one response say.
    #[cfg(feature = "mcp")]
    pub(super) fn of_batch(calls: Vec<Self>) -> Self {
        Self {
            operation: None,
            operator: None,
            decision: None,
            refused: None,
            replayed: false,
            calls,
            of_token: false,
        }
    }
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
    #[cfg(feature = "mcp")]
    mcp: Option<Surface>,
}

impl Arrive {
    pub(crate) fn new(
        prefix: String,
        limit: usize,
        browser: bool,
        #[cfg(feature = "mcp")] mcp: Option<Surface>,
    ) -> Self {
        Self(Arc::new(Config {
            prefix,
            limit,
            browser,
            #[cfg(feature = "mcp")]
            mcp,
        }))
    }

    /// The MCP endpoint, where the request is for it. Its path is exact, as those of the table.
    #[cfg(feature = "mcp")]
    fn surface(&self, request: &Request<Body>) -> Option<&Surface> {
        let surface = self.0.mcp.as_ref()?;
        let path = uri_as_sent(request).path().strip_prefix(&*self.0.prefix);
        (path == Some(MCP)).then_some(surface)
    }

    fn find(&self, request: &Request<Body>) -> Found {
        #[cfg(feature = "mcp")]
        let other = self.0.mcp.as_ref().and(MCP.strip_prefix('/'));
        #[cfg(not(feature = "mcp"))]
        let other = None;
        let find = |uri: &Uri| find_under(&self.0.prefix, other, request.method(), uri.path());
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
        #[cfg(feature = "mcp")]
        if self.surface(request).is_some() {
            return true;
        }
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
        #[cfg(feature = "mcp")]
        if let Some(surface) = self.surface(&request) {
            let mut response = Box::pin(surface.run(request, next, self.0.limit)).await?;
            answered(None, &mut response);
            if let Some(op) = response
                .extensions()
                .get::<Answered>()
                .and_then(|a| a.operation)
            {
                trace::operation(&Span::current(), op);
            }
            return Ok(response);
        }
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
            Route::Unknown | Route::Tools(_) | Route::NoTable => None,
        };
        let mut response = match Arrived::collect(request, |_| route, self.0.limit).await {
            Ok((_, request)) => next.run(request).await?,
            Err(refusal) => refuse(&refusal),
        };
        answered(operation, &mut response);
        Ok(response)
    }

    fn span(&self, request: &Request<Body>) -> Span {
        let path = uri_as_sent(request).path();
        trace::request(request, path, || {
            #[cfg(feature = "mcp")]
            if self.surface(request).is_some() {
                return Some((MCP, None));
            }
            match self.find(request) {
                Found::Row(op, _) => Some((op.row().path, Some(op))),
                Found::Unknown | Found::Misplaced | Found::Elsewhere => None,
            }
        })
    }

    fn told(span: &Span, response: &Response<Body>) {
        trace::answered(span, response);
    }
}

/// Says how the request was answered. What one tool call came to, the step that ran it has said already.
fn answered(operation: Option<Op>, response: &mut Response<Body>) {
    let operator = response.extensions_mut().remove::<Operator>();
    let told = response.extensions_mut().remove::<Answered>();
    let mut answered = told.unwrap_or_else(|| Answered::of(operation, response));
    answered.operator = operator.map(|operator| operator.0);
    response.extensions_mut().insert(answered);
}

/// The decision that an answer states.
pub(crate) fn stated<B>(response: &Response<B>) -> Option<Decision> {
    match response.extensions().get::<Refusal>() {
        Some(refusal) => refusal.decision(),
        None => response.extensions().get::<Decision>().cloned(),
    }
}

/// Whether it is refused for the access token that came with it, as a tool call too.
pub(super) fn is_of_token(response: &Response<Body>) -> bool {
    let extensions = response.extensions();
    let refused = extensions.get::<Refusal>().map(|r| r.of_token);
    let told = || extensions.get::<Answered>().map(|a| a.of_token);
    refused.or_else(told).unwrap_or_default()
}

/// A refusal as a response of the stack.
pub(crate) fn refuse(refusal: &Refusal) -> Response<Body> {
    refusal.to_response().map(Body::from)
}
