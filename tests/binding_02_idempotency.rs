//! Binding 2.4: one effect per `Idempotency-Key` (R9, R10, R11), through the whole stack.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use common::{
    Answer, BUYER_TOKEN, FLOOR, LISTING, NOW, SELLER_TOKEN, SELLER_UNBOUND, Service, deal_terms,
    get, grant, offer_body, post, with_token,
};
use http::{Request, Response};
use market::{
    BUYER_TOKEN_2, Backing, Call, Gate, Market, OTHER_TOKEN, around, cut_off, fresh_key,
    on_every_store, send_to, signed,
};
use serde_json::{Value, json};
use tower::service_fn;
use tower_rctp::{
    layer::{arrive::Answered, body::Body},
    protocol::{grant::GrantStatus, policy::Tier, record::SubjectKind},
};

on_every_store!(
    a_repeat_gets_the_stored_answer_byte_for_byte_and_executes_nothing,
    a_repeat_of_an_ask_parks_nothing_more,
    a_repeat_counts_neither_for_the_budget_nor_in_the_record,
    the_same_key_for_another_request_is_a_conflict,
    an_agent_of_another_operator_may_use_the_same_key,
    an_answer_is_kept_for_48_hours,
    sixty_four_duplicates_at_once_execute_once_and_get_one_answer,
    different_requests_at_once_under_one_key_execute_one_of_them,
    duplicates_at_two_gateways_over_one_store_execute_once,
    an_acceptance_at_two_gateways_at_once_is_answered_alike,
    while_the_store_is_out_of_reach_nothing_is_executed_and_the_key_stays_free,
    a_commit_whose_answer_was_lost_is_not_repeated,
    a_client_that_hangs_up_anywhere_leaves_the_key_usable,
    lost_races_are_decided_again_and_end,
);

// ---- Repeats ------------------------------------------------------------------------------------------------------

async fn a_repeat_gets_the_stored_answer_byte_for_byte_and_executes_nothing(backing: Backing) {
    let market = Market::on(backing).await;
    let open = market.offer(FLOOR + 1).await.get("offer_id");
    let accept = format!("/offers/{open}/accept");
    let (buyer, seller) = (&market.buyer, &market.seller);
    let unknown = json!({"listing_id": "lst_unknown", "deal_terms": deal_terms(FLOOR)});
    let mut dollars = offer_body(FLOOR);
    dollars["deal_terms"]["price"]["currency"] = json!("USD");
    let table = [
        (
            "an offer",
            buyer,
            None,
            "/offers",
            offer_body(FLOOR + 2),
            201,
        ),
        (
            "too low",
            buyer,
            None,
            "/offers",
            offer_body(FLOOR - 1),
            422,
        ),
        ("the wrong currency", buyer, None, "/offers", dollars, 422),
        ("no such listing", buyer, None, "/offers", unknown, 404),
        ("a buyer accepts", buyer, None, &accept, json!({}), 403),
        (
            "the seller accepts",
            seller,
            Some(SELLER_TOKEN),
            &accept,
            json!({}),
            200,
        ),
        (
            "a forged checkout",
            buyer,
            None,
            "/deals",
            json!({"checkout": "e30.e30.AA"}),
            401,
        ),
    ];
    for (what, agent, token, path, body, status) in table {
        let key = fresh_key();
        let first = market.post(agent, token, path, &body, &key).await;
        assert_eq!(first.status, status, "{what}: {:?}", first.body);
        let commits = market.store.commits();
        for _ in 0..2 {
            let repeat = market.post(agent, token, path, &body, &key).await;
            same(&first, &repeat, what);
            let answered = repeat.extensions.get::<Answered>().unwrap();
            assert!(answered.replayed, "{what}");
        }
        assert_eq!(market.store.commits(), commits, "{what}");
    }
}

async fn a_repeat_of_an_ask_parks_nothing_more(backing: Backing) {
    let market = Market::with(backing, Tier::Ask, |b| b).await;
    let offer = market.offer(FLOOR + 1).await.get("offer_id");
    let path = format!("/offers/{offer}/accept");
    let key = fresh_key();
    let ask = || {
        market.post(
            &market.seller,
            Some(SELLER_TOKEN),
            &path,
            &Value::Null,
            &key,
        )
    };
    let first = ask().await;
    assert_eq!(first.status, 202, "{:?}", first.body);
    assert!(first.decision().starts_with("ask;approval_id=\"apr_"));
    let commits = market.store.commits();
    market.clock.advance(60);
    same(&first, &ask().await, "an ask");
    assert_eq!(market.store.commits(), commits);
}

