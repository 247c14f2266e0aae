//! The authorization server of the development world.

use crate::shop::Shop;

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
