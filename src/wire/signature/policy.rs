//! What a verifier demands: what is covered, how fresh it is, which tags it accepts.

use std::time::Duration;

use http::{
    HeaderName, Method,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};

use super::message::{Component, Message};
use crate::wire::digest::CONTENT_DIGEST;

/// The demands of one verifier. Built once, used for every message.
#[derive(Clone, Debug)]
pub struct Policy {
    coverage: Coverage,
    freshness: Freshness,
    tags: Vec<(String, Vec<Component>)>,
    singletons: Vec<HeaderName>,
}

impl Policy {
    /// Demands this coverage, the default freshness, and no `tag`.
    #[must_use]
    pub fn new(coverage: Coverage) -> Self {
        let mut singletons = vec![HOST, CONTENT_TYPE, CONTENT_DIGEST, AUTHORIZATION];
        for (_, component) in &coverage.rules {
            if let Component::Field(name) | Component::FieldKey(name, _) = component
                && !singletons.contains(name)
            {
                singletons.push(name.clone());
            }
        }
        Self {
            coverage,
            freshness: Freshness::default(),
            tags: Vec::new(),
            singletons,
        }
    }

    /// Demands another freshness.
    #[must_use]
    pub fn freshness(mut self, freshness: Freshness) -> Self {
        self.freshness = freshness;
        self
    }

    /// Accepts signatures with this `tag`, provided that they also cover these components. Without a
    /// call, a signature that has a `tag` was made for somebody else and is refused.
    #[must_use]
    pub fn allow_tag(
        mut self,
        tag: impl Into<String>,
        components: impl IntoIterator<Item = Component>,
    ) -> Self {
        self.tags
            .push((tag.into(), components.into_iter().collect()));
        self
    }

    pub(super) fn freshness_of(&self) -> &Freshness {
        &self.freshness
    }

    /// The components that a signature with this tag has to cover besides; `None` if it is not allowed.
    pub(super) fn tag(&self, tag: Option<&str>) -> Option<&[Component]> {
        let Some(tag) = tag else { return Some(&[]) };
        self.tags
            .iter()
            .find(|(allowed, _)| allowed == tag)
            .map(|(_, components)| components.as_slice())
    }

    /// The headers of which a message may have one line at most.
    pub(super) fn singletons(&self) -> &[HeaderName] {
        &self.singletons
    }

    /// Whether the members of this header may stand for it.
    pub(super) fn covered_by_member(&self, header: &HeaderName) -> bool {
        self.coverage.by_member.contains(header)
    }

    /// What this message has to cover.
    pub(super) fn required<'a>(
        &'a self,
        message: &'a Message<'_>,
        body: bool,
    ) -> impl Iterator<Item = &'a Component> {
        self.coverage
            .rules
            .iter()
            .filter(move |(when, component)| match when {
                When::Always => true,
                When::Method(method) => message.method() == Some(method),
                When::Query => message.has_query(),
                When::Body => body,
                When::Present => match component {
                    Component::Field(name) => message.headers().contains_key(name),
                    _ => false,
                },
            })
            .map(|(_, component)| component)
    }
}

/// Which components have to be covered, and when.
///
/// A header counts as covered by its own component. Where [`Coverage::by_member`] names it, the `;key="…"` components
/// of all its members do too; elsewhere they do not, since they bind what a Dictionary says and not how it is spelt.
///
/// ```
/// use http::{HeaderName, Method, header};
/// use tower_rctp::wire::{digest::CONTENT_DIGEST, signature::{Component, Coverage}};
///
/// let idempotency_key = HeaderName::from_static("idempotency-key");
/// let coverage = Coverage::new()
///     .always([Component::Method, Component::Authority, Component::Path])
///     .with_query([Component::Query])
///     .with_body([CONTENT_DIGEST.into(), header::CONTENT_TYPE.into()])
///     .on_method(Method::POST, [idempotency_key.clone().into()])
///     .when_present([idempotency_key, header::AUTHORIZATION]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    rules: Vec<(When, Component)>,
    by_member: Vec<HeaderName>,
}

#[derive(Clone, Debug)]
enum When {
    Always,
    Method(Method),
    Query,
    Body,
    Present,
}

impl Coverage {
    /// Demands nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Components of every message.
    #[must_use]
    pub fn always(self, components: impl IntoIterator<Item = Component>) -> Self {
        self.add(&When::Always, components)
    }

    /// Components of requests with this method.
    #[must_use]
    pub fn on_method(
        self,
        method: Method,
        components: impl IntoIterator<Item = Component>,
    ) -> Self {
        self.add(&When::Method(method), components)
    }

    /// Components of requests whose target has a query, be it empty.
    #[must_use]
    pub fn with_query(self, components: impl IntoIterator<Item = Component>) -> Self {
        self.add(&When::Query, components)
    }

    /// Components of messages with a body.
    #[must_use]
    pub fn with_body(self, components: impl IntoIterator<Item = Component>) -> Self {
        self.add(&When::Body, components)
    }

    /// Headers that have to be covered where they are present.
    #[must_use]
    pub fn when_present(self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.add(&When::Present, headers.into_iter().map(Component::Field))
    }

    /// Headers that are Dictionaries and read as such, which may also be covered member by member.
    #[must_use]
    pub fn by_member(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.by_member.extend(headers);
        self
    }

    fn add(mut self, when: &When, components: impl IntoIterator<Item = Component>) -> Self {
        self.rules.extend(
            components
                .into_iter()
                .map(|component| (when.clone(), component)),
        );
        self
    }
}

/// How old a signature may be. All bounds are inclusive; `created` is always required.
///
/// A signature is fresh when `created` lies within `max_skew` of the verifier's clock, either way, and,
/// where it has `expires`, `created ≤ expires`, `now ≤ expires` and `expires − created ≤ max_lifetime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// How far `created` may be from the verifier's clock; whole seconds count. 60 s by default.
    pub max_skew: Duration,
    /// How long after `created` the signature may expire; whole seconds count. 300 s by default.
    pub max_lifetime: Duration,
    /// Whether `expires` has to be there. It has to by default.
    pub require_expires: bool,
}

impl Default for Freshness {
    fn default() -> Self {
        Self {
            max_skew: Duration::from_secs(60),
            max_lifetime: Duration::from_secs(300),
            require_expires: true,
        }
    }
}
