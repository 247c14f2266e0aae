//! The OpenAPI 3.1 document, made of the table of operations and the schemas: what is not in it is not served.
//!
//! Components are the schemas as they are published, without `$schema` and `$id` and with references into the document.
//! `x-rctp` at each operation says what OpenAPI has no word for: who may call, the verb with its scope and tiers, and
//! whether a price is held against the floor.

use http::Method;
use serde_json::{Map, Value, json};

use super::webhooks::webhooks;
use crate::{
    layer::idempotency::{MAX_KEY, MIN_KEY},
    protocol::{
        VERSION,
        operation::{FloorRule, Op, Operation, Side, TABLE, TierRule},
        policy::Policy,
        refusal::{ProtocolError, Reason},
        schema,
    },
};

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// What the document says of one gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// Without a trailing slash.
    pub(crate) public_url: &'a str,
    /// The issuer that grants come from.
    pub(crate) authorization_server: &'a str,
    pub(crate) policy: &'a Policy,
    pub(crate) signatures: bool,
    pub(crate) oauth: bool,
    /// Whether the hosted pages are served.
    pub(crate) pages: bool,
    /// Whether operators are told of changes.
    pub(crate) webhooks: bool,
    /// Whether the operations are served as tools over MCP.
    #[cfg(feature = "mcp")]
    pub(crate) mcp: bool,
}

pub(crate) fn document(about: &About<'_>) -> Value {
    let mut paths = Map::new();
    let mut add = |method: &Method, path: &str, operation: Value| {
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method.as_str().to_ascii_lowercase()] = operation;
    };
    for row in &TABLE {
        add(&row.method, row.path, operation(row, about));
    }
    if about.pages {
        for page in &PAGES {
            add(&page.method, page.path, page.operation());
        }
    }
    for document in &DOCUMENTS {
        add(&Method::GET, document.path, document.operation());
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": DIALECT,
        "info": {
            "title": "RCTP gateway",
            "version": VERSION,
            "summary": "Agents buy and sell on this marketplace, under grants that sellers can take back.",
            "description": "Every call of an agent is authenticated, tied to a grant where it acts for a seller, executed \
                at most once, and decided: **auto**, **ask** the seller, or **forbid** with a reason. `RCTP-Decision` says \
                which. What differs from a path or method below is 404.",
        },
        "servers": [{"url": about.public_url}],
        "tags": tags(about),
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": responses(about),
            "parameters": parameters(),
            "headers": headers(),
            "securitySchemes": security_schemes(about),
        },
    });
    if about.webhooks {
        document["webhooks"] = webhooks(about.public_url);
    }
    sorted(document)
}

/// The names of all operations, in the order of the table, the pages and the documents.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let pages = PAGES.iter().map(|page| page.name);
    let documents = DOCUMENTS.iter().map(|document| document.name);
    TABLE
        .iter()
        .map(|row| row.name)
        .chain(pages)
        .chain(documents)
}

/// Members by name: the same bytes whether or not some other crate has serde_json keep the order of insertion.
pub(super) fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.into_iter().collect();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            let members = members
                .into_iter()
                .map(|(name, value)| (name, sorted(value)));
            Value::Object(members.collect())
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        value => value,
    }
}

fn tags(about: &About<'_>) -> Value {
    let mut tags = vec![
        ("listings", "What is for sale, with questions about it"),
        ("offers", "Offers and counters, and what becomes of them"),
        ("approvals", "What waits for a seller"),
        ("deals", "What was agreed on, and what happens to it"),
        ("account", "The seller's account, which no agent touches"),
    ];
    if about.pages {
        tags.push((
            "pages",
            "What the hosted pages ask, from the seller's browser",
        ));
    }
    tags.push(("discovery", "What anybody may read about this gateway"));
    tags.into_iter()
        .map(|(name, description)| json!({"name": name, "description": description}))
        .collect()
}

// ---- The table ----------------------------------------------------------------------------------------------------

