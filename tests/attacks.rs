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

// Bodies.

/// Sends a body as the buyer's agent, well signed.
async fn offer_bytes(world: &World, service: &Service, body: impl Into<Bytes>) -> Answer {
    let mut request = post("/offers", &Value::Null);
    set(&mut request, header::CONTENT_TYPE, "application/json");
    *request.body_mut() = body.into();
    send(service, signed(&world.buyer, request)).await
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
