//! The authorization server by itself, over real HTTP and with a clock that the tests move (binding 3.1–3.4); and an
//! OAuth client of the ecosystem against the whole gateway.

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
};

use http::{HeaderMap, Method, header};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tower_rctp::{
    protocol::{
        grant::{GrantStatus, Introspection},
        operation::Verb,
        policy::{Tier, Tiers},
        time::Timestamp,
    },
    service::session::Sessions,
    store::{BoxFuture, StoreError},
};

use crate::{
    gateway::{
        authorization::{Authorization, Client, ClientKind, Granted, Registration, Settings},
        dev::{CALLBACK, PLUGIN},
        serve::Server,
    },
    shop::{Answer, Shop, client, pages},
};

const DAY: i64 = 86_400;
const ACCEPT: &str = "dev.rctp.deal:offer_accept";
const ANSWER: &str = "dev.rctp.listing:listing_answer_buyer";
const COUNTER: &str = "dev.rctp.deal:offer_counter";
const REPRICE: &str = "dev.rctp.listing:listing_reprice";
const TERMS: &str = "dev.rctp.listing:listing_set_terms";
/// RFC 7636, appendix B.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
/// The same hash serves as a key's thumbprint.
const JKT: &str = CHALLENGE;
const REDIRECT: &str = "https://agent.example/cb?x=1";
const SECRET: &str = "a secret: with + and %";

/// A login by decree.
#[derive(Default)]
struct SignedIn(Mutex<Option<String>>);

impl SignedIn {
    fn as_(&self, seller: Option<&str>) {
        *self.0.lock().unwrap() = seller.map(str::to_owned);
    }
}

impl Sessions for SignedIn {
    fn seller<'a>(&'a self, _: &'a HeaderMap) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        let seller = self.0.lock().unwrap().clone();
        Box::pin(async {
            match seller.as_deref() {
                Some("nobody knows") => Err(StoreError("gone".into())),
                _ => Ok(seller),
            }
        })
    }
}

/// The server alone; a seller is signed in.
struct Alone {
    url: String,
    server: Arc<Authorization>,
    running: Server,
    time: Arc<AtomicI64>,
    login: Arc<SignedIn>,
    http: reqwest::Client,
    directory: TempDir,
}

fn clients() -> Vec<Client> {
    let agent = |id: &str, secret: Option<&str>, redirect_uris: &[&str]| Client {
        id: id.into(),
        secret: secret.map(str::to_owned),
        kind: ClientKind::Agent(Registration {
            name: format!("{id}, by name"),
            operator: format!("https://{id}.example/.well-known/ucp"),
            legal_entity: format!("{id} AG"),
            redirect_uris: redirect_uris.iter().map(|uri| (*uri).to_owned()).collect(),
        }),
    };
    vec![
        agent("agent", Some(SECRET), &[REDIRECT, "http://127.0.0.1/cb"]),
        agent("other", Some(SECRET), &["https://other.example/cb"]),
        agent("buyer", Some(SECRET), &[]),
        agent("plugin", None, &["http://127.0.0.1/cb"]),
        Client {
            id: "gateway".into(),
            secret: Some(SECRET.into()),
            kind: ClientKind::Gateway,
        },
    ]
}

/// `agent`'s request, with parameters changed (`None` takes one away).
fn query(changes: &[(&str, Option<&str>)]) -> String {
    let details = details(&json!({}));
    let mut all = vec![
        ("response_type", "code"),
        ("client_id", "agent"),
        ("redirect_uri", REDIRECT),
        ("state", "a state & more"),
        ("code_challenge", CHALLENGE),
        ("code_challenge_method", "S256"),
        ("authorization_details", &details),
    ];
    for (name, value) in changes {
        all.retain(|(known, _)| known != name);
        all.extend(value.map(|value| (*name, value)));
    }
    form(&all)
}

/// As of a client that knows OAuth and nothing of RCTP.
fn scopes(scope: &str) -> String {
    query(&[("authorization_details", None), ("scope", Some(scope))])
}

fn form(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish()
}

/// The details, with members changed (`null` takes one away).
fn details(changes: &Value) -> String {
    let mut details = json!({
        "type": "dev.rctp.agent_grant",
        "agent_id": "helper-1",
        "jkt": JKT,
        "tiers": {ACCEPT: "auto", REPRICE: "ask", TERMS: "ask"},
    });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(details.as_object_mut().unwrap().remove(name)),
            value => details[name] = value.clone(),
        }
    }
    json!([details]).to_string()
}

/// The parameters that a redirect brings.
fn brought(location: &str) -> Vec<(String, String)> {
    let url = url::Url::parse(location).unwrap();
    url.query_pairs().into_owned().collect()
}

fn parameter(location: &str, name: &str) -> Option<String> {
    let mut brought = brought(location).into_iter();
    brought.find(|(n, _)| n == name).map(|(_, value)| value)
}

impl Alone {
    async fn open() -> Self {
        Self::open_in(tempfile::tempdir().unwrap(), 1_790_000_000).await
    }

    async fn open_in(directory: TempDir, now: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let time = Arc::new(AtomicI64::new(now));
        let login = Arc::new(SignedIn::default());
        login.as_(Some("sub_seller"));
        let clock = time.clone();
        let server = Authorization::open(Settings {
            file: directory.path().join("authorization.json"),
            issuer: url.clone(),
            tiers: Tiers::default().withhold(Verb::OfferCounter).offer(
                Verb::ListingAnswerBuyer,
                Tier::Forbid,
                &[Tier::Forbid, Tier::Ask],
            ),
            clients: clients(),
            clock: Arc::new(move || Timestamp::from_secs(clock.load(Ordering::SeqCst))),
        })
        .unwrap();
        Self {
            url,
            running: Server::start(listener, server.router(login.clone(), pages())),
            server,
            time,
            login,
            http: client(),
            directory,
        }
    }

    async fn restart(self) -> Self {
        self.running.stop().await;
        Self::open_in(self.directory, self.time.load(Ordering::SeqCst)).await
    }

    fn later(&self, seconds: i64) {
        self.time.fetch_add(seconds, Ordering::SeqCst);
    }

    fn file(&self) -> String {
        fs::read_to_string(self.directory.path().join("authorization.json")).unwrap()
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::read(self.request(Method::GET, path).send().await.unwrap()).await
    }

    /// As a page of the server does.
    async fn post(&self, path: &str, body: &Value) -> Answer {
        let post = self.request(Method::POST, path).json(body);
        Answer::read(post.header("origin", &self.url).send().await.unwrap()).await
    }

    async fn authorize(&self, query: &str) -> Answer {
        self.get(&format!("/oauth/authorize?{query}")).await
    }

