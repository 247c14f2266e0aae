//! The seller's passkeys: registering one, signing in with it, and approving with it (binding 7, R24).
//!
//! WebAuthn itself is `webauthn-rs-core`'s work. What that library leaves to its caller is here: whose credential it
//! is, the exact origin, `crossOrigin` (which it looks at in a registration only), and the single use of each
//! challenge. No HTTP, and no state between the options and the answer: what must be remembered goes to the browser
//! sealed and comes back with the answer.
//!
//! | what | challenge | used once because |
//! |---|---|---|
//! | registration | random, five minutes | its [`Kind::Nonce`] must be new |
//! | sign-in | random, five minutes | its [`Kind::Nonce`] must be new |
//! | approval | the caller's, over what is approved | the approval is answered once |
//!
//! Attestation is not asked for: it would tell which device the seller has, and nothing that an approval needs.
//! Algorithms are ES256 and RS256; the library cannot verify EdDSA yet, and every authenticator has one of the two.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use url::{Host, Url};
use webauthn_rs_core::{
    WebauthnCore,
    error::WebauthnError,
    proto::{
        AttestationConveyancePreference, AuthenticationState, AuthenticatorAssertionResponseRaw,
        AuthenticatorAttestationResponseRaw, COSEAlgorithm, Credential, ParsedAttestationData,
        PublicKeyCredential, RegisterPublicKeyCredential, RegistrationState,
        UserVerificationPolicy,
    },
};

use super::session::origin;
use crate::{
    layer::context::Clock,
    protocol::time::Timestamp,
    store::{Doc, Key, Kind, Put, Store, StoreError},
    wire::{
        base64url,
        crypto::SigningFailed,
        digest::sha256,
        from_base64url,
        jwk::SigningKey,
        sealed::{SealFailed, Sealer},
    },
};

/// The passkeys of every seller of one gateway.
pub struct Passkeys {
    core: WebauthnCore,
    rp_name: String,
    rp_id: String,
    origin: String,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    sealer: Sealer,
}

/// How long a registration or a sign-in may take.
const CEREMONY: i64 = 5 * 60;
/// How many passkeys a seller may have.
const MOST: usize = 20;
const TOO_MANY: &str = "there are as many passkeys as one seller may have";
/// The longest credential id (WebAuthn §5.8.3).
const LONGEST_ID: usize = 1023;

impl Passkeys {
    /// Passkeys for the pages at this URL, under a name that the seller's browser shows.
    ///
    /// # Errors
    /// [`PasskeysError`] if browsers allow no passkeys at that URL, if there is no name, or if the key's provider does
    /// not give out its secret.
    pub fn new(
        public_url: &str,
        rp_name: &str,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        key: &SigningKey,
    ) -> Result<Self, PasskeysError> {
        let origin = origin(public_url).ok_or(PasskeysError::Origin)?;
        let rp_id = host(&origin).ok_or(PasskeysError::Origin)?;
        let url = Url::parse(&origin).map_err(|_| PasskeysError::Origin)?;
        if rp_name.trim().is_empty() {
            return Err(PasskeysError::Name);
        }
        let timeout = Duration::from_secs(CEREMONY.unsigned_abs());
        // "Unsafe" because it leaves choices to its caller; the module's documentation says what we do about them.
        let core = WebauthnCore::new_unsafe_experts_only(
            rp_name,
            &rp_id,
            vec![url],
            timeout,
            Some(false),
            Some(false),
        );
        Ok(Self {
            core,
            rp_name: rp_name.to_owned(),
            rp_id,
            origin,
            store,
            clock,
            sealer: Sealer::from_signing_key(key, "passkey ceremony")?,
        })
    }

    /// What `navigator.credentials.create` needs (`publicKey`), and the state to come back with its answer.
    ///
    /// # Errors
    /// [`PasskeyError::Refused`] if the seller has as many passkeys as one may have; else when the store does not
    /// answer or there is no randomness.
    pub async fn registration_options(
        &self,
        seller: &str,
    ) -> Result<(Value, String), PasskeyError> {
        let existing = self.of(seller).await?;
        if existing.len() >= MOST {
            return Err(PasskeyError::Refused(TOO_MANY));
        }
        let handle = self.handle(seller);
        // Nothing about the person: the name only tells two accounts of one marketplace apart.
        let name = format!("{} {}", self.rp_name, &base64url(&handle)[..4]);
        let builder = self
            .core
            .new_challenge_register_builder(&handle, &name, &name)
            .map_err(refused)?
            .attestation(AttestationConveyancePreference::None)
            .credential_algorithms(vec![COSEAlgorithm::ES256, COSEAlgorithm::RS256])
            .require_resident_key(true)
            .user_verification_policy(UserVerificationPolicy::Required)
            .exclude_credentials(Some(
                existing
                    .iter()
                    .map(|passkey| passkey.credential.cred_id.clone())
                    .collect(),
            ));
        let (options, state) = self
            .core
            .generate_challenge_register(builder)
            .map_err(refused)?;
        let options = options.public_key;
        let state = Registering {
            seller: seller.to_owned(),
            challenge: base64url(&options.challenge),
            until: self.clock.now().plus(CEREMONY).secs(),
            state,
        };
        let state = self.seal(REGISTRATION, &state)?;
        Ok((to_value(&options)?, state))
    }

