//! The tools of binding 13.3, made of the table and the schemas, and the OpenRPC document that says the same.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Map, Value, json};

use super::openapi::{sorted, told};
use crate::{
    layer::idempotency::{MAX_KEY, MIN_KEY},
    protocol::{
        VERSION,
        operation::{Op, Operation, TABLE, TierRule},
        schema,
    },
    service::tools::Tool,
};

/// The argument that holds what REST has in headers.
pub(crate) const META: &str = "meta";

static TOOLS: LazyLock<Vec<(Op, Tool)>> = LazyLock::new(|| {
    let rows = TABLE.iter().filter(|row| row.tool);
    rows.map(|row| {
        let told = told(row.op);
        let tool = Tool::builder(row.name, told.description)
            .title(told.summary)
            .input(bundled(|schemas| input(row, schemas)))
            .output(bundled(|schemas| output(row, schemas)))
            .annotations(json!({"readOnlyHint": !row.writes()}))
            .unchecked();
        (
            row.op,
            tool.build()
                .expect("the table's tools are checked by a test"),
        )
    })
    .collect()
});

/// Every tool of the table, in its order.
pub(crate) fn all() -> &'static [(Op, Tool)] {
    &TOOLS
}

/// The tool of this name.
pub(crate) fn find(name: &str) -> Option<(Op, &'static Tool)> {
    let found = TOOLS.iter().find(|(op, _)| op.name() == name);
    found.map(|(op, tool)| (*op, tool))
}

/// The argument that is the id of the row's path.
pub(crate) fn id_of(row: &Operation) -> Option<&'static str> {
    let (before, _) = row.path.split_once("{id}")?;
    Some(match before {
        "/listings/" => "listing_id",
        "/offers/" => "offer_id",
        "/deals/" => "deal_id",
        _ => "approval_id",
    })
}

/// The arguments that are the row's query: where a record is read from, and how much of it.
pub(crate) fn query_of(row: &Operation) -> &'static [&'static str] {
    match row.op {
        Op::GetDealEvents => &["from", "limit"],
        _ => &[],
    }
}

