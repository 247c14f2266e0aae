//! Binding 9: webhooks, from the change to the receiver and what it checks.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/loopback.rs"]
mod loopback;
#[path = "common/market.rs"]
mod market;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::State, response::IntoResponse, routing::any};
use bytes::Bytes;
use common::{
    Agent, FLOOR, GATEWAY, NOW, SELLER, TestClock, World, deal_terms, listing, post, profile,
    public_terms,
};
use http::{HeaderMap, HeaderValue, Request, StatusCode, request::Parts};
use market::{
    Backing, Gate, Market, OTHERS, SELLERS, around, fits, fresh_key, on_every_store, operators,
    signed,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tower_rctp::{
    Rctp,
    client::{Expected, Full, Seen, SeenInMemory, Signer, WebhookError, verify_webhook},
    layer::{
        approve::{Approver, NotVerified},
        authenticate::{
            fetch::{FetchError, Post},
            operators::Operator,
        },
    },
    protocol::{
        caller::Role,
        event::EVENT_TYP,
        listing::Listing,
        money::Money,
        policy::Tier,
        terms::{Floor, PrivateTerms},
        time::Timestamp,
        webhook::{Event, EventType, WINDOW},
    },
    service::webhooks::{Deliverer, Delivery, Webhooks},
    store::{BoxFuture, Kind, Put, StoreError},
    wire::{
        crypto::default_provider,
        digest::{content_digest, sha256},
        jwk::{Keys, SigningKey},
        jws,
        signature::{Authority, Component, Message, Params, SignatureError, sign},
    },
};

const PROFILE: &str = "https://gateway.example/.well-known/ucp";
/// A listing that the seller's agent made.
const TOLD: &str = "lst_told";
const HOLDERS: &str = "https://holder.example/.well-known/ucp";

on_every_store!(
    the_other_side_is_told_of_offers,
    a_declined_offer_is_told_to_the_other_side,
    time_is_told_to_the_buyer,
    the_end_of_an_approval_is_told_to_who_asked,
    what_was_approved_and_refused_is_told,
    an_event_of_a_deal_is_told_to_everyone_it_concerns_but_its_writer,
    what_does_not_arrive_is_tried_again_and_then_a_dead_letter,
    a_dead_letter_is_sent_again_on_an_operators_word,
    an_earlier_event_holds_the_later_ones_back,
    what_a_receiver_does_not_want_costs_it_nothing_else,
    what_was_held_back_to_the_end_is_tried_once,
    one_thing_does_not_hold_another_back,
    one_failing_receiver_does_not_hold_another_back,
    a_receiver_that_fails_is_found_out_by_one_event,
    a_restart_loses_nothing,
    two_gateways_do_not_send_an_event_at_once,
    who_wants_no_webhooks_gets_none,
    a_handler_of_ones_own_is_told_of_when_it_has_answered,
    the_floor_is_in_no_event,
);

// ---- What is told ---------------------------------------------------------------------------------------------------

async fn the_other_side_is_told_of_offers(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    let first = site.offer(50_000, None).await;
    site.deliver().await;
    assert_eq!(
        site.sellers.told(),
        [("offer.updated", "open", first.clone())]
    );
    assert_eq!(site.buyers.told(), []);

    let counter = site
        .market
        .seller_post(&format!("/offers/{first}/counter"), &counter(55_000))
        .await;
    assert_eq!(counter.status, 201, "{:?}", counter.body);
    let counter = counter.get("offer_id");
    site.deliver().await;
    assert_eq!(
        site.buyers.told(),
        [
            ("offer.updated", "countered", first),
            ("offer.updated", "open", counter.clone())
        ]
    );

    let second = site.offer(54_000, Some(&counter)).await;
    site.deliver().await;
    assert_eq!(
        site.sellers.told()[1..],
        [
            ("offer.updated", "superseded", counter),
            ("offer.updated", "open", second.clone())
        ]
    );

    assert_eq!(site.market.accept(&second).await.status, 200);
    site.deliver().await;
    let told = site.buyers.events();
    assert_eq!(told.len(), 3);
    assert_eq!(told[2].data["state"], "accepted");
    assert!(told[2].data["checkout"].is_string(), "the buyer's own");
    let read = site.market.buyer_get(&format!("/offers/{second}")).await;
    assert_eq!(told[2].data, read.body);
    // A grant that was taken back must not go on telling: which offer, and no more.
    for event in site.sellers.events() {
        let members: Vec<&str> = event
            .data
            .as_object()
            .unwrap()
            .keys()
            .map(|k| &**k)
            .collect();
        for member in &members {
            assert!(
                ["offer_id", "negotiation_id", "listing_id", "state"].contains(member),
                "{members:?}"
            );
        }
        assert_eq!(members.len(), 4);
    }
}

async fn a_declined_offer_is_told_to_the_other_side(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    let offer = site.offer(50_000, None).await;
    let path = format!("/offers/{offer}/decline");
    assert_eq!(site.market.buyer_post(&path, &json!({})).await.status, 200);
    site.deliver().await;
    assert_eq!(site.sellers.told()[1], ("offer.updated", "declined", offer));
    assert_eq!(site.buyers.told(), []);

    let offer = site.offer(51_000, None).await;
    let path = format!("/offers/{offer}/decline");
    assert_eq!(site.market.seller_post(&path, &json!({})).await.status, 200);
    site.deliver().await;
    assert_eq!(site.buyers.told(), [("offer.updated", "declined", offer)]);
    assert_eq!(site.sellers.told().len(), 3);
}

async fn time_is_told_to_the_buyer(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    let offer = site.offer(50_000, None).await;
    site.deliver().await;
    site.clock().advance(172_801);
    site.rctp().sweep().await.unwrap();
    site.rctp().sweep().await.unwrap();
    site.deliver().await;
    assert_eq!(site.buyers.told(), [("offer.updated", "expired", offer)]);
    assert_eq!(site.sellers.told().len(), 1);
}

async fn the_end_of_an_approval_is_told_to_who_asked(backing: Backing) {
    let site = Site::on(backing, Tier::Ask).await;
    let (declined, offer) = site.ask(50_000).await;
    site.deliver().await;
    // That an ask waits is told to nobody.
    assert_eq!(
        site.sellers.told(),
        [("offer.updated", "open", offer.clone())]
    );
    assert_eq!(site.buyers.told(), []);
    let answer = site
        .answer(&declined, &json!({"decision": "decline"}))
        .await;
    assert_eq!(answer, 200);
    site.deliver().await;
    assert_eq!(
        site.sellers.told()[1],
        ("approval.decided", "declined", declined)
    );
    assert_eq!(site.buyers.told(), [("offer.updated", "declined", offer)]);

    let (approved, offer) = site.ask(51_000).await;
    let yes = json!({"decision": "approve", "credential": {}});
    assert_eq!(site.answer(&approved, &yes).await, 200);
    site.deliver().await;
    let told = site.sellers.events().pop().unwrap();
    assert_eq!(told.event, EventType::ApprovalDecided);
    let read = site
        .market
        .seller_get(&format!("/approvals/{approved}"))
        .await;
    assert_eq!(told.data, read.body, "with its outcome");
    assert_eq!(told.data["result"]["offer_id"], *offer);
    assert_eq!(site.buyers.told()[1], ("offer.updated", "accepted", offer));

    // Silence; the listing is free again by then.
    site.clock().advance(10_000);
    let (silent, offer) = site.ask(52_000).await;
    site.clock().advance(901);
    site.rctp().sweep().await.unwrap();
    site.deliver().await;
    let told = site.sellers.told();
    assert!(
        told.contains(&("approval.decided", "expired", silent)),
        "{told:?}"
    );
    let told = site.buyers.told();
    assert!(
        told.contains(&("offer.updated", "expired", offer)),
        "{told:?}"
    );
}

async fn what_was_approved_and_refused_is_told(backing: Backing) {
    let site = Site::on(backing, Tier::Ask).await;
    let (approval, _) = site.ask(50_000).await;
    site.market.grants.revoke(common::SELLER_TOKEN);
    let yes = json!({"decision": "approve", "credential": {}});
    assert_eq!(site.answer(&approval, &yes).await, 200);
    site.deliver().await;
    let told = site.sellers.events().pop().unwrap();
    assert_eq!(told.data["approval_id"], *approval);
    assert_eq!(told.data["error"]["error"], "grant_revoked");
    assert_eq!(site.buyers.told(), [], "it is open as before");
}

async fn a_handler_of_ones_own_is_told_of_when_it_has_answered(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    let offer = site.offer(50_000, None).await;
    let own = |status: u16| {
        let handler = any(move || async move { StatusCode::from_u16(status).unwrap() });
        let simple = site.rctp().simple();
        let router = Router::new()
            .route("/offers/{id}/accept", handler.layer(simple))
            .fallback_service(site.rctp().market());
        around(site.rctp(), router)
    };
    let accept = |key: &str| {
        let path = format!("/offers/{offer}/accept");
        let token = Some(common::SELLER_TOKEN);
        market::signed(&site.market.seller, token, &path, &json!({}), key)
    };
    let key = market::fresh_key();
    assert_eq!(market::send_to(&own(409), accept(&key)).await.status, 409);
    site.deliver().await;
    assert_eq!(site.buyers.told(), [], "it was given back");

    let key = market::fresh_key();
    assert_eq!(market::send_to(&own(200), accept(&key)).await.status, 200);
    site.deliver().await;
    assert_eq!(
        site.buyers.told(),
        [("offer.updated", "accepted", offer.clone())]
    );
}

async fn the_floor_is_in_no_event(backing: Backing) {
    let site = Site::on(backing, Tier::Ask).await;
    site.buyers.answer(500);
    site.sellers.answer(500);
    let (approval, _) = site.ask(50_000).await;
    let yes = json!({"decision": "approve", "credential": {}});
    assert_eq!(site.answer(&approval, &yes).await, 200);
    // A counter below the floor, approved and then refused.
    site.clock().advance(10_000);
    let offer = site.offer(51_000, None).await;
    let path = format!("/offers/{offer}/counter");
    let below = site.market.seller_post(&path, &counter(FLOOR - 1)).await;
    assert_eq!(below.error(), "below_floor");
    site.deliver().await;

    let store = &site.market.backing.store;
    let events = store.list(Kind::Webhook, "outbox".into(), None, 99).await;
    let events = events.unwrap();
    assert!(!events.is_empty());
    let stored = events
        .iter()
        .map(|e| String::from_utf8_lossy(&e.body).into_owned());
    let sent = site
        .sellers
        .bodies()
        .into_iter()
        .chain(site.buyers.bodies());
    for text in stored.chain(sent) {
        assert!(!text.contains(&FLOOR.to_string()), "{text}");
        assert!(!text.contains(common::SELLER_TOKEN), "{text}");
    }
}

// ---- Delivery -------------------------------------------------------------------------------------------------------

async fn an_event_of_a_deal_is_told_to_everyone_it_concerns_but_its_writer(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    let deal = site.deal().await;
    site.deliver().await;
    for receiver in [&site.sellers, &site.buyers] {
        receiver.got.lock().unwrap().clear();
    }
    // Who is told of which event.
    let holder = &site.holder;
    let buyer = &site.market.buyer;
    let mut expected = [Vec::new(), Vec::new(), Vec::new()];
    for (event, writer, told) in [
        ("funds_held", holder, [true, true, false]),
        ("example.buyer:collected", buyer, [true, false, true]),
        ("accepted", buyer, [true, false, true]),
        ("released", holder, [true, true, false]),
    ] {
        let payload = json!({
            "deal_id": deal,
            "event_id": format!("evt_{}", fresh_key()),
            "event": event,
            "occurred_at": site.clock().now(),
            "observation": "first_hand",
        });
        let jws = jws::sign(
            EVENT_TYP,
            payload.to_string().as_bytes(),
            writer.signer.key(),
        )
        .unwrap();
        let path = format!("/deals/{deal}/events");
        let key = fresh_key();
        let body = json!({"event": jws});
        let send = || site.market.send(signed(writer, None, &path, &body, &key));
        assert_eq!(send().await.status, 201, "{event}");
        // A repeat, and a refusal, are no event.
        assert_eq!(send().await.status, 201);
        assert_eq!(
            site.market
                .send(signed(buyer, None, &path, &body, &fresh_key()))
                .await
                .status,
            if writer.profile == buyer.profile {
                409
            } else {
                401
            },
            "{event}"
        );
        let data = json!({"deal_id": deal, "event_id": payload["event_id"], "event": event});
        for (to, expected) in told.into_iter().zip(&mut expected) {
            if to {
                expected.push(data.clone());
            }
        }
    }
    site.deliver().await;
    for (receiver, expected) in [&site.sellers, &site.buyers, &site.holders]
        .iter()
        .zip(expected)
    {
        let told: Vec<Value> = receiver
            .events()
            .into_iter()
            .map(|event| {
                assert_eq!(event.event, EventType::DealEvent);
                event.data
            })
            .collect();
        assert_eq!(told, expected);
    }
}

async fn what_does_not_arrive_is_tried_again_and_then_a_dead_letter(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    // 410 is no end: the profile says where to send.
    site.sellers.answer(410);
    site.offer(50_000, None).await;
    let mut tries = Vec::new();
    while site.clock().now() < Timestamp::from_secs(NOW + WINDOW + 40) {
        if site.step().await > 0 {
            tries.push(site.clock().now().secs() - NOW);
        }
        site.clock().advance(1);
    }
    assert!((6..30).contains(&tries.len()), "{tries:?}");
    assert!(tries.iter().all(|t| *t <= WINDOW), "{tries:?}");
    let got = site.sellers.got();
    assert_eq!(got.len(), tries.len());
    assert!(
        got.iter().all(|g| g.1 == got[0].1),
        "byte for byte the same"
    );

    let dead = site.rctp().dead_letters(None, 9).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].attempts as usize, tries.len());
    assert_eq!(site.count(Delivery::Failed), tries.len());
    assert_eq!(
        (site.count(Delivery::Dead), site.count(Delivery::Delivered)),
        (1, 0)
    );
    assert_eq!(site.waiting().await, 0);
}

