//! What the seller's browser calls: consent, and the list of grants. The pages are empty shells; all that is in them
//! comes from the JSON routes, for which the seller has to be signed in.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, RawQuery, Request, State},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, HeaderName, Method, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_rctp::{
    protocol::{
        grant::GrantStatus,
        operation::Verb,
        policy::{ScopePolicy, Tier},
    },
    service::{
        pages::Pages,
        session::{Sessions, from_agent, same_origin},
    },
};

use super::{
    Authorization, CODE_SECONDS, Client, DAY, Error, GRANT_DAYS, Granted, MAX_GRANT_DAYS,
    kept::Code,
    request::{Asked, Asks, Unfit},
};

/// What these routes need.
pub(super) struct Browser {
    pub(super) server: Arc<Authorization>,
    /// Who is signed in.
    pub(super) sessions: Arc<dyn Sessions>,
    /// The pages of the library, for their look.
    pub(super) pages: Pages,
}

type Page = State<Arc<Browser>>;

pub(super) fn router(browser: Browser) -> Router {
    let browser = Arc::new(browser);
    Router::new()
        .route("/oauth/authorize", get(authorize))
        .route("/oauth/consent", get(consent).post(decide))
        .route("/grants", get(grants_page))
        .route("/grants/list", get(grants))
        .route("/grants/{id}/revoke", post(revoke))
        .route("/oauth/pages/{name}", get(script))
        .route_layer(from_fn_with_state(browser.clone(), of_our_own_pages))
        .route_layer(from_fn(not_for_agents))
        .with_state(browser)
}

/// These routes are for people (R27).
async fn not_for_agents(request: Request, next: Next) -> Response {
    if from_agent(request.headers()) {
        return Denied::AGENT.into_response();
    }
    next.run(request).await
}

/// A POST comes from a page of this server: a form of another site has neither its `Origin` nor this `Content-Type`.
async fn of_our_own_pages(State(browser): Page, request: Request, next: Next) -> Response {
    if request.method() == Method::POST {
        if !same_origin(request.headers(), &browser.server.origin) {
            return Denied::ORIGIN.into_response();
        }
        let json = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok()?.split(';').next())
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
        if !json {
            return Denied::MEDIA.into_response();
        }
    }
    next.run(request).await
}

/// Why the browser gets nothing. The message is for people.
struct Denied {
    status: StatusCode,
    error: &'static str,
    message: &'static str,
}

impl Denied {
    const AGENT: Self = Self::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        "this is for the seller's browser; agents may not call it",
    );
    const ORIGIN: Self = Self::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        "only a page of this server may send this",
    );
    const MEDIA: Self = Self::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "invalid_request",
        "send application/json",
    );
    const NOBODY: Self = Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", "sign in first");
    const NO_GRANT: Self = Self::new(StatusCode::NOT_FOUND, "not_found", "you have no such grant");
    const UNAVAILABLE: Self = Self::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "unavailable",
        "try again in a moment",
    );

    const fn new(status: StatusCode, error: &'static str, message: &'static str) -> Self {
        Self {
            status,
            error,
            message,
        }
    }

    const fn bad(error: &'static str, message: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, message)
    }
}

impl From<Error> for Denied {
    fn from(error: Error) -> Self {
        tracing::error!(%error, "the authorization server could not answer");
        Self::UNAVAILABLE
    }
}

/// Seen by the consent page only when the request in its address was changed: the first look was at `/oauth/authorize`.
impl From<Unfit> for Denied {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Unanswerable(message) => Self::bad("invalid_request", message),
            Unfit::Refused {
                error, description, ..
            } => Self::bad(error, description),
        }
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "message": self.message});
        (self.status, DATA, Json(body)).into_response()
    }
}

const NOSNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");
const NO_STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");
/// Headers of JSON.
const DATA: [(HeaderName, &str); 2] = [NO_STORE, NOSNIFF];

/// What these pages say, beside what all pages say.
static TEXTS: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("pages/texts.en.json")).expect("a test reads them")
});

impl Browser {
    /// A page in the look of the library's.
    fn page(&self, status: StatusCode, title: &str, name: &str, said: Value) -> Response {
        let mut texts = TEXTS.clone();
        if let (Value::Object(texts), Value::Object(said)) = (&mut texts, said) {
            texts.extend(said);
        }
        let title = texts[title].as_str().unwrap_or_default().to_owned();
        let script = format!("/oauth/pages/{name}.js");
        let mut response = self.pages.page(&title, &script, &texts).into_response();
        *response.status_mut() = status;
        response
    }
}

