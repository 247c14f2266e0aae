//! The agent's side against a gateway that is served over real HTTP, through a front that can lose answers and say other
//! things in the gateway's place. Time stands still until a pause moves it.
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
#[path = "common/bodies.rs"]
mod bodies;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/loopback.rs"]
mod loopback;
#[path = "common/market.rs"]
mod market;

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    error::Error as _,
    future::{Ready, ready},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::Router;
use bodies::{Scripted, Then};
use bytes::Bytes;
use common::{CURRENCY, FLOOR, LISTING, SELLER_TOKEN, SELLER_UNBOUND, TestClock, deal_terms};
use hosted::{Hosted, confirmed};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use market::{Backing, Call as StoreCall};
use serde_json::{Value, json};
use tower::{
    BoxError, Service, ServiceBuilder, ServiceExt,
    retry::{Policy, RetryLayer},
    service_fn,
};
use tower_rctp::{
    client::{
        Agent, CheckoutError, IdempotencyKeyLayer, SignError, SignLayer, Signer, WriterSignature,
        agent::{
            Acted, Answered, Code, Error, NewEvent, NewListing, NewOffer, Offer, ProposedTerms,
            Resource, Retry, Timer,
        },
    },
    layer::body::Body,
    protocol::{
        approval::ApprovalStatus,
        decision::Decision,
        event::EventName,
        money::Money,
        offer::{DealTerms, OfferState},
        operation::{Match, Op, Side, TABLE, find},
        policy::Tier,
        refusal::{ProtocolError, Reason},
    },
    store::BoxFuture,
    wire::{
        crypto::default_provider,
        jwk::{Keys, SigningKey},
    },
};

// ---- A gateway behind a front -------------------------------------------------------------------------------------

/// What the front does with a request instead of passing it on and back.
enum Trick {
    /// The gateway carries it out, and the answer breaks off.
    LoseAnswer,
    /// The gateway never sees it.
    Say(u16, &'static [(&'static str, &'static str)], String),
}

/// A request as the front saw it.
#[derive(Clone)]
struct Seen {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

#[derive(Clone, Default)]
struct Front {
    tricks: Arc<Mutex<VecDeque<Trick>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Front {
    fn then(&self, trick: Trick) {
        self.tricks.lock().unwrap().push_back(trick);
    }

    fn say(&self, status: u16, headers: &'static [(&'static str, &'static str)], body: &Value) {
        self.then(Trick::Say(status, headers, body.to_string()));
    }

    /// What has come in since it was last asked.
    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    async fn pass(
        self,
        request: Request<axum::body::Body>,
        gateway: Router,
    ) -> Result<Response<axum::body::Body>, Infallible> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        self.seen.lock().unwrap().push(Seen {
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            headers: parts.headers.clone(),
            body: body.clone(),
        });
        let trick = self.tricks.lock().unwrap().pop_front();
        let on = async |body: Bytes| {
            let request = Request::from_parts(parts, axum::body::Body::from(body));
            gateway.oneshot(request).await
        };
        Ok(match trick {
            None => on(body).await?,
            Some(Trick::LoseAnswer) => {
                let (mut parts, body) = on(body).await?.into_parts();
                let whole = body.collect().await.unwrap().to_bytes();
                parts.headers.insert("content-length", whole.len().into());
                let half = Scripted::new([whole.slice(..whole.len() / 2)], Then::Break);
                Response::from_parts(parts, axum::body::Body::new(half))
            }
            Some(Trick::Say(status, headers, body)) => {
                let mut answer = Response::builder().status(status);
                for (name, value) in headers {
                    answer = answer.header(*name, *value);
                }
                answer.body(body.into()).unwrap()
            }
        })
    }
}

/// A timer whose pauses take no time, and move the market's clock instead.
#[derive(Clone)]
struct Paused {
    began: Instant,
    clock: TestClock,
    pauses: Arc<Mutex<Vec<Duration>>>,
}

impl Paused {
    fn pauses(&self) -> Vec<Duration> {
        std::mem::take(&mut self.pauses.lock().unwrap())
    }
}

impl Timer for Paused {
    fn now(&self) -> Instant {
        self.began + self.pauses.lock().unwrap().iter().sum::<Duration>()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        self.pauses.lock().unwrap().push(duration);
        self.clock
            .advance(duration.as_secs().max(1).try_into().unwrap());
        Box::pin(ready(()))
    }
}

struct Served {
    market: Hosted,
    url: String,
    front: Front,
    timer: Paused,
}

impl Served {
    /// Its seller lets agents act at once.
    async fn new() -> Self {
        Self::with(Tier::Auto).await
    }

    async fn with(tier: Tier) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let backing = Backing::memory().await;
        let market = Hosted::with(backing, tier, |b| b.authority(address.to_string())).await;
        let service = market.service.clone();
        let gateway = service_fn(move |request: Request<axum::body::Body>| {
            let answer = service.clone().oneshot(request.map(Body::new));
            async { Ok::<_, Infallible>(answer.await.unwrap().map(axum::body::Body::new)) }
        });
        let discovery = market.rctp.discovery("https://auth.example").router();
        let gateway = discovery.fallback_service(gateway);
        let front = Front::default();
        let shown = front.clone();
        let app = Router::new().fallback_service(service_fn(move |request| {
            shown.clone().pass(request, gateway.clone())
        }));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let timer = Paused {
            began: Instant::now(),
            clock: market.clock.clone(),
            pauses: Arc::default(),
        };
        Self {
            market,
            url: format!("http://{address}"),
            front,
            timer,
        }
    }

    fn signer(&self, of: &common::Agent) -> Signer {
        let key = of.signer.key().clone();
        let signer = Signer::new(&of.profile, key).unwrap();
        signer.clock(self.market.clock.closure())
    }

    fn settings(&self, of: &common::Agent) -> tower_rctp::client::agent::AgentBuilder {
        Agent::signing(self.signer(of))
            .http(http())
            .timer(self.timer.clone())
    }

