//! Deal events and the money rules (binding 8.1, 10a; R32).
//!
//! A deal's [`Progress`] is what its recorded events have come to; [`record`] is the only way in which it changes. What
//! the rules keep, whoever writes what, in whatever order and at whatever time:
//!
//! - nothing is released or refunded before the funds are held;
//! - the funds are released or refunded, never both, and once;
//! - whoever held them releases or refunds them, and nobody else;
//! - after a rejection that counts, nothing is released: the goods come back, or did not arrive in time, and the money
//!   goes back.
//!
//! Time is the gateway's own, when it recorded the event; what a writer says in `occurred_at` moves no deadline.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Value, json};

use super::{
    caller::Role,
    listing::Listing,
    refusal::{Reason, Refusal},
    schema,
    term_set::TermSets,
    time::Timestamp,
};

/// The `typ` of a deal event's JWS.
pub const EVENT_TYP: &str = "rctp-deal-event+jwt";

/// How many events a deal records that change nothing: extensions, and those without the required observation. Without a
/// bound a single party could grow the deal for ever; those that count are nine at most. (The deal's chain has no bound:
/// 8.2 wants every refusal in it.)
pub const MAX_INFORMATIVE: usize = 100;

/// How far `occurred_at` may be ahead of the gateway's clock, in seconds, as for a signature's `created`.
const AHEAD: i64 = 60;
const DAY: i64 = 86_400;
/// Where RCTP and UCP name their own (binding 10); an extension there would be taken for theirs.
const RESERVED: [&str; 2] = ["dev.rctp", "dev.ucp"];

/// What happened (binding 8.1, 10a).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names are the binding's
pub enum EventName {
    FundsHeld,
    Accepted,
    Rejected,
    Released,
    Shipped,
    Delivered,
    ReturnedToSender,
    Return,
    Refund,
    /// A reverse-domain extension, such as `example.carrier:picked_up_sealed`: informative.
    Extension(Box<str>),
}

impl EventName {
    /// Those that the binding names.
    pub const NAMED: [EventName; 9] = [
        EventName::FundsHeld,
        EventName::Accepted,
        EventName::Rejected,
        EventName::Released,
        EventName::Shipped,
        EventName::Delivered,
        EventName::ReturnedToSender,
        EventName::Return,
        EventName::Refund,
    ];

    /// As it is written.
    pub fn as_str(&self) -> &str {
        match self {
            EventName::FundsHeld => "funds_held",
            EventName::Accepted => "accepted",
            EventName::Rejected => "rejected",
            EventName::Released => "released",
            EventName::Shipped => "shipped",
            EventName::Delivered => "delivered",
            EventName::ReturnedToSender => "returned_to_sender",
            EventName::Return => "return",
            EventName::Refund => "refund",
            EventName::Extension(name) => name,
        }
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected an event of binding 8.1, or a reverse-domain extension such as example.carrier:picked_up_sealed"
)]
pub struct NotAnEvent;

impl FromStr for EventName {
    type Err = NotAnEvent;

    fn from_str(text: &str) -> Result<Self, NotAnEvent> {
        let named = Self::NAMED.into_iter().find(|name| name.as_str() == text);
        match named {
            Some(name) => Ok(name),
            // The schema says which form the rest has.
            None if text.contains(':') => Ok(Self::Extension(text.into())),
            None => Err(NotAnEvent),
        }
    }
}

impl Serialize for EventName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EventName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Whether the writer saw it, or passes on what another reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Observation {
    FirstHand,
    Relayed,
}

/// Why a buyer rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum RejectReason {
    NotAsDescribed,
    NotReceived,
}

/// The payload of a deal event (schema `deal-event`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DealEvent {
    /// The deal.
    pub deal_id: String,
    /// `evt_…`, the writer's, unique within the deal.
    pub event_id: String,
    /// What happened.
    pub event: EventName,
    /// When, as the writer says.
    pub occurred_at: Timestamp,
    /// With [`EventName::Rejected`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<RejectReason>,
    /// Who saw it.
    pub observation: Observation,
    /// With [`Observation::Relayed`]: who observed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_by: Option<String>,
    /// With [`Observation::Relayed`]: its id there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_event_id: Option<String>,
    /// Digests of what proves it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// Where, no closer than the city.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub city: Option<String>,
}

