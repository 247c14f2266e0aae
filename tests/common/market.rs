//! More of the market: stores that fail or wait on command, more agents, several gateways over one store, logs to read.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    unreachable_pub,
    clippy::unwrap_used
)]

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    future::Future,
    io,
    ops::Deref,
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use jsonschema::{Registry, Resource, Validator};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt, util::BoxCloneSyncService};
use tower_rctp::{
    Rctp, RctpBuilder,
    client::Signer,
    layer::{
        authenticate::operators::{Operator, Operators},
        body::Body,
    },
    protocol::{
        policy::Tier,
        record::{Entry, Seal, SealError, Sealed, Subject},
        time::Timestamp,
    },
    store::{
        BoxFuture, CommitError, Committed, Doc, IdempotencyKey, Key, Kind, MemoryStore, Put,
        SqliteStore, Store, StoreError, Unit, Used,
    },
    wire::jwk::SigningKey,
};

use crate::common::{
    Agent, Answer, BUYER_TOKEN, GATEWAY, NOW, SELLER_TOKEN, SELLER_UNBOUND, Service, World,
    client_token, post, profile, with_token,
};

// ---- Stores -------------------------------------------------------------------------------------------------------

/// A store for one test: in memory, or a SQLite file of its own.
pub struct Backing {
    pub store: Arc<dyn Store>,
    file: Option<TempDir>,
}

impl Backing {
    pub async fn memory() -> Self {
        Self {
            store: Arc::new(MemoryStore::default()),
            file: None,
        }
    }

    pub async fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            store: Arc::new(open(&dir).await),
            file: Some(dir),
        }
    }

    pub fn in_memory(&self) -> bool {
        self.file.is_none()
    }

    /// The bytes of its file, and of what lies beside it.
    pub fn bytes(&self) -> Vec<u8> {
        let dir = self.file.as_ref().unwrap().path();
        let files = std::fs::read_dir(dir).unwrap();
        files
            .flat_map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .collect()
    }

    /// The same state as another process would see it.
    pub async fn opened_again(&self) -> Arc<dyn Store> {
        match &self.file {
            Some(dir) => Arc::new(open(dir).await),
            None => self.store.clone(),
        }
    }
}

async fn open(dir: &TempDir) -> SqliteStore {
    SqliteStore::open(dir.path().join("rctp.db")).await.unwrap()
}

/// Runs each test on the store in memory and on a SQLite file.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        on_every_store!(@ memory: $($name),*);
        on_every_store!(@ sqlite: $($name),*);
    };
    (@ $store:ident: $($name:ident),*) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(crate::market::Backing::$store().await).await;
                }
            )*
        }
    };
}
pub(crate) use on_every_store;

/// A method of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Load,
    List,
    Windows,
    Used,
    Chain,
    Commit,
}

impl Call {
    pub const ALL: [Call; 6] = [
        Call::Load,
        Call::List,
        Call::Windows,
        Call::Used,
        Call::Chain,
        Call::Commit,
    ];
}

/// A store in front of a real one: each method can be switched off.
#[derive(Clone)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    faults: Arc<Faults>,
}

#[derive(Default)]
pub struct Faults {
    down: Mutex<HashSet<Call>>,
    /// Every call gives way before and after, so that a request can be cut off there.
    yields: AtomicBool,
    /// Entries cannot be signed.
    mute: AtomicBool,
    /// So many commits lose a race that nobody ran.
    lost_races: AtomicUsize,
    /// Commits happen, but their answer is lost.
    silent: AtomicBool,
    commits: AtomicUsize,
    /// What was committed, where a test wants to know.
    units: Mutex<Option<Vec<Unit>>>,
    gate: Mutex<Option<(Call, Gate)>>,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            faults: Arc::default(),
        }
    }

    pub fn real(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    pub fn take_down(&self, call: Call) {
        self.faults.down.lock().unwrap().insert(call);
    }

    pub fn mend(&self) {
        self.faults.down.lock().unwrap().clear();
        self.faults.silent.store(false, Ordering::SeqCst);
        self.faults.mute.store(false, Ordering::SeqCst);
    }

    pub fn give_way(&self) {
        self.faults.yields.store(true, Ordering::SeqCst);
    }

    pub fn cannot_sign(&self) {
        self.faults.mute.store(true, Ordering::SeqCst);
    }

    pub fn lose_answers(&self) {
        self.faults.silent.store(true, Ordering::SeqCst);
    }

    pub fn lose_races(&self, count: usize) {
        self.faults.lost_races.store(count, Ordering::SeqCst);
    }

    pub fn remember(&self) {
        *self.faults.units.lock().unwrap() = Some(Vec::new());
    }

    /// What was committed since [`Faulty::remember`].
    pub fn units(&self) -> Vec<Unit> {
        self.faults.units.lock().unwrap().clone().unwrap()
    }

    pub fn commits(&self) -> usize {
        self.faults.commits.load(Ordering::SeqCst)
    }

    /// The next call of this method waits at the gate, before it does anything.
    pub fn wait_at(&self, call: Call) -> Gate {
        let gate = Gate::default();
        *self.faults.gate.lock().unwrap() = Some((call, gate.clone()));
        gate
    }

    async fn enter(&self, call: Call) -> Result<(), StoreError> {
        self.way().await;
        let gate = {
            let mut gate = self.faults.gate.lock().unwrap();
            gate.take_if(|(at, _)| *at == call)
        };
        if let Some((_, gate)) = gate {
            gate.pass().await;
        }
        if self.faults.down.lock().unwrap().contains(&call) {
            return Err(StoreError(format!("{call:?} is down")));
        }
        Ok(())
    }

    async fn way(&self) {
        if self.faults.yields.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }
}

