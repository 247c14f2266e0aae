//! The operations as tools over MCP (binding 13): a tool call becomes its REST request, and goes through the same steps.
//!
//! ```text
//! POST /mcp ─ Arrive ─ Authenticate ─ CallTools ┬ tools/call → the row's request → Admit → … → handler
//!                                               ├ tools/list → what the caller may use
//!                                               └ the rest of MCP, and a marketplace's own tools
//! ```
//!
//! The POST is authenticated as any request (binding 2, 13.2); its signature need not cover an `Idempotency-Key`, since
//! that of a tool call is in its `meta`. What a call comes to:
//!
//! | the row's answer | the tool's |
//! |---|---|
//! | carried out, or asked | a result, `{"decision", "result"}` |
//! | forbidden | error -32000 with `{"code", "decision"}` and the members of the error body |
//! | a protocol error | the same without `decision` |
//! | any 401 | the same under HTTP 401, with `WWW-Authenticate`, where the call came alone (R34) |
//!
//! Arguments that are no call of the row at all (a missing id, a `meta` that is none) are `invalid_request`; the body's own
//! schema is looked at in its place, after the grant (R7).

use std::{
    borrow::Cow,
    iter,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures_util::future::Either;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{CONTENT_TYPE, WWW_AUTHENTICATE},
    request::Parts,
};
use serde::Serialize;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};

use super::{
    arrive::{Answered, Arrived, Called, Route},
    authenticate::{Bearer, IDEMPOTENCY_KEY, SignedBy},
    body::{Body, CollectError},
    grant::{CheckGrant, is_always_signed},
    idempotency::MAX_STORED,
    part::put_together_wrongly,
    record::Recorder,
    step::{Next, Step},
    validate::Parsed,
};
use crate::{
    protocol::{
        caller::Caller,
        decision::{Decision, HEADER},
        grant::Grant,
        operation::{Op, Operation, Side, Verb, is_id},
        policy::{Policy, Tier},
        refusal::{Reason, Refusal},
    },
    service::{
        discovery::tools::{self, META, id_of, query_of},
        tools::{Call, Error, Mcp, Messages, Outcome, Tool, ToolResult, Tools},
    },
    store::BoxFuture,
    wire::jcs,
};

/// The endpoint's path under the public URL (binding 12).
pub const MCP: &str = "/mcp";

/// The code of every refusal of an RCTP tool (binding 13.4).
pub const REFUSED: i64 = -32000;

/// The outer half: what is refused before any tool is reached is said in the form that MCP clients read.
#[derive(Clone, Debug)]
pub(crate) struct Surface(pub(crate) Mcp);

impl Surface {
    pub(super) async fn run<N: Next>(
        &self,
        request: Request<Body>,
        next: N,
        limit: usize,
    ) -> Result<Response<Body>, N::Error> {
        if let Some(response) = self.0.turned_away(&request) {
            return Ok(response);
        }
        let headers = request.headers().clone();
        let unanswered = Unanswered::default();
        let route = |body: &[u8]| {
            let messages = Messages::read(&headers, body);
            let called = called(&messages);
            *unanswered.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(messages);
            Route::Tools(called)
        };
        let limit = limit.min(self.0.body_limit());
        let (arrived, mut request) = match Arrived::collect(request, route, limit).await {
            Ok(arrived) => arrived,
            Err(refusal) => {
                let error = Error::invalid_request(refusal.message().to_owned());
                let error = error.with_status(refusal.status());
                return Ok(self.0.refuse(&headers, &[], error));
            }
        };
        request.extensions_mut().insert(unanswered.clone());
        let response = next.run(request).await?;
        if let Some(refusal) = response.extensions().get::<Refusal>() {
            let challenge = response.headers().get(WWW_AUTHENTICATE);
            let error = |tool: Option<&str>| {
                // In a batch, each tool has been refused its own action.
                let verb = tool.and_then(tools::find).and_then(|(op, _)| op.row().verb);
                let error = refused(&refusal.clone().action(verb));
                match challenge {
                    Some(challenge) => error.with_header(WWW_AUTHENTICATE, challenge.clone()),
                    None => error,
                }
            };
            let messages = taken(&unanswered.0);
            let messages = messages.unwrap_or_else(|| Messages::read(&headers, arrived.body()));
            // Each that is refused is told; where none asks for an answer, the request is.
            let rows = arrived.rows();
            let others = messages.answers().max(1).saturating_sub(rows.len());
            let mut answer = self.0.refuse_messages(&headers, messages, error);
            let ops = rows.iter().copied().map(Some);
            let mut told: Vec<_> = ops
                .chain(iter::repeat_n(None, others))
                .map(|op| Answered::of(op, &response))
                .collect();
            let told = match told.len() {
                1 => told.remove(0),
                _ => Answered::of_batch(told),
            };
            *answer.extensions_mut() = response.into_parts().0.extensions;
            answer.extensions_mut().insert(told);
            return Ok(answer);
        }
        Ok(response)
    }
}

