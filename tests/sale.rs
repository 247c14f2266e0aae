//! The whole path, through every layer: an offer becomes a deal, and the record says so.
#![allow(clippy::unwrap_used)]

mod common;

use common::{FLOOR, World, deal_terms, offer_body};
use serde_json::json;
use tower_rctp::protocol::record::SubjectKind;

#[tokio::test]
async fn an_offer_becomes_a_deal() {
    let world = World::new().await;

    let listing = world.buyer_get("/listings/lst_bicycle").await;
    assert_eq!(listing.status, 200, "{:?}", listing.body);
    assert_eq!(listing.body["state"], "active");

    let low = world.offer(FLOOR - 1).await;
    assert_eq!(low.refusal(), (422, "below_floor"), "{:?}", low.body);

    let offer = world.offer(FLOOR + 1).await;
    assert_eq!(offer.status, 201, "{:?}", offer.body);
    assert_eq!(offer.decision(), "auto");
    let id = offer.get("offer_id");

    let counter = world
        .seller_post(
            &format!("/offers/{id}/counter"),
            &json!({"deal_terms": deal_terms(50_000)}),
        )
        .await;
    assert_eq!(counter.status, 201, "{:?}", counter.body);

    let mut answer = offer_body(45_000);
    answer["supersedes"] = json!(counter.get("offer_id"));
    let answer = world.buyer_post("/offers", &answer).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    let id = answer.get("offer_id");

    let accepted = world
        .seller_post(&format!("/offers/{id}/accept"), &json!({}))
        .await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    assert_eq!(accepted.body["state"], "accepted");

    let mine = world.buyer_get(&format!("/offers/{id}")).await;
    let deal = world
        .buyer_post("/deals", &json!({"checkout": mine.get("checkout")}))
        .await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);

    let negotiation = world
        .chain(SubjectKind::Negotiation, &mine.get("negotiation_id"))
        .await;
    assert_eq!(negotiation.len(), 5, "{negotiation:#?}");
    let deals = world.chain(SubjectKind::Deal, &deal.get("deal_id")).await;
    assert_eq!(deals.len(), 1);
}
