//! Binding 5.3 and 6.1, the listing's side: draft, active, reserved, sold and withdrawn; reprice, questions and answers,
//! and the commitment to ship.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use common::{
    Answer, BUYER_TOKEN, CURRENCY, FLOOR, LISTING, NOW, SELLER, SELLER_TOKEN, SELLER_UNBOUND,
    deal_terms, get, grant, listing, offer_body, public_terms, with_token,
};
use market::{Backing, Market, fits, fresh_key, on_every_store, send_to, signed};
use serde_json::{Value, json};
use tower_rctp::{
    LifecycleError,
    protocol::{
        listing::ListingState,
        money::Money,
        policy::{Limits, Tier},
        record::SubjectKind,
        terms::{Floor, PrivateTerms},
    },
};

on_every_store!(
    a_listing_goes_from_draft_to_sold,
    a_listing_is_withdrawn_in_any_state_before_it_is_sold,
    a_withdrawal_and_an_acceptance_at_once_have_one_outcome,
    a_new_price_is_for_future_offers_and_keeps_the_floor,
    each_buyer_agent_reads_its_own_questions_and_the_seller_all,
    a_question_is_answered_once,
    questions_are_bounded_per_agent_and_listing,
    the_seller_commits_to_ship_once,
);

// ---- Helpers --------------------------------------------------------------------------------------------------------

async fn state(market: &Market, id: &str) -> String {
    let path = format!("/listings/{id}");
    market.seller_get(&path).await.get("state")
}

/// A listing with confirmed terms in this state, as the marketplace's own page makes it.
async fn in_state(market: &Market, id: &str, state: ListingState) {
    let private = PrivateTerms::new(Some(Floor::new(Money::new(FLOOR, CURRENCY))), [7; 16]);
    let mut listing = listing(id, SELLER);
    listing.state = state;
    let published = market.rctp.publish(listing, public_terms(), &private);
    published.await.unwrap();
}

fn offer_on(id: &str, amount: u64) -> Value {
    json!({"listing_id": id, "deal_terms": deal_terms(amount)})
}

fn price(amount: u64) -> Value {
    json!({"price": {"amount": amount, "currency": CURRENCY}})
}

async fn reprice(market: &Market, id: &str, amount: u64) -> Answer {
    let path = format!("/listings/{id}/price");
    market.seller_post(&path, &price(amount)).await
}

async fn ask(market: &Market, id: &str, text: &str) -> Answer {
    let path = format!("/listings/{id}/questions");
    market.buyer_post(&path, &json!({ "text": text })).await
}

async fn answer(market: &Market, id: &str, question: &str, text: &str) -> Answer {
    let path = format!("/listings/{id}/answers");
    let body = json!({"question_id": question, "text": text});
    market.seller_post(&path, &body).await
}

/// Accepts an offer of this amount; the offer and the checkout.
async fn accepted(market: &Market, id: &str, amount: u64) -> (Answer, String) {
    let offer = market.buyer_post("/offers", &offer_on(id, amount)).await;
    let offer = market.accept(&offer.get("offer_id")).await;
    assert_eq!(offer.status, 200, "{:?}", offer.body);
    let checkout = offer.get("checkout");
    (offer, checkout)
}

async fn redeem(market: &Market, checkout: &str) -> Answer {
    market
        .buyer_post("/deals", &json!({ "checkout": checkout }))
        .await
}

fn withdrawals(chain: &[Value]) -> Vec<&Value> {
    let all = chain.iter().filter(|e| e["event"] == "listing.withdrawn");
    all.inspect(|e| fits("attestation-entry", e)).collect()
}

// ---- The lifecycle --------------------------------------------------------------------------------------------------

