//! Binding 1: keys and UCP profiles. Which profiles and keys are taken, how long, and how they are fetched.
#![allow(clippy::unwrap_used)]

#[path = "common/bodies.rs"]
mod bodies;
mod common;
#[path = "common/loopback.rs"]
mod loopback;
#[path = "common/signing.rs"]
mod signing;
#[path = "common/site.rs"]
mod site;

use std::{
    net::TcpListener,
    process::Command,
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
use common::{Agent, Answer, LISTING, World, get, profile};
use http::{StatusCode, header};
use loopback::{closed_port, serve};
use serde_json::{Value, json};
use signing::{SIGNATURE_INPUT, set, signed};
use site::Site;
use tower_rctp::{
    client::Signer,
    layer::authenticate::{
        fetch::{Fetch, HttpsFetch},
        operators::{Operator, Operators},
    },
    protocol::policy::Tier,
    wire::jwk::SigningKey,
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

// Which profiles are taken.

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

// How profiles are fetched, over real HTTP.

fn fetcher() -> HttpsFetch {
    HttpsFetch::new(true)
        .unwrap()
        .timeout(Duration::from_secs(10))
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
