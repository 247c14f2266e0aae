//! How much is done at a time: tower's own concurrency limits, and its load shedding for what is beyond them.

use std::{convert::Infallible, future::Future};

use futures_util::FutureExt;
use tower::{
    Layer, ServiceExt, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShed, service_fn,
};

/// Beyond the limit: the work was dropped before it began.
#[derive(Debug)]
pub(super) struct Busy;

/// So much at a time, and nothing waits.
#[derive(Clone, Debug)]
pub(super) struct Limit(GlobalConcurrencyLimitLayer);

impl Limit {
    pub(super) fn new(at_once: usize) -> Self {
        Self(GlobalConcurrencyLimitLayer::new(at_once))
    }

    pub(super) async fn run<W: Future>(&self, work: W) -> Result<W::Output, Busy> {
        // The layer holds the semaphore; a service around it costs nothing, so each piece of work has its own.
        let service = self.0.layer(service_fn(infallible));
        LoadShed::new(service).oneshot(work).await.map_err(|_| Busy)
    }
}

/// So many tool calls at a time, and a queue behind them. Clones share both: give several endpoints of one gateway the
/// same one.
#[derive(Clone, Debug)]
pub struct CallLimit {
    running: GlobalConcurrencyLimitLayer,
    /// Running and waiting together.
    taken: Limit,
}

impl CallLimit {
    /// `running` at a time, and at most `queued` that wait for a place.
    pub fn new(running: usize, queued: usize) -> Self {
        Self {
            running: GlobalConcurrencyLimitLayer::new(running),
            taken: Limit::new(running + queued),
        }
    }

    pub(super) async fn run<W: Future>(&self, work: W) -> Result<W::Output, Busy> {
        // Readiness of the inner limit is awaited inside of the outer one: shed would otherwise be what should queue.
        let queued = self.running.layer(service_fn(infallible)).oneshot(work);
        let done = self.taken.run(queued).await?;
        Ok(done.unwrap_or_else(|never| match never {}))
    }
}

/// 8 at a time, and 64 that wait.
impl Default for CallLimit {
    fn default() -> Self {
        Self::new(8, 64)
    }
}

fn infallible<W: Future>(work: W) -> impl Future<Output = Result<W::Output, Infallible>> {
    work.map(Ok)
}
