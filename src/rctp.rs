//! The builder that stacks the layers.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::HeaderValue;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use crate::{
    layer::{
        admit::Admit,
        approve::{self, Approve, Approver},
        arrive::{Arrive, BODY_LIMIT},
        authenticate::{
            self, Authenticate, Challenge, Mechanisms, Surface,
            fetch::{Fetch, allowed_url},
            mcp_signature_policy,
            operators::{InForce, Operators, Profiles, Replaced},
            signature_policy,
        },
        context::{Clock, Ids, RandomIds, SystemClock},
        decision::{self, Decide, Simple},
        grant::{
            self, CheckGrant,
            introspection::{Introspect, Introspection},
        },
        idempotency::{Idempotency, Reconcile},
        outbox::{Change, Outbox},
        part::Part,
        record::{Record, Recorder},
        step::{Stack, Step},
        validate::Validate,
    },
    protocol::{
        approval::{Approval, ApprovalStatus},
        listing::{ConfirmedTerms, Listing, ListingState},
        offer::Offer,
        policy::{Limits, OfferBudget, OfferExpiry, Policy, Tiers},
        profile,
        record::{Entry, Event, Seal, SealError, Sealed, Subject, SubjectKind},
        term_set::{TermSet, TermSets},
        terms::{PrivateTerms, PublicTerms},
        time::Timestamp,
        webhook::Outgoing,
    },
    service::{
        discovery::{self, Discovery},
        market::Market,
        webhooks::{self, Deliverer, Webhooks},
    },
    store::{CommitError, Doc, Key, Kind, Put, Store, StoreError, Unit},
    wire::{
        crypto::{Provider, default_provider},
        jwk::{PublicKey, SigningKey},
        sealed::Sealer,
        signature::Authority,
    },
};

#[cfg(feature = "approvals")]
use crate::service::{
    approvals::{Approvals, Hosted, HostedApprover, TicketSource},
    enrolment::{Introspected, Tickets},
    pages::{self, Pages},
    passkeys::Passkeys,
    session::PasskeySessions,
};

/// What the key that keeps parked access tokens is derived for (R25).
const PARKED_TOKENS: &str = "tower-rctp parked access tokens";

/// How often a lost race about a listing is tried again.
const ATTEMPTS: usize = 16;

#[cfg(feature = "mcp")]
use crate::{
    layer::mcp::{self, CallTools, MCP},
    service::tools::{Mcp, McpBuilder, Tools},
};

/// The authentication, and within it the tools, where MCP is served.
#[cfg(feature = "mcp")]
pub type Authenticated = (Authenticate, CallTools);
/// The authentication.
#[cfg(not(feature = "mcp"))]
pub type Authenticated = Authenticate;

/// The whole stack as one layer.
pub type RctpLayer = Stack<(
    Arrive,
    (
        Authenticated,
        (
            Admit,
            (
                Approve,
                (Record, (CheckGrant, (Validate, (Idempotency, Decide)))),
            ),
        ),
    ),
)>;

/// The second of the four layers that make up the stack.
pub type GrantLayer = Stack<Part<(Approve, (Record, (CheckGrant, Validate)))>>;

/// RCTP, put together: a handle to its layers and services. Cheap to clone.
#[derive(Clone)]
pub struct Rctp(Arc<Parts>);

struct Parts {
    layer: RctpLayer,
    layered: AtomicBool,
    arrive: Arrive,
    authenticate: Authenticate,
    authenticated: Authenticated,
    approve: Approve,
    record: Record,
    grant: CheckGrant,
    idempotency: Idempotency,
    decide: Decide,
    store: Arc<dyn Store>,
    seal: Arc<dyn Seal>,
    policy: Arc<Policy>,
    public_url: Arc<str>,
    keys: Vec<Value>,
    /// The path of the public URL, without its trailing slash.
    prefix: String,
    /// Transports, with their paths under the public URL.
    services: Vec<(&'static str, &'static str)>,
    /// Whether signatures, and unsigned tokens, are accepted.
    accepts: [bool; 2],
    key: SigningKey,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    dev: bool,
    outbox: Outbox,
    #[cfg(feature = "approvals")]
    pages: Option<Pages>,
}

impl fmt::Debug for Rctp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rctp")
            .field("public_url", &self.0.public_url)
            .finish_non_exhaustive()
    }
}

impl Rctp {
    /// Begins to put RCTP together.
    pub fn builder() -> RctpBuilder {
        RctpBuilder::default()
    }

