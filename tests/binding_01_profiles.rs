//! Binding 1: keys and UCP profiles. Which profiles and keys are taken, how long, and how they are fetched.
#![allow(clippy::unwrap_used)]

#[path = "common/bodies.rs"]
mod bodies;
mod common;
#[path = "common/loopback.rs"]
mod loopback;
#[path = "common/market.rs"]
mod market;
#[path = "common/signing.rs"]
mod signing;
#[path = "common/site.rs"]
mod site;

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    response::{IntoResponse, Redirect},
    routing::get as on_get,
};
use bodies::{Scripted, Then};
use bytes::Bytes;
use common::{Agent, Answer, FLOOR, LISTING, World, get, profile};
use http::{StatusCode, header};
use loopback::{closed_port, serve};
use market::Logs;
use serde_json::{Value, json};
use signing::{SIGNATURE_INPUT, set, signed};
use site::Site;
use tower_rctp::{
    client::Signer,
    layer::authenticate::{
        fetch::{Fetch, HttpsFetch},
        operators::{Operator, Operators},
    },
    protocol::{policy::Tier, record::SubjectKind},
    wire::{base64url, digest::sha256, from_base64url, jcs, jwk::SigningKey},
};

const UNKNOWN: (u16, &str) = (401, "operator_unknown");

/// A marketplace whose operators' profiles come from `site`.
async fn world(site: &Site) -> World {
    let world = World::with(Tier::Auto, |b| b.fetch_with(site.clone())).await;
    for agent in [&world.buyer, &world.seller] {
        site.serve(
            &agent.profile,
            &profile("agent", &[agent.signer.key().public_jwk()]),
        );
    }
    world
}

/// An agent of the buyer's operator with another key.
fn colleague(world: &World) -> Agent {
    agent_at(world, &world.buyer.profile)
}

fn agent_at(world: &World, url: &str) -> Agent {
    let key = SigningKey::generate().unwrap();
    Agent {
        profile: url.to_owned(),
        signer: Signer::new(url, key).unwrap().clock(world.clock.closure()),
    }
}

fn jwk(agent: &Agent) -> Value {
    agent.signer.key().public_jwk()
}

/// The agent looks at a listing, which any operator may.
async fn look(world: &World, agent: &Agent) -> Answer {
    let mut request = get(&format!("/listings/{LISTING}"));
    agent.signer.sign(&mut request).unwrap();
    world.send(request).await
}

/// Lets every task run as far as it can.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

// Which keys are usable.

#[tokio::test]
async fn an_unusable_key_does_not_verify_and_the_others_of_its_profile_do() {
    type Spoil = fn(&mut Value);
    let cases: [(&str, Spoil); 13] = [
        ("a kid that is not the thumbprint", |k| {
            k["kid"] = json!("key-1")
        }),
        ("the thumbprint with padding", |k| {
            k["kid"] = json!(format!("{}=", k["kid"].as_str().unwrap()));
        }),
        ("no kid", |k| drop(k.as_object_mut().unwrap().remove("kid"))),
        ("a kid that is a number", |k| k["kid"] = json!(1)),
        ("use enc", |k| k["use"] = json!("enc")),
        ("key_ops without verify", |k| k["key_ops"] = json!(["sign"])),
        ("empty key_ops", |k| k["key_ops"] = json!([])),
        ("another alg", |k| k["alg"] = json!("ES384")),
        ("an unknown kty", |k| k["kty"] = json!("LWE")),
        ("a kty that is not supported", |k| {
            *k = json!({"kty": "RSA", "kid": k["kid"], "n": "AQAB", "e": "AQAB"});
        }),
        ("an unknown curve", |k| k["crv"] = json!("secp256k1")),
        ("no coordinate", |k| {
            drop(k.as_object_mut().unwrap().remove("y"))
        }),
        ("a point that is not on the curve", |k| {
            k["y"] = k["x"].clone()
        }),
    ];
    for (what, spoil) in cases {
        let site = Site::default();
        let world = world(&site).await;
        let spoiled = colleague(&world);
        let mut key = jwk(&spoiled);
        spoil(&mut key);
        site.serve(
            &world.buyer.profile,
            &profile("buyer", &[key.clone(), jwk(&world.buyer)]),
        );
        assert_eq!(look(&world, &spoiled).await.refusal(), UNKNOWN, "{what}");
        assert_eq!(look(&world, &world.buyer).await.status, 200, "{what}");

        // Nor does it under the name that it gives itself.
        if let Some(kid) = key["kid"].as_str() {
            let mut request = signed(&spoiled, get(&format!("/listings/{LISTING}")));
            let input = request.headers()[SIGNATURE_INPUT].to_str().unwrap();
            let renamed = input.replace(spoiled.kid(), kid);
            set(&mut request, SIGNATURE_INPUT, &renamed);
            assert_eq!(world.send(request).await.refusal(), UNKNOWN, "{what}");
        }
    }
}

