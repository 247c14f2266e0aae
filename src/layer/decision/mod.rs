//! Auto, ask or forbid? Reads the facts, decides, and sees the decision carried out (binding 6).
//!
//! ```text
//! facts ─ decide ─ forbid → unit{entry, counted offer, stored response} → commit → refusal
//!                ─ ask    → unit{entry, approval, stored response}      → commit → 202
//!                ─ auto   → handler(Decided) → unit{…, its response}    → commit → resource
//!                               └ lost race: read and decide again, a few times, then 503
//! ```
//!
//! The decision itself is [`decide`], a pure function. A handler finds it as [`Decided`].

mod decided;
mod effect;
mod facts;
mod simple;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};
use tracing::field;

pub(crate) use self::decided::refused_outcome;
pub use self::{decided::Decided, simple::Simple};
use self::{
    decided::{End, Inner, Resumed, no_randomness, reopened},
    facts::{Loaded, Reader, belongs, subject},
};
pub(crate) use self::{
    effect::of_listing,
    facts::{Page, Span},
};
use super::{
    approve::Approved,
    arrive::{Arrived, refuse},
    authenticate::{Bearer, SignedBy},
    body::{Body, CollectError},
    context::{Clock, Ids},
    idempotency::{Held, MAX_STORED, Settled, key_taken, stored},
    outbox::{Change, Outbox},
    part::{put_together_wrongly, row_of},
    record::Recorded,
    step::{Next, Step},
    trace,
    validate::Validated,
};
use crate::{
    protocol::{
        approval::{self, Approval, ApprovalStatus, Asker, Parked},
        caller::{Agent, Caller},
        decision::{Decision, Facts, HEADER, OnTimeout, Requested, Verdict, decide},
        grant::Grant,
        offer::{Offer, OfferState},
        operation::{Op, Operation, Verb},
        policy::Policy,
        record::{DealEvent, Entry, Seal, Subject, SubjectKind},
        refusal::{ProtocolError, Reason, Refusal},
        time::Timestamp,
    },
    store::{
        ClaimStep, CommitError, Count, Key, Kind, Put, Store, Unit, WindowCheck, negotiation_key,
    },
    wire::{
        jwk::{PublicKey, SigningKey},
        sealed::Sealer,
    },
};

/// How often a lost race is decided again before the answer is 503.
const ATTEMPTS: usize = 64;

/// Marks an answer of a handler that does not serve the operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotServed;

/// The step.
#[derive(Clone)]
pub struct Decide(Arc<Config>);

pub(crate) struct Config {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) seal: Arc<dyn Seal>,
    pub(crate) key: SigningKey,
    /// Keys that checkouts may be signed with: the current one, and former ones.
    pub(crate) keys: Vec<PublicKey>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    /// The public URL without a trailing slash.
    pub(crate) public_url: Arc<str>,
    pub(crate) gateway: Subject,
    /// Keeps the access token of a parked action (R25).
    pub(crate) sealer: Sealer,
    /// Where operators are told from.
    pub(crate) outbox: Outbox,
}

impl Decide {
    pub(crate) fn new(config: Config) -> Self {
        Self(Arc::new(config))
    }
}

