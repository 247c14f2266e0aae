//! Binding 6: decisions as HTTP answers, through the whole stack; and that no answer, log line or record tells the floor.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use std::{
    collections::{BTreeSet, HashSet},
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use common::{
    Agent, Answer, BUYER_TOKEN, CURRENCY, FLOOR, GATEWAY, LISTING, NOW, SELLER, SELLER_TOKEN,
    SELLER_UNBOUND, deal_terms, get, grant, offer_body, post, public_terms, with_key, with_token,
};
use http::Request;
use http_body::Frame;
use market::{
    Backing, Call, Logs, Market, OTHER_TOKEN, around, fits, fresh_key, on_every_store, send_to,
    signed,
};
use serde_json::{Value, json};
use tower::{ServiceExt, service_fn};
use tower_rctp::{
    layer::{
        arrive::{Answered, Arrived, BODY_LIMIT},
        body::Body,
        decision::Decided,
        idempotency::Held,
    },
    protocol::{
        VERSION,
        caller::Caller,
        decision::Decision,
        grant::{Grant, GrantStatus},
        listing::{Listing, ListingState},
        money::Money,
        operation::{Op, Side, TABLE, Verb},
        policy::{OfferBudget, Tier, Tiers},
        record::{Subject, SubjectKind},
        refusal::{Code, Refusal},
        terms::{Floor, PrivateTerms},
        time::Timestamp,
    },
    store::{ClaimStep, Kind, Unit},
    wire::{base64url, digest::sha256, jcs},
};

on_every_store!(
    every_decision_has_its_status_its_header_and_its_body,
    an_ask_says_what_the_seller_approves,
    an_exhausted_budget_answers_alike_whatever_is_offered,
    a_budget_frees_its_slots_as_the_window_moves,
    the_sellers_side_cannot_probe_the_floor_either,
    inv_3_the_two_verbs_that_nobody_may_do_are_refused_right_after_the_grant,
    inv_1_the_floor_is_nowhere_but_in_the_stores_private_documents,
);

// ---- Helpers --------------------------------------------------------------------------------------------------------

async fn reprice(market: &Market, listing: &str, amount: u64) -> Answer {
    let body = json!({"price": {"amount": amount, "currency": CURRENCY}});
    market
        .seller_post(&format!("/listings/{listing}/price"), &body)
        .await
}

async fn counter(market: &Market, offer: &str, amount: u64) -> Answer {
    let body = json!({"deal_terms": deal_terms(amount)});
    market
        .seller_post(&format!("/offers/{offer}/counter"), &body)
        .await
}

fn listing_request() -> Value {
    json!({
        "title": "A tandem",
        "list_price": {"amount": 90_000, "currency": CURRENCY},
        "term_set": "goods-1",
    })
}

fn named(answer: &Answer) -> String {
    format!("{} {} {:?}", answer.status, answer.decision(), answer.body)
}

// ---- The table ------------------------------------------------------------------------------------------------------

async fn every_decision_has_its_status_its_header_and_its_body(backing: Backing) {
    let market = Market::on(backing).await;
    let (buyer, seller, own) = (&market.buyer, &market.seller, Some(SELLER_TOKEN));
    let offer = market.open_offer(FLOOR + 1).await;
    let second = market.open_offer(FLOOR + 2).await;
    let low = market.open_offer(FLOOR + 3).await;
    let countered = market.open_offer(FLOOR + 4).await;
    assert_eq!(counter(&market, &countered, 55_000).await.status, 201);
    market.grants.set("token-revoked", {
        let jkt = Some(seller.kid());
        let mut grant = grant(SELLER, "client-seller", jkt, Tier::Auto, NOW + 900);
        grant.grant_status = Some(GrantStatus::Revoked);
        grant
    });
    market.grants.set("token-expired", {
        let jkt = Some(seller.kid());
        let mut grant = grant(SELLER, "client-seller", jkt, Tier::Auto, NOW + 900);
        grant.grant_status = Some(GrantStatus::Expired);
        grant
    });
    let revoked = Some("token-revoked");
    let ended = Some("token-expired");
    let mut dollars = offer_body(FLOOR + 1);
    dollars["deal_terms"]["price"]["currency"] = json!("USD");
    let on = |id: &str, verb: &str| format!("/offers/{id}/{verb}");
    let none = json!({});
    let terms = |amount| json!({"deal_terms": deal_terms(amount)});
    let forged = json!({"checkout": "e30.e30.AA"});
    type Row<'a> = (
        &'a Agent,
        Option<&'a str>,
        String,
        Value,
        u16,
        &'a str,
        &'a str,
    );
    let rows: Vec<Row<'_>> = vec![
        (
            buyer,
            None,
            "/offers".into(),
            offer_body(FLOOR),
            201,
            "auto",
            "",
        ),
        (
            seller,
            own,
            on(&second, "counter"),
            terms(55_000),
            201,
            "auto",
            "",
        ),
        (
            seller,
            own,
            on(&low, "decline"),
            none.clone(),
            200,
            "auto",
            "",
        ),
        (
            seller,
            own,
            "/listings".into(),
            listing_request(),
            201,
            "auto",
            "",
        ),
        (
            buyer,
            None,
            "/deals".into(),
            forged,
            401,
            "forbid;reason=signature_invalid",
            "signature_invalid",
        ),
        (
            seller,
            None,
            "/listings".into(),
            listing_request(),
            401,
            "forbid;action=\"listing.create\";reason=grant_invalid",
            "grant_invalid",
        ),
        (
            seller,
            revoked,
            on(&offer, "accept"),
            none.clone(),
            403,
            "forbid;action=\"offer.accept\";reason=grant_revoked",
            "grant_revoked",
        ),
        (
            seller,
            ended,
            on(&offer, "counter"),
            terms(55_000),
            403,
            "forbid;action=\"offer.counter\";reason=grant_expired",
            "grant_expired",
        ),
        (
            seller,
            revoked,
            on(&offer, "decline"),
            none.clone(),
            403,
            "forbid;reason=grant_revoked",
            "grant_revoked",
        ),
        (
            seller,
            own,
            "/offers".into(),
            offer_body(FLOOR),
            403,
            "forbid;action=\"offer.create\";reason=action_forbidden",
            "action_forbidden",
        ),
        (
            buyer,
            None,
            on(&offer, "accept"),
            none.clone(),
            403,
            "forbid;action=\"offer.accept\";reason=action_forbidden",
            "action_forbidden",
        ),
        (
            seller,
            own,
            "/account".into(),
            Value::Null,
            403,
            "forbid;action=\"account.update\";reason=action_forbidden",
            "action_forbidden",
        ),
        (
            buyer,
            None,
            "/offers".into(),
            dollars,
            422,
            "forbid;action=\"offer.create\";reason=terms_invalid",
            "terms_invalid",
        ),
        (
            buyer,
            None,
            "/offers".into(),
            offer_body(FLOOR - 1),
            422,
            "forbid;action=\"offer.create\";reason=below_floor",
            "below_floor",
        ),
        (
            seller,
            own,
            on(&offer, "counter"),
            terms(FLOOR - 1),
            422,
            "forbid;action=\"offer.counter\";reason=below_floor",
            "below_floor",
        ),
        (
            seller,
            own,
            "/listings/lst_bicycle/price".into(),
            json!({"price": {"amount": FLOOR - 1, "currency": CURRENCY}}),
            422,
            "forbid;action=\"listing.reprice\";reason=below_floor",
            "below_floor",
        ),
        (
            seller,
            own,
            on(&countered, "accept"),
            none.clone(),
            409,
            "forbid;action=\"offer.accept\";reason=offer_replayed",
            "offer_replayed",
        ),
        (
            seller,
            own,
            on(&offer, "accept"),
            none.clone(),
            200,
            "auto",
            "",
        ),
        (
            seller,
            own,
            on(&offer, "accept"),
            none.clone(),
            409,
            "forbid;action=\"offer.accept\";reason=offer_replayed",
            "offer_replayed",
        ),
    ];
    for (agent, token, path, body, status, decision, error) in rows {
        let answer = market.post(agent, token, &path, &body, &fresh_key()).await;
        assert_eq!(answer.status, status, "{path}: {}", named(&answer));
        assert_eq!(answer.decision(), decision, "{path}");
        assert_eq!(answer.error(), error, "{path}");
        whole(&answer);
    }
    // A reserved listing, an offer past its time, and one that is now too low.
    let left = market.open_offer(FLOOR + 5).await;
    let reserved = market.accept(&left).await;
    assert_eq!(
        reserved.decision(),
        "forbid;action=\"offer.accept\";reason=listing_reserved"
    );
    assert_eq!(reserved.status, 409);
    whole(&reserved);
    market.clock.advance(1800);
    let expired = market.accept(&offer).await;
    assert_eq!(
        expired.decision(),
        "forbid;action=\"offer.accept\";reason=offer_expired"
    );
    assert_eq!(expired.status, 409);
    whole(&expired);
    // The floor has risen since it was offered (V1).
    let risen = |private: &mut Value| private["floor"]["amount"] = json!(FLOOR + 6);
    market.change(Kind::PrivateTerms, LISTING, risen).await;
    let low = market.accept(&left).await;
    assert_eq!(
        low.decision(),
        "forbid;action=\"offer.accept\";reason=below_floor"
    );
    assert_eq!(low.body["offer_id"], json!(left));
    whole(&low);
    // Reads decide nothing.
    for path in [
        "/listings/lst_bicycle".to_owned(),
        format!("/offers/{offer}"),
    ] {
        let read = market.buyer_get(&path).await;
        assert_eq!((read.status, read.decision()), (200, ""));
    }
}

