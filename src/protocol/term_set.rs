//! Term sets: which terms a listing carries, and the constraints that the seller's values must keep (binding 4.1,
//! 4.2, 10a; R21).
//!
//! A [`TermSet`] is data, as `schemas/term-set.json` describes it; [`TermSets::reference`] are those of the published
//! registry. It fills in the form of the hosted page ([`TermSet::prefill`]) and judges what the seller sends back
//! ([`TermSet::confirm`]). What an agent proposed is only ever filled in: it is judged when the seller confirms it.
//!
//! ```
//! use serde_json::json;
//! use tower_rctp::protocol::{money::Money, term_set::TermSets};
//!
//! let sets = TermSets::reference();
//! let goods = sets.get("goods-1").expect("it is registered");
//! let price = Money::new(60_000, "EUR");
//!
//! let mut form = goods.prefill(Some("furniture"), None);
//! form["floor"] = json!({"amount": 45_000, "currency": "EUR"});
//! assert!(goods.confirm(&form, &price).is_ok());
//!
//! form["floor"] = json!({"amount": 75_000, "currency": "EUR"});
//! let violations = goods.confirm(&form, &price).err().expect("it is over the price");
//! assert_eq!(violations[0].message, "floor must be at most the list price");
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::LazyLock,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    event::{EventName, Observation},
    money::Money,
    schema,
    terms::{Floor, PublicTerms},
    time::Timestamp,
};

/// The term sets that a gateway enforces, each under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermSets(Vec<TermSet>);

static REFERENCE: LazyLock<TermSets> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Registry {
        term_sets: Vec<TermSet>,
    }
    let text = include_str!("../../schemas/registries/term-sets.json");
    let registry: Registry = serde_json::from_str(text).expect("registries are checked by a test");
    TermSets(registry.term_sets)
});

impl TermSets {
    /// None.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Those of the published registry (`schemas/registries/term-sets.json`).
    pub fn reference() -> Self {
        REFERENCE.clone()
    }

    /// These and `set`.
    ///
    /// # Errors
    /// What is wrong with `set` ([`TermSet::check`]), or that its name is taken.
    pub fn with(mut self, set: TermSet) -> Result<Self, String> {
        set.check()?;
        if self.get(set.name()).is_some() {
            return Err(format!(
                "term set `{}` is there already; give yours a name of its own",
                set.name()
            ));
        }
        self.0.push(set);
        Ok(self)
    }

    /// Those of these names, in their order.
    ///
    /// # Errors
    /// The first name that is not among them, and which are.
    pub fn select<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<Self, String> {
        let mut selected = Vec::<TermSet>::new();
        for name in names {
            let set = self.get(name).ok_or_else(|| {
                let registered = self.names().join(", ");
                format!("`{name}` is not registered; there is {registered}")
            })?;
            if !selected.iter().any(|s| s.name() == name) {
                selected.push(set.clone());
            }
        }
        Ok(Self(selected))
    }

