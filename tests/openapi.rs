//! The OpenAPI document, which is made of the table of operations and the schemas: it is the committed one, it is whole, and
//! the marketplace answers as it says.
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/market.rs"]
mod market;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Mutex,
};

use bytes::Bytes;
use common::{
    Answer, BUYER_TOKEN, FLOOR, GATEWAY, Grants, LISTING, Origins, SELLER_TOKEN, SELLER_UNBOUND,
    deal_terms, offer_body, post, with_token,
};
use hosted::{Hosted, Person, browser_get, browser_post, confirmed, door, new_listing, on_listing};
use http::{Request, header};
use jsonschema::{Registry, Resource};
use market::{Backing, Call, fresh_key, send_to, signed};
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_rctp::{
    Rctp,
    layer::{authenticate::operators::Operators, body::Body},
    protocol::{
        event::EVENT_TYP,
        operation::{Side, TABLE, TierRule},
        policy::Tier,
        schema,
        webhook::EventType,
    },
    service::approvals::Approvals,
    store::MemoryStore,
    wire::{jwk::SigningKey, jws},
};

const ISSUER: &str = "https://auth.marketplace.example";

/// The document of a gateway with the reference settings.
async fn reference() -> Value {
    let rctp = Rctp::builder()
        .public_url("https://gateway.marketplace.example")
        .operators(Operators::onboarded([
            "https://agent.example/.well-known/ucp",
        ]))
        .introspect_with(Grants::default())
        .fetch_with(Origins::default())
        .store(MemoryStore::default())
        .signing_key(SigningKey::generate().unwrap())
        .approvals(Approvals::new("The Marketplace"))
        .webhooks(true)
        .build()
        .unwrap();
    document(&rctp).await
}

async fn document(rctp: &Rctp) -> Value {
    let request = Request::get("/openapi.json").body(Body::empty()).unwrap();
    let answer = rctp.discovery(ISSUER).oneshot(request).await.unwrap();
    Answer::of(answer).await.body
}

#[tokio::test]
async fn the_committed_document_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/openapi.json");
    let mut generated = serde_json::to_string_pretty(&reference().await).unwrap();
    generated.push('\n');
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "schemas/openapi.json is not what the table and the schemas come to; run UPDATE=1 cargo test --test openapi, \
         look at the difference, and commit it"
    );
}

#[tokio::test]
async fn every_row_is_there_once_and_every_reference_resolves() {
    let document = reference().await;
    let mut names = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap().to_owned();
            assert!(names.insert(name), "{method} {path}");
            for place in path.split('/').filter_map(|s| s.strip_prefix('{')) {
                let place = place.split('}').next().unwrap();
                let named = operation["parameters"].as_array().unwrap().iter();
                let named = named.map(|p| resolved(&document, p));
                let mut named = named.filter(|p| p["in"] == "path" && p["name"] == place);
                assert!(named.next().is_some(), "{method} {path}: {place}");
            }
        }
    }
    for row in &TABLE {
        let method = row.method.as_str().to_ascii_lowercase();
        let operation = &document["paths"][row.path][&method];
        assert_eq!(operation["operationId"], row.name);
        let schema = operation.pointer("/requestBody/content/application~1json/schema/$ref");
        let named = row.body.map(|body| format!("#/components/schemas/{body}"));
        assert_eq!(
            schema.and_then(Value::as_str),
            named.as_deref(),
            "{}",
            row.name
        );
        let answers = operation["responses"].as_object().unwrap();
        let asks = matches!(row.tier, TierRule::Grant | TierRule::Ask);
        assert_eq!(answers.contains_key("202"), asks, "{}", row.name);
    }
    each_reference(&document, &mut |to| {
        let pointer = to
            .strip_prefix('#')
            .unwrap_or_else(|| panic!("{to} leads elsewhere"));
        assert!(document.pointer(pointer).is_some(), "{to}");
    });
    for (name, text) in schema::published() {
        let published: Value = serde_json::from_str(text).unwrap();
        let component = &document["components"]["schemas"][name];
        assert_eq!(component["description"], published["description"], "{name}");
    }
}

