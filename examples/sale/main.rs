//! A seller, their agent, two buyers' agents, a carrier and a holder of funds play a whole sale against a gateway: with
//! real keys and a real passkey, over HTTP, from the seller's enrolment to the verified record; then both ways to a
//! refund.
//!
//! ```text
//! cargo run --example sale                                   starts a gateway of its own, on a free port
//! cargo run --example sale -- --url http://127.0.0.1:8080    plays against the development world of a running one
//! cargo run --example sale -- --transport mcp                the agents call the operations as tools
//! ```
//!
//! One line a step: who does what, and what was decided. The first answer that is not what the binding says ends it
//! with exit status 1. A buyer may say that nothing came only once the days to deliver have passed. Nobody waits for
//! that: a gateway of its own gets a second one over the same store, whose clock is ahead. A running gateway has its
//! own clock, so there this refund ends where it is refused for being too early.
//!
//! | file | what is in it |
//! |---|---|
//! | `main` | the command line |
//! | `play` | who does what, in order |
//! | `seller`, `browser` | a person at the marketplace's pages, and the browser with the passkey |
//! | `refunds`, `later` | a bicycle that is not as described, and one that never comes; the gateway days later |
//! | `oauth` | how an agent gets its tokens |
//! | `answer` | what came back |
#![allow(unreachable_pub)] // a program has no outside: `pub` is for the other files

mod answer;
pub mod browser;
#[allow(dead_code, unused_imports)]
#[path = "../gateway/main.rs"]
pub mod gateway;
mod later;
mod oauth;
mod play;
mod refunds;
mod seller;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, ValueEnum};

use self::{
    answer::Failure,
    gateway::{Config, DevWorld},
    play::{Played, play},
};

/// Plays a whole sale: a passkey, a grant, a listing with the seller's terms, refusals, approvals, a deal, attacks, the
/// record, and two refunds.
#[derive(Parser)]
pub struct Args {
    /// A running gateway's URL; without it one is started in this process, with a temporary store.
    #[arg(long)]
    url: Option<String>,
    /// The running gateway's development directory, for the agents' keys.
    #[arg(long, value_name = "DIR", default_value = "rctp-dev")]
    dev_dir: PathBuf,
    /// How agents call; what is no tool goes over REST either way.
    #[arg(long, value_enum, default_value_t = Transport::Rest)]
    transport: Transport,
}

/// How agents call a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Each operation at its own path.
    Rest,
    /// Tools of the MCP endpoint.
    Mcp,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(played) => {
            println!("{played}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sale: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays it, against a gateway of its own or a running one.
pub async fn run(args: Args) -> Result<Played, Failure> {
    let Some(url) = args.url else {
        let directory = tempfile::tempdir()?;
        let config = Config::dev_in(directory.path());
        let running = gateway::start(config.clone()).await?;
        let world = running.world.clone();
        let world = world.ok_or("the gateway has no development world")?;
        println!("a gateway listens on {}", world.url);
        let played = play(world, Some(&config), args.transport).await;
        running.stop().await;
        return played;
    };
    let mut world = DevWorld::load(&args.dev_dir)?;
    world.url = url.trim_end_matches('/').to_owned();
    play(world, None, args.transport).await
}
