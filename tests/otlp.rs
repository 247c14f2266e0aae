//! W3C trace context in and out, and spans on a collector: real HTTP on every side (`docs/operations.md`).
#![allow(clippy::unwrap_used, unreachable_pub)]

mod common;
#[allow(dead_code, unused_imports)]
#[path = "../examples/gateway/main.rs"]
mod gateway;
#[path = "common/loopback.rs"]
mod loopback;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, extract::State, routing};
use bytes::Bytes;
use common::{NOW, get, grant, profile, with_token};
use http::{HeaderMap, Request};
use serde_json::Value;
use tower::{Layer, ServiceExt};
use tower_rctp::{
    Rctp,
    client::Signer,
    layer::{
        authenticate::{
            fetch::{HttpsPost, Post},
            operators::Operators,
        },
        body::Body,
        grant::introspection::Introspection,
    },
    otlp::Otlp,
    protocol::{policy::Tier, time::Timestamp},
    store::MemoryStore,
    wire::jwk::SigningKey,
};
use tracing_subscriber::{Layer as _, filter::Targets, prelude::*};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const TOKEN: &str = "canary-token";

fn traceparent() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

/// What others got of us: the collector's bodies, and the headers of what we asked.
#[derive(Clone, Default)]
struct Others {
    exported: Arc<Mutex<Vec<Bytes>>>,
    asked: Arc<Mutex<Vec<(String, HeaderMap)>>>,
}

/// A span as the collector has it; ids in hex.
#[derive(Clone, Debug, Default)]
struct Exported {
    trace: String,
    id: String,
    parent: String,
    name: String,
}

/// The fields of a protobuf message: numbers, and contents where they have a length.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                varint(&mut bytes);
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            kind => panic!("wire type {kind}"),
        };
        let (content, rest) = bytes.split_at(length);
        bytes = rest;
        fields.push((key >> 3, content));
    }
    fields
}

impl Others {
    fn spans(&self) -> Vec<Exported> {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let within = |bytes, number| {
            let fields = fields(bytes).into_iter();
            fields.filter_map(move |(n, content)| (n == number).then_some(content))
        };
        let exported = self.exported.lock().unwrap();
        let mut spans = Vec::new();
        for request in exported.iter() {
            // ExportTraceServiceRequest.resource_spans[].scope_spans[].spans[]
            let scopes = within(request, 1).flat_map(|resource| within(resource, 2));
            for span in scopes.flat_map(|scope| within(scope, 2)) {
                let mut exported = Exported::default();
                for (number, content) in fields(span) {
                    match number {
                        1 => exported.trace = hex(content),
                        2 => exported.id = hex(content),
                        4 => exported.parent = hex(content),
                        5 => exported.name = String::from_utf8(content.to_vec()).unwrap(),
                        _ => {}
                    }
                }
                spans.push(exported);
            }
        }
        spans
    }

    fn header_at(&self, path: &str, name: &str) -> String {
        let asked = self.asked.lock().unwrap();
        let (_, headers) = asked.iter().find(|(asked, _)| asked == path).unwrap();
        headers[name].to_str().unwrap().to_owned()
    }

    fn traceparent_at(&self, path: &str) -> String {
        self.header_at(path, "traceparent")
    }

    fn tell(&self, text: &str) -> bool {
        let exported = self.exported.lock().unwrap();
        let mut bodies = exported.iter();
        bodies.any(|body| body.windows(text.len()).any(|w| w == text.as_bytes()))
    }
}

/// A collector, an operator's profile, and an introspection endpoint.
async fn others(profile: Value, introspection: Value) -> (SocketAddr, Others) {
    let others = Others::default();
    let asked = |path: &'static str, answer: Value| {
        let answer = async move |State(others): State<Others>, headers: HeaderMap| {
            let mut asked = others.asked.lock().unwrap();
            asked.push((path.to_owned(), headers));
            Json(answer)
        };
        routing::any(answer)
    };
    let collect = async |State(others): State<Others>, body: Bytes| {
        others.exported.lock().unwrap().push(body);
    };
    let router = Router::new()
        .route("/v1/traces", routing::post(collect))
        .route("/profile", asked("/profile", profile))
        .route("/introspect", asked("/introspect", introspection))
        .route("/hook", asked("/hook", Value::Null))
        .with_state(others.clone());
    (loopback::serve(router).await, others)
}

