//! The one table of operations. REST routing, the tools, the schemas and the decision read the same row.

use std::{borrow::Cow, fmt};

use http::Method;
use serde::{Deserialize, Serialize};

/// A verb of the actions registry (binding 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verb {
    /// `listing.create`
    #[serde(rename = "listing.create")]
    ListingCreate,
    /// `listing.set_terms`
    #[serde(rename = "listing.set_terms")]
    ListingSetTerms,
    /// `listing.reprice`
    #[serde(rename = "listing.reprice")]
    ListingReprice,
    /// `listing.answer_buyer`
    #[serde(rename = "listing.answer_buyer")]
    ListingAnswerBuyer,
    /// `offer.create`
    #[serde(rename = "offer.create")]
    OfferCreate,
    /// `offer.counter`
    #[serde(rename = "offer.counter")]
    OfferCounter,
    /// `offer.accept`
    #[serde(rename = "offer.accept")]
    OfferAccept,
    /// `deal.commit_to_ship`
    #[serde(rename = "deal.commit_to_ship")]
    DealCommitToShip,
    /// `deal.sign_contract`
    #[serde(rename = "deal.sign_contract")]
    DealSignContract,
    /// `account.update`
    #[serde(rename = "account.update")]
    AccountUpdate,
}

impl Verb {
    /// Every verb that a seller grants by scope.
    pub const GRANTED: [Verb; 7] = [
        Verb::ListingCreate,
        Verb::ListingSetTerms,
        Verb::ListingReprice,
        Verb::ListingAnswerBuyer,
        Verb::OfferCounter,
        Verb::OfferAccept,
        Verb::DealCommitToShip,
    ];

    /// The verb as the registry writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::ListingCreate => "listing.create",
            Verb::ListingSetTerms => "listing.set_terms",
            Verb::ListingReprice => "listing.reprice",
            Verb::ListingAnswerBuyer => "listing.answer_buyer",
            Verb::OfferCreate => "offer.create",
            Verb::OfferCounter => "offer.counter",
            Verb::OfferAccept => "offer.accept",
            Verb::DealCommitToShip => "deal.commit_to_ship",
            Verb::DealSignContract => "deal.sign_contract",
            Verb::AccountUpdate => "account.update",
        }
    }

    /// The scope that grants the verb; none for the buyer's verb and the fixed forbids.
    pub const fn scope(self) -> Option<&'static str> {
        match self {
            Verb::ListingCreate => Some("dev.rctp.listing:listing_create"),
            Verb::ListingSetTerms => Some("dev.rctp.listing:listing_set_terms"),
            Verb::ListingReprice => Some("dev.rctp.listing:listing_reprice"),
            Verb::ListingAnswerBuyer => Some("dev.rctp.listing:listing_answer_buyer"),
            Verb::OfferCounter => Some("dev.rctp.deal:offer_counter"),
            Verb::OfferAccept => Some("dev.rctp.deal:offer_accept"),
            Verb::DealCommitToShip => Some("dev.rctp.deal:deal_commit_to_ship"),
            Verb::OfferCreate | Verb::DealSignContract | Verb::AccountUpdate => None,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who may call a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The seller's agent, with a grant (S).
    Seller,
    /// A buyer's agent (B).
    Buyer,
    /// Either party of the offer or deal (P, R3).
    Party,
    /// Parties, the holder of funds and the carrier (P, F, C).
    PartyOrRole,
    /// Any authenticated operator.
    Operator,
    /// The operator whose action is parked.
    Asker,
    /// The seller's browser: the stack lets it pass to the hosted pages.
    Browser,
}

/// Which price is held against the seller's floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloorRule {
    /// No price is looked at.
    None,
    /// The price in the request.
    Requested,
    /// The price of the offer that the request names.
    Offer,
}

/// Where the tier comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierRule {
    /// No tier: nothing to decide, or delivered as it is (offer.create).
    None,
    /// The grant's tier within the marketplace's policy (R15).
    Grant,
    /// Always `ask` (V31).
    Ask,
    /// Always 403 `action_forbidden` (INV-3).
    Forbid,
}