impl Step for Decide {
    async fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        let asked = match Asked::of(&request) {
            Ok(asked) => asked,
            Err(refusal) => return Ok(refuse(&refusal)),
        };
        for _ in 0..ATTEMPTS {
            // Boxed, as all that is large and not always needed: every step moves the futures of those within.
            let turn = match Box::pin(self.0.turn(&asked)).await {
                Ok(turn) => turn,
                Err(refusal) => return Ok(refuse(&refusal)),
            };
            let decided = match turn {
                Turn::Answer(response) => return Ok(response),
                Turn::Again => continue,
                Turn::Carry(decided) => decided,
            };
            let response = next.clone().run(asked.request(&request, &decided)).await?;
            match Box::pin(self.0.finished(&asked, &decided, response)).await {
                Ok(Some(response)) => return Ok(response),
                Ok(None) => continue,
                Err(refusal) => return Ok(refuse(&refusal)),
            }
        }
        tracing::warn!(operation = asked.row.name, "too many lost races");
        Ok(refuse(&Refusal::unavailable(
            "too many requests change this at once; nothing was executed, retry with the same key",
        )))
    }

    fn span(&self, request: &Request<Body>) -> tracing::Span {
        let row = || request.extensions().get().and_then(Arrived::row);
        let caller = || request.extensions().get::<Caller>();
        tracing::debug_span!(
            "rctp.decide",
            rctp.operation = row().map(|row| row.name),
            rctp.verb = row().and_then(|row| row.verb).map(Verb::as_str),
            rctp.operator = caller().map(|caller| &*caller.operator),
            rctp.decision = field::Empty,
            rctp.reason = field::Empty,
            rctp.error = field::Empty,
        )
    }

    fn told(span: &tracing::Span, response: &Response<Body>) {
        trace::decided(span, response);
    }
}

/// What a request asks, as the outer steps left it.
struct Asked {
    row: &'static Operation,
    arrived: Arrived,
    body: Arc<Value>,
    caller: Caller,
    grant: Option<Grant>,
    held: Option<Held>,
    bearer: Option<Bearer>,
    /// The key that signed the request.
    key: Option<PublicKey>,
    approved: Option<Approved>,
}

impl Asked {
    fn of(request: &Request<Body>) -> Result<Self, Refusal> {
        let extensions = request.extensions();
        let (arrived, row) = row_of(extensions)?;
        let held = extensions.get::<Held>().cloned();
        let approved = extensions.get::<Approved>().cloned();
        if row.writes() && held.is_none() && approved.is_none() {
            return Err(put_together_wrongly(
                "a held Idempotency-Key: put Rctp::idempotency() outside",
            ));
        }
        Ok(Self {
            row,
            arrived: arrived.clone(),
            body: extensions
                .get::<Validated>()
                .ok_or_else(|| put_together_wrongly("a validated body: put Rctp::grant() outside"))?
                .0
                .clone(),
            caller: extensions
                .get::<Caller>()
                .ok_or_else(|| put_together_wrongly("Caller: put Rctp::authenticate() outside"))?
                .clone(),
            grant: extensions.get::<Grant>().cloned(),
            held,
            bearer: extensions.get::<Bearer>().cloned(),
            key: extensions.get::<SignedBy>().map(|by| by.0.clone()),
            approved,
        })
    }

    /// The request for the handler, with the decision in its extensions.
    fn request(&self, request: &Request<Body>, decided: &Decided) -> Request<Body> {
        let mut copy = Request::new(Body::from(self.arrived.body().clone()));
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        *copy.extensions_mut() = request.extensions().clone();
        copy.extensions_mut().insert(decided.clone());
        copy
    }
}

/// How one turn of deciding ends.
enum Turn {
    Answer(Response<Body>),
    Again,
    Carry(Decided),
}

impl Config {
    async fn turn(&self, asked: &Asked) -> Result<Turn, Refusal> {
        let now = self.clock.now();
        let reader = Reader {
            store: &*self.store,
            row: asked.row,
            arrived: &asked.arrived,
            body: &asked.body,
            caller: &asked.caller,
            grant: asked.grant.as_ref(),
            policy: &self.policy,
            keys: &self.keys,
            signed_by: asked.key.as_ref(),
            now,
            approved: asked.approved.as_ref(),
        };
        let loaded = reader.read().await?;
        let verdict = decide(
            asked.row,
            &asked.caller,
            asked.grant.as_ref(),
            &loaded.facts,
            &self.policy,
            now,
        );
        match verdict {
            Verdict::Refuse(refusal) => Box::pin(self.forbid(asked, loaded, refusal, now)).await,
            Verdict::Ask { expires_at } => {
                Box::pin(self.park(asked, loaded, expires_at, now)).await
            }
            Verdict::Auto => self.carry(asked, loaded, now).map(Turn::Carry),
        }
    }

