//! A request to the MCP endpoint: header lines, an empty line, the body. Nothing is a server error, every answer is
//! JSON-RPC, and a tool is called only by a message that names it, with arguments that fit.
#![no_main]

use std::sync::{
    LazyLock,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Full};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use tower_rctp::{
    layer::body::Body,
    service::tools::{Mcp, Tool, ToolResult, Tools, tool_fn},
};

static CALLED: AtomicUsize = AtomicUsize::new(0);

static SERVER: LazyLock<(Mcp, Box<dyn Tools>)> = LazyLock::new(|| {
    let tool = Tool::builder("pay", "Pays.").input(json!({
        "type": "object",
        "properties": {"amount": {"type": "integer", "minimum": 1, "x-mcp-header": "Amount"}},
        "required": ["amount"],
        "additionalProperties": false
    }));
    let tools = tool_fn(tool.build().unwrap(), |call| {
        assert!(
            call.arguments["amount"]
                .as_u64()
                .is_some_and(|amount| amount >= 1)
        );
        CALLED.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(ToolResult::text("paid")) })
    });
    let mcp = Mcp::builder("fuzz", "1").public_url("https://gateway.example/mcp");
    (mcp.build().unwrap(), Box::new(tools))
});

fuzz_target!(|data: &[u8]| {
    let at = data.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = at.map_or((&[][..], data), |at| (&data[..at], &data[at + 2..]));
    let mut request = Request::post("/mcp")
        .header("host", "gateway.example")
        .header("content-type", "application/json")
        .body(Body::new(Full::from(body.to_vec())))
        .unwrap();
    for line in head.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts
            .next()
            .and_then(|name| HeaderName::from_bytes(name).ok());
        let value = parts
            .next()
            .and_then(|value| HeaderValue::from_bytes(value).ok());
        if let (Some(name), Some(value)) = (name, value) {
            request.headers_mut().append(name, value);
        }
    }
    let (mcp, tools) = &*SERVER;
    let before = CALLED.load(Ordering::Relaxed);
    let answered = mcp.answer(&**tools, request).now_or_never();
    let response = answered.expect("nothing here waits");
    let called = CALLED.load(Ordering::Relaxed) - before;
    let status = response.status().as_u16();
    assert!(status < 500);

    let named = body.windows(3).filter(|word| word == b"pay").count();
    assert!(called <= named || body.contains(&b'\\'));
    let json = response
        .headers()
        .get("content-type")
        .is_some_and(|kind| kind == "application/json");
    let body = response
        .into_body()
        .collect()
        .now_or_never()
        .unwrap()
        .unwrap()
        .to_bytes();
    if !json {
        assert!(status == 202 && body.is_empty() || body.starts_with(b"event: message\ndata: "));
        return;
    }
    let answers = match serde_json::from_slice(&body).expect("an answer is JSON") {
        Value::Array(answers) => answers,
        answer => vec![answer],
    };
    let mut results = 0;
    for answer in answers {
        assert_eq!(answer["jsonrpc"], "2.0");
        assert!(answer.get("result").is_some() != answer.get("error").is_some());
        results += usize::from(answer["result"]["content"][0]["text"] == "paid");
    }
    assert_eq!(results, called);
});
