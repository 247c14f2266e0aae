//! The provider built on `aws-lc-rs`.

use std::sync::Arc;

use aws_lc_rs::{
    encoding::{AsBigEndian, EcPrivateKeyBin},
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED, ED25519,
        EcdsaKeyPair, KeyPair, ParsedPublicKey, VerificationAlgorithm,
    },
};
use zeroize::Zeroizing;

use super::{Algorithm, BadKey, BadSignature, Provider, Sign, SigningFailed, Verify};

#[derive(Debug)]
pub(super) struct AwsLc;

impl Provider for AwsLc {
    fn name(&self) -> &'static str {
        "aws-lc-rs"
    }

    fn verifying_key(
        &self,
        algorithm: Algorithm,
        public: &[u8],
    ) -> Result<Arc<dyn Verify>, BadKey> {
        algorithm.check_form(public)?;
        let method: &'static dyn VerificationAlgorithm = match algorithm {
            Algorithm::Es256 => &ECDSA_P256_SHA256_FIXED,
            Algorithm::Es384 => &ECDSA_P384_SHA384_FIXED,
            Algorithm::Ed25519 => &ED25519,
        };
        let key = ParsedPublicKey::new(method, public).map_err(|_| BadKey)?;
        Ok(Arc::new(Verifying { algorithm, key }))
    }

    fn generate_signing_key(&self) -> Result<Arc<dyn Sign>, SigningFailed> {
        let pair =
            EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(|_| SigningFailed)?;
        Signing::new(pair)
            .map(|key| Arc::new(key) as _)
            .ok_or(SigningFailed)
    }

    fn signing_key(&self, pkcs8: &[u8]) -> Result<Arc<dyn Sign>, BadKey> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8)
            .map_err(|_| BadKey)?;
        Signing::new(pair)
            .map(|key| Arc::new(key) as _)
            .ok_or(BadKey)
    }
}

struct Verifying {
    algorithm: Algorithm,
    key: ParsedPublicKey,
}

impl Verify for Verifying {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        self.key
            .verify_sig(message, signature)
            .map_err(|_| BadSignature)
    }
}

struct Signing {
    pair: EcdsaKeyPair,
    point: [u8; 65],
}

impl Signing {
    fn new(pair: EcdsaKeyPair) -> Option<Self> {
        let point = pair.public_key().as_ref().try_into().ok()?;
        Some(Self { pair, point })
    }
}

impl Sign for Signing {
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SigningFailed> {
        // The library draws its own randomness; the argument is there for compatibility only.
        let signature = self
            .pair
            .sign(&SystemRandom::new(), message)
            .map_err(|_| SigningFailed)?;
        signature.as_ref().try_into().map_err(|_| SigningFailed)
    }

    fn public_point(&self) -> [u8; 65] {
        self.point
    }

    fn to_pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, SigningFailed> {
        let document = self.pair.to_pkcs8v1().map_err(|_| SigningFailed)?;
        Ok(Zeroizing::new(document.as_ref().to_vec()))
    }

    fn secret(&self) -> Result<Zeroizing<[u8; 32]>, SigningFailed> {
        let number: EcPrivateKeyBin<'_> = self
            .pair
            .private_key()
            .as_be_bytes()
            .map_err(|_| SigningFailed)?;
        let mut secret = Zeroizing::new([0; 32]);
        if number.as_ref().len() != secret.len() {
            return Err(SigningFailed);
        }
        secret.copy_from_slice(number.as_ref());
        Ok(secret)
    }
}
