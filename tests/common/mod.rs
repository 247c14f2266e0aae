//! A small marketplace in process: real layers, real signatures, a real store; time stands still until a test moves
//! it, profiles and grants are held here and asked on every call.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, util::BoxCloneSyncService};
use tower_rctp::{
    Rctp, RctpBuilder,
    client::Signer,
    layer::{
        authenticate::{
            fetch::{Fetch, FetchError, Fetched},
            operators::{Operator, Operators},
        },
        body::Body,
        grant::introspection::{Introspect, IntrospectError},
    },
    protocol::{
        grant::{Confirmation, GrantStatus, Introspection},
        listing::{Listing, ListingState},
        money::Money,
        operation::Verb,
        policy::Tier,
        record::{Subject, SubjectKind, verify_chain},
        terms::{Floor, FulfillmentOption, PrivateTerms, PublicTerms},
        time::Timestamp,
    },
    store::{BoxFuture, MemoryStore, Store},
    wire::{
        crypto::default_provider,
        jwk::{Keys, SigningKey},
    },
};

pub const NOW: i64 = 1_790_000_000;
pub const GATEWAY: &str = "https://gateway.example";
pub const SELLER: &str = "sub_seller";
pub const LISTING: &str = "lst_bicycle";
/// The floor, a number that occurs nowhere else.
pub const FLOOR: u64 = 41_237;
pub const CURRENCY: &str = "EUR";

/// A clock that tests move.
#[derive(Clone)]
pub struct TestClock(Arc<AtomicI64>);

impl TestClock {
    pub fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.0.load(Ordering::SeqCst))
    }

    pub fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }

    pub fn closure(&self) -> impl Fn() -> Timestamp + Send + Sync + 'static + use<> {
        let clock = self.clone();
        move || clock.now()
    }
}

/// Profiles as their origins serve them.
#[derive(Clone, Default)]
pub struct Origins {
    pub documents: Arc<Mutex<HashMap<String, Bytes>>>,
    pub fetches: Arc<AtomicUsize>,
    pub down: Arc<AtomicBool>,
}

impl Fetch for Origins {
    fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Fetched, FetchError>> {
        Box::pin(async move {
            self.fetches.fetch_add(1, Ordering::SeqCst);
            // A real fetch yields; concurrent requests must share it.
            tokio::task::yield_now().await;
            if self.down.load(Ordering::SeqCst) {
                return Err(FetchError("the origin is down".into()));
            }
            let documents = self.documents.lock().unwrap();
            let body = documents.get(url).cloned();
            body.map(|body| Fetched {
                body,
                max_age: None,
            })
            .ok_or_else(|| FetchError("404".into()))
        })
    }
}

/// The grants of an authorization server.
#[derive(Clone, Default)]
pub struct Grants {
    pub tokens: Arc<Mutex<HashMap<String, Introspection>>>,
    pub asked: Arc<AtomicUsize>,
    pub down: Arc<AtomicBool>,
}

impl Introspect for Grants {
    fn introspect<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Introspection, IntrospectError>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.down.load(Ordering::SeqCst) {
                return Err(IntrospectError("down".into()));
            }
            let tokens = self.tokens.lock().unwrap();
            Ok(tokens.get(token).cloned().unwrap_or_default())
        })
    }
}

impl Grants {
    pub fn set(&self, token: &str, introspection: Introspection) {
        self.tokens
            .lock()
            .unwrap()
            .insert(token.to_owned(), introspection);
    }

    pub fn change(&self, token: &str, change: impl FnOnce(&mut Introspection)) {
        change(self.tokens.lock().unwrap().get_mut(token).unwrap());
    }

    pub fn revoke(&self, token: &str) {
        self.change(token, |i| {
            i.active = false;
            i.grant_status = Some(GrantStatus::Revoked);
            i.authorization_details.clear();
            i.scope = None;
        });
    }
}

/// A seller's grant with every verb at `tier`.
pub fn grant(sub: &str, client: &str, jkt: Option<&str>, tier: Tier, exp: i64) -> Introspection {
    let scopes: Vec<&str> = Verb::GRANTED.iter().filter_map(|v| v.scope()).collect();
    let tiers: serde_json::Map<String, Value> = scopes
        .iter()
        .map(|s| ((*s).to_owned(), json!(tier)))
        .collect();
    Introspection {
        active: true,
        scope: Some(scopes.join(" ")),
        sub: Some(sub.to_owned()),
        client_id: Some(client.to_owned()),
        exp: Some(exp),
        cnf: jkt.map(|jkt| Confirmation {
            jkt: Some(jkt.to_owned()),
        }),
        grant_status: Some(GrantStatus::Active),
        authorization_details: vec![json!({
            "type": "dev.rctp.agent_grant", "agent_id": "agent-1", "tiers": tiers,
        })],
    }
}

/// A client's own token (client credentials).
pub fn client_token(client: &str, exp: i64) -> Introspection {
    Introspection {
        active: true,
        client_id: Some(client.to_owned()),
        exp: Some(exp),
        ..Introspection::default()
    }
}

