//! What the server keeps, the rules of its life, and when it is forgotten. No clock, no file: the caller says what time
//! it is and writes down what came of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tower_rctp::{
    protocol::{
        grant::{Confirmation, GrantStatus, Introspection},
        time::Timestamp,
    },
    wire::{base64url, digest::sha256},
};

use super::{ACCESS_SECONDS, Error, Granted, Tokens, files};

/// How long what has ended is remembered, so that it is refused by its own reason.
const REMEMBERED_SECONDS: i64 = 7 * 86_400;
/// Access tokens that are remembered of a grant; further ones push out the oldest.
const ACCESS_TOKENS: usize = 64;
/// The same of a client's own.
const OWN_TOKENS: usize = 1024;
/// Lines of refresh tokens of a grant; more than one come of [`Kept::renew`] alone.
const LINES: usize = 4;

/// Everything that is kept. Keys are digests in base64url, except the grants'.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    pub(super) grants: BTreeMap<String, Grant>,
    access: BTreeMap<String, Access>,
    lines: BTreeMap<String, Line>,
    codes: BTreeMap<String, Code>,
    tickets: BTreeMap<String, Ticket>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Grant {
    #[serde(flatten)]
    pub(super) granted: Granted,
    #[serde(default)]
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
    revoked: bool,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Access {
    client_id: String,
    /// `None` for a client's own token.
    grant_id: Option<String>,
    expires_at: Timestamp,
}

/// A line of refresh tokens, each of which replaces the one before. A refresh token is `<line>.<secret>`, so that
/// every token that was ever in the line is known again, however long ago it was used, and only the last is kept.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Line {
    grant_id: String,
    /// The digest of the one that has not been used.
    last: String,
    since: Timestamp,
}

/// An authorization code.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Code {
    pub(super) granted: Granted,
    pub(super) redirect_uri: String,
    /// PKCE, `S256`.
    pub(super) challenge: String,
    pub(super) expires_at: Timestamp,
    /// When the grant ends, as the seller chose.
    pub(super) grant_ends_at: Timestamp,
    pub(super) spent: bool,
    /// The grant that it gave.
    pub(super) grant_id: Option<String>,
}

/// What a client presents for its tokens.
pub(super) struct Redemption {
    pub(super) client_id: String,
    pub(super) code: String,
    pub(super) redirect_uri: String,
    pub(super) verifier: String,
}

/// Lets a seller enrol a passkey.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Ticket {
    seller: String,
    expires_at: Timestamp,
}

impl Grant {
    pub(super) fn new(granted: Granted, now: Timestamp, expires_at: Timestamp) -> Self {
        Self {
            granted,
            created_at: now,
            expires_at,
            revoked: false,
        }
    }

    pub(super) fn status(&self, now: Timestamp) -> GrantStatus {
        if self.revoked {
            GrantStatus::Revoked
        } else if self.expires_at <= now {
            GrantStatus::Expired
        } else {
            GrantStatus::Active
        }
    }

    /// Ends it, so that it is forgotten in its time.
    fn revoke(&mut self, now: Timestamp) {
        self.revoked = true;
        self.expires_at = self.expires_at.min(now);
    }
}

impl Kept {
    /// Begins a grant, with its first tokens.
    pub(super) fn begin(&mut self, grant: Grant, fresh: Fresh) -> Option<Tokens> {
        let grant_id = fresh.grant_id.clone();
        self.grants.insert(grant_id.clone(), grant);
        fresh.first(self, &grant_id)
    }

