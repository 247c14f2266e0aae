//! The MCP endpoint: from an HTTP request to its answer.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, request::Parts};
use http_body::Body as HttpBody;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tower::{BoxError, Service};

use super::{
    http::{Form, Guard, busy, check_content_type, method_not_allowed},
    limit::{CallLimit, Limit},
    message::{Id, Message, Messages, NoMessage, Reply},
    outcome::{Error, ToolResult, code},
    revision::{self, META_SERVER, Revision},
    set::{Call, Tools},
    tool::Tool,
};
use crate::{
    layer::{
        arrive::BODY_LIMIT,
        body::{Body, CollectError},
    },
    store::BoxFuture,
};

/// A setting of [`Mcp`] that cannot be: which, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSetting(String);

/// A server of tools, without its tools: the protocol, with its settings and limits. Cheap to clone.
///
/// [`Mcp::endpoint`] makes a Tower service of it and a set of tools; [`Mcp::answer`] is for layers, which make their
/// tools anew for each request.
#[derive(Clone)]
pub struct Mcp {
    settings: Arc<Settings>,
    requests: Limit,
}

struct Settings {
    info: Value,
    instructions: Option<String>,
    ttl: Duration,
    guard: Guard,
    body_limit: usize,
    requests_at_once: usize,
    calls: CallLimit,
}

/// [`Mcp`] in the making.
#[derive(Debug)]
pub struct McpBuilder {
    info: Value,
    instructions: Option<String>,
    ttl: Duration,
    guard: Result<Guard, BadSetting>,
    body_limit: usize,
    requests: usize,
    calls: CallLimit,
}

impl McpBuilder {
    /// Where clients reach the endpoint. Requests for other hosts are refused, and so are those of pages of another
    /// origin. May be called again for each further URL; at least one is required.
    #[must_use]
    pub fn public_url(mut self, url: &str) -> Self {
        self.guard = self.guard.and_then(|mut guard| {
            let added = guard.add_host(url);
            added.map_err(|why| BadSetting(format!("public_url: {why}")))?;
            Ok(guard)
        });
        self
    }

    /// Lets pages of another origin call, such as `https://app.example`.
    #[must_use]
    pub fn origin(mut self, origin: &str) -> Self {
        self.guard = self.guard.and_then(|mut guard| {
            let added = guard.add_origin(origin);
            added.map_err(|why| BadSetting(format!("origin: {why}")))?;
            Ok(guard)
        });
        self
    }

    /// What a model is told of the server as a whole.
    #[must_use]
    pub fn instructions(mut self, instructions: &str) -> Self {
        self.instructions = Some(instructions.to_owned());
        self
    }

    /// How long clients may keep the list of tools; 60 seconds by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The largest body, in bytes; 256 KiB by default.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// How many requests are served at a time; 20 by default.
    #[must_use]
    pub fn requests(mut self, at_once: usize) -> Self {
        self.requests = at_once;
        self
    }

    /// How many tool calls; 8 at a time and a queue of 64 by default.
    #[must_use]
    pub fn calls(mut self, limit: CallLimit) -> Self {
        self.calls = limit;
        self
    }

    /// The server.
    ///
    /// # Errors
    /// [`BadSetting`] when there is no public URL, or an URL or origin is none.
    pub fn build(self) -> Result<Mcp, BadSetting> {
        let guard = self.guard?;
        if !guard.has_hosts() {
            return Err(BadSetting(
                "public_url is missing; write .public_url(\"https://gateway.example/mcp\")".into(),
            ));
        }
        let settings = Settings {
            info: self.info,
            instructions: self.instructions,
            ttl: self.ttl,
            guard,
            body_limit: self.body_limit,
            requests_at_once: self.requests,
            calls: self.calls,
        };
        Ok(Mcp {
            requests: Limit::new(settings.requests_at_once),
            settings: Arc::new(settings),
        })
    }
}

/// A request that has passed what HTTP says, and what its answers have in common.
#[derive(Clone, Copy)]
struct Exchange<'a> {
    request: &'a Parts,
    batched: bool,
}

impl Mcp {
    /// Begins a server; clients are shown this name and version of its software.
    pub fn builder(name: &str, version: &str) -> McpBuilder {
        McpBuilder {
            info: json!({"name": name, "version": version}),
            instructions: None,
            ttl: Duration::from_secs(60),
            guard: Ok(Guard::default()),
            body_limit: BODY_LIMIT,
            requests: 20,
            calls: CallLimit::default(),
        }
    }