/// What a request holds, until somebody answers it: the tools, or who refuses it before them.
#[derive(Clone, Default)]
struct Unanswered(Arc<Mutex<Option<Messages>>>);

/// What a request calls. Who is refused, and how, depends on the row (S1).
fn called(messages: &Messages) -> Called {
    let rows = messages.tools().filter_map(tools::find);
    let mut rows: Vec<Op> = rows.map(|(op, _)| op).collect();
    match rows.pop() {
        None => Called::Other,
        Some(op) if !messages.is_batch() => Called::Tool(op),
        Some(last) => {
            rows.push(last);
            Called::Tools(rows)
        }
    }
}

/// The inner half, within the authentication: answers MCP, and runs the rest of the stack for each call of a row.
#[derive(Clone)]
pub struct CallTools(Option<Arc<Config>>);

pub(crate) struct Config {
    pub(crate) server: Mcp,
    /// The marketplace's own.
    pub(crate) others: Option<Arc<dyn Tools>>,
    pub(crate) grant: CheckGrant,
    pub(crate) recorder: Recorder,
    pub(crate) policy: Arc<Policy>,
    /// The path of the public URL, without its trailing slash.
    pub(crate) prefix: String,
}

impl CallTools {
    pub(crate) fn new(config: Option<Config>) -> Self {
        Self(config.map(Arc::new))
    }
}

impl Step for CallTools {
    fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
        let arrived = request.extensions().get::<Arrived>();
        let arrived = arrived.filter(|arrived| arrived.is_mcp()).cloned();
        match self.0.zip(arrived) {
            Some((config, arrived)) => {
                Either::Left(Box::pin(answer(config, arrived, request, next)))
            }
            None => Either::Right(next.run(request)),
        }
    }
}

async fn answer<N: Next>(
    config: Arc<Config>,
    arrived: Arrived,
    request: Request<Body>,
    next: N,
) -> Result<Response<Body>, N::Error> {
    let tools = Arc::new(RctpTools {
        config: config.clone(),
        next: Mutex::new(next),
        lost: Mutex::default(),
        answered: Mutex::default(),
    });
    let (request, _) = request.into_parts();
    let messages = request.extensions.get::<Unanswered>();
    let Some(mut messages) = messages.and_then(|unanswered| taken(&unanswered.0)) else {
        let refusal = put_together_wrongly("what /mcp was sent: put the arrival outside");
        return Ok(super::arrive::refuse(&refusal));
    };
    // Rows look at the grant themselves; what is beside them is refused as it would be alone.
    let mut refused_beside = Vec::new();
    if matches!(arrived.route(), Route::Tools(Called::Tools(_)))
        && let Err(refusal) = config.grant.live(&request.extensions)
    {
        let row = |tool: &str| tools::find(tool).is_some();
        let count = messages.refuse_beside(row, &refused(&refusal));
        let response = super::arrive::refuse(&refusal);
        refused_beside = vec![Answered::of(None, &response); count];
    }
    let server = &config.server;
    let answer = match &config.others {
        Some(others) => {
            let both = tools.clone().and(others.clone());
            server.answer_messages(&both, &request, messages).await
        }
        None => server.answer_messages(&tools, &request, messages).await,
    };
    if let Some(error) = taken(&tools.lost) {
        return Err(error);
    }
    let mut calls = taken(&tools.answered);
    let mut response = match answer {
        Ok(response) => {
            calls.extend(refused_beside);
            response
        }
        Err(busy) => busy,
    };
    let answered = match calls.len() {
        0 | 1 => calls.pop(),
        _ => Some(Answered::of_batch(calls)),
    };
    if let Some(answered) = answered {
        response.extensions_mut().insert(answered);
    }
    Ok(response)
}