async fn a_dead_letter_is_sent_again_on_an_operators_word(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    site.sellers.answer(500);
    let offer = site.offer(50_000, None).await;
    site.deliver().await;
    site.clock().advance(WINDOW + 1);
    site.deliver().await;
    let dead = site.rctp().dead_letters(None, 9).await.unwrap();
    assert_eq!(dead.len(), 1);
    let id = dead[0].event_id.clone();

    site.sellers.answer(200);
    site.clock().advance(86_400);
    assert!(!site.rctp().resend("evt_none").await.unwrap());
    assert!(site.rctp().resend(&id).await.unwrap());
    assert!(
        !site.rctp().resend(&id).await.unwrap(),
        "it is no dead letter any more"
    );
    site.deliver().await;
    // Verified by the receiver as of now, under the same id.
    let told = site.sellers.events();
    assert_eq!(told.last().unwrap().event_id, id);
    assert_eq!(told.last().unwrap().created_at, site.clock().now());
    assert_eq!(told.last().unwrap().data["offer_id"], *offer);
    assert_eq!(site.rctp().dead_letters(None, 9).await.unwrap(), []);
    assert_eq!(site.waiting().await, 0);
}

async fn an_earlier_event_holds_the_later_ones_back(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    site.buyers.answer(500);
    let offer = site.offer(50_000, None).await;
    let path = format!("/offers/{offer}/counter");
    site.market.seller_post(&path, &counter(55_000)).await;
    site.deliver().await;
    site.clock().advance(40);
    site.deliver().await;
    assert!(site.buyers.got().len() >= 2);
    let first = &site.buyers.got()[0].1;
    assert!(site.buyers.got().iter().all(|(_, body)| body == first));

    site.buyers.answer(200);
    site.clock().advance(65);
    site.deliver().await;
    let states: Vec<Value> = site
        .buyers
        .events()
        .iter()
        .map(|e| e.data["state"].clone())
        .collect();
    let arrived = &states[states.len() - 2..];
    assert_eq!(arrived, [json!("countered"), json!("open")]);
    assert_eq!(site.waiting().await, 0);
}

