//! Two agents play a whole sale against a gateway, with real keys over HTTP.
//!
//! ```text
//! cargo run --example sale                                   starts a gateway of its own, on a free port
//! cargo run --example sale -- --url http://127.0.0.1:8080    plays against the development world of a running one
//! ```
//!
//! One line a step, with what was decided. The first answer that is not what the binding says ends it with exit
//! status 1.

use std::{error::Error, fmt, path::PathBuf, process::ExitCode};

use bytes::Bytes;
use clap::Parser;
use http::{HeaderMap, Method, Request, StatusCode, header};
use serde_json::{Value, json};
use tower_rctp::{
    client::Signer,
    protocol::{decision::Decision, record::verify_chain},
    wire::{crypto::default_provider, jwk::Keys},
};

#[allow(dead_code, unused_imports)]
#[path = "gateway/main.rs"]
mod gateway;

use gateway::{Config, DevWorld};

type Failure = Box<dyn Error>;

/// Plays a whole sale: discovery, refusals, an offer, a counter, acceptance, the deal, attacks, and the record.
#[derive(Parser)]
struct Args {
    /// A running gateway's URL; without it one is started in this process, with a temporary store.
    #[arg(long)]
    url: Option<String>,
    /// The running gateway's development directory, for the agents' keys and the grant.
    #[arg(long, value_name = "DIR", default_value = "rctp-dev")]
    dev_dir: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sale: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Failure> {
    let Some(url) = args.url else {
        let directory = tempfile::tempdir()?;
        let running = gateway::start(Config::dev_in(directory.path())).await?;
        let world = running
            .world
            .clone()
            .ok_or("the gateway has no development world")?;
        println!("a gateway listens on {}", world.url);
        let played = Sale::new(world)?.play().await;
        running.stop().await;
        return played;
    };
    let mut world = DevWorld::load(&args.dev_dir)?;
    world.url = url.trim_end_matches('/').to_owned();
    Sale::new(world)?.play().await
}

/// The floor that the seller sets, in cents. No agent may ever read it; the sale looks for it in every answer.
const FLOOR: u64 = 43_217;

struct Sale {
    world: DevWorld,
    http: reqwest::Client,
    buyer: Signer,
    seller: Signer,
    steps: usize,
}

impl Sale {
    fn new(world: DevWorld) -> Result<Self, Failure> {
        let signer =
            |agent: &gateway::dev::DevAgent| Signer::new(&agent.profile, agent.key.clone());
        Ok(Self {
            http: reqwest::Client::builder().no_proxy().build()?,
            buyer: signer(&world.agents.buyer)?,
            seller: signer(&world.agents.seller)?,
            world,
            steps: 0,
        })
    }

