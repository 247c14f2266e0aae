//! The same marketplace, days later: another gateway over the same store and with the same key, whose clock is ahead.
//! What takes days is played there, and nobody waits.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::{net::TcpListener, task::JoinHandle};
use tower_rctp::{
    Rctp,
    client::{Agent, Signer},
    layer::{
        authenticate::operators::{Operator, Operators},
        grant::introspection::Introspection,
    },
    protocol::{caller::Role, time::Timestamp},
    store::SqliteStore,
};

use super::{
    answer::Failure,
    gateway::{
        Config, DevWorld,
        dev::DevAgent,
        files::{self, Secret},
    },
};

pub struct Later {
    url: String,
    http: reqwest::Client,
    ahead: i64,
    server: JoinHandle<()>,
}

impl Later {
    pub async fn open(config: &Config, world: &DevWorld, days: i64) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let ahead = days * 86_400;
        let agents = &world.agents;
        let rctp = Rctp::builder()
            .public_url(&*url)
            .dev(true)
            .operators(
                Operators::default()
                    .with(Operator::new(&*agents.buyer.profile))
                    .with(Operator::new(&*agents.funds_holder.profile).role(Role::FundsHolder)),
            )
            // Nobody shows a token there: whatever was granted has ended long ago.
            .introspection(
                Introspection::endpoint(format!("{}/oauth/introspect", world.url))
                    .client_secret_basic("nobody", Secret::new(files::random()?).reveal()),
            )
            .store(SqliteStore::open(&config.store).await?)
            .signing_key(files::signing_key(&config.signing_key, "signing_key")?)
            .clock(move || now(ahead))
            .build()?;
        let app = rctp.discovery(&url).router();
        let app = rctp.protect(app.fallback_service(rctp.market()));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                eprintln!("sale: the gateway of later days ended: {error}");
            }
        });
        Ok(Self {
            url,
            http: reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .build()?,
            ahead,
            server,
        })
    }

    /// The agent, with a clock that goes with that of the gateway.
    pub fn agent(&self, of: &DevAgent) -> Result<Agent, Failure> {
        let ahead = self.ahead;
        let signer = Signer::new(&of.profile, of.key.clone())?.clock(move || now(ahead));
        Ok(Agent::signing(signer)
            .http(self.http.clone())
            .at(&self.url)?)
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn now(ahead: i64) -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    Timestamp::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX)).plus(ahead)
}
