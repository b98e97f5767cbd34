//! gRPC's framing: one byte of flags, four of length, the message. And the stream of events cut
//! along it, so that single events can be dropped, doubled or kept back.

use super::{EventFault, Shared};
use hyper::body::{Body, Bytes, Frame, Incoming};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

const HEADER: usize = 5;

/// The one message in a unary request or response body; empty when there is none.
pub(super) fn message(body: &[u8]) -> &[u8] {
    body.get(HEADER..).unwrap_or_default()
}

/// A response body of events, with faults.
pub(super) struct Events {
    inner: Incoming,
    pending: Vec<u8>,
    /// A message that waits for the next one to pass.
    held: Vec<u8>,
    shared: Arc<Shared>,
}

impl Events {
    pub(super) fn new(inner: Incoming, shared: Arc<Shared>) -> Self {
        Self { inner, pending: Vec::new(), held: Vec::new(), shared }
    }

    /// Takes the whole messages out of what has arrived, as the present fault wants them.
    fn take_messages(&mut self) -> Vec<u8> {
        let fault = self.shared.state().events;
        let mut out = Vec::new();
        while let Some(length) = message_length(&self.pending) {
            let message: Vec<u8> = self.pending.drain(..length).collect();
            match fault {
                EventFault::None => out.extend(message),
                EventFault::Drop => {}
                EventFault::Duplicate => {
                    out.extend_from_slice(&message);
                    out.extend(message);
                }
                EventFault::Reorder if self.held.is_empty() => {
                    self.held = message;
                    continue;
                }
                EventFault::Reorder => out.extend(message),
            }
            out.append(&mut self.held);
        }
        out
    }
}

fn message_length(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(bytes.get(1..HEADER)?.try_into().ok()?);
    let length = HEADER + usize::try_from(length).ok()?;
    (bytes.len() >= length).then_some(length)
}

impl Body for Events {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            let frame = match Pin::new(&mut self.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                ended @ (Poll::Ready(Some(Err(_)) | None) | Poll::Pending) => return ended,
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
            self.pending.extend_from_slice(&data);
            let out = self.take_messages();
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))));
            }
        }
    }
}
