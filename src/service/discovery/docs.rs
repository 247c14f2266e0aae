//! The reference page: the OpenAPI document and the registries as one HTML page. No script, nothing from elsewhere.

use std::fmt::Write as _;

use serde_json::{Value, json};

pub(super) const STYLE: &str = include_str!("docs.css");

/// How deep the members of members are listed.
const DEPTH: usize = 4;

/// The page, with its style at `style`. It reads what `openapi::document` writes.
pub(super) fn page(openapi: &Value, style: &str) -> String {
    let mut html = String::with_capacity(256 * 1024);
    let root = style.trim_end_matches("/docs/docs.css");
    let page = Page { openapi, root };
    page.write(&mut html, style);
    html
}

struct Page<'a> {
    openapi: &'a Value,
    /// The path of the public URL, without its trailing slash.
    root: &'a str,
}

/// Writing to a string does not fail.
macro_rules! put {
    ($html:expr, $($arg:tt)*) => {
        $html.write_fmt(format_args!($($arg)*)).unwrap_or_default()
    };
}

impl Page<'_> {
    fn write(&self, html: &mut String, style: &str) {
        let info = &self.openapi["info"];
        let (title, version) = (
            escaped(text(&info["title"])),
            escaped(text(&info["version"])),
        );
        let server = escaped(text(&self.openapi["servers"][0]["url"]));
        put!(
            html,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}: reference</title>\n\
             <link rel=\"stylesheet\" href=\"{style}\">\n</head>\n<body>\n\
             <a class=\"skip\" href=\"#main\">Skip to the operations</a>\n<header>\n<h1>{title}</h1>\n\
             <p class=\"lead\">{}</p>\n<dl class=\"facts\">\n\
             <div><dt>Base URL</dt><dd><code>{server}</code></dd></div>\n\
             <div><dt>Version</dt><dd><code>{version}</code></dd></div>\n\
             <div><dt>For machines</dt><dd><a href=\"{root}/openapi.json\">openapi.json</a>, \
             <a href=\"{root}/.well-known/ucp\">gateway profile</a>, \
             <a href=\"{root}/.well-known/oauth-protected-resource\">OAuth metadata</a></dd></div>\n</dl>\n</header>\n",
            escaped(text(&info["summary"])),
            root = self.root,
        );
        self.contents(html);
        html.push_str("<main id=\"main\">\n");
        self.basics(html);
        for tag in list(&self.openapi["tags"]) {
            self.group(html, text(&tag["name"]), text(&tag["description"]));
        }
        self.webhooks(html);
        self.registries(html);
        self.schemas(html);
        html.push_str("</main>\n</body>\n</html>\n");
    }

    fn contents(&self, html: &mut String) {
        html.push_str(
            "<nav aria-label=\"Contents\">\n<details open>\n<summary>Contents</summary>\n<ul>\n",
        );
        html.push_str("<li><a href=\"#basics\">How a call is made</a></li>\n");
        for tag in list(&self.openapi["tags"]) {
            let name = text(&tag["name"]);
            put!(
                html,
                "<li><a href=\"#tag-{name}\">{}</a>\n<ul>\n",
                capital(name)
            );
            for (_, _, operation) in self.operations(name) {
                let id = text(&operation["operationId"]);
                put!(html, "<li><a href=\"#{id}\"><code>{id}</code></a></li>\n");
            }
            html.push_str("</ul></li>\n");
        }
        if !self.openapi["webhooks"].is_null() {
            html.push_str("<li><a href=\"#webhooks\">Webhooks</a></li>\n");
        }
        html.push_str(
            "<li><a href=\"#reasons\">Reasons</a></li>\n<li><a href=\"#errors\">Protocol errors</a></li>\n\
             <li><a href=\"#actions\">Verbs and scopes</a></li>\n<li><a href=\"#schemas\">Schemas</a></li>\n\
             </ul>\n</details>\n</nav>\n",
        );
    }

    fn basics(&self, html: &mut String) {
        html.push_str("<section id=\"basics\" aria-labelledby=\"basics-title\">\n<h2 id=\"basics-title\">How a call is made</h2>\n");
        paragraph(html, text(&self.openapi["info"]["description"]));
        let components = &self.openapi["components"];
        html.push_str("<h3>Who is calling</h3>\n<dl class=\"fields\">\n");
        for (name, scheme) in members(&components["securitySchemes"]) {
            put!(html, "<div><dt><code>{name}</code></dt><dd>");
            inline(html, text(&scheme["description"]));
            if let Some(issuer) = scheme["x-authorization-server"].as_str() {
                put!(html, " Grants come from <code>{}</code>.", escaped(issuer));
            }
            html.push_str("</dd></div>\n");
        }
        html.push_str("</dl>\n<h3>Headers</h3>\n<dl class=\"fields\">\n");
        for (name, header) in members(&components["parameters"]) {
            if header["in"] == "header" {
                self.field(
                    html,
                    name,
                    header["required"] == true,
                    &header["schema"],
                    text(&header["description"]),
                );
            }
        }
        html.push_str("</dl>\n<h3>A signed request</h3>\n");
        let signed = "curl https://gateway.example/offers \\\n  -H 'UCP-Agent: profile=\"https://agent.example/.well-known/ucp\"' \\\n  \
             -H 'Idempotency-Key: 7nR2c1mVb0qX9dKf3sTz5w' \\\n  -H 'Content-Type: application/json' \\\n  \
             -H 'Content-Digest: sha-256=:…:' \\\n  -H 'Signature-Input: sig1=(\"@method\" \"@authority\" \"@path\" \
             \"ucp-agent\" \"idempotency-key\" \"content-digest\" \"content-type\");created=…;expires=…;keyid=\"…\"' \\\n  \
             -H 'Signature: sig1=:…:' \\\n  -d '{…}'";
        let signed = signed.replace(
            "https://gateway.example",
            text(&self.openapi["servers"][0]["url"]),
        );
        code(html, "A signed request", &signed);
        html.push_str("</section>\n");
    }

    /// Method, path and operation, in the order of the table.
    fn operations(&self, tag: &str) -> Vec<(String, &str, &Value)> {
        let mut all = Vec::new();
        for (path, item) in members(&self.openapi["paths"]) {
            for (method, operation) in members(item) {
                if operation["tags"][0] == tag {
                    all.push((method.to_ascii_uppercase(), path, operation));
                }
            }
        }
        let place = |operation: &Value| {
            let id = text(&operation["operationId"]);
            super::openapi::names().position(|name| name == id)
        };
        all.sort_by_key(|(_, _, operation)| place(operation));
        all
    }

    fn group(&self, html: &mut String, tag: &str, description: &str) {
        put!(
            html,
            "<section id=\"tag-{tag}\" aria-labelledby=\"title-{tag}\">\n<h2 id=\"title-{tag}\">{}</h2>\n",
            capital(tag)
        );
        paragraph(html, description);
        for (method, path, operation) in self.operations(tag) {
            self.operation(html, &method, path, operation);
        }
        html.push_str("</section>\n");
    }

    fn operation(&self, html: &mut String, method: &str, path: &str, operation: &Value) {
        let id = text(&operation["operationId"]);
        put!(
            html,
            "<article id=\"{id}\" aria-labelledby=\"title-{id}\">\n<h3 id=\"title-{id}\">{}</h3>\n\
             <p class=\"route\"><span class=\"method {}\">{method}</span> <code>{}</code> \
             <a class=\"here\" href=\"#{id}\" aria-label=\"Link to {id}\">{id}</a></p>\n",
            escaped(text(&operation["summary"])),
            method.to_ascii_lowercase(),
            breakable(path),
        );
        if let Some(description) = operation["description"].as_str() {
            paragraph(html, description);
        }
        self.who(html, operation);
        let parameters: Vec<&Value> = list(&operation["parameters"])
            .map(|parameter| self.resolved(parameter))
            .filter(|parameter| parameter["in"] != "header")
            .collect();
        if !parameters.is_empty() {
            html.push_str("<h4>Parameters</h4>\n<dl class=\"fields\">\n");
            for parameter in parameters {
                let name = format!("{} ({})", text(&parameter["name"]), text(&parameter["in"]));
                let required = parameter["required"] == true;
                self.field(
                    html,
                    &name,
                    required,
                    &parameter["schema"],
                    text(&parameter["description"]),
                );
            }
            html.push_str("</dl>\n");
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if !body.is_null() {
            let optional = operation["requestBody"]["required"] == false;
            put!(
                html,
                "<h4>Body: {}{}</h4>\n",
                self.schema_link(body),
                if optional { ", or none" } else { "" }
            );
            self.body(html, body);
        }
        html.push_str("<h4>Answers</h4>\n<dl class=\"fields answers\">\n");
        for (status, response) in members(&operation["responses"]) {
            self.answer(html, status, response);
        }
        html.push_str("</dl>\n");
        if operation["tags"][0] != "pages" {
            code(
                html,
                &format!("Example of {id}"),
                &self.curl(method, path, operation),
            );
        }
        html.push_str("</article>\n");
    }

    /// What the gateway sends, rather than answers.
    fn webhooks(&self, html: &mut String) {
        let webhooks = &self.openapi["webhooks"];
        if webhooks.is_null() {
            return;
        }
        html.push_str("<section id=\"webhooks\" aria-labelledby=\"webhooks-title\">\n<h2 id=\"webhooks-title\">Webhooks</h2>\n");
        paragraph(
            html,
            "An operator that names `config.webhook_url` under `dev.rctp.deal` in its profile is sent these, in order for each \
             negotiation, approval and deal, until its answer is 2xx; for 280 seconds. What it misses, its agents read.",
        );
        html.push_str("<h3>Headers</h3>\n<dl class=\"fields\">\n");
        let first = members(webhooks).next();
        for header in first
            .iter()
            .flat_map(|(_, item)| list(&item["post"]["parameters"]))
        {
            let description = text(&header["description"]);
            self.field(
                html,
                text(&header["name"]),
                true,
                &header["schema"],
                description,
            );
        }
        html.push_str("</dl>\n");
        for (name, item) in members(webhooks) {
            let operation = &item["post"];
            let id = text(&operation["operationId"]);
            put!(
                html,
                "<article id=\"{id}\" aria-labelledby=\"title-{id}\">\n<h3 id=\"title-{id}\"><code>{}</code></h3>\n",
                escaped(name)
            );
            paragraph(html, text(&operation["description"]));
            html.push_str("<h4>Body</h4>\n");
            self.body(
                html,
                &operation["requestBody"]["content"]["application/json"]["schema"],
            );
            html.push_str("</article>\n");
        }
        html.push_str("</section>\n");
    }

    fn who(&self, html: &mut String, operation: &Value) {
        let x = &operation["x-rctp"];
        html.push_str("<dl class=\"facts\">\n");
        let mut fact = |name: &str, value: String| {
            put!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>\n");
        };
        fact("Caller", capital(text(&x["caller"])));
        if let Some(verb) = x["verb"].as_str() {
            fact("Verb", format!("<code>{verb}</code>"));
        }
        if let Some(scope) = x["scope"].as_str() {
            fact("Scope", format!("<code>{}</code>", breakable(scope)));
        }
        match (text(&x["tier"]), &x["tiers"]) {
            ("forbid", _) => fact("Tier", "always forbidden to agents".into()),
            ("grant" | "ask", Value::Null) => {
                fact("Tier", "not offered by this marketplace".into())
            }
            ("ask", _) => fact("Tier", "always <code>ask</code>".into()),
            ("grant", tiers) => {
                let allowed: Vec<&str> = list(&tiers["allowed_tiers"]).map(text).collect();
                fact(
                    "Tier",
                    format!(
                        "as granted: <code>{}</code>; by default <code>{}</code>",
                        allowed.join("</code> or <code>"),
                        text(&tiers["default_tier"])
                    ),
                );
            }
            _ => {}
        }
        if let Some(price) = x["floor"].as_str() {
            fact("Floor", format!("{} is held against it", capital(price)));
        }
        if x["tool"] == true {
            let id = text(&operation["operationId"]);
            fact(
                "MCP tool",
                format!("<code>{id}</code>, where MCP is served"),
            );
        }
        html.push_str("</dl>\n");
    }

    fn answer(&self, html: &mut String, status: &str, response: &Value) {
        let response = self.resolved(response);
        put!(
            html,
            "<div><dt><span class=\"status s{}\">{status}</span></dt><dd>",
            &status[..1]
        );
        let content = members(&response["content"]).next();
        let schema = content.map_or(&Value::Null, |(_, content)| &content["schema"]);
        let codes = &schema["allOf"][1]["properties"]["error"]["enum"];
        if codes.is_array() {
            let links: Vec<String> = list(codes)
                .map(text)
                .map(|code| format!("<a href=\"#code-{code}\"><code>{code}</code></a>"))
                .collect();
            html.push_str(&links.join(", "));
        } else {
            inline(html, text(&response["description"]));
            if schema["$ref"].is_string() {
                put!(html, " {}", self.schema_link(schema));
            } else if let Some((kind, _)) = content {
                put!(html, " <code>{}</code>", escaped(kind));
            }
        }
        if let Some((name, _)) =
            members(&response["headers"]).find(|(name, _)| *name == "RCTP-Decision")
        {
            let header = self.resolved(&response["headers"][name]);
            let shape = match header["schema"]["const"].as_str() {
                Some(value) => value,
                None if status == "202" => "ask",
                None => "forbid",
            };
            put!(
                html,
                " <span class=\"quiet\">RCTP-Decision: <code>{shape}</code></span>"
            );
        }
        html.push_str("</dd></div>\n");
    }

    fn body(&self, html: &mut String, schema: &Value) {
        let mut fields = Vec::new();
        self.flatten("", schema, DEPTH, &mut fields);
        if fields.is_empty() {
            html.push_str("<p class=\"quiet\">It has no members: <code>{}</code>.</p>\n");
            return;
        }
        html.push_str("<dl class=\"fields\">\n");
        for Field {
            path,
            required,
            schema,
            description,
        } in fields
        {
            self.field(html, &path, required, schema, &description);
        }
        html.push_str("</dl>\n");
    }

    /// The members of an object, and theirs, required ones first.
    fn flatten<'s>(
        &'s self,
        prefix: &str,
        schema: &'s Value,
        depth: usize,
        fields: &mut Vec<Field<'s>>,
    ) {
        let schema = self.resolved(schema);
        let required = |name: &str| list(&schema["required"]).any(|member| member == name);
        let mut all: Vec<(&str, &Value)> = members(&schema["properties"]).collect();
        all.sort_by_key(|(name, _)| !required(name));
        for (name, member) in all {
            let resolved = self.resolved(member);
            let own = member["description"]
                .as_str()
                .or(resolved["description"].as_str());
            let path = format!("{prefix}{name}");
            fields.push(Field {
                path: path.clone(),
                required: required(name),
                schema: member,
                description: own.unwrap_or_default().to_owned(),
            });
            if depth > 1 {
                self.flatten(&format!("{path}."), member, depth - 1, fields);
                if resolved["items"].is_object() {
                    self.flatten(&format!("{path}[]."), &resolved["items"], depth - 1, fields);
                }
            }
        }
    }

    fn field(
        &self,
        html: &mut String,
        name: &str,
        required: bool,
        schema: &Value,
        description: &str,
    ) {
        put!(
            html,
            "<div><dt><code>{}</code> <span class=\"type\">{}</span>",
            breakable(name),
            self.kind(schema)
        );
        if required {
            html.push_str(" <span class=\"required\">required</span>");
        }
        html.push_str("</dt><dd>");
        inline(html, description);
        let rules = self.rules(schema);
        if !rules.is_empty() {
            put!(html, " <span class=\"quiet\">{}</span>", rules.join("; "));
        }
        html.push_str("</dd></div>\n");
    }

    fn kind(&self, schema: &Value) -> String {
        let resolved = self.resolved(schema);
        let kind = match &resolved["type"] {
            Value::String(kind) => kind.clone(),
            Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join(" or "),
            _ => "string".into(),
        };
        match kind.as_str() {
            "array" => format!("list of {}", self.kind(&resolved["items"])),
            _ => escaped(&kind),
        }
    }

    fn rules(&self, schema: &Value) -> Vec<String> {
        let resolved = self.resolved(schema);
        let find = |rule: &str| schema.get(rule).or_else(|| resolved.get(rule));
        let mut rules = Vec::new();
        if let Some(options) = find("enum") {
            let options: Vec<String> = list(options)
                .map(|o| format!("<code>{}</code>", escaped(text(o))))
                .collect();
            rules.push(format!("one of {}", options.join(", ")));
        }
        if let Some(value) = find("const") {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            rules.push(format!("always <code>{}</code>", escaped(&value)));
        }
        for (rule, words) in [
            ("minimum", "at least"),
            ("maximum", "at most"),
            ("default", "by default"),
            ("minItems", "items: at least"),
            ("maxItems", "items: at most"),
            ("minLength", "characters: at least"),
            ("maxLength", "characters: at most"),
        ] {
            if let Some(number) = find(rule).filter(|number| number.is_number()) {
                rules.push(format!("{words} {number}"));
            }
        }
        if find("uniqueItems") == Some(&json!(true)) {
            rules.push("no item twice".into());
        }
        if let Some(format) = find("format").and_then(Value::as_str) {
            rules.push(escaped(format));
        }
        // Patterns that forbid control characters say nothing to people that the description does not.
        if let Some(pattern) = find("pattern")
            .and_then(Value::as_str)
            .filter(|p| !p.contains("\\u"))
        {
            rules.push(format!("<code>{}</code>", breakable(pattern)));
        }
        rules
    }

    /// The link to a schema as it is published.
    fn schema_link(&self, schema: &Value) -> String {
        let name = text(&schema["$ref"]).rsplit('/').next().unwrap_or_default();
        format!(
            "<a href=\"{}/schemas/{name}.json\"><code>{name}</code></a>",
            self.root
        )
    }

    /// Follows one reference into the document.
    fn resolved<'v>(&'v self, value: &'v Value) -> &'v Value {
        let target = value["$ref"].as_str().and_then(|to| to.strip_prefix('#'));
        match target.and_then(|pointer| self.openapi.pointer(pointer)) {
            // A definition may refer on.
            Some(target) => self.resolved(target),
            None => value,
        }
    }

    fn curl(&self, method: &str, path: &str, operation: &Value) -> String {
        let server = text(&self.openapi["servers"][0]["url"]);
        let kind = path.split('/').nth(1).unwrap_or_default();
        let path = path
            .replace(
                "{id}",
                &sample_id(&format!("{}_id", kind.trim_end_matches('s'))),
            )
            .replace("registries/{name}", "registries/reasons")
            .replace("{name}", "offer");
        let mut query = String::new();
        let mut lines = Vec::new();
        for parameter in list(&operation["parameters"]).map(|p| self.resolved(p)) {
            let name = text(&parameter["name"]);
            match (text(&parameter["in"]), parameter["required"] == true) {
                ("query", true) => query = format!("?{name}={}", sample_id(name)),
                ("header", true) if name == "Idempotency-Key" => {
                    lines.push("-H 'Idempotency-Key: 7nR2c1mVb0qX9dKf3sTz5w'".to_owned());
                }
                _ => {}
            }
        }
        let ways: Vec<&Value> = list(&operation["security"]).collect();
        let bearer = ways
            .iter()
            .any(|way| way["bearer"].is_array() && way["signature"].is_null());
        if bearer {
            lines.push("-H 'Authorization: Bearer …'".into());
        } else if ways.iter().any(|way| way["signature"].is_array()) {
            lines.push("-H 'UCP-Agent: profile=\"https://agent.example/.well-known/ucp\"'".into());
            if ways.iter().all(|way| way["bearer"].is_array()) {
                lines.push("-H 'Authorization: Bearer …'".into());
            }
            lines.push("-H 'Signature-Input: sig1=(…)' -H 'Signature: sig1=:…:'".into());
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if !body.is_null() {
            lines.push("-H 'Content-Type: application/json'".into());
            lines.push(format!("-d '{}'", self.sample("", body)));
        } else if method == "POST" {
            lines.push("-X POST".into());
        }
        let mut command = format!("curl '{server}{path}{query}'");
        for line in lines {
            command.push_str(" \\\n  ");
            command.push_str(&line);
        }
        command
    }

    /// A value that satisfies the schema, as small as may be.
    fn sample(&self, name: &str, schema: &Value) -> Value {
        let definition = text(&schema["$ref"]).rsplit('/').next().unwrap_or_default();
        let schema = self.resolved(schema);
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(first) = schema["enum"].get(0) {
            return first.clone();
        }
        match definition {
            "id" => return json!(sample_id(name)),
            "timestamp" => return json!("2026-12-01T12:00:00Z"),
            "money" => return json!({"amount": 52_000, "currency": "EUR"}),
            "term_set" => return json!("goods-1"),
            "choice" => {
                return json!(match name {
                    "method_type" => "shipping",
                    "selected_term_id" => "prepaid",
                    _ => "standard",
                });
            }
            "line" => return json!("A bicycle"),
            "prose" => return json!("Is the frame number legible?"),
            "jws" => return json!("eyJ….eyJ….…"),
            _ => {}
        }
        match text(&schema["type"]) {
            "object" => {
                let required = list(&schema["required"]).map(text);
                let members = required.map(|name| {
                    (
                        name.to_owned(),
                        self.sample(name, &schema["properties"][name]),
                    )
                });
                Value::Object(members.collect())
            }
            "array" => json!([self.sample(name, &schema["items"])]),
            "integer" => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
            "boolean" => json!(true),
            _ => json!("…"),
        }
    }

    fn registries(&self, html: &mut String) {
        let mut table = |id: &str,
                         title: &str,
                         description: &str,
                         columns: &[&str],
                         rows: Vec<Vec<String>>| {
            put!(
                html,
                "<section id=\"{id}\" aria-labelledby=\"title-{id}\">\n<h2 id=\"title-{id}\">{title}</h2>\n"
            );
            paragraph(html, description);
            put!(
                html,
                "<div class=\"scroll\" role=\"region\" aria-labelledby=\"title-{id}\" tabindex=\"0\">\n<table>\n<thead><tr>"
            );
            for column in columns {
                put!(html, "<th scope=\"col\">{column}</th>");
            }
            html.push_str("</tr></thead>\n<tbody>\n");
            for row in rows {
                html.push_str("<tr>");
                for (i, cell) in row.iter().enumerate() {
                    match i {
                        0 => put!(html, "<th scope=\"row\">{cell}</th>"),
                        _ => put!(html, "<td>{cell}</td>"),
                    }
                }
                html.push_str("</tr>\n");
            }
            html.push_str("</tbody>\n</table>\n</div>\n</section>\n");
        };
        let code = |code: &str| format!("<code id=\"code-{code}\">{code}</code>");
        let reasons = super::registry("reasons");
        let rows = list(&reasons["reasons"]).map(|row| {
            vec![
                code(text(&row["reason"])),
                row["status"].to_string(),
                escaped(text(&row["description"])),
            ]
        });
        table(
            "reasons",
            "Reasons",
            text(&reasons["description"]),
            &["Reason", "Status", "Meaning"],
            rows.collect(),
        );
        let errors = super::registry("errors");
        let rows = list(&errors["errors"]).map(|row| {
            let statuses: Vec<String> = list(&row["statuses"]).map(Value::to_string).collect();
            vec![
                code(text(&row["error"])),
                statuses.join(", "),
                escaped(text(&row["description"])),
            ]
        });
        table(
            "errors",
            "Protocol errors",
            text(&errors["description"]),
            &["Error", "Status", "Meaning"],
            rows.collect(),
        );
        let actions = super::registry("actions");
        let offered = &self.openapi["components"]["securitySchemes"]["bearer"]["x-scopes"];
        let rows = list(&actions["actions"]).map(|row| {
            let scope = text(&row["scope"]);
            let tiers = match (&offered[scope], row["fixed_forbid"] == true) {
                (_, true) => "always forbidden".to_owned(),
                (Value::Null, _) if scope.is_empty() => "no grant needed".to_owned(),
                (Value::Null, _) => "not offered here".to_owned(),
                (tiers, _) => list(&tiers["allowed_tiers"])
                    .map(text)
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            let operation = text(&row["operation"]);
            let scope = match scope {
                "" => "none".to_owned(),
                scope => format!("<code>{}</code>", breakable(scope)),
            };
            vec![
                format!("<code>{}</code>", text(&row["verb"])),
                format!("<a href=\"#{operation}\"><code>{operation}</code></a>"),
                scope,
                tiers,
            ]
        });
        table(
            "actions",
            "Verbs and scopes",
            "The verbs that are decided, and what a seller may grant on this marketplace.",
            &["Verb", "Operation", "Scope", "Tiers"],
            rows.collect(),
        );
    }

    fn schemas(&self, html: &mut String) {
        html.push_str(
            "<section id=\"schemas\" aria-labelledby=\"title-schemas\">\n<h2 id=\"title-schemas\">Schemas</h2>\n\
             <p>JSON Schema 2020-12. Every object is closed, but for what belongs to UCP and WebAuthn.</p>\n<dl class=\"fields\">\n",
        );
        for (name, schema) in members(&self.openapi["components"]["schemas"]) {
            put!(
                html,
                "<div><dt><a href=\"{}/schemas/{name}.json\"><code>{name}</code></a></dt><dd>{}</dd></div>\n",
                self.root,
                escaped(text(&schema["description"]))
            );
        }
        html.push_str("</dl>\n</section>\n");
    }
}

struct Field<'a> {
    path: String,
    required: bool,
    schema: &'a Value,
    description: String,
}

