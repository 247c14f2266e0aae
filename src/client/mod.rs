//! The agent's side.

mod record;
mod signer;

pub use record::{BrokenRecord, Told, WriterSignature, verify_events, verify_record};
pub use signer::{SignError, Signer};