/// What the table does not say of an operation.
pub(super) struct Told {
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    /// The status and the schema of what was carried out; none where this version carries nothing out.
    pub(super) done: Option<(u16, &'static str)>,
}

pub(super) fn told(op: Op) -> Told {
    let told = |summary, description, done| Told {
        summary,
        description,
        done,
    };
    match op {
        Op::CreateListing => told(
            "Propose a listing",
            "Lists something for sale. The seller confirms its terms on the hosted page; `proposed_terms` only fill in \
             that form. Where the tier is `auto`, the listing begins without terms, and `set_listing_terms` follows.",
            Some((201, "listing")),
        ),
        Op::GetListing => told(
            "Read a listing",
            "Any operator reads any listing. Private terms are in none.",
            Some((200, "listing")),
        ),
        Op::SetListingTerms => told(
            "Propose terms for a listing",
            "Asks the seller for the terms of a listing, always. They hold for later offers.",
            None,
        ),
        Op::RepriceListing => told(
            "Change a listing's price",
            "A new asking price, not under the floor, for later offers.",
            Some((200, "listing")),
        ),
        Op::ListQuestions => told(
            "Read the questions on a listing",
            "Oldest first: all of them with its seller's grant, else the caller's own. A page may hold fewer than its \
             limit and have a next one all the same.",
            Some((200, "questions-page")),
        ),
        Op::AskQuestion => told(
            "Ask about a listing",
            "A question to the seller, a limited number a day.",
            Some((201, "question")),
        ),
        Op::AnswerBuyer => told(
            "Answer a question",
            "Answers a question on the seller's listing, once.",
            Some((200, "question")),
        ),
        Op::CreateOffer => told(
            "Make an offer",
            "Offers on a listing, or answers a counter by naming it in `supersedes`. An offer under the floor is refused \
             without a word about the floor, and counts against the offer budget.",
            Some((201, "offer")),
        ),
        Op::ListOffers => told(
            "Read the offers on a listing",
            "Oldest first, for the listing's seller.",
            Some((200, "offers-page")),
        ),
        Op::GetOffer => told(
            "Read an offer",
            "For its parties. Once accepted, it carries the checkout of a buyer who signs.",
            Some((200, "offer")),
        ),
        Op::CounterOffer => told(
            "Counter an offer",
            "The seller's offer in answer to a buyer's, which becomes `countered`. A buyer answers it with `create_offer`.",
            Some((201, "offer")),
        ),
        Op::AcceptOffer => told(
            "Accept an offer",
            "Accepts a buyer's offer and reserves the listing for it. Under the floor it is refused, whatever the tier.",
            Some((200, "offer")),
        ),
        Op::DeclineOffer => told(
            "Decline an offer",
            "Either party may, while the offer is open.",
            Some((200, "offer")),
        ),
        Op::GetApproval => told(
            "Read an approval",
            "What became of an ask, for the operator that asked: its status, and the outcome once there is one.",
            Some((200, "approval")),
        ),
        Op::RespondApproval => told(
            "Answer an approval",
            "The seller's answer from the approval page. On `approve` the parked action is decided again and carried out \
             exactly as it was asked.",
            Some((200, "approval-answered")),
        ),
        Op::CreateDeal => told(
            "Redeem a checkout",
            "Makes the deal of an accepted offer, once. Always signed, with the key that the checkout names.",
            Some((201, "deal")),
        ),
        Op::GetDeal => told("Read a deal", "For its parties.", Some((200, "deal"))),
        Op::PostDealEvent => told(
            "Report an event of a deal",
            "A checkpoint of the deal as a compact JWS, signed with the key of the request.",
            Some((201, "deal-event-recorded")),
        ),
        Op::GetDealEvents => told(
            "Read the record of a deal",
            "The entries of the deal's chain, for its parties, the holder of funds and the carrier.",
            Some((200, "deal-events")),
        ),
        Op::CommitToShip => told(
            "Commit to ship",
            "The seller's agent says that the goods will be sent.",
            Some((200, "deal")),
        ),
        Op::SignContract => told(
            "Sign a contract",
            "No agent may: always 403 `action_forbidden`.",
            None,
        ),
        Op::UpdateAccount => told(
            "Change the seller's account",
            "No agent may: always 403 `action_forbidden`.",
            None,
        ),
    }
}

fn operation(row: &Operation, about: &About<'_>) -> Value {
    let told = told(row.op);
    let browser = row.side == Side::Browser;
    let mut operation = json!({
        "operationId": row.name,
        "tags": [row.path.split('/').nth(1)],
        "summary": told.summary,
        "description": told.description,
        "parameters": parameters_of(row),
        "security": security(row, about),
        "responses": responses_of(row, &told),
        "x-rctp": x_rctp(row, about.policy),
    });
    if let Some(body) = row.body {
        // An empty body stands for `{}`; a page of ours sends JSON in any case.
        operation["requestBody"] = request_body(body, browser || body != "empty-request");
    }
    operation
}

fn request_body(schema: &str, required: bool) -> Value {
    json!({"required": required, "content": content(schema)})
}

fn parameters_of(row: &Operation) -> Value {
    let mut all = Vec::new();
    if row.path.contains("{id}") {
        all.push(parameter("id"));
    }
    if row.op == Op::ListOffers {
        all.push(parameter("listing_id"));
    }
    if let Op::ListOffers | Op::ListQuestions = row.op {
        all.extend([parameter("after"), parameter("limit")]);
    }
    if row.op == Op::GetDealEvents {
        all.extend([parameter("from"), parameter("limit")]);
    }
    if row.side == Side::Browser {
        all.push(parameter("Origin"));
        return Value::Array(all);
    }
    if row.writes() {
        all.push(parameter("Idempotency-Key"));
    }
    all.extend(
        [
            "UCP-Agent",
            "Signature-Input",
            "Content-Digest",
            "RCTP-Version",
        ]
        .into_iter()
        .filter(|name| row.body.is_some() || *name != "Content-Digest")
        .map(parameter),
    );
    Value::Array(all)
}

/// What may authenticate the call: each object is one way, with everything in it.
fn security(row: &Operation, about: &About<'_>) -> Value {
    let scope = row.verb.and_then(|verb| verb.scope());
    let scopes: Vec<&str> = scope.into_iter().collect();
    let signed = json!({"signature": []});
    let both = json!({"signature": [], "bearer": scopes});
    let bearer = json!({"bearer": scopes});
    let ways = match row.side {
        Side::Browser => return json!([{"session": []}]),
        Side::Seller | Side::Asker => vec![(true, false, both), (false, true, bearer)],
        // R23.
        Side::Buyer if row.op == Op::CreateDeal => vec![(true, false, signed)],
        Side::PartyOrRole if row.op == Op::PostDealEvent => {
            vec![(true, false, signed), (true, false, both)]
        }
        Side::Buyer => vec![(true, false, signed), (false, true, bearer)],
        Side::Party | Side::PartyOrRole | Side::Operator => vec![
            (true, false, signed),
            (true, false, both),
            (false, true, bearer),
        ],
    };
    ways.into_iter()
        .filter(|(signature, oauth, _)| (!signature || about.signatures) && (!oauth || about.oauth))
        .map(|(_, _, way)| way)
        .collect()
}

fn x_rctp(row: &Operation, policy: &Policy) -> Value {
    let mut x = json!({
        "caller": caller(row.side),
        "tool": row.tool,
        "floor": match row.floor {
            FloorRule::None => Value::Null,
            FloorRule::Requested => json!("the price in the request"),
            FloorRule::Offer => json!("the offer's price"),
        },
        "tier": match row.tier {
            TierRule::None => "none",
            TierRule::Grant => "grant",
            TierRule::Ask => "ask",
            TierRule::Forbid => "forbid",
        },
    });
    if let Some(verb) = row.verb {
        x["verb"] = json!(verb);
        if let Some(scope) = verb.scope() {
            x["scope"] = json!(scope);
            // Null where the marketplace does not offer it, and answers 403 `action_forbidden`.
            x["tiers"] = json!(policy.tiers.get(scope));
        }
    }
    x
}

const fn caller(side: Side) -> &'static str {
    match side {
        Side::Seller => "the seller's agent, with the seller's grant",
        Side::Buyer => "a buyer's agent",
        Side::Party => "either party's agent; the seller's with the seller's grant",
        Side::PartyOrRole => "either party's agent, the holder of funds, the carrier",
        Side::Operator => "any onboarded operator's agent",
        Side::Asker => "the operator that asked, with the seller's grant",
        Side::Browser => "the seller's browser",
    }
}

