//! Binding 8.2: the record. Every decision has its entry, in its chain, and no change to a chain goes unseen (R30, R31).
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/market.rs"]
mod market;

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use common::{
    Agent, Answer, BUYER_TOKEN, FLOOR, LISTING, NOW, SELLER, SELLER_TOKEN, SELLER_UNBOUND,
    deal_terms, get, grant, offer_body, post, public_terms, with_key, with_token,
};
use http::Request;
use market::{Backing, Market, around, fits, fresh_key, on_every_store, send_to, signed};
use proptest::prelude::*;
use serde_json::{Value, json};
use tower_rctp::{
    protocol::{
        caller::{Caller, Mechanism},
        decision::{Decision, OnTimeout},
        grant::GrantStatus,
        operation::{Op, Verb},
        policy::Tier,
        record::{
            Broken, ENTRY_TYP, Entry, FIRST_PREV_HASH, Seal, Subject, SubjectKind, verify_chain,
        },
        refusal::Reason,
        time::Timestamp,
    },
    store::Kind,
    wire::{
        base64url,
        crypto::default_provider,
        digest::sha256,
        from_base64url, jcs,
        jwk::{Keys, SigningKey},
        jws,
    },
};

on_every_store!(
    a_sale_is_written_down_from_the_first_refusal_to_the_deal,
    each_decision_enters_the_chain_of_its_subject,
    an_entry_that_cannot_be_signed_leaves_nothing_done,
    chains_that_many_write_at_once_stay_whole,
);

// ---- Helpers --------------------------------------------------------------------------------------------------------

fn keys(keys: &[&SigningKey]) -> Keys {
    let jwks: Vec<Value> = keys.iter().map(|key| key.public_jwk()).collect();
    Keys::parse(&json!(jwks), default_provider()).unwrap()
}

/// Operation, and the decision as the header states it.
fn short(entry: &Value) -> (String, String) {
    let decision: Decision = serde_json::from_value(entry["decision"].clone()).unwrap();
    let operation = entry["operation"].as_str().unwrap().to_owned();
    (operation, decision.to_string())
}

fn shorts(entries: &[Value]) -> Vec<(String, String)> {
    entries.iter().map(short).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
    expected.iter().map(owned).collect()
}

async fn counter(market: &Market, offer: &str, amount: u64) -> Answer {
    let body = json!({"deal_terms": deal_terms(amount)});
    market
        .seller_post(&format!("/offers/{offer}/counter"), &body)
        .await
}

// ---- What is written down -------------------------------------------------------------------------------------------

async fn a_sale_is_written_down_from_the_first_refusal_to_the_deal(backing: Backing) {
    let market = Market::on(backing).await;
    let low = market.offer(FLOOR - 1).await;
    assert_eq!(low.status, 422);
    market.clock.advance(1);
    let offer = market.offer(FLOOR + 1).await;
    let id = offer.get("offer_id");
    let negotiation = offer.get("negotiation_id");
    let countered = counter(&market, &id, 55_000).await.get("offer_id");
    let mut answer = offer_body(50_000);
    answer["supersedes"] = json!(countered);
    let second = market.buyer_post("/offers", &answer).await.get("offer_id");
    let buyers_try = format!("/offers/{second}/accept");
    assert_eq!(market.buyer_post(&buyers_try, &json!({})).await.status, 403);
    let accepted = market.accept(&second).await;
    let left = market.open_offer(FLOOR + 2).await;
    let decline = format!("/offers/{left}/decline");
    let unbound = market
        .oauth_post(SELLER_UNBOUND, &decline, &json!({}))
        .await;
    assert_eq!(unbound.status, 200);
    let checkout = json!({"checkout": accepted.get("checkout")});
    let deal = market.buyer_post("/deals", &checkout).await;
    let again = market.buyer_post("/deals", &checkout).await;
    assert_eq!((deal.status, again.status), (201, 409));

    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    let expected = pairs(&[
        (
            "create_offer",
            "forbid;action=\"offer.create\";reason=below_floor",
        ),
        ("create_offer", "auto"),
        ("counter_offer", "auto"),
        ("create_offer", "auto"),
        (
            "accept_offer",
            "forbid;action=\"offer.accept\";reason=action_forbidden",
        ),
        ("accept_offer", "auto"),
        ("create_offer", "auto"),
        ("decline_offer", "auto"),
        ("create_deal", "forbid;reason=offer_replayed"),
    ]);
    assert_eq!(shorts(&chain), expected);
    let offers: Vec<&Value> = chain.iter().map(|entry| &entry["offer_id"]).collect();
    let (id, countered, second, left) = (json!(id), json!(countered), json!(second), json!(left));
    let expected = [
        &Value::Null,
        &id,
        &countered,
        &second,
        &second,
        &second,
        &left,
        &left,
        &second,
    ];
    assert_eq!(offers, expected);

    // Entry by entry: who, by what proof, on what.
    let listing = market.buyer_get("/listings/lst_bicycle").await;
    let commitment = &listing.body["terms_commitment"];
    for (n, entry) in chain.iter().enumerate() {
        fits("attestation-entry", entry);
        assert_eq!(entry["seq"], n);
        assert_eq!(
            entry["subject"],
            json!({"type": "negotiation", "id": negotiation})
        );
        assert_eq!(entry["listing_id"], LISTING);
        assert_eq!(&entry["terms_commitment"], commitment);
        let at = NOW + i64::from(n > 0);
        assert_eq!(entry["recorded_at"], json!(Timestamp::from_secs(at)));
    }
    let by = |entry: &Value, agent: &Agent| {
        assert_eq!(entry["authenticated_by"], "http_signature");
        assert_eq!(entry["agent_profile"], json!(agent.profile));
        assert_eq!(entry["keyid"], agent.kid());
        assert_eq!(entry.get("client_id"), None);
    };
    for n in [0, 1, 3, 4, 6, 8] {
        by(&chain[n], &market.buyer);
    }
    for n in [2, 5] {
        by(&chain[n], &market.seller);
    }
    assert_eq!(chain[7]["authenticated_by"], "oauth");
    assert_eq!(chain[7]["agent_profile"], json!(market.seller.profile));
    assert_eq!(chain[7]["client_id"], "client-seller");
    assert_eq!(chain[7].get("keyid"), None);
    assert_eq!(chain[2]["action"], "offer.counter");
    assert_eq!(chain[7].get("action"), None, "decline has no verb");

    // The deal begins a chain of its own; the rest of the market has none.
    let deals = market.chain(SubjectKind::Deal, &deal.get("deal_id")).await;
    assert_eq!(shorts(&deals), pairs(&[("create_deal", "auto")]));
    assert_eq!(deals[0]["offer_id"], second);
    assert_eq!(&deals[0]["terms_commitment"], commitment);
    assert_eq!(market.chain(SubjectKind::Listing, LISTING).await.len(), 0);
    assert_eq!(market.gateway_chain().await.len(), 0);
}