#[tokio::test]
async fn a_key_marked_for_signatures_or_for_verifying_is_usable() {
    for (name, value) in [
        ("use", json!("sig")),
        ("key_ops", json!(["verify"])),
        ("key_ops", json!(["sign", "verify"])),
        ("alg", json!("ES256")),
        ("x-unknown", json!({"any": "thing"})),
    ] {
        let site = Site::default();
        let world = world(&site).await;
        let mut key = jwk(&world.buyer);
        key[name] = value;
        site.serve(&world.buyer.profile, &profile("buyer", &[key]));
        assert_eq!(look(&world, &world.buyer).await.status, 200, "{name}");
    }
}

#[tokio::test]
async fn a_private_member_makes_the_whole_set_invalid() {
    for member in ["d", "p", "q", "dp", "dq", "qi", "oth", "k"] {
        let site = Site::default();
        let world = world(&site).await;
        let leaked = colleague(&world);
        let mut key = jwk(&leaked);
        key[member] = json!("AAAA");
        site.serve(
            &world.buyer.profile,
            &profile("buyer", &[key, jwk(&world.buyer)]),
        );
        assert_eq!(look(&world, &leaked).await.refusal(), UNKNOWN, "{member}");
        assert_eq!(
            look(&world, &world.buyer).await.refusal(),
            UNKNOWN,
            "{member}"
        );
    }
    let site = Site::default();
    let world = world(&site).await;
    let symmetric = json!({"kty": "oct", "kid": "s", "k": "AAAA"});
    site.serve(
        &world.buyer.profile,
        &profile("buyer", &[symmetric, jwk(&world.buyer)]),
    );
    assert_eq!(look(&world, &world.buyer).await.refusal(), UNKNOWN);
}

#[tokio::test]
async fn two_keys_of_one_kid_are_both_unusable() {
    let site = Site::default();
    let world = world(&site).await;
    let key = jwk(&world.buyer);
    site.serve(&world.buyer.profile, &profile("buyer", &[key.clone(), key]));
    assert_eq!(look(&world, &world.buyer).await.refusal(), UNKNOWN);
}

#[tokio::test]
async fn a_key_verifies_for_the_profile_that_lists_it_only() {
    let site = Site::default();
    let world = world(&site).await;
    let impostor = Agent {
        profile: world.seller.profile.clone(),
        signer: Signer::new(&world.seller.profile, world.buyer.signer.key().clone())
            .unwrap()
            .clock(world.clock.closure()),
    };
    assert_eq!(look(&world, &impostor).await.refusal(), UNKNOWN);
    assert_eq!(look(&world, &world.buyer).await.status, 200);
    assert_eq!(look(&world, &world.seller).await.status, 200);
}

// Which profiles are taken.

