//! The Rust client of MCP, the crate `rmcp`, against the example gateway: see ./run.

#[allow(dead_code)]
#[path = "../../../examples/sale/answer.rs"]
mod answer;
#[path = "../../../examples/sale/browser.rs"]
mod browser;
mod gateway;
mod mcp;
mod oauth;
#[allow(dead_code)]
#[path = "../../../examples/sale/seller.rs"]
mod seller;
mod signed;

use answer::Failure;
use gateway::{FLOOR, Gateway, text};
use mcp::{Era, Mcp, connect, keyed};
use oauth::{Asks, an_hour_passes, as_buyer, as_seller};
use rmcp::{
    model::ProtocolVersion,
    transport::{AuthClient, AuthError, InMemoryCredentialStore},
};
use seller::Seller;
use serde_json::{Value, json};
use signed::Signed;
use tower_rctp::{
    client::{Agent, WriterSignature, agent::NewEvent, verify_record},
    protocol::event::EventName,
    wire::jwk::SigningKey,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let gateway = Gateway::start().await?;
    let challenge = the_first_request_is_challenged(&gateway).await?;
    the_address_is_not_the_name(&gateway).await?;
    let buyer = a_buyer_needs_the_url_and_its_credentials(&gateway).await?;
    let mut seller = gateway.seller().await?;
    let enrolled = seller.enrol().await?;
    assert_eq!(enrolled.status, 201, "{enrolled}");
    a_seller_grants_and_takes_back(&gateway, &challenge, &buyer, &mut seller).await?;
    signed_callers_sell_and_buy(&gateway, &challenge, &mut seller).await?;
    println!("peers/rmcp: all as MCP, OAuth and RCTP say");
    Ok(())
}

fn shown(what: impl std::fmt::Display) {
    println!("shown:    {what}");
}

/// What a client without credentials begins with; answers the challenge.
async fn the_first_request_is_challenged(gateway: &Gateway) -> Result<String, Failure> {
    let mut challenges = vec![];
    for era in [Era::auto(), Era::initialize(ProtocolVersion::V_2025_11_25)] {
        let refused = connect(gateway.http.clone(), &gateway.mcp, &era).await;
        let error = refused.err().ok_or("nobody is let in")?;
        assert!(error.is_authorization_required(), "{error}");
        challenges.push(error.auth_challenge().ok_or("no challenge")?.to_owned());
    }
    let metadata = format!(
        "{}/.well-known/oauth-protected-resource/mcp",
        gateway.origin()
    );
    let scopes = "dev.rctp.deal:deal_commit_to_ship dev.rctp.deal:offer_accept dev.rctp.deal:offer_counter \
                  dev.rctp.listing:listing_answer_buyer dev.rctp.listing:listing_create \
                  dev.rctp.listing:listing_reprice dev.rctp.listing:listing_set_terms";
    let challenge = format!("Bearer resource_metadata=\"{metadata}\", scope=\"{scopes}\"");
    assert_eq!(challenges, [challenge.clone(), challenge.clone()]);
    shown("without a token: authorization required, with the challenge");
    Ok(challenge)
}

/// A client that was given the address instead of the name finds metadata that is not of what it asked for.
async fn the_address_is_not_the_name(gateway: &Gateway) -> Result<(), Failure> {
    let address = format!("{}/mcp", gateway.world.url);
    let buyer = as_buyer(gateway, &gateway.world.agents.buyer, &address).await;
    let Err(AuthError::AuthorizationServerMismatch {
        expected_issuer,
        received_issuer,
    }) = buyer
    else {
        panic!("{:?}", buyer.err());
    };
    assert_eq!(expected_issuer, format!("{}/", gateway.world.url));
    assert_eq!(received_issuer, gateway.origin());
    shown("the endpoint by its address: no token, since the issuer is another name (RFC 8414)");
    Ok(())
}

