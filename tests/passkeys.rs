//! Passkeys: what a browser does, and what a forger would like to do (binding 7, R24).
#![allow(clippy::unwrap_used)]

#[path = "common/authenticator.rs"]
mod authenticator;

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use authenticator::{
    BACKED_UP, BACKUP_ELIGIBLE, Browser, EXTENSIONS, Forger, Said, USER_PRESENT, USER_VERIFIED,
};
use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};
use tower_rctp::{
    layer::context::Clock,
    protocol::{
        record::{Entry, Seal, SealError, Sealed},
        time::Timestamp,
    },
    service::{
        enrolment,
        passkeys::{PasskeyError, Passkeys, PasskeysError},
    },
    store::{
        BoxFuture, CommitError, Committed, Doc, IdempotencyKey, Key, Kind, MemoryStore, Put,
        SqliteStore, Store, StoreError, Unit, Used,
    },
    wire::{base64url, digest::sha256, from_base64url, jwk::SigningKey},
};

const NOW: i64 = 1_790_000_000;
const ORIGIN: &str = "https://gateway.example";
const RP_ID: &str = "gateway.example";
const ANNA: &str = "sub_anna@mail.example";
const BERTA: &str = "sub_berta@mail.example";

struct Gateway {
    passkeys: Passkeys,
    store: Arc<dyn Store>,
    clock: Arc<AtomicI64>,
    key: SigningKey,
}

impl Gateway {
    fn new(store: Arc<dyn Store>) -> Self {
        let clock = Arc::new(AtomicI64::new(NOW));
        let key = SigningKey::generate().unwrap();
        Self {
            passkeys: passkeys(ORIGIN, &store, &clock, &key),
            store,
            clock,
            key,
        }
    }

    fn wait(&self, seconds: i64) {
        self.clock.fetch_add(seconds, Ordering::SeqCst);
    }

    async fn commit(&self, put: Vec<Put>) -> Result<Committed, CommitError> {
        let unit = Unit {
            put,
            ..Unit::default()
        };
        self.store.commit(unit, Arc::new(NoRecord)).await
    }

    /// Registers what the forger answers.
    async fn register(&self, seller: &str, forger: &Forger, change: impl FnOnce(&mut Said)) {
        let (options, state) = self.passkeys.registration_options(seller).await.unwrap();
        let challenge = options["challenge"].as_str().unwrap();
        let mut said = forger.honest("webauthn.create", ORIGIN, challenge);
        change(&mut said);
        let answer = forger.create(&said);
        let puts = self.passkeys.register(seller, &state, &answer).await;
        self.commit(puts.unwrap()).await.unwrap();
    }

    async fn approve(&self, forger: &Forger, said: &Said) -> Result<Vec<Put>, PasskeyError> {
        let answer = forger.get(said);
        self.passkeys.verify(ANNA, &challenge(), &answer).await
    }

    async fn stored(&self, forger: &Forger) -> Value {
        let key = Key::new(Kind::Passkey, base64url(&forger.id));
        let doc = self.store.load(vec![key]).await.unwrap().pop().flatten();
        serde_json::from_slice(&doc.unwrap().body).unwrap()
    }
}

fn passkeys(
    url: &str,
    store: &Arc<dyn Store>,
    clock: &Arc<AtomicI64>,
    key: &SigningKey,
) -> Passkeys {
    Passkeys::new(url, "The Market", store.clone(), moved_by(clock), key).unwrap()
}

fn moved_by(clock: &Arc<AtomicI64>) -> Arc<dyn Clock> {
    let clock = clock.clone();
    Arc::new(move || Timestamp::from_secs(clock.load(Ordering::SeqCst)))
}

/// What is approved, hashed.
fn challenge() -> String {
    base64url(&sha256(b"sell the bicycle"))
}

fn handle_of(options: &Value) -> Vec<u8> {
    from_base64url(options["user"]["id"].as_str().unwrap()).unwrap()
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(found: Result<T, PasskeyError>, what: &str) {
    match found {
        Err(PasskeyError::Refused(_)) => {}
        other => panic!("{what}: {other:?}"),
    }
}

#[track_caller]
fn assert_because<T: std::fmt::Debug>(found: Result<T, PasskeyError>, why: &str, what: &str) {
    match found {
        Err(PasskeyError::Refused(reason)) if reason == why => {}
        other => panic!("{what}: {other:?}, not {why}"),
    }
}

struct NoRecord;

impl Seal for NoRecord {
    fn seal(&self, _: &Entry, _: u64, _: &str) -> Result<Sealed, SealError> {
        Err(SealError("nothing is recorded here".into()))
    }
}

/// Makes a test of each function for every store.
macro_rules! every_store {
    ($($test:ident,)*) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Gateway::new(std::sync::Arc::new(super::MemoryStore::default()))).await;
            })*
        }

        mod in_sqlite {
            $(#[tokio::test]
            async fn $test() {
                let folder = tempfile::tempdir().unwrap();
                let store = super::SqliteStore::open(folder.path().join("passkeys.db")).await;
                super::$test(super::Gateway::new(std::sync::Arc::new(store.unwrap()))).await;
            })*
        }
    };
}

every_store! {
    a_browser_registers_signs_in_and_approves,
    a_counter_is_remembered,
    the_options_ask_for_what_is_relied_on,
    nothing_says_who_the_seller_is,
    a_seller_has_several_passkeys_and_no_more_than_twenty,
    an_honest_answer_is_taken,
    an_rs256_passkey_approves,
    a_forged_approval_is_refused,
    a_mangled_approval_is_refused,
    only_the_sellers_own_passkey_approves,
    a_counter_that_does_not_grow_is_refused,
    one_of_two_assertions_with_a_counter_is_committed,
    what_is_backed_up_may_change_but_not_what_may_be,
    a_forged_registration_is_refused,
    a_mangled_registration_is_refused,
    a_registration_is_taken_once,
    a_passkey_is_registered_once,
    a_sign_in_is_taken_once,
    a_sign_in_must_say_whose_it_is,
    a_state_is_good_for_five_minutes,
    a_state_is_good_for_one_purpose_and_one_seller,
    a_ticket_is_used_once,
}