#[tokio::test]
async fn a_profile_without_an_operator_that_answers_for_its_agents_is_refused() {
    type Spoil = fn(&mut Value);
    fn config(profile: &mut Value) -> &mut Value {
        &mut profile["ucp"]["capabilities"]["dev.rctp.operator"][0]["config"]
    }
    fn without(value: &mut Value, name: &str) {
        value.as_object_mut().unwrap().remove(name);
    }
    let cases: [(&str, Spoil); 24] = [
        ("no legal_entity", |p| without(config(p), "legal_entity")),
        ("no jurisdiction", |p| without(config(p), "jurisdiction")),
        ("no incident_contact", |p| {
            without(config(p), "incident_contact")
        }),
        ("no incident_sla_hours", |p| {
            without(config(p), "incident_sla_hours")
        }),
        ("a blank legal_entity", |p| {
            config(p)["legal_entity"] = json!(" ")
        }),
        ("a blank jurisdiction", |p| {
            config(p)["jurisdiction"] = json!("")
        }),
        ("a contact of the wrong type", |p| {
            config(p)["incident_contact"] = json!({})
        }),
        ("an SLA in words", |p| {
            config(p)["incident_sla_hours"] = json!("24")
        }),
        ("a negative SLA", |p| {
            config(p)["incident_sla_hours"] = json!(-1)
        }),
        ("certifications of the wrong type", |p| {
            config(p)["certifications"] = json!("iso")
        }),
        ("no config", |p| {
            without(
                &mut p["ucp"]["capabilities"]["dev.rctp.operator"][0],
                "config",
            );
        }),
        ("no entry", |p| {
            p["ucp"]["capabilities"]["dev.rctp.operator"] = json!([])
        }),
        ("an object for the entries", |p| {
            p["ucp"]["capabilities"]["dev.rctp.operator"] = json!({"config": config(p).clone()});
        }),
        ("no dev.rctp.operator", |p| {
            without(&mut p["ucp"]["capabilities"], "dev.rctp.operator");
        }),
        ("no capabilities", |p| {
            without(&mut p["ucp"], "capabilities")
        }),
        ("no ucp", |p| without(p, "ucp")),
        ("no version", |p| without(&mut p["ucp"], "version")),
        ("a version that is no date", |p| {
            p["ucp"]["version"] = json!("v1")
        }),
        ("no services", |p| without(&mut p["ucp"], "services")),
        ("no payment_handlers", |p| {
            without(&mut p["ucp"], "payment_handlers")
        }),
        ("a service without an endpoint", |p| {
            p["ucp"]["services"] =
                json!({"dev.ucp.shopping": [{"version": "1", "transport": "rest"}]});
        }),
        ("keys that are no array", |p| p["keys"] = json!({})),
        ("a key that is no object", |p| p["keys"][0] = json!("key")),
        ("an array for the profile", |p| *p = json!([p.clone()])),
    ];
    for (what, spoil) in cases {
        let site = Site::default();
        let world = world(&site).await;
        let mut document = profile("buyer", &[jwk(&world.buyer)]);
        spoil(&mut document);
        site.serve(&world.buyer.profile, &document);
        assert_eq!(
            look(&world, &world.buyer).await.refusal(),
            UNKNOWN,
            "{what}"
        );
        assert_eq!(
            look(&world, &world.seller).await.status,
            200,
            "{what}: no other suffers"
        );
    }
}

#[tokio::test]
async fn what_the_binding_leaves_open_in_a_profile_is_let_pass() {
    let site = Site::default();
    let world = world(&site).await;
    let mut document = profile("buyer", &[jwk(&world.buyer)]);
    document["ucp"]["capabilities"]["com.example.other"] = json!([{"version": "2"}]);
    document["signing"] = json!(true);
    let config = &mut document["ucp"]["capabilities"]["dev.rctp.operator"][0]["config"];
    config["certifications"] = json!(["iso-27001"]);
    config["data_residency"] = json!(["CH", "EU"]);
    config["key_custody"] = json!("hsm");
    config["more"] = json!({});
    site.serve(&world.buyer.profile, &document);
    assert_eq!(look(&world, &world.buyer).await.status, 200);
}

#[tokio::test]
async fn a_profile_that_is_not_json_is_refused() {
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        "",
        "null",
        "<html></html>",
        "{\"ucp\": ",
        "{\"ucp\": {}, \"ucp\": {}}",
        "\u{feff}{}",
        "{} {}",
        nested.as_str(),
    ] {
        let site = Site::default();
        let world = world(&site).await;
        site.serve_bytes(&world.buyer.profile, body.to_owned(), None);
        assert_eq!(look(&world, &world.buyer).await.refusal(), UNKNOWN);
    }
    let site = Site::default();
    let world = world(&site).await;
    site.serve_bytes(&world.buyer.profile, &b"\xff\xfe{}"[..], None);
    assert_eq!(look(&world, &world.buyer).await.refusal(), UNKNOWN);
}

#[tokio::test]
async fn a_profile_that_is_not_onboarded_is_not_even_fetched() {
    let site = Site::default();
    let world = world(&site).await;
    for url in [
        "https://stranger.example/.well-known/ucp",
        "https://buyer.example/.well-known/ucp/",
        "https://buyer.example/.well-known/ucp?",
        "https://buyer.example/.well-known/ucp#a",
        "https://buyer.example:443/.well-known/ucp",
        "https://BUYER.example/.well-known/ucp",
        "https://buyer.example/.well-known/%75cp",
        "https://buyer.example//.well-known/ucp",
        "http://buyer.example/.well-known/ucp",
        "http://127.0.0.1/.well-known/ucp",
        "file:///etc/passwd",
        "",
    ] {
        let stranger = agent_at(&world, url);
        site.serve(url, &profile("stranger", &[jwk(&stranger)]));
        assert_eq!(look(&world, &stranger).await.refusal(), UNKNOWN, "{url}");
        assert_eq!(site.fetches(url), 0, "{url}");
    }
}

