//! The development world: four operators whose profiles the gateway hosts, a seller with a listing on sale, and grants
//! to use. Its keys and secrets are generated on the first start; nothing here belongs into production.
//!
//! It lives in a directory (`rctp-dev` unless set otherwise), in files of mode 0600:
//!
//! - `world.json`: a [`DevWorld`], written anew by each start. The keys, secrets and the seller stay the same; the
//!   tokens are new, and revoked grants are replaced.
//! - `authorization.json`: what the [authorization server](super::authorization) keeps.
//!
//! | route | what |
//! |---|---|
//! | `GET /dev/profiles/{name}` | the profile of `buyer`, `seller`, `funds_holder` or `carrier` |
//! | `GET /dev/record/{kind}/{id}` | a chain of the record: `negotiation`, `deal` or `listing`, or `gateway` with any id |
//! | `POST /dev/listings` | a fresh listing with confirmed terms: `{"floor", "list_price"?, "title"?}` |
//! | `POST /dev/grants` | a fresh grant of the seller: `{"tier"?: "auto" \| "ask", "signed"?: bool}` |
//!
//! The POST routes need `Authorization: Bearer` with the `secret` of `world.json`. All of them answer on loopback only,
//! and only when addressed as such, so that no web page can reach them by rebinding a name.
//!
//! `world.json`:
//!
//! ```json
//! {
//!   "url": "http://127.0.0.1:8080",
//!   "secret": "…",
//!   "seller_sub": "sub_…",
//!   "listing_id": "lst_…",
//!   "agents": {
//!     "buyer": {
//!       "profile": "http://127.0.0.1:8080/dev/profiles/buyer",
//!       "client_id": "buyer-agent", "client_secret": "…",
//!       "key": "-----BEGIN PRIVATE KEY-----…"
//!     },
//!     "seller": {}, "funds_holder": {}, "carrier": {}
//!   },
//!   "grants": {
//!     "auto": {"grant_id": "…", "access_token": "…", "access_expires_at": "…", "refresh_token": "…"},
//!     "ask": {}, "unsigned": {}
//!   }
//! }
//! ```
//!
//! Access tokens live 900 seconds. After that, refresh (`POST /oauth/token` as the seller's client), keeping in mind
//! that a refresh token works once and its second use revokes the grant; or ask `POST /dev/grants` for a fresh grant.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path as UrlPath, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower_rctp::{
    Rctp,
    layer::{
        authenticate::operators::{Operator, Operators},
        context::{Clock, Ids, RandomIds, SystemClock},
    },
    protocol::{
        UCP_VERSION, VERSION,
        caller::Role,
        listing::{Listing, ListingState},
        money::Money,
        operation::Verb,
        policy::Tier,
        record::{Subject, SubjectKind},
        refusal::{ProtocolError, Refusal},
        terms::{Floor, FulfillmentOption, PrivateTerms, PublicTerms},
    },
    store::{Key, Kind},
    wire::{digest::sha256, jwk::SigningKey},
};

use super::{
    Error,
    authorization::{Authorization, Client, Granted, Tokens},
    files,
};

/// The name of the file in the development directory.
pub const WORLD: &str = "world.json";

/// Everything that a program needs to play the agents of the development world.
#[derive(Clone, Serialize, Deserialize)]
pub struct DevWorld {
    /// Where the gateway listens.
    pub url: String,
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

impl DevWorld {
    /// Reads the world of a gateway from its development directory.
    #[allow(dead_code)] // for the programs that play the agents, such as the example `sale`
    pub fn load(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(WORLD);
        Self::read(&path)?.ok_or_else(|| {
            Error(format!(
                "{} is not there; start a gateway first: cargo run --example gateway",
                path.display()
            ))
        })
    }

    fn read(path: &Path) -> Result<Option<Self>, Error> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error(format!("{}: {e}", path.display()))),
        };
        // The message of a JSON error may quote a secret; its place does not.
        serde_json::from_slice(&bytes).map(Some).map_err(|e| {
            Error(format!(
                "{} is not readable (line {}); remove it to begin a new world",
                path.display(),
                e.line()
            ))
        })
    }

    /// What the program says after its first start and any other. It shows no secrets; they are in `world.json`.
    pub fn banner(&self) -> String {
        let Self {
            url, listing_id, ..
        } = self;
        format!(
            "\
A development world is on sale at {url}

  listing   {listing_id}
  agents    buyer, seller, funds_holder, carrier: {url}/dev/profiles/…
  grants    auto, ask and unsigned, each with an access token for 900 seconds and a refresh token
  secrets   in world.json, in the development directory (--dev-dir, rctp-dev unless set)

Try next, in another terminal:

  curl {url}/health
  curl {url}/.well-known/ucp
  cargo run --example sale -- --url {url}      two agents play a whole sale here
  curl {url}/metrics                           what was decided, by verb, outcome and reason
"
        )
    }
}

