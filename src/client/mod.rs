//! The agent's side.

mod signer;

pub use signer::{SignError, Signer};
