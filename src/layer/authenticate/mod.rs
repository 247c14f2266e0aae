//! Who is calling? (binding 2)
//!
//! A request passes when one mechanism that the marketplace accepts proves an agent and the operator profile that it
//! acts for; the proof goes into the extensions as a [`Caller`]. Everything else is refused with 401:
//!
//! | the request | refusal |
//! |---|---|
//! | has `Signature` or `Signature-Input` that do not verify under the checks of 2.1 | `signature_invalid` |
//! | names an operator that is not onboarded, or whose profile does not resolve, validate or list the key | `operator_unknown` |
//! | carries a bearer token that introspection does not know | `grant_invalid` on seller rows, else `operator_unknown` |
//! | carries a bearer token that is bound to a key, without that key's signature | `grant_invalid` |
//! | carries a bearer token of a client that is registered to no profile, or to another than it names (V35) | `operator_unknown` |
//! | carries an API key or certificate that is registered to no profile, to another than it names, or names none | `operator_unknown` |
//! | carries nothing that is accepted | `signature_invalid` where signatures are required, else as for a bearer token |
//!
//! A signature header commits (R1): such a request is verified as signed or refused, whatever else it carries.
//!
//! *Deployment caveat*: `@authority` is held against the configured public authorities (R8), so a proxy in front must
//! pass `Host` on, and `@path` is what the client sent, so it must not rewrite paths.

pub mod fetch;
pub mod operators;

use std::sync::Arc;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header,
    request::Parts,
};
use sfv::{
    BareItemFromInput, KeyRef,
    visitor::{DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, Never},
};
use tracing::{Span, field};
use zeroize::Zeroizing;

use self::operators::{InForce, Operator, Operators, Profiles, Replaced};
use super::{
    arrive::{self, Arrived, Called, Route, is_of_token, refuse},
    body::Body,
    context::Clock,
    grant::introspection::{Introspect, IntrospectError},
    record::Recorder,
    step::{Next, Step},
};
use crate::{
    protocol::{
        caller::{Caller, Mechanism},
        grant::{self, Introspection},
        operation::{Operation, Side, Verb},
        profile::{Duties, ProfileError},
        refusal::{Reason, Refusal},
        time::Timestamp,
    },
    store::BoxFuture,
    wire::{
        jwk::PublicKey,
        signature::{Authority, Component, Coverage, Message, Policy, Presented, SignatureError},
    },
};

/// The label of the one signature that is looked at (binding 2.1).
pub const LABEL: &str = "sig1";

/// `UCP-Agent`.
pub const UCP_AGENT: HeaderName = HeaderName::from_static("ucp-agent");
/// `Idempotency-Key`.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What a request must cover (binding 2.1; UCP message signatures).
pub fn coverage() -> Coverage {
    mcp_coverage().on_method(Method::POST, [IDEMPOTENCY_KEY.into()])
}

/// What a request to the MCP endpoint must cover (binding 13.2). Its key is in the body.
pub fn mcp_coverage() -> Coverage {
    Coverage::new()
        .always([
            Component::Method,
            Component::Authority,
            Component::Path,
            UCP_AGENT.into(),
        ])
        .with_query([Component::Query])
        .with_body([
            HeaderName::from_static("content-digest").into(),
            header::CONTENT_TYPE.into(),
        ])
        .when_present([
            IDEMPOTENCY_KEY,
            header::AUTHORIZATION,
            HeaderName::from_static("signature-agent"),
        ])
        .by_member([HeaderName::from_static("signature-agent")])
}

/// The policy that signed requests are verified with: the coverage, `created` within ±60 s, `expires − created` at
/// most 300 s, and of the tags only `web-bot-auth`, which UCP allows for dual audiences.
pub fn signature_policy() -> Policy {
    policy(coverage())
}

/// The same for requests to the MCP endpoint.
pub fn mcp_signature_policy() -> Policy {
    policy(mcp_coverage())
}

fn policy(coverage: Coverage) -> Policy {
    Policy::new(coverage).allow_tag(
        "web-bot-auth",
        [Component::FieldKey(
            HeaderName::from_static("signature-agent"),
            LABEL.to_owned(),
        )],
    )
}

