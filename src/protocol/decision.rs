//! Auto, ask or forbid: the check order of binding 6, as a pure function (R7).
//!
//! What [`decide`] looks at, in this order: the grant and its scope → the subject and who the caller is to it → the
//! listing → buyer requirements → the budget → the deal terms → the floor → the tier. Authentication, version and
//! the grant's own checks come before it; body and idempotency stand between the grant and the subject.

use std::{fmt, str::FromStr};

use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize, Serializer};

use super::{
    approval::{Approval, Draft},
    caller::{Caller, Role},
    deal::{Checkout, Deal},
    event::{self, SignedEvent, Writer},
    grant::Grant,
    listing::{Listing, ListingState},
    money::Money,
    offer::{By, DealTerms, Offer, OfferState},
    operation::{FloorRule, Op, Operation, Side, TierRule, Verb},
    policy::{Policy, Tier},
    question::Question,
    refusal::{Reason, Refusal},
    terms::{BuyerRequirements, PrivateTerms},
    time::Timestamp,
};

/// `RCTP-Decision`, an RFC 9651 Item.
pub const HEADER: HeaderName = HeaderName::from_static("rctp-decision");

/// A decision as it is stated: in the header, over MCP, and in the record (schema `decision`, R14).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// Carried out.
    Auto,
    /// Parked until the seller answers.
    Ask {
        /// The approval to poll.
        approval_id: String,
        /// Seconds until silence is a decline.
        expires_in: u64,
        /// Always `deny` (INV-2).
        on_timeout: OnTimeout,
    },
    /// Refused.
    Forbid {
        /// The verb; left out on rows without one.
        #[serde(default)]
        action: Option<Verb>,
        /// Why.
        reason: Reason,
        /// Seconds until a retry can succeed.
        #[serde(default)]
        retry_after: Option<u64>,
    },
}

/// The members in the order of RFC 8785, which the record relies on.
impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize, Default)]
        struct Members<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            action: Option<Verb>,
            #[serde(skip_serializing_if = "Option::is_none")]
            approval_id: Option<&'a str>,
            decision: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            expires_in: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            on_timeout: Option<OnTimeout>,
            #[serde(skip_serializing_if = "Option::is_none")]
            reason: Option<Reason>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_after: Option<u64>,
        }
        let mut members = Members {
            decision: self.outcome(),
            ..Members::default()
        };
        match self {
            Decision::Auto => {}
            Decision::Ask {
                approval_id,
                expires_in,
                on_timeout,
            } => {
                members.approval_id = Some(approval_id);
                members.expires_in = Some(*expires_in);
                members.on_timeout = Some(*on_timeout);
            }
            Decision::Forbid {
                action,
                reason,
                retry_after,
            } => {
                members.action = *action;
                members.reason = Some(*reason);
                members.retry_after = *retry_after;
            }
        }
        members.serialize(serializer)
    }
}

/// What silence means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// A decline.
    Deny,
}

impl Decision {
    /// The first word: `auto`, `ask` or `forbid`.
    pub fn outcome(&self) -> &'static str {
        match self {
            Decision::Auto => "auto",
            Decision::Ask { .. } => "ask",
            Decision::Forbid { .. } => "forbid",
        }
    }

    /// The value of [`HEADER`]. A verb is a String because the binding writes it so; reasons are Tokens.
    pub fn to_header(&self) -> HeaderValue {
        let text = match self {
            Decision::Auto => return HeaderValue::from_static("auto"),
            Decision::Ask {
                approval_id,
                expires_in,
                ..
            } => {
                format!("ask;approval_id=\"{approval_id}\";expires_in={expires_in};on_timeout=deny")
            }
            Decision::Forbid {
                action,
                reason,
                retry_after,
            } => {
                let mut text = String::from("forbid");
                if let Some(action) = action {
                    text.push_str(&format!(";action=\"{action}\""));
                }
                text.push_str(&format!(";reason={reason}"));
                if let Some(seconds) = retry_after {
                    text.push_str(&format!(";retry_after={seconds}"));
                }
                text
            }
        };
        HeaderValue::from_str(&text).expect("ids, verbs and reasons are visible ASCII")
    }
}

/// What [`decide`] concludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Carry it out.
    Auto,
    /// Park it; silence is a decline at `expires_at`.
    Ask {
        /// When the approval ends.
        expires_at: Timestamp,
    },
    /// Refuse it. A refusal for [`Reason::BelowFloor`] counts against the budget.
    Refuse(Refusal),
}

