//! The seller: a person at the marketplace's pages, whose browser keeps a session and a passkey.
//!
//! What the pages' scripts do is done by hand here: each method is what happens between one click and the next.

use http::{HeaderValue, header};
use serde_json::{Value, json};
use url::Url;

use super::{
    answer::{Answer, Failure},
    browser::Browser,
};

pub struct Seller {
    http: reqwest::Client,
    origin: String,
    browser: Browser,
    /// From the link that the marketplace has sent.
    ticket: String,
    session: Option<HeaderValue>,
}

impl Seller {
    /// Somebody with a link to enrol their first passkey.
    pub fn with_link(http: &reqwest::Client, link: &str) -> Result<Self, Failure> {
        let link = Url::parse(link)?;
        let ticket = link.fragment().and_then(|f| f.strip_prefix("ticket="));
        let origin = link.origin().ascii_serialization();
        Ok(Self {
            http: http.clone(),
            browser: Browser::at(&origin, false),
            origin,
            ticket: ticket.ok_or("the link has no ticket")?.to_owned(),
            session: None,
        })
    }

    /// The page `/enroll`: a new passkey, which begins a session.
    pub async fn enrol(&mut self) -> Result<Answer, Failure> {
        let ticket = json!({"ticket": self.ticket});
        let offered = self.post("/enroll/options", &ticket).await?;
        let credential = self.browser.create(&offered.body["publicKey"]).await?;
        let enrolled = json!({
            "ticket": self.ticket,
            "state": offered.body["state"],
            "credential": credential,
        });
        self.post("/enroll/complete", &enrolled).await
    }

    /// The consent page: who asks, and for what.
    pub async fn consider(&mut self, wish: &str) -> Result<Answer, Failure> {
        let path = format!("/oauth/consent?{}", query(wish)?);
        self.get(&path).await
    }

    /// There: what the agent may do from now on.
    pub async fn consent(&mut self, wish: &str, tiers: &Value) -> Result<Answer, Failure> {
        let consent = json!({
            "query": query(wish)?,
            "decision": "allow",
            "tiers": tiers,
            "expires_in_days": 7,
        });
        self.post("/oauth/consent", &consent).await
    }

    /// The page `/approve/{id}`.
    pub async fn open(&mut self, id: &str) -> Result<Answer, Failure> {
        self.get(&format!("/approve/{id}/request")).await
    }

    /// There, for a listing: the terms as the form has them.
    pub async fn fill_in(&mut self, id: &str, terms: &Value) -> Result<Answer, Failure> {
        let terms = json!({ "terms": terms });
        self.post(&format!("/approve/{id}/terms"), &terms).await
    }

    /// There: the passkey over what the page shows; for a listing that includes the terms, by their commitment.
    pub async fn approval(&mut self, shown: &Answer) -> Result<Value, Failure> {
        let credential = self.browser.get(&shown.body["publicKey"]).await?;
        let mut approval = json!({"decision": "approve", "credential": credential});
        if let Some(commitment) = shown.body.get("terms_commitment") {
            approval["terms_commitment"] = commitment.clone();
        }
        Ok(approval)
    }

    /// There: the answer.
    pub async fn respond(&mut self, id: &str, response: &Value) -> Result<Answer, Failure> {
        self.post(&format!("/approvals/{id}/response"), response)
            .await
    }

    /// There, where no terms are to be filled in: yes.
    pub async fn approve(&mut self, id: &str) -> Result<Answer, Failure> {
        let path = format!("/approve/{id}/options");
        let options = self.post(&path, &json!({})).await?;
        let approval = self.approval(&options).await?;
        self.respond(id, &approval).await
    }

    /// There: no.
    pub async fn decline(&mut self, id: &str) -> Result<Answer, Failure> {
        self.respond(id, &json!({"decision": "decline"})).await
    }

    /// The page `/grants`.
    pub async fn grants(&mut self) -> Result<Answer, Failure> {
        self.get("/grants/list").await
    }

    /// There: no more.
    pub async fn revoke(&mut self, grant_id: &str) -> Result<Answer, Failure> {
        self.post(&format!("/grants/{grant_id}/revoke"), &json!({}))
            .await
    }

    async fn get(&mut self, path: &str) -> Result<Answer, Failure> {
        let url = format!("{}{path}", self.origin);
        self.send(self.http.get(url)).await
    }

    /// With the `Origin` that browsers add, and no page of another site could.
    async fn post(&mut self, path: &str, body: &Value) -> Result<Answer, Failure> {
        let url = format!("{}{path}", self.origin);
        let post = self.http.post(url).json(body);
        self.send(post.header(header::ORIGIN, &self.origin)).await
    }

    /// With the session's cookie, and keeps the one that is set.
    async fn send(&mut self, mut request: reqwest::RequestBuilder) -> Result<Answer, Failure> {
        if let Some(session) = &self.session {
            request = request.header(header::COOKIE, session);
        }
        let answer = Answer::read(request.send().await?).await?;
        if let Some(cookie) = answer.headers.get(header::SET_COOKIE) {
            let pair = cookie.to_str()?.split(';').next().unwrap_or_default();
            self.session = Some(HeaderValue::from_str(pair)?);
        }
        Ok(answer)
    }
}

/// The request that the consent page was opened with.
fn query(wish: &str) -> Result<&str, Failure> {
    let (_, query) = wish.split_once('?').ok_or("the address has no request")?;
    Ok(query)
}
