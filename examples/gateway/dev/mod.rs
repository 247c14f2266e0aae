//! The development world: four operators whose profiles the gateway hosts, a seller with a listing on sale, and grants
//! to use. Its keys and secrets are generated on the first start; nothing here belongs into production.
//!
//! It lives in a directory (`rctp-dev` unless set otherwise), in files of mode 0600:
//!
//! | file | what |
//! |---|---|
//! | `buyer.pem`, `seller.pem`, `funds_holder.pem`, `carrier.pem` | the agents' private keys |
//! | `world.json` | all that is needed to play the agents: a [`DevWorld`] |
//! | `authorization.json` | what the [authorization server](super::authorization) keeps |
//!
//! Each start writes `world.json` anew. Keys, secrets, the seller and grants in force stay; tokens are new, and what
//! was sold or revoked is replaced:
//!
//! ```json
//! {
//!   "url": "http://127.0.0.1:8080",
//!   "mcp": "http://localhost:8080/mcp",
//!   "secret": "…",
//!   "seller_sub": "sub_…",
//!   "listing_id": "lst_…",
//!   "agents": {
//!     "buyer": {
//!       "profile": "http://127.0.0.1:8080/dev/profiles/buyer",
//!       "client_id": "buyer-agent", "client_secret": "…",
//!       "key": "-----BEGIN PRIVATE KEY-----…"
//!     },
//!     "seller": {…}, "funds_holder": {…}, "carrier": {…}
//!   },
//!   "grants": {
//!     "auto": {"grant_id": "…", "access_token": "…", "access_expires_at": "…", "refresh_token": "…"},
//!     "ask": {…}, "unsigned": {…}
//!   }
//! }
//! ```
//!
//! Access tokens live 900 seconds. After that, refresh (`POST /oauth/token` as the seller's client), keeping in mind
//! that a refresh token works once and its second use revokes the grant; or ask `POST /dev/grants` for a fresh grant.
//!
//! | route | what |
//! |---|---|
//! | `GET /dev/profiles/{name}` | the profile of `buyer`, `seller`, `funds_holder` or `carrier` |
//! | `GET /dev/record/{kind}/{id}` | a chain of the record: `negotiation`, `deal` or `listing`, or `gateway` with any id |
//! | `POST /dev/listings` | a fresh listing with confirmed terms: `{"floor", "list_price"?, "title"?}` |
//! | `POST /dev/grants` | a fresh grant of the seller: `{"tier"?: "auto" \| "ask", "signed"?: bool}` |
//! | `POST /dev/enrolments` | a link to enrol a passkey with: for the seller, or for another one: `{"seller"?: "sub_…"}` |
//!
//! The POST routes need `Authorization: Bearer` with the `secret` of `world.json`. All of them answer on loopback only,
//! and only when addressed as such, so that no web page can reach them by rebinding a name.

mod make;
mod routes;
mod seller;

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};
use tower_rctp::{
    layer::authenticate::operators::{Operator, Operators},
    protocol::caller::Role,
    wire::jwk::SigningKey,
};

pub use self::{
    make::Made,
    routes::{enrolment, hosts, router},
};
use super::{
    Error,
    authorization::{self, Tokens},
    files,
};

/// The name of the file in the development directory.
const WORLD: &str = "world.json";
/// Where the seller's agent may have a seller sent back to; any port will do.
pub const CALLBACK: &str = "http://127.0.0.1/callback";
/// The same for plugins on the seller's machine, which call themselves `localhost`.
pub const PLUGIN_CALLBACK: &str = "http://localhost/callback";
/// A second client of the seller's agent's operator: one without a secret, as a plugin is.
pub const PLUGIN: &str = "seller-plugin";

