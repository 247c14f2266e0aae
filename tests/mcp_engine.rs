//! The MCP endpoint from outside: both eras, batches, headers, hosts and origins, limits, arguments.

#![allow(clippy::unwrap_used)]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;
use tower_rctp::{
    layer::body::Body,
    service::tools::{
        BATCH_LIMIT, Call, CallLimit, Endpoint, Error, Mcp, McpBuilder, Outcome, Revision, Tool,
        ToolResult, Tools, tool_fn,
    },
    store::BoxFuture,
};

const URL: &str = "https://gateway.example/mcp";
const OLD: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];
const NEW: &str = "2026-07-28";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const SERVER: &str = "io.modelcontextprotocol/serverInfo";

// ---- A server to ask -------------------------------------------------------------------------------------------

fn mcp() -> McpBuilder {
    Mcp::builder("test", "1.2.3").public_url(URL)
}

/// One tool that repeats its argument, and how often it was called.
fn echo() -> (Endpoint<impl Tools>, Arc<AtomicUsize>) {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let tools = tool_fn(echo_tool("echo"), move |call| {
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { Ok(ToolResult::text(call.arguments["text"].to_string())) })
    });
    (mcp().build().unwrap().endpoint(tools), called)
}

fn echo_tool(name: &str) -> Tool {
    let tool = Tool::builder(name, "Repeats its argument.").input(json!({
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 5},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
        },
        "additionalProperties": {"type": "null"}
    }));
    tool.build().unwrap()
}

/// A tool whose calls wait until the test lets them pass.
fn gated(limits: McpBuilder) -> (Endpoint<impl Tools>, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let inside = gate.clone();
    let tool = Tool::builder("wait", "Waits.").build().unwrap();
    let tools = tool_fn(tool, move |_| {
        let gate = inside.clone();
        Box::pin(async move {
            gate.acquire().await.expect("never closed").forget();
            Ok(ToolResult::text("done"))
        })
    });
    (limits.build().unwrap().endpoint(tools), gate)
}

// ---- How to ask ------------------------------------------------------------------------------------------------

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn code(&self) -> i64 {
        self.json()["error"]["code"].as_i64().unwrap_or_default()
    }
}

type Sent = Request<Body>;

fn post(body: impl Into<Bytes>) -> Sent {
    Request::post("/mcp")
        .header(header::HOST, "gateway.example")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.into()))
        .unwrap()
}

fn send(message: &Value) -> Sent {
    post(message.to_string())
}

fn with(mut request: Sent, headers: &[(&'static str, &str)]) -> Sent {
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        request.headers_mut().insert(*name, value);
    }
    request
}

async fn ask<T: Tools + 'static>(endpoint: &Endpoint<T>, request: Sent) -> Answer {
    let response = endpoint.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

fn call(id: impl Into<Value>, name: &str, arguments: Value) -> Value {
    request(
        id,
        "tools/call",
        json!({"name": name, "arguments": arguments}),
    )
}

fn meta() -> Value {
    json!({VERSION: NEW, CLIENT: {"name": "t", "version": "1"}, CAPABILITIES: {}})
}

/// A message of 2026-07-28 with the headers that go with it.
fn new(method: &str, mut params: Value) -> Sent {
    params["_meta"] = meta();
    let name = params["name"].as_str().map(str::to_owned);
    let sent = with(
        send(&request(1, method, params)),
        &[("mcp-protocol-version", NEW), ("mcp-method", method)],
    );
    match name {
        Some(name) => with(sent, &[("mcp-name", &name)]),
        None => sent,
    }
}

// ---- Both eras -------------------------------------------------------------------------------------------------

#[tokio::test]
async fn clients_of_2025_shake_hands_and_call() {
    let (endpoint, called) = echo();
    for (n, revision) in OLD.into_iter().enumerate() {
        let hello = json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = ask(&endpoint, send(&request("a", "initialize", hello))).await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.json(),
            json!({"jsonrpc": "2.0", "id": "a", "result": {
                "protocolVersion": revision,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "test", "version": "1.2.3"},
            }})
        );
        assert!(!answer.headers.contains_key("mcp-session-id"));

        let version = [("mcp-protocol-version", revision)];
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let answer = ask(&endpoint, with(send(&ready), &version)).await;
        assert_eq!(
            (answer.status, &*answer.body),
            (StatusCode::ACCEPTED, &b""[..])
        );

        let answer = ask(
            &endpoint,
            with(send(&request(1, "ping", json!({}))), &version),
        )
        .await;
        assert_eq!(
            answer.json(),
            json!({"jsonrpc": "2.0", "id": 1, "result": {}})
        );

        let answer = ask(
            &endpoint,
            with(send(&request(2, "tools/list", json!({}))), &version),
        )
        .await;
        let result = &answer.json()["result"];
        assert_eq!(result.as_object().unwrap().len(), 1, "{result}");
        assert_eq!(result["tools"][0]["name"], "echo");

        let answer = ask(
            &endpoint,
            with(send(&call(3, "echo", json!({"text": "hi"}))), &version),
        )
        .await;
        let result = json!({"content": [{"type": "text", "text": "\"hi\""}], "isError": false});
        assert_eq!(
            answer.json(),
            json!({"jsonrpc": "2.0", "id": 3, "result": result})
        );
        assert_eq!(called.load(Ordering::Relaxed), n + 1);
    }
}

#[tokio::test]
async fn initialize_agrees_on_the_clients_revision_or_the_newest_with_a_handshake() {
    let (endpoint, _) = echo();
    for (wanted, agreed) in [
        (json!("2025-03-26"), "2025-03-26"),
        (json!("2025-11-25"), "2025-11-25"),
        (json!("2024-11-05"), "2025-11-25"),
        (json!(NEW), "2025-11-25"),
        (json!("2099-01-01"), "2025-11-25"),
        (json!(null), "2025-11-25"),
        (json!(7), "2025-11-25"),
    ] {
        let hello = send(&request(
            1,
            "initialize",
            json!({"protocolVersion": wanted}),
        ));
        // Some clients send the header with the handshake already.
        for sent in [
            hello,
            with(
                send(&request(
                    1,
                    "initialize",
                    json!({"protocolVersion": wanted}),
                )),
                &[("mcp-protocol-version", "2024-11-05")],
            ),
        ] {
            let answer = ask(&endpoint, sent).await;
            assert_eq!(
                answer.json()["result"]["protocolVersion"],
                agreed,
                "{wanted}"
            );
        }
    }
}