fn hash_of(value: &Value) -> String {
    let digest = sha256(&jcs::canonical(value).unwrap());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha-256:{hex}")
}

/// What every answer of the stack must be, whatever it says.
fn whole(answer: &Answer) {
    let what = named(answer);
    assert_eq!(answer.headers["content-type"], "application/json", "{what}");
    assert_eq!(answer.headers["cache-control"], "no-store", "{what}");
    let answered = answer.extensions.get::<Answered>().unwrap();
    let decision = answer.decision();
    match answer.status {
        200 | 201 => assert_eq!(decision, "auto", "{what}"),
        202 => fits("approval-request", &answer.body["approval_request"]),
        _ => {
            fits("error", &answer.body);
            let refused = answered.refused.unwrap();
            assert_eq!(refused.as_str(), answer.error(), "{what}");
            assert_eq!(
                matches!(refused, Code::Reason(_)),
                !decision.is_empty(),
                "{what}"
            );
        }
    }
    let challenged = answer.headers.contains_key("www-authenticate");
    assert_eq!(challenged, answer.status == 401, "{what}");
    let retry = answer
        .headers
        .get("retry-after")
        .map(|v| v.to_str().unwrap().to_owned());
    let stated = answer.body.get("retry_after").map(Value::to_string);
    assert_eq!(retry, stated, "{what}");
    if !decision.is_empty() {
        // The header is the decision that the other layers see.
        let parsed: Decision = decision.parse().unwrap();
        assert_eq!(answered.decision.as_ref(), Some(&parsed), "{what}");
        fits("decision", &json!(parsed));
    }
}

async fn an_ask_says_what_the_seller_approves(backing: Backing) {
    let market = Market::with(backing, Tier::Ask, |b| b).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let other = market.open_offer(FLOOR + 2).await;
    let floor = json!({"floor": {"amount": 77_777, "currency": CURRENCY}});
    let mut proposing = listing_request();
    proposing["proposed_terms"] = floor.clone();
    let price = json!({"amount": 59_000, "currency": CURRENCY});
    let question = json!({"text": "Has it a bell?"});
    let asked = market.buyer_post("/listings/lst_bicycle/questions", &question);
    let question = asked.await.get("question_id");
    let answer = json!({"question_id": question, "text": "It has a bell."});
    let subject = |kind: &str, id: &str| json!({"type": kind, "id": id});
    // The verb, where, the body; the subject and what else is in the details; what the page shows beside the rest.
    let rows: Vec<(Verb, String, Value, Value, Value, Value)> = vec![
        (
            Verb::OfferAccept,
            format!("/offers/{offer}/accept"),
            json!({}),
            subject("offer", &offer),
            json!({"deal_terms": deal_terms(FLOOR + 1)}),
            json!({"deal_terms": deal_terms(FLOOR + 1)}),
        ),
        (
            Verb::OfferCounter,
            format!("/offers/{other}/counter"),
            json!({"deal_terms": deal_terms(55_000)}),
            subject("offer", &other),
            json!({"deal_terms": deal_terms(55_000)}),
            json!({"deal_terms": deal_terms(55_000)}),
        ),
        (
            Verb::ListingReprice,
            "/listings/lst_bicycle/price".into(),
            json!({"price": price}),
            subject("listing", LISTING),
            json!({"price": price}),
            json!({"price": price}),
        ),
        (
            Verb::ListingAnswerBuyer,
            "/listings/lst_bicycle/answers".into(),
            answer,
            subject("listing", LISTING),
            json!({}),
            json!({"question": "Has it a bell?", "answer": "It has a bell."}),
        ),
        (
            Verb::ListingSetTerms,
            "/listings/lst_bicycle/terms".into(),
            json!({"proposed_terms": floor}),
            subject("listing", LISTING),
            json!({"term_set": "goods-1"}),
            json!({}),
        ),
        (
            Verb::ListingCreate,
            "/listings".into(),
            proposing,
            Value::Null,
            json!({"term_set": "goods-1"}),
            json!({"title": "A tandem", "list_price": {"amount": 90_000, "currency": CURRENCY}}),
        ),
    ];
    let mut nonces = HashSet::new();
    for (verb, path, body, subject, more, shown) in rows {
        let asked = market.seller_post(&path, &body).await;
        assert_eq!(asked.status, 202, "{verb}: {}", named(&asked));
        whole(&asked);
        assert_eq!(asked.body.as_object().unwrap().len(), 1, "{verb}");
        let request = &asked.body["approval_request"];
        let id = request["approval_id"].as_str().unwrap();
        let stated = format!("ask;approval_id=\"{id}\";expires_in=900;on_timeout=deny");
        assert_eq!(asked.decision(), stated, "{verb}");
        let details = &request["authorization_details"][0];
        let nonce = details["nonce"].as_str().unwrap();
        assert!(nonces.insert(nonce.to_owned()));
        let ends = json!(Timestamp::from_secs(NOW + 900));
        let mut expected = json!({
            "type": "dev.rctp.approval",
            "approval_id": id,
            "nonce": nonce,
            "action": verb,
            "subject": subject,
            "expires_at": ends,
        });
        // R28: what the agent proposes in private is in no hash that anyone sees.
        let mut asked_for = body.clone();
        asked_for.as_object_mut().unwrap().remove("proposed_terms");
        expected["request_hash"] = json!(hash_of(&asked_for));
        let mut display = json!({
            "operator": market.seller.profile,
            "agent": market.seller.kid(),
            "legal_entity": "seller AG",
            "title": "A bicycle",
            "list_price": {"amount": 60_000, "currency": CURRENCY},
        });
        for (name, value) in shown.as_object().unwrap() {
            display[name] = value.clone();
        }
        if subject.is_null() {
            let listing = details["subject"]["id"].as_str().unwrap();
            assert!(listing.starts_with("lst_"));
            expected["subject"] = json!({"type": "listing", "id": listing});
        }
        for (name, value) in more.as_object().unwrap() {
            expected[name] = value.clone();
        }
        assert_eq!(details, &expected, "{verb}");
        let mut whole_request = json!({
            "approval_id": id,
            "action": verb,
            "authorization_details": [expected],
            "display": display,
            "hosted_url": format!("{GATEWAY}/approve/{id}"),
            "expires_at": ends,
        });
        // B-4: the listing verbs get theirs once the seller has filled in the terms.
        if !matches!(verb, Verb::ListingCreate | Verb::ListingSetTerms) {
            let challenge = base64url(&sha256(&jcs::canonical(details).unwrap()));
            whole_request["challenge"] = json!(challenge);
        }
        assert_eq!(request, &whole_request, "{verb}");
        assert!(!asked.body.to_string().contains("77777"), "{verb}");
        let approval = market.stored(Kind::Approval, id).await.unwrap();
        let approval: Value = serde_json::from_slice(&approval.body).unwrap();
        assert_eq!(approval["body"], body, "parked exactly as it was asked");
    }
    for waiting in [&offer, &other] {
        let read = market.buyer_get(&format!("/offers/{waiting}")).await;
        assert_eq!(read.body["state"], "awaiting_approval");
    }
    // The floor comes before the tier: too low is refused, not asked.
    let low = reprice(&market, LISTING, FLOOR - 1).await;
    assert_eq!(low.refusal(), (422, "below_floor"));
}

