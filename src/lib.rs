//! RCTP as Tower layers.

#[cfg(not(any(feature = "aws-lc-rs", feature = "p256")))]
compile_error!("tower-rctp needs a crypto provider: enable the feature `aws-lc-rs` or `p256`");

#[cfg(feature = "client")]
pub mod client;
pub mod layer;
pub mod protocol;
mod rctp;
pub mod service;
pub mod store;
pub mod wire;

pub use rctp::{BuildError, Rctp, RctpBuilder, RctpLayer};
