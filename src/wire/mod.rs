//! What crosses the network, with no RCTP in it: digests, keys, signatures, canonical JSON.
//!
//! | module | what | source |
//! |---|---|---|
//! | [`crypto`] | the two signature providers behind one trait | – |
//! | [`digest`] | SHA-256 and `Content-Digest` | RFC 9530 |
//! | [`jwk`] | JWK Sets, thumbprints, signing keys | RFC 7517, 7518, 7638, 8037 |
//! | [`jws`] | compact JWS, attached and detached | RFC 7515 |
//! | [`jcs`] | canonical JSON | RFC 8785 |
//! | [`sealed`] | texts that only the gateway can read | RFC 5869, 8439 |
//! | [`signature`] | HTTP message signatures | RFC 9421 |
//!
//! Three rules hold throughout: a key is parsed once and decides the algorithm, a body is hashed once
//! by whoever collected it, and an error says what was expected without repeating the caller's bytes.

pub mod crypto;
pub mod digest;
pub mod jcs;
pub mod jwk;
pub mod jws;
pub mod sealed;
pub mod signature;

use base64::{
    Engine, alphabet,
    engine::{GeneralPurpose, general_purpose::NO_PAD},
};

/// Base64url without padding, canonical: no padding, no stray bits, no line breaks (RFC 7515 §2).
const BASE64URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD);

/// `bytes` in base64url without padding.
pub fn base64url(bytes: &[u8]) -> String {
    BASE64URL.encode(bytes)
}

/// The bytes of a base64url text; `None` unless it is canonical.
pub fn from_base64url(text: &str) -> Option<Vec<u8>> {
    BASE64URL.decode(text).ok()
}