#[tokio::test]
async fn the_tier_is_the_grants_within_the_marketplaces_policy() {
    let scope = Verb::OfferAccept.scope().unwrap();
    let only_ask = Tiers::default().offer(Verb::OfferAccept, Tier::Ask, &[Tier::Ask]);
    let forbids = Tiers::default().offer(Verb::OfferAccept, Tier::Ask, &[Tier::Ask, Tier::Forbid]);
    let default_auto =
        Tiers::default().offer(Verb::OfferAccept, Tier::Auto, &[Tier::Auto, Tier::Ask]);
    let table = [
        (
            "as granted",
            Tiers::default(),
            Some(Tier::Auto),
            200,
            "auto",
        ),
        ("as granted", Tiers::default(), Some(Tier::Ask), 202, "ask"),
        ("no longer allowed", only_ask, Some(Tier::Auto), 202, "ask"),
        (
            "forbidden by the seller",
            forbids,
            Some(Tier::Forbid),
            403,
            "forbid",
        ),
        ("nothing granted", Tiers::default(), None, 202, "ask"),
        ("nothing granted", default_auto, None, 200, "auto"),
        (
            "not offered",
            Tiers::default().withhold(Verb::OfferAccept),
            Some(Tier::Auto),
            403,
            "forbid",
        ),
    ];
    for (what, tiers, granted, status, outcome) in table {
        let backing = Backing::memory().await;
        let market = Market::with(backing, Tier::Auto, |b| b.tiers(tiers)).await;
        market.grants.change(SELLER_TOKEN, |i| {
            let tiers = i.authorization_details[0]["tiers"].as_object_mut().unwrap();
            match granted {
                Some(tier) => tiers.insert(scope.to_owned(), json!(tier)),
                None => tiers.remove(scope),
            };
        });
        let offer = market.open_offer(FLOOR + 1).await;
        let answer = market.accept(&offer).await;
        assert_eq!(answer.status, status, "{what}: {}", named(&answer));
        assert!(answer.decision().starts_with(outcome), "{what}");
        if status == 403 {
            assert_eq!(answer.error(), "action_forbidden", "{what}");
        }
    }
}

// ---- The budget -----------------------------------------------------------------------------------------------------

async fn an_exhausted_budget_answers_alike_whatever_is_offered(backing: Backing) {
    let market = Market::on(backing).await;
    let standing = market.open_offer(FLOOR + 5).await;
    for _ in 0..3 {
        assert_eq!(
            market.offer(FLOOR - 1).await.refusal(),
            (422, "below_floor")
        );
    }
    let exhausted = market.offer(FLOOR - 1).await;
    assert_eq!(exhausted.refusal(), (429, "offer_budget_exhausted"));
    let stated = "forbid;action=\"offer.create\";reason=offer_budget_exhausted;retry_after=86400";
    assert_eq!(exhausted.decision(), stated);
    assert_eq!(exhausted.headers["retry-after"], "86400");
    assert_eq!(exhausted.body["retry_after"], 86_400);
    whole(&exhausted);
    // The price, the options, the currency, what it supersedes: none of it changes the answer.
    let with = |pointer: &str, value: Value| {
        let mut body = offer_body(FLOOR - 1);
        *body.pointer_mut(pointer).unwrap() = value;
        body
    };
    let mut superseding = offer_body(FLOOR + 1);
    superseding["supersedes"] = json!(standing);
    let mut ended = offer_body(FLOOR + 1);
    ended["expires_at"] = json!(Timestamp::from_secs(NOW - 1));
    let bodies = [
        offer_body(1),
        offer_body(FLOOR),
        offer_body(FLOOR + 1),
        offer_body((1 << 53) - 1),
        with("/deal_terms/price/currency", json!("USD")),
        with("/deal_terms/fulfillment/selected_option_id", json!("drone")),
        with("/deal_terms/payment/selected_term_id", json!("never")),
        superseding,
        ended,
    ];
    for body in bodies {
        let answer = market.buyer_post("/offers", &body).await;
        assert_eq!(answer.bytes, exhausted.bytes, "{body}");
        assert_eq!(answer.headers, exhausted.headers, "{body}");
    }
    // It binds this agent on this listing, and nobody else.
    market.publish("lst_tandem", SELLER, public_terms()).await;
    let elsewhere = json!({"listing_id": "lst_tandem", "deal_terms": deal_terms(FLOOR)});
    assert_eq!(market.buyer_post("/offers", &elsewhere).await.status, 201);
    for agent in [&market.second, &market.other] {
        let offer = market
            .post(agent, None, "/offers", &offer_body(FLOOR), &fresh_key())
            .await;
        assert_eq!(offer.status, 201, "{}", named(&offer));
    }
    let client = market
        .oauth_post(BUYER_TOKEN, "/offers", &offer_body(FLOOR))
        .await;
    assert_eq!(client.status, 201);
    // What is refused for another reason was never counted: the listing stands open to the seller.
    assert_eq!(market.accept(&standing).await.status, 200);
}

async fn a_budget_frees_its_slots_as_the_window_moves(backing: Backing) {
    let market = Market::on(backing).await;
    let day = 24 * 3600;
    for _ in 0..3 {
        assert_eq!(market.offer(1).await.status, 422);
        market.clock.advance(10);
    }
    // Times 0, 10 and 20; it is 30 now.
    let exhausted = market.offer(1).await;
    assert_eq!(exhausted.body["retry_after"], day - 30);
    market.clock.advance(day - 31);
    let last = market.offer(FLOOR + 1).await;
    assert_eq!(last.refusal(), (429, "offer_budget_exhausted"));
    assert_eq!(last.headers["retry-after"], "1");
    market.clock.advance(1);
    market.rctp.sweep().await.unwrap();
    // The first has left the window: one slot.
    assert_eq!(market.offer(1).await.refusal(), (422, "below_floor"));
    let next = market.offer(1).await;
    assert_eq!(next.refusal(), (429, "offer_budget_exhausted"));
    assert_eq!(next.body["retry_after"], 10);
    market.clock.advance(10);
    assert_eq!(market.offer(FLOOR + 1).await.status, 201);
    assert_eq!(market.offer(1).await.status, 422);
}

