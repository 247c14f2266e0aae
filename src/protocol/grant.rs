//! The agent grant: what introspection says of it, and the checks of every call (binding 3.3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    policy::Tier,
    refusal::{Reason, Refusal},
    time::Timestamp,
};
use crate::wire::jwk::Thumbprint;

/// The `authorization_details` type of a grant (binding 3.2).
pub const DETAILS_TYPE: &str = "dev.rctp.agent_grant";

/// An RFC 7662 response (schema `grant-introspection`). Members that RFC 7662 allows beside these are ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Introspection {
    /// Whether the access token itself is current.
    pub active: bool,
    /// Space-separated scopes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The seller's pairwise pseudonym.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub: Option<String>,
    /// The registered client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// When the token expires, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    /// The key that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cnf: Option<Confirmation>,
    /// The state of the grant behind the token, for inactive tokens too (B-3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_status: Option<GrantStatus>,
    /// The granted details (RFC 9396).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorization_details: Vec<serde_json::Value>,
}

/// RFC 7800 confirmation by thumbprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmation {
    /// The RFC 7638 thumbprint; absent where the token is bound in another way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jkt: Option<String>,
}

/// The state of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantStatus {
    /// In force.
    Active,
    /// Taken back by the seller or the operator.
    Revoked,
    /// Past its end.
    Expired,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    agent_id: Option<String>,
    #[serde(default)]
    tiers: BTreeMap<String, Tier>,
}

impl Introspection {
    /// Whether the authorization server knows the token (check 2, R6).
    pub fn known(&self) -> bool {
        self.active || self.grant_status.is_some()
    }

    /// Whether the token is a seller's grant rather than a client's own.
    pub fn is_grant(&self) -> bool {
        self.details().next().is_some()
    }

    fn details(&self) -> impl Iterator<Item = &serde_json::Value> {
        self.authorization_details
            .iter()
            .filter(|d| d.get("type").and_then(|t| t.as_str()) == Some(DETAILS_TYPE))
    }

    fn bound_to(&self) -> Option<&str> {
        self.cnf.as_ref().and_then(|c| c.jkt.as_deref())
    }

    /// Whether the token may be used with this signature, or without one (check 3). A token bound in a way that is
    /// not `jkt` fits neither.
    pub fn binding_holds(&self, signed_by: Option<&Thumbprint>) -> bool {
        match (signed_by, &self.cnf) {
            (Some(key), Some(_)) => self.bound_to() == Some(key.as_str()),
            (None, None) => true,
            _ => false,
        }
    }
}

/// A grant that passed the checks of this call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The seller's pairwise pseudonym.
    pub sub: String,
    /// The client it was given to, where the authorization server tells.
    pub client_id: Option<String>,
    /// The agent's name in the grant.
    pub agent_id: Option<String>,
    /// The granted scopes.
    pub scopes: Vec<String>,
    /// The tier that the seller confirmed, by scope.
    pub tiers: BTreeMap<String, Tier>,
}

impl Grant {
    /// Whether `scope` was granted.
    pub fn has_scope(&self, scope: &str) -> bool {
        self.scopes.iter().any(|s| s == scope)
    }

    /// Whether any RCTP scope was granted (R4).
    pub fn has_rctp_scope(&self) -> bool {
        self.scopes.iter().any(|s| s.starts_with("dev.rctp."))
    }
}

/// What a call needs of the grant.
#[derive(Clone, Copy, Debug)]
pub enum Need<'a> {
    /// The verb's scope (check 7).
    Scope(&'a str),
    /// Any RCTP scope (R4).
    AnyRctpScope,
    /// Nothing beyond a live grant: the always-403 verbs, which have no scope.
    Live,
}

