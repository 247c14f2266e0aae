//! Verifies a checkout as the buyer reads it from an accepted offer (binding 5.3).

use serde::Deserialize;

use crate::{
    protocol::{
        deal::{CHECKOUT_TYP, Checkout},
        schema,
        time::Timestamp,
    },
    wire::{
        jwk::Keys,
        jws::{self, JwsError},
    },
};

/// Why a checkout is not to be redeemed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckoutError {
    /// It is no JWS of this kind, or its signature does not verify.
    #[error("the checkout does not verify: {0}")]
    Jws(#[from] JwsError),
    /// The gateway's profile does not list the key.
    #[error("the checkout names no key of the gateway's profile; fetch that anew")]
    UnknownKey,
    /// The claims are not those of a checkout.
    #[error("the claims are not those of a checkout")]
    Claims,
    /// It has ended.
    #[error("the checkout has ended; the listing is on sale again")]
    Expired,
    /// It is not that of the offer, or for another buyer's key.
    #[error("the checkout says another {0} than it should")]
    Disagrees(&'static str),
}

/// Verifies that the gateway whose profile lists `keys` has signed this checkout, and that it has not ended. That its
/// terms are those that were offered is the caller's to compare; `client::Agent::checkout` does.
///
/// # Errors
/// [`CheckoutError`].
pub fn verify_checkout(
    token: &str,
    keys: &Keys,
    now: Timestamp,
) -> Result<Checkout, CheckoutError> {
    let parsed = jws::Compact::parse(token)?;
    let key = parsed.kid().and_then(|kid| keys.get(kid));
    let payload = parsed.verify(CHECKOUT_TYP, key.ok_or(CheckoutError::UnknownKey)?)?;
    let claims = schema::parse(payload).map_err(|_| CheckoutError::Claims)?;
    let checkout = Checkout::deserialize(&claims).map_err(|_| CheckoutError::Claims)?;
    match checkout.exp > now.secs() {
        true => Ok(checkout),
        false => Err(CheckoutError::Expired),
    }
}
