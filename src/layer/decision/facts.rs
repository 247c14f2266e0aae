//! What is read to decide, and the conditions that it puts on the commit.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    layer::{
        approve::{Approved, overtaken},
        arrive::Arrived,
    },
    protocol::{
        approval::{Approval, ApprovalStatus},
        caller::Caller,
        deal::{CHECKOUT_TYP, Checkout, Deal},
        decision::{Facts, NewListing, NewOffer, Requested},
        event::{DealEvent, EVENT_TYP, SignedEvent},
        grant::Grant,
        listing::Listing,
        money::Money,
        offer::{By, Offer},
        operation::{FloorRule, Op, Operation, is_id},
        policy::Policy,
        question::Question,
        record::{Subject, SubjectKind},
        refusal::Refusal,
        terms::PrivateTerms,
        time::Timestamp,
    },
    store::{Doc, Key, Kind, Store, StoreError, Version, WindowCheck, negotiation_key},
    wire::{jwk::PublicKey, jws},
};

/// Everything that was read, as facts and as conditions. It moves from future to future, and the facts are kilobytes.
pub(crate) struct Loaded {
    pub(crate) facts: Box<Facts>,
    /// The version of every document that was looked for; 0 where there is none.
    pub(crate) versions: HashMap<Key, Version>,
    /// The counts that must still hold; a below-floor answer is counted in each.
    pub(crate) windows: Vec<WindowCheck>,
    /// The approval that this action resumes.
    pub(crate) approving: Option<Box<Approval>>,
}

/// Reads the facts of one request.
pub(crate) struct Reader<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) row: &'static Operation,
    pub(crate) arrived: &'a Arrived,
    pub(crate) body: &'a Value,
    pub(crate) caller: &'a Caller,
    pub(crate) grant: Option<&'a Grant>,
    pub(crate) policy: &'a Policy,
    /// The gateway's keys, for checkouts.
    pub(crate) keys: &'a [PublicKey],
    /// The key that signed the request, for deal events.
    pub(crate) signed_by: Option<&'a PublicKey>,
    pub(crate) now: Timestamp,
    pub(crate) approved: Option<&'a Approved>,
}