    fn carry(&self, asked: &Asked, mut loaded: Loaded, now: Timestamp) -> Result<Decided, Refusal> {
        let opens = self.opened(asked, &mut loaded, now)?;
        let place = subject(asked.row, &loaded.facts, &self.gateway);
        let mut place = place.unwrap_or_else(|| self.gateway.clone());
        let new_listing = match (asked.row.op, &loaded.approving) {
            (Op::CreateListing, Some(approval)) => approval.target.clone(),
            (Op::CreateListing, None) => Some(self.ids.id("lst", now).map_err(no_randomness)?),
            _ => None,
        };
        if let Some(id) = &new_listing {
            place = Subject::new(SubjectKind::Listing, &**id);
        }
        let mut entry = self.entry(asked, &loaded.facts, place, Decision::Auto, now);
        if new_listing.is_some() {
            entry.listing_id.clone_from(&new_listing);
        }
        if let Requested::Event(signed) = &loaded.facts.requested {
            entry.deal_event = Some(DealEvent {
                event: signed.event.event.clone(),
                event_id: signed.event.event_id.clone(),
                jws: signed.jws.clone(),
            });
        }
        if let Some(draft) = &loaded.facts.draft {
            entry.terms_commitment = Some(draft.commitment.clone());
        }
        Ok(Decided::new(Inner {
            row: asked.row,
            caller: asked.caller.clone(),
            grant: asked.grant.clone(),
            entry,
            new_listing,
            facts: loaded.facts,
            versions: loaded.versions,
            windows: loaded.windows,
            opens,
            resumed: loaded
                .approving
                .zip(asked.approved.as_ref())
                .map(|(approval, approved)| Resumed {
                    approval,
                    also: approved.also.clone(),
                }),
            held: asked.held.clone(),
            now,
            store: self.store.clone(),
            seal: self.seal.clone(),
            key: self.key.clone(),
            issuer: self.public_url.clone(),
            ids: self.ids.clone(),
            policy: self.policy.clone(),
            outbox: self.outbox.clone(),
            end: Mutex::new(End::Open),
        }))
    }

    /// How the turn ends with the handler's answer; `None` when it lost a race.
    async fn finished(
        &self,
        asked: &Asked,
        decided: &Decided,
        mut response: Response<Body>,
    ) -> Result<Option<Response<Body>>, Refusal> {
        if response.extensions().get::<NotServed>().is_some() {
            return Err(Refusal::protocol(
                ProtocolError::NotFound,
                "this marketplace does not serve this operation",
            ));
        }
        match decided.end() {
            End::Committed => {
                response.extensions_mut().insert(Decision::Auto);
                Ok(Some(response))
            }
            End::Open => match response.extensions().get::<Refusal>().cloned() {
                // What the handler found before it changed anything.
                Some(refusal) if refusal.reason().is_some() => {
                    self.refused(decided, refusal, response).await
                }
                Some(_) => Ok(Some(response)),
                None if !asked.row.writes() => Ok(Some(response)),
                None => {
                    tracing::error!(
                        operation = asked.row.name,
                        "the handler neither committed its unit nor runs in the simple mode; wrap it with rctp.simple()"
                    );
                    Err(Refusal::unavailable(
                        "the handler of this operation is not bound to its decision",
                    ))
                }
            },
            End::Conflict => Ok(None),
            End::KeyTaken => Ok(Some(key_taken())),
            End::Failed => Err(Refusal::unavailable(
                "the store did not answer; nothing was executed",
            )),
        }
    }