#[tokio::test]
async fn what_decides_nothing_is_not_written_down() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let read = market.buyer_get(&format!("/offers/{offer}")).await;
    let negotiation = read.get("negotiation_id");
    market.store.remember();
    // Reads, protocol errors, and whoever is not known.
    market.buyer_get("/listings/lst_bicycle").await;
    market.seller_get("/offers?listing_id=lst_bicycle").await;
    market.buyer_get("/offers/off_unknown").await;
    market
        .buyer_post("/offers/off_unknown/decline", &json!({}))
        .await;
    market.buyer_post("/offers", &json!({"floor": 1})).await;
    market.buyer_post("/nothing", &json!({})).await;
    let path = format!("/offers/{offer}/counter");
    market
        .buyer_post(&path, &json!({"deal_terms": deal_terms(1)}))
        .await;
    market.send(post("/offers", &offer_body(FLOOR))).await;
    market
        .send(with_key(with_token(
            post("/offers", &offer_body(FLOOR)),
            "token-unknown",
        )))
        .await;
    let mut forged = signed(
        &market.buyer,
        None,
        "/offers",
        &offer_body(FLOOR),
        &fresh_key(),
    );
    forged
        .headers_mut()
        .insert("idempotency-key", fresh_key().parse().unwrap());
    assert_eq!(market.send(forged).await.status, 401);
    // A repeat, and a conflict.
    let key = fresh_key();
    for n in [1, 1, 2] {
        let body = offer_body(FLOOR + n);
        market
            .post(&market.second, None, "/offers", &body, &key)
            .await;
    }
    let entries: usize = market
        .store
        .units()
        .iter()
        .map(|unit| unit.entries.len())
        .sum();
    assert_eq!(entries, 1, "the second agent's offer");
    assert_eq!(market.gateway_chain().await.len(), 0);
    assert_eq!(
        market
            .chain(SubjectKind::Negotiation, &negotiation)
            .await
            .len(),
        1
    );
}