    /// Takes the answer to [`Passkeys::registration_options`]. Nothing is registered before the unit with these
    /// documents is committed; where that is a conflict, the state was used already.
    ///
    /// # Errors
    /// [`PasskeyError::Refused`] if the answer is not one to that state; else when the store does not answer.
    pub async fn register(
        &self,
        seller: &str,
        state: &str,
        credential: &Value,
    ) -> Result<Vec<Put>, PasskeyError> {
        let now = self.clock.now();
        let state: Registering = self.open(REGISTRATION, state)?;
        if state.seller != seller {
            return Err(PasskeyError::Refused("the state is another seller's"));
        }
        if self.of(seller).await?.len() >= MOST {
            return Err(PasskeyError::Refused(TOO_MANY));
        }
        in_time(state.until, now)?;
        let answer = Answer::<Attestation>::read(credential)?;
        self.check_client_data(&answer.client_data, "webauthn.create", &state.challenge)?;
        let answered = RegisterPublicKeyCredential {
            id: base64url(&answer.id),
            raw_id: answer.id.clone(),
            response: AuthenticatorAttestationResponseRaw {
                attestation_object: bytes(&answer.response.attestation_object)?,
                client_data_json: answer.client_data,
                transports: None,
            },
            type_: PUBLIC_KEY.to_owned(),
            extensions: Default::default(),
        };
        let credential = self
            .core
            .register_credential(&answered, &state.state, None)
            .map_err(refused)?;
        if credential.cred_id.as_slice() != answer.id {
            return Err(PasskeyError::Refused("the credential ids differ"));
        }
        // A browser that was asked for no attestation passes none on, but for a key's own signature.
        match credential.attestation.data {
            ParsedAttestationData::None | ParsedAttestationData::Self_ => {}
            _ => return Err(PasskeyError::Refused("no attestation was asked for")),
        }
        if self.load(&answer.id).await?.is_some() {
            return Err(PasskeyError::Refused("this passkey is registered already"));
        }
        let passkey = Passkey {
            seller: seller.to_owned(),
            label: format!("Passkey of {}", date(now)),
            created_at: now,
            transports: answer.response.transports(),
            credential,
        };
        Ok(vec![
            used(&state.challenge),
            passkey.put(&base64url(&answer.id), 0)?,
        ])
    }

    /// What `navigator.credentials.get` needs to sign in with whichever passkey the seller picks, and the state to
    /// come back with its answer.
    ///
    /// # Errors
    /// When there is no randomness.
    pub async fn sign_in_options(&self) -> Result<(Value, String), PasskeyError> {
        let mut challenge = [0; 32];
        getrandom::fill(&mut challenge).map_err(|_| SealFailed)?;
        let challenge = base64url(&challenge);
        let options = self.request_options(&challenge, Vec::new());
        let state = SigningIn {
            challenge,
            until: self.clock.now().plus(CEREMONY).secs(),
        };
        let state = self.seal(SIGN_IN, &state)?;
        Ok((options, state))
    }

    /// Takes the answer to [`Passkeys::sign_in_options`]: who signs in. They have done so once the unit with these
    /// documents is committed; where that is a conflict, the state was used already.
    ///
    /// # Errors
    /// [`PasskeyError::Refused`] if the answer is not one to that state; else when the store does not answer.
    pub async fn sign_in(
        &self,
        state: &str,
        credential: &Value,
    ) -> Result<(String, Vec<Put>), PasskeyError> {
        let state: SigningIn = self.open(SIGN_IN, state)?;
        in_time(state.until, self.clock.now())?;
        let answer = Answer::<Assertion>::read(credential)?;
        if answer.response.user_handle.is_none() {
            return Err(PasskeyError::Refused(
                "the passkey does not say whose it is",
            ));
        }
        let (seller, changed) = self.assert(&state.challenge, answer, None).await?;
        let mut puts = vec![used(&state.challenge)];
        puts.extend(changed);
        Ok((seller, puts))
    }