// ---- Answers ------------------------------------------------------------------------------------------------------

/// The statuses of refusals, each with the name of its responses.
const REFUSED: [(u16, &str); 9] = [
    (400, "InvalidRequest"),
    (401, "Unauthenticated"),
    (403, "Forbidden"),
    (404, "NotFound"),
    (409, "Conflict"),
    (413, "TooLarge"),
    (422, "Unprocessable"),
    (429, "TooOften"),
    (503, "Unavailable"),
];

fn responses_of(row: &Operation, told: &Told) -> Value {
    let mut all = Map::new();
    let browser = row.side == Side::Browser;
    if let Some((status, schema)) = told.done {
        let mut response = done(status, schema);
        if row.writes() && !browser {
            response["headers"] = json!({"RCTP-Decision": header("Auto")});
        }
        all.insert(status.to_string(), response);
    }
    if matches!(row.tier, TierRule::Grant | TierRule::Ask) {
        all.insert("202".into(), reference("responses", "Asked"));
    }
    for status in refused(row) {
        let name = REFUSED.iter().find(|(s, _)| *s == status);
        let name = name.map_or("", |(_, name)| name);
        let name = if browser {
            format!("Page{name}")
        } else {
            name.to_owned()
        };
        all.insert(status.to_string(), reference("responses", &name));
    }
    Value::Object(all)
}