/// An operation by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the table's
pub enum Op {
    CreateListing,
    GetListing,
    SetListingTerms,
    RepriceListing,
    ListQuestions,
    AskQuestion,
    AnswerBuyer,
    CreateOffer,
    ListOffers,
    GetOffer,
    CounterOffer,
    AcceptOffer,
    DeclineOffer,
    GetApproval,
    RespondApproval,
    CreateDeal,
    GetDeal,
    PostDealEvent,
    GetDealEvents,
    CommitToShip,
    SignContract,
    UpdateAccount,
}

impl Op {
    /// The row of the operation.
    pub fn row(self) -> &'static Operation {
        &TABLE[self as usize]
    }

    /// The operation's name, as in the table.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Operation {
    /// Which one.
    pub op: Op,
    /// Its name, also that of its tool.
    pub name: &'static str,
    /// `GET` or `POST`.
    pub method: Method,
    /// The path under the public URL; `{id}` stands for one segment.
    pub path: &'static str,
    /// Whether it is served as an MCP tool of the same name.
    pub tool: bool,
    /// The verb that is evaluated.
    pub verb: Option<Verb>,
    /// Who may call it.
    pub side: Side,
    /// The schema of its body, by file name under `schemas/`.
    pub body: Option<&'static str>,
    /// What is held against the floor.
    pub floor: FloorRule,
    /// Where the tier comes from.
    pub tier: TierRule,
}

impl Operation {
    /// Whether it changes anything: a POST by an agent.
    pub fn writes(&self) -> bool {
        self.method == Method::POST
    }
}

macro_rules! row {
    ($op:ident, $name:literal, $method:ident $path:literal, $tool:literal, $verb:expr, $side:ident, $body:expr, $floor:ident, $tier:ident) => {
        Operation {
            op: Op::$op,
            name: $name,
            method: Method::$method,
            path: $path,
            tool: $tool,
            verb: $verb,
            side: Side::$side,
            body: $body,
            floor: FloorRule::$floor,
            tier: TierRule::$tier,
        }
    };
}

/// All rows, in the order of [`Op`].
#[rustfmt::skip]
pub static TABLE: [Operation; 22] = [
    row!(CreateListing, "create_listing", POST "/listings", true, Some(Verb::ListingCreate), Seller, Some("listing-create-request"), None, Grant),
    row!(GetListing, "get_listing", GET "/listings/{id}", false, None, Operator, None, None, None),
    row!(SetListingTerms, "set_listing_terms", POST "/listings/{id}/terms", true, Some(Verb::ListingSetTerms), Seller, Some("listing-set-terms-request"), None, Ask),
    row!(RepriceListing, "reprice_listing", POST "/listings/{id}/price", true, Some(Verb::ListingReprice), Seller, Some("listing-reprice-request"), Requested, Grant),
    row!(ListQuestions, "list_questions", GET "/listings/{id}/questions", false, None, Party, None, None, None),
    row!(AskQuestion, "ask_question", POST "/listings/{id}/questions", false, None, Buyer, Some("question-request"), None, None),
    row!(AnswerBuyer, "answer_buyer", POST "/listings/{id}/answers", true, Some(Verb::ListingAnswerBuyer), Seller, Some("answer-request"), None, Grant),
    row!(CreateOffer, "create_offer", POST "/offers", true, Some(Verb::OfferCreate), Buyer, Some("offer-create-request"), Requested, None),
    row!(ListOffers, "list_offers", GET "/offers", false, None, Seller, None, None, None),
    row!(GetOffer, "get_offer", GET "/offers/{id}", true, None, Party, None, None, None),
    row!(CounterOffer, "counter_offer", POST "/offers/{id}/counter", true, Some(Verb::OfferCounter), Party, Some("offer-counter-request"), Requested, Grant),
    row!(AcceptOffer, "accept_offer", POST "/offers/{id}/accept", true, Some(Verb::OfferAccept), Party, Some("empty-request"), Offer, Grant),
    row!(DeclineOffer, "decline_offer", POST "/offers/{id}/decline", true, None, Party, Some("empty-request"), None, None),
    row!(GetApproval, "get_approval", GET "/approvals/{id}", true, None, Asker, None, None, None),
    row!(RespondApproval, "respond_approval", POST "/approvals/{id}/response", false, None, Browser, Some("approval-response"), None, None),
    row!(CreateDeal, "create_deal", POST "/deals", true, None, Buyer, Some("deal-create-request"), None, None),
    row!(GetDeal, "get_deal", GET "/deals/{id}", false, None, Party, None, None, None),
    row!(PostDealEvent, "post_deal_event", POST "/deals/{id}/events", true, None, PartyOrRole, Some("deal-event-post-request"), None, None),
    row!(GetDealEvents, "get_deal_events", GET "/deals/{id}/events", true, None, PartyOrRole, None, None, None),
    row!(CommitToShip, "commit_to_ship", POST "/deals/{id}/commit-to-ship", true, Some(Verb::DealCommitToShip), Seller, Some("commit-to-ship-request"), None, Grant),
    row!(SignContract, "sign_contract", POST "/deals/{id}/contract", false, Some(Verb::DealSignContract), Seller, None, None, Forbid),
    row!(UpdateAccount, "update_account", POST "/account", false, Some(Verb::AccountUpdate), Seller, None, None, Forbid),
];

