//! Who sits at the browser: the seller's session, and requests that come from our own pages.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::{
    layer::context::Clock,
    protocol::time::Timestamp,
    store::{BoxFuture, StoreError},
    wire::{
        crypto::SigningFailed,
        jwk::SigningKey,
        sealed::{SealFailed, Sealer},
    },
};

/// Whose browser it is. A marketplace that has its own login implements this; [`PasskeySessions`] signs in with a
/// passkey.
///
/// A page of another site can make the browser send cookies, but not an `Origin` of ours; whoever changes something
/// on the strength of a session checks [`same_origin`] as well.
pub trait Sessions: Send + Sync + 'static {
    /// The seller (the grant's `sub`) whose browser sent these headers; `None` where nobody is signed in.
    fn seller<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>>;
}

/// Sessions in a sealed cookie: the seller and the end, which is 12 hours after the beginning.
///
/// Nothing is stored, so there is nothing to look up and nothing to clean up, and no way to end a session from here but
/// to replace the gateway's signing key: [`PasskeySessions::end`] tells the browser to forget it. The cookie is
/// `HttpOnly` and `SameSite=Strict`; over https its name has the prefix `__Host-`, which keeps other hosts of the
/// domain from setting one.
pub struct PasskeySessions {
    sealer: Sealer,
    clock: Arc<dyn Clock>,
    origin: String,
    secure: bool,
}

/// How long a session lasts.
const SESSION: i64 = 12 * 60 * 60;
/// How much further ahead a session may end, where the clock was set back since it began.
const LEEWAY: i64 = 5 * 60;

impl PasskeySessions {
    /// Sessions of the gateway at this URL.
    ///
    /// # Errors
    /// [`SessionError`] if the URL is none of https or http, or if the key's provider does not give out its secret.
    pub fn new(
        public_url: &str,
        key: &SigningKey,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, SessionError> {
        let origin = origin(public_url).ok_or(SessionError::NoOrigin)?;
        Ok(Self {
            sealer: Sealer::from_signing_key(key, "seller session")?,
            clock,
            secure: origin.starts_with("https:"),
            origin,
        })
    }

    /// The name of the cookie.
    #[must_use]
    pub fn cookie_name(&self) -> &'static str {
        match self.secure {
            true => "__Host-rctp_session",
            false => "rctp_session",
        }
    }

    /// The `Set-Cookie` that begins a session of this seller.
    ///
    /// # Errors
    /// [`SealFailed`] if there is no randomness.
    pub fn begin(&self, seller: &str, now: Timestamp) -> Result<HeaderValue, SealFailed> {
        let session = Session {
            sub: seller.to_owned(),
            until: now.plus(SESSION).secs(),
        };
        let session = serde_json::to_vec(&session).map_err(|_| SealFailed)?;
        let sealed = self.sealer.seal(&session, self.origin.as_bytes())?;
        self.cookie(&sealed, SESSION).ok_or(SealFailed)
    }

    /// The `Set-Cookie` that makes the browser forget its session.
    #[must_use]
    pub fn end(&self) -> HeaderValue {
        self.cookie("", 0)
            .unwrap_or_else(|| HeaderValue::from_static(""))
    }

    fn cookie(&self, value: &str, max_age: i64) -> Option<HeaderValue> {
        let name = self.cookie_name();
        let secure = if self.secure { "; Secure" } else { "" };
        let cookie =
            format!("{name}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Strict{secure}");
        let mut cookie = HeaderValue::try_from(cookie).ok()?;
        // Keeps it out of logs.
        cookie.set_sensitive(true);
        Some(cookie)
    }

    fn read(&self, headers: &HeaderMap) -> Option<String> {
        let sealed = only_cookie(headers, self.cookie_name())?;
        let session = self.sealer.open(sealed, self.origin.as_bytes())?;
        let session: Session = serde_json::from_slice(&session).ok()?;
        let (now, until) = (self.clock.now(), Timestamp::from_secs(session.until));
        (now < until && until <= now.plus(SESSION + LEEWAY)).then_some(session.sub)
    }
}

impl Sessions for PasskeySessions {
    fn seller<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async move { Ok(self.read(headers)) })
    }
}

