//! Keys, digests, canonical JSON and JWS: what HTTP signatures are built on.
//!
//! Everything that touches a key runs against every provider in the build.

#![allow(clippy::unwrap_used)]

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tower_rctp::wire::{
    crypto::{self, Algorithm, Provider},
    digest::{self, DigestError, check_content_digest, content_digest, sha256},
    jcs::{self, JcsError},
    jwk::{Keys, KeysError, PemError, PublicKey, SigningKey, Thumbprint, Unusable},
    jws::{self, Compact, JwsError},
};

/// Keys, and signatures over the bytes `sample`, made with Python's `cryptography` 48.0 (OpenSSL); the
/// thumbprints were computed with Python's `hashlib` over the canonical members.
mod made_elsewhere {
    pub(super) const P256_X: &str = "Ctq9qnh2MCuyAQioKZpMlnEtRmo8oyRC9tjcF7-lopQ";
    pub(super) const P256_Y: &str = "xkk6mjQ5uCt2gr1JDNU_cE7QmghK8TjT1_jsrmRuBlY";
    pub(super) const P256_KID: &str = "eZDUW3xpJ4YbiVgR6cYxvlT3OqG29SWa6E5MWldLHuQ";
    pub(super) const P256_RAW: &str = concat!(
        "odoEi-bnk0GMalVsYtnCrTGJZRwjdQHGYmP7T4okNK314exl39IYy8G2Zak4LFm4",
        "jraZtWZ62tY0rQPt48ZpkA"
    );
    pub(super) const P256_DER: &str = concat!(
        "MEYCIQCh2gSL5ueTQYxqVWxi2cKtMYllHCN1AcZiY_tPiiQ0rQIhAPXh7GXf0hjL",
        "wbZlqTgsWbiOtpm1Znra1jStA-3jxmmQ"
    );
    pub(super) const P256_PKCS8: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgH1UF5yUTiEiAmFH1
haY8xKz5GK7SEzfqfQiHbOcVs5GhRANCAAQK2r2qeHYwK7IBCKgpmkyWcS1Gajyj
JEL22NwXv6WilMZJOpo0ObgrdoK9SQzVP3BO0JoISvE409f47K5kbgZW
-----END PRIVATE KEY-----
";
    pub(super) const P256_SEC1: &str = "\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIB9VBeclE4hIgJhR9YWmPMSs+Riu0hM36n0Ih2znFbORoAoGCCqGSM49
AwEHoUQDQgAECtq9qnh2MCuyAQioKZpMlnEtRmo8oyRC9tjcF7+lopTGSTqaNDm4
K3aCvUkM1T9wTtCaCErxONPX+OyuZG4GVg==
-----END EC PRIVATE KEY-----
";
    pub(super) const P384_X: &str =
        "6oDtFt6UtD_t__WbwXrei7Jbre5gzL9pmnSG0EcnoWByyKgbi5OucjOWx9ouGKRH";
    pub(super) const P384_Y: &str =
        "pz0gE9Vc4HLJw2VDWwuY28HNjB9vdmsg9iXiUHhdmb7rUgHJYuKs4iy3vqfDre_1";
    pub(super) const P384_KID: &str = "fFj1qCggkEU_x2E25m5TxkFKqqno47TFAZgJke--hrw";
    pub(super) const P384_RAW: &str = concat!(
        "9WD-VzhwS7hC2tjM-F6vhhgU_dDmWcTRg5Q7-Fy8bG5hAcb-HIIGNf9s9_EJUIab",
        "qSOn-HVD6MFrNHAPJWGn2v4f0e_b5qmlekh8SY1hkEeRujg4s2Yxlw2XQCd8RFb1"
    );
    pub(super) const P384_PKCS8: &str = "\
-----BEGIN PRIVATE KEY-----
MIG2AgEAMBAGByqGSM49AgEGBSuBBAAiBIGeMIGbAgEBBDBP/vjpF4JCoVspwRyY
GF8mEDOt+gL3wfFlak3Vh1ddVunCwdhp/FUyTfclg5h7j9uhZANiAATqgO0W3pS0
P+3/9ZvBet6Lslut7mDMv2madIbQRyehYHLIqBuLk65yM5bH2i4YpEenPSAT1Vzg
csnDZUNbC5jbwc2MH292ayD2JeJQeF2ZvutSAcli4qziLLe+p8Ot7/U=
-----END PRIVATE KEY-----
";
    /// A P-256 key whose x begins with a zero byte, and the 31 bytes of x without it.
    pub(super) const ZERO_X: &str = "APqAwsxGnhZhTKsg_O3lPmUuGkuePZ6Vdj7t5fMc9dA";
    pub(super) const ZERO_Y: &str = "jpuCdR8X07RBbZOGopTVLQaPWkxmcGs19Cpz7G8pDS8";
    pub(super) const ZERO_KID: &str = "YVACFE52KqWjP3-GaTq0qYQYYHTjiVRalgTlQ08qzL4";
    pub(super) const ZERO_X_SHORT: &str = "-oDCzEaeFmFMqyD87eU-ZS4aS549npV2Pu3l8xz10A";
}
use made_elsewhere::*;

