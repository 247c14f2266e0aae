//! The play: a passkey, a grant, a listing with the seller's terms, refusals, approvals, a deal, attacks, delivery and
//! payment, and the record.

use std::time::SystemTime;

use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tower_rctp::{
    client::{WriterSignature, verify_record},
    protocol::{event::EVENT_TYP, record::verify_chain, time::Timestamp},
    wire::{
        crypto::default_provider,
        jwk::{Keys, SigningKey},
        jws,
    },
};

use super::{
    agent::Agent,
    answer::{Answer, Failure},
    gateway::{DevWorld, files},
    oauth,
    seller::Seller,
};

/// The floor that the seller's agent proposes, and the one that the seller sets instead, in cents. No agent may ever
/// read either; the play looks for them in every answer that an agent gets.
pub const PROPOSED: u64 = 40_111;
pub const FLOOR: u64 = 43_217;
const LIST_PRICE: u64 = 60_000;

/// The scope that the seller grants with less than was asked for.
const COUNTER: &str = "dev.rctp.deal:offer_counter";
/// What an approval says once its action was carried out.
const APPROVED: &str = "approved: auto";

/// The whole play.
pub async fn play(world: DevWorld) -> Result<(), Failure> {
    let mut sale = Sale::new(world).await?;
    let grant = sale.the_seller_lets_an_agent_in().await?;
    let listing_id = sale.the_seller_sets_the_terms().await?;
    sale.the_floor_stays_secret(&listing_id).await?;
    sale.the_seller_says_no(&listing_id).await?;
    let offer = sale.a_price_is_agreed(&listing_id, grant).await?;
    let deal_id = sale.the_deal_is_made_once(&offer).await?;
    sale.goods_and_money_change_hands(&deal_id).await?;
    sale.the_seller_takes_the_grant_back(&offer).await?;
    let negotiation_id = offer.text("/negotiation_id")?;
    // After each `ask`, what came of it.
    let told = [
        ("listing", &*listing_id, "ask auto ask forbid"),
        (
            "negotiation",
            &negotiation_id,
            "forbid auto ask auto auto auto forbid forbid",
        ),
        ("deal", &deal_id, "auto auto auto auto forbid auto auto"),
    ];
    let entries = sale.the_record_tells_it_all(told).await?;
    let steps = sale.steps;
    println!("sale complete: {steps} steps, {entries} record entries verified");
    Ok(())
}

struct Sale {
    world: DevWorld,
    http: reqwest::Client,
    seller: Seller,
    /// The seller's.
    agent: Agent,
    buyer: Agent,
    /// Another buyer's, which has no key.
    prober: Agent,
    steps: usize,
}

/// What the seller's agent got from the authorization server.
struct Grant {
    client: oauth::Client,
    refresh_token: String,
}

