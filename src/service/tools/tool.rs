//! A tool: its definition, and what of a call can be checked against it.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    sync::Arc,
};

use http::{HeaderMap, HeaderName};
use jsonschema::Validator;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{
    outcome::Error,
    revision::{decoded, mismatch, single},
};
use crate::protocol::schema::{self, Violation};

/// The keyword that mirrors an argument into a header, `Mcp-Param-…`.
const MIRROR: &str = "x-mcp-header";

/// Keywords whose value has schemas by name.
const NAMED: [&str; 5] = [
    "properties",
    "$defs",
    "definitions",
    "patternProperties",
    "dependentSchemas",
];

/// Keywords whose values are data, not schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// A tool, with its schema compiled. Cheap to clone.
#[derive(Clone)]
pub struct Tool(Arc<Inner>);

struct Inner {
    definition: Map<String, Value>,
    /// `None` where the set checks arguments itself.
    validator: Option<Validator>,
    /// The members that the schema names; the names of all others are the caller's own.
    members: HashSet<String>,
    mirrored: Vec<Mirrored>,
}

/// An argument that clients repeat in a header.
struct Mirrored {
    path: Vec<String>,
    header: HeaderName,
}

/// A tool that clients could not use: what is wrong with its definition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tool `{tool}`: {why}")]
pub struct BadTool {
    tool: String,
    why: String,
}

/// A [`Tool`] in the making.
#[derive(Debug)]
pub struct ToolBuilder {
    definition: Map<String, Value>,
    checked: bool,
}

impl Tool {
    /// A tool without parameters, until [`ToolBuilder::input`] says otherwise. `description` is what the model reads to
    /// know when to call it, and what will happen.
    pub fn builder(name: &str, description: &str) -> ToolBuilder {
        let input = json!({"type": "object", "additionalProperties": false});
        let definition = [
            ("name", json!(name)),
            ("description", json!(description)),
            ("inputSchema", input),
        ];
        ToolBuilder {
            definition: definition
                .map(|(k, v)| (k.to_owned(), v))
                .into_iter()
                .collect(),
            checked: true,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.definition["name"].as_str().unwrap_or_default()
    }

    /// Whether the endpoint holds arguments against the schema.
    pub(super) fn is_checked(&self) -> bool {
        self.0.validator.is_some()
    }

    pub(super) fn has_output(&self) -> bool {
        self.0.definition.contains_key("outputSchema")
    }

    /// As `tools/list` shows it.
    pub fn definition(&self) -> &Map<String, Value> {
        &self.0.definition
    }

    /// Checks arguments against the schema, if that is the endpoint's to do.
    pub(super) fn check(&self, arguments: &Value) -> Result<(), Violation> {
        let Some(validator) = &self.0.validator else {
            return Ok(());
        };
        validator
            .validate(arguments)
            .map_err(|error| schema::describe(&error, |name| self.0.members.contains(name)))
    }

    /// Checks that headers say what the arguments say, where the schema mirrors one into the other (2026-07-28,
    /// Streamable HTTP, "Server Behavior for Custom Headers").
    pub(super) fn check_mirrored(
        &self,
        headers: &HeaderMap,
        arguments: &Value,
    ) -> Result<(), Error> {
        for Mirrored { path, header } in &self.0.mirrored {
            let argument = path
                .iter()
                .try_fold(arguments, |value, name| value.get(name));
            let argument = argument.filter(|value| !value.is_null());
            let said = single(headers, header)?;
            let agree = match (argument, said) {
                (None, None) => true,
                (Some(argument), Some(said)) => decoded(said).is_some_and(|said| match argument {
                    Value::String(text) => said == text.as_bytes(),
                    // Read as numbers are read in the body: 42.0 is 42.
                    argument => schema::parse(&said).is_ok_and(|said| said == *argument),
                }),
                _ => false,
            };
            if !agree {
                return Err(mismatch(header, &format!("arguments.{}", path.join("."))));
            }
        }
        Ok(())
    }
}

impl ToolBuilder {
    /// Its name for people.
    #[must_use]
    pub fn title(mut self, title: &str) -> Self {
        self.definition.insert("title".into(), title.into());
        self
    }

    /// The JSON Schema of its arguments; 2020-12 unless `$schema` says otherwise. References outside of it are refused.
    #[must_use]
    pub fn input(mut self, schema: Value) -> Self {
        self.definition.insert("inputSchema".into(), schema);
        self
    }

    /// The JSON Schema of `structuredContent`.
    #[must_use]
    pub fn output(mut self, schema: Value) -> Self {
        self.definition.insert("outputSchema".into(), schema);
        self
    }

