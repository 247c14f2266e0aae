//! Closed body schemas (binding 6, 11): JSON Schema 2020-12 files under `schemas/`, compiled once.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::LazyLock,
};

use jsonschema::{
    Registry, Resource, Validator,
    paths::{Location, LocationSegment},
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

macro_rules! files {
    ($(#[$doc:meta])* $list:ident in $folder:literal: $($name:literal),* $(,)?) => {
        $(#[$doc])*
        pub const $list: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../schemas/", $folder, $name, ".json")))),*
        ];
    };
}

files!(
    /// What bodies are validated against, with what those schemas refer to; by name, as published.
    FILES in "":
    "answer-request",
    "approval-response",
    "common",
    "commit-to-ship-request",
    "deal-create-request",
    "deal-event",
    "deal-event-post-request",
    "empty-request",
    "enrolment-completion",
    "enrolment-options",
    "listing-create-request",
    "listing-reprice-request",
    "listing-set-terms-request",
    "listing-terms",
    "offer-counter-request",
    "offer-create-request",
    "question-request",
    "signin-completion",
    "term-set",
    "terms-submission",
    "ucp-profile",
);

files!(
    /// What answers look like, and what travels in them.
    ANSWERS in "":
    "approval",
    "approval-answered",
    "approval-asked",
    "approval-page",
    "approval-request",
    "approvals-pending",
    "attestation-entry",
    "checkout",
    "deal",
    "deal-event-recorded",
    "deal-events",
    "decision",
    "enrolment-answer",
    "error",
    "gateway-profile",
    "grant-introspection",
    "listing",
    "offer",
    "offers-page",
    "passkey-ceremony",
    "passkey-options",
    "protected-resource",
    "question",
    "questions-page",
    "seller-session",
    "terms-accepted",
    "webhook-event",
);

files!(
    /// The registries.
    REGISTRIES in "registries/":
    "actions",
    "errors",
    "reasons",
    "term-sets",
    "terms",
);

/// Every schema by its name, in alphabetical order, as published.
pub fn published() -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<_> = FILES.iter().chain(ANSWERS).copied().collect();
    all.sort_unstable();
    all
}

/// What a schema of this name is called in the world (binding 10).
pub fn id(name: &str) -> String {
    format!("https://rctp.dev/schemas/{name}.json")
}

static PARSED: LazyLock<Vec<(&'static str, Value)>> = LazyLock::new(|| {
    let parse = |text| serde_json::from_str(text).expect("schemas are checked by a test");
    FILES
        .iter()
        .map(|(name, text)| (*name, parse(text)))
        .collect()
});

static COMPILED: LazyLock<HashMap<&'static str, Validator>> = LazyLock::new(|| compile(&PARSED));

/// The members that the schemas name themselves.
static MEMBERS: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let mut members = HashSet::new();
    for (_, schema) in &*PARSED {
        collect_members(schema, &mut members);
    }
    members
});

/// What a body violates: where, and which rule; never the offending value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at `{path}`: {rule}")]
pub struct Violation {
    /// A JSON Pointer into the body; `*` stands for a member whose name is the caller's own.
    pub path: String,
    /// The rule, in words.
    pub rule: String,
}

/// Validates `body` against the schema called `name`.
///
/// # Errors
/// The first violation.
///
/// # Panics
/// When there is no schema of that name; names are compile-time constants of the table.
pub fn validate(name: &str, body: &Value) -> Result<(), Violation> {
    let validator = COMPILED
        .get(name)
        .unwrap_or_else(|| panic!("there is no schema `{name}`"));
    let named = |name: &str| MEMBERS.contains(name);
    validator
        .validate(body)
        .map_err(|error| describe(&error, named))
}

/// Reads JSON strictly: one value, UTF-8, and no member twice (RFC 8259 leaves duplicates open; readers that differ
/// on them would decide on one value and act on another).
///
/// `1` and `1.0` are one number to JSON Schema and to JCS but not to serde, so that integers are read as such however
/// they are written.
///
/// # Errors
/// What is wrong, without the bytes that are.
pub fn parse(bytes: &[u8]) -> Result<Value, Malformed> {
    serde_json::from_slice::<Strict>(bytes)
        .map(|strict| strict.0)
        .map_err(|error| Malformed {
            duplicate: error.is_data(),
            line: error.line(),
            column: error.column(),
        })
}

