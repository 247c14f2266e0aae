//! The same units do the same to every store.

use std::sync::Arc;

use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*};
use tower_rctp::{
    protocol::{
        record::{Entry, Seal, SealError, Sealed, Subject, SubjectKind},
        time::Timestamp,
    },
    store::{
        Claim, ClaimStep, CommitError, Committed, Count, Key, Kind, MemoryStore, Put, StoreError,
        Unit, WindowCheck,
    },
    wire::digest::sha256,
};

use super::{Shared, digest, entry, idempotency, response, sqlite::File};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_store_does_the_same(steps in vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let file = File::new();
            let memory: Shared = Arc::new(MemoryStore::default());
            let sqlite = file.open().await;
            for step in steps {
                let (expected, found) = (act(&memory, step.clone()).await, act(&sqlite, step).await);
                prop_assert_eq!(expected, found);
            }
            let (expected, found) = (everything(&memory).await, everything(&sqlite).await);
            prop_assert_eq!(&expected, &found);

            drop(sqlite);
            prop_assert_eq!(&expected, &everything(&file.open().await).await);
            Ok(())
        })?;
    }
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // a test holds a few
enum Step {
    Commit(Unit),
    Sweep(i64),
}

async fn act(store: &Shared, step: Step) -> Result<(Committed, usize), CommitError> {
    match step {
        Step::Commit(unit) => {
            let done = store.commit(unit, Arc::new(Plain)).await;
            Ok((done.map_err(without_text)?, 0))
        }
        Step::Sweep(now) => {
            let forgotten = store.sweep(Timestamp::from_secs(now)).await;
            Ok((Committed::default(), forgotten?))
        }
    }
}

/// Stores word their failures differently.
fn without_text(error: CommitError) -> CommitError {
    match error {
        CommitError::Store(_) => StoreError(String::new()).into(),
        refused => refused,
    }
}

/// All that can be read, as text.
async fn everything(store: &Shared) -> Vec<String> {
    let mut seen = Vec::new();
    let keys = KINDS
        .iter()
        .flat_map(|kind| IDS.map(|id| Key::new(*kind, id)));
    seen.push(format!("{:?}", store.load(keys.collect()).await));
    for kind in KINDS {
        for parent in IDS {
            let list = store.list(kind, parent.into(), Some("b".into()), 2).await;
            seen.push(format!("{list:?}"));
            let list = store.list(kind, parent.into(), None, 9).await;
            seen.push(format!("{list:?}"));
        }
    }
    for now in TIMES {
        let now = Timestamp::from_secs(now);
        seen.push(format!("{:?}", store.due(now, 3).await));
        let names = IDS.map(str::to_owned).to_vec();
        seen.push(format!("{:?}", store.windows(names, now).await));
        for key in IDS {
            seen.push(format!("{:?}", store.used(idempotency(key), now).await));
        }
    }
    for id in IDS {
        for (from, limit) in [(0, 9), (1, 2)] {
            let subject = Subject::new(SubjectKind::Negotiation, id);
            seen.push(format!("{:?}", store.chain(subject, from, limit).await));
        }
    }
    seen
}

/// Few enough that steps get in each other's way.
const IDS: [&str; 4] = ["a", "b", "c", "d"];
const KINDS: [Kind; 2] = [Kind::Offer, Kind::Approval];
const TIMES: std::ops::Range<i64> = 0..6;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        9 => unit().prop_map(Step::Commit),
        1 => TIMES.prop_map(Step::Sweep),
    ]
}

fn unit() -> impl Strategy<Value = Unit> {
    (
        vec((key(), version()), 0..2),
        vec(put(), 0..3),
        vec((key(), version()), 0..2),
        vec(window_check(), 0..2),
        vec(count(), 0..3),
        vec(id(), 0..3),
        option::of(claim()),
    )
        .prop_map(
            |(read, put, delete, windows, counts, entries, claim)| Unit {
                read,
                put,
                delete,
                windows,
                counts,
                entries: entries.into_iter().map(entry).collect(),
                claim,
            },
        )
}

fn put() -> impl Strategy<Value = Put> {
    let due = option::of(time());
    (key(), version(), option::of(id()), due, id()).prop_map(
        |(key, expected, parent, due, body)| Put {
            key,
            expected,
            parent: parent.map(str::to_owned),
            due,
            body: Bytes::from_static(body.as_bytes()),
        },
    )
}

fn window_check() -> impl Strategy<Value = WindowCheck> {
    (id(), time(), 0..2_usize).prop_map(|(window, since, expected)| WindowCheck {
        window: window.into(),
        since,
        expected,
    })
}

fn count() -> impl Strategy<Value = Count> {
    (id(), time(), time()).prop_map(|(window, at, expires)| Count {
        window: window.into(),
        at,
        expires,
    })
}

fn claim() -> impl Strategy<Value = Claim> {
    let step = prop_oneof![
        Just(ClaimStep::Begin),
        id().prop_map(|body| ClaimStep::Settle(response(body))),
        id().prop_map(|body| ClaimStep::Complete(response(body))),
    ];
    let request = prop_oneof![9 => Just("same"), 1 => Just("other")];
    (id(), request, step, time(), time()).prop_map(|(key, request, step, at, expires)| Claim {
        key: idempotency(key),
        digest: digest(request),
        step,
        at,
        expires,
    })
}

fn key() -> impl Strategy<Value = Key> {
    let kind = prop_oneof![4 => Just(KINDS[0]), 1 => Just(KINDS[1])];
    (kind, id()).prop_map(|(kind, id)| Key::new(kind, id))
}

fn version() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0_u64), 3 => Just(1), 1 => Just(2)]
}

fn id() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&IDS[..])
}

fn time() -> impl Strategy<Value = Timestamp> {
    TIMES.prop_map(Timestamp::from_secs)
}

/// Seals without a signature, so that the same entry in the same place is the same bytes.
struct Plain;

impl Seal for Plain {
    fn seal(&self, entry: &Entry, seq: u64, prev_hash: &str) -> Result<Sealed, SealError> {
        let published = serde_json::to_vec(&(entry, seq, prev_hash));
        let published = published.map_err(|error| SealError(error.to_string()))?;
        let hex = sha256(&published)
            .map(|byte| format!("{byte:02x}"))
            .concat();
        Ok(Sealed {
            subject: entry.subject.clone(),
            seq,
            hash: format!("sha-256:{hex}"),
            published,
        })
    }
}
