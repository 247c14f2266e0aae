//! What tracing tells of a request (`docs/operations.md`): a span for the request, one for each layer, the decision on
//! them, and no secret in any.
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/market.rs"]
mod market;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use common::{
    BUYER_TOKEN, FLOOR, SELLER, SELLER_TOKEN, SELLER_UNBOUND, World, get, offer_body, post,
    with_key, with_token,
};
use hosted::{Hosted, confirmed, new_listing, offer_on};
use http::Request;
use market::{BUYERS, Backing, SELLERS, fresh_key, signed};
use serde_json::json;
use tower_rctp::{RctpBuilder, protocol::policy::Tier, service::tools::Mcp};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Layer, Registry, filter::LevelFilter, layer::Context, layer::SubscriberExt,
    registry::LookupSpan,
};

/// A span as it was told.
#[derive(Clone, Debug, Default)]
struct Told {
    name: &'static str,
    level: Option<Level>,
    /// The name of the span that it is in.
    parent: &'static str,
    fields: BTreeMap<&'static str, String>,
}

impl Told {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// Everything that is told on this thread, of spans and events alike.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// With their ids, in the order in which they were made.
    spans: Vec<(Id, Told)>,
    events: Vec<Told>,
}

impl Watch {
    fn at(level: LevelFilter) -> (Self, DefaultGuard) {
        let watch = Self::default();
        let subscriber = Registry::default().with(watch.clone().with_filter(level));
        (watch, tracing::subscriber::set_default(subscriber))
    }

    /// The spans so far, oldest first; they are forgotten.
    fn spans(&self) -> Vec<Told> {
        let spans = std::mem::take(&mut self.0.lock().unwrap().spans);
        spans.into_iter().map(|(_, told)| told).collect()
    }