/// A body that passed its schema, as the operation means it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Requested {
    /// Nothing to decide on.
    #[default]
    Nothing,
    /// A new listing.
    Listing(NewListing),
    /// A buyer's offer, or a seller's counter.
    Offer(NewOffer),
    /// A new price.
    Price(Money),
    /// A checkout that carries this gateway's signature.
    Checkout(Box<Checkout>),
    /// A checkout that does not verify.
    ForgedCheckout,
    /// A deal event that carries the signature of the request's own key.
    Event(Box<SignedEvent>),
    /// A deal event that does not verify.
    ForgedEvent,
}

/// `listing-create-request`. `proposed_terms` is dropped before anything is stored (binding 4.2).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NewListing {
    /// What is for sale.
    pub title: String,
    /// More about it.
    #[serde(default)]
    pub description: Option<String>,
    /// The marketplace's category.
    #[serde(default)]
    pub category: Option<String>,
    /// The asking price.
    pub list_price: Money,
    /// The term set to confirm.
    pub term_set: String,
}

/// `offer-create-request` and `offer-counter-request`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NewOffer {
    /// The listing; a counter's is its offer's.
    #[serde(default)]
    pub listing_id: Option<String>,
    /// What is offered.
    pub deal_terms: DealTerms,
    /// The counter that it answers, or the own offer that it replaces.
    #[serde(default)]
    pub supersedes: Option<String>,
    /// When it is to end.
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
}

/// Everything that was read to decide. It holds the floor, so it has no `Debug`.
#[derive(Clone, Default)]
pub struct Facts {
    /// The body.
    pub requested: Requested,
    /// The listing concerned.
    pub listing: Option<Listing>,
    /// What the seller confirmed in private.
    pub private: Option<PrivateTerms>,
    /// The offer that the path or the checkout names.
    pub offer: Option<Offer>,
    /// The offer that the body supersedes.
    pub supersedes: Option<Offer>,
    /// The negotiation between this buyer agent and the listing, if it has begun.
    pub negotiation_id: Option<String>,
    /// The deal that the path names.
    pub deal: Option<Deal>,
    /// The question that the body names.
    pub question: Option<Question>,
    /// The approval that the path names.
    pub approval: Option<Approval>,
    /// Below-floor answers in the window, oldest first: per agent, or per seller (R18).
    pub own_count: Vec<Timestamp>,
    /// The same per operator and listing.
    pub operator_count: Vec<Timestamp>,
    /// Whether the seller has approved exactly this action: the tier then counts as satisfied (R25).
    pub approved: bool,
    /// The terms that the seller approved with it (binding 4.2).
    pub draft: Option<Draft>,
}

/// Decides. Total over its arguments: no I/O, no clock, no randomness.
pub fn decide(
    row: &Operation,
    caller: &Caller,
    grant: Option<&Grant>,
    facts: &Facts,
    policy: &Policy,
    now: Timestamp,
) -> Verdict {
    match checks(row, caller, grant, facts, policy, now) {
        Ok(verdict) => verdict,
        Err(refusal) => Verdict::Refuse(refusal.action(row.verb)),
    }
}

fn checks(
    row: &Operation,
    caller: &Caller,
    grant: Option<&Grant>,
    facts: &Facts,
    policy: &Policy,
    now: Timestamp,
) -> Result<Verdict, Refusal> {
    let granted = scope(row, grant, policy)?;
    let acting = subject(row, caller, grant, facts)?;
    let tier = match acting {
        Acting::Seller => granted,
        // A party row that its buyer calls has no tier.
        Acting::Buyer | Acting::Other => None,
    };
    if acting == Acting::Seller {
        owns_listing(row, grant, facts)?;
    }
    let listing = facts.listing.as_ref();
    listing_state(row, facts, now)?;
    if let (Op::CreateOffer, Some(listing)) = (row.op, listing) {
        buyer_requirements(caller, listing)?;
    }
    if row.floor != FloorRule::None {
        budget(acting, facts, policy, now)?;
    }
    deal_terms(row, caller, grant, facts, policy, now)?;
    confirmed_terms(facts, policy)?;
    floor(row, facts)?;
    match tier {
        Some(Tier::Ask) if !facts.approved => Ok(Verdict::Ask {
            expires_at: ask_expires_at(facts, policy, now),
        }),
        Some(Tier::Forbid) => Err(Refusal::forbid(
            Reason::ActionForbidden,
            "the seller does not let agents do this",
        )),
        Some(Tier::Ask | Tier::Auto) | None => Ok(Verdict::Auto),
    }
}

