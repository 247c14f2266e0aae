//! Structured logs, and spans for a collector. No token, secret, header or body is ever told.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::{EnvFilter, Layer, Registry, prelude::*};

use super::{Error, config::LogFormat};

/// Sends log lines to standard error, filtered by `filter`, and spans to the collector at `endpoint`, or at the one that
/// the environment names; with neither, nowhere.
pub fn init(filter: &str, format: LogFormat, endpoint: &str) -> Result<Telemetry, Error> {
    let filter = EnvFilter::try_new(filter).map_err(|e| {
        Error::setting(
            "--log",
            format!("`{filter}` is no filter: {e}; write a level such as info"),
        )
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let (telemetry, spans) = Telemetry::open(endpoint)?;
    let set = tracing_subscriber::registry()
        .with(spans)
        .with(lines.with_filter(filter))
        .try_init();
    set.map_err(|e| Error(format!("logs cannot be set up: {e}")))?;
    Ok(telemetry)
}

/// What sends spans, if anything does.
pub struct Telemetry {
    #[cfg(feature = "otlp")]
    otlp: Option<tower_rctp::otlp::Otlp>,
}

type Spans = Box<dyn Layer<Registry> + Send + Sync>;

#[cfg(not(feature = "otlp"))]
impl Telemetry {
    fn open(_: &str) -> Result<(Self, Option<Spans>), Error> {
        Ok((Self {}, None))
    }

    /// Sends what is left.
    pub async fn end(self) {}
}

#[cfg(feature = "otlp")]
impl Telemetry {
    fn open(endpoint: &str) -> Result<(Self, Option<Spans>), Error> {
        use tracing_subscriber::filter::{LevelFilter, Targets};

        const ENVIRONMENT: [&str; 2] = [
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        ];
        let endpoint = (!endpoint.is_empty()).then_some(endpoint);
        let named = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if endpoint.is_none() && !ENVIRONMENT.into_iter().any(named) {
            return Ok((Self { otlp: None }, None));
        }
        let otlp = tower_rctp::otlp::Otlp::install("rctp-gateway", endpoint)
            .map_err(|e| Error::setting("telemetry.otlp_endpoint", e))?;
        // Whatever the log shows; and not what the exporter itself sends.
        let ours = Targets::new().with_target("tower_rctp", LevelFilter::DEBUG);
        let spans = otlp.layer().with_filter(ours).boxed();
        Ok((Self { otlp: Some(otlp) }, Some(spans)))
    }

    /// Sends what is left.
    pub async fn end(self) {
        let Some(otlp) = self.otlp else { return };
        // It waits for the collector.
        let done = tokio::task::spawn_blocking(move || otlp.shutdown()).await;
        if let Ok(Err(error)) = done {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}