    fn request(&self) -> Told {
        let spans = self.spans().into_iter();
        let requests: Vec<_> = spans.filter(|s| s.name == "rctp.request").collect();
        let [request] = requests.try_into().unwrap();
        request
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Watch {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut told = Told {
            name: attributes.metadata().name(),
            level: Some(*attributes.metadata().level()),
            parent: context
                .span(id)
                .and_then(|span| span.parent().map(|p| p.name()))
                .unwrap_or_default(),
            ..Told::default()
        };
        attributes.record(&mut told);
        self.0.lock().unwrap().spans.push((id.clone(), told));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut seen = self.0.lock().unwrap();
        // Ids come again once their span has closed, so the latest is meant.
        let of = |(other, told)| (other == id).then_some(told);
        let told = seen.spans.iter_mut().rev().find_map(|(i, t)| of((&*i, t)));
        if let Some(told) = told {
            values.record(told);
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut told = Told::default();
        event.record(&mut told);
        self.0.lock().unwrap().events.push(told);
    }
}

const STEPS: [&str; 8] = [
    "rctp.authenticate",
    "rctp.admit",
    "rctp.approve",
    "rctp.record",
    "rctp.check_grant",
    "rctp.validate",
    "rctp.idempotency",
    "rctp.decide",
];

#[tokio::test]
async fn each_layer_has_a_span_within_that_of_the_request() {
    let world = World::new().await;
    let (watch, _listening) = Watch::at(LevelFilter::DEBUG);
    assert_eq!(world.offer(FLOOR).await.status, 201);
    let spans = watch.spans();
    let names: Vec<_> = spans.iter().map(|span| span.name).collect();
    assert_eq!(names, [&["rctp.request"], &STEPS[..]].concat());
    for (span, outer) in spans.iter().zip([&[""], &names[..]].concat()) {
        assert_eq!(span.parent, outer, "{}", span.name);
        let level = match span.name {
            "rctp.request" => Level::INFO,
            _ => Level::DEBUG,
        };
        assert_eq!(span.level, Some(level), "{}", span.name);
    }
    let [_, authenticate, .., idempotency, decide] = &spans[..] else {
        panic!("{names:?}");
    };
    assert_eq!(authenticate.field("rctp.operator"), BUYERS);
    assert_eq!(idempotency.field("rctp.replayed"), "false");
    let told = ["operation", "verb", "operator", "decision"];
    let told = told.map(|name| decide.field(&format!("rctp.{name}")));
    assert_eq!(told, ["create_offer", "offer.create", BUYERS, "auto"]);
}

#[tokio::test]
async fn at_info_there_is_one_span_and_it_tells_the_decision() {
    let world = World::with(Tier::Ask, |b| b).await;
    let (watch, _listening) = Watch::at(LevelFilter::INFO);
    let told = |names: &[&str]| {
        let request = watch.request();
        names
            .iter()
            .map(|name| request.field(name).to_owned())
            .collect::<Vec<_>>()
    };

    let offered = world.offer(FLOOR).await;
    let fields = [
        "otel.name",
        "otel.kind",
        "http.request.method",
        "http.route",
        "url.path",
        "http.response.status_code",
        "rctp.operation",
        "rctp.verb",
        "rctp.operator",
        "rctp.decision",
        "rctp.reason",
        "rctp.error",
        "rctp.replayed",
        "otel.status_code",
    ];
    let expected = [
        "POST /offers",
        "server",
        "POST",
        "/offers",
        "/offers",
        "201",
        "create_offer",
        "offer.create",
        BUYERS,
        "auto",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(told(&fields), expected);

    let outcome = [
        "http.response.status_code",
        "rctp.decision",
        "rctp.reason",
        "rctp.error",
    ];
    world.offer(FLOOR - 1).await;
    assert_eq!(told(&outcome), ["422", "forbid", "below_floor", ""]);

    let accept = format!("/offers/{}/accept", offered.get("offer_id"));
    world.seller_post(&accept, &json!({})).await;
    assert_eq!(told(&outcome), ["202", "ask", "", ""]);

    world.buyer_post("/offers", &json!({})).await;
    assert_eq!(told(&outcome), ["400", "", "", "invalid_request"]);

    // Whose agent it is cannot be known, so nobody is named.
    world.send(get("/offers/off_1")).await;
    let refused = watch.request();
    assert_eq!(refused.field("rctp.reason"), "operator_unknown");
    assert_eq!(refused.field("rctp.operator"), "");
    // An agent that is proven and refused for what it claims is.
    let claims = with_key(with_token(
        common::post("/offers", &offer_body(FLOOR)),
        SELLER_UNBOUND,
    ));
    let claims = hosted::with(claims, "ucp-agent", &format!("profile=\"{BUYERS}\""));
    assert_eq!(world.send(claims).await.status, 401);
    assert_eq!(watch.request().field("rctp.operator"), SELLERS);

    world
        .grants
        .down
        .store(true, std::sync::atomic::Ordering::SeqCst);
    world.seller_post(&accept, &json!({})).await;
    let unavailable = watch.request();
    assert_eq!(unavailable.field("rctp.error"), "unavailable");
    assert_eq!(unavailable.field("otel.status_code"), "ERROR");
}

#[tokio::test]
async fn a_repeat_is_told_as_one() {
    let world = World::new().await;
    let (watch, _listening) = Watch::at(LevelFilter::INFO);
    let request = signed(
        &world.buyer,
        None,
        "/offers",
        &offer_body(FLOOR),
        &fresh_key(),
    );
    world.send(request.clone()).await;
    assert_eq!(watch.request().field("rctp.replayed"), "");
    world.send(request).await;
    let repeat = watch.request();
    assert_eq!(repeat.field("rctp.replayed"), "true");
    assert_eq!(repeat.field("http.response.status_code"), "201");
}

#[tokio::test]
async fn the_route_is_told_without_ids_and_no_query_or_method_of_the_callers() {
    let world = World::new().await;
    let (watch, _listening) = Watch::at(LevelFilter::INFO);
    world.buyer_get("/offers/off_1?secret=hunter2").await;
    let request = watch.request();
    assert_eq!(request.field("otel.name"), "GET /offers/{id}");
    assert_eq!(request.field("http.route"), "/offers/{id}");
    assert_eq!(request.field("url.path"), "/offers/off_1");
    assert!(!format!("{request:?}").contains("hunter2"));

    let mut odd = get("/offers/off_1");
    *odd.method_mut() = "HUNTER2".parse().unwrap();
    world.send(odd).await;
    let request = watch.request();
    assert_eq!(request.field("otel.name"), "_OTHER");
    assert_eq!(request.field("http.request.method"), "_OTHER");
    assert!(!format!("{request:?}").contains("HUNTER2"));
}

#[tokio::test]
async fn a_tool_call_is_told_by_its_operation() {
    let settings = |b: RctpBuilder| b.mcp(Mcp::builder("marketplace", "1"));
    let world = World::with(Tier::Auto, settings).await;
    let (watch, _listening) = Watch::at(LevelFilter::INFO);
    let call = |tool: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": tool, "arguments": {"offer_id": "off_1"},
        }})
    };
    let send = async |message| {
        let request = with_token(post("/mcp", &message), BUYER_TOKEN);
        world.send(request).await;
        watch.request()
    };
    let called = send(call("get_offer")).await;
    assert_eq!(called.field("otel.name"), "POST /mcp");
    assert_eq!(called.field("http.route"), "/mcp");
    assert_eq!(called.field("rctp.operation"), "get_offer");
    assert_eq!(called.field("rctp.error"), "not_found");
    let several = send(json!([call("get_offer"), call("get_offer")])).await;
    assert_eq!(several.field("rctp.operation"), "");
    let unknown = send(call("hunter2")).await;
    assert_eq!(unknown.field("rctp.operation"), "");
    assert!(!format!("{unknown:?}").contains("hunter2"));
}

