//! Binding 4: term sets and their constraints, what the seller confirms and what is committed to, and what becomes of
//! what an agent proposed.
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;
mod common;
#[path = "common/hosted.rs"]
mod hosted;
#[path = "common/market.rs"]
mod market;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use common::{CURRENCY, FLOOR, LISTING, World};
use market::{Backing, Market};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tower_rctp::{
    protocol::{
        money::{MAX_AMOUNT, Money},
        operation::Verb,
        policy::{Tier, Tiers},
        schema,
        term_set::{Confirmed, TermName, TermSet, TermSets, Violation, Visibility},
        terms::PrivateTerms,
    },
    store::{Key, Kind},
};

// ---------------------------------------------------------------------------------------------------------------
// 4.1 Term sets

#[test]
fn a_term_set_lists_its_terms_with_type_visibility_and_whether_each_is_required() {
    let goods = goods();
    assert_eq!(goods.name(), "goods-1");
    assert_eq!(goods.title(), "Goods between individuals");
    assert!(goods.terms().eq(TermName::ALL));
    let private: Vec<TermName> = goods
        .terms()
        .filter(|name| name.visibility() == Visibility::Private)
        .collect();
    assert_eq!(private, [TermName::Floor]);
}

#[test]
fn required_means_has_a_value_at_confirmation() {
    // Each required term of goods-1 alone, then all at once, in the term set's order.
    let required = [
        "floor",
        "fulfillment_options",
        "payment_terms",
        "release_condition",
        "deliver_within_days",
        "inspection_days",
        "return_policy",
    ];
    for name in required {
        for without in [None, Some(json!(null))] {
            let terms = edited(name, without);
            assert_eq!(broken(&goods(), &terms), [(name, "required")], "{name}");
        }
    }
    assert_eq!(
        broken(&goods(), &json!({})),
        required.map(|name| (name, "required"))
    );
    for optional in ["available_from", "available_until", "buyer_requirements"] {
        for without in [None, Some(json!(null))] {
            confirmed(&goods(), &edited(optional, without));
        }
    }
}

#[test]
fn an_empty_list_is_no_value() {
    for name in ["fulfillment_options", "payment_terms"] {
        let terms = edited(name, Some(json!([])));
        assert_eq!(broken(&goods(), &terms), [(name, "required")]);
        // Where it is not required, it is stored and committed to as absent.
        let lax = with_term(name, |term| term["required"] = json!(false));
        let (with, without) = (
            confirmed(&lax, &terms),
            confirmed(&lax, &edited(name, None)),
        );
        assert_eq!(with.public, without.public);
        assert_eq!(committed(&with, SALT), committed(&without, SALT));
        assert!(json!(with.public).get(name).is_none());
    }
    let nothing = [
        json!({}),
        json!({"jurisdictions": []}),
        json!({"jurisdictions": [], "certifications": [], "authenticated_by": []}),
    ];
    for requirements in nothing {
        let terms = edited("buyer_requirements", Some(requirements));
        assert_eq!(confirmed(&goods(), &terms).public.buyer_requirements, None);
        let strict = with_term("buyer_requirements", |term| term["required"] = json!(true));
        assert_eq!(
            broken(&strict, &terms),
            [("buyer_requirements", "required")]
        );
    }
    let terms = edited(
        "buyer_requirements",
        Some(json!({"jurisdictions": ["DE"], "certifications": []})),
    );
    assert_eq!(
        json!(confirmed(&goods(), &terms).public)["buyer_requirements"],
        json!({"jurisdictions": ["DE"]})
    );
}

#[test]
fn each_type_takes_its_own_values_only() {
    let of_each_type = [
        ("floor", json!({"amount": 45_000, "currency": "EUR"})),
        ("available_until", json!("2026-12-24T19:00:00+01:00")),
        (
            "fulfillment_options",
            json!([{"method_type": "pickup", "option_ids": ["in_person"]}]),
        ),
        ("payment_terms", json!(["held_funds"])),
        ("release_condition", json!("delivered")),
        ("deliver_within_days", json!(14)),
        ("return_policy", json!("not_as_described")),
        (
            "buyer_requirements",
            json!({"authenticated_by": ["http_signature"]}),
        ),
    ];
    for (name, own) in &of_each_type {
        confirmed(&goods(), &edited(name, Some(own.clone())));
        for (_, other) in of_each_type.iter().filter(|(other, _)| other != name) {
            // A release condition is a short identifier too.
            if (*name, other) == ("return_policy", &json!("delivered")) {
                continue;
            }
            let terms = edited(name, Some(other.clone()));
            assert_eq!(
                broken(&goods(), &terms),
                [(*name, "type")],
                "{name} {other}"
            );
        }
    }
    let wrong = [
        ("floor", json!({"amount": 0, "currency": "EUR"})),
        ("floor", json!({"amount": -1, "currency": "EUR"})),
        ("floor", json!({"amount": 1.5, "currency": "EUR"})),
        ("floor", json!({"amount": "45000", "currency": "EUR"})),
        (
            "floor",
            json!({"amount": MAX_AMOUNT + 1, "currency": "EUR"}),
        ),
        ("floor", json!({"amount": 45_000, "currency": "eur"})),
        ("floor", json!({"amount": 45_000})),
        (
            "floor",
            json!({"amount": 45_000, "currency": "EUR", "x": 1}),
        ),
        ("floor", json!({})),
        ("floor", json!([])),
        ("available_from", json!("tomorrow")),
        ("available_from", json!("2026-02-30T10:00:00Z")),
        ("available_from", json!("2026-12-01T10:00:00")),
        // In UTC these leave the years that the schema has.
        ("available_from", json!("1000-01-01T00:00:00+01:00")),
        ("available_from", json!("2999-12-31T23:59:59-01:00")),
        (
            "fulfillment_options",
            json!([{"method_type": "pickup", "option_ids": []}]),
        ),
        ("fulfillment_options", json!([{"method_type": "pickup"}])),
        (
            "fulfillment_options",
            json!([{"option_ids": ["x"], "method_type": "a b"}]),
        ),
        ("payment_terms", json!(["held_funds", "held_funds"])),
        ("payment_terms", json!(["Held funds"])),
        ("payment_terms", json!([null])),
        ("release_condition", json!("carrier:picked_up")),
        ("deliver_within_days", json!("14")),
        ("deliver_within_days", json!(1.5)),
        ("deliver_within_days", json!(u64::MAX)),
        ("return_policy", json!("")),
        ("buyer_requirements", json!({"jurisdictions": "DE"})),
        ("buyer_requirements", json!({"nationality": ["DE"]})),
        ("buyer_requirements", json!({"authenticated_by": ["word"]})),
    ];
    for (name, value) in wrong {
        let terms = edited(name, Some(value.clone()));
        // An empty list is no value of any type.
        let rule = if value == json!([]) {
            "required"
        } else {
            "type"
        };
        assert_eq!(broken(&goods(), &terms), [(name, rule)], "{name} {value}");
    }
}

