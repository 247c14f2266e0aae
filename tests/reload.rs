//! Operators that come, change and go while the gateway runs (`Rctp::replace_operators`).
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/market.rs"]
mod market;

use std::sync::atomic::Ordering;

use common::{Answer, BUYER_TOKEN, FLOOR, LISTING, get, offer_body};
use hosted::Hosted;
use market::{BUYERS, Backing, Market, OTHER_TOKEN, OTHERS, SELLERS, fresh_key, signed};
use serde_json::{Value, json};
use tower_rctp::layer::authenticate::operators::{Operator, Operators, Replaced};

async fn listing_for_others(market: &Market) -> Answer {
    let mut request = get(&format!("/listings/{LISTING}"));
    market.other.signer.sign(&mut request).unwrap();
    market.send(request).await
}

/// The profile that a token's client acts for.
async fn acts_for(market: &Market, token: &str) -> Value {
    let offer = market
        .oauth_post(token, "/offers", &offer_body(FLOOR))
        .await;
    match offer.status {
        201 => {}
        _ => return json!(offer.error()),
    }
    let negotiation = offer.get("negotiation_id");
    let kind = tower_rctp::protocol::record::SubjectKind::Negotiation;
    market.chain(kind, &negotiation).await.pop().unwrap()["agent_profile"].clone()
}

fn changes(added: &[&str], changed: &[&str], removed: &[&str]) -> [Vec<String>; 3] {
    [added, changed, removed].map(|urls| urls.iter().map(|url| (*url).to_owned()).collect())
}

fn lists(replaced: Replaced) -> [Vec<String>; 3] {
    [replaced.added, replaced.changed, replaced.removed]
}

fn sellers() -> Operator {
    Operator::new(SELLERS).client("client-seller")
}

#[tokio::test]
async fn an_operator_comes_and_goes_between_two_requests() {
    let market = Market::on(Backing::memory().await).await;
    let alone = Operators::default().with(sellers());
    let replaced = market.rctp.replace_operators(alone.clone()).unwrap();
    assert_eq!(lists(replaced), changes(&[], &[], &[BUYERS, OTHERS]));
    let refused = listing_for_others(&market).await;
    assert_eq!(refused.refusal(), (401, "operator_unknown"));
    assert_eq!(acts_for(&market, OTHER_TOKEN).await, "operator_unknown");

    let with_others = alone.with(Operator::new(OTHERS).client("client-other"));
    let replaced = market.rctp.replace_operators(with_others).unwrap();
    assert_eq!(lists(replaced), changes(&[OTHERS], &[], &[]));
    assert_eq!(listing_for_others(&market).await.status, 200);
    assert_eq!(acts_for(&market, OTHER_TOKEN).await, OTHERS);
    // Nobody but those of the settings is served.
    assert_eq!(
        market.offer(FLOOR).await.refusal(),
        (401, "operator_unknown")
    );
}

#[tokio::test]
async fn a_client_acts_for_the_operator_that_it_is_registered_to_now() {
    let market = Market::on(Backing::memory().await).await;
    assert_eq!(acts_for(&market, BUYER_TOKEN).await, BUYERS);
    let moved = Operators::default()
        .with(Operator::new(BUYERS))
        .with(sellers())
        .with(
            Operator::new(OTHERS)
                .client("client-other")
                .client("client-buyer"),
        );
    let replaced = market.rctp.replace_operators(moved).unwrap();
    assert_eq!(lists(replaced), changes(&[], &[BUYERS, OTHERS], &[]));
    assert_eq!(acts_for(&market, BUYER_TOKEN).await, OTHERS);
}

#[tokio::test]
async fn the_profile_of_an_operator_that_went_is_forgotten_and_no_other() {
    let market = Market::on(Backing::memory().await).await;
    let fetches = || market.origins.fetches.load(Ordering::SeqCst);
    assert_eq!(market.offer(FLOOR).await.status, 201);
    assert_eq!(listing_for_others(&market).await.status, 200);
    let before = fetches();
    let all = market::operators();
    let without = Operators::default()
        .with(sellers())
        .with(Operator::new(BUYERS));
    for operators in [without, all.clone(), all] {
        market.rctp.replace_operators(operators).unwrap();
    }
    assert_eq!(market.offer(FLOOR + 1).await.status, 201);
    assert_eq!(fetches(), before, "the buyer's is still known");
    // What it publishes now counts, such as that it has no keys any more.
    let document = common::profile("other", &[]).to_string();
    let origin = (OTHERS.to_owned(), document.into());
    market.origins.documents.lock().unwrap().extend([origin]);
    assert_eq!(listing_for_others(&market).await.status, 401);
    assert!(fetches() > before);
}

#[tokio::test]
async fn operators_that_cannot_be_are_refused_and_those_in_force_stay() {
    let market = Market::on(Backing::memory().await).await;
    let twice =
        market::operators().with(Operator::new("https://x.example/p").client("client-other"));
    let http = market::operators().with(Operator::new("http://x.example/p"));
    for (wrong, named) in [
        (twice, "client-other"),
        (http, "https"),
        (Operators::default(), "missing"),
    ] {
        let error = market
            .rctp
            .replace_operators(wrong)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("operators") && error.contains(named),
            "{error}"
        );
    }
    assert_eq!(listing_for_others(&market).await.status, 200);
    assert_eq!(acts_for(&market, OTHER_TOKEN).await, OTHERS);
}

#[tokio::test]
async fn what_an_operator_has_asked_for_is_refused_once_it_went() {
    let site = Hosted::open(Backing::memory().await).await;
    let mut person = site.seller_person().await;
    let (offer, approval) = site.ask_to_accept(FLOOR).await;
    let without = Operators::default().with(Operator::new(BUYERS));
    site.rctp.replace_operators(without).unwrap();
    let answer = site.approve(&mut person, &approval).await;
    let decision = &answer.body["approval"]["decision"];
    assert_eq!(decision["reason"], "operator_unknown", "{:?}", answer.body);
    assert_eq!(site.offer_state(&offer).await, "open");
}

/// Whoever was let in is served to the end: what is replaced under it does not tear.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_progress_are_completed_while_operators_are_replaced() {
    let market = Market::on(Backing::memory().await).await;
    let (all, fewer) = (market::operators(), Operators::default().with(sellers()));
    let rctp = market.rctp.clone();
    let replacing = tokio::task::spawn_blocking(move || {
        for turn in 0..1000 {
            let operators = if turn % 2 == 0 { &fewer } else { &all };
            rctp.replace_operators(operators.clone()).unwrap();
        }
    });
    while !replacing.is_finished() {
        let offer = offer_body(FLOOR);
        let request = signed(&market.buyer, None, "/offers", &offer, &fresh_key());
        let answer = market.send(request).await;
        let whole = answer.status == 201 || answer.refusal() == (401, "operator_unknown");
        assert!(whole, "{:?}", answer.body);
    }
    replacing.await.unwrap();
    assert_eq!(market.offer(FLOOR).await.status, 201);
}
