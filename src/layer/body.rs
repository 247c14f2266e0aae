//! The body type of the stack: whole once it was collected, a stream where the stack lets it pass.

use std::{
    any::Any,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower::BoxError;

/// A request or response body.
pub struct Body(Inner);

enum Inner {
    Whole(Option<Bytes>),
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

/// Why a body could not be collected.
#[derive(Debug)]
pub(crate) enum CollectError {
    TooLarge,
    Broken,
}

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self(Inner::Whole(None))
    }

    /// Takes any body; one that already is a [`Body`] as it is, without a box.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mut body = Some(body);
        if let Some(this) = (&mut body as &mut dyn Any).downcast_mut::<Option<Body>>() {
            return this.take().unwrap_or_else(Body::empty);
        }
        match body {
            Some(body) if !body.is_end_stream() => {
                Self(Inner::Stream(body.map_err(Into::into).boxed_unsync()))
            }
            _ => Self::empty(),
        }
    }

    /// Collects the body, at most `limit` bytes. A declared length over the limit is refused before a byte is read.
    pub(crate) async fn collect(self, limit: usize) -> Result<Bytes, CollectError> {
        let mut stream = match self.0 {
            Inner::Whole(bytes) => {
                let bytes = bytes.unwrap_or_default();
                return if bytes.len() > limit {
                    Err(CollectError::TooLarge)
                } else {
                    Ok(bytes)
                };
            }
            Inner::Stream(stream) => stream,
        };
        if stream.size_hint().lower() > limit as u64 {
            return Err(CollectError::TooLarge);
        }
        let mut first: Option<Bytes> = None;
        let mut rest = BytesMut::new();
        let mut total = 0;
        while let Some(frame) = stream.frame().await {
            let frame = frame.map_err(|_| CollectError::Broken)?;
            // Trailers carry nothing that is read here.
            let Ok(data) = frame.into_data() else {
                continue;
            };
            total += data.len();
            if total > limit {
                return Err(CollectError::TooLarge);
            }
            match &first {
                None => first = Some(data),
                Some(head) => {
                    if rest.is_empty() {
                        rest.extend_from_slice(head);
                    }
                    rest.extend_from_slice(&data);
                }
            }
        }
        Ok(if rest.is_empty() {
            first.unwrap_or_default()
        } else {
            rest.freeze()
        })
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Inner::Whole((!bytes.is_empty()).then_some(bytes)))
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Body")
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Inner::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Inner::Stream(stream) => Pin::new(stream).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole(bytes) => bytes.is_none(),
            Inner::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Inner::Stream(stream) => stream.size_hint(),
        }
    }
}
