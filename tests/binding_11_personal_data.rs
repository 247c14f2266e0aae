//! Binding 11, INV-9: no object has a place for a person; sellers are pseudonyms and buyers are keys. The schemas
//! themselves are looked through in `schemas`, events in `binding_08_events`, entries in `binding_08_record`.
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
#[path = "common/authorization_server.rs"]
mod authorization_server;
#[path = "common/bodies.rs"]
mod bodies;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/loopback.rs"]
mod loopback;
#[path = "common/market.rs"]
mod market;

use std::{collections::BTreeSet, time::Duration};

use authorization_server::AuthorizationServer;
use bytes::Bytes;
use common::{
    Agent, Answer, BUYER_TOKEN, CURRENCY, FLOOR, LISTING, NOW, SELLER, SELLER_TOKEN,
    SELLER_UNBOUND, World, deal_terms, get, grant, offer_body, with_token,
};
use hosted::{Hosted, browser_get, confirmed, new_listing, on_listing};
use http::Request;
use market::{Backing, Logs, Market, fresh_key, signed};
use serde_json::{Value, json};
use tower_rctp::{
    layer::grant::introspection::Introspection,
    protocol::{operation::TABLE, policy::Tier, record::SubjectKind},
    wire::{from_base64url, jws},
};

/// What a person could be known by, as a member would be called.
const PERSONAL: [&str; 18] = [
    "name",
    "first_name",
    "full_name",
    "address",
    "street",
    "postal_code",
    "city",
    "phone",
    "phone_number",
    "email",
    "birth_date",
    "gender",
    "passport_number",
    "national_id",
    "tax_id",
    "iban",
    "username",
    "buyer_id",
];

/// Every member of a value, at any depth.
fn members(value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                all.insert(name.clone());
                members(value, all);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| members(item, all)),
        _ => {}
    }
}

// What is sent to us.

/// A body that its schema allows, for every operation that takes one.
fn requests() -> Vec<(&'static str, Value)> {
    let price = json!({"amount": FLOOR + 1, "currency": CURRENCY});
    let mut creating = new_listing();
    creating["proposed_terms"] = json!({ "floor": price });
    vec![
        ("/listings", creating.clone()),
        (
            "/listings/lst_bicycle/terms",
            json!({"proposed_terms": creating["proposed_terms"]}),
        ),
        ("/listings/lst_bicycle/price", json!({ "price": price })),
        (
            "/listings/lst_bicycle/questions",
            json!({"text": "Has it a bell?"}),
        ),
        (
            "/listings/lst_bicycle/answers",
            json!({"question_id": "qst_1", "text": "It has."}),
        ),
        ("/offers", offer_body(FLOOR + 1)),
        (
            "/offers/off_1/counter",
            json!({"deal_terms": deal_terms(FLOOR + 1)}),
        ),
        ("/offers/off_1/accept", json!({})),
        ("/offers/off_1/decline", json!({})),
        ("/deals", json!({"checkout": "e30.e30.AA"})),
        ("/deals/deal_1/events", json!({"event": "e30.e30.AA"})),
        ("/deals/deal_1/commit-to-ship", json!({})),
    ]
}

/// The places of the objects in a body.
fn objects(value: &Value, at: String, all: &mut Vec<String>) {
    if let Value::Object(object) = value {
        for (name, value) in object {
            objects(value, format!("{at}/{name}"), all);
        }
        all.push(at);
    }
}

