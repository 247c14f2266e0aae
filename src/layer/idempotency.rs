//! Has this happened already? One effect per `Idempotency-Key` (binding 2.4; R9–R11).
//!
//! In the stack, the decision settles the key in the same unit as the effect: the key, the response and what was done
//! are durable together or not at all. Used alone, in front of handlers that know nothing of units, the layer takes
//! the key durably *before* the handler runs and settles it after; the handler runs detached, so that a client that
//! hangs up cannot leave it half done, and an execution that never finished is not repeated (R10).
//!
//! | the key | the answer |
//! |---|---|
//! | unused | runs the request |
//! | used for the same request | the stored answer, not executed again |
//! | used for another request | 409 `idempotency_conflict` |
//! | being executed by a concurrent duplicate | waits for its answer, up to a limit, then 503 |
//! | taken by an execution that never finished | 503, unless the reconcile hook knows its outcome |
//! | the store is out of reach | 503, nothing executed |
//!
//! Answers below 500 are stored for 48 hours, per operator profile.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use tokio::sync::watch;
use tracing::{Span, field};

use super::{
    approve::Approved,
    arrive::{Arrived, BODY_LIMIT, Replayed, refuse},
    authenticate::IDEMPOTENCY_KEY,
    body::{Body, CollectError},
    context::Clock,
    part::put_together_wrongly,
    step::{Next, Step},
    trace,
};
use crate::{
    protocol::{
        caller::Caller,
        grant::Grant,
        record::Seal,
        refusal::{ProtocolError, Refusal},
        time::Timestamp,
    },
    store::{
        BoxFuture, Claim, ClaimStep, CommitError, IdempotencyKey, Store, StoreError,
        StoredResponse, Unit, Used,
    },
    wire::digest::{Sha256, sha256},
};

/// How long an answer is kept (binding 2.4).
pub const KEPT_SECONDS: i64 = 48 * 3600;
/// How long a concurrent duplicate waits for the first.
const WAIT: Duration = Duration::from_secs(10);
/// Fewer characters cannot hold 128 bits (R11).
pub(crate) const MIN_KEY: usize = 22;
pub(crate) const MAX_KEY: usize = 255;

/// Settles executions that never finished (R10): asked when a key is found taken, without an answer, and not being
/// executed in this process.
pub trait Reconcile: Send + Sync + 'static {
    /// The answer that the execution came to; `None` while that cannot be known. It must not execute anything.
    fn outcome<'a>(&'a self, key: &'a IdempotencyKey) -> BoxFuture<'a, Option<StoredResponse>>;
}

/// The key that this request holds, in its extensions; whoever commits the effect settles it in the same unit.
#[derive(Clone)]
pub struct Held {
    key: IdempotencyKey,
    digest: Sha256,
    now: Timestamp,
}

/// Shows no digest: the body behind it may hold a proposed floor (R28).
impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Held {
    /// A claim for the unit that has the effect.
    pub fn claim(&self, step: ClaimStep) -> Claim {
        Claim {
            key: self.key.clone(),
            digest: self.digest,
            step,
            at: self.now,
            expires: self.now.plus(KEPT_SECONDS),
        }
    }
}

/// Marks a response whose key was settled, or need not be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled;

/// Marks a response of a commit that found the key taken: another process was faster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyTaken;

/// The step.
#[derive(Clone)]
pub struct Idempotency(Arc<Config>);

struct Config {
    store: Arc<dyn Store>,
    seal: Arc<dyn Seal>,
    clock: Arc<dyn Clock>,
    reconcile: Option<Arc<dyn Reconcile>>,
    /// Whether a decision further in settles the key.
    in_stack: bool,
    running: Running,
}

impl Idempotency {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        seal: Arc<dyn Seal>,
        clock: Arc<dyn Clock>,
        reconcile: Option<Arc<dyn Reconcile>>,
        in_stack: bool,
    ) -> Self {
        Self(Arc::new(Config {
            store,
            seal,
            clock,
            reconcile,
            in_stack,
            running: Running::default(),
        }))
    }
}

