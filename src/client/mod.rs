//! The agent's side.

mod record;
mod signer;
mod webhook;

pub use record::{BrokenRecord, Told, WriterSignature, verify_events, verify_record};
pub use signer::{SignError, Signer};
pub use webhook::{Expected, Full, Seen, SeenInMemory, WebhookError, verify_webhook};
