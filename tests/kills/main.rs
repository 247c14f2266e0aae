//! The example gateway is killed (SIGKILL) again and again while agents make and decline offers and webhooks are on their
//! way. Afterwards every write that was acknowledged is there and was executed once, every event was delivered or is a dead
//! letter, and every chain verifies.
//!
//! `cargo test` kills it a few times. `KILLS=50 cargo test --test kills` kills it as often as it says, and reports each.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[allow(dead_code, unused_imports)]
#[path = "../../examples/gateway/main.rs"]
mod gateway;
#[allow(dead_code)]
#[path = "../gateway/shop.rs"]
mod shop;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use bytes::Bytes;
use clap::Parser;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower_rctp::{
    client::{Expected, SeenInMemory, Signer, WebhookError, verify_webhook},
    layer::context::{Clock, SystemClock},
    protocol::record::{Subject, SubjectKind, verify_chain},
    store::{Kind, SqliteStore, Store},
    wire::{
        crypto::default_provider,
        jwk::{Keys, SigningKey},
    },
};

use gateway::{Cli, DevWorld};
use shop::{Answer, FLOOR, offer_body, operator_profile};

/// How often the gateway is killed, unless `KILLS` says.
const KILLS: usize = 3;
/// Requests that are in progress at once.
const WORKERS: usize = 16;
/// What offers are made on; each has a negotiation, and so a chain, of its own.
const LISTINGS: usize = 8;
/// A gateway is killed after this many acknowledged writes at most.
const WRITES: usize = 200;
/// Every so many webhooks, the receiver fails before it has looked at it.
const FAILS_EVERY: usize = 97;
/// Longer than any event is tried for: 280 seconds.
const PATIENCE: Duration = Duration::from_secs(320);

