//! Attacks on the whole stack: signed requests that were tampered with, paths that a router might read another way,
//! bodies that lie. None may reach a handler undecided, none may have an effect, none may be worse than refused.
#![allow(clippy::unwrap_used)]

#[path = "common/bodies.rs"]
mod bodies;
mod common;
#[path = "common/loopback.rs"]
mod loopback;
#[path = "common/mutations.rs"]
mod mutations;
#[path = "common/signing.rs"]
mod signing;

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bodies::{Scripted, Then};
use bytes::Bytes;
use common::{
    Answer, BUYER_TOKEN, FLOOR, GATEWAY, LISTING, SELLER_TOKEN, Service, World, deal_terms, get,
    offer_body, post, with_key, with_token,
};
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use loopback::serve;
use mutations::{Refusal, harmless, mutations};
use serde_json::{Value, json};
use signing::{IDEMPOTENCY_KEY, SIGNATURE, SIGNATURE_INPUT, UCP_AGENT, origin_form, set, signed};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_rctp::{
    Rctp,
    layer::{body::Body, decision::Decided},
    protocol::{
        operation::{Match, find},
        policy::Tier,
        record::SubjectKind,
    },
    store::{IdempotencyKey, Kind},
    wire::{
        crypto::{Provider, providers},
        digest::CONTENT_DIGEST,
    },
};

const SIGNATURE_INVALID: (u16, &str) = (401, "signature_invalid");
const UNKNOWN: (u16, &str) = (401, "operator_unknown");
const GRANT_INVALID: (u16, &str) = (401, "grant_invalid");
const NOT_FOUND: (u16, &str) = (404, "not_found");
const INVALID: (u16, &str) = (400, "invalid_request");

/// What is behind the layers: answers everything, and remembers what reached it.
#[derive(Clone, Default)]
struct Behind {
    decided: Arc<AtomicUsize>,
    undecided: Arc<Mutex<Vec<String>>>,
}

impl Behind {
    /// The layers of `rctp` with this behind them; what was decided goes on to the market.
    fn service(&self, rctp: &Rctp) -> Service {
        let (behind, market) = (self.clone(), rctp.market());
        let handler = service_fn(move |request: Request<Body>| {
            let (behind, market) = (behind.clone(), market);
            async move {
                if request.extensions().get::<Decided>().is_some() {
                    behind.decided.fetch_add(1, Ordering::SeqCst);
                    return market.oneshot(request).await;
                }
                let line = format!("{} {}", request.method(), request.uri());
                behind.undecided.lock().unwrap().push(line);
                Ok::<_, Infallible>(Response::new(Body::from(Bytes::from_static(b"undecided"))))
            }
        });
        BoxCloneSyncService::new(rctp.layer().layer(handler))
    }

    fn decided(&self) -> usize {
        self.decided.load(Ordering::SeqCst)
    }

    /// What reached the handlers undecided since the last time.
    fn undecided(&self) -> Vec<String> {
        std::mem::take(&mut self.undecided.lock().unwrap())
    }
}

async fn send(service: &Service, request: Request<Bytes>) -> Answer {
    let request = request.map(|body| Body::new(http_body_util::Full::new(body)));
    Answer::of(service.clone().oneshot(request).await.unwrap()).await
}

/// How many offers and counters the store holds.
async fn offers(world: &World) -> usize {
    let store = world.rctp.store();
    let docs = store
        .list(Kind::Offer, LISTING.to_owned(), None, 1000)
        .await;
    docs.unwrap().len()
}

async fn entries(world: &World) -> [usize; 2] {
    [
        world.gateway_chain().await.len(),
        world.chain(SubjectKind::Listing, LISTING).await.len(),
    ]
}

// Tampering with signed requests.

/// Requests that are good, each with the answer that it gets.
async fn shapes(world: &World) -> Vec<(&'static str, Request<Bytes>, u16)> {
    let started = world.offer(FLOOR + 1).await;
    let counter = format!(
        "/offers/{}/counter?note=a%20b&note=",
        started.get("offer_id")
    );
    let counter = post(&counter, &json!({"deal_terms": deal_terms(50_000)}));
    let list = get(&format!("/offers?listing_id={LISTING}"));
    let mut shapes = vec![
        ("an offer", post("/offers", &offer_body(FLOOR + 1)), 201),
        (
            "a counter with a grant and a query",
            with_token(counter, SELLER_TOKEN),
            201,
        ),
        (
            "a list of offers with a grant",
            with_token(list, SELLER_TOKEN),
            200,
        ),
    ];
    for (_, request, _) in &mut shapes {
        let agent = match request.headers().contains_key(header::AUTHORIZATION) {
            true => &world.seller,
            false => &world.buyer,
        };
        agent.signer.sign(request).unwrap();
        *request = origin_form(std::mem::take(request));
    }
    shapes
}

/// What the caller is told, by the check that refuses.
fn told(refusal: Refusal, request: &Request<Bytes>) -> (u16, &'static str) {
    match refusal {
        Refusal::Signature => SIGNATURE_INVALID,
        Refusal::Operator | Refusal::Key => UNKNOWN,
        // The token is bound to a key, so it is good for nothing without the signature.
        Refusal::Unsigned if request.headers().contains_key(header::AUTHORIZATION) => GRANT_INVALID,
        Refusal::Unsigned => UNKNOWN,
    }
}

