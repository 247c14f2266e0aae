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

use std::{sync::Arc, time::Duration};

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

// How it is asked.

#[tokio::test]
async fn the_gateway_authenticates_with_client_secret_basic() {
    for (id, secret, pair) in [
        ("gateway", "secret", "gateway:secret"),
        ("gate way", "p@ss:w/rd?", "gate+way:p%40ss%3Aw%2Frd%3F"),
        (
            "https://gateway.example",
            "50% & more+",
            "https%3A%2F%2Fgateway.example:50%25+%26+more%2B",
        ),
        ("gäte", "schlüssel", "g%C3%A4te:schl%C3%BCssel"),
    ] {
        let server = AuthorizationServer::start().await;
        let introspection = Introspection::endpoint(&*server.url).client_secret_basic(id, secret);
        let market = Market::with(server, introspection).await;
        let answer = market.accept_signed(SELLER_TOKEN, &fresh_key()).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let asked = market.server.asked();
        assert_eq!(asked.len(), 1);
        let expected = format!("Basic {}", STANDARD.encode(pair));
        assert_eq!(asked[0].headers[header::AUTHORIZATION], expected);
        assert_eq!(asked[0].headers[header::ACCEPT], "application/json");
        let content_type = &asked[0].headers[header::CONTENT_TYPE];
        assert_eq!(content_type, "application/x-www-form-urlencoded");
        assert_eq!(asked[0].form["token"], SELLER_TOKEN);
        assert_eq!(asked[0].form["token_type_hint"], "access_token");
        assert_eq!(asked[0].form.len(), 2);
    }
}

