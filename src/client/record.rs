//! Verifies a record as the gateway hands it out (binding 8.2): the chain, its signed heads, and the events in it.

use std::{collections::HashSet, fmt};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    protocol::{
        event::{DealEvent, EVENT_TYP},
        record::{Broken, NoHead, Subject, verify_chain, verify_head},
        terms::hash_of,
    },
    wire::{from_base64url, jwk::Keys, jws},
};

/// What an entry tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its place in the chain.
    pub seq: u64,
    /// When it was recorded.
    pub recorded_at: String,
    /// The operation and its decision, or what the marketplace did.
    pub what: String,
    /// The operator profile of the caller.
    pub by: Option<String>,
    /// The deal event that it recorded, and whether its writer's signature was checked.
    pub event: Option<(DealEvent, WriterSignature)>,
}

/// The signature of an event's writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterSignature {
    /// It verifies.
    Verified,
    /// The key is not among those that were given: the gateway alone vouches for it.
    KeyUnknown,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}  {}  {}", self.seq, self.recorded_at, self.what)?;
        if let Some((event, writer)) = &self.event {
            write!(f, ": {} {}", event.event, event.event_id)?;
            f.write_str(match writer {
                WriterSignature::Verified => ", signed by its writer",
                WriterSignature::KeyUnknown => ", its writer's key not given",
            })?;
        }
        match &self.by {
            Some(by) => write!(f, "  by {by}"),
            None => Ok(()),
        }
    }
}

/// What was verified of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Whose chain it is. Compare it with the one that was asked for: another deal's record is just as whole.
    pub subject: Subject,
    /// What each entry tells, in their order.
    pub told: Vec<Told>,
    /// How many entries the newest head covers, from the first one on; 0 without a head. What is missing after those at the
    /// end does not show.
    pub covered: usize,
}

impl Verified {
    /// Whether a head covers all of it, so that nothing is missing at its end as of that head.
    pub fn is_covered(&self) -> bool {
        self.covered == self.told.len()
    }
}

/// Why a record is not what the gateway wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenRecord {
    /// An entry does not fit.
    #[error(transparent)]
    Entry(#[from] Broken),
    /// A head does not.
    #[error(transparent)]
    Head(#[from] NoHead),
    /// There is no entry, and so no chain.
    #[error("there is no entry")]
    Empty,
    /// It is the chain of something else.
    #[error("this is the record of {found}, and not of {expected}")]
    Another {
        /// Whose it should be.
        expected: String,
        /// Whose it is.
        found: String,
    },
    /// The newest head is older than the last entries, so that a cut tail would not show.
    #[error("the newest head covers {covered} of {given} entries; ask for the record again")]
    Uncovered {
        /// How many entries it covers.
        covered: usize,
        /// How many there are.
        given: usize,
    },
    /// There is an entry after the last one that was given.
    #[error(
        "the tail is cut: the gateway signed a head at entry {head}, and {given} entries were given"
    )]
    Cut {
        /// The head's `seq`.
        head: u64,
        /// How many entries there were.
        given: usize,
    },
}

/// Verifies a whole chain from its first entry with the gateway's `keys`, the `heads` that came with it, and the events
/// in it: with the keys of their writers where `writers` has them.
///
/// A head is as old as the answer that it came with: of what came after it, see [`Verified::covered`]. Entries are JSON as it
/// was parsed; a parser that lets a member occur twice shows one of both.
///
/// # Errors
/// The first thing that does not fit.
pub fn verify_record(
    entries: &[Value],
    heads: &[Value],
    keys: &Keys,
    writers: &Keys,
) -> Result<Verified, BrokenRecord> {
    verify_chain(entries, keys)?;
    let subject = entries
        .first()
        .map(|first| Subject::deserialize(&first["subject"]));
    let Some(Ok(subject)) = subject else {
        return Err(BrokenRecord::Empty);
    };
    let mut covered = 0;
    for head in heads {
        let head = verify_head(head, keys)?;
        let entry = usize::try_from(head.seq).ok().and_then(|n| entries.get(n));
        let entry = entry.ok_or(BrokenRecord::Cut {
            head: head.seq,
            given: entries.len(),
        })?;
        if entry["subject"] != serde_json::json!(head.subject) {
            return Err(NoHead("it is that of another chain").into());
        }
        if hash_of(entry) != head.hash {
            return Err(NoHead("its hash is not that of the entry in its place").into());
        }
        covered = covered.max(
            usize::try_from(head.seq)
                .unwrap_or(usize::MAX)
                .saturating_add(1),
        );
    }
    Ok(Verified {
        subject,
        told: verify_events(entries, writers)?,
        covered,
    })
}