    fn buyer(&self) -> Agent {
        self.settings(&self.market.buyer).at(&self.url).unwrap()
    }

    fn seller(&self) -> Agent {
        let settings = self.settings(&self.market.seller).token(SELLER_TOKEN);
        settings.at(&self.url).unwrap()
    }

    async fn accepted(&self) -> Offer {
        let offer = self
            .buyer()
            .create_offer(&offer(FLOOR))
            .await
            .unwrap()
            .value;
        let accepted = self.seller().accept_offer(&offer.offer_id).await.unwrap();
        accepted.value.auto().unwrap();
        self.buyer().get_offer(&offer.offer_id).await.unwrap().value
    }
}

fn http() -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy();
    let client = client.redirect(reqwest::redirect::Policy::none());
    client.build().unwrap()
}

fn terms(amount: u64) -> DealTerms {
    serde_json::from_value(deal_terms(amount)).unwrap()
}

fn offer(amount: u64) -> NewOffer {
    NewOffer::new(LISTING, terms(amount))
}

fn euros(amount: u64) -> Money {
    Money::new(amount, CURRENCY)
}

fn refused<T: std::fmt::Debug>(answer: Result<Answered<T>, Error>) -> (u16, Code) {
    match answer {
        Err(Error::Refused(refused)) => (refused.status.as_u16(), refused.code),
        other => panic!("{other:?}"),
    }
}

// ---- Operations ---------------------------------------------------------------------------------------------------

#[tokio::test]
async fn every_operation_of_the_table_has_a_method() {
    let served = Served::new().await;
    let (buyer, seller) = (served.buyer(), served.seller());

    let new = NewListing::new("A tandem", euros(90_000), "goods-1");
    let listing = seller.create_listing(&new).await.unwrap();
    assert_eq!(listing.status, 201);
    let listing = listing.value.auto().unwrap();
    let proposed = ProposedTerms::default().floor(euros(FLOOR));
    let asked = seller.set_listing_terms(&listing.listing_id, Some(&proposed));
    let asked = asked.await.unwrap();
    assert!(matches!(asked.decision, Some(Decision::Ask { .. })));
    let asked = asked.value.ask().unwrap();
    let approval = seller.get_approval(&asked.approval_id).await.unwrap().value;
    assert_eq!(approval.status, ApprovalStatus::Pending);
    assert_eq!((approval.result, approval.error), (None, None));
    let repriced = seller
        .reprice_listing(LISTING, &euros(59_000))
        .await
        .unwrap();
    assert_eq!(repriced.value.auto().unwrap().list_price, euros(59_000));

    let question = buyer
        .ask_question(LISTING, "Which frame?")
        .await
        .unwrap()
        .value;
    let answer = seller.answer_buyer(LISTING, &question.question_id, "Steel.");
    let answered = answer.await.unwrap().value.auto().unwrap();
    assert_eq!(answered.answer.as_deref(), Some("Steel."));
    let page = buyer.list_questions(LISTING, None).await.unwrap().value;
    assert_eq!((page.questions, page.next), (vec![answered], None));
    let after = Some(&*question.question_id);
    let page = buyer.list_questions(LISTING, after).await.unwrap().value;
    assert_eq!(page.questions, []);

    let first = buyer.create_offer(&offer(FLOOR)).await.unwrap().value;
    let counter = seller.counter_offer(&first.offer_id, &terms(55_000), None);
    let counter = counter.await.unwrap().value.auto().unwrap();
    let answer = offer(50_000).superseding(&counter.offer_id);
    let answer = buyer.create_offer(&answer).await.unwrap().value;
    assert_eq!(answer.negotiation_id, first.negotiation_id);
    let page = seller.list_offers(LISTING, None).await.unwrap().value;
    // Within a second, ids are in no order.
    let ids: BTreeSet<_> = page.offers.iter().map(|offer| &offer.offer_id).collect();
    let made = [&first.offer_id, &counter.offer_id, &answer.offer_id];
    assert_eq!((ids, page.next), (made.into(), None));
    let declined = buyer.decline_offer(&answer.offer_id).await.unwrap().value;
    assert_eq!(declined.state, OfferState::Declined);

    let accepted = served.accepted().await;
    let checkout = buyer.checkout(&accepted).await.unwrap();
    assert_eq!(checkout.deal_terms, accepted.deal_terms);
    let deal = buyer
        .create_deal(accepted.checkout.as_ref().unwrap())
        .await
        .unwrap();
    let deal_id = deal.value.deal_id;
    let committed = seller.commit_to_ship(&deal_id).await.unwrap().value;
    assert!(committed.auto().unwrap().committed_to_ship_at.is_some());
    let extension: EventName = "example.buyer:asked_for_a_slot".parse().unwrap();
    let event = NewEvent::first_hand(extension.clone()).city("Bern");
    let event = buyer.post_deal_event(&deal_id, event).await.unwrap().value;
    assert_eq!((event.event, event.counts), (extension, false));
    let page = buyer.get_deal_events(&deal_id, 1).await.unwrap().value;
    assert_eq!((page.entries.len(), page.next), (2, None));
    let deal = seller.get_deal(&deal_id).await.unwrap().value;
    assert!(deal.committed_to_ship_at.is_some());
    buyer.get_listing(LISTING).await.unwrap();

    // These no agent may, ever.
    let forbidden = (403, Code::Reason(Reason::ActionForbidden));
    assert_eq!(refused(seller.sign_contract(&deal_id).await), forbidden);
    assert_eq!(refused(seller.update_account().await), forbidden);

    let seen = served.front.seen();
    let called = seen.iter().filter_map(|seen| {
        let Match::Row(op, _) = find(&seen.method, &seen.path) else {
            return None;
        };
        assert_eq!(seen.header("rctp-version"), "\"2026-11-draft5\"");
        let sellers = seen.header("ucp-agent").contains("seller");
        assert_eq!(seen.headers.contains_key("authorization"), sellers);
        Some(op)
    });
    let called: BTreeSet<Op> = called.collect();
    let table = TABLE.iter().filter(|row| row.side != Side::Browser);
    assert_eq!(called, table.map(|row| row.op).collect());
}