/// What a method and path come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// A row, with the `{id}` of its path.
    Row(Op, Option<String>),
    /// Under one of the table's first segments, but no row: 404.
    Unknown,
    /// None of ours.
    Elsewhere,
}

/// Finds the row of a request; `path` is what follows the public URL's own path, beginning with `/`.
///
/// The match is exact: no decoding, no trailing slash, no case folding. What differs is [`Match::Unknown`], so
/// that no handler behind the stack can read the path more leniently and act undecided.
pub fn find(method: &Method, path: &str) -> Match {
    find_under("", None, method, path)
}

/// As [`find`], with the whole path; `prefix` is the public URL's own path, without a trailing slash, and `other` a first
/// segment that is ours besides those of the table.
pub(crate) fn find_under(prefix: &str, other: Option<&str>, method: &Method, path: &str) -> Match {
    // Most paths are none of ours, and are told by their first segment.
    let in_table = |path: &&str| {
        let first = path.split('/').nth(1);
        first.is_some_and(|first| FIRST.contains(&first))
    };
    let row = path.strip_prefix(prefix).filter(in_table).and_then(|path| {
        TABLE.iter().find_map(|row| {
            if row.method != *method {
                return None;
            }
            matches_template(row.path, path).map(|id| Match::Row(row.op, id.map(str::to_owned)))
        })
    });
    match row {
        Some(row) => row,
        None if may_be_ours(prefix, other, path) => Match::Unknown,
        None => Match::Elsewhere,
    }
}

/// Whether a router behind us, however it normalises, could take the path for one under the table's first segments.
fn may_be_ours(prefix: &str, other: Option<&str>, path: &str) -> bool {
    let is_first = |segment: &str| {
        let mut first = FIRST.iter().copied().chain(other);
        first.any(|first| segment.eq_ignore_ascii_case(first))
    };
    // Some routers decode before they split, and some proxies have decoded once before them.
    let once = percent_decoded(path);
    let path = percent_decoded(&once);
    let mut segments = segments(&path);
    if segments.clone().any(|segment| segment == "..") {
        return segments.any(is_first);
    }
    let mut segments = segments.filter(|segment| !segment.is_empty() && *segment != ".");
    let once = percent_decoded(prefix);
    let prefix = percent_decoded(&once);
    let under = self::segments(&prefix).filter(|segment| !segment.is_empty() && *segment != ".");
    for expected in under {
        if !segments
            .next()
            .is_some_and(|segment| segment.eq_ignore_ascii_case(expected))
        {
            return false;
        }
    }
    segments.next().is_some_and(is_first)
}

/// The segments of a decoded path, without what some routers drop: a path parameter, which `;` begins, and what follows
/// a NUL.
fn segments(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split(['/', '\\']).map(|segment| {
        let kept = segment.split([';', '\0']).next();
        kept.unwrap_or_default().trim()
    })
}

/// The first segments of the table's paths.
const FIRST: [&str; 5] = ["listings", "offers", "deals", "approvals", "account"];

