//! Reading. Whatever a row holds that no commit has written is damage, and said to be.

use bytes::Bytes;
use http::StatusCode;
use rusqlite::{Connection, Row, params};

use super::query::{all, damaged, get, limit, one};
use crate::{
    protocol::{
        record::{Sealed, Subject},
        terms::named_hash,
        time::Timestamp,
    },
    store::{Doc, IdempotencyKey, Key, Kind, StoreError, StoredResponse, Used, Version},
    wire::digest::sha256,
};

pub(super) fn load(db: &Connection, keys: &[Key]) -> Result<Vec<Option<Doc>>, StoreError> {
    let sql = "SELECT version, body FROM docs WHERE kind = ?1 AND id = ?2";
    let load = |key: &Key| {
        let found = one(db, sql, params![key.kind.as_str(), key.id], |row| {
            Ok((version(row, 0)?, body(row, 1)?))
        })?;
        Ok(found.map(|(version, body)| Doc {
            key: key.clone(),
            version,
            body,
        }))
    };
    keys.iter().map(load).collect()
}

pub(super) fn list(
    db: &Connection,
    kind: Kind,
    parent: &str,
    after: Option<&str>,
    most: usize,
) -> Result<Vec<Doc>, StoreError> {
    let sql = match after {
        Some(_) => {
            "SELECT id, version, body FROM docs WHERE kind = ?1 AND parent = ?2 AND id > ?3 ORDER BY id LIMIT ?4"
        }
        None => {
            "SELECT id, version, body FROM docs WHERE kind = ?1 AND parent = ?2 AND ?3 IS NULL ORDER BY id LIMIT ?4"
        }
    };
    let params = params![kind.as_str(), parent, after, limit(most)];
    all(db, sql, params, |row| {
        Ok(Doc {
            key: Key::new(kind, get::<String>(row, 0)?),
            version: version(row, 1)?,
            body: body(row, 2)?,
        })
    })
}

pub(super) fn due(db: &Connection, now: Timestamp, most: usize) -> Result<Vec<Doc>, StoreError> {
    let sql =
        "SELECT kind, id, version, body FROM docs WHERE due <= ?1 ORDER BY due, kind, id LIMIT ?2";
    all(db, sql, params![now.secs(), limit(most)], |row| {
        let name: String = get(row, 0)?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
        Ok(Doc {
            key: Key {
                kind: kind.ok_or_else(|| damaged("a document of no known kind"))?,
                id: get(row, 1)?,
            },
            version: version(row, 2)?,
            body: body(row, 3)?,
        })
    })
}

pub(super) fn windows(
    db: &Connection,
    names: &[String],
    since: Timestamp,
) -> Result<Vec<Vec<Timestamp>>, StoreError> {
    let sql = "SELECT at FROM counts WHERE window = ?1 AND at > ?2 ORDER BY at";
    let times = |name: &String| {
        all(db, sql, params![name, since.secs()], |row| {
            Ok(Timestamp::from_secs(get(row, 0)?))
        })
    };
    names.iter().map(times).collect()
}

pub(super) fn used(
    db: &Connection,
    key: &IdempotencyKey,
    now: Timestamp,
) -> Result<Option<Used>, StoreError> {
    let sql = "SELECT digest, status, headers, body FROM keys WHERE key = ?1 AND scope = ?2 AND expires > ?3";
    one(db, sql, params![key.key, key.scope, now.secs()], |row| {
        let digest = get::<Vec<u8>>(row, 0)?.try_into();
        Ok(Used {
            digest: digest.map_err(|_| damaged("a digest that is none"))?,
            response: response(row)?,
        })
    })
}

fn response(row: &Row<'_>) -> Result<Option<StoredResponse>, StoreError> {
    let (status, headers, body): (Option<u16>, Option<String>, Option<Vec<u8>>) =
        (get(row, 1)?, get(row, 2)?, get(row, 3)?);
    match (status, headers, body) {
        (None, None, None) => Ok(None),
        (Some(status), Some(headers), Some(body)) => Ok(Some(StoredResponse {
            status: StatusCode::from_u16(status).map_err(|_| damaged("a status that is none"))?,
            headers: headers_from_text(&headers)?,
            body: body.into(),
        })),
        _ => Err(damaged("half a response")),
    }
}

pub(super) fn chain(
    db: &Connection,
    subject: &Subject,
    from: u64,
    most: usize,
) -> Result<Vec<Sealed>, StoreError> {
    let Ok(first) = i64::try_from(from) else {
        return Ok(Vec::new());
    };
    let sql = "SELECT seq, hash, published FROM entries WHERE subject = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3";
    let mut next = first;
    all(
        db,
        sql,
        params![subject.to_string(), first, limit(most)],
        |row| {
            let seq: i64 = get(row, 0)?;
            let (hash, published): (String, Vec<u8>) = (get(row, 1)?, get(row, 2)?);
            if seq != next {
                return Err(damaged("a chain with a gap"));
            }
            if hash != named_hash(&sha256(&published)) {
                return Err(damaged("an entry that does not fit its hash"));
            }
            next += 1;
            Ok(Sealed {
                subject: subject.clone(),
                seq: seq.unsigned_abs(),
                hash,
                published,
            })
        },
    )
}

/// What the health check reads.
pub(super) fn beat(db: &Connection) -> Result<(), StoreError> {
    let found = one(db, "SELECT beats FROM health", [], |row| get::<i64>(row, 0))?;
    found.map(|_| ()).ok_or_else(|| damaged("no row to check"))
}

/// Headers as JSON text. Values are bytes; each becomes the character of its number.
pub(super) fn headers_to_text(headers: &[(String, Vec<u8>)]) -> Result<String, StoreError> {
    let pairs: Vec<(&str, String)> = headers
        .iter()
        .map(|(name, value)| {
            (
                name.as_str(),
                value.iter().copied().map(char::from).collect(),
            )
        })
        .collect();
    serde_json::to_string(&pairs).map_err(|error| StoreError(error.to_string()))
}

fn headers_from_text(text: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let broken = || damaged("headers that are none");
    let pairs: Vec<(String, String)> = serde_json::from_str(text).map_err(|_| broken())?;
    let to_bytes = |(name, value): (String, String)| {
        let bytes: Result<Vec<u8>, _> = value.chars().map(u8::try_from).collect();
        Ok((name, bytes.map_err(|_| broken())?))
    };
    pairs.into_iter().map(to_bytes).collect()
}

fn version(row: &Row<'_>, column: usize) -> Result<Version, StoreError> {
    match get::<i64>(row, column)? {
        version @ 1.. => Ok(version.unsigned_abs()),
        _ => Err(damaged("a version that is none")),
    }
}

fn body(row: &Row<'_>, column: usize) -> Result<Bytes, StoreError> {
    get::<Vec<u8>>(row, column).map(Bytes::from)
}