/// The Ed25519 key of RFC 8037 appendix A, with the thumbprint of its A.3.
const RFC8037_X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
const RFC8037_KID: &str = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k";

fn providers() -> impl Iterator<Item = &'static dyn Provider> {
    crypto::providers().iter().copied()
}

fn p256() -> Value {
    json!({"kid": P256_KID, "kty": "EC", "crv": "P-256", "x": P256_X, "y": P256_Y})
}

fn p384() -> Value {
    json!({"kid": P384_KID, "kty": "EC", "crv": "P-384", "x": P384_X, "y": P384_Y})
}

fn ed25519() -> Value {
    json!({"kid": RFC8037_KID, "kty": "OKP", "crv": "Ed25519", "x": RFC8037_X})
}

/// A copy of a key with one member set.
fn with(mut jwk: Value, name: &str, value: impl Into<Value>) -> Value {
    jwk[name] = value.into();
    jwk
}

/// A copy of a key without one member.
fn without(mut jwk: Value, name: &str) -> Value {
    jwk.as_object_mut().unwrap().remove(name);
    jwk
}

fn bytes(base64url: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(base64url).unwrap()
}

mod thumbprints {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_thumbprint() {
        for provider in providers() {
            for (jwk, kid, algorithm) in [
                (p256(), P256_KID, Algorithm::Es256),
                (p384(), P384_KID, Algorithm::Es384),
                (ed25519(), RFC8037_KID, Algorithm::Ed25519),
            ] {
                let keys = Keys::parse(&json!([jwk]), provider).unwrap();
                let key = keys.get(kid).unwrap();
                assert_eq!(key.kid().as_str(), kid);
                assert_eq!(key.algorithm(), algorithm);
            }
        }
    }

    #[test]
    fn a_coordinate_keeps_its_leading_zero() {
        let jwk = json!({"kid": ZERO_KID, "kty": "EC", "crv": "P-256", "x": ZERO_X, "y": ZERO_Y});
        for provider in providers() {
            assert!(PublicKey::from_jwk_with(&jwk, provider).is_ok());
            let short = with(jwk.clone(), "x", ZERO_X_SHORT);
            assert_eq!(
                PublicKey::from_jwk_with(&short, provider).unwrap_err(),
                Unusable::Point
            );
        }
    }

    #[test]
    fn a_thumbprint_is_read_strictly() {
        let kid: Thumbprint = P256_KID.parse().unwrap();
        assert_eq!(kid.to_string(), P256_KID);
        assert_eq!(serde_json::to_value(&kid).unwrap(), json!(P256_KID));
        assert_eq!(
            serde_json::from_value::<Thumbprint>(json!(P256_KID)).unwrap(),
            kid
        );
        let (start, _) = P256_KID.split_at(42);
        for wrong in [
            String::new(),
            start.to_owned(),
            format!("{P256_KID}Q"),
            format!("{P256_KID}="),
            // Stray bits after the last byte.
            format!("{start}R"),
            P256_KID.replace('W', "+"),
            format!("{start}\u{e9}"),
            format!(" {P256_KID}"),
        ] {
            assert!(wrong.parse::<Thumbprint>().is_err(), "{wrong}");
            assert!(serde_json::from_value::<Thumbprint>(json!(wrong)).is_err());
        }
    }
}

mod key_sets {
    use super::*;