fn sample_id(name: &str) -> String {
    let prefix = match name {
        "listing_id" => "lst",
        "offer_id" | "supersedes" => "off",
        "question_id" => "qst",
        "approval_id" => "apr",
        "deal_id" => "deal",
        _ => "id",
    };
    format!("{prefix}_3kTMd9")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let members = value.as_object().into_iter().flatten();
    members.map(|(name, value)| (name.as_str(), value))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    escaped(&first.into_iter().chain(letters).collect::<String>())
}

fn paragraph(html: &mut String, text: &str) {
    html.push_str("<p>");
    inline(html, text);
    html.push_str("</p>\n");
}

/// Text with `code` and **strong** in it.
fn inline(html: &mut String, text: &str) {
    for (i, part) in text.split('`').enumerate() {
        if i % 2 == 1 {
            put!(html, "<code>{}</code>", escaped(part));
            continue;
        }
        for (j, part) in part.split("**").enumerate() {
            match j % 2 {
                1 => put!(html, "<strong>{}</strong>", escaped(part)),
                _ => html.push_str(&escaped(part)),
            }
        }
    }
}

fn code(html: &mut String, label: &str, text: &str) {
    put!(
        html,
        "<pre tabindex=\"0\" aria-label=\"{}\"><code>{}</code></pre>\n",
        escaped(label),
        escaped(text)
    );
}

/// Escaped, with places where a narrow screen may break it.
fn breakable(text: &str) -> String {
    let mut broken = escaped(text);
    for at in ["/", ".", "_", ":"] {
        broken = broken.replace(at, &format!("{at}<wbr>"));
    }
    broken
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}
