//! A gateway to test, and its agents.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, header};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower_rctp::{
    Rctp,
    client::Signer,
    layer::{authenticate::operators::Operators, grant::introspection::Introspection},
    service::{approvals::Approvals, pages::Pages, session::Sessions},
    store::MemoryStore,
    wire::jwk::SigningKey,
};

use crate::gateway::{
    Config, DevWorld,
    app::{Running, start_with},
    dev::DevAgent,
    start,
};

/// A floor that occurs nowhere else, not even in a time or an id.
pub const FLOOR: u64 = 432_176_553_217;

/// A development gateway, and its agents.
pub struct Shop {
    pub world: DevWorld,
    pub http: reqwest::Client,
    /// When it runs in this process.
    own: Option<(Running, TempDir)>,
}

/// An answer, read whole.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Answer {
    pub async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or_default();
        Self {
            status,
            headers,
            text,
            body,
        }
    }

    pub fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }

    /// A string member.
    pub fn get(&self, member: &str) -> String {
        self.body[member].as_str().unwrap_or_default().to_owned()
    }
}

/// It sees redirects, rather than following them.
pub fn client() -> reqwest::Client {
    let alone = reqwest::Client::builder().no_proxy();
    alone
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap()
}

pub fn offer_body(listing_id: &str, amount: u64) -> Value {
    json!({
        "listing_id": listing_id,
        "deal_terms": {
            "price": {"amount": amount, "currency": "EUR"},
            "fulfillment": {"method_type": "shipping", "selected_option_id": "standard"},
            "payment": {"selected_term_id": "prepaid"},
        },
    })
}

/// The profile of an operator that the test hosts, with this key, and with this `webhook_url`.
pub fn operator_profile(key: &SigningKey, webhook_url: &str) -> Value {
    json!({
        "ucp": {
            "version": "2026-08-25",
            "services": {},
            "payment_handlers": {},
            "capabilities": {
                "dev.rctp.operator": [{"version": "2026-11-draft5", "config": {
                    "legal_entity": "Receivers AG",
                    "jurisdiction": "CH",
                    "incident_contact": "security@receivers.example",
                    "incident_sla_hours": 24,
                }}],
                "dev.rctp.deal": [{"version": "2026-11-draft5", "config": {
                    "webhook_url": webhook_url,
                }}],
            },
        },
        "keys": [key.public_jwk()],
    })
}

pub fn sign(agent: &DevAgent, request: &mut Request<Bytes>) {
    let signer = Signer::new(&agent.profile, agent.key.clone()).unwrap();
    signer.sign(request).unwrap();
}

/// The library's pages, for an authorization server without a gateway.
pub fn pages() -> Pages {
    let nowhere = Introspection::endpoint("http://127.0.0.1:1").client_secret_basic("gateway", "-");
    let rctp = Rctp::builder()
        .public_url("http://localhost")
        .dev(true)
        .operators(Operators::onboarded([
            "https://agent.example/.well-known/ucp",
        ]))
        .introspection(nowhere)
        .store(MemoryStore::default())
        .signing_key(SigningKey::generate().unwrap())
        .approvals(Approvals::new("Market"))
        .build();
    rctp.unwrap().pages().unwrap().clone()
}

impl Shop {
    /// Starts one in this process, on a free port, in a directory of its own.
    pub async fn open() -> Self {
        Self::open_in(tempfile::tempdir().unwrap()).await
    }

    /// One with other settings.
    pub async fn with(settings: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::dev_in(directory.path());
        settings(&mut config);
        Self::over(start(config).await.unwrap(), directory)
    }

    async fn open_in(directory: TempDir) -> Self {
        let running = start(Config::dev_in(directory.path())).await.unwrap();
        Self::over(running, directory)
    }

    /// One with a login of the test's.
    pub async fn with_login(sessions: Arc<dyn Sessions>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config::dev_in(directory.path());
        Self::over(start_with(config, Some(sessions)).await.unwrap(), directory)
    }

    fn over(running: Running, directory: TempDir) -> Self {
        let world = running.world.clone().unwrap();
        Self {
            own: Some((running, directory)),
            ..Self::visit(world)
        }
    }