macro_rules! forward {
    ($self:ident, $call:ident, $run:expr) => {
        Box::pin(async move {
            $self.enter(Call::$call).await?;
            let answer = $run.await;
            $self.way().await;
            answer
        })
    };
}

impl Store for Faulty {
    fn load(&self, keys: Vec<Key>) -> BoxFuture<'_, Result<Vec<Option<Doc>>, StoreError>> {
        forward!(self, Load, self.inner.load(keys))
    }

    fn list(
        &self,
        kind: Kind,
        parent: String,
        after: Option<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>> {
        forward!(self, List, self.inner.list(kind, parent, after, limit))
    }

    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>> {
        self.inner.due(now, limit)
    }

    fn windows(
        &self,
        names: Vec<String>,
        since: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Vec<Timestamp>>, StoreError>> {
        forward!(self, Windows, self.inner.windows(names, since))
    }

    fn used(
        &self,
        key: IdempotencyKey,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Used>, StoreError>> {
        forward!(self, Used, self.inner.used(key, now))
    }

    fn chain(
        &self,
        subject: Subject,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Sealed>, StoreError>> {
        forward!(self, Chain, self.inner.chain(subject, from, limit))
    }

    fn commit(
        &self,
        unit: Unit,
        seal: Arc<dyn Seal>,
    ) -> BoxFuture<'_, Result<Committed, CommitError>> {
        Box::pin(async move {
            self.enter(Call::Commit).await?;
            let races = &self.faults.lost_races;
            if races
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok()
            {
                return Err(CommitError::Conflict);
            }
            let seal = match self.faults.mute.load(Ordering::SeqCst) {
                true => Arc::new(Mute),
                false => seal,
            };
            let remembered = unit.clone();
            let answer = self.inner.commit(unit, seal).await;
            self.way().await;
            if answer.is_ok() {
                self.faults.commits.fetch_add(1, Ordering::SeqCst);
                if let Some(units) = &mut *self.faults.units.lock().unwrap() {
                    units.push(remembered);
                }
            }
            if self.faults.silent.load(Ordering::SeqCst) {
                return Err(StoreError("the answer was lost".into()).into());
            }
            answer
        })
    }

    fn sweep(&self, now: Timestamp) -> BoxFuture<'_, Result<usize, StoreError>> {
        self.inner.sweep(now)
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.health()
    }
}

/// A key that cannot sign.
struct Mute;

impl Seal for Mute {
    fn seal(&self, _: &Entry, _: u64, _: &str) -> Result<Sealed, SealError> {
        Err(SealError("the key is out of reach".into()))
    }
}

// ---- Waiting without sleeping ---------------------------------------------------------------------------------------

/// A place where something waits until a test lets it go on.
#[derive(Clone)]
pub struct Gate {
    reached: Arc<Semaphore>,
    opened: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            reached: Arc::new(Semaphore::new(0)),
            opened: Arc::new(Semaphore::new(0)),
        }
    }
}

impl Gate {
    /// Waits at the gate.
    pub async fn pass(&self) {
        self.reached.add_permits(1);
        self.opened.acquire().await.unwrap().forget();
    }

    /// Until somebody waits at it.
    pub async fn reached(&self) {
        self.reached.acquire().await.unwrap().forget();
    }

    /// Lets one go on, now or when it comes.
    pub fn open(&self) {
        self.opened.add_permits(1);
    }
}

/// Runs the future until it has waited `times` times, and drops it there: a client that hangs up. `Some` when it came to
/// its end before.
pub async fn cut_off<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

// ---- The market -----------------------------------------------------------------------------------------------------