#[tokio::test]
async fn nothing_is_remembered_so_a_call_needs_no_handshake_and_a_session_is_ignored() {
    let (endpoint, called) = echo();
    let sent = with(
        send(&call(1, "echo", json!({}))),
        &[("mcp-session-id", "0123"), ("last-event-id", "7")],
    );
    let answer = ask(&endpoint, sent).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.headers.contains_key("mcp-session-id"));
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_server_of_2026_says_in_each_result_what_it_is_and_how_long_it_holds() {
    let tool = tool_fn(echo_tool("echo"), |_| {
        Box::pin(async {
            let mut result = ToolResult::structured(Map::from_iter([("a".into(), json!(1))]));
            result.meta.insert("example/receipt".into(), json!("r1"));
            Ok(result)
        })
    });
    let settings = mcp().instructions("Ask.").ttl(Duration::from_secs(5));
    let endpoint = settings.build().unwrap().endpoint(tool);
    let server = json!({SERVER: {"name": "test", "version": "1.2.3"}});

    let discovered = ask(&endpoint, new("server/discover", json!({}))).await;
    assert_eq!(
        discovered.json()["result"],
        json!({
            "resultType": "complete", "supportedVersions": [OLD[0], OLD[1], OLD[2], NEW], "capabilities": {"tools": {}},
            "instructions": "Ask.", "ttlMs": 5000, "cacheScope": "public", "_meta": server,
        })
    );

    let listed = ask(&endpoint, new("tools/list", json!({}))).await;
    let listed = &listed.json()["result"];
    assert_eq!(listed["resultType"], "complete");
    assert_eq!(
        (&listed["ttlMs"], &listed["cacheScope"]),
        (&json!(5000), &json!("public"))
    );
    assert_eq!(listed["_meta"], server);

    let called = ask(&endpoint, new("tools/call", json!({"name": "echo"}))).await;
    assert_eq!(
        called.json()["result"],
        json!({
            "resultType": "complete", "content": [{"type": "text", "text": "{\"a\":1}"}],
            "structuredContent": {"a": 1}, "isError": false,
            "_meta": {"example/receipt": "r1", SERVER: {"name": "test", "version": "1.2.3"}},
        })
    );
}

#[tokio::test]
async fn each_era_has_its_methods() {
    let (endpoint, _) = echo();
    let all = [
        // method, 2025, 2026
        ("initialize", 0, -32601),
        ("ping", 0, -32601),
        ("server/discover", -32601, 0),
        ("tools/list", 0, 0),
        ("tools/call", 0, 0),
        ("prompts/list", -32601, -32601),
        ("resources/list", -32601, -32601),
        ("resources/read", -32601, -32601),
        ("logging/setLevel", -32601, -32601),
        ("completion/complete", -32601, -32601),
        ("subscriptions/listen", -32601, -32601),
        ("tools/Call", -32601, -32601),
        ("", -32601, -32601),
    ];
    for (method, in_2025, in_2026) in all {
        let params = match method {
            "tools/call" => json!({"name": "echo"}),
            _ => json!({}),
        };
        for revision in OLD {
            let sent = send(&request(1, method, params.clone()));
            let answer = ask(&endpoint, with(sent, &[("mcp-protocol-version", revision)])).await;
            assert_eq!(
                (answer.status, answer.code()),
                (StatusCode::OK, in_2025),
                "{method}"
            );
        }
        let answer = ask(&endpoint, new(method, params)).await;
        let status = if in_2026 == 0 { 200 } else { 404 };
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (status, in_2026),
            "{method}"
        );
        assert_eq!(answer.json()["id"], 1);
    }
}

#[tokio::test]
async fn a_request_of_2026_carries_its_metadata_and_headers_that_say_the_same() {
    let (endpoint, called) = echo();
    let changed = |key: &str, value: Value| {
        let mut meta = meta();
        match value {
            Value::Null => _ = meta.as_object_mut().unwrap().remove(key),
            value => meta[key] = value,
        }
        let params = json!({"name": "echo", "_meta": meta});
        send(&request(1, "tools/call", params))
    };
    let same = || changed("unknown", json!(1));
    let headers = [
        ("mcp-protocol-version", NEW),
        ("mcp-method", "tools/call"),
        ("mcp-name", "echo"),
    ];
    let without = |name: &'static str| {
        let mut sent = with(same(), &headers);
        sent.headers_mut().remove(name);
        sent
    };
    let twice = |name: &'static str| {
        let mut sent = with(same(), &headers);
        let value = sent.headers()[name].clone();
        sent.headers_mut().append(name, value);
        sent
    };
    let refused = [
        (
            "no version in the body",
            with(changed(VERSION, Value::Null), &headers),
            -32602,
        ),
        (
            "the version is no string",
            with(changed(VERSION, json!(7)), &headers),
            -32602,
        ),
        (
            "no capabilities",
            with(changed(CAPABILITIES, Value::Null), &headers),
            -32602,
        ),
        (
            "the capabilities are no object",
            with(changed(CAPABILITIES, json!([])), &headers),
            -32602,
        ),
        (
            "the client is no object",
            with(changed(CLIENT, json!("me")), &headers),
            -32602,
        ),
        (
            "no metadata",
            with(send(&call(1, "echo", json!({}))), &headers),
            -32602,
        ),
        (
            "no version in the headers",
            without("mcp-protocol-version"),
            -32020,
        ),
        (
            "another version in the headers",
            with(
                with(same(), &headers),
                &[("mcp-protocol-version", "2025-11-25")],
            ),
            -32020,
        ),
        (
            "another version in the body",
            with(changed(VERSION, json!("2025-11-25")), &headers),
            -32020,
        ),
        ("the version twice", twice("mcp-protocol-version"), -32020),
        ("no method", without("mcp-method"), -32020),
        (
            "another method",
            with(with(same(), &headers), &[("mcp-method", "tools/list")]),
            -32020,
        ),
        (
            "the method in capitals",
            with(with(same(), &headers), &[("mcp-method", "TOOLS/CALL")]),
            -32020,
        ),
        ("the method twice", twice("mcp-method"), -32020),
        ("no name", without("mcp-name"), -32020),
        (
            "another name",
            with(with(same(), &headers), &[("mcp-name", "other")]),
            -32020,
        ),
        ("the name twice", twice("mcp-name"), -32020),
        (
            "a name that is not ASCII",
            with(with(same(), &headers), &[("mcp-name", "ech\u{f6}")]),
            -32020,
        ),
        (
            "base64 of another name",
            with(
                with(same(), &headers),
                &[("mcp-name", "=?base64?b3RoZXI=?=")],
            ),
            -32020,
        ),
        (
            "base64 without its padding",
            with(with(same(), &headers), &[("mcp-name", "=?base64?ZWNobw?=")]),
            -32020,
        ),
        (
            "base64 that is none",
            with(
                with(same(), &headers),
                &[("mcp-name", "=?base64?ZW!obw==?=")],
            ),
            -32020,
        ),
        (
            "a version that nobody serves",
            with(
                with(changed(VERSION, json!("2099-01-01")), &headers),
                &[("mcp-protocol-version", "2099-01-01")],
            ),
            -32022,
        ),
        (
            "an older version in the form of the new one",
            with(
                with(changed(VERSION, json!("2025-11-25")), &headers),
                &[("mcp-protocol-version", "2025-11-25")],
            ),
            -32022,
        ),
    ];
    for (what, sent, code) in refused {
        let answer = ask(&endpoint, sent).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (400, code),
            "{what}"
        );
        assert_eq!(answer.json()["id"], 1, "{what}");
    }
    assert_eq!(called.load(Ordering::Relaxed), 0);

    let served = [
        with(same(), &headers),
        with(changed(CLIENT, Value::Null), &headers),
        with(
            with(same(), &headers),
            &[("mcp-name", "=?base64?ZWNobw==?=")],
        ),
        with(with(same(), &headers), &[("mcp-name", "  echo ")]),
    ];
    let count = served.len();
    for sent in served {
        assert_eq!(ask(&endpoint, sent).await.status, 200);
    }
    assert_eq!(called.load(Ordering::Relaxed), count);
}

