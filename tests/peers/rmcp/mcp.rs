//! The client: a connection of any revision of MCP, and calls whose answers are looked at as a whole.

use rmcp::{
    ClientLifecycleMode, ClientServiceExt, ErrorData, RoleClient, ServiceError,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, ErrorCode, Implementation,
        ProtocolVersion,
    },
    service::{ClientInitializeError, RunningService},
    transport::{
        StreamableHttpClientTransport,
        streamable_http_client::{StreamableHttpClient, StreamableHttpClientTransportConfig},
    },
};
use serde_json::{Value, json};
use tower_rctp::{
    layer::context::{Ids, RandomIds},
    wire::base64url,
};

use crate::answer::Failure;

/// How a client begins, and what has to be spoken then.
pub struct Era {
    pub begins: &'static str,
    lifecycle: ClientLifecycleMode,
    asks_for: ProtocolVersion,
    pub speaks: ProtocolVersion,
}

impl Era {
    /// Without a handshake.
    pub fn discover() -> Self {
        let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
        Self {
            begins: "server/discover",
            lifecycle: ClientLifecycleMode::Discover { preferred_versions },
            ..Self::initialize(ProtocolVersion::V_2026_07_28)
        }
    }

    /// As a client does that does not know the server.
    pub fn auto() -> Self {
        Self {
            begins: "auto",
            lifecycle: ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: None,
            },
            ..Self::discover()
        }
    }

    pub fn initialize(version: ProtocolVersion) -> Self {
        Self {
            begins: "initialize",
            lifecycle: ClientLifecycleMode::Initialize,
            asks_for: version.clone(),
            speaks: version,
        }
    }

    /// A revision from before Streamable HTTP, which the server answers with its own newest.
    pub fn older() -> Self {
        Self {
            begins: "initialize with 2024-11-05",
            asks_for: ProtocolVersion::V_2024_11_05,
            ..Self::initialize(ProtocolVersion::V_2025_11_25)
        }
    }
}

pub struct Mcp(RunningService<RoleClient, ClientConfig>);

pub async fn connect<C: StreamableHttpClient + Sync>(
    client: C,
    endpoint: &str,
    era: &Era,
) -> Result<Mcp, ClientInitializeError> {
    let config = StreamableHttpClientTransportConfig::with_uri(endpoint);
    let transport = StreamableHttpClientTransport::with_client(client, config);
    let this = Implementation::new("tower-rctp-peer-rmcp", "0");
    let this = ClientConfig::new(ClientCapabilities::default(), this)
        .with_protocol_version(era.asks_for.clone());
    let mcp = this.serve_with_lifecycle(transport, era.lifecycle.clone());
    let mcp = Mcp(mcp.await?);
    let server = mcp.0.peer_info().expect("a server that has been met");
    assert_eq!(server.protocol_version, era.speaks, "{}", era.begins);
    let name = server.server_info.as_ref().map(|server| &*server.name);
    assert_eq!(name, Some("tower-rctp-gateway"));
    Ok(mcp)
}

impl Mcp {
    /// The names of the tools.
    pub async fn tools(&self) -> Result<Vec<String>, ServiceError> {
        let tools = self.0.list_all_tools().await?.into_iter();
        Ok(tools.map(|tool| tool.name.into_owned()).collect())
    }

    /// What a tool's structured content is, which its text has to repeat.
    pub async fn call(&self, tool: &'static str, arguments: Value) -> Result<Value, ServiceError> {
        let Value::Object(arguments) = arguments else {
            panic!("the arguments of a tool are an object");
        };
        let call = CallToolRequestParams::new(tool).with_arguments(arguments);
        let result = self.0.call_tool(call).await?;
        assert_ne!(result.is_error, Some(true), "{tool}: {result:?}");
        let said = result.structured_content.expect("structured content");
        let [text] = &*result.content else {
            panic!("{tool}: not one block of content");
        };
        let text = text.as_text().expect("text");
        let text: Value = serde_json::from_str(&text.text).expect("JSON as text");
        assert_eq!(text, said, "{tool}");
        Ok(said)
    }

    /// The `result` of a tool that is carried out at once.
    pub async fn done(&self, tool: &'static str, arguments: Value) -> Result<Value, ServiceError> {
        let mut said = self.call(tool, arguments).await?;
        assert_eq!(said["decision"], json!({"decision": "auto"}), "{tool}");
        Ok(said["result"].take())
    }

    /// The `data` of a tool that is refused.
    pub async fn refused(&self, tool: &'static str, arguments: Value) -> Result<Value, Failure> {
        match self.call(tool, arguments).await {
            Err(ServiceError::McpError(ErrorData { code, data, .. })) => {
                assert_eq!(code, ErrorCode(-32000), "{tool}");
                Ok(data.expect("data"))
            }
            Err(error) => Err(error.into()),
            Ok(said) => panic!("{tool} was not refused: {said}"),
        }
    }
}

/// The arguments, with an idempotency key of their own.
pub fn keyed(mut arguments: Value) -> Value {
    let key = RandomIds.random().expect("randomness");
    arguments["meta"] = json!({"idempotency-key": base64url(&key)});
    arguments
}
