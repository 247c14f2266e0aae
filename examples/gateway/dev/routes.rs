//! The routes of the development world.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_rctp::{
    Rctp,
    layer::context::{Clock, SystemClock},
    protocol::{
        UCP_VERSION, VERSION,
        operation::is_id,
        policy::Tier,
        record::{Subject, SubjectKind},
        refusal::Refusal,
    },
    wire::digest::sha256,
};

use super::authorization::{Authorization, TICKET_SECONDS, Tokens};
use super::{
    DevAgent, DevWorld, Error,
    seller::{NewListing, granted, publish},
};

/// What the routes need.
struct Served {
    world: DevWorld,
    rctp: Rctp,
    authorization: Arc<Authorization>,
    /// How the gateway may be addressed.
    hosts: [String; 2],
    /// The `webhook_url` of every profile.
    webhook_url: Option<String>,
}

type Dev = State<Arc<Served>>;

/// The routes, for a gateway at `address`.
pub fn router(
    world: DevWorld,
    rctp: Rctp,
    authorization: Arc<Authorization>,
    address: SocketAddr,
    webhook_url: Option<String>,
) -> Router {
    let served = Arc::new(Served {
        world,
        rctp,
        authorization,
        hosts: hosts(address),
        webhook_url,
    });
    let sellers = Router::new()
        .route("/dev/listings", post(new_listing))
        .route("/dev/grants", post(new_grant))
        .route("/dev/enrolments", post(new_enrolment))
        .route_layer(from_fn_with_state(served.clone(), knows_the_secret));
    Router::new()
        .route("/dev/profiles/{name}", get(profile))
        .route("/dev/record/{kind}/{id}", get(record))
        .merge(sellers)
        .layer(from_fn_with_state(served.clone(), addressed_as_loopback))
        .with_state(served)
}

/// The names under which a gateway on loopback may be addressed.
pub fn hosts(address: SocketAddr) -> [String; 2] {
    [address.to_string(), format!("localhost:{}", address.port())]
}

async fn addressed_as_loopback(State(dev): Dev, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    if host.is_some_and(|host| dev.hosts.iter().any(|ours| host == ours.as_str())) {
        next.run(request).await
    } else {
        Refusal::not_found().into_response()
    }
}

async fn profile(State(dev): Dev, Path(name): Path<String>) -> Result<Json<Value>, Refusal> {
    let agents = dev.world.agents.named();
    let agent = agents.into_iter().find(|(ours, _)| *ours == name);
    let (name, agent) = agent.ok_or_else(Refusal::not_found)?;
    let mut document = document(name, agent);
    if let Some(url) = &dev.webhook_url {
        document["ucp"]["capabilities"]["dev.rctp.deal"] =
            json!([{"version": VERSION, "config": {"webhook_url": url}}]);
    }
    Ok(Json(document))
}

pub(super) fn legal_entity(name: &str) -> String {
    format!("The {name} of the development world")
}

/// An operator's profile (binding 1).
fn document(name: &str, agent: &DevAgent) -> Value {
    json!({
        "ucp": {
            "version": UCP_VERSION,
            "services": {},
            "payment_handlers": {},
            "capabilities": {
                "dev.rctp.operator": [{"version": VERSION, "config": {
                    "legal_entity": legal_entity(name),
                    "jurisdiction": "CH",
                    "incident_contact": format!("{name}@localhost"),
                    "incident_sla_hours": 24,
                }}],
            },
        },
        "keys": [agent.key.public_jwk()],
    })
}

async fn record(
    State(dev): Dev,
    Path((kind, id)): Path<(String, String)>,
) -> Result<Json<Value>, Refusal> {
    let kind = SubjectKind::deserialize(Value::String(kind)).map_err(|_| Refusal::not_found())?;
    let subject = match kind {
        SubjectKind::Gateway => dev.rctp.gateway_subject(),
        _ => Subject::new(kind, id),
    };
    let entries = dev.rctp.record(&subject).await.map_err(failed)?;
    if entries.is_empty() {
        return Err(Refusal::not_found());
    }
    Ok(Json(json!({ "entries": entries })))
}