#[tokio::test]
async fn an_unknown_revision_is_told_which_ones_there_are() {
    let (endpoint, _) = echo();
    for (message, id) in [
        (request(5, "tools/list", json!({})), json!(5)),
        (
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!(null),
        ),
    ] {
        let sent = with(send(&message), &[("mcp-protocol-version", "2024-11-05")]);
        let answer = ask(&endpoint, sent).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, -32022));
        assert_eq!(answer.json()["id"], id);
        // Those with a handshake as well: a client of both eras falls back to one of them.
        let all = ["2025-03-26", "2025-06-18", "2025-11-25", NEW];
        let data = json!({"supported": all, "requested": "2024-11-05"});
        assert_eq!(answer.json()["error"]["data"], data);
    }
}

#[tokio::test]
async fn an_argument_that_the_schema_mirrors_is_the_same_in_its_header() {
    let tool = Tool::builder("t", "Mirrors.").input(json!({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "in": {"type": "object", "properties": {
            "size": {"type": "integer", "x-mcp-header": "Size"},
            "fast": {"type": "boolean", "x-mcp-header": "Fast"},
        }},
    }}));
    let tools = tool_fn(tool.build().unwrap(), |_| {
        Box::pin(async { Ok(ToolResult::text("ok")) })
    });
    let endpoint = mcp().build().unwrap().endpoint(tools);
    let sent = |arguments: &Value, headers: &[(&'static str, &str)]| {
        with(
            new("tools/call", json!({"name": "t", "arguments": arguments})),
            headers,
        )
    };
    let none: &[(&'static str, &str)] = &[];
    for (arguments, headers) in [
        (json!({}), none),
        (json!({"region": "eu"}), &[("mcp-param-region", "eu")]),
        (
            json!({"region": "Zürich"}),
            &[("mcp-param-region", "=?base64?WsO8cmljaA==?=")],
        ),
        (json!({"region": "SGk="}), &[("mcp-param-region", "SGk=")]),
        (
            json!({"region": "=?base64?SGk="}),
            &[("mcp-param-region", "=?base64?SGk=")],
        ),
        (json!({"in": {"size": 42}}), &[("mcp-param-size", "42")]),
        (json!({"in": {"size": 42}}), &[("mcp-param-size", "42.0")]),
        (json!({"in": {"size": -7}}), &[("mcp-param-size", "-7")]),
        (json!({"in": {"fast": true}}), &[("mcp-param-fast", "true")]),
    ] {
        let answer = ask(&endpoint, sent(&arguments, headers)).await;
        let text = &answer.json()["result"]["content"][0]["text"];
        assert_eq!(text, "ok", "{arguments} {headers:?}");
    }
    for (arguments, headers) in [
        (json!({"region": "eu"}), none),
        (json!({"region": "eu"}), &[("mcp-param-region", "us")]),
        (json!({"region": "eu"}), &[("mcp-param-region", "EU")]),
        (json!({}), &[("mcp-param-region", "eu")]),
        (
            json!({"region": "Hi"}),
            &[("mcp-param-region", "=?base64?SGk?=")],
        ),
        (json!({"in": {"size": 42}}), &[("mcp-param-size", "42.5")]),
        (json!({"in": {"size": 42}}), &[("mcp-param-size", "\"42\"")]),
        (json!({"in": {"fast": true}}), &[("mcp-param-fast", "True")]),
        (json!({"in": {"fast": true}}), none),
    ] {
        let answer = ask(&endpoint, sent(&arguments, headers)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (400, -32020),
            "{arguments} {headers:?}"
        );
    }
    // Of `null` no header is missed.
    let answer = ask(&endpoint, sent(&json!({"region": null}), none)).await;
    let error = &answer.json()["result"]["structuredContent"]["error"];
    assert_eq!(error["code"], "INVALID_ARGUMENTS");
    // Older clients know nothing of it.
    let answer = ask(&endpoint, send(&call(1, "t", json!({"region": "eu"})))).await;
    assert_eq!(answer.json()["result"]["isError"], false);
}

// ---- HTTP ------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn everything_but_post_is_not_allowed() {
    let (endpoint, called) = echo();
    for method in ["GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"] {
        let mut sent = send(&call(1, "echo", json!({})));
        *sent.method_mut() = method.parse().unwrap();
        let answer = ask(&endpoint, sent).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (405, -32600),
            "{method}"
        );
        assert_eq!(answer.headers[header::ALLOW], "POST");
    }
    let mut page = with(
        send(&call(1, "echo", json!({}))),
        &[("origin", "https://evil.example")],
    );
    *page.method_mut() = http::Method::GET;
    assert_eq!(ask(&endpoint, page).await.status, 403);
    assert_eq!(called.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn only_our_hosts_and_the_origins_that_may_call_get_in() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let tools = tool_fn(echo_tool("echo"), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(ToolResult::text("in")) })
    });
    let settings = mcp()
        .public_url("http://[::1]:3000/mcp")
        .origin("https://app.example");
    let endpoint = settings.build().unwrap().endpoint(tools);
    let sent = |host: Option<&str>, origin: Option<&str>| {
        let mut sent = send(&call(1, "echo", json!({})));
        sent.headers_mut().remove(header::HOST);
        for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
            if let Some(value) = value {
                sent.headers_mut().insert(name, value.parse().unwrap());
            }
        }
        sent
    };
    let ours = Some("gateway.example");
    let allowed = [
        (ours, None),
        (Some("GATEWAY.example:443"), None),
        (Some("[::1]:3000"), None),
        (ours, Some("https://gateway.example")),
        (ours, Some("http://[::1]:3000")),
        (ours, Some("https://app.example")),
    ];
    for (host, origin) in allowed {
        assert_eq!(
            ask(&endpoint, sent(host, origin)).await.status,
            200,
            "{host:?} {origin:?}"
        );
    }
    for (host, origin) in [
        (None, None),
        (Some(""), None),
        (Some("evil.example"), None),
        (Some("gateway.example.evil.example"), None),
        (Some("gateway.example:8443"), None),
        (Some("gateway.example:80"), None),
        (Some("[::1]"), None),
        (Some("user@gateway.example"), None),
        (ours, Some("https://evil.example")),
        (ours, Some("http://gateway.example")),
        (ours, Some("https://gateway.example.evil.example")),
        (ours, Some("https://app.example/")),
        (ours, Some("null")),
        (ours, Some("")),
    ] {
        let answer = ask(&endpoint, sent(host, origin)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (403, -32600),
            "{host:?} {origin:?}"
        );
    }
    // Every one of several must be ours.
    let mut two = sent(ours, None);
    two.headers_mut()
        .append(header::HOST, "evil.example".parse().unwrap());
    assert_eq!(ask(&endpoint, two).await.status, 403);
    let mut two = sent(ours, Some("https://app.example"));
    two.headers_mut()
        .append(header::ORIGIN, "https://evil.example".parse().unwrap());
    assert_eq!(ask(&endpoint, two).await.status, 403);
    // HTTP/2 has the host in the target.
    let mut target = sent(None, None);
    *target.uri_mut() = URL.parse().unwrap();
    assert_eq!(ask(&endpoint, target).await.status, 200);
    let mut target = sent(ours, None);
    *target.uri_mut() = "https://evil.example/mcp".parse().unwrap();
    assert_eq!(ask(&endpoint, target).await.status, 403);
    assert_eq!(called.load(Ordering::Relaxed), allowed.len() + 1);
}