struct Scene {
    address: String,
    others: Others,
    otlp: Otlp,
    signer: Signer,
    service: common::Service,
    _listening: tracing::subscriber::DefaultGuard,
}

impl Scene {
    /// Everything of ours, with spans of what `exported` says on their way to the collector.
    async fn open(exported: Targets) -> Self {
        let key = SigningKey::generate().unwrap();
        let kid = key.kid().as_str().to_owned();
        let granted = grant("sub_canary", "client", Some(&kid), Tier::Auto, NOW + 800);
        let document = profile("agent", &[key.public_jwk()]);
        let (address, others) = others(document, serde_json::to_value(granted).unwrap()).await;
        let agent = format!("http://{address}/profile");
        let introspect = Introspection::endpoint(format!("http://{address}/introspect"));
        let rctp = Rctp::builder()
            .public_url(common::GATEWAY)
            .dev(true)
            .operators(Operators::onboarded([&agent]))
            .introspection(introspect.client_secret_basic("gateway", "canary-secret"))
            .store(MemoryStore::default())
            .signing_key(SigningKey::generate().unwrap())
            .clock(|| Timestamp::from_secs(NOW))
            .build()
            .unwrap();
        let otlp = Otlp::install("a marketplace", Some(&format!("http://{address}/"))).unwrap();
        let spans = otlp.layer().with_filter(exported);
        let subscriber = tracing_subscriber::registry().with(spans);
        let service = rctp.layer().layer(rctp.market());
        Self {
            _listening: tracing::subscriber::set_default(subscriber),
            address: format!("http://{address}"),
            others,
            otlp,
            signer: Signer::new(&agent, key)
                .unwrap()
                .clock(|| Timestamp::from_secs(NOW)),
            service: tower::util::BoxCloneSyncService::new(service),
        }
    }

    async fn send(&self, headers: &[(&'static str, &str)]) {
        let mut request = with_token(get("/offers?listing_id=lst_none"), TOKEN);
        self.signer.sign(&mut request).unwrap();
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        let request: Request<Body> = request.map(Body::from);
        let response = self.service.clone().oneshot(request).await;
        let answered = response.unwrap_or_else(|never: Infallible| match never {});
        assert_eq!(answered.status(), 404);
    }

    /// All that was told, sent.
    async fn spans(&self) -> Vec<Exported> {
        let provider = self.otlp.clone();
        // It waits for the collector, which runs on this thread.
        tokio::task::spawn_blocking(move || provider.shutdown().unwrap())
            .await
            .unwrap();
        self.others.spans()
    }
}

fn ours() -> Targets {
    Targets::new().with_target("tower_rctp", tracing::Level::DEBUG)
}

fn named<'a>(spans: &'a [Exported], name: &str) -> &'a Exported {
    let mut named = spans.iter().filter(|span| span.name == name);
    let (Some(span), None) = (named.next(), named.next()) else {
        panic!("not one {name} in {spans:#?}");
    };
    span
}

#[tokio::test]
async fn a_request_joins_its_callers_trace_and_takes_along_what_it_asks_of_others() {
    let scene = Scene::open(ours()).await;
    scene
        .send(&[
            ("traceparent", &traceparent()),
            ("tracestate", "vendor=canary"),
        ])
        .await;
    let spans = scene.spans().await;
    for span in &spans {
        assert_eq!(span.trace, TRACE, "{span:?}");
    }
    let request = named(&spans, "GET /offers");
    assert_eq!(request.parent, CALLER);
    let authenticate = named(&spans, "rctp.authenticate");
    assert_eq!(authenticate.parent, request.id);
    named(&spans, "rctp.decide");
    for (call, path, within) in [
        ("fetch_profile", "/profile", "rctp.authenticate"),
        ("introspect", "/introspect", "rctp.check_grant"),
    ] {
        let call = named(&spans, call);
        assert_eq!(call.parent, named(&spans, within).id);
        let sent = scene.others.traceparent_at(path);
        assert_eq!(sent, format!("00-{TRACE}-{}-01", call.id), "{path}");
    }
    assert_eq!(
        scene.others.header_at("/introspect", "tracestate"),
        "vendor=canary"
    );
    for text in [
        "a marketplace",
        "rctp.operation",
        "list_offers",
        "not_found",
    ] {
        assert!(scene.others.tell(text), "{text}");
    }
    for secret in [
        TOKEN,
        "canary-secret",
        "sub_canary",
        "listing_id=",
        "Bearer",
        "sig1",
    ] {
        assert!(!scene.others.tell(secret), "{secret} was exported");
    }
}

