//! Binding 13: the operations as tools over MCP. Each is held against its twin, the same operation over REST.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;
#[path = "common/signing.rs"]
mod signing;

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use common::{
    Agent, Answer, BUYER_TOKEN, CURRENCY, FLOOR, GATEWAY, LISTING, NOW, SELLER, SELLER_TOKEN,
    SELLER_UNBOUND, Service, deal_terms, get, grant, listing, offer_body, post, public_terms,
    with_token,
};
use http::{HeaderValue, Method, Request, Response, header, request::Parts};
use http_body_util::BodyExt;
use jsonschema::Validator;
use market::{BUYERS, Backing, Call, Market, OTHERS, around, fits, fresh_key, operators, send_to};
use serde_json::{Map, Value, json};
use signing::{IDEMPOTENCY_KEY, UCP_AGENT, plan, sign};
use tower::{Layer, ServiceExt, service_fn};
use tower_rctp::{
    Rctp, RctpBuilder,
    layer::{
        arrive::Answered,
        authenticate::{Mechanisms, NotRegistered, Registration, Registry, operators::Operator},
        body::Body,
        context::{Ids, NoRandomness},
        mcp::{MCP, REFUSED},
    },
    protocol::{
        VERSION,
        caller::{Caller, Role},
        decision::Decision,
        grant::GrantStatus,
        money::Money,
        operation::{Op, Side, TABLE, Verb},
        policy::{Tier, Tiers},
        record::{Subject, SubjectKind},
        schema,
        terms::{Floor, PrivateTerms},
    },
    service::tools::{CallLimit, Mcp, Tool, ToolResult, Tools, tool_fn},
    store::{BoxFuture, MemoryStore},
    wire::{
        digest::{CONTENT_DIGEST, content_digest, sha256},
        jws,
    },
};

// ---- A market over both transports --------------------------------------------------------------------------------

fn with_mcp(builder: RctpBuilder) -> RctpBuilder {
    builder.mcp(Mcp::builder("marketplace", "1.0.0"))
}

async fn market() -> Market {
    Market::with(Backing::memory().await, Tier::Auto, with_mcp).await
}

/// Who calls, and how that is shown.
#[derive(Clone, Copy)]
struct Who<'a> {
    agent: Option<&'a Agent>,
    token: Option<&'a str>,
}

fn signed_by(agent: &Agent) -> Who<'_> {
    Who {
        agent: Some(agent),
        token: None,
    }
}

fn seller(market: &Market) -> Who<'_> {
    Who {
        agent: Some(&market.seller),
        token: Some(SELLER_TOKEN),
    }
}

fn oauth(token: &str) -> Who<'_> {
    Who {
        agent: None,
        token: Some(token),
    }
}

const NOBODY: Who<'static> = Who {
    agent: None,
    token: None,
};

/// A POST to the endpoint; signed as binding 13.2 has it, without an `Idempotency-Key`.
fn posted(who: Who<'_>, message: &Value) -> Request<Bytes> {
    authenticated(who, post(MCP, message))
}

fn authenticated(who: Who<'_>, mut request: Request<Bytes>) -> Request<Bytes> {
    if let Some(token) = who.token {
        request = with_token(request, token);
    }
    if let Some(agent) = who.agent {
        let digest = content_digest(&sha256(request.body()));
        let headers = request.headers_mut();
        let profile = format!("profile=\"{}\"", agent.profile);
        headers.entry(UCP_AGENT).or_insert(profile.parse().unwrap());
        headers.insert(CONTENT_DIGEST, digest);
        let plan = plan(&request);
        sign(&mut request, agent.signer.key(), &plan);
    }
    request
}

fn message(tool: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
}

/// The arguments with a key of their own.
fn keyed(mut arguments: Value) -> Value {
    arguments["meta"]["idempotency-key"] = json!(fresh_key());
    arguments
}

async fn call(market: &Market, who: Who<'_>, tool: &str, arguments: Value) -> Answer {
    market.send(posted(who, &message(tool, arguments))).await
}

/// What a call came to: `{"decision", "result"}`, or `{"error": data}`.
fn came_to(answer: &Answer) -> Value {
    assert_eq!(answer.body["jsonrpc"], "2.0", "{:?}", answer.body);
    assert_eq!(answer.body["id"], 7, "{:?}", answer.body);
    if let Some(error) = answer.body.get("error") {
        assert_eq!(error["code"], REFUSED, "{error}");
        assert_eq!(error["message"], error["data"]["message"], "{error}");
        let unauthorized = answer.status == 401;
        let code = error["data"]["code"].as_str().unwrap();
        let of_401 = ["signature_invalid", "operator_unknown", "grant_invalid"].contains(&code);
        assert_eq!(unauthorized, of_401, "{error}");
        assert!(unauthorized || answer.status == 200, "{}", answer.status);
        return json!({ "error": error["data"] });
    }
    assert_eq!(answer.status, 200);
    let result = &answer.body["result"];
    assert_eq!(result["isError"], false, "{result}");
    let text = result["content"][0]["text"].as_str().unwrap();
    let text: Value = serde_json::from_str(text).unwrap();
    assert_eq!(text, result["structuredContent"]);
    text
}

/// The code that a call was refused with.
fn code(answer: &Answer) -> String {
    came_to(answer)["error"]["code"]
        .as_str()
        .unwrap_or_else(|| panic!("{:?}", answer.body))
        .to_owned()
}

async fn listed(market: &Market, who: Who<'_>) -> Vec<Value> {
    let answer = market.send(posted(who, &list())).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.body["result"]["tools"].as_array().unwrap().clone()
}

fn list() -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list"})
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().map(|t| t["name"].as_str().unwrap()).collect()
}

/// The tools of 13.3, as the binding writes them.
const TOOLS: [(&str, &str, Option<&str>); 14] = [
    ("create_listing", "POST /listings", Some("listing.create")),
    (
        "set_listing_terms",
        "POST /listings/{id}/terms",
        Some("listing.set_terms"),
    ),
    (
        "reprice_listing",
        "POST /listings/{id}/price",
        Some("listing.reprice"),
    ),
    (
        "answer_buyer",
        "POST /listings/{id}/answers",
        Some("listing.answer_buyer"),
    ),
    ("create_offer", "POST /offers", Some("offer.create")),
    (
        "counter_offer",
        "POST /offers/{id}/counter",
        Some("offer.counter"),
    ),
    (
        "accept_offer",
        "POST /offers/{id}/accept",
        Some("offer.accept"),
    ),
    ("decline_offer", "POST /offers/{id}/decline", None),
    ("get_offer", "GET /offers/{id}", None),
    ("get_approval", "GET /approvals/{id}", None),
    ("create_deal", "POST /deals", None),
    (
        "commit_to_ship",
        "POST /deals/{id}/commit-to-ship",
        Some("deal.commit_to_ship"),
    ),
    ("post_deal_event", "POST /deals/{id}/events", None),
    ("get_deal_events", "GET /deals/{id}/events", None),
];

// ---- Twins ----------------------------------------------------------------------------------------------------------

/// Two gateways with the same keys, operators, grants, clock and ids, each over a store of its own: one is called over REST,
/// the other over MCP, and both must come to the same.
struct Twins {
    market: Market,
    mcp: Service,
    beside: Rctp,
    store: market::Faulty,
    holder: Agent,
    /// The tools' schemas, of arguments and results.
    schemas: HashMap<String, [Validator; 2]>,
    subjects: Mutex<Vec<Subject>>,
    seen: Mutex<Vec<String>>,
}

/// The same ids on both sides.
#[derive(Default)]
struct Counted {
    next: AtomicU64,
}

impl Ids for Counted {
    fn random(&self) -> Result<[u8; 16], NoRandomness> {
        let next = self.next.fetch_add(1, Ordering::SeqCst);
        Ok((u128::from(next) + 1).to_be_bytes())
    }
}

/// An operation, as it would be asked over either transport.
struct Asked<'a> {
    who: Who<'a>,
    op: Op,
    id: Option<String>,
    body: Value,
    key: String,
    version: Option<&'static str>,
}

fn ask<'a>(who: Who<'a>, op: Op, id: &str, body: Value) -> Asked<'a> {
    Asked {
        who,
        op,
        id: (!id.is_empty()).then(|| id.to_owned()),
        body,
        key: fresh_key(),
        version: None,
    }
}

impl Asked<'_> {
    fn over_rest(&self) -> Request<Bytes> {
        let row = self.op.row();
        let path = row
            .path
            .replace("{id}", self.id.as_deref().unwrap_or_default());
        let mut request = match row.method {
            Method::GET => get(&path),
            _ => post(&path, &self.body),
        };
        let headers = request.headers_mut();
        if row.method == Method::POST && !self.key.is_empty() {
            headers.insert(IDEMPOTENCY_KEY, self.key.parse().unwrap());
        }
        self.finished(request)
    }

    fn over_mcp(&self) -> Request<Bytes> {
        let row = self.op.row();
        let mut arguments = self.body.as_object().cloned().unwrap_or_default();
        if let Some(id) = &self.id {
            let name = match row.path.split('/').nth(1).unwrap() {
                "listings" => "listing_id",
                "offers" => "offer_id",
                "deals" => "deal_id",
                _ => "approval_id",
            };
            arguments.insert(name.into(), json!(id));
        }
        let mut meta = Map::new();
        if let Some(agent) = self.who.agent {
            meta.insert("ucp-agent".into(), json!({"profile": agent.profile}));
        }
        if !self.key.is_empty() {
            meta.insert("idempotency-key".into(), json!(self.key));
        }
        arguments.insert("meta".into(), meta.into());
        self.finished(post(MCP, &message(row.name, arguments.into())))
    }

    fn finished(&self, mut request: Request<Bytes>) -> Request<Bytes> {
        if let Some(version) = self.version {
            let version = HeaderValue::from_static(version);
            request.headers_mut().insert("rctp-version", version);
        }
        let digested = !request.body().is_empty();
        let mut request = authenticated(self.who, request);
        if !digested {
            // Nothing to digest.
            request = self.without_digest(request);
        }
        request
    }

    fn without_digest(&self, mut request: Request<Bytes>) -> Request<Bytes> {
        let Some(agent) = self.who.agent else {
            return request;
        };
        for name in ["content-digest", "signature", "signature-input"] {
            request.headers_mut().remove(name);
        }
        let plan = plan(&request);
        sign(&mut request, agent.signer.key(), &plan);
        request
    }
}