/// A credential that the marketplace registers itself: API keys, or client certificates (RFC 8705).
pub trait Registry: Send + Sync + 'static {
    /// Looks for a credential in the request: `None` when it carries none of this kind.
    ///
    /// # Errors
    /// [`NotRegistered`] when it carries one that is registered to nobody; the request is then refused, and no other
    /// mechanism is tried.
    fn find<'a>(
        &'a self,
        request: &'a Parts,
    ) -> BoxFuture<'a, Result<Option<Registration>, NotRegistered>>;
}

/// To whom a credential is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The operator profile; it must be onboarded.
    pub profile: String,
    /// The client, as the record names it (2.3). It is the agent that offers belong to, so no two operators may have
    /// one of the same name.
    pub client_id: String,
}

/// The credential is registered to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the credential is registered to no operator")]
pub struct NotRegistered;

/// The mechanisms that a marketplace accepts (binding 2).
#[derive(Clone, Default)]
pub struct Mechanisms {
    http_signature: bool,
    oauth: bool,
    api_key: Option<Arc<dyn Registry>>,
    mtls: Option<Arc<dyn Registry>>,
}

impl Mechanisms {
    /// The reference gateway's: `http_signature` and `oauth`.
    pub fn reference() -> Self {
        Self::none().http_signature().oauth()
    }

    /// None; add those that are accepted.
    pub fn none() -> Self {
        Self::default()
    }

    /// Accepts RFC 9421 signatures.
    #[must_use]
    pub fn http_signature(mut self) -> Self {
        self.http_signature = true;
        self
    }

    /// Accepts unsigned bearer tokens.
    #[must_use]
    pub fn oauth(mut self) -> Self {
        self.oauth = true;
        self
    }

    /// Accepts the marketplace's API keys.
    #[must_use]
    pub fn api_key(mut self, keys: impl Registry) -> Self {
        self.api_key = Some(Arc::new(keys));
        self
    }

    /// Accepts client certificates; the registry reads what the TLS layer left in the request's extensions.
    #[must_use]
    pub fn mtls(mut self, certificates: impl Registry) -> Self {
        self.mtls = Some(Arc::new(certificates));
        self
    }

    pub(crate) fn accepts_signatures(&self) -> bool {
        self.http_signature
    }

    pub(crate) fn accepts_oauth(&self) -> bool {
        self.oauth
    }

    pub(crate) fn is_empty(&self) -> bool {
        !(self.http_signature || self.oauth || self.api_key.is_some() || self.mtls.is_some())
    }

    fn requires_signatures(&self) -> bool {
        self.http_signature && !self.oauth && self.api_key.is_none() && self.mtls.is_none()
    }
}

/// The bearer token of the request, in its extensions. Never printed.
#[derive(Clone)]
pub(crate) struct Bearer {
    pub(crate) token: Arc<Zeroizing<String>>,
    /// What introspection said on this very call; asked for unsigned requests, where it proves the client.
    pub(crate) introspection: Option<Introspection>,
}

/// The key that signed the request, in its extensions beside the [`Caller`]: what the request carries may have to be signed
/// by the same one (binding 8.1).
#[derive(Clone)]
pub(crate) struct SignedBy(pub(crate) PublicKey);

/// What the request proves.
struct Proven {
    caller: Caller,
    key: Option<PublicKey>,
    bearer: Option<Bearer>,
}

/// The step. Made by [`Rctp`](crate::Rctp), or by
/// [`authenticate_alone`](crate::RctpBuilder::authenticate_alone).
#[derive(Clone)]
pub struct Authenticate(Arc<Config>);

pub(crate) struct Config {
    pub(crate) operators: InForce,
    pub(crate) profiles: Profiles,
    pub(crate) mechanisms: Mechanisms,
    pub(crate) introspect: Option<Arc<dyn Introspect>>,
    pub(crate) authorities: Vec<Authority>,
    pub(crate) rest: Surface,
    pub(crate) mcp: Surface,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where refusals of proven callers are written (R30).
    pub(crate) recorder: Option<Recorder>,
    pub(crate) body_limit: usize,
}

/// What REST and MCP have each for itself.
pub(crate) struct Surface {
    pub(crate) policy: Policy,
    /// `WWW-Authenticate` of every 401, the grant's included, where OAuth is accepted (R12).
    pub(crate) challenge: Option<Challenge>,
}

pub(crate) struct Challenge {
    pub(crate) plain: HeaderValue,
    /// With `error="invalid_token"`, where it is the token that does not do (RFC 6750 §3.1).
    pub(crate) invalid_token: HeaderValue,
}

