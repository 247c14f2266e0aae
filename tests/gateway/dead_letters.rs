//! Webhooks that could not be delivered, in the hands of whoever runs the gateway.

use std::sync::Arc;

use axum::{Json, Router, routing};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};
use tower_rctp::{
    protocol::{
        time::Timestamp,
        webhook::{Event, EventType, Outgoing},
    },
    store::{Key, Kind, Put, SqliteStore, Store, Unit},
    wire::jwk::SigningKey,
};

use crate::{
    gateway::{
        Config,
        config::Onboarded,
        dead_letters::{Order, run},
        start,
    },
    shop::operator_profile,
};

async fn said(config: &Config, order: Order) -> Result<String, String> {
    let mut out = Vec::new();
    let done = run(config, &order, &mut out).await;
    done.map_err(|error| error.to_string())
        .map(|()| String::from_utf8(out).unwrap())
}

/// Events of last week, of which nobody could be told.
async fn bury(config: &Config, receiver: &str, ids: &[&str]) {
    let store = SqliteStore::open(&config.store).await.unwrap();
    let put = |id: &&str| {
        let event = Event {
            event_id: (*id).into(),
            event: EventType::DealEvent,
            created_at: Timestamp::from_secs(1_700_000_000),
            data: json!({"deal_id": "deal_1", "event": "accepted"}),
        };
        let letter = Outgoing::new(receiver, "deal_1", &event);
        Put {
            key: Key::new(Kind::DeadLetter, *id),
            expected: 0,
            parent: Some("dead_letters".into()),
            due: None,
            body: serde_json::to_vec(&letter).unwrap().into(),
        }
    };
    let unit = Unit {
        put: ids.iter().map(put).collect(),
        ..Unit::default()
    };
    let seal = Arc::new(SigningKey::generate().unwrap());
    store.commit(unit, seal).await.unwrap();
}

#[tokio::test]
async fn dead_letters_are_listed_sent_again_and_thrown_away() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let key = SigningKey::generate().unwrap();
    let profile = operator_profile(&key, &format!("{base}/webhooks"));
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let receive = move |Json(event): Json<Value>| async move {
        arrived.send(event).unwrap();
    };
    let app = Router::new()
        .route("/ucp", routing::get(move || async move { Json(profile) }))
        .route("/webhooks", routing::post(receive));
    tokio::spawn(async move { axum::serve(listener, app).await });

    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::dev_in(directory.path());
    let none = said(&config, Order::List).await.unwrap_err();
    assert!(none.contains("has this gateway run?"), "{none}");

    let receiver = format!("{base}/ucp");
    config.operators.push(Onboarded {
        profile: receiver.clone(),
        clients: Vec::new(),
        roles: Vec::new(),
    });
    start(config.clone()).await.unwrap().stop().await;
    assert_eq!(said(&config, Order::List).await.unwrap(), "");
    bury(&config, &receiver, &["evt_1", "evt_2", "evt_3", "evt_4"]).await;
    let listed = said(&config, Order::List).await.unwrap();
    let first = listed.lines().next().unwrap();
    assert_eq!(listed.lines().count(), 4);
    assert_eq!(
        first,
        format!("evt_1 2023-11-14T22:13:20Z deal.event of deal_1 to {receiver} after 0 tries")
    );

    let wrong = said(&config, Order::Discard("evt_9".into()))
        .await
        .unwrap_err();
    assert!(wrong.contains("evt_9"), "{wrong}");
    let wrong = said(&config, Order::Resend("evt_9".into()))
        .await
        .unwrap_err();
    assert!(wrong.contains("--dead-letters"), "{wrong}");
    let gone = said(&config, Order::Discard("evt_1".into())).await.unwrap();
    assert_eq!(gone, "evt_1 is thrown away\n");

    // One before the gateway runs, the rest while it does.
    said(&config, Order::Resend("evt_3".into())).await.unwrap();
    let running = start(config.clone()).await.unwrap();
    assert_eq!(arrivals.recv().await.unwrap()["event_id"], "evt_3");
    let rest = said(&config, Order::Resend("all".into())).await.unwrap();
    assert_eq!(rest, "evt_2 is sent again\nevt_4 is sent again\n");
    for id in ["evt_2", "evt_4"] {
        let event = arrivals.recv().await.unwrap();
        assert_eq!(event["event_id"], id);
        assert_ne!(event["created_at"], "2023-11-14T22:13:20Z");
    }
    assert_eq!(said(&config, Order::List).await.unwrap(), "");
    running.stop().await;
}
