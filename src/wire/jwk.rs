//! Keys as JSON (RFC 7517, 7518 §6, 8037 §2) and their thumbprints (RFC 7638).
//!
//! [`Keys`] is a published set, read once and then only looked up. One rule decides what happens to a
//! key that we cannot use: *it* is unusable, the set is not. The one exception is private material: a
//! publisher that gave away a private key has a compromised set.

use std::{borrow::Borrow, collections::HashMap, fmt, str::FromStr, sync::Arc};

use base64::Engine;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::{
    BASE64URL,
    crypto::{self, Algorithm, BadKey, BadSignature, Provider, Sign, SigningFailed, Verify},
    digest::{Sha256, sha256},
};

/// The JWK SHA-256 thumbprint of a key (RFC 7638): base64url without padding, 43 characters.
///
/// A thumbprint names the key itself: two keys that share one are the same key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thumbprint(Arc<str>);

impl Thumbprint {
    /// The thumbprint as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Hashes the canonical form of RFC 7638 §3.2, whose members are given in order.
    fn of(members: fmt::Arguments<'_>) -> Self {
        let hash: Sha256 = sha256(members.to_string().as_bytes());
        Self(BASE64URL.encode(hash).into())
    }
}

impl FromStr for Thumbprint {
    type Err = NotAThumbprint;

    fn from_str(text: &str) -> Result<Self, NotAThumbprint> {
        let mut hash = Sha256::default();
        match BASE64URL.decode_slice(text, &mut hash) {
            Ok(32) if text.len() == 43 => Ok(Self(text.into())),
            _ => Err(NotAThumbprint),
        }
    }
}

impl fmt::Display for Thumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Thumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Thumbprint {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Thumbprint {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for Thumbprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Thumbprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// A text is no SHA-256 thumbprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key's thumbprint is 43 characters of base64url, without padding (RFC 7638)")]
pub struct NotAThumbprint;

/// A public key that can verify. Cheap to clone.
#[derive(Clone)]
pub struct PublicKey {
    kid: Thumbprint,
    verify: Arc<dyn Verify>,
}

impl PublicKey {
    /// Reads one JWK with the default provider; see [`PublicKey::from_jwk_with`].
    ///
    /// # Errors
    ///
    /// As [`PublicKey::from_jwk_with`].
    pub fn from_jwk(jwk: &Value) -> Result<Self, Unusable> {
        Self::from_jwk_with(jwk, crypto::default_provider())
    }

    /// Reads one JWK. Its `kid` must be its thumbprint.
    ///
    /// # Errors
    ///
    /// The reason why the key cannot be used.
    pub fn from_jwk_with(jwk: &Value, provider: &dyn Provider) -> Result<Self, Unusable> {
        let members = jwk.as_object().ok_or(Unusable::NotAnObject)?;
        if has_private_member(members) {
            return Err(Unusable::Private);
        }
        read_public(members, provider)
    }

    /// The key's thumbprint, which is also its `kid` and the `keyid` of its signatures.
    #[must_use]
    pub fn kid(&self) -> &Thumbprint {
        &self.kid
    }

    /// The only algorithm that this key verifies.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.verify.algorithm()
    }

    /// Checks `signature` over `message`; ECDSA signatures are raw `r‖s`.
    ///
    /// # Errors
    ///
    /// [`BadSignature`] if it does not verify.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        self.verify.verify(message, signature)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey")
            .field("kid", &self.kid)
            .field("algorithm", &self.algorithm())
            .finish()
    }
}

/// A JWK Set, read once.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    usable: HashMap<Thumbprint, PublicKey>,
    unusable: Vec<(String, Unusable)>,
}

