//! The stores: one suite that every store passes, then what is SQLite's own.

mod same;
mod sqlite;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tower_rctp::{
    protocol::{
        caller::{Caller, Mechanism},
        decision::Decision,
        operation::Op,
        record::{Entry, Seal, SealError, Sealed, Subject, SubjectKind, verify_chain},
        time::Timestamp,
    },
    store::{
        Claim, ClaimStep, CommitError, Committed, Count, Doc, IdempotencyKey, Key, Kind,
        MemoryStore, Put, Store, StoreError, StoredResponse, Unit, Used, Version, WindowCheck,
    },
    wire::{
        crypto,
        digest::{Sha256, sha256},
        jwk::{Keys, SigningKey},
    },
};

type Shared = Arc<dyn Store>;

/// Makes a test of each function for every store.
macro_rules! every_store {
    ($($test:ident,)*) => {
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(std::sync::Arc::new(super::MemoryStore::default())).await;
            })*
        }

        mod in_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let file = super::sqlite::File::new();
                super::$test(file.open().await).await;
            })*
        }
    };
}

every_store! {
    documents_are_loaded_in_the_order_of_their_keys,
    each_write_counts_the_version_up,
    a_write_needs_the_version_that_it_names,
    what_must_be_new_must_not_exist,
    what_was_read_must_not_have_changed,
    what_was_absent_must_still_be_absent,
    conditions_are_about_the_state_before_the_unit,
    a_unit_that_fails_leaves_nothing,
    a_unit_may_not_write_a_document_twice,
    a_removed_document_is_gone_and_its_key_is_new,
    a_removal_needs_the_version_that_it_names,
    an_empty_unit_is_committed,
    documents_are_listed_by_id_under_their_first_parent,
    a_list_is_read_page_by_page,
    names_are_compared_byte_by_byte,
    every_kind_is_kept_apart,
    the_longest_overdue_comes_first,
    a_write_changes_when_a_document_is_due,
    a_window_has_the_events_after_a_point,
    a_count_that_changed_is_a_conflict,
    only_one_of_two_counts_that_race_is_taken,
    a_key_is_begun_and_then_settled,
    a_key_is_settled_at_once,
    a_key_that_was_used_is_taken,
    only_a_begun_key_is_completed_and_only_once,
    only_the_same_request_completes_a_key,
    the_same_key_under_another_scope_is_another_key,
    an_expired_key_counts_as_unused,
    a_taken_key_wins_over_a_conflict,
    a_response_is_kept_byte_by_byte,
    entries_take_their_places_and_verify,
    a_chain_is_read_from_a_number_on,
    an_entry_that_cannot_be_signed_refuses_the_unit,
    sixty_four_committers_of_one_chain_get_a_place_each,
    one_of_sixty_four_takes_a_key,
    one_of_sixty_four_opens_the_negotiation,
    a_reader_sees_what_was_answered,
    the_sweep_forgets_what_has_expired,
    the_sweep_takes_any_number_of_turns,
    a_store_that_works_is_healthy,
}

async fn documents_are_loaded_in_the_order_of_their_keys(store: Shared) {
    let unit = Unit {
        put: vec![put("a", 0), put("b", 0)],
        ..Unit::default()
    };
    commit(&store, unit).await.expect("committed");

    let keys = vec![offer("b"), offer("none"), offer("a"), offer("b")];
    let docs = store.load(keys).await.expect("loaded");
    let ids: Vec<_> = docs
        .iter()
        .map(|doc| doc.as_ref().map(|doc| doc.key.id.as_str()))
        .collect();
    assert_eq!(ids, [Some("b"), None, Some("a"), Some("b")]);

    let other_kind = store.load(vec![Key::new(Kind::Deal, "a")]).await;
    assert_eq!(other_kind, Ok(vec![None]));
}

async fn each_write_counts_the_version_up(store: Shared) {
    for version in 0..3 {
        let body = Bytes::from(format!("body {version}"));
        let put = Put {
            body: body.clone(),
            ..put("a", version)
        };
        commit(&store, only(put)).await.expect("committed");

        let doc = doc(&store, "a").await.expect("a document");
        assert_eq!((doc.version, doc.body), (version + 1, body));
    }
}

async fn a_write_needs_the_version_that_it_names(store: Shared) {
    commit(&store, only(put("a", 0))).await.expect("new");
    commit(&store, only(put("a", 1))).await.expect("again");

    for wrong in [1, 3, Version::MAX] {
        let refused = commit(&store, only(put("a", wrong))).await;
        assert_eq!(refused, Err(CommitError::Conflict), "version {wrong}");
    }
    let refused = commit(&store, only(put("none", 1))).await;
    assert_eq!(refused, Err(CommitError::Conflict));
    assert_eq!(version(&store, "a").await, 2);
    assert_eq!(version(&store, "none").await, 0);
}