#[test]
fn an_operator_that_is_added_again_keeps_no_former_client() {
    let url = "https://a.example/.well-known/ucp";
    let operators = Operators::default()
        .with(Operator::new(url).client("former"))
        .with(Operator::new("https://b.example/.well-known/ucp").client("other"))
        .with(Operator::new(url).client("current"));
    assert!(operators.by_client("former").is_none());
    assert_eq!(operators.by_client("current").unwrap().profile(), url);
    assert!(operators.by_client("other").is_some());
}

// How long a profile is used.

#[tokio::test]
async fn a_profile_is_used_for_300_s_and_then_fetched_again() {
    let site = Site::default();
    let world = world(&site).await;
    let url = &world.buyer.profile;
    for (after, fetches) in [(0, 1), (1, 1), (298, 1), (1, 2), (299, 2), (1, 3)] {
        world.clock.advance(after);
        assert_eq!(look(&world, &world.buyer).await.status, 200);
        assert_eq!(site.fetches(url), fetches, "after {after} s more");
    }
}

#[tokio::test]
async fn the_origin_says_how_long_between_60_and_300_s() {
    for (max_age, seconds) in [
        (None, 300),
        (Some(0), 60),
        (Some(59), 60),
        (Some(60), 60),
        (Some(61), 61),
        (Some(120), 120),
        (Some(300), 300),
        (Some(301), 300),
        (Some(u64::MAX), 300),
    ] {
        let site = Site::default();
        let world = world(&site).await;
        let url = &world.buyer.profile;
        let document = profile("buyer", &[jwk(&world.buyer)]);
        site.serve_bytes(url, document.to_string(), max_age);
        assert_eq!(look(&world, &world.buyer).await.status, 200);
        world.clock.advance(seconds - 1);
        assert_eq!(look(&world, &world.buyer).await.status, 200);
        assert_eq!(site.fetches(url), 1, "{max_age:?}");
        world.clock.advance(1);
        assert_eq!(look(&world, &world.buyer).await.status, 200);
        assert_eq!(site.fetches(url), 2, "{max_age:?}");
    }
}

#[tokio::test]
async fn fifty_requests_at_once_share_one_fetch() {
    let site = Site::default();
    let world = Arc::new(world(&site).await);
    site.close();
    let requests: Vec<_> = (0..50)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move { look(&world, &world.buyer).await.status })
        })
        .collect();
    settle().await;
    assert_eq!(site.fetches(&world.buyer.profile), 1);
    site.open();
    for request in requests {
        assert_eq!(request.await.unwrap(), 200);
    }
    assert_eq!(site.fetches(&world.buyer.profile), 1);
}

#[tokio::test]
async fn a_slow_origin_holds_up_its_own_operator_only() {
    let site = Site::default();
    let world = Arc::new(world(&site).await);
    assert_eq!(look(&world, &world.seller).await.status, 200);
    site.close();
    let waiting = {
        let world = world.clone();
        tokio::spawn(async move { look(&world, &world.buyer).await.status })
    };
    settle().await;
    assert_eq!(look(&world, &world.seller).await.status, 200);
    assert!(!waiting.is_finished());
    site.open();
    assert_eq!(waiting.await.unwrap(), 200);
}

#[tokio::test]
async fn clients_that_hang_up_do_not_make_the_profile_be_fetched_again() {
    let site = Site::default();
    let world = Arc::new(world(&site).await);
    site.close();
    for _ in 0..10 {
        let world = world.clone();
        let request = tokio::spawn(async move { look(&world, &world.buyer).await.status });
        settle().await;
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
    }
    assert_eq!(site.fetches(&world.buyer.profile), 1);
    site.open();
    settle().await;
    assert_eq!(look(&world, &world.buyer).await.status, 200);
    assert_eq!(site.fetches(&world.buyer.profile), 1);

    // The same holds for forced refreshes.
    world.clock.advance(60);
    site.close();
    for _ in 0..10 {
        let world = world.clone();
        let request = tokio::spawn(async move { look(&world, &colleague(&world)).await.status });
        settle().await;
        request.abort();
    }
    site.open();
    settle().await;
    assert_eq!(site.fetches(&world.buyer.profile), 2);
    assert_eq!(look(&world, &world.buyer).await.status, 200);
}

