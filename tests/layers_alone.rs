//! The layers by themselves, with other layers between them, and around handlers of a marketplace's own.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::Path,
    routing::{get as on_get, post as on_post},
};
use bytes::Bytes;
use common::{
    Answer, BUYER_TOKEN, FLOOR, GATEWAY, LISTING, NOW, SELLER, SELLER_TOKEN, SELLER_UNBOUND,
    Service, get, grant, offer_body, post, with_token,
};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use market::{
    Backing, Call, Gate, Logs, Market, cut_off, fresh_key, on_every_store, operators, send_to,
    signed,
};
use serde_json::{Value, json};
use tower::{
    BoxError, Layer, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer,
    load_shed::LoadShedLayer, service_fn, timeout::TimeoutLayer, util::BoxCloneSyncService,
};
use tower_rctp::{
    Rctp, RctpBuilder,
    layer::{
        authenticate::{
            Mechanisms,
            operators::{Operator, Operators},
        },
        body::Body,
        decision::Decided,
        grant::introspection::Introspection,
        idempotency::{KEPT_SECONDS, Reconcile},
    },
    protocol::{
        caller::Caller,
        grant::{Grant, GrantStatus},
        operation::Verb,
        policy::{Limits, OfferBudget, OfferExpiry, Tier, Tiers},
        record::SubjectKind,
        refusal::{Reason, Refusal},
        term_set::TermSets,
    },
    store::{BoxFuture, CommitError, IdempotencyKey, MemoryStore, Store, StoredResponse, Used},
};

on_every_store!(
    alone_the_key_is_durable_before_the_handler_runs_and_its_answer_after_it,
    alone_an_answer_is_repeated_byte_for_byte,
    alone_a_client_that_hangs_up_cannot_stop_the_handler,
    alone_a_client_that_hangs_up_anywhere_leaves_the_key_usable,
    alone_duplicates_at_once_execute_once,
    alone_what_a_handler_did_is_not_known_after_a_5xx_or_a_panic,
    alone_a_key_that_never_finished_is_taken_for_48_hours,
    alone_a_reconcile_hook_settles_what_never_finished,
    alone_a_store_that_fails_before_executes_nothing,
    alone_a_store_that_fails_after_never_leads_to_a_second_execution,
    alone_a_key_that_another_process_executes_is_busy,
);

// ---- Helpers --------------------------------------------------------------------------------------------------------

