//! The simple mode: handlers of a marketplace's own that know nothing of units (binding 2.4, 5.3; R10).
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Json, Router, extract::Path, routing::post as on_post};
use bytes::Bytes;
use common::{Answer, FLOOR, LISTING, SELLER, SELLER_TOKEN, Service, deal_terms, offer_body};
use http::{Request, Response, StatusCode};
use market::{
    Backing, Call, Gate, Logs, Market, cut_off, fresh_key, on_every_store, send_to, signed,
};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_rctp::{
    Rctp,
    layer::{body::Body, decision::Decided, idempotency::Reconcile},
    protocol::{
        caller::Caller,
        grant::Grant,
        listing::{Listing, ListingState},
        money::Money,
        policy::Tier,
        record::SubjectKind,
        refusal::{Reason, Refusal},
    },
    store::{BoxFuture, IdempotencyKey, Kind, StoredResponse},
};

on_every_store!(
    decision_and_reservation_are_durable_before_the_handler_runs_and_its_answer_after_it,
    a_repeat_gets_the_handlers_answer_byte_for_byte,
    a_client_that_hangs_up_cannot_stop_the_handler,
    a_client_that_hangs_up_anywhere_leaves_the_key_usable,
    duplicates_at_once_run_the_handler_once,
    duplicates_at_two_gateways_run_the_handler_once,
    acceptances_at_once_of_different_offers_run_the_handler_once,
    a_4xx_of_the_handler_gives_the_reservation_back,
    a_refusal_of_the_handler_enters_the_record_after_the_decision,
    what_others_changed_meanwhile_is_not_overwritten,
    a_5xx_or_a_panic_keeps_the_key_and_the_reservation_until_its_time,
    a_reconcile_hook_settles_what_never_finished,
    a_store_that_fails_before_runs_nothing_and_one_that_fails_after_repeats_nothing,
    a_decline_is_declined_before_the_handler_runs,
    a_lost_race_is_decided_again_before_the_handler_runs,
    what_the_seller_is_asked_about_does_not_reach_the_handler,
    a_read_passes_as_it_is,
);

// ---- Helpers --------------------------------------------------------------------------------------------------------

/// The whole stack of `rctp` around a handler in the simple mode.
fn simple_of<F, R>(rctp: &Rctp, handler: F) -> Service
where
    F: Fn(Request<Body>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let handler = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let handler = BoxCloneSyncService::new(rctp.simple().layer(handler));
    BoxCloneSyncService::new(rctp.layer().layer(handler))
}

fn simple<F, R>(market: &Market, handler: F) -> Service
where
    F: Fn(Request<Body>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let rctp = market.beside(Arc::new(market.store.clone()), |b| b);
    simple_of(&rctp, handler)
}

/// A handler that counts its runs and answers when the gate opens.
#[derive(Clone, Default)]
struct Shop {
    runs: Arc<AtomicUsize>,
    gate: Gate,
}