impl DealEvent {
    /// Reads a verified payload: one JSON object of the schema `deal-event`, no member twice.
    ///
    /// # Errors
    /// What is wrong, without repeating the payload.
    pub fn read(payload: &[u8]) -> Result<Self, String> {
        let value = schema::parse(payload).map_err(|e| e.to_string())?;
        if value["event"]
            .as_str()
            .is_some_and(|name| name.parse::<EventName>().is_err())
        {
            let names = EventName::NAMED.map(|name| name.to_string());
            return Err(format!(
                "/event: it must be one of {}, or an extension such as example.carrier:picked_up",
                names.join(", ")
            ));
        }
        schema::validate("deal-event", &value).map_err(|e| e.to_string())?;
        let event = Self::deserialize(&value)
            .map_err(|_| "it does not have the form of an event".to_owned())?;
        if let EventName::Extension(name) = &event.event
            && RESERVED.iter().any(|domain| is_within(name, domain))
        {
            return Err(format!(
                "/event: `{name}` is no event of the binding, and extensions are named under a domain of their own"
            ));
        }
        // The schema's pattern, which every JSON Schema library must read, keeps out the digits of ASCII only.
        match &event.city {
            Some(city) if city.chars().any(char::is_numeric) => {
                Err("/city: it must have no digits".to_owned())
            }
            _ => Ok(event),
        }
    }
}

/// Whether the name is the domain's or a subdomain's, in reverse notation.
fn is_within(name: &str, domain: &str) -> bool {
    let rest = name.strip_prefix(domain);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ':']))
}

/// An event whose JWS carries the signature of the request's own key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedEvent {
    /// The payload.
    pub event: DealEvent,
    /// The compact JWS, for the record.
    pub jws: String,
}

/// In which capacities the caller may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer<'a> {
    /// The buyer's key signed.
    pub buyer: bool,
    /// The grant is the seller's.
    pub seller: bool,
    /// What the marketplace has configured its operator as.
    pub roles: &'a [Role],
    /// The operator, by its profile URL.
    pub operator: &'a str,
}

impl Writer<'_> {
    fn is(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// The second column of the table in binding 8.1.
    fn may_write(&self, event: &DealEvent) -> Result<(), Refusal> {
        use EventName as E;
        let (may, who) = match &event.event {
            // Who passes on what another reported has not got the money.
            E::FundsHeld | E::Released | E::Refund => (
                self.is(Role::FundsHolder) && event.observation == Observation::FirstHand,
                "this event is the holder of funds' to write, as first_hand",
            ),
            E::Accepted | E::Rejected => (
                self.buyer,
                "this event is the buyer's to write, with the key that redeemed the checkout",
            ),
            E::Shipped | E::Delivered | E::ReturnedToSender => (
                match event.observation {
                    Observation::FirstHand => self.is(Role::Carrier),
                    Observation::Relayed => self.is(Role::Marketplace),
                },
                "this event is the carrier's to write as first_hand, or the marketplace's as relayed",
            ),
            E::Return => (
                self.seller || self.is(Role::Carrier) || self.is(Role::Custodian),
                "this event is the seller's, the carrier's or the custodian's to write",
            ),
            E::Extension(_) => (
                self.buyer || self.seller || !self.roles.is_empty(),
                "an extension event is a party's or a role's to write",
            ),
        };
        match may {
            true => Ok(()),
            false => Err(Refusal::forbid(Reason::ActionForbidden, who)),
        }
    }
}

/// The event that releases the funds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the term's
pub enum ReleaseCondition {
    #[default]
    Accepted,
    Delivered,
    Shipped,
}

/// What a deal's money depends on: the listing's terms as its offer was accepted under them, since accepted Deal Terms
/// are fixed (binding 5.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// What releases the funds.
    pub release_condition: ReleaseCondition,
    /// From how many days after `funds_held` a buyer may say that nothing came; without it, never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_within_days: Option<u32>,
    /// With which observation an event counts. Never of the money's own events (schema `term-set`): money that has moved
    /// must not be taken for money that has not.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub required_observation: BTreeMap<EventName, Observation>,
}