#[tokio::test]
async fn an_agent_without_a_key_shows_its_token() {
    let served = Served::new().await;
    let agent = Agent::bearing(SELLER_UNBOUND).http(http());
    let agent = agent.at(&served.url).unwrap();
    let new = NewListing::new("A tandem", euros(90_000), "goods-1");
    assert!(
        agent
            .create_listing(&new)
            .await
            .unwrap()
            .value
            .auto()
            .is_some()
    );
    let seen = served.front.seen();
    assert_eq!(seen[0].header("signature"), "");
    assert_eq!(seen[0].header("idempotency-key").len(), 22);
    let event = NewEvent::first_hand(EventName::Shipped);
    let unsigned = agent.post_deal_event("deal_1", event).await.unwrap_err();
    assert!(matches!(unsigned, Error::NoSigner), "{unsigned}");
    assert_eq!(served.front.seen().len(), 0);
}

#[tokio::test]
async fn what_is_asked_for_is_waited_for_and_not_without_end() {
    let served = Served::with(Tier::Ask).await;
    let mut person = served.market.seller_person().await;
    let offer = served
        .buyer()
        .create_offer(&offer(FLOOR))
        .await
        .unwrap()
        .value;
    let asked = served.seller().accept_offer(&offer.offer_id).await.unwrap();
    assert_eq!(asked.status, StatusCode::ACCEPTED);
    let Acted::Ask(request) = asked.value else {
        panic!("the tier says ask");
    };
    assert!(request.challenge.is_some());

    let agent = served.seller();
    served.front.seen();
    let id = &*request.approval_id;
    let minute = Duration::from_secs(60);
    let still = agent.wait_for_approval(id, minute).await.unwrap();
    assert_eq!(still.status, ApprovalStatus::Pending);
    let pauses = served.timer.pauses();
    assert_eq!(pauses.iter().sum::<Duration>(), minute);
    assert!(pauses.len() < 12, "{pauses:?}");
    assert_eq!(served.front.seen().len(), pauses.len() + 1);

    served.market.approve(&mut person, id).await;
    let done = agent.wait_for_approval(id, minute).await.unwrap();
    assert_eq!(done.status, ApprovalStatus::Approved);
    assert_eq!(done.decision, Some(Decision::Auto));
    let accepted = done.result.and_then(Resource::offer).unwrap();
    assert_eq!(accepted.state, OfferState::Accepted);
    assert!(served.timer.pauses().is_empty());
}

#[tokio::test]
async fn an_approved_listing_tells_its_commitment_alone() {
    let served = Served::with(Tier::Ask).await;
    let mut person = served.market.seller_person().await;
    let proposed = ProposedTerms::default().floor(euros(FLOOR));
    let new = NewListing::new("A tandem", euros(90_000), "goods-1").propose(proposed);
    let asked = served.seller().create_listing(&new).await.unwrap();
    assert!(!String::from_utf8_lossy(&asked.body).contains(&FLOOR.to_string()));
    let id = asked.value.ask().unwrap().approval_id;
    let confirmed = confirmed(FLOOR);
    served.market.confirm(&mut person, &id, &confirmed).await;
    let approval = served.seller().get_approval(&id).await.unwrap().value;
    let terms = approval.result.and_then(Resource::terms).unwrap();
    assert!(terms.terms_commitment.starts_with("sha-256:"));
    let listing = served.buyer().get_listing(&terms.listing_id).await.unwrap();
    let public = listing.value.public_terms.unwrap();
    assert_eq!(public.deliver_within_days, Some(5));
}

// ---- Attempts -----------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_under_the_same_key_and_nothing_happens_twice() {
    let served = Served::new().await;
    served.front.then(Trick::LoseAnswer);
    served.front.then(Trick::LoseAnswer);
    let made = served.buyer().create_offer(&offer(FLOOR)).await.unwrap();
    assert_eq!((made.attempts, made.status), (3, StatusCode::CREATED));
    let seen = served.front.seen();
    let keys: BTreeSet<_> = seen.iter().map(|s| s.header("idempotency-key")).collect();
    let bodies: BTreeSet<_> = seen.iter().map(|s| &s.body).collect();
    let signed: BTreeSet<_> = seen.iter().map(|s| s.header("signature-input")).collect();
    assert_eq!((keys.len(), bodies.len(), signed.len()), (1, 1, 3));
    assert_eq!(served.market.offers_on(LISTING).await.len(), 1);
    let pauses = served.timer.pauses();
    let (first, second) = (pauses[0].as_millis(), pauses[1].as_millis());
    assert!(
        (100..=200).contains(&first) && (200..=400).contains(&second),
        "{pauses:?}"
    );
}

#[tokio::test]
async fn what_became_of_an_unanswered_request_is_found_out_by_its_key() {
    let served = Served::new().await;
    for _ in 0..4 {
        served.front.then(Trick::LoseAnswer);
    }
    let lost = served
        .buyer()
        .create_offer(&offer(FLOOR))
        .await
        .unwrap_err();
    let key = lost.idempotency_key().unwrap().to_owned();
    assert!(
        matches!(lost, Error::NoAnswer { attempts: 4, .. }),
        "{lost}"
    );
    let found = served
        .buyer()
        .create_offer(&offer(FLOOR))
        .idempotency_key(&key);
    let found = found.await.unwrap().value;
    let offers = served.market.offers_on(LISTING).await;
    assert_eq!(offers.len(), 1);
    assert_eq!(offers[0]["offer_id"], *found.offer_id);

    let other = served
        .buyer()
        .create_offer(&offer(FLOOR + 1))
        .idempotency_key(&key);
    let conflict = Code::Protocol(ProtocolError::IdempotencyConflict);
    assert_eq!(refused(other.await), (409, conflict));
    for wrong in ["short", &"k".repeat(256), "twenty-two and a space"] {
        let call = served.buyer().decline_offer("off_1").idempotency_key(wrong);
        assert!(matches!(call.await, Err(Error::NotAKey)), "{wrong}");
    }
}