/// A service from an async function over requests.
fn serve<L, F, R>(layer: L, handler: F) -> Service
where
    F: Fn(Request<Body>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
    L: Layer<BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>>,
    L::Service: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    <L::Service as tower::Service<Request<Body>>>::Future: Send,
{
    let handler = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    BoxCloneSyncService::new(layer.layer(BoxCloneSyncService::new(handler)))
}

fn text(status: u16, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// A builder with what every layer needs.
fn builder(market: &Market) -> RctpBuilder {
    Rctp::builder()
        .public_url(GATEWAY)
        .operators(operators())
        .introspect_with(market.grants.clone())
        .fetch_with(market.origins.clone())
        .clock(market.clock.closure())
}

// ---- Authentication alone -------------------------------------------------------------------------------------------

#[tokio::test]
async fn alone_authentication_applies_to_every_path() {
    let market = Market::on(Backing::memory().await).await;
    let layer = builder(&market).authenticate_alone().unwrap();
    let service = serve(layer, |request| async move {
        let caller = request.extensions().get::<Caller>().unwrap().clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        text(200, format!("{} {body}", caller.operator))
    });
    for path in ["/", "/any/thing?at=all", "/offers", "/offers/off_1/accept"] {
        let request = signed(&market.buyer, None, path, &json!({"n": 1}), &fresh_key());
        let answer = send_to(&service, request).await;
        let expected = format!("{} {{\"n\":1}}", market.buyer.profile);
        assert_eq!((answer.status, &*answer.bytes), (200, expected.as_bytes()));

        let mut request = get(path);
        market.buyer.signer.sign(&mut request).unwrap();
        assert_eq!(send_to(&service, request).await.status, 200, "{path}");

        let request = with_token(get(path), BUYER_TOKEN);
        assert_eq!(send_to(&service, request).await.status, 200, "{path}");

        let nobody = send_to(&service, get(path)).await;
        assert_eq!(nobody.refusal(), (401, "operator_unknown"), "{path}");
    }
}

#[tokio::test]
async fn alone_authentication_needs_no_introspection_where_only_signatures_count() {
    let market = Market::on(Backing::memory().await).await;
    let layer = Rctp::builder()
        .public_url(GATEWAY)
        .operators(operators())
        .fetch_with(market.origins.clone())
        .clock(market.clock.closure())
        .mechanisms(Mechanisms::none().http_signature())
        .body_limit(8)
        .authenticate_alone()
        .unwrap();
    let service = serve(layer, |_| async { text(200, "in") });
    let request = signed(&market.buyer, None, "/x", &json!({"a": 1}), &fresh_key());
    assert_eq!(send_to(&service, request).await.status, 200);
    let request = signed(&market.buyer, None, "/x", &json!({"a": 100}), &fresh_key());
    assert_eq!(send_to(&service, request).await.status, 413);
    let bearer = with_token(get("/x"), BUYER_TOKEN);
    let answer = send_to(&service, bearer).await;
    assert_eq!(answer.refusal(), (401, "signature_invalid"));
}

// ---- The grant alone ------------------------------------------------------------------------------------------------

#[tokio::test]
async fn alone_a_grant_needs_its_scope_on_every_path() {
    let market = Market::on(Backing::memory().await).await;
    let scope = Verb::OfferAccept.scope().unwrap();
    let inside = builder(&market).grant_alone(scope).unwrap();
    let outside = builder(&market).authenticate_alone().unwrap();
    let layer = tower::ServiceBuilder::new()
        .layer(outside)
        .layer(inside)
        .into_inner();
    let service = serve(layer, |request| async move {
        let grant = request.extensions().get::<Grant>().unwrap();
        text(200, grant.sub.clone())
    });
    let read = |token: Option<&str>| {
        let mut request = get("/warehouse");
        if let Some(token) = token {
            request = with_token(request, token);
        }
        market.seller.signer.sign(&mut request).unwrap();
        send_to(&service, request)
    };
    let answer = read(Some(SELLER_TOKEN)).await;
    assert_eq!((answer.status, &*answer.bytes), (200, SELLER.as_bytes()));
    let unsigned = with_token(get("/warehouse"), SELLER_UNBOUND);
    assert_eq!(send_to(&service, unsigned).await.status, 200);

    assert_eq!(read(None).await.refusal(), (401, "grant_invalid"));
    market.grants.change(SELLER_TOKEN, |i| {
        let others = Verb::GRANTED
            .iter()
            .filter(|v| **v != Verb::OfferAccept)
            .filter_map(|v| v.scope());
        i.scope = Some(others.collect::<Vec<_>>().join(" "));
    });
    let refused = read(Some(SELLER_TOKEN)).await;
    assert_eq!(refused.refusal(), (403, "action_forbidden"));
    market.grants.down.store(true, Ordering::SeqCst);
    let down = read(Some(SELLER_TOKEN)).await;
    assert_eq!(down.refusal(), (503, "unavailable"));
}

// ---- Idempotency alone ----------------------------------------------------------------------------------------------

/// The idempotency layer alone, behind authentication, around a handler that knows nothing of either.
fn idempotent<F, R>(
    market: &Market,
    store: Arc<dyn Store>,
    settings: impl FnOnce(RctpBuilder) -> RctpBuilder,
    handler: F,
) -> Service
where
    F: Fn(Request<Body>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let inside = settings(builder(market).shared_store(store))
        .idempotency_alone()
        .unwrap();
    let outside = builder(market).authenticate_alone().unwrap();
    let layer = tower::ServiceBuilder::new()
        .layer(outside)
        .layer(inside)
        .into_inner();
    serve(layer, handler)
}

fn order(market: &Market, key: &str) -> Request<Bytes> {
    signed(&market.buyer, None, "/orders", &json!({"n": 1}), key)
}

async fn used(store: &dyn Store, market: &Market, key: &str) -> Option<Used> {
    let key = IdempotencyKey {
        scope: market.buyer.profile.clone(),
        key: key.to_owned(),
    };
    store.used(key, market.clock.now()).await.unwrap()
}

fn same(one: &Answer, other: &Answer) {
    assert_eq!(one.status, other.status, "{:?}", other.body);
    assert_eq!(one.headers, other.headers);
    assert_eq!(one.bytes, other.bytes);
}

async fn alone_the_key_is_durable_before_the_handler_runs_and_its_answer_after_it(
    backing: Backing,
) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let gate = Gate::default();
    let at = gate.clone();
    let service = idempotent(
        &market,
        market.backing.store.clone(),
        |b| b,
        move |_| {
            let at = at.clone();
            async move {
                at.pass().await;
                text(201, "made")
            }
        },
    );
    // Another process looks on.
    let elsewhere = market.backing.opened_again().await;
    let request = order(&market, &key);
    let sent = tokio::spawn(async move { send_to(&service, request).await });
    gate.reached().await;
    let begun = used(&*elsewhere, &market, &key).await.unwrap();
    assert_eq!(begun.response, None);
    gate.open();
    let answer = sent.await.unwrap();
    assert_eq!((answer.status, &*answer.bytes), (201, &b"made"[..]));
    let settled = used(&*elsewhere, &market, &key).await.unwrap();
    assert_eq!(settled.response.unwrap().body, "made");
}

async fn alone_an_answer_is_repeated_byte_for_byte(backing: Backing) {
    let market = Market::on(backing).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let service = idempotent(
        &market,
        market.backing.store.clone(),
        |b| b,
        move |request| {
            let n = counter.fetch_add(1, Ordering::SeqCst);
            async move {
                let status = match request.uri().path() {
                    "/orders" => 201,
                    "/refused" => 422,
                    _ => 204,
                };
                let mut response = text(status, if status == 204 { "" } else { "\u{1}é\n" });
                let headers = response.headers_mut();
                headers.insert("x-order", n.to_string().parse().unwrap());
                headers.append("x-twice", "a".parse().unwrap());
                headers.append("x-twice", "b".parse().unwrap());
                headers.insert("x-bytes", http::HeaderValue::from_bytes(b"\xe4").unwrap());
                response
            }
        },
    );
    for (n, path) in ["/orders", "/refused", "/nothing"].into_iter().enumerate() {
        let key = fresh_key();
        let send = || {
            let request = signed(&market.buyer, None, path, &json!({"n": 1}), &key);
            send_to(&service, request)
        };
        let first = send().await;
        assert_eq!(first.headers["x-order"], n.to_string());
        same(&first, &send().await);
        let other = signed(&market.buyer, None, path, &json!({"n": 2}), &key);
        let answer = send_to(&service, other).await;
        assert_eq!(answer.refusal(), (409, "idempotency_conflict"));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    // A GET is no concern of the layer.
    for _ in 0..2 {
        let mut request = get("/orders");
        market.buyer.signer.sign(&mut request).unwrap();
        assert_eq!(send_to(&service, request).await.status, 201);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 5);
}

async fn alone_a_client_that_hangs_up_cannot_stop_the_handler(backing: Backing) {
    let market = Market::on(backing).await;
    let key = fresh_key();
    let (gate, runs) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (at, counter) = (gate.clone(), runs.clone());
    let service = idempotent(
        &market,
        market.backing.store.clone(),
        |b| b,
        move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            let at = at.clone();
            async move {
                at.pass().await;
                text(201, "made")
            }
        },
    );
    tokio::select! {
        answer = send_to(&service, order(&market, &key)) => panic!("{answer:?}"),
        () = gate.reached() => {} // The client hangs up.
    }
    // A repeat waits for the execution that goes on.
    let (repeat, request) = (service.clone(), order(&market, &key));
    let repeat = tokio::spawn(async move { send_to(&repeat, request).await });
    gate.open();
    let repeat = repeat.await.unwrap();
    assert_eq!((repeat.status, &*repeat.bytes), (201, &b"made"[..]));
    same(&repeat, &send_to(&service, order(&market, &key)).await);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

async fn alone_a_client_that_hangs_up_anywhere_leaves_the_key_usable(backing: Backing) {
    let market = Market::on(backing).await;
    market.store.give_way();
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let store = Arc::new(market.store.clone());
    let service = idempotent(
        &market,
        store,
        |b| b,
        move |_| {
            let n = counter.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                text(201, n.to_string())
            }
        },
    );
    for times in 0.. {
        let key = fresh_key();
        let whole = cut_off(send_to(&service, order(&market, &key)), times).await;
        let first = send_to(&service, order(&market, &key)).await;
        assert_eq!(first.status, 201, "cut after {times}: {:?}", first.body);
        assert_eq!(*first.bytes, *times.to_string().as_bytes());
        assert_eq!(runs.load(Ordering::SeqCst), times + 1);
        if let Some(whole) = whole {
            same(&first, &whole);
            assert!(times >= 2, "{times}");
            break;
        }
    }
    // While the key is being taken, in particular.
    let key = fresh_key();
    let gate = market.store.wait_at(Call::Commit);
    tokio::select! {
        answer = send_to(&service, order(&market, &key)) => panic!("{answer:?}"),
        () = gate.reached() => {}
    }
    gate.open();
    let repeat = send_to(&service, order(&market, &key)).await;
    assert_eq!(repeat.status, 201, "{:?}", repeat.body);
}

#[tokio::test(start_paused = true)]
async fn alone_a_handler_that_keeps_its_request_does_not_keep_the_key() {
    let market = Market::on(Backing::memory().await).await;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    let store = market.backing.store.clone();
    let service = idempotent(
        &market,
        store,
        |b| b,
        move |request| {
            keep.lock().unwrap().push(request);
            async { text(201, "made") }
        },
    );
    let key = fresh_key();
    // A repeat that waited for the first would run into the end of its patience: the clock does not stand still here.
    for _ in 0..2 {
        let answer = send_to(&service, order(&market, &key)).await;
        assert_eq!(answer.status, 201, "{:?}", answer.body);
    }
    assert_eq!(kept.lock().unwrap().len(), 1);
}

async fn alone_duplicates_at_once_execute_once(backing: Backing) {
    let market = Market::on(backing).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let service = idempotent(
        &market,
        market.backing.store.clone(),
        |b| b,
        move |_| {
            let n = counter.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                text(201, n.to_string())
            }
        },
    );
    let key = fresh_key();
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (service, request) = (service.clone(), order(&market, &key));
            tokio::spawn(async move { send_to(&service, request).await })
        })
        .collect();
    for task in tasks {
        let answer = task.await.unwrap();
        assert_eq!((answer.status, &*answer.bytes), (201, &b"0"[..]));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

async fn alone_what_a_handler_did_is_not_known_after_a_5xx_or_a_panic(backing: Backing) {
    let market = Market::on(backing).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let service = idempotent(
        &market,
        market.backing.store.clone(),
        |b| b,
        move |request| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move {
                assert_eq!(request.uri().path(), "/five", "anything else panics");
                text(500, "I do not know")
            }
        },
    );
    for (path, status, said) in [
        ("/five", 500, "I do not know"),
        ("/panic", 503, "unavailable"),
    ] {
        let key = fresh_key();
        let send = || {
            let request = signed(&market.buyer, None, path, &json!({}), &key);
            send_to(&service, request)
        };
        let first = send().await;
        assert_eq!(first.status, status);
        assert!(String::from_utf8_lossy(&first.bytes).contains(said));
        for _ in 0..2 {
            let repeat = send().await;
            assert_eq!(repeat.refusal(), (503, "unavailable"), "{path}");
            assert!(repeat.get("message").contains("not repeated"), "{path}");
            market.clock.advance(KEPT_SECONDS / 3);
        }
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

async fn alone_a_key_that_never_finished_is_taken_for_48_hours(backing: Backing) {
    let market = Market::on(backing).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let store = market.backing.store.clone();
    let service = idempotent(
        &market,
        store,
        |b| b,
        move |_| {
            let run = counter.fetch_add(1, Ordering::SeqCst);
            async move { text(if run == 0 { 500 } else { 201 }, "") }
        },
    );
    let key = fresh_key();
    assert_eq!(send_to(&service, order(&market, &key)).await.status, 500);
    market.clock.advance(KEPT_SECONDS - 1);
    market.rctp.sweep().await.unwrap();
    assert_eq!(send_to(&service, order(&market, &key)).await.status, 503);
    market.clock.advance(1);
    assert_eq!(send_to(&service, order(&market, &key)).await.status, 201);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// A hook that tells an outcome once it knows it, and what it was asked.
#[derive(Clone, Default)]
struct Ledger {
    outcome: Arc<Mutex<Option<StoredResponse>>>,
    asked: Arc<AtomicUsize>,
}

impl Reconcile for Ledger {
    fn outcome<'a>(&'a self, _: &'a IdempotencyKey) -> BoxFuture<'a, Option<StoredResponse>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let outcome = self.outcome.lock().unwrap().clone();
        Box::pin(async move { outcome })
    }
}

async fn alone_a_reconcile_hook_settles_what_never_finished(backing: Backing) {
    let market = Market::on(backing).await;
    let (runs, ledger, gate) = (
        Arc::new(AtomicUsize::new(0)),
        Ledger::default(),
        Gate::default(),
    );
    let (counter, at, hook) = (runs.clone(), gate.clone(), ledger.clone());
    let service = idempotent(
        &market,
        market.backing.store.clone(),
        |b| b.reconcile(hook),
        move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            let at = at.clone();
            async move {
                at.pass().await;
                text(500, "lost")
            }
        },
    );
    let key = fresh_key();
    let send = || send_to(&service, order(&market, &key));
    // The client hangs up while the handler runs: it runs on, so the hook is not asked.
    tokio::select! {
        answer = send() => panic!("{answer:?}"),
        () = gate.reached() => {}
    }
    let (waiting, request) = (service.clone(), order(&market, &key));
    let waiting = tokio::spawn(async move { send_to(&waiting, request).await });
    tokio::task::yield_now().await;
    assert_eq!(ledger.asked.load(Ordering::SeqCst), 0);
    gate.open();
    // It never knows what became of it, until the hook does.
    assert_eq!(waiting.await.unwrap().refusal(), (503, "unavailable"));
    assert_eq!(send().await.refusal(), (503, "unavailable"));
    assert_eq!(ledger.asked.load(Ordering::SeqCst), 2);
    *ledger.outcome.lock().unwrap() = Some(StoredResponse {
        status: StatusCode::CREATED,
        headers: vec![("x-order".into(), b"7".to_vec())],
        body: Bytes::from_static(b"made after all"),
    });
    for _ in 0..2 {
        let settled = send().await;
        assert_eq!(
            (settled.status, &*settled.bytes),
            (201, &b"made after all"[..])
        );
        assert_eq!(settled.headers["x-order"], "7");
    }
    // Once settled, it is asked no more.
    assert_eq!(ledger.asked.load(Ordering::SeqCst), 3);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

async fn alone_a_store_that_fails_before_executes_nothing(backing: Backing) {
    let market = Market::on(backing).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let store = Arc::new(market.store.clone());
    let service = idempotent(
        &market,
        store,
        |b| b,
        move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { text(201, "made") }
        },
    );
    let key = fresh_key();
    for call in [Call::Used, Call::Commit] {
        market.store.take_down(call);
        let down = send_to(&service, order(&market, &key)).await;
        assert_eq!(down.refusal(), (503, "unavailable"), "{call:?}");
        market.store.mend();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let answer = send_to(&service, order(&market, &key)).await;
    assert_eq!(answer.status, 201);
}

async fn alone_a_store_that_fails_after_never_leads_to_a_second_execution(backing: Backing) {
    let market = Market::on(backing).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let (counter, store) = (runs.clone(), market.store.clone());
    let service = idempotent(
        &market,
        Arc::new(market.store.clone()),
        |b| b,
        move |request| {
            counter.fetch_add(1, Ordering::SeqCst);
            let store = store.clone();
            async move {
                match request.uri().path() {
                    "/down" => {
                        store.take_down(Call::Commit);
                        text(201, "made")
                    }
                    _ => text(201, vec![b'x'; 4 * 1024 * 1024 + 1]),
                }
            }
        },
    );
    for (n, path) in ["/down", "/too-large"].into_iter().enumerate() {
        let key = fresh_key();
        let send = || {
            let request = signed(&market.buyer, None, path, &json!({}), &key);
            send_to(&service, request)
        };
        let first = send().await;
        assert_eq!(first.refusal(), (503, "unavailable"), "{path}");
        assert!(first.get("message").contains("was executed"), "{path}");
        market.store.mend();
        assert_eq!(send().await.refusal(), (503, "unavailable"), "{path}");
        assert_eq!(runs.load(Ordering::SeqCst), n + 1, "{path}");
    }
}

async fn alone_a_key_that_another_process_executes_is_busy(backing: Backing) {
    let market = Market::on(backing).await;
    let (runs, gate) = (Arc::new(AtomicUsize::new(0)), Gate::default());
    let (counter, at) = (runs.clone(), gate.clone());
    let handler = move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        let at = at.clone();
        async move {
            at.pass().await;
            text(201, "made")
        }
    };
    let here = idempotent(
        &market,
        market.backing.store.clone(),
        |b| b,
        handler.clone(),
    );
    let there = idempotent(&market, market.backing.opened_again().await, |b| b, handler);
    let key = fresh_key();
    let (sender, request) = (here.clone(), order(&market, &key));
    let first = tokio::spawn(async move { send_to(&sender, request).await });
    gate.reached().await;
    let busy = send_to(&there, order(&market, &key)).await;
    assert_eq!(busy.refusal(), (503, "unavailable"));
    gate.open();
    let first = first.await.unwrap();
    same(&first, &send_to(&there, order(&market, &key)).await);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

// ---- The stack in four layers ---------------------------------------------------------------------------------------

/// An error of a layer between, as a marketplace would render it.
fn rendered<S>(service: S) -> Service
where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = BoxError>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let service = service_fn(move |request: Request<Body>| {
        let service = service.clone();
        async move {
            let answer = service.oneshot(request).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|error| text(503, error.to_string())))
        }
    });
    BoxCloneSyncService::new(service)
}