    /// What `navigator.credentials.get` needs for this seller's passkeys to sign this challenge.
    ///
    /// # Errors
    /// [`PasskeyError::Refused`] if the seller has no passkey; else when the store does not answer.
    pub async fn approval_options(
        &self,
        seller: &str,
        challenge: &str,
    ) -> Result<Value, PasskeyError> {
        let passkeys = self.of(seller).await?;
        if passkeys.is_empty() {
            return Err(PasskeyError::Refused("there is no passkey yet"));
        }
        let allowed = passkeys.iter().map(Passkey::descriptor).collect();
        Ok(self.request_options(challenge, allowed))
    }

    /// Verifies that one of this seller's passkeys has signed this challenge, with its user present and verified.
    ///
    /// The challenge (base64url) must be good for one answer only, which is the caller's to see to. The document that is
    /// returned, if any, belongs into the same unit as what the answer does: it remembers the passkey's counter.
    ///
    /// # Errors
    /// [`PasskeyError::Refused`] if it has not; else when the store does not answer.
    pub async fn verify(
        &self,
        seller: &str,
        challenge: &str,
        credential: &Value,
    ) -> Result<Vec<Put>, PasskeyError> {
        let answer = Answer::<Assertion>::read(credential)?;
        let (_, changed) = self.assert(challenge, answer, Some(seller)).await?;
        Ok(changed.into_iter().collect())
    }

    /// Verifies an assertion; whose it is, and the passkey's document where it has changed.
    async fn assert(
        &self,
        challenge: &str,
        answer: Answer<Assertion>,
        seller: Option<&str>,
    ) -> Result<(String, Option<Put>), PasskeyError> {
        const UNKNOWN: PasskeyError = PasskeyError::Refused("this passkey is not known here");
        let doc = self.load(&answer.id).await?.ok_or(UNKNOWN)?;
        let mut passkey = Passkey::read(&doc)?;
        if seller.is_some_and(|seller| seller != passkey.seller) {
            return Err(UNKNOWN);
        }
        let user_handle = match answer.response.user_handle.as_deref() {
            Some(handle) => Some(bytes(handle)?),
            None => None,
        };
        if let Some(handle) = &user_handle
            && handle[..] != self.handle(&passkey.seller)
        {
            return Err(UNKNOWN);
        }
        self.check_client_data(&answer.client_data, "webauthn.get", challenge)?;
        let answered = PublicKeyCredential {
            id: base64url(&answer.id),
            raw_id: answer.id,
            response: AuthenticatorAssertionResponseRaw {
                authenticator_data: bytes(&answer.response.authenticator_data)?,
                client_data_json: answer.client_data,
                signature: bytes(&answer.response.signature)?,
                user_handle,
            },
            extensions: Default::default(),
            type_: PUBLIC_KEY.to_owned(),
        };
        let result = self
            .core
            .authenticate_single_credential(&answered, &expecting(challenge)?, &passkey.credential)
            .map_err(refused)?;
        if !result.needs_update() {
            return Ok((passkey.seller, None));
        }
        passkey.credential.counter = result.counter();
        passkey.credential.backup_state = result.backup_state();
        let put = passkey.put(&doc.key.id, doc.version)?;
        Ok((passkey.seller, Some(put)))
    }

    fn request_options(&self, challenge: &str, allowed: Vec<Value>) -> Value {
        json!({
            "challenge": challenge,
            "timeout": CEREMONY * 1000,
            "rpId": self.rp_id,
            "allowCredentials": allowed,
            "userVerification": "required",
        })
    }

    /// What the browser says about the page that asked. The library looks at it again, less closely: it takes any URL
    /// of the origin for the origin, and assertions made in a frame of another site.
    fn check_client_data(
        &self,
        json: &[u8],
        kind: &str,
        challenge: &str,
    ) -> Result<(), PasskeyError> {
        let client_data: ClientData = serde_json::from_slice(json)
            .map_err(|_| PasskeyError::Refused("the client data is not readable"))?;
        if client_data.kind != kind {
            return Err(PasskeyError::Refused("the answer is to another question"));
        }
        if client_data.challenge != challenge {
            return Err(PasskeyError::Refused(
                "the passkey signed another challenge",
            ));
        }
        if client_data.origin != self.origin {
            return Err(PasskeyError::Refused(
                "the passkey was used on another site",
            ));
        }
        if client_data.cross_origin == Some(true) || client_data.top_origin.is_some() {
            return Err(PasskeyError::Refused(
                "the passkey was used inside a page of another site",
            ));
        }
        Ok(())
    }