async fn attack(provider: &'static dyn Provider) -> usize {
    let world = World::with(Tier::Auto, |b| b.crypto(provider)).await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    let shapes = shapes(&world).await;
    let (before, recorded) = (offers(&world).await, entries(&world).await);
    let mut count = 0;
    for (shape, request, _) in &shapes {
        for mutation in mutations(request) {
            let what = format!("{}: {shape}, {}", provider.name(), mutation.what);
            let target = mutation.request.uri().path().to_owned();
            let ours = find(mutation.request.method(), &target) != Match::Elsewhere;
            let answer = send(&service, mutation.request).await;
            let undecided = behind.undecided();
            if ours {
                count += 1;
                assert_eq!(undecided.len(), 0, "{what}: reached a handler");
                assert!(
                    answer.headers.contains_key(header::WWW_AUTHENTICATE),
                    "{what}"
                );
                let expected: Vec<_> = mutation
                    .refused_as
                    .iter()
                    .map(|r| told(*r, request))
                    .collect();
                assert!(
                    expected.contains(&answer.refusal()),
                    "{what}: {:?} instead of {expected:?}",
                    answer.refusal(),
                );
            } else {
                // Another page of the site; that it is none of ours is tested below.
                assert_eq!(undecided.len(), 1, "{what}");
            }
        }
    }
    assert_eq!(behind.decided(), 0, "nothing was carried out");
    assert_eq!(offers(&world).await, before);
    assert_eq!(entries(&world).await, recorded);
    for (shape, request, _) in &shapes {
        let Some(key) = request.headers().get(IDEMPOTENCY_KEY) else {
            continue;
        };
        for scope in [&world.buyer.profile, &world.seller.profile] {
            let key = IdempotencyKey {
                scope: scope.clone(),
                key: key.to_str().unwrap().to_owned(),
            };
            let used = world
                .rctp
                .store()
                .used(key, world.clock.now())
                .await
                .unwrap();
            assert_eq!(used, None, "{shape}: the key is unused");
        }
    }
    // And the requests themselves were good all along.
    for (shape, request, status) in shapes {
        let answer = send(&service, request).await;
        assert_eq!(answer.status, status, "{shape}: {:?}", answer.body);
    }
    assert_eq!(offers(&world).await, before + 2);
    count
}

#[tokio::test]
async fn no_signed_request_that_was_tampered_with_is_accepted() {
    for provider in providers() {
        let count = attack(*provider).await;
        println!("{}: {count} mutations refused", provider.name());
        assert!(count >= 5_000, "{}: only {count}", provider.name());
    }
}

#[tokio::test]
async fn what_an_intermediary_may_do_is_accepted() {
    for provider in providers() {
        let world = World::with(Tier::Auto, |b| b.crypto(*provider)).await;
        let service = Behind::default().service(&world.rctp);
        for (shape, request, status) in shapes(&world).await {
            for (what, request) in harmless(&request) {
                if what == "space around values" {
                    // Any HTTP server has taken it off.
                    continue;
                }
                let answer = send(&service, request).await;
                assert_eq!(answer.status, status, "{shape}, {what}: {:?}", answer.body);
            }
        }
        assert_eq!(offers(&world).await, 3, "the repeats were no new offers");
    }
}

#[tokio::test]
async fn a_signature_is_good_for_its_own_request_only() {
    let world = World::new().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    let shapes = shapes(&world).await;
    for (from, donor, _) in &shapes {
        for (to, receiver, _) in &shapes {
            if from == to {
                continue;
            }
            for taken in [
                &[SIGNATURE][..],
                &[SIGNATURE_INPUT],
                &[SIGNATURE, SIGNATURE_INPUT],
                &[SIGNATURE, SIGNATURE_INPUT, UCP_AGENT],
            ] {
                let mut request = receiver.clone();
                for name in taken {
                    let value = donor.headers()[name].clone();
                    request.headers_mut().insert(name, value);
                }
                let answer = send(&service, request).await;
                assert_eq!(answer.status, 401, "{taken:?} of {from} on {to}");
            }
        }
    }
    assert_eq!(behind.decided(), 0);
}

#[tokio::test]
async fn a_request_that_is_sent_again_has_one_effect() {
    let world = Arc::new(World::new().await);
    let request = signed(&world.buyer, post("/offers", &offer_body(FLOOR + 1)));
    let sent: Vec<_> = (0..50)
        .map(|_| {
            let (world, request) = (world.clone(), request.clone());
            tokio::spawn(async move { world.send(request).await })
        })
        .collect();
    let mut bodies = Vec::new();
    for answer in sent {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, 201);
        bodies.push(answer.bytes);
    }
    bodies.dedup();
    assert_eq!((bodies.len(), offers(&world).await), (1, 1));
    world.clock.advance(61);
    assert_eq!(world.send(request).await.refusal(), SIGNATURE_INVALID);
}

// Headers that are not what they should be.

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_in_every_header() {
    let world = World::new().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    for (shape, request, _) in shapes(&world).await {
        let names: Vec<HeaderName> = request.headers().keys().cloned().collect();
        for name in names {
            for bytes in [
                &b"\xff"[..],
                b"\xc3\x28",
                b"\xe2\x82",
                "é".as_bytes(),
                b"\x80\x81",
            ] {
                let value = request.headers()[&name].as_bytes();
                for text in [
                    bytes.to_vec(),
                    [value, bytes].concat(),
                    [bytes, value].concat(),
                ] {
                    let mut request = request.clone();
                    let value = HeaderValue::from_bytes(&text).unwrap();
                    request.headers_mut().insert(&name, value);
                    let answer = send(&service, request).await;
                    assert_eq!(answer.status, 401, "{shape}, {name}");
                }
            }
        }
        // In one that nobody looks at they do no harm.
        let mut request = request.clone();
        let value = HeaderValue::from_bytes(b"\xff").unwrap();
        request.headers_mut().insert("x-other", value);
        assert!(send(&service, request).await.status < 300, "{shape}");
    }
    assert_eq!(behind.decided(), 3);
}

