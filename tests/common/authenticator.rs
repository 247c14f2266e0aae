//! Passkeys without a person: a browser with an authenticator, which keeps to the rules, and a forger, who makes each part
//! of an answer by hand.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use serde_json::{Map, Value, json};
use tower_rctp::wire::{base64url, digest::sha256, from_base64url, jwk::SigningKey};

#[path = "../../examples/sale/browser.rs"]
mod browser;
pub use self::browser::Browser;

pub const USER_PRESENT: u8 = 0x01;
pub const USER_VERIFIED: u8 = 0x04;
pub const BACKUP_ELIGIBLE: u8 = 0x08;
pub const BACKED_UP: u8 = 0x10;
const ATTESTED: u8 = 0x40;
pub const EXTENSIONS: u8 = 0x80;

/// A passkey whose holder says whatever they like.
#[derive(Clone)]
pub struct Forger {
    pub id: Vec<u8>,
    pub key: SigningKey,
    pub rp_id: String,
}

/// What an answer says; a test changes a part of it.
#[derive(Clone)]
pub struct Said {
    pub kind: Value,
    pub challenge: Value,
    pub origin: Value,
    /// Further members of the client data.
    pub more: Map<String, Value>,
    /// Takes the place of the client data as a whole.
    pub client_data: Option<Vec<u8>>,
    pub rp_id: String,
    pub flags: u8,
    pub counter: u32,
    /// The public key in a registration (COSE); by default the forger's.
    pub cose: Option<Vec<u8>>,
    /// Format and statement in a registration (CBOR).
    pub attestation: Vec<u8>,
    /// Follows the authenticator's data.
    pub trailing: Vec<u8>,
    pub user_handle: Option<Vec<u8>>,
}

impl Forger {
    pub fn new(id: &[u8], rp_id: &str) -> Self {
        Self {
            id: id.into(),
            key: SigningKey::generate().unwrap(),
            rp_id: rp_id.into(),
        }
    }

    /// What an honest browser would say.
    pub fn honest(&self, kind: &str, origin: &str, challenge: &str) -> Said {
        Said {
            kind: kind.into(),
            challenge: challenge.into(),
            origin: origin.into(),
            more: Map::from_iter([("crossOrigin".into(), json!(false))]),
            client_data: None,
            rp_id: self.rp_id.clone(),
            flags: USER_PRESENT | USER_VERIFIED,
            counter: 0,
            cose: None,
            // {"fmt": "none", "attStmt": {}, …
            attestation: b"\xa3\x63fmt\x64none\x67attStmt\xa0".to_vec(),
            trailing: Vec::new(),
            user_handle: None,
        }
    }

    /// The answer to a registration.
    pub fn create(&self, said: &Said) -> Value {
        let length = u16::try_from(self.id.len()).unwrap().to_be_bytes();
        let cose = said.cose.clone().unwrap_or_else(|| self.cose());
        let attested = [&[0; 16][..], &length, &self.id, &cose].concat();
        let data = said.authenticator_data(ATTESTED, &attested);
        let length = u16::try_from(data.len()).unwrap().to_be_bytes();
        let object = [&said.attestation[..], b"\x68authData\x59", &length, &data].concat();
        json!({
            "id": base64url(&self.id),
            "rawId": base64url(&self.id),
            "type": "public-key",
            "clientExtensionResults": {},
            "response": {
                "clientDataJSON": base64url(&said.client_data()),
                "attestationObject": base64url(&object),
            },
        })
    }

    /// The answer to an assertion.
    pub fn get(&self, said: &Said) -> Value {
        let client_data = said.client_data();
        let data = said.authenticator_data(0, &[]);
        let signed = [&data[..], &sha256(&client_data)].concat();
        let signature = self.key.sign(&signed).unwrap();
        json!({
            "id": base64url(&self.id),
            "rawId": base64url(&self.id),
            "type": "public-key",
            "clientExtensionResults": {},
            "response": {
                "clientDataJSON": base64url(&client_data),
                "authenticatorData": base64url(&data),
                "signature": base64url(&der(&signature)),
                "userHandle": said.user_handle.as_deref().map(base64url),
            },
        })
    }

    /// The public key: {1: 2, 3: -7, -1: 1, -2: x, -3: y}.
    fn cose(&self) -> Vec<u8> {
        let jwk = self.key.public_jwk();
        let coordinate = |name: &str| from_base64url(jwk[name].as_str().unwrap()).unwrap();
        [
            &b"\xa5\x01\x02\x03\x26\x20\x01\x21\x58\x20"[..],
            &coordinate("x"),
            b"\x22\x58\x20",
            &coordinate("y"),
        ]
        .concat()
    }
}

impl Said {
    fn client_data(&self) -> Vec<u8> {
        if let Some(client_data) = &self.client_data {
            return client_data.clone();
        }
        let mut client_data = json!({
            "type": self.kind,
            "challenge": self.challenge,
            "origin": self.origin,
        });
        for (name, value) in &self.more {
            client_data[name] = value.clone();
        }
        client_data.to_string().into_bytes()
    }

    fn authenticator_data(&self, flag: u8, attested: &[u8]) -> Vec<u8> {
        [
            &sha256(self.rp_id.as_bytes())[..],
            &[self.flags | flag],
            &self.counter.to_be_bytes(),
            attested,
            &self.trailing,
        ]
        .concat()
    }
}

/// An ECDSA signature as WebAuthn has it.
pub fn der(raw: &[u8; 64]) -> Vec<u8> {
    let integer = |number: &[u8]| {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        let digits = &number[zeros..];
        let sign: &[u8] = if digits[0] >= 0x80 { &[0] } else { &[] };
        let length = u8::try_from(sign.len() + digits.len()).unwrap();
        [&[2, length], sign, digits].concat()
    };
    let numbers = [integer(&raw[..32]), integer(&raw[32..])].concat();
    [&[0x30, u8::try_from(numbers.len()).unwrap()], &numbers[..]].concat()
}
