//! What is SQLite's own: the file, its durability, and everything that can be wrong with it.

use std::{
    array, fs,
    io::{BufRead, BufReader, Write as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use rusqlite::{Connection, params};
use tempfile::TempDir;
use tower_rctp::store::{SqliteError, SqliteOptions, SqliteStore};

use super::*;

/// A place for a database, gone when it is dropped.
pub(crate) struct File {
    directory: TempDir,
}

impl File {
    pub(crate) fn new() -> Self {
        Self {
            directory: TempDir::new().expect("a directory"),
        }
    }

    pub(crate) async fn open(&self) -> Shared {
        self.open_with(SqliteOptions::default()).await
    }

    async fn open_with(&self, options: SqliteOptions) -> Shared {
        let store = SqliteStore::open_with(self.path(), options).await;
        Arc::new(store.expect("opened"))
    }

    async fn refused(&self) -> SqliteError {
        let impatient = SqliteOptions {
            busy_timeout: Duration::from_millis(1),
            ..SqliteOptions::default()
        };
        let refused = SqliteStore::open_with(self.path(), impatient).await;
        refused.expect_err("not a store")
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("store.db")
    }

    /// As another program sees it.
    fn raw(&self) -> Connection {
        Connection::open(self.path()).expect("opened")
    }
}

// Groups

#[tokio::test]
async fn a_refused_unit_leaves_its_neighbours_standing() {
    let file = File::new();
    let store = file.open().await;
    commit(&store, only(put("there", 0))).await.expect("new");
    let with_entry = |id| Unit {
        entries: vec![entry("n")],
        counts: vec![count("w", 10)],
        claim: Some(claim(id, ClaimStep::Begin)),
        ..only(put(id, 0))
    };
    let conflicting = Unit {
        read: vec![(offer("there"), 0)],
        ..with_entry("b")
    };
    let [first, refused, unsigned, panicked, last] = together(
        &store,
        [
            (with_entry("a"), Arc::new(KEY.clone())),
            (conflicting, Arc::new(KEY.clone())),
            (with_entry("c"), Arc::new(NoKey)),
            (with_entry("d"), Arc::new(Panics)),
            (with_entry("e"), Arc::new(KEY.clone())),
        ],
    )
    .await;
    assert_eq!(first.expect("committed").entries[0].seq, 0);
    assert_eq!(refused, Err(CommitError::Conflict));
    assert!(matches!(unsigned, Err(CommitError::Store(_))));
    assert!(matches!(panicked, Err(CommitError::Store(_))));
    assert_eq!(last.expect("committed").entries[0].seq, 1);

    for (id, stands) in [("a", 1), ("b", 0), ("c", 0), ("d", 0), ("e", 1)] {
        assert_eq!(version(&store, id).await, stands, "{id}");
        assert_eq!(used(&store, id, 0).await.is_some(), stands == 1, "{id}");
    }
    assert_eq!(window(&store, "w", 0).await, [10, 10]);
    let chain = chain(&store, "n").await;
    assert_eq!(chain.len(), 2);
    assert_verifies(&chain, &KEY);
    assert_eq!(store.health().await, Ok(()));
}

#[tokio::test]
async fn a_unit_sees_what_its_neighbour_did() {
    let file = File::new();
    let store = file.open().await;
    let key = || Arc::new(KEY.clone());
    let [new, second, stale] = together(
        &store,
        [
            (only(put("a", 0)), key()),
            (only(put("a", 1)), key()),
            (only(put("a", 1)), key()),
        ],
    )
    .await;
    assert!(new.is_ok() && second.is_ok());
    assert_eq!(stale, Err(CommitError::Conflict));
}

#[tokio::test]
async fn a_group_of_one_does_the_same() {
    let file = File::new();
    let one = SqliteOptions {
        max_group: 1,
        readers: 1,
        ..SqliteOptions::default()
    };
    let store = file.open_with(one).await;
    sixty_four_committers_of_one_chain_get_a_place_each(store).await;
}

/// Commits units in one group: the writer is held up until all of them wait.
async fn together<const N: usize>(
    store: &Shared,
    units: [(Unit, Arc<dyn Seal>); N],
) -> [Result<Committed, CommitError>; N] {
    let (open, closed) = mpsc::channel();
    let gate = Unit {
        entries: vec![entry("gate")],
        ..Unit::default()
    };
    let seal = Arc::new(Gate(closed.into()));
    let held = tokio::spawn({
        let store = store.clone();
        async move { store.commit(gate, seal).await }
    });
    // On one thread, a task that was spawned runs up to where it waits before the next does.
    let tasks = units.map(|(unit, seal)| {
        let store = store.clone();
        tokio::spawn(async move { store.commit(unit, seal).await })
    });
    let opened = tokio::spawn(async move { open.send(()) });
    opened.await.expect("run").expect("sent");
    let _ = held.await.expect("run");
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.expect("run"));
    }
    done.try_into().expect("as many as there were")
}