async fn a_repeat_counts_neither_for_the_budget_nor_in_the_record(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    for _ in 0..5 {
        let low = market
            .post(&market.buyer, None, "/offers", &offer_body(1), &key)
            .await;
        assert_eq!(low.refusal(), (422, "below_floor"));
    }
    // One of three was spent.
    for _ in 0..2 {
        assert_eq!(market.offer(1).await.status, 422);
    }
    assert_eq!(market.offer(1).await.status, 429);
    let offers = market.offers_on(LISTING).await;
    assert_eq!(offers.len(), 0);
    let negotiation = negotiation(&market).await;
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(chain.len(), 4, "{chain:#?}");
}

/// The negotiation of the buyer's agent.
async fn negotiation(market: &Market) -> String {
    let agent = tower_rctp::protocol::caller::Agent::Key(market.buyer.signer.key().kid().clone());
    let key = tower_rctp::store::negotiation_key(LISTING, &agent);
    let doc = market
        .stored(tower_rctp::store::Kind::Negotiation, &key)
        .await;
    String::from_utf8(doc.unwrap().body.to_vec()).unwrap()
}

async fn the_same_key_for_another_request_is_a_conflict(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let (buyer, seller) = (&market.buyer, &market.seller);
    let body = offer_body(FLOOR + 1);
    let first = market.post(buyer, None, "/offers", &body, &key).await;
    assert_eq!(first.status, 201);
    let offer = first.get("offer_id");
    let decline = format!("/offers/{offer}/decline");
    let by_token = |token, body: &Value| {
        let mut request = with_token(post("/offers", body), token);
        let headers = request.headers_mut();
        headers.insert("idempotency-key", key.parse().unwrap());
        request
    };
    let mut spaced = signed(buyer, None, "/offers", &body, &key);
    *spaced.body_mut() = Bytes::from(format!("{body} "));
    buyer.signer.sign(&mut spaced).unwrap();
    let others = [
        (
            "another body",
            signed(buyer, None, "/offers", &offer_body(FLOOR + 2), &key),
        ),
        ("the same JSON in other bytes", spaced),
        (
            "another path",
            signed(buyer, None, &decline, &json!({}), &key),
        ),
        (
            "another query",
            signed(buyer, None, "/offers?again=1", &body, &key),
        ),
        (
            "an empty query",
            signed(buyer, None, "/offers?", &body, &key),
        ),
        (
            "another agent of the operator",
            signed(&market.second, None, "/offers", &body, &key),
        ),
        (
            "a client of the operator, unsigned",
            by_token(BUYER_TOKEN, &body),
        ),
        (
            "another client of the operator",
            by_token(BUYER_TOKEN_2, &body),
        ),
    ];
    for (what, request) in others {
        let answer = market.send(request).await;
        assert_eq!(answer.refusal(), (409, "idempotency_conflict"), "{what}");
        assert_eq!(answer.decision(), "", "{what}");
        assert!(!answer.body.to_string().contains(&offer), "{what}");
    }
    same(
        &first,
        &market.post(buyer, None, "/offers", &body, &key).await,
        "the first request after all",
    );

    // The same agent, for another seller.
    let key = fresh_key();
    let jkt = seller.kid();
    let other_seller = grant(
        "sub_other",
        "client-seller",
        Some(jkt),
        Tier::Auto,
        NOW + 900,
    );
    market.grants.set("token-other-seller", other_seller);
    let first = market
        .post(seller, Some(SELLER_TOKEN), &decline, &json!({}), &key)
        .await;
    assert_eq!(first.status, 200, "{:?}", first.body);
    let token = Some("token-other-seller");
    let answer = market.post(seller, token, &decline, &json!({}), &key).await;
    assert_eq!(answer.refusal(), (409, "idempotency_conflict"));
}

async fn an_agent_of_another_operator_may_use_the_same_key(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let body = offer_body(FLOOR + 1);
    let mine = market
        .post(&market.buyer, None, "/offers", &body, &key)
        .await;
    let theirs = market
        .post(&market.other, None, "/offers", &body, &key)
        .await;
    assert_eq!((mine.status, theirs.status), (201, 201));
    assert_ne!(mine.get("offer_id"), theirs.get("offer_id"));
    assert_ne!(mine.get("negotiation_id"), theirs.get("negotiation_id"));
}

