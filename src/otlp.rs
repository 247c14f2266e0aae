//! Export of spans over OTLP, by HTTP with protobuf.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_rctp::otlp::Otlp;
//! use tracing_subscriber::prelude::*;
//!
//! let otlp = Otlp::install("gateway", Some("http://127.0.0.1:4318"))?;
//! tracing_subscriber::registry().with(otlp.layer()).init();
//! // … serve …
//! otlp.shutdown()?; // sends what is left
//! # Ok(()) }
//! ```

use opentelemetry::{global, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracerProvider, Tracer},
};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

/// Spans cannot be exported, or the last ones were not.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OtlpError(String);

/// An exporter at work. A thread of its own sends spans in batches; those that it cannot send in time are dropped.
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Otlp {
    provider: SdkTracerProvider,
}

impl Otlp {
    /// Begins to export to the collector at `endpoint`, such as `http://127.0.0.1:4318`, and makes W3C trace context the
    /// propagator of this process.
    ///
    /// The variables of OpenTelemetry's specification hold as well: `OTEL_EXPORTER_OTLP_ENDPOINT` without an `endpoint`,
    /// `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME` before `service`, `OTEL_RESOURCE_ATTRIBUTES`,
    /// `OTEL_TRACES_SAMPLER` and the rest.
    ///
    /// # Errors
    /// When the endpoint is no URL, or TLS cannot be set up.
    pub fn install(service: &str, endpoint: Option<&str>) -> Result<Self, OtlpError> {
        let mut exporter = SpanExporter::builder().with_http();
        if let Some(endpoint) = endpoint {
            exporter =
                exporter.with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')));
        }
        let exporter = exporter.build().map_err(|e| OtlpError(e.to_string()))?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(service.to_owned());
        }
        global::set_text_map_propagator(TraceContextPropagator::new());
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Self { provider })
    }

    /// The layer that takes spans from `tracing`. Filter it: `tower_rctp` at DEBUG has a span for each layer.
    pub fn layer<S>(&self) -> OpenTelemetryLayer<S, Tracer>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("tower-rctp"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
    }

    /// Sends what is left, and ends. It waits for the collector, for 5 seconds at most: call it where that may block.
    ///
    /// # Errors
    /// When the collector did not take it.
    pub fn shutdown(&self) -> Result<(), OtlpError> {
        let done = self.provider.shutdown();
        done.map_err(|e| OtlpError(e.to_string()))
    }
}
