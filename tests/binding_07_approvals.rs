//! Binding 7: the seller decides, over the whole stack, the hosted pages and real passkeys (R24–R29).
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/market.rs"]
mod market;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use authenticator::Forger;
use axum::{Json, Router, routing::post as on_post};
use bytes::Bytes;
use common::{
    Answer, FLOOR, GATEWAY, LISTING, NOW, SELLER, SELLER_TOKEN, SELLER_UNBOUND, deal_terms, grant,
};
use hosted::{
    Hosted, Person, at_once, browser_get, browser_post, confirmed, cookie, new_listing, offer_on,
    on_listing, with,
};
use http::{HeaderMap, Method, Request, StatusCode, header};
use market::{Backing, Call, fits, fresh_key, on_every_store, send_to, signed};
use serde_json::{Value, json};
use tower::Layer;
use tower_rctp::{
    layer::{
        approve::{Approver, NotVerified},
        authenticate::operators::Operators,
        body::Body,
        decision::Decided,
    },
    protocol::{
        caller::Caller,
        grant::GrantStatus,
        operation::Verb,
        policy::{Limits, Tier, Tiers},
        record::SubjectKind,
        refusal::{Reason, Refusal},
    },
    service::{approvals::Approvals, session::Sessions},
    store::{BoxFuture, Put, StoreError},
    wire::{base64url, digest::sha256, from_base64url, jcs, jwk::SigningKey},
};

on_every_store!(
    every_verb_is_asked_approved_and_carried_out,
    any_number_of_clicks_carries_the_action_out_once,
    approving_and_declining_at_once_have_one_outcome,
    a_click_that_time_has_overtaken_is_409_and_changes_nothing,
    a_declined_action_is_not_carried_out_and_its_offer_is_declined,
    inv_2_silence_is_a_decline_and_enters_the_record,
    a_grant_that_was_taken_back_meanwhile_forbids_what_was_approved,
    the_access_token_may_have_expired_meanwhile,
    an_expired_access_token_does_not_lower_the_tier_to_the_default,
    what_cannot_be_checked_now_stays_pending_and_works_later,
    what_has_changed_meanwhile_is_judged_again,
    a_listing_that_could_not_be_made_has_the_reason_in_its_chain,
    a_handler_of_the_marketplaces_own_gets_the_action_as_it_was_asked,
    only_the_latest_terms_can_be_approved,
    an_approval_outlives_a_restart,
    what_was_parked_is_gone_once_the_approval_has_ended,
    asks_are_bounded_per_listing,
    asks_are_bounded_per_agent,
    clicks_at_two_gateways_carry_the_action_out_once,
    acceptances_approved_at_once_reserve_the_listing_for_one,
    an_offer_is_asked_about_once,
    two_approvals_at_once_with_one_counting_passkey_both_end,
    a_handler_may_refuse_what_was_approved,
    a_handler_of_the_marketplaces_own_makes_the_listing_and_sets_its_terms,
    a_4xx_of_a_handler_is_told_as_an_error,
    terms_that_a_handler_refused_leave_no_floor_behind,
    terms_and_floor_are_given_back_together_or_not_at_all,
    an_approval_has_one_end_in_the_record,
    an_operator_that_is_no_longer_onboarded_is_refused_what_was_approved,
);

// ---- Helpers --------------------------------------------------------------------------------------------------------

fn challenge_of(details: &Value) -> String {
    base64url(&sha256(&jcs::canonical(details).unwrap()))
}

/// What the page is given for this approval.
async fn page_of(site: &Hosted, person: &Person, approval: &str) -> Value {
    let path = format!("/approve/{approval}/request");
    let request = site.page_get(&path, Some(person)).await;
    assert_eq!(request.status, 200, "{:?}", request.body);
    assert_eq!(request.headers[header::CACHE_CONTROL], "no-store");
    fits("approval-request", &request.body["approval_request"]);
    request.body
}

/// The decisions on this approval in a chain, as words.
fn decisions(chain: &[Value], approval: &str) -> Vec<String> {
    let of = chain.iter().filter(|e| e["approval_id"] == approval);
    of.map(|e| {
        fits("attestation-entry", e);
        let decision = &e["decision"];
        match decision["reason"].as_str() {
            Some(reason) => format!("forbid {reason}"),
            None => decision["decision"].as_str().unwrap().to_owned(),
        }
    })
    .collect()
}

/// Approved, and refused for this reason all the same.
#[track_caller]
fn forbidden(answer: &Answer, reason: &str) {
    let approval = &answer.body["approval"];
    assert_eq!(answer.status, 200, "{reason}: {:?}", answer.body);
    assert_eq!(approval["status"], "approved", "{reason}: {approval}");
    assert_eq!(approval["decision"]["decision"], "forbid", "{approval}");
    assert_eq!(approval["decision"]["reason"], reason, "{approval}");
    assert_eq!(approval["error"]["error"], reason, "{approval}");
    assert!(approval.get("result").is_none(), "{approval}");
    fits("approval", approval);
}

#[track_caller]
fn carried_out(answer: &Answer) {
    let approval = &answer.body["approval"];
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(approval["status"], "approved", "{approval}");
    assert_eq!(
        approval["decision"],
        json!({"decision": "auto"}),
        "{approval}"
    );
    assert!(approval.get("error").is_none(), "{approval}");
}

/// The body of a page's answer that approves.
fn approving(credential: &Value) -> Value {
    json!({"decision": "approve", "credential": credential})
}

fn response_to(approval: &str) -> String {
    format!("/approvals/{approval}/response")
}

// ---- The whole loop -------------------------------------------------------------------------------------------------

async fn every_verb_is_asked_approved_and_carried_out(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let question = json!({"text": "Has it a bell?"});
    let question = site.buyer_post(&on_listing("/questions"), &question).await;
    let question = question.get("question_id");
    let countered = site.open_offer(FLOOR + 1).await;
    let won = site.open_offer(FLOOR + 2).await;
    let floor = json!({"floor": {"amount": 77_777, "currency": "EUR"}, "deliver_within_days": 9});
    let mut creating = new_listing();
    creating["proposed_terms"] = floor.clone();

    // The verb, where and what the agent asks, and the terms that the seller fills in. The last ones need what the ones
    // before them have done.
    let rows: Vec<(Verb, String, Value, Option<Value>)> = vec![
        (
            Verb::ListingAnswerBuyer,
            on_listing("/answers"),
            json!({"question_id": question, "text": "It has."}),
            None,
        ),
        (
            Verb::ListingReprice,
            on_listing("/price"),
            json!({"price": {"amount": 59_000, "currency": "EUR"}}),
            None,
        ),
        (
            Verb::OfferCounter,
            format!("/offers/{countered}/counter"),
            json!({"deal_terms": deal_terms(55_000)}),
            None,
        ),
        (
            Verb::OfferAccept,
            format!("/offers/{won}/accept"),
            json!({}),
            None,
        ),
        (
            Verb::ListingSetTerms,
            on_listing("/terms"),
            json!({ "proposed_terms": floor }),
            Some(confirmed(45_000)),
        ),
        (
            Verb::ListingCreate,
            "/listings".into(),
            creating,
            Some(confirmed(70_000)),
        ),
    ];
    let mut outcomes = Vec::new();
    for (verb, path, body, terms) in rows {
        outcomes.push(play(&site, &mut anna, verb, &path, &body, terms).await);
    }
    let [answered, repriced, counter, accepted, set, created] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };

    // What each has done.
    assert_eq!(answered["answer"], "It has.");
    let read = site.buyer_get(&on_listing("/questions")).await;
    assert_eq!(read.body["questions"][0], *answered);

    assert_eq!(repriced["list_price"]["amount"], 59_000);
    let listing = site.buyer_get(&on_listing("")).await.body;
    assert_eq!(listing["list_price"]["amount"], 59_000);

    assert_eq!(counter["by"], "seller");
    assert_eq!(counter["supersedes"], countered);
    assert_eq!(counter["deal_terms"], deal_terms(55_000));
    assert_eq!(site.offer_state(&countered).await, "countered");

    assert_eq!(accepted["state"], "accepted");
    assert_eq!(site.offer_state(&won).await, "accepted");
    assert_eq!(listing["state"], "reserved");

    // Binding 4.2: of the terms no value, not even those that the agent proposed.
    assert_eq!(set["listing_id"], LISTING);
    assert_eq!(listing["terms_commitment"], set["terms_commitment"]);
    let members = |value: &Value| value.as_object().unwrap().len();
    assert_eq!((members(set), members(created)), (3, 3));
    let low = site.offer(44_999).await;
    assert_eq!(low.refusal(), (422, "below_floor"));

    let new = created["listing_id"].as_str().unwrap();
    let view = site.buyer_get(&format!("/listings/{new}")).await.body;
    fits("listing", &view);
    assert_eq!(view["state"], "active");
    assert_eq!(view["terms_commitment"], created["terms_commitment"]);
    let mut public = confirmed(70_000);
    public.as_object_mut().unwrap().remove("floor");
    assert_eq!(view["public_terms"], public);
    for (amount, status) in [(69_999, 422), (70_000, 201)] {
        let offer = site.buyer_post("/offers", &offer_on(new, amount)).await;
        assert_eq!(offer.status, status, "{:?}", offer.body);
    }

    // And the deal, which needs the acceptance.
    let checkout = json!({"checkout": accepted["checkout"]});
    let deal = site.buyer_post("/deals", &checkout).await.get("deal_id");
    let path = format!("/deals/{deal}/commit-to-ship");
    let verb = Verb::DealCommitToShip;
    let committed = play(&site, &mut anna, verb, &path, &json!({}), None).await;
    let read = site.buyer_get(&format!("/deals/{deal}")).await.body;
    assert_eq!(read, committed);
    assert!(read["committed_to_ship_at"].is_string(), "{read}");
}