#[tokio::test]
async fn inv_9_no_request_has_a_place_for_a_person() {
    let market = Market::on(Backing::memory().await).await;
    let requests = requests();
    let taking = TABLE.iter().filter(|row| row.body.is_some());
    // All but the answer of the seller's browser.
    assert_eq!(requests.len(), taking.count() - 1);
    for (path, body) in requests {
        let buyers = ["/offers", "/deals", "/deals/deal_1/events"].contains(&path)
            || path.ends_with("questions");
        let (agent, token) = match buyers {
            true => (&market.buyer, None),
            false => (&market.seller, Some(SELLER_TOKEN)),
        };
        let mut places = Vec::new();
        objects(&body, String::new(), &mut places);
        for at in &places {
            for member in PERSONAL {
                let mut more = body.clone();
                more.pointer_mut(at).unwrap()[member] = json!("Ada Lovelace");
                let answer = market.post(agent, token, path, &more, &fresh_key()).await;
                let what = format!("{path} {at}/{member}");
                assert_eq!(answer.refusal(), (400, "invalid_request"), "{what}");
                assert!(!answer.body.to_string().contains("Ada"), "{what}");
            }
        }
        // As it is, it fails for nothing but what it names.
        let answer = market.post(agent, token, path, &body, &fresh_key()).await;
        assert_ne!(answer.status, 400, "{path}: {:?}", answer.body);
    }
}

#[tokio::test]
async fn inv_9_the_sellers_form_has_no_place_for_a_person() {
    let site = Hosted::open(Backing::memory().await).await;
    let anna = site.seller_person().await;
    let id = site.ask(&on_listing("/terms"), &json!({})).await;
    let path = format!("/approve/{id}/terms");
    for member in PERSONAL {
        let mut terms = confirmed(50_000);
        terms[member] = json!("Ada Lovelace");
        let beside = json!({"terms": confirmed(50_000), member: "Ada Lovelace"});
        for (body, status) in [(json!({ "terms": terms }), 422), (beside, 400)] {
            let refused = site.page_post(&path, Some(&anna), &body).await;
            assert_eq!(refused.status, status, "{member}: {:?}", refused.body);
            assert!(!refused.body.to_string().contains("Ada"), "{member}");
        }
    }
}

// What is said by us.

/// Everything that was said in a sale, and to whom.
struct Sale {
    site: Hosted,
    said: Vec<(&'static str, Answer)>,
}

impl Sale {
    async fn send(&mut self, to: &'static str, request: Request<Bytes>) -> Value {
        let answer = self.site.send(request).await;
        let body = answer.body.clone();
        self.said.push((to, answer));
        body
    }

    async fn buyer(&mut self, path: &str, body: &Value) -> Value {
        let request = signed(&self.site.buyer, None, path, body, &fresh_key());
        self.send("the buyer", request).await
    }

    async fn seller(&mut self, path: &str, body: &Value) -> Value {
        let seller = &self.site.seller;
        let request = signed(seller, Some(SELLER_TOKEN), path, body, &fresh_key());
        self.send("the seller's agent", request).await
    }