impl Shop {
    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Answers at once.
    fn at_once(
        &self,
        market: &Market,
        answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> Service {
        let shop = self.clone();
        simple(market, move |_| {
            shop.runs.fetch_add(1, Ordering::SeqCst);
            let answer = answer.clone();
            async move { answer() }
        })
    }

    /// Waits at the gate first.
    fn waiting(
        &self,
        market: &Market,
        answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> Service {
        let shop = self.clone();
        simple(market, move |_| {
            shop.runs.fetch_add(1, Ordering::SeqCst);
            let (gate, answer) = (shop.gate.clone(), answer.clone());
            async move {
                gate.pass().await;
                answer()
            }
        })
    }
}

fn text(status: u16, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

fn done() -> Response<Body> {
    text(200, "packed")
}

fn accept(market: &Market, offer: &str, key: &str) -> Request<Bytes> {
    let path = format!("/offers/{offer}/accept");
    signed(&market.seller, Some(SELLER_TOKEN), &path, &json!({}), key)
}

async fn listing(market: &Market) -> Listing {
    let doc = market.stored(Kind::Listing, LISTING).await.unwrap();
    serde_json::from_slice(&doc.body).unwrap()
}

async fn state_of(market: &Market, offer: &str) -> String {
    let answer = market.buyer_get(&format!("/offers/{offer}")).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.get("state")
}

/// The decisions on the offers of the buyer's agent, in short.
async fn record(market: &Market, offer: &str) -> Vec<String> {
    let offer = market.buyer_get(&format!("/offers/{offer}")).await;
    let negotiation = offer.get("negotiation_id");
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    let short = |entry: &Value| {
        let decision = &entry["decision"];
        let reason = decision["reason"].as_str();
        reason
            .unwrap_or_else(|| decision["decision"].as_str().unwrap())
            .to_owned()
    };
    chain.iter().map(short).collect()
}

fn same(one: &Answer, other: &Answer) {
    assert_eq!(one.status, other.status, "{:?}", other.body);
    // The server writes it, and axum where it knows better.
    let but_length = |answer: &Answer| {
        let mut headers = answer.headers.clone();
        headers.remove("content-length");
        headers
    };
    assert_eq!(but_length(one), but_length(other));
    assert_eq!(one.bytes, other.bytes);
}

fn spawned(service: &Service, request: Request<Bytes>) -> tokio::task::JoinHandle<Answer> {
    let service = service.clone();
    tokio::spawn(async move { send_to(&service, request).await })
}

// ---- Before and after -----------------------------------------------------------------------------------------------

async fn decision_and_reservation_are_durable_before_the_handler_runs_and_its_answer_after_it(
    backing: Backing,
) {
    let market = Market::on(backing).await;
    let (offer, other) = (
        market.open_offer(FLOOR + 1).await,
        market.open_offer(FLOOR + 2).await,
    );
    let shop = Shop::default();
    let service = shop.waiting(&market, done);
    let key = fresh_key();
    let sent = spawned(&service, accept(&market, &offer, &key));
    shop.gate.reached().await;

    // Another process looks on while the handler runs.
    let elsewhere = market.backing.opened_again().await;
    let used = || {
        let key = IdempotencyKey {
            scope: market.seller.profile.clone(),
            key: key.clone(),
        };
        elsewhere.used(key, market.clock.now())
    };
    assert_eq!(used().await.unwrap().unwrap().response, None);
    let reserved = listing(&market).await.state;
    let until = market.clock.now().plus(1800);
    assert_eq!(
        reserved,
        ListingState::Reserved {
            offer_id: offer.clone(),
            until
        }
    );
    assert_eq!(state_of(&market, &offer).await, "accepted");
    assert_eq!(record(&market, &offer).await, ["auto", "auto", "auto"]);
    assert_eq!(
        market.accept(&other).await.refusal(),
        (409, "listing_reserved")
    );
    assert_eq!(
        market.accept(&offer).await.refusal(),
        (409, "offer_replayed")
    );
    assert_eq!(
        market.offer(FLOOR + 3).await.status,
        201,
        "offers stay open"
    );

    shop.gate.open();
    let answer = sent.await.unwrap();
    assert_eq!((answer.status, &*answer.bytes), (200, &b"packed"[..]));
    assert_eq!(answer.decision(), "auto");
    let stored = used().await.unwrap().unwrap().response.unwrap();
    assert_eq!(
        (stored.status.as_u16(), &*stored.body),
        (200, &b"packed"[..])
    );
    assert_eq!(state_of(&market, &offer).await, "accepted");
    assert_eq!(
        market.buyer_get("/listings/lst_bicycle").await.body["state"],
        "reserved"
    );
}

async fn a_repeat_gets_the_handlers_answer_byte_for_byte(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let shop = Shop::default();
    let service = shop.at_once(&market, || {
        let mut response = text(202, "\u{1}é");
        let headers = response.headers_mut();
        headers.append("x-shelf", "3".parse().unwrap());
        headers.append("x-shelf", "4".parse().unwrap());
        response
    });
    let key = fresh_key();
    let first = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!(first.status, 202);
    assert_eq!(first.headers.get_all("x-shelf").iter().count(), 2);
    for _ in 0..2 {
        same(
            &first,
            &send_to(&service, accept(&market, &offer, &key)).await,
        );
    }
    assert_eq!(shop.runs(), 1);
    let replayed = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    assert_eq!(replayed.refusal(), (409, "offer_replayed"));
    assert_eq!(shop.runs(), 1);
}

// ---- Clients that hang up -------------------------------------------------------------------------------------------

async fn a_client_that_hangs_up_cannot_stop_the_handler(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let shop = Shop::default();
    let service = shop.waiting(&market, done);
    let key = fresh_key();
    tokio::select! {
        answer = send_to(&service, accept(&market, &offer, &key)) => panic!("{answer:?}"),
        () = shop.gate.reached() => {} // The client hangs up.
    }
    // A repeat waits for the execution that goes on.
    let repeat = spawned(&service, accept(&market, &offer, &key));
    tokio::task::yield_now().await;
    shop.gate.open();
    let repeat = repeat.await.unwrap();
    assert_eq!((repeat.status, &*repeat.bytes), (200, &b"packed"[..]));
    assert_eq!(shop.runs(), 1);

    // While the decision is being committed, likewise.
    market.clock.advance(1800);
    let offer = market.open_offer(FLOOR + 2).await;
    let (key, gate) = (fresh_key(), market.store.wait_at(Call::Commit));
    tokio::select! {
        answer = send_to(&service, accept(&market, &offer, &key)) => panic!("{answer:?}"),
        () = gate.reached() => {}
    }
    gate.open();
    shop.gate.open();
    let repeat = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!((repeat.status, &*repeat.bytes), (200, &b"packed"[..]));
    assert_eq!(shop.runs(), 2);
}

async fn a_client_that_hangs_up_anywhere_leaves_the_key_usable(backing: Backing) {
    let market = Market::on(backing).await;
    market.store.give_way();
    let shop = Shop::default();
    let service = shop.at_once(&market, done);
    for times in 0.. {
        let offer = market.open_offer(FLOOR + 1).await;
        let key = fresh_key();
        let whole = cut_off(send_to(&service, accept(&market, &offer, &key)), times).await;
        let first = send_to(&service, accept(&market, &offer, &key)).await;
        assert_eq!(first.status, 200, "cut after {times}: {:?}", first.body);
        assert_eq!(shop.runs(), times + 1);
        market.clock.advance(1800);
        if let Some(whole) = whole {
            same(&first, &whole);
            assert!(times >= 6, "{times}");
            break;
        }
    }
}

// ---- At once --------------------------------------------------------------------------------------------------------

async fn duplicates_at_once_run_the_handler_once(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let shop = Shop::default();
    let service = shop.at_once(&market, done);
    let key = fresh_key();
    let tasks: Vec<_> = (0..64)
        .map(|_| spawned(&service, accept(&market, &offer, &key)))
        .collect();
    for task in tasks {
        let answer = task.await.unwrap();
        assert_eq!((answer.status, &*answer.bytes), (200, &b"packed"[..]));
    }
    assert_eq!(shop.runs(), 1);
}

async fn duplicates_at_two_gateways_run_the_handler_once(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let shop = Shop::default();
    let handler = {
        let runs = shop.runs.clone();
        move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            async { done() }
        }
    };
    let here = simple(&market, handler.clone());
    let there = market.beside(market.backing.opened_again().await, |b| b);
    let there = simple_of(&there, handler);
    let key = fresh_key();
    let tasks: Vec<_> = [&here, &there]
        .into_iter()
        .cycle()
        .take(16)
        .map(|service| spawned(service, accept(&market, &offer, &key)))
        .collect();
    for task in tasks {
        let answer = task.await.unwrap();
        // One that finds the other's execution unfinished may be told to come again.
        assert!(matches!(answer.status, 200 | 503), "{:?}", answer.body);
    }
    for service in [&here, &there] {
        let answer = send_to(service, accept(&market, &offer, &key)).await;
        assert_eq!((answer.status, &*answer.bytes), (200, &b"packed"[..]));
    }
    assert_eq!(shop.runs(), 1);
}

async fn acceptances_at_once_of_different_offers_run_the_handler_once(backing: Backing) {
    let market = Market::on(backing).await;
    let mut offers = Vec::new();
    for n in 0..16 {
        offers.push(market.open_offer(FLOOR + n).await);
    }
    let shop = Shop::default();
    let service = shop.at_once(&market, done);
    let tasks: Vec<_> = offers
        .iter()
        .map(|offer| spawned(&service, accept(&market, offer, &fresh_key())))
        .collect();
    let mut accepted = 0;
    for task in tasks {
        let answer = task.await.unwrap();
        match answer.status {
            200 => accepted += 1,
            _ => assert_eq!(answer.refusal(), (409, "listing_reserved")),
        }
    }
    assert_eq!((accepted, shop.runs()), (1, 1));
}

// ---- Handlers that refuse -------------------------------------------------------------------------------------------

async fn a_4xx_of_the_handler_gives_the_reservation_back(backing: Backing) {
    let market = Market::on(backing).await;
    let (offer, other) = (
        market.open_offer(FLOOR + 1).await,
        market.open_offer(FLOOR + 2).await,
    );
    let shop = Shop::default();
    let before = market.stored(Kind::Listing, LISTING).await.unwrap().body;
    let service = shop.at_once(&market, || text(418, "no stock"));
    let key = fresh_key();
    let refused = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!((refused.status, &*refused.bytes), (418, &b"no stock"[..]));
    assert_eq!(refused.decision(), "");
    same(
        &refused,
        &send_to(&service, accept(&market, &offer, &key)).await,
    );
    assert_eq!(shop.runs(), 1);
    assert_eq!(
        market.stored(Kind::Listing, LISTING).await.unwrap().body,
        before
    );
    assert_eq!(state_of(&market, &offer).await, "open");
    let due = market
        .backing
        .store
        .due(market.clock.now().plus(1800), 10)
        .await;
    assert!(due.unwrap().is_empty(), "the reservation is due no more");

    // Both offers can be accepted again.
    let again = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    assert_eq!(again.status, 418);
    let other = market.accept(&other).await;
    assert_eq!(other.status, 200, "{:?}", other.body);
}

async fn a_refusal_of_the_handler_enters_the_record_after_the_decision(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let shop = Shop::default();
    let service = shop.at_once(&market, || {
        let refusal = Refusal::forbid(Reason::ReleaseConditionUnmet, "the shelf is empty");
        refusal.to_response().map(Body::from)
    });
    let key = fresh_key();
    let refused = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!(refused.refusal(), (409, "release_condition_unmet"));
    let stated = "forbid;action=\"offer.accept\";reason=release_condition_unmet";
    assert_eq!(refused.decision(), stated);
    same(
        &refused,
        &send_to(&service, accept(&market, &offer, &key)).await,
    );
    let expected = ["auto", "auto", "release_condition_unmet"];
    assert_eq!(record(&market, &offer).await, expected);
    assert_eq!(market.gateway_chain().await.len(), 0);
    assert_eq!(state_of(&market, &offer).await, "open");
}

async fn what_others_changed_meanwhile_is_not_overwritten(backing: Backing) {
    let market = Market::on(backing).await;
    let shop = Shop::default();
    let service = shop.waiting(&market, || text(409, "no stock"));
    let refused = |changed: fn(&mut Listing)| {
        let (market, shop, service) = (&market, &shop, &service);
        async move {
            let offer = market.open_offer(FLOOR + 1).await;
            let sent = spawned(service, accept(market, &offer, &fresh_key()));
            shop.gate.reached().await;
            market.change(Kind::Listing, LISTING, changed).await;
            // And who else is at it meanwhile.
            market.store.lose_races(3);
            shop.gate.open();
            let answer = sent.await.unwrap();
            assert_eq!((answer.status, &*answer.bytes), (409, &b"no stock"[..]));
            offer
        }
    };
    // A new price is kept, the reservation given back.
    let offer = refused(|listing| listing.list_price = Money::new(70_000, "EUR")).await;
    let now = listing(&market).await;
    assert_eq!(now.state, ListingState::Active);
    assert_eq!(now.list_price.amount, 70_000);
    assert_eq!(state_of(&market, &offer).await, "open");
    // A withdrawal stands.
    let offer = refused(|listing| listing.state = ListingState::Withdrawn).await;
    assert_eq!(listing(&market).await.state, ListingState::Withdrawn);
    assert_eq!(state_of(&market, &offer).await, "open");
}

// ---- Handlers that never finish -------------------------------------------------------------------------------------

async fn a_5xx_or_a_panic_keeps_the_key_and_the_reservation_until_its_time(backing: Backing) {
    let market = Market::on(backing).await;
    let answers: [fn() -> Response<Body>; 2] = [
        || text(500, "I do not know"),
        || panic!("the handler panics"),
    ];
    for (answer, status) in answers.into_iter().zip([500, 503]) {
        let offer = market.open_offer(FLOOR + 1).await;
        let shop = Shop::default();
        let service = shop.at_once(&market, answer);
        let key = fresh_key();
        let first = send_to(&service, accept(&market, &offer, &key)).await;
        assert_eq!(first.status, status);
        for _ in 0..2 {
            let repeat = send_to(&service, accept(&market, &offer, &key)).await;
            assert_eq!(repeat.refusal(), (503, "unavailable"));
            assert!(repeat.get("message").contains("not repeated"));
        }
        assert_eq!(shop.runs(), 1);
        assert_eq!(state_of(&market, &offer).await, "accepted");
        market.clock.advance(1799);
        let reserved = market.buyer_get("/listings/lst_bicycle").await;
        assert_eq!(reserved.body["state"], "reserved");
        market.clock.advance(1);
        let ended = market.buyer_get("/listings/lst_bicycle").await;
        assert_eq!(ended.body["state"], "active");
        assert_eq!(state_of(&market, &offer).await, "expired");
    }
}

struct Known;

impl Reconcile for Known {
    fn outcome<'a>(&'a self, _: &'a IdempotencyKey) -> BoxFuture<'a, Option<StoredResponse>> {
        Box::pin(async {
            Some(StoredResponse {
                status: StatusCode::OK,
                headers: vec![("rctp-decision".into(), b"auto".to_vec())],
                body: Bytes::from_static(b"packed after all"),
            })
        })
    }
}

async fn a_reconcile_hook_settles_what_never_finished(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let rctp = market.beside(Arc::new(market.store.clone()), |b| b.reconcile(Known));
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let service = simple_of(&rctp, move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { text(502, "the warehouse hung up") }
    });
    let key = fresh_key();
    let first = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!(first.status, 502);
    for _ in 0..2 {
        let settled = send_to(&service, accept(&market, &offer, &key)).await;
        assert_eq!(
            (settled.status, &*settled.bytes),
            (200, &b"packed after all"[..])
        );
        assert_eq!(settled.decision(), "auto");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

async fn a_store_that_fails_before_runs_nothing_and_one_that_fails_after_repeats_nothing(
    backing: Backing,
) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let shop = Shop::default();
    let service = shop.waiting(&market, done);
    let key = fresh_key();
    for call in [Call::Used, Call::Load, Call::Commit] {
        market.store.take_down(call);
        let down = send_to(&service, accept(&market, &offer, &key)).await;
        assert_eq!(down.refusal(), (503, "unavailable"), "{call:?}");
        market.store.mend();
    }
    assert_eq!(shop.runs(), 0);
    assert_eq!(state_of(&market, &offer).await, "open");

    let sent = spawned(&service, accept(&market, &offer, &key));
    shop.gate.reached().await;
    market.store.take_down(Call::Commit);
    shop.gate.open();
    let lost = sent.await.unwrap();
    assert_eq!(lost.refusal(), (503, "unavailable"));
    assert!(
        lost.get("message").contains("was executed"),
        "{:?}",
        lost.body
    );
    market.store.mend();
    let repeat = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!(repeat.refusal(), (503, "unavailable"));
    assert_eq!(shop.runs(), 1);

    // The answer that is too large to be kept is lost as well.
    market.clock.advance(1800);
    let offer = market.open_offer(FLOOR + 1).await;
    let large = Shop::default();
    let service = large.at_once(&market, || text(200, vec![b'x'; 4 * 1024 * 1024 + 1]));
    let key = fresh_key();
    for _ in 0..2 {
        let lost = send_to(&service, accept(&market, &offer, &key)).await;
        assert_eq!(lost.refusal(), (503, "unavailable"));
    }
    assert_eq!(large.runs(), 1);
}

// ---- Operations -----------------------------------------------------------------------------------------------------

async fn a_decline_is_declined_before_the_handler_runs(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let decline = || {
        let path = format!("/offers/{offer}/decline");
        signed(&market.buyer, None, &path, &json!({}), &fresh_key())
    };
    let shop = Shop::default();
    let refusing = shop.at_once(&market, || text(409, "too late"));
    assert_eq!(send_to(&refusing, decline()).await.status, 409);
    assert_eq!(state_of(&market, &offer).await, "open", "given back");

    let service = shop.waiting(&market, done);
    let sent = spawned(&service, decline());
    shop.gate.reached().await;
    assert_eq!(state_of(&market, &offer).await, "declined");
    let accepted = market.accept(&offer).await;
    assert_eq!(accepted.refusal(), (409, "offer_replayed"));
    shop.gate.open();
    assert_eq!(sent.await.unwrap().decision(), "auto");
    assert_eq!(state_of(&market, &offer).await, "declined");
}

async fn a_lost_race_is_decided_again_before_the_handler_runs(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let shop = Shop::default();
    let service = shop.at_once(&market, done);
    market.store.lose_races(3);
    let answer = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(shop.runs(), 1);
    assert_eq!(record(&market, &offer).await, ["auto", "auto"]);
}

async fn what_the_seller_is_asked_about_does_not_reach_the_handler(backing: Backing) {
    let market = Market::with(backing, Tier::Ask, |b| b).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let shop = Shop::default();
    let service = shop.at_once(&market, done);
    let asked = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    assert_eq!(asked.status, 202);
    let refused = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    assert_eq!(refused.refusal(), (409, "offer_replayed"));
    assert_eq!(shop.runs(), 0);
}

async fn a_read_passes_as_it_is(backing: Backing) {
    let market = Market::on(backing).await;
    let shop = Shop::default();
    let service = shop.at_once(&market, done);
    let commits = market.store.commits();
    for _ in 0..2 {
        let mut request = common::get("/listings/lst_bicycle");
        market.buyer.signer.sign(&mut request).unwrap();
        let answer = send_to(&service, request).await;
        assert_eq!((answer.status, &*answer.bytes), (200, &b"packed"[..]));
        assert_eq!(answer.decision(), "");
    }
    assert_eq!(shop.runs(), 2);
    assert_eq!(market.store.commits(), commits);
}

#[tokio::test]
async fn redeeming_a_checkout_has_no_simple_mode() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let path = format!("/offers/{offer}/accept");
    let accepted = market.seller_post(&path, &json!({})).await;
    let checkout = json!({"checkout": accepted.get("checkout")});
    let shop = Shop::default();
    let service = shop.at_once(&market, done);
    let key = fresh_key();
    let redeem = || signed(&market.buyer, None, "/deals", &checkout, &key);
    let (logs, listening) = Logs::listen();
    let refused = send_to(&service, redeem()).await;
    drop(listening);
    assert_eq!(refused.refusal(), (503, "unavailable"));
    assert!(logs.text().contains("create_deal has no simple mode"));
    assert_eq!(shop.runs(), 0);
    // Nothing was used up.
    let deal = market.send(redeem()).await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
}

#[tokio::test]
async fn a_handler_in_the_simple_mode_commits_nothing_of_its_own() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let service = simple(&market, |request| {
        let decided = request.extensions().get::<Decided>().unwrap().clone();
        async move {
            let response = Response::new(Bytes::from_static(b"mine"));
            assert!(decided.commit(|_| {}, response).await.is_err());
            done()
        }
    });
    let answer = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    assert_eq!((answer.status, &*answer.bytes), (200, &b"packed"[..]));
    assert_eq!(record(&market, &offer).await, ["auto", "auto"]);
}