/// A stranger's event that a receiver answers with 400 must not keep the next ones from it; those are in order again.
async fn what_a_receiver_does_not_want_costs_it_nothing_else(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    site.buyers.refuse("countered", 400);
    let offer = site.offer(50_000, None).await;
    let path = format!("/offers/{offer}/counter");
    site.market.seller_post(&path, &counter(55_000)).await;
    for tries in 1..=3 {
        assert!(
            site.buyers
                .bodies()
                .iter()
                .all(|body| body.contains("countered"))
        );
        site.deliver().await;
        assert!(site.buyers.got().len() >= tries);
        site.clock().advance(9);
    }
    site.deliver().await;
    let bodies = site.buyers.bodies();
    let arrived = bodies
        .iter()
        .filter(|body| !body.contains("countered"))
        .count();
    assert_eq!(arrived, 1, "{bodies:?}");
    // What it does not want is tried on: it may be mended.
    assert_eq!(site.waiting().await, 1);
    site.buyers.refuse("nothing", 400);
    site.clock().advance(60);
    site.deliver().await;
    assert_eq!(site.waiting().await, 0);
}

async fn what_was_held_back_to_the_end_is_tried_once(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    site.buyers.answer(503);
    let offer = site.offer(50_000, None).await;
    let path = format!("/offers/{offer}/counter");
    site.market.seller_post(&path, &counter(55_000)).await;
    for _ in 0..WINDOW {
        site.clock().advance(1);
        site.deliver().await;
    }
    let open = |bodies: Vec<String>| bodies.iter().filter(|b| !b.contains("countered")).count();
    assert_eq!(open(site.buyers.bodies()), 0, "it waits for the first one");
    site.clock().advance(1);
    site.buyers.answer(200);
    site.deliver().await;
    assert_eq!(open(site.buyers.bodies()), 1);
    assert_eq!((site.waiting().await, site.count(Delivery::Dead)), (0, 1));
}