    /// A refusal of the handler's own is a decision like any other: its entry and its stored response, in one unit.
    async fn refused(
        &self,
        decided: &Decided,
        refusal: Refusal,
        response: Response<Body>,
    ) -> Result<Option<Response<Body>>, Refusal> {
        let response = collected(response).await.map_err(|_| {
            Refusal::unavailable("the handler's answer broke off; nothing was executed")
        })?;
        let (mut unit, response) = decided.refused(refusal, response);
        unit.put.extend(decided.events(&unit.put)?);
        let claim = decided.response_claim(ClaimStep::Settle, &response);
        match self.commit(Unit { claim, ..unit }, response).await? {
            Turn::Answer(response) => Ok(Some(response)),
            Turn::Again | Turn::Carry(_) => Ok(None),
        }
    }

    fn entry(
        &self,
        asked: &Asked,
        facts: &Facts,
        subject: Subject,
        decision: Decision,
        now: Timestamp,
    ) -> Entry {
        let mut entry = Entry::new(subject, now, asked.row.op, decision, &asked.caller);
        entry.listing_id = facts.listing.as_ref().map(|l| l.listing_id.clone());
        entry.offer_id = facts.offer.as_ref().map(|o| o.offer_id.clone());
        entry.terms_commitment = facts
            .listing
            .as_ref()
            .and_then(|l| l.terms.as_ref())
            .map(|t| t.commitment.clone());
        if let Some(deal) = &facts.deal {
            entry.listing_id = Some(deal.listing_id.clone());
            entry.offer_id = Some(deal.offer_id.clone());
            entry.terms_commitment.clone_from(&deal.terms_commitment);
        }
        if let Some(approved) = &asked.approved {
            entry.approval_id = Some(approved.approval_id.clone());
        }
        entry
    }

    /// A refusal with its entry, its count and its stored response, in one unit.
    async fn forbid(
        &self,
        asked: &Asked,
        mut loaded: Loaded,
        refusal: Refusal,
        now: Timestamp,
    ) -> Result<Turn, Refusal> {
        let Some(decision) = refusal.decision() else {
            // A protocol error is no decision; Idempotency keeps the answer.
            return Ok(Turn::Answer(refuse(&refusal)));
        };
        let response = refusal.to_response();
        let mut unit = self.unit(asked, &loaded, &response);
        if let (Some(approval), Some(approved)) = (&loaded.approving, &asked.approved) {
            let outcome = refused_outcome(&refusal);
            let resumed = Resumed {
                approval: approval.clone(),
                also: approved.also.clone(),
            };
            unit.put.extend(resumed.puts(&loaded.versions, outcome));
            unit.put
                .extend(reopened(loaded.facts.offer.as_ref(), &loaded.versions));
            let before: Vec<&Offer> = loaded.facts.offer.iter().collect();
            let change = Change {
                now,
                actor: None,
                before: &before,
                seller_operator: None,
                recorded: None,
            };
            let events = self.outbox.events(&unit.put, &change)?;
            unit.put.extend(events);
        }
        // The subject's chain for those who belong to it, else the gateway's (R30).
        let place = if belongs(&asked.caller, asked.grant.as_ref(), &loaded.facts) {
            unit.put.extend(self.opened(asked, &mut loaded, now)?);
            subject(asked.row, &loaded.facts, &self.gateway)
        } else {
            None
        };
        let place = match &loaded.approving {
            // What comes of an ask stands in its chain.
            Some(approval) => approval.asked.subject.clone(),
            None => place.unwrap_or_else(|| self.gateway.clone()),
        };
        let mut entry = self.entry(asked, &loaded.facts, place, decision, now);
        if let Some(approval) = &loaded.approving {
            // A listing that was not made has its id from the ask.
            entry.listing_id.clone_from(&approval.asked.listing_id);
        }
        unit.entries.push(entry);
        if refusal.reason() == Some(Reason::BelowFloor) {
            unit.counts = counts(&loaded.windows, &self.policy, now);
        }
        self.commit(unit, response).await
    }