impl Keys {
    /// Reads the `keys` array of a JWK Set (RFC 7517 §5).
    ///
    /// # Errors
    ///
    /// [`KeysError`] if `keys` is no array, or if any member of it shows private key material. A key that
    /// is merely unusable is no error; see [`Keys::unusable`].
    pub fn parse(keys: &Value, provider: &dyn Provider) -> Result<Self, KeysError> {
        let keys = keys.as_array().ok_or(KeysError::NotAnArray)?;
        if keys
            .iter()
            .filter_map(Value::as_object)
            .any(has_private_member)
        {
            return Err(KeysError::Private);
        }

        let mut times_named: HashMap<&str, usize> = HashMap::new();
        for kid in keys.iter().filter_map(|jwk| jwk.get("kid")?.as_str()) {
            *times_named.entry(kid).or_default() += 1;
        }

        let mut set = Self::default();
        for (index, jwk) in keys.iter().enumerate() {
            let kid = jwk.get("kid").and_then(Value::as_str);
            let read = match kid.and_then(|kid| times_named.get(kid)) {
                Some(2..) => Err(Unusable::Duplicate),
                _ => PublicKey::from_jwk_with(jwk, provider),
            };
            match read {
                Ok(key) => {
                    set.usable.insert(key.kid.clone(), key);
                }
                Err(reason) => {
                    let name = kid.map_or_else(|| format!("keys[{index}]"), str::to_owned);
                    set.unusable.push((name, reason));
                }
            }
        }
        Ok(set)
    }

    /// The usable key of this name.
    #[must_use]
    pub fn get(&self, kid: &str) -> Option<&PublicKey> {
        self.usable.get(kid)
    }

    /// The usable keys, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &PublicKey> {
        self.usable.values()
    }

    /// The keys that cannot be used, each with its `kid` (or its place, such as `keys[2]`) and the reason.
    ///
    /// The name is the publisher's own text: quote it before it reaches a log.
    pub fn unusable(&self) -> impl Iterator<Item = (&str, Unusable)> {
        self.unusable
            .iter()
            .map(|(name, reason)| (name.as_str(), *reason))
    }
}

/// Why a whole key set is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// `keys` is no array.
    #[error("a JWK Set is an object whose `keys` is an array (RFC 7517)")]
    NotAnArray,
    /// A key shows private material. It must be replaced, not only taken out.
    #[error("the key set publishes private key material; remove it and replace the key")]
    Private,
}

/// Why one key of a set cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// The member of the set is no object.
    #[error("a key is a JSON object")]
    NotAnObject,
    /// The key shows private material.
    #[error("the key carries private members")]
    Private,
    /// The key has no `kid`, or one that is no string.
    #[error("the key has no `kid`")]
    NoKid,
    /// Another key of the set has the same `kid`.
    #[error("another key of the set has the same `kid`")]
    Duplicate,
    /// `kid` is not the RFC 7638 thumbprint.
    #[error("`kid` must be the key's RFC 7638 SHA-256 thumbprint")]
    KidIsNotThumbprint,
    /// `use` is not `sig`.
    #[error("the key is not for signatures: `use` must be \"sig\" or absent")]
    Use,
    /// `key_ops` lacks `verify`.
    #[error("the key is not for verifying: `key_ops` must contain \"verify\" or be absent")]
    KeyOps,
    /// A key type or curve that is not supported.
    #[error("supported keys are EC P-256, EC P-384 and OKP Ed25519")]
    Unsupported,
    /// `alg` names another algorithm than the curve.
    #[error("`alg` does not belong to the key's curve")]
    Alg,
    /// A coordinate is missing or has the wrong form or length, or the point is not on the curve.
    #[error("the coordinates are not a point of the key's curve, in base64url without padding")]
    Point,
}

impl From<BadKey> for Unusable {
    fn from(_: BadKey) -> Self {
        Self::Point
    }
}

/// An ES256 signing key. Cheap to clone; `Debug` shows its `kid` alone.
#[derive(Clone)]
pub struct SigningKey {
    sign: Arc<dyn Sign>,
    public: PublicKey,
    x: Arc<str>,
    y: Arc<str>,
}

