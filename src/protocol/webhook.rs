//! What operators are told of changes, and when it is tried again (binding 9).
//!
//! Receivers refuse what is more than [`ACCEPTED`] seconds old, so an event is tried within [`WINDOW`] of its
//! `created_at` and then kept as a dead letter (R33).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    offer::{By, Offer, OfferState},
    time::Timestamp,
};

/// How old an event may be when it arrives, in seconds.
pub const ACCEPTED: i64 = 300;
/// How old an event may be when it is sent; the rest is for the way, and for clocks that differ.
pub const WINDOW: i64 = 280;
/// How old an event may be when it is sent for the first time: one that was held back by an earlier one until that was dead.
const LAST: i64 = 295;
/// After so many refusals by the receiver itself, an event holds later ones back no longer.
const REFUSALS: u32 = 3;
/// The longest pause between two tries.
const LONGEST_PAUSE: i64 = 60;

/// What kind of change is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventType {
    /// An approval has ended: approved, with its outcome, declined or expired. `data` is what
    /// [`Approval::view`](super::approval::Approval::view) shows.
    #[serde(rename = "approval.decided")]
    ApprovalDecided,
    /// The other side, or time, has changed an offer. `data` is [`offer_data`].
    #[serde(rename = "offer.updated")]
    OfferUpdated,
    /// An event has entered a deal's record. `data` names the deal and the event.
    #[serde(rename = "deal.event")]
    DealEvent,
}

/// The body of a webhook (schema `webhook-event`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// `evt_…`, the same in every delivery of this event.
    pub event_id: String,
    /// What kind of change it is.
    #[serde(rename = "type")]
    pub event: EventType,
    /// When it happened; of an event that is sent again on an operator's word, when that was (R33).
    pub created_at: Timestamp,
    /// The resource after the change.
    pub data: Value,
}

impl Event {
    /// The bytes that are signed and sent.
    ///
    /// # Panics
    /// Never: JSON values serialise.
    pub fn to_body(&self) -> String {
        serde_json::to_string(self).expect("JSON values serialise")
    }
}

/// An event on its way to an operator, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    /// `evt_…`
    pub event_id: String,
    /// The profile of the operator that is told; its `config.webhook_url` is looked up when the event is sent.
    pub receiver: String,
    /// What it is about: events about one thing arrive in their order.
    pub subject: String,
    /// What kind of change it is.
    #[serde(rename = "type")]
    pub event: EventType,
    /// See [`Event::created_at`].
    pub created_at: Timestamp,
    /// How often it was tried.
    pub attempts: u32,
    /// How often the receiver itself refused it, by a status that says so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refusals: u32,
    /// Not tried before; while a gateway tries it, when others may take that as lost.
    pub next_at: Timestamp,
    /// The body, byte for byte.
    pub body: String,
}

impl Outgoing {
    /// An event that nobody has tried to send.
    pub fn new(receiver: impl Into<String>, subject: impl Into<String>, event: &Event) -> Self {
        Self {
            event_id: event.event_id.clone(),
            receiver: receiver.into(),
            subject: subject.into(),
            event: event.event,
            created_at: event.created_at,
            attempts: 0,
            refusals: 0,
            next_at: event.created_at,
            body: event.to_body(),
        }
    }

    /// The same event to be sent anew from `now` on (R33). Receivers demand that the signed `created_at` is the timestamp
    /// that they judge its age by, so both are `now`; the `event_id` stays, so that one who has seen it drops it. `None`
    /// when the body is not readable.
    #[must_use]
    pub fn again(self, now: Timestamp) -> Option<Self> {
        let event: Event = serde_json::from_str(&self.body).ok()?;
        let event = Event {
            created_at: now,
            ..event
        };
        Some(Self::new(self.receiver, self.subject, &event))
    }

    /// Whether it can still arrive in time.
    pub fn is_timely(&self, now: Timestamp) -> bool {
        now <= self.created_at.plus(WINDOW) || self.has_one_chance(now)
    }

    /// Whether it was never tried, and this is the last time that it can be.
    pub fn has_one_chance(&self, now: Timestamp) -> bool {
        let late = now > self.created_at.plus(WINDOW) && now <= self.created_at.plus(LAST);
        late && self.attempts == 0
    }

