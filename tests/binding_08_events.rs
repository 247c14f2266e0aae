//! Binding 8.1: deal events. First the rules alone, row by row and as properties; then over HTTP, on both stores.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use std::collections::BTreeSet;

use bytes::Bytes;
use common::{
    Agent, Answer, CURRENCY, FLOOR, NOW, SELLER, SELLER_TOKEN, deal_terms, get, grant,
    public_terms, with_token,
};
use http::Request;
use market::{Backing, Market, fits, fresh_key, on_every_store, operators, signed};
use serde_json::{Value, json};
use tower_rctp::{
    client::{Signer, WriterSignature, verify_record},
    layer::authenticate::operators::Operator,
    protocol::{
        caller::Role,
        deal::Deal,
        event::{DealEvent, EVENT_TYP},
        grant::GrantStatus,
        listing::Listing,
        policy::Tier,
        record::{Entry, FIRST_PREV_HASH, Seal, SubjectKind, verify_chain, verify_head},
        schema::validate,
        term_set::{TermSet, TermSets},
        terms::PublicTerms,
        time::Timestamp,
    },
    store::Kind,
    wire::{
        crypto::default_provider,
        jwk::{Keys, SigningKey},
        jws,
    },
};

on_every_store!(
    the_money_goes_to_the_seller_on_each_release_condition,
    whoever_holds_the_funds_moves_them_and_nobody_else,
    the_money_goes_back_when_the_goods_are_not_as_described,
    the_money_goes_back_when_nothing_came,
    each_event_has_its_writers,
    an_event_is_recorded_once,
    of_two_that_exclude_each_other_one_is_recorded,
    the_rules_are_those_of_the_acceptance,
    an_event_without_the_required_observation_is_recorded_and_does_not_count,
    the_record_is_read_in_pages_with_a_signed_head,
);

/// The table of binding 8.1 as a function.
mod rules {
    use proptest::{collection::vec, prelude::*, sample::select};
    use tower_rctp::protocol::{
        caller::Role,
        event::{
            DealEvent, EventName, Funds, MAX_INFORMATIVE, Observation, Progress, RejectReason,
            ReleaseCondition, Rules, Writer, record,
        },
        refusal::{Reason, Refusal},
        time::Timestamp,
    };

    use EventName as E;
    use Observation::{FirstHand, Relayed};
    use RejectReason::{NotAsDescribed, NotReceived};

    const START: i64 = 1_790_000_000;
    const DAY: i64 = 86_400;

