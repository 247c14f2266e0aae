//! The hosted pages of the seller (binding 4.2, 7; R27): what waits for them, one approval with its terms form,
//! enrolment, and sign-in.
//!
//! | route | what |
//! |---|---|
//! | `GET /approve`, `/approve/{id}`, `/enroll`, `/signin` | the pages; they hold nothing of anybody |
//! | `GET /pages/{file}` | their style and scripts |
//! | `GET /approve/pending` | what waits for the seller, and what was answered lately |
//! | `GET /approve/{id}/request` | the approval request, and the term set with its prefill |
//! | `POST /approve/{id}/terms` | the seller's terms → commitment and passkey options, or 422 `terms_invalid` |
//! | `POST /approve/{id}/options` | passkey options for the other verbs |
//! | `POST /signin/options`, `/signin/complete`, `/signout` | the session |
//! | `POST /enroll/options`, `/enroll/complete` | a new passkey, for a ticket |
//!
//! `POST /approvals/{id}/response` itself is answered by the stack ([`crate::layer::approve`]).
//!
//! Everything is for the seller's browser: a request that carries `UCP-Agent` or a signature is 403, and a POST must
//! name the page's own `Origin`. Scripts and styles come from this origin only.

mod files;

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as HttpBody;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::{BoxError, Service};

pub(crate) use self::files::Files;
use super::{
    approvals::{Approvals, Hosted},
    enrolment,
    passkeys::PasskeyError,
    session::Sessions,
};
use crate::{
    layer::{
        approve::{PageRefused, from_browser, from_our_page, load, page_body, page_json},
        body::{Body, CollectError},
        context::{Clock, Ids},
        decision::json_response,
    },
    protocol::{
        approval::{Approval, ApprovalStatus, Draft},
        listing::Listing,
        money::Money,
        operation::{Op, is_id},
        policy::Policy,
        record::Seal,
        refusal::{ProtocolError, Reason, Refusal},
        term_set::Violation,
        terms::PrivateTerms,
    },
    store::{BoxFuture, CommitError, Doc, Key, Kind, Put, Store, StoreError, Unit},
};

/// No body that a page sends is larger.
const BODY_LIMIT: usize = 64 * 1024;
/// How long what was answered stays in the seller's list, in seconds.
const LATELY: i64 = 86_400;
/// How much of it is shown.
const ANSWERED: usize = 20;
/// How many ends of a list are read at once.
const PAGE: usize = 100;
/// How often a lost race is tried again.
const ATTEMPTS: usize = 16;

/// The pages as one service. Mount it for `/approve`, `/enroll`, `/signin`, `/signout`, `/pages` and all below; with axum,
/// merge [`Pages::router`]. Other paths are 404.
#[derive(Clone)]
pub struct Pages(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) hosted: Arc<Hosted>,
    pub(crate) files: Files,
    pub(crate) origin: String,
    pub(crate) public_url: Arc<str>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) seal: Arc<dyn Seal>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) policy: Arc<Policy>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pages")
    }
}

/// Who is signed in at the pages, for pages of the marketplace's own.
impl Sessions for Pages {
    fn seller<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(self.0.hosted.seller(headers))
    }
}

impl Pages {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// The files of the pages, with the marketplace's texts and style.
    ///
    /// # Errors
    /// A text of an unknown key.
    pub(crate) fn files(settings: &Approvals) -> Result<Files, String> {
        Files::new(settings)
    }

    /// A page of the marketplace's own in the same look: `script` is the address of its module, `title` what the window is
    /// called, `texts` what it says, beside those of every page.
    pub fn page(&self, title: &str, script: &str, texts: &Value) -> Response<Body> {
        self.0.files.page(title, script, texts)
    }