impl Authenticate {
    pub(crate) fn new(config: Config) -> Self {
        Self(Arc::new(config))
    }

    /// Replaces the operators, and forgets the profiles of those that are gone.
    pub(crate) fn replace_operators(&self, operators: Operators) -> Replaced {
        let replaced = self.0.operators.replace(operators);
        self.0.profiles.forget(&replaced.removed);
        replaced
    }

    /// Where an operator wants to be told of changes (binding 9). `None` where it does not, where it has a registration in
    /// place of a profile, and where it is no operator of ours any more.
    pub(crate) async fn webhook_url(
        &self,
        operator: &str,
        now: Timestamp,
    ) -> Result<Option<String>, ProfileError> {
        match self.0.operators.get().by_profile(operator) {
            Some(known) if known.registration().is_none() => {
                let profile = self.0.profiles.get(operator, now).await?;
                Ok(profile.webhook_url.clone())
            }
            _ => Ok(None),
        }
    }
}

impl Step for Authenticate {
    async fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        let (arrived, request) = match Arrived::of(request, self.0.body_limit).await {
            Ok(arrived) => arrived,
            Err(refusal) => return Ok(refuse(&refusal)),
        };
        // The seller's browser is no agent; its session is looked at by the step that answers it.
        if arrived.row().is_some_and(|row| row.side == Side::Browser) {
            return next.run(request).await;
        }
        let (mut parts, body) = request.into_parts();
        let mut response = match self.0.authenticate(&parts, &arrived).await {
            Ok(Proven {
                caller,
                key,
                bearer,
            }) => {
                let operator = arrive::Operator(caller.operator.clone());
                parts.extensions.insert(caller);
                if let Some(key) = key {
                    parts.extensions.insert(SignedBy(key));
                }
                if let Some(bearer) = bearer {
                    parts.extensions.insert(bearer);
                }
                let mut response = next.run(Request::from_parts(parts, body)).await?;
                response.extensions_mut().insert(operator);
                response
            }
            Err(Refused { refusal, proven }) => {
                let refusal = match arrived.row() {
                    Some(row) => refusal.action(row.verb),
                    None => refusal,
                };
                match (&self.0.recorder, proven) {
                    (Some(recorder), Some(caller)) => {
                        let operator = arrive::Operator(caller.operator.clone());
                        let refused = recorder.refuse(refusal, *caller, &arrived);
                        let mut response = Box::pin(refused).await;
                        response.extensions_mut().insert(operator);
                        response
                    }
                    _ => refuse(&refusal),
                }
            }
        };
        let challenge = &self.0.surface(&arrived).challenge;
        if let (StatusCode::UNAUTHORIZED, Some(challenge)) = (response.status(), challenge) {
            let said = match is_of_token(&response) {
                true => &challenge.invalid_token,
                false => &challenge.plain,
            };
            let said = said.clone();
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, said);
        }
        Ok(response)
    }

    fn span(&self, _: &Request<Body>) -> Span {
        tracing::debug_span!("rctp.authenticate", rctp.operator = field::Empty)
    }

    fn told(span: &Span, response: &Response<Body>) {
        if let Some(operator) = response.extensions().get::<arrive::Operator>() {
            span.record("rctp.operator", &*operator.0);
        }
    }
}

/// A refusal, with the caller where that much was proven (R30).
struct Refused {
    refusal: Refusal,
    proven: Option<Box<Caller>>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            proven: None,
        }
    }
}

impl Config {
    fn surface(&self, arrived: &Arrived) -> &Surface {
        match arrived.is_mcp() {
            true => &self.mcp,
            false => &self.rest,
        }
    }

    async fn authenticate(&self, parts: &Parts, arrived: &Arrived) -> Result<Proven, Refused> {
        let now = self.clock.now();
        let headers = &parts.headers;
        // R1: a signature header commits.
        if headers.contains_key("signature") || headers.contains_key("signature-input") {
            if !self.mechanisms.http_signature {
                return Err(self.no_mechanism(arrived).into());
            }
            let (caller, key) = self.signed(parts, arrived, now).await?;
            let bearer = bearer(headers).map(|token| Bearer {
                token,
                introspection: None,
            });
            return Ok(Proven {
                caller,
                key: Some(key),
                bearer,
            });
        }
        if self.mechanisms.oauth
            && headers.contains_key(header::AUTHORIZATION)
            && let Some(introspect) = &self.introspect
        {
            return Box::pin(self.oauth(headers, arrived, introspect.as_ref(), now)).await;
        }
        for (mechanism, registry) in [
            (Mechanism::ApiKey, &self.mechanisms.api_key),
            (Mechanism::Mtls, &self.mechanisms.mtls),
        ] {
            let Some(registry) = registry else { continue };
            match registry.find(parts).await {
                Ok(None) => {}
                Ok(Some(registration)) => {
                    let credential = self.credential(mechanism, headers, registration, now);
                    return Box::pin(credential).await;
                }
                Err(NotRegistered) => {
                    return Err(unknown("the credential is registered to no operator").into());
                }
            }
        }
        Err(self.no_mechanism(arrived).into())
    }