    const HOLDER: Writer<'static> = role(&[Role::FundsHolder]);
    const CARRIER: Writer<'static> = role(&[Role::Carrier]);
    const MARKETPLACE: Writer<'static> = role(&[Role::Marketplace]);
    const CUSTODIAN: Writer<'static> = role(&[Role::Custodian]);
    const BUYER: Writer<'static> = Writer {
        buyer: true,
        ..role(&[])
    };
    const SELLER: Writer<'static> = Writer {
        seller: true,
        ..role(&[])
    };

    const fn role(roles: &'static [Role]) -> Writer<'static> {
        Writer {
            buyer: false,
            seller: false,
            roles,
            operator: "https://one.example/",
        }
    }

    /// A deal, the rules that it is under, and what time it is.
    struct Case {
        rules: Rules,
        progress: Progress,
        now: i64,
        events: usize,
    }

    impl Case {
        fn new(release_condition: ReleaseCondition) -> Self {
            Self {
                rules: Rules {
                    release_condition,
                    deliver_within_days: Some(5),
                    ..Rules::default()
                },
                progress: Progress::default(),
                now: START,
                events: 0,
            }
        }

        fn event(&mut self, event: EventName) -> DealEvent {
            self.events += 1;
            DealEvent {
                deal_id: "deal_1".into(),
                event_id: format!("evt_{}", self.events),
                event,
                occurred_at: Timestamp::from_secs(self.now),
                reason: None,
                observation: FirstHand,
                reported_by: None,
                source_event_id: None,
                evidence: Vec::new(),
                city: None,
            }
        }

        fn write(&mut self, event: &DealEvent, writer: Writer<'_>) -> Result<(), Refusal> {
            let now = Timestamp::from_secs(self.now);
            self.progress = record(&self.progress, &self.rules, event, writer, now)?;
            Ok(())
        }

        fn tries(&mut self, event: EventName, writer: Writer<'_>) -> Option<Reason> {
            let event = self.event(event);
            self.write(&event, writer)
                .err()
                .map(|r| r.reason().unwrap())
        }

        fn rejects(&mut self, reason: RejectReason) -> Option<Reason> {
            let event = DealEvent {
                reason: Some(reason),
                ..self.event(E::Rejected)
            };
            self.write(&event, BUYER).err().map(|r| r.reason().unwrap())
        }

        /// Each of these by its first writer, one after the other.
        fn after(mut self, events: &[EventName]) -> Self {
            for event in events {
                let writer = writers(event)[0];
                assert_eq!(self.tries(event.clone(), writer), None, "{event}");
            }
            self
        }
    }

    const UNMET: Option<Reason> = Some(Reason::ReleaseConditionUnmet);
    const FORBIDDEN: Option<Reason> = Some(Reason::ActionForbidden);

    /// Who may write it first-hand.
    fn writers(event: &EventName) -> &'static [Writer<'static>] {
        match event {
            E::FundsHeld | E::Released | E::Refund => &[HOLDER],
            E::Accepted | E::Rejected => &[BUYER],
            E::Shipped | E::Delivered | E::ReturnedToSender => &[CARRIER],
            E::Return => &[SELLER, CARRIER, CUSTODIAN],
            E::Extension(_) => &[BUYER, SELLER, HOLDER, CARRIER, MARKETPLACE, CUSTODIAN],
        }
    }

    fn extension() -> EventName {
        E::Extension("example.carrier:picked_up_sealed".into())
    }

    #[test]
    fn each_event_has_its_writers_and_no_others() {
        let everybody = [
            BUYER,
            SELLER,
            HOLDER,
            CARRIER,
            MARKETPLACE,
            CUSTODIAN,
            role(&[]),
        ];
        for event in E::NAMED.into_iter().chain([extension()]) {
            for writer in everybody {
                let mut case = Case::new(ReleaseCondition::Accepted);
                let refused = case.tries(event.clone(), writer) == FORBIDDEN;
                assert_eq!(
                    refused,
                    !writers(&event).contains(&writer),
                    "{event}, {writer:?}"
                );
            }
        }
    }

    #[test]
    fn what_a_carrier_saw_the_marketplace_only_relays() {
        for event in [E::Shipped, E::Delivered, E::ReturnedToSender] {
            for (writer, observation, may) in [
                (CARRIER, FirstHand, true),
                (CARRIER, Relayed, false),
                (MARKETPLACE, FirstHand, false),
                (MARKETPLACE, Relayed, true),
            ] {
                let mut case = Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld]);
                let event = DealEvent {
                    observation,
                    ..case.event(event.clone())
                };
                assert_eq!(case.write(&event, writer).is_ok(), may, "{writer:?}");
            }
        }
    }

    #[test]
    fn nothing_counts_before_the_funds_are_held() {
        for event in E::NAMED.into_iter().filter(|event| *event != E::FundsHeld) {
            let mut case = Case::new(ReleaseCondition::Shipped);
            assert_eq!(
                case.tries(event.clone(), writers(&event)[0]),
                UNMET,
                "{event}"
            );
        }
        let mut case = Case::new(ReleaseCondition::Accepted);
        assert_eq!(case.tries(E::FundsHeld, HOLDER), None);
        assert_eq!(case.tries(E::FundsHeld, HOLDER), UNMET, "once");
    }

    #[test]
    fn a_fulfillment_event_happens_once() {
        for event in [E::Shipped, E::Delivered, E::ReturnedToSender] {
            let mut case =
                Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld, event.clone()]);
            assert_eq!(case.tries(event, CARRIER), UNMET);
        }
    }

    #[test]
    fn a_buyer_accepts_or_rejects_and_only_once() {
        let mut accepted =
            Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld, E::Accepted]);
        assert_eq!(accepted.tries(E::Accepted, BUYER), UNMET);
        assert_eq!(accepted.rejects(NotAsDescribed), UNMET);
        let mut rejected = Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld]);
        assert_eq!(rejected.rejects(NotAsDescribed), None);
        assert_eq!(rejected.rejects(NotAsDescribed), UNMET);
        assert_eq!(rejected.tries(E::Accepted, BUYER), UNMET);
    }

    #[test]
    fn nothing_came_only_after_the_days_that_the_terms_give() {
        let mut case = Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld]);
        for now in [START, START + DAY, START + 5 * DAY - 1] {
            case.now = now;
            assert_eq!(case.rejects(NotReceived), UNMET);
        }
        case.now = START + 5 * DAY;
        assert_eq!(case.rejects(NotReceived), None);

        let mut without = Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld]);
        without.rules.deliver_within_days = None;
        without.now = START + 10_000 * DAY;
        assert_eq!(
            without.rejects(NotReceived),
            UNMET,
            "without the term, never"
        );
    }

    #[test]
    fn the_days_run_from_when_the_funds_were_recorded_whatever_anybody_says() {
        let mut case = Case::new(ReleaseCondition::Accepted);
        let backdated = DealEvent {
            occurred_at: Timestamp::from_secs(START - 100 * DAY),
            ..case.event(E::FundsHeld)
        };
        case.write(&backdated, HOLDER).unwrap();
        assert_eq!(case.rejects(NotReceived), UNMET);
        let ahead = DealEvent {
            occurred_at: Timestamp::from_secs(START + 61),
            ..case.event(E::Shipped)
        };
        assert_eq!(case.write(&ahead, CARRIER).unwrap_err().status(), 400);
    }

    #[test]
    fn a_return_follows_only_a_rejection_as_not_as_described() {
        let mut case = Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld]);
        assert_eq!(case.tries(E::Return, SELLER), UNMET);
        case.now += 5 * DAY;
        assert_eq!(case.rejects(NotReceived), None);
        assert_eq!(case.tries(E::Return, SELLER), UNMET);
        for writer in writers(&E::Return) {
            let mut case = Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld]);
            assert_eq!(case.rejects(NotAsDescribed), None);
            assert_eq!(case.tries(E::Return, *writer), None);
            assert_eq!(case.tries(E::Return, *writer), UNMET, "once");
        }
    }

    #[test]
    fn funds_are_released_on_the_condition_of_the_terms() {
        let conditions = [
            (ReleaseCondition::Accepted, E::Accepted),
            (ReleaseCondition::Delivered, E::Delivered),
            (ReleaseCondition::Shipped, E::Shipped),
        ];
        for (condition, met_by) in &conditions {
            for (_, event) in &conditions {
                let mut case = Case::new(*condition).after(&[E::FundsHeld, event.clone()]);
                let released = case.tries(E::Released, HOLDER);
                assert_eq!(
                    released.is_none(),
                    event == met_by,
                    "{condition:?}, {event}"
                );
            }
        }
    }

    #[test]
    fn after_a_rejection_nothing_is_released() {
        for condition in [ReleaseCondition::Delivered, ReleaseCondition::Shipped] {
            let mut case = Case::new(condition).after(&[E::FundsHeld, E::Shipped, E::Delivered]);
            assert_eq!(case.rejects(NotAsDescribed), None);
            assert_eq!(case.tries(E::Released, HOLDER), UNMET);
            assert_eq!(case.tries(E::Refund, HOLDER), UNMET, "the goods first");
            assert_eq!(case.tries(E::Return, SELLER), None);
            assert_eq!(case.tries(E::Released, HOLDER), UNMET);
            assert_eq!(case.tries(E::Refund, HOLDER), None);
            assert_eq!(case.progress.funds(), Funds::Refunded);
        }
    }

    #[test]
    fn what_came_back_to_the_sender_is_refunded_only_after_a_rejection() {
        let mut case =
            Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld, E::ReturnedToSender]);
        assert_eq!(case.tries(E::Refund, HOLDER), UNMET);
        case.now += 5 * DAY;
        assert_eq!(case.rejects(NotReceived), None);
        assert_eq!(case.tries(E::Refund, HOLDER), None);
    }

    #[test]
    fn a_settled_deal_takes_extension_events_only() {
        let mut released =
            Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld, E::Accepted, E::Released]);
        let mut refunded = Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld]);
        refunded.now += 5 * DAY;
        assert_eq!(refunded.rejects(NotReceived), None);
        let mut refunded = refunded.after(&[E::Refund]);
        for case in [&mut released, &mut refunded] {
            for event in E::NAMED.into_iter().filter(|event| *event != E::Rejected) {
                assert_eq!(
                    case.tries(event.clone(), writers(&event)[0]),
                    UNMET,
                    "{event}"
                );
            }
            assert_eq!(case.rejects(NotAsDescribed), UNMET);
            assert_eq!(case.tries(extension(), BUYER), None);
        }
    }

    #[test]
    fn an_event_id_is_recorded_once_whatever_it_names() {
        let mut case = Case::new(ReleaseCondition::Accepted);
        let first = case.event(E::FundsHeld);
        case.write(&first, HOLDER).unwrap();
        for (event, writer) in [
            (E::FundsHeld, HOLDER),
            (E::Shipped, CARRIER),
            (extension(), BUYER),
        ] {
            let again = DealEvent {
                event,
                ..first.clone()
            };
            let refusal = case.write(&again, writer).unwrap_err();
            assert_eq!(refusal.reason(), UNMET);
        }
    }

    #[test]
    fn extensions_change_nothing_and_are_bounded() {
        let mut case = Case::new(ReleaseCondition::Accepted);
        for n in 0..MAX_INFORMATIVE {
            assert_eq!(case.tries(extension(), BUYER), None, "{n}");
            assert_eq!(case.progress.funds(), Funds::Open);
        }
        assert_eq!(case.tries(extension(), CARRIER), UNMET);
        // Those that count are taken all the same.
        let mut case = case.after(&[
            E::FundsHeld,
            E::Shipped,
            E::Delivered,
            E::Accepted,
            E::Released,
        ]);
        assert_eq!(case.progress.funds(), Funds::Released);
        assert_eq!(case.tries(extension(), CARRIER), UNMET);
    }

    #[test]
    fn without_the_required_observation_an_event_counts_for_nothing() {
        let mut case = Case::new(ReleaseCondition::Delivered).after(&[E::FundsHeld]);
        case.rules
            .required_observation
            .insert(E::Delivered, FirstHand);
        for _ in 0..2 {
            let relayed = DealEvent {
                observation: Relayed,
                ..case.event(E::Delivered)
            };
            case.write(&relayed, MARKETPLACE).unwrap();
            assert_eq!(case.progress.at(&E::Delivered), None);
            assert_eq!(case.tries(E::Released, HOLDER), UNMET);
        }
        let mut case = case.after(&[E::Delivered]);
        assert_eq!(case.tries(E::Released, HOLDER), None);
    }

    #[test]
    fn progress_is_stored_and_read_back_and_old_deals_have_none() {
        let case =
            Case::new(ReleaseCondition::Accepted).after(&[E::FundsHeld, extension(), E::Shipped]);
        let stored = serde_json::to_vec(&case.progress).unwrap();
        let read: Progress = serde_json::from_slice(&stored).unwrap();
        assert_eq!(read, case.progress);
        let none: Progress = serde_json::from_str("{}").unwrap();
        assert_eq!(none, Progress::default());
        let rules: Rules = serde_json::from_str("{}").unwrap();
        assert_eq!(rules, Rules::default());
        assert_eq!(rules.release_condition, ReleaseCondition::Accepted);
    }

    // ---- Any sequence ---------------------------------------------------------------------------------------------------

    #[derive(Clone, Debug)]
    struct Attempt {
        event: EventName,
        reason: RejectReason,
        observation: Observation,
        /// One who may write it, or anybody in any capacities.
        writer: Option<(bool, bool, Vec<Role>)>,
        id: u8,
        later: i64,
        /// Whether the writer is of the second operator.
        second: bool,
    }

    const ROLES: [Role; 4] = [
        Role::FundsHolder,
        Role::Carrier,
        Role::Marketplace,
        Role::Custodian,
    ];

    fn attempts() -> impl Strategy<Value = Vec<Attempt>> {
        let names: Vec<EventName> = E::NAMED.into_iter().chain([extension()]).collect();
        let anybody = (any::<bool>(), any::<bool>(), vec(select(&ROLES[..]), 0..3));
        let writer = prop_oneof![3 => Just(None), 1 => anybody.prop_map(Some)];
        let later = prop_oneof![4 => 0..3600i64, 1 => (1..4i64).prop_map(|days| days * DAY), 1 => Just(2 * DAY - 1)];
        let attempt = (
            select(names),
            select(&[NotAsDescribed, NotReceived][..]),
            select(&[FirstHand, FirstHand, Relayed][..]),
            writer,
            any::<u8>(),
            later,
            proptest::bool::weighted(0.1),
        );
        vec(
            attempt.prop_map(
                |(event, reason, observation, writer, id, later, second)| Attempt {
                    event,
                    reason,
                    observation,
                    writer,
                    id,
                    later,
                    second,
                },
            ),
            0..60,
        )
    }

    fn all_rules() -> impl Strategy<Value = Rules> {
        let conditions = [
            ReleaseCondition::Accepted,
            ReleaseCondition::Delivered,
            ReleaseCondition::Shipped,
        ];
        let observed = vec![
            E::Accepted,
            E::Rejected,
            E::Shipped,
            E::Delivered,
            E::ReturnedToSender,
            E::Return,
        ];
        let required = proptest::collection::btree_map(
            select(observed),
            select(&[FirstHand, Relayed][..]),
            0..3,
        );
        let days = proptest::option::of(0..4u32);
        (select(conditions.to_vec()), days, required).prop_map(|(condition, days, required)| {
            Rules {
                release_condition: condition,
                deliver_within_days: days,
                required_observation: required,
            }
        })
    }

    /// What was recorded, as a plain list.
    struct Recorded {
        id: u8,
        event: EventName,
        reason: RejectReason,
        counts: bool,
        at: i64,
        by: String,
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Expected {
        Recorded,
        WrongWriter,
        Unmet,
    }

    /// The table of binding 8.1 once more, by looking through what was recorded.
    fn table(
        history: &[Recorded],
        rules: &Rules,
        attempt: &Attempt,
        writer: Writer<'_>,
        now: i64,
    ) -> Expected {
        let find = |name: &str| {
            history
                .iter()
                .find(|r| r.counts && r.event.as_str() == name)
        };
        let has = |role| writer.roles.contains(&role);
        let first_hand = attempt.observation == FirstHand;
        let theirs = match attempt.event.as_str() {
            "funds_held" => first_hand && has(Role::FundsHolder),
            "released" | "refund" => {
                let anothers = find("funds_held").is_some_and(|r| r.by != writer.operator);
                first_hand && has(Role::FundsHolder) && !anothers
            }
            "accepted" | "rejected" => writer.buyer,
            "shipped" | "delivered" | "returned_to_sender" => {
                (first_hand && has(Role::Carrier)) || (!first_hand && has(Role::Marketplace))
            }
            "return" => writer.seller || has(Role::Carrier) || has(Role::Custodian),
            _ => writer.buyer || writer.seller || ROLES.into_iter().any(has),
        };
        if !theirs {
            return Expected::WrongWriter;
        }
        let is = |name| find(name).is_some();
        let rejected_as = |reason| find("rejected").is_some_and(|r| r.reason == reason);
        let open = !is("released") && !is("refund") && !is(attempt.event.as_str());
        let holds = match attempt.event.as_str() {
            "funds_held" => open,
            "shipped" | "delivered" | "returned_to_sender" => open && is("funds_held"),
            "accepted" | "rejected" => {
                let waited = find("funds_held").is_some_and(|held| {
                    let days = rules.deliver_within_days.map(i64::from);
                    days.is_some_and(|days| (now - held.at) / DAY >= days)
                });
                let reason =
                    attempt.event == E::Accepted || attempt.reason == NotAsDescribed || waited;
                open && is("funds_held") && !is("accepted") && !is("rejected") && reason
            }
            "return" => open && rejected_as(NotAsDescribed),
            "released" => {
                let condition = match rules.release_condition {
                    ReleaseCondition::Accepted => "accepted",
                    ReleaseCondition::Delivered => "delivered",
                    ReleaseCondition::Shipped => "shipped",
                };
                open && is("funds_held") && is(condition) && !is("rejected")
            }
            "refund" => {
                let returned = rejected_as(NotAsDescribed) && is("return");
                open && (returned || rejected_as(NotReceived))
            }
            _ => true,
        };
        let new = history.iter().all(|r| r.id != attempt.id);
        match holds && new {
            true => Expected::Recorded,
            false => Expected::Unmet,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_sequence_releases_and_refunds_the_same_funds(rules in all_rules(), attempts in attempts()) {
            let mut progress = Progress::default();
            let mut history: Vec<Recorded> = Vec::new();
            let mut now = START;
            for attempt in attempts {
                now += attempt.later;
                let event = DealEvent {
                    deal_id: "deal_1".into(),
                    event_id: format!("evt_{}", attempt.id),
                    event: attempt.event.clone(),
                    occurred_at: Timestamp::from_secs(now),
                    reason: (attempt.event == E::Rejected).then_some(attempt.reason),
                    observation: attempt.observation,
                    reported_by: None,
                    source_event_id: None,
                    evidence: Vec::new(),
                    city: None,
                };
                let writer = match &attempt.writer {
                    Some((buyer, seller, roles)) => Writer { buyer: *buyer, seller: *seller, roles, ..HOLDER },
                    None if attempt.observation == Relayed && writers(&attempt.event) == [CARRIER] => MARKETPLACE,
                    None => writers(&attempt.event)[0],
                };
                let writer = Writer { operator: ["https://one.example/", "https://two.example/"][usize::from(attempt.second)], ..writer };
                let expected = table(&history, &rules, &attempt, writer, now);
                let found = record(&progress, &rules, &event, writer, Timestamp::from_secs(now));
                let told = match &found {
                    Ok(_) => Expected::Recorded,
                    Err(r) if r.reason() == FORBIDDEN => Expected::WrongWriter,
                    Err(r) => {
                        prop_assert_eq!(r.reason(), UNMET);
                        Expected::Unmet
                    }
                };
                prop_assert_eq!(told, expected, "{:?} after {:?}", attempt, progress);
                if let Ok(after) = found {
                    progress = after;
                    history.push(Recorded {
                        id: attempt.id,
                        counts: rules.count(&event),
                        event: attempt.event,
                        reason: attempt.reason,
                        at: now,
                        by: writer.operator.to_owned(),
                    });
                }
            }
            // What the money did, whatever the machine thinks.
            let counted: Vec<&str> = history.iter().filter(|r| r.counts).map(|r| r.event.as_str()).collect();
            let place = |name| counted.iter().position(|event| *event == name);
            let settled: Vec<usize> = (0..counted.len()).filter(|n| ["released", "refund"].contains(&counted[*n])).collect();
            prop_assert!(settled.len() <= 1, "{:?}", counted);
            if let Some(settled) = settled.first() {
                prop_assert!(place("funds_held").is_some_and(|held| held < *settled), "{:?}", counted);
                prop_assert_eq!(*settled, counted.len() - 1, "the last one: {:?}", counted);
                let rejected = place("rejected").is_some();
                prop_assert_eq!(rejected, counted[*settled] == "refund", "{:?}", counted);
            }
            let funds = match (place("released"), place("refund"), place("funds_held")) {
                (Some(_), None, _) => Funds::Released,
                (None, Some(_), _) => Funds::Refunded,
                (None, None, Some(_)) => Funds::Held,
                _ => Funds::Open,
            };
            prop_assert_eq!(progress.funds(), funds);
        }
    }
}

// ---- Over HTTP ------------------------------------------------------------------------------------------------------

/// A market with a holder of funds, a carrier, a relaying marketplace and a custodian.
struct World {
    market: Market,
    holder: Agent,
    /// Of another operator.
    second_holder: Agent,
    carrier: Agent,
    relay: Agent,
    custodian: Agent,
}

const DAY: i64 = 86_400;

impl World {
    async fn on(backing: Backing) -> Self {
        Self::with(backing, |b| b).await
    }

    async fn with(
        backing: Backing,
        settings: impl FnOnce(tower_rctp::RctpBuilder) -> tower_rctp::RctpBuilder,
    ) -> Self {
        let url = |name: &str| format!("https://{name}.example/.well-known/ucp");
        let roles = [
            ("holder", Role::FundsHolder),
            ("second-holder", Role::FundsHolder),
            ("carrier", Role::Carrier),
            ("relay", Role::Marketplace),
            ("custodian", Role::Custodian),
        ];
        let operators = roles.iter().fold(operators(), |all, (name, role)| {
            all.with(Operator::new(url(name)).role(*role))
        });
        let settings = |b: tower_rctp::RctpBuilder| settings(b.operators(operators));
        let market = Market::with(backing, Tier::Auto, settings).await;
        let agent = |name: &str| {
            let key = SigningKey::generate().unwrap();
            let profile = common::profile(name, &[key.public_jwk()]).to_string();
            let mut documents = market.origins.documents.lock().unwrap();
            documents.insert(url(name), Bytes::from(profile));
            Agent {
                signer: Signer::new(&url(name), key)
                    .unwrap()
                    .clock(market.clock.closure()),
                profile: url(name),
            }
        };
        let [holder, second_holder, carrier, relay, custodian] = roles.map(|(name, _)| agent(name));
        Self {
            market,
            holder,
            second_holder,
            carrier,
            relay,
            custodian,
        }
    }

    /// A deal on a listing of its own, under the terms of all tests.
    async fn deal(&self) -> String {
        self.deal_under(public_terms()).await
    }

    async fn deal_under(&self, terms: PublicTerms) -> String {
        let listing = format!("lst_{}", fresh_key());
        self.market.publish(&listing, SELLER, terms).await;
        self.deal_on(&listing).await
    }

    async fn deal_on(&self, listing: &str) -> String {
        let offer = json!({"listing_id": listing, "deal_terms": deal_terms(FLOOR + 1)});
        let offer = self.market.buyer_post("/offers", &offer).await;
        let accepted = self.market.accept(&offer.get("offer_id")).await;
        let checkout = json!({"checkout": accepted.get("checkout")});
        let deal = self.market.buyer_post("/deals", &checkout).await;
        assert_eq!(deal.status, 201, "{:?}", deal.body);
        assert_eq!(deal.body["status"], "open");
        deal.get("deal_id")
    }

    /// The payload of an event that happens now.
    fn payload(&self, deal: &str, event: &str) -> Value {
        json!({
            "deal_id": deal,
            "event_id": format!("evt_{}", fresh_key()),
            "event": event,
            "occurred_at": self.market.clock.now(),
            "observation": "first_hand",
        })
    }

    fn rejection(&self, deal: &str, reason: &str) -> Value {
        let mut payload = self.payload(deal, "rejected");
        payload["reason"] = json!(reason);
        payload
    }

    fn relayed(&self, deal: &str, event: &str) -> Value {
        let mut payload = self.payload(deal, event);
        payload["observation"] = json!("relayed");
        payload["reported_by"] = json!("https://post.example/.well-known/ucp");
        payload["source_event_id"] = json!("2026-000017");
        payload
    }

    /// The payload, signed and posted by the agent.
    async fn post(&self, agent: &Agent, payload: &Value) -> Answer {
        let token = (agent.profile == self.market.seller.profile).then_some(SELLER_TOKEN);
        let deal = payload["deal_id"].as_str().unwrap();
        let request = self.request(agent, token, deal, &event_jws(agent, payload));
        self.market.send(request).await
    }

    fn request(
        &self,
        agent: &Agent,
        token: Option<&str>,
        deal: &str,
        event: &str,
    ) -> Request<Bytes> {
        let (path, body) = (format!("/deals/{deal}/events"), json!({"event": event}));
        signed(agent, token, &path, &body, &fresh_key())
    }

    /// Posts an event that must be recorded, and that counts.
    async fn happens(&self, agent: &Agent, payload: &Value) {
        let answer = self.post(agent, payload).await;
        assert_eq!(answer.status, 201, "{payload}: {:?}", answer.body);
        assert_eq!(answer.decision(), "auto");
        fits("deal-event-recorded", &answer.body);
        let all = json!({
            "deal_id": payload["deal_id"],
            "event_id": payload["event_id"],
            "event": payload["event"],
            "recorded_at": self.market.clock.now(),
            "counts": true,
        });
        assert_eq!(answer.body, all);
    }

    async fn is_unmet(&self, agent: &Agent, payload: &Value) {
        let answer = self.post(agent, payload).await;
        let refusal = (409, "release_condition_unmet");
        assert_eq!(answer.refusal(), refusal, "{payload}");
        assert_eq!(answer.decision(), "forbid;reason=release_condition_unmet");
    }

    async fn view(&self, deal: &str) -> Value {
        let view = self.market.buyer_get(&format!("/deals/{deal}")).await.body;
        fits("deal", &view);
        assert_eq!(
            self.market.seller_get(&format!("/deals/{deal}")).await.body,
            view
        );
        view
    }

    async fn read(&self, agent: &Agent, deal: &str, query: &str) -> Answer {
        let mut request = get(&format!("/deals/{deal}/events{query}"));
        if agent.profile == self.market.seller.profile {
            request = with_token(request, SELLER_TOKEN);
        }
        agent.signer.sign(&mut request).unwrap();
        self.market.send(request).await
    }

    /// The deal's chain as the buyer reads it, whole and verified, and which of its entries are events.
    async fn events(&self, deal: &str) -> Vec<String> {
        let answer = self.read(&self.market.buyer, deal, "?limit=100").await;
        fits("deal-events", &answer.body);
        let entries = answer.body["entries"].as_array().unwrap();
        let hash = verify_chain(entries, &self.keys()).unwrap();
        let head = verify_head(&answer.body["head"], &self.keys()).unwrap();
        assert_eq!((head.hash, head.seq), (hash, entries.len() as u64 - 1));
        let events = entries
            .iter()
            .filter_map(|e| e["deal_event"]["event"].as_str());
        events.map(str::to_owned).collect()
    }

    fn keys(&self) -> Keys {
        let keys = json!([self.market.gateway_key.public_jwk()]);
        Keys::parse(&keys, default_provider()).unwrap()
    }
}

/// Of two holders of funds, the one that has the money (I64).
async fn whoever_holds_the_funds_moves_them_and_nobody_else(backing: Backing) {
    let world = World::on(backing).await;
    let deal = world.deal().await;
    world
        .happens(&world.holder, &world.payload(&deal, "funds_held"))
        .await;
    world
        .happens(&world.market.buyer, &world.payload(&deal, "accepted"))
        .await;
    let released = world.payload(&deal, "released");
    let other = world.post(&world.second_holder, &released).await;
    assert_eq!((other.status, other.error()), (403, "action_forbidden"));
    assert_eq!(world.view(&deal).await["status"], "held");
    world.happens(&world.holder, &released).await;

    let deal = world.deal().await;
    world
        .happens(&world.second_holder, &world.payload(&deal, "funds_held"))
        .await;
    let rejected = world.rejection(&deal, "not_as_described");
    world.happens(&world.market.buyer, &rejected).await;
    world
        .happens(&world.carrier, &world.payload(&deal, "return"))
        .await;
    let refund = world.payload(&deal, "refund");
    let other = world.post(&world.holder, &refund).await;
    assert_eq!((other.status, other.error()), (403, "action_forbidden"));
    world.happens(&world.second_holder, &refund).await;
    assert_eq!(world.view(&deal).await["status"], "refunded");
}

fn event_jws(agent: &Agent, payload: &Value) -> String {
    let bytes = payload.to_string().into_bytes();
    // In the binding's own word.
    jws::sign("rctp-deal-event+jwt", &bytes, agent.signer.key()).unwrap()
}

async fn the_money_goes_to_the_seller_on_each_release_condition(backing: Backing) {
    let world = World::on(backing).await;
    let buyer = &world.market.buyer;
    for condition in [None, Some("accepted"), Some("delivered"), Some("shipped")] {
        let terms = PublicTerms {
            release_condition: condition.map(str::to_owned),
            ..public_terms()
        };
        let deal = world.deal_under(terms).await;
        let release = || world.payload(&deal, "released");
        world.is_unmet(&world.holder, &release()).await;
        world
            .happens(&world.holder, &world.payload(&deal, "funds_held"))
            .await;
        assert_eq!(world.view(&deal).await["status"], "held");
        let steps = [
            ("shipped", &world.carrier),
            ("delivered", &world.carrier),
            ("accepted", buyer),
        ];
        let mut told = vec!["funds_held"];
        for (event, agent) in steps {
            world.is_unmet(&world.holder, &release()).await;
            world.market.clock.advance(1);
            world.happens(agent, &world.payload(&deal, event)).await;
            told.push(event);
            if event == condition.unwrap_or("accepted") {
                break;
            }
        }
        world.happens(&world.holder, &release()).await;
        told.push("released");
        assert_eq!(world.events(&deal).await, told);
        let view = world.view(&deal).await;
        assert_eq!(view["status"], "released");
        for event in &told {
            assert!(view[format!("{event}_at")].is_string(), "{event}: {view}");
        }
        let reject = world.rejection(&deal, "not_as_described");
        world.is_unmet(buyer, &reject).await;
        for event in ["refund", "released", "funds_held"] {
            world
                .is_unmet(&world.holder, &world.payload(&deal, event))
                .await;
        }
    }
}

async fn the_money_goes_back_when_the_goods_are_not_as_described(backing: Backing) {
    let world = World::on(backing).await;
    let seller = &world.market.seller;
    for returner in [seller, &world.carrier, &world.custodian] {
        let deal = world.deal().await;
        let refund = || world.payload(&deal, "refund");
        let back = || world.payload(&deal, "return");
        world
            .happens(&world.holder, &world.payload(&deal, "funds_held"))
            .await;
        world
            .happens(&world.relay, &world.relayed(&deal, "shipped"))
            .await;
        world.is_unmet(returner, &back()).await;
        let rejection = world.rejection(&deal, "not_as_described");
        world.happens(&world.market.buyer, &rejection).await;
        world.is_unmet(&world.holder, &refund()).await;
        world
            .is_unmet(&world.holder, &world.payload(&deal, "released"))
            .await;
        world.happens(returner, &back()).await;
        world.is_unmet(returner, &back()).await;
        world.happens(&world.holder, &refund()).await;
        world.is_unmet(&world.holder, &refund()).await;
        world
            .is_unmet(&world.holder, &world.payload(&deal, "released"))
            .await;
        let told = ["funds_held", "shipped", "rejected", "return", "refund"];
        assert_eq!(world.events(&deal).await, told);
        let view = world.view(&deal).await;
        assert_eq!(view["status"], "refunded");
        assert_eq!(view["rejected_reason"], "not_as_described");
        assert!(view["returned_at"].is_string() && view["refunded_at"].is_string());
    }
}

async fn the_money_goes_back_when_nothing_came(backing: Backing) {
    let world = World::on(backing).await;
    let buyer = &world.market.buyer;
    let deal = world.deal().await;
    world
        .happens(&world.holder, &world.payload(&deal, "funds_held"))
        .await;
    world
        .happens(&world.carrier, &world.payload(&deal, "returned_to_sender"))
        .await;
    let nothing = || world.rejection(&deal, "not_received");
    world.is_unmet(buyer, &nothing()).await;
    world.market.clock.advance(5 * DAY - 1);
    world.is_unmet(buyer, &nothing()).await;
    world.market.clock.advance(1);
    world.happens(buyer, &nothing()).await;
    world
        .happens(&world.holder, &world.payload(&deal, "refund"))
        .await;
    let told = ["funds_held", "returned_to_sender", "rejected", "refund"];
    assert_eq!(world.events(&deal).await, told);

    let without = PublicTerms {
        deliver_within_days: None,
        ..public_terms()
    };
    let deal = world.deal_under(without).await;
    world
        .happens(&world.holder, &world.payload(&deal, "funds_held"))
        .await;
    world.market.clock.advance(300 * DAY);
    let nothing = world.rejection(&deal, "not_received");
    world.is_unmet(buyer, &nothing).await;
}

async fn each_event_has_its_writers(backing: Backing) {
    let world = World::on(backing).await;
    let market = &world.market;
    let agents = [
        ("buyer", &market.buyer),
        ("seller", &market.seller),
        ("holder", &world.holder),
        ("carrier", &world.carrier),
        ("relay", &world.relay),
        ("custodian", &world.custodian),
    ];
    let all: Vec<&str> = agents.iter().map(|(name, _)| *name).collect();
    let deal = world.deal().await;
    let rows: [(Value, &[&str]); 14] = [
        (world.payload(&deal, "funds_held"), &["holder"]),
        (world.payload(&deal, "released"), &["holder"]),
        (world.payload(&deal, "refund"), &["holder"]),
        (world.payload(&deal, "accepted"), &["buyer"]),
        (world.rejection(&deal, "not_received"), &["buyer"]),
        (world.payload(&deal, "shipped"), &["carrier"]),
        (world.payload(&deal, "delivered"), &["carrier"]),
        (world.payload(&deal, "returned_to_sender"), &["carrier"]),
        (world.relayed(&deal, "shipped"), &["relay"]),
        (world.relayed(&deal, "delivered"), &["relay"]),
        (world.relayed(&deal, "returned_to_sender"), &["relay"]),
        (
            world.payload(&deal, "return"),
            &["seller", "carrier", "custodian"],
        ),
        (
            world.relayed(&deal, "return"),
            &["seller", "carrier", "custodian"],
        ),
        (
            world.payload(&deal, "example.carrier:picked_up_sealed"),
            &all,
        ),
    ];
    for (mut payload, writers) in rows {
        for (name, agent) in agents {
            payload["event_id"] = json!(format!("evt_{}", fresh_key()));
            let chain = market.chain(SubjectKind::Deal, &deal).await.len();
            let answer = world.post(agent, &payload).await;
            // What stands in the way of a writer is the order of things alone.
            let told = match (writers.contains(&name), answer.status) {
                (false, _) => (403, "action_forbidden"),
                (true, 201) => (201, ""),
                (true, _) => (409, "release_condition_unmet"),
            };
            assert_eq!(answer.refusal(), told, "{name}: {payload}");
            let grown = market.chain(SubjectKind::Deal, &deal).await;
            assert_eq!(grown.len(), chain + 1, "every decision is written down");
            let entry = grown.last().unwrap();
            fits("attestation-entry", entry);
            assert_eq!(entry["agent_profile"], json!(agent.profile));
            assert_eq!(entry.get("deal_event").is_some(), answer.status == 201);
        }
    }

    // Of the buyer's operator, but not its key; of nobody; and the seller's agent without its grant: strangers (R5).
    for agent in [&market.second, &market.other] {
        let answer = world.post(agent, &world.payload(&deal, "accepted")).await;
        assert_eq!(answer.refusal(), (404, "not_found"));
    }
    let event = event_jws(&market.seller, &world.payload(&deal, "return"));
    let post = async |token| {
        let request = world.request(&market.seller, token, &deal, &event);
        market.send(request).await
    };
    assert_eq!(post(None).await.refusal(), (404, "not_found"));
    let bound = |sub: &str| {
        let kid = Some(market.seller.kid());
        grant(sub, "client-seller", kid, Tier::Auto, NOW + 900)
    };
    market.grants.set("token-stranger", bound("sub_stranger"));
    assert_eq!(
        post(Some("token-stranger")).await.refusal(),
        (404, "not_found")
    );
    let mut revoked = bound(SELLER);
    revoked.grant_status = Some(GrantStatus::Revoked);
    market.grants.set("token-revoked", revoked);
    assert_eq!(
        post(Some("token-revoked")).await.refusal(),
        (403, "grant_revoked")
    );
}

async fn an_event_is_recorded_once(backing: Backing) {
    let world = World::on(backing).await;
    let deal = world.deal().await;
    let held = world.payload(&deal, "funds_held");
    let request = world.request(&world.holder, None, &deal, &event_jws(&world.holder, &held));
    let again = || {
        let mut copy = Request::new(request.body().clone());
        (*copy.method_mut(), *copy.uri_mut()) = (request.method().clone(), request.uri().clone());
        copy.headers_mut().clone_from(request.headers());
        copy
    };
    let first = world.market.send(again()).await;
    let second = world.market.send(again()).await;
    assert_eq!(
        (first.status, second.status),
        (201, 201),
        "the stored answer"
    );
    assert_eq!(first.body, second.body);
    // The same event under another key, and the same id for other events.
    world.is_unmet(&world.holder, &held).await;
    for event in ["shipped", "example.carrier:weighed"] {
        let mut same = world.payload(&deal, event);
        same["event_id"] = held["event_id"].clone();
        world.is_unmet(&world.carrier, &same).await;
    }
    // An id is the deal's: on another one it is free.
    let other = world.deal().await;
    let mut same = held.clone();
    same["deal_id"] = json!(other);
    world.happens(&world.holder, &same).await;
    assert_eq!(world.events(&deal).await, ["funds_held"]);
}

async fn of_two_that_exclude_each_other_one_is_recorded(backing: Backing) {
    let world = World::on(backing).await;
    let terms = PublicTerms {
        release_condition: Some("delivered".into()),
        ..public_terms()
    };
    for round in 0..4 {
        let deal = world.deal_under(terms.clone()).await;
        world
            .happens(&world.holder, &world.payload(&deal, "funds_held"))
            .await;
        world
            .happens(&world.carrier, &world.payload(&deal, "delivered"))
            .await;
        let (released, buyer) = (world.payload(&deal, "released"), &world.market.buyer);
        let rejected = world.rejection(&deal, "not_as_described");
        let twice = world.payload(&deal, "released");
        let (a, b, c) = match round % 2 {
            0 => tokio::join!(
                world.post(&world.holder, &released),
                world.post(buyer, &rejected),
                world.post(&world.holder, &twice),
            ),
            _ => tokio::join!(
                world.post(buyer, &rejected),
                world.post(&world.holder, &released),
                world.post(&world.holder, &twice),
            ),
        };
        let statuses = BTreeSet::from([a.status, b.status, c.status]);
        let recorded = [&a, &b, &c].into_iter().filter(|a| a.status == 201).count();
        assert_eq!((recorded, statuses), (1, BTreeSet::from([201, 409])));
        // A rejection that came first leads to a refund; two of them are one.
        if world.view(&deal).await["status"] == "held" {
            world
                .happens(&world.carrier, &world.payload(&deal, "return"))
                .await;
            let refunds = [(), ()].map(|()| world.payload(&deal, "refund"));
            let late = world.payload(&deal, "released");
            let (a, b, c) = tokio::join!(
                world.post(&world.holder, &refunds[0]),
                world.post(&world.holder, &refunds[1]),
                world.post(&world.holder, &late),
            );
            let mut statuses = [a.status, b.status];
            statuses.sort_unstable();
            assert_eq!((statuses, c.status), ([201, 409], 409));
        }
        let money = world.events(&deal).await;
        let money = money
            .iter()
            .filter(|e| ["released", "refund"].contains(&&***e));
        assert_eq!(money.count(), 1);
    }
}

async fn the_rules_are_those_of_the_acceptance(backing: Backing) {
    let world = World::on(backing).await;
    let listing = "lst_changing";
    let terms = PublicTerms {
        release_condition: Some("shipped".into()),
        deliver_within_days: Some(2),
        ..public_terms()
    };
    world.market.publish(listing, SELLER, terms).await;
    let offer = json!({"listing_id": listing, "deal_terms": deal_terms(FLOOR + 1)});
    let offer = world
        .market
        .buyer_post("/offers", &offer)
        .await
        .get("offer_id");
    let checkout = world.market.accept(&offer).await.get("checkout");
    // Between acceptance and redemption the terms become others, for future offers.
    world
        .market
        .change(Kind::Listing, listing, |listing: &mut Listing| {
            listing.terms.as_mut().unwrap().public = PublicTerms {
                release_condition: Some("accepted".into()),
                deliver_within_days: Some(60),
                ..public_terms()
            };
        })
        .await;
    let deal = world
        .market
        .buyer_post("/deals", &json!({"checkout": checkout}))
        .await;
    let deal = deal.get("deal_id");
    world
        .happens(&world.holder, &world.payload(&deal, "funds_held"))
        .await;
    world
        .happens(&world.carrier, &world.payload(&deal, "shipped"))
        .await;
    world.market.clock.advance(2 * DAY);
    let stored = world.market.stored(Kind::Deal, &deal).await.unwrap();
    let stored: Deal = serde_json::from_slice(&stored.body).unwrap();
    assert_eq!(stored.rules.deliver_within_days, Some(2));
    world
        .happens(&world.holder, &world.payload(&deal, "released"))
        .await;
}

/// Reference goods, whose delivery and acceptance count only when they are seen.
fn careful_goods() -> Value {
    let mut set = json!(TermSets::reference().get("goods-1").unwrap());
    set["name"] = json!("careful-goods");
    set["required_observation"] = json!({"delivered": "first_hand", "return": "first_hand"});
    set
}

async fn an_event_without_the_required_observation_is_recorded_and_does_not_count(
    backing: Backing,
) {
    let set: TermSet = serde_json::from_value(careful_goods()).unwrap();
    let world = World::with(backing, |b| b.term_set(set)).await;
    let listing = "lst_careful";
    let terms = PublicTerms {
        release_condition: Some("delivered".into()),
        ..public_terms()
    };
    world.market.publish(listing, SELLER, terms).await;
    let change = |listing: &mut Listing| listing.term_set = "careful-goods".into();
    world.market.change(Kind::Listing, listing, change).await;
    let deal = world.deal_on(listing).await;
    world
        .happens(&world.holder, &world.payload(&deal, "funds_held"))
        .await;
    // Not required of it, so it counts.
    world
        .happens(&world.relay, &world.relayed(&deal, "shipped"))
        .await;
    let relayed = world
        .post(&world.relay, &world.relayed(&deal, "delivered"))
        .await;
    assert_eq!(
        (relayed.status, &relayed.body["counts"]),
        (201, &json!(false))
    );
    fits("deal-event-recorded", &relayed.body);
    assert!(world.view(&deal).await["delivered_at"].is_null());
    world
        .is_unmet(&world.holder, &world.payload(&deal, "released"))
        .await;
    world
        .happens(&world.carrier, &world.payload(&deal, "delivered"))
        .await;
    world
        .happens(&world.holder, &world.payload(&deal, "released"))
        .await;
    let told = [
        "funds_held",
        "shipped",
        "delivered",
        "delivered",
        "released",
    ];
    assert_eq!(world.events(&deal).await, told);
}

#[test]
fn a_required_observation_is_of_what_can_be_observed() {
    let check = |required: Value| {
        let mut set = careful_goods();
        set["required_observation"] = required;
        let set = serde_json::from_value::<TermSet>(set).map_err(|e| e.to_string())?;
        set.check()
    };
    assert_eq!(
        check(json!({"shipped": "relayed", "accepted": "first_hand"})),
        Ok(())
    );
    for wrong in [
        json!({"released": "first_hand"}),
        json!({"refund": "first_hand"}),
        json!({"funds_held": "first_hand"}),
        json!({"example.carrier:weighed": "first_hand"}),
        json!({"weighed": "first_hand"}),
        json!({"shipped": "hearsay"}),
    ] {
        assert!(check(wrong.clone()).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn an_extension_event_is_informative_and_anybodys_who_has_a_part() {
    let world = World::on(Backing::memory().await).await;
    let deal = world.deal().await;
    let market = &world.market;
    let before = world.view(&deal).await;
    for agent in [
        &market.buyer,
        &market.seller,
        &world.holder,
        &world.carrier,
        &world.relay,
    ] {
        let extension = world.payload(&deal, "example.carrier:picked_up_sealed");
        let answer = world.post(agent, &extension).await;
        assert_eq!(
            (answer.status, &answer.body["counts"]),
            (201, &json!(false))
        );
    }
    assert_eq!(world.view(&deal).await, before);
    assert_eq!(world.events(&deal).await.len(), 5);
    let stranger = world.payload(&deal, "example.carrier:picked_up_sealed");
    assert_eq!(
        world.post(&market.other, &stranger).await.refusal(),
        (404, "not_found")
    );
}

/// Binding 8.1: the key, the `typ`, the payload. Nothing of it changes the deal.
#[tokio::test]
async fn an_event_that_is_not_signed_by_the_requests_own_key_is_refused() {
    let world = World::on(Backing::memory().await).await;
    let (deal, other) = (world.deal().await, world.deal().await);
    let (holder, market) = (&world.holder, &world.market);
    let payload = world.payload(&deal, "funds_held");
    let bytes = |payload: &Value| payload.to_string().into_bytes();
    let key = holder.signer.key();
    let good = event_jws(holder, &payload);
    let [head, body, signature] = *good.split('.').collect::<Vec<_>>() else {
        panic!("three parts");
    };
    let encode = |text: &str| tower_rctp::wire::base64url(text.as_bytes());
    let kid = key.kid().as_str();
    let typ = |typ: &str| jws::sign(typ, &bytes(&payload), key).unwrap();
    let anothers = SigningKey::generate().unwrap();
    let with_head = |header: Value| {
        let signed = format!("{}.{body}", encode(&header.to_string()));
        let signature = key.sign(signed.as_bytes()).unwrap();
        format!("{signed}.{}", tower_rctp::wire::base64url(&signature))
    };
    let forged = [
        (
            "another key's",
            jws::sign(EVENT_TYP, &bytes(&payload), &anothers).unwrap(),
        ),
        (
            "the carrier's, posted by the holder",
            event_jws(&world.carrier, &payload),
        ),
        ("a checkout", typ("rctp-checkout+jwt")),
        ("an entry", typ("rctp-entry+jwt")),
        ("the typ in other letters", typ("RCTP-deal-event+jwt")),
        ("no typ", with_head(json!({"alg": "ES256", "kid": kid}))),
        (
            "alg none",
            format!(
                "{}.{body}.{signature}",
                encode(r#"{"alg":"none","typ":"rctp-deal-event+jwt"}"#)
            ),
        ),
        (
            "alg HS256",
            with_head(json!({"alg": "HS256", "typ": EVENT_TYP, "kid": kid})),
        ),
        (
            "another kid",
            with_head(json!({"alg": "ES256", "typ": EVENT_TYP, "kid": anothers.kid()})),
        ),
        (
            "crit",
            with_head(json!({"alg": "ES256", "typ": EVENT_TYP, "kid": kid, "crit": ["x"]})),
        ),
        (
            "another member",
            with_head(json!({"alg": "ES256", "typ": EVENT_TYP, "kid": kid, "note": "Jane Doe"})),
        ),
        (
            "another payload",
            format!(
                "{head}.{}.{signature}",
                encode(&world.payload(&deal, "released").to_string())
            ),
        ),
        (
            "another signature",
            format!("{head}.{body}.{}", tower_rctp::wire::base64url(&[7; 64])),
        ),
        (
            "a short signature",
            format!("{head}.{body}.{}", &signature[..20]),
        ),
        ("no JSON in the header", format!("AAAA.{body}.{signature}")),
    ];
    for (what, event) in &forged {
        let request = world.request(holder, None, &deal, event);
        let answer = market.send(request).await;
        assert_eq!(answer.refusal(), (401, "signature_invalid"), "{what}");
        assert_eq!(
            answer.decision(),
            "forbid;reason=signature_invalid",
            "{what}"
        );
    }
    // Refused by the right caller's own fault, and recorded as such; no payload is repeated.
    let chain = market.chain(SubjectKind::Deal, &deal).await;
    assert_eq!(chain.len(), 1 + forged.len());
    assert!(chain.iter().all(|entry| entry.get("deal_event").is_none()));

    // A detached one does not pass the schema.
    let detached = jws::sign_detached(EVENT_TYP, &bytes(&payload), key).unwrap();
    let request = world.request(holder, None, &deal, &detached);
    assert_eq!(
        market.send(request).await.refusal(),
        (400, "invalid_request")
    );
    // Unsigned requests, whatever they carry.
    let path = format!("/deals/{deal}/events");
    let answer = market
        .oauth_post(common::SELLER_UNBOUND, &path, &json!({"event": good}))
        .await;
    assert_eq!(answer.refusal(), (401, "signature_invalid"));
    // A whole event of another deal.
    let request = world.request(holder, None, &other, &good);
    assert_eq!(
        market.send(request).await.refusal(),
        (400, "invalid_request")
    );
    assert!(world.events(&deal).await.is_empty() && world.events(&other).await.is_empty());
    // And the good one is still good; without a kid too, since the request has named the key.
    let request = world.request(holder, None, &deal, &good);
    assert_eq!(market.send(request).await.status, 201);
    let mut shipped = world.payload(&deal, "shipped");
    shipped["event_id"] = json!("evt_x");
    let head = encode(&json!({"alg": "ES256", "typ": EVENT_TYP}).to_string());
    let signed_part = format!("{head}.{}", encode(&shipped.to_string()));
    let signature = world
        .carrier
        .signer
        .key()
        .sign(signed_part.as_bytes())
        .unwrap();
    let nameless = format!("{signed_part}.{}", tower_rctp::wire::base64url(&signature));
    let request = world.request(&world.carrier, None, &deal, &nameless);
    assert_eq!(market.send(request).await.status, 201);
}

/// INV-9: nothing that names a person fits, and what is refused is not repeated.
#[tokio::test]
async fn an_event_has_no_place_for_people() {
    let world = World::on(Backing::memory().await).await;
    let deal = world.deal().await;
    let mut full = {
        let mut full = world.relayed(&deal, "shipped");
        full["city"] = json!("Zürich");
        full["evidence"] = json!([format!("sha-256:{}", "a".repeat(64))]);
        full
    };
    assert_eq!(validate("deal-event", &full), Ok(()));
    for city in [
        "Saint-Denis",
        "L'Aquila",
        "Łódź",
        "Αθήνα",
        "القاهرة",
        "東京",
        "서울",
        "मुंबई",
    ] {
        full["city"] = json!(city);
        let read = DealEvent::read(full.to_string().as_bytes());
        assert_eq!(read.map(|event| event.city), Ok(Some(city.to_owned())));
    }
    let with = |name: &str, value: Value| {
        let mut payload = full.clone();
        payload[name] = value;
        payload
    };
    let without = |name: &str| {
        let mut payload = full.clone();
        payload.as_object_mut().unwrap().remove(name);
        payload
    };
    let hash = |n: usize| format!("sha-256:{n:064x}");
    let wrong = [
        with("name", json!("Jane Doe")),
        with("event", json!("dev.rctp:released")),
        with("event", json!("dev.rctp.deal:released")),
        with("event", json!("dev.ucp.shopping:refund")),
        with("address", json!("Bahnhofstrasse 1")),
        with("phone", json!("+41791234567")),
        with("note", json!("left with the neighbour")),
        with("recipient", json!({"name": "Jane Doe"})),
        with("city", json!("Bahnhofstrasse 1")),
        with("city", json!("8001 Zürich")),
        with("city", json!("+41 79 123 45 67")),
        with("city", json!("Zürich, Bahnhofstrasse")),
        with("city", json!("Z\nürich")),
        with("city", json!("Dubai ٠٥٠١٢٣٤٥٦٧")),
        with("city", json!("Z".repeat(65))),
        with("city", json!({"street": "Bahnhofstrasse"})),
        with("evidence", json!(["a photo of Jane Doe"])),
        with("evidence", json!([])),
        with("evidence", json!((0..17).map(hash).collect::<Vec<_>>())),
        with("evidence", json!([hash(1), hash(1)])),
        with("reported_by", json!("Jane Doe")),
        with("reported_by", json!("https://jane@post.example/")),
        with("reported_by", json!("mailto:jane@post.example")),
        with("source_event_id", json!("Jane Doe, 17")),
        with("event_id", json!("off_1")),
        with("event_id", json!("evt_Jane Doe")),
        with("event", json!("example.carrier:Jane Doe")),
        with("event", json!("picked_up")),
        with("event", json!("nodomain:picked_up")),
        with("observation", json!("hearsay")),
        with("occurred_at", json!("yesterday")),
        with("reason", json!("not_received")),
        with("event", json!("rejected")),
        without("observation"),
        without("reported_by"),
        without("source_event_id"),
        without("occurred_at"),
        with("observation", json!("first_hand")),
    ];
    for payload in &wrong {
        let answer = world.post(&world.relay, payload).await;
        let what = payload.to_string();
        if payload["deal_id"].is_string() {
            assert_eq!(answer.refusal(), (400, "invalid_request"), "{what}");
        }
        let told = answer.body.to_string();
        for private in ["Jane", "Bahnhof", "neighbour", "123"] {
            assert!(!told.contains(private), "{told}");
        }
    }
    // Nor does what two readers would read differently.
    let twice = full
        .to_string()
        .replacen('{', r#"{"event":"delivered","#, 1);
    let signed = jws::sign(EVENT_TYP, twice.as_bytes(), world.relay.signer.key()).unwrap();
    let request = world.request(&world.relay, None, &deal, &signed);
    assert_eq!(
        world.market.send(request).await.refusal(),
        (400, "invalid_request")
    );
    let chain = world.market.chain(SubjectKind::Deal, &deal).await;
    assert_eq!(chain.len(), 1, "a protocol error is no decision");
}

async fn the_record_is_read_in_pages_with_a_signed_head(backing: Backing) {
    let world = World::on(backing).await;
    let deal = world.deal().await;
    let market = &world.market;
    world
        .happens(&world.holder, &world.payload(&deal, "funds_held"))
        .await;
    for _ in 0..5 {
        let answer = world
            .post(
                &market.buyer,
                &world.payload(&deal, "example.carrier:asked"),
            )
            .await;
        assert_eq!(answer.status, 201);
    }
    for reader in [&market.buyer, &market.seller, &world.holder, &world.carrier] {
        let answer = world.read(reader, &deal, "").await;
        assert_eq!((answer.status, answer.decision()), (200, ""));
        assert_eq!(answer.body["entries"].as_array().unwrap().len(), 7);
        assert_eq!(answer.body.get("next"), None);
    }
    for stranger in [
        &market.second,
        &market.other,
        &world.relay,
        &world.custodian,
    ] {
        let answer = world.read(stranger, &deal, "").await;
        assert_eq!(answer.refusal(), (404, "not_found"));
    }
    let mut entries = Vec::new();
    let mut query = "?limit=3".to_owned();
    loop {
        let answer = world.read(&market.buyer, &deal, &query).await;
        fits("deal-events", &answer.body);
        entries.extend(answer.body["entries"].as_array().unwrap().iter().cloned());
        let head = verify_head(&answer.body["head"], &world.keys()).unwrap();
        assert_eq!(head.seq, 6);
        match answer.body["next"].as_u64() {
            Some(next) => query = format!("?from={next}&limit=3"),
            None => break,
        }
    }
    let whole = market.chain(SubjectKind::Deal, &deal).await;
    assert_eq!(entries, whole);
    let commitment = whole[0]["terms_commitment"].clone();
    for entry in &whole[1..] {
        assert_eq!(
            entry["terms_commitment"], commitment,
            "where terms apply (8.2)"
        );
        let event = entry["deal_event"]["jws"].as_str().unwrap();
        let parsed = jws::Compact::parse(event).unwrap();
        let signer = match entry["deal_event"]["event"].as_str() {
            Some("funds_held") => &world.holder,
            _ => &market.buyer,
        };
        let payload = parsed
            .verify(EVENT_TYP, signer.signer.key().public_key())
            .unwrap();
        let payload: Value = serde_json::from_slice(payload).unwrap();
        assert_eq!(payload["deal_id"], deal);
    }
    // A head is over what it says, and by the gateway.
    let head = world.read(&market.buyer, &deal, "").await.body["head"].clone();
    for (member, value) in [
        ("seq", json!(5)),
        ("hash", whole[6]["prev_hash"].clone()),
        ("subject", json!({"type": "deal", "id": "deal_other"})),
        ("jws", whole[6]["jws"].clone()),
        ("jws", json!("e30..AA")),
        ("more", json!(1)),
    ] {
        let mut other = head.clone();
        other[member] = value;
        assert!(verify_head(&other, &world.keys()).is_err(), "{member}");
    }
    let strangers = json!([world.holder.signer.key().public_jwk()]);
    let strangers = Keys::parse(&strangers, default_provider()).unwrap();
    assert!(verify_head(&head, &strangers).is_err());

    let empty = world.read(&market.buyer, &deal, "?from=7").await;
    assert_eq!(empty.body["entries"], json!([]));
    for query in [
        "?from=-1",
        "?from=x",
        "?limit=0",
        "?limit=101",
        "?from=1&from=2",
        "?after=off_1",
        "?from=99999999999999999999",
    ] {
        let answer = world.read(&market.buyer, &deal, query).await;
        assert_eq!(answer.refusal(), (400, "invalid_request"), "{query}");
    }
}

/// A deal that was made before there were events reads as one without any.
#[tokio::test]
async fn a_deal_of_before_has_the_default_rules() {
    let world = World::on(Backing::memory().await).await;
    let deal = world.deal().await;
    let strip = |stored: &mut Value| {
        let members = stored.as_object_mut().unwrap();
        assert!(members.remove("rules").is_some() && members.remove("progress").is_some());
    };
    world.market.change(Kind::Deal, &deal, strip).await;
    world
        .happens(&world.holder, &world.payload(&deal, "funds_held"))
        .await;
    world.market.clock.advance(50 * DAY);
    let nothing = world.rejection(&deal, "not_received");
    world.is_unmet(&world.market.buyer, &nothing).await;
    world
        .happens(&world.market.buyer, &world.payload(&deal, "accepted"))
        .await;
    world
        .happens(&world.holder, &world.payload(&deal, "released"))
        .await;
    let view = world.view(&deal).await;
    assert_eq!(
        view["accepted_at"],
        json!(Timestamp::from_secs(NOW + 50 * DAY))
    );
    assert_eq!(view["deal_terms"]["price"]["currency"], CURRENCY);
}

// ---- Anybody verifies it --------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_record_is_verified_with_the_keys_of_the_gateway_and_of_the_writers() {
    let world = World::on(Backing::memory().await).await;
    let deal = world.deal().await;
    world
        .happens(&world.holder, &world.payload(&deal, "funds_held"))
        .await;
    world
        .happens(&world.carrier, &world.payload(&deal, "shipped"))
        .await;
    world
        .is_unmet(&world.holder, &world.payload(&deal, "released"))
        .await;
    let answer = world.read(&world.market.buyer, &deal, "").await.body;
    let entries = answer["entries"].as_array().unwrap();
    let heads = [answer["head"].clone()];
    let set = |agents: &[&Agent]| {
        let jwks: Vec<Value> = agents.iter().map(|a| a.signer.key().public_jwk()).collect();
        Keys::parse(&json!(jwks), default_provider()).unwrap()
    };
    let (keys, writers) = (world.keys(), set(&[&world.holder, &world.carrier]));
    let verified = |entries: &[Value], heads: &[Value], writers: &Keys| {
        verify_record(entries, heads, &keys, writers).map_err(|e| e.to_string())
    };
    let whole = verified(entries, &heads, &writers).unwrap();
    assert_eq!((&*whole.subject.id, whole.is_covered()), (&*deal, true));
    let told = whole.told;
    let lines: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert!(lines[0].contains("create_deal: auto"), "{lines:?}");
    assert!(
        lines[1].contains("post_deal_event: auto: funds_held evt_"),
        "{lines:?}"
    );
    assert!(lines[2].contains("signed by its writer"), "{lines:?}");
    assert!(
        lines[3].contains("post_deal_event: forbid (release_condition_unmet)"),
        "{lines:?}"
    );
    let holders_alone = verified(entries, &heads, &set(&[&world.holder]))
        .unwrap()
        .told;
    let signed = |n: usize| holders_alone[n].event.as_ref().unwrap().1;
    assert_eq!(
        (signed(1), signed(2)),
        (WriterSignature::Verified, WriterSignature::KeyUnknown)
    );

    // A cut tail fits by itself, and not its head.
    let short = &entries[..3];
    let uncovered = verified(short, &[], &writers).unwrap();
    assert_eq!((uncovered.covered, uncovered.is_covered()), (0, false));
    assert_eq!(
        verified(&[], &[], &writers),
        Err("there is no entry".into())
    );
    assert!(
        verified(short, &heads, &writers)
            .unwrap_err()
            .contains("tail is cut")
    );
    let other = world.deal().await;
    let other = world.read(&world.market.buyer, &other, "").await.body["head"].clone();
    assert!(
        verified(entries, &[other], &writers)
            .unwrap_err()
            .contains("another chain")
    );
    // A gateway that makes up events is found out by whoever has the writers' keys.
    let forge = |change: &dyn Fn(&mut Entry)| {
        let mut prev = FIRST_PREV_HASH.to_owned();
        let mut chain = Vec::new();
        for (n, entry) in entries.iter().enumerate() {
            let mut members = entry.clone();
            for member in ["seq", "prev_hash", "jws"] {
                members.as_object_mut().unwrap().remove(member);
            }
            let mut entry: Entry = serde_json::from_value(members).unwrap();
            if n == 2 {
                change(&mut entry);
            }
            let sealed = world
                .market
                .gateway_key
                .seal(&entry, n as u64, &prev)
                .unwrap();
            prev = sealed.hash;
            chain.push(serde_json::from_slice::<Value>(&sealed.published).unwrap());
        }
        verified(&chain, &[], &writers)
    };
    assert!(forge(&|_| {}).is_ok());
    let mine = |payload: Value| {
        let bytes = payload.to_string().into_bytes();
        jws::sign(EVENT_TYP, &bytes, &world.market.gateway_key).unwrap()
    };
    let delivered = || world.payload(&deal, "delivered");
    let first = entries[1]["deal_event"]["jws"].as_str().unwrap().to_owned();
    let kid = world.carrier.kid().to_owned();
    type Change<'c> = Box<dyn Fn(&mut Entry) + 'c>;
    let cases: [(&str, Change<'_>); 5] = [
        (
            "another name",
            Box::new(|e| e.deal_event.as_mut().unwrap().event = "delivered".parse().unwrap()),
        ),
        (
            "another id",
            Box::new(|e| e.deal_event.as_mut().unwrap().event_id = "evt_1".into()),
        ),
        (
            "the gateway's own",
            Box::new(|e| e.deal_event.as_mut().unwrap().jws = mine(delivered())),
        ),
        (
            "another's",
            Box::new(|e| e.deal_event.as_mut().unwrap().jws = first.clone()),
        ),
        (
            "no kid, and nobody's signature",
            Box::new(|e| {
                let event = e.deal_event.as_mut().unwrap();
                let head = json!({"alg": "ES256", "typ": EVENT_TYP, "kid": kid}).to_string();
                let rest = event.jws.split_once('.').unwrap().1.to_owned();
                let rest = rest.split_once('.').unwrap().0.to_owned();
                let encode = |bytes: &[u8]| tower_rctp::wire::base64url(bytes);
                event.jws = format!("{}.{rest}.{}", encode(head.as_bytes()), encode(&[9; 64]));
            }),
        ),
    ];
    for (what, change) in &cases {
        let error = forge(change.as_ref()).unwrap_err();
        assert!(error.starts_with("entry 2 does not fit"), "{what}: {error}");
    }
}