    /// A buyer's first offer opens its negotiation, refused or not (binding 5.2): the document that makes it, and its
    /// id among the facts.
    fn opened(
        &self,
        asked: &Asked,
        loaded: &mut Loaded,
        now: Timestamp,
    ) -> Result<Option<Put>, Refusal> {
        let facts = &mut loaded.facts;
        let (Op::CreateOffer, None, Some(listing)) =
            (asked.row.op, &facts.negotiation_id, &facts.listing)
        else {
            return Ok(None);
        };
        let id = self.ids.id("neg", now).map_err(no_randomness)?;
        let key = negotiation_key(&listing.listing_id, &asked.caller.agent());
        facts.negotiation_id = Some(id.clone());
        Ok(Some(Put {
            key: Key::new(Kind::Negotiation, key),
            expected: 0,
            parent: None,
            due: None,
            body: Bytes::from(id),
        }))
    }

    /// The conditions, and the request's key settled with `response`.
    fn unit(&self, asked: &Asked, loaded: &Loaded, response: &Response<Bytes>) -> Unit {
        Unit {
            read: loaded
                .versions
                .iter()
                .map(|(key, version)| (key.clone(), *version))
                .collect(),
            windows: loaded.windows.clone(),
            claim: asked
                .held
                .as_ref()
                .map(|held| held.claim(ClaimStep::Settle(stored(response)))),
            ..Unit::default()
        }
    }

