//! A tool call over MCP, beside the same tool on a stateless server of the official SDK, `rmcp`.
//!
//! `cargo bench --bench mcp`. Both get the same request in process, bytes in and bytes out, on one thread; both answer with
//! JSON and check the `Host`. Ours also holds the arguments against the tool's schema, which the SDK does by reading them.

#![allow(missing_docs)] // the macros of the SDK write items without any

use std::{hint::black_box, sync::Arc, time::Duration};

use bytes::Bytes;
use criterion::Criterion;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use rmcp::{
    Json, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tower::{Service, ServiceExt};
use tower_rctp::service::tools::{Mcp, Tool, ToolResult, tool_fn};
use tower_rctp_peers::in_turns;

#[derive(Deserialize, JsonSchema)]
struct Terms {
    a: i32,
    b: i32,
}

#[derive(Serialize, JsonSchema)]
struct Sum {
    sum: i32,
}

#[derive(Clone)]
struct Peer {
    tool_router: ToolRouter<Self>,
}

#[tool_router(router = tool_router)]
impl Peer {
    #[tool(name = "add", description = "Adds two integers.")]
    async fn add(&self, Parameters(Terms { a, b }): Parameters<Terms>) -> Json<Sum> {
        Json(Sum { sum: a + b })
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Peer {}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");

    let tool = Tool::builder("add", "Adds two integers.").input(json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"]
    }));
    let tools = tool_fn(tool.build().expect("a tool"), |call| {
        Box::pin(async move {
            let term = |name: &str| call.arguments[name].as_i64().unwrap_or_default();
            let sum = json!(term("a") + term("b"));
            Ok(ToolResult::structured(Map::from_iter([(
                "sum".to_owned(),
                sum,
            )])))
        })
    });
    let mcp = Mcp::builder("bench", "1").public_url("http://localhost/mcp");
    let ours = mcp.build().expect("settings").endpoint(tools);

    let peer = Peer {
        tool_router: Peer::tool_router(),
    };
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true);
    let sessions = Arc::new(LocalSessionManager::default());
    let theirs = StreamableHttpService::new(move || Ok(peer.clone()), sessions, config);

    let requests = [("2025-06-18", old()), ("2026-07-28", new())];
    for (revision, request) in &requests {
        for answer in [
            call(&runtime, &ours, request),
            call(&runtime, &theirs, request),
        ] {
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            let sum = &answer["result"]["structuredContent"]["sum"];
            assert_eq!(sum, 5, "{revision}: {answer}");
        }
    }

    let operations: [(&str, &dyn Fn()); 4] = [
        ("ours, 2025-06-18", &|| {
            black_box(call(&runtime, &ours, &requests[0].1));
        }),
        ("rmcp, 2025-06-18", &|| {
            black_box(call(&runtime, &theirs, &requests[0].1));
        }),
        ("ours, 2026-07-28", &|| {
            black_box(call(&runtime, &ours, &requests[1].1));
        }),
        ("rmcp, 2026-07-28", &|| {
            black_box(call(&runtime, &theirs, &requests[1].1));
        }),
    ];
    let mut criterion = Criterion::default()
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for (name, operation) in &operations {
        criterion.bench_function(name, |bencher| bencher.iter(operation));
    }
    criterion.final_summary();

    let medians = in_turns(&operations);
    for (at, (revision, _)) in requests.iter().enumerate() {
        let [ours, theirs] = [medians[2 * at], medians[2 * at + 1]];
        println!(
            "a tool call, {revision}: {ours:.1} µs, rmcp {theirs:.1} µs, {:.1} times its throughput",
            theirs / ours
        );
    }
}

fn call<S, B>(runtime: &Runtime, service: &S, request: &Request<Bytes>) -> Bytes
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    runtime.block_on(async {
        let request = request.clone().map(Full::new);
        let response = service.clone().oneshot(request).await.expect("an answer");
        let body = response.into_body().collect().await.expect("a body");
        body.to_bytes()
    })
}

fn request(message: &Value, revision: &str) -> Request<Bytes> {
    Request::post("/mcp")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", revision)
        .body(Bytes::from(message.to_string()))
        .expect("a request")
}

fn old() -> Request<Bytes> {
    let params = json!({"name": "add", "arguments": {"a": 2, "b": 3}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    request(&message, "2025-06-18")
}

fn new() -> Request<Bytes> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}
    });
    let params = json!({"name": "add", "arguments": {"a": 2, "b": 3}, "_meta": meta});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let mut request = request(&message, "2026-07-28");
    for (name, value) in [("mcp-method", "tools/call"), ("mcp-name", "add")] {
        let headers = request.headers_mut();
        headers.insert(name, http::HeaderValue::from_static(value));
    }
    request
}
