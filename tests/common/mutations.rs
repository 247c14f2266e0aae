//! What an attacker on the way, or a careless intermediary, can do to a signed request.
//!
//! [`mutations`] takes a request that verifies and makes thousands that must not; [`harmless`] makes those
//! that must still verify. Both know RFC 9421 and the label `sig1`, and nothing of who verifies: the same
//! lists serve the wire room and the whole stack.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri, header::HOST};
use tower_rctp::wire::digest::{CONTENT_DIGEST, content_digest, sha256};

/// A request that must be refused.
pub struct Mutation {
    /// What was done to it.
    pub what: String,
    /// The request as it would arrive.
    pub request: Request<Bytes>,
    /// The refusals of which one must come.
    pub refused_as: &'static [Refusal],
}

/// Which check refuses; the numbers are those of the list in section 2.1 of the RCTP binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Neither signature header is there: the request is not signed at all (1).
    Unsigned,
    /// The operator profile is another one, or none (2).
    Operator,
    /// The key is not one of the profile (3).
    Key,
    /// The signature is malformed, does not cover what it must, is not fresh, or does not verify (1, 4).
    Signature,
}
use Refusal::{Key, Operator, Signature, Unsigned};

/// Every mutation of a request that was signed under the label `sig1` and that verifies.
pub fn mutations(request: &Request<Bytes>) -> Vec<Mutation> {
    let mut all = Mutations {
        original: request,
        list: Vec::new(),
    };
    all.of_the_request_line();
    all.of_the_host();
    all.of_the_headers();
    all.of_the_body();
    all.of_the_signature_headers();
    all.of_signature_input();
    all.of_the_signature();
    all.list
}

/// Variations that a conforming sender or intermediary may make.
pub fn harmless(request: &Request<Bytes>) -> Vec<(String, Request<Bytes>)> {
    let mut list = Vec::new();
    let mut add = |what: &str, edit: &dyn Fn(&mut Request<Bytes>)| {
        let mut request = request.clone();
        edit(&mut request);
        list.push((what.to_owned(), request));
    };
    add("unchanged", &|_| {});
    add("a header that is not covered", &|request| {
        request
            .headers_mut()
            .insert("x-forwarded-for", HeaderValue::from_static("192.0.2.1"));
    });
    add("headers in another order", &|request| {
        let reversed: Vec<_> = std::mem::take(request.headers_mut())
            .into_iter()
            .filter_map(|(name, value)| name.map(|name| (name, value)))
            .collect();
        request.headers_mut().extend(reversed.into_iter().rev());
    });
    add("space around values", &|request| {
        for value in request.headers_mut().values_mut() {
            *value = HeaderValue::from_bytes(&[b" \t", value.as_bytes(), b"\t "].concat()).unwrap();
        }
    });
    add(
        "the host in upper case, with the default port",
        &|request| {
            let host = text(request, &HOST).to_uppercase();
            set(request, &HOST, format!("{host}:443").as_bytes());
        },
    );
    for order in ["before", "after"] {
        add(&format!("another signature {order} ours"), &|request| {
            for (name, theirs) in [
                (INPUT, "proxy=(\"@status\";req);created=1;foo=bar"),
                (SIGNATURE, "proxy=:AAAA:"),
            ] {
                let ours = text(request, &name);
                let both = match order {
                    "before" => format!("{theirs}, {ours}"),
                    _ => format!("{ours},{theirs}"),
                };
                set(request, &name, both.as_bytes());
            }
        });
    }
    add("another signature in a line of its own", &|request| {
        let headers = request.headers_mut();
        headers.append(INPUT, HeaderValue::from_static("proxy=()"));
        headers.append(SIGNATURE, HeaderValue::from_static("proxy=:AAAA:"));
    });
    list
}

const INPUT: HeaderName = HeaderName::from_static("signature-input");
const SIGNATURE: HeaderName = HeaderName::from_static("signature");

struct Mutations<'a> {
    original: &'a Request<Bytes>,
    list: Vec<Mutation>,
}