/// One action, from the ask to its outcome, which is returned.
async fn play(
    site: &Hosted,
    anna: &mut Person,
    verb: Verb,
    path: &str,
    body: &Value,
    terms: Option<Value>,
) -> Value {
    let asked = site.seller_post(path, body).await;
    assert_eq!(asked.status, 202, "{verb}: {:?}", asked.body);
    let asked = &asked.body["approval_request"];
    let id = asked["approval_id"].as_str().unwrap();

    // The page has what the agent was told, and for the listing verbs what the form is made of.
    let page = page_of(site, anna, id).await;
    assert_eq!(page["status"], "pending");
    assert_eq!(&page["approval_request"], asked, "{verb}");
    assert_eq!(page.get("prefill").is_some(), terms.is_some(), "{verb}");
    let waiting = site.read(id).await;
    assert_eq!(
        (&waiting["status"], waiting.get("decision")),
        (&json!("pending"), None)
    );

    let details = &asked["authorization_details"][0];
    let answer = match &terms {
        None => {
            assert_eq!(asked["challenge"], challenge_of(details), "{verb}");
            let early = json!({"terms": confirmed(50_000)});
            let none = site
                .page_post(&format!("/approve/{id}/terms"), Some(anna), &early)
                .await;
            assert_eq!(none.refusal(), (400, "invalid_request"), "{verb}");
            site.approve(anna, id).await
        }
        Some(terms) => {
            // B-4: nothing to sign before the terms are filled in.
            assert!(asked.get("challenge").is_none(), "{verb}");
            fits("term-set", &page["term_set"]);
            assert_eq!(page["prefill"]["floor"]["amount"], 77_777, "{verb}");
            assert_eq!(page["prefill"]["deliver_within_days"], 9, "{verb}");
            assert_eq!(
                page["prefill"]["inspection_days"], 3,
                "the category's default"
            );
            let options = format!("/approve/{id}/options");
            let early = site.page_post(&options, Some(anna), &json!({})).await;
            assert_eq!(early.refusal(), (409, "terms_invalid"), "{verb}");

            let (commitment, public_key) = site.fill_in(anna, id, terms).await;
            let page = page_of(site, anna, id).await;
            let mut bound = details.clone();
            bound["terms_commitment"] = json!(commitment);
            bound["list_price"] = page["list_price"].clone();
            assert_eq!(
                page["approval_request"]["authorization_details"],
                json!([bound])
            );
            let challenge = challenge_of(&bound);
            assert_eq!(page["approval_request"]["challenge"], challenge);
            assert_eq!(public_key["challenge"], challenge);
            assert_eq!(public_key["userVerification"], "required");
            assert!(!page["approval_request"].to_string().contains("77777"));

            let credential = anna.browser.get(&public_key).await.unwrap();
            let mut body = approving(&credential);
            body["terms_commitment"] = json!(commitment);
            let answer = site.respond(anna, id, &body).await;
            assert_eq!(
                answer.body["approval"]["result"]["terms_commitment"],
                commitment
            );
            answer
        }
    };
    carried_out(&answer);
    let approval = &answer.body["approval"];
    assert_eq!(site.read(id).await, *approval, "{verb}");
    let page = page_of(site, anna, id).await;
    assert_eq!(page["status"], "approved");
    assert_eq!(page["decision"], json!({"decision": "auto"}));
    assert!(page.get("prefill").is_none() && page.get("term_set").is_none());

    // The ask and what came of it are two entries of one chain.
    let kept = site.kept(id).await;
    let subject = &kept["asked"]["subject"];
    let kind: SubjectKind = serde_json::from_value(subject["type"].clone()).unwrap();
    let chain = site.chain(kind, subject["id"].as_str().unwrap()).await;
    let expected = match verb {
        // Made by the action, its chain begins with the ask all the same.
        Verb::ListingCreate => {
            assert_eq!(chain[0]["approval_id"], id);
            ["ask", "auto"]
        }
        _ => ["ask", "auto"],
    };
    assert_eq!(decisions(&chain, id), expected, "{verb}");
    let last = chain.iter().rfind(|e| e["approval_id"] == id).unwrap();
    for member in ["authenticated_by", "agent_profile", "action"] {
        assert_eq!(last[member], kept["asked"][member], "{verb}: {member}");
    }
    if terms.is_some() {
        assert_eq!(
            last["terms_commitment"],
            approval["result"]["terms_commitment"]
        );
    }
    approval["result"].clone()
}

/// Binding 7: exactly as it was asked.
async fn a_handler_of_the_marketplaces_own_gets_the_action_as_it_was_asked(backing: Backing) {
    type Seen = Arc<Mutex<Vec<(Request<Bytes>, Caller)>>>;
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let seen = Seen::default();
    let eyes = seen.clone();
    let handler = move |request: Request<axum::body::Body>| {
        let eyes = eyes.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 10_000).await.unwrap();
            let caller = parts.extensions.get::<Caller>().unwrap().clone();
            let mut eyes = eyes.lock().unwrap();
            eyes.push((Request::from_parts(parts, body), caller));
            (StatusCode::CREATED, Json(json!({"ours": true})))
        }
    };
    let own = |rctp: &tower_rctp::Rctp| {
        Router::new().route(
            "/offers/{id}/counter",
            on_post(handler).layer(rctp.simple()),
        )
    };
    let store = Arc::new(site.store.clone());
    let (_, service) = site.another(store, own, |b| b);

    let signing = site.open_offer(FLOOR + 1).await;
    let bearer = site.open_offer(FLOOR + 2).await;
    // A body that could be written in many ways, and what a caller might smuggle in beside it.
    let body =
        json!({"deal_terms": deal_terms(55_000), "expires_at": "2026-09-22T15:00:00.5+01:00"});
    let path = format!("/offers/{signing}/counter");
    let mut asked = signed(&site.seller, Some(SELLER_TOKEN), &path, &body, &fresh_key());
    asked
        .headers_mut()
        .insert("x-forwarded-for", "203.0.113.9".parse().unwrap());
    let asked = send_to(&service, asked).await;
    assert_eq!(asked.status, 202, "{:?}", asked.body);
    let other = format!("/offers/{bearer}/counter");
    let by_bearer = common::with_key(common::with_token(
        common::post(&other, &body),
        SELLER_UNBOUND,
    ));
    let by_bearer = send_to(&service, by_bearer).await;
    assert_eq!(by_bearer.status, 202, "{:?}", by_bearer.body);
    assert!(seen.lock().unwrap().is_empty(), "parked, it has not run");

    for (asked, path) in [(&asked, &path), (&by_bearer, &other)] {
        let id = asked.body["approval_request"]["approval_id"]
            .as_str()
            .unwrap();
        let credential = site.credential(&mut anna, id).await;
        // Nothing of the browser's request reaches the handler.
        let click = browser_post(&response_to(id), Some(&anna), &approving(&credential));
        let clicks = vec![with(click, "x-of-the-browser", "yes"); 50];
        let answers = at_once(&service, clicks).await;
        for answer in &answers {
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            assert_eq!(answer.body["approval"]["status"], "approved");
        }
        let again = browser_post(&response_to(id), Some(&anna), &approving(&credential));
        let again = send_to(&service, again).await;
        carried_out(&again);
        assert_eq!(again.body["approval"]["result"], json!({"ours": true}));
        let (request, _) = seen.lock().unwrap().last().unwrap().clone();
        assert_eq!(request.uri().path(), path);
        // Binding 5.1.
        let offer = path.split('/').nth(2).unwrap();
        assert_eq!(site.offer_state(offer).await, "countered");
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2, "each once");
    let (own, client) = (&seen[0].1, &seen[1].1);
    assert_eq!(own.operator, site.seller.profile);
    assert_eq!(own.key.as_ref().unwrap().as_str(), site.seller.kid());
    assert_eq!(own.client_id, None);
    assert_eq!(client.operator, site.seller.profile);
    assert_eq!(client.client_id.as_deref(), Some("client-seller"));
    assert_eq!(client.key, None);
    for caller in [own, client] {
        let duties = caller.duties.as_ref().unwrap();
        assert_eq!(duties.legal_entity, "seller AG");
    }
    for (request, _) in seen.iter() {
        assert_eq!(request.method(), Method::POST);
        let parked: Value = serde_json::from_slice(request.body()).unwrap();
        assert_eq!(parked, body);
        let headers: Vec<&str> = request.headers().keys().map(|name| name.as_str()).collect();
        assert_eq!(headers, ["content-type"]);
    }
}

// ---- Once -----------------------------------------------------------------------------------------------------------

async fn any_number_of_clicks_carries_the_action_out_once(backing: Backing) {
    let site = Hosted::open(backing).await;
    // A passkey that counts must not make the second click a copy of the passkey.
    let mut anna = site.person(SELLER, true).await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let credential = site.credential(&mut anna, &id).await;
    let click = || browser_post(&response_to(&id), Some(&anna), &approving(&credential));
    let answers = at_once(&site.service, (0..50).map(|_| click()).collect()).await;
    for answer in &answers {
        carried_out(answer);
        assert_eq!(answer.body, answers[0].body);
    }
    let chain = site.negotiation_of(&offer).await;
    assert_eq!(decisions(&chain, &id), ["ask", "auto"]);
    assert_eq!(site.listing_state(LISTING).await, "reserved");

    // Later, too; and with an answer of the passkey that proves nothing.
    site.clock.advance(5_000);
    let again = site.send(click()).await;
    assert_eq!((again.status, &again.body), (200, &answers[0].body));
    let commits = site.store.commits();
    let nothing = site.respond(&anna, &id, &approving(&json!({}))).await;
    assert_eq!((nothing.status, &nothing.body), (200, &answers[0].body));
    let declined = site.decline_approval(&anna, &id).await;
    assert_eq!(declined.refusal(), (409, "offer_replayed"));
    assert_eq!(site.store.commits(), commits);
}

async fn approving_and_declining_at_once_have_one_outcome(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..8 {
        let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
        let credential = site.credential(&mut anna, &id).await;
        let path = response_to(&id);
        let requests = (0..20).map(|n| {
            let declines = (n + round) % 2 == 0;
            browser_post(
                &path,
                Some(&anna),
                &match declines {
                    true => json!({"decision": "decline"}),
                    false => approving(&credential),
                },
            )
        });
        let answers = at_once(&site.service, requests.collect()).await;
        let status = site.read(&id).await["status"].as_str().unwrap().to_owned();
        for (n, answer) in answers.iter().enumerate() {
            let wanted = match (n + round) % 2 == 0 {
                true => "declined",
                false => "approved",
            };
            match wanted == status {
                true => {
                    assert_eq!(answer.status, 200, "{:?}", answer.body);
                    assert_eq!(answer.body["approval"]["status"], *status);
                }
                false => assert_eq!(answer.status, 409, "{status}: {:?}", answer.body),
            }
        }
        let chain = site.negotiation_of(&offer).await;
        let (outcome, state) = match &*status {
            "approved" => ("auto", "accepted"),
            _ => ("forbid action_forbidden", "declined"),
        };
        assert_eq!(decisions(&chain, &id), ["ask", outcome]);
        assert_eq!(site.offer_state(&offer).await, state);
        seen.insert(status);
        // The reservation and the bound on asks end.
        site.clock.advance(2_000);
        site.rctp.sweep().await.unwrap();
    }
    assert!(!seen.is_empty());
}

async fn a_click_that_time_has_overtaken_is_409_and_changes_nothing(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let credential = site.credential(&mut anna, &id).await;
    let gate = site.store.wait_at(Call::Commit);
    let click = browser_post(&response_to(&id), Some(&anna), &approving(&credential));
    let service = site.service.clone();
    let click = tokio::spawn(async move { send_to(&service, click).await });
    gate.reached().await;
    site.clock.advance(900);
    site.rctp.sweep().await.unwrap();
    gate.open();
    let late = click.await.unwrap();
    assert_eq!(late.refusal(), (409, "offer_expired"), "{:?}", late.body);
    assert_eq!(site.read(&id).await["status"], "expired");
    assert_eq!(site.offer_state(&offer).await, "expired");
    assert_eq!(site.listing_state(LISTING).await, "active");
    let chain = site.negotiation_of(&offer).await;
    assert_eq!(decisions(&chain, &id), ["ask", "forbid action_forbidden"]);
}

async fn clicks_at_two_gateways_carry_the_action_out_once(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.person(SELLER, true).await;
    let again = site.backing.opened_again().await;
    let (_, beside) = site.another(again, |_| Router::new(), |b| b);
    for _ in 0..3 {
        let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
        let credential = site.credential(&mut anna, &id).await;
        let clicks = || {
            let click = || browser_post(&response_to(&id), Some(&anna), &approving(&credential));
            (0..10).map(|_| click()).collect()
        };
        let (here, there) =
            tokio::join!(at_once(&site.service, clicks()), at_once(&beside, clicks()),);
        for answer in here.iter().chain(&there) {
            carried_out(answer);
            assert_eq!(answer.body, here[0].body);
        }
        let chain = site.negotiation_of(&offer).await;
        assert_eq!(decisions(&chain, &id), ["ask", "auto"]);
        site.clock.advance(2_000);
    }
}