async fn an_answer_is_kept_for_48_hours(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let body = offer_body(FLOOR + 1);
    let offer = || market.post(&market.buyer, None, "/offers", &body, &key);
    let first = offer().await;
    let kept = 48 * 3600;
    market.clock.advance(kept - 1);
    market.rctp.sweep().await.unwrap();
    same(&first, &offer().await, "in the last second");

    // From then on the key is unused, swept or not.
    market.clock.advance(1);
    let second = offer().await;
    assert_eq!(second.status, 201, "{:?}", second.body);
    assert_ne!(first.get("offer_id"), second.get("offer_id"));

    market.clock.advance(kept);
    market.rctp.sweep().await.unwrap();
    let third = offer().await;
    assert_ne!(second.get("offer_id"), third.get("offer_id"));
    assert_eq!(market.offers_on(LISTING).await.len(), 3);
}

// ---- At once --------------------------------------------------------------------------------------------------------

/// Sends all at once, each on a task of its own.
async fn at_once(service: &Service, requests: Vec<Request<Bytes>>) -> Vec<Answer> {
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

async fn sixty_four_duplicates_at_once_execute_once_and_get_one_answer(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let body = offer_body(FLOOR + 1);
    let requests = (0..64).map(|_| signed(&market.buyer, None, "/offers", &body, &key));
    let answers = at_once(&market.service, requests.collect()).await;
    for answer in &answers {
        assert_eq!(answer.status, 201, "{:?}", answer.body);
        same(&answers[0], answer, "a duplicate");
    }
    assert_eq!(market.offers_on(LISTING).await.len(), 1);
    let negotiation = answers[0].get("negotiation_id");
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(chain.len(), 1);
}

async fn different_requests_at_once_under_one_key_execute_one_of_them(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let requests = (1..=32).map(|n| {
        let body = offer_body(FLOOR + n);
        signed(&market.buyer, None, "/offers", &body, &key)
    });
    let answers = at_once(&market.service, requests.collect()).await;
    let created = answers.iter().filter(|a| a.status == 201).count();
    let conflicts = answers
        .iter()
        .filter(|a| a.refusal() == (409, "idempotency_conflict"));
    assert_eq!((created, conflicts.count()), (1, 31));
    assert_eq!(market.offers_on(LISTING).await.len(), 1);
}

async fn duplicates_at_two_gateways_over_one_store_execute_once(backing: Backing) {
    let market = Market::on(backing).await;
    let again = market.backing.opened_again().await;
    let beside = market.beside(again, |b| b);
    let beside = around(&beside, beside.market());
    for amount in [FLOOR + 1, FLOOR - 1] {
        let key = fresh_key();
        let body = offer_body(amount);
        let requests = || {
            let sign = |_| signed(&market.buyer, None, "/offers", &body, &key);
            (0..16).map(sign).collect::<Vec<_>>()
        };
        let (here, there) = tokio::join!(
            at_once(&market.service, requests()),
            at_once(&beside, requests())
        );
        let answers: Vec<Answer> = here.into_iter().chain(there).collect();
        for answer in &answers {
            same(&answers[0], answer, "a duplicate elsewhere");
        }
    }
    assert_eq!(market.offers_on(LISTING).await.len(), 1);
    // One of three below-floor answers was spent.
    for status in [422, 422, 429] {
        assert_eq!(market.offer(1).await.status, status);
    }
}

async fn an_acceptance_at_two_gateways_at_once_is_answered_alike(backing: Backing) {
    let market = Market::on(backing).await;
    let beside = market.beside(market.backing.opened_again().await, |b| b);
    let beside = around(&beside, beside.market());
    let offer = market.offer(FLOOR + 1).await.get("offer_id");
    let path = format!("/offers/{offer}/accept");
    let key = fresh_key();
    let accept = || {
        let token = Some(SELLER_TOKEN);
        vec![signed(&market.seller, token, &path, &json!({}), &key); 8]
    };
    let (here, there) = tokio::join!(
        at_once(&market.service, accept()),
        at_once(&beside, accept())
    );
    for answer in here.iter().chain(&there) {
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        same(&here[0], answer, "the acceptance elsewhere");
    }
}

// ---- When things fail -----------------------------------------------------------------------------------------------

async fn while_the_store_is_out_of_reach_nothing_is_executed_and_the_key_stays_free(
    backing: Backing,
) {
    let market = Market::on(backing).await;
    let offer = market.offer(FLOOR + 1).await.get("offer_id");
    let accept = format!("/offers/{offer}/accept");
    let asks: [(&str, _, _, &str, Value, u16); 3] = [
        (
            "a low offer",
            &market.buyer,
            None,
            "/offers",
            offer_body(1),
            422,
        ),
        (
            "an offer",
            &market.buyer,
            None,
            "/offers",
            offer_body(FLOOR + 3),
            201,
        ),
        (
            "an acceptance",
            &market.seller,
            Some(SELLER_TOKEN),
            &accept,
            json!({}),
            200,
        ),
    ];
    for (what, agent, token, path, body, status) in asks {
        let key = fresh_key();
        for call in [Call::Used, Call::Load, Call::Windows, Call::Commit] {
            let commits = market.store.commits();
            market.store.take_down(call);
            let down = market.post(agent, token, path, &body, &key).await;
            assert_eq!(down.refusal(), (503, "unavailable"), "{what}, {call:?}");
            assert_eq!(down.decision(), "", "{what}, {call:?}");
            assert!(down.headers.contains_key("retry-after"), "{what}, {call:?}");
            assert_eq!(market.store.commits(), commits, "{what}, {call:?}");
            market.store.mend();
        }
        let first = market.post(agent, token, path, &body, &key).await;
        assert_eq!(first.status, status, "{what}: {:?}", first.body);
        let repeat = market.post(agent, token, path, &body, &key).await;
        same(&first, &repeat, what);
    }
    // And a stored answer is out of reach with the store.
    let key = fresh_key();
    let body = offer_body(FLOOR + 4);
    let offer = || market.post(&market.buyer, None, "/offers", &body, &key);
    let first = offer().await;
    market.store.take_down(Call::Used);
    assert_eq!(offer().await.refusal(), (503, "unavailable"));
    market.store.mend();
    same(&first, &offer().await, "after the store came back");
}

async fn a_commit_whose_answer_was_lost_is_not_repeated(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let body = offer_body(FLOOR + 1);
    let offer = || market.post(&market.buyer, None, "/offers", &body, &key);
    market.store.lose_answers();
    assert_eq!(offer().await.refusal(), (503, "unavailable"));
    market.store.mend();
    let repeat = offer().await;
    assert_eq!(repeat.status, 201, "{:?}", repeat.body);
    assert_eq!(market.offers_on(LISTING).await.len(), 1);
}

async fn a_client_that_hangs_up_anywhere_leaves_the_key_usable(backing: Backing) {
    let market = Market::on(backing).await;
    market.store.give_way();
    let low = offer_body(FLOOR - 1);
    let high = offer_body(FLOOR + 1);
    let (mut cuts, mut made) = (0, 0);
    for (body, status) in [(&high, 201), (&low, 422)] {
        for times in 0.. {
            let key = fresh_key();
            let offer = || market.post(&market.other, None, "/offers", body, &key);
            let whole = cut_off(offer(), times).await;
            let first = offer().await;
            assert_eq!(first.status, status, "cut after {times}: {:?}", first.body);
            let repeat = offer().await;
            same(&first, &repeat, "after the client came back");
            made += u64::from(status == 201);
            let offers = market.offers_on(LISTING).await.len() as u64;
            assert_eq!(offers, made, "cut after {times}");
            // Below-floor answers have a budget; a new window each time.
            market.clock.advance(24 * 3600);
            match whole {
                Some(whole) => {
                    same(&first, &whole, "nothing was cut off");
                    break;
                }
                None => cuts += 1,
            }
        }
    }
    assert!(cuts >= 12, "{cuts}");
}

async fn lost_races_are_decided_again_and_end(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let body = offer_body(FLOOR + 1);
    let offer = || market.post(&market.buyer, None, "/offers", &body, &key);
    market.store.lose_races(usize::MAX);
    let busy = offer().await;
    assert_eq!(busy.refusal(), (503, "unavailable"));
    assert_eq!(busy.headers["retry-after"], "1");
    market.store.lose_races(15);
    assert_eq!(offer().await.status, 201);
    assert_eq!(market.offers_on(LISTING).await.len(), 1);
}

/// The layers around handlers of our own.
fn with_handler<F, R>(market: &Market, handler: F) -> Service
where
    F: Fn(Request<Body>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let rctp = market.beside(Arc::new(market.store.clone()), |b| b);
    let handler = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    around(&rctp, handler)
}

#[tokio::test]
async fn a_handler_that_panics_leaves_the_key_free() {
    let market = Market::on(Backing::memory().await).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let (rctp, counter) = (market.rctp.market(), runs.clone());
    let service = with_handler(&market, move |request| {
        let (market, run) = (rctp, counter.fetch_add(1, Ordering::SeqCst));
        async move {
            assert!(run > 0, "the first run panics");
            tower::ServiceExt::oneshot(market, request).await.unwrap()
        }
    });
    let key = fresh_key();
    let request = || signed(&market.buyer, None, "/offers", &offer_body(FLOOR + 1), &key);
    let task = tokio::spawn({
        let (service, request) = (service.clone(), request());
        async move { send_to(&service, request).await }
    });
    assert!(task.await.unwrap_err().is_panic());
    let first = send_to(&service, request()).await;
    assert_eq!(first.status, 201, "{:?}", first.body);
    same(&first, &send_to(&service, request()).await, "a repeat");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_the_first_up_to_a_limit() {
    let market = Market::on(Backing::memory().await).await;
    let gate = Gate::default();
    let (inner, at) = (market.rctp.market(), gate.clone());
    let service = with_handler(&market, move |request| {
        let (inner, at) = (inner, at.clone());
        async move {
            at.pass().await;
            tower::ServiceExt::oneshot(inner, request).await.unwrap()
        }
    });
    let key = fresh_key();
    let request = || signed(&market.buyer, None, "/offers", &offer_body(FLOOR + 1), &key);
    let send = |request| {
        let service = service.clone();
        tokio::spawn(async move { send_to(&service, request).await })
    };
    let first = send(request());
    gate.reached().await;
    // Nothing moves, so that the clock runs to the end of the wait.
    let late = send_to(&service, request()).await;
    assert_eq!(late.refusal(), (503, "unavailable"));
    assert!(late.headers.contains_key("retry-after"));

    let waiting = send(request());
    tokio::task::yield_now().await;
    gate.open();
    let first = first.await.unwrap();
    assert_eq!(first.status, 201, "{:?}", first.body);
    same(&first, &waiting.await.unwrap(), "the one that waited");
}

// ---- The key itself -------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_key_has_22_to_255_visible_characters() {
    let market = Market::on(Backing::memory().await).await;
    let with = |keys: &[&[u8]]| {
        let mut request = with_token(post("/offers", &offer_body(FLOOR + 1)), BUYER_TOKEN);
        for key in keys {
            let value = http::HeaderValue::from_bytes(key).unwrap();
            request.headers_mut().append("idempotency-key", value);
        }
        request
    };
    let long = |n: usize| "k".repeat(n).into_bytes();
    let (ok_22, ok_255) = (long(22), long(255));
    for key in [&ok_22, &ok_255, &b"!\"#$%&'()*+,-./:;<=>?@[]{|}~".to_vec()] {
        let answer = market.send(with(&[key])).await;
        assert_eq!(answer.status, 201, "{:?}", answer.body);
    }
    let in_the_middle = |byte: u8| {
        let mut key = long(30);
        key[15] = byte;
        key
    };
    let bad = [
        ("21 characters", long(21)),
        ("256 characters", long(256)),
        ("nothing", Vec::new()),
        ("a space", in_the_middle(b' ')),
        ("a tab", in_the_middle(b'\t')),
        ("a byte that is no ASCII", in_the_middle(0xe4)),
        ("only spaces", vec![b' '; 30]),
    ];
    for (what, key) in bad {
        let answer = market.send(with(&[&key])).await;
        assert_eq!(answer.refusal(), (400, "invalid_request"), "{what}");
        assert_eq!(answer.decision(), "", "{what}");
    }
    let keys = [&ok_22[..], &ok_255[..]];
    assert_eq!(market.send(with(&keys)).await.status, 400, "two keys");
    let keys = [&ok_22[..], &ok_22[..]];
    assert_eq!(market.send(with(&keys)).await.status, 400, "one, twice");

    // On a signed request too.
    let short = "k".repeat(21);
    let answer = market
        .post(&market.buyer, None, "/offers", &offer_body(FLOOR), &short)
        .await;
    assert_eq!(answer.refusal(), (400, "invalid_request"));
}

#[tokio::test]
async fn without_a_key_a_signed_post_is_401_and_an_unsigned_one_400() {
    let market = Market::on(Backing::memory().await).await;
    let mut request = signed(
        &market.buyer,
        None,
        "/offers",
        &offer_body(FLOOR),
        &fresh_key(),
    );
    request.headers_mut().remove("idempotency-key");
    let answer = market.send(request).await;
    assert_eq!(answer.refusal(), (401, "signature_invalid"));

    let request = with_token(post("/offers", &offer_body(FLOOR)), BUYER_TOKEN);
    let answer = market.send(request).await;
    assert_eq!(answer.refusal(), (400, "invalid_request"));
    assert!(answer.get("message").contains("Idempotency-Key"));
    assert_eq!(market.offers_on(LISTING).await.len(), 0);
}

#[tokio::test]
async fn a_get_needs_no_key_and_is_never_answered_from_the_store() {
    let market = Market::on(Backing::memory().await).await;
    market.store.take_down(Call::Used);
    assert_eq!(
        market.buyer_get("/listings/lst_bicycle").await.status,
        200,
        "without a key"
    );
    let key = fresh_key();
    let read = || {
        let mut request = get("/listings/lst_bicycle");
        let headers = request.headers_mut();
        headers.insert("idempotency-key", key.parse().unwrap());
        market.buyer.signer.sign(&mut request).unwrap();
        market.send(request)
    };
    assert_eq!(read().await.body["state"], "active");
    market.store.mend();
    let offer = market.offer(FLOOR + 1).await.get("offer_id");
    let path = format!("/offers/{offer}/accept");
    assert_eq!(market.seller_post(&path, &json!({})).await.status, 200);
    assert_eq!(read().await.body["state"], "reserved", "with a key");
}

// ---- Where it stands ------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_revoked_grant_gets_no_replay() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.offer(FLOOR + 1).await.get("offer_id");
    let path = format!("/offers/{offer}/accept");
    let key = fresh_key();
    let accept = || {
        let mut request = with_token(post(&path, &json!({})), SELLER_UNBOUND);
        let headers = request.headers_mut();
        headers.insert("idempotency-key", key.parse().unwrap());
        market.send(request)
    };
    let first = accept().await;
    assert_eq!(first.status, 200, "{:?}", first.body);
    market.grants.change(SELLER_UNBOUND, |i| {
        i.grant_status = Some(GrantStatus::Revoked)
    });
    let refused = accept().await;
    assert_eq!(refused.refusal(), (403, "grant_revoked"));
    assert!(!refused.body.to_string().contains(&offer));
    market.grants.change(SELLER_UNBOUND, |i| {
        i.grant_status = Some(GrantStatus::Active)
    });
    same(&first, &accept().await, "with the grant back");
}

