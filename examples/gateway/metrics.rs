//! What the gateway counts, in the OpenMetrics text format, and the log line of each request.
//!
//! | metric | labels |
//! |---|---|
//! | `rctp_decisions_total` | `operation`, `verb`, `outcome` (`auto`, `ask`, `forbid`), `reason` |
//! | `rctp_requests_total` | `status` (`2xx`, …) |
//! | `rctp_request_duration_seconds` | `operation` |
//! | `rctp_webhooks_total` | `outcome` (`delivered`, `failed`, `dead`, `dropped`) |
//! | `rctp_shed_total` | `limit` (`concurrency`, `rate`) |
//! | `rctp_operators` | |
//! | `rctp_reloads_total` | `outcome` (`done`, `failed`) |
//! | `rctp_build_info` | `version` |
//!
//! Repeats that were answered from the store are requests, but no decisions.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::StatusCode;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::Registry,
};
use tower_rctp::{
    layer::arrive::Answered,
    protocol::{
        decision::Decision,
        operation::{Op, Verb},
    },
    service::webhooks::Delivery,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    operation: &'static str,
    verb: &'static str,
    outcome: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StatusLabels {
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WebhookLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ShedLabels {
    limit: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReloadLabels {
    outcome: &'static str,
}

/// The counters.
pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    requests: Family<StatusLabels, Counter>,
    seconds: Family<OperationLabels, Histogram>,
    webhooks: Family<WebhookLabels, Counter>,
    shed: Family<ShedLabels, Counter>,
    operators: Gauge,
    reloads: Family<ReloadLabels, Counter>,
}

impl Metrics {
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("rctp");
        let decisions = Family::default();
        let requests = Family::default();
        let webhooks = Family::<WebhookLabels, Counter>::default();
        // There from the start, so that an alert on the first dead letter finds its line.
        for outcome in ["delivered", "failed", "dead", "dropped"] {
            drop(webhooks.get_or_create(&WebhookLabels { outcome }));
        }
        let shed = Family::<ShedLabels, Counter>::default();
        for limit in ["concurrency", "rate"] {
            drop(shed.get_or_create(&ShedLabels { limit }));
        }
        let operators = Gauge::default();
        let reloads = Family::<ReloadLabels, Counter>::default();
        for outcome in ["done", "failed"] {
            drop(reloads.get_or_create(&ReloadLabels { outcome }));
        }
        // From half a millisecond, about what a local commit takes, to 16 seconds.
        let seconds: Family<_, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0005, 2.0, 16)));
        registry.register("decisions", "Decisions stated to agents", decisions.clone());
        registry.register("requests", "HTTP requests answered", requests.clone());
        registry.register(
            "webhooks",
            "Webhooks by what became of a try",
            webhooks.clone(),
        );
        registry.register(
            "shed",
            "Requests refused because there were too many",
            shed.clone(),
        );
        registry.register("operators", "Operators onboarded", operators.clone());
        registry.register(
            "reloads",
            "Times that the settings were read again",
            reloads.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "Time to answer a request",
            seconds.clone(),
        );
        registry.register(
            "build",
            "The program",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]),
        );
        Arc::new(Self {
            registry,
            decisions,
            requests,
            seconds,
            webhooks,
            shed,
            operators,
            reloads,
        })
    }

    /// How many operators are onboarded now.
    pub fn onboarded(&self, operators: usize) {
        self.operators
            .set(i64::try_from(operators).unwrap_or(i64::MAX));
    }

    /// Counts a reload.
    pub fn reloaded(&self, done: bool) {
        let outcome = if done { "done" } else { "failed" };
        self.reloads.get_or_create(&ReloadLabels { outcome }).inc();
    }

    /// Counts a request that was over a limit.
    pub fn shed(&self, limit: &'static str) {
        self.shed.get_or_create(&ShedLabels { limit }).inc();
    }

    /// Counts a webhook.
    pub fn delivery(&self, delivery: Delivery) {
        let outcome = match delivery {
            Delivery::Delivered => "delivered",
            Delivery::Failed => "failed",
            Delivery::Dead => "dead",
            Delivery::Dropped => "dropped",
            _ => "other",
        };
        self.webhooks
            .get_or_create(&WebhookLabels { outcome })
            .inc();
    }

    /// The text for `GET /metrics`.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }

    fn count(&self, answered: &Answer<'_>, status: StatusCode, took: Duration) {
        self.requests
            .get_or_create(&StatusLabels {
                status: class(status),
            })
            .inc();
        self.seconds
            .get_or_create(&OperationLabels {
                operation: answered.operation,
            })
            .observe(took.as_secs_f64());
        for answered in std::iter::once(answered).chain(&answered.calls) {
            let Some((outcome, reason)) = answered.decision else {
                continue;
            };
            self.decisions
                .get_or_create(&DecisionLabels {
                    operation: answered.operation,
                    verb: answered.verb,
                    outcome,
                    reason,
                })
                .inc();
        }
    }
}

/// [`Answered`] in the words of logs and metrics.
struct Answer<'r> {
    operation: &'static str,
    operator: Option<&'r str>,
    verb: &'static str,
    /// The outcome and, with `forbid`, the reason.
    decision: Option<(&'static str, &'static str)>,
    refused: Option<&'static str>,
    replayed: bool,
    /// Of a batch over MCP.
    calls: Vec<Self>,
}

impl<'r> Answer<'r> {
    fn of(answered: Option<&'r Answered>) -> Self {
        let calls = answered.map_or(&[][..], |a| &a.calls);
        let operation = answered.and_then(|a| a.operation);
        let decision = answered.and_then(|a| a.decision.as_ref());
        Self {
            operation: operation.map_or("other", Op::name),
            operator: answered.and_then(|a| a.operator.as_deref()),
            verb: operation
                .and_then(|op| op.row().verb)
                .map_or("", Verb::as_str),
            decision: decision.map(|decision| {
                let reason = match decision {
                    Decision::Forbid { reason, .. } => reason.as_str(),
                    Decision::Auto | Decision::Ask { .. } => "",
                };
                (decision.outcome(), reason)
            }),
            refused: answered.and_then(|a| a.refused).map(|code| code.as_str()),
            replayed: answered.is_some_and(|a| a.replayed),
            calls: calls.iter().map(|call| Self::of(Some(call))).collect(),
        }
    }
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

/// Counts and logs a request; goes outside the stack. The query is left out of the line, and so is everything that
/// the request carries.
pub async fn observe(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    let (status, took) = (response.status(), begun.elapsed());
    let answer = Answer::of(response.extensions().get());
    metrics.count(&answer, status, took);
    let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                %method,
                path,
                operation = answer.operation,
                decision = answer.decision.map(|(outcome, _)| outcome),
                refused = answer.refused,
                replayed = answer.replayed.then_some(true),
                calls = (!answer.calls.is_empty()).then_some(answer.calls.len()),
                status = status.as_u16(),
                milliseconds,
                operator = answer.operator,
                "request"
            )
        };
    }
    match path.as_str() {
        // Asked every few seconds by machines.
        "/health" | "/metrics" if status.is_success() => line!(debug),
        _ => line!(info),
    }
    response
}