/// What waited for a receiver that is down has one last try among all of it, and not one each.
#[tokio::test]
async fn a_receiver_that_is_down_gets_no_burst_in_the_end() {
    let site = Site::on(Backing::memory().await, Tier::Auto).await;
    site.sellers.answer(503);
    let offers = 30;
    for n in 0..offers {
        site.publish(&format!("lst_n{n}")).await;
        let body = json!({"listing_id": format!("lst_n{n}"), "deal_terms": deal_terms(50_000)});
        assert_eq!(site.market.buyer_post("/offers", &body).await.status, 201);
    }
    for _ in 0..WINDOW {
        site.clock().advance(1);
        site.deliver().await;
    }
    let before = site.sellers.got().len();
    for _ in 0..30 {
        site.clock().advance(1);
        site.deliver().await;
    }
    let burst = site.sellers.got().len() - before;
    assert!(burst <= 2, "{burst} tries");
    assert_eq!(
        (site.waiting().await, site.count(Delivery::Dead)),
        (0, offers)
    );
}

/// Receivers that never answer have half of the places, and those that do answer the rest.
#[tokio::test]
async fn receivers_that_do_not_answer_leave_room_for_those_that_do() {
    let site = Site::on(Backing::memory().await, Tier::Auto).await;
    site.publish_by("lst_other", OTHERS).await;
    for (name, url) in [
        ("seller", "http://127.0.0.1:1/a"),
        ("other", "http://127.0.0.1:1/b"),
    ] {
        site.wants(name, Some(url));
    }
    let (tried, mut tries) = mpsc::unbounded_channel();
    let hangs = Webhooks::default()
        .concurrency(2)
        .post_with(FailsThenHangs {
            hosts: [site.buyers.url.clone()].into(),
            tried,
            failed: Mutex::default(),
        });
    let deliverer = site.rctp().webhooks(hangs).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(deliverer.run(async { drop(stopped.await) }));
    let offer = site.offer(50_000, None).await;
    let body = json!({"listing_id": "lst_other", "deal_terms": deal_terms(50_000)});
    assert_eq!(site.market.buyer_post("/offers", &body).await.status, 201);
    let mut failed = [tries.recv().await.unwrap(), tries.recv().await.unwrap()];
    failed.sort();
    assert_eq!(failed, ["/a", "/b"]);
    // From here on they hang; something that happens has them tried again.
    site.clock().advance(5);
    site.publish("lst_third").await;
    let body = json!({"listing_id": "lst_third", "deal_terms": deal_terms(50_000)});
    assert_eq!(site.market.buyer_post("/offers", &body).await.status, 201);
    assert!(failed.contains(&tries.recv().await.unwrap()));
    let decline = format!("/offers/{offer}/decline");
    assert_eq!(
        site.market.seller_post(&decline, &json!({})).await.status,
        200
    );
    let told = async { while tries.recv().await.unwrap() != "/hook" {} };
    let told = tokio::time::timeout(Duration::from_secs(20), told).await;
    assert_eq!(
        told,
        Ok(()),
        "the buyer's waits for those that do not answer"
    );
    running.abort();
    drop(stop);
}

/// Fails the first time, and then never has an answer; but for some.
struct FailsThenHangs {
    hosts: HashSet<String>,
    tried: mpsc::UnboundedSender<String>,
    failed: Mutex<HashSet<String>>,
}

impl Post for FailsThenHangs {
    fn post(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<StatusCode, FetchError>> {
        let uri = request.uri().to_string();
        self.tried.send(request.uri().path().to_owned()).unwrap();
        let first = self.failed.lock().unwrap().insert(uri.clone());
        Box::pin(async move {
            match (self.hosts.contains(&uri), first) {
                (true, _) => Ok(StatusCode::OK),
                (false, true) => Ok(StatusCode::SERVICE_UNAVAILABLE),
                (false, false) => std::future::pending().await,
            }
        })
    }
}

async fn one_thing_does_not_hold_another_back(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    let poisoned = site.offer(50_000, None).await;
    site.sellers.refuse(&poisoned, 500);
    site.deliver().await;
    site.publish("lst_second").await;
    let body = json!({"listing_id": "lst_second", "deal_terms": deal_terms(50_000)});
    let other = site
        .market
        .buyer_post("/offers", &body)
        .await
        .get("offer_id");
    site.clock().advance(2);
    site.deliver().await;
    let told = site.sellers.told();
    assert!(told.contains(&("offer.updated", "open", other)), "{told:?}");
    assert_eq!(site.waiting().await, 1);
}

async fn one_failing_receiver_does_not_hold_another_back(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    site.sellers.answer(503);
    let offer = site.offer(50_000, None).await;
    let path = format!("/offers/{offer}/decline");
    site.market.seller_post(&path, &json!({})).await;
    site.deliver().await;
    assert_eq!(site.buyers.told(), [("offer.updated", "declined", offer)]);
    assert_eq!(site.waiting().await, 1);
}

async fn a_receiver_that_fails_is_found_out_by_one_event(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    site.sellers.answer(503);
    let offers = 20;
    for n in 0..offers {
        site.publish(&format!("lst_n{n}")).await;
        let body = json!({"listing_id": format!("lst_n{n}"), "deal_terms": deal_terms(50_000)});
        assert_eq!(site.market.buyer_post("/offers", &body).await.status, 201);
    }
    assert_eq!(site.step().await, 1);
    assert_eq!(site.waiting().await, offers);
    // It is left alone for a while; then the first that arrives lets the others in.
    assert_eq!(site.step().await, 0);
    site.sellers.answer(200);
    site.clock().advance(2);
    assert_eq!(site.step().await, offers);
    assert_eq!(site.waiting().await, 0);
}

async fn a_restart_loses_nothing(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    let offer = site.offer(50_000, None).await;
    let store = site.market.backing.opened_again().await;
    let after = site.market.beside(store, |b| b.webhooks(true).dev(true));
    let tried = after.webhooks(Webhooks::default()).unwrap().step().await;
    assert_eq!(tried, Ok(1));
    assert_eq!(site.sellers.told(), [("offer.updated", "open", offer)]);
    assert_eq!(site.step().await, 0, "it is gone for the other, too");
}

async fn two_gateways_do_not_send_an_event_at_once(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    for amount in 0..3 {
        site.publish(&format!("lst_n{amount}")).await;
        let body =
            json!({"listing_id": format!("lst_n{amount}"), "deal_terms": deal_terms(50_000)});
        assert_eq!(site.market.buyer_post("/offers", &body).await.status, 201);
    }
    let beside = site
        .market
        .beside(site.market.backing.opened_again().await, |b| {
            b.webhooks(true).dev(true)
        });
    let other = beside.webhooks(Webhooks::default()).unwrap();
    let (a, b) = tokio::join!(site.step(), other.step());
    assert_eq!(a + b.unwrap(), 3);
    assert_eq!(site.sellers.got().len(), 3);

    // While one tries, the other does not; and once it has ended in the middle, the other does.
    let gate = Gate::default();
    let hangs = Webhooks::default().post_with(Hangs(gate.clone()));
    let hangs = site.rctp().webhooks(hangs).unwrap();
    let offer = site.offer(50_000, None).await;
    let trying = tokio::spawn(async move { hangs.step().await });
    gate.reached().await;
    assert_eq!(other.step().await, Ok(0), "it is leased");
    trying.abort();
    assert!(trying.await.unwrap_err().is_cancelled());
    assert_eq!(other.step().await, Ok(0), "it is leased");
    site.clock().advance(10);
    assert_eq!(other.step().await, Ok(1));
    assert_eq!(site.sellers.told()[3], ("offer.updated", "open", offer));
    assert_eq!(site.waiting().await, 0);
}

/// Sends to nobody, and never has an answer.
struct Hangs(Gate);

impl Post for Hangs {
    fn post(&self, _: Request<Bytes>) -> BoxFuture<'_, Result<StatusCode, FetchError>> {
        Box::pin(async {
            self.0.pass().await;
            Ok(StatusCode::OK)
        })
    }
}

