//! Signing a message (RFC 9421 §3.1).

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue};
use sfv::KeyRef;

use super::{
    SIGNATURE, SIGNATURE_INPUT,
    message::{Component, Input, Message, NoValue, Parameter},
};
use crate::wire::{crypto::SigningFailed, jwk::SigningKey};

/// Signs these components of a message, in this order.
///
/// `keyid` is the key's thumbprint; `alg` is left out, since the key decides it. The message has to have
/// its headers already, `Content-Digest` among them.
///
/// # Errors
///
/// [`SignError`] if a component has no value or is named twice, or a text cannot be written.
pub fn sign(
    message: &Message<'_>,
    components: &[Component],
    params: &Params,
    label: &str,
    key: &SigningKey,
) -> Result<Signed, SignError> {
    let label = KeyRef::from_str(label).map_err(|_| SignError::Unwritable)?;
    for (index, component) in components.iter().enumerate() {
        if components[..index].contains(component) {
            return Err(SignError::RepeatedComponent(component.clone()));
        }
    }

    let mut parameters = vec![Parameter::Created(params.created)];
    parameters.extend(params.expires.map(Parameter::Expires));
    parameters.push(Parameter::KeyId(key.kid().as_str().to_owned()));
    parameters.extend(params.nonce.clone().map(Parameter::Nonce));
    parameters.extend(params.tag.clone().map(Parameter::Tag));
    let input = Input {
        components: components.to_vec(),
        parameters,
    };
    if !input.is_serialisable() {
        return Err(SignError::Unwritable);
    }

    let mut input_value = format!("{}=", label.as_str());
    let start = input_value.len();
    input.write(&mut input_value);
    let base = message
        .base(components, &input_value[start..])
        .map_err(|NoValue(place)| SignError::NoValue(components[place].clone()))?;
    let signature = key.sign(base.as_bytes())?;

    let mut signature_value = format!("{}=:", label.as_str());
    STANDARD.encode_string(signature, &mut signature_value);
    signature_value.push(':');
    Ok(Signed {
        signature_input: header(input_value)?,
        signature: header(signature_value)?,
    })
}

/// The parameters of a signature that its signer chooses (RFC 9421 §2.3). Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Params {
    /// When the signature is made.
    pub created: i64,
    /// When it ends.
    pub expires: Option<i64>,
    /// A value used once.
    pub nonce: Option<String>,
    /// The application that the signature is for.
    pub tag: Option<String>,
}

impl Params {
    /// A signature made at this time, without further parameters.
    #[must_use]
    pub fn new(created: i64) -> Self {
        Self {
            created,
            expires: None,
            nonce: None,
            tag: None,
        }
    }

    /// Sets the end.
    #[must_use]
    pub fn expires(mut self, expires: i64) -> Self {
        self.expires = Some(expires);
        self
    }

    /// Sets the nonce.
    #[must_use]
    pub fn nonce(mut self, nonce: impl Into<String>) -> Self {
        self.nonce = Some(nonce.into());
        self
    }

    /// Sets the tag.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }
}

/// A signature, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The value of `Signature-Input`.
    pub signature_input: HeaderValue,
    /// The value of `Signature`.
    pub signature: HeaderValue,
}

impl Signed {
    /// Adds both headers to a message, beside signatures that it has already.
    pub fn append_to(self, headers: &mut HeaderMap) {
        headers.append(SIGNATURE_INPUT, self.signature_input);
        headers.append(SIGNATURE, self.signature);
    }
}

/// Why a message could not be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// A component has no value in this message.
    #[error("{0} has no value in this message; set the header before signing, in ASCII")]
    NoValue(Component),
    /// A component is named twice.
    #[error("{0} is named twice")]
    RepeatedComponent(Component),
    /// A label or a parameter has no form on the wire.
    #[error(
        "labels are lower-case keys, texts are ASCII and times have 15 digits at most (RFC 9651)"
    )]
    Unwritable,
    /// The key could not sign.
    #[error(transparent)]
    Failed(#[from] SigningFailed),
}

fn header(text: String) -> Result<HeaderValue, SignError> {
    HeaderValue::try_from(text).map_err(|_| SignError::Unwritable)
}
