//! Binding 8.1: deal events. First the rules alone, row by row and as properties; then over HTTP, on both stores.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

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
        );
        vec(
            attempt.prop_map(|(event, reason, observation, writer, id, later)| Attempt {
                event,
                reason,
                observation,
                writer,
                id,
                later,
            }),
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
        let has = |role| writer.roles.contains(&role);
        let first_hand = attempt.observation == FirstHand;
        let theirs = match attempt.event.as_str() {
            "funds_held" | "released" | "refund" => has(Role::FundsHolder),
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
        let find = |name: &str| {
            history
                .iter()
                .find(|r| r.counts && r.event.as_str() == name)
        };
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
                    Some((buyer, seller, roles)) => Writer { buyer: *buyer, seller: *seller, roles },
                    None if attempt.observation == Relayed && writers(&attempt.event) == [CARRIER] => MARKETPLACE,
                    None => writers(&attempt.event)[0],
                };
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
