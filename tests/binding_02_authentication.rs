//! Binding 2: authentication. Every mechanism, every check in its order, and what the record keeps of it.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/signing.rs"]
mod signing;

use std::{collections::HashMap, convert::Infallible, sync::atomic::Ordering};

use bytes::Bytes;
use common::{
    Agent, Answer, BUYER_TOKEN, FLOOR, GATEWAY, LISTING, NOW, SELLER, SELLER_TOKEN, SELLER_UNBOUND,
    Service, World, client_token, get, grant, offer_body, post, with_key, with_token,
};
use http::{HeaderName, HeaderValue, Method, Request, Response, Version, header, request::Parts};
use serde_json::{Value, json};
use signing::{
    IDEMPOTENCY_KEY, Plan, SIGNATURE, SIGNATURE_INPUT, UCP_AGENT, dressed, fresh_key, origin_form,
    plan, set, sign, signed, signed_with,
};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_rctp::{
    Rctp,
    client::Signer,
    layer::{
        authenticate::{
            Mechanisms, NotRegistered, Registration, Registry,
            operators::{Operator, Operators},
        },
        body::Body,
    },
    protocol::{
        caller::Caller,
        grant::{Confirmation, GrantStatus, Introspection},
        operation::{Op, Side, TABLE},
        policy::Tier,
        profile::Duties,
        record::SubjectKind,
    },
    store::BoxFuture,
    wire::{
        digest::{CONTENT_DIGEST, content_digest, sha256},
        jwk::SigningKey,
        signature::{Authority, Component, Params},
    },
};

const SIGNATURE_INVALID: (u16, &str) = (401, "signature_invalid");
const UNKNOWN: (u16, &str) = (401, "operator_unknown");
const GRANT_INVALID: (u16, &str) = (401, "grant_invalid");
const SIGNATURE_AGENT: HeaderName = HeaderName::from_static("signature-agent");

/// The buyer's offer, unsigned.
fn offer() -> Request<Bytes> {
    post("/offers", &offer_body(FLOOR + 1))
}

/// A listing, which any operator may read.
fn look() -> Request<Bytes> {
    get(&format!("/listings/{LISTING}"))
}

/// The seller's offers, with its grant: a query and a token.
fn offers() -> Request<Bytes> {
    with_token(get(&format!("/offers?listing_id={LISTING}")), SELLER_TOKEN)
}

fn with_agent(mut request: Request<Bytes>, profile: &str) -> Request<Bytes> {
    set(&mut request, UCP_AGENT, &format!("profile=\"{profile}\""));
    request
}

/// A path that fits the row, and its method.
fn of_row(op: Op) -> Request<Bytes> {
    let row = op.row();
    let path = row.path.replace("{id}", "off_1");
    let path = if op == Op::ListOffers {
        format!("{path}?listing_id={LISTING}")
    } else {
        path
    };
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = row.method.clone();
    *request.uri_mut() = format!("{GATEWAY}{path}").parse().unwrap();
    request
}

/// Every row that agents call.
fn rows() -> impl Iterator<Item = Op> {
    TABLE
        .iter()
        .filter(|row| row.side != Side::Browser)
        .map(|row| row.op)
}

/// The rows where a caller without authentication is told of the grant that it lacks (S1).
fn is_sellers(op: Op) -> bool {
    matches!(
        op,
        Op::CreateListing
            | Op::SetListingTerms
            | Op::RepriceListing
            | Op::AnswerBuyer
            | Op::ListOffers
            | Op::CounterOffer
            | Op::AcceptOffer
            | Op::CommitToShip
            | Op::SignContract
            | Op::UpdateAccount
    )
}

fn stranger_refusal(op: Op) -> (u16, &'static str) {
    if is_sellers(op) {
        GRANT_INVALID
    } else {
        UNKNOWN
    }
}

/// A key that no profile lists, in the name of the buyer's operator.
fn stranger(world: &World) -> Agent {
    let key = SigningKey::generate().unwrap();
    let signer = Signer::new(&world.buyer.profile, key).unwrap();
    Agent {
        profile: world.buyer.profile.clone(),
        signer: signer.clock(world.clock.closure()),
    }
}

/// How long every chain is that these tests could touch.
async fn chains(world: &World, negotiation: &str) -> [usize; 3] {
    [
        world.gateway_chain().await.len(),
        world.chain(SubjectKind::Listing, LISTING).await.len(),
        world
            .chain(SubjectKind::Negotiation, negotiation)
            .await
            .len(),
    ]
}

fn challenge(answer: &Answer) -> Option<&str> {
    let value = answer.headers.get(header::WWW_AUTHENTICATE)?;
    Some(value.to_str().unwrap())
}

const CHALLENGE: &str =
    "Bearer resource_metadata=\"https://gateway.example/.well-known/oauth-protected-resource\"";

fn invalid_token() -> String {
    format!("{CHALLENGE}, error=\"invalid_token\"")
}

// 2: which mechanism.

#[tokio::test]
async fn a_request_without_a_mechanism_is_told_what_its_row_lacks() {
    let reference = World::new().await;
    let oauth = World::with(Tier::Auto, |b| b.mechanisms(Mechanisms::none().oauth())).await;
    let signatures = World::with(Tier::Auto, |b| {
        b.mechanisms(Mechanisms::none().http_signature())
    })
    .await;
    let keys = World::with(Tier::Auto, |b| {
        b.mechanisms(Mechanisms::none().http_signature().api_key(Keys::default()))
    })
    .await;
    for op in rows() {
        let expected = stranger_refusal(op);
        for world in [&reference, &oauth] {
            let answer = world.send(of_row(op)).await;
            assert_eq!(answer.refusal(), expected, "{op:?}");
            assert_eq!(challenge(&answer), Some(CHALLENGE), "{op:?}");
        }
        let answer = keys.send(of_row(op)).await;
        assert_eq!(answer.refusal(), expected, "{op:?}");
        assert_eq!(
            challenge(&answer),
            None,
            "{op:?}: no OAuth, nothing to obtain"
        );
        let answer = signatures.send(of_row(op)).await;
        assert_eq!(answer.refusal(), SIGNATURE_INVALID, "{op:?}");
    }
}

#[tokio::test]
async fn the_refusal_names_the_verb_and_states_the_decision() {
    let world = World::new().await;
    let answer = world.send(of_row(Op::AcceptOffer)).await;
    assert_eq!(
        answer.decision(),
        "forbid;action=\"offer.accept\";reason=grant_invalid"
    );
    let answer = world.send(of_row(Op::GetOffer)).await;
    assert_eq!(answer.decision(), "forbid;reason=operator_unknown");
    assert_eq!(answer.headers[header::CACHE_CONTROL], "no-store");
}

#[tokio::test]
async fn a_mechanism_that_is_off_is_not_accepted() {
    // Tokens are not, where signatures are required; a request that carries both is signed.
    let world = World::with(Tier::Auto, |b| {
        b.mechanisms(Mechanisms::none().http_signature())
    })
    .await;
    let answer = world.send(with_key(with_token(offer(), BUYER_TOKEN))).await;
    assert_eq!(answer.refusal(), SIGNATURE_INVALID);
    assert_eq!(world.grants.asked.load(Ordering::SeqCst), 0);
    assert_eq!(world.send(signed(&world.buyer, offer())).await.status, 201);

    // Signatures are not, where they are off; and a token beside one does not help (R1).
    let world = World::with(Tier::Auto, |b| b.mechanisms(Mechanisms::none().oauth())).await;
    let answer = world.send(signed(&world.buyer, offer())).await;
    assert_eq!(answer.refusal(), UNKNOWN);
    let answer = world
        .send(signed(&world.buyer, with_token(offer(), BUYER_TOKEN)))
        .await;
    assert_eq!(answer.refusal(), UNKNOWN);
    assert_eq!(world.grants.asked.load(Ordering::SeqCst), 0);
    let answer = world.send(with_key(with_token(offer(), BUYER_TOKEN))).await;
    assert_eq!(answer.status, 201);
}

#[tokio::test]
async fn a_signature_header_commits_whatever_else_the_request_carries() {
    let world = World::new().await;
    let valid = signed(&world.buyer, offer());
    let (input, signature) = (
        &valid.headers()[SIGNATURE_INPUT],
        &valid.headers()[SIGNATURE],
    );
    let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
    let other_label = |value: &HeaderValue| text(value).replace("sig1=", "sig2=");
    let cases: Vec<(&str, Option<String>, Option<String>)> = vec![
        ("Signature alone", None, Some(text(signature))),
        ("Signature-Input alone", Some(text(input)), None),
        ("empty headers", Some(String::new()), Some(String::new())),
        (
            "another label",
            Some(other_label(input)),
            Some(other_label(signature)),
        ),
        ("nonsense", Some("?".into()), Some("?".into())),
        (
            "a signature of another request",
            Some(text(input)),
            Some(text(signature)),
        ),
    ];
    for (what, input, signature) in cases {
        let mut request = with_key(with_token(offer(), BUYER_TOKEN));
        if let Some(input) = input {
            set(&mut request, SIGNATURE_INPUT, &input);
        }
        if let Some(signature) = signature {
            set(&mut request, SIGNATURE, &signature);
        }
        let answer = world.send(request).await;
        assert_eq!(answer.refusal(), SIGNATURE_INVALID, "{what}");
    }
    assert_eq!(world.grants.asked.load(Ordering::SeqCst), 0);
    let answer = world.send(with_key(with_token(offer(), BUYER_TOKEN))).await;
    assert_eq!(answer.status, 201, "the token by itself is good");
}

