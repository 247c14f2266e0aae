use std::sync::Arc;
use tempfile::TempDir;
use tower_rctp::store::SqliteStore;

use super::*;

/// A place for a database, gone when it is dropped.
pub(crate) struct File {
    directory: TempDir,
}

impl File {
    pub(crate) fn new() -> Self {
        Self {
            directory: TempDir::new().expect("a directory"),
        }
    }
    pub(crate) async fn open(&self) -> Shared {
        Arc::new(
            SqliteStore::open(self.directory.path().join("store.db"))
                .await
                .expect("opened"),
        )
    }
}