/// The market behind the four layers, with nothing between them.
fn in_four(rctp: &Rctp) -> Service {
    let service = ServiceBuilder::new()
        .layer(rctp.authenticate())
        .layer(rctp.grant())
        .layer(rctp.idempotency())
        .layer(rctp.decision())
        .service(rctp.market());
    BoxCloneSyncService::new(service)
}

#[tokio::test]
async fn in_four_layers_the_stack_answers_as_in_one() {
    let market = Market::on(Backing::memory().await).await;
    let four = in_four(&market.rctp);
    let (buyer, seller) = (&market.buyer, &market.seller);
    let offer = market.offer(FLOOR + 1).await.get("offer_id");
    let accept = format!("/offers/{offer}/accept");
    let mut bad = offer_body(FLOOR);
    bad["floor"] = json!(1);
    let versioned = |version: &str| {
        let mut request = get("/listings/lst_bicycle");
        let headers = request.headers_mut();
        headers.insert("rctp-version", version.parse().unwrap());
        buyer.signer.sign(&mut request).unwrap();
        request
    };
    let read = |path: &str| {
        let mut request = get(path);
        buyer.signer.sign(&mut request).unwrap();
        request
    };
    market.grants.set("token-revoked", {
        let jkt = Some(seller.kid());
        let mut grant = grant(SELLER, "client-seller", jkt, Tier::Auto, NOW + 900);
        grant.grant_status = Some(GrantStatus::Revoked);
        grant
    });
    let sign =
        |agent, token, path: &str, body: &Value| signed(agent, token, path, body, &fresh_key());
    let own = Some(SELLER_TOKEN);
    let table = [
        (200, read("/listings/lst_bicycle")),
        (404, read("/listings/lst_unknown")),
        (404, read("/offers/")),
        (404, read("/account")),
        (404, read(&accept)),
        (401, get("/listings/lst_bicycle")),
        (400, versioned("\"2026-11-draft4\"")),
        (200, versioned("\"2026-11-draft5\"")),
        (201, sign(buyer, None, "/offers", &offer_body(FLOOR + 2))),
        (422, sign(buyer, None, "/offers", &offer_body(FLOOR - 1))),
        (400, sign(buyer, None, "/offers", &bad)),
        (403, sign(buyer, None, &accept, &json!({}))),
        (403, sign(seller, own, "/offers", &offer_body(FLOOR))),
        (403, sign(seller, own, "/account", &json!("no schema"))),
        (401, sign(seller, None, "/account", &Value::Null)),
        (
            403,
            sign(seller, Some("token-revoked"), &accept, &json!({})),
        ),
        (404, get("/health")),
        (404, get("/approve/apr_1")),
    ];
    for (status, request) in table {
        let what = format!("{} {}", request.method(), request.uri());
        let one = market.send(request.clone()).await;
        // The same request under another key, where it has one, so that it is not a repeat.
        let request = match request.headers().contains_key("idempotency-key") {
            true => renewed(&market, request),
            false => request,
        };
        let other = send_to(&four, request).await;
        assert_eq!((one.status, other.status), (status, status), "{what}");
        assert_eq!(one.error(), other.error(), "{what}");
        assert_eq!(one.decision(), other.decision(), "{what}");
        assert_eq!(one.headers.len(), other.headers.len(), "{what}");
    }
    // The refusals of the grant were recorded by both.
    let refused = |entries: Vec<Value>, reason: &str| {
        let of = |e: &&Value| e["decision"]["reason"] == reason;
        entries.iter().filter(of).count()
    };
    let gateway = market.gateway_chain().await;
    assert_eq!(refused(gateway, "grant_invalid"), 2);
    let negotiation = market.buyer_get(&format!("/offers/{offer}")).await;
    let chain = market
        .chain(SubjectKind::Negotiation, &negotiation.get("negotiation_id"))
        .await;
    assert_eq!(refused(chain, "grant_revoked"), 2);
}