async fn new_listing(State(dev): Dev, body: Bytes) -> Result<(StatusCode, Json<Value>), Refusal> {
    // Nothing of the parser's message: it might quote the floor.
    let new = serde_json::from_slice(&body)
        .ok()
        .filter(NewListing::is_valid)
        .ok_or_else(|| {
            Refusal::invalid(
                "the body is {\"floor\": {\"amount\", \"currency\"}}, with list_price and title where wanted; the \
                 floor is in the currency of the list price and no higher",
            )
        })?;
    let listing = publish(&dev.rctp, &dev.world.seller_sub, new).await;
    let view = listing.map_err(failed)?.view(SystemClock.now());
    Ok((StatusCode::CREATED, Json(view)))
}

/// The body of `POST /dev/grants`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NewGrant {
    tier: Tier,
    signed: bool,
}

impl Default for NewGrant {
    fn default() -> Self {
        Self {
            tier: Tier::Auto,
            signed: true,
        }
    }
}

async fn new_grant(State(dev): Dev, body: Bytes) -> Result<(StatusCode, Json<Tokens>), Refusal> {
    let new: NewGrant = match &*body {
        [] => NewGrant::default(),
        body => serde_json::from_slice(body).map_err(|e| {
            Refusal::invalid(format!(
                "the body is {{\"tier\": \"auto\" or \"ask\", \"signed\": true or false}}: {e}"
            ))
        })?,
    };
    let DevWorld {
        seller_sub, agents, ..
    } = &dev.world;
    let granted = granted(seller_sub, &agents.seller, new.tier, new.signed);
    let tokens = dev.authorization.grant(granted).await.map_err(failed)?;
    Ok((StatusCode::CREATED, Json(tokens)))
}

/// A link with which the seller enrols a passkey. The ticket is in the fragment, which browsers send to nobody.
pub async fn enrolment(authorization: &Arc<Authorization>, seller: &str) -> Result<String, Error> {
    let ticket = authorization.enrol_ticket(seller).await?;
    Ok(format!("{}/enroll#ticket={ticket}", authorization.issuer()))
}

/// The body of `POST /dev/enrolments`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NewEnrolment {
    seller: Option<String>,
}

async fn new_enrolment(State(dev): Dev, body: Bytes) -> Result<(StatusCode, Json<Value>), Refusal> {
    let new: NewEnrolment = match &*body {
        [] => NewEnrolment::default(),
        body => serde_json::from_slice(body).map_err(|e| {
            Refusal::invalid(format!(
                "the body is {{\"seller\": \"sub_…\"}}, or empty: {e}"
            ))
        })?,
    };
    let seller = new.seller.as_deref().unwrap_or(&dev.world.seller_sub);
    if !(seller.starts_with("sub_") && is_id(seller)) {
        return Err(Refusal::invalid(
            "seller is sub_ and up to 64 letters, digits, - or _",
        ));
    }
    let url = enrolment(&dev.authorization, seller).await;
    let body = json!({"url": url.map_err(failed)?, "expires_in": TICKET_SECONDS});
    Ok((StatusCode::CREATED, Json(body)))
}

async fn knows_the_secret(State(dev): Dev, request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    // Digests are compared, so that the time taken says nothing of the secret.
    let secret = sha256(dev.world.secret.as_bytes());
    if given.is_some_and(|given| sha256(given.as_bytes()) == secret) {
        return next.run(request).await;
    }
    let body = json!({
        "error": "unauthorized",
        "message": "send the secret of world.json as Authorization: Bearer",
    });
    (StatusCode::UNAUTHORIZED, Json(body)).into_response()
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    tracing::error!(%error, "a development route could not answer");
    Refusal::unavailable("the store did not answer")
}
