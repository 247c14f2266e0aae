//! The marketplace with its hosted pages, put together as a marketplace would, and its sellers at their browsers with
//! real passkeys.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, header};
use serde_json::{Value, json};
use tower::{ServiceExt, util::BoxCloneSyncService};
use tower_rctp::{
    Rctp, RctpBuilder,
    layer::body::Body,
    protocol::{policy::Tier, record::SubjectKind},
    service::{approvals::Approvals, enrolment::Tickets},
    store::{BoxFuture, Kind, Store, StoreError},
};

use crate::{
    authenticator::Browser,
    common::{Answer, GATEWAY, LISTING, SELLER, Service, deal_terms},
    market::{Backing, Market, send_to},
};

/// Tickets for a first passkey, by what is written on them.
#[derive(Clone, Default)]
pub struct TicketBox(Arc<Mutex<HashMap<String, String>>>);

impl Tickets for TicketBox {
    fn seller<'a>(&'a self, ticket: &'a str) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        let seller = self.0.lock().unwrap().get(ticket).cloned();
        Box::pin(async move { Ok(seller) })
    }
}

impl TicketBox {
    pub fn give(&self, seller: &str) -> String {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let ticket = format!("ticket-{}", NEXT.fetch_add(1, Ordering::SeqCst));
        let mut tickets = self.0.lock().unwrap();
        tickets.insert(ticket.clone(), seller.to_owned());
        ticket
    }
}

/// The marketplace, with everything that it serves behind one door.
pub struct Hosted {
    pub market: Market,
    pub tickets: TicketBox,
}

impl Deref for Hosted {
    type Target = Market;

    fn deref(&self) -> &Market {
        &self.market
    }
}

/// A seller at a browser.
pub struct Person {
    pub browser: Browser,
    pub cookie: String,
}

impl Hosted {
    /// Its seller wants to be asked.
    pub async fn open(backing: Backing) -> Self {
        Self::with(backing, Tier::Ask, |b| b).await
    }

    pub async fn with(
        backing: Backing,
        tier: Tier,
        settings: impl FnOnce(RctpBuilder) -> RctpBuilder,
    ) -> Self {
        let tickets = TicketBox::default();
        let approvals = Approvals::new("The Market").tickets(tickets.clone());
        let settings = |b: RctpBuilder| settings(b.approvals(approvals));
        let mut market = Market::with(backing, tier, settings).await;
        market.world.service = door(&market.rctp, axum::Router::new());
        Self { market, tickets }
    }

    /// Another gateway of the marketplace, as after a restart or beside this one; `own` are the marketplace's handlers.
    pub fn another(
        &self,
        store: Arc<dyn Store>,
        own: impl FnOnce(&Rctp) -> axum::Router,
        settings: impl FnOnce(RctpBuilder) -> RctpBuilder,
    ) -> (Rctp, Service) {
        let approvals = Approvals::new("The Market").tickets(self.tickets.clone());
        let rctp = self.beside(store, |b| settings(b.approvals(approvals)));
        let service = door(&rctp, own(&rctp));
        (rctp, service)
    }

    /// The listing's seller, enrolled and signed in.
    pub async fn seller_person(&self) -> Person {
        self.person(SELLER, false).await
    }

    /// A seller, enrolled and signed in; `counts` is whether their passkey has a counter.
    pub async fn person(&self, sub: &str, counts: bool) -> Person {
        let mut browser = Browser::at(GATEWAY, counts);
        let ticket = self.tickets.give(sub);
        let asked = json!({"ticket": ticket});
        let options = self.page_post("/enroll/options", None, &asked).await;
        assert_eq!(options.status, 200, "{:?}", options.body);
        let credential = browser.create(&options.body["publicKey"]).await.unwrap();
        let done =
            json!({"ticket": ticket, "state": options.body["state"], "credential": credential});
        let done = self.page_post("/enroll/complete", None, &done).await;
        assert_eq!(done.status, 201, "{:?}", done.body);
        Person {
            browser,
            cookie: cookie(&done),
        }
    }

    pub async fn page_get(&self, path: &str, person: Option<&Person>) -> Answer {
        self.send(browser_get(path, person)).await
    }

    pub async fn page_post(&self, path: &str, person: Option<&Person>, body: &Value) -> Answer {
        self.send(browser_post(path, person, body)).await
    }