    /// Binding 2.1, in its order.
    async fn signed(
        &self,
        parts: &Parts,
        arrived: &Arrived,
        now: Timestamp,
    ) -> Result<(Caller, PublicKey), Refusal> {
        let headers = &parts.headers;
        // 1. The three headers are there.
        let presented = Presented::read(headers, LABEL).map_err(invalid)?;
        let profile_url = match ucp_agent(headers) {
            Ok(Some(url)) => url,
            Ok(None) => {
                return Err(Refusal::forbid(
                    Reason::SignatureInvalid,
                    "a signed request needs UCP-Agent: profile=\"<operator profile URL>\"",
                ));
            }
            // It is there, but names nobody: that is the second check.
            Err(message) => return Err(unknown(message)),
        };
        // 2. UCP-Agent names an onboarded profile that resolves and validates.
        let operators = self.operators.get();
        let operator = operators
            .by_profile(&profile_url)
            .ok_or_else(|| unknown("UCP-Agent names no operator that is onboarded here"))?;
        let url = operator.profile();
        let unusable =
            |_| unknown("the operator's profile did not resolve, or is not valid for RCTP");
        if operator.registration().is_some() {
            return Err(unknown(
                "this operator is registered for OAuth clients only and has no signing keys",
            ));
        }
        let mut profile = self.profiles.get(url, now).await.map_err(unusable)?;
        // 3. keyid is a kid in that profile.
        let keyid = presented
            .keyid()
            .ok_or_else(|| invalid(SignatureError::NoKeyId))?
            .to_owned();
        if profile.keys.get(&keyid).is_none() {
            profile = self.profiles.refreshed(url, now).await.map_err(unusable)?;
        }
        let key = profile.keys.get(&keyid).ok_or_else(|| {
            unknown("keyid is not the kid of a usable key in the operator's profile")
        })?;
        // 4. Signature, coverage, time, digest.
        let authority = self.authority(parts, arrived)?;
        let uri = arrived.uri();
        let message = Message::request(&parts.method, authority, uri.path(), uri.query(), headers);
        let body = (!arrived.body().is_empty()).then_some(arrived.hash());
        let covered = presented
            .verify(
                &message,
                key,
                &self.surface(arrived).policy,
                body,
                now.secs(),
            )
            .map_err(invalid)?;
        let mut caller = Caller::signed(url, covered.keyid().clone());
        caller.roles = operator.roles().to_vec();
        caller.duties = Some(profile.duties.clone());
        Ok((caller, key.clone()))
    }

