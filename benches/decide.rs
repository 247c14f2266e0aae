//! What deciding costs: the pure function, on facts at hand.
//!
//! `cargo bench --bench decide`. The last line compares the three ways it can end.

use std::{hint::black_box, time::Duration};

use criterion::Criterion;
use tower_rctp::protocol::{
    caller::{Agent, Caller},
    decision::{Facts, Requested, Verdict, decide},
    grant::Grant,
    listing::ConfirmedTerms,
    money::Money,
    offer::{By, Offer, OfferState},
    operation::{Op, Verb},
    policy::{Policy, Tier},
    refusal::Reason,
    terms::{Floor, PrivateTerms},
    time::Timestamp,
};
use tower_rctp_peers::in_turns;

#[path = "../tests/common/mod.rs"]
mod common;

use common::{FLOOR, LISTING, NOW, SELLER, deal_terms, listing, offer_body, public_terms};

fn main() {
    let (now, policy) = (Timestamp::from_secs(NOW), Policy::default());
    let key = tower_rctp::wire::jwk::SigningKey::generate().expect("a key");
    let caller = Caller::signed("https://seller.example/.well-known/ucp", key.kid().clone());
    let grant = |tier| {
        let scopes: Vec<String> = Verb::GRANTED
            .iter()
            .filter_map(|v| v.scope().map(str::to_owned))
            .collect();
        Grant {
            sub: SELLER.into(),
            client_id: None,
            agent_id: None,
            tiers: scopes.iter().map(|s| (s.clone(), tier)).collect(),
            scopes,
        }
    };
    let (auto, ask) = (grant(Tier::Auto), grant(Tier::Ask));
    let facts = facts();
    let mut low = facts.clone();
    low.requested =
        Requested::Offer(serde_json::from_value(offer_body(FLOOR - 1)).expect("an offer"));
    let accept = Op::AcceptOffer.row();
    let create = Op::CreateOffer.row();

    let verdict = decide(accept, &caller, Some(&auto), &facts, &policy, now);
    assert_eq!(verdict, Verdict::Auto);
    let verdict = decide(accept, &caller, Some(&ask), &facts, &policy, now);
    assert!(matches!(verdict, Verdict::Ask { .. }));
    let verdict = decide(create, &caller, None, &low, &policy, now);
    assert!(matches!(verdict, Verdict::Refuse(r) if r.reason() == Some(Reason::BelowFloor)));

    let operations: [(&str, &dyn Fn()); 3] = [
        ("auto", &|| {
            black_box(decide(accept, &caller, Some(&auto), &facts, &policy, now));
        }),
        ("ask", &|| {
            black_box(decide(accept, &caller, Some(&ask), &facts, &policy, now));
        }),
        ("forbid", &|| {
            black_box(decide(create, &caller, None, &low, &policy, now));
        }),
    ];
    let mut criterion = Criterion::default()
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for (name, operation) in &operations {
        criterion.bench_function(name, |bencher| bencher.iter(operation));
    }
    criterion.final_summary();
    let medians = in_turns(&operations);
    println!(
        "ask/auto {:.2} · forbid/auto {:.2} (auto {:.3} µs, ask {:.3} µs, forbid {:.3} µs)",
        medians[1] / medians[0],
        medians[2] / medians[0],
        medians[0],
        medians[1],
        medians[2],
    );
}

fn facts() -> Facts {
    let private = PrivateTerms::new(
        Some(Floor::new(Money::new(FLOOR, common::CURRENCY))),
        [7; 16],
    );
    let mut listing = listing(LISTING, SELLER);
    listing.terms = Some(ConfirmedTerms {
        commitment: private.commitment(&public_terms()),
        public: public_terms(),
    });
    let offer = Offer {
        offer_id: "off_1".into(),
        negotiation_id: "neg_1".into(),
        listing_id: LISTING.into(),
        by: By::Buyer,
        deal_terms: serde_json::from_value(deal_terms(FLOOR + 1)).expect("deal terms"),
        state: OfferState::Open,
        supersedes: None,
        created_at: Timestamp::from_secs(NOW - 10),
        expires_at: Timestamp::from_secs(NOW + 10_000),
        waits_until: None,
        acceptance: None,
        buyer: Agent::Client("client-buyer".into()),
        buyer_operator: "https://buyer.example/.well-known/ucp".into(),
        seller: SELLER.into(),
    };
    Facts {
        listing: Some(listing),
        private: Some(private),
        offer: Some(offer),
        ..Facts::default()
    }
}
