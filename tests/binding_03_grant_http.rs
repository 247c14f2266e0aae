//! Binding 3.3 and 3.4: the grant, introspected over real HTTP on every call.
#![allow(clippy::unwrap_used)]

#[path = "common/authorization_server.rs"]
mod authorization_server;
#[path = "common/bodies.rs"]
mod bodies;
mod common;
#[path = "common/loopback.rs"]
mod loopback;
#[path = "common/signing.rs"]
mod signing;

use std::{net::TcpListener, process::Command, sync::Arc, time::Duration};

use authorization_server::{AuthorizationServer, Mood};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use common::{
    Answer, BUYER_TOKEN, FLOOR, LISTING, NOW, SELLER, SELLER_TOKEN, SELLER_UNBOUND, World,
    client_token, get, grant, offer_body, post, with_token,
};
use http::{HeaderValue, Request, header};
use loopback::closed_port;
use serde_json::{Value, json};
use signing::{IDEMPOTENCY_KEY, fresh_key, signed, signed_with};
use tower_rctp::{
    Rctp, RctpBuilder,
    layer::grant::introspection::Introspection,
    protocol::{operation::Verb, policy::Tier, record::SubjectKind},
};

const GRANT_INVALID: (u16, &str) = (401, "grant_invalid");
const REVOKED: (u16, &str) = (403, "grant_revoked");
const EXPIRED: (u16, &str) = (403, "grant_expired");
const FORBIDDEN: (u16, &str) = (403, "action_forbidden");
const UNAVAILABLE: (u16, &str) = (503, "unavailable");
const ACCEPT: &str = "dev.rctp.deal:offer_accept";

/// A marketplace, its authorization server, and an open offer of the buyer.
struct Market {
    world: World,
    server: AuthorizationServer,
    offer: String,
    negotiation: String,
}

fn endpoint(url: &str) -> Introspection {
    Introspection::endpoint(url)
        .client_secret_basic("gateway", "secret")
        .timeout(Duration::from_secs(10))
}

fn over_http(builder: RctpBuilder, introspection: Introspection) -> RctpBuilder {
    builder.dev(true).introspection(introspection)
}

impl Market {
    async fn new() -> Self {
        let server = AuthorizationServer::start().await;
        let introspection = endpoint(&server.url);
        Self::with(server, introspection).await
    }

    async fn with(server: AuthorizationServer, introspection: Introspection) -> Self {
        let world = World::with(Tier::Auto, |b| over_http(b, introspection)).await;
        let exp = NOW + 800;
        let bound = grant(
            SELLER,
            "client-seller",
            Some(world.seller.kid()),
            Tier::Auto,
            exp,
        );
        server.set(SELLER_TOKEN, bound);
        server.set(
            SELLER_UNBOUND,
            grant(SELLER, "client-seller", None, Tier::Auto, exp),
        );
        server.set(BUYER_TOKEN, client_token("client-buyer", exp));
        let started = world.offer(FLOOR + 1).await;
        assert_eq!(started.status, 201, "{:?}", started.body);
        Self {
            offer: started.get("offer_id"),
            negotiation: started.get("negotiation_id"),
            world,
            server,
        }
    }

    fn accept(&self) -> Request<Bytes> {
        post(&format!("/offers/{}/accept", self.offer), &json!({}))
    }

    /// The acceptance, signed by the seller's agent, with this token and key.
    async fn accept_signed(&self, token: &str, key: &HeaderValue) -> Answer {
        let mut request = with_token(self.accept(), token);
        request.headers_mut().insert(IDEMPOTENCY_KEY, key.clone());
        self.world.send(signed(&self.world.seller, request)).await
    }

    /// The acceptance, unsigned, with this token and key.
    async fn accept_unsigned(&self, token: &str, key: &HeaderValue) -> Answer {
        let mut request = with_token(self.accept(), token);
        request.headers_mut().insert(IDEMPOTENCY_KEY, key.clone());
        self.world.send(request).await
    }

    async fn state(&self) -> Value {
        let path = format!("/offers/{}", self.offer);
        self.world.buyer_get(&path).await.body["state"].clone()
    }