    /// The routes for an axum router to merge.
    #[cfg(feature = "axum")]
    pub fn router(&self) -> axum::Router {
        let mut router = axum::Router::new();
        for path in [
            "/approve",
            "/approve/{*rest}",
            "/enroll",
            "/enroll/{*rest}",
            "/signin",
            "/signin/{*rest}",
            "/signout",
            "/pages/{*rest}",
        ] {
            router = router.route_service(path, self.clone());
        }
        router
    }
}

impl<B> Service<Request<B>> for Pages
where
    B: HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.0.clone();
        let (parts, body) = request.into_parts();
        Box::pin(async move {
            let body = Body::new(body);
            let answer = this.answer(&parts.method, parts.uri.path(), &parts.headers, body);
            Ok(answer.await.unwrap_or_else(PageRefused::into_response))
        })
    }
}

type Answer = Result<Response<Body>, PageRefused>;

impl Inner {
    async fn answer(&self, method: &Method, path: &str, headers: &HeaderMap, body: Body) -> Answer {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        if method == Method::GET || method == Method::HEAD {
            from_browser(headers)?;
            return match *segments.as_slice() {
                ["approve"] => Ok(self.files.own("title_list", "list.js")),
                ["enroll"] => Ok(self.files.own("title_enroll", "enroll.js")),
                ["signin"] => Ok(self.files.own("title_signin", "signin.js")),
                ["pages", name] => Ok(self.files.file(name, headers).ok_or_else(not_found)?),
                ["approve", "pending"] => self.pending(&self.signed_in(headers).await?).await,
                ["approve", id] if is_id(id) => Ok(self.files.own("title_approve", "approve.js")),
                ["approve", id, "request"] if is_id(id) => {
                    self.request(id, &self.signed_in(headers).await?).await
                }
                _ => Err(not_found().into()),
            };
        }
        if method != Method::POST {
            return Err(not_found().into());
        }
        from_our_page(headers, &self.origin)?;
        let body = body.collect(BODY_LIMIT).await.map_err(|e| match e {
            CollectError::TooLarge => Refusal::protocol(
                ProtocolError::TooLarge,
                format!("the body is over the limit of {BODY_LIMIT} bytes"),
            ),
            CollectError::Broken => Refusal::invalid("the body broke off before its end"),
        })?;
        let read = |schema| page_body(headers, schema, &body);
        match *segments.as_slice() {
            ["approve", id, "terms"] if is_id(id) => {
                let seller = self.signed_in(headers).await?;
                // Every mistake in the terms is told by its field; the term set judges them.
                let submission = page_json(headers, &body)?;
                let terms = submission.as_object().filter(|members| members.len() == 1);
                let terms = terms.and_then(|members| members.get("terms"));
                let terms = terms.ok_or_else(|| {
                    Refusal::invalid("the body is {\"terms\": {…}} and nothing else")
                })?;
                self.terms(id, &seller, terms).await
            }
            ["approve", id, "options"] if is_id(id) => {
                read("empty-request")?;
                self.options(id, &self.signed_in(headers).await?).await
            }
            ["signin", "options"] => {
                read("empty-request")?;
                let (public_key, state) = self.hosted.passkeys.sign_in_options().await?;
                Ok(ok(&json!({"publicKey": public_key, "state": state})))
            }
            ["signin", "complete"] => self.sign_in(&read("signin-completion")?).await,
            ["signout"] => {
                read("empty-request")?;
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::NO_CONTENT;
                let cookie = self.hosted.own_sessions.end();
                response.headers_mut().insert(header::SET_COOKIE, cookie);
                Ok(response)
            }
            ["enroll", "options"] => self.enrol_options(&read("enrolment-options")?).await,
            ["enroll", "complete"] => self.enrol(&read("enrolment-completion")?).await,
            _ => Err(not_found().into()),
        }
    }

    async fn signed_in(&self, headers: &HeaderMap) -> Result<String, PageRefused> {
        let seller = self.hosted.seller(headers).await?;
        seller.ok_or_else(PageRefused::signed_out)
    }

