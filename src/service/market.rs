//! The default handlers of a market: listings, offers, acceptance, deals (binding 5).
//!
//! They run behind the layers and only ever act on a [`Decided`]; each commits its unit itself, so that decision,
//! record, response and effect land together. What this version does not serve is answered 404.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tower::Service;

use crate::{
    layer::{
        arrive::{Arrived, refuse},
        body::Body,
        decision::{Decided, NotServed, Page, Span, json_response, of_listing},
    },
    protocol::{
        deal::{CHECKOUT_TYP, Checkout, Deal},
        decision::{Facts, NewOffer, Requested, exhausted, writer},
        event::{self, Progress, Rules},
        listing::{Listing, ListingState},
        offer::{self, Acceptance, By, Offer, OfferState},
        operation::Op,
        question::{self, Question},
        record::{Head, Subject, SubjectKind},
        refusal::{Reason, Refusal},
    },
    store::{CommitError, Count, Kind, Put, Unit, WindowCheck},
    wire::{jcs, jws},
};

/// The window that questions are counted in, in seconds.
const DAY: i64 = 86_400;

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
    match decided.operation().op {
        Op::GetListing => ok(&there(&facts.listing)?.view(now)),
        Op::GetOffer => ok(&there(&facts.offer)?.view(now)),
        Op::GetDeal => ok(&there(&facts.deal)?.view()),
        Op::GetApproval => ok(&there(&facts.approval)?.view(now)),
        Op::ListOffers => list_offers(decided, arrived).await,
        Op::ListQuestions => list_questions(decided, arrived).await,
        Op::CreateListing => create_listing(decided).await,
        Op::SetListingTerms | Op::RepriceListing => change_listing(decided).await,
        Op::AskQuestion => ask_question(decided, arrived).await,
        Op::AnswerBuyer => answer_buyer(decided, facts, arrived).await,
        Op::CommitToShip => commit_to_ship(decided, facts).await,
        Op::CreateOffer => create_offer(decided, facts).await,
        Op::CounterOffer => counter_offer(decided, facts).await,
        Op::AcceptOffer => accept_offer(decided, facts).await,
        Op::DeclineOffer => decline_offer(decided, facts).await,
        Op::CreateDeal => create_deal(decided, facts).await,
        Op::PostDealEvent => post_deal_event(decided, facts).await,
        Op::GetDealEvents => get_deal_events(decided, facts, arrived).await,
        Op::RespondApproval | Op::SignContract | Op::UpdateAccount => Err(Failure::NotServed),
    }
}

/// The decision saw to it that the subject is there.
fn there<T>(fact: &Option<T>) -> Result<&T, Refusal> {
    fact.as_ref().ok_or_else(Refusal::not_found)
}

fn ok(view: &impl Serialize) -> Answer {
    Ok(json_response(StatusCode::OK, view).map(Body::from))
}

