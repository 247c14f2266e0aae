//! The stack: one step a question, each in a file or folder of its own.
//!
//! | step | question | leaves in the extensions |
//! |---|---|---|
//! | [`arrive`] | which row is it? | [`arrive::Arrived`] |
//! | [`authenticate`] | who is calling? | [`Caller`](crate::protocol::caller::Caller) |
//! | `mcp` | is it a tool call? | its REST request, in place of the message's |
//! | [`admit`] | is it a request that we serve? | |
//! | [`approve`] | has the seller answered? | the parked request, in place of the browser's |
//! | [`record`] | is it written down? | |
//! | [`grant`] | may it still act for them? | [`Grant`](crate::protocol::grant::Grant) |
//! | [`validate`] | is it well-formed? | |
//! | [`idempotency`] | has this happened already? | [`idempotency::Held`] |
//! | [`decision`] | auto, ask or forbid? | [`decision::Decided`] |
//!
//! A step is a [`step::Step`]; steps compose into one [`step::Stack`], which is a [`tower::Layer`]. [`part`] has them in
//! layers of their own.

pub mod admit;
pub mod approve;
pub mod arrive;
pub mod authenticate;
pub mod body;
pub mod context;
pub mod decision;
#[cfg(feature = "axum")]
mod extract;
pub mod grant;
pub mod idempotency;
#[cfg(feature = "mcp")]
pub mod mcp;
pub(crate) mod outbox;
pub mod part;
pub mod record;
pub mod step;
pub(crate) mod trace;
pub mod validate;
