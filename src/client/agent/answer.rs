//! What a gateway answers.
//!
//! Resources are read as this version's schemas have them. Members that those do not name are ignored in a resource,
//! and stay readable in [`Answered::body`]; within money, deal terms and public terms they make the answer unreadable,
//! since what they add to an agreement could not be known.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    protocol::{
        approval::ApprovalStatus,
        decision::Decision,
        event::{EventName, Funds, RejectReason},
        money::Money,
        offer::{By, DealTerms, OfferState},
        operation::Verb,
        terms::PublicTerms,
        time::Timestamp,
    },
    wire::jwk::Thumbprint,
};

/// A successful answer: what came of the operation, and the answer itself.
///
/// Whether the gateway carried the request out or repeated a stored answer shows nowhere in it; it is the same either
/// way.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answered<T> {
    /// What came of it.
    pub value: T,
    /// What was decided: `auto` or `ask`. Reads have no decision.
    pub decision: Option<Decision>,
    /// 200, 201 or 202.
    pub status: StatusCode,
    /// The headers as they came.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
    /// How often the request was sent.
    pub attempts: u32,
}

/// What came of an operation that the seller may have to approve.
#[derive(Clone, Debug, PartialEq)]
pub enum Acted<T> {
    /// `auto`: it is done, and this is the resource.
    Auto(T),
    /// `ask`: the seller is asked; see `Agent::wait_for_approval`.
    Ask(ApprovalRequest),
}

impl<T> Acted<T> {
    /// The resource, where it is done.
    pub fn auto(self) -> Option<T> {
        match self {
            Acted::Auto(resource) => Some(resource),
            Acted::Ask(_) => None,
        }
    }

    /// The request for the seller's approval, where there is one.
    pub fn ask(self) -> Option<ApprovalRequest> {
        match self {
            Acted::Auto(_) => None,
            Acted::Ask(request) => Some(request),
        }
    }
}

/// What waits for the seller (schema `approval-request`).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct ApprovalRequest {
    /// What to poll.
    pub approval_id: String,
    /// What was asked for.
    pub action: Verb,
    /// What the seller approves, word for word.
    pub authorization_details: Vec<Value>,
    /// What the page shows beside it.
    pub display: Value,
    /// Where the seller approves. Not for agents: the page opens to the seller's browser alone.
    pub hosted_url: String,
    /// When silence becomes a decline.
    pub expires_at: Timestamp,
    /// What the passkey signs; for listings only once the seller has filled in the terms.
    pub challenge: Option<String>,
}

/// An approval as the agent that asked reads it (schema `approval`).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Approval {
    /// Its id.
    pub approval_id: String,
    /// What was asked for.
    pub action: Verb,
    /// Whether the seller has answered, and how.
    pub status: ApprovalStatus,
    /// When silence becomes a decline.
    pub expires_at: Timestamp,
    /// What was decided when the action was carried out: an approved one may still be refused.
    pub decision: Option<Decision>,
    /// What was carried out.
    pub result: Option<Resource>,
    /// Why it was not, in the form of a refusal's body.
    pub error: Option<Value>,
}

/// What an approved action has come to; which one is told by its verb.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Resource {
    /// Of `listing.create` and `listing.set_terms`.
    Terms(ConfirmedTerms),
    /// Of `listing.reprice`.
    Listing(Listing),
    /// Of `listing.answer_buyer`.
    Question(Question),
    /// Of `offer.counter` and `offer.accept`.
    Offer(Offer),
    /// Of `deal.commit_to_ship`.
    Deal(Deal),
}

impl Resource {
    fn read(action: Verb, value: Value) -> Result<Self, serde_json::Error> {
        fn of<T: DeserializeOwned>(
            make: fn(T) -> Resource,
            value: Value,
        ) -> Result<Resource, serde_json::Error> {
            serde_json::from_value(value).map(make)
        }
        match action {
            Verb::ListingCreate | Verb::ListingSetTerms => of(Resource::Terms, value),
            Verb::ListingReprice => of(Resource::Listing, value),
            Verb::ListingAnswerBuyer => of(Resource::Question, value),
            Verb::OfferCreate | Verb::OfferCounter | Verb::OfferAccept => {
                of(Resource::Offer, value)
            }
            Verb::DealCommitToShip | Verb::DealSignContract => of(Resource::Deal, value),
            Verb::AccountUpdate => Err(serde::de::Error::custom("this verb has no result")),
        }
    }

    /// The offer, where it is one.
    pub fn offer(self) -> Option<Offer> {
        match self {
            Resource::Offer(offer) => Some(offer),
            _ => None,
        }
    }

    /// The confirmed terms, where it is these.
    pub fn terms(self) -> Option<ConfirmedTerms> {
        match self {
            Resource::Terms(terms) => Some(terms),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Approval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Read {
            approval_id: String,
            action: Verb,
            status: ApprovalStatus,
            expires_at: Timestamp,
            decision: Option<Decision>,
            result: Option<Value>,
            error: Option<Value>,
        }
        let read = Read::deserialize(deserializer)?;
        let result = read.result.map(|value| Resource::read(read.action, value));
        Ok(Self {
            approval_id: read.approval_id,
            action: read.action,
            status: read.status,
            expires_at: read.expires_at,
            decision: read.decision,
            result: result.transpose().map_err(serde::de::Error::custom)?,
            error: read.error,
        })
    }
}

/// That the seller has confirmed a listing's terms: never their values (binding 4.2).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ConfirmedTerms {
    /// Whose terms.
    pub listing_id: String,
    /// Under which term set.
    pub term_set: String,
    /// The commitment over all of them, the private one included.
    pub terms_commitment: String,
}

