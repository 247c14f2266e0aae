//! The two ways to a refund (binding 8.1): the buyer rejects what came, and it goes back; or nothing came in time.

use serde_json::json;
use tower_rctp::{
    client::{
        Agent,
        agent::{Deal, NewEvent, NewOffer},
    },
    protocol::event::{EventName, Funds, RejectReason},
};

use super::{
    answer::Failure,
    gateway::Config,
    later::Later,
    play::{APPROVED, FLOOR, Sale, UNMET, deal_terms, euros},
};

impl Sale {
    /// The buyer rejects, the seller's agent has the bicycle back, and only then the money goes back. Answers how many
    /// entries of its record were verified.
    pub async fn it_is_not_as_described(&mut self) -> Result<usize, Failure> {
        let Deal { deal_id, .. } = self.sold("A racing bicycle").await?;
        let (buyer, agent) = (self.buyer.clone(), self.agent.clone());
        let (holder, carrier) = (self.holder.clone(), self.carrier.clone());
        let post = |by: &Agent, event| by.post_deal_event(&deal_id, event);
        let saw = NewEvent::first_hand;

        let held = post(&holder, saw(EventName::FundsHeld)).await;
        self.got("holder holds the money", held, "201 auto")?;
        let delivered = post(&carrier, saw(EventName::Delivered)).await;
        self.got("carrier delivers it", delivered, "201 auto")?;
        let rejected = post(&buyer, NewEvent::rejected(RejectReason::NotAsDescribed)).await;
        self.got("buyer rejects it: a tandem", rejected, "201 auto")?;
        let early = post(&holder, saw(EventName::Refund)).await;
        self.refused("holder pays back before it is returned", early, UNMET)?;
        let returned = post(&agent, saw(EventName::Return)).await;
        self.got("agent has it back", returned, "201 auto")?;
        let refund = post(&holder, saw(EventName::Refund)).await;
        self.got("holder pays the buyer back", refund, "201 auto")?;

        let deal = buyer.get_deal(&deal_id).await;
        let deal = self.got("buyer sees that it is done", deal, "200 refunded")?;
        if deal.status != Funds::Refunded
            || deal.rejected_reason != Some(RejectReason::NotAsDescribed)
        {
            return Err(format!("the deal should be refunded, and is {deal:?}").into());
        }
        let events = ["funds_held", "delivered", "rejected", "return", "refund"];
        self.verifies(&buyer, &deal_id, &events).await
    }

    /// The holder has the money, and the carrier has nothing. Answers the deal.
    pub async fn it_does_not_come(&mut self) -> Result<Deal, Failure> {
        let deal = self.sold("A folding bicycle").await?;
        let held = NewEvent::first_hand(EventName::FundsHeld);
        let held = self.holder.post_deal_event(&deal.deal_id, held).await;
        self.got("holder holds the money", held, "201 auto")?;
        let never = NewEvent::rejected(RejectReason::NotReceived);
        let early = self.buyer.post_deal_event(&deal.deal_id, never).await;
        self.refused("buyer complains before it is late", early, UNMET)?;
        Ok(deal)
    }

    /// The days to deliver are over, and the money goes back. Answers how many entries of its record were verified.
    pub async fn it_has_not_come(
        &mut self,
        deal: &Deal,
        config: &Config,
    ) -> Result<usize, Failure> {
        let listing = self.buyer.get_listing(&deal.listing_id).await;
        let listing = self.got("buyer looks at the time to deliver", listing, "200 sold")?;
        let terms = listing.public_terms.unwrap_or_default();
        let days = terms
            .deliver_within_days
            .ok_or("there is no time to deliver in")?;
        println!("     {days} days go by");
        let later = Later::open(config, &self.world, days.into()).await?;
        let buyer = later.agent(&self.world.agents.buyer)?;
        let holder = later.agent(&self.world.agents.funds_holder)?;

        let never = NewEvent::rejected(RejectReason::NotReceived);
        let rejected = buyer.post_deal_event(&deal.deal_id, never).await;
        self.got("buyer says that nothing came", rejected, "201 auto")?;
        let refund = NewEvent::first_hand(EventName::Refund);
        let refund = holder.post_deal_event(&deal.deal_id, refund).await;
        self.got("holder pays the buyer back", refund, "201 auto")?;
        let events = ["funds_held", "rejected", "refund"];
        self.verifies(&buyer, &deal.deal_id, &events).await
    }

    /// Another sale in short: listed, approved, offered on, accepted, redeemed.
    async fn sold(&mut self, title: &str) -> Result<Deal, Failure> {
        let asked = self.agent.create_listing(&self.listing(title)).await;
        let id = self.asked("agent proposes another listing", asked)?;
        let page = self.seller.open(&id).await?;
        let mut terms = page.body["prefill"].clone();
        terms["floor"] = json!(euros(FLOOR));
        let filled_in = self.seller.fill_in(&id, &terms).await?;
        let approval = self.seller.approval(&filled_in).await?;
        let approved = self.seller.respond(&id, &approval).await?;
        self.step("seller approves with the passkey", &approved, APPROVED)?;
        let outcome = self.agent.get_approval(&id).await;
        let outcome = self.got("agent reads that", outcome, APPROVED)?;
        let terms = outcome.result.and_then(|result| result.terms());
        let listing_id = terms.ok_or("the approval has no listing")?.listing_id;

        let offer = NewOffer::new(listing_id, deal_terms(50_000));
        let offer = self.buyer.create_offer(&offer).await;
        let offer = self.got("buyer makes a good offer", offer, "201 auto")?;
        let accepted = self.agent.accept_offer(&offer.offer_id).await;
        self.got("agent accepts", accepted, "200 auto")?;
        self.redeemed(&offer.offer_id).await
    }
}
