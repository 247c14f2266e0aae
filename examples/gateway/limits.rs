//! How much is taken at once: tower's own limits, around everything but `/health` and `/metrics`. What is too much is
//! answered at once, 503 with `Retry-After`, before anything looks at it: it can be sent again with the same
//! `Idempotency-Key`, which was not used.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    error_handling::HandleErrorLayer,
    response::{IntoResponse, Response},
};
use tower::{BoxError, ServiceBuilder, load_shed::error::Overloaded};
use tower_rctp::protocol::refusal::Refusal;

use super::{config::Capacity, metrics::Metrics};

/// How many requests may wait for the rate limit to look at them, which it does one by one.
const QUEUE: usize = 1024;

/// `app` within the limits.
pub fn within(capacity: &Capacity, metrics: &Arc<Metrics>, app: Router) -> Router {
    let shed = |limit| {
        let metrics = metrics.clone();
        HandleErrorLayer::new(move |error| async move { refuse(&metrics, limit, &error) })
    };
    // Clones share the permits.
    let limited = ServiceBuilder::new()
        .layer(shed("concurrency"))
        .load_shed()
        .concurrency_limit(capacity.concurrent_requests as usize)
        .service(app);
    let app = Router::new().fallback_service(limited);
    if capacity.requests_per_second == 0 {
        return app;
    }
    // A rate limit has no clones, so it stands behind a buffer. What it has no room for is shed within that, rather
    // than wait.
    let limited = ServiceBuilder::new()
        .layer(shed("rate"))
        .buffer(QUEUE)
        .load_shed()
        .rate_limit(capacity.requests_per_second.into(), Duration::from_secs(1))
        .service(app);
    Router::new().fallback_service(limited)
}

fn refuse(
    metrics: &Metrics,
    limit: &'static str,
    error: &BoxError,
) -> Result<Response, Infallible> {
    if error.is::<Overloaded>() {
        metrics.shed(limit);
    } else {
        tracing::error!(%error, "the limits broke off");
    }
    let refusal = Refusal::unavailable(
        "the gateway is busy; nothing was executed, send it again with the same Idempotency-Key",
    );
    Ok(refusal.into_response())
}