async fn a_browser_registers_signs_in_and_approves(gateway: Gateway) {
    let mut browser = Browser::at(ORIGIN, false);
    let passkeys = &gateway.passkeys;

    let (options, state) = passkeys.registration_options(ANNA).await.unwrap();
    let created = browser.create(&options).await.unwrap();
    let puts = passkeys.register(ANNA, &state, &created).await.unwrap();
    gateway.commit(puts).await.unwrap();

    let (options, state) = passkeys.sign_in_options().await.unwrap();
    let found = browser.get(&options).await.unwrap();
    let (seller, puts) = passkeys.sign_in(&state, &found).await.unwrap();
    assert_eq!(seller, ANNA);
    gateway.commit(puts).await.unwrap();

    let options = passkeys.approval_options(ANNA, &challenge()).await.unwrap();
    let allowed = json!([{
        "type": "public-key",
        "id": found["id"],
        "transports": ["hybrid", "internal"],
    }]);
    assert_eq!(options["allowCredentials"], allowed);
    let found = browser.get(&options).await.unwrap();
    let puts = passkeys.verify(ANNA, &challenge(), &found).await.unwrap();
    assert_eq!(
        puts,
        [],
        "nothing to remember of a passkey without a counter"
    );

    let other = base64url(&sha256(b"sell the bicycle for less"));
    let refused = passkeys.verify(ANNA, &other, &found).await;
    assert_refused(refused, "what was not approved");
    // A browser that is led to another site does not even answer.
    let mut elsewhere = Browser::at("https://gateway.evil.example", false);
    assert!(elsewhere.get(&options).await.is_err());
}

async fn a_counter_is_remembered(gateway: Gateway) {
    let mut browser = Browser::at(ORIGIN, true);
    let passkeys = &gateway.passkeys;
    let (options, state) = passkeys.registration_options(ANNA).await.unwrap();
    let created = browser.create(&options).await.unwrap();
    let puts = passkeys.register(ANNA, &state, &created).await.unwrap();
    gateway.commit(puts).await.unwrap();

    let options = passkeys.approval_options(ANNA, &challenge()).await.unwrap();
    for _ in 0..3 {
        let found = browser.get(&options).await.unwrap();
        let puts = passkeys.verify(ANNA, &challenge(), &found).await.unwrap();
        assert_eq!(puts.len(), 1);
        gateway.commit(puts).await.unwrap();
        let again = passkeys.verify(ANNA, &challenge(), &found).await;
        assert_refused(again, "the same answer again");
    }
}

async fn the_options_ask_for_what_is_relied_on(gateway: Gateway) {
    let passkeys = &gateway.passkeys;
    let (options, _) = passkeys.registration_options(ANNA).await.unwrap();
    let id = base64url(&handle_of(&options));
    let name = format!("The Market {}", &id[..4]);
    let expected = json!({
        "rp": { "name": "The Market", "id": RP_ID },
        "user": { "id": id, "name": name, "displayName": name },
        "challenge": options["challenge"],
        "pubKeyCredParams": [
            { "type": "public-key", "alg": -7 },
            { "type": "public-key", "alg": -257 },
        ],
        "timeout": 300_000,
        "excludeCredentials": [],
        "authenticatorSelection": {
            "residentKey": "required",
            "requireResidentKey": true,
            "userVerification": "required",
        },
        "attestation": "none",
    });
    assert_eq!(options, expected);

    gateway
        .register(ANNA, &Forger::new(b"one", RP_ID), |_| {})
        .await;
    let (options, _) = passkeys.registration_options(ANNA).await.unwrap();
    let excluded = json!([{ "type": "public-key", "id": base64url(b"one") }]);
    assert_eq!(options["excludeCredentials"], excluded);

    let (options, _) = passkeys.sign_in_options().await.unwrap();
    let expected = json!({
        "challenge": options["challenge"],
        "timeout": 300_000,
        "rpId": RP_ID,
        "allowCredentials": [],
        "userVerification": "required",
    });
    assert_eq!(options, expected);
    let challenge = from_base64url(options["challenge"].as_str().unwrap()).unwrap();
    assert_eq!(challenge.len(), 32);

    let berta = passkeys.approval_options(BERTA, &self::challenge()).await;
    assert_refused(berta, "a seller without a passkey");
}

async fn nothing_says_who_the_seller_is(gateway: Gateway) {
    let passkeys = &gateway.passkeys;
    let (anna, state) = passkeys.registration_options(ANNA).await.unwrap();
    let (again, _) = passkeys.registration_options(ANNA).await.unwrap();
    let (berta, _) = passkeys.registration_options(BERTA).await.unwrap();
    assert_eq!(handle_of(&anna), handle_of(&again));
    assert_ne!(handle_of(&anna), handle_of(&berta));
    assert_ne!(anna["challenge"], again["challenge"]);

    let readable = String::from_utf8_lossy(&from_base64url(&state).unwrap()).into_owned();
    for text in [anna.to_string(), state, readable] {
        assert!(!text.contains("anna"), "{text}");
    }
    // The same seller at another gateway has another handle.
    let elsewhere = self::passkeys(
        "https://other.example",
        &gateway.store,
        &gateway.clock,
        &gateway.key,
    );
    let (elsewhere, _) = elsewhere.registration_options(ANNA).await.unwrap();
    assert_ne!(handle_of(&anna), handle_of(&elsewhere));
}

async fn a_seller_has_several_passkeys_and_no_more_than_twenty(gateway: Gateway) {
    let forgers: Vec<_> = (0..20_u8).map(|n| Forger::new(&[n; 16], RP_ID)).collect();
    for forger in &forgers {
        gateway.register(ANNA, forger, |_| {}).await;
    }
    for forger in [&forgers[0], &forgers[19]] {
        let said = forger.honest("webauthn.get", ORIGIN, &challenge());
        gateway.approve(forger, &said).await.unwrap();
    }
    let more = gateway.passkeys.registration_options(ANNA).await;
    assert_refused(more, "the twenty-first");
    assert!(gateway.passkeys.registration_options(BERTA).await.is_ok());
}

/// A change to what a forger says.
type Change = fn(&mut Said);

const OTHER_CHALLENGE: &str = "the passkey signed another challenge";
const OTHER_ORIGIN: &str = "the passkey was used on another site";
const OTHER_QUESTION: &str = "the answer is to another question";
const OTHER_SITE: &str = "the passkey belongs to another site";
const IN_A_FRAME: &str = "the passkey was used inside a page of another site";
const NOBODY_THERE: &str = "nobody touched the passkey";
const NOT_VERIFIED: &str = "the passkey did not verify its user";
const NOT_READABLE: &str = "the client data is not readable";
const NOT_VALID: &str = "the passkey's answer is not valid";
const ALGORITHM: &str =
    "the passkey's algorithm is none that was asked for, or it is registered already";