impl Twins {
    async fn new(tier: Tier) -> Self {
        Self::with(tier, |b| b).await
    }

    async fn with(tier: Tier, settings: fn(RctpBuilder) -> RctpBuilder) -> Self {
        let holder = "https://holder.example/.well-known/ucp";
        let all = || operators().with(Operator::new(holder).role(Role::FundsHolder));
        let alike = move |b: RctpBuilder| settings(b.operators(all()).ids(Counted::default()));
        let market = Market::with(Backing::memory().await, tier, alike).await;
        let key = tower_rctp::wire::jwk::SigningKey::generate().unwrap();
        let profile = common::profile("holder", &[key.public_jwk()]).to_string();
        let documents = market.origins.documents.clone();
        documents
            .lock()
            .unwrap()
            .insert(holder.into(), profile.into());
        let holder = Agent {
            signer: tower_rctp::client::Signer::new(holder, key)
                .unwrap()
                .clock(market.clock.closure()),
            profile: holder.into(),
        };
        let store = market::Faulty::new(Arc::new(MemoryStore::default()));
        let beside = market.beside(Arc::new(store.clone()), |b| with_mcp(alike(b)));
        let floor = Floor::new(Money::new(FLOOR, CURRENCY));
        let private = PrivateTerms::new(Some(floor), [7; 16]);
        let published = beside.publish(listing(LISTING, SELLER), public_terms(), &private);
        published.await.unwrap();
        let mcp = around(&beside, beside.market());
        let mut schemas = HashMap::new();
        for who in [signed_by(&market.buyer), seller(&market)] {
            let answer = send_to(&mcp, posted(who, &list())).await;
            for tool in answer.body["result"]["tools"].as_array().unwrap() {
                let compiled = ["inputSchema", "outputSchema"].map(|member| {
                    let options = jsonschema::options().should_validate_formats(true);
                    options.build(&tool[member]).unwrap()
                });
                schemas.insert(text(&tool["name"]), compiled);
            }
        }
        Self {
            mcp,
            schemas,
            beside,
            store,
            holder,
            subjects: Mutex::new(vec![
                market.rctp.gateway_subject(),
                Subject::new(SubjectKind::Listing, LISTING),
            ]),
            seen: Mutex::default(),
            market,
        }
    }

    /// Asks both, and holds one answer against the other; returns what a tool's caller sees.
    async fn ask(&self, asked: Asked<'_>) -> Value {
        let rest = self.market.send(asked.over_rest()).await;
        let mcp = send_to(&self.mcp, asked.over_mcp()).await;
        let name = asked.op.name();
        let (expected, came) = (as_tool(&rest), came_to(&mcp));
        assert_eq!(unsigned(&came), unsigned(&expected), "{name}");
        let [told, twin] = [&mcp, &rest].map(|a| a.extensions.get::<Answered>().unwrap());
        assert_eq!(told.decision, twin.decision, "{name}");
        assert_eq!(told.refused, twin.refused, "{name}");
        assert_eq!(told.operator, twin.operator, "{name}");
        assert_eq!(told.replayed, twin.replayed, "{name}");
        assert_eq!(told.operation, twin.operation, "{name}");
        self.seen
            .lock()
            .unwrap()
            .push(match &came["error"]["code"] {
                Value::String(code) => code.clone(),
                _ => format!("{name} {}", came["decision"]["decision"].as_str().unwrap()),
            });
        let [input, output] = &self.schemas[name];
        let sent: Value = serde_json::from_slice(asked.over_mcp().body()).unwrap();
        if came.get("error").is_none() {
            output
                .validate(&came)
                .map_err(|e| format!("{name}: {e}"))
                .unwrap();
            let arguments = &sent["params"]["arguments"];
            input
                .validate(arguments)
                .map_err(|e| format!("{name}: {e}"))
                .unwrap();
        }
        self.look_at(&came);
        self.same_records().await;
        came
    }

    /// Remembers whose chains are to be compared.
    fn look_at(&self, came: &Value) {
        let result = &came["result"];
        for (member, kind) in [
            ("negotiation_id", SubjectKind::Negotiation),
            ("listing_id", SubjectKind::Listing),
            ("deal_id", SubjectKind::Deal),
        ] {
            if let Some(id) = result[member].as_str() {
                let subject = Subject::new(kind, id);
                let mut subjects = self.subjects.lock().unwrap();
                if !subjects.contains(&subject) {
                    subjects.push(subject);
                }
            }
        }
    }

    async fn same_records(&self) {
        let subjects = self.subjects.lock().unwrap().clone();
        for subject in subjects {
            let [rest, mcp] = [
                self.market.rctp.record(&subject).await.unwrap(),
                self.beside.record(&subject).await.unwrap(),
            ]
            .map(|entries| entries.iter().map(unsealed).collect::<Vec<_>>());
            assert_eq!(mcp, rest, "{subject:?}");
        }
    }

    fn seen(&self) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap().clone();
        seen.sort();
        seen.dedup();
        seen
    }
}

/// A REST answer as binding 13.4 has a tool say it.
fn as_tool(rest: &Answer) -> Value {
    let header = rest.headers.get("rctp-decision");
    let decision: Option<Decision> = header.map(|v| v.to_str().unwrap().parse().unwrap());
    if rest.status < 300 {
        let decision = decision.unwrap_or(Decision::Auto);
        return json!({"decision": decision, "result": rest.body});
    }
    let mut data = rest.body.as_object().unwrap().clone();
    let code = data.remove("error").unwrap();
    data.insert("code".into(), code);
    if let Some(decision) = decision {
        data.insert("decision".into(), json!(decision));
    }
    json!({ "error": data })
}

/// Without the signatures of JWSs, and what is computed from them: ECDSA draws a new one each time.
fn unsigned(value: &Value) -> Value {
    match value {
        Value::String(text) => match text.rsplit_once('.') {
            Some((rest, signature)) if signature.len() == 86 => json!(rest),
            _ => value.clone(),
        },
        Value::Array(items) => items.iter().map(unsigned).collect(),
        Value::Object(members) => members
            .iter()
            .filter(|(name, _)| !["prev_hash", "hash"].contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), unsigned(value)))
            .collect(),
        _ => value.clone(),
    }
}

fn unsealed(entry: &Value) -> Value {
    let entry = unsigned(entry);
    assert!(
        entry["seq"].is_number() || entry["body"].is_object(),
        "{entry}"
    );
    entry
}

fn price(amount: u64) -> Value {
    json!({"price": {"amount": amount, "currency": CURRENCY}})
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value}"))
        .to_owned()
}

fn new_listing() -> Value {
    json!({
        "title": "A tandem",
        "list_price": {"amount": 90_000, "currency": CURRENCY},
        "term_set": "goods-1",
        "proposed_terms": {"floor": {"amount": FLOOR, "currency": CURRENCY}},
    })
}

fn event(market: &Market, agent: &Agent, deal: &str, event: &str) -> Value {
    let payload = json!({
        "deal_id": deal,
        "event_id": format!("evt_{}", fresh_key()),
        "event": event,
        "occurred_at": market.clock.now(),
        "observation": "first_hand",
    });
    let bytes = payload.to_string().into_bytes();
    let jws = jws::sign("rctp-deal-event+jwt", &bytes, agent.signer.key()).unwrap();
    json!({ "event": jws })
}

// ---- 13: each tool is one REST operation ------------------------------------------------------------------------------

#[tokio::test]
async fn every_tool_comes_to_what_its_operation_comes_to_over_rest() {
    let twins = Twins::new(Tier::Auto).await;
    let market = &twins.market;
    let (buyer, seller) = (signed_by(&market.buyer), seller(market));
    let none = || json!({});

    let made = twins
        .ask(ask(seller, Op::CreateListing, "", new_listing()))
        .await;
    let tandem = text(&made["result"]["listing_id"]);
    let asked = twins
        .ask(ask(seller, Op::SetListingTerms, &tandem, none()))
        .await;
    let approval = text(&asked["decision"]["approval_id"]);
    twins
        .ask(ask(seller, Op::GetApproval, &approval, Value::Null))
        .await;
    twins
        .ask(ask(seller, Op::RepriceListing, LISTING, price(58_000)))
        .await;

    // Questions have no tool.
    let question = json!({"text": "Is the bell included?"});
    let path = format!("/listings/{LISTING}/questions");
    let question = common::post(&path, &question);
    let mut question = question;
    let key = fresh_key();
    question
        .headers_mut()
        .insert(IDEMPOTENCY_KEY, key.parse().unwrap());
    let question = authenticated(buyer, question);
    let again = |r: &Request<Bytes>| {
        let mut copy = Request::post(r.uri()).body(r.body().clone()).unwrap();
        *copy.headers_mut() = r.headers().clone();
        copy
    };
    let put = market.send(again(&question)).await;
    assert_eq!(send_to(&twins.mcp, question).await.status, 201);
    let answer = json!({"question_id": put.get("question_id"), "text": "It is."});
    twins
        .ask(ask(seller, Op::AnswerBuyer, LISTING, answer))
        .await;

    let offer = twins
        .ask(ask(buyer, Op::CreateOffer, "", offer_body(FLOOR)))
        .await;
    let offer = text(&offer["result"]["offer_id"]);
    let counter = json!({"deal_terms": deal_terms(55_000)});
    let counter = twins
        .ask(ask(seller, Op::CounterOffer, &offer, counter))
        .await;
    let counter = text(&counter["result"]["offer_id"]);
    twins
        .ask(ask(buyer, Op::GetOffer, &counter, Value::Null))
        .await;
    twins
        .ask(ask(seller, Op::GetOffer, &counter, Value::Null))
        .await;
    let mut better = offer_body(50_000);
    better["supersedes"] = json!(counter);
    let better = twins.ask(ask(buyer, Op::CreateOffer, "", better)).await;
    let better = text(&better["result"]["offer_id"]);
    let second = signed_by(&market.second);
    let other = twins
        .ask(ask(second, Op::CreateOffer, "", offer_body(FLOOR + 9)))
        .await;
    let other = text(&other["result"]["offer_id"]);
    twins
        .ask(ask(second, Op::DeclineOffer, &other, none()))
        .await;
    let accepted = twins
        .ask(ask(seller, Op::AcceptOffer, &better, none()))
        .await;

    // Each gateway redeems the checkout that it has signed itself, though any of the same key would do.
    let checkout = json!({"checkout": accepted["result"]["checkout"]});
    let deal = twins.ask(ask(buyer, Op::CreateDeal, "", checkout)).await;
    let deal = text(&deal["result"]["deal_id"]);
    let holder = signed_by(&twins.holder);
    let held = event(market, &twins.holder, &deal, "funds_held");
    twins.ask(ask(holder, Op::PostDealEvent, &deal, held)).await;
    twins
        .ask(ask(seller, Op::CommitToShip, &deal, none()))
        .await;
    let received = event(market, &market.buyer, &deal, "accepted");
    twins
        .ask(ask(buyer, Op::PostDealEvent, &deal, received))
        .await;
    twins
        .ask(ask(holder, Op::GetDealEvents, &deal, Value::Null))
        .await;

    let decided: Vec<String> = TOOLS
        .iter()
        .map(|(name, ..)| match *name {
            "set_listing_terms" => format!("{name} ask"),
            name => format!("{name} auto"),
        })
        .collect();
    let seen = twins.seen();
    assert!(decided.iter().all(|name| seen.contains(name)), "{seen:?}");
}

