//! A seller's browser without a person: what `navigator.credentials` does, over the software authenticator of the
//! `passkey` crate. The tests of passkeys include this file as well.

use std::{error::Error, pin::Pin};

use passkey::{
    authenticator::{Authenticator, UiHint, UserCheck, UserValidationMethod},
    client::{Client, DefaultClientData},
    crypto::rust_crypto::RustCryptoBackend,
    types::{
        Passkey,
        ctap2::{Aaguid, Ctap2Error},
    },
};
use serde_json::{Value, json};
use tower_rctp::wire::base64url;
use url::Url;

/// Why the browser gave no answer: the page's options are none, or not for this origin.
type Refused = Box<dyn Error + Send + Sync>;

/// A browser on one page, with an authenticator that holds one passkey and whose user always agrees.
pub struct Browser {
    origin: Url,
    counts: bool,
    passkey: Option<Passkey>,
}

impl Browser {
    /// `counts` is whether the authenticator has a signature counter; most have none.
    pub fn at(origin: &str, counts: bool) -> Self {
        Self {
            origin: origin.parse().expect("an origin is a URL"),
            counts,
            passkey: None,
        }
    }

    fn authenticator(&self) -> Authenticator<Option<Passkey>, Agrees, RustCryptoBackend> {
        let (id, passkey) = (Aaguid::new_empty(), self.passkey.clone());
        let mut authenticator = Authenticator::new(id, passkey, Agrees, RustCryptoBackend);
        authenticator.set_make_credentials_with_signature_counter(self.counts);
        authenticator
    }

    /// `navigator.credentials.create({publicKey})`, as JSON.
    pub async fn create(&mut self, public_key: &Value) -> Result<Value, Refused> {
        let request = serde_json::from_value(json!({ "publicKey": public_key }))?;
        let mut client = Client::new(self.authenticator()).allows_insecure_localhost(true);
        let created = client
            .register(&self.origin, request, DefaultClientData)
            .await
            .map_err(|refused| format!("{refused:?}"))?;
        self.passkey = client.authenticator().store().clone();
        Ok(json!({
            "id": created.id,
            "rawId": base64url(&created.raw_id),
            "type": "public-key",
            "authenticatorAttachment": "platform",
            "clientExtensionResults": {},
            "response": {
                "clientDataJSON": base64url(&created.response.client_data_json),
                "attestationObject": base64url(&created.response.attestation_object),
                "authenticatorData": base64url(&created.response.authenticator_data),
                "publicKeyAlgorithm": created.response.public_key_algorithm,
                "transports": ["internal", "hybrid", "a transport of the future"],
            },
        }))
    }

    /// `navigator.credentials.get({publicKey})`, as JSON.
    pub async fn get(&mut self, public_key: &Value) -> Result<Value, Refused> {
        let request = serde_json::from_value(json!({ "publicKey": public_key }))?;
        let mut client = Client::new(self.authenticator()).allows_insecure_localhost(true);
        let found = client
            .authenticate(&self.origin, request, DefaultClientData)
            .await
            .map_err(|refused| format!("{refused:?}"))?;
        self.passkey = client.authenticator().store().clone();
        let user_handle = found.response.user_handle.as_ref();
        Ok(json!({
            "id": found.id,
            "rawId": base64url(&found.raw_id),
            "type": "public-key",
            "clientExtensionResults": {},
            "response": {
                "clientDataJSON": base64url(&found.response.client_data_json),
                "authenticatorData": base64url(&found.response.authenticator_data),
                "signature": base64url(&found.response.signature),
                "userHandle": user_handle.map(|handle| base64url(handle)),
            },
        }))
    }
}

struct Agrees;

impl UserValidationMethod for Agrees {
    type PasskeyItem = Passkey;

    // As the trait's macro writes it.
    fn check_user<'a, 'life0, 'async_trait>(
        &'life0 self,
        _: UiHint<'a, Passkey>,
        _: bool,
        _: bool,
    ) -> Pin<Box<dyn Future<Output = Result<UserCheck, Ctap2Error>> + Send + 'async_trait>>
    where
        'a: 'async_trait,
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async {
            Ok(UserCheck {
                presence: true,
                verification: true,
            })
        })
    }

    fn is_presence_enabled(&self) -> bool {
        true
    }

    fn is_verification_enabled(&self) -> Option<bool> {
        Some(true)
    }
}
