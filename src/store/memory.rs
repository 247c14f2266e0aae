//! The store for tests and benches.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    ops::Bound,
    sync::{Arc, Mutex},
};

use bytes::Bytes;

use super::{
    BoxFuture, Claim, ClaimStep, CommitError, Committed, Count, Doc, IdempotencyKey, Key, Kind,
    Put, Store, StoreError, Unit, Used, Version, WindowCheck, each_key_once,
};
use crate::protocol::{
    record::{Entry, FIRST_PREV_HASH, Seal, Sealed, Subject},
    time::Timestamp,
};

/// A store in memory, gone with the process. Clones share their state.
///
/// One lock holds everything; entries are sealed under it. Should sealing panic, the store answers nothing from then
/// on.
#[derive(Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

/// How much one turn of the sweep forgets before it lets others at the lock.
const SWEEP_TURN: usize = 1024;

impl MemoryStore {
    fn locked<T>(&self, act: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        match self.state.lock() {
            Ok(mut state) => Ok(act(&mut state)),
            Err(_) => Err(StoreError(
                "a commit panicked, so that the state in memory cannot be trusted; restart".into(),
            )),
        }
    }
}

impl Store for MemoryStore {
    fn load(&self, keys: Vec<Key>) -> BoxFuture<'_, Result<Vec<Option<Doc>>, StoreError>> {
        Box::pin(async move {
            self.locked(|state| {
                let doc = |key| state.docs.get(&key).map(|row| row.to_doc(key));
                keys.into_iter().map(doc).collect()
            })
        })
    }

    fn list(
        &self,
        kind: Kind,
        parent: String,
        after: Option<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>> {
        Box::pin(async move {
            self.locked(|state| {
                let Some(ids) = state.children.get(&(kind, parent)) else {
                    return Vec::new();
                };
                let after = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let keys = ids
                    .range::<str, _>((after, Bound::Unbounded))
                    .map(|id| Key::new(kind, id));
                state.docs_of(keys, limit)
            })
        })
    }

    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>> {
        Box::pin(async move {
            self.locked(|state| {
                let overdue = state.due.iter().take_while(|(due, ..)| *due <= now);
                let keys = overdue.map(|(_, _, key)| key.clone());
                state.docs_of(keys, limit)
            })
        })
    }

    fn windows(
        &self,
        names: Vec<String>,
        since: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Vec<Timestamp>>, StoreError>> {
        Box::pin(async move {
            self.locked(|state| {
                let times = |name: &String| {
                    let events = state.events(name, since);
                    events.iter().map(|event| event.at).collect()
                };
                names.iter().map(times).collect()
            })
        })
    }

    fn used(
        &self,
        key: IdempotencyKey,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Used>, StoreError>> {
        Box::pin(async move {
            self.locked(|state| state.claimed(&key, now).map(|row| row.used.clone()))
        })
    }

    fn chain(
        &self,
        subject: Subject,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Sealed>, StoreError>> {
        Box::pin(async move {
            self.locked(|state| {
                let chain = state.chains.get(&subject).map_or(&[][..], Vec::as_slice);
                let from = usize::try_from(from).unwrap_or(usize::MAX);
                chain.iter().skip(from).take(limit).cloned().collect()
            })
        })
    }

    fn head(&self, subject: Subject) -> BoxFuture<'_, Result<Option<Sealed>, StoreError>> {
        Box::pin(async move {
            self.locked(|state| state.chains.get(&subject).and_then(|c| c.last().cloned()))
        })
    }

    fn commit(
        &self,
        unit: Unit,
        seal: Arc<dyn Seal>,
    ) -> BoxFuture<'_, Result<Committed, CommitError>> {
        Box::pin(async move { self.locked(|state| state.commit(unit, &*seal))? })
    }

    fn sweep(&self, now: Timestamp) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(async move {
            let mut forgotten = 0;
            while let Some(more) = self.locked(|state| state.sweep_turn(now))? {
                forgotten += more;
            }
            Ok(forgotten)
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.locked(|_| ()) })
    }
}

