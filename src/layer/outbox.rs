//! Events for operators (binding 9), written in the unit that makes the change: both are there, or neither.
//!
//! Who is told what is [`tell_of_offer`], of approvals whoever asked, and of deals' events whoever may read them. Whether a receiver wants webhooks is looked at
//! when they are delivered ([`service::webhooks`](crate::service::webhooks)).

use std::{
    collections::BTreeSet,
    fmt, iter,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{authenticate::operators::InForce, context::Ids};
use crate::{
    protocol::{
        approval::{Approval, ApprovalStatus},
        deal::Deal,
        decision::READ_THE_RECORD,
        event::DealEvent,
        offer::{By, Offer},
        record::Seal,
        time::Timestamp,
        webhook::{Event, EventType, Outgoing, offer_data, tell_of_offer},
    },
    store::{CommitError, Committed, Key, Kind, Put, Store, StoreError, Unit},
    wire::base64url,
};

/// The parent of every event, under which they are listed in their order.
pub(crate) const OUTBOX: &str = "outbox";
/// The parent of every dead letter.
pub(crate) const DEAD_LETTERS: &str = "dead_letters";

/// Where events are put. Without webhooks, nowhere.
#[derive(Clone)]
pub(crate) struct Outbox {
    ids: Option<Arc<dyn Ids>>,
    operators: InForce,
    wake: Arc<Notify>,
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").finish_non_exhaustive()
    }
}

/// What an event about an offer depends on, beside the offer.
pub(crate) struct Change<'a> {
    pub(crate) now: Timestamp,
    /// The side that acted; `None` for time.
    pub(crate) actor: Option<By>,
    /// Offers as they were.
    pub(crate) before: &'a [&'a Offer],
    /// The operator that the seller's side is told through: that of the agent that made the listing.
    pub(crate) seller_operator: Option<&'a str>,
    /// The event that enters a deal's record, and the operator that it comes from, which knows it.
    pub(crate) recorded: Option<(&'a DealEvent, &'a str)>,
}

impl Outbox {
    pub(crate) fn new(ids: Option<Arc<dyn Ids>>, operators: InForce) -> Self {
        Self {
            ids,
            operators,
            wake: Arc::new(Notify::new()),
        }
    }

    /// Whether operators are told at all.
    pub(crate) fn is_kept(&self) -> bool {
        self.ids.is_some()
    }

    /// Tells when something was put in.
    pub(crate) fn wake(&self) -> &Notify {
        &self.wake
    }

    /// The writes of the events that these writes are, in their order.
    pub(crate) fn events<'p>(
        &self,
        puts: impl IntoIterator<Item = &'p Put>,
        change: &Change<'_>,
    ) -> Result<Vec<Put>, StoreError> {
        let Some(ids) = &self.ids else {
            return Ok(Vec::new());
        };
        let mut events = Vec::new();
        for put in puts {
            let told: Vec<Told> = match put.key.kind {
                Kind::Approval => of_approval(&read(put)?, change.now).into_iter().collect(),
                Kind::Offer => of_offer(&read(put)?, change).into_iter().collect(),
                Kind::Deal => self.of_deal(&read(put)?, change),
                _ => Vec::new(),
            };
            for told in told {
                events.push(told.put(&**ids, change.now)?);
            }
        }
        Ok(events)
    }

    /// No more than what was recorded, and to those who may read the rest where it is: the parties' operators, and of those
    /// that have recorded an event themselves the ones whose role lets them read the record still.
    fn of_deal(&self, deal: &Deal, change: &Change<'_>) -> Vec<Told> {
        let Some((event, writer)) = change.recorded else {
            return Vec::new();
        };
        let operators = self.operators.get();
        let reads = |profile: &&String| {
            let roles = operators
                .by_profile(profile)
                .map(|operator| operator.roles());
            roles.is_some_and(|roles| READ_THE_RECORD.iter().any(|role| roles.contains(role)))
        };
        let parties = iter::once(&deal.buyer_operator).chain(&deal.seller_operator);
        let told: BTreeSet<&String> = parties.chain(deal.writers.iter().filter(reads)).collect();
        let told = told.into_iter().filter(|operator| *operator != writer);
        told.map(|operator| Told {
            receiver: operator.clone(),
            subject: deal.deal_id.clone(),
            event: EventType::DealEvent,
            data: json!({
                "deal_id": event.deal_id,
                "event_id": event.event_id,
                "event": event.event,
            }),
        })
        .collect()
    }

    /// Commits a unit, and wakes whoever delivers its events.
    pub(crate) async fn commit(
        &self,
        store: &dyn Store,
        unit: Unit,
        seal: Arc<dyn Seal>,
    ) -> Result<Committed, CommitError> {
        let tells = unit.put.iter().any(|put| put.key.kind == Kind::Webhook);
        let committed = store.commit(unit, seal).await?;
        if tells {
            self.wake.notify_one();
        }
        Ok(committed)
    }
}