fn input(row: &Operation, schemas: &mut Schemas) -> Value {
    let body = row.body.map(|name| schemas.read(name)).unwrap_or_default();
    let mut properties = body["properties"].as_object().cloned().unwrap_or_default();
    let mut required: Vec<Value> = body["required"].as_array().cloned().unwrap_or_default();
    if let Some(name) = id_of(row) {
        let id = schemas.refer("https://rctp.dev/schemas/common.json#/$defs/id", "common");
        properties.insert(name.into(), json!({"$ref": id}));
        required.insert(0, name.into());
    }
    for name in query_of(row) {
        properties.insert((*name).into(), json!({"type": "integer", "minimum": 0}));
    }
    properties.insert(META.into(), meta(row, schemas));
    if row.writes() {
        required.push(META.into());
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn meta(row: &Operation, schemas: &mut Schemas) -> Value {
    let profile = schemas.refer(
        "https://rctp.dev/schemas/common.json#/$defs/profile_url",
        "common",
    );
    let mut meta = json!({
        "type": "object",
        "description": "What REST has in headers (binding 13.2).",
        "properties": {
            "ucp-agent": {
                "type": "object",
                "description": "The operator profile that the call is made for: that of the UCP-Agent header, and of the \
                    OAuth client. May be left out with OAuth.",
                "properties": {"profile": {"$ref": profile}},
                "required": ["profile"],
                "additionalProperties": false,
            },
            "idempotency-key": {
                "type": "string",
                "description": "A new random one for each action; the same one to repeat it, which has no second effect.",
                "minLength": MIN_KEY,
                "maxLength": MAX_KEY,
                "pattern": "^[!-~]+$",
            },
        },
        "additionalProperties": false,
    });
    if row.writes() {
        meta["required"] = json!(["idempotency-key"]);
    }
    meta
}

fn output(row: &Operation, schemas: &mut Schemas) -> Value {
    let reference = |schemas: &mut Schemas, name: &str| {
        let to = schemas.refer(&schema::id(name), name);
        json!({"$ref": to})
    };
    let mut results = Vec::new();
    if let Some((_, name)) = told(row.op).done {
        results.push(reference(schemas, name));
    }
    if matches!(row.tier, TierRule::Grant | TierRule::Ask) {
        results.push(reference(schemas, "approval-asked"));
    }
    let decision = reference(schemas, "decision");
    json!({
        "type": "object",
        "properties": {"decision": decision, "result": {"anyOf": results}},
        "required": ["decision", "result"],
        "additionalProperties": false,
    })
}

/// A schema with all that it refers to in its own `$defs`: clients fetch nothing.
fn bundled(schema: impl FnOnce(&mut Schemas) -> Value) -> Value {
    let mut schemas = Schemas::at("#/$defs/");
    let mut schema = schema(&mut schemas);
    if !schemas.found.is_empty() {
        schema["$defs"] = json!(schemas.found);
    }
    sorted(schema)
}

/// Published schemas, as far as something refers to them.
struct Schemas {
    /// Where the document has them.
    at: &'static str,
    found: BTreeMap<String, Value>,
}

impl Schemas {
    fn at(at: &'static str) -> Self {
        Self {
            at,
            found: BTreeMap::new(),
        }
    }

    /// A published schema by its name, with its references into the document.
    fn read(&mut self, name: &str) -> Value {
        let mut schema = parsed(name);
        self.rewrite(&mut schema, name);
        schema
    }

    /// The reference to what `to`, as `within` writes it, refers to.
    fn refer(&mut self, to: &str, within: &str) -> String {
        let (file, pointer) = to.split_once('#').unwrap_or((to, ""));
        let file = file
            .strip_prefix("https://rctp.dev/schemas/")
            .and_then(|file| file.strip_suffix(".json"))
            .unwrap_or(within);
        let definition = pointer.strip_prefix("/$defs/");
        let name = match definition {
            Some(definition) if file == "common" => definition.to_owned(),
            Some(definition) => format!("{file}.{definition}"),
            None => file.to_owned(),
        };
        if !self.found.contains_key(&name) {
            // First, since a schema may refer to itself.
            self.found.insert(name.clone(), Value::Null);
            let mut schema = parsed(file);
            schema = schema
                .pointer_mut(pointer)
                .map(Value::take)
                .unwrap_or_default();
            self.rewrite(&mut schema, file);
            self.found.insert(name.clone(), schema);
        }
        format!("{}{name}", self.at)
    }

    fn rewrite(&mut self, schema: &mut Value, file: &str) {
        match schema {
            Value::Object(members) => {
                members.remove("$schema");
                members.remove("$id");
                members.remove("$defs");
                for (keyword, value) in members {
                    match (keyword.as_str(), &*value) {
                        ("$ref", Value::String(to)) => {
                            *value = self.refer(&to.clone(), file).into()
                        }
                        _ => self.rewrite(value, file),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.rewrite(item, file)),
            _ => {}
        }
    }
}

fn parsed(name: &str) -> Value {
    let published = schema::published();
    let text = published.iter().find(|(known, _)| *known == name);
    let (_, text) = text.unwrap_or_else(|| panic!("there is no schema `{name}`"));
    serde_json::from_str(text).expect("schemas are checked by a test")
}

/// The OpenRPC document: the tools as methods, with what they have in common once.
pub(crate) fn openrpc(endpoint: &str) -> Value {
    let mut schemas = Schemas::at("#/components/schemas/");
    let rows = TABLE.iter().filter(|row| row.tool);
    let methods: Vec<Value> = rows.map(|row| method(row, &mut schemas)).collect();
    schemas.refer(&schema::id("error"), "error");
    sorted(json!({
        "openrpc": "1.3.2",
        "info": {
            "title": "RCTP over MCP",
            "version": VERSION,
            "description": "The operations of an RCTP gateway as MCP tools: each method is called by `tools/call`, and its \
                result is the call's `structuredContent`.",
        },
        "servers": [{"name": "MCP", "url": endpoint}],
        "methods": methods,
        "components": {"schemas": schemas.found},
    }))
}

fn method(row: &Operation, schemas: &mut Schemas) -> Value {
    let told = told(row.op);
    let input = input(row, schemas);
    let required = input["required"].as_array().cloned().unwrap_or_default();
    let properties = input["properties"]
        .as_object()
        .cloned()
        .unwrap_or_else(Map::new);
    // Those that are required come first, as OpenRPC has it.
    let (first, last): (Vec<_>, Vec<_>) = properties
        .into_iter()
        .partition(|(name, _)| required.contains(&json!(name)));
    let parameter = |(name, schema): (String, Value)| {
        let is_required = required.contains(&json!(name));
        json!({"name": name, "required": is_required, "schema": schema})
    };
    let params: Vec<Value> = first.into_iter().chain(last).map(parameter).collect();
    json!({
        "name": row.name,
        "summary": told.summary,
        "description": told.description,
        "paramStructure": "by-name",
        "params": params,
        "result": {"name": "result", "schema": output(row, schemas)},
        "errors": [{
            "code": -32000,
            "message": "Refused",
            "data": {
                "code": "a reason, or a protocol error", "decision": "with a reason: the decision",
                "message": "and the other members of the REST error body",
            },
        }],
        "x-rctp": {"method": row.method.as_str(), "path": row.path, "verb": row.verb},
    })
}