#[tokio::test]
async fn an_unknown_keyid_forces_one_refresh_a_minute() {
    let site = Site::default();
    let world = Arc::new(world(&site).await);
    let url = world.buyer.profile.clone();
    assert_eq!(look(&world, &world.buyer).await.status, 200);
    for (after, fetches) in [(0, 1), (59, 1), (1, 2), (0, 2), (59, 2), (1, 3)] {
        world.clock.advance(after);
        let strangers: Vec<_> = (0..50)
            .map(|_| {
                let world = world.clone();
                tokio::spawn(async move { look(&world, &colleague(&world)).await.status })
            })
            .collect();
        for stranger in strangers {
            assert_eq!(stranger.await.unwrap(), 401);
        }
        assert_eq!(site.fetches(&url), fetches, "after {after} s more");
        assert_eq!(look(&world, &world.buyer).await.status, 200);
    }
}

#[tokio::test]
async fn a_key_that_is_rotated_in_works_after_a_forced_refresh() {
    let site = Site::default();
    let world = world(&site).await;
    let new = colleague(&world);
    assert_eq!(look(&world, &world.buyer).await.status, 200);
    site.serve(
        &world.buyer.profile,
        &profile("buyer", &[jwk(&world.buyer), jwk(&new)]),
    );
    assert_eq!(
        look(&world, &new).await.refusal(),
        UNKNOWN,
        "not within a minute"
    );
    world.clock.advance(60);
    assert_eq!(look(&world, &new).await.status, 200);
    assert_eq!(
        look(&world, &world.buyer).await.status,
        200,
        "both are listed"
    );
}

#[tokio::test]
async fn a_key_that_was_taken_out_stops_working_within_300_s() {
    let site = Site::default();
    let world = world(&site).await;
    let new = colleague(&world);
    assert_eq!(look(&world, &world.buyer).await.status, 200);
    site.serve(&world.buyer.profile, &profile("buyer", &[jwk(&new)]));
    world.clock.advance(299);
    assert_eq!(look(&world, &world.buyer).await.status, 200);
    world.clock.advance(1);
    assert_eq!(look(&world, &world.buyer).await.refusal(), UNKNOWN);
    assert_eq!(look(&world, &new).await.status, 200);
}

#[tokio::test]
async fn a_key_that_was_taken_out_stops_working_with_the_next_refresh() {
    let site = Site::default();
    let world = world(&site).await;
    let new = colleague(&world);
    assert_eq!(look(&world, &world.buyer).await.status, 200);
    site.serve(&world.buyer.profile, &profile("buyer", &[jwk(&new)]));
    world.clock.advance(60);
    assert_eq!(look(&world, &new).await.status, 200);
    assert_eq!(look(&world, &world.buyer).await.refusal(), UNKNOWN);
}

#[tokio::test]
async fn a_refresh_that_fails_takes_nothing_away_before_its_time() {
    for invalid in [false, true] {
        let site = Site::default();
        let world = world(&site).await;
        let url = world.buyer.profile.clone();
        assert_eq!(look(&world, &world.buyer).await.status, 200);
        if invalid {
            site.serve(&url, &json!({}));
        } else {
            site.remove(&url);
        }
        world.clock.advance(60);
        assert_eq!(look(&world, &colleague(&world)).await.refusal(), UNKNOWN);
        assert_eq!(site.fetches(&url), 2);
        assert_eq!(look(&world, &world.buyer).await.status, 200);
        // The failure is remembered too: no second refresh in its minute.
        assert_eq!(look(&world, &colleague(&world)).await.refusal(), UNKNOWN);
        assert_eq!(site.fetches(&url), 2);
        world.clock.advance(239);
        assert_eq!(look(&world, &world.buyer).await.status, 200);
        world.clock.advance(1);
        assert_eq!(
            look(&world, &world.buyer).await.refusal(),
            UNKNOWN,
            "300 s are over"
        );
    }
}

#[tokio::test]
async fn an_origin_that_is_down_makes_its_operator_unknown_until_it_is_up_again() {
    let site = Site::default();
    let world = world(&site).await;
    let url = world.buyer.profile.clone();
    site.remove(&url);
    for _ in 0..20 {
        assert_eq!(look(&world, &world.buyer).await.refusal(), UNKNOWN);
    }
    assert_eq!(
        site.fetches(&url),
        1,
        "an origin that is down is left alone for a while"
    );
    assert_eq!(look(&world, &world.seller).await.status, 200);
    site.serve(&url, &profile("buyer", &[jwk(&world.buyer)]));
    world.clock.advance(5);
    assert_eq!(look(&world, &world.buyer).await.status, 200);
    assert_eq!(site.fetches(&url), 2);
}

// How profiles are fetched, over real HTTP.

fn fetcher() -> HttpsFetch {
    HttpsFetch::new(true)
        .unwrap()
        .timeout(Duration::from_secs(10))
}