    /// The seller allows the request; answers the code.
    async fn allow(&self, query: &str, tiers: Value, days: Option<i64>) -> String {
        let mut body = json!({"query": query, "decision": "allow", "tiers": tiers});
        if let Some(days) = days {
            body["expires_in_days"] = json!(days);
        }
        let answer = self.post("/oauth/consent", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        parameter(&answer.get("redirect"), "code").unwrap()
    }

    async fn form(&self, path: &str, client: Option<&str>, pairs: &[(&str, &str)]) -> Answer {
        let mut post = self.request(Method::POST, path);
        if let Some(client) = client {
            let encoded = |text: &str| form(&[(text, "")]).trim_end_matches('=').to_owned();
            post = post.basic_auth(encoded(client), Some(encoded(SECRET)));
        }
        let post = post.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        Answer::read(post.body(form(pairs)).send().await.unwrap()).await
    }

    async fn redeem(&self, code: &str) -> Answer {
        let pairs = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", REDIRECT),
            ("code_verifier", VERIFIER),
        ];
        self.form("/oauth/token", Some("agent"), &pairs).await
    }

    async fn refresh(&self, token: &str) -> Answer {
        let pairs = [("grant_type", "refresh_token"), ("refresh_token", token)];
        self.form("/oauth/token", Some("agent"), &pairs).await
    }

    async fn introspect(&self, token: &str) -> Introspection {
        let said = self
            .form("/oauth/introspect", Some("gateway"), &[("token", token)])
            .await;
        assert_eq!(said.status, 200, "{}", said.text);
        serde_json::from_value(said.body).unwrap()
    }

    /// Tokens of a grant that a seller has just given.
    async fn tokens(&self, days: i64) -> (String, String) {
        let code = self
            .allow(&query(&[]), json!({ACCEPT: "ask"}), Some(days))
            .await;
        let tokens = self.redeem(&code).await;
        assert_eq!(tokens.status, 200, "{}", tokens.text);
        (tokens.get("access_token"), tokens.get("refresh_token"))
    }
}

#[tokio::test]
async fn its_metadata_is_what_identity_linking_asks_for() {
    let alone = Alone::open().await;
    let said = alone.get("/.well-known/oauth-authorization-server").await;
    let scopes: Vec<_> = Verb::GRANTED
        .into_iter()
        .filter_map(Verb::scope)
        .filter(|scope| *scope != COUNTER)
        .collect();
    let offered = said.body["scopes_supported"].as_array().unwrap();
    assert!(offered.len() == scopes.len() && scopes.iter().all(|s| offered.contains(&json!(s))));
    for (member, value) in [
        ("issuer", json!(alone.url)),
        (
            "authorization_endpoint",
            json!(format!("{}/oauth/authorize", alone.url)),
        ),
        (
            "token_endpoint",
            json!(format!("{}/oauth/token", alone.url)),
        ),
        (
            "revocation_endpoint",
            json!(format!("{}/oauth/revoke", alone.url)),
        ),
        (
            "introspection_endpoint",
            json!(format!("{}/oauth/introspect", alone.url)),
        ),
        ("response_types_supported", json!(["code"])),
        (
            "grant_types_supported",
            json!(["authorization_code", "refresh_token", "client_credentials"]),
        ),
        ("code_challenge_methods_supported", json!(["S256"])),
        (
            "authorization_response_iss_parameter_supported",
            json!(true),
        ),
        (
            "token_endpoint_auth_methods_supported",
            json!(["client_secret_basic", "none"]),
        ),
        (
            "introspection_endpoint_auth_methods_supported",
            json!(["client_secret_basic"]),
        ),
        (
            "authorization_details_types_supported",
            json!(["dev.rctp.agent_grant"]),
        ),
    ] {
        assert_eq!(said.body[member], value, "{member}");
    }
}

#[tokio::test]
async fn a_client_that_anybody_could_be_is_not_registered() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = || Client {
        id: "gateway".into(),
        secret: None,
        kind: ClientKind::Gateway,
    };
    let agent = |uri: &str| Client {
        id: "agent".into(),
        secret: None,
        kind: ClientKind::Agent(Registration {
            name: "An agent".into(),
            operator: "https://agent.example/.well-known/ucp".into(),
            legal_entity: "Agent AG".into(),
            redirect_uris: vec![uri.into()],
        }),
    };
    for (client, says) in [
        (gateway(), "client gateway: a gateway needs a secret"),
        (
            agent("http://agent.example/cb"),
            "client agent: `http://agent.example/cb` is http",
        ),
    ] {
        let opened = Authorization::open(Settings {
            file: directory.path().join("authorization.json"),
            issuer: "https://auth.example".into(),
            tiers: Tiers::default(),
            clients: vec![client],
            clock: Arc::new(|| Timestamp::from_secs(0)),
        });
        let error = opened.err().unwrap().0;
        assert!(error.starts_with(says), "{error}");
    }
}

