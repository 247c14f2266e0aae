//! The simple mode: for a marketplace's own handler that knows nothing of units.
//!
//! Wrap the handler where it is routed, `post(accept_offer).layer(rctp.simple())`. The decision is durable before it
//! runs, and with it what it does to the offer: an acceptance reserves the listing, a counter counters, a decline
//! declines. The handler's response is durable after it. All of it runs detached, so that a client that hangs up cannot
//! leave the key unfinished. An execution that never finished (a panic, a 5xx, a crash) is not repeated (R10); a
//! [`Reconcile`](crate::layer::idempotency::Reconcile) hook can settle it.
//!
//! A listing that is made, or gets other terms or another price, is so in the store before the handler runs. A 4xx of the
//! handler gives the listing, the offer and the reservation back; answered as a [`Refusal`] with a reason, it enters the
//! record. Redeeming a checkout and writing a deal event have no simple mode: they happen once because the deal lands
//! with them, so that `create_deal` and `post_deal_event` are the market's, or commit a unit themselves.

use http::{Request, Response};
use tracing::Span;

use super::{Decided, collected, effect::of_listing};
use crate::{
    layer::{
        arrive::refuse,
        body::Body,
        idempotency::{Executing, Settled, key_taken, unfinished, unstored},
        record::Recorded,
        step::{Next, Step},
        trace,
    },
    protocol::{
        decision::{Decision, HEADER},
        event::Rules,
        listing::{Listing, ListingState},
        offer::{self, Offer, OfferState},
        operation::Op,
        refusal::Refusal,
        terms::PrivateTerms,
    },
    store::{ClaimStep, CommitError, Doc, Key, Kind, Put, StoreError, Unit},
};

/// How often what was held is given back against those who change it at once.
const ATTEMPTS: usize = 16;

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
        if matches!(decided.operation().op, Op::CreateDeal | Op::PostDealEvent) {
            tracing::error!(
                "{} has no simple mode; serve it with rctp.market(), or commit its unit",
                decided.operation().name,
            );
            return Ok(refuse(&Refusal::unavailable(
                "the handler of this operation is not bound to its decision",
            )));
        }
        // All of it is detached: a client that hangs up meanwhile would leave the key taken, and nothing carried out.
        let executing = request.extensions().get::<Executing>().cloned();
        let task = async move {
            let _executing = executing;
            let mut unit = decided.unit();
            unit.claim = decided.claim(ClaimStep::Begin);
            unit.put.extend(held(&decided));
            match decided.commit_unit(unit).await {
                Ok(()) => {}
                Err(CommitError::KeyTaken) => return Ok(key_taken()),
                // The decision layer reads the slot and decides again, or answers 503.
                Err(CommitError::Conflict | CommitError::Store(_)) => {
                    return Ok(Response::new(Body::empty()));
                }
            }
            let response = next.run(request).await?;
            Ok(finish(&decided, response).await)
        };
        let task = tokio::spawn(trace::detached(task));
        match task.await {
            Ok(response) => response,
            Err(error) => {
                tracing::error!(%error, "a handler did not finish; its key stays taken");
                Ok(refuse(&unfinished()))
            }
        }
    }

    fn span(&self, _: &Request<Body>) -> Span {
        tracing::debug_span!("rctp.simple")
    }
}

/// What the operation does to the documents that later decisions read.
pub(crate) fn held(decided: &Decided) -> Vec<Put> {
    if let Some((_, puts)) = of_listing(decided) {
        return puts;
    }
    let facts = decided.facts();
    let (Some(offer), Some(listing)) = (&facts.offer, &facts.listing) else {
        return Vec::new();
    };
    match decided.operation().op {
        Op::AcceptOffer => {
            let until = offer::checkout_until(listing, &decided.policy().limits, decided.now());
            let rules = Rules::of(listing, &decided.policy().term_sets);
            let (accepted, reserved) = offer::accept(offer, listing, rules, until, None);
            let (id, parent) = (&*accepted.offer_id, Some(&*accepted.listing_id));
            vec![
                decided.put(Kind::Offer, id, parent, Some(until), &accepted),
                decided.put(
                    Kind::Listing,
                    &reserved.listing_id,
                    None,
                    Some(until),
                    &reserved,
                ),
            ]
        }
        Op::CounterOffer => {
            let countered = Offer {
                state: OfferState::Countered,
                ..offer.clone()
            };
            let (id, due) = (&*countered.offer_id, Some(countered.expires_at));
            vec![decided.put(Kind::Offer, id, None, due, &countered)]
        }
        Op::DeclineOffer => {
            let declined = Offer {
                state: OfferState::Declined,
                ..offer.clone()
            };
            let (id, parent) = (&*declined.offer_id, Some(&*declined.listing_id));
            vec![decided.put(Kind::Offer, id, parent, None, &declined)]
        }
        _ => Vec::new(),
    }
}