    /// The authority that the client meant, if it is one of ours (R8).
    fn authority(&self, parts: &Parts, arrived: &Arrived) -> Result<&Authority, Refusal> {
        let refuse = || {
            Refusal::forbid(
                Reason::SignatureInvalid,
                "the request is addressed to a host that is not this gateway's; use its public URL",
            )
        };
        let mut hosts = parts.headers.get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host.to_str().map_err(|_| refuse())?),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(refuse()),
        };
        let uri = arrived.uri();
        let ours = |raw: &str| {
            self.authorities.iter().find(|ours| {
                ours.as_str() == raw
                    || Authority::new(raw, ours.scheme()).is_ok_and(|a| a == **ours)
            })
        };
        // The absolute form and HTTP/2 carry the authority in the target; a Host beside it must agree (RFC 9112 §3.2.2).
        let authority = match (uri.authority(), host) {
            (Some(target), None) => ours(target.as_str()),
            (None, Some(host)) => ours(host),
            (Some(target), Some(host)) => {
                ours(target.as_str()).filter(|a| ours(host).is_some_and(|b| b == *a))
            }
            (None, None) => None,
        };
        authority
            .filter(|ours| uri.scheme_str().is_none_or(|s| s == ours.scheme()))
            .ok_or_else(refuse)
    }

    /// Binding 2.2: the client that introspection names, and the profile it is registered to.
    async fn oauth(
        &self,
        headers: &HeaderMap,
        arrived: &Arrived,
        introspect: &dyn Introspect,
        now: Timestamp,
    ) -> Result<Proven, Refused> {
        let token = bearer(headers).ok_or_else(|| {
            unauthenticated(
                arrived.row(),
                "Authorization must be one Bearer token (RFC 6750)",
            )
        })?;
        let introspection = introspect.introspect(&token).await.map_err(unavailable)?;
        if !introspection.known() {
            return Err(unauthenticated(
                arrived.row(),
                "the authorization server does not know this access token",
            )
            .of_token()
            .into());
        }
        // Where it should have been signed, holding the token proves nothing: there is no caller to record (R30).
        if !introspection.binding_holds(None) {
            return Err(Refusal::forbid(
                Reason::GrantInvalid,
                "this token is bound to a key; sign the request with that key",
            )
            .of_token()
            .into());
        }
        let client = introspection.client_id.clone();
        let operators = self.operators.get();
        let operator = client
            .as_deref()
            .and_then(|client| operators.by_client(client))
            .ok_or_else(|| unknown("the token's client is registered to no operator profile"))?;
        let registration = Registration {
            profile: operator.profile().to_owned(),
            client_id: client.unwrap_or_default(),
        };
        let caller = self
            .registered(Mechanism::Oauth, headers, registration, now)
            .await?;
        // Where no row has the grant checked, nothing else looks whether the token is current.
        if matches!(
            arrived.route(),
            Route::NoTable | Route::Unknown | Route::Tools(Called::Other)
        ) {
            grant::live(&introspection, None, now)?;
        }
        let bearer = Bearer {
            token,
            introspection: Some(introspection),
        };
        Ok(Proven {
            caller,
            key: None,
            bearer: Some(bearer),
        })
    }

    /// An API key or a certificate, and the seller's grant beside it. Nothing binds such a token to the request, so its
    /// client must be registered to the same profile.
    async fn credential(
        &self,
        mechanism: Mechanism,
        headers: &HeaderMap,
        registration: Registration,
        now: Timestamp,
    ) -> Result<Proven, Refused> {
        let caller = self
            .registered(mechanism, headers, registration, now)
            .await?;
        let Some((token, introspect)) = bearer(headers).zip(self.introspect.as_ref()) else {
            return Ok(Proven {
                caller,
                key: None,
                bearer: None,
            });
        };
        let introspection = introspect.introspect(&token).await.map_err(unavailable)?;
        let client = introspection.client_id.as_deref();
        let operators = self.operators.get();
        let operator = client.and_then(|client| operators.by_client(client));
        if introspection.known() && operator.is_none_or(|o| o.profile() != caller.operator) {
            return Err(Refused {
                refusal: unknown(
                    "the token's client is not registered to the credential's profile",
                ),
                proven: Some(Box::new(caller)),
            });
        }
        let bearer = Bearer {
            token,
            introspection: Some(introspection),
        };
        Ok(Proven {
            caller,
            key: None,
            bearer: Some(bearer),
        })
    }

    /// The caller behind a registered credential; its profile must be onboarded, usable, and the one that UCP-Agent
    /// names where it is sent (V35).
    async fn registered(
        &self,
        mechanism: Mechanism,
        headers: &HeaderMap,
        registration: Registration,
        now: Timestamp,
    ) -> Result<Caller, Refused> {
        let Registration { profile, client_id } = registration;
        let mut caller = Caller::client(mechanism, profile, client_id);
        let proven = |refusal, caller: &Caller| Refused {
            refusal,
            proven: Some(Box::new(caller.clone())),
        };
        let operators = self.operators.get();
        let Some(operator) = operators.by_profile(&caller.operator) else {
            return Err(unknown("the credential's profile is not onboarded here").into());
        };
        caller.roles = operator.roles().to_vec();
        let refusal = match ucp_agent(headers) {
            Ok(Some(url)) if url == caller.operator => None,
            Ok(Some(_)) => Some("UCP-Agent names another profile than the credential's"),
            // Only an OAuth request may omit it (binding 2).
            Ok(None) if mechanism == Mechanism::Oauth => None,
            Ok(None) => Some("the request needs UCP-Agent: profile=\"<operator profile URL>\""),
            Err(message) => Some(message),
        };
        if let Some(message) = refusal {
            return Err(proven(unknown(message), &caller));
        }
        caller.duties = Some(
            self.duties(operator, now)
                .await
                .map_err(|r| proven(r, &caller))?,
        );
        Ok(caller)
    }

    async fn duties(&self, operator: &Operator, now: Timestamp) -> Result<Arc<Duties>, Refusal> {
        if let Some(duties) = operator.registration() {
            return Ok(duties.clone());
        }
        match self.profiles.get(operator.profile(), now).await {
            Ok(profile) => Ok(profile.duties.clone()),
            Err(_) => Err(unknown(
                "the operator's profile did not resolve, or is not valid for RCTP",
            )),
        }
    }

    fn no_mechanism(&self, arrived: &Arrived) -> Refusal {
        if self.mechanisms.requires_signatures() {
            return invalid(SignatureError::Missing);
        }
        unauthenticated(
            arrived.row(),
            "the request carries no authentication that is accepted here",
        )
    }
}

