//! A compact JWS, attached or detached. Nothing verifies, since the key is made here.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tower_rctp::wire::{jwk::SigningKey, jws::Compact};

static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::generate().unwrap());

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(jws) = Compact::parse(text) else {
        return;
    };
    let typ = jws.typ().unwrap_or("").to_owned();
    assert!(jws.verify(&typ, KEY.public_key()).is_err());
    assert!(jws.verify_detached(&typ, data, KEY.public_key()).is_err());
});