/// The request under another `Idempotency-Key`.
fn renewed(market: &Market, mut request: Request<Bytes>) -> Request<Bytes> {
    let headers = request.headers_mut();
    headers.insert("idempotency-key", fresh_key().parse().unwrap());
    let sellers = headers["ucp-agent"].to_str().unwrap().contains("seller");
    let agent = if sellers {
        &market.seller
    } else {
        &market.buyer
    };
    agent.signer.sign(&mut request).unwrap();
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_layers_fit_between_and_neither_lock_up_nor_lose_a_decision() {
    let market = Market::on(Backing::sqlite().await).await;
    let rctp = &market.rctp;
    let minute = Duration::from_secs(60);
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(minute))
        .layer(rctp.authenticate())
        .layer(ConcurrencyLimitLayer::new(4))
        .layer(rctp.grant())
        .layer(TimeoutLayer::new(minute))
        .layer(rctp.idempotency())
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(rctp.decision())
        .layer(TimeoutLayer::new(minute))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(rctp.market());
    let service = rendered(service);
    // Lost races run the inner service again, under a limit of one.
    market.store.lose_races(5);
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let body = offer_body(FLOOR + n % 2);
            let request = signed(&market.buyer, None, "/offers", &body, &fresh_key());
            let service = service.clone();
            tokio::spawn(async move { send_to(&service, request).await })
        })
        .collect();
    for task in tasks {
        let answer = task.await.unwrap();
        assert_eq!(answer.status, 201, "{:?}", answer.bytes);
    }
    assert_eq!(market.offers_on(LISTING).await.len(), 32);
}

