//! Extractors for axum: [`Caller`], [`Grant`] and [`Decided`], and refusals as responses.

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::request::Parts;

use super::{body::Body, decision::Decided};
use crate::protocol::{caller::Caller, grant::Grant, refusal::Refusal};

/// Fails closed: a handler behind no layer refuses (design 4).
fn missing(what: &'static str) -> Refusal {
    tracing::error!(
        what,
        "an extractor found nothing; wrap the router with rctp.protect(…) or rctp.layer()"
    );
    Refusal::unavailable("this request was not decided; nothing was executed")
}

macro_rules! extractor {
    ($($type:ty, $name:literal);+) => {$(
        impl<S: Sync> FromRequestParts<S> for $type {
            type Rejection = Refusal;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
                parts.extensions.get::<Self>().cloned().ok_or_else(|| missing($name))
            }
        }
    )+};
}

extractor!(Caller, "Caller"; Grant, "Grant"; Decided, "Decided");

impl<S: Sync> OptionalFromRequestParts<S> for Grant {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> Result<Option<Self>, std::convert::Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.to_response().map(axum::body::Body::from)
    }
}

impl IntoResponse for Body {
    fn into_response(self) -> Response {
        Response::new(axum::body::Body::new(self))
    }
}