#[tokio::test]
async fn headers_of_a_megabyte_are_refused() {
    let world = World::new().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    const SIZE: usize = 1 << 20;
    let fills: [(&str, String); 8] = [
        ("letters", "a".repeat(SIZE)),
        ("commas", ",".repeat(SIZE)),
        ("members", "a=1,".repeat(SIZE / 4) + "a=1"),
        ("lists", "a=(),".repeat(SIZE / 5) + "a=()"),
        ("parentheses", "(".repeat(SIZE)),
        ("quotes", "\"".repeat(SIZE)),
        (
            "parameters",
            "sig1=()".to_owned() + &";a=1".repeat(SIZE / 4),
        ),
        (
            "components",
            format!("sig1=({})", "\"a\" ".repeat(SIZE / 4)),
        ),
    ];
    for (shape, request, _) in shapes(&world).await {
        let names: Vec<HeaderName> = request.headers().keys().cloned().collect();
        for name in names {
            for (what, fill) in &fills {
                for append in [false, true] {
                    let mut request = request.clone();
                    let value = HeaderValue::from_str(fill).unwrap();
                    if append {
                        request.headers_mut().append(&name, value);
                    } else {
                        request.headers_mut().insert(&name, value);
                    }
                    let answer = send(&service, request).await;
                    assert_eq!(answer.status, 401, "{shape}, {name}, {what}");
                }
            }
        }
    }
    assert_eq!(behind.decided(), 0);
}

#[tokio::test]
async fn structured_fields_that_are_malformed_are_refused() {
    let world = World::new().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    let request = signed(&world.buyer, post("/offers", &offer_body(FLOOR + 1)));
    let fields = [SIGNATURE_INPUT, SIGNATURE, UCP_AGENT, CONTENT_DIGEST];
    for text in [
        "",
        " ",
        ",",
        ";",
        "=",
        "?",
        "(",
        ")",
        "\"",
        ":",
        "sig1",
        "sig1=",
        "sig1=?1",
        "sig1=()",
        "sig1=(",
        "sig1=:",
        "sig1=::",
        "sig1=:A:",
        "sig1=:====:",
        "sig1=\"\"",
        "sig1=1",
        "sig1=a",
        "sig1=@1",
        "sig1=%\"a\"",
        "sig1=(\"@method\"",
        "sig1=(\"@method\");created=",
        "sig1=(\"@method\" )",
        "sig1=(@method)",
        "sig1=(1 2 3)",
        "sig1=((\"a\"))",
        "Sig1=()",
        "sig1 =()",
        "sig1= ()",
        "sig1=();created=1;created=2",
        "sig1=();keyid=1",
        "sig1=();expires=\"1\"",
        "sig1=();created=1.0",
        "sig1=();created=1e3",
        "sig1=();x",
        "sig1=(),",
        "sig1=(),,a=1",
        "sig1=(), sig1=()",
        "*=1",
        "1=1",
        "profile=",
        "profile=\"",
        "profile=\"a\\\"",
        "profile=\"a\nb\"",
        "profile=\"\u{7f}\"",
        "sha-256",
        "sha-256=",
        "sha-256=:A:",
        "sha-256=\"A\"",
        "sha-256=(:AAAA:)",
        "sha-256=:AAAA:;x",
    ] {
        for name in &fields {
            let mut request = request.clone();
            let Ok(value) = HeaderValue::from_str(text) else {
                continue;
            };
            request.headers_mut().insert(name, value);
            let answer = send(&service, request).await;
            let refusal = answer.refusal();
            let expected = match *name == UCP_AGENT {
                true => refusal == UNKNOWN,
                false => refusal == SIGNATURE_INVALID,
            };
            assert!(expected, "{name}: {text:?}: {refusal:?}");
        }
    }
    assert_eq!((behind.decided(), offers(&world).await), (0, 0));
}

#[tokio::test]
async fn a_version_that_is_no_string_of_ours_is_refused() {
    let world = World::new().await;
    for (text, good) in [
        ("\"2026-11-draft5\"", true),
        ("\"2026-11-draft5\";q=1", true),
        ("2026-11-draft5", false),
        ("\"2026-11-draft4\"", false),
        ("\"2026-11-draft5 \"", false),
        ("\"2026-11-draft5\", \"2026-11-draft4\"", false),
        ("\"\"", false),
        ("", false),
        ("1", false),
    ] {
        let mut request = get(&format!("/listings/{LISTING}"));
        set(&mut request, HeaderName::from_static("rctp-version"), text);
        let answer = world.send(signed(&world.buyer, request)).await;
        let expected = if good {
            (200, "")
        } else {
            (400, "unsupported_version")
        };
        assert_eq!(answer.refusal(), expected, "{text}");
    }
    let mut request = signed(&world.buyer, get(&format!("/listings/{LISTING}")));
    for text in ["\"2026-11-draft5\"", "\"2026-11-draft5\""] {
        request
            .headers_mut()
            .append("rctp-version", HeaderValue::from_static(text));
    }
    assert_eq!(world.send(request).await.error(), "unsupported_version");
}

// Bodies.

/// Sends a body as the buyer's agent, well signed.
async fn offer_bytes(world: &World, service: &Service, body: impl Into<Bytes>) -> Answer {
    let mut request = post("/offers", &Value::Null);
    set(&mut request, header::CONTENT_TYPE, "application/json");
    *request.body_mut() = body.into();
    send(service, signed(&world.buyer, request)).await
}

