//! The deal record: entries, hash chains, and the verifier of a whole chain (binding 8.2; R30, R31).

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    caller::{Caller, Mechanism},
    decision::Decision,
    event::EventName,
    operation::{Op, Verb},
    terms::{hash_of, named_hash},
    time::Timestamp,
};
use crate::wire::{
    digest::sha256,
    jcs,
    jwk::{Keys, SigningKey},
    jws,
};

/// The `typ` of the gateway's JWS over an entry.
pub const ENTRY_TYP: &str = "rctp-entry+jwt";

/// The `typ` of the gateway's JWS over a head.
pub const HEAD_TYP: &str = "rctp-head+jwt";

/// `prev_hash` of a chain's first entry.
pub const FIRST_PREV_HASH: &str =
    "sha-256:0000000000000000000000000000000000000000000000000000000000000000";

/// What kind of thing a chain is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    /// Decisions without another subject (R30).
    Gateway,
    /// Listing operations.
    Listing,
    /// Offer operations.
    Negotiation,
    /// Deal operations.
    Deal,
}

impl SubjectKind {
    /// As written in entries.
    pub const fn as_str(self) -> &'static str {
        match self {
            SubjectKind::Gateway => "gateway",
            SubjectKind::Listing => "listing",
            SubjectKind::Negotiation => "negotiation",
            SubjectKind::Deal => "deal",
        }
    }
}

/// The subject of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    /// The id; the public URL for the gateway's own chain.
    pub id: String,
    /// The kind.
    #[serde(rename = "type")]
    pub kind: SubjectKind,
}

impl Subject {
    /// A subject.
    pub fn new(kind: SubjectKind, id: impl Into<String>) -> Self {
        Self {
            kind,
            id: id.into(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.as_str(), self.id)
    }
}

/// What the marketplace itself did, outside any agent's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The seller took the listing back on the marketplace (binding 5.3).
    #[serde(rename = "listing.withdrawn")]
    ListingWithdrawn,
}

/// An event that was recorded (binding 8.1), with the writer's own JWS over it. The members are in the order of RFC 8785.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DealEvent {
    /// What happened.
    pub event: EventName,
    /// Its id.
    pub event_id: String,
    /// The compact JWS.
    pub jws: String,
}

/// An entry before it has a place in its chain (schema `attestation-entry`): a decision on an agent's call, or an
/// [`Event`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Which chain.
    pub subject: Subject,
    /// When it was decided.
    pub recorded_at: Timestamp,
    /// The operation that was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Op>,
    /// The verb that was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Verb>,
    /// What was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// The event that was recorded, with [`Op::PostDealEvent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deal_event: Option<DealEvent>,
    /// What the marketplace did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    /// How the call was authenticated (2.3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authenticated_by: Option<Mechanism>,
    /// The operator profile (2.3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_profile: Option<String>,
    /// The approval that was asked for, or that this came of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<String>,
    /// The registered client, for calls that were not signed (2.3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The key that signed the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyid: Option<String>,
    /// The listing concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing_id: Option<String>,
    /// The offer concerned or made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer_id: Option<String>,
    /// The commitment, where terms apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms_commitment: Option<String>,
}

impl Entry {
    /// An entry for a decision on a call.
    pub fn new(
        subject: Subject,
        recorded_at: Timestamp,
        operation: Op,
        decision: Decision,
        caller: &Caller,
    ) -> Self {
        Self {
            operation: Some(operation),
            action: operation.row().verb,
            decision: Some(decision),
            authenticated_by: Some(caller.mechanism),
            agent_profile: Some(caller.operator.clone()),
            client_id: caller.client_id.clone(),
            keyid: caller.key.as_ref().map(|k| k.as_str().to_owned()),
            ..Self::empty(subject, recorded_at)
        }
    }

    /// An entry for what the marketplace itself did.
    pub fn event(subject: Subject, recorded_at: Timestamp, event: Event) -> Self {
        Self {
            event: Some(event),
            ..Self::empty(subject, recorded_at)
        }
    }

    fn empty(subject: Subject, recorded_at: Timestamp) -> Self {
        Self {
            subject,
            recorded_at,
            operation: None,
            action: None,
            decision: None,
            deal_event: None,
            event: None,
            authenticated_by: None,
            agent_profile: None,
            approval_id: None,
            client_id: None,
            keyid: None,
            listing_id: None,
            offer_id: None,
            terms_commitment: None,
        }
    }
}

/// An entry in its place, as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Its chain.
    pub subject: Subject,
    /// Its place, from 0.
    pub seq: u64,
    /// The hash of the whole published entry: the next one's `prev_hash`.
    pub hash: String,
    /// The published entry, as JCS bytes.
    pub published: Vec<u8>,
}

/// Gives an entry its place: signs it with sequence and `prev_hash` inside. Called by the store in its own
/// transaction, so that no two entries get the same place.
pub trait Seal: Send + Sync + 'static {
    /// Seals `entry` as number `seq` after the entry whose hash is `prev_hash`.
    ///
    /// # Errors
    /// When the key cannot sign; the unit is then refused as a whole.
    fn seal(&self, entry: &Entry, seq: u64, prev_hash: &str) -> Result<Sealed, SealError>;
}

