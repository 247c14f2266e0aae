//! Committing a unit. Every function here runs in a transaction that holds SQLite's write lock; what it has changed
//! is rolled back when it fails.

use rusqlite::{Connection, params};

use super::{
    query::{damaged, execute, get, one},
    rows::{headers_to_text, used},
};
use crate::{
    protocol::{
        record::{Entry, FIRST_PREV_HASH, Seal, Sealed},
        time::Timestamp,
    },
    store::{
        Claim, ClaimStep, CommitError, Committed, Key, Put, StoreError, StoredResponse, Unit,
        Version, WindowCheck, each_key_once,
    },
};

/// How much one turn of the sweep forgets, of keys and of counts, before units that wait get theirs.
const SWEEP_TURN: i64 = 256;

pub(super) fn commit(
    db: &Connection,
    unit: &Unit,
    seal: &dyn Seal,
) -> Result<Committed, CommitError> {
    each_key_once(unit)?;
    // Before anything is written, so that a lost race leaves nothing to roll back.
    let holds = holds(db, unit)?;
    if let Some(taken) = &unit.claim
        && !match holds {
            true => claim(db, taken)?,
            false => free(db, taken)?,
        }
    {
        return Err(CommitError::KeyTaken);
    }
    if !holds {
        return Err(CommitError::Conflict);
    }
    for changed in &unit.put {
        if !put(db, changed)? {
            return Err(CommitError::Conflict);
        }
    }
    for (key, _) in &unit.delete {
        // Its version was looked at before; nobody else writes meanwhile.
        let sql = "DELETE FROM docs WHERE kind = ?1 AND id = ?2";
        execute(db, sql, params![key.kind.as_str(), key.id])?;
    }
    for count in &unit.counts {
        let sql = "INSERT INTO counts (window, at, expires) VALUES (?1, ?2, ?3)";
        let params = params![count.window, count.at.secs(), count.expires.secs()];
        execute(db, sql, params)?;
    }
    let append = |entry| append(db, entry, seal);
    Ok(Committed {
        entries: unit.entries.iter().map(append).collect::<Result<_, _>>()?,
    })
}

/// Whether what was read to decide is as it was.
fn holds(db: &Connection, unit: &Unit) -> Result<bool, StoreError> {
    for (key, version) in &unit.read {
        if !unchanged(db, key, *version)? {
            return Ok(false);
        }
    }
    for (key, version) in &unit.delete {
        if *version == 0 || !unchanged(db, key, *version)? {
            return Ok(false);
        }
    }
    for check in &unit.windows {
        if !counted(db, check)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether [`claim`] would take or settle the key.
fn free(db: &Connection, claim: &Claim) -> Result<bool, StoreError> {
    let used = used(db, &claim.key, claim.at)?;
    Ok(match claim.step {
        ClaimStep::Begin | ClaimStep::Settle(_) => used.is_none(),
        ClaimStep::Complete(_) => {
            used.is_some_and(|used| used.digest == claim.digest && used.response.is_none())
        }
    })
}

/// Takes or settles a key, if it is in the state that this needs.
fn claim(db: &Connection, claim: &Claim) -> Result<bool, StoreError> {
    let Claim {
        key,
        digest,
        step,
        at,
        expires,
    } = claim;
    let response = match step {
        ClaimStep::Begin => None,
        ClaimStep::Settle(response) | ClaimStep::Complete(response) => Some(response),
    };
    let status = response.map(|response| response.status.as_u16());
    let headers = response
        .map(|StoredResponse { headers, .. }| headers_to_text(headers))
        .transpose()?;
    let body = response.map(|response| &response.body[..]);
    let changed = match step {
        ClaimStep::Begin | ClaimStep::Settle(_) => {
            let sql = "INSERT INTO keys (scope, key, digest, status, headers, body, expires) \
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
                ON CONFLICT (key, scope) DO UPDATE SET digest = ?3, status = ?4, headers = ?5, body = ?6, expires = ?7 \
                WHERE expires <= ?8";
            let params = params![
                key.scope,
                key.key,
                digest,
                status,
                headers,
                body,
                expires.secs(),
                at.secs()
            ];
            execute(db, sql, params)?
        }
        ClaimStep::Complete(_) => {
            let sql = "UPDATE keys SET status = ?4, headers = ?5, body = ?6 \
                WHERE key = ?2 AND scope = ?1 AND digest = ?3 AND status IS NULL AND expires > ?7";
            let params = params![key.scope, key.key, digest, status, headers, body, at.secs()];
            execute(db, sql, params)?
        }
    };
    Ok(changed == 1)
}

fn unchanged(db: &Connection, key: &Key, version: Version) -> Result<bool, StoreError> {
    let sql = "SELECT version FROM docs WHERE kind = ?1 AND id = ?2";
    let found = one(db, sql, params![key.kind.as_str(), key.id], |row| {
        get::<i64>(row, 0)
    })?;
    Ok(i64::try_from(version) == Ok(found.unwrap_or(0)))
}

fn counted(db: &Connection, check: &WindowCheck) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) FROM counts WHERE window = ?1 AND at > ?2";
    let found = one(db, sql, params![check.window, check.since.secs()], |row| {
        get::<i64>(row, 0)
    })?;
    Ok(found.and_then(|found| usize::try_from(found).ok()) == Some(check.expected))
}

