//! The whole path, through every layer: a proposal becomes a listing, an offer becomes a deal, and the record says so; and
//! the example, played to its end.
#![allow(clippy::unwrap_used)]

mod common;
#[allow(dead_code)]
#[path = "../examples/sale/main.rs"]
mod example;

use clap::Parser;
use common::{
    Answer, CURRENCY, FLOOR, GATEWAY, LISTING, SELLER, World, deal_terms, get, offer_body, post,
};
use example::browser::Browser;
use http::{HeaderValue, header};
use http_body_util::Full;
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_rctp::{
    protocol::{policy::Tier, record::SubjectKind},
    service::{approvals::Approvals, enrolment::Tickets},
    store::{BoxFuture, StoreError},
};

/// Over HTTP, with a gateway of its own: to the release, to both refunds, each with its record verified.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_plays_to_its_end() {
    let args = example::Args::parse_from(["sale"]);
    let played = example::run(args).await.unwrap();
    let last = "sale complete: 75 steps, 31 record entries verified";
    assert_eq!(played.to_string(), last);
}

/// The agents call tools; every step and every entry is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_plays_over_mcp() {
    let args = example::Args::parse_from(["sale", "--transport", "mcp"]);
    let played = example::run(args).await.unwrap();
    let last = "sale complete: 75 steps, 31 record entries verified";
    assert_eq!(played.to_string(), last);
}

/// As it does against a running gateway, whose clock nobody moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_plays_against_a_running_gateway() {
    use example::gateway::{Config, start};

    let directory = tempfile::tempdir().unwrap();
    let config = Config::dev_in(directory.path());
    let running = start(config.clone()).await.unwrap();
    let url = format!("http://{}/", running.address);
    let dev_dir = config.dev_dir.to_str().unwrap();
    for _ in 0..2 {
        let args = ["sale", "--url", &url, "--dev-dir", dev_dir];
        let played = example::run(example::Args::parse_from(args)).await.unwrap();
        assert_eq!((played.steps, played.entries), (71, 26));
    }
    running.stop().await;
}

#[tokio::test]
async fn an_offer_becomes_a_deal() {
    sells(&World::new().await, LISTING).await;
}

/// Under the tier `auto` the listing comes first, and its terms follow.
#[tokio::test]
async fn a_proposal_becomes_a_deal() {
    let approvals = Approvals::new("The Market").tickets(OneTicket);
    let world = World::with(Tier::Auto, |b| b.approvals(approvals)).await;
    let mut page = Page::enrolled(&world).await;

    let listing = json!({
        "title": "A bicycle",
        "list_price": {"amount": 60_000, "currency": CURRENCY},
        "term_set": "goods-1",
    });
    let listing = world.seller_post("/listings", &listing).await;
    assert_eq!((listing.status, listing.decision()), (201, "auto"));
    let listing_id = listing.get("listing_id");

    let floor = |amount: u64| json!({"amount": amount, "currency": CURRENCY});
    let proposed = json!({"proposed_terms": {"floor": floor(FLOOR - 777)}});
    let path = format!("/listings/{listing_id}/terms");
    let asked = world.seller_post(&path, &proposed).await;
    assert_eq!(asked.status, 202, "{:?}", asked.body);
    let request = &asked.body["approval_request"];
    let id = request["approval_id"].as_str().unwrap();

    let shown = page.get(&format!("/approve/{id}/request")).await;
    let mut terms = shown.body["prefill"].clone();
    assert_eq!(terms["floor"], floor(FLOOR - 777));
    terms["floor"] = floor(FLOOR);
    terms["payment_terms"] = json!(["prepaid"]);
    let filled_in = page
        .post(&format!("/approve/{id}/terms"), &json!({"terms": terms}))
        .await;
    let commitment = &filled_in.body["terms_commitment"];
    let credential = page.browser.get(&filled_in.body["publicKey"]).await;
    let approval = json!({
        "decision": "approve",
        "credential": credential.unwrap(),
        "terms_commitment": commitment,
    });
    let path = format!("/approvals/{id}/response");
    let approved = page.post(&path, &approval).await;
    assert_eq!(approved.body["approval"]["status"], "approved");

    let outcome = world.seller_get(&format!("/approvals/{id}")).await;
    let result = json!({
        "listing_id": listing_id,
        "term_set": "goods-1",
        "terms_commitment": commitment,
    });
    assert_eq!(outcome.body["result"], result);
    let chain = world.chain(SubjectKind::Listing, &listing_id).await;
    let decisions: Vec<_> = chain.iter().map(|e| &e["decision"]["decision"]).collect();
    assert_eq!(decisions, ["auto", "ask", "auto"]);
    assert_eq!(&chain[2]["terms_commitment"], commitment);

    sells(&world, &listing_id).await;
}