/// What the caller is to the subject.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Acting {
    Seller,
    Buyer,
    Other,
}

/// Who the caller is to what the path names. Strangers learn nothing (R5).
fn subject(
    row: &Operation,
    caller: &Caller,
    grant: Option<&Grant>,
    facts: &Facts,
) -> Result<Acting, Refusal> {
    let present = |there: bool| {
        if there {
            Ok(())
        } else {
            Err(Refusal::not_found())
        }
    };
    match row.op {
        Op::GetOffer | Op::CounterOffer | Op::AcceptOffer | Op::DeclineOffer => {
            let offer = facts.offer.as_ref().ok_or_else(Refusal::not_found)?;
            let by = party(caller, grant, offer).ok_or_else(Refusal::not_found)?;
            match (by, row.op) {
                (By::Buyer, Op::AcceptOffer) => Err(Refusal::forbid(
                    Reason::ActionForbidden,
                    "a buyer does not accept; answer a counter with POST /offers and supersedes",
                )),
                (By::Buyer, Op::CounterOffer) => Err(Refusal::invalid(
                    "a buyer does not counter; answer with POST /offers and supersedes",
                )),
                (By::Buyer, _) => Ok(Acting::Buyer),
                (By::Seller, _) => Ok(Acting::Seller),
            }
        }
        Op::GetDeal | Op::GetDealEvents | Op::PostDealEvent => {
            let deal = facts.deal.as_ref().ok_or_else(Refusal::not_found)?;
            if row.op == Op::PostDealEvent && caller.key.is_none() {
                return Err(Refusal::forbid(
                    Reason::SignatureInvalid,
                    "a deal event is always posted with a signed request",
                ));
            }
            let role = |roles: &[Role]| roles.iter().any(|r| caller.roles.contains(r));
            if grant.is_some_and(|g| g.sub == deal.seller) {
                return Ok(Acting::Seller);
            }
            if caller.key.as_ref() == Some(&deal.buyer_jkt) {
                return Ok(Acting::Buyer);
            }
            let may = match row.op {
                Op::GetDeal => false,
                Op::GetDealEvents => role(&READ_THE_RECORD),
                _ => !caller.roles.is_empty(),
            };
            present(may).map(|()| Acting::Other)
        }
        Op::CommitToShip => {
            let deal = facts.deal.as_ref().ok_or_else(Refusal::not_found)?;
            present(grant.is_some_and(|g| g.sub == deal.seller)).map(|()| Acting::Seller)
        }
        // R4: the seller's side, so the grant too must be that of the seller who was asked.
        Op::GetApproval => {
            let theirs = facts.approval.as_ref().is_some_and(|a| {
                a.asked_by.operator == caller.operator && grant.is_some_and(|g| g.sub == a.seller)
            });
            present(theirs).map(|()| Acting::Other)
        }
        Op::SignContract | Op::UpdateAccount | Op::CreateListing => Ok(Acting::Seller),
        Op::CreateDeal => Ok(Acting::Buyer),
        Op::GetListing => present(listed(facts, grant)).map(|()| Acting::Other),
        // Each buyer agent reads its own questions.
        Op::ListQuestions => present(listed(facts, grant)).map(|()| match grant {
            Some(_) => Acting::Seller,
            None => Acting::Buyer,
        }),
        Op::AskQuestion => present(listed(facts, grant)).map(|()| Acting::Buyer),
        Op::AnswerBuyer => {
            let listing = facts.listing.as_ref().ok_or_else(Refusal::not_found)?;
            // Whose listing it is comes first, so that no other seller learns of its questions.
            let theirs = grant.is_some_and(|g| g.sub == listing.seller);
            let question = facts.question.as_ref();
            let there = question.is_some_and(|q| q.listing_id == listing.listing_id);
            present(!theirs || there).map(|()| Acting::Seller)
        }
        Op::CreateOffer => present(facts.listing.is_some()).map(|()| Acting::Buyer),
        Op::SetListingTerms | Op::RepriceListing | Op::ListOffers => {
            present(facts.listing.is_some()).map(|()| Acting::Seller)
        }
        Op::RespondApproval => Err(Refusal::not_found()),
    }
}