async fn a_listing_goes_from_draft_to_sold(backing: Backing) {
    let market = Market::on(backing).await;
    let id = "lst_tandem";
    in_state(&market, id, ListingState::Draft).await;
    let path = format!("/listings/{id}");

    // A draft is its seller's alone.
    assert_eq!(state(&market, id).await, "draft");
    let absent = market.buyer_get("/listings/lst_unknown").await;
    let hidden = market.buyer_get(&path).await;
    assert_eq!((hidden.status, hidden.bytes), (404, absent.bytes));
    let jkt = Some(market.seller.kid());
    let berta = grant("sub_berta", "client-seller", jkt, Tier::Auto, NOW + 10_000);
    market.grants.set("token-berta", berta);
    let mut hers = with_token(get(&path), "token-berta");
    market.seller.signer.sign(&mut hers).unwrap();
    assert_eq!(market.send(hers).await.status, 404);
    let offer = market.buyer_post("/offers", &offer_on(id, FLOOR)).await;
    assert_eq!(offer.refusal(), (403, "not_in_scope"));
    assert_eq!(
        ask(&market, id, "Has it a bell?").await.refusal(),
        (404, "not_found")
    );
    let questions = market.buyer_get(&format!("{path}/questions")).await;
    assert_eq!(questions.refusal(), (404, "not_found"));
    assert_eq!(reprice(&market, id, 59_000).await.status, 200);

    let active = market.rctp.activate(id).await.unwrap();
    assert_eq!(active.state, ListingState::Active);
    assert_eq!(market.buyer_get(&path).await.get("state"), "active");
    let again = market.rctp.activate(id).await;
    assert_eq!(again, Err(LifecycleError::State("active")));

    let (_, checkout) = accepted(&market, id, FLOOR).await;
    assert_eq!(market.buyer_get(&path).await.get("state"), "reserved");
    assert_eq!(redeem(&market, &checkout).await.status, 201);
    let sold = market.buyer_get(&path).await;
    assert_eq!(sold.get("state"), "sold");
    fits("listing", &sold.body);
    // There are no future offers to change it for.
    let offer = market.buyer_post("/offers", &offer_on(id, FLOOR)).await;
    assert_eq!(offer.refusal(), (403, "not_in_scope"));
    assert_eq!(
        reprice(&market, id, 59_000).await.refusal(),
        (403, "not_in_scope")
    );
    let terms = market
        .seller_post(&format!("{path}/terms"), &json!({}))
        .await;
    assert_eq!(terms.refusal(), (403, "not_in_scope"));
    assert_eq!(
        ask(&market, id, "Has it a bell?").await.refusal(),
        (403, "not_in_scope")
    );
    for end in [
        market.rctp.withdraw(id).await,
        market.rctp.activate(id).await,
    ] {
        assert_eq!(end, Err(LifecycleError::State("sold")));
    }
}

