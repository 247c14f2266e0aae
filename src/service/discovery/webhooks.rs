//! The webhooks that a gateway sends, in its OpenAPI document (binding 9).

use serde_json::{Map, Value, json};

use crate::protocol::webhook::ACCEPTED;

/// Type, place in the schema `webhook-event`, and what it tells.
const EVENTS: [(&str, &str); 3] = [
    (
        "approval.decided",
        "To the operator whose agent asked, once the seller has answered or the time is up: the approval with its outcome, as \
         `get_approval` shows it.",
    ),
    (
        "offer.updated",
        "To the operator of the other side than the one that acted; to the buyer's when time ended an offer. The buyer's gets \
         the offer, as `get_offer` shows it; the seller's learns which one it is, since its agents read offers by a grant.",
    ),
    (
        "deal.event",
        "To the operators of the buyer and of the agent that made the listing, and to those that have recorded an event of the \
         deal before, except the one that wrote this event: read it with `get_deal_events`.",
    ),
];

/// The member `webhooks`.
pub(super) fn webhooks(public_url: &str) -> Value {
    let event = |place: usize, name: &str, description: &str| {
        json!({"post": {
            "operationId": name.replace('.', "_"),
            "summary": format!("The event {name}"),
            "description": description,
            "parameters": headers(public_url),
            "requestBody": {
                "required": true,
                "content": {"application/json": {
                    "schema": {"$ref": format!("#/components/schemas/webhook-event/oneOf/{place}")},
                }},
            },
            "responses": {
                "2XX": {"description": "It is safe with the receiver, or has been here before."},
                "default": {"description": "It is tried again, for 280 seconds."},
            },
        }})
    };
    let events = EVENTS.iter().enumerate();
    let events = events.map(|(n, (name, text))| ((*name).to_owned(), event(n, name, text)));
    Value::Object(Map::from_iter(events))
}

fn headers(public_url: &str) -> Value {
    let header = |name: &str, description: &str, schema: Value| {
        json!({
            "name": name, "in": "header", "required": true, "description": description, "schema": schema,
        })
    };
    let text = || json!({"type": "string"});
    json!([
        header(
            "Webhook-Id",
            "The `event_id` of the body. One that has been here before is dropped, and answered 2xx.",
            json!({"type": "string", "pattern": "^evt_"}),
        ),
        header(
            "Webhook-Timestamp",
            &format!(
                "The `created_at` of the body in Unix seconds. One of more than {ACCEPTED} seconds ago is refused."
            ),
            json!({"type": "integer"}),
        ),
        header(
            "UCP-Agent",
            "This gateway; a receiver believes the one that it has configured.",
            json!({"const": format!("profile=\"{public_url}/.well-known/ucp\"")}),
        ),
        header("Content-Digest", "RFC 9530, sha-256 over the body.", text()),
        header(
            "Signature-Input",
            "RFC 9421: label `sig1` with keyid and created, over \"@method\" \"@authority\" \"@path\" \"content-digest\" \
             \"content-type\"; and \"@query\" where the `webhook_url` has one.",
            text(),
        ),
        header(
            "Signature",
            "By a key in `keys` of the gateway's profile.",
            text(),
        ),
    ])
}
