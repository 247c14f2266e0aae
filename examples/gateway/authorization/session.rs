//! Who sits at the browser.

use http::HeaderMap;
use tower_rctp::store::{BoxFuture, StoreError};

/// The marketplace's login.
pub trait Sessions: Send + Sync + 'static {
    /// The seller (the grant's `sub`) whose browser sent these headers.
    fn seller<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>>;
}

/// No login: no seller can consent to anything.
pub struct NoLogin;

impl Sessions for NoLogin {
    fn seller<'a>(&'a self, _: &'a HeaderMap) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async { Ok(None) })
    }
}
