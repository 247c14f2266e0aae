//! An agent over reqwest: every operation of the table, signed, retried and read.
//!
//! ```no_run
//! use tower_rctp::{
//!     client::{
//!         Agent, Signer,
//!         agent::{Acted, NewOffer},
//!     },
//!     protocol::{money::Money, offer::{DealTerms, Fulfillment, Payment}, refusal::Reason},
//!     wire::jwk::SigningKey,
//! };
//!
//! # async fn example(pem: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let signer = Signer::new("https://agent.example/.well-known/ucp", SigningKey::from_pkcs8_pem(pem)?)?;
//! let agent = Agent::signing(signer).discover("https://marketplace.example").await?;
//!
//! let offer = NewOffer::new(
//!     "lst_4f7a",
//!     DealTerms {
//!         price: Money::new(45_000, "EUR"),
//!         fulfillment: Fulfillment {
//!             method_type: "shipping".into(),
//!             selected_option_id: "standard".into(),
//!         },
//!         payment: Payment { selected_term_id: "held_funds".into() },
//!     },
//! );
//! match agent.create_offer(&offer).await {
//!     Ok(answered) => println!("the seller has it: {}", answered.value.offer_id),
//!     Err(error) if error.reason() == Some(Reason::BelowFloor) => println!("too low"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(()) }
//! ```
//!
//! *What is sent.* `RCTP-Version`, the token if there is one, and for every POST an `Idempotency-Key`; signed with
//! [`Signer`], or with the token alone. Redirects are not followed: neither a token nor a signature is for another host.
//!
//! *What is sent again.* See [`Retry`]: no answer, and answers that say "not now"; never a decision. After
//! [`Error::NoAnswer`] nobody knows whether the operation was carried out; [`Call::idempotency_key`] finds out.
//!
//! *What an answer proves.* The binding signs no answers, so what a gateway says rests on TLS; for what has to last
//! there are signatures: [`Agent::checkout`] verifies an accepted offer's, [`Agent::verified_record`] a deal's whole
//! record, and
//! [`verify_webhook`](super::verify_webhook) what the gateway tells. Keys come from the gateway's profile.
//!
//! `docs/client.md` is the guide.

mod answer;
mod call;
mod error;
mod mcp;
mod request;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use url::{Url, form_urlencoded};

pub use self::{
    answer::{
        Acted, Answered, Approval, ApprovalRequest, ConfirmedTerms, Deal, EventsPage, Listing,
        ListingState, Offer, OffersPage, Question, QuestionsPage, RecordedEvent, Resource,
    },
    call::{Call, Retry, Timer, TokioTimer},
    error::{Code, Error, Refused},
    request::{NewEvent, NewListing, NewOffer, ProposedTerms},
};
use self::{
    answer::{acted, plain},
    call::backoff,
};
use super::{BrokenRecord, CheckoutError, Signer, Told, verify_checkout, verify_record};
use crate::{
    layer::{
        authenticate::fetch::allowed_url,
        context::{Ids, RandomIds},
    },
    protocol::{
        VERSION, approval::ApprovalStatus, deal::Checkout, event::EVENT_TYP, money::Money,
        offer::DealTerms, operation::Op, time::Timestamp,
    },
    wire::{crypto::default_provider, jwk::Keys, jws},
};

/// Its examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/client.md")]
struct Guide;

/// The largest answer that is read, unless set otherwise: a page of 100 entries with their signatures is below it.
const ANSWER_LIMIT: usize = 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses between looks at an approval: a person has to pick up a phone.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const SLOWEST_LOOK: Duration = Duration::from_secs(30);
/// How many entries of a record are read: 100 events that change nothing, nine that count, and refusals.
const MOST_ENTRIES: usize = 100_000;

/// An agent at one gateway. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    /// Without a trailing slash.
    endpoint: String,
    /// Where the gateway's profile is.
    profile: Url,
    signer: Option<Arc<Signer>>,
    /// `Bearer …`, marked sensitive.
    token: Option<HeaderValue>,
    http: reqwest::Client,
    timeout: Duration,
    answer_limit: usize,
    retry: Retry,
    timer: Arc<dyn Timer>,
    /// Whether operations that are tools go over MCP.
    mcp: bool,
}

