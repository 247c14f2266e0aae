//! The example gateway, in a process and a directory of its own.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
};

use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower_rctp::{
    client::Signer,
    wire::{
        crypto::default_provider,
        jwk::{Keys, SigningKey},
    },
};

use crate::{answer::Failure, seller::Seller};

pub struct Gateway {
    _process: Process,
    _directory: TempDir,
    pub world: World,
    pub http: reqwest::Client,
    /// The MCP endpoint, as the gateway's profile has it.
    pub mcp: String,
    /// What it signs records with.
    pub keys: Keys,
}

/// What is used of `world.json`.
#[derive(Deserialize)]
pub struct World {
    /// Where the gateway listens, which is not the name that it goes by.
    pub url: String,
    secret: String,
    pub agents: Agents,
}

#[derive(Deserialize)]
pub struct Agents {
    pub buyer: Agent,
    pub seller: Agent,
    pub funds_holder: Agent,
}

#[derive(Deserialize)]
pub struct Agent {
    profile: String,
    pub client_id: String,
    pub client_secret: String,
    /// PKCS#8 in PEM.
    key: String,
}

impl Agent {
    pub fn key(&self) -> Result<SigningKey, Failure> {
        Ok(SigningKey::from_pkcs8_pem(&self.key)?)
    }

    /// Its public key, as that of its operator.
    pub fn keys(&self) -> Result<Keys, Failure> {
        let jwk = self.key()?.public_jwk();
        Ok(Keys::parse(&json!([jwk]), default_provider())?)
    }

    pub fn signer(&self) -> Result<Signer, Failure> {
        self.signer_with(self.key()?)
    }

    pub fn signer_with(&self, key: SigningKey) -> Result<Signer, Failure> {
        Ok(Signer::new(&self.profile, key)?)
    }
}

impl Gateway {
    pub async fn start() -> Result<Self, Failure> {
        let directory = tempfile::tempdir()?;
        let binary = env::current_exe()?
            .with_file_name("examples")
            .join("gateway");
        let started = Command::new(&binary)
            .current_dir(directory.path())
            .env_clear()
            .env("RCTP_LISTEN", "127.0.0.1:0")
            .env("RCTP_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let started = started.map_err(|e| format!("{}: {e}; see ./run", binary.display()))?;
        let mut process = Process(started);
        let banner = process.0.stdout.take().ok_or("its output is piped")?;
        let mut banner = BufReader::new(banner).lines().map_while(Result::ok);
        banner
            .find(|line| line.starts_with("A marketplace to play with"))
            .ok_or("the gateway ended before it listened")?;
        // A full pipe would stop it.
        thread::spawn(move || banner.for_each(drop));

        let world = fs::read(directory.path().join("rctp-dev/world.json"))?;
        let world: World = serde_json::from_slice(&world)?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let profile = http.get(format!("{}/.well-known/ucp", world.url));
        let profile: Value = profile.send().await?.json().await?;
        let services = profile["ucp"]["services"]["dev.rctp"].as_array();
        let mcp = services.and_then(|all| all.iter().find(|service| service["transport"] == "mcp"));
        Ok(Self {
            mcp: text(mcp.ok_or("the profile lists no MCP endpoint")?, "/endpoint"),
            keys: Keys::parse(&profile["keys"], default_provider())?,
            http,
            world,
            _process: process,
            _directory: directory,
        })
    }

    /// What its origin serves beside the endpoint.
    pub fn origin(&self) -> &str {
        self.mcp.trim_end_matches("/mcp")
    }

    /// A listing on sale, at this floor.
    pub async fn listing(&self) -> Result<String, Failure> {
        let floor = json!({"floor": {"amount": FLOOR, "currency": "EUR"}});
        let listing = self.marketplace("/dev/listings", &floor).await?;
        Ok(text(&listing, "/listing_id"))
    }

    /// The seller, who has just been sent a link to enrol a passkey.
    pub async fn seller(&self) -> Result<Seller, Failure> {
        let link = self.marketplace("/dev/enrolments", &json!({})).await?;
        Seller::with_link(&self.http, &text(&link, "/url"))
    }

    async fn marketplace(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let World { url, secret, .. } = &self.world;
        let request = self.http.post(format!("{url}{path}")).bearer_auth(secret);
        let answer = request.json(body).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }
}

/// It ends with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub const FLOOR: u64 = 50_000;

/// The text at a JSON pointer.
#[track_caller]
pub fn text(value: &Value, at: &str) -> String {
    let text = value.pointer(at).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("there is no `{at}` in {value}"))
        .to_owned()
}