async fn what_must_be_new_must_not_exist(store: Shared) {
    commit(&store, only(put("a", 0))).await.expect("new");
    let refused = commit(&store, only(put("a", 0))).await;
    assert_eq!(refused, Err(CommitError::Conflict));
}

async fn what_was_read_must_not_have_changed(store: Shared) {
    commit(&store, only(put("a", 0))).await.expect("new");
    let read = |version, id| Unit {
        read: vec![(offer("a"), version)],
        put: vec![put(id, 0)],
        ..Unit::default()
    };
    commit(&store, read(1, "b")).await.expect("unchanged");
    for wrong in [0, 2, Version::MAX] {
        let refused = commit(&store, read(wrong, "c")).await;
        assert_eq!(refused, Err(CommitError::Conflict), "version {wrong}");
    }
    assert_eq!(version(&store, "c").await, 0);
}

async fn what_was_absent_must_still_be_absent(store: Shared) {
    let read = || Unit {
        read: vec![(offer("a"), 0)],
        ..Unit::default()
    };
    commit(&store, read()).await.expect("absent");
    commit(&store, only(put("a", 0))).await.expect("new");
    assert_eq!(commit(&store, read()).await, Err(CommitError::Conflict));
}

async fn conditions_are_about_the_state_before_the_unit(store: Shared) {
    let unit = |seen: Version, counted| Unit {
        read: vec![(offer("a"), seen)],
        put: vec![put("a", seen)],
        windows: vec![check("w", 0, counted)],
        counts: vec![count("w", 10)],
        ..Unit::default()
    };
    commit(&store, unit(0, 0)).await.expect("first");
    commit(&store, unit(1, 1)).await.expect("second");
}

async fn a_unit_that_fails_leaves_nothing(store: Shared) {
    commit(&store, only(put("there", 0))).await.expect("new");
    let whole = || Unit {
        put: vec![put("a", 0), put("b", 0)],
        counts: vec![count("w", 10)],
        entries: vec![entry("n")],
        claim: Some(claim("key", ClaimStep::Settle(response("ok")))),
        ..Unit::default()
    };
    let mut failing = [whole(), whole(), whole(), whole()];
    failing[0].read.push((offer("there"), 0));
    failing[1].put.push(put("there", 0));
    failing[2].put.push(put("there", 7));
    failing[3].windows.push(check("w", 0, 1));
    for unit in failing {
        assert_eq!(commit(&store, unit).await, Err(CommitError::Conflict));
    }
    let refused = store.commit(whole(), Arc::new(NoKey)).await;
    assert!(matches!(refused, Err(CommitError::Store(_))));

    assert_eq!(version(&store, "a").await, 0);
    assert_eq!(version(&store, "b").await, 0);
    assert_eq!(window(&store, "w", 0).await, [0; 0]);
    assert_eq!(chain(&store, "n").await, []);
    assert_eq!(used(&store, "key", 0).await, None);
    commit(&store, whole()).await.expect("nothing in its way");
}

async fn a_unit_may_not_write_a_document_twice(store: Shared) {
    for second in [0, 1] {
        let unit = Unit {
            put: vec![put("a", 0), put("a", second)],
            ..Unit::default()
        };
        let refused = commit(&store, unit).await;
        assert!(matches!(refused, Err(CommitError::Store(_))), "{refused:?}");
    }
    assert_eq!(version(&store, "a").await, 0);
}

async fn a_removed_document_is_gone_and_its_key_is_new(store: Shared) {
    let under = |id: &str| Put {
        parent: Some("p".into()),
        due: Some(Timestamp::from_secs(5)),
        ..put(id, 0)
    };
    let unit = Unit {
        put: vec![under("a"), under("b")],
        ..Unit::default()
    };
    commit(&store, unit).await.expect("committed");
    commit(&store, removing("a", 1)).await.expect("removed");

    assert_eq!(version(&store, "a").await, 0);
    let left = store.list(Kind::Offer, "p".into(), None, 9).await;
    let due = store.due(Timestamp::from_secs(9), 9).await;
    for docs in [left, due] {
        let ids: Vec<_> = docs.expect("read").into_iter().map(|d| d.key.id).collect();
        assert_eq!(ids, ["b"]);
    }

    commit(&store, only(put("a", 0))).await.expect("new again");
    assert_eq!(version(&store, "a").await, 1);
    let left = store.list(Kind::Offer, "p".into(), None, 9).await;
    assert_eq!(left.expect("read").len(), 1, "its former parent is gone");
}

