//! Why a request was refused, as a typed value and as the HTTP response that says so (binding 6; R12, R13).

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::{Deserialize, Serialize};

use super::{decision::Decision, operation::Verb, term_set::Violation};

/// A reason to forbid (the registry of reasons; binding 3.3, 5, 6, 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the registry's
pub enum Reason {
    SignatureInvalid,
    OperatorUnknown,
    GrantInvalid,
    GrantRevoked,
    GrantExpired,
    ActionForbidden,
    NotInScope,
    ListingReserved,
    OfferReplayed,
    OfferExpired,
    ReleaseConditionUnmet,
    TermsInvalid,
    BelowFloor,
    OfferBudgetExhausted,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Reason; 14] = [
        Reason::SignatureInvalid,
        Reason::OperatorUnknown,
        Reason::GrantInvalid,
        Reason::GrantRevoked,
        Reason::GrantExpired,
        Reason::ActionForbidden,
        Reason::NotInScope,
        Reason::ListingReserved,
        Reason::OfferReplayed,
        Reason::OfferExpired,
        Reason::ReleaseConditionUnmet,
        Reason::TermsInvalid,
        Reason::BelowFloor,
        Reason::OfferBudgetExhausted,
    ];

    /// The reason as the registry writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::SignatureInvalid => "signature_invalid",
            Reason::OperatorUnknown => "operator_unknown",
            Reason::GrantInvalid => "grant_invalid",
            Reason::GrantRevoked => "grant_revoked",
            Reason::GrantExpired => "grant_expired",
            Reason::ActionForbidden => "action_forbidden",
            Reason::NotInScope => "not_in_scope",
            Reason::ListingReserved => "listing_reserved",
            Reason::OfferReplayed => "offer_replayed",
            Reason::OfferExpired => "offer_expired",
            Reason::ReleaseConditionUnmet => "release_condition_unmet",
            Reason::TermsInvalid => "terms_invalid",
            Reason::BelowFloor => "below_floor",
            Reason::OfferBudgetExhausted => "offer_budget_exhausted",
        }
    }

    /// The status of the refusal (R12).
    pub const fn status(self) -> StatusCode {
        match self {
            Reason::SignatureInvalid | Reason::OperatorUnknown | Reason::GrantInvalid => {
                StatusCode::UNAUTHORIZED
            }
            Reason::GrantRevoked
            | Reason::GrantExpired
            | Reason::ActionForbidden
            | Reason::NotInScope => StatusCode::FORBIDDEN,
            Reason::ListingReserved
            | Reason::OfferReplayed
            | Reason::OfferExpired
            | Reason::ReleaseConditionUnmet => StatusCode::CONFLICT,
            Reason::TermsInvalid | Reason::BelowFloor => StatusCode::UNPROCESSABLE_ENTITY,
            Reason::OfferBudgetExhausted => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error that is not a decision (binding 6): no `RCTP-Decision`, no record entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolError {
    /// 400: malformed JSON, a schema violation, a missing or weak `Idempotency-Key`.
    InvalidRequest,
    /// 413, `invalid_request`: the body is over the limit.
    TooLarge,
    /// 404: no such route, or nothing that the caller may see.
    NotFound,
    /// 400: an `RCTP-Version` that is not served.
    UnsupportedVersion,
    /// 409: the key was used for another request.
    IdempotencyConflict,
    /// 503: the store or the authorization server is out of reach; nothing was executed.
    Unavailable,
}

impl ProtocolError {
    /// Every protocol error.
    pub const ALL: [ProtocolError; 6] = [
        ProtocolError::InvalidRequest,
        ProtocolError::TooLarge,
        ProtocolError::NotFound,
        ProtocolError::UnsupportedVersion,
        ProtocolError::IdempotencyConflict,
        ProtocolError::Unavailable,
    ];

    /// The code in the body.
    pub const fn as_str(self) -> &'static str {
        match self {
            ProtocolError::InvalidRequest | ProtocolError::TooLarge => "invalid_request",
            ProtocolError::NotFound => "not_found",
            ProtocolError::UnsupportedVersion => "unsupported_version",
            ProtocolError::IdempotencyConflict => "idempotency_conflict",
            ProtocolError::Unavailable => "unavailable",
        }
    }

    /// The status of the error (binding 6).
    pub const fn status(self) -> StatusCode {
        match self {
            ProtocolError::InvalidRequest | ProtocolError::UnsupportedVersion => {
                StatusCode::BAD_REQUEST
            }
            ProtocolError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ProtocolError::NotFound => StatusCode::NOT_FOUND,
            ProtocolError::IdempotencyConflict => StatusCode::CONFLICT,
            ProtocolError::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// What a refusal's `error` member says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A decision to forbid.
    Reason(Reason),
    /// A protocol error.
    Protocol(ProtocolError),
}

impl Code {
    /// The code in the body.
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::Reason(reason) => reason.as_str(),
            Code::Protocol(error) => error.as_str(),
        }
    }
}

/// A refusal. It travels in the response's extensions, so that outer layers read it without parsing a body.
///
/// `message` is for people: it names the rule and what to do, never a private value or the caller's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    code: Code,
    message: Cow<'static, str>,
    action: Option<Verb>,
    retry_after: Option<u64>,
    // Boxed slices, so that a `Result` with a refusal stays small.
    offer_id: Option<Box<str>>,
    listing_id: Option<Box<str>>,
    fields: Box<[Violation]>,
    /// The seller whose grant was refused, where introspection told; for the record only.
    pub(crate) sub: Option<String>,
    /// Whether the access token itself does not do: another one may (RFC 6750 §3.1, `invalid_token`).
    pub(crate) of_token: bool,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offer_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listing_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    fields: &'a [Violation],
}

