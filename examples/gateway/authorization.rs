//! The authorization server of the development world: tokens, introspection, revocation.
//!
//! | route | what |
//! |---|---|
//! | `GET /.well-known/oauth-authorization-server` | metadata (RFC 8414) |
//! | `POST /oauth/token` | `client_credentials`, and `refresh_token` with rotation |
//! | `POST /oauth/introspect` | RFC 7662, for the gateway alone, with `grant_status` for inactive tokens too |
//! | `POST /oauth/revoke` | RFC 7009 |
//!
//! Every client authenticates by `client_secret_basic`. Tokens are kept as SHA-256 digests, and everything that must
//! outlive a restart is in one file, which is replaced as a whole by each change. Grants begin with
//! [`Authorization::grant`]; a consent flow would end there too.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower_rctp::{
    layer::context::Clock,
    protocol::{
        grant::{Confirmation, DETAILS_TYPE, GrantStatus, Introspection},
        policy::Tier,
        time::Timestamp,
    },
    wire::{base64url, digest::sha256},
};

use super::{Error, files};

/// How long an access token lives, in seconds (binding 2.2).
pub const ACCESS_SECONDS: i64 = 900;
/// How long a grant lives, in seconds; the binding allows 90 days (3.2).
pub const GRANT_SECONDS: i64 = 30 * 86_400;
/// How long what has ended is remembered, so that it is refused by its own reason.
const REMEMBERED_SECONDS: i64 = 7 * 86_400;
/// No request here is larger.
const BODY_LIMIT: usize = 16 * 1024;

/// A client of this server.
pub struct Client {
    pub id: String,
    pub secret: String,
    /// The gateway may introspect, and nothing else; agents everything else.
    pub gateway: bool,
}

/// What a seller lets an agent do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    /// The seller's pairwise pseudonym.
    pub sub: String,
    pub client_id: String,
    /// The key that must sign, by its thumbprint; `None` for an agent that does not sign.
    pub jkt: Option<String>,
    /// By scope.
    pub tiers: BTreeMap<String, Tier>,
}

/// A grant's tokens, as its agent gets them.
#[derive(Clone, Serialize, Deserialize)]
pub struct Tokens {
    pub grant_id: String,
    pub access_token: String,
    pub access_expires_at: Timestamp,
    /// Works once; the answer brings the next one.
    pub refresh_token: String,
}

