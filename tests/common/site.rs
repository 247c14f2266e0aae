//! The origins of operators' profiles, for tests that count fetches, hold them back, or change what is served.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Semaphore;
use tower_rctp::{
    layer::authenticate::fetch::{Fetch, FetchError, Fetched},
    store::BoxFuture,
};

#[derive(Clone)]
pub struct Site {
    pages: Arc<Mutex<HashMap<String, Fetched>>>,
    fetched: Arc<Mutex<Vec<String>>>,
    /// One permit lets one fetch end.
    gate: Arc<Semaphore>,
}

impl Default for Site {
    fn default() -> Self {
        Self {
            pages: Arc::default(),
            fetched: Arc::default(),
            gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        }
    }
}

impl Site {
    /// Serves the document from now on.
    pub fn serve(&self, url: &str, document: &Value) {
        self.serve_bytes(url, document.to_string(), None);
    }

    pub fn serve_bytes(&self, url: &str, body: impl Into<Bytes>, max_age: Option<u64>) {
        let page = Fetched {
            body: body.into(),
            max_age,
        };
        self.pages.lock().unwrap().insert(url.to_owned(), page);
    }

    /// Has nothing at the URL any more.
    pub fn remove(&self, url: &str) {
        self.pages.lock().unwrap().remove(url);
    }

    /// How often the URL was fetched.
    pub fn fetches(&self, url: &str) -> usize {
        let fetched = self.fetched.lock().unwrap();
        fetched.iter().filter(|this| *this == url).count()
    }

    /// Holds every fetch back until [`Site::open`].
    pub fn close(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS);
    }
}

impl Fetch for Site {
    fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Fetched, FetchError>> {
        Box::pin(async move {
            self.fetched.lock().unwrap().push(url.to_owned());
            let _permit = self.gate.acquire().await.unwrap();
            let page = self.pages.lock().unwrap().get(url).cloned();
            page.ok_or_else(|| FetchError("there is nothing at this address".into()))
        })
    }
}
