//! The settings: defaults, then the file, then the environment, then the command line.

use std::{fs, net::SocketAddr, path::PathBuf};

use clap::{Parser, ValueEnum};
use serde::Deserialize;
use tower_rctp::{
    layer::authenticate::{
        Mechanisms,
        operators::{Operator, Operators},
    },
    protocol::{
        caller::Role,
        policy::{Limits, OfferBudget, OfferExpiry, Tiers},
    },
};

use super::{Error, dead_letters::Order, files::Secret};

/// Holds the gateway's secret at the introspection endpoint, in place of a file.
pub const CLIENT_SECRET: &str = "RCTP_CLIENT_SECRET";

/// A marketplace that agents can use: RCTP over HTTP.
///
/// Without --config a development world is made: a listing, two agents, and grants to use. Everything it needs is
/// generated on the first start and kept in --dev-dir.
#[derive(Debug, Parser)]
#[command(name = "gateway", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// The settings, in TOML; examples/gateway/gateway.toml documents them all.
    #[arg(long, value_name = "FILE", env = "RCTP_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS:PORT", env = "RCTP_LISTEN")]
    pub listen: Option<String>,
    /// The URL that agents use.
    #[arg(long, value_name = "URL", env = "RCTP_PUBLIC_URL")]
    pub public_url: Option<String>,
    /// The SQLite file that holds all state [default: rctp.db].
    #[arg(long, value_name = "FILE", env = "RCTP_STORE")]
    pub store: Option<PathBuf>,
    /// The gateway's private key, made on the first start [default: rctp-key.pem].
    #[arg(long, value_name = "FILE", env = "RCTP_SIGNING_KEY")]
    pub signing_key: Option<PathBuf>,
    /// Whether this is a development world; without --config it is.
    #[arg(long, value_name = "true|false", env = "RCTP_DEV")]
    pub dev: Option<bool>,
    /// Where the development world keeps its keys and secrets [default: rctp-dev].
    #[arg(long, value_name = "DIRECTORY", env = "RCTP_DEV_DIR")]
    pub dev_dir: Option<PathBuf>,
    /// Where the development world's operators want to be told of changes.
    #[arg(long, value_name = "URL", env = "RCTP_DEV_WEBHOOK_URL")]
    pub dev_webhook_url: Option<String>,
    /// How log lines are written.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "RCTP_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
    /// What is logged: a level, or directives such as `info,tower_rctp=debug`.
    #[arg(long, value_name = "FILTER", env = "RCTP_LOG", default_value = "info")]
    pub log: String,
    /// Check the settings and exit; nothing is started or written.
    #[arg(long)]
    pub check: bool,
    /// List the webhooks that could not be delivered, and exit.
    #[arg(long, group = "order")]
    pub dead_letters: bool,
    /// Send one of them again, or all, and exit; a running gateway does it within seconds.
    #[arg(long, value_name = "EVENT_ID|all", group = "order")]
    pub resend: Option<String>,
    /// Throw one of them away, and exit.
    #[arg(long, value_name = "EVENT_ID", group = "order")]
    pub discard: Option<String>,
}

const AFTER_HELP: &str = "\
Every option can also be set in the environment, under the name shown with it. RCTP_CLIENT_SECRET holds the gateway's \
secret at the introspection endpoint, unless a file does.

SIGHUP reads --config again: operators that were added, changed or removed are so from the next request on. Other \
settings need a restart.