/// 401 without a proven caller: `grant_invalid` on the seller's rows, else `operator_unknown` (S1).
fn unauthenticated(row: Option<&Operation>, message: &'static str) -> Refusal {
    let sellers =
        row.is_some_and(|row| row.side == Side::Seller || row.verb.and_then(Verb::scope).is_some());
    if sellers {
        Refusal::forbid(Reason::GrantInvalid, message)
    } else {
        unknown(message)
    }
}

fn unavailable(error: IntrospectError) -> Refusal {
    tracing::error!(%error, "introspection failed; nothing was executed");
    Refusal::unavailable("the authorization server did not answer; nothing was executed")
}

fn unknown(message: &'static str) -> Refusal {
    Refusal::forbid(Reason::OperatorUnknown, message)
}

fn invalid(error: SignatureError) -> Refusal {
    Refusal::forbid(Reason::SignatureInvalid, error.to_string())
}

/// The profile that `UCP-Agent` names: a Dictionary with one String `profile`; `Ok(None)` without the header.
fn ucp_agent(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut values = headers.get_all(UCP_AGENT).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err("UCP-Agent occurs twice");
    }
    sfv::Parser::new(value.as_bytes())
        .parse_dictionary_with_visitor(ProfileMember::default())
        .ok()
        .flatten()
        .map(Some)
        .ok_or("UCP-Agent is not a Dictionary with one String `profile` (RFC 8941)")
}

/// Reads the member `profile`. A parsed Dictionary would have the last of several, where another reader might take the
/// first.
#[derive(Default)]
struct ProfileMember {
    seen: bool,
    url: Option<String>,
}

impl<'de> DictionaryVisitor<'de> for ProfileMember {
    type Out = Option<String>;
    type Error = NotOneProfile;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, NotOneProfile> {
        if key.as_str() != "profile" {
            return Ok(None);
        }
        if std::mem::replace(&mut self.seen, true) {
            return Err(NotOneProfile);
        }
        Ok(Some(ProfileUrl(&mut self.url)))
    }

    fn finish(self) -> Result<Self::Out, NotOneProfile> {
        Ok(self.url)
    }
}

struct ProfileUrl<'a>(&'a mut Option<String>);

impl<'de> EntryVisitor<'de> for ProfileUrl<'_> {
    type Error = NotOneProfile;

    fn item(self) -> Result<impl ItemVisitor<'de>, NotOneProfile> {
        Ok(move |item: BareItemFromInput<'de>| match item {
            BareItemFromInput::String(url) => {
                *self.0 = Some(url.as_str().to_owned());
                Ok(Ignored)
            }
            _ => Err(NotOneProfile),
        })
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, NotOneProfile> {
        Err::<Never, _>(NotOneProfile)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not one profile")]
struct NotOneProfile;

/// The bearer token, if `Authorization` occurs once and is one (RFC 6750 §2.1).
fn bearer(headers: &HeaderMap) -> Option<Arc<Zeroizing<String>>> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    let is_token = !token.is_empty()
        && token.bytes().all(|b| {
            b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=')
        });
    (scheme.eq_ignore_ascii_case("bearer") && is_token)
        .then(|| Arc::new(Zeroizing::new(token.to_owned())))
}