/// Client credentials, and an offer in every revision.
async fn a_buyer_needs_the_url_and_its_credentials(gateway: &Gateway) -> Result<Mcp, Failure> {
    let manager = as_buyer(gateway, &gateway.world.agents.buyer, &gateway.mcp).await?;
    let buyer = AuthClient::new(gateway.http.clone(), manager);
    shown("a buyer with the URL and client credentials: discovery, and a token");

    let listing = gateway.listing().await?;
    for era in [
        Era::auto(),
        Era::initialize(ProtocolVersion::V_2025_11_25),
        Era::initialize(ProtocolVersion::V_2025_06_18),
        Era::initialize(ProtocolVersion::V_2025_03_26),
        Era::older(),
    ] {
        let mcp = connect(buyer.clone(), &gateway.mcp, &era).await?;
        makes_an_offer(&mcp, &listing).await?;
        shown(format!("a buyer, {}: MCP {}", era.begins, era.speaks));
    }

    let mcp = connect(buyer, &gateway.mcp, &Era::discover()).await?;
    let low = mcp
        .refused("create_offer", keyed(offer(&listing, FLOOR - 1)))
        .await?;
    let decision = json!({"decision": "forbid", "action": "offer.create", "reason": "below_floor"});
    assert_eq!(
        (&low["code"], &low["decision"]),
        (&json!("below_floor"), &decision)
    );
    assert_eq!(low["listing_id"], listing);
    shown("a price below the floor: -32000, forbid, below_floor");
    Ok(mcp)
}

/// Makes an offer, repeats it, reads it, and is refused what is to be refused.
async fn makes_an_offer(mcp: &Mcp, listing: &str) -> Result<(), Failure> {
    let tools = [
        "create_offer",
        "get_offer",
        "decline_offer",
        "get_deal_events",
    ];
    assert_eq!(mcp.tools().await?, tools);

    let mut offer = keyed(offer(listing, FLOOR + 1));
    let made = mcp.done("create_offer", offer.clone()).await?;
    for (member, value) in [
        ("listing_id", json!(listing)),
        ("by", json!("buyer")),
        ("state", json!("open")),
        ("deal_terms", offer["deal_terms"].clone()),
    ] {
        assert_eq!(made[member], value, "{member}");
    }
    assert_eq!(mcp.done("create_offer", offer.clone()).await?, made);
    let id = json!({"offer_id": made["offer_id"]});
    assert_eq!(mcp.done("get_offer", id).await?, made);

    offer["deal_terms"]["price"]["amount"] = json!(FLOOR + 2);
    let conflict = mcp.refused("create_offer", offer).await?;
    assert_eq!(conflict["code"], "idempotency_conflict");
    let unknown = json!({"offer_id": "off_none"});
    let unknown = mcp.refused("get_offer", unknown).await?;
    assert_eq!(unknown["code"], "not_found");
    Ok(())
}

/// A grant by the code flow of a public client: used, refreshed, and taken back.
async fn a_seller_grants_and_takes_back(
    gateway: &Gateway,
    challenge: &str,
    buyer: &Mcp,
    seller: &mut Seller,
) -> Result<(), Failure> {
    let store = InMemoryCredentialStore::new();
    let asks = Asks {
        client: "seller-plugin",
        secret: None,
        jkt: None,
        accepts: "ask",
    };
    let manager = as_seller(gateway, challenge, &asks, seller, &store).await?;
    let agent = AuthClient::new(gateway.http.clone(), manager);
    shown(
        "a seller's grant: the code flow with PKCE, of a public client, consented to with a passkey's session",
    );

    for era in [Era::auto(), Era::initialize(ProtocolVersion::V_2025_11_25)] {
        let mcp = connect(agent.clone(), &gateway.mcp, &era).await?;
        let listing = gateway.listing().await?;
        sells(&mcp, buyer, &listing, seller).await?;
        shown(format!(
            "a seller, {}: lists, declines, asks, and accepts what is approved",
            era.begins
        ));
    }

    let mcp = connect(agent.clone(), &gateway.mcp, &Era::auto()).await?;
    let before = agent.get_access_token().await?;
    an_hour_passes(&store).await?;
    mcp.tools().await?;
    let after = agent.get_access_token().await?;
    assert_ne!(after, before);
    shown("an access token that has run out: refreshed by the client on its own");

    let grants = seller.grants().await?;
    let grants = grants.body["grants"].as_array().ok_or("no grants")?;
    let ours = |grant: &&Value| grant["client"]["client_id"] == asks.client;
    let grant = grants.iter().find(ours).ok_or("not this grant")?;
    let revoked = seller.revoke(&text(grant, "/grant_id")).await?;
    assert_eq!(revoked.status, 204, "{revoked}");
    let call = json!({"offer_id": "off_none"});
    let refused = mcp.refused("get_offer", call.clone()).await?;
    assert_eq!(refused["code"], "grant_revoked");
    let decision = json!({"decision": "forbid", "reason": "grant_revoked"});
    assert_eq!(refused["decision"], decision);
    shown("a grant that is taken back: -32000, forbid, grant_revoked");

    an_hour_passes(&store).await?;
    let refused = mcp.call("get_offer", call).await.err();
    let error = refused.ok_or("there is nothing to refresh")?;
    assert!(error.is_authorization_required(), "{error}");
    assert_eq!(error.auth_challenge(), Some(challenge));
    shown("its refresh token: refused, and the client is to begin anew");
    Ok(())
}

