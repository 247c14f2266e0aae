//! The program: its exit status, its signals, and that its logs hold no secret.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use clap::Parser;
use serde_json::{Value, json};

use crate::{
    gateway::{self, Cli, DevWorld},
    shop::{FLOOR, Shop},
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

/// The program, listening.
struct Started {
    child: Child,
    address: SocketAddr,
    output: std::thread::JoinHandle<String>,
}

#[cfg(unix)]
impl Started {
    fn of(mut child: Child) -> Self {
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut banner = child.stdout.take().unwrap();
        let mut said = String::new();
        let address = loop {
            let from = said.len();
            assert_ne!(log.read_line(&mut said).unwrap(), 0, "it ended: {said}");
            let line = serde_json::from_str::<Value>(&said[from..]).unwrap_or_default();
            if line["message"] == "listening" {
                break line["address"].as_str().unwrap().parse().unwrap();
            }
        };
        let output = std::thread::spawn(move || {
            log.read_to_string(&mut said).unwrap();
            banner.read_to_string(&mut said).unwrap();
            said
        });
        Self {
            child,
            address,
            output,
        }
    }

    fn terminate(mut self) -> (ExitStatus, String) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        (self.child.wait().unwrap(), self.output.join().unwrap())
    }
}
