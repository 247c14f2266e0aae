//! SHA-256 and `Content-Digest` (RFC 9530).
//!
//! A body is hashed once, by whoever collected it; everything here takes the hash, not the body.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{
    BareItemFromInput, KeyRef, Parser,
    visitor::{DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, Never},
};
use sha2::Digest as _;

/// A SHA-256 hash.
pub type Sha256 = [u8; 32];

/// The header field of RFC 9530 §2.
pub const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// Hashes `bytes` with SHA-256.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Sha256 {
    sha2::Sha256::digest(bytes).into()
}

/// The value of `Content-Digest` for a body with this hash: `sha-256=:…:` (RFC 9530 §2).
#[must_use]
pub fn content_digest(hash: &Sha256) -> HeaderValue {
    let text = field_value(hash);
    // Base64 and the characters around it are all visible ASCII.
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(""))
}

/// Checks that `Content-Digest` names this hash.
///
/// The field is a Dictionary that may carry other algorithms beside `sha-256`; they are not looked at.
/// It may stand in one line only: covering a field does not bind which of two copies is read.
///
/// # Errors
///
/// See [`DigestError`].
pub fn check_content_digest(headers: &HeaderMap, hash: &Sha256) -> Result<(), DigestError> {
    let mut lines = headers.get_all(CONTENT_DIGEST).iter();
    let line = lines.next().ok_or(DigestError::Missing)?;
    if lines.next().is_some() {
        return Err(DigestError::Repeated);
    }
    if line.as_bytes() == field_value(hash) {
        return Ok(());
    }
    let named = Parser::new(line.as_bytes().trim_ascii())
        .parse_dictionary_with_visitor(Sha256Members::default())
        .map_err(|_| DigestError::Malformed)?;
    match named.as_slice() {
        [] => Err(DigestError::NoSha256),
        [named] if named == hash => Ok(()),
        [_] => Err(DigestError::Mismatch),
        _ => Err(DigestError::Repeated),
    }
}

/// Why a `Content-Digest` is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// There is no `Content-Digest`.
    #[error("Content-Digest is missing; send sha-256=:<base64>: over the body's bytes")]
    Missing,
    /// `Content-Digest`, or its `sha-256` member, occurs more than once.
    #[error("Content-Digest must occur once, with one sha-256 member")]
    Repeated,
    /// The field is no Dictionary of Byte Sequences.
    #[error("Content-Digest must be a Dictionary of Byte Sequences, such as sha-256=:<base64>:")]
    Malformed,
    /// The field has no `sha-256` member.
    #[error("Content-Digest must have a sha-256 member")]
    NoSha256,
    /// The body has another hash.
    #[error("Content-Digest does not match the body; hash the bytes exactly as they are sent")]
    Mismatch,
}

fn field_value(hash: &Sha256) -> [u8; 54] {
    let mut text = *b"sha-256=:............................................:";
    // 32 bytes are always 44 characters of base64, so the slice fits exactly.
    let _ = STANDARD.encode_slice(hash, &mut text[9..53]);
    text
}

/// Collects every member called `sha-256`; more than one is an error that the caller reports.
#[derive(Default)]
struct Sha256Members(Vec<Vec<u8>>);

impl<'de> DictionaryVisitor<'de> for Sha256Members {
    type Out = Vec<Vec<u8>>;
    type Error = NotBytes;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, NotBytes> {
        Ok(Member((key.as_str() == "sha-256").then_some(&mut self.0)))
    }

    fn finish(self) -> Result<Self::Out, NotBytes> {
        Ok(self.0)
    }
}

struct Member<'a>(Option<&'a mut Vec<Vec<u8>>>);

impl<'de> EntryVisitor<'de> for Member<'_> {
    type Error = NotBytes;

    fn item(self) -> Result<impl ItemVisitor<'de>, NotBytes> {
        Ok(move |item: BareItemFromInput<'de>| match item {
            BareItemFromInput::ByteSequence(bytes) => {
                if let Some(found) = self.0 {
                    found.push(bytes);
                }
                Ok(Ignored)
            }
            _ => Err(NotBytes),
        })
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, NotBytes> {
        Err::<Never, _>(NotBytes)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not a byte sequence")]
struct NotBytes;