const BAD_SIGNATURE: &str = "the signature does not verify";
const NOT_KNOWN: &str = "this passkey is not known here";

/// What is wrong in any answer, and why it is refused.
const FORGED: [(&str, &str, Change); 26] = [
    ("another challenge", OTHER_CHALLENGE, |said| {
        said.challenge = base64url(&[7; 32]).into();
    }),
    ("the challenge with padding", OTHER_CHALLENGE, |said| {
        said.challenge = format!("{}=", said.challenge.as_str().unwrap()).into();
    }),
    ("the challenge and more", OTHER_CHALLENGE, |said| {
        said.challenge = format!("{}AAAA", said.challenge.as_str().unwrap()).into();
    }),
    ("no challenge", OTHER_CHALLENGE, |said| {
        said.challenge = "".into()
    }),
    ("the challenge as bytes", NOT_READABLE, |said| {
        let bytes = from_base64url(said.challenge.as_str().unwrap());
        said.challenge = json!(bytes.unwrap());
    }),
    ("a subdomain", OTHER_ORIGIN, |said| {
        said.origin = "https://a.gateway.example".into()
    }),
    ("the domain above", OTHER_ORIGIN, |said| {
        said.origin = "https://example".into()
    }),
    ("a name that ends alike", OTHER_ORIGIN, |said| {
        said.origin = "https://evil-gateway.example".into();
    }),
    ("a name that begins alike", OTHER_ORIGIN, |said| {
        said.origin = "https://gateway.example.evil.example".into();
    }),
    ("another port", OTHER_ORIGIN, |said| {
        said.origin = "https://gateway.example:8443".into()
    }),
    ("http", OTHER_ORIGIN, |said| {
        said.origin = "http://gateway.example".into()
    }),
    ("an origin with a path", OTHER_ORIGIN, |said| {
        said.origin = "https://gateway.example/".into();
    }),
    ("an origin with a user", OTHER_ORIGIN, |said| {
        said.origin = "https://evil@gateway.example".into();
    }),
    ("an origin in capitals", OTHER_ORIGIN, |said| {
        said.origin = "HTTPS://GATEWAY.EXAMPLE".into()
    }),
    ("no origin", OTHER_ORIGIN, |said| {
        said.origin = "null".into()
    }),
    ("an app", OTHER_ORIGIN, |said| {
        said.origin = "android:apk-key-hash:AAAA".into()
    }),
    ("a frame of another site", IN_A_FRAME, |said| {
        said.more.insert("crossOrigin".into(), json!(true));
    }),
    ("a page above of another site", IN_A_FRAME, |said| {
        said.more
            .insert("topOrigin".into(), "https://evil.example".into());
    }),
    ("a cross-origin that is a text", NOT_READABLE, |said| {
        said.more.insert("crossOrigin".into(), "false".into());
    }),
    ("another site's passkey", OTHER_SITE, |said| {
        said.rp_id = "evil.example".into()
    }),
    ("the passkey of the domain above", OTHER_SITE, |said| {
        said.rp_id = "example".into()
    }),
    ("nobody there", NOBODY_THERE, |said| {
        said.flags = USER_VERIFIED
    }),
    ("nobody verified", NOT_VERIFIED, |said| {
        said.flags = USER_PRESENT
    }),
    ("no flags", NOBODY_THERE, |said| said.flags = 0),
    ("backed up without being able to be", NOT_VALID, |said| {
        said.flags |= BACKED_UP
    }),
    ("a type of the future", OTHER_QUESTION, |said| {
        said.kind = "payment.get".into()
    }),
];

/// What is wrong as a text; `{}` stands for the challenge.
const CLIENT_DATA: [&str; 9] = [
    "",
    "{}",
    "null",
    "[]",
    r#"{"type":"TYPE","challenge":"{}","origin":"https://gateway.example""#,
    r#"{"type":"TYPE","challenge":"{}","origin":"https://gateway.example"}}"#,
    r#"{"type":"TYPE","challenge":"{}","origin":"https://evil.example","origin":"https://gateway.example"}"#,
    r#"{"type":"TYPE","challenge":"{}","origin":"https://gateway.example","crossOrigin":false,"crossOrigin":true}"#,
    "\u{feff}{\"type\":\"TYPE\",\"challenge\":\"{}\",\"origin\":\"https://gateway.example\"}",
];

type Mangle = fn(&mut Value);

/// What is no browser's answer, but becomes one of these when a member is changed.
const MANGLED: [(&str, Mangle); 13] = [
    ("nothing", |answer| *answer = Value::Null),
    ("no response", |answer| answer["response"] = Value::Null),
    ("another type", |answer| answer["type"] = "password".into()),
    ("no type", |answer| answer["type"] = Value::Null),
    ("two ids", |answer| {
        answer["id"] = base64url(b"other").into()
    }),
    ("another id", |answer| {
        answer["id"] = base64url(b"other").into();
        answer["rawId"] = base64url(b"other").into();
    }),
    ("no id", |answer| {
        answer["id"] = "".into();
        answer["rawId"] = "".into();
    }),
    ("an id that is too long", |answer| {
        answer["id"] = base64url(&[7; 1024]).into();
        answer["rawId"] = answer["id"].clone();
    }),
    ("an id that is no base64url", |answer| {
        answer["id"] = "a+b/".into();
        answer["rawId"] = "a+b/".into();
    }),
    ("client data with padding", |answer| {
        append(&mut answer["response"]["clientDataJSON"], "=");
    }),
    ("client data with more behind", |answer| {
        let client_data = &mut answer["response"]["clientDataJSON"];
        *client_data = base64url(&[&decoded(client_data)[..], b"}"].concat()).into();
    }),
    ("client data cut short", |answer| {
        let client_data = &mut answer["response"]["clientDataJSON"];
        let bytes = decoded(client_data);
        *client_data = base64url(&bytes[..bytes.len() - 1]).into();
    }),
    ("client data that is a number", |answer| {
        answer["response"]["clientDataJSON"] = 7.into();
    }),
];

fn append(text: &mut Value, more: &str) {
    *text = format!("{}{more}", text.as_str().unwrap()).into();
}