#[tokio::test]
async fn a_profile_comes_over_http_from_loopback_in_dev_mode() {
    let key = SigningKey::generate().unwrap();
    let document = profile("agent", &[key.public_jwk()]).to_string();
    let served = Arc::new(AtomicUsize::new(0));
    let router = {
        let served = served.clone();
        Router::new()
            .route(
                "/ucp",
                on_get(move || {
                    served.fetch_add(1, Ordering::SeqCst);
                    let document = document.clone();
                    async move { document }
                }),
            )
            .route("/moved", on_get(|| async { Redirect::temporary("/ucp") }))
            .route("/html", on_get(|| async { "<!doctype html>" }))
    };
    let origin = format!("http://{}", serve(router).await);
    for (path, status) in [
        ("/ucp", 200),
        ("/moved", 401),
        ("/html", 401),
        ("/none", 401),
    ] {
        let url = format!("{origin}{path}");
        let world = World::with(Tier::Auto, |b| {
            b.dev(true)
                .fetch_with(fetcher())
                .operators(Operators::onboarded([url.as_str()]))
        })
        .await;
        let agent = Agent {
            signer: Signer::new(&url, key.clone())
                .unwrap()
                .clock(world.clock.closure()),
            profile: url,
        };
        let answer = look(&world, &agent).await;
        assert_eq!(answer.status, status, "{path}: {:?}", answer.body);
        if status == 401 {
            assert_eq!(answer.error(), "operator_unknown");
        }
    }
    assert_eq!(
        served.load(Ordering::SeqCst),
        1,
        "the redirect was not followed"
    );
}

#[tokio::test]
async fn only_a_200_is_a_profile() {
    let router = Router::new().fallback(|uri: http::Uri| async move {
        let status: u16 = uri.path()[1..].parse().unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        (status, [(header::LOCATION, "/200")], "{}").into_response()
    });
    let origin = format!("http://{}", serve(router).await);
    let fetch = fetcher();
    assert_eq!(
        fetch.get(&format!("{origin}/200")).await.unwrap().body,
        "{}"
    );
    for status in [
        201, 203, 204, 206, 301, 302, 303, 307, 308, 400, 401, 403, 404, 410, 429, 500, 503,
    ] {
        let error = fetch.get(&format!("{origin}/{status}")).await.unwrap_err();
        assert!(error.0.contains(&status.to_string()), "{status}: {error}");
    }
}

#[tokio::test]
async fn a_profile_over_the_limit_is_not_read_to_its_end() {
    const LIMIT: usize = 256 * 1024;
    let chunk = Bytes::from(vec![b' '; 1024]);
    let whole = move |chunks: usize| {
        let chunk = chunk.clone();
        Scripted::new((0..chunks).map(move |_| chunk.clone()), Then::End)
    };
    let (at, over) = (whole.clone(), whole.clone());
    let router = Router::new()
        .route(
            "/at",
            on_get(|| async move { axum::body::Body::new(at(LIMIT / 1024)) }),
        )
        .route(
            "/over",
            on_get(|| async move { axum::body::Body::new(over(LIMIT / 1024 + 1)) }),
        )
        .route("/declared", on_get(|| async { vec![b' '; LIMIT + 1] }))
        .route(
            "/endless",
            on_get(|| async {
                axum::body::Body::new(Scripted::new(
                    [],
                    Then::Again(Bytes::from(vec![b' '; 1024])),
                ))
            }),
        );
    let origin = format!("http://{}", serve(router).await);
    // No timeout can help here.
    let fetch = HttpsFetch::new(true)
        .unwrap()
        .timeout(Duration::from_secs(60));
    assert_eq!(
        fetch.get(&format!("{origin}/at")).await.unwrap().body.len(),
        LIMIT
    );
    for path in ["/over", "/declared", "/endless"] {
        let error = fetch.get(&format!("{origin}{path}")).await.unwrap_err();
        assert!(error.0.contains("larger"), "{path}: {error}");
    }
}

#[tokio::test]
async fn an_origin_that_is_slow_silent_or_gone_is_given_up() {
    let begun = || Scripted::new([Bytes::from_static(b"{\"ucp\": ")], Then::Stall);
    let router = Router::new()
        .route(
            "/silent",
            on_get(|| async { std::future::pending::<String>().await }),
        )
        .route(
            "/stalled",
            on_get(move || async move { axum::body::Body::new(begun()) }),
        )
        .route(
            "/broken",
            on_get(|| async {
                let chunks = [Bytes::from_static(b"{\"ucp\": ")];
                axum::body::Body::new(Scripted::new(chunks, Then::Break))
            }),
        )
        .route(
            "/short",
            on_get(|| async {
                let body = Scripted::new([Bytes::from_static(b"{}")], Then::Break).declaring(100);
                axum::body::Body::new(body)
            }),
        );
    let origin = format!("http://{}", serve(router).await);
    let impatient = fetcher().timeout(Duration::from_millis(300));
    for path in ["/silent", "/stalled", "/broken", "/short"] {
        assert!(
            impatient.get(&format!("{origin}{path}")).await.is_err(),
            "{path}"
        );
    }
    let gone = format!("http://127.0.0.1:{}/ucp", closed_port().await);
    assert!(impatient.get(&gone).await.is_err());
}