impl Rules {
    /// Those of a listing as it is now.
    pub fn of(listing: &Listing, sets: &TermSets) -> Self {
        let terms = listing.terms.as_ref().map(|terms| &terms.public);
        let condition = terms.and_then(|terms| terms.release_condition.clone());
        Self {
            // What is none of the three would be an event that moves no money: the buyer's word is asked for instead.
            release_condition: condition
                .and_then(|name| ReleaseCondition::deserialize(Value::String(name)).ok())
                .unwrap_or_default(),
            deliver_within_days: terms.and_then(|terms| terms.deliver_within_days),
            required_observation: sets
                .get(&listing.term_set)
                .map(|set| set.required_observation().clone())
                .unwrap_or_default(),
        }
    }

    /// Whether the event changes where the deal stands (binding 8.1, 10a).
    pub fn count(&self, event: &DealEvent) -> bool {
        let required = self.required_observation.get(&event.event);
        !matches!(event.event, EventName::Extension(_))
            && required.is_none_or(|required| *required == event.observation)
    }
}

/// Where the money is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Funds {
    /// Not held yet.
    Open,
    /// With the holder of funds.
    Held,
    /// With the seller.
    Released,
    /// Back with the buyer.
    Refunded,
}

/// What the recorded events have come to; each point in time is when the event was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Progress {
    /// The ids of all recorded events.
    event_ids: Vec<String>,
    /// The operator that holds the funds: the one that said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    at: At,
}

/// When what counts was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct At {
    #[serde(skip_serializing_if = "Option::is_none")]
    funds_held_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shipped_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivered_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    returned_to_sender_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_reason: Option<RejectReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    returned_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    released_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refunded_at: Option<Timestamp>,
}

impl At {
    fn of(&self, event: &EventName) -> Option<Timestamp> {
        match event {
            EventName::FundsHeld => self.funds_held_at,
            EventName::Accepted => self.accepted_at,
            EventName::Rejected => self.rejected_at,
            EventName::Released => self.released_at,
            EventName::Shipped => self.shipped_at,
            EventName::Delivered => self.delivered_at,
            EventName::ReturnedToSender => self.returned_to_sender_at,
            EventName::Return => self.returned_at,
            EventName::Refund => self.refunded_at,
            EventName::Extension(_) => None,
        }
    }

    fn set(&mut self, event: &DealEvent, now: Timestamp) {
        let at = match event.event {
            EventName::FundsHeld => &mut self.funds_held_at,
            EventName::Accepted => &mut self.accepted_at,
            EventName::Rejected => {
                self.rejected_reason = event.reason;
                &mut self.rejected_at
            }
            EventName::Released => &mut self.released_at,
            EventName::Shipped => &mut self.shipped_at,
            EventName::Delivered => &mut self.delivered_at,
            EventName::ReturnedToSender => &mut self.returned_to_sender_at,
            EventName::Return => &mut self.returned_at,
            EventName::Refund => &mut self.refunded_at,
            EventName::Extension(_) => return,
        };
        *at = Some(now);
    }
}

impl Progress {
    /// When an event that counts was recorded.
    pub fn at(&self, event: &EventName) -> Option<Timestamp> {
        self.at.of(event)
    }

    /// Where the money is.
    pub fn funds(&self) -> Funds {
        match (
            self.at.released_at,
            self.at.refunded_at,
            self.at.funds_held_at,
        ) {
            (Some(_), _, _) => Funds::Released,
            (_, Some(_), _) => Funds::Refunded,
            (_, _, Some(_)) => Funds::Held,
            (None, None, None) => Funds::Open,
        }
    }

    /// What the parties see, by the names of the schema `deal`.
    pub(crate) fn view(&self) -> Value {
        let mut view = json!(self.at);
        view["status"] = json!(self.funds());
        view
    }

    fn informative(&self) -> usize {
        let counted = EventName::NAMED.iter();
        let counted = counted.filter(|event| self.at(event).is_some()).count();
        self.event_ids.len().saturating_sub(counted)
    }