async fn a_listing_is_withdrawn_in_any_state_before_it_is_sold(backing: Backing) {
    let market = Market::on(backing).await;
    for (id, from) in [
        ("lst_draft", ListingState::Draft),
        ("lst_active", ListingState::Active),
    ] {
        in_state(&market, id, from).await;
        let withdrawn = market.rctp.withdraw(id).await.unwrap();
        assert_eq!(withdrawn.state, ListingState::Withdrawn);
        let chain = market.chain(SubjectKind::Listing, id).await;
        let [entry] = withdrawals(&chain)[..] else {
            panic!("{chain:#?}");
        };
        assert_eq!(entry["listing_id"], id);
        assert_eq!(
            entry["terms_commitment"],
            withdrawn.terms.unwrap().commitment
        );
        // The marketplace's own act: no agent's call.
        for none in ["decision", "authenticated_by", "agent_profile", "offer_id"] {
            assert!(entry.get(none).is_none(), "{entry}");
        }
        let again = market.rctp.withdraw(id).await;
        assert_eq!(again, Err(LifecycleError::State("withdrawn")));
        let chain = market.chain(SubjectKind::Listing, id).await;
        assert_eq!(withdrawals(&chain).len(), 1);
    }
    let unknown = market.rctp.withdraw("lst_unknown").await;
    assert_eq!(unknown, Err(LifecycleError::NoListing));

    // Reserved: the checkout that was given for it is of no use from now on (binding 5.3).
    let id = "lst_reserved";
    in_state(&market, id, ListingState::Active).await;
    let left = market.buyer_post("/offers", &offer_on(id, FLOOR + 1)).await;
    let left = left.get("offer_id");
    let (offer, checkout) = accepted(&market, id, FLOOR + 2).await;
    market.rctp.withdraw(id).await.unwrap();
    let refused = redeem(&market, &checkout).await;
    assert_eq!(refused.refusal(), (403, "not_in_scope"));
    assert_eq!(refused.body["offer_id"], offer.body["offer_id"]);
    assert_eq!(
        redeem(&market, &checkout).await.refusal(),
        (403, "not_in_scope")
    );
    assert_eq!(market.accept(&left).await.refusal(), (403, "not_in_scope"));
    assert_eq!(
        reprice(&market, id, 59_000).await.refusal(),
        (403, "not_in_scope")
    );
    assert_eq!(state(&market, id).await, "withdrawn");
    let chain = market.chain(SubjectKind::Listing, id).await;
    assert_eq!(withdrawals(&chain).len(), 1);
    let negotiation = offer.get("negotiation_id");
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    let [entry] = withdrawals(&chain)[..] else {
        panic!("{chain:#?}");
    };
    assert_eq!(entry["offer_id"], offer.body["offer_id"]);
    assert_eq!(entry["listing_id"], id);
    let last = chain.last().unwrap();
    assert_eq!(last["decision"]["reason"], "not_in_scope");

    // A reservation that has ended by time is none, swept or not.
    let id = "lst_ended";
    in_state(&market, id, ListingState::Active).await;
    let (offer, _) = accepted(&market, id, FLOOR + 2).await;
    market.clock.advance(1_800);
    market.rctp.withdraw(id).await.unwrap();
    let chain = market.chain(SubjectKind::Listing, id).await;
    assert_eq!(withdrawals(&chain).len(), 1);
    let negotiation = offer.get("negotiation_id");
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(withdrawals(&chain).len(), 0);
    market.rctp.sweep().await.unwrap();
    assert_eq!(state(&market, id).await, "withdrawn");
}

async fn a_withdrawal_and_an_acceptance_at_once_have_one_outcome(backing: Backing) {
    let market = Market::on(backing).await;
    for n in 0..6 {
        let id = format!("lst_race{n}");
        in_state(&market, &id, ListingState::Active).await;
        let offer = market.buyer_post("/offers", &offer_on(&id, FLOOR)).await;
        let path = format!("/offers/{}/accept", offer.get("offer_id"));
        let accept = signed(
            &market.seller,
            Some(SELLER_TOKEN),
            &path,
            &json!({}),
            &fresh_key(),
        );
        let (service, rctp) = (market.service.clone(), market.rctp.clone());
        let accept = tokio::spawn(async move { send_to(&service, accept).await });
        let of = id.clone();
        let withdraw = tokio::spawn(async move { rctp.withdraw(&of).await });
        let accepted = accept.await.unwrap();
        withdraw.await.unwrap().unwrap();
        assert_eq!(state(&market, &id).await, "withdrawn");
        let negotiation = offer.get("negotiation_id");
        let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
        match accepted.status {
            // It was accepted first, and its negotiation says what became of that.
            200 => {
                assert_eq!(withdrawals(&chain).len(), 1, "{chain:#?}");
                let refused = redeem(&market, &accepted.get("checkout")).await;
                assert_eq!(refused.refusal(), (403, "not_in_scope"));
            }
            _ => {
                assert_eq!(accepted.refusal(), (403, "not_in_scope"));
                assert_eq!(withdrawals(&chain).len(), 0, "{chain:#?}");
            }
        }
    }
}

// ---- Reprice (5.3, 6.1) ---------------------------------------------------------------------------------------------

