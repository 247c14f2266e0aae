//! What the listing operations do to the documents that later decisions read; the same in the market and in the simple
//! mode.

use super::Decided;
use crate::{
    protocol::{
        decision::Requested,
        listing::{ConfirmedTerms, Listing, ListingState},
        operation::Op,
    },
    store::{Kind, Put},
};

/// The listing as the operation leaves it, and the writes; `None` for the other operations.
pub(crate) fn of_listing(decided: &Decided) -> Option<(Listing, Vec<Put>)> {
    let facts = decided.facts();
    let mut listing = match (decided.operation().op, &facts.requested) {
        (Op::CreateListing, Requested::Listing(new)) => Listing {
            listing_id: decided.new_listing()?.to_owned(),
            seller: decided.grant()?.sub.clone(),
            state: ListingState::Active,
            title: new.title.clone(),
            description: new.description.clone(),
            category: new.category.clone(),
            list_price: new.list_price.clone(),
            term_set: new.term_set.clone(),
            terms: None,
            created_at: decided.now(),
            operator: Some(decided.caller().operator.clone()),
        },
        (Op::SetListingTerms, _) => facts.listing.clone()?,
        (Op::RepriceListing, Requested::Price(price)) => Listing {
            list_price: price.clone(),
            ..facts.listing.clone()?
        },
        _ => return None,
    };
    let mut puts = Vec::new();
    if let Some(draft) = &facts.draft {
        listing.terms = Some(ConfirmedTerms {
            public: draft.public.clone(),
            commitment: draft.commitment.clone(),
        });
        let private = draft.private.to_stored();
        puts.push(decided.put_bytes(Kind::PrivateTerms, &listing.listing_id, private));
    }
    let due = match &listing.state {
        ListingState::Reserved { until, .. } => Some(*until),
        _ => None,
    };
    puts.push(decided.put(Kind::Listing, &listing.listing_id, None, due, &listing));
    Some((listing, puts))
}
