//! Delivers events to operators (binding 9).
//!
//! # What is promised
//!
//! - *At least once*, within the time that receivers accept ([`webhook::WINDOW`](crate::protocol::webhook::WINDOW)); what
//!   could not be delivered by then is kept as a dead letter, until an operator of the marketplace has it sent again
//!   ([`Rctp::resend`](crate::Rctp::resend)). Repeats have the same `Webhook-Id`.
//! - *In order* for each thing that events are about: one that has not arrived holds back the later ones to the same
//!   receiver; until that has refused it three times by a 4xx, for one that it does not want must not cost it the others.
//! - *One try at a time* to a receiver that has failed, and up to 8 to one that answers, by each gateway. An event that is
//!   being tried is leased by its version in the store, so gateways over one store do not try it at once. After failures in a row a receiver is left alone for up to
//!   half a minute.
//! - *To where the profile says*: `config.webhook_url` of `dev.rctp.deal`, read when it is sent. Without one the event is
//!   dropped. https only, no redirects, no special-use addresses (as for profiles).
//!
//! A 2xx is delivered; everything else is tried again, 410 included, since operators say in their profile where they want
//! to be told.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use tokio::{sync::Semaphore, task::JoinSet, time};
use url::Url;

use crate::{
    layer::{
        authenticate::{
            Authenticate, LABEL, UCP_AGENT,
            fetch::{Post, allowed_url},
        },
        context::{Clock, Ids},
        outbox::{self, DEAD_LETTERS, OUTBOX, Outbox},
    },
    protocol::{record::Seal, time::Timestamp, webhook::Outgoing},
    store::{CommitError, Doc, Key, Kind, Put, Store, StoreError, Unit, Version},
    wire::{
        digest::{CONTENT_DIGEST, content_digest, sha256},
        jwk::SigningKey,
        signature::{self, Authority, Component, Message, Params},
    },
};

/// `Webhook-Id`: the event's id.
pub const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
/// `Webhook-Timestamp`: the event's `created_at` in Unix seconds.
pub const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// How many documents are read at a time.
const PAGE: usize = 200;
/// How many events a receiver that answers is sent at once.
const PER_RECEIVER: usize = 8;
/// How many events a receiver's queue takes at a time; the outbox may be longer than the memory.
const QUEUE: usize = 1000;
/// How often the outbox is looked at when nothing wakes the deliverer: another gateway may have put something in, and ended.
const POLL: Duration = Duration::from_secs(5);
/// What reading the outbox may take before as long a pause follows.
const LONG_LOOK: Duration = Duration::from_millis(50);
/// How much longer than a try its lease is, in seconds.
const SPARE: i64 = 5;
/// The longest that a receiver is left alone after failures in a row, in seconds.
const LONGEST_REST: i64 = 30;

/// What the signature of a webhook covers (binding 9). Where the URL has a query, that too: UCP's signatures ask for it.
pub(crate) fn components(has_query: bool) -> Vec<Component> {
    let mut components = vec![
        Component::Method,
        Component::Authority,
        Component::Path,
        CONTENT_DIGEST.into(),
        header::CONTENT_TYPE.into(),
    ];
    if has_query {
        components.push(Component::Query);
    }
    components
}

/// What became of a try, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Delivery {
    /// The receiver answered 2xx.
    Delivered,
    /// It did not; it is tried again, or becomes a dead letter, which is told besides.
    Failed,
    /// The event is a dead letter from now on.
    Dead,
    /// The receiver wants no webhooks.
    Dropped,
}

/// How events are delivered.
#[derive(Clone)]
pub struct Webhooks {
    concurrency: usize,
    timeout: Duration,
    observe: Arc<dyn Fn(Delivery) + Send + Sync>,
    post: Option<Arc<dyn Post>>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            concurrency: 16,
            timeout: Duration::from_secs(5),
            observe: Arc::new(|_| ()),
            post: None,
        }
    }
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks")
            .field("concurrency", &self.concurrency)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Webhooks {
    /// To how many receivers at once; 16 by default. Each gets up to 8 events at once.
    #[must_use]
    pub fn concurrency(mut self, receivers: usize) -> Self {
        self.concurrency = receivers.max(1);
        self
    }

    /// How long one try may take, from the name's resolution to the answer's headers; 5 s by default.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Told of every delivery, for metrics.
    #[must_use]
    pub fn observe(mut self, observe: impl Fn(Delivery) + Send + Sync + 'static) -> Self {
        self.observe = Arc::new(observe);
        self
    }

    /// Sends in another way than over HTTPS with the guards of profile fetching, such as by an egress proxy.
    #[must_use]
    pub fn post_with(mut self, post: impl Post) -> Self {
        self.post = Some(Arc::new(post));
        self
    }

    pub(crate) fn post(&self) -> Option<Arc<dyn Post>> {
        self.post.clone()
    }
}