// R7: strangers learn nothing but 401.

#[tokio::test]
async fn strangers_get_401_where_others_learn_more() {
    let world = World::new().await;
    let request = |method: Method, path: &str, body: &'static str| {
        let mut request = post(path, &Value::Null);
        *request.method_mut() = method;
        if !body.is_empty() {
            set(&mut request, header::CONTENT_TYPE, "application/json");
        }
        *request.body_mut() = Bytes::from_static(body.as_bytes());
        request
    };
    let mut old = look();
    set(
        &mut old,
        HeaderName::from_static("rctp-version"),
        "\"2026-11-draft4\"",
    );
    let cases = [
        (
            "an unknown route",
            request(Method::GET, "/offers/off_1/history", ""),
            (404, "not_found"),
        ),
        (
            "a wrong method",
            request(Method::DELETE, "/offers/off_1", ""),
            (404, "not_found"),
        ),
        (
            "a trailing slash",
            request(Method::GET, "/offers/", ""),
            (404, "not_found"),
        ),
        (
            "an id of another form",
            request(Method::GET, "/offers/1", ""),
            (404, "not_found"),
        ),
        (
            "nothing of that id",
            request(Method::GET, "/offers/off_none", ""),
            (404, "not_found"),
        ),
        ("an old version", old, (400, "unsupported_version")),
        (
            "no JSON",
            request(Method::POST, "/offers", "{"),
            (400, "invalid_request"),
        ),
        (
            "no such schema",
            request(Method::POST, "/offers", "{}"),
            (400, "invalid_request"),
        ),
        (
            "a body where none belongs",
            request(Method::GET, "/offers/off_1", "{}"),
            (400, "invalid_request"),
        ),
    ];
    for (what, request, known) in cases {
        let answer = world.send(request.clone()).await;
        assert_eq!(answer.refusal(), UNKNOWN, "{what}");
        assert_eq!(challenge(&answer), Some(CHALLENGE), "{what}");
        let unlisted = signed(&stranger(&world), request.clone());
        assert_eq!(
            world.send(unlisted).await.refusal(),
            UNKNOWN,
            "{what}, unknown key"
        );
        let spoiled = signed_with(&world.buyer, request.clone(), |p| p.params.created = 1);
        let answer = world.send(spoiled).await;
        assert_eq!(answer.refusal(), SIGNATURE_INVALID, "{what}, stale");
        let answer = world.send(signed(&world.buyer, request)).await;
        assert_eq!(
            answer.refusal(),
            known,
            "{what}, known caller: {:?}",
            answer.body
        );
        assert_eq!(challenge(&answer), None);
    }
}