/// Writes a document, if it has the version that this needs.
fn put(db: &Connection, put: &Put) -> Result<bool, StoreError> {
    let Put {
        key,
        expected,
        parent,
        due,
        body,
    } = put;
    let (kind, id) = (key.kind.as_str(), &key.id);
    let (due, body) = (due.map(Timestamp::secs), &body[..]);
    let Ok(expected) = i64::try_from(*expected) else {
        return Ok(false);
    };
    let changed = if expected == 0 {
        let sql = "INSERT INTO docs (kind, id, version, parent, due, body) VALUES (?1, ?2, 1, ?3, ?4, ?5) \
            ON CONFLICT DO NOTHING";
        execute(db, sql, params![kind, id, parent, due, body])?
    } else {
        let sql = "UPDATE docs SET version = version + 1, due = ?4, body = ?5 \
            WHERE kind = ?1 AND id = ?2 AND version = ?3";
        execute(db, sql, params![kind, id, expected, due, body])?
    };
    Ok(changed == 1)
}

/// Seals an entry at the end of its chain. Its place cannot be wrong: the end is read from the file, under the write
/// lock, in the transaction that adds to it.
fn append(db: &Connection, entry: &Entry, seal: &dyn Seal) -> Result<Sealed, StoreError> {
    let subject = entry.subject.to_string();
    let (seq, prev_hash) = next_place(db, &subject)?;
    let sealed = seal
        .seal(entry, seq, &prev_hash)
        .map_err(|error| StoreError(error.to_string()))?;
    let sql = "INSERT INTO entries (subject, seq, hash, published) VALUES (?1, ?2, ?3, ?4)";
    execute(
        db,
        sql,
        params![subject, seq.cast_signed(), sealed.hash, sealed.published],
    )?;
    Ok(sealed)
}

/// The number of a chain's next entry, and the hash that it follows.
pub(super) fn next_place(db: &Connection, subject: &str) -> Result<(u64, String), StoreError> {
    let sql = "SELECT seq, hash FROM entries WHERE subject = ?1 ORDER BY seq DESC LIMIT 1";
    let end = one(db, sql, params![subject], |row| {
        let (seq, hash): (i64, String) = (get(row, 0)?, get(row, 1)?);
        let hex = hash.strip_prefix("sha-256:").unwrap_or_default();
        if seq < 0 || hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(damaged("an entry whose hash is none"));
        }
        Ok((seq.unsigned_abs() + 1, hash))
    })?;
    Ok(end.unwrap_or_else(|| (0, FIRST_PREV_HASH.to_owned())))
}

/// Forgets a turn's worth of what has expired, and returns how many.
pub(super) fn sweep_turn(db: &Connection, now: Timestamp) -> Result<usize, StoreError> {
    let keys =
        "DELETE FROM keys WHERE rowid IN (SELECT rowid FROM keys WHERE expires <= ?1 LIMIT ?2)";
    let counts =
        "DELETE FROM counts WHERE rowid IN (SELECT rowid FROM counts WHERE expires <= ?1 LIMIT ?2)";
    Ok(execute(db, keys, params![now.secs(), SWEEP_TURN])?
        + execute(db, counts, params![now.secs(), SWEEP_TURN])?)
}

/// What the health check writes.
pub(super) fn beat(db: &Connection) -> Result<(), StoreError> {
    match execute(db, "UPDATE health SET beats = beats + 1", [])? {
        1 => Ok(()),
        _ => Err(damaged("no row to check")),
    }
}
