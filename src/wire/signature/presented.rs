//! Reading `Signature-Input` and `Signature` (RFC 9421 §4).

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName};
use sfv::{
    BareItemFromInput, KeyRef, Parser, StringRef,
    visitor::{
        DictionaryVisitor, EntryVisitor, InnerListVisitor, ItemVisitor, Never, ParameterVisitor,
    },
};

use super::{
    SIGNATURE, SIGNATURE_INPUT,
    message::{Component, Input, Message, NoValue, Parameter, joined},
    verify::SignatureError,
};

/// Either field, and any other that is read as a Dictionary, may have this many bytes, all its lines joined.
pub(super) const MAX_FIELD: usize = 8 * 1024;
/// Either field may have this many labels.
const MAX_LABELS: usize = 16;
/// One signature may cover this many components.
const MAX_COMPONENTS: usize = 64;

/// One signature as it was sent: sound in form, and not verified yet.
///
/// What it says about itself serves to look the key up and for nothing else.
#[derive(Clone, Debug)]
pub struct Presented {
    pub(super) input: Input,
    /// The strict serialisation of `input`: the value of `@signature-params`.
    params: String,
    signature: Vec<u8>,
}

impl Presented {
    /// Reads the signature of this label.
    ///
    /// # Errors
    ///
    /// [`SignatureError::Missing`] if the message has neither header, so that it is not signed at all; any
    /// other error if it is signed and wrong.
    pub fn read(headers: &HeaderMap, label: &str) -> Result<Self, SignatureError> {
        let (inputs, signatures) = match (
            field(headers, &SIGNATURE_INPUT)?,
            field(headers, &SIGNATURE)?,
        ) {
            (None, None) => return Err(SignatureError::Missing),
            (Some(inputs), Some(signatures)) => (inputs, signatures),
            _ => return Err(SignatureError::Incomplete),
        };

        let mut input: Option<Input> = None;
        let mut signature: Option<Vec<u8>> = None;
        let mut why = None;
        Parser::new(&*inputs)
            .parse_dictionary_with_visitor(Labels::new(label, &mut input, &mut why))
            .and_then(|()| {
                Parser::new(&*signatures).parse_dictionary_with_visitor(Labels::new(
                    label,
                    &mut signature,
                    &mut why,
                ))
            })
            // The parser carries its own reason as text only; ours waits beside it.
            .map_err(|_| why.take().unwrap_or(SignatureError::Malformed))?;
        let (Some(input), Some(signature)) = (input, signature) else {
            return Err(SignatureError::NoSuchLabel);
        };

        // Parsers take some texts that no serialiser writes: spaces, leading zeros, unpadded base64. The
        // signature would not protect them, so we take only what we would write ourselves.
        let mut written = String::with_capacity(inputs.len());
        written.push_str(label);
        written.push('=');
        let start = written.len();
        input.write(&mut written);
        if !contains(&inputs, written.as_bytes()) {
            return Err(SignatureError::NotStrict);
        }
        let params = written.split_off(start);

        written.push(':');
        STANDARD.encode_string(&signature, &mut written);
        written.push(':');
        if !contains(&signatures, written.as_bytes()) {
            return Err(SignatureError::NotStrict);
        }
        Ok(Self {
            input,
            params,
            signature,
        })
    }

    /// The `keyid` parameter: what to look the key up by.
    #[must_use]
    pub fn keyid(&self) -> Option<&str> {
        self.text(|parameter| match parameter {
            Parameter::KeyId(text) => Some(text),
            _ => None,
        })
    }

    /// The `created` parameter, in seconds since 1970.
    #[must_use]
    pub fn created(&self) -> Option<i64> {
        self.input
            .parameters
            .iter()
            .find_map(|parameter| match parameter {
                Parameter::Created(time) => Some(*time),
                _ => None,
            })
    }

    /// The `expires` parameter, in seconds since 1970.
    #[must_use]
    pub fn expires(&self) -> Option<i64> {
        self.input
            .parameters
            .iter()
            .find_map(|parameter| match parameter {
                Parameter::Expires(time) => Some(*time),
                _ => None,
            })
    }

