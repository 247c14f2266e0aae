//! Requests signed by hand, so that a test can leave out, add or falsify what it wants to.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use tower_rctp::wire::{
    digest::{CONTENT_DIGEST, content_digest, sha256},
    jwk::SigningKey,
    signature::{self, Authority, Component, Message, Params},
};

use crate::common::{Agent, GATEWAY, NOW};

pub const UCP_AGENT: HeaderName = HeaderName::from_static("ucp-agent");
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub const SIGNATURE: HeaderName = HeaderName::from_static("signature");
pub const SIGNATURE_INPUT: HeaderName = HeaderName::from_static("signature-input");

/// What a signature says, before it is made.
pub struct Plan {
    pub method: Method,
    pub authority: Authority,
    pub path: String,
    pub query: Option<String>,
    pub components: Vec<Component>,
    pub params: Params,
    pub label: &'static str,
}

/// Gives a request the headers that a signed one has, those that it has not yet.
pub fn dressed(mut request: Request<Bytes>, profile: &str) -> Request<Bytes> {
    let post = request.method() == Method::POST;
    let digest = content_digest(&sha256(request.body()));
    let body = !request.body().is_empty();
    let headers = request.headers_mut();
    let agent = format!("profile=\"{profile}\"");
    headers.entry(UCP_AGENT).or_insert(agent.parse().unwrap());
    if post {
        headers.entry(IDEMPOTENCY_KEY).or_insert(fresh_key());
    }
    if body {
        headers.entry(CONTENT_DIGEST).or_insert(digest);
        headers
            .entry(header::CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("application/json"));
    }
    request
}

/// An `Idempotency-Key` that no test has used.
pub fn fresh_key() -> HeaderValue {
    crate::common::with_key(crate::common::get("/"))
        .headers()
        .get(IDEMPOTENCY_KEY)
        .unwrap()
        .clone()
}

/// What a careful agent would sign.
pub fn plan(request: &Request<Bytes>) -> Plan {
    let uri = request.uri();
    let headers = request.headers();
    let authority = uri.authority().map_or_else(
        || headers[header::HOST].to_str().unwrap().to_owned(),
        ToString::to_string,
    );
    let mut components = vec![Component::Method, Component::Authority, Component::Path];
    if uri.query().is_some() {
        components.push(Component::Query);
    }
    for name in [
        UCP_AGENT,
        IDEMPOTENCY_KEY,
        CONTENT_DIGEST,
        header::CONTENT_TYPE,
        header::AUTHORIZATION,
    ] {
        if headers.contains_key(&name) {
            components.push(name.into());
        }
    }
    Plan {
        method: request.method().clone(),
        authority: Authority::new(&authority, "https").unwrap(),
        path: uri.path().to_owned(),
        query: uri.query().map(str::to_owned),
        components,
        params: Params::new(NOW).expires(NOW + 60),
        label: "sig1",
    }
}

/// Signs with this key what the plan says.
pub fn sign(request: &mut Request<Bytes>, key: &SigningKey, plan: &Plan) {
    let message = Message::request(
        &plan.method,
        &plan.authority,
        &plan.path,
        plan.query.as_deref(),
        request.headers(),
    );
    let signed = signature::sign(&message, &plan.components, &plan.params, plan.label, key);
    signed.unwrap().append_to(request.headers_mut());
}

/// A request of the agent, dressed and signed, after `change` had its way with the plan.
pub fn signed_with(
    agent: &Agent,
    request: Request<Bytes>,
    change: impl FnOnce(&mut Plan),
) -> Request<Bytes> {
    let mut request = dressed(request, &agent.profile);
    let mut plan = plan(&request);
    change(&mut plan);
    sign(&mut request, agent.signer.key(), &plan);
    request
}

/// A request of the agent, dressed and signed.
pub fn signed(agent: &Agent, request: Request<Bytes>) -> Request<Bytes> {
    signed_with(agent, request, |_| {})
}

/// The request with its target in origin form and the host in a header, as HTTP/1.1 sends it.
pub fn origin_form(mut request: Request<Bytes>) -> Request<Bytes> {
    let uri = request.uri().clone();
    let host = uri.authority().map_or_else(
        || GATEWAY.trim_start_matches("https://").to_owned(),
        ToString::to_string,
    );
    *request.uri_mut() = uri.path_and_query().unwrap().as_str().parse().unwrap();
    request
        .headers_mut()
        .insert(header::HOST, host.parse().unwrap());
    request
}

/// The signature headers replaced by others.
pub fn set(request: &mut Request<Bytes>, name: impl http::header::IntoHeaderName, value: &str) {
    request
        .headers_mut()
        .insert(name, HeaderValue::from_str(value).unwrap());
}