pub const BUYERS: &str = "https://buyer.example/.well-known/ucp";
pub const SELLERS: &str = "https://seller.example/.well-known/ucp";
pub const OTHERS: &str = "https://other.example/.well-known/ucp";
/// A token of the client `client-buyer-2`, of the buyer's operator.
pub const BUYER_TOKEN_2: &str = "token-buyer-2";
/// A token of the client `client-other`, of another operator.
pub const OTHER_TOKEN: &str = "token-other";

/// The onboarded operators: the buyer's, the seller's and another.
pub fn operators() -> Operators {
    Operators::default()
        .with(
            Operator::new(BUYERS)
                .client("client-buyer")
                .client("client-buyer-2"),
        )
        .with(Operator::new(SELLERS).client("client-seller"))
        .with(Operator::new(OTHERS).client("client-other"))
}

/// The marketplace over a store that can fail, with more agents, and grants that outlive every test.
pub struct Market {
    pub world: World,
    pub backing: Backing,
    pub store: Faulty,
    /// The second agent of the buyer's operator.
    pub second: Agent,
    /// An agent of another operator.
    pub other: Agent,
}

impl Deref for Market {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Market {
    pub async fn on(backing: Backing) -> Self {
        Self::with(backing, Tier::Auto, |b| b).await
    }

    pub async fn with(
        backing: Backing,
        tier: Tier,
        settings: impl FnOnce(RctpBuilder) -> RctpBuilder,
    ) -> Self {
        let store = Faulty::new(backing.store.clone());
        let settings = |b: RctpBuilder| settings(b.operators(operators()));
        let world = World::on(Arc::new(store.clone()), tier, settings).await;
        let agent = |profile: &str| {
            let signer = Signer::new(profile, SigningKey::generate().unwrap()).unwrap();
            Agent {
                signer: signer.clock(world.clock.closure()),
                profile: profile.to_owned(),
            }
        };
        let (second, other) = (agent(BUYERS), agent(OTHERS));
        let jwk = |agent: &Agent| agent.signer.key().public_jwk();
        serve(&world, "buyer", &[jwk(&world.buyer), jwk(&second)]);
        serve(&world, "other", &[jwk(&other)]);
        let far = NOW + 100_000_000;
        for token in [SELLER_TOKEN, SELLER_UNBOUND, BUYER_TOKEN] {
            world.grants.change(token, |i| i.exp = Some(far));
        }
        world
            .grants
            .set(BUYER_TOKEN_2, client_token("client-buyer-2", far));
        world
            .grants
            .set(OTHER_TOKEN, client_token("client-other", far));
        Self {
            world,
            backing,
            store,
            second,
            other,
        }
    }

    /// Another gateway of the same marketplace: the same key, operators and grants, over the store as given.
    pub fn beside(
        &self,
        store: Arc<dyn Store>,
        settings: impl FnOnce(RctpBuilder) -> RctpBuilder,
    ) -> Rctp {
        let builder = Rctp::builder()
            .public_url(GATEWAY)
            .operators(operators())
            .introspect_with(self.grants.clone())
            .fetch_with(self.origins.clone())
            .shared_store(store)
            .signing_key(self.gateway_key.clone())
            .clock(self.clock.closure());
        settings(builder).build().unwrap()
    }

    /// More agents of the buyer's operator. Its profile must not have been fetched yet.
    pub fn buyers(&self, count: usize) -> Vec<Agent> {
        let jwk = |agent: &Agent| agent.signer.key().public_jwk();
        let agents: Vec<Agent> = (0..count)
            .map(|_| Agent {
                signer: Signer::new(BUYERS, SigningKey::generate().unwrap())
                    .unwrap()
                    .clock(self.clock.closure()),
                profile: BUYERS.to_owned(),
            })
            .collect();
        let mut keys = vec![jwk(&self.buyer), jwk(&self.second)];
        keys.extend(agents.iter().map(jwk));
        serve(&self.world, "buyer", &keys);
        agents
    }

    /// Sends a signed POST.
    pub async fn post(
        &self,
        agent: &Agent,
        token: Option<&str>,
        path: &str,
        body: &Value,
        key: &str,
    ) -> Answer {
        self.send(signed(agent, token, path, body, key)).await
    }

    /// The seller's agent accepts.
    pub async fn accept(&self, offer: &str) -> Answer {
        let path = format!("/offers/{offer}/accept");
        self.seller_post(&path, &json!({})).await
    }

    /// The buyer's agent offers, and nothing stands in its way.
    pub async fn open_offer(&self, amount: u64) -> String {
        let offer = self.offer(amount).await;
        assert_eq!(offer.status, 201, "{:?}", offer.body);
        offer.get("offer_id")
    }

