//! Binding 12: every route, by every sort of caller; what each decides, and that there is no other.
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/market.rs"]
mod market;

use std::collections::BTreeSet;

use bytes::Bytes;
use common::{
    Agent, Answer, CURRENCY, FLOOR, GATEWAY, NOW, SELLER, SELLER_TOKEN, deal_terms, grant,
    public_terms, with_key, with_token,
};
use hosted::{Hosted, Person, browser_get, browser_post, confirmed, door, new_listing};
use http::{Request, header};
use market::{Backing, fresh_key};
use serde_json::{Value, json};
use tower_rctp::{
    protocol::{
        operation::TABLE,
        policy::{Limits, Tier},
    },
    wire::jws,
};

/// Method and path, the verb that is decided, and how the seller's agent is answered, the buyer's, one of another
/// operator, nobody, and the seller's browser.
type Row = (&'static str, &'static str, &'static str, [u16; 5]);

const ENDPOINTS: [Row; 31] = [
    (
        "POST",
        "/listings",
        "listing.create",
        [201, 401, 401, 401, 401],
    ),
    ("GET", "/listings/{id}", "", [200, 200, 200, 401, 401]),
    (
        "POST",
        "/listings/{id}/terms",
        "listing.set_terms",
        [202, 401, 401, 401, 401],
    ),
    (
        "POST",
        "/listings/{id}/price",
        "listing.reprice",
        [200, 401, 401, 401, 401],
    ),
    (
        "GET",
        "/listings/{id}/questions",
        "",
        [200, 200, 200, 401, 401],
    ),
    (
        "POST",
        "/listings/{id}/questions",
        "",
        [403, 201, 201, 401, 401],
    ),
    (
        "POST",
        "/listings/{id}/answers",
        "listing.answer_buyer",
        [200, 401, 401, 401, 401],
    ),
    ("POST", "/offers", "offer.create", [403, 201, 201, 401, 401]),
    ("GET", "/offers", "", [200, 401, 401, 401, 401]),
    ("GET", "/offers/{id}", "", [200, 200, 404, 401, 401]),
    (
        "POST",
        "/offers/{id}/counter",
        "offer.counter",
        [201, 400, 401, 401, 401],
    ),
    (
        "POST",
        "/offers/{id}/accept",
        "offer.accept",
        [200, 403, 401, 401, 401],
    ),
    (
        "POST",
        "/offers/{id}/decline",
        "",
        [200, 200, 404, 401, 401],
    ),
    ("GET", "/approvals/{id}", "", [200, 401, 401, 401, 401]),
    (
        "POST",
        "/approvals/{id}/response",
        "",
        [403, 403, 403, 401, 200],
    ),
    // The page itself holds nothing of anybody.
    ("GET", "/approve/{id}", "", [403, 403, 403, 200, 200]),
    (
        "GET",
        "/approve/{id}/request",
        "",
        [403, 403, 403, 401, 200],
    ),
    ("POST", "/approve/{id}/terms", "", [403, 403, 403, 401, 200]),
    (
        "POST",
        "/approve/{id}/options",
        "",
        [403, 403, 403, 401, 200],
    ),
    ("POST", "/deals", "", [403, 201, 401, 401, 401]),
    ("GET", "/deals/{id}", "", [200, 200, 404, 401, 401]),
    ("POST", "/deals/{id}/events", "", [201, 201, 404, 401, 401]),
    ("GET", "/deals/{id}/events", "", [200, 200, 404, 401, 401]),
    (
        "POST",
        "/deals/{id}/commit-to-ship",
        "deal.commit_to_ship",
        [200, 401, 401, 401, 401],
    ),
    (
        "POST",
        "/deals/{id}/contract",
        "deal.sign_contract",
        [403, 401, 401, 401, 401],
    ),
    (
        "POST",
        "/account",
        "account.update",
        [403, 401, 401, 401, 401],
    ),
    // For whoever has a ticket, signed in or not.
    ("GET", "/enroll", "", [403, 403, 403, 200, 200]),
    ("POST", "/enroll/options", "", [403, 403, 403, 200, 200]),
    ("POST", "/enroll/complete", "", [403, 403, 403, 400, 400]),
    ("GET", "/.well-known/ucp", "", [200; 5]),
    ("GET", "/.well-known/oauth-protected-resource", "", [200; 5]),
];

#[test]
fn the_agents_routes_are_those_of_the_binding_and_no_others() {
    let pages = ["/approve/", "/enroll", "/.well-known/"];
    let expected: BTreeSet<(&str, &str, Option<&str>)> = ENDPOINTS
        .iter()
        .filter(|(_, path, ..)| !pages.iter().any(|page| path.starts_with(page)))
        .map(|(method, path, verb, _)| (*method, *path, (!verb.is_empty()).then_some(*verb)))
        .collect();
    let served: BTreeSet<(&str, &str, Option<&str>)> = TABLE
        .iter()
        .map(|row| {
            (
                row.method.as_str(),
                row.path,
                row.verb.map(|verb| verb.as_str()),
            )
        })
        .collect();
    assert_eq!(served, expected);
    assert_eq!(TABLE.len(), expected.len());
}

#[tokio::test]
async fn each_route_is_for_its_callers_and_for_nobody_else() {
    let scene = Scene::open().await;
    for (method, template, verb, statuses) in ENDPOINTS {
        for (who, status) in Caller::ALL.into_iter().zip(statuses) {
            let answer = scene.call(who, method, template).await;
            let what = format!("{method} {template} by {who:?}");
            assert_eq!(answer.status, status, "{what}: {:?}", answer.body);
            // What a stranger is told of names what would be decided.
            if who == Caller::Nobody && status == 401 && !template.starts_with("/appro") {
                let action = match verb {
                    "" => String::new(),
                    verb => format!("action=\"{verb}\";"),
                };
                let decision = answer.decision();
                assert!(
                    decision.starts_with(&format!("forbid;{action}reason=")),
                    "{what}: {decision}"
                );
            }
        }
    }
}

/// A method that a path of the table does not have, or a path beside it, is no way in.
#[tokio::test]
async fn no_other_method_of_a_route_is_served() {
    let scene = Scene::open().await;
    let known: BTreeSet<(&str, &str)> = ENDPOINTS.iter().map(|(m, path, ..)| (*m, *path)).collect();
    let agents = ENDPOINTS.iter().map(|(_, path, ..)| *path).filter(|path| {
        let first = path.split('/').nth(1).unwrap();
        ["listings", "offers", "deals", "approvals", "account"].contains(&first)
    });
    for path in agents.collect::<BTreeSet<_>>() {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            if known.contains(&(method, path)) {
                continue;
            }
            let target = path.replace("{id}", "off_1");
            let mut request = common::with_token(common::get(&target), SELLER_TOKEN);
            *request.method_mut() = method.parse().unwrap();
            request
                .headers_mut()
                .insert("idempotency-key", fresh_key().parse().unwrap());
            scene.site.seller.signer.sign(&mut request).unwrap();
            let answer = scene.site.send(request).await;
            assert_eq!(answer.refusal(), (404, "not_found"), "{method} {path}");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Seller,
    Buyer,
    Other,
    Nobody,
    Browser,
}

impl Caller {
    const ALL: [Caller; 5] = [
        Caller::Seller,
        Caller::Buyer,
        Caller::Other,
        Caller::Nobody,
        Caller::Browser,
    ];
}

/// Everything behind one door, and a seller at a browser.
struct Scene {
    site: Hosted,
    anna: Person,
}

impl Scene {
    async fn open() -> Self {
        // Every caller finds an approval of its own.
        let limits = Limits {
            asks_per_agent: 1_000,
            ..Limits::default()
        };
        let backing = Backing::memory().await;
        let mut site = Hosted::with(backing, Tier::Auto, |b| b.limits(limits)).await;
        let documents = site.rctp.discovery("https://auth.market.example").router();
        site.market.world.service = door(&site.rctp, documents);
        let jkt = Some(site.seller.kid());
        let asking = grant(SELLER, "client-seller", jkt, Tier::Ask, NOW + 100_000);
        site.grants.set("token-asking", asking);
        let anna = site.seller_person().await;
        Self { site, anna }
    }

    async fn call(&self, who: Caller, method: &str, template: &str) -> Answer {
        let (path, body) = self.ready(template, who).await;
        let request = match who {
            Caller::Browser => self.by_browser(method, &path, &body),
            // A page's own request, but for the session.
            Caller::Nobody if template.starts_with("/appro") || template.starts_with("/enroll") => {
                match method {
                    "GET" => browser_get(&path, None),
                    _ => browser_post(&path, None, &body),
                }
            }
            Caller::Nobody => with_key(plain(method, &path, &body)),
            agent => {
                let mut request = with_key(plain(method, &path, &body));
                if agent == Caller::Seller {
                    request = with_token(request, SELLER_TOKEN);
                }
                self.agent(agent).signer.sign(&mut request).unwrap();
                request
            }
        };
        self.site.send(request).await
    }

    fn by_browser(&self, method: &str, path: &str, body: &Value) -> Request<Bytes> {
        match method {
            "GET" => browser_get(path, Some(&self.anna)),
            _ => browser_post(path, Some(&self.anna), body),
        }
    }

    fn agent(&self, who: Caller) -> &Agent {
        match who {
            Caller::Seller => &self.site.seller,
            Caller::Other => &self.site.other,
            _ => &self.site.buyer,
        }
    }

    /// A path of this form where the call is possible, and a body that its schema allows.
    async fn ready(&self, template: &str, who: Caller) -> (String, Value) {
        let none = json!({});
        let price = json!({"amount": FLOOR + 5, "currency": CURRENCY});
        let (id, body) = match template {
            "/listings" => (String::new(), new_listing()),
            "/listings/{id}" | "/listings/{id}/terms" => (self.listing().await, none),
            "/listings/{id}/price" => (self.listing().await, json!({ "price": price })),
            "/listings/{id}/questions" => (self.listing().await, json!({"text": "Has it a bell?"})),
            "/listings/{id}/answers" => {
                let listing = self.listing().await;
                let path = format!("/listings/{listing}/questions");
                let asked = json!({"text": "Has it a bell?"});
                let asked = self.site.buyer_post(&path, &asked).await;
                (
                    listing,
                    json!({"question_id": asked.get("question_id"), "text": "It has."}),
                )
            }
            "/offers" => {
                let listing = self.listing().await;
                let path = format!("/offers?listing_id={listing}");
                // What a POST does not need it does not mind.
                return (path, offer_on(&listing));
            }
            "/offers/{id}/counter" => (
                self.offer().await,
                json!({"deal_terms": deal_terms(55_000)}),
            ),
            "/offers/{id}" | "/offers/{id}/accept" | "/offers/{id}/decline" => {
                (self.offer().await, none)
            }
            "/approve/{id}/terms" => (self.ask_terms().await, json!({"terms": confirmed(50_000)})),
            "/approvals/{id}/response" => {
                (self.ask_acceptance().await, json!({"decision": "decline"}))
            }
            _ if template.starts_with("/appro") => (self.ask_acceptance().await, none),
            "/deals" => (String::new(), json!({"checkout": self.checkout().await})),
            "/deals/{id}/events" => {
                let deal = self.deal().await;
                let event = json!({
                    "deal_id": deal, "event_id": format!("evt_{}", fresh_key()),
                    "event": "example.carrier:weighed", "observation": "first_hand",
                    "occurred_at": self.site.clock.now(),
                });
                let key = self.agent(who).signer.key();
                let event = jws::sign("rctp-deal-event+jwt", event.to_string().as_bytes(), key);
                (deal, json!({"event": event.unwrap()}))
            }
            _ if template.starts_with("/deals/") => (self.deal().await, none),
            "/enroll/options" => (
                String::new(),
                json!({"ticket": self.site.tickets.give(SELLER)}),
            ),
            "/enroll/complete" => (
                String::new(),
                json!({"ticket": "none", "state": "none", "credential": {}}),
            ),
            _ => (String::new(), none),
        };
        (template.replace("{id}", &id), body)
    }

    async fn listing(&self) -> String {
        let id = format!("lst_{}", fresh_key());
        self.site.publish(&id, SELLER, public_terms()).await;
        id
    }

    async fn offer(&self) -> String {
        let listing = self.listing().await;
        let offer = self.site.buyer_post("/offers", &offer_on(&listing)).await;
        assert_eq!(offer.status, 201, "{:?}", offer.body);
        offer.get("offer_id")
    }

    async fn checkout(&self) -> String {
        let offer = self.offer().await;
        self.site.accept(&offer).await.get("checkout")
    }

    async fn deal(&self) -> String {
        let checkout = json!({"checkout": self.checkout().await});
        self.site
            .buyer_post("/deals", &checkout)
            .await
            .get("deal_id")
    }

    async fn ask_terms(&self) -> String {
        let path = format!("/listings/{}/terms", self.listing().await);
        self.site.ask(&path, &json!({})).await
    }

    async fn ask_acceptance(&self) -> String {
        let path = format!("/offers/{}/accept", self.offer().await);
        let mut request = with_token(plain("POST", &path, &json!({})), "token-asking");
        self.site.seller.signer.sign(&mut request).unwrap();
        let asked = self.site.send(request).await;
        let id = &asked.body["approval_request"]["approval_id"];
        id.as_str()
            .unwrap_or_else(|| panic!("{:?}", asked.body))
            .to_owned()
    }
}

fn offer_on(listing: &str) -> Value {
    hosted::offer_on(listing, FLOOR + 1)
}

/// As it is, with a body where the method takes one.
fn plain(method: &str, path: &str, body: &Value) -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = format!("{GATEWAY}{path}").parse().unwrap();
    if method == "POST" {
        let json = "application/json".parse().unwrap();
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        *request.body_mut() = body.to_string().into();
    }
    request
}
