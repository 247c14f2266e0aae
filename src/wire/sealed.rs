//! Texts that only the gateway can read: what it hands out and takes back, or keeps where others may look.
//!
//! XChaCha20-Poly1305 (RFC 8439 with the 24-byte nonce of draft-irtf-cfrg-xchacha), so that a random nonce never
//! repeats. The key comes out of HKDF-SHA-256 (RFC 5869) over the secret of the gateway's signing key: one secret to
//! keep, and none of what is sealed outlives it.

use std::fmt;

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::{base64url, crypto::SigningFailed, from_base64url, jwk::SigningKey};

/// Seals texts for one purpose, and opens them again.
///
/// What one purpose sealed, no other opens; nor does another signing key, or another `context`.
#[derive(Clone)]
pub struct Sealer(XChaCha20Poly1305);

impl Sealer {
    /// A sealer whose key is derived from `key` for this purpose. The same key gives the same sealer, whichever provider
    /// holds it.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the provider does not give out its key's secret.
    pub fn from_signing_key(key: &SigningKey, purpose: &str) -> Result<Self, SigningFailed> {
        let secret = key.secret()?;
        let mut derived = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(Some(SALT), secret.as_ref())
            .expand(purpose.as_bytes(), derived.as_mut())
            .map_err(|_| SigningFailed)?;
        XChaCha20Poly1305::new_from_slice(derived.as_ref())
            .map(Self)
            .map_err(|_| SigningFailed)
    }

    /// Seals `plain`, as base64url without padding. `context` is not in it, but must be given again to open it.
    ///
    /// # Errors
    ///
    /// [`SealFailed`] if there is no randomness; nothing may be executed then.
    pub fn seal(&self, plain: &[u8], context: &[u8]) -> Result<String, SealFailed> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|_| SealFailed)?;
        let payload = Payload {
            msg: plain,
            aad: context,
        };
        let sealed = self
            .0
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| SealFailed)?;
        Ok(base64url(&[&nonce[..], &sealed].concat()))
    }

    /// Opens what [`Sealer::seal`] made in this context; `None` for anything else, without saying what is wrong with it.
    #[must_use]
    pub fn open(&self, sealed: &str, context: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let sealed = from_base64url(sealed)?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE>()?;
        let payload = Payload {
            msg: sealed,
            aad: context,
        };
        let plain = self.0.decrypt(&XNonce::from(*nonce), payload).ok()?;
        Some(Zeroizing::new(plain))
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

/// A text could not be sealed: the operating system gave no random bits, or the text is longer than the cipher takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing could be sealed; is the system out of randomness?")]
pub struct SealFailed;

/// Keeps these keys apart from any other use of HKDF on the same secret.
const SALT: &[u8] = b"tower-rctp sealed v1";
const NONCE: usize = 24;

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::wire::crypto::providers;

    const PLAIN: &[u8] = b"an access token";

    fn key() -> SigningKey {
        SigningKey::generate().expect("a key")
    }

    fn sealer(key: &SigningKey, purpose: &str) -> Sealer {
        Sealer::from_signing_key(key, purpose).expect("a sealer")
    }

    #[test]
    fn only_the_same_key_purpose_and_context_open_it() {
        let key = key();
        let sealed = sealer(&key, "a").seal(PLAIN, b"context").expect("sealed");
        let open = |key: &SigningKey, purpose: &str, context: &[u8]| {
            sealer(key, purpose).open(&sealed, context)
        };

        assert_eq!(
            open(&key, "a", b"context").as_deref(),
            Some(&PLAIN.to_vec())
        );
        assert_eq!(open(&key, "a", b"contexts"), None);
        assert_eq!(open(&key, "a", b""), None);
        assert_eq!(open(&key, "b", b"context"), None);
        assert_eq!(open(&self::key(), "a", b"context"), None);
    }

    #[test]
    fn a_text_is_never_sealed_the_same_way_twice() {
        let sealer = sealer(&key(), "a");
        let [one, two] = [(); 2].map(|()| sealer.seal(PLAIN, b"").expect("sealed"));
        assert_ne!(one, two);
    }

    /// Made with Python's `cryptography` 48.0 (OpenSSL), and HChaCha20 by hand. An update of a dependency must not lose
    /// what was sealed before it.
    #[test]
    fn what_was_sealed_elsewhere_opens() {
        let pem = "-----BEGIN PRIVATE KEY-----\n\
            MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgH1UF5yUTiEiAmFH1\n\
            haY8xKz5GK7SEzfqfQiHbOcVs5GhRANCAAQK2r2qeHYwK7IBCKgpmkyWcS1Gajyj\n\
            JEL22NwXv6WilMZJOpo0ObgrdoK9SQzVP3BO0JoISvE409f47K5kbgZW\n\
            -----END PRIVATE KEY-----\n";
        let sealed = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX7yNkOYw9O85rBGPGKluBFOcGKFxrGbJV4E0WYYxvew";
        for provider in providers() {
            let key = SigningKey::from_pkcs8_pem_with(pem, *provider).expect("a key");
            let plain = sealer(&key, "a").open(sealed, b"context");
            assert_eq!(plain.as_deref(), Some(&PLAIN.to_vec()), "{provider:?}");
        }
    }

    #[test]
    fn nothing_shows_the_key() {
        assert_eq!(format!("{:?}", sealer(&key(), "a")), "Sealer");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_sealed_opens_and_nothing_near_it_does(
            plain in vec(any::<u8>(), 0..200),
            context in vec(any::<u8>(), 0..40),
            at in any::<prop::sample::Index>(),
            flip in 1..=255_u8,
            cut in any::<prop::sample::Index>(),
        ) {
            let sealer = sealer(&key(), "a");
            let sealed = sealer.seal(&plain, &context).expect("sealed");
            let opened = sealer.open(&sealed, &context);
            prop_assert_eq!(opened.as_deref(), Some(&plain));

            let bytes = from_base64url(&sealed).expect("base64url");
            let mut flipped = bytes.clone();
            flipped[at.index(bytes.len())] ^= flip;
            prop_assert_eq!(sealer.open(&base64url(&flipped), &context), None);
            let cut = &bytes[..cut.index(bytes.len())];
            prop_assert_eq!(sealer.open(&base64url(cut), &context), None);
            let longer = [&bytes[..], &[flip]].concat();
            prop_assert_eq!(sealer.open(&base64url(&longer), &context), None);
        }

        #[test]
        fn no_text_makes_it_fall_over(text in ".{0,120}") {
            prop_assert_eq!(sealer(&key(), "a").open(&text, b""), None);
        }
    }
}