#[test]
fn only_the_ten_names_are_accepted() {
    // 10a: `counter` is no longer one.
    for name in ["counter", "Floor", "floor ", "", "price", "7654321", "*"] {
        let terms = edited(name, Some(json!(1)));
        let violations = violations(&goods(), &terms);
        assert_eq!(rules(&violations), [("*", "unknown")], "{name}");
        assert!(!violations[0].message.contains("7654321"));
    }
    for not_an_object in [json!(null), json!([]), json!("floor"), json!(7654321)] {
        assert_eq!(broken(&goods(), &not_an_object), [("*", "type")]);
    }
}

#[test]
fn a_term_that_the_set_does_not_list_is_refused_though_it_is_one_of_the_ten() {
    let mut definition = definition();
    definition["terms"]
        .as_array_mut()
        .unwrap()
        .retain(|term| term["name"] != "floor" && term["name"] != "buyer_requirements");
    let set = read(definition);
    assert_eq!(set.check(), Ok(()));
    let mut terms = full();
    terms["colour"] = json!("red");
    // What is not in the set comes after what is: the ten in their order, then the rest, named once.
    terms["shape"] = json!("round");
    terms["deliver_within_days"] = json!(61);
    assert_eq!(
        broken(&set, &terms),
        [
            ("deliver_within_days", "max"),
            ("floor", "unknown"),
            ("buyer_requirements", "unknown"),
            ("*", "unknown"),
        ]
    );
}

// ---------------------------------------------------------------------------------------------------------------
// 4.1 Constraints

#[test]
fn min_and_max_bound_days_and_minor_units() {
    for (days, rule) in [(1, None), (60, None), (61, Some("max")), (365, Some("max"))] {
        let found = broken(&goods(), &edited("deliver_within_days", Some(json!(days))));
        let expected: Vec<_> = rule
            .map(|r| ("deliver_within_days", r))
            .into_iter()
            .collect();
        assert_eq!(found, expected, "{days}");
    }
    let set = with_term("inspection_days", |term| {
        term["constraints"] = json!({"min": 2, "max": 2});
    });
    for (days, rule) in [(1, Some("min")), (2, None), (3, Some("max"))] {
        let found = broken(&set, &edited("inspection_days", Some(json!(days))));
        let expected: Vec<_> = rule.map(|r| ("inspection_days", r)).into_iter().collect();
        assert_eq!(found, expected, "{days}");
    }
    let set = with_term("floor", |term| {
        term["constraints"] = json!({"min": 500, "max": 50_000});
    });
    for (amount, rule) in [
        (499, Some("min")),
        (500, None),
        (50_000, None),
        (50_001, Some("max")),
    ] {
        let found = broken(&set, &floor_of(amount, "EUR"));
        let expected: Vec<_> = rule.map(|r| ("floor", r)).into_iter().collect();
        assert_eq!(found, expected, "{amount}");
    }
}

#[test]
fn gt_term_and_lt_term_compare_points_in_time_strictly_and_as_they_are_stored() {
    let between = |from: &str, until: &str| {
        let mut terms = full();
        terms["available_from"] = json!(from);
        terms["available_until"] = json!(until);
        broken(&goods(), &terms)
    };
    let both = [
        ("available_from", "lt_term"),
        ("available_until", "gt_term"),
    ];
    let noon = "2026-12-01T12:00:00Z";
    assert_eq!(between(noon, "2026-12-01T12:00:01Z"), []);
    assert_eq!(between(noon, noon), both);
    assert_eq!(between(noon, "2026-12-01T11:59:59Z"), both);
    // The same instant at another offset, and the same second with a fraction, which is not stored.
    assert_eq!(between(noon, "2026-12-01T13:00:00+01:00"), both);
    assert_eq!(between(noon, "2026-12-01T12:00:00.9Z"), both);
    assert_eq!(between(noon, "2026-12-01T12:00:00-01:00"), []);
}

#[test]
fn gt_term_and_lt_term_compare_days() {
    let set = with_term("deliver_within_days", |term| {
        term["constraints"] = json!({"gt_term": "inspection_days"});
    });
    let mut terms = full();
    terms["inspection_days"] = json!(14);
    for (days, expected) in [
        (13, &[("deliver_within_days", "gt_term")][..]),
        (14, &[("deliver_within_days", "gt_term")]),
        (15, &[]),
    ] {
        terms["deliver_within_days"] = json!(days);
        assert_eq!(broken(&set, &terms), expected, "{days}");
    }
}

#[test]
fn a_comparison_with_a_term_without_a_usable_value_is_skipped() {
    for other in [None, Some(json!("never"))] {
        let terms = edited("available_from", other.clone());
        let expected: Vec<_> = other
            .map(|_| ("available_from", "type"))
            .into_iter()
            .collect();
        assert_eq!(broken(&goods(), &terms), expected);
    }
}

#[test]
fn lte_list_price_and_min_ratio_of_list_price_bound_the_floor() {
    // The list price is 60,000; goods-1 wants a tenth.
    for (amount, expected) in [
        (1, &[("floor", "min_ratio_of_list_price")][..]),
        (5_999, &[("floor", "min_ratio_of_list_price")]),
        (6_000, &[]),
        (60_000, &[]),
        (60_001, &[("floor", "lte_list_price")]),
        (MAX_AMOUNT, &[("floor", "lte_list_price")]),
    ] {
        assert_eq!(
            broken(&goods(), &floor_of(amount, "EUR")),
            expected,
            "{amount}"
        );
    }
}

#[test]
fn an_amount_in_another_currency_is_compared_with_nothing() {
    for amount in [1, 30_000, 60_001] {
        let found = broken(&goods(), &floor_of(amount, "USD"));
        assert_eq!(found, [("floor", "currency")], "{amount}");
    }
    // Also where the set puts no constraint on it.
    let set = with_term("floor", |term| {
        term.as_object_mut().unwrap().remove("constraints");
    });
    assert_eq!(broken(&set, &floor_of(1, "USD")), [("floor", "currency")]);
    assert_eq!(broken(&set, &floor_of(1, "EUR")), []);
}

#[test]
fn every_violation_is_reported_at_once_in_the_order_of_the_term_set() {
    let set = with_term("floor", |term| {
        term["constraints"] = json!({
            "min": 70_000, "max": 10, "lte_list_price": true, "min_ratio_of_list_price": 1,
        });
    });
    let terms = json!({
        "x": 1,
        "inspection_days": 31,
        "available_until": "2026-12-01T12:00:00Z",
        "available_from": "2026-12-02T12:00:00Z",
        "floor": {"amount": 20, "currency": "EUR"},
        "payment_terms": "cash",
    });
    assert_eq!(
        broken(&set, &terms),
        [
            ("floor", "min"),
            ("floor", "max"),
            ("floor", "min_ratio_of_list_price"),
            ("available_from", "lt_term"),
            ("available_until", "gt_term"),
            ("fulfillment_options", "required"),
            ("payment_terms", "type"),
            ("release_condition", "required"),
            ("deliver_within_days", "required"),
            ("inspection_days", "max"),
            ("return_policy", "required"),
            ("*", "unknown"),
        ]
    );
}

