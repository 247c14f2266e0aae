//! Verifies webhooks at the receiving operator (binding 9).

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderMap, HeaderName, Method, header, request::Parts};
use url::Url;

use crate::{
    layer::authenticate::{LABEL, UCP_AGENT},
    protocol::{
        schema,
        time::Timestamp,
        webhook::{ACCEPTED, Event},
    },
    service::webhooks::{WEBHOOK_ID, WEBHOOK_TIMESTAMP},
    wire::{
        digest::{CONTENT_DIGEST, sha256},
        jwk::Keys,
        signature::{
            Authority, Component, Coverage, Freshness, Message, Policy, Presented, SignatureError,
        },
    },
};

/// How far the gateway's clock may be ahead, in seconds.
const AHEAD: i64 = 60;

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let coverage = Coverage::new()
        .always([
            Component::Method,
            Component::Authority,
            Component::Path,
            CONTENT_DIGEST.into(),
            header::CONTENT_TYPE.into(),
        ])
        .with_query([Component::Query]);
    Policy::new(coverage).freshness(Freshness {
        max_skew: Duration::from_secs(ACCEPTED.unsigned_abs()),
        require_expires: false,
        ..Freshness::default()
    })
});

/// What a receiver has configured, never taken from a request: its own URL, and the one gateway that it hears.
#[derive(Clone, Debug)]
pub struct Expected {
    authority: Authority,
    path: String,
    query: Option<String>,
    agent: String,
    keys: Keys,
}

impl Expected {
    /// A receiver whose profile has `webhook_url`, hearing the gateway whose profile is at `gateway` and lists `keys`.
    ///
    /// # Errors
    /// When `webhook_url` is no URL with a host.
    pub fn new(webhook_url: &str, gateway: &str, keys: Keys) -> Result<Self, WebhookError> {
        let url = Url::parse(webhook_url).map_err(|_| WebhookError::Url)?;
        let raw = match (url.host_str(), url.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (Some(host), None) => host.to_owned(),
            (None, _) => return Err(WebhookError::Url),
        };
        Ok(Self {
            authority: Authority::new(&raw, url.scheme()).map_err(|_| WebhookError::Url)?,
            path: url.path().to_owned(),
            query: url.query().map(str::to_owned),
            agent: format!("profile=\"{gateway}\""),
            keys,
        })
    }
}

/// Which events a receiver has had.
pub trait Seen: Send + Sync {
    /// Remembers the event at least until `until`. `false` when it is remembered already.
    ///
    /// # Errors
    /// When nothing more can be remembered; the event is then refused, and will come again.
    fn remember(&self, event_id: &str, now: Timestamp, until: Timestamp) -> Result<bool, Full>;

    /// Forgets the event: it could not be handled, and is to come again.
    fn forget(&self, event_id: &str);
}

/// Nothing more can be remembered just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The events of the last minutes, in memory. It holds a number of them at most, and forgets none before its time: beyond
/// that, events are refused until older ones are too old to be repeated.
pub struct SeenInMemory {
    most: usize,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    until: HashMap<String, Timestamp>,
    order: VecDeque<(Timestamp, String)>,
}

impl SeenInMemory {
    /// Holds at most `most` events.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            events: Mutex::default(),
        }
    }
}

impl Default for SeenInMemory {
    fn default() -> Self {
        Self::new(100_000)
    }
}

impl fmt::Debug for SeenInMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeenInMemory")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

impl Seen for SeenInMemory {
    fn remember(&self, event_id: &str, now: Timestamp, until: Timestamp) -> Result<bool, Full> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        while events.order.front().is_some_and(|(due, _)| *due < now) {
            let Some((due, id)) = events.order.pop_front() else {
                break;
            };
            // Forgotten and remembered anew, it stands here twice.
            if events.until.get(&id) == Some(&due) {
                events.until.remove(&id);
            }
        }
        if events.until.get(event_id).is_some_and(|due| *due >= now) {
            return Ok(false);
        }
        if events.order.len() >= self.most {
            return Err(Full);
        }
        events.until.insert(event_id.to_owned(), until);
        events.order.push_back((until, event_id.to_owned()));
        Ok(true)
    }

    fn forget(&self, event_id: &str) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.until.remove(event_id);
    }
}

