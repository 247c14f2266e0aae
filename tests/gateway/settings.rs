//! Every setting, and what is said of a wrong one.

use std::{fs, path::Path};

use clap::Parser;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_rctp::wire::jwk::SigningKey;

use crate::gateway::{
    Cli, Config,
    app::{self, Error},
    files::Secret,
    start,
};

const EXAMPLE: &str = include_str!("../../examples/gateway/gateway.toml");
#[test]
fn the_documented_settings_are_the_defaults() {
    assert_eq!(Config::parse(EXAMPLE), Ok(Config::dev()));
}

#[test]
fn the_commented_settings_make_a_production_gateway() {
    let config = production();
    assert!(!config.dev);
    assert_eq!(config.operators[0].clients, ["agent-plugin"]);
    assert_eq!(app::check(&config), Ok(()));
}

/// `gateway.toml` with its commented settings in force, and a secret.
pub fn production() -> Config {
    let lines = EXAMPLE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => setting,
            _ if line == "dev = true" => "dev = false",
            _ => line,
        })
        .collect::<Vec<_>>();
    let mut config = Config::parse(&lines.join("\n")).unwrap();
    config.client_secret = Some(Secret::new("s3cret"));
    config
}

#[test]
fn every_wrong_setting_is_named_with_what_to_write() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let no_key = format!("dev = true\nsigning_key = {:?}", file("a", "not a key"));
    let server = "issuer = 'https://as.example'\nclient_id = 'g'\nintrospection_endpoint = 'https://as.example/i'";
    let production = |rest: &str| {
        format!(
            "public_url = 'https://g.example'\noperators = [{{ profile = 'https://a.example/p' }}]\n{rest}"
        )
    };
    let former = |name: &str, jwk: &Value| {
        format!(
            "dev = true\nformer_keys = [{:?}]",
            file(name, &jwk.to_string())
        )
    };
    let key = SigningKey::generate().unwrap().public_jwk();
    let mut private = key.clone();
    private["d"] = json!("AAAA");
    let twice = former("g", &key).replace('[', &format!("[{:?}, ", file("h", &key.to_string())));
    // That of RFC 8037 appendix A.
    let ed25519 = json!({
        "kid": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
        "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    });
    let secret_file = |path: &str| {
        production(&format!(
            "[authorization_server]\n{server}\nclient_secret_file = {path:?}"
        ))
    };
    let table: Vec<(String, &[&str])> = vec![
        ("dev".into(), &["line 1"]),
        ("lisen = 'x'".into(), &["lisen", "unknown field", "listen"]),
        ("dev = 'yes'".into(), &["dev", "boolean"]),
        ("dev = true\nlisten = 'localhost'".into(), &["listen", "127.0.0.1:8080"]),
        ("dev = true\nlisten = '0.0.0.0:80'".into(), &["listen", "loopback", "127.0.0.1:80"]),
        (String::new(), &["public_url", "missing", "https"]),
        ("public_url = 'g.example'".into(), &["public_url", "no URL"]),
        ("public_url = 'http://g.example'".into(), &["public_url", "https"]),
        ("public_url = 'https://g.example/shop'".into(), &["public_url", "path"]),
        ("dev = true\nmechanisms = []".into(), &["mechanisms", "http_signature"]),
        ("mechanisms = ['mtls']".into(), &["mechanisms[0]", "http_signature", "oauth"]),
        ("dev = true\nterm_sets = []".into(), &["term_sets", "at least one"]),
        ("dev = true\nterm_sets = ['goods-9']".into(), &["term_sets", "goods-9", "goods-1"]),
        ("[tiers]\n'dev.rctp.deal:x' = { default_tier = 'no' }".into(), &["tiers", "default_tier", "auto"]),
        (
            "dev = true\n[tiers]\n'dev.rctp.deal:x' = { default_tier = 'ask', allowed_tiers = ['ask'] }".into(),
            &["tiers", "dev.rctp.deal:offer_accept"],
        ),
        (
            "dev = true\n[tiers]\n'dev.rctp.deal:offer_accept' = { default_tier = 'ask', allowed_tiers = ['auto'] }"
                .into(),
            &["tiers", "offer_accept", "default_tier"],
        ),
        ("[offer_budget]\nper_agent = -1".into(), &["offer_budget.per_agent", "line 2"]),
        ("dev = true\n[offer_budget]\nwindow_hours = 0".into(), &["offer_budget.window_hours", "at least 1"]),
        ("dev = true\n[offer_expiry]\ndefault_seconds = 9\nmax_seconds = 8".into(), &["offer_expiry.default_seconds"]),
        ("dev = true\n[limits]\napproval_seconds = 0".into(), &["limits.approval_seconds", "at least 1"]),
        ("dev = true\n[webhooks]\nreceivers_at_once = 0".into(), &["webhooks.receivers_at_once", "at least 1"]),
        ("dev = true\n[webhooks]\ntimeout_seconds = 0".into(), &["webhooks.timeout_seconds", "1 to 60"]),
        ("dev = true\n[webhooks]\ntimeout_seconds = 61".into(), &["webhooks.timeout_seconds", "1 to 60"]),
        ("dev = true\n[webhooks]\ndev_url = '/hook'".into(), &["webhooks.dev_url", "absolute"]),
        ("[webhooks]\ndev_url = 'http://127.0.0.1:9000/'".into(), &["webhooks.dev_url", "development"]),
        ("dev = true\n[webhooks]\nretries = 3".into(), &["retries"]),
        ("[limits]\napproval_seconds = '15 min'".into(), &["limits.approval_seconds", "line 2"]),
        ("[limits]\napproval_minutes = 15".into(), &["limits", "approval_minutes", "approval_seconds"]),
        ("dev = true\n[server]\nconcurrent_requests = 0".into(), &["server.concurrent_requests", "at least 1"]),
        ("[server]\nrequests_per_second = -1".into(), &["server.requests_per_second", "line 2"]),
        ("dev = true\n[telemetry]\notlp_endpoint = 'collector:4318'".into(), &["telemetry.otlp_endpoint", "http://127.0.0.1:4318"]),
        (no_key, &["signing_key", "PEM"]),
        ("dev = true\nformer_keys = ['/no/such/key']".into(), &["former_keys", "/no/such/key"]),
        (format!("dev = true\nformer_keys = [{:?}]", file("e", "PEM")), &["former_keys", "not JSON", "/.well-known/ucp"]),
        (former("i", &private), &["former_keys", "private"]),
        (former("j", &ed25519), &["former_keys", "P-256"]),
        (twice, &["former_key", "twice"]),
        ("[[operators]]\nclients = []".into(), &["operators[0]", "profile"]),
        (
            "dev = true\n[[operators]]\nprofile = 'https://a.example/p'\n[[operators]]\nprofile = 'https://a.example/p'".into(),
            &["operators", "https://a.example/p", "twice"],
        ),
        ("[[operators]]\nprofile = 'p'\nroles = ['judge']".into(), &["operators[0].roles[0]", "funds_holder"]),
        (
            format!("public_url = 'https://g.example'\n[authorization_server]\n{server}"),
            &["operators", "[[operators]]"],
        ),
        (production(""), &["authorization_server", "introspection_endpoint"]),
        (
            format!("dev = true\n[authorization_server]\n{server}"),
            &["authorization_server", "dev = false"],
        ),
        (
            production(&format!("[authorization_server]\n{}", server.replace("https", "http"))),
            &["authorization_server.issuer", "https"],
        ),
        (
            production(&format!("[authorization_server]\n{}", server.replace("'g'", "''"))),
            &["authorization_server.client_id", "empty"],
        ),
        (
            production(&format!("[authorization_server]\n{server}")),
            &["authorization_server.client_secret_file", "RCTP_CLIENT_SECRET"],
        ),
        (secret_file("/no/such/file"), &["authorization_server.client_secret_file", "/no/such/file"]),
        (secret_file(&file("b", "\n")), &["authorization_server.client_secret_file", "empty"]),
        (
            secret_file(&file("c", "s")).replace("https://a.example/p", "http://a.example/p"),
            &["operators", "http://a.example`", "https"],
        ),
        (
            secret_file(&file("d", "s")).replace(
                "[{ profile = 'https://a.example/p' }]",
                "[{ profile = 'https://a.example/', clients = ['c'] }, { profile = 'https://b.example/', clients = ['c'] }]",
            ),
            &["operators", "`c`"],
        ),
        (
            "dev = true\n[[operators]]\nprofile = 'http://a.example/p'".into(),
            &["operators", "http://a.example`", "loopback"],
        ),
    ];
    for (text, words) in table {
        let error = Config::parse(&text).and_then(|config| app::check(&config));
        let Err(Error(message)) = error else {
            panic!("accepted: {text}");
        };
        for word in words {
            assert!(
                message.contains(word),
                "{word:?} is not in {message:?}\nof {text}"
            );
        }
    }
}

#[test]
fn a_secret_that_was_put_into_the_file_is_not_repeated_by_the_error() {
    for text in [
        "[authorization_server]\nclient_secret = 'hunter2'",
        "client_secret = hunter2",
        "client_secret = 'hunter2",
    ] {
        let Error(message) = Config::parse(text).unwrap_err();
        assert!(!message.contains("hunter2"), "{message}");
        assert!(message.contains("line "), "{message}");
    }
}

#[test]
fn the_command_line_comes_before_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    fs::write(&file, "dev = true\nlisten = '127.0.0.1:1'\nstore = 'a.db'").unwrap();
    let cli = Cli::try_parse_from([
        "gateway",
        "--config",
        file.to_str().unwrap(),
        "--listen",
        "127.0.0.1:2",
    ]);
    let config = cli.unwrap().config().unwrap();
    assert_eq!(config.listen, "127.0.0.1:2");
    assert_eq!(config.store, Path::new("a.db"));
}

#[tokio::test]
async fn a_taken_port_and_files_that_cannot_be_used_are_named() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        listen: taken.local_addr().unwrap().to_string(),
        ..Config::dev_in(directory.path())
    };
    let message = start(config).await.err().unwrap().0;
    assert!(
        message.starts_with("listen: ") && message.contains("--listen"),
        "{message}"
    );

    let config = Config {
        signing_key: directory.path().join("missing/key.pem"),
        ..Config::dev_in(directory.path())
    };
    let message = start(config).await.err().unwrap().0;
    assert!(message.starts_with("signing_key: ") && message.contains("directory must exist"));

    for (store, word) in [
        ("missing/rctp.db", "directory"),
        ("text", "no SQLite database"),
    ] {
        let store = directory.path().join(store);
        fs::write(
            directory.path().join("text"),
            "This is no database, but some text.",
        )
        .unwrap();
        let config = Config {
            store,
            ..Config::dev_in(directory.path())
        };
        let message = start(config).await.err().unwrap().0;
        assert!(
            message.starts_with("store: ") && message.contains(word),
            "{message}"
        );
    }
}