    /// Hints for clients, such as `{"readOnlyHint": true}`.
    #[must_use]
    pub fn annotations(mut self, annotations: Value) -> Self {
        self.definition.insert("annotations".into(), annotations);
        self
    }

    /// Arguments reach the set as they came; it checks them itself, in an order and with errors of its own.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.checked = false;
        self
    }

    /// The tool.
    ///
    /// # Errors
    /// [`BadTool`] when the name is not 1 to 64 of `A-Z a-z 0-9 _ - .`, a schema is none, refers outside of itself or is not
    /// of type object, the annotations are no object, or an `x-mcp-header` is where MCP allows none.
    pub fn build(self) -> Result<Tool, BadTool> {
        let name = self.definition["name"].as_str().unwrap_or_default();
        let bad = |why: String| BadTool {
            tool: name.to_owned(),
            why,
        };
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"_-.".contains(&c);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(allowed) {
            return Err(bad("the name must be 1 to 64 of A-Z a-z 0-9 _ - .".into()));
        }
        let compile = |member: &str| {
            let schema = self.definition.get(member);
            let compiled = schema.map(|schema| {
                jsonschema::options()
                    .should_validate_formats(true)
                    .build(schema)
            });
            compiled
                .transpose()
                .map_err(|error| bad(format!("{member}: {error}")))
        };
        compile("outputSchema")?;
        let validator = compile("inputSchema")?;
        let input = &self.definition["inputSchema"];
        for (member, schema) in [
            ("inputSchema", Some(input)),
            ("outputSchema", self.definition.get("outputSchema")),
        ] {
            let kind = schema.map(|schema| schema.get("type").and_then(Value::as_str));
            if kind.is_some_and(|kind| kind != Some("object")) {
                return Err(bad(format!("{member}: the type must be object")));
            }
        }
        let annotations = self.definition.get("annotations");
        if !annotations.is_none_or(Value::is_object) {
            return Err(bad("annotations: they must be an object".into()));
        }
        let mut members = HashSet::new();
        schema::collect_members(input, &mut members);
        let mut mirrored = Vec::new();
        find_mirrored(input, Some(&mut Vec::new()), &mut mirrored).map_err(bad)?;
        let headers: BTreeSet<&str> = mirrored.iter().map(|m| m.header.as_str()).collect();
        if headers.len() != mirrored.len() {
            return Err(bad(format!(
                "inputSchema: two members have the same {MIRROR}"
            )));
        }
        Ok(Tool(Arc::new(Inner {
            validator: validator.filter(|_| self.checked),
            members: members.into_iter().map(str::to_owned).collect(),
            mirrored,
            definition: self.definition,
        })))
    }
}

/// Finds the mirrored arguments of a schema. `path` leads to it through `properties` alone; where it is `None`, nothing
/// may be mirrored.
fn find_mirrored(
    schema: &Value,
    mut path: Option<&mut Vec<String>>,
    found: &mut Vec<Mirrored>,
) -> Result<(), String> {
    match schema {
        Value::Object(keywords) => {
            if let Some(name) = keywords.get(MIRROR) {
                let path = path.as_deref().filter(|path| !path.is_empty());
                let primitive = matches!(
                    keywords.get("type").and_then(Value::as_str),
                    Some("string" | "integer" | "boolean")
                );
                let header = name
                    .as_str()
                    .filter(|name| !name.is_empty())
                    .and_then(|name| HeaderName::try_from(format!("mcp-param-{name}")).ok());
                let (Some(path), true, Some(header)) = (path, primitive, header) else {
                    return Err(format!(
                        "inputSchema: {MIRROR} goes on a string, integer or boolean that is reached through \
                         `properties` alone, and is the rest of a header's name"
                    ));
                };
                found.push(Mirrored {
                    path: path.clone(),
                    header,
                });
            }
            for (keyword, value) in keywords {
                match value {
                    // Names there are members', not keywords.
                    Value::Object(named) if NAMED.contains(&&**keyword) => {
                        for (name, schema) in named {
                            match path.as_deref_mut().filter(|_| keyword == "properties") {
                                Some(path) => {
                                    path.push(name.clone());
                                    find_mirrored(schema, Some(path), found)?;
                                    path.pop();
                                }
                                None => find_mirrored(schema, None, found)?,
                            }
                        }
                    }
                    _ if DATA.contains(&&**keyword) => {}
                    _ => find_mirrored(value, None, found)?,
                }
            }
            Ok(())
        }
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| find_mirrored(item, None, found)),
        _ => Ok(()),
    }
}

/// By its definition, as in `tools/list`.
impl Serialize for Tool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.definition.serialize(serializer)
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tool").field(&self.name()).finish()
    }
}