    async fn play(mut self) -> Result<(), Failure> {
        // What happens on the marketplace's own pages: a listing whose terms are confirmed, and a grant.
        let floor = json!({"floor": {"amount": FLOOR, "currency": "EUR"}});
        let listing_id = self
            .marketplace("/dev/listings", &floor)
            .await?
            .text("listing_id")?;
        let probed_id = self
            .marketplace("/dev/listings", &floor)
            .await?
            .text("listing_id")?;
        let grant = self
            .marketplace("/dev/grants", &json!({"tier": "auto"}))
            .await?;
        let token = grant.text("access_token")?;

        // The buyer's agent looks around.
        let profile = self.plain("/.well-known/ucp").await?;
        self.step("the gateway's profile", &profile, 200, "")?;
        let keys = Keys::parse(&profile.body["keys"], default_provider())?;
        let listing = self.buyer_get(&format!("/listings/{listing_id}")).await?;
        self.step("discovery of the listing", &listing, 200, "")?;
        listing.is("state", "active")?;

        // Below the floor: refused, and nothing private is told. The budget runs out.
        let low = self.offer(&probed_id, FLOOR - 1, None).await?;
        self.step(
            "an offer below the floor",
            &low,
            422,
            "forbid;action=\"offer.create\";reason=below_floor",
        )?;
        for amount in [FLOOR - 2, 100] {
            let low = self.offer(&probed_id, amount, None).await?;
            self.step(
                "another one",
                &low,
                422,
                "forbid;action=\"offer.create\";reason=below_floor",
            )?;
        }
        let spent = self.offer(&probed_id, FLOOR + 10_000, None).await?;
        let retry_after = spent.body["retry_after"]
            .as_u64()
            .ok_or("no retry_after in the answer")?;
        let header = format!(
            "forbid;action=\"offer.create\";reason=offer_budget_exhausted;retry_after={retry_after}"
        );
        self.step("the budget has run out", &spent, 429, &header)?;

        // The negotiation.
        let offer = self.offer(&listing_id, FLOOR + 100, None).await?;
        self.step("a good offer", &offer, 201, "auto")?;
        let path = format!("/offers/{}/counter", offer.text("offer_id")?);
        let counter = self
            .seller_post(
                &path,
                &json!({"deal_terms": deal_terms(FLOOR + 5_000)}),
                &token,
            )
            .await?;
        self.step("the seller's counter", &counter, 201, "auto")?;
        let answer = self
            .offer(&listing_id, FLOOR + 2_000, Some(&counter.text("offer_id")?))
            .await?;
        self.step("the buyer's answer", &answer, 201, "auto")?;
        answer.is("negotiation_id", &offer.text("negotiation_id")?)?;
        let offer_id = answer.text("offer_id")?;
        let accepted = self
            .seller_post(&format!("/offers/{offer_id}/accept"), &json!({}), &token)
            .await?;
        self.step("acceptance, with a checkout", &accepted, 200, "auto")?;
        accepted.is("state", "accepted")?;

        // The deal.
        let mine = self.buyer_get(&format!("/offers/{offer_id}")).await?;
        self.step("the buyer reads the checkout", &mine, 200, "")?;
        let body = json!({"checkout": mine.text("checkout")?});
        let redemption = self.signed(&self.buyer, Method::POST, "/deals", Some(&body), None)?;
        let deal = self.send(clone(&redemption)).await?;
        self.step("redemption: a deal", &deal, 201, "auto")?;
        let deal_id = deal.text("deal_id")?;

        // Attacks and accidents.
        let replay = self.send(clone(&redemption)).await?;
        self.step(
            "the same request again: the same answer",
            &replay,
            201,
            "auto",
        )?;
        if replay.body != deal.body {
            return Err("the repeat was answered differently".into());
        }
        let mut other = clone(&redemption);
        *other.body_mut() = Bytes::from(json!({"checkout": "not.the.same"}).to_string());
        self.buyer.sign(&mut other)?;
        let conflict = self.send(other).await?;
        self.step("its key with another body", &conflict, 409, "")?;
        conflict.is("error", "idempotency_conflict")?;
        let again = self.signed(&self.buyer, Method::POST, "/deals", Some(&body), None)?;
        let again = self.send(again).await?;
        self.step(
            "the checkout a second time",
            &again,
            409,
            "forbid;reason=offer_replayed",
        )?;
        let mut tampered = self.signed(
            &self.buyer,
            Method::POST,
            "/offers",
            Some(&offer_body(&listing_id, FLOOR, None)),
            None,
        )?;
        *tampered.body_mut() = Bytes::from(offer_body(&listing_id, 1, None).to_string());
        let tampered = self.send(tampered).await?;
        self.step(
            "a tampered request",
            &tampered,
            401,
            "forbid;action=\"offer.create\";reason=signature_invalid",
        )?;

        // The seller takes the grant back: the next call fails.
        self.revoke(&token).await?;
        let path = format!("/offers/{offer_id}/decline");
        let revoked = self.seller_post(&path, &json!({}), &token).await?;
        self.step(
            "after the grant was revoked",
            &revoked,
            403,
            "forbid;reason=grant_revoked",
        )?;

        // The record.
        let mut entries = 0;
        for (kind, id, least) in [
            ("negotiation", offer.text("negotiation_id")?, 6),
            ("deal", deal_id, 1),
            ("gateway", "gateway".into(), 0),
        ] {
            let answer = self.plain(&format!("/dev/record/{kind}/{id}")).await?;
            let chain = match (&answer.body["entries"], answer.status) {
                (Value::Array(entries), StatusCode::OK) => entries.as_slice(),
                // A chain without entries is none yet.
                (_, StatusCode::NOT_FOUND) => &[],
                _ => return Err(format!("the {kind} chain was answered {answer}").into()),
            };
            verify_chain(chain, &keys).map_err(|broken| format!("the {kind} chain: {broken}"))?;
            if chain.len() < least {
                let found = chain.len();
                return Err(format!(
                    "the {kind} chain has {found} entries, at least {least} were made"
                )
                .into());
            }
            if answer.whole().contains(&FLOOR.to_string()) {
                return Err(format!("the {kind} chain tells the floor").into());
            }
            entries += chain.len();
        }
        println!(
            "sale complete: {} steps, {entries} record entries verified",
            self.steps
        );
        Ok(())
    }

