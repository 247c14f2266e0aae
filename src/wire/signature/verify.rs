//! The one way from a [`Presented`] to a [`Covered`].

use super::{Component, Freshness, Message, Policy, Presented, message::Parameter};
use crate::wire::{
    crypto::{Algorithm, BadSignature},
    digest::{CONTENT_DIGEST, DigestError, Sha256, check_content_digest, sha256},
    jwk::{PublicKey, Thumbprint},
};

impl Presented {
    /// Verifies the signature of this message under this key and policy.
    ///
    /// `body` is the hash of the message's body, `None` if it has none; a body of no bytes is no body.
    /// `now` is in seconds since 1970.
    ///
    /// The cheap checks come first and the signature last, so that what is refused for its form costs no
    /// cryptography. Nothing here is secret, so the order gives nothing away.
    ///
    /// # Errors
    ///
    /// The first rule that does not hold.
    pub fn verify(
        self,
        message: &Message<'_>,
        key: &PublicKey,
        policy: &Policy,
        body: Option<&Sha256>,
        now: i64,
    ) -> Result<Covered, SignatureError> {
        let headers = message.headers();
        for name in policy.singletons() {
            if headers.get_all(name).iter().nth(1).is_some() {
                return Err(SignatureError::RepeatedHeader(name.as_str().into()));
            }
        }

        let for_tag = policy.tag(self.tag()).ok_or(SignatureError::Tag)?;
        match self.keyid() {
            None => return Err(SignatureError::NoKeyId),
            Some(keyid) if keyid != key.kid().as_str() => return Err(SignatureError::OtherKey),
            Some(_) => {}
        }
        if self
            .alg()
            .is_some_and(|alg| alg != key.algorithm().http_name())
        {
            return Err(SignatureError::Algorithm);
        }

        for required in policy.required(message, body.is_some()).chain(for_tag) {
            if !covers(self.components(), required, message, policy) {
                return Err(SignatureError::NotCovered(required.clone()));
            }
        }
        let created = self.created().ok_or(SignatureError::NoCreated)?;
        is_fresh(created, self.expires(), now, policy.freshness_of())?;

        match body {
            Some(hash) => check_content_digest(headers, hash)?,
            None if headers.contains_key(CONTENT_DIGEST) => {
                check_content_digest(headers, &sha256(b""))?;
            }
            None => {}
        }

        let base = self.base(message)?;
        key.verify(base.as_bytes(), self.signature())?;

        let (mut nonce, mut tag) = (None, None);
        let expires = self.expires();
        for parameter in self.input.parameters {
            match parameter {
                Parameter::Nonce(text) => nonce = Some(text),
                Parameter::Tag(text) => tag = Some(text),
                _ => {}
            }
        }
        Ok(Covered {
            components: self.input.components,
            keyid: key.kid().clone(),
            algorithm: key.algorithm(),
            created,
            expires,
            nonce,
            tag,
        })
    }
}

/// Proof that a message was verified: it can only come out of [`Presented::verify`].
#[derive(Clone, Debug)]
pub struct Covered {
    components: Vec<Component>,
    keyid: Thumbprint,
    algorithm: Algorithm,
    created: i64,
    expires: Option<i64>,
    nonce: Option<String>,
    tag: Option<String>,
}

impl Covered {
    /// The key that signed.
    #[must_use]
    pub fn keyid(&self) -> &Thumbprint {
        &self.keyid
    }

    /// The algorithm of that key.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The components that the signature covers, in its order.
    #[must_use]
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// Whether this very component is covered.
    #[must_use]
    pub fn covers(&self, component: &Component) -> bool {
        self.components.contains(component)
    }

    /// When the signature was made, in seconds since 1970.
    #[must_use]
    pub fn created(&self) -> i64 {
        self.created
    }

    /// When the signature ends, in seconds since 1970.
    #[must_use]
    pub fn expires(&self) -> Option<i64> {
        self.expires
    }

    /// The signer's nonce.
    #[must_use]
    pub fn nonce(&self) -> Option<&str> {
        self.nonce.as_deref()
    }

    /// The signature's tag, one of those that the policy allows.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }
}