/// How the row can be refused.
fn refused(row: &Operation) -> Vec<u16> {
    let mut all = vec![400, 401, 403, 404, 413, 503];
    if row.side == Side::Browser {
        all.push(409);
        return all;
    }
    if row.tier == TierRule::Forbid {
        // Answered right after the grant, before anything is looked up (R7).
        all.retain(|status| *status != 404 || row.path.contains("{id}"));
        return all;
    }
    if row.writes() {
        all.push(409);
    }
    let judges_terms = matches!(
        row.op,
        Op::CreateListing
            | Op::SetListingTerms
            | Op::RepriceListing
            | Op::CreateOffer
            | Op::CounterOffer
            | Op::AcceptOffer
    );
    if judges_terms {
        all.push(422);
    }
    // The offer budget, questions a day, and how often a seller is asked (R18, R29).
    let counts = matches!(row.op, Op::CreateOffer | Op::AskQuestion);
    if counts || matches!(row.tier, TierRule::Grant | TierRule::Ask) {
        all.push(429);
    }
    all
}

fn done(status: u16, schema: &str) -> Value {
    json!({
        "description": match status {
            201 => "It was made.",
            _ => "It was done.",
        },
        "content": content(schema),
    })
}

fn responses(about: &About<'_>) -> Value {
    let mut all = Map::new();
    all.insert(
        "Asked".into(),
        json!({
            "description": "The seller is asked; nothing was carried out yet. `GET /approvals/{id}` tells the outcome, and \
                silence is a no.",
            "headers": {"RCTP-Decision": header("Ask")},
            "content": content("approval-asked"),
        }),
    );
    for (status, name) in REFUSED {
        all.insert(
            name.into(),
            refusal(status, &codes(status), about.oauth, true),
        );
        if about.pages || status_of_browser_row(status) {
            let codes = page_codes(status);
            if !codes.is_empty() {
                all.insert(format!("Page{name}"), refusal(status, &codes, false, false));
            }
        }
    }
    Value::Object(all)
}

/// Whether the one row of the seller's browser can be refused so.
fn status_of_browser_row(status: u16) -> bool {
    refused(Op::RespondApproval.row()).contains(&status)
}

/// What `error` may be, by status: the reasons, then the protocol errors.
fn codes(status: u16) -> Vec<&'static str> {
    let reasons = Reason::ALL.into_iter().filter(|r| r.status() == status);
    let errors = ProtocolError::ALL
        .into_iter()
        .filter(|e| e.status() == status);
    let mut codes: Vec<&str> = reasons.map(Reason::as_str).collect();
    codes.extend(errors.map(ProtocolError::as_str));
    codes
}