async fn a_removal_needs_the_version_that_it_names(store: Shared) {
    commit(&store, only(put("a", 0))).await.expect("new");
    commit(&store, only(put("a", 1))).await.expect("again");
    for (id, wrong) in [("a", 0), ("a", 1), ("a", 3), ("none", 0), ("none", 1)] {
        let unit = Unit {
            put: vec![put("beside", 0)],
            ..removing(id, wrong)
        };
        let refused = commit(&store, unit).await;
        assert_eq!(refused, Err(CommitError::Conflict), "{id}, version {wrong}");
    }
    assert_eq!(version(&store, "a").await, 2);
    assert_eq!(version(&store, "beside").await, 0);

    for twice in [
        Unit {
            put: vec![put("a", 2)],
            ..removing("a", 2)
        },
        Unit {
            delete: vec![(offer("a"), 2), (offer("a"), 2)],
            ..Unit::default()
        },
    ] {
        let refused = commit(&store, twice).await;
        assert!(matches!(refused, Err(CommitError::Store(_))), "{refused:?}");
    }
}

fn removing(id: &str, version: Version) -> Unit {
    Unit {
        delete: vec![(offer(id), version)],
        ..Unit::default()
    }
}

async fn an_empty_unit_is_committed(store: Shared) {
    let done = commit(&store, Unit::default()).await;
    assert_eq!(done, Ok(Committed::default()));
}

async fn documents_are_listed_by_id_under_their_first_parent(store: Shared) {
    for id in ["c", "a", "b"] {
        commit(&store, only(child(id, Some("l1"), 0)))
            .await
            .expect("new");
    }
    commit(&store, only(child("d", Some("l2"), 0)))
        .await
        .expect("new");
    commit(&store, only(child("e", None, 0)))
        .await
        .expect("new");
    let deal = Put {
        key: Key::new(Kind::Deal, "f"),
        parent: Some("l1".into()),
        ..put("f", 0)
    };
    commit(&store, only(deal)).await.expect("new");
    // Neither another parent nor none takes it away.
    commit(&store, only(child("b", Some("l2"), 1)))
        .await
        .expect("again");
    commit(&store, only(child("c", None, 1)))
        .await
        .expect("again");

    assert_eq!(listed(&store, "l1", None, 9).await, ["a", "b", "c"]);
    assert_eq!(listed(&store, "l2", None, 9).await, ["d"]);
    assert_eq!(listed(&store, "l3", None, 9).await, [""; 0]);
    let docs = store.list(Kind::Offer, "l1".into(), None, 9).await;
    let versions: Vec<_> = docs.expect("listed").iter().map(|d| d.version).collect();
    assert_eq!(versions, [1, 2, 2]);
}

async fn a_list_is_read_page_by_page(store: Shared) {
    for id in ["a", "b", "c", "d", "e"] {
        commit(&store, only(child(id, Some("l"), 0)))
            .await
            .expect("new");
    }
    assert_eq!(listed(&store, "l", None, 2).await, ["a", "b"]);
    assert_eq!(listed(&store, "l", Some("b"), 2).await, ["c", "d"]);
    assert_eq!(listed(&store, "l", Some("d"), 2).await, ["e"]);
    assert_eq!(listed(&store, "l", Some("e"), 2).await, [""; 0]);
    // The id itself need not be there any more, or ever.
    assert_eq!(listed(&store, "l", Some("bb"), 1).await, ["c"]);
    assert_eq!(listed(&store, "l", None, 0).await, [""; 0]);
    assert_eq!(listed(&store, "l", None, usize::MAX).await.len(), 5);
}

async fn names_are_compared_byte_by_byte(store: Shared) {
    let ids = ["", "\0", "A", "B", "a", "a\0", "a ", "a%", "ä", "€", "😀"];
    for id in ids.into_iter().rev() {
        commit(&store, only(child(id, Some("a'\"%_\0"), 0)))
            .await
            .expect("new");
    }
    assert_eq!(listed(&store, "a'\"%_\0", None, 99).await, ids);
    assert_eq!(listed(&store, "a'\"%_\0", Some(""), 1).await, ["\0"]);
    assert_eq!(listed(&store, "A'\"%_\0", None, 99).await, [""; 0]);
    for id in ids {
        assert_eq!(version(&store, id).await, 1, "{id:?}");
    }
}

async fn every_kind_is_kept_apart(store: Shared) {
    let of = |kind: Kind| Put {
        key: Key::new(kind, "a"),
        parent: Some("parent".into()),
        body: kind.as_str().into(),
        ..put("a", 0)
    };
    let unit = Unit {
        put: Kind::ALL.map(of).into(),
        ..Unit::default()
    };
    commit(&store, unit).await.expect("committed");

    for kind in Kind::ALL {
        let [loaded] = &store.load(vec![Key::new(kind, "a")]).await.expect("loaded")[..] else {
            panic!("one document");
        };
        let doc = loaded.as_ref().expect("a document");
        assert_eq!(
            (doc.key.kind, &doc.body[..]),
            (kind, kind.as_str().as_bytes())
        );
        let listed = store
            .list(kind, "parent".into(), None, 9)
            .await
            .expect("listed");
        assert_eq!(listed, std::slice::from_ref(doc), "{kind:?}");
    }
}

