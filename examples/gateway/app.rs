//! Puts the gateway together: RCTP, its routes, and what runs beside them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Request, State},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, header};
use serde_json::json;
use tokio::{sync::oneshot, task::JoinHandle};
use tower_rctp::{
    Rctp, RctpBuilder,
    layer::{
        authenticate::operators::{Operator, Replaced},
        context::SystemClock,
        grant::introspection::Introspection,
    },
    protocol::refusal::Refusal,
    service::{
        approvals::Approvals, pages::Pages, session::Sessions, tools::Mcp, webhooks::Webhooks,
    },
    store::{MemoryStore, SqliteStore, Store},
    wire::jwk::SigningKey,
};

use super::{
    Cli, Config, DevWorld,
    authorization::{Authorization, Client, ClientKind, Settings},
    config::Capacity,
    dev, files, limits,
    metrics::{Metrics, observe},
    serve::{self, Server},
};

/// How long a request may take as a whole, its body included.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long the store may take to say that it is well.
const HEALTH: Duration = Duration::from_secs(5);
/// How often what is kept no longer is forgotten.
const SWEEP: Duration = Duration::from_secs(60);

/// What models are told of the tools as a whole.
const TO_MODELS: &str = "Buys and sells on a marketplace for people. Every result says a decision: `auto` was carried out; \
    `ask` waits for the seller, who approves at `hosted_url`, so poll get_approval; an error with a reason was refused, and \
    retrying it unchanged will not help.";

/// The gateway cannot start; says which setting is wrong and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    /// A setting is wrong.
    pub fn setting(name: &str, what: impl std::fmt::Display) -> Self {
        Self(format!("{name}: {what}"))
    }
}

/// A gateway at work.
pub struct Running {
    /// The settings in force.
    config: Config,
    metrics: Arc<Metrics>,
    /// Where it listens.
    pub address: SocketAddr,
    /// A handle to its layers, store and record.
    pub rctp: Rctp,
    /// The development world, unless this is production.
    pub world: Option<DevWorld>,
    /// The development world's.
    pub authorization: Option<Arc<Authorization>>,
    server: Server,
    inner_door: Option<Server>,
    sweeper: JoinHandle<()>,
    deliverer: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Running {
    /// Takes over the operators of these settings. The rest of them needs a restart; names what differs from the settings
    /// in force.
    ///
    /// # Errors
    /// When these settings would not start a gateway; those in force stay.
    pub fn reload(&mut self, config: Config) -> Result<(Replaced, Vec<&'static str>), Error> {
        check(&config)?;
        let operators = config.operators();
        let operators = match &self.world {
            Some(world) => world.agents.onboard(operators),
            None => operators,
        };
        let onboarded = operators.iter().count();
        let replaced = self.rctp.replace_operators(operators);
        let replaced = replaced.map_err(|e| Error(e.to_string()))?;
        self.metrics.onboarded(onboarded);
        let ignored = self.config.differs(&config);
        self.config.operators = config.operators;
        Ok((replaced, ignored))
    }

    /// Reads the settings again, and tells the log what came of it.
    pub fn reload_from(&mut self, cli: &Cli) {
        let reloaded = cli.config().and_then(|config| self.reload(config));
        self.metrics.reloaded(reloaded.is_ok());
        let (replaced, ignored) = match reloaded {
            Ok(reloaded) => reloaded,
            Err(error) => {
                tracing::error!(%error, "not reloaded: the settings in force stay");
                return;
            }
        };
        if !ignored.is_empty() {
            let settings = ignored.join(", ");
            tracing::warn!(settings, "ignored: these settings need a restart");
        }
        let Replaced {
            added,
            changed,
            removed,
            ..
        } = replaced;
        tracing::info!(
            ?added,
            ?changed,
            ?removed,
            "reloaded: {} operators added, {} changed, {} removed",
            added.len(),
            changed.len(),
            removed.len()
        );
    }

    /// Takes no more connections, waits for the requests in progress (with a deadline), and ends.
    pub async fn stop(self) {
        self.server.stop().await;
        if let Some((stop, deliverer)) = self.deliverer {
            // What is being tried is tried to its end; the rest waits in the store.
            let _ = stop.send(());
            if let Err(error) = deliverer.await {
                tracing::error!(%error, "the delivery of webhooks broke off");
            }
        }
        // Requests in progress still ask the authorization server, so it goes last.
        if let Some(door) = self.inner_door {
            door.stop().await;
        }
        self.sweeper.abort();
    }
}

/// Starts a gateway in this process.
pub async fn start(config: Config) -> Result<Running, Error> {
    start_with(config, None).await
}

/// Starts a gateway in this process, with a login of the marketplace's own.
pub async fn start_with(
    config: Config,
    sessions: Option<Arc<dyn Sessions>>,
) -> Result<Running, Error> {
    // First, so that wrong settings leave nothing behind.
    check(&config)?;
    let listener = serve::bind(config.address()?).await?;
    let address = listener
        .local_addr()
        .map_err(|e| Error::setting("listen", e))?;
    let public_url = match &config.public_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        // Browsers allow passkeys to `localhost`, and to no IP address.
        None if config.dev => format!("http://localhost:{}", address.port()),
        None => format!("http://{address}"),
    };
    let store = SqliteStore::open(&config.store)
        .await
        .map_err(|e| Error::setting("store", e))?;
    let key = files::signing_key(&config.signing_key, "signing_key")?;
    let builder = builder(&config, &public_url)?.store(store).signing_key(key);
    let Assembled {
        rctp,
        issuer,
        routes,
        world,
        authorization,
        inner_door,
    } = match config.dev {
        true => development(&config, address, public_url, builder, sessions).await?,
        false => production(&config, builder)?,
    };
    let metrics = Metrics::new();
    let deliverer = match config.webhooks.enabled {
        true => Some(deliver(&config, &rctp, metrics.clone())?),
        false => None,
    };
    let app = router(&rctp, &issuer, &config.server, metrics.clone(), routes);
    let sweeper = tokio::spawn(sweep(rctp.clone()));
    metrics.onboarded(match &world {
        Some(world) => world.agents.onboard(config.operators()).iter().count(),
        None => config.operators.len(),
    });
    Ok(Running {
        config,
        metrics,
        address,
        rctp,
        world,
        authorization,
        server: Server::start(listener, app),
        inner_door,
        sweeper,
        deliverer,
    })
}

