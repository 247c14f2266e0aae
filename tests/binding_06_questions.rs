//! What may be asked and promised, how often, and who reads it (binding 6.1, 12; R29): questions and answers, the promise
//! to ship, asks; and what the record says of a withdrawal.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, BUYER_TOKEN, FLOOR, LISTING, World, get, with_token};
use serde_json::json;
use tower_rctp::protocol::{
    policy::{Limits, Tier},
    record::SubjectKind,
};

const QUESTIONS: &str = "/listings/lst_bicycle/questions";
const ANSWERS: &str = "/listings/lst_bicycle/answers";

/// The buyer's agent asks.
async fn ask(world: &World, text: &str) -> Answer {
    world.buyer_post(QUESTIONS, &json!({ "text": text })).await
}

/// Another agent of the same operator asks, which has no key.
async fn ask_unsigned(world: &World, text: &str) -> Answer {
    let question = json!({ "text": text });
    world.oauth_post(BUYER_TOKEN, QUESTIONS, &question).await
}

/// The texts of the questions that were listed.
fn texts(listed: &Answer) -> Vec<&str> {
    assert_eq!(listed.status, 200, "{:?}", listed.body);
    let questions = listed.body["questions"].as_array().unwrap();
    questions
        .iter()
        .map(|q| q["text"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_buyers_agent_reads_its_own_questions_and_the_seller_all() {
    let world = World::new().await;
    assert_eq!(ask(&world, "Has it a bell?").await.status, 201);
    // Lists are by time, in seconds.
    world.clock.advance(1);
    assert_eq!(ask_unsigned(&world, "How big is it?").await.status, 201);

    let signed = world.buyer_get(QUESTIONS).await;
    assert_eq!(texts(&signed), ["Has it a bell?"]);
    let unsigned = world.send(with_token(get(QUESTIONS), BUYER_TOKEN)).await;
    assert_eq!(texts(&unsigned), ["How big is it?"]);
    let seller = world.seller_get(QUESTIONS).await;
    assert_eq!(texts(&seller), ["Has it a bell?", "How big is it?"]);
    let whole = String::from_utf8_lossy(&seller.bytes);
    assert!(!whole.contains(world.buyer.kid()) && !whole.contains("client-buyer"));
}

#[tokio::test]
async fn a_question_is_answered_once() {
    let world = World::new().await;
    let asked = ask(&world, "Has it a bell?").await;
    let id = asked.get("question_id");
    let answer = |text: &str| json!({"question_id": id, "text": text});
    let first = world.seller_post(ANSWERS, &answer("It has.")).await;
    assert_eq!((first.status, first.decision()), (200, "auto"));
    let second = world.seller_post(ANSWERS, &answer("It has not.")).await;
    assert_eq!(second.refusal(), (409, "offer_replayed"));

    let read = world.buyer_get(QUESTIONS).await;
    assert_eq!(read.body["questions"][0]["answer"], "It has.");
    let absent = json!({"question_id": "qst_other", "text": "Yes."});
    assert_eq!(world.seller_post(ANSWERS, &absent).await.status, 404);
}

#[tokio::test]
async fn an_agent_asks_so_many_questions_about_a_listing_in_a_day() {
    let limits = Limits {
        questions_per_agent: 2,
        ..Limits::default()
    };
    let world = World::with(Tier::Auto, |b| b.limits(limits)).await;
    let ask = async || ask(&world, "And now?").await;
    assert_eq!(ask().await.status, 201);
    world.clock.advance(100);
    assert_eq!(ask().await.status, 201);
    let refused = ask().await;
    assert_eq!(refused.refusal(), (429, "offer_budget_exhausted"));
    assert_eq!(refused.body["retry_after"], 86_300);
    // Somebody else may still ask.
    assert_eq!(ask_unsigned(&world, "And I?").await.status, 201);
    world.clock.advance(86_300);
    assert_eq!(ask().await.status, 201);
}

#[tokio::test]
async fn a_seller_is_asked_so_often_while_an_approval_waits() {
    let per_agent = Limits {
        asks_per_agent: 2,
        ..Limits::default()
    };
    let per_listing = Limits {
        asks_per_listing: 2,
        ..Limits::default()
    };
    for limits in [per_agent, per_listing] {
        let world = World::with(Tier::Ask, |b| b.limits(limits)).await;
        let reprice = async || {
            let price = json!({"price": {"amount": 50_000, "currency": "EUR"}});
            world
                .seller_post("/listings/lst_bicycle/price", &price)
                .await
        };
        assert_eq!(reprice().await.status, 202);
        world.clock.advance(100);
        assert_eq!(reprice().await.status, 202);
        let refused = reprice().await;
        assert_eq!(refused.refusal(), (429, "offer_budget_exhausted"));
        assert_eq!(refused.body["retry_after"], 800);
        let entries = world.chain(SubjectKind::Listing, LISTING).await;
        assert_eq!(entries.len(), 3, "the refusal is on record");
    }
}

/// An accepted offer, as the buyer reads it.
async fn accepted(world: &World) -> Answer {
    let offer = world.offer(FLOOR).await.get("offer_id");
    let path = format!("/offers/{offer}/accept");
    let accepted = world.seller_post(&path, &json!({})).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    world.buyer_get(&format!("/offers/{offer}")).await
}

#[tokio::test]
async fn shipping_is_promised_once() {
    let world = World::new().await;
    let offer = accepted(&world).await;
    let checkout = json!({"checkout": offer.get("checkout")});
    let deal = world.buyer_post("/deals", &checkout).await.get("deal_id");
    let path = format!("/deals/{deal}/commit-to-ship");
    let first = world.seller_post(&path, &json!({})).await;
    assert_eq!((first.status, first.decision()), (200, "auto"));
    let second = world.seller_post(&path, &json!({})).await;
    assert_eq!(second.refusal(), (409, "offer_replayed"));
    // It is the seller's promise: to a buyer there is no such thing.
    assert_eq!(world.buyer_post(&path, &json!({})).await.status, 401);
}

#[tokio::test]
async fn a_withdrawal_stands_where_the_acceptance_does() {
    let world = World::new().await;
    let offer = accepted(&world).await;
    world.rctp.withdraw(LISTING).await.unwrap();
    let checkout = json!({"checkout": offer.get("checkout")});
    let refused = world.buyer_post("/deals", &checkout).await;
    assert_eq!(refused.refusal(), (403, "not_in_scope"));

    let negotiation = offer.get("negotiation_id");
    for (kind, id) in [
        (SubjectKind::Listing, LISTING),
        (SubjectKind::Negotiation, &negotiation),
    ] {
        let chain = world.chain(kind, id).await;
        let event = chain.iter().find(|e| e["event"] == "listing.withdrawn");
        let event = event.unwrap_or_else(|| panic!("{chain:#?}"));
        assert_eq!(event.get("decision"), None);
        assert_eq!(event.get("authenticated_by"), None, "no agent called");
    }
}

#[tokio::test]
async fn nothing_is_asked_of_what_is_not_for_sale() {
    let world = World::new().await;
    world.rctp.withdraw(LISTING).await.unwrap();
    let refused = ask(&world, "Still there?").await;
    assert_eq!(refused.refusal(), (403, "not_in_scope"));
}