#[tokio::test]
async fn bodies_that_lie_are_400_and_have_no_effect() {
    let world = World::new().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    let good = offer_body(FLOOR + 1).to_string();
    let text = |from: &str, to: &str| {
        let changed = good.replacen(from, to, 1);
        assert_ne!(changed, good, "{from}");
        changed
    };
    let price = "\"price\":{\"amount\":41238,\"currency\":\"EUR\"}";
    let amount = "\"amount\":41238";
    let amounts: Vec<String> = [
        "0",
        "-1",
        "-0",
        "1.5",
        "1e300",
        "1e400",
        "-1e400",
        "9007199254740992",
        "18446744073709551616",
        "99999999999999999999999999999999999999",
        "\"41238\"",
        "null",
        "true",
        "[41238]",
        "{}",
        "041238",
        "+41238",
        "0x1",
        "NaN",
        "Infinity",
        "41238 1",
        "",
        ".5",
        "5.",
    ]
    .iter()
    .map(|value| text(amount, &format!("\"amount\":{value}")))
    .collect();
    let deep = |open: &str, close: &str, depth: usize| {
        format!("{}{}", open.repeat(depth), close.repeat(depth))
    };
    let inside = |value: &str| text("\"listing_id\"", &format!("\"x\":{value},\"listing_id\""));
    let many: String = (0..20_000).map(|n| format!("\"m{n}\":1,")).collect();
    let mut bodies = vec![
        // Members twice, as they are and in other words.
        text(
            "\"deal_terms\"",
            "\"listing_id\":\"lst_bicycle\",\"deal_terms\"",
        ),
        text(
            "\"listing_id\"",
            "\"listing\\u005fid\":\"lst_bicycle\",\"listing_id\"",
        ),
        text(price, &format!("{price},{price}")),
        text(
            price,
            &format!("{price},\"pr\\u0069ce\":{{\"amount\":1,\"currency\":\"EUR\"}}"),
        ),
        text(amount, &format!("{amount},{amount}")),
        text(amount, "\"amount\":1,\"amount\":41238"),
        text(amount, "\"amount\":41238,\"\\u0061mount\":1"),
        // Members that would override what the seller has set.
        text("\"listing_id\"", "\"floor\":1,\"listing_id\""),
        text("\"listing_id\"", "\"tier\":\"auto\",\"listing_id\""),
        text("\"listing_id\"", "\"tiers\":{},\"listing_id\""),
        text(
            "\"listing_id\"",
            "\"proposed_terms\":{\"floor\":1},\"listing_id\"",
        ),
        text(
            "\"listing_id\"",
            "\"negotiation_id\":\"neg_1\",\"listing_id\"",
        ),
        text("\"listing_id\"", "\"state\":\"accepted\",\"listing_id\""),
        text("\"listing_id\"", "\"by\":\"seller\",\"listing_id\""),
        text(
            "\"listing_id\"",
            "\"__proto__\":{\"floor\":1},\"listing_id\"",
        ),
        text(amount, "\"floor\":1,\"amount\":41238"),
        text(
            "\"price\"",
            "\"floor\":{\"amount\":1,\"currency\":\"EUR\"},\"price\"",
        ),
        text("\"price\"", "\"tier\":\"auto\",\"price\""),
        text("\"method_type\"", "\"floor\":1,\"method_type\""),
        // Depth and breadth.
        inside(&deep("[", "]", 100)),
        inside(&deep("[", "]", 120_000)),
        inside(&deep("{\"a\":", "}", 10_000).replace(":}", ":1}")),
        deep("[", "]", 120_000),
        "[".repeat(200_000),
        "{\"a\":".repeat(40_000),
        text("\"listing_id\"", &format!("{many}\"listing_id\"")),
        // Things that are not this object.
        "null".into(),
        "true".into(),
        "1".into(),
        "\"x\"".into(),
        "[]".into(),
        "{}".into(),
        format!("[{good}]"),
        serde_json::to_string(&good).unwrap(),
        // Text around it, or other text than JSON.
        format!("{good}x"),
        format!("{good}{good}"),
        format!("{good}\n{good}"),
        format!("{good},"),
        format!("{good}\0"),
        format!("\0{good}"),
        format!("\u{feff}{good}"),
        format!("//\n{good}"),
        format!("{good}/**/"),
        good.replace('"', "'"),
        good[..good.len() - 1].to_owned(),
        good[1..].to_owned(),
        text("\"EUR\"", "\"EUR\","),
        text("\"EUR\"", "EUR"),
        " ".into(),
        "\n".into(),
        good.replace("amount", "Amount"),
        good.replace("listing_id", "listingId"),
        // Ids and codes of another form.
        text("lst_bicycle", ""),
        text("lst_bicycle", "bicycle"),
        text("lst_bicycle", "lst_../x"),
        text("lst_bicycle", "lst_bicycle\\u0000"),
        text("lst_bicycle", "lst_bicycle\\n"),
        text("lst_bicycle", "lst_b\\u0131cycle"),
        text("lst_bicycle", "\\ud800"),
        text("lst_bicycle", "lst_x|buyer"),
        text("lst_bicycle", &"x".repeat(100_000)),
        text("\"EUR\"", "\"eur\""),
        text("\"EUR\"", "\"EURO\""),
        text("\"EUR\"", "\"EUR\\n\""),
        text("\"lst_bicycle\"", "[\"lst_bicycle\"]"),
        text("\"lst_bicycle\"", "null"),
        text("\"listing_id\"", "\"expires_at\":\"soon\",\"listing_id\""),
        text("\"listing_id\"", "\"expires_at\":1,\"listing_id\""),
        text(
            "\"listing_id\"",
            "\"expires_at\":\"2026-13-01T00:00:00Z\",\"listing_id\"",
        ),
        text(
            "\"listing_id\"",
            "\"supersedes\":\"off_1 or 1=1\",\"listing_id\"",
        ),
    ];
    bodies.extend(amounts);
    let mut raw: Vec<Bytes> = bodies.into_iter().map(Bytes::from).collect();
    // Other encodings, and bytes that are none.
    let utf16: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    raw.push(utf16.into());
    raw.push([b"\xff\xfe", good.as_bytes()].concat().into());
    raw.push(good.replace("lst_bicycle", "lst_\u{e9}").into());
    let latin: Vec<u8> = good
        .replace("lst_b", "lst_\u{1}")
        .bytes()
        .map(|b| if b == 1 { 0xe9 } else { b })
        .collect();
    raw.push(latin.into());
    raw.push(Bytes::from_static(b"\x1f\x8b\x08\x00"));
    for body in &raw {
        let answer = offer_bytes(&world, &service, body.clone()).await;
        let start = String::from_utf8_lossy(&body[..body.len().min(160)]).into_owned();
        assert_eq!(answer.refusal(), INVALID, "{start}");
        assert_eq!(answer.decision(), "", "{start}: no decision");
    }
    assert_eq!((behind.decided(), offers(&world).await), (0, 0));
    assert_eq!(entries(&world).await, [0, 0]);
    let answer = offer_bytes(&world, &service, good).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
}