#[test]
fn a_message_says_term_and_rule_and_bound() {
    let messages = |terms: &Value| -> Vec<String> {
        let violations = violations(&goods(), terms).into_iter();
        violations.map(|violation| violation.message).collect()
    };
    for (terms, message) in [
        (
            floor_of(60_001, "EUR"),
            "floor must be at most the list price",
        ),
        (
            floor_of(2, "EUR"),
            "floor must be at least 0.1 of the list price",
        ),
        (
            floor_of(7, "USD"),
            "floor must be in the currency of the list price",
        ),
        (
            floor_of(0, "EUR"),
            "floor is not of its type: at `/floor/amount`: the value must be at least 1",
        ),
        (
            edited("deliver_within_days", Some(json!(61))),
            "deliver_within_days must be at most 60",
        ),
        (
            edited("return_policy", None),
            "return_policy must have a value",
        ),
        (
            edited("colour", Some(json!(1))),
            "there is a term that no term set has",
        ),
    ] {
        assert_eq!(messages(&terms), [message]);
    }
}

#[test]
fn a_definition_that_cannot_be_enforced_is_refused() {
    assert_eq!(read(definition()).check(), Ok(()));
    type Edit = fn(&mut Value);
    fn term<'d>(definition: &'d mut Value, name: &str) -> &'d mut Value {
        let mut terms = definition["terms"].as_array_mut().unwrap().iter_mut();
        terms.find(|term| term["name"] == name).unwrap()
    }
    let table: &[(Edit, &str)] = &[
        (|d| d["name"] = json!("Goods 2"), "/name"),
        (|d| d["title"] = json!(""), "/title"),
        (|d| d["terms"] = json!([]), "/terms"),
        (
            |d| _ = d["category_defaults"].as_object_mut().unwrap().remove("*"),
            "`*` is required",
        ),
        (
            |d| {
                let again = d["terms"][1].clone();
                d["terms"].as_array_mut().unwrap().push(again);
            },
            "lists available_from twice",
        ),
        (
            |d| term(d, "floor")["visibility"] = json!("public"),
            "floor is \"private\"; floor is the only private term",
        ),
        (
            |d| term(d, "return_policy")["visibility"] = json!("private"),
            "return_policy is \"public\"",
        ),
        (
            |d| term(d, "return_policy")["type"] = json!("money"),
            "the type of return_policy is \"choice\"",
        ),
        (
            |d| term(d, "payment_terms")["constraints"] = json!({"min": 1}),
            "min of payment_terms says nothing about the type \"choices\"",
        ),
        (
            |d| term(d, "available_from")["constraints"] = json!({"max": 1}),
            "max of available_from",
        ),
        (
            |d| term(d, "return_policy")["constraints"] = json!({"gt_term": "floor"}),
            "gt_term of return_policy",
        ),
        (
            |d| term(d, "inspection_days")["constraints"] = json!({"lte_list_price": true}),
            "lte_list_price of inspection_days",
        ),
        (
            |d| term(d, "inspection_days")["constraints"] = json!({"min_ratio_of_list_price": 0.5}),
            "min_ratio_of_list_price of inspection_days",
        ),
        (
            |d| term(d, "floor")["constraints"] = json!({"lte_list_price": false}),
            "/constraints/lte_list_price",
        ),
        (
            |d| term(d, "inspection_days")["constraints"] = json!({"min": 4, "max": 3}),
            "min of inspection_days is over its max",
        ),
        (
            |d| term(d, "inspection_days")["constraints"] = json!({"lt_term": "inspection_days"}),
            "not another term",
        ),
        (
            |d| {
                let terms = d["terms"].as_array_mut().unwrap();
                terms.retain(|term| term["name"] != "available_until");
            },
            "compared with available_until, which is not another term of the set",
        ),
        (
            |d| term(d, "inspection_days")["constraints"] = json!({"lt_term": "floor"}),
            "compared with floor, which has another type",
        ),
        (
            |d| term(d, "available_from")["constraints"] = json!({"gt_term": "available_until"}),
            "both less and greater",
        ),
        (
            |d| {
                term(d, "available_from")["constraints"] =
                    json!({"lt_term": "available_until", "gt_term": "available_until"});
            },
            "both less and greater",
        ),
        (
            |d| {
                let terms = d["terms"].as_array_mut().unwrap();
                terms.retain(|term| term["name"] != "return_policy");
            },
            "has return_policy, which it does not list",
        ),
        (
            |d| d["category_defaults"]["furniture"]["deliver_within_days"] = json!(61),
            "category_defaults of `furniture`: deliver_within_days must be at most 60",
        ),
        (
            |d| d["category_defaults"]["*"]["return_policy"] = json!("no spaces"),
            "/category_defaults/*/return_policy",
        ),
        (
            |d| {
                let defaults = d["category_defaults"]["*"].as_object_mut().unwrap();
                defaults.remove("inspection_days");
            },
            "category_defaults of `*`: inspection_days must have a value",
        ),
    ];
    for (n, (edit, expected)) in table.iter().enumerate() {
        let mut definition = definition();
        edit(&mut definition);
        let why = match TermSet::deserialize(&definition).unwrap().check() {
            Ok(()) => panic!("row {n}, {expected}: it passes"),
            Err(why) => why,
        };
        assert!(why.contains(expected), "row {n}, {expected}: {why}");
    }
}

#[test]
fn the_set_of_constraints_is_closed() {
    for constraints in [
        json!({"pattern": "x"}),
        json!({"gt_term": "price"}),
        json!({"min": 1.5}),
        json!({"min_ratio_of_list_price": 0}),
        json!({"min_ratio_of_list_price": 1.000_000_001}),
        json!({"min_ratio_of_list_price": -0.1}),
        json!({"min_ratio_of_list_price": 0.123_456_789_1}),
    ] {
        let mut definition = definition();
        definition["terms"][0]["constraints"] = constraints.clone();
        assert!(TermSet::deserialize(&definition).is_err(), "{constraints}");
    }
}

#[test]
fn a_category_takes_what_it_does_not_set_from_every_other_one() {
    let mut definition = definition();
    definition["category_defaults"]["toys"] = json!({"inspection_days": 7});
    let set = read(definition);
    assert_eq!(set.check(), Ok(()));
    let mut expected = set.prefill(None, None);
    expected["inspection_days"] = json!(7);
    assert_eq!(set.prefill(Some("toys"), None), expected);
}

#[test]
fn a_point_in_time_may_be_required_without_a_default() {
    let set = with_term("available_until", |term| term["required"] = json!(true));
    assert_eq!(set.check(), Ok(()));
    let form = set.prefill(None, Some(&json!({"floor": floor(30_000)})));
    assert_eq!(broken(&set, &form), [("available_until", "required")]);
}