#[tokio::test]
async fn every_webhook_is_there_with_the_body_of_its_type() {
    let document = reference().await;
    let webhooks = document["webhooks"].as_object().unwrap();
    let types = [
        EventType::ApprovalDecided,
        EventType::OfferUpdated,
        EventType::DealEvent,
    ];
    assert_eq!(webhooks.len(), types.len());
    for event in types {
        let name = serde_json::to_value(event).unwrap();
        let post = &webhooks[name.as_str().unwrap()]["post"];
        let body = &post["requestBody"]["content"]["application/json"]["schema"];
        let body = resolved(&document, body);
        assert_eq!(body["properties"]["type"]["const"], name);
        let headers = post["parameters"].as_array().unwrap();
        let headers: Vec<&str> = headers
            .iter()
            .map(|h| h["name"].as_str().unwrap())
            .collect();
        for header in [
            "Webhook-Id",
            "Webhook-Timestamp",
            "UCP-Agent",
            "Content-Digest",
            "Signature-Input",
            "Signature",
        ] {
            assert!(headers.contains(&header), "{name}: {header}");
        }
    }
}

#[tokio::test]
async fn every_component_is_of_use_and_every_tag_is_explained() {
    let document = reference().await;
    let mut used = BTreeSet::new();
    each_reference(&document, &mut |to| {
        let parts: Vec<&str> = to.split('/').collect();
        used.insert(parts[2..4].join("/"));
    });
    for kind in ["responses", "parameters", "headers"] {
        for name in document["components"][kind].as_object().unwrap().keys() {
            assert!(used.contains(&format!("{kind}/{name}")), "{kind}/{name}");
        }
    }
    let tags: BTreeSet<&str> = document["tags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| tag["name"].as_str().unwrap())
        .collect();
    let operations = document["paths"].as_object().unwrap().values();
    let operations = operations.flat_map(|item| item.as_object().unwrap().values());
    let tagged: BTreeSet<&str> = operations
        .map(|operation| operation["tags"][0].as_str().unwrap())
        .collect();
    assert_eq!(tags, tagged);
}

#[tokio::test]
async fn what_a_marketplace_does_not_accept_or_serve_is_not_promised() {
    use tower_rctp::{
        layer::authenticate::Mechanisms,
        protocol::{operation::Verb, policy::Tiers},
    };
    let rctp = Rctp::builder()
        .public_url("https://market.example/rctp")
        .operators(Operators::onboarded([
            "https://agent.example/.well-known/ucp",
        ]))
        .introspect_with(Grants::default())
        .fetch_with(Origins::default())
        .store(MemoryStore::default())
        .signing_key(SigningKey::generate().unwrap())
        .mechanisms(Mechanisms::none().http_signature())
        .tiers(Tiers::default().withhold(Verb::OfferCounter))
        .build()
        .unwrap();
    let document = document(&rctp).await;
    assert_eq!(document["servers"][0]["url"], "https://market.example/rctp");
    assert!(document["paths"]["/approve/pending"].is_null());
    let offer = &document["paths"]["/offers"]["post"];
    assert_eq!(offer["security"], json!([{"signature": []}]));
    let counter = &document["paths"]["/offers/{id}/counter"]["post"];
    assert_eq!(counter["x-rctp"]["tiers"], Value::Null);
    let challenge =
        document.pointer("/components/responses/Unauthenticated/headers/WWW-Authenticate");
    assert_eq!(challenge, None);
    assert_eq!(document["webhooks"], Value::Null);
    each_reference(&document, &mut |to| {
        assert!(document.pointer(&to[1..]).is_some(), "{to}");
    });
}

fn each_reference(value: &Value, visit: &mut dyn FnMut(&str)) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(to)) = members.get("$ref") {
                visit(to);
            }
            members
                .values()
                .for_each(|value| each_reference(value, visit));
        }
        Value::Array(items) => items.iter().for_each(|item| each_reference(item, visit)),
        _ => {}
    }
}

fn resolved<'v>(document: &'v Value, value: &'v Value) -> &'v Value {
    match value["$ref"].as_str() {
        Some(to) => document.pointer(&to[1..]).unwrap(),
        None => value,
    }
}

