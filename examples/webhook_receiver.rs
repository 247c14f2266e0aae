//! Receives webhooks, verifies them as the binding asks (section 9), and prints them.
//!
//! ```text
//! cargo run --example webhook_receiver
//! cargo run --example gateway -- --dev-webhook-url http://127.0.0.1:9000/     in another terminal
//! cargo run --example sale -- --url http://127.0.0.1:8080                     and in a third one
//! ```

use std::{
    error::Error,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
};
use clap::Parser;
use http::{StatusCode, request::Parts};
use serde_json::Value;
use tokio::sync::RwLock;
use tower_rctp::{
    client::{Expected, SeenInMemory, WebhookError, verify_webhook},
    layer::context::{Clock, SystemClock},
    protocol::webhook::Event,
    wire::{crypto::default_provider, jwk::Keys},
};

/// Prints the webhooks of a gateway, once they are verified.
#[derive(Parser)]
struct Args {
    /// The profile of the one gateway that is believed.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://localhost:8080/.well-known/ucp"
    )]
    gateway: String,
    /// Where to listen; plain HTTP, so in production behind a proxy that ends TLS.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// The `webhook_url` of the operator's profile [default: http://LISTEN/].
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

struct Receiver {
    args: Args,
    http: reqwest::Client,
    /// What webhooks are held against, and when the gateway's keys were read.
    expected: RwLock<Option<(Expected, Instant)>>,
    seen: SeenInMemory,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let listener = tokio::net::TcpListener::bind(args.listen).await?;
    println!(
        "listening on {}, for webhooks of {}",
        args.listen, args.gateway
    );
    let receiver = Arc::new(Receiver {
        args,
        http: reqwest::Client::builder().no_proxy().build()?,
        expected: RwLock::new(None),
        seen: SeenInMemory::new(100_000),
    });
    let app = Router::new().fallback(receive).with_state(receiver);
    Ok(axum::serve(listener, app).await?)
}

impl Receiver {
    async fn verify(&self, parts: &Parts, body: &[u8]) -> Result<Event, WebhookError> {
        match &*self.expected.read().await {
            Some((expected, _)) => {
                verify_webhook(parts, body, expected, SystemClock.now(), &self.seen)
            }
            None => Err(WebhookError::UnknownKey),
        }
    }

    /// Reads the gateway's keys from its profile, once a minute at most: anybody can name a key that nobody knows.
    async fn read_keys(&self) -> Result<(), Box<dyn Error>> {
        let mut expected = self.expected.write().await;
        if let Some((_, read)) = &*expected
            && read.elapsed() < Duration::from_secs(60)
        {
            return Ok(());
        }
        let answer = self.http.get(&self.args.gateway).send().await?;
        let profile: Value = answer.error_for_status()?.json().await?;
        let keys = Keys::parse(&profile["keys"], default_provider())?;
        let own = format!("http://{}/", self.args.listen);
        let url = self.args.url.as_deref().unwrap_or(&own);
        let now_expected = Expected::new(url, &self.args.gateway, keys)?;
        *expected = Some((now_expected, Instant::now()));
        Ok(())
    }
}

async fn receive(State(receiver): State<Arc<Receiver>>, request: Request<Body>) -> StatusCode {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 256 * 1024).await else {
        return StatusCode::PAYLOAD_TOO_LARGE;
    };
    let mut verified = receiver.verify(&parts, &body).await;
    if verified == Err(WebhookError::UnknownKey) {
        if let Err(error) = receiver.read_keys().await {
            eprintln!("the gateway's keys cannot be read: {error}");
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        verified = receiver.verify(&parts, &body).await;
    }
    match verified {
        Ok(event) => {
            println!("{}", event.to_body());
            StatusCode::NO_CONTENT
        }
        // The gateway does not know that it arrived.
        Err(WebhookError::Repeated) => StatusCode::NO_CONTENT,
        // It comes again.
        Err(WebhookError::Full | WebhookError::UnknownKey) => StatusCode::SERVICE_UNAVAILABLE,
        Err(error) => {
            eprintln!("refused: {error}");
            StatusCode::UNAUTHORIZED
        }
    }
}
