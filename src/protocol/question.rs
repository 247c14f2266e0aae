//! Questions that buyers' agents ask about a listing, and the seller's answers.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{caller::Agent, time::Timestamp};

/// A question as stored. What its two sides see is [`Question::view`]: who asked is not told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// `qst_…`
    pub question_id: String,
    /// The listing that it is about.
    pub listing_id: String,
    /// The question.
    pub text: String,
    /// The agent that asked.
    pub asked_by: Agent,
    /// When it was asked.
    pub created_at: Timestamp,
    /// The seller's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// The seller's answer; it is given once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The answer.
    pub text: String,
    /// When it was given.
    pub at: Timestamp,
}

impl Question {
    /// What the seller and the one who asked see (schema `question`).
    pub fn view(&self) -> Value {
        let mut view = json!({
            "question_id": self.question_id,
            "listing_id": self.listing_id,
            "text": self.text,
            "created_at": self.created_at,
        });
        if let Some(answer) = &self.answer {
            view["answer"] = json!(answer.text);
            view["answered_at"] = json!(answer.at);
        }
        view
    }
}