    async fn read(&mut self, path: &str) {
        let read = |agent: &Agent, token: Option<&str>| {
            let mut request = get(path);
            if let Some(token) = token {
                request = with_token(request, token);
            }
            agent.signer.sign(&mut request).unwrap();
            request
        };
        let site = &self.site;
        let requests = [
            ("the buyer", read(&site.buyer, None)),
            ("another operator", read(&site.other, None)),
            ("the seller's agent", read(&site.seller, Some(SELLER_TOKEN))),
        ];
        for (to, request) in requests {
            self.send(to, request).await;
        }
    }
}

/// A sale from the proposal to the deal, with everything that its agents and its seller can read of it.
async fn sale() -> Sale {
    let site = Hosted::with(Backing::memory().await, Tier::Auto, |b| b).await;
    let mut anna = site.seller_person().await;
    let said = Vec::new();
    let mut sale = Sale { site, said };

    let listing = sale.seller("/listings", &new_listing()).await["listing_id"].clone();
    let listing = listing.as_str().unwrap().to_owned();
    let path = format!("/listings/{listing}/terms");
    let asked = sale.seller(&path, &json!({})).await;
    let id = asked["approval_request"]["approval_id"].as_str().unwrap();
    for page in [format!("/approve/{id}/request"), "/approve/pending".into()] {
        let request = browser_get(&page, Some(&anna));
        sale.send("the seller", request).await;
    }
    let done = sale.site.confirm(&mut anna, id, &confirmed(FLOOR)).await;
    assert_eq!(done.status, 200, "{:?}", done.body);
    sale.said.push(("the seller", done));
    sale.read(&format!("/approvals/{id}")).await;

    let question = json!({"text": "Has it a bell?"});
    let path = format!("/listings/{listing}/questions");
    let question = sale.buyer(&path, &question).await["question_id"].clone();
    let answer = json!({"question_id": question, "text": "It has."});
    sale.seller(&format!("/listings/{listing}/answers"), &answer)
        .await;
    sale.read(&path).await;

    let offer = |amount| json!({"listing_id": listing, "deal_terms": deal_terms(amount)});
    sale.buyer("/offers", &offer(FLOOR - 1)).await;
    let first = sale.buyer("/offers", &offer(FLOOR + 1)).await["offer_id"].clone();
    let counter = format!("/offers/{}/counter", first.as_str().unwrap());
    let counter = sale
        .seller(&counter, &json!({"deal_terms": deal_terms(55_000)}))
        .await;
    let mut second = offer(50_000);
    second["supersedes"] = counter["offer_id"].clone();
    let second = sale.buyer("/offers", &second).await["offer_id"].clone();
    let second = format!("/offers/{}", second.as_str().unwrap());
    let accepted = sale.seller(&format!("{second}/accept"), &json!({})).await;
    let checkout = json!({"checkout": accepted["checkout"]});
    let deal = sale.buyer("/deals", &checkout).await["deal_id"].clone();
    let deal = deal
        .as_str()
        .unwrap_or_else(|| panic!("no deal: {:?}", sale.said))
        .to_owned();
    let event = json!({
        "deal_id": deal, "event_id": "evt_1", "event": "example.carrier:weighed",
        "observation": "first_hand", "occurred_at": sale.site.clock.now(),
    });
    let key = sale.site.buyer.signer.key();
    let event = jws::sign("rctp-deal-event+jwt", event.to_string().as_bytes(), key).unwrap();
    let events = format!("/deals/{deal}/events");
    sale.buyer(&events, &json!({ "event": event })).await;
    sale.seller(&format!("/deals/{deal}/commit-to-ship"), &json!({}))
        .await;
    for path in [
        format!("/listings/{listing}"),
        format!("/offers?listing_id={listing}"),
        second,
        format!("/deals/{deal}"),
        events,
    ] {
        sale.read(&path).await;
    }
    assert!(sale.said.iter().any(|(_, answer)| answer.status == 422));
    sale
}

#[tokio::test]
async fn inv_9_no_answer_of_a_whole_sale_has_a_member_for_a_person() {
    let sale = sale().await;
    let mut all = BTreeSet::new();
    for (_, answer) in &sale.said {
        let mut body = answer.body.clone();
        // The seller's form says what the terms are called.
        if let Some(body) = body.as_object_mut() {
            body.remove("term_set");
        }
        members(&body, &mut all);
        // What travels in a JWS is said too.
        if let Some(checkout) = answer.body["checkout"].as_str() {
            let claims = from_base64url(checkout.split('.').nth(1).unwrap()).unwrap();
            members(&serde_json::from_slice(&claims).unwrap(), &mut all);
        }
    }
    for known in ["deal_terms", "buyer_jkt", "deal_event", "nonce"] {
        assert!(all.contains(known), "{known}: {all:?}");
    }
    for member in &all {
        let words: Vec<&str> = member.split(['_', '-']).collect();
        let personal = PERSONAL.iter().any(|p| p == member || words.contains(p));
        assert!(!personal, "{member}");
    }
}

/// The seller is the `sub` of the grant, and told to nobody but to their own page; the buyer is its key.
#[tokio::test]
async fn inv_9_a_seller_is_a_pseudonym_and_a_buyer_is_its_key() {
    let sale = sale().await;
    let deal = |to: &str| {
        let mut said = sale.said.iter().filter(|(who, _)| *who == to);
        let found = said.find(|(_, a)| a.status == 200 && a.body["buyer_jkt"].is_string());
        found.unwrap_or_else(|| panic!("{to}")).1.body.clone()
    };
    let kid = sale.site.buyer.kid();
    for to in ["the buyer", "the seller's agent"] {
        assert_eq!(deal(to)["buyer_jkt"], kid, "{to}");
    }
    let mut told = 0;
    for (to, answer) in &sale.said {
        let text = String::from_utf8_lossy(&answer.bytes);
        if *to == "the seller" {
            told += usize::from(text.contains(SELLER));
            continue;
        }
        assert!(!text.contains(SELLER), "{to}: {text}");
        // Nor the names that operators have among themselves for those who act through them.
        assert!(!text.contains("client-seller"), "{to}: {text}");
    }
    assert_eq!(told, 1, "the list of what waits says whose it is");
}

/// RFC 7662 lets an authorization server say more of a person than we ask for.
#[tokio::test]
async fn what_introspection_says_of_a_person_goes_nowhere() {
    let (logs, listening) = Logs::listen();
    let server = AuthorizationServer::start().await;
    let introspection = Introspection::endpoint(&*server.url)
        .client_secret_basic("gateway", "secret")
        .timeout(Duration::from_secs(10));
    let world = World::with(Tier::Auto, |b| b.dev(true).introspection(introspection)).await;
    let saying = |jkt: Option<&str>, sub: Option<&str>, client: &str| {
        let mut said = json!(grant(SELLER, client, jkt, Tier::Auto, NOW + 800));
        for member in [
            "username",
            "name",
            "email",
            "phone_number",
            "address",
            "preferred_username",
        ] {
            said[member] = json!("Ada Lovelace");
        }
        said["authorization_details"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "identity", "name": "Ada Lovelace"}));
        if sub.is_none() {
            for member in ["sub", "scope", "grant_status", "authorization_details"] {
                said.as_object_mut().unwrap().remove(member);
            }
        }
        said
    };
    let kid = Some(world.seller.kid());
    server.set(SELLER_TOKEN, saying(kid, Some(SELLER), "client-seller"));
    server.set(SELLER_UNBOUND, saying(None, Some(SELLER), "client-seller"));
    server.set(BUYER_TOKEN, saying(None, None, "client-buyer"));

    let offer = world
        .oauth_post(BUYER_TOKEN, "/offers", &offer_body(FLOOR + 1))
        .await;
    assert_eq!(offer.status, 201, "{:?}", offer.body);
    let path = format!("/offers/{}", offer.get("offer_id"));
    let answers = [
        world
            .seller_get(&format!("/offers?listing_id={LISTING}"))
            .await,
        world
            .seller_post(&format!("/listings/{LISTING}/terms"), &json!({}))
            .await,
        world
            .oauth_post(SELLER_UNBOUND, &format!("{path}/accept"), &json!({}))
            .await,
        world.send(with_token(get(&path), BUYER_TOKEN)).await,
        offer,
    ];
    drop(listening);
    let negotiation = answers[4].get("negotiation_id");
    let mut said = logs.text();
    for (answer, status) in answers.iter().zip([200, 202, 200, 200, 201]) {
        assert_eq!(answer.status, status, "{:?}", answer.body);
        said.push_str(&String::from_utf8_lossy(&answer.bytes));
    }
    for (kind, id) in [
        (SubjectKind::Listing, LISTING),
        (SubjectKind::Negotiation, &*negotiation),
    ] {
        said.push_str(&json!(world.chain(kind, id).await).to_string());
    }
    assert!(said.contains("client-buyer"), "the record is in it");
    assert!(
        !said.contains("Ada") && !said.contains("Lovelace"),
        "{said}"
    );
}