    /// What waits for the seller, oldest first, then what was answered lately, newest first.
    async fn pending(&self, seller: &str) -> Answer {
        let now = self.clock.now();
        let since = LATELY.max(i64::from(self.policy.limits.approval_seconds));
        // Ids begin with their time, so that the list begins where it matters.
        let mut after = Some(format!("apr_{:09x}", now.plus(-since).secs().max(0)));
        let (mut waiting, mut answered) = (Vec::new(), Vec::new());
        loop {
            let list = self
                .store
                .list(Kind::Approval, seller.to_owned(), after, PAGE);
            let docs = list.await?;
            for doc in &docs {
                let approval: Approval = read(doc)?;
                let mut item = json!({
                    "approval_id": approval.approval_id,
                    "action": approval.action,
                    "status": approval.status_at(now),
                    "created_at": approval.created_at,
                    "expires_at": approval.expires_at,
                    "display": approval.display,
                });
                if let Some(decision) = approval.decision() {
                    item["decision"] = json!(decision);
                }
                match approval.status_at(now) {
                    ApprovalStatus::Pending => waiting.push(item),
                    _ => answered.push(item),
                }
            }
            if docs.len() < PAGE {
                break;
            }
            after = docs.last().map(|doc| doc.key.id.clone());
        }
        waiting.extend(answered.into_iter().rev().take(ANSWERED));
        Ok(ok(&json!({"seller": seller, "approvals": waiting})))
    }

    async fn request(&self, id: &str, seller: &str) -> Answer {
        let now = self.clock.now();
        let (approval, _) = load(&*self.store, id, seller).await?;
        let status = approval.status_at(now);
        let mut answer = json!({
            "approval_request": approval.request(&self.hosted_url(id)),
            "status": status,
        });
        if let Some(decision) = approval.decision() {
            answer["decision"] = json!(decision);
        }
        if approval.takes_terms() && status == ApprovalStatus::Pending {
            let about = self.about(&approval).await?;
            let set = self.policy.term_sets.get(&about.term_set);
            let set = set.ok_or_else(|| not_enforced(&about.term_set))?;
            let proposed = approval.body.value().get("proposed_terms");
            answer["term_set"] = json!(set);
            answer["prefill"] = set.prefill(about.category.as_deref(), proposed);
            answer["list_price"] = json!(about.list_price);
            answer["approval_request"]["display"]["list_price"] = json!(about.list_price);
        }
        Ok(ok(&answer))
    }

    fn hosted_url(&self, id: &str) -> String {
        format!("{}/approve/{id}", self.public_url)
    }

    /// The listing that terms are filled in for.
    async fn about(&self, approval: &Approval) -> Result<About, PageRefused> {
        if approval.operation == Op::CreateListing {
            let about = serde_json::from_value(approval.body.value().clone());
            return about.map_err(|_| unreadable("approval").into());
        }
        let id = approval.target.as_deref().unwrap_or_default();
        let docs = self.store.load(vec![Key::new(Kind::Listing, id)]).await?;
        let doc = docs.into_iter().flatten().next().ok_or_else(not_found)?;
        let listing: Listing = read(&doc)?;
        Ok(About {
            term_set: listing.term_set,
            category: listing.category,
            list_price: listing.list_price,
        })
    }

