//! Events that could not be delivered to operators, for whoever runs the marketplace: listed, sent again, thrown away. The
//! gateway may run meanwhile; it looks into its outbox every few seconds.

use std::{fmt, io::Write};

use tower_rctp::{Rctp, store::SqliteStore};

use super::{Error, app, config::Config};

/// How many are read at a time.
const PAGE: usize = 100;

/// What to do with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    List,
    /// The one of this id, or `all`.
    Resend(String),
    Discard(String),
}

/// Does it, and says on `out` what was done, an event a line.
pub async fn run(config: &Config, order: &Order, out: &mut dyn Write) -> Result<(), Error> {
    if !config.store.exists() {
        let why = format!(
            "there is no {}; has this gateway run?",
            config.store.display()
        );
        return Err(Error::setting("store", why));
    }
    let store = SqliteStore::open(&config.store).await;
    let rctp = app::aside(config, store.map_err(|e| Error::setting("store", e))?)?;
    match order {
        Order::List => list(&rctp, out).await,
        Order::Resend(all) if all == "all" => {
            let mut after = None;
            while let Some(ids) = page(&rctp, &mut after).await? {
                for id in ids {
                    if rctp.resend(&id).await.map_err(failed)? {
                        writeln!(out, "{id} is sent again").map_err(failed)?;
                    }
                }
            }
            Ok(())
        }
        Order::Resend(id) => match rctp.resend(id).await.map_err(failed)? {
            true => writeln!(out, "{id} is sent again").map_err(failed),
            false => Err(none(id)),
        },
        Order::Discard(id) => match rctp.discard(id).await.map_err(failed)? {
            true => writeln!(out, "{id} is thrown away").map_err(failed),
            false => Err(none(id)),
        },
    }
}

async fn list(rctp: &Rctp, out: &mut dyn Write) -> Result<(), Error> {
    let mut after = None;
    loop {
        let letters = rctp.dead_letters(after, PAGE).await.map_err(failed)?;
        for letter in &letters {
            let kind = serde_json::to_value(letter.event).unwrap_or_default();
            writeln!(
                out,
                "{} {} {} of {} to {} after {} tries",
                letter.event_id,
                letter.created_at,
                kind.as_str().unwrap_or_default(),
                letter.subject,
                letter.receiver,
                letter.attempts
            )
            .map_err(failed)?;
        }
        match letters.last() {
            Some(last) => after = Some(last.event_id.clone()),
            None => return Ok(()),
        }
    }
}

/// The ids after `after`, which moves on.
async fn page(rctp: &Rctp, after: &mut Option<String>) -> Result<Option<Vec<String>>, Error> {
    let letters = rctp
        .dead_letters(after.clone(), PAGE)
        .await
        .map_err(failed)?;
    let ids: Vec<String> = letters.into_iter().map(|letter| letter.event_id).collect();
    *after = ids.last().cloned();
    Ok(after.is_some().then_some(ids))
}

fn none(id: &str) -> Error {
    Error(format!(
        "there is no dead letter {id}; --dead-letters lists them"
    ))
}

fn failed(error: impl fmt::Display) -> Error {
    Error(format!("dead letters: {error}"))
}
