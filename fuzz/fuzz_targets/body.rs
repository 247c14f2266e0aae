//! A request body: strict reading, and every request schema. What passes the schema of an offer is one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Deserialize;
use tower_rctp::protocol::{
    decision::{NewListing, NewOffer},
    schema,
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(body) = schema::parse(bytes) else {
        return;
    };
    for (name, _) in schema::FILES {
        if !name.ends_with("-request") {
            continue;
        }
        match (schema::validate(name, &body), *name) {
            (Ok(()), "offer-create-request" | "offer-counter-request") => {
                NewOffer::deserialize(&body).expect("what passes the schema is an offer");
            }
            (Ok(()), "listing-create-request") => {
                NewListing::deserialize(&body).expect("what passes the schema is a listing");
            }
            (Ok(()), _) => {}
            (Err(violation), _) => assert!(!violation.to_string().is_empty()),
        }
    }
});