fn percent_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let decoded = (bytes[i] == b'%')
            .then(|| text.get(i + 1..i + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match decoded {
            Some(byte) => {
                out.push(byte);
                i += 3;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// `Some(id)` when `path` fits; the id must be well-formed (R35).
fn matches_template<'p>(template: &str, path: &'p str) -> Option<Option<&'p str>> {
    let Some((before, after)) = template.split_once('{') else {
        return (template == path).then_some(None);
    };
    let id = path.strip_prefix(before)?;
    let id = id.strip_suffix(after.strip_prefix("id}")?)?;
    is_id(id).then_some(Some(id))
}

/// Whether `id` has the form of every id: `^[a-z]+_[A-Za-z0-9_-]{1,64}$` (R35).
pub fn is_id(id: &str) -> bool {
    id.split_once('_').is_some_and(|(prefix, rest)| {
        !prefix.is_empty()
            && prefix.bytes().all(|b| b.is_ascii_lowercase())
            && (1..=64).contains(&rest.len())
            && rest
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_their_names() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.op as usize, i, "{}", row.name);
            assert_eq!(serde_json::to_value(row.op).unwrap(), row.name);
        }
    }

    #[test]
    fn near_misses_of_a_path_are_answered_by_the_stack() {
        for path in [
            "/offers/",
            "/offers//accept",
            "/Offers",
            "/offers/off_1/accept/",
            "/offers/off_1%2Faccept",
            "/%6fffers/off_1",
            "/offers;x=1/off_1",
            "/offers/x y",
            "/deals/deal_1/contract/x",
            "//offers",
            "/./offers",
            "/x/../offers",
            "/offers%2Foff_1",
            "/%2e/offers",
            "/x/%2e%2E/offers",
            "/x/..;v=1/offers",
            "/x/..%2foffers/off_1",
            "/;v=1/offers",
            "/%2foffers",
            "/%5coffers",
            "/%256fffers",
            "/offers%00",
        ] {
            let found = find(&Method::PUT, path);
            assert_eq!(found, Match::Unknown, "{path}");
        }
        assert_eq!(
            find(&Method::POST, "/offers/off_1/accept"),
            Match::Row(Op::AcceptOffer, Some("off_1".into()))
        );
        assert_eq!(find(&Method::PUT, "/offers/off_1/accept"), Match::Unknown);
        assert_eq!(find(&Method::GET, "/health"), Match::Elsewhere);
        assert_eq!(find(&Method::GET, "/"), Match::Elsewhere);
        assert_eq!(find(&Method::GET, "/a..b/offers"), Match::Elsewhere);
    }

    #[test]
    fn under_a_prefix_that_is_written_oddly_near_misses_are_answered_too() {
        for prefix in ["/a;b", "/a%2541", "/a%41/b;c;d", "/%2e/a", "/a%00b"] {
            let under = |path: &str| {
                let path = format!("{prefix}{path}");
                find_under(prefix, None, &Method::POST, &path)
            };
            assert_eq!(
                under("/offers"),
                Match::Row(Op::CreateOffer, None),
                "{prefix}"
            );
            for path in ["/offers/", "/Offers", "/%6fffers", "//offers"] {
                assert_eq!(under(path), Match::Unknown, "{prefix}{path}");
            }
            assert_eq!(under("/health"), Match::Elsewhere, "{prefix}");
        }
    }

    #[test]
    fn near_misses_of_the_prefix_are_answered_by_the_stack() {
        let under = |path| find_under("/rctp/v3", None, &Method::POST, path);
        assert_eq!(
            under("/rctp/v3/offers"),
            Match::Row(Op::CreateOffer, None),
            "the path itself"
        );
        for path in [
            "/rctp/v3//offers",
            "//rctp/v3/offers",
            "/rctp//v3/offers",
            "/RCTP/v3/offers",
            "/%72ctp/v3/offers",
            "/./rctp/v3/offers",
            "/rctp;x/v3/offers",
            "/rctp%2Fv3/offers",
            "/x/../rctp/v3/offers",
            "/rctp/v3/offers/",
        ] {
            assert_eq!(under(path), Match::Unknown, "{path}");
        }
        for path in [
            "/offers",
            "/rctp/offers",
            "/v3/offers",
            "/rctp/v3",
            "/rctp/v3x/offers",
        ] {
            assert_eq!(under(path), Match::Elsewhere, "{path}");
        }
    }
}
