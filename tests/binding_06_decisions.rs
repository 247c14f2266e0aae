//! Binding 6 and 6.1: auto, ask or forbid, as the pure function that every surface calls.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use http::StatusCode;
use proptest::{prelude::*, sample::select};
use tower_rctp::protocol::{
    approval::{Approval, ApprovalStatus, Asker},
    caller::{Agent, Caller, Mechanism, Role},
    deal::{Checkout, Deal},
    decision::{
        Decision, Facts, NewListing, NewOffer, NotADecision, OnTimeout, Requested, Verdict, decide,
    },
    event::{Progress, Rules},
    grant::Grant,
    listing::{ConfirmedTerms, Listing, ListingState},
    money::{MAX_AMOUNT, Money},
    offer::{Acceptance, By, DealTerms, Fulfillment, Offer, OfferState, Payment},
    operation::{FloorRule, Op, Operation, Side, TABLE, TierRule, Verb},
    policy::{OfferBudget, Policy, Tier, Tiers},
    profile::Duties,
    question::{self, Question},
    record::{Entry, Subject, SubjectKind},
    refusal::{Code, ProtocolError, Reason, Refusal},
    term_set::TermSets,
    terms::{BuyerRequirements, Floor, FulfillmentOption, PrivateTerms, PublicTerms},
    time::Timestamp,
};

const NOW: Timestamp = Timestamp::from_secs(1_793_530_800);
const HOUR: i64 = 3600;
const FLOOR: u64 = 10_000;
const SELLER: &str = "pw_seller";
const SELLER_OPERATOR: &str = "https://seller-agents.example/.well-known/ucp";
const BUYER_OPERATOR: &str = "https://buyer-agents.example/.well-known/ucp";

/// The rows on which a seller's agent acts under a tier.
const TIERED: [Op; 7] = [
    Op::CreateListing,
    Op::SetListingTerms,
    Op::RepriceListing,
    Op::AnswerBuyer,
    Op::CounterOffer,
    Op::AcceptOffer,
    Op::CommitToShip,
];
/// The rows that hold a price against the floor.
const FLOORED: [Op; 4] = [
    Op::CreateOffer,
    Op::RepriceListing,
    Op::CounterOffer,
    Op::AcceptOffer,
];
const OFFER_STATES: [OfferState; 7] = [
    OfferState::Open,
    OfferState::AwaitingApproval,
    OfferState::Countered,
    OfferState::Superseded,
    OfferState::Accepted,
    OfferState::Declined,
    OfferState::Expired,
];

// ---------------------------------------------------------------------------------------------------------------
// The decision table of binding 6

mod the_decision_table {
    use super::*;

    #[test]
    fn auto_is_one_word() {
        assert_eq!(Decision::Auto.to_header(), "auto");
    }

    #[test]
    fn ask_carries_the_approval_its_time_and_that_silence_denies() {
        let ask = Decision::Ask {
            approval_id: "apr_7Hq".into(),
            expires_in: 900,
            on_timeout: OnTimeout::Deny,
        };
        assert_eq!(
            ask.to_header(),
            r#"ask;approval_id="apr_7Hq";expires_in=900;on_timeout=deny"#
        );
    }

    #[test]
    fn forbid_carries_the_verb_and_the_reason() {
        let refusal = Case::of(Op::AcceptOffer)
            .with(|c| c.offer().deal_terms.price.amount = FLOOR - 1)
            .refusal();
        assert_eq!(
            refusal.decision().unwrap().to_header(),
            r#"forbid;action="offer.accept";reason=below_floor"#
        );
        let response = refusal.to_response();
        assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(
            response.headers()["rctp-decision"],
            r#"forbid;action="offer.accept";reason=below_floor"#
        );
        assert_eq!(response.headers()["content-type"], "application/json");
    }

    #[test]
    fn an_exhausted_budget_is_429_and_says_when_to_retry() {
        let refusal = Case::of(Op::CreateOffer)
            .with(|c| c.facts.own_count = vec![NOW.plus(-23 * HOUR); 3])
            .refusal();
        assert_eq!(
            refusal.decision().unwrap().to_header(),
            r#"forbid;action="offer.create";reason=offer_budget_exhausted;retry_after=3600"#
        );
        let response = refusal.to_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], "3600");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["error"], "offer_budget_exhausted");
        assert_eq!(body["retry_after"], 3600);
    }

    #[test]
    fn every_reason_has_its_status() {
        use Reason::*;
        let of = |status: u16| -> Vec<Reason> {
            Reason::ALL
                .into_iter()
                .filter(|r| r.status().as_u16() == status)
                .collect()
        };
        assert_eq!(of(401), [SignatureInvalid, OperatorUnknown, GrantInvalid]);
        assert_eq!(
            of(403),
            [GrantRevoked, GrantExpired, ActionForbidden, NotInScope]
        );
        assert_eq!(
            of(409),
            [
                ListingReserved,
                OfferReplayed,
                OfferExpired,
                ReleaseConditionUnmet
            ]
        );
        assert_eq!(of(422), [TermsInvalid, BelowFloor]);
        assert_eq!(of(429), [OfferBudgetExhausted]);
    }

    #[test]
    fn a_protocol_error_states_no_decision() {
        for (error, status, code) in [
            (ProtocolError::InvalidRequest, 400, "invalid_request"),
            (ProtocolError::TooLarge, 413, "invalid_request"),
            (ProtocolError::NotFound, 404, "not_found"),
            (
                ProtocolError::UnsupportedVersion,
                400,
                "unsupported_version",
            ),
            (
                ProtocolError::IdempotencyConflict,
                409,
                "idempotency_conflict",
            ),
            (ProtocolError::Unavailable, 503, "unavailable"),
        ] {
            let refusal = Refusal::protocol(error, "why").action(Some(Verb::OfferAccept));
            assert_eq!(refusal.decision(), None);
            let response = refusal.to_response();
            assert_eq!(response.status().as_u16(), status);
            assert!(!response.headers().contains_key("rctp-decision"));
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body, serde_json::json!({"error": code, "message": "why"}));
        }
    }
}

mod the_header {
    use super::*;

    fn decisions() -> impl Strategy<Value = Decision> {
        let ask =
            ("apr_[A-Za-z0-9_-]{1,64}", 0..=999_999_999_999_999_u64).prop_map(|(id, secs)| {
                Decision::Ask {
                    approval_id: id,
                    expires_in: secs,
                    on_timeout: OnTimeout::Deny,
                }
            });
        let verbs: Vec<Verb> = TABLE.iter().filter_map(|row| row.verb).collect();
        let forbid = (
            proptest::option::of(select(verbs)),
            select(Reason::ALL.to_vec()),
            proptest::option::of(0..=999_999_999_999_999_u64),
        )
            .prop_map(|(action, reason, retry_after)| Decision::Forbid {
                action,
                reason,
                retry_after,
            });
        prop_oneof![Just(Decision::Auto), ask, forbid]
    }

    proptest! {
        #[test]
        fn is_a_structured_item_and_reads_back_as_what_was_written(decision in decisions()) {
            let header = decision.to_header();
            let text = header.to_str().unwrap();
            let item = sfv::Parser::new(text)
                .with_version(sfv::Version::Rfc9651)
                .parse::<sfv::Item>()
                .unwrap();
            let token = matches!(&item.bare_item, sfv::BareItem::Token(t) if t.as_str() == decision.outcome());
            prop_assert!(token, "{}", text);
            prop_assert_eq!(text.parse::<Decision>(), Ok(decision.clone()));
            prop_assert_eq!(decision.to_string(), text);

            let value = serde_json::to_value(&decision).unwrap();
            prop_assert_eq!(&value["decision"], decision.outcome());
            prop_assert_eq!(serde_json::from_value::<Decision>(value).unwrap(), decision);
        }

        #[test]
        fn reading_one_never_panics(text in "\\PC{0,60}") {
            let _ = text.parse::<Decision>();
        }
    }