#[tokio::test]
async fn retry_after_is_when_the_later_of_the_exhausted_counts_frees_a_slot() {
    let budget = OfferBudget {
        per_agent: 2,
        per_operator: 3,
        ..OfferBudget::default()
    };
    let backing = Backing::memory().await;
    let market = Market::with(backing, Tier::Auto, |b| b.offer_budget(budget)).await;
    let day = 24 * 3600;
    let low = async |agent: &Agent| {
        market
            .post(agent, None, "/offers", &offer_body(1), &fresh_key())
            .await
    };
    // The agent at 0 and 20, its colleague at 10.
    assert_eq!(low(&market.buyer).await.status, 422);
    market.clock.advance(10);
    assert_eq!(low(&market.second).await.status, 422);
    market.clock.advance(10);
    assert_eq!(low(&market.buyer).await.status, 422);
    // The colleague is bound by the operator's count only, which frees at 0 + a day; so does the agent's own.
    assert_eq!(low(&market.second).await.body["retry_after"], day - 20);
    assert_eq!(low(&market.buyer).await.body["retry_after"], day - 20);
    market.clock.advance(day - 20);
    // One slot each; the colleague takes the operator's.
    assert_eq!(low(&market.second).await.status, 422);
    // The operator's next frees at 10, the agent's own is free.
    assert_eq!(low(&market.buyer).await.body["retry_after"], 10);
    market.clock.advance(10);
    assert_eq!(low(&market.buyer).await.status, 422);
    // Now the agent has 20 and this one, the operator 20, 0' and this one: both free at 20.
    assert_eq!(low(&market.buyer).await.body["retry_after"], 10);
}

async fn the_sellers_side_cannot_probe_the_floor_either(backing: Backing) {
    let market = Market::on(backing).await;
    let open = market.open_offer(FLOOR + 1).await;
    for n in 0..10 {
        let low = match n % 2 {
            0 => reprice(&market, LISTING, FLOOR - 1).await,
            _ => counter(&market, &open, FLOOR - 1).await,
        };
        assert_eq!(low.refusal(), (422, "below_floor"), "{n}");
    }
    // Every price is answered alike from now on, by every way of naming one.
    for amount in [1, FLOOR - 1, FLOOR, FLOOR + 1, 59_000] {
        let repriced = reprice(&market, LISTING, amount).await;
        assert_eq!(
            repriced.refusal(),
            (429, "offer_budget_exhausted"),
            "{amount}"
        );
        let stated =
            "forbid;action=\"listing.reprice\";reason=offer_budget_exhausted;retry_after=86400";
        assert_eq!(repriced.decision(), stated);
        whole(&repriced);
        let countered = counter(&market, &open, amount).await;
        assert_eq!(
            countered.refusal(),
            (429, "offer_budget_exhausted"),
            "{amount}"
        );
    }
    let accepted = market.accept(&open).await;
    assert_eq!(accepted.refusal(), (429, "offer_budget_exhausted"));
    // By another grant or mechanism of the seller's: the count is the seller's on that listing.
    let body = json!({"price": {"amount": FLOOR, "currency": CURRENCY}});
    let unsigned = market
        .oauth_post(SELLER_UNBOUND, "/listings/lst_bicycle/price", &body)
        .await;
    assert_eq!(unsigned.refusal(), (429, "offer_budget_exhausted"));
    market.publish("lst_tandem", SELLER, public_terms()).await;
    // Another listing of theirs has a floor and a count of its own, so one bad agent does not stop the next.
    let elsewhere = reprice(&market, "lst_tandem", FLOOR - 1).await;
    assert_eq!(elsewhere.refusal(), (422, "below_floor"));
    // The buyers' budget is none of it.
    assert_eq!(
        market.offer(FLOOR - 1).await.refusal(),
        (422, "below_floor")
    );
    assert_eq!(market.offer(FLOOR + 1).await.status, 201);
    // Nor does what names no price spend or need it.
    let decline = format!("/offers/{open}/decline");
    assert_eq!(market.seller_post(&decline, &json!({})).await.status, 200);
    market.clock.advance(24 * 3600);
    assert_eq!(reprice(&market, LISTING, FLOOR - 1).await.status, 422);
}

// ---- Closed bodies --------------------------------------------------------------------------------------------------

/// A body that satisfies the schema of an operation, and its path.
fn bodies(offer: &str, deal: &str) -> Vec<(Op, String, Value)> {
    let on = |path: &str| path.replace("{offer}", offer).replace("{deal}", deal);
    let terms = json!({"deal_terms": deal_terms(FLOOR + 1)});
    let mut proposing = listing_request();
    proposing["proposed_terms"] = json!({"deliver_within_days": 3});
    vec![
        (Op::CreateListing, on("/listings"), proposing),
        (
            Op::SetListingTerms,
            on("/listings/lst_bicycle/terms"),
            json!({"proposed_terms": {"deliver_within_days": 3}}),
        ),
        (
            Op::RepriceListing,
            on("/listings/lst_bicycle/price"),
            json!({"price": {"amount": 59_000, "currency": CURRENCY}}),
        ),
        (
            Op::AskQuestion,
            on("/listings/lst_bicycle/questions"),
            json!({"text": "Has it a bell?"}),
        ),
        (
            Op::AnswerBuyer,
            on("/listings/lst_bicycle/answers"),
            json!({"question_id": "qst_1", "text": "It has."}),
        ),
        (Op::CreateOffer, on("/offers"), offer_body(FLOOR + 1)),
        (Op::CounterOffer, on("/offers/{offer}/counter"), terms),
        (Op::AcceptOffer, on("/offers/{offer}/accept"), json!({})),
        (Op::DeclineOffer, on("/offers/{offer}/decline"), json!({})),
        (
            Op::CreateDeal,
            on("/deals"),
            json!({"checkout": "e30.e30.AA"}),
        ),
        (
            Op::PostDealEvent,
            on("/deals/{deal}/events"),
            json!({"event": "e30.e30.AA"}),
        ),
        (
            Op::CommitToShip,
            on("/deals/{deal}/commit-to-ship"),
            json!({}),
        ),
    ]
}

/// The agent that may call the operation, with its token.
fn caller(market: &Market, op: Op) -> (&Agent, Option<&'static str>) {
    match op {
        Op::AskQuestion | Op::CreateOffer | Op::CreateDeal | Op::PostDealEvent => {
            (&market.buyer, None)
        }
        _ => (&market.seller, Some(SELLER_TOKEN)),
    }
}