    /// The term set of that name.
    pub fn get(&self, name: &str) -> Option<&TermSet> {
        self.0.iter().find(|set| set.name() == name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &TermSet> {
        self.0.iter()
    }

    /// Their names, for `config.term_sets` of the gateway profile.
    pub fn names(&self) -> Vec<String> {
        self.iter().map(|set| set.name.clone()).collect()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A term set: its terms in the order of the form, and what each category fills in. In JSON it is what
/// `schemas/term-set.json` describes; [`TermSets::with`] takes it in once it passes [`TermSet::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TermSet {
    name: String,
    title: String,
    terms: Vec<Term>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    required_observation: BTreeMap<EventName, Observation>,
    category_defaults: BTreeMap<String, PublicTerms>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Term {
    name: TermName,
    #[serde(rename = "type")]
    kind: TermType,
    visibility: Visibility,
    required: bool,
    #[serde(default, skip_serializing_if = "Constraints::is_empty")]
    constraints: Constraints,
}

/// What the seller confirmed, in the form in which it is stored, shown and committed to: absent terms are absent, and
/// points in time are whole seconds in UTC. [`PrivateTerms::commitment`](super::terms::PrivateTerms::commitment) over
/// both is the one of binding 4.2.
pub struct Confirmed {
    /// What anyone may read.
    pub public: PublicTerms,
    /// What only the decision reads.
    pub floor: Option<Floor>,
}

impl TermSet {
    /// The name under which listings ask for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is called to people.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Its terms, in the order of the form.
    pub fn terms(&self) -> impl Iterator<Item = TermName> {
        self.terms.iter().map(|term| term.name)
    }

    /// With which observation an event on a deal counts (binding 8.1).
    pub fn required_observation(&self) -> &BTreeMap<EventName, Observation> {
        &self.required_observation
    }

    /// Whether the definition can be enforced.
    ///
    /// Type and visibility of a term are the registry's (binding 10a: a term set cannot add or change one). The floor is
    /// the one private term because it is the one that the gateway has a private place for; whatever else a listing
    /// has is shown under `public_terms` (4.3). A floor that was declared public would be published there, and another
    /// term that was declared private would be too, against its declaration: both are refused.
    ///
    /// The defaults must satisfy the definition themselves, and "fill in each public term" that is required (4.1);
    /// only points in time may lack one, since none would stay right.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), String> {
        let wrong = |what: String| Err(format!("term set `{}`: {what}", self.name));
        if let Err(violation) = schema::validate("term-set", &json!(self)) {
            return wrong(format!("it is not of the schema term-set: {violation}"));
        }
        let mut listed = BTreeSet::new();
        let mut less = BTreeSet::new();
        for term in &self.terms {
            let Term {
                name,
                kind,
                visibility,
                constraints,
                ..
            } = term;
            if !listed.insert(*name) {
                return wrong(format!("it lists {name} twice"));
            }
            if *kind != name.kind() {
                return wrong(format!("the type of {name} is {}", json!(name.kind())));
            }
            if *visibility != name.visibility() {
                return wrong(format!(
                    "{name} is {}; floor is the only private term, and every other one is shown in public_terms",
                    json!(name.visibility())
                ));
            }
            for (rule, kinds) in constraints.given() {
                if !kinds.contains(kind) {
                    return wrong(format!(
                        "{rule} of {name} says nothing about the type {}",
                        json!(kind)
                    ));
                }
            }
            if let (Some(min), Some(max)) = (constraints.min, constraints.max)
                && min > max
            {
                return wrong(format!("min of {name} is over its max"));
            }
            for other in [constraints.gt_term, constraints.lt_term]
                .into_iter()
                .flatten()
            {
                if other == *name || !self.terms().any(|listed| listed == other) {
                    return wrong(format!(
                        "{name} is compared with {other}, which is not another term of the set"
                    ));
                }
                if other.kind() != *kind {
                    return wrong(format!(
                        "{name} is compared with {other}, which has another type"
                    ));
                }
            }
            less.extend(constraints.gt_term.map(|other| (other, *name)));
            less.extend(constraints.lt_term.map(|other| (*name, other)));
        }
        // Two terms of a type at most are ordered, so that a cycle has two.
        if let Some((a, b)) = less.iter().find(|&&(a, b)| less.contains(&(b, a))) {
            return wrong(format!("{a} would be both less and greater than {b}"));
        }
        for (category, defaults) in &self.category_defaults {
            let defaults = as_object(json!(defaults));
            let names = defaults.keys().filter_map(|name| TermName::parse(name));
            if let Some(name) = names.into_iter().find(|name| !listed.contains(name)) {
                return wrong(format!(
                    "category_defaults of `{category}` has {name}, which it does not list"
                ));
            }
            let filled = as_object(self.prefill(Some(category), None));
            let (_, violations) = self.examine(&filled, None);
            let left_to_the_seller = |violation: &Violation| {
                violation.rule == Rule::Required
                    && TermName::parse(&violation.term).is_some_and(|name| {
                        name.visibility() == Visibility::Private
                            || name.kind() == TermType::Timestamp
                    })
            };
            if let Some(violation) = violations.into_iter().find(|v| !left_to_the_seller(v)) {
                return wrong(format!(
                    "category_defaults of `{category}`: {}",
                    violation.message
                ));
            }
        }
        Ok(())
    }

    /// What the form begins with, term by term: what the agent proposed, else the default of `category`, else that of
    /// `*` (binding 4.2). Terms that the set does not list are dropped; proposed values are taken as they are, since
    /// the seller edits them and [`TermSet::confirm`] judges the outcome.
    ///
    /// It may hold a proposed floor: it is for the seller's browser alone.
    pub fn prefill(&self, category: Option<&str>, proposed: Option<&Value>) -> Value {
        let defaults = [Some("*"), category]
            .into_iter()
            .flatten()
            .filter_map(|category| self.category_defaults.get(category))
            .map(|defaults| json!(defaults));
        let mut form = Map::new();
        for values in defaults.chain(proposed.cloned()) {
            for (name, value) in as_object(values) {
                if self.terms().any(|term| term.as_str() == name) && !value.is_null() {
                    form.insert(name, value);
                }
            }
        }
        Value::Object(form)
    }

    /// Judges the seller's values, and brings them into the form in which they are stored.
    ///
    /// `null`, an empty list, and buyer requirements without any are no value: nothing is stored or committed to.
    /// `list_price` is the listing's; a floor must be in its currency.
    ///
    /// # Errors
    /// Every violation, in the order of the term set; what the term set does not have comes last.
    pub fn confirm(&self, terms: &Value, list_price: &Money) -> Result<Confirmed, Vec<Violation>> {
        let Some(submitted) = terms.as_object() else {
            let message = "the terms must be one object";
            return Err(vec![Violation::of_another(Rule::Type, message)]);
        };
        let (mut values, violations) = self.examine(submitted, Some(list_price));
        if !violations.is_empty() {
            return Err(violations);
        }
        let floor = values.remove(&TermName::Floor).map(|floor| {
            Floor::new(
                Money::deserialize(floor).expect("it was read as money when it was examined"),
            )
        });
        let public: Map<_, _> = values
            .into_iter()
            .map(|(name, value)| (name.as_str().to_owned(), value))
            .collect();
        let public = PublicTerms::deserialize(Value::Object(public))
            .expect("each term was read as one when it was examined");
        Ok(Confirmed { public, floor })
    }

    /// The values that are usable, each in its stored form, and every violation. Without a list price nothing is said
    /// about amounts of money.
    fn examine(
        &self,
        submitted: &Map<String, Value>,
        list_price: Option<&Money>,
    ) -> (BTreeMap<TermName, Value>, Vec<Violation>) {
        let mut values = BTreeMap::new();
        let mut unusable = BTreeMap::new();
        for name in self.terms() {
            match submitted
                .get(name.as_str())
                .map(|value| stored(name, value))
            {
                Some(Ok(Some(value))) => _ = values.insert(name, value),
                Some(Err(why)) => _ = unusable.insert(name, why),
                Some(Ok(None)) | None => {}
            }
        }
        let mut violations = Vec::new();
        for term in &self.terms {
            let name = term.name;
            if let Some(why) = unusable.get(&name) {
                violations.push(Violation::of(name, Rule::Type, why));
            } else if let Some(value) = values.get(&name) {
                term.constraints
                    .judge(name, value, &values, list_price, &mut violations);
            } else if term.required {
                violations.push(Violation::of(name, Rule::Required, "must have a value"));
            }
        }
        for name in TermName::ALL {
            if submitted.contains_key(name.as_str()) && !self.terms().any(|term| term == name) {
                violations.push(Violation::of(name, Rule::Unknown, "is not in the term set"));
            }
        }
        if submitted.keys().any(|name| TermName::parse(name).is_none()) {
            // The name is the caller's own: it is not repeated.
            let message = "there is a term that no term set has";
            violations.push(Violation::of_another(Rule::Unknown, message));
        }
        (values, violations)
    }
}

/// One of the ten terms (binding 10a; `schemas/registries/terms.json`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the registry's
pub enum TermName {
    Floor,
    AvailableFrom,
    AvailableUntil,
    FulfillmentOptions,
    PaymentTerms,
    ReleaseCondition,
    DeliverWithinDays,
    InspectionDays,
    ReturnPolicy,
    BuyerRequirements,
}

impl TermName {
    /// Every term, in the registry's order.
    pub const ALL: [TermName; 10] = [
        TermName::Floor,
        TermName::AvailableFrom,
        TermName::AvailableUntil,
        TermName::FulfillmentOptions,
        TermName::PaymentTerms,
        TermName::ReleaseCondition,
        TermName::DeliverWithinDays,
        TermName::InspectionDays,
        TermName::ReturnPolicy,
        TermName::BuyerRequirements,
    ];

    /// The term as the registry writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            TermName::Floor => "floor",
            TermName::AvailableFrom => "available_from",
            TermName::AvailableUntil => "available_until",
            TermName::FulfillmentOptions => "fulfillment_options",
            TermName::PaymentTerms => "payment_terms",
            TermName::ReleaseCondition => "release_condition",
            TermName::DeliverWithinDays => "deliver_within_days",
            TermName::InspectionDays => "inspection_days",
            TermName::ReturnPolicy => "return_policy",
            TermName::BuyerRequirements => "buyer_requirements",
        }
    }

    /// The type of its value.
    pub const fn kind(self) -> TermType {
        match self {
            TermName::Floor => TermType::Money,
            TermName::AvailableFrom | TermName::AvailableUntil => TermType::Timestamp,
            TermName::FulfillmentOptions => TermType::FulfillmentOptions,
            TermName::PaymentTerms => TermType::Choices,
            TermName::ReleaseCondition => TermType::ReleaseCondition,
            TermName::DeliverWithinDays | TermName::InspectionDays => TermType::Days,
            TermName::ReturnPolicy => TermType::Choice,
            TermName::BuyerRequirements => TermType::BuyerRequirements,
        }
    }

    /// Who reads it.
    pub const fn visibility(self) -> Visibility {
        match self {
            TermName::Floor => Visibility::Private,
            _ => Visibility::Public,
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|term| term.as_str() == name)
    }
}

impl fmt::Display for TermName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The type of a term's value; `schemas/listing-terms.json` says what each looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the registry's
pub enum TermType {
    BuyerRequirements,
    Choice,
    Choices,
    Days,
    FulfillmentOptions,
    Money,
    ReleaseCondition,
    Timestamp,
}

/// Who reads a term (binding 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// The decision alone.
    Private,
    /// Anyone, under `public_terms`.
    Public,
}

