//! RCTP's words and rules. Everything here is pure: no I/O, no clock, no randomness of its own.
//!
//! | module | what it says | binding |
//! |---|---|---|
//! | [`operation`] | the table of operations | 6.1, 12 |
//! | [`caller`] | who calls, and how that was proven | 2 |
//! | [`profile`] | UCP profiles of operators and of the gateway | 1, 10 |
//! | [`grant`] | the agent grant and its seven checks | 3.3 |
//! | [`listing`], [`offer`], [`deal`], [`money`], [`terms`] | the objects of a sale and their transitions | 4, 5 |
//! | [`event`] | deal events, and when money moves | 8.1, 10a |
//! | [`term_set`] | which terms a listing carries, and what the seller's values must keep | 4.1, 4.2 |
//! | [`policy`] | what a marketplace sets: tiers, budget, expiry | 3.1, 5.2, 6 |
//! | [`decision`] | the check order | 6 |
//! | [`refusal`] | reasons, protocol errors, and their HTTP form | 6 |
//! | [`approval`] | a parked action | 7 |
//! | [`record`] | entries, chains and their verifier | 8.2 |
//! | [`webhook`] | what operators are told, and when it is tried again | 9 |
//! | [`schema`] | closed body schemas | 6, 11 |

pub mod approval;
pub mod caller;
pub mod deal;
pub mod decision;
pub mod event;
pub mod grant;
pub mod listing;
pub mod money;
pub mod offer;
pub mod operation;
pub mod policy;
pub mod profile;
pub mod question;
pub mod record;
pub mod refusal;
pub mod schema;
pub mod term_set;
pub mod terms;
pub mod time;
pub mod webhook;

/// The capability version that this crate serves (binding 10).
pub const VERSION: &str = "2026-11-draft5";
/// The UCP release that profiles are written against (binding 10).
pub const UCP_VERSION: &str = "2026-08-25";