#[tokio::test]
async fn inv_5_a_body_is_its_schema_and_nothing_more() {
    let market = Market::on(Backing::memory().await).await;
    let won = market.open_offer(FLOOR + 1).await;
    let checkout = market.accept(&won).await.get("checkout");
    let deal = market
        .buyer_post("/deals", &json!({"checkout": checkout}))
        .await;
    let deal = deal.get("deal_id");
    market
        .change(Kind::Listing, LISTING, |listing: &mut Listing| {
            listing.state = ListingState::Active;
        })
        .await;
    let offer = market.open_offer(FLOOR + 1).await;
    let commits = market.store.commits();
    let rows = bodies(&offer, &deal);
    // All but the browser's.
    let schemas = TABLE
        .iter()
        .filter(|row| row.writes() && row.body.is_some() && row.side != Side::Browser);
    assert_eq!(
        rows.len(),
        schemas.count(),
        "every operation that takes a body"
    );
    for (op, path, body) in &rows {
        let (agent, token) = caller(&market, *op);
        let send = async |bytes: Vec<u8>, content_type: &str, key: &str| {
            let mut request = signed(agent, token, path, body, key);
            *request.body_mut() = Bytes::from(bytes);
            let headers = request.headers_mut();
            headers.insert("content-type", content_type.parse().unwrap());
            headers.remove("content-digest");
            agent.signer.sign(&mut request).unwrap();
            market.send(request).await
        };
        let refused = |answer: &Answer, what: &str| {
            assert_eq!(answer.refusal(), (400, "invalid_request"), "{op:?}, {what}");
            assert_eq!(answer.decision(), "", "{op:?}, {what}");
            assert!(!answer.body.to_string().contains("31337"), "{op:?}, {what}");
            fits("error", &answer.body);
        };
        let json = "application/json";
        let key = fresh_key();
        // `proposed_terms` is known on the two listing routes alone, and takes no value of these forms there.
        for member in [
            "floor",
            "tier",
            "proposed_terms",
            "approved",
            "decision",
            "seller",
            "31337",
        ] {
            for value in [
                json!("auto"),
                json!({"amount": 31_337, "currency": CURRENCY}),
            ] {
                let mut more = body.clone();
                more[member] = value;
                let bytes = serde_json::to_vec(&more).unwrap();
                refused(&send(bytes, json, &key).await, member);
            }
        }
        for inner in [
            "/deal_terms",
            "/deal_terms/price",
            "/price",
            "/list_price",
            "/proposed_terms",
        ] {
            let mut more = body.clone();
            let Some(object) = more.pointer_mut(inner) else {
                continue;
            };
            let member = if inner == "/proposed_terms" {
                "tier"
            } else {
                "floor"
            };
            object[member] = json!(31_337);
            let bytes = serde_json::to_vec(&more).unwrap();
            refused(&send(bytes, json, &key).await, inner);
        }
        let text = body.to_string();
        let twice = format!("{{\"floor\":1,{}", &text[1..]).replace(",}", "}");
        let doubled = match body.as_object().unwrap().iter().next() {
            Some((name, value)) => format!("{{\"{name}\":{value},{}", &text[1..]),
            None => "{\"a\":1,\"a\":1}".to_owned(),
        };
        for (what, bytes) in [
            ("a member more, first", twice.into_bytes()),
            ("a member twice", doubled.into_bytes()),
            ("an array", format!("[{text}]").into_bytes()),
            ("two values", format!("{text}{text}").into_bytes()),
            ("cut off", text.as_bytes()[..text.len() - 1].to_vec()),
            ("no UTF-8", vec![b'{', b'"', 0xff, b'"', b':', b'1', b'}']),
            (
                "a byte order mark",
                [b"\xef\xbb\xbf", text.as_bytes()].concat(),
            ),
            ("null", b"null".to_vec()),
            ("text", b"31337".to_vec()),
        ] {
            refused(&send(bytes, json, &key).await, what);
        }
        for content_type in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonp",
        ] {
            refused(
                &send(text.clone().into_bytes(), content_type, &key).await,
                content_type,
            );
        }
        // None of it took the key: the body as it should be is understood under it.
        let answer = send(text.into_bytes(), "application/json; charset=utf-8", &key).await;
        assert_ne!(answer.status, 400, "{op:?}: {}", named(&answer));
    }
    let gateway = market.gateway_chain().await.len();
    assert!(market.store.commits() - commits <= rows.len(), "{gateway}");
}

#[tokio::test]
async fn what_takes_no_body_takes_none() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.open_offer(FLOOR + 1).await;
    // An empty object may be left out.
    let path = format!("/offers/{offer}/accept");
    let accepted = market.seller_post(&path, &Value::Null).await;
    assert_eq!(accepted.status, 200, "{}", named(&accepted));
    // What is not empty may not.
    let missing = market.buyer_post("/offers", &Value::Null).await;
    assert_eq!(missing.refusal(), (400, "invalid_request"));
    let mut request = get("/listings/lst_bicycle");
    *request.body_mut() = Bytes::from_static(b"{}");
    market.buyer.signer.sign(&mut request).unwrap();
    let read = market.send(request).await;
    assert_eq!(read.refusal(), (400, "invalid_request"));
}

// ---- Version, size, routes ------------------------------------------------------------------------------------------

#[tokio::test]
async fn another_version_is_refused_before_anything_is_done() {
    let market = Market::on(Backing::memory().await).await;
    let current = format!("\"{VERSION}\"");
    let table: [(&[&str], bool); 11] = [
        (&[], true),
        (&[&current], true),
        (&[" \"2026-11-draft5\" "], true),
        (&["\"2026-11-draft4\""], false),
        (&["\"2026-11-draft6\""], false),
        (&["2026-11-draft5"], false),
        (&["draft5"], false),
        (&[""], false),
        (&["\"2026-11-draft5"], false),
        (&["\"2026-11-draft5\", \"2026-11-draft4\""], false),
        (&[&current, &current], false),
    ];
    for (versions, served) in table {
        let key = fresh_key();
        let send = async |versions: &[&str]| {
            let mut request = post("/offers", &offer_body(FLOOR + 1));
            let headers = request.headers_mut();
            headers.insert("idempotency-key", key.parse().unwrap());
            for version in versions {
                headers.append("rctp-version", version.parse().unwrap());
            }
            market.buyer.signer.sign(&mut request).unwrap();
            market.send(request).await
        };
        let answer = send(versions).await;
        if served {
            assert_eq!(answer.status, 201, "{versions:?}: {}", named(&answer));
            continue;
        }
        assert_eq!(
            answer.refusal(),
            (400, "unsupported_version"),
            "{versions:?}"
        );
        assert_eq!(answer.decision(), "", "{versions:?}");
        assert!(answer.get("message").contains(VERSION));
        assert_eq!(send(&[]).await.status, 201, "the key is free");
    }
    // A stranger learns no version.
    let mut request = post("/offers", &offer_body(FLOOR + 1));
    let headers = request.headers_mut();
    headers.insert("rctp-version", "\"1\"".parse().unwrap());
    assert_eq!(market.send(request).await.status, 401);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_and_one_at_it_is_read() {
    let market = Market::on(Backing::memory().await).await;
    let padded = |bytes: usize| {
        let text = offer_body(FLOOR + 1).to_string();
        let mut request = signed(
            &market.buyer,
            None,
            "/offers",
            &offer_body(FLOOR + 1),
            &fresh_key(),
        );
        let spaces = " ".repeat(bytes - text.len());
        *request.body_mut() = Bytes::from(text + &spaces);
        request.headers_mut().remove("content-digest");
        market.buyer.signer.sign(&mut request).unwrap();
        request
    };
    let at = market.send(padded(BODY_LIMIT)).await;
    assert_eq!(at.status, 201, "{}", named(&at));
    let over = market.send(padded(BODY_LIMIT + 1)).await;
    assert_eq!(over.refusal(), (413, "invalid_request"));
    assert_eq!(over.decision(), "");
    fits("error", &over.body);
    // A stranger's too, before it is read to its end, declared or not.
    let mut unsigned = padded(BODY_LIMIT + 1);
    unsigned.headers_mut().remove("signature");
    assert_eq!(market.send(unsigned).await.status, 413);
    let framed = async |next: Box<dyn FnMut() -> Option<io::Result<Bytes>> + Send>| {
        let (parts, _) = padded(2000).into_parts();
        let request = Request::from_parts(parts, Body::new(Frames(next)));
        let response = market.service.clone().oneshot(request).await.unwrap();
        response.status().as_u16()
    };
    let endless = || Some(Ok(Bytes::from_static(&[b' '; 64 * 1024])));
    assert_eq!(framed(Box::new(endless)).await, 413);
    // A body that breaks off is no request.
    let broken = || Some(Err(io::Error::other("the client hung up")));
    assert_eq!(framed(Box::new(broken)).await, 400);
    // In several frames, it is the same body.
    let whole = padded(2000).into_body();
    let mut frames = (0..286).map(move |n| Ok(whole.slice(n * 7..whole.len().min(n * 7 + 7))));
    assert_eq!(framed(Box::new(move || frames.next())).await, 201);

    let small = market.beside(market.backing.store.clone(), |b| b.body_limit(299));
    let small = around(&small, small.market());
    let answer = send_to(&small, padded(300)).await;
    assert_eq!(answer.refusal(), (413, "invalid_request"));
    // Under the table alone: the rest of the site has limits of its own.
    let mut elsewhere = post("/upload", &Value::Null);
    *elsewhere.body_mut() = Bytes::from(vec![b'x'; 1000]);
    assert_eq!(send_to(&small, elsewhere).await.status, 404);
}

/// A body of these frames.
struct Frames<F>(F);

impl<F: FnMut() -> Option<io::Result<Bytes>> + Unpin> http_body::Body for Frames<F> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = (self.0)();
        Poll::Ready(next.map(|bytes| bytes.map(Frame::data)))
    }
}