/// The closed set of constraints (binding 4.1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Constraints {
    #[serde(skip_serializing_if = "Option::is_none")]
    min: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gt_term: Option<TermName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lt_term: Option<TermName>,
    // `false` is written back, so that the schema refuses it: a constraint that is not meant is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    lte_list_price: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_ratio_of_list_price: Option<Ratio>,
}

impl Constraints {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Those that are there, each with the types that it says something about.
    fn given(&self) -> impl Iterator<Item = (Rule, &'static [TermType])> {
        const AMOUNTS: &[TermType] = &[TermType::Money, TermType::Days];
        const ORDERED: &[TermType] = &[TermType::Money, TermType::Days, TermType::Timestamp];
        const PRICES: &[TermType] = &[TermType::Money];
        [
            (self.min.is_some(), Rule::Min, AMOUNTS),
            (self.max.is_some(), Rule::Max, AMOUNTS),
            (self.gt_term.is_some(), Rule::GtTerm, ORDERED),
            (self.lt_term.is_some(), Rule::LtTerm, ORDERED),
            (self.lte_list_price.is_some(), Rule::LteListPrice, PRICES),
            (
                self.min_ratio_of_list_price.is_some(),
                Rule::MinRatioOfListPrice,
                PRICES,
            ),
        ]
        .into_iter()
        .filter_map(|(given, rule, kinds)| given.then_some((rule, kinds)))
    }