/// Whether a gateway could be put together from these settings; starts and writes nothing.
pub fn check(config: &Config) -> Result<(), Error> {
    aside(config, MemoryStore::default()).map(drop)
}

/// RCTP over this store, to look into it or to write there beside the gateway; it serves nobody.
pub fn aside(config: &Config, store: impl Store) -> Result<Rctp, Error> {
    config.check()?;
    let key = match config.signing_key.exists() {
        true => files::signing_key(&config.signing_key, "signing_key")?,
        // It is made on the first start.
        false => SigningKey::generate().map_err(|e| Error::setting("signing_key", e))?,
    };
    let url = format!("http://{}", config.listen);
    let mut builder = builder(config, config.public_url.as_deref().unwrap_or(&url))?
        .store(store)
        .signing_key(key);
    builder = if config.dev {
        let endpoint = Introspection::endpoint(url.clone()).client_secret_basic("gateway", "-");
        builder
            .operators(config.operators().with(Operator::new(url)))
            .introspection(endpoint)
    } else {
        match approvals(config) {
            Some(approvals) => builder.approvals(approvals),
            None => builder,
        }
        .introspection(introspection(config)?.1)
    };
    build(builder)
}

/// What the settings say of RCTP itself.
fn builder(config: &Config, public_url: &str) -> Result<RctpBuilder, Error> {
    let former = files::public_keys(&config.former_keys, "former_keys")?;
    let builder = Rctp::builder()
        .public_url(public_url)
        .dev(config.dev)
        .mechanisms(config.mechanisms())
        .operators(config.operators())
        .term_sets(&config.term_sets)
        .tiers(config.tiers.clone())
        .offer_budget(config.offer_budget.clone())
        .offer_expiry(config.offer_expiry.clone())
        .limits(config.limits.clone())
        .mcp(Mcp::builder("tower-rctp-gateway", env!("CARGO_PKG_VERSION")).instructions(TO_MODELS))
        .webhooks(config.webhooks.enabled);
    Ok(former.into_iter().fold(builder, RctpBuilder::former_key))
}

fn build(builder: RctpBuilder) -> Result<Rctp, Error> {
    builder.build().map_err(|e| Error(e.to_string()))
}

/// The issuer, and where grants are introspected.
fn introspection(config: &Config) -> Result<(String, Introspection), Error> {
    let server = config
        .authorization_server
        .as_ref()
        .ok_or_else(|| Error::setting("authorization_server", "is missing"))?;
    let secret = config.client_secret()?;
    let endpoint = Introspection::endpoint(&*server.introspection_endpoint)
        .client_secret_basic(&*server.client_id, secret.reveal());
    Ok((server.issuer.clone(), endpoint))
}

/// The seller's pages; their tickets come from the authorization server.
fn approvals(config: &Config) -> Option<Approvals> {
    let settings = config.approvals.as_ref()?;
    Some(Approvals::new(&*settings.marketplace).introspected_tickets())
}

/// RCTP, and what goes with it.
struct Assembled {
    rctp: Rctp,
    /// Of the authorization server.
    issuer: String,
    routes: Routes,
    world: Option<DevWorld>,
    authorization: Option<Arc<Authorization>>,
    inner_door: Option<Server>,
}

/// Routes beside those that every gateway has.
#[derive(Default)]
pub struct Routes {
    /// Within the limits.
    within: Router,
    /// Beside them. The development world's: the gateway fetches profiles there itself, while it works on a request.
    beside: Router,
}

fn production(config: &Config, mut builder: RctpBuilder) -> Result<Assembled, Error> {
    let (issuer, introspection) = introspection(config)?;
    if let Some(approvals) = approvals(config) {
        builder = builder.approvals(approvals);
    }
    Ok(Assembled {
        rctp: build(builder.introspection(introspection))?,
        issuer,
        routes: Routes::default(),
        world: None,
        authorization: None,
        inner_door: None,
    })
}

