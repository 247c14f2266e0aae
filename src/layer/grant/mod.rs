//! May it still act for them? The agent grant, introspected on every call (binding 3.3).
//!
//! What each row needs of the bearer token:
//!
//! | row | no token | a seller's grant | a client's own token |
//! |---|---|---|---|
//! | seller (S), and approvals | 401 `grant_invalid` | the checks of 3.3 | 401 `grant_invalid` |
//! | party (P), and events | passes as the buyer; accept and counter only for the offer's buyer, else 401 `grant_invalid` | the checks of 3.3 | passes as the buyer |
//! | buyer (B) | passes, if signed | 403 `action_forbidden` (R3) | passes |
//! | any operator | passes, if signed | the checks of 3.3 | passes |
//!
//! A grant that passed is in the extensions as [`Grant`]. When the authorization server is out of reach, slow or talks
//! nonsense, the answer is 503 and nothing is executed.

pub mod introspection;

use std::sync::Arc;

use http::{Extensions, Request, Response};
use tracing::Span;

use self::introspection::Introspect;
use super::{
    approve::Approved,
    arrive::{Arrived, refuse},
    authenticate::{Bearer, operators::InForce},
    body::Body,
    context::Clock,
    step::{Next, Step},
};
use crate::{
    protocol::{
        caller::Caller,
        grant::{self, Grant, Introspection, Need},
        offer::Offer,
        operation::{Op, Operation, Side, TierRule, Verb},
        refusal::{Reason, Refusal},
        time::Timestamp,
    },
    store::{Key, Kind, Store},
};

/// The step.
#[derive(Clone)]
pub struct CheckGrant(Arc<Config>);

pub(crate) struct Config {
    pub(crate) introspect: Arc<dyn Introspect>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Tells whose client a grant was given to.
    pub(crate) operators: InForce,
    /// Tells the buyer of an offer from a stranger on accept and counter.
    pub(crate) store: Option<Arc<dyn Store>>,
    /// What is required where the layer is used without the table.
    pub(crate) scope: Option<String>,
}

impl CheckGrant {
    pub(crate) fn new(config: Config) -> Self {
        Self(Arc::new(config))
    }
}

#[cfg(feature = "mcp")]
impl CheckGrant {
    /// The seller's grant that the caller carries; `None` for a buyer's agent. It is what a row of both sides finds.
    pub(crate) async fn carried(&self, extensions: &Extensions) -> Result<Option<Grant>, Refusal> {
        let row = Op::GetDealEvents.row();
        let grant = self.0.check(extensions, Some(row)).await?;
        self.0.given_to(extensions, grant)
    }

    /// Whether the token that proves the caller is current, where no row asks for more: what the authentication looks at
    /// for a request without a row.
    pub(crate) fn live(&self, extensions: &Extensions) -> Result<(), Refusal> {
        use crate::protocol::caller::Mechanism;

        let caller = extensions.get::<Caller>();
        let by_token = caller.is_some_and(|caller| caller.mechanism == Mechanism::Oauth);
        match extensions.get::<Bearer>() {
            Some(Bearer {
                introspection: Some(introspection),
                ..
            }) if by_token => grant::live(introspection, None, self.0.clock.now()),
            _ => Ok(()),
        }
    }
}

impl Step for CheckGrant {
    async fn run<N: Next>(
        self,
        mut request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        let row = request.extensions().get::<Arrived>().and_then(Arrived::row);
        let checked = self.0.check(request.extensions(), row).await;
        match checked.and_then(|grant| self.0.given_to(request.extensions(), grant)) {
            Ok(grant) => {
                if let Some(grant) = grant {
                    request.extensions_mut().insert(grant);
                }
                next.run(request).await
            }
            Err(refusal) => Ok(refuse(&refusal.action(row.and_then(|r| r.verb)))),
        }
    }

    fn span(&self, _: &Request<Body>) -> Span {
        tracing::debug_span!("rctp.check_grant")
    }
}

