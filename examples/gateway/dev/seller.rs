//! What the seller does on the marketplace's own pages: listings with confirmed terms, and grants.

use serde::Deserialize;
use tower_rctp::{
    Rctp,
    layer::context::{Clock, Ids, NoRandomness, RandomIds, SystemClock},
    protocol::{
        listing::{Listing, ListingState},
        money::{MAX_AMOUNT, Money},
        operation::Verb,
        policy::Tier,
        terms::{Floor, FulfillmentOption, PrivateTerms, PublicTerms},
    },
    store::{Key, Kind},
};

use super::DevAgent;
use super::{Error, authorization::Granted};

pub(super) const CURRENCY: &str = "EUR";

/// The body of `POST /dev/listings`. It has no `Debug`: the floor is the seller's secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewListing {
    floor: Money,
    #[serde(default = "list_price")]
    list_price: Money,
    #[serde(default = "title")]
    title: String,
}

fn list_price() -> Money {
    Money::new(60_000, CURRENCY)
}

fn title() -> String {
    "A touring bicycle".to_owned()
}

impl NewListing {
    pub(super) fn with_floor(floor: Money) -> Self {
        Self {
            floor,
            list_price: list_price(),
            title: title(),
        }
    }

    /// Whether the list price is one, and the floor is as the term set wants it (`lte_list_price`).
    pub(super) fn is_valid(&self) -> bool {
        let code = self.list_price.currency.as_bytes();
        code.len() == 3
            && code.iter().all(u8::is_ascii_uppercase)
            && self.list_price.amount <= MAX_AMOUNT
            && self.floor.currency == self.list_price.currency
            && (1..=self.list_price.amount).contains(&self.floor.amount)
    }
}

/// Puts a listing on sale.
pub(super) async fn publish(rctp: &Rctp, seller: &str, new: NewListing) -> Result<Listing, Error> {
    let no_bits = |e: NoRandomness| Error(e.to_string());
    let now = SystemClock.now();
    let listing = Listing {
        listing_id: RandomIds.id("lst", now).map_err(no_bits)?,
        seller: seller.to_owned(),
        state: ListingState::Active,
        title: new.title,
        description: None,
        category: None,
        list_price: new.list_price,
        // There is at least one, or RCTP would not have been built.
        term_set: rctp.policy().term_sets.names().swap_remove(0),
        terms: None,
        created_at: now,
        operator: None,
    };
    let public = PublicTerms {
        fulfillment_options: vec![FulfillmentOption {
            method_type: "shipping".into(),
            option_ids: vec!["standard".into(), "express".into()],
        }],
        payment_terms: vec!["prepaid".into()],
        deliver_within_days: Some(5),
        inspection_days: Some(3),
        ..PublicTerms::default()
    };
    let salt = RandomIds.random().map_err(no_bits)?;
    let private = PrivateTerms::new(Some(Floor::new(new.floor)), salt);
    rctp.publish(listing, public, &private)
        .await
        .map_err(|e| Error(format!("no listing was made: {e}")))
}

pub(super) async fn is_on_sale(rctp: &Rctp, id: &str) -> Result<bool, Error> {
    let docs = rctp.store().load(vec![Key::new(Kind::Listing, id)]).await;
    let docs = docs.map_err(|e| Error(e.to_string()))?;
    let listing = docs
        .into_iter()
        .flatten()
        .next()
        .and_then(|doc| serde_json::from_slice::<Listing>(&doc.body).ok());
    Ok(listing.is_some_and(|l| l.state_at(SystemClock.now()) == ListingState::Active))
}

/// A grant of every scope at `tier`, where the binding lets it be, to an agent that signs or does not.
pub(super) fn granted(sub: &str, agent: &DevAgent, tier: Tier, signed: bool) -> Granted {
    let tiers = Verb::GRANTED.into_iter().filter_map(|verb| {
        let tier = match verb {
            Verb::ListingSetTerms => Tier::Ask,
            _ => tier,
        };
        Some((verb.scope()?.to_owned(), tier))
    });
    Granted {
        sub: sub.to_owned(),
        client_id: agent.client_id.clone(),
        agent_id: agent.client_id.clone(),
        jkt: signed.then(|| agent.key.kid().as_str().to_owned()),
        tiers: tiers.collect(),
    }
}
