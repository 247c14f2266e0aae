//! Malformed messages to the MCP endpoint, generated: none is answered 5xx, and none calls a tool.
//!
//! Each kind of damage is one row of the table; what is random in it comes from a fixed seed, so that a failure can be
//! seen again.

#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};
use tower::ServiceExt;
use tower_rctp::{
    layer::body::Body,
    service::tools::{Endpoint, Mcp, Tool, ToolResult, Tools, tool_fn},
};

const MESSAGES: usize = 10_000;
const SEED: u64 = 0x5eed;
const NEW: &str = "2026-07-28";

type Sent = Request<Body>;

/// SplitMix64: all that is needed is that the next run throws the same.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    fn text(&mut self) -> String {
        let alphabet = [
            'a',
            'Z',
            '0',
            ' ',
            '/',
            '"',
            '\\',
            '\n',
            '\0',
            'ü',
            '\u{202e}',
            '\u{10ffff}',
        ];
        (0..self.below(12)).map(|_| self.one(&alphabet)).collect()
    }

    fn any(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => json!(null),
            1 => json!(self.below(2) == 1),
            2 => json!(self.next()),
            3 => json!(-(self.below(1000) as i64)),
            4 => json!(self.next() as f64 / 3.0),
            5 => json!(self.text()),
            6 => (0..self.below(4)).map(|_| self.any(depth - 1)).collect(),
            _ => Value::Object(
                (0..self.below(4))
                    .map(|_| (self.text(), self.any(depth - 1)))
                    .collect(),
            ),
        }
    }

    /// Any value that is not one of these.
    fn other_than(&mut self, fits: fn(&Value) -> bool) -> Value {
        loop {
            let value = self.any(3);
            if !fits(&value) {
                return value;
            }
        }
    }
}

/// The call that all damage is done to. Undamaged, it calls.
fn good() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "pay", "arguments": {"amount": 1, "to": {"name": "x"}}
    }})
}