fn decoded(text: &Value) -> Vec<u8> {
    from_base64url(text.as_str().unwrap()).unwrap()
}

async fn an_honest_answer_is_taken(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    let ignored: Change = |said| {
        said.more
            .insert("other_keys_can_be_added_here".into(), json!({ "a": [1] }));
        said.more.insert("crossOrigin".into(), Value::Null);
    };
    gateway.register(ANNA, &forger, ignored).await;
    let honest = forger.honest("webauthn.get", ORIGIN, &challenge());
    let handle = {
        let (options, _) = gateway.passkeys.registration_options(ANNA).await.unwrap();
        handle_of(&options)
    };
    let also: [Change; 4] = [
        |_| {},
        ignored,
        |said| said.more.clear(),
        // Reserved bits are for the future (WebAuthn §6.1), and extensions may be there that nobody asked for.
        |said| {
            said.flags |= 0x22 | EXTENSIONS;
            said.trailing = b"\xa1\x63new\xf5".to_vec();
        },
    ];
    for change in also {
        let mut said = honest.clone();
        change(&mut said);
        gateway.approve(&forger, &said).await.unwrap();
        said.user_handle = Some(handle.clone());
        gateway.approve(&forger, &said).await.unwrap();
    }
}

async fn a_forged_approval_is_refused(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    gateway.register(ANNA, &forger, |_| {}).await;
    let honest = forger.honest("webauthn.get", ORIGIN, &challenge());
    let of_approvals: [(&str, &str, Change); 5] = [
        ("a registration", OTHER_QUESTION, |said| {
            said.kind = "webauthn.create".into()
        }),
        ("another user", NOT_KNOWN, |said| {
            said.user_handle = Some(vec![7; 32])
        }),
        ("an empty user", NOT_KNOWN, |said| {
            said.user_handle = Some(Vec::new())
        }),
        ("extensions that are not there", NOT_VALID, |said| {
            said.flags |= EXTENSIONS;
        }),
        ("backup that was not possible", NOT_VALID, |said| {
            said.flags |= BACKUP_ELIGIBLE
        }),
    ];
    for (what, why, change) in FORGED.into_iter().chain(of_approvals) {
        let mut said = honest.clone();
        change(&mut said);
        assert_because(gateway.approve(&forger, &said).await, why, what);
    }
    for text in CLIENT_DATA {
        let text = text
            .replace("TYPE", "webauthn.get")
            .replace("{}", &challenge());
        let said = Said {
            client_data: Some(text.clone().into_bytes()),
            ..honest.clone()
        };
        assert_refused(gateway.approve(&forger, &said).await, &text);
    }
    gateway.approve(&forger, &honest).await.unwrap();
}

async fn a_mangled_approval_is_refused(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    gateway.register(ANNA, &forger, |_| {}).await;
    let answer = forger.get(&forger.honest("webauthn.get", ORIGIN, &challenge()));
    let mut said_otherwise = forger.honest("webauthn.get", ORIGIN, &challenge());
    said_otherwise.more.insert("more".into(), true.into());
    let other = forger.get(&said_otherwise);

    let verify = async |what: &str, mangled: Value| {
        let refused = gateway.passkeys.verify(ANNA, &challenge(), &mangled).await;
        assert_refused(refused, what);
    };
    let verify_signature = async |what: &str, mangled: Value| {
        let refused = gateway.passkeys.verify(ANNA, &challenge(), &mangled).await;
        assert_because(refused, BAD_SIGNATURE, what);
    };
    for (what, mangle) in MANGLED {
        let mut mangled = answer.clone();
        mangle(&mut mangled);
        verify(what, mangled).await;
    }
    for member in ["clientDataJSON", "authenticatorData", "signature"] {
        let mut mangled = answer.clone();
        mangled["response"][member] = Value::Null;
        verify(member, mangled).await;
    }
    let mut mangled = answer.clone();
    mangled["response"]["signature"] = other["response"]["signature"].clone();
    verify_signature("a signature over other data", mangled).await;
    let mut mangled = answer.clone();
    mangled["response"]["clientDataJSON"] = other["response"]["clientDataJSON"].clone();
    verify_signature("client data that was not signed", mangled).await;

    let signature = decoded(&answer["response"]["signature"]);
    let data = decoded(&answer["response"]["authenticatorData"]);
    let client_data = decoded(&answer["response"]["clientDataJSON"]);
    let raw = forger
        .key
        .sign(&[&data[..], &sha256(&client_data)].concat());
    for (what, mangled) in [
        ("no signature", Vec::new()),
        ("a signature that is no DER", raw.unwrap().to_vec()),
        ("zero", vec![0x30, 6, 2, 1, 0, 2, 1, 0]),
        ("one", vec![0x30, 6, 2, 1, 1, 2, 1, 1]),
        ("cut short", signature[..signature.len() - 1].to_vec()),
        ("more behind", [&signature[..], &[0]].concat()),
        ("a longer length", {
            let mut longer = signature.clone();
            longer[1] += 1;
            longer
        }),
        ("a length that is not the shortest", {
            [&[0x30, 0x81], &signature[1..]].concat()
        }),
    ] {
        let mut answer = answer.clone();
        answer["response"]["signature"] = base64url(&mangled).into();
        verify_signature(what, answer).await;
    }
    let verified = gateway.passkeys.verify(ANNA, &challenge(), &answer).await;
    verified.expect("as it was");
}

async fn only_the_sellers_own_passkey_approves(gateway: Gateway) {
    let (anna, berta) = (
        Forger::new(b"anna's", RP_ID),
        Forger::new(b"berta's", RP_ID),
    );
    gateway.register(ANNA, &anna, |_| {}).await;
    gateway.register(BERTA, &berta, |_| {}).await;

    let said = berta.honest("webauthn.get", ORIGIN, &challenge());
    assert_refused(gateway.approve(&berta, &said).await, "another seller's");
    let unknown = Forger::new(b"nobody's", RP_ID);
    assert_refused(gateway.approve(&unknown, &said).await, "an unknown one");
    let own_key = Forger {
        id: anna.id.clone(),
        ..berta.clone()
    };
    assert_because(
        gateway.approve(&own_key, &said).await,
        BAD_SIGNATURE,
        "another key",
    );

    let berta_approves = gateway
        .passkeys
        .verify(BERTA, &challenge(), &berta.get(&said))
        .await;
    berta_approves.unwrap();
}