proptest! {
    #[test]
    fn a_ratio_is_the_decimal_that_is_written_and_compared_exactly(
        billionths in 1..=1_000_000_000_u64,
        price in 1..=MAX_AMOUNT,
        off in -2..=2_i64,
    ) {
        let written = format!("{}.{:09}", billionths / 1_000_000_000, billionths % 1_000_000_000);
        let set = with_term("floor", |term| {
            term["constraints"] = json!({"min_ratio_of_list_price": serde_json::from_str::<Value>(&written).unwrap()});
        });
        prop_assert_eq!(set.check(), Ok(()));
        // Written back as the same number.
        let back = json!(set)["terms"][0]["constraints"]["min_ratio_of_list_price"].as_f64().unwrap();
        prop_assert_eq!(back, written.parse::<f64>().unwrap());
        // The least amount that reaches it, by integers.
        let product = u128::from(billionths) * u128::from(price);
        let least = i64::try_from(product.div_ceil(1_000_000_000)).unwrap();
        let amount = least + off;
        prop_assume!(amount >= 1 && amount <= MAX_AMOUNT as i64);
        let terms = edited("floor", Some(json!({"amount": amount, "currency": "EUR"})));
        let outcome = set.confirm(&terms, &Money::new(price, "EUR"));
        prop_assert_eq!(outcome.is_ok(), amount >= least);
    }
}

#[test]
fn a_tenth_of_a_price_is_a_tenth_of_it() {
    // As doubles, 0.1 × 3 is over 0.3, and 0.07 × 100 over 7.
    for (ratio, price, floor) in [
        (0.1, 30, 3),
        (0.07, 100, 7),
        (0.29, 100, 29),
        (0.57, 100, 57),
    ] {
        let set = with_term("floor", |term| {
            term["constraints"] = json!({"min_ratio_of_list_price": ratio});
        });
        let price = Money::new(price, "EUR");
        assert!(set.confirm(&floor_of(floor, "EUR"), &price).is_ok());
        assert!(set.confirm(&floor_of(floor - 1, "EUR"), &price).is_err());
    }
}

// ---------------------------------------------------------------------------------------------------------------
// 4.1 The term sets that a gateway enforces

#[tokio::test]
async fn the_gateway_advertises_the_term_sets_it_enforces_and_takes_no_other() {
    let mut own = definition();
    own["name"] = json!("art-1");
    let own = read(own);
    let with = async |names: &'static [&'static str]| {
        let own = own.clone();
        World::with(Tier::Ask, move |b| {
            b.term_sets(names.iter().copied()).term_set(own)
        })
        .await
    };
    for (world, enforced) in [
        (World::asking().await, &["goods-1"][..]),
        (with(&["goods-1"]).await, &["goods-1", "art-1"]),
        (with(&["art-1", "goods-1"]).await, &["art-1", "goods-1"]),
        (with(&[]).await, &["art-1"]),
    ] {
        let config = &world.rctp.profile()["ucp"]["capabilities"]["dev.rctp.listing"][0]["config"];
        assert_eq!(config["term_sets"], json!(enforced));
        for name in ["goods-1", "art-1", "goods-2"] {
            let body = json!({
                "title": "A bicycle", "term_set": name, "list_price": {"amount": 60_000, "currency": CURRENCY},
            });
            let answer = world.seller_post("/listings", &body).await;
            match enforced.contains(&name) {
                true => assert_eq!(answer.status, 202, "{name}"),
                false => {
                    assert_eq!(answer.status, 422, "{name}");
                    assert_eq!(answer.body["error"], "terms_invalid");
                }
            }
        }
    }
}

#[test]
fn a_term_set_of_ones_own_has_a_name_of_its_own_and_is_checked() {
    let sets = TermSets::reference();
    let taken = sets.clone().with(goods()).unwrap_err();
    assert!(taken.contains("`goods-1` is there already"), "{taken}");
    let mut broken = definition();
    broken["name"] = json!("art-1");
    broken["terms"][0]["visibility"] = json!("public");
    assert!(sets.clone().with(read(broken.clone())).is_err());
    broken["terms"][0]["visibility"] = json!("private");
    let sets = sets.with(read(broken)).unwrap();
    assert_eq!(sets.names(), ["goods-1", "art-1"]);
    assert_eq!(sets.get("art-1").unwrap().name(), "art-1");
    assert!(sets.get("art-2").is_none());
    assert_eq!(sets.select(["art-1", "art-1"]).unwrap().names(), ["art-1"]);
    let unknown = sets.select(["goods-1", "art-2"]).unwrap_err();
    assert_eq!(
        unknown,
        "`art-2` is not registered; there is goods-1, art-1"
    );
    assert!(TermSets::none().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------
// 4.2 What the form begins with

#[test]
fn the_form_is_the_proposed_terms_over_the_category_defaults() {
    let defaults = &definition()["category_defaults"];
    let goods = goods();
    for (category, of) in [
        (None, "*"),
        (Some("*"), "*"),
        (Some("furniture"), "furniture"),
        (Some("bicycles"), "*"),
        (Some(""), "*"),
    ] {
        assert_eq!(goods.prefill(category, None), defaults[of], "{category:?}");
    }
    let proposed = json!({
        "floor": floor(41_000), "deliver_within_days": 3, "payment_terms": ["cash"],
        "available_until": "2026-12-24T18:00:00+01:00",
    });
    let mut expected = defaults["furniture"].clone();
    for (name, value) in proposed.as_object().unwrap() {
        expected[name] = value.clone();
    }
    assert_eq!(goods.prefill(Some("furniture"), Some(&proposed)), expected);
}

#[test]
fn proposed_values_are_filled_in_as_they_are_and_those_of_unknown_terms_dropped() {
    let goods = goods();
    let proposed =
        json!({"floor": "cheap", "inspection_days": 9_999, "colour": "red", "return_policy": null});
    let form = goods.prefill(None, Some(&proposed));
    assert_eq!(form["floor"], "cheap");
    assert_eq!(form["inspection_days"], 9_999);
    assert_eq!(form.get("colour"), None);
    assert_eq!(form["return_policy"], "not_as_described");
    // They are judged when the seller confirms.
    assert_eq!(
        broken(&goods, &form),
        [("floor", "type"), ("inspection_days", "type")]
    );
    for nothing in [json!(null), json!([1]), json!("x"), json!({})] {
        assert_eq!(
            goods.prefill(None, Some(&nothing)),
            goods.prefill(None, None)
        );
    }
    // A set without a floor does not show a proposed one.
    let mut definition = definition();
    definition["terms"].as_array_mut().unwrap().remove(0);
    let form = read(definition).prefill(None, Some(&json!({"floor": floor(41_000)})));
    assert_eq!(form.get("floor"), None);
}

// ---------------------------------------------------------------------------------------------------------------
// 4.2 The submission and the commitment

#[test]
fn the_page_submits_the_terms_object_and_nothing_else() {
    let submits = |body: &Value| schema::validate("terms-submission", body);
    assert_eq!(submits(&json!({"terms": full()})), Ok(()));
    assert_eq!(submits(&json!({"terms": {}})), Ok(()));
    for body in [
        json!({}),
        json!({"terms": null}),
        json!({"terms": full(), "floor": floor(1)}),
        json!({"terms": {"counter": 1}}),
        json!({"terms": {"floor": 1}}),
    ] {
        assert!(submits(&body).is_err(), "{body}");
    }
}

#[test]
fn what_is_stored_is_what_is_shown_and_committed_to() {
    let mut terms = full();
    terms["available_from"] = json!("2026-12-01T13:00:00.75+01:00");
    let confirmed = confirmed(&goods(), &terms);
    terms["available_from"] = json!("2026-12-01T12:00:00Z");
    terms.as_object_mut().unwrap().remove("floor");
    assert_eq!(json!(confirmed.public), terms);
    terms["floor"] = floor(45_000);
    assert_eq!(committed(&confirmed, SALT), commitment(&terms, &SALT));
}

#[test]
fn the_commitment_is_over_every_confirmed_term_and_no_absent_one() {
    let goods = goods();
    let least = json!({
        "floor": floor(45_000), "fulfillment_options": [{"method_type": "pickup", "option_ids": ["in_person"]}],
        "payment_terms": ["held_funds"], "release_condition": "accepted", "deliver_within_days": 14,
        "inspection_days": 0, "return_policy": "none",
    });
    for terms in [least, full()] {
        assert_eq!(
            committed(&confirmed(&goods, &terms), SALT),
            commitment(&terms, &SALT)
        );
    }
    let mut definition = definition();
    for term in definition["terms"].as_array_mut().unwrap() {
        term["required"] = json!(false);
    }
    let lax = read(definition);
    let nothing = confirmed(&lax, &json!({}));
    assert!(nothing.floor.is_none());
    assert_eq!(committed(&nothing, SALT), commitment(&json!({}), &SALT));
    for (name, value) in full().as_object().unwrap() {
        let alone = json!({ name: value });
        assert_eq!(
            committed(&confirmed(&lax, &alone), SALT),
            commitment(&alone, &SALT),
            "{name}"
        );
    }
}

#[test]
fn the_commitment_changes_with_the_salt_and_with_every_term() {
    let goods = goods();
    let of = |terms: &Value| committed(&confirmed(&goods, terms), SALT);
    let mut seen = vec![of(&full())];
    let mut salt = SALT;
    salt[15] ^= 1;
    seen.push(committed(&confirmed(&goods, &full()), salt));
    for (name, value) in [
        ("floor", Some(floor(45_001))),
        ("available_from", Some(json!("2026-12-01T12:00:01Z"))),
        ("available_from", None),
        ("available_until", Some(json!("2026-12-24T18:00:01Z"))),
        ("available_until", None),
        (
            "fulfillment_options",
            Some(json!([{"method_type": "shipping", "option_ids": ["standard"]}])),
        ),
        ("payment_terms", Some(json!(["cash", "held_funds"]))),
        ("release_condition", Some(json!("shipped"))),
        ("deliver_within_days", Some(json!(13))),
        ("inspection_days", Some(json!(4))),
        ("return_policy", Some(json!("none"))),
        (
            "buyer_requirements",
            Some(json!({"jurisdictions": ["DE", "AT", "CH"]})),
        ),
        ("buyer_requirements", None),
    ] {
        seen.push(of(&edited(name, value)));
    }
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), all);
}

