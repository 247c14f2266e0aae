//! What the seller's browser answers: a parked action is declined, or goes on to the layers within, exactly as it was
//! asked (binding 7, R25).
//!
//! ```text
//! POST /approvals/{id}/response ─ the seller's session, the passkey over the approval's challenge
//!    decline → unit{approval, offer, entry}
//!    approve → the parked request, through Grant and Decision to its handler → unit{approval, its effect, entry}
//! ```
//!
//! The approval is a document like any other: whoever ends it first, by its version, has ended it, so that any number of
//! clicks carries the action out once. A repeat of the same answer gets the same outcome.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::Either;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header, request::Parts};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::Span;

use super::{
    arrive::{Arrived, Route, refuse},
    authenticate::{Bearer, operators::InForce},
    body::Body,
    context::Clock,
    decision::{json_response, refused_outcome},
    outbox::{Change, Outbox},
    step::{Next, Step},
};
use crate::{
    protocol::{
        approval::{Approval, ApprovalStatus},
        caller::Caller,
        offer::{By, Offer, OfferState},
        operation::Op,
        record::{Entry, Seal},
        refusal::{Code, ProtocolError, Reason, Refusal},
        schema,
        time::Timestamp,
    },
    store::{BoxFuture, CommitError, Doc, Key, Kind, Put, Store, StoreError, Unit},
    wire::sealed::Sealer,
};

/// How often a lost race is tried again.
const ATTEMPTS: usize = 16;

/// Knows the seller's browser and the seller's passkey. `service::approvals` has the one that comes with the hosted
/// pages; a marketplace may give its own.
pub trait Approver: Send + Sync + 'static {
    /// The seller (the `sub` of their grants) who is signed in at the browser that sent these headers.
    ///
    /// # Errors
    /// When that cannot be known; the answer is 503.
    fn seller<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>>;

    /// Verifies that a passkey of the seller signed `challenge` (base64url), user present and verified. Returns what
    /// must be written together with the action, such as the passkey's counter.
    ///
    /// # Errors
    /// When it did not, or that cannot be known.
    fn verify<'a>(
        &'a self,
        seller: &'a str,
        challenge: &'a str,
        credential: &'a Value,
    ) -> BoxFuture<'a, Result<Vec<Put>, NotVerified>>;
}

/// The seller's approval was not verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotVerified {
    /// The assertion does not hold; says which check failed.
    #[error("the passkey's answer does not hold: {0}")]
    Refused(&'static str),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Marks a request as the parked action of an approval that its seller has just given.
#[derive(Clone)]
pub(crate) struct Approved {
    pub(crate) approval_id: String,
    /// What the passkey signed; later terms have another.
    pub(crate) challenge: String,
    /// What [`Approver::verify`] wants written.
    pub(crate) also: Arc<Vec<Put>>,
    pub(crate) seller: String,
    /// The record entry of the ask.
    pub(crate) asked: Arc<Entry>,
}

/// The approval was answered, or its terms changed, while this answer was on its way.
pub(crate) fn overtaken() -> Refusal {
    Refusal::protocol(
        ProtocolError::IdempotencyConflict,
        "this approval was answered, or its terms were changed, meanwhile; look at it again",
    )
}

/// The step.
#[derive(Clone)]
pub struct Approve(Arc<Config>);

pub(crate) struct Config {
    pub(crate) approver: Option<Arc<dyn Approver>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) seal: Arc<dyn Seal>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sealer: Sealer,
    pub(crate) operators: InForce,
    /// The origin of the public URL, whose pages may answer.
    pub(crate) origin: String,
    /// The path of the public URL, without its trailing slash.
    pub(crate) prefix: String,
    /// Where operators are told from.
    pub(crate) outbox: Outbox,
}

impl Approve {
    pub(crate) fn new(config: Config) -> Self {
        Self(Arc::new(config))
    }
}

/// What the browser sends (schema `approval-response`).
#[derive(Deserialize)]
struct Answer {
    decision: Choice,
    #[serde(default)]
    credential: Option<Value>,
    #[serde(default)]
    terms_commitment: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Choice {
    Approve,
    Decline,
}

enum Turn {
    Answer(Response<Body>),
    Resume(Box<(Request<Body>, Approved)>),
}

impl Step for Approve {
    fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
        match self.answers(&request) {
            Some((approver, arrived)) => {
                Either::Left(Box::pin(self.answer(approver, arrived, request, next)))
            }
            None => Either::Right(next.run(request)),
        }
    }

    fn span(&self, _: &Request<Body>) -> Span {
        tracing::debug_span!("rctp.approve")
    }
}

