//! HTTP message signatures: the examples of RFC 9421, and the rules that a policy adds to it.
//!
//! Everything that touches a key runs against every provider in the build.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::json;
use tower_rctp::wire::{
    crypto::{self, Algorithm, Provider},
    digest::{CONTENT_DIGEST, DigestError, content_digest, sha256},
    jwk::{Keys, PublicKey, SigningKey},
    signature::{
        self, Authority, Component, Coverage, Freshness, Message, Params, Policy, Presented,
        SIGNATURE, SIGNATURE_INPUT, SignError, SignatureError,
    },
};

const NOW: i64 = 1_700_000_000;

fn providers() -> impl Iterator<Item = &'static dyn Provider> {
    crypto::providers().iter().copied()
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines
        .iter()
        .map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (HeaderName::from_static(name), value)
        })
        .fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
}

fn https(host: &str) -> Authority {
    Authority::new(host, "https").unwrap()
}

fn component(name: &str) -> Component {
    name.parse().unwrap()
}

/// The examples of the RFC. Two of its keys are used under their thumbprints, which is what `kid` has to be
/// here; both were computed with Python's `hashlib`, and that of Ed25519 stands in UCP's signatures.md too.
mod examples {
    use super::*;

    const P256: &str = "ydQXMtvbsOsZyFir-Y7A8t7fKEM1gbKPvyFkdpu4fvI";
    const ED25519: &str = "poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U";

    /// The keys of appendices B.1.3 and B.1.4.
    fn keys(provider: &dyn Provider) -> Keys {
        let keys = json!([
            {
                "kid": P256,
                "kty": "EC",
                "crv": "P-256",
                "x": "qIVYZVLCrPZHGHjP17CTW0_-D9Lfw0EkjqF7xB4FivA",
                "y": "Mc4nN9LTDOBhfoUeg8Ye9WedFRhnZXZJA12Qp0zZ6F0",
            },
            {
                "kid": ED25519,
                "kty": "OKP",
                "crv": "Ed25519",
                "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs",
            },
        ]);
        Keys::parse(&keys, provider).unwrap()
    }

    /// The request of appendix B.2, which is that of section 2.5.
    fn request() -> HeaderMap {
        headers(&[
            ("host", "example.com"),
            ("date", "Tue, 20 Apr 2021 02:07:55 GMT"),
            ("content-type", "application/json"),
            (
                "content-digest",
                "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:",
            ),
            ("content-length", "18"),
        ])
    }

    /// Reads a signature that was added to the request and gives its base.
    fn base(input: &str, signature: &str) -> (String, Presented) {
        let mut headers = request();
        headers.insert(SIGNATURE_INPUT, input.parse().unwrap());
        headers.insert(SIGNATURE, signature.parse().unwrap());
        let (label, _) = input.split_once('=').unwrap();
        let presented = Presented::read(&headers, label).unwrap();
        let authority = https("example.com");
        let query = Some("param=Value&Pet=dog");
        let message = Message::request(&Method::POST, &authority, "/foo", query, &headers);
        (presented.base(&message).unwrap(), presented)
    }

    /// The bases of requests in section 2.5 and appendix B.2. Their algorithms, RSA-PSS and HMAC, are none
    /// of ours, so only the bases are compared.
    #[test]
    fn the_bases_of_requests_are_those_of_the_rfc() {
        let digest = "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:";
        let expected = [
            // Section 2.5
            (
                r#"sig1=("@method" "@authority" "@path" "content-digest" "content-length" "content-type");created=1618884473;keyid="test-key-rsa-pss""#,
                format!(
                    "\"@method\": POST\n\
                     \"@authority\": example.com\n\
                     \"@path\": /foo\n\
                     \"content-digest\": {digest}\n\
                     \"content-length\": 18\n\
                     \"content-type\": application/json\n\
                     \"@signature-params\": (\"@method\" \"@authority\" \"@path\" \"content-digest\" \"content-length\" \"content-type\");created=1618884473;keyid=\"test-key-rsa-pss\""
                ),
            ),
            // B.2.1
            (
                r#"sig-b21=();created=1618884473;keyid="test-key-rsa-pss";nonce="b3k2pp5k7z-50gnwp.yemd""#,
                r#""@signature-params": ();created=1618884473;keyid="test-key-rsa-pss";nonce="b3k2pp5k7z-50gnwp.yemd""#.to_owned(),
            ),
            // B.2.2
            (
                r#"sig-b22=("@authority" "content-digest" "@query-param";name="Pet");created=1618884473;keyid="test-key-rsa-pss";tag="header-example""#,
                format!(
                    "\"@authority\": example.com\n\
                     \"content-digest\": {digest}\n\
                     \"@query-param\";name=\"Pet\": dog\n\
                     \"@signature-params\": (\"@authority\" \"content-digest\" \"@query-param\";name=\"Pet\");created=1618884473;keyid=\"test-key-rsa-pss\";tag=\"header-example\""
                ),
            ),
            // B.2.3
            (
                r#"sig-b23=("date" "@method" "@path" "@query" "@authority" "content-type" "content-digest" "content-length");created=1618884473;keyid="test-key-rsa-pss""#,
                format!(
                    "\"date\": Tue, 20 Apr 2021 02:07:55 GMT\n\
                     \"@method\": POST\n\
                     \"@path\": /foo\n\
                     \"@query\": ?param=Value&Pet=dog\n\
                     \"@authority\": example.com\n\
                     \"content-type\": application/json\n\
                     \"content-digest\": {digest}\n\
                     \"content-length\": 18\n\
                     \"@signature-params\": (\"date\" \"@method\" \"@path\" \"@query\" \"@authority\" \"content-type\" \"content-digest\" \"content-length\");created=1618884473;keyid=\"test-key-rsa-pss\""
                ),
            ),
            // B.2.5
            (
                r#"sig-b25=("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret""#,
                "\"date\": Tue, 20 Apr 2021 02:07:55 GMT\n\
                 \"@authority\": example.com\n\
                 \"content-type\": application/json\n\
                 \"@signature-params\": (\"date\" \"@authority\" \"content-type\");created=1618884473;keyid=\"test-shared-secret\"".to_owned(),
            ),
        ];
        for (input, expected) in expected {
            let (label, _) = input.split_once('=').unwrap();
            let (base, _) = base(input, &format!("{label}=:AAAA:"));
            assert_eq!(base, expected);
        }
    }

    /// B.2.4. Its response covers neither `expires` nor what our policies ask for, and its `keyid` is a
    /// name: so it is checked over its base, and goes through the verifier as far as a policy can let it.
    #[test]
    fn the_ecdsa_p256_response_verifies() {
        let headers = headers(&[
            ("date", "Tue, 20 Apr 2021 02:07:56 GMT"),
            ("content-type", "application/json"),
            (
                "content-digest",
                "sha-512=:mEWXIS7MaLRuGgxOBdODa3xqM1XdEvxoYhvlCFJ41QJgJc4GTsPp29l5oGX69wWdXymyU0rjJuahq4l5aGgfLQ==:",
            ),
            ("content-length", "23"),
            (
                "signature-input",
                r#"sig-b24=("@status" "content-type" "content-digest" "content-length");created=1618884473;keyid="test-key-ecc-p256""#,
            ),
            (
                "signature",
                "sig-b24=:wNmSUAhwb5LxtOtOpNa6W5xj067m5hFrj0XQ4fvpaCLx0NKocgPquLgyahnzDnDAUy5eCdlYUEkLIj+32oiasw==:",
            ),
        ]);
        let message = Message::response(StatusCode::OK, &headers);
        for provider in providers() {
            let keys = keys(provider);
            let key = keys.get(P256).unwrap();
            let presented = Presented::read(&headers, "sig-b24").unwrap();
            let base = presented.base(&message).unwrap();
            assert_eq!(
                base,
                "\"@status\": 200\n\
                 \"content-type\": application/json\n\
                 \"content-digest\": sha-512=:mEWXIS7MaLRuGgxOBdODa3xqM1XdEvxoYhvlCFJ41QJgJc4GTsPp29l5oGX69wWdXymyU0rjJuahq4l5aGgfLQ==:\n\
                 \"content-length\": 23\n\
                 \"@signature-params\": (\"@status\" \"content-type\" \"content-digest\" \"content-length\");created=1618884473;keyid=\"test-key-ecc-p256\""
            );
            assert!(key.verify(base.as_bytes(), presented.signature()).is_ok());
            assert!(
                key.verify(&base.as_bytes()[1..], presented.signature())
                    .is_err()
            );

            let policy = Policy::new(Coverage::new());
            assert_eq!(
                presented
                    .verify(&message, key, &policy, None, 1_618_884_473)
                    .unwrap_err(),
                SignatureError::OtherKey
            );
        }
    }

