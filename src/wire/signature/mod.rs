//! HTTP message signatures (RFC 9421).
//!
//! # What is protected
//!
//! A [`Message`] says what was sent, a [`Presented`] what its sender claims to have signed, a [`Policy`]
//! what has to be signed and when. Only the three together, with the sender's key, give a [`Covered`]:
//! there is no way to check a signature and to forget the policy.
//!
//! A message verifies when all of this holds; anything else is a [`SignatureError`] that says which rule
//! it was:
//!
//! 1. `Signature-Input` and `Signature` are structured fields without a repeated label, and both have the
//!    label that is asked for, in the strict serialisation of RFC 9651 ([`Presented::read`]).
//! 2. The covered components are known, distinct, and carry no parameter other than `key` and `name`. The
//!    parameters are known, distinct and of their type. (`sf`, `bs`, `tr` and `req` are not supported.)
//! 3. No header that the policy names, nor `Host`, `Content-Type`, `Content-Digest` or `Authorization`,
//!    stands in two lines: covering a header does not bind which of its copies is read.
//! 4. The `tag` is absent or allowed, `keyid` is the key's thumbprint, and `alg`, where it is given, is
//!    the algorithm of the key. The key decides the algorithm, never the message.
//! 5. Every component that the policy requires is covered.
//! 6. The signature is fresh.
//! 7. `Content-Digest`, where the message has a body or the field, matches the body.
//! 8. The signature verifies over the base that *we* build from the message and from a strict
//!    serialisation of what was parsed, never from the text that was sent.
//!
//! # What it does not do
//!
//! It does not fetch keys, does not remember nonces, and does not know which host the message was meant
//! for: the caller chooses the [`Authority`], and should choose a configured one rather than a forwarded
//! header.
//!
//! It does not make a signature's bytes an identity either: for an ECDSA signature `(r, s)` anyone can write
//! another, `(r, n − s)`, that verifies as well. Replays are recognised by what is signed.
//!
//! ```
//! use http::{HeaderMap, HeaderName, Method};
//! use tower_rctp::wire::{
//!     jwk::SigningKey,
//!     signature::{self, Authority, Component, Coverage, Message, Params, Policy, Presented},
//! };
//!
//! let key = SigningKey::generate()?;
//! let mut headers = HeaderMap::new();
//! headers.insert("date", "Tue, 20 Apr 2021 02:07:55 GMT".parse()?);
//! let authority = Authority::new("shop.example", "https")?;
//!
//! // The sender signs …
//! let components = [Component::Method, Component::Authority, Component::Path];
//! let signed = signature::sign(
//!     &Message::request(&Method::GET, &authority, "/offers", None, &headers),
//!     &components,
//!     &Params::new(1_700_000_000).expires(1_700_000_060),
//!     "sig1",
//!     &key,
//! )?;
//! signed.append_to(&mut headers);
//!
//! // … and the receiver verifies.
//! let policy = Policy::new(
//!     Coverage::new()
//!         .always(components)
//!         .when_present([HeaderName::from_static("idempotency-key")]),
//! );
//! let presented = Presented::read(&headers, "sig1")?;
//! assert_eq!(presented.keyid(), Some(key.kid().as_str()));
//! let message = Message::request(&Method::GET, &authority, "/offers", None, &headers);
//! let covered = presented.verify(&message, key.public_key(), &policy, None, 1_700_000_010)?;
//! assert!(covered.covers(&Component::Path));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod message;
mod policy;
mod presented;
mod sign;
mod verify;

pub use message::{Authority, BadAuthority, Component, Message, authority};
pub use policy::{Coverage, Freshness, Policy};
pub use presented::Presented;
pub use sign::{Params, SignError, Signed, sign};
pub use verify::{Covered, SignatureError};

use http::HeaderName;

/// The field that names what each signature covers (RFC 9421 §4.1).
pub const SIGNATURE_INPUT: HeaderName = HeaderName::from_static("signature-input");

/// The field that carries the signatures (RFC 9421 §4.2).
pub const SIGNATURE: HeaderName = HeaderName::from_static("signature");
