//! The reference marketplace as a program.
//!
//! ```text
//! cargo run --example gateway                        a development world on http://127.0.0.1:8080
//! cargo run --example gateway -- --config FILE       a marketplace of your own; see gateway.toml
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | `config` | the command line, the environment and the settings file |
//! | `app` | puts RCTP and the routes together: [`start`] |
//! | `serve` | connections: limits, deadlines, graceful shutdown |
//! | `limits` | how many requests at once, and in a second |
//! | `metrics`, `telemetry` | what it tells about itself |
//! | `files` | keys and secrets on disk |
//! | `dead_letters` | webhooks that could not be delivered: listed, sent again |
//! | `dev`, `authorization` | the development world and its authorization server |
//!
//! Other programs may include this file as a module and run the gateway in their own process:
//! `#[path = "gateway/main.rs"] mod gateway;`, then [`start`].
#![allow(unreachable_pub)] // a program has no outside: `pub` is for the other files

pub(crate) mod app;
pub(crate) mod authorization;
pub(crate) mod config;
pub(crate) mod dead_letters;
pub(crate) mod dev;
pub(crate) mod files;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod serve;
pub(crate) mod telemetry;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;

pub(crate) use self::{
    app::{Error, start},
    config::{Cli, Config},
    dev::DevWorld,
};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A request makes some 250 small allocations, and hands them from thread to thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The program: starts, waits for SIGINT or SIGTERM, and stops. SIGHUP has the settings read again.
pub async fn run(cli: Cli) -> Result<(), Error> {
    let config = cli.config()?;
    if cli.check {
        app::check(&config)?;
        println!("the settings are fine");
        return Ok(());
    }
    if let Some(order) = cli.order() {
        return dead_letters::run(&config, &order, &mut io::stdout()).await;
    }
    let endpoint = &config.telemetry.otlp_endpoint;
    let telemetry = telemetry::init(&cli.log, cli.log_format, endpoint)?;
    let stop = serve::stop_signal()?;
    // Without a file there is nothing to read again, and a terminal that is closed ends the program.
    let mut hangups = serve::hangups(cli.config.is_some())?;
    let dev_dir = config.dev_dir.clone();
    let mut running = start(config).await?;
    if let (Some(world), Some(authorization)) = (&running.world, &running.authorization) {
        let enrolment = dev::enrolment(authorization, &world.seller_sub).await?;
        // Whether anybody reads it does not matter.
        let _ = writeln!(io::stdout(), "{}", world.banner(&dev_dir, &enrolment));
    }
    tracing::info!(address = %running.address, public_url = running.rctp.public_url(), "listening");
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            () = hangups.next() => running.reload_from(&cli),
        }
    }
    tracing::info!("stopping: requests in progress are completed, no new ones are taken");
    running.stop().await;
    telemetry.end().await;
    tracing::info!("stopped");
    Ok(())
}