/// Delivers what is in the outbox. A program spawns [`Deliverer::run`]; several gateways over one store may.
pub struct Deliverer(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) seal: Arc<dyn Seal>,
    pub(crate) outbox: Outbox,
    pub(crate) authenticate: Authenticate,
    pub(crate) key: SigningKey,
    pub(crate) agent: HeaderValue,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) post: Arc<dyn Post>,
    pub(crate) dev: bool,
    pub(crate) settings: Webhooks,
    /// Receivers that failed.
    pub(crate) resting: Mutex<HashMap<String, Rest>>,
    pub(crate) stopping: AtomicBool,
}

impl fmt::Debug for Deliverer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deliverer").finish_non_exhaustive()
    }
}

/// That a receiver is left alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// How often it failed in a row.
    times: u32,
    until: Timestamp,
    /// Whether what has one chance only was tried in vain meanwhile, so that its like waits too.
    for_all: bool,
}

/// What became of one event in a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// It was not tried: too late for it, nobody wants it, or another gateway has it.
    None,
    Arrived,
    Failed,
}

/// Why an event did not arrive.
struct NotSent {
    why: String,
    /// Whether the receiver does not want this one, rather than none for now.
    refused: bool,
}

impl From<String> for NotSent {
    fn from(why: String) -> Self {
        Self {
            why,
            refused: false,
        }
    }
}

/// What can be tried now.
#[derive(Default)]
struct Ready {
    by_receiver: HashMap<String, Vec<(Outgoing, Version)>>,
    /// When more can be.
    next: Option<Timestamp>,
}

impl Deliverer {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// Tries everything that can be tried now, until nothing is left to try at this point in time. Returns how many tries
    /// that were.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn step(&self) -> Result<usize, StoreError> {
        let slots = Arc::new(Semaphore::new(self.0.settings.concurrency));
        let mut tried = 0;
        loop {
            let ready = self.0.ready(&HashSet::new()).await?;
            if ready.by_receiver.is_empty() {
                return Ok(tried);
            }
            let mut tasks = JoinSet::new();
            for queue in ready.by_receiver.into_values() {
                let (inner, slots) = (self.0.clone(), slots.clone());
                tasks.spawn(async move {
                    let _slot = slots.acquire().await;
                    inner.deliver(queue).await
                });
            }
            while let Some(done) = tasks.join_next().await {
                tried += done.map_err(|e| StoreError(format!("a delivery broke off: {e}")))??;
            }
        }
    }

    /// Delivers until `stop` is ready, then lets the tries in progress end. Dropped earlier, it loses nothing: what was being
    /// tried is tried again once its lease has ended.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut tasks = JoinSet::new();
        let mut busy: HashMap<tokio::task::Id, String> = HashMap::new();
        loop {
            let names = busy.values().cloned().collect();
            let began = time::Instant::now();
            let found = self.0.ready(&names).await;
            let looked = began.elapsed();
            let pause = match found {
                Ok(ready) => {
                    // Receivers that do not answer hold a place for as long as a try may take. So those that did come first,
                    // and the others have half of the places.
                    let failing = self.0.failing();
                    let is_failing = |receiver: &String| failing.contains(receiver);
                    let mut places = (self.0.settings.concurrency / 2).max(1);
                    places = places.saturating_sub(busy.values().filter(|r| is_failing(r)).count());
                    let mut queues: Vec<_> = ready.by_receiver.into_iter().collect();
                    queues.sort_by_cached_key(|(receiver, queue)| {
                        (
                            is_failing(receiver),
                            queue.first().map(|(event, _)| event.created_at),
                        )
                    });
                    for (receiver, queue) in queues {
                        if tasks.len() >= self.0.settings.concurrency {
                            break;
                        }
                        if is_failing(&receiver) {
                            if places == 0 {
                                break;
                            }
                            places -= 1;
                        }
                        let inner = self.0.clone();
                        let task = tasks.spawn(async move {
                            if let Err(error) = inner.deliver(queue).await {
                                tracing::error!(%error, "webhooks wait for the store");
                                // What made it fail would fail again at once.
                                time::sleep(Duration::from_secs(1)).await;
                            }
                        });
                        busy.insert(task.id(), receiver);
                    }
                    let now = self.0.clock.now();
                    let next = ready.next.map(|at| Duration::from_secs(now.until(at)));
                    // The clock has whole seconds: never in a tight loop.
                    next.map_or(POLL, |next| next.clamp(Duration::from_millis(100), POLL))
                }
                Err(error) => {
                    tracing::error!(%error, "webhooks wait for the store");
                    POLL
                }
            };
            // A long outbox is read whole; every new event must not make that the only thing that is done.
            if looked > LONG_LOOK {
                tokio::select! {
                    () = &mut stop => break,
                    () = time::sleep(looked) => {}
                }
            }
            tokio::select! {
                () = &mut stop => break,
                Some(done) = tasks.join_next_with_id() => {
                    let id = match done {
                        Ok((id, ())) => id,
                        Err(error) => {
                            tracing::error!(%error, "a delivery broke off");
                            error.id()
                        }
                    };
                    busy.remove(&id);
                }
                () = self.0.outbox.wake().notified() => {}
                () = time::sleep(pause) => {}
            }
        }
        self.0.stopping.store(true, Ordering::Relaxed);
        while tasks.join_next().await.is_some() {}
    }
}

