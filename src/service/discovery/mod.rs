//! What a gateway tells anybody about itself (binding 3.1, 10, 13.1): who it is, how grants are given, what may be called
//! and with which bodies.
//!
//! | route | what |
//! |---|---|
//! | `GET /.well-known/ucp` | the gateway profile: scopes with tiers, term sets, expiry, budget, services, keys |
//! | `GET /.well-known/oauth-protected-resource` | OAuth protected-resource metadata (RFC 9728); with a path in the public URL also where RFC 9728 inserts that path |
//! | `GET /.well-known/oauth-protected-resource/mcp` | the same for the MCP endpoint, where that is served |
//! | `GET /schemas/mcp.openrpc.json` | with the MCP endpoint: an OpenRPC document of its tools (binding 13.4) |
//! | `GET /schemas/{name}.json`, `/schemas/registries/{name}.json` | every schema and registry, as published |
//! | `GET /openapi.json` | an OpenAPI 3.1 document, made of the table of operations and the schemas |
//! | `GET /docs`, `/docs/docs.css` | the same for people, on one page with nothing from elsewhere |
//!
//! Everything is public, the same for everyone, and does not change while the gateway runs: `ETag`, 304 for
//! `If-None-Match`, `Cache-Control: public, max-age=300` (UCP asks for at least 60 seconds, and RCTP lets no profile be
//! kept longer than 300), and readable by scripts of any origin. `HEAD` is answered too; all else is 404.
//!
//! Paths are taken with and without the path of the public URL, so that it does not matter whether a router outside has
//! stripped it.

mod docs;
mod openapi;
#[cfg(feature = "mcp")]
pub(crate) mod tools;
mod webhooks;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use serde_json::{Value, json};
use tower::Service;

pub(crate) use self::openapi::About;
#[cfg(feature = "mcp")]
use crate::layer::mcp::MCP;
use crate::{
    layer::{arrive::refuse, body::Body},
    protocol::{policy::Policy, refusal::Refusal, schema},
    wire::{base64url, digest::sha256},
};

const JSON: &str = "application/json";
const PROFILE: &str = "/.well-known/ucp";
const RESOURCE: &str = "/.well-known/oauth-protected-resource";
#[cfg(feature = "mcp")]
const OPENRPC: &str = "/schemas/mcp.openrpc.json";
const OPENAPI: &str = "/openapi.json";
const DOCS: &str = "/docs";
const STYLE: &str = "/docs/docs.css";

/// Caches may keep a document so long, in seconds: RCTP's ceiling for profiles (binding 1), over UCP's floor of 60.
pub const MAX_AGE: u32 = 300;

/// Nothing but the page's own style, and in no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

/// The documents as one service: see the [module](self). [`Rctp::discovery`](crate::Rctp::discovery) makes it. With axum,
/// merge [`Discovery::router`].
#[derive(Clone)]
pub struct Discovery(Arc<Documents>);

struct Documents {
    /// The path of the public URL, without its trailing slash.
    prefix: String,
    by_path: BTreeMap<String, Document>,
}

struct Document {
    kind: &'static str,
    body: Bytes,
    etag: HeaderValue,
}

impl Document {
    fn new(kind: &'static str, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let etag = format!("\"{}\"", base64url(&sha256(&body)));
        Self {
            kind,
            etag: HeaderValue::from_str(&etag).expect("base64url fits a header"),
            body,
        }
    }

    fn json(value: &Value) -> Self {
        Self::new(JSON, value.to_string())
    }
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.by_path.keys()).finish()
    }
}

