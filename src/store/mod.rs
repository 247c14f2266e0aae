//! The one place where state lives: documents, chains, stored responses, counts.
//!
//! A state change is one [`Unit`], committed once, atomically, or not at all. Whatever was read to decide is a
//! condition of the commit; a lost race comes back as [`CommitError::Conflict`], and the decision is made again from
//! fresh facts.

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::StatusCode;

#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteError, SqliteOptions, SqliteStore};

use crate::{
    protocol::{
        record::{Entry, Seal, Sealed, Subject},
        time::Timestamp,
    },
    wire::digest::Sha256,
};
pub use memory::MemoryStore;

/// A boxed future, so that [`Store`] can be an object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A listing.
    Listing,
    /// The floor and salt of a listing's terms; the id is the listing's.
    PrivateTerms,
    /// An offer or counter; its parent is the listing.
    Offer,
    /// The negotiation of one buyer agent on one listing; the id is [`negotiation_key`], so there is at most one
    /// (R22). Its body is the negotiation id.
    Negotiation,
    /// A parked action; its parent is the seller.
    Approval,
    /// A redeemed checkout's nonce; the id is the nonce, so that it is used at most once (R22).
    Nonce,
    /// A deal; its parent is the listing.
    Deal,
    /// A seller's passkey; the id is the credential's in base64url, its parent is the seller.
    Passkey,
    /// A buyer's question; its parent is the listing.
    Question,
    /// An event that an operator is to be told (binding 9); its parent is the outbox. Never due: whoever delivers it
    /// reads when to.
    Webhook,
    /// An event that could not be delivered; its id is the event's. Never due.
    DeadLetter,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 11] = [
        Kind::Listing,
        Kind::PrivateTerms,
        Kind::Offer,
        Kind::Negotiation,
        Kind::Approval,
        Kind::Nonce,
        Kind::Deal,
        Kind::Passkey,
        Kind::Question,
        Kind::Webhook,
        Kind::DeadLetter,
    ];

    /// The kind as stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Listing => "listing",
            Kind::PrivateTerms => "private_terms",
            Kind::Offer => "offer",
            Kind::Negotiation => "negotiation",
            Kind::Approval => "approval",
            Kind::Nonce => "nonce",
            Kind::Deal => "deal",
            Kind::Passkey => "passkey",
            Kind::Question => "question",
            Kind::Webhook => "webhook",
            Kind::DeadLetter => "dead_letter",
        }
    }
}

/// The id of the negotiation document of a buyer agent on a listing.
pub fn negotiation_key(listing_id: &str, agent: &crate::protocol::caller::Agent) -> String {
    format!("{listing_id}|{agent}")
}

/// Names a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// What it is.
    pub kind: Kind,
    /// Its id, unique within its kind.
    pub id: String,
}

impl Key {
    /// A key.
    pub fn new(kind: Kind, id: impl Into<String>) -> Self {
        Self {
            kind,
            id: id.into(),
        }
    }
}

/// How often a document was written: 0 where there is none, then 1, 2, ….
pub type Version = u64;

/// A stored document. Its `Debug` shows no body: it may hold a floor.
#[derive(Clone, PartialEq, Eq)]
pub struct Doc {
    /// Its name.
    pub key: Key,
    /// How often it was written.
    pub version: Version,
    /// Its bytes; the store does not look into them.
    pub body: Bytes,
}

/// A document to write. Its `Debug` shows no body: it may hold a floor.
#[derive(Clone, PartialEq, Eq)]
pub struct Put {
    /// Its name.
    pub key: Key,
    /// The version it must have now: 0 to create it.
    pub expected: Version,
    /// The id that [`Store::list`] finds it under; kept from the first write.
    pub parent: Option<String>,
    /// When the sweep must look at it again; `None` for never.
    pub due: Option<Timestamp>,
    /// Its new bytes.
    pub body: Bytes,
}

impl fmt::Debug for Doc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doc")
            .field("key", &self.key)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Put")
            .field("key", &self.key)
            .field("expected", &self.expected)
            .field("parent", &self.parent)
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

/// A response kept for repeats of its request (binding 2.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers that belong to the answer.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Bytes,
}

/// What an `Idempotency-Key` stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    /// The operator profile, so that agents of one host share a space of keys (R9).
    pub scope: String,
    /// The key as sent.
    pub key: String,
}

/// A key that was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// The digest of the request that used it (R9).
    pub digest: Sha256,
    /// Its response; `None` while it is being executed, and for good when that never finished (R10).
    pub response: Option<StoredResponse>,
}

/// What a unit does with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The key.
    pub key: IdempotencyKey,
    /// The digest of the request.
    pub digest: Sha256,
    /// What happens to it.
    pub step: ClaimStep,
    /// When the request is handled: a use that has expired by then does not stand in the way.
    pub at: Timestamp,
    /// When the store may forget it: 48 hours after its first use. [`ClaimStep::Complete`] leaves it as it was.
    pub expires: Timestamp,
}

/// The steps of a key's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimStep {
    /// Takes the key, which must be unused, without a response yet.
    Begin,
    /// Takes the key, which must be unused, and settles it in one step.
    Settle(StoredResponse),
    /// Settles a key that [`ClaimStep::Begin`] took with the same digest and that has no response yet.
    Complete(StoredResponse),
}