    /// The opaque name by which authenticators know a seller (WebAuthn §5.4.3). It depends on nothing that changes.
    fn handle(&self, seller: &str) -> [u8; 32] {
        sha256(format!("tower-rctp user handle\n{}\n{seller}", self.rp_id).as_bytes())
    }

    async fn of(&self, seller: &str) -> Result<Vec<Passkey>, PasskeyError> {
        let docs = self
            .store
            .list(Kind::Passkey, seller.to_owned(), None, MOST)
            .await?;
        Ok(docs.iter().map(Passkey::read).collect::<Result<_, _>>()?)
    }

    async fn load(&self, id: &[u8]) -> Result<Option<Doc>, StoreError> {
        let key = Key::new(Kind::Passkey, base64url(id));
        Ok(self.store.load(vec![key]).await?.pop().flatten())
    }

    fn seal(&self, ceremony: &str, state: &impl Serialize) -> Result<String, PasskeyError> {
        let state = serde_json::to_vec(state).map_err(|_| SealFailed)?;
        Ok(self.sealer.seal(&state, &self.context(ceremony))?)
    }

    fn open<T: DeserializeOwned>(&self, ceremony: &str, state: &str) -> Result<T, PasskeyError> {
        self.sealer
            .open(state, &self.context(ceremony))
            .and_then(|state| serde_json::from_slice(&state).ok())
            .ok_or(PasskeyError::Refused("the state is none of ours"))
    }

    fn context(&self, ceremony: &str) -> Vec<u8> {
        format!("{ceremony} {}", self.origin).into_bytes()
    }
}

impl fmt::Debug for Passkeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passkeys")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// Why a browser's answer does nothing. Neither shows a value of the answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PasskeyError {
    /// The answer is refused (401); the reason is for people.
    #[error("{0}")]
    Refused(&'static str),
    /// The store did not answer (503).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no randomness (503).
    #[error(transparent)]
    Seal(#[from] SealFailed),
}

/// Why there can be no passkeys here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PasskeysError {
    /// Browsers allow passkeys to domains over https only, and to `localhost`.
    #[error(
        "passkeys need a public URL with https and a domain, or http://localhost for development; an IP address is none"
    )]
    Origin,
    /// The name is empty.
    #[error("passkeys need a name of the marketplace, which the seller's browser shows")]
    Name,
    /// The key's provider does not give out its secret.
    #[error(transparent)]
    Key(#[from] SigningFailed),
}

/// Keep a state of one ceremony from being taken for another's.
const REGISTRATION: &str = "registration";
const SIGN_IN: &str = "sign-in";
const PUBLIC_KEY: &str = "public-key";

#[derive(Serialize, Deserialize)]
struct Registering {
    seller: String,
    challenge: String,
    until: i64,
    state: RegistrationState,
}

#[derive(Serialize, Deserialize)]
struct SigningIn {
    challenge: String,
    until: i64,
}

/// A passkey as it is stored.
#[derive(Serialize, Deserialize)]
struct Passkey {
    seller: String,
    label: String,
    created_at: Timestamp,
    transports: Vec<String>,
    credential: Credential,
}

impl Passkey {
    fn read(doc: &Doc) -> Result<Self, StoreError> {
        serde_json::from_slice(&doc.body)
            .map_err(|_| StoreError("a stored passkey is not readable".into()))
    }

    fn put(&self, id: &str, expected: u64) -> Result<Put, StoreError> {
        let body = serde_json::to_vec(self)
            .map_err(|e| StoreError(format!("a passkey does not serialise: {e}")))?;
        Ok(Put {
            key: Key::new(Kind::Passkey, id),
            expected,
            parent: Some(self.seller.clone()),
            due: None,
            body: body.into(),
        })
    }

    fn descriptor(&self) -> Value {
        let id = base64url(self.credential.cred_id.as_slice());
        json!({ "type": PUBLIC_KEY, "id": id, "transports": self.transports })
    }
}

/// A browser's answer (WebAuthn §5.1): the members that are looked at, whatever else is there.
struct Answer<R> {
    id: Vec<u8>,
    client_data: Vec<u8>,
    response: R,
}

trait Response: DeserializeOwned {
    fn client_data(&self) -> &str;
}