proptest! {
    #[test]
    fn confirming_is_total_and_what_it_takes_it_takes_again(terms in submissions()) {
        match goods().confirm(&terms, &price()) {
            Err(violations) => prop_assert!(!violations.is_empty()),
            Ok(confirmed) => {
                prop_assert!(confirmed.floor.is_some());
                let mut shown = json!(confirmed.public);
                prop_assert_eq!(schema::validate("listing-terms", &shown), Ok(()));
                shown["floor"] = terms["floor"].clone();
                let again = goods().confirm(&shown, &price());
                prop_assert!(again.is_ok());
                prop_assert_eq!(again.ok().unwrap().public, confirmed.public);
            }
        }
    }

    #[test]
    fn the_defaults_of_any_category_and_a_floor_in_bounds_always_confirm(
        category in proptest::option::of(prop_oneof![Just("*".to_owned()), Just("furniture".to_owned()), ".{0,12}"]),
        list_price in 1..=MAX_AMOUNT,
        part in 0.0..=1.0_f64,
        proposed in any::<bool>(),
    ) {
        let list_price = Money::new(list_price, "EUR");
        let least = list_price.amount.div_ceil(10);
        let amount = least + ((list_price.amount - least) as f64 * part) as u64;
        let floor = floor(amount.min(list_price.amount));
        let goods = goods();
        let form = if proposed {
            goods.prefill(category.as_deref(), Some(&json!({"floor": floor})))
        } else {
            let mut form = goods.prefill(category.as_deref(), None);
            form["floor"] = floor;
            form
        };
        let confirmed = goods.confirm(&form, &list_price);
        prop_assert!(confirmed.is_ok(), "{:?}", confirmed.err());
        // The defaults are in their stored form already.
        prop_assert_eq!(committed(&confirmed.ok().unwrap(), SALT), commitment(&form, &SALT));
    }

    #[test]
    fn the_commitment_is_the_one_of_the_binding(terms in submissions(), salt in any::<[u8; 16]>()) {
        if let Ok(confirmed) = goods().confirm(&terms, &price()) {
            let mut stored = json!(confirmed.public);
            stored["floor"] = terms["floor"].clone();
            prop_assert_eq!(committed(&confirmed, salt), commitment(&stored, &salt));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// 4.3 Privacy

proptest! {
    #[test]
    fn no_violation_says_a_value(
        terms in submissions(),
        at in prop::sample::select(CANARIES.to_vec()),
        currency in prop::sample::select(vec!["EUR", "USD"]),
    ) {
        let mut terms = terms;
        if let Some(terms) = terms.as_object_mut() {
            let price = json!({"amount": 7_654_321, "currency": currency});
            let canary = match at {
                "price" => price,
                "text" => json!("7654321"),
                "deep" => json!([{"7654321": {"x": [7_654_321, price]}}]),
                "member" => json!({"7654321": 1, "amount": 7_654_321}),
                _ => json!(7_654_321),
            };
            for name in TermName::ALL {
                terms.insert(name.as_str().into(), canary.clone());
            }
            terms.insert("7654321".into(), canary);
        }
        let violations = goods().confirm(&terms, &price()).err().unwrap();
        let said = format!("{violations:?} {}", json!(violations));
        prop_assert!(!said.contains("7654321"), "{}", said);
    }
}

const CANARIES: [&str; 5] = ["price", "text", "deep", "member", "number"];

#[test]
fn a_refused_floor_is_not_said_whatever_it_breaks() {
    let edits: [fn(&mut Value); 6] = [
        |term| term["constraints"] = json!({"min": 1, "max": 2}),
        |term| term["constraints"] = json!({"min": 7_654_322}),
        |term| term["constraints"] = json!({"lte_list_price": true}),
        |term| term["constraints"] = json!({"min_ratio_of_list_price": 0.5}),
        |term| term["visibility"] = json!("public"),
        |term| term["required"] = json!(false),
    ];
    for edit in edits {
        let set = with_term("floor", edit);
        for list_price in [
            Money::new(1, "EUR"),
            Money::new(MAX_AMOUNT, "EUR"),
            Money::new(9, "USD"),
        ] {
            let terms = floor_of(7_654_321, "EUR");
            for violation in set.confirm(&terms, &list_price).err().unwrap_or_default() {
                assert!(!violation.message.contains("7654321"), "{violation:?}");
                assert!(!violation.message.contains(&MAX_AMOUNT.to_string()));
                // The ratio's result would be half of the list price.
                assert!(!violation.message.contains(&(MAX_AMOUNT / 2).to_string()));
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// 4.2 What an agent proposed

#[tokio::test]
async fn proposed_terms_are_discarded_when_the_approval_expires() {
    let world = World::asking().await;
    let body = json!({"proposed_terms": {"floor": {"amount": FLOOR + 3, "currency": CURRENCY}}});
    let path = format!("/listings/{LISTING}/terms");
    let asked = world.seller_post(&path, &body).await;
    assert_eq!(asked.status, 202, "{:?}", asked.body);
    let id = asked.body["approval_request"]["approval_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let proposed = (FLOOR + 3).to_string();
    let stored = async || {
        let key = Key::new(Kind::Approval, &*id);
        let docs = world.rctp.store().load(vec![key]).await.unwrap();
        String::from_utf8(docs[0].as_ref().unwrap().body.to_vec()).unwrap()
    };

    world.rctp.sweep().await.unwrap();
    assert!(
        stored().await.contains(&proposed),
        "held while it is pending"
    );

    world.clock.advance(900);
    world.rctp.sweep().await.unwrap();
    let after = stored().await;
    assert!(
        !after.contains(&proposed) && !after.contains("floor"),
        "{after}"
    );
    assert!(after.contains("expired"));
}

/// What the agent proposes is a form's first content, and no rule for anybody, while it waits and afterwards.
#[tokio::test]
async fn what_an_agent_proposes_is_never_enforced() {
    let market = Market::with(Backing::memory().await, Tier::Ask, |b| b).await;
    let listing = format!("/listings/{LISTING}");
    let before = market.buyer_get(&listing).await;
    for proposed in [FLOOR + 9_000, FLOOR - 9_000] {
        let body = json!({"proposed_terms": {
            "floor": {"amount": proposed, "currency": CURRENCY}, "payment_terms": ["cash"],
        }});
        let asked = market.seller_post(&format!("{listing}/terms"), &body).await;
        assert_eq!(asked.status, 202, "{:?}", asked.body);
        for waits in [true, false] {
            // The confirmed floor and payment terms rule on.
            assert_eq!(market.offer(FLOOR).await.status, 201, "{proposed}");
            let low = market.offer(FLOOR - 1).await;
            assert_eq!(low.refusal(), (422, "below_floor"), "{proposed}");
            assert_eq!(market.buyer_get(&listing).await.bytes, before.bytes);
            if waits {
                market.clock.advance(24 * 3600);
                market.rctp.sweep().await.unwrap();
            }
        }
    }
}

/// The reference tiers, for a grant that names none.
#[tokio::test]
async fn under_the_reference_tier_a_listing_is_asked_about() {
    let world = World::new().await;
    world.grants.change(common::SELLER_TOKEN, |i| {
        i.authorization_details[0]["tiers"] = json!({});
    });
    let listing = json!({
        "title": "A tandem", "term_set": "goods-1",
        "list_price": {"amount": 90_000, "currency": CURRENCY},
        "proposed_terms": {"floor": {"amount": 70_000, "currency": CURRENCY}},
    });
    let asked = world.seller_post("/listings", &listing).await;
    assert_eq!(asked.status, 202, "{:?}", asked.body);
    assert!(asked.decision().starts_with("ask;"), "{}", asked.decision());
}

#[tokio::test]
async fn an_overdue_reservation_is_written_down_as_it_is_read() {
    let world = World::new().await;
    let offer = world.offer(FLOOR + 1).await.get("offer_id");
    let path = format!("/offers/{offer}/accept");
    let accepted = world.seller_post(&path, &json!({})).await;
    assert_eq!(accepted.status, 200);
    world.clock.advance(1800);
    let read = world.buyer_get(&format!("/offers/{offer}")).await;
    assert_eq!(read.body["state"], "expired");
    assert!(world.rctp.sweep().await.unwrap() >= 2);
    let swept = world.buyer_get(&format!("/offers/{offer}")).await;
    assert_eq!(swept.bytes, read.bytes);
    let listing = world.buyer_get(&format!("/listings/{LISTING}")).await;
    assert_eq!(listing.body["state"], "active");
    // Nothing is left to do.
    assert_eq!(world.rctp.sweep().await.unwrap(), 0);
}

// ---------------------------------------------------------------------------------------------------------------
// 4.2 The seller sets the terms on the hosted page

mod on_the_hosted_page {
    use super::*;
    use hosted::{Hosted, Person, confirmed, new_listing, offer_on, on_listing};
    use market::{fits, on_every_store};
    use tower_rctp::protocol::record::SubjectKind;

    on_every_store!(
        v31_setting_terms_is_always_asked_whatever_the_grant_says,
        under_auto_a_listing_begins_without_terms_and_gets_them_by_set_terms,
        what_is_stored_is_exactly_what_is_committed_to,
    );

    async fn outcome(site: &Hosted, anna: &mut Person, id: &str, terms: &Value) -> Value {
        let done = site.confirm(anna, id, terms).await;
        assert_eq!(done.status, 200, "{:?}", done.body);
        done.body["approval"].clone()
    }

    async fn v31_setting_terms_is_always_asked_whatever_the_grant_says(backing: Backing) {
        // The grant lets agents do everything at once.
        let site = Hosted::with(backing, Tier::Auto, |b| b).await;
        let mut anna = site.seller_person().await;
        for body in [json!({}), json!({"proposed_terms": {"floor": floor(1)}})] {
            let asked = site.seller_post(&on_listing("/terms"), &body).await;
            assert_eq!(asked.status, 202, "{:?}", asked.body);
            assert!(asked.decision().starts_with("ask;"), "{}", asked.decision());
        }
        let before = site.buyer_get(&on_listing("")).await.body;
        let id = site.ask(&on_listing("/terms"), &json!({})).await;
        assert_eq!(site.buyer_get(&on_listing("")).await.body, before);
        let approval = outcome(&site, &mut anna, &id, &confirmed(50_000)).await;
        let after = site.buyer_get(&on_listing("")).await.body;
        assert_eq!(
            after["terms_commitment"],
            approval["result"]["terms_commitment"]
        );
        assert_ne!(after["terms_commitment"], before["terms_commitment"]);
        // A policy that would not ask is none.
        let both = [Tier::Auto, Tier::Ask];
        let tiers = Tiers::default().offer(Verb::ListingSetTerms, Tier::Ask, &both);
        assert!(tiers.check().unwrap_err().contains("always `ask`"));
    }

    async fn under_auto_a_listing_begins_without_terms_and_gets_them_by_set_terms(
        backing: Backing,
    ) {
        let site = Hosted::with(backing, Tier::Auto, |b| b).await;
        let mut anna = site.seller_person().await;
        let mut creating = new_listing();
        creating["proposed_terms"] = json!({"floor": floor(77_777)});
        let created = site.seller_post("/listings", &creating).await;
        assert_eq!((created.status, created.decision()), (201, "auto"));
        let listing = created.get("listing_id");
        for none in ["public_terms", "terms_commitment"] {
            assert!(created.body.get(none).is_none(), "{:?}", created.body);
        }
        let path = format!("/listings/{listing}/terms");
        let id = site.ask(&path, &json!({})).await;
        // What was proposed with the listing was not kept.
        let page = site
            .page_get(&format!("/approve/{id}/request"), Some(&anna))
            .await;
        assert_eq!(page.body["prefill"].get("floor"), None);
        assert_eq!(page.body["list_price"], creating["list_price"]);

        let approval = outcome(&site, &mut anna, &id, &confirmed(70_000)).await;
        assert_eq!(approval, site.read(&id).await);
        let commitment = approval["result"]["terms_commitment"].clone();
        let told =
            json!({"listing_id": listing, "term_set": "goods-1", "terms_commitment": commitment});
        assert_eq!(approval["result"], told, "and never a value");
        let view = site.buyer_get(&format!("/listings/{listing}")).await.body;
        fits("listing", &view);
        let mut public = confirmed(70_000);
        public.as_object_mut().unwrap().remove("floor");
        assert_eq!(view["public_terms"], public);
        assert_eq!(view["terms_commitment"], commitment);
        for (amount, status) in [(69_999, 422), (70_000, 201)] {
            let offer = site
                .buyer_post("/offers", &offer_on(&listing, amount))
                .await;
            assert_eq!(offer.status, status, "{:?}", offer.body);
        }
        let chain = site.chain(SubjectKind::Listing, &listing).await;
        let committed: Vec<Option<&Value>> =
            chain.iter().map(|e| e.get("terms_commitment")).collect();
        assert_eq!(
            committed,
            [None, None, Some(&commitment)],
            "created, asked, approved"
        );
    }

    async fn what_is_stored_is_exactly_what_is_committed_to(backing: Backing) {
        let site = Hosted::open(backing).await;
        let mut anna = site.seller_person().await;
        let mut salts = Vec::new();
        for n in 0..3 {
            let mut terms = confirmed(50_000 + n);
            terms["available_until"] = json!("2026-10-01T10:00:00.5+01:00");
            let id = site.ask(&on_listing("/terms"), &json!({})).await;
            // An earlier attempt leaves nothing behind.
            site.fill_in(&anna, &id, &confirmed(59_999)).await;
            let approval = outcome(&site, &mut anna, &id, &terms).await;
            let private = site.stored(Kind::PrivateTerms, LISTING).await.unwrap();
            let private: Value = serde_json::from_slice(&private.body).unwrap();
            let salt = private["salt"].as_str().unwrap();
            let salt: [u8; 16] = BASE64_URL_SAFE_NO_PAD
                .decode(salt)
                .unwrap()
                .try_into()
                .unwrap();
            assert_eq!(private["floor"], floor(50_000 + n));
            // A time has one form, that which the listing shows.
            terms["available_until"] = json!("2026-10-01T09:00:00Z");
            let shown = site.buyer_get(&on_listing("")).await.body["public_terms"].clone();
            let mut whole = shown.clone();
            whole["floor"] = private["floor"].clone();
            assert_eq!(
                whole["available_until"].as_str().unwrap()[..19],
                *"2026-10-01T09:00:00"
            );
            assert_eq!(
                approval["result"]["terms_commitment"],
                commitment(&whole, &salt)
            );
            salts.push(salt);
        }
        salts.sort_unstable();
        salts.dedup();
        assert_eq!(salts.len(), 3, "a fresh salt each time");
    }

    #[tokio::test]
    async fn the_form_is_filled_with_what_was_proposed_over_the_category_over_the_defaults() {
        let site = Hosted::open(Backing::memory().await).await;
        let anna = site.seller_person().await;
        let mut creating = new_listing();
        creating["category"] = json!("furniture");
        creating["proposed_terms"] = json!({"floor": floor(77_777), "inspection_days": 7});
        let id = site.ask("/listings", &creating).await;
        let page = site
            .page_get(&format!("/approve/{id}/request"), Some(&anna))
            .await
            .body;
        let definition = definition();
        assert_eq!(page["term_set"], definition);
        let defaults = &definition["category_defaults"];
        let mut expected = defaults["*"].clone();
        for (name, value) in defaults["furniture"].as_object().unwrap() {
            expected[name] = value.clone();
        }
        expected["floor"] = floor(77_777);
        expected["inspection_days"] = json!(7);
        assert_eq!(page["prefill"], expected);
    }

    #[tokio::test]
    async fn terms_that_break_a_rule_are_422_by_field_and_leave_nothing_behind() {
        let site = Hosted::open(Backing::memory().await).await;
        let anna = site.seller_person().await;
        let id = site.ask(&on_listing("/terms"), &json!({})).await;
        let path = format!("/approve/{id}/terms");
        let changed = |name: &str, value: Value| {
            let mut terms = confirmed(50_000);
            terms[name] = value;
            terms
        };
        let mut two = changed("floor", floor(60_077));
        two["deliver_within_days"] = json!(61);
        let table = [
            (
                changed("floor", floor(60_077)),
                vec![("floor", "lte_list_price")],
            ),
            (
                changed("floor", floor(5_999)),
                vec![("floor", "min_ratio_of_list_price")],
            ),
            (changed("floor", Value::Null), vec![("floor", "required")]),
            (
                two,
                vec![("floor", "lte_list_price"), ("deliver_within_days", "max")],
            ),
        ];
        let commits = site.store.commits();
        for (terms, fields) in table {
            let refused = site
                .page_post(&path, Some(&anna), &json!({"terms": terms}))
                .await;
            assert_eq!(refused.refusal(), (422, "terms_invalid"), "{terms}");
            fits("error", &refused.body);
            let told = refused.body["fields"].as_array().unwrap();
            let told: Vec<(&str, &str)> = told
                .iter()
                .map(|f| (f["term"].as_str().unwrap(), f["rule"].as_str().unwrap()))
                .collect();
            assert_eq!(told, fields, "{terms}");
            for value in ["60077", "5999", "60000"] {
                assert!(
                    !refused.body.to_string().contains(value),
                    "{:?}",
                    refused.body
                );
            }
        }
        let (malformed, terms) = ((400, "invalid_request"), (422, "terms_invalid"));
        for (body, refusal) in [
            (json!({}), malformed),
            (json!([]), malformed),
            (json!({"terms": confirmed(50_000), "floor": 1}), malformed),
            (json!({"terms": []}), terms),
            (json!({"terms": null}), terms),
        ] {
            let refused = site.page_post(&path, Some(&anna), &body).await;
            assert_eq!(refused.refusal(), refusal, "{body}");
            fits("error", &refused.body);
        }
        assert_eq!(site.store.commits(), commits);
        assert!(site.kept(&id).await.get("draft").is_none());
        assert_eq!(site.read(&id).await["status"], "pending");
    }

    /// Binding 4.1: the constraints hold for the listing as it is when the terms become its own. An agent that changes the
    /// price meanwhile learns nothing of them, and the seller looks at them again.
    #[tokio::test]
    async fn terms_that_were_judged_against_another_price_are_looked_at_again() {
        let site = Hosted::with(Backing::memory().await, Tier::Auto, |b| b).await;
        let mut anna = site.seller_person().await;
        let id = site.ask(&on_listing("/terms"), &json!({})).await;
        let (commitment, options) = site.fill_in(&anna, &id, &confirmed(50_000)).await;
        let lower = json!({"price": floor(45_000)});
        assert_eq!(
            site.seller_post(&on_listing("/price"), &lower).await.status,
            200
        );
        let credential = anna.browser.get(&options).await.unwrap();
        let body = json!({"decision": "approve", "credential": credential, "terms_commitment": commitment});
        let before = site.buyer_get(&on_listing("")).await.body;
        let overtaken = site.respond(&anna, &id, &body).await;
        assert_eq!(overtaken.refusal(), (409, "idempotency_conflict"));
        assert_eq!(site.read(&id).await["status"], "pending");
        assert_eq!(site.buyer_get(&on_listing("")).await.body, before);
        let path = format!("/approve/{id}/terms");
        let terms = json!({"terms": confirmed(50_000)});
        let refused = site.page_post(&path, Some(&anna), &terms).await;
        assert_eq!(refused.refusal(), (422, "terms_invalid"));
        assert_eq!(
            site.offer(FLOOR).await.status,
            201,
            "the floor is what it was"
        );
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Definitions and terms

const SALT: [u8; 16] = *b"0123456789abcdef";

fn goods() -> TermSet {
    TermSets::reference().get("goods-1").unwrap().clone()
}

/// `goods-1` as it is published.
fn definition() -> Value {
    let registry = include_str!("../schemas/registries/term-sets.json");
    serde_json::from_str::<Value>(registry).unwrap()["term_sets"][0].take()
}

fn read(definition: Value) -> TermSet {
    serde_json::from_value(definition).unwrap()
}

/// `goods-1` with one term changed.
fn with_term(name: &str, edit: impl FnOnce(&mut Value)) -> TermSet {
    let mut definition = definition();
    let mut terms = definition["terms"].as_array_mut().unwrap().iter_mut();
    edit(terms.find(|term| term["name"] == name).unwrap());
    read(definition)
}

fn price() -> Money {
    Money::new(60_000, "EUR")
}

fn floor(amount: u64) -> Value {
    json!({"amount": amount, "currency": "EUR"})
}

/// A value for every term, in its stored form.
fn full() -> Value {
    json!({
        "floor": floor(45_000),
        "available_from": "2026-12-01T12:00:00Z",
        "available_until": "2026-12-24T18:00:00Z",
        "fulfillment_options": [
            {"method_type": "shipping", "option_ids": ["standard", "express"]},
            {"method_type": "pickup", "option_ids": ["in_person"]},
        ],
        "payment_terms": ["held_funds", "cash"],
        "release_condition": "delivered",
        "deliver_within_days": 14,
        "inspection_days": 3,
        "return_policy": "not_as_described",
        "buyer_requirements": {
            "jurisdictions": ["DE", "AT"], "certifications": ["ISO 27001"], "authenticated_by": ["http_signature"],
        },
    })
}

/// `full` with one term changed, or without it.
fn edited(name: &str, value: Option<Value>) -> Value {
    let mut terms = full();
    let members = terms.as_object_mut().unwrap();
    match value {
        Some(value) => members.insert(name.to_owned(), value),
        None => members.remove(name),
    };
    terms
}

fn floor_of(amount: u64, currency: &str) -> Value {
    edited(
        "floor",
        Some(json!({"amount": amount, "currency": currency})),
    )
}

fn confirmed(set: &TermSet, terms: &Value) -> Confirmed {
    set.confirm(terms, &price())
        .unwrap_or_else(|violations| panic!("{violations:?}"))
}

fn violations(set: &TermSet, terms: &Value) -> Vec<Violation> {
    set.confirm(terms, &price()).err().unwrap_or_default()
}

fn rules(violations: &[Violation]) -> Vec<(&str, &str)> {
    violations
        .iter()
        .map(|violation| (violation.term.as_str(), violation.rule.as_str()))
        .collect()
}

fn broken(set: &TermSet, terms: &Value) -> Vec<(&'static str, &'static str)> {
    let names = TermName::ALL.map(TermName::as_str);
    violations(set, terms)
        .into_iter()
        .map(|violation| {
            let name = names.into_iter().find(|name| **name == violation.term);
            (name.unwrap_or("*"), violation.rule.as_str())
        })
        .collect()
}

fn committed(confirmed: &Confirmed, salt: [u8; 16]) -> String {
    PrivateTerms::new(confirmed.floor.clone(), salt).commitment(&confirmed.public)
}

/// Binding 4.2, computed apart from the crate.
fn commitment(terms: &Value, salt: &[u8; 16]) -> String {
    let salt = BASE64_URL_SAFE_NO_PAD.encode(salt);
    let canonical =
        serde_json_canonicalizer::to_vec(&json!({"terms": terms, "salt": salt})).unwrap();
    let hash = Sha256::digest(&canonical);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha-256:{hex}")
}

/// Anything, often close to what confirms.
fn submissions() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let name = prop_oneof![
        prop::sample::select(TermName::ALL.map(|name| name.as_str().to_owned()).to_vec()),
        prop::sample::select(vec![
            "amount".to_owned(),
            "currency".to_owned(),
            "jurisdictions".to_owned(),
            "option_ids".to_owned()
        ]),
        ".{0,4}",
    ];
    let any_value = leaf.prop_recursive(3, 24, 4, {
        let name = name.clone();
        move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(name.clone(), inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        }
    });
    let choice = "[A-Za-z0-9][a-z_.]{0,6}";
    let time = "20[0-9]{2}-(0[1-9]|1[0-2])-[0-2][0-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]0[0-9]:30)";
    let fitting = (
        1..70_000_u64,
        prop::option::of(time),
        prop::option::of(time),
        prop::collection::vec((choice, prop::collection::btree_set(choice, 1..3)), 0..3),
        prop::collection::btree_set(choice, 0..3),
        prop::sample::select(vec!["accepted", "delivered", "shipped"]),
        0..70_u32,
        0..40_u32,
        prop::option::of(prop::collection::btree_set("[A-Z]{2}", 0..3)),
    )
        .prop_map(|(amount, from, until, options, payment, release, deliver, inspect, buyers)| {
            let options: Vec<Value> = options
                .into_iter()
                .map(|(method, ids)| json!({"method_type": method, "option_ids": ids}))
                .collect();
            let mut terms = json!({
                "floor": floor(amount), "available_from": from, "available_until": until,
                "fulfillment_options": options, "payment_terms": payment, "release_condition": release,
                "deliver_within_days": deliver, "inspection_days": inspect, "return_policy": "none",
            });
            if let Some(jurisdictions) = buyers {
                terms["buyer_requirements"] = json!({"jurisdictions": jurisdictions});
            }
            terms
        });
    let close = (
        fitting.clone(),
        prop::collection::btree_map(name, any_value.clone(), 1..3),
    )
        .prop_map(|(mut terms, edits)| {
            let members: &mut Map<String, Value> = terms.as_object_mut().unwrap();
            members.extend(edits);
            terms
        });
    prop_oneof![1 => any_value, 4 => fitting, 2 => close]
}
