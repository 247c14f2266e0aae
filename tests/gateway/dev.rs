//! The development world, and that production has nothing of it.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tower_rctp::{
    protocol::record::verify_chain,
    wire::{crypto::default_provider, jwk::Keys},
};

use crate::{
    gateway::{Config, DevWorld, start},
    settings::production,
    shop::{FLOOR, Shop, client},
};

#[tokio::test]
async fn its_routes_need_the_secret_and_a_loopback_name() {
    let shop = Shop::open().await;
    let url = &shop.world.url;
    for path in ["/dev/listings", "/dev/grants", "/dev/enrolments"] {
        for token in ["wrong", &shop.world.grants.auto.access_token] {
            let post = shop.http.post(format!("{url}{path}")).bearer_auth(token);
            assert_eq!(post.send().await.unwrap().status(), 401, "{path}");
        }
    }
    for path in ["/dev/profiles/buyer", "/dev/record/gateway/own"] {
        let rebound = shop
            .http
            .get(format!("{url}{path}"))
            .header("host", "evil.example");
        assert_eq!(rebound.send().await.unwrap().status(), 404, "{path}");
    }
    assert_eq!(shop.get("/dev/profiles/nobody").await.status, 404);
    assert_eq!(shop.get("/dev/record/weather/today").await.status, 404);
    shop.close().await;
}

#[tokio::test]
async fn a_link_lets_the_seller_enrol() {
    let shop = Shop::open().await;
    let link = shop.marketplace("/dev/enrolments", json!({})).await;
    assert_eq!((link.status, &link.body["expires_in"]), (201, &json!(600)));
    let link = link.get("url");
    // At the name that browsers allow passkeys to.
    let page = format!("{}/enroll#ticket=", shop.running().rctp.public_url());
    let ticket = link.strip_prefix(&page);
    let authorization = shop.running().authorization.clone().unwrap();
    let seller = authorization.ticket_seller(ticket.unwrap());
    assert_eq!(seller.as_ref(), Some(&shop.world.seller_sub));

    let link = shop.marketplace("/dev/enrolments", json!({"seller": "sub_another"}));
    let link = link.await.get("url");
    let (_, ticket) = link.split_once("#ticket=").unwrap();
    let seller = authorization.ticket_seller(ticket);
    assert_eq!(seller.as_deref(), Some("sub_another"));
    for wrong in [json!({"seller": "another"}), json!({"sub": "sub_another"})] {
        let refused = shop.marketplace("/dev/enrolments", wrong).await;
        assert_eq!((refused.status, refused.error()), (400, "invalid_request"));
    }
    shop.close().await;
}

#[tokio::test]
async fn a_fresh_listing_keeps_its_floor_to_itself_and_its_record_verifies() {
    let shop = Shop::open().await;
    for wrong in [
        json!({}),
        json!({"floor": FLOOR}),
        json!({"floor": {"amount": 60_001, "currency": "EUR"}}),
        json!({"floor": {"amount": 1, "currency": "CHF"}}),
        json!({"floor": {"amount": 1, "currency": "EUR"}, "tier": "auto"}),
    ] {
        let refused = shop.marketplace("/dev/listings", wrong).await;
        assert_eq!((refused.status, refused.error()), (400, "invalid_request"));
    }
    let listing = shop.new_listing().await;
    let offer = shop.offer(&listing, FLOOR + 1).await;
    let record = shop
        .get(&format!(
            "/dev/record/negotiation/{}",
            offer.get("negotiation_id")
        ))
        .await;
    assert!(!record.text.contains(&FLOOR.to_string()));
    let profile = shop.get("/.well-known/ucp").await.body;
    let keys = Keys::parse(&profile["keys"], default_provider()).unwrap();
    let entries = record.body["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 1);
    verify_chain(entries, &keys).unwrap();
    shop.close().await;
}

#[tokio::test]
async fn a_restart_keeps_keys_secrets_grants_and_revocations() {
    let shop = Shop::open().await;
    let before = shop.world.clone();
    let key = shop.get("/.well-known/ucp").await.body["keys"][0]["kid"].clone();
    let grant = shop.marketplace("/dev/grants", json!({})).await;
    let (kept, revoked) = (
        grant.get("access_token"),
        before.grants.auto.access_token.clone(),
    );
    shop.revoke(&before.agents.seller, &before.grants.auto.refresh_token)
        .await;

    let shop = shop.restart().await;
    let after = DevWorld::load(&shop.config().dev_dir).unwrap();
    assert_eq!(after.listing_id, before.listing_id);
    assert_eq!(after.secret, before.secret);
    assert_eq!(
        after.agents.seller.client_secret,
        before.agents.seller.client_secret
    );
    assert_eq!(
        after.agents.seller.key.kid(),
        before.agents.seller.key.kid()
    );
    assert_eq!(after.grants.ask.grant_id, before.grants.ask.grant_id);
    assert_ne!(after.grants.auto.grant_id, before.grants.auto.grant_id);
    assert_eq!(
        shop.get("/.well-known/ucp").await.body["keys"][0]["kid"],
        key
    );

    let offer = shop.offer(&after.listing_id, 50_000).await;
    let accept = format!("/offers/{}/accept", offer.get("offer_id"));
    let refused = shop.seller(&accept, &revoked).await;
    assert_eq!((refused.status, refused.error()), (403, "grant_revoked"));
    let accepted = shop.seller(&accept, &kept).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);

    // What was sold is replaced by the next start.
    let shop = shop.restart().await;
    assert_ne!(shop.world.listing_id, after.listing_id);
    shop.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn keys_secrets_and_the_store_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let shop = Shop::open().await;
    let Config {
        store,
        signing_key,
        dev_dir,
        ..
    } = shop.config();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dev_dir), 0o700);
    let mut files = vec![store, signing_key];
    files.extend(fs::read_dir(&dev_dir).unwrap().map(|f| f.unwrap().path()));
    assert_eq!(files.len(), 2 + 6, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    shop.close().await;
}

#[tokio::test]
async fn production_has_nothing_of_the_development_world() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        dev: false,
        ..Config::dev_in(directory.path())
    };
    let running = start(Config {
        listen: config.listen,
        store: config.store,
        signing_key: config.signing_key,
        dev_dir: config.dev_dir.clone(),
        ..production()
    })
    .await
    .unwrap();
    assert!(running.world.is_none());
    assert!(!config.dev_dir.exists());
    let http = client();
    let url = format!("http://{}", running.address);
    for path in [
        "/dev/profiles/buyer",
        "/dev/record/gateway/own",
        "/.well-known/oauth-authorization-server",
        "/oauth/authorize",
        "/oauth/consent",
        "/grants",
        "/grants/list",
    ] {
        let answer = http.get(format!("{url}{path}")).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
    }
    for path in [
        "/dev/listings",
        "/dev/grants",
        "/dev/enrolments",
        "/oauth/consent",
        "/oauth/token",
        "/oauth/introspect",
        "/oauth/revoke",
    ] {
        let answer = http.post(format!("{url}{path}")).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
    }
    let resource = http.get(format!("{url}/.well-known/oauth-protected-resource"));
    let resource: Value = resource.send().await.unwrap().json().await.unwrap();
    assert_eq!(resource["resource"], "https://gateway.marketplace.example");
    assert_eq!(
        resource["authorization_servers"],
        json!(["https://auth.marketplace.example"])
    );
    assert_eq!(
        http.get(format!("{url}/health"))
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
    running.stop().await;
}
