//! The provider in pure Rust.

use std::sync::Arc;

use p256::{
    ecdsa::signature::{Signer, Verifier},
    elliptic_curve::Generate,
    pkcs8::{DecodePrivateKey, EncodePrivateKey},
};
use zeroize::Zeroizing;

use super::{Algorithm, BadKey, BadSignature, Provider, Sign, SigningFailed, Verify};

#[derive(Debug)]
pub(super) struct Pure;

impl Provider for Pure {
    fn name(&self) -> &'static str {
        "p256"
    }

    fn verifying_key(
        &self,
        algorithm: Algorithm,
        public: &[u8],
    ) -> Result<Arc<dyn Verify>, BadKey> {
        algorithm.check_form(public)?;
        let key: Arc<dyn Verify> = match algorithm {
            Algorithm::Es256 => {
                Arc::new(p256::ecdsa::VerifyingKey::from_sec1_bytes(public).map_err(|_| BadKey)?)
            }
            Algorithm::Es384 => {
                Arc::new(p384::ecdsa::VerifyingKey::from_sec1_bytes(public).map_err(|_| BadKey)?)
            }
            Algorithm::Ed25519 => {
                let bytes = public.try_into().map_err(|_| BadKey)?;
                Arc::new(ed25519_dalek::VerifyingKey::from_bytes(bytes).map_err(|_| BadKey)?)
            }
        };
        Ok(key)
    }

    fn generate_signing_key(&self) -> Result<Arc<dyn Sign>, SigningFailed> {
        let key = p256::ecdsa::SigningKey::try_generate().map_err(|_| SigningFailed)?;
        Ok(Arc::new(key))
    }

    fn signing_key(&self, pkcs8: &[u8]) -> Result<Arc<dyn Sign>, BadKey> {
        let key = p256::ecdsa::SigningKey::from_pkcs8_der(pkcs8).map_err(|_| BadKey)?;
        Ok(Arc::new(key))
    }
}

impl Verify for p256::ecdsa::VerifyingKey {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Es256
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        let signature = p256::ecdsa::Signature::from_slice(signature).map_err(|_| BadSignature)?;
        Verifier::verify(self, message, &signature).map_err(|_| BadSignature)
    }
}

impl Verify for p384::ecdsa::VerifyingKey {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Es384
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        let signature = p384::ecdsa::Signature::from_slice(signature).map_err(|_| BadSignature)?;
        Verifier::verify(self, message, &signature).map_err(|_| BadSignature)
    }
}

impl Verify for ed25519_dalek::VerifyingKey {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Ed25519
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        let signature =
            ed25519_dalek::Signature::from_slice(signature).map_err(|_| BadSignature)?;
        self.verify_strict(message, &signature)
            .map_err(|_| BadSignature)
    }
}

impl Sign for p256::ecdsa::SigningKey {
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SigningFailed> {
        let signature: p256::ecdsa::Signature =
            self.try_sign(message).map_err(|_| SigningFailed)?;
        Ok(signature.to_bytes().into())
    }

    fn public_point(&self) -> [u8; 65] {
        let mut point = [0; 65];
        // An uncompressed point of P-256 is 65 bytes long, so the copy takes all of it.
        let encoded = self.verifying_key().to_sec1_point(false);
        point.copy_from_slice(encoded.as_bytes());
        point
    }

    fn to_pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, SigningFailed> {
        let document = self.to_pkcs8_der().map_err(|_| SigningFailed)?;
        Ok(document.to_bytes())
    }

    fn secret(&self) -> Result<Zeroizing<[u8; 32]>, SigningFailed> {
        Ok(Zeroizing::new(self.to_bytes().into()))
    }
}