impl SigningKey {
    /// Generates a key with the default provider.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the system has no randomness to give.
    pub fn generate() -> Result<Self, SigningFailed> {
        Self::generate_with(crypto::default_provider())
    }

    /// Generates a key with this provider.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the system has no randomness to give.
    pub fn generate_with(provider: &dyn Provider) -> Result<Self, SigningFailed> {
        Self::new(provider.generate_signing_key()?, provider).map_err(|_| SigningFailed)
    }

    /// Loads a key from PEM (`-----BEGIN PRIVATE KEY-----`, PKCS#8) with the default provider.
    ///
    /// # Errors
    ///
    /// As [`SigningKey::from_pkcs8_pem_with`].
    pub fn from_pkcs8_pem(pem: &str) -> Result<Self, PemError> {
        Self::from_pkcs8_pem_with(pem, crypto::default_provider())
    }

    /// Loads a key from PEM (`-----BEGIN PRIVATE KEY-----`, PKCS#8) with this provider.
    ///
    /// # Errors
    ///
    /// [`PemError`] if the text is no such document or holds another kind of key.
    pub fn from_pkcs8_pem_with(pem: &str, provider: &dyn Provider) -> Result<Self, PemError> {
        let (label, der) = pem_rfc7468::decode_vec(pem.as_bytes()).map_err(|_| PemError::NotPem)?;
        let der = Zeroizing::new(der);
        if label != PEM_LABEL {
            return Err(PemError::NotPkcs8);
        }
        let sign = provider
            .signing_key(&der)
            .map_err(|BadKey| PemError::NotP256)?;
        Self::new(sign, provider).map_err(|_| PemError::NotP256)
    }

    /// Writes the key as PEM (PKCS#8), wiped when dropped.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the provider cannot encode its key.
    pub fn to_pkcs8_pem(&self) -> Result<Zeroizing<String>, SigningFailed> {
        let der = self.sign.to_pkcs8()?;
        pem_rfc7468::encode_string(PEM_LABEL, pem_rfc7468::LineEnding::LF, &der)
            .map(Zeroizing::new)
            .map_err(|_| SigningFailed)
    }

    /// The key's thumbprint, which is also its `kid` and the `keyid` of its signatures.
    #[must_use]
    pub fn kid(&self) -> &Thumbprint {
        self.public.kid()
    }

    /// The public half, ready to verify.
    #[must_use]
    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }

    /// The public half as it is published: with `kid`, `use` and `alg`.
    #[must_use]
    pub fn public_jwk(&self) -> Value {
        json!({
            "kid": self.kid(),
            "kty": "EC",
            "crv": "P-256",
            "x": self.x,
            "y": self.y,
            "use": "sig",
            "alg": "ES256",
        })
    }

    /// Signs `message`; the signature is raw `r‖s`.
    ///
    /// # Errors
    ///
    /// [`SigningFailed`] if the provider could not sign.
    pub fn sign(&self, message: &[u8]) -> Result<[u8; 64], SigningFailed> {
        self.sign.sign(message)
    }

    /// What other keys are derived from.
    pub(super) fn secret(&self) -> Result<Zeroizing<[u8; 32]>, SigningFailed> {
        self.sign.secret()
    }

    fn new(sign: Arc<dyn Sign>, provider: &dyn Provider) -> Result<Self, BadKey> {
        let point = sign.public_point();
        let verify = provider.verifying_key(Algorithm::Es256, &point)?;
        let x = BASE64URL.encode(&point[1..33]);
        let y = BASE64URL.encode(&point[33..]);
        let kid = ec_thumbprint("P-256", &x, &y);
        Ok(Self {
            sign,
            public: PublicKey { kid, verify },
            x: x.into(),
            y: y.into(),
        })
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("kid", self.kid())
            .finish_non_exhaustive()
    }
}

