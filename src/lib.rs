//! RCTP as Tower layers.

#[cfg(not(any(feature = "aws-lc-rs", feature = "p256")))]
compile_error!("tower-rctp needs a crypto provider: enable the feature `aws-lc-rs` or `p256`");

pub mod wire;
pub mod protocol;
pub mod store;
pub mod layer;