#[tokio::test]
async fn cache_control_says_how_long_a_profile_may_be_kept() {
    let lines: &[(&[&str], Option<u64>)] = &[
        (&[], None),
        (&["public"], None),
        (&["max-age=120"], Some(120)),
        (&["public, max-age=120"], Some(120)),
        (&["Max-Age=\"120\""], Some(120)),
        (&["max-age=120", "max-age=90"], Some(90)),
        (&["max-age=soon"], None),
        (&["max-age=-1"], None),
        (&["no-store"], Some(0)),
        (&["no-cache, max-age=300"], Some(0)),
        (&["max-age=300", "NO-STORE"], Some(0)),
        (&["s-maxage=10"], None),
    ];
    for (lines, max_age) in lines {
        let lines: Vec<&'static str> = lines.to_vec();
        let router = Router::new().route(
            "/",
            on_get(move || async move {
                let mut response = "{}".into_response();
                for line in lines {
                    response
                        .headers_mut()
                        .append(header::CACHE_CONTROL, line.parse().unwrap());
                }
                response
            }),
        );
        let origin = format!("http://{}", serve(router).await);
        let fetched = fetcher().get(&format!("{origin}/")).await.unwrap();
        assert_eq!(fetched.max_age, *max_age);
    }
}

#[tokio::test]
async fn special_use_addresses_are_refused_as_literals_and_as_names() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let strict = HttpsFetch::new(false)
        .unwrap()
        .timeout(Duration::from_secs(5));
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "0177.0.0.1",
        "2130706433",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0.0.0.0",
        "[::]",
        "localhost",
        "LOCALHOST",
        "10.0.0.1",
        "169.254.169.254",
        "[fe80::1]",
        "[fd00::1]",
        "[64:ff9b::7f00:1]",
    ] {
        let error = strict
            .get(&format!("https://{host}:{port}/"))
            .await
            .unwrap_err();
        assert!(error.0.contains("special-use"), "{host}: {error}");
        assert!(
            strict.get(&format!("http://{host}:{port}/")).await.is_err(),
            "{host} by http"
        );
    }
    for url in [
        "https://user@127.0.0.1/",
        "https://127.0.0.1/#x",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "127.0.0.1",
        "",
    ] {
        assert!(strict.get(url).await.is_err(), "{url}");
    }
    // Development opens loopback and nothing else.
    for url in [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest",
        "https://192.168.0.1/",
        "http://a.example/",
    ] {
        assert!(fetcher().get(url).await.is_err(), "{url}");
    }
    let nobody = listener.accept().map(drop).map_err(|e| e.kind());
    assert_eq!(
        nobody,
        Err(std::io::ErrorKind::WouldBlock),
        "nothing was connected to"
    );
}

/// Runs itself in a process whose environment names a proxy, since a test must not change its own.
#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    const CHILD: &str = "A_PROXY_IS_SET";
    let served = serve(Router::new().route("/", on_get(|| async { "{}" }))).await;
    if std::env::var_os(CHILD).is_some() {
        let fetched = fetcher().get(&format!("http://{served}/")).await.unwrap();
        assert_eq!(fetched.body, "{}");
        return;
    }
    loopback::passes_beside_a_proxy("proxies_of_the_environment_are_not_used", CHILD).await;
}

// The gateway's own keys.