/// Binding 5.3: the reservation is looked at again, in the unit that carries the action out.
async fn acceptances_approved_at_once_reserve_the_listing_for_one(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let mut waiting = Vec::new();
    let mut clicks = Vec::new();
    for n in 0..5 {
        let (offer, id) = site.ask_to_accept(FLOOR + n).await;
        let credential = site.credential(&mut anna, &id).await;
        for _ in 0..3 {
            clicks.push(browser_post(
                &response_to(&id),
                Some(&anna),
                &approving(&credential),
            ));
        }
        waiting.push((offer, id));
    }
    let answers = at_once(&site.service, clicks).await;
    assert!(answers.iter().all(|a| a.status == 200), "{answers:?}");
    let mut accepted = 0;
    let chain = site.negotiation_of(&waiting[0].0).await;
    for (offer, id) in &waiting {
        let state = site.offer_state(offer).await;
        match &*decisions(&chain, id)[1] {
            "auto" => {
                accepted += 1;
                assert_eq!(state, "accepted");
            }
            other => assert_eq!((other, &*state), ("forbid listing_reserved", "open")),
        }
    }
    assert_eq!(accepted, 1);
}

#[tokio::test]
async fn in_four_layers_an_approval_is_carried_out_as_in_one() {
    let site = Hosted::open(Backing::memory().await).await;
    let mut anna = site.seller_person().await;
    let rctp = &site.rctp;
    let four = tower::ServiceBuilder::new()
        .layer(rctp.authenticate())
        .layer(rctp.grant())
        .layer(rctp.idempotency())
        .layer(rctp.decision())
        .service(rctp.market());
    let four = tower::util::BoxCloneSyncService::new(four);
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let (_, declined) = site.ask_to_accept(FLOOR + 2).await;
    let credential = site.credential(&mut anna, &id).await;
    let path = response_to(&id);
    let nobody = browser_post(&path, None, &approving(&credential));
    assert_eq!(send_to(&four, nobody).await.status, 401);
    let click = || browser_post(&path, Some(&anna), &approving(&credential));
    let answers = at_once(&four, (0..20).map(|_| click()).collect()).await;
    answers.iter().for_each(carried_out);
    let decline = browser_post(
        &response_to(&declined),
        Some(&anna),
        &json!({"decision": "decline"}),
    );
    assert_eq!(
        send_to(&four, decline).await.body["approval"]["status"],
        "declined"
    );
    let chain = site.negotiation_of(&offer).await;
    assert_eq!(decisions(&chain, &id), ["ask", "auto"]);
    // A refusal before the decision enters the ask's chain here too.
    let price = json!({"price": {"amount": 59_000, "currency": "EUR"}});
    let id = site.ask(&on_listing("/price"), &price).await;
    let credential = site.credential(&mut anna, &id).await;
    site.grants.revoke(SELLER_TOKEN);
    let click = browser_post(&response_to(&id), Some(&anna), &approving(&credential));
    forbidden(&send_to(&four, click).await, "grant_revoked");
    let chain = site.chain(SubjectKind::Listing, LISTING).await;
    assert_eq!(decisions(&chain, &id), ["ask", "forbid grant_revoked"]);
}

/// R22: one pending ask an offer; and one ask a request.
async fn an_offer_is_asked_about_once(backing: Backing) {
    let site = Hosted::open(backing).await;
    let offer = site.open_offer(FLOOR + 1).await;
    let accept = format!("/offers/{offer}/accept");
    let counter = format!("/offers/{offer}/counter");
    let terms = json!({"deal_terms": deal_terms(55_000)});
    let ask = |path: &str, body: &Value, key: &str| {
        signed(&site.seller, Some(SELLER_TOKEN), path, body, key)
    };
    let (first, second) = (fresh_key(), fresh_key());
    let mut requests = Vec::new();
    for _ in 0..4 {
        requests.push(ask(&accept, &json!({}), &first));
        requests.push(ask(&counter, &terms, &second));
        requests.push(ask(&accept, &json!({}), &fresh_key()));
    }
    let answers = at_once(&site.service, requests).await;
    let asked: Vec<&Answer> = answers.iter().filter(|a| a.status == 202).collect();
    assert!(!asked.is_empty());
    for answer in &asked {
        assert_eq!(answer.body, asked[0].body, "a repeat of the one request");
    }
    for answer in answers.iter().filter(|a| a.status != 202) {
        assert_eq!(answer.refusal(), (409, "offer_replayed"));
    }
    let chain = site.negotiation_of(&offer).await;
    let asks = chain.iter().filter(|e| e["decision"]["decision"] == "ask");
    assert_eq!(asks.count(), 1);
}

/// The counter of one passkey is written with each approval; neither may be lost, nor carried out twice.
async fn two_approvals_at_once_with_one_counting_passkey_both_end(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.person(SELLER, true).await;
    let price = |amount: u64| json!({"price": {"amount": amount, "currency": "EUR"}});
    let mut ids = Vec::new();
    let mut clicks = Vec::new();
    for n in 0..2 {
        let id = site.ask(&on_listing("/price"), &price(58_000 + n)).await;
        let credential = site.credential(&mut anna, &id).await;
        clicks.push(browser_post(
            &response_to(&id),
            Some(&anna),
            &approving(&credential),
        ));
        ids.push(id);
    }
    let answers = at_once(&site.service, clicks).await;
    assert!(answers.iter().any(|a| a.status == 200), "{answers:?}");
    for (id, answer) in ids.iter().zip(&answers) {
        if answer.status != 200 {
            // Nothing was done: another answer of the passkey does it.
            assert_eq!(site.read(id).await["status"], "pending");
            carried_out(&site.approve(&mut anna, id).await);
        }
    }
    let chain = site.chain(SubjectKind::Listing, LISTING).await;
    for id in &ids {
        assert_eq!(decisions(&chain, id), ["ask", "auto"]);
    }
}

/// What the handler itself finds is told as what was decided is; the action was approved, and is not done.
async fn a_handler_may_refuse_what_was_approved(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let handler = || async {
        Err::<(), _>(Refusal::forbid(
            Reason::NotInScope,
            "the bicycle was stolen",
        ))
    };
    let own = |rctp: &tower_rctp::Rctp| {
        let handler = on_post(handler).layer(rctp.simple());
        Router::new().route("/offers/{id}/accept", handler)
    };
    let (_, service) = site.another(Arc::new(site.store.clone()), own, |b| b);
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let credential = site.credential(&mut anna, &id).await;
    let click = || browser_post(&response_to(&id), Some(&anna), &approving(&credential));
    let refused = send_to(&service, click()).await;
    forbidden(&refused, "not_in_scope");
    assert_eq!(site.read(&id).await, refused.body["approval"]);
    assert_eq!(send_to(&service, click()).await.body, refused.body);
    assert_eq!(site.listing_state(LISTING).await, "active", "given back");
    assert_eq!(site.offer_state(&offer).await, "open");
    let chain = site.negotiation_of(&offer).await;
    assert_eq!(
        decisions(&chain, &id).last().unwrap(),
        "forbid not_in_scope"
    );
}

/// Binding 4.2: the agent learns listing, term set and commitment, whatever the marketplace's handler says.
async fn a_handler_of_the_marketplaces_own_makes_the_listing_and_sets_its_terms(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let eyes = seen.clone();
    let handler = move |decided: Decided| {
        let listing = decided
            .facts()
            .listing
            .as_ref()
            .map(|l| l.listing_id.clone());
        let listing = listing.or(decided.new_listing().map(str::to_owned));
        eyes.lock().unwrap().extend(listing);
        // More than anybody may know.
        async {
            (
                StatusCode::CREATED,
                Json(json!({"floor": 77_731, "listing_id": "lst_ours"})),
            )
        }
    };
    let own = |rctp: &tower_rctp::Rctp| {
        Router::new()
            .route("/listings", on_post(handler.clone()).layer(rctp.simple()))
            .route(
                "/listings/{id}/terms",
                on_post(handler).layer(rctp.simple()),
            )
    };
    let (_, service) = site.another(Arc::new(site.store.clone()), own, |b| b);
    for (path, body) in [
        ("/listings".to_owned(), new_listing()),
        (on_listing("/terms"), json!({})),
    ] {
        let id = site.ask(&path, &body).await;
        let (commitment, options) = site.fill_in(&anna, &id, &confirmed(50_000)).await;
        let mut click = approving(&anna.browser.get(&options).await.unwrap());
        click["terms_commitment"] = json!(commitment);
        let click = browser_post(&response_to(&id), Some(&anna), &click);
        let done = send_to(&service, click).await;
        carried_out(&done);
        let listing = seen.lock().unwrap().pop().unwrap();
        let told =
            json!({"listing_id": listing, "term_set": "goods-1", "terms_commitment": commitment});
        assert_eq!(done.body["approval"]["result"], told);
        assert_eq!(site.read(&id).await, done.body["approval"]);
        let view = site.buyer_get(&format!("/listings/{listing}")).await.body;
        assert_eq!(view["terms_commitment"], commitment);
        let low = site
            .buyer_post("/offers", &offer_on(&listing, 49_999))
            .await;
        assert_eq!(low.refusal(), (422, "below_floor"));
    }
}

async fn a_4xx_of_a_handler_is_told_as_an_error(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let handler = || async { (StatusCode::CONFLICT, Json(json!({"ours": "no"}))) };
    let own = |rctp: &tower_rctp::Rctp| {
        let handler = on_post(handler).layer(rctp.simple());
        Router::new().route("/offers/{id}/accept", handler)
    };
    let (_, service) = site.another(Arc::new(site.store.clone()), own, |b| b);
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let credential = site.credential(&mut anna, &id).await;
    let click = browser_post(&response_to(&id), Some(&anna), &approving(&credential));
    let refused = send_to(&service, click).await;
    assert_eq!(refused.status, 200, "{:?}", refused.body);
    assert_eq!(site.offer_state(&offer).await, "open");
    let read = site.read(&id).await;
    assert_eq!(read, refused.body["approval"]);
    assert_eq!(read["status"], "approved");
    assert_eq!(read["error"]["error"], "invalid_request");
    assert!(read.get("result").is_none(), "{read}");
    assert_eq!(site.listing_state(LISTING).await, "active", "given back");
}

// ---- Declined, by the seller or by silence (INV-2) ------------------------------------------------------------------

async fn a_declined_action_is_not_carried_out_and_its_offer_is_declined(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    // R26.
    let (accepting, by_accept) = site.ask_to_accept(FLOOR + 1).await;
    let countering = site.open_offer(FLOOR + 2).await;
    let counter = json!({"deal_terms": deal_terms(55_000)});
    let by_counter = site
        .ask(&format!("/offers/{countering}/counter"), &counter)
        .await;
    let reprice = json!({"price": {"amount": 59_000, "currency": "EUR"}});
    let reprice = site.ask(&on_listing("/price"), &reprice).await;
    let credential = site.credential(&mut anna, &by_accept).await;
    for id in [&by_accept, &by_counter, &reprice] {
        let declined = site.decline_approval(&anna, id).await;
        assert_eq!(declined.status, 200, "{:?}", declined.body);
        let approval = &declined.body["approval"];
        assert_eq!(approval["status"], "declined");
        for none in ["decision", "result", "error"] {
            assert!(approval.get(none).is_none(), "{approval}");
        }
        assert_eq!(site.read(id).await, *approval);
        let again = site.decline_approval(&anna, id).await;
        assert_eq!((again.status, again.body), (200, declined.body.clone()));
    }
    let approved = site
        .respond(&anna, &by_accept, &approving(&credential))
        .await;
    assert_eq!(approved.refusal(), (409, "offer_replayed"));
    for (offer, id) in [(&accepting, &by_accept), (&countering, &by_counter)] {
        assert_eq!(site.offer_state(offer).await, "declined");
        let chain = site.negotiation_of(offer).await;
        assert_eq!(decisions(&chain, id), ["ask", "forbid action_forbidden"]);
    }
    let chain = site.chain(SubjectKind::Listing, LISTING).await;
    assert_eq!(
        decisions(&chain, &reprice),
        ["ask", "forbid action_forbidden"]
    );
    let listing = site.buyer_get(&on_listing("")).await.body;
    assert_eq!(listing["list_price"]["amount"], 60_000);
    assert_eq!(listing["state"], "active");
}