async fn who_wants_no_webhooks_gets_none(backing: Backing) {
    let site = Site::on(backing, Tier::Auto).await;
    site.wants("seller", None);
    site.offer(50_000, None).await;
    assert_eq!(site.step().await, 0);
    assert_eq!(site.count(Delivery::Dropped), 1);
    assert_eq!(site.waiting().await, 0);
}

#[tokio::test]
async fn without_the_setting_no_event_is_kept() {
    let market = Market::on(Backing::memory().await).await;
    market.open_offer(50_000).await;
    let events = market
        .backing
        .store
        .list(Kind::Webhook, "outbox".into(), None, 9);
    assert_eq!(events.await.unwrap(), []);
}

#[tokio::test]
async fn nothing_is_sent_to_http_to_special_use_addresses_or_after_a_redirect() {
    let site = Site::on(Backing::memory().await, Tier::Auto).await;
    let strict = site
        .market
        .beside(site.market.backing.store.clone(), |b| b.webhooks(true));
    let strict = strict.webhooks(Webhooks::default()).unwrap();
    let port = site.sellers.url.rsplit_once(':').unwrap().1.to_owned();
    for url in [
        site.sellers.url.clone(),
        format!("https://127.0.0.1:{port}"),
        format!("https://localhost:{port}"),
        "https://10.0.0.1/".into(),
        "https://[::ffff:127.0.0.1]/".into(),
        "ftp://receiver.example/".into(),
        "https://user@receiver.example/".into(),
        "nonsense".into(),
    ] {
        site.wants("seller", Some(&url));
        // The profile is not asked for again at once.
        site.clock().advance(301);
        site.offer(50_000, None).await;
        assert_eq!(strict.step().await, Ok(1), "{url}");
        assert_eq!(site.sellers.got().len(), 0, "{url}");
    }

    let site = Site::on(Backing::memory().await, Tier::Auto).await;
    site.sellers.answer(307);
    site.offer(50_000, None).await;
    assert_eq!(site.step().await, 1);
    assert_eq!(site.count(Delivery::Failed), 1);
    assert_eq!(site.sellers.got().len(), 1);
}

#[tokio::test]
async fn the_worker_wakes_on_a_commit_and_ends_when_it_is_told_to() {
    let site = Site::on(Backing::memory().await, Tier::Auto).await;
    let worker = site.rctp().webhooks(Webhooks::default()).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = tokio::spawn(worker.run(async move {
        let _ = stopped.await;
    }));
    tokio::task::yield_now().await;
    site.offer(50_000, None).await;
    site.sellers.arrived().await;
    stop.send(()).unwrap();
    worker.await.unwrap();
}

// ---- What a receiver checks -----------------------------------------------------------------------------------------

/// A webhook as a gateway would send it, to be tampered with.
struct Forged {
    key: SigningKey,
    method: http::Method,
    url: String,
    body: String,
    headers: Vec<(&'static str, String)>,
    components: Vec<Component>,
    created: i64,
    label: &'static str,
    after: fn(&mut Parts, &mut Vec<u8>),
}

const HOOK: &str = "https://operator.example/hooks/rctp";

fn forged(key: &SigningKey) -> Forged {
    let event = Event {
        event_id: "evt_1".into(),
        event: EventType::OfferUpdated,
        created_at: Timestamp::from_secs(NOW),
        data: json!({"offer_id": "off_1"}),
    };
    Forged {
        key: key.clone(),
        method: http::Method::POST,
        url: HOOK.into(),
        body: event.to_body(),
        headers: vec![
            ("webhook-id", "evt_1".into()),
            ("webhook-timestamp", NOW.to_string()),
            ("ucp-agent", format!("profile=\"{PROFILE}\"")),
            ("content-type", "application/json".into()),
        ],
        components: vec![
            Component::Method,
            Component::Authority,
            Component::Path,
            Component::Field("content-digest".parse().unwrap()),
            Component::Field("content-type".parse().unwrap()),
        ],
        created: NOW,
        label: "sig1",
        after: |_, _| (),
    }
}

impl Forged {
    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.retain(|(n, _)| *n != name);
        self.headers.push((name, value.into()));
        self
    }

    fn without(mut self, component: &str) -> Self {
        self.components
            .retain(|c| c.to_string() != format!("\"{component}\""));
        self
    }

    fn event(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let mut event = serde_json::from_str(&self.body).unwrap();
        change(&mut event);
        self.body = event.to_string();
        self
    }