/// An operator's profile.
pub fn profile(name: &str, keys: &[Value]) -> Value {
    json!({
        "ucp": {
            "version": "2026-08-25",
            "services": {},
            "payment_handlers": {},
            "capabilities": {
                "dev.rctp.operator": [{"version": "2026-11-draft5", "config": {
                    "legal_entity": format!("{name} AG"),
                    "jurisdiction": "CH",
                    "incident_contact": format!("security@{name}.example"),
                    "incident_sla_hours": 24,
                }}],
            },
        },
        "keys": keys,
    })
}

/// An agent with a key in its operator's profile.
pub struct Agent {
    pub profile: String,
    pub signer: Signer,
}

impl Agent {
    pub fn kid(&self) -> &str {
        self.signer.key().kid().as_str()
    }
}

pub type Service = BoxCloneSyncService<Request<Body>, Response<Body>, std::convert::Infallible>;

/// The marketplace.
pub struct World {
    pub clock: TestClock,
    pub origins: Origins,
    pub grants: Grants,
    pub rctp: Rctp,
    pub service: Service,
    pub buyer: Agent,
    pub seller: Agent,
    pub gateway_key: SigningKey,
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub extensions: http::Extensions,
    pub bytes: Bytes,
    pub body: Value,
}

impl Answer {
    /// Reads a response whole.
    pub async fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            extensions: parts.extensions,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            bytes,
        }
    }

    /// `RCTP-Decision`, or nothing.
    pub fn decision(&self) -> &str {
        self.headers
            .get("rctp-decision")
            .map_or("", |v| v.to_str().unwrap())
    }

    /// The `error` member.
    pub fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or("")
    }

    /// Status and error, for tables.
    pub fn refusal(&self) -> (u16, &str) {
        (self.status, self.error())
    }

    /// A string member.
    pub fn get(&self, name: &str) -> String {
        self.body[name].as_str().unwrap_or_default().to_owned()
    }
}

/// The token of the seller's grant, bound to the seller agent's key.
pub const SELLER_TOKEN: &str = "token-seller-bound";
/// The same grant, unbound, of the client `client-seller`.
pub const SELLER_UNBOUND: &str = "token-seller-unbound";
/// A buyer's own token, of the client `client-buyer`.
pub const BUYER_TOKEN: &str = "token-buyer";

impl World {
    /// A marketplace in memory whose seller lets agents act at once.
    pub async fn new() -> Self {
        Self::with(Tier::Auto, |b| b).await
    }

    /// One whose seller wants to be asked.
    pub async fn asking() -> Self {
        Self::with(Tier::Ask, |b| b).await
    }

    /// With the grant's tier, and other settings.
    pub async fn with(tier: Tier, settings: impl FnOnce(RctpBuilder) -> RctpBuilder) -> Self {
        Self::on(Arc::new(MemoryStore::default()), tier, settings).await
    }

    /// Over a given store.
    pub async fn on(
        store: Arc<dyn Store>,
        tier: Tier,
        settings: impl FnOnce(RctpBuilder) -> RctpBuilder,
    ) -> Self {
        let clock = TestClock(Arc::new(AtomicI64::new(NOW)));
        let origins = Origins::default();
        let grants = Grants::default();
        let agent = |name: &str| {
            let key = SigningKey::generate().unwrap();
            let url = format!("https://{name}.example/.well-known/ucp");
            let document = profile(name, &[key.public_jwk()]);
            origins
                .documents
                .lock()
                .unwrap()
                .insert(url.clone(), Bytes::from(document.to_string()));
            Agent {
                signer: Signer::new(&url, key).unwrap().clock(clock.closure()),
                profile: url,
            }
        };
        let (buyer, seller) = (agent("buyer"), agent("seller"));
        let exp = NOW + 800;
        grants.set(
            SELLER_TOKEN,
            grant(SELLER, "client-seller", Some(seller.kid()), tier, exp),
        );
        grants.set(
            SELLER_UNBOUND,
            grant(SELLER, "client-seller", None, tier, exp),
        );
        grants.set(BUYER_TOKEN, client_token("client-buyer", exp));
        let gateway_key = SigningKey::generate().unwrap();
        let builder = Rctp::builder()
            .public_url(GATEWAY)
            .operators(
                Operators::default()
                    .with(Operator::new(&*buyer.profile).client("client-buyer"))
                    .with(Operator::new(&*seller.profile).client("client-seller")),
            )
            .introspect_with(grants.clone())
            .fetch_with(origins.clone())
            .shared_store(store)
            .signing_key(gateway_key.clone())
            .clock(clock.closure());
        let rctp = settings(builder).build().unwrap();
        let service = BoxCloneSyncService::new(rctp.layer().layer(rctp.market()));
        let world = Self {
            clock,
            origins,
            grants,
            rctp,
            service,
            buyer,
            seller,
            gateway_key,
        };
        world.publish(LISTING, SELLER, public_terms()).await;
        world
    }