// ---------------------------------------------------------------------------------------------------------------
// What is answered

/// The marketplace, every answer of which is held against its document.
struct Described {
    hosted: Hosted,
    document: Value,
    registry: Registry<'static>,
    seen: Mutex<BTreeMap<String, BTreeSet<u16>>>,
}

const DOCUMENT: &str = "https://gateway.example/openapi.json";

impl Described {
    async fn open(tier: Tier) -> Self {
        let mut hosted = Hosted::with(Backing::memory().await, tier, |b| b).await;
        let own = hosted.rctp.discovery(ISSUER).router();
        hosted.market.world.service = door(&hosted.rctp, own);
        let document = document(&hosted.rctp).await;
        let registry = Registry::new()
            .add(DOCUMENT, Resource::from_contents(document.clone()))
            .unwrap()
            .prepare()
            .unwrap();
        Self {
            hosted,
            document,
            registry,
            seen: Mutex::default(),
        }
    }

    async fn send(&self, request: Request<Bytes>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let answer = send_to(&self.hosted.service, request).await;
        self.check(&method.as_str().to_ascii_lowercase(), &path, &answer);
        answer
    }

    fn check(&self, method: &str, path: &str, answer: &Answer) {
        let paths = self.document["paths"].as_object().unwrap();
        // Templates of letters only come first: `/approve/pending` is not `/approve/{id}`.
        let mut templates: Vec<&String> = paths.keys().filter(|t| fits_template(t, path)).collect();
        templates.sort_by_key(|template| template.matches('{').count());
        let template = templates
            .first()
            .unwrap_or_else(|| panic!("{path} is not described"));
        let operation = &paths[*template][method];
        let name = operation["operationId"]
            .as_str()
            .unwrap_or_else(|| panic!("{method} {path}"));
        let said = format!(
            "{name}: {} {:?} {:?}",
            answer.status, answer.headers, answer.body
        );
        let status = answer.status.to_string();
        let here = format!(
            "/paths/{}/{method}/responses/{status}",
            template.replace('/', "~1")
        );
        let described = self
            .document
            .pointer(&here)
            .unwrap_or_else(|| panic!("{said}"));
        let (response, at) = match described["$ref"].as_str() {
            Some(to) => (resolved(&self.document, described), to[1..].to_owned()),
            None => (described, here),
        };
        match response["content"].as_object() {
            None => assert!(answer.bytes.is_empty(), "{said}"),
            Some(content) => {
                let kind = answer.headers[header::CONTENT_TYPE].to_str().unwrap();
                let kind = kind.split(';').next().unwrap();
                assert!(content.contains_key(kind), "{said}");
                if kind.ends_with("json") {
                    let schema = format!("{at}/content/{}/schema", kind.replace('/', "~1"));
                    self.validate(&schema, &answer.body, &said);
                }
            }
        }
        let none = serde_json::Map::new();
        let headers = response["headers"].as_object().unwrap_or(&none);
        for (name, header) in headers {
            let to = header["$ref"].as_str().unwrap();
            match answer.headers.get(name) {
                Some(value) => {
                    let text = value.to_str().unwrap();
                    let header = resolved(&self.document, header);
                    let value = match header["schema"]["type"] == "integer" {
                        true => json!(text.parse::<u64>().unwrap()),
                        false => json!(text),
                    };
                    self.validate(&format!("{}/schema", &to[1..]), &value, &said);
                }
                None => assert_ne!(
                    resolved(&self.document, header)["required"],
                    true,
                    "{name}: {said}"
                ),
            }
        }
        for name in ["rctp-decision", "retry-after"] {
            let promised = headers
                .keys()
                .any(|header| header.eq_ignore_ascii_case(name));
            assert!(
                promised || !answer.headers.contains_key(name),
                "{name}: {said}"
            );
        }
        self.seen
            .lock()
            .unwrap()
            .entry(name.to_owned())
            .or_default()
            .insert(answer.status);
    }

