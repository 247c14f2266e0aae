//! A JWK Set: whatever is usable is named by its thumbprint, and no private member gets in.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tower_rctp::wire::{crypto, jwk::Keys};

fuzz_target!(|data: &[u8]| {
    let Ok(value) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let Ok(keys) = Keys::parse(&value, crypto::default_provider()) else {
        return;
    };
    let members = value.as_array().unwrap();
    assert!(members.iter().all(|jwk| jwk.get("d").is_none()));
    assert_eq!(keys.iter().count() + keys.unusable().count(), members.len());
    for key in keys.iter() {
        let kid = key.kid().as_str();
        assert_eq!(kid.len(), 43);
        assert!(members.iter().any(|jwk| jwk["kid"] == kid));
        assert_eq!(keys.get(kid).unwrap().kid(), key.kid());
        assert!(key.verify(b"message", &data[..data.len().min(96)]).is_err());
    }
});
