//! What clients and the gateway call.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tower_rctp::{
    protocol::grant::DETAILS_TYPE,
    service::{pages::Pages, session::Sessions},
    wire::digest::sha256,
};

use super::{
    ACCESS_SECONDS, Authorization, Client, ClientKind, Error, Granted, Redemption, Tokens, browser,
    request::{Parameters, Problem},
};

/// No request here is larger.
const BODY_LIMIT: usize = 16 * 1024;

impl Authorization {
    /// The routes.
    pub fn router(self: &Arc<Self>, sessions: Arc<dyn Sessions>, pages: Pages) -> Router {
        Router::new()
            .route("/.well-known/oauth-authorization-server", get(metadata))
            .route("/oauth/token", post(token))
            .route("/oauth/revoke", post(revoke))
            .with_state(self.clone())
            .merge(browser::router(browser::Browser {
                server: self.clone(),
                sessions,
                pages,
            }))
            .merge(self.introspection_router())
            .layer(DefaultBodyLimit::max(BODY_LIMIT))
    }

    /// What the gateway needs of them.
    pub fn introspection_router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/oauth/introspect", post(introspect))
            .layer(DefaultBodyLimit::max(BODY_LIMIT))
            .with_state(self.clone())
    }

    /// The client that the request proves to be; a public one only says so.
    fn client(&self, headers: &HeaderMap, form: &Parameters) -> Result<&Client, Refused> {
        let named = form.only("client_id");
        let client = if headers.contains_key(header::AUTHORIZATION) {
            let client = self.authenticated(headers).ok_or(Refused::CLIENT)?;
            if named.is_some_and(|named| named != client.id) {
                return Err(Refused::CLIENT);
            }
            client
        } else {
            let public = |client: &&Client| client.secret.is_none();
            let client = named.and_then(|id| self.clients.get(id));
            client.filter(public).ok_or(Refused::CLIENT)?
        };
        match form.only("client_secret") {
            // Not in bodies, and no second time.
            Some(_) => Err(Refused::CLIENT),
            None => Ok(client),
        }
    }

    fn authenticated(&self, headers: &HeaderMap) -> Option<&Client> {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return None;
        };
        let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let pair = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
        let (id, secret) = pair.split_once(':')?;
        let client = self.clients.get(&*decoded(id))?;
        // Digests are compared, so that the time taken says nothing of the secret.
        let same = sha256(decoded(secret).as_bytes()) == sha256(client.secret.as_ref()?.as_bytes());
        same.then_some(client)
    }

    /// An answer with a grant's tokens.
    fn granted(&self, tokens: &Tokens, granted: &Granted) -> Response {
        let body = json!({
            "access_token": tokens.access_token,
            "token_type": "Bearer",
            "expires_in": self.clock.now().until(tokens.access_expires_at),
            "refresh_token": tokens.refresh_token,
            "scope": granted.scope(),
            "authorization_details": [granted.details()],
        });
        (NO_STORE, Json(body)).into_response()
    }
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
fn form(body: &[u8]) -> Result<Parameters, Refused> {
    let form = Parameters::read(body);
    match form.repeated {
        true => Err(Refused::REQUEST),
        false => Ok(form),
    }
}

fn required(form: &Parameters, name: &str) -> Result<String, Refused> {
    form.only(name).map(str::to_owned).ok_or(Refused::REQUEST)
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
        description: "authenticate with the client's id and secret (HTTP Basic), or as a public client with client_id",
    };
    const REQUEST: Self = Self::bad("invalid_request", "a parameter is missing or occurs twice");
    const GRANT: Self = Self::bad(
        "invalid_grant",
        "the code or refresh token is unknown, used, expired, for another request, or of a grant that has ended",
    );
    const RIGHT: Self = Self::bad("unauthorized_client", "this client may not do this");

    const fn bad(error: &'static str, description: &'static str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error,
            description,
        }
    }
}

impl From<Problem> for Refused {
    fn from((error, description): Problem) -> Self {
        Self::bad(error, description)
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
    let scopes: Vec<&str> = server.tiers.iter().map(|(scope, _)| scope).collect();
    Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/oauth/authorize"),
        "token_endpoint": format!("{issuer}/oauth/token"),
        "introspection_endpoint": format!("{issuer}/oauth/introspect"),
        "revocation_endpoint": format!("{issuer}/oauth/revoke"),
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
        "introspection_endpoint_auth_methods_supported": ["client_secret_basic"],
        "revocation_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
        "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
        "scopes_supported": scopes,
        "authorization_details_types_supported": [DETAILS_TYPE],
    }))
}

async fn token(
    State(server): Server,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let form = form(&body)?;
    let client = server.client(&headers, &form)?;
    if matches!(client.kind, ClientKind::Gateway) {
        return Err(Refused::RIGHT);
    }
    server.check_resource(form.only("resource"))?;
    let tokens = match &*required(&form, "grant_type")? {
        "authorization_code" => {
            let redemption = Redemption {
                client_id: client.id.clone(),
                code: required(&form, "code")?,
                redirect_uri: required(&form, "redirect_uri")?,
                verifier: required(&form, "code_verifier")?,
            };
            // RFC 7636 §4.1: a shorter one could be guessed.
            if !(43..=128).contains(&redemption.verifier.len()) {
                return Err(Refused::bad(
                    "invalid_request",
                    "code_verifier has to be 43 to 128 characters",
                ));
            }
            server.redeem(redemption).await?
        }
        "refresh_token" => {
            let token = required(&form, "refresh_token")?;
            server.refresh(client.id.clone(), token).await?
        }
        "client_credentials" if client.secret.is_none() => return Err(Refused::RIGHT),
        "client_credentials" => {
            let token = server.own_token(client.id.clone()).await?;
            let body = json!({
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": ACCESS_SECONDS,
                // None, whatever was asked for: a client takes what is left out for granted (RFC 6749 §5.1).
                "scope": "",
            });
            return Ok((NO_STORE, Json(body)).into_response());
        }
        _ => {
            return Err(Refused::bad(
                "unsupported_grant_type",
                "use authorization_code, refresh_token or client_credentials",
            ));
        }
    };
    let (tokens, granted) = tokens.ok_or(Refused::GRANT)?;
    Ok(server.granted(&tokens, &granted))
}

async fn introspect(
    State(server): Server,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let form = form(&body)?;
    let client = server.client(&headers, &form)?;
    if !matches!(client.kind, ClientKind::Gateway) {
        return Err(Refused::RIGHT);
    }
    let token = required(&form, "token")?;
    let said = server.kept().introspection(&token, server.clock.now());
    Ok((NO_STORE, Json(said)).into_response())
}

async fn revoke(
    State(server): Server,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let form = form(&body)?;
    let client = server.client(&headers, &form)?;
    let token = required(&form, "token")?;
    if !server.revoke_token(client.id.clone(), token).await? {
        return Err(Refused::RIGHT);
    }
    Ok((StatusCode::OK, NO_STORE).into_response())
}