#[tokio::test]
async fn load_that_a_layer_between_sheds_leaves_the_key_free() {
    let market = Market::on(Backing::memory().await).await;
    let gate = Gate::default();
    let (inner, at) = (market.rctp.market(), gate.clone());
    let slow = service_fn(move |request: Request<Body>| {
        let (inner, at) = (inner, at.clone());
        async move {
            at.pass().await;
            inner.oneshot(request).await
        }
    });
    let service = ServiceBuilder::new()
        .layer(market.rctp.authenticate())
        .layer(market.rctp.grant())
        .layer(market.rctp.idempotency())
        .layer(market.rctp.decision())
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(slow);
    let service = rendered(service);
    let offer = |key: &str| signed(&market.buyer, None, "/offers", &offer_body(FLOOR), key);
    let (first, second) = (fresh_key(), fresh_key());
    let running = tokio::spawn({
        let (service, request) = (service.clone(), offer(&first));
        async move { send_to(&service, request).await }
    });
    gate.reached().await;
    let shed = send_to(&service, offer(&second)).await;
    assert_eq!(shed.status, 503);
    assert_eq!(&*shed.bytes, b"service overloaded");
    gate.open();
    gate.open();
    assert_eq!(running.await.unwrap().status, 201);
    let again = send_to(&service, offer(&second)).await;
    assert_eq!(again.status, 201, "{:?}", again.bytes);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_layer_between_times_out_leaves_the_key_free() {
    let market = Market::on(Backing::memory().await).await;
    let (gate, runs) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (inner, at, counter) = (market.rctp.market(), gate.clone(), runs.clone());
    let slow = service_fn(move |request: Request<Body>| {
        let (inner, at) = (inner, at.clone());
        let run = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            if run == 0 {
                at.pass().await;
            }
            inner.oneshot(request).await
        }
    });
    let service = ServiceBuilder::new()
        .layer(market.rctp.authenticate())
        .layer(market.rctp.grant())
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .layer(market.rctp.idempotency())
        .layer(market.rctp.decision())
        .service(slow);
    let service = rendered(service);
    let key = fresh_key();
    let offer = || signed(&market.buyer, None, "/offers", &offer_body(FLOOR), &key);
    let late = send_to(&service, offer()).await;
    assert_eq!(&*late.bytes, b"request timed out");
    let again = send_to(&service, offer()).await;
    assert_eq!(again.status, 201, "{:?}", again.bytes);
    assert_eq!(market.offers_on(LISTING).await.len(), 1);
}

#[tokio::test]
async fn a_layer_put_together_wrongly_refuses_and_logs_what_it_lacks() {
    let market = Market::on(Backing::memory().await).await;
    let rctp = &market.rctp;
    let inner = || rctp.market();
    let boxed = |service| -> Service { service };
    let table: Vec<(&str, &str, Service)> = vec![
        (
            "the grant without authentication",
            "Caller",
            boxed(BoxCloneSyncService::new(rctp.grant().layer(inner()))),
        ),
        (
            "idempotency without authentication",
            "Caller",
            boxed(BoxCloneSyncService::new(rctp.idempotency().layer(inner()))),
        ),
        (
            "the decision alone",
            "Arrived",
            boxed(BoxCloneSyncService::new(rctp.decision().layer(inner()))),
        ),
        (
            "the decision without idempotency",
            "Idempotency-Key",
            boxed(BoxCloneSyncService::new(
                ServiceBuilder::new()
                    .layer(rctp.authenticate())
                    .layer(rctp.grant())
                    .layer(rctp.decision())
                    .service(inner()),
            )),
        ),
        (
            "the decision without the grant",
            "validated body",
            boxed(BoxCloneSyncService::new(
                ServiceBuilder::new()
                    .layer(rctp.authenticate())
                    .layer(rctp.idempotency())
                    .layer(rctp.decision())
                    .service(inner()),
            )),
        ),
        (
            "authentication of its own, without the table",
            "Arrived",
            boxed(BoxCloneSyncService::new(
                ServiceBuilder::new()
                    .layer(builder(&market).authenticate_alone().unwrap())
                    .layer(rctp.decision())
                    .service(inner()),
            )),
        ),
        (
            "the wrong way round",
            "Arrived",
            boxed(BoxCloneSyncService::new(
                ServiceBuilder::new()
                    .layer(rctp.decision())
                    .layer(rctp.idempotency())
                    .layer(rctp.grant())
                    .layer(rctp.authenticate())
                    .service(inner()),
            )),
        ),
        (
            "the simple mode without a decision",
            "no decision",
            boxed(BoxCloneSyncService::new(rctp.simple().layer(inner()))),
        ),
    ];
    for (what, named, service) in table {
        let (logs, listening) = Logs::listen();
        let request = signed(
            &market.buyer,
            None,
            "/offers",
            &offer_body(FLOOR),
            &fresh_key(),
        );
        let answer = send_to(&service, request).await;
        drop(listening);
        assert_eq!(answer.refusal(), (503, "unavailable"), "{what}");
        let logs = logs.text();
        let error = logs.lines().find(|line| line.contains("ERROR"));
        let error = error.unwrap_or_else(|| panic!("{what}: {logs}"));
        assert!(error.contains(named), "{what}: {error}");
    }
    assert_eq!(market.offers_on(LISTING).await.len(), 0);
    // The market itself, without any layer, does nothing.
    let bare: Service = BoxCloneSyncService::new(inner());
    let request = post("/offers", &offer_body(FLOOR));
    assert_eq!(send_to(&bare, request).await.status, 404);
}

#[tokio::test]
async fn the_whole_layer_made_twice_is_a_warning() {
    let market = Market::on(Backing::memory().await).await;
    let (logs, _listening) = Logs::listen();
    let _again = market.rctp.layer();
    let logs = logs.text();
    assert!(logs.contains("WARN"), "{logs}");
    assert!(logs.contains("called more than once"), "{logs}");
}

// ---- Handlers that commit their decision ----------------------------------------------------------------------------

/// The whole stack around a handler that gets its decision.
fn decided<F, R>(market: &Market, handler: F) -> Service
where
    F: Fn(Decided) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let rctp = market.beside(Arc::new(market.store.clone()), |b| b);
    serve(rctp.layer(), move |request: Request<Body>| {
        handler(request.extensions().get::<Decided>().unwrap().clone())
    })
}

/// Commits nothing but the decision.
async fn committed(decided: &Decided, said: &'static str) -> Result<Response<Body>, CommitError> {
    let response = Response::new(Bytes::from_static(said.as_bytes()));
    decided.commit(|_| {}, response).await
}

async fn open_offer(market: &Market) -> (String, String) {
    let offer = market.offer(FLOOR + 1).await;
    (offer.get("offer_id"), offer.get("negotiation_id"))
}