#[tokio::test]
async fn every_refusal_is_the_one_of_rest_with_the_same_entry() {
    let twins = Twins::new(Tier::Auto).await;
    let market = &twins.market;
    let (buyer, own) = (signed_by(&market.buyer), seller(market));
    let none = || json!({});
    for (token, status) in [
        ("token-revoked", GrantStatus::Revoked),
        ("token-expired", GrantStatus::Expired),
    ] {
        let jkt = Some(market.seller.kid());
        let mut grant = grant(SELLER, "client-seller", jkt, Tier::Auto, NOW + 9000);
        grant.grant_status = Some(status);
        market.grants.set(token, grant);
    }
    let narrow = {
        let jkt = Some(market.seller.kid());
        let mut grant = grant(SELLER, "client-seller", jkt, Tier::Auto, NOW + 9000);
        grant.scope = Some("dev.rctp.deal:offer_accept".into());
        grant
    };
    market.grants.set("token-narrow", narrow);
    let stranger = {
        let jkt = Some(market.seller.kid());
        grant("sub_else", "client-seller", jkt, Tier::Auto, NOW + 9000)
    };
    market.grants.set("token-else", stranger);
    let with = |token: &'static str| Who {
        agent: Some(&market.seller),
        token: Some(token),
    };
    let made = twins
        .ask(ask(buyer, Op::CreateOffer, "", offer_body(FLOOR + 1)))
        .await;
    let offer = text(&made["result"]["offer_id"]);
    let counter = |amount| json!({"deal_terms": deal_terms(amount)});
    let mut dollars = offer_body(FLOOR + 1);
    dollars["deal_terms"]["price"]["currency"] = json!("USD");
    let mut extra = offer_body(FLOOR + 1);
    extra["floor"] = json!(1);

    // Authentication and operator.
    for (op, id, body) in [
        (Op::AcceptOffer, &*offer, none()),
        (Op::CreateOffer, "", offer_body(FLOOR)),
        (Op::GetOffer, &*offer, Value::Null),
        (Op::GetApproval, "apr_1", Value::Null),
    ] {
        twins.ask(ask(NOBODY, op, id, body.clone())).await;
        twins
            .ask(ask(oauth("token-nobody-knows"), op, id, body.clone()))
            .await;
        twins.ask(ask(oauth(SELLER_TOKEN), op, id, body)).await;
    }
    // The version.
    let mut old = ask(buyer, Op::CreateOffer, "", offer_body(FLOOR));
    old.version = Some("\"2026-11-draft4\"");
    assert_eq!(twins.ask(old).await["error"]["code"], "unsupported_version");
    let mut current = ask(buyer, Op::GetOffer, &offer, Value::Null);
    current.version = Some("\"2026-11-draft5\"");
    assert_eq!(
        twins.ask(current).await["decision"],
        json!({"decision": "auto"})
    );
    // The grant.
    for token in [
        "token-revoked",
        "token-expired",
        "token-narrow",
        "token-else",
    ] {
        twins
            .ask(ask(with(token), Op::CounterOffer, &offer, counter(55_000)))
            .await;
        twins
            .ask(ask(with(token), Op::CreateListing, "", new_listing()))
            .await;
        twins
            .ask(ask(with(token), Op::RepriceListing, LISTING, price(50_000)))
            .await;
        twins
            .ask(ask(with(token), Op::DeclineOffer, "off_none", none()))
            .await;
    }
    twins
        .ask(ask(
            signed_by(&market.seller),
            Op::CreateListing,
            "",
            new_listing(),
        ))
        .await;
    twins
        .ask(ask(
            oauth(BUYER_TOKEN),
            Op::CreateListing,
            "",
            new_listing(),
        ))
        .await;
    twins
        .ask(ask(own, Op::CreateOffer, "", offer_body(FLOOR)))
        .await;
    twins
        .ask(ask(
            oauth(SELLER_UNBOUND),
            Op::CreateOffer,
            "",
            offer_body(FLOOR),
        ))
        .await;
    twins.ask(ask(buyer, Op::AcceptOffer, &offer, none())).await;
    twins
        .ask(ask(buyer, Op::CounterOffer, &offer, counter(55_000)))
        .await;
    twins
        .ask(ask(
            signed_by(&market.other),
            Op::AcceptOffer,
            &offer,
            none(),
        ))
        .await;
    // The body.
    twins
        .ask(ask(buyer, Op::CreateOffer, "", extra.clone()))
        .await;
    twins
        .ask(ask(with("token-revoked"), Op::CounterOffer, &offer, extra))
        .await;
    twins
        .ask(ask(
            buyer,
            Op::CreateOffer,
            "",
            json!({"listing_id": LISTING}),
        ))
        .await;
    // The key.
    let mut missing = ask(oauth(BUYER_TOKEN), Op::CreateOffer, "", offer_body(FLOOR));
    missing.key = String::new();
    assert_eq!(twins.ask(missing).await["error"]["code"], "invalid_request");
    let mut weak = ask(buyer, Op::CreateOffer, "", offer_body(FLOOR));
    weak.key = "short".into();
    assert_eq!(twins.ask(weak).await["error"]["code"], "invalid_request");
    let used = ask(buyer, Op::CreateOffer, "", offer_body(FLOOR + 2));
    let key = used.key.clone();
    twins.ask(used).await;
    let mut other = ask(buyer, Op::CreateOffer, "", offer_body(FLOOR + 3));
    other.key.clone_from(&key);
    assert_eq!(
        twins.ask(other).await["error"]["code"],
        "idempotency_conflict"
    );
    // What is not there, or is another's.
    twins
        .ask(ask(buyer, Op::GetOffer, "off_none", Value::Null))
        .await;
    twins
        .ask(ask(
            signed_by(&market.other),
            Op::GetOffer,
            &offer,
            Value::Null,
        ))
        .await;
    twins
        .ask(ask(own, Op::GetApproval, "apr_none", Value::Null))
        .await;
    twins
        .ask(ask(buyer, Op::GetDealEvents, "deal_none", Value::Null))
        .await;
    // Terms, floor and budget, of both sides.
    twins.ask(ask(buyer, Op::CreateOffer, "", dollars)).await;
    for _ in 0..5 {
        twins
            .ask(ask(buyer, Op::CreateOffer, "", offer_body(FLOOR - 1)))
            .await;
    }
    twins
        .ask(ask(own, Op::CounterOffer, &offer, counter(FLOOR - 1)))
        .await;
    twins
        .ask(ask(own, Op::RepriceListing, LISTING, price(FLOOR - 1)))
        .await;
    // A refusal that is repeated is the stored one.
    let low = ask(
        signed_by(&market.second),
        Op::CreateOffer,
        "",
        offer_body(FLOOR - 1),
    );
    let key = low.key.clone();
    twins.ask(low).await;
    let mut again = ask(
        signed_by(&market.second),
        Op::CreateOffer,
        "",
        offer_body(FLOOR - 1),
    );
    again.key = key;
    assert_eq!(twins.ask(again).await["error"]["code"], "below_floor");
    // Checkouts and events.
    let forged = json!({"checkout": "e30.e30.AA"});
    twins
        .ask(ask(buyer, Op::CreateDeal, "", forged.clone()))
        .await;
    twins
        .ask(ask(oauth(BUYER_TOKEN), Op::CreateDeal, "", forged))
        .await;
    // Reserved, replayed, released too early.
    let second = twins
        .ask(ask(
            signed_by(&market.second),
            Op::CreateOffer,
            "",
            offer_body(FLOOR + 5),
        ))
        .await;
    let second = text(&second["result"]["offer_id"]);
    let accepted = twins.ask(ask(own, Op::AcceptOffer, &offer, none())).await;
    twins.ask(ask(own, Op::AcceptOffer, &offer, none())).await;
    twins.ask(ask(own, Op::AcceptOffer, &second, none())).await;
    let checkout = json!({"checkout": accepted["result"]["checkout"]});
    let deal = twins.ask(ask(buyer, Op::CreateDeal, "", checkout)).await;
    let deal = text(&deal["result"]["deal_id"]);
    let early = event(market, &market.buyer, &deal, "accepted");
    twins.ask(ask(buyer, Op::PostDealEvent, &deal, early)).await;
    let foreign = event(market, &market.second, &deal, "accepted");
    twins
        .ask(ask(buyer, Op::PostDealEvent, &deal, foreign))
        .await;
    // An offer past its time.
    let mut short = offer_body(FLOOR + 6);
    short["expires_at"] = json!(market.clock.now().plus(50));
    let mut other = short.clone();
    other["listing_id"] = json!("lst_other");
    let floor = Floor::new(Money::new(FLOOR, CURRENCY));
    for rctp in [&market.rctp, &twins.beside] {
        let private = PrivateTerms::new(Some(floor.clone()), [7; 16]);
        let listing = listing("lst_other", SELLER);
        rctp.publish(listing, public_terms(), &private)
            .await
            .unwrap();
    }
    let short = twins.ask(ask(buyer, Op::CreateOffer, "", other)).await;
    let short = text(&short["result"]["offer_id"]);
    market.clock.advance(55);
    twins.ask(ask(own, Op::AcceptOffer, &short, none())).await;
    // What both depend on is out of reach.
    market.grants.down.store(true, Ordering::SeqCst);
    twins.ask(ask(own, Op::AcceptOffer, &short, none())).await;
    market.grants.down.store(false, Ordering::SeqCst);
    for store in [&market.store, &twins.store] {
        store.take_down(Call::Commit);
    }
    twins
        .ask(ask(buyer, Op::CreateOffer, "", offer_body(FLOOR)))
        .await;
    for store in [&market.store, &twins.store] {
        store.mend();
    }

    let seen = twins.seen();
    let reasons = tower_rctp::protocol::refusal::Reason::ALL.map(|r| r.as_str());
    let protocol = [
        "invalid_request",
        "not_found",
        "unsupported_version",
        "idempotency_conflict",
        "unavailable",
    ];
    for code in reasons.iter().chain(&protocol) {
        assert!(
            seen.iter().any(|seen| seen == code),
            "{code} was not seen: {seen:?}"
        );
    }
}