/// A refusal, an offer, a counter, its answer, acceptance, and a deal.
async fn sells(world: &World, listing_id: &str) {
    let offer = |amount| {
        let mut body = offer_body(amount);
        body["listing_id"] = json!(listing_id);
        body
    };
    let listing = world.buyer_get(&format!("/listings/{listing_id}")).await;
    assert_eq!(listing.status, 200, "{:?}", listing.body);
    assert_eq!(listing.body["state"], "active");

    let low = world.buyer_post("/offers", &offer(FLOOR - 1)).await;
    assert_eq!(low.refusal(), (422, "below_floor"), "{:?}", low.body);

    let good = world.buyer_post("/offers", &offer(FLOOR + 1)).await;
    assert_eq!(good.status, 201, "{:?}", good.body);
    assert_eq!(good.decision(), "auto");
    let id = good.get("offer_id");

    let counter = world
        .seller_post(
            &format!("/offers/{id}/counter"),
            &json!({"deal_terms": deal_terms(50_000)}),
        )
        .await;
    assert_eq!(counter.status, 201, "{:?}", counter.body);

    let mut answer = offer(45_000);
    answer["supersedes"] = json!(counter.get("offer_id"));
    let answer = world.buyer_post("/offers", &answer).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    let id = answer.get("offer_id");

    let accepted = world
        .seller_post(&format!("/offers/{id}/accept"), &json!({}))
        .await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    assert_eq!(accepted.body["state"], "accepted");

    let mine = world.buyer_get(&format!("/offers/{id}")).await;
    let deal = world
        .buyer_post("/deals", &json!({"checkout": mine.get("checkout")}))
        .await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);

    let negotiation = world
        .chain(SubjectKind::Negotiation, &mine.get("negotiation_id"))
        .await;
    assert_eq!(negotiation.len(), 5, "{negotiation:#?}");
    let deals = world.chain(SubjectKind::Deal, &deal.get("deal_id")).await;
    assert_eq!(deals.len(), 1);
}

/// Whoever has it is the seller.
struct OneTicket;

impl Tickets for OneTicket {
    fn seller<'a>(&'a self, ticket: &'a str) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        let seller = (ticket == "a ticket").then(|| SELLER.to_owned());
        Box::pin(std::future::ready(Ok(seller)))
    }
}

/// The seller's browser at the hosted pages.
struct Page<'a> {
    world: &'a World,
    browser: Browser,
    session: HeaderValue,
}

impl<'a> Page<'a> {
    async fn enrolled(world: &'a World) -> Self {
        let mut page = Self {
            world,
            browser: Browser::at(GATEWAY, false),
            session: HeaderValue::from_static(""),
        };
        let offered = page
            .post("/enroll/options", &json!({"ticket": "a ticket"}))
            .await;
        let credential = page.browser.create(&offered.body["publicKey"]).await;
        let enrolled = json!({
            "ticket": "a ticket",
            "state": offered.body["state"],
            "credential": credential.unwrap(),
        });
        let enrolled = page.post("/enroll/complete", &enrolled).await;
        assert_eq!(enrolled.status, 201, "{:?}", enrolled.body);
        let cookie = enrolled.headers[header::SET_COOKIE].to_str().unwrap();
        page.session = cookie.split(';').next().unwrap().parse().unwrap();
        page
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(get(path)).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        let mut request = post(path, body);
        let origin = HeaderValue::from_static(GATEWAY);
        request.headers_mut().insert(header::ORIGIN, origin);
        self.send(request).await
    }

    async fn send(&self, mut request: http::Request<bytes::Bytes>) -> Answer {
        let session = self.session.clone();
        request.headers_mut().insert(header::COOKIE, session);
        if request.uri().path().starts_with("/approvals/") {
            return self.world.send(request).await;
        }
        let pages = self.world.rctp.pages().unwrap().clone();
        Answer::of(pages.oneshot(request.map(Full::new)).await.unwrap()).await
    }
}