impl Sale {
    /// Each play has a seller of its own, to whom the marketplace sends a link.
    async fn new(world: DevWorld) -> Result<Self, Failure> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let (url, agents) = (&world.url, &world.agents);
        let mut marketplace = Agent::without_key("marketplace", url, &http);
        marketplace.bears(world.secret.clone());
        let seller = json!({"seller": format!("sub_{}", files::random()?)});
        let link = marketplace.post("/dev/enrolments", &seller).await?;
        let link = link
            .text("/url")
            .map_err(|e| format!("{e}; is --dev-dir that of this gateway?"))?;
        Ok(Self {
            seller: Seller::with_link(&http, &link)?,
            agent: Agent::with_key("agent", url, &http, &agents.seller)?,
            buyer: Agent::with_key("buyer", url, &http, &agents.buyer)?,
            prober: Agent::without_key("prober", url, &http),
            http,
            world,
            steps: 0,
        })
    }

    /// A passkey, and a grant: the agent asks, the seller confirms less, the agent gets tokens for its key.
    async fn the_seller_lets_an_agent_in(&mut self) -> Result<Grant, Failure> {
        let enrolled = self.seller.enrol().await?;
        self.step("enrols a passkey", &enrolled, 201, "")?;

        let (url, agent) = (&self.world.url, &self.world.agents.seller);
        let (client, found) = oauth::Client::discover("agent", url, &self.http, agent).await?;
        let jkt = agent.key.kid().to_string();
        self.step("finds the authorization server", &found, 200, "")?;
        let mut tiers = json!({
            "dev.rctp.listing:listing_create": "ask",
            "dev.rctp.listing:listing_reprice": "ask",
            COUNTER: "auto",
            "dev.rctp.deal:offer_accept": "auto",
        });
        let wish = client.wish(&jkt, &tiers)?;

        let shown = self.seller.consider(&wish.url).await?;
        self.step("reads what the agent asks for", &shown, 200, "")?;
        shown.is("/client/jkt", &jkt)?;
        tiers[COUNTER] = json!("ask");
        let given = self.seller.consent(&wish.url, &tiers).await?;
        self.step("allows it, and wants to approve counters", &given, 200, "")?;

        let granted = client.redeem(wish, &given.text("/redirect")?).await?;
        self.step("gets tokens that are bound to its key", &granted, 200, "")?;
        if granted.body["authorization_details"][0]["tiers"] != tiers {
            return Err("the grant is not what the seller confirmed".into());
        }
        self.agent.bears(granted.text("/access_token")?);
        Ok(Grant {
            client,
            refresh_token: granted.text("/refresh_token")?,
        })
    }

    /// A listing: proposed by the agent, its terms set by the seller on the marketplace's page.
    async fn the_seller_sets_the_terms(&mut self) -> Result<String, Failure> {
        let listing = json!({
            "title": "A touring bicycle",
            "list_price": euros(LIST_PRICE),
            "term_set": "goods-1",
            "proposed_terms": {"floor": euros(PROPOSED)},
        });
        let asked = self.agent.post("/listings", &listing).await?;
        let id = self.asked("proposes a listing, and a floor", &asked)?;

        let refused = self.agent.get(&format!("/approve/{id}")).await?;
        self.step("may not open that page", &refused, 403, "action_forbidden")?;
        let page = self.seller.open(&id).await?;
        self.step("opens the page: all is filled in", &page, 200, "pending")?;
        let mut terms = page.body["prefill"].clone();
        if terms["floor"] != euros(PROPOSED) || terms["deliver_within_days"].is_null() {
            return Err("the form does not begin with what was proposed and the defaults".into());
        }
        terms["floor"] = euros(LIST_PRICE + 1);
        let slip = self.seller.fill_in(&id, &terms).await?;
        self.step("types a floor above the price", &slip, 422, "terms_invalid")?;
        terms["floor"] = euros(FLOOR);
        let filled_in = self.seller.fill_in(&id, &terms).await?;
        self.step("sets another floor than was proposed", &filled_in, 200, "")?;
        let approval = self.seller.approval(&filled_in).await?;
        let approved = self.seller.respond(&id, &approval).await?;
        self.step("approves with the passkey", &approved, 200, APPROVED)?;
        let again = self.seller.respond(&id, &approval).await?;
        self.step("clicks a second time", &again, 200, APPROVED)?;
        if again.body != approved.body {
            return Err("the second click was answered differently".into());
        }

        let outcome = self.agent.get(&format!("/approvals/{id}")).await?;
        self.step("reads a commitment, and no value", &outcome, 200, APPROVED)?;
        let listing_id = outcome.text("/result/listing_id")?;
        let all = json!({
            "listing_id": listing_id,
            "term_set": "goods-1",
            "terms_commitment": filled_in.body["terms_commitment"],
        });
        if outcome.body["result"] != all {
            return Err(format!("the agent should read {all}, and got {outcome}").into());
        }
        Ok(listing_id)
    }

    /// Below the floor nobody learns a thing, and soon gets no answer at all.
    async fn the_floor_stays_secret(&mut self, listing_id: &str) -> Result<(), Failure> {
        let profile = self.buyer.get("/.well-known/ucp").await?;
        self.step("reads the gateway's profile", &profile, 200, "")?;
        let listing = self.buyer.get(&format!("/listings/{listing_id}")).await?;
        self.step("finds the listing", &listing, 200, "active")?;

        const BELOW: &str = "forbid;action=\"offer.create\";reason=below_floor";
        let offer = |cents| offer(listing_id, cents);
        let low = self.buyer.post("/offers", &offer(FLOOR - 1)).await?;
        self.step("offers a cent less than the floor", &low, 422, BELOW)?;

        let (url, agent) = (&self.world.url, &self.world.agents.buyer);
        let (client, _) = oauth::Client::discover("prober", url, &self.http, agent).await?;
        let token = client.own_token().await?;
        self.prober.bears(token.text("/access_token")?);
        self.step("has no key, and gets a token", &token, 200, "")?;
        for cents in [20_000, 30_000, 40_000] {
            let low = self.prober.post("/offers", &offer(cents)).await?;
            self.step("feels for the floor", &low, 422, BELOW)?;
        }
        let spent = self.prober.post("/offers", &offer(LIST_PRICE)).await?;
        let retry_after = &spent.body["retry_after"];
        let says = format!(
            "forbid;action=\"offer.create\";reason=offer_budget_exhausted;retry_after={retry_after}"
        );
        self.step("has no guesses left, at any price", &spent, 429, &says)
    }

    /// The seller is asked, and says no.
    async fn the_seller_says_no(&mut self, listing_id: &str) -> Result<(), Failure> {
        let price = json!({"price": euros(50_000)});
        let path = format!("/listings/{listing_id}/price");
        let asked = self.agent.post(&path, &price).await?;
        let id = self.asked("wants to lower the price", &asked)?;
        let declined = self.seller.decline(&id).await?;
        self.step("says no", &declined, 200, "declined")?;
        let outcome = self.agent.get(&format!("/approvals/{id}")).await?;
        self.step("reads that", &outcome, 200, "declined")
    }

    /// An offer, a counter that the seller approves, the answer to it, and acceptance. Answers the accepted offer.
    async fn a_price_is_agreed(
        &mut self,
        listing_id: &str,
        grant: Grant,
    ) -> Result<Answer, Failure> {
        let offer = |cents| offer(listing_id, cents);
        let first = self.buyer.post("/offers", &offer(45_000)).await?;
        self.step("makes a good offer", &first, 201, "auto")?;
        let path = format!("/offers/{}/counter", first.text("/offer_id")?);
        let counter = json!({"deal_terms": deal_terms(52_000)});
        let asked = self.agent.post(&path, &counter).await?;
        let id = self.asked("counters", &asked)?;
        let approved = self.seller.approve(&id).await?;
        self.step("approves with the passkey", &approved, 200, APPROVED)?;
        let counter = self.agent.get(&format!("/approvals/{id}")).await?;
        self.step("reads its counter", &counter, 200, APPROVED)?;

        let mut answer = offer(48_000);
        answer["supersedes"] = counter.body["result"]["offer_id"].clone();
        let answer = self.buyer.post("/offers", &answer).await?;
        self.step("meets it half-way", &answer, 201, "auto")?;
        answer.is("/negotiation_id", &first.text("/negotiation_id")?)?;

        let refreshed = grant.client.refresh(&grant.refresh_token).await?;
        self.step("refreshes its tokens", &refreshed, 200, "")?;
        self.agent.bears(refreshed.text("/access_token")?);
        let path = format!("/offers/{}/accept", answer.text("/offer_id")?);
        let accepted = self.agent.post(&path, &json!({})).await?;
        self.step("accepts", &accepted, 200, "auto")?;
        accepted.is("/state", "accepted")?;
        Ok(accepted)
    }

    /// The checkout becomes a deal, once, whatever is tried with it.
    async fn the_deal_is_made_once(&mut self, accepted: &Answer) -> Result<String, Failure> {
        let mine = format!("/offers/{}", accepted.text("/offer_id")?);
        let mine = self.buyer.get(&mine).await?;
        self.step("finds the checkout", &mine, 200, "accepted")?;
        let checkout = json!({"checkout": mine.text("/checkout")?});
        let redeem = self.buyer.signed("/deals", &checkout)?;
        let deal = self.buyer.send(clone(&redeem)).await?;
        self.step("redeems it: a deal", &deal, 201, "auto")?;

        let replay = self.buyer.send(clone(&redeem)).await?;
        self.step("repeats the request: the same answer", &replay, 201, "auto")?;
        if replay.body != deal.body {
            return Err("the repeat was answered differently".into());
        }
        let mut other = redeem;
        *other.body_mut() = json!({"checkout": "not.the.same"}).to_string().into();
        self.buyer.sign_again(&mut other)?;
        let other = self.buyer.send(other).await?;
        self.step("changes the repeat", &other, 409, "idempotency_conflict")?;
        let second = self.buyer.post("/deals", &checkout).await?;
        let says = "forbid;reason=offer_replayed";
        self.step("redeems the checkout again", &second, 409, says)?;

        let listing_id = accepted.text("/listing_id")?;
        let offer = |cents| offer(&listing_id, cents);
        let mut tampered = self.buyer.signed("/offers", &offer(50_000))?;
        *tampered.body_mut() = offer(1).to_string().into();
        let tampered = self.buyer.send(tampered).await?;
        let says = "forbid;action=\"offer.create\";reason=signature_invalid";
        self.step("sends an offer; it is tampered with", &tampered, 401, says)?;
        deal.text("/deal_id")
    }

    /// The holder of funds pays out once the buyer has accepted, and everybody can verify who said what.
    async fn goods_and_money_change_hands(&mut self, deal_id: &str) -> Result<(), Failure> {
        let agents = self.world.agents.clone();
        let agent = |who, of| Agent::with_key(who, &self.world.url, &self.http, of);
        let holder = agent("holder", &agents.funds_holder)?;
        let carrier = agent("carrier", &agents.carrier)?;
        let buyer = agent("buyer", &agents.buyer)?;
        let early = "forbid;reason=release_condition_unmet";
        for (who, of, event, what, status, says) in [
            (
                &holder,
                &agents.funds_holder,
                "funds_held",
                "holds the money",
                201,
                "auto",
            ),
            (
                &carrier,
                &agents.carrier,
                "shipped",
                "takes the bicycle",
                201,
                "auto",
            ),
            (
                &carrier,
                &agents.carrier,
                "delivered",
                "delivers it",
                201,
                "auto",
            ),
            (
                &holder,
                &agents.funds_holder,
                "released",
                "pays out too early",
                409,
                early,
            ),
            (&buyer, &agents.buyer, "accepted", "accepts it", 201, "auto"),
            (
                &holder,
                &agents.funds_holder,
                "released",
                "pays the seller",
                201,
                "auto",
            ),
        ] {
            let event = event_of(deal_id, event, &of.key)?;
            let answer = who
                .post(&format!("/deals/{deal_id}/events"), &event)
                .await?;
            self.step(what, &answer, status, says)?;
        }
        let deal = self.buyer.get(&format!("/deals/{deal_id}")).await?;
        self.step("sees that it is done", &deal, 200, "released")?;

        let record = self.buyer.get(&format!("/deals/{deal_id}/events")).await?;
        self.step("reads the record, and verifies it", &record, 200, "")?;
        let profile = self.buyer.get("/.well-known/ucp").await?;
        let keys = Keys::parse(&profile.body["keys"], default_provider())?;
        let writers = [&agents.funds_holder, &agents.carrier, &agents.buyer];
        let writers: Vec<Value> = writers.map(|agent| agent.key.public_jwk()).to_vec();
        let writers = Keys::parse(&json!(writers), default_provider())?;
        let entries = record.body["entries"]
            .as_array()
            .ok_or("there are no entries")?;
        let heads = [record.body["head"].clone()];
        let told = verify_record(entries, &heads, &keys, &writers)?;
        let signed = told.iter().filter_map(|entry| entry.event.as_ref());
        let signed = signed.filter(|(_, writer)| *writer == WriterSignature::Verified);
        match signed.count() {
            5 => Ok(()),
            other => Err(format!("5 events should verify, and {other} do").into()),
        }
    }

    /// The next call fails.
    async fn the_seller_takes_the_grant_back(&mut self, offer: &Answer) -> Result<(), Failure> {
        let grants = self.seller.grants().await?;
        self.step("looks at what was granted", &grants, 200, "")?;
        let grant_id = grants.text("/grants/0/grant_id")?;
        let revoked = self.seller.revoke(&grant_id).await?;
        self.step("takes the grant back", &revoked, 204, "")?;
        let path = format!("/offers/{}/decline", offer.text("/offer_id")?);
        let refused = self.agent.post(&path, &json!({})).await?;
        let says = "forbid;reason=grant_revoked";
        self.step("may do nothing any more", &refused, 403, says)
    }

    /// Each chain verifies with the gateway's published keys, and tells what was decided; answers how many entries there
    /// are.
    async fn the_record_tells_it_all(
        &self,
        told: [(&str, &str, &str); 3],
    ) -> Result<usize, Failure> {
        let profile = self.buyer.get("/.well-known/ucp").await?;
        let keys = Keys::parse(&profile.body["keys"], default_provider())?;
        let mut entries = 0;
        for (kind, id, told) in told {
            let answer = self.buyer.get(&format!("/dev/record/{kind}/{id}")).await?;
            let chain = answer.body["entries"].as_array();
            let chain = chain.ok_or_else(|| format!("the {kind} chain was answered {answer}"))?;
            verify_chain(chain, &keys).map_err(|broken| format!("the {kind} chain: {broken}"))?;
            let decision = |entry: &Value| entry["decision"]["decision"].to_string();
            let found: Vec<_> = chain.iter().map(decision).collect();
            let found = found.join(" ").replace('"', "");
            if found != told {
                return Err(format!("the {kind} chain tells `{found}`, not `{told}`").into());
            }
            entries += chain.len();
        }
        Ok(entries)
    }

    /// The seller was asked; answers the approval's id.
    fn asked(&mut self, what: &str, answer: &Answer) -> Result<String, Failure> {
        let id = answer.approval_id()?;
        let says = format!("ask;approval_id=\"{id}\";expires_in=900;on_timeout=deny");
        self.step(what, answer, 202, &says)?;
        Ok(id)
    }

    /// Prints a step, and holds the answer against what the binding says.
    fn step(
        &mut self,
        what: &str,
        answer: &Answer,
        status: u16,
        says: &str,
    ) -> Result<(), Failure> {
        self.steps += 1;
        let (found, said) = (answer.status.as_u16(), answer.says());
        let line = format!(
            "{:>3}  {:<7} {what:<41} {found} {said}",
            self.steps, answer.who
        );
        println!("{}", line.trim_end());
        if (found, &*said) == (status, says) {
            return Ok(());
        }
        Err(format!("expected {status} `{says}`, got {answer}").into())
    }
}

/// An event that its writer saw, signed.
fn event_of(deal_id: &str, event: &str, key: &SigningKey) -> Result<Value, Failure> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)?
        .as_secs();
    let payload = json!({
        "deal_id": deal_id,
        "event_id": format!("evt_{}", files::random()?),
        "event": event,
        "occurred_at": Timestamp::from_secs(now.try_into()?),
        "observation": "first_hand",
    });
    let jws = jws::sign(EVENT_TYP, payload.to_string().as_bytes(), key)?;
    Ok(json!({"event": jws}))
}

fn clone(request: &Request<Bytes>) -> Request<Bytes> {
    let mut copy = Request::new(request.body().clone());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

fn euros(cents: u64) -> Value {
    json!({"amount": cents, "currency": "EUR"})
}

fn deal_terms(cents: u64) -> Value {
    json!({
        "price": euros(cents),
        "fulfillment": {"method_type": "shipping", "selected_option_id": "standard"},
        "payment": {"selected_term_id": "held_funds"},
    })
}

fn offer(listing_id: &str, cents: u64) -> Value {
    json!({"listing_id": listing_id, "deal_terms": deal_terms(cents)})
}