    /// How long the chains are that a call could enter.
    async fn entries(&self) -> [usize; 3] {
        [
            self.world.gateway_chain().await.len(),
            self.world.chain(SubjectKind::Listing, LISTING).await.len(),
            self.world
                .chain(SubjectKind::Negotiation, &self.negotiation)
                .await
                .len(),
        ]
    }
}

// The checks, in their order.

/// A seller's grant, as JSON, after a change.
fn answer(jkt: Option<&str>, change: impl FnOnce(&mut Value)) -> Value {
    let granted = grant(SELLER, "client-seller", jkt, Tier::Auto, NOW + 800);
    let mut answer = serde_json::to_value(granted).unwrap();
    change(&mut answer);
    answer
}

// When there is no answer, or none that can be believed.

/// Whatever the authorization server does: 503, nothing executed, nothing recorded, and the key still good.
async fn nothing_happens_and_the_key_stays_good(market: &Market, what: &str, mood: Mood) {
    let key = fresh_key();
    let before = market.entries().await;
    market.server.mood(mood);
    for answer in [
        market.accept_signed(SELLER_TOKEN, &key).await,
        market.accept_unsigned(SELLER_UNBOUND, &key).await,
    ] {
        assert_eq!(answer.refusal(), UNAVAILABLE, "{what}: {:?}", answer.body);
        assert_eq!(answer.decision(), "", "{what}: this is no decision");
        assert_eq!(answer.headers[header::RETRY_AFTER], "1", "{what}");
    }
    assert_eq!(market.entries().await, before, "{what}");
    assert_eq!(market.state().await, "open", "{what}");

    market.server.mood(Mood::Well);
    let answer = market.accept_signed(SELLER_TOKEN, &key).await;
    assert_eq!(answer.status, 200, "{what}: {:?}", answer.body);
    assert_eq!(market.state().await, "accepted", "{what}");
    let repeat = market.accept_signed(SELLER_TOKEN, &key).await;
    assert_eq!(repeat.bytes, answer.bytes, "{what}");
}

async fn within_a_second(mood: Mood) {
    let server = AuthorizationServer::start().await;
    let introspection = endpoint(&server.url).timeout(Duration::from_secs(1));
    let market = Market::with(server, introspection).await;
    nothing_happens_and_the_key_stays_good(&market, "too late", mood).await;
}

#[tokio::test]
async fn an_answer_that_does_not_come_in_time_is_503() {
    within_a_second(Mood::Silent).await;
}

#[tokio::test]
async fn an_answer_that_does_not_end_in_time_is_503() {
    within_a_second(Mood::Stalled).await;
}

// Settings.

#[test]
fn an_endpoint_that_cannot_be_right_is_refused_when_it_is_built() {
    let build = |introspection: Introspection, dev| {
        let builder = Rctp::builder().introspection(introspection).dev(dev);
        builder.grant_alone("dev.rctp.deal:offer_accept").map(drop)
    };
    let with = |url: &str| Introspection::endpoint(url).client_secret_basic("gateway", "secret");
    let told = |error: Result<(), tower_rctp::BuildError>, word: &str| {
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("introspection") && text.contains(word),
            "{text}"
        );
    };
    assert!(build(with("https://as.example/introspect"), false).is_ok());
    assert!(build(with("http://127.0.0.1:1/introspect"), true).is_ok());
    told(build(with("http://as.example/introspect"), false), "https");
    told(build(with("http://as.example/introspect"), true), "https");
    told(build(with("http://127.0.0.1:1/introspect"), false), "https");
    told(build(with("as.example/introspect"), false), "URL");
    told(build(with("https://user:pass@as.example/"), false), "user");
    told(
        build(Introspection::endpoint("https://as.example/"), false),
        "client_secret_basic",
    );
    told(
        build(with("https://as.example/").timeout(Duration::ZERO), false),
        "timeout",
    );
    let text = format!("{:?}", with("https://as.example/introspect"));
    assert!(
        !text.contains("secret\"") && !text.contains("\"secret"),
        "{text}"
    );
}