/// Why a webhook is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// The receiver's own URL is none.
    #[error("the receiver's webhook_url must be an https URL with a host")]
    Url,
    /// It is no POST.
    #[error("a webhook is a POST")]
    Method,
    /// A header is missing, is no text, or occurs twice.
    #[error("a webhook has {0} once")]
    Header(HeaderName),
    /// It is another gateway's.
    #[error("UCP-Agent must name the gateway that this receiver hears")]
    Gateway,
    /// The key is not in the gateway's profile.
    #[error(
        "the signature's key is not in the gateway's profile; fetch that anew, once a minute at most"
    )]
    UnknownKey,
    /// The signature does not hold.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The body is no event.
    #[error("the body is no webhook event")]
    Body,
    /// `Webhook-Id` or `Webhook-Timestamp` is not what was signed.
    #[error("{0} is not that of the signed body")]
    Disagrees(HeaderName),
    /// It is more than 300 s old.
    #[error("the event is more than 300 s old")]
    TooOld,
    /// It is from the future.
    #[error("the event is from the future; check the clock")]
    FromTheFuture,
    /// It has been here before. Answer 2xx: the gateway does not know that it arrived.
    #[error("the event has been here before")]
    Repeated,
    /// It cannot be remembered. Answer 503: it comes again.
    #[error("too many events to remember")]
    Full,
}

/// Verifies a webhook, and remembers it in `seen`: the signature, by a key of the configured gateway profile, with what it
/// must cover; the digest of the body; its age; and that it has not been here before. `Webhook-Id` and `Webhook-Timestamp`
/// are not covered by the signature, so they must be what the signed body says (R33).
///
/// `body` is the bytes as they came. When handling the event fails, call [`Seen::forget`] and answer 5xx, and it comes again.
///
/// # Errors
/// [`WebhookError`]. Answer 2xx to [`WebhookError::Repeated`], 503 to [`WebhookError::Full`] and
/// [`WebhookError::UnknownKey`], and 401 otherwise.
pub fn verify_webhook(
    parts: &Parts,
    body: &[u8],
    expected: &Expected,
    now: Timestamp,
    seen: &dyn Seen,
) -> Result<Event, WebhookError> {
    let headers = &parts.headers;
    if parts.method != Method::POST {
        return Err(WebhookError::Method);
    }
    let id = once(headers, &WEBHOOK_ID)?;
    let timestamp = once(headers, &WEBHOOK_TIMESTAMP)?;
    if once(headers, &UCP_AGENT)? != expected.agent {
        return Err(WebhookError::Gateway);
    }
    let presented = Presented::read(headers, LABEL)?;
    let keyid = presented.keyid().ok_or(SignatureError::NoKeyId)?;
    let key = expected.keys.get(keyid).ok_or(WebhookError::UnknownKey)?;
    let message = Message::request(
        &parts.method,
        &expected.authority,
        &expected.path,
        expected.query.as_deref(),
        headers,
    );
    presented.verify(&message, key, &POLICY, Some(&sha256(body)), now.secs())?;

    let event = schema::parse(body).map_err(|_| WebhookError::Body)?;
    let event: Event = serde_json::from_value(event).map_err(|_| WebhookError::Body)?;
    if id != event.event_id {
        return Err(WebhookError::Disagrees(WEBHOOK_ID));
    }
    if timestamp != event.created_at.secs().to_string() {
        return Err(WebhookError::Disagrees(WEBHOOK_TIMESTAMP));
    }
    if event.created_at.plus(ACCEPTED) < now {
        return Err(WebhookError::TooOld);
    }
    if event.created_at > now.plus(AHEAD) {
        return Err(WebhookError::FromTheFuture);
    }
    // As long as it would be taken.
    let until = event.created_at.plus(ACCEPTED);
    match seen.remember(&event.event_id, now, until) {
        Ok(true) => Ok(event),
        Ok(false) => Err(WebhookError::Repeated),
        Err(Full) => Err(WebhookError::Full),
    }
}

fn once<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h str, WebhookError> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next().map(|line| line.to_str()), lines.next()) {
        (Some(Ok(line)), None) => Ok(line),
        _ => Err(WebhookError::Header(name.clone())),
    }
}