#[tokio::test]
async fn the_answer_is_json_wherever_the_client_takes_it_and_else_one_event() {
    let (endpoint, called) = echo();
    let json = "application/json";
    let event = "text/event-stream";
    for (accept, kind) in [
        (None, json),
        (Some(""), json),
        (Some("application/json"), json),
        (Some("Application/JSON; charset=utf-8"), json),
        (Some("application/json, text/event-stream"), json),
        (Some("text/event-stream, application/json;q=0.1"), json),
        (Some("text/event-stream;q=1.0, */*;q=0.5"), json),
        (Some("*/*"), json),
        (Some("application/*"), json),
        (Some("text/event-stream"), event),
        (Some("text/*"), event),
        (Some("text/event-stream, text/html"), event),
        (Some("text/event-stream, application/json;q=0"), event),
        (Some("*/*, application/json; q=0.0"), event),
    ] {
        let sent = send(&call(1, "echo", json!({"text": "a\nb"})));
        let answer = ask(
            &endpoint,
            match accept {
                Some(accept) => with(sent, &[("accept", accept)]),
                None => sent,
            },
        )
        .await;
        assert_eq!(answer.status, 200, "{accept:?}");
        assert_eq!(answer.headers[header::CONTENT_TYPE], kind, "{accept:?}");
        let text = std::str::from_utf8(&answer.body).unwrap();
        let message = match kind == event {
            true => {
                let data = text.strip_prefix("event: message\ndata: ").unwrap();
                let data = data.strip_suffix("\n\n").unwrap();
                assert!(!data.contains('\n'));
                data
            }
            false => text,
        };
        let message: Value = serde_json::from_str(message).unwrap();
        assert_eq!(message["result"]["content"][0]["text"], "\"a\\nb\"");
    }
    let before = called.load(Ordering::Relaxed);
    for accept in [
        "text/html",
        "application/xml",
        "application/json;q=0",
        "*/*;q=0",
        "json",
    ] {
        let sent = with(send(&call(1, "echo", json!({}))), &[("accept", accept)]);
        let answer = ask(&endpoint, sent).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (406, -32600),
            "{accept}"
        );
    }
    assert_eq!(called.load(Ordering::Relaxed), before);
}

#[tokio::test]
async fn a_body_is_json_by_name_too() {
    let (endpoint, called) = echo();
    for (kind, status) in [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonp", 415),
        ("application/json; charset=utf-16", 415),
        ("", 415),
    ] {
        let sent = with(send(&call(1, "echo", json!({}))), &[("content-type", kind)]);
        assert_eq!(ask(&endpoint, sent).await.status, status, "{kind}");
    }
    let mut none = send(&call(1, "echo", json!({})));
    none.headers_mut().remove(header::CONTENT_TYPE);
    let mut twice = send(&call(1, "echo", json!({})));
    let text = HeaderValue::from_static("text/plain");
    twice.headers_mut().append(header::CONTENT_TYPE, text);
    let message = send(&call(1, "echo", json!({})));
    let encoded = with(message, &[("content-encoding", "gzip")]);
    for sent in [none, twice, encoded] {
        assert_eq!(ask(&endpoint, sent).await.status, 415);
    }
    assert_eq!(called.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_body_over_256_kib_is_too_large_however_it_comes() {
    let (endpoint, called) = echo();
    let message = call(1, "echo", json!({})).to_string();
    let padded = |size: usize| message.clone() + &" ".repeat(size - message.len());
    assert_eq!(ask(&endpoint, post(padded(256 * 1024))).await.status, 200);
    let answer = ask(&endpoint, post(padded(256 * 1024 + 1))).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (413, -32600));

    let pieces = padded(256 * 1024 + 1).into_bytes();
    let pieces: Vec<_> = pieces.chunks(1000).map(Bytes::copy_from_slice).collect();
    let frames = pieces
        .into_iter()
        .map(|piece| Ok::<_, std::io::Error>(http_body::Frame::data(piece)));
    let streamed = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
    let answer = ask(&endpoint, post("").map(|_| streamed)).await;
    assert_eq!(answer.status, 413);

    let broken = Err::<http_body::Frame<Bytes>, _>(std::io::Error::other("gone"));
    let broken = Body::new(StreamBody::new(futures_util::stream::iter([broken])));
    let answer = ask(&endpoint, post("").map(|_| broken)).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, -32600));
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

// ---- JSON-RPC --------------------------------------------------------------------------------------------------

