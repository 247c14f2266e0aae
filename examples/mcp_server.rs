//! A small MCP server: tools of its own, over the endpoint that speaks both eras of the protocol.
//!
//! ```sh
//! cargo run --example mcp_server -- 127.0.0.1:3000
//! curl -s http://127.0.0.1:3000/mcp -H 'content-type: application/json' \
//!   -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":2,"b":3}}}'
//! ```
//!
//! The tools named `test_…` and `json_schema_2020_12_tool` are those that the official conformance suite asks a server
//! to have (`tests/conformance_mcp`).

use std::{error::Error as StdError, net::SocketAddr};

use serde_json::{Map, Value, json};
use tower_rctp::service::tools::{
    BadTool, Content, Error, Mcp, Outcome, Tool, ToolResult, Tools, tool_fn,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let address = std::env::args().nth(1);
    let address: SocketAddr = address.as_deref().unwrap_or("127.0.0.1:3000").parse()?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    let port = listener.local_addr()?.port();

    let mcp = Mcp::builder("tower-rctp-example", env!("CARGO_PKG_VERSION"))
        // Requests for any other host are refused: a page that has its own name resolve to this machine gets nowhere.
        .public_url(&format!("http://localhost:{port}/mcp"))
        .public_url(&format!("http://127.0.0.1:{port}/mcp"))
        .instructions("Adds numbers, and shows what results can look like.")
        .build()?;
    // Sets add up: these could as well be a marketplace's tools and somebody else's.
    let tools = conformance()?.and(add()?).and(greet()?);
    let app = axum::Router::new().route_service("/mcp", mcp.endpoint(tools));

    println!("MCP at http://127.0.0.1:{port}/mcp");
    axum::serve(listener, app).await?;
    Ok(())
}

/// A structured result: for programs as `structuredContent`, for models as text. Its arguments have passed the schema.
fn add() -> Result<impl Tools, BadTool> {
    let number = json!({"type": "integer", "minimum": -1_000_000, "maximum": 1_000_000});
    let tool = Tool::builder("add", "Adds two integers.")
        .input(json!({
            "type": "object",
            "properties": {"a": number, "b": number},
            "required": ["a", "b"],
            "additionalProperties": false
        }))
        .output(json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}))
        .annotations(json!({"readOnlyHint": true}))
        .build()?;
    Ok(tool_fn(tool, |call| {
        Box::pin(async move {
            let term = |name: &str| call.arguments[name].as_i64().unwrap_or_default();
            let sum = json!(term("a") + term("b"));
            Ok(ToolResult::structured(Map::from_iter([(
                "sum".to_owned(),
                sum,
            )])))
        })
    }))
}

/// An argument that clients repeat in the header `Mcp-Param-Language`, so that a proxy can route by it.
fn greet() -> Result<impl Tools, BadTool> {
    let tool = Tool::builder("greet", "Greets somebody.")
        .input(json!({
            "type": "object",
            "properties": {"language": {"type": "string", "x-mcp-header": "Language"}},
            "additionalProperties": false
        }))
        .build()?;
    Ok(tool_fn(tool, |call| {
        let greeting = match call.arguments["language"].as_str() {
            Some("de") => "Guten Tag",
            _ => "Hello",
        };
        Box::pin(async move { Ok(ToolResult::text(greeting)) })
    }))
}

/// Without parameters, and the same answer every time.
fn constant(name: &str, description: &str, outcome: Outcome) -> Result<impl Tools, BadTool> {
    let tool = Tool::builder(name, description).build()?;
    Ok(tool_fn(tool, move |_| {
        let outcome = outcome.clone();
        Box::pin(async move { outcome })
    }))
}

fn conformance() -> Result<impl Tools, BadTool> {
    // One pixel, and no sound at all.
    let image = Content::Image {
        data: "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==".into(),
        mime_type: "image/png".into(),
    };
    let audio = Content::Audio {
        data: "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=".into(),
        mime_type: "audio/wav".into(),
    };
    let resource = Content::Resource {
        resource: json!({"uri": "example://note", "mimeType": "text/plain", "text": "A note."}),
    };
    let of = |content: &[Content]| Ok(ToolResult::new(content.to_vec()));
    let mixed = [Content::text("All kinds:"), image.clone(), resource.clone()];

    // A tool that needs more of its client than the client says it can do.
    let sampling = Tool::builder("test_missing_capability", "Needs `sampling`.").build()?;
    let sampling = tool_fn(sampling, |call| {
        let outcome = match call.declares("sampling") {
            true => Ok(ToolResult::text("The client can do it.")),
            false => Err(Error::missing_capability(json!({"sampling": {}}))),
        };
        Box::pin(async { outcome })
    });

    let failed = ToolResult::failure("EXAMPLE", "This tool always fails.", false);
    Ok(constant(
        "test_simple_text",
        "A text.",
        Ok(ToolResult::text("Some text.")),
    )?
    .and(constant("test_image_content", "An image.", of(&[image]))?)
    .and(constant("test_audio_content", "A sound.", of(&[audio]))?)
    .and(constant(
        "test_embedded_resource",
        "A resource.",
        of(&[resource]),
    )?)
    .and(constant(
        "test_multiple_content_types",
        "All kinds.",
        of(&mixed),
    )?)
    .and(constant("test_error_handling", "Fails.", Ok(failed))?)
    // Tools that could tell of their progress, or ask back; these have nothing to tell.
    .and(constant(
        "test_logging_tool",
        "Logs nothing.",
        Ok(ToolResult::text("Done.")),
    )?)
    .and(constant(
        "test_streaming_elicitation",
        "Asks nothing.",
        Ok(ToolResult::text("Done.")),
    )?)
    .and(sampling)
    .and(contact()?))
}

/// A schema with the wider vocabulary of 2020-12, which reaches clients as it is written.
fn contact() -> Result<impl Tools, BadTool> {
    let schema: Value = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "by": {"enum": ["post", "phone"]},
            "phone": {"type": "string"},
            "address": {"$ref": "#place"}
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["address"]}]}],
        "if": {"properties": {"by": {"const": "post"}}, "required": ["by"]},
        "then": {"required": ["address"]},
        "else": {"required": ["phone"]},
        "additionalProperties": false,
        "$defs": {"address": {
            "$anchor": "place",
            "type": "object",
            "properties": {"town": {"type": "string"}},
            "required": ["town"]
        }}
    });
    let tool = Tool::builder("json_schema_2020_12_tool", "Says how to reach somebody.")
        .input(schema)
        .build()?;
    Ok(tool_fn(tool, |call| {
        Box::pin(async move { Ok(ToolResult::text(call.arguments.to_string())) })
    }))
}
