//! How a marketplace's sellers approve: their sessions, their passkeys, and the texts and look of the hosted pages
//! (binding 7; R27).
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use tower_rctp::{Rctp, service::{approvals::Approvals, enrolment::Tickets}};
//! # fn f(tickets: impl Tickets) -> Result<(), Box<dyn std::error::Error>> {
//! let approvals = Approvals::new("The Marketplace")
//!     // whoever knows the sellers already gives them a ticket for their first passkey
//!     .tickets(tickets)
//!     // texts and colours of one's own
//!     .text("signin_title", "Welcome back")
//!     .stylesheet(":root { --main: light-dark(#0b6e4f, #7fd1ae) }");
//! let rctp = Rctp::builder()
//!     .approvals(approvals)
//!     // …
//!     .build()?;
//! let pages = rctp.pages(); // a Tower service; with axum, merge `pages.router()`
//! # Ok(()) }
//! ```

use std::{collections::BTreeMap, fmt, sync::Arc};

use http::HeaderMap;
use serde_json::Value;

use super::{
    enrolment::Tickets,
    passkeys::{PasskeyError, Passkeys},
    session::{PasskeySessions, Sessions},
};
use crate::{
    layer::approve::{Approver, NotVerified},
    store::{BoxFuture, Put, StoreError},
};

/// Settings of the hosted pages.
#[derive(Clone)]
pub struct Approvals {
    pub(crate) marketplace: String,
    pub(crate) tickets: TicketSource,
    pub(crate) sessions: Option<Arc<dyn Sessions>>,
    pub(crate) texts: BTreeMap<String, String>,
    pub(crate) stylesheet: String,
}

impl fmt::Debug for Approvals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Approvals")
            .field("marketplace", &self.marketplace)
            .finish_non_exhaustive()
    }
}

impl Approvals {
    /// Pages for the marketplace of this name, which passkeys and pages show.
    pub fn new(marketplace: impl Into<String>) -> Self {
        Self {
            marketplace: marketplace.into(),
            tickets: TicketSource::None,
            sessions: None,
            texts: BTreeMap::new(),
            stylesheet: String::new(),
        }
    }

    /// Whoever gives out enrolment tickets. Without, `/enroll` answers that there is none.
    #[must_use]
    pub fn tickets(mut self, tickets: impl Tickets) -> Self {
        self.tickets = TicketSource::Given(Arc::new(tickets));
        self
    }

    /// Tickets are introspected where tokens are (RFC 7662): the authorization server answers `active`, the seller's `sub`,
    /// and [`TICKET_SCOPE`](super::enrolment::TICKET_SCOPE) as the only scope.
    #[must_use]
    pub fn introspected_tickets(mut self) -> Self {
        self.tickets = TicketSource::Introspected;
        self
    }

    /// The marketplace's own login, in place of sign-in by passkey. Approving takes the passkey all the same. Set the
    /// text `signin_url` to the login's address: the pages link there, with `return_to`, the path on this origin that the
    /// login sends the browser back to.
    #[must_use]
    pub fn sessions(mut self, sessions: impl Sessions) -> Self {
        self.sessions = Some(Arc::new(sessions));
        self
    }

    /// A text of the pages in other words, by its key in `src/service/pages/texts.en.json`. Another language is all of
    /// them, with `lang` and `dir`.
    #[must_use]
    pub fn text(mut self, key: impl Into<String>, text: impl Into<String>) -> Self {
        self.texts.insert(key.into(), text.into());
        self
    }

    /// CSS after that of the pages; their colours are custom properties of `:root`.
    #[must_use]
    pub fn stylesheet(mut self, css: impl Into<String>) -> Self {
        self.stylesheet = css.into();
        self
    }
}

/// Who knows whose ticket it is.
#[derive(Clone)]
pub(crate) enum TicketSource {
    None,
    Given(Arc<dyn Tickets>),
    Introspected,
}

/// What the pages and the answer to an approval share.
pub(crate) struct Hosted {
    pub(crate) passkeys: Passkeys,
    pub(crate) own_sessions: PasskeySessions,
    pub(crate) sessions: Option<Arc<dyn Sessions>>,
    pub(crate) tickets: Option<Arc<dyn Tickets>>,
}

impl Hosted {
    pub(crate) async fn seller(&self, headers: &HeaderMap) -> Result<Option<String>, StoreError> {
        match &self.sessions {
            Some(sessions) => sessions.seller(headers).await,
            None => self.own_sessions.seller(headers).await,
        }
    }
}

/// The approver that goes with the hosted pages.
#[derive(Clone)]
pub(crate) struct HostedApprover(pub(crate) Arc<Hosted>);

impl Approver for HostedApprover {
    fn seller<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(self.0.seller(headers))
    }

    fn verify<'a>(
        &'a self,
        seller: &'a str,
        challenge: &'a str,
        credential: &'a Value,
    ) -> BoxFuture<'a, Result<Vec<Put>, NotVerified>> {
        Box::pin(async move {
            let verified = self.0.passkeys.verify(seller, challenge, credential).await;
            verified.map_err(|error| match error {
                PasskeyError::Refused(why) => NotVerified::Refused(why),
                PasskeyError::Store(error) => NotVerified::Store(error),
                PasskeyError::Seal(error) => NotVerified::Store(StoreError(error.to_string())),
            })
        })
    }
}