/// The world before its gateway runs: what is the same in every start.
pub struct Made {
    directory: PathBuf,
    url: String,
    secret: String,
    seller_sub: String,
    agents: Agents,
    /// Of the last start.
    before: Option<(String, Grants)>,
}

impl Made {
    /// The world in `directory`, or a new one, for a gateway at `address`.
    pub fn open(directory: &Path, address: SocketAddr) -> Result<Self, Error> {
        make_directory(directory)?;
        let url = format!("http://{address}");
        let mut made = match DevWorld::read(&directory.join(WORLD))? {
            Some(world) => Self {
                directory: directory.to_owned(),
                url,
                secret: world.secret,
                seller_sub: world.seller_sub,
                agents: world.agents,
                before: Some((world.listing_id, world.grants)),
            },
            None => Self {
                directory: directory.to_owned(),
                url,
                secret: files::random()?,
                seller_sub: format!("sub_{}", files::random()?),
                agents: Agents {
                    buyer: DevAgent::new("buyer-agent")?,
                    seller: DevAgent::new("seller-agent")?,
                    funds_holder: DevAgent::new("funds-holder")?,
                    carrier: DevAgent::new("carrier")?,
                },
                before: None,
            },
        };
        // The port may be another one than last time.
        for (name, agent) in made.agents.named_mut() {
            agent.profile = format!("{}/dev/profiles/{name}", made.url);
        }
        Ok(made)
    }

    /// Adds the world's operators to those of the settings.
    pub fn onboard(&self, operators: Operators) -> Operators {
        self.agents
            .named()
            .into_iter()
            .fold(operators, |all, (name, agent)| {
                let operator = Operator::new(&*agent.profile).client(&*agent.client_id);
                all.with(match name {
                    "funds_holder" => operator.role(Role::FundsHolder),
                    "carrier" => operator.role(Role::Carrier),
                    _ => operator,
                })
            })
    }

    /// The agents as clients of the authorization server.
    pub fn clients(&self) -> Vec<Client> {
        let client = |(_, agent): (_, &DevAgent)| Client {
            id: agent.client_id.clone(),
            secret: agent.client_secret.clone(),
            gateway: false,
        };
        self.agents.named().into_iter().map(client).collect()
    }

    /// Where the authorization server keeps what outlives a restart.
    pub fn authorization_file(&self) -> PathBuf {
        self.directory.join("authorization.json")
    }

    /// Puts a listing on sale and issues tokens where the last start's will not do, and writes `world.json`.
    pub async fn settle(
        self,
        rctp: &Rctp,
        authorization: &Arc<Authorization>,
    ) -> Result<DevWorld, Error> {
        let (listing, grants) = self.before.unzip();
        let listing_id = match listing {
            Some(id) if is_on_sale(rctp, &id).await? => id,
            _ => {
                let floor = Money::new(45_000, CURRENCY);
                let new = NewListing {
                    floor,
                    list_price: None,
                    title: None,
                };
                publish(rctp, &self.seller_sub, new).await?.listing_id
            }
        };
        let seller = &self.agents.seller;
        let tokens = async |before: Option<Tokens>, tier, signed| {
            if let Some(before) = before
                && let Some(tokens) = authorization.renew(before.grant_id).await?
            {
                return Ok::<Tokens, Error>(tokens);
            }
            let granted = granted(&self.seller_sub, seller, tier, signed);
            authorization.grant(granted).await
        };
        let before = |which: fn(&Grants) -> &Tokens| grants.as_ref().map(|g| which(g).clone());
        let grants = Grants {
            auto: tokens(before(|g| &g.auto), Tier::Auto, true).await?,
            ask: tokens(before(|g| &g.ask), Tier::Ask, true).await?,
            unsigned: tokens(before(|g| &g.unsigned), Tier::Auto, false).await?,
        };
        let world = DevWorld {
            url: self.url,
            secret: self.secret,
            seller_sub: self.seller_sub,
            listing_id,
            agents: self.agents,
            grants,
        };
        let path = self.directory.join(WORLD);
        serde_json::to_vec_pretty(&world)
            .map_err(io::Error::other)
            .and_then(|bytes| files::replace(&path, &bytes))
            .map_err(|e| Error(format!("{}: {e}", path.display())))?;
        Ok(world)
    }
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