    /// Keeps the seller's terms with the approval, under a fresh salt (binding 4.2).
    async fn terms(&self, id: &str, seller: &str, terms: &Value) -> Answer {
        for _ in 0..ATTEMPTS {
            let (approval, doc) = self.waiting(id, seller).await?;
            if !approval.takes_terms() {
                return Err(Refusal::invalid("this approval takes no terms").into());
            }
            let about = self.about(&approval).await?;
            let set = self.policy.term_sets.get(&about.term_set);
            let set = set.ok_or_else(|| not_enforced(&about.term_set))?;
            let confirmed = set.confirm(terms, &about.list_price);
            let confirmed = confirmed.and_then(|confirmed| {
                let end = confirmed.public.available_until;
                match end.is_some_and(|end| end <= self.clock.now()) {
                    // Such a listing would be for sale to nobody.
                    true => Err(vec![Violation::past("available_until")]),
                    false => Ok(confirmed),
                }
            });
            let confirmed = confirmed.map_err(|violations| {
                Refusal::forbid(
                    Reason::TermsInvalid,
                    "the terms do not satisfy the term set; fields says which and why",
                )
                .fields(violations)
            })?;
            let salt = self.ids.random().map_err(|error| {
                tracing::error!(%error, "terms could not be kept");
                Refusal::unavailable("there is no randomness for a salt; nothing was kept")
            })?;
            let private = PrivateTerms::new(confirmed.floor, salt);
            let commitment = private.commitment(&confirmed.public);
            let approval = approval.with_draft(Draft {
                public: confirmed.public,
                private,
                commitment: commitment.clone(),
                list_price: about.list_price.clone(),
            });
            let public_key = self.passkey_options(&approval, seller).await?;
            let unit = Unit {
                put: vec![Put {
                    key: doc.key,
                    expected: doc.version,
                    parent: None,
                    due: Some(approval.expires_at),
                    body: serde_json::to_vec(&approval)
                        .expect("our documents serialise")
                        .into(),
                }],
                ..Unit::default()
            };
            match self.store.commit(unit, self.seal.clone()).await {
                Ok(_) => {
                    let answer = json!({"terms_commitment": commitment, "publicKey": public_key});
                    return Ok(ok(&answer));
                }
                Err(CommitError::Conflict | CommitError::KeyTaken) => {}
                Err(CommitError::Store(error)) => return Err(error.into()),
            }
        }
        Err(Refusal::unavailable("too many requests change this at once; try again").into())
    }

    async fn options(&self, id: &str, seller: &str) -> Answer {
        let (approval, _) = self.waiting(id, seller).await?;
        let public_key = self.passkey_options(&approval, seller).await?;
        Ok(ok(&json!({"publicKey": public_key})))
    }

    async fn passkey_options(
        &self,
        approval: &Approval,
        seller: &str,
    ) -> Result<Value, PageRefused> {
        let challenge = approval.challenge().ok_or_else(|| {
            conflict(
                Reason::TermsInvalid,
                "fill in the terms first: POST /approve/{id}/terms",
            )
        })?;
        let options = self.hosted.passkeys.approval_options(seller, &challenge);
        options.await.map_err(|error| match error {
            PasskeyError::Refused(_) => conflict(
                Reason::ActionForbidden,
                "there is no passkey to approve with; enrol one first",
            ),
            error => error.into(),
        })
    }

    /// The approval, while it waits for its seller.
    async fn waiting(&self, id: &str, seller: &str) -> Result<(Approval, Doc), PageRefused> {
        let (approval, doc) = load(&*self.store, id, seller).await?;
        match approval.status_at(self.clock.now()) {
            ApprovalStatus::Pending => Ok((approval, doc)),
            ApprovalStatus::Expired => Err(conflict(
                Reason::OfferExpired,
                "the time to answer has ended, which is a decline",
            )),
            ApprovalStatus::Approved | ApprovalStatus::Declined => {
                Err(conflict(Reason::OfferReplayed, "this was already answered"))
            }
        }
    }

    async fn sign_in(&self, body: &Value) -> Answer {
        let state = body["state"].as_str().unwrap_or_default();
        let passkeys = &self.hosted.passkeys;
        let (seller, put) = passkeys.sign_in(state, &body["credential"]).await?;
        self.once(
            put,
            "this answer of the passkey was used already; sign in again",
        )
        .await?;
        self.signed_in_answer(StatusCode::OK, &seller, &json!({"seller": seller}))
    }

    async fn enrol_options(&self, body: &Value) -> Answer {
        let ticket = body["ticket"].as_str().unwrap_or_default();
        let seller = self.seller_of(ticket).await?;
        let options = self.hosted.passkeys.registration_options(&seller);
        let (public_key, state) = options.await?;
        Ok(ok(&json!({"publicKey": public_key, "state": state})))
    }