#[tokio::test]
async fn an_event_that_was_kept_can_be_asked_about_again() {
    let served = Served::new().await;
    let buyer = served.buyer();
    let offer = served.accepted().await;
    let deal = buyer.create_deal(offer.checkout.as_ref().unwrap()).await;
    let deal_id = deal.unwrap().value.deal_id;
    let extension: EventName = "example.buyer:looked".parse().unwrap();
    let jws = buyer
        .sign_event(&deal_id, NewEvent::first_hand(extension))
        .unwrap();
    for _ in 0..4 {
        served.front.then(Trick::LoseAnswer);
    }
    let lost = buyer.post_signed_event(&deal_id, &jws).await.unwrap_err();
    let key = lost.idempotency_key().unwrap();
    let again = buyer.post_signed_event(&deal_id, &jws).idempotency_key(key);
    let recorded = again.await.unwrap().value;
    // As any program would run it, on a thread of the runtime's choosing.
    let told = tokio::spawn(async move {
        let none = Keys::parse(&json!([]), default_provider()).unwrap();
        buyer.verified_record(&deal_id, &none).await.unwrap()
    });
    let told = told.await.unwrap();
    let events: Vec<_> = told
        .iter()
        .filter_map(|entry| entry.event.as_ref())
        .collect();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].0.event_id, recorded.event_id);
    assert_eq!(events[0].1, WriterSignature::KeyUnknown);
}

#[tokio::test]
async fn where_nobody_listens_the_attempts_are_bounded() {
    let served = Served::new().await;
    let url = format!("http://127.0.0.1:{}", loopback::closed_port().await);
    let settings = served
        .settings(&served.market.buyer)
        .retry(Retry::default().attempts(2));
    let agent = settings.at(&url).unwrap();
    let error = agent.get_listing(LISTING).await.unwrap_err();
    assert!(
        matches!(error, Error::NoAnswer { attempts: 2, .. }),
        "{error}"
    );
    assert_eq!(error.idempotency_key(), None);
    let once = served.settings(&served.market.buyer).retry(Retry::never());
    let error = once
        .at(&url)
        .unwrap()
        .get_listing(LISTING)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::NoAnswer { attempts: 1, .. }),
        "{error}"
    );
    served.timer.pauses();

    // Neither for longer than there is time.
    let retry = Retry::default()
        .attempts(1000)
        .total(Duration::from_secs(20));
    let agent = served
        .settings(&served.market.buyer)
        .retry(retry)
        .at(&url)
        .unwrap();
    agent.get_listing(LISTING).await.unwrap_err();
    let paused: Duration = served.timer.pauses().iter().sum();
    assert!(paused < Duration::from_secs(20), "{paused:?}");
}

#[tokio::test]
async fn retry_after_is_honoured_and_not_waited_for_without_end() {
    let served = Served::new().await;
    let busy = json!({"error": "unavailable", "message": "later"});
    served.front.say(503, &[("retry-after", "3")], &busy);
    served
        .front
        .say(429, &[("retry-after", "2")], &json!("slow down"));
    let dates = &[
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("retry-after", "Sun, 06 Nov 1994 08:49:41 GMT"),
    ];
    served.front.say(503, dates, &json!(null));
    let made = served.buyer().create_offer(&offer(FLOOR)).await.unwrap();
    assert_eq!(made.attempts, 4);
    let pauses = served.timer.pauses();
    for (pause, asked) in pauses.iter().zip([3.0, 2.0, 4.0]) {
        let pause = pause.as_secs_f64();
        assert!(pause > asked && pause < asked + 1.0, "{pauses:?}");
    }

    served.front.say(503, &[("retry-after", "3600")], &busy);
    let error = served
        .buyer()
        .create_offer(&offer(FLOOR))
        .await
        .unwrap_err();
    let refused = error.refused().unwrap();
    assert_eq!(refused.code, Code::Protocol(ProtocolError::Unavailable));
    assert_eq!(refused.retry_after, Some(Duration::from_secs(3600)));
    assert_eq!((refused.attempts, served.timer.pauses()), (1, vec![]));
    // A proxy says it without an error of the binding, and another says nonsense.
    served.front.say(
        503,
        &[("retry-after", "18446744073709551615")],
        &json!("busy"),
    );
    let error = served.buyer().get_listing(LISTING).await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { .. }), "{error}");
    assert_eq!(
        error.retry_after(),
        Some(Duration::MAX.saturating_sub(Duration::from_nanos(999_999_999)))
    );
    served.front.say(503, &[("retry-after", "soon")], &busy);
    assert_eq!(
        served.buyer().get_listing(LISTING).await.unwrap().attempts,
        2
    );
}

#[tokio::test]
async fn a_gateway_whose_store_is_down_is_tried_again_until_it_is_back() {
    let served = Served::new().await;
    served.market.store.take_down(StoreCall::Commit);
    let error = served
        .buyer()
        .create_offer(&offer(FLOOR))
        .await
        .unwrap_err();
    let refused = error.refused().unwrap();
    assert_eq!(
        (refused.status, refused.attempts),
        (StatusCode::SERVICE_UNAVAILABLE, 4)
    );
    let key = error.idempotency_key().unwrap();
    served.market.store.mend();
    let again = served
        .buyer()
        .create_offer(&offer(FLOOR))
        .idempotency_key(key);
    again.await.unwrap();
    assert_eq!(served.market.offers_on(LISTING).await.len(), 1);
}