    /// The whole stack. It goes around the router, once: `Router::layer` would wrap each route by itself, so use
    /// [`Rctp::protect`] or `fallback_service(rctp.layer().layer(app))`.
    pub fn layer(&self) -> RctpLayer {
        if self.0.layered.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "Rctp::layer was called more than once; it goes around the whole router, once"
            );
        }
        self.0.layer.clone()
    }

    /// The default handlers, for every operation that the marketplace does not serve itself.
    pub fn market(&self) -> Market {
        Market
    }

    /// The simple mode, around one handler of the marketplace's own; see [`Simple`].
    pub fn simple(&self) -> Stack<Simple> {
        Stack::new(Simple)
    }

    /// The stack in four layers, this one outermost, then [`Rctp::grant`], [`Rctp::idempotency`] and [`Rctp::decision`]:
    /// what [`Rctp::layer`] does in one, for a marketplace that puts layers of its own between. Here: which row is it,
    /// who is calling, and do we serve it?
    pub fn authenticate(&self) -> Stack<(Arrive, (Authenticated, Admit))> {
        let Parts { arrive, .. } = &*self.0;
        Stack::new((arrive.clone(), (self.0.authenticated.clone(), Admit)))
    }

    /// The second of the four layers: may it still act for them, and is the body well-formed? What the seller approves
    /// goes on from here as it was asked. Refusals from here on enter the record.
    pub fn grant(&self) -> GrantLayer {
        let Parts {
            approve,
            record,
            grant,
            ..
        } = &*self.0;
        self.part((approve.clone(), (record.clone(), (grant.clone(), Validate))))
    }

    /// The third of the four layers: has this happened already? The decision inside it settles the key.
    pub fn idempotency(&self) -> Stack<Part<Idempotency>> {
        self.part(self.0.idempotency.clone())
    }

    /// The last of the four layers: auto, ask or forbid?
    pub fn decision(&self) -> Stack<Part<Decide>> {
        self.part(self.0.decide.clone())
    }

    fn part<T: Step>(&self, step: T) -> Stack<Part<T>> {
        Stack::new(Part::new(self.0.arrive.clone(), step))
    }

    /// Wraps an axum router from outside, so that everything under the table's first segments is decided.
    #[cfg(feature = "axum")]
    pub fn protect(&self, router: axum::Router) -> axum::Router {
        use tower::Layer;
        axum::Router::new().fallback_service(self.layer().layer(router))
    }

    /// The gateway profile, for `GET /.well-known/ucp` (binding 10).
    pub fn profile(&self) -> Value {
        let services = self.0.services.iter().map(|(transport, path)| {
            let endpoint = format!("{}{path}", self.0.public_url);
            (*transport, endpoint)
        });
        profile::gateway(
            &services.collect::<Vec<_>>(),
            &self.0.policy,
            &self.0.policy.term_sets.names(),
            &self.0.keys,
        )
    }

    /// The documents that anybody may read: the profile, OAuth metadata that names `authorization_server` (the issuer that
    /// grants come from), schemas, OpenAPI and the reference page.
    pub fn discovery(&self, authorization_server: &str) -> Discovery {
        let [signatures, oauth] = self.0.accepts;
        #[cfg(feature = "approvals")]
        let pages = self.0.pages.is_some();
        #[cfg(not(feature = "approvals"))]
        let pages = false;
        let about = discovery::About {
            public_url: &self.0.public_url,
            authorization_server,
            policy: &self.0.policy,
            signatures,
            oauth,
            pages,
            webhooks: self.0.outbox.is_kept(),
            #[cfg(feature = "mcp")]
            mcp: self.0.services.iter().any(|(_, path)| *path == MCP),
        };
        Discovery::new(&about, &self.profile(), &self.0.prefix)
    }

    /// The seller's pages, where [`RctpBuilder::approvals`] has set them up.
    #[cfg(feature = "approvals")]
    pub fn pages(&self) -> Option<&Pages> {
        self.0.pages.as_ref()
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The public URL, without a trailing slash.
    pub fn public_url(&self) -> &str {
        &self.0.public_url
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// Replaces the onboarded operators, all of them at once, while requests run. Whoever is removed is refused from the next
    /// request on, `operator_unknown`, its parked actions when their seller approves them; whoever has other clients or
    /// roles has them from the next request on. Requests in progress are completed as they began.
    ///
    /// The layers of this [`Rctp`] share the operators; those built alone keep theirs.
    ///
    /// # Errors
    /// As [`RctpBuilder::build`] says of operators; those in force stay.
    pub fn replace_operators(&self, operators: Operators) -> Result<Replaced, BuildError> {
        operators.check(self.0.dev)?;
        Ok(self.0.authenticate.replace_operators(operators))
    }

    /// Puts a listing on sale whose terms the seller confirmed on the marketplace's own page: the public ones with
    /// their commitment, the floor in private. The listing must be new.
    ///
    /// # Errors
    /// [`CommitError::Conflict`] when there is one of this id.
    pub async fn publish(
        &self,
        mut listing: Listing,
        public: PublicTerms,
        private: &PrivateTerms,
    ) -> Result<Listing, CommitError> {
        listing.terms = Some(ConfirmedTerms {
            commitment: private.commitment(&public),
            public,
        });
        let put = |kind, body: Vec<u8>| Put {
            key: Key::new(kind, &*listing.listing_id),
            expected: 0,
            parent: None,
            due: None,
            body: body.into(),
        };
        let unit = Unit {
            put: vec![
                put(
                    Kind::Listing,
                    serde_json::to_vec(&listing).expect("our documents serialise"),
                ),
                put(Kind::PrivateTerms, private.to_stored()),
            ],
            ..Unit::default()
        };
        self.0.store.commit(unit, self.0.seal.clone()).await?;
        Ok(listing)
    }

    /// Puts a draft on sale.
    ///
    /// # Errors
    /// When there is no such listing, or it is no draft.
    pub async fn activate(&self, listing_id: &str) -> Result<Listing, LifecycleError> {
        self.move_listing(listing_id, |listing, _| match listing.state {
            ListingState::Draft => Ok((ListingState::Active, Vec::new())),
            _ => Err(LifecycleError::State(listing.state.name())),
        })
        .await
    }

    /// Takes a listing back: the seller's own act on the marketplace, no agent's. Offers on it can no longer be accepted;
    /// a checkout that was given for it is 403 `not_in_scope` from now on (binding 5.3). The withdrawal enters the
    /// record: the listing's chain, and that of the accepted offer's negotiation.
    ///
    /// # Errors
    /// When there is no such listing, or it is sold or withdrawn already.
    pub async fn withdraw(&self, listing_id: &str) -> Result<Listing, LifecycleError> {
        for _ in 0..ATTEMPTS {
            match self.withdraw_as_it_is(listing_id).await {
                // It was accepted, or freed, while this was on its way.
                Err(LifecycleError::Changing) => {}
                done => return done,
            }
        }
        Err(LifecycleError::Changing)
    }

    async fn withdraw_as_it_is(&self, listing_id: &str) -> Result<Listing, LifecycleError> {
        let accepted = |offer_id: String| async move {
            let key = Key::new(Kind::Offer, offer_id);
            let doc = self.0.store.load(vec![key]).await?.into_iter().flatten();
            let offer = doc
                .map(|doc| serde_json::from_slice::<Offer>(&doc.body))
                .next();
            offer
                .transpose()
                .map_err(|_| StoreError("the offer is not readable".into()))
        };
        // Which offer it is reserved for cannot change without the listing's version.
        let listing = self.listing(listing_id).await?.map(|(listing, _)| listing);
        let offer = match listing.map(|l| l.state_at(self.0.clock.now())) {
            Some(ListingState::Reserved { offer_id, .. }) => accepted(offer_id).await?,
            _ => None,
        };
        self.move_listing(listing_id, |listing, now| {
            if let ListingState::Sold { .. } | ListingState::Withdrawn = listing.state {
                return Err(LifecycleError::State(listing.state.name()));
            }
            let entry = |subject| {
                let mut entry = Entry::event(subject, now, Event::ListingWithdrawn);
                entry.listing_id = Some(listing.listing_id.clone());
                entry.terms_commitment = listing.terms.as_ref().map(|t| t.commitment.clone());
                entry
            };
            let mut entries = vec![entry(Subject::new(
                SubjectKind::Listing,
                &*listing.listing_id,
            ))];
            if let ListingState::Reserved { offer_id, .. } = listing.state_at(now) {
                let offer = offer.as_ref().filter(|o| o.offer_id == offer_id);
                let offer = offer.ok_or(LifecycleError::Changing)?;
                let mut entry = entry(Subject::new(
                    SubjectKind::Negotiation,
                    &*offer.negotiation_id,
                ));
                entry.offer_id = Some(offer_id);
                entries.push(entry);
            }
            Ok((ListingState::Withdrawn, entries))
        })
        .await
    }

    async fn listing(&self, listing_id: &str) -> Result<Option<(Listing, Doc)>, StoreError> {
        let key = Key::new(Kind::Listing, listing_id);
        let doc = self
            .0
            .store
            .load(vec![key])
            .await?
            .into_iter()
            .flatten()
            .next();
        doc.map(|doc| {
            let listing = serde_json::from_slice(&doc.body);
            let listing = listing.map_err(|_| StoreError("the listing is not readable".into()))?;
            Ok((listing, doc))
        })
        .transpose()
    }

    async fn move_listing(
        &self,
        listing_id: &str,
        to: impl Fn(&Listing, Timestamp) -> Result<(ListingState, Vec<Entry>), LifecycleError>,
    ) -> Result<Listing, LifecycleError> {
        for _ in 0..ATTEMPTS {
            let (listing, doc) = self
                .listing(listing_id)
                .await?
                .ok_or(LifecycleError::NoListing)?;
            let (state, entries) = to(&listing, self.0.clock.now())?;
            let moved = Listing { state, ..listing };
            let unit = Unit {
                put: vec![Put {
                    key: doc.key,
                    expected: doc.version,
                    parent: None,
                    due: None,
                    body: serde_json::to_vec(&moved)
                        .expect("our documents serialise")
                        .into(),
                }],
                entries,
                ..Unit::default()
            };
            match self.0.store.commit(unit, self.0.seal.clone()).await {
                Ok(_) => return Ok(moved),
                Err(CommitError::Conflict | CommitError::KeyTaken) => {}
                Err(CommitError::Store(error)) => return Err(error.into()),
            }
        }
        Err(LifecycleError::Changing)
    }

    /// A chain of the record, whole, for [`verify_chain`](crate::protocol::record::verify_chain).
    ///
    /// # Errors
    /// When the store does not answer, or what it answers is no entry.
    pub async fn record(&self, subject: &Subject) -> Result<Vec<Value>, StoreError> {
        const PAGE: usize = 500;
        let mut entries = Vec::new();
        loop {
            let from = entries.len() as u64;
            let page = self.0.store.chain(subject.clone(), from, PAGE).await?;
            let last = page.len() < PAGE;
            for sealed in page {
                let entry = serde_json::from_slice(&sealed.published)
                    .map_err(|e| StoreError(format!("a record entry is not readable: {e}")))?;
                entries.push(entry);
            }
            if last {
                return Ok(entries);
            }
        }
    }

    /// The subject of the gateway's own chain (R30).
    pub fn gateway_subject(&self) -> Subject {
        Subject::new(SubjectKind::Gateway, &*self.0.public_url)
    }

    /// Delivers to operators what [`RctpBuilder::webhooks`] keeps for them (binding 9): spawn its
    /// [`run`](Deliverer::run).
    ///
    /// # Errors
    /// When TLS cannot be set up, or without the feature `fetch` and a [`Webhooks::post_with`].
    pub fn webhooks(&self, settings: Webhooks) -> Result<Deliverer, BuildError> {
        let agent = format!("profile=\"{}/.well-known/ucp\"", self.0.public_url);
        let agent = HeaderValue::from_str(&agent)
            .map_err(|_| BuildError("public_url does not fit a header".into()))?;
        let post = match settings.post() {
            Some(post) => post,
            #[cfg(feature = "fetch")]
            None => Arc::new(
                authenticate::fetch::HttpsPost::new(self.0.dev).map_err(|e| e.to_string())?,
            ),
            #[cfg(not(feature = "fetch"))]
            None => {
                return Err(BuildError(
                    "sending webhooks needs the feature `fetch`; enable it, or write post_with(…)"
                        .into(),
                ));
            }
        };
        Ok(Deliverer::new(webhooks::Inner {
            store: self.0.store.clone(),
            seal: self.0.seal.clone(),
            outbox: self.0.outbox.clone(),
            authenticate: self.0.authenticate.clone(),
            key: self.0.key.clone(),
            agent,
            clock: self.0.clock.clone(),
            ids: self.0.ids.clone(),
            post,
            dev: self.0.dev,
            settings,
            resting: Mutex::new(HashMap::new()),
            stopping: AtomicBool::new(false),
        }))
    }

    /// A page of the events that could not be delivered, oldest first, after the id `after`.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn dead_letters(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Outgoing>, StoreError> {
        webhooks::dead_letters(&*self.0.store, after, limit).await
    }

    /// Sends a dead letter again, as of now: its id stays, its `created_at` is the new one, since receivers refuse what is
    /// old (R33). `false` when there is none of this id.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn resend(&self, event_id: &str) -> Result<bool, StoreError> {
        self.take_up(event_id, Some(self.0.clock.now())).await
    }

    /// Throws a dead letter away. `false` when there is none of this id.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn discard(&self, event_id: &str) -> Result<bool, StoreError> {
        self.take_up(event_id, None).await
    }

    async fn take_up(&self, event_id: &str, now: Option<Timestamp>) -> Result<bool, StoreError> {
        let Parts {
            store,
            seal,
            outbox,
            ..
        } = &*self.0;
        webhooks::take_up(&**store, seal.clone(), outbox, event_id, now).await
    }

    /// Forgets what is kept no longer: answers after 48 hours, counts after their window, and what was parked once its
    /// approval has ended, proposed terms included (binding 4.2). Call it now and then. Returns how many.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        let now = self.0.clock.now();
        let forgotten = self.0.store.sweep(now).await?;
        Ok(forgotten + self.settle_overdue(now).await?)
    }

    /// Writes down what time has done to documents: readers judge it from `now` anyway.
    async fn settle_overdue(&self, now: Timestamp) -> Result<usize, StoreError> {
        const TURN: usize = 100;
        let mut settled = 0;
        loop {
            let overdue = self.0.store.due(now, TURN).await?;
            let (found, before) = (overdue.len(), settled);
            for doc in overdue {
                let (body, entries) = match at(&doc, now) {
                    Ok(settled) => settled,
                    // One that is not readable must not keep the others from their end.
                    Err(error) => {
                        tracing::error!(%error, "a document that is due cannot be settled");
                        continue;
                    }
                };
                let put = Put {
                    expected: doc.version,
                    parent: None,
                    due: None,
                    body,
                    key: doc.key.clone(),
                };
                let mut puts = self.told(&doc, &put, now)?;
                puts.insert(0, put);
                let unit = Unit {
                    put: puts,
                    entries,
                    ..Unit::default()
                };
                let seal = self.0.seal.clone();
                match self.0.outbox.commit(&*self.0.store, unit, seal).await {
                    Ok(_) => settled += 1,
                    // A request was faster; the next turn looks again.
                    Err(CommitError::Conflict | CommitError::KeyTaken) => {}
                    Err(CommitError::Store(error)) => return Err(error),
                }
            }
            if found < TURN || settled == before {
                return Ok(settled);
            }
        }
    }

    /// What operators are told of what time has done to a document.
    fn told(&self, before: &Doc, after: &Put, now: Timestamp) -> Result<Vec<Put>, StoreError> {
        let offer: Option<Offer> = match before.key.kind {
            Kind::Offer => serde_json::from_slice(&before.body).ok(),
            // It was ended before; that it is looked at again tells nothing new.
            Kind::Approval
                if serde_json::from_slice::<Approval>(&before.body)
                    .is_ok_and(|approval| approval.status != ApprovalStatus::Pending) =>
            {
                return Ok(Vec::new());
            }
            _ => None,
        };
        let change = Change {
            now,
            actor: None,
            before: &offer.iter().collect::<Vec<_>>(),
            seller_operator: None,
            recorded: None,
        };
        self.0.outbox.events([after], &change)
    }
}

