//! The simple mode: for a marketplace's own handler that knows nothing of units.
//!
//! Wrap the handler where it is routed, `post(accept_offer).layer(rctp.simple())`. The decision, and for an acceptance
//! the reservation, are durable before it runs; its response after it. Handler and response run detached, so that a
//! client that hangs up cannot leave the key unfinished. An execution that never finished (a panic, a 5xx, a crash)
//! is not repeated (R10); a [`Reconcile`](crate::layer::idempotency::Reconcile) hook can settle it.

use http::{Request, Response};

use super::Decided;
use crate::{
    layer::{
        arrive::refuse,
        body::Body,
        idempotency::{Executing, Settled, key_taken, unfinished, unstored},
        step::{Next, Step},
    },
    protocol::{
        decision::{Decision, HEADER},
        offer,
        operation::Op,
        refusal::Refusal,
    },
    store::{ClaimStep, CommitError, Kind, Put, Unit},
};

/// The largest response of a handler that is stored.
const MAX_RESPONSE: usize = 4 * 1024 * 1024;

/// The step around a handler.
#[derive(Clone, Copy, Debug)]
pub struct Simple;

impl Step for Simple {
    async fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        let Some(decided) = request.extensions().get::<Decided>().cloned() else {
            tracing::error!(
                "a handler in the simple mode found no decision; wrap the router with rctp.protect(…) or rctp.layer()"
            );
            return Ok(refuse(&Refusal::unavailable(
                "this request was not decided; nothing was executed",
            )));
        };
        if !decided.operation().writes() {
            return next.run(request).await;
        }
        // All of it is detached: a client that hangs up meanwhile would leave the key taken, and nothing carried out.
        let executing = request.extensions().get::<Executing>().cloned();
        let task = tokio::spawn(async move {
            let _executing = executing;
            let reservation = reservation(&decided);
            let mut unit = decided.unit();
            unit.claim = decided.claim(ClaimStep::Begin);
            unit.put.extend(reservation.iter().map(|r| r.held.clone()));
            match decided.commit_unit(unit).await {
                Ok(()) => {}
                Err(CommitError::KeyTaken) => return Ok(key_taken()),
                // The decision layer reads the slot and decides again, or answers 503.
                Err(CommitError::Conflict | CommitError::Store(_)) => {
                    return Ok(Response::new(Body::empty()));
                }
            }
            let response = next.run(request).await?;
            Ok(finish(&decided, reservation, response).await)
        });
        match task.await {
            Ok(response) => response,
            Err(error) => {
                tracing::error!(%error, "a handler did not finish; its key stays taken");
                Ok(refuse(&unfinished()))
            }
        }
    }
}

/// A document that the decision holds for the handler, and how it was before.
struct Reserved {
    held: Put,
    before: Put,
}

/// What an acceptance holds before the handler runs: the offer accepted, the listing reserved.
fn reservation(decided: &Decided) -> Vec<Reserved> {
    let facts = decided.facts();
    let (Op::AcceptOffer, Some(offer), Some(listing)) =
        (decided.operation().op, &facts.offer, &facts.listing)
    else {
        return Vec::new();
    };
    let until = offer::checkout_until(listing, &decided.policy().limits, decided.now());
    let (accepted, reserved) = offer::accept(offer, listing, until, None);
    let offer_put = |value: &offer::Offer| {
        let parent = Some(&*value.listing_id);
        decided.put(Kind::Offer, &value.offer_id, parent, Some(until), value)
    };
    let listing_put = |value: &crate::protocol::listing::Listing, due| {
        decided.put(Kind::Listing, &value.listing_id, None, due, value)
    };
    vec![
        Reserved {
            held: offer_put(&accepted),
            before: decided.put(
                Kind::Offer,
                &offer.offer_id,
                Some(&*offer.listing_id),
                Some(offer.expires_at),
                offer,
            ),
        },
        Reserved {
            held: listing_put(&reserved, Some(until)),
            before: listing_put(listing, None),
        },
    ]
}

/// Stores the handler's response; a refusal of the handler's own gives the reservation back.
async fn finish(
    decided: &Decided,
    reservation: Vec<Reserved>,
    response: Response<Body>,
) -> Response<Body> {
    if response.status().is_server_error() {
        // Whether it had an effect is not known: the key stays taken (R10), the reservation ends by its time.
        return response;
    }
    let (parts, body) = response.into_parts();
    let Ok(body) = body.collect(MAX_RESPONSE).await else {
        tracing::error!("a handler's response broke off, or is too large to be stored");
        return refuse(&unstored());
    };
    let refused = parts.status.is_client_error();
    let mut response = Response::from_parts(parts, body);
    if !refused {
        response
            .headers_mut()
            .insert(HEADER, Decision::Auto.to_header());
    }
    let unit = Unit {
        put: if refused {
            reservation.into_iter().map(Reserved::release).collect()
        } else {
            Vec::new()
        },
        claim: decided.response_claim(ClaimStep::Complete, &response),
        ..Unit::default()
    };
    match decided.commit_after(unit).await {
        Ok(()) => {
            let mut response = response.map(Body::from);
            response.extensions_mut().insert(Settled);
            response
        }
        Err(error) => {
            tracing::error!(%error, "a handler's response could not be stored");
            refuse(&unstored())
        }
    }
}

impl Reserved {
    /// The write that gives it back, over the one that held it.
    fn release(self) -> Put {
        Put {
            expected: self.held.expected + 1,
            ..self.before
        }
    }
}