#[tokio::test]
async fn a_refusal_never_repeats_the_body() {
    let world = World::new().await;
    let service = Behind::default().service(&world.rctp);
    let canary = "c4n4ry";
    for body in [
        json!({"listing_id": LISTING, "deal_terms": deal_terms(1), canary: 1}),
        json!({"listing_id": canary, "deal_terms": deal_terms(1)}),
        json!({"listing_id": LISTING, "deal_terms": canary}),
        json!({"listing_id": LISTING, "deal_terms": deal_terms(1), "expires_at": canary}),
        json!({"listing_id": LISTING, "deal_terms": {"price": {"amount": 1, "currency": canary}}}),
        json!(canary),
    ] {
        let answer = offer_bytes(&world, &service, body.to_string()).await;
        assert_eq!(answer.refusal(), INVALID);
        assert!(
            !String::from_utf8_lossy(&answer.bytes).contains(canary),
            "{:?}",
            answer.body
        );
    }
}

#[tokio::test]
async fn no_body_overrides_the_floor_or_the_tier_of_a_seller() {
    let world = World::asking().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    let id = world.offer(FLOOR + 1).await.get("offer_id");
    let terms = json!({"deal_terms": deal_terms(50_000)});
    let price = json!({"price": {"amount": 50_000, "currency": "EUR"}});
    let targets = [
        (format!("/offers/{id}/accept"), json!({})),
        (format!("/offers/{id}/counter"), terms),
        (format!("/listings/{LISTING}/price"), price),
        (format!("/listings/{LISTING}/answers"), json!({})),
    ];
    for (path, body) in targets {
        for (name, value) in [
            ("floor", json!(1)),
            ("floor", json!({"amount": 1, "currency": "EUR"})),
            ("tier", json!("auto")),
            ("tiers", json!({"dev.rctp.deal:offer_accept": "auto"})),
            ("approved", json!(true)),
            ("proposed_terms", json!({"floor": 1})),
            ("on_timeout", json!("allow")),
            ("decision", json!("auto")),
        ] {
            let mut body = body.clone();
            body[name] = value;
            let request = with_token(post(&path, &body), SELLER_TOKEN);
            let answer = send(&service, signed(&world.seller, request)).await;
            assert_eq!(answer.refusal(), INVALID, "{path}: {name}");
        }
    }
    assert_eq!(behind.decided(), 0);
    // `proposed_terms` is for the two listing routes only; even there it decides nothing.
    assert_eq!(
        world.buyer_get(&format!("/offers/{id}")).await.body["state"],
        "open"
    );
}

#[tokio::test]
async fn a_body_that_is_not_said_to_be_json_is_400() {
    let world = World::new().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    for (content_type, good) in [
        ("application/json", true),
        ("application/json; charset=utf-8", true),
        ("APPLICATION/JSON", true),
        ("text/plain", false),
        ("text/json", false),
        ("application/x-www-form-urlencoded", false),
        ("multipart/form-data; boundary=x", false),
        ("application/jsonp", false),
        ("application/json, text/plain", false),
        ("json", false),
        ("", false),
    ] {
        let mut request = post("/offers", &offer_body(FLOOR + 1));
        set(&mut request, header::CONTENT_TYPE, content_type);
        let answer = send(&service, signed(&world.buyer, request.clone())).await;
        let expected = if good { (201, "") } else { INVALID };
        assert_eq!(answer.refusal(), expected, "{content_type:?}, signed");
        let request = with_key(with_token(request, BUYER_TOKEN));
        let answer = send(&service, request).await;
        assert_eq!(answer.refusal(), expected, "{content_type:?}, unsigned");
    }
    // Without one, a signature cannot cover it; unsigned, the body is not understood.
    let mut request = signed(&world.buyer, post("/offers", &offer_body(FLOOR + 1)));
    request.headers_mut().remove(header::CONTENT_TYPE);
    assert_eq!(send(&service, request).await.refusal(), SIGNATURE_INVALID);
    let mut request = with_key(with_token(
        post("/offers", &offer_body(FLOOR + 1)),
        BUYER_TOKEN,
    ));
    request.headers_mut().remove(header::CONTENT_TYPE);
    assert_eq!(send(&service, request).await.refusal(), INVALID);
}

