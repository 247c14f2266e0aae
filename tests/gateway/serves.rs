//! What it serves, counts and leaves out.

use http::Method;
use serde_json::{Value, json};

use crate::{
    gateway::start,
    shop::{Answer, FLOOR, Shop, offer_body, sign},
};

#[tokio::test]
async fn it_serves_its_documents() {
    let shop = Shop::open().await;
    // Sellers use passkeys on it, so it is known by a name.
    let url = &shop.running().rctp.public_url().to_owned();
    let port = shop.world.url.rsplit_once(':').unwrap().1;
    assert_eq!(*url, format!("http://localhost:{port}"));

    let health = shop.get("/health").await;
    assert_eq!((health.status, health.body), (200, json!({"status": "ok"})));

    let profile = shop.get("/.well-known/ucp").await.body;
    assert_eq!(profile, shop.running().rctp.profile());
    let rest = &profile["ucp"]["services"]["dev.rctp"][0];
    assert_eq!(rest["endpoint"], format!("{url}/"));

    let resource = shop.get("/.well-known/oauth-protected-resource").await.body;
    assert_eq!(resource["resource"], *url);
    assert_eq!(resource["authorization_servers"], json!([url]));

    let server = shop
        .get("/.well-known/oauth-authorization-server")
        .await
        .body;
    assert_eq!(server["issuer"], *url);
    assert_eq!(server["token_endpoint"], format!("{url}/oauth/token"));

    let nowhere = shop.get("/nowhere").await;
    assert_eq!((nowhere.status, nowhere.error()), (404, "not_found"));
    let head = shop
        .http
        .head(format!("{url}/health"))
        .send()
        .await
        .unwrap();
    assert_eq!(head.status(), 200);
    let post = shop
        .http
        .post(format!("{url}/health"))
        .send()
        .await
        .unwrap();
    assert_eq!(
        (post.status().as_u16(), &post.headers()["allow"]),
        (405, &"GET,HEAD".parse().unwrap())
    );
    shop.close().await;
}

#[tokio::test]
async fn its_documents_are_cached_and_say_how_to_call_it() {
    let shop = Shop::open().await;
    let url = shop.running().rctp.public_url().to_owned();
    for path in [
        "/.well-known/ucp",
        "/.well-known/oauth-protected-resource",
        "/schemas/offer.json",
        "/openapi.json",
        "/docs",
    ] {
        let get = shop.http.get(format!("{url}{path}"));
        let answer = get.try_clone().unwrap().send().await.unwrap();
        assert_eq!(
            answer.headers()["cache-control"],
            "public, max-age=300",
            "{path}"
        );
        let etag = answer.headers()["etag"].clone();
        let length = answer.content_length();
        let again = get.header("if-none-match", etag).send().await.unwrap();
        assert_eq!(again.status(), 304, "{path}");
        let head = shop.http.head(format!("{url}{path}")).send().await.unwrap();
        assert_eq!(head.status(), 200, "{path}");
        assert_eq!(
            head.headers()["content-length"],
            length.unwrap().to_string(),
            "{path}"
        );
    }
    let openapi = shop.get("/openapi.json").await.body;
    assert_eq!(openapi["servers"], json!([{ "url": url }]));
    let bearer = &openapi["components"]["securitySchemes"]["bearer"];
    assert_eq!(bearer["x-authorization-server"], url);
    assert!(!openapi["paths"]["/approve/pending"].is_null());
    shop.close().await;
}

#[tokio::test]
async fn a_former_key_of_the_settings_stays_published_and_redeems_its_checkouts() {
    let shop = Shop::open().await;
    let listing = shop.new_listing().await;
    let offer = shop.offer(&listing, FLOOR).await.get("offer_id");
    let token = shop.world.grants.auto.access_token.clone();
    let accepted = shop
        .seller(&format!("/offers/{offer}/accept"), &token)
        .await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    let checkout = json!({"checkout": accepted.body["checkout"]});
    let former = shop.get("/.well-known/ucp").await.body["keys"][0].clone();

    let mut config = shop.config();
    let directory = shop.close().await;
    let file = directory.path().join("former.json");
    std::fs::write(&file, former.to_string()).unwrap();
    std::fs::remove_file(&config.signing_key).unwrap();
    config.former_keys = vec![file];
    let running = start(config).await.unwrap();
    let shop = Shop::visit(running.world.clone().unwrap());
    let keys = shop.get("/.well-known/ucp").await.body["keys"].clone();
    assert_eq!(keys.as_array().unwrap().len(), 2);
    assert_ne!(keys[0], former);
    assert_eq!(keys[1], former);
    let mut redeem = shop.request(Method::POST, "/deals", checkout);
    sign(&shop.world.agents.buyer, &mut redeem);
    let deal = shop.send(redeem).await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
    running.stop().await;
}