impl Approve {
    async fn answer<N: Next>(
        self,
        approver: Arc<dyn Approver>,
        arrived: Arrived,
        request: Request<Body>,
        next: N,
    ) -> Result<Response<Body>, N::Error> {
        let (parts, _) = request.into_parts();
        match self.0.respond(&*approver, &parts, &arrived).await {
            Ok(Turn::Answer(response)) => Ok(response),
            Ok(Turn::Resume(parked)) => {
                let (parked, approved) = *parked;
                let response = match self.0.onboarded(&parked) {
                    true => Box::pin(next.run(parked)).await?,
                    false => refuse(&Refusal::forbid(
                        Reason::OperatorUnknown,
                        "the agent's operator is no longer onboarded here",
                    )),
                };
                Ok(self.0.outcome(&approved, response).await)
            }
            Err(refused) => Ok(refused.into_response()),
        }
    }

    fn answers(&self, request: &Request<Body>) -> Option<(Arc<dyn Approver>, Arrived)> {
        let arrived = request.extensions().get::<Arrived>()?;
        let approver = self.0.approver.as_ref()?;
        (arrived.row()?.op == Op::RespondApproval).then(|| (approver.clone(), arrived.clone()))
    }
}

/// How a page is refused. Not a decision, so it has no `RCTP-Decision`.
#[derive(Debug)]
pub(crate) struct PageRefused {
    status: StatusCode,
    body: Value,
}

impl PageRefused {
    pub(crate) fn new(status: StatusCode, reason: Reason, message: &str) -> Self {
        Self {
            status,
            body: json!({"error": reason.as_str(), "message": message}),
        }
    }

    pub(crate) fn signed_out() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            Reason::ActionForbidden,
            "this is for the seller: sign in with your passkey first",
        )
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = json_response(self.status, &self.body);
        // Read by a script; never to be shown as a page.
        response.headers_mut().insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        response.map(Body::from)
    }
}

impl From<Refusal> for PageRefused {
    fn from(refusal: Refusal) -> Self {
        Self {
            status: refusal.status(),
            body: refusal.body(),
        }
    }
}

impl From<StoreError> for PageRefused {
    fn from(error: StoreError) -> Self {
        Refusal::from(error).into()
    }
}

impl From<NotVerified> for PageRefused {
    fn from(error: NotVerified) -> Self {
        match error {
            NotVerified::Refused(_) => Self::new(
                StatusCode::UNAUTHORIZED,
                Reason::SignatureInvalid,
                &error.to_string(),
            ),
            NotVerified::Store(error) => error.into(),
        }
    }
}

/// Whether a request says by its headers that an agent sends it: `UCP-Agent`, or a signature.
#[must_use]
pub fn from_agent(headers: &HeaderMap) -> bool {
    const AGENTS: [&str; 3] = ["ucp-agent", "signature", "signature-input"];
    AGENTS.iter().any(|name| headers.contains_key(*name))
}

/// Only the seller's browser opens pages, not an agent, which may know their address (R27).
pub(crate) fn from_browser(headers: &HeaderMap) -> Result<(), PageRefused> {
    if from_agent(headers) {
        return Err(PageRefused::new(
            StatusCode::FORBIDDEN,
            Reason::ActionForbidden,
            "this is for the seller's browser; agents are refused here",
        ));
    }
    Ok(())
}

/// Whether a request comes from a page of this origin: it has one `Origin`, and that is ours.
///
/// Browsers send `Origin` with every POST; a request without it is no browser's, or one whose referrer policy hides
/// where it comes from.
#[must_use]
pub fn same_origin(headers: &HeaderMap, origin: &str) -> bool {
    let mut sent = headers.get_all(header::ORIGIN).iter();
    match (sent.next(), sent.next()) {
        (Some(sent), None) => sent.as_bytes() == origin.as_bytes(),
        _ => false,
    }
}

/// Only our own pages write.
pub(crate) fn from_our_page(headers: &HeaderMap, origin: &str) -> Result<(), PageRefused> {
    from_browser(headers)?;
    if same_origin(headers, origin) {
        return Ok(());
    }
    Err(PageRefused::new(
        StatusCode::FORBIDDEN,
        Reason::ActionForbidden,
        "this is for the marketplace's own pages: the Origin header must be theirs",
    ))
}