/// Seals when it is told to.
struct Gate(std::sync::Mutex<mpsc::Receiver<()>>);

impl Seal for Gate {
    fn seal(&self, entry: &Entry, seq: u64, prev_hash: &str) -> Result<Sealed, SealError> {
        let opened = self.0.lock().expect("one caller").recv();
        opened.map_err(|error| SealError(error.to_string()))?;
        KEY.seal(entry, seq, prev_hash)
    }
}

struct Panics;

impl Seal for Panics {
    fn seal(&self, _: &Entry, _: u64, _: &str) -> Result<Sealed, SealError> {
        panic!("a panic that the test asked for")
    }
}

// Durability

#[tokio::test]
async fn everything_is_there_after_reopening() {
    let file = File::new();
    let unit = |id: &str, parent| Unit {
        put: vec![Put {
            due: Some(Timestamp::from_secs(10)),
            ..child(id, Some(parent), 0)
        }],
        counts: vec![count("w", 10)],
        entries: vec![entry("n")],
        claim: Some(claim(id, ClaimStep::Settle(response(id)))),
        ..Unit::default()
    };
    let ids = ["a", "b", "c"];
    for (index, id) in ids.iter().enumerate() {
        let store = file.open().await;
        commit(&store, unit(id, "l")).await.expect("committed");

        assert_eq!(listed(&store, "l", None, 9).await, ids[..=index]);
        assert_eq!(due_at(&store, 10, 9).await, ids[..=index]);
        assert_eq!(window(&store, "w", 0).await.len(), index + 1);
        let kept = used(&store, "a", 0).await.and_then(|used| used.response);
        assert_eq!(kept, Some(response("a")));
        let chain = chain(&store, "n").await;
        assert_eq!(chain.len(), index + 1);
        assert_verifies(&chain, &KEY);
    }
}

#[tokio::test]
async fn closing_leaves_one_file() {
    let file = File::new();
    let store = file.open().await;
    commit(&store, only(put("a", 0))).await.expect("committed");
    assert!(file.path().with_extension("db-wal").exists());
    drop(store);
    let left: Vec<_> = fs::read_dir(file.directory.path()).expect("read").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test]
async fn a_commit_that_nobody_waits_for_is_finished_before_the_store_closes() {
    let file = File::new();
    let store = file.open().await;
    let (unit, seal) = (only(put("a", 0)), Arc::new(KEY.clone()));
    let mut commit = store.commit(unit, seal);
    // Polled once, the unit is on its way.
    let _ =
        std::future::poll_fn(|context| std::task::Poll::Ready(commit.as_mut().poll(context))).await;
    drop(commit);
    drop(store);
    assert_eq!(version(&file.open().await, "a").await, 1);
}