/// Why a listing was not moved. It is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LifecycleError {
    /// There is none of this id.
    #[error("there is no such listing")]
    NoListing,
    /// It is in a state that this does not start from.
    #[error("the listing is {0}")]
    State(&'static str),
    /// Agents act on it just now; try again.
    #[error("the listing is being changed just now; try again")]
    Changing,
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A document as it stands at `now`, and what the record must say of that: an approval that nobody answered is a decline
/// (INV-2).
fn at(doc: &Doc, now: Timestamp) -> Result<(Bytes, Vec<Entry>), StoreError> {
    // No message of the parser: it might quote proposed terms.
    fn read<T: DeserializeOwned>(doc: &Doc) -> Result<T, StoreError> {
        serde_json::from_slice(&doc.body)
            .map_err(|_| StoreError(format!("the {} is not readable", doc.key.kind.as_str())))
    }
    let mut entries = Vec::new();
    let body = match doc.key.kind {
        Kind::Approval => {
            let approval: Approval = read(doc)?;
            if approval.status_at(now) == ApprovalStatus::Expired {
                entries.push(approval.declined_entry(now));
            }
            let status = approval.status_at(now);
            let outcome = approval.outcome.clone();
            serde_json::to_vec(&approval.ended(status, outcome))
        }
        Kind::Offer => {
            let mut offer: Offer = read(doc)?;
            offer.state = offer.state_at(now);
            serde_json::to_vec(&offer)
        }
        Kind::Listing => {
            let mut listing: Listing = read(doc)?;
            listing.state = listing.state_at(now);
            serde_json::to_vec(&listing)
        }
        Kind::PrivateTerms
        | Kind::Negotiation
        | Kind::Nonce
        | Kind::Deal
        | Kind::Passkey
        | Kind::Question
        | Kind::Webhook
        | Kind::DeadLetter => {
            return Ok((doc.body.clone(), entries));
        }
    };
    body.map(|body| (Bytes::from(body), entries))
        .map_err(|e| StoreError(format!("a document does not serialise: {e}")))
}

/// Puts RCTP together. Required: `public_url`, `operators`, `introspection`, `store`, `signing_key`.
#[must_use]
pub struct RctpBuilder {
    public_url: Option<String>,
    authorities: Vec<String>,
    operators: Operators,
    mechanisms: Mechanisms,
    introspection: Option<IntrospectionSource>,
    fetch: Option<Arc<dyn Fetch>>,
    store: Option<Arc<dyn Store>>,
    key: Option<SigningKey>,
    former_keys: Vec<Value>,
    policy: Policy,
    term_sets: Vec<String>,
    own_term_sets: Vec<TermSet>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    provider: &'static dyn Provider,
    reconcile: Option<Arc<dyn Reconcile>>,
    approver: Option<Arc<dyn Approver>>,
    #[cfg(feature = "approvals")]
    approvals: Option<Approvals>,
    webhooks: bool,
    #[cfg(feature = "mcp")]
    mcp: Option<McpBuilder>,
    #[cfg(feature = "mcp")]
    tools: Option<Arc<dyn Tools>>,
    body_limit: usize,
    dev: bool,
}

enum IntrospectionSource {
    Endpoint(Introspection),
    Given(Arc<dyn Introspect>),
}

impl Default for RctpBuilder {
    fn default() -> Self {
        Self {
            public_url: None,
            authorities: Vec::new(),
            operators: Operators::default(),
            mechanisms: Mechanisms::reference(),
            introspection: None,
            fetch: None,
            store: None,
            key: None,
            former_keys: Vec::new(),
            policy: Policy::default(),
            term_sets: TermSets::reference().names(),
            own_term_sets: Vec::new(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            provider: default_provider(),
            reconcile: None,
            approver: None,
            #[cfg(feature = "approvals")]
            approvals: None,
            webhooks: false,
            #[cfg(feature = "mcp")]
            mcp: None,
            #[cfg(feature = "mcp")]
            tools: None,
            body_limit: BODY_LIMIT,
            dev: false,
        }
    }
}

/// RCTP was put together wrongly: names the setting and says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(String);

impl BuildError {
    fn missing(setting: &str, write: &str) -> Self {
        Self(format!("{setting} is missing; write {write}"))
    }
}

impl From<String> for BuildError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl RctpBuilder {
    /// The URL that agents use: https; its host is the `@authority` that signatures must cover, its path a prefix of
    /// every operation's.
    pub fn public_url(mut self, url: impl Into<String>) -> Self {
        self.public_url = Some(url.into());
        self
    }

    /// Another host (and port) that agents may address, beside the public URL's (R8).
    pub fn authority(mut self, authority: impl Into<String>) -> Self {
        self.authorities.push(authority.into());
        self
    }

    /// The onboarded operators.
    pub fn operators(mut self, operators: Operators) -> Self {
        self.operators = operators;
        self
    }

    /// The mechanisms that are accepted; by default signatures and OAuth.
    pub fn mechanisms(mut self, mechanisms: Mechanisms) -> Self {
        self.mechanisms = mechanisms;
        self
    }

    /// Where grants are introspected (RFC 7662).
    pub fn introspection(mut self, introspection: Introspection) -> Self {
        self.introspection = Some(IntrospectionSource::Endpoint(introspection));
        self
    }

    /// Introspects grants in another way than over HTTP.
    pub fn introspect_with(mut self, introspect: impl Introspect) -> Self {
        self.introspection = Some(IntrospectionSource::Given(Arc::new(introspect)));
        self
    }

    /// Fetches profiles in another way than [`HttpsFetch`](authenticate::fetch).
    pub fn fetch_with(mut self, fetch: impl Fetch) -> Self {
        self.fetch = Some(Arc::new(fetch));
        self
    }

    /// Where state lives.
    pub fn store(self, store: impl Store) -> Self {
        self.shared_store(Arc::new(store))
    }

    /// Where state lives, shared with the rest of the program.
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// The gateway's key: signs checkouts and record entries, and is published in the gateway profile.
    pub fn signing_key(mut self, key: SigningKey) -> Self {
        self.key = Some(key);
        self
    }

    /// A former key, as a public JWK: still published, and checkouts signed with it can be redeemed. Keep it for at least
    /// the 5 minutes that a profile may be cached and the longest checkout after the change (`docs/discovery.md`).
    pub fn former_key(mut self, jwk: Value) -> Self {
        self.former_keys.push(jwk);
        self
    }

    /// The scopes on offer, with their tiers (binding 3.1).
    pub fn tiers(mut self, tiers: Tiers) -> Self {
        self.policy.tiers = tiers;
        self
    }

    /// The offer budget (binding 6).
    pub fn offer_budget(mut self, budget: OfferBudget) -> Self {
        self.policy.budget = budget;
        self
    }

    /// How long offers live (binding 5.2).
    pub fn offer_expiry(mut self, expiry: OfferExpiry) -> Self {
        self.policy.expiry = expiry;
        self
    }

    /// How long approvals wait and checkouts hold.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.policy.limits = limits;
        self
    }

    /// Which of the registered term sets are enforced (binding 4.1), beside the marketplace's own; by default all.
    pub fn term_sets<I: IntoIterator<Item = S>, S: Into<String>>(mut self, names: I) -> Self {
        self.term_sets = names.into_iter().map(Into::into).collect();
        self
    }

    /// A term set of the marketplace's own, which is enforced too.
    pub fn term_set(mut self, definition: TermSet) -> Self {
        self.own_term_sets.push(definition);
        self
    }

    /// The clock; tests move one of their own.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Where ids, nonces and salts come from.
    pub fn ids(mut self, ids: impl Ids) -> Self {
        self.ids = Arc::new(ids);
        self
    }

    /// The crypto provider that profile keys are verified with.
    pub fn crypto(mut self, provider: &'static dyn Provider) -> Self {
        self.provider = provider;
        self
    }

    /// Settles executions of the simple mode that never finished (R10).
    pub fn reconcile(mut self, reconcile: impl Reconcile) -> Self {
        self.reconcile = Some(Arc::new(reconcile));
        self
    }

    /// Knows sellers' browsers and passkeys in another way than the hosted pages do; serves
    /// `POST /approvals/{id}/response`. Without one, what is parked can only expire.
    pub fn approve_with(mut self, approver: impl Approver) -> Self {
        self.approver = Some(Arc::new(approver));
        self
    }

    /// Hosts the seller's pages, where they fill in terms and approve with a passkey: see [`Rctp::pages`]. Takes a
    /// `public_url` with a domain and without a path.
    #[cfg(feature = "approvals")]
    pub fn approvals(mut self, approvals: Approvals) -> Self {
        self.approvals = Some(approvals);
        self
    }

    /// Whether operators are told of changes (binding 9). Their events are kept in the store, in the unit that makes the
    /// change, until [`Rctp::webhooks`] has delivered them: a program that sets this runs it. By default not.
    pub fn webhooks(mut self, webhooks: bool) -> Self {
        self.webhooks = webhooks;
        self
    }

    /// Serves the operations as tools over MCP too (binding 13), at `/mcp` under the public URL; see `docs/mcp.md`. The
    /// hosts are this builder's public URL and authorities, the limit of bodies is its own.
    ///
    /// ```
    /// use tower_rctp::{Rctp, service::tools::Mcp};
    ///
    /// let builder = Rctp::builder().mcp(Mcp::builder("marketplace.example", "1.0.0"));
    /// ```
    #[cfg(feature = "mcp")]
    pub fn mcp(mut self, server: McpBuilder) -> Self {
        self.mcp = Some(server);
        self
    }

    /// Tools of the marketplace's own, on the same endpoint. Their callers are authenticated; all else is theirs to check.
    #[cfg(feature = "mcp")]
    pub fn tools(mut self, tools: impl Tools + 'static) -> Self {
        self.tools = Some(Arc::new(tools));
        self
    }

    /// The limit of a request's body in bytes; 256 KiB by default. More is 413.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// Development: http and loopback addresses are allowed for profiles, introspection and the public URL.
    pub fn dev(mut self, dev: bool) -> Self {
        self.dev = dev;
        self
    }

    /// Builds the authentication layer alone: needs `public_url` and `operators`, and `introspection` where OAuth is
    /// accepted. Without the table it applies to every request that reaches it; refusals are not recorded.
    ///
    /// # Errors
    /// What is missing or wrong, by name.
    pub fn authenticate_alone(self) -> Result<Stack<Authenticate>, BuildError> {
        let public = self.public()?;
        let introspect = match self.introspection {
            None if !self.mechanisms.accepts_oauth() => None,
            _ => Some(self.introspect()?),
        };
        let operators = InForce::new(self.operators.clone());
        let step = self.authenticate_step(&public, operators, introspect, None)?;
        Ok(Stack::new(step))
    }

    /// Builds the grant layer alone: needs `introspection`. Without the table it requires a seller's grant with
    /// `scope` on every request; the authentication layer goes outside it.
    ///
    /// # Errors
    /// What is missing or wrong, by name.
    pub fn grant_alone(self, scope: impl Into<String>) -> Result<Stack<CheckGrant>, BuildError> {
        Ok(Stack::new(CheckGrant::new(grant::Config {
            introspect: self.introspect()?,
            clock: self.clock.clone(),
            operators: InForce::new(self.operators.clone()),
            store: None,
            scope: Some(scope.into()),
        })))
    }

    /// Builds the idempotency layer alone, for handlers that know nothing of units: needs `store`. The authentication
    /// layer goes outside it.
    ///
    /// # Errors
    /// What is missing or wrong, by name.
    pub fn idempotency_alone(self) -> Result<Stack<Idempotency>, BuildError> {
        struct NoEntries;
        impl Seal for NoEntries {
            fn seal(&self, _: &Entry, _: u64, _: &str) -> Result<Sealed, SealError> {
                Err(SealError(
                    "the idempotency layer alone keeps no record".into(),
                ))
            }
        }
        let store = self.required_store()?;
        Ok(Stack::new(Idempotency::new(
            store,
            Arc::new(NoEntries),
            self.clock,
            self.reconcile,
            false,
        )))
    }

    /// Puts everything together.
    ///
    /// # Errors
    /// What is missing or wrong, by name, and what to write.
    #[cfg_attr(not(feature = "mcp"), allow(unused_mut))]
    pub fn build(mut self) -> Result<Rctp, BuildError> {
        let public = self.public()?;
        self.policy.tiers.check()?;
        self.check_numbers()?;
        let term_sets = self.enforced_term_sets()?;
        let introspect = self.introspect()?;
        let store = self.required_store()?;
        let key = self.key.clone().ok_or_else(|| {
            BuildError::missing(
                "signing_key",
                ".signing_key(SigningKey::from_pkcs8_pem(…)?)",
            )
        })?;
        let seal: Arc<dyn Seal> = Arc::new(key.clone());
        let gateway = Subject::new(SubjectKind::Gateway, &*public.url);
        let recorder = Recorder::new(
            store.clone(),
            seal.clone(),
            self.clock.clone(),
            gateway.clone(),
        );
        let operators = InForce::new(self.operators.clone());
        let authenticate = self.authenticate_step(
            &public,
            operators.clone(),
            Some(introspect.clone()),
            Some(recorder.clone()),
        )?;
        let grant = CheckGrant::new(grant::Config {
            introspect: introspect.clone(),
            clock: self.clock.clone(),
            operators: operators.clone(),
            store: Some(store.clone()),
            scope: None,
        });
        let idempotency = Idempotency::new(
            store.clone(),
            seal.clone(),
            self.clock.clone(),
            self.reconcile.clone(),
            true,
        );
        let policy = Arc::new(Policy {
            term_sets,
            ..self.policy.clone()
        });
        let public_url: Arc<str> = public.url.as_str().into();
        let mut keys = vec![key.public_jwk()];
        keys.extend(self.former_keys.iter().cloned());
        let mut verifying = vec![key.public_key().clone()];
        for jwk in &self.former_keys {
            let key = PublicKey::from_jwk_with(jwk, self.provider)
                .map_err(|e| BuildError(format!("former_key is not usable: {e}")))?;
            if verifying.iter().any(|other| other.kid() == key.kid()) {
                return Err(BuildError(format!(
                    "former_key: {} is there twice, or is the signing key; name each former key once",
                    key.kid()
                )));
            }
            verifying.push(key);
        }
        #[cfg(feature = "approvals")]
        let hosted = self.hosted(&public, &store, &key, &introspect)?;
        #[cfg(feature = "approvals")]
        let approver = self.approver.clone().or_else(|| {
            let (hosted, _) = hosted.as_ref()?;
            Some(Arc::new(HostedApprover(hosted.clone())) as Arc<dyn Approver>)
        });
        #[cfg(not(feature = "approvals"))]
        let approver = self.approver.clone();
        let parking = || {
            Sealer::from_signing_key(&key, PARKED_TOKENS)
                .map_err(|e| BuildError(format!("signing_key: it cannot keep parked tokens: {e}")))
        };
        let outbox = Outbox::new(self.webhooks.then(|| self.ids.clone()), operators.clone());
        let approve = Approve::new(approve::Config {
            approver: approver.clone(),
            store: store.clone(),
            seal: seal.clone(),
            clock: self.clock.clone(),
            sealer: parking()?,
            operators,
            origin: public.origin.clone(),
            prefix: public.prefix.clone(),
            outbox: outbox.clone(),
        });
        let decide = Decide::new(decision::Config {
            sealer: parking()?,
            store: store.clone(),
            seal: seal.clone(),
            keys: verifying,
            key: key.clone(),
            policy: policy.clone(),
            clock: self.clock.clone(),
            ids: self.ids.clone(),
            public_url: public_url.clone(),
            gateway,
            outbox: outbox.clone(),
        });
        let prefix = public.prefix.clone();
        #[cfg_attr(not(feature = "mcp"), allow(unused_mut))]
        let mut services = vec![("rest", "/")];
        #[cfg(feature = "mcp")]
        let server = self.mcp_server(&public)?;
        #[cfg(feature = "mcp")]
        services.extend(server.is_some().then_some(("mcp", MCP)));
        let arrive = Arrive::new(
            public.prefix,
            self.body_limit,
            approver.is_some(),
            #[cfg(feature = "mcp")]
            server.clone().map(mcp::Surface),
        );
        #[cfg(feature = "mcp")]
        let call_tools = CallTools::new(server.map(|server| mcp::Config {
            server,
            others: self.tools.take(),
            grant: grant.clone(),
            recorder: recorder.clone(),
            policy: policy.clone(),
            prefix: prefix.clone(),
        }));
        #[cfg(feature = "mcp")]
        let authenticated = (authenticate.clone(), call_tools);
        #[cfg(not(feature = "mcp"))]
        let authenticated = authenticate.clone();
        let record = Record::new(recorder);
        #[cfg(feature = "approvals")]
        let pages = hosted.map(|(hosted, files)| {
            Pages::new(pages::Inner {
                hosted,
                files,
                origin: public.origin.clone(),
                public_url: public_url.clone(),
                store: store.clone(),
                seal: seal.clone(),
                clock: self.clock.clone(),
                ids: self.ids.clone(),
                policy: policy.clone(),
            })
        });
        let layer = Stack::new((
            arrive.clone(),
            (
                authenticated.clone(),
                (
                    Admit,
                    (
                        approve.clone(),
                        (
                            record.clone(),
                            (
                                grant.clone(),
                                (Validate, (idempotency.clone(), decide.clone())),
                            ),
                        ),
                    ),
                ),
            ),
        ));
        Ok(Rctp(Arc::new(Parts {
            layer,
            layered: AtomicBool::new(false),
            arrive,
            authenticate,
            authenticated,
            approve,
            record,
            grant,
            idempotency,
            decide,
            store,
            seal,
            policy,
            public_url,
            keys,
            prefix,
            services,
            accepts: [
                self.mechanisms.accepts_signatures(),
                self.mechanisms.accepts_oauth(),
            ],
            key,
            clock: self.clock,
            ids: self.ids,
            dev: self.dev,
            outbox,
            #[cfg(feature = "approvals")]
            pages,
        })))
    }

    /// What the hosted pages need, and their files.
    #[cfg(feature = "approvals")]
    fn hosted(
        &self,
        public: &Public,
        store: &Arc<dyn Store>,
        key: &SigningKey,
        introspect: &Arc<dyn Introspect>,
    ) -> Result<Option<(Arc<Hosted>, pages::Files)>, BuildError> {
        let Some(settings) = &self.approvals else {
            return Ok(None);
        };
        if !public.prefix.is_empty() {
            return Err(BuildError(
                "approvals: the pages need a public_url without a path; give RCTP a host of its own".into(),
            ));
        }
        let failed = |e: &dyn fmt::Display| BuildError(format!("approvals: {e}"));
        let passkeys = Passkeys::new(
            &public.url,
            &settings.marketplace,
            store.clone(),
            self.clock.clone(),
            key,
        );
        let sessions = PasskeySessions::new(&public.url, key, self.clock.clone());
        let hosted = Hosted {
            passkeys: passkeys.map_err(|e| failed(&e))?,
            own_sessions: sessions.map_err(|e| failed(&e))?,
            sessions: settings.sessions.clone(),
            tickets: match &settings.tickets {
                TicketSource::None => None,
                TicketSource::Given(tickets) => Some(tickets.clone()),
                TicketSource::Introspected => {
                    Some(Arc::new(Introspected(introspect.clone())) as Arc<dyn Tickets>)
                }
            },
        };
        Ok(Some((Arc::new(hosted), Pages::files(settings)?)))
    }

    #[cfg(feature = "mcp")]
    fn mcp_server(&mut self, public: &Public) -> Result<Option<Mcp>, BuildError> {
        let Some(server) = self.mcp.take() else {
            return match self.tools {
                None => Ok(None),
                Some(_) => Err(BuildError::missing(
                    "mcp",
                    ".mcp(Mcp::builder(name, version))",
                )),
            };
        };
        let hosts = public.authorities.iter();
        let urls = hosts.map(|host| format!("{}://{}", host.scheme(), host.as_str()));
        let server = urls.fold(server, |server, url| server.public_url(&url));
        let server = server.body_limit(self.body_limit).build();
        server
            .map(Some)
            .map_err(|e| BuildError(format!("mcp: {e}")))
    }

    /// `WWW-Authenticate`, from which OAuth clients find the authorization server (RFC 9728 §5.1).
    fn challenge(&self, parameters: &str) -> Result<Option<Challenge>, BuildError> {
        if !self.mechanisms.accepts_oauth() {
            return Ok(None);
        }
        let said = |more: &str| {
            HeaderValue::from_str(&format!("Bearer resource_metadata={parameters}{more}"))
                .map_err(|_| BuildError("public_url does not fit a header".into()))
        };
        Ok(Some(Challenge {
            plain: said("")?,
            invalid_token: said(", error=\"invalid_token\"")?,
        }))
    }

    /// MCP clients take the scopes that they ask for from here; the metadata is that of the endpoint.
    fn mcp_challenge(&self, public: &Public) -> String {
        let Public { origin, prefix, .. } = public;
        let scopes: Vec<&str> = self.policy.tiers.iter().map(|(scope, _)| scope).collect();
        let scope = match scopes.is_empty() {
            true => String::new(),
            false => format!(", scope=\"{}\"", scopes.join(" ")),
        };
        format!("\"{origin}/.well-known/oauth-protected-resource{prefix}/mcp\"{scope}")
    }

    fn check_numbers(&self) -> Result<(), BuildError> {
        let Policy {
            budget,
            expiry,
            limits,
            ..
        } = &self.policy;
        // A budget of nothing would answer 429 to the first offer.
        let positive = [
            ("offer_budget.per_agent", budget.per_agent),
            ("offer_budget.per_operator", budget.per_operator),
            ("offer_budget.window_hours", budget.window_hours),
            ("offer_budget.seller_probes", budget.seller_probes),
            ("offer_expiry.default_seconds", expiry.default_seconds),
            ("offer_expiry.max_seconds", expiry.max_seconds),
            ("limits.approval_seconds", limits.approval_seconds),
            ("limits.checkout_seconds", limits.checkout_seconds),
            ("limits.asks_per_listing", limits.asks_per_listing),
            ("limits.asks_per_agent", limits.asks_per_agent),
            ("limits.questions_per_agent", limits.questions_per_agent),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, n)| *n == 0) {
            return Err(BuildError(format!("{name} is 0; write at least 1")));
        }
        if expiry.default_seconds > expiry.max_seconds {
            return Err(BuildError(
                "offer_expiry.default_seconds is over max_seconds; lower it".into(),
            ));
        }
        if self.body_limit == 0 {
            return Err(BuildError("body_limit is 0; write at least 1".into()));
        }
        Ok(())
    }

    fn enforced_term_sets(&self) -> Result<TermSets, BuildError> {
        let mut registered = TermSets::reference();
        for own in &self.own_term_sets {
            registered = registered
                .with(own.clone())
                .map_err(|why| format!("term_set: {why}"))?;
        }
        let own = self.own_term_sets.iter().map(TermSet::name);
        let names = self.term_sets.iter().map(String::as_str).chain(own);
        let enforced = registered
            .select(names)
            .map_err(|why| format!("term_sets: {why}; define one of your own with .term_set(…)"))?;
        if enforced.is_empty() {
            return Err(BuildError("term_sets is empty; name at least one".into()));
        }
        Ok(enforced)
    }

    fn public(&self) -> Result<Public, BuildError> {
        let text = self.public_url.as_deref().ok_or_else(|| {
            BuildError::missing("public_url", ".public_url(\"https://gateway.example\")")
        })?;
        let url = allowed_url(text, self.dev).map_err(|why| format!("public_url: {why}"))?;
        if url.query().is_some() {
            return Err(BuildError(
                "public_url has a query; write scheme, host and path only".into(),
            ));
        }
        let mut authorities = vec![authority_of(&url, text)?];
        for other in &self.authorities {
            authorities.push(Authority::new(other, url.scheme()).map_err(|e| {
                BuildError(format!(
                    "authority: `{other}` is not a host with a port: {e}"
                ))
            })?);
        }
        Ok(Public {
            origin: url.origin().ascii_serialization(),
            prefix: url.path().trim_end_matches('/').to_owned(),
            url: url.as_str().trim_end_matches('/').to_owned(),
            authorities,
        })
    }

    fn introspect(&self) -> Result<Arc<dyn Introspect>, BuildError> {
        match &self.introspection {
            Some(IntrospectionSource::Given(introspect)) => Ok(introspect.clone()),
            Some(IntrospectionSource::Endpoint(settings)) => {
                settings.check(self.dev)?;
                #[cfg(feature = "fetch")]
                return Ok(Arc::new(grant::introspection::HttpIntrospect::new(
                    settings, self.dev,
                )?));
                #[cfg(not(feature = "fetch"))]
                Err(BuildError(
                    "introspection over HTTP needs the feature `fetch`; enable it, or write introspect_with(…)".into(),
                ))
            }
            None => Err(BuildError::missing(
                "introspection",
                ".introspection(Introspection::endpoint(url).client_secret_basic(id, secret))",
            )),
        }
    }

    fn required_store(&self) -> Result<Arc<dyn Store>, BuildError> {
        self.store.clone().ok_or_else(|| {
            BuildError::missing("store", ".store(SqliteStore::open(\"rctp.db\").await?)")
        })
    }

    fn authenticate_step(
        &self,
        public: &Public,
        operators: InForce,
        introspect: Option<Arc<dyn Introspect>>,
        recorder: Option<Recorder>,
    ) -> Result<Authenticate, BuildError> {
        self.operators.check(self.dev)?;
        if self.mechanisms.is_empty() {
            return Err(BuildError(
                "mechanisms: none is accepted; write Mechanisms::reference()".into(),
            ));
        }
        let fetch = match &self.fetch {
            Some(fetch) => fetch.clone(),
            None => self.default_fetch()?,
        };
        Ok(Authenticate::new(authenticate::Config {
            operators,
            profiles: Profiles::new(fetch, self.provider),
            mechanisms: self.mechanisms.clone(),
            introspect,
            authorities: public.authorities.clone(),
            rest: Surface {
                policy: signature_policy(),
                challenge: self.challenge(&format!(
                    "\"{}/.well-known/oauth-protected-resource\"",
                    public.url
                ))?,
            },
            mcp: Surface {
                policy: mcp_signature_policy(),
                challenge: self.challenge(&self.mcp_challenge(public))?,
            },
            clock: self.clock.clone(),
            recorder,
            body_limit: self.body_limit,
        }))
    }

    #[cfg(feature = "fetch")]
    fn default_fetch(&self) -> Result<Arc<dyn Fetch>, BuildError> {
        let fetch = authenticate::fetch::HttpsFetch::new(self.dev).map_err(|e| e.to_string())?;
        Ok(Arc::new(fetch))
    }

    #[cfg(not(feature = "fetch"))]
    fn default_fetch(&self) -> Result<Arc<dyn Fetch>, BuildError> {
        Err(BuildError(
            "fetching profiles needs the feature `fetch`; enable it, or write fetch_with(…)".into(),
        ))
    }
}

/// What the public URL says.
struct Public {
    url: String,
    origin: String,
    prefix: String,
    authorities: Vec<Authority>,
}

fn authority_of(url: &Url, text: &str) -> Result<Authority, BuildError> {
    let host = url.host_str().unwrap_or_default();
    let raw = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    Authority::new(&raw, url.scheme())
        .map_err(|e| BuildError(format!("public_url: `{text}` has no usable host: {e}")))
}
