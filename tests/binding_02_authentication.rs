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
            | Op::ListQuestions
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

// R7: strangers learn nothing but 401.

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

// 2.2: OAuth without a signature.

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

/// An operator that has no profile: it accepted the duties in its client registration.
fn registered_only() -> Operators {
    let duties = Duties {
        legal_entity: "Buyer AG".into(),
        jurisdiction: "CH".into(),
        incident_contact: "security@buyer.example".into(),
        incident_sla_hours: 24,
        certifications: Vec::new(),
        data_residency: None,
        key_custody: None,
    };
    Operators::default().with(
        Operator::new("https://buyer.example/.well-known/ucp")
            .client("client-buyer")
            .registered(duties),
    )
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
async fn the_layer_alone_says_with_every_401_where_to_get_a_token() {
    let world = World::new().await;
    let service = alone(&world);
    for request in [
        anything(),
        with_token(anything(), "nonsense"),
        signed(&stranger(&world), anything()),
        signed_with(&world.buyer, anything(), |p| p.params.created = 0),
    ] {
        let answer = send(&service, request).await;
        assert_eq!((answer.status, challenge(&answer)), (401, Some(CHALLENGE)));
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
