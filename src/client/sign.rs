//! The signer as a tower layer, for any client that is a `Service` of requests.
//!
//! ```text
//! IdempotencyKeyLayer   one key for the request, whatever becomes of it
//!   your retry          attempts
//!     SignLayer         a signature of its own for each attempt
//!       your client     reqwest, hyper-util, …
//! ```
//!
//! A signature is good for 60 seconds and an `Idempotency-Key` for 48 hours, so the one is made anew for each attempt
//! and the other must not be: a retry under another key would act twice. [`Sign`] therefore refuses a POST that has
//! none.
//!
//! The signature covers the digest of the body, so the body must be whole: anything that is `AsRef<[u8]>`, such as
//! `Bytes`. Nothing is collected here, and no body is too large; whoever has a stream collects it first, under a limit
//! of their own (gateways take 256 KiB). `client::Agent` does all of this by itself.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
//! use tower_rctp::{
//!     client::{IdempotencyKeyLayer, SignLayer, Signer},
//!     wire::jwk::SigningKey,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let signer = Signer::new("https://agent.example/.well-known/ucp", SigningKey::generate()?)?;
//! let client = ServiceBuilder::new()
//!     .layer(IdempotencyKeyLayer::new())
//!     .layer(SignLayer::new(signer))
//!     .service(service_fn(async |sent: Request<Bytes>| {
//!         assert!(sent.headers().contains_key("signature"));
//!         assert!(sent.headers().contains_key("idempotency-key"));
//!         Ok::<_, BoxError>(Response::new(()))
//!     }));
//! let request = Request::post("https://gateway.example/offers/off_1/decline").body(Bytes::from("{}"))?;
//! client.oneshot(request).await?;
//! # Ok(()) }
//! ```

use std::{
    fmt,
    future::ready,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Method, Request};
use tower::{BoxError, Layer, Service};

use super::signer::{SignError, Signer, idempotency_key};
use crate::{layer::authenticate::IDEMPOTENCY_KEY, store::BoxFuture};

/// Signs every request that goes through.
#[derive(Clone)]
pub struct SignLayer {
    signer: Arc<Signer>,
}

impl SignLayer {
    /// Signs as `signer` does.
    pub fn new(signer: impl Into<Arc<Signer>>) -> Self {
        Self {
            signer: signer.into(),
        }
    }
}

impl fmt::Debug for SignLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignLayer")
    }
}

impl<S> Layer<S> for SignLayer {
    type Service = Sign<S>;

    fn layer(&self, inner: S) -> Sign<S> {
        Sign {
            inner,
            signer: self.signer.clone(),
        }
    }
}

/// A client whose requests are signed: see [`SignLayer`]. Its errors are [`SignError`] and the client's own.
#[derive(Clone)]
pub struct Sign<S> {
    inner: S,
    signer: Arc<Signer>,
}

impl<S: fmt::Debug> fmt::Debug for Sign<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sign")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S> Sign<S> {
    fn sign<B: AsRef<[u8]>>(&self, request: &mut Request<B>) -> Result<(), SignError> {
        if request.method() == Method::POST && !request.headers().contains_key(IDEMPOTENCY_KEY) {
            return Err(SignError::NoIdempotencyKey);
        }
        self.signer.sign(request)
    }
}

impl<S, B> Service<Request<B>> for Sign<S>
where
    S: Service<Request<B>, Error: Into<BoxError>, Future: Send + 'static>,
    S::Response: Send + 'static,
    B: AsRef<[u8]>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.sign(&mut request) {
            Ok(()) => {
                let answer = self.inner.call(request);
                Box::pin(async { answer.await.map_err(Into::into) })
            }
            Err(error) => Box::pin(ready(Err(error.into()))),
        }
    }
}

/// Gives every POST that has none an `Idempotency-Key` of 128 random bits. It belongs outside a retry.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdempotencyKeyLayer;

impl IdempotencyKeyLayer {
    /// The layer.
    pub fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for IdempotencyKeyLayer {
    type Service = GiveIdempotencyKey<S>;

    fn layer(&self, inner: S) -> GiveIdempotencyKey<S> {
        GiveIdempotencyKey { inner }
    }
}

/// A client whose POSTs have an `Idempotency-Key`: see [`IdempotencyKeyLayer`]. Its errors are
/// [`NoRandomness`](crate::layer::context::NoRandomness) and the client's own.
#[derive(Clone, Debug)]
pub struct GiveIdempotencyKey<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for GiveIdempotencyKey<S>
where
    S: Service<Request<B>, Error: Into<BoxError>, Future: Send + 'static>,
    S::Response: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if request.method() == Method::POST && !request.headers().contains_key(IDEMPOTENCY_KEY) {
            match idempotency_key() {
                Ok(key) => request.headers_mut().insert(IDEMPOTENCY_KEY, key),
                Err(error) => return Box::pin(ready(Err(error.into()))),
            };
        }
        let answer = self.inner.call(request);
        Box::pin(async { answer.await.map_err(Into::into) })
    }
}