impl fmt::Debug for PasskeySessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasskeySessions")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
struct Session {
    sub: String,
    until: i64,
}

/// Why there can be no sessions here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// See [`origin`].
    #[error("sessions need a public URL with https or http and a host")]
    NoOrigin,
    /// The key's provider does not give out its secret.
    #[error(transparent)]
    Key(#[from] SigningFailed),
}

/// The value of the only cookie of this name. Two of them mean that somebody else set one: which is whose, the browser
/// does not tell.
fn only_cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers
        .get_all(header::COOKIE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'))
        .filter_map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            let (found, value) = (&pair[..equals], &pair[equals + 1..]);
            (trim(found) == name.as_bytes()).then(|| trim(value))
        });
    match (values.next(), values.next()) {
        (Some(value), None) => std::str::from_utf8(value).ok(),
        _ => None,
    }
}

/// Without spaces and tabs around it, and those only: a name must not turn into ours by losing other bytes.
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

pub use crate::layer::approve::{from_agent, same_origin};

/// The origin of a URL as browsers write it, such as `https://gateway.example`; `None` where it is neither https nor
/// http.
#[must_use]
pub fn origin(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    matches!(url.scheme(), "https" | "http").then(|| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    const START: i64 = 1_800_000_000;
    const HOUR: i64 = 60 * 60;

    struct Site {
        sessions: PasskeySessions,
        now: Arc<AtomicI64>,
        key: SigningKey,
    }

    impl Site {
        fn at(url: &str) -> Self {
            let key = SigningKey::generate().expect("a key");
            let now = Arc::new(AtomicI64::new(START));
            Self {
                sessions: PasskeySessions::new(url, &key, clock(&now)).expect("sessions"),
                now,
                key,
            }
        }

        fn begun(&self) -> String {
            let now = Timestamp::from_secs(self.now.load(Ordering::SeqCst));
            let cookie = self.sessions.begin("sub_anna", now).expect("a cookie");
            let cookie = cookie.to_str().expect("text");
            cookie.split(';').next().expect("a pair").to_owned()
        }

        fn seller(&self, cookies: &[&str]) -> Option<String> {
            self.sessions.read(&headers(cookies))
        }
    }

    fn clock(now: &Arc<AtomicI64>) -> Arc<dyn Clock> {
        let now = now.clone();
        Arc::new(move || Timestamp::from_secs(now.load(Ordering::SeqCst)))
    }

    fn headers(cookies: &[&str]) -> HeaderMap {
        let line = |line: &&str| {
            let line = HeaderValue::from_bytes(line.as_bytes()).expect("a header");
            (header::COOKIE, line)
        };
        cookies.iter().map(line).collect()
    }

    const ANNA: Option<&str> = Some("sub_anna");

    #[test]
    fn the_cookie_is_as_strict_as_browsers_allow() {
        let site = Site::at("https://gateway.example/market");
        let now = Timestamp::from_secs(START);
        let cookie = site.sessions.begin("sub_anna", now).expect("a cookie");
        let (pair, rest) = cookie
            .to_str()
            .expect("text")
            .split_once("; ")
            .expect("two");
        assert!(pair.starts_with("__Host-rctp_session="), "{pair}");
        assert!(!pair.contains("anna"), "{pair}");
        assert_eq!(format!("{cookie:?}"), "Sensitive");
        let strict = "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure";
        assert_eq!(rest, strict);

        let end = "__Host-rctp_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict; Secure";
        assert_eq!(site.sessions.end(), end);
        let dev = Site::at("http://localhost:8080").sessions.end();
        let end = "rctp_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict";
        assert_eq!(dev, end);
    }

    #[test]
    fn a_session_is_found_among_other_cookies() {
        let site = Site::at("https://gateway.example");
        let pair = site.begun();
        assert_eq!(site.seller(&[&pair]).as_deref(), ANNA);
        let among = format!("a=b;\t{pair} ; flag; ü=ü; rctp_session=x; __host-rctp_session=y");
        assert_eq!(site.seller(&[&among]).as_deref(), ANNA);
        // HTTP/2 may bring each cookie in a line of its own.
        assert_eq!(site.seller(&["a=b", &pair, ""]).as_deref(), ANNA);
    }

    #[test]
    fn anything_else_is_no_session() {
        let site = Site::at("https://gateway.example");
        let pair = site.begun();
        let (name, value) = pair.split_once('=').expect("a pair");
        let other = Site::at("https://gateway.example").begun();
        let last = if value.ends_with('A') { "Q" } else { "A" };
        for cookies in [
            vec![],
            vec![""],
            vec![value],
            vec![name],
            vec![&format!("{name}=")],
            vec![&format!("{name}=\"{value}\"")],
            vec![&format!("rctp_session={value}")],
            vec![&format!("\u{85}{name}={value}")],
            vec![&pair[..pair.len() - 1]],
            vec![&format!("{pair}A")],
            vec![&format!("{}{last}", &pair[..pair.len() - 1])],
            vec![&other],
            vec![&pair, &pair],
            vec![&format!("{pair}; {pair}")],
            vec![&pair, &format!("{name}=")],
            vec![&format!("{name}=x; {pair}")],
        ] as [Vec<&str>; 16]
        {
            assert_eq!(site.seller(&cookies), None, "{cookies:?}");
        }
    }

    #[test]
    fn a_session_lasts_twelve_hours() {
        let site = Site::at("https://gateway.example");
        let pair = site.begun();
        for (moved, signed_in) in [
            (12 * HOUR - 1, true),
            (12 * HOUR, false),
            (1000 * HOUR, false),
            // A clock that was wrong when the session began does not make it last for years.
            (-LEEWAY, true),
            (-LEEWAY - 1, false),
            (-START, false),
        ] {
            site.now.store(START + moved, Ordering::SeqCst);
            assert_eq!(site.seller(&[&pair]).is_some(), signed_in, "{moved} s");
        }
    }

    #[test]
    fn a_session_belongs_to_one_origin_and_one_purpose() {
        let site = Site::at("https://gateway.example");
        let other = PasskeySessions::new("https://other.example", &site.key, clock(&site.now));
        let read = other.expect("sessions").read(&headers(&[&site.begun()]));
        assert_eq!(read, None);

        let session = br#"{"sub":"sub_anna","until":1800000060}"#;
        let sealer = Sealer::from_signing_key(&site.key, "another purpose").expect("a sealer");
        let sealed = sealer
            .seal(session, b"https://gateway.example")
            .expect("sealed");
        assert_eq!(
            site.seller(&[&format!("__Host-rctp_session={sealed}")]),
            None
        );
    }

    #[test]
    fn only_our_origin_is_ours() {
        let ours = "https://gateway.example";
        let sent = |origins: &[&'static str]| -> HeaderMap {
            let line = |origin: &&'static str| (header::ORIGIN, HeaderValue::from_static(origin));
            origins.iter().map(line).collect()
        };
        assert!(same_origin(&sent(&[ours]), ours));
        for origins in [
            &[][..],
            &["null"],
            &[""],
            &["http://gateway.example"],
            &["https://gateway.example:8443"],
            &["https://gateway.example/"],
            &["https://GATEWAY.example"],
            &["https://a.gateway.example"],
            &["https://gateway.example.evil.example"],
            &["https://gateway.example https://evil.example"],
            &[ours, ours],
            &[ours, "https://evil.example"],
        ] {
            assert!(!same_origin(&sent(origins), ours), "{origins:?}");
        }
    }

    #[test]
    fn an_origin_is_written_as_browsers_write_it() {
        for (url, written) in [
            (
                "https://Gateway.example:443/a?b",
                Some("https://gateway.example"),
            ),
            (
                "https://gateway.example:8443",
                Some("https://gateway.example:8443"),
            ),
            ("http://localhost:8080/", Some("http://localhost:8080")),
            (
                "https://bücher.example",
                Some("https://xn--bcher-kva.example"),
            ),
            ("ftp://gateway.example", None),
            ("data:text/plain,", None),
            ("gateway.example", None),
        ] {
            assert_eq!(origin(url).as_deref(), written, "{url}");
        }
    }
}
