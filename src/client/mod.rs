//! The agent's side: signing, verifying, and with the feature `agent` every operation ([`Agent`]).

#[cfg(feature = "agent")]
pub mod agent;
mod checkout;
mod record;
pub mod sign;
mod signer;
mod webhook;

#[cfg(feature = "agent")]
pub use agent::Agent;
pub use checkout::{CheckoutError, verify_checkout};
pub use record::{BrokenRecord, Told, Verified, WriterSignature, verify_events, verify_record};
pub use sign::{GiveIdempotencyKey, IdempotencyKeyLayer, Sign, SignLayer};
pub use signer::{SignError, Signer};
pub use webhook::{Expected, Full, Seen, SeenInMemory, WebhookError, verify_webhook};