// ---- In axum --------------------------------------------------------------------------------------------------------

async fn axum_accept(
    Path(id): Path<String>,
    decided: Decided,
    caller: Caller,
    grant: Grant,
    Json(body): Json<Value>,
) -> Result<Json<Value>, Refusal> {
    let facts = decided.facts();
    let offer = facts.offer.as_ref().ok_or_else(Refusal::not_found)?;
    if offer.deal_terms.price.amount == FLOOR + 9 {
        let refusal = Refusal::forbid(Reason::NotInScope, "sold over the counter");
        return Err(refusal.offer(&*offer.offer_id));
    }
    Ok(Json(json!({
        "offer": id,
        "price": offer.deal_terms.price,
        "operator": caller.operator,
        "seller": grant.sub,
        "body": body,
    })))
}

#[tokio::test]
async fn in_axum_a_handler_gets_its_decision_by_extractor() {
    let market = Market::on(Backing::memory().await).await;
    let rctp = market.beside(Arc::new(market.store.clone()), |b| b);
    let app = Router::new()
        .route(
            "/offers/{id}/accept",
            on_post(axum_accept).layer(rctp.simple()),
        )
        .fallback_service(rctp.market());
    let app = rctp.protect(app);
    let send = |request: Request<Bytes>| {
        let app = app.clone();
        async move {
            let request = request.map(axum::body::Body::from);
            let response = app.oneshot(request).await.unwrap();
            Answer::of(response.map(Body::new)).await
        }
    };
    let offer = |amount| {
        let request = signed(
            &market.buyer,
            None,
            "/offers",
            &offer_body(amount),
            &fresh_key(),
        );
        send(request)
    };
    let refused = offer(FLOOR + 9).await.get("offer_id");
    let answer = send(accept(&market, &refused, &fresh_key())).await;
    assert_eq!(answer.refusal(), (403, "not_in_scope"));
    assert_eq!(answer.body["offer_id"], json!(refused));
    assert_eq!(
        answer.decision(),
        "forbid;action=\"offer.accept\";reason=not_in_scope"
    );
    assert_eq!(state_of(&market, &refused).await, "open");

    let offer = offer(FLOOR + 1).await.get("offer_id");
    let key = fresh_key();
    let accepted = send(accept(&market, &offer, &key)).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    assert_eq!(accepted.decision(), "auto");
    let expected = json!({
        "offer": offer,
        "price": deal_terms(FLOOR + 1)["price"],
        "operator": market.seller.profile,
        "seller": SELLER,
        "body": {},
    });
    assert_eq!(accepted.body, expected);
    same(&accepted, &send(accept(&market, &offer, &key)).await);
}