#[tokio::test]
async fn what_is_asked_is_asked_over_mcp_too() {
    let twins = Twins::new(Tier::Ask).await;
    let market = &twins.market;
    let (buyer, own) = (signed_by(&market.buyer), seller(market));
    let offer = twins
        .ask(ask(buyer, Op::CreateOffer, "", offer_body(FLOOR + 1)))
        .await;
    let offer = text(&offer["result"]["offer_id"]);
    let asked = twins
        .ask(ask(own, Op::AcceptOffer, &offer, json!({})))
        .await;
    assert_eq!(asked["decision"]["decision"], "ask");
    assert_eq!(asked["decision"]["on_timeout"], "deny");
    fits("decision", &asked["decision"]);
    fits("approval-asked", &asked["result"]);
    let approval = text(&asked["decision"]["approval_id"]);
    let pending = twins
        .ask(ask(own, Op::GetApproval, &approval, Value::Null))
        .await;
    assert_eq!(pending["result"]["status"], "pending");
    let waiting = twins
        .ask(ask(buyer, Op::GetOffer, &offer, Value::Null))
        .await;
    assert_eq!(waiting["result"]["state"], "awaiting_approval");
}

#[tokio::test]
async fn oauth_clients_come_to_the_same_without_any_header_of_ours() {
    let twins = Twins::new(Tier::Auto).await;
    let (buyer, own) = (oauth(BUYER_TOKEN), oauth(SELLER_UNBOUND));
    let offer = twins
        .ask(ask(buyer, Op::CreateOffer, "", offer_body(FLOOR + 1)))
        .await;
    let offer = text(&offer["result"]["offer_id"]);
    twins
        .ask(ask(buyer, Op::GetOffer, &offer, Value::Null))
        .await;
    let accepted = twins
        .ask(ask(own, Op::AcceptOffer, &offer, json!({})))
        .await;
    assert_eq!(accepted["result"]["state"], "accepted");
    twins.market.grants.revoke(SELLER_UNBOUND);
    let revoked = twins
        .ask(ask(own, Op::DeclineOffer, &offer, json!({})))
        .await;
    assert_eq!(revoked["error"]["code"], "grant_revoked");
}

// ---- 13.1 and what is published ---------------------------------------------------------------------------------------

#[tokio::test]
async fn the_profile_lists_the_endpoint_where_it_is_served() {
    let profile = market().await.rctp.profile();
    fits("gateway-profile", &profile);
    let endpoint = |transport: &str, path: &str| json!({"version": VERSION, "transport": transport, "endpoint": format!("{GATEWAY}{path}")});
    let services = json!([endpoint("rest", "/"), endpoint("mcp", "/mcp")]);
    assert_eq!(profile["ucp"]["services"]["dev.rctp"], services);

    let without = common::World::new().await;
    let services = json!([endpoint("rest", "/")]);
    assert_eq!(
        without.rctp.profile()["ucp"]["services"]["dev.rctp"],
        services
    );
    let passed = without.send(post(MCP, &list())).await;
    assert_eq!(passed.status, 404, "nothing of ours answers there");
}

/// A public document, as somebody without any credentials reads it.
async fn read(rctp: &Rctp, path: &str) -> Answer {
    let discovery = rctp.discovery("https://login.example");
    let request = get(path).map(|_| ());
    Answer::of(discovery.oneshot(request).await.unwrap()).await
}

#[tokio::test]
async fn the_openrpc_document_says_what_the_tools_say() {
    let market = market().await;
    let document = read(&market.rctp, "/schemas/mcp.openrpc.json").await;
    assert_eq!(document.status, 200);
    let document = document.body;
    assert_eq!(document["servers"][0]["url"], format!("{GATEWAY}/mcp"));
    let methods = document["methods"].as_array().unwrap();
    let expected: Vec<Value> = TABLE
        .iter()
        .filter(|row| row.tool)
        .map(|row| json!(row.name))
        .collect();
    let named: Vec<Value> = methods.iter().map(|m| m["name"].clone()).collect();
    assert_eq!(named, expected);
    let mut tools = listed(&market, signed_by(&market.buyer)).await;
    tools.extend(listed(&market, seller(&market)).await);
    for method in methods {
        let tool = tools
            .iter()
            .find(|tool| tool["name"] == method["name"])
            .unwrap();
        let properties = tool["inputSchema"]["properties"].as_object().unwrap();
        let params = method["params"].as_array().unwrap();
        assert_eq!(params.len(), properties.len());
        for param in params {
            // The same, but that its definitions are the document's.
            let schema = param["schema"]
                .to_string()
                .replace("#/components/schemas/", "#/$defs/");
            let name = param["name"].as_str().unwrap();
            assert_eq!(schema, properties[name].to_string(), "{name}");
            let required = tool["inputSchema"]["required"].as_array().unwrap();
            assert_eq!(
                param["required"],
                required.contains(&param["name"]),
                "{name}"
            );
        }
    }
    // Every reference resolves within it.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(
            document
                .pointer(pointer)
                .is_some_and(|schema| !schema.is_null()),
            "{pointer}"
        );
    }
    let without = common::World::new().await;
    assert_eq!(
        read(&without.rctp, "/schemas/mcp.openrpc.json")
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn the_committed_document_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/mcp.openrpc.json");
    let document = read(&market().await.rctp, "/schemas/mcp.openrpc.json").await;
    let mut generated = serde_json::to_string_pretty(&document.body).unwrap();
    generated.push('\n');
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "schemas/mcp.openrpc.json is not what the table and the schemas come to; run UPDATE=1 cargo test --test \
         binding_13_mcp, look at the difference, and commit it"
    );
}

#[tokio::test]
async fn oauth_clients_find_their_way_from_the_first_401() {
    let market = market().await;
    let initialize = json!({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"},
    }});
    let refused = market.send(post(MCP, &initialize)).await;
    assert_eq!(refused.status, 401);
    assert_eq!(code(&refused), "operator_unknown");
    let challenge = refused.headers[header::WWW_AUTHENTICATE].to_str().unwrap();
    let metadata = format!("{GATEWAY}/.well-known/oauth-protected-resource/mcp");
    let scopes: Vec<&str> = Verb::GRANTED
        .iter()
        .filter_map(|verb| verb.scope())
        .collect();
    let (before, scope) = challenge.split_once(", scope=").unwrap();
    assert_eq!(before, format!("Bearer resource_metadata=\"{metadata}\""));
    let scope: std::collections::BTreeSet<_> = scope.trim_matches('"').split(' ').collect();
    assert_eq!(scope, scopes.into_iter().collect());
    // RFC 9728 §3.3: the resource is the URL that its metadata was found by.
    for (path, resource) in [
        (
            "/.well-known/oauth-protected-resource/mcp",
            format!("{GATEWAY}/mcp"),
        ),
        ("/.well-known/oauth-protected-resource", GATEWAY.to_owned()),
    ] {
        let found = read(&market.rctp, path).await;
        assert_eq!(found.status, 200, "{path}");
        fits("protected-resource", &found.body);
        assert_eq!(found.body["resource"], resource);
        assert_eq!(
            found.body["authorization_servers"],
            json!(["https://login.example"])
        );
    }
    let initialized = market
        .send(posted(oauth(SELLER_UNBOUND), &initialize))
        .await;
    assert_eq!(
        initialized.body["result"]["serverInfo"]["name"],
        "marketplace"
    );
    // A token that has expired is refreshed from there, whatever the message.
    market.grants.change(SELLER_UNBOUND, |i| i.exp = Some(NOW));
    for message in [
        initialize,
        list(),
        message("get_offer", json!({"offer_id": "off_1"})),
    ] {
        let expired = market.send(posted(oauth(SELLER_UNBOUND), &message)).await;
        assert_eq!(
            (expired.status, &*code(&expired)),
            (401, "grant_invalid"),
            "{message}"
        );
        assert_eq!(
            expired.headers[header::WWW_AUTHENTICATE],
            format!("{challenge}, error=\"invalid_token\""),
            "{message}"
        );
    }
}

// ---- 13.2 -------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_signed_post_covers_what_binding_13_2_names() {
    let market = market().await;
    let who = seller(&market);
    let body = message("decline_offer", keyed(json!({"offer_id": "off_none"})));
    assert_eq!(code(&market.send(posted(who, &body)).await), "not_found");
    for left_out in [
        "@method",
        "@authority",
        "@path",
        "ucp-agent",
        "content-digest",
        "content-type",
        "authorization",
    ] {
        let mut request = posted(who, &body);
        for name in ["signature", "signature-input"] {
            request.headers_mut().remove(name);
        }
        let mut plan = plan(&request);
        let whole = plan.components.len();
        plan.components
            .retain(|component| component.to_string().trim_matches('"') != left_out);
        assert_eq!(plan.components.len(), whole - 1, "{left_out}");
        sign(&mut request, market.seller.signer.key(), &plan);
        let answer = market.send(request).await;
        assert_eq!(
            (answer.status, &*code(&answer)),
            (401, "signature_invalid"),
            "{left_out}"
        );
    }
    // The body that was signed is the one that counts.
    let mut changed = posted(who, &body);
    *changed.body_mut() = message("accept_offer", keyed(json!({"offer_id": "off_none"})))
        .to_string()
        .into();
    assert_eq!(code(&market.send(changed).await), "signature_invalid");
    // The key of the REST call need not be there; where it is, it is covered.
    let mut request = posted(who, &body);
    request
        .headers_mut()
        .insert(IDEMPOTENCY_KEY, signing::fresh_key());
    assert_eq!(code(&market.send(request).await), "signature_invalid");
}

