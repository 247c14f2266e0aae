//! Committers that make the like units without end.
#![allow(unreachable_pub)] // shared by a bench and an example

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::StatusCode;
use tokio::runtime::Runtime;
use tower_rctp::{
    protocol::{
        caller::Caller,
        decision::Decision,
        operation::Op,
        record::{Entry, Subject, SubjectKind},
        time::Timestamp,
    },
    store::{Claim, ClaimStep, IdempotencyKey, Key, Kind, Put, Store, StoredResponse, Unit},
    wire::{digest::sha256, jwk::SigningKey},
};

const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);

/// Units a second.
pub fn rate(runtime: &Runtime, store: impl Store, key: &Arc<SigningKey>, committers: u64) -> f64 {
    let store: Arc<dyn Store> = Arc::new(store);
    let done = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let listings = Unit {
            put: (0..LISTINGS).map(listing).collect(),
            ..Unit::default()
        };
        store
            .commit(listings, key.clone())
            .await
            .expect("committed");

        let tasks: Vec<_> = (0..committers)
            .map(|committer| {
                let (store, key, done) = (store.clone(), key.clone(), done.clone());
                tokio::spawn(async move {
                    let mut random = Random(committer + 1);
                    for number in 0.. {
                        let unit = offer(&mut random, number);
                        store.commit(unit, key.clone()).await.expect("committed");
                        done.fetch_add(1, Relaxed);
                        // A store in memory never waits, and would keep the clock from running.
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(WARM_UP).await;
        let (start, before) = (Instant::now(), done.load(Relaxed));
        tokio::time::sleep(MEASURED).await;
        let units = done.load(Relaxed) - before;
        let rate = units as f64 / start.elapsed().as_secs_f64();
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            let _ = task.await;
        }
        rate
    })
}

const LISTINGS: u64 = 500;
const AGENTS: u64 = 50;

fn listing(index: u64) -> Put {
    Put {
        key: Key::new(Kind::Listing, listing_id(index)),
        expected: 0,
        parent: None,
        due: None,
        body: vec![b'l'; 800].into(),
    }
}

fn listing_id(index: u64) -> String {
    format!("lst_{}", base32(Random(index + 1).next()))
}

pub fn offer(random: &mut Random, number: u64) -> Unit {
    let listing = listing_id(random.next() % LISTINGS);
    let agent = random.next() % AGENTS;
    // Ids begin with the time, as those of the gateway do.
    let id = format!("off_{}{}", base32(number), base32(random.next()));
    let operator = format!("https://agents-{agent}.example/.well-known/ucp");
    let now = Timestamp::from_secs(1_800_000_000 + number as i64);

    let caller = Caller::signed(&*operator, THUMBPRINT.parse().expect("a thumbprint"));
    let negotiation = Subject::new(
        SubjectKind::Negotiation,
        format!("neg_{agent}_{}", &listing[4..]),
    );
    let mut entry = Entry::new(negotiation, now, Op::CreateOffer, Decision::Auto, &caller);
    entry.listing_id = Some(listing.clone());
    entry.offer_id = Some(id.clone());
    let commitment = sha256(listing.as_bytes()).map(|byte| format!("{byte:02x}"));
    entry.terms_commitment = Some(format!("sha-256:{}", commitment.concat()));
    Unit {
        read: vec![(Key::new(Kind::Listing, &*listing), 1)],
        put: vec![Put {
            key: Key::new(Kind::Offer, &*id),
            expected: 0,
            parent: Some(listing),
            due: Some(now.plus(86_400)),
            body: vec![b'o'; 600].into(),
        }],
        entries: vec![entry],
        claim: Some(Claim {
            key: IdempotencyKey {
                scope: operator,
                key: base32(random.next()) + &base32(random.next()),
            },
            digest: sha256(id.as_bytes()),
            step: ClaimStep::Settle(StoredResponse {
                status: StatusCode::CREATED,
                headers: vec![
                    ("content-type".into(), b"application/json".to_vec()),
                    ("rctp-decision".into(), b"auto".to_vec()),
                ],
                body: Bytes::from(vec![b'r'; 1000]),
            }),
            at: now,
            expires: now.plus(48 * 3600),
        }),
        ..Unit::default()
    }
}

/// 13 characters, in the order of the numbers.
fn base32(value: u64) -> String {
    let alphabet = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    (0..13)
        .rev()
        .map(|place| char::from(alphabet[(value >> (place * 5)) as usize % 32]))
        .collect()
}

const THUMBPRINT: &str = "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs";

/// Xorshift; the figures must not depend on luck.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