fn main() -> ExitCode {
    if let Ok(arguments) = std::env::var("GATEWAY_ARGUMENTS") {
        return as_a_program(&arguments);
    }
    // What a test runner passes: `--list` must not run anything.
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let kills = match std::env::var("KILLS").map(|text| (text.parse(), text)) {
        Ok((Ok(kills), _)) => kills,
        Ok((Err(_), text)) => panic!("KILLS must be a number, and is {text:?}"),
        Err(_) => KILLS,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(killed(kills));
    ExitCode::SUCCESS
}

/// This executable as the gateway, with the arguments that the environment holds.
fn as_a_program(arguments: &str) -> ExitCode {
    let arguments: Vec<String> = serde_json::from_str(arguments).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match runtime.block_on(gateway::run(Cli::parse_from(arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn killed(kills: usize) {
    let directory = tempfile::tempdir().unwrap();
    let buyer = Buyer::start().await;
    let place = Place::new(directory.path(), &buyer);
    let ledger = Ledger::default();
    let began = Instant::now();
    let mut listings = Vec::new();
    for n in 1..=kills {
        let running = place.start();
        let floor = Floor::visit(&place, &buyer, &ledger, &mut listings).await;
        let uncertain = floor.ask_again().await;
        let target = 1 + usize::from(random()) % WRITES;
        let answered = floor.work(running, target).await;
        println!(
            "kill {n} of {kills}: after {answered} writes; {uncertain} requests without an answer were sent again; {} \
             webhooks so far",
            buyer.delivered()
        );
    }

    // The last one is not killed.
    let running = place.start();
    let floor = Floor::visit(&place, &buyer, &ledger, &mut listings).await;
    floor.ask_again().await;
    floor.finds_every_write_once().await;
    let wanted = ledger.declined();
    let waited = tokio::time::timeout(PATIENCE, buyer.has(&wanted)).await;
    running.terminate();

    let store = SqliteStore::open(&place.store).await.unwrap();
    let dead = dead_letters(&store).await;
    let missing: Vec<&String> = wanted
        .iter()
        .filter(|offer| !buyer.knows(offer) && !dead.contains(*offer))
        .collect();
    assert!(
        missing.is_empty(),
        "neither delivered nor dead letters ({waited:?}): {missing:?}"
    );
    let chains = verified_chains(&store, &buyer.keys(), &ledger, &place.url()).await;
    println!(
        "killed {kills} times in {} s: {} acknowledged writes are there, each once; {} events delivered, {} of them more \
         than once, {} are dead letters; {chains} chains verified",
        began.elapsed().as_secs(),
        ledger.len(),
        wanted.len() - dead.len(),
        buyer.repeated(),
        dead.len(),
    );
}

/// Chance decides when it is killed, so that each run kills it elsewhere.
fn random() -> u16 {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).unwrap();
    u16::from_be_bytes(bytes)
}

// ---- The gateway ----------------------------------------------------------------------------------------------------

/// Where the gateway lives.
struct Place {
    directory: PathBuf,
    store: PathBuf,
    address: SocketAddr,
}

impl Place {
    fn new(directory: &Path, buyer: &Buyer) -> Self {
        // It must be found again at the address that the agents' signatures cover.
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let store = directory.join("kills.db");
        let settings = format!(
            "dev = true\nlisten = \"{address}\"\nstore = \"{}\"\n[webhooks]\ntimeout_seconds = 1\n[[operators]]\nprofile = \
             \"{}\"\n",
            store.display(),
            buyer.profile
        );
        fs::write(directory.join("gateway.toml"), settings).unwrap();
        Self {
            directory: directory.to_owned(),
            store,
            address,
        }
    }

    /// What a development world calls itself: browsers allow passkeys there.
    fn url(&self) -> String {
        format!("http://localhost:{}", self.address.port())
    }

    fn start(&self) -> Running {
        let arguments = [
            "gateway",
            "--config",
            "gateway.toml",
            "--log-format",
            "json",
        ];
        let child = Command::new(std::env::current_exe().unwrap())
            .env("GATEWAY_ARGUMENTS", json!(arguments).to_string())
            .env("RCTP_LOG", "info")
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut running = Running(child.unwrap());
        let mut log = BufReader::new(running.0.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("\"listening\"") {
            let more = log.read_line(&mut said).unwrap();
            assert_ne!(more, 0, "it did not start: {said}");
        }
        // Read on, so that it can write on.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        running
    }
}

/// The program, killed at the latest when this is dropped.
struct Running(Child);

impl Running {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn terminate(mut self) {
        let pid = self.0.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// ---- What was asked, and what was answered --------------------------------------------------------------------------

/// A write: the same key and body, however often it is sent.
#[derive(Clone)]
struct Write {
    path: String,
    body: Value,
    seller: bool,
    /// Status and body, once it was answered.
    answer: Option<(u16, Value)>,
}

/// Every write, by its idempotency key.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<String, Write>>);

impl Ledger {
    fn begin(&self, path: String, body: Value, seller: bool) -> String {
        let mut random = [0; 16];
        getrandom::fill(&mut random).unwrap();
        let key = format!("{:032x}", u128::from_be_bytes(random));
        let write = Write {
            path,
            body,
            seller,
            answer: None,
        };
        self.0.lock().unwrap().insert(key.clone(), write);
        key
    }

    fn get(&self, key: &str) -> Write {
        self.0.lock().unwrap()[key].clone()
    }

    fn answered(&self, key: &str, answer: &Answer) {
        let mut writes = self.0.lock().unwrap();
        writes.get_mut(key).unwrap().answer = Some((answer.status, answer.body.clone()));
    }

    fn keys(&self, unanswered: bool) -> Vec<String> {
        let writes = self.0.lock().unwrap();
        let keys = writes
            .iter()
            .filter(|(_, write)| write.answer.is_none() == unanswered);
        keys.map(|(key, _)| key.clone()).collect()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The answers' bodies, of offers or of what was declined.
    fn bodies(&self, seller: bool) -> Vec<Value> {
        let writes = self.0.lock().unwrap();
        let found = writes.values().filter(|write| write.seller == seller);
        found
            .map(|write| write.answer.as_ref().unwrap().1.clone())
            .collect()
    }

    fn declined(&self) -> BTreeSet<String> {
        self.bodies(true).iter().map(offer_id).collect()
    }
}

// ---- The agents' work -----------------------------------------------------------------------------------------------

/// The agents, at a gateway that runs.
struct Floor<'t> {
    world: DevWorld,
    seller: Signer,
    buyer: &'t Buyer,
    ledger: &'t Ledger,
    listings: Vec<String>,
    http: reqwest::Client,
}

impl<'t> Floor<'t> {
    async fn visit(
        place: &Place,
        buyer: &'t Buyer,
        ledger: &'t Ledger,
        listings: &mut Vec<String>,
    ) -> Self {
        let world = DevWorld::load(&place.directory.join("rctp-dev")).unwrap();
        assert!(world.url.ends_with(&place.address.port().to_string()));
        if listings.is_empty() {
            let shop =
                shop::Shop::visit(DevWorld::load(&place.directory.join("rctp-dev")).unwrap());
            buyer.trust(&place.url(), &shop.get("/.well-known/ucp").await.body);
            for _ in 0..LISTINGS {
                listings.push(shop.new_listing().await);
            }
        }
        let seller = &world.agents.seller;
        Self {
            seller: Signer::new(&seller.profile, seller.key.clone()).unwrap(),
            world,
            buyer,
            ledger,
            listings: listings.clone(),
            // No connection outlives a gateway.
            http: shop::client(),
        }
    }

    /// Sends a write, under its key; `None` when no answer came.
    async fn send(&self, key: &str) -> Option<Answer> {
        let write = self.ledger.get(key);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{}", self.world.url, write.path))
            .header("idempotency-key", key)
            .body(Bytes::from(write.body.to_string()))
            .unwrap();
        match write.seller {
            true => self.as_seller(&mut request),
            false => self.buyer.signer.sign(&mut request).unwrap(),
        }
        let response = self.http.execute(request.try_into().unwrap()).await.ok()?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let text = response.text().await.ok()?;
        let body = serde_json::from_str(&text).unwrap();
        Some(Answer {
            status,
            headers,
            text,
            body,
        })
    }

    /// Signs it, with the token of the seller's grant.
    fn as_seller(&self, request: &mut Request<Bytes>) {
        let bearer = format!("Bearer {}", self.world.grants.auto.access_token);
        let headers = request.headers_mut();
        headers.insert(header::AUTHORIZATION, bearer.parse().unwrap());
        self.seller.sign(request).unwrap();
    }

    /// Sends it, and keeps what was answered.
    async fn write(&self, path: String, body: Value, seller: bool) -> Option<Answer> {
        let key = self.ledger.begin(path, body, seller);
        let answer = self.send(&key).await?;
        let good = if seller { 200 } else { 201 };
        assert_eq!(answer.status, good, "{}", answer.text);
        self.ledger.answered(&key, &answer);
        Some(answer)
    }

    /// What had no answer when the gateway was killed is asked again, and answered. Returns how many that were.
    async fn ask_again(&self) -> usize {
        let keys = self.ledger.keys(true);
        for key in &keys {
            let answer = self.send(key).await.unwrap();
            assert!(answer.status < 300, "{}", answer.text);
            self.ledger.answered(key, &answer);
        }
        keys.len()
    }

    /// Offers are made and declined until `target` writes are answered; then the gateway is killed in the middle of the
    /// next ones. Returns how many were answered.
    async fn work(&self, running: Running, target: usize) -> usize {
        let (answered, enough) = (AtomicUsize::new(0), Notify::new());
        let count = &|answer: Option<Answer>| {
            if answer.is_some() && answered.fetch_add(1, Ordering::Relaxed) + 1 == target {
                enough.notify_one();
            }
            answer
        };
        let worker = |n: usize| async move {
            loop {
                let body = offer_body(&self.listings[n % LISTINGS], FLOOR + 1);
                let Some(offer) = count(self.write("/offers".into(), body, false).await) else {
                    return;
                };
                let path = format!("/offers/{}/decline", offer.get("offer_id"));
                if count(self.write(path, json!({}), true).await).is_none() {
                    return;
                }
            }
        };
        let kill = async {
            enough.notified().await;
            running.kill();
        };
        tokio::join!(futures(WORKERS, worker), kill);
        answered.load(Ordering::Relaxed)
    }

    /// Every write is answered as before, and there are as many offers as were asked for.
    async fn finds_every_write_once(&self) {
        for key in self.ledger.keys(false) {
            let again = self.send(&key).await.unwrap();
            let (status, body) = self.ledger.get(&key).answer.unwrap();
            assert_eq!(
                (again.status, &again.body),
                (status, &body),
                "{key} was executed again"
            );
        }
        let mut found = BTreeSet::new();
        for listing in &self.listings {
            let mut after = String::new();
            loop {
                let url = &self.world.url;
                let url = format!("{url}/offers?listing_id={listing}&limit=100{after}");
                let mut request = Request::get(url).body(Bytes::new()).unwrap();
                self.as_seller(&mut request);
                let response = self.http.execute(request.try_into().unwrap()).await;
                let page = Answer::read(response.unwrap()).await;
                assert_eq!(page.status, 200, "{}", page.text);
                found.extend(page.body["offers"].as_array().unwrap().iter().map(offer_id));
                match page.body["next"].as_str() {
                    Some(next) => after = format!("&after={next}"),
                    None => break,
                }
            }
        }
        let made: BTreeSet<String> = self.ledger.bodies(false).iter().map(offer_id).collect();
        assert_eq!(
            found, made,
            "the offers that are there, and those that were answered"
        );
    }
}

fn offer_id(body: &Value) -> String {
    body["offer_id"].as_str().unwrap().to_owned()
}

/// Runs these side by side in this task, since they borrow.
async fn futures<F: Future<Output = ()>>(number: usize, make: impl Fn(usize) -> F) {
    let mut all: Vec<_> = (0..number).map(|n| Box::pin(make(n))).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|future| future.as_mut().poll(context).is_pending());
        match all.is_empty() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

// ---- The receiver ---------------------------------------------------------------------------------------------------

/// A buyer's operator: its profile, its agent's key, and its receiver of webhooks, in this process.
struct Buyer {
    profile: String,
    signer: Signer,
    receiver: Arc<Receiver>,
}

struct Receiver {
    url: String,
    /// Once the gateway's profile is known.
    expected: Mutex<Option<(Arc<Expected>, Keys)>>,
    seen: SeenInMemory,
    arrivals: AtomicUsize,
    /// How often each declined offer was told of.
    told: Mutex<HashMap<String, usize>>,
    more: Notify,
}

impl Buyer {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let key = SigningKey::generate().unwrap();
        let profile = format!("{base}/.well-known/ucp");
        let url = format!("{base}/webhooks");
        let document = operator_profile(&key, &url);
        let receiver = Arc::new(Receiver {
            url,
            expected: Mutex::default(),
            seen: SeenInMemory::new(1_000_000),
            arrivals: AtomicUsize::new(0),
            told: Mutex::default(),
            more: Notify::new(),
        });
        let app = Router::new()
            .route(
                "/.well-known/ucp",
                get(move || async move { Json(document) }),
            )
            .route("/webhooks", post(receive))
            .with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            signer: Signer::new(&profile, key).unwrap(),
            profile,
            receiver,
        }
    }

    /// Takes the gateway's keys from its profile.
    fn trust(&self, gateway: &str, profile: &Value) {
        let keys = || Keys::parse(&profile["keys"], default_provider()).unwrap();
        let url = format!("{gateway}/.well-known/ucp");
        let expected = Expected::new(&self.receiver.url, &url, keys()).unwrap();
        *self.receiver.expected.lock().unwrap() = Some((Arc::new(expected), keys()));
    }

    fn keys(&self) -> Keys {
        self.receiver
            .expected
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .1
            .clone()
    }

    fn delivered(&self) -> usize {
        self.receiver.told.lock().unwrap().len()
    }

    fn repeated(&self) -> usize {
        let told = self.receiver.told.lock().unwrap();
        told.values().filter(|times| **times > 1).count()
    }

    fn knows(&self, offer: &str) -> bool {
        self.receiver.told.lock().unwrap().contains_key(offer)
    }

    /// Waits until all of these were told of.
    async fn has(&self, offers: &BTreeSet<String>) {
        loop {
            let more = self.receiver.more.notified();
            if offers.iter().all(|offer| self.knows(offer)) {
                return;
            }
            more.await;
        }
    }
}

async fn receive(
    State(receiver): State<Arc<Receiver>>,
    request: axum::extract::Request,
) -> StatusCode {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    if receiver.arrivals.fetch_add(1, Ordering::Relaxed) % FAILS_EVERY == FAILS_EVERY - 1 {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let expected = receiver
        .expected
        .lock()
        .unwrap()
        .as_ref()
        .map(|(e, _)| e.clone());
    let Some(expected) = expected else {
        return StatusCode::SERVICE_UNAVAILABLE;
    };
    match verify_webhook(&parts, &body, &expected, SystemClock.now(), &receiver.seen) {
        Ok(_) | Err(WebhookError::Repeated) => {
            let event: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(event["data"]["state"], "declined", "{event}");
            let offer = event["data"]["offer_id"].as_str().unwrap().to_owned();
            *receiver.told.lock().unwrap().entry(offer).or_default() += 1;
            receiver.more.notify_waiters();
            StatusCode::NO_CONTENT
        }
        Err(error) => {
            eprintln!("a webhook is refused: {error}");
            StatusCode::UNAUTHORIZED
        }
    }
}

// ---- What the store holds -------------------------------------------------------------------------------------------

/// The declined offers of which nobody could be told in time.
async fn dead_letters(store: &SqliteStore) -> BTreeSet<String> {
    let (mut dead, mut after) = (BTreeSet::new(), None);
    loop {
        let list = store.list(Kind::DeadLetter, "dead_letters".into(), after, 100);
        let page = list.await.unwrap();
        for doc in &page {
            let letter: Value = serde_json::from_slice(&doc.body).unwrap();
            let body: Value = serde_json::from_str(letter["body"].as_str().unwrap()).unwrap();
            dead.insert(body["data"]["offer_id"].as_str().unwrap().to_owned());
        }
        match page.last() {
            Some(doc) => after = Some(doc.key.id.clone()),
            None => return dead,
        }
    }
}

/// Verifies the chain of every negotiation, which has the decision on each write in it, and the listing's.
async fn verified_chains(
    store: &SqliteStore,
    keys: &Keys,
    ledger: &Ledger,
    gateway: &str,
) -> usize {
    let mut decisions: BTreeMap<String, usize> = BTreeMap::new();
    for body in ledger.bodies(false).iter().chain(&ledger.bodies(true)) {
        let negotiation = body["negotiation_id"].as_str().unwrap();
        *decisions.entry(negotiation.to_owned()).or_default() += 1;
    }
    for (negotiation, decisions) in &decisions {
        let chain = chain(
            store,
            Subject::new(SubjectKind::Negotiation, &**negotiation),
        )
        .await;
        verify_chain(&chain, keys).unwrap_or_else(|broken| panic!("{negotiation}: {broken}"));
        let auto = chain
            .iter()
            .filter(|entry| entry["decision"]["decision"] == "auto")
            .count();
        assert_eq!(auto, *decisions, "{negotiation}: {chain:?}");
    }
    let own = chain(store, Subject::new(SubjectKind::Gateway, gateway)).await;
    verify_chain(&own, keys).unwrap_or_else(|broken| panic!("{gateway}: {broken}"));
    decisions.len() + 1
}

async fn chain(store: &SqliteStore, subject: Subject) -> Vec<Value> {
    let mut entries = Vec::new();
    loop {
        let from = entries.len() as u64;
        let page = store.chain(subject.clone(), from, 100).await.unwrap();
        if page.is_empty() {
            return entries;
        }
        entries.extend(
            page.iter()
                .map(|e| serde_json::from_slice::<Value>(&e.published).unwrap()),
        );
    }
}