fn accept(market: &Market, offer: &str, key: &str) -> Request<Bytes> {
    let path = format!("/offers/{offer}/accept");
    signed(&market.seller, Some(SELLER_TOKEN), &path, &json!({}), key)
}

#[tokio::test]
async fn a_writing_handler_that_is_bound_to_nothing_is_503_and_logged_by_name() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, _) = open_offer(&market).await;
    let service = decided(&market, |_| async { text(200, "done, I think") });
    let commits = market.store.commits();
    for (name, request) in [
        ("accept_offer", accept(&market, &offer, &fresh_key())),
        (
            "create_offer",
            signed(
                &market.buyer,
                None,
                "/offers",
                &offer_body(FLOOR),
                &fresh_key(),
            ),
        ),
    ] {
        let (logs, listening) = Logs::listen();
        let answer = send_to(&service, request).await;
        drop(listening);
        assert_eq!(answer.refusal(), (503, "unavailable"), "{name}");
        assert!(!answer.body.to_string().contains("I think"));
        let logs = logs.text();
        let error = logs.lines().find(|line| line.contains("ERROR")).unwrap();
        assert!(
            error.contains(name) && error.contains("rctp.simple()"),
            "{error}"
        );
    }
    assert_eq!(market.store.commits(), commits);
    // A reading one is bound to nothing either.
    let mut request = get("/listings/lst_bicycle");
    market.buyer.signer.sign(&mut request).unwrap();
    let answer = send_to(&service, request).await;
    assert_eq!(
        (answer.status, &*answer.bytes),
        (200, &b"done, I think"[..])
    );
    assert_eq!(answer.decision(), "");
}

#[tokio::test]
async fn a_handler_that_swallows_a_lost_race_is_run_again() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, negotiation) = open_offer(&market).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let service = decided(&market, move |decided| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            match committed(&decided, "accepted").await {
                Ok(response) => response,
                Err(_) => text(200, "never mind"),
            }
        }
    });
    market.store.lose_races(2);
    let answer = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    assert_eq!((answer.status, &*answer.bytes), (200, &b"accepted"[..]));
    assert_eq!(answer.decision(), "auto");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(chain.len(), 2, "{chain:#?}");

    // One that swallows a failing store cannot pass it off as done.
    market.store.take_down(Call::Commit);
    let answer = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    assert_eq!(answer.refusal(), (503, "unavailable"));
}

#[tokio::test]
async fn a_handler_commits_once_and_its_committed_answer_counts() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, negotiation) = open_offer(&market).await;
    let service = decided(&market, |decided| async move {
        committed(&decided, "the first").await.unwrap();
        let second = committed(&decided, "the second").await;
        assert!(matches!(second, Err(CommitError::Store(_))), "{second:?}");
        text(418, "something else")
    });
    let key = fresh_key();
    let answer = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!((answer.status, &*answer.bytes), (200, &b"the first"[..]));
    same(
        &answer,
        &send_to(&service, accept(&market, &offer, &key)).await,
    );
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(chain.len(), 2, "{chain:#?}");
}

#[tokio::test]
async fn a_refusal_of_the_handlers_own_is_decided_recorded_and_stored_as_one() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, negotiation) = open_offer(&market).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let service = decided(&market, move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        async {
            let refusal = Refusal::forbid(Reason::NotInScope, "it was sold over the counter");
            let mut response = refusal.to_response().map(Body::from);
            let headers = response.headers_mut();
            headers.insert("x-shop", "3".parse().unwrap());
            response
        }
    });
    let key = fresh_key();
    // A lost race runs it again, a failing store executes nothing.
    market.store.lose_races(1);
    market.store.take_down(Call::Commit);
    let down = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!(down.refusal(), (503, "unavailable"));
    market.store.mend();
    let commits = market.store.commits();
    let answer = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!(answer.refusal(), (403, "not_in_scope"));
    assert_eq!(
        answer.decision(),
        "forbid;action=\"offer.accept\";reason=not_in_scope"
    );
    assert_eq!(answer.headers["x-shop"], "3");
    assert_eq!(market.store.commits(), commits + 1);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    same(
        &answer,
        &send_to(&service, accept(&market, &offer, &key)).await,
    );
    assert_eq!(runs.load(Ordering::SeqCst), 3);

    // A read that the handler refuses enters as well.
    let path = format!("/offers/{offer}");
    let mut request = get(&path);
    market.buyer.signer.sign(&mut request).unwrap();
    let answer = send_to(&service, request).await;
    assert_eq!(answer.decision(), "forbid;reason=not_in_scope");
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    let refused: Vec<_> = chain.iter().map(|e| &e["decision"]["reason"]).collect();
    assert_eq!(
        refused,
        [&Value::Null, &json!("not_in_scope"), &json!("not_in_scope")]
    );
    assert_eq!(market.gateway_chain().await.len(), 0);
}

#[tokio::test]
async fn a_handler_that_finds_a_price_too_low_spends_the_budget() {
    let market = Market::on(Backing::memory().await).await;
    let service = decided(&market, |_| async {
        let refusal = Refusal::forbid(Reason::BelowFloor, "too low");
        refusal.to_response().map(Body::from)
    });
    for status in [422, 422, 422, 429] {
        let body = offer_body(FLOOR + 1000);
        let request = signed(&market.buyer, None, "/offers", &body, &fresh_key());
        assert_eq!(send_to(&service, request).await.status, status);
    }
}

#[tokio::test]
async fn a_protocol_error_of_the_handlers_own_is_stored_and_not_recorded() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, negotiation) = open_offer(&market).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let service = decided(&market, move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        async {
            Refusal::invalid("not on a Sunday")
                .to_response()
                .map(Body::from)
        }
    });
    let key = fresh_key();
    let answer = send_to(&service, accept(&market, &offer, &key)).await;
    assert_eq!(answer.refusal(), (400, "invalid_request"));
    assert_eq!(answer.decision(), "");
    same(
        &answer,
        &send_to(&service, accept(&market, &offer, &key)).await,
    );
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(chain.len(), 1);
}

#[tokio::test]
async fn a_first_offer_opens_its_negotiation_whoever_serves_it() {
    let market = Market::on(Backing::memory().await).await;
    let service = decided(&market, |decided| async move {
        let negotiation = decided.facts().negotiation_id.clone().unwrap();
        let response = Response::new(Bytes::from(negotiation));
        decided.commit(|_| {}, response).await.unwrap()
    });
    let offer = || {
        signed(
            &market.buyer,
            None,
            "/offers",
            &offer_body(FLOOR),
            &fresh_key(),
        )
    };
    let first = send_to(&service, offer()).await;
    let negotiation = String::from_utf8(first.bytes.to_vec()).unwrap();
    assert!(negotiation.starts_with("neg_"));
    let second = send_to(&service, offer()).await;
    assert_eq!(first.bytes, second.bytes);
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(chain.len(), 2);
    assert_eq!(market.gateway_chain().await.len(), 0);
    assert_eq!(
        market.offer(FLOOR + 1).await.get("negotiation_id"),
        negotiation
    );
}