#[tokio::test]
async fn a_decision_is_final() {
    let served = Served::new().await;
    for _ in 0..3 {
        let low = served.buyer().create_offer(&offer(FLOOR - 1)).await;
        assert_eq!(refused(low), (422, Code::Reason(Reason::BelowFloor)));
    }
    served.front.seen();
    let error = served
        .buyer()
        .create_offer(&offer(FLOOR))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(Reason::OfferBudgetExhausted));
    let refused = error.refused().unwrap();
    assert_eq!(refused.retry_after, Some(Duration::from_secs(86_400)));
    assert!(matches!(refused.decision, Some(Decision::Forbid { .. })));
    assert_eq!(
        (served.front.seen().len(), served.timer.pauses()),
        (1, vec![])
    );
}

// ---- Refusals and wrong answers -----------------------------------------------------------------------------------

#[tokio::test]
async fn refusals_are_typed() {
    let served = Served::new().await;
    let (buyer, seller) = (served.buyer(), served.seller());
    let reason = |status, reason| (status, Code::Reason(reason));
    let protocol = |status, error| (status, Code::Protocol(error));

    let mut elsewhere = terms(FLOOR);
    elsewhere.payment.selected_term_id = "barter".into();
    let elsewhere = buyer.create_offer(&NewOffer::new(LISTING, elsewhere)).await;
    assert_eq!(refused(elsewhere), reason(422, Reason::TermsInvalid));
    let made = buyer.create_offer(&offer(FLOOR)).await.unwrap().value;
    let own = buyer.accept_offer(&made.offer_id).await;
    assert_eq!(refused(own), reason(403, Reason::ActionForbidden));
    let nothing = buyer.get_offer("off_nothing").await;
    assert_eq!(refused(nothing), protocol(404, ProtocolError::NotFound));
    let mute = buyer.ask_question(LISTING, "").await;
    assert_eq!(refused(mute), protocol(400, ProtocolError::InvalidRequest));
    let large = buyer.ask_question(LISTING, &"x".repeat(300_000)).await;
    assert_eq!(refused(large), protocol(413, ProtocolError::TooLarge));
    let low = seller.reprice_listing(LISTING, &euros(FLOOR - 1)).await;
    assert_eq!(refused(low), reason(422, Reason::BelowFloor));
    let nobodys = seller.with_token("token-of-nobody").unwrap();
    let nobodys = nobodys.accept_offer(&made.offer_id).await;
    assert_eq!(refused(nobodys), reason(401, Reason::GrantInvalid));
    let second = buyer.create_offer(&offer(FLOOR + 1)).await.unwrap().value;
    seller.accept_offer(&made.offer_id).await.unwrap();
    let again = seller.accept_offer(&made.offer_id).await;
    assert_eq!(refused(again), reason(409, Reason::OfferReplayed));
    let reserved = seller.accept_offer(&second.offer_id).await.unwrap_err();
    assert_eq!(reserved.reason(), Some(Reason::ListingReserved));
    served.market.clock.advance(3 * 86_400);
    let late = seller.accept_offer(&second.offer_id).await;
    assert_eq!(late.unwrap_err().reason(), Some(Reason::OfferExpired));
    served.market.grants.revoke(SELLER_TOKEN);
    let revoked = seller.decline_offer(&second.offer_id).await;
    assert_eq!(refused(revoked), reason(403, Reason::GrantRevoked));
    let stranger = Signer::new(
        "https://stranger.example/p",
        SigningKey::generate().unwrap(),
    );
    let stranger = Agent::signing(stranger.unwrap().clock(served.market.clock.closure()));
    let stranger = stranger.http(http()).at(&served.url).unwrap();
    let stranger = stranger.get_listing(LISTING).await;
    assert_eq!(refused(stranger), reason(401, Reason::OperatorUnknown));
}

#[tokio::test]
async fn a_reason_of_another_version_is_kept() {
    let served = Served::new().await;
    let body = json!({
        "error": "moon_phase",
        "message": "wait for\nthe new moon",
        "retry_after": 86_400,
        "offer_id": "off_1",
        "phase": "full",
    });
    let header = &[(
        "rctp-decision",
        "forbid;reason=moon_phase;retry_after=86400",
    )];
    served.front.say(429, header, &body);
    let error = served
        .buyer()
        .create_offer(&offer(FLOOR))
        .await
        .unwrap_err();
    let refused = error.refused().unwrap();
    assert_eq!(refused.code, Code::Other("moon_phase".into()));
    assert_eq!((error.reason(), &refused.decision), (None, &None));
    assert_eq!(refused.offer_id.as_deref(), Some("off_1"));
    let says = "moon_phase (429): wait forthe new moon (not before 86400 s)";
    assert_eq!(error.to_string(), says);
    assert_eq!(
        serde_json::from_slice::<Value>(&refused.body).unwrap(),
        body
    );
}