/// Everything that is kept. Digests are base64url.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    grants: BTreeMap<String, Grant>,
    access: BTreeMap<String, Access>,
    refresh: BTreeMap<String, Refresh>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Grant {
    #[serde(flatten)]
    granted: Granted,
    expires_at: Timestamp,
    revoked: bool,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Access {
    client_id: String,
    /// `None` for a client's own token.
    grant_id: Option<String>,
    expires_at: Timestamp,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Refresh {
    grant_id: String,
    used: bool,
}

impl Grant {
    fn status(&self, now: Timestamp) -> GrantStatus {
        if self.revoked {
            GrantStatus::Revoked
        } else if self.expires_at <= now {
            GrantStatus::Expired
        } else {
            GrantStatus::Active
        }
    }
}

/// The server.
pub struct Authorization {
    issuer: String,
    scopes: Vec<String>,
    clients: HashMap<String, Client>,
    clock: Arc<dyn Clock>,
    file: PathBuf,
    kept: RwLock<Arc<Kept>>,
    /// Held by the one change at a time.
    changing: Mutex<()>,
}

impl Authorization {
    /// Opens the server over `file`, which may not exist yet.
    pub fn open(
        file: PathBuf,
        issuer: String,
        scopes: Vec<String>,
        clients: Vec<Client>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        let failed = |e: &dyn std::fmt::Display| Error(format!("{}: {e}", file.display()));
        let kept = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| failed(&e))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Kept::default(),
            Err(e) => return Err(failed(&e)),
        };
        Ok(Arc::new(Self {
            issuer,
            scopes,
            clients: clients.into_iter().map(|c| (c.id.clone(), c)).collect(),
            clock,
            file,
            kept: RwLock::new(Arc::new(kept)),
            changing: Mutex::new(()),
        }))
    }

    /// Issues a grant with its first tokens.
    pub async fn grant(self: &Arc<Self>, granted: Granted) -> Result<Tokens, Error> {
        let grant_id = files::random()?;
        let fresh = Fresh::new(self.clock.now())?;
        let grant = Grant {
            granted,
            expires_at: fresh.now.plus(GRANT_SECONDS),
            revoked: false,
        };
        self.change(move |kept| {
            kept.grants.insert(grant_id.clone(), grant);
            fresh.tokens(kept, &grant_id)
        })
        .await?
        .ok_or_else(|| Error("the new grant has ended already".into()))
    }

    /// More tokens for a grant that is in force; `None` for one that is not.
    pub async fn renew(self: &Arc<Self>, grant_id: String) -> Result<Option<Tokens>, Error> {
        let fresh = Fresh::new(self.clock.now())?;
        self.change(move |kept| fresh.tokens(kept, &grant_id)).await
    }

    /// The routes.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/.well-known/oauth-authorization-server", get(metadata))
            .route("/oauth/token", post(token))
            .route("/oauth/introspect", post(introspect))
            .route("/oauth/revoke", post(revoke))
            .layer(DefaultBodyLimit::max(BODY_LIMIT))
            .with_state(self.clone())
    }

    fn kept(&self) -> Arc<Kept> {
        self.kept
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes what is kept: on the disk first, then in memory, or not at all.
    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Kept) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let this = self.clone();
        let changed = tokio::task::spawn_blocking(move || {
            let _alone = this.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let before = this.kept();
            let mut after = Kept::clone(&before);
            after.forget(this.clock.now());
            let result = change(&mut after);
            if after != *before {
                let bytes = serde_json::to_vec(&after)
                    .map_err(|e| Error(format!("tokens cannot be written: {e}")))?;
                files::replace(&this.file, &bytes)
                    .map_err(|e| Error(format!("{}: {e}", this.file.display())))?;
                *this.kept.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(after);
            }
            Ok(result)
        });
        changed
            .await
            .map_err(|e| Error(format!("tokens cannot be written: {e}")))?
    }

    /// The client that the request proves to be.
    fn client(&self, headers: &HeaderMap) -> Result<&Client, Refused> {
        let credentials = || {
            let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
            let (scheme, encoded) = value.split_once(' ')?;
            if !scheme.eq_ignore_ascii_case("basic") {
                return None;
            }
            let pair = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
            let (id, secret) = pair.split_once(':')?;
            let client = self.clients.get(&*decoded(id))?;
            // Digests are compared, so that the time taken says nothing of the secret.
            let same = sha256(decoded(secret).as_bytes()) == sha256(client.secret.as_bytes());
            same.then_some(client)
        };
        credentials().ok_or(Refused::CLIENT)
    }

    /// What is said of an access token (binding 3.3, R6).
    fn introspection(&self, token: &str) -> Introspection {
        let now = self.clock.now();
        let kept = self.kept();
        let Some(access) = kept.access.get(&digest(token)) else {
            return Introspection::default();
        };
        let current = now < access.expires_at;
        let said = Introspection {
            client_id: Some(access.client_id.clone()),
            exp: Some(access.expires_at.secs()),
            ..Introspection::default()
        };
        let Some(grant_id) = &access.grant_id else {
            // A client's own token: once it has ended there is nothing to say of it.
            return if current {
                Introspection {
                    active: true,
                    ..said
                }
            } else {
                Introspection::default()
            };
        };
        let Some(grant) = kept.grants.get(grant_id) else {
            return Introspection::default();
        };
        let status = grant.status(now);
        let said = Introspection {
            sub: Some(grant.granted.sub.clone()),
            cnf: grant.granted.jkt.as_ref().map(|jkt| Confirmation {
                jkt: Some(jkt.clone()),
            }),
            grant_status: Some(status),
            ..said
        };
        if !current || status != GrantStatus::Active {
            return said;
        }
        Introspection {
            active: true,
            scope: Some(grant.granted.scope()),
            authorization_details: vec![grant.granted.details()],
            ..said
        }
    }
}

impl Granted {
    fn scope(&self) -> String {
        let scopes: Vec<&str> = self.tiers.keys().map(String::as_str).collect();
        scopes.join(" ")
    }

    /// The `authorization_details` object (binding 3.2).
    fn details(&self) -> Value {
        let mut details = json!({
            "type": DETAILS_TYPE,
            "agent_id": self.client_id,
            "tiers": self.tiers,
        });
        if let Some(jkt) = &self.jkt {
            details["jkt"] = json!(jkt);
        }
        details
    }
}

