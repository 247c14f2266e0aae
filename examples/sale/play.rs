//! The play: a passkey, a grant, a listing with the seller's terms, refusals, approvals, a deal, attacks, delivery and
//! payment, and the record.

use std::fmt;

use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tower_rctp::{
    client::{
        Agent, Signer, WriterSignature,
        agent::{
            Acted, Answered, Deal, Error, NewEvent, NewListing, NewOffer, Offer, ProposedTerms,
        },
    },
    protocol::{
        event::EventName,
        money::Money,
        offer::{DealTerms, Fulfillment, Payment},
        record::verify_chain,
    },
    wire::{crypto::default_provider, jwk::Keys},
};

use super::{
    Transport,
    answer::{Answer, Failure},
    gateway::{Config, DevWorld, dev::DevAgent, files},
    oauth,
    seller::Seller,
};

/// The floor that the seller's agent proposes, and the one that the seller sets instead, in cents. No agent may ever
/// read either; the play looks for them in every answer that an agent gets.
pub const PROPOSED: u64 = 40_111;
pub const FLOOR: u64 = 43_217;
pub const CURRENCY: &str = "EUR";
const LIST_PRICE: u64 = 60_000;

/// The scope that the seller grants with less than was asked for.
const COUNTER: &str = "dev.rctp.deal:offer_counter";
/// What an approval says once its action was carried out.
pub const APPROVED: &str = "200 approved: auto";
pub const UNMET: &str = "409 forbid;reason=release_condition_unmet";

/// The whole play. `own` are the settings of a gateway that is the play's own.
pub async fn play(
    world: DevWorld,
    own: Option<&Config>,
    transport: Transport,
) -> Result<Played, Failure> {
    let mut sale = Sale::new(world, transport).await?;
    let grant = sale.the_seller_lets_an_agent_in().await?;
    let listing_id = sale.the_seller_sets_the_terms().await?;
    sale.the_floor_stays_secret(&listing_id).await?;
    sale.the_seller_says_no(&listing_id).await?;
    let offer = sale.a_price_is_agreed(&listing_id, grant).await?;
    let deal = sale.the_deal_is_made_once(&offer).await?;
    let mut entries = sale.goods_and_money_change_hands(&deal.deal_id).await?;
    entries += sale.it_is_not_as_described().await?;
    let late = sale.it_does_not_come().await?;
    sale.the_seller_takes_the_grant_back(&offer).await?;
    // After each `ask`, what came of it.
    entries += sale
        .the_record_tells_it_all([
            ("listing", &listing_id, "ask auto ask forbid"),
            (
                "negotiation",
                &offer.negotiation_id,
                "forbid auto ask auto auto auto forbid forbid",
            ),
        ])
        .await?;
    if let Some(config) = own {
        entries += sale.it_has_not_come(&late, config).await?;
    }
    Ok(Played {
        steps: sale.steps,
        entries,
    })
}

/// What was played.
#[derive(Debug, PartialEq, Eq)]
pub struct Played {
    pub steps: usize,
    pub entries: usize,
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, entries } = self;
        write!(
            f,
            "sale complete: {steps} steps, {entries} record entries verified"
        )
    }
}

pub struct Sale {
    pub world: DevWorld,
    http: reqwest::Client,
    pub seller: Seller,
    /// The seller's.
    pub agent: Agent,
    pub buyer: Agent,
    pub holder: Agent,
    pub carrier: Agent,
    steps: usize,
}

/// What the seller's agent got from the authorization server.
struct Grant {
    client: oauth::Client,
    refresh_token: String,
}