    fn judge(
        &self,
        name: TermName,
        value: &Value,
        values: &BTreeMap<TermName, Value>,
        list_price: Option<&Money>,
        violations: &mut Vec<Violation>,
    ) {
        let money = name.kind() == TermType::Money;
        // An amount is comparable with nothing in another currency, so that one violation says it all.
        if money && list_price.is_none_or(|price| value["currency"] != price.currency) {
            if list_price.is_some() {
                let message = "must be in the currency of the list price";
                violations.push(Violation::of(name, Rule::Currency, message));
            }
            return;
        }
        let Some(number) = number(name, value) else {
            return; // Its type has no order, and `check` lets no constraint be put on it.
        };
        let mut must = |holds: bool, rule: Rule, what: &dyn fmt::Display| {
            if !holds {
                violations.push(Violation::of(name, rule, what));
            }
        };
        let unit = match money {
            true => " in the minor unit of the currency",
            false => "",
        };
        let other = |term: TermName| {
            values
                .get(&term)
                .and_then(|value| self::number(term, value))
        };
        if let Some(min) = self.min {
            let what = format_args!("must be at least {min}{unit}");
            must(number >= min, Rule::Min, &what);
        }
        if let Some(max) = self.max {
            let what = format_args!("must be at most {max}{unit}");
            must(number <= max, Rule::Max, &what);
        }
        if let Some(term) = self.gt_term {
            let what = format_args!("must be greater than {term}");
            must(other(term).is_none_or(|o| number > o), Rule::GtTerm, &what);
        }
        if let Some(term) = self.lt_term {
            let what = format_args!("must be less than {term}");
            must(other(term).is_none_or(|o| number < o), Rule::LtTerm, &what);
        }
        let Some(list_price) = list_price else { return };
        if self.lte_list_price.is_some() {
            let holds = i128::from(number) <= i128::from(list_price.amount);
            must(holds, Rule::LteListPrice, &"must be at most the list price");
        }
        if let Some(ratio) = self.min_ratio_of_list_price {
            let what = format_args!("must be at least {ratio} of the list price");
            let holds = ratio.is_reached(number, list_price.amount);
            must(holds, Rule::MinRatioOfListPrice, &what);
        }
    }
}