/// Shows nothing of what is stored: private terms are among it.
impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    docs: HashMap<Key, DocRow>,
    /// The ids under each parent.
    children: HashMap<(Kind, String), BTreeSet<String>>,
    /// What the sweep must look at: due, then the name of the kind and the id (which the key repeats).
    due: BTreeSet<(Timestamp, &'static str, Key)>,
    chains: HashMap<Subject, Vec<Sealed>>,
    /// Each window's events, oldest first.
    windows: HashMap<Arc<str>, Vec<Event>>,
    keys: HashMap<Arc<IdempotencyKey>, KeyRow>,
    /// Where something may have to be forgotten. A key that was taken again stands here twice.
    expiring: BTreeMap<Timestamp, Vec<Expiring>>,
}

struct DocRow {
    version: Version,
    parent: Option<String>,
    due: Option<Timestamp>,
    body: Bytes,
}

struct Event {
    at: Timestamp,
    expires: Timestamp,
}

struct KeyRow {
    used: Used,
    expires: Timestamp,
}

enum Expiring {
    Key(Arc<IdempotencyKey>),
    Window(Arc<str>),
}

impl DocRow {
    fn to_doc(&self, key: Key) -> Doc {
        Doc {
            key,
            version: self.version,
            body: self.body.clone(),
        }
    }
}

impl State {
    fn docs_of(&self, keys: impl Iterator<Item = Key>, limit: usize) -> Vec<Doc> {
        keys.take(limit)
            .filter_map(|key| self.docs.get(&key).map(|row| row.to_doc(key)))
            .collect()
    }

    fn version(&self, key: &Key) -> Version {
        self.docs.get(key).map_or(0, |row| row.version)
    }

    fn events(&self, window: &str, since: Timestamp) -> &[Event] {
        let events = self.windows.get(window).map_or(&[][..], Vec::as_slice);
        &events[events.partition_point(|event| event.at <= since)..]
    }

    fn claimed(&self, key: &IdempotencyKey, now: Timestamp) -> Option<&KeyRow> {
        self.keys.get(key).filter(|row| row.expires > now)
    }

    fn commit(&mut self, unit: Unit, seal: &dyn Seal) -> Result<Committed, CommitError> {
        each_key_once(&unit)?;
        if unit.claim.as_ref().is_some_and(|claim| !self.fits(claim)) {
            return Err(CommitError::KeyTaken);
        }
        let unchanged = |key, version| self.version(key) == version;
        let counted =
            |check: &WindowCheck| self.events(&check.window, check.since).len() == check.expected;
        if !unit
            .read
            .iter()
            .all(|(key, version)| unchanged(key, *version))
            || !unit.put.iter().all(|put| unchanged(&put.key, put.expected))
            || !unit
                .delete
                .iter()
                .all(|(key, version)| *version > 0 && unchanged(key, *version))
            || !unit.windows.iter().all(counted)
        {
            return Err(CommitError::Conflict);
        }
        let entries = self.seal(&unit.entries, seal)?;

        // Nothing fails from here on.
        for put in unit.put {
            self.put(put);
        }
        for (key, _) in unit.delete {
            self.delete(key);
        }
        for count in unit.counts {
            self.count(count);
        }
        if let Some(claim) = unit.claim {
            self.claim(claim);
        }
        for sealed in &entries {
            match self.chains.get_mut(&sealed.subject) {
                Some(chain) => chain.push(sealed.clone()),
                None => {
                    self.chains
                        .insert(sealed.subject.clone(), vec![sealed.clone()]);
                }
            }
        }
        Ok(Committed { entries })
    }

    fn fits(&self, claim: &Claim) -> bool {
        let row = self.claimed(&claim.key, claim.at);
        match claim.step {
            ClaimStep::Begin | ClaimStep::Settle(_) => row.is_none(),
            ClaimStep::Complete(_) => row.is_some_and(|KeyRow { used, .. }| {
                used.digest == claim.digest && used.response.is_none()
            }),
        }
    }