    fn verify(self, keys: &Keys, now: i64, seen: &dyn Seen) -> Result<Event, WebhookError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers.insert(
            "content-digest",
            content_digest(&sha256(self.body.as_bytes())),
        );
        let url: http::Uri = self.url.parse().unwrap();
        let authority = Authority::new(url.authority().unwrap().as_str(), "https").unwrap();
        let message = Message::request(&self.method, &authority, url.path(), url.query(), &headers);
        let params = Params::new(self.created);
        let signed = sign(&message, &self.components, &params, self.label, &self.key).unwrap();
        signed.append_to(&mut headers);
        let mut request = Request::new(());
        *request.method_mut() = self.method;
        *request.uri_mut() = url.path().parse().unwrap();
        *request.headers_mut() = headers;
        let (mut parts, ()) = request.into_parts();
        let mut body = self.body.into_bytes();
        (self.after)(&mut parts, &mut body);
        let expected = Expected::new(HOOK, PROFILE, keys.clone()).unwrap();
        verify_webhook(&parts, &body, &expected, Timestamp::from_secs(now), seen)
    }
}

#[test]
fn a_receiver_takes_what_is_right_and_nothing_else() {
    let key = SigningKey::generate().unwrap();
    let keys = Keys::parse(&json!([key.public_jwk()]), default_provider()).unwrap();
    let good = || forged(&key);
    let id = || "webhook-id".parse().unwrap();
    let timestamp = || "webhook-timestamp".parse().unwrap();
    type Expectation = Result<(), WebhookError>;
    let not_covered = |name: &str| Err(SignatureError::NotCovered(name.parse().unwrap()).into());
    let table: Vec<(&str, Forged, i64, Expectation)> = vec![
        ("as it is", good(), NOW, Ok(())),
        ("at the last moment", good(), NOW + 300, Ok(())),
        (
            "tried again later",
            Forged {
                created: NOW + 200,
                ..good()
            },
            NOW + 210,
            Ok(()),
        ),
        (
            "a second too late",
            good(),
            NOW + 301,
            Err(SignatureError::TooOld.into()),
        ),
        (
            "old, signed anew",
            Forged {
                created: NOW + 301,
                ..good()
            },
            NOW + 301,
            Err(WebhookError::TooOld),
        ),
        (
            "from the future",
            Forged {
                created: NOW - 61,
                ..good()
            },
            NOW - 61,
            Err(WebhookError::FromTheFuture),
        ),
        (
            "another method",
            Forged {
                method: http::Method::PUT,
                ..good()
            },
            NOW,
            Err(WebhookError::Method),
        ),
        (
            "another host",
            Forged {
                url: "https://other.example/hooks/rctp".into(),
                ..good()
            },
            NOW,
            Err(SignatureError::Invalid.into()),
        ),
        (
            "another path",
            Forged {
                url: "https://operator.example/hooks/other".into(),
                ..good()
            },
            NOW,
            Err(SignatureError::Invalid.into()),
        ),
        (
            "another label",
            Forged {
                label: "sig2",
                ..good()
            },
            NOW,
            Err(SignatureError::NoSuchLabel.into()),
        ),
        (
            "another key",
            Forged {
                key: SigningKey::generate().unwrap(),
                ..good()
            },
            NOW,
            Err(WebhookError::UnknownKey),
        ),
        (
            "another gateway",
            good().header(
                "ucp-agent",
                "profile=\"https://evil.example/.well-known/ucp\"",
            ),
            NOW,
            Err(WebhookError::Gateway),
        ),
        (
            "method not covered",
            good().without("@method"),
            NOW,
            not_covered("@method"),
        ),
        (
            "authority not covered",
            good().without("@authority"),
            NOW,
            not_covered("@authority"),
        ),
        (
            "path not covered",
            good().without("@path"),
            NOW,
            not_covered("@path"),
        ),
        (
            "digest not covered",
            good().without("content-digest"),
            NOW,
            not_covered("content-digest"),
        ),
        (
            "type not covered",
            good().without("content-type"),
            NOW,
            not_covered("content-type"),
        ),
        (
            "another id",
            good().header("webhook-id", "evt_2"),
            NOW,
            Err(WebhookError::Disagrees(id())),
        ),
        (
            "another timestamp",
            good().header("webhook-timestamp", (NOW + 1).to_string()),
            NOW,
            Err(WebhookError::Disagrees(timestamp())),
        ),
        (
            "a timestamp in other words",
            good().header("webhook-timestamp", format!("0{NOW}")),
            NOW,
            Err(WebhookError::Disagrees(timestamp())),
        ),
        (
            "a member more",
            good().event(|e| e["more"] = json!(1)),
            NOW,
            Err(WebhookError::Body),
        ),
        (
            "a type of nobody's",
            good().event(|e| e["type"] = json!("offer.deleted")),
            NOW,
            Err(WebhookError::Body),
        ),
        (
            "a member twice",
            Forged {
                body: good().body.replacen('{', "{\"event_id\":\"evt_1\",", 1),
                ..good()
            },
            NOW,
            Err(WebhookError::Body),
        ),
        (
            "no JSON",
            Forged {
                body: "no".into(),
                ..good()
            },
            NOW,
            Err(WebhookError::Body),
        ),
        (
            "another body",
            Forged {
                after: |_, body| body.push(b' '),
                ..good()
            },
            NOW,
            Err(SignatureError::Digest(tower_rctp::wire::digest::DigestError::Mismatch).into()),
        ),
        (
            "no signature",
            Forged {
                after: |parts, _| {
                    parts.headers.remove("signature");
                },
                ..good()
            },
            NOW,
            Err(SignatureError::Incomplete.into()),
        ),
        (
            "unsigned",
            Forged {
                after: |parts, _| {
                    parts.headers.remove("signature");
                    parts.headers.remove("signature-input");
                },
                ..good()
            },
            NOW,
            Err(SignatureError::Missing.into()),
        ),
        (
            "no id",
            Forged {
                after: |parts, _| {
                    parts.headers.remove("webhook-id");
                },
                ..good()
            },
            NOW,
            Err(WebhookError::Header(id())),
        ),
        (
            "two ids",
            Forged {
                after: |parts, _| {
                    parts.headers.append("webhook-id", "evt_1".parse().unwrap());
                },
                ..good()
            },
            NOW,
            Err(WebhookError::Header(id())),
        ),
        (
            "no timestamp",
            Forged {
                after: |parts, _| {
                    parts.headers.remove("webhook-timestamp");
                },
                ..good()
            },
            NOW,
            Err(WebhookError::Header(timestamp())),
        ),
    ];
    for (name, webhook, now, expected) in table {
        let seen = SeenInMemory::default();
        let found = webhook.verify(&keys, now, &seen).map(drop);
        assert_eq!(found, expected, "{name}");
        if expected.is_err() {
            // What is refused is not remembered.
            assert_eq!(good().verify(&keys, NOW, &seen).map(drop), Ok(()), "{name}");
        }
    }
}