async fn inv_2_silence_is_a_decline_and_enters_the_record(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let credential = site.credential(&mut anna, &id).await;
    let terms = site.ask(&on_listing("/terms"), &json!({})).await;
    site.clock.advance(899);
    assert_eq!(site.read(&id).await["status"], "pending");
    assert_eq!(site.offer_state(&offer).await, "awaiting_approval");
    site.rctp.sweep().await.unwrap();
    assert_eq!(site.read(&id).await["status"], "pending");

    site.clock.advance(1);
    // Judged from the clock, before the sweep comes by and after.
    for swept in [false, true] {
        if swept {
            site.rctp.sweep().await.unwrap();
        }
        assert_eq!(site.read(&id).await["status"], "expired");
        assert_eq!(site.offer_state(&offer).await, "expired");
        for body in [approving(&credential), json!({"decision": "decline"})] {
            let late = site.respond(&anna, &id, &body).await;
            assert_eq!(late.refusal(), (409, "offer_expired"));
        }
        let options = site
            .page_post(&format!("/approve/{id}/options"), Some(&anna), &json!({}))
            .await;
        assert_eq!(options.refusal(), (409, "offer_expired"));
        let fill = json!({"terms": confirmed(50_000)});
        let fill = site
            .page_post(&format!("/approve/{terms}/terms"), Some(&anna), &fill)
            .await;
        assert_eq!(fill.refusal(), (409, "offer_expired"));
        let page = page_of(&site, &anna, &terms).await;
        assert_eq!(page["status"], "expired");
        assert!(page.get("prefill").is_none() && page.get("term_set").is_none());
    }
    assert_eq!(site.listing_state(LISTING).await, "active");
    let silent = ["ask", "forbid action_forbidden"];
    assert_eq!(decisions(&site.negotiation_of(&offer).await, &id), silent);
    let chain = site.chain(SubjectKind::Listing, LISTING).await;
    assert_eq!(decisions(&chain, &terms), silent);
    // Once.
    site.rctp.sweep().await.unwrap();
    assert_eq!(decisions(&site.negotiation_of(&offer).await, &id), silent);
}

// ---- Checked again (R25) --------------------------------------------------------------------------------------------

async fn a_grant_that_was_taken_back_meanwhile_forbids_what_was_approved(backing: Backing) {
    type Change = fn(&mut tower_rctp::protocol::grant::Introspection);
    let table: [(&str, Change); 7] = [
        ("grant_revoked", |i| {
            i.active = false;
            i.grant_status = Some(GrantStatus::Revoked);
        }),
        ("grant_expired", |i| {
            i.active = false;
            i.grant_status = Some(GrantStatus::Expired);
        }),
        ("grant_invalid", |i| *i = Default::default()),
        ("grant_invalid", |i| i.sub = Some("sub_another".into())),
        ("grant_invalid", |i| i.cnf = None),
        ("grant_invalid", |i| {
            i.cnf.as_mut().unwrap().jkt = Some("B".repeat(43));
        }),
        ("action_forbidden", |i| {
            i.scope = Some(Verb::ListingReprice.scope().unwrap().into())
        }),
    ];
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let before = site.grants.tokens.lock().unwrap()[SELLER_TOKEN].clone();
    for (n, (reason, change)) in table.into_iter().enumerate() {
        let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
        let credential = site.credential(&mut anna, &id).await;
        site.grants.change(SELLER_TOKEN, change);
        let answer = site.respond(&anna, &id, &approving(&credential)).await;
        forbidden(&answer, reason);
        // It is final: the grant comes back, the action does not.
        site.grants.set(SELLER_TOKEN, before.clone());
        let again = site.respond(&anna, &id, &approving(&credential)).await;
        assert_eq!(again.body, answer.body, "{n} {reason}");
        assert_eq!(site.read(&id).await, answer.body["approval"]);
        let page = page_of(&site, &anna, &id).await;
        assert_eq!(page["decision"], answer.body["approval"]["decision"]);
        let chain = site.negotiation_of(&offer).await;
        assert_eq!(
            decisions(&chain, &id),
            ["ask".to_owned(), format!("forbid {reason}")]
        );
        let last = chain.last().unwrap();
        assert_eq!(last["agent_profile"], site.seller.profile, "{n}");
        assert_eq!(site.listing_state(LISTING).await, "active");
        // No ask on it waits any more.
        assert_eq!(site.offer_state(&offer).await, "open");
    }
    assert!(
        site.gateway_chain()
            .await
            .iter()
            .all(|e| e.get("approval_id").is_none())
    );
}

async fn the_access_token_may_have_expired_meanwhile(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    // What an authorization server still tells of an expired token (R6).
    site.grants.change(SELLER_TOKEN, |i| {
        i.active = false;
        i.scope = None;
        i.authorization_details.clear();
        i.exp = Some(NOW);
    });
    site.clock.advance(800);
    let none = site.seller_get(&format!("/offers/{offer}")).await;
    assert_eq!(
        none.refusal(),
        (401, "grant_invalid"),
        "it is of no other use"
    );
    carried_out(&site.approve(&mut anna, &id).await);
    assert_eq!(site.offer_state(&offer).await, "accepted");
}

/// An expired token no longer tells the grant's tiers; that of what was asked counts as satisfied.
async fn an_expired_access_token_does_not_lower_the_tier_to_the_default(backing: Backing) {
    let tiers = Tiers::default().offer(Verb::OfferAccept, Tier::Forbid, &[Tier::Ask, Tier::Forbid]);
    let site = Hosted::with(backing, Tier::Ask, |b| b.tiers(tiers)).await;
    let mut anna = site.seller_person().await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    site.grants.change(SELLER_TOKEN, |i| {
        i.active = false;
        i.scope = None;
        i.authorization_details.clear();
    });
    carried_out(&site.approve(&mut anna, &id).await);
    assert_eq!(site.offer_state(&offer).await, "accepted");
}

async fn what_cannot_be_checked_now_stays_pending_and_works_later(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.person(SELLER, true).await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let credential = site.credential(&mut anna, &id).await;
    let click = async || site.respond(&anna, &id, &approving(&credential)).await;
    let commits = site.store.commits();
    site.grants.down.store(true, Ordering::SeqCst);
    assert_eq!(click().await.refusal(), (503, "unavailable"));
    site.grants.down.store(false, Ordering::SeqCst);
    for call in [Call::Load, Call::Windows, Call::Commit] {
        site.store.take_down(call);
        assert_eq!(click().await.refusal(), (503, "unavailable"), "{call:?}");
        if call == Call::Commit {
            let declined = site.decline_approval(&anna, &id).await;
            assert_eq!(declined.refusal(), (503, "unavailable"));
        }
        site.store.mend();
    }
    site.store.cannot_sign();
    assert_eq!(click().await.refusal(), (503, "unavailable"));
    site.store.mend();
    site.store.lose_races(usize::MAX);
    assert_eq!(click().await.refusal(), (503, "unavailable"));
    site.store.lose_races(0);
    assert_eq!(site.store.commits(), commits, "nothing was done");
    assert_eq!(site.read(&id).await["status"], "pending");
    assert_eq!(site.offer_state(&offer).await, "awaiting_approval");
    // The same answer of the passkey, as it was.
    carried_out(&click().await);
    let chain = site.negotiation_of(&offer).await;
    assert_eq!(decisions(&chain, &id), ["ask", "auto"]);
}

async fn what_has_changed_meanwhile_is_judged_again(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;

    // The floor, risen by the seller's own terms (V1).
    let (risen, id) = site.ask_to_accept(FLOOR + 1).await;
    let terms = site.ask(&on_listing("/terms"), &json!({})).await;
    carried_out(&site.confirm(&mut anna, &terms, &confirmed(50_000)).await);
    let answer = site.approve(&mut anna, &id).await;
    forbidden(&answer, "below_floor");
    assert_eq!(answer.body["approval"]["error"]["offer_id"], risen);
    assert!(
        !answer.body.to_string().contains("50000"),
        "{:?}",
        answer.body
    );
    let chain = site.negotiation_of(&risen).await;
    assert_eq!(decisions(&chain, &id), ["ask", "forbid below_floor"]);
    // No ask on it waits any more: it ends at its own time, and can be asked about again.
    assert_eq!(site.offer_state(&risen).await, "open");
    let again = site.accept(&risen).await;
    assert_eq!(again.refusal(), (422, "below_floor"));

    // Its buyer, who takes the offer back.
    let (declined, id) = site.ask_to_accept(51_000).await;
    let back = site
        .buyer_post(&format!("/offers/{declined}/decline"), &json!({}))
        .await;
    assert_eq!(back.status, 200);
    forbidden(&site.approve(&mut anna, &id).await, "offer_replayed");
    assert_eq!(site.offer_state(&declined).await, "declined");

    // The scope, which the marketplace no longer offers; and the tier, which it no longer allows.
    for tiers in [
        Tiers::default().withhold(Verb::OfferAccept),
        Tiers::default().offer(Verb::OfferAccept, Tier::Forbid, &[Tier::Forbid]),
    ] {
        let (_, id) = site.ask_to_accept(52_000).await;
        let store = Arc::new(site.store.clone());
        let (_, stricter) = site.another(store, |_| Router::new(), |b| b.tiers(tiers));
        let credential = site.credential(&mut anna, &id).await;
        let click = browser_post(&response_to(&id), Some(&anna), &approving(&credential));
        forbidden(&send_to(&stricter, click).await, "action_forbidden");
    }

    // The reservation.
    let (_, first) = site.ask_to_accept(53_000).await;
    let (_, second) = site.ask_to_accept(54_000).await;
    carried_out(&site.approve(&mut anna, &first).await);
    forbidden(&site.approve(&mut anna, &second).await, "listing_reserved");

    // The listing, taken back by its seller.
    site.clock.advance(3_600);
    let (_, id) = site.ask_to_accept(53_000).await;
    let reprice = json!({"price": {"amount": 59_000, "currency": "EUR"}});
    let reprice = site.ask(&on_listing("/price"), &reprice).await;
    site.rctp.withdraw(LISTING).await.unwrap();
    for id in [&id, &reprice] {
        forbidden(&site.approve(&mut anna, id).await, "not_in_scope");
    }
}

/// R30: what comes of an ask stands in its chain, also where the listing was never made.
async fn a_listing_that_could_not_be_made_has_the_reason_in_its_chain(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let withheld = Tiers::default().withhold(Verb::ListingCreate);
    for reason in ["action_forbidden", "grant_revoked"] {
        let id = site.ask("/listings", &new_listing()).await;
        let (commitment, options) = site.fill_in(&anna, &id, &confirmed(50_000)).await;
        let mut body = approving(&anna.browser.get(&options).await.unwrap());
        body["terms_commitment"] = json!(commitment);
        let click = browser_post(&response_to(&id), Some(&anna), &body);
        let answer = match reason {
            "action_forbidden" => {
                let store = Arc::new(site.store.clone());
                let tiers = withheld.clone();
                let (_, service) = site.another(store, |_| Router::new(), |b| b.tiers(tiers));
                send_to(&service, click).await
            }
            _ => {
                site.grants.revoke(SELLER_TOKEN);
                site.send(click).await
            }
        };
        forbidden(&answer, reason);
        let kept = site.kept(&id).await;
        let listing = kept["target"].as_str().unwrap();
        let chain = site.chain(SubjectKind::Listing, listing).await;
        assert_eq!(
            decisions(&chain, &id),
            ["ask".to_owned(), format!("forbid {reason}")]
        );
        assert!(
            chain.iter().all(|e| e["listing_id"] == listing),
            "{chain:#?}"
        );
        let absent = site.buyer_get(&format!("/listings/{listing}")).await;
        assert_eq!(absent.status, 404);
    }
}

