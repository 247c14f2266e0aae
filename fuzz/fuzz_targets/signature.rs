//! `Signature-Input`, `Signature`, `Content-Digest` and a target, one a line: read, build the base, verify.
//! Nothing verifies, since the key is made here; what is read can be written and read again.

#![no_main]

use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue, Method};
use libfuzzer_sys::fuzz_target;
use tower_rctp::wire::{
    digest::{CONTENT_DIGEST, sha256},
    jwk::SigningKey,
    signature::{
        Authority, Component, Coverage, Message, Policy, Presented, SIGNATURE, SIGNATURE_INPUT,
    },
};

static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::generate().unwrap());

fuzz_target!(|data: &[u8]| {
    let mut lines = data.splitn(4, |byte| *byte == b'\n');
    let mut headers = HeaderMap::new();
    for name in [SIGNATURE_INPUT, SIGNATURE, CONTENT_DIGEST] {
        // A vertical tab begins another line of the same header.
        for line in lines.next().unwrap_or_default().split(|byte| *byte == 0x0b) {
            if let Ok(value) = HeaderValue::from_bytes(line) {
                headers.append(name.clone(), value);
            }
        }
    }
    let target = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*target, None),
    };

    let Ok(presented) = Presented::read(&headers, "sig1") else {
        return;
    };
    let authority = Authority::new("example.com", "https").unwrap();
    let message = Message::request(&Method::POST, &authority, path, query, &headers);
    if let Ok(base) = presented.base(&message) {
        assert!(base.is_ascii());
        assert_eq!(base.lines().count(), presented.components().len() + 1);
        let (_, params) = base.rsplit_once('\n').unwrap_or(("", &base));
        let params = params.strip_prefix("\"@signature-params\": ").unwrap();
        let mut again = headers.clone();
        again.insert(SIGNATURE_INPUT, format!("sig1={params}").parse().unwrap());
        let again = Presented::read(&again, "sig1").unwrap();
        assert_eq!(again.components(), presented.components());
        assert_eq!(again.base(&message).unwrap(), base);
    }
    let policy = Policy::new(
        Coverage::new()
            .with_query([Component::Query])
            .when_present([CONTENT_DIGEST]),
    );
    let body = sha256(b"{}");
    let now = presented.created().unwrap_or(0);
    assert!(
        presented
            .verify(&message, KEY.public_key(), &policy, Some(&body), now)
            .is_err()
    );
});