    /// One that another process runs.
    pub fn visit(world: DevWorld) -> Self {
        Self {
            world,
            http: client(),
            own: None,
        }
    }

    pub fn running(&self) -> &Running {
        &self.own.as_ref().unwrap().0
    }

    pub fn config(&self) -> Config {
        Config::dev_in(self.own.as_ref().unwrap().1.path())
    }

    /// Stops it; the directory stays until the answer is dropped.
    pub async fn close(self) -> TempDir {
        let (running, directory) = self.own.unwrap();
        running.stop().await;
        directory
    }

    pub async fn restart(self) -> Self {
        Self::open_in(self.close().await).await
    }

    pub fn request(&self, method: Method, path: &str, body: Value) -> Request<Bytes> {
        let body = match body {
            Value::Null => Bytes::new(),
            body => Bytes::from(body.to_string()),
        };
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.world.url))
            .body(body)
            .unwrap()
    }

    pub async fn send(&self, request: Request<Bytes>) -> Answer {
        self.answer(reqwest::Request::try_from(request).unwrap())
            .await
    }

    async fn answer(&self, request: reqwest::Request) -> Answer {
        Answer::read(self.http.execute(request).await.unwrap()).await
    }

    /// Sends all but the body, which the gateway then asks for: the request is in progress.
    pub async fn begin(&self, request: &Request<Bytes>) -> TcpStream {
        let (uri, length) = (request.uri(), request.body().len());
        let authority = uri.authority().unwrap();
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: {authority}\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n",
            request.method(),
            uri.path(),
        );
        for (name, value) in request.headers() {
            head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
        }
        head.push_str("\r\n");
        let mut stream = TcpStream::connect(authority.as_str()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut seen = [0; 25];
        stream.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path, Value::Null))
            .await
    }

    pub async fn offer(&self, listing_id: &str, amount: u64) -> Answer {
        let mut request = self.request(Method::POST, "/offers", offer_body(listing_id, amount));
        sign(&self.world.agents.buyer, &mut request);
        self.send(request).await
    }

    /// A signed request of the seller's agent.
    pub async fn seller(&self, path: &str, token: &str) -> Answer {
        let mut request = self.request(Method::POST, path, json!({}));
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
        sign(&self.world.agents.seller, &mut request);
        self.send(request).await
    }

    pub async fn unsigned(&self, path: &str, token: &str, body: Value) -> Answer {
        let request = self
            .http
            .post(format!("{}{path}", self.world.url))
            .bearer_auth(token)
            .header(
                "idempotency-key",
                format!("a-key-of-enough-entropy-{path}").replace('/', "-"),
            )
            .json(&body);
        self.answer(request.build().unwrap()).await
    }

    /// The seller on the marketplace's own pages.
    pub async fn marketplace(&self, path: &str, body: Value) -> Answer {
        let request = self
            .http
            .post(format!("{}{path}", self.world.url))
            .bearer_auth(&self.world.secret)
            .json(&body);
        self.answer(request.build().unwrap()).await
    }

    pub async fn new_listing(&self) -> String {
        let money = |amount| json!({"amount": amount, "currency": "EUR"});
        let body = json!({"floor": money(FLOOR), "list_price": money(2 * FLOOR)});
        let listing = self.marketplace("/dev/listings", body).await;
        assert_eq!(listing.status, 201, "{:?}", listing.body);
        assert!(!listing.text.contains(&FLOOR.to_string()));
        listing.get("listing_id")
    }

    pub async fn token(&self, agent: &DevAgent, form: &[(&str, &str)]) -> Answer {
        self.authorization("token", agent, form).await
    }

    pub async fn revoke(&self, agent: &DevAgent, token: &str) -> u16 {
        self.authorization("revoke", agent, &[("token", token)])
            .await
            .status
    }

    async fn authorization(&self, path: &str, agent: &DevAgent, form: &[(&str, &str)]) -> Answer {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = self
            .http
            .post(format!("{}/oauth/{path}", self.world.url))
            .basic_auth(&agent.client_id, Some(&agent.client_secret))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form);
        self.answer(request.build().unwrap()).await
    }
}
