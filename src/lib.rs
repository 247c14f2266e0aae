//! RCTP for marketplaces, as composable Tower layers: AI agents buy and sell for people, and the marketplace keeps
//! control. Every agent call is authenticated, tied to a grant that the seller gave and can take back, executed at
//! most once, decided (**auto**, **ask** the seller, or **forbid** with a reason), and written into a hash-chained
//! record. The seller's floor is enforced and never told.
//!
//! ```text
//!                        request
//!                           │
//!   Arrive         which row is it?           matches the table, collects the body once, hashes it once
//!   Authenticate   who is calling?            RFC 9421 signature or OAuth token → Caller
//!   (CallTools)    is it a tool call?         over MCP: its REST request goes on from here
//!   Admit          do we serve it?            RCTP-Version, and a row
//!   Approve        has the seller answered?   the passkey, over what was asked; what was parked goes on from here
//!   Record         is it written down?        refusals on their way out enter the deal record
//!   CheckGrant     may it still act for them? the agent grant, introspected on every call → Grant
//!   Validate       is it well-formed?         the body against its closed schema
//!   Idempotency    has this happened already? one effect per Idempotency-Key
//!   Decide         auto, ask or forbid?       the check order, the floor, the budget, the tier → Decided
//!                           │
//!                     your handler            (or the market service, which is ours)
//! ```
//!
//! The smallest integration: build [`Rctp`], and wrap the router from outside.
//!
//! ```no_run
//! # #[cfg(all(feature = "axum", feature = "sqlite", feature = "fetch"))]
//! # async fn example(pem: &str, id: &str, secret: &str) -> Result<axum::Router, Box<dyn std::error::Error>> {
//! use tower_rctp::{
//!     Rctp,
//!     layer::{authenticate::operators::Operators, grant::introspection::Introspection},
//!     store::SqliteStore,
//!     wire::jwk::SigningKey,
//! };
//!
//! let rctp = Rctp::builder()
//!     .public_url("https://gateway.marketplace.example")
//!     .operators(Operators::onboarded(["https://agent.example/.well-known/ucp"]))
//!     .introspection(
//!         Introspection::endpoint("https://login.marketplace.example/introspect")
//!             .client_secret_basic(id, secret),
//!     )
//!     .store(SqliteStore::open("rctp.db").await?)
//!     .signing_key(SigningKey::from_pkcs8_pem(pem)?)
//!     .build()?;
//!
//! let app = axum::Router::new()
//!     // your own routes, and ours for every operation that you do not serve yourself
//!     .fallback_service(rctp.market());
//! let app = rctp.protect(app);
//! # Ok(app) }
//! ```
//!
//! With plain Tower it is `rctp.layer().layer(service)`. The layers for authentication, grants and idempotency also
//! work alone: [`RctpBuilder::authenticate_alone`], [`RctpBuilder::grant_alone`],
//! [`RctpBuilder::idempotency_alone`]. To verify an RFC 9421 signature without any of this, see [`wire::signature`].
//!
//! *Section numbers* in this documentation are those of the RCTP v0.3 binding; `R1` to `R35` and `I1` onwards are the
//! readings in `docs/interpretations.md`.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `aws-lc-rs` | yes | the default crypto provider |
//! | `p256` | | the pure Rust provider; with both, `aws-lc-rs` is the default one |
//! | `fetch` | yes | profiles and introspection over HTTPS |
//! | `sqlite` | | [`store::SqliteStore`] |
//! | `axum` | | extractors, and [`Rctp`]`::protect` |
//! | `client` | | the agent's side: `client::Signer` and its layer, the verifiers of checkouts, records and webhooks |
//! | `agent` | | `client::Agent`, every operation over reqwest; see `docs/client.md` |
//! | `otel` | | W3C trace context, in and out, for programs that export with `tracing-opentelemetry`; see `docs/operations.md` |
//! | `otlp` | | `otlp::Otlp`, the export of spans |
//! | `mcp` | | [`service::tools`]: RCTP over MCP ([`RctpBuilder::mcp`]), sets of tools and the endpoint that serves them; see `docs/mcp.md` |
//! | `approvals` | | the seller's pages and passkeys: `service::approvals`, `Rctp::pages`; see `docs/approvals.md` |

#[cfg(not(any(feature = "aws-lc-rs", feature = "p256")))]
compile_error!("tower-rctp needs a crypto provider: enable the feature `aws-lc-rs` or `p256`");

#[cfg(feature = "client")]
pub mod client;
pub mod layer;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod protocol;
mod rctp;
pub mod service;
pub mod store;
pub mod wire;

pub use rctp::{
    Authenticated, BuildError, GrantLayer, LifecycleError, Rctp, RctpBuilder, RctpLayer,
};

/// The program in it compiles.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../docs/operations.md")]
struct Operations;
