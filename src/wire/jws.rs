//! Compact JWS with ES256 (RFC 7515): attached, and detached as its appendix F describes.
//!
//! A token is read in two steps, because the key is looked up by what the header says:
//!
//! ```
//! use tower_rctp::wire::{jwk::SigningKey, jws::{self, Compact}};
//!
//! let key = SigningKey::generate()?;
//! let token = jws::sign("example+jwt", br#"{"sub":"x"}"#, &key)?;
//!
//! let parsed = Compact::parse(&token)?;
//! assert_eq!(parsed.kid(), Some(key.kid().as_str()));
//! let payload = parsed.verify("example+jwt", key.public_key())?;
//! assert_eq!(payload, br#"{"sub":"x"}"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What never verifies: another algorithm than ES256 (`none` included), another `typ` than the one asked
//! for, a `kid` that is not the key's, critical extensions, and base64url with padding or stray bits.

use std::collections::BTreeMap;

use base64::Engine;
use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};

use super::{
    BASE64URL,
    crypto::{Algorithm, BadSignature, SigningFailed},
    jwk::{PublicKey, SigningKey},
};

/// Signs `payload` as a compact JWS whose header is `alg`, `typ` and `kid`.
///
/// # Errors
///
/// [`SigningFailed`] if the provider could not sign.
pub fn sign(typ: &str, payload: &[u8], key: &SigningKey) -> Result<String, SigningFailed> {
    let (mut token, _, signature) = parts(typ, payload, key)?;
    token.push('.');
    BASE64URL.encode_string(signature, &mut token);
    Ok(token)
}

/// Signs `payload` as [`sign`] does and leaves it out: `header..signature` (RFC 7515 appendix F).
///
/// # Errors
///
/// [`SigningFailed`] if the provider could not sign.
pub fn sign_detached(typ: &str, payload: &[u8], key: &SigningKey) -> Result<String, SigningFailed> {
    let (mut token, header_length, signature) = parts(typ, payload, key)?;
    token.truncate(header_length);
    token.push_str("..");
    BASE64URL.encode_string(signature, &mut token);
    Ok(token)
}

/// A compact JWS that was parsed and not yet verified.
///
/// The payload cannot be reached before it is verified.
#[derive(Clone, Debug)]
pub struct Compact<'a> {
    token: &'a str,
    header_length: usize,
    typ: Option<String>,
    kid: Option<String>,
    payload: Vec<u8>,
    detached: bool,
    signature: [u8; 64],
}

impl<'a> Compact<'a> {
    /// Whether the header has no other members than these. Others are to be ignored (RFC 7515 §4), unless the token is kept
    /// where nothing may be said in passing.
    pub fn has_only(&self, members: &[&str]) -> bool {
        let header = decode(&self.token[..self.header_length]).unwrap_or_default();
        let header = serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(&header);
        header.is_ok_and(|header| header.keys().all(|member| members.contains(&&**member)))
    }

    /// Takes a token apart and checks its form.
    ///
    /// # Errors
    ///
    /// [`JwsError`] if it has not three parts of canonical base64url, if its header is no JSON object or
    /// names another algorithm than ES256, or if it asks for extensions.
    pub fn parse(token: &'a str) -> Result<Self, JwsError> {
        let (header_part, rest) = token.split_once('.').ok_or(JwsError::Malformed)?;
        let (payload_part, signature_part) = rest.split_once('.').ok_or(JwsError::Malformed)?;

        let header = decode(header_part)?;
        // Serde would take an array for a struct.
        if header.trim_ascii_start().first() != Some(&b'{') {
            return Err(JwsError::Malformed);
        }
        let header: Header = serde_json::from_slice(&header).map_err(|_| JwsError::Malformed)?;
        if header.crit || header.b64 {
            return Err(JwsError::Extension);
        }
        if header.alg != "ES256" {
            return Err(JwsError::Algorithm);
        }
        Ok(Self {
            token,
            header_length: header_part.len(),
            typ: header.typ,
            kid: header.kid,
            payload: decode(payload_part)?,
            detached: payload_part.is_empty(),
            signature: decode(signature_part)?
                .try_into()
                .map_err(|_| JwsError::Signature)?,
        })
    }

    /// The header's `typ`, unverified.
    #[must_use]
    pub fn typ(&self) -> Option<&str> {
        self.typ.as_deref()
    }

