//! layers
pub mod admit;
pub mod arrive;
pub mod body;
pub mod context;
pub mod step;
pub mod validate;