impl Mutations<'_> {
    fn of_the_request_line(&mut self) {
        for method in [
            "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "post", "get",
            "POSTS", "P",
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            if method != *self.original.method() {
                self.add(format!("method {method}"), &[Signature], |request| {
                    *request.method_mut() = method;
                    true
                });
            }
        }

        let uri = self.original.uri();
        let path = uri.path().to_owned();
        let query = uri.query().map(str::to_owned);
        let target = uri.path_and_query().unwrap().to_string();
        for (what, edited) in edits(target.as_bytes()) {
            self.target(format!("target: {what}"), &edited);
        }
        let tail = query
            .as_ref()
            .map_or(String::new(), |query| format!("?{query}"));
        for (what, path) in [
            ("slash after the path", format!("{path}/")),
            ("slash before the path", format!("/{path}")),
            ("dot segment", format!("/.{path}")),
            ("dotted detour", format!("/x/..{path}")),
            ("path parameter", format!("{path};v=1")),
            ("percent-encoded slash", path.replacen('/', "/%2F", 1)),
            ("path in upper case", path.to_uppercase()),
            ("percent-encoded letter", path.replacen('o', "%6F", 1)),
            (
                "percent-encoded letter, lower case",
                path.replacen('o', "%6f", 1),
            ),
            ("no path", "/".to_owned()),
        ] {
            self.target(what.to_owned(), format!("{path}{tail}").as_bytes());
        }
        let queries = match &query {
            None => vec![String::new(), "x".into(), "x=1".into(), "?".into()],
            Some(query) => vec![
                String::new(),
                format!("{query}&"),
                format!("&{query}"),
                format!("{query}&x=1"),
                format!("{query}&{query}"),
                format!("?{query}"),
                query.replace('=', "%3D"),
                query.replace('_', "%5F"),
                query.replace('=', ""),
                query.split('&').rev().collect::<Vec<_>>().join("&"),
                query.to_uppercase(),
                query.replace('&', ";"),
                query.replace("%20", "+"),
            ],
        };
        for query in queries {
            self.target(
                format!("query {query:?}"),
                format!("{path}?{query}").as_bytes(),
            );
        }
        if query.is_some() {
            self.target("no query".to_owned(), path.as_bytes());
        }
    }

    fn of_the_host(&mut self) {
        let host = self.text(&HOST);
        for other in [
            "evil.example".to_owned(),
            format!("{host}.evil.example"),
            format!("evil.{host}"),
            format!("{host}:80"),
            format!("{host}:8443"),
            format!("{host}:444"),
            format!("user@{host}"),
            format!("{host}/"),
            format!("{host}."),
            format!("{host}, evil.example"),
            format!("evil.example#{host}"),
            format!("evil.example\\@{host}"),
            format!("[{host}]"),
            String::new(),
        ] {
            self.add(format!("host {other:?}"), &[Signature], |request| {
                set(request, &HOST, other.as_bytes())
            });
        }
        for second in [&*host, "evil.example"] {
            self.add(format!("second host {second:?}"), &[Signature], |request| {
                append(request, &HOST, second.as_bytes())
            });
        }
    }

    /// Everything that is covered as a header field.
    fn of_the_headers(&mut self) {
        let input = self.text(&INPUT);
        let covered: BTreeSet<&str> = input
            .split(['(', ')'])
            .nth(1)
            .unwrap()
            .split(' ')
            .map(|component| component.split(';').next().unwrap().trim_matches('"'))
            .filter(|name| !name.starts_with('@'))
            .collect();
        for name in covered {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            let value = self.text(&name);
            let refused_as: &[_] = if name == "ucp-agent" {
                &[Operator, Signature]
            } else {
                &[Signature]
            };
            self.add(format!("{name} removed"), refused_as, |request| {
                request.headers_mut().remove(&name).is_some()
            });
            for (what, edited) in edits(value.as_bytes()) {
                self.add(format!("{name}: {what}"), refused_as, |request| {
                    set(request, &name, &edited)
                });
            }
            for edited in [
                String::new(),
                value.to_uppercase(),
                value.to_lowercase(),
                format!("{value},"),
                format!("{value}, {value}"),
                format!("{value},{value}"),
                format!("{value}; x=1"),
                format!("{value};x"),
                format!("x, {value}"),
                value.replace('"', ""),
                value.replace('"', "'"),
                value.replace("=\"", "= \""),
            ] {
                if edited != value {
                    self.add(format!("{name} is {edited:?}"), refused_as, |request| {
                        set(request, &name, edited.as_bytes())
                    });
                }
            }
            for second in [&*value, "", "x", "x=1"] {
                self.add(
                    format!("{name} and a line {second:?}"),
                    refused_as,
                    |request| append(request, &name, second.as_bytes()),
                );
                self.add(
                    format!("{name} after a line {second:?}"),
                    refused_as,
                    |request| {
                        set(request, &name, second.as_bytes())
                            && append(request, &name, value.as_bytes())
                    },
                );
            }
            // A covered header under another name, as a hop-by-hop rewrite would leave it.
            self.add(format!("{name} renamed"), refused_as, |request| {
                let headers = request.headers_mut();
                let value = headers.remove(&name).unwrap();
                let other = HeaderName::try_from(format!("x-{name}")).unwrap();
                headers.insert(other, value);
                true
            });
        }
    }

    fn of_the_body(&mut self) {
        let body = self.original.body().clone();
        if body.is_empty() {
            // Nothing said that there would be one.
            for (what, digest) in [("a body", false), ("a body with its digest", true)] {
                self.body(what.to_owned(), b"{}", digest);
            }
            return;
        }
        for (index, byte) in body.iter().enumerate() {
            let mut altered = body.to_vec();
            altered[index] = byte.wrapping_add(1);
            self.body(format!("body: byte {index} altered"), &altered, false);
            altered.remove(index);
            self.body(format!("body: byte {index} removed"), &altered, false);
        }
        let text = String::from_utf8(body.to_vec()).unwrap();
        for (what, altered) in [
            ("emptied", String::new()),
            ("with a line feed", format!("{text}\n")),
            ("with a space before it", format!(" {text}")),
            ("twice", format!("{text}{text}")),
            ("with a mark before it", format!("\u{feff}{text}")),
            ("with other spacing", text.replace(':', ": ")),
            (
                "with one member more",
                text.replacen('{', "{\"tier\":\"auto\",", 1),
            ),
            ("null", "null".to_owned()),
        ] {
            for digest in [false, true] {
                let what = format!("body {what}{}", if digest { ", digest too" } else { "" });
                self.body(what, altered.as_bytes(), digest);
            }
        }
    }

    /// Both signature headers as a whole.
    fn of_the_signature_headers(&mut self) {
        for (what, name) in [("Signature", SIGNATURE), ("Signature-Input", INPUT)] {
            let value = self.text(&name);
            self.add(format!("{what} removed"), &[Signature], |request| {
                request.headers_mut().remove(&name).is_some()
            });
            self.add(format!("{what} doubled"), &[Signature], |request| {
                append(request, &name, value.as_bytes())
            });
            self.add(
                format!("{what} doubled in one line"),
                &[Signature],
                |request| set(request, &name, format!("{value}, {value}").as_bytes()),
            );
            for other in [
                value.replace("sig1", "sig2"),
                value.replace("sig1", "Sig1"),
                value.replace("sig1", "sig"),
                value.replace("sig1=", "sig1"),
                value.replace("sig1=", ""),
                value.replace("sig1=", "sig1=="),
                value.replace("sig1=", "sig1 = "),
                format!("{value},"),
                format!(",{value}"),
                format!("{value}, sig1"),
                format!("{value}, sig1=()"),
                format!("{value}, sig1=:AAAA:"),
                format!("sig1=1, {value}"),
                format!("{value} {value}"),
                format!("{value};"),
                format!("({value})"),
                "sig1".to_owned(),
                "sig1=1".to_owned(),
                "sig1=\"x\"".to_owned(),
                "sig1=()".to_owned(),
                "sig1=::".to_owned(),
                String::new(),
                "\u{e9}".to_owned(),
                "a".repeat(9000),
                format!("{value}, x=\"{}\"", "a".repeat(9000)),
                (0..40).map(|n| format!("l{n}=(), ")).collect::<String>() + &value,
            ] {
                if other != value {
                    let shown: String = other.chars().take(300).collect();
                    self.add(format!("{what} is {shown:?}"), &[Signature], |request| {
                        set(request, &name, other.as_bytes())
                    });
                }
            }
        }
        self.add("not signed".to_owned(), &[Unsigned], |request| {
            request.headers_mut().remove(SIGNATURE);
            request.headers_mut().remove(INPUT);
            true
        });
        self.add(
            "both under another label".to_owned(),
            &[Signature],
            |request| {
                [SIGNATURE, INPUT].iter().all(|name| {
                    let value = text(request, name).replace("sig1=", "sig2=");
                    set(request, name, value.as_bytes())
                })
            },
        );
        self.add("headers exchanged".to_owned(), &[Signature], |request| {
            let (input, signature) = (text(request, &INPUT), text(request, &SIGNATURE));
            set(request, &INPUT, signature.as_bytes()) && set(request, &SIGNATURE, input.as_bytes())
        });
    }

    /// What the signature says that it covers, and its parameters.
    fn of_signature_input(&mut self) {
        let value = self.text(&INPUT);
        let keyid = {
            let start = value.find("keyid=\"").unwrap() + "keyid=\"".len();
            start..start + value[start..].find('"').unwrap()
        };
        for (index, byte) in value.bytes().enumerate() {
            for (what, edited) in edits_at(value.as_bytes(), index, byte) {
                let in_keyid = keyid.contains(&index) || keyid.contains(&(index + 1));
                let refused_as: &[_] = if in_keyid {
                    &[Key, Signature]
                } else {
                    &[Signature]
                };
                self.add(format!("Signature-Input: {what}"), refused_as, |request| {
                    set(request, &INPUT, &edited)
                });
            }
        }

        let inner = value.strip_prefix("sig1=(").unwrap();
        let (components, params) = inner.split_once(')').unwrap();
        let components: Vec<&str> = components.split(' ').collect();
        let params: Vec<&str> = params.trim_start_matches(';').split(';').collect();
        let mut input = |what: String, components: &[String], params: &[String]| {
            let value = format!("sig1=({});{}", components.join(" "), params.join(";"));
            let refused_as: &[_] = if what.contains("keyid") {
                &[Key, Signature]
            } else {
                &[Signature]
            };
            self.add(what, refused_as, |request| {
                set(request, &INPUT, value.as_bytes())
            });
        };
        let owned = |list: &[&str]| {
            list.iter()
                .map(|part| (*part).to_owned())
                .collect::<Vec<_>>()
        };
        let (all_components, all_params) = (owned(&components), owned(&params));

        input("nothing covered".into(), &[], &all_params);
        let mut reversed = all_components.clone();
        reversed.reverse();
        input("components reversed".into(), &reversed, &all_params);
        let mut rotated = all_components.clone();
        rotated.rotate_left(1);
        input("components rotated".into(), &rotated, &all_params);
        for (index, component) in components.iter().enumerate() {
            let mut without = all_components.clone();
            without.remove(index);
            input(format!("{component} not covered"), &without, &all_params);
            for at in [index, index + 1, 0, components.len()] {
                let mut twice = all_components.clone();
                twice.insert(at, (*component).to_owned());
                input(format!("{component} twice, at {at}"), &twice, &all_params);
            }
            for (other, replacement) in components.iter().enumerate() {
                if other != index {
                    let mut swapped = all_components.clone();
                    swapped.swap(index, other);
                    input(
                        format!("{component} swapped with {other}"),
                        &swapped,
                        &all_params,
                    );
                    let mut replaced = all_components.clone();
                    replaced[index] = (*replacement).to_owned();
                    input(
                        format!("{component} replaced by {other}"),
                        &replaced,
                        &all_params,
                    );
                }
            }
            let name = component.split(';').next().unwrap().trim_matches('"');
            for instead in [
                format!("{component};sf"),
                format!("{component};bs"),
                format!("{component};req"),
                format!("{component};tr"),
                format!("{component};req=?0"),
                format!("{component};key=\"profile\""),
                format!("{component};name=\"x\""),
                format!("{component};x"),
                format!("{component};key=1"),
                format!("{component};key=\"a\";key=\"b\""),
                format!("\"{}\"", name.to_uppercase()),
                format!("\"{name} \""),
                format!("\" {name}\""),
                format!("\"{name}\\n\""),
                format!("\"@{name}\""),
                format!("\"{}\"", name.trim_start_matches('@')),
                format!("\"x-{name}\""),
                format!(":{}:", "AAAA"),
                name.trim_start_matches('@').to_owned(),
                "1".to_owned(),
                "?1".to_owned(),
                "(\"@method\")".to_owned(),
            ] {
                if instead != *component {
                    let mut changed = all_components.clone();
                    changed[index].clone_from(&instead);
                    input(format!("{component} as {instead}"), &changed, &all_params);
                }
            }
        }
        for added in [
            "\"@signature-params\"",
            "\"@status\"",
            "\"@scheme\"",
            "\"@target-uri\"",
            "\"@request-target\"",
            "\"@query\"",
            "\"@query-param\"",
            "\"@query-param\";name=\"x\"",
            "\"@unknown\"",
            "\"@\"",
            "\"\"",
            "\"host\"",
            "\"x-absent\"",
            "\"signature\"",
            "\"signature-input\"",
            "\"signature\";key=\"sig1\"",
            "\"x\u{e9}\"",
            "\"x\\\"y\"",
            "\"a\nb\"",
        ] {
            for at in [0, components.len()] {
                let mut more = all_components.clone();
                more.insert(at, added.to_owned());
                input(format!("{added} covered too, at {at}"), &more, &all_params);
            }
        }
        let many: Vec<String> = (0..100).map(|n| format!("\"x-{n}\"")).collect();
        input(
            "a hundred components more".into(),
            &[all_components.clone(), many].concat(),
            &all_params,
        );

        for (index, param) in params.iter().enumerate() {
            let (name, current) = param.split_once('=').unwrap();
            let mut without = all_params.clone();
            without.remove(index);
            input(format!("{name} removed"), &all_components, &without);
            for at in [index, index + 1, 0, params.len()] {
                let mut twice = all_params.clone();
                twice.insert(at, (*param).to_owned());
                input(format!("{name} twice, at {at}"), &all_components, &twice);
            }
            for other in index + 1..params.len() {
                let mut swapped = all_params.clone();
                swapped.swap(index, other);
                input(
                    format!("{name} swapped with {other}"),
                    &all_components,
                    &swapped,
                );
            }
            let mut values = vec![
                String::new(),
                "?1".to_owned(),
                "1.5".to_owned(),
                "token".to_owned(),
                ":AAAA:".to_owned(),
                "@1".to_owned(),
                "%\"x\"".to_owned(),
                "\"\"".to_owned(),
                "\"x\"".to_owned(),
                "0".to_owned(),
                "-1".to_owned(),
                "999999999999999".to_owned(),
                "-999999999999999".to_owned(),
                "9999999999999999".to_owned(),
                format!("0{current}"),
                format!(" {current}"),
                format!("{current} "),
                format!("{current};x"),
                format!("{current}.0"),
            ];
            if let Ok(time) = current.parse::<i64>() {
                for by in [1, 10, 59, 60, 61, 299, 300, 301, 3600, 86400] {
                    values.push((time + by).to_string());
                    values.push((time - by).to_string());
                }
            }
            for value in values {
                if value != current && value.trim_end() != current {
                    let mut changed = all_params.clone();
                    changed[index] = format!("{name}={value}");
                    input(format!("{name} is {value:?}"), &all_components, &changed);
                }
            }
            let mut renamed = all_params.clone();
            renamed[index] = format!("x-{param}");
            input(format!("{name} renamed"), &all_components, &renamed);
        }
        for added in [
            "alg=\"ecdsa-p256-sha256\"",
            "alg=\"ecdsa-p384-sha384\"",
            "alg=\"ed25519\"",
            "alg=\"hmac-sha256\"",
            "alg=\"rsa-pss-sha512\"",
            "alg=\"none\"",
            "alg=\"\"",
            "tag=\"web-bot-auth\"",
            "tag=\"other\"",
            "nonce=\"n\"",
            "x=1",
            "x",
            "keyid=\"other\"",
        ] {
            let name = added.split('=').next().unwrap();
            if params
                .iter()
                .any(|param| param.starts_with(&format!("{name}=")))
                && name != "keyid"
            {
                continue;
            }
            for at in [0, params.len()] {
                let mut more = all_params.clone();
                more.insert(at, added.to_owned());
                input(format!("parameter {added} at {at}"), &all_components, &more);
            }
        }
    }

    /// The signature itself.
    fn of_the_signature(&mut self) {
        let value = self.text(&SIGNATURE);
        for (what, edited) in edits(value.as_bytes()) {
            self.add(format!("Signature: {what}"), &[Signature], |request| {
                set(request, &SIGNATURE, &edited)
            });
        }
        let base64 = value
            .trim_start_matches("sig1=:")
            .trim_end_matches(':')
            .to_owned();
        for (what, other) in [
            ("without padding", base64.replace('=', "")),
            ("with more padding", format!("{base64}=")),
            (
                "in the URL alphabet",
                base64.replace('+', "-").replace('/', "_"),
            ),
            ("of zeros", format!("{}==", "A".repeat(86))),
            ("of ones", format!("{}w==", "/".repeat(85))),
            ("empty", String::new()),
            ("halved", base64[..44].to_owned()),
            ("twice", format!("{}{}", &base64[..84], &base64[..84])),
            ("rotated", format!("{}{}", &base64[4..84], &base64[..4])),
            // ECDSA's raw form is 64 bytes; DER begins with 0x30.
            (
                "in the form of DER",
                format!("MEYCIQ{}", &base64[..90.min(base64.len() - 2)]),
            ),
        ] {
            if other != base64 {
                self.add(format!("Signature {what}"), &[Signature], |request| {
                    set(request, &SIGNATURE, format!("sig1=:{other}:").as_bytes())
                });
            }
        }
        for params in [";x", ";x=1", ";created=1"] {
            self.add(
                format!("Signature with {params}"),
                &[Signature],
                |request| set(request, &SIGNATURE, format!("{value}{params}").as_bytes()),
            );
        }
    }

    fn target(&mut self, what: String, target: &[u8]) {
        let Ok(target) = std::str::from_utf8(target) else {
            return;
        };
        let Ok(uri) = target.parse::<Uri>() else {
            return;
        };
        // Anything else than origin form is not for us to judge, and a fragment is not sent. A covered
        // `@query` is `?` for a query that is empty and for one that is absent (RFC 9421 §2.2.7).
        let before = self.original.uri();
        let same_query =
            uri.query() == before.query() || (before.query() == Some("") && uri.query().is_none());
        if !target.starts_with('/') || (uri.path() == before.path() && same_query) {
            return;
        }
        self.add(what, &[Signature], |request| {
            let mut parts = request.uri().clone().into_parts();
            parts.path_and_query = uri.into_parts().path_and_query;
            *request.uri_mut() = Uri::from_parts(parts).unwrap();
            true
        });
    }

    fn body(&mut self, what: String, body: &[u8], with_digest: bool) {
        let body = Bytes::copy_from_slice(body);
        self.add(what, &[Signature], |request| {
            if with_digest {
                let digest = content_digest(&sha256(&body));
                request.headers_mut().insert(CONTENT_DIGEST, digest);
            }
            *request.body_mut() = body;
            true
        });
    }

    /// Adds one mutation, unless the edit says that no such request can arrive.
    fn add(
        &mut self,
        what: String,
        refused_as: &'static [Refusal],
        edit: impl FnOnce(&mut Request<Bytes>) -> bool,
    ) {
        let mut request = self.original.clone();
        if edit(&mut request) && differ(&request, self.original) {
            self.list.push(Mutation {
                what,
                request,
                refused_as,
            });
        }
    }

    fn text(&self, name: &HeaderName) -> String {
        text(self.original, name)
    }
}