impl Refusal {
    fn with(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            action: None,
            retry_after: None,
            offer_id: None,
            listing_id: None,
            fields: Box::default(),
            sub: None,
            of_token: false,
        }
    }

    /// Says that the access token itself does not do: it is unknown, out of date, or not bound to the key that signs.
    #[must_use]
    pub(crate) fn of_token(mut self) -> Self {
        self.of_token = true;
        self
    }

    /// A decision to forbid.
    pub fn forbid(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self::with(Code::Reason(reason), message)
    }

    /// A protocol error.
    pub fn protocol(error: ProtocolError, message: impl Into<Cow<'static, str>>) -> Self {
        Self::with(Code::Protocol(error), message)
    }

    /// 400 `invalid_request`.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::protocol(ProtocolError::InvalidRequest, message)
    }

    /// 404 `not_found`, the same for what is absent and for what the caller may not see (R5).
    pub fn not_found() -> Self {
        Self::protocol(
            ProtocolError::NotFound,
            "there is no such resource for this caller; check the path and the id",
        )
    }

    /// 503 `unavailable`, with a second to wait.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::protocol(ProtocolError::Unavailable, message).retry_after(1)
    }

    /// Names the verb that was refused.
    #[must_use]
    pub fn action(mut self, verb: Option<Verb>) -> Self {
        self.action = verb;
        self
    }

    /// Seconds after which a retry can succeed; also sent as `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Names the offer.
    #[must_use]
    pub fn offer(mut self, id: impl Into<String>) -> Self {
        self.offer_id = Some(id.into().into());
        self
    }

    /// Names the listing.
    #[must_use]
    pub fn listing(mut self, id: impl Into<String>) -> Self {
        self.listing_id = Some(id.into().into());
        self
    }

    /// Names the terms that break a rule, with `terms_invalid`.
    #[must_use]
    pub fn fields(mut self, violations: Vec<Violation>) -> Self {
        self.fields = violations.into();
        self
    }

    pub(crate) fn of_seller(mut self, sub: Option<String>) -> Self {
        self.sub = sub;
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The reason, when the refusal is a decision.
    pub fn reason(&self) -> Option<Reason> {
        match self.code {
            Code::Reason(reason) => Some(reason),
            Code::Protocol(_) => None,
        }
    }

    /// The sentence for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The decision that the refusal states; none for protocol errors.
    pub fn decision(&self) -> Option<Decision> {
        self.reason().map(|reason| Decision::Forbid {
            action: self.action,
            reason,
            retry_after: self.retry_after,
        })
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self.code {
            Code::Reason(reason) => reason.status(),
            Code::Protocol(error) => error.status(),
        }
    }

    /// The error body, as the response carries it.
    pub fn body(&self) -> serde_json::Value {
        serde_json::to_value(self.error_body()).expect("strings and numbers serialise")
    }

    fn error_body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: self.code.as_str(),
            message: &self.message,
            retry_after: self.retry_after,
            offer_id: self.offer_id.as_deref(),
            listing_id: self.listing_id.as_deref(),
            fields: &self.fields,
        }
    }

    /// The response: status, JSON body, `RCTP-Decision` for a decision, `Retry-After` where known, and the refusal
    /// itself in the extensions.
    pub fn to_response(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(
            serde_json::to_vec(&self.error_body()).expect("strings and numbers serialise"),
        ));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(decision) = self.decision() {
            headers.insert(super::decision::HEADER, decision.to_header());
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self.clone());
        response
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl std::error::Error for Refusal {}
