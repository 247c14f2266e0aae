//! What a handler gets: the decision, the facts it was made on, and the one way to carry it out.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::Response;
use serde::Serialize;
use serde_json::json;

use super::{counts, simple};
use crate::{
    layer::{
        body::Body,
        context::Ids,
        idempotency::{Held, Settled, stored},
        outbox::{Change, Outbox},
    },
    protocol::{
        approval::{Approval, ApprovalStatus, Outcome},
        caller::Caller,
        decision::{Decision, Facts, HEADER, Requested},
        grant::Grant,
        offer::{By, Offer, OfferState},
        operation::Operation,
        policy::Policy,
        record::{Entry, Seal},
        refusal::{Reason, Refusal},
        time::Timestamp,
    },
    store::{
        Claim, ClaimStep, CommitError, Key, Kind, Put, Store, StoreError, StoredResponse, Unit,
        Version, WindowCheck,
    },
    wire::jwk::SigningKey,
};

/// A decision to carry out, in the request's extensions. A handler that finds none must refuse.
///
/// A handler of a writing operation ends with [`Decided::commit`], once: decision, record, response and effect land
/// together. Or it answers a [`Refusal`] with a reason, which is recorded and stored as if it had been decided here.
/// It may be run again with fresh facts when the commit lost a race, so it does nothing else that lasts.
#[derive(Clone)]
pub struct Decided(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) row: &'static Operation,
    pub(crate) caller: Caller,
    pub(crate) grant: Option<Grant>,
    pub(crate) facts: Box<Facts>,
    pub(crate) versions: HashMap<Key, Version>,
    pub(crate) windows: Vec<WindowCheck>,
    /// The id of a listing that is to be made.
    pub(crate) new_listing: Option<String>,
    /// The negotiation that a first offer opens.
    pub(crate) opens: Option<Put>,
    /// The approval that this action resumes.
    pub(crate) resumed: Option<Resumed>,
    /// The entry for the decision; handlers may complete it. Reads that are allowed enter none.
    pub(crate) entry: Entry,
    pub(crate) held: Option<Held>,
    pub(crate) now: Timestamp,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) seal: Arc<dyn Seal>,
    pub(crate) key: SigningKey,
    pub(crate) issuer: Arc<str>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) outbox: Outbox,
    pub(crate) end: Mutex<End>,
}

/// An approval that the seller has given, and what must be written with its end.
pub(crate) struct Resumed {
    pub(crate) approval: Box<Approval>,
    pub(crate) also: Arc<Vec<Put>>,
}

impl Resumed {
    /// The end of the approval, on the condition that it is as it was read: whoever ends it first carries it out.
    pub(crate) fn puts(&self, versions: &HashMap<Key, Version>, outcome: Outcome) -> Vec<Put> {
        let mut puts = vec![self.put(versions, outcome, 0)];
        puts.extend(self.also.iter().cloned());
        puts
    }

    fn put(&self, versions: &HashMap<Key, Version>, outcome: Outcome, since: Version) -> Put {
        let approval = self.approval.clone();
        let ended = approval.ended(ApprovalStatus::Approved, Some(outcome));
        let key = Key::new(Kind::Approval, &*ended.approval_id);
        Put {
            expected: versions.get(&key).copied().unwrap_or(0) + since,
            key,
            parent: None,
            due: None,
            body: serde_json::to_vec(&ended)
                .expect("our documents serialise")
                .into(),
        }
    }
}

/// The write of an offer that waited for an approval which came to nothing.
pub(crate) fn reopened(offer: Option<&Offer>, versions: &HashMap<Key, Version>) -> Option<Put> {
    let offer = offer.filter(|offer| offer.state == OfferState::AwaitingApproval)?;
    let offer = offer.clone().reopened();
    let key = Key::new(Kind::Offer, &*offer.offer_id);
    Some(Put {
        expected: versions.get(&key).copied().unwrap_or(0),
        key,
        parent: None,
        due: Some(offer.expires_at),
        body: serde_json::to_vec(&offer)
            .expect("our documents serialise")
            .into(),
    })
}

/// What the agent reads of an action that was carried out. Of a listing's terms no value, not even those that it proposed
/// (binding 4.2): that is told from the approval, whatever the handler says.
fn carried_out(resumed: &Resumed, response: &Response<Bytes>) -> Outcome {
    let approval = &resumed.approval;
    let outcome = Outcome {
        decision: Some(Decision::Auto),
        result: None,
        error: None,
    };
    if !response.status().is_success() {
        let refusal = Refusal::invalid("the marketplace refused to carry out what was approved");
        return Outcome {
            error: Some(refusal.body()),
            ..outcome
        };
    }
    let result = match &approval.draft {
        Some(draft) => Some(json!({
            "listing_id": approval.target,
            "term_set": approval.details["term_set"],
            "terms_commitment": draft.commitment,
        })),
        None => serde_json::from_slice(response.body()).ok(),
    };
    Outcome { result, ..outcome }
}