/// A part of the list price, as the decimal that the definition writes, exact to nine places.
///
/// `0.1` as a double is a little more than a tenth: multiplied with a price it would refuse a floor of exactly a tenth
/// at some prices. The decimal is held in billionths, and comparing multiplies integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
struct Ratio(u32);

impl Ratio {
    const ONE: u32 = 1_000_000_000;

    fn is_reached(self, amount: i64, list_price: u64) -> bool {
        i128::from(amount) * i128::from(Self::ONE) >= i128::from(self.0) * i128::from(list_price)
    }
}

impl TryFrom<f64> for Ratio {
    type Error = &'static str;

    fn try_from(number: f64) -> Result<Self, Self::Error> {
        let billionths = (number * f64::from(Self::ONE)).round();
        if !(1.0..=f64::from(Self::ONE)).contains(&billionths) {
            return Err("min_ratio_of_list_price is over 0 and at most 1");
        }
        // In range, so exact; dividing rounds to the double that a reader makes of the same decimal.
        let ratio = Self(billionths as u32);
        match f64::from(ratio) == number {
            true => Ok(ratio),
            false => Err("min_ratio_of_list_price has at most nine decimal places"),
        }
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> f64 {
        f64::from(ratio.0) / f64::from(Ratio::ONE)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f64::from(*self).fmt(f)
    }
}

/// What a seller's value breaks. It names the term and the rule, never the value: it may end up in a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Violation {
    /// One of the ten names, or `*` for what is none of them.
    pub term: String,
    /// The rule.
    pub rule: Rule,
    /// The sentence for people.
    pub message: String,
}

