//! What grouping is worth: the same unit, from many committers, into SQLite with and without it.
//!
//! The unit is that of an offer: the document, the listing that it depends on, an entry of the negotiation's chain, and
//! the request's key with a response of about 1 KB. The file lies in the target directory, so that syncs are real.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::StatusCode;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower_rctp::{
    protocol::{
        caller::Caller,
        decision::Decision,
        operation::Op,
        record::{Entry, FIRST_PREV_HASH, Seal, Subject, SubjectKind},
        time::Timestamp,
    },
    store::{
        Claim, ClaimStep, IdempotencyKey, Key, Kind, MemoryStore, Put, SqliteOptions, SqliteStore,
        Store, StoredResponse, Unit,
    },
    wire::{digest::sha256, jwk::SigningKey},
};

/// Each figure is the median of this many runs, which alternate, so that a disturbance hits both sides.
const RUNS: usize = 3;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);

fn main() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(directory).expect("the target directory can be written");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    println!("on {}, {cores} cores", file_system(directory));

    let key = Arc::new(SigningKey::generate().expect("a key"));
    println!("sealing one entry: {:.1} µs", seal_time(&key));

    let mut ratio_at_64 = 0.0;
    println!(
        "{:>10} {:>10} {:>10} {:>6}",
        "committers", "grouped/s", "single/s", "ratio"
    );
    for committers in [16, 64, 256] {
        let (mut grouped, mut single) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            for (rates, max_group) in [(&mut grouped, 256), (&mut single, 1)] {
                let options = SqliteOptions {
                    max_group,
                    ..SqliteOptions::default()
                };
                let temporary = TempDir::new_in(directory).expect("a directory");
                let runtime = Runtime::new().expect("a runtime");
                let path = temporary.path().join("store.db");
                let store = runtime.block_on(SqliteStore::open_with(path, options));
                rates.push(rate(&runtime, store.expect("opened"), &key, committers));
            }
        }
        let (grouped, single) = (median(grouped), median(single));
        let ratio = grouped / single;
        println!("{committers:>10} {grouped:>10.0} {single:>10.0} {ratio:>6.1}");
        if committers == 64 {
            ratio_at_64 = ratio;
        }
    }
    let runtime = Runtime::new().expect("a runtime");
    let memory = rate(&runtime, MemoryStore::default(), &key, 64);
    println!("in memory, 64 committers: {memory:.0}/s");
    println!("grouped/single at 64 committers {ratio_at_64:.1}");
}

/// Units a second.
fn rate(runtime: &Runtime, store: impl Store, key: &Arc<SigningKey>, committers: u64) -> f64 {
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
        key: Key::new(Kind::Listing, format!("lst_{index:016x}")),
        expected: 0,
        parent: None,
        due: None,
        body: vec![b'l'; 800].into(),
    }
}

fn offer(random: &mut Random, number: u64) -> Unit {
    let listing = format!("lst_{:016x}", random.next() % LISTINGS);
    let agent = random.next() % AGENTS;
    // Ids begin with the time, as those of the gateway do.
    let id = format!("off_{number:012x}{:016x}", random.next());
    let operator = format!("https://agents-{agent}.example/.well-known/ucp");
    let now = Timestamp::from_secs(1_800_000_000 + number as i64);

    let caller = Caller::signed(&*operator, THUMBPRINT.parse().expect("a thumbprint"));
    let negotiation = Subject::new(SubjectKind::Negotiation, format!("neg_{listing}_{agent}"));
    let mut entry = Entry::new(negotiation, now, Op::CreateOffer, Decision::Auto, &caller);
    entry.listing_id = Some(listing.clone());
    entry.offer_id = Some(id.clone());
    entry.terms_commitment = Some(FIRST_PREV_HASH.into());
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
                key: format!("{:016x}-{:016x}", random.next(), random.next()),
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

const THUMBPRINT: &str = "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs";

/// In µs.
fn seal_time(key: &SigningKey) -> f64 {
    let unit = offer(&mut Random(1), 1);
    let rounds = 2000;
    let start = Instant::now();
    for seq in 0..rounds {
        let sealed = key.seal(&unit.entries[0], seq, FIRST_PREV_HASH);
        std::hint::black_box(sealed.expect("sealed"));
    }
    start.elapsed().as_secs_f64() * 1e6 / rounds as f64
}

/// Xorshift; the figures must not depend on luck.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// The kind of file system that a path lies on, where the system says so.
fn file_system(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (device, at, kind) = (words.next()?, words.next()?, words.next()?);
        path.starts_with(at)
            .then(|| (at.len(), format!("{kind} ({device})")))
    });
    mounts
        .max()
        .map_or_else(|| "an unknown file system".into(), |(_, named)| named)
}
