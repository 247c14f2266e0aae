//! The routes of the authorization server.

use std::{collections::HashMap, sync::Arc};

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
use tower_rctp::{protocol::grant::DETAILS_TYPE, wire::digest::sha256};

use super::{ACCESS_SECONDS, Authorization, Client, Error};

/// No request here is larger.
const BODY_LIMIT: usize = 16 * 1024;

impl Authorization {
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
    const GRANT: Self = Self::bad(
        "invalid_grant",
        "the refresh token is unknown, used, or of a grant that has ended",
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
    match form.get("grant_type")? {
        "client_credentials" => {
            let token = server.own_token(client.id.clone()).await?;
            let body = json!({
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": ACCESS_SECONDS,
            });
            Ok((NO_STORE, Json(body)).into_response())
        }
        "refresh_token" => {
            let token = form.get("refresh_token")?;
            let renewed = server.refresh(client.id.clone(), token).await?;
            let (tokens, granted) = renewed.ok_or(Refused::GRANT)?;
            let body = json!({
                "access_token": tokens.access_token,
                "token_type": "Bearer",
                "expires_in": server.clock.now().until(tokens.access_expires_at),
                "refresh_token": tokens.refresh_token,
                "scope": granted.scope(),
                "authorization_details": [granted.details()],
            });
            Ok((NO_STORE, Json(body)).into_response())
        }
        _ => Err(Refused::bad(
            "unsupported_grant_type",
            "use client_credentials or refresh_token",
        )),
    }
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

async fn revoke(
    State(server): Server,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let client = server.client(&headers)?;
    let form = Form::read(&body)?;
    if !server.revoke(client.id.clone(), form.get("token")?).await? {
        return Err(Refused::RIGHT);
    }
    Ok((StatusCode::OK, NO_STORE).into_response())
}
