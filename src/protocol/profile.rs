//! UCP profiles: those of operators, read; and the gateway's own, written (binding 1, 10).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{UCP_VERSION, VERSION, policy::Policy, schema};
use crate::wire::{crypto::Provider, jwk::Keys};

/// What an operator answers for: `config` of `dev.rctp.operator` (binding 1), or what an OAuth client's registration
/// carries in its place (2.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duties {
    /// The company behind the agents.
    pub legal_entity: String,
    /// Where it is.
    pub jurisdiction: String,
    /// Whom to call.
    pub incident_contact: String,
    /// Within how many hours it answers.
    pub incident_sla_hours: u32,
    /// What it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certifications: Vec<String>,
    /// Where data stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_residency: Option<Value>,
    /// How keys are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_custody: Option<Value>,
}

impl Duties {
    /// Whether each of the four says something; blanks are nobody to call.
    pub(crate) fn are_whole(&self) -> bool {
        [
            &self.legal_entity,
            &self.jurisdiction,
            &self.incident_contact,
        ]
        .iter()
        .all(|member| !member.trim().is_empty())
    }
}

/// An operator's profile, validated, its keys parsed once.
#[derive(Debug)]
pub struct Profile {
    /// Its keys; unusable ones left out.
    pub keys: Keys,
    /// What it answers for.
    pub duties: Arc<Duties>,
    /// Where it wants webhooks (binding 9).
    pub webhook_url: Option<String>,
}

/// Why a profile was not taken (R2).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It could not be fetched.
    #[error("the profile could not be fetched: {0}")]
    Unreachable(String),
    /// It is no JSON.
    #[error("the profile is not JSON: {0}")]
    Json(String),
    /// It does not satisfy the schema `ucp-profile`.
    #[error("the profile is not valid: {0}")]
    Schema(String),
    /// Its key set as a whole is refused.
    #[error("the profile's keys are refused: {0}")]
    Keys(String),
    /// It does not list `dev.rctp.operator` with its four members.
    #[error(
        "the profile lists no usable dev.rctp.operator; its config needs legal_entity, jurisdiction, \
         incident_contact and incident_sla_hours"
    )]
    NoOperator,
}

impl Profile {
    /// Reads and validates an operator's profile.
    ///
    /// # Errors
    /// What the profile lacks.
    pub fn parse(bytes: &[u8], provider: &dyn Provider) -> Result<Self, ProfileError> {
        let profile = schema::parse(bytes).map_err(|e| ProfileError::Json(e.to_string()))?;
        schema::validate("ucp-profile", &profile)
            .map_err(|e| ProfileError::Schema(e.to_string()))?;
        let none = Value::Array(Vec::new());
        let keys = Keys::parse(profile.get("keys").unwrap_or(&none), provider)
            .map_err(|e| ProfileError::Keys(e.to_string()))?;
        let config = |name: &str| {
            profile["ucp"]["capabilities"][name]
                .as_array()?
                .iter()
                .find_map(|entry| entry.get("config"))
        };
        let duties = config("dev.rctp.operator")
            .and_then(|config| Duties::deserialize(config).ok())
            .filter(Duties::are_whole)
            .ok_or(ProfileError::NoOperator)?;
        let webhook_url = config("dev.rctp.deal")
            .and_then(|config| config.get("webhook_url"))
            .and_then(Value::as_str)
            .map(str::to_owned);
        Ok(Self {
            keys,
            duties: Arc::new(duties),
            webhook_url,
        })
    }
}

/// The profile that the gateway serves at `/.well-known/ucp` (binding 10, 13.1). `services` are transports with their
/// endpoints; `keys` are public JWKs.
pub fn gateway(
    services: &[(&str, String)],
    policy: &Policy,
    term_sets: &[String],
    keys: &[Value],
) -> Value {
    let services: Vec<_> = services
        .iter()
        .map(|(transport, endpoint)| {
            json!({"version": VERSION, "transport": transport, "endpoint": endpoint})
        })
        .collect();
    let scopes: serde_json::Map<_, _> = policy
        .tiers
        .iter()
        .map(|(scope, tiers)| (scope.to_owned(), json!(tiers)))
        .collect();
    // UCP fetches them, and wants each from the origin that owns the name (UCP overview, "Namespace Governance").
    let linking = format!("https://ucp.dev/{UCP_VERSION}/schemas/common/identity_linking.json");
    let (listing, deal) = (schema::id("listing"), schema::id("deal"));
    json!({
        "ucp": {
            "version": UCP_VERSION,
            "services": {"dev.rctp": services},
            "capabilities": {
                "dev.ucp.common.identity_linking": [
                    {"version": UCP_VERSION, "schema": linking, "config": {"scopes": scopes}}
                ],
                "dev.rctp.listing": [
                    {"version": VERSION, "schema": listing, "config": {"term_sets": term_sets}}
                ],
                "dev.rctp.deal": [
                    {"version": VERSION, "schema": deal, "config": {
                        "offer_expiry": policy.expiry,
                        "offer_budget": policy.budget,
                    }}
                ],
            },
            "payment_handlers": {},
        },
        "keys": keys,
    })
}