/// Who reads a checkout, an entry or a webhook finds the key under its thumbprint, and the UCP baseline algorithm.
#[tokio::test]
async fn the_gateway_signs_with_p_256_keys_that_are_named_by_their_thumbprint() {
    let world = World::new().await;
    let jwk = world.rctp.profile()["keys"][0].clone();
    assert_eq!(
        (&jwk["kty"], &jwk["crv"], &jwk["alg"]),
        (&json!("EC"), &json!("P-256"), &json!("ES256"))
    );
    // RFC 7638: the required members alone.
    let named = json!({"crv": jwk["crv"], "kty": jwk["kty"], "x": jwk["x"], "y": jwk["y"]});
    let thumbprint = base64url(&sha256(&jcs::canonical(&named).unwrap()));
    assert_eq!(jwk["kid"], thumbprint);

    let offer = world.offer(FLOOR + 1).await;
    let path = format!("/offers/{}/accept", offer.get("offer_id"));
    let accepted = world.seller_post(&path, &json!({})).await;
    let chain = world
        .chain(SubjectKind::Negotiation, &offer.get("negotiation_id"))
        .await;
    for jws in [
        accepted.get("checkout"),
        chain[0]["jws"].as_str().unwrap().into(),
    ] {
        let parts: Vec<&str> = jws.split('.').collect();
        let header: Value = serde_json::from_slice(&from_base64url(parts[0]).unwrap()).unwrap();
        assert_eq!(
            (&header["alg"], &header["kid"]),
            (&json!("ES256"), &jwk["kid"])
        );
        // r and s, 32 bytes each, and no DER around them.
        assert_eq!(from_base64url(parts[2]).unwrap().len(), 64);
    }
}

#[tokio::test]
async fn a_private_key_is_in_no_profile_record_log_or_example() {
    let (logs, listening) = Logs::listen();
    let world = World::new().await;
    let offer = world.offer(FLOOR + 1).await;
    let path = format!("/offers/{}/accept", offer.get("offer_id"));
    let accepted = world.seller_post(&path, &json!({})).await;
    assert_eq!(accepted.status, 200, "{:?}", accepted.body);
    let chain = world
        .chain(SubjectKind::Negotiation, &offer.get("negotiation_id"))
        .await;
    let profile = world.rctp.profile();
    let debug = format!("{:?}", world.rctp);
    drop(listening);
    for key in [
        &world.gateway_key,
        world.buyer.signer.key(),
        world.seller.signer.key(),
    ] {
        let pem = key.to_pkcs8_pem().unwrap();
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, &body).unwrap();
        // PKCS #8 of a P-256 key: the private scalar follows `04 20`.
        let at = der.windows(2).position(|two| two == [4, 32]).unwrap() + 2;
        let scalar = &der[at..at + 32];
        let hex: String = scalar.iter().map(|byte| format!("{byte:02x}")).collect();
        let forms = [
            base64url(scalar),
            hex,
            format!("{scalar:?}"),
            body[..40].to_owned(),
        ];
        for said in [
            profile.to_string(),
            json!(chain).to_string(),
            logs.text(),
            debug.clone(),
            format!("{key:?}"),
        ] {
            for form in &forms {
                assert!(!said.contains(form.as_str()), "{said}");
            }
        }
    }
    assert!(!profile.to_string().contains("\"d\""), "{profile}");

    // What is shown as an example: a PEM would be a line of its own, a JWK would have `d`.
    for file in files(&["examples", "docs", "schemas", "README.md"]) {
        let text = fs::read_to_string(&file).unwrap();
        for private in ["-----BEGIN PRIVATE KEY-----\nM", "\"d\":", "\"d\" :"] {
            assert!(!text.contains(private), "{}", file.display());
        }
    }
}

/// INV-8: nothing of ours computes a signature, a cipher or a digest, and few places ask the crates that do.
#[test]
fn inv_8_cryptography_is_that_of_the_crates_and_is_asked_for_in_few_places() {
    const CRATES: [&str; 10] = [
        "aws_lc_rs::",
        "chacha20poly1305::",
        "ed25519_dalek::",
        "getrandom::",
        "hkdf::",
        "hmac::",
        "p256::",
        "p384::",
        "sha2::",
        "webauthn_rs_core::",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let asking: BTreeSet<String> = files(&["src"])
        .into_iter()
        .filter(|file| {
            let text = fs::read_to_string(file).unwrap();
            let lines = text
                .lines()
                .map(str::trim)
                .filter(|line| !line.starts_with("//"));
            lines
                .into_iter()
                .any(|line| CRATES.iter().any(|name| line.contains(name)))
        })
        .map(|file| {
            let file = file.strip_prefix(root.join("src")).unwrap().to_owned();
            file.to_string_lossy().replace('\\', "/")
        })
        .collect();
    let known = [
        "layer/context.rs",
        "service/passkeys.rs",
        "wire/crypto/aws_lc.rs",
        "wire/crypto/pure.rs",
        "wire/digest.rs",
        "wire/sealed.rs",
    ];
    assert_eq!(asking, known.map(str::to_owned).into());
}

/// The text files under these, below the root of the project.
fn files(of: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut left: Vec<PathBuf> = of.iter().map(|name| root.join(name)).collect();
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            found.push(path);
        }
    }
    assert!(found.len() >= of.len());
    found
}
