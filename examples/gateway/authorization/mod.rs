//! The authorization server of the development world (binding 3.1–3.4).
//!
//! | route | what |
//! |---|---|
//! | `GET /.well-known/oauth-authorization-server` | metadata (RFC 8414) |
//! | `GET /oauth/authorize` | the consent page, for the code flow with PKCE and `authorization_details`, or `scope` alone |
//! | `GET`, `POST /oauth/consent` | what that page asks and says |
//! | `POST /oauth/token` | `authorization_code`, `refresh_token` with rotation, `client_credentials` |
//! | `POST /oauth/introspect` | RFC 7662, for the gateway alone, with `grant_status` for inactive tokens too |
//! | `POST /oauth/revoke` | RFC 7009 |
//! | `GET /grants`, `GET /grants/list`, `POST /grants/{id}/revoke` | the seller's grants |
//!
//! | file | what is in it |
//! |---|---|
//! | `request` | what an agent may ask of a seller, and what is wrong with a request |
//! | `kept` | grants, tokens and codes: how they come about and end |
//! | `routes` | what clients and the gateway call |
//! | `browser` | what the seller's browser calls; `pages` has the files |
//!
//! Clients are registered in code. One with a secret authenticates by `client_secret_basic`; one without is public, and
//! PKCE is what protects it. Codes, tokens and tickets are kept as SHA-256 digests, and everything that must outlive a
//! restart is in one file, which is replaced as a whole by each change and forgets what has ended.
//!
//! # A lost answer
//!
//! A refresh token works once, and there is no grace period in which it would work again: from here, a client that
//! repeats a refresh because the answer was lost looks just as a thief does. Its grant is revoked, as the binding says
//! (3.2), and the seller has to be asked again. A client should therefore refresh in one place, keep the answer before
//! it uses it, and not repeat a refresh whose outcome it does not know if it can wait: the access token that it has goes on
//! working until it expires. The same holds for a code.
//!
//! # Another login, another server
//!
//! Who the seller is, the hosted pages say, or a login of the marketplace's own:
//! [`Sessions`](tower_rctp::service::session::Sessions), given to [`start_with`](super::app::start_with).
//! In production this server is not there at all: `[authorization_server]` in the settings names the marketplace's own by
//! its issuer and its introspection endpoint, which has to answer as binding 3.3 says.

mod browser;
mod kept;
mod request;
mod routes;

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower_rctp::{
    layer::context::Clock,
    protocol::{
        grant::DETAILS_TYPE,
        policy::{Tier, Tiers},
        time::Timestamp,
    },
    service::enrolment::Tickets,
    store::{BoxFuture, StoreError},
};

use self::kept::{Code, Fresh, Grant, Kept, Redemption};
use super::{Error, files};

/// How long an access token lives, in seconds (binding 2.2).
pub const ACCESS_SECONDS: i64 = 900;
/// How long a grant lives unless the seller says otherwise, in days.
pub const GRANT_DAYS: i64 = 30;
/// How long a grant lives at most, in days (binding 3.2).
pub const MAX_GRANT_DAYS: i64 = 90;
/// How long a code lives, in seconds.
pub const CODE_SECONDS: i64 = 60;
/// How long an enrolment ticket lives, in seconds.
pub const TICKET_SECONDS: i64 = 600;

const DAY: i64 = 86_400;

/// A client of this server.
pub struct Client {
    pub id: String,
    /// `None` for a public client.
    pub secret: Option<String>,
    pub kind: ClientKind,
}

/// What a client may do.
pub enum ClientKind {
    /// Introspect, and nothing else.
    Gateway,
    /// Everything else.
    Agent(Registration),
}

/// What sellers are told of an agent's client, and where they are sent back to.
pub struct Registration {
    pub name: String,
    /// The operator's profile, for which the client acts (binding 2.2).
    pub operator: String,
    pub legal_entity: String,
    /// `https`, a private-use scheme, or `http` on loopback, where any port will do (RFC 8252 §7.3). Without one the
    /// client cannot ask sellers for anything.
    pub redirect_uris: Vec<String>,
}

impl Client {
    fn registration(&self) -> Option<&Registration> {
        match &self.kind {
            ClientKind::Gateway => None,
            ClientKind::Agent(registration) => Some(registration),
        }
    }
}

/// What a seller lets an agent do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    /// The seller's pairwise pseudonym.
    pub sub: String,
    pub client_id: String,
    /// The agent, as its client calls it.
    #[serde(default)]
    pub agent_id: String,
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

/// What the server is opened with.
pub struct Settings {
    /// Where it keeps what must outlive a restart; it may not exist yet.
    pub file: PathBuf,
    /// Its own URL, without a path. Pages are served there, and only there.
    pub issuer: String,
    /// What the marketplace lets sellers grant.
    pub tiers: Tiers,
    pub clients: Vec<Client>,
    pub clock: Arc<dyn Clock>,
}

/// The server.
pub struct Authorization {
    issuer: String,
    /// What browsers call the issuer in `Origin`.
    origin: String,
    tiers: Tiers,
    clients: HashMap<String, Client>,
    clock: Arc<dyn Clock>,
    file: PathBuf,
    kept: RwLock<Arc<Kept>>,
    /// Held by the one change at a time.
    changing: Mutex<()>,
}

