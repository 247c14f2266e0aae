//! The program: its exit status, its signals, and that its logs hold no secret.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
};

use axum::{Json, Router, routing::get};
use clap::Parser;
use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_rctp::wire::jwk::SigningKey;

use crate::{
    gateway::{self, Cli, DevWorld, dev::DevAgent},
    shop::{FLOOR, Shop, sign},
};

/// Not a test by itself: the others start this one in a process of its own, as the program with the arguments that
/// `GATEWAY_ARGUMENTS` holds.
#[test]
fn as_a_program() {
    let Ok(arguments) = std::env::var("GATEWAY_ARGUMENTS") else {
        return;
    };
    let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
    let cli = Cli::try_parse_from(arguments).unwrap_or_else(|e| e.exit());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    std::process::exit(match runtime.block_on(gateway::run(cli)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("gateway: {error}");
            1
        }
    });
}

fn program(arguments: &[&str], directory: &Path) -> Command {
    let arguments: Vec<&str> = ["gateway"].iter().chain(arguments).copied().collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RCTP_") {
            command.env_remove(name);
        }
    }
    command
        .args(["program::as_a_program", "--exact", "--nocapture"])
        .env(
            "GATEWAY_ARGUMENTS",
            serde_json::to_string(&arguments).unwrap(),
        )
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn check_says_whether_the_settings_are_fine_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let good = program(&["--check"], directory.path()).output().unwrap();
    assert!(good.status.success(), "{good:?}");
    let bad = program(&["--check"], directory.path())
        .env("RCTP_LISTEN", "nowhere")
        .output()
        .unwrap();
    assert_eq!(bad.status.code(), Some(1));
    let said = String::from_utf8(bad.stderr).unwrap();
    assert!(said.contains("gateway: listen: `nowhere`"), "{said}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn it_ends_on_sigterm_and_its_logs_hold_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = program(&["--log-format", "json"], directory.path());
    command
        .env("RCTP_LISTEN", "127.0.0.1:0")
        .env("RCTP_LOG", "trace");
    let program = Started::of(command.spawn().unwrap());
    let shop = Shop::visit(DevWorld::load(&directory.path().join("rctp-dev")).unwrap());
    assert_eq!(shop.world.url, format!("http://{}", program.address));

    let listing = shop.new_listing().await;
    let low = shop.offer(&listing, FLOOR - 1).await;
    assert_eq!(low.status, 422);
    let offer = shop.offer(&listing, FLOOR + 1).await;
    let grant = shop.marketplace("/dev/grants", json!({})).await;
    let accept = format!("/offers/{}/accept", offer.get("offer_id"));
    let accepted = shop.seller(&accept, &grant.get("access_token")).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    let form = [
        ("grant_type", "refresh_token"),
        ("refresh_token", &grant.get("refresh_token")),
    ];
    let renewed = shop.token(&shop.world.agents.seller, &form).await;
    assert_eq!(
        shop.revoke(&shop.world.agents.seller, &renewed.get("access_token"))
            .await,
        200
    );

    let (status, said) = program.terminate();
    assert!(status.success(), "{status}\n{said}");
    for line in [
        r#""message":"stopped""#,
        r#""operation":"accept_offer","decision":"auto""#,
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    let world = serde_json::to_value(&shop.world).unwrap();
    let mut secrets = vec![
        shop.world.secret.clone(),
        FLOOR.to_string(),
        (FLOOR - 1).to_string(),
        (FLOOR + 1).to_string(),
        "PRIVATE KEY".into(),
        accepted.get("checkout"),
    ];
    for tokens in [
        &grant.body,
        &renewed.body,
        &world["grants"]["auto"],
        &world["grants"]["unsigned"],
    ] {
        secrets.push(tokens["access_token"].as_str().unwrap().into());
        secrets.push(tokens["refresh_token"].as_str().unwrap().into());
    }
    for agent in world["agents"].as_object().unwrap().values() {
        secrets.push(agent["client_secret"].as_str().unwrap().into());
        secrets.extend(
            agent["key"]
                .as_str()
                .unwrap()
                .lines()
                .filter(|l| !l.starts_with('-'))
                .map(str::to_owned),
        );
    }
    for secret in secrets {
        assert!(
            !secret.is_empty() && !said.contains(&secret),
            "{secret:?} is in\n{said}"
        );
    }
}

/// The operators of the settings, on SIGHUP: come, changed, kept by a mistake, gone; on a running program.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn sighup_takes_over_the_operators_of_the_file() {
    let key = SigningKey::generate().unwrap();
    let document = json!({
        "ucp": {
            "version": "2026-08-25", "services": {}, "payment_handlers": {},
            "capabilities": {"dev.rctp.operator": [{"version": "2026-11-draft5", "config": {
                "legal_entity": "Newcomer AG", "jurisdiction": "CH",
                "incident_contact": "security@newcomer.example", "incident_sla_hours": 24,
            }}]},
        },
        "keys": [key.public_jwk()],
    });
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let profile = format!("http://{}/.well-known/ucp", origin.local_addr().unwrap());
    let served = Router::new().route("/.well-known/ucp", get(async || Json(document)));
    tokio::spawn(async { axum::serve(origin, served).await });
    let newcomer = DevAgent {
        profile: profile.clone(),
        client_id: String::new(),
        client_secret: String::new(),
        key,
    };

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let write = |text: &str| fs::write(&file, format!("dev = true\n{text}")).unwrap();
    write("");
    let mut command = program(
        &["--config", "gateway.toml", "--log-format", "json"],
        directory.path(),
    );
    command.env("RCTP_LISTEN", "127.0.0.1:0");
    let mut program = Started::of(command.spawn().unwrap());
    let shop = Shop::visit(DevWorld::load(&directory.path().join("rctp-dev")).unwrap());
    let ask = async |path: String| {
        let mut request = shop.request(Method::GET, &path, Value::Null);
        sign(&newcomer, &mut request);
        let answer = shop.send(request).await;
        (answer.status, answer.error().to_owned())
    };
    let served = (200, String::new());
    let unknown = (401, "operator_unknown".to_owned());
    let listing = || format!("/listings/{}", shop.world.listing_id);
    assert_eq!(ask(listing()).await, unknown);

    let operator = format!("[[operators]]\nprofile = '{profile}'\n");
    write(&operator);
    let line = program.hang_up();
    assert_eq!(
        line["message"],
        "reloaded: 1 operators added, 0 changed, 0 removed"
    );
    assert!(line["added"].as_str().unwrap().contains(&profile), "{line}");
    assert_eq!(ask(listing()).await, served);

    // A deal of others, which only roles let it look at.
    let offer = shop.offer(&shop.world.listing_id, 50_000).await;
    let accept = format!("/offers/{}/accept", offer.get("offer_id"));
    let accepted = shop
        .seller(&accept, &shop.world.grants.auto.access_token)
        .await;
    let checkout = json!({"checkout": accepted.body["checkout"]});
    let mut redeem = shop.request(Method::POST, "/deals", checkout);
    sign(&shop.world.agents.buyer, &mut redeem);
    let deal = shop.send(redeem).await;
    assert_eq!(deal.status, 201, "{:?}", deal.body);
    let events = || format!("/deals/{}/events", deal.get("deal_id"));
    assert_eq!(ask(events()).await.0, 404);
    let holder = format!("{operator}roles = ['funds_holder']\n");
    // What needs a restart is named, and does not take effect.
    write(&format!("term_sets = []\n{holder}"));
    let line = program.hang_up();
    assert!(
        line["error"].as_str().unwrap().contains("term_sets"),
        "{line}"
    );
    write(&format!(
        "mechanisms = ['oauth']\n{holder}[limits]\nasks_per_agent = 7"
    ));
    let line = program.hang_up();
    assert_eq!(
        line["message"],
        "reloaded: 0 operators added, 1 changed, 0 removed"
    );
    assert_eq!(ask(events()).await, served);

    for (wrong, named) in [
        (
            "[[operators]]\nprofile = 'http://a.example/p'",
            "operators: ",
        ),
        ("[[operators]]\nprofile = ", "line 3: "),
        (
            "[[operators]]\nprofile = 'https://a.example/'\nclients = ['buyer-agent']",
            "`buyer-agent`",
        ),
        ("operator = []", "unknown field"),
    ] {
        write(wrong);
        let line = program.hang_up();
        assert!(
            line["message"]
                .as_str()
                .unwrap()
                .starts_with("not reloaded"),
            "{line}"
        );
        assert_eq!(line["level"], "ERROR");
        assert!(line["error"].as_str().unwrap().contains(named), "{line}");
    }
    fs::remove_file(&file).unwrap();
    let line = program.hang_up();
    assert!(
        line["error"].as_str().unwrap().contains("--config: "),
        "{line}"
    );
    assert_eq!(ask(events()).await, served);

    write("");
    let line = program.hang_up();
    assert_eq!(
        line["message"],
        "reloaded: 0 operators added, 0 changed, 1 removed"
    );
    assert_eq!(ask(listing()).await, unknown);
    let metrics = shop.get("/metrics").await.text;
    for line in [
        "rctp_operators 4",
        r#"rctp_reloads_total{outcome="done"} 3"#,
        r#"rctp_reloads_total{outcome="failed"} 6"#,
    ] {
        assert!(
            metrics.lines().any(|l| l == line),
            "{line} is not in\n{metrics}"
        );
    }
    let (status, said) = program.terminate();
    assert!(status.success(), "{status}\n{said}");
    let ignored =
        r#""message":"ignored: these settings need a restart","settings":"mechanisms, limits""#;
    assert_eq!(said.matches(ignored).count(), 1, "{said}");
}