/// The same in the form of 2026-07-28.
fn good_new() -> Value {
    let mut message = good();
    message["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": NEW,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    message
}

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

fn send_new(message: &Value) -> Sent {
    let mut sent = send(message);
    for (name, value) in [
        ("mcp-protocol-version", NEW),
        ("mcp-method", "tools/call"),
        ("mcp-name", "pay"),
    ] {
        sent.headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    sent
}

/// In either form.
fn damaged(dice: &mut Dice, damage: impl FnOnce(&mut Dice, &mut Map<String, Value>)) -> Sent {
    let new = dice.below(2) == 1;
    let mut message = if new { good_new() } else { good() };
    damage(dice, message.as_object_mut().unwrap());
    if new {
        send_new(&message)
    } else {
        send(&message)
    }
}

fn params(message: &mut Map<String, Value>) -> &mut Map<String, Value> {
    message["params"].as_object_mut().unwrap()
}

fn header(dice: &mut Dice, names: &[&'static str]) -> (&'static str, HeaderValue) {
    let values = [
        "",
        "x",
        "tools/list",
        "Pay",
        "PAY",
        "2025-11-25",
        "=?base64?cGF5?",
        "=?base64?!?=",
        "pay, pay",
        "\u{f6}",
    ];
    let value = HeaderValue::from_bytes(dice.one(&values).as_bytes()).unwrap();
    (dice.one(names), value)
}

type Attack = fn(&mut Dice) -> Sent;

const ATTACKS: &[(&str, Attack)] = &[
    ("anything at all", |dice| send(&dice.any(4))),
    ("random bytes", |dice| {
        let bytes: Vec<u8> = (0..dice.below(200)).map(|_| dice.next() as u8).collect();
        post(bytes)
    }),
    ("a message that ends too early", |dice| {
        let mut text = good().to_string();
        text.truncate(dice.below(text.len()));
        post(text)
    }),
    ("bytes after the message", |dice| {
        let more = dice.one(&["}", "]", ",", "{}", "null", "\"", "//", "\0"]);
        post(good().to_string() + more)
    }),
    ("bytes before the message", |dice| {
        let more = dice.one(&["\u{feff}", ",", "{", "null", "data: ", "\0", ")]}'"]);
        post(more.to_owned() + &good().to_string())
    }),
    ("a byte that is no UTF-8", |dice| {
        let mut bytes = good().to_string().into_bytes();
        let at = dice.below(bytes.len());
        bytes[at] = 0xff;
        post(bytes)
    }),
    ("a member twice", |dice| {
        let member = dice.one(&[
            "\"id\":1",
            "\"jsonrpc\":\"2.0\"",
            "\"method\":\"ping\"",
            "\"params\":{}",
        ]);
        post(good().to_string().replacen('{', &format!("{{{member},"), 1))
    }),
    ("an argument twice", |dice| {
        let member = dice.one(&["\"amount\":0", "\"\\u0061mount\":9", "\"to\":{}"]);
        post(good().to_string().replacen(
            "\"arguments\":{",
            &format!("\"arguments\":{{{member},"),
            1,
        ))
    }),
    ("nested without end", |dice| {
        let depth = 200 + dice.below(2000);
        let [open, close] = dice.one(&[["[", "]"], ["{\"a\":", "}"]]);
        let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
        post(dice.one(&[
            nested.clone(),
            good().to_string().replacen("\"x\"", &nested, 1),
        ]))
    }),
    ("numbers out of range", |dice| {
        let number = dice.one(&[
            "1e999", "-1e999", "1e-", "01", "+1", "0x10", "NaN", "Infinity", "1.0e400",
        ]);
        let field = dice.one(&["\"id\":1", "\"amount\":1"]);
        let name = field.split(':').next().unwrap();
        post(
            good()
                .to_string()
                .replacen(field, &format!("{name}:{number}"), 1),
        )
    }),
    ("another jsonrpc", |dice| {
        damaged(dice, |dice, message| {
            message["jsonrpc"] = dice.other_than(|value| value == "2.0");
        })
    }),
    ("no jsonrpc", |dice| {
        damaged(dice, |_, message| _ = message.remove("jsonrpc"))
    }),
    ("an id that is none", |dice| {
        damaged(dice, |dice, message| {
            message["id"] =
                dice.other_than(|value| value.is_string() || value.is_i64() || value.is_u64());
        })
    }),
    ("no id", |dice| {
        damaged(dice, |_, message| _ = message.remove("id"))
    }),
    ("a method that is none", |dice| {
        damaged(dice, |dice, message| {
            message["method"] = dice.other_than(|value| value == "tools/call")
        })
    }),
    ("no method", |dice| {
        damaged(dice, |dice, message| {
            message.remove("method");
            if dice.below(2) == 1 {
                message.insert(dice.one(&["result", "error"]).to_owned(), dice.any(2));
            }
        })
    }),
    ("parameters that are none", |dice| {
        damaged(dice, |dice, message| {
            message["params"] = dice.other_than(Value::is_object)
        })
    }),
    ("parameters of something else", |dice| {
        damaged(dice, |dice, message| {
            message["params"] = dice.other_than(|value| !value.is_object())
        })
    }),
    ("a tool that is not there", |dice| {
        damaged(dice, |dice, message| {
            params(message)["name"] = dice.other_than(|value| value == "pay")
        })
    }),
    ("arguments that are none", |dice| {
        damaged(dice, |dice, message| {
            params(message)["arguments"] = dice.other_than(Value::is_object)
        })
    }),
    ("an argument that does not fit", |dice| {
        damaged(dice, |dice, message| {
            let arguments = params(message)["arguments"].as_object_mut().unwrap();
            match dice.below(5) {
                0 => arguments["amount"] = dice.other_than(Value::is_number),
                1 => arguments["amount"] = json!(dice.one(&[0, -1, 1001])),
                2 => arguments["to"] = dice.other_than(Value::is_object),
                3 => _ = arguments.insert(format!("_{}", dice.text()), dice.any(2)),
                _ => _ = arguments.remove(dice.one(&["amount", "to"])),
            }
        })
    }),
    ("metadata that is none", |dice| {
        let mut message = good_new();
        let wrong = |dice: &mut Dice| dice.other_than(Value::is_object);
        match dice.below(3) {
            0 => message["params"]["_meta"] = wrong(dice),
            1 => {
                message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
                    wrong(dice)
            }
            _ => {
                let version = dice.other_than(|value| value == NEW);
                message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = version;
            }
        }
        send_new(&message)
    }),
    ("a header that says something else", |dice| {
        let mut sent = send_new(&good_new());
        let (name, value) = header(dice, &["mcp-protocol-version", "mcp-method", "mcp-name"]);
        match dice.below(3) {
            0 => _ = sent.headers_mut().remove(name),
            1 => _ = sent.headers_mut().append(name, value),
            _ => _ = sent.headers_mut().insert(name, value),
        }
        sent
    }),
    ("the new form without its headers", |_| send(&good_new())),
    ("the new headers without the form", |_| send_new(&good())),
    ("a batch of anything but messages", |dice| {
        let members =
            (0..=dice.below(20)).map(|_| dice.other_than(|value| value.get("method").is_some()));
        send(&members.collect())
    }),
    ("a batch that is none or too long", |dice| {
        let count = dice.one(&[0, 21, 22, 100, 1000]);
        let members = (0..count).map(|id| {
            let mut message = good();
            message["id"] = json!(id);
            message
        });
        send(&members.collect())
    }),
    ("a batch in which all have one id", |dice| {
        let id = dice.one(&[json!(1), json!("1"), json!("")]);
        let members = (0..2 + dice.below(18)).map(|_| {
            let mut message = good();
            message["id"] = id.clone();
            message
        });
        send(&members.collect())
    }),
    ("a batch of another revision", |dice| {
        let mut sent = send(&json!([good()]));
        let version = dice.one(&["2024-11-05", "2025-06-18", "2025-11-25", NEW, "", "x"]);
        sent.headers_mut()
            .insert("mcp-protocol-version", HeaderValue::from_static(version));
        sent
    }),
    ("batches in a batch", |dice| {
        let mut message = json!([good()]);
        for _ in 0..=dice.below(100) {
            message = json!([message]);
        }
        send(&message)
    }),
    ("not a POST of JSON to us", |dice| {
        let mut sent = send(&good());
        let headers = sent.headers_mut();
        match dice.below(5) {
            0 => {
                *sent.method_mut() = dice
                    .one(&["GET", "PUT", "DELETE", "PATCH", "BREW"])
                    .parse()
                    .unwrap()
            }
            1 => {
                _ = headers.insert(
                    header::HOST,
                    HeaderValue::from_static(dice.one(&[
                        "",
                        "evil.example",
                        "gateway.example:1",
                        "a@gateway.example",
                        "[::1",
                    ])),
                )
            }
            2 => {
                _ = headers.insert(
                    header::ORIGIN,
                    HeaderValue::from_static(dice.one(&[
                        "",
                        "null",
                        "https://evil.example",
                        "gateway.example",
                    ])),
                )
            }
            3 => {
                _ = headers.insert(
                    header::CONTENT_TYPE,
                    HeaderValue::from_static(dice.one(&[
                        "",
                        "text/plain",
                        "application/",
                        ";",
                        "application/json+x",
                    ])),
                )
            }
            _ => {
                _ = headers.insert(
                    header::ACCEPT,
                    HeaderValue::from_static(dice.one(&[
                        "x",
                        "/",
                        ";q",
                        "text/html",
                        "application/json;q=0",
                    ])),
                )
            }
        }
        sent
    }),
    ("too much", |dice| {
        let mut message = good();
        message["params"]["arguments"]["to"]["name"] =
            json!("x".repeat(256 * 1024 + dice.below(9)));
        send(&message)
    }),
];

fn server() -> (Endpoint<impl Tools>, Arc<AtomicUsize>) {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let tool = Tool::builder("pay", "Pays.").input(json!({
        "type": "object",
        "properties": {
            "amount": {"type": "integer", "minimum": 1, "maximum": 1000},
            "to": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        },
        "required": ["amount", "to"],
        "additionalProperties": false
    }));
    let tools = tool_fn(tool.build().unwrap(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(ToolResult::text("paid")) })
    });
    let mcp = Mcp::builder("test", "1").public_url("https://gateway.example/mcp");
    (mcp.build().unwrap().endpoint(tools), called)
}

/// The status, and what was answered to each message.
async fn ask<T: Tools + 'static>(endpoint: &Endpoint<T>, sent: Sent) -> (u16, Vec<Value>) {
    let response = endpoint.clone().oneshot(sent).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    if status == 202 {
        assert!(body.is_empty());
        return (status, Vec::new());
    }
    match serde_json::from_slice(&body).expect("an answer is JSON") {
        Value::Array(answers) => (status, answers),
        answer => (status, vec![answer]),
    }
}