fn created(view: &impl Serialize) -> Response<Bytes> {
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

/// Approved: a listing with the terms that the seller confirmed. Under `auto`: one without; `listing.set_terms` follows
/// (binding 4.2).
async fn create_listing(decided: &Decided) -> Answer {
    let (listing, puts) = of_listing(decided).ok_or(Failure::NotServed)?;
    let view = created(&listing.view(decided.now()));
    Ok(decided.commit(|unit| unit.put.extend(puts), view).await?)
}

/// New terms, or a new price, for future offers (binding 5.3).
async fn change_listing(decided: &Decided) -> Answer {
    let (listing, puts) = of_listing(decided).ok_or(Failure::NotServed)?;
    let view = json_response(StatusCode::OK, &listing.view(decided.now()));
    Ok(decided.commit(|unit| unit.put.extend(puts), view).await?)
}

/// A buyer's question, in a window of its own so that no agent wears the seller down (R29).
async fn ask_question(decided: &Decided, arrived: &Arrived) -> Answer {
    let listing = there(&decided.facts().listing)?;
    let now = decided.now();
    let limits = &decided.policy().limits;
    let since = now.plus(-DAY);
    let window = format!(
        "questions|{}|{}",
        listing.listing_id,
        decided.caller().agent()
    );
    let counted = decided.store().windows(vec![window.clone()], since).await;
    let counted = counted
        .map_err(Refusal::from)?
        .into_iter()
        .next()
        .unwrap_or_default();
    if let Some(frees) = exhausted(&counted, limits.questions_per_agent, DAY, now) {
        return Err(Refusal::forbid(
            Reason::OfferBudgetExhausted,
            "this agent has asked enough about this listing for now",
        )
        .retry_after(now.until(frees).max(1))
        .into());
    }
    let question = Question {
        question_id: decided.id("qst")?,
        listing_id: listing.listing_id.clone(),
        text: text(arrived)?,
        asked_by: decided.caller().agent(),
        created_at: now,
        answer: None,
    };
    let change = |unit: &mut Unit| {
        unit.put.push(put_question(decided, &question));
        unit.windows.push(WindowCheck {
            window: window.clone(),
            since,
            expected: counted.len(),
        });
        unit.counts.push(Count {
            window,
            at: now,
            expires: now.plus(DAY),
        });
    };
    Ok(decided.commit(change, created(&question.view())).await?)
}

async fn answer_buyer(decided: &Decided, facts: &Facts, arrived: &Arrived) -> Answer {
    let answered = Question {
        answer: Some(question::Answer {
            text: text(arrived)?,
            at: decided.now(),
        }),
        ..there(&facts.question)?.clone()
    };
    let response = json_response(StatusCode::OK, &answered.view());
    let put = put_question(decided, &answered);
    Ok(decided.commit(|unit| unit.put.push(put), response).await?)
}

fn put_question(decided: &Decided, question: &Question) -> Put {
    let (id, parent) = (&*question.question_id, Some(&*question.listing_id));
    decided.put(Kind::Question, id, parent, None, question)
}

/// The text of a question or an answer; the body satisfies its schema.
fn text(arrived: &Arrived) -> Result<String, Refusal> {
    #[derive(serde::Deserialize)]
    struct Body {
        text: String,
    }
    serde_json::from_slice::<Body>(arrived.body())
        .map(|body| body.text)
        .map_err(|_| Refusal::invalid("the body does not have the form that this operation takes"))
}

async fn commit_to_ship(decided: &Decided, facts: &Facts) -> Answer {
    let committed = Deal {
        committed_to_ship_at: Some(decided.now()),
        ..there(&facts.deal)?.clone()
    };
    let (id, parent) = (&*committed.deal_id, Some(&*committed.listing_id));
    let put = decided.put(Kind::Deal, id, parent, None, &committed);
    let response = json_response(StatusCode::OK, &committed.view());
    Ok(decided.commit(|unit| unit.put.push(put), response).await?)
}

/// Binding 8.1: the deal as the event leaves it, on the condition that it is as it was read, and the event itself in the
/// deal's chain.
async fn post_deal_event(decided: &Decided, facts: &Facts) -> Answer {
    let Requested::Event(signed) = &facts.requested else {
        return Err(Failure::NotServed);
    };
    let (deal, event, now) = (there(&facts.deal)?, &signed.event, decided.now());
    let writer = writer(decided.caller(), decided.grant(), deal);
    let mut recorded = Deal {
        progress: event::record(&deal.progress, &deal.rules, event, writer, now)?,
        ..deal.clone()
    };
    recorded.writers.insert(decided.caller().operator.clone());
    let (id, parent) = (&*recorded.deal_id, Some(&*recorded.listing_id));
    let put = decided.put(Kind::Deal, id, parent, None, &recorded);
    let answer = json!({
        "deal_id": event.deal_id,
        "event_id": event.event_id,
        "event": event.event,
        "recorded_at": now,
        "counts": deal.rules.count(event),
    });
    let change = |unit: &mut Unit| unit.put.push(put);
    Ok(decided.commit(change, created(&answer)).await?)
}

/// A page of the deal's chain, and its signed head. The head is read first, so that it is never before what the page
/// shows: what is recorded meanwhile is on the next page.
async fn get_deal_events(decided: &Decided, facts: &Facts, arrived: &Arrived) -> Answer {
    let deal_id = &there(&facts.deal)?.deal_id;
    let Span { from, limit } = Span::of(arrived)?;
    let subject = Subject::new(SubjectKind::Deal, &**deal_id);
    let store = decided.store();
    let head = store.head(subject.clone()).await.map_err(Refusal::from)?;
    let after = head.as_ref().map_or(0, |head| head.seq + 1);
    let limit = limit.min(usize::try_from(after.saturating_sub(from)).unwrap_or(limit));
    let page = store
        .chain(subject, from, limit)
        .await
        .map_err(Refusal::from)?;
    let entries = page.iter().map(|sealed| {
        serde_json::from_slice::<Value>(&sealed.published).map_err(|error| {
            tracing::error!(%error, "a stored entry is not readable");
            Refusal::unavailable("a stored entry is not readable")
        })
    });
    let mut answer = json!({
        "deal_id": deal_id,
        "entries": entries.collect::<Result<Vec<_>, _>>()?,
    });
    if let Some(next) = page.last().map(|last| last.seq + 1).filter(|n| *n < after) {
        answer["next"] = json!(next);
    }
    if let Some(head) = &head {
        let signed = Head::of(head, decided.key()).map_err(|error| {
            tracing::error!(%error, "the head of a chain could not be signed");
            Refusal::unavailable("the head of the record could not be signed")
        })?;
        answer["head"] = json!(signed);
    }
    Ok(json_response(StatusCode::OK, &answer).map(Body::from))
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
    let rules = Rules::of(listing, &decided.policy().term_sets);
    let (accepted, reserved) = offer::accept(offer, listing, rules, until, checkout);
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
        committed_to_ship_at: None,
        rules: acceptance.rules.clone(),
        progress: Progress::default(),
        seller_operator: listing.operator.clone(),
        writers: BTreeSet::new(),
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
    let (listing_id, page) = Page::of_listing(arrived)?;
    let now = decided.now();
    let view = |offer: &Offer| Some(json!(offer.view(now)));
    list(decided, Kind::Offer, listing_id, page, "offers", view).await
}

/// The questions on a listing, oldest first, a page at a time: all for its seller, their own for a buyer's agent.
async fn list_questions(decided: &Decided, arrived: &Arrived) -> Answer {
    let listing_id = there(&decided.facts().listing)?.listing_id.clone();
    let page = Page::of(arrived)?;
    let buyer = decided.grant().is_none().then(|| decided.caller().agent());
    let view = |question: &Question| {
        let theirs = buyer.as_ref().is_none_or(|b| *b == question.asked_by);
        theirs.then(|| question.view())
    };
    list(decided, Kind::Question, listing_id, page, "questions", view).await
}

/// A page of what is stored under a listing, as `view` shows it; `next` is the `after` of the page that follows.
async fn list<T: DeserializeOwned>(
    decided: &Decided,
    kind: Kind,
    listing_id: String,
    Page { after, limit }: Page,
    name: &str,
    view: impl Fn(&T) -> Option<Value>,
) -> Answer {
    let mut after = after;
    // What is not shown does not count, and no id of it is told: neither how many there are, nor when they came.
    let mut shown: Vec<(String, Value)> = Vec::new();
    loop {
        let docs = decided
            .store()
            .list(kind, listing_id.clone(), after, limit + 1)
            .await
            .map_err(Refusal::from)?;
        for doc in &docs {
            let value: T = serde_json::from_slice(&doc.body).map_err(|error| {
                tracing::error!(%error, kind = kind.as_str(), "a stored document is not readable");
                Refusal::unavailable("a stored document is not readable")
            })?;
            shown.extend(view(&value).map(|view| (doc.key.id.clone(), view)));
        }
        if docs.len() <= limit || shown.len() > limit {
            break;
        }
        after = docs.last().map(|doc| doc.key.id.clone());
    }
    let more = shown.len() > limit;
    shown.truncate(limit);
    let next = more
        .then(|| shown.last().map(|(id, _)| id.clone()))
        .flatten();
    let views: Vec<Value> = shown.into_iter().map(|(_, view)| view).collect();
    let mut page = json!({ name: views });
    if let Some(next) = next {
        page["next"] = json!(next);
    }
    Ok(json_response(StatusCode::OK, &page).map(Body::from))
}