#[tokio::test]
async fn a_request_that_says_not_for_certain_who_asks_goes_nowhere() {
    let alone = Alone::open().await;
    let twice = |name: &str, value: &str| format!("{}&{}", query(&[]), form(&[(name, value)]));
    for wrong in [
        String::new(),
        query(&[("client_id", None)]),
        query(&[("client_id", Some("nobody"))]),
        query(&[("client_id", Some("gateway"))]),
        query(&[("client_id", Some("buyer"))]),
        query(&[("client_id", Some("other"))]),
        query(&[("redirect_uri", None)]),
        query(&[("redirect_uri", Some(""))]),
        query(&[("redirect_uri", Some("https://agent.example/cb"))]),
        query(&[("redirect_uri", Some("https://agent.example/cb?x=1#"))]),
        query(&[(
            "redirect_uri",
            Some("https://agent.example.evil.example/cb?x=1"),
        )]),
        query(&[("redirect_uri", Some("http://127.0.0.1:1@evil.example/cb"))]),
        query(&[("redirect_uri", Some("javascript:alert(1)"))]),
        twice("client_id", "agent"),
        twice("redirect_uri", REDIRECT),
        query(&[("state", Some(&"x".repeat(9_000)))]),
    ] {
        let page = alone.authorize(&wrong).await;
        assert_eq!(page.status, 400, "{wrong}");
        assert!(!page.headers.contains_key("location"), "{wrong}");
        assert_is_a_page(&page);
        let data = alone.get(&format!("/oauth/consent?{wrong}")).await;
        assert_eq!(
            (data.status, data.error()),
            (400, "invalid_request"),
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn a_wrong_request_is_answered_to_its_client_with_state_and_issuer() {
    let alone = Alone::open().await;
    let changed = |changes: Value| query(&[("authorization_details", Some(&details(&changes)))]);
    let raw = |details: &str| query(&[("authorization_details", Some(details))]);
    let one = details(&json!({}));
    let one = one.trim_matches(['[', ']']);
    let request = "invalid_request";
    let in_details = "invalid_authorization_details";
    let scope = "invalid_scope";
    for (wrong, error) in [
        (query(&[("response_type", None)]), request),
        (
            query(&[("response_type", Some("token"))]),
            "unsupported_response_type",
        ),
        (
            query(&[("response_type", Some("code token"))]),
            "unsupported_response_type",
        ),
        (query(&[("response_mode", Some("fragment"))]), request),
        (
            query(&[("request", Some("x.y.z"))]),
            "request_not_supported",
        ),
        (
            query(&[("request_uri", Some("urn:x"))]),
            "request_uri_not_supported",
        ),
        (query(&[("code_challenge", None)]), request),
        (query(&[("code_challenge", Some(""))]), request),
        (query(&[("code_challenge", Some(&CHALLENGE[1..]))]), request),
        (
            query(&[("code_challenge", Some(&format!("{CHALLENGE}=")))]),
            request,
        ),
        (query(&[("code_challenge_method", None)]), request),
        (query(&[("code_challenge_method", Some("plain"))]), request),
        (query(&[("code_challenge_method", Some("s256"))]), request),
        (
            query(&[("resource", Some("https://elsewhere.example"))]),
            "invalid_target",
        ),
        (
            query(&[("resource", Some(&format!("{}.example", alone.url)))]),
            "invalid_target",
        ),
        (format!("{}&response_type=code", query(&[])), request),
        (format!("{}&prompt=a&prompt=b", query(&[])), request),
        (query(&[("authorization_details", None)]), in_details),
        (raw("no JSON"), in_details),
        (raw("[]"), in_details),
        (raw(one), in_details),
        (raw(&format!("[{one},{one}]")), in_details),
        (
            raw(&format!(
                "[{}]",
                one.replacen('{', r#"{"agent_id":"x","#, 1)
            )),
            in_details,
        ),
        (
            raw(&format!(
                "[{}]",
                one.replacen(r#"{"dev"#, &format!(r#"{{"{ACCEPT}":"ask","dev"#), 1)
            )),
            in_details,
        ),
        (changed(json!({"type": "payment"})), in_details),
        (changed(json!({"type": null})), in_details),
        (changed(json!({"floor": 1})), in_details),
        (changed(json!({"agent_id": null})), in_details),
        (changed(json!({"agent_id": ""})), in_details),
        (changed(json!({"agent_id": "x".repeat(256)})), in_details),
        (changed(json!({"agent_id": "a b"})), in_details),
        (changed(json!({"agent_id": "\u{202e}kcab"})), in_details),
        (changed(json!({"jkt": ""})), in_details),
        (changed(json!({"jkt": &JKT[1..]})), in_details),
        (
            changed(json!({"jkt": format!("{}*", &JKT[1..])})),
            in_details,
        ),
        (
            raw(&format!(
                "[{}]",
                one.replacen(&format!("\"{JKT}\""), "null", 1)
            )),
            in_details,
        ),
        (changed(json!({"tiers": null})), in_details),
        (changed(json!({"tiers": {}})), in_details),
        (changed(json!({"tiers": [ACCEPT]})), in_details),
        (changed(json!({"tiers": {ACCEPT: "always"}})), in_details),
        (changed(json!({"tiers": {ACCEPT: "forbid"}})), in_details),
        // Always `ask` (V31).
        (changed(json!({"tiers": {TERMS: "auto"}})), in_details),
        // Not offered here.
        (changed(json!({"tiers": {COUNTER: "ask"}})), scope),
        (
            changed(json!({"tiers": {"dev.rctp.deal:anything": "ask"}})),
            scope,
        ),
        // The buyer's verb, and those that are never granted (INV-3).
        (
            changed(json!({"tiers": {"dev.rctp.deal:offer_create": "auto"}})),
            scope,
        ),
        (
            changed(json!({"tiers": {"dev.rctp.deal:deal_sign_contract": "ask"}})),
            scope,
        ),
        (
            changed(json!({"tiers": {"deal.sign_contract": "ask"}})),
            scope,
        ),
        (changed(json!({"tiers": {"account.update": "ask"}})), scope),
        (query(&[("scope", Some(ACCEPT))]), scope),
        (scopes("openid"), scope),
        (scopes(&format!("{ACCEPT} {COUNTER}")), scope),
        (scopes(&format!("{ACCEPT}  {TERMS}")), scope),
        (scopes(""), in_details),
        (scopes(ANSWER), in_details),
        (
            query(&[("scope", Some(&format!("{ACCEPT} {REPRICE} {TERMS} openid")))]),
            scope,
        ),
    ] {
        let refused = alone.authorize(&wrong).await;
        assert_eq!(refused.status, 302, "{wrong}: {}", refused.text);
        assert_eq!(refused.headers["cache-control"], "no-store");
        let location = refused.headers["location"].to_str().unwrap();
        assert!(location.starts_with(&format!("{REDIRECT}&")), "{location}");
        let description = parameter(location, "error_description").unwrap();
        // RFC 6749 §4.1.2.1.
        assert!(
            description
                .bytes()
                .all(|b| matches!(b, b' '..=b'!' | b'#'..=b'[' | b']'..=b'~'))
        );
        let expected: Vec<(String, String)> = [
            ("x", "1"),
            ("error", error),
            ("error_description", &description),
            ("state", "a state & more"),
            ("iss", &alone.url),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        assert_eq!(brought(location), expected, "{wrong}");
        let data = alone.get(&format!("/oauth/consent?{wrong}")).await;
        assert_eq!((data.status, data.error()), (400, error), "{wrong}");
        let body = json!({"query": wrong, "decision": "allow", "tiers": {ACCEPT: "ask"}});
        let post = alone.post("/oauth/consent", &body).await;
        assert_eq!((post.status, post.error()), (400, error), "{wrong}");
    }
    // A state that is there twice is not repeated.
    let refused = alone.authorize(&format!("{}&state=b", query(&[]))).await;
    let location = refused.headers["location"].to_str().unwrap();
    assert_eq!(parameter(location, "error").unwrap(), request);
    assert_eq!(parameter(location, "state"), None);
    assert_eq!(parameter(location, "iss").unwrap(), alone.url);
}

#[tokio::test]
async fn a_fit_request_shows_the_consent_page_whoever_is_signed_in() {
    let alone = Alone::open().await;
    alone.login.as_(None);
    let mcp = format!("{}/mcp", alone.url);
    for fit in [
        query(&[]),
        format!("{}&&", query(&[("state", None)])),
        query(&[("scope", Some(&format!("{TERMS} {ACCEPT} {REPRICE}")))]),
        query(&[
            ("resource", Some(&mcp)),
            ("response_mode", Some("query")),
            ("unknown", Some("x")),
        ]),
        query(&[(
            "authorization_details",
            Some(&details(&json!({"jkt": null}))),
        )]),
        query(&[("redirect_uri", Some("http://127.0.0.1:51004/cb"))]),
        query(&[
            ("client_id", Some("plugin")),
            ("redirect_uri", Some("http://127.0.0.1:51004/cb")),
        ]),
    ] {
        let page = alone.authorize(&fit).await;
        assert_eq!(page.status, 200, "{fit}");
        assert_is_a_page(&page);
    }
    for (path, kind) in [
        ("/oauth/pages/consent.js", "text/javascript"),
        ("/oauth/pages/grants.js", "text/javascript"),
    ] {
        let script = alone.get(path).await;
        assert!(
            script.headers["content-type"]
                .to_str()
                .unwrap()
                .starts_with(kind)
        );
        assert_eq!(script.headers["x-content-type-options"], "nosniff");
    }
    let page = alone.get("/grants").await;
    assert_eq!(page.status, 200);
    assert_is_a_page(&page);
    let post = alone
        .post(&format!("/oauth/authorize?{}", query(&[])), &json!({}))
        .await;
    assert_eq!(post.status, 405);
}

fn assert_is_a_page(page: &Answer) {
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        (
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        assert_eq!(page.headers[name], value);
    }
    // The policy would not let it run.
    assert!(!page.text.contains("<script>") && !page.text.contains("style="));
}

#[tokio::test]
async fn the_browsers_routes_are_for_a_signed_in_seller_on_our_own_pages() {
    let alone = Alone::open().await;
    let allow = json!({"query": query(&[]), "decision": "allow", "tiers": {ACCEPT: "ask"}});
    let gets = [
        format!("/oauth/authorize?{}", query(&[])),
        format!("/oauth/consent?{}", query(&[])),
        "/grants".into(),
        "/grants/list".into(),
        "/oauth/pages/consent.js".into(),
    ];
    let posts = [("/oauth/consent", &allow), ("/grants/x/revoke", &json!({}))];
    let with = async |method: Method, path: &str, body: &Value, headers: &[(&str, &str)]| {
        let mut request = self::Alone::request(&alone, method, path).body(body.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(request.send().await.unwrap()).await
    };
    let json_ = ("content-type", "application/json");
    let ours = ("origin", &*alone.url);
    let agent = (
        "ucp-agent",
        "profile=\"https://agent.example/.well-known/ucp\"",
    );
    for path in &gets {
        let refused = with(Method::GET, path, &json!(""), &[agent]).await;
        assert_eq!(
            (refused.status, refused.error()),
            (403, "forbidden"),
            "{path}"
        );
    }
    for (path, body) in posts {
        for (headers, status) in [
            (&[ours, json_, agent][..], 403),
            (&[json_], 403),
            (&[json_, ("origin", "null")], 403),
            (&[json_, ("origin", "http://evil.example")], 403),
            (
                &[json_, ("origin", &alone.url.replace("http:", "https:"))],
                403,
            ),
            (&[json_, ("origin", &format!("{}/", alone.url))], 403),
            (&[json_, ours, ours], 403),
            (&[ours], 415),
            (&[ours, ("content-type", "text/plain")], 415),
            (
                &[ours, ("content-type", "application/x-www-form-urlencoded")],
                415,
            ),
        ] {
            let refused = with(Method::POST, path, body, headers).await;
            assert_eq!(refused.status, status, "{path} {headers:?}");
        }
    }
    alone.login.as_(None);
    for path in [&gets[1], "/grants/list"] {
        let refused = alone.get(path).await;
        assert_eq!(
            (refused.status, refused.error()),
            (401, "unauthenticated"),
            "{path}"
        );
    }
    for (path, body) in posts {
        let refused = alone.post(path, body).await;
        assert_eq!(
            (refused.status, refused.error()),
            (401, "unauthenticated"),
            "{path}"
        );
    }
    alone.login.as_(Some("nobody knows"));
    for (path, body) in posts {
        assert_eq!(alone.post(path, body).await.status, 503, "{path}");
    }
    assert!(!alone.directory.path().join("authorization.json").exists());
}

#[tokio::test]
async fn the_consent_page_learns_who_asks_for_what_and_how_it_can_be_lowered() {
    let alone = Alone::open().await;
    let signed = alone.get(&format!("/oauth/consent?{}", query(&[]))).await;
    assert_eq!(signed.headers["cache-control"], "no-store");
    assert_eq!(
        signed.body,
        json!({
            "client": {
                "client_id": "agent",
                "name": "agent, by name",
                "operator": "https://agent.example/.well-known/ucp",
                "legal_entity": "agent AG",
                "signs": true,
                "jkt": JKT,
            },
            "agent_id": "helper-1",
            "scopes": [
                {"scope": TERMS, "verb": "listing.set_terms", "title": "Propose new terms for a listing",
                 "tier": "ask", "allowed_tiers": ["ask"]},
                {"scope": REPRICE, "verb": "listing.reprice", "title": "Change the price of a listing",
                 "tier": "ask", "allowed_tiers": ["ask"]},
                {"scope": ACCEPT, "verb": "offer.accept", "title": "Accept an offer",
                 "tier": "auto", "allowed_tiers": ["auto", "ask"]},
            ],
            "expires_in_days": 30,
            "max_days": 90,
            "redirect_host": "agent.example",
        })
    );
    let unsigned = details(&json!({"jkt": null}));
    let unsigned = query(&[
        ("client_id", Some("plugin")),
        ("redirect_uri", Some("http://127.0.0.1:51004/cb")),
        ("authorization_details", Some(&unsigned)),
    ]);
    let said = alone.get(&format!("/oauth/consent?{unsigned}")).await.body;
    assert_eq!(said["client"]["signs"], false);
    assert_eq!(said["client"].get("jkt"), None);
    assert_eq!(said["redirect_host"], "127.0.0.1");
}

#[tokio::test]
async fn a_client_that_knows_scopes_alone_asks_for_them_at_their_default_tiers_unsigned() {
    let alone = Alone::open().await;
    // What is forbidden unless a tier is named is not asked for.
    let asked = scopes(&format!("{ACCEPT} {TERMS} {ANSWER}"));
    let shown = alone.get(&format!("/oauth/consent?{asked}")).await.body;
    assert_eq!(shown["agent_id"], "agent");
    assert_eq!(shown["client"]["signs"], false);
    let tiers: Vec<_> = shown["scopes"].as_array().unwrap().iter().collect();
    let tiers: Vec<_> = tiers.iter().map(|s| (&s["scope"], &s["tier"])).collect();
    assert_eq!(
        json!(tiers),
        json!([[TERMS, "ask"], [ACCEPT, "ask"]]),
        "the default of both"
    );

    // With details, what is in them counts: the scopes of a challenge, all of which such a client sends, are no more.
    let both = query(&[(
        "scope",
        Some(&format!("{REPRICE} {TERMS} {ACCEPT} {ANSWER}")),
    )]);
    let shown = alone.get(&format!("/oauth/consent?{both}")).await.body;
    assert_eq!(shown["agent_id"], "helper-1");
    assert_eq!(shown["scopes"].as_array().unwrap().len(), 3);

    let code = alone
        .allow(&asked, json!({TERMS: "ask", ACCEPT: "ask"}), None)
        .await;
    let tokens = alone.redeem(&code).await;
    let said = alone.introspect(&tokens.get("access_token")).await;
    assert_eq!(said.grant_status, Some(GrantStatus::Active));
    assert_eq!(said.cnf, None);
    let details = &tokens.body["authorization_details"][0];
    assert_eq!(details["agent_id"], "agent");
    assert_eq!(details["tiers"], json!({TERMS: "ask", ACCEPT: "ask"}));
}

#[tokio::test]
async fn the_seller_may_lower_and_refuse_but_never_give_more_than_was_asked() {
    let alone = Alone::open().await;
    let query = query(&[]);
    let all = json!({ACCEPT: "auto", REPRICE: "ask", TERMS: "ask"});
    let body = |tiers: &Value, days: Value| json!({"query": query, "decision": "allow", "tiers": tiers, "expires_in_days": days});
    for wrong in [
        json!({}),
        json!([]),
        json!({"query": query}),
        json!({"query": query, "decision": "perhaps"}),
        json!({"query": query, "decision": "allow"}),
        json!({"query": query, "decision": "allow", "tiers": all, "sub": "sub_other"}),
        body(&json!({}), json!(30)),
        body(&json!({ACCEPT: "forbid"}), json!(30)),
        body(&json!({ACCEPT: "never"}), json!(30)),
        // More than was asked.
        body(&json!({REPRICE: "auto"}), json!(30)),
        body(&json!({TERMS: "auto"}), json!(30)),
        body(
            &json!({ACCEPT: "ask", "dev.rctp.listing:listing_create": "ask"}),
            json!(30),
        ),
        body(&json!({ACCEPT: "ask", COUNTER: "ask"}), json!(30)),
        body(&all, json!(0)),
        body(&all, json!(-1)),
        body(&all, json!(91)),
        body(&all, json!(1.5)),
        body(&all, json!(i64::MAX)),
    ] {
        let refused = alone.post("/oauth/consent", &wrong).await;
        assert_eq!(
            (refused.status, refused.error()),
            (400, "invalid_request"),
            "{wrong}"
        );
    }
    let denied = json!({"query": format!("?{query}"), "decision": "deny"});
    let denied = alone.post("/oauth/consent", &denied).await.get("redirect");
    let said: Vec<_> = ["x", "error", "code", "state", "iss"]
        .map(|name| parameter(&denied, name))
        .into();
    let expected = [
        Some("1"),
        Some("access_denied"),
        None,
        Some("a state & more"),
        Some(&alone.url),
    ];
    assert_eq!(said, expected.map(|s| s.map(str::to_owned)));

    for (chosen, granted) in [
        (all.clone(), all.clone()),
        (
            json!({ACCEPT: "ask", REPRICE: "ask", TERMS: "ask"}),
            json!({ACCEPT: "ask", REPRICE: "ask", TERMS: "ask"}),
        ),
        (
            json!({ACCEPT: "ask", REPRICE: "forbid"}),
            json!({ACCEPT: "ask"}),
        ),
        (
            json!({ACCEPT: "forbid", TERMS: "ask"}),
            json!({TERMS: "ask"}),
        ),
    ] {
        let code = alone.allow(&query, chosen.clone(), None).await;
        let tokens = alone.redeem(&code).await;
        let scope = granted
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
            .join(" ");
        let details = json!([{"type": "dev.rctp.agent_grant", "agent_id": "helper-1", "jkt": JKT, "tiers": granted}]);
        assert_eq!(tokens.body["authorization_details"], details, "{chosen}");
        assert_eq!(tokens.get("scope"), scope);
        assert_eq!(tokens.get("token_type"), "Bearer");
        // It says nothing by itself.
        let opaque = tokens.get("access_token");
        assert!(
            opaque.len() >= 22 && !opaque.contains(['.', '{']),
            "{opaque}"
        );
        assert_eq!(tokens.body["expires_in"], 900);
        assert_eq!(tokens.headers["cache-control"], "no-store");
        let said = alone.introspect(&tokens.get("access_token")).await;
        assert!(said.active);
        assert_eq!(said.sub.as_deref(), Some("sub_seller"));
        assert_eq!(said.client_id.as_deref(), Some("agent"));
        assert_eq!(said.cnf.unwrap().jkt.as_deref(), Some(JKT));
        assert_eq!(json!(said.authorization_details), details);
        assert_eq!(said.scope, Some(scope));
    }
}

#[tokio::test]
async fn a_code_is_for_its_client_its_request_and_one_minute() {
    let alone = Alone::open().await;
    let fresh = async || alone.allow(&query(&[]), json!({ACCEPT: "ask"}), None).await;
    let good = [
        ("grant_type", "authorization_code"),
        ("redirect_uri", REDIRECT),
        ("code_verifier", VERIFIER),
    ];
    let other_verifier = VERIFIER.replace('d', "e");
    for (client, name, value, error) in [
        // These do not spend the code.
        (Some("agent"), "code", "", "invalid_request"),
        (Some("agent"), "redirect_uri", "", "invalid_request"),
        (Some("agent"), "code_verifier", "", "invalid_request"),
        (Some("agent"), "code_verifier", "short", "invalid_request"),
        (Some("agent"), "grant_type", "", "invalid_request"),
        (
            Some("agent"),
            "grant_type",
            "password",
            "unsupported_grant_type",
        ),
        (
            Some("agent"),
            "resource",
            "https://elsewhere.example",
            "invalid_target",
        ),
        (Some("agent"), "client_id", "other", "invalid_client"),
        (Some("agent"), "client_secret", SECRET, "invalid_client"),
        (Some("agent"), "code", "unknown", "invalid_grant"),
        (Some("gateway"), "x", "", "unauthorized_client"),
        (Some("other"), "x", "", "invalid_grant"),
        (None, "client_id", "plugin", "invalid_grant"),
        (None, "client_id", "agent", "invalid_client"),
        (None, "x", "", "invalid_client"),
        // These do.
        (
            Some("agent"),
            "redirect_uri",
            "https://agent.example/cb",
            "invalid_grant",
        ),
        (
            Some("agent"),
            "redirect_uri",
            "http://127.0.0.1/cb",
            "invalid_grant",
        ),
        (
            Some("agent"),
            "code_verifier",
            &other_verifier,
            "invalid_grant",
        ),
        (Some("agent"), "code_verifier", CHALLENGE, "invalid_grant"),
    ] {
        let code = fresh().await;
        let mut pairs = good.to_vec();
        pairs.push(("code", &code));
        pairs.retain(|(known, _)| *known != name);
        pairs.push((name, value));
        let refused = alone.form("/oauth/token", client, &pairs).await;
        assert_eq!(refused.error(), error, "{client:?} {name}={value}");
        let status = if error == "invalid_client" { 401 } else { 400 };
        assert_eq!(refused.status, status, "{client:?} {name}={value}");
        let spends = client == Some("agent") && error == "invalid_grant" && name != "code";
        let after = alone.redeem(&code).await;
        assert_eq!(
            after.status,
            if spends { 400 } else { 200 },
            "{client:?} {name}={value}"
        );
    }
    let code = fresh().await;
    let mut twice = good.to_vec();
    twice.extend([("code", &*code), ("code", &*code)]);
    let refused = alone.form("/oauth/token", Some("agent"), &twice).await;
    assert_eq!((refused.status, refused.error()), (400, "invalid_request"));

    alone.later(59);
    assert_eq!(alone.redeem(&code).await.status, 200);
    let code = fresh().await;
    alone.later(60);
    let late = alone.redeem(&code).await;
    assert_eq!((late.status, late.error()), (400, "invalid_grant"));
}

#[tokio::test]
async fn a_code_used_twice_takes_back_the_grant_that_it_gave() {
    let alone = Alone::open().await;
    let code = alone.allow(&query(&[]), json!({ACCEPT: "ask"}), None).await;
    let tokens = alone.redeem(&code).await;
    let access = tokens.get("access_token");
    // Another client knows the code; that alone takes nothing back.
    let pairs = [
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", REDIRECT),
        ("code_verifier", VERIFIER),
    ];
    assert_eq!(
        alone
            .form("/oauth/token", Some("other"), &pairs)
            .await
            .error(),
        "invalid_grant"
    );
    assert!(alone.introspect(&access).await.active);

    // Long after the code has expired, too, and over a restart.
    alone.later(DAY);
    let alone = alone.restart().await;
    let refreshed = alone.refresh(&tokens.get("refresh_token")).await;
    assert_eq!(refreshed.status, 200);
    assert_eq!(alone.redeem(&code).await.error(), "invalid_grant");
    for token in [access, refreshed.get("access_token")] {
        let said = alone.introspect(&token).await;
        assert_eq!(
            (said.active, said.grant_status),
            (false, Some(GrantStatus::Revoked))
        );
    }
    let ended = alone.refresh(&refreshed.get("refresh_token")).await;
    assert_eq!((ended.status, ended.error()), (400, "invalid_grant"));
}

#[tokio::test]
async fn two_at_once_get_one_grant_at_most() {
    let alone = Alone::open().await;
    let code = alone.allow(&query(&[]), json!({ACCEPT: "ask"}), None).await;
    let (one, two) = tokio::join!(alone.redeem(&code), alone.redeem(&code));
    assert_eq!(one.status.min(two.status), 200);
    assert_eq!(one.status.max(two.status), 400);
    let token = if one.status == 200 { one } else { two };
    let said = alone.introspect(&token.get("access_token")).await;
    assert_eq!(said.grant_status, Some(GrantStatus::Revoked));
}

#[tokio::test]
async fn a_public_client_proves_by_pkce_that_it_asked() {
    let alone = Alone::open().await;
    let redirect = "http://127.0.0.1:51004/cb";
    let query = query(&[
        ("client_id", Some("plugin")),
        ("redirect_uri", Some(redirect)),
    ]);
    let code = alone.allow(&query, json!({ACCEPT: "ask"}), None).await;
    let pairs = [
        ("grant_type", "authorization_code"),
        ("client_id", "plugin"),
        ("code", &code),
        ("redirect_uri", redirect),
        ("code_verifier", VERIFIER),
    ];
    let tokens = alone.form("/oauth/token", None, &pairs).await;
    assert_eq!(tokens.status, 200, "{}", tokens.text);
    let first = tokens.get("refresh_token");
    let refresh = [
        ("grant_type", "refresh_token"),
        ("client_id", "plugin"),
        ("refresh_token", &first),
    ];
    let tokens = alone.form("/oauth/token", None, &refresh).await;
    assert_eq!(tokens.status, 200, "{}", tokens.text);
    let own = [
        ("grant_type", "client_credentials"),
        ("client_id", "plugin"),
    ];
    assert_eq!(
        alone.form("/oauth/token", None, &own).await.error(),
        "unauthorized_client"
    );
    // Without a secret there is nothing to authenticate with.
    let basic = alone.form("/oauth/token", Some("plugin"), &refresh).await;
    assert_eq!((basic.status, basic.error()), (401, "invalid_client"));
    let introspect = [("client_id", "plugin"), ("token", &first)];
    assert_eq!(
        alone
            .form("/oauth/introspect", None, &introspect)
            .await
            .error(),
        "unauthorized_client"
    );

    let access = tokens.get("access_token");
    let revoke = [("client_id", "plugin"), ("token", &access)];
    assert_eq!(alone.form("/oauth/revoke", None, &revoke).await.status, 200);
    let said = alone.introspect(&access).await;
    assert_eq!(said.grant_status, Some(GrantStatus::Revoked));
}

#[tokio::test]
async fn clients_authenticate_by_http_basic_alone() {
    let alone = Alone::open().await;
    let own = form(&[("grant_type", "client_credentials")]);
    let basic = |pair: &str| {
        use base64::{Engine, engine::general_purpose::STANDARD};
        format!("Basic {}", STANDARD.encode(pair))
    };
    let good = basic(&format!(
        "agent:{}",
        form(&[(SECRET, "")]).trim_end_matches('=')
    ));
    for (headers, status) in [
        (&[&*good][..], 200),
        (&[&good.replace("Basic", "bAsIc")], 200),
        (&[&good, &good], 401),
        (&[&basic("agent:wrong")], 401),
        (&[&basic("agent:")], 401),
        (&[&basic("agent")], 401),
        (&[&basic("nobody:x")], 401),
        (&[&basic("plugin:")], 401),
        (&["Basic *"], 401),
        (&["Bearer x"], 401),
        (&[], 401),
    ] {
        let mut post = alone
            .request(Method::POST, "/oauth/token")
            .body(own.clone());
        for value in headers {
            post = post.header("authorization", *value);
        }
        let answer = Answer::read(post.send().await.unwrap()).await;
        assert_eq!(answer.status, status, "{headers:?}");
        if status == 401 {
            assert_eq!(answer.error(), "invalid_client");
            assert_eq!(answer.headers["www-authenticate"], "Basic realm=\"rctp\"");
        }
    }
}

#[tokio::test]
async fn refresh_rotates_and_never_extends_the_grant() {
    let alone = Alone::open().await;
    let (first_access, mut refresh) = alone.tokens(90).await;
    let ends = alone.get("/grants/list").await.body["grants"][0]["expires_at"].clone();
    let used = refresh.clone();
    for _ in 0..3 {
        alone.later(30 * DAY - 100);
        let renewed = alone.refresh(&refresh).await;
        assert_eq!(renewed.status, 200, "{}", renewed.text);
        refresh = renewed.get("refresh_token");
        assert_eq!(
            alone.get("/grants/list").await.body["grants"][0]["expires_at"],
            ends
        );
        // Not past the grant's end, either.
        let left = 300.min(renewed.body["expires_in"].as_i64().unwrap());
        assert_eq!(left, 300);
    }
    let last = alone.refresh(&refresh).await;
    assert_eq!(last.body["expires_in"], 300);
    alone.later(300);
    let said = alone.introspect(&last.get("access_token")).await;
    assert_eq!(
        (said.active, said.grant_status),
        (false, Some(GrantStatus::Expired))
    );
    assert_eq!(
        alone.refresh(&last.get("refresh_token")).await.error(),
        "invalid_grant"
    );
    // Its first token is long forgotten; it is as good as unknown.
    assert!(!alone.introspect(&first_access).await.known());
    assert_eq!(alone.refresh(&used).await.error(), "invalid_grant");
}

#[tokio::test]
async fn however_old_a_used_refresh_token_is_it_revokes_the_grant() {
    let alone = Alone::open().await;
    let (_, first) = alone.tokens(90).await;
    let mut last = alone.refresh(&first).await;
    for _ in 0..100 {
        alone.later(DAY / 2);
        last = alone.refresh(&last.get("refresh_token")).await;
    }
    let alone = alone.restart().await;
    let other = [("grant_type", "refresh_token"), ("refresh_token", &*first)];
    assert_eq!(
        alone
            .form("/oauth/token", Some("other"), &other)
            .await
            .error(),
        "invalid_grant"
    );
    assert!(alone.introspect(&last.get("access_token")).await.active);
    assert_eq!(alone.refresh(&first).await.error(), "invalid_grant");
    let said = alone.introspect(&last.get("access_token")).await;
    assert_eq!(said.grant_status, Some(GrantStatus::Revoked));
}

#[tokio::test]
async fn what_introspection_says_follows_the_clock() {
    let alone = Alone::open().await;
    let granted = Granted {
        sub: "sub_seller".into(),
        client_id: "agent".into(),
        agent_id: "helper-1".into(),
        jkt: None,
        tiers: [(ACCEPT.to_owned(), Tier::Ask)].into(),
    };
    let tokens = alone.server.grant(granted).await.unwrap();
    let said = alone.introspect(&tokens.access_token).await;
    assert!(said.active && said.is_grant());
    assert_eq!(said.scope.as_deref(), Some(ACCEPT));
    alone.later(900);
    let said = alone.introspect(&tokens.access_token).await;
    assert!(!said.active && !said.is_grant());
    assert_eq!(said.grant_status, Some(GrantStatus::Active));
    assert_eq!(said.client_id.as_deref(), Some("agent"));
    alone.later(30 * DAY);
    let said = alone.introspect(&tokens.access_token).await;
    assert_eq!(said.grant_status, Some(GrantStatus::Expired));
}

#[tokio::test]
async fn the_seller_sees_and_takes_back_their_own_grants() {
    let alone = Alone::open().await;
    let (access, _) = alone.tokens(7).await;
    alone.later(1);
    let (later, _) = alone.tokens(1).await;
    let list = alone.get("/grants/list").await.body;
    let grants = list["grants"].as_array().unwrap();
    assert_eq!(grants.len(), 2);
    let at = |seconds| json!(Timestamp::from_secs(1_790_000_000 + seconds));
    let grant = &grants[1];
    let id = grant["grant_id"].as_str().unwrap();
    assert_eq!(
        *grant,
        json!({
            "grant_id": id,
            "client": {
                "client_id": "agent",
                "name": "agent, by name",
                "operator": "https://agent.example/.well-known/ucp",
                "legal_entity": "agent AG",
                "signs": true,
                "jkt": JKT,
            },
            "agent_id": "helper-1",
            "tiers": {ACCEPT: "ask"},
            "created_at": at(0),
            "expires_at": at(7 * DAY),
            "status": "active",
        })
    );
    let path = format!("/grants/{id}/revoke");
    alone.login.as_(Some("sub_other"));
    assert_eq!(alone.get("/grants/list").await.body, json!({"grants": []}));
    assert_eq!(alone.post(&path, &json!({})).await.status, 404);
    alone.login.as_(Some("sub_seller"));
    assert_eq!(
        alone
            .post("/grants/nothing/revoke", &json!({}))
            .await
            .status,
        404
    );
    assert!(alone.introspect(&access).await.active);
    for _ in 0..2 {
        assert_eq!(alone.post(&path, &json!({})).await.status, 204);
    }
    let said = alone.introspect(&access).await;
    assert_eq!(
        (said.active, said.grant_status),
        (false, Some(GrantStatus::Revoked))
    );
    assert!(alone.introspect(&later).await.active);
    assert_eq!(
        alone.get("/grants/list").await.body["grants"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    alone.later(DAY);
    assert_eq!(alone.get("/grants/list").await.body, json!({"grants": []}));
}

#[tokio::test]
async fn a_ticket_is_for_its_seller_for_ten_minutes() {
    let alone = Alone::open().await;
    let ticket = alone.server.enrol_ticket("sub_seller").await.unwrap();
    assert!(!alone.file().contains(&ticket));
    let alone = alone.restart().await;
    alone.later(599);
    assert_eq!(
        alone.server.ticket_seller(&ticket).as_deref(),
        Some("sub_seller")
    );
    assert_eq!(alone.server.ticket_seller("another"), None);
    alone.later(1);
    assert_eq!(alone.server.ticket_seller(&ticket), None);
}

#[tokio::test]
async fn secrets_are_kept_as_digests_and_outlive_a_restart() {
    let alone = Alone::open().await;
    let (access, refresh) = alone.tokens(30).await;
    let code = alone.allow(&query(&[]), json!({ACCEPT: "ask"}), None).await;
    let own = alone
        .form(
            "/oauth/token",
            Some("buyer"),
            &[("grant_type", "client_credentials")],
        )
        .await
        .get("access_token");
    let alone = alone.restart().await;
    let kept = alone.file();
    for secret in [&access, &code, &own]
        .into_iter()
        .map(String::as_str)
        .chain(refresh.split('.'))
    {
        assert!(!kept.contains(secret));
    }
    assert!(alone.introspect(&access).await.active);
    assert!(alone.introspect(&own).await.active);
    assert_eq!(alone.redeem(&code).await.status, 200);
    assert_eq!(alone.refresh(&refresh).await.status, 200);
}

#[tokio::test]
async fn what_ended_is_forgotten_so_that_the_file_does_not_grow() {
    let alone = Alone::open().await;
    let mut largest = 0;
    let (_, mut refresh) = alone.tokens(90).await;
    let mut sizes = Vec::new();
    for round in 0..150 {
        alone.later(900);
        refresh = alone.refresh(&refresh).await.get("refresh_token");
        // Codes that nobody fetches, tickets that nobody uses, tokens of their own.
        alone.allow(&query(&[]), json!({ACCEPT: "ask"}), None).await;
        alone.server.enrol_ticket("sub_seller").await.unwrap();
        let own = [("grant_type", "client_credentials")];
        alone.form("/oauth/token", Some("buyer"), &own).await;
        sizes.push(alone.file().len());
        largest = largest.max(sizes[round]);
    }
    // From where the tokens of the grant that are remembered are at their number.
    assert_eq!(sizes[100], largest, "{sizes:?}");
    assert!(largest < 20_000, "{largest}");

    // However often one asks at one moment.
    for _ in 0..80 {
        refresh = alone.refresh(&refresh).await.get("refresh_token");
    }
    assert!(alone.file().len() <= largest + 400);

    // All of it is over, and one change is the occasion.
    alone.later(90 * DAY + 7 * DAY);
    let own = [("grant_type", "client_credentials")];
    alone.form("/oauth/token", Some("buyer"), &own).await;
    let kept: Value = serde_json::from_str(&alone.file()).unwrap();
    for (what, left) in [
        ("grants", 0),
        ("access", 1),
        ("lines", 0),
        ("codes", 0),
        ("tickets", 0),
    ] {
        assert_eq!(kept[what].as_object().unwrap().len(), left, "{what}");
    }
}

#[tokio::test]
async fn a_client_of_the_ecosystem_completes_the_flow_and_is_cut_off_after_reuse() {
    use oauth2::{
        AsyncHttpClient, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken,
        EndpointNotSet, EndpointSet, HttpRequest, HttpResponse, PkceCodeChallenge, RedirectUrl,
        RefreshToken, RequestTokenError, TokenResponse, TokenUrl, basic::BasicClient,
    };

    let login = Arc::new(SignedIn::default());
    let shop = Shop::with_login(login.clone()).await;
    login.as_(Some(&shop.world.seller_sub));
    // At the name that browsers allow passkeys to.
    let (url, seller) = (shop.running().rctp.public_url(), &shop.world.agents.seller);
    let http = |request: HttpRequest| {
        let http = shop.http.clone();
        async move {
            let request = reqwest::Request::try_from(request).unwrap();
            let response = http.execute(request).await?;
            let mut answer = http::Response::builder().status(response.status());
            *answer.headers_mut().unwrap() = response.headers().clone();
            Ok::<HttpResponse, reqwest::Error>(answer.body(response.bytes().await?.into()).unwrap())
        }
    };
    fn is_client<'c>(_: &impl AsyncHttpClient<'c>) {}
    is_client(&http);

    // Everything it needs is found from the gateway, as a stranger finds it.
    let resource = shop.get("/.well-known/oauth-protected-resource").await.body;
    let issuer = resource["authorization_servers"][0]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(issuer, url);
    let metadata = shop.get("/.well-known/oauth-authorization-server").await;
    assert_eq!(metadata.get("issuer"), issuer);
    let redirect = CALLBACK.replace("127.0.0.1", "127.0.0.1:51004");

    type Ready =
        BasicClient<EndpointSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet>;
    let ready = |id: &str, secret: Option<&str>| -> Ready {
        let client = BasicClient::new(ClientId::new(id.into()))
            .set_auth_uri(AuthUrl::new(metadata.get("authorization_endpoint")).unwrap())
            .set_token_uri(TokenUrl::new(metadata.get("token_endpoint")).unwrap())
            .set_redirect_uri(RedirectUrl::new(redirect.clone()).unwrap());
        match secret {
            Some(secret) => client.set_client_secret(ClientSecret::new(secret.into())),
            None => client,
        }
    };
    let accept = async |token: &str, signs: bool| {
        let offer = shop.offer(&shop.world.listing_id, 50_000).await;
        let path = format!("/offers/{}/accept", offer.get("offer_id"));
        match signs {
            true => shop.seller(&path, token).await,
            false => shop.unsigned(&path, token, json!({})).await,
        }
    };
    for (client, signs) in [
        (ready(&seller.client_id, Some(&seller.client_secret)), true),
        (ready(PLUGIN, None), false),
    ] {
        let mut details = json!([{
            "type": "dev.rctp.agent_grant",
            "agent_id": "helper-1",
            "tiers": {ACCEPT: "auto"},
        }]);
        if signs {
            details[0]["jkt"] = json!(seller.key.kid());
        }
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let (to, state) = client
            .authorize_url(CsrfToken::new_random)
            .set_pkce_challenge(challenge)
            .add_extra_param("authorization_details", details.to_string())
            .url();

        // The seller's browser: the page, what it asks, and what the seller says.
        let page = shop.get(&to.as_str()[url.len()..]).await;
        assert_eq!(page.status, 200);
        let asked = format!("/oauth/consent?{}", to.query().unwrap());
        let asked = shop.get(&asked).await.body;
        assert_eq!(asked["client"]["operator"], seller.profile);
        assert_eq!(asked["scopes"][0]["tier"], "auto");
        let allow = json!({"query": to.query(), "decision": "allow", "tiers": {ACCEPT: "ask"}, "expires_in_days": 7});
        let allow = shop
            .http
            .post(format!("{url}/oauth/consent"))
            .header("origin", url)
            .json(&allow);
        let back = Answer::read(allow.send().await.unwrap())
            .await
            .get("redirect");
        assert!(back.starts_with(&format!("{redirect}?code=")), "{back}");
        assert_eq!(parameter(&back, "state").unwrap(), *state.secret());
        assert_eq!(parameter(&back, "iss").unwrap(), issuer);

        let code = AuthorizationCode::new(parameter(&back, "code").unwrap());
        let exchange = client.exchange_code(code).set_pkce_verifier(verifier);
        let first = exchange.request_async(&http).await.unwrap();
        assert_eq!(first.expires_in().unwrap().as_secs(), 900);
        assert_eq!(first.scopes().unwrap().len(), 1);
        let access = first.access_token().secret();
        // Lowered to `ask`.
        assert_eq!(accept(access, signs).await.status, 202);

        let used: &RefreshToken = first.refresh_token().unwrap();
        let second = client
            .exchange_refresh_token(used)
            .request_async(&http)
            .await
            .unwrap();
        let renewed = second.access_token().secret();
        assert_eq!(accept(renewed, signs).await.status, 202);

        let reused = client
            .exchange_refresh_token(used)
            .request_async(&http)
            .await;
        let Err(RequestTokenError::ServerResponse(refused)) = reused else {
            panic!("{reused:?}");
        };
        assert_eq!(refused.error().as_ref(), "invalid_grant");
        for token in [access, renewed] {
            let refused = accept(token, signs).await;
            assert_eq!((refused.status, refused.error()), (403, "grant_revoked"));
        }
        let ended = client.exchange_refresh_token(second.refresh_token().unwrap());
        assert!(ended.request_async(&http).await.is_err());
    }
    shop.close().await;
}