/// Says where, and not with which key or token.
impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("endpoint", &self.inner.endpoint)
            .field("signs", &self.inner.signer.is_some())
            .field("bears_token", &self.inner.token.is_some())
            .finish_non_exhaustive()
    }
}

/// Settings of an [`Agent`].
#[must_use = "an agent is made by `discover` or `at`"]
pub struct AgentBuilder {
    signer: Option<Arc<Signer>>,
    token: Option<String>,
    http: Option<reqwest::Client>,
    timeout: Duration,
    answer_limit: usize,
    retry: Retry,
    timer: Arc<dyn Timer>,
}

impl AgentBuilder {
    fn new(signer: Option<Arc<Signer>>, token: Option<String>) -> Self {
        Self {
            signer,
            token,
            http: None,
            timeout: TIMEOUT,
            answer_limit: ANSWER_LIMIT,
            retry: Retry::default(),
            timer: Arc::new(TokioTimer),
        }
    }

    /// Shows this access token: a seller's grant, bound to the signing key where there is one (binding 3.3).
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Uses this HTTP client, which must follow no redirects: what was sent, a proposed floor included, would go to where they
    /// lead. An answer from another URL than was asked is an error. Else one with reqwest's defaults otherwise.
    pub fn http(mut self, client: reqwest::Client) -> Self {
        self.http = Some(client);
        self
    }

    /// How long one attempt may take, from the connection to the last byte; 10 s by default.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// The largest answer that is read, in bytes; 1 MiB by default.
    pub fn answer_limit(mut self, bytes: usize) -> Self {
        self.answer_limit = bytes;
        self
    }

    /// When requests are sent again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Waits by another timer than Tokio's.
    pub fn timer(mut self, timer: impl Timer) -> Self {
        self.timer = Arc::new(timer);
        self
    }

    /// An agent at the gateway that `site`'s profile (`/.well-known/ucp`) names for REST. `site` is the marketplace as
    /// its seller or buyer names it: whoever chooses it chooses where tokens are sent.
    ///
    /// # Errors
    /// [`Error::Profile`] when the profile names no gateway of this version, and what else may keep an answer from coming.
    pub async fn discover(self, site: &str) -> Result<Agent, Error> {
        let agent = self.at(site)?;
        let found = agent.profile().await?.endpoint;
        let endpoint = found.ok_or(Error::Profile("it names no REST endpoint of this version"))?;
        let url = checked(&endpoint)?;
        // A profile that came over https is as good as its host says; one that did not may have come from anybody.
        if agent.inner.profile.scheme() == "https" && url.scheme() != "https" {
            return Err(Error::Profile("it names an endpoint without TLS"));
        }
        let inner = Inner {
            endpoint: trimmed(&url),
            ..(*agent.inner).clone()
        };
        Ok(Agent {
            inner: Arc::new(inner),
        })
    }

    /// An agent at the gateway whose public URL is `endpoint`: https, or http on loopback.
    ///
    /// # Errors
    /// [`Error::Request`] when the URL, the token or TLS is not usable.
    pub fn at(self, endpoint: &str) -> Result<Agent, Error> {
        let url = checked(endpoint)?;
        let profile = url.join("/.well-known/ucp");
        let http = match self.http {
            Some(client) => client,
            None => reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .build()
                .map_err(|_| Error::Request("TLS cannot be set up"))?,
        };
        let inner = Inner {
            endpoint: trimmed(&url),
            profile: profile.map_err(|_| Error::Request("the endpoint is no URL"))?,
            signer: self.signer,
            token: self.token.as_deref().map(bearer).transpose()?,
            http,
            timeout: self.timeout,
            answer_limit: self.answer_limit,
            retry: self.retry,
            timer: self.timer,
            mcp: false,
        };
        Ok(Agent {
            inner: Arc::new(inner),
        })
    }
}

/// Without a key or a token.
impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder")
            .field("timeout", &self.timeout)
            .field("answer_limit", &self.answer_limit)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

fn checked(url: &str) -> Result<Url, Error> {
    // The error names the URL, which its owner may not want in a log.
    let url = allowed_url(url, true).map_err(|_| {
        Error::Request("the endpoint must be an https URL (or http on loopback) without a user")
    })?;
    match url.query() {
        None => Ok(url),
        Some(_) => Err(Error::Request("the endpoint must have no query")),
    }
}