#[tokio::test]
async fn unknown_routes_are_404_to_those_who_are_known() {
    let market = Market::on(Backing::memory().await).await;
    let request = |method: &str, path: &str| {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{GATEWAY}{path}"))
            .body(Bytes::new())
            .unwrap();
        let headers = request.headers_mut();
        headers.insert("idempotency-key", fresh_key().parse().unwrap());
        request
    };
    for (method, path) in [
        ("GET", "/offers/"),
        ("GET", "/offers/off_1/accept"),
        ("PUT", "/offers/off_1"),
        ("DELETE", "/listings/lst_bicycle"),
        ("PATCH", "/listings/lst_bicycle"),
        ("HEAD", "/listings/lst_bicycle"),
        ("OPTIONS", "/offers"),
        ("POST", "/listings/lst_bicycle"),
        ("POST", "/deals/deal_1/contracts"),
        ("GET", "/listings"),
        ("GET", "/listings/bicycle"),
        ("GET", "/Listings/lst_bicycle"),
        ("GET", "/%6cistings/lst_bicycle"),
        ("GET", "/listings/lst_bicycle%2f"),
        ("GET", "//listings/lst_bicycle"),
    ] {
        let nobody = market.send(request(method, path)).await;
        assert_eq!(nobody.status, 401, "{method} {path}");
        let mut known = request(method, path);
        market.buyer.signer.sign(&mut known).unwrap();
        let known = market.send(known).await;
        assert_eq!(known.refusal(), (404, "not_found"), "{method} {path}");
        assert_eq!(known.decision(), "", "{method} {path}");
    }
}

// ---- The floor ------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn v1_an_offer_below_the_floor_is_not_accepted_whatever_the_tier() {
    for (tier, above) in [(Tier::Auto, 200), (Tier::Ask, 202), (Tier::Forbid, 403)] {
        let all = [Tier::Auto, Tier::Ask, Tier::Forbid];
        let tiers = Tiers::default().offer(Verb::OfferAccept, Tier::Ask, &all);
        let backing = Backing::memory().await;
        let market = Market::with(backing, tier, |b| b.tiers(tiers)).await;
        // The seller's floor was lower when it was offered.
        let (low, at) = (
            market.open_offer(FLOOR).await,
            market.open_offer(FLOOR + 1).await,
        );
        let risen = |private: &mut Value| private["floor"]["amount"] = json!(FLOOR + 1);
        market.change(Kind::PrivateTerms, LISTING, risen).await;
        for _ in 0..2 {
            let refused = market.accept(&low).await;
            assert_eq!(refused.refusal(), (422, "below_floor"), "{tier:?}");
            let stated = "forbid;action=\"offer.accept\";reason=below_floor";
            assert_eq!(refused.decision(), stated, "{tier:?}");
        }
        let read = market.buyer_get(&format!("/offers/{low}")).await;
        assert_eq!(
            read.get("state"),
            "open",
            "neither carried out nor asked for"
        );
        // The floor itself is a price.
        assert_eq!(market.accept(&at).await.status, above, "{tier:?}");
    }
}

// ---- Fixed forbids --------------------------------------------------------------------------------------------------

async fn inv_3_the_two_verbs_that_nobody_may_do_are_refused_right_after_the_grant(
    backing: Backing,
) {
    let market = Market::on(backing).await;
    let won = market.open_offer(FLOOR + 1).await;
    let checkout = market.accept(&won).await.get("checkout");
    let deal = market
        .buyer_post("/deals", &json!({"checkout": checkout}))
        .await;
    let deal = deal.get("deal_id");
    // Scopes of their own would change nothing.
    market.grants.change(SELLER_TOKEN, |i| {
        let scope = i.scope.as_mut().unwrap();
        scope.push_str(" dev.rctp.deal:deal_sign_contract dev.rctp.account:account_update");
    });
    let contract = format!("/deals/{deal}/contract");
    let verbs = [
        ("deal.sign_contract", &*contract),
        ("account.update", "/account"),
    ];
    for (verb, path) in verbs {
        let refused = |answer: &Answer, what: &str| {
            assert_eq!(
                answer.refusal(),
                (403, "action_forbidden"),
                "{verb}, {what}"
            );
            let stated = format!("forbid;action=\"{verb}\";reason=action_forbidden");
            assert_eq!(answer.decision(), stated, "{verb}, {what}");
        };
        let bodies: [(&str, &[u8], &str); 6] = [
            ("nothing", b"", "application/json"),
            ("an object", b"{}", "application/json"),
            ("another object", b"{\"tier\":\"auto\"}", "application/json"),
            ("no JSON", b"{{{", "application/json"),
            ("no UTF-8", b"\xff\xfe", "text/plain"),
            ("much", &[b'x'; BODY_LIMIT], "application/octet-stream"),
        ];
        let key = fresh_key();
        for (what, body, content_type) in bodies {
            let mut request = with_token(post(path, &Value::Null), SELLER_TOKEN);
            *request.body_mut() = Bytes::from_static(Box::leak(body.to_vec().into_boxed_slice()));
            let headers = request.headers_mut();
            headers.insert("content-type", content_type.parse().unwrap());
            headers.insert("idempotency-key", key.parse().unwrap());
            market.seller.signer.sign(&mut request).unwrap();
            // The same key each time: nothing is looked up.
            refused(&market.send(request).await, what);
        }
        // Unsigned, without a key.
        let unsigned = with_token(post(path, &json!([])), SELLER_UNBOUND);
        refused(&market.send(unsigned).await, "without a key");
        // The store of keys may be down, the record may not.
        market.store.take_down(Call::Used);
        refused(&market.seller_post(path, &json!({})).await, "no lookup");
        market.store.take_down(Call::Commit);
        let down = market.seller_post(path, &json!({})).await;
        assert_eq!(down.refusal(), (503, "unavailable"), "{verb}");
        market.store.mend();
        // The grant comes first.
        let without = market
            .post(&market.seller, None, path, &json!({}), &fresh_key())
            .await;
        assert_eq!(without.refusal(), (401, "grant_invalid"), "{verb}");
    }
    market.grants.revoke(SELLER_UNBOUND);
    let revoked = market.send(with_token(post("/account", &json!({})), SELLER_UNBOUND));
    assert_eq!(revoked.await.refusal(), (403, "grant_revoked"));

    // Each was recorded, in the deal's chain and the gateway's.
    let count = |entries: &[Value], verb: &str, reason: &str| {
        let of = |e: &&Value| e["action"] == verb && e["decision"]["reason"] == reason;
        entries.iter().filter(of).count()
    };
    let chain = market.chain(SubjectKind::Deal, &deal).await;
    assert_eq!(count(&chain, "deal.sign_contract", "action_forbidden"), 8);
    let gateway = market.gateway_chain().await;
    assert_eq!(count(&gateway, "account.update", "action_forbidden"), 8);
    assert_eq!(count(&gateway, "account.update", "grant_revoked"), 1);
    assert_eq!(count(&gateway, "account.update", "grant_invalid"), 1);
    assert_eq!(count(&gateway, "deal.sign_contract", "grant_invalid"), 1);
    // On a deal that is not the seller's, or not there, into the gateway's.
    let stranger = grant(
        "sub_stranger",
        "client-seller",
        Some(market.seller.kid()),
        Tier::Auto,
        NOW + 900,
    );
    market.grants.set("token-stranger", stranger);
    for path in [&*contract, "/deals/deal_unknown/contract"] {
        let answer = market
            .post(
                &market.seller,
                Some("token-stranger"),
                path,
                &json!({}),
                &fresh_key(),
            )
            .await;
        assert_eq!(answer.refusal(), (403, "action_forbidden"));
    }
    assert_eq!(
        market.chain(SubjectKind::Deal, &deal).await.len(),
        chain.len()
    );
    let gateway = market.gateway_chain().await;
    assert_eq!(count(&gateway, "deal.sign_contract", "action_forbidden"), 2);
}