/// The table's tools, for one request. [`Tools`] are shared between the calls of a batch, which a [`Next`] need not be.
struct RctpTools<N: Next> {
    config: Arc<Config>,
    next: Mutex<N>,
    /// The error of the service inside, which is no answer.
    lost: Mutex<Option<N::Error>>,
    answered: Mutex<Vec<Answered>>,
}

fn taken<T: Default>(kept: &Mutex<T>) -> T {
    std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner))
}

impl<N: Next> Tools for RctpTools<N> {
    fn find(&self, name: &str) -> Option<Tool> {
        tools::find(name).map(|(_, tool)| tool.clone())
    }

    fn list<'a>(&'a self, caller: &'a Parts) -> BoxFuture<'a, Result<Vec<Tool>, Error>> {
        Box::pin(async move {
            let extensions = &caller.extensions;
            let grant = self.config.grant.carried(extensions).await;
            let grant = grant.map_err(|refusal| {
                self.tell(None, &super::arrive::refuse(&refusal));
                refused(&refusal)
            })?;
            let caller = extensions.get::<Caller>();
            let policy = &self.config.policy;
            let usable = tools::all().iter().filter(|(op, _)| {
                caller.is_some_and(|caller| may_use(op.row(), caller, grant.as_ref(), policy))
            });
            Ok(usable.map(|(_, tool)| tool.clone()).collect())
        })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some((op, _)) = tools::find(call.tool.name()) else {
                return Err(refused(&Refusal::not_found()));
            };
            let response = match self.run(op, call).await {
                Ok(response) => response,
                Err(Stopped::Refused(refusal)) => super::arrive::refuse(&refusal),
                Err(Stopped::Recorded(response)) => response,
                Err(Stopped::Lost(error)) => {
                    *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return Err(refused(&Refusal::unavailable("the service inside failed")));
                }
            };
            self.tell(Some(op), &response);
            outcome(response).await
        })
    }

    fn busy(&self, tool: &Tool) -> Outcome {
        let refusal = Refusal::unavailable(
            "the gateway has too many calls at once; nothing was executed, retry with the same key",
        );
        let op = tools::find(tool.name()).map(|(op, _)| op);
        self.tell(op, &super::arrive::refuse(&refusal));
        Err(refused(&refusal))
    }
}

/// Whether a call can come to anything for this caller: its side, the scopes of its grant, what is offered, and what is
/// always signed.
fn may_use(row: &Operation, caller: &Caller, grant: Option<&Grant>, policy: &Policy) -> bool {
    let side = match row.side {
        Side::Seller | Side::Asker => grant.is_some(),
        Side::Buyer => grant.is_none(),
        Side::Party | Side::PartyOrRole | Side::Operator => true,
        Side::Browser => false,
    };
    let granted = row.verb.and_then(Verb::scope).is_none_or(|scope| {
        grant.is_some_and(|grant| {
            let tier = policy
                .tiers
                .effective(scope, grant.tiers.get(scope).copied());
            grant.has_scope(scope) && tier.is_some_and(|tier| tier != Tier::Forbid)
        })
    });
    side && granted && (caller.key.is_some() || !is_always_signed(row.op))
}

/// Why a call never got to the steps within, or did not come back from there.
enum Stopped<E> {
    Refused(Refusal),
    /// A refusal that is in the record already.
    Recorded(Response<Body>),
    Lost(E),
}