    #[test]
    fn what_is_no_decision_is_not_read_as_one() {
        for text in [
            "",
            "Auto",
            "\"auto\"",
            "auto, auto",
            "ask",
            "ask;approval_id=\"apr_1\";expires_in=900",
            "ask;approval_id=\"apr_1\";expires_in=900;on_timeout=allow",
            "ask;approval_id=\"apr_1\";expires_in=-1;on_timeout=deny",
            "ask;expires_in=900;on_timeout=deny",
            "forbid",
            "forbid;reason=because",
            "forbid;action=\"offer.steal\";reason=below_floor",
            "allow",
        ] {
            assert_eq!(text.parse::<Decision>(), Err(NotADecision), "{text}");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// 6.1: which verb each operation evaluates

mod which_verb_each_operation_evaluates {
    use super::*;

    #[test]
    fn the_table_says_what_the_binding_says() {
        use FloorRule::{None as NoFloor, Offer as OfferPrice, Requested as Price};
        use TierRule::{Ask, Forbid, Grant, None as NoTier};
        // P rows: the verb is the seller's, the buyer of the offer gets its own answer (R3).
        let rows = [
            ("/listings", Side::Seller, "listing.create", NoFloor, Grant),
            (
                "/listings/{id}/terms",
                Side::Seller,
                "listing.set_terms",
                NoFloor,
                Ask,
            ),
            (
                "/listings/{id}/price",
                Side::Seller,
                "listing.reprice",
                Price,
                Grant,
            ),
            (
                "/listings/{id}/answers",
                Side::Seller,
                "listing.answer_buyer",
                NoFloor,
                Grant,
            ),
            ("/offers", Side::Buyer, "offer.create", Price, NoTier),
            (
                "/offers/{id}/counter",
                Side::Party,
                "offer.counter",
                Price,
                Grant,
            ),
            (
                "/offers/{id}/accept",
                Side::Party,
                "offer.accept",
                OfferPrice,
                Grant,
            ),
            (
                "/deals/{id}/commit-to-ship",
                Side::Seller,
                "deal.commit_to_ship",
                NoFloor,
                Grant,
            ),
            (
                "/deals/{id}/contract",
                Side::Seller,
                "deal.sign_contract",
                NoFloor,
                Forbid,
            ),
            ("/account", Side::Seller, "account.update", NoFloor, Forbid),
        ];
        let found: Vec<_> = TABLE
            .iter()
            .filter_map(|row| {
                let verb = row.verb?.as_str();
                assert_eq!(row.method, http::Method::POST);
                Some((row.path, row.side, verb, row.floor, row.tier))
            })
            .collect();
        assert_eq!(found, rows);
    }

    #[test]
    fn everything_in_order_under_auto_is_carried_out() {
        for row in &TABLE {
            if row.op == Op::RespondApproval || row.tier == TierRule::Forbid {
                continue;
            }
            let expected = match row.tier {
                TierRule::Ask => asked(900),
                _ => Verdict::Auto,
            };
            assert_eq!(Case::of(row.op).verdict(), expected, "{}", row.name);
        }
    }

    #[test]
    fn under_ask_every_granted_verb_is_parked() {
        for op in TIERED {
            let case = Case::of(op).with(|c| c.tier(Tier::Ask));
            assert_eq!(case.verdict(), asked(900), "{op:?}");
        }
    }

    #[test]
    fn under_forbid_every_granted_verb_is_403_whether_or_not_it_was_approved() {
        for op in TIERED {
            for approved in [false, true] {
                let case = Case::of(op).with(|c| {
                    c.tier(Tier::Forbid);
                    c.facts.approved = approved;
                });
                assert_eq!(case.reason(), Reason::ActionForbidden, "{op:?}");
            }
        }
    }

    #[test]
    fn an_approved_action_is_carried_out() {
        for op in TIERED {
            let case = Case::of(op).with(|c| {
                c.tier(Tier::Ask);
                c.facts.approved = true;
            });
            assert_eq!(case.verdict(), Verdict::Auto, "{op:?}");
        }
    }

    #[test]
    fn terms_are_always_asked_for_even_where_the_policy_says_auto() {
        let case = Case::of(Op::SetListingTerms).with(|c| {
            let both = [Tier::Auto, Tier::Ask];
            c.policy.tiers = Tiers::none().offer(Verb::ListingSetTerms, Tier::Auto, &both);
            c.tier(Tier::Auto);
        });
        assert_eq!(case.verdict(), asked(900));
    }

    #[test]
    fn an_offer_is_delivered_without_a_tier() {
        let case = Case::of(Op::CreateOffer).with(|c| c.policy.tiers = Tiers::none());
        assert_eq!(case.verdict(), Verdict::Auto);
    }

    #[test]
    fn contracts_and_accounts_are_403_whatever_else_holds() {
        for op in [Op::SignContract, Op::UpdateAccount] {
            for facts in [Facts::default(), Case::of(Op::CommitToShip).facts] {
                for approved in [false, true] {
                    let case = Case::of(op).with(|c| {
                        c.facts = facts.clone();
                        c.facts.approved = approved;
                        let scopes = &mut c.grant.as_mut().unwrap().scopes;
                        scopes.push("dev.rctp.deal:deal_sign_contract".into());
                        scopes.push("dev.rctp.account:account_update".into());
                    });
                    assert_eq!(case.reason(), Reason::ActionForbidden);
                    assert_eq!(case.refusal().status(), StatusCode::FORBIDDEN);
                }
            }
            let nobody = Case::of(op).with(|c| c.grant = None);
            assert_eq!(nobody.reason(), Reason::GrantInvalid);
        }
    }

    #[test]
    fn a_refusal_names_the_verb_and_rows_without_one_leave_it_out() {
        for op in TIERED {
            let refusal = Case::of(op).with(|c| c.tier(Tier::Forbid)).refusal();
            let action = match refusal.decision() {
                Some(Decision::Forbid { action, .. }) => action,
                other => panic!("{other:?}"),
            };
            assert_eq!(action, op.row().verb);
        }
        let declined = Case::of(Op::DeclineOffer).with(|c| c.offer().state = OfferState::Declined);
        assert_eq!(
            declined.refusal().decision().unwrap().to_header(),
            "forbid;reason=offer_replayed"
        );
    }

    #[test]
    fn a_scope_that_is_not_granted_or_not_offered_is_403() {
        for op in TIERED {
            let verb = op.row().verb.unwrap();
            let ungranted = Case::of(op).with(|c| {
                let scope = verb.scope().unwrap();
                c.grant.as_mut().unwrap().scopes.retain(|s| s != scope);
            });
            assert_eq!(ungranted.reason(), Reason::ActionForbidden, "{op:?}");

            let withheld = Case::of(op)
                .with(|c| c.policy.tiers = std::mem::take(&mut c.policy.tiers).withhold(verb));
            assert_eq!(withheld.reason(), Reason::ActionForbidden, "{op:?}");
        }
    }

    #[test]
    fn a_scope_that_only_begins_like_the_granted_one_grants_nothing() {
        for scope in [
            "dev.rctp.deal:offer_accept_all",
            "dev.rctp.deal:offer",
            "dev.rctp.deal:*",
            "DEV.RCTP.DEAL:OFFER_ACCEPT",
            "dev.rctp.deal:offer_accept,",
        ] {
            let case = Case::of(Op::AcceptOffer)
                .with(|c| c.grant.as_mut().unwrap().scopes = vec![scope.into()]);
            assert_eq!(case.reason(), Reason::ActionForbidden, "{scope}");
        }
    }

    #[test]
    fn the_floor_holds_whatever_the_tier_and_whether_or_not_it_was_approved() {
        for op in [Op::RepriceListing, Op::CounterOffer, Op::AcceptOffer] {
            for tier in [Tier::Auto, Tier::Ask, Tier::Forbid] {
                for approved in [false, true] {
                    let case = Case::of(op).with(|c| {
                        c.tier(tier);
                        c.facts.approved = approved;
                        c.price(FLOOR - 1);
                    });
                    assert_eq!(case.reason(), Reason::BelowFloor, "{op:?} {tier:?}");
                }
            }
        }
    }

    #[test]
    fn the_floor_itself_is_enough() {
        for op in FLOORED {
            assert_eq!(
                Case::of(op).with(|c| c.price(FLOOR)).verdict(),
                Verdict::Auto
            );
            let below = Case::of(op).with(|c| c.price(FLOOR - 1));
            assert_eq!(below.reason(), Reason::BelowFloor, "{op:?}");
        }
    }

    /// Fail closed: that the private side could not be loaded is not that there is no floor.
    #[test]
    fn confirmed_terms_whose_private_side_is_missing_let_nothing_pass() {
        for op in FLOORED {
            let case = Case::of(op).with(|c| c.facts.private = None);
            assert_ne!(case.verdict(), Verdict::Auto, "{op:?}");
        }
    }

    #[test]
    fn without_a_floor_among_the_terms_every_price_will_do() {
        for op in FLOORED {
            let case = Case::of(op).with(|c| {
                c.facts.private = Some(PrivateTerms::new(None, [7; 16]));
                c.price(1);
            });
            assert_eq!(case.verdict(), Verdict::Auto, "{op:?}");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// R3, R5: who the caller is to the subject

mod who_calls {
    use super::*;

    #[test]
    fn a_buyer_does_not_accept_or_counter() {
        let accept = Case::of(Op::AcceptOffer).with(Case::by_the_buyer);
        assert_eq!(accept.reason(), Reason::ActionForbidden);
        let counter = Case::of(Op::CounterOffer)
            .with(Case::by_the_buyer)
            .refusal();
        assert_eq!(counter.status(), StatusCode::BAD_REQUEST);
        assert_eq!(counter.decision(), None);
    }

    #[test]
    fn either_party_reads_and_declines() {
        for op in [Op::GetOffer, Op::DeclineOffer, Op::GetDeal] {
            assert_eq!(Case::of(op).verdict(), Verdict::Auto, "{op:?}");
            let buyer = Case::of(op).with(Case::by_the_buyer);
            assert_eq!(buyer.verdict(), Verdict::Auto, "{op:?}");
        }
    }

    #[test]
    fn to_strangers_offers_deals_and_approvals_are_as_if_absent() {
        for op in [
            Op::GetOffer,
            Op::CounterOffer,
            Op::AcceptOffer,
            Op::DeclineOffer,
            Op::GetDeal,
            Op::GetDealEvents,
            Op::PostDealEvent,
            Op::CommitToShip,
            Op::GetApproval,
        ] {
            let stranger = |c: &mut Case| {
                c.caller = Caller::signed("https://stranger.example/ucp", thumbprint('S'));
                if let Some(grant) = &mut c.grant {
                    grant.sub = "pw_another".into();
                }
            };
            let there = Case::of(op).with(stranger).refusal();
            let absent = Case::of(op)
                .with(stranger)
                .with(|c| {
                    c.facts.offer = None;
                    c.facts.deal = None;
                    c.facts.approval = None;
                    c.facts.listing = None;
                })
                .refusal();
            assert_eq!(there.status(), StatusCode::NOT_FOUND, "{op:?}");
            assert_same_answer(&there, &absent);
        }
    }

    #[test]
    fn the_buyer_is_the_agent_and_not_its_operator() {
        let another_agent = Case::of(Op::GetOffer).with(|c| {
            c.grant = None;
            c.caller = Caller::signed(BUYER_OPERATOR, thumbprint('X'));
        });
        assert_eq!(another_agent.refusal().status(), StatusCode::NOT_FOUND);
        // A client is not a key, even when they are spelled alike.
        let same_text = Case::of(Op::GetOffer).with(|c| {
            c.grant = None;
            c.caller = Caller::client(Mechanism::Oauth, BUYER_OPERATOR, "B".repeat(43));
        });
        assert_eq!(same_text.refusal().status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn another_sellers_listing_is_public_and_so_403() {
        for op in [
            Op::SetListingTerms,
            Op::RepriceListing,
            Op::AnswerBuyer,
            Op::ListQuestions,
            Op::ListOffers,
        ] {
            let case = Case::of(op).with(|c| c.grant.as_mut().unwrap().sub = "pw_another".into());
            assert_eq!(case.reason(), Reason::NotInScope, "{op:?}");
            let absent = Case::of(op).with(|c| c.facts.listing = None);
            assert_eq!(absent.refusal().status(), StatusCode::NOT_FOUND, "{op:?}");
        }
    }

    #[test]
    fn a_draft_is_its_sellers_alone() {
        let draft = |f: fn(&mut Case)| {
            Case::of(Op::GetListing)
                .with(|c| c.listing().state = ListingState::Draft)
                .with(f)
        };
        let absent = Case::of(Op::GetListing).with(|c| c.facts.listing = None);
        for hidden in [
            draft(|_| ()),
            draft(|c| {
                c.grant = Some(Grant {
                    sub: "pw_another".into(),
                    ..grant()
                });
            }),
        ] {
            assert_same_answer(&hidden.refusal(), &absent.refusal());
        }
        let own = draft(|c| c.grant = Some(grant()));
        assert_eq!(own.verdict(), Verdict::Auto);
    }

    #[test]
    fn a_seller_and_a_buyer_read_the_questions_and_the_listing_must_be_there() {
        let buyers =
            |f: fn(&mut Case)| Case::of(Op::ListQuestions).with(Case::by_the_buyer).with(f);
        assert_eq!(buyers(|_| ()).verdict(), Verdict::Auto);
        let absent = buyers(|c| c.facts.listing = None);
        assert_eq!(absent.refusal().status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn a_question_is_answered_once_and_on_its_own_listing() {
        let answering = |f: fn(&mut Question)| {
            Case::of(Op::AnswerBuyer).with(|c| f(c.facts.question.as_mut().unwrap()))
        };
        let again = answering(|q| {
            q.answer = Some(question::Answer {
                text: "Yes.".into(),
                at: NOW,
            });
        });
        assert_eq!(again.reason(), Reason::OfferReplayed);
        let elsewhere = answering(|q| q.listing_id = "lst_2".into()).refusal();
        assert_eq!(elsewhere.status(), StatusCode::NOT_FOUND);
        let absent = Case::of(Op::AnswerBuyer).with(|c| c.facts.question = None);
        assert_same_answer(&absent.refusal(), &elsewhere);
    }

    #[test]
    fn what_is_the_sellers_to_do_needs_a_grant() {
        for row in TABLE.iter().filter(|row| row.side == Side::Seller) {
            for facts in [Case::of(row.op).facts, Facts::default()] {
                let case = Case::of(row.op).with(|c| {
                    c.grant = None;
                    c.facts = facts.clone();
                });
                assert_eq!(case.reason(), Reason::GrantInvalid, "{}", row.name);
            }
        }
    }

    #[test]
    fn roles_open_the_events_of_a_deal_and_nothing_else() {
        let with = |op, role| {
            Case::of(op).with(|c| {
                c.grant = None;
                c.caller = Caller::signed("https://role.example/ucp", thumbprint('R'));
                c.caller.roles = vec![role];
            })
        };
        for role in [
            Role::FundsHolder,
            Role::Carrier,
            Role::Marketplace,
            Role::Custodian,
        ] {
            assert_eq!(with(Op::PostDealEvent, role).verdict(), Verdict::Auto);
            let hidden = with(Op::GetDeal, role).refusal();
            assert_eq!(hidden.status(), StatusCode::NOT_FOUND, "{role:?}");
            let reads = matches!(role, Role::FundsHolder | Role::Carrier);
            let events = with(Op::GetDealEvents, role).verdict();
            assert_eq!(events == Verdict::Auto, reads, "{role:?}");
        }
    }

    #[test]
    fn another_operator_does_not_see_an_approval() {
        let case = Case::of(Op::GetApproval)
            .with(|c| c.caller = Caller::signed(BUYER_OPERATOR, thumbprint('A')));
        assert_eq!(case.refusal().status(), StatusCode::NOT_FOUND);
    }

    /// R4: get_approval is on the seller's side, introspected on every call, for the same `sub`.
    #[test]
    fn an_approval_is_read_with_the_grant_of_the_seller_who_was_asked() {
        let without = Case::of(Op::GetApproval).with(|c| c.grant = None);
        assert_ne!(without.verdict(), Verdict::Auto);
        let anothers =
            Case::of(Op::GetApproval).with(|c| c.grant.as_mut().unwrap().sub = "pw_another".into());
        assert_eq!(anothers.refusal().status(), StatusCode::NOT_FOUND);
    }

    /// R23: events are signed by the key of the request.
    #[test]
    fn an_event_that_is_not_signed_is_401_signature_invalid() {
        let case = Case::of(Op::PostDealEvent)
            .with(|c| c.caller = Caller::client(Mechanism::Oauth, SELLER_OPERATOR, "client-1"));
        assert_eq!(case.reason(), Reason::SignatureInvalid);
    }

    #[test]
    fn the_answer_of_the_sellers_browser_is_not_for_agents() {
        let refusal = Case::of(Op::RespondApproval).refusal();
        assert_eq!(refusal.status(), StatusCode::NOT_FOUND);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// R16: states

mod states {
    use super::*;

    #[test]
    fn of_the_offer_decide_what_can_be_accepted_or_countered() {
        for op in [Op::AcceptOffer, Op::CounterOffer] {
            for state in OFFER_STATES {
                let verdict = Case::of(op).with(|c| c.offer_in(state)).verdict();
                let expected = match state {
                    OfferState::Open => None,
                    OfferState::Expired => Some(Reason::OfferExpired),
                    _ => Some(Reason::OfferReplayed),
                };
                assert_eq!(reason_of(&verdict), expected, "{op:?} {state:?}");
            }
        }
    }

    #[test]
    fn of_the_offer_decide_what_can_be_declined() {
        for state in OFFER_STATES {
            let verdict = Case::of(Op::DeclineOffer)
                .with(|c| c.offer_in(state))
                .verdict();
            let expected = match state {
                OfferState::Open | OfferState::Countered | OfferState::AwaitingApproval => None,
                OfferState::Expired => Some(Reason::OfferExpired),
                _ => Some(Reason::OfferReplayed),
            };
            assert_eq!(reason_of(&verdict), expected, "{state:?}");
        }
    }

    #[test]
    fn of_the_offer_do_not_matter_to_who_reads_it() {
        for state in OFFER_STATES {
            let case = Case::of(Op::GetOffer).with(|c| c.offer_in(state));
            assert_eq!(case.verdict(), Verdict::Auto, "{state:?}");
        }
    }

    #[test]
    fn a_parked_action_finds_its_own_offer_awaiting_approval() {
        for op in [Op::AcceptOffer, Op::CounterOffer] {
            for state in OFFER_STATES {
                let case = Case::of(op).with(|c| {
                    c.offer_in(state);
                    c.facts.approved = true;
                    c.tier(Tier::Ask);
                });
                let goes = matches!(state, OfferState::Open | OfferState::AwaitingApproval);
                assert_eq!(case.verdict() == Verdict::Auto, goes, "{op:?} {state:?}");
            }
        }
    }

    #[test]
    fn an_offers_time_is_judged_from_now_to_the_second() {
        for op in [Op::AcceptOffer, Op::CounterOffer, Op::DeclineOffer] {
            let ends = |at| Case::of(op).with(|c| c.offer().expires_at = at);
            assert_eq!(ends(NOW.plus(1)).verdict(), Verdict::Auto, "{op:?}");
            assert_eq!(ends(NOW).reason(), Reason::OfferExpired, "{op:?}");
            assert_eq!(ends(NOW.plus(-1)).reason(), Reason::OfferExpired, "{op:?}");
        }
    }

    #[test]
    fn the_sellers_own_counter_is_neither_accepted_nor_countered() {
        for op in [Op::AcceptOffer, Op::CounterOffer] {
            for state in OFFER_STATES {
                let case = Case::of(op).with(|c| {
                    c.offer_in(state);
                    c.offer().by = By::Seller;
                });
                assert_eq!(case.reason(), Reason::ActionForbidden, "{op:?} {state:?}");
            }
        }
    }

    #[test]
    fn of_the_listing_decide_whether_it_takes_offers() {
        let in_state = |op, state: ListingState| Case::of(op).with(|c| c.listing().state = state);
        for op in [Op::CreateOffer, Op::CounterOffer, Op::AcceptOffer] {
            for state in [
                ListingState::Draft,
                sold("off_other"),
                ListingState::Withdrawn,
            ] {
                assert_eq!(
                    in_state(op, state.clone()).reason(),
                    Reason::NotInScope,
                    "{op:?} {state:?}"
                );
            }
            assert_eq!(in_state(op, ListingState::Active).verdict(), Verdict::Auto);
        }
        // While it is reserved, offers stay open; only another acceptance is refused (5.3).
        let reserved = reserved("off_other", NOW.plus(60));
        for op in [Op::CreateOffer, Op::CounterOffer] {
            assert_eq!(
                in_state(op, reserved.clone()).verdict(),
                Verdict::Auto,
                "{op:?}"
            );
        }
        assert_eq!(
            in_state(Op::AcceptOffer, reserved).reason(),
            Reason::ListingReserved
        );
    }

    #[test]
    fn a_reservation_ends_with_its_checkout_to_the_second() {
        let until =
            |at| Case::of(Op::AcceptOffer).with(|c| c.listing().state = reserved("off_other", at));
        assert_eq!(until(NOW.plus(1)).reason(), Reason::ListingReserved);
        assert_eq!(until(NOW).verdict(), Verdict::Auto);
    }

    #[test]
    fn accepting_the_accepted_offer_again_is_a_replay() {
        for op in [Op::AcceptOffer, Op::CounterOffer] {
            for state in [reserved("off_1", NOW.plus(60)), sold("off_1")] {
                let case = Case::of(op).with(|c| {
                    c.offer_in(OfferState::Accepted);
                    c.listing().state = state;
                });
                assert_eq!(case.reason(), Reason::OfferReplayed, "{op:?}");
            }
        }
    }

    #[test]
    fn an_accepted_offer_whose_checkout_ended_unredeemed_is_expired() {
        let case = Case::of(Op::AcceptOffer).with(|c| {
            c.offer_in(OfferState::Accepted);
            c.offer().acceptance.as_mut().unwrap().until = NOW;
            c.listing().state = reserved("off_1", NOW);
        });
        assert_eq!(case.reason(), Reason::OfferExpired);
    }

    #[test]
    fn a_listing_is_available_from_and_until_to_the_second() {
        for op in [Op::CreateOffer, Op::CounterOffer, Op::AcceptOffer] {
            let until = |at| Case::of(op).with(|c| c.terms().available_until = Some(at));
            assert_eq!(until(NOW.plus(1)).verdict(), Verdict::Auto, "{op:?}");
            assert_eq!(until(NOW).reason(), Reason::NotInScope, "{op:?}");
            let from = |at| Case::of(op).with(|c| c.terms().available_from = Some(at));
            assert_eq!(from(NOW).verdict(), Verdict::Auto, "{op:?}");
            assert_eq!(from(NOW.plus(1)).reason(), Reason::NotInScope, "{op:?}");
        }
    }

    #[test]
    fn on_a_reserved_listing_terms_and_price_may_change_for_later_offers() {
        for op in [Op::SetListingTerms, Op::RepriceListing] {
            let case =
                Case::of(op).with(|c| c.listing().state = reserved("off_other", NOW.plus(60)));
            assert_eq!(reason_of(&case.verdict()), None, "{op:?}");
        }
    }

    #[test]
    fn a_sold_or_withdrawn_listing_takes_no_new_terms_and_no_new_price() {
        for op in [Op::SetListingTerms, Op::RepriceListing] {
            for state in [sold("off_1"), ListingState::Withdrawn] {
                let case = Case::of(op).with(|c| c.listing().state = state);
                assert_eq!(
                    reason_of(&case.verdict()),
                    Some(Reason::NotInScope),
                    "{op:?}"
                );
            }
        }
    }

    /// Binding 5.2: "any later action on it is 409 offer_expired". Offers are capped at `available_until`, so that
    /// an expired offer on a listing past it is the common case.
    #[test]
    fn an_expired_offer_is_409_offer_expired_whatever_became_of_the_listing() {
        for op in [Op::AcceptOffer, Op::CounterOffer] {
            let expired =
                |f: fn(&mut Case)| Case::of(op).with(|c| c.offer().expires_at = NOW).with(f);
            for case in [
                expired(|c| c.terms().available_until = Some(NOW)),
                expired(|c| c.listing().state = sold("off_other")),
                expired(|c| c.listing().state = ListingState::Withdrawn),
            ] {
                assert_eq!(case.reason(), Reason::OfferExpired, "{op:?}");
            }
        }
    }

    #[test]
    fn on_a_sold_listing_the_seller_still_commits_to_ship_and_answers() {
        for op in [Op::CommitToShip, Op::AnswerBuyer] {
            let case = Case::of(op).with(|c| c.listing().state = sold("off_1"));
            assert_eq!(case.verdict(), Verdict::Auto, "{op:?}");
        }
    }

    #[test]
    fn an_ask_ends_no_later_than_its_offer() {
        for op in [Op::AcceptOffer, Op::CounterOffer] {
            for (offer_ends, ask_ends) in [(300, 300), (900, 900), (901, 900), (HOUR, 900)] {
                let case = Case::of(op).with(|c| {
                    c.tier(Tier::Ask);
                    c.offer().expires_at = NOW.plus(offer_ends);
                });
                assert_eq!(case.verdict(), asked(ask_ends), "{op:?} {offer_ends}");
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// R17: listings without approved terms

mod without_approved_terms {
    use super::*;

    #[test]
    fn an_offer_passes_as_an_ordinary_one_without_floor_or_budget() {
        let case = Case::of(Op::CreateOffer).with(|c| {
            c.listing().terms = None;
            c.facts.private = None;
            c.facts.own_count = vec![NOW; 100];
            c.facts.operator_count = vec![NOW; 100];
            c.new_offer().deal_terms.fulfillment.selected_option_id = "anything".into();
            c.price(1);
        });
        assert_eq!(case.verdict(), Verdict::Auto);
    }

    #[test]
    fn a_seller_agent_does_not_act_except_to_set_terms() {
        for op in TIERED.into_iter().filter(|op| *op != Op::CreateListing) {
            for approved in [false, true] {
                let verdict = Case::of(op)
                    .with(|c| {
                        c.listing().terms = None;
                        c.facts.private = None;
                        c.facts.approved = approved;
                    })
                    .verdict();
                let expected = match op {
                    Op::SetListingTerms => None,
                    _ => Some(Reason::NotInScope),
                };
                assert_eq!(reason_of(&verdict), expected, "{op:?}");
            }
        }
    }

    #[test]
    fn a_new_listing_needs_a_term_set_that_the_marketplace_enforces() {
        let case = Case::of(Op::CreateListing).with(|c| {
            c.facts.requested = Requested::Listing(NewListing {
                term_set: "goods-2".into(),
                ..new_listing()
            });
        });
        assert_eq!(case.reason(), Reason::TermsInvalid);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// R18: the budget

mod the_budget {
    use super::*;

    #[test]
    fn is_3_per_agent_and_10_per_operator_in_24_hours() {
        assert_eq!(
            Policy::default().budget,
            OfferBudget {
                per_agent: 3,
                per_operator: 10,
                window_hours: 24,
                seller_probes: 10,
            }
        );
        let counts = |own: usize, operator: usize| {
            Case::of(Op::CreateOffer).with(|c| {
                c.facts.own_count = vec![NOW.plus(-1); own];
                c.facts.operator_count = vec![NOW.plus(-1); operator];
            })
        };
        assert_eq!(counts(2, 9).verdict(), Verdict::Auto);
        for (own, operator) in [(3, 3), (3, 0), (0, 10), (2, 10), (4, 11)] {
            let case = counts(own, operator);
            assert_eq!(
                case.reason(),
                Reason::OfferBudgetExhausted,
                "{own} {operator}"
            );
        }
    }

    #[test]
    fn of_the_sellers_side_has_its_own_limit() {
        for op in [Op::RepriceListing, Op::CounterOffer, Op::AcceptOffer] {
            let counts = |own: usize, operator: usize| {
                Case::of(op).with(|c| {
                    c.facts.own_count = vec![NOW.plus(-1); own];
                    c.facts.operator_count = vec![NOW.plus(-1); operator];
                })
            };
            assert_eq!(counts(9, 9).verdict(), Verdict::Auto, "{op:?}");
            for (own, operator) in [(10, 0), (0, 10)] {
                let case = counts(own, operator);
                assert_eq!(case.reason(), Reason::OfferBudgetExhausted, "{op:?}");
            }
        }
    }

    #[test]
    fn frees_a_slot_when_the_later_of_the_exhausted_counts_does() {
        let retry = |own: &[i64], operator: &[i64]| {
            let at = |hours: &[i64]| hours.iter().map(|h| NOW.plus(h * HOUR)).collect();
            let refusal = Case::of(Op::CreateOffer)
                .with(|c| {
                    c.facts.own_count = at(own);
                    c.facts.operator_count = at(operator);
                })
                .refusal();
            match refusal.decision() {
                Some(Decision::Forbid { retry_after, .. }) => retry_after.unwrap() / 3600,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(retry(&[-23, -2, -1], &[]), 1);
        // One too many: the second oldest must leave as well.
        assert_eq!(retry(&[-23, -22, -2, -1], &[]), 2);
        let ten = [-20, -9, -8, -7, -6, -5, -4, -3, -2, -1];
        assert_eq!(retry(&[], &ten), 4);
        assert_eq!(retry(&[-23, -2, -1], &ten), 4);
        assert_eq!(retry(&[-10, -2, -1], &ten), 14);
        // A count that is not exhausted does not matter.
        assert_eq!(retry(&[-2, -1], &ten), 4);
    }

    proptest! {
        /// The store counts what happened after `now − window`.
        #[test]
        fn a_retry_succeeds_after_retry_after_and_not_a_second_sooner(
            mut own in proptest::collection::vec(0..24 * HOUR, 0..8),
            mut operator in proptest::collection::vec(0..24 * HOUR, 0..16),
            hours in 24..72_u32,
        ) {
            own.sort_unstable_by(|a, b| b.cmp(a));
            operator.sort_unstable_by(|a, b| b.cmp(a));
            let window = i64::from(hours) * HOUR;
            let asked_at = |now: Timestamp| {
                let counted = |ago: &[i64]| -> Vec<Timestamp> {
                    let at = ago.iter().map(|ago| NOW.plus(-ago));
                    at.filter(|at| *at > now.plus(-window)).collect()
                };
                let mut case = Case::of(Op::CreateOffer).with(|c| {
                    c.policy.budget.window_hours = hours;
                    c.facts.own_count = counted(&own);
                    c.facts.operator_count = counted(&operator);
                    c.listing().terms.as_mut().unwrap().public.available_until = None;
                    c.new_offer().expires_at = None;
                });
                case.now = now;
                case.verdict()
            };
            let first = asked_at(NOW);
            let exhausted = own.len() >= 3 || operator.len() >= 10;
            prop_assert_eq!(first == Verdict::Auto, !exhausted);
            if let Verdict::Refuse(refusal) = first {
                prop_assert_eq!(refusal.reason(), Some(Reason::OfferBudgetExhausted));
                let Some(Decision::Forbid { retry_after: Some(after), .. }) = refusal.decision() else {
                    panic!("no retry_after");
                };
                let after = i64::try_from(after).unwrap();
                prop_assert!(after >= 1);
                prop_assert_eq!(asked_at(NOW.plus(after)), Verdict::Auto);
                prop_assert_ne!(asked_at(NOW.plus(after - 1)), Verdict::Auto);
            }
        }

        #[test]
        fn once_exhausted_the_answer_is_the_same_whatever_is_offered(
            amount in 1..=MAX_AMOUNT,
            currency in select(vec!["EUR", "USD"]),
            option in select(vec!["standard", "nonsense"]),
            supersedes in proptest::option::of(Just("off_none".to_owned())),
        ) {
            let exhausted = |c: &mut Case| c.facts.own_count = vec![NOW.plus(-1); 3];
            let plain = Case::of(Op::CreateOffer).with(exhausted).refusal();
            let other = Case::of(Op::CreateOffer)
                .with(exhausted)
                .with(|c| {
                    let offer = c.new_offer();
                    offer.deal_terms.price = Money::new(amount, currency);
                    offer.deal_terms.fulfillment.selected_option_id = option.into();
                    offer.supersedes = supersedes.clone();
                })
                .refusal();
            assert_same_answer(&plain, &other);
        }
    }

    #[test]
    fn once_exhausted_the_sellers_side_gets_the_same_answer_whatever_the_price() {
        for op in [Op::RepriceListing, Op::CounterOffer, Op::AcceptOffer] {
            let at = |amount: u64| {
                Case::of(op)
                    .with(|c| {
                        c.facts.own_count = vec![NOW.plus(-1); 10];
                        c.price(amount);
                    })
                    .refusal()
            };
            for amount in [1, FLOOR - 1, FLOOR, FLOOR + 1, MAX_AMOUNT] {
                assert_same_answer(&at(FLOOR), &at(amount));
            }
        }
    }

    #[test]
    fn a_limit_of_nothing_refuses_every_offer() {
        let case = Case::of(Op::CreateOffer).with(|c| c.policy.budget.per_agent = 0);
        assert_eq!(case.reason(), Reason::OfferBudgetExhausted);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// R19, R20: deal terms; the floor gives nothing away

mod deal_terms_and_floor {
    use super::*;

    #[test]
    fn a_price_in_another_currency_is_invalid_before_the_floor() {
        for op in [Op::CreateOffer, Op::CounterOffer, Op::RepriceListing] {
            for amount in [1, MAX_AMOUNT] {
                let case = Case::of(op).with(|c| {
                    c.price(amount);
                    match &mut c.facts.requested {
                        Requested::Offer(new) => new.deal_terms.price.currency = "USD".into(),
                        Requested::Price(price) => price.currency = "USD".into(),
                        _ => unreachable!(),
                    }
                });
                assert_eq!(case.reason(), Reason::TermsInvalid, "{op:?}");
            }
        }
    }

    #[test]
    fn an_offers_price_in_another_currency_than_the_floor_is_never_accepted() {
        let case = Case::of(Op::AcceptOffer)
            .with(|c| c.offer().deal_terms.price = Money::new(MAX_AMOUNT, "JPY"));
        assert!(reason_of(&case.verdict()).is_some());
    }

    #[test]
    fn options_must_be_among_the_listings() {
        for op in [Op::CreateOffer, Op::CounterOffer] {
            let with =
                |f: fn(&mut DealTerms)| Case::of(op).with(|c| f(&mut c.new_offer().deal_terms));
            for case in [
                with(|t| t.fulfillment.selected_option_id = "drone".into()),
                with(|t| t.fulfillment.method_type = "pickup".into()),
                with(|t| t.fulfillment.method_type = "Shipping".into()),
                with(|t| t.payment.selected_term_id = "later".into()),
            ] {
                assert_eq!(case.reason(), Reason::TermsInvalid, "{op:?}");
            }
        }
    }

    #[test]
    fn an_offer_that_has_already_ended_is_invalid() {
        for op in [Op::CreateOffer, Op::CounterOffer] {
            let ends = |at| Case::of(op).with(|c| c.new_offer().expires_at = Some(at));
            assert_eq!(ends(NOW).reason(), Reason::TermsInvalid, "{op:?}");
            assert_eq!(ends(NOW.plus(1)).verdict(), Verdict::Auto, "{op:?}");
        }
    }

    #[test]
    fn supersedes_names_an_open_or_countered_offer_of_the_same_negotiation() {
        let superseding = |f: &dyn Fn(&mut Case)| {
            Case::of(Op::CreateOffer).with(|c| {
                c.new_offer().supersedes = Some("off_0".into());
                c.facts.negotiation_id = Some("neg_1".into());
                c.facts.supersedes = Some(Offer {
                    offer_id: "off_0".into(),
                    ..offer()
                });
                f(c);
            })
        };
        for by in [By::Buyer, By::Seller] {
            for state in OFFER_STATES {
                let case = superseding(&|c| {
                    let old = c.facts.supersedes.as_mut().unwrap();
                    (old.by, old.state) = (by, state);
                });
                let expected = match state {
                    OfferState::Open | OfferState::Countered => None,
                    _ => Some(Reason::TermsInvalid),
                };
                assert_eq!(reason_of(&case.verdict()), expected, "{by:?} {state:?}");
            }
        }
        let broken: [&dyn Fn(&mut Case); 5] = [
            &|c| c.facts.supersedes = None,
            &|c| c.facts.negotiation_id = None,
            &|c| c.facts.negotiation_id = Some("neg_2".into()),
            &|c| c.facts.supersedes.as_mut().unwrap().buyer = Agent::Client("another".into()),
            &|c| c.facts.supersedes.as_mut().unwrap().expires_at = NOW,
        ];
        let answers: Vec<Refusal> = broken.iter().map(|f| superseding(f).refusal()).collect();
        for answer in &answers {
            assert_eq!(answer.reason(), Some(Reason::TermsInvalid));
            // Whether a stranger's offer exists cannot be told.
            assert_same_answer(answer, &answers[0]);
        }
    }

    #[test]
    fn below_the_floor_the_answer_is_the_same_whatever_the_distance() {
        for op in FLOORED {
            let at = |amount: u64, floor: u64| {
                Case::of(op)
                    .with(|c| {
                        c.facts.private = Some(private(floor));
                        c.price(amount);
                    })
                    .refusal()
            };
            let one = at(FLOOR - 1, FLOOR);
            assert_eq!(one.reason(), Some(Reason::BelowFloor));
            for (amount, floor) in [(1, FLOOR), (FLOOR / 2, FLOOR), (1, MAX_AMOUNT), (1, 2)] {
                assert_same_answer(&one, &at(amount, floor));
            }
        }
    }

    #[test]
    fn a_below_floor_refusal_carries_no_number_at_all() {
        for op in FLOORED {
            let response = Case::of(op)
                .with(|c| c.price(FLOOR - 1))
                .refusal()
                .to_response();
            let mut body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            for id in ["offer_id", "listing_id"] {
                body.as_object_mut().unwrap().remove(id);
            }
            let text = format!("{body} {:?}", response.headers());
            assert!(!text.chars().any(|c| c.is_ascii_digit()), "{op:?}: {text}");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Buyer requirements (R20)

mod buyer_requirements {
    use super::*;

    fn requiring(required: BuyerRequirements, f: impl FnOnce(&mut Caller)) -> Verdict {
        Case::of(Op::CreateOffer)
            .with(|c| {
                c.terms().buyer_requirements = Some(required);
                c.caller.duties = Some(Arc::new(duties()));
                f(&mut c.caller);
            })
            .verdict()
    }

    #[test]
    fn each_list_that_is_present_must_be_met() {
        let of =
            |jurisdictions: &[&str], certifications: &[&str], by: &[Mechanism]| BuyerRequirements {
                jurisdictions: jurisdictions.iter().map(|s| (*s).to_owned()).collect(),
                certifications: certifications.iter().map(|s| (*s).to_owned()).collect(),
                authenticated_by: by.to_vec(),
            };
        let signed = Mechanism::HttpSignature;
        for met in [
            of(&[], &[], &[]),
            of(&["FR", "DE"], &[], &[]),
            of(&[], &["iso-27001"], &[]),
            of(
                &["DE"],
                &["iso-27001", "soc-2"],
                &[Mechanism::Oauth, signed],
            ),
        ] {
            assert_eq!(requiring(met, |_| ()), Verdict::Auto);
        }
        for unmet in [
            of(&["FR"], &[], &[]),
            of(&["de"], &[], &[]),
            of(&[], &["iso-27001", "pci"], &[]),
            of(&[], &[], &[Mechanism::Oauth, Mechanism::Mtls]),
            of(&["DE"], &["pci"], &[signed]),
        ] {
            assert_eq!(
                reason_of(&requiring(unmet, |_| ())),
                Some(Reason::NotInScope)
            );
        }
    }

    #[test]
    fn an_operator_that_shows_nothing_meets_nothing() {
        for required in [
            BuyerRequirements {
                jurisdictions: vec!["DE".into()],
                ..BuyerRequirements::default()
            },
            BuyerRequirements {
                certifications: vec!["iso-27001".into()],
                ..BuyerRequirements::default()
            },
        ] {
            let verdict = requiring(required, |caller| caller.duties = None);
            assert_eq!(reason_of(&verdict), Some(Reason::NotInScope));
        }
    }

    #[test]
    fn are_the_buyers_to_meet_and_not_the_sellers() {
        for op in [Op::CounterOffer, Op::AcceptOffer] {
            let case = Case::of(op).with(|c| {
                c.terms().buyer_requirements = Some(BuyerRequirements {
                    jurisdictions: vec!["FR".into()],
                    ..BuyerRequirements::default()
                });
            });
            assert_eq!(case.verdict(), Verdict::Auto, "{op:?}");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Redeeming a checkout (5.3, R23)

mod redeeming {
    use super::*;

    #[test]
    fn takes_the_key_that_the_checkout_names() {
        let another = Case::of(Op::CreateDeal)
            .with(|c| c.caller = Caller::signed(BUYER_OPERATOR, thumbprint('X')));
        assert_eq!(another.reason(), Reason::SignatureInvalid);
        let unsigned = Case::of(Op::CreateDeal)
            .with(|c| c.caller = Caller::client(Mechanism::Oauth, BUYER_OPERATOR, "client-1"));
        assert_eq!(unsigned.reason(), Reason::SignatureInvalid);
        let forged =
            Case::of(Op::CreateDeal).with(|c| c.facts.requested = Requested::ForgedCheckout);
        assert_eq!(forged.reason(), Reason::SignatureInvalid);
    }

    #[test]
    fn happens_once() {
        let again = Case::of(Op::CreateDeal).with(|c| {
            c.offer().acceptance.as_mut().unwrap().deal_id = Some("deal_1".into());
            c.listing().state = sold("off_1");
        });
        assert_eq!(again.reason(), Reason::OfferReplayed);
    }

    #[test]
    fn ends_with_the_checkout_to_the_second() {
        let ends =
            |exp: i64| Case::of(Op::CreateDeal).with(|c| c.checkout().exp = NOW.secs() + exp);
        assert_eq!(ends(1).verdict(), Verdict::Auto);
        assert_eq!(ends(0).reason(), Reason::OfferExpired);
        assert_eq!(ends(-1).reason(), Reason::OfferExpired);
    }

    #[test]
    fn fails_once_the_seller_withdrew_or_the_listing_is_not_held_for_it() {
        for state in [
            ListingState::Withdrawn,
            ListingState::Draft,
            ListingState::Active,
            reserved("off_other", NOW.plus(60)),
            sold("off_other"),
        ] {
            let case = Case::of(Op::CreateDeal).with(|c| c.listing().state = state);
            assert_eq!(case.reason(), Reason::NotInScope);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The order of the checks (binding 6, R7)

mod the_order_of_the_checks {
    use super::*;

    type Break = (&'static str, fn(&mut Case));

    /// Where two checks fail, the answer is that of the earlier one, to the byte.
    fn assert_order(op: Op, breaks: &[Break]) {
        for (i, (first, break_first)) in breaks.iter().enumerate() {
            let alone = Case::of(op).with(break_first).verdict();
            assert_ne!(alone, Verdict::Auto, "{op:?}: `{first}` breaks nothing");
            for (second, break_second) in &breaks[i + 1..] {
                for case in [
                    Case::of(op).with(break_first).with(break_second),
                    Case::of(op).with(break_second).with(break_first),
                ] {
                    assert_eq!(case.verdict(), alone, "{op:?}: `{first}` before `{second}`");
                }
            }
        }
    }

    const NO_GRANT: Break = ("grant", |c| c.grant = None);
    const NO_SCOPE: Break = ("scope", |c| c.grant.as_mut().unwrap().scopes.clear());
    const ANOTHERS_LISTING: Break = ("seller of the listing", |c| {
        c.listing().seller = "pw_x".into()
    });
    const NO_TERMS: Break = ("approved terms", |c| c.listing().terms = None);
    const OWN_COUNTER: Break = ("own counter", |c| c.offer().by = By::Seller);
    const WITHDRAWN: Break = ("listing", |c| c.listing().state = ListingState::Withdrawn);
    const DECLINED: Break = ("offer", |c| c.offer().state = OfferState::Declined);
    const BUDGET: Break = ("budget", |c| c.facts.own_count = vec![NOW.plus(-1); 10]);
    const OPTIONS: Break = ("options", |c| {
        c.new_offer().deal_terms.payment.selected_term_id = "later".into();
    });
    const BELOW_FLOOR: Break = ("floor", |c| c.price(1));
    const TIER_FORBID: Break = ("tier", |c| c.tier(Tier::Forbid));
    const TIER_ASK: Break = ("tier", |c| c.tier(Tier::Ask));

    #[test]
    fn create_listing_is_grant_terms_tier() {
        let unknown_set: Break = ("term set", |c| {
            c.policy.term_sets = TermSets::none();
        });
        for tier in [TIER_ASK, TIER_FORBID] {
            assert_order(Op::CreateListing, &[NO_GRANT, unknown_set, tier]);
            assert_order(Op::CreateListing, &[NO_SCOPE, unknown_set, tier]);
        }
    }

    #[test]
    fn set_listing_terms_is_grant_listing_tier() {
        assert_order(
            Op::SetListingTerms,
            &[NO_GRANT, ANOTHERS_LISTING, TIER_FORBID],
        );
        assert_order(
            Op::SetListingTerms,
            &[NO_SCOPE, ANOTHERS_LISTING, TIER_FORBID],
        );
    }

    #[test]
    fn reprice_listing_is_grant_listing_budget_terms_floor_tier() {
        let currency: Break = ("currency", |c| {
            if let Requested::Price(price) = &mut c.facts.requested {
                price.currency = "USD".into();
            }
        });
        for grant in [NO_GRANT, NO_SCOPE] {
            for tier in [TIER_ASK, TIER_FORBID] {
                assert_order(
                    Op::RepriceListing,
                    &[
                        grant,
                        ANOTHERS_LISTING,
                        NO_TERMS,
                        BUDGET,
                        currency,
                        BELOW_FLOOR,
                        tier,
                    ],
                );
            }
        }
    }

    #[test]
    fn create_offer_is_listing_requirements_budget_terms_floor() {
        let absent: Break = ("subject", |c| c.facts.listing = None);
        let unmet: Break = ("requirements", |c| {
            if let Some(terms) = c.facts.listing.as_mut().and_then(|l| l.terms.as_mut()) {
                terms.public.buyer_requirements = Some(BuyerRequirements {
                    jurisdictions: vec!["FR".into()],
                    ..BuyerRequirements::default()
                });
            }
        });
        let withdrawn: Break = ("listing", |c| {
            if let Some(listing) = &mut c.facts.listing {
                listing.state = ListingState::Withdrawn;
            }
        });
        let currency: Break = ("currency", |c| {
            c.new_offer().deal_terms.price.currency = "USD".into()
        });
        let ended: Break = ("expiry", |c| c.new_offer().expires_at = Some(NOW));
        let supersedes: Break = ("supersedes", |c| {
            c.new_offer().supersedes = Some("off_x".into())
        });
        for terms in [OPTIONS, currency, ended, supersedes] {
            assert_order(
                Op::CreateOffer,
                &[absent, withdrawn, unmet, BUDGET, terms, BELOW_FLOOR],
            );
        }
    }

    #[test]
    fn counter_offer_is_grant_listing_budget_terms_floor_tier() {
        for listing in [ANOTHERS_LISTING, NO_TERMS, OWN_COUNTER, WITHDRAWN, DECLINED] {
            for tier in [TIER_ASK, TIER_FORBID] {
                assert_order(
                    Op::CounterOffer,
                    &[NO_SCOPE, listing, BUDGET, OPTIONS, BELOW_FLOOR, tier],
                );
            }
        }
    }

    #[test]
    fn accept_offer_is_grant_listing_budget_floor_tier() {
        let reserved_for_another: Break = ("reserved", |c| {
            c.listing().state = reserved("off_other", NOW.plus(60));
        });
        for listing in [
            ANOTHERS_LISTING,
            NO_TERMS,
            OWN_COUNTER,
            WITHDRAWN,
            DECLINED,
            reserved_for_another,
        ] {
            for tier in [TIER_ASK, TIER_FORBID] {
                assert_order(
                    Op::AcceptOffer,
                    &[NO_SCOPE, listing, BUDGET, BELOW_FLOOR, tier],
                );
            }
        }
        // Whose the listing is comes before its state, and the seller's own counter before both states.
        assert_order(
            Op::AcceptOffer,
            &[NO_SCOPE, ANOTHERS_LISTING, NO_TERMS, OWN_COUNTER, WITHDRAWN],
        );
    }

    #[test]
    fn commit_to_ship_is_grant_listing_tier() {
        for tier in [TIER_ASK, TIER_FORBID] {
            assert_order(Op::CommitToShip, &[NO_GRANT, NO_TERMS, tier]);
            assert_order(Op::CommitToShip, &[NO_SCOPE, ANOTHERS_LISTING, tier]);
        }
    }

    #[test]
    fn create_deal_is_key_single_use_time_listing() {
        let key: Break = ("key", |c| {
            c.caller = Caller::signed(BUYER_OPERATOR, thumbprint('X'))
        });
        let redeemed: Break = ("single use", |c| {
            c.offer().acceptance.as_mut().unwrap().deal_id = Some("deal_1".into());
        });
        let ended: Break = ("time", |c| c.checkout().exp = NOW.secs());
        assert_order(Op::CreateDeal, &[key, redeemed, ended, WITHDRAWN]);
    }

    #[test]
    fn the_scope_comes_before_the_subject() {
        let absent: Break = ("subject", |c| {
            c.facts.listing = None;
            c.facts.offer = None;
            c.facts.deal = None;
        });
        let withheld: Break = ("offered", |c| {
            let verb = c.op.row().verb.unwrap();
            c.policy.tiers = std::mem::take(&mut c.policy.tiers).withhold(verb);
        });
        for op in TIERED.into_iter().filter(|op| *op != Op::CreateListing) {
            assert_order(op, &[NO_SCOPE, absent]);
            assert_order(op, &[withheld, absent]);
        }
    }

    #[test]
    fn the_always_403_verbs_are_answered_right_after_the_grant() {
        let absent: Break = ("subject", |c| c.facts = Facts::default());
        for op in [Op::SignContract, Op::UpdateAccount] {
            assert_order(op, &[NO_GRANT, ("the row", |_| ()), absent]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// R15: tiers

mod tiers {
    use super::*;

    proptest! {
        #[test]
        fn the_effective_tier_is_no_looser_than_the_grants_nor_than_the_policy(
            allowed in proptest::sample::subsequence(vec![Tier::Auto, Tier::Ask, Tier::Forbid], 1..=3),
            default in any::<proptest::sample::Index>(),
            granted in proptest::option::of(any_tier()),
        ) {
            let default = allowed[default.index(allowed.len())];
            let tiers = Tiers::none().offer(Verb::OfferAccept, default, &allowed);
            prop_assert_eq!(tiers.check(), Ok(()));
            let scope = Verb::OfferAccept.scope().unwrap();
            let effective = tiers.effective(scope, granted).unwrap();
            if let Some(granted) = granted {
                prop_assert!(effective >= granted);
                // The seller's own choice, or one of the marketplace's.
                prop_assert!(effective == granted || allowed.contains(&effective));
                prop_assert!(!allowed.contains(&granted) || effective == granted);
            } else {
                prop_assert_eq!(effective, default);
            }
            prop_assert!(Some(&effective) >= allowed.iter().min());
            prop_assert_eq!(tiers.effective("dev.rctp.deal:offer_counter", granted), None);
        }

        #[test]
        fn what_decide_does_is_the_effective_tier(
            allowed in proptest::sample::subsequence(vec![Tier::Auto, Tier::Ask, Tier::Forbid], 1..=3),
            default in any::<proptest::sample::Index>(),
            granted in proptest::option::of(any_tier()),
            op in select(TIERED.to_vec()),
        ) {
            let verb = op.row().verb.unwrap();
            let default = allowed[default.index(allowed.len())];
            let case = Case::of(op).with(|c| {
                c.policy.tiers = Tiers::none().offer(verb, default, &allowed);
                let grant = c.grant.as_mut().unwrap();
                grant.tiers = granted.map(|tier| (verb.scope().unwrap().to_owned(), tier)).into_iter().collect();
            });
            let effective = case.policy.tiers.effective(verb.scope().unwrap(), granted).unwrap();
            let effective = if op == Op::SetListingTerms { effective.max(Tier::Ask) } else { effective };
            let verdict = case.verdict();
            prop_assert_eq!(verdict == Verdict::Auto, effective == Tier::Auto);
            prop_assert_eq!(matches!(verdict, Verdict::Ask { .. }), effective == Tier::Ask);
        }
    }

    #[test]
    fn a_tier_granted_for_another_scope_does_not_count() {
        let case = Case::of(Op::AcceptOffer).with(|c| {
            let other = Verb::OfferCounter.scope().unwrap().to_owned();
            c.grant.as_mut().unwrap().tiers = BTreeMap::from([(other, Tier::Auto)]);
        });
        assert_eq!(case.verdict(), asked(900));
    }

    #[test]
    fn a_policy_that_became_stricter_binds_grants_given_before() {
        let case = Case::of(Op::AcceptOffer).with(|c| {
            c.tier(Tier::Auto);
            let tiers = std::mem::take(&mut c.policy.tiers);
            c.policy.tiers = tiers.offer(Verb::OfferAccept, Tier::Ask, &[Tier::Ask]);
        });
        assert_eq!(case.verdict(), asked(900));
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Whatever the facts

mod whatever_the_facts {
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_price_below_the_floor_is_neither_carried_out_nor_asked_for(case in cases(FLOORED.to_vec())) {
            let verdict = case.verdict();
            if reason_of(&verdict).is_none() && !matches!(verdict, Verdict::Refuse(_)) {
                let listing = case.facts.listing.as_ref().unwrap();
                if listing.terms.is_some() {
                    let price = match (&case.facts.requested, case.op) {
                        (_, Op::AcceptOffer) => &case.facts.offer.as_ref().unwrap().deal_terms.price,
                        (Requested::Offer(new), _) => &new.deal_terms.price,
                        (Requested::Price(price), _) => price,
                        other => panic!("{other:?}"),
                    };
                    prop_assert!(price.amount >= FLOOR && price.currency == "EUR");
                }
            }
        }

        #[test]
        fn an_agent_acts_for_a_seller_only_with_that_sellers_grant_and_tier(case in cases(TIERED.to_vec())) {
            let verdict = case.verdict();
            if matches!(verdict, Verdict::Refuse(_)) {
                return Ok(());
            }
            let scope = case.op.row().verb.unwrap().scope().unwrap();
            let grant = case.grant.as_ref().unwrap();
            prop_assert!(grant.has_scope(scope));
            let tier = case.policy.tiers.effective(scope, grant.tiers.get(scope).copied());
            prop_assert!(matches!(tier, Some(Tier::Auto | Tier::Ask)));
            if verdict == Verdict::Auto {
                prop_assert!(tier == Some(Tier::Auto) || case.facts.approved);
                prop_assert!(case.op != Op::SetListingTerms || case.facts.approved);
            }
            if let Verdict::Ask { expires_at } = verdict {
                prop_assert!(expires_at > NOW && expires_at <= NOW.plus(900));
                prop_assert!(!case.facts.approved);
            }
            if case.op != Op::CreateListing
                && let Some(listing) = &case.facts.listing
            {
                prop_assert_eq!(&listing.seller, &grant.sub);
                prop_assert!(listing.terms.is_some() || case.op == Op::SetListingTerms);
            }
        }

        #[test]
        fn deciding_never_panics_and_states_what_it_decides(case in cases(TABLE.iter().map(|r| r.op).collect())) {
            let row = case.op.row();
            match case.verdict() {
                Verdict::Auto => prop_assert!(row.tier != TierRule::Forbid),
                Verdict::Ask { .. } => prop_assert!(matches!(row.tier, TierRule::Ask | TierRule::Grant)),
                Verdict::Refuse(refusal) => {
                    let response = refusal.to_response();
                    let header = response.headers().get("rctp-decision");
                    prop_assert_eq!(header.is_some(), refusal.reason().is_some());
                    if let Some(header) = header {
                        let read: Decision = header.to_str().unwrap().parse().unwrap();
                        prop_assert_eq!(Some(read), refusal.decision());
                    }
                    if refusal.code() == Code::Protocol(ProtocolError::NotFound) {
                        assert_same_answer(&refusal, &Refusal::not_found());
                    }
                }
            }
        }

        #[test]
        fn the_always_403_verbs_stay_so(case in cases(vec![Op::SignContract, Op::UpdateAccount])) {
            let expected = if case.grant.is_some() { Reason::ActionForbidden } else { Reason::GrantInvalid };
            prop_assert_eq!(case.reason(), expected);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Cases

/// Everything `decide` is given. [`Case::of`] makes one in which nothing stands against the operation.
#[derive(Clone)]
struct Case {
    op: Op,
    caller: Caller,
    grant: Option<Grant>,
    facts: Facts,
    policy: Policy,
    now: Timestamp,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("op", &self.op)
            .field("caller", &self.caller)
            .field("grant", &self.grant)
            .field("requested", &self.facts.requested)
            .field("listing", &self.facts.listing)
            .field("offer", &self.facts.offer)
            .field("approved", &self.facts.approved)
            .finish_non_exhaustive()
    }
}

impl Case {
    fn of(op: Op) -> Self {
        let row: &Operation = op.row();
        let buyers = matches!(row.side, Side::Buyer | Side::Operator);
        let mut facts = Facts {
            listing: Some(listing()),
            private: Some(private(FLOOR)),
            ..Facts::default()
        };
        match op {
            Op::CreateListing => {
                facts = Facts::default();
                facts.requested = Requested::Listing(new_listing());
            }
            Op::RepriceListing => facts.requested = Requested::Price(Money::new(12_000, "EUR")),
            Op::CreateOffer => facts.requested = Requested::Offer(new_offer(Some("lst_1"))),
            Op::CounterOffer => facts.requested = Requested::Offer(new_offer(None)),
            Op::CreateDeal => {
                facts.requested = Requested::Checkout(Box::new(checkout()));
                facts.listing.as_mut().unwrap().state = reserved("off_1", NOW.plus(HOUR));
            }
            _ => {}
        }
        if matches!(row.side, Side::Party) && row.path.starts_with("/offers") {
            facts.offer = Some(offer());
        }
        if op == Op::CreateDeal {
            facts.offer = Some(Offer {
                state: OfferState::Accepted,
                acceptance: Some(acceptance()),
                ..offer()
            });
        }
        if row.path.starts_with("/deals/") {
            facts.deal = Some(deal());
        }
        if op == Op::GetApproval {
            facts.approval = Some(approval());
        }
        if op == Op::AnswerBuyer {
            facts.question = Some(question());
        }
        Self {
            op,
            caller: if buyers {
                buyer()
            } else {
                Caller::signed(SELLER_OPERATOR, thumbprint('A'))
            },
            grant: (!buyers).then(grant),
            facts,
            policy: Policy::default(),
            now: NOW,
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn by_the_buyer(&mut self) {
        self.caller = buyer();
        self.grant = None;
    }

    fn verdict(&self) -> Verdict {
        decide(
            self.op.row(),
            &self.caller,
            self.grant.as_ref(),
            &self.facts,
            &self.policy,
            self.now,
        )
    }

    fn refusal(&self) -> Refusal {
        match self.verdict() {
            Verdict::Refuse(refusal) => refusal,
            other => panic!("{:?}: {other:?}", self.op),
        }
    }

    fn reason(&self) -> Reason {
        let refusal = self.refusal();
        refusal
            .reason()
            .unwrap_or_else(|| panic!("{:?}: {refusal}", self.op))
    }

    /// The price that the row holds against the floor.
    fn price(&mut self, amount: u64) {
        match (&mut self.facts.requested, &mut self.facts.offer) {
            (Requested::Offer(new), _) => new.deal_terms.price.amount = amount,
            (Requested::Price(price), _) => price.amount = amount,
            (_, Some(offer)) => offer.deal_terms.price.amount = amount,
            _ => panic!("{:?} has no price", self.op),
        }
    }

    /// The tier of every scope in the grant, which the marketplace allows.
    fn tier(&mut self, tier: Tier) {
        let all = [Tier::Auto, Tier::Ask, Tier::Forbid];
        for verb in Verb::GRANTED {
            let scope = verb.scope().unwrap();
            if let Some(grant) = &mut self.grant {
                grant.tiers.insert(scope.into(), tier);
            }
            let tiers = std::mem::take(&mut self.policy.tiers);
            self.policy.tiers = tiers.offer(verb, Tier::Ask, &all);
        }
    }

    fn listing(&mut self) -> &mut Listing {
        self.facts.listing.as_mut().unwrap()
    }

    fn terms(&mut self) -> &mut PublicTerms {
        &mut self.listing().terms.as_mut().unwrap().public
    }

    fn offer(&mut self) -> &mut Offer {
        self.facts.offer.as_mut().unwrap()
    }

    fn offer_in(&mut self, state: OfferState) {
        let offer = self.offer();
        offer.state = state;
        offer.acceptance = (state == OfferState::Accepted).then(acceptance);
    }

    fn new_offer(&mut self) -> &mut NewOffer {
        match &mut self.facts.requested {
            Requested::Offer(new) => new,
            other => panic!("{other:?}"),
        }
    }

    fn checkout(&mut self) -> &mut Checkout {
        match &mut self.facts.requested {
            Requested::Checkout(checkout) => checkout,
            other => panic!("{other:?}"),
        }
    }
}

fn reason_of(verdict: &Verdict) -> Option<Reason> {
    match verdict {
        Verdict::Refuse(refusal) => refusal.reason(),
        Verdict::Auto | Verdict::Ask { .. } => None,
    }
}

fn asked(seconds: i64) -> Verdict {
    Verdict::Ask {
        expires_at: NOW.plus(seconds),
    }
}

/// Status, headers and body, to the byte.
#[track_caller]
fn assert_same_answer(a: &Refusal, b: &Refusal) {
    let (a, b) = (a.to_response(), b.to_response());
    assert_eq!(a.status(), b.status());
    assert_eq!(a.headers(), b.headers());
    assert_eq!(a.body(), b.body());
}

fn thumbprint(letter: char) -> tower_rctp::wire::jwk::Thumbprint {
    // The last character carries two unused bits, which must be zero.
    format!("{}A", letter.to_string().repeat(42))
        .parse()
        .unwrap()
}

fn buyer() -> Caller {
    Caller::signed(BUYER_OPERATOR, thumbprint('B'))
}

fn duties() -> Duties {
    Duties {
        legal_entity: "Agents GmbH".into(),
        jurisdiction: "DE".into(),
        incident_contact: "https://agents.example/incidents".into(),
        incident_sla_hours: 4,
        certifications: vec!["iso-27001".into(), "soc-2".into()],
        data_residency: None,
        key_custody: None,
    }
}

/// Every scope, at `auto`.
fn grant() -> Grant {
    let scopes: Vec<String> = Verb::GRANTED
        .iter()
        .filter_map(|v| v.scope())
        .map(str::to_owned)
        .collect();
    Grant {
        sub: SELLER.into(),
        client_id: None,
        agent_id: None,
        tiers: scopes.iter().map(|s| (s.clone(), Tier::Auto)).collect(),
        scopes,
    }
}

fn private(floor: u64) -> PrivateTerms {
    PrivateTerms::new(Some(Floor::new(Money::new(floor, "EUR"))), [7; 16])
}

fn listing() -> Listing {
    Listing {
        listing_id: "lst_1".into(),
        seller: SELLER.into(),
        state: ListingState::Active,
        title: "Bicycle".into(),
        description: None,
        category: None,
        list_price: Money::new(15_000, "EUR"),
        term_set: "goods-1".into(),
        terms: Some(ConfirmedTerms {
            public: PublicTerms {
                fulfillment_options: vec![FulfillmentOption {
                    method_type: "shipping".into(),
                    option_ids: vec!["standard".into()],
                }],
                payment_terms: vec!["held_funds".into()],
                ..PublicTerms::default()
            },
            commitment: format!("sha-256:{}", "0a".repeat(32)),
        }),
        created_at: NOW.plus(-HOUR),
        operator: None,
    }
}

fn deal_terms(amount: u64) -> DealTerms {
    DealTerms {
        price: Money::new(amount, "EUR"),
        fulfillment: Fulfillment {
            method_type: "shipping".into(),
            selected_option_id: "standard".into(),
        },
        payment: Payment {
            selected_term_id: "held_funds".into(),
        },
    }
}

fn new_listing() -> NewListing {
    NewListing {
        title: "Bicycle".into(),
        description: None,
        category: None,
        list_price: Money::new(15_000, "EUR"),
        term_set: "goods-1".into(),
    }
}

fn new_offer(listing_id: Option<&str>) -> NewOffer {
    NewOffer {
        listing_id: listing_id.map(str::to_owned),
        deal_terms: deal_terms(12_000),
        supersedes: None,
        expires_at: Some(NOW.plus(HOUR)),
    }
}

fn offer() -> Offer {
    Offer {
        offer_id: "off_1".into(),
        negotiation_id: "neg_1".into(),
        listing_id: "lst_1".into(),
        by: By::Buyer,
        deal_terms: deal_terms(12_000),
        state: OfferState::Open,
        supersedes: None,
        created_at: NOW.plus(-60),
        expires_at: NOW.plus(HOUR),
        waits_until: None,
        acceptance: None,
        buyer: Agent::Key(thumbprint('B')),
        buyer_operator: BUYER_OPERATOR.into(),
        seller: SELLER.into(),
    }
}

fn acceptance() -> Acceptance {
    Acceptance {
        until: NOW.plus(HOUR),
        terms_commitment: None,
        rules: Rules::default(),
        checkout: Some("e30.e30.AA".into()),
        deal_id: None,
    }
}

fn checkout() -> Checkout {
    Checkout {
        iss: "https://market.example/".into(),
        offer_id: "off_1".into(),
        negotiation_id: "neg_1".into(),
        listing_id: "lst_1".into(),
        listing_hash: listing().hash(),
        deal_terms: deal_terms(12_000),
        buyer_jkt: thumbprint('B'),
        nonce: "A".repeat(22),
        iat: NOW.secs() - 60,
        exp: NOW.secs() + HOUR,
    }
}

fn deal() -> Deal {
    Deal {
        deal_id: "deal_1".into(),
        offer_id: "off_1".into(),
        negotiation_id: "neg_1".into(),
        listing_id: "lst_1".into(),
        listing_hash: listing().hash(),
        deal_terms: deal_terms(12_000),
        terms_commitment: None,
        buyer_jkt: thumbprint('B'),
        buyer_operator: BUYER_OPERATOR.into(),
        seller: SELLER.into(),
        created_at: NOW.plus(-60),
        committed_to_ship_at: None,
        rules: Rules::default(),
        progress: Progress::default(),
        seller_operator: None,
        writers: std::collections::BTreeSet::new(),
    }
}

fn question() -> Question {
    Question {
        question_id: "qst_1".into(),
        listing_id: "lst_1".into(),
        text: "Is it still there?".into(),
        asked_by: Agent::Key(thumbprint('B')),
        created_at: NOW.plus(-60),
        answer: None,
    }
}

fn approval() -> Approval {
    Approval {
        approval_id: "apr_1".into(),
        status: ApprovalStatus::Pending,
        action: Verb::OfferAccept,
        operation: Op::AcceptOffer,
        target: Some("off_1".into()),
        body: serde_json::json!({}).into(),
        token: None,
        draft: None,
        seller: SELLER.into(),
        asked_by: Asker {
            operator: SELLER_OPERATOR.into(),
            agent: Agent::Key(thumbprint('A')),
            authenticated_by: Mechanism::HttpSignature,
            roles: Vec::new(),
            duties: None,
        },
        details: serde_json::json!({}),
        display: serde_json::json!({}),
        asked: Box::new(Entry::new(
            Subject::new(SubjectKind::Negotiation, "neg_1"),
            NOW.plus(-60),
            Op::AcceptOffer,
            Decision::Auto,
            &Caller::signed(SELLER_OPERATOR, thumbprint('A')),
        )),
        created_at: NOW.plus(-60),
        expires_at: NOW.plus(840),
        outcome: None,
    }
}

fn reserved(offer_id: &str, until: Timestamp) -> ListingState {
    ListingState::Reserved {
        offer_id: offer_id.into(),
        until,
    }
}

fn sold(offer_id: &str) -> ListingState {
    ListingState::Sold {
        offer_id: offer_id.into(),
        deal_id: "deal_1".into(),
    }
}

fn any_tier() -> impl Strategy<Value = Tier> {
    select(vec![Tier::Auto, Tier::Ask, Tier::Forbid])
}

/// Cases in which any number of things are wrong.
fn cases(ops: Vec<Op>) -> impl Strategy<Value = Case> {
    let amounts = prop_oneof![
        1..=MAX_AMOUNT,
        FLOOR - 2..=FLOOR + 2,
        Just(1),
        Just(MAX_AMOUNT)
    ];
    let price = || {
        (amounts.clone(), select(vec!["EUR", "EUR", "EUR", "USD"]))
            .prop_map(|(amount, currency)| Money::new(amount, currency))
    };
    let states = select(vec![
        ListingState::Active,
        ListingState::Active,
        ListingState::Active,
        ListingState::Draft,
        ListingState::Withdrawn,
        reserved("off_1", NOW.plus(60)),
        reserved("off_other", NOW.plus(60)),
        reserved("off_other", NOW),
        sold("off_1"),
        sold("off_other"),
    ]);
    let time = || select(vec![-HOUR, -1, 0, 1, HOUR, HOUR, HOUR]);
    let counts = || proptest::collection::vec(Just(NOW.plus(-5)), 0..12);
    let rarely = || proptest::bool::weighted(0.1);
    (
        select(ops),
        (
            price(),
            price(),
            states,
            select(OFFER_STATES.to_vec()),
            time(),
            time(),
        ),
        (counts(), counts(), any::<bool>(), any_tier(), any_tier()),
        (
            rarely(),
            rarely(),
            rarely(),
            rarely(),
            rarely(),
            rarely(),
            rarely(),
            any::<u8>(),
        ),
    )
        .prop_map(
            |(op, (asked, offered, listing_state, offer_state, ends, available), counts, odd)| {
                let (own, operator, approved, granted, default) = counts;
                Case::of(op).with(|c| {
                    match &mut c.facts.requested {
                        Requested::Offer(new) => {
                            new.deal_terms.price = asked;
                            new.expires_at = Some(NOW.plus(ends));
                        }
                        Requested::Price(price) => *price = asked,
                        _ => {}
                    }
                    if let Some(offer) = &mut c.facts.offer {
                        offer.deal_terms.price = offered;
                        offer.state = if odd.7 % 2 == 0 {
                            OfferState::Open
                        } else {
                            offer_state
                        };
                        offer.expires_at = NOW.plus(ends);
                        if odd.0 {
                            offer.by = By::Seller;
                        }
                    }
                    if let Some(listing) = &mut c.facts.listing {
                        listing.state = listing_state;
                        if odd.1 {
                            listing.seller = "pw_another".into();
                        }
                        if let Some(terms) = &mut listing.terms {
                            terms.public.available_until = Some(NOW.plus(available));
                        }
                        if odd.2 {
                            listing.terms = None;
                            c.facts.private = None;
                        }
                    }
                    c.tier(granted);
                    if let Some(verb) = op.row().verb.filter(|v| v.scope().is_some()) {
                        let allowed = if odd.7 % 3 == 0 {
                            vec![default]
                        } else {
                            vec![Tier::Auto, default]
                        };
                        let tiers = std::mem::take(&mut c.policy.tiers);
                        c.policy.tiers = tiers.offer(verb, default, &allowed);
                        if odd.3 {
                            c.policy.tiers = std::mem::take(&mut c.policy.tiers).withhold(verb);
                        }
                    }
                    if odd.7 % 4 == 0 {
                        c.facts.own_count = own;
                        c.facts.operator_count = operator;
                    }
                    c.facts.approved = approved;
                    match &mut c.grant {
                        Some(grant) if odd.4 => grant.sub = "pw_another".into(),
                        Some(grant) if odd.5 => grant.scopes.truncate(usize::from(odd.7 % 7)),
                        grant if odd.6 => *grant = None,
                        _ => {}
                    }
                    if odd.7 == 1 {
                        c.facts.requested = Requested::Nothing;
                    }
                    if odd.7 == 3 {
                        c.facts = Facts::default();
                    }
                    if odd.7 % 32 == 5 {
                        c.caller = buyer();
                    }
                })
            },
        )
}