/// Says what each entry is, and verifies the deal events: each is of its schema, of this deal, what its entry says, signed
/// by the key that signed the call where `writers` has it, and there once. It does not look at the chain; see
/// [`verify_record`].
///
/// # Errors
/// The first entry that does not fit.
pub fn verify_events(entries: &[Value], writers: &Keys) -> Result<Vec<Told>, Broken> {
    let mut seen = HashSet::new();
    let told = entries.iter().enumerate().map(|(index, entry)| {
        let broken = |why| Broken { index, why };
        let text = |at: &str| entry.pointer(at).and_then(Value::as_str);
        let what = match (text("/operation"), text("/event")) {
            (Some(operation), _) => {
                let reason = text("/decision/reason").map(|r| format!(" ({r})"));
                let decision = text("/decision/decision").unwrap_or_default();
                format!("{operation}: {decision}{}", reason.unwrap_or_default())
            }
            (None, Some(event)) => event.to_owned(),
            (None, None) => return Err(broken("it is neither a decision nor an event")),
        };
        let event = match entry.get("deal_event") {
            None => None,
            Some(recorded) => {
                let (event, writer) = deal_event(entry, recorded, writers).map_err(broken)?;
                if !seen.insert(event.event_id.clone()) {
                    return Err(broken("its event was recorded before"));
                }
                Some((event, writer))
            }
        };
        Ok(Told {
            seq: entry["seq"].as_u64().unwrap_or_default(),
            recorded_at: text("/recorded_at").unwrap_or_default().to_owned(),
            what,
            by: text("/agent_profile").map(str::to_owned),
            event,
        })
    });
    told.collect()
}

fn deal_event(
    entry: &Value,
    recorded: &Value,
    writers: &Keys,
) -> Result<(DealEvent, WriterSignature), &'static str> {
    let token = recorded["jws"].as_str().ok_or("its event has no JWS")?;
    let parsed = jws::Compact::parse(token).map_err(|_| "the JWS of its event is malformed")?;
    let keyid = entry["keyid"]
        .as_str()
        .ok_or("it records an event, and no key that signed the call")?;
    if parsed.typ() != Some(EVENT_TYP) || parsed.kid().is_some_and(|kid| kid != keyid) {
        return Err("the JWS of its event is of another typ, or by another key than the call");
    }
    let writer = match writers.get(keyid) {
        Some(key) => {
            parsed
                .verify(EVENT_TYP, key)
                .map_err(|_| "the signature of its event does not verify")?;
            WriterSignature::Verified
        }
        None => WriterSignature::KeyUnknown,
    };
    let payload = token.split('.').nth(1).and_then(from_base64url);
    let payload = payload.ok_or("the JWS of its event is malformed")?;
    let event =
        DealEvent::read(&payload).map_err(|_| "its event is not of the schema deal-event")?;
    let same = recorded["event"] == event.event.as_str()
        && recorded["event_id"] == *event.event_id
        && entry["subject"]["id"] == *event.deal_id;
    match same {
        true => Ok((event, writer)),
        false => Err("its event is another one than it says, or of another deal"),
    }
}