#[tokio::test]
async fn what_is_refused_before_the_key_is_looked_up_leaves_it_free() {
    let market = Market::on(Backing::memory().await).await;
    let key = fresh_key();
    let post = |body: Value| {
        let key = key.clone();
        let market = &market;
        async move {
            market
                .post(&market.buyer, None, "/offers", &body, &key)
                .await
        }
    };
    let mut more = offer_body(FLOOR + 1);
    more["floor"] = json!(1);
    assert_eq!(post(more).await.status, 400);
    assert_eq!(post(json!([])).await.status, 400);
    assert_eq!(post(offer_body(FLOOR + 1)).await.status, 201);
}

#[tokio::test]
async fn a_protocol_error_after_the_lookup_takes_the_key() {
    let market = Market::on(Backing::memory().await).await;
    let key = fresh_key();
    let unknown = json!({"listing_id": "lst_unknown", "deal_terms": deal_terms(FLOOR)});
    let first = market
        .post(&market.buyer, None, "/offers", &unknown, &key)
        .await;
    assert_eq!(first.refusal(), (404, "not_found"));
    let other = market
        .post(&market.buyer, None, "/offers", &offer_body(FLOOR), &key)
        .await;
    assert_eq!(other.refusal(), (409, "idempotency_conflict"));
}

#[tokio::test]
async fn an_agent_of_another_operator_gets_no_stored_answer_with_its_own_token() {
    let market = Market::on(Backing::memory().await).await;
    let key = fresh_key();
    let send = |token: &'static str| {
        let mut request = with_token(post("/offers", &offer_body(FLOOR + 1)), token);
        let headers = request.headers_mut();
        headers.insert("idempotency-key", key.parse().unwrap());
        market.send(request)
    };
    let (mine, theirs) = (send(BUYER_TOKEN).await, send(OTHER_TOKEN).await);
    assert_ne!(mine.get("offer_id"), theirs.get("offer_id"));
}

// ---- Helpers --------------------------------------------------------------------------------------------------------

/// Status, headers and body are the same, bytes and all.
fn same(one: &Answer, other: &Answer, what: &str) {
    assert_eq!(one.status, other.status, "{what}: {:?}", other.body);
    assert_eq!(one.headers, other.headers, "{what}");
    assert_eq!(one.bytes, other.bytes, "{what}");
}