    /// More tokens for a grant, in a line of their own; `None` unless it is in force and is just what is `granted`.
    pub(super) fn renew(
        &mut self,
        grant_id: &str,
        granted: &Granted,
        fresh: Fresh,
    ) -> Option<Tokens> {
        if self.grants.get(grant_id)?.granted != *granted {
            return None;
        }
        let of_grant = |line: &Line| line.grant_id == grant_id;
        let lines = self.lines.iter().filter(|(_, line)| of_grant(line));
        if lines.clone().count() >= LINES {
            let oldest = lines.min_by_key(|(_, line)| line.since);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.lines.remove(&oldest);
            }
        }
        fresh.first(self, grant_id)
    }

    /// A token of the client's own.
    pub(super) fn own(&mut self, client_id: String, token: &str, now: Timestamp) {
        let own = |access: &Access| access.grant_id.is_none() && access.client_id == client_id;
        self.make_room(own, OWN_TOKENS);
        let access = Access {
            client_id,
            grant_id: None,
            expires_at: now.plus(ACCESS_SECONDS),
        };
        self.access.insert(digest(token), access);
    }

    fn make_room(&mut self, among: impl Fn(&Access) -> bool, at_most: usize) {
        let those = self.access.iter().filter(|(_, access)| among(access));
        let mut those: Vec<_> = those.map(|(k, a)| (a.expires_at, k.clone())).collect();
        those.sort_unstable();
        for (_, oldest) in those.iter().rev().skip(at_most - 1) {
            self.access.remove(oldest);
        }
    }

    pub(super) fn offer(&mut self, code: &str, offered: Code) {
        self.codes.insert(digest(code), offered);
    }

    /// Exchanges a code for a grant and its tokens. The first attempt of its client spends it, whether it succeeds or
    /// not; a further one takes back what it gave (RFC 6749 §4.1.2).
    pub(super) fn redeem(
        &mut self,
        redemption: &Redemption,
        fresh: Fresh,
    ) -> Option<(Tokens, Granted)> {
        let now = fresh.now;
        let code = self.codes.get_mut(&digest(&redemption.code))?;
        if code.granted.client_id != redemption.client_id {
            return None;
        }
        if std::mem::replace(&mut code.spent, true) {
            let gave = code.grant_id.as_ref();
            if let Some(grant) = gave.and_then(|id| self.grants.get_mut(id)) {
                tracing::warn!("an authorization code was used twice; its grant is revoked");
                grant.revoke(now);
            }
            return None;
        }
        let fits = now < code.expires_at
            && code.redirect_uri == redemption.redirect_uri
            && code.challenge == digest(&redemption.verifier);
        if !fits {
            return None;
        }
        code.grant_id = Some(fresh.grant_id.clone());
        let granted = code.granted.clone();
        let grant = Grant::new(granted.clone(), now, code.grant_ends_at);
        Some((self.begin(grant, fresh)?, granted))
    }

    /// The next tokens of the client's grant. A refresh token that was used before revokes it (binding 3.2).
    pub(super) fn refresh(
        &mut self,
        client_id: &str,
        token: &str,
        fresh: Fresh,
    ) -> Option<(Tokens, Granted)> {
        let (line, _) = token.split_once('.')?;
        let known = self.lines.get(&digest(line))?;
        let grant_id = known.grant_id.clone();
        let grant = self.grants.get_mut(&grant_id)?;
        if grant.granted.client_id != client_id {
            return None;
        }
        if known.last != digest(token) {
            tracing::warn!("a refresh token was used twice; its grant is revoked");
            grant.revoke(fresh.now);
            return None;
        }
        let granted = grant.granted.clone();
        Some((fresh.next(self, &grant_id, line)?, granted))
    }

    /// Revokes the client's token; one of a grant takes the whole grant with it, whichever token it is. `false` when
    /// it is another client's; one that is not known is as good as revoked (RFC 7009 §2.2).
    pub(super) fn revoke_token(&mut self, client_id: &str, token: &str, now: Timestamp) -> bool {
        let line = token
            .split_once('.')
            .and_then(|(line, _)| self.lines.get(&digest(line)));
        let grant_id = match (self.access.get(&digest(token)), line) {
            (Some(access), _) if access.client_id != client_id => return false,
            (Some(access), _) => access.grant_id.clone(),
            (None, Some(line)) => Some(line.grant_id.clone()),
            (None, None) => return true,
        };
        let Some(grant_id) = grant_id else {
            self.access.remove(&digest(token));
            return true;
        };
        match self.grants.get_mut(&grant_id) {
            Some(grant) if grant.granted.client_id != client_id => return false,
            Some(grant) => grant.revoke(now),
            None => {}
        }
        true
    }

    /// The seller takes a grant back; `false` when it is not the seller's.
    pub(super) fn revoke_grant(&mut self, seller: &str, grant_id: &str, now: Timestamp) -> bool {
        match self.grants.get_mut(grant_id) {
            Some(grant) if grant.granted.sub == seller => {
                grant.revoke(now);
                true
            }
            _ => false,
        }
    }

    pub(super) fn admit(&mut self, ticket: &str, seller: String, expires_at: Timestamp) {
        let admits = Ticket { seller, expires_at };
        self.tickets.insert(digest(ticket), admits);
    }

    pub(super) fn ticket_seller(&self, ticket: &str, now: Timestamp) -> Option<&str> {
        let ticket = self.tickets.get(&digest(ticket))?;
        (now < ticket.expires_at).then_some(&ticket.seller)
    }

    /// What is said of an access token (binding 3.3, R6).
    pub(super) fn introspection(&self, token: &str, now: Timestamp) -> Introspection {
        let Some(access) = self.access.get(&digest(token)) else {
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
        let Some(grant) = self.grants.get(grant_id) else {
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

    /// Forgets what ended: a grant, its tokens and its code after a week, everything else at once.
    pub(super) fn forget(&mut self, now: Timestamp) {
        let over = |end: Timestamp| end.plus(REMEMBERED_SECONDS) <= now;
        self.grants.retain(|_, grant| !over(grant.expires_at));
        let grants = &self.grants;
        self.access.retain(|_, access| match &access.grant_id {
            Some(id) => !over(access.expires_at) && grants.contains_key(id),
            None => now < access.expires_at,
        });
        self.lines
            .retain(|_, line| grants.contains_key(&line.grant_id));
        self.codes.retain(|_, code| match &code.grant_id {
            Some(id) => !over(code.expires_at) && grants.contains_key(id),
            None => now < code.expires_at,
        });
        self.tickets.retain(|_, ticket| now < ticket.expires_at);
    }
}

/// Random bits that are not known to anyone yet, for a grant and a pair of tokens.
pub(super) struct Fresh {
    grant_id: String,
    access: String,
    line: String,
    secret: String,
    pub(super) now: Timestamp,
}

impl Fresh {
    pub(super) fn new(now: Timestamp) -> Result<Self, Error> {
        Ok(Self {
            grant_id: files::random()?,
            access: files::random()?,
            line: files::random()?,
            secret: files::random()?,
            now,
        })
    }

    /// Makes them the grant's in a new line, if it is in force.
    fn first(self, kept: &mut Kept, grant_id: &str) -> Option<Tokens> {
        let line = self.line.clone();
        self.next(kept, grant_id, &line)
    }

    /// Makes them the next of a line.
    fn next(self, kept: &mut Kept, grant_id: &str, line: &str) -> Option<Tokens> {
        let grant = kept.grants.get(grant_id)?;
        if grant.status(self.now) != GrantStatus::Active {
            return None;
        }
        let access = Access {
            client_id: grant.granted.client_id.clone(),
            grant_id: Some(grant_id.to_owned()),
            expires_at: self.now.plus(ACCESS_SECONDS).min(grant.expires_at),
        };
        let tokens = Tokens {
            grant_id: grant_id.to_owned(),
            access_token: self.access,
            access_expires_at: access.expires_at,
            refresh_token: format!("{line}.{}", self.secret),
        };
        kept.make_room(
            |access| access.grant_id.as_deref() == Some(grant_id),
            ACCESS_TOKENS,
        );
        kept.access.insert(digest(&tokens.access_token), access);
        let last = Line {
            grant_id: grant_id.to_owned(),
            last: digest(&tokens.refresh_token),
            since: self.now,
        };
        kept.lines.insert(digest(line), last);
        Some(tokens)
    }
}

/// SHA-256 in base64url: what is kept of a secret, and what PKCE's `S256` makes of a verifier (RFC 7636 §4.2).
fn digest(secret: &str) -> String {
    base64url(&sha256(secret.as_bytes()))
}