// ---- Who may answer -------------------------------------------------------------------------------------------------

#[tokio::test]
async fn nobody_but_the_seller_with_their_passkey_on_our_page_answers() {
    let site = Hosted::open(Backing::memory().await).await;
    let mut anna = site.seller_person().await;
    let mut berta = site.person("sub_berta", false).await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let (_, other) = site.ask_to_accept(FLOOR + 2).await;
    let path = response_to(&id);
    let credential = site.credential(&mut anna, &id).await;
    let elsewhere = site.credential(&mut anna, &other).await;
    let page = page_of(&site, &anna, &id).await;
    let challenge = page["approval_request"]["challenge"].as_str().unwrap();
    // Berta's passkey, over the right challenge.
    let allowing =
        json!({"challenge": challenge, "rpId": "gateway.example", "userVerification": "required"});
    let bertas = berta.browser.get(&allowing).await.unwrap();
    // A key of nobody's under the id of Anna's passkey, and under its own.
    let id_of_anna = from_base64url(credential["id"].as_str().unwrap()).unwrap();
    let forged = |id: &[u8]| {
        let forger = Forger::new(id, "gateway.example");
        forger.get(&forger.honest("webauthn.get", GATEWAY, challenge))
    };
    let changed = |at: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut credential = credential.clone();
        let part = credential["response"][at].take();
        let mut bytes = from_base64url(part.as_str().unwrap()).unwrap();
        change(&mut bytes);
        credential["response"][at] = json!(base64url(&bytes));
        credential
    };
    let client_data = |name: &'static str, value: Value| {
        changed("clientDataJSON", &move |bytes| {
            let mut data: Value = serde_json::from_slice(bytes).unwrap();
            data[name] = value.clone();
            *bytes = data.to_string().into_bytes();
        })
    };
    let post = |person, body: &Value| browser_post(&path, person, body);
    let good = approving(&credential);
    let without = |name: &str| {
        let mut request = post(Some(&anna), &good);
        request.headers_mut().remove(name).unwrap();
        request
    };
    let declines = json!({"decision": "decline"});
    let mut table: Vec<(&str, u16, Request<Bytes>)> = vec![
        ("no session", 401, post(None, &good)),
        ("no session", 401, post(None, &declines)),
        ("another seller", 404, post(Some(&berta), &good)),
        ("another seller", 404, post(Some(&berta), &declines)),
        (
            "another seller's passkey",
            404,
            post(Some(&berta), &approving(&bertas)),
        ),
        (
            "another seller's passkey",
            401,
            post(Some(&anna), &approving(&bertas)),
        ),
        (
            "another key",
            401,
            post(Some(&anna), &approving(&forged(&id_of_anna))),
        ),
        (
            "an unknown passkey",
            401,
            post(Some(&anna), &approving(&forged(b"nobody's"))),
        ),
        (
            "another approval's",
            401,
            post(Some(&anna), &approving(&elsewhere)),
        ),
        (
            "no credential",
            400,
            post(Some(&anna), &json!({"decision": "approve"})),
        ),
        (
            "an empty one",
            401,
            post(Some(&anna), &approving(&json!({}))),
        ),
        (
            "one that declines",
            400,
            post(
                Some(&anna),
                &json!({"decision": "decline", "credential": credential}),
            ),
        ),
        (
            "a commitment",
            409,
            post(
                Some(&anna),
                &json!({
                    "decision": "approve", "credential": credential,
                    "terms_commitment": format!("sha-256:{}", "0a".repeat(32)),
                }),
            ),
        ),
        ("no Origin", 403, without("origin")),
        ("no type", 400, without("content-type")),
        (
            "a changed signature",
            401,
            post(
                Some(&anna),
                &approving(&changed("signature", &|b| *b.last_mut().unwrap() ^= 1)),
            ),
        ),
        (
            "changed flags",
            401,
            post(
                Some(&anna),
                &approving(&changed("authenticatorData", &|b| b[32] ^= 0x04)),
            ),
        ),
        (
            "another challenge",
            401,
            post(
                Some(&anna),
                &approving(&client_data("challenge", json!(base64url(&[1; 32])))),
            ),
        ),
        (
            "another origin",
            401,
            post(
                Some(&anna),
                &approving(&client_data("origin", json!("https://evil.example"))),
            ),
        ),
        (
            "a registration",
            401,
            post(
                Some(&anna),
                &approving(&client_data("type", json!("webauthn.create"))),
            ),
        ),
        (
            "in a frame",
            401,
            post(
                Some(&anna),
                &approving(&client_data("crossOrigin", json!(true))),
            ),
        ),
    ];
    for origin in [
        "null",
        "http://gateway.example",
        "https://gateway.example:8443",
        "https://evil.example",
    ] {
        table.push((
            "another Origin",
            403,
            with(post(Some(&anna), &good), "origin", origin),
        ));
    }
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
    ] {
        table.push((
            "another type",
            400,
            with(post(Some(&anna), &good), "content-type", kind),
        ));
    }
    // R27: whatever else they carry.
    for (name, value) in [
        (
            "ucp-agent",
            "profile=\"https://seller.example/.well-known/ucp\"",
        ),
        ("ucp-agent", ""),
        ("signature", "sig1=:AA==:"),
        ("signature-input", "sig1=()"),
    ] {
        table.push(("an agent", 403, with(post(Some(&anna), &good), name, value)));
    }
    for (what, body) in [
        ("no JSON", "{"),
        (
            "twice",
            "{\"decision\":\"decline\",\"decision\":\"approve\"}",
        ),
        ("another word", "{\"decision\":\"yes\"}"),
        ("more", "{\"decision\":\"decline\",\"floor\":1}"),
        ("nothing", ""),
    ] {
        let mut request = post(Some(&anna), &declines);
        *request.body_mut() = Bytes::from_static(body.as_bytes());
        table.push((what, 400, request));
    }
    let commits = site.store.commits();
    for (what, status, request) in table {
        let refused = site.send(request).await;
        assert_eq!(refused.status, status, "{what}: {:?}", refused.body);
        fits("error", &refused.body);
        assert_eq!(refused.decision(), "", "{what}");
    }
    // An agent's signed call with everything that it has is no browser's.
    let agents = signed(&site.seller, Some(SELLER_TOKEN), &path, &good, &fresh_key());
    assert_eq!(site.send(with(agents, "origin", GATEWAY)).await.status, 403);
    assert_eq!(site.store.commits(), commits);
    assert_eq!(site.read(&id).await["status"], "pending");
    assert_eq!(site.offer_state(&offer).await, "awaiting_approval");
    // And as it should be.
    carried_out(&site.send(post(Some(&anna), &good)).await);
    // What was used is of no use for another.
    let replayed = site.respond(&anna, &other, &good).await;
    assert_eq!(replayed.refusal(), (401, "signature_invalid"));
    assert_eq!(site.read(&other).await["status"], "pending");
}