impl Violation {
    /// `term` is past already; its term set has no clock to say so.
    pub fn past(term: &str) -> Self {
        Self {
            term: term.to_owned(),
            rule: Rule::Future,
            message: format!("{term} must be in the future"),
        }
    }
}

impl Violation {
    fn of(name: TermName, rule: Rule, what: impl fmt::Display) -> Self {
        Self {
            term: name.as_str().to_owned(),
            rule,
            message: format!("{name} {what}"),
        }
    }

    fn of_another(rule: Rule, message: &str) -> Self {
        Self {
            term: "*".to_owned(),
            rule,
            message: message.to_owned(),
        }
    }
}

/// A rule that a value can break: the closed set of constraints, and what every term set asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The term set has no such term.
    Unknown,
    /// The value has the form of the term's type.
    Type,
    /// There is a value at confirmation.
    Required,
    /// Money is in the listing's currency.
    Currency,
    /// At least so many days or minor units.
    Min,
    /// At most so many.
    Max,
    /// Greater than another term, where both have a value.
    GtTerm,
    /// Less than another term, where both have a value.
    LtTerm,
    /// At most the asking price.
    LteListPrice,
    /// At least that part of the asking price.
    MinRatioOfListPrice,
    /// Not past when the seller confirms it.
    Future,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 11] = [
        Rule::Unknown,
        Rule::Type,
        Rule::Required,
        Rule::Currency,
        Rule::Min,
        Rule::Max,
        Rule::GtTerm,
        Rule::LtTerm,
        Rule::LteListPrice,
        Rule::MinRatioOfListPrice,
        Rule::Future,
    ];

    /// The rule as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Rule::Unknown => "unknown",
            Rule::Type => "type",
            Rule::Required => "required",
            Rule::Currency => "currency",
            Rule::Min => "min",
            Rule::Max => "max",
            Rule::GtTerm => "gt_term",
            Rule::LtTerm => "lt_term",
            Rule::LteListPrice => "lte_list_price",
            Rule::MinRatioOfListPrice => "min_ratio_of_list_price",
            Rule::Future => "future",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The value in its stored form; `None` where it is no value, or what is wrong with it.
fn stored(name: TermName, value: &Value) -> Result<Option<Value>, String> {
    let Some(value) = given(name, value) else {
        return Ok(None);
    };
    let says = |violation: schema::Violation| format!("is not of its type: {violation}");
    let unread = |_| "is not of its type".to_owned();
    let mut terms = json!({ name.as_str(): value });
    schema::validate("listing-terms", &terms).map_err(says)?;
    let read = match name.kind() {
        TermType::Money => {
            Money::deserialize(&terms[name.as_str()]).map(|money| json!({ name.as_str(): money }))
        }
        _ => PublicTerms::deserialize(&terms).map(|public| json!(public)),
    };
    terms = read.map_err(unread)?;
    // In UTC a point in time may leave the years that the schema has; what is shown must fit it.
    schema::validate("listing-terms", &terms).map_err(says)?;
    Ok(Some(terms[name.as_str()].take()))
}

/// The value without what is none.
fn given(name: TermName, value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Object(members) if name.kind() == TermType::BuyerRequirements => {
            let mut members = members.clone();
            members.retain(|_, list| list.as_array().is_none_or(|list| !list.is_empty()));
            (!members.is_empty()).then_some(Value::Object(members))
        }
        _ => Some(value.clone()),
    }
}

/// A stored value as a number, where its type has an order.
fn number(name: TermName, value: &Value) -> Option<i64> {
    match name.kind() {
        TermType::Money => value["amount"].as_i64(),
        TermType::Days => value.as_i64(),
        TermType::Timestamp => value
            .as_str()
            .and_then(Timestamp::parse)
            .map(Timestamp::secs),
        _ => None,
    }
}

fn as_object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}
