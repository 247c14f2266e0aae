//! Opening the file: what it is, and bringing its schema up to date.

use std::{
    fs,
    path::{self, Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::{SqliteError, SqliteOptions};
use crate::store::StoreError;

/// `RCTP`: marks the file as ours.
const APPLICATION_ID: i64 = 0x5243_5450;

/// Every step from an empty file to the present schema. `user_version` says how many have been taken.
const MIGRATIONS: [&str; 1] = [include_str!("1.sql")];

/// Prepared statements kept by a connection; there are fewer.
const STATEMENTS: usize = 64;

/// The file, and its connections.
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) writer: Connection,
    pub(super) readers: Vec<Connection>,
    /// They read too, and wait for no lock.
    pub(super) lookups: Vec<Connection>,
    /// It reads for the thread that seals.
    pub(super) sealer: Connection,
}

pub(super) fn open(path: &Path, options: &SqliteOptions) -> Result<Opened, SqliteError> {
    // Absolute, so that a later change of directory does not matter; and no name is special, such as `:memory:`.
    let path = &path::absolute(path).map_err(|error| SqliteError::CannotOpen {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let opened = || -> rusqlite::Result<Result<Opened, SqliteError>> {
        let create = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        make_private(path);
        let mut writer = connect(path, create, options.busy_timeout)?;
        if let Err(refused) = recognise(&mut writer, path)? {
            return Ok(Err(refused));
        }
        if writer.is_readonly("main")? {
            return Ok(Err(SqliteError::ReadOnly { path: path.clone() }));
        }
        if let Err(refused) = write_ahead(&writer, path, options.busy_timeout)? {
            return Ok(Err(refused));
        }
        writer.pragma_update(None, "synchronous", "FULL")?;
        // Large savepoints would go to files in the directory for temporary ones, which may not be writable.
        writer.pragma_update(None, "temp_store", "MEMORY")?;
        // The writer thread checkpoints by itself, after it has answered.
        writer.pragma_update(None, "wal_autocheckpoint", 0)?;
        if let Some(bytes) = options.max_bytes {
            let page: u32 = writer.pragma_query_value(None, "page_size", |row| row.get(0))?;
            let pages = u32::try_from(bytes / u64::from(page.max(1))).unwrap_or(u32::MAX);
            writer.pragma_update_and_check(None, "max_page_count", pages.max(1), |_| Ok(()))?;
        }
        migrate(&mut writer)?;

        let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let read = |patience| -> rusqlite::Result<Vec<Connection>> {
            (0..options.readers.max(1))
                .map(|_| connect(path, read_only, patience))
                .collect()
        };
        let (readers, lookups) = (read(options.busy_timeout)?, read(Duration::ZERO)?);
        let sealer = connect(path, read_only, Duration::ZERO)?;
        let file = File {
            identity: identity(path),
            path: path.clone(),
        };
        Ok(Ok(Opened {
            file,
            writer,
            readers,
            lookups,
            sealer,
        }))
    };
    opened().unwrap_or_else(|error| Err(refusal(path, &error)))
}

/// Makes the file with mode 0600, since it holds what sellers keep to themselves; SQLite gives the files next to it
/// the same. One that is there keeps its mode, and what goes wrong shows when it is opened.
fn make_private(path: &Path) {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.open(path);
}

fn connect(path: &Path, how: OpenFlags, patience: Duration) -> rusqlite::Result<Connection> {
    // Each connection is with one thread at a time.
    let db = Connection::open_with_flags(path, how | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(patience)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(db)
}

/// Whether the file is empty or ours, before anything in it is touched.
fn recognise(db: &mut Connection, path: &Path) -> rusqlite::Result<Result<(), SqliteError>> {
    // In one transaction, as another process may be creating the schema.
    let seen = db.transaction()?;
    let pragma = |name| seen.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = seen.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let known = MIGRATIONS.len() as i64;
    Ok(match (application, version) {
        (0, 0) if tables == 0 => Ok(()),
        (APPLICATION_ID, version) if version > known => Err(SqliteError::Newer {
            path: path.to_owned(),
            found: version,
            known,
        }),
        (APPLICATION_ID, 1..) => Ok(()),
        _ => Err(SqliteError::Foreign {
            path: path.to_owned(),
        }),
    })
}

fn write_ahead(
    db: &Connection,
    path: &Path,
    patience: Duration,
) -> rusqlite::Result<Result<(), SqliteError>> {
    // SQLite does not wait by itself for the lock that changing the mode needs. It is needed only once in the life of
    // a file, so this is about two processes that create it together.
    let until = Instant::now() + patience;
    loop {
        let mode =
            db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        return match mode {
            Ok(mode) if mode == "wal" => Ok(Ok(())),
            Ok(mode) => Ok(Err(SqliteError::Other {
                path: path.to_owned(),
                reason: format!("its journal mode stays {mode}; a local file system is needed"),
            })),
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < until =>
            {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            Err(error) => Err(error),
        };
    }
}

fn migrate(db: &mut Connection) -> rusqlite::Result<()> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: u16 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let missing = MIGRATIONS.get(usize::from(version)..).unwrap_or_default();
    if !missing.is_empty() {
        for step in missing {
            transaction.execute_batch(step)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
    }
    transaction.commit()
}

fn refusal(path: &Path, error: &rusqlite::Error) -> SqliteError {
    let path = path.to_owned();
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            SqliteError::CannotOpen { path, reason }
        }
        Some(ErrorCode::ReadOnly) => SqliteError::ReadOnly { path },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => SqliteError::Locked { path },
        Some(ErrorCode::NotADatabase) => SqliteError::NotADatabase { path },
        Some(ErrorCode::DatabaseCorrupt) => SqliteError::Damaged { path, reason },
        Some(ErrorCode::DiskFull) => SqliteError::Full { path },
        _ => SqliteError::Other { path, reason },
    }
}

/// Which file was opened, as its path may come to name another.
pub(super) struct File {
    path: PathBuf,
    identity: Option<Identity>,
}

impl File {
    /// Whether the path still names the file that is open. What is written to any other is lost.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            return Ok(());
        }
        let path = self.path.display();
        Err(StoreError(format!(
            "{path} was removed or replaced while it was open; restart on the file that is to be used"
        )))
    }
}

#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    let file = path.metadata().ok()?;
    Some((file.dev(), file.ino()))
}

/// Other systems do not let go of a file that is open.
#[cfg(not(unix))]
type Identity = ();

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<Identity> {
    path.exists().then_some(())
}