/// Stores the handler's response; a refusal of its own gives back what was held.
async fn finish(decided: &Decided, response: Response<Body>) -> Response<Body> {
    if response.status().is_server_error() {
        // Whether it had an effect is not known: the key stays taken (R10), a reservation ends by its time.
        return response;
    }
    let Ok(mut response) = collected(response).await else {
        tracing::error!("a handler's response broke off, or is too large to be stored");
        return refuse(&unstored());
    };
    let refused = response.status().is_client_error();
    let mut unit = Unit::default();
    match response.extensions().get::<Refusal>().cloned() {
        Some(refusal) if refusal.reason().is_some() => {
            let (theirs, stated) = decided.refused(refusal, response);
            (unit.entries, unit.counts, response) = (theirs.entries, theirs.counts, stated);
            response.extensions_mut().insert(Recorded);
        }
        _ if !refused => {
            let auto = Decision::Auto.to_header();
            response.headers_mut().insert(HEADER, auto);
        }
        _ => {}
    }
    unit.claim = decided.response_claim(ClaimStep::Complete, &response);
    unit.put.extend(decided.outcome_put(&response));
    // Told now that it is known what came of it.
    let offers = match refused {
        true => Vec::new(),
        false => held(decided),
    };
    match decided.events(offers.iter().chain(&unit.put)) {
        Ok(events) => unit.put.extend(events),
        Err(error) => {
            tracing::error!(%error, "a handler's response could not be stored");
            return refuse(&unstored());
        }
    }
    match settle(decided, unit, refused).await {
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

async fn settle(decided: &Decided, unit: Unit, give_back: bool) -> Result<(), CommitError> {
    for _ in 0..ATTEMPTS {
        let mut unit = unit.clone();
        if give_back {
            unit.put.extend(given_back(decided).await?);
        }
        match decided.commit_after(unit).await {
            Err(CommitError::Conflict) => continue,
            done => return done,
        }
    }
    Err(CommitError::Conflict)
}

/// What was held, as it was before; what somebody else has changed meanwhile stays as they left it.
async fn given_back(decided: &Decided) -> Result<Vec<Put>, StoreError> {
    if let Some((held, _)) = of_listing(decided) {
        return listing_given_back(decided, &held).await;
    }
    let (Some(offer), Some(listing)) = (&decided.facts().offer, &decided.facts().listing) else {
        return Ok(Vec::new());
    };
    let keys = vec![
        Key::new(Kind::Offer, &*offer.offer_id),
        Key::new(Kind::Listing, &*listing.listing_id),
    ];
    let mut puts = Vec::new();
    for doc in decided.store().load(keys).await?.into_iter().flatten() {
        puts.extend(match doc.key.kind {
            Kind::Offer => {
                let now: Offer = read(&doc)?;
                let held = match decided.operation().op {
                    Op::AcceptOffer => {
                        now.state == OfferState::Accepted
                            && now.acceptance.as_ref().is_some_and(|a| a.deal_id.is_none())
                    }
                    Op::CounterOffer => now.state == OfferState::Countered,
                    Op::DeclineOffer => now.state == OfferState::Declined,
                    _ => false,
                };
                held.then(|| {
                    let before = Offer {
                        state: offer.state,
                        acceptance: None,
                        ..now
                    };
                    let before = match decided.resumes() {
                        // An ask that was approved waits no more, whatever came of it.
                        true => before.reopened(),
                        false => before,
                    };
                    over(doc, Some(before.expires_at), &before)
                })
            }
            _ => {
                let now: Listing = read(&doc)?;
                let held = matches!(
                    &now.state,
                    ListingState::Reserved { offer_id, .. } if *offer_id == offer.offer_id
                );
                (held && decided.operation().op == Op::AcceptOffer).then(|| {
                    let before = Listing {
                        state: ListingState::Active,
                        ..now
                    };
                    over(doc, None, &before)
                })
            }
        });
    }
    Ok(puts)
}

/// A listing that the handler refused to make is withdrawn; a changed one has its former terms or price again, unless
/// somebody else has changed them meanwhile. Terms and floor go together, or stay together.
async fn listing_given_back(decided: &Decided, held: &Listing) -> Result<Vec<Put>, StoreError> {
    let keys = vec![
        Key::new(Kind::Listing, &*held.listing_id),
        Key::new(Kind::PrivateTerms, &*held.listing_id),
    ];
    let docs: [Option<Doc>; 2] = decided
        .store()
        .load(keys)
        .await?
        .try_into()
        .map_err(|_| StoreError("load answered another number of documents".into()))?;
    let [Some(doc), private] = docs else {
        return Ok(Vec::new());
    };
    let now: Listing = read(&doc)?;
    let facts = decided.facts();
    let same_terms = now.terms == held.terms;
    let before = match (decided.operation().op, &facts.listing) {
        (Op::CreateListing, _) if same_terms => Listing {
            state: ListingState::Withdrawn,
            terms: None,
            ..now
        },
        (Op::SetListingTerms, Some(before)) if same_terms => Listing {
            terms: before.terms.clone(),
            ..now
        },
        (Op::RepriceListing, Some(before)) if now.list_price == held.list_price => Listing {
            list_price: before.list_price.clone(),
            ..now
        },
        _ => return Ok(Vec::new()),
    };
    let due = match &before.state {
        ListingState::Reserved { until, .. } => Some(*until),
        _ => None,
    };
    let mut puts = vec![over(doc, due, &before)];
    if let (Some(private), true) = (private, facts.draft.is_some()) {
        let nothing = PrivateTerms::new(None, [0; 16]);
        let before = facts.private.as_ref().unwrap_or(&nothing).to_stored();
        puts.push(Put {
            body: before.into(),
            ..over(private, None, &())
        });
    }
    Ok(puts)
}

fn read<T: serde::de::DeserializeOwned>(doc: &Doc) -> Result<T, StoreError> {
    serde_json::from_slice(&doc.body).map_err(|_| {
        StoreError(format!(
            "a stored {} is not readable",
            doc.key.kind.as_str()
        ))
    })
}

/// The write of a new value over the document as it was read.
fn over<T: serde::Serialize>(
    doc: Doc,
    due: Option<crate::protocol::time::Timestamp>,
    value: &T,
) -> Put {
    Put {
        key: doc.key,
        expected: doc.version,
        parent: None,
        due,
        body: serde_json::to_vec(value)
            .expect("our documents serialise")
            .into(),
    }
}