Try:
  cargo run --example gateway
  curl http://127.0.0.1:8080/health";

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Cli {
    /// What to do with dead letters, instead of serving.
    pub fn order(&self) -> Option<Order> {
        let resend = || self.resend.clone().map(Order::Resend);
        let discard = || self.discard.clone().map(Order::Discard);
        let list = self.dead_letters.then_some(Order::List);
        list.or_else(resend).or_else(discard)
    }

    /// The settings that this command line, the environment and the file come to; `start` and `check` check them.
    pub fn config(&self) -> Result<Config, Error> {
        let mut config = match &self.config {
            Some(path) => {
                let text = fs::read_to_string(path)
                    .map_err(|e| Error(format!("--config: {}: {e}", path.display())))?;
                Config::parse(&text).map_err(|e| Error(format!("{}: {e}", path.display())))?
            }
            None => Config::dev(),
        };
        fn set<T: Clone>(setting: &mut T, given: &Option<T>) {
            if let Some(given) = given {
                *setting = given.clone();
            }
        }
        set(&mut config.listen, &self.listen);
        set(&mut config.store, &self.store);
        set(&mut config.signing_key, &self.signing_key);
        set(&mut config.dev, &self.dev);
        set(&mut config.dev_dir, &self.dev_dir);
        if self.public_url.is_some() {
            config.public_url.clone_from(&self.public_url);
        }
        if self.dev_webhook_url.is_some() {
            config.webhooks.dev_url.clone_from(&self.dev_webhook_url);
        }
        config.client_secret = std::env::var(CLIENT_SECRET)
            .ok()
            .filter(|secret| !secret.is_empty())
            .map(Secret::new);
        Ok(config)
    }
}

/// Every setting. `examples/gateway/gateway.toml` says what each is for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub listen: String,
    pub public_url: Option<String>,
    pub store: PathBuf,
    pub signing_key: PathBuf,
    pub former_keys: Vec<PathBuf>,
    pub dev: bool,
    pub dev_dir: PathBuf,
    pub mechanisms: Vec<Accepted>,
    pub term_sets: Vec<String>,
    pub tiers: Tiers,
    pub offer_budget: OfferBudget,
    pub offer_expiry: OfferExpiry,
    pub limits: Limits,
    pub operators: Vec<Onboarded>,
    pub authorization_server: Option<AuthorizationServer>,
    pub approvals: Option<HostedPages>,
    pub webhooks: Told,
    pub server: Capacity,
    pub telemetry: Exported,
    /// From the environment, never from the file.
    #[serde(skip)]
    pub client_secret: Option<Secret>,
}

/// A mechanism that this program accepts; API keys and client certificates need a registry in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accepted {
    HttpSignature,
    Oauth,
}

/// An operator whose agents may call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Onboarded {
    pub profile: String,
    #[serde(default)]
    pub clients: Vec<String>,
    #[serde(default)]
    pub roles: Vec<Role>,
}

/// The marketplace's authorization server.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthorizationServer {
    pub issuer: String,
    pub introspection_endpoint: String,
    pub client_id: String,
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
}

/// The pages on which sellers approve. Without them, what is parked can only expire.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostedPages {
    /// The name that the pages and passkeys show.
    pub marketplace: String,
}

/// How operators are told of changes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Told {
    pub enabled: bool,
    pub receivers_at_once: usize,
    pub timeout_seconds: u64,
    pub dev_url: Option<String>,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            enabled: true,
            receivers_at_once: 16,
            timeout_seconds: 5,
            dev_url: None,
        }
    }
}

/// How much is taken at once.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Capacity {
    pub concurrent_requests: u32,
    /// 0: as many as come.
    pub requests_per_second: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            concurrent_requests: 512,
            requests_per_second: 0,
        }
    }
}

/// Where spans go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exported {
    /// Empty: where the environment says, or nowhere.
    pub otlp_endpoint: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            public_url: None,
            store: "rctp.db".into(),
            signing_key: "rctp-key.pem".into(),
            former_keys: Vec::new(),
            dev: false,
            dev_dir: "rctp-dev".into(),
            mechanisms: vec![Accepted::HttpSignature, Accepted::Oauth],
            term_sets: vec!["goods-1".into()],
            tiers: Tiers::default(),
            offer_budget: OfferBudget::default(),
            offer_expiry: OfferExpiry::default(),
            limits: Limits::default(),
            operators: Vec::new(),
            authorization_server: None,
            approvals: None,
            webhooks: Told::default(),
            server: Capacity::default(),
            telemetry: Exported::default(),
            client_secret: None,
        }
    }
}

impl Config {
    /// What holds without a settings file: a development world in the working directory.
    pub fn dev() -> Self {
        Self {
            dev: true,
            ..Self::default()
        }
    }

    /// A development world that keeps everything in `directory` and listens on a free port.
    pub fn dev_in(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self {
            listen: "127.0.0.1:0".into(),
            store: directory.join("rctp.db"),
            signing_key: directory.join("rctp-key.pem"),
            dev_dir: directory.join("rctp-dev"),
            ..Self::dev()
        }
    }