/// What RCTP lets pass is the marketplace's own business.
#[tokio::test]
async fn what_is_none_of_ours_has_no_span() {
    let world = World::new().await;
    let (watch, _listening) = Watch::at(LevelFilter::TRACE);
    world.send(get("/account-settings")).await;
    assert!(watch.spans().is_empty());
}

#[tokio::test]
async fn no_secret_is_told_at_any_level() {
    const CONFIRMED: u64 = 7_318_254_906;
    const PROPOSED: u64 = 8_429_365_017;
    let (watch, listening) = Watch::at(LevelFilter::TRACE);
    let site = Hosted::open(Backing::memory().await).await;
    let mut secrets = vec![
        SELLER_TOKEN.to_owned(),
        SELLER_UNBOUND.into(),
        SELLER.into(),
    ];
    secrets.extend([CONFIRMED, PROPOSED, CONFIRMED - 1].map(|n| n.to_string()));
    let mut person = site.seller_person().await;
    secrets.push(person.cookie.split_once('=').unwrap().1.to_owned());

    // Terms from what the agent proposes to what the seller confirms, with the passkey's assertion.
    let mut creating = new_listing();
    creating["title"] = json!("A canary in the body");
    creating["list_price"] = json!({"amount": 9_999_999_999_u64, "currency": "EUR"});
    creating["proposed_terms"] = json!({"floor": {"amount": PROPOSED, "currency": "EUR"}});
    secrets.push("A canary in the body".into());
    let id = site.ask("/listings", &creating).await;
    let (commitment, options) = site.fill_in(&person, &id, &confirmed(CONFIRMED)).await;
    let credential = person.browser.get(&options).await.unwrap();
    for member in ["signature", "clientDataJSON", "authenticatorData"] {
        secrets.push(credential["response"][member].as_str().unwrap().to_owned());
    }
    let body =
        json!({"decision": "approve", "credential": credential, "terms_commitment": commitment});
    let created = site.respond(&person, &id, &body).await;
    assert_eq!(created.status, 200, "{:?}", created.body);
    let listing = created.body["approval"]["result"]["listing_id"].as_str();
    let listing = listing.unwrap().to_owned();

    // Offers on it, refusals, a checkout.
    let low = site
        .buyer_post("/offers", &offer_on(&listing, CONFIRMED - 1))
        .await;
    assert_eq!(low.refusal(), (422, "below_floor"));
    let offer = site
        .buyer_post("/offers", &offer_on(&listing, CONFIRMED))
        .await;
    assert_eq!(offer.status, 201, "{:?}", offer.body);
    let path = format!("/offers/{}", offer.get("offer_id"));
    let accept = site.ask(&format!("{path}/accept"), &json!({})).await;
    assert_eq!(site.approve(&mut person, &accept).await.status, 200);
    let checkout = site.seller_get(&path).await.get("checkout");
    assert!(!checkout.is_empty());
    let deal = site
        .buyer_post("/deals", &json!({ "checkout": checkout }))
        .await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
    secrets.push(checkout);

    // What fails: bad signatures and tokens, odd bodies, an authorization server that is down.
    let mut forged = signed(
        &site.buyer,
        None,
        "/offers",
        &offer_on(&listing, 1),
        &fresh_key(),
    );
    let signature = forged.headers()["signature"].to_str().unwrap().to_owned();
    secrets.push(signature.clone());
    *forged.body_mut() = Bytes::from_static(b"{\"a canary\": \"in a forged body\"}");
    secrets.push("in a forged body".into());
    assert_eq!(site.send(forged).await.status, 401);
    for token in [
        "canary-unknown-token",
        SELLER_TOKEN,
        SELLER_UNBOUND,
        "not a token",
    ] {
        secrets.push(token.to_owned());
        let request = with_key(with_token(
            common::post("/offers", &offer_on(&listing, 1)),
            token,
        ));
        site.send(request).await;
    }
    let odd = signed(
        &site.buyer,
        None,
        "/offers",
        &json!({"canary": "odd"}),
        &fresh_key(),
    );
    secrets.push("odd\"".into());
    site.send(odd).await;
    let cookie: Request<Bytes> = hosted::with(get("/offers/x"), "cookie", "session=canary-cookie");
    secrets.push("canary-cookie".into());
    site.send(cookie).await;
    site.grants
        .down
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let down = site
        .seller_post(&format!("{path}/accept"), &json!({}))
        .await;
    assert_eq!(down.status, 503);
    drop(listening);

    let seen = watch.0.lock().unwrap();
    assert!(seen.spans.len() > 100, "{}", seen.spans.len());
    assert!(!seen.events.is_empty());
    let told = format!("{:?} {:?}", seen.spans, seen.events);
    assert!(
        told.contains(&path) && told.contains(BUYERS),
        "what is public is told"
    );
    for secret in secrets {
        assert!(
            !told.contains(&secret),
            "{secret:?} is in a span or an event"
        );
    }
}