async fn a_counter_that_does_not_grow_is_refused(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    gateway
        .register(ANNA, &forger, |said| said.counter = 5)
        .await;
    let mut said = forger.honest("webauthn.get", ORIGIN, &challenge());
    for (counter, taken) in [
        (6, true),
        (6, false),
        (5, false),
        (0, false),
        (1000, true),
        (999, false),
        (0, false),
        (u32::MAX, true),
        (u32::MAX, false),
        (0, false),
    ] {
        said.counter = counter;
        let before = gateway.stored(&forger).await["credential"]["counter"].clone();
        match gateway.approve(&forger, &said).await {
            Ok(puts) => {
                assert!(taken, "{counter} after {before}");
                gateway.commit(puts).await.unwrap();
                let stored = &gateway.stored(&forger).await["credential"]["counter"];
                assert_eq!(stored, counter);
            }
            refused => {
                assert!(!taken, "{counter} after {before}");
                assert_refused(refused, "a counter");
                let stored = &gateway.stored(&forger).await["credential"]["counter"];
                assert_eq!(stored, &before, "not advanced");
            }
        }
    }
}

async fn one_of_two_assertions_with_a_counter_is_committed(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    gateway.register(ANNA, &forger, |_| {}).await;
    let mut said = forger.honest("webauthn.get", ORIGIN, &challenge());
    said.counter = 1;
    let one = gateway.approve(&forger, &said).await.unwrap();
    let other = gateway.approve(&forger, &said).await.unwrap();
    gateway.commit(one).await.unwrap();
    assert_eq!(gateway.commit(other).await, Err(CommitError::Conflict));
    assert_refused(gateway.approve(&forger, &said).await, "looked at again");
}

async fn what_is_backed_up_may_change_but_not_what_may_be(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    gateway
        .register(ANNA, &forger, |said| said.flags |= BACKUP_ELIGIBLE)
        .await;
    let mut said = forger.honest("webauthn.get", ORIGIN, &challenge());
    assert_refused(gateway.approve(&forger, &said).await, "no longer possible");
    said.flags |= BACKUP_ELIGIBLE | BACKED_UP;
    let puts = gateway.approve(&forger, &said).await.unwrap();
    gateway.commit(puts).await.unwrap();
    assert_eq!(
        gateway.stored(&forger).await["credential"]["backup_state"],
        true
    );
    assert_eq!(gateway.approve(&forger, &said).await, Ok(Vec::new()));
}

async fn a_forged_registration_is_refused(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    let passkeys = &gateway.passkeys;
    let (options, state) = passkeys.registration_options(ANNA).await.unwrap();
    let challenge = options["challenge"].as_str().unwrap();
    let honest = forger.honest("webauthn.create", ORIGIN, challenge);
    let of_registrations: [(&str, &str, Change); 10] = [
        ("an assertion", OTHER_QUESTION, |said| {
            said.kind = "webauthn.get".into()
        }),
        ("an ES384 key, which was not asked for", ALGORITHM, |said| {
            // {1: 2, 3: -35, -1: 2, -2: x, -3: y}
            let head = &b"\xa5\x01\x02\x03\x38\x22\x20\x02\x21\x58\x30"[..];
            said.cose = Some([head, &P384_X, b"\x22\x58\x30", &P384_Y].concat());
        }),
        (
            "an Ed25519 key, which was not asked for",
            NOT_VALID,
            |said| {
                // {1: 1, 3: -8, -1: 6, -2: x}
                let key = [&b"\xa4\x01\x01\x03\x27\x20\x06\x21\x58\x20"[..], &[9; 32]];
                said.cose = Some(key.concat());
            },
        ),
        ("an ES256 key on another curve", NOT_VALID, |said| {
            let key = [&b"\xa5\x01\x02\x03\x26\x20\x02\x21\x58\x30"[..], &[9; 48]];
            said.cose = Some([&key.concat()[..], b"\x22\x58\x30", &[9; 48]].concat());
        }),
        ("a key that is none", NOT_VALID, |said| {
            said.cose = Some(b"\xa0".to_vec())
        }),
        ("no key", NOT_VALID, |said| said.cose = Some(Vec::new())),
        ("an attestation of the future", NOT_VALID, |said| {
            said.attestation = b"\xa3\x63fmt\x64nine\x67attStmt\xa0".to_vec();
        }),
        ("an attestation without a statement", NOT_VALID, |said| {
            said.attestation = b"\xa3\x63fmt\x66packed\x67attStmt\xa0".to_vec();
        }),
        (
            "a self attestation whose signature is none",
            BAD_SIGNATURE,
            |said| {
                let statement = b"\xa2\x63alg\x26\x63sig\x41\x00";
                let format = b"\xa3\x63fmt\x66packed\x67attStmt";
                said.attestation = [&format[..], statement].concat();
            },
        ),
        ("no attestation", NOT_VALID, |said| {
            said.attestation = b"\xa1".to_vec()
        }),
    ];
    for (what, why, change) in FORGED.into_iter().chain(of_registrations) {
        let mut said = honest.clone();
        change(&mut said);
        let refused = passkeys.register(ANNA, &state, &forger.create(&said)).await;
        assert_because(refused, why, what);
    }
    for text in CLIENT_DATA {
        let text = text
            .replace("TYPE", "webauthn.create")
            .replace("{}", challenge);
        let said = Said {
            client_data: Some(text.clone().into_bytes()),
            ..honest.clone()
        };
        let refused = passkeys.register(ANNA, &state, &forger.create(&said)).await;
        assert_refused(refused, &text);
    }
    passkeys
        .register(ANNA, &state, &forger.create(&honest))
        .await
        .expect("an honest one");
}

async fn a_mangled_registration_is_refused(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    let passkeys = &gateway.passkeys;
    let (options, state) = passkeys.registration_options(ANNA).await.unwrap();
    let challenge = options["challenge"].as_str().unwrap();
    let answer = forger.create(&forger.honest("webauthn.create", ORIGIN, challenge));
    for (what, mangle) in MANGLED {
        let mut mangled = answer.clone();
        mangle(&mut mangled);
        assert_refused(passkeys.register(ANNA, &state, &mangled).await, what);
    }
    let object = decoded(&answer["response"]["attestationObject"]);
    for length in 0..object.len() {
        let mut mangled = answer.clone();
        mangled["response"]["attestationObject"] = base64url(&object[..length]).into();
        let refused = passkeys.register(ANNA, &state, &mangled).await;
        assert_refused(refused, &format!("{length} bytes of the attestation"));
    }
}