/// Whether the caller may read the listing: a draft is its seller's alone.
fn listed(facts: &Facts, grant: Option<&Grant>) -> bool {
    facts.listing.as_ref().is_some_and(|listing| {
        listing.state != ListingState::Draft || grant.is_some_and(|g| g.sub == listing.seller)
    })
}

/// Which party of the offer calls; a seller's grant for its seller first.
pub fn party(caller: &Caller, grant: Option<&Grant>, offer: &Offer) -> Option<By> {
    if grant.is_some_and(|g| g.sub == offer.seller) {
        return Some(By::Seller);
    }
    (caller.agent() == offer.buyer).then_some(By::Buyer)
}

/// Whether the verb is offered and granted, and the tier that holds (R15).
fn scope(row: &Operation, grant: Option<&Grant>, policy: &Policy) -> Result<Option<Tier>, Refusal> {
    let forbidden = |message| Refusal::forbid(Reason::ActionForbidden, message);
    let Some(grant) = grant else {
        return match row.side {
            Side::Seller | Side::Asker => Err(no_grant()),
            // Whether it takes a grant depends on who the caller is to the subject.
            _ => Ok(None),
        };
    };
    let scope = match row.tier {
        TierRule::None => return Ok(None),
        TierRule::Forbid => return Err(forbidden("no agent may do this")),
        TierRule::Ask | TierRule::Grant => row.verb.and_then(Verb::scope),
    };
    let Some(scope) = scope.filter(|scope| grant.has_scope(scope)) else {
        return Err(forbidden(
            "the seller's grant does not include this action's scope",
        ));
    };
    let tier = policy
        .tiers
        .effective(scope, grant.tiers.get(scope).copied())
        .ok_or_else(|| forbidden("this marketplace does not offer this action to agents"))?;
    Ok(Some(match row.tier {
        TierRule::Ask => tier.max(Tier::Ask),
        _ => tier,
    }))
}

fn no_grant() -> Refusal {
    Refusal::forbid(
        Reason::GrantInvalid,
        "this is the seller's to do; send the access token of the seller's grant as Authorization: Bearer",
    )
}

/// Listings are public, so another seller's is 403 and not 404 (R5).
fn owns_listing(row: &Operation, grant: Option<&Grant>, facts: &Facts) -> Result<(), Refusal> {
    let (Some(listing), Some(grant)) = (&facts.listing, grant) else {
        return Ok(());
    };
    if listing.seller != grant.sub {
        return Err(Refusal::forbid(
            Reason::NotInScope,
            "this listing is not that of the seller who gave the grant",
        )
        .listing(&*listing.listing_id));
    }
    // R17: without approved terms there is no seller agent, except to set them.
    let acts = row.verb.is_some() && row.op != Op::SetListingTerms;
    if acts && listing.terms.is_none() {
        return Err(Refusal::forbid(
            Reason::NotInScope,
            "this listing has no approved terms, so no agent acts on it; begin with listing.set_terms",
        )
        .listing(&*listing.listing_id));
    }
    Ok(())
}

