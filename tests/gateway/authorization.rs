//! The authorization server of the development world.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use tokio::net::TcpListener;
use tower_rctp::protocol::{
    grant::{GrantStatus, Introspection},
    policy::Tier,
    time::Timestamp,
};

use crate::{
    gateway::{
        authorization::{Authorization, Client, Granted},
        serve::Server,
    },
    shop::{Shop, client},
};

#[tokio::test]
async fn a_refresh_token_works_once_and_its_second_use_revokes_the_grant() {
    let shop = Shop::open().await;
    let seller = &shop.world.agents.seller;
    let offer = shop.offer(&shop.world.listing_id, 50_000).await;
    let accept = format!("/offers/{}/accept", offer.get("offer_id"));
    let first = shop.world.grants.ask.refresh_token.clone();
    let refresh = async |token: String| {
        let form = [("grant_type", "refresh_token"), ("refresh_token", &token)];
        shop.token(seller, &form).await
    };
    let renewed = refresh(first.clone()).await;
    assert_eq!(renewed.status, 200, "{:?}", renewed.body);
    let details = &renewed.body["authorization_details"][0];
    assert_eq!(details["jkt"], *seller.key.kid().as_str());
    let next = renewed.get("access_token");
    assert_eq!(shop.seller(&accept, &next).await.status, 202);

    let reused = refresh(first).await;
    assert_eq!((reused.status, reused.error()), (400, "invalid_grant"));
    let refused = shop.seller(&accept, &next).await;
    assert_eq!((refused.status, refused.error()), (403, "grant_revoked"));
    let ended = refresh(renewed.get("refresh_token")).await;
    assert_eq!((ended.status, ended.error()), (400, "invalid_grant"));
}

#[tokio::test]
async fn tokens_are_introspected_by_the_gateway_and_revoked_by_their_own_client_alone() {
    let shop = Shop::open().await;
    let (url, token) = (&shop.world.url, &shop.world.grants.auto.access_token);
    let agents = &shop.world.agents;
    for (agent, secret, status) in [
        (&agents.seller, &agents.seller.client_secret, 400),
        (&agents.seller, &agents.buyer.client_secret, 401),
    ] {
        let asked = shop
            .http
            .post(format!("{url}/oauth/introspect"))
            .basic_auth(&agent.client_id, Some(secret))
            .body(format!("token={token}"));
        assert_eq!(asked.send().await.unwrap().status(), status);
    }
    assert_eq!(shop.revoke(&agents.buyer, token).await, 400);
    assert_eq!(shop.revoke(&agents.buyer, "unknown").await, 200);
    let offer = shop.offer(&shop.world.listing_id, 50_000).await;
    let accept = format!("/offers/{}/accept", offer.get("offer_id"));
    assert_eq!(shop.seller(&accept, token).await.status, 200);
    shop.close().await;
}

#[tokio::test]
async fn what_introspection_says_follows_the_clock() {
    let directory = tempfile::tempdir().unwrap();
    let time = Arc::new(AtomicI64::new(1_790_000_000));
    let clock = {
        let time = time.clone();
        Arc::new(move || Timestamp::from_secs(time.load(Ordering::SeqCst)))
    };
    let server = Authorization::open(
        directory.path().join("authorization.json"),
        "http://127.0.0.1".into(),
        Vec::new(),
        vec![Client {
            id: "gateway".into(),
            secret: "secret".into(),
            gateway: true,
        }],
        clock,
    )
    .unwrap();
    let granted = Granted {
        sub: "sub_seller".into(),
        client_id: "seller".into(),
        jkt: None,
        tiers: [("dev.rctp.deal:offer_accept".to_owned(), Tier::Ask)].into(),
    };
    let tokens = server.grant(granted).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/oauth/introspect", listener.local_addr().unwrap());
    let running = Server::start(listener, server.router());
    let http = client();
    let ask = async || {
        let asked = http
            .post(&url)
            .basic_auth("gateway", Some("secret"))
            .body(format!("token={}", tokens.access_token));
        asked
            .send()
            .await
            .unwrap()
            .json::<Introspection>()
            .await
            .unwrap()
    };
    let said = ask().await;
    assert!(said.active && said.is_grant());
    assert_eq!(said.scope.as_deref(), Some("dev.rctp.deal:offer_accept"));

    time.fetch_add(900, Ordering::SeqCst);
    let said = ask().await;
    assert!(!said.active && !said.is_grant());
    assert_eq!(said.grant_status, Some(GrantStatus::Active));
    assert_eq!(said.client_id.as_deref(), Some("seller"));

    time.fetch_add(30 * 86_400, Ordering::SeqCst);
    assert_eq!(ask().await.grant_status, Some(GrantStatus::Expired));
    running.stop().await;

    let kept = fs::read_to_string(directory.path().join("authorization.json")).unwrap();
    assert!(!kept.contains(&tokens.access_token) && !kept.contains(&tokens.refresh_token));
}
