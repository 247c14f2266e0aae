//! The example gateway, over real HTTP: its settings, its documents, what it counts and logs, and how it ends.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[allow(dead_code, unused_imports)]
#[path = "../../examples/gateway/main.rs"]
mod gateway;

mod authorization;
mod dead_letters;
mod dev;
mod end;
mod limits;
mod oauth;
mod program;
mod serves;
mod settings;
mod shop;
