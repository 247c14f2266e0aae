//! Signed requests that were tampered with. None may verify; none may do worse than be refused.

#![allow(clippy::unwrap_used)]

#[path = "common/mutations.rs"]
mod mutations;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use mutations::{Refusal, harmless, mutations};
use serde_json::json;
use tower_rctp::wire::{
    crypto::{self, Provider},
    digest::{CONTENT_DIGEST, content_digest, sha256},
    jwk::{Keys, SigningKey},
    signature::{
        self, Authority, Component, Coverage, Message, Params, Policy, Presented, SignatureError,
    },
};

const NOW: i64 = 1_700_000_000;
const HOST: &str = "gateway.marketplace.example";
const UCP_AGENT: HeaderName = HeaderName::from_static("ucp-agent");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const SIGNATURE_AGENT: HeaderName = HeaderName::from_static("signature-agent");

/// What the RCTP binding demands in section 2.1.
fn policy() -> Policy {
    let coverage = Coverage::new()
        .always([
            Component::Method,
            Component::Authority,
            Component::Path,
            UCP_AGENT.into(),
        ])
        .with_query([Component::Query])
        .with_body([CONTENT_DIGEST.into(), header::CONTENT_TYPE.into()])
        .on_method(Method::POST, [IDEMPOTENCY_KEY.into()])
        .when_present([IDEMPOTENCY_KEY, SIGNATURE_AGENT, header::AUTHORIZATION])
        .by_member([SIGNATURE_AGENT]);
    Policy::new(coverage).allow_tag("web-bot-auth", [dual_audience()])
}

fn dual_audience() -> Component {
    Component::FieldKey(SIGNATURE_AGENT, "sig1".into())
}

/// Requests of every shape that the binding knows, unsigned.
fn requests() -> Vec<(&'static str, Request<Bytes>)> {
    let request = |method: Method, target: &str, body: &'static str| {
        let mut request = Request::new(Bytes::from_static(body.as_bytes()));
        let post = method == Method::POST;
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().unwrap();
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::from_static(HOST));
        headers.insert(
            UCP_AGENT,
            HeaderValue::from_static("profile=\"https://agent.example/.well-known/ucp\""),
        );
        if post {
            headers.insert(
                IDEMPOTENCY_KEY,
                HeaderValue::from_static("0190a5b0-7f7e-7c2b-8a51-3a2f3c1d9e10"),
            );
        }
        if !body.is_empty() {
            headers.insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            );
            headers.insert(CONTENT_DIGEST, content_digest(&sha256(body.as_bytes())));
        }
        request
    };
    let mut accept = request(
        Method::POST,
        "/offers/off_8Zk1/accept",
        r#"{"deal_terms":{"price":{"amount":21500,"currency":"EUR"}},"note":"naïve ✓"}"#,
    );
    accept.headers_mut().insert(
        header::AUTHORIZATION,
        HeaderValue::from_static("Bearer mF_9.B5f-4.1JqM"),
    );
    let mut dual = accept.clone();
    dual.headers_mut().insert(
        SIGNATURE_AGENT,
        HeaderValue::from_static("sig1=\"https://agent.example/.well-known/ucp\";type=jwks_uri"),
    );
    let query = "/offers?listing_id=lst_42&state=open%20now";
    vec![
        ("a POST with a grant", accept),
        ("a POST for two audiences", dual),
        ("a POST with a query", request(Method::POST, query, "{}")),
        (
            "a POST without a body",
            request(Method::POST, "/offers/off_1/decline", ""),
        ),
        ("a GET with a query", request(Method::GET, query, "")),
        (
            "a GET with an empty query",
            request(Method::GET, "/offers?", ""),
        ),
        ("a GET", request(Method::GET, "/deals/deal_7/events", "")),
    ]
}

/// Signs as an agent does: everything that the policy wants, with the parameters in this order.
fn sign(request: &mut Request<Bytes>, nonce: &str, key: &SigningKey) {
    let authority = Authority::new(HOST, "https").unwrap();
    let headers = request.headers();
    let mut components = vec![
        Component::Method,
        Component::Authority,
        Component::Path,
        UCP_AGENT.into(),
    ];
    if request.uri().query().is_some() {
        components.push(Component::Query);
    }
    for name in [
        IDEMPOTENCY_KEY,
        CONTENT_DIGEST,
        header::CONTENT_TYPE,
        header::AUTHORIZATION,
    ] {
        if headers.contains_key(&name) {
            components.push(name.into());
        }
    }
    let mut params = Params::new(NOW - 20).expires(NOW + 40).nonce(nonce);
    if headers.contains_key(SIGNATURE_AGENT) {
        components.push(dual_audience());
        params = params.tag("web-bot-auth");
    }
    let uri = request.uri();
    let message = Message::request(
        request.method(),
        &authority,
        uri.path(),
        uri.query(),
        headers,
    );
    let signed = signature::sign(&message, &components, &params, "sig1", key).unwrap();
    signed.append_to(request.headers_mut());
}