impl Tickets for Authorization {
    fn seller<'a>(&'a self, ticket: &'a str) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(std::future::ready(Ok(self.ticket_seller(ticket))))
    }
}

impl Authorization {
    /// Opens the server.
    pub fn open(settings: Settings) -> Result<Arc<Self>, Error> {
        let Settings {
            file,
            issuer,
            tiers,
            clients,
            clock,
        } = settings;
        for client in &clients {
            if matches!(client.kind, ClientKind::Gateway) && client.secret.is_none() {
                return Err(Error(format!(
                    "client {}: a gateway needs a secret, or anybody could introspect",
                    client.id
                )));
            }
            let uris = client.registration().map(|r| &*r.redirect_uris);
            for uri in uris.unwrap_or_default() {
                request::check_redirect_uri(uri)
                    .map_err(|what| Error(format!("client {}: `{uri}` {what}", client.id)))?;
            }
        }
        let origin = url::Url::parse(&issuer)
            .map_err(|e| Error(format!("the issuer `{issuer}` is no URL: {e}")))?
            .origin()
            .ascii_serialization();
        let failed = |e: &dyn std::fmt::Display| Error(format!("{}: {e}", file.display()));
        let kept = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| failed(&e))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Kept::default(),
            Err(e) => return Err(failed(&e)),
        };
        Ok(Arc::new(Self {
            issuer,
            origin,
            tiers,
            clients: clients.into_iter().map(|c| (c.id.clone(), c)).collect(),
            clock,
            file,
            kept: RwLock::new(Arc::new(kept)),
            changing: Mutex::new(()),
        }))
    }

    /// Its own URL.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Issues a grant with its first tokens, for which no seller was asked.
    pub async fn grant(self: &Arc<Self>, granted: Granted) -> Result<Tokens, Error> {
        let fresh = Fresh::new(self.clock.now())?;
        let ends_at = fresh.now.plus(GRANT_DAYS * DAY);
        let grant = Grant::new(granted, fresh.now, ends_at);
        self.change(move |kept| kept.begin(grant, fresh))
            .await?
            .ok_or_else(|| Error("the new grant has ended already".into()))
    }

    /// More tokens for a grant; `None` unless it is in force and is just what is `granted`.
    pub async fn renew(
        self: &Arc<Self>,
        grant_id: String,
        granted: Granted,
    ) -> Result<Option<Tokens>, Error> {
        let fresh = Fresh::new(self.clock.now())?;
        self.change(move |kept| kept.renew(&grant_id, &granted, fresh))
            .await
    }

    /// A ticket with which this seller's browser may enrol a passkey, for [`TICKET_SECONDS`]. That it is used once is
    /// for whoever enrols to see to.
    pub async fn enrol_ticket(self: &Arc<Self>, seller: &str) -> Result<String, Error> {
        let ticket = files::random()?;
        let (admits, seller) = (ticket.clone(), seller.to_owned());
        let expires_at = self.clock.now().plus(TICKET_SECONDS);
        self.change(move |kept| kept.admit(&admits, seller, expires_at))
            .await?;
        Ok(ticket)
    }

    /// The seller whom a ticket is for, unless it is unknown or expired.
    pub fn ticket_seller(&self, ticket: &str) -> Option<String> {
        let seller = |kept: &Kept| Some(kept.ticket_seller(ticket, self.clock.now())?.to_owned());
        seller(&self.kept())
    }

    /// A token of the client's own, with which it acts as a buyer (binding 2.2).
    async fn own_token(self: &Arc<Self>, client_id: String) -> Result<String, Error> {
        let token = files::random()?;
        let (made, now) = (token.clone(), self.clock.now());
        self.change(move |kept| kept.own(client_id, &made, now))
            .await?;
        Ok(token)
    }

    /// A code for what the seller has confirmed.
    async fn code(self: &Arc<Self>, confirmed: Code) -> Result<String, Error> {
        let code = files::random()?;
        let made = code.clone();
        self.change(move |kept| kept.offer(&made, confirmed))
            .await?;
        Ok(code)
    }

    async fn redeem(
        self: &Arc<Self>,
        redemption: Redemption,
    ) -> Result<Option<(Tokens, Granted)>, Error> {
        let fresh = Fresh::new(self.clock.now())?;
        self.change(move |kept| kept.redeem(&redemption, fresh))
            .await
    }

    async fn refresh(
        self: &Arc<Self>,
        client_id: String,
        token: String,
    ) -> Result<Option<(Tokens, Granted)>, Error> {
        let fresh = Fresh::new(self.clock.now())?;
        self.change(move |kept| kept.refresh(&client_id, &token, fresh))
            .await
    }

    async fn revoke_token(
        self: &Arc<Self>,
        client_id: String,
        token: String,
    ) -> Result<bool, Error> {
        let now = self.clock.now();
        self.change(move |kept| kept.revoke_token(&client_id, &token, now))
            .await
    }

    async fn revoke_grant(
        self: &Arc<Self>,
        seller: String,
        grant_id: String,
    ) -> Result<bool, Error> {
        let now = self.clock.now();
        self.change(move |kept| kept.revoke_grant(&seller, &grant_id, now))
            .await
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
            "agent_id": self.agent_id,
            "tiers": self.tiers,
        });
        if let Some(jkt) = &self.jkt {
            details["jkt"] = json!(jkt);
        }
        details
    }
}