impl Step for Idempotency {
    async fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        // A parked action is carried out once because its approval ends once; its key keeps the 202.
        let parked = request.extensions().get::<Approved>().is_some();
        if request.method() != Method::POST || parked {
            return Box::pin(next.run(request)).await;
        }
        let (arrived, mut request) = match Arrived::of(request, BODY_LIMIT).await {
            Ok(arrived) => arrived,
            Err(refusal) => return Ok(refuse(&refusal)),
        };
        let config = &self.0;
        let held = match config.held(&request, &arrived) {
            Ok(held) => held,
            Err(refusal) => return Ok(refuse(&refusal)),
        };
        let executing = match Box::pin(config.begin(&held)).await {
            Ok(Begun::Ours(executing)) => executing,
            Ok(Begun::Answered(response)) => return Ok(response),
            Err(refusal) => return Ok(refuse(&refusal)),
        };
        request.extensions_mut().insert(held.clone());
        request.extensions_mut().insert(executing.clone());
        let response = if config.in_stack {
            config
                .settled_within(&held, Box::pin(next.run(request)))
                .await
        } else {
            let this = self.clone();
            Box::pin(this.detached(held.clone(), executing.clone(), request, next)).await
        };
        // Whoever kept the request must not keep the key.
        executing.end();
        let response = response?;
        if response.extensions().get::<KeyTaken>().is_none() {
            return Ok(response);
        }
        // Another process was faster: its answer is the answer.
        Ok(match Box::pin(config.begin(&held)).await {
            Ok(Begun::Answered(response)) => response,
            Ok(Begun::Ours(executing)) => {
                executing.end();
                refuse(&taken_elsewhere())
            }
            Err(refusal) => refuse(&refusal),
        })
    }

    fn span(&self, _: &Request<Body>) -> Span {
        tracing::debug_span!("rctp.idempotency", rctp.replayed = field::Empty)
    }

    fn told(span: &Span, response: &Response<Body>) {
        let replayed = response.extensions().get::<Replayed>().is_some();
        span.record("rctp.replayed", replayed);
    }
}

enum Begun {
    Ours(Executing),
    Answered(Response<Body>),
}

impl Config {
    /// What the request holds: its key, well-formed, and its digest (R9).
    fn held(&self, request: &Request<Body>, arrived: &Arrived) -> Result<Held, Refusal> {
        let extensions = request.extensions();
        let caller = extensions
            .get::<Caller>()
            .ok_or_else(|| put_together_wrongly("Caller: put the authentication layer outside"))?;
        let key = key(request)?;
        let digest = digest(
            request.method(),
            arrived,
            caller,
            extensions.get::<Grant>().map(|g| g.sub.as_str()),
        );
        Ok(Held {
            key: IdempotencyKey {
                scope: caller.operator.clone(),
                key,
            },
            digest,
            now: self.clock.now(),
        })
    }

    /// Looks the key up, and waits for a concurrent duplicate.
    async fn begin(&self, held: &Held) -> Result<Begun, Refusal> {
        let busy = || {
            Refusal::unavailable(
                "a request with the same Idempotency-Key is still being executed; retry with the same key",
            )
        };
        let wait = async {
            loop {
                // Who runs the key is decided before the store is read, so that no two of this process run it.
                let executing = match self.running.enter(&held.key) {
                    Ok(executing) => executing,
                    Err(mut ended) => {
                        let _ = ended.changed().await;
                        continue;
                    }
                };
                return match self.store.used(held.key.clone(), self.clock.now()).await {
                    Ok(None) => Ok(Begun::Ours(executing)),
                    Ok(Some(used)) => self.answer(held, used).await.map(Begun::Answered),
                    Err(error) => Err(unavailable(&error)),
                };
            }
        };
        match tokio::time::timeout(WAIT, wait).await {
            Ok(begun) => begun,
            Err(_) => Err(busy()),
        }
    }

