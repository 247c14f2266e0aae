//! Binding 5: offers, counters, acceptance, checkouts and deals, through the whole stack.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use std::collections::HashSet;

use bytes::Bytes;
use common::{
    Agent, Answer, BUYER_TOKEN, CURRENCY, FLOOR, GATEWAY, LISTING, NOW, SELLER, SELLER_TOKEN,
    SELLER_UNBOUND, deal_terms, get, grant, offer_body, post, public_terms, with_key, with_token,
};
use http::Request;
use market::{
    Backing, Call, Market, OTHER_TOKEN, around, fits, fresh_key, on_every_store, send_to, signed,
};
use serde_json::{Value, json};
use tower_rctp::{
    protocol::{
        deal::CHECKOUT_TYP,
        listing::{ConfirmedTerms, Listing, ListingState},
        money::Money,
        operation::Verb,
        policy::{OfferBudget, Tier, Tiers},
        record::SubjectKind,
        terms::{BuyerRequirements, PrivateTerms, PublicTerms},
        time::Timestamp,
    },
    store::Kind,
    wire::{
        base64url,
        digest::sha256,
        from_base64url, jcs,
        jwk::{PublicKey, SigningKey},
        jws,
    },
};

on_every_store!(
    an_offer_is_countered_answered_accepted_and_redeemed,
    a_negotiation_is_one_buyer_agent_on_one_listing,
    supersedes_names_an_open_or_countered_offer_of_the_same_negotiation,
    offers_at_once_that_supersede_one_offer_are_one,
    an_acceptance_reserves_the_listing_for_its_checkout,
    a_reservation_ends_with_its_checkout,
    a_checkout_is_redeemed_once,
    acceptances_at_once_of_different_offers_are_one,
    redemptions_at_once_make_one_deal,
    an_acceptance_and_a_new_offer_at_once_do_not_both_win,
    offers_at_once_are_all_taken,
    low_offers_at_once_never_exceed_the_budget_of_their_agent,
    low_offers_at_once_never_exceed_the_budget_of_their_operator,
    many_low_offers_at_once_all_end,
    what_was_decided_on_facts_that_have_changed_is_decided_again,
    offers_on_a_listing_are_listed_a_page_at_a_time,
);

// ---- Helpers --------------------------------------------------------------------------------------------------------

fn secs(value: &Value) -> i64 {
    Timestamp::parse(value.as_str().unwrap()).unwrap().secs()
}

async fn counter(market: &Market, offer: &str, amount: u64) -> Answer {
    let path = format!("/offers/{offer}/counter");
    let body = json!({"deal_terms": deal_terms(amount)});
    market.seller_post(&path, &body).await
}

async fn offer_with(market: &Market, amount: u64, more: Value) -> Answer {
    let mut body = offer_body(amount);
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    market.buyer_post("/offers", &body).await
}

async fn decline(market: &Market, agent: &Agent, offer: &str) -> Answer {
    let path = format!("/offers/{offer}/decline");
    let token = (agent.profile == market.seller.profile).then_some(SELLER_TOKEN);
    market
        .post(agent, token, &path, &Value::Null, &fresh_key())
        .await
}

async fn redeem(market: &Market, checkout: &str) -> Answer {
    let body = json!({"checkout": checkout});
    market.buyer_post("/deals", &body).await
}

async fn state_of(market: &Market, offer: &str) -> String {
    market
        .buyer_get(&format!("/offers/{offer}"))
        .await
        .get("state")
}

async fn listing_state(market: &Market) -> String {
    market.buyer_get("/listings/lst_bicycle").await.get("state")
}