/// The program, listening.
#[cfg(unix)]
struct Started {
    child: Child,
    address: SocketAddr,
    /// The lines of its log, read all the time: a full pipe would stop it.
    log: Receiver<String>,
    banner: ChildStdout,
    said: String,
}

#[cfg(unix)]
impl Started {
    fn of(mut child: Child) -> Self {
        let (lines, log) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines() {
                let _ = lines.send(line.unwrap() + "\n");
            }
        });
        let mut started = Self {
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            log,
            banner: child.stdout.take().unwrap(),
            said: String::new(),
            child,
        };
        let listening = started.wait_for("listening");
        started.address = listening["address"].as_str().unwrap().parse().unwrap();
        started
    }

    /// Reads the log up to the line of a message that begins so.
    fn wait_for(&mut self, message: &str) -> Value {
        loop {
            let said = self.log.recv();
            let said = said.unwrap_or_else(|_| panic!("it ended: {}", self.said));
            self.said.push_str(&said);
            let line = serde_json::from_str::<Value>(&said).unwrap_or_default();
            if line["message"]
                .as_str()
                .is_some_and(|m| m.contains(message))
            {
                return line;
            }
        }
    }

    /// Has it read its settings again; what it says of that.
    fn hang_up(&mut self) -> Value {
        self.signal("-HUP");
        self.wait_for("reloaded: ")
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.unwrap().success());
    }

    fn terminate(mut self) -> (ExitStatus, String) {
        self.signal("-TERM");
        self.said.extend(self.log.iter());
        self.banner.read_to_string(&mut self.said).unwrap();
        (self.child.wait().unwrap(), self.said)
    }
}
