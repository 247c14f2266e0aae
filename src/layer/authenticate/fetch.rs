//! Fetching profiles: https only, no redirects, bounded in time and size, and never from a special-use address. Webhooks
//! are sent under the same rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use http::{Request, StatusCode};
use url::{Host, Url};

use crate::store::BoxFuture;

/// What was fetched.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The body of a 200 answer.
    pub body: Bytes,
    /// How long its `Cache-Control` lets it be kept, in seconds.
    pub max_age: Option<u64>,
}

/// It could not be fetched; says why, for logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(pub String);

/// Fetches a document by GET. [`HttpsFetch`] is the one to use; tests and sites with an egress proxy of their own
/// give another.
pub trait Fetch: Send + Sync + 'static {
    /// Fetches `url`.
    fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Fetched, FetchError>>;
}

/// Sends a webhook by POST. [`HttpsPost`] is the one to use; tests and sites with an egress proxy of their own give another.
pub trait Post: Send + Sync + 'static {
    /// Sends the request, whose URI is absolute, and follows no redirect. The answer's body is nobody's business.
    fn post(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<StatusCode, FetchError>>;
}

/// A URL that may be called: https, or http to loopback in dev mode; no user, no fragment. What is refused is named by its
/// origin: the rest of it may be a secret.
pub(crate) fn allowed_url(text: &str, dev: bool) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|e| format!("what should be a URL is none: {e}"))?;
    let origin = url.origin().ascii_serialization();
    let loopback = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    match url.scheme() {
        "https" => {}
        "http" if dev && loopback => {}
        "http" => {
            return Err(format!(
                "the URL at `{origin}` is http; write an https URL (http works in dev mode only, and only to loopback)"
            ));
        }
        other => return Err(format!("a URL of scheme `{other}` is no https URL")),
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err(format!(
            "the URL at `{origin}` carries a user or a fragment; remove it"
        ));
    }
    Ok(url)
}

/// Whether profiles may be fetched from the address: global unicast; loopback too in dev mode. The ranges are those
/// of the IANA special-purpose address registries (RFC 6890 and its updates) that are not globally reachable, and
/// the forms that embed an IPv4 address.
pub fn may_connect(address: IpAddr, dev: bool) -> bool {
    if dev && address.to_canonical().is_loopback() {
        return true;
    }
    match address {
        IpAddr::V4(ip) => global_v4(ip),
        IpAddr::V6(ip) => global_v6(ip),
    }
}

fn global_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(a == 0
        || ip.is_private()
        || (a == 100 && (64..128).contains(&b)) // shared address space, RFC 6598
        || ip.is_loopback()
        || ip.is_link_local()
        || (a == 192 && b == 0 && c == 0) // IETF protocol assignments
        || (a == 192 && b == 88 && c == 99) // former 6to4 relays
        || ip.is_documentation()
        || (a == 198 && (b & 0xfe) == 18) // benchmarking, RFC 2544
        || a >= 224) // multicast, reserved, broadcast
}

fn global_v6(ip: Ipv6Addr) -> bool {
    if let Some(v4) = ip.to_ipv4_mapped() {
        return global_v4(v4);
    }
    let s = ip.segments();
    // Only 2000::/3 is global unicast; within it, what is not globally reachable.
    (s[0] & 0xe000) == 0x2000
        && !(s[0] == 0x2001 && s[1] < 0x0200) // IETF protocol assignments, Teredo
        && !(s[0] == 0x2001 && s[1] == 0x0db8) // documentation
        && s[0] != 0x2002 // 6to4
        && !(s[0] == 0x3fff && s[1] < 0x1000) // documentation, RFC 9637
}

#[cfg(feature = "fetch")]
pub use https::{HttpsFetch, HttpsPost};

#[cfg(feature = "fetch")]
mod https {
    use std::{net::SocketAddr, sync::Arc, time::Duration};

    use bytes::BytesMut;
    use reqwest::{
        dns::{Addrs, Name, Resolve, Resolving},
        header, redirect,
    };

    use super::*;
    use crate::layer::trace;

    /// The largest profile that is read: UCP asks for at least 128 KiB.
    const MAX_BODY: usize = 256 * 1024;
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
    const TIMEOUT: Duration = Duration::from_secs(5);

    /// Fetches over HTTPS. Names are resolved through a filter, and what was connected to is looked at again; no
    /// proxy of the environment stands between, since it would connect elsewhere.
    #[derive(Clone, Debug)]
    pub struct HttpsFetch {
        client: reqwest::Client,
        dev: bool,
        timeout: Duration,
    }

    impl HttpsFetch {
        /// A fetcher; `dev` also allows http and https to loopback.
        ///
        /// # Errors
        /// When TLS cannot be set up.
        pub fn new(dev: bool) -> Result<Self, FetchError> {
            Ok(Self {
                client: client(dev)?,
                dev,
                timeout: TIMEOUT,
            })
        }

        /// How long a fetch may take, from the connection to the last byte; 5 s by default.
        #[must_use]
        pub fn timeout(mut self, limit: Duration) -> Self {
            self.timeout = limit;
            self
        }