/// Why a signature is refused.
///
/// The texts are for whoever sent the message: they say what was expected, and never repeat what was sent.
/// Components are counted from 0 and shown from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The message has neither header: it is not signed.
    #[error("the message is not signed; send Signature and Signature-Input (RFC 9421)")]
    Missing,
    /// The message has one of the two headers.
    #[error("Signature and Signature-Input must both be present")]
    Incomplete,
    /// A header lacks the label.
    #[error("Signature and Signature-Input must both have a member with the expected label")]
    NoSuchLabel,
    /// A header is longer, or has more members, than is read.
    #[error(
        "Signature and Signature-Input may each have 8192 bytes and 16 labels, and a signature 64 components"
    )]
    TooLarge,
    /// A header is no Dictionary of the right form.
    #[error(
        "Signature-Input must be a Dictionary of Inner Lists of Strings and Signature one of Byte Sequences, with `created` and `expires` as Integers and other parameters as Strings"
    )]
    Malformed,
    /// A header says the right things in another way than a serialiser writes them.
    #[error(
        "Signature and Signature-Input must be in the strict serialisation of RFC 9651: single spaces, no leading zeros, padded base64"
    )]
    NotStrict,
    /// A label occurs twice, in one line or several.
    #[error("a label occurs twice in Signature or Signature-Input; each may occur once")]
    RepeatedLabel,
    /// A parameter occurs twice in one place.
    #[error("a parameter occurs twice in Signature-Input; each may occur once")]
    RepeatedParameter,
    /// The signature has a parameter that is not understood.
    #[error(
        "the signature's parameters may be `created`, `expires`, `keyid`, `nonce`, `alg` and `tag`"
    )]
    UnknownParameter,
    /// A covered component is not understood.
    #[error(
        "covered component number {number} is not supported: name a derived component, or a header in lower case, with no parameter other than `key` or `name`",
        number = place + 1
    )]
    UnknownComponent {
        /// Its place in the list, from 0.
        place: usize,
    },
    /// A component is covered twice.
    #[error("covered component number {number} was already named", number = place + 1)]
    RepeatedComponent {
        /// Its place in the list, from 0.
        place: usize,
    },
    /// A covered component has no value in this message.
    #[error(
        "covered component number {number} has no value in this message: the header is absent, is not ASCII, or lacks that member",
        number = place + 1
    )]
    NoValue {
        /// Its place in the list, from 0.
        place: usize,
    },
    /// A header that may have one line has several.
    #[error("the header {0} may occur once only")]
    RepeatedHeader(Box<str>),
    /// The signature was made for another purpose.
    #[error("the signature's `tag` is not one that is accepted here; leave `tag` out")]
    Tag,
    /// The signature names no key.
    #[error("the signature must name its key in `keyid`")]
    NoKeyId,
    /// The signature names another key.
    #[error("the signature's `keyid` is not the thumbprint of the key that it was checked with")]
    OtherKey,
    /// `alg` is not the algorithm of the key.
    #[error("the signature's `alg` is not the key's algorithm; leave `alg` out")]
    Algorithm,
    /// A component that is required is not covered.
    #[error("the signature must cover {0}")]
    NotCovered(Component),
    /// There is no `created`.
    #[error("the signature must have `created`")]
    NoCreated,
    /// There is no `expires`.
    #[error("the signature must have `expires`")]
    NoExpires,
    /// `created` is too long ago.
    #[error("the signature was created too long ago; sign each request anew and check the clock")]
    TooOld,
    /// `created` is too far ahead.
    #[error("the signature was created in the future; check the clock")]
    FromTheFuture,
    /// `expires` has passed.
    #[error("the signature has expired")]
    Expired,
    /// `expires` is before `created`.
    #[error("the signature's `expires` must not be before its `created`")]
    ExpiresBeforeCreated,
    /// `expires` is too long after `created`.
    #[error("the signature's `expires` is too long after its `created`")]
    TooLongLived,
    /// The body is not what was signed.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// Everything is in place, but the signature does not verify.
    #[error(
        "the signature does not verify under the key that it names; compare the signature base (RFC 9421 section 2.5), and send ECDSA signatures as raw r||s"
    )]
    Invalid,
}

impl From<BadSignature> for SignatureError {
    fn from(_: BadSignature) -> Self {
        Self::Invalid
    }
}

/// Whether a required component is covered: by itself or, for a header that the policy lets be, by all of its members.
fn covers(
    covered: &[Component],
    required: &Component,
    message: &Message<'_>,
    policy: &Policy,
) -> bool {
    if covered.contains(required) {
        return true;
    }
    let Component::Field(field) = required else {
        return false;
    };
    if !policy.covered_by_member(field) {
        return false;
    }
    let key_is_covered = |key: &str| {
        covered.iter().any(
            |component| matches!(component, Component::FieldKey(name, this) if name == field && this == key),
        )
    };
    covered
        .iter()
        .any(|component| matches!(component, Component::FieldKey(name, _) if name == field))
        && message
            .dictionary(field)
            .is_some_and(|members| members.keys().all(|key| key_is_covered(key.as_str())))
}

fn is_fresh(
    created: i64,
    expires: Option<i64>,
    now: i64,
    demanded: &Freshness,
) -> Result<(), SignatureError> {
    let skew = i64::try_from(demanded.max_skew.as_secs()).unwrap_or(i64::MAX);
    let lifetime = i64::try_from(demanded.max_lifetime.as_secs()).unwrap_or(i64::MAX);
    if now.saturating_sub(created) > skew {
        return Err(SignatureError::TooOld);
    }
    if created.saturating_sub(now) > skew {
        return Err(SignatureError::FromTheFuture);
    }
    match expires {
        None if demanded.require_expires => Err(SignatureError::NoExpires),
        None => Ok(()),
        Some(expires) if expires < created => Err(SignatureError::ExpiresBeforeCreated),
        Some(expires) if expires.saturating_sub(created) > lifetime => {
            Err(SignatureError::TooLongLived)
        }
        Some(expires) if expires < now => Err(SignatureError::Expired),
        Some(_) => Ok(()),
    }
}