impl Reader<'_> {
    pub(crate) async fn read(&self) -> Result<Loaded, Refusal> {
        let mut loaded = Loaded {
            facts: Box::new(Facts {
                requested: self.requested()?,
                ..Facts::default()
            }),
            versions: HashMap::new(),
            windows: Vec::new(),
            approving: None,
        };
        self.approving(&mut loaded).await?;
        self.subject(&mut loaded).await?;
        self.same_price(&loaded)?;
        if self.row.floor != FloorRule::None {
            self.counts(&mut loaded).await?;
        }
        Ok(loaded)
    }

    /// The approval that the seller has given; it must still wait, with the terms that they saw.
    async fn approving(&self, loaded: &mut Loaded) -> Result<(), Refusal> {
        let Some(approved) = self.approved else {
            return Ok(());
        };
        let key = Key::new(Kind::Approval, &*approved.approval_id);
        let [doc] = self.load(loaded, [key]).await?;
        let approval = read::<Approval>(doc)?.ok_or_else(Refusal::not_found)?;
        let waits = approval.status_at(self.now) == ApprovalStatus::Pending;
        if !waits || approval.challenge().as_ref() != Some(&approved.challenge) {
            return Err(overtaken());
        }
        loaded.facts.approved = true;
        loaded.facts.draft = approval.draft.clone();
        loaded.approving = Some(Box::new(approval));
        Ok(())
    }

    /// The terms were judged against an asking price: the seller looks at them again where it has changed since.
    fn same_price(&self, loaded: &Loaded) -> Result<(), Refusal> {
        match (&loaded.facts.draft, &loaded.facts.listing) {
            (Some(draft), Some(listing)) if draft.list_price != listing.list_price => {
                Err(overtaken())
            }
            _ => Ok(()),
        }
    }

    /// The body, which satisfies its schema, as the operation means it.
    fn requested(&self) -> Result<Requested, Refusal> {
        fn typed<T: DeserializeOwned>(body: &Value) -> Result<T, Refusal> {
            T::deserialize(body).map_err(|_| {
                Refusal::invalid("the body does not have the form that this operation takes")
            })
        }
        Ok(match self.row.op {
            Op::CreateListing => Requested::Listing(typed::<NewListing>(self.body)?),
            Op::CreateOffer | Op::CounterOffer => Requested::Offer(typed::<NewOffer>(self.body)?),
            Op::RepriceListing => Requested::Price(typed::<Money>(&self.body["price"])?),
            Op::CreateDeal => match self.checkout() {
                Some(checkout) => Requested::Checkout(Box::new(checkout)),
                None => Requested::ForgedCheckout,
            },
            Op::PostDealEvent => match self.event() {
                None => Requested::ForgedEvent,
                Some((jws, payload)) => {
                    let event = DealEvent::read(&payload).map_err(|error| {
                        Refusal::invalid(format!("the event's payload: {error}"))
                    })?;
                    if self.arrived.id() != Some(&*event.deal_id) {
                        return Err(Refusal::invalid(
                            "deal_id of the event is not that of the path",
                        ));
                    }
                    Requested::Event(Box::new(SignedEvent { event, jws }))
                }
            },
            _ => Requested::Nothing,
        })
    }

    /// The claims of the checkout in the body, if it carries the signature of one of our keys.
    fn checkout(&self) -> Option<Checkout> {
        let token = self.body.get("checkout")?.as_str()?;
        let parsed = jws::Compact::parse(token).ok()?;
        let kid = parsed.kid()?;
        let key = self.keys.iter().find(|key| key.kid().as_str() == kid)?;
        let payload = parsed.verify(CHECKOUT_TYP, key).ok()?;
        serde_json::from_slice(payload).ok()
    }

    /// The event in the body and its payload, if it carries the signature of the key that signed the request.
    fn event(&self) -> Option<(String, Vec<u8>)> {
        let token = self.body.get("event")?.as_str()?;
        let parsed = jws::Compact::parse(token).ok()?;
        // The record keeps the whole token for good, and has no place for free text (INV-9).
        if !parsed.has_only(&["alg", "typ", "kid"]) {
            return None;
        }
        let payload = parsed.verify(EVENT_TYP, self.signed_by?).ok()?;
        Some((token.to_owned(), payload.to_vec()))
    }

    async fn subject(&self, loaded: &mut Loaded) -> Result<(), Refusal> {
        let id = self.arrived.id().map(str::to_owned);
        match self.row.op {
            Op::CreateListing | Op::SignContract | Op::UpdateAccount | Op::RespondApproval => {
                Ok(())
            }
            Op::CreateOffer => self.offered(loaded).await,
            Op::ListOffers => {
                let listing_id = Page::of_listing(self.arrived)?.0;
                self.listing(loaded, listing_id, false).await
            }
            Op::GetOffer | Op::CounterOffer | Op::AcceptOffer | Op::DeclineOffer => {
                let Some(id) = id else { return Ok(()) };
                let [offer] = self.load(loaded, [Key::new(Kind::Offer, id)]).await?;
                loaded.facts.offer = read(offer)?;
                match loaded.facts.offer.as_ref().map(|o| o.listing_id.clone()) {
                    Some(listing) => {
                        self.listing(loaded, listing, self.row.floor != FloorRule::None)
                            .await
                    }
                    None => Ok(()),
                }
            }
            Op::CreateDeal => {
                let Requested::Checkout(checkout) = &loaded.facts.requested else {
                    return Ok(());
                };
                let keys = [
                    Key::new(Kind::Offer, &*checkout.offer_id),
                    Key::new(Kind::Listing, &*checkout.listing_id),
                    Key::new(Kind::Nonce, &*checkout.nonce),
                ];
                let [offer, listing, _nonce] = self.load(loaded, keys).await?;
                loaded.facts.offer = read(offer)?;
                loaded.facts.listing = read(listing)?;
                Ok(())
            }
            Op::GetApproval => {
                let Some(id) = id else { return Ok(()) };
                let [doc] = self.load(loaded, [Key::new(Kind::Approval, id)]).await?;
                loaded.facts.approval = read::<Approval>(doc)?;
                Ok(())
            }
            Op::GetDeal | Op::GetDealEvents | Op::PostDealEvent | Op::CommitToShip => {
                let Some(id) = id else { return Ok(()) };
                let [doc] = self.load(loaded, [Key::new(Kind::Deal, id)]).await?;
                loaded.facts.deal = read::<Deal>(doc)?;
                match (self.row.op, &loaded.facts.deal) {
                    // The seller is shown what they promise to send.
                    (Op::CommitToShip, Some(deal)) => {
                        let listing_id = deal.listing_id.clone();
                        self.listing(loaded, listing_id, false).await
                    }
                    _ => Ok(()),
                }
            }
            Op::GetListing
            | Op::SetListingTerms
            | Op::RepriceListing
            | Op::ListQuestions
            | Op::AskQuestion
            | Op::AnswerBuyer => {
                let Some(id) = id else { return Ok(()) };
                // The terms that an approval replaces are a condition like all that is written over.
                let floor = self.row.floor != FloorRule::None || loaded.facts.draft.is_some();
                self.listing(loaded, id, floor).await?;
                if let (Op::AnswerBuyer, Some(id)) =
                    (self.row.op, self.body["question_id"].as_str())
                {
                    let [doc] = self.load(loaded, [Key::new(Kind::Question, id)]).await?;
                    loaded.facts.question = read::<Question>(doc)?;
                }
                Ok(())
            }
        }
    }

    async fn listing(
        &self,
        loaded: &mut Loaded,
        id: String,
        with_floor: bool,
    ) -> Result<(), Refusal> {
        if !with_floor {
            let [listing] = self.load(loaded, [Key::new(Kind::Listing, id)]).await?;
            loaded.facts.listing = read::<Listing>(listing)?;
            return Ok(());
        }
        let keys = [
            Key::new(Kind::Listing, &*id),
            Key::new(Kind::PrivateTerms, id),
        ];
        let [listing, private] = self.load(loaded, keys).await?;
        loaded.facts.listing = read::<Listing>(listing)?;
        loaded.facts.private = private_terms(private)?;
        Ok(())
    }

    /// The listing that is offered on, the negotiation, and what the offer supersedes.
    async fn offered(&self, loaded: &mut Loaded) -> Result<(), Refusal> {
        let Requested::Offer(new) = &loaded.facts.requested else {
            return Ok(());
        };
        let listing_id = new.listing_id.clone().unwrap_or_default();
        let negotiation = negotiation_key(&listing_id, &self.caller.agent());
        let supersedes = new.supersedes.clone();
        let keys = [
            Key::new(Kind::Listing, &*listing_id),
            Key::new(Kind::PrivateTerms, listing_id),
            Key::new(Kind::Negotiation, negotiation),
        ];
        let [listing, private, negotiation] = self.load(loaded, keys).await?;
        loaded.facts.listing = read::<Listing>(listing)?;
        loaded.facts.private = private_terms(private)?;
        loaded.facts.negotiation_id = negotiation
            .map(|doc| String::from_utf8(doc.body.to_vec()))
            .transpose()
            .map_err(|_| unreadable("negotiation"))?;
        if let Some(id) = supersedes {
            let [old] = self.load(loaded, [Key::new(Kind::Offer, id)]).await?;
            loaded.facts.supersedes = read::<Offer>(old)?;
        }
        Ok(())
    }

    /// Below-floor answers so far, of whoever names a price here (R18).
    async fn counts(&self, loaded: &mut Loaded) -> Result<(), Refusal> {
        let Some(listing) = loaded.facts.listing.as_ref().filter(|l| l.terms.is_some()) else {
            return Ok(());
        };
        let operator = &self.caller.operator;
        let id = &listing.listing_id;
        let names = match self.grant {
            Some(grant) if grant.sub == listing.seller => vec![
                format!("seller|{id}|{}", grant.sub),
                format!("seller-operator|{id}|{operator}"),
            ],
            _ => vec![
                format!("buyer|{id}|{}", self.caller.agent()),
                format!("buyer-operator|{id}|{operator}"),
            ],
        };
        let since = self.now.plus(-self.policy.budget.window_seconds());
        let mut counts = self.store.windows(names.clone(), since).await?.into_iter();
        loaded.facts.own_count = counts.next().unwrap_or_default();
        loaded.facts.operator_count = counts.next().unwrap_or_default();
        let expected = [
            loaded.facts.own_count.len(),
            loaded.facts.operator_count.len(),
        ];
        loaded.windows = names
            .into_iter()
            .zip(expected)
            .map(|(window, expected)| WindowCheck {
                window,
                since,
                expected,
            })
            .collect();
        Ok(())
    }

    async fn load<const N: usize>(
        &self,
        loaded: &mut Loaded,
        keys: [Key; N],
    ) -> Result<[Option<Doc>; N], Refusal> {
        let docs = self.store.load(keys.to_vec()).await?;
        let docs: [Option<Doc>; N] = docs
            .try_into()
            .map_err(|_| StoreError("load answered another number of documents".into()))?;
        for (key, doc) in keys.into_iter().zip(&docs) {
            let version = doc.as_ref().map_or(0, |doc| doc.version);
            loaded.versions.insert(key, version);
        }
        Ok(docs)
    }
}

