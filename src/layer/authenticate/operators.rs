//! The operators that the marketplace has onboarded, and their profiles (binding 1, 2).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use super::fetch::Fetch;
use crate::{
    layer::trace,
    protocol::{
        caller::Role,
        profile::{Duties, Profile, ProfileError},
        time::Timestamp,
    },
    wire::crypto::Provider,
};

/// An onboarded operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    profile: String,
    clients: Vec<String>,
    roles: Vec<Role>,
    registration: Option<Arc<Duties>>,
}

impl Operator {
    /// An operator by its profile URL.
    pub fn new(profile: impl Into<String>) -> Self {
        Self {
            profile: profile.into(),
            clients: Vec::new(),
            roles: Vec::new(),
            registration: None,
        }
    }

    /// Registers an OAuth client to the profile (2.2).
    #[must_use]
    pub fn client(mut self, client_id: impl Into<String>) -> Self {
        self.clients.push(client_id.into());
        self
    }

    /// Configures a role (R32).
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.roles.push(role);
        self
    }

    /// The duties that the operator accepted in its client registration, in place of a profile of its own (R2). Its
    /// profile URL is then a name only: nothing is fetched, and it can call with OAuth alone.
    #[must_use]
    pub fn registered(mut self, duties: Duties) -> Self {
        self.registration = Some(Arc::new(duties));
        self
    }

    /// The profile URL.
    pub fn profile(&self) -> &str {
        &self.profile
    }

    /// Its roles.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// The duties of its registration.
    pub fn registration(&self) -> Option<&Arc<Duties>> {
        self.registration.as_ref()
    }
}

/// All onboarded operators.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    by_profile: HashMap<String, Operator>,
    by_client: HashMap<String, String>,
    /// A client registered to two profiles; told by [`Operators::check`].
    ambiguous: Option<String>,
}

impl Operators {
    /// Operators onboarded by profile URL, with nothing else configured.
    pub fn onboarded<I, S>(profiles: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        profiles
            .into_iter()
            .fold(Self::default(), |all, url| all.with(Operator::new(url)))
    }

    /// Adds an operator, or replaces the one of the same profile.
    #[must_use]
    pub fn with(mut self, operator: Operator) -> Self {
        self.by_client
            .retain(|_, profile| *profile != operator.profile);
        for client in &operator.clients {
            let before = self
                .by_client
                .insert(client.clone(), operator.profile.clone());
            if before.is_some_and(|profile| profile != operator.profile) {
                self.ambiguous = Some(client.clone());
            }
        }
        self.by_profile.insert(operator.profile.clone(), operator);
        self
    }

    /// The operator of a profile URL; compared byte for byte.
    pub fn by_profile(&self, url: &str) -> Option<&Operator> {
        self.by_profile.get(url)
    }

    /// The operator that an OAuth client is registered to.
    pub fn by_client(&self, client_id: &str) -> Option<&Operator> {
        self.by_profile(self.by_client.get(client_id)?)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Operator> {
        self.by_profile.values()
    }

    /// Whether the settings make sense: somebody is onboarded, by URLs that may be fetched, and each client to one profile.
    pub(crate) fn check(&self, dev: bool) -> Result<(), String> {
        if self.by_profile.is_empty() {
            return Err(
                "operators is missing; write .operators(Operators::onboarded([\"https://agent.example/.well-known/ucp\"]))"
                    .into(),
            );
        }
        if let Some(client) = &self.ambiguous {
            return Err(format!(
                "operators: the client `{client}` is registered to two profiles; a client acts for one"
            ));
        }
        let blank = |o: &&Operator| o.registration().is_some_and(|duties| !duties.are_whole());
        if let Some(operator) = self.iter().find(blank) {
            return Err(format!(
                "operators: the registration of {} needs legal_entity, jurisdiction and incident_contact",
                operator.profile
            ));
        }
        self.iter()
            .try_for_each(|operator| super::fetch::allowed_url(&operator.profile, dev).map(drop))
            .map_err(|why| format!("operators: {why}"))
    }
}

/// What became of the operators when they were replaced: their profile URLs, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replaced {
    /// Those that were not there before.
    pub added: Vec<String>,
    /// Those with other clients, roles or duties than before.
    pub changed: Vec<String>,
    /// Those that are there no more.
    pub removed: Vec<String>,
}

/// The operators in force, shared by the layers and replaced as a whole while they work. Who reads them keeps what it
/// read to its end.
#[derive(Clone)]
pub(crate) struct InForce(Arc<RwLock<Arc<Operators>>>);

impl InForce {
    pub(crate) fn new(operators: Operators) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(operators))))
    }

    pub(crate) fn get(&self) -> Arc<Operators> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn replace(&self, operators: Operators) -> Replaced {
        let after = Arc::new(operators);
        let before = {
            let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *now, after.clone())
        };
        let mut replaced = Replaced::default();
        for operator in after.iter() {
            match before.by_profile(&operator.profile) {
                None => replaced.added.push(operator.profile.clone()),
                Some(before) if before != operator => {
                    replaced.changed.push(operator.profile.clone());
                }
                Some(_) => {}
            }
        }
        let removed = before
            .iter()
            .filter(|o| after.by_profile(&o.profile).is_none());
        replaced.removed.extend(removed.map(|o| o.profile.clone()));
        for list in [
            &mut replaced.added,
            &mut replaced.changed,
            &mut replaced.removed,
        ] {
            list.sort_unstable();
        }
        replaced
    }
}