    #[test]
    fn a_key_that_cannot_be_used_leaves_the_others_usable() {
        let cases = [
            (with(p256(), "kid", "key-1"), Unusable::KidIsNotThumbprint),
            (with(p256(), "kid", ZERO_KID), Unusable::KidIsNotThumbprint),
            (without(p256(), "kid"), Unusable::NoKid),
            (with(p256(), "kid", 7), Unusable::NoKid),
            (with(p256(), "use", "enc"), Unusable::Use),
            (with(p256(), "use", "tls"), Unusable::Use),
            (with(p256(), "use", json!(["sig"])), Unusable::Use),
            (with(p256(), "use", json!(null)), Unusable::Use),
            (with(p256(), "key_ops", json!(["sign"])), Unusable::KeyOps),
            (with(p256(), "key_ops", json!([])), Unusable::KeyOps),
            (with(p256(), "key_ops", "verify"), Unusable::KeyOps),
            (
                json!({"kid": "rsa", "kty": "RSA", "n": "AQAB", "e": "AQAB"}),
                Unusable::Unsupported,
            ),
            (json!({"kid": "oct", "kty": "oct"}), Unusable::Unsupported),
            (with(p256(), "kty", "OKP"), Unusable::Unsupported),
            (with(p256(), "crv", "secp256k1"), Unusable::Unsupported),
            (with(p256(), "crv", "P-521"), Unusable::Unsupported),
            (with(p256(), "crv", "Ed25519"), Unusable::Unsupported),
            (with(ed25519(), "crv", "X25519"), Unusable::Unsupported),
            (without(p256(), "crv"), Unusable::Unsupported),
            (without(p256(), "kty"), Unusable::Unsupported),
            (with(p256(), "alg", "ES384"), Unusable::Alg),
            (with(p256(), "alg", "ECDH-ES"), Unusable::Alg),
            (with(ed25519(), "alg", "ES256"), Unusable::Alg),
            (with(p256(), "alg", 256), Unusable::Alg),
            (without(p256(), "x"), Unusable::Point),
            (without(p256(), "y"), Unusable::Point),
            (with(p256(), "x", 1), Unusable::Point),
            (with(p256(), "x", format!("{P256_X}=")), Unusable::Point),
            (
                with(p256(), "x", P256_X.replace("opQ", "opR")),
                Unusable::Point,
            ),
            (with(p256(), "x", P256_X.replace('-', "+")), Unusable::Point),
            (with(p256(), "x", "AAAA"), Unusable::Point),
            (with(p256(), "x", ""), Unusable::Point),
            (with(p384(), "crv", "P-256"), Unusable::Point),
            (with(p256(), "crv", "P-384"), Unusable::Point),
            (with(ed25519(), "x", "AAAA"), Unusable::Point),
            (json!("key"), Unusable::NotAnObject),
            (json!(null), Unusable::NotAnObject),
            (json!([p256()]), Unusable::NotAnObject),
        ];
        for provider in providers() {
            for (jwk, reason) in &cases {
                // The good key is of another curve, since some of the bad ones keep their kid.
                let good =
                    json!({"kid": ZERO_KID, "kty": "EC", "crv": "P-256", "x": ZERO_X, "y": ZERO_Y});
                let good = if jwk.get("kid") == good.get("kid") {
                    p384()
                } else {
                    good
                };
                let keys = Keys::parse(&json!([jwk, good]), provider).unwrap();
                let usable: Vec<_> = keys.iter().map(|key| key.kid().as_str()).collect();
                assert_eq!(usable, [good["kid"].as_str().unwrap()], "{jwk}");
                let named = jwk.get("kid").and_then(Value::as_str).unwrap_or("keys[0]");
                assert_eq!(
                    keys.unusable().collect::<Vec<_>>(),
                    [(named, *reason)],
                    "{jwk}"
                );
            }
        }
    }