    fn named_mut(&mut self) -> [(&'static str, &mut DevAgent); 4] {
        [
            ("buyer", &mut self.buyer),
            ("seller", &mut self.seller),
            ("funds_holder", &mut self.funds_holder),
            ("carrier", &mut self.carrier),
        ]
    }
}

impl DevAgent {
    fn new(client_id: &str) -> Result<Self, Error> {
        let key =
            SigningKey::generate().map_err(|e| Error(format!("a key cannot be made: {e}")))?;
        Ok(Self {
            profile: String::new(),
            client_id: client_id.to_owned(),
            client_secret: files::random()?,
            key,
        })
    }

    /// The operator's profile (binding 1).
    fn document(&self, name: &str) -> Value {
        json!({
            "ucp": {
                "version": UCP_VERSION,
                "services": {},
                "payment_handlers": {},
                "capabilities": {
                    "dev.rctp.operator": [{"version": VERSION, "config": {
                        "legal_entity": format!("The {name} of the development world"),
                        "jurisdiction": "CH",
                        "incident_contact": format!("mailto:{name}@localhost"),
                        "incident_sla_hours": 24,
                    }}],
                },
            },
            "keys": [self.key.public_jwk()],
        })
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

fn make_directory(path: &Path) -> Result<(), Error> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(path)
        .map_err(|e| Error::setting("dev_dir", format!("{}: {e}", path.display())))
}

/// A grant of every scope at `tier`, where the binding lets it be; to the seller's agent, which signs or does not.
fn granted(sub: &str, agent: &DevAgent, tier: Tier, signed: bool) -> Granted {
    let tiers = Verb::GRANTED.into_iter().filter_map(|verb| {
        let tier = match verb {
            Verb::ListingSetTerms => Tier::Ask,
            _ => tier,
        };
        Some((verb.scope()?.to_owned(), tier))
    });
    Granted {
        sub: sub.to_owned(),
        client_id: agent.client_id.clone(),
        jkt: signed.then(|| agent.key.kid().as_str().to_owned()),
        tiers: tiers.collect(),
    }
}

const CURRENCY: &str = "EUR";

/// The body of `POST /dev/listings`. It has no `Debug`: the floor is the seller's secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewListing {
    floor: Money,
    list_price: Option<Money>,
    title: Option<String>,
}

/// Puts a listing on sale, as the seller would on the marketplace's own page.
async fn publish(rctp: &Rctp, seller: &str, new: NewListing) -> Result<Listing, Error> {
    let no_bits = |e| Error(format!("no listing was made: {e}"));
    let now = SystemClock.now();
    let listing = Listing {
        listing_id: RandomIds.id("lst", now).map_err(no_bits)?,
        seller: seller.to_owned(),
        state: ListingState::Active,
        title: new.title.unwrap_or_else(|| "A touring bicycle".into()),
        description: None,
        category: None,
        list_price: new
            .list_price
            .unwrap_or_else(|| Money::new(60_000, CURRENCY)),
        term_set: rctp.policy().term_sets[0].clone(),
        terms: None,
        created_at: now,
    };
    let public = PublicTerms {
        fulfillment_options: vec![FulfillmentOption {
            method_type: "shipping".into(),
            option_ids: vec!["standard".into(), "express".into()],
        }],
        payment_terms: vec!["prepaid".into()],
        deliver_within_days: Some(5),
        inspection_days: Some(3),
        ..PublicTerms::default()
    };
    let salt = RandomIds.random().map_err(no_bits)?;
    let private = PrivateTerms::new(Some(Floor::new(new.floor)), salt);
    rctp.publish(listing, public, &private)
        .await
        .map_err(|e| Error(format!("no listing was made: {e}")))
}

async fn is_on_sale(rctp: &Rctp, id: &str) -> Result<bool, Error> {
    let docs = rctp
        .store()
        .load(vec![Key::new(Kind::Listing, id)])
        .await
        .map_err(|e| Error(e.to_string()))?;
    let listing = docs
        .into_iter()
        .flatten()
        .next()
        .and_then(|doc| serde_json::from_slice::<Listing>(&doc.body).ok());
    Ok(listing.is_some_and(|l| l.state_at(SystemClock.now()) == ListingState::Active))
}

/// What the routes need.
struct Served {
    world: DevWorld,
    rctp: Rctp,
    authorization: Arc<Authorization>,
    /// How the gateway may be addressed.
    hosts: [String; 2],
}

type Dev = State<Arc<Served>>;

/// The routes of the development world, for a gateway at `address`.
pub fn router(
    world: DevWorld,
    rctp: Rctp,
    authorization: Arc<Authorization>,
    address: SocketAddr,
) -> Router {
    let served = Arc::new(Served {
        world,
        rctp,
        authorization,
        hosts: hosts(address),
    });
    Router::new()
        .route("/dev/profiles/{name}", get(profile))
        .route("/dev/record/{kind}/{id}", get(record))
        .route("/dev/listings", post(new_listing))
        .route("/dev/grants", post(new_grant))
        .layer(from_fn_with_state(served.clone(), addressed_as_loopback))
        .with_state(served)
}

/// The names under which a gateway on loopback may be addressed.
pub fn hosts(address: SocketAddr) -> [String; 2] {
    [address.to_string(), format!("localhost:{}", address.port())]
}

async fn addressed_as_loopback(State(dev): Dev, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    if host.is_some_and(|host| dev.hosts.iter().any(|ours| host == ours.as_str())) {
        next.run(request).await
    } else {
        Refusal::not_found().into_response()
    }
}

async fn profile(State(dev): Dev, UrlPath(name): UrlPath<String>) -> Result<Json<Value>, Refusal> {
    let agents = dev.world.agents.named();
    let agent = agents.into_iter().find(|(ours, _)| *ours == name);
    let (name, agent) = agent.ok_or_else(Refusal::not_found)?;
    Ok(Json(agent.document(name)))
}

async fn record(
    State(dev): Dev,
    UrlPath((kind, id)): UrlPath<(String, String)>,
) -> Result<Json<Value>, Refusal> {
    let kind = SubjectKind::deserialize(Value::String(kind)).map_err(|_| Refusal::not_found())?;
    let subject = match kind {
        SubjectKind::Gateway => dev.rctp.gateway_subject(),
        _ => Subject::new(kind, id),
    };
    let entries = dev.rctp.record(&subject).await.map_err(unavailable)?;
    if entries.is_empty() {
        return Err(Refusal::not_found());
    }
    Ok(Json(json!({ "entries": entries })))
}

async fn new_listing(
    State(dev): Dev,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    knows_the_secret(&dev, &headers)?;
    // No message of the parser: it might quote the floor.
    let wanted = "the body must be {\"floor\": {\"amount\", \"currency\"}} with list_price and title where wanted, \
                  and the floor in the currency of the list price and no higher";
    let new: NewListing = serde_json::from_slice(&body).map_err(|_| Refusal::invalid(wanted))?;
    let price = new.list_price.clone();
    let price = price.unwrap_or_else(|| Money::new(60_000, CURRENCY));
    let fits =
        new.floor.currency == price.currency && (1..=price.amount).contains(&new.floor.amount);
    if !fits {
        return Err(Refusal::invalid(wanted));
    }
    let listing = publish(&dev.rctp, &dev.world.seller_sub, new)
        .await
        .map_err(unavailable)?;
    Ok((StatusCode::CREATED, Json(listing.view(SystemClock.now()))))
}

/// The body of `POST /dev/grants`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NewGrant {
    tier: Tier,
    signed: bool,
}

