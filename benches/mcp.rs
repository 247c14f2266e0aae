//! A tool call over MCP, beside the same tool on a stateless server of the official SDK, `rmcp`.
//!
//! `cargo bench --bench mcp`. Both get the same request in process, bytes in and bytes out, on one thread; both answer with
//! JSON and check the `Host`. Ours also holds the arguments against the tool's schema, which the SDK does by reading them.
//!
//! And operations of RCTP as tools, beside themselves over REST, through the same stack. They come with tokens: signatures
//! would differ, and cost more than everything that is compared.

#![allow(missing_docs)] // the macros of the SDK write items without any

use std::{cell::RefCell, hint::black_box, sync::Arc, time::Duration};

use bytes::Bytes;
use criterion::Criterion;
use http::{Request, Response};
use http_body_util::BodyExt;
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
use tower_rctp::{
    layer::body::Body,
    protocol::policy::Tier,
    service::tools::{Mcp, Tool, ToolResult, tool_fn},
};
use tower_rctp_peers::in_turns;

#[path = "../tests/common/mod.rs"]
mod common;

use common::{BUYER_TOKEN, FLOOR, World, get, offer_body, post, with_key, with_token};

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

    let market = Market::new(&runtime);
    let operations: [(&str, &dyn Fn()); 8] = [
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
        ("get_offer over REST", &|| {
            market.call(&runtime, &market.read[0]);
        }),
        ("get_offer over MCP", &|| {
            market.call(&runtime, &market.read[1]);
        }),
        ("create_offer over REST", &|| market.write(&runtime, 0)),
        ("create_offer over MCP", &|| market.write(&runtime, 1)),
    ];
    let mut criterion = Criterion::default()
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    // Offers are made anew for each call, so they are measured in turns alone.
    for (name, operation) in &operations[..6] {
        criterion.bench_function(name, |bencher| bencher.iter(operation));
    }
    criterion.final_summary();

    let medians = in_turns(&operations);
    for ((name, _), median) in operations.iter().zip(&medians) {
        println!("{name}: {median:.1} µs");
    }
    println!(
        "a tool call beside rmcp: {:.1} times its throughput (2025-06-18), {:.1} (2026-07-28) · beside REST: get_offer \
         {:.1} µs more, create_offer {:.1} µs more",
        medians[1] / medians[0],
        medians[3] / medians[2],
        medians[5] - medians[4],
        medians[7] - medians[6],
    );
}

/// A market whose operations are called both ways, over REST first.
struct Market {
    world: World,
    read: [Request<Bytes>; 2],
    writes: [RefCell<Vec<Request<Bytes>>>; 2],
}

impl Market {
    fn new(runtime: &Runtime) -> Self {
        let settings = |b: tower_rctp::RctpBuilder| b.mcp(Mcp::builder("bench", "1"));
        let world = runtime.block_on(World::with(Tier::Auto, settings));
        let body = offer_body(FLOOR + 1);
        let made = runtime.block_on(world.oauth_post(BUYER_TOKEN, "/offers", &body));
        let offer = made.get("offer_id");
        let tool = |name: &str, arguments: Value| {
            let params = json!({"name": name, "arguments": arguments});
            let message =
                json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            with_token(post("/mcp", &message), BUYER_TOKEN)
        };
        let over_rest = || {
            with_key(with_token(
                post("/offers", &offer_body(FLOOR + 1)),
                BUYER_TOKEN,
            ))
        };
        let over_mcp = |at: usize| {
            let mut arguments = offer_body(FLOOR + 1);
            arguments["meta"]["idempotency-key"] = json!(format!("tool-{at:032}"));
            tool("create_offer", arguments)
        };
        // As many as are measured in turns.
        let calls = 0..2_010;
        let writes = [
            calls.clone().map(|_| over_rest()).collect(),
            calls.map(over_mcp).collect(),
        ];
        Self {
            read: [
                with_token(get(&format!("/offers/{offer}")), BUYER_TOKEN),
                tool("get_offer", json!({ "offer_id": offer })),
            ],
            writes: writes.map(RefCell::new),
            world,
        }
    }

    fn call(&self, runtime: &Runtime, request: &Request<Bytes>) {
        let answer = call(runtime, &self.world.service, request);
        assert!(answer.windows(8).any(|text| text == b"offer_id"));
    }

    fn write(&self, runtime: &Runtime, way: usize) {
        let request = self.writes[way].borrow_mut().pop();
        self.call(runtime, &request.expect("an offer that was not made yet"));
    }
}

fn call<S, B>(runtime: &Runtime, service: &S, request: &Request<Bytes>) -> Bytes
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    runtime.block_on(async {
        let request = request.clone().map(Body::from);
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