async fn the_longest_overdue_comes_first(store: Shared) {
    let due = |kind, id: &str, due: Option<i64>| Put {
        key: Key::new(kind, id),
        due: due.map(Timestamp::from_secs),
        ..put(id, 0)
    };
    let unit = Unit {
        put: vec![
            due(Kind::Offer, "a", Some(30)),
            due(Kind::Offer, "b", Some(10)),
            due(Kind::Offer, "d", Some(20)),
            due(Kind::Offer, "c", Some(20)),
            due(Kind::Approval, "z", Some(20)),
            due(Kind::Offer, "e", None),
            due(Kind::Offer, "before the epoch", Some(-5)),
        ],
        ..Unit::default()
    };
    commit(&store, unit).await.expect("committed");

    assert_eq!(
        due_at(&store, 20, 9).await,
        ["before the epoch", "b", "z", "c", "d"]
    );
    assert_eq!(due_at(&store, 19, 9).await, ["before the epoch", "b"]);
    assert_eq!(due_at(&store, 30, 2).await, ["before the epoch", "b"]);
    assert_eq!(due_at(&store, i64::MAX, 9).await.len(), 6);
    assert_eq!(due_at(&store, -6, 9).await, [""; 0]);
}

async fn a_write_changes_when_a_document_is_due(store: Shared) {
    for (version, due, early, late) in [
        (0, Some(10), true, true),
        (1, Some(20), false, true),
        (2, Some(20), false, true),
        (3, None, false, false),
        (4, Some(10), true, true),
    ] {
        let put = Put {
            due: due.map(Timestamp::from_secs),
            ..put("a", version)
        };
        commit(&store, only(put)).await.expect("committed");
        assert_eq!(due_at(&store, 10, 9).await.len(), usize::from(early));
        assert_eq!(due_at(&store, 20, 9).await.len(), usize::from(late));
    }
}

async fn a_window_has_the_events_after_a_point(store: Shared) {
    for (window, at) in [("w", 30), ("w", 10), ("v", 20), ("w", 20), ("w", 20)] {
        let unit = Unit {
            counts: vec![count(window, at)],
            ..Unit::default()
        };
        commit(&store, unit).await.expect("committed");
    }
    assert_eq!(window(&store, "w", 9).await, [10, 20, 20, 30]);
    assert_eq!(window(&store, "w", 10).await, [20, 20, 30]);
    assert_eq!(window(&store, "w", 30).await, [0; 0]);

    let names = ["none", "v", "w", "v"].map(str::to_owned).to_vec();
    let windows = store.windows(names, Timestamp::from_secs(0)).await;
    let lengths: Vec<_> = windows.expect("counted").iter().map(Vec::len).collect();
    assert_eq!(lengths, [0, 1, 4, 1]);
}

async fn a_count_that_changed_is_a_conflict(store: Shared) {
    let checked = |since, expected| Unit {
        windows: vec![check("w", since, expected)],
        ..Unit::default()
    };
    commit(&store, checked(0, 0)).await.expect("none yet");
    let unit = Unit {
        counts: vec![count("w", 10), count("w", 20), count("v", 20)],
        ..Unit::default()
    };
    commit(&store, unit).await.expect("committed");

    // An event at the boundary is out of the window.
    for (since, counted) in [(9, 2), (10, 1), (19, 1), (20, 0)] {
        commit(&store, checked(since, counted))
            .await
            .unwrap_or_else(|error| panic!("since {since}: {error}"));
        for wrong in [counted + 1, counted.wrapping_sub(1)] {
            let refused = commit(&store, checked(since, wrong)).await;
            assert_eq!(refused, Err(CommitError::Conflict), "since {since}");
        }
    }
}

async fn only_one_of_two_counts_that_race_is_taken(store: Shared) {
    let probe = Unit {
        windows: vec![check("w", 0, 0)],
        counts: vec![count("w", 10)],
        ..Unit::default()
    };
    let done = at_once(&store, (0..8).map(|_| probe.clone())).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
    assert!(
        done.iter()
            .all(|done| matches!(done, Ok(_) | Err(CommitError::Conflict)))
    );
}

async fn a_key_is_begun_and_then_settled(store: Shared) {
    claimed(&store, claim("k", ClaimStep::Begin))
        .await
        .expect("begun");
    let begun = Used {
        digest: digest("k"),
        response: None,
    };
    assert_eq!(used(&store, "k", 0).await, Some(begun));

    let complete = Claim {
        expires: Timestamp::from_secs(99_999),
        ..claim("k", ClaimStep::Complete(response("done")))
    };
    claimed(&store, complete).await.expect("settled");
    let settled = Used {
        digest: digest("k"),
        response: Some(response("done")),
    };
    assert_eq!(used(&store, "k", EXPIRES - 1).await, Some(settled));
    // 48 hours count from the first use.
    assert_eq!(used(&store, "k", EXPIRES).await, None);
}