#[tokio::test]
async fn a_body_over_the_limit_is_read_no_further() {
    const LIMIT: usize = 10_000;
    let world = World::with(Tier::Auto, |b| b.body_limit(LIMIT)).await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    let chunk = Bytes::from(vec![b' '; 1000]);
    let chunks = |count: usize| std::iter::repeat_n(chunk.clone(), count);
    let post = |body: Scripted| {
        let request = Request::post(format!("{GATEWAY}/offers")).body(Body::new(body));
        let service = service.clone();
        async move { Answer::of(service.oneshot(request.unwrap()).await.unwrap()).await }
    };
    let too_large = (413, "invalid_request");
    // No length is said: what is over the limit is noticed when it comes, and nothing after it is read.
    for then in [
        Then::End,
        Then::Again(chunk.clone()),
        Then::Stall,
        Then::Break,
    ] {
        let body = Scripted::new(chunks(11), then);
        let reads = body.reads();
        assert_eq!(post(body).await.refusal(), too_large);
        assert_eq!(reads.load(Ordering::SeqCst), 11);
    }
    // One chunk that is larger than everything.
    let body = Scripted::new([Bytes::from(vec![b' '; 1 << 20])], Then::Stall);
    assert_eq!(post(body).await.refusal(), too_large);
    // A length that is over the limit: nothing is read.
    for length in [LIMIT as u64 + 1, u64::MAX] {
        let body = Scripted::new(chunks(1), Then::Stall).declaring(length);
        let reads = body.reads();
        assert_eq!(post(body).await.refusal(), too_large);
        assert_eq!(reads.load(Ordering::SeqCst), 0);
    }
    // At the limit it is read, and then the caller is unknown.
    let body = Scripted::new(chunks(10), Then::End);
    assert_eq!(post(body).await.refusal(), UNKNOWN);
    // Empty chunks are no body.
    let body = Scripted::new(std::iter::repeat_n(Bytes::new(), 100), Then::End);
    assert_eq!(post(body).await.refusal(), UNKNOWN);
    // A body that breaks off is none.
    let body = Scripted::new(chunks(1), Then::Break);
    assert_eq!(post(body).await.refusal(), INVALID);
    assert_eq!(behind.decided(), 0);
}

#[tokio::test]
async fn a_body_in_chunks_is_the_same_body() {
    let world = World::new().await;
    let service = Behind::default().service(&world.rctp);
    for size in [1, 2, 7, 1000] {
        let request = signed(&world.buyer, post("/offers", &offer_body(FLOOR + 1)));
        let (parts, body) = request.into_parts();
        let mut chunks: Vec<Bytes> = body.chunks(size).map(Bytes::copy_from_slice).collect();
        chunks.insert(0, Bytes::new());
        chunks.insert(chunks.len() / 2, Bytes::new());
        let body = Body::new(Scripted::new(chunks, Then::End));
        let response = service
            .clone()
            .oneshot(Request::from_parts(parts, body))
            .await;
        let answer = Answer::of(response.unwrap()).await;
        assert_eq!(answer.status, 201, "{size}: {:?}", answer.body);
    }
}

// Paths.

/// Paths that a router, a proxy or a framework might take for `/offers…`.
fn disguises() -> Vec<String> {
    let mut paths = Vec::new();
    for path in [
        "/offers",
        "/offers/off_1/accept",
        "/listings/lst_1/terms",
        "/deals/deal_1/contract",
        "/account",
    ] {
        let first = path.split('/').nth(1).unwrap();
        let rest = &path[1 + first.len()..];
        let with = |first: &str| format!("/{first}{rest}");
        let encoded = |index: usize| {
            let byte = first.as_bytes()[index];
            format!("{}%{byte:02x}{}", &first[..index], &first[index + 1..])
        };
        paths.extend([
            format!("{path}/"),
            format!("{path}//"),
            format!("{path}/."),
            format!("{path}/.."),
            format!("{path}/x/.."),
            format!("{path};"),
            format!("{path};v=1"),
            format!("{path};jsessionid=1"),
            format!("{path}%20"),
            format!("{path}%00"),
            format!("{path}%2F"),
            format!("{path}/%3Fx=1"),
            format!("{path}/%23x"),
            format!("/{path}"),
            format!("//{path}"),
            format!("/.{path}"),
            format!("/././{path}"),
            format!("/x/..{path}"),
            format!("/x/y/../..{path}"),
            format!("/../..{path}"),
            format!("/%2e{path}"),
            format!("/x/%2e%2e{path}"),
            format!("/x/%2E%2E{path}"),
            format!("/x/.%2e{path}"),
            format!("/x/..%2f{}", &path[1..]),
            format!("/x/..;{path}"),
            format!("/x/..;v=1{path}"),
            format!("/;v=1{path}"),
            format!("/%2f{}", &path[1..]),
            format!("/%5c{}", &path[1..]),
            format!("/x/..%5c{}", &path[1..]),
            format!("/x/%252e%252e{path}"),
            format!("/%20{}", &path[1..]),
            with(&first.to_uppercase()),
            with(&format!("{}{}", first[..1].to_uppercase(), &first[1..])),
            with(&encoded(0)),
            with(&encoded(first.len() - 1)),
            with(&encoded(0).to_uppercase()),
            with(&encoded(1).replace('%', "%25")),
            with(&format!("{first};v=1")),
            with(&format!("{first};")),
            with(&format!("{first}%3bv=1")),
            with(&format!("{first}%20")),
            with(&format!("{first}%09")),
        ]);
        if !rest.is_empty() {
            paths.extend([
                format!("/{first}/{rest}"),
                format!("/{first}/.{rest}"),
                format!("/{first}/x/..{rest}"),
                format!("/{first}{}", rest.replace('/', "%2F")),
                format!("/{first}{}", rest.replace('/', "%5c")),
                format!("/{first}%2F{}", &rest[1..]),
                format!("/{first}{}", rest.to_uppercase()),
                format!("{path}/x"),
                format!("{path}x"),
                format!("/{first}/"),
            ]);
        }
    }
    paths
}

#[tokio::test]
async fn no_disguise_of_a_path_reaches_a_handler_undecided() {
    let world = World::new().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    let methods = [
        "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "post", "BREW",
    ];
    let mut count = 0;
    for path in disguises() {
        let Ok(uri) = format!("{GATEWAY}{path}").parse::<Uri>() else {
            continue;
        };
        for method in methods {
            let request = || {
                let mut request = Request::new(Bytes::new());
                *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
                *request.uri_mut() = uri.clone();
                request
            };
            let answer = send(&service, request()).await;
            assert_eq!(answer.refusal(), UNKNOWN, "{method} {path}");
            let answer = send(&service, signed(&world.buyer, request())).await;
            assert_eq!(answer.refusal(), NOT_FOUND, "{method} {path}");
            let answer = send(&service, with_token(request(), BUYER_TOKEN)).await;
            assert_eq!(answer.refusal(), NOT_FOUND, "{method} {path}");
            count += 3;
        }
    }
    assert_eq!(behind.undecided(), [""; 0]);
    assert_eq!(behind.decided(), 0);
    assert!(count > 5_000, "{count}");
}

