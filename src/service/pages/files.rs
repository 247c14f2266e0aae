//! The static side of the pages: one template, texts, style and scripts, built in.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value};

use super::Approvals;
use crate::{
    layer::body::Body,
    wire::{base64url, digest::sha256},
};

const SHELL: &str = include_str!("shell.html");
const TEXTS: &str = include_str!("texts.en.json");
const STYLE: &str = include_str!("pages.css");
const SCRIPTS: [(&str, &str); 5] = [
    ("pages.js", include_str!("pages.js")),
    ("approve.js", include_str!("approve.js")),
    ("list.js", include_str!("list.js")),
    ("enroll.js", include_str!("enroll.js")),
    ("signin.js", include_str!("signin.js")),
];

/// Nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The files, with the marketplace's texts and style.
pub(crate) struct Files {
    texts: Map<String, Value>,
    files: Vec<File>,
}

struct File {
    name: &'static str,
    kind: &'static str,
    body: Bytes,
    etag: HeaderValue,
}

impl File {
    fn new(name: &'static str, kind: &'static str, body: Bytes) -> Self {
        let etag = format!("\"{}\"", base64url(&sha256(&body)));
        Self {
            name,
            kind,
            etag: HeaderValue::from_str(&etag).expect("base64url fits a header"),
            body,
        }
    }
}

impl Files {
    pub(crate) fn new(settings: &Approvals) -> Result<Self, String> {
        let mut texts: Map<String, Value> =
            serde_json::from_str(TEXTS).expect("texts are checked by a test");
        texts.insert("marketplace".into(), settings.marketplace.clone().into());
        for (key, text) in &settings.texts {
            match texts.get_mut(key) {
                Some(place) => *place = text.clone().into(),
                None => return Err(format!("approvals: the pages have no text `{key}`")),
            }
        }
        let style = match &*settings.stylesheet {
            "" => Bytes::from_static(STYLE.as_bytes()),
            more => format!("{STYLE}\n{more}").into(),
        };
        let mut files = vec![File::new("pages.css", "text/css; charset=utf-8", style)];
        files.extend(SCRIPTS.map(|(name, text)| {
            let body = Bytes::from_static(text.as_bytes());
            File::new(name, "text/javascript; charset=utf-8", body)
        }));
        Ok(Self { texts, files })
    }

    /// A page of ours; `title` is the key of a text.
    pub(crate) fn own(&self, title: &str, script: &str) -> Response<Body> {
        self.render(
            self.text(title),
            &format!("/pages/{script}"),
            self.texts.clone(),
        )
    }

    /// A page of the marketplace's.
    pub(crate) fn page(&self, title: &str, script: &str, texts: &Value) -> Response<Body> {
        let mut all = self.texts.clone();
        if let Value::Object(texts) = texts {
            all.extend(texts.clone());
        }
        self.render(title, script, all)
    }

    fn text(&self, key: &str) -> &str {
        self.texts
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn render(&self, title: &str, script: &str, texts: Map<String, Value>) -> Response<Body> {
        // `<` would end the data block.
        let data = Value::Object(texts).to_string().replace('<', "\\u003c");
        let mut html = String::with_capacity(SHELL.len() + data.len() + 256);
        let mut rest = SHELL;
        // One pass, so that no text can name a place of another.
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").unwrap_or((after, ""));
            html.push_str(before);
            match name {
                "texts" => html.push_str(&data),
                "title" => escape(title, &mut html),
                "script" => escape(script, &mut html),
                name => escape(self.text(name), &mut html),
            }
            rest = after;
        }
        html.push_str(rest);
        let mut response = Response::new(Body::from(Bytes::from(html)));
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CACHE_CONTROL, "no-store"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(
            "cross-origin-opener-policy",
            HeaderValue::from_static("same-origin"),
        );
        response
    }

    /// A file by its name; 304 for a browser that has it.
    pub(crate) fn file(&self, name: &str, headers: &HeaderMap) -> Option<Response<Body>> {
        let file = self.files.iter().find(|file| file.name == name)?;
        let known = headers.get(header::IF_NONE_MATCH) == Some(&file.etag);
        let mut response = match known {
            true => Response::new(Body::empty()),
            false => Response::new(Body::from(file.body.clone())),
        };
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(header::ETAG, file.etag.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
        // Asked again each time, so that an update never mixes with what was there before.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        Some(response)
    }
}

fn escape(text: &str, html: &mut String) {
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marketplace_changes_texts_by_their_keys() {
        let settings = Approvals::new("Market").text("signin_url", "https://market.example/login");
        let files = Files::new(&settings).unwrap();
        assert_eq!(files.text("signin_url"), "https://market.example/login");
        assert_eq!(files.text("marketplace"), "Market");
        let unknown = Files::new(&settings.text("sign_in_url", "x")).err();
        assert!(unknown.unwrap().contains("`sign_in_url`"));
    }
}