    /// Reads a settings file. Errors name the setting and never quote the file, which may hold a secret by mistake.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let line = |error: &toml::de::Error| match error.span() {
            Some(span) => format!("line {}: ", text[..span.start].matches('\n').count() + 1),
            None => String::new(),
        };
        let file = toml::Deserializer::parse(text)
            .map_err(|e| Error(format!("{}{}", line(&e), e.message())))?;
        serde_path_to_error::deserialize(file).map_err(|error| {
            let (path, error) = (error.path().to_string(), error.into_inner());
            Error(format!("{}{path}: {}", line(&error), error.message()))
        })
    }

    /// The settings, but for `operators`, that differ in `other`, by name: those that need a restart.
    pub fn differs(&self, other: &Self) -> Vec<&'static str> {
        // Taken apart, so that a new setting is not forgotten here.
        macro_rules! differ {
            ($($setting:ident),*) => {{
                let Self { operators: _, $($setting),* } = self;
                let pairs = [$((stringify!($setting), *$setting != other.$setting)),*];
                pairs.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
            }};
        }
        differ!(
            listen,
            public_url,
            store,
            signing_key,
            former_keys,
            dev,
            dev_dir,
            mechanisms,
            term_sets,
            tiers,
            offer_budget,
            offer_expiry,
            limits,
            authorization_server,
            approvals,
            webhooks,
            server,
            telemetry,
            client_secret
        )
    }

    /// Where to listen.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.listen.parse().map_err(|_| {
            Error::setting(
                "listen",
                format!(
                    "`{}` is no address with a port; write 127.0.0.1:8080",
                    self.listen
                ),
            )
        })
    }

    /// What this program asks of the settings beyond what RCTP itself does.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(url) = &self.webhooks.dev_url {
            let name = "webhooks.dev_url";
            if !self.dev {
                let why = "is for a development world; operators say in their profile where they want to be told";
                return Err(Error::setting(name, why));
            }
            if !url.parse::<url::Url>().is_ok_and(|url| url.has_host()) {
                let why = format!("`{url}` is not an absolute URL such as http://127.0.0.1:9000/");
                return Err(Error::setting(name, why));
            }
        }
        let address = self.address()?;
        match (&self.public_url, self.dev) {
            (None, false) => {
                return Err(Error::setting(
                    "public_url",
                    "is missing; write the https URL that agents use, or dev = true for a development world",
                ));
            }
            (Some(text), dev) => {
                let url = url::Url::parse(text).map_err(|e| {
                    Error::setting("public_url", format!("`{text}` is no URL: {e}"))
                })?;
                if url.scheme() != "https" && !dev {
                    return Err(Error::setting(
                        "public_url",
                        format!(
                            "`{text}` is not https; a proxy in front ends TLS, and agents use its URL"
                        ),
                    ));
                }
                if url.path() != "/" {
                    return Err(Error::setting(
                        "public_url",
                        format!(
                            "`{text}` has a path; write scheme and host only: this program serves at the root"
                        ),
                    ));
                }
            }
            (None, true) => {}
        }
        if self.mechanisms.is_empty() {
            return Err(Error::setting(
                "mechanisms",
                "is empty; write at least one of \"http_signature\" and \"oauth\"",
            ));
        }
        match (&self.authorization_server, self.dev) {
            (Some(_), true) => {
                return Err(Error::setting(
                    "authorization_server",
                    "a development world brings its own; remove the table, or write dev = false",
                ));
            }
            (None, false) => {
                return Err(Error::setting(
                    "authorization_server",
                    "is missing; write the table with issuer, introspection_endpoint, client_id and client_secret_file",
                ));
            }
            (Some(server), false) => server.check()?,
            (None, true) => {}
        }
        if self.dev && !address.ip().is_loopback() {
            return Err(Error::setting(
                "listen",
                format!(
                    "a development world listens on loopback only, and {} is not; write 127.0.0.1:{}, or dev = false",
                    address.ip(),
                    address.port()
                ),
            ));
        }
        let mut profiles = std::collections::HashSet::new();
        if let Some(twice) = self.operators.iter().find(|o| !profiles.insert(&o.profile)) {
            return Err(Error::setting(
                "operators",
                format!(
                    "`{}` is there twice; write one [[operators]] with all of its clients and roles",
                    twice.profile
                ),
            ));
        }
        if self.webhooks.receivers_at_once == 0 {
            return Err(Error::setting(
                "webhooks.receivers_at_once",
                "is 0; write at least 1, or enabled = false",
            ));
        }
        if !(1..=60).contains(&self.webhooks.timeout_seconds) {
            return Err(Error::setting(
                "webhooks.timeout_seconds",
                "must be 1 to 60: receivers refuse what is more than 300 s old",
            ));
        }
        if self.server.concurrent_requests == 0 {
            return Err(Error::setting(
                "server.concurrent_requests",
                "is 0; write at least 1",
            ));
        }
        self.telemetry.check()?;
        if !self.dev && self.operators.is_empty() {
            return Err(Error::setting(
                "operators",
                "none is onboarded; add [[operators]] with profile = \"https://…/.well-known/ucp\"",
            ));
        }
        Ok(())
    }

    /// The mechanisms, as RCTP takes them.
    pub fn mechanisms(&self) -> Mechanisms {
        self.mechanisms
            .iter()
            .fold(Mechanisms::none(), |all, accepted| match accepted {
                Accepted::HttpSignature => all.http_signature(),
                Accepted::Oauth => all.oauth(),
            })
    }

    /// The operators, as RCTP takes them.
    pub fn operators(&self) -> Operators {
        self.operators
            .iter()
            .fold(Operators::default(), |all, onboarded| {
                let mut operator = Operator::new(&*onboarded.profile);
                for client in &onboarded.clients {
                    operator = operator.client(client);
                }
                for role in &onboarded.roles {
                    operator = operator.role(*role);
                }
                all.with(operator)
            })
    }

    /// The gateway's secret at the introspection endpoint: from the environment, else from the file.
    pub fn client_secret(&self) -> Result<Secret, Error> {
        let setting = "authorization_server.client_secret_file";
        if let Some(secret) = &self.client_secret {
            return Ok(secret.clone());
        }
        let file = self
            .authorization_server
            .as_ref()
            .and_then(|server| server.client_secret_file.as_deref());
        let Some(path) = file else {
            return Err(Error::setting(
                setting,
                format!("is missing; name a file that holds the secret, or set {CLIENT_SECRET}"),
            ));
        };
        let text = fs::read_to_string(path)
            .map_err(|e| Error::setting(setting, format!("{}: {e}", path.display())))?;
        match text.trim() {
            "" => Err(Error::setting(
                setting,
                format!("{} is empty; write the secret into it", path.display()),
            )),
            secret => Ok(Secret::new(secret)),
        }
    }
}

