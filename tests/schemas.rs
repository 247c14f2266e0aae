//! The published schemas and registries, and the strict reader of bodies (binding 6, 10a, 11).

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, fs, path::Path, sync::LazyLock};

use jsonschema::{Registry, Resource, Validator};
use proptest::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tower_rctp::{
    protocol::{
        approval::{Approval, ApprovalStatus, Asker, Outcome},
        caller::{Agent, Caller, Mechanism, Role},
        deal::{Checkout, Deal},
        decision::{Decision, NewListing, NewOffer, OnTimeout},
        event::{DealEvent, EventName, Observation, Progress, RejectReason, Rules, Writer, record},
        grant::Introspection,
        listing::{ConfirmedTerms, Listing, ListingState},
        money::{MAX_AMOUNT, Money},
        offer::{Acceptance, By, DealTerms, Fulfillment, Offer, OfferState, Payment},
        operation::{Op, TABLE, TierRule, Verb},
        policy::{Policy, Tiers},
        profile,
        record::{self as chain, Entry, Event, FIRST_PREV_HASH, Seal, Subject, SubjectKind},
        refusal::{ProtocolError, Reason, Refusal},
        schema::{FILES, REGISTRIES, parse, published, validate},
        term_set::{Rule, TermName, TermSet, TermSets, Violation},
        terms::{BuyerRequirements, FulfillmentOption, PublicTerms},
        time::Timestamp,
    },
    wire::jwk::SigningKey,
};

const VERBS: [Verb; 10] = [
    Verb::ListingCreate,
    Verb::ListingSetTerms,
    Verb::ListingReprice,
    Verb::ListingAnswerBuyer,
    Verb::OfferCreate,
    Verb::OfferCounter,
    Verb::OfferAccept,
    Verb::DealCommitToShip,
    Verb::DealSignContract,
    Verb::AccountUpdate,
];
const NOW: Timestamp = Timestamp::from_secs(1_793_530_800);
/// What the seller's browser sends to the pages, beside what the table names.
const PAGE_BODIES: [&str; 4] = [
    "enrolment-completion",
    "enrolment-options",
    "signin-completion",
    "terms-submission",
];
/// What goes to the passkey and comes from it are WebAuthn's own objects, which browsers extend: the only open ones.
const OPEN: [(&str, &str); 6] = [
    ("approval-response", "/properties/credential"),
    ("enrolment-completion", "/properties/credential"),
    ("passkey-ceremony", "/properties/publicKey"),
    ("passkey-options", "/properties/publicKey"),
    ("signin-completion", "/properties/credential"),
    ("terms-accepted", "/properties/publicKey"),
];

// ---------------------------------------------------------------------------------------------------------------
// The files

#[test]
fn every_file_is_a_valid_schema_under_its_own_name() {
    for (name, schema) in &*SCHEMAS {
        jsonschema::meta::validate(schema).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            schema["$schema"], "https://json-schema.org/draft/2020-12/schema",
            "{name}"
        );
        assert_eq!(
            schema["$id"],
            format!("https://rctp.dev/schemas/{name}.json")
        );
        for member in ["title", "description"] {
            let text = schema[member].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {member}");
        }
    }
}

#[test]
fn every_reference_resolves() {
    for (name, _) in &*SCHEMAS {
        validator(name);
    }
}

#[test]
fn every_body_of_the_table_is_compiled_in_and_nothing_else_but_what_they_need() {
    let bodies = TABLE.iter().filter_map(|row| row.body);
    let wanted: BTreeSet<&str> = bodies
        .chain(PAGE_BODIES)
        .chain([
            "common",
            "deal-event",
            "listing-terms",
            "term-set",
            "ucp-profile",
        ])
        .collect();
    let compiled: BTreeSet<&str> = FILES.iter().map(|(name, _)| *name).collect();
    assert_eq!(compiled, wanted);
}

#[test]
fn every_file_is_published() {
    let published: Vec<(String, Value)> = published()
        .into_iter()
        .map(|(name, text)| (name.to_owned(), serde_json::from_str(text).unwrap()))
        .collect();
    assert_eq!(published, *SCHEMAS);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/registries");
    let files = fs::read_dir(folder).unwrap().count();
    assert_eq!(REGISTRIES.len(), files);
}

#[test]
fn every_object_of_every_schema_is_closed() {
    let mut open = Vec::new();
    for (name, schema) in &*SCHEMAS {
        // UCP is open, so what reads it is.
        if name != "ucp-profile" {
            each_object_schema(
                schema,
                &mut |object, at| match object.get("additionalProperties") {
                    Some(Value::Bool(true)) => open.push((name.clone(), at.to_owned())),
                    Some(_) => {}
                    None => panic!("{name}: {at} is open, and does not say so"),
                },
            );
        }
    }
    open.sort();
    assert_eq!(open, OPEN.map(|(name, at)| (name.into(), at.into())));
}

/// Binding 11: closed, as above, and no member that a person could be known by. Free text is the goods', the
/// conversation's about them, and what is for people to read; an operator is a legal entity.
#[test]
fn inv_9_no_object_has_a_member_for_personal_data() {
    const PERSONAL: [&str; 22] = [
        "name",
        "address",
        "street",
        "city",
        "postal",
        "postcode",
        "zip",
        "phone",
        "mobile",
        "email",
        "mail",
        "birth",
        "age",
        "gender",
        "national",
        "passport",
        "tax",
        "iban",
        "account_number",
        "card",
        "username",
        "buyer_id",
    ];
    const FREE_TEXT: [&str; 9] = [
        "answer",
        "description",
        "legal_entity",
        "message",
        "question",
        "text",
        "title",
        "incident_contact",
        "category",
    ];
    let mut prose = BTreeSet::new();
    for (name, schema) in SCHEMAS.iter().filter(|(name, _)| *name != "ucp-profile") {
        each_object_schema(schema, &mut |object, at| {
            let members = object.get("properties").and_then(Value::as_object);
            for (member, value) in members.into_iter().flatten() {
                let words: Vec<&str> = member.split(['_', '-', '.']).collect();
                let personal = PERSONAL.iter().any(|p| words.contains(p) || member == p);
                // A term and a term set have names of their own; where an event happened is said as closely as
                // the city (binding 8.2), whose pattern has no place for a house or a phone number.
                let allowed = matches!(
                    (name.as_str(), at, member.as_str()),
                    ("term-set", _, "name") | ("deal-event", "", "city")
                );
                assert!(!personal || allowed, "{name}: {at}/{member}");
                let kind = value["$ref"].as_str().unwrap_or_default();
                if kind.ends_with("/prose") || kind.ends_with("/line") {
                    prose.insert(member.clone());
                }
            }
        });
    }
    let unknown: Vec<&String> = prose
        .iter()
        .filter(|m| !FREE_TEXT.contains(&m.as_str()))
        .collect();
    assert!(
        unknown.is_empty(),
        "free text that is not known here: {unknown:?}"
    );
    assert!(
        prose.contains("text") && prose.contains("title"),
        "{prose:?}"
    );
}