#[tokio::test]
async fn meta_names_the_profile_that_the_request_was_authenticated_for() {
    let market = market().await;
    let offer = || keyed(offer_body(FLOOR + 1));
    let naming = |profile: Value| {
        let mut arguments = offer();
        arguments["meta"]["ucp-agent"] = profile;
        arguments
    };
    for who in [signed_by(&market.buyer), oauth(BUYER_TOKEN)] {
        let before = market.gateway_chain().await.len();
        for other in [
            json!({"profile": OTHERS}),
            json!({"profile": format!("{BUYERS}/")}),
            json!({"profile": [BUYERS]}),
            json!({"profile": BUYERS, "tier": "auto"}),
            json!({}),
            json!(BUYERS),
            Value::Null,
        ] {
            let answer = call(&market, who, "create_offer", naming(other.clone())).await;
            assert_eq!(
                (answer.status, &*code(&answer)),
                (401, "operator_unknown"),
                "{other}"
            );
        }
        let chain = market.gateway_chain().await;
        assert_eq!(
            chain.len(),
            before + 7,
            "a proven caller whose claim fails is recorded"
        );
        let entry = &chain.last().unwrap();
        assert_eq!(entry["agent_profile"], BUYERS, "{entry}");
        assert_eq!(entry["decision"]["action"], "offer.create", "{entry}");
        let own = call(
            &market,
            who,
            "create_offer",
            naming(json!({"profile": BUYERS})),
        )
        .await;
        assert_eq!(came_to(&own)["decision"]["decision"], "auto");
        // What is in the header is enough, and with OAuth nothing is.
        let none = call(&market, who, "create_offer", offer()).await;
        assert_eq!(came_to(&none)["decision"]["decision"], "auto");
    }
    // A header of another profile (V35).
    let mut request = posted(
        oauth(BUYER_TOKEN),
        &message("create_offer", naming(json!({"profile": OTHERS}))),
    );
    let profile = format!("profile=\"{OTHERS}\"");
    request
        .headers_mut()
        .insert(UCP_AGENT, profile.parse().unwrap());
    assert_eq!(code(&market.send(request).await), "operator_unknown");
}

#[tokio::test]
async fn tools_that_write_need_a_key_in_meta() {
    let market = market().await;
    let who = signed_by(&market.buyer);
    let with_header = |arguments: Value, key: &str| {
        let mut request = post(MCP, &message("create_offer", arguments));
        request
            .headers_mut()
            .insert(IDEMPOTENCY_KEY, key.parse().unwrap());
        authenticated(who, request)
    };
    let (key, other) = (fresh_key(), fresh_key());
    let mut arguments = offer_body(FLOOR + 1);
    assert_eq!(
        code(&call(&market, who, "create_offer", arguments.clone()).await),
        "invalid_request"
    );
    let header_alone = market.send(with_header(arguments.clone(), &key)).await;
    assert_eq!(code(&header_alone), "invalid_request");
    for wrong in [
        json!(7),
        json!(null),
        json!("a\nb"),
        json!("too-short"),
        json!("x".repeat(256)),
    ] {
        arguments["meta"] = json!({"idempotency-key": wrong});
        let answer = call(&market, who, "create_offer", arguments.clone()).await;
        assert_eq!(code(&answer), "invalid_request", "{wrong}");
    }
    arguments["meta"] = json!({"idempotency-key": key});
    let disagreeing = market.send(with_header(arguments.clone(), &other)).await;
    assert_eq!(code(&disagreeing), "invalid_request");
    let agreeing = market.send(with_header(arguments.clone(), &key)).await;
    let first = came_to(&agreeing);
    assert_eq!(first["decision"]["decision"], "auto");
    // A retry is another message, written in another way, and has no second effect.
    let again = format!(
        r#"{{"method":"tools/call","id":7,"jsonrpc":"2.0","params":{{"arguments":
            {{"meta":{{"idempotency-key":"{key}"}},"deal_terms":{},"listing_id":"{LISTING}"}},"name":"create_offer"}}}}"#,
        arguments["deal_terms"]
            .to_string()
            .replace("41238", "41238.0"),
    );
    let mut request = post(MCP, &json!({}));
    *request.body_mut() = again.into();
    let repeated = market.send(authenticated(who, request)).await;
    assert_eq!(came_to(&repeated), first);
    assert!(repeated.extensions.get::<Answered>().unwrap().replayed);
    assert_eq!(market.offers_on(LISTING).await.len(), 1);
    // Over REST it is the same request, but for the body's own bytes.
    let changed = {
        let mut arguments = arguments.clone();
        arguments["deal_terms"] = deal_terms(FLOOR + 2);
        call(&market, who, "create_offer", arguments).await
    };
    assert_eq!(code(&changed), "idempotency_conflict");
    // Reading needs none.
    let id = text(&first["result"]["offer_id"]);
    let read = call(&market, who, "get_offer", json!({"offer_id": id})).await;
    assert_eq!(came_to(&read)["result"]["offer_id"], json!(id));
}

#[tokio::test]
async fn the_other_arguments_are_the_body_and_the_ids_of_the_path() {
    let market = market().await;
    let who = seller(&market);
    let offer = market.open_offer(FLOOR + 1).await;
    for id in [
        json!(null),
        json!(7),
        json!(""),
        json!("../deals"),
        json!("off_1/accept"),
        json!("off_1?x=1"),
        json!("off_1%2Faccept"),
        json!("OFF_1"),
        json!([offer]),
        json!(format!("{offer}/../{offer}")),
    ] {
        let arguments = keyed(json!({"offer_id": id}));
        assert_eq!(
            code(&call(&market, who, "decline_offer", arguments).await),
            "invalid_request",
            "{id}"
        );
    }
    let missing = call(&market, who, "decline_offer", keyed(json!({}))).await;
    assert_eq!(code(&missing), "invalid_request");
    for (member, value) in [
        ("floor", json!(1)),
        ("tier", json!("auto")),
        ("listing_id", json!(LISTING)),
        ("id", json!(offer)),
    ] {
        let mut arguments = keyed(json!({"offer_id": offer}));
        arguments[member] = value;
        let answer = call(&market, who, "accept_offer", arguments).await;
        assert_eq!(code(&answer), "invalid_request", "{member}");
        let arguments = json!({"offer_id": offer, member: 1});
        let answer = call(&market, who, "get_offer", arguments).await;
        assert_eq!(code(&answer), "invalid_request", "{member}");
    }
    for meta in [
        json!([]),
        json!("x"),
        json!(null),
        json!({"floor": 1}),
        json!({"idempotency-key": fresh_key(), "tier": "auto"}),
    ] {
        let answer = call(
            &market,
            who,
            "accept_offer",
            json!({"offer_id": offer, "meta": meta}),
        )
        .await;
        assert_eq!(code(&answer), "invalid_request", "{meta}");
    }
    let accepted = call(
        &market,
        who,
        "accept_offer",
        keyed(json!({"offer_id": offer})),
    )
    .await;
    assert_eq!(came_to(&accepted)["result"]["state"], "accepted");
}

#[tokio::test]
async fn the_record_of_a_deal_is_read_in_pages() {
    let market = market().await;
    let who = signed_by(&market.buyer);
    let offer = market.open_offer(FLOOR + 1).await;
    let checkout = market.accept(&offer).await.get("checkout");
    let deal = market
        .buyer_post("/deals", &json!({"checkout": checkout}))
        .await
        .get("deal_id");
    let page = |from: u64| json!({"deal_id": deal, "from": from, "limit": 1});
    let first = came_to(&call(&market, who, "get_deal_events", page(0)).await);
    let rest = market
        .buyer_get(&format!("/deals/{deal}/events?from=0&limit=1"))
        .await;
    assert_eq!(first["result"]["entries"], rest.body["entries"]);
    assert_eq!(first["result"]["entries"].as_array().unwrap().len(), 1);
    for wrong in [
        json!({"from": -1}),
        json!({"limit": "1"}),
        json!({"limit": 1.5}),
        json!({"limit": 0}),
    ] {
        let mut arguments = wrong.clone();
        arguments["deal_id"] = json!(deal);
        assert_eq!(
            code(&call(&market, who, "get_deal_events", arguments).await),
            "invalid_request",
            "{wrong}"
        );
    }
}

// ---- 13.3 -------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn the_tools_are_those_of_the_table() {
    let market = market().await;
    let mut tools = listed(&market, signed_by(&market.buyer)).await;
    for tool in listed(&market, seller(&market)).await {
        if !tools.contains(&tool) {
            tools.push(tool);
        }
    }
    for (name, rest, verb) in TOOLS {
        let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
        let row = TABLE.iter().find(|row| row.name == name).unwrap();
        assert_eq!(format!("{} {}", row.method, row.path), rest);
        assert_eq!(row.verb.map(Verb::as_str), verb);
        let (input, output) = (&tool["inputSchema"], &tool["outputSchema"]);
        for schema in [input, output] {
            assert_eq!(schema["type"], "object");
            assert_eq!(schema["additionalProperties"], false);
            assert!(
                !schema.to_string().contains("https://rctp.dev"),
                "{name} refers to what it has not"
            );
        }
        assert_eq!(
            tool["annotations"]["readOnlyHint"],
            row.method == Method::GET
        );
        // The body's members are those of its schema.
        let published = schema::published();
        let body = row.body.map(|body| {
            let (_, text) = published.iter().find(|(name, _)| *name == body).unwrap();
            serde_json::from_str::<Value>(text).unwrap()
        });
        let mut members: Vec<String> = body
            .iter()
            .flat_map(|b| b["properties"].as_object().unwrap().keys().cloned())
            .collect();
        members.push("meta".into());
        if row.path.contains("{id}") {
            let kind = row.path.split('/').nth(1).unwrap().trim_end_matches('s');
            members.push(format!("{kind}_id"));
        }
        if name == "get_deal_events" {
            members.extend(["from".into(), "limit".into()]);
        }
        members.sort();
        let listed: Vec<String> = input["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        assert_eq!(listed, members, "{name}");
    }
    assert_eq!(tools.len(), TOOLS.len());
}