    fn seal(&self, entries: &[Entry], seal: &dyn Seal) -> Result<Vec<Sealed>, StoreError> {
        let mut done: Vec<Sealed> = Vec::with_capacity(entries.len());
        for entry in entries {
            let of_unit = done.iter().rev().find(|last| last.subject == entry.subject);
            let last = of_unit.or_else(|| self.chains.get(&entry.subject)?.last());
            let (seq, prev_hash) = match last {
                Some(last) => (last.seq + 1, last.hash.as_str()),
                None => (0, FIRST_PREV_HASH),
            };
            let sealed = seal.seal(entry, seq, prev_hash);
            done.push(sealed.map_err(|error| StoreError(error.to_string()))?);
        }
        Ok(done)
    }

    fn put(&mut self, put: Put) {
        let Put {
            key,
            parent,
            due,
            body,
            ..
        } = put;
        match self.docs.get_mut(&key) {
            Some(row) => {
                if row.due != due {
                    if let Some(due) = row.due {
                        self.due.remove(&(due, key.kind.as_str(), key.clone()));
                    }
                    row.due = due;
                    self.due
                        .extend(due.map(|due| (due, key.kind.as_str(), key)));
                }
                row.version += 1;
                row.body = body;
            }
            None => {
                if let Some(parent) = &parent {
                    self.children
                        .entry((key.kind, parent.clone()))
                        .or_default()
                        .insert(key.id.clone());
                }
                self.due
                    .extend(due.map(|due| (due, key.kind.as_str(), key.clone())));
                let row = DocRow {
                    version: 1,
                    parent,
                    due,
                    body,
                };
                self.docs.insert(key, row);
            }
        }
    }

    fn delete(&mut self, key: Key) {
        let Some(row) = self.docs.remove(&key) else {
            return;
        };
        if let Some(parent) = row.parent {
            let under = (key.kind, parent);
            if let Some(ids) = self.children.get_mut(&under) {
                ids.remove(&key.id);
                if ids.is_empty() {
                    self.children.remove(&under);
                }
            }
        }
        if let Some(due) = row.due {
            self.due.remove(&(due, key.kind.as_str(), key));
        }
    }

    fn count(&mut self, count: Count) {
        let Count {
            window,
            at,
            expires,
        } = count;
        let name = match self.windows.get_key_value(&*window) {
            Some((name, _)) => name.clone(),
            None => Arc::from(window),
        };
        let events = self.windows.entry(name.clone()).or_default();
        let place = events.partition_point(|event| event.at <= at);
        events.insert(place, Event { at, expires });
        self.expire(expires, Expiring::Window(name));
    }

    fn claim(&mut self, claim: Claim) {
        let response = match claim.step {
            ClaimStep::Begin => None,
            ClaimStep::Settle(response) => Some(response),
            ClaimStep::Complete(response) => {
                if let Some(row) = self.keys.get_mut(&claim.key) {
                    row.used.response = Some(response);
                }
                return;
            }
        };
        let key = Arc::new(claim.key);
        let row = KeyRow {
            used: Used {
                digest: claim.digest,
                response,
            },
            expires: claim.expires,
        };
        self.keys.insert(key.clone(), row);
        self.expire(claim.expires, Expiring::Key(key));
    }

    fn expire(&mut self, expires: Timestamp, what: Expiring) {
        self.expiring.entry(expires).or_default().push(what);
    }

    /// Forgets a turn's worth of what has expired, and returns how many; `None` when nothing is left.
    fn sweep_turn(&mut self, now: Timestamp) -> Option<usize> {
        let mut forgotten = 0;
        let mut looked_at = 0;
        while looked_at < SWEEP_TURN {
            let Some(mut first) = self.expiring.first_entry().filter(|e| *e.key() <= now) else {
                break;
            };
            match first.get_mut().pop() {
                Some(Expiring::Key(key)) => {
                    if self.keys.get(&key).is_some_and(|row| row.expires <= now) {
                        self.keys.remove(&key);
                        forgotten += 1;
                    }
                }
                Some(Expiring::Window(name)) => {
                    if let Some(events) = self.windows.get_mut(&name) {
                        let before = events.len();
                        events.retain(|event| event.expires > now);
                        forgotten += before - events.len();
                        if events.is_empty() {
                            self.windows.remove(&name);
                        }
                    }
                }
                None => {
                    first.remove();
                }
            }
            looked_at += 1;
        }
        (looked_at > 0).then_some(forgotten)
    }
}
