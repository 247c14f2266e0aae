//! Structured logs. No token, secret, header or body is ever logged.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use super::{Error, config::LogFormat};

/// Sends log lines to standard error, filtered by `filter`.
pub fn init(filter: &str, format: LogFormat) -> Result<(), Error> {
    let filter = EnvFilter::try_new(filter).map_err(|e| {
        Error::setting(
            "--log",
            format!("`{filter}` is no filter: {e}; write a level such as info"),
        )
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr);
    let set = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    set.map_err(|e| Error(format!("logs cannot be set up: {e}")))
}
