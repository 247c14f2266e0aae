//! A profile as an operator's origin might serve it: read or refused, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_rctp::{protocol::profile::Profile, wire::crypto};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(profile) = Profile::parse(bytes, crypto::default_provider()) {
        assert!(!profile.duties.legal_entity.trim().is_empty());
        // A key is found by its thumbprint only.
        for key in profile.keys.iter() {
            assert!(profile.keys.get(key.kid().as_str()).is_some());
        }
    }
});