async fn each_decision_enters_the_chain_of_its_subject(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.offer(FLOOR + 1).await;
    let negotiation = offer.get("negotiation_id");
    let offer = offer.get("offer_id");
    let won = market.open_offer(FLOOR + 2).await;
    let checkout = market.accept(&won).await.get("checkout");
    let deal = market
        .buyer_post("/deals", &json!({"checkout": checkout}))
        .await
        .get("deal_id");
    market.publish("lst_tandem", SELLER, public_terms()).await;
    let bound = |sub: &str, tier| {
        grant(
            sub,
            "client-seller",
            Some(market.seller.kid()),
            tier,
            NOW + 900,
        )
    };
    market
        .grants
        .set("token-stranger", bound("sub_stranger", Tier::Auto));
    market.grants.set("token-asking", bound(SELLER, Tier::Ask));
    let mut revoked = bound(SELLER, Tier::Auto);
    revoked.grant_status = Some(GrantStatus::Revoked);
    market.grants.set("token-revoked", revoked);
    let mut fewer = bound(SELLER, Tier::Auto);
    fewer.scope = Verb::OfferCounter.scope().map(str::to_owned);
    market.grants.set("token-fewer", fewer);

    let (buyer, seller, other) = (&market.buyer, &market.seller, &market.other);
    let own = Some(SELLER_TOKEN);
    let (stranger, asking) = (Some("token-stranger"), Some("token-asking"));
    let (gone, fewer) = (Some("token-revoked"), Some("token-fewer"));
    let gateway = market.rctp.gateway_subject();
    let of_negotiation = Subject::new(SubjectKind::Negotiation, &*negotiation);
    let of_listing = Subject::new(SubjectKind::Listing, LISTING);
    let of_tandem = Subject::new(SubjectKind::Listing, "lst_tandem");
    let of_deal = Subject::new(SubjectKind::Deal, &*deal);
    let accept = format!("/offers/{offer}/accept");
    let contract = format!("/deals/{deal}/contract");
    let ship = format!("/deals/{deal}/commit-to-ship");
    let tandem = json!({"listing_id": "lst_tandem", "deal_terms": deal_terms(FLOOR)});
    let low = json!({"price": {"amount": 1, "currency": "EUR"}});
    let new = json!({
        "title": "A tandem", "term_set": "goods-9",
        "list_price": {"amount": 90_000, "currency": "EUR"},
    });
    let forged = json!({"checkout": "e30.e30.AA"});
    let genuine = json!({"checkout": checkout});
    type Row<'a> = (
        &'a Agent,
        Option<&'a str>,
        &'a str,
        &'a Value,
        u16,
        &'a Subject,
    );
    let none = json!({});
    let rows: Vec<Row<'_>> = vec![
        // Offer operations: the negotiation's, for the parties.
        (buyer, None, &accept, &none, 403, &of_negotiation),
        (seller, gone, &accept, &none, 403, &of_negotiation),
        (seller, fewer, &accept, &none, 403, &of_negotiation),
        (buyer, None, "/deals", &genuine, 409, &of_negotiation),
        // A grant of another seller knows no offer of this one: 404, but its missing scope is the gateway's.
        (seller, None, &accept, &none, 401, &gateway),
        (other, None, &accept, &none, 401, &gateway),
        (other, None, "/deals", &genuine, 401, &gateway),
        (buyer, None, "/deals", &forged, 401, &gateway),
        // Listing operations: the listing's, for its seller.
        (
            seller,
            own,
            "/listings/lst_tandem/price",
            &low,
            422,
            &of_tandem,
        ),
        (
            seller,
            asking,
            "/listings/lst_tandem/terms",
            &none,
            202,
            &of_tandem,
        ),
        (
            seller,
            gone,
            "/listings/lst_bicycle/price",
            &low,
            403,
            &of_listing,
        ),
        (
            seller,
            fewer,
            "/listings/lst_bicycle/price",
            &low,
            403,
            &of_listing,
        ),
        (
            seller,
            stranger,
            "/listings/lst_tandem/price",
            &low,
            403,
            &gateway,
        ),
        (
            seller,
            stranger,
            "/listings/lst_tandem/terms",
            &none,
            403,
            &gateway,
        ),
        (
            seller,
            None,
            "/listings/lst_tandem/price",
            &low,
            401,
            &gateway,
        ),
        // A grant never offers, on whatever listing.
        (seller, own, "/offers", &tandem, 403, &gateway),
        // Deal operations: the deal's, for its seller.
        (seller, own, &contract, &none, 403, &of_deal),
        (seller, gone, &contract, &none, 403, &of_deal),
        (seller, asking, &ship, &none, 202, &of_deal),
        (seller, stranger, &contract, &none, 403, &gateway),
        (seller, None, &ship, &none, 401, &gateway),
        // What has no subject.
        (seller, own, "/account", &Value::Null, 403, &gateway),
        (seller, own, "/listings", &new, 422, &gateway),
        (seller, gone, "/listings", &new, 403, &gateway),
    ];
    let length = async |subject: &Subject| market.rctp.record(subject).await.unwrap().len();
    let all = [&gateway, &of_negotiation, &of_listing, &of_tandem, &of_deal];
    for (n, (agent, token, path, body, status, subject)) in rows.into_iter().enumerate() {
        let mut before = Vec::new();
        for subject in all {
            before.push(length(subject).await);
        }
        let answer = market.post(agent, token, path, body, &fresh_key()).await;
        assert_eq!(answer.status, status, "row {n}, {path}: {:?}", answer.body);
        for (before, candidate) in before.into_iter().zip(all) {
            let grown = usize::from(candidate == subject);
            assert_eq!(
                length(candidate).await,
                before + grown,
                "row {n}, {path}: {candidate}"
            );
        }
        let entry = market.rctp.record(subject).await.unwrap().pop().unwrap();
        assert_eq!(short(&entry).1, answer.decision(), "row {n}");
        fits("attestation-entry", &entry);
    }
    // A read that is refused is written down as well.
    let before = length(&gateway).await;
    let mut request = with_token(get("/offers?listing_id=lst_tandem"), "token-stranger");
    seller.signer.sign(&mut request).unwrap();
    assert_eq!(market.send(request).await.refusal(), (403, "not_in_scope"));
    assert_eq!(length(&gateway).await, before + 1);
    // A client whose claim fails is proven itself (V35).
    let mut request = with_key(with_token(post("/offers", &offer_body(FLOOR)), BUYER_TOKEN));
    let named = format!("profile=\"{}\"", other.profile);
    request
        .headers_mut()
        .insert("ucp-agent", named.parse().unwrap());
    assert_eq!(
        market.send(request).await.refusal(),
        (401, "operator_unknown")
    );
    let claimed = market.gateway_chain().await.pop().unwrap();
    assert_eq!(claimed["client_id"], "client-buyer");
    assert_eq!(claimed["agent_profile"], json!(buyer.profile));

    // A listing's chain begins when it is asked for, or made.
    let mut known = new.clone();
    known["term_set"] = json!("goods-1");
    let asked = market
        .post(seller, asking, "/listings", &known, &fresh_key())
        .await;
    let details = &asked.body["approval_request"]["authorization_details"][0];
    let made = market
        .post(seller, own, "/listings", &known, &fresh_key())
        .await;
    for (id, answer) in [
        (details["subject"]["id"].as_str().unwrap(), &asked),
        (&*made.get("listing_id"), &made),
    ] {
        let chain = market.chain(SubjectKind::Listing, id).await;
        assert_eq!(
            shorts(&chain),
            pairs(&[("create_listing", answer.decision())])
        );
        assert_eq!(chain[0]["listing_id"], json!(id));
    }
    for subject in all {
        let entries = market.rctp.record(subject).await.unwrap();
        verify_chain(&entries, &keys(&[&market.gateway_key])).unwrap();
    }
}

