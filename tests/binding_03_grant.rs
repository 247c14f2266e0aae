//! Binding 3.3: the checks of the grant on every call, in the order of its table.

#![allow(clippy::unwrap_used)]

use http::StatusCode;
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};
use tower_rctp::{
    protocol::{
        grant::{Confirmation, Grant, GrantStatus, Introspection, Need, check},
        policy::Tier,
        refusal::{Reason, Refusal},
        time::Timestamp,
    },
    wire::jwk::Thumbprint,
};

const NOW: Timestamp = Timestamp::from_secs(1_793_530_800);
const ACCEPT: &str = "dev.rctp.deal:offer_accept";
const COUNTER: &str = "dev.rctp.deal:offer_counter";

// ---------------------------------------------------------------------------------------------------------------
// The table

#[test]
fn a_live_grant_of_the_scope_passes_with_what_the_seller_confirmed() {
    for call in [Call::signed(), Call::unsigned()] {
        let grant = call.check().unwrap();
        assert_eq!(
            grant,
            Grant {
                sub: "pw_1".into(),
                client_id: Some("client-1".into()),
                agent_id: Some("agent-1".into()),
                scopes: vec![ACCEPT.into(), COUNTER.into()],
                tiers: [
                    (ACCEPT.to_owned(), Tier::Auto),
                    (COUNTER.to_owned(), Tier::Ask)
                ]
                .into(),
            }
        );
    }
}

#[test]
fn a_token_that_the_authorization_server_does_not_know_is_401_grant_invalid() {
    let call = Call::signed().with(|c| c.introspection = read(json!({"active": false})));
    call.refuses(Reason::GrantInvalid, StatusCode::UNAUTHORIZED);
}

#[test]
fn a_signed_call_needs_a_token_bound_to_its_key() {
    let none = Call::signed().with(|c| c.introspection.cnf = None);
    let other =
        Call::signed().with(|c| c.introspection.cnf = bound(Some(thumbprint('X').as_str())));
    let not_by_jkt = Call::signed().with(|c| c.introspection.cnf = bound(None));
    let empty = Call::signed().with(|c| c.introspection.cnf = bound(Some("")));
    for call in [none, other, not_by_jkt, empty] {
        call.refuses(Reason::GrantInvalid, StatusCode::UNAUTHORIZED);
    }
}

#[test]
fn an_unsigned_call_needs_a_token_that_is_not_bound() {
    let key =
        Call::unsigned().with(|c| c.introspection.cnf = bound(Some(thumbprint('A').as_str())));
    let certificate = Call::unsigned().with(|c| c.introspection.cnf = bound(None));
    for call in [key, certificate] {
        call.refuses(Reason::GrantInvalid, StatusCode::UNAUTHORIZED);
    }
}

#[test]
fn a_revoked_grant_is_403_grant_revoked() {
    for active in [true, false] {
        let call = Call::signed().with(|c| {
            c.introspection.grant_status = Some(GrantStatus::Revoked);
            c.introspection.active = active;
        });
        call.refuses(Reason::GrantRevoked, StatusCode::FORBIDDEN);
    }
}

#[test]
fn an_expired_grant_is_403_grant_expired() {
    for active in [true, false] {
        let call = Call::signed().with(|c| {
            c.introspection.grant_status = Some(GrantStatus::Expired);
            c.introspection.active = active;
        });
        call.refuses(Reason::GrantExpired, StatusCode::FORBIDDEN);
    }
}

#[test]
fn a_token_that_is_no_longer_current_is_401_grant_invalid_and_says_to_refresh() {
    let inactive = Call::signed().with(|c| c.introspection.active = false);
    let refusal = inactive.refuses(Reason::GrantInvalid, StatusCode::UNAUTHORIZED);
    assert!(refusal.message().contains("refresh"), "{refusal}");

    // `exp` is the first second at which it is not.
    for (exp, passes) in [(1, true), (0, false), (-1, false)] {
        let call = Call::signed().with(|c| c.introspection.exp = Some(NOW.secs() + exp));
        assert_eq!(call.check().is_ok(), passes, "{exp}");
    }
    let silent = Call::signed().with(|c| c.introspection.exp = None);
    assert!(silent.check().is_ok());
}

#[test]
fn a_scope_that_was_not_granted_is_403_action_forbidden() {
    for scope in [
        None,
        Some(""),
        Some(COUNTER),
        Some("dev.rctp.deal:offer_accept_more"),
        Some("dev.rctp.deal:offer_accept,dev.rctp.deal:offer_counter"),
        Some("Dev.Rctp.Deal:Offer_Accept"),
    ] {
        let call = Call::signed().with(|c| c.introspection.scope = scope.map(str::to_owned));
        call.refuses(Reason::ActionForbidden, StatusCode::FORBIDDEN);
    }
}

