//! Time and ids, injected so that tests move the one and foresee the other.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{protocol::time::Timestamp, wire::base64url};

/// What time it is.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let seconds = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            // A clock before 1970 makes every signature stale: refused, not trusted.
            Err(_) => 0,
        };
        Timestamp::from_secs(seconds)
    }
}

impl<F: Fn() -> Timestamp + Send + Sync + 'static> Clock for F {
    fn now(&self) -> Timestamp {
        self()
    }
}

/// Where ids, nonces and salts come from.
pub trait Ids: Send + Sync + 'static {
    /// 128 random bits.
    ///
    /// # Errors
    /// When there is no randomness; nothing may be executed then.
    fn random(&self) -> Result<[u8; 16], NoRandomness>;

    /// A new id: `prefix`, `_`, a time-ordered part that keeps the store's indexes compact, and 128 random bits.
    ///
    /// # Errors
    /// As [`Ids::random`].
    fn id(&self, prefix: &str, now: Timestamp) -> Result<String, NoRandomness> {
        let random = base64url(&self.random()?);
        Ok(format!("{prefix}_{:09x}{random}", now.secs().max(0)))
    }
}

/// The operating system gave no random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gave no random bits")]
pub struct NoRandomness;

/// Ids from the operating system's random bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn random(&self) -> Result<[u8; 16], NoRandomness> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(bytes)
    }
}

impl fmt::Debug for dyn Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