#[tokio::test]
async fn an_entry_has_no_place_for_a_person_or_a_floor() {
    let market = Market::on(Backing::memory().await).await;
    market.store.remember();
    let text = "Ada Lovelace, 12 St James's Square, +44 20 7946 0958";
    let listing = json!({
        "title": text, "description": text, "category": text, "term_set": "goods-1",
        "list_price": {"amount": 90_000, "currency": "EUR"},
        "proposed_terms": {"floor": {"amount": 31_337, "currency": "EUR"}},
    });
    let made = market.seller_post("/listings", &listing).await;
    assert_eq!(made.status, 201, "{:?}", made.body);
    let low = market.offer(1).await;
    assert_eq!(low.status, 422);
    let offer = market.open_offer(FLOOR + 1).await;
    let accepted = market.accept(&offer).await;
    market
        .buyer_post("/deals", &json!({"checkout": accepted.get("checkout")}))
        .await;
    let mut members = BTreeSet::new();
    for unit in market.store.units() {
        for entry in &unit.entries {
            let entry = serde_json::to_value(entry).unwrap();
            let told = entry.to_string();
            for private in [text, "31337", &FLOOR.to_string(), "price", SELLER] {
                assert!(!told.contains(private), "{told}");
            }
            members.extend(entry.as_object().unwrap().keys().cloned());
        }
    }
    let allowed = [
        "action",
        "agent_profile",
        "authenticated_by",
        "decision",
        "keyid",
        "listing_id",
        "offer_id",
        "operation",
        "recorded_at",
        "subject",
        "terms_commitment",
    ];
    assert_eq!(
        members.iter().map(String::as_str).collect::<Vec<_>>(),
        allowed
    );
}

// ---- How it hangs together ------------------------------------------------------------------------------------------

#[tokio::test]
async fn each_entry_is_signed_and_hangs_on_the_whole_of_the_one_before() {
    let market = Market::on(Backing::memory().await).await;
    for n in 0..4 {
        market.offer(FLOOR - 1 + n).await;
    }
    let offer = market.open_offer(FLOOR + 1).await;
    let negotiation = market
        .buyer_get(&format!("/offers/{offer}"))
        .await
        .get("negotiation_id");
    let subject = Subject::new(SubjectKind::Negotiation, negotiation);
    let entries = market.rctp.record(&subject).await.unwrap();
    let sealed = market.backing.store.chain(subject, 0, 100).await.unwrap();
    let mut prev = FIRST_PREV_HASH.to_owned();
    assert_eq!(prev, format!("sha-256:{}", "0".repeat(64)));
    for (n, (entry, sealed)) in entries.iter().zip(&sealed).enumerate() {
        assert_eq!(entry["seq"], n);
        assert_eq!(entry["prev_hash"], json!(prev));
        // What is published is the canonical form, its JWS included, and that is what is hashed.
        let canonical = jcs::canonical(entry).unwrap();
        assert_eq!(sealed.published, canonical);
        prev = named_hash(&canonical);
        assert_eq!(sealed.hash, prev);
        // The JWS is detached, over everything else.
        let mut body = entry.as_object().unwrap().clone();
        let jws = body.remove("jws").unwrap();
        let jws = jws.as_str().unwrap();
        assert!(jws.contains(".."), "{jws}");
        let parsed = jws::Compact::parse(jws).unwrap();
        assert_eq!(parsed.typ(), Some("rctp-entry+jwt"));
        assert_eq!(parsed.kid(), Some(market.gateway_key.kid().as_str()));
        let payload = jcs::canonical(&body).unwrap();
        let key = market.gateway_key.public_key();
        parsed.verify_detached(ENTRY_TYP, &payload, key).unwrap();
    }
    let head = verify_chain(&entries, &keys(&[&market.gateway_key])).unwrap();
    assert_eq!(head, prev);
    let empty = verify_chain(&[], &keys(&[&market.gateway_key])).unwrap();
    assert_eq!(empty, FIRST_PREV_HASH);
}