#[tokio::test]
async fn nothing_that_was_answered_is_lost_by_a_kill() {
    let file = File::new();
    let mut answered = Vec::new();
    // The second child finds what the first left behind.
    for round in 0..2 {
        let mut child = committing_child(&file, round, None);
        let mut lines = answers(&mut child);
        answered.extend(lines.by_ref().take(150));
        child.kill().expect("killed");
        // What was answered between the last line and the kill.
        answered.extend(lines);
        child.wait().expect("gone");
    }
    assert!(answered.len() >= 300);
    assert_all_there(&file, &answered).await;
}

#[cfg(unix)]
#[tokio::test]
async fn nothing_that_was_answered_is_lost_when_the_disk_takes_no_more() {
    let file = File::new();
    // In blocks of 512 bytes: the WAL fills up, and what is written back to the file no longer fits.
    let mut child = committing_child(&file, 0, Some(12_000));
    let answered: Vec<_> = answers(&mut child).collect();
    assert!(child.wait().expect("gone").success());
    assert!(answered.len() >= 50, "{}", answered.len());
    assert_all_there(&file, &answered).await;
}

async fn assert_all_there(file: &File, answered: &[String]) {
    let store = file.open().await;
    for id in answered {
        assert_eq!(version(&store, id).await, 1, "{id}");
        let kept = used(&store, id, 0).await.and_then(|used| used.response);
        assert_eq!(kept, Some(response(id)));
    }
    let chain = chain(&store, "n").await;
    assert!(chain.len() >= answered.len());
    assert_verifies(&chain, &KEY);
}

/// The parent's end: this very test binary, run for [`child_that_commits_until_it_cannot`] alone.
fn committing_child(file: &File, round: u32, blocks: Option<u32>) -> Child {
    let binary = std::env::current_exe().expect("a path");
    let mut command = match blocks {
        // Without the trap, the signal would end the child before it sees the error.
        Some(blocks) => {
            let mut shell = Command::new("sh");
            let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
            shell.arg("-c").arg(script).arg(binary);
            shell
        }
        None => Command::new(binary),
    };
    let pem = KEY.to_pkcs8_pem().expect("a key");
    command
        .args(["--exact", "sqlite::child_that_commits_until_it_cannot"])
        .arg("--nocapture")
        .env(CHILD, file.path())
        .env("RCTP_TEST_KEY", pem.as_str())
        .env("RCTP_TEST_ROUND", round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child")
}

fn answers(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let stdout = child.stdout.take().expect("piped");
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    // A line that was cut off ends without the mark.
    lines.filter_map(|line| {
        Some(
            line.strip_prefix("answered ")?
                .strip_suffix('.')?
                .to_owned(),
        )
    })
}

const CHILD: &str = "RCTP_TEST_CHILD_DB";

/// The child's end; it has nothing to do in a run of the tests themselves.
#[tokio::test(flavor = "multi_thread")]
async fn child_that_commits_until_it_cannot() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let setting = |name| std::env::var(name).expect("set by the parent");
    let key = SigningKey::from_pkcs8_pem(&setting("RCTP_TEST_KEY")).expect("a key");
    let round = setting("RCTP_TEST_ROUND");
    let store: Shared = Arc::new(SqliteStore::open(path).await.expect("opened"));
    let committers: Vec<_> = (0..16)
        .map(|committer| {
            let (store, key, round) = (store.clone(), Arc::new(key.clone()), round.clone());
            tokio::spawn(async move {
                for number in 0.. {
                    let id = format!("{round}-{committer}-{number}");
                    let unit = Unit {
                        put: vec![Put {
                            body: vec![b'x'; 16 * 1024].into(),
                            ..put(&id, 0)
                        }],
                        entries: vec![entry("n")],
                        claim: Some(claim(&id, ClaimStep::Settle(response(&id)))),
                        ..Unit::default()
                    };
                    match store.commit(unit, key.clone()).await {
                        // Past the harness, which would keep it.
                        Ok(_) => writeln!(std::io::stdout(), "\nanswered {id}.").expect("written"),
                        Err(CommitError::Store(_)) => return,
                        Err(refused) => panic!("{refused}"),
                    }
                }
            })
        })
        .collect();
    for committer in committers {
        committer.await.expect("no panic");
    }
    let mut last_bytes = 0..1000;
    while store.health().await.is_ok() {
        last_bytes.next().expect("the health check fails as well");
    }
}

