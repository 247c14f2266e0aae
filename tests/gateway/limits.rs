//! Too many requests: what is shed, with what answer, and that nothing came of it.

use axum::{Router, routing::post};
use http::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use crate::{
    gateway::{config::Capacity, limits, metrics::Metrics},
    shop::{Answer, FLOOR, Shop, offer_body, sign},
};

/// The form of every refusal that is no decision (binding 6).
fn assert_shed(answer: &Answer) {
    assert_eq!((answer.status, answer.error()), (503, "unavailable"));
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert_eq!(answer.body["retry_after"], 1);
    assert!(!answer.headers.contains_key("rctp-decision"));
    assert!(answer.get("message").contains("same Idempotency-Key"));
}

#[tokio::test]
async fn what_is_over_the_concurrency_limit_is_shed_and_can_be_sent_again() {
    let shop = Shop::with(|config| config.server.concurrent_requests = 1).await;
    let listing = shop.new_listing().await;
    let path = format!("/listings/{listing}");
    // The gateway itself fetches the buyer's profile from here on no more.
    let mut read = shop.request(Method::GET, &path, Value::Null);
    sign(&shop.world.agents.buyer, &mut read);
    let offer = |amount| {
        let mut request = shop.request(Method::POST, "/offers", offer_body(&listing, amount));
        sign(&shop.world.agents.buyer, &mut request);
        request
    };
    let (held, over) = (offer(FLOOR), offer(FLOOR + 1));
    let mut stream = shop.begin(&held).await;

    let shed = shop.send(over.clone()).await;
    assert_shed(&shed);
    // Every other route too, but those that machines ask.
    assert_shed(&shop.send(read).await);
    assert_shed(&shop.get("/.well-known/ucp").await);
    assert_eq!(shop.get("/health").await.status, 200);
    let metrics = shop.get("/metrics").await.text;
    for line in [
        r#"rctp_shed_total{limit="concurrency"} 3"#,
        r#"rctp_shed_total{limit="rate"} 0"#,
    ] {
        assert!(
            metrics.lines().any(|l| l == line),
            "{line} is not in\n{metrics}"
        );
    }
    assert!(!metrics.contains("create_offer"), "{metrics}");

    stream.write_all(held.body()).await.unwrap();
    let mut first = [0; 20];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 201 Created");
    // Nothing came of the one that was shed: sent again, byte for byte, it is executed for the first time.
    let again = shop.send(over).await;
    assert_eq!(again.status, 201, "{:?}", again.body);
    let path = format!("/dev/record/negotiation/{}", again.get("negotiation_id"));
    let record = shop.get(&path).await.body;
    assert_eq!(
        record["entries"].as_array().map_or(0, Vec::len),
        2,
        "{record}"
    );
    drop(stream);
    shop.close().await;
}

/// Time moves when this moves it.
#[tokio::test(start_paused = true)]
async fn what_is_over_the_rate_limit_is_shed_until_the_second_is_over() {
    let capacity = Capacity {
        requests_per_second: 2,
        ..Capacity::default()
    };
    let metrics = Metrics::new();
    let app = Router::new().route("/", post(async || axum::Json(json!({"done": true}))));
    let app = limits::within(&capacity, &metrics, app);
    let ask = async || {
        let request = Request::post("/").body(axum::body::Body::empty()).unwrap();
        let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
        let body = axum::body::to_bytes(body, 4096).await.unwrap();
        Answer::read(Response::from_parts(parts, body).into()).await
    };
    for second in 1..=2 {
        for _ in 0..2 {
            assert_eq!(ask().await.status, 200);
        }
        for _ in 0..3 {
            assert_shed(&ask().await);
        }
        let counted = format!("rctp_shed_total{{limit=\"rate\"}} {}", 3 * second);
        assert!(metrics.text().unwrap().contains(&counted));
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
    }
}
