//! Statements and rows, with errors as the store gives them.

use rusqlite::{Connection, ErrorCode, Params, Row, types::FromSql};

use crate::store::StoreError;

/// Runs a statement, and returns how many rows it changed.
pub(super) fn execute(
    db: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<usize, StoreError> {
    db.prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params))
        .map_err(unavailable)
}

/// Every row of a query.
pub(super) fn all<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(unavailable)?;
    let mut rows = statement.query(params).map_err(unavailable)?;
    let mut done = Vec::new();
    while let Some(row) = rows.next().map_err(unavailable)? {
        done.push(read(row)?);
    }
    Ok(done)
}

/// The only row of a query, where there is one.
pub(super) fn one<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(unavailable)?;
    let mut rows = statement.query(params).map_err(unavailable)?;
    let row = rows.next().map_err(unavailable)?;
    row.map(read).transpose()
}

/// A column.
pub(super) fn get<T: FromSql>(row: &Row<'_>, column: usize) -> Result<T, StoreError> {
    row.get(column).map_err(unavailable)
}

/// A limit as SQLite takes it.
pub(super) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// What went wrong at run time. SQLite's messages name tables and columns, never values.
pub(super) fn unavailable(error: rusqlite::Error) -> StoreError {
    StoreError(match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            format!("the disk is full, or the database has reached its limit ({error})")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            format!("another process holds the database ({error})")
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            return damaged(&error.to_string());
        }
        _ => error.to_string(),
    })
}

/// What is stored cannot be what was written.
pub(super) fn damaged(what: &str) -> StoreError {
    StoreError(format!(
        "the database is damaged ({what}); restore it from a backup"
    ))
}