/// Declines an offer, and accepts one by the seller's approval.
async fn sells(mcp: &Mcp, buyer: &Mcp, listing: &str, seller: &mut Seller) -> Result<(), Failure> {
    let tools = [
        "create_listing",
        "set_listing_terms",
        "reprice_listing",
        "answer_buyer",
        "get_offer",
        "counter_offer",
        "accept_offer",
        "decline_offer",
        "get_approval",
        "get_deal_events",
        "commit_to_ship",
    ];
    assert_eq!(mcp.tools().await?, tools);
    let offered = async || {
        buyer
            .done("create_offer", keyed(offer(listing, FLOOR + 1)))
            .await
    };
    let id = json!({"offer_id": offered().await?["offer_id"]});
    let declined = mcp.done("decline_offer", keyed(id.clone())).await?;
    assert_eq!(
        (&declined["offer_id"], &declined["state"]),
        (&id["offer_id"], &json!("declined"))
    );
    assert_eq!(buyer.done("get_offer", id).await?["state"], "declined");

    let id = json!({"offer_id": offered().await?["offer_id"]});
    let accept = keyed(id.clone());
    let asked = mcp.call("accept_offer", accept.clone()).await?;
    let approval = text(&asked, "/decision/approval_id");
    let ask = json!({"decision": "ask", "approval_id": approval, "expires_in": 900, "on_timeout": "deny"});
    assert_eq!(asked["decision"], ask);
    assert_eq!(mcp.call("accept_offer", accept).await?, asked);
    let approval_id = json!({"approval_id": approval});
    let pending = mcp.done("get_approval", approval_id.clone()).await?;
    assert_eq!(
        (&pending["approval_id"], &pending["status"]),
        (&json!(approval), &json!("pending"))
    );
    let waits = buyer.done("get_offer", id.clone()).await?;
    assert_eq!(waits["state"], "awaiting_approval");
    let approved = seller.approve(&approval).await?;
    assert_eq!(approved.status, 200, "{approved}");
    let approved = mcp.done("get_approval", approval_id).await?;
    assert_eq!(approved["status"], "approved");
    assert_eq!(approved["result"]["offer_id"], id["offer_id"]);
    assert_eq!(approved["result"]["state"], "accepted");
    assert_eq!(buyer.done("get_offer", id).await?["state"], "accepted");
    Ok(())
}

/// Both sides sign: the seller's agent under a grant that is bound to its key, the buyer's with nothing else.
async fn signed_callers_sell_and_buy(
    gateway: &Gateway,
    challenge: &str,
    seller: &mut Seller,
) -> Result<(), Failure> {
    let agents = &gateway.world.agents;
    let jkt = agents.seller.key()?.kid().to_string();
    let asks = Asks {
        client: &agents.seller.client_id,
        secret: Some(&agents.seller.client_secret),
        jkt: Some(&jkt),
        accepts: "auto",
    };
    let store = InMemoryCredentialStore::new();
    let manager = as_seller(gateway, challenge, &asks, seller, &store).await?;
    let signed = Signed::new(&gateway.http, agents.seller.signer()?);
    let agent = AuthClient::new(signed, manager);
    shown("a seller's grant that is bound to a key: the code flow of a confidential client");

    let token = agent.get_access_token().await?;
    assert_eq!(code_of_401(gateway, &token).await?, "grant_invalid");
    let stranger = agents.buyer.signer_with(SigningKey::generate()?)?;
    let stranger = Signed::new(&gateway.http, stranger);
    let refused = connect(stranger, &gateway.mcp, &Era::auto()).await.err();
    let error = refused.ok_or("anybody's key was taken")?;
    assert_eq!(error.auth_challenge(), Some(challenge));
    shown("the grant's token without a signature, and a signature of another key: refused");

    for era in [Era::auto(), Era::initialize(ProtocolVersion::V_2025_11_25)] {
        let seller = connect(agent.clone(), &gateway.mcp, &era).await?;
        let [buyer, holder] = [&agents.buyer, &agents.funds_holder].map(|agent| {
            let signed = Signed::new(&gateway.http, agent.signer().expect("its key"));
            connect(signed, &gateway.mcp, &era)
        });
        becomes_a_deal(gateway, &seller, &buyer.await?, &holder.await?).await?;
        shown(format!(
            "signed, {}: an offer, its acceptance, the deal, its funds, and the record",
            era.begins
        ));
    }
    Ok(())
}