    /// The seller's agent asks, and this is the approval that waits.
    pub async fn ask(&self, path: &str, body: &Value) -> String {
        let asked = self.seller_post(path, body).await;
        assert_eq!(asked.status, 202, "{path}: {:?}", asked.body);
        asked.body["approval_request"]["approval_id"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// The seller's agent asks to accept a new offer of `amount`; the offer and the approval.
    pub async fn ask_to_accept(&self, amount: u64) -> (String, String) {
        let offer = self.open_offer(amount).await;
        let path = format!("/offers/{offer}/accept");
        let approval = self.ask(&path, &json!({})).await;
        (offer, approval)
    }

    /// What the page sends to approve: its options, the passkey's answer.
    pub async fn credential(&self, person: &mut Person, approval: &str) -> Value {
        let path = format!("/approve/{approval}/options");
        let options = self.page_post(&path, Some(person), &json!({})).await;
        assert_eq!(options.status, 200, "{:?}", options.body);
        let public_key = &options.body["publicKey"];
        person.browser.get(public_key).await.unwrap()
    }

    /// The seller approves an action that takes no terms.
    pub async fn approve(&self, person: &mut Person, approval: &str) -> Answer {
        let credential = self.credential(person, approval).await;
        let body = json!({"decision": "approve", "credential": credential});
        self.respond(person, approval, &body).await
    }

    /// The seller fills in these terms: their commitment, and the options of the passkey.
    pub async fn fill_in(&self, person: &Person, approval: &str, terms: &Value) -> (String, Value) {
        let path = format!("/approve/{approval}/terms");
        let body = json!({ "terms": terms });
        let filled = self.page_post(&path, Some(person), &body).await;
        assert_eq!(filled.status, 200, "{:?}", filled.body);
        (
            filled.get("terms_commitment"),
            filled.body["publicKey"].clone(),
        )
    }

    /// The seller fills in these terms and approves them.
    pub async fn confirm(&self, person: &mut Person, approval: &str, terms: &Value) -> Answer {
        let (commitment, public_key) = self.fill_in(person, approval, terms).await;
        let credential = person.browser.get(&public_key).await.unwrap();
        let body = json!({"decision": "approve", "credential": credential, "terms_commitment": commitment});
        self.respond(person, approval, &body).await
    }

    pub async fn decline_approval(&self, person: &Person, approval: &str) -> Answer {
        self.respond(person, approval, &json!({"decision": "decline"}))
            .await
    }

    pub async fn respond(&self, person: &Person, approval: &str, body: &Value) -> Answer {
        let path = format!("/approvals/{approval}/response");
        self.page_post(&path, Some(person), body).await
    }

    /// The approval as the agent reads it.
    pub async fn read(&self, approval: &str) -> Value {
        let read = self.seller_get(&format!("/approvals/{approval}")).await;
        assert_eq!(read.status, 200, "{:?}", read.body);
        crate::market::fits("approval", &read.body);
        read.body
    }

    /// The approval as it is stored.
    pub async fn kept(&self, approval: &str) -> Value {
        let doc = self.stored(Kind::Approval, approval).await.unwrap();
        serde_json::from_slice(&doc.body).unwrap()
    }

    pub async fn offer_state(&self, offer: &str) -> String {
        self.buyer_get(&format!("/offers/{offer}"))
            .await
            .get("state")
    }

    pub async fn listing_state(&self, listing: &str) -> String {
        let path = format!("/listings/{listing}");
        self.buyer_get(&path).await.get("state")
    }

    /// The chain of the negotiation that the offer belongs to.
    pub async fn negotiation_of(&self, offer: &str) -> Vec<Value> {
        let read = self.buyer_get(&format!("/offers/{offer}")).await;
        let id = read.get("negotiation_id");
        self.chain(SubjectKind::Negotiation, &id).await
    }
}

/// Everything behind one door: the stack around the marketplace's own handlers, the market for the rest, and the pages.
pub fn door(rctp: &Rctp, own: axum::Router) -> Service {
    door_of(rctp, own.fallback_service(rctp.market()))
}

/// The same with nothing of ours inside but the pages.
pub fn door_of(rctp: &Rctp, app: axum::Router) -> Service {
    let app = app.merge(rctp.pages().unwrap().router());
    routed(rctp.protect(app))
}

/// An axum router as a service of ours.
pub fn routed(app: axum::Router) -> Service {
    let service = tower::service_fn(move |request: Request<Body>| {
        let app = app.clone();
        async move {
            let response = app.oneshot(request).await.unwrap();
            Ok::<_, std::convert::Infallible>(response.map(Body::new))
        }
    });
    BoxCloneSyncService::new(service)
}

pub fn browser_get(path: &str, person: Option<&Person>) -> Request<Bytes> {
    let mut request = Request::get(format!("{GATEWAY}{path}"))
        .body(Bytes::new())
        .unwrap();
    seated(&mut request, person);
    request
}

pub fn browser_post(path: &str, person: Option<&Person>, body: &Value) -> Request<Bytes> {
    let mut request = Request::post(format!("{GATEWAY}{path}"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ORIGIN, GATEWAY)
        .body(Bytes::from(body.to_string()))
        .unwrap();
    seated(&mut request, person);
    request
}

fn seated(request: &mut Request<Bytes>, person: Option<&Person>) {
    if let Some(person) = person {
        let cookie = HeaderValue::from_str(&person.cookie).unwrap();
        request.headers_mut().insert(header::COOKIE, cookie);
    }
}

/// With this header instead of what it had.
pub fn with(mut request: Request<Bytes>, name: &str, value: &str) -> Request<Bytes> {
    let name: HeaderName = name.parse().unwrap();
    let value = HeaderValue::from_str(value).unwrap();
    request.headers_mut().insert(name, value);
    request
}

/// The session that an answer begins.
pub fn cookie(answer: &Answer) -> String {
    let cookie = answer.headers[header::SET_COOKIE].to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

/// What a seller confirms, with this floor.
pub fn confirmed(floor: u64) -> Value {
    json!({
        "floor": {"amount": floor, "currency": "EUR"},
        "fulfillment_options": [{"method_type": "shipping", "option_ids": ["standard", "express"]}],
        "payment_terms": ["prepaid"],
        "release_condition": "accepted",
        "deliver_within_days": 5,
        "inspection_days": 3,
        "return_policy": "not_as_described",
    })
}

pub fn new_listing() -> Value {
    json!({
        "title": "A tandem",
        "category": "bicycles",
        "list_price": {"amount": 90_000, "currency": "EUR"},
        "term_set": "goods-1",
    })
}

pub fn offer_on(listing: &str, amount: u64) -> Value {
    json!({"listing_id": listing, "deal_terms": deal_terms(amount)})
}

/// The path of the listing that every market begins with.
pub fn on_listing(rest: &str) -> String {
    format!("/listings/{LISTING}{rest}")
}

/// Sends them at once, and returns their answers in the order that they were sent in.
pub async fn at_once(service: &Service, requests: Vec<Request<Bytes>>) -> Vec<Answer> {
    let tasks: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let service = service.clone();
            tokio::spawn(async move { send_to(&service, request).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}
