//! An answer, and what it says.

use std::{error::Error, fmt};

use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tower_rctp::{
    client::agent::{self, Answered},
    protocol::decision::Decision,
};

pub type Failure = Box<dyn Error + Send + Sync>;

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
    /// From the header; pages have none.
    decision: Option<Decision>,
}

impl Answer {
    pub async fn read(response: reqwest::Response) -> Result<Self, Failure> {
        let (status, headers) = (response.status(), response.headers().clone());
        Self::of(status, &headers, &response.bytes().await?)
    }

    /// What an agent's operation was answered, a refusal included.
    pub fn to<T>(answer: &Result<Answered<T>, agent::Error>) -> Result<Self, Failure> {
        match answer {
            Ok(done) => Self::of(done.status, &done.headers, &done.body),
            Err(agent::Error::Refused(no)) => Self::of(no.status, &no.headers, &no.body),
            Err(error) => Err(error.to_string().into()),
        }
    }

    fn of(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<Self, Failure> {
        let decision = match headers.get("rctp-decision") {
            Some(value) => Some(value.to_str()?.parse()?),
            None => None,
        };
        Ok(Self {
            status,
            headers: headers.clone(),
            body: serde_json::from_slice(body).unwrap_or(Value::Null),
            decision,
        })
    }

    /// The decision; where there is none, the error, or where the thing stands.
    pub fn says(&self) -> String {
        if let Some(decision) = &self.decision {
            return decision.to_string();
        }
        let approval = self.body.get("approval").unwrap_or(&self.body);
        let members = [&self.body["error"], &approval["status"], &approval["state"]];
        let stands = members.into_iter().find_map(Value::as_str);
        match Decision::deserialize(&approval["decision"]) {
            Ok(decision) => format!("{}: {decision}", stands.unwrap_or_default()),
            Err(_) => stands.unwrap_or_default().to_owned(),
        }
    }

    /// The text at a JSON pointer.
    pub fn text(&self, at: &str) -> Result<String, Failure> {
        let text = self.body.pointer(at).and_then(Value::as_str);
        let text = text.ok_or_else(|| format!("there is no `{at}` in {self}"))?;
        Ok(text.to_owned())
    }

    pub fn is(&self, at: &str, expected: &str) -> Result<(), Failure> {
        let found = self.text(at)?;
        if found == expected {
            return Ok(());
        }
        Err(format!("`{at}` is `{found}`, not `{expected}`").into())
    }

    /// Whether this number is anywhere in it.
    pub fn tells(&self, number: u64) -> bool {
        let whole = format!("{:?} {}", self.headers, self.body);
        let mut words = whole.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| word == number.to_string())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.status, self.says(), self.body)
    }
}