impl Kept {
    /// Forgets what ended long ago.
    fn forget(&mut self, now: Timestamp) {
        let over = |end: Timestamp| end.plus(REMEMBERED_SECONDS) <= now;
        self.grants.retain(|_, grant| !over(grant.expires_at));
        let grants = &self.grants;
        self.access.retain(|_, access| {
            !over(access.expires_at)
                && access
                    .grant_id
                    .as_ref()
                    .is_none_or(|id| grants.contains_key(id))
        });
        self.refresh
            .retain(|_, refresh| grants.contains_key(&refresh.grant_id));
    }

    fn revoke(&mut self, grant_id: &str) {
        if let Some(grant) = self.grants.get_mut(grant_id) {
            grant.revoked = true;
        }
    }
}

/// A pair of tokens that are not known to anyone yet.
struct Fresh {
    access: String,
    refresh: String,
    now: Timestamp,
}

impl Fresh {
    fn new(now: Timestamp) -> Result<Self, Error> {
        Ok(Self {
            access: files::random()?,
            refresh: files::random()?,
            now,
        })
    }

    /// Makes them the grant's, if it is in force.
    fn tokens(self, kept: &mut Kept, grant_id: &str) -> Option<Tokens> {
        let grant = kept.grants.get(grant_id)?;
        if grant.status(self.now) != GrantStatus::Active {
            return None;
        }
        let expires_at = self.now.plus(ACCESS_SECONDS).min(grant.expires_at);
        let access = Access {
            client_id: grant.granted.client_id.clone(),
            grant_id: Some(grant_id.to_owned()),
            expires_at,
        };
        kept.access.insert(digest(&self.access), access);
        let refresh = Refresh {
            grant_id: grant_id.to_owned(),
            used: false,
        };
        kept.refresh.insert(digest(&self.refresh), refresh);
        Some(Tokens {
            grant_id: grant_id.to_owned(),
            access_token: self.access,
            access_expires_at: expires_at,
            refresh_token: self.refresh,
        })
    }
}

fn digest(token: &str) -> String {
    base64url(&sha256(token.as_bytes()))
}

/// `application/x-www-form-urlencoded` text, as RFC 6749 §2.3.1 writes credentials.
fn decoded(text: &str) -> String {
    let form = format!("{text}=");
    url::form_urlencoded::parse(form.as_bytes())
        .next()
        .map(|(name, _)| name.into_owned())
        .unwrap_or_default()
}

/// The parameters of a request; one that occurs twice is refused (RFC 6749 §3.2).
struct Form(HashMap<String, String>);

impl Form {
    fn read(body: &[u8]) -> Result<Self, Refused> {
        let mut form = HashMap::new();
        for (name, value) in url::form_urlencoded::parse(body) {
            if form.insert(name.into_owned(), value.into_owned()).is_some() {
                return Err(Refused::REQUEST);
            }
        }
        Ok(Self(form))
    }

    fn get(&self, name: &str) -> Result<&str, Refused> {
        self.0.get(name).map(String::as_str).ok_or(Refused::REQUEST)
    }
}

/// An error of RFC 6749 §5.2.
struct Refused {
    status: StatusCode,
    error: &'static str,
    description: &'static str,
}

impl Refused {
    const CLIENT: Self = Self {
        status: StatusCode::UNAUTHORIZED,
        error: "invalid_client",
        description: "authenticate with the client's id and secret (HTTP Basic)",
    };
    const REQUEST: Self = Self::bad("invalid_request", "a parameter is missing or occurs twice");
    const RIGHT: Self = Self::bad("unauthorized_client", "this client may not do this");

    const fn bad(error: &'static str, description: &'static str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error,
            description,
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        tracing::error!(%error, "the authorization server could not answer");
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            error: "temporarily_unavailable",
            description: "try again",
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "error_description": self.description});
        let mut response = (self.status, NO_STORE, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"rctp\""),
            );
        }
        response
    }
}

const NO_STORE: [(header::HeaderName, &str); 1] = [(header::CACHE_CONTROL, "no-store")];

type Server = State<Arc<Authorization>>;

async fn metadata(State(server): Server) -> Json<Value> {
    let issuer = &server.issuer;
    Json(json!({
        "issuer": issuer,
        "token_endpoint": format!("{issuer}/oauth/token"),
        "introspection_endpoint": format!("{issuer}/oauth/introspect"),
        "revocation_endpoint": format!("{issuer}/oauth/revoke"),
        "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        "introspection_endpoint_auth_methods_supported": ["client_secret_basic"],
        "revocation_endpoint_auth_methods_supported": ["client_secret_basic"],
        "grant_types_supported": ["client_credentials", "refresh_token"],
        "response_types_supported": [],
        "scopes_supported": server.scopes,
        "authorization_details_types_supported": [DETAILS_TYPE],
    }))
}