async fn a_registration_is_taken_once(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    let passkeys = &gateway.passkeys;
    let (options, state) = passkeys.registration_options(ANNA).await.unwrap();
    let challenge = options["challenge"].as_str().unwrap();
    let said = forger.honest("webauthn.create", ORIGIN, challenge);
    let puts = passkeys.register(ANNA, &state, &forger.create(&said)).await;
    gateway.commit(puts.unwrap()).await.unwrap();

    let same = passkeys.register(ANNA, &state, &forger.create(&said)).await;
    assert_refused(same, "the same passkey again");
    // A second passkey by the same state does not get further than this.
    let second = Forger::new(b"second", RP_ID);
    let puts = passkeys.register(ANNA, &state, &second.create(&said)).await;
    let refused = gateway.commit(puts.unwrap()).await;
    assert_eq!(refused, Err(CommitError::Conflict));
}

async fn a_passkey_is_registered_once(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    gateway.register(ANNA, &forger, |_| {}).await;

    // Nobody takes another's passkey over by naming its id.
    let thief = Forger::new(b"passkey", RP_ID);
    let passkeys = &gateway.passkeys;
    for seller in [ANNA, BERTA] {
        let (options, state) = passkeys.registration_options(seller).await.unwrap();
        let challenge = options["challenge"].as_str().unwrap();
        let said = thief.honest("webauthn.create", ORIGIN, challenge);
        let refused = passkeys
            .register(seller, &state, &thief.create(&said))
            .await;
        assert_refused(refused, "an id that is taken");
    }
    let said = forger.honest("webauthn.get", ORIGIN, &challenge());
    gateway.approve(&forger, &said).await.unwrap();
}

async fn a_sign_in_is_taken_once(gateway: Gateway) {
    let mut browser = Browser::at(ORIGIN, false);
    let passkeys = &gateway.passkeys;
    let (options, state) = passkeys.registration_options(ANNA).await.unwrap();
    let created = browser.create(&options).await.unwrap();
    let puts = passkeys.register(ANNA, &state, &created).await.unwrap();
    gateway.commit(puts).await.unwrap();

    let (options, state) = passkeys.sign_in_options().await.unwrap();
    let found = browser.get(&options).await.unwrap();
    let (_, puts) = passkeys.sign_in(&state, &found).await.unwrap();
    gateway.commit(puts).await.unwrap();

    let (_, again) = passkeys.sign_in(&state, &found).await.unwrap();
    assert_eq!(gateway.commit(again).await, Err(CommitError::Conflict));
    // Nor does what was captured answer another state, or an approval.
    let (_, other) = passkeys.sign_in_options().await.unwrap();
    assert_refused(passkeys.sign_in(&other, &found).await, "another state");
    let approved = passkeys.verify(ANNA, &challenge(), &found).await;
    assert_refused(approved, "an approval");
}

async fn a_sign_in_must_say_whose_it_is(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    let passkeys = &gateway.passkeys;
    let (anna, _) = passkeys.registration_options(ANNA).await.unwrap();
    let (berta, _) = passkeys.registration_options(BERTA).await.unwrap();
    gateway.register(ANNA, &forger, |_| {}).await;

    let (options, state) = passkeys.sign_in_options().await.unwrap();
    let challenge = options["challenge"].as_str().unwrap();
    let mut said = forger.honest("webauthn.get", ORIGIN, challenge);
    for (handle, what) in [
        (None, "nobody's"),
        (Some(Vec::new()), "an empty name"),
        (Some(handle_of(&berta)), "another's"),
        (Some(ANNA.into()), "the seller's own id"),
    ] {
        said.user_handle = handle;
        assert_refused(passkeys.sign_in(&state, &forger.get(&said)).await, what);
    }
    said.user_handle = Some(handle_of(&anna));
    let unknown = Forger::new(b"unknown", RP_ID);
    let refused = passkeys.sign_in(&state, &unknown.get(&said)).await;
    assert_refused(refused, "an unknown passkey");
    for (what, why, change) in FORGED {
        let mut said = said.clone();
        change(&mut said);
        let refused = passkeys.sign_in(&state, &forger.get(&said)).await;
        assert_because(refused, why, what);
    }
    let (seller, _) = passkeys.sign_in(&state, &forger.get(&said)).await.unwrap();
    assert_eq!(seller, ANNA);
}

async fn a_state_is_good_for_five_minutes(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    let passkeys = &gateway.passkeys;
    let (options, state) = passkeys.registration_options(ANNA).await.unwrap();
    let handle = handle_of(&options);
    let challenge = options["challenge"].as_str().unwrap();
    let answer = forger.create(&forger.honest("webauthn.create", ORIGIN, challenge));
    gateway.wait(299);
    let puts = passkeys.register(ANNA, &state, &answer).await.unwrap();
    gateway.wait(1);
    assert_refused(passkeys.register(ANNA, &state, &answer).await, "too late");
    // It was in time when it was looked at.
    gateway.commit(puts).await.unwrap();

    let (options, state) = passkeys.sign_in_options().await.unwrap();
    let mut said = forger.honest(
        "webauthn.get",
        ORIGIN,
        options["challenge"].as_str().unwrap(),
    );
    said.user_handle = Some(handle);
    let answer = forger.get(&said);
    for (moved, taken) in [(299, true), (1, false), (100_000, false), (-400_000, false)] {
        gateway.wait(moved);
        let signed_in = passkeys.sign_in(&state, &answer).await;
        assert_eq!(signed_in.is_ok(), taken, "{moved}: {signed_in:?}");
    }
}