#[test]
fn rows_without_a_verb_need_any_rctp_scope() {
    let with = |scope: &str| {
        Call::signed().with(|c| {
            c.need = Need::AnyRctpScope;
            c.introspection.scope = Some(scope.into());
        })
    };
    assert!(with(COUNTER).check().is_ok());
    assert!(
        with("openid dev.rctp.listing:listing_create")
            .check()
            .is_ok()
    );
    for scope in ["", "openid profile", "dev.ucp.shopping:order"] {
        with(scope).refuses(Reason::ActionForbidden, StatusCode::FORBIDDEN);
    }
}

#[test]
fn the_always_403_verbs_need_a_live_grant_and_no_scope() {
    let live = Call::signed().with(|c| {
        c.need = Need::Live;
        c.introspection.scope = None;
    });
    assert!(live.check().is_ok());
    let revoked = live.with(|c| c.introspection.grant_status = Some(GrantStatus::Revoked));
    revoked.refuses(Reason::GrantRevoked, StatusCode::FORBIDDEN);
}

// ---------------------------------------------------------------------------------------------------------------
// What makes a token a seller's grant

#[test]
fn a_token_without_a_seller_or_with_other_than_one_grant_is_no_grant() {
    let detail = || json!({"type": "dev.rctp.agent_grant", "tiers": {}});
    let without_sub = Call::signed().with(|c| c.introspection.sub = None);
    let none = Call::signed().with(|c| c.introspection.authorization_details.clear());
    let two = Call::signed().with(|c| c.introspection.authorization_details.push(detail()));
    let other_type = Call::signed().with(|c| {
        c.introspection.authorization_details = vec![json!({"type": "payment_initiation"})];
    });
    for call in [without_sub, none, two, other_type] {
        call.refuses(Reason::GrantInvalid, StatusCode::UNAUTHORIZED);
    }
    let beside = Call::signed().with(|c| {
        let details = &mut c.introspection.authorization_details;
        details.insert(0, json!({"type": "payment_initiation"}));
        details.push(json!("not even an object"));
    });
    assert!(beside.check().is_ok());
}

#[test]
fn details_that_cannot_be_read_grant_nothing() {
    for tiers in [
        json!({ACCEPT: "sometimes"}),
        json!({ACCEPT: null}),
        json!({ACCEPT: ["auto"]}),
        json!(["auto"]),
        json!("auto"),
        json!(null),
    ] {
        let call =
            Call::signed().with(|c| c.introspection.authorization_details[0]["tiers"] = tiers);
        call.refuses(Reason::GrantInvalid, StatusCode::UNAUTHORIZED);
    }
}

#[test]
fn members_that_rfc_7662_allows_beside_these_are_ignored() {
    let mut answer = serde_json::to_value(&Call::signed().introspection).unwrap();
    answer["token_type"] = json!("Bearer");
    answer["aud"] = json!(["x"]);
    answer["username"] = json!("someone");
    answer["cnf"]["x5t#S256"] = json!("x");
    let call = Call::signed().with(|c| c.introspection = read(answer));
    assert!(call.check().is_ok());
}