async fn token(
    State(server): Server,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let client = server.client(&headers)?;
    let form = Form::read(&body)?;
    if client.gateway {
        return Err(Refused::RIGHT);
    }
    let answer = match form.get("grant_type")? {
        "client_credentials" => own_token(&server, client).await?,
        "refresh_token" => refreshed(&server, client, form.get("refresh_token")?).await?,
        _ => {
            return Err(Refused::bad(
                "unsupported_grant_type",
                "use client_credentials or refresh_token",
            ));
        }
    };
    Ok((NO_STORE, Json(answer)).into_response())
}

/// A token of the client's own, with which it acts as a buyer (binding 2.2).
async fn own_token(server: &Arc<Authorization>, client: &Client) -> Result<Value, Refused> {
    let token = files::random()?;
    let access = Access {
        client_id: client.id.clone(),
        grant_id: None,
        expires_at: server.clock.now().plus(ACCESS_SECONDS),
    };
    let key = digest(&token);
    server
        .change(move |kept| kept.access.insert(key, access))
        .await?;
    Ok(json!({"access_token": token, "token_type": "Bearer", "expires_in": ACCESS_SECONDS}))
}

/// The next tokens of a grant. A refresh token that was used before revokes it (binding 3.2).
async fn refreshed(
    server: &Arc<Authorization>,
    client: &Client,
    token: &str,
) -> Result<Value, Refused> {
    let invalid = || {
        Refused::bad(
            "invalid_grant",
            "the refresh token is unknown, used, or of a grant that has ended",
        )
    };
    let fresh = Fresh::new(server.clock.now())?;
    let now = fresh.now;
    let (key, client_id) = (digest(token), client.id.clone());
    let renewed = server
        .change(move |kept| {
            let refresh = kept.refresh.get_mut(&key)?;
            let grant_id = refresh.grant_id.clone();
            let granted = kept.grants.get(&grant_id)?.granted.clone();
            if granted.client_id != client_id {
                return None;
            }
            if std::mem::replace(&mut refresh.used, true) {
                tracing::warn!(
                    grant_id,
                    "a refresh token was used twice; the grant is revoked"
                );
                kept.revoke(&grant_id);
                return None;
            }
            Some((fresh.tokens(kept, &grant_id)?, granted))
        })
        .await?;
    let (tokens, granted) = renewed.ok_or_else(invalid)?;
    Ok(json!({
        "access_token": tokens.access_token,
        "token_type": "Bearer",
        "expires_in": now.until(tokens.access_expires_at),
        "refresh_token": tokens.refresh_token,
        "scope": granted.scope(),
        "authorization_details": [granted.details()],
    }))
}

async fn introspect(
    State(server): Server,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    if !server.client(&headers)?.gateway {
        return Err(Refused::RIGHT);
    }
    let form = Form::read(&body)?;
    let said = server.introspection(form.get("token")?);
    Ok((NO_STORE, Json(said)).into_response())
}

/// RFC 7009. A token of a grant takes the whole grant with it, whichever token it is.
async fn revoke(
    State(server): Server,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let client = server.client(&headers)?;
    let form = Form::read(&body)?;
    let (key, client_id) = (digest(form.get("token")?), client.id.clone());
    let allowed = server
        .change(move |kept| {
            let access = kept.access.get(&key);
            let grant_id = match (access, kept.refresh.get(&key)) {
                (Some(access), _) if access.grant_id.is_none() => {
                    let own = access.client_id == client_id;
                    if own {
                        kept.access.remove(&key);
                    }
                    return own;
                }
                (Some(access), _) => access.grant_id.clone(),
                (None, Some(refresh)) => Some(refresh.grant_id.clone()),
                // §2.2: an unknown token is as good as revoked.
                (None, None) => return true,
            };
            let grant_id = grant_id.unwrap_or_default();
            let own = kept
                .grants
                .get(&grant_id)
                .is_some_and(|grant| grant.granted.client_id == client_id);
            if own {
                kept.revoke(&grant_id);
            }
            own
        })
        .await?;
    if !allowed {
        return Err(Refused::RIGHT);
    }
    Ok((StatusCode::OK, NO_STORE).into_response())
}