async fn a_state_is_good_for_one_purpose_and_one_seller(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    let passkeys = &gateway.passkeys;
    let (options, registration) = passkeys.registration_options(ANNA).await.unwrap();
    let challenge = options["challenge"].as_str().unwrap();
    let answer = forger.create(&forger.honest("webauthn.create", ORIGIN, challenge));
    let (_, sign_in) = passkeys.sign_in_options().await.unwrap();

    let refused = passkeys.register(BERTA, &registration, &answer).await;
    assert_refused(refused, "another seller's state");
    let cut = &registration[..registration.len() - 1];
    for state in [&sign_in, "", "AAAA", cut, &challenge_and(&registration)] {
        assert_refused(passkeys.register(ANNA, state, &answer).await, state);
    }
    let key = SigningKey::generate().unwrap();
    for (url, key) in [("https://other.example", &gateway.key), (ORIGIN, &key)] {
        let other = self::passkeys(url, &gateway.store, &gateway.clock, key);
        let (_, theirs) = other.registration_options(ANNA).await.unwrap();
        assert_refused(passkeys.register(ANNA, &theirs, &answer).await, url);
        let refused = other.register(ANNA, &registration, &answer).await;
        assert_refused(refused, url);
    }

    let puts = passkeys
        .register(ANNA, &registration, &answer)
        .await
        .unwrap();
    gateway.commit(puts).await.unwrap();
    let mut said = forger.honest("webauthn.get", ORIGIN, challenge);
    said.user_handle = Some(handle_of(&options));
    let refused = passkeys.sign_in(&registration, &forger.get(&said)).await;
    assert_refused(refused, "a registration's state");
}

fn challenge_and(state: &str) -> String {
    format!("{}{state}", challenge())
}

async fn a_ticket_is_used_once(gateway: Gateway) {
    let used = async |ticket| enrolment::is_used_up(&*gateway.store, ticket).await;
    assert_eq!(used("a ticket").await, Ok(false));
    let put = enrolment::use_up("a ticket");
    assert!(!format!("{put:?}").contains("a ticket"), "{put:?}");
    gateway.commit(vec![put]).await.unwrap();
    assert_eq!(used("a ticket").await, Ok(true));
    assert_eq!(used("another").await, Ok(false));
    let again = gateway.commit(vec![enrolment::use_up("a ticket")]).await;
    assert_eq!(again, Err(CommitError::Conflict));
}

/// The base point of P-384.
const P384_X: [u8; 48] = [
    0xaa, 0x87, 0xca, 0x22, 0xbe, 0x8b, 0x05, 0x37, 0x8e, 0xb1, 0xc7, 0x1e, 0xf3, 0x20, 0xad, 0x74,
    0x6e, 0x1d, 0x3b, 0x62, 0x8b, 0xa7, 0x9b, 0x98, 0x59, 0xf7, 0x41, 0xe0, 0x82, 0x54, 0x2a, 0x38,
    0x55, 0x02, 0xf2, 0x5d, 0xbf, 0x55, 0x29, 0x6c, 0x3a, 0x54, 0x5e, 0x38, 0x72, 0x76, 0x0a, 0xb7,
];
const P384_Y: [u8; 48] = [
    0x36, 0x17, 0xde, 0x4a, 0x96, 0x26, 0x2c, 0x6f, 0x5d, 0x9e, 0x98, 0xbf, 0x92, 0x92, 0xdc, 0x29,
    0xf8, 0xf4, 0x1d, 0xbd, 0x28, 0x9a, 0x14, 0x7c, 0xe9, 0xda, 0x31, 0x13, 0xb5, 0xf0, 0xb8, 0xc0,
    0x0a, 0x60, 0xb1, 0xce, 0x1d, 0x7e, 0x81, 0x9d, 0x7a, 0x43, 0x1d, 0x7c, 0x90, 0xea, 0x0e, 0x5f,
];

/// A key and its signature, made with Python's `cryptography` 48.0 (OpenSSL).
mod made_elsewhere {
    pub(super) const RS256_N: &str = concat!(
        "uRj-jZvxqJpKih-rCk-j9tyeNoSh5VhanAbL_FSHOhr_sk7hcZa_TRZIRRULMTRkfp5WgkHj0pOdlnzP",
        "fjv1Jdotrqdjn3I9NuqD6ldnPepeyBjsp6hmuRub6B_CRazd0in50R0uUPzPV850TaPnK1oKVUcMktRc",
        "DEpZElZ9n7kICFiKla1yP6vj_9GrIYVcmvXmiLi3dkrDnKg0OgNUDuxA9nYwfPESvVnnBi2osT-gRnge",
        "hWb5yYBMNG0EbJ2veNGPtIVZzBw-RRr1SgZ5ZzXsDWfK0eFtRJn_3c0fr8TSoKwoXdJUcGDYxJGuwBHF",
        "CRQVkwRuD_XUph7dXUuu0w"
    );
    pub(super) const RS256_SIGNATURE: &str = concat!(
        "istktxChaQh4xAUpt6Etc2tESYjrxIHs-JJuNKZ2Q815zDFmJNVFSj_Jsn9uf7f3Ym9c_lrELCdSdBg_",
        "XFPRf3ZWwQwRI4M-nCkhXr2ZiEmQ3WA5x8tMGKaGr6wXzgz8bCC6SX4s_-9vT0Br_hN9ohlMS-m5p-LM",
        "sFmh4kdF89zmGTSbL2J4ZXU-Qs9PKoujkv23RJ0-hDAAbXtjwkAxhCQwWxbYlnK_c29MZOOq2jmxIs3Q",
        "ytEcF1SepmLUc15Ogj_5IDu3WqnBX_DGILoTQeoC84HR0bJsp5htmiT9JRoeRreIO8AuG788wJ_6wGTs",
        "MygGHPp8DcXMp8jnWhnpDg"
    );
}

async fn an_rs256_passkey_approves(gateway: Gateway) {
    let forger = Forger::new(b"passkey", RP_ID);
    let n = from_base64url(made_elsewhere::RS256_N).unwrap();
    gateway
        .register(ANNA, &forger, |said| {
            // {1: 3, 3: -257, -1: n, -2: 65537}
            let head = b"\xa4\x01\x03\x03\x39\x01\x00\x20\x59\x01\x00";
            said.cose = Some([&head[..], &n, b"\x21\x43\x01\x00\x01"].concat());
        })
        .await;
    let client_data = format!(
        r#"{{"type":"webauthn.get","challenge":"{}","origin":"{ORIGIN}","crossOrigin":false}}"#,
        challenge()
    );
    let said = Said {
        client_data: Some(client_data.into_bytes()),
        ..forger.honest("webauthn.get", ORIGIN, &challenge())
    };
    let mut answer = forger.get(&said);
    let passkeys = &gateway.passkeys;
    let es256 = passkeys.verify(ANNA, &challenge(), &answer).await;
    assert_because(es256, BAD_SIGNATURE, "a signature of another kind");

    answer["response"]["signature"] = made_elsewhere::RS256_SIGNATURE.into();
    passkeys.verify(ANNA, &challenge(), &answer).await.unwrap();
    let mut signature = decoded(&answer["response"]["signature"]);
    signature[255] ^= 1;
    answer["response"]["signature"] = base64url(&signature).into();
    let refused = passkeys.verify(ANNA, &challenge(), &answer).await;
    assert_because(refused, BAD_SIGNATURE, "a changed signature");
}