/// Verifies as a gateway does, as far as the wire room goes.
fn verify(request: &Request<Bytes>, keys: &Keys, policy: &Policy) -> Result<(), Why> {
    let headers = request.headers();
    let presented = Presented::read(headers, "sig1").map_err(|error| match error {
        SignatureError::Missing => Why::Unsigned,
        error => Why::Signature(error),
    })?;
    let ours = Authority::new(HOST, "https").unwrap();
    let host = headers[header::HOST].to_str().map_err(|_| Why::Host)?;
    if Authority::new(host.trim(), "https").ok() != Some(ours.clone()) {
        return Err(Why::Host);
    }
    let key = keys
        .get(
            presented
                .keyid()
                .ok_or(Why::Signature(SignatureError::NoKeyId))?,
        )
        .ok_or(Why::Key)?;
    let uri = request.uri();
    let message = Message::request(request.method(), &ours, uri.path(), uri.query(), headers);
    let body = (!request.body().is_empty()).then(|| sha256(request.body()));
    let covered = presented
        .verify(&message, key, policy, body.as_ref(), NOW)
        .map_err(Why::Signature)?;
    assert_eq!(covered.keyid(), key.kid());
    Ok(())
}

#[derive(Debug)]
enum Why {
    Unsigned,
    Host,
    Key,
    Signature(SignatureError),
}

impl Why {
    fn is(&self, refusal: Refusal) -> bool {
        match self {
            Self::Unsigned => refusal == Refusal::Unsigned,
            Self::Key => refusal == Refusal::Key,
            // Nobody asks for the operator here, so only the signature can notice.
            Self::Host | Self::Signature(_) => {
                matches!(refusal, Refusal::Signature | Refusal::Operator)
            }
        }
    }
}

fn signed_by(provider: &'static dyn Provider) -> (Keys, Vec<(&'static str, Request<Bytes>)>) {
    let key = SigningKey::generate_with(provider).unwrap();
    let other = SigningKey::generate_with(provider).unwrap();
    let published = json!([other.public_jwk(), key.public_jwk()]);
    let keys = Keys::parse(&published, provider).unwrap();
    let mut requests = requests();
    for (shape, request) in &mut requests {
        sign(request, shape, &key);
    }
    (keys, requests)
}

#[test]
fn what_an_intermediary_may_do_still_verifies() {
    let policy = policy();
    for provider in crypto::providers() {
        let (keys, requests) = signed_by(*provider);
        for (shape, request) in requests {
            for (what, request) in harmless(&request) {
                let verified = verify(&request, &keys, &policy);
                assert!(verified.is_ok(), "{shape}, {what}: {verified:?}");
            }
        }
    }
}

#[test]
fn no_mutation_of_a_signed_request_verifies() {
    let policy = policy();
    for provider in crypto::providers() {
        let (keys, requests) = signed_by(*provider);
        let mut count = 0;
        for (shape, request) in requests {
            let mutations = mutations(&request);
            count += mutations.len();
            for mutation in mutations {
                match verify(&mutation.request, &keys, &policy) {
                    Ok(()) => panic!("{shape}, {}: verified", mutation.what),
                    Err(why) => assert!(
                        mutation.refused_as.iter().any(|refusal| why.is(*refusal)),
                        "{shape}, {}: refused as {why:?}, not {:?}",
                        mutation.what,
                        mutation.refused_as,
                    ),
                }
            }
        }
        println!("{}: {count} mutations refused", provider.name());
        assert!(count >= 3_000);
    }
}

/// The signature of one valid request under every other.
#[test]
fn a_signature_does_not_move_to_another_request() {
    let policy = policy();
    for provider in crypto::providers() {
        let (keys, requests) = signed_by(*provider);
        for (from, donor) in &requests {
            for (to, receiver) in &requests {
                if from == to {
                    continue;
                }
                for headers in [
                    &[signature::SIGNATURE][..],
                    &[signature::SIGNATURE_INPUT],
                    &[signature::SIGNATURE, signature::SIGNATURE_INPUT],
                ] {
                    let mut request = receiver.clone();
                    for name in headers {
                        let value = donor.headers()[name].clone();
                        request.headers_mut().insert(name, value);
                    }
                    assert!(
                        verify(&request, &keys, &policy).is_err(),
                        "{headers:?} of {from} under {to}"
                    );
                }
            }
        }
    }
}

/// Whatever was sent, an error's text holds none of it.
#[test]
fn an_error_never_repeats_what_was_sent() {
    let policy = policy();
    let canary = "c4n4ry";
    let (keys, requests) = signed_by(crypto::default_provider());
    for (shape, request) in requests {
        for name in [
            signature::SIGNATURE,
            signature::SIGNATURE_INPUT,
            UCP_AGENT,
            CONTENT_DIGEST,
        ] {
            let Some(value) = request.headers().get(&name) else {
                continue;
            };
            let value = value.to_str().unwrap();
            for place in 0..=value.len() {
                let mut request = request.clone();
                let edited = format!("{}{canary}{}", &value[..place], &value[place..]);
                let edited = HeaderValue::from_str(&edited).unwrap();
                request.headers_mut().insert(&name, edited);
                if let Err(Why::Signature(error)) = verify(&request, &keys, &policy) {
                    let texts = format!("{error} {error:?}");
                    assert!(
                        !texts.contains(canary),
                        "{shape}, {name} at {place}: {texts}"
                    );
                }
            }
        }
    }
}
