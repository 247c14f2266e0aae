//! Failures, slow clients and the end.

use std::fs;

use http::{Method, header};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower_rctp::{
    Rctp,
    layer::{
        authenticate::operators::Operators,
        grant::introspection::{Introspect, IntrospectError},
    },
    protocol::grant::Introspection,
    store::{BoxFuture, MemoryStore},
    wire::jwk::SigningKey,
};

use crate::{
    gateway::{
        app::{self, Routes},
        config::Capacity,
        metrics::Metrics,
        serve::Server,
    },
    shop::{Shop, sign},
};

#[tokio::test]
async fn a_store_that_is_gone_shows_in_health() {
    let shop = Shop::open().await;
    fs::remove_file(shop.config().store).unwrap();
    let health = shop.get("/health").await;
    assert_eq!(health.status, 503);
    assert_eq!(
        health.body,
        json!({"status": "unavailable", "failed": "store"})
    );
    let offer = shop.offer(&shop.world.listing_id, 50_000).await;
    assert_eq!((offer.status, offer.error()), (503, "unavailable"));
    shop.close().await;
}

#[tokio::test]
async fn a_request_in_progress_is_completed_when_it_stops() {
    let shop = Shop::open().await;
    let offer = shop.offer(&shop.world.listing_id, 50_000).await;
    let path = format!("/offers/{}/accept", offer.get("offer_id"));
    // The seller's profile is known from here on; its grant is introspected on every call.
    assert_eq!(
        shop.seller(
            "/offers/off_none/accept",
            &shop.world.grants.auto.access_token
        )
        .await
        .status,
        404
    );
    let mut request = shop.request(Method::POST, &path, json!({}));
    let bearer = format!("Bearer {}", shop.world.grants.auto.access_token);
    request
        .headers_mut()
        .insert(header::AUTHORIZATION, bearer.parse().unwrap());
    sign(&shop.world.agents.seller, &mut request);

    let address = shop.running().address;
    let mut stream = shop.begin(&request).await;

    let stopping = tokio::spawn(shop.close());
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!stopping.is_finished());
    stream.write_all(b"{}").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\r\nrctp-decision: auto\r\n"), "{answer}");
    stopping.await.unwrap();
}

/// Time moves by itself here whenever nothing else does, so nothing may wait for a thread.
#[tokio::test(start_paused = true)]
async fn a_client_that_stalls_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    struct Nobody;
    impl Introspect for Nobody {
        fn introspect<'a>(
            &'a self,
            _: &'a str,
        ) -> BoxFuture<'a, Result<Introspection, IntrospectError>> {
            Box::pin(async { Err(IntrospectError("nobody is asked".into())) })
        }
    }
    let rctp = Rctp::builder()
        .public_url("https://gateway.example")
        .operators(Operators::onboarded([
            "https://agent.example/.well-known/ucp",
        ]))
        .introspect_with(Nobody)
        .store(MemoryStore::default())
        .signing_key(SigningKey::generate().unwrap())
        .build()
        .unwrap();
    let app = app::router(
        &rctp,
        "https://auth.example",
        &Capacity::default(),
        Metrics::new(),
        Routes::default(),
    );
    let server = Server::start(listener, app);

    let stalled = async |sent: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let in_the_headers = stalled("GET /health HTTP/1.1\r\nhost: a").await;
    assert!(!in_the_headers.contains("200"), "{in_the_headers}");
    let between_requests = stalled("GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(between_requests.starts_with("HTTP/1.1 200 "));
    let in_the_body =
        stalled("POST /offers HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{").await;
    assert!(in_the_body.starts_with("HTTP/1.1 503 "), "{in_the_body}");
    assert!(
        in_the_body.contains("same Idempotency-Key"),
        "{in_the_body}"
    );
    server.stop().await;
}