fn trimmed(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

fn bearer(token: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| Error::Request("the token does not fit into a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A gateway's profile, as far as an agent needs it (binding 10, 13.1).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GatewayProfile {
    /// The keys that sign checkouts, records and webhooks.
    pub keys: Keys,
    /// Where its REST operations are, where it serves this version.
    pub endpoint: Option<String>,
    /// The whole profile: scopes with their tiers, term sets, budgets.
    pub document: Value,
}

impl Agent {
    /// An agent that signs what it sends, as binding 2.1 recommends.
    pub fn signing(signer: impl Into<Arc<Signer>>) -> AgentBuilder {
        AgentBuilder::new(Some(signer.into()), None)
    }

    /// An agent that signs nothing and shows an access token (binding 2.2): a seller's grant that is not bound to a
    /// key, or a buyer's own token. It can make no deal and report no event.
    pub fn bearing(token: impl Into<String>) -> AgentBuilder {
        AgentBuilder::new(None, Some(token.into()))
    }

    /// The same agent with another access token: after a refresh, on [`Reason::GrantInvalid`].
    ///
    /// # Errors
    /// [`Error::Request`] when the token does not fit into a header.
    ///
    /// [`Reason::GrantInvalid`]: crate::protocol::refusal::Reason::GrantInvalid
    pub fn with_token(&self, token: &str) -> Result<Self, Error> {
        let inner = Inner {
            token: Some(bearer(token)?),
            ..(*self.inner).clone()
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The same agent over MCP (binding 13): operations that are tools are called at `/mcp`, and all others over REST. They
    /// come to the same, statuses and headers of REST included.
    #[must_use]
    pub fn over_mcp(&self) -> Self {
        let inner = Inner {
            mcp: true,
            ..(*self.inner).clone()
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The gateway's URL, without a trailing slash.
    pub fn endpoint(&self) -> &str {
        &self.inner.endpoint
    }

    /// Reads the gateway's profile, anew each time, since keys change.
    ///
    /// # Errors
    /// [`Error::Profile`], and what else may keep an answer from coming.
    pub async fn profile(&self) -> Result<GatewayProfile, Error> {
        let mut request = Request::new(Bytes::new());
        let uri = self.inner.profile.as_str().parse();
        *request.uri_mut() = uri.map_err(|_| Error::Request("the endpoint is no URL"))?;
        // Anybody may read it; it needs to know nothing of who does.
        let anybody = Inner {
            signer: None,
            ..(*self.inner).clone()
        };
        let anybody = Self {
            inner: Arc::new(anybody),
        };
        let (raw, _) = anybody.deliver(&request, None).await?;
        let document = raw.json().filter(|_| raw.status == 200);
        let document = document.ok_or(Error::Profile("it is not served"))?;
        let keys = Keys::parse(&document["keys"], default_provider())
            .map_err(|_| Error::Profile("its keys are none"))?;
        let services = document["ucp"]["services"]["dev.rctp"].as_array();
        let rest = services
            .into_iter()
            .flatten()
            .find(|service| service["transport"] == "rest" && service["version"] == VERSION);
        let endpoint = rest.and_then(|service| service["endpoint"].as_str());
        Ok(GatewayProfile {
            keys,
            endpoint: endpoint.map(str::to_owned),
            document,
        })
    }

    // ---- The seller's agent ---------------------------------------------------------------------------------------

    /// `POST /listings`, `listing.create`. Under `ask` (the reference default) the seller confirms the terms, and the
    /// listing is then on sale; under `auto` it is there, without terms.
    pub fn create_listing(&self, listing: &NewListing) -> Call<Acted<Listing>> {
        self.act(Op::CreateListing, None, listing)
    }

    /// `POST /listings/{id}/terms`, `listing.set_terms`: always `ask`.
    pub fn set_listing_terms(
        &self,
        listing_id: &str,
        proposed: Option<&ProposedTerms>,
    ) -> Call<Acted<ConfirmedTerms>> {
        let body = match proposed {
            Some(terms) => json!({ "proposed_terms": terms }),
            None => json!({}),
        };
        self.act(Op::SetListingTerms, Some(("listing_id", listing_id)), &body)
    }

    /// `POST /listings/{id}/price`, `listing.reprice`.
    pub fn reprice_listing(&self, listing_id: &str, price: &Money) -> Call<Acted<Listing>> {
        let body = json!({ "price": price });
        self.act(Op::RepriceListing, Some(("listing_id", listing_id)), &body)
    }

    /// `POST /listings/{id}/answers`, `listing.answer_buyer`.
    pub fn answer_buyer(
        &self,
        listing_id: &str,
        question_id: &str,
        text: &str,
    ) -> Call<Acted<Question>> {
        let body = json!({"question_id": question_id, "text": text});
        self.act(Op::AnswerBuyer, Some(("listing_id", listing_id)), &body)
    }

    /// `GET /offers?listing_id=`: a page of the offers on a listing; `after` is the [`OffersPage::next`] of the one
    /// before.
    pub fn list_offers(&self, listing_id: &str, after: Option<&str>) -> Call<OffersPage> {
        let mut query = vec![("listing_id", listing_id)];
        query.extend(after.map(|after| ("after", after)));
        self.read(Op::ListOffers, None, &query)
    }

    /// `POST /offers/{id}/counter`, `offer.counter`: answers a buyer's offer with other deal terms. `expires_at` is
    /// capped by the gateway, and set by it where it is absent.
    pub fn counter_offer(
        &self,
        offer_id: &str,
        deal_terms: &DealTerms,
        expires_at: Option<Timestamp>,
    ) -> Call<Acted<Offer>> {
        let mut body = json!({ "deal_terms": deal_terms });
        if let Some(at) = expires_at {
            body["expires_at"] = json!(at);
        }
        self.act(Op::CounterOffer, Some(("offer_id", offer_id)), &body)
    }

    /// `POST /offers/{id}/accept`, `offer.accept`: accepts a buyer's offer, which reserves the listing.
    pub fn accept_offer(&self, offer_id: &str) -> Call<Acted<Offer>> {
        self.act(Op::AcceptOffer, Some(("offer_id", offer_id)), &json!({}))
    }

    /// `POST /deals/{id}/commit-to-ship`, `deal.commit_to_ship`.
    pub fn commit_to_ship(&self, deal_id: &str) -> Call<Acted<Deal>> {
        self.act(Op::CommitToShip, Some(("deal_id", deal_id)), &json!({}))
    }

    /// `POST /deals/{id}/contract`, `deal.sign_contract`: refused, always, since no agent may (INV-3). It is here so
    /// that one can show that.
    pub fn sign_contract(&self, deal_id: &str) -> Call<Value> {
        self.write(Op::SignContract, Some(("deal_id", deal_id)), &json!({}))
    }

    /// `POST /account`, `account.update`: refused, always, as [`Agent::sign_contract`].
    pub fn update_account(&self) -> Call<Value> {
        self.write(Op::UpdateAccount, None, &json!({}))
    }

    // ---- The buyer's agent ----------------------------------------------------------------------------------------

    /// `POST /listings/{id}/questions`: asks about a listing.
    pub fn ask_question(&self, listing_id: &str, text: &str) -> Call<Question> {
        let body = json!({ "text": text });
        self.write(Op::AskQuestion, Some(("listing_id", listing_id)), &body)
    }

    /// `POST /offers`, `offer.create`: offers on a listing, or answers a counter.
    pub fn create_offer(&self, offer: &NewOffer) -> Call<Offer> {
        self.write(Op::CreateOffer, None, offer)
    }

    /// `POST /deals`: redeems a checkout, once. Verify it first: [`Agent::checkout`].
    pub fn create_deal(&self, checkout: &str) -> Call<Deal> {
        let body = json!({ "checkout": checkout });
        self.write(Op::CreateDeal, None, &body)
    }

    // ---- Either ---------------------------------------------------------------------------------------------------

    /// `GET /listings/{id}`.
    pub fn get_listing(&self, listing_id: &str) -> Call<Listing> {
        self.read(Op::GetListing, Some(("listing_id", listing_id)), &[])
            .about("listing_id", listing_id)
    }

    /// `GET /listings/{id}/questions`: a page of them, for a buyer's agent its own; `after` is the
    /// [`QuestionsPage::next`] of the page before.
    pub fn list_questions(&self, listing_id: &str, after: Option<&str>) -> Call<QuestionsPage> {
        let query: Vec<_> = after.into_iter().map(|after| ("after", after)).collect();
        self.read(Op::ListQuestions, Some(("listing_id", listing_id)), &query)
    }

    /// `GET /offers/{id}`.
    pub fn get_offer(&self, offer_id: &str) -> Call<Offer> {
        self.read(Op::GetOffer, Some(("offer_id", offer_id)), &[])
            .about("offer_id", offer_id)
    }

    /// `POST /offers/{id}/decline`.
    pub fn decline_offer(&self, offer_id: &str) -> Call<Offer> {
        self.write(Op::DeclineOffer, Some(("offer_id", offer_id)), &json!({}))
    }

    /// `GET /approvals/{id}`: whether the seller has answered, and what came of it.
    pub fn get_approval(&self, approval_id: &str) -> Call<Approval> {
        self.read(Op::GetApproval, Some(("approval_id", approval_id)), &[])
            .about("approval_id", approval_id)
    }

    /// `GET /deals/{id}`.
    pub fn get_deal(&self, deal_id: &str) -> Call<Deal> {
        self.read(Op::GetDeal, Some(("deal_id", deal_id)), &[])
            .about("deal_id", deal_id)
    }

    /// `POST /deals/{id}/events`: reports an event, signed by this agent's key, with an `event_id` of its own.
    ///
    /// Each call signs another event. To ask again after [`Error::NoAnswer`], keep what [`Agent::sign_event`] gives.
    pub fn post_deal_event(&self, deal_id: &str, event: NewEvent) -> Call<RecordedEvent> {
        match self.sign_event(deal_id, event) {
            Ok(jws) => self.post_signed_event(deal_id, &jws),
            Err(error) => Call::new(self, Err(error), plain),
        }
    }

    /// As [`Agent::post_deal_event`], with an event that [`Agent::sign_event`] has signed.
    pub fn post_signed_event(&self, deal_id: &str, jws: &str) -> Call<RecordedEvent> {
        let body = json!({ "event": jws });
        self.write(Op::PostDealEvent, Some(("deal_id", deal_id)), &body)
    }

    /// An event as a compact JWS of this agent's key (binding 8.1). Nothing is sent.
    ///
    /// # Errors
    /// [`Error::NoSigner`], [`Error::Random`], or that it could not be signed.
    pub fn sign_event(&self, deal_id: &str, event: NewEvent) -> Result<String, Error> {
        let signer = self.inner.signer.as_ref().ok_or(Error::NoSigner)?;
        let now = signer.now();
        let event = event.of(deal_id, RandomIds.id("evt", now)?, now);
        let payload = serde_json::to_vec(&event)
            .map_err(|_| Error::Request("its body does not serialise"))?;
        Ok(jws::sign(EVENT_TYP, &payload, signer.key())?)
    }

    /// `GET /deals/{id}/events`: a page of the deal's record, from this entry on. [`Agent::verified_record`] reads and
    /// verifies it whole.
    pub fn get_deal_events(&self, deal_id: &str, from: u64) -> Call<EventsPage> {
        let (id, from) = (Some(("deal_id", deal_id)), from.to_string());
        self.read(Op::GetDealEvents, id, &[("from", &from)])
            .about("deal_id", deal_id)
    }

    // ---- What takes more than one of them -------------------------------------------------------------------------

    /// Looks at an approval until the seller has answered, at the latest for `at_most`, counted from now: after a
    /// second first, then less and less often, every 30 seconds in the end. An approval that is still `pending` then is
    /// the answer. A webhook (`approval.decided`) tells sooner.
    ///
    /// # Errors
    /// As [`Agent::get_approval`].
    pub async fn wait_for_approval(
        &self,
        approval_id: &str,
        at_most: Duration,
    ) -> Result<Approval, Error> {
        let timer = &self.inner.timer;
        let started = timer.now();
        let mut looks = 0;
        loop {
            let approval = self.get_approval(approval_id).await?.value;
            let left = at_most.saturating_sub(timer.now().saturating_duration_since(started));
            if approval.status != ApprovalStatus::Pending || left.is_zero() {
                return Ok(approval);
            }
            looks += 1;
            timer
                .sleep(backoff(FIRST_LOOK, SLOWEST_LOOK, looks).min(left))
                .await;
        }
    }

    /// The checkout of an accepted offer, verified: signed by the gateway, not ended, for this agent's key, and of the
    /// terms that the offer has.
    ///
    /// # Errors
    /// [`Error::Checkout`], [`Error::NoSigner`], and what keeps the gateway's profile from coming.
    pub async fn checkout(&self, offer: &Offer) -> Result<Checkout, Error> {
        let signer = self.inner.signer.as_ref().ok_or(Error::NoSigner)?;
        let token = offer.checkout.as_deref();
        let token = token.ok_or(CheckoutError::Disagrees("offer: it has none"))?;
        let keys = self.profile().await?.keys;
        let checkout = verify_checkout(token, &keys, signer.now())?;
        for (same, what) in [
            (checkout.offer_id == offer.offer_id, "offer"),
            (checkout.listing_id == offer.listing_id, "listing"),
            (checkout.deal_terms == offer.deal_terms, "price or terms"),
            (checkout.buyer_jkt == *signer.key().kid(), "buyer's key"),
        ] {
            if !same {
                return Err(CheckoutError::Disagrees(what).into());
            }
        }
        Ok(checkout)
    }

    /// A deal's whole record, verified with the gateway's keys: that it is this deal's, the chain, its signed heads, which
    /// cover it to its end, and the events in it, with the keys of their `writers` where they are given.
    ///
    /// # Errors
    /// [`Error::Record`] when it is not what the gateway wrote; as [`Agent::get_deal_events`].
    pub async fn verified_record(&self, deal_id: &str, writers: &Keys) -> Result<Vec<Told>, Error> {
        let keys = self.profile().await?.keys;
        let mut entries = Vec::new();
        let mut from = 0;
        let head = loop {
            let page = self.get_deal_events(deal_id, from).await?;
            let unexpected = |why| Error::Unexpected {
                status: page.status,
                why,
                retry_after: None,
                idempotency_key: None,
            };
            // Without one, nobody could tell whether the tail is cut. The last one covers all pages.
            let head = page.value.head;
            let head = head.ok_or_else(|| unexpected("there is no signed head"))?;
            entries.extend(page.value.entries);
            let read = u64::try_from(entries.len()).unwrap_or(u64::MAX);
            match page.value.next {
                None => break head,
                Some(next) if next > from && next == read && entries.len() < MOST_ENTRIES => {
                    from = next;
                }
                Some(_) => return Err(unexpected("its pages have no end, or gaps")),
            }
        };
        let verified = verify_record(&entries, &[head], &keys, writers)?;
        if verified.subject.id != deal_id {
            let (expected, found) = (deal_id.to_owned(), verified.subject.id);
            return Err(BrokenRecord::Another { expected, found }.into());
        }
        match verified.is_covered() {
            true => Ok(verified.told),
            false => Err(BrokenRecord::Uncovered {
                covered: verified.covered,
                given: entries.len(),
            }
            .into()),
        }
    }

    fn read<T: DeserializeOwned>(
        &self,
        op: Op,
        id: Option<(&'static str, &str)>,
        query: &[(&str, &str)],
    ) -> Call<T> {
        let query = match query {
            [] => String::new(),
            pairs => {
                let mut query = form_urlencoded::Serializer::for_suffix("?".to_owned(), 1);
                query.extend_pairs(pairs);
                query.finish()
            }
        };
        Call::new(self, self.request(op, id, &query, None::<&()>), plain)
    }

    fn write<T: DeserializeOwned>(
        &self,
        op: Op,
        id: Option<(&'static str, &str)>,
        body: &impl Serialize,
    ) -> Call<T> {
        Call::new(self, self.request(op, id, "", Some(body)), plain)
    }

    fn act<T: DeserializeOwned>(
        &self,
        op: Op,
        id: Option<(&'static str, &str)>,
        body: &impl Serialize,
    ) -> Call<Acted<T>> {
        Call::new(self, self.request(op, id, "", Some(body)), acted)
    }
}
