//! What a marketplace sets: tiers, the offer budget, expiry (binding 3.1, 5.2, 6).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{operation::Verb, term_set::TermSets};

/// How far an agent may act: from `auto` to `forbid`, stricter is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// At once.
    Auto,
    /// Once the seller has approved.
    Ask,
    /// Never.
    Forbid,
}

/// The marketplace's policy for one scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScopePolicy {
    /// What holds where the grant says nothing.
    pub default_tier: Tier,
    /// What a grant may hold.
    pub allowed_tiers: Vec<Tier>,
}

/// The scopes that the marketplace offers, each with its tiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tiers(BTreeMap<String, ScopePolicy>);

impl Default for Tiers {
    /// Every verb at the reference default, `ask`, with `auto` allowed where the binding lets it be.
    fn default() -> Self {
        Self(
            Verb::GRANTED
                .into_iter()
                .filter_map(|verb| {
                    let allowed_tiers = match verb {
                        Verb::ListingSetTerms => vec![Tier::Ask],
                        _ => vec![Tier::Ask, Tier::Auto],
                    };
                    let policy = ScopePolicy {
                        default_tier: Tier::Ask,
                        allowed_tiers,
                    };
                    Some((verb.scope()?.to_owned(), policy))
                })
                .collect(),
        )
    }
}

impl Tiers {
    /// No scope offered.
    pub fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// Offers `verb` with these tiers. [`Tiers::check`] refuses verbs that have no scope.
    #[must_use]
    pub fn offer(mut self, verb: Verb, default_tier: Tier, allowed_tiers: &[Tier]) -> Self {
        let scope = verb.scope().unwrap_or(verb.as_str()).to_owned();
        let policy = ScopePolicy {
            default_tier,
            allowed_tiers: allowed_tiers.to_vec(),
        };
        self.0.insert(scope, policy);
        self
    }

    /// No longer offers `verb`.
    #[must_use]
    pub fn withhold(mut self, verb: Verb) -> Self {
        if let Some(scope) = verb.scope() {
            self.0.remove(scope);
        }
        self
    }

    /// The policy of a scope, if it is offered.
    pub fn get(&self, scope: &str) -> Option<&ScopePolicy> {
        self.0.get(scope)
    }

    /// All offered scopes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ScopePolicy)> {
        self.0
            .iter()
            .map(|(scope, policy)| (scope.as_str(), policy))
    }

    /// The tier that holds for `scope` (R15): the grant's where it is allowed, else the stricter of the grant's and
    /// the default; never looser than what is allowed now. `None` where the scope is not offered.
    pub fn effective(&self, scope: &str, granted: Option<Tier>) -> Option<Tier> {
        let policy = self.get(scope)?;
        Some(match granted {
            Some(tier) if policy.allowed_tiers.contains(&tier) => tier,
            Some(tier) => tier.max(policy.default_tier),
            None => policy.default_tier,
        })
    }

    /// Whether the settings make sense.
    ///
    /// # Errors
    /// Names the scope and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        for (scope, policy) in self.iter() {
            if !Verb::GRANTED.iter().any(|v| v.scope() == Some(scope)) {
                return Err(format!(
                    "tiers: `{scope}` is no RCTP scope; write one of {}",
                    Verb::GRANTED
                        .iter()
                        .filter_map(|v| v.scope())
                        .collect::<Vec<_>>()
                        .join(", ")
                ));
            }
            if policy.allowed_tiers.is_empty() {
                return Err(format!(
                    "tiers: `{scope}` allows no tier; withhold it instead"
                ));
            }
            if !policy.allowed_tiers.contains(&policy.default_tier) {
                return Err(format!(
                    "tiers: the default_tier of `{scope}` is not among its allowed_tiers; add it or choose another"
                ));
            }
            if Some(scope) == Verb::ListingSetTerms.scope()
                && policy.allowed_tiers.contains(&Tier::Auto)
            {
                return Err(format!(
                    "tiers: `{scope}` is always `ask` (binding 4.2); remove `auto`"
                ));
            }
        }
        Ok(())
    }
}

/// How many below-floor offers are answered in a window (binding 6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OfferBudget {
    /// Per buyer agent and listing.
    pub per_agent: u32,
    /// Per buyer operator and listing.
    pub per_operator: u32,
    /// The window, in hours.
    pub window_hours: u32,
    /// Below-floor answers to a seller's agent, per seller and per operator and listing (R18).
    #[serde(skip_serializing)]
    pub seller_probes: u32,
}

impl Default for OfferBudget {
    /// The reference values: 3, 10 and 24 hours; 10 for the seller's side.
    fn default() -> Self {
        Self {
            per_agent: 3,
            per_operator: 10,
            window_hours: 24,
            seller_probes: 10,
        }
    }
}

impl OfferBudget {
    /// The window in seconds.
    pub fn window_seconds(&self) -> i64 {
        i64::from(self.window_hours) * 3600
    }
}

/// How long offers live (binding 5.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OfferExpiry {
    /// Where the creator sends none, in seconds.
    pub default_seconds: u32,
    /// The cap, in seconds.
    pub max_seconds: u32,
}

impl Default for OfferExpiry {
    /// The reference values: 48 hours and 7 days.
    fn default() -> Self {
        Self {
            default_seconds: 48 * 3600,
            max_seconds: 7 * 24 * 3600,
        }
    }
}

/// Everything that `decide` needs to know of the marketplace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Scopes and tiers.
    pub tiers: Tiers,
    /// The offer budget.
    pub budget: OfferBudget,
    /// Offer lifetimes.
    pub expiry: OfferExpiry,
    /// How long an approval waits and a checkout holds, and how often a seller is asked.
    pub limits: Limits,
    /// The term sets that the gateway enforces (binding 4.1).
    pub term_sets: TermSets,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            tiers: Tiers::default(),
            budget: OfferBudget::default(),
            expiry: OfferExpiry::default(),
            limits: Limits::default(),
            term_sets: TermSets::reference(),
        }
    }
}

/// Lifetimes, and how often a seller is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// How long an approval waits for the seller, in seconds (reference: 900).
    pub approval_seconds: u32,
    /// How long a checkout can be redeemed, in seconds (reference: 1,800; binding 5.3).
    pub checkout_seconds: u32,
    /// How often a seller is asked about one listing within `approval_seconds` (R29).
    pub asks_per_listing: u32,
    /// How often one agent may ask a seller within `approval_seconds` (R29).
    pub asks_per_agent: u32,
    /// How many questions one buyer agent may ask about one listing a day (R29).
    pub questions_per_agent: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            approval_seconds: 900,
            checkout_seconds: 1800,
            asks_per_listing: 20,
            asks_per_agent: 20,
            questions_per_agent: 20,
        }
    }
}