#[tokio::test]
async fn an_approval_is_nothing_to_agents_but_to_read() {
    let site = Hosted::open(Backing::memory().await).await;
    let (_, id) = site.ask_to_accept(FLOOR + 1).await;
    for (method, path) in [
        ("GET", format!("/approve/{id}")),
        ("GET", "/approve".to_owned()),
        ("GET", "/approve/pending".into()),
        ("GET", format!("/approve/{id}/request")),
        ("GET", "/signin".into()),
        ("GET", "/enroll".into()),
        ("GET", "/pages/pages.js".into()),
        ("POST", format!("/approve/{id}/terms")),
        ("POST", format!("/approve/{id}/options")),
        ("POST", "/signin/options".into()),
        ("POST", "/enroll/options".into()),
        ("POST", response_to(&id)),
    ] {
        for signs in [true, false] {
            let mut request = match method {
                "GET" => common::get(&path),
                _ => browser_post(&path, None, &json!({})),
            };
            match signs {
                true => site.seller.signer.sign(&mut request).unwrap(),
                false => {
                    let profile = format!("profile=\"{}\"", site.seller.profile);
                    request = with(request, "ucp-agent", &profile);
                }
            }
            let refused = site.send(request).await;
            assert_eq!(
                refused.refusal(),
                (403, "action_forbidden"),
                "{method} {path}"
            );
        }
    }
    // Without any sign of an agent they are somebody who has not signed in.
    for path in [
        "/approve/pending".to_owned(),
        format!("/approve/{id}/request"),
    ] {
        assert_eq!(site.page_get(&path, None).await.status, 401, "{path}");
        let bearer = common::with_token(browser_get(&path, None), SELLER_TOKEN);
        assert_eq!(site.send(bearer).await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_seller_sees_what_waits_for_them_and_nothing_of_others() {
    let site = Hosted::open(Backing::memory().await).await;
    let mut anna = site.seller_person().await;
    let berta = site.person("sub_berta", false).await;
    let (_, first) = site.ask_to_accept(FLOOR + 1).await;
    site.clock.advance(10);
    let (_, second) = site.ask_to_accept(FLOOR + 2).await;
    site.clock.advance(10);
    let terms = site.ask(&on_listing("/terms"), &json!({})).await;
    carried_out(&site.approve(&mut anna, &first).await);
    let list = site.page_get("/approve/pending", Some(&anna)).await;
    assert_eq!(list.body["seller"], SELLER);
    let listed = |list: &Answer| -> Vec<(String, String)> {
        let items = list.body["approvals"].as_array().unwrap();
        items
            .iter()
            .map(|item| {
                assert_eq!(item["display"]["title"], "A bicycle");
                assert_eq!(item["display"]["legal_entity"], "seller AG");
                let text = |name: &str| item[name].as_str().unwrap().to_owned();
                (text("approval_id"), text("status"))
            })
            .collect()
    };
    let with_status = |id: &str, status: &str| (id.to_owned(), status.to_owned());
    assert_eq!(
        listed(&list),
        [
            with_status(&second, "pending"),
            with_status(&terms, "pending"),
            with_status(&first, "approved"),
        ]
    );
    let none = site.page_get("/approve/pending", Some(&berta)).await;
    assert_eq!(none.body, json!({"seller": "sub_berta", "approvals": []}));
    for path in [
        format!("/approve/{first}/request"),
        "/approve/apr_unknown/request".to_owned(),
    ] {
        let absent = site.page_get(&path, Some(&berta)).await;
        assert_eq!(absent.refusal(), (404, "not_found"));
    }
    for (path, body) in [
        (format!("/approve/{second}/options"), json!({})),
        (
            format!("/approve/{terms}/terms"),
            json!({"terms": confirmed(50_000)}),
        ),
    ] {
        let absent = site.page_post(&path, Some(&berta), &body).await;
        assert_eq!(absent.refusal(), (404, "not_found"));
    }
    assert_eq!(site.kept(&terms).await.get("draft"), None);
    // What was answered leaves the list after a day, and time answers the rest.
    site.clock.advance(1_000);
    let list = site.page_get("/approve/pending", Some(&anna)).await;
    let statuses: Vec<String> = listed(&list).into_iter().map(|(_, s)| s).collect();
    assert_eq!(statuses, ["expired", "expired", "approved"]);
    site.clock.advance(86_400);
    let mut anna = anna;
    sign_in(&site, &mut anna).await;
    let list = site.page_get("/approve/pending", Some(&anna)).await;
    assert_eq!(listed(&list), []);
}

#[tokio::test]
async fn what_waits_is_listed_whole_and_of_what_was_answered_the_last_twenty() {
    let backing = Backing::memory().await;
    let site = Hosted::with(backing, Tier::Ask, |b| b.limits(limits(1_000, 1_000))).await;
    let anna = site.seller_person().await;
    let price = json!({"price": {"amount": 59_000, "currency": "EUR"}});
    let mut ids = Vec::new();
    for _ in 0..130 {
        ids.push(site.ask(&on_listing("/price"), &price).await);
        site.clock.advance(1);
    }
    let (answered, waiting) = ids.split_at(25);
    for id in answered {
        assert_eq!(site.decline_approval(&anna, id).await.status, 200);
    }
    let list = site.page_get("/approve/pending", Some(&anna)).await;
    let items = list.body["approvals"].as_array().unwrap();
    let listed: Vec<&str> = items
        .iter()
        .map(|i| i["approval_id"].as_str().unwrap())
        .collect();
    let newest = answered.iter().rev().take(20);
    let expected: Vec<&str> = waiting.iter().chain(newest).map(String::as_str).collect();
    assert_eq!(listed, expected);
}

/// The seller signs in again, with their passkey.
async fn sign_in(site: &Hosted, person: &mut Person) {
    let options = site.page_post("/signin/options", None, &json!({})).await;
    let credential = person
        .browser
        .get(&options.body["publicKey"])
        .await
        .unwrap();
    let body = json!({"state": options.body["state"], "credential": credential});
    let done = site.page_post("/signin/complete", None, &body).await;
    assert_eq!(done.status, 200, "{:?}", done.body);
    person.cookie = cookie(&done);
    // Once.
    let again = site.page_post("/signin/complete", None, &body).await;
    assert_eq!(again.refusal(), (401, "signature_invalid"));
    assert!(!again.headers.contains_key(header::SET_COOKIE));
}

#[tokio::test]
async fn a_session_begins_with_the_passkey_and_ends_by_hand_or_by_time() {
    let site = Hosted::open(Backing::memory().await).await;
    let mut anna = site.seller_person().await;
    let signed_in = async |person: &Person| {
        let list = site.page_get("/approve/pending", Some(person)).await;
        list.status == 200
    };
    assert!(signed_in(&anna).await);
    let out = site.page_post("/signout", Some(&anna), &json!({})).await;
    assert_eq!(out.status, 204);
    let cleared = out.headers[header::SET_COOKIE].to_str().unwrap();
    assert!(cleared.contains("Max-Age=0"), "{cleared}");
    site.clock.advance(12 * 3600);
    assert!(!signed_in(&anna).await);
    sign_in(&site, &mut anna).await;
    assert!(signed_in(&anna).await);
}

#[tokio::test]
async fn a_ticket_enrols_one_passkey() {
    let site = Hosted::open(Backing::memory().await).await;
    let ticket = site.tickets.give(SELLER);
    let asked = json!({"ticket": ticket});
    let mut browsers = [
        authenticator::Browser::at(GATEWAY, false),
        authenticator::Browser::at(GATEWAY, false),
    ];
    let mut bodies = Vec::new();
    for browser in &mut browsers {
        let options = site.page_post("/enroll/options", None, &asked).await;
        let credential = browser.create(&options.body["publicKey"]).await.unwrap();
        bodies.push(
            json!({"ticket": ticket, "state": options.body["state"], "credential": credential}),
        );
    }
    let requests = bodies
        .iter()
        .map(|body| browser_post("/enroll/complete", None, body));
    let answers = at_once(&site.service, requests.collect()).await;
    let mut statuses: Vec<u16> = answers.iter().map(|a| a.status).collect();
    statuses.sort_unstable();
    assert!(
        statuses == [201, 401] || statuses == [201, 400],
        "{statuses:?}"
    );
    for unknown in [&*ticket, "ticket-nobody-has"] {
        let body = json!({ "ticket": unknown });
        let refused = site.page_post("/enroll/options", None, &body).await;
        assert_eq!(refused.refusal(), (400, "invalid_request"));
    }
    // The other browser's passkey is none of ours.
    let lost = answers.iter().position(|a| a.status != 201).unwrap();
    let (_, id) = site.ask_to_accept(FLOOR + 1).await;
    let winner = answers.iter().find(|a| a.status == 201).unwrap();
    let [a, b] = browsers;
    let (theirs, other) = if lost == 1 { (a, b) } else { (b, a) };
    let mut anna = Person {
        browser: theirs,
        cookie: cookie(winner),
    };
    let mut stranger = Person {
        browser: other,
        cookie: cookie(winner),
    };
    let page = page_of(&site, &anna, &id).await;
    let challenge = &page["approval_request"]["challenge"];
    let options =
        json!({"challenge": challenge, "rpId": "gateway.example", "userVerification": "required"});
    let credential = stranger.browser.get(&options).await.unwrap();
    let refused = site.respond(&stranger, &id, &approving(&credential)).await;
    assert_eq!(refused.refusal(), (401, "signature_invalid"));
    carried_out(&site.approve(&mut anna, &id).await);
}

// ---- Terms ----------------------------------------------------------------------------------------------------------

async fn only_the_latest_terms_can_be_approved(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let id = site.ask("/listings", &new_listing()).await;
    let approve = |credential: &Value, commitment: Option<&str>| {
        let mut body = approving(credential);
        if let Some(commitment) = commitment {
            body["terms_commitment"] = json!(commitment);
        }
        body
    };
    let (first, options) = site.fill_in(&anna, &id, &confirmed(50_000)).await;
    let of_first = anna.browser.get(&options).await.unwrap();
    let (second, options) = site.fill_in(&anna, &id, &confirmed(50_000)).await;
    assert_ne!(first, second, "a fresh salt each time");
    let of_second = anna.browser.get(&options).await.unwrap();
    for (what, status, body) in [
        ("the former ones", 409, approve(&of_first, Some(&first))),
        ("the former answer", 401, approve(&of_first, Some(&second))),
        (
            "the former commitment",
            409,
            approve(&of_second, Some(&first)),
        ),
        ("no commitment", 409, approve(&of_second, None)),
    ] {
        let refused = site.respond(&anna, &id, &body).await;
        assert_eq!(refused.status, status, "{what}: {:?}", refused.body);
        assert_eq!(site.read(&id).await["status"], "pending", "{what}");
    }
    // Others are filled in while these are on their way.
    let gate = site.store.wait_at(Call::Commit);
    let click = browser_post(
        &response_to(&id),
        Some(&anna),
        &approve(&of_second, Some(&second)),
    );
    let service = site.service.clone();
    let click = tokio::spawn(async move { send_to(&service, click).await });
    gate.reached().await;
    let (third, options) = site.fill_in(&anna, &id, &confirmed(60_000)).await;
    gate.open();
    let overtaken = click.await.unwrap();
    assert_eq!(overtaken.status, 409, "{:?}", overtaken.body);
    assert_eq!(site.read(&id).await["status"], "pending");

    let of_third = anna.browser.get(&options).await.unwrap();
    let done = site
        .respond(&anna, &id, &approve(&of_third, Some(&third)))
        .await;
    carried_out(&done);
    let listing = done.body["approval"]["result"]["listing_id"]
        .as_str()
        .unwrap();
    let low = site.buyer_post("/offers", &offer_on(listing, 59_999)).await;
    assert_eq!(low.refusal(), (422, "below_floor"));
}

// ---- Restarts and what is kept --------------------------------------------------------------------------------------

async fn an_approval_outlives_a_restart(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let listing = site.ask("/listings", &new_listing()).await;
    let (commitment, options) = site.fill_in(&anna, &listing, &confirmed(50_000)).await;
    let credential = site.credential(&mut anna, &id).await;
    let of_terms = anna.browser.get(&options).await.unwrap();

    let again = site.backing.opened_again().await;
    let (rctp, service) = site.another(again, |_| Router::new(), |b| b);
    let post = async |id: &str, body: Value| {
        send_to(&service, browser_post(&response_to(id), Some(&anna), &body)).await
    };
    // The session, the passkey, the parked token, the terms: all of it is as it was.
    carried_out(&post(&id, approving(&credential)).await);
    let mut body = approving(&of_terms);
    body["terms_commitment"] = json!(commitment);
    carried_out(&post(&listing, body).await);
    assert_eq!(site.offer_state(&offer).await, "accepted");
    let read = site.read(&listing).await;
    let listing = read["result"]["listing_id"].as_str().unwrap();
    let view = site.buyer_get(&format!("/listings/{listing}")).await.body;
    assert_eq!(view["terms_commitment"], commitment);
    drop(rctp);
}

async fn what_was_parked_is_gone_once_the_approval_has_ended(backing: Backing) {
    const PROPOSED: u64 = 77_731;
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let proposing = json!({"proposed_terms": {"floor": {"amount": PROPOSED, "currency": "EUR"}}});
    let mut ids = Vec::new();
    for _ in 0..4 {
        let id = site.ask(&on_listing("/terms"), &proposing).await;
        site.fill_in(&anna, &id, &confirmed(50_017)).await;
        let kept = site.kept(&id).await;
        assert_eq!(kept["body"], proposing);
        assert!(kept["draft"].is_object() && kept["token"].is_string());
        assert!(!kept.to_string().contains(SELLER_TOKEN), "sealed");
        ids.push(id);
    }
    carried_out(&site.confirm(&mut anna, &ids[0], &confirmed(50_017)).await);
    assert_eq!(site.decline_approval(&anna, &ids[1]).await.status, 200);
    site.grants.revoke(SELLER_TOKEN);
    forbidden(
        &site.confirm(&mut anna, &ids[2], &confirmed(50_017)).await,
        "grant_revoked",
    );
    site.clock.advance(1_000);
    site.rctp.sweep().await.unwrap();
    for (id, status) in ids
        .iter()
        .zip(["approved", "declined", "approved", "expired"])
    {
        let kept = site.kept(id).await;
        assert_eq!(kept["status"], status);
        assert_eq!(kept["body"], Value::Null, "{status}");
        assert!(
            kept.get("draft").is_none() && kept.get("token").is_none(),
            "{status}"
        );
        for canary in [PROPOSED, 50_017] {
            assert!(!kept.to_string().contains(&canary.to_string()), "{status}");
        }
    }
}

/// R25: whoever reads the file of the store cannot act for the seller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_access_token_is_not_readable_in_the_file() {
    let site = Hosted::open(Backing::sqlite().await).await;
    let (_, id) = site.ask_to_accept(FLOOR + 1).await;
    let file = site.backing.bytes();
    let holds = |text: &str| file.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(holds(&id), "it is the right file");
    assert!(!holds(SELLER_TOKEN));
    assert!(!holds(&base64url(SELLER_TOKEN.as_bytes())));
    let kept = site.kept(&id).await;
    assert!(kept["token"].as_str().unwrap().len() > SELLER_TOKEN.len());
}

/// What was parked is sealed with the gateway's key. The passkeys and the record outlive a new one; the session and the
/// parked tokens do not.
#[tokio::test]
async fn with_another_key_of_the_gateway_what_was_parked_is_forbidden() {
    let site = Hosted::open(Backing::memory().await).await;
    let mut anna = site.seller_person().await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let former = site.gateway_key.public_jwk();
    let store = Arc::new(site.store.clone());
    let (_, service) = site.another(
        store,
        |_| Router::new(),
        |b| {
            b.signing_key(SigningKey::generate().unwrap())
                .former_key(former)
        },
    );
    let path = format!("/approve/{id}/options");
    let request = browser_post(&path, Some(&anna), &json!({}));
    assert_eq!(send_to(&service, request).await.status, 401);
    let options = send_to(&service, browser_post("/signin/options", None, &json!({}))).await;
    let credential = anna.browser.get(&options.body["publicKey"]).await.unwrap();
    let body = json!({"state": options.body["state"], "credential": credential});
    let done = send_to(&service, browser_post("/signin/complete", None, &body)).await;
    anna.cookie = cookie(&done);
    let options = send_to(&service, browser_post(&path, Some(&anna), &json!({}))).await;
    let credential = anna.browser.get(&options.body["publicKey"]).await.unwrap();
    let click = browser_post(&response_to(&id), Some(&anna), &approving(&credential));
    forbidden(&send_to(&service, click).await, "grant_invalid");
    assert_eq!(site.offer_state(&offer).await, "open");
}

// ---- Bounds (R29) ---------------------------------------------------------------------------------------------------

fn limits(per_listing: u32, per_agent: u32) -> Limits {
    Limits {
        asks_per_listing: per_listing,
        asks_per_agent: per_agent,
        ..Limits::default()
    }
}

async fn asks_are_bounded_per_listing(backing: Backing) {
    let site = Hosted::with(backing, Tier::Ask, |b| b.limits(limits(2, 50))).await;
    let mut anna = site.seller_person().await;
    let mut offers = Vec::new();
    for n in 0..3 {
        offers.push(site.open_offer(FLOOR + 1 + n).await);
    }
    let accept = async |n: usize, token: &str| {
        let path = format!("/offers/{}/accept", offers[n]);
        match token {
            SELLER_TOKEN => site.seller_post(&path, &json!({})).await,
            token => site.oauth_post(token, &path, &json!({})).await,
        }
    };
    assert_eq!(accept(0, SELLER_TOKEN).await.status, 202);
    site.clock.advance(100);
    // Whichever of the seller's agents asks.
    assert_eq!(accept(1, SELLER_UNBOUND).await.status, 202);
    let enough = accept(2, SELLER_TOKEN).await;
    assert_eq!(enough.refusal(), (429, "offer_budget_exhausted"));
    assert_eq!(enough.body["retry_after"], 800);
    assert_eq!(enough.headers["retry-after"], "800");
    let stated = "forbid;action=\"offer.accept\";reason=offer_budget_exhausted;retry_after=800";
    assert_eq!(enough.decision(), stated);
    assert_eq!(site.offer_state(&offers[2]).await, "open");
    // An answer does not make room; another listing has room of its own.
    let asked = site.page_get("/approve/pending", Some(&anna)).await;
    let first = asked.body["approvals"][0]["approval_id"].as_str().unwrap();
    let first = first.to_owned();
    assert_eq!(site.decline_approval(&anna, &first).await.status, 200);
    assert_eq!(accept(2, SELLER_TOKEN).await.status, 429);
    site.publish("lst_other", SELLER, common::public_terms())
        .await;
    let price = json!({"price": {"amount": 59_000, "currency": "EUR"}});
    let elsewhere = site.seller_post("/listings/lst_other/price", &price).await;
    assert_eq!(elsewhere.status, 202);
    // The window moves.
    site.clock.advance(799);
    assert_eq!(accept(2, SELLER_TOKEN).await.status, 429);
    site.clock.advance(1);
    let asked = accept(2, SELLER_TOKEN).await;
    assert_eq!(asked.status, 202, "{:?}", asked.body);
    let id = asked.body["approval_request"]["approval_id"]
        .as_str()
        .unwrap();
    carried_out(&site.approve(&mut anna, id).await);
}

async fn asks_are_bounded_per_agent(backing: Backing) {
    let site = Hosted::with(backing, Tier::Ask, |b| b.limits(limits(50, 3))).await;
    // Concurrent asks do not exceed it.
    let path = "/listings";
    let ask = |agent, token| signed(agent, Some(token), path, &new_listing(), &fresh_key());
    let requests = (0..10).map(|_| ask(&site.seller, SELLER_TOKEN));
    let answers = at_once(&site.service, requests.collect()).await;
    let count = |status| answers.iter().filter(|a| a.status == status).count();
    assert_eq!((count(202), count(429)), (3, 7));
    for refused in answers.iter().filter(|a| a.status == 429) {
        assert_eq!(refused.body["retry_after"], 900);
    }
    // Another agent of the same seller, and the same agent for another seller, are others.
    let other = site.oauth_post(SELLER_UNBOUND, path, &new_listing()).await;
    assert_eq!(other.status, 202);
    let jkt = Some(site.seller.kid());
    let token = grant("sub_berta", "client-seller", jkt, Tier::Ask, NOW + 10_000);
    site.grants.set("token-berta", token);
    assert_eq!(
        site.send(ask(&site.seller, "token-berta")).await.status,
        202
    );
    site.clock.advance(900);
    assert_eq!(site.send(ask(&site.seller, SELLER_TOKEN)).await.status, 202);
}

// ---- The pages ------------------------------------------------------------------------------------------------------

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

#[tokio::test]
async fn pages_let_nothing_in_from_elsewhere_and_hold_nothing_of_anybody() {
    let site = Hosted::open(Backing::memory().await).await;
    let anna = site.seller_person().await;
    let proposing = json!({"proposed_terms": {"floor": {"amount": 77_731, "currency": "EUR"}}});
    let terms = site.ask(&on_listing("/terms"), &proposing).await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let nothing = |text: &str, what: &str| {
        for data in [
            "77731",
            "41238",
            "A bicycle",
            "seller AG",
            SELLER,
            &*id,
            &*terms,
            &*offer,
            site.seller.kid(),
        ] {
            assert!(!text.contains(data), "{what} tells {data}");
        }
    };
    for path in [
        "/approve".to_owned(),
        format!("/approve/{id}"),
        format!("/approve/{terms}"),
        "/approve/apr_unknown".into(),
        "/enroll".into(),
        "/enroll?ticket=x".into(),
        "/signin".into(),
        "/signin?return_to=/approve".into(),
    ] {
        // With a session and without one they are the same.
        let mut texts = Vec::new();
        for person in [Some(&anna), None] {
            let page = site.page_get(&path, person).await;
            assert_eq!(page.status, 200, "{path}");
            for (name, value) in [
                ("content-type", "text/html; charset=utf-8"),
                ("content-security-policy", POLICY),
                ("cache-control", "no-store"),
                ("referrer-policy", "no-referrer"),
                ("x-content-type-options", "nosniff"),
                ("x-frame-options", "DENY"),
                ("cross-origin-opener-policy", "same-origin"),
            ] {
                assert_eq!(page.headers[name], value, "{path}: {name}");
            }
            assert!(!page.headers.contains_key(header::SET_COOKIE), "{path}");
            let text = String::from_utf8(page.bytes.to_vec()).unwrap();
            nothing(&text, &path);
            // Nothing inline that the policy would refuse, and nothing of another origin.
            assert!(
                !text.contains("http://") && !text.contains("//cdn"),
                "{path}"
            );
            assert!(
                !text.contains(" onclick=") && !text.contains("<style"),
                "{path}"
            );
            for script in text.split("<script").skip(1) {
                let tag = script.split('>').next().unwrap();
                let data = tag.contains("type=\"application/json\"");
                assert!(data || tag.contains("src=\"/pages/"), "{path}: {tag}");
            }
            texts.push(text);
        }
        assert_eq!(texts[0], texts[1], "{path}");
    }
    for (file, kind) in [
        ("pages.css", "text/css; charset=utf-8"),
        ("pages.js", "text/javascript; charset=utf-8"),
        ("approve.js", "text/javascript; charset=utf-8"),
        ("list.js", "text/javascript; charset=utf-8"),
        ("enroll.js", "text/javascript; charset=utf-8"),
        ("signin.js", "text/javascript; charset=utf-8"),
    ] {
        let path = format!("/pages/{file}");
        let found = site.page_get(&path, None).await;
        assert_eq!(found.status, 200, "{file}");
        assert_eq!(found.headers["content-type"], kind, "{file}");
        assert_eq!(found.headers["x-content-type-options"], "nosniff", "{file}");
        nothing(std::str::from_utf8(&found.bytes).unwrap(), file);
        let etag = found.headers["etag"].to_str().unwrap();
        let known = with(browser_get(&path, None), "if-none-match", etag);
        let known = site.send(known).await;
        assert_eq!((known.status, known.bytes.len()), (304, 0), "{file}");
    }
    for path in [
        "/pages/",
        "/pages/x.js",
        "/pages/..%2fshell.html",
        "/approve/x/y",
        "/enroll/x",
        "/signin/x",
    ] {
        assert_eq!(site.page_get(path, None).await.status, 404, "{path}");
    }
    // What is answered with data is for no cache.
    for path in [
        "/approve/pending".to_owned(),
        format!("/approve/{terms}/request"),
    ] {
        let json = site.page_get(&path, Some(&anna)).await;
        assert_eq!(json.headers["cache-control"], "no-store");
        assert_eq!(json.headers["content-type"], "application/json");
    }
}

#[tokio::test]
async fn pages_take_posts_from_themselves_only() {
    let site = Hosted::open(Backing::memory().await).await;
    let anna = site.seller_person().await;
    let terms = site.ask(&on_listing("/terms"), &json!({})).await;
    let (_, id) = site.ask_to_accept(FLOOR + 1).await;
    let commits = site.store.commits();
    for (path, body) in [
        (
            format!("/approve/{terms}/terms"),
            json!({"terms": confirmed(50_000)}),
        ),
        (format!("/approve/{id}/options"), json!({})),
        ("/signin/options".into(), json!({})),
        (
            "/signin/complete".into(),
            json!({"state": "x", "credential": {}}),
        ),
        ("/signout".into(), json!({})),
        ("/enroll/options".into(), json!({"ticket": "x"})),
        (
            "/enroll/complete".into(),
            json!({"ticket": "x", "state": "x", "credential": {}}),
        ),
    ] {
        let post = || browser_post(&path, Some(&anna), &body);
        let mut none = post();
        none.headers_mut().remove("origin");
        let mut untyped = post();
        untyped.headers_mut().remove("content-type");
        let mut twice = post();
        twice
            .headers_mut()
            .append("origin", GATEWAY.parse().unwrap());
        let mut large = post();
        *large.body_mut() = Bytes::from(vec![b' '; 70_000]);
        for (what, status, request) in [
            ("no Origin", 403, none),
            (
                "another Origin",
                403,
                with(post(), "origin", "https://evil.example"),
            ),
            ("a page without one", 403, with(post(), "origin", "null")),
            ("two", 403, twice),
            ("no type", 400, untyped),
            (
                "a form",
                400,
                with(post(), "content-type", "application/x-www-form-urlencoded"),
            ),
            ("text", 400, with(post(), "content-type", "text/plain")),
            ("too large", 413, large),
        ] {
            let refused = site.send(request).await;
            assert_eq!(refused.status, status, "{path}, {what}: {:?}", refused.body);
            assert!(
                !refused.headers.contains_key(header::SET_COOKIE),
                "{path}, {what}"
            );
        }
        let mut more = body.clone();
        more["x"] = json!(1);
        let refused = site.page_post(&path, Some(&anna), &more).await;
        assert_eq!(refused.refusal(), (400, "invalid_request"), "{path}");
        for method in [Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
            let mut request = post();
            *request.method_mut() = method.clone();
            assert_eq!(site.send(request).await.status, 404, "{method} {path}");
        }
    }
    assert_eq!(site.store.commits(), commits);
}

/// Binding 2: the seller consented to one operator's agent; a key of another operator does not make the grant its own.
#[tokio::test]
async fn a_grant_to_one_operators_client_is_not_used_by_another_operators_agent() {
    let site = Hosted::open(Backing::memory().await).await;
    let jkt = Some(site.seller.kid());
    let exp = NOW + 10_000;
    for (client, refusal) in [
        ("client-buyer", (401, "grant_invalid")),
        ("client-of-nobody-here", (200, "")),
        ("client-seller", (200, "")),
    ] {
        site.grants
            .set("token-x", grant(SELLER, client, jkt, Tier::Auto, exp));
        let path = format!("/offers?listing_id={LISTING}");
        let mut request = common::with_token(common::get(&path), "token-x");
        site.seller.signer.sign(&mut request).unwrap();
        let answer = site.send(request).await;
        assert_eq!((answer.status, answer.error()), refusal, "{client}");
    }
}

// ---- What came to nothing leaves nothing behind ---------------------------------------------------------------------

async fn terms_that_a_handler_refused_leave_no_floor_behind(backing: Backing) {
    let site = Hosted::with(backing, Tier::Auto, |b| b).await;
    let mut anna = site.seller_person().await;
    let made = site.seller_post("/listings", &new_listing()).await;
    assert_eq!(made.status, 201, "{:?}", made.body);
    let listing = made.get("listing_id");
    let handler = || async { (StatusCode::CONFLICT, Json(json!({"ours": "no"}))) };
    let own = |rctp: &tower_rctp::Rctp| {
        Router::new().route(
            "/listings/{id}/terms",
            on_post(handler).layer(rctp.simple()),
        )
    };
    let (_, service) = site.another(Arc::new(site.store.clone()), own, |b| b);
    let id = site
        .ask(&format!("/listings/{listing}/terms"), &json!({}))
        .await;
    let (commitment, options) = site.fill_in(&anna, &id, &confirmed(50_000)).await;
    let mut click = approving(&anna.browser.get(&options).await.unwrap());
    click["terms_commitment"] = json!(commitment);
    let click = browser_post(&response_to(&id), Some(&anna), &click);
    assert_eq!(send_to(&service, click).await.status, 200);
    let view = site.buyer_get(&format!("/listings/{listing}")).await.body;
    assert!(view.get("terms_commitment").is_none(), "{view}");
    // R17: no floor and no budget, so that every price passes and none tells anything.
    for price in [1, 49_999, 50_000] {
        let offer = site.buyer_post("/offers", &offer_on(&listing, price)).await;
        assert_eq!(offer.status, 201, "{price}: {:?}", offer.body);
    }
}

async fn terms_and_floor_are_given_back_together_or_not_at_all(backing: Backing) {
    let site = Hosted::with(backing, Tier::Auto, |b| b).await;
    let mut anna = site.seller_person().await;
    let (gate, here) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(tokio::sync::Notify::new()),
    );
    let (opened, arrived) = (gate.clone(), here.clone());
    let handler = move || {
        let (opened, arrived) = (opened.clone(), arrived.clone());
        async move {
            arrived.notify_one();
            opened.notified().await;
            (StatusCode::CONFLICT, Json(json!({"ours": "no"})))
        }
    };
    let own = |rctp: &tower_rctp::Rctp| {
        Router::new().route(
            "/listings/{id}/terms",
            on_post(handler).layer(rctp.simple()),
        )
    };
    let (_, service) = site.another(Arc::new(site.store.clone()), own, |b| b);
    let seen = async || site.buyer_get(&on_listing("")).await.body["terms_commitment"].clone();
    let before = seen().await;
    let id = site.ask(&on_listing("/terms"), &json!({})).await;
    let (commitment, options) = site.fill_in(&anna, &id, &confirmed(55_000)).await;
    let mut click = approving(&anna.browser.get(&options).await.unwrap());
    click["terms_commitment"] = json!(commitment);
    let click = browser_post(&response_to(&id), Some(&anna), &click);
    let task = tokio::spawn(async move { send_to(&service, click).await });
    here.notified().await;
    let price = json!({"price": {"amount": 59_500, "currency": "EUR"}});
    let repriced = site.seller_post(&on_listing("/price"), &price).await;
    assert_eq!(repriced.status, 200, "{:?}", repriced.body);
    gate.notify_one();
    assert_eq!(task.await.unwrap().status, 200);
    assert_eq!(seen().await, before);
    let view = site.buyer_get(&on_listing("")).await.body;
    assert_eq!(view["list_price"]["amount"], 59_500, "the price stays");
    let low = site.buyer_post("/offers", &offer_on(LISTING, FLOOR)).await;
    assert_eq!(low.status, 201, "the former floor holds: {:?}", low.body);
    let below = site
        .buyer_post("/offers", &offer_on(LISTING, FLOOR - 1))
        .await;
    assert_eq!(below.refusal(), (422, "below_floor"));
}

async fn an_approval_has_one_end_in_the_record(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let credential = site.credential(&mut anna, &id).await;
    site.grants.revoke(SELLER_TOKEN);
    let clicks = (0..8).map(|n| {
        let body = match n % 4 {
            3 => json!({"decision": "decline"}),
            _ => approving(&credential),
        };
        browser_post(&response_to(&id), Some(&anna), &body)
    });
    at_once(&site.service, clicks.collect()).await;
    let told = decisions(&site.negotiation_of(&offer).await, &id);
    let end = match site.kept(&id).await["status"].as_str() {
        Some("approved") => "forbid grant_revoked",
        _ => "forbid action_forbidden",
    };
    assert_eq!(told, ["ask", end]);
}

async fn an_operator_that_is_no_longer_onboarded_is_refused_what_was_approved(backing: Backing) {
    let site = Hosted::open(backing).await;
    let mut anna = site.seller_person().await;
    let (offer, id) = site.ask_to_accept(FLOOR + 1).await;
    let credential = site.credential(&mut anna, &id).await;
    let store = Arc::new(site.store.clone());
    let others = Operators::onboarded(["https://others.example/.well-known/ucp"]);
    let (_, service) = site.another(store, |_| Router::new(), |b| b.operators(others));
    let click = browser_post(&response_to(&id), Some(&anna), &approving(&credential));
    forbidden(&send_to(&service, click).await, "operator_unknown");
    let told = decisions(&site.negotiation_of(&offer).await, &id);
    assert_eq!(told, ["ask", "forbid operator_unknown"]);
    assert_eq!(site.offer_state(&offer).await, "open");
}

// ---- A login, an approver and a place of the marketplace's own ------------------------------------------------------

/// Whoever this header names, whose "passkey" repeats the challenge.
struct OwnLogin;

fn named(headers: &HeaderMap) -> Option<String> {
    let name = headers.get("x-own-login")?.to_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}

impl Sessions for OwnLogin {
    fn seller<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async move { Ok(named(headers)) })
    }
}

