//! The embedded store: one SQLite file.

mod ahead;
mod file;
mod query;
mod rows;
mod unit;
mod worker;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;

use self::{ahead::Sealing, worker::Workers};
use super::{
    BoxFuture, CommitError, Committed, Doc, IdempotencyKey, Key, Kind, Store, StoreError, Unit,
    Used,
};
use crate::protocol::{
    record::{Seal, Sealed, Subject},
    time::Timestamp,
};

/// A store in one SQLite file. Clones share it; the last one to go closes it.
///
/// **What an answer means.** The file is in WAL mode with `synchronous=FULL`: a commit is answered once it would
/// survive a loss of power. One thread writes. It takes all units that wait, at most [`SqliteOptions::max_group`] of
/// them, into one transaction, and one sync to the disk serves them all. A refused unit leaves its neighbours standing:
/// nearly all are refused before they have written anything; where one is not, the transaction is rolled back and done
/// again, with each unit behind a savepoint of its own. No timer is involved: a unit that comes alone is committed
/// alone, at once.
///
/// **What a failure means.** When a transaction cannot be committed, every unit in it gets a [`StoreError`], and
/// nothing of it is there. One exception is SQLite's own: if the disk refuses the sync and the machine then loses
/// power, a transaction that was answered with an error may be there after all. It is never the other way round.
///
/// **Several processes** may open one file on one machine. Every transaction takes SQLite's write lock before it reads
/// the state that it is conditional on, and the end of a chain is read inside it, never from memory; so sequences
/// stay contiguous whoever writes. They take turns, and a turn is waited for as long as
/// [`SqliteOptions::busy_timeout`]. WAL needs shared memory, so a network file system will not do.
///
/// **The file itself.** While the store is open there are `-wal` and `-shm` files next to it, which belong to it. Copy
/// it with SQLite's own `.backup`, and close the store before putting a copy in its place: when it finds another file
/// at its path, or none, it commits nothing more.
#[derive(Clone)]
pub struct SqliteStore {
    workers: Arc<Workers>,
}

/// What can be set about a [`SqliteStore`]. The defaults suit a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// How many units may share one transaction.
    pub max_group: usize,
    /// How many connections read on the caller's thread, for lookups by key, and how many on threads of their own. Reads
    /// wait for nobody but each other.
    pub readers: usize,
    /// How long to wait for another process that writes.
    pub busy_timeout: Duration,
    /// How large the file may grow, in bytes; beyond that, commits fail as on a full disk. `None` for no limit.
    pub max_bytes: Option<u64>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            max_group: 256,
            readers: 2,
            busy_timeout: Duration::from_secs(5),
            max_bytes: None,
        }
    }
}

/// Why a file cannot be opened as a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SqliteError {
    /// The file is not there and cannot be made, or cannot be reached.
    #[error("{} cannot be opened: {reason}; its directory must exist and be writable", path.display())]
    CannotOpen {
        /// The file.
        path: PathBuf,
        /// What SQLite or the system says.
        reason: String,
    },
    /// The file, its directory or its file system is read-only.
    #[error("{} is read-only; the store needs to write it, and files next to it", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// Another process kept the file locked.
    #[error("{} stayed locked by another process; stop that, or wait until it is done", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file is no SQLite database.
    #[error("{} is no SQLite database; name another path, or move it away", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// The file is a database of another program.
    #[error("{} is a database of another program; name another path", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a newer version of this crate.
    #[error(
        "{} has schema version {found}, and this version of tower-rctp knows versions up to {known}; upgrade it",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// The file is damaged.
    #[error("{} is damaged: {reason}; restore it from a backup", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        reason: String,
    },
    /// The file could not be written for lack of space.
    #[error("{} cannot be written: the disk is full, or the file has reached its limit", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Anything else.
    #[error("{} cannot be used: {reason}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What SQLite or the system says.
        reason: String,
    },
}

impl SqliteStore {
    /// Opens the file, and creates it where there is none.
    ///
    /// # Errors
    /// See [`SqliteError`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, SqliteError> {
        Self::open_with(path, SqliteOptions::default()).await
    }

    /// Opens the file with these options, and creates it where there is none.
    ///
    /// # Errors
    /// See [`SqliteError`].
    pub async fn open_with(
        path: impl AsRef<Path>,
        options: SqliteOptions,
    ) -> Result<Self, SqliteError> {
        let workers = Workers::start(path.as_ref(), options).await?;
        Ok(Self {
            workers: Arc::new(workers),
        })
    }
}

impl Store for SqliteStore {
    fn load(&self, keys: Vec<Key>) -> BoxFuture<'_, Result<Vec<Option<Doc>>, StoreError>> {
        self.workers.look_up(move |db| rows::load(db, &keys))
    }

    fn list(
        &self,
        kind: Kind,
        parent: String,
        after: Option<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>> {
        self.workers
            .read(move |db| rows::list(db, kind, &parent, after.as_deref(), limit))
    }

    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>> {
        self.workers.read(move |db| rows::due(db, now, limit))
    }

    fn windows(
        &self,
        names: Vec<String>,
        since: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Vec<Timestamp>>, StoreError>> {
        self.workers
            .look_up(move |db| rows::windows(db, &names, since))
    }

    fn used(
        &self,
        key: IdempotencyKey,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Used>, StoreError>> {
        self.workers.look_up(move |db| rows::used(db, &key, now))
    }

    fn chain(
        &self,
        subject: Subject,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Sealed>, StoreError>> {
        self.workers
            .read(move |db| rows::chain(db, &subject, from, limit))
    }

    fn head(&self, subject: Subject) -> BoxFuture<'_, Result<Option<Sealed>, StoreError>> {
        self.workers.read(move |db| {
            let (next, _) = unit::next_place(db, &subject.to_string())?;
            match next.checked_sub(1) {
                Some(last) => Ok(rows::chain(db, &subject, last, 1)?.pop()),
                None => Ok(None),
            }
        })
    }

    fn commit(
        &self,
        unit: Unit,
        seal: Arc<dyn Seal>,
    ) -> BoxFuture<'_, Result<Committed, CommitError>> {
        self.workers.commit(Sealing::new(unit, seal))
    }

    fn sweep(&self, now: Timestamp) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(async move {
            let mut forgotten = 0;
            loop {
                let turn = self.workers.write(move |db| Ok(unit::sweep_turn(db, now)?));
                let turn = turn.await.map_err(only_store)?;
                forgotten += turn;
                if turn == 0 {
                    return Ok(forgotten);
                }
            }
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.workers.read(rows::beat).await?;
            let beat = self.workers.write(|db| Ok(unit::beat(db)?));
            beat.await.map_err(only_store)
        })
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

/// What goes wrong where nothing can be refused.
fn only_store(error: CommitError) -> StoreError {
    match error {
        CommitError::Store(error) => error,
        refused => StoreError(refused.to_string()),
    }
}

/// Waits for what a worker answers.
async fn answer<T, E: From<StoreError>>(wait: oneshot::Receiver<Result<T, E>>) -> Result<T, E> {
    wait.await.unwrap_or_else(|_| {
        let gone = "the thread of the database ended, or panicked, before it answered";
        Err(StoreError(gone.into()).into())
    })
}
