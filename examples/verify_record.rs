//! Verifies a deal's record, and says what each entry is.
//!
//! ```text
//! cargo run --example verify_record -- events.json --keys gateway.json --writers carrier.json --writers holder.json
//! ```
//!
//! The file holds answers of `GET /deals/{id}/events`, one page after the other (as `cargo run --example sign -- --body-only
//! … | sh >> events.json` leaves them, or in an array), or an array of entries. `--keys` is the gateway's profile (`GET /.well-known/ucp`), from a place that you
//! trust: without it only the hashes are looked at, which shows damage and no forgery. `--writers` are the profiles of
//! those who wrote events. The first thing that does not fit ends it with exit status 1.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value, json};
use tower_rctp::{
    client::{verify_events, verify_record},
    protocol::{record::verify_links, schema},
    wire::{crypto::default_provider, jwk::Keys},
};

/// Verifies a deal's record: the chain, its signed heads, and the events in it.
#[derive(Parser)]
struct Args {
    /// Answers of GET /deals/{id}/events, or an array of entries.
    file: PathBuf,
    /// The gateway's profile; without it no signature of the gateway is checked.
    #[arg(long, value_name = "PROFILE.json")]
    keys: Option<PathBuf>,
    /// The deal whose record it should be.
    #[arg(long, value_name = "DEAL_ID")]
    deal: Option<String>,
    /// A profile of somebody who wrote events; may be given more than once.
    #[arg(long, value_name = "PROFILE.json")]
    writers: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verify_record: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut writers = Vec::new();
    for profile in &args.writers {
        writers.extend(keys_of(profile)?);
    }
    // The same key in two profiles is one key.
    writers.sort_by_key(|jwk| jwk["kid"].to_string());
    writers.dedup_by(|a, b| a["kid"] == b["kid"]);
    let writers = Keys::parse(&json!(writers), default_provider())?;

    let (entries, heads) = read(&args.file)?;
    if entries.is_empty() {
        return Err(format!("{}: there is no entry in it", args.file.display()).into());
    }
    let (told, covered) = match &args.keys {
        Some(profile) => {
            let keys = Keys::parse(&json!(keys_of(profile)?), default_provider())?;
            let verified = verify_record(&entries, &heads, &keys, &writers)?;
            (verified.told, Some(verified.covered))
        }
        None => {
            verify_links(&entries)?;
            (verify_events(&entries, &writers)?, None)
        }
    };
    // A chain has one subject.
    let subject = &entries[0]["subject"];
    let (kind, id) = (name(&subject["type"]), name(&subject["id"]));
    if let Some(expected) = args.deal.as_deref().filter(|expected| *expected != id) {
        return Err(format!("this is the record of {kind} {id}, and not of {expected}").into());
    }
    println!("the record of {kind} {id}");
    for entry in &told {
        println!("{entry}");
    }
    let count = told.len();
    match covered {
        None => println!(
            "{count} entries, their hashes fit; no signature of the gateway was checked (--keys)"
        ),
        Some(0) => println!(
            "{count} entries verified; there is no head, so that a cut tail would not show"
        ),
        Some(covered) if covered < count => println!(
            "{count} entries verified; the newest head covers the first {covered}, so that a tail cut after those would not \
             show: get the record again"
        ),
        Some(_) => println!("{count} entries verified, up to the signed head"),
    }
    Ok(())
}

fn name(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The entries in the file, and the heads.
fn read(file: &Path) -> Result<(Vec<Value>, Vec<Value>), Box<dyn Error>> {
    let (mut entries, mut heads) = (Vec::new(), Vec::new());
    let text = text(file)?;
    let mut values = Deserializer::from_str(&text).into_iter::<IgnoredAny>();
    let mut begins = 0;
    while let Some(value) = values.next() {
        value.map_err(|e| format!("{}: {e}", file.display()))?;
        let ends = values.byte_offset();
        // It refuses members that are there twice: other readers might see the other one.
        let value = schema::parse(&text.as_bytes()[begins..ends])
            .map_err(|e| format!("{}: {e}", file.display()))?;
        begins = ends;
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for mut value in values {
            match value.get_mut("entries").map(Value::take) {
                Some(Value::Array(page)) => {
                    let of = page.iter().map(|entry| &entry["subject"]["id"]);
                    if let Some(other) = of.clone().find(|id| **id != value["deal_id"]) {
                        return Err(format!(
                            "{}: a page of {} has an entry of {other}",
                            file.display(),
                            value["deal_id"]
                        )
                        .into());
                    }
                    entries.extend(page);
                    heads.extend(value.get("head").cloned());
                }
                Some(_) => return Err(format!("{}: entries is no array", file.display()).into()),
                None => entries.push(value),
            }
        }
    }
    Ok((entries, heads))
}

fn keys_of(profile: &Path) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut value: Value =
        serde_json::from_str(&text(profile)?).map_err(|e| format!("{}: {e}", profile.display()))?;
    match value["keys"].take() {
        Value::Array(keys) => Ok(keys),
        _ => Err(format!("{}: a profile has keys", profile.display()).into()),
    }
}

fn text(file: &Path) -> Result<String, Box<dyn Error>> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()).into())
}