impl<E> From<Refusal> for Stopped<E> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<N: Next> RctpTools<N> {
    fn tell(&self, op: Option<Op>, response: &Response<Body>) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.push(Answered::of(op, response));
    }

    async fn run(&self, op: Op, call: Call<'_>) -> Result<Response<Body>, Stopped<N::Error>> {
        let row = op.row();
        let Parts {
            extensions,
            headers,
            uri,
            ..
        } = call.request;
        let caller = extensions
            .get::<Caller>()
            .ok_or_else(|| put_together_wrongly("Caller: put the authentication outside"))?;
        let Value::Object(mut arguments) = call.arguments else {
            return Err(Refusal::invalid("the arguments must be an object").into());
        };
        let meta = Meta::take(&mut arguments)?;
        if meta.names_another(&caller.operator) {
            let refusal = Refusal::forbid(
                Reason::OperatorUnknown,
                "meta[\"ucp-agent\"] must name the profile that the request was authenticated for",
            );
            let at = Arrived::within(Route::Row(op, None), uri.clone(), Bytes::new());
            let refusal = refusal.action(row.verb);
            let recorded = self.config.recorder.refuse(refusal, caller.clone(), &at);
            return Err(Stopped::Recorded(recorded.await));
        }
        let target = Target::take(row, &mut arguments)?;
        let arguments = Value::Object(arguments);
        let body = match row.body.is_none() && arguments.as_object().is_some_and(Map::is_empty) {
            true => Bytes::new(),
            // Its digest must be that of every retry, however the client writes JSON (R9). There is no canonical form of
            // numbers that no schema lets through; that is said after the grant, as over REST.
            false => jcs::canonical(&arguments)
                .unwrap_or_else(|_| arguments.to_string().into_bytes())
                .into(),
        };
        let inside = uri.path().strip_suffix(MCP).unwrap_or_default();
        let sent = target.under(&self.config.prefix)?;
        // A router outside may have stripped the prefix; handlers are found by what it left.
        let routed = match inside == self.config.prefix {
            true => sent.clone(),
            false => target.under(inside)?,
        };
        let mut request = Request::new(Body::from(body.clone()));
        *request.method_mut() = row.method.clone();
        *request.uri_mut() = routed;
        let inner = request.headers_mut();
        inner.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for version in headers.get_all("rctp-version") {
            inner.append("rctp-version", version.clone());
        }
        if let Some(key) = meta.idempotency_key.filter(|_| row.method == Method::POST) {
            // One on the POST itself must be the same; where it is not, both go in, and two are refused.
            let beside = headers
                .get_all(IDEMPOTENCY_KEY)
                .iter()
                .filter(|b| **b != key);
            for other in beside {
                inner.append(IDEMPOTENCY_KEY, other.clone());
            }
            inner.append(IDEMPOTENCY_KEY, key);
        }
        let within = request.extensions_mut();
        within.insert(Arrived::within(Route::Row(op, target.id), sent, body));
        within.insert(Parsed(Arc::new(arguments)));
        within.insert(caller.clone());
        if let Some(key) = extensions.get::<SignedBy>() {
            within.insert(key.clone());
        }
        if let Some(bearer) = extensions.get::<Bearer>() {
            let mut bearer = bearer.clone();
            if call.batched {
                // Every call is introspected, not every POST (binding 3.3).
                bearer.introspection = None;
            }
            within.insert(bearer);
        }
        let next = self
            .next
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        next.run(request).await.map_err(Stopped::Lost)
    }
}

/// `arguments.meta` (binding 13.2).
#[derive(Default)]
struct Meta {
    /// `ucp-agent`, as it came.
    agent: Option<Value>,
    idempotency_key: Option<HeaderValue>,
}

impl Meta {
    fn take(arguments: &mut Map<String, Value>) -> Result<Self, Refusal> {
        let mut members = match arguments.remove(META) {
            None => return Ok(Self::default()),
            Some(Value::Object(members)) => members,
            Some(_) => return Err(Refusal::invalid("`meta` must be an object")),
        };
        let agent = members.remove("ucp-agent");
        let key = members.remove("idempotency-key").map(|key| {
            let key = key.as_str().map(HeaderValue::from_str);
            key.and_then(Result::ok).ok_or_else(|| {
                Refusal::invalid(
                    "meta[\"idempotency-key\"] must be a string of visible ASCII characters",
                )
            })
        });
        if !members.is_empty() {
            return Err(Refusal::invalid(
                "`meta` has ucp-agent and idempotency-key, and no other member",
            ));
        }
        Ok(Self {
            agent,
            idempotency_key: key.transpose()?,
        })
    }

    /// The profile that was proven is the header's where there is one, and the client's.
    fn names_another(&self, operator: &str) -> bool {
        let named = self.agent.as_ref();
        named.is_some_and(|agent| *agent != json!({ "profile": operator }))
    }
}

/// Where the call's REST request goes.
struct Target {
    path: String,
    id: Option<String>,
}

