//! Tower's own limits around and within the stack (`docs/operations.md`): what they shed was not executed, and its
//! `Idempotency-Key` was not used.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use std::{convert::Infallible, sync::Arc};

use common::{FLOOR, Service, World, offer_body};
use http::{Request, Response};
use market::{around, fresh_key, send_to, signed};
use tokio::sync::Semaphore;
use tower::{
    BoxError, ServiceBuilder, ServiceExt, limit::GlobalConcurrencyLimitLayer, service_fn,
    util::BoxCloneSyncService,
};
use tower_rctp::{
    layer::body::Body,
    protocol::{record::SubjectKind, refusal::Refusal},
};

/// Answers as every 503 is answered. (With axum, `HandleErrorLayer` does this.)
fn shed<S>(service: S) -> Service
where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = BoxError>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    BoxCloneSyncService::new(service_fn(move |request| {
        let service = service.clone();
        async move {
            let response = service.oneshot(request).await;
            let busy = |_| Refusal::unavailable("busy").to_response().map(Body::from);
            Ok::<_, Infallible>(response.unwrap_or_else(busy))
        }
    }))
}

/// The offer is shed while somebody else has the only place, and then executed, as the first of its key.
async fn shed_and_then_executed(world: &World, service: &Service, places: Arc<Semaphore>) {
    let body = offer_body(FLOOR + 1);
    let offer = signed(&world.buyer, None, "/offers", &body, &fresh_key());
    let place = places.acquire().await.unwrap();
    let shed = send_to(service, offer.clone()).await;
    assert_eq!(shed.refusal(), (503, "unavailable"));
    assert_eq!(shed.headers["retry-after"], "1");
    drop(place);
    let executed = send_to(service, offer).await;
    assert_eq!(executed.status, 201, "{:?}", executed.body);
    let negotiation = executed.get("negotiation_id");
    let entries = world.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(entries.len(), 1);
}

#[tokio::test]
async fn a_limit_around_the_stack_sheds_before_it() {
    let world = World::new().await;
    let places = Arc::new(Semaphore::new(1));
    let limited = ServiceBuilder::new()
        .load_shed()
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(places.clone()))
        .layer(world.rctp.layer())
        .service(world.rctp.market());
    shed_and_then_executed(&world, &shed(limited), places).await;
}

#[tokio::test]
async fn a_limit_around_the_handlers_sheds_what_was_decided_but_not_executed() {
    let world = World::new().await;
    let places = Arc::new(Semaphore::new(1));
    let limited = ServiceBuilder::new()
        .load_shed()
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(places.clone()))
        .service(world.rctp.market());
    let service = around(&world.rctp, shed(limited));
    shed_and_then_executed(&world, &service, places).await;
}