/// What the pages answer; their reasons are no decisions.
fn page_codes(status: u16) -> Vec<&'static str> {
    match status {
        // The last two where the id of an approval's answer is no id: to the stack that is any unknown path.
        401 => vec![
            Reason::ActionForbidden.as_str(),
            Reason::SignatureInvalid.as_str(),
            Reason::OperatorUnknown.as_str(),
            Reason::GrantInvalid.as_str(),
        ],
        403 => vec![Reason::ActionForbidden.as_str()],
        409 => vec![
            Reason::ActionForbidden.as_str(),
            Reason::OfferExpired.as_str(),
            Reason::OfferReplayed.as_str(),
            Reason::TermsInvalid.as_str(),
            ProtocolError::IdempotencyConflict.as_str(),
        ],
        422 => vec![Reason::TermsInvalid.as_str()],
        429 => Vec::new(),
        status => codes(status),
    }
}

fn refusal(status: u16, codes: &[&str], oauth: bool, agents: bool) -> Value {
    let mut description = String::from("Refused:\n\n");
    for code in codes {
        description.push_str(&format!("- `{code}`: {}\n", meaning(code)));
    }
    let mut headers = Map::new();
    let protocol = |code: &&str| ProtocolError::ALL.iter().any(|e| e.as_str() == *code);
    if !agents && status == 401 {
        headers.insert("RCTP-Decision".into(), header("MayForbid"));
    }
    if agents && !codes.iter().all(protocol) {
        let certain = !codes.iter().any(protocol);
        let name = if certain { "Forbid" } else { "MayForbid" };
        headers.insert("RCTP-Decision".into(), header(name));
    }
    if agents && (status == 429 || status == 503) {
        headers.insert("Retry-After".into(), header("RetryAfter"));
    }
    if oauth && status == 401 {
        headers.insert("WWW-Authenticate".into(), header("Challenge"));
    }
    let mut response = json!({
        "description": description.trim_end(),
        "content": {"application/json": {"schema": {
            "allOf": [schema_reference("error"), {"properties": {"error": {"enum": codes}}}],
        }}},
    });
    if !headers.is_empty() {
        response["headers"] = Value::Object(headers);
    }
    response
}

/// What the registries say of a code.
fn meaning(code: &str) -> String {
    let find = |registry: &str, list: &str, name: &str| {
        let row = super::registry(registry)[list]
            .as_array()?
            .iter()
            .find(|row| row[name] == code)?
            .clone();
        row["description"].as_str().map(str::to_owned)
    };
    find("reasons", "reasons", "reason")
        .or_else(|| find("errors", "errors", "error"))
        .unwrap_or_default()
}

// ---- Components ---------------------------------------------------------------------------------------------------

fn schemas() -> Value {
    let schemas = schema::published().into_iter().map(|(name, text)| {
        let mut schema: Value = serde_json::from_str(text).expect("schemas are checked by a test");
        if let Some(members) = schema.as_object_mut() {
            members.remove("$schema");
            members.remove("$id");
        }
        inline(&mut schema, name);
        (name.to_owned(), schema)
    });
    Value::Object(schemas.collect())
}

/// Points references at the document's own components.
fn inline(schema: &mut Value, name: &str) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match (key.as_str(), &*value) {
                    ("$ref", Value::String(to)) => *value = pointed(to, name).into(),
                    _ => inline(value, name),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| inline(item, name)),
        _ => {}
    }
}

/// `#/…` is of the schema itself; `https://rctp.dev/schemas/{other}.json#/…` of another.
fn pointed(to: &str, name: &str) -> String {
    let (file, fragment) = to.split_once('#').unwrap_or((to, ""));
    let other = file
        .strip_prefix("https://rctp.dev/schemas/")
        .and_then(|file| file.strip_suffix(".json"));
    format!("#/components/schemas/{}{fragment}", other.unwrap_or(name))
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}

fn schema_reference(name: &str) -> Value {
    reference("schemas", name)
}

fn parameter(name: &str) -> Value {
    reference("parameters", name)
}

fn header(name: &str) -> Value {
    reference("headers", name)
}

fn content(schema: &str) -> Value {
    json!({"application/json": {"schema": schema_reference(schema)}})
}

