//! Sets of tools, and how they add up.

use std::{fmt, sync::Arc};

use http::request::Parts;
use serde_json::{Map, Value};

use super::{
    message::Id,
    outcome::{Error, Outcome, ToolResult},
    revision::{Revision, capabilities},
    tool::Tool,
};
use crate::store::BoxFuture;

/// A set of tools.
///
/// [`tool_fn`] makes one of a function; [`Tools::and`] adds two up. `Arc<dyn Tools>` is one too.
pub trait Tools: Send + Sync {
    /// The tool of this name, whoever asks. What the caller may do is for [`Tools::call`] to say.
    fn find(&self, name: &str) -> Option<Tool>;

    /// The tools that this caller may use, always in the same order.
    ///
    /// # Errors
    /// When it cannot be told, or the caller is nobody to tell it to.
    fn list<'a>(&'a self, caller: &'a Parts) -> BoxFuture<'a, Result<Vec<Tool>, Error>>;

    /// Calls a tool of the set. Its arguments have passed its schema, unless it is
    /// [`unchecked`](super::ToolBuilder::unchecked).
    ///
    /// The future is dropped when the client hangs up; what must not stop half-way is spawned.
    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Outcome>;

    /// Whether [`Tools::list`] depends on the caller, so that no cache may show one caller's list to another.
    fn varies(&self) -> bool {
        true
    }

    /// The answer to a call for which there is no room. Nothing has been done; the caller may try again.
    fn busy(&self, _tool: &Tool) -> Outcome {
        Ok(ToolResult::failure(
            "GATEWAY_BUSY",
            "the gateway has too many calls at once; nothing was done, try again in a second",
            true,
        ))
    }

    /// Both sets as one. Where both have a tool of the same name, it is this one's.
    fn and<T: Tools>(self, other: T) -> And<Self, T>
    where
        Self: Sized,
    {
        And(self, other)
    }
}

/// A call of a tool.
#[derive(Debug)]
pub struct Call<'a> {
    /// The tool.
    pub tool: Tool,
    /// Its arguments: an object, empty where none were sent; anything where the tool is unchecked.
    pub arguments: Value,
    /// `params._meta`: what the client says beside the arguments, such as a payment.
    pub meta: Map<String, Value>,
    /// The HTTP request that carries the message, with what the layers outside have left in its extensions.
    pub request: &'a Parts,
    /// The message's id.
    pub id: &'a Id,
    /// The revision of MCP that the client speaks.
    pub revision: Revision,
    /// Whether the message is one of a batch, where an [`Error`] has no HTTP status of its own.
    pub batched: bool,
}

impl Call<'_> {
    /// Whether the client has declared a capability. Before 2026-07-28 none is known: it was told to another request.
    pub fn declares(&self, capability: &str) -> bool {
        let declared = capabilities(&self.meta).filter(|_| self.revision.is_stateless());
        declared.is_some_and(|declared| declared.contains_key(capability))
    }
}

/// Two sets as one; see [`Tools::and`].
#[derive(Clone, Debug)]
pub struct And<A, B>(A, B);

impl<A: Tools, B: Tools> And<A, B> {
    fn first_has(&self, tool: &Tool) -> bool {
        self.0.find(tool.name()).is_some()
    }
}

impl<A: Tools, B: Tools> Tools for And<A, B> {
    fn find(&self, name: &str) -> Option<Tool> {
        self.0.find(name).or_else(|| self.1.find(name))
    }

    fn list<'a>(&'a self, caller: &'a Parts) -> BoxFuture<'a, Result<Vec<Tool>, Error>> {
        Box::pin(async move {
            let mut tools = self.0.list(caller).await?;
            let others = self.1.list(caller).await?;
            tools.extend(others.into_iter().filter(|tool| !self.first_has(tool)));
            Ok(tools)
        })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Outcome> {
        match self.first_has(&call.tool) {
            true => self.0.call(call),
            false => self.1.call(call),
        }
    }

    fn varies(&self) -> bool {
        self.0.varies() || self.1.varies()
    }

    fn busy(&self, tool: &Tool) -> Outcome {
        match self.first_has(tool) {
            true => self.0.busy(tool),
            false => self.1.busy(tool),
        }
    }
}

impl<T: Tools + ?Sized> Tools for Arc<T> {
    fn find(&self, name: &str) -> Option<Tool> {
        (**self).find(name)
    }

    fn list<'a>(&'a self, caller: &'a Parts) -> BoxFuture<'a, Result<Vec<Tool>, Error>> {
        (**self).list(caller)
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Outcome> {
        (**self).call(call)
    }

    fn varies(&self) -> bool {
        (**self).varies()
    }

    fn busy(&self, tool: &Tool) -> Outcome {
        (**self).busy(tool)
    }
}

/// One tool, for everybody, that is a function.
///
/// ```
/// use tower_rctp::service::tools::{Tool, ToolResult, tool_fn};
///
/// let time = Tool::builder("get_time", "The time in UTC.").build()?;
/// let tools = tool_fn(time, |_call| Box::pin(async { Ok(ToolResult::text("12:00")) }));
/// # Ok::<(), tower_rctp::service::tools::BadTool>(())
/// ```
pub fn tool_fn<F>(tool: Tool, f: F) -> ToolFn<F>
where
    F: for<'a> Fn(Call<'a>) -> BoxFuture<'a, Outcome> + Send + Sync,
{
    ToolFn { tool, f }
}

/// See [`tool_fn`].
#[derive(Clone)]
pub struct ToolFn<F> {
    tool: Tool,
    f: F,
}

impl<F> Tools for ToolFn<F>
where
    F: for<'a> Fn(Call<'a>) -> BoxFuture<'a, Outcome> + Send + Sync,
{
    fn find(&self, name: &str) -> Option<Tool> {
        (self.tool.name() == name).then(|| self.tool.clone())
    }

    fn list<'a>(&'a self, _: &'a Parts) -> BoxFuture<'a, Result<Vec<Tool>, Error>> {
        Box::pin(async { Ok(vec![self.tool.clone()]) })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Outcome> {
        (self.f)(call)
    }

    fn varies(&self) -> bool {
        false
    }
}

impl<F> fmt::Debug for ToolFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ToolFn").field(&self.tool).finish()
    }
}
