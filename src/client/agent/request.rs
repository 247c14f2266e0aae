//! What an agent asks for.

use std::fmt;

use serde::Serialize;

use crate::protocol::{
    event::{DealEvent, EventName, Observation, RejectReason},
    money::Money,
    offer::DealTerms,
    terms::PublicTerms,
    time::Timestamp,
};

/// Something to list for sale (schema `listing-create-request`).
#[derive(Clone, Debug, Serialize)]
pub struct NewListing {
    /// One line, about the goods; no data of any person (binding 11).
    pub title: String,
    /// More about the goods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The marketplace's category.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The asking price; its currency is the listing's.
    pub list_price: Money,
    /// The term set to confirm: one that the gateway's profile names.
    pub term_set: String,
    /// What the seller told the agent; it fills in the form that the seller confirms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposed_terms: Option<ProposedTerms>,
}

impl NewListing {
    /// A listing of these goods at this price, under this term set.
    pub fn new(title: impl Into<String>, list_price: Money, term_set: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            description: None,
            category: None,
            list_price,
            term_set: term_set.into(),
            proposed_terms: None,
        }
    }

    /// With what the seller told the agent.
    #[must_use]
    pub fn propose(mut self, terms: ProposedTerms) -> Self {
        self.proposed_terms = Some(terms);
        self
    }
}

/// Terms that the seller told the agent (binding 4.2): never enforced, and never returned, not even to the agent. Its
/// `Debug` leaves the floor out.
#[derive(Clone, Default, PartialEq, Eq, Serialize)]
pub struct ProposedTerms {
    #[serde(skip_serializing_if = "Option::is_none")]
    floor: Option<Money>,
    #[serde(flatten)]
    public: PublicTerms,
}

impl ProposedTerms {
    /// The lowest price that the seller takes.
    #[must_use]
    pub fn floor(mut self, floor: Money) -> Self {
        self.floor = Some(floor);
        self
    }

    /// The terms that anyone may read.
    #[must_use]
    pub fn public(mut self, terms: PublicTerms) -> Self {
        self.public = terms;
        self
    }
}

impl fmt::Debug for ProposedTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProposedTerms")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

/// A buyer's offer (schema `offer-create-request`).
#[derive(Clone, Debug, Serialize)]
pub struct NewOffer {
    /// On what.
    pub listing_id: String,
    /// For what.
    pub deal_terms: DealTerms,
    /// The counter that this answers, or the buyer's own open offer that it replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<String>,
    /// When it is to end; the gateway caps it, and sets it where it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl NewOffer {
    /// An offer of these terms.
    pub fn new(listing_id: impl Into<String>, deal_terms: DealTerms) -> Self {
        Self {
            listing_id: listing_id.into(),
            deal_terms,
            supersedes: None,
            expires_at: None,
        }
    }

    /// In answer to this counter, or in place of this offer.
    #[must_use]
    pub fn superseding(mut self, offer_id: impl Into<String>) -> Self {
        self.supersedes = Some(offer_id.into());
        self
    }
}

/// An event that its writer reports (binding 8.1). The agent adds the deal and an `event_id`, and signs it.
#[derive(Clone, Debug)]
pub struct NewEvent {
    event: EventName,
    observation: Observation,
    reason: Option<RejectReason>,
    reported_by: Option<String>,
    source_event_id: Option<String>,
    evidence: Vec<String>,
    city: Option<String>,
    occurred_at: Option<Timestamp>,
}

impl NewEvent {
    /// Something that the writer did or saw itself. For `rejected` see [`NewEvent::rejected`].
    pub fn first_hand(event: EventName) -> Self {
        Self {
            event,
            observation: Observation::FirstHand,
            reason: None,
            reported_by: None,
            source_event_id: None,
            evidence: Vec::new(),
            city: None,
            occurred_at: None,
        }
    }

    /// The buyer rejects.
    pub fn rejected(reason: RejectReason) -> Self {
        Self {
            reason: Some(reason),
            ..Self::first_hand(EventName::Rejected)
        }
    }

    /// Something that another saw: `reported_by` is its https URL or reverse-domain name, `source_event_id` the event's
    /// id there (binding 8.1).
    pub fn relayed(
        event: EventName,
        reported_by: impl Into<String>,
        source_event_id: impl Into<String>,
    ) -> Self {
        Self {
            observation: Observation::Relayed,
            reported_by: Some(reported_by.into()),
            source_event_id: Some(source_event_id.into()),
            ..Self::first_hand(event)
        }
    }

    /// When it happened; the agent's now where this is left out. The money rules go by when the gateway recorded it.
    #[must_use]
    pub fn occurred_at(mut self, at: Timestamp) -> Self {
        self.occurred_at = Some(at);
        self
    }

    /// Digests (`sha-256:…`) of what proves it.
    #[must_use]
    pub fn evidence(mut self, digests: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.evidence = digests.into_iter().map(Into::into).collect();
        self
    }

    /// Where, no closer than the city (binding 8.2).
    #[must_use]
    pub fn city(mut self, name: impl Into<String>) -> Self {
        self.city = Some(name.into());
        self
    }

    pub(super) fn of(self, deal_id: &str, event_id: String, now: Timestamp) -> DealEvent {
        DealEvent {
            deal_id: deal_id.to_owned(),
            event_id,
            event: self.event,
            occurred_at: self.occurred_at.unwrap_or(now),
            reason: self.reason,
            observation: self.observation,
            reported_by: self.reported_by,
            source_event_id: self.source_event_id,
            evidence: self.evidence,
            city: self.city,
        }
    }
}