async fn a_key_is_settled_at_once(store: Shared) {
    claimed(&store, claim("k", ClaimStep::Settle(response("done"))))
        .await
        .expect("settled");
    let settled = Used {
        digest: digest("k"),
        response: Some(response("done")),
    };
    assert_eq!(used(&store, "k", 0).await, Some(settled));
    assert_eq!(used(&store, "other", 0).await, None);
}

async fn a_key_that_was_used_is_taken(store: Shared) {
    let begin = || claim("begun", ClaimStep::Begin);
    let settle = || claim("settled", ClaimStep::Settle(response("first")));
    claimed(&store, begin()).await.expect("begun");
    claimed(&store, settle()).await.expect("settled");
    let before = (
        used(&store, "begun", 0).await,
        used(&store, "settled", 0).await,
    );

    for key in ["begun", "settled"] {
        for step in [ClaimStep::Begin, ClaimStep::Settle(response("second"))] {
            let refused = claimed(&store, claim(key, step)).await;
            assert_eq!(refused, Err(CommitError::KeyTaken), "{key}");
        }
    }
    let after = (
        used(&store, "begun", 0).await,
        used(&store, "settled", 0).await,
    );
    assert_eq!(after, before);
}

async fn only_a_begun_key_is_completed_and_only_once(store: Shared) {
    let complete = |body| claim("k", ClaimStep::Complete(response(body)));
    let refused = claimed(&store, complete("too early")).await;
    assert_eq!(refused, Err(CommitError::KeyTaken));

    claimed(&store, claim("k", ClaimStep::Begin))
        .await
        .expect("begun");
    claimed(&store, complete("first")).await.expect("settled");
    let refused = claimed(&store, complete("second")).await;
    assert_eq!(refused, Err(CommitError::KeyTaken));
    let kept = used(&store, "k", 0).await.and_then(|used| used.response);
    assert_eq!(kept, Some(response("first")));
}

async fn only_the_same_request_completes_a_key(store: Shared) {
    claimed(&store, claim("k", ClaimStep::Begin))
        .await
        .expect("begun");
    let other = Claim {
        digest: digest("another request"),
        ..claim("k", ClaimStep::Complete(response("stolen")))
    };
    let refused = claimed(&store, other).await;
    assert_eq!(refused, Err(CommitError::KeyTaken));
    let kept = used(&store, "k", 0).await.and_then(|used| used.response);
    assert_eq!(kept, None);
}

async fn the_same_key_under_another_scope_is_another_key(store: Shared) {
    claimed(&store, claim("k", ClaimStep::Begin))
        .await
        .expect("begun");
    let mut elsewhere = claim("k", ClaimStep::Settle(response("mine")));
    elsewhere.key.scope = "https://other.example/.well-known/ucp".into();
    claimed(&store, elsewhere.clone()).await.expect("settled");

    let theirs = store.used(elsewhere.key, Timestamp::from_secs(0)).await;
    let theirs = theirs.expect("looked up").and_then(|used| used.response);
    assert_eq!(theirs, Some(response("mine")));
    let ours = used(&store, "k", 0).await.and_then(|used| used.response);
    assert_eq!(ours, None);
}

async fn an_expired_key_counts_as_unused(store: Shared) {
    let at = |at: i64, step| Claim {
        at: Timestamp::from_secs(at),
        expires: Timestamp::from_secs(at + 100),
        digest: digest(&at.to_string()),
        ..claim("k", step)
    };
    claimed(&store, at(0, ClaimStep::Begin))
        .await
        .expect("begun");
    assert!(used(&store, "k", 99).await.is_some());
    assert_eq!(used(&store, "k", 100).await, None);
    let too_early = claimed(&store, at(99, ClaimStep::Begin)).await;
    assert_eq!(too_early, Err(CommitError::KeyTaken));
    let mut late = at(0, ClaimStep::Complete(response("late")));
    late.at = Timestamp::from_secs(100);
    let too_late = claimed(&store, late).await;
    assert_eq!(too_late, Err(CommitError::KeyTaken));

    claimed(&store, at(100, ClaimStep::Settle(response("new"))))
        .await
        .expect("used anew");
    let renewed = Used {
        digest: digest("100"),
        response: Some(response("new")),
    };
    assert_eq!(used(&store, "k", 199).await, Some(renewed));
    // The first use's end is not the second's.
    assert_eq!(sweep(&store, 199).await, 0);
    assert!(used(&store, "k", 199).await.is_some());

    // A use that never finished does not live on in the next.
    claimed(&store, at(200, ClaimStep::Begin))
        .await
        .expect("used anew");
    let begun = used(&store, "k", 200).await.expect("begun");
    assert_eq!(begun.response, None);
}