    /// The server with its tools, as a service to mount. Each has its own limit of requests at a time.
    pub fn endpoint<T: Tools + 'static>(&self, tools: T) -> Endpoint<T> {
        Endpoint {
            mcp: Self {
                settings: self.settings.clone(),
                requests: Limit::new(self.settings.requests_at_once),
            },
            tools: Arc::new(tools),
        }
    }

    /// Answers a request with these tools.
    pub async fn answer<T, B>(&self, tools: &T, request: Request<B>) -> Response<Body>
    where
        T: Tools + ?Sized,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        if let Err(error) = self.admit(&parts.method, &parts.uri, &parts.headers) {
            return Form::Json.response(Reply::error(None, error));
        }
        match self.read(Body::new(body)).await {
            Ok(body) => {
                let messages = Messages::read(&parts.headers, &body);
                let answer = self.answer_messages(tools, &parts, messages).await;
                answer.unwrap_or_else(|busy| busy)
            }
            Err(error) => Form::of(&parts.headers).response(Reply::error(None, error)),
        }
    }

    /// The same where [`Mcp::turned_away`] has let the request pass, and its body has been read. A place is taken only now:
    /// whoever sends slowly keeps nobody else out. Where there is none, the error is the answer, and nothing was done.
    pub(crate) async fn answer_messages<T>(
        &self,
        tools: &T,
        request: &Parts,
        messages: Messages,
    ) -> Result<Response<Body>, Response<Body>>
    where
        T: Tools + ?Sized,
    {
        let id = messages.id().cloned();
        // Boxed, since the layers move it several times before it runs.
        let reply = Box::pin(self.reply(tools, request, messages));
        let form = Form::of(&request.headers);
        match self.requests.run(reply).await {
            Ok(Some(reply)) => Ok(form.response(reply)),
            Ok(None) => {
                let mut accepted = Response::new(Body::empty());
                *accepted.status_mut() = StatusCode::ACCEPTED;
                Ok(accepted)
            }
            Err(_) => Err(form.response(Reply::error(id.as_ref(), busy()))),
        }
    }

    /// Answers a request that a layer outside refuses as a whole, such as one that nobody has signed: the error with the
    /// id of the message, where that can be read; in a batch, in the place of each request.
    pub fn refuse(&self, headers: &HeaderMap, body: &[u8], error: Error) -> Response<Body> {
        let messages = Messages::read(headers, body);
        self.refuse_messages(headers, messages, |_| error.clone())
    }

    /// The same with an error for each message, by the name of the tool that it calls.
    pub(crate) fn refuse_messages(
        &self,
        headers: &HeaderMap,
        messages: Messages,
        error: impl Fn(Option<&str>) -> Error,
    ) -> Response<Body> {
        let refused = |message: Result<Message, NoMessage>| match message {
            Ok(message @ Message::Request { .. }) => {
                Some(Reply::error(message.id(), error(message.tool())))
            }
            Ok(Message::Notification | Message::Response) => None,
            Err(NoMessage { id, .. }) => Some(Reply::error(id.as_ref(), error(None))),
        };
        let reply = match messages {
            Messages::Batch(messages) => {
                let replies: Vec<_> = messages.into_iter().filter_map(refused).collect();
                (!replies.is_empty()).then(|| Reply::batch(&replies))
            }
            Messages::One(message) => refused(message),
        };
        // What asks for no answer is refused by the status alone.
        let reply = reply.unwrap_or_else(|| {
            let mut reply = Reply::error(None, error(None));
            if reply.status == StatusCode::OK {
                reply.status = StatusCode::FORBIDDEN;
            }
            reply
        });
        Form::of(headers).response(reply)
    }

    fn admit(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
        self.settings.guard.check(uri, headers)?;
        if *method != Method::POST {
            return Err(method_not_allowed());
        }
        check_content_type(headers)?;
        Form::accepted(headers).map(|_| ())
    }

    /// The answer to a request that [`Mcp::answer`] would not read: for layers that read it first.
    pub(crate) fn turned_away<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let admitted = self.admit(request.method(), request.uri(), request.headers());
        let error = admitted.err()?;
        Some(Form::Json.response(Reply::error(None, error)))
    }

    /// The largest body, in bytes.
    pub(crate) fn body_limit(&self) -> usize {
        self.settings.body_limit
    }

    async fn read(&self, body: Body) -> Result<Bytes, Error> {
        let limit = self.settings.body_limit;
        body.collect(limit).await.map_err(|error| match error {
            CollectError::TooLarge => {
                Error::invalid_request(format!("the body is over the limit of {limit} bytes"))
                    .with_status(StatusCode::PAYLOAD_TOO_LARGE)
            }
            CollectError::Broken => Error::invalid_request("the body broke off before its end"),
        })
    }

    /// The answer to what the body holds; none to notifications. The messages of a batch run side by side, as JSON-RPC 2.0 §6
    /// has it; their answers stand in their order.
    async fn reply<T>(&self, tools: &T, request: &Parts, messages: Messages) -> Option<Reply>
    where
        T: Tools + ?Sized,
    {
        let exchange = |batched| Exchange { request, batched };
        match messages {
            Messages::One(message) => self.message(tools, exchange(false), message).await,
            Messages::Batch(messages) => {
                let replies = messages
                    .into_iter()
                    .map(|message| self.message(tools, exchange(true), message));
                let replies: Vec<Reply> = join_all(replies).await.into_iter().flatten().collect();
                (!replies.is_empty()).then(|| Reply::batch(&replies))
            }
        }
    }

    async fn message<T>(
        &self,
        tools: &T,
        exchange: Exchange<'_>,
        message: Result<Message, NoMessage>,
    ) -> Option<Reply>
    where
        T: Tools + ?Sized,
    {
        match message {
            Ok(Message::Request {
                id,
                revision,
                method,
                params,
            }) => Some(
                self.request(tools, exchange, &id, revision, &method, params)
                    .await,
            ),
            Ok(Message::Notification | Message::Response) => None,
            Err(NoMessage { id, error }) => Some(Reply::error(id.as_ref(), error)),
        }
    }

    async fn request<T>(
        &self,
        tools: &T,
        exchange: Exchange<'_>,
        id: &Id,
        revision: Revision,
        method: &str,
        params: Map<String, Value>,
    ) -> Reply
    where
        T: Tools + ?Sized,
    {
        match (method, revision.is_stateless()) {
            ("initialize", false) => Reply::of(id, Ok(self.initialized(&params))),
            ("ping", false) => Reply::of(id, Ok(Map::new())),
            ("server/discover", true) => Reply::of(id, Ok(self.discovered(revision))),
            ("tools/list", _) => Reply::of(id, self.list(tools, exchange, revision, &params).await),
            ("tools/call", _) => {
                Reply::of(id, self.call(tools, exchange, id, revision, params).await)
            }
            (_, stateless) => {
                let error = Error::new(code::METHOD_NOT_FOUND, "there is no such method");
                let status = match stateless {
                    true => StatusCode::NOT_FOUND,
                    false => StatusCode::OK,
                };
                Reply::error(Some(id), error.with_status(status))
            }
        }
    }

    fn initialized(&self, params: &Map<String, Value>) -> Value {
        let wanted = params.get("protocolVersion").and_then(Value::as_str);
        let mut result = json!({
            "protocolVersion": Revision::negotiated(wanted).as_str(),
            "capabilities": {"tools": {}},
            "serverInfo": self.settings.info,
        });
        if let Some(instructions) = &self.settings.instructions {
            result["instructions"] = json!(instructions);
        }
        result
    }

    fn discovered(&self, revision: Revision) -> Framed<Discovered<'_>> {
        let discovered = Discovered {
            supported_versions: revision::supported(),
            capabilities: json!({"tools": {}}),
            instructions: self.settings.instructions.as_deref(),
            caching: self.caching(false),
        };
        self.framed(revision, discovered, Map::new())
    }

    async fn list<T>(
        &self,
        tools: &T,
        exchange: Exchange<'_>,
        revision: Revision,
        params: &Map<String, Value>,
    ) -> Result<Framed<Listed>, Error>
    where
        T: Tools + ?Sized,
    {
        if params.get("cursor").is_some_and(|cursor| !cursor.is_null()) {
            return Err(Error::invalid_params(
                "the list comes whole; there is no `cursor`",
            ));
        }
        let listed = Listed {
            tools: tools.list(exchange.request).await?,
            caching: revision
                .is_stateless()
                .then(|| self.caching(tools.varies())),
        };
        Ok(self.framed(revision, listed, Map::new()))
    }

    async fn call<T>(
        &self,
        tools: &T,
        exchange: Exchange<'_>,
        id: &Id,
        revision: Revision,
        mut params: Map<String, Value>,
    ) -> Result<Framed<ToolResult>, Error>
    where
        T: Tools + ?Sized,
    {
        let headers = &exchange.request.headers;
        let Some(Value::String(name)) = params.remove("name") else {
            return Err(Error::invalid_params("`params.name` must be a string"));
        };
        let tool = tools
            .find(&name)
            .ok_or_else(|| Error::invalid_params("there is no such tool; see tools/list"))?;
        let arguments = params.remove("arguments").unwrap_or_else(|| json!({}));
        if tool.is_checked() && !arguments.is_object() {
            return Err(Error::invalid_params(
                "`params.arguments` must be an object",
            ));
        }
        if revision.is_stateless() {
            tool.check_mirrored(headers, &arguments)?;
        }
        let mut result = match tool.check(&arguments) {
            Err(violation) => ToolResult::failure(
                "INVALID_ARGUMENTS",
                &format!("the arguments do not fit the tool: {violation}"),
                false,
            ),
            Ok(()) => {
                let meta = match params.remove("_meta") {
                    Some(Value::Object(meta)) => meta,
                    _ => Map::new(),
                };
                let called = tools.call(Call {
                    tool: tool.clone(),
                    arguments,
                    meta,
                    request: exchange.request,
                    id,
                    revision,
                    batched: exchange.batched,
                });
                let called = self.settings.calls.run(called).await;
                called.unwrap_or_else(|_| tools.busy(&tool))?
            }
        };
        if result.is_error && tool.has_output() {
            // Some clients hold whatever is there against the schema, and the model would learn of that alone.
            result.drop_structured();
        }
        let meta = std::mem::take(&mut result.meta);
        Ok(self.framed(revision, result, meta))
    }

    fn caching(&self, private: bool) -> Caching {
        Caching {
            ttl_ms: self.settings.ttl.as_millis().try_into().unwrap_or(u64::MAX),
            cache_scope: if private { "private" } else { "public" },
        }
    }

    /// What each result of a stateless revision has besides.
    fn framed<R>(&self, revision: Revision, result: R, mut meta: Map<String, Value>) -> Framed<R> {
        let stateless = revision.is_stateless();
        if stateless {
            meta.insert(META_SERVER.to_owned(), self.settings.info.clone());
        }
        Framed {
            result_type: stateless.then_some("complete"),
            result,
            meta,
        }
    }
}