    async fn enrol(&self, body: &Value) -> Answer {
        let ticket = body["ticket"].as_str().unwrap_or_default();
        let state = body["state"].as_str().unwrap_or_default();
        let seller = self.seller_of(ticket).await?;
        let passkeys = &self.hosted.passkeys;
        let mut put = passkeys
            .register(&seller, state, &body["credential"])
            .await?;
        put.push(enrolment::use_up(ticket));
        self.once(put, "this ticket, or this passkey, was used already")
            .await?;
        let answer = json!({"credential_id": body["credential"]["id"]});
        self.signed_in_answer(StatusCode::CREATED, &seller, &answer)
    }

    async fn seller_of(&self, ticket: &str) -> Result<String, PageRefused> {
        let invalid = || {
            Refusal::invalid(
                "the ticket is unknown, used or expired; ask the marketplace for a new link",
            )
        };
        let tickets = self.hosted.tickets.as_ref().ok_or_else(invalid)?;
        if enrolment::is_used_up(&*self.store, ticket).await? {
            return Err(invalid().into());
        }
        Ok(tickets.seller(ticket).await?.ok_or_else(invalid)?)
    }

    /// Commits what must happen at most once.
    async fn once(&self, put: Vec<Put>, taken: &'static str) -> Result<(), PageRefused> {
        let unit = Unit {
            put,
            ..Unit::default()
        };
        match self.store.commit(unit, self.seal.clone()).await {
            Ok(_) => Ok(()),
            Err(CommitError::Conflict | CommitError::KeyTaken) => Err(PageRefused::new(
                StatusCode::UNAUTHORIZED,
                Reason::SignatureInvalid,
                taken,
            )),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }

    /// An answer that begins the seller's session.
    fn signed_in_answer(&self, status: StatusCode, seller: &str, body: &Value) -> Answer {
        let cookie = self.hosted.own_sessions.begin(seller, self.clock.now());
        let cookie: HeaderValue = cookie.map_err(PasskeyError::from)?;
        let mut response = json_response(status, body).map(Body::from);
        response.headers_mut().insert(header::SET_COOKIE, cookie);
        Ok(response)
    }
}

/// What the form of the terms needs of its listing.
#[derive(serde::Deserialize)]
struct About {
    term_set: String,
    #[serde(default)]
    category: Option<String>,
    list_price: Money,
}

impl From<PasskeyError> for PageRefused {
    fn from(error: PasskeyError) -> Self {
        match error {
            PasskeyError::Refused(why) => {
                Self::new(StatusCode::UNAUTHORIZED, Reason::SignatureInvalid, why)
            }
            PasskeyError::Store(error) => error.into(),
            PasskeyError::Seal(error) => StoreError(error.to_string()).into(),
        }
    }
}

fn ok(body: &Value) -> Response<Body> {
    json_response(StatusCode::OK, body).map(Body::from)
}

fn not_found() -> Refusal {
    Refusal::not_found()
}

fn conflict(reason: Reason, message: &str) -> PageRefused {
    PageRefused::new(StatusCode::CONFLICT, reason, message)
}

fn not_enforced(name: &str) -> Refusal {
    tracing::error!(
        term_set = name,
        "a listing follows a term set that is no longer enforced"
    );
    Refusal::unavailable("the marketplace no longer enforces this term set; nothing was kept")
}

fn unreadable(kind: &'static str) -> Refusal {
    tracing::error!(kind, "a stored document is not readable");
    Refusal::unavailable("a stored document is not readable; nothing was executed")
}

fn read<T: DeserializeOwned>(doc: &Doc) -> Result<T, PageRefused> {
    serde_json::from_slice(&doc.body).map_err(|_| unreadable(doc.key.kind.as_str()).into())
}