    fn validate(&self, pointer: &str, value: &Value, said: &str) {
        // A fragment of a URI has no braces.
        let pointer = pointer.replace('{', "%7B").replace('}', "%7D");
        let validator = jsonschema::options()
            .with_registry(&self.registry)
            .should_validate_formats(true)
            .build(&json!({"$ref": format!("{DOCUMENT}#{pointer}")}))
            .unwrap();
        if let Err(error) = validator.validate(value) {
            panic!("{pointer}: {error} at {}: {said}", error.instance_path());
        }
    }

    async fn seller(&self, path: &str, body: &Value) -> Answer {
        let seller = &self.hosted.seller;
        let token = Some(SELLER_TOKEN);
        self.send(signed(seller, token, path, body, &fresh_key()))
            .await
    }

    async fn buyer(&self, path: &str, body: &Value) -> Answer {
        let buyer = &self.hosted.buyer;
        self.send(signed(buyer, None, path, body, &fresh_key()))
            .await
    }

    async fn get(&self, path: &str, seller: bool) -> Answer {
        let mut request = common::get(path);
        let agent = match seller {
            true => &self.hosted.seller,
            false => &self.hosted.buyer,
        };
        if seller {
            request = with_token(request, SELLER_TOKEN);
        }
        agent.signer.sign(&mut request).unwrap();
        self.send(request).await
    }

    async fn page(&self, path: &str, person: Option<&Person>, body: &Value) -> Answer {
        self.send(browser_post(path, person, body)).await
    }

    async fn look(&self, path: &str, person: Option<&Person>) -> Answer {
        self.send(browser_get(path, person)).await
    }

    fn saw(&self, name: &str, status: u16) -> bool {
        self.seen
            .lock()
            .unwrap()
            .get(name)
            .is_some_and(|s| s.contains(&status))
    }
}

fn fits_template(template: &str, path: &str) -> bool {
    let (template, path): (Vec<&str>, Vec<&str>) =
        (template.split('/').collect(), path.split('/').collect());
    template.len() == path.len()
        && template
            .iter()
            .zip(path)
            .all(|(t, s)| match t.split_once('{') {
                Some((before, after)) => {
                    let after = after.split_once('}').map_or("", |(_, after)| after);
                    s.len() > before.len() + after.len()
                        && s.starts_with(before)
                        && s.ends_with(after)
                }
                None => *t == s,
            })
}

/// An id of the right kind for the row that nothing has.
fn nowhere(path: &str) -> String {
    path.replace("{id}", "x_nowhere")
}

/// A body that satisfies the row's schema.
fn sample(body: Option<&str>) -> Value {
    match body {
        Some("listing-create-request") => new_listing(),
        Some("listing-reprice-request") => {
            json!({"price": {"amount": 70_000, "currency": "EUR"}})
        }
        Some("question-request") => json!({"text": "Is it blue?"}),
        Some("answer-request") => json!({"question_id": "qst_nowhere", "text": "It is."}),
        Some("offer-create-request") => offer_body(50_000),
        Some("offer-counter-request") => json!({"deal_terms": deal_terms(55_000)}),
        Some("deal-create-request") => json!({"checkout": "e30.e30.AA"}),
        Some("deal-event-post-request") => json!({"event": "e30.e30.AA"}),
        _ => json!({}),
    }
}

/// An event of the seller's that changes nothing.
fn packing_note(market: &Described, deal: &str) -> String {
    let payload = json!({
        "deal_id": deal,
        "event_id": format!("evt_{}", fresh_key()),
        "event": "example.seller:packed",
        "occurred_at": market.hosted.clock.now(),
        "observation": "first_hand",
    });
    let key = market.hosted.seller.signer.key();
    jws::sign(EVENT_TYP, payload.to_string().as_bytes(), key).unwrap()
}