#[test]
fn passkeys_need_a_place_where_browsers_allow_them() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let key = SigningKey::generate().unwrap();
    let at = |url: &str, name: &str| {
        let clock = moved_by(&Arc::new(AtomicI64::new(NOW)));
        Passkeys::new(url, name, store.clone(), clock, &key).map(|_| ())
    };
    for url in [
        "https://gateway.example",
        "https://gateway.example:8443/market",
        "http://localhost:8080",
        "http://gateway.localhost",
        "https://localhost",
    ] {
        assert_eq!(at(url, "The Market"), Ok(()), "{url}");
    }
    for url in [
        "http://gateway.example",
        "http://127.0.0.1:8080",
        "https://127.0.0.1",
        "https://[::1]",
        "http://notlocalhost",
        "ftp://gateway.example",
        "gateway.example",
        "",
    ] {
        assert_eq!(at(url, "The Market"), Err(PasskeysError::Origin), "{url}");
    }
    assert_eq!(at(ORIGIN, " "), Err(PasskeysError::Name));
}

#[tokio::test]
async fn a_browser_on_localhost_is_taken() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let clock = Arc::new(AtomicI64::new(NOW));
    let key = SigningKey::generate().unwrap();
    let local = passkeys("http://localhost:8080", &store, &clock, &key);
    let mut browser = Browser::at("http://localhost:8080", false);
    let (options, state) = local.registration_options(ANNA).await.unwrap();
    let created = browser.create(&options).await.unwrap();
    local.register(ANNA, &state, &created).await.unwrap();
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_no_refusal() {
    let working = Gateway::new(Arc::new(MemoryStore::default()));
    let forger = Forger::new(b"passkey", RP_ID);
    let (options, state) = working.passkeys.registration_options(ANNA).await.unwrap();
    let challenge = options["challenge"].as_str().unwrap();
    let created = forger.create(&forger.honest("webauthn.create", ORIGIN, challenge));
    let found = forger.get(&forger.honest("webauthn.get", ORIGIN, &self::challenge()));

    let store: Arc<dyn Store> = Arc::new(Broken);
    let broken = passkeys(ORIGIN, &store, &working.clock, &working.key);
    let down = || PasskeyError::Store(StoreError("down".into()));
    assert_eq!(broken.registration_options(ANNA).await, Err(down()));
    assert_eq!(broken.register(ANNA, &state, &created).await, Err(down()));
    let verified = broken.verify(ANNA, &self::challenge(), &found).await;
    assert_eq!(verified, Err(down()));
    let options = broken.approval_options(ANNA, &self::challenge()).await;
    assert_eq!(options, Err(down()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_changed_byte_of_an_approval_gets_through(
        member in prop::sample::select(vec!["clientDataJSON", "authenticatorData", "signature"]),
        at in any::<Index>(),
        flip in 1..=255_u8,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let gateway = Gateway::new(Arc::new(MemoryStore::default()));
            let forger = Forger::new(b"passkey", RP_ID);
            gateway.register(ANNA, &forger, |_| {}).await;
            let mut answer = forger.get(&forger.honest("webauthn.get", ORIGIN, &challenge()));
            let mut bytes = decoded(&answer["response"][member]);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            answer["response"][member] = base64url(&bytes).into();
            let found = gateway.passkeys.verify(ANNA, &challenge(), &answer).await;
            prop_assert!(matches!(found, Err(PasskeyError::Refused(_))), "{found:?}");
            Ok(())
        })?;
    }

    #[test]
    fn no_attestation_makes_it_fall_over(
        at in any::<Index>(),
        with in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let gateway = Gateway::new(Arc::new(MemoryStore::default()));
            let forger = Forger::new(b"passkey", RP_ID);
            let (options, state) = gateway.passkeys.registration_options(ANNA).await.unwrap();
            let challenge = options["challenge"].as_str().unwrap();
            let mut answer = forger.create(&forger.honest("webauthn.create", ORIGIN, challenge));
            let mut bytes = decoded(&answer["response"]["attestationObject"]);
            let at = at.index(bytes.len());
            let end = (at + with.len()).min(bytes.len());
            bytes.splice(at..end, with);
            answer["response"]["attestationObject"] = base64url(&bytes).into();
            // Without attestation any key may be named; it must only be answered.
            let _ = gateway.passkeys.register(ANNA, &state, &answer).await;
        });
    }
}

/// A store that is down.
struct Broken;

fn down<T, E>() -> BoxFuture<'static, Result<T, E>>
where
    T: Send + 'static,
    E: From<StoreError> + Send + 'static,
{
    Box::pin(async { Err(StoreError("down".into()).into()) })
}

impl Store for Broken {
    fn load(&self, _: Vec<Key>) -> BoxFuture<'_, Result<Vec<Option<Doc>>, StoreError>> {
        down()
    }

    fn list(
        &self,
        _: Kind,
        _: String,
        _: Option<String>,
        _: usize,
    ) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>> {
        down()
    }

    fn due(&self, _: Timestamp, _: usize) -> BoxFuture<'_, Result<Vec<Doc>, StoreError>> {
        down()
    }

    fn windows(
        &self,
        _: Vec<String>,
        _: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Vec<Timestamp>>, StoreError>> {
        down()
    }

    fn used(
        &self,
        _: IdempotencyKey,
        _: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Used>, StoreError>> {
        down()
    }

    fn chain(
        &self,
        _: tower_rctp::protocol::record::Subject,
        _: u64,
        _: usize,
    ) -> BoxFuture<'_, Result<Vec<Sealed>, StoreError>> {
        down()
    }

    fn commit(&self, _: Unit, _: Arc<dyn Seal>) -> BoxFuture<'_, Result<Committed, CommitError>> {
        down()
    }

    fn sweep(&self, _: Timestamp) -> BoxFuture<'_, Result<usize, StoreError>> {
        down()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        down()
    }
}
