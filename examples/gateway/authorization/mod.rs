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

    /// More tokens for a grant; `None` unless it is in force and is just what is `granted`.
    pub async fn renew(
        self: &Arc<Self>,
        grant_id: String,
        granted: Granted,
    ) -> Result<Option<Tokens>, Error> {
        let fresh = Fresh::new(self.clock.now())?;
        self.change(move |kept| {
            let same = kept.grants.get(&grant_id)?.granted == granted;
            same.then(|| fresh.tokens(kept, &grant_id)).flatten()
        })
        .await
    }

    /// A token of the client's own, with which it acts as a buyer (binding 2.2).
    async fn own_token(self: &Arc<Self>, client_id: String) -> Result<String, Error> {
        let token = files::random()?;
        let key = digest(&token);
        let access = Access {
            client_id,
            grant_id: None,
            expires_at: self.clock.now().plus(ACCESS_SECONDS),
        };
        self.change(move |kept| kept.access.insert(key, access))
            .await?;
        Ok(token)
    }

    /// The next tokens of the client's grant. A refresh token that was used before revokes it (binding 3.2).
    async fn refresh(
        self: &Arc<Self>,
        client_id: String,
        refresh_token: &str,
    ) -> Result<Option<(Tokens, Granted)>, Error> {
        let fresh = Fresh::new(self.clock.now())?;
        let key = digest(refresh_token);
        self.change(move |kept| {
            let refresh = kept.refresh.get_mut(&key)?;
            let grant = kept.grants.get_mut(&refresh.grant_id)?;
            if grant.granted.client_id != client_id {
                return None;
            }
            if std::mem::replace(&mut refresh.used, true) {
                tracing::warn!("a refresh token was used twice; its grant is revoked");
                grant.revoked = true;
                return None;
            }
            let (grant_id, granted) = (refresh.grant_id.clone(), grant.granted.clone());
            Some((fresh.tokens(kept, &grant_id)?, granted))
        })
        .await
    }

    /// Revokes the client's token; one of a grant takes the whole grant with it, whichever token it is. `false` when
    /// it is another client's; one that is not known is as good as revoked (RFC 7009 §2.2).
    async fn revoke(self: &Arc<Self>, client_id: String, token: &str) -> Result<bool, Error> {
        let key = digest(token);
        self.change(move |kept| {
            let grant_id = match (kept.access.get(&key), kept.refresh.get(&key)) {
                (Some(access), _) if access.client_id != client_id => return false,
                (Some(access), _) => access.grant_id.clone(),
                (None, Some(refresh)) => Some(refresh.grant_id.clone()),
                (None, None) => return true,
            };
            let Some(grant_id) = grant_id else {
                kept.access.remove(&key);
                return true;
            };
            match kept.grants.get_mut(&grant_id) {
                Some(grant) if grant.granted.client_id != client_id => return false,
                Some(grant) => grant.revoked = true,
                None => {}
            }
            true
        })
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