impl Sale {
    /// Each play has a seller of its own, to whom the marketplace sends a link.
    async fn new(world: DevWorld, transport: Transport) -> Result<Self, Failure> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let seller = json!({"seller": format!("sub_{}", files::random()?)});
        let link = http.post(format!("{}/dev/enrolments", world.url));
        let link = link.bearer_auth(&world.secret).json(&seller).send().await?;
        let link = Answer::read(link).await?.text("/url");
        let link = link.map_err(|e| format!("{e}; is --dev-dir that of this gateway?"))?;
        let agent = async |of: &DevAgent| {
            let agent = Agent::signing(signer(of)?).http(http.clone());
            let agent = agent.discover(&world.url).await?;
            Ok::<_, Failure>(match transport {
                Transport::Rest => agent,
                Transport::Mcp => agent.over_mcp(),
            })
        };
        let agents = &world.agents;
        Ok(Self {
            seller: Seller::with_link(&http, &link)?,
            agent: agent(&agents.seller).await?,
            buyer: agent(&agents.buyer).await?,
            holder: agent(&agents.funds_holder).await?,
            carrier: agent(&agents.carrier).await?,
            http,
            world,
            steps: 0,
        })
    }

    /// A passkey, and a grant: the agent asks, the seller confirms less, the agent gets tokens for its key.
    async fn the_seller_lets_an_agent_in(&mut self) -> Result<Grant, Failure> {
        let enrolled = self.seller.enrol().await?;
        self.step("seller enrols a passkey", &enrolled, "201")?;

        let (url, agent) = (&self.world.url, &self.world.agents.seller);
        let (client, found) = oauth::Client::discover(url, &self.http, agent).await?;
        let jkt = agent.key.kid().to_string();
        self.step("agent finds the authorization server", &found, "200")?;
        let mut tiers = json!({
            "dev.rctp.listing:listing_create": "ask",
            "dev.rctp.listing:listing_reprice": "ask",
            COUNTER: "auto",
            "dev.rctp.deal:offer_accept": "auto",
        });
        let wish = client.wish(&jkt, &tiers)?;

        let shown = self.seller.consider(&wish.url).await?;
        self.step("seller reads what the agent asks for", &shown, "200")?;
        shown.is("/client/jkt", &jkt)?;
        tiers[COUNTER] = json!("ask");
        let given = self.seller.consent(&wish.url, &tiers).await?;
        self.step(
            "seller allows it, and wants to approve counters",
            &given,
            "200",
        )?;

        let granted = client.redeem(wish, &given.text("/redirect")?).await?;
        self.step(
            "agent gets tokens that are bound to its key",
            &granted,
            "200",
        )?;
        if granted.body["authorization_details"][0]["tiers"] != tiers {
            return Err("the grant is not what the seller confirmed".into());
        }
        self.agent = self.agent.with_token(&granted.text("/access_token")?)?;
        Ok(Grant {
            client,
            refresh_token: granted.text("/refresh_token")?,
        })
    }

    /// A listing: proposed by the agent, its terms set by the seller on the marketplace's page.
    async fn the_seller_sets_the_terms(&mut self) -> Result<String, Failure> {
        let listing = self
            .agent
            .create_listing(&self.listing("A touring bicycle"));
        let id = self.asked("agent proposes a listing, and a floor", listing.await)?;

        let refused = self.raw_page(&id).await?;
        self.step(
            "agent may not open that page",
            &refused,
            "403 action_forbidden",
        )?;
        let page = self.seller.open(&id).await?;
        self.step(
            "seller opens the page: all is filled in",
            &page,
            "200 pending",
        )?;
        let mut terms = page.body["prefill"].clone();
        if terms["floor"] != json!(euros(PROPOSED)) || terms["deliver_within_days"].is_null() {
            return Err("the form does not begin with what was proposed and the defaults".into());
        }
        terms["floor"] = json!(euros(LIST_PRICE + 1));
        let slip = self.seller.fill_in(&id, &terms).await?;
        self.step(
            "seller types a floor above the price",
            &slip,
            "422 terms_invalid",
        )?;
        terms["floor"] = json!(euros(FLOOR));
        let filled_in = self.seller.fill_in(&id, &terms).await?;
        self.step(
            "seller sets another floor than was proposed",
            &filled_in,
            "200",
        )?;
        let approval = self.seller.approval(&filled_in).await?;
        let approved = self.seller.respond(&id, &approval).await?;
        self.step("seller approves with the passkey", &approved, APPROVED)?;
        let again = self.seller.respond(&id, &approval).await?;
        self.step("seller clicks a second time", &again, APPROVED)?;
        if again.body != approved.body {
            return Err("the second click was answered differently".into());
        }

        let outcome = self.agent.get_approval(&id).await;
        let told = Answer::to(&outcome)?;
        let outcome = self.got("agent reads a commitment, and no value", outcome, APPROVED)?;
        let terms = outcome.result.and_then(|result| result.terms());
        let listing_id = terms.ok_or("the approval has no listing")?.listing_id;
        let all = json!({
            "listing_id": listing_id,
            "term_set": "goods-1",
            "terms_commitment": filled_in.body["terms_commitment"],
        });
        if told.body["result"] != all {
            return Err(format!("the agent should read {all}, and got {told}").into());
        }
        Ok(listing_id)
    }

    /// Below the floor nobody learns a thing, and soon gets no answer at all.
    async fn the_floor_stays_secret(&mut self, listing_id: &str) -> Result<(), Failure> {
        let listing = self.buyer.get_listing(listing_id).await;
        self.got("buyer finds the listing", listing, "200 active")?;

        const BELOW: &str = "422 forbid;action=\"offer.create\";reason=below_floor";
        let offer = |cents| NewOffer::new(listing_id, deal_terms(cents));
        let low = self.buyer.create_offer(&offer(FLOOR - 1)).await;
        self.refused("buyer offers a cent less than the floor", low, BELOW)?;

        let (url, agent) = (&self.world.url, &self.world.agents.buyer);
        let (client, _) = oauth::Client::discover(url, &self.http, agent).await?;
        let token = client.own_token().await?;
        let prober = Agent::bearing(token.text("/access_token")?).http(self.http.clone());
        let prober = prober.at(url)?;
        self.step("prober has no key, and gets a token", &token, "200")?;
        for cents in [20_000, 30_000, 40_000] {
            let low = prober.create_offer(&offer(cents)).await;
            self.refused("prober feels for the floor", low, BELOW)?;
        }
        let spent = prober.create_offer(&offer(LIST_PRICE)).await;
        let after = spent.as_ref().err().and_then(Error::refused);
        let after = after.and_then(|refused| refused.retry_after);
        let says = format!(
            "429 forbid;action=\"offer.create\";reason=offer_budget_exhausted;retry_after={}",
            after.unwrap_or_default().as_secs()
        );
        self.refused("prober has no guesses left, at any price", spent, &says)
    }

    /// The seller is asked, and says no.
    async fn the_seller_says_no(&mut self, listing_id: &str) -> Result<(), Failure> {
        let asked = self.agent.reprice_listing(listing_id, &euros(50_000)).await;
        let id = self.asked("agent wants to lower the price", asked)?;
        let declined = self.seller.decline(&id).await?;
        self.step("seller says no", &declined, "200 declined")?;
        let outcome = self.agent.get_approval(&id).await;
        self.got("agent reads that", outcome, "200 declined")?;
        Ok(())
    }

    /// An offer, a counter that the seller approves, the answer to it, and acceptance. Answers the accepted offer.
    async fn a_price_is_agreed(
        &mut self,
        listing_id: &str,
        grant: Grant,
    ) -> Result<Offer, Failure> {
        let offer = |cents| NewOffer::new(listing_id, deal_terms(cents));
        let first = self.buyer.create_offer(&offer(45_000)).await;
        let first = self.got("buyer makes a good offer", first, "201 auto")?;
        let counter = self
            .agent
            .counter_offer(&first.offer_id, &deal_terms(52_000), None);
        let id = self.asked("agent counters", counter.await)?;
        let approved = self.seller.approve(&id).await?;
        self.step("seller approves with the passkey", &approved, APPROVED)?;
        let counter = self.agent.get_approval(&id).await;
        let counter = self.got("agent reads its counter", counter, APPROVED)?;
        let counter = counter.result.and_then(|result| result.offer());
        let counter = counter.ok_or("the approval has no counter")?;

        let answer = offer(48_000).superseding(counter.offer_id);
        let answer = self.buyer.create_offer(&answer).await;
        let answer = self.got("buyer meets it half-way", answer, "201 auto")?;
        if answer.negotiation_id != first.negotiation_id {
            return Err("the answer to a counter is not of its negotiation".into());
        }

        let refreshed = grant.client.refresh(&grant.refresh_token).await?;
        self.step("agent refreshes its tokens", &refreshed, "200")?;
        self.agent = self.agent.with_token(&refreshed.text("/access_token")?)?;
        let accepted = self.agent.accept_offer(&answer.offer_id).await;
        let accepted = self.got("agent accepts", accepted, "200 auto")?;
        accepted.auto().ok_or_else(|| "it should be done".into())
    }

    /// The checkout becomes a deal, once, whatever is tried with it.
    async fn the_deal_is_made_once(&mut self, accepted: &Offer) -> Result<Deal, Failure> {
        let key = files::random()?;
        let mine = self.buyer.get_offer(&accepted.offer_id).await;
        let mine = self.got("buyer finds the checkout", mine, "200 accepted")?;
        let verified = self.buyer.checkout(&mine).await?;
        let checkout = mine.checkout.unwrap_or_default();
        if verified.deal_terms != accepted.deal_terms {
            return Err("the checkout is not of the terms that were accepted".into());
        }
        let redeem = || self.buyer.create_deal(&checkout).idempotency_key(&key);
        let (first, repeat) = (redeem().await, redeem().await);
        let other = self.buyer.create_deal("not.the.same").idempotency_key(&key);
        let (other, second) = (other.await, self.buyer.create_deal(&checkout).await);
        let deal = self.got("buyer redeems it: a deal", first, "201 auto")?;
        let same = self.got(
            "buyer repeats the request: the same answer",
            repeat,
            "201 auto",
        )?;
        if same != deal {
            return Err("the repeat was answered differently".into());
        }
        let says = "409 idempotency_conflict";
        self.refused("buyer changes the repeat", other, says)?;
        let says = "409 forbid;reason=offer_replayed";
        self.refused("buyer redeems the checkout again", second, says)?;

        let tampered = self.raw_tampered(&accepted.listing_id).await?;
        let says = "401 forbid;action=\"offer.create\";reason=signature_invalid";
        self.step("buyer sends an offer; it is tampered with", &tampered, says)?;
        Ok(deal)
    }

    /// The holder of funds pays out once the buyer has accepted, and everybody can verify who said what.
    async fn goods_and_money_change_hands(&mut self, deal_id: &str) -> Result<usize, Failure> {
        let [buyer, holder, carrier] = [&self.buyer, &self.holder, &self.carrier].map(Agent::clone);
        use EventName::{Accepted, Delivered, FundsHeld, Released, Shipped};
        for (by, event, what, says) in [
            (&holder, FundsHeld, "holder holds the money", "201 auto"),
            (&carrier, Shipped, "carrier takes the bicycle", "201 auto"),
            (&carrier, Delivered, "carrier delivers it", "201 auto"),
            (&holder, Released, "holder pays out too early", UNMET),
            (&buyer, Accepted, "buyer accepts it", "201 auto"),
            (&holder, Released, "holder pays the seller", "201 auto"),
        ] {
            let event = NewEvent::first_hand(event);
            let answer = by.post_deal_event(deal_id, event).await;
            self.step(what, &Answer::to(&answer)?, says)?;
        }
        let deal = buyer.get_deal(deal_id).await;
        self.got("buyer sees that it is done", deal, "200 released")?;
        let events = ["funds_held", "shipped", "delivered", "accepted", "released"];
        self.verifies(&buyer, deal_id, &events).await
    }

    /// The next call fails.
    async fn the_seller_takes_the_grant_back(&mut self, offer: &Offer) -> Result<(), Failure> {
        let grants = self.seller.grants().await?;
        self.step("seller looks at what was granted", &grants, "200")?;
        let grant_id = grants.text("/grants/0/grant_id")?;
        let revoked = self.seller.revoke(&grant_id).await?;
        self.step("seller takes the grant back", &revoked, "204")?;
        let refused = self.agent.decline_offer(&offer.offer_id).await;
        let says = "403 forbid;reason=grant_revoked";
        self.refused("agent may do nothing any more", refused, says)
    }

    /// Each chain verifies with the gateway's published keys, and tells what was decided; answers how many entries
    /// there are.
    async fn the_record_tells_it_all(
        &self,
        told: [(&str, &str, &str); 2],
    ) -> Result<usize, Failure> {
        let keys = self.buyer.profile().await?.keys;
        let mut entries = 0;
        for (kind, id, told) in told {
            let url = format!("{}/dev/record/{kind}/{id}", self.world.url);
            let answer = Answer::read(self.http.get(url).send().await?).await?;
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

    /// Reads a deal's record and verifies it: these events, each signed by its writer, and one refusal. Answers how
    /// many entries there are.
    pub async fn verifies(
        &mut self,
        buyer: &Agent,
        deal_id: &str,
        events: &[&str],
    ) -> Result<usize, Failure> {
        let agents = &self.world.agents;
        let writers = [
            &agents.funds_holder,
            &agents.carrier,
            &agents.buyer,
            &agents.seller,
        ];
        let writers = json!(writers.map(|agent| agent.key.public_jwk()));
        let writers = Keys::parse(&writers, default_provider())?;
        let told = buyer.verified_record(deal_id, &writers).await?;
        let signed = told.iter().filter_map(|entry| entry.event.as_ref());
        let signed = signed.filter(|(_, writer)| *writer == WriterSignature::Verified);
        let found: Vec<&str> = signed.map(|(event, _)| event.event.as_str()).collect();
        // Each deal has a step that came too early, and the record keeps that as well.
        let refused = told.iter().filter(|entry| entry.what.contains(": forbid"));
        if found != events || refused.count() != 1 {
            return Err(
                format!("{events:?} and a refusal should be told, and not {told:?}").into(),
            );
        }
        self.line("buyer reads the record, and verifies it", deal_id);
        Ok(told.len())
    }

    /// Redeems the accepted offer.
    pub async fn redeemed(&mut self, offer_id: &str) -> Result<Deal, Failure> {
        let mine = self.buyer.get_offer(offer_id).await;
        let mine = self.got("buyer finds the checkout", mine, "200 accepted")?;
        self.buyer.checkout(&mine).await?;
        let deal = self.buyer.create_deal(&mine.checkout.unwrap_or_default());
        self.got("buyer redeems the checkout: a deal", deal.await, "201 auto")
    }

    /// What the seller's agent proposes.
    pub fn listing(&self, title: &str) -> NewListing {
        let proposed = ProposedTerms::default().floor(euros(PROPOSED));
        NewListing::new(title, euros(LIST_PRICE), "goods-1").propose(proposed)
    }

    /// The seller's agent at the page that is for the seller's browser.
    async fn raw_page(&self, approval_id: &str) -> Result<Answer, Failure> {
        let url = format!("{}/approve/{approval_id}", self.world.url);
        let mut request = Request::get(url).body(Bytes::new())?;
        signer(&self.world.agents.seller)?.sign(&mut request)?;
        let answer = self.http.execute(request.try_into()?).await?;
        Answer::read(answer).await
    }

    /// An offer of the buyer's that is changed after it was signed.
    async fn raw_tampered(&self, listing_id: &str) -> Result<Answer, Failure> {
        let offer = |cents| serde_json::to_vec(&NewOffer::new(listing_id, deal_terms(cents)));
        let url = format!("{}/offers", self.world.url);
        let mut request = Request::post(url).body(Bytes::from(offer(50_000)?))?;
        signer(&self.world.agents.buyer)?.sign(&mut request)?;
        *request.body_mut() = offer(1)?.into();
        let answer = self.http.execute(request.try_into()?).await?;
        Answer::read(answer).await
    }

    /// The seller was asked; answers the approval's id.
    pub fn asked<T>(
        &mut self,
        what: &str,
        answer: Result<Answered<Acted<T>>, Error>,
    ) -> Result<String, Failure> {
        let told = Answer::to(&answer)?;
        let request = answer?.value.ask();
        let id = request.ok_or_else(|| format!("the seller should be asked, but got {told}"))?;
        let id = id.approval_id;
        let says = format!("202 ask;approval_id=\"{id}\";expires_in=900;on_timeout=deny");
        self.step(what, &told, &says)?;
        Ok(id)
    }

    /// An agent got what it asked for.
    pub fn got<T>(
        &mut self,
        what: &str,
        answer: Result<Answered<T>, Error>,
        says: &str,
    ) -> Result<T, Failure> {
        self.step(what, &Answer::to(&answer)?, says)?;
        Ok(answer?.value)
    }

    /// An agent was refused.
    pub fn refused<T>(
        &mut self,
        what: &str,
        answer: Result<Answered<T>, Error>,
        says: &str,
    ) -> Result<(), Failure> {
        self.step(what, &Answer::to(&answer)?, says)
    }

    /// Prints a step, which begins with who does it, and holds the answer against what the binding says.
    pub fn step(&mut self, what: &str, answer: &Answer, says: &str) -> Result<(), Failure> {
        let said = format!("{} {}", answer.status.as_u16(), answer.says());
        self.line(what, &said);
        // Not even the agent that proposed a floor may read it anywhere.
        if !what.starts_with("seller ") && (answer.tells(FLOOR) || answer.tells(PROPOSED)) {
            return Err(format!("somebody was told a floor: {what}").into());
        }
        match said.trim_end() == says {
            true => Ok(()),
            false => Err(format!("expected `{says}`, got {answer}").into()),
        }
    }

    fn line(&mut self, what: &str, said: &str) {
        self.steps += 1;
        let (who, what) = what.split_once(' ').unwrap_or((what, ""));
        let line = format!("{:>3}  {who:<7} {what:<41} {said}", self.steps);
        println!("{}", line.trim_end());
    }
}

fn signer(of: &DevAgent) -> Result<Signer, Failure> {
    Ok(Signer::new(&of.profile, of.key.clone())?)
}

pub fn euros(cents: u64) -> Money {
    Money::new(cents, CURRENCY)
}

pub fn deal_terms(cents: u64) -> DealTerms {
    DealTerms {
        price: euros(cents),
        fulfillment: Fulfillment {
            method_type: "shipping".into(),
            selected_option_id: "standard".into(),
        },
        payment: Payment {
            selected_term_id: "held_funds".into(),
        },
    }
}