#[test]
fn an_answer_of_the_wrong_shape_is_not_read_as_one() {
    for answer in [
        json!({}),
        json!({"active": "true"}),
        json!({"active": 1}),
        json!({"active": true, "grant_status": "Active"}),
        json!({"active": true, "scope": ["dev.rctp.deal:offer_accept"]}),
        json!({"active": true, "cnf": "x"}),
    ] {
        assert!(
            serde_json::from_value::<Introspection>(answer.clone()).is_err(),
            "{answer}"
        );
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The order

#[test]
fn where_two_checks_fail_the_answer_is_that_of_the_earlier_row() {
    type Break = (&'static str, Reason, fn(&mut Call));
    // The row before these, that the token is present and covered, is not this function's.
    let table: [Break; 7] = [
        ("known", Reason::GrantInvalid, |c| {
            c.introspection.active = false;
            c.introspection.grant_status = None;
        }),
        ("bound to the key", Reason::GrantInvalid, |c| {
            c.introspection.cnf = bound(Some(thumbprint('X').as_str()));
        }),
        ("not revoked", Reason::GrantRevoked, |c| {
            if c.introspection.grant_status.is_some() {
                c.introspection.grant_status = Some(GrantStatus::Revoked);
            }
        }),
        ("not expired", Reason::GrantExpired, |c| {
            if c.introspection.grant_status == Some(GrantStatus::Active) {
                c.introspection.grant_status = Some(GrantStatus::Expired);
            }
        }),
        ("current", Reason::GrantInvalid, |c| {
            c.introspection.active = false
        }),
        ("a seller's grant", Reason::GrantInvalid, |c| {
            c.introspection.authorization_details.clear();
        }),
        ("the scope", Reason::ActionForbidden, |c| {
            c.introspection.scope = None
        }),
    ];
    for (i, (first, reason, break_first)) in table.iter().enumerate() {
        let alone = Call::signed().with(break_first);
        let answer = alone.refuses(*reason, reason.status());
        for (second, _, break_second) in &table[i + 1..] {
            // Breaking the later one first, so that it cannot undo the earlier one.
            let both = Call::signed().with(break_second).with(break_first);
            let refusal = both.check().unwrap_err();
            assert_eq!(
                (refusal.reason(), refusal.message()),
                (answer.reason(), answer.message()),
                "`{first}` before `{second}`"
            );
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Whatever the answer

fn introspections() -> impl Strategy<Value = Introspection> {
    let jkt = select(vec![
        None,
        bound(None),
        bound(Some(thumbprint('A').as_str())),
        bound(Some(thumbprint('X').as_str())),
    ]);
    let status = select(vec![
        None,
        Some(GrantStatus::Active),
        Some(GrantStatus::Revoked),
        Some(GrantStatus::Expired),
    ]);
    let scope = proptest::option::of(select(vec!["", ACCEPT, COUNTER, "openid"]));
    let details = select(vec![
        vec![],
        vec![json!({"type": "dev.rctp.agent_grant", "tiers": {ACCEPT: "ask"}})],
        vec![json!({"type": "dev.rctp.agent_grant"})],
        vec![json!({"type": "dev.rctp.agent_grant", "tiers": 1})],
        vec![json!(1)],
    ]);
    let exp = proptest::option::of(-2..3_i64);
    let sub = proptest::option::of(Just("pw_1".to_owned()));
    (any::<bool>(), jkt, status, scope, details, exp, sub).prop_map(
        |(active, cnf, grant_status, scope, authorization_details, exp, sub)| Introspection {
            active,
            scope: scope.map(str::to_owned),
            sub,
            client_id: None,
            exp: exp.map(|exp| NOW.secs() + exp),
            cnf,
            grant_status,
            authorization_details,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_passes_is_known_bound_right_in_force_current_and_granted(
        introspection in introspections(),
        signed in any::<bool>(),
    ) {
        let key = thumbprint('A');
        let signed_by = signed.then_some(&key);
        let result = check(&introspection, signed_by, Need::Scope(ACCEPT), NOW);
        if let Ok(grant) = result {
            prop_assert!(introspection.active);
            prop_assert!(introspection.exp.is_none_or(|exp| exp > NOW.secs()));
            prop_assert!(matches!(introspection.grant_status, None | Some(GrantStatus::Active)));
            let jkt = introspection.cnf.and_then(|cnf| cnf.jkt);
            prop_assert_eq!(jkt.as_deref(), signed_by.map(Thumbprint::as_str));
            prop_assert!(grant.has_scope(ACCEPT) && grant.has_rctp_scope());
            prop_assert_eq!(Some(grant.sub), introspection.sub);
        }
    }

    #[test]
    fn no_answer_says_what_the_authorization_server_said(introspection in introspections()) {
        if let Err(refusal) = check(&introspection, None, Need::Scope(ACCEPT), NOW) {
            let response = refusal.to_response();
            let text = std::str::from_utf8(response.body()).unwrap();
            prop_assert!(!text.contains("pw_1"));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Calls

/// What `check` is given; at first nothing stands against it.
struct Call {
    introspection: Introspection,
    signed_by: Option<Thumbprint>,
    need: Need<'static>,
}

impl Call {
    fn unsigned() -> Self {
        Self {
            introspection: read(json!({
                "active": true, "scope": format!("{ACCEPT} {COUNTER}"), "sub": "pw_1", "client_id": "client-1",
                "exp": NOW.secs() + 900, "grant_status": "active",
                "authorization_details": [{
                    "type": "dev.rctp.agent_grant", "agent_id": "agent-1",
                    "tiers": {ACCEPT: "auto", COUNTER: "ask"},
                }],
            })),
            signed_by: None,
            need: Need::Scope(ACCEPT),
        }
    }

    fn signed() -> Self {
        Self::unsigned().with(|c| {
            c.signed_by = Some(thumbprint('A'));
            c.introspection.cnf = bound(Some(thumbprint('A').as_str()));
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn check(&self) -> Result<Grant, Refusal> {
        check(&self.introspection, self.signed_by.as_ref(), self.need, NOW)
    }

    #[track_caller]
    fn refuses(&self, reason: Reason, status: StatusCode) -> Refusal {
        let refusal = self.check().unwrap_err();
        assert_eq!(refusal.reason(), Some(reason), "{refusal}");
        assert_eq!(refusal.status(), status);
        refusal
    }
}

fn read(answer: Value) -> Introspection {
    serde_json::from_value(answer).unwrap()
}

fn bound(jkt: Option<&str>) -> Option<Confirmation> {
    Some(Confirmation {
        jkt: jkt.map(str::to_owned),
    })
}

fn thumbprint(letter: char) -> Thumbprint {
    format!("{}A", letter.to_string().repeat(42))
        .parse()
        .unwrap()
}