/// Calls `visit` with every subschema that describes an object.
fn each_object_schema(schema: &Value, visit: &mut dyn FnMut(&Map<String, Value>, &str)) {
    fn walk(schema: &Value, at: &str, visit: &mut dyn FnMut(&Map<String, Value>, &str)) {
        match schema {
            Value::Object(members) => {
                if members.get("type").is_some_and(|t| t == "object") {
                    visit(members, at);
                }
                for (name, value) in members {
                    walk(value, &format!("{at}/{name}"), visit);
                }
            }
            Value::Array(items) => {
                for (i, value) in items.iter().enumerate() {
                    walk(value, &format!("{at}/{i}"), visit);
                }
            }
            _ => {}
        }
    }
    walk(schema, "", visit);
}

// ---------------------------------------------------------------------------------------------------------------
// Request bodies

#[test]
fn a_body_with_every_member_and_one_with_only_the_required_ones_pass() {
    for (name, full) in requests() {
        validate(name, &full).unwrap_or_else(|e| panic!("{name}: {e}"));
        let schema = schema(name);
        let properties: BTreeSet<&String> = schema["properties"]
            .as_object()
            .map(|p| p.keys().collect())
            .unwrap_or_default();
        assert_eq!(
            full.as_object().unwrap().keys().collect::<BTreeSet<_>>(),
            properties,
            "{name}"
        );

        let required: Vec<&str> = [&schema["required"], &schema["then"]["required"]]
            .into_iter()
            .flat_map(|members| members.as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect();
        let mut least = full.clone();
        least
            .as_object_mut()
            .unwrap()
            .retain(|member, _| required.contains(&member.as_str()));
        validate(name, &least).unwrap_or_else(|e| panic!("{name}: {e}"));
        for member in required {
            let mut without = full.clone();
            without.as_object_mut().unwrap().remove(member);
            let violation = validate(name, &without).unwrap_err();
            assert!(violation.rule.contains(member), "{name}: {violation}");
        }
    }
}

#[test]
fn one_more_member_at_any_level_is_refused() {
    for (name, full) in requests() {
        for at in objects(&full).into_iter().filter(|at| at != "/credential") {
            for member in ["floor", "tier", "x", "__proto__", "Price", ""] {
                let mut body = full.clone();
                let object = body.pointer_mut(&at).unwrap().as_object_mut().unwrap();
                if object.contains_key(member) {
                    // `proposed_terms` may carry a floor, and what the seller fills in; nothing else may (INV-5).
                    let terms =
                        at == "/proposed_terms" || (name, &*at) == ("terms-submission", "/terms");
                    assert!(terms && member == "floor", "{name} {at} {member}");
                    continue;
                }
                object.insert(member.into(), json!("auto"));
                let violation = validate(name, &body).expect_err(&format!("{name} {at} {member}"));
                assert_eq!(violation.path, at, "{name}: {violation}");
            }
        }
    }
}

#[test]
fn a_value_of_another_type_is_refused_at_every_position() {
    for (name, full) in requests() {
        let closed = |at: &String| !at.starts_with("/credential/");
        for at in positions(&full).into_iter().filter(closed) {
            for wrong in [
                json!(null),
                json!(true),
                json!(1.5),
                json!([[]]),
                json!({"x": 1}),
            ] {
                if at == "/credential" && wrong.is_object() {
                    continue;
                }
                let mut body = full.clone();
                *body.pointer_mut(&at).unwrap() = wrong;
                assert!(validate(name, &body).is_err(), "{name} {at}");
            }
        }
    }
}

#[test]
fn an_approval_carries_a_credential_and_a_decline_carries_nothing() {
    let credential = json!({"id": "AA", "type": "public-key", "a member of the future": [1]});
    for (body, good) in [
        (
            json!({"decision": "approve", "credential": credential}),
            true,
        ),
        (json!({"decision": "decline"}), true),
        (json!({"decision": "approve"}), false),
        (
            json!({"decision": "decline", "credential": credential}),
            false,
        ),
        (
            json!({"decision": "decline", "terms_commitment": hash()}),
            false,
        ),
        (
            json!({"decision": "Approve", "credential": credential}),
            false,
        ),
        (json!({"credential": credential}), false),
    ] {
        assert_eq!(validate("approval-response", &body).is_ok(), good, "{body}");
    }
}

#[test]
fn amounts_are_integers_from_1_to_2_pow_53_minus_1() {
    let price = |amount: Value| {
        validate(
            "listing-reprice-request",
            &json!({"price": {"amount": amount, "currency": "EUR"}}),
        )
    };
    assert_eq!(price(json!(1)), Ok(()));
    assert_eq!(price(json!(MAX_AMOUNT)), Ok(()));
    for wrong in [
        json!(0),
        json!(-1),
        json!(MAX_AMOUNT + 1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.5),
        json!(1e300),
        json!("100"),
    ] {
        assert!(price(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn currencies_ids_times_and_tokens_have_one_spelling() {
    let offer = &sample("offer-create-request");
    for (at, wrong) in [
        ("/deal_terms/price/currency", "eur"),
        ("/deal_terms/price/currency", "EUR "),
        ("/deal_terms/price/currency", "EURO"),
        ("/deal_terms/price/currency", "ΕUR"),
        ("/listing_id", "lst_"),
        ("/listing_id", "lst_1\n"),
        ("/listing_id", "LST_1"),
        ("/listing_id", "lst_../../x"),
        ("/listing_id", "lst_é"),
        ("/supersedes", "1"),
        ("/expires_at", "2026-11-01"),
        ("/expires_at", "2026-11-01T10:00:00"),
        ("/expires_at", "2026-11-01 10:00:00Z"),
        ("/expires_at", "2026-02-30T10:00:00Z"),
        ("/expires_at", "2026-11-01T24:00:00Z"),
        ("/expires_at", "2026-11-01T10:00:00.0000000001Z"),
        ("/expires_at", "9999-12-31T23:59:59-12:00"),
        ("/expires_at", "2026-11-01T10:00:00Z[Europe/Berlin]"),
        ("/deal_terms/fulfillment/method_type", "a b"),
        ("/deal_terms/payment/selected_term_id", "-x"),
    ] {
        let mut body = offer.clone();
        *body.pointer_mut(at).unwrap() = json!(wrong);
        let violation = validate("offer-create-request", &body).expect_err(wrong);
        assert_eq!(violation.path, at);
    }
}

#[test]
fn text_has_no_control_characters_and_a_limit_in_characters() {
    let question = |text: &str| validate("question-request", &json!({ "text": text }));
    assert_eq!(question("Ist das Rad noch da?\n\t– 😀"), Ok(()));
    assert_eq!(question(&"😀".repeat(2000)), Ok(()));
    for wrong in ["", "a\u{0}b", "a\u{1b}[31m", "a\u{7f}", "a\u{85}"] {
        assert!(question(wrong).is_err(), "{wrong:?}");
    }
    assert!(question(&"x".repeat(2001)).is_err());

    let mut listing = sample("listing-create-request");
    for wrong in ["two\nlines", "a\u{2028}b", ""] {
        listing["title"] = json!(wrong);
        assert!(
            validate("listing-create-request", &listing).is_err(),
            "{wrong:?}"
        );
    }
}

#[test]
fn a_violation_names_path_and_rule_and_never_repeats_the_body() {
    const CANARY: &str = "Canary4711";
    const NUMBER: u64 = 47_114_711_471_147_114;
    let long = CANARY.repeat(2000);
    let bad = [
        json!(CANARY),
        json!(format!("{CANARY}\u{0}")),
        json!(long),
        json!(NUMBER),
        json!(0.471_147_11),
        json!([CANARY, CANARY]),
        json!({ CANARY: CANARY }),
    ];
    let clean = |name: &str, body: &Value| {
        if let Err(violation) = validate(name, body) {
            let text = format!("{violation}");
            assert!(
                !text.contains("Canary") && !text.contains("4711"),
                "{name}: {text}"
            );
            assert!(text.len() < 400, "{name}: {text}");
        }
    };
    for (name, full) in requests()
        .into_iter()
        .chain([("ucp-profile", operator_profile())])
    {
        for at in positions(&full) {
            for value in &bad {
                let mut body = full.clone();
                *body.pointer_mut(&at).unwrap() = value.clone();
                clean(name, &body);
            }
        }
        for at in objects(&full) {
            for value in &bad {
                let mut body = full.clone();
                let object = body.pointer_mut(&at).unwrap().as_object_mut().unwrap();
                object.insert(CANARY.into(), value.clone());
                object.insert(format!("dev.{CANARY}").to_lowercase(), value.clone());
                clean(name, &body);
            }
        }
    }
}

#[test]
fn a_violation_inside_a_named_object_shows_only_names_of_the_schema() {
    let mut profile = operator_profile();
    profile["ucp"]["services"] = json!({"dev.someone": [{"transport": "rest"}]});
    let violation = validate("ucp-profile", &profile).unwrap_err();
    assert_eq!(violation.path, "/ucp/services/*/0");
}

// ---------------------------------------------------------------------------------------------------------------
// What passes a schema is what the types read

fn timestamps() -> impl Strategy<Value = String> {
    let loose = "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-4]):[0-5][0-9]:([0-5][0-9]|60)(\\.[0-9]{1,10})?(Z|z|[+-]([01][0-9]|2[0-5]):[0-5][0-9])";
    proptest::string::string_regex(loose).unwrap()
}

proptest! {
    #[test]
    fn a_time_that_passes_the_schema_can_be_read(text in timestamps()) {
        let mut body = sample("offer-counter-request");
        body["expires_at"] = json!(text);
        if validate("offer-counter-request", &body).is_ok() {
            prop_assert!(NewOffer::deserialize(&body).is_ok(), "{}", text);
        }
    }

    #[test]
    fn an_amount_that_passes_the_schema_can_be_read(text in "-?[0-9]{1,20}(\\.[0-9]{1,3})?(e[+-]?[0-9]{1,3})?") {
        let body = format!(r#"{{"price":{{"amount":{text},"currency":"EUR"}}}}"#);
        if let Ok(body) = parse(body.as_bytes())
            && validate("listing-reprice-request", &body).is_ok()
        {
            let price = Money::deserialize(&body["price"]);
            prop_assert!(price.is_ok(), "{}", text);
        }
    }
}

#[test]
fn whole_bodies_that_pass_can_be_read() {
    fn reads<T: DeserializeOwned>(body: &Value) {
        if let Err(e) = serde_json::from_value::<T>(body.clone()) {
            panic!("{e}: {body}");
        }
    }
    reads::<NewListing>(&sample("listing-create-request"));
    reads::<NewOffer>(&sample("offer-create-request"));
    reads::<NewOffer>(&sample("offer-counter-request"));
    let mut terms = sample("listing-set-terms-request")["proposed_terms"].clone();
    let floor = terms.as_object_mut().unwrap().remove("floor").unwrap();
    reads::<Money>(&floor);
    reads::<PublicTerms>(&terms);
}

#[test]
fn one_and_one_point_zero_are_the_same_number() {
    let body = |amount: &str| {
        parse(format!(r#"{{"price":{{"amount":{amount},"currency":"EUR"}}}}"#).as_bytes()).unwrap()
    };
    for same in ["1500.0", "1.5e3", "15e2", "150000e-2"] {
        assert_eq!(body(same), body("1500"), "{same}");
    }
    assert_eq!(parse(b"-0.0").unwrap(), json!(0));
    assert_eq!(parse(b"0.5").unwrap(), json!(0.5));
}

// ---------------------------------------------------------------------------------------------------------------
// The strict reader

#[test]
fn bytes_that_are_not_exactly_one_json_value_are_refused_without_repeating_them() {
    let deep = |n: usize| [b"[".repeat(n), b"]".repeat(n)].concat();
    let deep_objects = [br#"{"a":"#.repeat(200), b"1".to_vec(), b"}".repeat(200)].concat();
    assert!(parse(&deep(100)).is_ok());
    let attacks: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("blank", b"  \n".to_vec()),
        ("trailing value", br#"{} {"canary":1}"#.to_vec()),
        ("trailing byte", b"{}\0".to_vec()),
        ("trailing comma", br#"{"canary":1,}"#.to_vec()),
        ("cut short", br#"{"canary":"#.to_vec()),
        ("comment", br#"{/*canary*/}"#.to_vec()),
        ("single quotes", br#"{'canary':1}"#.to_vec()),
        ("nesting", deep(129)),
        ("much nesting", deep(100_000)),
        ("nested objects", deep_objects),
        ("cut nesting", b"[".repeat(1_000_000)),
        ("huge number", b"1e400".to_vec()),
        ("huge negative number", b"-1e400".to_vec()),
        ("huge exponent", b"1e99999999999999999999".to_vec()),
        ("many digits", b"9".repeat(400)),
        ("leading zero", b"01".to_vec()),
        ("plus", b"+1".to_vec()),
        ("hex", b"0x10".to_vec()),
        ("NaN", b"NaN".to_vec()),
        ("Infinity", b"-Infinity".to_vec()),
        ("high surrogate alone", br#""canary\ud800""#.to_vec()),
        ("low surrogate alone", br#""canary\udc00""#.to_vec()),
        (
            "surrogates in the wrong order",
            br#""\udc00\ud800""#.to_vec(),
        ),
        ("surrogate as a name", br#"{"\ud800":1}"#.to_vec()),
        ("raw NUL in a string", b"\"canary\0\"".to_vec()),
        ("raw NUL", b"\0".to_vec()),
        ("raw newline in a string", b"\"canary\n\"".to_vec()),
        ("BOM", b"\xEF\xBB\xBF{}".to_vec()),
        ("UTF-16", b"\xFF\xFE{\0}\0".to_vec()),
        ("invalid UTF-8", b"\"canary\xFF\"".to_vec()),
        ("overlong UTF-8", b"\"\xC0\xAF\"".to_vec()),
        ("surrogate in UTF-8", b"\"\xED\xA0\x80\"".to_vec()),
        ("invalid UTF-8 as a name", b"{\"\xFF\":1}".to_vec()),
        ("duplicate", br#"{"canary":1,"canary":2}"#.to_vec()),
        (
            "duplicate by escape",
            br#"{"canary":1,"c\u0061nary":2}"#.to_vec(),
        ),
        (
            "duplicate below",
            br#"[{"a":{"canary":1,"canary":1}}]"#.to_vec(),
        ),
        (
            "duplicate of null",
            br#"{"canary":null,"canary":"x"}"#.to_vec(),
        ),
    ];
    for (attack, bytes) in attacks {
        let error = parse(&bytes).expect_err(attack).to_string();
        assert!(!error.contains("canary"), "{attack}: {error}");
        assert!(error.len() < 150, "{attack}: {error}");
        assert_eq!(
            error.contains("twice"),
            attack.starts_with("duplicate"),
            "{attack}: {error}"
        );
    }
}

#[test]
fn well_formed_json_is_read_as_it_is() {
    let text = r#"{"a":[1,-2,18446744073709551615,1.25,true,false,null],"b":{"a":"\u00e9\ud83d\ude00\\","A":""}}"#;
    assert_eq!(
        parse(text.as_bytes()).unwrap(),
        serde_json::from_str::<Value>(text).unwrap()
    );
}

proptest! {
    #[test]
    fn the_reader_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn the_reader_agrees_with_serde_json_where_no_member_occurs_twice(value in json_values()) {
        let text = serde_json::to_vec(&value).unwrap();
        prop_assert_eq!(parse(&text).unwrap(), value);
    }

    #[test]
    fn no_body_makes_a_schema_panic(value in json_values()) {
        for (name, _) in FILES {
            let _ = validate(name, &value);
        }
    }
}

fn json_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("deal_terms".to_owned()),
        Just("price".to_owned()),
        Just("proposed_terms".to_owned()),
        Just("ucp".to_owned()),
        ".{0,4}",
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(name.clone(), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

// ---------------------------------------------------------------------------------------------------------------
// Operators' profiles

#[test]
fn services_and_payment_handlers_are_present_even_when_empty() {
    let profile = |ucp: Value| validate("ucp-profile", &json!({ "ucp": ucp }));
    let empty = json!({"version": "2026-08-25", "services": {}, "payment_handlers": {}});
    assert_eq!(profile(empty.clone()), Ok(()));
    for member in ["version", "services", "payment_handlers"] {
        let mut without = empty.clone();
        without.as_object_mut().unwrap().remove(member);
        assert!(profile(without).is_err(), "{member}");
    }
    assert!(validate("ucp-profile", &json!({})).is_err());
}

#[test]
fn a_service_entry_needs_version_transport_and_endpoint() {
    let full = operator_profile();
    let service = "/ucp/services/dev.ucp.shopping/0";
    for member in ["version", "transport", "endpoint"] {
        let mut profile = full.clone();
        let entry = profile.pointer_mut(service).unwrap();
        entry.as_object_mut().unwrap().remove(member);
        assert!(validate("ucp-profile", &profile).is_err(), "{member}");
    }
    for (member, wrong) in [
        ("transport", "carrier-pigeon"),
        ("endpoint", "/relative"),
        ("endpoint", "javascript:alert(1)"),
    ] {
        let mut profile = full.clone();
        profile.pointer_mut(service).unwrap()[member] = json!(wrong);
        assert!(validate("ucp-profile", &profile).is_err(), "{wrong}");
    }
}

#[test]
fn a_profile_is_open_where_ucp_is() {
    let mut profile = operator_profile();
    profile["x"] = json!(1);
    profile["ucp"]["x"] = json!([1.5]);
    profile["ucp"]["capabilities"]["com.example.thing"] = json!([{"version": "1", "spec": "x"}]);
    profile["keys"] = json!([{"kty": "unheard-of"}]);
    assert_eq!(validate("ucp-profile", &profile), Ok(()));
}

// ---------------------------------------------------------------------------------------------------------------
// What the types write

#[test]
fn listings_offers_deals_and_approvals_are_shown_as_their_schemas_say() {
    for listing in listings() {
        fits("listing", &listing.view(NOW));
    }
    for offer in offers() {
        fits("offer", &json!(offer.view(NOW)));
    }
    for commitment in [None, Some(hash())] {
        let deal = Deal {
            terms_commitment: commitment,
            ..deal()
        };
        fits("deal", &deal.view());
        let mut moved = deal;
        for event in [EventName::FundsHeld, EventName::Delivered] {
            let writer = Writer {
                roles: &[Role::FundsHolder, Role::Carrier],
                ..Writer::default()
            };
            let event = deal_event(event);
            moved.progress = record(&moved.progress, &moved.rules, &event, writer, NOW).unwrap();
            fits("deal", &moved.view());
        }
    }
    for approval in approvals() {
        fits("approval", &approval.view(NOW));
        fits(
            "approval-request",
            &approval.request("https://market.example/approve/apr_1"),
        );
    }
    fits("checkout", &json!(checkout()));
}

#[test]
fn every_refusal_has_the_body_of_the_error_schema() {
    let body = |refusal: Refusal| -> Value {
        serde_json::from_slice(refusal.to_response().body()).unwrap()
    };
    for reason in Reason::ALL {
        let refusal = Refusal::forbid(reason, "why").retry_after(60);
        fits("error", &body(refusal.clone()));
        fits("error", &body(refusal.offer("off_1").listing("lst_1")));
    }
    for error in ProtocolError::ALL {
        fits("error", &body(Refusal::protocol(error, "why")));
    }
    let violation = |(term, rule): (&str, Rule)| Violation {
        term: term.into(),
        rule,
        message: "why".into(),
    };
    let terms = TermName::ALL.iter().map(|name| name.as_str()).chain(["*"]);
    let all = terms.flat_map(|term| Rule::ALL.map(|rule| violation((term, rule))));
    let refused = Refusal::forbid(Reason::TermsInvalid, "why").fields(all.collect());
    fits("error", &body(refused.clone()));
    fits("error", &body(refused.fields(Vec::new())));
    let elsewhere = Refusal::not_found().fields(vec![violation(("floor", Rule::Max))]);
    assert!(!validator("error").is_valid(&body(elsewhere)));
    fits("error", &body(Refusal::not_found()));
    fits("error", &body(Refusal::unavailable("why")));
}

#[test]
fn every_decision_fits_its_schema() {
    for decision in decisions() {
        fits("decision", &json!(decision));
    }
}

#[test]
fn every_entry_of_the_record_fits_its_schema() {
    let key = SigningKey::generate().unwrap();
    let signed = Caller::signed("https://agent.example/.well-known/ucp", key.kid().clone());
    let client = |mechanism| Caller::client(mechanism, "https://agent.example/ucp", "client-1");
    let callers = [
        signed,
        client(Mechanism::Oauth),
        client(Mechanism::ApiKey),
        client(Mechanism::Mtls),
    ];
    let subjects = [
        Subject::new(SubjectKind::Gateway, "https://market.example/"),
        Subject::new(SubjectKind::Listing, "lst_1"),
        Subject::new(SubjectKind::Negotiation, "neg_1"),
        Subject::new(SubjectKind::Deal, "deal_1"),
    ];
    for caller in &callers {
        for subject in &subjects {
            for decision in decisions() {
                for row in &TABLE {
                    let entry = Entry::new(subject.clone(), NOW, row.op, decision.clone(), caller);
                    let full = Entry {
                        approval_id: Some("apr_1".into()),
                        listing_id: Some("lst_1".into()),
                        offer_id: Some("off_1".into()),
                        terms_commitment: Some(hash()),
                        ..entry.clone()
                    };
                    // Signing is the slow part; one of each is enough.
                    if row.op == Op::AcceptOffer {
                        for entry in [&entry, &full] {
                            let sealed = entry_of(&key, entry);
                            fits("attestation-entry", &sealed);
                        }
                    }
                    let mut published = json!(full);
                    published["seq"] = json!(3);
                    published["prev_hash"] = json!(hash());
                    published["jws"] = json!("e30..AA");
                    fits("attestation-entry", &published);
                }
            }
        }
    }
}

#[test]
fn an_event_on_a_deal_stands_only_in_the_entry_that_recorded_it() {
    let key = SigningKey::generate().unwrap();
    let caller = Caller::signed("https://agent.example/ucp", key.kid().clone());
    let subject = Subject::new(SubjectKind::Deal, "deal_1");
    let mut entry = Entry::new(subject, NOW, Op::PostDealEvent, Decision::Auto, &caller);
    for event in EventName::NAMED.into_iter().chain([EventName::Extension(
        "example.carrier:picked_up_sealed".into(),
    )]) {
        fits("deal-event", &json!(deal_event(event.clone())));
        entry.deal_event = Some(chain::DealEvent {
            event,
            event_id: "evt_1".into(),
            jws: "e30.e30.AA".into(),
        });
        fits("attestation-entry", &entry_of(&key, &entry));
    }
    let entry = entry_of(&key, &entry);
    for (member, value) in [
        ("operation", json!("create_deal")),
        (
            "decision",
            json!({"decision": "forbid", "reason": "release_condition_unmet"}),
        ),
    ] {
        let mut other = entry.clone();
        other[member] = value;
        assert!(!validator("attestation-entry").is_valid(&other), "{member}");
    }
}

#[test]
fn an_event_of_the_marketplace_is_an_entry_without_a_call() {
    let key = SigningKey::generate().unwrap();
    let subject = Subject::new(SubjectKind::Listing, "lst_1");
    let entry = entry_of(&key, &Entry::event(subject, NOW, Event::ListingWithdrawn));
    fits("attestation-entry", &entry);
    for (member, value) in [
        ("decision", json!({"decision": "auto"})),
        ("operation", json!("accept_offer")),
        ("agent_profile", json!("https://agent.example/ucp")),
    ] {
        let mut both = entry.clone();
        both[member] = value;
        assert!(!validator("attestation-entry").is_valid(&both), "{member}");
    }
}

fn entry_of(key: &SigningKey, entry: &Entry) -> Value {
    let sealed = key.seal(entry, 0, FIRST_PREV_HASH).unwrap();
    serde_json::from_slice(&sealed.published).unwrap()
}

#[test]
fn an_entry_says_how_the_call_was_authenticated() {
    let key = SigningKey::generate().unwrap();
    let caller = Caller::signed("https://agent.example/ucp", key.kid().clone());
    let subject = Subject::new(SubjectKind::Negotiation, "neg_1");
    let entry = entry_of(
        &key,
        &Entry::new(subject, NOW, Op::AcceptOffer, Decision::Auto, &caller),
    );
    for member in [
        "authenticated_by",
        "agent_profile",
        "keyid",
        "decision",
        "jws",
        "prev_hash",
    ] {
        let mut without = entry.clone();
        without.as_object_mut().unwrap().remove(member);
        assert!(
            !validator("attestation-entry").is_valid(&without),
            "{member}"
        );
    }
    for (member, private) in [("floor", json!({"amount": 1})), ("name", json!("x"))] {
        let mut with = entry.clone();
        with[member] = private;
        assert!(!validator("attestation-entry").is_valid(&with), "{member}");
    }
}

#[test]
fn introspection_answers_fit_their_schema_and_carry_no_user_name() {
    for answer in [
        json!({"active": false}),
        json!({"active": false, "grant_status": "revoked", "sub": "pw_1", "client_id": "c"}),
        json!({
            "active": true, "scope": "dev.rctp.deal:offer_accept", "sub": "pw_1", "client_id": "c", "exp": 1_793_530_800,
            "cnf": {"jkt": "A".repeat(43)}, "grant_status": "active",
            "authorization_details": [{
                "type": "dev.rctp.agent_grant", "agent_id": "agent_1", "jkt": "A".repeat(43),
                "tiers": {"dev.rctp.deal:offer_accept": "ask"},
            }],
        }),
    ] {
        let read = Introspection::deserialize(&answer).unwrap();
        assert_eq!(json!(read), answer);
        fits("grant-introspection", &answer);
        let mut named = answer;
        named["username"] = json!("someone");
        assert!(!validator("grant-introspection").is_valid(&named));
    }
}

#[test]
fn the_gateway_profile_fits_its_schema_and_that_of_every_profile() {
    let key = SigningKey::generate().unwrap();
    for tiers in [
        Tiers::default(),
        Tiers::none(),
        Tiers::default().withhold(Verb::OfferCounter),
    ] {
        let policy = Policy {
            tiers,
            ..Policy::default()
        };
        let profile = profile::gateway(
            &[
                ("rest", "https://market.example/".to_owned()),
                ("mcp", "https://market.example/mcp".to_owned()),
            ],
            &policy,
            &policy.term_sets.names(),
            &[key.public_jwk()],
        );
        fits("gateway-profile", &profile);
        assert_eq!(validate("ucp-profile", &profile), Ok(()));
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The registries

#[test]
fn the_actions_registry_is_the_table() {
    let tiers = Tiers::default();
    let actions = registry("actions", "actions");
    let verbs: Vec<&str> = VERBS.iter().map(|v| v.as_str()).collect();
    assert_eq!(column(&actions, "verb"), verbs);
    for (verb, action) in VERBS.into_iter().zip(&actions) {
        let rows: Vec<_> = TABLE.iter().filter(|row| row.verb == Some(verb)).collect();
        assert_eq!(rows.len(), 1, "{verb}");
        assert_eq!(action["operation"], rows[0].name);
        assert_eq!(action["fixed_forbid"], rows[0].tier == TierRule::Forbid);
        assert_eq!(action.get("scope").and_then(Value::as_str), verb.scope());

        let policy = verb.scope().and_then(|scope| tiers.get(scope));
        assert_eq!(
            action.get("default_tier"),
            policy.map(|p| json!(p.default_tier)).as_ref()
        );
        assert_eq!(
            action.get("allowed_tiers"),
            policy.map(|p| json!(p.allowed_tiers)).as_ref()
        );
        if let Some(scope) = verb.scope() {
            let capability = action["capability"].as_str().unwrap();
            assert_eq!(
                scope,
                format!("{capability}:{}", verb.as_str().replace('.', "_"))
            );
        }
    }
    assert_eq!(column(&actions, "verb"), enumerated("verb"));
    let scopes: Vec<&str> = VERBS.into_iter().filter_map(Verb::scope).collect();
    assert_eq!(enumerated("scope"), scopes);
}

#[test]
fn the_reasons_registry_is_every_reason_with_its_status() {
    let reasons = registry("reasons", "reasons");
    let listed: Vec<(&str, u64)> = reasons
        .iter()
        .map(|r| (r["reason"].as_str().unwrap(), r["status"].as_u64().unwrap()))
        .collect();
    let all = Reason::ALL.map(|r| (r.as_str(), u64::from(r.status().as_u16())));
    assert_eq!(listed, all);
    assert_eq!(column(&reasons, "reason"), enumerated("reason"));
}

#[test]
fn the_errors_registry_is_every_protocol_error_with_its_statuses() {
    let errors = registry("errors", "errors");
    let listed: BTreeSet<(String, u64)> = errors
        .iter()
        .flat_map(|e| {
            let error = e["error"].as_str().unwrap().to_owned();
            let statuses = e["statuses"].as_array().unwrap().iter();
            statuses.map(move |s| (error.clone(), s.as_u64().unwrap()))
        })
        .collect();
    let all = ProtocolError::ALL.map(|error| {
        let status = Refusal::protocol(error, "why").status();
        (error.as_str().to_owned(), u64::from(status.as_u16()))
    });
    assert_eq!(listed, BTreeSet::from(all));

    let codes: Vec<String> = strings(&schema("error")["properties"]["error"]["enum"]);
    let reasons = Reason::ALL.map(|r| r.as_str().to_owned());
    assert_eq!(codes, [reasons.to_vec(), column(&errors, "error")].concat());
}

#[test]
fn the_terms_registry_is_the_ten_names() {
    let terms = registry("terms", "terms");
    assert_eq!(terms.len(), 10);
    let public: BTreeSet<String> = terms
        .iter()
        .filter(|t| t["visibility"] == "public")
        .map(|t| t["name"].as_str().unwrap().to_owned())
        .collect();
    let written = json!(public_terms());
    let written: BTreeSet<String> = written.as_object().unwrap().keys().cloned().collect();
    assert_eq!(public, written);

    let defs = &schema("common")["$defs"];
    let mut proposed = defs["proposed_terms"]["properties"].clone();
    let floor = proposed.as_object_mut().unwrap().remove("floor");
    assert!(floor.is_some());
    assert_eq!(proposed, defs["public_terms"]["properties"]);
    let names: BTreeSet<String> = proposed.as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, public);
    let in_sets = strings(&schema("term-set")["$defs"]["term"]["properties"]["name"]["enum"]);
    assert_eq!(in_sets, column(&terms, "name"));

    for (term, name) in terms.iter().zip(TermName::ALL) {
        assert_eq!(term["name"], json!(name));
        assert_eq!(term["name"], name.as_str());
        assert_eq!(term["type"], json!(name.kind()));
        assert_eq!(term["visibility"], json!(name.visibility()));
    }
    let submitted = schema("listing-terms")["properties"].clone();
    let submitted: BTreeSet<String> = submitted.as_object().unwrap().keys().cloned().collect();
    let names: BTreeSet<String> = column(&terms, "name").into_iter().collect();
    assert_eq!(submitted, names);
    let field = &schema("error")["$defs"]["field"]["properties"];
    let mut in_errors = strings(&field["term"]["enum"]);
    assert_eq!(in_errors.pop().unwrap(), "*");
    assert_eq!(in_errors, column(&terms, "name"));
    let rules = Rule::ALL.map(|rule| {
        assert_eq!(json!(rule), rule.as_str());
        rule.as_str().to_owned()
    });
    assert_eq!(strings(&field["rule"]["enum"]), rules);
    let constraints = schema("term-set")["$defs"]["constraints"]["properties"].clone();
    let constraints: BTreeSet<&str> = constraints
        .as_object()
        .unwrap()
        .keys()
        .map(|name| rules.iter().find(|rule| *rule == name).unwrap().as_str())
        .collect();
    assert_eq!(constraints.len(), 6);
}

#[test]
fn the_reference_term_sets_are_whole() {
    let sets = registry("term-sets", "term_sets");
    let reference = TermSets::reference();
    assert_eq!(reference, Policy::default().term_sets);
    assert_eq!(column(&sets, "name"), reference.names());
    for (set, read) in sets.iter().zip(reference.iter()) {
        fits("term-set", set);
        assert_eq!(read.check(), Ok(()));
        // Nothing is read that is not written back: what the hosted page gets is what is published.
        assert_eq!(json!(read), *set);
        assert_eq!(TermSet::deserialize(set).unwrap(), *read);
    }
}

#[test]
fn the_enumerations_of_the_schemas_are_those_of_the_types() {
    let ops: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(enumerated("operation"), ops);
    for (name, count) in [("mechanism", 4), ("tier", 3)] {
        assert_eq!(enumerated(name).len(), count);
    }
    for mechanism in enumerated("mechanism") {
        let read: Mechanism = serde_json::from_value(json!(mechanism)).unwrap();
        assert_eq!(read.as_str(), mechanism);
    }
    let names = EventName::NAMED.map(|name| name.as_str().to_owned());
    assert_eq!(
        strings(&schema("common")["$defs"]["deal_event"]["anyOf"][0]["enum"]),
        names
    );
    let observed = schema("term-set")["properties"]["required_observation"]["properties"].clone();
    for event in observed.as_object().unwrap().keys() {
        assert!(names.contains(event), "{event}");
    }
    for observation in enumerated("observation") {
        serde_json::from_value::<Observation>(json!(observation)).unwrap();
    }
    for tier in enumerated("tier") {
        serde_json::from_value::<tower_rctp::protocol::policy::Tier>(json!(tier)).unwrap();
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Files and samples

static SCHEMAS: LazyLock<Vec<(String, Value)>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    let mut schemas: Vec<(String, Value)> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        // They are made of the schemas; tests/openapi.rs and tests/binding_13_mcp.rs look after them.
        .filter(|path| !path.ends_with("openapi.json") && !path.ends_with("mcp.openrpc.json"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let schema = serde_json::from_slice(&fs::read(&path).unwrap());
            (
                name,
                schema.unwrap_or_else(|e| panic!("{}: {e}", path.display())),
            )
        })
        .collect();
    schemas.sort_by(|a, b| a.0.cmp(&b.0));
    schemas
});

fn schema(name: &str) -> Value {
    let found = SCHEMAS.iter().find(|(n, _)| n == name);
    found
        .unwrap_or_else(|| panic!("there is no {name}"))
        .1
        .clone()
}

fn validator(name: &str) -> Validator {
    let mut registry = Registry::new();
    for (_, schema) in &*SCHEMAS {
        let id = schema["$id"].as_str().unwrap();
        registry = registry
            .add(id, Resource::from_contents(schema.clone()))
            .unwrap();
    }
    jsonschema::options()
        .with_registry(&registry.prepare().unwrap())
        .should_validate_formats(true)
        .build(&schema(name))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn fits(name: &str, value: &Value) {
    thread_local! {
        static BUILT: std::cell::RefCell<std::collections::HashMap<String, Validator>> = Default::default();
    }
    BUILT.with_borrow_mut(|built| {
        let validator = built
            .entry(name.to_owned())
            .or_insert_with(|| validator(name));
        if let Err(e) = validator.validate(value) {
            panic!("{name}: {e} at {}: {value}", e.instance_path());
        }
        // Closed: what the type does not write cannot be smuggled in.
        let mut more = value.clone();
        more["floor"] = json!({"amount": 1, "currency": "EUR"});
        assert!(!validator.is_valid(&more), "{name} is open");
    });
}

fn registry(name: &str, list: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/registries");
    let text = fs::read(folder.join(format!("{name}.json"))).unwrap();
    let registry: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        registry["id"],
        format!("https://rctp.dev/registries/{name}.json")
    );
    assert_eq!(registry["version"], tower_rctp::protocol::VERSION);
    registry[list].as_array().unwrap().clone()
}

fn column(rows: &[Value], name: &str) -> Vec<String> {
    rows.iter()
        .map(|row| row[name].as_str().unwrap().to_owned())
        .collect()
}

fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().unwrap().iter();
    items.map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn enumerated(definition: &str) -> Vec<String> {
    strings(&schema("common")["$defs"][definition]["enum"])
}

/// The pointers of every object in `value`, itself first.
fn objects(value: &Value) -> Vec<String> {
    let mut all = positions(value);
    all.insert(0, String::new());
    all.retain(|at| value.pointer(at).unwrap().is_object());
    all
}

/// The pointers of everything below `value`.
fn positions(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, all: &mut Vec<String>) {
        let mut below = |name: &str, value: &Value| {
            let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
            walk(value, &at, all);
            all.push(at);
        };
        match value {
            Value::Object(members) => members.iter().for_each(|(name, v)| below(name, v)),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .for_each(|(i, v)| below(&i.to_string(), v)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    walk(value, "", &mut all);
    all
}

/// A body with every member for every request schema.
fn requests() -> Vec<(&'static str, Value)> {
    let price = json!({"amount": 12_500, "currency": "EUR"});
    let deal_terms = json!({
        "price": price,
        "fulfillment": {"method_type": "shipping", "selected_option_id": "standard"},
        "payment": {"selected_term_id": "held_funds"},
    });
    let mut proposed = json!(public_terms());
    proposed["floor"] = price.clone();
    let all: Vec<(&str, Value)> = vec![
        (
            "answer-request",
            json!({"question_id": "qst_1", "text": "Yes, it is."}),
        ),
        ("commit-to-ship-request", json!({})),
        ("deal-create-request", json!({"checkout": "e30.e30.AA"})),
        ("deal-event-post-request", json!({"event": "e30.e30.AA"})),
        ("empty-request", json!({})),
        (
            "listing-create-request",
            json!({
                "title": "Bicycle, 28 inches", "description": "Red.\nTwo years old.", "category": "bicycles",
                "list_price": price, "term_set": "goods-1", "proposed_terms": proposed,
            }),
        ),
        ("listing-reprice-request", json!({"price": price})),
        (
            "listing-set-terms-request",
            json!({"proposed_terms": proposed}),
        ),
        (
            "offer-counter-request",
            json!({"deal_terms": deal_terms, "expires_at": "2026-11-02T10:00:00Z"}),
        ),
        (
            "offer-create-request",
            json!({
                "listing_id": "lst_1", "deal_terms": deal_terms, "supersedes": "off_1",
                "expires_at": "2026-11-02T10:00:00.5+01:00",
            }),
        ),
        (
            "approval-response",
            json!({"decision": "approve", "credential": {"id": "AA"}, "terms_commitment": hash()}),
        ),
        (
            "enrolment-completion",
            json!({"ticket": "t", "state": "s", "credential": {"id": "AA"}}),
        ),
        ("enrolment-options", json!({"ticket": "t"})),
        (
            "signin-completion",
            json!({"state": "s", "credential": {"id": "AA"}}),
        ),
        ("terms-submission", json!({"terms": proposed})),
        ("question-request", json!({"text": "Is it still there?"})),
    ];
    let bodies = TABLE.iter().filter_map(|row| row.body);
    let bodies: BTreeSet<&str> = bodies.chain(PAGE_BODIES).collect();
    assert_eq!(
        all.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(),
        bodies
    );
    all
}

fn sample(name: &str) -> Value {
    requests().into_iter().find(|(n, _)| *n == name).unwrap().1
}

fn operator_profile() -> Value {
    json!({
        "ucp": {
            "version": "2026-08-25",
            "services": {
                "dev.ucp.shopping": [
                    {"version": "2026-08-25", "transport": "rest", "endpoint": "https://agent.example/"},
                ],
            },
            "capabilities": {
                "dev.rctp.operator": [{"version": "2026-11-draft5", "config": {
                    "legal_entity": "Agents GmbH", "jurisdiction": "DE",
                    "incident_contact": "https://agent.example/incidents", "incident_sla_hours": 4,
                }}],
            },
            "payment_handlers": {"com.example.pay": [{"id": "x"}]},
        },
        "keys": [],
    })
}

fn hash() -> String {
    format!("sha-256:{}", "0a".repeat(32))
}

fn money() -> Money {
    Money::new(12_500, "EUR")
}

fn public_terms() -> PublicTerms {
    PublicTerms {
        available_from: Some(NOW),
        available_until: Some(NOW.plus(86_400)),
        fulfillment_options: vec![FulfillmentOption {
            method_type: "shipping".into(),
            option_ids: vec!["standard".into(), "express".into()],
        }],
        payment_terms: vec!["held_funds".into()],
        release_condition: Some("accepted".into()),
        deliver_within_days: Some(14),
        inspection_days: Some(3),
        return_policy: Some("not_as_described".into()),
        buyer_requirements: Some(BuyerRequirements {
            jurisdictions: vec!["DE".into()],
            certifications: vec!["ISO 27001".into()],
            authenticated_by: vec![Mechanism::HttpSignature],
        }),
    }
}

fn listings() -> Vec<Listing> {
    let least = Listing {
        listing_id: "lst_1".into(),
        seller: "pw_1".into(),
        state: ListingState::Draft,
        title: "Bicycle".into(),
        description: None,
        category: None,
        list_price: money(),
        term_set: "goods-1".into(),
        terms: None,
        created_at: NOW,
        operator: None,
    };
    let full = Listing {
        description: Some("Red.\nTwo years old.".into()),
        category: Some("bicycles".into()),
        terms: Some(ConfirmedTerms {
            public: public_terms(),
            commitment: hash(),
        }),
        ..least.clone()
    };
    let bare = Listing {
        terms: Some(ConfirmedTerms {
            public: PublicTerms {
                buyer_requirements: Some(BuyerRequirements::default()),
                ..PublicTerms::default()
            },
            commitment: hash(),
        }),
        ..least.clone()
    };
    let states = [
        ListingState::Draft,
        ListingState::Active,
        ListingState::Reserved {
            offer_id: "off_1".into(),
            until: NOW.plus(60),
        },
        ListingState::Sold {
            offer_id: "off_1".into(),
            deal_id: "deal_1".into(),
        },
        ListingState::Withdrawn,
    ];
    let with = |listing: Listing| {
        states.clone().map(|state| Listing {
            state,
            ..listing.clone()
        })
    };
    [least, full, bare].into_iter().flat_map(with).collect()
}

fn deal_terms() -> DealTerms {
    DealTerms {
        price: money(),
        fulfillment: Fulfillment {
            method_type: "shipping".into(),
            selected_option_id: "standard".into(),
        },
        payment: Payment {
            selected_term_id: "held_funds".into(),
        },
    }
}

fn offers() -> Vec<Offer> {
    let open = Offer {
        offer_id: "off_1".into(),
        negotiation_id: "neg_1".into(),
        listing_id: "lst_1".into(),
        by: By::Buyer,
        deal_terms: deal_terms(),
        state: OfferState::Open,
        supersedes: None,
        created_at: NOW,
        expires_at: NOW.plus(60),
        waits_until: None,
        acceptance: None,
        buyer: Agent::Client("client-1".into()),
        buyer_operator: "https://agent.example/ucp".into(),
        seller: "pw_1".into(),
    };
    let accepted = |checkout: Option<&str>, deal_id: Option<&str>| Offer {
        state: OfferState::Accepted,
        acceptance: Some(Acceptance {
            until: NOW.plus(60),
            terms_commitment: Some(hash()),
            rules: Rules::default(),
            checkout: checkout.map(str::to_owned),
            deal_id: deal_id.map(str::to_owned),
        }),
        ..open.clone()
    };
    let states = [
        OfferState::Open,
        OfferState::AwaitingApproval,
        OfferState::Countered,
        OfferState::Superseded,
        OfferState::Declined,
        OfferState::Expired,
    ];
    let mut all: Vec<Offer> = states
        .map(|state| Offer {
            state,
            by: By::Seller,
            supersedes: Some("off_0".into()),
            ..open.clone()
        })
        .to_vec();
    all.push(accepted(None, None));
    all.push(accepted(Some("e30.e30.AA"), None));
    all.push(accepted(Some("e30.e30.AA"), Some("deal_1")));
    all.push(open);
    all
}

fn checkout() -> Checkout {
    Checkout {
        iss: "https://market.example/".into(),
        offer_id: "off_1".into(),
        negotiation_id: "neg_1".into(),
        listing_id: "lst_1".into(),
        listing_hash: listings()[0].hash(),
        deal_terms: deal_terms(),
        buyer_jkt: "A".repeat(43).parse().unwrap(),
        nonce: "A".repeat(22),
        iat: NOW.secs(),
        exp: NOW.secs() + 1800,
    }
}

fn deal() -> Deal {
    Deal {
        deal_id: "deal_1".into(),
        offer_id: "off_1".into(),
        negotiation_id: "neg_1".into(),
        listing_id: "lst_1".into(),
        listing_hash: hash(),
        deal_terms: deal_terms(),
        terms_commitment: None,
        buyer_jkt: "A".repeat(43).parse().unwrap(),
        buyer_operator: "https://agent.example/ucp".into(),
        seller: "pw_1".into(),
        created_at: NOW,
        committed_to_ship_at: None,
        rules: Rules::default(),
        progress: Progress::default(),
        seller_operator: None,
        writers: std::collections::BTreeSet::new(),
    }
}

fn deal_event(event: EventName) -> DealEvent {
    DealEvent {
        deal_id: "deal_1".into(),
        event_id: format!("evt_{}", event.as_str().replace([':', '.'], "_")),
        reason: (event == EventName::Rejected).then_some(RejectReason::NotReceived),
        event,
        occurred_at: NOW,
        observation: Observation::FirstHand,
        reported_by: None,
        source_event_id: None,
        evidence: vec![hash()],
        city: Some("Zürich".into()),
    }
}

fn approvals() -> Vec<Approval> {
    let statuses = [
        ApprovalStatus::Pending,
        ApprovalStatus::Approved,
        ApprovalStatus::Declined,
        ApprovalStatus::Expired,
    ];
    let with = |verb: Verb| {
        let operation = TABLE.iter().find(|row| row.verb == Some(verb)).unwrap().op;
        statuses.map(|status| Approval {
            approval_id: "apr_1".into(),
            status,
            action: verb,
            operation,
            target: Some("off_1".into()),
            body: json!({}).into(),
            token: None,
            draft: None,
            seller: "pw_1".into(),
            asked_by: Asker {
                operator: "https://agent.example/ucp".into(),
                agent: Agent::Client("client-1".into()),
                authenticated_by: Mechanism::Oauth,
                roles: Vec::new(),
                duties: None,
            },
            details: json!({
                "type": tower_rctp::protocol::approval::DETAILS_TYPE, "approval_id": "apr_1", "nonce": "A".repeat(22),
                "action": verb, "subject": {"type": "offer", "id": "off_1"}, "deal_terms": deal_terms(),
                "request_hash": hash(), "expires_at": NOW,
            }),
            display: json!({"operator": "https://agent.example/ucp", "agent": "client-1", "title": "Bicycle"}),
            asked: Box::new(Entry::new(
                Subject::new(SubjectKind::Negotiation, "neg_1"),
                NOW,
                operation,
                Decision::Auto,
                &Caller::client(Mechanism::Oauth, "https://agent.example/ucp", "client-1"),
            )),
            created_at: NOW,
            expires_at: NOW.plus(900),
            outcome: (status == ApprovalStatus::Approved).then(|| Outcome {
                decision: Some(Decision::Auto),
                result: Some(match verb {
                    Verb::ListingCreate | Verb::ListingSetTerms => {
                        json!({"listing_id": "lst_1", "term_set": "goods-1", "terms_commitment": hash()})
                    }
                    Verb::ListingReprice => listings().remove(0).view(NOW),
                    Verb::ListingAnswerBuyer => json!({
                        "question_id": "qst_1", "listing_id": "lst_1", "text": "Is it red?",
                        "created_at": NOW, "answer": "Yes.", "answered_at": NOW,
                    }),
                    Verb::DealCommitToShip => deal().view(),
                    _ => json!(offers().remove(0).view(NOW)),
                }),
                error: None,
            }),
        })
    };
    Verb::GRANTED.into_iter().flat_map(with).collect()
}

fn decisions() -> Vec<Decision> {
    let forbid = |action, reason, retry_after| Decision::Forbid {
        action,
        reason,
        retry_after,
    };
    let mut all = vec![
        Decision::Auto,
        Decision::Ask {
            approval_id: "apr_1".into(),
            expires_in: 900,
            on_timeout: OnTimeout::Deny,
        },
        forbid(None, Reason::OfferReplayed, None),
        forbid(
            Some(Verb::OfferCreate),
            Reason::OfferBudgetExhausted,
            Some(3600),
        ),
    ];
    all.extend(Reason::ALL.map(|reason| forbid(Some(Verb::OfferAccept), reason, None)));
    all.extend(VERBS.map(|verb| forbid(Some(verb), Reason::BelowFloor, None)));
    all
}
