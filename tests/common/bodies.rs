//! Bodies that end, stall, break off or never end, and that count how often they are read.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// A body: some chunks, and then this.
pub struct Scripted {
    chunks: std::vec::IntoIter<Bytes>,
    then: Then,
    declared: Option<u64>,
    reads: Arc<AtomicUsize>,
}

/// What comes after the chunks.
pub enum Then {
    /// The end.
    End,
    /// Silence, for good.
    Stall,
    /// An error, as of a connection that breaks.
    Break,
    /// The same chunk, without end.
    Again(Bytes),
}

impl Scripted {
    pub fn new(chunks: impl IntoIterator<Item = Bytes>, then: Then) -> Self {
        Self {
            chunks: chunks.into_iter().collect::<Vec<_>>().into_iter(),
            then,
            declared: None,
            reads: Arc::default(),
        }
    }

    /// Says that it has this length, as `Content-Length` does.
    pub fn declaring(mut self, length: u64) -> Self {
        self.declared = Some(length);
        self
    }

    /// How often it was read so far.
    pub fn reads(&self) -> Arc<AtomicUsize> {
        self.reads.clone()
    }
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if let Some(chunk) = self.chunks.next() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        match &self.then {
            Then::End => Poll::Ready(None),
            Then::Stall => Poll::Pending,
            Then::Break => Poll::Ready(Some(Err(io::Error::other("broken off")))),
            Then::Again(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk.clone())))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.declared
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