    /// Whether later events about the same thing wait for it: not for one that its receiver does not want.
    pub fn holds_back(&self) -> bool {
        self.refusals < REFUSALS
    }

    /// When to try next, after a try that failed at `now`: pauses double, half of each is by chance (`dice`), and the last
    /// try is at the end of the window. `None` when that has passed.
    pub fn next_try(&self, now: Timestamp, dice: u16) -> Option<Timestamp> {
        let last = self.created_at.plus(WINDOW);
        if now >= last {
            return None;
        }
        let pause = LONGEST_PAUSE.min(1 << self.attempts.clamp(1, 6));
        let chance = pause * i64::from(dice) / (2 * i64::from(u16::MAX));
        Some(now.plus((pause - chance).max(1)).min(last))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The side that is told of a change to an offer that `actor` made, or that time made (`None`): the other one, and of what
/// time did the buyer's. Nobody of an ask that waits for the seller, and of its end without effect.
pub fn tell_of_offer(before: Option<&Offer>, after: &Offer, actor: Option<By>) -> Option<By> {
    let other = || match actor {
        Some(By::Buyer) => By::Seller,
        Some(By::Seller) | None => By::Buyer,
    };
    match after.state {
        state if before.is_some_and(|before| before.state == state) => None,
        OfferState::Open if before.is_none() => Some(other()),
        OfferState::Open | OfferState::AwaitingApproval => None,
        OfferState::Countered
        | OfferState::Superseded
        | OfferState::Accepted
        | OfferState::Declined
        | OfferState::Expired => Some(other()),
    }
}

/// An offer as it is told to the operator of this side. The buyer's gets what it reads at the offer. The seller's agents read
/// offers by a grant that may have been taken back, which no event can know; so their operator is told which one has
/// changed, and they read the rest by the grant (R5).
pub fn offer_data(offer: &Offer, to: By, now: Timestamp) -> Value {
    match to {
        By::Buyer => json!(offer.view(now)),
        By::Seller => json!({
            "offer_id": offer.offer_id,
            "negotiation_id": offer.negotiation_id,
            "listing_id": offer.listing_id,
            "state": offer.state_at(now),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(attempts: u32) -> Outgoing {
        let event = Event {
            event_id: "evt_1".into(),
            event: EventType::OfferUpdated,
            created_at: Timestamp::from_secs(1000),
            data: Value::Null,
        };
        Outgoing {
            attempts,
            ..Outgoing::new("https://a.example/", "neg_1", &event)
        }
    }

    #[test]
    fn tries_thin_out_and_end_within_the_window() {
        for dice in [0, 1, u16::MAX / 2, u16::MAX] {
            let mut now = Timestamp::from_secs(1000);
            let mut attempts = 1;
            while let Some(next) = outgoing(attempts).next_try(now, dice) {
                assert!(next > now, "{dice}");
                assert!(next <= Timestamp::from_secs(1000 + WINDOW), "{dice}");
                now = next;
                attempts += 1;
            }
            assert_eq!(now, Timestamp::from_secs(1000 + WINDOW), "{dice}");
            assert!((6..30).contains(&attempts), "{attempts} tries with {dice}");
        }
        let never_wraps = outgoing(u32::MAX).next_try(Timestamp::from_secs(1000), 0);
        assert_eq!(never_wraps, Some(Timestamp::from_secs(1060)));
    }

    #[test]
    fn chance_shortens_a_pause_by_half_at_most() {
        let now = Timestamp::from_secs(1000);
        let pauses = [0, u16::MAX].map(|dice| outgoing(5).next_try(now, dice));
        assert_eq!(pauses, [Some(now.plus(32)), Some(now.plus(16))]);
    }

    #[test]
    fn what_is_sent_again_is_the_same_event_at_another_time() {
        let now = Timestamp::from_secs(9000);
        let again = outgoing(7).again(now).unwrap();
        assert_eq!(
            (again.attempts, again.created_at, again.next_at),
            (0, now, now)
        );
        let event: Event = serde_json::from_str(&again.body).unwrap();
        assert_eq!((&*event.event_id, event.created_at), ("evt_1", now));
    }
}