    /// The last column of the table in binding 8.1, and that nothing happens twice.
    fn allows(&self, rules: &Rules, event: &DealEvent, now: Timestamp) -> Result<(), &'static str> {
        use EventName as E;
        let At {
            accepted_at,
            rejected_at,
            rejected_reason,
            returned_at,
            ..
        } = self.at;
        let must = |holds: bool, else_say| if holds { Ok(()) } else { Err(else_say) };
        if matches!(event.event, E::Extension(_)) {
            return Ok(());
        }
        must(
            !matches!(self.funds(), Funds::Released | Funds::Refunded),
            "the funds were released or refunded already; the deal takes extension events only",
        )?;
        must(
            self.at(&event.event).is_none(),
            "this event was recorded already; it happens once",
        )?;
        let Some(held_at) = self.at.funds_held_at else {
            return must(
                event.event == E::FundsHeld,
                "no funds are held yet; funds_held comes first",
            );
        };
        match event.event {
            E::FundsHeld | E::Extension(_) | E::Shipped | E::Delivered | E::ReturnedToSender => {
                Ok(())
            }
            E::Accepted | E::Rejected => {
                must(
                    accepted_at.or(rejected_at).is_none(),
                    "the buyer has accepted or rejected already",
                )?;
                let overdue = rules
                    .deliver_within_days
                    .is_some_and(|days| now >= held_at.plus(i64::from(days) * DAY));
                must(
                    event.reason != Some(RejectReason::NotReceived) || overdue,
                    "not_received is open once deliver_within_days have passed since funds_held, where the terms have it",
                )
            }
            E::Return => must(
                rejected_reason == Some(RejectReason::NotAsDescribed),
                "a return follows a rejection as not_as_described",
            ),
            E::Released => {
                must(
                    rejected_at.is_none(),
                    "the buyer has rejected; after that the funds are only refunded",
                )?;
                let condition = match rules.release_condition {
                    ReleaseCondition::Accepted => E::Accepted,
                    ReleaseCondition::Delivered => E::Delivered,
                    ReleaseCondition::Shipped => E::Shipped,
                };
                must(
                    self.at(&condition).is_some(),
                    "the release condition of the listing's terms is not met",
                )
            }
            E::Refund => must(
                match rejected_reason {
                    Some(RejectReason::NotAsDescribed) => returned_at.is_some(),
                    Some(RejectReason::NotReceived) => true,
                    None => false,
                },
                "a refund follows a rejection as not_received, or one as not_as_described and the return",
            ),
        }
    }
}

/// Records an event: the deal's progress after it, or why it is refused.
///
/// # Errors
/// 400 for an event from the future, 403 `action_forbidden` for another writer's, 409 `release_condition_unmet` where the
/// precondition does not hold, the event or its id was recorded before, or the deal keeps no more informative events.
pub fn record(
    progress: &Progress,
    rules: &Rules,
    event: &DealEvent,
    writer: Writer<'_>,
    now: Timestamp,
) -> Result<Progress, Refusal> {
    if event.occurred_at > now.plus(AHEAD) {
        return Err(Refusal::invalid(
            "occurred_at of the event is in the future",
        ));
    }
    writer.may_write(event)?;
    // Of several that a marketplace has, the one that has the money.
    let moves = matches!(event.event, EventName::Released | EventName::Refund);
    if moves
        && progress
            .holder
            .as_ref()
            .is_some_and(|holder| holder != writer.operator)
    {
        return Err(Refusal::forbid(
            Reason::ActionForbidden,
            "this event is to be written by the operator that holds the funds of this deal",
        ));
    }
    let unmet = |message| Refusal::forbid(Reason::ReleaseConditionUnmet, message);
    if progress.event_ids.contains(&event.event_id) {
        return Err(unmet("an event of this event_id was recorded already"));
    }
    progress.allows(rules, event, now).map_err(unmet)?;
    let mut after = progress.clone();
    if rules.count(event) {
        after.at.set(event, now);
        if event.event == EventName::FundsHeld {
            after.holder = Some(writer.operator.to_owned());
        }
    } else if progress.informative() >= MAX_INFORMATIVE {
        return Err(unmet(
            "this deal keeps no more events that change nothing; those that count are still taken",
        ));
    }
    after.event_ids.push(event.event_id.clone());
    Ok(after)
}
