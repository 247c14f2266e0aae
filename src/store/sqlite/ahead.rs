//! Sealing ahead of the writer. An entry's hash covers its signature, so the entries of one chain are signed one after
//! the other; but that takes nothing from the transaction except the chain's end, and so a thread beside the writer can
//! do it. It assumes that every unit of the group will be committed. What it makes is used only in the place that it
//! was made for, which the writer determines as ever; otherwise the writer seals for itself.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
};

use rusqlite::Connection;

use super::unit;
use crate::{
    protocol::record::{Entry, Seal, SealError, Sealed, Subject},
    store::{StoreError, Unit},
};

/// A unit to commit, and how its entries are sealed.
pub(super) struct Sealing {
    pub(super) unit: Unit,
    seal: Arc<dyn Seal>,
    ahead: Mutex<Option<Receiver<Placed>>>,
}

/// An entry, and the hash that it follows.
struct Placed {
    prev_hash: String,
    sealed: Sealed,
}

/// What to seal ahead, and for whom.
pub(super) struct Job {
    sealing: Arc<Sealing>,
    done: Sender<Placed>,
}

impl Sealing {
    pub(super) fn new(unit: Unit, seal: Arc<dyn Seal>) -> Self {
        Self {
            unit,
            seal,
            ahead: Mutex::default(),
        }
    }

    /// From here on, the writer waits for what the job makes, or for its end.
    pub(super) fn job(self: &Arc<Self>) -> Job {
        let (done, ahead) = channel();
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = Some(ahead);
        Job {
            sealing: self.clone(),
            done,
        }
    }
}

impl Seal for Sealing {
    fn seal(&self, entry: &Entry, seq: u64, prev_hash: &str) -> Result<Sealed, SealError> {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        match ahead.as_ref().and_then(|ahead| ahead.recv().ok()) {
            Some(Placed {
                prev_hash: prev,
                sealed,
            }) if sealed.subject == entry.subject && sealed.seq == seq && prev == prev_hash => {
                Ok(sealed)
            }
            _ => self.seal.seal(entry, seq, prev_hash),
        }
    }
}

/// Does the jobs of a group, in the writer's order. What fails is left to the writer, which answers for it.
pub(super) fn seal_all(db: &Connection, jobs: Vec<Job>) -> Result<(), StoreError> {
    let mut ends: HashMap<Subject, (u64, String)> = HashMap::new();
    for Job { sealing, done } in jobs {
        for entry in &sealing.unit.entries {
            let (seq, prev_hash) = match ends.remove(&entry.subject) {
                Some(end) => end,
                None => unit::next_place(db, &entry.subject.to_string())?,
            };
            let sealed = sealing.seal.seal(entry, seq, &prev_hash);
            let sealed = sealed.map_err(|error| StoreError(error.to_string()))?;
            ends.insert(entry.subject.clone(), (seq + 1, sealed.hash.clone()));
            // Nobody waits where the unit was refused.
            let _ = done.send(Placed { prev_hash, sealed });
        }
    }
    Ok(())
}
