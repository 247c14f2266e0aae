//! The threads: one that writes, one that seals for it, and a few that read.

use std::{
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    SqliteError, SqliteOptions,
    ahead::{Sealing, seal_all},
    answer,
    file::{self, File, Opened},
    query::{execute, get, one},
    unit,
};
use crate::store::{BoxFuture, CommitError, Committed, StoreError};

/// From how many pages on the WAL is written back to the file: 16 MB. SQLite's own default is a quarter of that, which a
/// few large groups fill, and each time costs syncs and writes the same pages again.
const CHECKPOINT_PAGES: i64 = 4000;

/// How many units with entries a group must have for waking a thread to seal them ahead to be worth it.
const SEALED_AHEAD: usize = 4;

/// The store's threads. They end, with all that waits answered, when this is dropped.
pub(super) struct Workers {
    writes: Arc<Queue<Box<dyn Write>>>,
    reads: Arc<Queue<Read>>,
    lookups: Vec<Mutex<Connection>>,
    seals: Arc<Queue<Read>>,
    writer: Option<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
}

type Read = Box<dyn FnOnce(&Connection) + Send>;

impl Workers {
    /// Opens the file on the thread that will write it, so that the caller's is not held up.
    pub(super) async fn start(path: &Path, options: SqliteOptions) -> Result<Self, SqliteError> {
        let failed = |reason: String| SqliteError::Other {
            path: path.to_owned(),
            reason,
        };
        let mut workers = Self {
            writes: Arc::default(),
            reads: Arc::default(),
            lookups: Vec::new(),
            seals: Arc::default(),
            writer: None,
            readers: Vec::new(),
        };
        let (opened, wait) = oneshot::channel();
        let (writes, seals) = (workers.writes.clone(), workers.seals.clone());
        let file = path.to_owned();
        let writer = move || match file::open(&file, &options) {
            Ok(Opened {
                file,
                writer,
                readers,
                lookups,
                sealer,
            }) => {
                if opened.send(Ok((readers, lookups, sealer))).is_ok() {
                    write_all(&writer, &file, &writes, &seals, options.max_group);
                }
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        };
        workers.writer = Some(spawn("rctp-sqlite-write", writer).map_err(failed)?);
        let (readers, lookups, sealer) = wait
            .await
            .map_err(|_| failed("its thread panicked".into()))??;
        workers.lookups = lookups.into_iter().map(Mutex::new).collect();
        let reading = readers
            .into_iter()
            .map(|db| ("rctp-sqlite-read", db, workers.reads.clone()));
        let sealing = ("rctp-sqlite-seal", sealer, workers.seals.clone());
        for (name, db, queue) in reading.chain([sealing]) {
            let reader = spawn(name, move || read_all(&db, &queue));
            workers.readers.push(reader.map_err(failed)?);
        }
        Ok(workers)
    }

    /// Runs `work` on a thread that reads, in one snapshot.
    pub(super) fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        Box::pin(async move {
            let (done, wait) = oneshot::channel();
            self.reads.push(Box::new(move |db: &Connection| {
                let snapshot = Snapshot::of(db);
                let _ = done.send(snapshot.and_then(|snapshot| work(snapshot.0)));
            }));
            answer(wait).await
        })
    }