impl Inner {
    /// The first event about each thing to each receiver, where its time has come.
    async fn ready(&self, busy: &HashSet<String>) -> Result<Ready, StoreError> {
        let now = self.clock.now();
        let resting = self.resting();
        let mut held: HashSet<(String, String)> = HashSet::new();
        let mut ready = Ready::default();
        let mut later = |at: Timestamp| {
            ready.next = Some(ready.next.map_or(at, |next: Timestamp| next.min(at)));
        };
        let mut after = None;
        loop {
            let list = self.store.list(Kind::Webhook, OUTBOX.into(), after, PAGE);
            let page = list.await?;
            let more = page.len() == PAGE;
            after = page.last().map(|doc| doc.key.id.clone());
            for doc in page {
                let Ok(event) = serde_json::from_slice::<Outgoing>(&doc.body) else {
                    tracing::error!(event_id = doc.key.id, "a stored event is not readable");
                    continue;
                };
                let about = (event.receiver.clone(), event.subject.clone());
                if held.contains(&about) {
                    continue;
                }
                if event.holds_back() {
                    held.insert(about);
                }
                let rests = resting.get(&event.receiver).filter(|rest| rest.until > now);
                match rests {
                    _ if busy.contains(&event.receiver) => {}
                    _ if event.next_at > now => later(event.next_at),
                    // What is too late is buried, which bothers nobody; one last chance is taken.
                    Some(rest)
                        if event.is_timely(now) && (rest.for_all || !event.has_one_chance(now)) =>
                    {
                        later(rest.until);
                    }
                    _ => {
                        let queue = ready.by_receiver.entry(event.receiver.clone());
                        let queue = queue.or_default();
                        if queue.len() < QUEUE {
                            queue.push((event, doc.version));
                        }
                    }
                }
            }
            if !more {
                break;
            }
        }
        // What fails again and again does not stand before what is new.
        for queue in ready.by_receiver.values_mut() {
            queue.sort_by_key(|(event, _)| event.attempts);
        }
        Ok(ready)
    }

    /// Tries a receiver's events, up to the first that fails. They are about different things, so that after the first has
    /// arrived some are tried at once. Returns how many were tried.
    async fn deliver(
        self: Arc<Self>,
        queue: Vec<(Outgoing, Version)>,
    ) -> Result<usize, StoreError> {
        let mut queue = queue.into_iter();
        let (mut tried, mut tries, mut at_once) = (0, JoinSet::new(), 1);
        loop {
            while tries.len() < at_once && !self.stopping.load(Ordering::Relaxed) {
                let Some((event, version)) = queue.next() else {
                    break;
                };
                let inner = self.clone();
                tries.spawn(async move { inner.attempt(event, version).await });
            }
            let Some(done) = tries.join_next().await else {
                return Ok(tried);
            };
            let attempt = done.map_err(|e| StoreError(format!("a delivery broke off: {e}")))??;
            tried += usize::from(attempt != Attempt::None);
            at_once = match attempt {
                Attempt::Arrived if at_once > 0 => PER_RECEIVER,
                Attempt::Failed => 0,
                _ => at_once,
            };
        }
    }