impl fmt::Debug for Mcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mcp").field(&self.settings.info).finish()
    }
}

#[derive(Serialize)]
struct Framed<R> {
    #[serde(rename = "resultType", skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    #[serde(flatten)]
    result: R,
    #[serde(rename = "_meta", skip_serializing_if = "Map::is_empty")]
    meta: Map<String, Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Caching {
    ttl_ms: u64,
    cache_scope: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Discovered<'a> {
    supported_versions: [&'static str; 4],
    capabilities: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    #[serde(flatten)]
    caching: Caching,
}

#[derive(Serialize)]
struct Listed {
    tools: Vec<Tool>,
    #[serde(flatten)]
    caching: Option<Caching>,
}

/// A server with its tools, as a Tower service: one path, `POST` only. It never fails; errors are answers.
///
/// With axum: `Router::new().route_service("/mcp", endpoint)`.
pub struct Endpoint<T> {
    mcp: Mcp,
    tools: Arc<T>,
}

impl<T> Clone for Endpoint<T> {
    fn clone(&self) -> Self {
        Self {
            mcp: self.mcp.clone(),
            tools: self.tools.clone(),
        }
    }
}

impl<T> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.mcp).finish()
    }
}

impl<T, B> Service<Request<B>> for Endpoint<T>
where
    T: Tools + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    /// Always ready: what is beyond the limits is answered, not kept waiting.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { mcp, tools } = self.clone();
        Box::pin(async move { Ok(mcp.answer(&*tools, request).await) })
    }
}