#[tokio::test]
async fn a_list_has_what_its_caller_may_use() {
    let market = market().await;
    let common = [
        "decline_offer",
        "get_offer",
        "post_deal_event",
        "get_deal_events",
    ];
    let buyers = [
        "create_offer",
        "decline_offer",
        "get_offer",
        "create_deal",
        "post_deal_event",
        "get_deal_events",
    ];
    let sellers: Vec<&str> = TOOLS
        .iter()
        .map(|(name, ..)| *name)
        .filter(|name| !["create_offer", "create_deal"].contains(name))
        .collect();
    let in_order = |expected: &[&str]| -> Vec<String> {
        let rows = TABLE.iter().map(|row| row.name.to_owned());
        rows.filter(|name| expected.contains(&name.as_str()))
            .collect()
    };
    let unsigned = |expected: &[&str]| -> Vec<String> {
        let all = in_order(expected);
        all.into_iter()
            .filter(|name| !["create_deal", "post_deal_event"].contains(&name.as_str()))
            .collect()
    };
    assert_eq!(
        names(&listed(&market, signed_by(&market.buyer)).await),
        in_order(&buyers)
    );
    assert_eq!(
        names(&listed(&market, seller(&market)).await),
        in_order(&sellers)
    );
    assert_eq!(
        names(&listed(&market, oauth(BUYER_TOKEN)).await),
        unsigned(&buyers),
        "R23"
    );
    assert_eq!(
        names(&listed(&market, oauth(SELLER_UNBOUND)).await),
        unsigned(&sellers),
        "R23"
    );
    // Only what was granted.
    market.grants.change(SELLER_TOKEN, |i| {
        i.scope = Some("dev.rctp.deal:offer_accept".into())
    });
    let mut narrow = common.to_vec();
    narrow.extend(["accept_offer", "get_approval"]);
    assert_eq!(
        names(&listed(&market, seller(&market)).await),
        in_order(&narrow)
    );
    // A list is for one caller: no cache may show it to another.
    let meta = |method: &str| {
        json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }}})
    };
    let mut request = post(MCP, &meta("tools/list"));
    for (name, value) in [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/list"),
    ] {
        request
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    let answer = market.send(authenticated(seller(&market), request)).await;
    assert_eq!(answer.body["result"]["cacheScope"], "private");
    // With a grant that is gone there is nothing to list.
    market.grants.revoke(SELLER_TOKEN);
    assert_eq!(
        code(&market.send(posted(seller(&market), &list())).await),
        "grant_revoked"
    );
    let strangers = market.send(post(MCP, &list())).await;
    assert_eq!(
        (strangers.status, &*code(&strangers)),
        (401, "operator_unknown")
    );
}

#[tokio::test]
async fn there_is_no_counter_where_counters_are_not_offered() {
    let settings = |b| with_mcp(b).tiers(Tiers::default().withhold(Verb::OfferCounter));
    let market = Market::with(Backing::memory().await, Tier::Auto, settings).await;
    let who = seller(&market);
    let tools = listed(&market, who).await;
    assert!(!names(&tools).contains(&"counter_offer"));
    assert!(names(&tools).contains(&"accept_offer"));
    let offer = market.open_offer(FLOOR + 1).await;
    let arguments = keyed(json!({"offer_id": offer, "deal_terms": deal_terms(50_000)}));
    assert_eq!(
        code(&call(&market, who, "counter_offer", arguments).await),
        "action_forbidden"
    );
}

#[tokio::test]
async fn inv_3_what_nobody_may_do_is_no_tool() {
    let market = market().await;
    for row in TABLE.iter().filter(|row| !row.tool) {
        let answer = call(
            &market,
            seller(&market),
            row.name,
            keyed(json!({"deal_id": "deal_1"})),
        )
        .await;
        assert_eq!(answer.body["error"]["code"], -32602, "{}", row.name);
        let listed = listed(&market, seller(&market)).await;
        assert!(!names(&listed).contains(&row.name));
    }
    assert!(
        TABLE
            .iter()
            .all(|row| !row.tool || row.side != Side::Browser)
    );
}

// ---- 13.4 and R34 -----------------------------------------------------------------------------------------------------

#[tokio::test]
async fn inv_1_an_error_says_nothing_private() {
    let market = market().await;
    let who = signed_by(&market.buyer);
    let low = call(&market, who, "create_offer", keyed(offer_body(FLOOR - 1))).await;
    assert_eq!(
        came_to(&low)["error"]["decision"],
        json!({"decision": "forbid", "action": "offer.create", "reason": "below_floor"})
    );
    let other = call(
        &market,
        signed_by(&market.second),
        "create_offer",
        keyed(offer_body(1)),
    )
    .await;
    let offer_ids = |answer: &Answer| {
        let mut body = answer.body.clone();
        body["error"]["data"]
            .as_object_mut()
            .unwrap()
            .remove("offer_id");
        body
    };
    assert_eq!(offer_ids(&low), offer_ids(&other), "however far below");
    let whole = String::from_utf8(low.bytes.to_vec()).unwrap();
    assert!(!whole.contains(&FLOOR.to_string()) && !whole.contains(&(FLOOR - 1).to_string()));
    for _ in 0..2 {
        call(&market, who, "create_offer", keyed(offer_body(2))).await;
    }
    let exhausted = call(&market, who, "create_offer", keyed(offer_body(2))).await;
    let data = &came_to(&exhausted)["error"];
    assert_eq!(data["code"], "offer_budget_exhausted");
    assert_eq!(data["retry_after"], data["decision"]["retry_after"]);
    fits("decision", &data["decision"]);
}

#[tokio::test]
async fn in_a_batch_each_error_stays_in_its_place() {
    let market = market().await;
    let batch = |token| {
        let messages: Vec<Value> = ["get_offer", "decline_offer", "get_offer"]
            .iter()
            .enumerate()
            .map(|(i, tool)| {
                let mut message = message(tool, keyed(json!({"offer_id": "off_none"})));
                message["id"] = json!(i);
                message
            })
            .collect();
        posted(oauth(token), &json!(messages))
    };
    let asked = market.grants.asked.load(Ordering::SeqCst);
    let fine = market.send(batch(SELLER_UNBOUND)).await;
    let codes = |answer: &Answer| -> Vec<(Value, Value)> {
        let all = answer.body.as_array().unwrap().iter();
        all.map(|m| (m["id"].clone(), m["error"]["data"]["code"].clone()))
            .collect()
    };
    assert_eq!(fine.status, 200);
    assert_eq!(
        codes(&fine),
        [0, 1, 2].map(|i| (json!(i), json!("not_found")))
    );
    let asked = market.grants.asked.load(Ordering::SeqCst) - asked;
    assert_eq!(asked, 4, "the POST and each call of it");
    let told = fine.extensions.get::<Answered>().unwrap();
    let each: Vec<_> = told.calls.iter().map(|call| call.operation).collect();
    assert_eq!(
        each,
        [Op::GetOffer, Op::DeclineOffer, Op::GetOffer].map(Some)
    );
    assert!(told.operation.is_none() && told.operator.is_some());
    let strangers = market.send(batch("token-nobody-knows")).await;
    assert_eq!(strangers.status, 200, "R34");
    assert_eq!(
        codes(&strangers),
        [0, 1, 2].map(|i| (json!(i), json!("operator_unknown")))
    );
    // Each is recorded as if it had come alone.
    let before = market.gateway_chain().await.len();
    market.grants.revoke(SELLER_UNBOUND);
    let revoked = market.send(batch(SELLER_UNBOUND)).await;
    assert_eq!(
        codes(&revoked),
        [0, 1, 2].map(|i| (json!(i), json!("grant_revoked")))
    );
    assert_eq!(market.gateway_chain().await.len(), before + 3);
}

#[tokio::test]
async fn whatever_is_beside_a_call_in_its_batch_its_refusal_is_recorded() {
    let time = || {
        let tool = Tool::builder("get_time", "The time.").build().unwrap();
        tool_fn(tool, |_| Box::pin(async { Ok(ToolResult::text("12:00")) }))
    };
    let settings = |b| with_mcp(b).tools(time());
    let market = Market::with(Backing::memory().await, Tier::Auto, settings).await;
    let accept = || message("accept_offer", keyed(json!({"offer_id": "off_none"})));
    let beside = [
        json!({"jsonrpc": "2.0", "id": 8, "method": "ping"}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!(7),
        json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "get_time"}}),
    ];
    let forbidden =
        |reason: &str| json!({"decision": "forbid", "action": "offer.accept", "reason": reason});
    let decided = |answer: &Answer| answer.body[0]["error"]["data"]["decision"].clone();
    // V35, of which the whole request is refused.
    for beside in &beside {
        let before = market.gateway_chain().await.len();
        let mut request = posted(oauth(SELLER_UNBOUND), &json!([accept(), beside]));
        let other = format!("profile=\"{BUYERS}\"").parse().unwrap();
        request.headers_mut().insert(UCP_AGENT, other);
        let answer = market.send(request).await;
        assert_eq!(decided(&answer), forbidden("operator_unknown"), "{beside}");
        let chain = market.gateway_chain().await;
        assert_eq!(chain.len(), before + 1, "{beside}");
        assert_eq!(chain.last().unwrap()["action"], "offer.accept");
    }
    market.grants.revoke(SELLER_UNBOUND);
    for beside in &beside {
        let before = market.gateway_chain().await.len();
        let answer = market
            .send(posted(oauth(SELLER_UNBOUND), &json!([accept(), beside])))
            .await;
        assert_eq!(decided(&answer), forbidden("grant_revoked"), "{beside}");
        assert_eq!(market.gateway_chain().await.len(), before + 1, "{beside}");
        if beside["params"]["name"] == "get_time" {
            assert_eq!(answer.body[1]["error"]["data"]["code"], "grant_revoked");
        }
    }
    // What asks for no answer is refused by the status.
    let notification = posted(oauth(SELLER_UNBOUND), &beside[1]);
    assert_eq!(market.send(notification).await.status, 403);
}