async fn a_taken_key_wins_over_a_conflict(store: Shared) {
    let unit = || Unit {
        claim: Some(claim("k", ClaimStep::Begin)),
        put: vec![put("a", 0)],
        windows: vec![check("w", 0, 0)],
        counts: vec![count("w", 10)],
        ..Unit::default()
    };
    commit(&store, unit()).await.expect("first");
    assert_eq!(commit(&store, unit()).await, Err(CommitError::KeyTaken));
}

async fn a_response_is_kept_byte_by_byte(store: Shared) {
    let bytes: Vec<u8> = (0..=255).collect();
    let whole = StoredResponse {
        status: StatusCode::from_u16(599).expect("a status"),
        headers: vec![
            ("x-bytes".into(), bytes.clone()),
            ("x-twice".into(), b"1".to_vec()),
            ("x-twice".into(), Vec::new()),
        ],
        body: bytes.into(),
    };
    let empty = StoredResponse {
        status: StatusCode::NO_CONTENT,
        headers: Vec::new(),
        body: Bytes::new(),
    };
    for (key, response) in [("whole", whole), ("empty", empty)] {
        claimed(&store, claim(key, ClaimStep::Settle(response.clone())))
            .await
            .expect("settled");
        let kept = used(&store, key, 0).await.and_then(|used| used.response);
        assert_eq!(kept, Some(response));
    }
}

async fn entries_take_their_places_and_verify(store: Shared) {
    let unit = |subjects: &[&str]| Unit {
        entries: subjects.iter().map(|subject| entry(subject)).collect(),
        ..Unit::default()
    };
    let first = commit(&store, unit(&["n", "m", "n"])).await;
    let second = commit(&store, unit(&["m", "n"])).await;
    let places: Vec<_> = [first, second]
        .into_iter()
        .flat_map(|done| done.expect("committed").entries)
        .map(|sealed| (sealed.subject.id, sealed.seq))
        .collect();
    let place = |id: &str, seq| (id.to_owned(), seq);
    let expected = [("n", 0), ("m", 0), ("n", 1), ("m", 1), ("n", 2)];
    assert_eq!(places, expected.map(|(id, seq)| place(id, seq)));

    for (id, length) in [("n", 3), ("m", 2)] {
        let chain = chain(&store, id).await;
        assert_eq!(chain.len(), length);
        assert_verifies(&chain, &KEY);
    }
    // Another kind with the same id has a chain of its own.
    let deal = Subject::new(SubjectKind::Deal, "n");
    assert_eq!(store.chain(deal, 0, 9).await, Ok(Vec::new()));
}

async fn a_chain_is_read_from_a_number_on(store: Shared) {
    let unit = Unit {
        entries: (0..5).map(|_| entry("n")).collect(),
        ..Unit::default()
    };
    let sealed = commit(&store, unit).await.expect("committed").entries;
    let subject = || Subject::new(SubjectKind::Negotiation, "n");
    for (from, limit, expected) in [
        (0, 9, &sealed[..]),
        (0, 2, &sealed[..2]),
        (3, 9, &sealed[3..]),
        (2, 1, &sealed[2..3]),
        (5, 9, &[]),
        (u64::MAX, 9, &[]),
        (0, 0, &[]),
    ] {
        let read = store.chain(subject(), from, limit).await;
        assert_eq!(read.as_deref(), Ok(expected), "from {from}");
    }
    let end = store.head(subject()).await;
    assert_eq!(end.as_ref().map(Option::as_ref), Ok(sealed.last()));
    let other = Subject::new(SubjectKind::Negotiation, "another");
    assert_eq!(store.head(other).await, Ok(None));
}

async fn an_entry_that_cannot_be_signed_refuses_the_unit(store: Shared) {
    let unit = Unit {
        put: vec![put("a", 0)],
        entries: vec![entry("n")],
        ..Unit::default()
    };
    let refused = store.commit(unit, Arc::new(NoKey)).await;
    let Err(CommitError::Store(StoreError(why))) = refused else {
        panic!("not refused: {refused:?}");
    };
    assert!(why.contains("no key here"), "{why}");
    assert_eq!(version(&store, "a").await, 0);
    assert_eq!(store.health().await, Ok(()));
}

async fn sixty_four_committers_of_one_chain_get_a_place_each(store: Shared) {
    let units = (0..64).map(|index| Unit {
        put: vec![put(&index.to_string(), 0)],
        entries: vec![entry("n"), entry("n")],
        ..Unit::default()
    });
    let done = at_once(&store, units).await;
    let mut places = Vec::new();
    for done in done {
        let entries = done.expect("committed").entries;
        assert_eq!(entries[0].seq + 1, entries[1].seq, "a unit's stay together");
        places.extend(entries);
    }
    places.sort_by_key(|sealed| sealed.seq);
    let chain = chain(&store, "n").await;
    assert_eq!(chain, places);
    assert_eq!(chain.len(), 128);
    assert_verifies(&chain, &KEY);
}

