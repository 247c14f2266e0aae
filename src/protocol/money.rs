//! Amounts of money (R19): integer minor units and an ISO 4217 code.

use serde::{Deserialize, Serialize};

/// The largest amount that every JSON reader keeps exactly: 2^53 − 1 minor units.
pub const MAX_AMOUNT: u64 = (1 << 53) - 1;

/// A price: `amount` in the currency's minor unit (cents for EUR), 1 to 2^53 − 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Money {
    /// Minor units.
    pub amount: u64,
    /// ISO 4217 alphabetic code.
    pub currency: String,
}

impl Money {
    /// `amount` minor units of `currency`.
    pub fn new(amount: u64, currency: impl Into<String>) -> Self {
        Self {
            amount,
            currency: currency.into(),
        }
    }
}