#[tokio::test]
async fn no_disguise_of_the_public_urls_own_path_reaches_a_handler_undecided() {
    let world = World::with(Tier::Auto, |b| b.public_url(format!("{GATEWAY}/rctp/v3"))).await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    let listing = get(&format!("/rctp/v3/listings/{LISTING}"));
    assert_eq!(
        send(&service, signed(&world.buyer, listing)).await.status,
        200
    );
    for prefix in [
        "//rctp/v3",
        "/rctp//v3",
        "/./rctp/v3",
        "/rctp/./v3",
        "/x/../rctp/v3",
        "/rctp/x/../v3",
        "/RCTP/v3",
        "/%72ctp/v3",
        "/rctp%2fv3",
        "/rctp;x/v3",
        "/rctp/v3;x",
        "/rctp/v%33",
        "/rctp/v3/",
        "/rctp/v3/.",
        "/rctp%5cv3",
        "/%2frctp/v3",
    ] {
        for path in ["/offers", "/offers/off_1/accept", "/listings/lst_bicycle"] {
            let answer = send(&service, get(&format!("{prefix}{path}"))).await;
            assert_eq!(answer.refusal(), UNKNOWN, "{prefix}{path}");
        }
    }
    assert_eq!(behind.undecided(), [""; 0]);
    // The site's own pages of the same names are not ours.
    for path in [
        "/offers",
        "/listings/lst_bicycle",
        "/rctp/offers",
        "/v3/offers",
        "/rctp/v3",
        "/rctp/v33/offers",
    ] {
        send(&service, get(path)).await;
        assert_eq!(behind.undecided().len(), 1, "{path}");
    }
}

#[tokio::test]
async fn other_pages_of_the_site_pass_as_they_are() {
    let world = World::new().await;
    let behind = Behind::default();
    let service = behind.service(&world.rctp);
    for path in [
        "/",
        "/health",
        "/offer",
        "/offers-of-the-week",
        "/offersx",
        "/xoffers",
        "/my/offers",
        "/listing",
        "/listings.html",
        "/accounts",
        "/account-settings",
        "/a..b/offers",
        "/approve/apr_1",
        "/.well-known/ucp",
        "/approvals/apr_1/response",
    ] {
        let mut request = post(path, &json!({"any": "thing"}));
        // Even with a signature that is nonsense: it is not for us to judge.
        set(&mut request, SIGNATURE, "sig1=:AAAA:");
        let answer = send(&service, request).await;
        assert_eq!(
            (answer.status, &*answer.bytes),
            (200, &b"undecided"[..]),
            "{path}"
        );
        assert_eq!(behind.undecided().len(), 1, "{path}");
    }
}

#[tokio::test]
async fn inside_a_router_that_strips_a_prefix_nothing_is_served_undecided() {
    use axum::{Router, routing::any};
    let hits = Arc::new(AtomicUsize::new(0));
    let app = || {
        let hits = hits.clone();
        let handler = move || {
            hits.fetch_add(1, Ordering::SeqCst);
            async { "undecided" }
        };
        Router::new().fallback(any(handler))
    };
    let send = |router: Router, path: &str| {
        let request = get(path).map(axum::body::Body::from);
        async move { router.oneshot(request).await.unwrap().status().as_u16() }
    };
    let world = World::new().await;
    let nested = Router::new().nest("/shop", world.rctp.protect(app()));
    for path in [
        "/shop/offers",
        "/shop/offers/off_1",
        "/shop/Offers/",
        "/shop/account",
    ] {
        assert_eq!(send(nested.clone(), path).await, 401, "{path}");
    }
    assert_eq!(hits.load(Ordering::SeqCst), 0);
    assert_eq!(send(nested, "/shop/health").await, 200);

    // Where the public URL says so, it is the right place.
    let world = World::with(Tier::Auto, |b| b.public_url(format!("{GATEWAY}/shop"))).await;
    let nested = Router::new().nest("/shop", world.rctp.protect(app()));
    let request = signed(&world.buyer, get(&format!("/shop/listings/{LISTING}")));
    let response = nested
        .clone()
        .oneshot(request.map(axum::body::Body::from))
        .await;
    assert_eq!(response.unwrap().status(), 200);
    assert_eq!(send(nested, "/shop/offers").await, 401);
}

// On a socket.

/// Writes bytes to the server as they are and reads its first answer: status, and everything until it closes.
async fn raw(address: std::net::SocketAddr, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A server that refuses may close before it has read everything.
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.get(9..12).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, text)
}

/// A request as HTTP/1.1 writes it.
fn wire(request: &Request<Bytes>, target: &str, host: &str) -> Vec<u8> {
    let mut text = format!(
        "{} {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n",
        request.method()
    );
    for (name, value) in request.headers() {
        // Space around values belongs to the transfer.
        text.push_str(&format!("{name}: \t {} \t\r\n", value.to_str().unwrap()));
    }
    if !request.body().is_empty() {
        text.push_str(&format!("content-length: {}\r\n", request.body().len()));
    }
    text.push_str("\r\n");
    [text.as_bytes(), request.body()].concat()
}