    /// The header's `kid`, unverified: what to look the key up by.
    #[must_use]
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// Verifies the token and gives its payload.
    ///
    /// # Errors
    ///
    /// [`JwsError`] if the token is not of this `typ`, does not belong to this key, is detached, or does
    /// not verify.
    pub fn verify(&self, typ: &str, key: &PublicKey) -> Result<&[u8], JwsError> {
        self.check_header(typ, key)?;
        if self.detached {
            return Err(JwsError::Detached);
        }
        let signed = self.token.rsplit_once('.').map_or("", |(signed, _)| signed);
        key.verify(signed.as_bytes(), &self.signature)?;
        Ok(&self.payload)
    }

    /// Verifies a token whose payload came by another way.
    ///
    /// # Errors
    ///
    /// [`JwsError`] if the token is not of this `typ`, does not belong to this key, brings a payload of its
    /// own, or does not verify over this one.
    pub fn verify_detached(
        &self,
        typ: &str,
        payload: &[u8],
        key: &PublicKey,
    ) -> Result<(), JwsError> {
        self.check_header(typ, key)?;
        if !self.detached {
            return Err(JwsError::Attached);
        }
        let mut signed = self.token[..self.header_length].to_owned();
        signed.push('.');
        BASE64URL.encode_string(payload, &mut signed);
        key.verify(signed.as_bytes(), &self.signature)?;
        Ok(())
    }

    fn check_header(&self, typ: &str, key: &PublicKey) -> Result<(), JwsError> {
        if self.typ() != Some(typ) {
            return Err(JwsError::Typ);
        }
        if self.kid().is_some_and(|kid| kid != key.kid().as_str()) {
            return Err(JwsError::Kid);
        }
        if key.algorithm() != Algorithm::Es256 {
            return Err(JwsError::Algorithm);
        }
        Ok(())
    }
}

/// Why a JWS is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwsError {
    /// The text is no compact JWS.
    #[error(
        "a compact JWS is three parts of base64url without padding, joined by dots, the first a JSON object with `alg`"
    )]
    Malformed,
    /// The header asks for an extension (`crit`, `b64`).
    #[error("the JWS must not use `crit` or `b64`")]
    Extension,
    /// `alg` is not `ES256`, or the key is not on P-256.
    #[error("the JWS must be signed with ES256")]
    Algorithm,
    /// The header's `typ` is another one.
    #[error("the JWS is of another `typ` than is expected here")]
    Typ,
    /// The header's `kid` is another key's.
    #[error("the JWS names another key in `kid`")]
    Kid,
    /// There is no payload where one is needed.
    #[error("the JWS must carry its payload")]
    Detached,
    /// There is a payload where it comes by another way.
    #[error("the JWS must be detached, with nothing between its two dots")]
    Attached,
    /// The signature does not verify.
    #[error(
        "the JWS does not verify; its signature is ES256 in raw r||s form over header and payload"
    )]
    Signature,
}

impl From<BadSignature> for JwsError {
    fn from(_: BadSignature) -> Self {
        Self::Signature
    }
}

/// Duplicate members are refused by the derived reader; other members are let pass.
#[derive(Deserialize)]
struct Header {
    alg: String,
    typ: Option<String>,
    kid: Option<String>,
    #[serde(default, deserialize_with = "present")]
    crit: bool,
    #[serde(default, deserialize_with = "present")]
    b64: bool,
}

/// A member that is there, whatever its value, `null` included.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// The signing input `header.payload`, the length of its first part, and the signature over it.
fn parts(
    typ: &str,
    payload: &[u8],
    key: &SigningKey,
) -> Result<(String, usize, [u8; 64]), SigningFailed> {
    #[derive(Serialize)]
    struct Written<'a> {
        alg: &'static str,
        typ: &'a str,
        kid: &'a str,
    }
    let header = serde_json::to_vec(&Written {
        alg: "ES256",
        typ,
        kid: key.kid().as_str(),
    })
    .map_err(|_| SigningFailed)?;

    let mut token = BASE64URL.encode(header);
    let header_length = token.len();
    token.push('.');
    BASE64URL.encode_string(payload, &mut token);
    let signature = key.sign(token.as_bytes())?;
    Ok((token, header_length, signature))
}

fn decode(part: &str) -> Result<Vec<u8>, JwsError> {
    BASE64URL.decode(part).map_err(|_| JwsError::Malformed)
}