fn differ(one: &Request<Bytes>, other: &Request<Bytes>) -> bool {
    one.method() != other.method()
        || one.uri() != other.uri()
        || one.headers() != other.headers()
        || one.body() != other.body()
}

fn text(request: &Request<Bytes>, name: &HeaderName) -> String {
    request.headers()[name].to_str().unwrap().to_owned()
}

/// Sets a header; `false` if no header can have this value.
fn set(request: &mut Request<Bytes>, name: &HeaderName, value: &[u8]) -> bool {
    HeaderValue::from_bytes(value)
        .map(|value| request.headers_mut().insert(name, value))
        .is_ok()
}

fn append(request: &mut Request<Bytes>, name: &HeaderName, value: &[u8]) -> bool {
    HeaderValue::from_bytes(value)
        .map(|value| request.headers_mut().append(name, value))
        .is_ok()
}

/// Every small edit of a text, by byte.
fn edits(text: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> {
    text.iter()
        .enumerate()
        .flat_map(|(index, byte)| edits_at(text, index, *byte))
}

/// The small edits at one byte: altered to its neighbour, to another class of bytes, removed, doubled,
/// swapped with the next. Edits that only add space at an end are left out: it is trimmed.
fn edits_at(text: &[u8], index: usize, byte: u8) -> Vec<(String, Vec<u8>)> {
    let (before, after) = (&text[..index], &text[index + 1..]);
    let mut list = Vec::new();
    let mut add = |what: String, edited: Vec<u8>| {
        if edited.trim_ascii() != text {
            list.push((format!("{what} at {index}"), edited));
        }
    };
    for other in [byte ^ 1, byte ^ 0x20, b'"', b' ', b'%', b'\t', 0xe9] {
        if other != byte {
            let edited = [before, &[other], after].concat();
            add(
                format!("{:?} for {:?}", other as char, byte as char),
                edited,
            );
        }
    }
    add("byte removed".into(), [before, after].concat());
    add(
        "byte doubled".into(),
        [before, &[byte, byte], after].concat(),
    );
    if let Some((next, rest)) = after.split_first() {
        add(
            "bytes swapped".into(),
            [before, &[*next, byte], rest].concat(),
        );
    }
    list
}