    async fn attempt(&self, event: Outgoing, version: Version) -> Result<Attempt, StoreError> {
        let now = self.clock.now();
        if !event.is_timely(now) {
            self.bury(event, version).await?;
            return Ok(Attempt::None);
        }
        let url = match self.authenticate.webhook_url(&event.receiver, now).await {
            Ok(Some(url)) => Ok(url),
            Ok(None) => {
                if self.remove(&event, version).await? {
                    (self.settings.observe)(Delivery::Dropped);
                }
                return Ok(Attempt::None);
            }
            Err(error) => Err(error.to_string()),
        };
        let one_chance = event.has_one_chance(now);
        let timeout = i64::try_from(self.settings.timeout.as_secs()).unwrap_or(i64::MAX);
        let leased = Outgoing {
            attempts: event.attempts.saturating_add(1),
            next_at: now.plus(timeout.saturating_add(SPARE)),
            ..event
        };
        if !self.write(&leased, version).await? {
            // Another gateway is faster.
            return Ok(Attempt::None);
        }
        let sent = match url {
            Ok(url) => self.send(&leased, &url).await,
            Err(why) => Err(why.into()),
        };
        let Err(NotSent { why, refused }) = sent else {
            tracing::debug!(
                event_id = leased.event_id,
                receiver = leased.receiver,
                "told"
            );
            self.wakes(&leased.receiver);
            (self.settings.observe)(Delivery::Delivered);
            self.remove(&leased, version + 1).await?;
            return Ok(Attempt::Arrived);
        };
        tracing::warn!(
            event_id = leased.event_id,
            receiver = leased.receiver,
            attempts = leased.attempts,
            why,
            "a webhook was not delivered"
        );
        (self.settings.observe)(Delivery::Failed);
        let now = self.clock.now();
        self.rests(&leased.receiver, now, one_chance);
        match leased.next_try(now, self.dice()) {
            Some(next_at) => {
                let waiting = Outgoing {
                    next_at,
                    refusals: leased.refusals.saturating_add(refused.into()),
                    ..leased
                };
                self.write(&waiting, version + 1).await?;
            }
            None => self.bury(leased, version + 1).await?,
        }
        Ok(Attempt::Failed)
    }

    async fn send(&self, event: &Outgoing, url: &str) -> Result<(), NotSent> {
        let url = allowed_url(url, self.dev)?;
        let request = self.signed(event, &url)?;
        let answer = time::timeout(self.settings.timeout, self.post.post(request)).await;
        let status = answer
            .map_err(|_| "it did not answer in time".to_owned())?
            .map_err(|error| error.to_string())?;
        if status.is_success() {
            return Ok(());
        }
        let later = [
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::TOO_EARLY,
            StatusCode::TOO_MANY_REQUESTS,
        ];
        Err(NotSent {
            why: format!("it answered {}", status.as_u16()),
            refused: status.is_client_error() && !later.contains(&status),
        })
    }

    fn signed(&self, event: &Outgoing, url: &Url) -> Result<Request<Bytes>, String> {
        let body = Bytes::from(event.body.clone());
        let uri: Uri = url
            .as_str()
            .parse()
            .map_err(|_| "its webhook_url is no URI")?;
        let authority = uri.authority().map_or("", |a| a.as_str());
        let authority = Authority::new(authority, url.scheme()).map_err(|e| e.to_string())?;
        let mut request = Request::new(body.clone());
        let headers = request.headers_mut();
        let id = HeaderValue::from_str(&event.event_id).map_err(|e| e.to_string())?;
        headers.insert(WEBHOOK_ID, id);
        headers.insert(WEBHOOK_TIMESTAMP, event.created_at.secs().into());
        headers.insert(UCP_AGENT, self.agent.clone());
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert(CONTENT_DIGEST, content_digest(&sha256(&body)));
        let message = Message::request(&Method::POST, &authority, uri.path(), uri.query(), headers);
        let signed = signature::sign(
            &message,
            &components(uri.query().is_some()),
            &Params::new(self.clock.now().secs()),
            LABEL,
            &self.key,
        );
        signed.map_err(|e| e.to_string())?.append_to(headers);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        Ok(request)
    }