impl Config {
    async fn respond(
        &self,
        approver: &dyn Approver,
        parts: &Parts,
        arrived: &Arrived,
    ) -> Result<Turn, PageRefused> {
        let headers = &parts.headers;
        from_our_page(headers, &self.origin)?;
        let id = arrived.id().ok_or_else(Refusal::not_found)?;
        let seller = approver.seller(headers).await?;
        let seller = seller.ok_or_else(PageRefused::signed_out)?;
        let answer = read_answer(headers, arrived.body())?;
        // A router outside may have stripped the prefix; the parked action goes where this request would have gone.
        let routed = parts
            .uri
            .path()
            .strip_suffix(&*format!("/approvals/{id}/response"));
        let inside = routed.unwrap_or(&self.prefix);
        for _ in 0..ATTEMPTS {
            let now = self.clock.now();
            let (approval, doc) = load(&*self.store, id, &seller).await?;
            match (approval.status_at(now), answer.decision) {
                (ApprovalStatus::Pending, Choice::Approve) => {
                    match self.approve(approver, &approval, &answer, &seller).await {
                        Ok(approved) => {
                            let parked = self.parked(&approval, approved.clone(), inside)?;
                            return Ok(Turn::Resume(Box::new((parked, approved))));
                        }
                        Err(refused) => {
                            // A click that was faster has ended it, and used the passkey's counter.
                            let (approval, _) = load(&*self.store, id, &seller).await?;
                            if approval.status_at(self.clock.now()) == ApprovalStatus::Pending {
                                return Err(refused);
                            }
                        }
                    }
                }
                (ApprovalStatus::Pending, Choice::Decline) => {
                    if let Some(view) = self.decline(approval, doc, now).await? {
                        return Ok(Turn::Answer(answered(&view)));
                    }
                }
                (_, choice) => {
                    let view = told_again(&approval, choice, now)?;
                    return Ok(Turn::Answer(answered(&view)));
                }
            }
        }
        Err(Refusal::unavailable("too many requests change this at once; try again").into())
    }

    /// Verifies the passkey.
    async fn approve(
        &self,
        approver: &dyn Approver,
        approval: &Approval,
        answer: &Answer,
        seller: &str,
    ) -> Result<Approved, PageRefused> {
        let Some(challenge) = approval.challenge() else {
            return Err(Refusal::invalid(
                "fill in the terms first: POST /approve/{id}/terms, then approve its commitment",
            )
            .into());
        };
        let commitment = approval.draft.as_ref().map(|draft| &draft.commitment);
        if answer.terms_commitment.as_ref() != commitment {
            return Err(PageRefused::new(
                StatusCode::CONFLICT,
                Reason::TermsInvalid,
                "terms_commitment must be that of the terms filled in last; look at them again",
            ));
        }
        let credential = answer.credential.as_ref().ok_or_else(|| {
            Refusal::invalid("an approval carries the passkey's answer as credential")
        })?;
        let also = approver.verify(seller, &challenge, credential).await?;
        Ok(Approved {
            approval_id: approval.approval_id.clone(),
            challenge,
            also: Arc::new(also),
            seller: seller.to_owned(),
            asked: Arc::new((*approval.asked).clone()),
        })
    }

    /// The action exactly as it was asked, with nothing of the browser's request. `inside` is what stands before the
    /// table's paths within the layers.
    fn parked(
        &self,
        approval: &Approval,
        approved: Approved,
        inside: &str,
    ) -> Result<Request<Body>, Refusal> {
        let row = approval.operation.row();
        let id = row
            .path
            .contains("{id}")
            .then(|| approval.target.clone())
            .flatten();
        let path = row.path.replace("{id}", id.as_deref().unwrap_or_default());
        let unreadable = || Refusal::unavailable("the parked action is not readable");
        let uri = |prefix| Uri::try_from(format!("{prefix}{path}")).map_err(|_| unreadable());
        let (sent, routed) = (uri(&*self.prefix)?, uri(inside)?);
        let body = match approval.body.value() {
            Value::Null => Bytes::new(),
            body => serde_json::to_vec(body).map_err(|_| unreadable())?.into(),
        };
        let mut request = Request::new(Body::from(body.clone()));
        *request.method_mut() = row.method.clone();
        *request.uri_mut() = routed;
        request.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        let token = approval.token.as_deref();
        let token = token.and_then(|t| self.sealer.open(t, approval.approval_id.as_bytes()));
        let token = token.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
        let extensions = request.extensions_mut();
        extensions.insert(Arrived::within(Route::Row(row.op, id), sent, body));
        extensions.insert(approval.asked_by.caller());
        extensions.insert(approved);
        // Without one, the grant cannot be checked again, and is refused as missing.
        if let Some(token) = token {
            extensions.insert(Bearer {
                token: Arc::new(zeroize::Zeroizing::new(token)),
                introspection: None,
            });
        }
        Ok(request)
    }