#[tokio::test]
async fn what_is_no_message_is_told_why_with_its_id_where_that_can_be_read() {
    let (endpoint, called) = echo();
    let params = r#""method":"tools/call","params":{"name":"echo"}"#;
    for (body, code, id) in [
        (String::new(), -32700, json!(null)),
        ("{".into(), -32700, json!(null)),
        ("nonsense".into(), -32700, json!(null)),
        ("\u{feff}{}".into(), -32700, json!(null)),
        (
            format!(r#"{{"jsonrpc":"2.0","id":1,"id":1,{params}}}"#),
            -32700,
            json!(null),
        ),
        (
            format!(r#"{{"jsonrpc":"2.0","id":1,{params}}} {{}}"#),
            -32700,
            json!(null),
        ),
        ("null".into(), -32600, json!(null)),
        ("1".into(), -32600, json!(null)),
        ("\"tools/call\"".into(), -32600, json!(null)),
        ("{}".into(), -32600, json!(null)),
        (format!(r#"{{"id":1,{params}}}"#), -32600, json!(1)),
        (
            format!(r#"{{"jsonrpc":"1.0","id":"a",{params}}}"#),
            -32600,
            json!("a"),
        ),
        (
            format!(r#"{{"jsonrpc":2.0,"id":1,{params}}}"#),
            -32600,
            json!(1),
        ),
        (
            format!(r#"{{"jsonrpc":"2.0","id":null,{params}}}"#),
            -32600,
            json!(null),
        ),
        (
            format!(r#"{{"jsonrpc":"2.0","id":1.5,{params}}}"#),
            -32600,
            json!(null),
        ),
        (
            format!(r#"{{"jsonrpc":"2.0","id":true,{params}}}"#),
            -32600,
            json!(null),
        ),
        (
            format!(r#"{{"jsonrpc":"2.0","id":[1],{params}}}"#),
            -32600,
            json!(null),
        ),
        (r#"{"jsonrpc":"2.0","id":1}"#.into(), -32600, json!(1)),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#.into(),
            -32600,
            json!(1),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":null}"#.into(),
            -32600,
            json!(1),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#.into(),
            -32600,
            json!(1),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}"#.into(),
            -32600,
            json!(1),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":null}"#.into(),
            -32600,
            json!(1),
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/x","params":3}"#.into(),
            -32600,
            json!(null),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#.into(),
            -32600,
            json!(1),
        ),
    ] {
        let answer = ask(&endpoint, post(body.clone())).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (400, code),
            "{body}"
        );
        assert_eq!(answer.json()["id"], id, "{body}");
        assert_eq!(answer.json()["jsonrpc"], "2.0");
    }
    let invalid = post(b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}".to_vec());
    assert_eq!(ask(&endpoint, invalid).await.code(), -32700);
    assert_eq!(called.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn ids_come_back_as_they_were_sent() {
    let (endpoint, _) = echo();
    for id in [
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(""),
        json!("7"),
        json!("ü\n"),
        json!(7),
    ] {
        let answer = ask(&endpoint, send(&request(id.clone(), "ping", json!({})))).await;
        assert_eq!(
            answer.json(),
            json!({"jsonrpc": "2.0", "id": id, "result": {}})
        );
    }
}

#[tokio::test]
async fn what_asks_nothing_is_accepted_and_calls_nothing() {
    let (endpoint, called) = echo();
    let accepted = [
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}),
        json!({"jsonrpc": "2.0", "method": "unheard/of"}),
        // A call that wants no answer would be one that nobody can refuse.
        json!({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "echo"}}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}}),
    ];
    for message in accepted.iter().chain([&json!(accepted)]) {
        for accept in ["application/json", "text/event-stream"] {
            let answer = ask(&endpoint, with(send(message), &[("accept", accept)])).await;
            assert_eq!(answer.status, 202, "{message}");
            assert!(answer.body.is_empty() && !answer.headers.contains_key(header::CONTENT_TYPE));
        }
    }
    // Under 2026-07-28 there is nothing that a client could respond to.
    let response = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    let answer = ask(
        &endpoint,
        with(send(&response), &[("mcp-protocol-version", NEW)]),
    )
    .await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, -32600));
    assert_eq!(called.load(Ordering::Relaxed), 0);
}

// ---- Batches ---------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_batch_is_answered_in_its_order_with_each_error_in_its_place() {
    let (endpoint, called) = echo();
    let batch = json!([
        call(1, "echo", json!({"text": "a"})),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        7,
        request("p", "ping", json!({})),
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        [],
        request(2, "unheard/of", json!({})),
        request(3, "initialize", json!({"protocolVersion": "2025-03-26"})),
        call(4, "nothing", json!({})),
        {"id": 5, "method": "ping"},
        request(6, "tools/list", json!({"_meta": meta()})),
        call(7, "echo", json!({"text": "b"})),
    ]);
    for headers in [&[][..], &[("mcp-protocol-version", "2025-03-26")]] {
        let answer = ask(&endpoint, with(send(&batch), headers)).await;
        assert_eq!(answer.status, 200);
        let told: Vec<_> = answer
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|m| (m["id"].clone(), m["error"]["code"].clone()))
            .collect();
        let told: Vec<(Value, i64)> = told
            .into_iter()
            .map(|(id, code)| (id, code.as_i64().unwrap_or_default()))
            .collect();
        let expected = [
            (json!(1), 0),
            (json!(null), -32600),
            (json!("p"), 0),
            (json!(null), -32600),
            (json!(2), -32601),
            (json!(3), -32600),
            (json!(4), -32602),
            (json!(5), -32600),
            (json!(6), -32020),
            (json!(7), 0),
        ];
        assert_eq!(told, expected);
    }
    assert_eq!(called.load(Ordering::Relaxed), 4);

    let answer = ask(
        &endpoint,
        with(
            send(&json!([
                call(1, "echo", json!({})),
                request(2, "ping", json!({}))
            ])),
            &[("accept", "text/event-stream")],
        ),
    )
    .await;
    let text = std::str::from_utf8(&answer.body).unwrap();
    assert!(
        text.starts_with("event: message\ndata: [{") && text.ends_with("}]\n\n"),
        "{text}"
    );
}

#[tokio::test]
async fn only_2025_03_26_has_batches() {
    let (endpoint, called) = echo();
    let batch = json!([call(1, "echo", json!({}))]);
    for (revision, status) in [
        ("2025-03-26", 200),
        ("2025-06-18", 400),
        ("2025-11-25", 400),
        (NEW, 400),
        ("2024-11-05", 400),
        ("x", 400),
    ] {
        let answer = ask(
            &endpoint,
            with(send(&batch), &[("mcp-protocol-version", revision)]),
        )
        .await;
        assert_eq!(answer.status, status, "{revision}");
        if status == 400 {
            assert_eq!(
                (answer.code(), &answer.json()["id"]),
                (-32600, &json!(null)),
                "{revision}"
            );
        }
    }
    let mut twice = with(send(&batch), &[("mcp-protocol-version", "2025-03-26")]);
    twice
        .headers_mut()
        .append("mcp-protocol-version", "2025-03-26".parse().unwrap());
    assert_eq!(ask(&endpoint, twice).await.code(), -32600);
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_batch_has_one_message_to_twenty() {
    let (endpoint, called) = echo();
    let batch = |n: usize| {
        json!(
            (0..n)
                .map(|id| call(id, "echo", json!({})))
                .collect::<Vec<_>>()
        )
    };
    for n in [0, BATCH_LIMIT + 1, 500] {
        let answer = ask(&endpoint, send(&batch(n))).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (400, -32600),
            "{n}"
        );
        assert_eq!(answer.json()["id"], json!(null));
    }
    assert_eq!(called.load(Ordering::Relaxed), 0);
    let answer = ask(&endpoint, send(&batch(20))).await;
    assert_eq!(answer.json().as_array().unwrap().len(), 20);
    assert_eq!(called.load(Ordering::Relaxed), 20);
}

#[tokio::test]
async fn requests_of_a_batch_with_the_same_id_are_refused_and_the_others_served() {
    let (endpoint, called) = echo();
    let stateless = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let batch = json!([
        call(1, "echo", json!({})),
        call("1", "echo", json!({})),
        call(2, "echo", json!({})),
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
        {"jsonrpc": "2.0", "id": "1", "result": {}},
        // Nor could the client tell the answer to what is no message from that to its call.
        call(3, "echo", json!({})),
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": []},
        call(4, "echo", json!({})),
        {"id": 4, "method": "ping"},
        // Nor what has something else wrong with it, and the handshake has no place whatever is wrong with it.
        call(5, "echo", json!({})),
        {"jsonrpc": "2.0", "id": 5, "method": "ping", "params": {"_meta": 3}},
        {"jsonrpc": "2.0", "id": 6, "method": "ping", "params": {"_meta": stateless}},
        {"jsonrpc": "2.0", "id": 6, "method": "ping"},
        {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {"_meta": 3}},
    ]);
    let answer = ask(&endpoint, send(&batch)).await.json();
    let code = |n: usize| answer[n]["error"]["code"].as_i64().unwrap_or_default();
    assert_eq!([code(0), code(1)], [0, 0]);
    for (at, id) in [2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7].into_iter().enumerate() {
        assert_eq!((code(at + 2), &answer[at + 2]["id"]), (-32600, &json!(id)));
    }
    assert_eq!(answer.as_array().unwrap().len(), 13);
    assert_eq!(called.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn what_is_beside_the_arguments_is_an_object() {
    let (endpoint, called) = echo();
    for meta in [json!(5), json!("x"), json!([]), json!(null)] {
        let mut message = call(1, "echo", json!({}));
        message["params"]["_meta"] = meta;
        let answer = ask(&endpoint, send(&message)).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (200, -32602));
    }
    assert_eq!(called.load(Ordering::Relaxed), 0);
}

// ---- Tools -----------------------------------------------------------------------------------------------------

#[tokio::test]
async fn parameters_of_a_call_that_are_not_its_own_call_nothing() {
    let (endpoint, called) = echo();
    for (method, params) in [
        ("tools/call", json!({})),
        ("tools/call", json!({"name": 7})),
        ("tools/call", json!({"name": "ECHO"})),
        ("tools/call", json!({"name": "echo", "arguments": []})),
        ("tools/call", json!({"name": "echo", "arguments": null})),
        ("tools/call", json!({"name": "echo", "arguments": "{}"})),
        ("tools/list", json!({"cursor": "abc"})),
        ("tools/list", json!({"cursor": 1})),
    ] {
        let answer = ask(&endpoint, send(&request(1, method, params.clone()))).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (200, -32602),
            "{params}"
        );
    }
    assert_eq!(called.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_told_where_and_why_and_never_repeated() {
    let (endpoint, called) = echo();
    for (arguments, path, rule) in [
        (json!({"text": 7}), "/text", "the value has the wrong type"),
        (
            json!({"text": "s3cret-value"}),
            "/text",
            "the string must have at most 5 characters",
        ),
        (
            json!({"lines": [{"n": 1}, {"n": "s3cret"}]}),
            "/lines/1/n",
            "the value has the wrong type",
        ),
        (json!({"s3cret": 1}), "/*", "the value has the wrong type"),
    ] {
        for sent in [
            send(&call(1, "echo", arguments.clone())),
            new(
                "tools/call",
                json!({"name": "echo", "arguments": arguments}),
            ),
        ] {
            let answer = ask(&endpoint, sent).await;
            assert_eq!(answer.status, 200);
            let result = &answer.json()["result"];
            assert_eq!(result["isError"], true);
            let error = &result["structuredContent"]["error"];
            assert_eq!(
                (&error["code"], &error["retryable"]),
                (&json!("INVALID_ARGUMENTS"), &json!(false))
            );
            let message = error["message"].as_str().unwrap();
            assert!(
                message.ends_with(&format!("at `{path}`: {rule}")),
                "{message}"
            );
            assert_eq!(result["content"][1]["text"], message);
            assert!(!answer.json().to_string().contains("s3cret"));
        }
    }
    assert_eq!(called.load(Ordering::Relaxed), 0);
}

/// What layers outside leave for the tools, such as who is calling.
#[derive(Clone)]
struct Role(&'static str);

/// Tools by caller; the set checks arguments itself and has answers of its own.
struct ByRole(Vec<Tool>);

impl Tools for ByRole {
    fn find(&self, name: &str) -> Option<Tool> {
        self.0.iter().find(|tool| tool.name() == name).cloned()
    }

    fn list<'a>(&'a self, caller: &'a Parts) -> BoxFuture<'a, Result<Vec<Tool>, Error>> {
        Box::pin(async move {
            match caller.extensions.get::<Role>() {
                Some(Role("admin")) => Ok(self.0.clone()),
                Some(_) => Ok(self.0[..1].to_vec()),
                None => Err(unauthorized()),
            }
        })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(role) = call.request.extensions.get::<Role>() else {
                return Err(unauthorized());
            };
            if call.arguments.get("wrong").is_some() {
                return Err(Error::new(-32000, "no").with_data(json!({"code": "invalid_request"})));
            }
            Ok(ToolResult::text(format!(
                "{} {:?} {} {} {}",
                role.0,
                call.id,
                call.revision,
                call.batched,
                call.meta.contains_key("example/note")
            )))
        })
    }

    fn busy(&self, _: &Tool) -> Outcome {
        Err(Error::new(-32000, "busy").with_data(json!({"code": "unavailable"})))
    }
}

#[tokio::test]
async fn a_failure_of_a_tool_with_an_output_schema_has_no_structured_content() {
    let sum =
        json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    let tool = Tool::builder("sum", "Fails.").input(json!({"type": "object", "required": ["a"]}));
    let tools = tool_fn(tool.output(sum).build().unwrap(), |_| {
        Box::pin(async { Ok(ToolResult::failure("BROKEN", "It broke.", true)) })
    });
    let endpoint = mcp().build().unwrap().endpoint(tools);
    for (arguments, code) in [
        (json!({}), "INVALID_ARGUMENTS"),
        (json!({"a": 1}), "BROKEN"),
    ] {
        let answer = ask(&endpoint, send(&call(1, "sum", arguments)))
            .await
            .json();
        let result = &answer["result"];
        assert_eq!(result["isError"], true);
        assert_eq!(
            result.get("structuredContent"),
            None,
            "it would not fit the schema"
        );
        let text: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text["error"]["code"], code);
    }
}

fn unauthorized() -> Error {
    let challenge =
        HeaderValue::from_static("Bearer resource_metadata=\"https://gateway.example/x\"");
    Error::new(-32000, "who is calling?")
        .with_data(json!({"code": "grant_invalid"}))
        .with_status(StatusCode::UNAUTHORIZED)
        .with_header(header::WWW_AUTHENTICATE, challenge)
}

fn by_role() -> ByRole {
    let tool = |name| Tool::builder(name, "By role.").unchecked().build().unwrap();
    ByRole(vec![tool("read"), tool("write")])
}

fn as_role(mut sent: Sent, role: &'static str) -> Sent {
    sent.extensions_mut().insert(Role(role));
    sent
}

#[tokio::test]
async fn a_set_lists_its_tools_by_caller_and_no_cache_shares_them() {
    let endpoint = mcp().build().unwrap().endpoint(by_role());
    for (role, names) in [
        ("admin", json!(["read", "write"])),
        ("guest", json!(["read"])),
    ] {
        let answer = ask(&endpoint, as_role(new("tools/list", json!({})), role)).await;
        let result = &answer.json()["result"];
        let listed: Vec<_> = result["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| &t["name"])
            .collect();
        assert_eq!(json!(listed), names);
        assert_eq!(result["cacheScope"], "private");
    }
    let answer = ask(&endpoint, new("tools/list", json!({}))).await;
    assert_eq!(answer.status, 401);
}

#[tokio::test]
async fn a_tool_sees_the_request_and_what_the_client_says_beside_the_arguments() {
    let endpoint = mcp().build().unwrap().endpoint(by_role());
    let params = json!({"name": "read", "_meta": {"example/note": 1}});
    let answer = ask(
        &endpoint,
        as_role(send(&request("x", "tools/call", params)), "guest"),
    )
    .await;
    assert_eq!(
        answer.json()["result"]["content"][0]["text"],
        "guest Text(\"x\") 2025-03-26 false true"
    );
    let answer = ask(
        &endpoint,
        as_role(new("tools/call", json!({"name": "read"})), "guest"),
    )
    .await;
    assert_eq!(
        answer.json()["result"]["content"][0]["text"],
        "guest Number(Number(1)) 2026-07-28 false false"
    );
    let batch = json!([call(1, "read", json!({}))]);
    let answer = ask(&endpoint, as_role(send(&batch), "guest")).await;
    assert_eq!(
        answer.json()[0]["result"]["content"][0]["text"],
        "guest Number(Number(1)) 2025-03-26 true false"
    );
}

#[tokio::test]
async fn an_error_of_a_tool_alone_has_a_status_and_headers_and_in_a_batch_its_place() {
    let endpoint = mcp().build().unwrap().endpoint(by_role());
    let error =
        json!({"code": -32000, "message": "who is calling?", "data": {"code": "grant_invalid"}});
    for sent in [
        send(&call(1, "read", json!({}))),
        new("tools/call", json!({"name": "read"})),
    ] {
        let answer = ask(&endpoint, sent).await;
        assert_eq!(answer.status, 401);
        assert!(answer.headers.contains_key(header::WWW_AUTHENTICATE));
        assert_eq!(
            answer.json(),
            json!({"jsonrpc": "2.0", "id": 1, "error": error})
        );
    }
    let batch = json!([request(2, "ping", json!({})), call(1, "read", json!({}))]);
    let answer = ask(&endpoint, send(&batch)).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.headers.contains_key(header::WWW_AUTHENTICATE));
    assert_eq!(
        answer.json()[1],
        json!({"jsonrpc": "2.0", "id": 1, "error": error})
    );

    let wrong = as_role(send(&call(1, "read", json!({"wrong": 1}))), "guest");
    let answer = ask(&endpoint, wrong).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (200, -32000));
}