async fn a_new_price_is_for_future_offers_and_keeps_the_floor(backing: Backing) {
    let market = Market::on(backing).await;
    let before = market.open_offer(FLOOR + 1).await;
    for (amount, refusal) in [(FLOOR - 1, (422, "below_floor")), (1, (422, "below_floor"))] {
        assert_eq!(reprice(&market, LISTING, amount).await.refusal(), refusal);
    }
    let dollars = json!({"price": {"amount": 60_000, "currency": "USD"}});
    let dollars = market
        .seller_post("/listings/lst_bicycle/price", &dollars)
        .await;
    assert_eq!(dollars.refusal(), (422, "terms_invalid"));
    // The floor itself is a price.
    let done = reprice(&market, LISTING, FLOOR).await;
    assert_eq!((done.status, done.decision()), (200, "auto"));
    fits("listing", &done.body);
    assert_eq!(
        done.body,
        market.buyer_get("/listings/lst_bicycle").await.body
    );
    assert_eq!(done.body["list_price"]["amount"], FLOOR);

    // Offers stay as they are, and so does what was accepted.
    let offer = market.buyer_get(&format!("/offers/{before}")).await;
    assert_eq!(offer.get("state"), "open");
    let checkout = market.accept(&before).await.get("checkout");
    let hash = claims(&checkout)["listing_hash"].clone();
    let done = reprice(&market, LISTING, 70_000).await;
    assert_eq!(done.status, 200, "{:?}", done.body);
    assert_eq!(done.body["state"], "reserved");
    let deal = redeem(&market, &checkout).await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
    assert_eq!(deal.body["deal_terms"], deal_terms(FLOOR + 1));
    assert_eq!(deal.body["listing_hash"], hash);

    let chain = market.chain(SubjectKind::Listing, LISTING).await;
    let of = chain.iter().filter(|e| e["action"] == "listing.reprice");
    let said: Vec<&str> = of
        .map(|e| {
            let decision = &e["decision"];
            let said = decision["reason"]
                .as_str()
                .or(decision["decision"].as_str());
            said.unwrap()
        })
        .collect();
    assert_eq!(
        said,
        [
            "below_floor",
            "below_floor",
            "terms_invalid",
            "auto",
            "auto"
        ]
    );
}

fn claims(checkout: &str) -> Value {
    let payload = checkout.split('.').nth(1).unwrap();
    serde_json::from_slice(&tower_rctp::wire::from_base64url(payload).unwrap()).unwrap()
}

// ---- Questions and answers ------------------------------------------------------------------------------------------

fn ids(page: &Answer) -> Vec<String> {
    assert_eq!((page.status, page.decision()), (200, ""), "{:?}", page.body);
    let questions = page.body["questions"].as_array().unwrap();
    let id = |question: &Value| {
        fits("question", question);
        question["question_id"].as_str().unwrap().to_owned()
    };
    questions.iter().map(id).collect()
}

