//! An agent as a client of the authorization server: discovery, the code flow with PKCE, and tokens (binding 3.1, 3.2).

use http::header;
use serde_json::{Value, json};
use tower_rctp::wire::{base64url, digest::sha256};
use url::{Url, form_urlencoded};

use super::{
    answer::{Answer, Failure},
    gateway::{
        dev::{CALLBACK, DevAgent},
        files,
    },
};

pub struct Client {
    http: reqwest::Client,
    id: String,
    secret: String,
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
}

/// What the seller is asked for.
pub struct Wish {
    /// Where the seller's browser is sent.
    pub url: String,
    state: String,
    verifier: String,
}

impl Client {
    /// From the gateway to its authorization server.
    pub async fn discover(
        gateway: &str,
        http: &reqwest::Client,
        agent: &DevAgent,
    ) -> Result<(Self, Answer), Failure> {
        let get = async |url| Answer::read(http.get(url).send().await?).await;
        let resource = get(format!("{gateway}/.well-known/oauth-protected-resource")).await?;
        let issuer = resource.text("/authorization_servers/0")?;
        let metadata = get(format!("{issuer}/.well-known/oauth-authorization-server")).await?;
        // Byte for byte, or it could be anybody's.
        metadata.is("/issuer", &issuer)?;
        let client = Self {
            http: http.clone(),
            id: agent.client_id.clone(),
            secret: agent.client_secret.clone(),
            issuer,
            authorization_endpoint: metadata.text("/authorization_endpoint")?,
            token_endpoint: metadata.text("/token_endpoint")?,
        };
        Ok((client, metadata))
    }

    /// An authorization request for a grant of these tiers, to the agent whose key this is.
    pub fn wish(&self, jkt: &str, tiers: &Value) -> Result<Wish, Failure> {
        let (state, verifier) = (files::random()?, files::random()?);
        let details = json!([{
            "type": "dev.rctp.agent_grant",
            "agent_id": self.id,
            "jkt": jkt,
            "tiers": tiers,
        }]);
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &self.id),
            ("redirect_uri", CALLBACK),
            ("state", &state),
            ("code_challenge", &base64url(&sha256(verifier.as_bytes()))),
            ("code_challenge_method", "S256"),
            ("authorization_details", &details.to_string()),
        ]);
        Ok(Wish {
            url: format!("{}?{query}", self.authorization_endpoint),
            state,
            verifier,
        })
    }

    /// Tokens for the code that the seller's browser has come back with.
    pub async fn redeem(&self, wish: Wish, came_back: &str) -> Result<Answer, Failure> {
        let came_back = Url::parse(came_back)?;
        let brought = |name: &str| {
            let mut pairs = came_back.query_pairs();
            let (_, value) = pairs.find(|(n, _)| n == name)?;
            Some(value.into_owned())
        };
        if brought("state").as_ref() != Some(&wish.state)
            || brought("iss").as_ref() != Some(&self.issuer)
        {
            return Err("the browser came back from somewhere else".into());
        }
        self.token(&[
            ("grant_type", "authorization_code"),
            ("code", &brought("code").ok_or("the seller said no")?),
            ("redirect_uri", CALLBACK),
            ("code_verifier", &wish.verifier),
        ])
        .await
    }

    /// New tokens for old.
    pub async fn refresh(&self, token: &str) -> Result<Answer, Failure> {
        self.token(&[("grant_type", "refresh_token"), ("refresh_token", token)])
            .await
    }

    /// A token of the client's own, which is what a buyer's agent without a key shows.
    pub async fn own_token(&self) -> Result<Answer, Failure> {
        self.token(&[("grant_type", "client_credentials")]).await
    }

    async fn token(&self, parameters: &[(&str, &str)]) -> Result<Answer, Failure> {
        let request = self
            .http
            .post(&self.token_endpoint)
            .basic_auth(&self.id, Some(&self.secret))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form(parameters));
        Answer::read(request.send().await?).await
    }
}

fn form(parameters: &[(&str, &str)]) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(parameters).finish()
}