/// The states of listing and offer (R16; binding 5.3).
fn listing_state(row: &Operation, facts: &Facts, now: Timestamp) -> Result<(), Refusal> {
    match row.op {
        Op::CreateOffer => on_sale(facts, now),
        Op::AcceptOffer | Op::CounterOffer => {
            let (Some(offer), Some(listing)) = (&facts.offer, &facts.listing) else {
                return Err(Refusal::not_found());
            };
            if offer.by == By::Seller {
                return Err(Refusal::forbid(
                    Reason::ActionForbidden,
                    "this is the seller's own counter; only a buyer's offer can be accepted or countered",
                )
                .offer(&*offer.offer_id));
            }
            let state = listing.state_at(now);
            let held_by_this = matches!(
                &state,
                ListingState::Reserved { offer_id, .. } | ListingState::Sold { offer_id, .. }
                    if *offer_id == offer.offer_id
            );
            if held_by_this {
                return Err(replayed(offer));
            }
            if offer.state_at(now) == OfferState::Expired {
                return Err(expired(offer));
            }
            on_sale(facts, now)?;
            // A parked action finds its own offer awaiting approval.
            waiting(offer, facts.approved, now)?;
            match state {
                ListingState::Reserved { .. } if row.op == Op::AcceptOffer => Err(Refusal::forbid(
                    Reason::ListingReserved,
                    "the listing is reserved for another accepted offer until its checkout ends",
                )
                .listing(&*listing.listing_id)),
                _ => Ok(()),
            }
        }
        Op::DeclineOffer => {
            let offer = facts.offer.as_ref().ok_or_else(Refusal::not_found)?;
            match offer.state_at(now) {
                OfferState::Open | OfferState::Countered | OfferState::AwaitingApproval => Ok(()),
                OfferState::Expired => Err(expired(offer)),
                OfferState::Superseded | OfferState::Accepted | OfferState::Declined => {
                    Err(replayed(offer))
                }
            }
        }
        Op::AskQuestion => {
            let listing = facts.listing.as_ref().ok_or_else(Refusal::not_found)?;
            match listing.state_at(now) {
                ListingState::Active | ListingState::Reserved { .. } => Ok(()),
                ListingState::Draft | ListingState::Sold { .. } | ListingState::Withdrawn => {
                    Err(Refusal::forbid(
                        Reason::NotInScope,
                        "the listing is not for sale, so there is nothing to ask about it",
                    )
                    .listing(&*listing.listing_id))
                }
            }
        }
        Op::AnswerBuyer => match facts.question.as_ref().and_then(|q| q.answer.as_ref()) {
            Some(_) => Err(Refusal::forbid(
                Reason::OfferReplayed,
                "this question was already answered",
            )),
            None => Ok(()),
        },
        Op::CommitToShip => match facts.deal.as_ref().and_then(|d| d.committed_to_ship_at) {
            Some(_) => Err(Refusal::forbid(
                Reason::OfferReplayed,
                "the seller has already committed to ship this deal",
            )),
            None => Ok(()),
        },
        Op::SetListingTerms | Op::RepriceListing => {
            let listing = facts.listing.as_ref().ok_or_else(Refusal::not_found)?;
            match listing.state_at(now) {
                ListingState::Sold { .. } | ListingState::Withdrawn => Err(Refusal::forbid(
                    Reason::NotInScope,
                    "the listing is sold or withdrawn; there are no future offers to change it for",
                )
                .listing(&*listing.listing_id)),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn replayed(offer: &Offer) -> Refusal {
    Refusal::forbid(
        Reason::OfferReplayed,
        "this offer was already answered, replaced, or waits for the seller's approval",
    )
    .offer(&*offer.offer_id)
}

fn expired(offer: &Offer) -> Refusal {
    Refusal::forbid(Reason::OfferExpired, "this offer's time has ended").offer(&*offer.offer_id)
}

fn waiting(offer: &Offer, approved: bool, now: Timestamp) -> Result<(), Refusal> {
    match offer.state_at(now) {
        OfferState::Open => Ok(()),
        OfferState::AwaitingApproval if approved => Ok(()),
        OfferState::Expired => Err(expired(offer)),
        OfferState::AwaitingApproval
        | OfferState::Countered
        | OfferState::Superseded
        | OfferState::Accepted
        | OfferState::Declined => Err(replayed(offer)),
    }
}

/// A listing takes offers while it is active or reserved, within its availability.
fn on_sale(facts: &Facts, now: Timestamp) -> Result<(), Refusal> {
    let listing = facts.listing.as_ref().ok_or_else(Refusal::not_found)?;
    let out =
        |message| Err(Refusal::forbid(Reason::NotInScope, message).listing(&*listing.listing_id));
    match listing.state_at(now) {
        ListingState::Active | ListingState::Reserved { .. } => {}
        ListingState::Draft => return out("the listing is not for sale yet"),
        ListingState::Sold { .. } => return out("the listing is sold"),
        ListingState::Withdrawn => return out("the listing was withdrawn"),
    }
    let terms = listing.terms.as_ref().map(|t| &t.public);
    if terms
        .and_then(|t| t.available_until)
        .is_some_and(|end| end <= now)
    {
        return out("the listing is past its available_until");
    }
    if terms
        .and_then(|t| t.available_from)
        .is_some_and(|from| now < from)
    {
        return out("the listing is not available before its available_from");
    }
    Ok(())
}

fn buyer_requirements(caller: &Caller, listing: &Listing) -> Result<(), Refusal> {
    let Some(required) = listing
        .terms
        .as_ref()
        .and_then(|t| t.public.buyer_requirements.as_ref())
    else {
        return Ok(());
    };
    if meets(required, caller) {
        return Ok(());
    }
    Err(Refusal::forbid(
        Reason::NotInScope,
        "the buyer's operator does not meet the listing's buyer_requirements",
    )
    .listing(&*listing.listing_id))
}

fn meets(required: &BuyerRequirements, caller: &Caller) -> bool {
    let duties = caller.duties.as_deref();
    let jurisdiction = required.jurisdictions.is_empty()
        || duties.is_some_and(|d| required.jurisdictions.contains(&d.jurisdiction));
    let certified = required
        .certifications
        .iter()
        .all(|c| duties.is_some_and(|d| d.certifications.contains(c)));
    let mechanism = required.authenticated_by.is_empty()
        || required.authenticated_by.contains(&caller.mechanism);
    jurisdiction && certified && mechanism
}

/// The budget of below-floor answers (R18). Once a count is exhausted every price is refused, so that the refusal
/// itself says nothing of the floor.
fn budget(acting: Acting, facts: &Facts, policy: &Policy, now: Timestamp) -> Result<(), Refusal> {
    if facts.listing.as_ref().is_none_or(|l| l.terms.is_none()) {
        return Ok(());
    }
    let (own, operator) = match acting {
        Acting::Buyer => (policy.budget.per_agent, policy.budget.per_operator),
        Acting::Seller | Acting::Other => {
            (policy.budget.seller_probes, policy.budget.seller_probes)
        }
    };
    let window = policy.budget.window_seconds();
    let frees = [
        exhausted(&facts.own_count, own, window, now),
        exhausted(&facts.operator_count, operator, window, now),
    ];
    match frees.into_iter().flatten().max() {
        None => Ok(()),
        Some(frees) => Err(Refusal::forbid(
            Reason::OfferBudgetExhausted,
            "too many prices below what the seller takes; wait until the window frees a slot",
        )
        .retry_after(now.until(frees).max(1))),
    }
}

/// When the count falls under its limit again; `None` while it is under it. `count` is oldest first.
pub(crate) fn exhausted(
    count: &[Timestamp],
    limit: u32,
    window: i64,
    now: Timestamp,
) -> Option<Timestamp> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let over = count.len().checked_sub(limit)?;
    Some(
        count
            .get(over)
            .map_or(now.plus(window), |at| at.plus(window)),
    )
}

/// Currency, options, what is superseded, the checkout, the event (R19, R20, R32).
fn deal_terms(
    row: &Operation,
    caller: &Caller,
    grant: Option<&Grant>,
    facts: &Facts,
    policy: &Policy,
    now: Timestamp,
) -> Result<(), Refusal> {
    let invalid = |message| Err(Refusal::forbid(Reason::TermsInvalid, message));
    let in_currency = |price: &Money| match &facts.listing {
        Some(listing) if listing.list_price.currency != price.currency => {
            invalid("the price is not in the listing's currency")
        }
        _ => Ok(()),
    };
    match &facts.requested {
        Requested::Nothing => Ok(()),
        Requested::Price(price) => in_currency(price),
        Requested::Listing(new) if policy.term_sets.get(&new.term_set).is_none() => invalid(
            "this marketplace does not enforce that term_set; see config.term_sets of its profile",
        ),
        Requested::Listing(_) => Ok(()),
        Requested::Offer(new) => {
            options(&new.deal_terms, facts)?;
            in_currency(&new.deal_terms.price)?;
            if new.expires_at.is_some_and(|at| at <= now) {
                return invalid("expires_at is not in the future");
            }
            if row.op == Op::CreateOffer && new.supersedes.is_some() {
                supersedable(caller, facts, now)?;
            }
            Ok(())
        }
        Requested::ForgedCheckout => Err(Refusal::forbid(
            Reason::SignatureInvalid,
            "the checkout does not carry this gateway's signature",
        )),
        Requested::Checkout(checkout) => redeemable(checkout, caller, facts, now),
        Requested::ForgedEvent => Err(Refusal::forbid(
            Reason::SignatureInvalid,
            "an event is a JWS of typ rctp-deal-event+jwt with alg, typ and kid in its header, signed by the key that signs the \
             request",
        )),
        Requested::Event(signed) => {
            let deal = facts.deal.as_ref().ok_or_else(Refusal::not_found)?;
            let writer = writer(caller, grant, deal);
            event::record(&deal.progress, &deal.rules, &signed.event, writer, now).map(drop)
        }
    }
}

/// The roles that read the record of every deal (binding 8.2, 12).
pub(crate) const READ_THE_RECORD: [Role; 2] = [Role::FundsHolder, Role::Carrier];

/// In which capacities the caller may write events of the deal (binding 8.1).
pub(crate) fn writer<'c>(caller: &'c Caller, grant: Option<&Grant>, deal: &Deal) -> Writer<'c> {
    Writer {
        buyer: caller.key.as_ref() == Some(&deal.buyer_jkt),
        seller: grant.is_some_and(|g| g.sub == deal.seller),
        roles: &caller.roles,
        operator: &caller.operator,
    }
}

/// The terms that the seller approved, against the list price as it is now: it may have changed since they were filled in
/// (binding 4.1).
fn confirmed_terms(facts: &Facts, policy: &Policy) -> Result<(), Refusal> {
    let (Some(draft), name_and_price) = (
        &facts.draft,
        match (&facts.requested, &facts.listing) {
            (Requested::Listing(new), _) => Some((&new.term_set, &new.list_price)),
            (_, Some(listing)) => Some((&listing.term_set, &listing.list_price)),
            _ => None,
        },
    ) else {
        return Ok(());
    };
    let (name, price) = name_and_price.ok_or_else(Refusal::not_found)?;
    let set = policy.term_sets.get(name).ok_or_else(|| {
        Refusal::forbid(
            Reason::TermsInvalid,
            "this marketplace no longer enforces the listing's term_set",
        )
    })?;
    match set.confirm(&draft.private.terms(&draft.public), price) {
        Ok(_) => Ok(()),
        // Which term it was would tell the agent something of the floor.
        Err(_) => Err(Refusal::forbid(
            Reason::TermsInvalid,
            "the terms that the seller approved no longer satisfy the term set; ask again",
        )),
    }
}

fn options(terms: &DealTerms, facts: &Facts) -> Result<(), Refusal> {
    // Without approved terms there is nothing to select from (R17).
    let Some(listed) = facts.listing.as_ref().and_then(|l| l.terms.as_ref()) else {
        return Ok(());
    };
    let listed = &listed.public;
    let fulfillment = listed.fulfillment_options.iter().any(|option| {
        option.method_type == terms.fulfillment.method_type
            && option
                .option_ids
                .contains(&terms.fulfillment.selected_option_id)
    });
    if !fulfillment {
        return Err(Refusal::forbid(
            Reason::TermsInvalid,
            "the fulfillment option is not among the listing's fulfillment_options",
        ));
    }
    if !listed
        .payment_terms
        .contains(&terms.payment.selected_term_id)
    {
        return Err(Refusal::forbid(
            Reason::TermsInvalid,
            "the payment term is not among the listing's payment_terms",
        ));
    }
    Ok(())
}

/// Binding 5.2: `supersedes` names an offer of the same negotiation that is open or countered.
fn supersedable(caller: &Caller, facts: &Facts, now: Timestamp) -> Result<(), Refusal> {
    let fits = facts.supersedes.as_ref().is_some_and(|old| {
        old.buyer == caller.agent()
            && facts.negotiation_id.as_deref() == Some(&*old.negotiation_id)
            && matches!(old.state_at(now), OfferState::Open | OfferState::Countered)
    });
    if fits {
        return Ok(());
    }
    Err(Refusal::forbid(
        Reason::TermsInvalid,
        "supersedes must name an offer of this negotiation that is open or countered",
    ))
}

/// Binding 5.3: the key, single use, the time, and that the listing is still held for it.
fn redeemable(
    checkout: &Checkout,
    caller: &Caller,
    facts: &Facts,
    now: Timestamp,
) -> Result<(), Refusal> {
    if caller.key.as_ref() != Some(&checkout.buyer_jkt) {
        return Err(Refusal::forbid(
            Reason::SignatureInvalid,
            "a checkout is redeemed with a request signed by the key that it names (buyer_jkt)",
        ));
    }
    let (Some(offer), Some(listing)) = (&facts.offer, &facts.listing) else {
        return Err(Refusal::not_found());
    };
    let refuse = |reason, message| Err(Refusal::forbid(reason, message).offer(&*checkout.offer_id));
    let redeemed = offer
        .acceptance
        .as_ref()
        .is_some_and(|a| a.deal_id.is_some());
    if redeemed {
        return refuse(Reason::OfferReplayed, "this checkout was already redeemed");
    }
    if checkout.exp <= now.secs() {
        return refuse(Reason::OfferExpired, "this checkout has expired");
    }
    match listing.state_at(now) {
        ListingState::Reserved { offer_id, .. } if offer_id == checkout.offer_id => Ok(()),
        ListingState::Withdrawn => refuse(
            Reason::NotInScope,
            "the seller withdrew the listing on the marketplace",
        ),
        _ => refuse(
            Reason::NotInScope,
            "the listing is no longer held for this checkout",
        ),
    }
}

/// The floor, whatever the tier (V1). The refusal is the same whatever the distance.
fn floor(row: &Operation, facts: &Facts) -> Result<(), Refusal> {
    // Without approved terms there is no floor and no budget (R17), whatever is still kept of terms that came to nothing.
    if facts.listing.as_ref().is_none_or(|l| l.terms.is_none()) {
        return Ok(());
    }
    if row.floor != FloorRule::None && facts.private.is_none() {
        // Not the same as terms without a floor: fail closed.
        return Err(Refusal::unavailable(
            "the listing's private terms are missing; nothing was executed",
        ));
    }
    let Some(floor) = facts.private.as_ref().and_then(|p| p.floor.as_ref()) else {
        return Ok(());
    };
    let price = match (row.floor, &facts.requested) {
        (FloorRule::None, _) => return Ok(()),
        (FloorRule::Offer, _) => facts.offer.as_ref().map(|o| &o.deal_terms.price),
        (FloorRule::Requested, Requested::Offer(new)) => Some(&new.deal_terms.price),
        (FloorRule::Requested, Requested::Price(price)) => Some(price),
        (FloorRule::Requested, _) => None,
    };
    // No price where one is due counts as too low.
    if price.is_some_and(|price| floor.allows(price)) {
        return Ok(());
    }
    let refusal = Refusal::forbid(
        Reason::BelowFloor,
        "the price is below what the seller takes",
    );
    Err(match (&facts.offer, &facts.listing) {
        (Some(offer), _) => refusal.offer(&*offer.offer_id),
        (None, Some(listing)) => refusal.listing(&*listing.listing_id),
        (None, None) => refusal,
    })
}

/// An ask ends with the approval's lifetime, and no later than its offer (R16).
fn ask_expires_at(facts: &Facts, policy: &Policy, now: Timestamp) -> Timestamp {
    let end = now.plus(i64::from(policy.limits.approval_seconds));
    match &facts.offer {
        Some(offer) => end.min(offer.expires_at),
        None => end,
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_header().to_str().unwrap_or_default())
    }
}