#[tokio::test]
async fn a_token_arrives_as_it_was_sent_whatever_its_characters() {
    let market = Market::new().await;
    let token = "a-b.c_d~e+f/g==";
    let bound = grant(
        SELLER,
        "client-seller",
        Some(market.world.seller.kid()),
        Tier::Auto,
        NOW + 800,
    );
    market.server.set(token, bound);
    let answer = market.accept_signed(token, &fresh_key()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(market.server.asked()[0].form["token"], token);
}

#[tokio::test]
async fn inv_7_every_call_asks_and_no_answer_is_kept() {
    let market = Market::new().await;
    let path = format!("/offers?listing_id={LISTING}");
    for calls in 1..=5 {
        let request = with_token(get(&path), SELLER_TOKEN);
        let answer = market
            .world
            .send(signed(&market.world.seller, request))
            .await;
        assert_eq!(answer.status, 200);
        assert_eq!(market.server.calls(), calls);
    }
    // Unsigned calls ask once, too, though both the authentication and the grant need the answer.
    for calls in 6..=10 {
        let answer = market
            .world
            .send(with_token(get(&path), SELLER_UNBOUND))
            .await;
        assert_eq!(answer.status, 200);
        assert_eq!(market.server.calls(), calls);
    }
    // A repeat of a stored answer asks as well.
    let key = fresh_key();
    for calls in 11..=13 {
        let answer = market.accept_signed(SELLER_TOKEN, &key).await;
        assert_eq!(answer.status, 200);
        assert_eq!(market.server.calls(), calls);
    }
}

#[tokio::test]
async fn nobody_is_asked_before_the_signature_holds() {
    let market = Market::new().await;
    let seller = &market.world.seller;
    let request = || with_token(market.accept(), SELLER_TOKEN);
    let uncovered = signed_with(seller, request(), |p| {
        p.components.retain(|c| *c != header::AUTHORIZATION.into());
    });
    let stale = signed_with(seller, request(), |p| p.params.created = 0);
    let mut altered = signed(seller, request());
    *altered.body_mut() = Bytes::from_static(b"{ }");
    for request in [uncovered, stale, altered] {
        let answer = market.world.send(request).await;
        assert_eq!(answer.refusal(), (401, "signature_invalid"));
    }
    assert_eq!(market.server.calls(), 0);
}

/// Runs itself in a process whose environment names a proxy, since a test must not change its own.
#[tokio::test]
async fn no_proxy_of_the_environment_gets_to_see_a_token() {
    const CHILD: &str = "A_PROXY_IS_SET";
    if std::env::var_os(CHILD).is_some() {
        let market = Market::new().await;
        let answer = market.accept_signed(SELLER_TOKEN, &fresh_key()).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        return;
    }
    loopback::passes_beside_a_proxy("no_proxy_of_the_environment_gets_to_see_a_token", CHILD).await;
}

// The checks, in their order.

/// A seller's grant, as JSON, after a change.
fn answer(jkt: Option<&str>, change: impl FnOnce(&mut Value)) -> Value {
    let granted = grant(SELLER, "client-seller", jkt, Tier::Auto, NOW + 800);
    let mut answer = serde_json::to_value(granted).unwrap();
    change(&mut answer);
    answer
}

#[tokio::test]
async fn check_1_authorization_is_present() {
    let market = Market::new().await;
    let answer = market
        .world
        .send(signed(&market.world.seller, market.accept()))
        .await;
    assert_eq!(answer.refusal(), GRANT_INVALID);
    assert_eq!(market.server.calls(), 0);
    assert_eq!(market.state().await, "open");
}

#[tokio::test]
async fn check_2_the_token_is_known() {
    let market = Market::new().await;
    // RFC 7662 lets an inactive token answer nothing else.
    market.server.set("inactive", json!({"active": false}));
    market.server.set(
        "inactive-in-detail",
        answer(None, |a| {
            a["active"] = json!(false);
            a.as_object_mut().unwrap().remove("grant_status");
        }),
    );
    for token in ["never-issued", "inactive", "inactive-in-detail"] {
        let answer = market.accept_signed(token, &fresh_key()).await;
        assert_eq!(answer.refusal(), GRANT_INVALID, "{token}");
        let answer = market.accept_unsigned(token, &fresh_key()).await;
        assert_eq!(answer.refusal(), GRANT_INVALID, "{token}");
    }
    assert_eq!(market.state().await, "open");
}

#[tokio::test]
async fn check_3_the_token_is_bound_to_the_key_or_to_none() {
    let market = Market::new().await;
    let kid = market.world.seller.kid().to_owned();
    let binding = |cnf: Value| move |a: &mut Value| a["cnf"] = cnf;
    let cases = [
        ("bound", answer(Some(&kid), |_| {}), true, false),
        ("unbound", answer(None, |_| {}), false, true),
        (
            "bound to another",
            answer(Some(market.world.buyer.kid()), |_| {}),
            false,
            false,
        ),
        (
            "bound to a certificate",
            answer(None, binding(json!({"x5t#S256": "AAAA"}))),
            false,
            false,
        ),
        (
            "bound to nothing",
            answer(None, binding(json!({}))),
            false,
            false,
        ),
        (
            "bound to null",
            answer(None, binding(json!(null))),
            false,
            true,
        ),
        (
            "bound to an empty name",
            answer(None, binding(json!({"jkt": ""}))),
            false,
            false,
        ),
        (
            "bound in upper case",
            answer(Some(&kid.to_uppercase()), |_| {}),
            false,
            false,
        ),
        (
            "bound with padding",
            answer(Some(&format!("{kid}=")), |_| {}),
            false,
            false,
        ),
    ];
    for (what, answer, when_signed, when_unsigned) in cases {
        // Reading needs a grant just as acting does, and can be repeated.
        market.server.set("token", answer);
        let request = || with_token(get(&format!("/offers?listing_id={LISTING}")), "token");
        let outcome = |good| if good { (200, "") } else { GRANT_INVALID };
        let answer = market
            .world
            .send(signed(&market.world.seller, request()))
            .await;
        assert_eq!(answer.refusal(), outcome(when_signed), "{what}, signed");
        let answer = market.world.send(request()).await;
        assert_eq!(answer.refusal(), outcome(when_unsigned), "{what}, unsigned");
    }
}

#[tokio::test]
async fn checks_4_and_5_the_grant_is_neither_revoked_nor_expired() {
    let market = Market::new().await;
    for active in [true, false] {
        for (status, expected) in [("revoked", REVOKED), ("expired", EXPIRED)] {
            for jkt in [Some(market.world.seller.kid()), None] {
                market.server.set(
                    "token",
                    answer(jkt, |a| {
                        a["active"] = json!(active);
                        a["grant_status"] = json!(status);
                    }),
                );
                let key = fresh_key();
                let answer = match jkt {
                    Some(_) => market.accept_signed("token", &key).await,
                    None => market.accept_unsigned("token", &key).await,
                };
                assert_eq!(
                    answer.refusal(),
                    expected,
                    "{status}, active {active}, {jkt:?}"
                );
                let decision = format!("forbid;action=\"offer.accept\";reason=grant_{status}");
                assert_eq!(answer.decision(), decision);
                assert!(
                    answer.headers.get(header::WWW_AUTHENTICATE).is_none(),
                    "no refresh helps"
                );
            }
        }
    }
    assert_eq!(market.state().await, "open");
}

#[tokio::test]
async fn check_6_the_access_token_is_current() {
    let market = Market::new().await;
    let kid = market.world.seller.kid().to_owned();
    for (what, change) in [
        (
            "not active",
            (|a| a["active"] = json!(false)) as fn(&mut Value),
        ),
        ("past its exp", |a| a["exp"] = json!(NOW)),
        ("long past its exp", |a| a["exp"] = json!(0)),
    ] {
        market.server.set("token", answer(Some(&kid), change));
        let answer = market.accept_signed("token", &fresh_key()).await;
        assert_eq!(answer.refusal(), GRANT_INVALID, "{what}");
        assert!(
            answer.headers.contains_key(header::WWW_AUTHENTICATE),
            "refresh and retry"
        );
    }
    market
        .server
        .set("token", answer(Some(&kid), |a| a["exp"] = json!(NOW + 1)));
    assert_eq!(
        market.accept_signed("token", &fresh_key()).await.status,
        200
    );
}

#[tokio::test]
async fn check_7_the_scope_of_the_verb_is_granted() {
    let market = Market::new().await;
    let kid = market.world.seller.kid().to_owned();
    let others: Vec<&str> = Verb::GRANTED
        .iter()
        .filter_map(|v| v.scope())
        .filter(|s| *s != ACCEPT)
        .collect();
    for scope in [
        json!(others.join(" ")),
        json!(""),
        json!("dev.rctp.deal"),
        json!("dev.rctp.deal:offer_accepts"),
        json!("xdev.rctp.deal:offer_accept"),
        json!(ACCEPT.to_uppercase()),
        json!(ACCEPT.replace("offer", "*")),
        json!(format!("{ACCEPT},{ACCEPT}")),
        json!(null),
    ] {
        // A tier is no scope.
        market
            .server
            .set("token", answer(Some(&kid), |a| a["scope"] = scope.clone()));
        let answer = market.accept_signed("token", &fresh_key()).await;
        assert_eq!(answer.refusal(), FORBIDDEN, "{scope}");
    }
    market.server.set(
        "token",
        answer(Some(&kid), |a| {
            a["scope"] = json!(format!("  openid   {ACCEPT} "))
        }),
    );
    assert_eq!(
        market.accept_signed("token", &fresh_key()).await.status,
        200
    );
}

#[tokio::test]
async fn a_token_that_is_no_sellers_grant_is_refused() {
    let market = Market::new().await;
    let kid = market.world.seller.kid().to_owned();
    let details =
        |change: fn(&mut Value)| answer(Some(&kid), |a| change(&mut a["authorization_details"]));
    let cases = [
        (
            "no sub",
            answer(Some(&kid), |a| {
                drop(a.as_object_mut().unwrap().remove("sub"))
            }),
        ),
        ("no details", details(|d| *d = json!([]))),
        (
            "details of another type",
            details(|d| d[0]["type"] = json!("payment_initiation")),
        ),
        ("two grants in one", details(|d| *d = json!([d[0], d[0]]))),
        (
            "a tier that does not exist",
            details(|d| d[0]["tiers"][ACCEPT] = json!("always")),
        ),
        (
            "tiers that are no object",
            details(|d| d[0]["tiers"] = json!("auto")),
        ),
        (
            "an agent_id that is no string",
            details(|d| d[0]["agent_id"] = json!(7)),
        ),
    ];
    for (what, answer) in cases {
        market.server.set("token", answer);
        let answer = market.accept_signed("token", &fresh_key()).await;
        assert_eq!(answer.refusal(), GRANT_INVALID, "{what}");
    }
    market.server.set(
        "token",
        details(|d| {
            let first = d[0].take();
            *d = json!([{"type": "other"}, first, {}]);
        }),
    );
    assert_eq!(
        market.accept_signed("token", &fresh_key()).await.status,
        200
    );
}

/// Earlier checks win: each token fails two of them, and later ones of the stack.
#[tokio::test]
async fn the_checks_of_3_3_stand_in_their_order() {
    let market = Market::new().await;
    let kid = market.world.seller.kid().to_owned();
    let buyer = market.world.buyer.kid().to_owned();
    type Fault = Box<dyn Fn(&mut Value)>;
    let unknown: Fault = Box::new(|a| {
        a["active"] = json!(false);
        a.as_object_mut().unwrap().remove("grant_status");
    });
    let bound_elsewhere: Fault = Box::new(move |a| a["cnf"]["jkt"] = json!(buyer));
    let revoked: Fault = Box::new(|a| a["grant_status"] = json!("revoked"));
    let expired: Fault = Box::new(|a| a["grant_status"] = json!("expired"));
    let inactive: Fault = Box::new(|a| a["active"] = json!(false));
    let no_scope: Fault = Box::new(|a| a["scope"] = json!("openid"));
    let faults = [
        ("2", unknown, GRANT_INVALID),
        ("3", bound_elsewhere, GRANT_INVALID),
        ("4", revoked, REVOKED),
        ("5", expired, EXPIRED),
        ("6", inactive, GRANT_INVALID),
        ("7", no_scope, FORBIDDEN),
    ];
    for (index, (earlier, first, expected)) in faults.iter().enumerate() {
        for (later, second, _) in &faults[index + 1..] {
            // The later fault is made first, so that where both change one member the earlier check has its own.
            market.server.set(
                "token",
                answer(Some(&kid), |a| {
                    second(a);
                    first(a);
                }),
            );
            let answer = market.accept_signed("token", &fresh_key()).await;
            assert_eq!(answer.refusal(), *expected, "{earlier} before {later}");
        }
        // And before everything that comes after the grant: the body, and what the path names.
        market.server.set("token", answer(Some(&kid), first));
        for path in [
            "/offers/off_none/accept",
            &format!("/offers/{}/accept", market.offer),
        ] {
            let body = json!({"floor": 1});
            let request = with_token(post(path, &body), "token");
            let answer = market
                .world
                .send(signed(&market.world.seller, request))
                .await;
            assert_eq!(answer.refusal(), *expected, "{earlier} before the body");
        }
    }
    // 1 before all: no token, or one that is not covered, and nobody is asked about it.
    let calls = market.server.calls();
    let uncovered = signed_with(
        &market.world.seller,
        with_token(market.accept(), "never-issued"),
        |p| p.components.retain(|c| *c != header::AUTHORIZATION.into()),
    );
    let answer = market.world.send(uncovered).await;
    assert_eq!(answer.refusal(), (401, "signature_invalid"));
    assert_eq!(market.server.calls(), calls);
    assert_eq!(market.state().await, "open");
}

#[tokio::test]
async fn rows_without_a_verb_need_any_rctp_scope() {
    let market = Market::new().await;
    let kid = market.world.seller.kid().to_owned();
    for (scope, expected) in [
        ("dev.rctp.listing:listing_create", (200, "")),
        (ACCEPT, (200, "")),
        ("openid profile", FORBIDDEN),
        ("dev.ucp.checkout:create", FORBIDDEN),
    ] {
        market
            .server
            .set("token", answer(Some(&kid), |a| a["scope"] = json!(scope)));
        for path in [
            format!("/offers?listing_id={LISTING}"),
            format!("/offers/{}", market.offer),
        ] {
            let request = with_token(get(&path), "token");
            let answer = market
                .world
                .send(signed(&market.world.seller, request))
                .await;
            assert_eq!(answer.refusal(), expected, "{scope}: {path}");
        }
    }
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

#[tokio::test]
async fn an_answer_other_than_200_is_503() {
    for status in [201, 204, 302, 307, 400, 401, 403, 404, 429, 500, 502, 503] {
        let market = Market::new().await;
        let what = format!("status {status}");
        nothing_happens_and_the_key_stays_good(&market, &what, Mood::Status(status)).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_no_introspection_response_is_503() {
    let huge = format!("{{\"active\": true, \"x\": \"{}\"}}", "x".repeat(100_000));
    let good = answer(None, |_| {}).to_string();
    for body in [
        "",
        "<!doctype html><title>Sign in</title>",
        "null",
        "[]",
        "true",
        "{}",
        "{\"active\": \"true\"}",
        "{\"active\": 1}",
        "{\"active\": null}",
        "{\"active\": true, \"exp\": \"soon\"}",
        "{\"active\": true, \"exp\": 1.5}",
        "{\"active\": true, \"exp\": 99999999999999999999}",
        "{\"active\": true, \"scope\": [\"dev.rctp.deal:offer_accept\"]}",
        "{\"active\": true, \"sub\": 7}",
        "{\"active\": true, \"client_id\": [\"client-seller\"]}",
        "{\"active\": true, \"cnf\": \"key\"}",
        "{\"active\": true, \"cnf\": {\"jkt\": 7}}",
        "{\"active\": true, \"grant_status\": \"fine\"}",
        "{\"active\": true, \"grant_status\": \"Active\"}",
        "{\"active\": true, \"authorization_details\": {}}",
        "{\"active\": false, \"active\": true}",
        "{\"active\": true, \"active\": true}",
        "\u{feff}{\"active\": true}",
        &good[..good.len() - 1],
        &format!("{good}{good}"),
        &format!("{good}x"),
        &huge,
    ] {
        let market = Market::new().await;
        let what = &body[..body.len().min(60)];
        nothing_happens_and_the_key_stays_good(&market, what, Mood::Body(body.to_owned())).await;
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_or_never_ends_is_503() {
    for (what, mood) in [("broken", Mood::Broken), ("endless", Mood::Endless)] {
        let market = Market::new().await;
        nothing_happens_and_the_key_stays_good(&market, what, mood).await;
    }
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

#[tokio::test]
async fn an_endpoint_where_nobody_listens_is_503_for_everyone_with_a_token() {
    let url = format!("http://127.0.0.1:{}/introspect", closed_port().await);
    let world = World::with(Tier::Auto, |b| over_http(b, endpoint(&url))).await;
    let started = world.offer(FLOOR + 1).await;
    assert_eq!(
        started.status, 201,
        "who signs and has no token is not concerned"
    );
    let id = started.get("offer_id");
    let answer = world
        .seller_post(&format!("/offers/{id}/accept"), &json!({}))
        .await;
    assert_eq!(answer.refusal(), UNAVAILABLE);
    let answer = world
        .oauth_post(BUYER_TOKEN, "/offers", &offer_body(FLOOR + 1))
        .await;
    assert_eq!(answer.refusal(), UNAVAILABLE);
    let answer = world
        .send(with_token(get("/offers/x/y"), BUYER_TOKEN))
        .await;
    assert_eq!(answer.refusal(), UNAVAILABLE);
    assert!(world.gateway_chain().await.is_empty());
}

#[tokio::test]
async fn the_refusal_tells_nothing_of_the_endpoint_or_the_token() {
    let market = Market::new().await;
    market.server.mood(Mood::Body("no-json-canary".to_owned()));
    let answer = market.accept_signed(SELLER_TOKEN, &fresh_key()).await;
    let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
    for secret in ["canary", SELLER_TOKEN, "127.0.0.1", "introspect", "secret"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn a_slow_answer_holds_up_nobody_else() {
    let market = Arc::new(Market::new().await);
    market.server.mood(Mood::Silent);
    let waiting = {
        let market = market.clone();
        tokio::spawn(async move { market.accept_signed(SELLER_TOKEN, &fresh_key()).await })
    };
    while market.server.calls() == 0 {
        tokio::task::yield_now().await;
    }
    market.server.mood(Mood::Well);
    let path = format!("/offers?listing_id={LISTING}");
    let answer = market
        .world
        .send(with_token(get(&path), SELLER_UNBOUND))
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(market.world.offer(FLOOR + 2).await.status, 201);
    assert!(!waiting.is_finished());
    waiting.abort();
}

// 3.4: revocation.

#[tokio::test]
async fn v6_a_revoked_grant_fails_the_next_call_under_a_signature() {
    let market = Market::new().await;
    let path = format!("/offers?listing_id={LISTING}");
    let request = || with_token(get(&path), SELLER_TOKEN);
    let answer = market
        .world
        .send(signed(&market.world.seller, request()))
        .await;
    assert_eq!(answer.status, 200);
    market.server.revoke(SELLER_TOKEN);
    let answer = market
        .world
        .send(signed(&market.world.seller, request()))
        .await;
    assert_eq!(answer.refusal(), REVOKED);
    assert_eq!(
        market
            .accept_signed(SELLER_TOKEN, &fresh_key())
            .await
            .refusal(),
        REVOKED
    );
    assert_eq!(market.state().await, "open");
}

#[tokio::test]
async fn v6_a_revoked_grant_fails_the_next_call_under_oauth() {
    let market = Market::new().await;
    let path = format!("/offers?listing_id={LISTING}");
    let request = || with_token(get(&path), SELLER_UNBOUND);
    assert_eq!(market.world.send(request()).await.status, 200);
    market.server.revoke(SELLER_UNBOUND);
    assert_eq!(market.world.send(request()).await.refusal(), REVOKED);
    assert_eq!(
        market
            .accept_unsigned(SELLER_UNBOUND, &fresh_key())
            .await
            .refusal(),
        REVOKED
    );
    assert_eq!(market.state().await, "open");
}

#[tokio::test]
async fn a_revoked_grant_gets_no_stored_answer_either() {
    let market = Market::new().await;
    let key = fresh_key();
    assert_eq!(market.accept_signed(SELLER_TOKEN, &key).await.status, 200);
    market.server.revoke(SELLER_TOKEN);
    let answer = market.accept_signed(SELLER_TOKEN, &key).await;
    assert_eq!(answer.refusal(), REVOKED);
    assert!(answer.body.get("state").is_none());
}

#[tokio::test]
async fn a_grant_that_is_revoked_in_the_middle_of_a_sale_ends_it_there() {
    let market = Market::new().await;
    let counter = post(
        &format!("/offers/{}/counter", market.offer),
        &json!({"deal_terms": common::deal_terms(50_000)}),
    );
    let request = with_token(counter, SELLER_TOKEN);
    let answer = market
        .world
        .send(signed(&market.world.seller, request))
        .await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    let mut reply = offer_body(45_000);
    reply["supersedes"] = json!(answer.get("offer_id"));
    let offered = market.world.buyer_post("/offers", &reply).await;
    assert_eq!(offered.status, 201, "{:?}", offered.body);

    market.server.revoke(SELLER_TOKEN);
    let path = format!("/offers/{}", offered.get("offer_id"));
    for action in ["accept", "counter", "decline"] {
        let body = match action {
            "counter" => json!({"deal_terms": common::deal_terms(50_000)}),
            _ => json!({}),
        };
        let request = with_token(post(&format!("{path}/{action}"), &body), SELLER_TOKEN);
        let answer = market
            .world
            .send(signed(&market.world.seller, request))
            .await;
        assert_eq!(answer.refusal(), REVOKED, "{action}");
    }
    let offer = market.world.buyer_get(&path).await;
    assert_eq!(offer.body["state"], "open");
    let listing = market
        .world
        .buyer_get(&format!("/listings/{LISTING}"))
        .await;
    assert_eq!(listing.body["state"], "active");
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
