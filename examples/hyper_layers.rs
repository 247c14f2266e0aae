//! A plain hyper service that existed before, and the few lines that add one RCTP layer to it: who is calling?
//!
//! `cargo run --example hyper_layers`, then `curl -i localhost:3001/` (401: the request is not signed).
//! The authentication layer works alone: no table of operations, no store, any path.

use std::convert::Infallible;

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tower::{ServiceBuilder, service_fn};
use tower_rctp::{
    Rctp,
    layer::{
        authenticate::{Mechanisms, operators::Operators},
        body::Body,
    },
    protocol::caller::Caller,
};

// ---- The service as it was --------------------------------------------------------------------------------------

async fn hello(request: Request<Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    // The new line: behind the layer there is always a Caller, with the operator and the key that signed.
    let caller = request.extensions().get::<Caller>();
    let operator = caller.map_or("nobody", |caller| &*caller.operator);
    Ok(Response::new(Full::from(format!("Hello, {operator}!\n"))))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ---- The lines that add RCTP ----------------------------------------------------------------------------------
    let authenticate = Rctp::builder()
        .public_url("http://localhost:3001") // In production: https, and no `dev`.
        .dev(true)
        .operators(Operators::onboarded([
            "https://agent.example/.well-known/ucp",
        ]))
        .mechanisms(Mechanisms::none().http_signature())
        .authenticate_alone()?;
    let service = ServiceBuilder::new()
        .layer(authenticate)
        .service(service_fn(hello));

    // ---- And the server, unchanged --------------------------------------------------------------------------------
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3001").await?;
    println!("listening on http://localhost:3001");
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                eprintln!("connection: {error}");
            }
        });
    }
}