    /// Runs `work`, which looks a few rows up, here and now: a thread would take longer to wake. Where no connection is
    /// free, and where it fails, which may be for a lock that is not waited for here, a thread does it.
    pub(super) fn look_up<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        Box::pin(async move {
            if let Some(found) = self.look_up_here(&work) {
                return Ok(found);
            }
            self.read(work).await
        })
    }

    fn look_up_here<T>(&self, work: impl Fn(&Connection) -> Result<T, StoreError>) -> Option<T> {
        let db = self.lookups.iter().find_map(|db| db.try_lock().ok())?;
        let snapshot = Snapshot::of(&db).ok()?;
        work(snapshot.0).ok()
    }

    /// Runs `work` on the thread that writes, and answers once that is durable.
    pub(super) fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Result<T, CommitError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, CommitError>> {
        self.queue(work, None)
    }

    /// Commits a unit, and answers once that is durable.
    pub(super) fn commit(&self, sealing: Sealing) -> BoxFuture<'_, Result<Committed, CommitError>> {
        let sealing = Arc::new(sealing);
        let entries = (!sealing.unit.entries.is_empty()).then(|| sealing.clone());
        self.queue(
            move |db| unit::commit(db, &sealing.unit, &*sealing),
            entries,
        )
    }

    fn queue<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Result<T, CommitError> + Send + 'static,
        entries: Option<Arc<Sealing>>,
    ) -> BoxFuture<'_, Result<T, CommitError>> {
        Box::pin(async move {
            let (done, wait) = oneshot::channel();
            self.writes.push(Box::new(Writing {
                work,
                entries,
                done: None,
                answer: done,
            }));
            answer(wait).await
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // The writer goes last: only a connection that may write can fold the WAL into the file, and the last does.
        self.lookups.clear();
        self.reads.close();
        self.seals.close();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        self.writes.close();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, String> {
    let thread = thread::Builder::new().name(name.into()).spawn(body);
    thread.map_err(|error| error.to_string())
}

fn read_all(db: &Connection, reads: &Queue<Read>) {
    let _ending = CloseOnDrop(reads);
    loop {
        let taken = reads.take(1);
        if taken.is_empty() {
            return;
        }
        for read in taken {
            // A panic drops the way to answer, so that the caller learns of it.
            let _ = catch_unwind(AssertUnwindSafe(|| read(db)));
        }
    }
}

/// A transaction that reads, until it is dropped.
struct Snapshot<'a>(&'a Connection);

impl<'a> Snapshot<'a> {
    fn of(db: &'a Connection) -> Result<Self, StoreError> {
        execute(db, "BEGIN", [])?;
        Ok(Self(db))
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // Should it fail, the next BEGIN says so.
        let _ = execute(self.0, "COMMIT", []);
    }
}

fn write_all(
    db: &Connection,
    file: &File,
    writes: &Queue<Box<dyn Write>>,
    seals: &Queue<Read>,
    max_group: usize,
) {
    let _ending = CloseOnDrop(writes);
    loop {
        let mut group = writes.take(max_group.max(1));
        if group.is_empty() {
            return;
        }
        let entries: Vec<_> = group.iter().filter_map(|write| write.entries()).collect();
        if entries.len() >= SEALED_AHEAD {
            let jobs = entries.into_iter().map(Sealing::job).collect();
            seals.push(Box::new(move |db| {
                // What comes of it reaches the writer by the jobs.
                let _ = Snapshot::of(db).and_then(|snapshot| seal_all(snapshot.0, jobs));
            }));
        }
        let committed = transact(db, file, &mut group);
        if let Err(error) = &committed {
            tracing::error!(%error, units = group.len(), "a transaction was not committed");
        }
        for write in group {
            write.answer(committed.clone());
        }
        if let Err(error) = checkpoint(db) {
            tracing::warn!(%error, "the WAL was not written back, and grows");
        }
    }
}

/// Commits a group. A savepoint a unit costs copies of pages and is hardly ever needed, so the group first goes without
/// them, and is done again when that left something to roll back.
fn transact(db: &Connection, file: &File, group: &mut [Box<dyn Write>]) -> Result<(), StoreError> {
    match attempt(db, file, group, Write::run)? {
        Left::Nothing => Ok(()),
        Left::Changes => attempt(db, file, group, Write::run_behind_savepoint).map(|_| ()),
    }
}

/// Runs a group in a transaction, which is committed unless a refused unit has left changes in it.
fn attempt(
    db: &Connection,
    file: &File,
    group: &mut [Box<dyn Write>],
    run: impl Fn(&mut (dyn Write + 'static), &Connection) -> Result<Left, StoreError>,
) -> Result<Left, StoreError> {
    let attempt = || {
        execute(db, "BEGIN IMMEDIATE", [])?;
        for write in group {
            if run(&mut **write, db)? == Left::Changes {
                return Ok(Left::Changes);
            }
        }
        file.check()?;
        execute(db, "COMMIT", [])?;
        Ok(Left::Nothing)
    };
    let done = attempt();
    if !db.is_autocommit() {
        execute(db, "ROLLBACK", [])?;
    }
    done
}

/// What a unit that was refused has left in the transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Changes,
}

/// Writes the WAL back once it is long enough. SQLite would do it inside COMMIT, before anybody is answered, and would
/// report its failure as COMMIT's although the transaction is durable.
fn checkpoint(db: &Connection) -> Result<(), StoreError> {
    let pages = one(db, "PRAGMA wal_checkpoint(NOOP)", [], |row| get(row, 1))?;
    if pages >= Some(CHECKPOINT_PAGES) {
        one(db, "PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    }
    Ok(())
}

/// Something to do in a transaction, and to answer after it.
trait Write: Send {
    /// The unit whose entries may be sealed ahead.
    fn entries(&self) -> Option<&Arc<Sealing>>;

    /// Does it. An error is one of the whole transaction.
    fn run(&mut self, db: &Connection) -> Result<Left, StoreError>;

    /// Does it, and leaves nothing when it is refused.
    fn run_behind_savepoint(&mut self, db: &Connection) -> Result<Left, StoreError> {
        execute(db, "SAVEPOINT unit", [])?;
        if self.run(db)? == Left::Changes {
            execute(db, "ROLLBACK TO unit", [])?;
        }
        execute(db, "RELEASE unit", [])?;
        Ok(Left::Nothing)
    }

    /// Answers with what came of it if the transaction was committed.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Writing<F, T> {
    work: F,
    entries: Option<Arc<Sealing>>,
    done: Option<Result<T, CommitError>>,
    answer: oneshot::Sender<Result<T, CommitError>>,
}

impl<F, T> Write for Writing<F, T>
where
    F: Fn(&Connection) -> Result<T, CommitError> + Send,
    T: Send,
{
    fn entries(&self) -> Option<&Arc<Sealing>> {
        self.entries.as_ref()
    }

    fn run(&mut self, db: &Connection) -> Result<Left, StoreError> {
        let before = db.total_changes();
        let done = catch_unwind(AssertUnwindSafe(|| (self.work)(db)));
        let done = done.unwrap_or_else(|_| Err(StoreError("the commit panicked".into()).into()));
        // Out of space or memory, SQLite may have rolled back everything, the neighbours too.
        if let Err(CommitError::Store(error)) = &done
            && db.is_autocommit()
        {
            return Err(error.clone());
        }
        let left = match &done {
            Err(_) if db.total_changes() != before => Left::Changes,
            _ => Left::Nothing,
        };
        self.done = Some(done);
        Ok(left)
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let done = match (committed, self.done) {
            (Ok(()), Some(done)) => done,
            (Ok(()), None) => Err(StoreError("the commit was not tried".into()).into()),
            (Err(error), _) => Err(error.into()),
        };
        let _ = self.answer.send(done);
    }
}

/// What waits for a thread.
struct Queue<T> {
    state: Mutex<Waiting<T>>,
    arrived: Condvar,
}

struct Waiting<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(Waiting {
                items: VecDeque::new(),
                closed: false,
            }),
            arrived: Condvar::new(),
        }
    }
}

impl<T> Queue<T> {
    /// Adds an item, or drops it when nobody will take it any more.
    fn push(&self, item: T) {
        let mut state = self.lock();
        if !state.closed {
            state.items.push_back(item);
            drop(state);
            self.arrived.notify_one();
        }
    }

    /// Waits for items, and takes at most this many; none when the queue was closed and is empty.
    fn take(&self, most: usize) -> Vec<T> {
        let nothing = |state: &mut Waiting<T>| state.items.is_empty() && !state.closed;
        let state = self.arrived.wait_while(self.lock(), nothing);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let count = state.items.len().min(most);
        state.items.drain(..count).collect()
    }

    /// Lets no more items in.
    fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        // Nothing can panic while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// However a thread ends, what waits for it must not wait for ever.
struct CloseOnDrop<'a, T>(&'a Queue<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.close();
        let left = mem::take(&mut self.0.lock().items);
        drop(left);
    }
}
