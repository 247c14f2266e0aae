//! Binding 13: the operations as tools over MCP. Each is held against its twin, the same operation over REST.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;
#[path = "common/signing.rs"]
mod signing;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use common::{
    Agent, Answer, BUYER_TOKEN, CURRENCY, FLOOR, GATEWAY, LISTING, NOW, SELLER, SELLER_TOKEN,
    SELLER_UNBOUND, Service, deal_terms, get, grant, listing, offer_body, post, public_terms,
    with_token,
};
use http::{HeaderValue, Method, Request};
use market::{
    BUYERS, Backing, Call, Market, OTHERS, SELLERS, around, fits, fresh_key, operators, send_to,
};
use serde_json::{Map, Value, json};
use signing::{IDEMPOTENCY_KEY, UCP_AGENT, plan, sign};
use tower_rctp::{
    Rctp, RctpBuilder,
    layer::{
        arrive::Answered,
        authenticate::{Mechanisms, operators::Operator},
        context::{Ids, NoRandomness},
        mcp::{MCP, REFUSED},
    },
    protocol::{
        VERSION,
        caller::Role,
        decision::Decision,
        grant::GrantStatus,
        money::Money,
        operation::{Op, Side, TABLE, Verb},
        policy::{Tier, Tiers},
        record::{Subject, SubjectKind},
        refusal::Code,
        schema,
        terms::{Floor, PrivateTerms},
    },
    service::tools::{Mcp, Tool, ToolResult, tool_fn},
    store::{MemoryStore, Store},
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
    subjects: Mutex<Vec<Subject>>,
    seen: Mutex<Vec<String>>,
}

/// The same ids on both sides.
#[derive(Default)]
struct Counted {
    next: AtomicU64,
    exhausted: Arc<AtomicBool>,
}

impl Ids for Counted {
    fn random(&self) -> Result<[u8; 16], NoRandomness> {
        if self.exhausted.load(Ordering::SeqCst) {
            return Err(NoRandomness);
        }
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
        Self {
            mcp: around(&beside, beside.market()),
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
        self.seen
            .lock()
            .unwrap()
            .push(match &came["error"]["code"] {
                Value::String(code) => code.clone(),
                _ => format!("{name} {}", came["decision"]["decision"].as_str().unwrap()),
            });
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
