//! Why an operation has no result. Nothing here repeats what was sent: no token, no body, no URL.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    client::{BrokenRecord, CheckoutError, SignError},
    layer::context::NoRandomness,
    protocol::{
        decision::Decision,
        refusal::{ProtocolError, Reason},
        term_set::Violation,
    },
    wire::crypto::SigningFailed,
};

/// Why an operation has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The gateway refused. After `unavailable` the attempts are used up, or waiting any longer would take too long.
    #[error(transparent)]
    Refused(Box<Refused>),
    /// No answer came, in as many attempts as there may be. Whether the operation was carried out is not known: to find
    /// out, call again with the same `idempotency_key` and the same request.
    #[error("no answer came in {attempts} attempts")]
    NoAnswer {
        /// How often the request was sent.
        attempts: u32,
        /// Of a POST.
        idempotency_key: Option<String>,
        /// What became of the last one.
        source: reqwest::Error,
    },
    /// What answered is no gateway of this version, or it breaks the binding. An operation that answers 2xx was
    /// probably carried out.
    #[error("the answer is not what the binding says: {why} (status {})", status.as_u16())]
    Unexpected {
        /// Its status.
        status: StatusCode,
        /// What is wrong with it.
        why: &'static str,
        /// Not before this long a retry can succeed, where it says so: proxies do.
        retry_after: Option<Duration>,
        /// Of a POST.
        idempotency_key: Option<String>,
    },
    /// The answer is larger than the limit.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
        /// Of a POST.
        idempotency_key: Option<String>,
    },
    /// An id is none, and nothing was sent.
    #[error("the {0} is not of the form of an id, such as off_4f7a")]
    NotAnId(&'static str),
    /// An `Idempotency-Key` is none, and nothing was sent.
    #[error("an Idempotency-Key is 22 to 255 visible ASCII characters")]
    NotAKey,
    /// The operation needs a key to sign with, and this agent has none.
    #[error("this needs an agent that signs")]
    NoSigner,
    /// The request could not be signed.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// There was no randomness for an id or a key.
    #[error(transparent)]
    Random(#[from] NoRandomness),
    /// The request could not be put together.
    #[error("the request could not be put together: {0}")]
    Request(&'static str),
    /// The gateway's profile could not be used.
    #[error("the gateway's profile cannot be used: {0}")]
    Profile(&'static str),
    /// The record is not what the gateway wrote.
    #[error(transparent)]
    Record(#[from] BrokenRecord),
    /// The checkout is not to be redeemed.
    #[error(transparent)]
    Checkout(#[from] CheckoutError),
}

impl Error {
    /// The refusal, where it is one.
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Error::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    /// Why the gateway refused, where the reason is one of this version's registry.
    pub fn reason(&self) -> Option<Reason> {
        self.refused()?.code.reason()
    }

    /// How long to wait before a retry can succeed, where the gateway or a proxy says so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Refused(refused) => refused.retry_after,
            Error::Unexpected { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The key of the POST that this is about, to find out what became of it.
    pub fn idempotency_key(&self) -> Option<&str> {
        match self {
            Error::Refused(refused) => refused.idempotency_key.as_deref(),
            Error::NoAnswer {
                idempotency_key, ..
            }
            | Error::Unexpected {
                idempotency_key, ..
            }
            | Error::TooLarge {
                idempotency_key, ..
            } => idempotency_key.as_deref(),
            _ => None,
        }
    }
}

impl From<SigningFailed> for Error {
    fn from(_: SigningFailed) -> Self {
        Error::Request("the event could not be signed")
    }
}

/// A refusal (binding 6).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refused {
    /// Why.
    pub code: Code,
    /// Its status.
    pub status: StatusCode,
    /// The gateway's sentence for people: the rule, and what to do.
    pub message: String,
    /// Not before this long a retry can succeed, with a new `Idempotency-Key` where the refusal is a decision.
    pub retry_after: Option<Duration>,
    /// As the header states it; none of protocol errors, and where its words are not of this version.
    pub decision: Option<Decision>,
    /// The offer that it is about, where it says so.
    pub offer_id: Option<String>,
    /// The listing that it is about, where it says so.
    pub listing_id: Option<String>,
    /// With `terms_invalid`: which terms break which rules.
    pub fields: Vec<Violation>,
    /// The headers as they came.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
    /// Of a POST. A refusal that is a decision is stored under it and would be answered again.
    pub idempotency_key: Option<String>,
    /// How often the request was sent.
    pub attempts: u32,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {}",
            self.code,
            self.status.as_u16(),
            self.message
        )?;
        match self.retry_after {
            Some(after) => write!(f, " (not before {} s)", after.as_secs()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refused {}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// A decision.
    Reason(Reason),
    /// An error that is no decision.
    Protocol(ProtocolError),
    /// One that this version does not know.
    Other(String),
}

impl Code {
    /// The reason, where it is a decision of this version.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Code::Reason(reason) => Some(*reason),
            _ => None,
        }
    }

    /// As the body's `error` has it.
    pub fn as_str(&self) -> &str {
        match self {
            Code::Reason(reason) => reason.as_str(),
            Code::Protocol(error) => error.as_str(),
            Code::Other(name) => name,
        }
    }

    fn read(name: &str, status: StatusCode) -> Self {
        let reason = Reason::ALL.into_iter().find(|r| r.as_str() == name);
        if let Some(reason) = reason {
            return Code::Reason(reason);
        }
        // Two protocol errors have one name, and differ in status.
        let mut named = ProtocolError::ALL
            .into_iter()
            .filter(|e| e.as_str() == name);
        let exact = named.clone().find(|e| e.status() == status);
        match exact.or_else(|| named.next()) {
            Some(error) => Code::Protocol(error),
            None => Code::Other(name.to_owned()),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Refused {
    /// Reads the body of an error (schema `error`), more leniently than it is written: what else it may say is for
    /// people.
    pub(super) fn read(status: StatusCode, body: &Value) -> Option<Self> {
        #[derive(Deserialize)]
        struct Body {
            error: String,
            #[serde(default)]
            message: String,
            retry_after: Option<u64>,
            offer_id: Option<String>,
            listing_id: Option<String>,
        }
        let read = Body::deserialize(body).ok()?;
        let fields = body.get("fields").cloned().unwrap_or_default();
        Some(Self {
            code: Code::read(&printable(&read.error, 64), status),
            status,
            message: printable(&read.message, 1000),
            retry_after: read.retry_after.map(Duration::from_secs),
            decision: None,
            offer_id: read.offer_id,
            listing_id: read.listing_id,
            fields: serde_json::from_value(fields).unwrap_or_default(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            idempotency_key: None,
            attempts: 1,
        })
    }
}

/// Another's words, fit for a log: no control characters, and not without end.
fn printable(text: &str, most: usize) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(most)
        .collect()
}
