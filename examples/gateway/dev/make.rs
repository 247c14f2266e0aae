//! Makes the world on the first start, and finds it again on the next.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use tower_rctp::{
    Rctp,
    layer::{authenticate::operators::Operators, mcp::MCP},
    protocol::{money::Money, policy::Tier},
};

use super::{
    Agents, CALLBACK, DevAgent, DevWorld, Grants, PLUGIN, PLUGIN_CALLBACK, WORLD,
    routes::legal_entity,
    seller::{CURRENCY, NewListing, granted, is_on_sale, publish},
};
use super::{
    Error,
    authorization::{Authorization, Client, ClientKind, Registration, Tokens},
    files,
};

/// The world before its gateway runs.
pub struct Made {
    directory: PathBuf,
    url: String,
    secret: String,
    seller_sub: String,
    agents: Agents,
    /// The listing and the grants of the last start.
    before: Option<(String, Grants)>,
}

impl Made {
    /// The world in `directory`, or a new one, for a gateway at `address`.
    pub fn open(directory: &Path, address: SocketAddr) -> Result<Self, Error> {
        make_directory(directory)?;
        // The port may be another one than last time.
        let url = format!("http://{address}");
        let before = DevWorld::read(directory)?;
        let agent = |name: &str, client_id: &str, before: Option<&DevAgent>| {
            Ok::<_, Error>(DevAgent {
                profile: format!("{url}/dev/profiles/{name}"),
                client_id: client_id.to_owned(),
                client_secret: match before {
                    Some(before) => before.client_secret.clone(),
                    None => files::random()?,
                },
                key: files::signing_key(&directory.join(name).with_extension("pem"), "dev_dir")?,
            })
        };
        let agents = before.as_ref().map(|world| &world.agents);
        let agents = Agents {
            buyer: agent("buyer", "buyer-agent", agents.map(|a| &a.buyer))?,
            seller: agent("seller", "seller-agent", agents.map(|a| &a.seller))?,
            funds_holder: agent(
                "funds_holder",
                "funds-holder",
                agents.map(|a| &a.funds_holder),
            )?,
            carrier: agent("carrier", "carrier", agents.map(|a| &a.carrier))?,
        };
        let (secret, seller_sub, before) = match before {
            Some(world) => {
                let before = (world.listing_id, world.grants);
                (world.secret, world.seller_sub, Some(before))
            }
            None => (files::random()?, format!("sub_{}", files::random()?), None),
        };
        Ok(Self {
            directory: directory.to_owned(),
            url,
            secret,
            seller_sub,
            agents,
            before,
        })
    }

    /// Adds the world's operators to those of the settings.
    pub fn onboard(&self, operators: Operators) -> Operators {
        self.agents.onboard(operators)
    }

    /// The agents as clients of the authorization server.
    pub fn clients(&self) -> Vec<Client> {
        let registered = |name: &str, agent: &DevAgent| Registration {
            name: match name {
                "seller" => "Selling Assistant".into(),
                // They are at no page.
                _ => format!("The {name}'s agent"),
            },
            operator: agent.profile.clone(),
            legal_entity: legal_entity(name),
            redirect_uris: match name {
                "seller" => vec![CALLBACK.into()],
                // They have nothing to ask a seller for.
                _ => Vec::new(),
            },
        };
        let client = |(name, agent): (_, &DevAgent)| Client {
            id: agent.client_id.clone(),
            secret: Some(agent.client_secret.clone()),
            kind: ClientKind::Agent(registered(name, agent)),
        };
        let plugin = Client {
            id: PLUGIN.into(),
            secret: None,
            kind: ClientKind::Agent(Registration {
                name: "Selling Plugin".into(),
                redirect_uris: vec![CALLBACK.into(), PLUGIN_CALLBACK.into()],
                ..registered("seller", &self.agents.seller)
            }),
        };
        let agents = self.agents.named().into_iter().map(client);
        agents.chain([plugin]).collect()
    }

    /// Where the authorization server keeps what outlives a restart.
    pub fn authorization_file(&self) -> PathBuf {
        self.directory.join("authorization.json")
    }

    /// Sees to a listing on sale and to grants in force, and writes `world.json`.
    pub async fn settle(
        self,
        rctp: &Rctp,
        authorization: &Arc<Authorization>,
    ) -> Result<DevWorld, Error> {
        let (listing, grants) = self.before.unzip();
        let listing_id = match listing {
            Some(id) if is_on_sale(rctp, &id).await? => id,
            _ => {
                let new = NewListing::with_floor(Money::new(45_000, CURRENCY));
                publish(rctp, &self.seller_sub, new).await?.listing_id
            }
        };
        let tokens = async |before: Option<Tokens>, tier, signed| {
            let granted = granted(&self.seller_sub, &self.agents.seller, tier, signed);
            if let Some(before) = before
                && let Some(tokens) = authorization
                    .renew(before.grant_id, granted.clone())
                    .await?
            {
                return Ok::<_, Error>(tokens);
            }
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
            mcp: format!("{}{MCP}", authorization.issuer()),
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
            .map_err(|e| Error::setting("dev_dir", format!("{}: {e}", path.display())))?;
        Ok(world)
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