async fn one_of_sixty_four_takes_a_key(store: Shared) {
    let units = (0..64).map(|index| Unit {
        put: vec![put(&index.to_string(), 0)],
        claim: Some(claim("k", ClaimStep::Settle(response(&index.to_string())))),
        ..Unit::default()
    });
    let done = at_once(&store, units).await;
    let winner = done.iter().position(Result::is_ok).expect("a winner");
    for (index, done) in done.iter().enumerate() {
        let won = index == winner;
        assert!(won || *done == Err(CommitError::KeyTaken));
        let version = version(&store, &index.to_string()).await;
        assert_eq!(version, u64::from(won));
    }
    let kept = used(&store, "k", 0).await.and_then(|used| used.response);
    assert_eq!(kept, Some(response(&winner.to_string())));
}

async fn one_of_sixty_four_opens_the_negotiation(store: Shared) {
    let open = Put {
        key: Key::new(Kind::Negotiation, "listing|key:agent"),
        ..put("", 0)
    };
    let done = at_once(&store, (0..64).map(|_| only(open.clone()))).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
    let conflicts = done
        .iter()
        .filter(|done| **done == Err(CommitError::Conflict));
    assert_eq!(conflicts.count(), 63);
}

async fn a_reader_sees_what_was_answered(store: Shared) {
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..8 {
                    let id = format!("{task}-{round}");
                    let unit = Unit {
                        put: vec![put(&id, 0)],
                        counts: vec![count(&id, 10)],
                        entries: vec![entry(&id)],
                        claim: Some(claim(&id, ClaimStep::Begin)),
                        ..Unit::default()
                    };
                    commit(&store, unit).await.expect("committed");
                    assert_eq!(version(&store, &id).await, 1);
                    assert_eq!(window(&store, &id, 0).await, [10]);
                    assert_eq!(chain(&store, &id).await.len(), 1);
                    assert!(used(&store, &id, 0).await.is_some());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("every read saw its write");
    }
}

async fn the_sweep_forgets_what_has_expired(store: Shared) {
    let expiring = |key: &str, expires: i64| Unit {
        put: vec![put(key, 0)],
        counts: vec![Count {
            expires: Timestamp::from_secs(expires),
            ..count("w", 10)
        }],
        claim: Some(Claim {
            expires: Timestamp::from_secs(expires),
            ..claim(key, ClaimStep::Begin)
        }),
        entries: vec![entry("n")],
        ..Unit::default()
    };
    for (key, expires) in [("a", 100), ("b", 200), ("c", 200)] {
        commit(&store, expiring(key, expires)).await.expect(key);
    }
    assert_eq!(sweep(&store, 99).await, 0);
    assert_eq!(sweep(&store, 100).await, 2);
    assert_eq!(used(&store, "a", 0).await, None);
    assert!(used(&store, "b", 0).await.is_some());
    assert_eq!(window(&store, "w", 0).await, [10, 10]);
    assert_eq!(sweep(&store, 1000).await, 4);
    assert_eq!(window(&store, "w", 0).await, [0; 0]);
    assert_eq!(sweep(&store, 1000).await, 0);

    // Documents and the record are for ever.
    assert_eq!(version(&store, "a").await, 1);
    assert_eq!(chain(&store, "n").await.len(), 3);
}

async fn the_sweep_takes_any_number_of_turns(store: Shared) {
    let count = |window: &str| Count {
        expires: Timestamp::from_secs(100),
        ..count(window, 10)
    };
    let unit = Unit {
        counts: (0..2500)
            .map(|index| count(&format!("w{}", index % 7)))
            .collect(),
        ..Unit::default()
    };
    commit(&store, unit).await.expect("committed");
    assert_eq!(sweep(&store, 100).await, 2500);
    assert_eq!(window(&store, "w3", 0).await, [0; 0]);
}

async fn a_store_that_works_is_healthy(store: Shared) {
    assert_eq!(store.health().await, Ok(()));
    assert_eq!(store.health().await, Ok(()));
}

/// Commits all units from tasks of their own, and returns what came of each, in their order.
async fn at_once(
    store: &Shared,
    units: impl IntoIterator<Item = Unit>,
) -> Vec<Result<Committed, CommitError>> {
    let tasks: Vec<_> = units
        .into_iter()
        .map(|unit| {
            let store = store.clone();
            tokio::spawn(async move { commit(&store, unit).await })
        })
        .collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.expect("no task panics"));
    }
    done
}

async fn commit(store: &Shared, unit: Unit) -> Result<Committed, CommitError> {
    static SEAL: LazyLock<Arc<SigningKey>> = LazyLock::new(|| Arc::new(KEY.clone()));
    store.commit(unit, SEAL.clone()).await
}

async fn claimed(store: &Shared, claim: Claim) -> Result<Committed, CommitError> {
    let unit = Unit {
        claim: Some(claim),
        ..Unit::default()
    };
    commit(store, unit).await
}