/// By the tools that callers have who sign.
async fn becomes_a_deal(
    gateway: &Gateway,
    seller: &Mcp,
    buyer: &Mcp,
    holder: &Mcp,
) -> Result<(), Failure> {
    let tools = [
        "create_listing",
        "set_listing_terms",
        "reprice_listing",
        "answer_buyer",
        "get_offer",
        "counter_offer",
        "accept_offer",
        "decline_offer",
        "get_approval",
        "post_deal_event",
        "get_deal_events",
        "commit_to_ship",
    ];
    assert_eq!(seller.tools().await?, tools);
    let tools = [
        "create_offer",
        "get_offer",
        "decline_offer",
        "create_deal",
        "post_deal_event",
        "get_deal_events",
    ];
    assert_eq!(buyer.tools().await?, tools);

    let listing = gateway.listing().await?;
    let offer = keyed(offer(&listing, FLOOR + 1));
    let made = buyer.done("create_offer", offer.clone()).await?;
    let id = json!({"offer_id": made["offer_id"]});
    let accept = keyed(id.clone());
    let accepted = seller.done("accept_offer", accept.clone()).await?;
    assert_eq!(accepted["state"], "accepted");
    assert_eq!(seller.done("accept_offer", accept).await?, accepted);

    let checkout = text(&buyer.done("get_offer", id).await?, "/checkout");
    let redeem = keyed(json!({"checkout": checkout}));
    let deal = buyer.done("create_deal", redeem.clone()).await?;
    assert_eq!(buyer.done("create_deal", redeem).await?, deal);
    for (member, value) in [
        ("offer_id", &made["offer_id"]),
        ("deal_terms", &offer["deal_terms"]),
        ("status", &json!("open")),
    ] {
        assert_eq!(deal[member], *value, "{member}");
    }

    let deal_id = text(&deal, "/deal_id");
    let funds = &gateway.world.agents.funds_holder;
    let event = Agent::signing(funds.signer()?)
        .at(gateway.origin())?
        .sign_event(&deal_id, NewEvent::first_hand(EventName::FundsHeld))?;
    let event = keyed(json!({"deal_id": deal_id, "event": event}));
    let held = holder.done("post_deal_event", event).await?;
    assert_eq!(
        (&held["event"], &held["counts"]),
        (&json!("funds_held"), &json!(true))
    );

    let record = json!({"deal_id": deal_id, "from": 0, "limit": 10});
    let record = buyer.done("get_deal_events", record).await?;
    let entries = record["entries"].as_array().ok_or("no entries")?;
    let heads = [record["head"].clone()];
    let (keys, writers) = (&gateway.keys, funds.keys()?);
    let verified = verify_record(entries, &heads, keys, &writers)?;
    assert!(verified.is_covered());
    assert_eq!(verified.subject.id, deal_id);
    let told: Vec<_> = verified.told.iter().map(|entry| &*entry.what).collect();
    assert_eq!(told, ["create_deal: auto", "post_deal_event: auto"]);
    let event = verified.told[1].event.as_ref().ok_or("no event")?;
    assert_eq!(
        (event.0.event.as_str(), event.1),
        ("funds_held", WriterSignature::Verified)
    );
    Ok(())
}

/// Why this token is refused, which rmcp does not read where there is a challenge.
async fn code_of_401(gateway: &Gateway, token: &str) -> Result<String, Failure> {
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "get_offer", "arguments": {"offer_id": "off_none"}},
    });
    let request = gateway.http.post(&gateway.mcp).bearer_auth(token);
    let answer = request.json(&call).send().await?;
    assert_eq!(answer.status(), 401);
    Ok(text(&answer.json().await?, "/error/data/code"))
}

fn offer(listing: &str, amount: u64) -> Value {
    json!({
        "listing_id": listing,
        "deal_terms": {
            "price": {"amount": amount, "currency": "EUR"},
            "fulfillment": {"method_type": "shipping", "selected_option_id": "standard"},
            "payment": {"selected_term_id": "prepaid"},
        },
    })
}