#[tokio::test]
async fn it_counts_decisions_by_verb_outcome_and_reason() {
    let shop = Shop::open().await;
    let listing = shop.new_listing().await;
    let low = shop.offer(&listing, FLOOR - 1).await;
    assert_eq!((low.status, low.error()), (422, "below_floor"));
    let offer = shop.offer(&listing, FLOOR).await;
    assert_eq!(offer.status, 201, "{:?}", offer.body);
    let accept = format!("/offers/{}/accept", offer.get("offer_id"));
    let asked = shop
        .seller(&accept, &shop.world.grants.ask.access_token)
        .await;
    assert_eq!(asked.status, 202, "{:?}", asked.body);
    shop.get("/nowhere").await;

    let metrics = shop.get("/metrics").await;
    assert!(
        metrics.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    for line in [
        r#"rctp_decisions_total{operation="create_offer",verb="offer.create",outcome="forbid",reason="below_floor"} 1"#,
        r#"rctp_decisions_total{operation="create_offer",verb="offer.create",outcome="auto",reason=""} 1"#,
        r#"rctp_decisions_total{operation="accept_offer",verb="offer.accept",outcome="ask",reason=""} 1"#,
        r#"rctp_webhooks_total{outcome="dead"} 0"#,
        r#"rctp_request_duration_seconds_count{operation="create_offer"} 2"#,
        r#"rctp_requests_total{status="4xx"} 2"#,
        r#"rctp_build_info{version="#,
    ] {
        assert!(
            metrics.text.lines().any(|l| l.starts_with(line)),
            "{line} is not in\n{}",
            metrics.text
        );
    }
    shop.close().await;
}

#[tokio::test]
async fn a_repeat_is_no_second_decision() {
    let shop = Shop::open().await;
    let listing = shop.new_listing().await;
    let mut request = shop.request(Method::POST, "/offers", offer_body(&listing, FLOOR));
    sign(&shop.world.agents.buyer, &mut request);
    let first = shop.send(request.clone()).await;
    let second = shop.send(request).await;
    assert_eq!((first.status, &first.body), (201, &second.body));
    let metrics = shop.get("/metrics").await.text;
    let counted = r#"rctp_decisions_total{operation="create_offer",verb="offer.create",outcome="auto",reason=""} 1"#;
    assert!(metrics.contains(counted), "{metrics}");
    shop.close().await;
}

#[tokio::test]
async fn an_agent_without_keys_buys_and_sells_by_token() {
    let shop = Shop::open().await;
    let listing = shop.new_listing().await;
    let buyer = &shop.world.agents.buyer;
    let token = shop
        .token(buyer, &[("grant_type", "client_credentials")])
        .await;
    assert_eq!(
        (token.status, &token.body["expires_in"]),
        (200, &json!(900))
    );
    let token = token.get("access_token");
    let offer = shop
        .unsigned("/offers", &token, offer_body(&listing, FLOOR))
        .await;
    assert_eq!(offer.status, 201, "{:?}", offer.body);
    let accept = format!("/offers/{}/accept", offer.get("offer_id"));
    let accepted = shop
        .unsigned(&accept, &shop.world.grants.unsigned.access_token, json!({}))
        .await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    assert_eq!(accepted.get("state"), "accepted");
    shop.close().await;
}

#[tokio::test]
async fn both_names_of_loopback_may_be_signed_for() {
    let shop = Shop::open().await;
    let port = shop.running().address.port();
    let mut request = shop.request(
        Method::GET,
        &format!("/listings/{}", shop.world.listing_id),
        Value::Null,
    );
    *request.uri_mut() = format!("http://localhost:{port}{}", request.uri().path())
        .parse()
        .unwrap();
    sign(&shop.world.agents.buyer, &mut request);
    let listing = shop.send(request).await;
    assert_eq!(listing.status, 200, "{:?}", listing.body);
    shop.close().await;
}

#[tokio::test]
async fn an_mcp_client_that_knows_nothing_of_rctp_sells_by_token() {
    let shop = Shop::open().await;
    let url = shop.running().rctp.public_url().to_owned();
    let listing = shop.new_listing().await;
    let offer = shop.offer(&listing, FLOOR).await.get("offer_id");
    let send = async |token: Option<&str>, method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = shop
            .http
            .post(format!("{url}/mcp"))
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2025-11-25")
            .json(&message);
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        Answer::read(request.send().await.unwrap()).await
    };
    // It begins as every client does, and is told where to ask the seller.
    let initialize = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "any", "version": "1"},
    });
    let refused = send(None, "initialize", initialize.clone()).await;
    assert_eq!(refused.status, 401);
    let challenge = refused.headers["www-authenticate"].to_str().unwrap();
    let metadata = challenge.split('"').nth(1).unwrap();
    let metadata = Answer::read(shop.http.get(metadata).send().await.unwrap()).await;
    assert_eq!(metadata.get("resource"), format!("{url}/mcp"));
    assert_eq!(metadata.body["authorization_servers"], json!([url]));

    let token = &shop.world.grants.unsigned.access_token;
    let initialized = send(Some(token), "initialize", initialize).await;
    assert!(initialized.body["result"]["instructions"].is_string());
    let listed = send(Some(token), "tools/list", json!({})).await;
    let tools = listed.body["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool["name"] == "accept_offer"));
    let accept = json!({"name": "accept_offer", "arguments": {
        "offer_id": offer, "meta": {"idempotency-key": "a-key-that-a-model-has-drawn"},
    }});
    let accepted = send(Some(token), "tools/call", accept).await;
    let accepted = &accepted.body["result"]["structuredContent"];
    assert_eq!(accepted["decision"], json!({"decision": "auto"}));
    assert_eq!(accepted["result"]["state"], "accepted");
    // What happens in a batch is counted as what happens alone.
    let other = shop.offer(&listing, FLOOR).await.get("offer_id");
    let accept = |id| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
            "name": "accept_offer", "arguments": {
                "offer_id": other, "meta": {"idempotency-key": format!("a-key-that-a-model-has-drawn-{id}")},
            },
        }})
    };
    let batch = shop.http.post(format!("{url}/mcp")).bearer_auth(token);
    let batch = batch.json(&json!([accept(1), accept(2)])).send().await;
    assert_eq!(batch.unwrap().status(), 200);
    let metrics = shop.get("/metrics").await.text;
    let counted = r#"rctp_decisions_total{operation="accept_offer",verb="offer.accept",outcome="forbid",reason="listing_reserved"} 2"#;
    assert!(metrics.contains(counted), "{metrics}");
    shop.close().await;
}
