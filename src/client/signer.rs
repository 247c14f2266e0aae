//! Signs requests as binding 2.1 asks.

use http::{HeaderName, HeaderValue, Method, Request, header};

use crate::{
    layer::{
        authenticate::{IDEMPOTENCY_KEY, LABEL, UCP_AGENT},
        context::{Clock, Ids, NoRandomness, RandomIds, SystemClock},
    },
    wire::{
        base64url,
        digest::{CONTENT_DIGEST, content_digest, sha256},
        jwk::SigningKey,
        signature::{self, Authority, Component, Message, Params},
    },
};

/// How long a signature is good for, in seconds. The binding allows 300.
const LIFETIME: i64 = 60;

/// Signs an agent's requests: fills in what is missing of `UCP-Agent`, `Idempotency-Key`, `Content-Type` and
/// `Content-Digest`, and covers all that the binding asks for, `Authorization` included where it is set.
///
/// ```
/// use http::Request;
/// use tower_rctp::{client::Signer, wire::jwk::SigningKey};
///
/// let signer = Signer::new("https://agent.example/.well-known/ucp", SigningKey::generate()?)?;
/// let mut request = Request::post("https://gateway.example/offers/off_1/decline").body("{}")?;
/// signer.sign(&mut request)?;
/// assert!(request.headers().contains_key("signature"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Signer {
    agent: HeaderValue,
    key: SigningKey,
    clock: Box<dyn Clock>,
}

/// Why a request was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The profile URL does not fit into `UCP-Agent`.
    #[error("the profile URL has characters that do not fit into UCP-Agent")]
    Profile,
    /// The request's URI is not absolute.
    #[error("the request's URI must be absolute: the signature covers the host")]
    NoAuthority,
    /// There was no randomness for an `Idempotency-Key`.
    #[error(transparent)]
    Random(#[from] NoRandomness),
    /// [`Sign`](super::Sign) was given a POST without an `Idempotency-Key`.
    #[error(
        "the POST has no Idempotency-Key; stack IdempotencyKeyLayer outside SignLayer and outside any retry"
    )]
    NoIdempotencyKey,
    /// The signature could not be made.
    #[error(transparent)]
    Signature(#[from] signature::SignError),
}

impl Signer {
    /// An agent of the operator whose profile is at `profile` and lists `key`.
    ///
    /// # Errors
    /// [`SignError::Profile`].
    pub fn new(profile: &str, key: SigningKey) -> Result<Self, SignError> {
        let fits = profile
            .bytes()
            .all(|b| (0x21..0x7f).contains(&b) && b != b'"' && b != b'\\');
        let agent = HeaderValue::from_str(&format!("profile=\"{profile}\""));
        match (fits, agent) {
            (true, Ok(agent)) => Ok(Self {
                agent,
                key,
                clock: Box::new(SystemClock),
            }),
            _ => Err(SignError::Profile),
        }
    }

    /// Uses another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// What time the signer goes by.
    #[cfg(feature = "agent")]
    pub(super) fn now(&self) -> crate::protocol::time::Timestamp {
        self.clock.now()
    }

    /// The signing key.
    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    /// Signs the request, whose URI must be absolute. Headers that are set already stay as they are, so that a retry
    /// keeps its `Idempotency-Key`; a former signature is replaced.
    ///
    /// # Errors
    /// [`SignError`].
    pub fn sign<B: AsRef<[u8]>>(&self, request: &mut Request<B>) -> Result<(), SignError> {
        let body = request.body().as_ref();
        let has_body = !body.is_empty();
        let digest = content_digest(&sha256(body));
        let method = request.method().clone();
        let uri = request.uri().clone();
        let authority = uri
            .authority()
            .and_then(|a| Authority::new(a.as_str(), uri.scheme_str().unwrap_or("https")).ok())
            .ok_or(SignError::NoAuthority)?;
        let headers = request.headers_mut();
        headers.remove("signature");
        headers.remove("signature-input");
        headers.insert(UCP_AGENT, self.agent.clone());
        let mut components = vec![
            Component::Method,
            Component::Authority,
            Component::Path,
            UCP_AGENT.into(),
        ];
        if uri.query().is_some() {
            components.push(Component::Query);
        }
        if has_body {
            headers.insert(CONTENT_DIGEST, digest);
            headers
                .entry(header::CONTENT_TYPE)
                .or_insert(HeaderValue::from_static("application/json"));
            components.push(CONTENT_DIGEST.into());
            components.push(header::CONTENT_TYPE.into());
        }
        if method == Method::POST && !headers.contains_key(IDEMPOTENCY_KEY) {
            headers.insert(IDEMPOTENCY_KEY, idempotency_key()?);
        }
        for name in [
            IDEMPOTENCY_KEY,
            header::AUTHORIZATION,
            HeaderName::from_static("signature-agent"),
        ] {
            if headers.contains_key(&name) {
                components.push(name.into());
            }
        }
        let now = self.clock.now().secs();
        let params = Params::new(now).expires(now + LIFETIME);
        let message = Message::request(&method, &authority, uri.path(), uri.query(), headers);
        let signed = signature::sign(&message, &components, &params, LABEL, &self.key)?;
        signed.append_to(headers);
        Ok(())
    }
}

/// A new `Idempotency-Key`: 128 random bits (binding 2.1).
pub(super) fn idempotency_key() -> Result<HeaderValue, NoRandomness> {
    let key = base64url(&RandomIds.random()?);
    Ok(HeaderValue::from_str(&key).expect("base64url is visible ASCII"))
}