    /// Changes a stored document, as the marketplace itself would.
    pub async fn change<T: Serialize + DeserializeOwned>(
        &self,
        kind: Kind,
        id: &str,
        change: impl FnOnce(&mut T),
    ) {
        let doc = self.stored(kind, id).await.unwrap();
        let mut value = serde_json::from_slice(&doc.body).unwrap();
        change(&mut value);
        let put = Put {
            key: Key::new(kind, id),
            expected: doc.version,
            parent: None,
            due: None,
            body: serde_json::to_vec(&value).unwrap().into(),
        };
        let unit = Unit {
            put: vec![put],
            ..Unit::default()
        };
        let seal = Arc::new(self.gateway_key.clone());
        self.backing.store.commit(unit, seal).await.unwrap();
    }

    /// A document of ours as it is stored.
    pub async fn stored(&self, kind: Kind, id: &str) -> Option<Doc> {
        let docs = self.backing.store.load(vec![Key::new(kind, id)]).await;
        docs.unwrap().into_iter().next().unwrap()
    }

    /// The offers on a listing.
    pub async fn offers_on(&self, listing: &str) -> Vec<Value> {
        let docs = self
            .backing
            .store
            .list(Kind::Offer, listing.to_owned(), None, 10_000);
        let docs = docs.await.unwrap();
        docs.iter()
            .map(|doc| serde_json::from_slice(&doc.body).unwrap())
            .collect()
    }
}

fn serve(world: &World, name: &str, keys: &[Value]) {
    let document = profile(name, keys).to_string();
    let url = format!("https://{name}.example/.well-known/ucp");
    let mut documents = world.origins.documents.lock().unwrap();
    documents.insert(url, Bytes::from(document));
}

/// A signed POST with this `Idempotency-Key`.
pub fn signed(
    agent: &Agent,
    token: Option<&str>,
    path: &str,
    body: &Value,
    key: &str,
) -> Request<Bytes> {
    let mut request = post(path, body);
    if let Some(token) = token {
        request = with_token(request, token);
    }
    request
        .headers_mut()
        .insert("idempotency-key", key.parse().unwrap());
    agent.signer.sign(&mut request).unwrap();
    request
}

/// A key that nobody else uses.
pub fn fresh_key() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("fresh-{:026}", NEXT.fetch_add(1, Ordering::SeqCst))
}

/// Sends a request to a service, and reads the answer whole.
pub async fn send_to(service: &Service, request: Request<Bytes>) -> Answer {
    let request = request.map(|b| Body::new(Full::new(b)));
    Answer::of(service.clone().oneshot(request).await.unwrap()).await
}

/// The layers of `rctp` around a service.
pub fn around<S, B>(rctp: &Rctp, service: S) -> Service
where
    S: tower::Service<Request<Body>, Response = Response<B>, Error = std::convert::Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tower::BoxError>,
{
    BoxCloneSyncService::new(rctp.layer().layer(service))
}

// ---- Schemas ----------------------------------------------------------------------------------------------------------

/// The value satisfies the published schema of this name.
pub fn fits(name: &str, value: &Value) {
    static REGISTRY: LazyLock<Registry<'static>> = LazyLock::new(|| {
        let mut registry = Registry::new();
        for file in std::fs::read_dir(schemas()).unwrap() {
            let path = file.unwrap().path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
                // The OpenAPI document lies there too.
                let Some(id) = schema["$id"].as_str().map(str::to_owned) else {
                    continue;
                };
                registry = registry.add(id, Resource::from_contents(schema)).unwrap();
            }
        }
        registry.prepare().unwrap()
    });
    thread_local! {
        static BUILT: RefCell<HashMap<String, Validator>> = RefCell::default();
    }
    BUILT.with_borrow_mut(|built| {
        let validator = built.entry(name.to_owned()).or_insert_with(|| {
            let text = std::fs::read(schemas().join(format!("{name}.json"))).unwrap();
            jsonschema::options()
                .with_registry(&REGISTRY)
                .should_validate_formats(true)
                .build(&serde_json::from_slice(&text).unwrap())
                .unwrap()
        });
        if let Err(error) = validator.validate(value) {
            panic!("{name}: {error} at {}: {value}", error.instance_path());
        }
    });
}

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas")
}

// ---- Logs -------------------------------------------------------------------------------------------------------------

/// What was logged on this thread since it began to listen.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    /// Listens to this thread, until the guard goes.
    pub fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let logs = Self::default();
        let guard = tracing::subscriber::set_default(logs.subscriber());
        (logs, guard)
    }

    pub fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + use<> {
        let logs = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(move || logs.clone())
            .finish()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