/// All that is needed to play the agents of the development world.
#[derive(Clone, Serialize, Deserialize)]
pub struct DevWorld {
    /// Where the gateway listens.
    pub url: String,
    /// The endpoint of MCP under the public URL: OAuth clients hold it byte for byte against what its metadata names.
    #[serde(default)] // worlds of before have none, and are written anew
    pub mcp: String,
    /// Opens `POST /dev/…`.
    pub secret: String,
    /// The seller's pairwise pseudonym.
    pub seller_sub: String,
    /// A listing that was on sale when the gateway started.
    pub listing_id: String,
    pub agents: Agents,
    pub grants: Grants,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Agents {
    pub buyer: DevAgent,
    pub seller: DevAgent,
    pub funds_holder: DevAgent,
    pub carrier: DevAgent,
}

/// An operator's agent.
#[derive(Clone, Serialize, Deserialize)]
pub struct DevAgent {
    /// The operator's profile, hosted by the gateway.
    pub profile: String,
    pub client_id: String,
    pub client_secret: String,
    /// PKCS#8 in PEM; the profile lists its public half.
    #[serde(with = "pem")]
    pub key: SigningKey,
}

/// The seller's grants, all to the seller's agent.
#[derive(Clone, Serialize, Deserialize)]
pub struct Grants {
    /// The agent may act at once. For requests signed with its key.
    pub auto: Tokens,
    /// The seller is asked. For signed requests.
    pub ask: Tokens,
    /// The agent may act at once. For requests that are not signed.
    pub unsigned: Tokens,
}

impl Agents {
    fn named(&self) -> [(&'static str, &DevAgent); 4] {
        [
            ("buyer", &self.buyer),
            ("seller", &self.seller),
            ("funds_holder", &self.funds_holder),
            ("carrier", &self.carrier),
        ]
    }

    /// Adds the world's operators to those of the settings.
    pub fn onboard(&self, operators: Operators) -> Operators {
        let all = self.named().into_iter();
        all.fold(operators, |operators, (name, agent)| {
            let operator = Operator::new(&*agent.profile).client(&*agent.client_id);
            operators.with(match name {
                "funds_holder" => operator.role(Role::FundsHolder),
                "carrier" => operator.role(Role::Carrier),
                "seller" => operator.client(PLUGIN),
                _ => operator,
            })
        })
    }
}

impl DevWorld {
    /// Reads the world of a gateway from its development directory.
    #[allow(dead_code)] // for the programs that play the agents, such as the example `sale`
    pub fn load(directory: &Path) -> Result<Self, Error> {
        Self::read(directory)?.ok_or_else(|| {
            Error(format!(
                "{} is not there; start a gateway first: cargo run --example gateway",
                directory.join(WORLD).display()
            ))
        })
    }

    fn read(directory: &Path) -> Result<Option<Self>, Error> {
        let path = directory.join(WORLD);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error(format!("{}: {e}", path.display()))),
        };
        // The message of a JSON error may quote a secret; its place does not.
        serde_json::from_slice(&bytes).map(Some).map_err(|e| {
            let (path, line) = (path.display(), e.line());
            Error(format!(
                "{path} is not readable (line {line}); remove it to begin a new world"
            ))
        })
    }

    /// What the program says once it runs. The one secret in it is the ticket in the link, which soon ends.
    pub fn banner(&self, directory: &Path, enrolment: &str) -> String {
        let Self {
            url,
            mcp,
            listing_id,
            ..
        } = self;
        let dir = directory.display();
        // Sessions and passkeys are of the host that the link names, which is not that of `url`.
        let pages = enrolment.split("/enroll").next().unwrap_or(url);
        format!(
            "\
A marketplace to play with, at {url}

  a listing   {listing_id}, for 600.00 EUR, with a floor that only the seller knows
  agents      buyer, seller, funds_holder and carrier; keys in {dir}/*.pem, profiles at {url}/dev/profiles/…
  grants      the seller's to its agent, with all secrets in {dir}/world.json; access tokens live 15 minutes
  tools       for any MCP client, at {mcp}
  the seller  enrols a passkey at {enrolment}
              (10 minutes; POST {url}/dev/enrolments gives another link),
              then sees what waits for approval at {pages}/approve, and what was granted at {pages}/grants

Try next, in another terminal:

  curl {url}/.well-known/ucp
  cargo run --example sale -- --url {url} --dev-dir {dir}
  cargo run --example sign -- --key {dir}/buyer.pem --profile {url}/dev/profiles/buyer \\
      --url {url}/listings/{listing_id} | sh
  curl {url}/metrics
"
        )
    }
}

/// Serialises a private key as PEM.
mod pem {
    use serde::{Deserialize, Deserializer, Serializer, de, ser};
    use tower_rctp::wire::jwk::SigningKey;
    use zeroize::Zeroizing;

    pub fn serialize<S: Serializer>(key: &SigningKey, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&key.to_pkcs8_pem().map_err(ser::Error::custom)?)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SigningKey, D::Error> {
        let pem = Zeroizing::new(String::deserialize(from)?);
        SigningKey::from_pkcs8_pem(&pem).map_err(de::Error::custom)
    }
}
