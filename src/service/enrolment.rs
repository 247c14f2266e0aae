//! How a seller gets to their first passkey: by a ticket from whoever knows them already.
//!
//! The authorization server, or the marketplace's own login, gives a seller who has signed in there a link to
//! `/enroll#ticket=…`. The gateway asks back whose ticket it is, and takes it once.

use std::sync::Arc;

use crate::{
    layer::grant::introspection::Introspect,
    store::{BoxFuture, Key, Kind, Put, Store, StoreError},
    wire::{base64url, digest::sha256},
};

/// Whoever gives out tickets.
pub trait Tickets: Send + Sync + 'static {
    /// The seller (the grant's `sub`) to whom this ticket was given; `None` where it is unknown or has expired.
    ///
    /// The gateway sees to it that a ticket enrols one passkey; asking does not use it up.
    fn seller<'a>(&'a self, ticket: &'a str) -> BoxFuture<'a, Result<Option<String>, StoreError>>;
}

impl<T: Tickets + ?Sized> Tickets for Arc<T> {
    fn seller<'a>(&'a self, ticket: &'a str) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        (**self).seller(ticket)
    }
}

/// The scope of a ticket that is introspected.
pub const TICKET_SCOPE: &str = "rctp_enrolment";

/// Tickets of an authorization server that tells of them where it tells of tokens (RFC 7662): `active`, with the seller as
/// `sub` and [`TICKET_SCOPE`] as the whole `scope`.
pub(crate) struct Introspected(pub(crate) Arc<dyn Introspect>);

impl Tickets for Introspected {
    fn seller<'a>(&'a self, ticket: &'a str) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async move {
            let said = self.0.introspect(ticket).await.map_err(|error| {
                tracing::error!(%error, "a ticket could not be introspected");
                StoreError("the authorization server did not answer".into())
            })?;
            let is_ticket = said.active && said.scope.as_deref() == Some(TICKET_SCOPE);
            Ok(said.sub.filter(|_| is_ticket))
        })
    }
}

/// What uses a ticket up. It belongs into the unit that stores the passkey: it must be new, so that the second of two
/// such units is a conflict.
#[must_use]
pub fn use_up(ticket: &str) -> Put {
    Put {
        key: key(ticket),
        expected: 0,
        parent: None,
        due: None,
        body: "true".into(),
    }
}

/// Whether a ticket was used up, to say so before the seller is asked for a passkey.
///
/// # Errors
/// When the store does not answer.
pub async fn is_used_up(store: &dyn Store, ticket: &str) -> Result<bool, StoreError> {
    let found = store.load(vec![key(ticket)]).await?;
    Ok(found.into_iter().flatten().next().is_some())
}

/// A ticket is a secret until it has been used, so that only its digest is kept.
fn key(ticket: &str) -> Key {
    let digest = base64url(&sha256(ticket.as_bytes()));
    Key::new(Kind::Nonce, format!("enroll_{digest}"))
}