#[tokio::test]
async fn what_no_gateway_would_answer_is_an_error_of_its_own() {
    let served = Served::new().await;
    let approval = json!({"approval_request": {
        "approval_id": "apr_1", "action": "offer.accept", "authorization_details": [{}],
        "display": {}, "hosted_url": "https://gateway.example/approve/apr_1",
        "expires_at": "2026-09-21T14:13:20Z",
    }});
    let ask = "ask;approval_id=\"apr_2\";expires_in=900;on_timeout=deny";
    let refusal = json!({"error": "below_floor", "message": "too low"});
    const AUTO: &[(&str, &str)] = &[("rctp-decision", "auto")];
    const ASK: &[(&str, &str)] = &[(
        "rctp-decision",
        "ask;approval_id=\"apr_2\";expires_in=900;on_timeout=deny",
    )];
    assert_eq!(ask, ASK[0].1);
    for (status, headers, body) in [
        (200, AUTO, json!("welcome")),
        (200, AUTO, json!({"offer_id": "off_1"})),
        (200, ASK, approval.clone()),
        (202, AUTO, approval.clone()),
        (202, &[], approval.clone()),
        (202, ASK, approval),
        (202, ASK, json!("asked")),
        (204, AUTO, json!(null)),
        (200, &[("rctp-decision", "perhaps")], json!({})),
        (
            200,
            &[("rctp-decision", "forbid;reason=below_floor")],
            json!({}),
        ),
        (
            302,
            &[("location", "https://elsewhere.example/")],
            json!({}),
        ),
        (422, &[], json!("too low")),
    ] {
        served.front.say(status, headers, &body);
        let error = served.seller().accept_offer("off_1").await.unwrap_err();
        let seen = served.front.seen();
        assert_eq!(seen.len(), 1, "{error}");
        let key = Some(seen[0].header("idempotency-key"));
        assert_eq!(error.idempotency_key(), key, "{error}");
        let Error::Unexpected { status: found, .. } = error else {
            panic!("{status} {body}: {error}");
        };
        assert_eq!(found.as_u16(), status);
    }
    const TWO: &[(&str, &str)] = &[
        ("rctp-decision", "auto"),
        ("rctp-decision", "forbid;reason=below_floor"),
    ];
    for (headers, why) in [(TWO, "not readable"), (&[][..], "no RCTP-Decision")] {
        served.front.say(200, headers, &json!({}));
        let error = served.seller().accept_offer("off_1").await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    // An error body without a decision is one all the same: some proxies take headers off.
    served.front.say(422, &[], &refusal);
    let error = served.seller().accept_offer("off_1").await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::BelowFloor));
}

#[tokio::test]
async fn an_unknown_member_is_ignored_but_not_in_the_terms_of_a_deal() {
    let served = Served::new().await;
    let mut listing = json!({
        "listing_id": LISTING, "state": "active", "title": "A bicycle",
        "list_price": {"amount": 1, "currency": "EUR"}, "term_set": "goods-1",
        "created_at": "2026-09-21T14:13:20Z", "colour": "red",
        "public_terms": {"deliver_within_days": 2}, "terms_commitment": "sha-256:00",
    });
    served.front.say(200, &[], &listing);
    let read = served.buyer().get_listing(LISTING).await.unwrap();
    assert_eq!(read.value.title, "A bicycle");
    let whole: Value = serde_json::from_slice(&read.body).unwrap();
    assert_eq!(whole["colour"], "red");
    listing["public_terms"]["penalty"] = json!(1000);
    served.front.say(200, &[], &listing);
    let error = served.buyer().get_listing(LISTING).await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { .. }), "{error}");
}

/// With the client that is made where none is given. It may use a proxy of the environment, so it is tried in a process
/// whose environment has none for anybody.
#[tokio::test]
async fn a_redirect_is_not_followed() {
    const MARK: &str = "RCTP_TEST_REDIRECT";
    if std::env::var_os(MARK).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_redirect_is_not_followed"]);
        child.env(MARK, "1").env("NO_PROXY", "*");
        let child = tokio::task::spawn_blocking(move || child.output().unwrap());
        let child = child.await.unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let served = Served::new().await;
    let agent = Agent::signing(served.signer(&served.market.seller)).token(SELLER_TOKEN);
    let agent = agent.at(&served.url).unwrap();
    served
        .front
        .say(307, &[("location", "/listings/lst_other")], &json!({}));
    let error = agent.get_listing(LISTING).await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { .. }), "{error}");
    assert_eq!(served.front.seen().len(), 1);
}

#[tokio::test]
async fn a_large_answer_is_not_read() {
    let served = Served::new().await;
    let settings = served.settings(&served.market.buyer).answer_limit(300);
    let agent = settings.at(&served.url).unwrap();
    let error = agent.get_listing(LISTING).await.unwrap_err();
    assert!(
        matches!(error, Error::TooLarge { limit: 300, .. }),
        "{error}"
    );
    assert_eq!(served.front.seen().len(), 1);
}

#[tokio::test]
async fn nothing_but_an_id_gets_into_a_path() {
    let served = Served::new().await;
    let agent = served.seller();
    for id in ["", "off_1/../../account", "off_1?x=1", "off 1", "off_é"] {
        let error = agent.accept_offer(id).await.unwrap_err();
        assert!(matches!(error, Error::NotAnId("offer_id")), "{id}: {error}");
    }
    let odd = "lst_1&listing_id=lst_2";
    let error = agent.list_offers(odd, None).await.unwrap_err();
    assert_eq!(error.refused().unwrap().status, StatusCode::BAD_REQUEST);
    assert_eq!(served.front.seen().len(), 1);
}