/// Why a signing key could not be loaded. Never repeats the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PemError {
    /// The text is no PEM document.
    #[error("the signing key is no PEM document (RFC 7468)")]
    NotPem,
    /// The document has another label than `PRIVATE KEY`.
    #[error(
        "the signing key must be PKCS#8, `-----BEGIN PRIVATE KEY-----`; convert it with `openssl pkcs8 -topk8 -nocrypt`"
    )]
    NotPkcs8,
    /// The document holds no P-256 key.
    #[error(
        "the signing key must be a P-256 key; make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`"
    )]
    NotP256,
}

const PEM_LABEL: &str = "PRIVATE KEY";

/// The members that hold private or symmetric key material (RFC 7518 §6.2.2, §6.3.2, §6.4.1; RFC 8037 §2).
const PRIVATE_MEMBERS: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

fn has_private_member(jwk: &Map<String, Value>) -> bool {
    PRIVATE_MEMBERS.iter().any(|name| jwk.contains_key(*name))
}

fn read_public(jwk: &Map<String, Value>, provider: &dyn Provider) -> Result<PublicKey, Unusable> {
    let kid = text(jwk, "kid").ok_or(Unusable::NoKid)?;
    if jwk.get("use").is_some_and(|usage| usage != "sig") {
        return Err(Unusable::Use);
    }
    if let Some(operations) = jwk.get("key_ops") {
        let verifies = operations
            .as_array()
            .is_some_and(|operations| operations.iter().any(|operation| operation == "verify"));
        if !verifies {
            return Err(Unusable::KeyOps);
        }
    }

    let x = text(jwk, "x").ok_or(Unusable::Point);
    let (algorithm, names, public, thumbprint): (_, &[&str], _, _) =
        match (text(jwk, "kty"), text(jwk, "crv")) {
            (Some("EC"), Some(curve @ ("P-256" | "P-384"))) => {
                let (x, y) = (x?, text(jwk, "y").ok_or(Unusable::Point)?);
                let (algorithm, names, length): (_, &[&str], _) = match curve {
                    "P-256" => (Algorithm::Es256, &["ES256"], 32),
                    _ => (Algorithm::Es384, &["ES384"], 48),
                };
                let mut point = vec![4];
                coordinate(x, length, &mut point)?;
                coordinate(y, length, &mut point)?;
                (algorithm, names, point, ec_thumbprint(curve, x, y))
            }
            (Some("OKP"), Some("Ed25519")) => {
                let x = x?;
                let mut point = Vec::new();
                coordinate(x, 32, &mut point)?;
                // RFC 8037 says `EdDSA`, RFC 9864 the name of the curve.
                let names: &[&str] = &["EdDSA", "Ed25519"];
                let thumbprint =
                    Thumbprint::of(format_args!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#));
                (Algorithm::Ed25519, names, point, thumbprint)
            }
            _ => return Err(Unusable::Unsupported),
        };

    if jwk
        .get("alg")
        .is_some_and(|alg| !names.iter().any(|name| alg == name))
    {
        return Err(Unusable::Alg);
    }
    if thumbprint.as_str() != kid {
        return Err(Unusable::KidIsNotThumbprint);
    }
    Ok(PublicKey {
        kid: thumbprint,
        verify: provider.verifying_key(algorithm, &public)?,
    })
}

fn text<'a>(jwk: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    jwk.get(name)?.as_str()
}

/// Appends a coordinate of exactly `length` bytes (RFC 7518 §6.2.1.2).
fn coordinate(text: &str, length: usize, point: &mut Vec<u8>) -> Result<(), Unusable> {
    let before = point.len();
    BASE64URL
        .decode_vec(text, point)
        .map_err(|_| Unusable::Point)?;
    if point.len() - before == length {
        Ok(())
    } else {
        Err(Unusable::Point)
    }
}

/// Both coordinates are canonical base64url of the right length, so they need no escaping.
fn ec_thumbprint(curve: &str, x: &str, y: &str) -> Thumbprint {
    Thumbprint::of(format_args!(
        r#"{{"crv":"{curve}","kty":"EC","x":"{x}","y":"{y}"}}"#
    ))
}