#[tokio::test]
async fn a_malformed_trace_context_is_ignored() {
    for wrong in [
        "",
        "00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        "00-g0000000000000000000000000000000-00f067aa0ba902b7-01",
    ] {
        let scene = Scene::open(ours()).await;
        scene.send(&[("traceparent", wrong)]).await;
        let spans = scene.spans().await;
        let request = named(&spans, "GET /offers");
        assert_eq!((&*request.parent, request.trace.len()), ("", 32), "{wrong}");
        assert_ne!(request.trace, TRACE, "{wrong}");
        let sent = scene.others.traceparent_at("/introspect");
        assert!(sent.contains(&request.trace), "{wrong}: {sent}");
    }
}

/// A program that has begun a span for the request has read the headers, or chosen not to.
#[tokio::test]
async fn within_a_trace_of_the_programs_own_the_request_is_part_of_that() {
    use tracing::Instrument;

    let scene = Scene::open(ours().with_target("otlp", tracing::Level::INFO)).await;
    let span = tracing::info_span!(target: "otlp", "of the program");
    let traceparent = traceparent();
    let headers = [("traceparent", &*traceparent)];
    scene.send(&headers).instrument(span).await;
    let spans = scene.spans().await;
    let program = named(&spans, "of the program");
    let request = named(&spans, "GET /offers");
    assert_eq!(
        (&request.parent, &request.trace),
        (&program.id, &program.trace)
    );
    assert_ne!(request.trace, TRACE);
}

/// Each try begins a trace: the change that it tells of is long past.
#[tokio::test]
async fn a_webhook_carries_the_context_of_its_try() {
    let scene = Scene::open(ours()).await;
    let hook = format!("{}/hook?owner=canary", scene.address);
    let request = Request::post(hook).body(Bytes::from_static(b"{}")).unwrap();
    let post = HttpsPost::new(true).unwrap();
    assert_eq!(post.post(request).await.unwrap(), 200);
    let spans = scene.spans().await;
    let call = named(&spans, "send_webhook");
    assert_eq!(call.parent, "");
    let sent = scene.others.traceparent_at("/hook");
    assert_eq!(sent, format!("00-{}-{}-01", call.trace, call.id));
    assert!(!scene.others.tell("owner=canary"));
}

/// Where steps are not exported, what is sent names the request's span.
#[tokio::test]
async fn at_info_what_is_asked_of_others_joins_the_request() {
    let scene = Scene::open(Targets::new().with_target("tower_rctp", tracing::Level::INFO)).await;
    scene.send(&[("traceparent", &traceparent())]).await;
    let spans = scene.spans().await;
    let request = named(&spans, "GET /offers");
    assert_eq!(spans.len(), 1, "{spans:#?}");
    for path in ["/profile", "/introspect"] {
        let sent = scene.others.traceparent_at(path);
        assert_eq!(sent, format!("00-{TRACE}-{}-01", request.id), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_exports_where_its_settings_say() {
    let (address, others) = others(Value::Null, Value::Null).await;
    let directory = tempfile::tempdir().unwrap();
    let mut config = gateway::Config::dev_in(directory.path());
    config.telemetry.otlp_endpoint = format!("http://{address}");
    let endpoint = &config.telemetry.otlp_endpoint;
    let format = gateway::config::LogFormat::Json;
    let telemetry = gateway::telemetry::init("error", format, endpoint).unwrap();
    let running = gateway::start(config).await.unwrap();
    let world = running.world.clone().unwrap();
    let path = format!("{}/listings/{}", world.url, world.listing_id);
    let mut request = Request::get(path).body(Bytes::new()).unwrap();
    request
        .headers_mut()
        .insert("traceparent", traceparent().parse().unwrap());
    let buyer = &world.agents.buyer;
    let signer = Signer::new(&buyer.profile, buyer.key.clone()).unwrap();
    signer.sign(&mut request).unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = reqwest::Request::try_from(request).unwrap();
    assert_eq!(http.execute(request).await.unwrap().status(), 200);
    running.stop().await;
    telemetry.end().await;
    let spans = others.spans();
    let request = named(&spans, "GET /listings/{id}");
    assert_eq!((&*request.trace, &*request.parent), (TRACE, CALLER));
    assert!(others.tell("rctp-gateway"));
}