#[tokio::test]
async fn what_calls_nothing_enters_no_record_and_opens_nothing() {
    let market = market().await;
    let accept = |id: Value| {
        let mut message = message("accept_offer", keyed(json!({"offer_id": "off_none"})));
        message["id"] = id;
        message
    };
    let without = |member: &str| {
        let mut message = accept(json!(3));
        message.as_object_mut().unwrap().remove(member);
        message
    };
    let positional =
        json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": ["accept_offer"]});
    let mut numbered_meta = accept(json!(3));
    numbered_meta["params"]["_meta"] = json!(3);
    let decoys = [
        json!(["tools/call", ["accept_offer"]]),
        positional,
        without("jsonrpc"),
        without("id"),
        accept(json!(null)),
        accept(json!(1.5)),
        numbered_meta,
    ];
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let bodies = || {
        let mut bodies: Vec<String> = decoys
            .iter()
            .map(|d| json!([ping, d]).to_string())
            .collect();
        bodies.push(without("id").to_string());
        // Neither of two with one id, none of more than twenty, and none of what is no JSON.
        bodies.push(json!([accept(json!(2)), accept(json!(2))]).to_string());
        bodies.push(
            (0..21)
                .map(|id| accept(json!(id)))
                .collect::<Value>()
                .to_string(),
        );
        bodies.push(
            json!([accept(json!(2))])
                .to_string()
                .replacen('{', r#"{"a":1,"a":2,"#, 1),
        );
        bodies
    };
    let send = async |body: String, headers: &[(&'static str, String)]| {
        let mut request = posted(oauth(SELLER_UNBOUND), &json!({}));
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        *request.body_mut() = Bytes::from(body);
        market.send(request).await
    };
    let another = [("ucp-agent", format!("profile=\"{BUYERS}\""))];
    let none = market.gateway_chain().await.len();
    for body in bodies() {
        let answer = send(body.clone(), &another).await;
        assert!(
            answer.body.to_string().contains("operator_unknown"),
            "{body}"
        );
        assert_eq!(market.gateway_chain().await.len(), none, "{body}");
    }
    // Nor what its headers contradict: a revision without batches, one that nobody knows, and those of a stateless request.
    let mut stateless = accept(json!(1));
    stateless["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let stateless_headers = |method: &str, name: &str| {
        vec![
            ("mcp-protocol-version", "2026-07-28".to_owned()),
            ("mcp-method", method.to_owned()),
            ("mcp-name", name.to_owned()),
        ]
    };
    let version = |said: &str| vec![("mcp-protocol-version", said.to_owned())];
    let two = json!([accept(json!(1)), accept(json!(2))]);
    for (body, mut headers, calls) in [
        (&two, version("2025-06-18"), 0),
        (&accept(json!(1)), version("1999-01-01"), 0),
        (
            &stateless,
            stateless_headers("tools/list", "accept_offer"),
            0,
        ),
        (&stateless, stateless_headers("tools/call", "get_offer"), 0),
        (
            &stateless,
            stateless_headers("tools/call", "accept_offer"),
            1,
        ),
    ] {
        headers.extend(another.clone());
        let answer = send(body.to_string(), &headers).await;
        let (said, chain) = (answer.body.to_string(), market.gateway_chain().await);
        assert!(said.contains("operator_unknown"), "{headers:?}: {said}");
        assert_eq!(chain.len(), none + calls, "{headers:?}");
    }
    let none = market.gateway_chain().await.len();

    // A token that is not current answers no neighbour of what calls nothing, nor of a call.
    market.grants.revoke(SELLER_UNBOUND);
    let revoked = |error: &Value| error["error"]["data"]["code"] == "grant_revoked";
    for decoy in &decoys {
        for body in [json!([ping, decoy]), json!([ping, decoy, accept(json!(9))])] {
            let answer = send(body.to_string(), &[]).await;
            let answers = answer.body.as_array().unwrap();
            assert!(answers.iter().all(revoked), "{body}: {}", answer.body);
        }
    }
    let none = none + decoys.len();
    assert_eq!(market.gateway_chain().await.len(), none);
    let beside = send(json!([ping, accept(json!(2))]).to_string(), &[]).await;
    assert!(
        revoked(&beside.body[0]) && revoked(&beside.body[1]),
        "{}",
        beside.body
    );
    assert_eq!(market.gateway_chain().await.len(), none + 1);
    // What asks for no answer is refused alike, whatever it would have called.
    assert_eq!(send(without("id").to_string(), &[]).await.status, 403);
}

#[tokio::test]
async fn what_is_refused_is_told_once_each_and_not_where_nothing_was_decided() {
    let ping = |id: u8| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    let accept = message("accept_offer", keyed(json!({"offer_id": "off_none"})));
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let told = |answer: &Answer| -> Vec<Option<Op>> {
        match answer.extensions.get::<Answered>() {
            None => Vec::new(),
            Some(one) if one.calls.is_empty() => vec![one.operation],
            Some(several) => several.calls.iter().map(|call| call.operation).collect(),
        }
    };
    let row = Some(Op::AcceptOffer);
    let batches = [
        (json!([ping(1)]), vec![None]),
        (json!([ping(1), notification, ping(2)]), vec![None, None]),
        (json!([ping(1), accept]), vec![row, None]),
        (
            json!([7, ping(1), accept, notification, {}]),
            vec![row, None, None, None],
        ),
        (notification.clone(), vec![None]),
    ];
    // Before the tools, and among them.
    let market = market().await;
    market.grants.revoke(SELLER_UNBOUND);
    for token in ["token-nobody-knows", SELLER_UNBOUND] {
        for (batch, expected) in &batches {
            let answer = market.send(posted(oauth(token), batch)).await;
            assert_eq!(told(&answer), *expected, "{token}: {batch}");
        }
    }
    let full = |b: RctpBuilder| b.mcp(Mcp::builder("marketplace", "1.0.0").requests(0));
    let market = Market::with(Backing::memory().await, Tier::Auto, full).await;
    market.grants.revoke(SELLER_UNBOUND);
    let busy = market
        .send(posted(oauth(SELLER_UNBOUND), &batches[2].0))
        .await;
    assert_eq!(busy.status, 503);
    let told = busy.extensions.get::<Answered>().unwrap();
    assert!(told.decision.is_none() && told.calls.is_empty(), "{told:?}");
}

/// A seller's agent by API key; its operator is the one that is tried.
struct ApiKey(String);

impl Registry for ApiKey {
    fn find<'a>(
        &'a self,
        request: &'a Parts,
    ) -> BoxFuture<'a, Result<Option<Registration>, NotRegistered>> {
        let registration = request
            .headers
            .contains_key("x-api-key")
            .then(|| Registration {
                profile: self.0.clone(),
                client_id: "client-seller".to_owned(),
            });
        Box::pin(async move { Ok(registration) })
    }
}

#[tokio::test]
async fn a_token_is_looked_at_beside_a_call_as_it_is_alone() {
    let time = || {
        let tool = Tool::builder("get_time", "The time.").build().unwrap();
        tool_fn(tool, |_| Box::pin(async { Ok(ToolResult::text("12:00")) }))
    };
    let own = market().await;
    let profile = &own.seller.profile;
    let signature = Mechanisms::none().http_signature();
    // Whom the signature or the key has proven is answered what asks for no grant; whom the token proves is not.
    for (who, mechanisms, answered) in [
        ("signed", signature.clone().oauth(), true),
        (
            "by an API key",
            signature.clone().api_key(ApiKey(profile.clone())),
            true,
        ),
        ("by the token", signature.oauth(), false),
    ] {
        let settings = |b| with_mcp(b).mechanisms(mechanisms).tools(time());
        let market = Market::with(Backing::memory().await, Tier::Auto, settings).await;
        let ask = |body: &Value| {
            if who == "signed" {
                return posted(seller(&market), body);
            }
            let mut request = with_token(post(MCP, body), SELLER_UNBOUND);
            let headers = request.headers_mut();
            headers.insert("x-api-key", HeaderValue::from_static("key"));
            headers.insert(UCP_AGENT, format!("profile=\"{profile}\"").parse().unwrap());
            request
        };
        for token in [SELLER_TOKEN, SELLER_UNBOUND] {
            market.grants.revoke(token);
        }
        let accept = message("accept_offer", keyed(json!({"offer_id": "off_none"})));
        let code = |answer: &Value| answer["error"]["data"]["code"].clone();
        for beside in [
            json!({"jsonrpc": "2.0", "id": 8, "method": "ping"}),
            json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "get_time"}}),
            json!({"jsonrpc": "2.0", "id": 10, "method": "nothing"}),
        ] {
            let alone = market.send(ask(&beside)).await;
            let batch = market.send(ask(&json!([beside, accept]))).await;
            assert_eq!(alone.body, batch.body[0], "{who}: {beside}");
            assert_eq!(
                code(&alone.body) != "grant_revoked",
                answered,
                "{who}: {beside}"
            );
            assert_eq!(code(&batch.body[1]), "grant_revoked", "{who}: {beside}");
            // What was refused beside the row is told with it.
            let told = batch.extensions.get::<Answered>().unwrap();
            let each: Vec<_> = told.calls.iter().map(|call| call.operation).collect();
            match answered {
                true => assert_eq!((told.operation, each.len()), (Some(Op::AcceptOffer), 0)),
                false => assert_eq!(each, [Some(Op::AcceptOffer), None], "{who}: {beside}"),
            }
        }
    }
}

#[tokio::test]
async fn arguments_that_are_none_are_refused_in_the_form_of_the_tools() {
    let market = market().await;
    for arguments in [json!(null), json!([]), json!("x"), json!(5), json!(false)] {
        let answer = call(&market, oauth(BUYER_TOKEN), "create_offer", arguments).await;
        assert_eq!((answer.status, &*code(&answer)), (200, "invalid_request"));
    }
    // A number that no schema lets through, after the grant as over REST.
    let price = json!({"title": "t", "list_price": {"amount": 9_007_199_254_740_993_u64, "currency": CURRENCY}});
    let refused = call(
        &market,
        oauth(SELLER_UNBOUND),
        "create_listing",
        keyed(price.clone()),
    )
    .await;
    assert_eq!(code(&refused), "invalid_request");
    market.grants.revoke(SELLER_UNBOUND);
    let revoked = call(
        &market,
        oauth(SELLER_UNBOUND),
        "create_listing",
        keyed(price),
    )
    .await;
    assert_eq!(code(&revoked), "grant_revoked");
}