impl Default for NewGrant {
    fn default() -> Self {
        Self {
            tier: Tier::Auto,
            signed: true,
        }
    }
}

async fn new_grant(
    State(dev): Dev,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Tokens>), Refusal> {
    knows_the_secret(&dev, &headers)?;
    let new: NewGrant = match &*body {
        [] => NewGrant::default(),
        body => serde_json::from_slice(body).map_err(|_| {
            Refusal::invalid(
                "the body must be {\"tier\": \"auto\" or \"ask\", \"signed\": true or false}",
            )
        })?,
    };
    let granted = granted(
        &dev.world.seller_sub,
        &dev.world.agents.seller,
        new.tier,
        new.signed,
    );
    let tokens = dev
        .authorization
        .grant(granted)
        .await
        .map_err(unavailable)?;
    Ok((StatusCode::CREATED, Json(tokens)))
}

fn knows_the_secret(dev: &Served, headers: &HeaderMap) -> Result<(), Refusal> {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    // Digests are compared, so that the time taken says nothing of the secret.
    let secret = sha256(dev.world.secret.as_bytes());
    match given {
        Some(given) if sha256(given.as_bytes()) == secret => Ok(()),
        _ => Err(Refusal::invalid(
            "send the secret of world.json as Authorization: Bearer",
        )),
    }
}

fn unavailable(error: impl std::fmt::Display) -> Refusal {
    tracing::error!(%error, "a development route could not answer");
    Refusal::protocol(ProtocolError::Unavailable, "the store did not answer")
}