// ---- Around an axum router ------------------------------------------------------------------------------------------

/// A router as a service of this file.
fn routed(router: Router) -> Service {
    let service = service_fn(move |request: Request<Body>| {
        let answer = router.clone().oneshot(request);
        async move { answer.await.map(|response| response.map(Body::new)) }
    });
    BoxCloneSyncService::new(service)
}

async fn own_accept(
    decided: Decided,
    caller: Caller,
    grant: Grant,
) -> Result<Response<Body>, Refusal> {
    let said = format!("{} for {}", caller.operator, grant.sub);
    let committed = decided
        .commit(|_| {}, Response::new(Bytes::from(said)))
        .await;
    Ok(committed.unwrap_or_else(|_| text(200, "lost")))
}

async fn own_listing(Path(id): Path<String>, decided: Decided, grant: Option<Grant>) -> String {
    let listing = decided.facts().listing.as_ref().unwrap();
    let seller = grant.map_or("nobody".to_owned(), |grant| grant.sub);
    format!("{id}: {} for {seller}", listing.title)
}

#[tokio::test]
async fn protect_puts_the_stack_around_the_whole_router() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, _) = open_offer(&market).await;
    let rctp = market.beside(Arc::new(market.store.clone()), |b| b);
    let shop = Router::new()
        .route("/offers/{id}/accept", on_post(own_accept))
        .route(
            "/offers/{id}/{verb}",
            on_post(|| async { "a handler that takes everything" }),
        )
        .nest(
            "/listings",
            Router::new().route("/{id}", on_get(own_listing)),
        )
        .route("/health", on_get(|| async { "well" }))
        .fallback_service(rctp.market());
    let service = routed(rctp.protect(shop));

    let answer = send_to(&service, accept(&market, &offer, &fresh_key())).await;
    let expected = format!("{} for {SELLER}", market.seller.profile);
    assert_eq!((answer.status, &*answer.bytes), (200, expected.as_bytes()));
    assert_eq!(answer.decision(), "auto");
    // A nested router, with the grant as an option.
    let read = |agent: &common::Agent, token: Option<&str>, path: &str| {
        let mut request = get(path);
        if let Some(token) = token {
            request = with_token(request, token);
        }
        agent.signer.sign(&mut request).unwrap();
        send_to(&service, request)
    };
    let path = "/listings/lst_bicycle";
    let answer = read(&market.buyer, None, path).await;
    assert_eq!(&*answer.bytes, b"lst_bicycle: A bicycle for nobody");
    let answer = read(&market.seller, Some(SELLER_TOKEN), path).await;
    assert_eq!(&*answer.bytes, b"lst_bicycle: A bicycle for sub_seller");
    // What the router does not route is the market's.
    let request = signed(
        &market.buyer,
        None,
        "/offers",
        &offer_body(FLOOR),
        &fresh_key(),
    );
    assert_eq!(send_to(&service, request).await.status, 201);
    // What is none of ours passes, and what only looks like ours does not.
    let answer = send_to(&service, get("/health")).await;
    assert_eq!((answer.status, &*answer.bytes), (200, &b"well"[..]));
    for path in [
        "/offers/off_1/accept/",
        "/offers/off_1/steal",
        "/offers/x/y/z",
    ] {
        let request = signed(&market.buyer, None, path, &json!({}), &fresh_key());
        let answer = send_to(&service, request).await;
        assert_eq!(answer.refusal(), (404, "not_found"), "{path}");
        let nobody = send_to(&service, post(path, &json!({}))).await;
        assert_eq!(nobody.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_handler_that_no_layer_reaches_refuses() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, negotiation) = open_offer(&market).await;
    let rctp = market.beside(Arc::new(market.store.clone()), |b| b);
    let refused = |what: &'static str, service: Service, path: &str| {
        let request = signed(
            &market.seller,
            Some(SELLER_TOKEN),
            path,
            &json!({}),
            &fresh_key(),
        );
        async move {
            let (logs, listening) = Logs::listen();
            let answer = send_to(&service, request).await;
            drop(listening);
            assert!(
                matches!(answer.status, 404 | 503),
                "{what}: {}",
                answer.status
            );
            if answer.status == 503 {
                assert!(logs.text().contains("ERROR"), "{what}");
            }
        }
    };
    let path = format!("/offers/{offer}/accept");
    // `Router::layer` wraps the routes that are there, each by itself; one added later stands bare.
    let misused = Router::new()
        .route("/health", on_get(|| async { "well" }))
        .layer(rctp.layer())
        .route("/offers/{id}/accept", on_post(own_accept));
    refused("a route after the layer", routed(misused), &path).await;
    // No layer at all.
    let bare = Router::new().route("/offers/{id}/accept", on_post(own_accept));
    refused("no layer", routed(bare), &path).await;
    // A route outside the table that asks for a decision.
    let beside = Router::new().route("/accept", on_post(own_accept));
    refused("none of ours", routed(rctp.protect(beside)), "/accept").await;
    // Under a prefix that the public URL does not have.
    let inside = Router::new().route("/offers/{id}/accept", on_post(own_accept));
    let nested = Router::new().nest("/market", rctp.protect(inside));
    refused("a prefix", routed(nested), &format!("/market{path}")).await;
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(chain.len(), 1);

    // `Router::layer` by itself decides each route all the same.
    let each = Router::new()
        .route("/offers/{id}/accept", on_post(own_accept))
        .layer(rctp.layer());
    let answer = send_to(&routed(each), accept(&market, &offer, &fresh_key())).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

#[tokio::test]
async fn a_public_url_with_a_path_is_a_prefix_of_every_operation() {
    let market = Market::on(Backing::memory().await).await;
    let (offer, _) = open_offer(&market).await;
    let rctp = market.beside(Arc::new(market.store.clone()), |b| {
        b.public_url("https://gateway.example/market/")
    });
    assert_eq!(rctp.public_url(), "https://gateway.example/market");
    let inside = Router::new()
        .route("/offers/{id}/accept", on_post(own_accept))
        .fallback_service(rctp.market());
    // Nested, where axum strips the prefix; and with the prefix in the routes.
    let nested = Router::new().nest_service("/market", rctp.layer().layer(inside));
    let service = routed(nested);
    let path = format!("/market/offers/{offer}/accept");
    let request = signed(
        &market.seller,
        Some(SELLER_TOKEN),
        &path,
        &json!({}),
        &fresh_key(),
    );
    let answer = send_to(&service, request).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    // Without the prefix, it is no operation.
    let request = signed(
        &market.buyer,
        None,
        "/offers",
        &offer_body(FLOOR),
        &fresh_key(),
    );
    assert_eq!(send_to(&service, request).await.status, 404);
}

// ---- Put together wrongly -------------------------------------------------------------------------------------------

