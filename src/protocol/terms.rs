//! Listing terms: the public ones, the floor, and the commitment over both (binding 4, R21).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{money::Money, time::Timestamp};
use crate::wire::{digest::sha256, jcs};

/// The terms of a listing that anyone may read, under `public_terms` (binding 4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicTerms {
    /// Not before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_from: Option<Timestamp>,
    /// Not from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_until: Option<Timestamp>,
    /// What an offer's `fulfillment` may select (binding 10a).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fulfillment_options: Vec<FulfillmentOption>,
    /// What an offer's `payment` may select (binding 10a).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub payment_terms: Vec<String>,
    /// The event that releases the funds; `accepted` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_condition: Option<String>,
    /// Days from `funds_held` to delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_within_days: Option<u32>,
    /// Days that the buyer has to inspect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inspection_days: Option<u32>,
    /// An identifier of the return policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_policy: Option<String>,
    /// What a buyer must meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buyer_requirements: Option<BuyerRequirements>,
}

/// One way to fulfil, with its options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FulfillmentOption {
    /// Such as `shipping` or `pickup`.
    pub method_type: String,
    /// The options of that method.
    pub option_ids: Vec<String>,
}

/// What a buyer's operator must show; each list that is present must be met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuyerRequirements {
    /// The operator's jurisdiction is one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jurisdictions: Vec<String>,
    /// The operator holds all of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certifications: Vec<String>,
    /// The call was authenticated by one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authenticated_by: Vec<super::caller::Mechanism>,
}

/// The seller's floor: the lowest price that is accepted. It has no `Debug`, no `Display` and no `Serialize`; only
/// the decision and the store read it.
///
/// ```compile_fail
/// fn print(floor: &tower_rctp::protocol::terms::Floor) -> String { format!("{floor:?}") }
/// ```
/// ```compile_fail
/// fn leak(floor: &tower_rctp::protocol::terms::Floor) -> String { serde_json::to_string(floor).unwrap() }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Floor(Money);

impl Floor {
    /// A floor of `price`.
    pub fn new(price: Money) -> Self {
        Self(price)
    }

    /// Whether `price` reaches the floor. A price in another currency never does.
    pub fn allows(&self, price: &Money) -> bool {
        price.currency == self.0.currency && price.amount >= self.0.amount
    }
}

/// What the seller confirmed and nobody else reads: the floor, and the salt of the commitment.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateTerms {
    /// The floor, where the term set has one.
    pub floor: Option<Floor>,
    salt: [u8; 16],
}

#[derive(Serialize, Deserialize)]
struct StoredPrivate {
    floor: Option<Money>,
    salt: String,
}

impl PrivateTerms {
    /// The private side of confirmed terms. `salt` must be fresh random bits.
    pub fn new(floor: Option<Floor>, salt: [u8; 16]) -> Self {
        Self { floor, salt }
    }

    /// For the store alone.
    pub(crate) fn to_stored(&self) -> Vec<u8> {
        serde_json::to_vec(&StoredPrivate {
            floor: self.floor.as_ref().map(|f| f.0.clone()),
            salt: crate::wire::base64url(&self.salt),
        })
        .expect("strings and numbers serialise")
    }

    /// From the store; `None` where the document is not ours.
    pub(crate) fn from_stored(bytes: &[u8]) -> Option<Self> {
        let stored: StoredPrivate = serde_json::from_slice(bytes).ok()?;
        Some(Self {
            floor: stored.floor.map(Floor),
            salt: crate::wire::from_base64url(&stored.salt)?.try_into().ok()?,
        })
    }

    /// `terms_commitment` over the public terms and these (binding 4.2):
    /// `"sha-256:" + hex(SHA-256(JCS({"salt", "terms"})))`.
    pub fn commitment(&self, public: &PublicTerms) -> String {
        let committed = serde_json::json!({
            "salt": crate::wire::base64url(&self.salt),
            "terms": self.terms(public),
        });
        hash_of(&committed)
    }

    /// The whole `terms` object: never leaves the decision and the commitment.
    pub(crate) fn terms(&self, public: &PublicTerms) -> Value {
        let mut terms = match serde_json::to_value(public) {
            Ok(Value::Object(terms)) => terms,
            _ => serde_json::Map::new(),
        };
        if let Some(Floor(price)) = &self.floor {
            terms.insert(
                "floor".into(),
                serde_json::json!({"amount": price.amount, "currency": price.currency}),
            );
        }
        Value::Object(terms)
    }
}

/// `sha-256:` and the hex SHA-256 of the JCS form.
pub(crate) fn hash_of<T: Serialize>(value: &T) -> String {
    let canonical = jcs::canonical(value).expect("objects of strings and numbers serialise");
    named_hash(&sha256(&canonical))
}

/// `sha-256:` and the hash in hex.
pub(crate) fn named_hash(hash: &[u8; 32]) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(72);
    out.push_str("sha-256:");
    for byte in hash {
        let _ = write!(out, "{byte:02x}");
    }
    out
}