struct Told {
    receiver: String,
    subject: String,
    event: EventType,
    data: Value,
}

impl Told {
    fn put(self, ids: &dyn Ids, now: Timestamp) -> Result<Put, StoreError> {
        let random = ids
            .random()
            .map_err(|error| StoreError(format!("an event has no id: {error}")))?;
        let event = Event {
            event_id: format!("evt_{:014x}{}", in_order(now), base64url(&random)),
            event: self.event,
            created_at: now,
            data: self.data,
        };
        Ok(put(&Outgoing::new(self.receiver, self.subject, &event), 0))
    }
}

/// The write of an event that is on its way.
pub(crate) fn put(event: &Outgoing, expected: u64) -> Put {
    Put {
        key: Key::new(Kind::Webhook, &*event.event_id),
        expected,
        parent: Some(OUTBOX.to_owned()),
        due: None,
        body: serde_json::to_vec(event)
            .expect("our documents serialise")
            .into(),
    }
}

fn of_approval(approval: &Approval, now: Timestamp) -> Option<Told> {
    (approval.status != ApprovalStatus::Pending).then(|| Told {
        receiver: approval.asked_by.operator.clone(),
        subject: approval.approval_id.clone(),
        event: EventType::ApprovalDecided,
        data: approval.view(now),
    })
}

fn of_offer(offer: &Offer, change: &Change<'_>) -> Option<Told> {
    let before = change.before.iter();
    let before = before.copied().find(|b| b.offer_id == offer.offer_id);
    let to = tell_of_offer(before, offer, change.actor)?;
    let receiver = match to {
        By::Buyer => &*offer.buyer_operator,
        By::Seller => change.seller_operator?,
    };
    Some(Told {
        receiver: receiver.to_owned(),
        // A counter is about what it answers.
        subject: offer.negotiation_id.clone(),
        event: EventType::OfferUpdated,
        data: offer_data(offer, to, change.now),
    })
}

fn read<T: DeserializeOwned>(put: &Put) -> Result<T, StoreError> {
    // No message of the parser: it might quote proposed terms.
    serde_json::from_slice(&put.body).map_err(|_| {
        StoreError(format!(
            "a written {} is not readable",
            put.key.kind.as_str()
        ))
    })
}

/// A number that grows from event to event, so that ids are in the order of what they tell: microseconds since 1970,
/// moved on where two fall into one. Gateways beside each other are as much in order as their clocks agree.
fn in_order(now: Timestamp) -> i64 {
    const MICROS: i64 = 1_000_000;
    static LAST: AtomicI64 = AtomicI64::new(0);
    let system = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .unwrap_or(0);
    let begins = now.secs().max(0).saturating_mul(MICROS);
    // The clock that was given decides on the second.
    let this = system.clamp(begins, begins.saturating_add(MICROS - 1));
    let next = |last: i64| Some(this.max(last.saturating_add(1)));
    let last = LAST
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .unwrap_or(0);
    this.max(last.saturating_add(1))
}
