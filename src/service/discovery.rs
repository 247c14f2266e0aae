//! The documents that a gateway serves about itself (binding 3.1, 10).

use serde_json::{Value, json};

use crate::protocol::policy::Policy;

/// OAuth protected-resource metadata (RFC 9728), for `/.well-known/oauth-protected-resource`.
pub fn protected_resource(public_url: &str, authorization_server: &str, policy: &Policy) -> Value {
    let scopes: Vec<&str> = policy.tiers.iter().map(|(scope, _)| scope).collect();
    json!({
        "resource": public_url,
        "authorization_servers": [authorization_server],
        "scopes_supported": scopes,
        "bearer_methods_supported": ["header"],
    })
}
