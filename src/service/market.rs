//! The default handlers of a market: listings, offers, acceptance, deals (binding 5).
//!
//! They run behind the layers and only ever act on a [`Decided`]; each commits its unit itself, so that decision,
//! record, response and effect land together. What this version does not serve is answered 404.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};
use tower::Service;

use crate::{
    layer::{
        arrive::{Arrived, refuse},
        body::Body,
        decision::{Decided, NotServed, OffersQuery, json_response},
    },
    protocol::{
        deal::{CHECKOUT_TYP, Checkout, Deal},
        decision::{Facts, NewListing, NewOffer, Requested},
        listing::{Listing, ListingState},
        offer::{self, Acceptance, By, Offer, OfferState},
        operation::Op,
        record::{Subject, SubjectKind},
        refusal::Refusal,
    },
    store::{CommitError, Kind, Put, Unit},
    wire::{jcs, jws},
};

/// The handlers as one service, for `fallback_service`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Market;

impl<B> Service<Request<B>> for Market {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let extensions = request.extensions();
        let decided = extensions.get::<Decided>().cloned();
        let arrived = extensions.get::<Arrived>().cloned();
        Box::pin(async move {
            let Some((decided, arrived)) = decided.zip(arrived) else {
                // Not one of ours, or the layers are missing: either way nothing is done.
                return Ok(refuse(&Refusal::not_found()));
            };
            Ok(match serve(&decided, &arrived).await {
                Ok(response) => response,
                Err(Failure::Refused(refusal)) => refuse(&refusal),
                // The decision layer reads the slot.
                Err(Failure::Commit) => Response::new(Body::empty()),
                Err(Failure::NotServed) => {
                    let mut response = refuse(&Refusal::not_found());
                    response.extensions_mut().insert(NotServed);
                    response
                }
            })
        })
    }
}