/// The header value is not a decision.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an RCTP-Decision: expected auto, ask or forbid with their parameters")]
pub struct NotADecision;

impl FromStr for Decision {
    type Err = NotADecision;

    fn from_str(text: &str) -> Result<Self, NotADecision> {
        use sfv::BareItem;
        let item: sfv::Item = sfv::Parser::new(text)
            .with_version(sfv::Version::Rfc9651)
            .parse()
            .map_err(|_| NotADecision)?;
        let param = |name: &str| {
            item.params
                .iter()
                .find(|(key, _)| key.as_str() == name)
                .map(|(_, value)| value)
        };
        let word = |name: &str| match param(name) {
            Some(BareItem::String(s)) => Some(s.as_str().to_owned()),
            Some(BareItem::Token(t)) => Some(t.as_str().to_owned()),
            _ => None,
        };
        let seconds = |name: &str| match param(name) {
            Some(BareItem::Integer(i)) => u64::try_from(i64::from(*i)).ok(),
            _ => None,
        };
        fn named<T: serde::de::DeserializeOwned>(word: String) -> Result<T, NotADecision> {
            serde_json::from_value(serde_json::Value::String(word)).map_err(|_| NotADecision)
        }
        match &item.bare_item {
            BareItem::Token(t) if t.as_str() == "auto" => Ok(Decision::Auto),
            BareItem::Token(t) if t.as_str() == "ask" => Ok(Decision::Ask {
                approval_id: word("approval_id").ok_or(NotADecision)?,
                expires_in: seconds("expires_in").ok_or(NotADecision)?,
                on_timeout: named(word("on_timeout").ok_or(NotADecision)?)?,
            }),
            BareItem::Token(t) if t.as_str() == "forbid" => Ok(Decision::Forbid {
                action: word("action").map(named).transpose()?,
                reason: named(word("reason").ok_or(NotADecision)?)?,
                retry_after: seconds("retry_after"),
            }),
            _ => Err(NotADecision),
        }
    }
}