async fn each_buyer_agent_reads_its_own_questions_and_the_seller_all(backing: Backing) {
    let market = Market::on(backing).await;
    let path = "/listings/lst_bicycle/questions";
    let body = |text: &str| json!({ "text": text });
    let mut all = Vec::new();
    let asked = ask(&market, LISTING, "Has it a bell?").await;
    assert_eq!((asked.status, asked.decision()), (201, "auto"));
    fits("question", &asked.body);
    let members: Vec<&str> = asked
        .body
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(members.len(), 4, "nothing of who asked: {members:?}");
    all.push(asked.get("question_id"));
    for agent in [&market.second, &market.other] {
        market.clock.advance(1);
        let asked = market
            .post(agent, None, path, &body("And a lamp?"), &fresh_key())
            .await;
        all.push(asked.get("question_id"));
    }
    market.clock.advance(1);
    let unsigned = market.oauth_post(BUYER_TOKEN, path, &body("A rack?")).await;
    assert_eq!(unsigned.status, 201, "{:?}", unsigned.body);
    all.push(unsigned.get("question_id"));
    // What a wrong one would reach.
    let elsewhere = ask(&market, "lst_unknown", "Has it a bell?").await;
    assert_eq!(elsewhere.refusal(), (404, "not_found"));
    let sellers = market.seller_post(path, &body("Does it sell?")).await;
    assert_eq!(sellers.refusal(), (403, "action_forbidden"));

    assert_eq!(ids(&market.seller_get(path).await), all);
    let read = async |agent: &common::Agent| {
        let mut request = get(path);
        agent.signer.sign(&mut request).unwrap();
        ids(&market.send(request).await)
    };
    assert_eq!(read(&market.buyer).await, all[..1]);
    assert_eq!(read(&market.second).await, all[1..2]);
    assert_eq!(read(&market.other).await, all[2..3]);
    let client = market.send(with_token(get(path), BUYER_TOKEN)).await;
    assert_eq!(ids(&client), all[3..]);
    // Another seller is no buyer.
    let berta = grant("sub_berta", "client-seller", None, Tier::Auto, NOW + 10_000);
    market.grants.set("token-berta", berta);
    let hers = market.send(with_token(get(path), "token-berta")).await;
    assert_eq!(hers.refusal(), (403, "not_in_scope"));
    let none = market.send(get(path)).await;
    assert_eq!(none.status, 401);

    // A page at a time; a buyer's says nothing of the questions of others.
    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let page = market.seller_get(&format!("{path}?limit=3{after}")).await;
        listed.extend(ids(&page));
        match page.body.get("next") {
            Some(next) => after = format!("&after={}", next.as_str().unwrap()),
            None => break,
        }
    }
    assert_eq!(listed, all);
    let first = market.buyer_get(&format!("{path}?limit=3")).await;
    assert_eq!(ids(&first), all[..1]);
    assert!(first.body.get("next").is_none(), "{:?}", first.body);
    for query in [
        "?limit=0",
        "?limit=101",
        "?after=last",
        "?listing_id=lst_bicycle",
        "?x=1",
    ] {
        let refused = market.seller_get(&format!("{path}{query}")).await;
        assert_eq!(refused.refusal(), (400, "invalid_request"), "{query}");
    }
    // R30: an ask is in the listing's chain, without a word of it.
    let chain = market.chain(SubjectKind::Listing, LISTING).await;
    let asked = chain
        .iter()
        .filter(|e| e["operation"] == "ask_question" && e["decision"]["decision"] == "auto");
    assert_eq!(asked.count(), 4);
    assert!(!json!(chain).to_string().contains("bell"));
}

