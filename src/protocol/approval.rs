//! Parked actions and their approval requests (binding 7).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    caller::{Agent, Mechanism},
    operation::{Op, Verb},
    time::Timestamp,
};
use crate::wire::{base64url, digest::sha256, jcs};

/// The `authorization_details` type of an approval.
pub const DETAILS_TYPE: &str = "dev.rctp.approval";

/// An action that waits for the seller, exactly as it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// `apr_…`
    pub approval_id: String,
    /// Where it stands; read it with [`Approval::status_at`].
    pub status: ApprovalStatus,
    /// The parked verb.
    pub action: Verb,
    /// The parked operation.
    pub operation: Op,
    /// The `{id}` of its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its body.
    pub body: Parked,
    /// Whose approval is asked for.
    pub seller: String,
    /// Who asked.
    pub asked_by: Asker,
    /// What the seller approves (R24).
    pub details: Value,
    /// When it was parked.
    pub created_at: Timestamp,
    /// When silence becomes a decline (INV-2).
    pub expires_at: Timestamp,
}

/// The body of a parked action. It may hold proposed terms, so it has no telling `Debug`; it is erased with the
/// approval's end.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parked(Value);

impl From<Value> for Parked {
    fn from(body: Value) -> Self {
        Self(body)
    }
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parked")
    }
}

/// The caller of a parked action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// The operator profile.
    pub operator: String,
    /// The agent.
    pub agent: Agent,
    /// How the call was authenticated.
    pub authenticated_by: Mechanism,
}

/// Where an approval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// Waiting for the seller.
    Pending,
    /// Approved and carried out.
    Approved,
    /// Declined by the seller.
    Declined,
    /// No answer in time: a decline (INV-2).
    Expired,
}

impl Approval {
    /// The status at `now`.
    pub fn status_at(&self, now: Timestamp) -> ApprovalStatus {
        match self.status {
            ApprovalStatus::Pending if self.expires_at <= now => ApprovalStatus::Expired,
            status => status,
        }
    }

    /// The approval request of the 202 body. The challenge is over the details (R24); for the listing verbs it comes
    /// only once the seller has filled in the terms (B-4).
    pub fn request(&self, hosted_url: &str) -> Value {
        let mut request = json!({
            "approval_id": self.approval_id,
            "action": self.action,
            "authorization_details": [self.details],
            "hosted_url": hosted_url,
            "expires_at": self.expires_at,
        });
        if !matches!(self.action, Verb::ListingCreate | Verb::ListingSetTerms) {
            request["challenge"] = json!(challenge(&self.details));
        }
        request
    }

    /// What the asking operator reads back.
    pub fn view(&self, now: Timestamp) -> Value {
        json!({
            "approval_id": self.approval_id,
            "action": self.action,
            "status": self.status_at(now),
            "expires_at": self.expires_at,
        })
    }
}

/// base64url(SHA-256(JCS(details))) (R24).
pub fn challenge(details: &Value) -> String {
    let canonical = jcs::canonical(details).expect("JSON values serialise");
    base64url(&sha256(&canonical))
}