#[tokio::test]
async fn every_operation_is_answered_as_the_document_says() {
    let market = Described::open(Tier::Auto).await;
    for row in TABLE.iter().filter(|row| row.side != Side::Browser) {
        let path = nowhere(row.path);
        let target = match row.name {
            "list_offers" => format!("{path}?listing_id={LISTING}"),
            _ => path.clone(),
        };
        let body = sample(row.body);
        let requests = |version: Option<&str>| {
            let mut all = match row.writes() {
                true => vec![
                    signed(
                        &market.hosted.seller,
                        Some(SELLER_TOKEN),
                        &target,
                        &body,
                        &fresh_key(),
                    ),
                    signed(&market.hosted.buyer, None, &target, &body, &fresh_key()),
                    signed(
                        &market.hosted.seller,
                        Some(SELLER_TOKEN),
                        &target,
                        &json!({"x": 1}),
                        &fresh_key(),
                    ),
                    common::with_key(with_token(post(&target, &body), SELLER_UNBOUND)),
                    common::with_key(with_token(post(&target, &body), BUYER_TOKEN)),
                    with_token(post(&target, &body), BUYER_TOKEN),
                    post(&target, &body),
                    post(&target, &json!({"x": "x".repeat(300_000)})),
                ],
                false => vec![
                    with_token(common::get(&target), SELLER_UNBOUND),
                    with_token(common::get(&target), BUYER_TOKEN),
                    with_token(common::get(&target), "unknown"),
                    common::get(&target),
                ],
            };
            if let Some(version) = version {
                for request in &mut all {
                    request
                        .headers_mut()
                        .insert("rctp-version", version.parse().unwrap());
                }
            }
            all
        };
        for request in requests(None)
            .into_iter()
            .chain(requests(Some("\"2020-01\"")))
        {
            market.send(request).await;
        }
        market.hosted.store.take_down(Call::Load);
        market.hosted.store.take_down(Call::Used);
        market.hosted.store.take_down(Call::Commit);
        for request in requests(None) {
            market.send(request).await;
        }
        market.hosted.store.mend();
        assert!(market.saw(row.name, 400), "{}", row.name);
        assert!(market.saw(row.name, 401), "{}", row.name);
    }

    // A sale at once.
    let listing = market.seller("/listings", &new_listing()).await;
    assert_eq!(listing.status, 201);
    market
        .seller(
            &on_listing("/price"),
            &sample(Some("listing-reprice-request")),
        )
        .await;
    market
        .seller(
            &on_listing("/price"),
            &json!({"price": {"amount": FLOOR - 1, "currency": "EUR"}}),
        )
        .await;
    market.seller(&on_listing("/terms"), &json!({})).await;
    let question = market
        .buyer(&on_listing("/questions"), &sample(Some("question-request")))
        .await;
    let answer = json!({"question_id": question.get("question_id"), "text": "It is."});
    market.seller(&on_listing("/answers"), &answer).await;
    market.seller(&on_listing("/answers"), &answer).await;
    market.get(&on_listing("/questions"), true).await;
    market.get(&on_listing("/questions?limit=1"), false).await;
    market.get(&on_listing("/questions?limit=0"), false).await;
    market.get(&on_listing(""), false).await;
    for _ in 0..4 {
        market.buyer("/offers", &offer_body(FLOOR - 1)).await;
    }
    assert!(market.saw("create_offer", 422) && market.saw("create_offer", 429));
    let second = &market.hosted.second;
    let offer = |amount| signed(second, None, "/offers", &offer_body(amount), &fresh_key());
    let countered = market.send(offer(50_000)).await.get("offer_id");
    market
        .seller(
            &format!("/offers/{countered}/counter"),
            &json!({"deal_terms": deal_terms(55_000)}),
        )
        .await;
    market
        .send(signed(
            second,
            None,
            &format!("/offers/{countered}/decline"),
            &json!({}),
            &fresh_key(),
        ))
        .await;
    let declined = market.send(offer(51_000)).await.get("offer_id");
    market
        .send(signed(
            second,
            None,
            &format!("/offers/{declined}/decline"),
            &json!({}),
            &fresh_key(),
        ))
        .await;
    let accepted = market.send(offer(52_000)).await.get("offer_id");
    let other = market.send(offer(52_500)).await.get("offer_id");
    market
        .send(signed(
            second,
            None,
            &format!("/offers/{accepted}/accept"),
            &json!({}),
            &fresh_key(),
        ))
        .await;
    let key = fresh_key();
    for body in [json!({}), Value::Null] {
        let path = format!("/offers/{accepted}/accept");
        let seller = &market.hosted.seller;
        market
            .send(signed(seller, Some(SELLER_TOKEN), &path, &body, &key))
            .await;
    }
    market
        .seller(&format!("/offers/{other}/accept"), &json!({}))
        .await;
    assert!(market.saw("accept_offer", 409) && market.saw("accept_offer", 403));
    let read = format!("/offers/{accepted}");
    let mut request = common::get(&read);
    second.signer.sign(&mut request).unwrap();
    let checkout = market.send(request).await.get("checkout");
    market.get(&read, true).await;
    market.get(&read, false).await;
    market
        .get(&format!("/offers?listing_id={LISTING}&limit=1"), true)
        .await;
    market
        .get(&format!("/offers?listing_id={LISTING}"), false)
        .await;
    market.get("/offers?listing_id=x", true).await;
    let body = json!({ "checkout": checkout });
    let deal = market
        .send(signed(second, None, "/deals", &body, &fresh_key()))
        .await
        .get("deal_id");
    market
        .send(signed(second, None, "/deals", &body, &fresh_key()))
        .await;
    market.get(&format!("/deals/{deal}"), true).await;
    market.get(&format!("/deals/{deal}"), false).await;
    // Twice, since a repeat is answered by its own status.
    let told = json!({"event": packing_note(&market, &deal)});
    for _ in 0..2 {
        market.seller(&format!("/deals/{deal}/events"), &told).await;
    }
    market.get(&format!("/deals/{deal}/events"), true).await;
    market
        .seller(&format!("/deals/{deal}/commit-to-ship"), &json!({}))
        .await;
    market
        .seller(&format!("/deals/{deal}/commit-to-ship"), &json!({}))
        .await;
    market
        .seller(&format!("/deals/{deal}/contract"), &Value::Null)
        .await;
    market.seller("/account", &Value::Null).await;

    // A grant that was taken back.
    market.hosted.grants.revoke(SELLER_TOKEN);
    market.seller("/listings", &new_listing()).await;
    market
        .get(&format!("/offers?listing_id={LISTING}"), true)
        .await;

    // The documents.
    for path in [
        "/.well-known/ucp",
        "/.well-known/oauth-protected-resource",
        "/schemas/offer.json",
        "/schemas/nowhere.json",
        "/schemas/registries/reasons.json",
        "/schemas/registries/nowhere.json",
        "/openapi.json",
        "/docs",
        "/docs/docs.css",
    ] {
        let answer = market.look(path, None).await;
        if let Some(etag) = answer.headers.get(header::ETAG) {
            let mut again = browser_get(path, None);
            again
                .headers_mut()
                .insert(header::IF_NONE_MATCH, etag.clone());
            assert_eq!(market.send(again).await.status, 304);
        }
    }

    let carried_out = TABLE
        .iter()
        .filter(|row| row.side != Side::Browser && row.name != "get_approval");
    for row in carried_out {
        for status in promised(&market, row.path, row.method.as_str(), 200..=201) {
            assert!(
                market.saw(row.name, status),
                "{} never answered {status}",
                row.name
            );
        }
    }
    for tag in ["discovery"] {
        for (name, path) in tagged(&market, tag) {
            for status in promised(&market, &path, "GET", 200..=404) {
                assert!(market.saw(&name, status), "{name} never answered {status}");
            }
        }
    }
}

