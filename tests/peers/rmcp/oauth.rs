//! OAuth by rmcp alone; what a person does at a browser is done by the sale's seller.

use std::collections::BTreeMap;

use rmcp::transport::{
    AuthError, AuthorizationManager, AuthorizationRequest, ClientCredentialsConfig,
    CredentialStore, InMemoryCredentialStore, auth::OAuthState,
};
use serde_json::{Value, json};
use url::Url;

use crate::{
    answer::Failure,
    gateway::{Agent, Gateway, text},
    seller::Seller,
};

const CALLBACK: &str = "http://127.0.0.1:41234/callback";

/// A buyer, which knows the URL of the endpoint and its own credentials, and nothing else.
pub async fn as_buyer(
    gateway: &Gateway,
    agent: &Agent,
    endpoint: &str,
) -> Result<AuthorizationManager, AuthError> {
    let mut oauth = OAuthState::new(endpoint, Some(gateway.http.clone())).await?;
    oauth
        .authenticate_client_credentials(ClientCredentialsConfig::ClientSecret {
            client_id: agent.client_id.clone(),
            client_secret: agent.client_secret.clone(),
            scopes: vec![],
            resource: Some(endpoint.to_owned()),
        })
        .await?;
    let manager = oauth.into_authorization_manager();
    manager.ok_or(AuthError::AuthorizationRequired)
}

/// A client that asks the seller for a grant.
pub struct Asks<'a> {
    pub client: &'a str,
    /// `None` for a public client.
    pub secret: Option<&'a str>,
    /// The key that is going to sign, where one is.
    pub jkt: Option<&'a str>,
    /// `offer_accept` is for the seller to approve, or not.
    pub accepts: &'static str,
}

/// The code flow, from the challenge of the first request to the tokens, which the store then has.
pub async fn as_seller(
    gateway: &Gateway,
    challenge: &str,
    asks: &Asks<'_>,
    seller: &mut Seller,
    store: &InMemoryCredentialStore,
) -> Result<AuthorizationManager, Failure> {
    let mut manager = AuthorizationManager::new(&gateway.mcp).await?;
    manager.with_client(gateway.http.clone())?;
    manager.set_credential_store(store.clone());
    let mut oauth = OAuthState::Unauthorized(manager);
    let mut request = AuthorizationRequest::new(CALLBACK)
        .with_preregistered_client(asks.client)
        .with_challenge(challenge);
    if let Some(secret) = asks.secret {
        request = request.with_client_secret(secret);
    }
    oauth.start_authorization(request).await?;

    let mut wish = Url::parse(&oauth.get_authorization_url().await?)?;
    let said: BTreeMap<_, _> = wish.query_pairs().into_owned().collect();
    assert_eq!(wish.path(), "/oauth/authorize");
    assert_eq!(said["code_challenge_method"], "S256");
    assert_eq!(said["resource"], gateway.mcp);
    assert_eq!(said["scope"], scopes(challenge));
    // By scopes alone, the seller is asked for each at its default tier, and for an agent that does not sign.
    let plain = seller.consider(wish.as_str()).await?;
    assert_eq!(plain.status, 200, "{plain}");
    assert_eq!(plain.body["agent_id"], asks.client);
    assert_eq!(plain.body["client"]["signs"], false);
    // What rmcp cannot know of: the tiers that are wanted, and the key (binding 3.2).
    let tiers = tiers(&said["scope"], asks.accepts);
    let mut details = json!({"type": "dev.rctp.agent_grant", "agent_id": "rmcp", "tiers": tiers});
    if let Some(jkt) = asks.jkt {
        details["jkt"] = json!(jkt);
    }
    wish.query_pairs_mut()
        .append_pair("authorization_details", &json!([details]).to_string());

    let page = gateway.http.get(wish.clone()).send().await?;
    assert_eq!(page.status(), 200, "{}", page.text().await?);
    let considered = seller.consider(wish.as_str()).await?;
    assert_eq!(considered.status, 200, "{considered}");
    assert_eq!(considered.body["client"]["client_id"], asks.client);
    assert_eq!(considered.body["client"]["signs"], asks.jkt.is_some());
    assert_eq!(considered.body["redirect_host"], "127.0.0.1");
    let consented = seller.consent(wish.as_str(), &tiers).await?;
    assert_eq!(consented.status, 200, "{consented}");
    // The browser is sent there, with the code, the state and the issuer.
    oauth
        .handle_callback_url(&text(&consented.body, "/redirect"))
        .await?;
    Ok(oauth.into_authorization_manager().ok_or("no tokens")?)
}

/// The `scope` of a challenge.
pub fn scopes(challenge: &str) -> &str {
    let (_, scope) = challenge.split_once("scope=\"").expect("a scope");
    scope.trim_end_matches('"')
}

/// `auto`, where the marketplace lets it be.
fn tiers(scopes: &str, accepts: &str) -> Value {
    let tier = |scope: &str| match scope {
        "dev.rctp.deal:offer_accept" => accepts.to_owned(),
        "dev.rctp.listing:listing_set_terms" => "ask".to_owned(),
        _ => "auto".to_owned(),
    };
    let tiers = scopes
        .split(' ')
        .map(|scope| (scope.to_owned(), tier(scope)));
    json!(tiers.collect::<BTreeMap<_, _>>())
}

/// Has what is kept look as if it had come an hour ago, by which time it has expired.
pub async fn an_hour_passes(store: &InMemoryCredentialStore) -> Result<(), Failure> {
    let mut kept = store.load().await?.ok_or("nothing is kept")?;
    kept.token_received_at = kept.token_received_at.map(|at| at - 3_600);
    Ok(store.save(kept).await?)
}
