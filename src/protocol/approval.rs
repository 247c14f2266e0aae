//! Parked actions and their approval requests (binding 7).

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    caller::{Agent, Caller, Mechanism, Role},
    decision::Decision,
    money::Money,
    operation::{Op, Verb},
    profile::Duties,
    record::Entry,
    refusal::Reason,
    terms::{PrivateTerms, PublicTerms, hash_of},
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
    /// The `{id}` of its path; for a new listing the id that it will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its body; erased when the approval ends.
    pub body: Parked,
    /// Its access token, sealed, to introspect the grant again (R25); erased when the approval ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The terms that the seller has filled in last; erased when the approval ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<Draft>,
    /// Whose approval is asked for.
    pub seller: String,
    /// Who asked.
    pub asked_by: Asker,
    /// What the seller approves (R24).
    pub details: Value,
    /// What the page shows beside the details; never a private term.
    pub display: Value,
    /// The record entry of the ask; what came of it enters the same chain.
    pub asked: Box<Entry>,
    /// When it was parked.
    pub created_at: Timestamp,
    /// When silence becomes a decline (INV-2).
    pub expires_at: Timestamp,
    /// What came of an approved action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// The body of a parked action. It may hold proposed terms, so it has no telling `Debug`; it is erased with the
/// approval's end.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parked(Value);

impl Parked {
    /// The body, as it was asked.
    pub fn value(&self) -> &Value {
        &self.0
    }
}

impl From<Value> for Parked {
    fn from(body: Value) -> Self {
        Self(body)
    }
}

impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parked")
    }
}

/// Terms that the seller has filled in and not yet approved. Its `Debug` shows the commitment alone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// What anyone will read.
    pub public: PublicTerms,
    /// The floor and the salt.
    #[serde(with = "stored")]
    pub private: PrivateTerms,
    /// The commitment over both (binding 4.2).
    pub commitment: String,
    /// The asking price that they were judged against.
    pub list_price: Money,
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft")
            .field("commitment", &self.commitment)
            .finish_non_exhaustive()
    }
}

/// Private terms as the store keeps them.
mod stored {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::PrivateTerms;

    pub(super) fn serialize<S: Serializer>(
        private: &PrivateTerms,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&String::from_utf8_lossy(&private.to_stored()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<PrivateTerms, D::Error> {
        let text = String::deserialize(from)?;
        PrivateTerms::from_stored(text.as_bytes())
            .ok_or_else(|| de::Error::custom("the private terms are not readable"))
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
    /// The operator's roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Role>,
    /// What the operator answered for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duties: Option<Arc<Duties>>,
}

impl From<&Caller> for Asker {
    fn from(caller: &Caller) -> Self {
        Self {
            operator: caller.operator.clone(),
            agent: caller.agent(),
            authenticated_by: caller.mechanism,
            roles: caller.roles.clone(),
            duties: caller.duties.clone(),
        }
    }
}

impl Asker {
    /// The caller again.
    pub fn caller(&self) -> Caller {
        let caller = match &self.agent {
            Agent::Key(key) => Caller::signed(&*self.operator, key.clone()),
            Agent::Client(id) => Caller::client(self.authenticated_by, &*self.operator, &**id),
        };
        Caller {
            roles: self.roles.clone(),
            duties: self.duties.clone(),
            ..caller
        }
    }
}

/// Where an approval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// Waiting for the seller.
    Pending,
    /// Approved by the seller; the outcome tells whether it could be carried out.
    Approved,
    /// Declined by the seller.
    Declined,
    /// No answer in time: a decline (INV-2).
    Expired,
}

/// What came of an approved action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The decision on it, made when the seller approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// The resource; of a listing no more than its id, term set and commitment (binding 4.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The error body, where it could not be carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
}

impl Approval {
    /// The status at `now`.
    pub fn status_at(&self, now: Timestamp) -> ApprovalStatus {
        match self.status {
            ApprovalStatus::Pending if self.expires_at <= now => ApprovalStatus::Expired,
            status => status,
        }
    }

    /// The decision on the approved action, once there is one.
    pub fn decision(&self) -> Option<&Decision> {
        self.outcome.as_ref()?.decision.as_ref()
    }

    /// Whether the seller fills in terms before they approve (binding 4.2).
    pub fn takes_terms(&self) -> bool {
        matches!(self.action, Verb::ListingCreate | Verb::ListingSetTerms)
    }

    /// The challenge of the seller's passkey (R24); for the listing verbs only once the terms are filled in (B-4).
    pub fn challenge(&self) -> Option<String> {
        (!self.takes_terms() || self.draft.is_some()).then(|| challenge(&self.details))
    }

    /// With these terms filled in; they alone can be approved from now on (R24).
    #[must_use]
    pub fn with_draft(mut self, draft: Draft) -> Self {
        self.details["terms_commitment"] = json!(draft.commitment);
        self.details["list_price"] = json!(draft.list_price);
        self.draft = Some(draft);
        self
    }

    /// Ended: what was kept to carry the action out is erased (binding 4.2, R25).
    #[must_use]
    pub fn ended(mut self, status: ApprovalStatus, outcome: Option<Outcome>) -> Self {
        self.status = status;
        self.outcome = outcome;
        self.body = Value::Null.into();
        self.token = None;
        self.draft = None;
        self
    }

    /// The record entry of a decline, by the seller or by silence.
    pub fn declined_entry(&self, now: Timestamp) -> Entry {
        Entry {
            recorded_at: now,
            decision: Some(Decision::Forbid {
                action: Some(self.action),
                reason: Reason::ActionForbidden,
                retry_after: None,
            }),
            ..(*self.asked).clone()
        }
    }

    /// The approval request of the 202 body, and of the page.
    pub fn request(&self, hosted_url: &str) -> Value {
        let mut request = json!({
            "approval_id": self.approval_id,
            "action": self.action,
            "authorization_details": [self.details],
            "display": self.display,
            "hosted_url": hosted_url,
            "expires_at": self.expires_at,
        });
        if let Some(challenge) = self.challenge() {
            request["challenge"] = json!(challenge);
        }
        request
    }

    /// What the asking operator reads back.
    pub fn view(&self, now: Timestamp) -> Value {
        let mut view = json!({
            "approval_id": self.approval_id,
            "action": self.action,
            "status": self.status_at(now),
            "expires_at": self.expires_at,
        });
        if let Some(outcome) = &self.outcome {
            let members = [
                ("decision", outcome.decision.as_ref().map(|d| json!(d))),
                ("result", outcome.result.clone()),
                ("error", outcome.error.clone()),
            ];
            for (name, member) in members {
                if let Some(member) = member {
                    view[name] = member;
                }
            }
        }
        view
    }
}

/// base64url(SHA-256(JCS(details))) (R24).
pub fn challenge(details: &Value) -> String {
    let canonical = jcs::canonical(details).expect("JSON values serialise");
    base64url(&sha256(&canonical))
}

/// The hash that binds the details to the body as it was asked. Proposed terms stay out: no digest over private terms
/// leaves the store without a salt (R28).
pub fn request_hash(body: &Value) -> String {
    match body {
        Value::Object(members) if members.contains_key("proposed_terms") => {
            let mut members = members.clone();
            members.remove("proposed_terms");
            hash_of(&members)
        }
        body => hash_of(body),
    }
}