/// Everything that may be printed of an agent, its requests and its errors.
#[tokio::test]
async fn neither_a_token_nor_a_floor_is_ever_printed() {
    let served = Served::new().await;
    let agent = served.seller();
    let proposed = ProposedTerms::default().floor(euros(FLOOR));
    let new = NewListing::new("A tandem", euros(90_000), "goods-1").propose(proposed.clone());
    let mut printed = vec![format!("{agent:?} {proposed:?} {new:?}")];
    printed.push(format!("{:?}", Agent::bearing(SELLER_TOKEN)));
    let mut failures = Vec::new();
    served.market.store.take_down(StoreCall::Commit);
    failures.push(agent.create_listing(&new).await.unwrap_err());
    for _ in 0..4 {
        served.front.then(Trick::LoseAnswer);
    }
    failures.push(agent.create_listing(&new).await.unwrap_err());
    served.front.say(200, &[], &json!({}));
    failures.push(agent.create_listing(&new).await.unwrap_err());
    failures.push(agent.accept_offer("none").await.unwrap_err());
    failures.push(agent.with_token("two\nlines").unwrap_err());
    failures.push(agent.with_token(&format!("{SELLER_TOKEN}\n")).unwrap_err());
    let closed = format!("http://127.0.0.1:{}", loopback::closed_port().await);
    let closed = served
        .settings(&served.market.seller)
        .token(SELLER_TOKEN)
        .at(&closed);
    failures.push(closed.unwrap().create_listing(&new).await.unwrap_err());
    for user in [
        "https://me:secret@gateway.example",
        "http://gateway.example",
        "gateway",
    ] {
        let at = Agent::bearing(SELLER_TOKEN).at(user);
        failures.push(at.unwrap_err());
    }
    for failure in &failures {
        printed.push(format!("{failure} {failure:?}"));
        let mut cause = failure.source();
        while let Some(error) = cause {
            printed.push(format!("{error} {error:?}"));
            cause = error.source();
        }
    }
    for text in printed {
        for secret in [SELLER_TOKEN, "two", "secret", &FLOOR.to_string()] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

// ---- The gateway's own word ---------------------------------------------------------------------------------------

#[tokio::test]
async fn a_gateway_is_found_by_its_profile() {
    let served = Served::new().await;
    let profile = |services: Value| {
        let key = served.market.gateway_key.public_jwk();
        json!({"ucp": {"services": services}, "keys": [key]})
    };
    let services = json!({"dev.rctp": [
        {"transport": "mcp", "version": "2026-11-draft5", "endpoint": "https://gateway.example/mcp"},
        {"transport": "rest", "version": "2026-11-draft4", "endpoint": "https://old.example/"},
        {"transport": "rest", "version": "2026-11-draft5", "endpoint": "https://new.example/rctp/"},
    ]});
    let find = async || {
        served
            .settings(&served.market.buyer)
            .discover(&served.url)
            .await
    };
    served.front.say(200, &[], &profile(services));
    assert_eq!(find().await.unwrap().endpoint(), "https://new.example/rctp");
    let seen = served.front.seen();
    assert_eq!(seen[0].path, "/.well-known/ucp");
    assert_eq!(seen[0].header("signature"), "");
    // The real one.
    assert_eq!(find().await.unwrap().endpoint(), common::GATEWAY);

    for (status, document) in [
        (200, profile(json!({"dev.rctp": []}))),
        (
            200,
            profile(
                json!({"dev.rctp": [{"transport": "rest", "version": "2027", "endpoint": "https://a.example/"}]}),
            ),
        ),
        (200, json!({"ucp": {}, "keys": "none"})),
        (404, json!({})),
    ] {
        served.front.say(status, &[], &document);
        let error = find().await.unwrap_err();
        assert!(matches!(error, Error::Profile(_)), "{document}: {error}");
    }
    let plain = json!({"dev.rctp": [{"transport": "rest", "version": "2026-11-draft5", "endpoint": "http://a.example/"}]});
    served.front.say(200, &[], &profile(plain));
    assert!(matches!(find().await, Err(Error::Request(_))));
}

#[tokio::test]
async fn a_checkout_is_the_gateways_and_says_what_was_offered() {
    let served = Served::new().await;
    let buyer = served.buyer();
    let offer = served.accepted().await;
    buyer.checkout(&offer).await.unwrap();
    let why = async |offer: &Offer| match buyer.checkout(offer).await {
        Err(Error::Checkout(error)) => error,
        other => panic!("{other:?}"),
    };
    let mut dearer = offer.clone();
    dearer.deal_terms.price.amount -= 1;
    assert_eq!(
        why(&dearer).await,
        CheckoutError::Disagrees("price or terms")
    );
    let mut forged = offer.clone();
    let token = forged.checkout.as_mut().unwrap();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let turned: String = signature.chars().rev().collect();
    *token = format!("{signed}.{turned}");
    assert!(matches!(why(&forged).await, CheckoutError::Jws(_)));
    let mut unaccepted = offer.clone();
    unaccepted.checkout = None;
    assert!(matches!(
        why(&unaccepted).await,
        CheckoutError::Disagrees(_)
    ));
    let others = served
        .settings(&served.market.second)
        .at(&served.url)
        .unwrap();
    let theirs = others.checkout(&offer).await.unwrap_err();
    assert!(matches!(
        theirs,
        Error::Checkout(CheckoutError::Disagrees("buyer's key"))
    ));
    served.market.clock.advance(3600);
    assert_eq!(why(&offer).await, CheckoutError::Expired);
}

#[tokio::test]
async fn a_record_is_read_whole_and_verified() {
    let served = Served::new().await;
    let buyer = served.buyer();
    let offer = served.accepted().await;
    let deal = buyer
        .create_deal(offer.checkout.as_ref().unwrap())
        .await
        .unwrap();
    let deal_id = deal.value.deal_id;
    let extension: EventName = "example.buyer:looked".parse().unwrap();
    // More than a page.
    for _ in 0..101 {
        let event = NewEvent::first_hand(extension.clone());
        let _ = buyer.post_deal_event(&deal_id, event).await;
    }
    let writers = json!([served.market.buyer.signer.key().public_jwk()]);
    let writers = Keys::parse(&writers, default_provider()).unwrap();
    let told = buyer.verified_record(&deal_id, &writers).await.unwrap();
    assert_eq!(told.len(), 102);
    let events = told.iter().filter(|entry| entry.event.is_some()).count();
    assert_eq!(events, 100, "one was one too many");

    // The profile is asked for first; then a page whose tail is cut, and one without an end.
    let page = buyer.get_deal_events(&deal_id, 0).await.unwrap();
    let whole: Value = serde_json::from_slice(&page.body).unwrap();
    let profile = profile_of(&served).await;
    let mut cut = whole.clone();
    cut.as_object_mut().unwrap().remove("next");
    served.front.say(200, &[], &profile);
    served.front.say(200, &[], &cut);
    let error = buyer.verified_record(&deal_id, &writers).await.unwrap_err();
    assert!(matches!(error, Error::Record(_)), "{error}");
    let mut endless = whole;
    // Back to its beginning, past what it has, and on and on with nothing in it.
    for (next, entries) in [(0, None), (5000, None), (1, Some(json!([])))] {
        endless["next"] = json!(next);
        if let Some(entries) = entries {
            endless["entries"] = entries;
        }
        served.front.say(200, &[], &profile);
        served.front.say(200, &[], &endless);
        let error = buyer.verified_record(&deal_id, &writers).await.unwrap_err();
        assert!(matches!(error, Error::Unexpected { .. }), "{error}");
    }
}

/// A cache that mixes answers up, or a gateway that does, must not have one deal's state taken for another's.
#[tokio::test]
async fn an_answer_about_something_else_is_none() {
    let served = Served::new().await;
    let made = served.buyer().create_offer(&offer(FLOOR)).await.unwrap();
    let id = &*made.value.offer_id;
    let read = served.buyer().get_offer(id).await.unwrap();
    let mut body: Value = serde_json::from_slice(&read.body).unwrap();
    body["offer_id"] = json!("off_other");
    served.front.say(200, &[], &body);
    let error = served.buyer().get_offer(id).await.unwrap_err();
    assert!(error.to_string().contains("something else"), "{error}");
}

/// What a client follows a redirect to may be anybody's: it has been told then, and its answer is none.
#[tokio::test]
async fn an_answer_from_elsewhere_is_none() {
    let served = Served::new().await;
    let follows = reqwest::Client::builder().no_proxy().build().unwrap();
    let buyer = served.settings(&served.market.buyer).http(follows);
    let buyer = buyer.at(&served.url).unwrap();
    let path = format!("/listings/{LISTING}?elsewhere");
    let location: &'static [(&str, &str)] =
        Box::leak(Box::new([("location", &*Box::leak(path.into_boxed_str()))]));
    served.front.say(307, location, &json!({}));
    let error = buyer.get_listing(LISTING).await.unwrap_err();
    assert!(error.to_string().contains("redirect"), "{error}");
}

/// The gateway's profile as it is served.
async fn profile_of(served: &Served) -> Value {
    let url = format!("{}/.well-known/ucp", served.url);
    let text = http().get(url).send().await.unwrap().text().await.unwrap();
    serde_json::from_str(&text).unwrap()
}

// ---- The layers alone ---------------------------------------------------------------------------------------------

/// Three attempts, a second apart on the market's clock.
#[derive(Clone)]
struct Thrice(usize, TestClock);

impl<A, E> Policy<Request<Bytes>, Response<A>, E> for Thrice {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Bytes>,
        result: &mut Result<Response<A>, E>,
    ) -> Option<Ready<()>> {
        let failed = result
            .as_ref()
            .map_or(true, |answer| answer.status().is_server_error());
        self.0 -= 1;
        self.1.advance(1);
        (failed && self.0 > 0).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<Bytes>) -> Option<Request<Bytes>> {
        Some(request.clone())
    }
}

/// The layers around a client, and what the gateway makes of three attempts of one POST.
async fn signs_each_attempt<C, A>(served: &Served, client: C)
where
    C: Service<Request<Bytes>, Response = Response<A>, Error = BoxError> + Clone + Send + 'static,
    C::Future: Send + 'static,
    A: Send + 'static,
{
    let client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(Thrice(3, served.market.clock.clone())))
        .layer(SignLayer::new(served.signer(&served.market.buyer)))
        .service(client);
    let busy = json!({"error": "unavailable", "message": "later"});
    served.front.say(503, &[], &busy);
    served.front.say(503, &[], &busy);
    let body = Bytes::from(serde_json::to_vec(&offer(FLOOR)).unwrap());
    let request = Request::post(format!("{}/offers", served.url))
        .body(body)
        .unwrap();
    let answer = client.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    let seen = served.front.seen();
    let keys: BTreeSet<_> = seen.iter().map(|s| s.header("idempotency-key")).collect();
    let signatures: BTreeSet<_> = seen.iter().map(|s| s.header("signature")).collect();
    assert_eq!((seen.len(), keys.len(), signatures.len()), (3, 1, 3));
    assert_eq!(served.market.offers_on(LISTING).await.len(), 1);
}