/// A count of events in a sliding window that must not have changed since it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowCheck {
    /// The window's name.
    pub window: String,
    /// Only events after this point count.
    pub since: Timestamp,
    /// How many there must be.
    pub expected: usize,
}

/// An event to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The window's name.
    pub window: String,
    /// When it happened.
    pub at: Timestamp,
    /// When the store may forget it.
    pub expires: Timestamp,
}

/// One state change: everything or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Documents that were read, with the version they must still have (0: absent).
    pub read: Vec<(Key, Version)>,
    /// Documents to write. No key occurs twice, here and in `delete` taken together.
    pub put: Vec<Put>,
    /// Documents to remove, with the version that they must have; there must be one, so it is never 0. What is written
    /// under the key later is new, and begins at 1 again.
    pub delete: Vec<(Key, Version)>,
    /// Counts that must still hold.
    pub windows: Vec<WindowCheck>,
    /// Events to count.
    pub counts: Vec<Count>,
    /// Entries for the record, each at the end of its chain, in this order.
    pub entries: Vec<Entry>,
    /// What happens to the request's idempotency key.
    pub claim: Option<Claim>,
}

/// What a commit did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The entries in their places, in the unit's order.
    pub entries: Vec<Sealed>,
}

/// The store did not answer, or cannot be trusted; nothing may be executed (503).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct StoreError(pub String);

/// Why a unit was not committed. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Something that was read has changed, or a document that must be new exists: decide again.
    #[error("what was read to decide has changed")]
    Conflict,
    /// The idempotency key is taken, or not in the state that its step needs: look it up.
    #[error("the idempotency key is taken")]
    KeyTaken,
    /// See [`StoreError`].
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Where state lives. Implementations are cheap to share behind an [`Arc`].
///
/// All of them pass the same tests. Reads see every unit whose commit was answered. `commit` answers once the unit
/// is durable, whatever that means for the store.
pub trait Store: Send + Sync + 'static {
    /// The documents of these keys, in this order; `None` where there is none.
    fn load(&self, keys: Vec<Key>) -> BoxFuture<'_, Result<Vec<Option<Doc>>, StoreError>>;

    /// At most `limit` documents of a kind under a parent, in the order of their ids, after the id `after`.
    fn list(
        &self,
        kind: Kind,
        parent: String,
        after: Option<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>>;

    /// At most `limit` documents whose `due` is not after `now`, longest overdue first; those that are due together
    /// in the order of their kinds' names and their ids.
    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>>;

    /// The events counted in each window after `since`, oldest first, in the order of the names.
    fn windows(
        &self,
        names: Vec<String>,
        since: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Vec<Timestamp>>, StoreError>>;

    /// What a key was used for, as long as it is kept; from its `expires` on it counts as unused, swept or not.
    fn used(
        &self,
        key: IdempotencyKey,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Used>, StoreError>>;

    /// At most `limit` entries of a chain, from number `from` on.
    fn chain(
        &self,
        subject: Subject,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Sealed>, StoreError>>;

    /// The last entry of a chain; `None` where it has none.
    ///
    /// As provided it reads the whole chain; a store that finds the end by itself does better.
    fn head(&self, subject: Subject) -> BoxFuture<'_, Result<Option<Sealed>, StoreError>> {
        const PAGE: usize = 500;
        Box::pin(async move {
            let mut last: Option<Sealed> = None;
            loop {
                let from = last.as_ref().map_or(0, |last| last.seq + 1);
                let page = self.chain(subject.clone(), from, PAGE).await?;
                let end = page.len() < PAGE;
                last = page.into_iter().next_back().or(last);
                if end {
                    return Ok(last);
                }
            }
        })
    }

    /// Commits a unit. Entries are sealed inside the transaction, so that each gets its own place.
    ///
    /// Every condition is about the state before the unit. The claim is looked at first: where another request has
    /// taken the key, what it did is often the reason why the facts have changed too, so [`CommitError::KeyTaken`] wins
    /// over [`CommitError::Conflict`].
    ///
    /// A unit may be committed although its future was dropped before it answered.
    fn commit(
        &self,
        unit: Unit,
        seal: Arc<dyn Seal>,
    ) -> BoxFuture<'_, Result<Committed, CommitError>>;

    /// Forgets keys and counts whose `expires` is not after `now`. Returns how many; never blocks a request for long.
    fn sweep(&self, now: Timestamp) -> BoxFuture<'_, Result<usize, StoreError>>;

    /// Whether the store answers, by a read and a write.
    fn health(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// Writing a document twice, or writing and removing it, is a mistake in the unit; no store guesses which was meant.
fn each_key_once(unit: &Unit) -> Result<(), StoreError> {
    let removed = unit.delete.iter().map(|(key, _)| key);
    let keys = unit.put.iter().map(|put| &put.key).chain(removed);
    for (index, key) in keys.clone().enumerate() {
        if keys.clone().take(index).any(|before| before == key) {
            let kind = key.kind.as_str();
            return Err(StoreError(format!("a unit writes one {kind} twice")));
        }
    }
    Ok(())
}