#[tokio::test]
async fn what_is_no_message_for_us_is_turned_away_before_anybody_is_asked_who_they_are() {
    let market = market().await;
    let asked = || market.grants.asked.load(Ordering::SeqCst);
    let before = asked();
    let stream = market.send(with_token(get(MCP), SELLER_UNBOUND)).await;
    assert_eq!(stream.status, 405);
    assert_eq!(stream.headers[header::ALLOW], "POST");
    let mut rebound = posted(oauth(SELLER_UNBOUND), &list());
    *rebound.uri_mut() = "https://evil.example/mcp".parse().unwrap();
    assert_eq!(market.send(rebound).await.status, 403);
    let mut page = posted(oauth(SELLER_UNBOUND), &list());
    page.headers_mut().insert(
        header::ORIGIN,
        HeaderValue::from_static("https://evil.example"),
    );
    assert_eq!(market.send(page).await.status, 403);
    let large = json!({"jsonrpc": "2.0", "id": 7, "method": "x".repeat(300_000)});
    let large = market.send(posted(oauth(SELLER_UNBOUND), &large)).await;
    assert_eq!(
        (large.status, large.body["error"]["code"].as_i64()),
        (413, Some(-32600))
    );
    assert_eq!(asked(), before);
    // And what is no JSON, after.
    let mut garbage = post(MCP, &json!({}));
    *garbage.body_mut() = Bytes::from_static(b"{");
    let stranger = market.send(garbage).await;
    assert_eq!(stranger.status, 401);
    assert_eq!(stranger.body["id"], Value::Null);
    let near = market.send(posted(oauth(SELLER_UNBOUND), &list())).await;
    assert_eq!(near.status, 200);
}

#[tokio::test]
async fn what_a_router_could_take_for_the_endpoint_reaches_no_handler() {
    let with = market().await;
    let without = Market::with(Backing::memory().await, Tier::Auto, |b| b).await;
    let handled = || {
        service_fn(|_: Request<Body>| async {
            Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
        })
    };
    for near in [
        "/mcp/",
        "/MCP",
        "//mcp",
        "/mcp/x",
        "/%6dcp",
        "/mcp;a",
        "/a/../mcp",
    ] {
        let at = || authenticated(oauth(BUYER_TOKEN), post(near, &list()));
        let answer = send_to(&around(&with.rctp, handled()), at()).await;
        assert_eq!(
            (answer.status, &answer.body["error"]),
            (404, &json!("not_found")),
            "{near}"
        );
        // Where the endpoint is not served, the path is the marketplace's own.
        let answer = send_to(&around(&without.rctp, handled()), at()).await;
        assert_eq!(answer.status, 200, "{near}");
    }
    let other = send_to(&around(&with.rctp, handled()), post("/mcpx", &list())).await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn a_busy_gateway_says_so_in_the_form_of_its_tools() {
    let settings =
        |b: RctpBuilder| b.mcp(Mcp::builder("marketplace", "1.0.0").calls(CallLimit::new(1, 0)));
    let market = Market::with(Backing::memory().await, Tier::Auto, settings).await;
    let who = signed_by(&market.buyer);
    let gate = market.store.wait_at(Call::Commit);
    let first = call(&market, who, "create_offer", keyed(offer_body(FLOOR)));
    let second = async {
        gate.reached().await;
        let busy = call(&market, who, "get_offer", json!({"offer_id": "off_1"})).await;
        gate.open();
        busy
    };
    let (first, busy) = tokio::join!(first, second);
    assert_eq!(came_to(&first)["decision"]["decision"], "auto");
    let data = &came_to(&busy)["error"];
    assert_eq!(
        (&data["code"], &data["retry_after"]),
        (&json!("unavailable"), &json!(1))
    );
    assert!(data.get("decision").is_none());
}

// ---- Beside the table -------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_marketplaces_own_tools_stand_beside_the_tables() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let own = |name: &str| Tool::builder(name, "The time.").build().unwrap();
    let settings = |b| {
        let time = tool_fn(own("get_time"), move |call| {
            count.fetch_add(1, Ordering::SeqCst);
            let caller = call
                .request
                .extensions
                .get::<Caller>()
                .unwrap()
                .operator
                .clone();
            Box::pin(async move { Ok(ToolResult::text(caller)) })
        });
        // One that has the name of ours is not reached.
        let ours = tool_fn(own("get_offer"), |_| {
            Box::pin(async { Ok(ToolResult::text("not ours")) })
        });
        with_mcp(b).tools(time.and(ours))
    };
    let market = Market::with(Backing::memory().await, Tier::Auto, settings).await;
    let who = signed_by(&market.buyer);
    let tools = listed(&market, who).await;
    assert_eq!(*names(&tools).last().unwrap(), "get_time");
    let time = call(&market, who, "get_time", json!({})).await;
    assert_eq!(time.body["result"]["content"][0]["text"], BUYERS);
    assert_eq!(
        call(&market, NOBODY, "get_time", json!({})).await.status,
        401
    );
    assert_eq!(
        code(&call(&market, who, "get_offer", json!({"offer_id": "off_1"})).await),
        "not_found"
    );
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_handler_of_the_marketplaces_own_gets_tool_calls_on_its_own_route() {
    let market = market().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let inner = seen.clone();
    let market_service = market.rctp.market();
    let service = service_fn(move |request: Request<Body>| {
        inner
            .lock()
            .unwrap()
            .push(format!("{} {}", request.method(), request.uri()));
        market_service.oneshot(request)
    });
    let service = around(&market.rctp, service);
    let offer = market.open_offer(FLOOR + 1).await;
    let accept = posted(
        seller(&market),
        &message("accept_offer", keyed(json!({"offer_id": offer}))),
    );
    let answer = send_to(&service, accept).await;
    assert_eq!(came_to(&answer)["result"]["state"], "accepted");
    assert_eq!(
        *seen.lock().unwrap(),
        [format!("POST /offers/{offer}/accept")]
    );
}

#[tokio::test]
async fn the_stack_in_four_layers_serves_tools_too() {
    let market = market().await;
    let rctp = &market.rctp;
    let inside = rctp.decision().layer(rctp.market());
    let inside = rctp.grant().layer(rctp.idempotency().layer(inside));
    let service = Service::new(rctp.authenticate().layer(inside));
    let offer = posted(
        signed_by(&market.buyer),
        &message("create_offer", keyed(offer_body(FLOOR))),
    );
    assert_eq!(
        came_to(&send_to(&service, offer).await)["decision"]["decision"],
        "auto"
    );
}

#[tokio::test]
async fn under_a_path_the_endpoint_and_its_metadata_are_where_clients_look() {
    let settings = |b| with_mcp(b).public_url(format!("{GATEWAY}/v3"));
    let market = Market::with(Backing::memory().await, Tier::Auto, settings).await;
    let message = message("create_offer", keyed(offer_body(FLOOR)));
    let request = authenticated(signed_by(&market.buyer), post("/v3/mcp", &message));
    assert_eq!(
        came_to(&market.send(request).await)["decision"]["decision"],
        "auto"
    );
    let refused = market.send(post("/v3/mcp", &list())).await;
    let challenge = refused.headers[header::WWW_AUTHENTICATE].to_str().unwrap();
    let path = "/.well-known/oauth-protected-resource/v3/mcp";
    assert!(
        challenge.contains(&format!("\"{GATEWAY}{path}\"")),
        "{challenge}"
    );
    assert_eq!(
        read(&market.rctp, path).await.body["resource"],
        format!("{GATEWAY}/v3/mcp")
    );
}

#[tokio::test]
async fn settings_that_cannot_be_are_named() {
    let time = Tool::builder("get_time", "The time.").build().unwrap();
    let tools = tool_fn(time, |_| Box::pin(async { Ok(ToolResult::text("12:00")) }));
    let market = market().await;
    let builder = Rctp::builder()
        .public_url(GATEWAY)
        .operators(operators())
        .introspect_with(market.grants.clone())
        .fetch_with(market.origins.clone())
        .store(MemoryStore::default())
        .signing_key(market.gateway_key.clone())
        .tools(tools);
    let error = builder.build().unwrap_err().to_string();
    assert_eq!(
        error,
        "mcp is missing; write .mcp(Mcp::builder(name, version))"
    );
}

#[tokio::test]
async fn what_a_handler_of_the_marketplaces_own_answers_has_a_code_and_no_text() {
    let market = market().await;
    let offer = market.open_offer(FLOOR + 1).await;
    for (status, expected) in [
        (404, "not_found"),
        (410, "invalid_request"),
        (500, "unavailable"),
    ] {
        let service = service_fn(move |_: Request<Body>| async move {
            let body = Body::from(Bytes::from_static(b"<h1>a page</h1>"));
            let response = http::Response::builder().status(status).body(body);
            Ok::<_, std::convert::Infallible>(response.unwrap())
        });
        let get = message("get_offer", json!({"offer_id": offer}));
        let get = posted(signed_by(&market.buyer), &get);
        let answer = send_to(&around(&market.rctp, service), get).await;
        let error = &answer.body["error"];
        assert_eq!(error["data"], json!({"code": expected}), "{status}");
        assert!(!answer.body.to_string().contains("page"));
    }
}

#[tokio::test]
async fn an_answer_of_a_handler_reaches_clients_of_a_stream_however_it_is_written() {
    let market = market().await;
    let offer = market.open_offer(FLOOR + 1).await;
    for (written, result) in [
        ("{\"a\": [1,\r\n  \"b\\n\"]\n}", json!({"a": [1, "b\n"]})),
        (r#"{"a":1.50}"#, json!({"a": 1.5})),
        ("1}, \"decision\": {", json!("1}, \"decision\": {")),
        ("", Value::Null),
    ] {
        let service = service_fn(move |_: Request<Body>| async move {
            let body = Body::from(Bytes::from_static(written.as_bytes()));
            Ok::<_, std::convert::Infallible>(Response::new(body))
        });
        let get = message("get_offer", json!({"offer_id": offer}));
        let mut get = posted(signed_by(&market.buyer), &get);
        let accept = HeaderValue::from_static("text/event-stream");
        get.headers_mut().insert(header::ACCEPT, accept);
        let get = get.map(Body::from);
        let answer = around(&market.rctp, service).oneshot(get).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let event = std::str::from_utf8(&body).unwrap();
        let data = event.strip_prefix("event: message\ndata: ");
        let data = data.and_then(|data| data.strip_suffix("\n\n")).unwrap();
        assert!(!data.contains(['\n', '\r']), "{event}");
        let answer: Value = serde_json::from_str(data).unwrap();
        let said = json!({"decision": {"decision": "auto"}, "result": result});
        assert_eq!(answer["result"]["structuredContent"], said);
    }
}
