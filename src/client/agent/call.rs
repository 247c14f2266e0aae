//! One operation: sent, sent again where that may help, and read.
//!
//! A request is sent again when no whole answer came, and on 408, 429 without a decision, 500, 502, 503 and 504: with
//! the same `Idempotency-Key` and the same bytes, and a signature of its own. Whatever else is answered is final. In
//! particular a decision is: it is stored under the key, and would be answered again.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use serde::Serialize;
use serde_json::Value;

use super::{
    Agent, Answered, Error, Refused,
    mcp::{self, Of},
};
use crate::{
    client::signer::idempotency_key,
    layer::{
        authenticate::IDEMPOTENCY_KEY,
        context::{Ids, RandomIds},
        idempotency::{MAX_KEY, MIN_KEY},
    },
    protocol::{
        VERSION, decision,
        decision::Decision,
        operation::{Op, is_id},
        schema,
    },
    store::BoxFuture,
};

/// The version that an agent speaks, as an sf-string (binding 10).
const RCTP_VERSION: HeaderName = HeaderName::from_static("rctp-version");

/// When a request is sent again, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    attempts: u32,
    total: Duration,
    first: Duration,
    most: Duration,
}

impl Retry {
    /// Sends once.
    pub fn never() -> Self {
        Self {
            attempts: 1,
            ..Self::default()
        }
    }

    /// At most so many attempts, the first included; 4 by default.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// How long an operation may take with all of its attempts and pauses; 30 s by default. A `Retry-After` that ends
    /// later is not waited for: the refusal is the answer.
    #[must_use]
    pub fn total(mut self, total: Duration) -> Self {
        self.total = total;
        self
    }

    /// The pause after the first attempt, and the longest one; 200 ms and 5 s by default. Each is twice the one before,
    /// and then shortened at random by up to a half, so that agents that failed together do not come back together.
    #[must_use]
    pub fn pauses(mut self, first: Duration, most: Duration) -> Self {
        (self.first, self.most) = (first, most);
        self
    }

    fn pause(&self, attempt: u32) -> Duration {
        backoff(self.first, self.most, attempt)
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 4,
            total: Duration::from_secs(30),
            first: Duration::from_millis(200),
            most: Duration::from_secs(5),
        }
    }
}

/// The pause after the `attempt`th time, from 1: doubled each time, at most `most`, and shortened at random by up to a
/// half.
pub(super) fn backoff(first: Duration, most: Duration, attempt: u32) -> Duration {
    let doubled = first.saturating_mul(1_u32 << attempt.saturating_sub(1).min(16));
    let whole = doubled.min(most);
    // Without randomness the pause is whole.
    let [a, b, ..] = RandomIds.random().unwrap_or_default();
    whole - whole.mul_f64(f64::from(u16::from_be_bytes([a, b])) / f64::from(u16::MAX) / 2.0)
}

/// Waits between attempts; injected so that tests do not.
pub trait Timer: Send + Sync + 'static {
    /// Now, on a clock that only goes forward.
    fn now(&self) -> Instant;

    /// Returns after this long.
    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()>;
}

/// Tokio's timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTimer;

impl Timer for TokioTimer {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

type Read<T> = fn(StatusCode, Option<&Decision>, Value) -> Result<T, &'static str>;

/// An operation, not yet sent: `.await` sends it.
#[must_use = "an operation is sent when it is awaited"]
pub struct Call<T> {
    agent: Agent,
    request: Result<Request<Bytes>, Error>,
    read: Read<T>,
    /// The member of the answer that must be the id that was asked for.
    about: Option<(&'static str, String)>,
}

impl<T> Call<T> {
    pub(super) fn new(
        agent: &Agent,
        request: Result<Request<Bytes>, Error>,
        read: Read<T>,
    ) -> Self {
        Self {
            agent: agent.clone(),
            request,
            read,
            about: None,
        }
    }

    /// Of an answer about something else, such as one from a cache that mixes them up, there is none.
    pub(super) fn about(mut self, member: &'static str, id: &str) -> Self {
        self.about = Some((member, id.to_owned()));
        self
    }