// Several at once

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_share_a_file() {
    let file = File::new();
    let stores = [file.open().await, file.open().await];
    let units = |which: usize| {
        (0..40).map(move |number| Unit {
            entries: vec![entry("n")],
            put: vec![put(&format!("{which}-{number}"), 0)],
            ..Unit::default()
        })
    };
    let [first, second] = &stores;
    let (first, second) = tokio::join!(at_once(first, units(0)), at_once(second, units(1)));
    assert!(first.iter().chain(&second).all(Result::is_ok));
    for store in &stores {
        let chain = chain(store, "n").await;
        assert_eq!(chain.len(), 80);
        assert_verifies(&chain, &KEY);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_new_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("private.db");
    let _store = SqliteStore::open(&path).await.expect("opened");
    for entry in std::fs::read_dir(directory.path()).expect("read") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{:?}", entry.file_name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_may_be_opened_by_many_at_once() {
    let file = File::new();
    let opening: Vec<_> = (0..8)
        .map(|_| tokio::spawn(SqliteStore::open(file.path())))
        .collect();
    for (index, opened) in opening.into_iter().enumerate() {
        let store: Shared = Arc::new(opened.await.expect("run").expect("opened"));
        commit(&store, only(put(&index.to_string(), 0)))
            .await
            .expect("committed");
    }
}

#[tokio::test]
async fn a_file_that_stays_locked_is_an_error_and_then_is_not() {
    let file = File::new();
    let impatient = SqliteOptions {
        busy_timeout: Duration::from_millis(1),
        ..SqliteOptions::default()
    };
    let store = file.open_with(impatient).await;
    let other = file.raw();
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");

    let refused = commit(&store, only(put("a", 0))).await;
    let Err(CommitError::Store(StoreError(why))) = refused else {
        panic!("not refused: {refused:?}");
    };
    assert!(why.contains("another process"), "{why}");
    assert!(store.health().await.is_err());
    assert_eq!(version(&store, "a").await, 0, "reads go on");

    other.execute_batch("COMMIT").expect("unlocked");
    commit(&store, only(put("a", 0))).await.expect("committed");
    assert_eq!(store.health().await, Ok(()));
}

// What can be wrong with the file

#[tokio::test]
async fn a_file_at_its_limit_fails_commits_and_loses_nothing() {
    let file = File::new();
    let small = SqliteOptions {
        max_bytes: Some(512 * 1024),
        ..SqliteOptions::default()
    };
    let store = file.open_with(small).await;
    let mut stands = Vec::new();
    let mut refused = 0;
    for round in 0.. {
        let units = array::from_fn::<(Unit, Arc<dyn Seal>), 8, _>(|index| {
            let large = Put {
                body: vec![b'x'; 8 * 1024].into(),
                ..put(&format!("{round}-{index}"), 0)
            };
            (only(large), Arc::new(KEY.clone()))
        });
        for (index, done) in together(&store, units).await.into_iter().enumerate() {
            match done {
                Ok(_) => stands.push(format!("{round}-{index}")),
                Err(CommitError::Store(StoreError(why))) => {
                    assert!(why.contains("full"), "{why}");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        if refused > 0 {
            break;
        }
    }
    drop(store);

    let store = file.open().await;
    let docs = store
        .load(stands.iter().map(|id| offer(id)).collect())
        .await;
    assert!(docs.expect("loaded").iter().all(Option::is_some));
    let count: i64 = file
        .raw()
        .query_row("SELECT count(*) FROM docs", [], |row| row.get(0))
        .expect("counted");
    assert_eq!(usize::try_from(count), Ok(stands.len()));
    commit(&store, only(put("more", 0)))
        .await
        .expect("room again");
}

#[tokio::test]
async fn a_file_that_was_replaced_takes_no_more() {
    let file = File::new();
    let store = file.open().await;
    commit(&store, only(put("a", 0))).await.expect("committed");
    let aside = file.directory.path().join("aside.db");
    fs::rename(file.path(), &aside).expect("moved away");

    for replaced in [false, true] {
        if replaced {
            fs::copy(&aside, file.path()).expect("a copy");
        }
        let refused = commit(&store, only(put("b", 0))).await;
        let Err(CommitError::Store(StoreError(why))) = refused else {
            panic!("not refused: {refused:?}");
        };
        assert!(why.contains("removed or replaced"), "{why}");
        assert!(store.health().await.is_err());
    }
    fs::rename(&aside, file.path()).expect("moved back");
    commit(&store, only(put("b", 0))).await.expect("committed");
    assert_eq!(store.health().await, Ok(()));
}

#[tokio::test]
async fn damaged_rows_are_errors() {
    let set = |table, column, value| format!("UPDATE {table} SET {column} = {value}");
    for damage in [
        set("docs", "kind", "'nonsense'"),
        set("docs", "version", "0"),
        set("docs", "version", "-1"),
        set("docs", "id", "CAST(x'ff' AS TEXT)"),
        set("entries", "hash", "'sha-256:00'"),
        set("entries", "hash", "'sha-256:' || hex(zeroblob(32))"),
        set("entries", "published", "x'00'"),
        set("entries", "seq", "seq + 7"),
        set("keys", "digest", "x'00'"),
        set("keys", "status", "7"),
        set("keys", "status", "-1"),
        set("keys", "status", "NULL"),
        set("keys", "headers", "'[[\"a\"]]'"),
        set("keys", "headers", "'[[\"a\",\"€\"]]'"),
        set("keys", "headers", "NULL"),
        "DELETE FROM health".to_owned(),
        "DROP TABLE keys; DROP TABLE docs; DROP TABLE entries; DROP TABLE counts".to_owned(),
    ] {
        let file = File::new();
        let store = file.open().await;
        let due = Put {
            due: Some(Timestamp::from_secs(0)),
            ..child("a", Some("l"), 0)
        };
        let unit = Unit {
            entries: vec![entry("n")],
            claim: Some(claim("k", ClaimStep::Settle(response("r")))),
            ..only(due)
        };
        commit(&store, unit).await.expect("committed");
        file.raw().execute_batch(&damage).expect("damaged");

        let now = Timestamp::from_secs(0);
        let subject = Subject::new(SubjectKind::Negotiation, "n");
        let outcomes = [
            store.due(now, 9).await.map(|_| ()),
            store.used(idempotency("k"), now).await.map(|_| ()),
            store.chain(subject, 0, 9).await.map(|_| ()),
            store.health().await,
        ];
        let errors = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        assert!(errors > 0, "{damage}: {outcomes:?}");
    }
}

#[tokio::test]
async fn nothing_is_added_to_a_chain_whose_end_is_damaged() {
    let file = File::new();
    let store = file.open().await;
    let unit = || Unit {
        entries: vec![entry("n")],
        ..only(put("a", 0))
    };
    for damage in ["hash = 'nonsense'", "hash = ''", "seq = -1"] {
        commit(
            &store,
            Unit {
                put: vec![],
                ..unit()
            },
        )
        .await
        .expect("committed");
        let damage = format!("UPDATE entries SET {damage}");
        file.raw().execute(&damage, params![]).expect("damaged");
        let refused = commit(&store, unit()).await;
        assert!(matches!(refused, Err(CommitError::Store(_))), "{damage}");
        assert_eq!(version(&store, "a").await, 0);
        file.raw()
            .execute("DELETE FROM entries", params![])
            .expect("emptied");
    }
}

#[tokio::test]
async fn garbage_in_the_pages_is_an_error() {
    let file = File::new();
    let store = file.open().await;
    for index in 0..50 {
        let unit = Unit {
            entries: vec![entry("n")],
            ..only(child(&index.to_string(), Some("l"), 0))
        };
        commit(&store, unit).await.expect("committed");
    }
    drop(store);
    let mut bytes = fs::read(file.path()).expect("read");
    let pages = bytes.len() / 4096;
    assert!(pages > 10);
    // All but the schema.
    bytes[4096..].fill(0x5a);
    fs::write(file.path(), bytes).expect("written");

    match SqliteStore::open(file.path()).await {
        Err(SqliteError::Damaged { .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(store) => {
            let store: Shared = Arc::new(store);
            let now = Timestamp::from_secs(0);
            assert!(store.load(vec![offer("1")]).await.is_err());
            assert!(store.list(Kind::Offer, "l".into(), None, 9).await.is_err());
            assert!(store.used(idempotency("k"), now).await.is_err());
            let refused = commit(&store, only(put("a", 0))).await;
            let Err(CommitError::Store(StoreError(why))) = refused else {
                panic!("not refused: {refused:?}");
            };
            assert!(why.contains("damaged"), "{why}");
            assert!(store.health().await.is_err());
        }
    }
}

#[tokio::test]
async fn another_programs_file_is_refused_and_left_alone() {
    let file = File::new();
    fs::write(
        file.path(),
        "notes, not a database; long enough for a header\n".repeat(99),
    )
    .expect("written");
    let before = fs::read(file.path()).expect("read");
    let refused = file.refused().await;
    assert!(
        matches!(refused, SqliteError::NotADatabase { .. }),
        "{refused}"
    );
    assert_eq!(fs::read(file.path()).expect("read"), before);

    for theirs in [
        "CREATE TABLE theirs (x)",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 7; PRAGMA user_version = 1; CREATE TABLE docs (x)",
    ] {
        let file = File::new();
        file.raw().execute_batch(theirs).expect("made");
        let before = fs::read(file.path()).expect("read");
        let refused = file.refused().await;
        assert!(matches!(refused, SqliteError::Foreign { .. }), "{refused}");
        assert_eq!(fs::read(file.path()).expect("read"), before, "{theirs}");
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_says_what_to_do() {
    let file = File::new();
    drop(file.open().await);
    let newer = file.raw().execute_batch("PRAGMA user_version = 99");
    newer.expect("made newer");
    let refused = file.refused().await;
    assert!(
        matches!(refused, SqliteError::Newer { found: 99, .. }),
        "{refused}"
    );
    let text = refused.to_string();
    let path = file.path().display().to_string();
    assert!(text.contains("upgrade") && text.contains(&path), "{text}");
}

#[tokio::test]
async fn a_place_that_cannot_be_written_is_refused() {
    let file = File::new();
    let missing = file.directory.path().join("missing").join("store.db");
    let refused = SqliteStore::open(&missing).await.expect_err("no directory");
    assert!(
        matches!(refused, SqliteError::CannotOpen { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("directory must exist"));

    let refused = SqliteStore::open(file.directory.path()).await;
    let refused = refused.expect_err("a directory");
    assert!(
        matches!(refused, SqliteError::CannotOpen { .. }),
        "{refused}"
    );
    let refused = SqliteStore::open("").await;
    refused.expect_err("no name");
}

#[tokio::test]
async fn a_file_that_another_process_locks_is_refused() {
    let file = File::new();
    let other = file.raw();
    other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
    let refused = file.refused().await;
    assert!(matches!(refused, SqliteError::Locked { .. }), "{refused}");
}

#[tokio::test]
async fn an_empty_file_becomes_a_store() {
    let file = File::new();
    fs::write(file.path(), "").expect("written");
    let store = file.open().await;
    commit(&store, only(put("a", 0))).await.expect("committed");
}

#[tokio::test]
async fn what_is_printed_of_a_store_shows_nothing_stored() {
    let file = File::new();
    let store = SqliteStore::open(file.path()).await.expect("opened");
    assert_eq!(format!("{store:?}"), "SqliteStore { .. }");
    assert_eq!(
        format!("{:?}", MemoryStore::default()),
        "MemoryStore { .. }"
    );
}
