//! A seller, their agent and two buyers' agents play a whole sale against a gateway: with real keys and a real passkey,
//! over HTTP, from the seller's enrolment to the verified record.
//!
//! ```text
//! cargo run --example sale                                   starts a gateway of its own, on a free port
//! cargo run --example sale -- --url http://127.0.0.1:8080    plays against the development world of a running one
//! ```
//!
//! One line a step: who does what, and what was decided. The first answer that is not what the binding says ends it with
//! exit status 1.
//!
//! | file | what is in it |
//! |---|---|
//! | `main` | the command line |
//! | `play` | who does what, in order |
//! | `seller`, `browser` | a person at the marketplace's pages, and the browser with the passkey |
//! | `agent`, `oauth` | agents: requests, signed or not; and how one gets its tokens |
//! | `answer` | what came back |
#![allow(unreachable_pub)] // a program has no outside: `pub` is for the other files

mod agent;
mod answer;
mod browser;
#[allow(dead_code, unused_imports)]
#[path = "../gateway/main.rs"]
mod gateway;
mod oauth;
mod play;
mod seller;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;

use self::{
    answer::Failure,
    gateway::{Config, DevWorld},
    play::play,
};

/// Plays a whole sale: a passkey, a grant, a listing with the seller's terms, refusals, approvals, a deal, attacks, and
/// the record.
#[derive(Parser)]
struct Args {
    /// A running gateway's URL; without it one is started in this process, with a temporary store.
    #[arg(long)]
    url: Option<String>,
    /// The running gateway's development directory, for the agents' keys.
    #[arg(long, value_name = "DIR", default_value = "rctp-dev")]
    dev_dir: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sale: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Failure> {
    let Some(url) = args.url else {
        let directory = tempfile::tempdir()?;
        let running = gateway::start(Config::dev_in(directory.path())).await?;
        let world = running.world.clone();
        let world = world.ok_or("the gateway has no development world")?;
        println!("a gateway listens on {}", world.url);
        let played = play(world).await;
        running.stop().await;
        return played;
    };
    let mut world = DevWorld::load(&args.dev_dir)?;
    world.url = url.trim_end_matches('/').to_owned();
    play(world).await
}
