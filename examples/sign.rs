//! Prints a signed request as a curl command.
//!
//! ```text
//! cargo run --example sign -- --key agent.pem --profile https://agent.example/.well-known/ucp \
//!     --url https://gateway.example/offers --body '{"listing_id": …}'
//! ```
//!
//! The key is a P-256 private key in PKCS#8 PEM, as `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`
//! writes it; the operator's profile must list its public half (`--show-jwk` prints it).

use std::{error::Error, io::Read, path::PathBuf};

use bytes::Bytes;
use clap::Parser;
use http::{Method, Request, Uri, header};
use tower_rctp::{client::Signer, wire::jwk::SigningKey};

/// Prints a signed request as a curl command, good for 60 seconds.
#[derive(Parser)]
struct Args {
    /// The agent's private key: P-256, PKCS#8 PEM.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The operator profile that lists the key.
    #[arg(long, value_name = "URL", required_unless_present = "show_jwk")]
    profile: Option<String>,
    /// The absolute URL to call.
    #[arg(long, required_unless_present = "show_jwk")]
    url: Option<Uri>,
    /// The method; POST with a body, else GET.
    #[arg(long)]
    method: Option<Method>,
    /// The body: JSON text, @FILE, or - for standard input.
    #[arg(long)]
    body: Option<String>,
    /// The access token of the seller's grant, for the seller's operations.
    #[arg(long, env = "RCTP_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The Idempotency-Key, to repeat a request; a new one if left out.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Have curl print the answer's body alone, as a file takes it.
    #[arg(long)]
    body_only: bool,
    /// Print the key's public JWK, for the profile, and nothing else.
    #[arg(long)]
    show_jwk: bool,
}

fn main() {
    if let Err(error) = run(Args::parse()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let file = args.key.display();
    let pem = std::fs::read_to_string(&args.key).map_err(|e| format!("--key {file}: {e}"))?;
    let key = SigningKey::from_pkcs8_pem(&pem).map_err(|e| format!("--key {file}: {e}"))?;
    if args.show_jwk {
        println!("{}", serde_json::to_string_pretty(&key.public_jwk())?);
        return Ok(());
    }
    let body = body(args.body.as_deref())?;
    let method = args.method.unwrap_or(match args.body {
        Some(_) => Method::POST,
        None => Method::GET,
    });
    let mut request = Request::new(Bytes::from(body));
    *request.method_mut() = method;
    *request.uri_mut() = args.url.unwrap_or_default();
    if let Some(token) = args.token {
        let value = format!("Bearer {token}")
            .parse()
            .map_err(|_| "--token: not a token")?;
        request.headers_mut().insert(header::AUTHORIZATION, value);
    }
    if let Some(key) = args.idempotency_key {
        let value = key
            .parse()
            .map_err(|_| "--idempotency-key: not a header value")?;
        request.headers_mut().insert("idempotency-key", value);
    }
    Signer::new(&args.profile.unwrap_or_default(), key)?.sign(&mut request)?;
    println!("{}", curl(&request, args.body_only)?);
    Ok(())
}

fn body(argument: Option<&str>) -> Result<Vec<u8>, Box<dyn Error>> {
    Ok(match argument {
        None => Vec::new(),
        Some("-") => {
            let mut text = Vec::new();
            std::io::stdin().read_to_end(&mut text)?;
            text
        }
        Some(text) => match text.strip_prefix('@') {
            Some(file) => std::fs::read(file).map_err(|e| format!("--body @{file}: {e}"))?,
            None => text.as_bytes().to_vec(),
        },
    })
}

/// The request as a command for a POSIX shell.
fn curl(request: &Request<Bytes>, body_only: bool) -> Result<String, Box<dyn Error>> {
    let head = if body_only { "" } else { " -i" };
    let mut command = format!("curl -sS{head} -X {}", request.method());
    for (name, value) in request.headers() {
        let header = format!("{name}: {}", value.to_str()?);
        command.push_str(&format!(" \\\n  -H {}", quoted(&header)));
    }
    if !request.body().is_empty() {
        let text = std::str::from_utf8(request.body())
            .map_err(|_| "--body: not UTF-8, so it cannot stand in a command")?;
        command.push_str(&format!(" \\\n  --data-binary {}", quoted(text)));
    }
    command.push_str(&format!(" \\\n  {}", quoted(&request.uri().to_string())));
    Ok(command)
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
