//! Offers and counters, and their transitions (binding 5).

use serde::{Deserialize, Serialize};

use super::{
    caller::Agent,
    event::Rules,
    listing::{Listing, ListingState},
    money::Money,
    policy::{Limits, OfferExpiry},
    time::Timestamp,
};

/// What is agreed on (R20).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DealTerms {
    /// The price.
    pub price: Money,
    /// How the goods come.
    pub fulfillment: Fulfillment,
    /// How the money goes.
    pub payment: Payment,
}

/// A choice among the listing's `fulfillment_options`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fulfillment {
    /// The method.
    pub method_type: String,
    /// One of the method's options.
    pub selected_option_id: String,
}

/// A choice among the listing's `payment_terms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payment {
    /// The chosen term.
    pub selected_term_id: String,
}

/// Who made an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum By {
    Buyer,
    Seller,
}

/// An offer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OfferState {
    /// Waiting for an answer.
    Open,
    /// An ask on it waits for the seller.
    AwaitingApproval,
    /// The seller answered with a counter.
    Countered,
    /// Replaced by a later offer.
    Superseded,
    /// Accepted; it holds the listing until its checkout ends.
    Accepted,
    /// Declined by a party.
    Declined,
    /// Its time ended.
    Expired,
}

/// An offer or a counter as stored. What the parties see is [`Offer::view`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// `off_…`
    pub offer_id: String,
    /// `neg_…`
    pub negotiation_id: String,
    /// The listing.
    pub listing_id: String,
    /// Who made it.
    pub by: By,
    /// What is offered.
    pub deal_terms: DealTerms,
    /// Where it stands; read it with [`Offer::state_at`].
    pub state: OfferState,
    /// The offer that this one replaces or answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends unless accepted.
    pub expires_at: Timestamp,
    /// When the ask on it ends, while it waits for the seller: silence is a decline (INV-2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
    /// Once accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceptance: Option<Acceptance>,
    /// The buyer's agent.
    pub buyer: Agent,
    /// The buyer's operator profile.
    pub buyer_operator: String,
    /// The seller's pairwise pseudonym.
    pub seller: String,
}

/// What an acceptance adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acceptance {
    /// The reservation's end: the checkout's `exp`.
    pub until: Timestamp,
    /// The commitment over the listing's terms as they were accepted, where it had any; later ones are for future
    /// offers (binding 5.3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms_commitment: Option<String>,
    /// What the deal's money will depend on, of the same terms.
    #[serde(default)]
    pub rules: Rules,
    /// The checkout JWS; none for a buyer who does not sign (R23).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkout: Option<String>,
    /// The deal, once redeemed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deal_id: Option<String>,
}

impl Offer {
    /// The offer once an ask on it has ended without its effect: it waits for nobody any more.
    #[must_use]
    pub fn reopened(self) -> Self {
        match self.state {
            OfferState::AwaitingApproval => Self {
                state: OfferState::Open,
                waits_until: None,
                ..self
            },
            _ => self,
        }
    }

    /// The state at `now`, whether or not the sweep has come by (binding 5.2, 5.3, 7).
    pub fn state_at(&self, now: Timestamp) -> OfferState {
        match (self.state, &self.acceptance) {
            (OfferState::Open | OfferState::Countered | OfferState::AwaitingApproval, _)
                if self.expires_at <= now =>
            {
                OfferState::Expired
            }
            (OfferState::AwaitingApproval, _) if self.waits_until.is_some_and(|end| end <= now) => {
                OfferState::Expired
            }
            (OfferState::Accepted, Some(acceptance))
                if acceptance.deal_id.is_none() && acceptance.until <= now =>
            {
                OfferState::Expired
            }
            (state, _) => state,
        }
    }

    /// What the parties see.
    pub fn view(&self, now: Timestamp) -> OfferView<'_> {
        let acceptance = self.acceptance.as_ref();
        OfferView {
            offer_id: &self.offer_id,
            negotiation_id: &self.negotiation_id,
            listing_id: &self.listing_id,
            by: self.by,
            deal_terms: &self.deal_terms,
            state: self.state_at(now),
            created_at: self.created_at,
            expires_at: self.expires_at,
            supersedes: self.supersedes.as_deref(),
            checkout: acceptance.and_then(|a| a.checkout.as_deref()),
            deal_id: acceptance.and_then(|a| a.deal_id.as_deref()),
        }
    }
}

/// An offer as the parties see it (binding 5.2): what [`Offer::view`] makes, to be serialised.
#[derive(Clone, Debug, Serialize)]
pub struct OfferView<'a> {
    offer_id: &'a str,
    negotiation_id: &'a str,
    listing_id: &'a str,
    by: By,
    deal_terms: &'a DealTerms,
    state: OfferState,
    created_at: Timestamp,
    expires_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    supersedes: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkout: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deal_id: Option<&'a str>,
}

/// When a new offer ends (binding 5.2): what its creator asked for or the default, capped by the marketplace's
/// maximum and by the listing's `available_until`.
pub fn expires_at(
    requested: Option<Timestamp>,
    listing: &Listing,
    expiry: &OfferExpiry,
    now: Timestamp,
) -> Timestamp {
    let wanted = requested.unwrap_or(now.plus(i64::from(expiry.default_seconds)));
    let capped = wanted.min(now.plus(i64::from(expiry.max_seconds)));
    match listing.available_until() {
        Some(until) => capped.min(until),
        None => capped,
    }
}

/// When a checkout made at `now` ends: its lifetime, never past `available_until` plus 30 minutes (binding 5.3).
pub fn checkout_until(listing: &Listing, limits: &Limits, now: Timestamp) -> Timestamp {
    let until = now.plus(i64::from(limits.checkout_seconds));
    match listing.available_until() {
        Some(available) => until.min(available.plus(1800)),
        None => until,
    }
}

/// Accepts the offer: it becomes `accepted` and the listing `reserved` (binding 5.3).
pub fn accept(
    offer: &Offer,
    listing: &Listing,
    rules: Rules,
    until: Timestamp,
    checkout: Option<String>,
) -> (Offer, Listing) {
    let accepted = Offer {
        state: OfferState::Accepted,
        acceptance: Some(Acceptance {
            until,
            terms_commitment: listing.terms.as_ref().map(|t| t.commitment.clone()),
            rules,
            checkout,
            deal_id: None,
        }),
        ..offer.clone()
    };
    let reserved = Listing {
        state: ListingState::Reserved {
            offer_id: offer.offer_id.clone(),
            until,
        },
        ..listing.clone()
    };
    (accepted, reserved)
}