    /// B.3, a request signed by a proxy with the same P-256 key.
    #[test]
    fn the_request_of_the_tls_terminating_proxy_verifies() {
        let certificate = concat!(
            ":MIIBqDCCAU6gAwIBAgIBBzAKBggqhkjOPQQDAjA6MRswGQYDVQQKDBJMZXQncyBBdXRoZW50aWNhdGUxGzAZBgNV",
            "BAMMEkxBIEludGVybWVkaWF0ZSBDQTAeFw0yMDAxMTQyMjU1MzNaFw0yMTAxMjMyMjU1MzNaMA0xCzAJBgNVBAMMAk",
            "JDMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE8YnXXfaUgmnMtOXU/IncWalRhebrXmckC8vdgJ1p5Be5F/3YC8Ot",
            "hxM4+k1M6aEAEFcGzkJiNy6J84y7uzo9M6NyMHAwCQYDVR0TBAIwADAfBgNVHSMEGDAWgBRm3WjLa38lbEYCuiCPct",
            "0ZaSED2DAOBgNVHQ8BAf8EBAMCBsAwEwYDVR0lBAwwCgYIKwYBBQUHAwIwHQYDVR0RAQH/BBMwEYEPYmRjQGV4YW1w",
            "bGUuY29tMAoGCCqGSM49BAMCA0gAMEUCIBHda/r1vaL6G3VliL4/Di6YK0Q6bMjeSkC3dFCOOB8TAiEAx/kHSB4urm",
            "iZ0NX5r5XarmPk0wmuydBVoU4hBVZ1yhk=:"
        );
        let headers = headers(&[
            ("client-cert", certificate),
            (
                "signature-input",
                r#"ttrp=("@path" "@query" "@method" "@authority" "client-cert");created=1618884473;keyid="test-key-ecc-p256""#,
            ),
            (
                "signature",
                "ttrp=:xVMHVpawaAC/0SbHrKRs9i8I3eOs5RtTMGCWXm/9nvZzoHsIg6Mce9315T6xoklyy0yzhD9ah4JHRwMLOgmizw==:",
            ),
        ]);
        let authority = https("service.internal.example");
        let query = Some("param=Value&Pet=dog");
        let message = Message::request(&Method::POST, &authority, "/foo", query, &headers);
        for provider in providers() {
            let presented = Presented::read(&headers, "ttrp").unwrap();
            let base = presented.base(&message).unwrap();
            let keys = keys(provider);
            let key = keys.get(P256).unwrap();
            assert!(key.verify(base.as_bytes(), presented.signature()).is_ok());
        }
    }

    /// B.2.6.
    #[test]
    fn the_ed25519_request_verifies() {
        let (base, presented) = base(
            r#"sig-b26=("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519""#,
            "sig-b26=:wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==:",
        );
        assert_eq!(
            base,
            "\"date\": Tue, 20 Apr 2021 02:07:55 GMT\n\
             \"@method\": POST\n\
             \"@path\": /foo\n\
             \"@authority\": example.com\n\
             \"content-type\": application/json\n\
             \"content-length\": 18\n\
             \"@signature-params\": (\"date\" \"@method\" \"@path\" \"@authority\" \"content-type\" \"content-length\");created=1618884473;keyid=\"test-key-ed25519\""
        );
        for provider in providers() {
            let keys = keys(provider);
            let key = keys.get(ED25519).unwrap();
            assert_eq!(key.algorithm(), Algorithm::Ed25519);
            assert!(key.verify(base.as_bytes(), presented.signature()).is_ok());
            assert!(key.verify(b"", presented.signature()).is_err());
        }
    }

    /// B.4, where a field has two lines.
    #[test]
    fn the_request_with_two_accept_lines_verifies() {
        let headers = headers(&[
            ("accept", "application/json"),
            ("accept", "*/*"),
            (
                "signature-input",
                r#"transform=("@method" "@path" "@authority" "accept");created=1618884473;keyid="test-key-ed25519""#,
            ),
            (
                "signature",
                "transform=:ZT1kooQsEHpZ0I1IjCqtQppOmIqlJPeo7DHR3SoMn0s5JZ1eRGS0A+vyYP9t/LXlh5QMFFQ6cpLt2m0pmj3NDA==:",
            ),
        ]);
        let authority = https("example.org");
        let query = Some("name1=Value1&Name2=value2");
        let message = Message::request(&Method::GET, &authority, "/demo", query, &headers);
        let presented = Presented::read(&headers, "transform").unwrap();
        let base = presented.base(&message).unwrap();
        assert_eq!(
            base,
            "\"@method\": GET\n\
             \"@path\": /demo\n\
             \"@authority\": example.org\n\
             \"accept\": application/json, */*\n\
             \"@signature-params\": (\"@method\" \"@path\" \"@authority\" \"accept\");created=1618884473;keyid=\"test-key-ed25519\""
        );
        for provider in providers() {
            let keys = keys(provider);
            let key = keys.get(ED25519).unwrap();
            assert!(key.verify(base.as_bytes(), presented.signature()).is_ok());
        }
    }
}

/// The value of one component, as section 2 has it.
mod components {
    use super::*;

    /// The value of `identifier` in a message, or `None` if it has none.
    fn value(identifier: &str, message: &Message<'_>) -> Option<String> {
        let headers = headers(&[
            ("signature-input", &format!("sig1=({identifier})")),
            ("signature", "sig1=:AAAA:"),
        ]);
        let presented = Presented::read(&headers, "sig1").unwrap();
        let base = presented.base(message).ok()?;
        let (line, _) = base.split_once('\n').unwrap();
        Some(
            line.strip_prefix(&format!("{identifier}: "))
                .unwrap()
                .to_owned(),
        )
    }

    fn request_value(identifier: &str, target: &str) -> Option<String> {
        let authority = https("www.example.com");
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let headers = HeaderMap::new();
        value(
            identifier,
            &Message::request(&Method::POST, &authority, path, query, &headers),
        )
    }