    /// The answer to a repeat.
    async fn answer(&self, held: &Held, used: Used) -> Result<Response<Body>, Refusal> {
        if used.digest != held.digest {
            return Err(Refusal::protocol(
                ProtocolError::IdempotencyConflict,
                "this Idempotency-Key was used for another request; use a new key for each request",
            ));
        }
        if let Some(stored) = used.response {
            return Ok(replay(stored));
        }
        let outcome = match &self.reconcile {
            Some(reconcile) => reconcile.outcome(&held.key).await,
            None => None,
        };
        let Some(outcome) = outcome else {
            return Err(Refusal::unavailable(
                "an earlier execution of this request did not finish, and its outcome is not known; it is not repeated",
            ));
        };
        let unit = Unit {
            claim: Some(held.claim(ClaimStep::Complete(outcome.clone()))),
            ..Unit::default()
        };
        match self.store.commit(unit, self.seal.clone()).await {
            Ok(_) => Ok(replay(outcome)),
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// Runs the rest of the stack, which settles the key; what it answered without a decision is settled here.
    async fn settled_within<E>(
        &self,
        held: &Held,
        run: impl Future<Output = Result<Response<Body>, E>>,
    ) -> Result<Response<Body>, E> {
        let response = run.await?;
        let extensions = response.extensions();
        let done = extensions.get::<Settled>().is_some() || extensions.get::<KeyTaken>().is_some();
        if done || response.status().is_server_error() {
            return Ok(response);
        }
        let not_stored = Refusal::unavailable("the store did not answer; nothing was executed");
        Ok(
            match Box::pin(self.settle(held, response, ClaimStep::Settle)).await {
                Ok(response) => response,
                Err(CommitError::KeyTaken) => key_taken(),
                Err(_) => refuse(&not_stored),
            },
        )
    }

    /// Stores the response under the key.
    async fn settle(
        &self,
        held: &Held,
        response: Response<Body>,
        step: fn(StoredResponse) -> ClaimStep,
    ) -> Result<Response<Body>, CommitError> {
        let (parts, body) = response.into_parts();
        let body = body.collect(MAX_STORED).await.map_err(|error| {
            StoreError(match error {
                CollectError::TooLarge => format!("the answer is over {MAX_STORED} bytes"),
                CollectError::Broken => "the answer broke off".into(),
            })
        });
        let committed = match body {
            Ok(body) => {
                let response = Response::from_parts(parts, body);
                let unit = Unit {
                    claim: Some(held.claim(step(stored(&response)))),
                    ..Unit::default()
                };
                let done = self.store.commit(unit, self.seal.clone()).await;
                done.map(|_| response.map(Body::from))
            }
            Err(error) => Err(error.into()),
        };
        committed.inspect_err(|error| {
            if let CommitError::Store(error) = error {
                tracing::error!(%error, "an answer could not be stored");
            }
        })
    }
}

impl Idempotency {
    /// The layer alone: the key is durable before the handler runs, the answer after it, whoever still listens.
    async fn detached<N: Next>(
        self,
        held: Held,
        executing: Executing,
        request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        // The key is taken inside the task as well: a client that hangs up meanwhile would leave it taken for nothing.
        let task = async move {
            let _executing = executing;
            let unit = Unit {
                claim: Some(held.claim(ClaimStep::Begin)),
                ..Unit::default()
            };
            match self.0.store.commit(unit, self.0.seal.clone()).await {
                Ok(_) => {}
                Err(CommitError::KeyTaken) => return Ok(key_taken()),
                Err(error) => return Ok(refuse(&unavailable(&error))),
            }
            let response = next.run(request).await?;
            if response.status().is_server_error() {
                // Whether it had an effect is not known: the key stays taken (R10).
                return Ok(response);
            }
            let settled = self.0.settle(&held, response, ClaimStep::Complete).await;
            Ok(settled.unwrap_or_else(|_| refuse(&unstored())))
        };
        let task = tokio::spawn(trace::detached(task));
        match task.await {
            Ok(response) => response,
            Err(error) => {
                tracing::error!(%error, "a handler did not finish; its key stays taken");
                Ok(refuse(&unfinished()))
            }
        }
    }
}

/// The answer of whoever found the key taken; the layer looks it up again.
pub(crate) fn key_taken() -> Response<Body> {
    let mut response = refuse(&taken_elsewhere());
    response.extensions_mut().insert(KeyTaken);
    response
}

fn taken_elsewhere() -> Refusal {
    Refusal::unavailable(
        "a request with the same Idempotency-Key is being executed elsewhere; retry with the same key",
    )
}

/// The handler ran and answered, and the answer is lost.
pub(crate) fn unstored() -> Refusal {
    Refusal::unavailable(
        "this was executed, but its answer could not be stored; it is not repeated",
    )
}

/// The handler ran, and nobody knows how far.
pub(crate) fn unfinished() -> Refusal {
    Refusal::unavailable("the execution did not finish, and its outcome is not known")
}

/// The largest response that is stored.
pub(crate) const MAX_STORED: usize = 4 * 1024 * 1024;

fn unavailable(error: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(%error, "the store failed");
    Refusal::unavailable("the store did not answer; nothing was executed")
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        unavailable(&error)
    }
}

/// The header, once, of 22 to 255 visible characters (R11).
fn key(request: &Request<Body>) -> Result<String, Refusal> {
    let mut values = request.headers().get_all(IDEMPOTENCY_KEY).iter();
    let value = match (values.next(), values.next()) {
        (Some(value), None) => value,
        (None, _) => {
            return Err(Refusal::invalid(
                "every POST needs an Idempotency-Key with at least 128 bits of entropy; over MCP, a tool that writes needs it \
                 as meta[\"idempotency-key\"]",
            ));
        }
        (Some(_), Some(_)) => {
            return Err(Refusal::invalid(
                "there is more than one Idempotency-Key; send one, over MCP the same in header and meta",
            ));
        }
    };
    let key = value.to_str().unwrap_or_default();
    let visible = !key.is_empty() && key.bytes().all(|b| (0x21..0x7f).contains(&b));
    if !visible || !(MIN_KEY..=MAX_KEY).contains(&key.len()) {
        return Err(Refusal::invalid(format!(
            "Idempotency-Key must have {MIN_KEY} to {MAX_KEY} visible ASCII characters; fewer cannot hold 128 bits"
        )));
    }
    Ok(key.to_owned())
}

/// SHA-256 over method, target, the body's hash, the agent and the grant's sub (R9), each kept apart by JSON.
fn digest(method: &Method, arrived: &Arrived, caller: &Caller, sub: Option<&str>) -> Sha256 {
    let target = arrived
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let agent = caller.agent().to_string();
    let text = serde_json::to_vec(&(method.as_str(), target, arrived.hash(), agent, sub))
        .expect("strings and numbers serialise");
    sha256(&text)
}

/// Headers that belong to one transfer rather than to the answer.
fn is_transient(name: &HeaderName) -> bool {
    [
        header::DATE,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::CONNECTION,
    ]
    .contains(name)
}

pub(crate) fn stored(response: &Response<Bytes>) -> StoredResponse {
    StoredResponse {
        status: response.status(),
        headers: response
            .headers()
            .iter()
            .filter(|(name, _)| !is_transient(name))
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body: response.body().clone(),
    }
}

fn replay(stored: StoredResponse) -> Response<Body> {
    let mut response = Response::new(Body::from(stored.body));
    *response.status_mut() = stored.status;
    for (name, value) in stored.headers {
        let pair = (
            HeaderName::try_from(name),
            HeaderValue::from_maybe_shared(Bytes::from(value)),
        );
        if let (Ok(name), Ok(value)) = pair {
            response.headers_mut().append(name, value);
        }
    }
    response.extensions_mut().insert(Replayed);
    response
}

/// The keys that are being executed in this process.
#[derive(Clone, Default)]
struct Running(Arc<Mutex<HashMap<IdempotencyKey, watch::Receiver<()>>>>);

impl Running {
    /// Enters the key, or says when whoever runs it ends.
    fn enter(&self, key: &IdempotencyKey) -> Result<Executing, watch::Receiver<()>> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = running.get(key) {
            return Err(ended.clone());
        }
        let (ends, ended) = watch::channel(());
        running.insert(key.clone(), ended);
        Ok(Executing(Arc::new(Guard {
            running: self.clone(),
            key: key.clone(),
            ends: Mutex::new(Some(ends)),
        })))
    }
}

/// The key is being executed in this process. Whoever carries the execution on after the client has hung up keeps a
/// clone, from the request's extensions, so that a repeat waits for it instead of finding it unfinished.
#[derive(Clone)]
pub(crate) struct Executing(Arc<Guard>);

impl Executing {
    fn end(&self) {
        self.0.end();
    }
}

struct Guard {
    running: Running,
    key: IdempotencyKey,
    /// Its end wakes whoever waits.
    ends: Mutex<Option<watch::Sender<()>>>,
}

impl Guard {
    /// Leaves the key, once.
    fn end(&self) {
        let ends = self
            .ends
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if ends.is_some() {
            let mut running = self
                .running
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            running.remove(&self.key);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}
