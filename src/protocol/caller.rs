//! Who calls, and how that was proven (binding 2).

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::profile::Duties;
use crate::wire::jwk::Thumbprint;

/// How the request was authenticated (binding 2, `authenticated_by`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// An RFC 9421 signature (2.1).
    HttpSignature,
    /// A bearer token, unsigned (2.2).
    Oauth,
    /// The marketplace's API key.
    ApiKey,
    /// A client certificate (RFC 8705).
    Mtls,
}

impl Mechanism {
    /// As the binding writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mechanism::HttpSignature => "http_signature",
            Mechanism::Oauth => "oauth",
            Mechanism::ApiKey => "api_key",
            Mechanism::Mtls => "mtls",
        }
    }
}

/// What the marketplace has configured an operator as, beside being an agent's operator (R32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Holds the buyer's money.
    FundsHolder,
    /// Carries the goods.
    Carrier,
    /// The marketplace itself, relaying events.
    Marketplace,
    /// Keeps returned goods.
    Custodian,
}

/// An authenticated caller: an agent acting for an operator profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// How it was authenticated.
    pub mechanism: Mechanism,
    /// The operator profile's URL.
    pub operator: String,
    /// The key that signed; only with [`Mechanism::HttpSignature`].
    pub key: Option<Thumbprint>,
    /// The registered client; with every mechanism but signatures.
    pub client_id: Option<String>,
    /// The operator's roles.
    pub roles: Vec<Role>,
    /// What the operator answers for.
    pub duties: Option<Arc<Duties>>,
}

/// The agent as the negotiation and the budget know it: its key thumbprint, or its OAuth client (binding 5.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agent {
    /// A key thumbprint.
    Key(Thumbprint),
    /// A registered client.
    Client(String),
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Agent::Key(thumbprint) => write!(f, "key:{thumbprint}"),
            Agent::Client(id) => write!(f, "client:{id}"),
        }
    }
}

impl Caller {
    /// A caller whose request was signed with `key`.
    pub fn signed(operator: impl Into<String>, key: Thumbprint) -> Self {
        Self {
            mechanism: Mechanism::HttpSignature,
            operator: operator.into(),
            key: Some(key),
            client_id: None,
            roles: Vec::new(),
            duties: None,
        }
    }

    /// A caller known by a registered client.
    pub fn client(
        mechanism: Mechanism,
        operator: impl Into<String>,
        client_id: impl Into<String>,
    ) -> Self {
        Self {
            mechanism,
            operator: operator.into(),
            key: None,
            client_id: Some(client_id.into()),
            roles: Vec::new(),
            duties: None,
        }
    }

    /// The agent behind the call.
    pub fn agent(&self) -> Agent {
        match (&self.key, &self.client_id) {
            (Some(key), _) => Agent::Key(key.clone()),
            (None, Some(client)) => Agent::Client(client.clone()),
            // Neither constructor makes one; an empty client equals no registered one.
            (None, None) => Agent::Client(String::new()),
        }
    }
}