#[tokio::test]
async fn the_layer_signs_for_reqwest() {
    let served = Served::new().await;
    let client = ServiceBuilder::new()
        .filter(|request: Request<Bytes>| Ok::<_, BoxError>(reqwest::Request::try_from(request)?))
        .map_response(Response::<reqwest::Body>::from)
        .service(http());
    signs_each_attempt(&served, client).await;
}

#[tokio::test]
async fn the_layer_signs_for_hyper() {
    use hyper_util::{client::legacy::Client, rt::TokioExecutor};

    let served = Served::new().await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = ServiceBuilder::new()
        .map_err(BoxError::from)
        .map_request(|request: Request<Bytes>| request.map(Full::new))
        .service(client);
    signs_each_attempt(&served, client).await;
}

#[tokio::test]
async fn the_layer_signs_no_post_whose_retry_would_act_twice() {
    let key = SigningKey::generate().unwrap();
    let signer = Signer::new("https://agent.example/.well-known/ucp", key).unwrap();
    let client = ServiceBuilder::new()
        .layer(SignLayer::new(signer))
        .service(service_fn(async |request: Request<Bytes>| {
            Ok::<_, Infallible>(Response::new(request))
        }));
    let request = || Request::builder().uri("https://gateway.example/offers/off_1");
    let read = request().body(Bytes::new()).unwrap();
    let sent = client.clone().oneshot(read).await.unwrap().into_body();
    assert!(sent.headers().contains_key("signature"));
    let write = request().method(Method::POST).body(Bytes::new()).unwrap();
    let error = client.clone().oneshot(write).await.unwrap_err();
    let why = error.downcast_ref::<SignError>();
    assert!(matches!(why, Some(SignError::NoIdempotencyKey)), "{error}");
    let relative = Request::get("/offers/off_1").body(Bytes::new()).unwrap();
    let error = client.oneshot(relative).await.unwrap_err();
    let why = error.downcast_ref::<SignError>();
    assert!(matches!(why, Some(SignError::NoAuthority)), "{error}");
}