impl Exported {
    fn check(&self) -> Result<(), Error> {
        const NAME: &str = "telemetry.otlp_endpoint";
        let text = &self.otlp_endpoint;
        let http = |url: url::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        if text.is_empty() {
            return Ok(());
        }
        if !url::Url::parse(text).is_ok_and(http) {
            let write = "is no http or https URL; write that of the collector, such as http://127.0.0.1:4318";
            return Err(Error::setting(NAME, write));
        }
        if !cfg!(feature = "otlp") {
            let write =
                "this program exports no spans; build it with --features otlp, or leave this out";
            return Err(Error::setting(NAME, write));
        }
        Ok(())
    }
}

impl AuthorizationServer {
    fn check(&self) -> Result<(), Error> {
        for (name, text) in [
            ("authorization_server.issuer", &self.issuer),
            (
                "authorization_server.introspection_endpoint",
                &self.introspection_endpoint,
            ),
        ] {
            let https = url::Url::parse(text).is_ok_and(|url| url.scheme() == "https");
            if !https {
                return Err(Error::setting(
                    name,
                    format!("`{text}` is no https URL; tokens travel there"),
                ));
            }
        }
        if self.client_id.is_empty() {
            return Err(Error::setting(
                "authorization_server.client_id",
                "is empty; write the gateway's client id at the authorization server",
            ));
        }
        Ok(())
    }
}
