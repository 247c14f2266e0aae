//! Tools for agents, and the MCP endpoint that serves them.
//!
//! A set of tools is a [`Tools`]: it lists what a caller may use, and calls it. Sets add up ([`Tools::and`]), so that one
//! endpoint carries a marketplace's own tools beside others. [`Mcp`] is the protocol; with a set of tools it is an
//! [`Endpoint`], a Tower service.
//!
//! ```
//! use tower_rctp::service::tools::{Mcp, Tool, ToolResult, Tools, tool_fn};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let echo = Tool::builder("echo", "Says what it is told.")
//!     .input(serde_json::json!({
//!         "type": "object",
//!         "properties": {"text": {"type": "string", "maxLength": 100}},
//!         "required": ["text"],
//!         "additionalProperties": false
//!     }))
//!     .build()?;
//! let time = Tool::builder("get_time", "The time in UTC.").build()?;
//!
//! let tools = tool_fn(echo, |call| {
//!     Box::pin(async move { Ok(ToolResult::text(call.arguments["text"].as_str().unwrap_or_default())) })
//! })
//! .and(tool_fn(time, |_| Box::pin(async { Ok(ToolResult::text("12:00")) })));
//!
//! let endpoint = Mcp::builder("example", "1.0.0")
//!     .public_url("https://gateway.example/mcp")
//!     .build()?
//!     .endpoint(tools);
//! # let _ = endpoint;
//! # Ok(()) }
//! # example().unwrap();
//! ```
//!
//! # What is served
//!
//! Streamable HTTP without sessions and without streams: each `POST` is answered with JSON, or with a stream of one
//! event where the client accepts nothing else. Everything else is 405. Both eras of MCP speak to the same endpoint:
//!
//! | revision | methods | how it is told |
//! |---|---|---|
//! | 2026-07-28 | `server/discover`, `tools/list`, `tools/call` | each request says it, in `_meta` and in `MCP-Protocol-Version` |
//! | 2025-03-26, 2025-06-18, 2025-11-25 | `initialize`, `ping`, `tools/list`, `tools/call` | `MCP-Protocol-Version`; 2025-03-26 where there is none |
//!
//! Nothing is remembered from one request to the next: `initialize` issues no session, and is not required. Batches are
//! arrays of at most [`BATCH_LIMIT`] messages, in 2025-03-26 only. Prompts, resources, logging, completion, sampling,
//! elicitation, subscriptions and tasks are not served, and no capability says that they are.
//!
//! # What is refused
//!
//! Whatever is refused here has called no tool. The body is a JSON-RPC error; its `id` is the message's where that can be
//! read, else `null`.
//!
//! | status | code | when |
//! |---|---|---|
//! | 405 | -32600 | the method is not `POST` |
//! | 403 | -32600 | `Host` is not ours, or an `Origin` is there that may not call (DNS rebinding) |
//! | 415, 406 | -32600 | the body is not `application/json` in UTF-8, or is encoded, or the client accepts neither JSON nor an event stream |
//! | 413 | -32600 | the body is over the limit, 256 KiB by default |
//! | 503 | -32603 | more than 20 requests at once, with `Retry-After: 1`; the body is not read, so `id` is `null` |
//! | 400 | -32700 | not JSON, or a member twice in one object |
//! | 400 | -32600 | no JSON-RPC 2.0 message; a batch that is empty, too long, or of a revision without batches |
//! | 400 | -32602 | 2026-07-28: `_meta` lacks what it must have |
//! | 400 | -32020 | 2026-07-28: `MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name` or `Mcp-Param-…` is missing or says something else than the body |
//! | 400 | -32022 | a revision that is not served |
//! | 404, or 200 before 2026-07-28 | -32601 | no such method |
//! | 200 | -32602 | no such tool, or parameters that the method does not have |
//!
//! Arguments that do not fit the tool's schema, and calls for which there is no room (8 run, 64 wait), are results with
//! `isError`, since the model can do something about them: `INVALID_ARGUMENTS`, which names the path and the rule, and
//! `GATEWAY_BUSY`. A set may have answers of its own for both ([`ToolBuilder::unchecked`], [`Tools::busy`]).
//!
//! # Deployment
//!
//! The `Host` that arrives must be one of the public URLs'; a proxy passes it on, or its own name is added as another
//! `public_url`. There is no CORS: a page of another origin needs [`McpBuilder::origin`] and a CORS layer outside.
//! Nobody is authenticated here; layers outside do that, and tools find what those have left in
//! [`Call::request`].
//!
//! Sources: MCP 2025-03-26 to 2026-07-28 (Streamable HTTP, Versioning, Tools, Caching), JSON-RPC 2.0.

mod endpoint;
mod http;
mod limit;
mod message;
mod outcome;
mod revision;
mod set;
mod tool;

pub use self::{
    endpoint::{BadSetting, Endpoint, Mcp, McpBuilder},
    limit::CallLimit,
    message::{BATCH_LIMIT, Id},
    outcome::{Content, Error, Outcome, ToolResult, code},
    revision::Revision,
    set::{And, Call, ToolFn, Tools, tool_fn},
    tool::{BadTool, Tool, ToolBuilder},
};

pub(crate) use self::message::Messages;