    async fn commit(&self, unit: Unit, response: Response<Bytes>) -> Result<Turn, Refusal> {
        let committed = self.outbox.commit(&*self.store, unit, self.seal.clone());
        match committed.await {
            Ok(_) => {
                let mut response = response.map(Body::from);
                response.extensions_mut().insert(Recorded);
                response.extensions_mut().insert(Settled);
                Ok(Turn::Answer(response))
            }
            Err(CommitError::Conflict) => Ok(Turn::Again),
            Err(CommitError::KeyTaken) => Ok(Turn::Answer(key_taken())),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }

    /// Parks the action exactly as it was asked and answers 202 (binding 6, 7).
    async fn park(
        &self,
        asked: &Asked,
        loaded: Loaded,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> Result<Turn, Refusal> {
        let (Some(action), Some(grant), Some(bearer)) =
            (asked.row.verb, &asked.grant, &asked.bearer)
        else {
            return Err(Refusal::not_found());
        };
        let asks = self.asks(asked, &loaded, &grant.sub, now).await?;
        if let Some(frees) = asks.exhausted {
            let refusal = Refusal::forbid(
                Reason::OfferBudgetExhausted,
                "the seller was asked often enough; wait until they had time to answer",
            );
            let refusal = refusal.action(asked.row.verb);
            let refusal = refusal.retry_after(now.until(frees).max(1));
            return self.forbid(asked, loaded, refusal, now).await;
        }
        let id = |prefix| self.ids.id(prefix, now).map_err(no_randomness);
        let approval_id = id("apr")?;
        // A listing gets its id when it is asked for, so that its chain begins with the ask.
        let target = match asked.row.op {
            Op::CreateListing => Some(id("lst")?),
            _ => asked.arrived.id().map(str::to_owned),
        };
        let place = match (asked.row.op, &target) {
            (Op::CreateListing, Some(id)) => Subject::new(SubjectKind::Listing, &**id),
            _ => subject(asked.row, &loaded.facts, &self.gateway)
                .unwrap_or_else(|| self.gateway.clone()),
        };
        let nonce = self.ids.random().map_err(no_randomness)?;
        let sealed = self
            .sealer
            .seal(bearer.token.as_bytes(), approval_id.as_bytes());
        let token = sealed.map_err(|error| {
            tracing::error!(%error, "nothing was executed");
            Refusal::unavailable("the action could not be parked; nothing was executed")
        })?;
        let decision = Decision::Ask {
            approval_id: approval_id.clone(),
            expires_in: now.until(expires_at),
            on_timeout: OnTimeout::Deny,
        };
        let mut entry = self.entry(asked, &loaded.facts, place, decision.clone(), now);
        entry.approval_id = Some(approval_id.clone());
        if asked.row.op == Op::CreateListing {
            entry.listing_id = target.clone();
        }
        let approval = Approval {
            details: details(
                &approval_id,
                &crate::wire::base64url(&nonce),
                asked,
                &loaded.facts,
                target.as_deref(),
                expires_at,
            ),
            display: display(asked, &loaded.facts),
            approval_id,
            status: ApprovalStatus::Pending,
            action,
            operation: asked.row.op,
            target,
            body: Parked::from((*asked.body).clone()),
            token: Some(token),
            draft: None,
            seller: grant.sub.clone(),
            asked_by: Asker::from(&asked.caller),
            asked: Box::new(entry.clone()),
            created_at: now,
            expires_at,
            outcome: None,
        };
        let hosted = format!("{}/approve/{}", self.public_url, approval.approval_id);
        let mut response = json_response(
            StatusCode::ACCEPTED,
            &json!({"approval_request": approval.request(&hosted)}),
        );
        response.headers_mut().insert(HEADER, decision.to_header());
        let mut unit = self.unit(asked, &loaded, &response);
        unit.entries.push(entry);
        unit.windows.extend(asks.windows);
        unit.counts.extend(asks.counts);
        let put = |kind, id: &str, parent: &str, body: serde_json::Result<Vec<u8>>| {
            let key = Key::new(kind, id);
            Put {
                expected: loaded.versions.get(&key).copied().unwrap_or(0),
                key,
                parent: Some(parent.to_owned()),
                due: Some(expires_at),
                body: Bytes::from(body.expect("our documents serialise")),
            }
        };
        unit.put.push(put(
            Kind::Approval,
            &approval.approval_id,
            &approval.seller,
            serde_json::to_vec(&approval),
        ));
        if let (Op::AcceptOffer | Op::CounterOffer, Some(offer)) =
            (asked.row.op, &loaded.facts.offer)
        {
            let waiting = Offer {
                state: OfferState::AwaitingApproval,
                waits_until: Some(expires_at),
                ..offer.clone()
            };
            unit.put.push(put(
                Kind::Offer,
                &offer.offer_id,
                &offer.listing_id,
                serde_json::to_vec(&waiting),
            ));
        }
        let turn = self.commit(unit, response).await?;
        Ok(match turn {
            Turn::Answer(mut response) if response.extensions().get::<Settled>().is_some() => {
                response.extensions_mut().insert(decision);
                Turn::Answer(response)
            }
            turn => turn,
        })
    }
}

/// How often the seller was asked already (R29).
struct Asks {
    windows: Vec<WindowCheck>,
    counts: Vec<Count>,
    /// When they may be asked again.
    exhausted: Option<Timestamp>,
}

impl Config {
    /// Asks are bounded per listing and per agent, so that a seller is not worn down (R29).
    async fn asks(
        &self,
        asked: &Asked,
        loaded: &Loaded,
        seller: &str,
        now: Timestamp,
    ) -> Result<Asks, Refusal> {
        let limits = &self.policy.limits;
        let seconds = i64::from(limits.approval_seconds);
        let listing = loaded.facts.listing.as_ref();
        let agent = asked.caller.agent();
        let mut bounds = vec![(format!("asks|{seller}|{agent}"), limits.asks_per_agent)];
        bounds.extend(listing.map(|l| {
            let name = format!("asks-listing|{}", l.listing_id);
            (name, limits.asks_per_listing)
        }));
        let since = now.plus(-seconds);
        let names = bounds.iter().map(|(name, _)| name.clone()).collect();
        let counted = self.store.windows(names, since).await?;
        let exhausted = bounds
            .iter()
            .zip(&counted)
            .filter_map(|((_, limit), count)| {
                crate::protocol::decision::exhausted(count, *limit, seconds, now)
            });
        Ok(Asks {
            exhausted: exhausted.max(),
            windows: bounds
                .iter()
                .zip(&counted)
                .map(|((window, _), count)| WindowCheck {
                    window: window.clone(),
                    since,
                    expected: count.len(),
                })
                .collect(),
            counts: bounds
                .into_iter()
                .map(|(window, _)| Count {
                    window,
                    at: now,
                    expires: now.plus(seconds),
                })
                .collect(),
        })
    }
}

/// Counts a below-floor answer in the windows that were looked at (R18).
fn counts(windows: &[WindowCheck], policy: &Policy, now: Timestamp) -> Vec<Count> {
    let count = |check: &WindowCheck| Count {
        window: check.window.clone(),
        at: now,
        expires: now.plus(policy.budget.window_seconds()),
    };
    windows.iter().map(count).collect()
}

/// The response with its body, whole.
async fn collected(response: Response<Body>) -> Result<Response<Bytes>, CollectError> {
    let (parts, body) = response.into_parts();
    Ok(Response::from_parts(parts, body.collect(MAX_STORED).await?))
}

/// What the seller approves (R24).
fn details(
    approval_id: &str,
    nonce: &str,
    asked: &Asked,
    facts: &Facts,
    target: Option<&str>,
    expires_at: Timestamp,
) -> Value {
    let row = asked.row;
    let (kind, id) = match (&facts.offer, &facts.deal) {
        (Some(offer), _) => ("offer", Some(&*offer.offer_id)),
        (None, Some(deal)) => ("deal", Some(&*deal.deal_id)),
        (None, None) => ("listing", target),
    };
    let mut details = json!({
        "type": approval::DETAILS_TYPE,
        "approval_id": approval_id,
        "nonce": nonce,
        "action": row.verb,
        "subject": {"type": kind, "id": id},
        "request_hash": approval::request_hash(&asked.body),
        "expires_at": expires_at,
    });
    match &facts.requested {
        Requested::Offer(new) => details["deal_terms"] = json!(new.deal_terms),
        Requested::Price(price) => details["price"] = json!(price),
        Requested::Listing(new) => details["term_set"] = json!(new.term_set),
        _ => {}
    }
    if row.op == Op::AcceptOffer
        && let Some(offer) = &facts.offer
    {
        details["deal_terms"] = json!(offer.deal_terms);
    }
    if row.op == Op::SetListingTerms
        && let Some(listing) = &facts.listing
    {
        details["term_set"] = json!(listing.term_set);
    }
    details
}

/// What the page shows beside the details (binding 7): what it is about, and who asks. Never a private term.
fn display(asked: &Asked, facts: &Facts) -> Value {
    let mut display = json!({
        "operator": asked.caller.operator,
        "agent": match asked.caller.agent() {
            Agent::Key(key) => key.as_str().to_owned(),
            Agent::Client(id) => id,
        },
    });
    let mut show = |name: &str, value: Value| {
        if !value.is_null() {
            display[name] = value;
        }
    };
    if let Some(duties) = &asked.caller.duties {
        show("legal_entity", json!(duties.legal_entity));
    }
    if let Some(listing) = &facts.listing {
        show("title", json!(listing.title));
        show("list_price", json!(listing.list_price));
    }
    match &facts.requested {
        Requested::Listing(new) => {
            show("title", json!(new.title));
            show("description", json!(new.description));
            show("category", json!(new.category));
            show("list_price", json!(new.list_price));
        }
        Requested::Offer(new) => show("deal_terms", json!(new.deal_terms)),
        Requested::Price(price) => show("price", json!(price)),
        _ => {}
    }
    if asked.row.op == Op::AcceptOffer
        && let Some(offer) = &facts.offer
    {
        show("deal_terms", json!(offer.deal_terms));
    }
    if let Some(deal) = &facts.deal {
        show("deal_terms", json!(deal.deal_terms));
    }
    if asked.row.op == Op::AnswerBuyer {
        show("answer", asked.body["text"].clone());
        show("question", json!(facts.question.as_ref().map(|q| &q.text)));
    }
    display
}

/// A JSON response that no cache keeps.
pub(crate) fn json_response(status: StatusCode, body: &impl Serialize) -> Response<Bytes> {
    let bytes = serde_json::to_vec(body).expect("views serialise");
    let mut response = Response::new(Bytes::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