#[tokio::test]
async fn every_ask_and_every_page_is_answered_as_the_document_says() {
    let market = Described::open(Tier::Ask).await;
    let hosted = &market.hosted;

    // A seller enrols, signs out and in, and looks at what waits.
    let ticket = hosted.tickets.give(common::SELLER);
    let mut browser = authenticator::Browser::at(GATEWAY, false);
    market
        .page("/enroll/options", None, &json!({"ticket": "no"}))
        .await;
    market.page("/enroll/options", None, &json!({})).await;
    let options = market
        .page("/enroll/options", None, &json!({"ticket": ticket}))
        .await;
    let credential = browser.create(&options.body["publicKey"]).await.unwrap();
    let done = json!({"ticket": ticket, "state": options.body["state"], "credential": credential});
    let enrolled = market.page("/enroll/complete", None, &done).await;
    assert_eq!(enrolled.status, 201);
    market.page("/enroll/complete", None, &done).await;
    let mut person = Person {
        browser,
        cookie: hosted::cookie(&enrolled),
    };
    market.page("/signout", Some(&person), &json!({})).await;
    market
        .page("/signout", Some(&person), &json!({"x": 1}))
        .await;
    let options = market.page("/signin/options", None, &json!({})).await;
    let credential = person
        .browser
        .get(&options.body["publicKey"])
        .await
        .unwrap();
    let done = json!({"state": options.body["state"], "credential": credential});
    let signed_in = market.page("/signin/complete", None, &done).await;
    assert_eq!(signed_in.status, 200, "{:?}", signed_in.body);
    market.page("/signin/complete", None, &done).await;
    market.page("/signin/complete", None, &json!({})).await;
    person.cookie = hosted::cookie(&signed_in);
    market.look("/approve/pending", None).await;
    market.look("/approve/pending", Some(&person)).await;

    // Every verb is asked.
    let proposed = json!({
        "title": "A tandem", "category": "bicycles", "list_price": {"amount": 90_000, "currency": "EUR"},
        "term_set": "goods-1", "proposed_terms": {"floor": {"amount": 80_000, "currency": "EUR"}},
    });
    let ask = async |path: String, body: Value| {
        let asked = market.seller(&path, &body).await;
        assert_eq!(asked.status, 202, "{path}: {:?}", asked.body);
        let id = asked.body["approval_request"]["approval_id"].as_str();
        id.unwrap().to_owned()
    };
    let listing = ask("/listings".into(), proposed).await;
    let question = market
        .buyer(&on_listing("/questions"), &sample(Some("question-request")))
        .await;
    let offer = market
        .buyer("/offers", &offer_body(50_000))
        .await
        .get("offer_id");
    let offer_2 = signed(
        &hosted.second,
        None,
        "/offers",
        &offer_body(51_000),
        &fresh_key(),
    );
    let offer_2 = market.send(offer_2).await.get("offer_id");
    let others = [
        ask(
            on_listing("/price"),
            sample(Some("listing-reprice-request")),
        )
        .await,
        ask(on_listing("/terms"), json!({})).await,
        ask(
            on_listing("/answers"),
            json!({"question_id": question.get("question_id"), "text": "It is."}),
        )
        .await,
        ask(
            format!("/offers/{offer_2}/counter"),
            json!({"deal_terms": deal_terms(55_000)}),
        )
        .await,
        ask(format!("/offers/{offer}/accept"), json!({})).await,
    ];
    market
        .seller(&format!("/offers/{offer}/accept"), &json!({}))
        .await;
    market.look("/approve/pending", Some(&person)).await;
    for approval in others.iter().chain([&listing]) {
        market.get(&format!("/approvals/{approval}"), true).await;
        market.get(&format!("/approvals/{approval}"), false).await;
        let page = format!("/approve/{approval}/request");
        market.look(&page, Some(&person)).await;
        market.look(&page, None).await;
    }

    // The seller answers.
    let terms = format!("/approve/{listing}/terms");
    market.page(&terms, None, &json!({"terms": {}})).await;
    market.page(&terms, Some(&person), &json!({})).await;
    market
        .page(&terms, Some(&person), &json!({"terms": {}}))
        .await;
    let filled = market
        .page(&terms, Some(&person), &json!({"terms": confirmed(80_000)}))
        .await;
    let options = market
        .page(
            &format!("/approve/{listing}/options"),
            Some(&person),
            &json!({}),
        )
        .await;
    let credential = person
        .browser
        .get(&options.body["publicKey"])
        .await
        .unwrap();
    let response = format!("/approvals/{listing}/response");
    let mut approve = json!({"decision": "approve", "credential": credential});
    market.page(&response, Some(&person), &approve).await;
    approve["terms_commitment"] = filled.body["terms_commitment"].clone();
    market.page(&response, None, &approve).await;
    let approved = market.page(&response, Some(&person), &approve).await;
    assert_eq!(
        approved.body["approval"]["status"], "approved",
        "{:?}",
        approved.body
    );
    market
        .page(&response, Some(&person), &json!({"decision": "decline"}))
        .await;
    market
        .page(&response, Some(&person), &json!({"decision": "x"}))
        .await;
    for approval in &others {
        let options = format!("/approve/{approval}/options");
        let options = market.page(&options, Some(&person), &json!({})).await;
        let response = format!("/approvals/{approval}/response");
        if options.status == 409 {
            market
                .page(&response, Some(&person), &json!({"decision": "decline"}))
                .await;
        } else {
            let credential = person
                .browser
                .get(&options.body["publicKey"])
                .await
                .unwrap();
            let body = json!({"decision": "approve", "credential": credential});
            let approved = market.page(&response, Some(&person), &body).await;
            assert_eq!(approved.status, 200, "{:?}", approved.body);
        }
        market.get(&format!("/approvals/{approval}"), true).await;
    }
    market.look("/approve/pending", Some(&person)).await;

    // The deal's verb is asked too.
    let checkout = market
        .get(&format!("/offers/{offer}"), false)
        .await
        .get("checkout");
    let deal = market
        .buyer("/deals", &json!({ "checkout": checkout }))
        .await
        .get("deal_id");
    ask(format!("/deals/{deal}/commit-to-ship"), json!({})).await;

    // What is not there, what comes from elsewhere, and when nothing can be known.
    let paths = [
        ("/approve/x_nowhere/terms", json!({"terms": {}})),
        ("/approve/x_nowhere/options", json!({})),
        (
            "/approvals/x_nowhere/response",
            json!({"decision": "decline"}),
        ),
        ("/signin/options", json!({})),
        ("/signin/complete", json!({"state": "x", "credential": {}})),
        ("/signout", json!({})),
        ("/enroll/options", json!({"ticket": "x"})),
        (
            "/enroll/complete",
            json!({"ticket": "x", "state": "x", "credential": {}}),
        ),
    ];
    for down in [false, true] {
        if down {
            hosted.store.take_down(Call::Load);
            hosted.store.take_down(Call::List);
        }
        market.look("/approve/pending", Some(&person)).await;
        market
            .look("/approve/x_nowhere/request", Some(&person))
            .await;
        // To the stack this is an unknown path.
        market
            .page("/approvals/no-id/response", Some(&person), &json!({}))
            .await;
        for (path, body) in &paths {
            market.page(path, Some(&person), body).await;
            let mut elsewhere = browser_post(path, Some(&person), body);
            elsewhere
                .headers_mut()
                .insert(header::ORIGIN, "https://evil.example".parse().unwrap());
            market.send(elsewhere).await;
            market
                .page(path, Some(&person), &json!("x".repeat(300_000)))
                .await;
        }
    }
    hosted.store.mend();

    for row in TABLE
        .iter()
        .filter(|row| matches!(row.tier, TierRule::Grant | TierRule::Ask))
    {
        assert!(market.saw(row.name, 202), "{} was never asked", row.name);
    }
    assert!(market.saw("get_approval", 200) && market.saw("respond_approval", 200));
    for (name, path) in tagged(&market, "pages") {
        for method in ["GET", "POST"] {
            for status in promised(&market, &path, method, 200..=204) {
                assert!(market.saw(&name, status), "{name} never answered {status}");
            }
        }
    }
}

/// The statuses in `range` that the document promises.
fn promised(
    market: &Described,
    path: &str,
    method: &str,
    range: std::ops::RangeInclusive<u16>,
) -> Vec<u16> {
    let responses = &market.document["paths"][path][method.to_ascii_lowercase()]["responses"];
    let statuses = responses.as_object().into_iter().flat_map(|all| all.keys());
    let statuses = statuses.map(|status| status.parse::<u16>().unwrap());
    statuses.filter(|status| range.contains(status)).collect()
}

/// Names and paths of the operations with this tag.
fn tagged(market: &Described, tag: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (path, item) in market.document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            if operation["tags"][0] == tag {
                all.push((
                    operation["operationId"].as_str().unwrap().to_owned(),
                    path.clone(),
                ));
            }
        }
    }
    all
}
