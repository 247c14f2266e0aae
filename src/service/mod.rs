//! Whole endpoints to mount.

#[cfg(feature = "approvals")]
pub mod approvals;
pub mod discovery;
#[cfg(feature = "approvals")]
pub mod enrolment;
pub mod market;
#[cfg(feature = "approvals")]
pub mod pages;
#[cfg(feature = "approvals")]
pub mod passkeys;
#[cfg(feature = "approvals")]
pub mod session;
#[cfg(feature = "mcp")]
pub mod tools;
pub mod webhooks;