fn parameters() -> Value {
    let id = schema_reference("common/$defs/id");
    let named = |name: &str, place: &str, required: bool, description: &str, schema: Value| {
        let parameter = json!({
            "name": name, "in": place, "required": required, "description": description, "schema": schema,
        });
        (name.to_owned(), parameter)
    };
    let key = json!({
        "type": "string", "minLength": MIN_KEY, "maxLength": MAX_KEY, "pattern": "^[!-~]+$",
    });
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern, "maxLength": 4096});
    Value::Object(Map::from_iter([
        named(
            "id",
            "path",
            true,
            "What the operation is about. One that the caller has no part in is 404, as if absent.",
            id.clone(),
        ),
        named("listing_id", "query", true, "The listing.", id.clone()),
        named(
            "after",
            "query",
            false,
            "The `next` of the page before.",
            id,
        ),
        named(
            "from",
            "query",
            false,
            "The place of the first entry, from 0.",
            json!({"type": "integer", "minimum": 0, "default": 0}),
        ),
        named(
            "limit",
            "query",
            false,
            "How many at most.",
            json!({"type": "integer", "minimum": 1, "maximum": 100, "default": 50}),
        ),
        named(
            "Idempotency-Key",
            "header",
            true,
            "At least 128 random bits, a new one for each request; the same one to repeat a request, which gets the stored \
             answer for 48 hours. With another request it is 409 `idempotency_conflict`. Covered by the signature.",
            key,
        ),
        named(
            "UCP-Agent",
            "header",
            false,
            "`profile=\"<operator profile URL>\"`. Required and covered when signed; an OAuth client may omit it.",
            text("^profile=\"https?://[^\"]+\"$"),
        ),
        named(
            "Signature-Input",
            "header",
            false,
            "When signed: label `sig1` with keyid, created and expires, at most 300 s apart, over \"@method\" \"@authority\" \
             \"@path\" \"ucp-agent\"; \"@query\" with a query; \"idempotency-key\" on POST; \"content-digest\" and \
             \"content-type\" with a body; \"authorization\" when that is sent.",
            text("^sig1=\\(.*\\).*$"),
        ),
        named(
            "Content-Digest",
            "header",
            false,
            "When signed, with a body: `sha-256=:…:` over its bytes (RFC 9530).",
            text("^.*sha-256=:[A-Za-z0-9+/=]+:.*$"),
        ),
        named(
            "RCTP-Version",
            "header",
            false,
            "The version that the client speaks; any other than this is 400 `unsupported_version`.",
            json!({"const": format!("\"{VERSION}\"")}),
        ),
        named(
            "Origin",
            "header",
            true,
            "That of the gateway's own pages; browsers send it by themselves.",
            text("^https?://.+$"),
        ),
    ]))
}

fn headers() -> Value {
    let decision = "RCTP-Decision, an RFC 9651 Item; the schema `decision` is the same as JSON.";
    let forbid = "^forbid(;action=\"[a-z_.]+\")?;reason=[a-z_]+(;retry_after=[0-9]+)?$";
    let header = |required: bool, description: &str, schema: Value| json!({"required": required, "description": description, "schema": schema});
    json!({
        "Auto": header(true, decision, json!({"const": "auto"})),
        "Ask": header(true, decision, json!({
            "type": "string",
            "pattern": "^ask;approval_id=\"[a-z]+_[A-Za-z0-9_-]{1,64}\";expires_in=[0-9]+;on_timeout=deny$",
        })),
        "Forbid": header(true, decision, json!({"type": "string", "pattern": forbid})),
        "MayForbid": header(false, &format!("{decision} Absent with a protocol error and from a page, which are no decisions."), json!({
            "type": "string", "pattern": forbid,
        })),
        "RetryAfter": header(true, "Seconds until a retry can succeed.", json!({"type": "integer", "minimum": 1})),
        "Challenge": header(true, "Where OAuth clients find the authorization server (RFC 9728).", json!({
            "type": "string", "pattern": "^Bearer resource_metadata=\"https?://[^\"]+\"(, error=\"invalid_token\")?$",
        })),
        "ETag": header(true, "The document's version, for If-None-Match.", json!({
            "type": "string", "pattern": "^\"[A-Za-z0-9_-]{43}\"$",
        })),
        "CacheControl": header(true, "How long it may be kept.", json!({
            "const": format!("public, max-age={}", super::MAX_AGE),
        })),
        "AnyOrigin": header(true, "Scripts of any origin may read it.", json!({"const": "*"})),
    })
}