async fn at_once(market: &Market, requests: Vec<Request<Bytes>>) -> Vec<Answer> {
    let tasks: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let service = market.service.clone();
            tokio::spawn(async move { send_to(&service, request).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

fn claims(checkout: &str) -> Value {
    let payload = checkout.split('.').nth(1).unwrap();
    serde_json::from_slice(&from_base64url(payload).unwrap()).unwrap()
}

// ---- 5.1 The rows ---------------------------------------------------------------------------------------------------

async fn an_offer_is_countered_answered_accepted_and_redeemed(backing: Backing) {
    let market = Market::on(backing).await;
    let first = market.offer(FLOOR + 1).await;
    assert_eq!((first.status, first.decision()), (201, "auto"));
    fits("offer", &first.body);
    assert_eq!(first.body["by"], "buyer");
    assert_eq!(first.body["state"], "open");
    assert_eq!(first.body["listing_id"], LISTING);
    assert_eq!(first.body["deal_terms"], deal_terms(FLOOR + 1));
    assert_eq!(secs(&first.body["created_at"]), NOW);
    let first_id = first.get("offer_id");

    let counter = counter(&market, &first_id, 55_000).await;
    assert_eq!((counter.status, counter.decision()), (201, "auto"));
    fits("offer", &counter.body);
    assert_eq!(counter.body["by"], "seller");
    assert_eq!(counter.body["state"], "open");
    assert_eq!(counter.body["supersedes"], json!(first_id));
    assert_eq!(counter.body["negotiation_id"], first.body["negotiation_id"]);
    assert_eq!(counter.body["deal_terms"], deal_terms(55_000));
    assert_eq!(state_of(&market, &first_id).await, "countered");
    let counter_id = counter.get("offer_id");

    let answer = offer_with(&market, 50_000, json!({"supersedes": counter_id})).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    fits("offer", &answer.body);
    assert_eq!(answer.body["supersedes"], json!(counter_id));
    assert_eq!(answer.body["negotiation_id"], first.body["negotiation_id"]);
    assert_eq!(state_of(&market, &counter_id).await, "superseded");
    assert_eq!(state_of(&market, &first_id).await, "countered");
    let answer_id = answer.get("offer_id");

    let accepted = market.accept(&answer_id).await;
    assert_eq!((accepted.status, accepted.decision()), (200, "auto"));
    fits("offer", &accepted.body);
    assert_eq!(accepted.body["state"], "accepted");
    assert_eq!(listing_state(&market).await, "reserved");

    let deal = redeem(&market, &accepted.get("checkout")).await;
    assert_eq!((deal.status, deal.decision()), (201, "auto"));
    fits("deal", &deal.body);
    assert_eq!(deal.body["deal_terms"], deal_terms(50_000));
    assert_eq!(deal.body["offer_id"], json!(answer_id));
    assert_eq!(listing_state(&market).await, "sold");
    let sold = market.buyer_get(&format!("/offers/{answer_id}")).await;
    assert_eq!(sold.body["state"], "accepted");
    assert_eq!(sold.body["deal_id"], deal.body["deal_id"]);

    // Both parties see the deal.
    let path = format!("/deals/{}", deal.get("deal_id"));
    for seen in [
        market.buyer_get(&path).await,
        market.seller_get(&path).await,
    ] {
        assert_eq!((seen.status, &seen.body), (200, &deal.body));
        assert_eq!(seen.decision(), "");
    }
}

#[tokio::test]
async fn a_buyer_neither_accepts_nor_counters() {
    let market = Market::on(Backing::memory().await).await;
    let first = market.open_offer(FLOOR + 1).await;
    let counter = counter(&market, &first, 55_000).await.get("offer_id");
    for offer in [&first, &counter] {
        let path = format!("/offers/{offer}/accept");
        let accepted = market.buyer_post(&path, &json!({})).await;
        assert_eq!(accepted.refusal(), (403, "action_forbidden"));
        let stated = "forbid;action=\"offer.accept\";reason=action_forbidden";
        assert_eq!(accepted.decision(), stated);
        let path = format!("/offers/{offer}/counter");
        let body = json!({"deal_terms": deal_terms(50_000)});
        let countered = market.buyer_post(&path, &body).await;
        assert_eq!(countered.refusal(), (400, "invalid_request"));
        assert_eq!(countered.decision(), "");
        assert!(countered.get("message").contains("supersedes"));
    }
    // Nor does a client that does not sign.
    let offer = market
        .oauth_post(BUYER_TOKEN, "/offers", &offer_body(FLOOR + 2))
        .await;
    assert_eq!(offer.status, 201, "{:?}", offer.body);
    let path = format!("/offers/{}/accept", offer.get("offer_id"));
    let accepted = market.oauth_post(BUYER_TOKEN, &path, &json!({})).await;
    assert_eq!(accepted.refusal(), (403, "action_forbidden"));
}

#[tokio::test]
async fn the_seller_neither_accepts_nor_counters_its_own_counter() {
    let market = Market::on(Backing::memory().await).await;
    let first = market.open_offer(FLOOR + 1).await;
    let own = counter(&market, &first, 55_000).await.get("offer_id");
    let accepted = market.accept(&own).await;
    assert_eq!(accepted.refusal(), (403, "action_forbidden"));
    assert_eq!(accepted.body["offer_id"], json!(own));
    let countered = counter(&market, &own, 50_000).await;
    assert_eq!(countered.refusal(), (403, "action_forbidden"));
}

#[tokio::test]
async fn a_counter_that_is_not_offered_is_403() {
    let tiers = Tiers::default().withhold(Verb::OfferCounter);
    let market = Market::with(Backing::memory().await, Tier::Auto, |b| b.tiers(tiers)).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let refused = counter(&market, &offer, 55_000).await;
    assert_eq!(refused.refusal(), (403, "action_forbidden"));
    let stated = "forbid;action=\"offer.counter\";reason=action_forbidden";
    assert_eq!(refused.decision(), stated);
    assert_eq!(state_of(&market, &offer).await, "open");
    assert_eq!(market.accept(&offer).await.status, 200);
}

#[tokio::test]
async fn either_party_declines_what_still_waits() {
    let market = Market::on(Backing::memory().await).await;
    let (buyer, seller) = (&market.buyer, &market.seller);
    for agent in [buyer, seller] {
        let offer = market.open_offer(FLOOR + 1).await;
        let declined = decline(&market, agent, &offer).await;
        assert_eq!((declined.status, declined.decision()), (200, "auto"));
        fits("offer", &declined.body);
        assert_eq!(declined.body["state"], "declined");
        for again in [buyer, seller] {
            let again = decline(&market, again, &offer).await;
            assert_eq!(again.refusal(), (409, "offer_replayed"));
            assert_eq!(again.decision(), "forbid;reason=offer_replayed");
        }
        assert_eq!(
            market.accept(&offer).await.refusal(),
            (409, "offer_replayed")
        );

        // A counter, and what it answers.
        let offer = market.open_offer(FLOOR + 1).await;
        let counter = counter(&market, &offer, 55_000).await.get("offer_id");
        assert_eq!(decline(&market, agent, &offer).await.status, 200);
        assert_eq!(decline(&market, agent, &counter).await.status, 200);
    }
    // An open offer on a listing that is sold meanwhile, too.
    let (left, won) = (
        market.open_offer(FLOOR + 1).await,
        market.open_offer(FLOOR + 2).await,
    );
    let checkout = market.accept(&won).await.get("checkout");
    let replayed = decline(&market, buyer, &won).await;
    assert_eq!(replayed.refusal(), (409, "offer_replayed"));
    assert_eq!(redeem(&market, &checkout).await.status, 201);
    assert_eq!(decline(&market, seller, &left).await.status, 200);
}

#[tokio::test]
async fn an_offer_that_waits_for_its_seller_can_only_be_declined() {
    let market = Market::with(Backing::memory().await, Tier::Ask, |b| b).await;
    let offer = market.open_offer(FLOOR + 1).await;
    assert_eq!(market.accept(&offer).await.status, 202);
    assert_eq!(state_of(&market, &offer).await, "awaiting_approval");
    let replayed = (409, "offer_replayed");
    assert_eq!(market.accept(&offer).await.refusal(), replayed);
    assert_eq!(counter(&market, &offer, 55_000).await.refusal(), replayed);
    let superseding = offer_with(&market, 50_000, json!({"supersedes": offer})).await;
    assert_eq!(superseding.refusal(), (422, "terms_invalid"));
    assert_eq!(decline(&market, &market.buyer, &offer).await.status, 200);
    assert_eq!(state_of(&market, &offer).await, "declined");

    // A counter waits in the same way.
    let offer = market.open_offer(FLOOR + 1).await;
    assert_eq!(counter(&market, &offer, 55_000).await.status, 202);
    assert_eq!(state_of(&market, &offer).await, "awaiting_approval");
    assert_eq!(market.accept(&offer).await.refusal(), replayed);
}

#[tokio::test]
async fn silence_expires_the_offer_that_waits() {
    let market = Market::with(Backing::memory().await, Tier::Ask, |b| b).await;
    for verb in ["accept", "counter"] {
        let offer = market.open_offer(FLOOR + 1).await;
        let asked = match verb {
            "accept" => market.accept(&offer).await,
            _ => counter(&market, &offer, 55_000).await,
        };
        let approval = asked.body["approval_request"]["approval_id"].clone();
        let approval = format!("/approvals/{}", approval.as_str().unwrap());
        market.clock.advance(899);
        assert_eq!(state_of(&market, &offer).await, "awaiting_approval");
        assert_eq!(market.seller_get(&approval).await.get("status"), "pending");
        market.clock.advance(1);
        assert_eq!(state_of(&market, &offer).await, "expired", "{verb}");
        assert_eq!(market.seller_get(&approval).await.get("status"), "expired");
        let expired = (409, "offer_expired");
        assert_eq!(market.accept(&offer).await.refusal(), expired);
        let declined = decline(&market, &market.buyer, &offer).await;
        assert_eq!(declined.refusal(), expired);
    }
}

// ---- 5.2 Identity, revision, expiry -----------------------------------------------------------------------------------

async fn a_negotiation_is_one_buyer_agent_on_one_listing(backing: Backing) {
    let market = Market::on(backing).await;
    let other_listing = "lst_tandem";
    market.publish(other_listing, SELLER, public_terms()).await;
    let on = |listing: &str| json!({"listing_id": listing, "deal_terms": deal_terms(FLOOR + 1)});
    let mut negotiations = HashSet::new();
    for listing in [LISTING, other_listing] {
        let body = on(listing);
        for agent in [&market.buyer, &market.second, &market.other] {
            let mut ids = HashSet::new();
            for _ in 0..2 {
                let offer = market
                    .post(agent, None, "/offers", &body, &fresh_key())
                    .await;
                assert_eq!(offer.status, 201, "{:?}", offer.body);
                ids.insert(offer.get("negotiation_id"));
            }
            assert_eq!(ids.len(), 1, "every offer of an agent on a listing");
            let id = ids.into_iter().next().unwrap();
            assert!(id.starts_with("neg_") && !id.contains(agent.kid()), "{id}");
            assert!(negotiations.insert(id), "one of its own");
        }
        // The client of the buyer's operator is another agent than its keys.
        for token in [BUYER_TOKEN, OTHER_TOKEN] {
            let offer = market.oauth_post(token, "/offers", &body).await;
            assert!(negotiations.insert(offer.get("negotiation_id")), "{token}");
        }
    }
    assert_eq!(negotiations.len(), 10);
    // It is random: 128 bits after a part that only tells the time.
    let random = |id: &String| id["neg_".len() + 9..].to_owned();
    let parts: HashSet<String> = negotiations.iter().map(random).collect();
    assert_eq!(parts.len(), 10);
    assert!(parts.iter().all(|part| part.len() == 22), "{parts:?}");
}

#[tokio::test]
async fn a_refused_first_offer_opens_the_negotiation_too() {
    let market = Market::on(Backing::memory().await).await;
    assert_eq!(market.offer(1).await.status, 422);
    let agent = tower_rctp::protocol::caller::Agent::Key(market.buyer.signer.key().kid().clone());
    let key = tower_rctp::store::negotiation_key(LISTING, &agent);
    let opened = market.stored(Kind::Negotiation, &key).await.unwrap();
    let later = market.offer(FLOOR + 1).await;
    assert_eq!(opened.body, later.get("negotiation_id").as_bytes());
    assert_eq!(market.accept(&later.get("offer_id")).await.status, 200);
}

async fn supersedes_names_an_open_or_countered_offer_of_the_same_negotiation(backing: Backing) {
    let market = Market::on(backing).await;
    market.publish("lst_tandem", SELLER, public_terms()).await;
    let superseding = async |id: &str| offer_with(&market, 50_000, json!({"supersedes": id})).await;

    // What may be superseded becomes so.
    let own = market.open_offer(FLOOR + 1).await;
    assert_eq!(superseding(&own).await.status, 201);
    assert_eq!(state_of(&market, &own).await, "superseded");
    let countered = market.open_offer(FLOOR + 1).await;
    let counter_id = counter(&market, &countered, 55_000).await.get("offer_id");
    assert_eq!(
        superseding(&countered).await.status,
        201,
        "an own countered offer"
    );
    assert_eq!(state_of(&market, &countered).await, "superseded");
    assert_eq!(superseding(&counter_id).await.status, 201, "the counter");
    assert_eq!(state_of(&market, &counter_id).await, "superseded");

    // And nothing else may.
    let declined = market.open_offer(FLOOR + 1).await;
    decline(&market, &market.buyer, &declined).await;
    let elsewhere = json!({"listing_id": "lst_tandem", "deal_terms": deal_terms(FLOOR)});
    let elsewhere = market
        .buyer_post("/offers", &elsewhere)
        .await
        .get("offer_id");
    let body = offer_body(FLOOR + 1);
    let second = market
        .post(&market.second, None, "/offers", &body, &fresh_key())
        .await
        .get("offer_id");
    let client = market.oauth_post(BUYER_TOKEN, "/offers", &body).await;
    let client = client.get("offer_id");
    let expired = offer_with(
        &market,
        FLOOR + 1,
        json!({"expires_at": Timestamp::from_secs(NOW + 10)}),
    );
    let expired = expired.await.get("offer_id");
    market.clock.advance(10);
    let accepted = market.open_offer(FLOOR + 1).await;
    assert_eq!(market.accept(&accepted).await.status, 200);
    let before = market.offers_on(LISTING).await;
    let mut messages = HashSet::new();
    for (what, id) in [
        ("superseded already", &own),
        ("declined", &declined),
        ("expired", &expired),
        ("accepted", &accepted),
        ("of another listing", &elsewhere),
        ("of another agent of the operator", &second),
        ("of a client of the operator", &client),
        ("unknown", &"off_unknown".to_owned()),
        ("no offer", &"lst_bicycle".to_owned()),
    ] {
        let refused = superseding(id).await;
        assert_eq!(refused.refusal(), (422, "terms_invalid"), "{what}");
        messages.insert(refused.get("message"));
    }
    assert_eq!(messages.len(), 1, "an id is no oracle: {messages:?}");
    assert_eq!(market.offers_on(LISTING).await, before);

    // A first offer has nothing to supersede.
    let mut body = offer_body(FLOOR + 1);
    body["supersedes"] = json!(second);
    let stranger = market
        .post(&market.other, None, "/offers", &body, &fresh_key())
        .await;
    assert_eq!(stranger.refusal(), (422, "terms_invalid"));
}

async fn offers_at_once_that_supersede_one_offer_are_one(backing: Backing) {
    let market = Market::on(backing).await;
    let open = market.open_offer(FLOOR + 1).await;
    let requests = (0..32).map(|n| {
        let mut body = offer_body(50_000 + n);
        body["supersedes"] = json!(open);
        signed(&market.buyer, None, "/offers", &body, &fresh_key())
    });
    let answers = at_once(&market, requests.collect()).await;
    let made = answers.iter().filter(|a| a.status == 201).count();
    let refused = |a: &&Answer| a.refusal() == (422, "terms_invalid");
    assert_eq!((made, answers.iter().filter(refused).count()), (1, 31));
    assert_eq!(market.offers_on(LISTING).await.len(), 2);
}

#[tokio::test]
async fn an_offer_ends_when_its_creator_says_within_the_marketplaces_limits() {
    let market = Market::on(Backing::memory().await).await;
    let available_until = NOW + 3 * 24 * 3600;
    let terms = PublicTerms {
        available_until: Some(Timestamp::from_secs(available_until)),
        ..public_terms()
    };
    market.publish("lst_until", SELLER, terms).await;
    let (day, week) = (24 * 3600, 7 * 24 * 3600);
    let table = [
        (LISTING, None, NOW + 2 * day),
        (LISTING, Some(NOW + 1), NOW + 1),
        (LISTING, Some(NOW + week), NOW + week),
        (LISTING, Some(NOW + week + 1), NOW + week),
        (LISTING, Some(NOW + 365 * day), NOW + week),
        ("lst_until", None, NOW + 2 * day),
        ("lst_until", Some(available_until), available_until),
        ("lst_until", Some(available_until + 1), available_until),
        ("lst_until", Some(NOW + 365 * day), available_until),
    ];
    for (listing, asked, expected) in table {
        let mut body = json!({"listing_id": listing, "deal_terms": deal_terms(FLOOR + 1)});
        let mut counter = json!({"deal_terms": deal_terms(55_000)});
        if let Some(at) = asked {
            body["expires_at"] = json!(Timestamp::from_secs(at));
            counter["expires_at"] = body["expires_at"].clone();
        }
        let offer = market.buyer_post("/offers", &body).await;
        assert_eq!(offer.status, 201, "{:?}", offer.body);
        assert_eq!(
            secs(&offer.body["expires_at"]),
            expected,
            "{listing} {asked:?}"
        );
        let path = format!("/offers/{}/counter", offer.get("offer_id"));
        let counter = market.seller_post(&path, &counter).await;
        assert_eq!(counter.status, 201, "{:?}", counter.body);
        assert_eq!(
            secs(&counter.body["expires_at"]),
            expected,
            "{listing} {asked:?}"
        );
    }
    // An offset and a fraction are read as the instant that they are.
    let at = json!({"expires_at": "2026-09-21T17:00:00.75+02:00"});
    let offer = offer_with(&market, FLOOR + 1, at).await;
    assert_eq!(offer.get("expires_at"), "2026-09-21T15:00:00Z");
    // What is over before it begins is a mistake.
    let open = market.open_offer(FLOOR + 1).await;
    for at in [NOW, NOW - 1, 0] {
        let at = json!({"expires_at": Timestamp::from_secs(at.max(NOW - 1))});
        let late = offer_with(&market, FLOOR + 1, at.clone()).await;
        assert_eq!(late.refusal(), (422, "terms_invalid"));
        let mut body = json!({"deal_terms": deal_terms(55_000)});
        body["expires_at"] = at["expires_at"].clone();
        let path = format!("/offers/{open}/counter");
        let late = market.seller_post(&path, &body).await;
        assert_eq!(late.refusal(), (422, "terms_invalid"));
    }
}

/// Binding 10a: both sides choose among the listing's options, and a wrong choice is no price that was tried.
#[tokio::test]
async fn an_offer_and_a_counter_choose_among_the_listings_options() {
    let market = Market::on(Backing::memory().await).await;
    let open = market.open_offer(FLOOR + 1).await;
    let path = format!("/offers/{open}/counter");
    for (at, other) in [
        ("/fulfillment/method_type", "pickup"),
        ("/fulfillment/selected_option_id", "drone"),
        ("/payment/selected_term_id", "later"),
    ] {
        let mut terms = deal_terms(1);
        *terms.pointer_mut(at).unwrap() = json!(other);
        let offer = json!({"listing_id": LISTING, "deal_terms": terms});
        let refused = market.buyer_post("/offers", &offer).await;
        assert_eq!(refused.refusal(), (422, "terms_invalid"), "{at}");
        let counter = json!({ "deal_terms": terms });
        let refused = market.seller_post(&path, &counter).await;
        assert_eq!(refused.refusal(), (422, "terms_invalid"), "{at}");
    }
    assert_eq!(state_of(&market, &open).await, "open");
    let mut express = deal_terms(FLOOR + 2);
    express["fulfillment"]["selected_option_id"] = json!("express");
    let offer = json!({"listing_id": LISTING, "deal_terms": express});
    assert_eq!(market.buyer_post("/offers", &offer).await.status, 201);
}

#[tokio::test]
async fn past_its_time_an_offer_is_expired_whatever_is_asked_of_it() {
    let market = Market::on(Backing::memory().await).await;
    let lasting = async |seconds: i64| {
        let at = market.clock.now().plus(seconds);
        let offer = offer_with(&market, FLOOR + 1, json!({"expires_at": at})).await;
        offer.get("offer_id")
    };
    // One second before the end it can still be accepted.
    let offer = lasting(100).await;
    market.clock.advance(99);
    assert_eq!(market.accept(&offer).await.status, 200);
    market.clock.advance(1800);

    let offer = lasting(100).await;
    market.clock.advance(100);
    assert_eq!(state_of(&market, &offer).await, "expired");
    let expired = (409, "offer_expired");
    assert_eq!(market.accept(&offer).await.refusal(), expired);
    assert_eq!(counter(&market, &offer, 55_000).await.refusal(), expired);
    for agent in [&market.buyer, &market.seller] {
        let declined = decline(&market, agent, &offer).await;
        assert_eq!(declined.refusal(), expired);
        assert_eq!(declined.body["offer_id"], json!(offer));
    }
    // A countered one, and a counter, expire in the same way.
    let offer = lasting(100).await;
    let counter = counter(&market, &offer, 55_000).await.get("offer_id");
    market.clock.advance(100);
    assert_eq!(
        decline(&market, &market.buyer, &offer).await.refusal(),
        expired
    );
    assert_eq!(
        state_of(&market, &counter).await,
        "open",
        "it has a time of its own"
    );
    market.clock.advance(48 * 3600);
    assert_eq!(state_of(&market, &counter).await, "expired");
}

#[tokio::test]
async fn an_ask_ends_no_later_than_its_offer() {
    let market = Market::with(Backing::memory().await, Tier::Ask, |b| b).await;
    for (lasts, expected) in [(100, 100), (900, 900), (5000, 900)] {
        let at = market.clock.now().plus(lasts);
        let offer = offer_with(&market, FLOOR + 1, json!({"expires_at": at})).await;
        let asked = market.accept(&offer.get("offer_id")).await;
        let request = &asked.body["approval_request"];
        fits("approval-request", request);
        assert_eq!(secs(&request["expires_at"]), NOW + expected, "{lasts}");
        let stated = format!(
            "ask;approval_id=\"{}\";expires_in={expected};on_timeout=deny",
            request["approval_id"].as_str().unwrap()
        );
        assert_eq!(asked.decision(), stated);
    }
}

// ---- 5.3 Acceptance and checkout ------------------------------------------------------------------------------------

async fn an_acceptance_reserves_the_listing_for_its_checkout(backing: Backing) {
    let market = Market::on(backing).await;
    let (offer, left) = (
        market.open_offer(FLOOR + 1).await,
        market.open_offer(FLOOR + 2).await,
    );
    let before = market.buyer_get("/listings/lst_bicycle").await;
    let accepted = market.accept(&offer).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    let token = accepted.get("checkout");
    let compact = jws::Compact::parse(&token).unwrap();
    assert_eq!(compact.typ(), Some("rctp-checkout+jwt"));
    // A key of the gateway's profile signed it.
    let keys = market.rctp.profile()["keys"].clone();
    let key = PublicKey::from_jwk(&keys[0]).unwrap();
    assert_eq!(compact.kid(), Some(key.kid().as_str()));
    compact.verify(CHECKOUT_TYP, &key).unwrap();

    let claims = claims(&token);
    fits("checkout", &claims);
    let nonce = claims["nonce"].as_str().unwrap().to_owned();
    assert_eq!(from_base64url(&nonce).unwrap().len(), 16);
    // The hash is over the listing as anybody reads it, without what changes with the sale.
    let mut public = before.body.clone();
    public.as_object_mut().unwrap().remove("state");
    let hash = sha256(&jcs::canonical(&public).unwrap());
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = json!({
        "iss": GATEWAY,
        "offer_id": offer,
        "negotiation_id": accepted.body["negotiation_id"],
        "listing_id": LISTING,
        "listing_hash": format!("sha-256:{hex}"),
        "deal_terms": deal_terms(FLOOR + 1),
        "buyer_jkt": market.buyer.kid(),
        "nonce": nonce,
        "iat": NOW,
        "exp": NOW + 1800,
    });
    assert_eq!(claims, expected);

    assert_eq!(listing_state(&market).await, "reserved");
    let reserved = market.accept(&left).await;
    assert_eq!(reserved.refusal(), (409, "listing_reserved"));
    assert_eq!(reserved.body["listing_id"], LISTING);
    let again = market.accept(&offer).await;
    assert_eq!(again.refusal(), (409, "offer_replayed"));
    assert_eq!(again.body["offer_id"], json!(offer));
    // Offers are still taken, and answered.
    let later = market.open_offer(FLOOR + 3).await;
    assert_eq!(state_of(&market, &later).await, "open");
    assert_eq!(
        market.accept(&later).await.refusal(),
        (409, "listing_reserved")
    );
    assert_eq!(counter(&market, &later, 55_000).await.status, 201);
    // Reading it again gives the same checkout to both parties, and to nobody else.
    let path = format!("/offers/{offer}");
    assert_eq!(market.buyer_get(&path).await.get("checkout"), token);
    assert_eq!(market.seller_get(&path).await.get("checkout"), token);
}

#[tokio::test]
async fn a_checkout_ends_at_most_30_minutes_after_the_listings_time() {
    let market = Market::with(Backing::memory().await, Tier::Auto, |b| {
        b.limits(tower_rctp::protocol::policy::Limits {
            checkout_seconds: 7200,
            ..Default::default()
        })
    })
    .await;
    for (n, (left, exp)) in [(10_000, 7200), (5400, 7200), (5399, 7199), (1, 1801)]
        .into_iter()
        .enumerate()
    {
        let id = format!("lst_{n}");
        let terms = PublicTerms {
            available_until: Some(Timestamp::from_secs(NOW + left)),
            ..public_terms()
        };
        market.publish(&id, SELLER, terms).await;
        let body = json!({"listing_id": id, "deal_terms": deal_terms(FLOOR + 1)});
        let offer = market.buyer_post("/offers", &body).await.get("offer_id");
        let accepted = market.accept(&offer).await;
        assert_eq!(
            claims(&accepted.get("checkout"))["exp"],
            NOW + exp,
            "{left}"
        );
    }
    // Past the listing's time nothing is accepted any more; what was accepted is redeemed.
    let body =
        |n: i64| json!({"listing_id": "lst_late", "deal_terms": deal_terms(FLOOR + n as u64)});
    let terms = PublicTerms {
        available_until: Some(Timestamp::from_secs(NOW + 60)),
        ..public_terms()
    };
    market.publish("lst_late", SELLER, terms).await;
    let offer = market.buyer_post("/offers", &body(1)).await.get("offer_id");
    let checkout = market.accept(&offer).await.get("checkout");
    market.clock.advance(60);
    let late = market.buyer_post("/offers", &body(2)).await;
    assert_eq!(late.refusal(), (403, "not_in_scope"));
    market.clock.advance(1799);
    assert_eq!(redeem(&market, &checkout).await.status, 201);
}

async fn a_reservation_ends_with_its_checkout(backing: Backing) {
    let market = Market::on(backing).await;
    let (offer, left) = (
        market.open_offer(FLOOR + 1).await,
        market.open_offer(FLOOR + 2).await,
    );
    let checkout = market.accept(&offer).await.get("checkout");
    market.clock.advance(1799);
    assert_eq!(listing_state(&market).await, "reserved");
    assert_eq!(
        market.accept(&left).await.refusal(),
        (409, "listing_reserved")
    );
    market.clock.advance(1);
    assert_eq!(listing_state(&market).await, "active");
    assert_eq!(state_of(&market, &offer).await, "expired");
    let expired = (409, "offer_expired");
    assert_eq!(redeem(&market, &checkout).await.refusal(), expired);
    assert_eq!(market.accept(&offer).await.refusal(), expired);
    assert_eq!(counter(&market, &offer, 55_000).await.refusal(), expired);
    let declined = decline(&market, &market.buyer, &offer).await;
    assert_eq!(declined.refusal(), expired);

    // The listing is acceptable anew, and the old checkout does not come back to life.
    let accepted = market.accept(&left).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    assert_eq!(listing_state(&market).await, "reserved");
    assert_eq!(redeem(&market, &checkout).await.refusal(), expired);
    assert_eq!(redeem(&market, &accepted.get("checkout")).await.status, 201);
    assert_eq!(redeem(&market, &checkout).await.refusal(), expired);
}

async fn a_checkout_is_redeemed_once(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let checkout = market.accept(&offer).await.get("checkout");
    let body = json!({"checkout": checkout});
    // Another key of the operator, another operator, and nobody.
    for agent in [&market.second, &market.other] {
        let refused = market
            .post(agent, None, "/deals", &body, &fresh_key())
            .await;
        assert_eq!(refused.refusal(), (401, "signature_invalid"));
        assert_eq!(refused.decision(), "forbid;reason=signature_invalid");
    }
    for token in [BUYER_TOKEN, OTHER_TOKEN] {
        let refused = market.oauth_post(token, "/deals", &body).await;
        assert_eq!(refused.refusal(), (401, "signature_invalid"));
    }
    let unsigned = market.send(with_key(post("/deals", &body))).await;
    assert_eq!(unsigned.status, 401);
    assert_eq!(listing_state(&market).await, "reserved");

    // In its last second.
    market.clock.advance(1799);
    let key = fresh_key();
    let deal = market
        .post(&market.buyer, None, "/deals", &body, &key)
        .await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
    fits("deal", &deal.body);
    let claimed = claims(&checkout);
    for member in [
        "offer_id",
        "negotiation_id",
        "listing_id",
        "listing_hash",
        "deal_terms",
        "buyer_jkt",
    ] {
        assert_eq!(deal.body[member], claimed[member], "{member}");
    }
    let repeat = market
        .post(&market.buyer, None, "/deals", &body, &key)
        .await;
    assert_eq!((repeat.status, &repeat.bytes), (201, &deal.bytes));
    let replayed = redeem(&market, &checkout).await;
    assert_eq!(replayed.refusal(), (409, "offer_replayed"));
    assert_eq!(replayed.decision(), "forbid;reason=offer_replayed");
    // Once redeemed it is used, also after its time.
    market.clock.advance(10_000);
    assert_eq!(
        redeem(&market, &checkout).await.refusal(),
        (409, "offer_replayed")
    );

    // The listing is sold for good.
    assert_eq!(listing_state(&market).await, "sold");
    assert_eq!(
        market.offer(FLOOR + 1).await.refusal(),
        (403, "not_in_scope")
    );
    assert_eq!(
        market.accept(&offer).await.refusal(),
        (409, "offer_replayed")
    );
}

#[tokio::test]
async fn only_a_checkout_of_this_gateway_is_redeemed() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let checkout = market.accept(&offer).await.get("checkout");
    let parts: Vec<&str> = checkout.split('.').collect();
    let claims = claims(&checkout);
    let sign = |typ, claims: &Value, key: &SigningKey| {
        jws::sign(typ, &jcs::canonical(claims).unwrap(), key).unwrap()
    };
    let with = |member: &str, value: Value| {
        let mut changed = claims.clone();
        changed[member] = value;
        let payload = base64url(&jcs::canonical(&changed).unwrap());
        format!("{}.{payload}.{}", parts[0], parts[2])
    };
    let header = |header: Value| {
        let header = base64url(&serde_json::to_vec(&header).unwrap());
        format!("{header}.{}.{}", parts[1], parts[2])
    };
    let own = market.gateway_key.kid().as_str();
    let stranger = SigningKey::generate().unwrap();
    let buyers = market.buyer.signer.key();
    let mut more = claims.clone();
    more["discount"] = json!(1);
    let forged = [
        ("signed by the buyer", sign(CHECKOUT_TYP, &claims, buyers)),
        (
            "signed by a stranger",
            sign(CHECKOUT_TYP, &claims, &stranger),
        ),
        ("a cheaper price", with("deal_terms", deal_terms(1))),
        ("a later end", with("exp", json!(NOW + 100_000))),
        (
            "another buyer",
            with("buyer_jkt", json!(market.second.kid())),
        ),
        ("another nonce", with("nonce", json!("A".repeat(22)))),
        (
            "no algorithm",
            header(json!({"alg": "none", "typ": CHECKOUT_TYP, "kid": own})),
        ),
        (
            "a shared secret",
            header(json!({"alg": "HS256", "typ": CHECKOUT_TYP, "kid": own})),
        ),
        (
            "no key",
            header(json!({"alg": "ES256", "typ": CHECKOUT_TYP})),
        ),
        (
            "an entry of the record",
            sign("rctp-entry+jwt", &claims, &market.gateway_key),
        ),
        ("no type", sign("JWT", &claims, &market.gateway_key)),
        (
            "a member more",
            sign(CHECKOUT_TYP, &more, &market.gateway_key),
        ),
        (
            "no claims",
            sign(CHECKOUT_TYP, &json!({}), &market.gateway_key),
        ),
        ("no signature", format!("{}.{}.AAAA", parts[0], parts[1])),
        ("rubbish", "e30.e30.AA".to_owned()),
    ];
    for (what, token) in forged {
        let refused = redeem(&market, &token).await;
        assert_eq!(refused.refusal(), (401, "signature_invalid"), "{what}");
    }
    for (what, body) in [
        ("not a JWS", json!({"checkout": "a.b"})),
        (
            "detached",
            json!({"checkout": format!("{}..{}", parts[0], parts[2])}),
        ),
        (
            "more than a checkout",
            json!({"checkout": checkout, "tier": "auto"}),
        ),
        ("nothing", json!({})),
    ] {
        let refused = market.buyer_post("/deals", &body).await;
        assert_eq!(refused.refusal(), (400, "invalid_request"), "{what}");
    }
    // Genuine claims about an offer that is not there.
    let mut unknown = claims.clone();
    unknown["offer_id"] = json!("off_unknown");
    let unknown = sign(CHECKOUT_TYP, &unknown, &market.gateway_key);
    assert_eq!(
        redeem(&market, &unknown).await.refusal(),
        (404, "not_found")
    );
    assert_eq!(redeem(&market, &checkout).await.status, 201);
}

#[tokio::test]
async fn a_checkout_outlives_the_gateways_change_of_key() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let checkout = market.accept(&offer).await.get("checkout");
    let body = json!({"checkout": checkout});
    let next = SigningKey::generate().unwrap();
    let store = market.backing.store.clone();
    let changed = market.beside(store.clone(), |b| b.signing_key(next.clone()));
    let service = around(&changed, changed.market());
    let request = signed(&market.buyer, None, "/deals", &body, &fresh_key());
    let unknown = send_to(&service, request).await;
    assert_eq!(unknown.refusal(), (401, "signature_invalid"));

    let former = market.gateway_key.public_jwk();
    let kept = market.beside(store, |b| b.signing_key(next).former_key(former));
    let service = around(&kept, kept.market());
    let request = signed(&market.buyer, None, "/deals", &body, &fresh_key());
    let deal = send_to(&service, request).await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
    assert_eq!(kept.profile()["keys"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn accepted_terms_stay_fixed_while_the_listing_changes() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let before = market.buyer_get("/listings/lst_bicycle").await;
    let checkout = market.accept(&offer).await.get("checkout");
    let public = PublicTerms {
        deliver_within_days: Some(30),
        ..public_terms()
    };
    let commitment = PrivateTerms::new(None, [8; 16]).commitment(&public);
    let terms = ConfirmedTerms { public, commitment };
    let changed = terms.clone();
    let change = |listing: &mut Listing| {
        listing.list_price = Money::new(90_000, CURRENCY);
        listing.terms = Some(changed);
    };
    market.change(Kind::Listing, LISTING, change).await;
    assert_eq!(listing_state(&market).await, "reserved");

    let deal = redeem(&market, &checkout).await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
    assert_eq!(deal.body["deal_terms"], deal_terms(FLOOR + 1));
    assert_eq!(deal.body["listing_hash"], claims(&checkout)["listing_hash"]);
    assert_eq!(
        deal.body["terms_commitment"],
        before.body["terms_commitment"]
    );
    let chain = market.chain(SubjectKind::Deal, &deal.get("deal_id")).await;
    assert_eq!(
        chain[0]["terms_commitment"],
        before.body["terms_commitment"]
    );
    let sold = market.buyer_get("/listings/lst_bicycle").await;
    assert_eq!(sold.body["terms_commitment"], terms.commitment);
}

#[tokio::test]
async fn a_withdrawn_listing_is_not_redeemed() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, left) = (
        market.open_offer(FLOOR + 1).await,
        market.open_offer(FLOOR + 2).await,
    );
    let accepted = market.accept(&offer).await;
    let withdraw = |listing: &mut Listing| listing.state = ListingState::Withdrawn;
    market.change(Kind::Listing, LISTING, withdraw).await;
    let refused = redeem(&market, &accepted.get("checkout")).await;
    assert_eq!(refused.refusal(), (403, "not_in_scope"));
    assert_eq!(market.accept(&left).await.refusal(), (403, "not_in_scope"));
    assert_eq!(
        market.offer(FLOOR + 3).await.refusal(),
        (403, "not_in_scope")
    );
    let negotiation = accepted.get("negotiation_id");
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    let refused = chain.iter().filter(|e| e["operation"] == "create_deal");
    assert_eq!(refused.count(), 1, "{chain:#?}");
}

#[tokio::test]
async fn a_listing_takes_offers_only_while_it_is_for_sale() {
    let market = Market::on(Backing::memory().await).await;
    let soon = PublicTerms {
        available_from: Some(Timestamp::from_secs(NOW + 60)),
        available_until: Some(Timestamp::from_secs(NOW + 120)),
        ..public_terms()
    };
    market.publish("lst_soon", SELLER, soon).await;
    let offer = async || {
        let body = json!({"listing_id": "lst_soon", "deal_terms": deal_terms(FLOOR + 1)});
        market.buyer_post("/offers", &body).await
    };
    assert_eq!(offer().await.refusal(), (403, "not_in_scope"));
    market.clock.advance(60);
    let open = offer().await;
    assert_eq!(open.status, 201);
    market.clock.advance(59);
    assert_eq!(offer().await.status, 201);
    market.clock.advance(1);
    assert_eq!(offer().await.refusal(), (403, "not_in_scope"));
    // Its offers end with it.
    let accepted = market.accept(&open.get("offer_id")).await;
    assert_eq!(accepted.refusal(), (409, "offer_expired"));

    let draft = |listing: &mut Listing| listing.state = ListingState::Draft;
    market.change(Kind::Listing, LISTING, draft).await;
    assert_eq!(market.offer(FLOOR).await.refusal(), (403, "not_in_scope"));
    let unknown = json!({"listing_id": "lst_unknown", "deal_terms": deal_terms(FLOOR)});
    let unknown = market.buyer_post("/offers", &unknown).await;
    assert_eq!(unknown.refusal(), (404, "not_found"));
}

#[tokio::test]
async fn a_listing_may_require_buyers_to_show_something() {
    let market = Market::on(Backing::memory().await).await;
    let requiring = |requirements: Value| PublicTerms {
        buyer_requirements: Some(
            serde_json::from_value::<BuyerRequirements>(requirements).unwrap(),
        ),
        ..public_terms()
    };
    let table = [
        (
            "lst_signed",
            json!({"authenticated_by": ["http_signature"]}),
            201,
            403,
        ),
        (
            "lst_any",
            json!({"authenticated_by": ["oauth", "http_signature"]}),
            201,
            201,
        ),
        (
            "lst_swiss",
            json!({"jurisdictions": ["DE", "CH"]}),
            201,
            201,
        ),
        ("lst_german", json!({"jurisdictions": ["DE"]}), 403, 403),
        (
            "lst_certified",
            json!({"certifications": ["ISO 27001"]}),
            403,
            403,
        ),
    ];
    for (id, requirements, signs, bears) in table {
        market.publish(id, SELLER, requiring(requirements)).await;
        let body = json!({"listing_id": id, "deal_terms": deal_terms(FLOOR + 1)});
        let answers = [
            (signs, market.buyer_post("/offers", &body).await),
            (
                bears,
                market.oauth_post(BUYER_TOKEN, "/offers", &body).await,
            ),
        ];
        for (status, answer) in answers {
            assert_eq!(answer.status, status, "{id}: {:?}", answer.body);
            if status == 403 {
                assert_eq!(answer.error(), "not_in_scope");
            }
        }
        // Told before the budget and the floor, and not counted.
        let low = json!({"listing_id": id, "deal_terms": deal_terms(1)});
        for _ in 0..4 {
            if signs == 403 {
                assert_eq!(
                    market.buyer_post("/offers", &low).await.error(),
                    "not_in_scope"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_buyer_who_does_not_sign_gets_a_reservation_and_no_checkout() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market
        .oauth_post(BUYER_TOKEN, "/offers", &offer_body(FLOOR + 1))
        .await;
    assert_eq!(offer.status, 201, "{:?}", offer.body);
    let id = offer.get("offer_id");
    let path = format!("/offers/{id}/accept");
    let accepted = market.oauth_post(SELLER_UNBOUND, &path, &json!({})).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    fits("offer", &accepted.body);
    assert_eq!(accepted.body.get("checkout"), None);
    assert_eq!(listing_state(&market).await, "reserved");
    let mine = with_token(get(&format!("/offers/{id}")), BUYER_TOKEN);
    let mine = market.send(mine).await;
    assert_eq!(mine.body["state"], "accepted");
    assert_eq!(mine.body.get("checkout"), None);
    market.clock.advance(1800);
    assert_eq!(listing_state(&market).await, "active");
}

// ---- Strangers ------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn strangers_learn_nothing_of_offers_deals_and_approvals() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let won = market.open_offer(FLOOR + 2).await;
    let checkout = market.accept(&won).await.get("checkout");
    let deal = redeem(&market, &checkout).await.get("deal_id");
    let jkt = market.seller.kid();
    let stranger = grant(
        "sub_stranger",
        "client-seller",
        Some(jkt),
        Tier::Auto,
        NOW + 900,
    );
    market.grants.set("token-stranger", stranger);
    let read = |agent: &Agent, token: Option<&str>, path: &str| {
        let mut request = get(path);
        if let Some(token) = token {
            request = with_token(request, token);
        }
        agent.signer.sign(&mut request).unwrap();
        request
    };
    let sign = |agent: &Agent, token, path: &str, body: &Value| {
        signed(agent, token, path, body, &fresh_key())
    };
    let other_sub = Some("token-stranger");
    let countering = json!({"deal_terms": deal_terms(50_000)});
    for (id, deal) in [(&*offer, &*deal), ("off_unknown", "deal_unknown")] {
        let requests = [
            read(&market.other, None, &format!("/offers/{id}")),
            read(&market.second, None, &format!("/offers/{id}")),
            read(&market.seller, other_sub, &format!("/offers/{id}")),
            sign(
                &market.other,
                None,
                &format!("/offers/{id}/decline"),
                &json!({}),
            ),
            sign(
                &market.seller,
                other_sub,
                &format!("/offers/{id}/decline"),
                &json!({}),
            ),
            sign(
                &market.seller,
                other_sub,
                &format!("/offers/{id}/accept"),
                &json!({}),
            ),
            sign(
                &market.seller,
                other_sub,
                &format!("/offers/{id}/counter"),
                &countering,
            ),
            read(&market.other, None, &format!("/deals/{deal}")),
            read(&market.seller, other_sub, &format!("/deals/{deal}")),
        ];
        let mut answers = HashSet::new();
        for request in requests {
            let what = format!("{} {}", request.method(), request.uri());
            let answer = market.send(request).await;
            assert_eq!(answer.refusal(), (404, "not_found"), "{what}");
            assert_eq!(answer.decision(), "", "{what}");
            answers.insert(answer.bytes);
        }
        assert_eq!(answers.len(), 1, "absent and foreign are told alike");
    }
    // Without a grant of any kind, it is the seller's to do (3.3), whether the offer is there or not.
    for id in [&*offer, "off_unknown"] {
        let request = sign(
            &market.other,
            None,
            &format!("/offers/{id}/accept"),
            &json!({}),
        );
        let answer = market.send(request).await;
        assert_eq!(answer.refusal(), (401, "grant_invalid"), "{id}");
    }
    // Listings are public.
    let public = market
        .send(read(&market.other, None, "/listings/lst_bicycle"))
        .await;
    assert_eq!(public.status, 200);
    fits("listing", &public.body);
    let foreign = read(&market.seller, other_sub, "/offers?listing_id=lst_bicycle");
    let foreign = market.send(foreign).await;
    assert_eq!(foreign.refusal(), (403, "not_in_scope"));
}

#[tokio::test]
async fn an_approval_is_read_by_the_operator_that_asked_for_that_seller() {
    let market = Market::with(Backing::memory().await, Tier::Ask, |b| b).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let asked = market.accept(&offer).await;
    let id = asked.body["approval_request"]["approval_id"].clone();
    let id = id.as_str().unwrap();
    let path = format!("/approvals/{id}");
    let seen = market.seller_get(&path).await;
    assert_eq!((seen.status, seen.decision()), (200, ""));
    fits("approval", &seen.body);
    let expected = json!({
        "approval_id": id,
        "action": "offer.accept",
        "status": "pending",
        "expires_at": Timestamp::from_secs(NOW + 900),
    });
    assert_eq!(seen.body, expected);
    // The same grant by another mechanism of the same operator.
    let unsigned = market.send(with_token(get(&path), SELLER_UNBOUND)).await;
    assert_eq!(unsigned.status, 200);

    let exp = NOW + 900;
    let jkt = Some(market.other.kid());
    let theirs = grant(SELLER, "client-other", jkt, Tier::Ask, exp);
    market.grants.set("token-other-seller", theirs);
    let jkt = Some(market.seller.kid());
    let other_sub = grant("sub_other", "client-seller", jkt, Tier::Ask, exp);
    market.grants.set("token-other-sub", other_sub);
    let read = async |agent: &Agent, token: Option<&str>, path: &str| {
        let mut request = get(path);
        if let Some(token) = token {
            request = with_token(request, token);
        }
        agent.signer.sign(&mut request).unwrap();
        market.send(request).await
    };
    let unknown = read(&market.seller, Some(SELLER_TOKEN), "/approvals/apr_unknown").await;
    assert_eq!(unknown.refusal(), (404, "not_found"));
    for (what, agent, token) in [
        (
            "another operator of the seller",
            &market.other,
            "token-other-seller",
        ),
        (
            "another seller of the operator",
            &market.seller,
            "token-other-sub",
        ),
    ] {
        let refused = read(agent, Some(token), &path).await;
        assert_eq!(refused.refusal(), (404, "not_found"), "{what}");
        assert_eq!(refused.bytes, unknown.bytes, "{what}");
    }
    for agent in [&market.buyer, &market.other, &market.seller] {
        let refused = read(agent, None, &path).await;
        assert_eq!(refused.refusal(), (401, "grant_invalid"));
    }
}

// ---- At once --------------------------------------------------------------------------------------------------------

async fn acceptances_at_once_of_different_offers_are_one(backing: Backing) {
    let market = Market::on(backing).await;
    let mut offers = Vec::new();
    for n in 0..32 {
        offers.push(market.open_offer(FLOOR + n).await);
    }
    let requests = offers.iter().map(|offer| {
        let path = format!("/offers/{offer}/accept");
        let token = Some(SELLER_TOKEN);
        signed(&market.seller, token, &path, &json!({}), &fresh_key())
    });
    let answers = at_once(&market, requests.collect()).await;
    let accepted: Vec<&Answer> = answers.iter().filter(|a| a.status == 200).collect();
    let reserved = |a: &&Answer| a.refusal() == (409, "listing_reserved");
    assert_eq!(
        (accepted.len(), answers.iter().filter(reserved).count()),
        (1, 31)
    );
    let stored = market.offers_on(LISTING).await;
    let accepted_in_store = stored.iter().filter(|o| o["state"] == "accepted");
    assert_eq!(accepted_in_store.count(), 1);
    assert_eq!(
        redeem(&market, &accepted[0].get("checkout")).await.status,
        201
    );
}

async fn redemptions_at_once_make_one_deal(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let checkout = market.accept(&offer).await.get("checkout");
    let body = json!({"checkout": checkout});
    let request = |_| signed(&market.buyer, None, "/deals", &body, &fresh_key());
    let answers = at_once(&market, (0..32).map(request).collect()).await;
    let made = answers.iter().filter(|a| a.status == 201).count();
    let replayed = |a: &&Answer| a.refusal() == (409, "offer_replayed");
    assert_eq!((made, answers.iter().filter(replayed).count()), (1, 31));
    let deals = market
        .backing
        .store
        .list(Kind::Deal, LISTING.into(), None, 10);
    assert_eq!(deals.await.unwrap().len(), 1);
}

async fn an_acceptance_and_a_new_offer_at_once_do_not_both_win(backing: Backing) {
    let market = Market::on(backing).await;
    for _ in 0..8 {
        let open = market.open_offer(FLOOR + 1).await;
        let path = format!("/offers/{open}/accept");
        let token = Some(SELLER_TOKEN);
        let mut body = offer_body(50_000);
        body["supersedes"] = json!(open);
        let requests = vec![
            signed(&market.seller, token, &path, &json!({}), &fresh_key()),
            signed(&market.buyer, None, "/offers", &body, &fresh_key()),
        ];
        let answers = at_once(&market, requests).await;
        match (answers[0].refusal(), answers[1].refusal()) {
            ((200, _), (422, "terms_invalid")) => {
                assert_eq!(state_of(&market, &open).await, "accepted");
            }
            ((409, "offer_replayed"), (201, _)) => {
                assert_eq!(state_of(&market, &open).await, "superseded");
            }
            neither => panic!("{neither:?}"),
        }
        market.clock.advance(1800);
    }
}

async fn offers_at_once_are_all_taken(backing: Backing) {
    let market = Market::on(backing).await;
    let agents = market.buyers(6);
    let requests = (0..64).map(|n| {
        let agent = &agents[n as usize % agents.len()];
        signed(agent, None, "/offers", &offer_body(FLOOR + n), &fresh_key())
    });
    let answers = at_once(&market, requests.collect()).await;
    let mut negotiations = HashSet::new();
    for answer in &answers {
        assert_eq!(answer.status, 201, "{:?}", answer.body);
        negotiations.insert(answer.get("negotiation_id"));
    }
    assert_eq!(negotiations.len(), 6);
    assert_eq!(market.offers_on(LISTING).await.len(), 64);
}

/// How many answers told that a price is too low; every other was refused for the budget.
fn told(answers: &[Answer]) -> usize {
    let told = answers
        .iter()
        .filter(|a| a.refusal() == (422, "below_floor"))
        .count();
    let exhausted = answers
        .iter()
        .filter(|a| a.refusal() == (429, "offer_budget_exhausted"))
        .count();
    let all: Vec<_> = answers.iter().map(Answer::refusal).collect();
    assert_eq!(told + exhausted, answers.len(), "{all:?}");
    told
}

async fn low_offers_at_once_never_exceed_the_budget_of_their_agent(backing: Backing) {
    let market = Market::on(backing).await;
    let low = |_| signed(&market.buyer, None, "/offers", &offer_body(1), &fresh_key());
    let answers = at_once(&market, (0..32).map(low).collect()).await;
    assert_eq!(told(&answers), 3);
    // Another agent has its own, within the operator's.
    let low = |_| {
        signed(
            &market.second,
            None,
            "/offers",
            &offer_body(1),
            &fresh_key(),
        )
    };
    let answers = at_once(&market, (0..8).map(low).collect()).await;
    assert_eq!(told(&answers), 3);
}

async fn what_was_decided_on_facts_that_have_changed_is_decided_again(backing: Backing) {
    let market = Market::on(backing).await;
    let (first, second) = (
        market.open_offer(FLOOR + 1).await,
        market.open_offer(FLOOR + 2).await,
    );
    // Both are held up where everything is decided and nothing is done yet.
    let held_up = async |request: Request<Bytes>| {
        let gate = market.store.wait_at(Call::Commit);
        let service = market.service.clone();
        let sent = tokio::spawn(async move { send_to(&service, request).await });
        gate.reached().await;
        (gate, sent)
    };
    let rich = signed(
        &market.buyer,
        None,
        "/offers",
        &offer_body(59_000),
        &fresh_key(),
    );
    let (gate, sent) = held_up(rich).await;
    for _ in 0..3 {
        assert_eq!(market.offer(1).await.refusal(), (422, "below_floor"));
    }
    gate.open();
    let late = sent.await.unwrap();
    assert_eq!(late.refusal(), (429, "offer_budget_exhausted"));

    let path = format!("/offers/{first}/accept");
    let token = Some(SELLER_TOKEN);
    let accept = signed(&market.seller, token, &path, &json!({}), &fresh_key());
    let (gate, sent) = held_up(accept).await;
    assert_eq!(market.accept(&second).await.status, 200);
    gate.open();
    let late = sent.await.unwrap();
    assert_eq!(late.refusal(), (409, "listing_reserved"));
}

async fn low_offers_at_once_never_exceed_the_budget_of_their_operator(backing: Backing) {
    let market = Market::on(backing).await;
    let agents = market.buyers(8);
    let low = |n: usize| {
        let agent = &agents[n % agents.len()];
        signed(agent, None, "/offers", &offer_body(1), &fresh_key())
    };
    let answers = at_once(&market, (0..32).map(low).collect()).await;
    assert_eq!(told(&answers), 10);
    // Every other agent of the operator is out of budget too, whatever it offers.
    let rich = signed(
        &market.second,
        None,
        "/offers",
        &offer_body(59_000),
        &fresh_key(),
    );
    assert_eq!(
        market.send(rich).await.refusal(),
        (429, "offer_budget_exhausted")
    );
    // Another operator is not.
    let body = offer_body(1);
    let other = market
        .post(&market.other, None, "/offers", &body, &fresh_key())
        .await;
    assert_eq!(other.refusal(), (422, "below_floor"));
}

async fn many_low_offers_at_once_all_end(backing: Backing) {
    let budget = OfferBudget {
        per_agent: 1000,
        per_operator: 1000,
        ..OfferBudget::default()
    };
    let market = Market::with(backing, Tier::Auto, |b| b.offer_budget(budget)).await;
    let low = |_| signed(&market.buyer, None, "/offers", &offer_body(1), &fresh_key());
    let answers = at_once(&market, (0..32).map(low).collect()).await;
    assert_eq!(told(&answers), 32);
}

// ---- Listings and their offers --------------------------------------------------------------------------------------

fn new_listing() -> Value {
    json!({
        "title": "A tandem",
        "description": "For two.",
        "category": "bicycles",
        "list_price": {"amount": 90_000, "currency": CURRENCY},
        "term_set": "goods-1",
        "proposed_terms": {"floor": {"amount": 70_000, "currency": CURRENCY}},
    })
}

#[tokio::test]
async fn under_auto_a_listing_is_created_without_terms() {
    let market = Market::on(Backing::memory().await).await;
    let created = market.seller_post("/listings", &new_listing()).await;
    assert_eq!((created.status, created.decision()), (201, "auto"));
    fits("listing", &created.body);
    let id = created.get("listing_id");
    let expected = json!({
        "listing_id": id,
        "state": "active",
        "title": "A tandem",
        "description": "For two.",
        "category": "bicycles",
        "list_price": {"amount": 90_000, "currency": CURRENCY},
        "term_set": "goods-1",
        "created_at": Timestamp::from_secs(NOW),
    });
    assert_eq!(created.body, expected);
    let seen = market.buyer_get(&format!("/listings/{id}")).await;
    assert_eq!(seen.body, expected);
    let stored = market.stored(Kind::Listing, &id).await.unwrap();
    assert!(!String::from_utf8_lossy(&stored.body).contains("70000"));
    assert!(market.stored(Kind::PrivateTerms, &id).await.is_none());
    let chain = market.chain(SubjectKind::Listing, &id).await;
    assert_eq!(chain.len(), 1);

    // Offers pass as ordinary ones: no floor, no budget, no options to choose from.
    let low = json!({"listing_id": id, "deal_terms": {
        "price": {"amount": 1, "currency": CURRENCY},
        "fulfillment": {"method_type": "by-hand", "selected_option_id": "today"},
        "payment": {"selected_term_id": "cash"},
    }});
    let mut offer = String::new();
    for _ in 0..12 {
        let answer = market.buyer_post("/offers", &low).await;
        assert_eq!((answer.status, answer.decision()), (201, "auto"));
        offer = answer.get("offer_id");
    }
    // The currency is the listing's all the same.
    let mut dollars = low.clone();
    dollars["deal_terms"]["price"]["currency"] = json!("USD");
    let dollars = market.buyer_post("/offers", &dollars).await;
    assert_eq!(dollars.refusal(), (422, "terms_invalid"));
    // No agent of the seller acts on it, except to set its terms.
    let price = json!({"price": {"amount": 80_000, "currency": CURRENCY}});
    let acts = [
        market.accept(&offer).await,
        counter(&market, &offer, 50_000).await,
        market
            .seller_post(&format!("/listings/{id}/price"), &price)
            .await,
    ];
    for refused in acts {
        assert_eq!(refused.refusal(), (403, "not_in_scope"));
    }
    let terms = market
        .seller_post(&format!("/listings/{id}/terms"), &json!({}))
        .await;
    assert_eq!(terms.status, 202, "{:?}", terms.body);
    // What has no verb is no action on it.
    let listed = market.seller_get(&format!("/offers?listing_id={id}")).await;
    assert_eq!(listed.status, 200);
    assert_eq!(decline(&market, &market.seller, &offer).await.status, 200);
}

#[tokio::test]
async fn under_ask_a_listing_waits_for_its_seller() {
    let market = Market::with(Backing::memory().await, Tier::Ask, |b| b).await;
    let asked = market.seller_post("/listings", &new_listing()).await;
    assert_eq!(asked.status, 202, "{:?}", asked.body);
    let request = &asked.body["approval_request"];
    fits("approval-request", request);
    assert_eq!(request["action"], "listing.create");
    assert!(!asked.body.to_string().contains("70000"));
    let id = request["authorization_details"][0]["subject"]["id"].clone();
    let unborn = market
        .buyer_get(&format!("/listings/{}", id.as_str().unwrap()))
        .await;
    assert_eq!(unborn.refusal(), (404, "not_found"));
    let mut unknown = new_listing();
    unknown["term_set"] = json!("goods-9");
    let refused = market.seller_post("/listings", &unknown).await;
    assert_eq!(refused.refusal(), (422, "terms_invalid"));
}

async fn offers_on_a_listing_are_listed_a_page_at_a_time(backing: Backing) {
    let market = Market::on(backing).await;
    market.publish("lst_tandem", SELLER, public_terms()).await;
    let mut made = Vec::new();
    for n in 0..7 {
        made.push(market.open_offer(FLOOR + n).await);
        market.clock.advance(1);
    }
    let elsewhere = json!({"listing_id": "lst_tandem", "deal_terms": deal_terms(FLOOR)});
    market.buyer_post("/offers", &elsewhere).await;
    let whole = market.seller_get("/offers?listing_id=lst_bicycle").await;
    assert_eq!((whole.status, whole.decision()), (200, ""));
    let ids = |page: &Answer| -> Vec<String> {
        let offers = page.body["offers"].as_array().unwrap();
        offers.iter().for_each(|offer| fits("offer", offer));
        let id = |offer: &Value| offer["offer_id"].as_str().unwrap().to_owned();
        offers.iter().map(id).collect()
    };
    assert_eq!(ids(&whole), made, "oldest first");
    assert_eq!(whole.body.get("next"), None);
    let (mut listed, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let path = format!("/offers?listing_id=lst_bicycle&limit=3{after}");
        let page = market.seller_get(&path).await;
        listed.extend(ids(&page));
        pages += 1;
        match page.body.get("next") {
            Some(next) => after = format!("&after={}", next.as_str().unwrap()),
            None => break,
        }
    }
    assert_eq!((listed, pages), (made.clone(), 3));
    let exact = market
        .seller_get("/offers?limit=7&listing_id=lst_bicycle")
        .await;
    assert_eq!(exact.body.get("next"), None);
    let last = format!("/offers?listing_id=lst_bicycle&after={}", made[6]);
    assert_eq!(ids(&market.seller_get(&last).await), Vec::<String>::new());
    let most = market
        .seller_get("/offers?listing_id=lst_bicycle&limit=100")
        .await;
    assert_eq!(ids(&most).len(), 7);

    for query in [
        "",
        "?",
        "?listing_id=",
        "?listing_id=bicycle",
        "?listing_id=lst_bicycle%20",
        "?listing_id=lst_bicycle&listing_id=lst_bicycle",
        "?listing_id=lst_bicycle&limit=0",
        "?listing_id=lst_bicycle&limit=101",
        "?listing_id=lst_bicycle&limit=-1",
        "?listing_id=lst_bicycle&limit=ten",
        "?listing_id=lst_bicycle&limit=",
        "?listing_id=lst_bicycle&limit=3&limit=4",
        "?listing_id=lst_bicycle&after=last",
        "?listing_id=lst_bicycle&after=off_1&after=off_2",
        "?listing_id=lst_bicycle&floor=1",
        "?Listing_id=lst_bicycle",
    ] {
        let refused = market.seller_get(&format!("/offers{query}")).await;
        assert_eq!(refused.refusal(), (400, "invalid_request"), "{query}");
        assert_eq!(refused.decision(), "", "{query}");
    }
    let unknown = market.seller_get("/offers?listing_id=lst_unknown").await;
    assert_eq!(unknown.refusal(), (404, "not_found"));
    let buyer = market.buyer_get("/offers?listing_id=lst_bicycle").await;
    assert_eq!(buyer.refusal(), (401, "grant_invalid"));
    market.store.take_down(Call::List);
    let down = market.seller_get("/offers?listing_id=lst_bicycle").await;
    assert_eq!(down.refusal(), (503, "unavailable"));
}