async fn development(
    config: &Config,
    address: SocketAddr,
    issuer: String,
    builder: RctpBuilder,
    sessions: Option<Arc<dyn Sessions>>,
) -> Result<Assembled, Error> {
    let made = dev::Made::open(&config.dev_dir, address)?;
    let (id, secret) = ("gateway", files::random()?);
    let gateway = Client {
        id: id.into(),
        secret: Some(secret.clone()),
        kind: ClientKind::Gateway,
    };
    // The gateway asks over HTTP, as in production, but through a door of its own: one that its callers cannot fill,
    // and that is still open while the last requests are completed.
    let door = serve::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let inner = door
        .local_addr()
        .map_err(|e| Error(format!("the inner door has no address: {e}")))?;
    let introspection = Introspection::endpoint(format!("http://{inner}/oauth/introspect"))
        .client_secret_basic(id, secret);
    let [by_address, by_name] = dev::hosts(address);
    let mut clients = made.clients();
    clients.push(gateway);
    let authorization = Authorization::open(Settings {
        file: made.authorization_file(),
        issuer: issuer.clone(),
        tiers: config.tiers.clone(),
        clients,
        clock: Arc::new(SystemClock),
    })?;
    let rctp = build(
        builder
            .authority(by_address)
            .authority(by_name)
            .operators(made.onboard(config.operators()))
            .introspection(introspection)
            .approvals(Approvals::new("Demo marketplace").tickets(authorization.clone())),
    )?;
    let pages = rctp.pages().cloned();
    let pages = pages.ok_or_else(|| Error("the hosted pages are missing".into()))?;
    let sessions = sessions.unwrap_or_else(|| Arc::new(pages.clone()));
    let world = made.settle(&rctp, &authorization).await?;
    let routes = Routes {
        within: authorization.router(sessions, pages),
        beside: dev::router(
            world.clone(),
            rctp.clone(),
            authorization.clone(),
            address,
            config.webhooks.dev_url.clone(),
        ),
    };
    Ok(Assembled {
        rctp,
        issuer,
        routes,
        world: Some(world),
        inner_door: Some(Server::start(door, authorization.introspection_router())),
        authorization: Some(authorization),
    })
}

/// All routes: those for the marketplace's own machines, then, within the limits, RCTP's behind its layers, then ours,
/// then 404.
pub fn router(
    rctp: &Rctp,
    issuer: &str,
    capacity: &Capacity,
    metrics: Arc<Metrics>,
    routes: Routes,
) -> Router {
    let app = Router::new()
        .merge(rctp.discovery(issuer).router())
        .merge(rctp.pages().map(Pages::router).unwrap_or_default())
        .merge(routes.within)
        .fallback_service(rctp.market());
    let app = rctp.protect(app).layer(from_fn(within_the_deadline));
    Router::new()
        .route("/health", get(health).with_state(rctp.clone()))
        .route("/metrics", get(numbers).with_state(metrics.clone()))
        .merge(routes.beside)
        .fallback_service(limits::within(capacity, &metrics, app))
        .layer(from_fn_with_state(metrics, observe))
}

async fn health(State(rctp): State<Rctp>) -> Response {
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    let error = match tokio::time::timeout(HEALTH, rctp.store().health()).await {
        Ok(Ok(())) => return (no_store, Json(json!({"status": "ok"}))).into_response(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the store did not answer in time".to_owned(),
    };
    tracing::error!(error, "the health check failed");
    let body = json!({"status": "unavailable", "failed": "store"});
    (StatusCode::SERVICE_UNAVAILABLE, no_store, Json(body)).into_response()
}

async fn numbers(State(metrics): State<Arc<Metrics>>) -> Response {
    const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn within_the_deadline(request: Request, next: Next) -> Response {
    match tokio::time::timeout(DEADLINE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refusal::unavailable(
            "the request took too long; repeat it with the same Idempotency-Key to learn what became of it",
        )
        .into_response(),
    }
}

/// Tells operators, until it is stopped.
fn deliver(
    config: &Config,
    rctp: &Rctp,
    metrics: Arc<Metrics>,
) -> Result<(oneshot::Sender<()>, JoinHandle<()>), Error> {
    let settings = Webhooks::default()
        .concurrency(config.webhooks.receivers_at_once)
        .timeout(Duration::from_secs(config.webhooks.timeout_seconds))
        .observe(move |delivery| metrics.delivery(delivery));
    let deliverer = rctp.webhooks(settings).map_err(|e| Error(e.to_string()))?;
    let (stop, stopped) = oneshot::channel();
    let stopped = async move {
        // Dropped without a word, it stops too.
        let _ = stopped.await;
    };
    Ok((stop, tokio::spawn(deliverer.run(stopped))))
}

async fn sweep(rctp: Rctp) {
    let mut minute = tokio::time::interval(SWEEP);
    loop {
        minute.tick().await;
        match rctp.sweep().await {
            Ok(0) => {}
            Ok(forgotten) => tracing::debug!(forgotten, "swept"),
            Err(error) => tracing::error!(%error, "the sweep failed"),
        }
    }
}