/// The chain that decisions on this request enter (R30). `None` where the subject is not there yet: the operation
/// that makes it says.
pub(crate) fn subject(row: &Operation, facts: &Facts, gateway: &Subject) -> Option<Subject> {
    let negotiation = |id: &str| Subject::new(SubjectKind::Negotiation, id);
    let by_offer = || {
        facts
            .offer
            .as_ref()
            .map(|offer| negotiation(&offer.negotiation_id))
    };
    match row.op {
        Op::CreateOffer => facts.negotiation_id.as_deref().map(negotiation),
        Op::GetOffer | Op::CounterOffer | Op::AcceptOffer | Op::DeclineOffer => by_offer(),
        // A refused redemption belongs to the negotiation; the deal does not exist.
        Op::CreateDeal => Some(by_offer().unwrap_or_else(|| gateway.clone())),
        Op::GetListing
        | Op::SetListingTerms
        | Op::RepriceListing
        | Op::ListQuestions
        | Op::AskQuestion
        | Op::AnswerBuyer
        | Op::ListOffers => facts
            .listing
            .as_ref()
            .map(|l| Subject::new(SubjectKind::Listing, &*l.listing_id)),
        Op::GetDeal | Op::GetDealEvents | Op::PostDealEvent | Op::CommitToShip => facts
            .deal
            .as_ref()
            .map(|d| Subject::new(SubjectKind::Deal, &*d.deal_id)),
        Op::CreateListing
        | Op::GetApproval
        | Op::RespondApproval
        | Op::SignContract
        | Op::UpdateAccount => Some(gateway.clone()),
    }
}

