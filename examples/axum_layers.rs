//! An axum app that existed before, and the few lines that add RCTP to it.
//!
//! `cargo run --example axum_layers`, then `curl -i localhost:3000/` (as ever) and
//! `curl -i -X POST localhost:3000/offers/off_1/accept` (401: no agent gets in unsigned).

use axum::{
    Json, Router,
    routing::{get, post},
};
use serde_json::{Value, json};
use tower_rctp::{
    Rctp,
    layer::{
        authenticate::operators::Operators, decision::Decided, grant::introspection::Introspection,
    },
    store::SqliteStore,
    wire::jwk::SigningKey,
};

// ---- The app as it was ------------------------------------------------------------------------------------------

async fn home() -> &'static str {
    "Bicycles, new and used.\n"
}

/// The shop's own way to accept an offer: it tells the warehouse.
async fn accept_offer(decided: Decided) -> Json<Value> {
    // The extractor is the one new line: without a decision the handler is not reached.
    // By now it was decided `auto`, the floor holds, and the listing is reserved for this offer.
    let offer = decided.facts().offer.as_ref();
    println!("warehouse: put aside {:?}", offer.map(|o| &o.listing_id));
    Json(json!({ "accepted": offer.map(|o| &o.offer_id) }))
}

// ---- The lines that add RCTP ------------------------------------------------------------------------------------

async fn rctp() -> Result<Rctp, Box<dyn std::error::Error>> {
    let rctp = Rctp::builder()
        // What agents address; signatures cover this host. In production: https, and no `dev`.
        .public_url("http://localhost:3000")
        .dev(true)
        // Whose agents may call: operators, by the URL of their profile.
        .operators(Operators::onboarded([
            "https://agent.example/.well-known/ucp",
        ]))
        // Who knows whether a seller's grant still holds; asked on every call.
        .introspection(
            Introspection::endpoint("http://localhost:9000/oauth/introspect")
                .client_secret_basic("shop", "from your secret store"),
        )
        // Where offers, answers and the record live.
        .store(SqliteStore::open("shop-rctp.db").await?)
        // Signs checkouts and the record. Keep one in a file: SigningKey::from_pkcs8_pem.
        .signing_key(SigningKey::generate()?)
        .build()?;
    Ok(rctp)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rctp = rctp().await?;

    let app = Router::new()
        .route("/", get(home))
        // The shop's own handler, for this one operation. `simple` makes decision and reservation durable before it
        // runs and its answer after it.
        .route(
            "/offers/{id}/accept",
            post(accept_offer).layer(rctp.simple()),
        )
        // RCTP's handlers for every other operation.
        .fallback_service(rctp.market());

    // From outside, around the whole router, so that nothing of RCTP's can be reached undecided.
    let app = rctp.protect(app);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://localhost:3000");
    axum::serve(listener, app).await?;
    Ok(())
}