    /// The `tag` parameter.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.text(|parameter| match parameter {
            Parameter::Tag(text) => Some(text),
            _ => None,
        })
    }

    /// The `nonce` parameter.
    #[must_use]
    pub fn nonce(&self) -> Option<&str> {
        self.text(|parameter| match parameter {
            Parameter::Nonce(text) => Some(text),
            _ => None,
        })
    }

    /// The components that the signature claims to cover, in order.
    #[must_use]
    pub fn components(&self) -> &[Component] {
        &self.input.components
    }

    /// The bytes of the signature.
    #[must_use]
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// The signature base that this signature has to verify over (RFC 9421 §2.5): for tests, and to find
    /// out where two implementations differ. It holds header values, credentials among them.
    ///
    /// # Errors
    ///
    /// [`SignatureError::NoValue`] if a component has no value in this message.
    pub fn base(&self, message: &Message<'_>) -> Result<String, SignatureError> {
        message
            .base(&self.input.components, &self.params)
            .map_err(|NoValue(place)| SignatureError::NoValue { place })
    }

    pub(super) fn alg(&self) -> Option<&str> {
        self.text(|parameter| match parameter {
            Parameter::Alg(text) => Some(text),
            _ => None,
        })
    }

    fn text(&self, pick: impl Fn(&Parameter) -> Option<&String>) -> Option<&str> {
        self.input
            .parameters
            .iter()
            .find_map(pick)
            .map(String::as_str)
    }
}

fn field<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<Cow<'h, [u8]>>, SignatureError> {
    joined(headers, name, MAX_FIELD)
        .transpose()
        .map_err(|_| SignatureError::TooLarge)
}

/// Whether `text` contains `part`. It does in every message that verifies, so a plain search will do.
fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Reads one member of a Dictionary, that of our label, and refuses labels that occur twice: a parsed
/// Dictionary has only the last of them, and another reader might take the first.
struct Labels<'a, 'de, T> {
    label: &'a str,
    seen: Vec<&'de str>,
    found: &'a mut Option<T>,
    why: &'a mut Option<SignatureError>,
}

impl<'a, 'de, T> Labels<'a, 'de, T> {
    fn new(label: &'a str, found: &'a mut Option<T>, why: &'a mut Option<SignatureError>) -> Self {
        Self {
            label,
            seen: Vec::new(),
            found,
            why,
        }
    }

    /// Whether the member of this key is ours.
    fn is_ours(&mut self, key: &'de KeyRef) -> Result<bool, Refused> {
        let key = key.as_str();
        if self.seen.contains(&key) {
            return refuse(self.why, SignatureError::RepeatedLabel);
        }
        if self.seen.len() == MAX_LABELS {
            return refuse(self.why, SignatureError::TooLarge);
        }
        self.seen.push(key);
        Ok(key == self.label)
    }
}

impl<'de> DictionaryVisitor<'de> for Labels<'_, 'de, Input> {
    type Out = ();
    type Error = Refused;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, Refused> {
        let ours = self.is_ours(key)?;
        Ok(ours.then(|| InputMember {
            input: self.found.insert(Input::default()),
            why: self.why,
        }))
    }

    fn finish(self) -> Result<(), Refused> {
        Ok(())
    }
}

impl<'de> DictionaryVisitor<'de> for Labels<'_, 'de, Vec<u8>> {
    type Out = ();
    type Error = Refused;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, Refused> {
        let ours = self.is_ours(key)?;
        Ok(ours.then_some(SignatureMember(self.found)))
    }

    fn finish(self) -> Result<(), Refused> {
        Ok(())
    }
}

/// The Byte Sequence of our label.
struct SignatureMember<'a>(&'a mut Option<Vec<u8>>);

impl<'de> EntryVisitor<'de> for SignatureMember<'_> {
    type Error = Refused;

    fn item(self) -> Result<impl ItemVisitor<'de>, Refused> {
        Ok(move |item: BareItemFromInput<'de>| match item {
            BareItemFromInput::ByteSequence(bytes) => {
                *self.0 = Some(bytes);
                Ok(NoParameters)
            }
            _ => Err(Refused),
        })
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Refused> {
        Err::<Never, _>(Refused)
    }
}

struct NoParameters;

impl<'de> ParameterVisitor<'de> for NoParameters {
    type Out = ();
    type Error = Refused;

    fn parameter(&mut self, _: &'de KeyRef, _: BareItemFromInput<'de>) -> Result<(), Refused> {
        Err(Refused)
    }

    fn finish(self) -> Result<(), Refused> {
        Ok(())
    }
}

/// The Inner List of our label, with its parameters.
struct InputMember<'a> {
    input: &'a mut Input,
    why: &'a mut Option<SignatureError>,
}

