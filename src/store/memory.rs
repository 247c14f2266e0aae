//! The store for tests and benches.

/// A store in memory, gone with the process.
#[derive(Default)]
pub struct MemoryStore {}