impl<R: Response> Answer<R> {
    fn read(credential: &Value) -> Result<Self, PasskeyError> {
        #[derive(Deserialize)]
        struct Raw<R> {
            id: String,
            #[serde(rename = "rawId")]
            raw_id: String,
            #[serde(rename = "type")]
            kind: String,
            response: R,
        }
        let raw = Raw::<R>::deserialize(credential)
            .map_err(|_| PasskeyError::Refused("the answer is no public key credential"))?;
        if raw.kind != PUBLIC_KEY || raw.id != raw.raw_id {
            return Err(PasskeyError::Refused(
                "the answer is no public key credential",
            ));
        }
        let id = bytes(&raw.id)?;
        if id.is_empty() || id.len() > LONGEST_ID {
            return Err(PasskeyError::Refused(
                "the credential id has no valid length",
            ));
        }
        Ok(Self {
            id,
            client_data: bytes(raw.response.client_data())?,
            response: raw.response,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attestation {
    #[serde(rename = "clientDataJSON")]
    client_data_json: String,
    attestation_object: String,
    #[serde(default)]
    transports: Option<Vec<String>>,
}

impl Response for Attestation {
    fn client_data(&self) -> &str {
        &self.client_data_json
    }
}

impl Attestation {
    /// Hints for later requests, those that we know (WebAuthn §5.8.4).
    fn transports(&self) -> Vec<String> {
        const KNOWN: [&str; 6] = ["ble", "hybrid", "internal", "nfc", "smart-card", "usb"];
        let named = self.transports.as_deref().unwrap_or_default();
        KNOWN
            .into_iter()
            .filter(|known| named.iter().any(|name| name == known))
            .map(str::to_owned)
            .collect()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Assertion {
    #[serde(rename = "clientDataJSON")]
    client_data_json: String,
    authenticator_data: String,
    signature: String,
    #[serde(default)]
    user_handle: Option<String>,
}

impl Response for Assertion {
    fn client_data(&self) -> &str {
        &self.client_data_json
    }
}

/// WebAuthn §5.8.1. Other members may be there, and will.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClientData {
    #[serde(rename = "type")]
    kind: String,
    challenge: String,
    origin: String,
    cross_origin: Option<bool>,
    top_origin: Option<String>,
}

/// The host of an origin where browsers let passkeys be used: a domain over https, or `localhost`.
fn host(origin: &str) -> Option<String> {
    let url = Url::parse(origin).ok()?;
    let Some(Host::Domain(host)) = url.host() else {
        return None;
    };
    let local = host == "localhost" || host.ends_with(".localhost");
    (url.scheme() == "https" || local).then(|| host.to_owned())
}

/// The library's own state, with our challenge: it draws one itself where it makes the state.
fn expecting(challenge: &str) -> Result<AuthenticationState, PasskeyError> {
    let state = json!({
        "credentials": [],
        "policy": UserVerificationPolicy::Required,
        "challenge": challenge,
        "appid": null,
        "allow_backup_eligible_upgrade": false,
    });
    AuthenticationState::deserialize(state)
        .map_err(|_| PasskeyError::Refused("the challenge is not base64url"))
}

/// Takes a challenge out of use.
fn used(challenge: &str) -> Put {
    Put {
        key: Key::new(Kind::Nonce, format!("webauthn_{challenge}")),
        expected: 0,
        parent: None,
        due: None,
        body: "true".into(),
    }
}

fn in_time(until: i64, now: Timestamp) -> Result<(), PasskeyError> {
    let until = Timestamp::from_secs(until);
    if now < until && until <= now.plus(2 * CEREMONY) {
        Ok(())
    } else {
        Err(PasskeyError::Refused("it took too long; try again"))
    }
}

fn bytes(text: &str) -> Result<Vec<u8>, PasskeyError> {
    from_base64url(text).ok_or(PasskeyError::Refused("the answer is not base64url"))
}

fn date(now: Timestamp) -> String {
    now.to_string()
        .split('T')
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn to_value(options: &impl Serialize) -> Result<Value, PasskeyError> {
    serde_json::to_value(options)
        .map_err(|_| PasskeyError::Refused("the options cannot be written"))
}

/// In our words, without the library's, which may quote the answer.
fn refused(error: WebauthnError) -> PasskeyError {
    PasskeyError::Refused(match error {
        WebauthnError::InvalidRPIDHash => "the passkey belongs to another site",
        WebauthnError::UserNotPresent => "nobody touched the passkey",
        WebauthnError::UserNotVerified => "the passkey did not verify its user",
        WebauthnError::CredentialPossibleCompromise => {
            "the passkey's counter did not grow: there may be a copy of it"
        }
        WebauthnError::AuthenticationFailure | WebauthnError::SignatureInvalid => {
            "the signature does not verify"
        }
        WebauthnError::CredentialAlteredAlgFromRequest => {
            "the passkey's algorithm is none that was asked for, or it is registered already"
        }
        _ => "the passkey's answer is not valid",
    })
}