impl Target {
    /// Takes what is the path's and the query's out of the arguments. Ids have the form of every id, so that none can
    /// change the path around it (R35).
    fn take(row: &Operation, arguments: &mut Map<String, Value>) -> Result<Self, Refusal> {
        let id = match id_of(row) {
            None => None,
            Some(name) => match arguments.remove(name) {
                Some(Value::String(id)) if is_id(&id) => Some(id),
                _ => {
                    return Err(Refusal::invalid(format!(
                        "`{name}` must be there, and an id"
                    )));
                }
            },
        };
        let mut path = row.path.replace("{id}", id.as_deref().unwrap_or_default());
        let mut separator = '?';
        for name in query_of(row) {
            match arguments.remove(*name) {
                None => {}
                Some(Value::Number(number)) if number.is_u64() => {
                    path.push_str(&format!("{separator}{name}={number}"));
                    separator = '&';
                }
                Some(_) => {
                    return Err(Refusal::invalid(format!(
                        "`{name}` must be an integer, not negative"
                    )));
                }
            }
        }
        Ok(Self { path, id })
    }

    fn under(&self, prefix: &str) -> Result<Uri, Refusal> {
        let Self { path, .. } = self;
        Uri::try_from(format!("{prefix}{path}"))
            .map_err(|_| Refusal::invalid("the ids do not make a path"))
    }
}

/// A refusal as the error of a tool (binding 13.4, R34).
fn refused(refusal: &Refusal) -> Error {
    let Value::Object(body) = refusal.body() else {
        unreachable!("an error body is an object");
    };
    error(refusal.status(), refusal.decision(), body)
}

/// `body` is the REST error body.
fn error(status: StatusCode, decision: Option<Decision>, mut body: Map<String, Value>) -> Error {
    let message = body
        .get("message")
        .and_then(Value::as_str)
        .unwrap_or("this was refused");
    let message = message.to_owned();
    let code = body
        .remove("error")
        .unwrap_or_else(|| code_of(status).into());
    body.insert("code".into(), code);
    if let Some(decision) = decision {
        body.insert("decision".into(), json!(decision));
    }
    let error = Error::new(REFUSED, message).with_data(Value::Object(body));
    match status {
        // The authentication adds WWW-Authenticate, from which OAuth clients begin.
        StatusCode::UNAUTHORIZED => error.with_status(status),
        _ => error,
    }
}

/// The code of an answer that has none: that of a marketplace's own handler.
fn code_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "not_found",
        status if status.is_client_error() => "invalid_request",
        _ => "unavailable",
    }
}

/// What the row's answer is to the tool's caller.
async fn outcome(response: Response<Body>) -> Outcome {
    let (parts, body) = response.into_parts();
    let status = parts.status;
    if let Some(refusal) = parts.extensions.get::<Refusal>()
        && !status.is_success()
    {
        return Err(refused(refusal));
    }
    let body = match body.collect(MAX_STORED).await {
        Ok(body) => body,
        Err(CollectError::TooLarge | CollectError::Broken) => {
            return Err(refused(&Refusal::unavailable(
                "this was executed, but its answer could not be read; retry with the same key",
            )));
        }
    };
    // A stored answer has nothing but its bytes.
    let said = || parts.headers.get(HEADER)?.to_str().ok()?.parse().ok();
    let decision = parts.extensions.get::<Decision>().cloned().or_else(said);
    if status.is_success() {
        let decision = decision.unwrap_or(Decision::Auto);
        let result = match serde_json::from_slice::<&RawValue>(&body) {
            // An event of a stream ends at a line break, which JSON has between its tokens at most.
            Ok(json) if !json.get().contains(['\n', '\r']) => Cow::Borrowed(json),
            _ => Cow::Owned(to_raw_value(&read(&body)).expect("a value is JSON")),
        };
        return Ok(ToolResult::of_members(&Answer { decision, result }));
    }
    let body = match read(&body) {
        Value::Object(body) if body.get("error").is_some_and(Value::is_string) => body,
        _ => Map::new(),
    };
    Err(error(status, decision, body))
}

/// What a tool that was carried out, or asked about, says (binding 13.4).
#[derive(Serialize)]
struct Answer<'a> {
    decision: Decision,
    result: Cow<'a, RawValue>,
}

/// A body; text where it is no JSON, as of a marketplace's own handler.
fn read(body: &[u8]) -> Value {
    match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(_) if body.is_empty() => Value::Null,
        Err(_) => String::from_utf8_lossy(body).into(),
    }
}