/// The bytes are not the JSON that was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    duplicate: bool,
    line: usize,
    column: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.duplicate {
            "a member occurs twice in one object, or a number is out of range"
        } else {
            "this is not well-formed JSON"
        };
        write!(f, "{what} (line {}, column {})", self.line, self.column)
    }
}

impl std::error::Error for Malformed {}

fn compile(files: &[(&'static str, Value)]) -> HashMap<&'static str, Validator> {
    let resources = files.iter().filter_map(|(_, schema)| {
        let id = schema.get("$id")?.as_str()?.to_owned();
        Some((id, Resource::from_contents(schema.clone())))
    });
    let mut registry = Registry::new();
    for (id, resource) in resources {
        registry = registry.add(id, resource).expect("ids are URIs");
    }
    let registry = registry
        .prepare()
        .expect("references resolve among the files");
    files
        .iter()
        .map(|(name, schema)| {
            let validator = jsonschema::options()
                .with_registry(&registry)
                .should_validate_formats(true)
                .build(schema)
                .expect("schemas are checked by a test");
            (*name, validator)
        })
        .collect()
}

/// Says the rule without the instance: bodies may carry private values. `named` tells the names that the schema has.
pub(crate) fn describe(
    error: &jsonschema::ValidationError<'_>,
    named: impl Fn(&str) -> bool,
) -> Violation {
    use jsonschema::error::ValidationErrorKind as Kind;
    let rule = match error.kind() {
        Kind::AdditionalProperties { .. } | Kind::UnevaluatedProperties { .. } => {
            "there is a member that this object does not have; the schema is closed".to_owned()
        }
        Kind::Required { property } => format!(
            "the member `{}` is required",
            property.as_str().unwrap_or_default()
        ),
        Kind::Type { .. } => "the value has the wrong type".to_owned(),
        Kind::Enum { options } => format!("the value must be one of {options}"),
        Kind::Constant { expected_value } => format!("the value must be {expected_value}"),
        Kind::Maximum { limit } => format!("the value must be at most {limit}"),
        Kind::Minimum { limit } => format!("the value must be at least {limit}"),
        Kind::MaxLength { limit } => format!("the string must have at most {limit} characters"),
        Kind::MinLength { limit } => format!("the string must have at least {limit} characters"),
        Kind::MaxItems { limit } => format!("the array must have at most {limit} items"),
        Kind::MinItems { limit } => format!("the array must have at least {limit} items"),
        Kind::UniqueItems => "the array's items must differ".to_owned(),
        Kind::Pattern { pattern } => format!("the string must match {pattern}"),
        Kind::Format { format } => format!("the string must be a valid {format}"),
        _ => format!("the rule {} does not hold", error.schema_path()),
    };
    Violation {
        path: path(error.instance_path(), named),
        rule,
    }
}

/// The pointer, without what is not named by a schema.
fn path(location: &Location, named: impl Fn(&str) -> bool) -> String {
    location
        .segments()
        .map(|segment| match segment {
            LocationSegment::Index(index) => format!("/{index}"),
            LocationSegment::Property(name) if named(&name) => format!("/{name}"),
            LocationSegment::Property(_) => "/*".to_owned(),
        })
        .collect()
}

/// The members that a schema names.
pub(crate) fn collect_members<'s>(schema: &'s Value, members: &mut HashSet<&'s str>) {
    match schema {
        Value::Object(keywords) => {
            if let Some(Value::Object(properties)) = keywords.get("properties") {
                members.extend(properties.keys().map(String::as_str));
            }
            for value in keywords.values() {
                collect_members(value, members);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_members(item, members)),
        _ => {}
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        const EXACT: f64 = 9_007_199_254_740_991.0; // 2^53 − 1
        if v.fract() == 0.0 && v.abs() <= EXACT {
            return Ok(Value::Number((v as i64).into()));
        }
        Number::from_f64(v)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Strict(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let Strict(value) = map.next_value()?;
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("duplicate member"));
            }
        }
        Ok(Value::Object(members))
    }
}