#[test]
fn a_repeat_is_dropped_unless_it_was_given_back() {
    let key = SigningKey::generate().unwrap();
    let keys = Keys::parse(&json!([key.public_jwk()]), default_provider()).unwrap();
    let seen = SeenInMemory::default();
    let come = |now| forged(&key).verify(&keys, now, &seen).map(drop);
    assert_eq!(come(NOW), Ok(()));
    assert_eq!(come(NOW + 300), Err(WebhookError::Repeated));
    seen.forget("evt_1");
    assert_eq!(come(NOW + 1), Ok(()));
    assert_eq!(come(NOW + 2), Err(WebhookError::Repeated));
}

#[test]
fn what_is_remembered_is_bounded_and_nothing_is_forgotten_early() {
    let seen = SeenInMemory::new(2);
    let at = Timestamp::from_secs;
    assert_eq!(seen.remember("a", at(0), at(300)), Ok(true));
    assert_eq!(seen.remember("b", at(10), at(310)), Ok(true));
    assert_eq!(seen.remember("c", at(20), at(320)), Err(Full));
    assert_eq!(seen.remember("a", at(300), at(600)), Ok(false));
    assert_eq!(seen.remember("c", at(301), at(601)), Ok(true));
    assert_eq!(seen.remember("b", at(301), at(601)), Ok(false));
}

// ---- The site -------------------------------------------------------------------------------------------------------

/// The market, with a receiver for each side's operator.
struct Site {
    market: Market,
    sellers: Receiver,
    buyers: Receiver,
    /// The receiver of the holder of funds, and their agent.
    holders: Receiver,
    holder: Agent,
    deliverer: Deliverer,
    counts: Arc<Mutex<HashMap<Delivery, usize>>>,
}

impl Site {
    async fn on(backing: Backing, tier: Tier) -> Self {
        let settings = |b: tower_rctp::RctpBuilder| {
            let holder = Operator::new(HOLDERS).role(Role::FundsHolder);
            b.webhooks(true)
                .dev(true)
                .approve_with(Browser)
                .operators(operators().with(holder))
        };
        let market = Market::with(backing, tier, settings).await;
        let keys = Keys::parse(
            &json!([market.gateway_key.public_jwk()]),
            default_provider(),
        );
        let keys = keys.unwrap();
        let sellers = Receiver::start(&market.clock, keys.clone()).await;
        let buyers = Receiver::start(&market.clock, keys.clone()).await;
        let holders = Receiver::start(&market.clock, keys).await;
        let holder = SigningKey::generate().unwrap();
        let holder = Agent {
            signer: Signer::new(HOLDERS, holder)
                .unwrap()
                .clock(market.clock.closure()),
            profile: HOLDERS.into(),
        };
        let counts: Arc<Mutex<HashMap<_, _>>> = Arc::default();
        let counted = counts.clone();
        let webhooks = Webhooks::default()
            .observe(move |delivery| *counted.lock().unwrap().entry(delivery).or_default() += 1);
        let site = Self {
            deliverer: market.rctp.webhooks(webhooks).unwrap(),
            market,
            sellers,
            buyers,
            holders,
            holder,
            counts,
        };
        site.wants("seller", Some(&site.sellers.url));
        site.wants("buyer", Some(&site.buyers.url));
        site.wants("holder", Some(&site.holders.url));
        site.publish(TOLD).await;
        site
    }

    fn rctp(&self) -> &Rctp {
        &self.market.rctp
    }

    fn clock(&self) -> &TestClock {
        &self.market.clock
    }

    /// Writes an operator's profile, before anybody has fetched it.
    fn wants(&self, name: &str, url: Option<&str>) {
        let world: &World = &self.market;
        let agent = match name {
            "buyer" => &world.buyer,
            "holder" => &self.holder,
            "other" => &self.market.other,
            _ => &world.seller,
        };
        let mut document = profile(name, &[agent.signer.key().public_jwk()]);
        if let Some(url) = url {
            document["ucp"]["capabilities"]["dev.rctp.deal"] =
                json!([{"version": "2026-11-draft5", "config": {"webhook_url": url}}]);
        }
        let mut documents = world.origins.documents.lock().unwrap();
        documents.insert(agent.profile.clone(), Bytes::from(document.to_string()));
    }

    async fn publish(&self, id: &str) {
        self.publish_by(id, SELLERS).await;
    }

    async fn publish_by(&self, id: &str, operator: &str) {
        let listing = Listing {
            operator: Some(operator.into()),
            ..listing(id, SELLER)
        };
        let private = PrivateTerms::new(Some(Floor::new(Money::new(FLOOR, "EUR"))), [7; 16]);
        self.rctp()
            .publish(listing, public_terms(), &private)
            .await
            .unwrap();
    }

    async fn offer(&self, amount: u64, supersedes: Option<&str>) -> String {
        let mut body = json!({"listing_id": TOLD, "deal_terms": deal_terms(amount)});
        if let Some(id) = supersedes {
            body["supersedes"] = json!(id);
        }
        let offer = self.market.buyer_post("/offers", &body).await;
        assert_eq!(offer.status, 201, "{:?}", offer.body);
        offer.get("offer_id")
    }

    async fn deal(&self) -> String {
        let accepted = self.market.accept(&self.offer(FLOOR + 1, None).await).await;
        let checkout = json!({"checkout": accepted.get("checkout")});
        let deal = self.market.buyer_post("/deals", &checkout).await;
        assert_eq!(deal.status, 201, "{:?}", deal.body);
        deal.get("deal_id")
    }

    /// An acceptance that waits for the seller: its approval, and the offer.
    async fn ask(&self, amount: u64) -> (String, String) {
        let offer = self.offer(amount, None).await;
        let asked = self.market.accept(&offer).await;
        assert_eq!(asked.status, 202, "{:?}", asked.body);
        let approval = asked.body["approval_request"]["approval_id"].as_str();
        (approval.unwrap().to_owned(), offer)
    }