enum Failure {
    Refused(Refusal),
    Commit,
    NotServed,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

impl From<CommitError> for Failure {
    fn from(_: CommitError) -> Self {
        Failure::Commit
    }
}

type Answer = Result<Response<Body>, Failure>;

async fn serve(decided: &Decided, arrived: &Arrived) -> Answer {
    let facts = decided.facts();
    let now = decided.now();
    let ok = |view: Value| Ok(json_response(StatusCode::OK, &view).map(Body::from));
    match decided.operation().op {
        Op::GetListing => ok(there(&facts.listing)?.view(now)),
        Op::GetOffer => ok(there(&facts.offer)?.view(now)),
        Op::GetDeal => ok(there(&facts.deal)?.view()),
        Op::GetApproval => ok(there(&facts.approval)?.view(now)),
        Op::ListOffers => list_offers(decided, arrived).await,
        Op::CreateListing => create_listing(decided, facts).await,
        Op::CreateOffer => create_offer(decided, facts).await,
        Op::CounterOffer => counter_offer(decided, facts).await,
        Op::AcceptOffer => accept_offer(decided, facts).await,
        Op::DeclineOffer => decline_offer(decided, facts).await,
        Op::CreateDeal => create_deal(decided, facts).await,
        Op::SetListingTerms
        | Op::RepriceListing
        | Op::ListQuestions
        | Op::AskQuestion
        | Op::AnswerBuyer
        | Op::RespondApproval
        | Op::PostDealEvent
        | Op::GetDealEvents
        | Op::CommitToShip
        | Op::SignContract
        | Op::UpdateAccount => Err(Failure::NotServed),
    }
}

/// The decision saw to it that the subject is there.
fn there<T>(fact: &Option<T>) -> Result<&T, Refusal> {
    fact.as_ref().ok_or_else(Refusal::not_found)
}

fn created(view: &Value) -> Response<Bytes> {
    json_response(StatusCode::CREATED, view)
}

fn put_offer(decided: &Decided, offer: &Offer) -> Put {
    let due = match (offer.state, &offer.acceptance) {
        (OfferState::Open | OfferState::Countered | OfferState::AwaitingApproval, _) => {
            Some(offer.expires_at)
        }
        (OfferState::Accepted, Some(a)) if a.deal_id.is_none() => Some(a.until),
        _ => None,
    };
    decided.put(
        Kind::Offer,
        &offer.offer_id,
        Some(&offer.listing_id),
        due,
        offer,
    )
}

fn put_listing(decided: &Decided, listing: &Listing) -> Put {
    let due = match &listing.state {
        ListingState::Reserved { until, .. } => Some(*until),
        _ => None,
    };
    decided.put(Kind::Listing, &listing.listing_id, None, due, listing)
}

/// Completes the decision's own entry, the first of the unit.
fn entry(unit: &mut Unit, complete: impl FnOnce(&mut crate::protocol::record::Entry)) {
    if let Some(entry) = unit.entries.first_mut() {
        complete(entry);
    }
}

/// Under `auto`: a listing without terms; `listing.set_terms` follows (binding 4.2).
async fn create_listing(decided: &Decided, facts: &Facts) -> Answer {
    let (Requested::Listing(new), Some(grant)) = (&facts.requested, decided.grant()) else {
        return Err(Failure::NotServed);
    };
    let NewListing {
        title,
        description,
        category,
        list_price,
        term_set,
    } = new.clone();
    let listing = Listing {
        listing_id: decided.id("lst")?,
        seller: grant.sub.clone(),
        state: ListingState::Active,
        title,
        description,
        category,
        list_price,
        term_set,
        terms: None,
        created_at: decided.now(),
    };
    let change = |unit: &mut Unit| {
        unit.put.push(put_listing(decided, &listing));
        entry(unit, |entry| {
            entry.subject = Subject::new(SubjectKind::Listing, &*listing.listing_id);
            entry.listing_id = Some(listing.listing_id.clone());
        });
    };
    Ok(decided
        .commit(change, created(&listing.view(decided.now())))
        .await?)
}

async fn create_offer(decided: &Decided, facts: &Facts) -> Answer {
    let Requested::Offer(new) = &facts.requested else {
        return Err(Failure::NotServed);
    };
    let listing = there(&facts.listing)?;
    let caller = decided.caller();
    let offer = Offer {
        offer_id: decided.id("off")?,
        negotiation_id: there(&facts.negotiation_id)?.clone(),
        listing_id: listing.listing_id.clone(),
        by: By::Buyer,
        deal_terms: new.deal_terms.clone(),
        state: OfferState::Open,
        supersedes: new.supersedes.clone(),
        created_at: decided.now(),
        expires_at: expires_at(decided, new, listing),
        waits_until: None,
        acceptance: None,
        buyer: caller.agent(),
        buyer_operator: caller.operator.clone(),
        seller: listing.seller.clone(),
    };
    let change = |unit: &mut Unit| {
        if let Some(old) = &facts.supersedes {
            let superseded = Offer {
                state: OfferState::Superseded,
                ..old.clone()
            };
            unit.put.push(put_offer(decided, &superseded));
        }
        unit.put.push(put_offer(decided, &offer));
        entry(unit, |entry| entry.offer_id = Some(offer.offer_id.clone()));
    };
    Ok(decided
        .commit(change, created(&offer.view(decided.now())))
        .await?)
}

fn expires_at(
    decided: &Decided,
    new: &NewOffer,
    listing: &Listing,
) -> crate::protocol::time::Timestamp {
    let expiry = &decided.policy().expiry;
    offer::expires_at(new.expires_at, listing, expiry, decided.now())
}

/// A counter is an offer by the seller that supersedes the buyer's, which becomes `countered`.
async fn counter_offer(decided: &Decided, facts: &Facts) -> Answer {
    let Requested::Offer(new) = &facts.requested else {
        return Err(Failure::NotServed);
    };
    let (offer, listing) = (there(&facts.offer)?, there(&facts.listing)?);
    let counter = Offer {
        offer_id: decided.id("off")?,
        by: By::Seller,
        deal_terms: new.deal_terms.clone(),
        state: OfferState::Open,
        supersedes: Some(offer.offer_id.clone()),
        created_at: decided.now(),
        expires_at: expires_at(decided, new, listing),
        waits_until: None,
        acceptance: None,
        ..offer.clone()
    };
    let countered = Offer {
        state: OfferState::Countered,
        ..offer.clone()
    };
    let change = |unit: &mut Unit| {
        unit.put.push(put_offer(decided, &countered));
        unit.put.push(put_offer(decided, &counter));
        entry(unit, |entry| {
            entry.offer_id = Some(counter.offer_id.clone())
        });
    };
    Ok(decided
        .commit(change, created(&counter.view(decided.now())))
        .await?)
}

/// Binding 5.3: the offer becomes `accepted`, the listing `reserved`, and a buyer who signs gets a checkout.
async fn accept_offer(decided: &Decided, facts: &Facts) -> Answer {
    let (offer, listing) = (there(&facts.offer)?, there(&facts.listing)?);
    let now = decided.now();
    let until = offer::checkout_until(listing, &decided.policy().limits, now);
    let checkout = match &offer.buyer {
        crate::protocol::caller::Agent::Key(buyer_jkt) => {
            let claims = Checkout {
                iss: decided.issuer().to_owned(),
                offer_id: offer.offer_id.clone(),
                negotiation_id: offer.negotiation_id.clone(),
                listing_id: offer.listing_id.clone(),
                listing_hash: listing.hash(),
                deal_terms: offer.deal_terms.clone(),
                buyer_jkt: buyer_jkt.clone(),
                nonce: decided.nonce()?,
                iat: now.secs(),
                exp: until.secs(),
            };
            Some(sign(decided, &claims)?)
        }
        crate::protocol::caller::Agent::Client(_) => None,
    };
    let (accepted, reserved) = offer::accept(offer, listing, until, checkout);
    let change = |unit: &mut Unit| {
        unit.put.push(put_offer(decided, &accepted));
        unit.put.push(put_listing(decided, &reserved));
    };
    let response = json_response(StatusCode::OK, &accepted.view(now));
    Ok(decided.commit(change, response).await?)
}

fn sign(decided: &Decided, claims: &Checkout) -> Result<String, Refusal> {
    let signed = jcs::canonical(claims)
        .map_err(|e| e.to_string())
        .and_then(|payload| {
            jws::sign(CHECKOUT_TYP, &payload, decided.key()).map_err(|e| e.to_string())
        });
    signed.map_err(|error| {
        tracing::error!(%error, "a checkout could not be signed; nothing was executed");
        Refusal::unavailable("the checkout could not be signed; nothing was executed")
    })
}

async fn decline_offer(decided: &Decided, facts: &Facts) -> Answer {
    let declined = Offer {
        state: OfferState::Declined,
        ..there(&facts.offer)?.clone()
    };
    let change = |unit: &mut Unit| unit.put.push(put_offer(decided, &declined));
    let response = json_response(StatusCode::OK, &declined.view(decided.now()));
    Ok(decided.commit(change, response).await?)
}

/// Redeems a checkout, once: the nonce is a document that must be new (R22).
async fn create_deal(decided: &Decided, facts: &Facts) -> Answer {
    let Requested::Checkout(checkout) = &facts.requested else {
        return Err(Failure::NotServed);
    };
    let (offer, listing) = (there(&facts.offer)?, there(&facts.listing)?);
    let acceptance = there(&offer.acceptance)?;
    let deal = Deal {
        deal_id: decided.id("deal")?,
        offer_id: offer.offer_id.clone(),
        negotiation_id: offer.negotiation_id.clone(),
        listing_id: listing.listing_id.clone(),
        listing_hash: checkout.listing_hash.clone(),
        deal_terms: checkout.deal_terms.clone(),
        terms_commitment: acceptance.terms_commitment.clone(),
        buyer_jkt: checkout.buyer_jkt.clone(),
        buyer_operator: offer.buyer_operator.clone(),
        seller: offer.seller.clone(),
        created_at: decided.now(),
    };
    let redeemed = Offer {
        acceptance: Some(Acceptance {
            deal_id: Some(deal.deal_id.clone()),
            ..acceptance.clone()
        }),
        ..offer.clone()
    };
    let sold = Listing {
        state: ListingState::Sold {
            offer_id: offer.offer_id.clone(),
            deal_id: deal.deal_id.clone(),
        },
        ..listing.clone()
    };
    let change = |unit: &mut Unit| {
        unit.put.push(put_offer(decided, &redeemed));
        unit.put.push(put_listing(decided, &sold));
        let parent = Some(&*listing.listing_id);
        unit.put
            .push(decided.put(Kind::Deal, &deal.deal_id, parent, None, &deal));
        let used = decided.put(Kind::Nonce, &checkout.nonce, None, None, &deal.deal_id);
        unit.put.push(used);
        entry(unit, |entry| {
            entry.subject = Subject::new(SubjectKind::Deal, &*deal.deal_id);
            entry.terms_commitment = deal.terms_commitment.clone();
        });
    };
    Ok(decided.commit(change, created(&deal.view())).await?)
}

/// The offers on a listing, oldest first, a page at a time.
async fn list_offers(decided: &Decided, arrived: &Arrived) -> Answer {
    let OffersQuery {
        listing_id,
        after,
        limit,
    } = OffersQuery::of(arrived)?;
    let docs = decided
        .store()
        .list(Kind::Offer, listing_id, after, limit + 1)
        .await
        .map_err(Refusal::from)?;
    let more = docs.len() > limit;
    let offers: Vec<Offer> = docs
        .iter()
        .take(limit)
        .map(|doc| serde_json::from_slice(&doc.body))
        .collect::<Result<_, _>>()
        .map_err(|error| {
            tracing::error!(%error, "a stored offer is not readable");
            Refusal::unavailable("a stored document is not readable")
        })?;
    let views: Vec<Value> = offers.iter().map(|o| o.view(decided.now())).collect();
    let mut page = json!({ "offers": views });
    if let (true, Some(last)) = (more, offers.last()) {
        page["next"] = json!(last.offer_id);
    }
    Ok(json_response(StatusCode::OK, &page).map(Body::from))
}
