//! An authorization server on loopback that can be made to misbehave.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use crate::{
    bodies::{Scripted, Then},
    loopback::serve,
};

/// How it answers.
#[derive(Clone)]
pub enum Mood {
    /// As RFC 7662 says.
    Well,
    /// With this status, and the right body.
    Status(u16),
    /// With 200 and this body.
    Body(String),
    /// With 200 and an answer that breaks off.
    Broken,
    /// With 200 and an answer that stalls.
    Stalled,
    /// With 200 and an answer without end.
    Endless,
    /// Not at all.
    Silent,
}

/// What it was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub headers: HeaderMap,
    pub form: HashMap<String, String>,
}

#[derive(Clone)]
pub struct AuthorizationServer {
    pub url: String,
    tokens: Arc<Mutex<HashMap<String, Value>>>,
    mood: Arc<Mutex<Mood>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl AuthorizationServer {
    pub async fn start() -> Self {
        let mut server = Self {
            url: String::new(),
            tokens: Arc::default(),
            mood: Arc::new(Mutex::new(Mood::Well)),
            asked: Arc::default(),
        };
        let router = Router::new()
            .route("/introspect", post(introspect))
            .with_state(server.clone());
        server.url = format!("http://{}/introspect", serve(router).await);
        server
    }

    /// What it says of the token from now on.
    pub fn set(&self, token: &str, answer: impl serde::Serialize) {
        let answer = serde_json::to_value(answer).unwrap();
        self.tokens.lock().unwrap().insert(token.to_owned(), answer);
    }

    /// Takes the grant behind the token back.
    pub fn revoke(&self, token: &str) {
        let mut tokens = self.tokens.lock().unwrap();
        let answer = tokens.get_mut(token).unwrap();
        answer["active"] = json!(false);
        answer["grant_status"] = json!("revoked");
        for member in ["scope", "authorization_details"] {
            answer.as_object_mut().unwrap().remove(member);
        }
    }

    pub fn mood(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Everything that it was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// How often it was asked so far.
    pub fn calls(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

async fn introspect(
    State(server): State<AuthorizationServer>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let form: HashMap<String, String> = url::form_urlencoded::parse(&body)
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    let token = form.get("token").cloned().unwrap_or_default();
    server.asked.lock().unwrap().push(Asked { headers, form });
    let answer = server.tokens.lock().unwrap().get(&token).cloned();
    let answer = answer
        .unwrap_or_else(|| json!({"active": false}))
        .to_string();
    const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];
    let scripted =
        |chunks: Vec<Bytes>, then| (JSON, Body::new(Scripted::new(chunks, then))).into_response();
    let half = Bytes::copy_from_slice(&answer.as_bytes()[..answer.len() / 2]);
    let mood = server.mood.lock().unwrap().clone();
    match mood {
        Mood::Well => (JSON, answer).into_response(),
        Mood::Status(status) => {
            let location = [(header::LOCATION, "/introspect")];
            (
                StatusCode::from_u16(status).unwrap(),
                JSON,
                location,
                answer,
            )
                .into_response()
        }
        Mood::Body(body) => (JSON, body).into_response(),
        Mood::Broken => scripted(vec![half], Then::Break),
        Mood::Stalled => scripted(vec![half], Then::Stall),
        Mood::Endless => scripted(vec![], Then::Again(Bytes::from(vec![b' '; 1024]))),
        Mood::Silent => std::future::pending().await,
    }
}