    #[test]
    fn derived_components_have_the_values_of_section_2_2() {
        let target = "/path?param=value";
        for (identifier, target, expected) in [
            (r#""@method""#, target, "POST"),
            (r#""@authority""#, target, "www.example.com"),
            (r#""@scheme""#, target, "https"),
            (
                r#""@target-uri""#,
                target,
                "https://www.example.com/path?param=value",
            ),
            (r#""@request-target""#, target, "/path?param=value"),
            (r#""@path""#, target, "/path"),
            (r#""@path""#, "", "/"),
            (r#""@path""#, "?x", "/"),
            (r#""@path""#, "/a%2Fb/../c//", "/a%2Fb/../c//"),
            (
                r#""@query""#,
                "/path?param=value&foo=bar&baz=bat%2Dman",
                "?param=value&foo=bar&baz=bat%2Dman",
            ),
            (r#""@query""#, "/path?queryString", "?queryString"),
            (r#""@query""#, "/path?", "?"),
            (r#""@query""#, "/path", "?"),
            (r#""@query""#, "/path??", "??"),
        ] {
            assert_eq!(
                request_value(identifier, target).as_deref(),
                Some(expected),
                "{target}"
            );
        }
    }

    #[test]
    fn query_parameters_have_the_values_of_section_2_2_8() {
        let first = "/path?param=value&foo=bar&baz=batman&qux=";
        let second = "/parameters?var=this%20is%20a%20big%0Amultiline%20value&bar=with+plus+whitespace&fa%C3%A7ade%22%3A%20=something";
        for (name, target, expected) in [
            ("baz", first, Some("batman")),
            ("qux", first, Some("")),
            ("param", first, Some("value")),
            (
                "var",
                second,
                Some("this%20is%20a%20big%0Amultiline%20value"),
            ),
            ("bar", second, Some("with%20plus%20whitespace")),
            ("fa%C3%A7ade%22%3A%20", second, Some("something")),
            ("absent", first, None),
            ("Param", first, None),
            ("bar", "/x?bar=1&bar=1", None),
            ("bar", "/x?bar=1&b%61r=2", None),
            ("bar", "/x", None),
        ] {
            let identifier = format!(r#""@query-param";name="{name}""#);
            assert_eq!(
                request_value(&identifier, target).as_deref(),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn fields_have_the_values_of_section_2_1() {
        let headers = headers(&[
            ("host", "www.example.com"),
            ("x-ows-header", "  Leading and trailing whitespace.\t "),
            ("cache-control", "max-age=60"),
            ("cache-control", "   must-revalidate"),
            ("example-dict", " a=1,    b=2;x=1;y=2,   c=(a   b   c)"),
            ("x-empty-header", ""),
            ("x-two-empty-lines", ""),
            ("x-two-empty-lines", " "),
            ("x-tab", "a\tb"),
            ("x-latin", "\u{e9}"),
        ]);
        let message = Message::response(StatusCode::OK, &headers);
        for (name, expected) in [
            ("host", Some("www.example.com")),
            ("x-ows-header", Some("Leading and trailing whitespace.")),
            ("cache-control", Some("max-age=60, must-revalidate")),
            ("example-dict", Some("a=1,    b=2;x=1;y=2,   c=(a   b   c)")),
            ("x-empty-header", Some("")),
            ("x-two-empty-lines", Some(", ")),
            ("x-tab", Some("a\tb")),
            ("x-latin", None),
            ("x-absent", None),
        ] {
            assert_eq!(
                value(&format!("\"{name}\""), &message).as_deref(),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn dictionary_members_have_the_values_of_section_2_1_2() {
        let headers = headers(&[
            ("example-dict", " a=1, b=2;x=1;y=2, c=(a   b    c), d"),
            ("two-lines", "a=1"),
            ("two-lines", "b=:AA==:"),
            ("repeated", "a=1, b=2, a=1"),
            ("no-dictionary", "a=1, B"),
        ]);
        let message = Message::response(StatusCode::OK, &headers);
        for (identifier, expected) in [
            (r#""example-dict";key="a""#, Some("1")),
            (r#""example-dict";key="d""#, Some("?1")),
            (r#""example-dict";key="b""#, Some("2;x=1;y=2")),
            (r#""example-dict";key="c""#, Some("(a b c)")),
            (r#""example-dict";key="e""#, None),
            (r#""example-dict";key="A""#, None),
            (r#""example-dict";key="""#, None),
            (r#""two-lines";key="b""#, Some(":AA==:")),
            // The last of two members would win; another reader might take the first.
            (r#""repeated";key="b""#, None),
            (r#""no-dictionary";key="a""#, None),
            (r#""x-absent";key="a""#, None),
        ] {
            assert_eq!(
                value(identifier, &message).as_deref(),
                expected,
                "{identifier}"
            );
        }
    }

    #[test]
    fn a_component_belongs_to_requests_or_to_responses() {
        let headers = HeaderMap::new();
        let response = Message::response(StatusCode::NOT_FOUND, &headers);
        assert_eq!(value(r#""@status""#, &response).as_deref(), Some("404"));
        for name in [
            "method",
            "authority",
            "scheme",
            "target-uri",
            "request-target",
            "path",
            "query",
        ] {
            assert_eq!(value(&format!("\"@{name}\""), &response), None, "{name}");
        }
        assert_eq!(request_value(r#""@status""#, "/"), None);
    }

    /// A target with a line break would bring a line of its own into the base.
    #[test]
    fn a_target_that_is_not_visible_ascii_has_no_value() {
        for target in [
            "/a\n\"@method\": GET",
            "/a b",
            "/\u{e9}",
            "/\0",
            "/x?a\nb",
            "/x?\u{7f}",
            "/x? ",
        ] {
            for identifier in [
                r#""@path""#,
                r#""@query""#,
                r#""@target-uri""#,
                r#""@method""#,
            ] {
                assert_eq!(request_value(identifier, target), None, "{target:?}");
            }
        }
    }

    #[test]
    fn an_authority_is_brought_into_normal_form() {
        for (raw, scheme, expected) in [
            ("www.example.com", "https", "www.example.com"),
            ("WWW.Example.COM", "HTTPS", "www.example.com"),
            ("example.com:443", "https", "example.com"),
            ("example.com:0443", "https", "example.com"),
            ("example.com:80", "http", "example.com"),
            ("example.com:80", "https", "example.com:80"),
            ("example.com:443", "http", "example.com:443"),
            ("example.com:", "https", "example.com"),
            ("example.com:8443", "https", "example.com:8443"),
            ("127.0.0.1:3000", "http", "127.0.0.1:3000"),
            ("[2001:DB8::1]:443", "https", "[2001:db8::1]"),
            ("[::1]", "http", "[::1]"),
            ("example.com:80", "ws", "example.com:80"),
        ] {
            let authority = Authority::new(raw, scheme).unwrap();
            assert_eq!(authority.as_str(), expected, "{raw}");
            assert_eq!(authority.scheme(), scheme.to_lowercase());
            assert_eq!(signature::authority(raw, scheme), Ok(authority));
        }
        for (raw, scheme) in [
            ("", "https"),
            (":443", "https"),
            ("user@example.com", "https"),
            ("user:secret@example.com:443", "https"),
            ("@example.com", "https"),
            ("example.com/", "https"),
            ("example.com?x", "https"),
            ("example.com#x", "https"),
            ("example.com\\x", "https"),
            ("example.com:x", "https"),
            ("example.com:65536", "https"),
            ("example.com:443:443", "https"),
            ("example.com, evil.example", "https"),
            ("exam\u{e9}ple.com", "https"),
            ("example.com\n", "https"),
            ("example.com", ""),
            ("example.com", "https:"),
            ("example.com", "\u{e9}"),
            ("example.com", "1http"),
        ] {
            assert!(Authority::new(raw, scheme).is_err(), "{raw} {scheme}");
        }
    }
}

/// What is refused when the two headers are read.
mod reading {
    use super::*;

    const INPUT: &str = r#"sig1=("@method");created=1;keyid="k""#;
    const BYTES: &str = "sig1=:AAAA:";

    fn read(inputs: &[&str], signatures: &[&str]) -> Result<Presented, SignatureError> {
        let lines: Vec<_> = inputs
            .iter()
            .map(|line| ("signature-input", *line))
            .chain(signatures.iter().map(|line| ("signature", *line)))
            .collect();
        Presented::read(&headers(&lines), "sig1")
    }

    #[test]
    fn an_unsigned_message_differs_from_a_badly_signed_one() {
        assert_eq!(read(&[], &[]).unwrap_err(), SignatureError::Missing);
        assert_eq!(read(&[INPUT], &[]).unwrap_err(), SignatureError::Incomplete);
        assert_eq!(read(&[], &[BYTES]).unwrap_err(), SignatureError::Incomplete);
        for (inputs, signatures) in [
            (&["sig2=()"][..], &[BYTES][..]),
            (&[INPUT], &["sig2=:AAAA:"]),
            (&["sig2=()"], &["sig2=:AAAA:"]),
            (&[""], &[BYTES]),
            (&[INPUT], &[""]),
            (&[""], &[""]),
        ] {
            assert_eq!(
                read(inputs, signatures).unwrap_err(),
                SignatureError::NoSuchLabel
            );
        }
    }

    #[test]
    fn what_a_signature_says_of_itself_can_be_read() {
        let presented = read(
            &[r#"sig1=("@method" "x-a";key="b" "@query-param";name="c");keyid="k";created=1;expires=-2;nonce="n";tag="t";alg="a""#],
            &[BYTES],
        )
        .unwrap();
        assert_eq!(presented.keyid(), Some("k"));
        assert_eq!(presented.created(), Some(1));
        assert_eq!(presented.expires(), Some(-2));
        assert_eq!(presented.nonce(), Some("n"));
        assert_eq!(presented.tag(), Some("t"));
        assert_eq!(presented.signature(), [0, 0, 0]);
        assert_eq!(
            presented.components(),
            [
                Component::Method,
                Component::FieldKey(HeaderName::from_static("x-a"), "b".into()),
                Component::QueryParam("c".into()),
            ]
        );

        let bare = read(&["sig1=()"], &["sig1=::"]).unwrap();
        assert!(bare.components().is_empty() && bare.signature().is_empty());
        assert_eq!((bare.keyid(), bare.created()), (None, None));
    }

    #[test]
    fn other_labels_are_let_pass() {
        for (inputs, signatures) in [
            (
                &[INPUT, "other=(\"@unknown\";sf;bs);x"][..],
                &[BYTES, "other=:AAAA:"][..],
            ),
            (
                &["a=(), b=()", INPUT, "c=1"],
                &["a=:AA==:, b=1", "c", BYTES],
            ),
        ] {
            assert!(read(inputs, signatures).is_ok());
        }
    }

    #[test]
    fn a_label_that_occurs_twice_is_refused_wherever_it_stands() {
        let other = r#"sig1=("@path");created=2;keyid="k""#;
        for (inputs, signatures) in [
            (&[INPUT, INPUT][..], &[BYTES][..]),
            (&[INPUT, other], &[BYTES]),
            (&[other, INPUT], &[BYTES]),
            (&[&format!("{INPUT}, {other}")], &[BYTES]),
            (&[INPUT, "x=()", "sig1=1"], &[BYTES]),
            (&[INPUT], &[BYTES, BYTES]),
            (&[INPUT], &["sig1=:AAAA:, sig1=:BBBB:"]),
            (&[INPUT], &[BYTES, "sig1"]),
            // Of another signature: nobody knows which one its verifier takes.
            (&[INPUT, "x=(), x=()"], &[BYTES]),
            (&[INPUT], &[BYTES, "x=:AA==:", "x=:AA==:"]),
        ] {
            assert_eq!(
                read(inputs, signatures).unwrap_err(),
                SignatureError::RepeatedLabel
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        use SignatureError as E;
        let unknown = |place| E::UnknownComponent { place };
        for (inner, why) in [
            (r#"("@method";sf)"#, unknown(0)),
            (r#"("content-type";bs)"#, unknown(0)),
            (r#"("content-type";tr)"#, unknown(0)),
            (r#"("content-type";req)"#, unknown(0)),
            (r#"("@method" "content-type";x=1)"#, unknown(1)),
            (r#"("@method";key="a")"#, unknown(0)),
            (r#"("@method";name="a")"#, unknown(0)),
            (r#"("content-type";name="a")"#, unknown(0)),
            (r#"("content-type";key="a";name="b")"#, unknown(0)),
            (r#"("@query-param")"#, unknown(0)),
            (r#"("@query-param";key="a")"#, unknown(0)),
            (r#"("@signature-params")"#, unknown(0)),
            (r#"("@METHOD")"#, unknown(0)),
            (r#"("@")"#, unknown(0)),
            (r#"("")"#, unknown(0)),
            (r#"("Content-Type")"#, unknown(0)),
            (r#"("content type")"#, unknown(0)),
            (r#"("content-type:")"#, unknown(0)),
            (r#"("x\"y")"#, unknown(0)),
            (
                r#"("content-type" "@method" "content-type")"#,
                E::RepeatedComponent { place: 2 },
            ),
            (
                r#"("a";key="b" "a";key="b")"#,
                E::RepeatedComponent { place: 1 },
            ),
            (r#"("a";key="b";key="b")"#, E::RepeatedParameter),
            (r#"();created=1;created=1"#, E::RepeatedParameter),
            (r#"();keyid="a";created=1;keyid="a""#, E::RepeatedParameter),
            (r#"();x"#, E::UnknownParameter),
            (r#"();Created=1"#, E::Malformed),
            (r#"();created="1""#, E::Malformed),
            (r#"();created=1.0"#, E::Malformed),
            (r#"();created"#, E::Malformed),
            (r#"();created=@1"#, E::Malformed),
            (r#"();created=1234567890123456"#, E::Malformed),
            (r#"();keyid=k"#, E::Malformed),
            (r#"();keyid=:AAAA:"#, E::Malformed),
            (r#"();nonce=1"#, E::Malformed),
            (r#"();tag"#, E::Malformed),
            (r#"(method)"#, E::Malformed),
            (r#"(1)"#, E::Malformed),
            (r#"("a";key=b)"#, E::Malformed),
            (r#"("a";key)"#, E::Malformed),
            (r#""@method""#, E::Malformed),
            (r#"("@method"#, E::Malformed),
            (r#"("@method""#, E::Malformed),
            (r#"("@method"))"#, E::Malformed),
            (r#"("@method""@path")"#, E::Malformed),
            (r#"(("@method"))"#, E::Malformed),
            (r#"("a" "b"),"#, E::Malformed),
            (r#"() ;created=1"#, E::Malformed),
            (r#"();"#, E::Malformed),
            ("", E::Malformed),
            (r#"("@method"  "@path")"#, E::NotStrict),
            (r#"( "@method")"#, E::NotStrict),
            (r#"("@method" )"#, E::NotStrict),
            (r#"(); created=1"#, E::NotStrict),
            (r#"();created=01"#, E::NotStrict),
            (r#"();created=-0"#, E::NotStrict),
        ] {
            assert_eq!(
                read(&[&format!("sig1={inner}")], &[BYTES]).unwrap_err(),
                why,
                "{inner}"
            );
        }
        for (bytes, why) in [
            ("sig1=:AAAA", E::Malformed),
            ("sig1=AAAA", E::Malformed),
            ("sig1=\"AAAA\"", E::Malformed),
            ("sig1=(:AAAA:)", E::Malformed),
            ("sig1", E::Malformed),
            ("sig1=:AAAA:;x", E::Malformed),
            ("sig1=:A_-A:", E::Malformed),
            ("sig1=:AA=A:", E::Malformed),
            ("sig1=:AA A:", E::Malformed),
            ("sig1=:AA\u{e9}A:", E::Malformed),
            ("sig1=:AAAA:,", E::Malformed),
            ("sig1=:AAA:", E::NotStrict),
            ("sig1=:AA:", E::NotStrict),
            ("sig1=:AAB=:", E::NotStrict),
            ("sig1=:AB==:", E::NotStrict),
        ] {
            assert_eq!(read(&[INPUT], &[bytes]).unwrap_err(), why, "{bytes}");
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let long = format!("{INPUT}, x=\"{}\"", "a".repeat(8192));
        let lines = vec!["x=()"; 10_000];
        let components: Vec<_> = (0..65).map(|n| format!("\"x-{n}\"")).collect();
        let many_components = format!("sig1=({})", components.join(" "));
        let enough_components = format!("sig1=({})", components[..64].join(" "));
        let labels: Vec<_> = (0..16).map(|n| format!("l{n}=()")).collect();
        let many_labels = format!("{}, {INPUT}", labels.join(", "));
        let enough_labels = format!("{}, {INPUT}", labels[..15].join(", "));
        for (inputs, signatures) in [
            (&[&*long][..], &[BYTES][..]),
            (&lines, &[BYTES]),
            (&[INPUT], &lines),
            (&[&many_components], &[BYTES]),
            (&[&many_labels], &[BYTES]),
        ] {
            assert_eq!(
                read(inputs, signatures).unwrap_err(),
                SignatureError::TooLarge
            );
        }
        assert!(read(&[&enough_components], &[BYTES]).is_ok());
        assert!(read(&[&enough_labels], &[BYTES]).is_ok());
    }
}

/// What a policy demands beyond a signature that verifies.
mod policies {
    use super::*;

    const KEY: HeaderName = HeaderName::from_static("idempotency-key");
    const AGENT: HeaderName = HeaderName::from_static("signature-agent");

    /// A request with whatever a case needs.
    struct Case {
        method: Method,
        query: Option<&'static str>,
        headers: HeaderMap,
        body: Option<&'static [u8]>,
        params: Params,
    }

    impl Case {
        fn get() -> Self {
            Self {
                method: Method::GET,
                query: None,
                headers: HeaderMap::new(),
                body: None,
                params: Params::new(NOW).expires(NOW + 60),
            }
        }

        fn header(mut self, name: HeaderName, value: &'static str) -> Self {
            self.headers.append(name, HeaderValue::from_static(value));
            self
        }

        fn body(mut self, body: &'static [u8]) -> Self {
            self.headers
                .insert(CONTENT_DIGEST, content_digest(&sha256(body)));
            self.body = Some(body);
            self.header(header::CONTENT_TYPE, "application/json")
        }

        /// Signs these components with every provider in turn, verifies under the policy, and gives what
        /// came of it; all providers must agree.
        fn verify(&self, components: &[Component], policy: &Policy) -> Result<(), SignatureError> {
            let authority = https("example.com");
            let outcomes: Vec<_> = providers()
                .map(|provider| {
                    let key = SigningKey::generate_with(provider).unwrap();
                    let mut headers = self.headers.clone();
                    let message =
                        Message::request(&self.method, &authority, "/x", self.query, &headers);
                    let signed =
                        signature::sign(&message, components, &self.params, "sig1", &key).unwrap();
                    signed.append_to(&mut headers);
                    let message =
                        Message::request(&self.method, &authority, "/x", self.query, &headers);
                    let covered = Presented::read(&headers, "sig1")?.verify(
                        &message,
                        key.public_key(),
                        policy,
                        self.body.map(sha256).as_ref(),
                        NOW,
                    )?;
                    assert_eq!(covered.keyid(), key.kid());
                    assert_eq!(covered.algorithm(), Algorithm::Es256);
                    assert_eq!(covered.created(), self.params.created);
                    assert_eq!(covered.expires(), self.params.expires);
                    assert_eq!(covered.components(), components);
                    assert_eq!(covered.nonce(), self.params.nonce.as_deref());
                    assert_eq!(covered.tag(), self.params.tag.as_deref());
                    assert!(components.iter().all(|component| covered.covers(component)));
                    assert!(!covered.covers(&Component::Status));
                    Ok(())
                })
                .collect();
            assert!(outcomes.windows(2).all(|pair| pair[0] == pair[1]));
            outcomes.into_iter().next().unwrap()
        }
    }

    fn not_covered(component: impl Into<Component>) -> Result<(), SignatureError> {
        Err(SignatureError::NotCovered(component.into()))
    }

    #[test]
    fn each_rule_asks_for_its_component_when_it_applies() {
        let policy = Policy::new(
            Coverage::new()
                .always([Component::Method])
                .with_query([Component::Query])
                .with_body([CONTENT_DIGEST.into(), header::CONTENT_TYPE.into()])
                .on_method(Method::POST, [KEY.into()])
                .when_present([KEY, header::AUTHORIZATION]),
        );
        let all = |more: &[Component]| [&[Component::Method], more].concat();
        let (digest, kind): (Component, Component) =
            (CONTENT_DIGEST.into(), header::CONTENT_TYPE.into());

        let get = Case::get();
        assert_eq!(get.verify(&[], &policy), not_covered(Component::Method));
        assert_eq!(
            get.verify(&[Component::Path], &policy),
            not_covered(Component::Method)
        );
        assert_eq!(get.verify(&all(&[]), &policy), Ok(()));
        assert_eq!(
            get.verify(&all(&[Component::Path, Component::Query]), &policy),
            Ok(())
        );

        for query in ["", "a=b"] {
            let mut with_query = Case::get();
            with_query.query = Some(query);
            assert_eq!(
                with_query.verify(&all(&[]), &policy),
                not_covered(Component::Query)
            );
            let instead = all(&[Component::TargetUri, Component::RequestTarget]);
            assert_eq!(
                with_query.verify(&instead, &policy),
                not_covered(Component::Query)
            );
            assert_eq!(
                with_query.verify(&all(&[Component::Query]), &policy),
                Ok(())
            );
        }

        let with_body = Case::get().body(b"{}");
        assert_eq!(
            with_body.verify(&all(&[]), &policy),
            not_covered(digest.clone())
        );
        assert_eq!(
            with_body.verify(&all(std::slice::from_ref(&kind)), &policy),
            not_covered(digest.clone())
        );
        assert_eq!(
            with_body.verify(&all(std::slice::from_ref(&digest)), &policy),
            not_covered(kind.clone())
        );
        assert_eq!(with_body.verify(&all(&[digest, kind]), &policy), Ok(()));

        let with_key = Case::get().header(KEY, "k");
        assert_eq!(with_key.verify(&all(&[]), &policy), not_covered(KEY));
        assert_eq!(with_key.verify(&all(&[KEY.into()]), &policy), Ok(()));
        let with_bearer = Case::get().header(header::AUTHORIZATION, "Bearer x");
        assert_eq!(
            with_bearer.verify(&all(&[]), &policy),
            not_covered(header::AUTHORIZATION)
        );
        assert_eq!(
            with_bearer.verify(&all(&[header::AUTHORIZATION.into()]), &policy),
            Ok(())
        );

        let mut post = Case::get();
        post.method = Method::POST;
        assert_eq!(post.verify(&all(&[]), &policy), not_covered(KEY));
        let post = Case {
            method: Method::POST,
            ..with_key
        };
        assert_eq!(post.verify(&all(&[]), &policy), not_covered(KEY));
        assert_eq!(post.verify(&all(&[KEY.into()]), &policy), Ok(()));
    }

    #[test]
    fn a_dictionary_is_covered_by_all_of_its_members_where_the_policy_says_so() {
        let coverage = Coverage::new().when_present([AGENT]);
        let whole = Policy::new(coverage.clone());
        let policy = Policy::new(coverage.by_member([AGENT]));
        let member = |key: &str| Component::FieldKey(AGENT, key.into());
        let one = Case::get().header(AGENT, "sig1=\"https://a.example\"");
        assert_eq!(one.verify(&[member("sig1")], &whole), not_covered(AGENT));
        assert_eq!(one.verify(&[AGENT.into()], &whole), Ok(()));
        assert_eq!(one.verify(&[], &policy), not_covered(AGENT));
        assert_eq!(one.verify(&[AGENT.into()], &policy), Ok(()));
        assert_eq!(one.verify(&[member("sig1")], &policy), Ok(()));

        let two = Case::get().header(AGENT, "sig1=\"https://a.example\", x=1");
        assert_eq!(two.verify(&[member("sig1")], &policy), not_covered(AGENT));
        assert_eq!(two.verify(&[member("x")], &policy), not_covered(AGENT));
        assert_eq!(two.verify(&[member("sig1"), member("x")], &policy), Ok(()));

        let none = Case::get().header(AGENT, "");
        assert_eq!(none.verify(&[], &policy), not_covered(AGENT));
        assert_eq!(none.verify(&[AGENT.into()], &policy), Ok(()));
    }

    #[test]
    fn a_tag_is_refused_unless_it_is_allowed() {
        let agent = Component::FieldKey(AGENT, "sig1".into());
        let strict = Policy::new(Coverage::new());
        let dual = strict.clone().allow_tag("web-bot-auth", [agent.clone()]);
        let tagged = |tag: &str| {
            let mut case = Case::get().header(AGENT, "sig1=\"https://a.example\"");
            case.params = case.params.tag(tag);
            case
        };
        for tag in ["web-bot-auth", "other", ""] {
            assert_eq!(tagged(tag).verify(&[], &strict), Err(SignatureError::Tag));
        }
        for tag in ["other", "", "Web-Bot-Auth", "web-bot-auth "] {
            assert_eq!(
                tagged(tag).verify(std::slice::from_ref(&agent), &dual),
                Err(SignatureError::Tag)
            );
        }
        assert_eq!(
            tagged("web-bot-auth").verify(&[], &dual),
            not_covered(agent.clone())
        );
        assert_eq!(tagged("web-bot-auth").verify(&[agent], &dual), Ok(()));
        assert_eq!(Case::get().verify(&[], &dual), Ok(()));
    }

    #[test]
    fn freshness_is_exact_to_the_second() {
        use SignatureError as E;
        let policy = Policy::new(Coverage::new());
        for (created, expires, outcome) in [
            (0, 0, Ok(())),
            (0, 1, Ok(())),
            (-60, 0, Ok(())),
            (-61, 0, Err(E::TooOld)),
            (-60, 240, Ok(())),
            (-60, 241, Err(E::TooLongLived)),
            (60, 60, Ok(())),
            (60, 360, Ok(())),
            (60, 361, Err(E::TooLongLived)),
            (61, 100, Err(E::FromTheFuture)),
            (0, 300, Ok(())),
            (0, 301, Err(E::TooLongLived)),
            (-10, -1, Err(E::Expired)),
            (-10, -10, Err(E::Expired)),
            (-10, 0, Ok(())),
            (0, -1, Err(E::ExpiresBeforeCreated)),
            (10, 9, Err(E::ExpiresBeforeCreated)),
            (-60, -61, Err(E::ExpiresBeforeCreated)),
        ] {
            let mut case = Case::get();
            case.params = Params::new(NOW + created).expires(NOW + expires);
            assert_eq!(case.verify(&[], &policy), outcome, "{created} {expires}");
        }
        for (created, expires, why) in [
            (0, NOW, E::TooOld),
            (-999_999_999_999_999, NOW, E::TooOld),
            (999_999_999_999_999, NOW, E::FromTheFuture),
            (NOW, 999_999_999_999_999, E::TooLongLived),
            (NOW, -999_999_999_999_999, E::ExpiresBeforeCreated),
        ] {
            let mut case = Case::get();
            case.params = Params::new(created).expires(expires);
            assert_eq!(case.verify(&[], &policy), Err(why));
        }
    }

    /// Webhooks have no `expires`, and five minutes.
    #[test]
    fn freshness_can_be_demanded_otherwise() {
        let lenient = Policy::new(Coverage::new()).freshness(Freshness {
            max_skew: Duration::from_secs(300),
            max_lifetime: Duration::from_secs(3600),
            require_expires: false,
        });
        let strict = Policy::new(Coverage::new());
        let mut case = Case::get();
        for (created, outcome) in [
            (-300, Ok(())),
            (-301, Err(SignatureError::TooOld)),
            (300, Ok(())),
            (301, Err(SignatureError::FromTheFuture)),
        ] {
            case.params = Params::new(NOW + created);
            assert_eq!(case.verify(&[], &lenient), outcome);
        }
        case.params = Params::new(NOW);
        assert_eq!(case.verify(&[], &strict), Err(SignatureError::NoExpires));
        case.params = Params::new(NOW).expires(NOW + 3600);
        assert_eq!(case.verify(&[], &lenient), Ok(()));

        let eternal = Policy::new(Coverage::new()).freshness(Freshness {
            max_skew: Duration::MAX,
            max_lifetime: Duration::MAX,
            require_expires: false,
        });
        case.params = Params::new(-999_999_999_999_999).expires(999_999_999_999_999);
        assert_eq!(case.verify(&[], &eternal), Ok(()));
    }

    #[test]
    fn a_header_that_the_policy_names_stands_in_one_line() {
        let policy = Policy::new(Coverage::new().when_present([KEY]));
        for name in [
            KEY,
            header::HOST,
            header::CONTENT_TYPE,
            header::AUTHORIZATION,
            CONTENT_DIGEST,
        ] {
            let case = Case::get()
                .header(name.clone(), "x")
                .header(name.clone(), "x");
            let covered = [name.clone().into()];
            assert_eq!(
                case.verify(&covered, &policy),
                Err(SignatureError::RepeatedHeader(name.as_str().into()))
            );
        }
        // Others may have several, and are joined.
        let case = Case::get()
            .header(header::ACCEPT, "a/b")
            .header(header::ACCEPT, "*/*");
        assert_eq!(case.verify(&[header::ACCEPT.into()], &policy), Ok(()));
    }

    #[test]
    fn the_digest_has_to_match_the_body_and_the_other_way_round() {
        let policy = Policy::new(Coverage::new());
        let digest = |why| Err(SignatureError::Digest(why));
        let with_body = Case::get().body(b"{}");
        assert_eq!(with_body.verify(&[], &policy), Ok(()));
        let other_body = Case {
            body: Some(b"[]"),
            ..Case::get().body(b"{}")
        };
        assert_eq!(
            other_body.verify(&[], &policy),
            digest(DigestError::Mismatch)
        );
        let body_gone = Case {
            body: None,
            ..Case::get().body(b"{}")
        };
        assert_eq!(
            body_gone.verify(&[], &policy),
            digest(DigestError::Mismatch)
        );
        let digest_gone = Case {
            body: Some(b"{}"),
            ..Case::get()
        };
        assert_eq!(
            digest_gone.verify(&[], &policy),
            digest(DigestError::Missing)
        );
        let of_nothing = Case {
            body: None,
            ..Case::get().body(b"")
        };
        assert_eq!(of_nothing.verify(&[], &policy), Ok(()));
    }

    /// A signature written by hand, so that its parameters can be what `sign` would not make.
    fn by_hand(key: &SigningKey, params: &str) -> HeaderMap {
        let base = format!("\"@method\": GET\n\"@signature-params\": (\"@method\"){params}");
        let bytes = base64::Engine::encode(
            &base64::engine::general_purpose::STANDARD,
            key.sign(base.as_bytes()).unwrap(),
        );
        headers(&[
            ("signature-input", &format!("sig1=(\"@method\"){params}")),
            ("signature", &format!("sig1=:{bytes}:")),
        ])
    }

    #[test]
    fn the_key_decides_the_algorithm_and_is_named() {
        use SignatureError as E;
        let policy = Policy::new(Coverage::new().always([Component::Method]));
        let authority = https("example.com");
        for provider in providers() {
            let key = SigningKey::generate_with(provider).unwrap();
            let kid = key.kid();
            let time = format!(";created={NOW};expires={NOW}");
            for (params, outcome) in [
                (format!("{time};keyid=\"{kid}\""), Ok(())),
                (format!(";keyid=\"{kid}\"{time}"), Ok(())),
                (
                    format!("{time};keyid=\"{kid}\";alg=\"ecdsa-p256-sha256\""),
                    Ok(()),
                ),
                (
                    format!("{time};keyid=\"{kid}\";alg=\"ES256\""),
                    Err(E::Algorithm),
                ),
                (
                    format!("{time};keyid=\"{kid}\";alg=\"ed25519\""),
                    Err(E::Algorithm),
                ),
                (
                    format!("{time};keyid=\"{kid}\";alg=\"\""),
                    Err(E::Algorithm),
                ),
                (time.clone(), Err(E::NoKeyId)),
                (format!("{time};keyid=\"\""), Err(E::OtherKey)),
                (format!("{time};keyid=\"{kid} \""), Err(E::OtherKey)),
                (
                    format!("{time};keyid=\"{}\"", kid.as_str().to_uppercase()),
                    Err(E::OtherKey),
                ),
                (format!(";expires={NOW};keyid=\"{kid}\""), Err(E::NoCreated)),
                (format!(";created={NOW};keyid=\"{kid}\""), Err(E::NoExpires)),
            ] {
                let headers = by_hand(&key, &params);
                let message = Message::request(&Method::GET, &authority, "/", None, &headers);
                let outcome_now = Presented::read(&headers, "sig1").unwrap().verify(
                    &message,
                    key.public_key(),
                    &policy,
                    None,
                    NOW,
                );
                assert_eq!(outcome_now.map(drop), outcome, "{params}");
            }
        }
    }

    /// The signatures were made with Python's `cryptography` 48.0 over bases that a few lines of Python put
    /// together from the RFC, for each algorithm that we verify.
    #[test]
    fn a_request_that_another_library_signed_verifies() {
        let policy = Policy::new(
            Coverage::new()
                .always([Component::Method, Component::Authority, Component::Path])
                .with_query([Component::Query])
                .with_body([CONTENT_DIGEST.into(), header::CONTENT_TYPE.into()])
                .on_method(Method::POST, [KEY.into()])
                .when_present([header::AUTHORIZATION]),
        );
        let authority = https("gateway.marketplace.example");
        let query = Some("dry_run=false");
        let body = sha256(br#"{"offer_id":"off_1"}"#);
        for (algorithm, jwk, signature) in [
            (
                Algorithm::Es256,
                json!({"kid": "1KqQuGK0q8FZ_w6thmGpNmEDAAPiT70JUCOoaPEk4Lo", "kty": "EC", "crv": "P-256", "x": "X-o1qLwDcOf0LwyjsI3ZxVnu_ATLjTJYsh60DyYFTxk", "y": "3dOoMO1eT7DtCOP5ZzhB3kKEEEDwn_I-V7FhQlZeUMk"}),
                "sig1=:LKQIC1g/3XxTQJX9tw3J53T6DWxXkwseutnU6MhYIA5opBZRNIbg2xL58cnFIkk61hnguENWfUU4wWFD1K4tbw==:",
            ),
            (
                Algorithm::Es384,
                json!({"kid": "Y8toQw9BnyWr763w4noHkIgHC9OHWAQ0i3rMUa8CZ2I", "kty": "EC", "crv": "P-384", "x": "tFXFE9ATmYYl3tilTlWZq1K_mj3IfHIYE6XhFhGR5PWJnUsCMKKZqMrWslrksRiO", "y": "gfLatF_WFThsWeCVQiNR6DUeiyi4QB0Sj7XiPvRfaVvrTKxBHxC_h_DymN5qSFAi"}),
                "sig1=:xJ5nAaJGwOhOXqQjTW+S6wKA234ZkD0ApOKLa+caZmG8rHAFV7GKzL6BW7NWieZmQSA92B3qMpPQ9dQJ7lvj7+ND3+oRI4EENIHz5qpMD+2nvsZR6p+u7V4f69HkVLlN:",
            ),
            (
                Algorithm::Ed25519,
                json!({"kid": "F_ddYVwVxXzjdfiL_4DSVnDm3pLfyfOSEMnvqdIGSUs", "kty": "OKP", "crv": "Ed25519", "x": "XejN63g8V2xDl58HEwZRwIxZnCmmaxnctBdjju58mg4"}),
                "sig1=:wmHm0YS4uEIGhibLvXnvnkPxVOwk5gEHRB3zvQFcrtqvyXfARASr5/dYdVxASzrycFufgXLaRCkAmt8a6KsECA==:",
            ),
        ] {
            let kid = jwk["kid"].as_str().unwrap();
            let components = r#"("@method" "@authority" "@path" "@query" "ucp-agent" "content-digest" "content-type" "idempotency-key" "authorization")"#;
            let headers = headers(&[
                (
                    "ucp-agent",
                    "profile=\"https://agent.example/.well-known/ucp\"",
                ),
                (
                    "content-digest",
                    "sha-256=:XgYRKvdjdgkc7TWGb5B73UbJnCwa4HVWEGbL4H/nJhI=:",
                ),
                ("content-type", "application/json"),
                ("idempotency-key", "0190a5b0-7f7e-7c2b-8a51-3a2f3c1d9e10"),
                ("authorization", "Bearer mF_9.B5f-4.1JqM"),
                (
                    "signature-input",
                    &format!(
                        "sig1={components};keyid=\"{kid}\";created=1700000000;expires=1700000300;nonce=\"n-1\""
                    ),
                ),
                ("signature", signature),
            ]);
            for provider in providers() {
                let keys = Keys::parse(&json!([jwk]), provider).unwrap();
                let key = keys.get(kid).unwrap();
                for (path, outcome) in [
                    ("/offers/off_1/accept", Ok(algorithm)),
                    ("/offers/off_2/accept", Err(SignatureError::Invalid)),
                ] {
                    let message =
                        Message::request(&Method::POST, &authority, path, query, &headers);
                    let verified = Presented::read(&headers, "sig1")
                        .unwrap()
                        .verify(&message, key, &policy, Some(&body), NOW + 30)
                        .map(|covered| covered.algorithm());
                    assert_eq!(verified, outcome);
                }
            }
        }
    }

    #[test]
    fn a_signature_of_another_length_never_verifies() {
        let policy = Policy::new(Coverage::new());
        let authority = https("example.com");
        for provider in providers() {
            let key = SigningKey::generate_with(provider).unwrap();
            let params = format!(";created={NOW};expires={NOW};keyid=\"{}\"", key.kid());
            for length in [0, 1, 63, 65, 70, 72, 96, 1000] {
                let mut headers = by_hand(&key, &params);
                let bytes = base64::Engine::encode(
                    &base64::engine::general_purpose::STANDARD,
                    vec![0x30; length],
                );
                headers.insert(SIGNATURE, format!("sig1=:{bytes}:").parse().unwrap());
                let message = Message::request(&Method::GET, &authority, "/", None, &headers);
                let refused = Presented::read(&headers, "sig1")
                    .unwrap()
                    .verify(&message, key.public_key(), &policy, None, NOW)
                    .unwrap_err();
                assert_eq!(refused, SignatureError::Invalid);
            }
        }
    }
}

mod signing {
    use super::*;

    #[test]
    fn what_is_signed_has_the_expected_form() {
        let key = SigningKey::generate().unwrap();
        let authority = https("example.com");
        let headers = HeaderMap::new();
        let message = Message::request(&Method::GET, &authority, "/", None, &headers);
        let params = Params::new(1).expires(2).nonce("n\"\\").tag("t");
        let components = [Component::Method, Component::Path];
        let signed = signature::sign(&message, &components, &params, "sig1", &key).unwrap();
        assert_eq!(
            signed.signature_input,
            format!(
                r#"sig1=("@method" "@path");created=1;expires=2;keyid="{}";nonce="n\"\\";tag="t""#,
                key.kid()
            )
        );
        let mut headers = headers;
        signed.append_to(&mut headers);
        assert_eq!(
            Presented::read(&headers, "sig1").unwrap().nonce(),
            Some("n\"\\")
        );
    }

    #[test]
    fn a_response_can_be_signed_and_verified() {
        let policy = Policy::new(
            Coverage::new()
                .always([Component::Status])
                .with_body([CONTENT_DIGEST.into(), header::CONTENT_TYPE.into()]),
        )
        .freshness(Freshness {
            require_expires: false,
            ..Freshness::default()
        });
        let body = sha256(b"{}");
        for provider in providers() {
            let key = SigningKey::generate_with(provider).unwrap();
            let mut headers = headers(&[("content-type", "application/json")]);
            headers.insert(CONTENT_DIGEST, content_digest(&body));
            let signed = signature::sign(
                &Message::response(StatusCode::CREATED, &headers),
                &[
                    Component::Status,
                    component("content-digest"),
                    component("content-type"),
                ],
                &Params::new(NOW),
                "sig1",
                &key,
            )
            .unwrap();
            signed.append_to(&mut headers);
            for (status, outcome) in [
                (StatusCode::CREATED, Ok(())),
                (StatusCode::OK, Err(SignatureError::Invalid)),
            ] {
                let verified = Presented::read(&headers, "sig1").unwrap().verify(
                    &Message::response(status, &headers),
                    key.public_key(),
                    &policy,
                    Some(&body),
                    NOW,
                );
                assert_eq!(verified.map(drop), outcome);
            }
        }
    }

    #[test]
    fn what_has_no_form_on_the_wire_is_not_signed() {
        let key = SigningKey::generate().unwrap();
        let authority = https("example.com");
        let headers = headers(&[("x-latin", "\u{e9}"), ("x-dict", "a=1")]);
        let message = Message::request(&Method::GET, &authority, "/", None, &headers);
        let sign = |components: &[Component], params: &Params, label: &str| {
            signature::sign(&message, components, params, label, &key).map(drop)
        };
        let good = Params::new(1);
        let member = |key: &str| Component::FieldKey(HeaderName::from_static("x-dict"), key.into());
        assert_eq!(sign(&[member("a")], &good, "sig1"), Ok(()));
        for label in ["", "Sig1", "1", "sig 1", "sig\u{e9}", "a=b"] {
            assert_eq!(
                sign(&[], &good, label),
                Err(SignError::Unwritable),
                "{label}"
            );
        }
        for params in [
            Params::new(1_000_000_000_000_000),
            Params::new(-1_000_000_000_000_000),
            Params::new(1).expires(i64::MAX),
            Params::new(1).nonce("\u{e9}"),
            Params::new(1).tag("a\nb"),
        ] {
            assert_eq!(sign(&[], &params, "sig1"), Err(SignError::Unwritable));
        }
        for component in [member("\u{e9}"), Component::QueryParam("\n".into())] {
            assert_eq!(
                sign(&[component], &good, "sig1"),
                Err(SignError::Unwritable)
            );
        }
        for component in [
            Component::Status,
            member("b"),
            component("x-latin"),
            component("x-absent"),
            Component::QueryParam("a".into()),
        ] {
            let refused = sign(&[Component::Method, component.clone()], &good, "sig1");
            assert_eq!(refused, Err(SignError::NoValue(component)));
        }
        let twice = [Component::Method, Component::Path, Component::Method];
        let refused = Err(SignError::RepeatedComponent(Component::Method));
        assert_eq!(sign(&twice, &good, "sig1"), refused);
    }

    #[test]
    fn a_component_is_written_as_its_identifier() {
        for (component, text) in [
            (Component::Method, r#""@method""#),
            (component("content-digest"), r#""content-digest""#),
            (
                Component::FieldKey(HeaderName::from_static("signature-agent"), "sig1".into()),
                r#""signature-agent";key="sig1""#,
            ),
            (
                Component::QueryParam("a\"b".into()),
                r#""@query-param";name="a\"b""#,
            ),
        ] {
            assert_eq!(component.to_string(), text);
        }
        for wrong in [
            "",
            "@",
            "@query-param",
            "@signature-params",
            "Content-Type",
            "a b",
            "\u{e9}",
        ] {
            assert!(wrong.parse::<Component>().is_err(), "{wrong}");
        }
    }
}

mod properties {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    /// Requests that HTTP allows, and what of them is covered.
    #[derive(Clone, Debug)]
    struct Sent {
        method: Method,
        path: String,
        query: Option<String>,
        headers: HeaderMap,
        components: Vec<Component>,
        body: Vec<u8>,
    }

    fn sent() -> impl Strategy<Value = Sent> {
        let method = prop::sample::select(vec![Method::GET, Method::POST, Method::DELETE]);
        let line = ("x-[a-z]{1,3}", "[ -~]{0,30}", any::<bool>());
        (
            method,
            "/[!-\"$->@-~]{0,40}",
            option::of("[!-~]{0,40}"),
            vec(line, 0..12),
            vec(any::<u8>(), 0..200),
            any::<prop::sample::Index>(),
        )
            .prop_map(|(method, path, query, lines, body, rotation)| {
                let mut headers = HeaderMap::new();
                let mut components = vec![Component::Method, Component::Authority, Component::Path];
                if query.is_some() {
                    components.push(Component::Query);
                }
                for (name, value, covered) in lines {
                    let name: HeaderName = name.parse().unwrap();
                    if covered && !components.contains(&name.clone().into()) {
                        components.push(name.clone().into());
                    }
                    headers.append(name, value.parse().unwrap());
                }
                if !body.is_empty() {
                    headers.insert(CONTENT_DIGEST, content_digest(&sha256(&body)));
                    components.push(CONTENT_DIGEST.into());
                }
                let by = rotation.index(components.len());
                components.rotate_left(by);
                Sent {
                    method,
                    path,
                    query,
                    headers,
                    components,
                    body,
                }
            })
    }

    fn policy() -> Policy {
        Policy::new(
            Coverage::new()
                .always([Component::Method, Component::Authority, Component::Path])
                .with_query([Component::Query])
                .with_body([CONTENT_DIGEST.into()]),
        )
    }

    fn verify(sent: &Sent, headers: &HeaderMap, key: &PublicKey) -> Result<(), SignatureError> {
        let authority = https("example.com");
        let message = Message::request(
            &sent.method,
            &authority,
            &sent.path,
            sent.query.as_deref(),
            headers,
        );
        let body = (!sent.body.is_empty()).then(|| sha256(&sent.body));
        Presented::read(headers, "sig1")?
            .verify(&message, key, &policy(), body.as_ref(), NOW)
            .map(drop)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn whatever_is_signed_verifies(sent in sent(), nonce in option::of("[ -~]{0,20}")) {
            let authority = https("example.com");
            for provider in providers() {
                let key = SigningKey::generate_with(provider).unwrap();
                let mut headers = sent.headers.clone();
                let message = Message::request(
                    &sent.method, &authority, &sent.path, sent.query.as_deref(), &headers,
                );
                let mut params = Params::new(NOW).expires(NOW + 1);
                params.nonce.clone_from(&nonce);
                let signed =
                    signature::sign(&message, &sent.components, &params, "sig1", &key).unwrap();
                signed.append_to(&mut headers);
                prop_assert_eq!(verify(&sent, &headers, key.public_key()), Ok(()));

                let other = SigningKey::generate_with(provider).unwrap();
                prop_assert_eq!(
                    verify(&sent, &headers, other.public_key()),
                    Err(SignatureError::OtherKey)
                );
                let altered = Sent { path: format!("{}x", sent.path), ..sent.clone() };
                prop_assert_eq!(
                    verify(&altered, &headers, key.public_key()),
                    Err(SignatureError::Invalid)
                );
            }
        }

        #[test]
        fn nothing_that_can_be_sent_does_worse_than_be_refused(
            input in vec(any::<u8>(), 0..300),
            signature in vec(any::<u8>(), 0..300),
            digest in vec(any::<u8>(), 0..100),
            target in "\\PC{0,60}",
        ) {
            let key = SigningKey::generate().unwrap();
            let mut headers = HeaderMap::new();
            for (name, bytes) in [
                (SIGNATURE_INPUT, input), (SIGNATURE, signature), (CONTENT_DIGEST, digest),
            ] {
                if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                    headers.insert(name, value);
                }
            }
            let sent = Sent {
                method: Method::POST,
                path: target.clone(),
                query: Some(target),
                headers: HeaderMap::new(),
                components: Vec::new(),
                body: vec![1],
            };
            prop_assert!(verify(&sent, &headers, key.public_key()).is_err());
        }

        /// Almost right: the grammar's own characters.
        #[test]
        fn nothing_that_looks_like_a_signature_verifies(
            inner in "[\"@a-z;=0-9() ?:,]{0,60}",
            bytes in "[A-Za-z0-9+/=:]{0,90}",
        ) {
            let key = SigningKey::generate().unwrap();
            let headers = headers(&[
                ("signature-input", &format!("sig1=({inner}")),
                ("signature", &format!("sig1=:{bytes}")),
            ]);
            let sent = Sent {
                method: Method::GET,
                path: "/".into(),
                query: None,
                headers: HeaderMap::new(),
                components: Vec::new(),
                body: Vec::new(),
            };
            prop_assert!(verify(&sent, &headers, key.public_key()).is_err());
        }
    }
}