    /// Sends a POST under this `Idempotency-Key` instead of a new one: to find out what became of a request that was
    /// not answered, from [`Error::idempotency_key`], also after a restart. 22 to 255 visible ASCII characters; one key
    /// is for one request, and with another it is `idempotency_conflict`. Reads have none.
    pub fn idempotency_key(mut self, key: &str) -> Self {
        self.request = self.request.and_then(|mut request| {
            let fits = (MIN_KEY..=MAX_KEY).contains(&key.len())
                && key.bytes().all(|b| b.is_ascii_graphic());
            let key = HeaderValue::from_str(key).ok().filter(|_| fits);
            if *request.method() == Method::POST {
                let key = key.ok_or(Error::NotAKey)?;
                request.headers_mut().insert(IDEMPOTENCY_KEY, key);
            }
            Ok(request)
        });
        self
    }

    async fn send(self) -> Result<Answered<T>, Error> {
        let mut request = self.request?;
        if *request.method() == Method::POST && !request.headers().contains_key(IDEMPOTENCY_KEY) {
            let key = idempotency_key()?;
            request.headers_mut().insert(IDEMPOTENCY_KEY, key);
        }
        let key = request.headers().get(IDEMPOTENCY_KEY);
        let key = key.and_then(|key| key.to_str().ok()).map(str::to_owned);
        let (raw, attempts) = self.agent.deliver(&request, key.as_deref()).await?;
        raw.into_answer(attempts, key, self.about, self.read)
    }
}

impl<T: 'static> IntoFuture for Call<T> {
    type Output = Result<Answered<T>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// An answer, read whole.
pub(super) struct Raw {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Agent {
    /// A request for an operation of the table.
    pub(super) fn request(
        &self,
        op: Op,
        id: Option<(&'static str, &str)>,
        query: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Request<Bytes>, Error> {
        let row = op.row();
        let path = match id {
            // Nothing but an id gets into a path.
            Some((name, id)) if !is_id(id) => return Err(Error::NotAnId(name)),
            Some((_, id)) => row.path.replace("{id}", id),
            None => row.path.to_owned(),
        };
        let url = format!("{}{path}{query}", self.endpoint());
        let unfit = |_| Error::Request("its address does not parse");
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = url.parse().map_err(unfit)?;
        *request.method_mut() = row.method.clone();
        let id = id.map(|(name, id)| (name, id.to_owned()));
        request.extensions_mut().insert(Of { op, id });
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let version = HeaderValue::from_str(&format!("\"{VERSION}\""));
        headers.insert(RCTP_VERSION, version.expect("a version is plain text"));
        if let Some(token) = &self.inner.token {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        if let Some(body) = body {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
            let body = serde_json::to_vec(body);
            let body = body.map_err(|_| Error::Request("its body does not serialise"))?;
            *request.body_mut() = body.into();
        }
        Ok(request)
    }

    /// Sends the request until there is an answer that is final, or no more may be done.
    pub(super) async fn deliver(
        &self,
        request: &Request<Bytes>,
        key: Option<&str>,
    ) -> Result<(Raw, u32), Error> {
        let (retry, timer) = (&self.inner.retry, &self.inner.timer);
        let started = timer.now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let spent = timer.now().saturating_duration_since(started);
            let left = retry.total.saturating_sub(spent);
            let sent = match self.attempt(request, left, key).await? {
                Ok(raw) if !raw.may_change() => break Ok((raw, attempts)),
                sent => sent,
            };
            let not_before = sent.as_ref().ok().and_then(Raw::retry_after);
            // Jitter comes on top of what the gateway asked for, or all that it turned away would come back at once.
            let pause = not_before.unwrap_or_default();
            let pause = pause.saturating_add(retry.pause(attempts));
            let spent = timer.now().saturating_duration_since(started);
            if attempts >= retry.attempts || spent.saturating_add(pause) >= retry.total {
                break match sent {
                    Ok(raw) => Ok((raw, attempts)),
                    Err(error) => Err(Error::NoAnswer {
                        attempts,
                        idempotency_key: key.map(str::to_owned),
                        // Whoever logs it need not log where.
                        source: error.without_url(),
                    }),
                };
            }
            timer.sleep(pause).await;
        }
    }

    /// Signs and sends once. The inner error is that no whole answer came.
    async fn attempt(
        &self,
        request: &Request<Bytes>,
        left: Duration,
        key: Option<&str>,
    ) -> Result<Result<Raw, reqwest::Error>, Error> {
        let call = match self.inner.mcp {
            true => mcp::call(request, self.endpoint())?,
            false => None,
        };
        let tool = call.as_ref().and(request.extensions().get::<Of>());
        let mut request = call.unwrap_or_else(|| request.clone());
        if let Some(signer) = &self.inner.signer {
            signer.sign(&mut request)?;
        }
        let unfit = |_| Error::Request("its address is none that can be called");
        let mut request = reqwest::Request::try_from(request).map_err(unfit)?;
        *request.timeout_mut() = Some(self.inner.timeout.min(left));
        let asked = request.url().clone();
        let mut response = match self.inner.http.execute(request).await {
            Ok(response) if *response.url() != asked => {
                return Err(Error::Request(
                    "the HTTP client followed a redirect; build it with redirect::Policy::none()",
                ));
            }
            Ok(response) => response,
            // What could not be sent at all will not be sent later.
            Err(error) if error.is_builder() => {
                return Err(Error::Request("the HTTP client does not take it"));
            }
            Err(error) => return Ok(Err(error)),
        };
        let limit = self.inner.answer_limit;
        let mut body = BytesMut::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > limit => {
                    return Err(Error::TooLarge {
                        limit,
                        idempotency_key: key.map(str::to_owned),
                    });
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return Ok(Err(error)),
            }
        }
        let raw = Raw {
            status: response.status(),
            headers: std::mem::take(response.headers_mut()),
            body: body.freeze(),
        };
        Ok(Ok(match tool {
            Some(of) => mcp::answer(of.op, raw),
            None => raw,
        }))
    }
}

impl Raw {
    /// Whether the same request may be answered otherwise later.
    fn may_change(&self) -> bool {
        let decided = self.headers.contains_key(decision::HEADER);
        matches!(self.status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504) && !decided
    }