// ---- The canary -----------------------------------------------------------------------------------------------------

/// The seller's floor, and one that its agent proposes. Neither number comes about by chance.
const CANARY: u64 = 7_318_254_906;
const PROPOSED: u64 = 8_429_365_017;

/// Everything that anybody but the seller could get to see.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashSet<String>>>);

impl Seen {
    fn add(&self, what: &str, text: impl std::fmt::Display) {
        self.0.lock().unwrap().insert(format!("{what}: {text}"));
    }

    fn answer(&self, what: &str, answer: &Answer) {
        self.add(what, answer.status);
        self.add(what, format!("{:?}", answer.headers));
        self.add(what, String::from_utf8_lossy(&answer.bytes));
        let extensions = &answer.extensions;
        self.add(what, format!("{extensions:?}"));
        self.add(what, format!("{:?}", extensions.get::<Answered>()));
        self.add(
            what,
            format!(
                "{:?} {:#?}",
                extensions.get::<Refusal>(),
                extensions.get::<Decision>()
            ),
        );
        if let Some(refusal) = extensions.get::<Refusal>() {
            self.add(what, refusal);
        }
    }

    /// What a handler inside the stack can print.
    fn request(&self, request: &Request<Body>) {
        let extensions = request.extensions();
        self.add("a handler", format!("{request:?} {extensions:?}"));
        self.add("a handler", format!("{:#?}", extensions.get::<Arrived>()));
        self.add("a handler", format!("{:#?}", extensions.get::<Caller>()));
        self.add("a handler", format!("{:#?}", extensions.get::<Grant>()));
        self.add("a handler", format!("{:#?}", extensions.get::<Decided>()));
        let held = format!("{:#?}", extensions.get::<Held>());
        assert!(
            !held.contains("digest"),
            "a hash of the body, without salt: {held}"
        );
        self.add("a handler", held);
        if let Some(decided) = extensions.get::<Decided>() {
            let facts = decided.facts();
            self.add("a handler", format!("{:#?}", facts.requested));
            self.add(
                "a handler",
                format!("{:#?} {:#?}", facts.listing, facts.offer),
            );
            self.add(
                "a handler",
                format!("{:#?} {:#?}", facts.deal, facts.approval),
            );
        }
    }

    fn tells(&self, number: u64) -> Vec<String> {
        // Digits, in bytes as `Debug` writes arrays of them, and in hex.
        let digits = number.to_string();
        let bytes = format!("{:?}", digits.as_bytes());
        let bytes = bytes.trim_matches(['[', ']']).to_owned();
        let lines = bytes.replace(", ", ",\n");
        let forms = [digits, format!("{number:x}"), bytes, lines];
        let seen = self.0.lock().unwrap();
        let tells = seen.iter().filter(|text| {
            let close = text.replace(['_', '\''], "");
            forms.iter().any(|form| close.contains(form.as_str()))
        });
        tells.cloned().collect()
    }
}

async fn inv_1_the_floor_is_nowhere_but_in_the_stores_private_documents(backing: Backing) {
    let (logs, listening) = Logs::listen();
    let seen = Seen::default();
    let mut outcomes = HashSet::new();
    let market = Market::on(backing).await;
    market.store.remember();
    let store = Arc::new(market.store.clone());
    // Every commit to a file waits for the disk; a part of one round is enough there.
    let in_memory = market.backing.in_memory();
    let rounds = if in_memory { 3 } else { 1 };
    for (n, tier) in [Tier::Auto, Tier::Ask, Tier::Forbid]
        .into_iter()
        .take(rounds)
        .enumerate()
    {
        let tiers = Verb::GRANTED
            .into_iter()
            .fold(Tiers::none(), |tiers, verb| {
                let allowed: &[Tier] = match verb {
                    Verb::ListingSetTerms => &[Tier::Ask, Tier::Forbid],
                    _ => &[Tier::Auto, Tier::Ask, Tier::Forbid],
                };
                tiers.offer(verb, Tier::Ask, allowed)
            });
        let exp = NOW + 100_000_000;
        let jkt = Some(market.seller.kid());
        market
            .grants
            .set(SELLER_TOKEN, grant(SELLER, "client-seller", jkt, tier, exp));
        market.grants.set(
            SELLER_UNBOUND,
            grant(SELLER, "client-seller", None, tier, exp),
        );
        let rctp = market.beside(store.clone(), |b| b.tiers(tiers));
        let (inner, eyes) = (rctp.market(), seen.clone());
        let service = around(
            &rctp,
            service_fn(move |request: Request<Body>| {
                eyes.request(&request);
                inner.oneshot(request)
            }),
        );
        let listing = format!("lst_canary{n}");
        let floor = Floor::new(Money::new(CANARY, CURRENCY));
        let private = PrivateTerms::new(Some(floor), [3; 16]);
        let mut for_sale = common::listing(&listing, SELLER);
        for_sale.list_price = Money::new(9_999_999_999, CURRENCY);
        rctp.publish(for_sale, public_terms(), &private)
            .await
            .unwrap();
        seen.add(
            "rctp",
            format!("{rctp:?} {:?} {}", rctp.policy(), rctp.profile()),
        );
        let scene = Scene {
            market: &market,
            service: &service,
            seen: &seen,
            listing: &listing,
            every: if in_memory { 1 } else { 5 },
        };
        scene.play(&mut outcomes).await;
    }
    drop(listening);
    let units = market.store.units();
    let subjects: HashSet<Subject> = units
        .iter()
        .flat_map(|unit| unit.entries.iter().map(|entry| entry.subject.clone()))
        .collect();
    for subject in &subjects {
        for entry in market.rctp.record(subject).await.unwrap() {
            fits("attestation-entry", &entry);
            seen.add("the record", &entry);
        }
    }
    let kinds: HashSet<_> = subjects.iter().map(|subject| subject.kind).collect();
    assert_eq!(kinds.len(), 4, "{kinds:?}");
    seen.add("the log", logs.text());
    assert!(logs.text().lines().count() > 5, "{}", logs.text());
    for expected in [200, 201, 202, 400, 401, 403, 404, 409, 413, 422, 429, 503] {
        assert!(outcomes.contains(&expected), "{expected}: {outcomes:?}");
    }
    for number in [CANARY, PROPOSED] {
        let tells = seen.tells(number);
        assert!(
            tells.is_empty(),
            "{} tell, such as {}",
            tells.len(),
            tells[0]
        );
    }
    // In the store, only the documents that are private hold them: not the stored answers, nor anything else.
    for (number, kind) in [(CANARY, "private_terms"), (PROPOSED, "approval")] {
        let digits = number.to_string();
        let holds = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(&digits);
        let puts = units.iter().flat_map(|unit| &unit.put);
        let holders: BTreeSet<&str> = puts
            .filter(|put| holds(&put.body) || holds(put.key.id.as_bytes()))
            .map(|put| put.key.kind.as_str())
            .collect();
        assert_eq!(holders, BTreeSet::from([kind]));
        for unit in &units {
            let rest = Unit {
                put: Vec::new(),
                ..unit.clone()
            };
            assert!(!format!("{rest:?}").contains(&digits), "{rest:?}");
            let claim = unit.claim.as_ref().map(|claim| &claim.step);
            if let Some(ClaimStep::Settle(stored) | ClaimStep::Complete(stored)) = claim {
                assert!(!holds(&stored.body), "{stored:?}");
            }
        }
    }
}

/// One listing with the floor, and everything that can be asked of it.
struct Scene<'a> {
    market: &'a Market,
    service: &'a common::Service,
    seen: &'a Seen,
    listing: &'a str,
    /// How many of the requests are sent: all, every second, ….
    every: usize,
}