/// A profile is used at most this long without being fetched again (binding 1).
const MAX_AGE: i64 = 300;
/// And at least this long, whatever its origin says; also the pace of forced refreshes (UCP).
const MIN_AGE: i64 = 60;
/// A failed fetch is not repeated sooner.
const RETRY_AFTER: i64 = 5;

/// Fetched profiles, each fetched once at a time.
pub(crate) struct Profiles {
    source: Arc<Source>,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
}

struct Source {
    fetch: Arc<dyn Fetch>,
    provider: &'static dyn Provider,
}

#[derive(Default)]
struct Slot {
    cached: Mutex<Option<Cached>>,
    /// Held while fetching, so that waiting requests share one fetch.
    flight: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct Cached {
    profile: Result<Arc<Profile>, ProfileError>,
    fetched: Timestamp,
    until: Timestamp,
}

impl Profiles {
    pub(crate) fn new(fetch: Arc<dyn Fetch>, provider: &'static dyn Provider) -> Self {
        Self {
            source: Arc::new(Source { fetch, provider }),
            slots: Mutex::default(),
        }
    }

    /// The profile of an onboarded URL.
    pub(crate) async fn get(
        &self,
        url: &str,
        now: Timestamp,
    ) -> Result<Arc<Profile>, ProfileError> {
        self.current(url, now, |cached| now < cached.until).await
    }

    /// The profile after a `keyid` that it did not list: fetched again, at most once in [`MIN_AGE`].
    pub(crate) async fn refreshed(
        &self,
        url: &str,
        now: Timestamp,
    ) -> Result<Arc<Profile>, ProfileError> {
        self.current(url, now, |cached| now < cached.fetched.plus(MIN_AGE))
            .await
    }

    async fn current(
        &self,
        url: &str,
        now: Timestamp,
        fresh: impl Fn(&Cached) -> bool,
    ) -> Result<Arc<Profile>, ProfileError> {
        let slot = self.slot(url);
        if let Some(cached) = slot.read().filter(&fresh) {
            return cached.profile;
        }
        let flight = slot.flight.clone().lock_owned().await;
        // Whoever held the flight may have fetched it for us.
        if let Some(cached) = slot.read().filter(&fresh) {
            return cached.profile;
        }
        // Detached: a client that hangs up neither wastes the fetch nor makes the next one fetch again.
        let (source, url) = (self.source.clone(), url.to_owned());
        let fetched = async move {
            let _flight = flight;
            slot.keep(source.fetch(&url, now).await, now)
        };
        let fetched = tokio::spawn(trace::detached(fetched));
        fetched.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a profile could not be fetched");
            Err(ProfileError::Unreachable("the fetch ended early".into()))
        })
    }

    /// Drops the profiles of operators that are gone.
    pub(crate) fn forget(&self, urls: &[String]) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for url in urls {
            slots.remove(url);
        }
    }

    fn slot(&self, url: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // Only onboarded URLs get here, so the map does not grow by strangers.
        match slots.get(url) {
            Some(slot) => slot.clone(),
            None => slots.entry(url.to_owned()).or_default().clone(),
        }
    }
}

impl Source {
    async fn fetch(&self, url: &str, now: Timestamp) -> Cached {
        let (profile, age) = match self.fetch.get(url).await {
            Ok(fetched) => {
                let age = fetched
                    .max_age
                    .map_or(MAX_AGE, |age| i64::try_from(age).unwrap_or(MAX_AGE));
                (
                    Profile::parse(&fetched.body, self.provider),
                    age.clamp(MIN_AGE, MAX_AGE),
                )
            }
            Err(error) => (Err(ProfileError::Unreachable(error.0)), RETRY_AFTER),
        };
        if let Err(error) = &profile {
            tracing::warn!(profile = url, %error, "an operator's profile is not usable");
        }
        let age = if profile.is_ok() { age } else { RETRY_AFTER };
        Cached {
            profile: profile.map(Arc::new),
            fetched: now,
            until: now.plus(age),
        }
    }
}

impl Slot {
    /// Keeps what was fetched. A forced refresh that fails takes nothing away: a key still listed verifies until its
    /// time is over.
    fn keep(&self, fetched: Cached, now: Timestamp) -> Result<Arc<Profile>, ProfileError> {
        let before = self.read();
        let kept = match before.filter(|before| before.profile.is_ok() && now < before.until) {
            Some(before) if fetched.profile.is_err() => Cached {
                fetched: now,
                ..before
            },
            _ => fetched,
        };
        let profile = kept.profile.clone();
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        profile
    }

    fn read(&self) -> Option<Cached> {
        self.cached
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
