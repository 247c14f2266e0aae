//! Checkouts and deals (binding 5.3).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    event::{Progress, Rules},
    offer::DealTerms,
    time::Timestamp,
};
use crate::wire::jwk::Thumbprint;

/// The `typ` of a checkout.
pub const CHECKOUT_TYP: &str = "rctp-checkout+jwt";

/// The claims of a checkout, signed by a key of the gateway profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkout {
    /// The gateway's public URL.
    pub iss: String,
    /// The accepted offer.
    pub offer_id: String,
    /// Its negotiation.
    pub negotiation_id: String,
    /// The reserved listing.
    pub listing_id: String,
    /// The listing as it was accepted (R28).
    pub listing_hash: String,
    /// What was agreed.
    pub deal_terms: DealTerms,
    /// The key that may redeem it.
    pub buyer_jkt: Thumbprint,
    /// Makes it single use.
    pub nonce: String,
    /// Made at, Unix seconds.
    pub iat: i64,
    /// Ends at, Unix seconds.
    pub exp: i64,
}

/// A deal as stored. What the parties see is [`Deal::view`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deal {
    /// `deal_…`
    pub deal_id: String,
    /// The accepted offer.
    pub offer_id: String,
    /// Its negotiation.
    pub negotiation_id: String,
    /// The sold listing.
    pub listing_id: String,
    /// The listing as it was accepted.
    pub listing_hash: String,
    /// What was agreed.
    pub deal_terms: DealTerms,
    /// The commitment over the listing's terms as they were accepted, where it had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms_commitment: Option<String>,
    /// The buyer's key.
    pub buyer_jkt: Thumbprint,
    /// The buyer's operator profile.
    pub buyer_operator: String,
    /// The seller's pairwise pseudonym.
    pub seller: String,
    /// When the checkout was redeemed.
    pub created_at: Timestamp,
    /// When the seller committed to ship.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed_to_ship_at: Option<Timestamp>,
    /// What its money depends on, as of the acceptance.
    #[serde(default)]
    pub rules: Rules,
    /// What its events have come to.
    #[serde(default)]
    pub progress: Progress,
    /// The operator of the agent that made the listing, which is told of its events (binding 9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seller_operator: Option<String>,
    /// The operators that have recorded an event, which are told of the others: so the holder of funds learns what they wait
    /// for.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub writers: BTreeSet<String>,
}

impl Deal {
    /// What the parties see.
    pub fn view(&self) -> Value {
        let mut view = json!({
            "deal_id": self.deal_id,
            "offer_id": self.offer_id,
            "negotiation_id": self.negotiation_id,
            "listing_id": self.listing_id,
            "listing_hash": self.listing_hash,
            "deal_terms": self.deal_terms,
            "buyer_jkt": self.buyer_jkt,
            "created_at": self.created_at,
        });
        if let Some(commitment) = &self.terms_commitment {
            view["terms_commitment"] = json!(commitment);
        }
        if let Some(at) = self.committed_to_ship_at {
            view["committed_to_ship_at"] = json!(at);
        }
        if let (Value::Object(view), Value::Object(progress)) = (&mut view, self.progress.view()) {
            view.extend(progress);
        }
        view
    }
}