    /// Ends the approval as declined, and its offer with it (R26). `None` when it lost a race.
    async fn decline(
        &self,
        approval: Approval,
        doc: Doc,
        now: Timestamp,
    ) -> Result<Option<Value>, PageRefused> {
        let entry = approval.declined_entry(now);
        let offer = self.offer_of(&approval).await?;
        let declined = approval.ended(ApprovalStatus::Declined, None);
        let mut put = vec![over(&doc, &declined)];
        if let Some((offer, doc)) = &offer {
            let declined = Offer {
                state: OfferState::Declined,
                ..offer.clone()
            };
            put.push(over(doc, &declined));
        }
        put.extend(self.events(&put, offer.as_ref().map(|(offer, _)| offer), now)?);
        let unit = Unit {
            put,
            entries: vec![entry],
            ..Unit::default()
        };
        match self
            .outbox
            .commit(&*self.store, unit, self.seal.clone())
            .await
        {
            Ok(_) => Ok(Some(declined.view(now))),
            Err(CommitError::Conflict | CommitError::KeyTaken) => Ok(None),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }

    /// Whether the operator that asked is still served.
    fn onboarded(&self, parked: &Request<Body>) -> bool {
        let caller = parked.extensions().get::<Caller>();
        let operators = self.operators.get();
        caller.is_some_and(|caller| operators.by_profile(&caller.operator).is_some())
    }

    /// What operators are told of these writes.
    fn events(
        &self,
        puts: &[Put],
        offer: Option<&Offer>,
        now: Timestamp,
    ) -> Result<Vec<Put>, StoreError> {
        let change = Change {
            now,
            actor: Some(By::Seller),
            before: &offer.into_iter().collect::<Vec<_>>(),
            seller_operator: None,
            recorded: None,
        };
        self.outbox.events(puts, &change)
    }

    /// The offer that waits for this approval.
    async fn offer_of(&self, approval: &Approval) -> Result<Option<(Offer, Doc)>, PageRefused> {
        let (Op::AcceptOffer | Op::CounterOffer, Some(id)) = (approval.operation, &approval.target)
        else {
            return Ok(None);
        };
        let docs = self.store.load(vec![Key::new(Kind::Offer, &**id)]).await?;
        let Some(doc) = docs.into_iter().flatten().next() else {
            return Ok(None);
        };
        let offer: Offer = read(&doc)?;
        let waits = offer.state == OfferState::AwaitingApproval;
        Ok(waits.then_some((offer, doc)))
    }

    /// What the browser gets once the parked action has run. The decision ends the approval in its own unit; a refusal
    /// before it, such as the grant's, ends it here.
    async fn outcome(&self, approved: &Approved, response: Response<Body>) -> Response<Body> {
        let refusal = response.extensions().get::<Refusal>().cloned();
        match self.ended(approved, refusal.as_ref()).await {
            Ok(Some(view)) => answered(&view),
            Ok(None) => match refusal {
                // Not the agent's words: a browser has no key to repeat it with.
                Some(refusal) if refusal.status() == StatusCode::SERVICE_UNAVAILABLE => {
                    PageRefused::from(Refusal::unavailable(
                        "this could not be carried out just now; nothing was executed, approve it again",
                    ))
                    .into_response()
                }
                Some(refusal) => PageRefused::from(refusal).into_response(),
                None => response,
            },
            Err(refused) => refused.into_response(),
        }
    }

    async fn ended(
        &self,
        approved: &Approved,
        refusal: Option<&Refusal>,
    ) -> Result<Option<Value>, PageRefused> {
        for _ in 0..ATTEMPTS {
            let now = self.clock.now();
            let (approval, doc) =
                load(&*self.store, &approved.approval_id, &approved.seller).await?;
            if approval.status_at(now) != ApprovalStatus::Pending {
                return told_again(&approval, Choice::Approve, now).map(Some);
            }
            let Some(refusal) = refusal else {
                return Ok(None);
            };
            if let Code::Protocol(ProtocolError::Unavailable | ProtocolError::IdempotencyConflict) =
                refusal.code()
            {
                // Nothing was executed; the seller can try again.
                return Ok(None);
            }
            let outcome = refused_outcome(refusal);
            let ended = approval.ended(ApprovalStatus::Approved, Some(outcome));
            let mut put = vec![over(&doc, &ended)];
            put.extend(approved.also.iter().cloned());
            let offer = self.offer_of(&ended).await?;
            if let Some((offer, doc)) = &offer {
                put.push(Put {
                    due: Some(offer.expires_at),
                    ..over(doc, &offer.clone().reopened())
                });
            }
            put.extend(self.events(&put, offer.as_ref().map(|(offer, _)| offer), now)?);
            let entries = refusal.decision().map(|decision| Entry {
                recorded_at: now,
                decision: Some(decision),
                ..(*approved.asked).clone()
            });
            let unit = Unit {
                put,
                entries: entries.into_iter().collect(),
                ..Unit::default()
            };
            match self
                .outbox
                .commit(&*self.store, unit, self.seal.clone())
                .await
            {
                Ok(_) => return Ok(Some(ended.view(now))),
                Err(CommitError::Conflict | CommitError::KeyTaken) => {}
                Err(CommitError::Store(error)) => return Err(error.into()),
            }
        }
        Err(Refusal::unavailable("too many requests change this at once; try again").into())
    }
}

/// What an approval that has ended answers: its outcome to the same choice, whoever was faster; to another 409.
fn told_again(approval: &Approval, choice: Choice, now: Timestamp) -> Result<Value, PageRefused> {
    let conflict = |reason, message| PageRefused::new(StatusCode::CONFLICT, reason, message);
    match (approval.status_at(now), choice) {
        (ApprovalStatus::Approved, Choice::Approve)
        | (ApprovalStatus::Declined, Choice::Decline) => Ok(approval.view(now)),
        (ApprovalStatus::Expired, _) => Err(conflict(
            Reason::OfferExpired,
            "the time to answer has ended, which is a decline; nothing was executed",
        )),
        (ApprovalStatus::Pending | ApprovalStatus::Approved | ApprovalStatus::Declined, _) => {
            Err(conflict(
                Reason::OfferReplayed,
                "this was already answered, and otherwise",
            ))
        }
    }
}

/// The seller's approval of this id; another seller's is as if absent (R5).
pub(crate) async fn load(
    store: &dyn Store,
    id: &str,
    seller: &str,
) -> Result<(Approval, Doc), PageRefused> {
    let docs = store.load(vec![Key::new(Kind::Approval, id)]).await?;
    let doc = docs.into_iter().flatten().next();
    let doc = doc.ok_or_else(Refusal::not_found)?;
    let approval: Approval = read(&doc)?;
    if approval.seller != seller {
        return Err(Refusal::not_found().into());
    }
    Ok((approval, doc))
}

fn read<T: serde::de::DeserializeOwned>(doc: &Doc) -> Result<T, PageRefused> {
    // No message of the parser: it might quote proposed terms.
    serde_json::from_slice(&doc.body).map_err(|_| {
        let kind = doc.key.kind.as_str();
        tracing::error!(kind, "a stored document is not readable");
        Refusal::unavailable("a stored document is not readable; nothing was executed").into()
    })
}

/// The write of a new value over the document as it was read; it has ended, so that no sweep looks at it again.
fn over<T: serde::Serialize>(doc: &Doc, value: &T) -> Put {
    Put {
        key: doc.key.clone(),
        expected: doc.version,
        parent: None,
        due: None,
        body: serde_json::to_vec(value)
            .expect("our documents serialise")
            .into(),
    }
}

fn answered(view: &Value) -> Response<Body> {
    json_response(StatusCode::OK, &json!({"approval": view})).map(Body::from)
}

fn read_answer(headers: &HeaderMap, body: &[u8]) -> Result<Answer, PageRefused> {
    let value = page_body(headers, "approval-response", body)?;
    Ok(Answer::deserialize(value)
        .map_err(|_| Refusal::invalid("the body does not have the form that this takes"))?)
}

/// The JSON body of a page's POST, which satisfies its schema. Only `application/json` is taken: no form of another
/// site can send that.
pub(crate) fn page_body(
    headers: &HeaderMap,
    schema: &str,
    body: &[u8],
) -> Result<Value, PageRefused> {
    let value = page_json(headers, body)?;
    schema::validate(schema, &value)
        .map_err(|e| Refusal::invalid(format!("the body does not satisfy {schema}: {e}")))?;
    Ok(value)
}

/// As [`page_body`], of any schema.
pub(crate) fn page_json(headers: &HeaderMap, body: &[u8]) -> Result<Value, PageRefused> {
    let json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split(';').next())
        .is_some_and(|v| v.trim().eq_ignore_ascii_case("application/json"));
    if !json {
        return Err(Refusal::invalid("send the body as Content-Type: application/json").into());
    }
    let value = schema::parse(body)
        .map_err(|e| Refusal::invalid(format!("the body was not understood: {e}")))?;
    Ok(value)
}