fn named_hash(bytes: &[u8]) -> String {
    let hex = sha256(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    format!("sha-256:{hex}")
}

#[tokio::test]
async fn a_long_chain_is_read_whole() {
    let market = Market::on(Backing::memory().await).await;
    for _ in 0..1001 {
        let mut request = with_token(post("/account", &Value::Null), SELLER_UNBOUND);
        request.headers_mut().remove("content-type");
        assert_eq!(market.send(request).await.status, 403);
    }
    assert_eq!(market.gateway_chain().await.len(), 1001);
}

#[tokio::test]
async fn a_chain_goes_on_under_the_gateways_next_key() {
    let market = Market::on(Backing::memory().await).await;
    let offer = market.offer(FLOOR + 1).await;
    let next = SigningKey::generate().unwrap();
    let store = Arc::new(market.store.clone());
    let former = market.gateway_key.public_jwk();
    let rctp = market.beside(store, |b| b.signing_key(next.clone()).former_key(former));
    let service = around(&rctp, rctp.market());
    let path = format!("/offers/{}/decline", offer.get("offer_id"));
    let request = signed(&market.buyer, None, &path, &json!({}), &fresh_key());
    assert_eq!(send_to(&service, request).await.status, 200);
    let subject = Subject::new(SubjectKind::Negotiation, offer.get("negotiation_id"));
    let entries = rctp.record(&subject).await.unwrap();
    assert_eq!(entries.len(), 2);
    let published = Keys::parse(&rctp.profile()["keys"], default_provider()).unwrap();
    verify_chain(&entries, &published).unwrap();
    let broken = |key| verify_chain(&entries, &keys(&[key])).unwrap_err().index;
    assert_eq!(broken(&next), 0);
    assert_eq!(broken(&market.gateway_key), 1);
}

// ---- Tampering ------------------------------------------------------------------------------------------------------

/// A chain of six entries of every sort, the key that signed it, and another chain of the same gateway.
struct Chains {
    key: SigningKey,
    chain: Vec<Value>,
    other: Vec<Value>,
}

impl Chains {
    fn new() -> Self {
        let key = SigningKey::generate().unwrap();
        let agent = SigningKey::generate().unwrap();
        let signed = Caller::signed("https://agent.example/ucp", agent.kid().clone());
        let client = Caller::client(Mechanism::Oauth, "https://agent.example/ucp", "client-1");
        let decisions = [
            Decision::Auto,
            Decision::Forbid {
                action: Some(Verb::OfferCreate),
                reason: Reason::OfferBudgetExhausted,
                retry_after: Some(60),
            },
            Decision::Ask {
                approval_id: "apr_1".into(),
                expires_in: 900,
                on_timeout: OnTimeout::Deny,
            },
            Decision::Forbid {
                action: None,
                reason: Reason::OfferReplayed,
                retry_after: None,
            },
            Decision::Auto,
            Decision::Auto,
        ];
        let chain = |subject: Subject| {
            let mut prev = FIRST_PREV_HASH.to_owned();
            let mut chain = Vec::new();
            for (n, decision) in decisions.iter().enumerate() {
                let caller = if n % 2 == 0 { &signed } else { &client };
                let at = Timestamp::from_secs(NOW + n as i64);
                let mut entry = Entry::new(
                    subject.clone(),
                    at,
                    Op::AcceptOffer,
                    decision.clone(),
                    caller,
                );
                entry.listing_id = Some("lst_1".into());
                entry.offer_id = Some(format!("off_{n}"));
                entry.terms_commitment = Some(format!("sha-256:{}", "a".repeat(64)));
                let sealed = key.seal(&entry, n as u64, &prev).unwrap();
                prev = sealed.hash;
                chain.push(serde_json::from_slice(&sealed.published).unwrap());
            }
            chain
        };
        Self {
            chain: chain(Subject::new(SubjectKind::Negotiation, "neg_1")),
            other: chain(Subject::new(SubjectKind::Negotiation, "neg_2")),
            key,
        }
    }

    fn verify(&self, entries: &[Value]) -> Result<String, Broken> {
        verify_chain(entries, &keys(&[&self.key]))
    }

    /// The index of the first entry that does not fit.
    fn broken(&self, entries: &[Value]) -> usize {
        let broken = self.verify(entries).unwrap_err();
        assert!(
            broken.to_string().contains(&broken.index.to_string()),
            "{broken}"
        );
        broken.index
    }

    fn with(&self, index: usize, change: impl FnOnce(&mut Value)) -> Vec<Value> {
        let mut changed = self.chain.clone();
        change(&mut changed[index]);
        changed
    }
}

/// Every place in a value, as a pointer.
fn places(value: &Value, at: String, all: &mut Vec<String>) {
    if let Value::Object(members) = value {
        for (name, value) in members {
            let at = format!("{at}/{name}");
            all.push(at.clone());
            places(value, at, all);
        }
    }
}

#[test]
fn a_change_to_any_member_of_any_entry_is_found_at_that_entry() {
    let chains = Chains::new();
    chains.verify(&chains.chain).unwrap();
    for (index, entry) in chains.chain.iter().enumerate() {
        let mut pointers = Vec::new();
        places(entry, String::new(), &mut pointers);
        assert!(pointers.len() > 12, "{pointers:?}");
        for pointer in &pointers {
            let what = format!("entry {index}, {pointer}");
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let changes: [fn(&mut Value); 6] = [
                |value| *value = Value::Null,
                |value| *value = json!("another"),
                |value| *value = json!(7),
                |value| *value = json!(true),
                |value| *value = json!([]),
                |value| *value = json!({}),
            ];
            for change in changes {
                let changed = chains.with(index, |e| change(e.pointer_mut(pointer).unwrap()));
                assert_eq!(chains.broken(&changed), index, "{what}");
            }
            let removed = chains.with(index, |entry| {
                let parent = entry.pointer_mut(parent).unwrap();
                parent.as_object_mut().unwrap().remove(name);
            });
            assert_eq!(chains.broken(&removed), index, "{what} removed");
        }
        for (member, value) in [("floor", json!(1)), ("Seq", json!(index)), ("", json!(""))] {
            let added = chains.with(index, |entry| entry[member] = value);
            assert_eq!(
                chains.broken(&added),
                index,
                "entry {index}, {member} added"
            );
        }
        for nothing in [Value::Null, json!([]), json!({}), json!("entry")] {
            let replaced = chains.with(index, |entry| *entry = nothing.clone());
            assert_eq!(chains.broken(&replaced), index, "entry {index}: {nothing}");
        }
    }
}

#[test]
fn entries_that_are_removed_swapped_repeated_or_brought_in_are_found() {
    let chains = Chains::new();
    let chain = &chains.chain;
    let last = chain.len() - 1;
    for index in 0..chain.len() {
        let mut removed = chain.clone();
        removed.remove(index);
        if index < last {
            assert_eq!(chains.broken(&removed), index, "{index} removed");
        }
        let mut repeated = chain.clone();
        repeated.insert(index, chain[index].clone());
        assert_eq!(chains.broken(&repeated), index + 1, "{index} twice");
        for other in index + 1..chain.len() {
            let mut swapped = chain.clone();
            swapped.swap(index, other);
            assert_eq!(
                chains.broken(&swapped),
                index,
                "{index} and {other} swapped"
            );
            let mut moved = chain.clone();
            let entry = moved.remove(other);
            moved.insert(index, entry);
            assert_eq!(chains.broken(&moved), index, "{other} moved to {index}");
            // A signature that belongs to another entry.
            let jws = chain[other]["jws"].clone();
            let borrowed = chains.with(index, |entry| entry["jws"] = jws);
            assert_eq!(
                chains.broken(&borrowed),
                index,
                "the JWS of {other} at {index}"
            );
        }
        let mut foreign = chain.clone();
        foreign[index] = chains.other[index].clone();
        let found = chains.broken(&foreign);
        // Where the first is foreign, the second is the first that does not fit to it.
        assert_eq!(found, index.max(1), "{index} of another chain");
    }
    // A tail that was cut off shows in the head alone (R31).
    let whole = chains.verify(chain).unwrap();
    for length in 0..chain.len() {
        assert_ne!(chains.verify(&chain[..length]).unwrap(), whole, "{length}");
    }
    // Another chain under this one's name.
    let renamed: Vec<Value> = chains
        .other
        .iter()
        .map(|entry| {
            let mut entry = entry.clone();
            entry["subject"] = chain[0]["subject"].clone();
            entry
        })
        .collect();
    assert_eq!(chains.broken(&renamed), 0);
}

#[test]
fn an_entry_signed_by_anybody_else_is_found() {
    let chains = Chains::new();
    let forger = SigningKey::generate().unwrap();
    for index in 0..chains.chain.len() {
        let payload = |entry: &Value| {
            let mut body = entry.as_object().unwrap().clone();
            body.remove("jws");
            jcs::canonical(&body).unwrap()
        };
        let entry = &chains.chain[index];
        let forged = jws::sign_detached(ENTRY_TYP, &payload(entry), &forger).unwrap();
        let found = chains.with(index, |entry| entry["jws"] = json!(forged));
        assert_eq!(chains.broken(&found), index, "another key");
        // The same, under the gateway's name.
        let genuine = entry["jws"].as_str().unwrap().split('.').next().unwrap();
        let signature = forged.rsplit('.').next().unwrap();
        let named = format!("{genuine}..{signature}");
        let found = chains.with(index, |entry| entry["jws"] = json!(named));
        assert_eq!(
            chains.broken(&found),
            index,
            "another key under the gateway's name"
        );
        // A changed entry, signed anew: even with the gateway's own key under another type.
        let mut lenient = entry.clone();
        lenient["decision"] = json!({"decision": "auto", "note": "really"});
        let typed =
            jws::sign_detached("rctp-checkout+jwt", &payload(&lenient), &chains.key).unwrap();
        lenient["jws"] = json!(typed);
        let found = chains.with(index, |entry| *entry = lenient);
        assert_eq!(chains.broken(&found), index, "another type");
        // Signed over, but not detached.
        let attached = jws::sign(ENTRY_TYP, &payload(entry), &chains.key).unwrap();
        let found = chains.with(index, |entry| entry["jws"] = json!(attached));
        assert_eq!(chains.broken(&found), index, "attached");
        let header = |header: Value| base64url(&serde_json::to_vec(&header).unwrap());
        let rest = entry["jws"].as_str().unwrap().rsplit('.').next().unwrap();
        let kid = chains.key.kid().as_str();
        for head in [
            json!({"alg": "none", "typ": ENTRY_TYP, "kid": kid}),
            json!({"alg": "HS256", "typ": ENTRY_TYP, "kid": kid}),
            json!({"alg": "ES256", "typ": ENTRY_TYP}),
            json!({"alg": "ES256", "kid": kid}),
        ] {
            let jws = format!("{}..{rest}", header(head.clone()));
            let found = chains.with(index, |entry| entry["jws"] = json!(jws));
            assert_eq!(chains.broken(&found), index, "{head}");
        }
        // The gateway itself rewrites an entry and signs it well: the next no longer hangs on it.
        let mut rewritten = entry.clone();
        rewritten["offer_id"] = json!("off_other");
        let jws = jws::sign_detached(ENTRY_TYP, &payload(&rewritten), &chains.key).unwrap();
        rewritten["jws"] = json!(jws);
        let found = chains.with(index, |entry| *entry = rewritten);
        if index + 1 < chains.chain.len() {
            assert_eq!(chains.broken(&found), index + 1, "rewritten by the gateway");
        } else {
            let head = chains.verify(&found).unwrap();
            assert_ne!(head, chains.verify(&chains.chain).unwrap());
        }
    }
}

#[test]
fn another_signature_over_the_same_entry_breaks_the_chain_after_it() {
    // ECDSA signatures are not unique; that the JWS is hashed too keeps them in their place (R31).
    let chains = Chains::new();
    for index in 0..chains.chain.len() - 1 {
        let mut body = chains.chain[index].as_object().unwrap().clone();
        let old = body.remove("jws").unwrap();
        let payload = jcs::canonical(&body).unwrap();
        let again = jws::sign_detached(ENTRY_TYP, &payload, &chains.key).unwrap();
        assert_ne!(json!(again), old);
        let resigned = chains.with(index, |entry| entry["jws"] = json!(again));
        assert_eq!(chains.broken(&resigned), index + 1);
    }
    // Nor has a signature a second spelling.
    let jws = chains.chain[0]["jws"].as_str().unwrap();
    let (head, signature) = jws.rsplit_once('.').unwrap();
    for other in [
        format!("{head}.{signature}="),
        format!("{head}.{signature}A"),
        format!("{head}. {signature}"),
        format!("{head}.{}", flipped_bits(signature)),
    ] {
        let respelled = chains.with(0, |entry| entry["jws"] = json!(other));
        assert_eq!(chains.broken(&respelled), 0, "{other}");
    }
}

/// The same bytes in base64url with other unused bits.
fn flipped_bits(text: &str) -> String {
    let bytes = from_base64url(text).unwrap();
    assert_eq!(bytes.len(), 64);
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (kept, last) = text.split_at(text.len() - 1);
    let value = ALPHABET
        .iter()
        .position(|c| *c == last.as_bytes()[0])
        .unwrap();
    format!("{kept}{}", ALPHABET[value ^ 1] as char)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_done_to_a_chain_it_is_the_chain_or_broken(
        ops in proptest::collection::vec((0usize..6, 0usize..6, 0usize..5), 1..4),
    ) {
        thread_local! {
            static CHAINS: Chains = Chains::new();
        }
        CHAINS.with(|chains| {
            let mut entries = chains.chain.clone();
            for (a, b, op) in ops {
                let length = entries.len();
                if length == 0 {
                    break;
                }
                let (a, b) = (a % length, b % length);
                match op {
                    0 => { entries.remove(a); }
                    1 => entries.swap(a, b),
                    2 => { let entry = entries[b].clone(); entries.insert(a, entry); }
                    3 => { let jws = entries[b]["jws"].clone(); entries[a]["jws"] = jws; }
                    _ => { let seq = entries[b]["seq"].clone(); entries[a]["seq"] = seq; }
                }
            }
            let whole = chains.verify(&chains.chain).unwrap();
            match chains.verify(&entries) {
                Ok(head) if head == whole => prop_assert_eq!(&entries, &chains.chain),
                // Only a cut tail verifies, under another head.
                Ok(_) => prop_assert!(chains.chain.starts_with(&entries)),
                Err(broken) => prop_assert!(broken.index < entries.len()),
            }
            Ok(())
        })?;
    }
}

// ---- Failing and contending -----------------------------------------------------------------------------------------

async fn an_entry_that_cannot_be_signed_leaves_nothing_done(backing: Backing) {
    let market = Market::on(backing).await;
    let offer = market.open_offer(FLOOR + 1).await;
    let accept = format!("/offers/{offer}/accept");
    market.grants.set("token-revoked", {
        let mut grant = grant(
            SELLER,
            "client-seller",
            Some(market.seller.kid()),
            Tier::Auto,
            NOW + 900,
        );
        grant.grant_status = Some(GrantStatus::Revoked);
        grant
    });
    let asking = grant(
        SELLER,
        "client-seller",
        Some(market.seller.kid()),
        Tier::Ask,
        NOW + 900,
    );
    market.grants.set("token-asking", asking);
    let (buyer, seller) = (&market.buyer, &market.seller);
    let rows = [
        (
            "an offer",
            buyer,
            None,
            "/offers",
            offer_body(FLOOR + 1),
            201,
        ),
        ("a low offer", buyer, None, "/offers", offer_body(1), 422),
        (
            "a revoked grant",
            seller,
            Some("token-revoked"),
            &*accept,
            json!({}),
            403,
        ),
        (
            "the account",
            seller,
            Some(SELLER_TOKEN),
            "/account",
            Value::Null,
            403,
        ),
        (
            "an ask",
            seller,
            Some("token-asking"),
            "/listings/lst_bicycle/terms",
            json!({}),
            202,
        ),
        (
            "an acceptance",
            seller,
            Some(SELLER_TOKEN),
            &*accept,
            json!({}),
            200,
        ),
    ];
    for (what, agent, token, path, body, status) in rows {
        let (commits, key) = (market.store.commits(), fresh_key());
        let before = market.offers_on(LISTING).await;
        market.store.cannot_sign();
        let failed = market.post(agent, token, path, &body, &key).await;
        assert_eq!(failed.refusal(), (503, "unavailable"), "{what}");
        assert_eq!(failed.decision(), "", "{what}");
        market.store.mend();
        assert_eq!(market.store.commits(), commits, "{what}");
        assert_eq!(market.offers_on(LISTING).await, before, "{what}");
        let listing = market.buyer_get("/listings/lst_bicycle").await;
        assert_eq!(listing.body["state"], "active", "{what}");
        let answer = market.post(agent, token, path, &body, &key).await;
        assert_eq!(answer.status, status, "{what}: {:?}", answer.body);
    }
}

async fn chains_that_many_write_at_once_stay_whole(backing: Backing) {
    let market = Market::on(backing).await;
    let beside = market.beside(market.backing.opened_again().await, |b| b);
    let beside = around(&beside, beside.market());
    let account = || {
        signed(
            &market.seller,
            Some(SELLER_TOKEN),
            "/account",
            &Value::Null,
            &fresh_key(),
        )
    };
    let offer = |n: u64| {
        signed(
            &market.buyer,
            None,
            "/offers",
            &offer_body(FLOOR + n),
            &fresh_key(),
        )
    };
    let requests: Vec<Request<Bytes>> = (0..32).flat_map(|n| [offer(n), account()]).collect();
    let services = [&market.service, &beside];
    let tasks: Vec<_> = requests
        .into_iter()
        .enumerate()
        .map(|(n, request)| {
            let service = services[(n / 2) % 2].clone();
            tokio::spawn(async move { send_to(&service, request).await })
        })
        .collect();
    let mut negotiations = HashSet::new();
    for task in tasks {
        let answer = task.await.unwrap();
        match answer.status {
            201 => drop(negotiations.insert(answer.get("negotiation_id"))),
            _ => assert_eq!(answer.refusal(), (403, "action_forbidden")),
        }
    }
    assert_eq!(negotiations.len(), 1);
    let negotiation = negotiations.into_iter().next().unwrap();
    let chain = market.chain(SubjectKind::Negotiation, &negotiation).await;
    assert_eq!(chain.len(), 32);
    assert_eq!(market.gateway_chain().await.len(), 32);
    assert_eq!(market.offers_on(LISTING).await.len(), 32);
    assert!(market.stored(Kind::Listing, LISTING).await.is_some());
}