/// Whether the caller is known to the subject, so that its refusals may enter the subject's chain (R30).
pub(crate) fn belongs(caller: &Caller, grant: Option<&Grant>, facts: &Facts) -> bool {
    let seller = |sub: &str| grant.is_some_and(|g| g.sub == sub);
    match (&facts.offer, &facts.deal, &facts.listing) {
        (Some(offer), _, _) => crate::protocol::decision::party(caller, grant, offer)
            .is_some_and(|by| by == By::Seller || by == By::Buyer),
        (None, Some(deal), _) => {
            seller(&deal.seller)
                || caller.key.as_ref() == Some(&deal.buyer_jkt)
                || !caller.roles.is_empty()
        }
        // A buyer's first offer opens its own negotiation; a grant on another seller's listing does not write there.
        (None, None, Some(listing)) => grant.is_none() || seller(&listing.seller),
        (None, None, None) => true,
    }
}

/// Which part of a list is read: `?limit=…&after=…`, in any order.
pub(crate) struct Page {
    /// The last one of the page before.
    pub(crate) after: Option<String>,
    pub(crate) limit: usize,
}

impl Page {
    /// The page of the offers on a listing, which the query names as `listing_id`.
    pub(crate) fn of_listing(arrived: &Arrived) -> Result<(String, Self), Refusal> {
        let (listing_id, page) = Self::read(arrived, true)?;
        let listing_id = listing_id.ok_or_else(|| {
            Refusal::invalid("name the listing in the query: GET /offers?listing_id=…")
        })?;
        Ok((listing_id, page))
    }