    async fn answer(&self, approval: &str, body: &Value) -> u16 {
        let mut request = post(&format!("/approvals/{approval}/response"), body);
        request
            .headers_mut()
            .insert("origin", GATEWAY.parse().unwrap());
        let answer = self.market.send(request).await;
        if answer.status == 200 {
            fits("approval", &answer.body["approval"]);
        }
        answer.status
    }

    async fn step(&self) -> usize {
        self.deliverer.step().await.unwrap()
    }

    async fn deliver(&self) {
        self.step().await;
    }

    fn count(&self, delivery: Delivery) -> usize {
        self.counts
            .lock()
            .unwrap()
            .get(&delivery)
            .copied()
            .unwrap_or(0)
    }

    async fn waiting(&self) -> usize {
        let store = &self.market.backing.store;
        store
            .list(Kind::Webhook, "outbox".into(), None, 99)
            .await
            .unwrap()
            .len()
    }
}

/// The seller's browser, which is always signed in, and whose passkey signs everything.
struct Browser;

impl Approver for Browser {
    fn seller<'a>(&'a self, _: &'a HeaderMap) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async { Ok(Some(SELLER.to_owned())) })
    }

    fn verify<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a Value,
    ) -> BoxFuture<'a, Result<Vec<Put>, NotVerified>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// An operator's receiver on loopback.
#[derive(Clone)]
struct Receiver {
    url: String,
    got: Arc<Mutex<Vec<(HeaderMap, String)>>>,
    status: Arc<Mutex<u16>>,
    refused: Arc<Mutex<Option<(String, u16)>>>,
    arrived: Arc<tokio::sync::Semaphore>,
    clock: TestClock,
    keys: Keys,
    verified: Arc<AtomicUsize>,
}

impl Receiver {
    async fn start(clock: &TestClock, keys: Keys) -> Self {
        let mut receiver = Self {
            url: String::new(),
            got: Arc::default(),
            status: Arc::new(Mutex::new(200)),
            refused: Arc::default(),
            arrived: Arc::new(tokio::sync::Semaphore::new(0)),
            clock: clock.clone(),
            keys,
            verified: Arc::default(),
        };
        // The handler needs to know its own address, which is known once it listens.
        let address = Arc::new(Mutex::new(String::new()));
        let router = Router::new()
            .fallback(any(receive))
            .with_state((receiver.clone(), address.clone()));
        receiver.url = format!("http://{}/hook", loopback::serve(router).await);
        address.lock().unwrap().clone_from(&receiver.url);
        receiver
    }

    fn answer(&self, status: u16) {
        *self.status.lock().unwrap() = status;
    }

    /// Answers so to whatever names this.
    fn refuse(&self, word: &str, status: u16) {
        *self.refused.lock().unwrap() = Some((word.to_owned(), status));
    }

    fn got(&self) -> Vec<(HeaderMap, String)> {
        self.got.lock().unwrap().clone()
    }

    fn bodies(&self) -> Vec<String> {
        self.got().into_iter().map(|(_, body)| body).collect()
    }

    fn events(&self) -> Vec<Event> {
        let bodies = self.bodies();
        bodies
            .iter()
            .map(|body| serde_json::from_str(body).unwrap())
            .collect()
    }

    /// Type, state, and the id of what it is about.
    fn told(&self) -> Vec<(&'static str, &'static str, String)> {
        let word = |text: &Value| {
            let words = [
                "open",
                "countered",
                "superseded",
                "accepted",
                "declined",
                "expired",
                "approved",
            ];
            let found = words.into_iter().find(|word| text == word);
            found.unwrap_or_else(|| panic!("{text}"))
        };
        let told = |event: Event| match event.event {
            EventType::OfferUpdated => {
                let id = event.data["offer_id"].as_str().unwrap().to_owned();
                ("offer.updated", word(&event.data["state"]), id)
            }
            EventType::ApprovalDecided => {
                let id = event.data["approval_id"].as_str().unwrap().to_owned();
                ("approval.decided", word(&event.data["status"]), id)
            }
            EventType::DealEvent => panic!("of deals, look at the events themselves"),
        };
        self.events().into_iter().map(told).collect()
    }

    async fn arrived(&self) {
        self.arrived.acquire().await.unwrap().forget();
    }
}

/// Every delivery is what the binding says, whatever is answered.
async fn receive(
    State((receiver, url)): State<(Receiver, Arc<Mutex<String>>)>,
    request: axum::extract::Request,
) -> impl IntoResponse {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let url = url.lock().unwrap().clone();
    let expected = Expected::new(&url, PROFILE, receiver.keys.clone()).unwrap();
    let seen = SeenInMemory::default();
    let now = receiver.clock.now();
    let verified = verify_webhook(&parts, &body, &expected, now, &seen);
    let event = match verified {
        Ok(event) => event,
        Err(error) => panic!("{error}: {parts:?}"),
    };
    fits("webhook-event", &serde_json::from_slice(&body).unwrap());
    assert_eq!(parts.headers["webhook-id"], *event.event_id);
    assert_eq!(parts.headers["content-type"], "application/json");
    let input = parts.headers["signature-input"].to_str().unwrap();
    let covered =
        "sig1=(\"@method\" \"@authority\" \"@path\" \"content-digest\" \"content-type\");created=";
    assert!(input.starts_with(covered), "{input}");
    receiver.verified.fetch_add(1, Ordering::SeqCst);
    let text = String::from_utf8(body.to_vec()).unwrap();
    let refused = receiver.refused.lock().unwrap().clone();
    let refused = refused.filter(|(word, _)| text.contains(word));
    receiver.got.lock().unwrap().push((parts.headers, text));
    receiver.arrived.add_permits(1);
    let status = match refused {
        Some((_, status)) => status,
        None => *receiver.status.lock().unwrap(),
    };
    (
        StatusCode::from_u16(status).unwrap(),
        [("location", format!("{url}/elsewhere"))],
    )
}

fn counter(amount: u64) -> Value {
    json!({"deal_terms": deal_terms(amount)})
}