async fn a_question_is_answered_once(backing: Backing) {
    let market = Market::on(backing).await;
    let question = ask(&market, LISTING, "Has it a bell?")
        .await
        .get("question_id");
    // What one second brings has no order.
    market.clock.advance(1);
    let other = ask(&market, LISTING, "And a lamp?")
        .await
        .get("question_id");
    in_state(&market, "lst_tandem", ListingState::Active).await;

    let elsewhere = answer(&market, "lst_tandem", &question, "It has.").await;
    assert_eq!(elsewhere.refusal(), (404, "not_found"));
    let unknown = answer(&market, LISTING, "qst_unknown", "It has.").await;
    assert_eq!((unknown.status, unknown.bytes), (404, elsewhere.bytes));
    let jkt = Some(market.seller.kid());
    let berta = grant("sub_berta", "client-seller", jkt, Tier::Auto, NOW + 10_000);
    market.grants.set("token-berta", berta);
    // Another seller learns nothing of which questions there are.
    for id in [&*question, "qst_unknown"] {
        let body = json!({"question_id": id, "text": "Buy mine."});
        let path = "/listings/lst_bicycle/answers";
        let hers = market
            .post(
                &market.seller,
                Some("token-berta"),
                path,
                &body,
                &fresh_key(),
            )
            .await;
        assert_eq!(hers.refusal(), (403, "not_in_scope"));
    }

    let path = "/listings/lst_bicycle/answers";
    let body = json!({"question_id": question, "text": "It has."});
    let requests = (0..8).map(|_| {
        signed(
            &market.seller,
            Some(SELLER_TOKEN),
            path,
            &body,
            &fresh_key(),
        )
    });
    let tasks: Vec<_> = requests
        .map(|request| {
            let service = market.service.clone();
            tokio::spawn(async move { send_to(&service, request).await })
        })
        .collect();
    let mut statuses = Vec::new();
    for task in tasks {
        let answer = task.await.unwrap();
        match answer.status {
            200 => fits("question", &answer.body),
            _ => assert_eq!(answer.refusal(), (409, "offer_replayed")),
        }
        statuses.push(answer.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [[200].as_slice(), &[409; 7]].concat());
    let again = answer(&market, LISTING, &question, "No, it has not.").await;
    assert_eq!(again.refusal(), (409, "offer_replayed"));

    let read = market.buyer_get("/listings/lst_bicycle/questions").await;
    assert_eq!(ids(&read), [question.clone(), other]);
    assert_eq!(read.body["questions"][0]["answer"], "It has.");
    assert!(read.body["questions"][0]["answered_at"].is_string());
    assert!(read.body["questions"][1].get("answer").is_none());
}

async fn questions_are_bounded_per_agent_and_listing(backing: Backing) {
    let limits = Limits {
        questions_per_agent: 2,
        ..Limits::default()
    };
    let market = Market::with(backing, Tier::Auto, |b| b.limits(limits)).await;
    in_state(&market, "lst_tandem", ListingState::Active).await;
    assert_eq!(ask(&market, LISTING, "One?").await.status, 201);
    market.clock.advance(100);
    assert_eq!(ask(&market, LISTING, "Two?").await.status, 201);
    let third = ask(&market, LISTING, "Three?").await;
    assert_eq!(third.refusal(), (429, "offer_budget_exhausted"));
    assert_eq!(third.body["retry_after"], 86_300);
    assert_eq!(third.headers["retry-after"], "86300");
    assert_eq!(
        third.decision(),
        "forbid;reason=offer_budget_exhausted;retry_after=86300"
    );
    // On another listing, and another agent's, are others; and offers have a budget of their own.
    assert_eq!(ask(&market, "lst_tandem", "Three?").await.status, 201);
    let body = json!({"text": "One?"});
    let path = "/listings/lst_bicycle/questions";
    let second = market
        .post(&market.second, None, path, &body, &fresh_key())
        .await;
    assert_eq!(second.status, 201);
    assert_eq!(
        market
            .buyer_post("/offers", &offer_body(FLOOR))
            .await
            .status,
        201
    );
    market.clock.advance(86_299);
    assert_eq!(ask(&market, LISTING, "Three?").await.status, 429);
    market.clock.advance(1);
    assert_eq!(ask(&market, LISTING, "Three?").await.status, 201);
    assert_eq!(ask(&market, LISTING, "Four?").await.status, 429);
}

// ---- Commit to ship -------------------------------------------------------------------------------------------------

async fn the_seller_commits_to_ship_once(backing: Backing) {
    let market = Market::on(backing).await;
    let (_, checkout) = accepted(&market, LISTING, FLOOR).await;
    let deal = redeem(&market, &checkout).await;
    let id = deal.get("deal_id");
    let path = format!("/deals/{id}/commit-to-ship");
    // Neither the buyer nor another seller; a stranger learns nothing of the deal.
    let buyer = market.buyer_post(&path, &json!({})).await;
    assert_eq!(buyer.refusal(), (401, "grant_invalid"));
    let jkt = Some(market.seller.kid());
    let berta = grant("sub_berta", "client-seller", jkt, Tier::Auto, NOW + 10_000);
    market.grants.set("token-berta", berta);
    let hers = market
        .post(
            &market.seller,
            Some("token-berta"),
            &path,
            &json!({}),
            &fresh_key(),
        )
        .await;
    assert_eq!(hers.refusal(), (404, "not_found"));

    let committed = market.oauth_post(SELLER_UNBOUND, &path, &json!({})).await;
    assert_eq!((committed.status, committed.decision()), (200, "auto"));
    fits("deal", &committed.body);
    let mut expected = deal.body.clone();
    expected["committed_to_ship_at"] = committed.body["committed_to_ship_at"].clone();
    assert_eq!(committed.body, expected);
    assert!(expected["committed_to_ship_at"].is_string());
    let again = market.seller_post(&path, &json!({})).await;
    assert_eq!(again.refusal(), (409, "offer_replayed"));
    let read = market.buyer_get(&format!("/deals/{id}")).await;
    assert_eq!(read.body, expected);
    let chain = market.chain(SubjectKind::Deal, &id).await;
    let said: Vec<&Value> = chain
        .iter()
        .filter(|e| e["action"] == "deal.commit_to_ship")
        .map(|e| &e["decision"]["decision"])
        .collect();
    assert_eq!(said, ["auto", "forbid"]);
}