impl Discovery {
    /// The documents of the gateway that `about` describes; `prefix` is the path of its public URL.
    pub(crate) fn new(about: &About<'_>, profile: &Value, prefix: &str) -> Self {
        let resource =
            protected_resource(about.public_url, about.authorization_server, about.policy);
        let openapi = openapi::document(about);
        let page = docs::page(&openapi, &format!("{prefix}{STYLE}"));
        let mut by_path = BTreeMap::from([
            (PROFILE.to_owned(), Document::json(profile)),
            (RESOURCE.to_owned(), Document::json(&resource)),
            (OPENAPI.to_owned(), Document::json(&openapi)),
            (
                DOCS.to_owned(),
                Document::new("text/html; charset=utf-8", page),
            ),
            (
                STYLE.to_owned(),
                Document::new("text/css; charset=utf-8", docs::STYLE),
            ),
        ]);
        if !prefix.is_empty() {
            // RFC 9728 §3.1: the well-known part goes before the path of the resource.
            by_path.insert(format!("{RESOURCE}{prefix}"), Document::json(&resource));
        }
        #[cfg(feature = "mcp")]
        if about.mcp {
            let endpoint = format!("{}{MCP}", about.public_url);
            // The path of the endpoint is inserted too; what is told must name the URL that it was made of (§3.3).
            let resource = protected_resource(&endpoint, about.authorization_server, about.policy);
            by_path.extend([
                (
                    format!("{RESOURCE}{prefix}{MCP}"),
                    Document::json(&resource),
                ),
                (
                    OPENRPC.to_owned(),
                    Document::json(&tools::openrpc(&endpoint)),
                ),
            ]);
        }
        let schemas = schema::published().into_iter().map(|(name, text)| {
            let path = format!("/schemas/{name}.json");
            (path, Document::new("application/schema+json", text))
        });
        let registries = schema::REGISTRIES.iter().map(|(name, text)| {
            let path = format!("/schemas/registries/{name}.json");
            (path, Document::new(JSON, *text))
        });
        by_path.extend(schemas.chain(registries));
        Self(Arc::new(Documents {
            prefix: prefix.to_owned(),
            by_path,
        }))
    }

    /// The routes for an axum router to merge.
    #[cfg(feature = "axum")]
    pub fn router(&self) -> axum::Router {
        let prefix = &self.0.prefix;
        let beside = [PROFILE, RESOURCE, OPENAPI, DOCS, STYLE]
            .map(str::to_owned)
            .into_iter()
            .chain(["/schemas/{*rest}".to_owned()]);
        let mut paths: Vec<String> = beside.map(|path| format!("{prefix}{path}")).collect();
        if !prefix.is_empty() {
            paths.extend([PROFILE.to_owned(), RESOURCE.to_owned()]);
            paths.push(format!("{RESOURCE}{prefix}"));
        }
        #[cfg(feature = "mcp")]
        paths.push(format!("{RESOURCE}{prefix}{MCP}"));
        paths.iter().fold(axum::Router::new(), |router, path| {
            router.route_service(path, self.clone())
        })
    }

    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Body> {
        let documents = &self.0.by_path;
        let inside = path.strip_prefix(&*self.0.prefix);
        let document = documents
            .get(path)
            .or_else(|| documents.get(inside.unwrap_or_default()));
        let Some(document) = document.filter(|_| *method == Method::GET || *method == Method::HEAD)
        else {
            return refuse(&Refusal::not_found());
        };
        let known = has(headers, &document.etag);
        let body = match known || *method == Method::HEAD {
            true => Body::empty(),
            false => Body::from(document.body.clone()),
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(header::ETAG, document.etag.clone());
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_str(&format!("public, max-age={MAX_AGE}"))
                .expect("a number fits a header"),
        );
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
            (header::ACCESS_CONTROL_EXPOSE_HEADERS, "ETag"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        let length = HeaderValue::from(document.body.len());
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(document.kind),
        );
        headers.insert(header::CONTENT_LENGTH, length);
        if document.kind.starts_with("text/html") {
            for (name, value) in [
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::REFERRER_POLICY, "no-referrer"),
                (header::X_FRAME_OPTIONS, "DENY"),
            ] {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        response
    }
}

impl<B> Service<Request<B>> for Discovery {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        ready(Ok(self.answer(request.method(), path, request.headers())))
    }
}

/// Whether the client has the document already: `If-None-Match` names its tag, weakly compared, or is `*`
/// (RFC 9110 §13.1.2).
fn has(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let etag = etag.as_bytes();
    headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .flat_map(|line| line.as_bytes().split(|b| *b == b','))
        .map(<[u8]>::trim_ascii)
        .any(|tag| tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag)
}

/// A registry by its name.
fn registry(name: &str) -> Value {
    let text = schema::REGISTRIES.iter().find(|(n, _)| *n == name);
    text.and_then(|(_, text)| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// OAuth protected-resource metadata (RFC 9728), for `/.well-known/oauth-protected-resource`.
pub fn protected_resource(public_url: &str, authorization_server: &str, policy: &Policy) -> Value {
    let scopes: Vec<&str> = policy.tiers.iter().map(|(scope, _)| scope).collect();
    json!({
        "resource": public_url,
        "authorization_servers": [authorization_server],
        "scopes_supported": scopes,
        "bearer_methods_supported": ["header"],
    })
}