/// A listing (schema `listing`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Listing {
    /// Its id.
    pub listing_id: String,
    /// Whether it is on sale.
    pub state: ListingState,
    /// One line.
    pub title: String,
    /// More about the goods.
    pub description: Option<String>,
    /// The marketplace's category.
    pub category: Option<String>,
    /// The asking price.
    pub list_price: Money,
    /// The term set of its terms.
    pub term_set: String,
    /// What anyone may read of its terms; none before the seller has confirmed them.
    pub public_terms: Option<PublicTerms>,
    /// The commitment over all terms.
    pub terms_commitment: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Where a listing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListingState {
    /// Not on sale yet.
    Draft,
    /// On sale.
    Active,
    /// An offer was accepted, and its checkout not redeemed yet.
    Reserved,
    /// There is a deal.
    Sold,
    /// Taken off by the seller.
    Withdrawn,
}

/// A question on a listing (schema `question`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Question {
    /// Its id.
    pub question_id: String,
    /// On what.
    pub listing_id: String,
    /// The buyer's words.
    pub text: String,
    /// When it was asked.
    pub created_at: Timestamp,
    /// The seller's words, once there are some.
    pub answer: Option<String>,
    /// When it was answered.
    pub answered_at: Option<Timestamp>,
}

/// A page of questions, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct QuestionsPage {
    /// At most 100.
    pub questions: Vec<Question>,
    /// The `after` of the page that follows; none on the last one.
    pub next: Option<String>,
}

/// An offer or a counter (schema `offer`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Offer {
    /// Its id.
    pub offer_id: String,
    /// The same for all that passes between this buyer's agent and this listing.
    pub negotiation_id: String,
    /// On what.
    pub listing_id: String,
    /// Whose it is.
    pub by: By,
    /// For what.
    pub deal_terms: DealTerms,
    /// Where it stands.
    pub state: OfferState,
    /// The offer that it answers or replaces.
    pub supersedes: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
    /// Once accepted, for the buyer: what to redeem. A buyer who does not sign has none (binding 5.3).
    pub checkout: Option<String>,
    /// Once redeemed.
    pub deal_id: Option<String>,
}

/// A page of offers, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct OffersPage {
    /// At most 100.
    pub offers: Vec<Offer>,
    /// The `after` of the page that follows; none on the last one.
    pub next: Option<String>,
}

/// A deal (schema `deal`). Each point in time is when the event was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs)] // the names of the events say it
pub struct Deal {
    /// Its id.
    pub deal_id: String,
    /// The accepted offer.
    pub offer_id: String,
    /// Its negotiation.
    pub negotiation_id: String,
    /// What is sold.
    pub listing_id: String,
    /// The hash of the listing as it was then.
    pub listing_hash: String,
    /// For what.
    pub deal_terms: DealTerms,
    /// The commitment over the listing's terms as they were then.
    pub terms_commitment: Option<String>,
    /// The key that redeemed the checkout.
    pub buyer_jkt: Thumbprint,
    /// When it was redeemed.
    pub created_at: Timestamp,
    /// When the seller committed to ship.
    pub committed_to_ship_at: Option<Timestamp>,
    /// Where the money is.
    pub status: Funds,
    pub funds_held_at: Option<Timestamp>,
    pub shipped_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
    pub returned_to_sender_at: Option<Timestamp>,
    pub accepted_at: Option<Timestamp>,
    pub rejected_at: Option<Timestamp>,
    /// With `rejected_at`.
    pub rejected_reason: Option<RejectReason>,
    pub returned_at: Option<Timestamp>,
    pub released_at: Option<Timestamp>,
    pub refunded_at: Option<Timestamp>,
}

/// An event that was recorded (schema `deal-event-recorded`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// In which deal.
    pub deal_id: String,
    /// The writer's id of it.
    pub event_id: String,
    /// What happened.
    pub event: EventName,
    /// The point in time that the money rules go by.
    pub recorded_at: Timestamp,
    /// Whether it changes where the deal stands.
    pub counts: bool,
}

/// A page of a deal's record (schema `deal-events`), not verified; see `Agent::verified_record`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct EventsPage {
    /// Whose record.
    pub deal_id: String,
    /// At most 100, in the order of the chain.
    pub entries: Vec<Value>,
    /// The signed head of the chain as of this answer.
    pub head: Option<Value>,
    /// The `from` of the page that follows; none on the last one.
    pub next: Option<u64>,
}

/// A resource, done.
pub(super) fn plain<T: DeserializeOwned>(
    status: StatusCode,
    _: Option<&Decision>,
    body: Value,
) -> Result<T, &'static str> {
    match status {
        StatusCode::OK | StatusCode::CREATED => resource(body),
        _ => Err("its status is none of this operation"),
    }
}

/// A resource, or a request for the seller's approval.
pub(super) fn acted<T: DeserializeOwned>(
    status: StatusCode,
    decision: Option<&Decision>,
    mut body: Value,
) -> Result<Acted<T>, &'static str> {
    match (status, decision) {
        (StatusCode::ACCEPTED, Some(Decision::Ask { approval_id, .. })) => {
            let request = body.get_mut("approval_request");
            let request = request.ok_or("there is no approval request in it")?;
            let request: ApprovalRequest = resource(request.take())?;
            match request.approval_id == *approval_id {
                true => Ok(Acted::Ask(request)),
                false => Err("its decision and its body name different approvals"),
            }
        }
        (StatusCode::ACCEPTED, _) => Err("its status says ask, and its decision does not"),
        (_, Some(Decision::Ask { .. })) => Err("its decision says ask, and its status does not"),
        _ => plain(status, decision, body).map(Acted::Auto),
    }
}

fn resource<T: DeserializeOwned>(body: Value) -> Result<T, &'static str> {
    serde_json::from_value(body).map_err(|_| "its body is not of this operation's schema")
}