#[tokio::test]
async fn ten_thousand_malformed_messages_break_nothing_and_call_nothing() {
    let (endpoint, called) = server();
    let mut dice = Dice(SEED);
    for n in 0..MESSAGES {
        let (what, attack) = ATTACKS[n % ATTACKS.len()];
        let (status, answers) = ask(&endpoint, attack(&mut dice)).await;
        assert!(status < 500, "{what} ({n}): {status}");
        assert_eq!(
            called.load(Ordering::Relaxed),
            0,
            "{what} ({n}) was executed"
        );
        for answer in answers {
            assert_eq!(answer["jsonrpc"], "2.0", "{what} ({n}): {answer}");
            let code = answer["error"]["code"].as_i64();
            let known = code.is_some_and(|code| {
                [-32700, -32020, -32022].contains(&code) || (-32602..=-32600).contains(&code)
            });
            assert!(
                known || answer["result"]["isError"] == true,
                "{what} ({n}): {answer}"
            );
            assert!(answer.get("id").is_some(), "{what} ({n}): {answer}");
        }
    }
}

#[tokio::test]
async fn the_undamaged_messages_call() {
    let (endpoint, called) = server();
    for sent in [send(&good()), send_new(&good_new()), send(&json!([good()]))] {
        let (status, answers) = ask(&endpoint, sent).await;
        assert_eq!(
            (status, &answers[0]["result"]["isError"]),
            (200, &json!(false))
        );
    }
    assert_eq!(called.load(Ordering::Relaxed), 3);
}