#[tokio::test]
async fn a_signed_request_survives_the_forms_of_http_1() {
    let world = World::new().await;
    let app = axum::Router::new().fallback_service(world.rctp.market());
    let address = serve(world.rctp.protect(app)).await;
    for (target, host, expected) in [
        ("/offers", "gateway.example", 201),
        ("/offers", "GATEWAY.Example", 201),
        ("/offers", "gateway.example:443", 201),
        ("https://gateway.example/offers", "gateway.example", 201),
        ("https://GATEWAY.example:443/offers", "gateway.example", 201),
        ("https://gateway.example/offers", "evil.example", 401),
        ("https://evil.example/offers", "gateway.example", 401),
        ("http://gateway.example/offers", "gateway.example", 401),
        ("/offers", "evil.example", 401),
        ("/offers", "gateway.example:80", 401),
        ("/offers?", "gateway.example", 401),
        ("/offers?x", "gateway.example", 401),
        ("//offers", "gateway.example", 401),
        ("/offers/", "gateway.example", 401),
        ("/offers#x", "gateway.example", 400),
    ] {
        let request = signed(&world.buyer, post("/offers", &offer_body(FLOOR + 1)));
        let (status, text) = raw(address, &wire(&request, target, host)).await;
        // A fragment may be dropped or refused by the server; it is no other target.
        let fragment = target.contains('#') && status == 201;
        assert!(status == expected || fragment, "{target} at {host}: {text}");
    }
}

#[tokio::test]
async fn over_http_a_body_over_the_limit_is_refused_before_it_has_come() {
    let world = World::with(Tier::Auto, |b| b.body_limit(1000)).await;
    let address = serve(world.rctp.protect(axum::Router::new())).await;
    let head = "POST /offers HTTP/1.1\r\nhost: gateway.example\r\nconnection: close\r\n";
    // A length, and nothing after it: an answer comes all the same.
    let declared = format!("{head}content-length: 1001\r\n\r\n");
    assert_eq!(raw(address, declared.as_bytes()).await.0, 413);
    // Chunks, the last of which never comes.
    let chunk = format!("200\r\n{}\r\n", "x".repeat(512));
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}{chunk}");
    assert_eq!(raw(address, chunked.as_bytes()).await.0, 413);
    // Below the limit the caller is unknown.
    let short = format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n");
    assert_eq!(raw(address, short.as_bytes()).await.0, 401);
}

// Cost.

/// Anyone can name a public key and claim to have covered anything.
#[tokio::test]
async fn what_a_stranger_claims_to_cover_is_read_once_however_often_it_is_named() {
    let world = World::new().await;
    let value: Vec<String> = (0..2_000).map(|n| format!("m{n}")).collect();
    let value = value.join(",");
    let query: Vec<String> = (0..6_000).map(|n| format!("m{n}={n}")).collect();
    let target = format!("/listings/{LISTING}?{}", query.join("&"));
    // How long it takes to refuse a request that names this many parts of a large whole, at best.
    let refused_in = async |component: &str, names: usize| {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let mut request = signed(&world.buyer, get(&target));
            let names: Vec<String> = (0..names).map(|n| format!("{component}\"m{n}\"")).collect();
            let input = request.headers()[SIGNATURE_INPUT].to_str().unwrap();
            let input = input.replace("sig1=(", &format!("sig1=({} ", names.join(" ")));
            set(&mut request, SIGNATURE_INPUT, &input);
            set(&mut request, HeaderName::from_static("x-large"), &value);
            let begun = Instant::now();
            let answer = world.send(request).await;
            best = best.min(begun.elapsed());
            assert_eq!(answer.refusal(), SIGNATURE_INVALID);
        }
        best
    };
    for component in ["\"x-large\";key=", "\"@query-param\";name="] {
        let (one, many) = (
            refused_in(component, 1).await,
            refused_in(component, 55).await,
        );
        assert!(
            many < one * 10,
            "{component} {one:?} for one, {many:?} for 55"
        );
    }
}

/// A bare key parses as a Dictionary whose member is true, however it is spelt; covering the member must not stand for
/// covering the key, or a captured request could be sent again under another spelling of it.
#[tokio::test]
async fn a_key_that_is_covered_as_a_dictionary_member_is_not_covered() {
    use tower_rctp::wire::signature::{Authority, Component, Message, Params, sign};

    let world = World::new().await;
    let key = "a0123456789abcdef0123456789abcdef";
    let mut request = common::post("/offers", &common::offer_body(common::FLOOR + 1));
    request
        .headers_mut()
        .insert("idempotency-key", key.parse().unwrap());
    world.buyer.signer.sign(&mut request).unwrap();
    request.headers_mut().remove("signature");
    request.headers_mut().remove("signature-input");
    let field = |name: &'static str| Component::Field(http::HeaderName::from_static(name));
    let name = http::HeaderName::from_static("idempotency-key");
    let components = [
        Component::Method,
        Component::Authority,
        Component::Path,
        field("ucp-agent"),
        field("content-digest"),
        field("content-type"),
        Component::FieldKey(name, key.to_owned()),
    ];
    let authority = Authority::new("gateway.example", "https").unwrap();
    let now = world.clock.now().secs();
    let signed = {
        let uri = request.uri();
        let headers = request.headers();
        let message = Message::request(request.method(), &authority, uri.path(), None, headers);
        let params = Params::new(now).expires(now + 60);
        sign(
            &message,
            &components,
            &params,
            "sig1",
            world.buyer.signer.key(),
        )
        .unwrap()
    };
    signed.append_to(request.headers_mut());
    let refused = world.send(request).await;
    assert_eq!(
        refused.refusal(),
        (401, "signature_invalid"),
        "{:?}",
        refused.body
    );
}

#[tokio::test]
async fn a_body_that_others_might_decode_otherwise_is_400() {
    let world = World::new().await;
    for (name, value) in [
        ("content-type", "application/json; charset=utf-16"),
        ("content-encoding", "gzip"),
    ] {
        let mut request = common::post("/offers", &common::offer_body(common::FLOOR + 1));
        request.headers_mut().insert(name, value.parse().unwrap());
        world.buyer.signer.sign(&mut request).unwrap();
        let refused = world.send(request).await;
        assert_eq!(refused.refusal(), (400, "invalid_request"), "{name}");
    }
}