    /// Writes the event over the version that was read; `false` when another gateway was faster.
    async fn write(&self, event: &Outgoing, version: Version) -> Result<bool, StoreError> {
        let unit = Unit {
            put: vec![outbox::put(event, version)],
            ..Unit::default()
        };
        self.commit(unit).await
    }

    async fn remove(&self, event: &Outgoing, version: Version) -> Result<bool, StoreError> {
        let unit = Unit {
            delete: vec![(Key::new(Kind::Webhook, &*event.event_id), version)],
            ..Unit::default()
        };
        self.commit(unit).await
    }

    /// Keeps the event as a dead letter.
    async fn bury(&self, event: Outgoing, version: Version) -> Result<(), StoreError> {
        let unit = Unit {
            put: vec![Put {
                key: Key::new(Kind::DeadLetter, &*event.event_id),
                parent: Some(DEAD_LETTERS.to_owned()),
                ..outbox::put(&event, 0)
            }],
            delete: vec![(Key::new(Kind::Webhook, &*event.event_id), version)],
            ..Unit::default()
        };
        if self.commit(unit).await? {
            tracing::error!(
                event_id = event.event_id,
                receiver = event.receiver,
                attempts = event.attempts,
                "a webhook is a dead letter; Rctp::resend sends it again"
            );
            (self.settings.observe)(Delivery::Dead);
        }
        Ok(())
    }

    async fn commit(&self, unit: Unit) -> Result<bool, StoreError> {
        done(self.store.commit(unit, self.seal.clone()).await.map(drop))
    }

    fn resting(&self) -> HashMap<String, Rest> {
        let resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.clone()
    }

    /// The receivers whose last try failed.
    fn failing(&self) -> HashSet<String> {
        let resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.keys().cloned().collect()
    }

    /// The receiver did not fail.
    fn wakes(&self, receiver: &str) {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.remove(receiver);
    }

    /// The receiver failed, with an event that may have had one chance only.
    fn rests(&self, receiver: &str, now: Timestamp, one_chance: bool) {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let times = match resting.get_mut(receiver) {
            // Of several that were sent at once, one counts.
            Some(rest) if rest.until > now => {
                rest.for_all |= one_chance;
                return;
            }
            before => before.map_or(0, |rest| rest.times),
        };
        let rest = Rest {
            times: times.saturating_add(1),
            until: now.plus(LONGEST_REST.min(1 << times.min(5))),
            for_all: one_chance,
        };
        resting.insert(receiver.to_owned(), rest);
    }

    /// Chance for the pauses; without randomness, none.
    fn dice(&self) -> u16 {
        let random = self.ids.random().unwrap_or_default();
        u16::from_be_bytes([random[0], random[1]])
    }
}

/// Whether a unit was committed, or lost a race.
fn done(result: Result<(), CommitError>) -> Result<bool, StoreError> {
    match result {
        Ok(()) => Ok(true),
        Err(CommitError::Conflict | CommitError::KeyTaken) => Ok(false),
        Err(CommitError::Store(error)) => Err(error),
    }
}

/// A page of the dead letters, oldest first, after the id `after`.
pub(crate) async fn dead_letters(
    store: &dyn Store,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<Outgoing>, StoreError> {
    let list = store.list(Kind::DeadLetter, DEAD_LETTERS.into(), after, limit);
    list.await?.iter().map(read).collect()
}

/// Takes a dead letter away: into the outbox, where `resend` says so. `false` when there is none.
pub(crate) async fn take_up(
    store: &dyn Store,
    seal: Arc<dyn Seal>,
    outbox: &Outbox,
    event_id: &str,
    resend: Option<Timestamp>,
) -> Result<bool, StoreError> {
    let key = Key::new(Kind::DeadLetter, event_id);
    let docs = store.load(vec![key]).await?;
    let Some(doc) = docs.into_iter().flatten().next() else {
        return Ok(false);
    };
    let mut unit = Unit::default();
    if let Some(now) = resend {
        let again = read(&doc)?.again(now).ok_or_else(unreadable)?;
        unit.put.push(outbox::put(&again, 0));
    }
    unit.delete.push((doc.key, doc.version));
    done(outbox.commit(store, unit, seal).await.map(drop))
}

fn read(doc: &Doc) -> Result<Outgoing, StoreError> {
    serde_json::from_slice(&doc.body).map_err(|_| unreadable())
}

fn unreadable() -> StoreError {
    StoreError("a stored event is not readable".into())
}