async fn doc(store: &Shared, id: &str) -> Option<Doc> {
    let docs = store.load(vec![offer(id)]).await;
    docs.expect("loaded").swap_remove(0)
}

async fn version(store: &Shared, id: &str) -> Version {
    doc(store, id).await.map_or(0, |doc| doc.version)
}

async fn listed(store: &Shared, parent: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let after = after.map(str::to_owned);
    let docs = store.list(Kind::Offer, parent.into(), after, limit).await;
    ids(docs.expect("listed"))
}

async fn due_at(store: &Shared, now: i64, limit: usize) -> Vec<String> {
    let docs = store.due(Timestamp::from_secs(now), limit).await;
    ids(docs.expect("listed"))
}

fn ids(docs: Vec<Doc>) -> Vec<String> {
    docs.into_iter().map(|doc| doc.key.id).collect()
}

async fn window(store: &Shared, name: &str, since: i64) -> Vec<i64> {
    let since = Timestamp::from_secs(since);
    let windows = store.windows(vec![name.into()], since).await;
    let times = windows.expect("counted").swap_remove(0);
    times.into_iter().map(Timestamp::secs).collect()
}

async fn used(store: &Shared, key: &str, now: i64) -> Option<Used> {
    let now = Timestamp::from_secs(now);
    store.used(idempotency(key), now).await.expect("looked up")
}

async fn chain(store: &Shared, id: &str) -> Vec<Sealed> {
    let subject = Subject::new(SubjectKind::Negotiation, id);
    store.chain(subject, 0, usize::MAX).await.expect("read")
}

async fn sweep(store: &Shared, now: i64) -> usize {
    store.sweep(Timestamp::from_secs(now)).await.expect("swept")
}

fn offer(id: &str) -> Key {
    Key::new(Kind::Offer, id)
}

/// A write of an offer, due never and under no parent.
fn put(id: &str, expected: Version) -> Put {
    Put {
        key: offer(id),
        expected,
        parent: None,
        due: None,
        body: Bytes::from_static(b"an offer"),
    }
}

fn child(id: &str, parent: Option<&str>, expected: Version) -> Put {
    Put {
        parent: parent.map(str::to_owned),
        ..put(id, expected)
    }
}

fn only(put: Put) -> Unit {
    Unit {
        put: vec![put],
        ..Unit::default()
    }
}

fn count(window: &str, at: i64) -> Count {
    Count {
        window: window.into(),
        at: Timestamp::from_secs(at),
        expires: Timestamp::from_secs(EXPIRES),
    }
}

fn check(window: &str, since: i64, expected: usize) -> WindowCheck {
    WindowCheck {
        window: window.into(),
        since: Timestamp::from_secs(since),
        expected,
    }
}

const EXPIRES: i64 = 48 * 60 * 60;

/// What a request at 0 does with a key; its digest is the key's, so that the same key is the same request.
fn claim(key: &str, step: ClaimStep) -> Claim {
    Claim {
        key: idempotency(key),
        digest: digest(key),
        step,
        at: Timestamp::from_secs(0),
        expires: Timestamp::from_secs(EXPIRES),
    }
}

fn idempotency(key: &str) -> IdempotencyKey {
    IdempotencyKey {
        scope: OPERATOR.into(),
        key: key.into(),
    }
}

const OPERATOR: &str = "https://agent.example/.well-known/ucp";

fn digest(of: &str) -> Sha256 {
    sha256(of.as_bytes())
}

fn response(body: &str) -> StoredResponse {
    StoredResponse {
        status: StatusCode::CREATED,
        headers: vec![("content-type".into(), b"application/json".to_vec())],
        body: Bytes::from(body.to_owned()),
    }
}

/// An entry of the chain of a negotiation.
fn entry(negotiation: &str) -> Entry {
    let caller = Caller::client(Mechanism::Oauth, OPERATOR, "client");
    Entry::new(
        Subject::new(SubjectKind::Negotiation, negotiation),
        Timestamp::from_secs(1_800_000_000),
        Op::CreateOffer,
        Decision::Auto,
        &caller,
    )
}

static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::generate().expect("a key"));

/// Checks a whole chain as a stranger would, with nothing but the published entries and the gateway's key.
fn assert_verifies(chain: &[Sealed], key: &SigningKey) {
    let keys = Keys::parse(&json!([key.public_jwk()]), crypto::default_provider());
    let entries: Vec<Value> = chain
        .iter()
        .map(|sealed| serde_json::from_slice(&sealed.published).expect("JSON"))
        .collect();
    let last = verify_chain(&entries, &keys.expect("a key set"));
    assert_eq!(
        last.as_ref().ok(),
        chain.last().map(|last| &last.hash),
        "{last:?}"
    );
}

/// Cannot sign.
struct NoKey;

impl Seal for NoKey {
    fn seal(&self, _: &Entry, _: u64, _: &str) -> Result<Sealed, SealError> {
        Err(SealError("no key here".into()))
    }
}