impl Config {
    async fn check(
        &self,
        extensions: &Extensions,
        row: Option<&'static Operation>,
    ) -> Result<Option<Grant>, Refusal> {
        let caller = extensions.get::<Caller>().ok_or_else(|| {
            tracing::error!(
                "the grant layer found no Caller; put the authentication layer outside it"
            );
            Refusal::unavailable("this service is put together wrongly; nothing was executed")
        })?;
        let now = self.clock.now();
        if let (Some(approved), Some(scope)) = (
            extensions.get::<Approved>(),
            row.and_then(|row| row.verb).and_then(Verb::scope),
        ) {
            let bearer = extensions.get::<Bearer>().ok_or_else(no_grant)?;
            let introspection = self.introspect(&bearer.token).await?;
            let key = caller.key.as_ref();
            return grant::recheck(&introspection, key, &approved.seller, scope, now).map(Some);
        }
        let side = row.map_or(Side::Seller, |row| row.side);
        let need = self.need(row);
        // R23.
        if row.is_some_and(|row| is_always_signed(row.op)) && caller.key.is_none() {
            return Err(Refusal::forbid(
                Reason::SignatureInvalid,
                "this is always a signed request (binding 5.3, 8.1)",
            ));
        }
        let Some(bearer) = extensions.get::<Bearer>() else {
            return match side {
                Side::Seller | Side::Asker => Err(no_grant()),
                Side::Party if matches!(need, Need::Scope(_)) => {
                    self.the_buyer_or_no_grant(extensions.get::<Arrived>(), caller)
                        .await
                }
                _ => Ok(None),
            };
        };
        let introspection = match &bearer.introspection {
            Some(introspection) => introspection.clone(),
            None => self.introspect(&bearer.token).await?,
        };
        let signed_by = caller.key.as_ref();
        // An inactive token tells no details, but only grants have a grant_status.
        let is_grant = introspection.is_grant() || introspection.grant_status.is_some();
        match side {
            Side::Seller | Side::Asker => {
                grant::check(&introspection, signed_by, need, now).map(Some)
            }
            Side::Buyer => {
                own_token(&introspection, caller, now)?;
                if is_grant {
                    return Err(Refusal::forbid(
                        Reason::ActionForbidden,
                        "a seller's grant does not let an agent act as a buyer",
                    ));
                }
                Ok(None)
            }
            Side::Party | Side::PartyOrRole | Side::Operator | Side::Browser => {
                let sellers = is_grant || !introspection.known();
                if sellers && side != Side::Operator {
                    return grant::check(&introspection, signed_by, need, now).map(Some);
                }
                if is_grant {
                    return grant::check(&introspection, signed_by, need, now).map(Some);
                }
                own_token(&introspection, caller, now)?;
                if matches!(need, Need::Scope(_)) {
                    return self
                        .the_buyer_or_no_grant(extensions.get::<Arrived>(), caller)
                        .await;
                }
                Ok(None)
            }
        }
    }

    /// A grant names the client that it was given to; where that is registered to an operator, another's agent may not
    /// use it, whoever's key it is bound to: the seller consented to that operator (binding 2, identity binding).
    fn given_to(
        &self,
        extensions: &Extensions,
        grant: Option<Grant>,
    ) -> Result<Option<Grant>, Refusal> {
        let client = grant.as_ref().and_then(|grant| grant.client_id.as_deref());
        let operators = self.operators.get();
        let operator = client.and_then(|id| operators.by_client(id));
        let caller = extensions.get::<Caller>();
        match (operator, caller) {
            (Some(operator), Some(caller)) if operator.profile() != caller.operator => {
                Err(Refusal::forbid(
                    Reason::GrantInvalid,
                    "the grant was given to a client of another operator than the one that this agent acts for",
                ))
            }
            _ => Ok(grant),
        }
    }

    fn need(&self, row: Option<&'static Operation>) -> Need<'_> {
        match (row, &self.scope) {
            (Some(row), _) if row.tier == TierRule::Forbid => Need::Live,
            (Some(row), _) => match row.verb.and_then(Verb::scope) {
                Some(scope) => Need::Scope(scope),
                None => Need::AnyRctpScope,
            },
            (None, Some(scope)) => Need::Scope(scope),
            (None, None) => Need::AnyRctpScope,
        }
    }

    async fn introspect(&self, token: &str) -> Result<Introspection, Refusal> {
        self.introspect.introspect(token).await.map_err(|error| {
            tracing::error!(%error, "introspection failed; nothing was executed");
            Refusal::unavailable("the authorization server did not answer; nothing was executed")
        })
    }

    /// R3: the offer's buyer gets its own answer further in; anyone else what 3.3 says.
    async fn the_buyer_or_no_grant(
        &self,
        arrived: Option<&Arrived>,
        caller: &Caller,
    ) -> Result<Option<Grant>, Refusal> {
        let (Some(store), Some(id)) = (&self.store, arrived.and_then(Arrived::id)) else {
            return Err(no_grant());
        };
        let docs = store
            .load(vec![Key::new(Kind::Offer, id)])
            .await
            .map_err(|error| {
                tracing::error!(%error, "nothing was executed");
                Refusal::unavailable("the store did not answer; nothing was executed")
            })?;
        let offer = docs
            .into_iter()
            .flatten()
            .next()
            .and_then(|doc| serde_json::from_slice::<Offer>(&doc.body).ok());
        match offer {
            Some(offer) if offer.buyer == caller.agent() => Ok(None),
            _ => Err(no_grant()),
        }
    }
}

/// Whether only signed requests may do it (R23).
pub(crate) fn is_always_signed(op: Op) -> bool {
    matches!(op, Op::CreateDeal | Op::PostDealEvent)
}

fn no_grant() -> Refusal {
    Refusal::forbid(
        Reason::GrantInvalid,
        "this is the seller's to do; send the access token of the seller's grant as Authorization: Bearer",
    )
}

/// A token on a buyer's row (2.2, R3): known, fitting the signature or its absence, and current.
fn own_token(
    introspection: &Introspection,
    caller: &Caller,
    now: Timestamp,
) -> Result<(), Refusal> {
    let unknown = |message| Err(Refusal::forbid(Reason::OperatorUnknown, message).of_token());
    if !introspection.known() {
        return unknown("the authorization server does not know this access token");
    }
    if !introspection.binding_holds(caller.key.as_ref()) {
        return Err(Refusal::forbid(
            Reason::GrantInvalid,
            "a key-bound token goes with a signature of its key, an unbound one with none",
        )
        .of_token());
    }
    let grant = introspection.is_grant() || introspection.grant_status.is_some();
    let current = introspection.active && introspection.exp.is_none_or(|exp| now.secs() < exp);
    if !grant && !current {
        return unknown("the access token has expired; obtain a new one");
    }
    Ok(())
}