    /// The page of what is under the path.
    pub(crate) fn of(arrived: &Arrived) -> Result<Self, Refusal> {
        Self::read(arrived, false).map(|(_, page)| page)
    }

    fn read(arrived: &Arrived, names_listing: bool) -> Result<(Option<String>, Self), Refusal> {
        let (listing_id, after, limit) = match names_listing {
            true => {
                let [listing_id, after, limit] = query(
                    arrived,
                    ["listing_id", "after", "limit"],
                    "the query takes listing_id, after and limit",
                )?;
                (listing_id, after, limit)
            }
            false => {
                let names = ["after", "limit"];
                let [after, limit] = query(arrived, names, "the query takes after and limit")?;
                (None, after, limit)
            }
        };
        if ![&listing_id, &after]
            .into_iter()
            .flatten()
            .all(|id| is_id(id))
        {
            return Err(Refusal::invalid(
                "listing_id and after in the query must be ids",
            ));
        }
        let limit = page_limit(limit)?;
        Ok((listing_id, Self { after, limit }))
    }
}

/// Which part of a chain is read: `?from=…&limit=…`, in any order.
pub(crate) struct Span {
    /// The first entry's place.
    pub(crate) from: u64,
    pub(crate) limit: usize,
}

impl Span {
    pub(crate) fn of(arrived: &Arrived) -> Result<Self, Refusal> {
        let names = ["from", "limit"];
        let [from, limit] = query(arrived, names, "the query takes from and limit")?;
        let from = match from {
            None => 0,
            Some(from) => digits(&from)
                .ok_or_else(|| Refusal::invalid("from in the query must be an entry's seq"))?,
        };
        Ok(Self {
            from,
            limit: page_limit(limit)?,
        })
    }
}

/// The parameters of the query, by name; each at most once, and no other.
fn query<const N: usize>(
    arrived: &Arrived,
    names: [&str; N],
    takes: &'static str,
) -> Result<[Option<String>; N], Refusal> {
    let mut values = [const { None }; N];
    let query = arrived.uri().query().unwrap_or_default();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let place = names.iter().position(|known| *known == name);
        let place = place.ok_or_else(|| Refusal::invalid(takes))?;
        if values[place].replace(value.into_owned()).is_some() {
            return Err(Refusal::invalid("a parameter occurs twice in the query"));
        }
    }
    Ok(values)
}

fn page_limit(limit: Option<String>) -> Result<usize, Refusal> {
    const DEFAULT: usize = 50;
    const MOST: usize = 100;
    let limit = limit.map_or(Some(DEFAULT), |limit| limit.parse().ok());
    limit
        .filter(|limit| (1..=MOST).contains(limit))
        .ok_or_else(|| Refusal::invalid(format!("limit in the query must be 1 to {MOST}")))
}

/// A number in decimal digits alone, small enough for every JSON reader.
fn digits(text: &str) -> Option<u64> {
    let plain = text.len() <= 15 && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn read<T: DeserializeOwned>(doc: Option<Doc>) -> Result<Option<T>, Refusal> {
    doc.map(|doc| serde_json::from_slice(&doc.body).map_err(|_| unreadable(doc.key.kind.as_str())))
        .transpose()
}

fn private_terms(doc: Option<Doc>) -> Result<Option<PrivateTerms>, Refusal> {
    // The error carries no text of the parser: it might quote the floor.
    doc.map(|doc| {
        PrivateTerms::from_stored(&doc.body).ok_or_else(|| unreadable(doc.key.kind.as_str()))
    })
    .transpose()
}

fn unreadable(kind: &'static str) -> Refusal {
    tracing::error!(kind, "a stored document is not readable");
    Refusal::unavailable("a stored document is not readable; nothing was executed")
}
