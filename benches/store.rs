//! What grouping is worth: the same unit, from many committers, into SQLite with and without it.
//!
//! The unit is that of an offer: the document, the listing that it depends on, an entry of the negotiation's chain, and
//! the request's key with a response of about 1 KB. The file lies in the target directory, so that syncs are real.

use std::{env, fs, path::Path, sync::Arc, thread, time::Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower_rctp::{
    protocol::record::{FIRST_PREV_HASH, Seal},
    store::{MemoryStore, SqliteOptions, SqliteStore},
    wire::jwk::SigningKey,
};

#[path = "store/committers.rs"]
mod committers;

use committers::{Random, offer, rate};

/// Each figure is the median of this many runs, which alternate, so that a disturbance hits both sides.
const RUNS: usize = 3;

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
