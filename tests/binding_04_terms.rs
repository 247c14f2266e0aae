//! Binding 4: what a seller's agent proposes is held with the pending approval only.
#![allow(clippy::unwrap_used)]

mod common;

use common::{CURRENCY, FLOOR, LISTING, World};
use serde_json::json;
use tower_rctp::store::{Key, Kind};

#[tokio::test]
async fn proposed_terms_are_discarded_when_the_approval_expires() {
    let world = World::asking().await;
    let body = json!({"proposed_terms": {"floor": {"amount": FLOOR + 3, "currency": CURRENCY}}});
    let path = format!("/listings/{LISTING}/terms");
    let asked = world.seller_post(&path, &body).await;
    assert_eq!(asked.status, 202, "{:?}", asked.body);
    let id = asked.body["approval_request"]["approval_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let proposed = (FLOOR + 3).to_string();
    let stored = async || {
        let key = Key::new(Kind::Approval, &*id);
        let docs = world.rctp.store().load(vec![key]).await.unwrap();
        String::from_utf8(docs[0].as_ref().unwrap().body.to_vec()).unwrap()
    };

    world.rctp.sweep().await.unwrap();
    assert!(
        stored().await.contains(&proposed),
        "held while it is pending"
    );

    world.clock.advance(900);
    world.rctp.sweep().await.unwrap();
    let after = stored().await;
    assert!(
        !after.contains(&proposed) && !after.contains("floor"),
        "{after}"
    );
    assert!(after.contains("expired"));
}

#[tokio::test]
async fn an_overdue_reservation_is_written_down_as_it_is_read() {
    let world = World::new().await;
    let offer = world.offer(FLOOR + 1).await.get("offer_id");
    let path = format!("/offers/{offer}/accept");
    let accepted = world.seller_post(&path, &json!({})).await;
    assert_eq!(accepted.status, 200);
    world.clock.advance(1800);
    let read = world.buyer_get(&format!("/offers/{offer}")).await;
    assert_eq!(read.body["state"], "expired");
    assert!(world.rctp.sweep().await.unwrap() >= 2);
    let swept = world.buyer_get(&format!("/offers/{offer}")).await;
    assert_eq!(swept.bytes, read.bytes);
    let listing = world.buyer_get(&format!("/listings/{LISTING}")).await;
    assert_eq!(listing.body["state"], "active");
    // Nothing is left to do.
    assert_eq!(world.rctp.sweep().await.unwrap(), 0);
}