async fn script(Path(name): Path<String>) -> Response {
    let js = match &*name {
        "consent.js" => include_str!("pages/consent.js"),
        "grants.js" => include_str!("pages/grants.js"),
        "error.js" => include_str!("pages/error.js"),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let headers = [
        (header::CONTENT_TYPE, "text/javascript; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        NOSNIFF,
    ];
    (headers, js).into_response()
}

async fn grants_page(State(browser): Page) -> Response {
    browser.page(StatusCode::OK, "title_grants", "grants", json!({}))
}

async fn authorize(State(browser): Page, RawQuery(query): RawQuery) -> Response {
    let asked = browser.server.asked(query.as_deref().unwrap_or_default());
    match asked {
        Ok(_) => browser.page(StatusCode::OK, "title_consent", "consent", json!({})),
        Err(Unfit::Unanswerable(why)) => {
            tracing::info!(why, "an authorization request cannot be answered");
            let why = json!({"error": why});
            browser.page(StatusCode::BAD_REQUEST, "title_error", "error", why)
        }
        Err(Unfit::Refused { location, .. }) => {
            let headers = [
                (header::LOCATION, location.as_str()),
                (header::REFERRER_POLICY, "no-referrer"),
                NO_STORE,
            ];
            (StatusCode::FOUND, headers).into_response()
        }
    }
}

impl Browser {
    /// The seller at the browser.
    async fn seller(&self, headers: &HeaderMap) -> Result<String, Denied> {
        match self.sessions.seller(headers).await {
            Ok(seller) => seller.ok_or(Denied::NOBODY),
            Err(error) => {
                tracing::error!(%error, "the seller's session cannot be read");
                Err(Denied::UNAVAILABLE)
            }
        }
    }
}

impl Authorization {
    /// What sellers are told of an agent.
    fn described(&self, client_id: &str, jkt: Option<&str>) -> Value {
        let registration = self.clients.get(client_id).and_then(Client::registration);
        let mut client = json!({"client_id": client_id, "signs": jkt.is_some()});
        if let Some(registration) = registration {
            client["name"] = json!(registration.name);
            client["operator"] = json!(registration.operator);
            client["legal_entity"] = json!(registration.legal_entity);
        }
        if let Some(jkt) = jkt {
            client["jkt"] = json!(jkt);
        }
        client
    }
}

async fn consent(
    State(browser): Page,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Denied> {
    browser.seller(&headers).await?;
    let server = &browser.server;
    let asked = server.asked(query.as_deref().unwrap_or_default())?;
    let scopes = Verb::GRANTED.into_iter().filter_map(|verb| {
        let scope = verb.scope()?;
        let tier = *asked.tiers.get(scope)?;
        let policy = server.tiers.get(scope)?;
        Some(json!({
            "scope": scope,
            "verb": verb,
            "title": title(verb),
            "tier": tier,
            "allowed_tiers": choices(policy, tier),
        }))
    });
    let body = json!({
        "client": server.described(&asked.client.id, asked.jkt.as_deref()),
        "agent_id": asked.agent_id,
        "scopes": scopes.collect::<Vec<_>>(),
        "expires_in_days": GRANT_DAYS,
        "max_days": MAX_GRANT_DAYS,
        "redirect_host": host(&asked.redirect_uri),
    });
    Ok((DATA, Json(body)).into_response())
}

/// The tiers that the seller may choose where `asked` was asked for, beside none at all: from there on downwards.
fn choices(policy: &ScopePolicy, asked: Tier) -> Vec<Tier> {
    let allowed = policy.allowed_tiers.iter().copied();
    let mut choices: Vec<Tier> = allowed
        .filter(|tier| *tier >= asked && *tier != Tier::Forbid)
        .collect();
    choices.sort_unstable();
    choices.dedup();
    choices
}

/// A verb, for people.
fn title(verb: Verb) -> &'static str {
    match verb {
        Verb::ListingCreate => "Offer an item for sale",
        Verb::ListingSetTerms => "Propose new terms for a listing",
        Verb::ListingReprice => "Change the price of a listing",
        Verb::ListingAnswerBuyer => "Answer a buyer's question",
        Verb::OfferCounter => "Make a counter-offer",
        Verb::OfferAccept => "Accept an offer",
        Verb::DealCommitToShip => "Promise to ship what was sold",
        // No scope grants these.
        Verb::OfferCreate => "Make an offer",
        Verb::DealSignContract => "Sign a contract",
        Verb::AccountUpdate => "Change your account",
    }
}

/// Where the browser will be sent, for people.
fn host(redirect_uri: &str) -> Option<String> {
    let url = url::Url::parse(redirect_uri).ok()?;
    // An app's own scheme has no host.
    Some(url.host_str().unwrap_or(url.scheme()).to_owned())
}

/// The body of `POST /oauth/consent`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decided {
    /// That of the page.
    query: String,
    decision: Decision,
    /// What is left out, or `forbid`, is not granted.
    #[serde(default)]
    tiers: Option<Asks>,
    #[serde(default)]
    expires_in_days: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Allow,
    Deny,
}

async fn decide(State(browser): Page, headers: HeaderMap, body: Bytes) -> Result<Response, Denied> {
    let seller = browser.seller(&headers).await?;
    let server = &browser.server;
    let decided: Decided = serde_json::from_slice(&body).map_err(|_| {
        Denied::bad(
            "invalid_request",
            "the body is {\"query\", \"decision\": \"allow\" or \"deny\", \"tiers\": {scope: tier}, \"expires_in_days\"}",
        )
    })?;
    let query = decided.query.strip_prefix('?').unwrap_or(&decided.query);
    let asked = server.asked(query)?;
    let state = asked.state.as_deref();
    let redirect = match decided.decision {
        Decision::Deny => {
            let denied = [
                ("error", "access_denied"),
                ("error_description", "the seller said no"),
            ];
            server.answer(&asked.redirect_uri, state, &denied)
        }
        Decision::Allow => {
            let days = decided.expires_in_days.unwrap_or(GRANT_DAYS);
            let tiers = decided.tiers.map(|Asks(tiers)| tiers).unwrap_or_default();
            let confirmed = confirmed(server, &asked, seller, tiers, days)?;
            let code = server.code(confirmed).await?;
            server.answer(&asked.redirect_uri, state, &[("code", &code)])
        }
    };
    Ok((DATA, Json(json!({ "redirect": redirect }))).into_response())
}

/// What the seller confirmed: at most what was asked for, within what the marketplace allows.
fn confirmed(
    server: &Authorization,
    asked: &Asked<'_>,
    seller: String,
    mut tiers: BTreeMap<String, Tier>,
    days: i64,
) -> Result<Code, Denied> {
    tiers.retain(|_, tier| *tier != Tier::Forbid);
    if tiers.is_empty() {
        return Err(Denied::bad(
            "invalid_request",
            "choose what the agent may do, or refuse",
        ));
    }
    for (scope, tier) in &tiers {
        let (Some(wanted), Some(policy)) = (asked.tiers.get(scope), server.tiers.get(scope)) else {
            return Err(Denied::bad(
                "invalid_request",
                "the agent did not ask for all of this",
            ));
        };
        if !choices(policy, *wanted).contains(tier) {
            return Err(Denied::bad(
                "invalid_request",
                "a tier can be lowered to one that the marketplace allows, and not raised",
            ));
        }
    }
    if !(1..=MAX_GRANT_DAYS).contains(&days) {
        return Err(Denied::bad(
            "invalid_request",
            "a grant lives for 1 to 90 days",
        ));
    }
    let now = server.clock.now();
    Ok(Code {
        granted: Granted {
            sub: seller,
            client_id: asked.client.id.clone(),
            agent_id: asked.agent_id.clone(),
            jkt: asked.jkt.clone(),
            tiers,
        },
        redirect_uri: asked.redirect_uri.clone(),
        challenge: asked.challenge.clone(),
        expires_at: now.plus(CODE_SECONDS),
        grant_ends_at: now.plus(days * DAY),
        spent: false,
        grant_id: None,
    })
}

/// The seller's grants that are in force, the newest first.
async fn grants(State(browser): Page, headers: HeaderMap) -> Result<Response, Denied> {
    let seller = browser.seller(&headers).await?;
    let server = &browser.server;
    let now = server.clock.now();
    let kept = server.kept();
    let mut grants: Vec<_> = kept
        .grants
        .iter()
        .filter(|(_, grant)| {
            grant.granted.sub == seller && grant.status(now) == GrantStatus::Active
        })
        .collect();
    grants.sort_by_key(|(_, grant)| std::cmp::Reverse(grant.created_at));
    let grants = grants.into_iter().map(|(id, grant)| {
        let granted = &grant.granted;
        json!({
            "grant_id": id,
            "client": server.described(&granted.client_id, granted.jkt.as_deref()),
            "agent_id": granted.agent_id,
            "tiers": granted.tiers,
            "created_at": grant.created_at,
            "expires_at": grant.expires_at,
            "status": grant.status(now),
        })
    });
    let body = json!({"grants": grants.collect::<Vec<_>>()});
    Ok((DATA, Json(body)).into_response())
}

async fn revoke(
    State(browser): Page,
    Path(grant_id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Denied> {
    let seller = browser.seller(&headers).await?;
    let server = &browser.server;
    if !server.revoke_grant(seller, grant_id).await? {
        return Err(Denied::NO_GRANT);
    }
    Ok((StatusCode::NO_CONTENT, DATA).into_response())
}
