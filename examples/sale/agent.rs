//! An agent: software that acts for somebody, with a key of its own or with no more than a token.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, header};
use serde_json::Value;
use tower_rctp::client::Signer;

use super::{
    answer::{Answer, Failure},
    gateway::{dev::DevAgent, files},
    play::{FLOOR, PROPOSED},
};

pub struct Agent {
    who: &'static str,
    http: reqwest::Client,
    gateway: String,
    signer: Option<Signer>,
    token: Option<String>,
}

impl Agent {
    /// One that signs what it sends.
    pub fn with_key(
        who: &'static str,
        gateway: &str,
        http: &reqwest::Client,
        agent: &DevAgent,
    ) -> Result<Self, Failure> {
        let signer = Signer::new(&agent.profile, agent.key.clone())?;
        Ok(Self {
            signer: Some(signer),
            ..Self::without_key(who, gateway, http)
        })
    }

    /// One that shows its token and signs nothing.
    pub fn without_key(who: &'static str, gateway: &str, http: &reqwest::Client) -> Self {
        Self {
            who,
            http: http.clone(),
            gateway: gateway.to_owned(),
            signer: None,
            token: None,
        }
    }

    /// Shows this token from now on.
    pub fn bears(&mut self, token: String) {
        self.token = Some(token);
    }

    pub async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.send(self.request(Method::GET, path, None)?).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, Failure> {
        self.send(self.signed(path, body)?).await
    }

    /// A POST, signed if this agent signs, and not yet sent.
    pub fn signed(&self, path: &str, body: &Value) -> Result<Request<Bytes>, Failure> {
        self.request(Method::POST, path, Some(body))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Request<Bytes>, Failure> {
        let body = body.map(|body| Bytes::from(body.to_string()));
        let mut request = Request::new(body.unwrap_or_default());
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", self.gateway).parse()?;
        let headers = request.headers_mut();
        if let Some(token) = &self.token {
            headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse()?);
        }
        match &self.signer {
            Some(signer) => signer.sign(&mut request)?,
            None => {
                headers.insert("idempotency-key", files::random()?.parse()?);
                let json = HeaderValue::from_static("application/json");
                headers.insert(header::CONTENT_TYPE, json);
            }
        }
        Ok(request)
    }

    /// Signs a request anew, after a change.
    pub fn sign_again(&self, request: &mut Request<Bytes>) -> Result<(), Failure> {
        let signer = self.signer.as_ref().ok_or("this agent has no key")?;
        Ok(signer.sign(request)?)
    }

    pub async fn send(&self, request: Request<Bytes>) -> Result<Answer, Failure> {
        let response = self.http.execute(request.try_into()?).await?;
        let answer = Answer::read(self.who, response).await?;
        // Not even the agent that proposed a floor may read it anywhere.
        if answer.tells(FLOOR) || answer.tells(PROPOSED) {
            return Err(format!("the {} was told a floor", self.who).into());
        }
        Ok(answer)
    }
}