#[tokio::test]
async fn every_wrong_setting_names_itself() {
    let goods = TermSets::reference().get("goods-1").unwrap().clone();
    let market = Market::on(Backing::memory().await).await;
    let key = || market.gateway_key.clone();
    let whole = || {
        builder(&market)
            .store(MemoryStore::default())
            .signing_key(key())
    };
    assert!(whole().build().is_ok());
    let without = || {
        Rctp::builder()
            .introspect_with(market.grants.clone())
            .fetch_with(market.origins.clone())
            .store(MemoryStore::default())
            .signing_key(key())
    };
    let introspection =
        |url: &str| Introspection::endpoint(url).client_secret_basic("id", "hush-hush");
    let tiers = |json: Value| serde_json::from_value::<Tiers>(json).unwrap();
    let accept = "dev.rctp.deal:offer_accept";
    let budget = OfferBudget::default;
    let expiry = OfferExpiry::default;
    let limits = Limits::default;
    let former = key().public_jwk();
    let mut private = key().public_jwk();
    private["d"] = json!("AAAA");
    let table: Vec<(&str, RctpBuilder)> = vec![
        ("public_url", without().operators(operators())),
        ("public_url", whole().public_url("gateway.example")),
        ("public_url", whole().public_url("http://gateway.example")),
        (
            "public_url",
            whole().public_url("https://gateway.example/?x=1"),
        ),
        (
            "public_url",
            whole().public_url("https://gateway.example/#x"),
        ),
        (
            "public_url",
            whole().public_url("https://user@gateway.example"),
        ),
        ("public_url", whole().public_url("ftp://gateway.example")),
        ("authority", whole().authority("not a host")),
        ("operators", without().public_url(GATEWAY)),
        ("operators", whole().operators(Operators::default())),
        (
            "operators",
            whole().operators(Operators::onboarded(["agent.example"])),
        ),
        (
            "operators",
            whole().operators(Operators::onboarded(["http://agent.example/ucp"])),
        ),
        (
            "operators",
            whole().operators(
                Operators::default()
                    .with(Operator::new("https://a.example/ucp").client("c"))
                    .with(Operator::new("https://b.example/ucp").client("c")),
            ),
        ),
        ("mechanisms", whole().mechanisms(Mechanisms::none())),
        (
            "introspection",
            whole().introspection(introspection("http://as.example/introspect")),
        ),
        (
            "introspection",
            whole().introspection(introspection("as.example")),
        ),
        (
            "introspection",
            whole().introspection(Introspection::endpoint("https://as.example/i")),
        ),
        (
            "introspection",
            Rctp::builder()
                .public_url(GATEWAY)
                .operators(operators())
                .store(MemoryStore::default())
                .signing_key(key()),
        ),
        ("store", builder(&market).signing_key(key())),
        (
            "signing_key",
            builder(&market).store(MemoryStore::default()),
        ),
        ("former_key", whole().former_key(json!({"kty": "EC"}))),
        ("former_key", whole().former_key(private)),
        (
            "former_key",
            whole()
                .former_key(former.clone())
                .former_key(former.clone()),
        ),
        (
            "tiers",
            whole().tiers(tiers(
                json!({"x": {"default_tier": "ask", "allowed_tiers": ["ask"]}}),
            )),
        ),
        (
            "tiers",
            whole().tiers(tiers(
                json!({accept: {"default_tier": "ask", "allowed_tiers": []}}),
            )),
        ),
        (
            "tiers",
            whole().tiers(tiers(
                json!({accept: {"default_tier": "auto", "allowed_tiers": ["ask"]}}),
            )),
        ),
        (
            "tiers",
            whole().tiers(Tiers::none().offer(Verb::AccountUpdate, Tier::Auto, &[Tier::Auto])),
        ),
        (
            "tiers",
            whole().tiers(Tiers::none().offer(Verb::OfferCreate, Tier::Auto, &[Tier::Auto])),
        ),
        (
            "tiers",
            whole().tiers(Tiers::default().offer(
                Verb::ListingSetTerms,
                Tier::Ask,
                &[Tier::Ask, Tier::Auto],
            )),
        ),
        (
            "offer_budget.window_hours",
            whole().offer_budget(OfferBudget {
                window_hours: 0,
                ..budget()
            }),
        ),
        (
            "offer_budget.per_agent",
            whole().offer_budget(OfferBudget {
                per_agent: 0,
                ..budget()
            }),
        ),
        (
            "offer_budget.per_operator",
            whole().offer_budget(OfferBudget {
                per_operator: 0,
                ..budget()
            }),
        ),
        (
            "offer_budget.seller_probes",
            whole().offer_budget(OfferBudget {
                seller_probes: 0,
                ..budget()
            }),
        ),
        (
            "offer_expiry.default_seconds",
            whole().offer_expiry(OfferExpiry {
                default_seconds: 0,
                ..expiry()
            }),
        ),
        (
            "offer_expiry.max_seconds",
            whole().offer_expiry(OfferExpiry {
                max_seconds: 0,
                ..expiry()
            }),
        ),
        (
            "offer_expiry.default_seconds",
            whole().offer_expiry(OfferExpiry {
                max_seconds: 60,
                ..expiry()
            }),
        ),
        (
            "limits.approval_seconds",
            whole().limits(Limits {
                approval_seconds: 0,
                ..limits()
            }),
        ),
        (
            "limits.checkout_seconds",
            whole().limits(Limits {
                checkout_seconds: 0,
                ..limits()
            }),
        ),
        ("body_limit", whole().body_limit(0)),
        ("term_sets", whole().term_sets::<[&str; 0], _>([])),
        ("term_sets", whole().term_sets(["No Name"])),
        ("term_sets", whole().term_sets(["goods-1", "goods-2"])),
        ("term_set", whole().term_set(goods)),
    ];
    for (n, (setting, builder)) in table.into_iter().enumerate() {
        let error = match builder.build() {
            Ok(_) => panic!("row {n}, {setting}: it was built"),
            Err(error) => error.to_string(),
        };
        assert!(error.starts_with(setting), "row {n}, {setting}: {error}");
        assert!(error.len() > setting.len() + 10, "row {n}: {error}");
        assert!(!error.contains("hush-hush"), "row {n}: {error}");
    }
    // In development, http to loopback is allowed.
    let dev = whole()
        .dev(true)
        .public_url("http://localhost:3000")
        .introspection(introspection("http://localhost:9000/introspect"));
    assert!(dev.build().is_ok());
    // The layers alone ask for what they need, and for nothing else.
    let alone = [
        ("public_url", Rctp::builder().authenticate_alone().err()),
        ("introspection", Rctp::builder().grant_alone("x").err()),
        ("store", Rctp::builder().idempotency_alone().err()),
    ];
    for (setting, error) in alone {
        let error = error.unwrap().to_string();
        assert!(error.starts_with(setting), "{setting}: {error}");
    }
    assert!(
        Rctp::builder()
            .store(MemoryStore::default())
            .idempotency_alone()
            .is_ok()
    );
}
