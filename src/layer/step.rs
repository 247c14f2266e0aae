//! How the layers are built: a [`Step`] is a layer's inside, and steps compose without a box between them.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tower::{BoxError, Layer, Service, ServiceExt};
use tracing::Span;

use super::{body::Body, trace};

/// What comes after a step: the next step, or the service inside. A step may run it more than once.
pub trait Next: Clone + Send + 'static {
    /// The inner service's error.
    type Error: Send + 'static;

    /// Runs the rest of the stack.
    fn run(
        self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Body>, Self::Error>> + Send + 'static;
}

/// A layer's inside. It is cloned for each request, so it holds its state behind an `Arc`.
pub trait Step: Clone + Send + Sync + 'static {
    /// Whether the step has anything to do with the request; when not, it goes straight to the service inside.
    fn concerns(&self, _request: &Request<Body>) -> bool {
        true
    }

    /// Handles the request: answers it, or runs `next`.
    fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static;

    /// The span that it runs in; by default none.
    fn span(&self, _request: &Request<Body>) -> Span {
        Span::none()
    }

    /// Tells its span what came of the request.
    fn told(_span: &Span, _response: &Response<Body>) {}
}

impl<A: Step, B: Step> Step for (A, B) {
    fn concerns(&self, request: &Request<Body>) -> bool {
        self.0.concerns(request)
    }

    fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
        let (first, second) = self;
        first.run(request, Then { step: second, next })
    }

    fn span(&self, request: &Request<Body>) -> Span {
        self.0.span(request)
    }

    fn told(span: &Span, response: &Response<Body>) {
        A::told(span, response);
    }
}

#[derive(Clone)]
struct Then<B, N> {
    step: B,
    next: N,
}

impl<B: Step, N: Next> Next for Then<B, N> {
    type Error = N::Error;

    fn run(
        self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
        trace::run(self.step, request, self.next)
    }
}

/// The service inside, as the last [`Next`].
#[derive(Clone)]
struct Call<S>(S);

impl<S, B> Next for Call<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Error = S::Error;

    async fn run(self, request: Request<Body>) -> Result<Response<Body>, S::Error> {
        // Readiness is acquired here and not in `poll_ready`: one request may call the service several times, and a
        // refusal must not hold a permit.
        Ok(self.0.oneshot(request).await?.map(Body::new))
    }
}

/// A [`Layer`] made of steps.
#[derive(Clone, Debug)]
pub struct Stack<T>(pub(crate) T);

impl<T: Step> Stack<T> {
    /// A layer of one step, or of a tuple of them.
    pub fn new(step: T) -> Self {
        Self(step)
    }
}

impl<T: Step, S> Layer<S> for Stack<T> {
    type Service = Stacked<T, S>;

    fn layer(&self, inner: S) -> Stacked<T, S> {
        Stacked {
            step: self.0.clone(),
            inner,
        }
    }
}

/// Steps in front of a service. Always ready; see the pitfalls in `docs/architecture.md`.
#[derive(Clone, Debug)]
pub struct Stacked<T, S> {
    step: T,
    inner: S,
}

type Boxed<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<T, S, B, R> Service<Request<B>> for Stacked<T, S>
where
    T: Step,
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Boxed<S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Boxed<S::Error> {
        let request = request.map(Body::new);
        let inner = Call(self.inner.clone());
        if self.step.concerns(&request) {
            Box::pin(trace::run(self.step.clone(), request, inner))
        } else {
            Box::pin(inner.run(request))
        }
    }
}