impl Approver for OwnLogin {
    fn seller<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async move { Ok(named(headers)) })
    }

    fn verify<'a>(
        &'a self,
        _: &'a str,
        challenge: &'a str,
        credential: &'a Value,
    ) -> BoxFuture<'a, Result<Vec<Put>, NotVerified>> {
        Box::pin(async move {
            match credential["repeats"] == challenge {
                true => Ok(Vec::new()),
                false => Err(NotVerified::Refused("it says something else")),
            }
        })
    }
}

#[tokio::test]
async fn with_a_login_of_the_marketplaces_own_approving_takes_the_passkey_all_the_same() {
    let site = Hosted::open(Backing::memory().await).await;
    let mut anna = site.seller_person().await;
    let store = Arc::new(site.store.clone());
    let approvals = Approvals::new("The Market").sessions(OwnLogin);
    let rctp = site.beside(store, |b| b.approvals(approvals));
    let service = hosted::door(&rctp, Router::new());
    let (_, id) = site.ask_to_accept(FLOOR + 1).await;
    let path = format!("/approve/{id}/options");
    // The cookie of the library's own session is none here.
    let cookie = browser_post(&path, Some(&anna), &json!({}));
    assert_eq!(send_to(&service, cookie).await.status, 401);
    let berta = with(
        browser_post(&path, None, &json!({})),
        "x-own-login",
        "sub_berta",
    );
    assert_eq!(send_to(&service, berta).await.status, 404);
    let login = |request| with(request, "x-own-login", SELLER);
    let options = send_to(&service, login(browser_post(&path, None, &json!({})))).await;
    assert_eq!(options.status, 200, "{:?}", options.body);
    let path = response_to(&id);
    let nothing = approving(&json!({}));
    let refused = send_to(&service, login(browser_post(&path, None, &nothing))).await;
    assert_eq!(refused.refusal(), (401, "signature_invalid"));
    let credential = anna.browser.get(&options.body["publicKey"]).await.unwrap();
    let click = login(browser_post(&path, None, &approving(&credential)));
    carried_out(&send_to(&service, click).await);
}

