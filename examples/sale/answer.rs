//! An answer, and what it says.

use std::{error::Error, fmt};

use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tower_rctp::protocol::decision::Decision;

pub type Failure = Box<dyn Error + Send + Sync>;

pub struct Answer {
    /// Who was answered.
    pub who: &'static str,
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
    /// From the header; pages have none.
    decision: Option<Decision>,
}

impl Answer {
    pub async fn read(who: &'static str, response: reqwest::Response) -> Result<Self, Failure> {
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.bytes().await?;
        let decision = match headers.get("rctp-decision") {
            Some(value) => Some(value.to_str()?.parse()?),
            None => None,
        };
        Ok(Self {
            who,
            status,
            headers,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
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

    /// The approval that waits for the seller.
    pub fn approval_id(&self) -> Result<String, Failure> {
        match &self.decision {
            Some(Decision::Ask { approval_id, .. }) => Ok(approval_id.clone()),
            _ => Err(format!("the seller should be asked, but got {self}").into()),
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
