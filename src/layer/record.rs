//! Is it written down? Refusals on their way out enter the deal record (binding 8.2, R30).
//!
//! Decisions commit their own entries. What is left are the refusals of the steps between: the grant's, and those of
//! a proven client whose claim fails. They enter the chain of their subject when the grant is that of its seller, and
//! the gateway's own chain otherwise, so that strangers cannot grow anybody's record.

use std::sync::Arc;

use http::{Request, Response};
use tracing::Span;

use super::{
    approve::Approved,
    arrive::{Arrived, refuse},
    body::Body,
    context::Clock,
    step::{Next, Step},
};
use crate::{
    protocol::{
        caller::Caller,
        deal::Deal,
        listing::Listing,
        offer::Offer,
        operation::Op,
        record::{Entry, Seal, Subject, SubjectKind},
        refusal::Refusal,
    },
    store::{Key, Kind, Store, StoreError, Unit},
};

/// Writes entries for refusals.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    seal: Arc<dyn Seal>,
    clock: Arc<dyn Clock>,
    /// The subject of the gateway's own chain.
    gateway: Subject,
}

/// Marks a response whose decision has its entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded;

impl Recorder {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        seal: Arc<dyn Seal>,
        clock: Arc<dyn Clock>,
        gateway: Subject,
    ) -> Self {
        Self(Arc::new(Inner {
            store,
            seal,
            clock,
            gateway,
        }))
    }

    /// Records the refusal and renders it; 503 when it cannot be recorded.
    pub(crate) async fn refuse(
        &self,
        refusal: Refusal,
        caller: Caller,
        arrived: &Arrived,
    ) -> Response<Body> {
        match self.record(&refusal, &caller, arrived).await {
            Ok(()) => {
                let mut response = refuse(&refusal);
                response.extensions_mut().insert(Recorded);
                response
            }
            Err(error) => {
                tracing::error!(%error, "a refusal could not be recorded");
                refuse(&Refusal::unavailable(
                    "the record cannot be written; nothing was executed",
                ))
            }
        }
    }

    async fn record(
        &self,
        refusal: &Refusal,
        caller: &Caller,
        arrived: &Arrived,
    ) -> Result<(), StoreError> {
        let mut entries = Vec::new();
        for op in arrived.rows() {
            let Some(decision) = refusal.clone().action(op.row().verb).decision() else {
                return Ok(());
            };
            let place = self
                .place(*op, arrived.id(), refusal.sub.as_deref())
                .await?;
            let mut entry = Entry::new(place.subject, self.0.clock.now(), *op, decision, caller);
            entry.listing_id = place.listing_id;
            entry.offer_id = place.offer_id;
            entries.push(entry);
        }
        if entries.is_empty() {
            return Ok(());
        }
        let unit = Unit {
            entries,
            ..Unit::default()
        };
        match self.0.store.commit(unit, self.0.seal.clone()).await {
            Ok(_) => Ok(()),
            Err(error) => Err(StoreError(error.to_string())),
        }
    }

    /// Where the entry goes: the subject's chain for its own seller, else the gateway's.
    async fn place(
        &self,
        op: Op,
        id: Option<&str>,
        sub: Option<&str>,
    ) -> Result<Place, StoreError> {
        let gateway = Place {
            subject: self.0.gateway.clone(),
            listing_id: None,
            offer_id: None,
        };
        let (Some(id), Some(sub)) = (id, sub) else {
            return Ok(gateway);
        };
        let kind = match op {
            Op::GetOffer | Op::CounterOffer | Op::AcceptOffer | Op::DeclineOffer => Kind::Offer,
            Op::SetListingTerms
            | Op::RepriceListing
            | Op::ListQuestions
            | Op::AnswerBuyer
            | Op::GetListing
            | Op::AskQuestion => Kind::Listing,
            Op::GetDeal
            | Op::GetDealEvents
            | Op::PostDealEvent
            | Op::CommitToShip
            | Op::SignContract => Kind::Deal,
            _ => return Ok(gateway),
        };
        let docs = self.0.store.load(vec![Key::new(kind, id)]).await?;
        let Some(doc) = docs.into_iter().flatten().next() else {
            return Ok(gateway);
        };
        let unreadable = |e: serde_json::Error| StoreError(format!("a document is not ours: {e}"));
        let (seller, place) = match kind {
            Kind::Offer => {
                let offer: Offer = serde_json::from_slice(&doc.body).map_err(unreadable)?;
                let place = Place {
                    subject: Subject::new(SubjectKind::Negotiation, offer.negotiation_id),
                    listing_id: Some(offer.listing_id),
                    offer_id: Some(offer.offer_id),
                };
                (offer.seller, place)
            }
            Kind::Listing => {
                let listing: Listing = serde_json::from_slice(&doc.body).map_err(unreadable)?;
                let place = Place {
                    subject: Subject::new(SubjectKind::Listing, &*listing.listing_id),
                    listing_id: Some(listing.listing_id),
                    offer_id: None,
                };
                (listing.seller, place)
            }
            _ => {
                let deal: Deal = serde_json::from_slice(&doc.body).map_err(unreadable)?;
                let place = Place {
                    subject: Subject::new(SubjectKind::Deal, deal.deal_id),
                    listing_id: Some(deal.listing_id),
                    offer_id: Some(deal.offer_id),
                };
                (deal.seller, place)
            }
        };
        Ok(if seller == sub { place } else { gateway })
    }
}

struct Place {
    subject: Subject,
    listing_id: Option<String>,
    offer_id: Option<String>,
}

/// The step.
#[derive(Clone)]
pub struct Record(Recorder);

impl Record {
    pub(crate) fn new(recorder: Recorder) -> Self {
        Self(recorder)
    }
}

impl Step for Record {
    async fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        let extensions = request.extensions();
        let known = extensions
            .get::<Caller>()
            .zip(extensions.get::<Arrived>())
            .map(|(caller, arrived)| (caller.clone(), arrived.clone()));
        let parked = extensions.get::<Approved>().is_some();
        let response = next.run(request).await?;
        let unrecorded = response.extensions().get::<Recorded>().is_none();
        let refusal = response.extensions().get::<Refusal>();
        match (known, refusal) {
            // What comes of an approved action enters with the end of its approval, once.
            (Some((caller, arrived)), Some(refusal))
                if unrecorded && !parked && refusal.reason().is_some() =>
            {
                let refusal = refusal.clone();
                Ok(Box::pin(self.0.refuse(refusal, caller, &arrived)).await)
            }
            _ => Ok(response),
        }
    }

    fn span(&self, _: &Request<Body>) -> Span {
        tracing::debug_span!("rctp.record")
    }
}