#[tokio::test]
async fn a_layer_outside_refuses_in_the_form_that_the_client_reads() {
    let mcp = mcp().build().unwrap();
    let batch = json!([
        request(1, "ping", json!({})),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call("b", "read", json!({})),
    ]);
    let silent = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    let alone = |id: Value| (401, json!({"id": id}));
    for (body, version, (status, ids)) in [
        (
            call(7, "read", json!({})).to_string(),
            None,
            alone(json!(7)),
        ),
        (
            request("x", "initialize", json!({})).to_string(),
            None,
            alone(json!("x")),
        ),
        (r#"{"id": 3}"#.to_owned(), None, alone(json!(3))),
        ("nonsense".to_owned(), None, alone(json!(null))),
        (silent[0].to_string(), None, alone(json!(null))),
        (silent.to_string(), None, alone(json!(null))),
        ("[]".to_owned(), None, alone(json!(null))),
        (batch.to_string(), Some(NEW), alone(json!(null))),
        (
            batch.to_string(),
            None,
            (200, json!([{"id": 1}, {"id": "b"}])),
        ),
    ] {
        let mut headers = HeaderMap::new();
        if let Some(version) = version {
            headers.insert("mcp-protocol-version", HeaderValue::from_static(version));
        }
        let response = mcp.refuse(&headers, body.as_bytes(), unauthorized());
        assert_eq!(response.status(), status, "{body}");
        let challenged = response.headers().contains_key(header::WWW_AUTHENTICATE);
        assert_eq!(challenged, status == 401, "{body}");
        let told = response.into_body().collect().await.unwrap().to_bytes();
        let mut told: Value = serde_json::from_slice(&told).unwrap();
        let messages = match &mut told {
            Value::Array(messages) => &mut messages[..],
            message => std::slice::from_mut(message),
        };
        for message in messages {
            let message = message.as_object_mut().unwrap();
            assert_eq!(message.remove("error").unwrap()["code"], -32000);
            assert_eq!(message.remove("jsonrpc").unwrap(), "2.0");
        }
        assert_eq!(told, ids, "{body}");
    }
}

#[tokio::test]
async fn sets_add_up_and_the_first_has_the_name() {
    let named = |name: &str, says: &'static str| {
        tool_fn(Tool::builder(name, says).build().unwrap(), move |_| {
            Box::pin(async move { Ok(ToolResult::text(says)) })
        })
    };
    let common: Arc<dyn Tools> = Arc::new(named("read", "ours").and(named("time", "noon")));
    let endpoint = mcp()
        .build()
        .unwrap()
        .endpoint(common.clone().and(by_role()));
    let answer = ask(&endpoint, as_role(new("tools/list", json!({})), "admin")).await;
    let result = &answer.json()["result"];
    let listed: Vec<_> = result["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["name"])
        .collect();
    assert_eq!(json!(listed), json!(["read", "time", "write"]));
    assert_eq!(result["cacheScope"], "private");
    for (name, says) in [
        ("read", "ours"),
        ("time", "noon"),
        ("write", "admin Number(Number(1)) 2025-03-26 false false"),
    ] {
        let answer = ask(&endpoint, as_role(send(&call(1, name, json!({}))), "admin")).await;
        assert_eq!(answer.json()["result"]["content"][0]["text"], says);
    }
    let endpoint = mcp().build().unwrap().endpoint(common);
    let answer = ask(&endpoint, new("tools/list", json!({}))).await;
    assert_eq!(answer.json()["result"]["cacheScope"], "public");
}

#[tokio::test]
async fn a_tool_learns_what_the_client_can_do_and_refuses_without() {
    let tool = Tool::builder("t", "Needs sampling.").build().unwrap();
    let tools = tool_fn(tool, |call| {
        let outcome = match call.declares("sampling") {
            true => Ok(ToolResult::text("ok")),
            false => Err(Error::missing_capability(json!({"sampling": {}}))),
        };
        Box::pin(async { outcome })
    });
    let endpoint = mcp().build().unwrap().endpoint(tools);
    let answer = ask(&endpoint, new("tools/call", json!({"name": "t"}))).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, -32021));
    // Clients of 2025 say it once, when they begin; nothing in a call counts.
    let mut old = call(1, "t", json!({}));
    old["params"]["_meta"] = json!({CAPABILITIES: {"sampling": {}}});
    assert_eq!(ask(&endpoint, send(&old)).await.code(), -32021);
    let required = json!({"requiredCapabilities": {"sampling": {}}});
    assert_eq!(answer.json()["error"]["data"], required);

    let meta = json!({VERSION: NEW, CAPABILITIES: {"sampling": {}}});
    let sent = send(&request(
        1,
        "tools/call",
        json!({"name": "t", "_meta": meta}),
    ));
    let sent = with(
        sent,
        &[
            ("mcp-protocol-version", NEW),
            ("mcp-method", "tools/call"),
            ("mcp-name", "t"),
        ],
    );
    assert_eq!(
        ask(&endpoint, sent).await.json()["result"]["content"][0]["text"],
        "ok"
    );
}