fn security_schemes(about: &About<'_>) -> Value {
    let mut all = Map::new();
    if about.signatures {
        all.insert("signature".into(), json!({
            "type": "apiKey",
            "in": "header",
            "name": "Signature",
            "description": "An HTTP message signature (RFC 9421), label `sig1`, with ECDSA P-256 over what `Signature-Input` \
                names. Its `keyid` is the key's thumbprint, and a `kid` of the operator's profile that `UCP-Agent` names.",
        }));
    }
    let scopes: Map<String, Value> = about
        .policy
        .tiers
        .iter()
        .map(|(scope, tiers)| (scope.to_owned(), json!(tiers)))
        .collect();
    let unsigned = match about.oauth {
        true => {
            " A token that is not bound to a key goes without a signature; a buyer's agent uses a client-credentials token."
        }
        false => "",
    };
    all.insert("bearer".into(), json!({
        "type": "http",
        "scheme": "bearer",
        "description": format!(
            "An OAuth access token: the seller's grant to the agent, introspected on every call. With a signature it is \
             bound to the signing key, and covered.{unsigned}"
        ),
        "x-scopes": scopes,
        "x-oauth-protected-resource": format!("{}{}", about.public_url, super::RESOURCE),
        "x-authorization-server": about.authorization_server,
    }));
    let name = match about.public_url.starts_with("https:") {
        true => "__Host-rctp_session",
        false => "rctp_session",
    };
    all.insert("session".into(), json!({
        "type": "apiKey",
        "in": "cookie",
        "name": name,
        "description": "The seller's session at the hosted pages, or the marketplace's own login in its place. No agent has it.",
    }));
    Value::Object(all)
}

// ---- The pages and the documents ------------------------------------------------------------------------------------