impl<'de> EntryVisitor<'de> for InputMember<'_> {
    type Error = Refused;

    fn item(self) -> Result<impl ItemVisitor<'de>, Refused> {
        Err::<Never, _>(Refused)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Refused> {
        Ok(self)
    }
}

impl<'de> InnerListVisitor<'de> for InputMember<'_> {
    type Error = Refused;

    fn item(&mut self) -> Result<impl ItemVisitor<'de>, Refused> {
        if self.input.components.len() == MAX_COMPONENTS {
            return refuse(self.why, SignatureError::TooLarge);
        }
        Ok(InputMember {
            input: self.input,
            why: self.why,
        })
    }

    fn finish(self) -> Result<impl ParameterVisitor<'de>, Refused> {
        Ok(Parameters(self))
    }
}

impl<'de> ItemVisitor<'de> for InputMember<'_> {
    type Out = ();
    type Error = Refused;

    fn bare_item(
        self,
        item: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = ()>, Refused> {
        match item {
            BareItemFromInput::String(name) => Ok(Identifier {
                name,
                key: None,
                query_param: None,
                input: self.input,
                why: self.why,
            }),
            _ => Err(Refused),
        }
    }
}

/// A component identifier, complete once its parameters are read.
struct Identifier<'a, 'de> {
    name: Cow<'de, StringRef>,
    key: Option<String>,
    query_param: Option<String>,
    input: &'a mut Input,
    why: &'a mut Option<SignatureError>,
}

impl<'de> ParameterVisitor<'de> for Identifier<'_, 'de> {
    type Out = ();
    type Error = Refused;

    fn parameter(
        &mut self,
        name: &'de KeyRef,
        value: BareItemFromInput<'de>,
    ) -> Result<(), Refused> {
        let slot = match name.as_str() {
            "key" => &mut self.key,
            "name" => &mut self.query_param,
            _ => {
                let place = self.input.components.len();
                return refuse(self.why, SignatureError::UnknownComponent { place });
            }
        };
        if slot.replace(text(value)?).is_some() {
            return refuse(self.why, SignatureError::RepeatedParameter);
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Refused> {
        let components = &mut self.input.components;
        let place = components.len();
        let Some(component) = Component::new(self.name.as_str(), self.key, self.query_param) else {
            return refuse(self.why, SignatureError::UnknownComponent { place });
        };
        if components.contains(&component) {
            return refuse(self.why, SignatureError::RepeatedComponent { place });
        }
        components.push(component);
        Ok(())
    }
}

/// The parameters of the signature.
struct Parameters<'a>(InputMember<'a>);

impl<'de> ParameterVisitor<'de> for Parameters<'_> {
    type Out = ();
    type Error = Refused;

    fn parameter(
        &mut self,
        name: &'de KeyRef,
        value: BareItemFromInput<'de>,
    ) -> Result<(), Refused> {
        let parameters = &mut self.0.input.parameters;
        let parameter = match name.as_str() {
            "created" => Parameter::Created(time(&value)?),
            "expires" => Parameter::Expires(time(&value)?),
            "nonce" => Parameter::Nonce(text(value)?),
            "alg" => Parameter::Alg(text(value)?),
            "keyid" => Parameter::KeyId(text(value)?),
            "tag" => Parameter::Tag(text(value)?),
            // A parameter that we do not know might restrict what the signature is for.
            _ => return refuse(self.0.why, SignatureError::UnknownParameter),
        };
        let kind = std::mem::discriminant(&parameter);
        if parameters
            .iter()
            .any(|other| std::mem::discriminant(other) == kind)
        {
            return refuse(self.0.why, SignatureError::RepeatedParameter);
        }
        parameters.push(parameter);
        Ok(())
    }

    fn finish(self) -> Result<(), Refused> {
        Ok(())
    }
}

fn text(value: BareItemFromInput<'_>) -> Result<String, Refused> {
    match value {
        BareItemFromInput::String(text) => Ok(text.into_owned().into()),
        _ => Err(Refused),
    }
}

fn time(value: &BareItemFromInput<'_>) -> Result<i64, Refused> {
    match value {
        BareItemFromInput::Integer(time) => Ok(i64::from(*time)),
        _ => Err(Refused),
    }
}

/// Stops the parser; the reason, if it is not the form alone, waits in the slot.
#[derive(Debug, thiserror::Error)]
#[error("refused")]
struct Refused;

fn refuse<T>(slot: &mut Option<SignatureError>, why: SignatureError) -> Result<T, Refused> {
    *slot = Some(why);
    Err(Refused)
}
