//! Listings and their states.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    money::Money,
    terms::{PublicTerms, hash_of},
    time::Timestamp,
};

/// A listing as stored. What agents see is [`Listing::view`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// `lst_…`
    pub listing_id: String,
    /// The seller's pairwise pseudonym.
    pub seller: String,
    /// Where it stands; read it with [`Listing::state_at`].
    pub state: ListingState,
    /// What is for sale.
    pub title: String,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The marketplace's category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The asking price; its currency is the listing's.
    pub list_price: Money,
    /// The term set that its terms follow.
    pub term_set: String,
    /// The confirmed public terms; `None` until the seller has approved terms (R17).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<ConfirmedTerms>,
    /// When it was created.
    pub created_at: Timestamp,
    /// The operator profile of the agent that made it, which is told of offers on it (binding 9); `None` where the
    /// marketplace made it itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
}

/// The public side of terms that the seller approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmedTerms {
    /// The terms that anyone may read.
    pub public: PublicTerms,
    /// The commitment over all of them (binding 4.2).
    pub commitment: String,
}

/// A listing's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum ListingState {
    /// Not yet for sale.
    Draft,
    /// For sale.
    Active,
    /// Held for an accepted offer until its checkout ends.
    Reserved {
        /// The accepted offer.
        offer_id: String,
        /// The checkout's `exp`.
        until: Timestamp,
    },
    /// Sold.
    Sold {
        /// The offer that it was sold on.
        offer_id: String,
        /// The deal.
        deal_id: String,
    },
    /// Taken back by the seller on the marketplace.
    Withdrawn,
}

impl ListingState {
    /// The state's name.
    pub fn name(&self) -> &'static str {
        match self {
            ListingState::Draft => "draft",
            ListingState::Active => "active",
            ListingState::Reserved { .. } => "reserved",
            ListingState::Sold { .. } => "sold",
            ListingState::Withdrawn => "withdrawn",
        }
    }
}

impl Listing {
    /// The state at `now`: a reservation ends with its checkout, whether or not the sweep has come by (binding 5.3).
    pub fn state_at(&self, now: Timestamp) -> ListingState {
        match &self.state {
            ListingState::Reserved { until, .. } if *until <= now => ListingState::Active,
            state => state.clone(),
        }
    }

    /// The end of its availability, where its terms set one.
    pub fn available_until(&self) -> Option<Timestamp> {
        self.terms.as_ref()?.public.available_until
    }

    /// What any operator may read.
    pub fn view(&self, now: Timestamp) -> Value {
        let mut view = json!({
            "listing_id": self.listing_id,
            "state": self.state_at(now).name(),
            "title": self.title,
            "list_price": self.list_price,
            "term_set": self.term_set,
            "created_at": self.created_at,
        });
        if let Some(description) = &self.description {
            view["description"] = json!(description);
        }
        if let Some(category) = &self.category {
            view["category"] = json!(category);
        }
        if let Some(terms) = &self.terms {
            view["public_terms"] = json!(terms.public);
            view["terms_commitment"] = json!(terms.commitment);
        }
        view
    }

    /// `listing_hash` of a checkout (R28): over what is public and does not change with the sale.
    pub fn hash(&self) -> String {
        let mut view = self.view(self.created_at);
        if let Some(view) = view.as_object_mut() {
            view.remove("state");
        }
        hash_of(&view)
    }
}
