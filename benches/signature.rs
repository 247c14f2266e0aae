//! What verifying one signed POST costs beside the elliptic curve, and beside another crate.
//!
//! `cargo bench --bench signature`, from anywhere in the workspace. Criterion reports each operation; the last
//! line gives ratios of medians that were taken in turns within one run, so that a slow machine or a noisy
//! neighbour touches both sides alike:
//!
//! - *verify/raw*: everything that a gateway does for a signed POST (hash the body, read the two headers,
//!   check digest, coverage and freshness, build the base, verify) over the bare verification of the same
//!   base by aws-lc-rs with a key that was parsed before;
//! - *httpsig-hyper/verify*: that crate, given a parsed key too, for the same request. It checks neither
//!   digest nor coverage nor freshness;
//! - *p256/aws-lc-rs*: the whole verification with the pure provider over that with the default one;
//! - *sign/raw*: the same for signing.
//!
//! `cargo bench -p tower-rctp-peers --bench signature` measures `httpsig-hyper` as it comes; without `-p`, the build has
//! our feature `p256` too, which switches on tables in the curve crate that it uses.

use std::{
    hint::black_box,
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use criterion::Criterion;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::Full;
use httpsig_hyper::{
    MessageSignatureReqSync,
    prelude::{AlgorithmName, PublicKey as TheirKey},
};
use serde_json::json;
use tower_rctp::wire::{
    crypto,
    digest::{CONTENT_DIGEST, content_digest, sha256},
    jwk::{Keys, SigningKey},
    signature::{
        self, Authority, Component, Coverage, Freshness, Message, Params, Policy, Presented,
    },
};
use tower_rctp_peers::in_turns;

const HOST: &str = "gateway.marketplace.example";
const UCP_AGENT: HeaderName = HeaderName::from_static("ucp-agent");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn main() {
    let subject = Subject::new();
    let all: [(&str, &dyn Fn()); 7] = [
        ("raw verify", &|| subject.verify_raw()),
        ("verify", &|| subject.verify(0)),
        ("verify, httpsig-hyper", &|| {
            subject.verify_with_httpsig_hyper()
        }),
        ("raw sign", &|| subject.sign_raw()),
        ("sign", &|| subject.sign(0)),
        ("verify, p256", &|| subject.verify(1)),
        ("sign, p256", &|| subject.sign(1)),
    ];
    let operations = match subject.keys.len() {
        1 => &all[..5],
        _ => &all[..],
    };

    let mut criterion = Criterion::default()
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    for (name, operation) in operations {
        criterion.bench_function(name, |bencher| bencher.iter(operation));
    }
    criterion.final_summary();

    let medians = in_turns(operations);
    let of = |name: &str| {
        let index = operations.iter().position(|(this, _)| *this == name);
        medians[index.expect("an operation of that name")]
    };
    let pure = match subject.keys.len() {
        1 => String::new(),
        _ => format!("p256/aws-lc-rs {:.1} · ", of("verify, p256") / of("verify")),
    };
    println!(
        "verify/raw {:.2} · httpsig-hyper/verify {:.1} · {pure}sign/raw {:.2} \
         (verify {:.1} µs, raw {:.1} µs, sign {:.1} µs; base {} bytes)",
        of("verify") / of("raw verify"),
        of("verify, httpsig-hyper") / of("verify"),
        of("sign") / of("raw sign"),
        of("verify"),
        of("raw verify"),
        of("sign"),
        subject.base.len(),
    );
}

/// One signed POST with a body of 600 bytes, and everything to verify and to sign it.
struct Subject {
    request: Request<Bytes>,
    authority: Authority,
    policy: Policy,
    /// When the request was signed; httpsig-hyper compares `expires` with the system's clock.
    now: i64,
    /// One set and one key for each provider, aws-lc-rs first.
    keys: Vec<Keys>,
    signing: Vec<SigningKey>,
    components: Vec<Component>,
    base: String,
    raw_key: aws_lc_rs::signature::ParsedPublicKey,
    raw_signature: Vec<u8>,
    their_key: TheirKey,
    their_request: Request<Full<Bytes>>,
}

impl Subject {
    fn new() -> Self {
        // aws-lc-rs first, then p256 where the build has it.
        let providers = crypto::providers();
        let pem = SigningKey::generate()
            .and_then(|key| key.to_pkcs8_pem())
            .expect("a key");
        let signing = providers
            .iter()
            .map(|provider| SigningKey::from_pkcs8_pem_with(&pem, *provider).expect("the key"))
            .collect::<Vec<_>>();
        let keys = providers
            .iter()
            .map(|provider| {
                Keys::parse(&json!([signing[0].public_jwk()]), *provider).expect("the set")
            })
            .collect();

        let mut body =
            br#"{"deal_terms":{"price":{"amount":21500,"currency":"EUR"}},"note":""#.to_vec();
        body.resize(598, b'x');
        body.extend_from_slice(b"\"}");
        let mut request = Request::new(Bytes::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("https://{HOST}/offers/off_01J9Z3/accept")
            .parse()
            .expect("a URI");
        let digest = content_digest(&sha256(request.body()));
        let headers = request.headers_mut();
        for (name, value) in [
            (header::HOST, HOST),
            (header::CONTENT_TYPE, "application/json"),
            (
                header::AUTHORIZATION,
                "Bearer 4c9f2b0a-5f0e-4a4e-9a35-0e1f6a7f1b42",
            ),
            (
                UCP_AGENT,
                "profile=\"https://agent.example/.well-known/ucp\"",
            ),
            (IDEMPOTENCY_KEY, "0190a5b0-7f7e-7c2b-8a51-3a2f3c1d9e10"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(CONTENT_DIGEST, digest);

        let always = [
            Component::Method,
            Component::Authority,
            Component::Path,
            UCP_AGENT.into(),
        ];
        let body = [CONTENT_DIGEST.into(), header::CONTENT_TYPE.into()];
        let components = [
            &always[..],
            &body,
            &[IDEMPOTENCY_KEY.into(), header::AUTHORIZATION.into()],
        ]
        .concat();
        let policy = Policy::new(
            Coverage::new()
                .always(always)
                .with_query([Component::Query])
                .with_body(body)
                .on_method(Method::POST, [IDEMPOTENCY_KEY.into()])
                .when_present([IDEMPOTENCY_KEY, header::AUTHORIZATION]),
        )
        .freshness(Freshness {
            max_lifetime: Duration::from_secs(3600),
            ..Freshness::default()
        });
        let now = SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |since| since.as_secs().cast_signed());

        let authority = Authority::new(HOST, "https").expect("an authority");
        let message = message(&request, &authority);
        let params = Params::new(now).expires(now + 3600);
        let signed = signature::sign(&message, &components, &params, "sig1", &signing[0])
            .expect("a signature");
        signed.append_to(request.headers_mut());
        let presented = Presented::read(request.headers(), "sig1").expect("the signature");
        let base = presented
            .base(&self::message(&request, &authority))
            .expect("the base");

        let jwk = signing[0].public_jwk();
        let mut point = vec![4];
        for coordinate in ["x", "y"] {
            let text = jwk[coordinate].as_str().expect("a coordinate");
            URL_SAFE_NO_PAD
                .decode_vec(text, &mut point)
                .expect("base64url");
        }
        let raw_key = aws_lc_rs::signature::ParsedPublicKey::new(
            &aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED,
            &point,
        )
        .expect("the key");
        let their_key =
            TheirKey::from_bytes(&AlgorithmName::EcdsaP256Sha256, &point).expect("the key");

        let subject = Self {
            raw_signature: presented.signature().to_vec(),
            their_request: request.clone().map(Full::new),
            request,
            authority,
            policy,
            now,
            keys,
            signing,
            components,
            base,
            raw_key,
            their_key,
        };
        subject.verify_with_httpsig_hyper();
        subject
    }

    fn verify_raw(&self) {
        self.raw_key
            .verify_sig(black_box(self.base.as_bytes()), &self.raw_signature)
            .expect("a good signature");
    }

    fn verify(&self, provider: usize) {
        let request = black_box(&self.request);
        let body = sha256(request.body());
        let presented = Presented::read(request.headers(), "sig1").expect("a signature");
        let key = presented
            .keyid()
            .and_then(|keyid| self.keys[provider].get(keyid))
            .expect("the key");
        let message = message(request, &self.authority);
        let covered = presented
            .verify(&message, key, &self.policy, Some(&body), self.now)
            .expect("a good signature");
        black_box(covered);
    }

    fn verify_with_httpsig_hyper(&self) {
        let name = black_box(&self.their_request)
            .verify_message_signature_sync(&self.their_key, None)
            .expect("a good signature");
        black_box(name);
    }

    fn sign_raw(&self) {
        let signature = self.signing[0].sign(black_box(self.base.as_bytes()));
        black_box(signature.expect("a signature"));
    }

    fn sign(&self, provider: usize) {
        let request = black_box(&self.request);
        let signed = signature::sign(
            &message(request, &self.authority),
            &self.components,
            &Params::new(self.now).expires(self.now + 3600),
            "sig1",
            &self.signing[provider],
        );
        black_box(signed.expect("a signature"));
    }
}

fn message<'a>(request: &'a Request<Bytes>, authority: &'a Authority) -> Message<'a> {
    let uri = request.uri();
    Message::request(
        request.method(),
        authority,
        uri.path(),
        uri.query(),
        request.headers(),
    )
}