    /// What `Retry-After` asks for: seconds, or a date, which is held against the answer's own `Date`, so that nobody's
    /// clock needs to be right.
    fn retry_after(&self) -> Option<Duration> {
        let text = |name| self.headers.get(name)?.to_str().ok();
        let after: &str = text(header::RETRY_AFTER)?;
        if let Ok(seconds) = after.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let date = |text: &str| {
            let parsed = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text);
            parsed.ok().map(jiff::Timestamp::as_second)
        };
        let seconds = date(after)?.saturating_sub(date(text(header::DATE)?)?);
        u64::try_from(seconds).ok().map(Duration::from_secs)
    }

    pub(super) fn json(&self) -> Option<Value> {
        schema::parse(&self.body).ok()
    }

    fn into_answer<T>(
        self,
        attempts: u32,
        key: Option<String>,
        about: Option<(&'static str, String)>,
        read: Read<T>,
    ) -> Result<Answered<T>, Error> {
        let status = self.status;
        let retry_after = self.retry_after();
        let unexpected = |why| Error::Unexpected {
            status,
            why,
            retry_after,
            idempotency_key: key.clone(),
        };
        let body = self.json();
        // An Item stands on one line (RFC 9651 §3.3); of two, nobody knows which holds.
        let mut stated = self.headers.get_all(decision::HEADER).iter();
        let decision = match (stated.next(), stated.next()) {
            (Some(value), None) => value.to_str().ok().and_then(|text| text.parse().ok()),
            _ => None,
        };
        if status.is_success() {
            if self.headers.contains_key(decision::HEADER) && decision.is_none() {
                return Err(unexpected("its RCTP-Decision is not readable"));
            }
            // Only what writes has a key, and every write is decided (binding 6).
            if key.is_some() && decision.is_none() {
                return Err(unexpected("it has no RCTP-Decision"));
            }
            if matches!(decision, Some(Decision::Forbid { .. })) {
                return Err(unexpected(
                    "its decision says forbid, and its status does not",
                ));
            }
            let body = body.ok_or_else(|| unexpected("its body is no JSON"))?;
            if about.is_some_and(|(member, id)| body[member] != id) {
                return Err(unexpected("it is about something else than was asked for"));
            }
            let value = read(status, decision.as_ref(), body).map_err(unexpected)?;
            return Ok(Answered {
                value,
                decision,
                status,
                headers: self.headers,
                body: self.body,
                attempts,
            });
        }
        if !status.is_client_error() && !status.is_server_error() {
            return Err(unexpected(
                "it is no answer of a gateway; redirects are not followed",
            ));
        }
        let refused = body.as_ref().and_then(|body| Refused::read(status, body));
        let refused = refused.ok_or_else(|| unexpected("its body is no error of the binding"))?;
        Err(Error::Refused(Box::new(Refused {
            retry_after: retry_after.or(refused.retry_after),
            decision,
            headers: self.headers,
            body: self.body,
            idempotency_key: key,
            attempts,
            ..refused
        })))
    }
}