        async fn fetch(&self, text: &str) -> Result<Fetched, FetchError> {
            let failed = |e: reqwest::Error| FetchError(describe(&e));
            let url = allowed_url(text, self.dev).map_err(FetchError)?;
            check_literal(&url, self.dev)?;
            let request = self
                .client
                .get(url)
                .timeout(self.timeout)
                .header(header::ACCEPT, "application/json");
            let response = trace::send("fetch_profile", request).await;
            let mut response = response.map_err(failed)?;
            let connected = response.remote_addr().map(|a| a.ip());
            if !connected.is_some_and(|ip| may_connect(ip, self.dev)) {
                return Err(special_use());
            }
            if response.status() != reqwest::StatusCode::OK {
                return Err(FetchError(format!(
                    "it answered {} where 200 was expected; redirects are not followed",
                    response.status().as_u16()
                )));
            }
            let max_age = max_age(response.headers());
            let mut body = BytesMut::new();
            while let Some(chunk) = response.chunk().await.map_err(failed)? {
                if body.len() + chunk.len() > MAX_BODY {
                    return Err(FetchError(format!("it is larger than {MAX_BODY} bytes")));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(Fetched {
                body: body.freeze(),
                max_age,
            })
        }
    }

    impl Fetch for HttpsFetch {
        fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Fetched, FetchError>> {
            Box::pin(self.fetch(url))
        }
    }

    /// Sends webhooks, under the rules of [`HttpsFetch`].
    #[derive(Clone, Debug)]
    pub struct HttpsPost {
        client: reqwest::Client,
        dev: bool,
    }

    impl HttpsPost {
        /// A sender; `dev` also allows http and https to loopback.
        ///
        /// # Errors
        /// When TLS cannot be set up.
        pub fn new(dev: bool) -> Result<Self, FetchError> {
            Ok(Self {
                client: client(dev)?,
                dev,
            })
        }
    }

    impl Post for HttpsPost {
        fn post(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<StatusCode, FetchError>> {
            Box::pin(async move {
                let (parts, body) = request.into_parts();
                let url = allowed_url(&parts.uri.to_string(), self.dev).map_err(FetchError)?;
                check_literal(&url, self.dev)?;
                let request = self.client.post(url).headers(parts.headers).body(body);
                // A URL may hold what is for its owner alone.
                let answer = trace::send("send_webhook", request)
                    .await
                    .map_err(|e| FetchError(describe(&e.without_url())))?;
                Ok(answer.status())
            })
        }
    }

    /// A client that connects to no special-use address: names go through a filter.
    fn client(dev: bool) -> Result<reqwest::Client, FetchError> {
        reqwest::Client::builder()
            .dns_resolver(Arc::new(Guarded { dev }))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .https_only(!dev)
            .build()
            .map_err(|e| FetchError(format!("TLS cannot be set up: {e}")))
    }

    /// The resolver does not see literals.
    fn check_literal(url: &Url, dev: bool) -> Result<(), FetchError> {
        let literal = match url.host() {
            Some(Host::Ipv4(ip)) => Some(IpAddr::V4(ip)),
            Some(Host::Ipv6(ip)) => Some(IpAddr::V6(ip)),
            _ => None,
        };
        match literal.is_some_and(|ip| !may_connect(ip, dev)) {
            true => Err(special_use()),
            false => Ok(()),
        }
    }

    fn special_use() -> FetchError {
        FetchError("its address is a special-use one, to which nothing is sent and from which nothing is fetched".into())
    }

    /// reqwest's own message names the URL only; the cause is below it.
    fn describe(error: &reqwest::Error) -> String {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(e) = cause {
            text.push_str(": ");
            text.push_str(&e.to_string());
            cause = e.source();
        }
        text
    }

    /// The shortest time that `Cache-Control` asks for; none at all is asked for by `no-store` and `no-cache`.
    fn max_age(headers: &header::HeaderMap) -> Option<u64> {
        let lines = headers.get_all(header::CACHE_CONTROL).iter();
        lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
            .filter_map(|directive| {
                let (name, value) = match directive.trim().split_once('=') {
                    Some((name, value)) => (name, value.trim_matches('"')),
                    None => (directive.trim(), ""),
                };
                match name.to_ascii_lowercase().as_str() {
                    "no-store" | "no-cache" => Some(0),
                    "max-age" => value.parse().ok(),
                    _ => None,
                }
            })
            .min()
    }

    /// Resolves names to the addresses that may be connected to, and to no other.
    #[derive(Debug)]
    struct Guarded {
        dev: bool,
    }

    impl Resolve for Guarded {
        fn resolve(&self, name: Name) -> Resolving {
            let dev = self.dev;
            Box::pin(async move {
                let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
                let allowed: Vec<SocketAddr> = found.filter(|a| may_connect(a.ip(), dev)).collect();
                if allowed.is_empty() {
                    return Err(special_use().into());
                }
                Ok(Box::new(allowed.into_iter()) as Addrs)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_profile_comes_from_a_special_use_address() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:a00:1::",
            "3fff::1",
            "fc00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "5f00::1",
        ] {
            assert!(!may_connect(address.parse().unwrap(), false), "{address}");
        }
        for address in [
            "1.1.1.1",
            "100.128.0.1",
            "198.20.0.1",
            "2606:4700::1111",
            "2a00::1",
        ] {
            assert!(may_connect(address.parse().unwrap(), false), "{address}");
        }
    }

    #[test]
    fn loopback_is_for_dev_mode_only() {
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(may_connect(address.parse().unwrap(), true));
            assert!(!may_connect(address.parse().unwrap(), false));
        }
        assert!(!may_connect("10.0.0.1".parse().unwrap(), true));
        assert!(allowed_url("http://127.0.0.1:8080/p", true).is_ok());
        for refused in [
            "http://127.0.0.1:8080/p",
            "http://a.example/",
            "ftp://a.example/",
            "x",
        ] {
            assert!(allowed_url(refused, false).is_err(), "{refused}");
        }
        assert!(allowed_url("http://a.example/", true).is_err());
        assert!(allowed_url("https://user@a.example/", false).is_err());
    }
}