#[test]
fn a_tool_that_clients_could_not_use_cannot_be_built() {
    let input = |schema: Value| Tool::builder("t", "T.").input(schema).build();
    let mirror = |schema: Value| input(json!({"type": "object", "properties": {"a": schema}}));
    let text = |name: Value| json!({"type": "string", "x-mcp-header": name});
    for (tool, why) in [
        (Tool::builder("", "No name.").build(), "name"),
        (Tool::builder("a b", "Spaces.").build(), "name"),
        (Tool::builder(&"a".repeat(65), "Long.").build(), "name"),
        (input(json!({})), "type must be object"),
        (input(json!({"type": "string"})), "type must be object"),
        (input(json!(null)), "inputSchema"),
        (
            input(json!({"type": "object", "properties": 7})),
            "inputSchema",
        ),
        (
            input(json!({"type": "object", "$ref": "https://elsewhere.example/schema.json"})),
            "inputSchema",
        ),
        (
            Tool::builder("t", "T.").output(json!({"type": 7})).build(),
            "outputSchema",
        ),
        (
            Tool::builder("t", "T.")
                .output(json!({"type": "array"}))
                .build(),
            "outputSchema: the type must be object",
        ),
        (
            Tool::builder("t", "T.").annotations(json!([])).build(),
            "annotations",
        ),
        (mirror(text(json!(""))), "x-mcp-header"),
        (mirror(text(json!("a b"))), "x-mcp-header"),
        (mirror(text(json!(7))), "x-mcp-header"),
        (
            mirror(json!({"type": "number", "x-mcp-header": "A"})),
            "x-mcp-header",
        ),
        (mirror(json!({"x-mcp-header": "A"})), "x-mcp-header"),
        (
            mirror(json!({"type": "array", "items": text(json!("A"))})),
            "x-mcp-header",
        ),
        (mirror(json!({"anyOf": [text(json!("A"))]})), "x-mcp-header"),
        (
            input(json!({"type": "object", "x-mcp-header": "A"})),
            "x-mcp-header",
        ),
        (
            input(json!({"type": "object", "$defs": {"a": text(json!("A"))}})),
            "x-mcp-header",
        ),
        (
            mirror(
                json!({"type": "array", "items": {"properties": {"default": text(json!("A"))}}}),
            ),
            "x-mcp-header",
        ),
        (
            input(
                json!({"type": "object", "properties": {"a": text(json!("A")), "b": text(json!("a"))}}),
            ),
            "same x-mcp-header",
        ),
    ] {
        let error = tool.expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    // Names of members are no keywords, and values are no schemas.
    input(json!({
        "type": "object",
        "properties": {"x-mcp-header": {"type": "string", "enum": ["x-mcp-header"]}},
        "default": {"x-mcp-header": "A"},
        "$defs": {"a": {"properties": {"x-mcp-header": {"type": "string"}}}}
    }))
    .unwrap();
}

#[test]
fn settings_that_cannot_be_are_told_by_name() {
    for (builder, why) in [
        (Mcp::builder("t", "1"), "public_url is missing"),
        (
            mcp().public_url("gateway.example"),
            "public_url: `gateway.example` is no URL",
        ),
        (mcp().public_url("ftp://gateway.example/"), "public_url"),
        (mcp().origin("app"), "origin: `app` is no URL"),
        (
            Mcp::builder("t", "1").origin("https://app.example"),
            "public_url is missing",
        ),
    ] {
        let error = builder.build().expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(Revision::ALL.map(Revision::as_str)[3], NEW);
}

// ---- Limits ----------------------------------------------------------------------------------------------------

type Waiting = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Asks, as far as it goes at once.
async fn begin<T: Tools + 'static>(endpoint: &Endpoint<T>, sent: Sent) -> Result<Answer, Waiting> {
    let endpoint = endpoint.clone();
    let mut asked: Waiting = Box::pin(async move { ask(&endpoint, sent).await });
    match (&mut asked).now_or_never() {
        Some(answer) => Ok(answer),
        None => Err(asked),
    }
}

fn waiting(begun: Result<Answer, Waiting>) -> Waiting {
    match begun {
        Err(waiting) => waiting,
        Ok(answer) => panic!("answered {} at once", answer.status),
    }
}

#[tokio::test]
async fn the_twenty_first_request_at_once_is_told_to_come_back() {
    let (endpoint, gate) = gated(mcp());
    let mut inside = Vec::new();
    for id in 0..20 {
        inside.push(waiting(
            begin(&endpoint, send(&call(id, "wait", json!({})))).await,
        ));
    }
    let ping = || request(1, "ping", json!({}));
    for (sent, id) in [
        (send(&ping()), json!(1)),
        (send(&json!([ping()])), json!(null)),
        (new("tools/list", json!({})), json!(1)),
    ] {
        let Ok(answer) = begin(&endpoint, sent).await else {
            panic!("it waits");
        };
        assert_eq!((answer.status.as_u16(), answer.code()), (503, -32603));
        assert_eq!(answer.headers[header::RETRY_AFTER], "1");
        assert_eq!(answer.json()["error"]["data"]["code"], "GATEWAY_BUSY");
        assert_eq!(answer.json()["id"], id);
    }

    gate.add_permits(1);
    let (first, _, mut rest) = futures_util::future::select_all(inside).await;
    assert_eq!(first.status, 200);
    let next = waiting(begin(&endpoint, send(&call(21, "wait", json!({})))).await);
    rest.push(next);
    gate.add_permits(20);
    for answer in join_all(rest).await {
        assert_eq!(answer.json()["result"]["isError"], false);
    }
    // Whoever hangs up gives the place back.
    let mut inside = Vec::new();
    for id in 0..20 {
        inside.push(waiting(
            begin(&endpoint, send(&call(id, "wait", json!({})))).await,
        ));
    }
    drop(inside);
    assert_eq!(
        ask(&endpoint, send(&request(1, "ping", json!({}))))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_slow_body_keeps_nobody_out() {
    let (endpoint, _gate) = gated(mcp());
    let mut sending = Vec::new();
    for _ in 0..30 {
        let never =
            futures_util::stream::pending::<Result<http_body::Frame<Bytes>, std::io::Error>>();
        let slow = post("").map(|_| Body::new(StreamBody::new(never)));
        sending.push(waiting(begin(&endpoint, slow).await));
    }
    assert_eq!(
        ask(&endpoint, send(&request(1, "ping", json!({}))))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn eight_calls_run_and_sixty_four_wait_and_the_next_is_told_that_the_gateway_is_busy() {
    let (endpoint, gate) = gated(mcp());
    let batch = |from: usize| {
        json!(
            (from..from + 20)
                .map(|id| call(id, "wait", json!({})))
                .collect::<Vec<_>>()
        )
    };
    let mut batches = Vec::new();
    for from in [0, 20, 40, 60] {
        batches.push(waiting(begin(&endpoint, send(&batch(from))).await));
    }
    // 72 are taken, so a call alone is answered at once.
    let Ok(answer) = begin(&endpoint, new("tools/call", json!({"name": "wait"}))).await else {
        panic!("it waits");
    };
    assert_eq!(answer.status, 200);
    let busy = &answer.json()["result"];
    assert_eq!(busy["isError"], true);
    let error = &busy["structuredContent"]["error"];
    assert_eq!(
        (&error["code"], &error["retryable"]),
        (&json!("GATEWAY_BUSY"), &json!(true))
    );
    assert_eq!(busy["content"][1]["text"], error["message"]);
    // Other methods need no place among the calls.
    assert_eq!(
        ask(&endpoint, send(&request(1, "ping", json!({}))))
            .await
            .status,
        200
    );

    gate.add_permits(72);
    let answers = join_all(batches).await;
    let failed = answers
        .iter()
        .flat_map(|a| a.json().as_array().unwrap().clone());
    let failed: Vec<_> = failed
        .filter(|m| m["result"]["isError"] == true)
        .map(|m| m["id"].as_i64().unwrap())
        .collect();
    assert_eq!(failed, (72..80).collect::<Vec<_>>());
    assert_eq!(
        gate.available_permits(),
        0,
        "those that were refused have not run"
    );
}

#[tokio::test]
async fn endpoints_share_a_limit_of_calls_and_each_has_its_own_of_requests() {
    let calls = CallLimit::new(1, 0);
    let (one, gate) = gated(mcp().calls(calls.clone()).requests(1));
    let other = mcp()
        .calls(calls)
        .requests(1)
        .build()
        .unwrap()
        .endpoint(by_role());
    let running = waiting(begin(&one, send(&call(1, "wait", json!({})))).await);
    assert_eq!(
        ask(&one, send(&request(1, "ping", json!({})))).await.status,
        503
    );
    assert_eq!(
        ask(&other, send(&request(1, "ping", json!({}))))
            .await
            .status,
        200
    );
    // A set has its own answer to a call without room.
    let answer = ask(&other, as_role(send(&call(1, "read", json!({}))), "guest")).await;
    assert_eq!(answer.json()["error"]["data"]["code"], "unavailable");
    gate.add_permits(1);
    running.await;
    let answer = ask(&other, as_role(send(&call(1, "read", json!({}))), "guest")).await;
    assert_eq!(answer.json()["result"]["isError"], false);
}
