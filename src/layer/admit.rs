//! Is it a request that we serve? The version, and a row (R7: after authentication, so that strangers learn nothing).

use std::future::ready;

use futures_util::future::Either;
use http::{Request, Response};
use tracing::Span;

use super::{
    arrive::{Arrived, Route, refuse},
    body::Body,
    step::{Next, Step},
};
use crate::protocol::{
    VERSION,
    refusal::{ProtocolError, Refusal},
};

/// Checks `RCTP-Version` (binding 10) and answers 404 where there is no row.
#[derive(Clone, Copy, Debug)]
pub struct Admit;

impl Step for Admit {
    fn run<N: Next>(
        self,
        request: Request<Body>,
        next: N,
    ) -> impl Future<Output = Result<Response<Body>, N::Error>> + Send + 'static {
        match admitted(&request) {
            Ok(()) => Either::Left(next.run(request)),
            Err(refusal) => Either::Right(ready(Ok(refuse(&refusal)))),
        }
    }

    fn span(&self, _: &Request<Body>) -> Span {
        tracing::debug_span!("rctp.admit")
    }
}

fn admitted(request: &Request<Body>) -> Result<(), Refusal> {
    version(request)?;
    match request.extensions().get::<Arrived>().map(Arrived::route) {
        Some(Route::Row(..)) => Ok(()),
        Some(Route::Unknown | Route::Tools(_) | Route::NoTable) | None => Err(Refusal::not_found()),
    }
}

/// The client may name the version that it speaks, as an sf-string.
fn version(request: &Request<Body>) -> Result<(), Refusal> {
    let mut values = request.headers().get_all("rctp-version").iter();
    let Some(value) = values.next() else {
        return Ok(());
    };
    let served = values.next().is_none()
        && sfv::Parser::new(value.as_bytes())
            .parse::<sfv::Item>()
            .is_ok_and(
                |item| matches!(&item.bare_item, sfv::BareItem::String(s) if s.as_str() == VERSION),
            );
    if served {
        return Ok(());
    }
    Err(Refusal::protocol(
        ProtocolError::UnsupportedVersion,
        format!("this gateway serves RCTP-Version: \"{VERSION}\" only"),
    ))
}