/// What became of the commit; the slot through which a conflict is signalled, whatever the handler answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing was committed.
    Open,
    /// It is done.
    Committed,
    /// Decide again.
    Conflict,
    /// Look the key up again.
    KeyTaken,
    /// The store failed.
    Failed,
}

impl fmt::Debug for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decided")
            .field("operation", &self.0.row.name)
            .field("caller", &self.0.caller)
            .finish_non_exhaustive()
    }
}

impl Decided {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// The row of the table.
    pub fn operation(&self) -> &'static Operation {
        self.0.row
    }

    /// Who calls.
    pub fn caller(&self) -> &Caller {
        &self.0.caller
    }

    /// The seller's grant, on the seller's side.
    pub fn grant(&self) -> Option<&Grant> {
        self.0.grant.as_ref()
    }

    /// What was read to decide.
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// The point in time that the decision was made for.
    pub fn now(&self) -> Timestamp {
        self.0.now
    }

    /// The marketplace's policy.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// Whether the seller approved this very action.
    pub(crate) fn resumes(&self) -> bool {
        self.0.resumed.is_some()
    }

    /// The id that a new listing has, from the moment that it was asked for.
    pub fn new_listing(&self) -> Option<&str> {
        self.0.new_listing.as_deref()
    }

    /// What the operation does to the documents that later decisions read: the listing with the terms that the seller
    /// approved, a reservation, a decline. A handler that commits its own unit adds these writes to it, unless it makes
    /// those documents itself; in the simple mode they are written for it.
    pub fn effect(&self) -> Vec<Put> {
        simple::held(self)
    }

    /// The store, for reads beyond the facts.
    pub fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    /// The gateway's signing key.
    pub(crate) fn key(&self) -> &SigningKey {
        &self.0.key
    }

    /// The gateway's public URL, as `iss`.
    pub(crate) fn issuer(&self) -> &str {
        &self.0.issuer
    }

    /// A new id.
    ///
    /// # Errors
    /// 503 when there is no randomness.
    pub fn id(&self, prefix: &str) -> Result<String, Refusal> {
        self.0.ids.id(prefix, self.0.now).map_err(no_randomness)
    }

    /// 128 random bits in base64url.
    ///
    /// # Errors
    /// 503 when there is no randomness.
    pub fn nonce(&self) -> Result<String, Refusal> {
        let random = self.0.ids.random().map_err(no_randomness)?;
        Ok(crate::wire::base64url(&random))
    }

    /// A document to write in the unit, on the condition that it is as it was read; one that was not read must be
    /// new.
    pub fn put<T: Serialize>(
        &self,
        kind: Kind,
        id: &str,
        parent: Option<&str>,
        due: Option<Timestamp>,
        value: &T,
    ) -> Put {
        let body = serde_json::to_vec(value).expect("our documents serialise");
        Put {
            parent: parent.map(str::to_owned),
            due,
            ..self.put_bytes(kind, id, body)
        }
    }

    /// As [`Decided::put`], for a document that is bytes already.
    pub(crate) fn put_bytes(&self, kind: Kind, id: &str, body: Vec<u8>) -> Put {
        let key = Key::new(kind, id);
        Put {
            expected: self.0.versions.get(&key).copied().unwrap_or(0),
            key,
            parent: None,
            due: None,
            body: body.into(),
        }
    }

    /// Commits the effect: `change` adds to a unit that already holds the decision's entry (first), the conditions of
    /// everything that was read, and the request's key; `response` is stored with it and returned, with
    /// `RCTP-Decision: auto`.
    ///
    /// # Errors
    /// [`CommitError::Conflict`] when it lost a race: return anything, the decision is made again. Otherwise nothing
    /// was done either, and the decision layer answers for it.
    pub async fn commit(
        &self,
        change: impl FnOnce(&mut Unit),
        mut response: Response<Bytes>,
    ) -> Result<Response<Body>, CommitError> {
        if self.end() != End::Open {
            let twice = StoreError("a handler committed twice".into());
            return Err(CommitError::Store(twice));
        }
        let mut unit = self.unit_with(|resumed| carried_out(resumed, &response));
        change(&mut unit);
        response
            .headers_mut()
            .insert(HEADER, Decision::Auto.to_header());
        unit.claim = self.claim(ClaimStep::Settle(stored(&response)));
        match self.events(&unit.put) {
            Ok(events) => unit.put.extend(events),
            Err(error) => {
                tracing::error!(%error, "nothing was executed");
                self.set(End::Failed);
                return Err(error.into());
            }
        }
        self.commit_unit(unit).await?;
        let mut response = response.map(Body::from);
        response.extensions_mut().insert(Settled);
        Ok(response)
    }

    /// The writes of the events that these writes are for operators (binding 9).
    pub(crate) fn events<'p>(
        &self,
        puts: impl IntoIterator<Item = &'p Put>,
    ) -> Result<Vec<Put>, StoreError> {
        let Facts {
            offer,
            supersedes,
            listing,
            requested,
            ..
        } = &*self.0.facts;
        let before: Vec<&Offer> = offer.iter().chain(supersedes).collect();
        let change = Change {
            now: self.0.now,
            actor: Some(match &self.0.grant {
                Some(_) => By::Seller,
                None => By::Buyer,
            }),
            before: &before,
            seller_operator: listing.as_ref().and_then(|l| l.operator.as_deref()),
            recorded: match requested {
                Requested::Event(signed) => Some((&signed.event, &*self.0.caller.operator)),
                _ => None,
            },
        };
        self.0.outbox.events(puts, &change)
    }

    /// The unit that every effect of this decision begins with.
    pub(crate) fn unit(&self) -> Unit {
        self.unit_with(|_| Outcome {
            decision: Some(Decision::Auto),
            result: None,
            error: None,
        })
    }

    fn unit_with(&self, outcome: impl FnOnce(&Resumed) -> Outcome) -> Unit {
        let mut unit = self.bare_unit();
        if let Some(resumed) = &self.0.resumed {
            unit.put
                .extend(resumed.puts(&self.0.versions, outcome(resumed)));
        }
        unit
    }

    /// The outcome of the resumed approval, once its execution has begun: the second half of the simple mode.
    pub(crate) fn outcome_put(&self, response: &Response<Bytes>) -> Option<Put> {
        let resumed = self.0.resumed.as_ref()?;
        let outcome = match response.extensions().get::<Refusal>() {
            Some(refusal) => refused_outcome(refusal),
            None => carried_out(resumed, response),
        };
        Some(resumed.put(&self.0.versions, outcome, 1))
    }

    fn bare_unit(&self) -> Unit {
        Unit {
            read: self
                .0
                .versions
                .iter()
                .map(|(key, version)| (key.clone(), *version))
                .collect(),
            put: self.0.opens.iter().cloned().collect(),
            windows: self.0.windows.clone(),
            entries: match self.0.row.writes() {
                true => vec![self.0.entry.clone()],
                false => Vec::new(),
            },
            ..Unit::default()
        }
    }

    /// The unit of a refusal of the handler's own, and the response that states it.
    pub(crate) fn refused(
        &self,
        refusal: Refusal,
        mut response: Response<Bytes>,
    ) -> (Unit, Response<Bytes>) {
        let refusal = refusal.action(self.0.row.verb);
        let mut unit = self.unit_with(|_| refused_outcome(&refusal));
        if self.resumes() {
            unit.put
                .extend(reopened(self.0.facts.offer.as_ref(), &self.0.versions));
        }
        if let Some(decision) = refusal.decision() {
            response.headers_mut().insert(HEADER, decision.to_header());
            unit.entries = vec![Entry {
                decision: Some(decision),
                deal_event: None,
                ..self.0.entry.clone()
            }];
        }
        if refusal.reason() == Some(Reason::BelowFloor) {
            unit.counts = counts(&self.0.windows, &self.0.policy, self.0.now);
        }
        response.extensions_mut().insert(refusal);
        (unit, response)
    }

    pub(crate) fn claim(&self, step: ClaimStep) -> Option<Claim> {
        self.0.held.as_ref().map(|held| held.claim(step))
    }

    pub(crate) fn response_claim(
        &self,
        step: fn(StoredResponse) -> ClaimStep,
        response: &Response<Bytes>,
    ) -> Option<Claim> {
        self.claim(step(stored(response)))
    }

    /// Commits, and leaves what came of it in the slot.
    pub(crate) async fn commit_unit(&self, unit: Unit) -> Result<(), CommitError> {
        let seal = self.0.seal.clone();
        let result = self.0.outbox.commit(&*self.0.store, unit, seal).await;
        self.set(match &result {
            Ok(_) => End::Committed,
            Err(CommitError::Conflict) => End::Conflict,
            Err(CommitError::KeyTaken) => End::KeyTaken,
            Err(CommitError::Store(error)) => {
                tracing::error!(%error, "nothing was executed");
                End::Failed
            }
        });
        result.map(drop)
    }

    /// Commits further changes of a decision whose unit is done: the second half of the simple mode.
    pub(crate) async fn commit_after(&self, unit: Unit) -> Result<(), CommitError> {
        let Inner {
            outbox,
            store,
            seal,
            ..
        } = &*self.0;
        outbox.commit(&**store, unit, seal.clone()).await.map(drop)
    }

    pub(crate) fn end(&self) -> End {
        *self.0.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, end: End) {
        *self.0.end.lock().unwrap_or_else(PoisonError::into_inner) = end;
    }
}

/// Approved, and then refused.
pub(crate) fn refused_outcome(refusal: &Refusal) -> Outcome {
    Outcome {
        decision: refusal.decision(),
        result: None,
        error: Some(refusal.body()),
    }
}

pub(crate) fn no_randomness(error: crate::layer::context::NoRandomness) -> Refusal {
    tracing::error!(%error, "nothing was executed");
    Refusal::unavailable("there is no randomness for a new id; nothing was executed")
}