    /// The `kid` is right for these coordinates, so that only the point itself can be at fault.
    #[test]
    fn a_point_off_the_curve_is_unusable() {
        let zero = "A".repeat(43);
        for (crv, x, y) in [
            ("P-256", P256_X, P256_X),
            ("P-256", P256_X, &zero),
            ("P-256", &zero, &zero),
            // Greater than the field's prime.
            (
                "P-256",
                "__________________________________________8",
                P256_Y,
            ),
            ("P-384", P384_X, P384_X),
        ] {
            let members = format!(r#"{{"crv":"{crv}","kty":"EC","x":"{x}","y":"{y}"}}"#);
            let kid = URL_SAFE_NO_PAD.encode(sha256(members.as_bytes()));
            let jwk = json!({"kid": kid, "kty": "EC", "crv": crv, "x": x, "y": y});
            for provider in providers() {
                assert_eq!(
                    PublicKey::from_jwk_with(&jwk, provider).unwrap_err(),
                    Unusable::Point,
                    "{jwk}"
                );
            }
        }
    }

    /// Under such a key anyone can make signatures. That these are the points of order 1, 2, 4 and 8 was
    /// checked with a few lines of Python arithmetic.
    #[test]
    fn an_ed25519_key_of_small_order_is_refused() {
        let mut points: Vec<[u8; 32]> = Vec::new();
        for low in [0, 1] {
            let mut point = [0; 32];
            point[0] = low;
            points.push(point);
        }
        for low in [0xec, 0xed, 0xee] {
            let mut point = [0xff; 32];
            (point[0], point[31]) = (low, 0x7f);
            points.push(point);
        }
        for order_8 in [
            "JuiVj8KyJ7BFw_SJ8u-Y8NXfrAXTxjM5sTgCiG1T_AU",
            "xxdqcD1N2E-6PAt2DRBnDyogU_osOczGTsf9d5KsA3o",
        ] {
            points.push(bytes(order_8).try_into().unwrap());
        }
        for provider in providers() {
            for mut point in points.clone() {
                for _sign in 0..2 {
                    assert!(provider.verifying_key(Algorithm::Ed25519, &point).is_err());
                    point[31] ^= 0x80;
                }
            }
        }
    }

    #[test]
    fn only_uncompressed_points_are_read() {
        let point = [&[4], &bytes(P256_X)[..], &bytes(P256_Y)].concat();
        let compressed = [&[2], &bytes(P256_X)[..]].concat();
        let hybrid = [&[6], &point[1..]].concat();
        for provider in providers() {
            assert!(provider.verifying_key(Algorithm::Es256, &point).is_ok());
            for wrong in [
                &compressed[..],
                &hybrid,
                &point[..64],
                &point[1..],
                &[],
                &[0],
            ] {
                assert!(provider.verifying_key(Algorithm::Es256, wrong).is_err());
                assert!(provider.verifying_key(Algorithm::Es384, wrong).is_err());
            }
            assert!(provider.verifying_key(Algorithm::Es384, &point).is_err());
            for wrong in [&point[..31], &point[..33], &[]] {
                assert!(provider.verifying_key(Algorithm::Ed25519, wrong).is_err());
            }
        }
    }

    #[test]
    fn a_key_named_twice_is_unusable_both_times() {
        for provider in providers() {
            let twice = json!([p256(), with(p256(), "use", "sig"), p384()]);
            let keys = Keys::parse(&twice, provider).unwrap();
            assert!(keys.get(P256_KID).is_none());
            assert!(keys.get(P384_KID).is_some());
            assert_eq!(
                keys.unusable().collect::<Vec<_>>(),
                [
                    (P256_KID, Unusable::Duplicate),
                    (P256_KID, Unusable::Duplicate)
                ]
            );
        }
    }

    #[test]
    fn private_material_anywhere_condemns_the_whole_set() {
        for provider in providers() {
            for member in ["d", "p", "q", "dp", "dq", "qi", "oth", "k"] {
                for jwk in [p256(), ed25519(), json!({"kty": "unknown"})] {
                    for value in [json!("AQ"), json!(0), json!({}), json!(null)] {
                        let jwk = with(jwk.clone(), member, value);
                        assert_eq!(
                            Keys::parse(&json!([p384(), jwk]), provider).unwrap_err(),
                            KeysError::Private
                        );
                        assert_eq!(
                            PublicKey::from_jwk_with(&jwk, provider).unwrap_err(),
                            Unusable::Private
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_set_is_an_array() {
        for provider in providers() {
            for wrong in [json!({}), json!({"keys": []}), json!("x"), json!(null)] {
                assert_eq!(
                    Keys::parse(&wrong, provider).unwrap_err(),
                    KeysError::NotAnArray
                );
            }
            assert_eq!(Keys::parse(&json!([]), provider).unwrap().iter().count(), 0);
        }
    }

    #[test]
    fn members_that_ask_for_what_we_do_anyway_are_fine() {
        for provider in providers() {
            for jwk in [
                with(p256(), "use", "sig"),
                with(p256(), "key_ops", json!(["verify"])),
                with(p256(), "key_ops", json!(["sign", "verify"])),
                with(p256(), "alg", "ES256"),
                with(p384(), "alg", "ES384"),
                with(ed25519(), "alg", "EdDSA"),
                with(ed25519(), "alg", "Ed25519"),
                with(p256(), "x5c", json!(["unread"])),
                with(p256(), "exp", 1),
            ] {
                assert!(PublicKey::from_jwk_with(&jwk, provider).is_ok(), "{jwk}");
            }
        }
    }
}

mod raw_signatures {
    use super::*;

    #[test]
    fn those_of_another_library_verify() {
        for provider in providers() {
            for (jwk, signature) in [(p256(), P256_RAW), (p384(), P384_RAW)] {
                let key = PublicKey::from_jwk_with(&jwk, provider).unwrap();
                let signature = bytes(signature);
                assert!(key.verify(b"sample", &signature).is_ok());
                assert!(key.verify(b"samplf", &signature).is_err());
                assert!(key.verify(b"", &signature).is_err());
            }
        }
    }

    #[test]
    fn no_other_form_verifies() {
        let raw = bytes(P256_RAW);
        let (r, s) = raw.split_at(32);
        let zero = &[0; 32];
        let wrong = [
            ("DER", bytes(P256_DER)),
            ("empty", vec![]),
            ("one byte short", raw[..63].to_vec()),
            ("one byte long", [&raw[..], &[0]].concat()),
            ("r only", r.to_vec()),
            ("r is zero", [zero, s].concat()),
            ("s is zero", [r, zero].concat()),
            ("both are zero", vec![0; 64]),
            ("r is beyond the order", [&[0xff; 32], s].concat()),
            ("r and s are exchanged", [s, r].concat()),
        ];
        for provider in providers() {
            let key = PublicKey::from_jwk_with(&p256(), provider).unwrap();
            for (what, signature) in &wrong {
                assert!(key.verify(b"sample", signature).is_err(), "{what}");
            }
        }
    }

    #[test]
    fn every_bit_counts() {
        let raw = bytes(P256_RAW);
        for provider in providers() {
            let key = PublicKey::from_jwk_with(&p256(), provider).unwrap();
            for bit in 0..raw.len() * 8 {
                let mut altered = raw.clone();
                altered[bit / 8] ^= 1 << (bit % 8);
                assert!(key.verify(b"sample", &altered).is_err(), "bit {bit}");
            }
        }
    }
}

mod signing_keys {
    use super::*;

    #[test]
    fn what_one_provider_signs_every_provider_verifies() {
        for signer in providers() {
            let key = SigningKey::generate_with(signer).unwrap();
            let signature = key.sign(b"message").unwrap();
            assert!(key.public_key().verify(b"message", &signature).is_ok());
            for verifier in providers() {
                let keys = Keys::parse(&json!([key.public_jwk()]), verifier).unwrap();
                let public = keys.get(key.kid().as_str()).unwrap();
                assert!(public.verify(b"message", &signature).is_ok());
                assert!(public.verify(b"massage", &signature).is_err());
            }
        }
    }

    #[test]
    fn a_key_survives_pem_across_providers() {
        for writer in providers() {
            let key = SigningKey::generate_with(writer).unwrap();
            let pem = key.to_pkcs8_pem().unwrap();
            for reader in providers() {
                let read = SigningKey::from_pkcs8_pem_with(&pem, reader).unwrap();
                assert_eq!(read.kid(), key.kid());
                let signature = read.sign(b"message").unwrap();
                assert!(key.public_key().verify(b"message", &signature).is_ok());
            }
        }
    }

    #[test]
    fn a_key_made_elsewhere_loads() {
        for provider in providers() {
            let key = SigningKey::from_pkcs8_pem_with(P256_PKCS8, provider).unwrap();
            assert_eq!(key.kid().as_str(), P256_KID);
            let published = with(with(p256(), "use", "sig"), "alg", "ES256");
            assert_eq!(key.public_jwk(), published);
        }
    }

    #[test]
    fn other_documents_are_refused() {
        let truncated = "-----BEGIN PRIVATE KEY-----\nMIGHAgEA\n-----END PRIVATE KEY-----\n";
        for provider in providers() {
            for (document, why) in [
                ("", PemError::NotPem),
                ("not a key", PemError::NotPem),
                (P256_SEC1, PemError::NotPkcs8),
                (P384_PKCS8, PemError::NotP256),
                (truncated, PemError::NotP256),
            ] {
                let refused = SigningKey::from_pkcs8_pem_with(document, provider).unwrap_err();
                assert_eq!(refused, why, "{document}");
            }
        }
    }

    #[test]
    fn debug_output_shows_the_kid_alone() {
        for provider in providers() {
            let key = SigningKey::from_pkcs8_pem_with(P256_PKCS8, provider).unwrap();
            assert_eq!(
                format!("{key:?}"),
                format!("SigningKey {{ kid: {P256_KID}, .. }}")
            );
        }
    }

    #[test]
    fn keys_can_be_shared_between_threads() {
        fn shared<T: Clone + Send + Sync + 'static>() {}
        shared::<SigningKey>();
        shared::<PublicKey>();
        shared::<Keys>();
    }
}

mod digests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            let line = HeaderValue::from_bytes(line.as_bytes()).unwrap();
            headers.append(digest::CONTENT_DIGEST, line);
        }
        headers
    }

    /// RFC 9530 appendix B.1, whose body ends with a line feed.
    const BODY: &[u8] = b"{\"hello\": \"world\"}\n";
    const VALUE: &str = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:";

    #[test]
    fn the_examples_of_rfc_9530_hold() {
        for (body, value) in [
            (BODY, VALUE),
            // The same without the line feed, and no bytes at all; hashed with Python.
            (
                BODY.trim_ascii_end(),
                "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:",
            ),
            (
                b"",
                "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
            ),
        ] {
            assert_eq!(content_digest(&sha256(body)), value);
            assert_eq!(
                check_content_digest(&headers(&[value]), &sha256(body)),
                Ok(())
            );
        }
    }

    #[test]
    fn the_field_is_read_as_a_dictionary() {
        let hash = sha256(BODY);
        let other = "sha-512=:YMAam51Jz/jOATT6/zvHrLVgOYTGFy1d6GJiOHTohq4yP+pgk4vf2aCsyRZOtw8MjkM7iw7yZ/WkppmM44T3qg==:";
        for accepted in [
            format!("{VALUE}, {other}"),
            format!("{other},{VALUE}"),
            format!("  {VALUE}  "),
            format!("{VALUE};note=\"x\""),
            format!("unixsum=:AAA=:, {VALUE}"),
        ] {
            assert_eq!(
                check_content_digest(&headers(&[&accepted]), &hash),
                Ok(()),
                "{accepted}"
            );
        }
        for (refused, why) in [
            (other.to_owned(), DigestError::NoSha256),
            (String::new(), DigestError::NoSha256),
            (VALUE.replace("sha-256", "sha-255"), DigestError::NoSha256),
            (VALUE.replace("RK", "RJ"), DigestError::Mismatch),
            (VALUE.replace("=:RK/0qy18", "=:"), DigestError::Mismatch),
            ("sha-256=::".to_owned(), DigestError::Mismatch),
            (format!("{VALUE}, {VALUE}"), DigestError::Repeated),
            (
                format!("{}, {VALUE}", VALUE.replace("RK", "RJ")),
                DigestError::Repeated,
            ),
            (VALUE.replace("sha-256", "SHA-256"), DigestError::Malformed),
            (VALUE.replace(':', "\""), DigestError::Malformed),
            (VALUE.replace("RK", "R_"), DigestError::Malformed),
            ("sha-256=RK".to_owned(), DigestError::Malformed),
            ("sha-256".to_owned(), DigestError::Malformed),
            ("sha-256=(:RKRK:)".to_owned(), DigestError::Malformed),
            (format!("{VALUE}, x=1"), DigestError::Malformed),
            (format!("{VALUE},"), DigestError::Malformed),
            (format!("{VALUE} {VALUE}"), DigestError::Malformed),
            (format!("{VALUE}\u{e9}"), DigestError::Malformed),
        ] {
            assert_eq!(
                check_content_digest(&headers(&[&refused]), &hash),
                Err(why),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_field_stands_in_one_line() {
        let hash = sha256(BODY);
        for (lines, why) in [
            (&[][..], DigestError::Missing),
            (&[VALUE, VALUE], DigestError::Repeated),
            (&["sha-512=:AA==:", VALUE], DigestError::Repeated),
        ] {
            assert_eq!(check_content_digest(&headers(lines), &hash), Err(why));
        }
    }
}

mod canonical_json {
    use super::*;

    fn canonical<T: serde::Serialize>(value: &T) -> String {
        String::from_utf8(jcs::canonical(value).unwrap()).unwrap()
    }

    #[test]
    fn the_example_of_rfc_8785_section_3_2_2_holds() {
        let input: Value = serde_json::from_str(
            r#"{
                "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
                "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
                "literals": [null, true, false]
            }"#,
        )
        .unwrap();
        let expected = concat!(
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
            r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        assert_eq!(canonical(&input), expected);
    }

    #[test]
    fn members_are_sorted_by_utf_16_as_in_section_3_2_3() {
        let text = canonical(&json!({
            "\u{20ac}": "Euro Sign",
            "\r": "Carriage Return",
            "\u{fb33}": "Hebrew Letter Dalet With Dagesh",
            "1": "One",
            "\u{1f600}": "Emoji: Grinning Face",
            "\u{80}": "Control",
            "\u{f6}": "Latin Small Letter O With Diaeresis",
        }));
        let order = [
            "Carriage Return",
            "One",
            "Control",
            "Latin Small Letter O With Diaeresis",
            "Euro Sign",
            "Emoji: Grinning Face",
            "Hebrew Letter Dalet With Dagesh",
        ];
        assert!(
            order.map(|name| text.find(name).unwrap()).is_sorted(),
            "{text}"
        );
    }

    /// The samples of RFC 8785 appendix B, by their IEEE 754 bits.
    #[test]
    fn numbers_come_out_as_in_appendix_b() {
        for (bits, text) in [
            (0x0000_0000_0000_0000_u64, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(canonical(&f64::from_bits(bits)), text, "{bits:x}");
        }
        for infinite in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(jcs::canonical(&infinite), Err(JcsError::NotJson));
        }
    }

    #[test]
    fn an_integer_that_would_change_is_refused() {
        const LIMIT: i64 = (1 << 53) - 1;
        assert_eq!(canonical(&LIMIT), "9007199254740991");
        assert_eq!(canonical(&-LIMIT), "-9007199254740991");
        for beyond in [
            json!(LIMIT + 1),
            json!(-LIMIT - 1),
            json!(u64::MAX),
            json!(i64::MIN),
        ] {
            assert_eq!(jcs::canonical(&beyond), Err(JcsError::InexactInteger));
            let nested = json!({"a": [1, beyond]});
            assert_eq!(jcs::canonical(&nested), Err(JcsError::InexactInteger));
        }
        // Digits in a string are no number.
        assert!(jcs::canonical(&json!({"id": "12345678901234567890"})).is_ok());
    }

    #[test]
    fn a_map_whose_keys_are_no_strings_has_no_form() {
        let map = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert_eq!(jcs::canonical(&map), Err(JcsError::NotJson));
    }
}

mod compact_jws {
    use super::*;

    /// RFC 7515 appendix A.3. Its header has neither `typ` nor `kid`, so `Compact::verify`, which asks for
    /// a `typ`, refuses it; the signature is checked over the parts. The thumbprint is Python's.
    #[test]
    fn the_es256_example_of_rfc_7515_verifies() {
        let signed = concat!(
            "eyJhbGciOiJFUzI1NiJ9",
            ".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt",
            "cGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
        );
        let signature = concat!(
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSA",
            "pmWQxfKTUJqPP3-Kg6NU1Q"
        );
        let jwk = json!({
            "kid": "oKIywvGUpTVTyxMQ3bwIIeQUudfr_CkLMjCE19ECD-U",
            "kty": "EC",
            "crv": "P-256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        });
        let token = format!("{signed}.{signature}");
        for provider in providers() {
            let key = PublicKey::from_jwk_with(&jwk, provider).unwrap();
            assert!(key.verify(signed.as_bytes(), &bytes(signature)).is_ok());
            let compact = Compact::parse(&token).unwrap();
            assert_eq!((compact.typ(), compact.kid()), (None, None));
            assert_eq!(compact.verify("JWT", &key), Err(JwsError::Typ));
        }
    }

    #[test]
    fn what_is_signed_verifies() {
        for provider in providers() {
            let key = SigningKey::generate_with(provider).unwrap();
            for payload in [&b"{}"[..], b"\0\xff", b"x"] {
                let token = jws::sign("example+jwt", payload, &key).unwrap();
                let compact = Compact::parse(&token).unwrap();
                assert_eq!(compact.typ(), Some("example+jwt"));
                assert_eq!(compact.kid(), Some(key.kid().as_str()));
                assert_eq!(compact.verify("example+jwt", key.public_key()), Ok(payload));
            }
        }
    }

    #[test]
    fn a_detached_signature_verifies_over_its_payload_alone() {
        for provider in providers() {
            let key = SigningKey::generate_with(provider).unwrap();
            let public = key.public_key();
            for payload in [&b"{\"a\":1}"[..], b""] {
                let token = jws::sign_detached("example+jws", payload, &key).unwrap();
                assert!(token.contains(".."));
                let compact = Compact::parse(&token).unwrap();
                for (typ, payload, outcome) in [
                    ("example+jws", payload, Ok(())),
                    ("example+jws", b"{\"a\":2}", Err(JwsError::Signature)),
                    ("other+jws", payload, Err(JwsError::Typ)),
                ] {
                    assert_eq!(compact.verify_detached(typ, payload, public), outcome);
                }
                assert_eq!(
                    compact.verify("example+jws", public),
                    Err(JwsError::Detached)
                );
            }
            let token = jws::sign("example+jws", b"{}", &key).unwrap();
            let attached = Compact::parse(&token).unwrap();
            assert_eq!(
                attached.verify_detached("example+jws", b"{}", public),
                Err(JwsError::Attached)
            );
        }
    }

    #[test]
    fn a_header_that_we_do_not_honour_is_refused() {
        let signature = "A".repeat(86);
        for (header, why) in [
            (r#"{"alg":"none"}"#, JwsError::Algorithm),
            (r#"{"alg":"NONE"}"#, JwsError::Algorithm),
            (r#"{"alg":""}"#, JwsError::Algorithm),
            (r#"{"alg":"HS256"}"#, JwsError::Algorithm),
            (r#"{"alg":"es256"}"#, JwsError::Algorithm),
            (r#"{"alg":"ES384"}"#, JwsError::Algorithm),
            (r#"{"alg":"EdDSA"}"#, JwsError::Algorithm),
            (
                r#"{"alg":"ES256","crit":["exp"],"exp":1}"#,
                JwsError::Extension,
            ),
            (r#"{"alg":"ES256","crit":[]}"#, JwsError::Extension),
            (r#"{"alg":"ES256","crit":null}"#, JwsError::Extension),
            (r#"{"alg":"ES256","b64":false}"#, JwsError::Extension),
            (r#"{"alg":"ES256","b64":true}"#, JwsError::Extension),
            (r#"{"alg":"ES256","alg":"none"}"#, JwsError::Malformed),
            (r#"{"alg":"none","alg":"ES256"}"#, JwsError::Malformed),
            (
                r#"{"alg":"ES256","kid":"a","kid":"b"}"#,
                JwsError::Malformed,
            ),
            (
                r#"{"alg":"ES256","typ":"a","\u0074yp":"b"}"#,
                JwsError::Malformed,
            ),
            (r#"{"alg":["ES256"]}"#, JwsError::Malformed),
            (r#"{"alg":null}"#, JwsError::Malformed),
            (r#"{"alg":"ES256","typ":1}"#, JwsError::Malformed),
            (r#"{"typ":"JWT"}"#, JwsError::Malformed),
            (r#"["ES256","JWT","kid",true,true]"#, JwsError::Malformed),
            (r#"{"alg":"ES256"} x"#, JwsError::Malformed),
            ("", JwsError::Malformed),
            ("null", JwsError::Malformed),
        ] {
            let token = format!("{}.e30.{signature}", URL_SAFE_NO_PAD.encode(header));
            assert_eq!(Compact::parse(&token).err(), Some(why), "{header}");
        }
    }

    #[test]
    fn a_token_that_is_not_three_parts_of_strict_base64url_is_refused() {
        let key = SigningKey::generate().unwrap();
        let token = jws::sign("example+jwt", b"{}", &key).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let (header, payload) = signed.split_once('.').unwrap();
        for wrong in [
            String::new(),
            ".".into(),
            "..".into(),
            header.into(),
            signed.into(),
            format!("{token}."),
            format!("{token}.x"),
            format!(".{token}"),
            format!(" {token}"),
            format!("{token}\n"),
            format!("{header}=.{payload}.{signature}"),
            format!("{header}.{payload}=.{signature}"),
            format!("{header}.{payload}.{signature}=="),
            format!("{header}.{payload}+.{signature}"),
            format!("{header}.{payload}\u{e9}.{signature}"),
            // Stray bits in the last character.
            format!("{header}.e31.{signature}"),
        ] {
            assert_eq!(
                Compact::parse(&wrong).err(),
                Some(JwsError::Malformed),
                "{wrong}"
            );
        }
        for wrong in ["", "AAAA", &"A".repeat(88)] {
            let token = format!("{signed}.{wrong}");
            assert_eq!(Compact::parse(&token).err(), Some(JwsError::Signature));
        }
    }

    #[test]
    fn another_key_typ_or_character_never_verifies() {
        for provider in providers() {
            let key = SigningKey::generate_with(provider).unwrap();
            let other = SigningKey::generate_with(provider).unwrap();
            let p384 = PublicKey::from_jwk_with(&p384(), provider).unwrap();
            let token = jws::sign("example+jwt", b"{\"amount\":1}", &key).unwrap();
            let compact = Compact::parse(&token).unwrap();
            for (typ, key, why) in [
                ("EXAMPLE+JWT", key.public_key(), JwsError::Typ),
                ("", key.public_key(), JwsError::Typ),
                ("example+jwt", other.public_key(), JwsError::Kid),
                ("example+jwt", &p384, JwsError::Kid),
            ] {
                assert_eq!(compact.verify(typ, key), Err(why));
            }
            for index in 0..token.len() {
                for replacement in ["A", "B", "-", "."] {
                    if token[index..].starts_with(replacement) {
                        continue;
                    }
                    let mut altered = token.clone();
                    altered.replace_range(index..=index, replacement);
                    let verified = Compact::parse(&altered)
                        .is_ok_and(|jws| jws.verify("example+jwt", key.public_key()).is_ok());
                    assert!(!verified, "{altered}");
                }
            }
        }
    }
}