/// The entry could not be signed.
#[derive(Debug, thiserror::Error)]
#[error("the record entry could not be signed: {0}")]
pub struct SealError(pub String);

/// An entry as published, its members in the order of RFC 8785: with integers and ASCII names only, plain
/// serialisation is then the canonical form, at a tenth of the cost of sorting. A test holds it against [`jcs`].
#[derive(Serialize)]
struct Published<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Verb>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_profile: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authenticated_by: Option<Mechanism>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deal_event: Option<&'a DealEvent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'a Decision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Event>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jws: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listing_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offer_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Op>,
    prev_hash: &'a str,
    recorded_at: Timestamp,
    seq: u64,
    subject: &'a Subject,
    #[serde(skip_serializing_if = "Option::is_none")]
    terms_commitment: Option<&'a str>,
}

impl Seal for SigningKey {
    fn seal(&self, entry: &Entry, seq: u64, prev_hash: &str) -> Result<Sealed, SealError> {
        let failed = |e: &dyn fmt::Display| SealError(e.to_string());
        let mut body = Published {
            action: entry.action,
            agent_profile: entry.agent_profile.as_deref(),
            approval_id: entry.approval_id.as_deref(),
            authenticated_by: entry.authenticated_by,
            client_id: entry.client_id.as_deref(),
            deal_event: entry.deal_event.as_ref(),
            decision: entry.decision.as_ref(),
            event: entry.event,
            jws: None,
            keyid: entry.keyid.as_deref(),
            listing_id: entry.listing_id.as_deref(),
            offer_id: entry.offer_id.as_deref(),
            operation: entry.operation,
            prev_hash,
            recorded_at: entry.recorded_at,
            seq,
            subject: &entry.subject,
            terms_commitment: entry.terms_commitment.as_deref(),
        };
        let payload = serde_json::to_vec(&body).map_err(|e| failed(&e))?;
        let jws = jws::sign_detached(ENTRY_TYP, &payload, self).map_err(|e| failed(&e))?;
        body.jws = Some(&jws);
        let published = serde_json::to_vec(&body).map_err(|e| failed(&e))?;
        Ok(Sealed {
            subject: entry.subject.clone(),
            seq,
            hash: named_hash(&sha256(&published)),
            published,
        })
    }
}

/// The first entry of a chain that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} does not fit: {why}")]
pub struct Broken {
    /// Its index in what was given.
    pub index: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Verifies a whole chain, from its first entry: subject, sequence, `prev_hash`, and the gateway's signature over
/// each entry. Returns the hash of the last entry.
///
/// A cut tail cannot show in the entries themselves: compare the returned hash with that of a signed head ([`verify_head`], R31).
///
/// # Errors
/// The first entry that does not fit.
pub fn verify_chain(entries: &[Value], keys: &Keys) -> Result<String, Broken> {
    walk(entries, Some(keys))
}

/// Verifies what holds without any key: subject, sequence and `prev_hash`. It shows damage, and no forgery: whoever has
/// the entries can hash them anew. Returns the hash of the last entry.
///
/// # Errors
/// The first entry that does not fit.
pub fn verify_links(entries: &[Value]) -> Result<String, Broken> {
    walk(entries, None)
}

fn walk(entries: &[Value], keys: Option<&Keys>) -> Result<String, Broken> {
    let mut prev_hash = FIRST_PREV_HASH.to_owned();
    let mut subject = None;
    for (index, entry) in entries.iter().enumerate() {
        let broken = |why| Broken { index, why };
        let mut body = entry
            .as_object()
            .cloned()
            .ok_or_else(|| broken("it is not an object"))?;
        let jws = match body.remove("jws") {
            Some(Value::String(jws)) => jws,
            _ => return Err(broken("it carries no JWS")),
        };
        let this = body
            .get("subject")
            .cloned()
            .ok_or_else(|| broken("it names no subject"))?;
        match &subject {
            None => subject = Some(this),
            Some(first) if *first == this => {}
            Some(_) => return Err(broken("it is about another subject")),
        }
        if body.get("seq").and_then(Value::as_u64) != Some(index as u64) {
            return Err(broken("its seq is not its place in the chain"));
        }
        if body.get("prev_hash").and_then(Value::as_str) != Some(prev_hash.as_str()) {
            return Err(broken(
                "its prev_hash is not the hash of the entry before it",
            ));
        }
        let parsed = jws::Compact::parse(&jws).map_err(|_| broken("its JWS is malformed"))?;
        if let Some(keys) = keys {
            let key = parsed
                .kid()
                .and_then(|kid| keys.get(kid))
                .ok_or_else(|| broken("its JWS names a key that is not the gateway's"))?;
            let payload = jcs::canonical(&body).map_err(|_| broken("it has no canonical form"))?;
            parsed
                .verify_detached(ENTRY_TYP, &payload, key)
                .map_err(|_| broken("its signature does not verify"))?;
        }
        prev_hash = hash_of(entry);
    }
    Ok(prev_hash)
}

/// The last entry of a chain as of an answer, signed by the gateway: with it a cut tail shows (R31; schema `deal-events`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The hash of the whole published last entry.
    pub hash: String,
    /// The gateway's JWS over the other members, detached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jws: Option<String>,
    /// The last entry's place.
    pub seq: u64,
    /// The chain.
    pub subject: Subject,
}

