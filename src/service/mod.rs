//! Whole endpoints to mount.

pub mod discovery;
pub mod market;