/// The checks of binding 3.3 from the second on, in order, each with its own refusal. The first, that the token is
/// present and covered, is the caller's.
///
/// # Errors
/// The first check that fails.
pub fn check(
    introspection: &Introspection,
    signed_by: Option<&Thumbprint>,
    need: Need<'_>,
    now: Timestamp,
) -> Result<Grant, Refusal> {
    live(introspection, signed_by, now)?;
    let refuse = |reason, message: &'static str| {
        Err(Refusal::forbid(reason, message).of_seller(introspection.sub.clone()))
    };
    let mut details = introspection.details();
    let (Some(details), None, Some(sub)) = (details.next(), details.next(), &introspection.sub)
    else {
        return refuse(
            Reason::GrantInvalid,
            "this token is not a seller's grant: it needs a sub and one dev.rctp.agent_grant detail",
        );
    };
    let Ok(details) = serde_json::from_value::<Details>(details.clone()) else {
        return refuse(
            Reason::GrantInvalid,
            "the grant's authorization details are malformed",
        );
    };
    let grant = Grant {
        sub: sub.clone(),
        client_id: introspection.client_id.clone(),
        agent_id: details.agent_id,
        scopes: introspection
            .scope
            .as_deref()
            .unwrap_or_default()
            .split_ascii_whitespace()
            .map(str::to_owned)
            .collect(),
        tiers: details.tiers,
    };
    let granted = match need {
        Need::Scope(scope) => grant.has_scope(scope),
        Need::AnyRctpScope => grant.has_rctp_scope(),
        Need::Live => true,
    };
    if !granted {
        return refuse(
            Reason::ActionForbidden,
            "the seller's grant does not include this action's scope",
        );
    }
    Ok(grant)
}

/// What is checked again when the seller approves (R25): the grant's state, its seller and the key. That the access token
/// has expired meanwhile does not matter, a revoked or expired grant does. `scope` was granted when the action was
/// asked; a token that still tells its scopes must still have it.
///
/// # Errors
/// As [`check`].
pub fn recheck(
    introspection: &Introspection,
    signed_by: Option<&Thumbprint>,
    seller: &str,
    scope: &str,
    now: Timestamp,
) -> Result<Grant, Refusal> {
    let expired_token = !introspection.active
        && introspection.grant_status == Some(GrantStatus::Active)
        && introspection.binding_holds(signed_by);
    let grant = if expired_token {
        Grant {
            sub: introspection.sub.clone().unwrap_or_default(),
            client_id: introspection.client_id.clone(),
            agent_id: None,
            scopes: vec![scope.to_owned()],
            // It was asked under this tier, and now it is satisfied.
            tiers: BTreeMap::from([(scope.to_owned(), Tier::Ask)]),
        }
    } else {
        check(introspection, signed_by, Need::Scope(scope), now)?
    };
    if grant.sub != seller {
        return Err(Refusal::forbid(
            Reason::GrantInvalid,
            "the grant is no longer that of the seller who was asked",
        ));
    }
    Ok(grant)
}

/// The checks that any token has to pass, a grant's or a client's own: the second to the sixth of binding 3.3.
///
/// # Errors
/// The first check that fails.
pub(crate) fn live(
    introspection: &Introspection,
    signed_by: Option<&Thumbprint>,
    now: Timestamp,
) -> Result<(), Refusal> {
    if !introspection.known() {
        return Err(Refusal::forbid(
            Reason::GrantInvalid,
            "the authorization server does not know this access token; obtain a grant from the seller",
        )
        .of_token());
    }
    if !introspection.binding_holds(signed_by) {
        // Whoever uses another's token is not the seller's agent, so the refusal is not the seller's to keep (R30).
        return Err(Refusal::forbid(
            Reason::GrantInvalid,
            match signed_by {
                Some(_) => {
                    "a signed request needs a token bound to the signing key (cnf.jkt equal to keyid)"
                }
                None => "this token is bound to a key; sign the request with that key",
            },
        )
        .of_token());
    }
    let refuse = |reason, message: &'static str| {
        Err(Refusal::forbid(reason, message).of_seller(introspection.sub.clone()))
    };
    match introspection.grant_status {
        Some(GrantStatus::Revoked) => {
            return refuse(Reason::GrantRevoked, "the seller's grant was revoked");
        }
        Some(GrantStatus::Expired) => {
            return refuse(
                Reason::GrantExpired,
                "the seller's grant has expired; ask the seller for a new one",
            );
        }
        Some(GrantStatus::Active) | None => {}
    }
    let current = introspection.active && introspection.exp.is_none_or(|exp| now.secs() < exp);
    if !current {
        return refuse(
            Reason::GrantInvalid,
            "the access token has expired; refresh it and retry",
        )
        .map_err(Refusal::of_token);
    }
    Ok(())
}