#[tokio::test]
async fn a_stranger_cannot_tell_what_is_there() {
    let world = World::new().await;
    let id = world.offer(FLOOR + 1).await.get("offer_id");
    let there = world.send(get(&format!("/offers/{id}"))).await;
    for path in [
        "/offers/off_none",
        "/offers/x/y",
        "/deals/deal_1",
        "/approvals/apr_1",
    ] {
        let answer = world.send(get(path)).await;
        assert_eq!(answer.bytes, there.bytes, "{path}");
        assert_eq!(answer.headers, there.headers, "{path}");
    }
    let there = world
        .send(post(&format!("/offers/{id}/accept"), &json!({})))
        .await;
    let absent = world
        .send(post("/offers/off_none/accept", &json!({})))
        .await;
    assert_eq!(there.bytes, absent.bytes);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_before_anything_else() {
    let world = World::with(Tier::Auto, |b| b.body_limit(1000)).await;
    for (size, stranger, known) in [
        (1000, UNKNOWN, (400, "invalid_request")),
        (1001, (413, "invalid_request"), (413, "invalid_request")),
    ] {
        let mut request = post("/offers", &json!({}));
        *request.body_mut() = Bytes::from(vec![b' '; size]);
        let answer = world.send(request.clone()).await;
        assert_eq!(answer.refusal(), stranger, "{size}");
        assert_eq!(answer.decision().is_empty(), stranger.0 == 413);
        let answer = world.send(signed(&world.buyer, request)).await;
        assert_eq!(answer.refusal(), known, "{size}");
    }
}

#[tokio::test]
async fn a_token_that_is_no_longer_good_learns_of_no_route() {
    let world = World::new().await;
    world.grants.set(
        "dead",
        Introspection {
            active: false,
            ..grant(SELLER, "client-seller", None, Tier::Auto, NOW + 800)
        },
    );
    world.grants.set(
        "revoked",
        Introspection {
            active: false,
            grant_status: Some(GrantStatus::Revoked),
            ..grant(SELLER, "client-seller", None, Tier::Auto, NOW + 800)
        },
    );
    let unknown_route = || get("/offers/off_1/history");
    for (token, expected) in [
        ("dead", GRANT_INVALID),
        ("revoked", (403, "grant_revoked")),
        (SELLER_TOKEN, GRANT_INVALID),
        (SELLER_UNBOUND, (404, "not_found")),
        (BUYER_TOKEN, (404, "not_found")),
    ] {
        let answer = world.send(with_token(unknown_route(), token)).await;
        assert_eq!(answer.refusal(), expected, "{token}");
    }
}

// 2.1: signed requests, check by check.

#[tokio::test]
async fn check_1_the_three_headers_are_present() {
    let world = World::new().await;
    for name in [SIGNATURE, SIGNATURE_INPUT, UCP_AGENT] {
        let mut request = signed(&world.buyer, offer());
        request.headers_mut().remove(&name);
        assert_eq!(
            world.send(request).await.refusal(),
            SIGNATURE_INVALID,
            "{name}"
        );
    }
    let request = signed_with(&world.buyer, offer(), |p| p.label = "sig2");
    assert_eq!(
        world.send(request).await.refusal(),
        SIGNATURE_INVALID,
        "another label"
    );
    assert_eq!(world.send(signed(&world.buyer, offer())).await.status, 201);
}

#[tokio::test]
async fn check_2_ucp_agent_names_an_onboarded_profile() {
    let world = World::new().await;
    let profile = world.buyer.profile.clone();
    for value in [
        "profile=\"https://stranger.example/.well-known/ucp\"".to_owned(),
        "profile=\"http://buyer.example/.well-known/ucp\"".to_owned(),
        "profile=\"\"".to_owned(),
        format!("profile={profile}"),
        format!("profile=(\"{profile}\")"),
        format!("profile=\"{profile}"),
        format!("profile=:{profile}:"),
        format!("Profile=\"{profile}\""),
        format!("agent=\"{profile}\""),
        format!("\"{profile}\""),
        format!("profile=\"{profile}\", profile=\"{profile}\""),
        format!("profile=\"https://stranger.example/\", profile=\"{profile}\""),
        format!("profile=\"{profile}\", profile=\"https://stranger.example/\""),
        format!("profile=\"{profile}\","),
        "profile".to_owned(),
        "profile=1".to_owned(),
        String::new(),
    ] {
        let mut request = offer();
        set(&mut request, UCP_AGENT, &value);
        let request = signed(&world.buyer, request);
        assert_eq!(world.send(request).await.refusal(), UNKNOWN, "{value}");
    }
    // Twice, with both covered as one value.
    let mut twice = with_agent(offer(), &profile);
    let value = twice.headers()[UCP_AGENT].clone();
    twice.headers_mut().append(UCP_AGENT, value);
    assert_eq!(
        world.send(signed(&world.buyer, twice)).await.refusal(),
        UNKNOWN
    );
    // Bytes that are no text at all.
    let mut request = signed(&world.buyer, offer());
    let value = HeaderValue::from_bytes(b"profile=\"\xff\"").unwrap();
    request.headers_mut().insert(UCP_AGENT, value);
    assert_eq!(world.send(request).await.refusal(), UNKNOWN);

    for value in [
        format!("profile=\"{profile}\";v=1"),
        format!("version=\"1\", profile=\"{profile}\", x"),
        format!("  profile=\"{profile}\"  "),
    ] {
        let mut request = offer();
        set(&mut request, UCP_AGENT, &value);
        let answer = world.send(signed(&world.buyer, request)).await;
        assert_eq!(answer.status, 201, "{value}");
    }
}

#[tokio::test]
async fn check_2_an_operator_that_registered_a_client_only_has_no_keys() {
    let world = World::with(Tier::Auto, |b| b.operators(registered_only())).await;
    let answer = world.send(signed(&world.buyer, offer())).await;
    assert_eq!(answer.refusal(), UNKNOWN);
    assert_eq!(world.origins.fetches.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn check_3_keyid_is_a_kid_of_that_profile() {
    let world = World::new().await;
    let request = signed(&stranger(&world), offer());
    assert_eq!(world.send(request).await.refusal(), UNKNOWN);
    // The seller's key is a key, but not of this profile.
    let mut request = dressed(offer(), &world.buyer.profile);
    let seal = plan(&request);
    sign(&mut request, world.seller.signer.key(), &seal);
    assert_eq!(world.send(request).await.refusal(), UNKNOWN);
    for (what, keyid, expected) in [
        ("an empty one", ";keyid=\"\"", UNKNOWN),
        ("another", ";keyid=\"other\"", UNKNOWN),
        // None is no signature of the form that 2.1 asks for.
        ("none", "", SIGNATURE_INVALID),
    ] {
        let mut request = signed(&world.buyer, offer());
        let input = request.headers()[SIGNATURE_INPUT].to_str().unwrap();
        let ours = format!(";keyid=\"{}\"", world.buyer.kid());
        let changed = input.replace(&ours, keyid);
        set(&mut request, SIGNATURE_INPUT, &changed);
        assert_eq!(world.send(request).await.refusal(), expected, "{what}");
    }
}

#[tokio::test]
async fn check_4_every_required_component_is_covered() {
    let world = World::new().await;
    let mut dual = offer();
    set(
        &mut dual,
        SIGNATURE_AGENT,
        "sig1=\"https://buyer.example/\"",
    );
    let mut keyed = look();
    keyed.headers_mut().insert(IDEMPOTENCY_KEY, fresh_key());
    let field = |name: HeaderName| Component::from(name);
    let cases: Vec<(&Agent, Request<Bytes>, Vec<Component>)> = vec![
        (
            &world.buyer,
            offer(),
            vec![
                Component::Method,
                Component::Authority,
                Component::Path,
                field(UCP_AGENT),
                field(IDEMPOTENCY_KEY),
                field(CONTENT_DIGEST),
                field(header::CONTENT_TYPE),
            ],
        ),
        (
            &world.seller,
            offers(),
            vec![
                Component::Method,
                Component::Authority,
                Component::Path,
                Component::Query,
                field(UCP_AGENT),
                field(header::AUTHORIZATION),
            ],
        ),
        (&world.buyer, dual, vec![field(SIGNATURE_AGENT)]),
        (&world.buyer, keyed, vec![field(IDEMPOTENCY_KEY)]),
    ];
    for (agent, request, required) in cases {
        let all = |p: &mut Plan| {
            if request.headers().contains_key(SIGNATURE_AGENT) {
                p.components.push(field(SIGNATURE_AGENT));
            }
        };
        let answer = world.send(signed_with(agent, request.clone(), all)).await;
        assert!(answer.status < 300, "{:?}", answer.body);
        for component in required {
            let mut request = request.clone();
            request.headers_mut().remove(IDEMPOTENCY_KEY);
            if component == field(IDEMPOTENCY_KEY) {
                request.headers_mut().insert(IDEMPOTENCY_KEY, fresh_key());
            }
            let request = signed_with(agent, request, |p| {
                all(p);
                p.components.retain(|c| *c != component);
            });
            let answer = world.send(request).await;
            assert_eq!(answer.refusal(), SIGNATURE_INVALID, "{component}");
        }
    }
}

#[tokio::test]
async fn check_4_a_signed_post_without_an_idempotency_key_covers_too_little() {
    let world = World::new().await;
    let mut request = dressed(offer(), &world.buyer.profile);
    request.headers_mut().remove(IDEMPOTENCY_KEY);
    let seal = plan(&request);
    sign(&mut request, world.buyer.signer.key(), &seal);
    assert_eq!(world.send(request).await.refusal(), SIGNATURE_INVALID);
}

#[tokio::test]
async fn check_4_authorization_that_is_not_covered_is_a_bad_signature_and_no_grant() {
    let world = World::new().await;
    for (agent, request) in [
        (&world.seller, offers()),
        (&world.buyer, with_token(offer(), BUYER_TOKEN)),
        (&world.buyer, with_token(look(), "nonsense")),
    ] {
        let request = signed_with(agent, request, |p| {
            p.components.retain(|c| *c != header::AUTHORIZATION.into());
        });
        assert_eq!(world.send(request).await.refusal(), SIGNATURE_INVALID);
    }
    // Added on the way.
    let request = with_token(signed(&world.buyer, offer()), BUYER_TOKEN);
    assert_eq!(world.send(request).await.refusal(), SIGNATURE_INVALID);
    assert_eq!(
        world.grants.asked.load(Ordering::SeqCst),
        0,
        "nobody was asked"
    );
}

#[tokio::test]
async fn check_4_the_signature_is_fresh() {
    let world = World::new().await;
    let cases: [(i64, Option<i64>, bool); 17] = [
        (0, Some(0), true),
        (0, Some(1), true),
        (0, Some(300), true),
        (0, Some(301), false),
        (0, None, false),
        (0, Some(-1), false),
        (-60, Some(0), true),
        (-60, Some(240), true),
        (-60, Some(241), false),
        (-60, Some(-1), false),
        (-61, Some(239), false),
        (60, Some(60), true),
        (60, Some(360), true),
        (60, Some(361), false),
        (60, Some(0), false),
        (61, Some(361), false),
        (-NOW, Some(300 - NOW), false),
    ];
    for (created, expires, fresh) in cases {
        let mut params = Params::new(NOW + created);
        params.expires = expires.map(|expires| NOW + expires);
        let request = signed_with(&world.buyer, look(), |p| p.params = params);
        let answer = world.send(request).await;
        let expected = if fresh { (200, "") } else { SIGNATURE_INVALID };
        assert_eq!(
            answer.refusal(),
            expected,
            "created {created}, expires {expires:?}"
        );
    }
}

#[tokio::test]
async fn check_4_a_request_stays_good_until_it_expires() {
    let world = World::new().await;
    let request = signed_with(&world.buyer, look(), |p| {
        p.params = Params::new(NOW).expires(NOW + 300)
    });
    for (after, expected) in [
        (60, (200, "")),
        (1, SIGNATURE_INVALID),
        (240, SIGNATURE_INVALID),
    ] {
        world.clock.advance(after);
        assert_eq!(world.send(request.clone()).await.refusal(), expected);
    }
    let world = World::new().await;
    let request = signed_with(&world.buyer, look(), |p| {
        p.params = Params::new(NOW).expires(NOW + 30)
    });
    for (after, expected) in [(30, (200, "")), (1, SIGNATURE_INVALID)] {
        world.clock.advance(after);
        assert_eq!(world.send(request.clone()).await.refusal(), expected);
    }
}

#[tokio::test]
async fn check_4_a_singleton_header_that_occurs_twice_is_refused_even_if_both_are_covered() {
    let world = World::new().await;
    let base = with_token(offer(), BUYER_TOKEN);
    for (name, first, second) in [
        (header::CONTENT_TYPE, "application/json", "application/json"),
        (header::CONTENT_TYPE, "application/json", "text/plain"),
        (header::AUTHORIZATION, "Bearer a", "Bearer b"),
        (CONTENT_DIGEST, "sha-256=:AAAA:", "sha-256=:AAAA:"),
        (
            IDEMPOTENCY_KEY,
            "0123456789012345678901",
            "0123456789012345678902",
        ),
        (SIGNATURE_AGENT, "sig1=\"https://buyer.example/\"", "a=1"),
    ] {
        let mut request = base.clone();
        set(&mut request, &name, first);
        if name == CONTENT_DIGEST {
            let digest = content_digest(&sha256(request.body()));
            request.headers_mut().insert(&name, digest);
        }
        request
            .headers_mut()
            .append(&name, HeaderValue::from_str(second).unwrap());
        let request = signed_with(&world.buyer, request, |p| {
            if name == SIGNATURE_AGENT {
                p.components.push(SIGNATURE_AGENT.into());
            }
        });
        assert_eq!(
            world.send(request).await.refusal(),
            SIGNATURE_INVALID,
            "{name}"
        );
    }
    for second in ["gateway.example", "evil.example"] {
        let mut request = origin_form(signed(&world.buyer, offer()));
        let second = HeaderValue::from_static(second);
        request.headers_mut().append(header::HOST, second);
        assert_eq!(world.send(request).await.refusal(), SIGNATURE_INVALID);
    }
}

#[tokio::test]
async fn check_4_the_digest_is_that_of_the_body_whatever_stands_beside_it() {
    let world = World::new().await;
    let request = offer();
    let right = content_digest(&sha256(request.body()));
    let right = right.to_str().unwrap();
    let wrong = content_digest(&sha256(b"{}"));
    let wrong = wrong.to_str().unwrap();
    let sha512 = "sha-512=:AAAA:";
    for (value, good) in [
        (right.to_owned(), true),
        (format!("{sha512}, {right}"), true),
        (format!("{right}, {sha512}, unixsum=:AAAA:"), true),
        (wrong.to_owned(), false),
        (sha512.to_owned(), false),
        (format!("{right}, {right}"), false),
        (format!("{right}, {wrong}"), false),
        (format!("{wrong}, {right}"), false),
        (right.replace("sha-256", "SHA-256"), false),
        (right.replace(':', "\""), false),
        (right.replace('=', "= "), false),
        (String::new(), false),
        ("sha-256".to_owned(), false),
    ] {
        let mut request = request.clone();
        set(&mut request, CONTENT_DIGEST, &value);
        let answer = world.send(signed(&world.buyer, request)).await;
        let expected = if good { (201, "") } else { SIGNATURE_INVALID };
        assert_eq!(answer.refusal(), expected, "{value}");
    }
    // A digest that nothing has.
    let mut request = look();
    set(&mut request, CONTENT_DIGEST, wrong);
    assert_eq!(
        world.send(signed(&world.buyer, request)).await.refusal(),
        SIGNATURE_INVALID
    );
}

#[tokio::test]
async fn check_4_a_signature_for_another_purpose_is_refused() {
    let world = World::new().await;
    for tag in ["other", "", "Web-Bot-Auth", "web-bot-auth"] {
        let request = signed_with(&world.buyer, look(), |p| {
            p.params = p.params.clone().tag(tag);
        });
        assert_eq!(
            world.send(request).await.refusal(),
            SIGNATURE_INVALID,
            "{tag:?}"
        );
    }
}

#[tokio::test]
async fn a_signature_for_two_audiences_covers_its_own_member_of_signature_agent() {
    let world = World::new().await;
    let ours = || Component::FieldKey(SIGNATURE_AGENT, "sig1".into());
    let other = || Component::FieldKey(SIGNATURE_AGENT, "sig2".into());
    let one = "sig1=\"https://buyer.example/\"";
    let two = "sig1=\"https://buyer.example/\", sig2=\"https://evil.example/\"";
    let cases: Vec<(&str, Vec<Component>, bool)> = vec![
        (one, vec![ours()], true),
        (one, vec![ours(), SIGNATURE_AGENT.into()], true),
        (one, vec![SIGNATURE_AGENT.into()], false),
        (one, vec![], false),
        (two, vec![ours(), other()], true),
        (two, vec![ours()], false),
    ];
    for (value, components, good) in cases {
        let mut request = offer();
        set(&mut request, SIGNATURE_AGENT, value);
        let request = signed_with(&world.buyer, request, |p| {
            p.components.extend(components.clone());
            p.params = p.params.clone().tag("web-bot-auth");
        });
        let expected = if good { (201, "") } else { SIGNATURE_INVALID };
        assert_eq!(
            world.send(request).await.refusal(),
            expected,
            "{value} {components:?}"
        );
    }
    // UCP-Agent is still what names the operator.
    let mut request = offer();
    set(&mut request, SIGNATURE_AGENT, one);
    let mut request = signed_with(&world.buyer, request, |p| {
        p.components.push(ours());
        p.components.retain(|c| *c != UCP_AGENT.into());
        p.params = p.params.clone().tag("web-bot-auth");
    });
    request.headers_mut().remove(UCP_AGENT);
    assert_eq!(world.send(request).await.refusal(), SIGNATURE_INVALID);
}

#[tokio::test]
async fn signatures_of_others_beside_ours_are_not_looked_at() {
    let world = World::new().await;
    let mut request = signed(&world.buyer, offer());
    for (name, value) in [
        (SIGNATURE_INPUT, "proxy=(\"x\");tag=\"t\""),
        (SIGNATURE, "proxy=:AAAA:"),
    ] {
        let headers = request.headers_mut();
        headers.append(name, HeaderValue::from_static(value));
    }
    assert_eq!(world.send(request).await.status, 201);
}

/// Earlier checks win: each request fails two of them.
#[tokio::test]
async fn the_checks_of_2_1_stand_in_their_order() {
    let world = World::new().await;
    let stranger = stranger(&world);
    let stale = |p: &mut Plan| p.params = Params::new(NOW - 1000).expires(NOW - 900);
    let nobody = || with_agent(offer(), "https://stranger.example/.well-known/ucp");
    let without = |mut request: Request<Bytes>, name: HeaderName| {
        request.headers_mut().remove(name);
        request
    };
    let relabelled = |agent: &Agent, request| signed_with(agent, request, |p| p.label = "sig2");
    let cases = [
        // 1 before 2: no label sig1, and an operator that nobody knows.
        (
            "1, 2",
            relabelled(&world.buyer, nobody()),
            SIGNATURE_INVALID,
        ),
        (
            "1, 2",
            without(signed(&world.buyer, nobody()), SIGNATURE),
            SIGNATURE_INVALID,
        ),
        (
            "1, 2",
            without(signed(&world.buyer, nobody()), SIGNATURE_INPUT),
            SIGNATURE_INVALID,
        ),
        // 1 before 3: a header is missing, and the key is nobody's.
        ("1, 3", relabelled(&stranger, offer()), SIGNATURE_INVALID),
        (
            "1, 3",
            without(signed(&stranger, offer()), UCP_AGENT),
            SIGNATURE_INVALID,
        ),
        // 1 before 4.
        (
            "1, 4",
            without(signed_with(&world.buyer, offer(), stale), UCP_AGENT),
            SIGNATURE_INVALID,
        ),
        // 2 before 3: both say operator_unknown; the profile of nobody is not asked for.
        ("2, 3", signed(&stranger, nobody()), UNKNOWN),
        // 2 before 4.
        ("2, 4", signed_with(&world.buyer, nobody(), stale), UNKNOWN),
        // 3 before 4.
        ("3, 4", signed_with(&stranger, offer(), stale), UNKNOWN),
    ];
    for (checks, request, expected) in cases {
        assert_eq!(world.send(request).await.refusal(), expected, "{checks}");
    }
    let authenticated_first = [
        // Then the version, the route, the grant, the body.
        (
            "4, version",
            {
                let mut request = look();
                set(&mut request, HeaderName::from_static("rctp-version"), "1");
                signed_with(&world.buyer, request, stale)
            },
            SIGNATURE_INVALID,
        ),
        (
            "version, route",
            {
                let mut request = get("/offers/x/y");
                set(&mut request, HeaderName::from_static("rctp-version"), "1");
                signed(&world.buyer, request)
            },
            (400, "unsupported_version"),
        ),
        (
            "version, grant",
            {
                let mut request = with_token(offers(), "nonsense");
                set(&mut request, HeaderName::from_static("rctp-version"), "1");
                signed(&world.seller, request)
            },
            (400, "unsupported_version"),
        ),
        (
            "grant, body",
            {
                let request = post(&format!("/listings/{LISTING}/price"), &json!({"floor": 1}));
                signed(&world.seller, with_token(request, "nonsense"))
            },
            GRANT_INVALID,
        ),
        (
            "body, key",
            {
                let mut request = with_token(post("/offers", &json!({"floor": 1})), BUYER_TOKEN);
                set(&mut request, IDEMPOTENCY_KEY, "short");
                request
            },
            (400, "invalid_request"),
        ),
    ];
    for (checks, request, expected) in authenticated_first {
        assert_eq!(world.send(request).await.refusal(), expected, "{checks}");
    }
}

// Targets and hosts.

#[tokio::test]
async fn a_request_is_for_us_in_every_form_that_http_gives_it() {
    let world = World::with(Tier::Auto, |b| b.authority("alias.example:8443")).await;
    let uri = |mut request: Request<Bytes>, uri: &str| {
        *request.uri_mut() = uri.parse().unwrap();
        request
    };
    let host = |mut request: Request<Bytes>, host: &str| {
        set(&mut request, header::HOST, host);
        request
    };
    let request = || signed(&world.buyer, look());
    let path = format!("/listings/{LISTING}");
    let h2 = {
        let mut request = request();
        *request.version_mut() = Version::HTTP_2;
        request
    };
    let alias = signed(
        &world.buyer,
        uri(look(), &format!("https://alias.example:8443{path}")),
    );
    let cases = [
        ("origin form", origin_form(request()), true),
        ("HTTP/2", h2, true),
        ("absolute form", request(), true),
        (
            "absolute form and host",
            host(request(), "gateway.example"),
            true,
        ),
        (
            "upper case",
            host(origin_form(request()), "GateWay.EXAMPLE"),
            true,
        ),
        (
            "the default port",
            host(origin_form(request()), "gateway.example:443"),
            true,
        ),
        (
            "the default port in the target",
            uri(request(), &format!("https://GATEWAY.example:443{path}")),
            true,
        ),
        (
            "both, in other words",
            host(
                uri(request(), &format!("https://GATEWAY.example:443{path}")),
                "gateway.example",
            ),
            true,
        ),
        ("a further authority", alias.clone(), true),
        (
            "a further authority as host",
            origin_form(alias.clone()),
            true,
        ),
        (
            "signed for the alias, sent to the public URL",
            host(origin_form(alias), "gateway.example"),
            false,
        ),
        (
            "signed for the public URL, sent to the alias",
            host(origin_form(request()), "alias.example:8443"),
            false,
        ),
        (
            "target and host disagree",
            host(request(), "alias.example:8443"),
            false,
        ),
        (
            "target and host disagree with us",
            host(request(), "evil.example"),
            false,
        ),
        (
            "http",
            uri(request(), &format!("http://gateway.example{path}")),
            false,
        ),
        (
            "another port",
            host(origin_form(request()), "gateway.example:8443"),
            false,
        ),
        (
            "the port of http",
            host(origin_form(request()), "gateway.example:80"),
            false,
        ),
        (
            "another host",
            host(origin_form(request()), "evil.example"),
            false,
        ),
        (
            "a host below ours",
            host(origin_form(request()), "a.gateway.example"),
            false,
        ),
        (
            "a trailing dot",
            host(origin_form(request()), "gateway.example."),
            false,
        ),
        (
            "a user",
            host(origin_form(request()), "user@gateway.example"),
            false,
        ),
        ("an empty host", host(origin_form(request()), ""), false),
        (
            "no host",
            {
                let mut request = origin_form(request());
                request.headers_mut().remove(header::HOST);
                request
            },
            false,
        ),
        (
            "a host that is no text",
            {
                let mut request = origin_form(request());
                let value = HeaderValue::from_bytes(b"gateway\xff.example").unwrap();
                request.headers_mut().insert(header::HOST, value);
                request
            },
            false,
        ),
        (
            "x-forwarded-host does not count",
            {
                let mut request = host(origin_form(request()), "evil.example");
                set(
                    &mut request,
                    HeaderName::from_static("x-forwarded-host"),
                    "gateway.example",
                );
                request
            },
            false,
        ),
    ];
    for (what, request, good) in cases {
        let expected = if good { (200, "") } else { SIGNATURE_INVALID };
        assert_eq!(world.send(request).await.refusal(), expected, "{what}");
    }
    // Signed for another host altogether.
    let request = signed_with(&world.buyer, look(), |p| {
        p.authority = Authority::new("evil.example", "https").unwrap();
    });
    assert_eq!(world.send(request).await.refusal(), SIGNATURE_INVALID);
}

#[tokio::test]
async fn path_and_query_are_what_the_client_sent() {
    let world = World::new().await;
    let listing = format!("/listings/{LISTING}");
    let encoded = listing.replace('_', "%5F");
    let lower = listing.replace('_', "%5f");
    let buyer = |target: &str| get(target);
    // As signed and as sent, and the answer.
    let cases: Vec<(&str, &str, (u16, &str))> = vec![
        (&listing, &listing, (200, "")),
        (&encoded, &encoded, (404, "not_found")),
        (&listing, &encoded, SIGNATURE_INVALID),
        (&encoded, &listing, SIGNATURE_INVALID),
        (&encoded, &lower, SIGNATURE_INVALID),
    ];
    for (as_signed, as_sent, expected) in cases {
        let mut request = signed(&world.buyer, buyer(as_signed));
        *request.uri_mut() = format!("{GATEWAY}{as_sent}").parse().unwrap();
        let answer = world.send(request).await;
        assert_eq!(answer.refusal(), expected, "{as_signed} sent as {as_sent}");
    }
    let offers = |query: &str| with_token(get(&format!("/offers{query}")), SELLER_TOKEN);
    let plain = format!("?listing_id={LISTING}");
    let escaped = plain.replace('_', "%5F");
    for (as_signed, as_sent, expected) in [
        (&*plain, &*plain, (200, "")),
        (&escaped, &escaped, (200, "")),
        (&plain, &escaped, SIGNATURE_INVALID),
        (&escaped, &plain, SIGNATURE_INVALID),
        (&plain, "", SIGNATURE_INVALID),
        (&plain, "?", SIGNATURE_INVALID),
        ("", &plain, SIGNATURE_INVALID),
    ] {
        let mut request = signed(&world.seller, offers(as_signed));
        *request.uri_mut() = format!("{GATEWAY}/offers{as_sent}").parse().unwrap();
        let answer = world.send(request).await;
        assert_eq!(answer.refusal(), expected, "{as_signed} sent as {as_sent}");
    }
}

#[tokio::test]
async fn an_empty_query_is_a_query() {
    let world = World::new().await;
    let target = format!("/listings/{LISTING}?");
    let request = get(&target);
    assert_eq!(request.uri().query(), Some(""));
    assert_eq!(
        world
            .send(signed(&world.buyer, request.clone()))
            .await
            .status,
        200
    );
    let uncovered = signed_with(&world.buyer, request.clone(), |p| {
        p.components.retain(|c| *c != Component::Query);
    });
    assert_eq!(world.send(uncovered).await.refusal(), SIGNATURE_INVALID);
    let mut added = signed(&world.buyer, look());
    *added.uri_mut() = request.uri().clone();
    assert_eq!(world.send(added).await.refusal(), SIGNATURE_INVALID);
}

// 2.2: OAuth without a signature.

#[tokio::test]
async fn an_unsigned_token_acts_for_the_profile_of_its_client() {
    let world = World::new().await;
    let offer_id = world.offer(FLOOR + 1).await;
    let (id, negotiation) = (offer_id.get("offer_id"), offer_id.get("negotiation_id"));
    let path = format!("/offers/{id}/accept");
    let answer = world.oauth_post(SELLER_UNBOUND, &path, &json!({})).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let entry = world
        .chain(SubjectKind::Negotiation, &negotiation)
        .await
        .pop()
        .unwrap();
    assert_eq!(entry["authenticated_by"], "oauth");
    assert_eq!(entry["agent_profile"], world.seller.profile);
    assert_eq!(entry["client_id"], "client-seller");
    assert_eq!(entry.get("keyid"), None);

    let named = with_agent(with_token(look(), SELLER_UNBOUND), &world.seller.profile);
    assert_eq!(world.send(named).await.status, 200);
    let named = with_agent(with_token(look(), BUYER_TOKEN), &world.buyer.profile);
    assert_eq!(world.send(named).await.status, 200);
    assert_eq!(
        world.send(with_token(look(), BUYER_TOKEN)).await.status,
        200
    );
}

/// Whatever the row, and whoever's the other profile is: onboarded, or nobody's.
#[tokio::test]
async fn v35_a_token_with_another_profile_than_its_clients_is_401_operator_unknown() {
    let world = World::new().await;
    let offer = world.offer(FLOOR + 1).await.get("offer_id");
    let accept = format!("/offers/{offer}/accept");
    let (buyers, sellers) = (&*world.buyer.profile, &*world.seller.profile);
    let nobodys = "https://stranger.example/.well-known/ucp";
    let seller = [
        get(&format!("/offers?listing_id={LISTING}")),
        get(&format!("/offers/{offer}")),
        post("/listings/lst_bicycle/terms", &json!({})),
        post(&accept, &json!({})),
        post("/account", &json!({})),
    ];
    let buyer = [
        look(),
        get(&format!("/offers/{offer}")),
        post("/offers", &offer_body(FLOOR + 2)),
        post(
            "/listings/lst_bicycle/questions",
            &json!({"text": "Has it a bell?"}),
        ),
    ];
    for (token, own, other, requests) in [
        (SELLER_UNBOUND, sellers, buyers, &seller[..]),
        (BUYER_TOKEN, buyers, sellers, &buyer[..]),
    ] {
        for request in requests {
            let request = |profile| {
                let request = with_key(with_token(request.clone(), token));
                with_agent(request, profile)
            };
            for profile in [other, nobodys, &own.to_uppercase()] {
                let refused = world.send(request(profile)).await;
                assert_eq!(refused.refusal(), UNKNOWN, "{token} {profile}");
            }
        }
    }
    assert_eq!(
        world
            .seller_get(&format!("/offers/{offer}"))
            .await
            .get("state"),
        "open"
    );
    let named = with_agent(
        with_key(with_token(post(&accept, &json!({})), SELLER_UNBOUND)),
        sellers,
    );
    assert_eq!(world.send(named).await.status, 200);
}

#[tokio::test]
async fn a_buyer_without_a_key_offers_as_its_client() {
    let world = World::new().await;
    let answer = world
        .oauth_post(BUYER_TOKEN, "/offers", &offer_body(FLOOR + 1))
        .await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    let id = answer.get("offer_id");
    let entry = world
        .chain(SubjectKind::Negotiation, &answer.get("negotiation_id"))
        .await
        .pop()
        .unwrap();
    assert_eq!(entry["authenticated_by"], "oauth");
    assert_eq!(entry["agent_profile"], world.buyer.profile);
    assert_eq!(entry["client_id"], "client-buyer");
    // It is the client's offer, not that of the operator's keys.
    let path = format!("/offers/{id}");
    assert_eq!(
        world.send(with_token(get(&path), BUYER_TOKEN)).await.status,
        200
    );
    assert_eq!(world.buyer_get(&path).await.status, 404);
}

#[tokio::test]
async fn a_token_and_a_ucp_agent_that_disagree_are_refused_and_recorded() {
    let world = World::new().await;
    let started = world.offer(FLOOR + 1).await;
    let (id, negotiation) = (started.get("offer_id"), started.get("negotiation_id"));
    let accept = || post(&format!("/offers/{id}/accept"), &json!({}));
    let before = chains(&world, &negotiation).await;
    let values = [
        format!("profile=\"{}\"", world.buyer.profile),
        "profile=\"https://stranger.example/.well-known/ucp\"".to_owned(),
        "profile=\"\"".to_owned(),
        "profile=1".to_owned(),
        format!("profile=\"{0}\", profile=\"{0}\"", world.seller.profile),
        String::new(),
    ];
    for (count, value) in values.iter().enumerate() {
        let mut request = with_key(with_token(accept(), SELLER_UNBOUND));
        set(&mut request, UCP_AGENT, value);
        let answer = world.send(request).await;
        assert_eq!(answer.refusal(), UNKNOWN, "{value}");
        let [gateway, listing, negotiated] = chains(&world, &negotiation).await;
        assert_eq!(gateway, before[0] + count + 1, "{value}");
        assert_eq!([listing, negotiated], before[1..], "{value}");
        let entry = world.gateway_chain().await.pop().unwrap();
        assert_eq!(entry["authenticated_by"], "oauth");
        assert_eq!(entry["agent_profile"], world.seller.profile);
        assert_eq!(entry["client_id"], "client-seller");
        assert_eq!(entry["operation"], "accept_offer");
        assert_eq!(entry["decision"]["reason"], "operator_unknown");
    }
    // Twice is no agreement either.
    let mut twice = with_agent(
        with_key(with_token(accept(), SELLER_UNBOUND)),
        &world.seller.profile,
    );
    let value = twice.headers()[UCP_AGENT].clone();
    twice.headers_mut().append(UCP_AGENT, value);
    assert_eq!(world.send(twice).await.refusal(), UNKNOWN);
    assert_eq!(
        world.seller_get(&format!("/offers/{id}")).await.body["state"],
        "open"
    );
}

#[tokio::test]
async fn a_key_bound_token_without_a_signature_is_refused_on_every_row() {
    let world = World::new().await;
    world.grants.set(
        "bound-buyer",
        Introspection {
            cnf: Some(Confirmation {
                jkt: Some(world.buyer.kid().to_owned()),
            }),
            ..client_token("client-buyer", NOW + 800)
        },
    );
    world.grants.set(
        "bound-otherwise",
        Introspection {
            cnf: Some(Confirmation { jkt: None }),
            ..client_token("client-buyer", NOW + 800)
        },
    );
    for op in rows() {
        for token in [SELLER_TOKEN, "bound-buyer", "bound-otherwise"] {
            let answer = world.send(with_key(with_token(of_row(op), token))).await;
            assert_eq!(answer.refusal(), GRANT_INVALID, "{op:?} with {token}");
        }
    }
    // Whoever holds it may have stolen it: no caller was proven, whatever it says of itself.
    let named = with_agent(with_token(look(), SELLER_TOKEN), &world.buyer.profile);
    assert_eq!(world.send(named).await.refusal(), GRANT_INVALID);
    assert!(world.gateway_chain().await.is_empty());
}

#[tokio::test]
async fn a_token_of_a_client_that_is_registered_to_nobody_is_refused() {
    let world = World::new().await;
    world.grants.set(
        "of-nobody",
        grant(SELLER, "client-other", None, Tier::Auto, NOW + 800),
    );
    world.grants.set(
        "of-no-client",
        Introspection {
            client_id: None,
            ..grant(SELLER, "", None, Tier::Auto, NOW + 800)
        },
    );
    world
        .grants
        .set("of-an-empty-client", client_token("", NOW + 800));
    let before = world.gateway_chain().await.len();
    for token in ["of-nobody", "of-no-client", "of-an-empty-client"] {
        for op in rows() {
            let answer = world.send(with_key(with_token(of_row(op), token))).await;
            assert_eq!(answer.refusal(), UNKNOWN, "{op:?} with {token}");
        }
    }
    assert_eq!(
        world.gateway_chain().await.len(),
        before,
        "nobody was proven"
    );
}

#[tokio::test]
async fn a_token_that_the_authorization_server_does_not_know_is_refused_by_row() {
    let world = World::new().await;
    world.grants.set(
        "inactive",
        Introspection {
            client_id: Some("client-buyer".into()),
            ..Introspection::default()
        },
    );
    for token in ["nonsense", "inactive"] {
        for op in rows() {
            let answer = world.send(with_key(with_token(of_row(op), token))).await;
            assert_eq!(
                answer.refusal(),
                stranger_refusal(op),
                "{op:?} with {token}"
            );
            assert_eq!(challenge(&answer), Some(&*invalid_token()), "RFC 6750 §3.1");
        }
    }
    assert!(world.gateway_chain().await.is_empty());
}

#[tokio::test]
async fn a_clients_own_token_ends_with_its_time() {
    let world = World::new().await;
    world
        .grants
        .set(BUYER_TOKEN, client_token("client-buyer", NOW + 10));
    assert_eq!(
        world.send(with_token(look(), BUYER_TOKEN)).await.status,
        200
    );
    world.clock.advance(9);
    assert_eq!(
        world.send(with_token(look(), BUYER_TOKEN)).await.status,
        200
    );
    world.clock.advance(1);
    assert_eq!(
        world.send(with_token(look(), BUYER_TOKEN)).await.refusal(),
        UNKNOWN
    );
    let answer = world
        .oauth_post(BUYER_TOKEN, "/offers", &offer_body(FLOOR + 1))
        .await;
    assert_eq!(answer.refusal(), UNKNOWN);
}

#[tokio::test]
async fn a_sellers_grant_does_not_buy() {
    let world = World::new().await;
    let answer = world
        .oauth_post(SELLER_UNBOUND, "/offers", &offer_body(FLOOR + 1))
        .await;
    assert_eq!(answer.refusal(), (403, "action_forbidden"));
    let answer = world.seller_post("/offers", &offer_body(FLOOR + 1)).await;
    assert_eq!(answer.refusal(), (403, "action_forbidden"));
    world.grants.revoke(SELLER_UNBOUND);
    let answer = world
        .oauth_post(SELLER_UNBOUND, "/offers", &offer_body(FLOOR + 1))
        .await;
    assert_eq!(answer.refusal(), (403, "action_forbidden"));
}

#[tokio::test]
async fn authorization_is_one_bearer_token_or_nothing() {
    let world = World::new().await;
    for value in [
        "Bearer",
        "Bearer ",
        "Bearer    ",
        "Basic Y2xpZW50LWJ1eWVyOng=",
        BUYER_TOKEN,
        &format!("Bearer {BUYER_TOKEN}, Bearer {BUYER_TOKEN}"),
        &format!("Bearer {BUYER_TOKEN} x"),
        &format!("Bearer \"{BUYER_TOKEN}\""),
        &format!("Bearer\t{BUYER_TOKEN}"),
        &format!("Bearer:{BUYER_TOKEN}"),
        &format!("DPoP {BUYER_TOKEN}"),
        "",
    ] {
        let mut request = look();
        set(&mut request, header::AUTHORIZATION, value);
        assert_eq!(world.send(request).await.refusal(), UNKNOWN, "{value:?}");
    }
    let mut request = look();
    let value = HeaderValue::from_bytes(b"Bearer \xff").unwrap();
    request.headers_mut().insert(header::AUTHORIZATION, value);
    assert_eq!(world.send(request).await.refusal(), UNKNOWN);
    let mut twice = with_token(look(), BUYER_TOKEN);
    let value = twice.headers()[header::AUTHORIZATION].clone();
    twice.headers_mut().append(header::AUTHORIZATION, value);
    assert_eq!(world.send(twice).await.refusal(), UNKNOWN);
    assert_eq!(
        world.grants.asked.load(Ordering::SeqCst),
        0,
        "none of it reached the server"
    );

    for scheme in ["Bearer", "bearer", "BEARER", "Bearer  "] {
        let mut request = look();
        set(
            &mut request,
            header::AUTHORIZATION,
            &format!("{scheme} {BUYER_TOKEN}"),
        );
        assert_eq!(world.send(request).await.status, 200, "{scheme}");
    }
}

#[tokio::test]
async fn an_unsigned_post_needs_an_idempotency_key_of_128_bits() {
    let world = World::new().await;
    let request = || with_token(offer(), BUYER_TOKEN);
    assert_eq!(
        world.send(request()).await.refusal(),
        (400, "invalid_request")
    );
    for (key, good) in [
        ("", false),
        ("012345678901234567890", false),
        ("0123456789 123456789012", false),
        ("0123456789012345678901", true),
    ] {
        let mut request = request();
        set(&mut request, IDEMPOTENCY_KEY, key);
        let expected = if good {
            (201, "")
        } else {
            (400, "invalid_request")
        };
        assert_eq!(world.send(request).await.refusal(), expected, "{key}");
    }
    let mut twice = with_key(request());
    twice.headers_mut().append(IDEMPOTENCY_KEY, fresh_key());
    assert_eq!(world.send(twice).await.refusal(), (400, "invalid_request"));
}

/// An operator that has no profile: it accepted the duties in its client registration.
fn registered_only() -> Operators {
    registered(duties())
}

fn registered(duties: Duties) -> Operators {
    Operators::default().with(
        Operator::new("https://buyer.example/.well-known/ucp")
            .client("client-buyer")
            .registered(duties),
    )
}

fn duties() -> Duties {
    Duties {
        legal_entity: "Buyer AG".into(),
        jurisdiction: "CH".into(),
        incident_contact: "security@buyer.example".into(),
        incident_sla_hours: 24,
        certifications: Vec::new(),
        data_residency: None,
        key_custody: None,
    }
}

/// A registration carries what the profile would, and blanks are as little as there.
#[test]
fn a_registration_that_leaves_out_a_duty_is_refused_when_it_is_built() {
    type Blank = fn(&mut Duties);
    let blanks: [Blank; 4] = [
        |_| (),
        |d| d.legal_entity = " ".into(),
        |d| d.jurisdiction.clear(),
        |d| d.incident_contact = "\t".into(),
    ];
    for (n, blank) in blanks.into_iter().enumerate() {
        let mut duties = duties();
        blank(&mut duties);
        let built = Rctp::builder()
            .public_url(GATEWAY)
            .operators(registered(duties))
            .mechanisms(Mechanisms::none().http_signature())
            .authenticate_alone();
        match built.map(drop) {
            Ok(()) => assert_eq!(n, 0),
            Err(error) => {
                let said = error.to_string();
                assert!(
                    n > 0 && said.contains("operators: the registration of"),
                    "{said}"
                );
            }
        }
    }
}

#[tokio::test]
async fn an_operator_without_a_profile_acts_by_its_registration() {
    let world = World::with(Tier::Auto, |b| b.operators(registered_only())).await;
    let answer = world
        .oauth_post(BUYER_TOKEN, "/offers", &offer_body(FLOOR + 1))
        .await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    let named = with_agent(with_token(look(), BUYER_TOKEN), &world.buyer.profile);
    assert_eq!(world.send(named).await.status, 200);
    let named = with_agent(with_token(look(), BUYER_TOKEN), &world.seller.profile);
    assert_eq!(world.send(named).await.refusal(), UNKNOWN);
    assert_eq!(
        world.origins.fetches.load(Ordering::SeqCst),
        0,
        "there is nothing to fetch"
    );
}

#[tokio::test]
async fn an_oauth_operator_with_a_profile_answers_for_its_agents_in_it() {
    let world = World::new().await;
    let mut document = common::profile("buyer", &[]);
    document.as_object_mut().unwrap().remove("keys");
    let serve = |document: &Value| {
        let body = Bytes::from(document.to_string());
        let mut documents = world.origins.documents.lock().unwrap();
        documents.insert(world.buyer.profile.clone(), body);
    };
    serve(&document);
    assert_eq!(
        world.send(with_token(look(), BUYER_TOKEN)).await.status,
        200,
        "no keys are needed where nothing is signed"
    );
    world.clock.advance(300);
    document["ucp"]["capabilities"] = json!({});
    serve(&document);
    assert_eq!(
        world.send(with_token(look(), BUYER_TOKEN)).await.refusal(),
        UNKNOWN
    );
}

// A signature beside a token.

#[tokio::test]
async fn a_signed_request_needs_a_token_that_is_bound_to_its_key() {
    let world = World::new().await;
    world.grants.set(
        "bound-elsewhere",
        grant(
            SELLER,
            "client-seller",
            Some(world.buyer.kid()),
            Tier::Auto,
            NOW + 800,
        ),
    );
    let offers = |token| with_token(get(&format!("/offers?listing_id={LISTING}")), token);
    for (token, expected) in [
        (SELLER_TOKEN, (200, "")),
        (SELLER_UNBOUND, GRANT_INVALID),
        ("bound-elsewhere", GRANT_INVALID),
        ("nonsense", GRANT_INVALID),
    ] {
        let answer = world.send(signed(&world.seller, offers(token))).await;
        assert_eq!(answer.refusal(), expected, "{token}");
        let at_fault = (answer.status == 401).then(invalid_token);
        assert_eq!(challenge(&answer), at_fault.as_deref(), "{token}");
    }
    let unsigned = world.send(offers(SELLER_TOKEN)).await;
    assert_eq!(unsigned.refusal(), GRANT_INVALID);
    assert_eq!(challenge(&unsigned), Some(&*invalid_token()));
    // A buyer's own token beside its signature, too.
    let answer = world
        .send(signed(&world.buyer, with_token(offer(), BUYER_TOKEN)))
        .await;
    assert_eq!(answer.refusal(), GRANT_INVALID);
    assert_eq!(challenge(&answer), Some(&*invalid_token()));
    world.grants.change(BUYER_TOKEN, |i| {
        i.cnf = Some(Confirmation {
            jkt: Some(world.buyer.kid().to_owned()),
        });
    });
    let answer = world
        .send(signed(&world.buyer, with_token(offer(), BUYER_TOKEN)))
        .await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
}

#[tokio::test]
async fn a_signed_call_is_recorded_by_its_key() {
    let world = World::new().await;
    let answer = world.offer(FLOOR + 1).await;
    let id = answer.get("offer_id");
    let answer = world
        .seller_post(&format!("/offers/{id}/accept"), &json!({}))
        .await;
    assert_eq!(answer.status, 200);
    let entries = world
        .chain(SubjectKind::Negotiation, &answer.get("negotiation_id"))
        .await;
    for (entry, agent) in entries.iter().zip([&world.buyer, &world.seller]) {
        assert_eq!(entry["authenticated_by"], "http_signature");
        assert_eq!(entry["agent_profile"], agent.profile);
        assert_eq!(entry["keyid"], agent.kid());
        assert_eq!(entry.get("client_id"), None);
    }
}

// API keys and client certificates.

/// Credentials by value: in the header `x-api-key`, or as the certificate that the TLS layer left.
#[derive(Clone, Default)]
struct Keys(HashMap<&'static str, Registration>);

#[derive(Clone)]
struct Certificate(&'static str);

impl Keys {
    fn with(mut self, credential: &'static str, profile: &str, client_id: &str) -> Self {
        let registration = Registration {
            profile: profile.to_owned(),
            client_id: client_id.to_owned(),
        };
        self.0.insert(credential, registration);
        self
    }
}

impl Registry for Keys {
    fn find<'a>(
        &'a self,
        request: &'a Parts,
    ) -> BoxFuture<'a, Result<Option<Registration>, NotRegistered>> {
        Box::pin(async move {
            let header = request
                .headers
                .get("x-api-key")
                .map(|v| v.to_str().unwrap());
            let certificate = request.extensions.get::<Certificate>().map(|c| c.0);
            match header.or(certificate) {
                None => Ok(None),
                Some(credential) => match self.0.get(credential) {
                    Some(registration) => Ok(Some(registration.clone())),
                    None => Err(NotRegistered),
                },
            }
        })
    }
}

fn registry() -> Keys {
    Keys::default()
        .with(
            "key-buyer",
            "https://buyer.example/.well-known/ucp",
            "api-buyer",
        )
        .with(
            "key-seller",
            "https://seller.example/.well-known/ucp",
            "api-seller",
        )
        .with(
            "key-nobody",
            "https://stranger.example/.well-known/ucp",
            "api-nobody",
        )
}

/// Puts the credential into a request, as its mechanism carries it.
fn with_credential(
    mut request: Request<Bytes>,
    mechanism: &str,
    credential: &'static str,
) -> Request<Bytes> {
    if mechanism == "mtls" {
        request.extensions_mut().insert(Certificate(credential));
    } else {
        set(
            &mut request,
            HeaderName::from_static("x-api-key"),
            credential,
        );
    }
    request
}

/// A marketplace that accepts API keys, and one that accepts client certificates, and nothing else.
async fn credential_worlds() -> [(&'static str, World); 2] {
    let keys = Mechanisms::none().api_key(registry());
    let certificates = Mechanisms::none().mtls(registry());
    [
        (
            "api_key",
            World::with(Tier::Auto, |b| b.mechanisms(keys)).await,
        ),
        (
            "mtls",
            World::with(Tier::Auto, |b| b.mechanisms(certificates)).await,
        ),
    ]
}

#[tokio::test]
async fn a_registered_credential_acts_for_its_profile() {
    for (mechanism, world) in credential_worlds().await {
        let request = with_credential(with_key(offer()), mechanism, "key-buyer");
        let answer = world.send(with_agent(request, &world.buyer.profile)).await;
        assert_eq!(answer.status, 201, "{mechanism}: {:?}", answer.body);
        let entry = world
            .chain(SubjectKind::Negotiation, &answer.get("negotiation_id"))
            .await
            .pop()
            .unwrap();
        assert_eq!(entry["authenticated_by"], mechanism);
        assert_eq!(entry["agent_profile"], world.buyer.profile);
        assert_eq!(entry["client_id"], "api-buyer");
    }
}

#[tokio::test]
async fn beside_a_registered_credential_ucp_agent_is_required() {
    for (mechanism, world) in credential_worlds().await {
        let request = || with_credential(with_key(offer()), mechanism, "key-buyer");
        let answer = world.send(request()).await;
        assert_eq!(answer.refusal(), UNKNOWN, "{mechanism}");
        let answer = world
            .send(with_agent(request(), &world.seller.profile))
            .await;
        assert_eq!(answer.refusal(), UNKNOWN, "{mechanism}");
        let entries = world.gateway_chain().await;
        assert_eq!(entries.len(), 2, "{mechanism}: the credential was proven");
        assert_eq!(entries[0]["authenticated_by"], mechanism);
        assert_eq!(entries[0]["client_id"], "api-buyer");
    }
}

#[tokio::test]
async fn a_credential_that_is_registered_to_nobody_is_refused() {
    for (mechanism, world) in credential_worlds().await {
        for credential in ["key-unheard-of", "key-nobody"] {
            let request = with_credential(with_key(offer()), mechanism, credential);
            let profile = "https://stranger.example/.well-known/ucp";
            let answer = world.send(with_agent(request, profile)).await;
            assert_eq!(answer.refusal(), UNKNOWN, "{mechanism}, {credential}");
        }
        let answer = world.send(with_token(look(), BUYER_TOKEN)).await;
        assert_eq!(
            answer.refusal(),
            UNKNOWN,
            "{mechanism}: tokens are not accepted alone"
        );
        let answer = world.send(signed(&world.buyer, offer())).await;
        assert_eq!(answer.refusal(), UNKNOWN, "{mechanism}: nor are signatures");
        assert!(world.gateway_chain().await.is_empty());
    }
}

#[tokio::test]
async fn a_registered_credential_acts_for_a_seller_with_the_sellers_grant() {
    for (mechanism, world) in credential_worlds().await {
        let request = with_credential(with_key(offer()), mechanism, "key-buyer");
        let started = world.send(with_agent(request, &world.buyer.profile)).await;
        let path = format!("/offers/{}/accept", started.get("offer_id"));
        let accept = || {
            let request =
                with_credential(with_key(post(&path, &json!({}))), mechanism, "key-seller");
            with_agent(request, &world.seller.profile)
        };
        // An unbound token is anybody's who holds it, so its client must be this operator's.
        world.grants.set(
            "of-the-buyer",
            grant(SELLER, "client-buyer", None, Tier::Auto, NOW + 800),
        );
        world.grants.set(
            "of-nobody",
            grant(SELLER, "client-x", None, Tier::Auto, NOW + 800),
        );
        world.grants.set(
            "revoked",
            grant(SELLER, "client-seller", None, Tier::Auto, NOW + 800),
        );
        world.grants.revoke("revoked");
        assert_eq!(
            world.send(accept()).await.refusal(),
            GRANT_INVALID,
            "{mechanism}"
        );
        for (token, expected) in [
            ("nonsense", GRANT_INVALID),
            (SELLER_TOKEN, GRANT_INVALID),
            ("of-the-buyer", UNKNOWN),
            ("of-nobody", UNKNOWN),
            ("revoked", (403, "grant_revoked")),
        ] {
            let answer = world.send(with_token(accept(), token)).await;
            assert_eq!(answer.refusal(), expected, "{mechanism}, {token}");
        }
        let answer = world.send(with_token(accept(), SELLER_UNBOUND)).await;
        assert_eq!(answer.status, 200, "{mechanism}: {:?}", answer.body);
        let entry = world
            .chain(SubjectKind::Negotiation, &started.get("negotiation_id"))
            .await
            .pop()
            .unwrap();
        assert_eq!(entry["authenticated_by"], mechanism);
        assert_eq!(entry["client_id"], "api-seller");
    }
}

#[tokio::test]
async fn where_introspection_fails_beside_a_credential_nothing_is_executed() {
    for (mechanism, world) in credential_worlds().await {
        world.grants.down.store(true, Ordering::SeqCst);
        let request = with_credential(
            with_token(with_key(offer()), BUYER_TOKEN),
            mechanism,
            "key-buyer",
        );
        let answer = world.send(with_agent(request, &world.buyer.profile)).await;
        assert_eq!(answer.refusal(), (503, "unavailable"), "{mechanism}");
    }
}

// R30: who enters which chain.

#[tokio::test]
async fn strangers_grow_no_chain() {
    let world = World::new().await;
    let started = world.offer(FLOOR + 1).await;
    let (id, negotiation) = (started.get("offer_id"), started.get("negotiation_id"));
    let before = chains(&world, &negotiation).await;
    let accept = || post(&format!("/offers/{id}/accept"), &json!({}));
    let mut wrong = signed(&world.buyer, accept());
    *wrong.body_mut() = Bytes::from_static(b"{} ");
    let nobody = with_agent(accept(), "https://stranger.example/.well-known/ucp");
    for request in [
        accept(),
        with_key(accept()),
        with_token(accept(), "nonsense"),
        signed(&stranger(&world), accept()),
        signed(&world.buyer, nobody),
        signed_with(&world.buyer, accept(), |p| p.params.created = 0),
        wrong,
        get(&format!("/listings/{LISTING}")),
        get(&format!("/offers?listing_id={LISTING}")),
    ] {
        assert_eq!(world.send(request).await.status, 401);
    }
    assert_eq!(chains(&world, &negotiation).await, before);
}

#[tokio::test]
async fn a_proven_operator_with_anothers_grant_enters_the_gateways_chain_only() {
    let world = World::new().await;
    let started = world.offer(FLOOR + 1).await;
    let (id, negotiation) = (started.get("offer_id"), started.get("negotiation_id"));
    let [mut gateway, listing, negotiated] = chains(&world, &negotiation).await;
    let accept = || post(&format!("/offers/{id}/accept"), &json!({}));
    let reprice = || {
        let price = json!({"price": {"amount": 50_000, "currency": "EUR"}});
        post(&format!("/listings/{LISTING}/price"), &price)
    };
    // A grant of another seller, well and truly the caller's.
    let other = grant(
        "sub_other",
        "client-buyer",
        Some(world.buyer.kid()),
        Tier::Auto,
        NOW + 800,
    );
    world.grants.set("of-another-seller", other);
    // A grant of this seller that another operator's agent has got hold of.
    for (request, expected) in [
        (with_token(accept(), SELLER_TOKEN), GRANT_INVALID),
        (with_token(accept(), SELLER_UNBOUND), GRANT_INVALID),
        (with_token(reprice(), SELLER_TOKEN), GRANT_INVALID),
        (
            with_token(reprice(), "of-another-seller"),
            (403, "not_in_scope"),
        ),
        (with_token(reprice(), "nonsense"), GRANT_INVALID),
        (reprice(), GRANT_INVALID),
    ] {
        let answer = world.send(signed(&world.buyer, request)).await;
        assert_eq!(answer.refusal(), expected, "{:?}", answer.body);
        gateway += 1;
        assert_eq!(
            chains(&world, &negotiation).await,
            [gateway, listing, negotiated]
        );
        let entry = world.gateway_chain().await.pop().unwrap();
        assert_eq!(entry["agent_profile"], world.buyer.profile);
        assert_eq!(entry["keyid"], world.buyer.kid());
    }
    // Another seller's grant on this seller's offer: as if it were absent, so no decision and no entry.
    let foreign = grant(
        "sub_other",
        "client-seller",
        Some(world.seller.kid()),
        Tier::Auto,
        NOW + 800,
    );
    world.grants.set("foreign", foreign);
    let answer = world
        .send(signed(&world.seller, with_token(accept(), "foreign")))
        .await;
    assert_eq!(answer.refusal(), (404, "not_found"));
    assert_eq!(
        chains(&world, &negotiation).await,
        [gateway, listing, negotiated]
    );
}

#[tokio::test]
async fn the_sellers_own_refused_grant_enters_the_chain_of_its_subject() {
    let world = World::new().await;
    let started = world.offer(FLOOR + 1).await;
    let (id, negotiation) = (started.get("offer_id"), started.get("negotiation_id"));
    let [gateway, listing, negotiated] = chains(&world, &negotiation).await;
    world.grants.revoke(SELLER_TOKEN);
    let answer = world
        .seller_post(&format!("/offers/{id}/accept"), &json!({}))
        .await;
    assert_eq!(answer.refusal(), (403, "grant_revoked"));
    assert_eq!(
        chains(&world, &negotiation).await,
        [gateway, listing, negotiated + 1]
    );
    let entry = world
        .chain(SubjectKind::Negotiation, &negotiation)
        .await
        .pop()
        .unwrap();
    assert_eq!(entry["decision"]["reason"], "grant_revoked");
    assert_eq!(entry["offer_id"], id);
}

// The layer alone.

/// Answers 200 with the operator that was proven.
async fn whoami(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let caller = request.extensions().get::<Caller>().unwrap();
    let mut response = Response::new(Body::empty());
    response
        .headers_mut()
        .insert("x-operator", caller.operator.parse().unwrap());
    Ok(response)
}

/// The authentication layer alone, in front of a handler.
fn alone(world: &World) -> Service {
    let operators = Operators::default()
        .with(Operator::new(&*world.buyer.profile).client("client-buyer"))
        .with(Operator::new(&*world.seller.profile).client("client-seller"));
    let layer = Rctp::builder()
        .public_url(GATEWAY)
        .operators(operators)
        .introspect_with(world.grants.clone())
        .fetch_with(world.origins.clone())
        .clock(world.clock.closure())
        .authenticate_alone()
        .unwrap();
    BoxCloneSyncService::new(layer.layer(service_fn(whoami)))
}

async fn send(service: &Service, request: Request<Bytes>) -> Answer {
    let request = request.map(Body::from);
    Answer::of(service.clone().oneshot(request).await.unwrap()).await
}

/// Whatever the path: where there is no table, every request is looked at.
fn anything() -> Request<Bytes> {
    get("/anything/at/all?x=1")
}

#[tokio::test]
async fn a_signed_buyers_token_that_does_not_do_is_told_as_the_tokens_fault() {
    let world = World::new().await;
    let request = with_token(with_key(post("/offers", &offer_body(FLOOR))), "nonsense");
    let answer = world.send(signed(&world.buyer, request)).await;
    assert_eq!(answer.refusal(), UNKNOWN);
    assert_eq!(challenge(&answer), Some(&*invalid_token()));
}

#[tokio::test]
async fn the_layer_alone_says_with_every_401_where_to_get_a_token() {
    let world = World::new().await;
    let service = alone(&world);
    let nonsense = with_token(anything(), "nonsense");
    world.grants.set(
        "unregistered",
        client_token("client-nobody-knows", NOW + 60),
    );
    let scheme = |value: &'static str| {
        let mut request = anything();
        let value = http::HeaderValue::from_static(value);
        request.headers_mut().insert(header::AUTHORIZATION, value);
        request
    };
    for (request, expected) in [
        (anything(), CHALLENGE),
        // No token was understood, or another one of the same client would do no better.
        (scheme("Basic YTpi"), CHALLENGE),
        (scheme("Bearer a b"), CHALLENGE),
        (with_token(anything(), "unregistered"), CHALLENGE),
        (nonsense.clone(), &*invalid_token()),
        // It is the signature that does not do.
        (signed(&stranger(&world), nonsense), CHALLENGE),
        (signed(&stranger(&world), anything()), CHALLENGE),
        (
            signed_with(&world.buyer, anything(), |p| p.params.created = 0),
            CHALLENGE,
        ),
    ] {
        let answer = send(&service, request).await;
        assert_eq!((answer.status, challenge(&answer)), (401, Some(expected)));
    }
}

#[tokio::test]
async fn the_layer_alone_lets_no_dead_or_bound_token_pass() {
    let world = World::new().await;
    let service = alone(&world);
    for token in [SELLER_UNBOUND, BUYER_TOKEN] {
        let answer = send(&service, with_token(anything(), token)).await;
        assert_eq!(answer.status, 200, "{token}");
    }
    let answer = send(&service, signed(&world.buyer, anything())).await;
    assert_eq!(answer.headers["x-operator"], world.buyer.profile.as_str());

    let set = |token: &str, status, active| {
        let granted = grant(SELLER, "client-seller", None, Tier::Auto, NOW + 800);
        let introspection = Introspection {
            active,
            grant_status: Some(status),
            ..granted
        };
        world.grants.set(token, introspection);
    };
    set("revoked", GrantStatus::Revoked, false);
    set("revoked-but-active", GrantStatus::Revoked, true);
    set("expired", GrantStatus::Expired, false);
    set("inactive", GrantStatus::Active, false);
    world.grants.set("old", client_token("client-buyer", NOW));
    for (token, expected) in [
        ("revoked", (403, "grant_revoked")),
        ("revoked-but-active", (403, "grant_revoked")),
        ("expired", (403, "grant_expired")),
        ("inactive", GRANT_INVALID),
        ("old", GRANT_INVALID),
        (SELLER_TOKEN, GRANT_INVALID),
        ("nonsense", UNKNOWN),
    ] {
        let answer = send(&service, with_token(anything(), token)).await;
        assert_eq!(answer.refusal(), expected, "{token}");
    }
}