/// A JSON route of the hosted pages.
struct PageRoute {
    name: &'static str,
    method: Method,
    path: &'static str,
    summary: &'static str,
    body: Option<&'static str>,
    done: (u16, Option<&'static str>),
    /// Whether a seller must be signed in.
    session: bool,
    refused: &'static [u16],
}

impl PageRoute {
    fn operation(&self) -> Value {
        let mut parameters = Vec::new();
        if self.path.contains("{id}") {
            parameters.push(parameter("id"));
        }
        if self.method == Method::POST {
            parameters.push(parameter("Origin"));
        }
        let (status, schema) = self.done;
        let mut responses = Map::new();
        responses.insert(
            status.to_string(),
            match schema {
                Some(schema) => done(status, schema),
                None => json!({"description": "It was done."}),
            },
        );
        for (status, name) in REFUSED.iter().filter(|(s, _)| self.refused.contains(s)) {
            let name = format!("Page{name}");
            responses.insert(status.to_string(), reference("responses", &name));
        }
        let mut operation = json!({
            "operationId": self.name,
            "tags": ["pages"],
            "summary": self.summary,
            "parameters": parameters,
            "security": if self.session { json!([{"session": []}]) } else { json!([]) },
            "responses": responses,
            "x-rctp": {"caller": caller(Side::Browser)},
        });
        if let Some(body) = self.body {
            operation["requestBody"] = request_body(body, true);
        }
        operation
    }
}

#[rustfmt::skip]
const PAGES: [PageRoute; 9] = [
    PageRoute { name: "pending_approvals", method: Method::GET, path: "/approve/pending", summary: "What waits for the seller", body: None, done: (200, Some("approvals-pending")), session: true, refused: &[401, 403, 503] },
    PageRoute { name: "approval_page", method: Method::GET, path: "/approve/{id}/request", summary: "One approval, with the form of its terms", body: None, done: (200, Some("approval-page")), session: true, refused: &[401, 403, 404, 503] },
    PageRoute { name: "submit_terms", method: Method::POST, path: "/approve/{id}/terms", summary: "The seller's terms, to be approved next", body: Some("terms-submission"), done: (200, Some("terms-accepted")), session: true, refused: &[400, 401, 403, 404, 409, 413, 422, 503] },
    PageRoute { name: "approval_passkey", method: Method::POST, path: "/approve/{id}/options", summary: "What the passkey signs to approve", body: Some("empty-request"), done: (200, Some("passkey-options")), session: true, refused: &[400, 401, 403, 404, 409, 413, 503] },
    PageRoute { name: "begin_signin", method: Method::POST, path: "/signin/options", summary: "Begin to sign in with a passkey", body: Some("empty-request"), done: (200, Some("passkey-ceremony")), session: false, refused: &[400, 403, 413, 503] },
    PageRoute { name: "complete_signin", method: Method::POST, path: "/signin/complete", summary: "Sign in with the passkey's answer", body: Some("signin-completion"), done: (200, Some("seller-session")), session: false, refused: &[400, 401, 403, 413, 503] },
    PageRoute { name: "sign_out", method: Method::POST, path: "/signout", summary: "End the session", body: Some("empty-request"), done: (204, None), session: false, refused: &[400, 403, 413, 503] },
    PageRoute { name: "begin_enrolment", method: Method::POST, path: "/enroll/options", summary: "Begin to enrol a passkey, with a ticket", body: Some("enrolment-options"), done: (200, Some("passkey-ceremony")), session: false, refused: &[400, 401, 403, 413, 503] },
    PageRoute { name: "complete_enrolment", method: Method::POST, path: "/enroll/complete", summary: "Enrol the passkey", body: Some("enrolment-completion"), done: (201, Some("enrolment-answer")), session: false, refused: &[400, 401, 403, 413, 503] },
];

/// A public document.
struct PublicDocument {
    name: &'static str,
    path: &'static str,
    summary: &'static str,
    kind: &'static str,
    schema: Option<&'static str>,
}

impl PublicDocument {
    fn operation(&self) -> Value {
        let headers = json!({
            "ETag": header("ETag"),
            "Cache-Control": header("CacheControl"),
            "Access-Control-Allow-Origin": header("AnyOrigin"),
        });
        let names: Vec<&str> = match self.name {
            "get_schema" => schema::published().iter().map(|(name, _)| *name).collect(),
            "get_registry" => schema::REGISTRIES.iter().map(|(name, _)| *name).collect(),
            _ => Vec::new(),
        };
        let schema = match self.schema {
            Some(schema) => schema_reference(schema),
            None if self.kind.starts_with("text/") => json!({"type": "string"}),
            None => json!({"type": "object"}),
        };
        let mut responses = json!({
            "200": {"description": "The document.", "headers": headers, "content": {self.kind: {"schema": schema}}},
            "304": {"description": "The client has it already (If-None-Match).", "headers": headers},
        });
        let mut parameters = vec![json!({
            "name": "If-None-Match", "in": "header", "required": false,
            "description": "The ETag of what the client has.", "schema": {"type": "string"},
        })];
        if !names.is_empty() {
            parameters.push(json!({
                "name": "name", "in": "path", "required": true, "description": "Which one.",
                "schema": {"enum": names},
            }));
            responses["404"] = reference("responses", "NotFound");
        }
        json!({
            "operationId": self.name,
            "tags": ["discovery"],
            "summary": self.summary,
            "parameters": parameters,
            "security": [],
            "responses": responses,
            "x-rctp": {"caller": "anybody"},
        })
    }
}

#[rustfmt::skip]
const DOCUMENTS: [PublicDocument; 7] = [
    PublicDocument { name: "get_profile", path: "/.well-known/ucp", summary: "The gateway profile", kind: "application/json", schema: Some("gateway-profile") },
    PublicDocument { name: "get_protected_resource", path: "/.well-known/oauth-protected-resource", summary: "Where grants come from (RFC 9728)", kind: "application/json", schema: Some("protected-resource") },
    PublicDocument { name: "get_schema", path: "/schemas/{name}.json", summary: "A JSON Schema", kind: "application/schema+json", schema: None },
    PublicDocument { name: "get_registry", path: "/schemas/registries/{name}.json", summary: "A registry", kind: "application/json", schema: None },
    PublicDocument { name: "get_openapi", path: "/openapi.json", summary: "This document", kind: "application/json", schema: None },
    PublicDocument { name: "get_docs", path: "/docs", summary: "This document, for people", kind: "text/html", schema: None },
    PublicDocument { name: "get_docs_style", path: "/docs/docs.css", summary: "The style of that page", kind: "text/css", schema: None },
];
