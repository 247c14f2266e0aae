//! How many signed offers a second does a gateway take? Over loopback HTTP, through every layer, into SQLite.
//!
//! ```text
//! cargo run --release --example load
//! cargo run --release --example load -- --connections 64 --seconds 5 --rounds 3
//! ```
//!
//! In turns with it, the same writer is given the like units by as many committers with one transaction each, with no
//! HTTP and no signatures to check. The last line gives throughput, latencies, and the ratio to that single rate. The
//! file lies in the directory that `--dir` names, so that syncs are real; keep it off tmpfs.

use std::{
    error::Error,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Parser;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::{net::TcpStream, runtime::Runtime};
use tower_rctp::{
    client::Signer,
    store::{SqliteOptions, SqliteStore},
    wire::jwk::SigningKey,
};

#[allow(dead_code)]
#[path = "../benches/store/committers.rs"]
mod committers;
#[allow(dead_code, unused_imports)]
#[path = "gateway/main.rs"]
mod gateway;

type Failure = Box<dyn Error + Send + Sync>;

/// Measures signed create_offer over HTTP into SQLite beside the store's single rate.
#[derive(Parser)]
struct Args {
    /// Connections, each with one request at a time; as many committers for the single rate.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How long each measurement lasts, in seconds. Requests are signed before it, and signatures age: 40 at most.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=40))]
    seconds: u64,
    /// How often both are measured, in turns; medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Where the files go.
    #[arg(long, default_value = ".", value_name = "DIR")]
    dir: PathBuf,
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let (mut single, mut offers) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        let alone = single_rate(&args)?;
        let taken = Runtime::new()?.block_on(over_http(&args))?;
        println!(
            "round {round}: one transaction a unit {alone:.0}/s · offers over HTTP {:.0}/s, p50 {:.1} ms, p99 {:.1} ms",
            taken.rate, taken.p50, taken.p99
        );
        single.push(alone);
        offers.push(taken);
    }
    single.sort_by(f64::total_cmp);
    offers.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let (single, offers) = (single[single.len() / 2], &offers[offers.len() / 2]);
    println!(
        "create_offer over HTTP, {} connections: {:.0}/s, p50 {:.1} ms, p99 {:.1} ms · single {single:.0}/s · HTTP/single {:.2}",
        args.connections,
        offers.rate,
        offers.p50,
        offers.p99,
        offers.rate / single
    );
    Ok(())
}

/// The writer with one transaction a unit, from as many committers.
fn single_rate(args: &Args) -> Result<f64, Failure> {
    let directory = tempfile::TempDir::new_in(&args.dir)?;
    let runtime = Runtime::new()?;
    let options = SqliteOptions {
        max_group: 1,
        ..SqliteOptions::default()
    };
    let store = runtime.block_on(SqliteStore::open_with(
        directory.path().join("single.db"),
        options,
    ))?;
    let key = Arc::new(SigningKey::generate()?);
    Ok(committers::rate(
        &runtime,
        store,
        &key,
        args.connections as u64,
    ))
}

struct Taken {
    /// Offers a second.
    rate: f64,
    /// Latencies in milliseconds.
    p50: f64,
    p99: f64,
}

/// Signed offers over loopback HTTP to a gateway in this process.
async fn over_http(args: &Args) -> Result<Taken, Failure> {
    let directory = tempfile::TempDir::new_in(&args.dir)?;
    let running = gateway::start(gateway::Config::dev_in(directory.path())).await?;
    let taken = offer(args, &running).await;
    running.stop().await;
    taken
}

async fn offer(args: &Args, running: &gateway::app::Running) -> Result<Taken, Failure> {
    let world = running
        .world
        .as_ref()
        .ok_or("the gateway has no development world")?;
    let agent = &world.agents.buyer;
    let signer = Signer::new(&agent.profile, agent.key.clone())?;
    let body = Bytes::from(
        json!({
            "listing_id": world.listing_id,
            "deal_terms": {
                "price": {"amount": 59_900, "currency": "EUR"},
                "fulfillment": {"method_type": "shipping", "selected_option_id": "standard"},
                "payment": {"selected_term_id": "prepaid"},
            },
        })
        .to_string(),
    );
    let url = format!("{}/offers", world.url);
    let sign = || -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::post(&url)
            .header(header::HOST, running.address.to_string())
            .body(body.clone())?;
        signer.sign(&mut request)?;
        *request.uri_mut() = http::Uri::from_static("/offers");
        Ok(request.map(Full::new))
    };

    // The first offer opens the negotiation and has the profile fetched.
    let mut connection = connect(running.address).await?;
    take(&mut connection, sign()?).await?;

    // More than can be taken in the time, signed before the clock runs.
    const MOST_PER_SECOND: usize = 9_000;
    let each = MOST_PER_SECOND * args.seconds as usize / args.connections + 1;
    let mut work = Vec::new();
    for _ in 0..args.connections {
        let requests = (0..each).map(|_| sign()).collect::<Result<Vec<_>, _>>()?;
        work.push((connect(running.address).await?, requests));
    }

    let start = Instant::now();
    let end = start + Duration::from_secs(args.seconds);
    let tasks: Vec<_> = work
        .into_iter()
        .map(|(mut connection, requests)| {
            tokio::spawn(async move {
                let mut latencies = Vec::with_capacity(requests.len());
                for request in requests {
                    let began = Instant::now();
                    if began >= end {
                        return Ok(latencies);
                    }
                    take(&mut connection, request).await?;
                    latencies.push(began.elapsed());
                }
                Err(Failure::from(
                    "all requests were taken before the time was over",
                ))
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let elapsed = start.elapsed().as_secs_f64();
    latencies.sort();
    let at = |share: usize| latencies[(latencies.len() * share / 100).min(latencies.len() - 1)];
    Ok(Taken {
        rate: latencies.len() as f64 / elapsed,
        p50: at(50).as_secs_f64() * 1e3,
        p99: at(99).as_secs_f64() * 1e3,
    })
}

type Connection = http1::SendRequest<Full<Bytes>>;

async fn connect(address: std::net::SocketAddr) -> Result<Connection, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn take(connection: &mut Connection, request: Request<Full<Bytes>>) -> Result<(), Failure> {
    connection.ready().await?;
    let response = connection.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if status != StatusCode::CREATED {
        return Err(format!(
            "an offer was answered {status}: {}",
            String::from_utf8_lossy(&body)
        )
        .into());
    }
    Ok(())
}
