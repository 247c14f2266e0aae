//! Whole endpoints to mount.

pub mod discovery;
#[cfg(feature = "approvals")]
pub mod enrolment;
pub mod market;
#[cfg(feature = "approvals")]
pub mod passkeys;
#[cfg(feature = "approvals")]
pub mod session;
