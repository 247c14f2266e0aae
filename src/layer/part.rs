//! A part of the stack by itself, for a marketplace that puts layers of its own between the parts.

use http::{Extensions, Request, Response};
use tracing::Span;

use super::{
    arrive::{Arrive, Arrived},
    body::Body,
    step::{Next, Step},
};
use crate::protocol::{operation::Operation, refusal::Refusal};

/// Steps that stand further in than the arrival, in a layer of their own. What the stack as a whole lets pass, they let
/// pass as well.
#[derive(Clone, Debug)]
pub struct Part<T> {
    arrive: Arrive,
    step: T,
}

impl<T> Part<T> {
    pub(crate) fn new(arrive: Arrive, step: T) -> Self {
        Self { arrive, step }
    }
}

impl<T: Step> Step for Part<T> {
    fn concerns(&self, request: &Request<Body>) -> bool {
        self.arrive.concerns(request)
    }

    fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
        self.step.run(request, next)
    }

    fn span(&self, request: &Request<Body>) -> Span {
        self.step.span(request)
    }

    fn told(span: &Span, response: &Response<Body>) {
        T::told(span, response);
    }
}

/// The arrival, with its row.
pub(crate) fn row_of(extensions: &Extensions) -> Result<(&Arrived, &'static Operation), Refusal> {
    let arrived = extensions.get::<Arrived>();
    arrived.and_then(|a| Some((a, a.row()?))).ok_or_else(|| {
        put_together_wrongly("Arrived, with a row of the table: put Rctp::authenticate() outside")
    })
}

/// The refusal of a layer that does not find what an outer one leaves.
pub(crate) fn put_together_wrongly(missing: &str) -> Refusal {
    tracing::error!(
        missing,
        "a layer lacks what an outer one leaves; stack them as Rctp::layer() does"
    );
    Refusal::unavailable("this service is put together wrongly; nothing was executed")
}