/// A public URL with a path, its router nested, so that what is inside sees the path without it.
#[tokio::test]
async fn a_parked_action_finds_the_marketplaces_own_handler_under_a_path() {
    let market = market::Market::with(Backing::memory().await, Tier::Ask, |b| b).await;
    let rctp = market.beside(Arc::new(market.store.clone()), |b| {
        b.public_url("https://gateway.example/market")
            .approve_with(OwnLogin)
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let eyes = seen.clone();
    let handler = move |uri: http::Uri| {
        eyes.lock().unwrap().push(uri.path().to_owned());
        async { Json(json!({"ours": true})) }
    };
    let own = |route: &str| {
        let handler = on_post(handler.clone()).layer(rctp.simple());
        Router::new()
            .route(route, handler)
            .fallback_service(rctp.market())
    };
    let nested = rctp.layer().layer(own("/offers/{id}/counter"));
    let nested = hosted::routed(Router::new().nest_service("/market", nested));
    let whole = hosted::routed(rctp.protect(own("/market/offers/{id}/counter")));
    for (service, prefix) in [(nested, ""), (whole, "/market")] {
        let offer = market.open_offer(FLOOR + 1).await;
        let path = format!("/offers/{offer}/counter");
        let body = json!({"deal_terms": deal_terms(55_000)});
        let outside = format!("/market{path}");
        let asked = signed(
            &market.seller,
            Some(SELLER_TOKEN),
            &outside,
            &body,
            &fresh_key(),
        );
        let asked = send_to(&service, asked).await;
        assert_eq!(asked.status, 202, "{:?}", asked.body);
        let request = &asked.body["approval_request"];
        let id = request["approval_id"].as_str().unwrap();
        let hosted_url = format!("https://gateway.example/market/approve/{id}");
        assert_eq!(request["hosted_url"], hosted_url);
        let click = |repeats: &Value| {
            let body = approving(&json!({ "repeats": repeats }));
            let path = format!("/market{}", response_to(id));
            with(browser_post(&path, None, &body), "x-own-login", SELLER)
        };
        let refused = send_to(&service, click(&json!("another"))).await;
        assert_eq!(refused.refusal(), (401, "signature_invalid"));
        let done = send_to(&service, click(&request["challenge"])).await;
        carried_out(&done);
        assert_eq!(done.body["approval"]["result"], json!({"ours": true}));
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(seen, [format!("{prefix}{path}")]);
    }
}

#[tokio::test]
async fn a_marketplace_without_approver_answers_its_sellers_itself() {
    let market = market::Market::with(Backing::memory().await, Tier::Ask, |b| b).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let own = tower::service_fn(move |_: Request<Body>| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty())) }
    });
    let service = market::around(&market.rctp, own);
    assert!(market.rctp.pages().is_none());
    let request = browser_post(
        "/approvals/apr_1/response",
        None,
        &json!({"decision": "decline"}),
    );
    assert_eq!(send_to(&service, request).await.status, 200);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