impl Head {
    /// The signed head of the chain that ends with `last`.
    ///
    /// # Errors
    /// When the key cannot sign.
    pub fn of(last: &Sealed, key: &SigningKey) -> Result<Self, SealError> {
        let mut head = Self {
            hash: last.hash.clone(),
            jws: None,
            seq: last.seq,
            subject: last.subject.clone(),
        };
        let failed = |e: &dyn fmt::Display| SealError(e.to_string());
        let payload = jcs::canonical(&head).map_err(|e| failed(&e))?;
        let jws = jws::sign_detached(HEAD_TYP, &payload, key).map_err(|e| failed(&e))?;
        head.jws = Some(jws);
        Ok(head)
    }
}

/// Why a head is no head of this gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the head does not fit: {0}")]
pub struct NoHead(pub &'static str);

/// Verifies the gateway's signature over a head. A chain ends with it where its subject is the same, its last `seq` is
/// the head's, and [`verify_chain`] returns the head's `hash`.
///
/// # Errors
/// [`NoHead`].
pub fn verify_head(head: &Value, keys: &Keys) -> Result<Head, NoHead> {
    let Ok(Head {
        jws: Some(jws),
        hash,
        seq,
        subject,
    }) = Head::deserialize(head)
    else {
        return Err(NoHead("it is not subject, seq, hash and jws"));
    };
    let unsigned = Head {
        jws: None,
        hash,
        seq,
        subject,
    };
    let parsed = jws::Compact::parse(&jws).map_err(|_| NoHead("its JWS is malformed"))?;
    let key = parsed
        .kid()
        .and_then(|kid| keys.get(kid))
        .ok_or(NoHead("its JWS names a key that is not the gateway's"))?;
    let payload = jcs::canonical(&unsigned).map_err(|_| NoHead("it has no canonical form"))?;
    parsed
        .verify_detached(HEAD_TYP, &payload, key)
        .map_err(|_| NoHead("its signature does not verify"))?;
    Ok(Head {
        jws: Some(jws),
        ..unsigned
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{caller::Caller, decision::OnTimeout, refusal::Reason};

    #[test]
    fn what_is_published_is_canonical_by_construction() {
        let key = SigningKey::generate().unwrap();
        let signed = Caller::signed("https://a.example/\u{e9}\"\u{1}", key.kid().clone());
        let client = Caller::client(
            Mechanism::Oauth,
            "https://a.example/ucp",
            "client \u{7f}/\\",
        );
        let decisions = [
            Decision::Auto,
            Decision::Ask {
                approval_id: "apr_1".into(),
                expires_in: 900,
                on_timeout: OnTimeout::Deny,
            },
            Decision::Forbid {
                action: Some(Verb::OfferAccept),
                reason: Reason::OfferBudgetExhausted,
                retry_after: Some(3600),
            },
            Decision::Forbid {
                action: None,
                reason: Reason::BelowFloor,
                retry_after: None,
            },
        ];
        for (decision, caller) in decisions.iter().zip([&signed, &client].into_iter().cycle()) {
            for full in [false, true] {
                let subject = Subject::new(SubjectKind::Negotiation, "neg_1");
                let now = Timestamp::from_secs(1_790_000_000);
                let op = Op::AcceptOffer;
                let mut entry = Entry::new(subject, now, op, decision.clone(), caller);
                if full {
                    entry.approval_id = Some("apr_1".into());
                    entry.event = Some(Event::ListingWithdrawn);
                    entry.deal_event = Some(DealEvent {
                        event: EventName::Delivered,
                        event_id: "evt_1".into(),
                        jws: "e30.e30.AA".into(),
                    });
                    entry.listing_id = Some("lst_1".into());
                    entry.offer_id = Some("off_1".into());
                    entry.terms_commitment = Some(FIRST_PREV_HASH.into());
                }
                let sealed = key.seal(&entry, 0, FIRST_PREV_HASH).unwrap();
                let value: Value = serde_json::from_slice(&sealed.published).unwrap();
                assert_eq!(sealed.published, jcs::canonical(&value).unwrap());
                // Every member of the entry is there, under its own name.
                let Value::Object(entry) = serde_json::to_value(&entry).unwrap() else {
                    panic!("an entry is an object");
                };
                for (name, member) in &entry {
                    assert_eq!(value.get(name), Some(member), "{name}");
                }
                assert_eq!(value.as_object().unwrap().len(), entry.len() + 3);
            }
        }
    }
}