    /// Puts a listing with confirmed terms on sale.
    pub async fn publish(&self, id: &str, seller: &str, public: PublicTerms) {
        let floor = Floor::new(Money::new(FLOOR, CURRENCY));
        let private = PrivateTerms::new(Some(floor), [7; 16]);
        self.rctp
            .publish(listing(id, seller), public, &private)
            .await
            .unwrap();
    }

    /// Sends a request through the layers as it is.
    pub async fn send(&self, request: Request<Bytes>) -> Answer {
        let response = self
            .service
            .clone()
            .oneshot(request.map(|b| Body::new(Full::new(b))))
            .await
            .unwrap();
        Answer::of(response).await
    }

    /// A signed POST of the buyer's agent.
    pub async fn buyer_post(&self, path: &str, body: &Value) -> Answer {
        let mut request = post(path, body);
        self.buyer.signer.sign(&mut request).unwrap();
        self.send(request).await
    }

    /// A signed POST of the seller's agent with its grant.
    pub async fn seller_post(&self, path: &str, body: &Value) -> Answer {
        let mut request = with_token(post(path, body), SELLER_TOKEN);
        self.seller.signer.sign(&mut request).unwrap();
        self.send(request).await
    }

    pub async fn buyer_get(&self, path: &str) -> Answer {
        let mut request = get(path);
        self.buyer.signer.sign(&mut request).unwrap();
        self.send(request).await
    }

    pub async fn seller_get(&self, path: &str) -> Answer {
        let mut request = with_token(get(path), SELLER_TOKEN);
        self.seller.signer.sign(&mut request).unwrap();
        self.send(request).await
    }

    /// An unsigned POST with a bearer token.
    pub async fn oauth_post(&self, token: &str, path: &str, body: &Value) -> Answer {
        self.send(with_key(with_token(post(path, body), token)))
            .await
    }

    /// The buyer offers `amount` on the listing.
    pub async fn offer(&self, amount: u64) -> Answer {
        self.buyer_post("/offers", &offer_body(amount)).await
    }

    /// The entries of a chain, verified.
    pub async fn chain(&self, kind: SubjectKind, id: &str) -> Vec<Value> {
        self.verified(&Subject::new(kind, id)).await
    }

    /// The gateway's own chain, verified.
    pub async fn gateway_chain(&self) -> Vec<Value> {
        self.verified(&self.rctp.gateway_subject()).await
    }

    async fn verified(&self, subject: &Subject) -> Vec<Value> {
        let entries = self.rctp.record(subject).await.unwrap();
        let keys = json!([self.gateway_key.public_jwk()]);
        let keys = Keys::parse(&keys, default_provider()).unwrap();
        verify_chain(&entries, &keys).unwrap();
        entries
    }
}

pub fn listing(id: &str, seller: &str) -> Listing {
    Listing {
        listing_id: id.to_owned(),
        seller: seller.to_owned(),
        state: ListingState::Active,
        title: "A bicycle".to_owned(),
        description: None,
        category: None,
        list_price: Money::new(60_000, CURRENCY),
        term_set: "goods-1".to_owned(),
        terms: None,
        created_at: Timestamp::from_secs(NOW - 1000),
        operator: None,
    }
}

pub fn public_terms() -> PublicTerms {
    PublicTerms {
        fulfillment_options: vec![FulfillmentOption {
            method_type: "shipping".into(),
            option_ids: vec!["standard".into(), "express".into()],
        }],
        payment_terms: vec!["prepaid".into()],
        deliver_within_days: Some(5),
        ..PublicTerms::default()
    }
}

pub fn deal_terms(amount: u64) -> Value {
    json!({
        "price": {"amount": amount, "currency": CURRENCY},
        "fulfillment": {"method_type": "shipping", "selected_option_id": "standard"},
        "payment": {"selected_term_id": "prepaid"},
    })
}

pub fn offer_body(amount: u64) -> Value {
    json!({"listing_id": LISTING, "deal_terms": deal_terms(amount)})
}

pub fn post(path: &str, body: &Value) -> Request<Bytes> {
    let mut request = Request::post(format!("{GATEWAY}{path}"))
        .body(Bytes::new())
        .unwrap();
    if !body.is_null() {
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        *request.body_mut() = Bytes::from(body.to_string());
    }
    request
}

pub fn get(path: &str) -> Request<Bytes> {
    Request::get(format!("{GATEWAY}{path}"))
        .body(Bytes::new())
        .unwrap()
}

pub fn with_token(mut request: Request<Bytes>, token: &str) -> Request<Bytes> {
    request.headers_mut().insert(
        header::AUTHORIZATION,
        format!("Bearer {token}").parse().unwrap(),
    );
    request
}

/// A fresh `Idempotency-Key`, for requests that no signer touches.
pub fn with_key(mut request: Request<Bytes>) -> Request<Bytes> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let key = format!("key-{:032}", NEXT.fetch_add(1, Ordering::SeqCst));
    request
        .headers_mut()
        .insert("idempotency-key", key.parse().unwrap());
    request
}
