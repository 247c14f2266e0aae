//! Signature algorithms behind a provider.
//!
//! Nothing here computes a signature: a [`Provider`] is a library, wrapped so that the rest of the
//! crate cannot tell which one it is. `aws-lc-rs` is the default where it is built in; `p256` serves
//! builds that want pure Rust. Every test of this room runs against each of them.
//!
//! A key is parsed once, into an `Arc<dyn Verify>`, when its JWK Set is read; requests only verify.

#[cfg(feature = "aws-lc-rs")]
mod aws_lc;
#[cfg(feature = "p256")]
mod pure;

use std::{fmt, sync::Arc};

use zeroize::Zeroizing;

/// A library that signs and verifies.
pub trait Provider: fmt::Debug + Send + Sync + 'static {
    /// The name of the library, for logs and benchmarks.
    fn name(&self) -> &'static str;

    /// Parses a verifying key, once.
    ///
    /// `public` is the uncompressed point `0x04‖x‖y` for the ECDSA algorithms (SEC 1 §2.3.3) and the
    /// 32 bytes of RFC 8032 §5.1.5 for Ed25519.
    ///
    /// # Errors
    ///
    /// [`BadKey`] if the bytes have another form or length, or are not a point of the curve. An Ed25519
    /// key that is no point is refused here by the pure provider and verifies nothing under aws-lc-rs.
    fn verifying_key(&self, algorithm: Algorithm, public: &[u8])
    -> Result<Arc<dyn Verify>, BadKey>;

    /// Generates an ES256 signing key from the system's randomness.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the system has no randomness to give.
    fn generate_signing_key(&self) -> Result<Arc<dyn Sign>, SigningFailed>;

    /// Loads an ES256 signing key from PKCS#8 DER (RFC 5208).
    ///
    /// # Errors
    ///
    /// [`BadKey`] if the document is no PKCS#8, or its key is not on P-256.
    fn signing_key(&self, pkcs8: &[u8]) -> Result<Arc<dyn Sign>, BadKey>;
}

/// A public key that was parsed and found to be usable.
pub trait Verify: Send + Sync {
    /// The only algorithm that this key verifies.
    fn algorithm(&self) -> Algorithm;

    /// Checks `signature` over `message`.
    ///
    /// ECDSA signatures are raw `r‖s` (RFC 9421 §3.3.4, RFC 7518 §3.4); DER is refused.
    ///
    /// # Errors
    ///
    /// [`BadSignature`], which does not say why: the signature has the wrong form or does not match.
    fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), BadSignature>;
}

/// An ES256 signing key.
pub trait Sign: Send + Sync {
    /// Signs `message`; the signature is raw `r‖s`.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the library could not sign, for want of randomness or memory.
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SigningFailed>;

    /// The public key as an uncompressed point, `0x04‖x‖y` (SEC 1 §2.3.3).
    fn public_point(&self) -> [u8; 65];

    /// The key as PKCS#8 DER (RFC 5208), wiped when dropped.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the library cannot encode it.
    fn to_pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, SigningFailed>;

    /// The secret number in that document, 32 bytes, big-endian. It is the same whichever library holds the key, as
    /// the document is not.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the library cannot give it.
    fn secret(&self) -> Result<Zeroizing<[u8; 32]>, SigningFailed>;
}

/// What a key can verify. Signing is ES256 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// ECDSA over P-256 with SHA-256.
    Es256,
    /// ECDSA over P-384 with SHA-384.
    Es384,
    /// Ed25519 (RFC 8032).
    Ed25519,
}

impl Algorithm {
    /// The name in the HTTP signature algorithms registry (RFC 9421 §6.2).
    #[must_use]
    pub const fn http_name(self) -> &'static str {
        match self {
            Self::Es256 => "ecdsa-p256-sha256",
            Self::Es384 => "ecdsa-p384-sha384",
            Self::Ed25519 => "ed25519",
        }
    }

    /// The form of a public key, checked before a provider sees it: libraries take more encodings
    /// (compressed points, SubjectPublicKeyInfo) than we do.
    fn check_form(self, public: &[u8]) -> Result<(), BadKey> {
        let well_formed = match self {
            Self::Es256 => public.len() == 65 && public[0] == 4,
            Self::Es384 => public.len() == 97 && public[0] == 4,
            Self::Ed25519 => public.len() == 32 && !is_small_order(public),
        };
        if well_formed { Ok(()) } else { Err(BadKey) }
    }
}

/// The library used where none is named: aws-lc-rs if it is built in, else the pure one.
#[must_use]
pub fn default_provider() -> &'static dyn Provider {
    #[cfg(feature = "aws-lc-rs")]
    return aws_lc();
    #[cfg(all(feature = "p256", not(feature = "aws-lc-rs")))]
    return pure();
    #[cfg(not(any(feature = "aws-lc-rs", feature = "p256")))]
    unreachable!("the crate does not compile without a provider")
}

/// The provider built on `aws-lc-rs`.
#[cfg(feature = "aws-lc-rs")]
#[must_use]
pub fn aws_lc() -> &'static dyn Provider {
    &aws_lc::AwsLc
}

/// The provider in pure Rust, built on `p256`, `p384` and `ed25519-dalek`.
#[cfg(feature = "p256")]
#[must_use]
pub fn pure() -> &'static dyn Provider {
    &pure::Pure
}

/// Every provider in this build, the default one first.
#[must_use]
pub fn providers() -> &'static [&'static dyn Provider] {
    &[
        #[cfg(feature = "aws-lc-rs")]
        &aws_lc::AwsLc,
        #[cfg(feature = "p256")]
        &pure::Pure,
    ]
}

/// A signature does not verify. Deliberately without detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature does not verify under this key")]
pub struct BadSignature;

/// Key material that no provider takes. Deliberately without detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is not a valid key of its curve")]
pub struct BadKey;

/// A signing key could not be generated, used or written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the crypto library could not complete the operation; is the system out of randomness or memory?"
)]
pub struct SigningFailed;

/// Whether an Ed25519 key is one of the few encodings of points of small order, under which anyone can
/// make a signature. `ed25519-dalek` looks for them when it verifies, aws-lc-rs does not look.
fn is_small_order(public: &[u8]) -> bool {
    let Some((&top, rest)) = public.split_last() else {
        return false;
    };
    SMALL_ORDER
        .iter()
        .any(|point| rest == &point[..31] && top & 0x7f == point[31])
}

/// The y coordinates of the points of order 1, 2, 4 and 8 of Curve25519, with their non-canonical
/// encodings; the sign bit is left out.
const SMALL_ORDER: [[u8; 32]; 7] = {
    const fn near_p(low: u8) -> [u8; 32] {
        let mut bytes = [0xff; 32];
        bytes[0] = low;
        bytes[31] = 0x7f;
        bytes
    }
    let zero = [0; 32];
    let mut one = zero;
    one[0] = 1;
    [
        zero,
        one,
        [
            0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef,
            0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88,
            0x6d, 0x53, 0xfc, 0x05,
        ],
        [
            0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10,
            0x67, 0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77,
            0x92, 0xac, 0x03, 0x7a,
        ],
        near_p(0xec),
        near_p(0xed),
        near_p(0xee),
    ]
};