    /// Prints a step, and holds the answer against what the binding says.
    fn step(
        &mut self,
        what: &str,
        answer: &Answer,
        status: u16,
        decision: &str,
    ) -> Result<(), Failure> {
        self.steps += 1;
        let stated = match &answer.decision {
            Some(decision) => decision.to_string(),
            None => answer.body["error"].as_str().unwrap_or_default().to_owned(),
        };
        println!(
            "{:>3}  {what:<42} {} {stated}",
            self.steps,
            answer.status.as_u16()
        );
        let decided = answer
            .decision
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        if answer.status.as_u16() != status || decided != decision {
            return Err(format!("expected {status} `{decision}`, got {answer}").into());
        }
        // A counter and a deal may happen to name any price; refusals name none.
        if status >= 400 && answer.whole().contains(&FLOOR.to_string()) {
            return Err("the refusal tells the floor".into());
        }
        Ok(())
    }

    async fn offer(
        &self,
        listing_id: &str,
        amount: u64,
        supersedes: Option<&str>,
    ) -> Result<Answer, Failure> {
        let body = offer_body(listing_id, amount, supersedes);
        self.send(self.signed(&self.buyer, Method::POST, "/offers", Some(&body), None)?)
            .await
    }

    async fn buyer_get(&self, path: &str) -> Result<Answer, Failure> {
        self.send(self.signed(&self.buyer, Method::GET, path, None, None)?)
            .await
    }

    async fn seller_post(&self, path: &str, body: &Value, token: &str) -> Result<Answer, Failure> {
        self.send(self.signed(&self.seller, Method::POST, path, Some(body), Some(token))?)
            .await
    }

    /// Something that a person does on the marketplace's pages.
    async fn marketplace(&self, path: &str, body: &Value) -> Result<Answer, Failure> {
        let mut request = self.request(Method::POST, path, Some(body), Some(&self.world.secret))?;
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, "application/json".parse()?);
        let answer = self.send(request).await?;
        if !answer.status.is_success() {
            return Err(format!(
                "POST {path} was answered {answer}; is --dev-dir that of this gateway?"
            )
            .into());
        }
        Ok(answer)
    }

    /// RFC 7009, as the seller agent's own client.
    async fn revoke(&self, token: &str) -> Result<(), Failure> {
        let seller = &self.world.agents.seller;
        let response = self
            .http
            .post(format!("{}/oauth/revoke", self.world.url))
            .basic_auth(&seller.client_id, Some(&seller.client_secret))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(format!("token={token}"))
            .send()
            .await?;
        match response.status() {
            StatusCode::OK => Ok(()),
            status => Err(format!("the revocation was answered {status}").into()),
        }
    }

    async fn plain(&self, path: &str) -> Result<Answer, Failure> {
        self.send(self.request(Method::GET, path, None, None)?)
            .await
    }

    fn signed(
        &self,
        agent: &Signer,
        method: Method,
        path: &str,
        body: Option<&Value>,
        token: Option<&str>,
    ) -> Result<Request<Bytes>, Failure> {
        let mut request = self.request(method, path, body, token)?;
        agent.sign(&mut request)?;
        Ok(request)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        token: Option<&str>,
    ) -> Result<Request<Bytes>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.world.url));
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        Ok(request.body(body.map(|b| Bytes::from(b.to_string())).unwrap_or_default())?)
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Answer, Failure> {
        let response = self.http.execute(request.try_into()?).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.bytes().await?;
        let decision = match headers.get("rctp-decision") {
            Some(value) => Some(value.to_str()?.parse()?),
            None => None,
        };
        Ok(Answer {
            status,
            headers,
            decision,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        })
    }
}

fn clone(request: &Request<Bytes>) -> Request<Bytes> {
    let mut copy = Request::new(request.body().clone());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

fn deal_terms(amount: u64) -> Value {
    json!({
        "price": {"amount": amount, "currency": "EUR"},
        "fulfillment": {"method_type": "shipping", "selected_option_id": "standard"},
        "payment": {"selected_term_id": "prepaid"},
    })
}

fn offer_body(listing_id: &str, amount: u64, supersedes: Option<&str>) -> Value {
    let mut body = json!({"listing_id": listing_id, "deal_terms": deal_terms(amount)});
    if let Some(supersedes) = supersedes {
        body["supersedes"] = json!(supersedes);
    }
    body
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    decision: Option<Decision>,
    body: Value,
}

impl Answer {
    /// A member of the body that must be a string.
    fn text(&self, member: &str) -> Result<String, Failure> {
        let text = self.body[member].as_str().map(str::to_owned);
        text.ok_or_else(|| format!("there is no `{member}` in {self}").into())
    }

    fn is(&self, member: &str, expected: &str) -> Result<(), Failure> {
        let found = self.text(member)?;
        if found == expected {
            return Ok(());
        }
        Err(format!("`{member}` is `{found}`, not `{expected}`").into())
    }

    /// Everything that an agent can read of it.
    fn whole(&self) -> String {
        format!("{:?} {}", self.headers, self.body)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.body)
    }
}