impl Scene<'_> {
    async fn send(&self, what: &str, request: Request<Bytes>) -> Answer {
        let what = format!("{what} {} {}", request.method(), request.uri().path());
        let answer = send_to(self.service, request).await;
        self.seen.answer(&what, &answer);
        answer
    }

    fn offer(&self, amount: u64) -> Value {
        json!({"listing_id": self.listing, "deal_terms": deal_terms(amount)})
    }

    async fn play(&self, outcomes: &mut HashSet<u16>) {
        let market = self.market;
        let (buyer, seller, own) = (&market.buyer, &market.seller, Some(SELLER_TOKEN));
        // The prices next to the floor are the only ones that are not the agents' own guess.
        let (below, above) = (CANARY - 1, CANARY + 1);
        let mut take = async |what: &str, request| {
            let answer = self.send(what, request).await;
            outcomes.insert(answer.status);
            answer
        };
        let sign = |agent: &Agent, token: Option<&str>, path: &str, body: &Value| {
            signed(agent, token, path, body, &fresh_key())
        };
        // Two offers to act on, and one that is redeemed where that is possible.
        let open = take("an offer", sign(buyer, None, "/offers", &self.offer(above))).await;
        let open = open.get("offer_id");
        let won = take("an offer", sign(buyer, None, "/offers", &self.offer(above))).await;
        let path = format!("/offers/{}/accept", won.get("offer_id"));
        let accepted = take("accepting", sign(seller, own, &path, &json!({}))).await;
        let checkout = json!({"checkout": accepted.get("checkout")});
        let deal = take("redeeming", sign(buyer, None, "/deals", &checkout)).await;
        take("redeeming again", sign(buyer, None, "/deals", &checkout)).await;
        let deal = match deal.get("deal_id") {
            none if none.is_empty() => "deal_1".to_owned(),
            id => id,
        };
        let back = |listing: &mut Listing| listing.state = ListingState::Active;
        market.change(Kind::Listing, self.listing, back).await;

        let proposed = json!({"floor": {"amount": PROPOSED, "currency": CURRENCY}});
        let mut creating = listing_request();
        creating["proposed_terms"] = proposed.clone();
        let mut requests: Vec<(String, Value)> = bodies(&open, &deal)
            .into_iter()
            .map(|(_, path, body)| (path.replace(LISTING, self.listing), body))
            .collect();
        let listing = self.listing;
        let terms = |amount| json!({"deal_terms": deal_terms(amount)});
        let price = |amount| json!({"price": {"amount": amount, "currency": CURRENCY}});
        for amount in [1, below, above] {
            requests.push(("/offers".into(), self.offer(amount)));
            requests.push((format!("/offers/{open}/counter"), terms(amount)));
            requests.push((format!("/listings/{listing}/price"), price(amount)));
        }
        for (path, body) in [
            ("/listings".to_owned(), creating),
            (
                format!("/listings/{listing}/terms"),
                json!({ "proposed_terms": proposed }),
            ),
        ] {
            take("proposing", sign(seller, own, &path, &body)).await;
            requests.push((path, body));
        }
        for _ in 0..4 {
            take(
                "too low",
                sign(&market.second, None, "/offers", &self.offer(1)),
            )
            .await;
        }
        requests.push(("/account".into(), proposed.clone()));
        requests.push((format!("/deals/{deal}/contract"), proposed.clone()));
        // Bodies that are wrong around the number.
        let mut wrong = vec![(
            "/listings".to_owned(),
            json!({"floor": PROPOSED}).to_string(),
        )];
        for path in [
            "/listings".to_owned(),
            format!("/listings/{listing}/terms"),
            "/offers".into(),
        ] {
            for text in [
                format!("{{\"proposed_terms\":{{\"floor\":{PROPOSED}}}}}"),
                format!("{{\"proposed_terms\":{{\"floor\":{{\"amount\":{PROPOSED}}}}}}}"),
                format!(
                    "{{\"proposed_terms\":{{\"floor\":{{\"amount\":\"{PROPOSED}\",\"currency\":\"EUR\"}}}}}}"
                ),
                format!("{{\"proposed_terms\":{{\"{PROPOSED}\":1}}}}"),
                format!(
                    "{{\"proposed_terms\":{{\"floor\":{{\"amount\":{PROPOSED}.5,\"currency\":\"EUR\"}}}}}}"
                ),
                format!("{{\"{PROPOSED}\":{PROPOSED}"),
                format!("{PROPOSED}"),
                format!("\"{PROPOSED}\""),
                format!("{{\"title\":\"{PROPOSED}\",\"title\":\"{PROPOSED}\"}}"),
                format!(
                    "{{\"supersedes\":\"{PROPOSED}\",\"term_set\":\"{PROPOSED}\",\"expires_at\":\"{PROPOSED}\"}}"
                ),
            ] {
                wrong.push((path.clone(), text));
            }
        }
        let mut all: Vec<Request<Bytes>> = Vec::new();
        let callers: [(&Agent, Option<&str>); 5] = [
            (buyer, None),
            (seller, own),
            (seller, None),
            (&market.second, None),
            (&market.other, None),
        ];
        for (n, (agent, token)) in callers.into_iter().enumerate() {
            for (path, body) in &requests {
                all.push(sign(agent, token, path, body));
            }
            // The first two are who may call; the others are refused before their body is read.
            for (path, text) in wrong.iter().filter(|_| n < 2) {
                let mut request = sign(agent, token, path, &json!({}));
                *request.body_mut() = Bytes::from(text.clone());
                request.headers_mut().remove("content-digest");
                agent.signer.sign(&mut request).unwrap();
                all.push(request);
            }
            for path in [
                format!("/listings/{listing}"),
                format!("/listings/{listing}/questions"),
                format!("/offers?listing_id={listing}"),
                format!("/offers/{open}"),
                format!("/deals/{deal}"),
                format!("/deals/{deal}/events"),
                "/approvals/apr_1".to_owned(),
                "/nothing".to_owned(),
            ] {
                let mut request = get(&path);
                if let Some(token) = token {
                    request = with_token(request, token);
                }
                agent.signer.sign(&mut request).unwrap();
                all.push(request);
            }
        }
        for (path, body) in &requests {
            for token in [
                BUYER_TOKEN,
                SELLER_UNBOUND,
                OTHER_TOKEN,
                "token-nobody-knows",
            ] {
                all.push(with_key(with_token(post(path, body), token)));
            }
            all.push(post(path, body));
        }
        for request in all.into_iter().step_by(self.every) {
            let answer = take("in turn", request.clone()).await;
            // Repeats, and the same key for something else.
            if let Some(key) = request.headers().get("idempotency-key") {
                take("again", request.clone()).await;
                let key = key.to_str().unwrap();
                let agent = if answer.status == 201 { buyer } else { seller };
                take(
                    "conflicting",
                    signed(agent, own, "/offers", &self.offer(2), key),
                )
                .await;
            }
            if let Some(id) = answer.body["approval_request"]["approval_id"].as_str() {
                let mut request = with_token(get(&format!("/approvals/{id}")), SELLER_TOKEN);
                seller.signer.sign(&mut request).unwrap();
                take("an approval", request).await;
            }
        }
        // A store that fails, at each method, and a key that cannot sign.
        for call in Call::ALL {
            for (path, body) in requests.iter().step_by(self.every) {
                market.store.take_down(call);
                for (agent, token) in [(buyer, None), (seller, own)] {
                    take("a failing store", sign(agent, token, path, body)).await;
                }
                market.store.mend();
            }
        }
        market.store.cannot_sign();
        for (path, body) in &requests {
            take("no signature", sign(seller, own, path, body)).await;
        }
        market.store.mend();
        market.store.lose_races(usize::MAX);
        take(
            "lost races",
            sign(buyer, None, "/offers", &self.offer(above)),
        )
        .await;
        market.store.lose_races(0);
        let mut large = sign(buyer, None, "/offers", &self.offer(above));
        let spaces = " ".repeat(BODY_LIMIT);
        *large.body_mut() = Bytes::from(format!("{CANARY}{spaces}"));
        take("too large", large).await;
        market.clock.advance(1);
    }
}
