//! What the requests of one connection share, and how much the connection keeps its place for them.

use super::last_moved::LastMoved;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tokio::sync::{Notify, Semaphore};

/// The most requests that a connection has at a time over HTTP/2.
pub(super) const STREAMS: u32 = 8;

/// How much a connection keeps its place, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It has no complete request.
    Silent,
    /// It has a request, and none of its requests was let in. Anybody gets this far.
    Stranger,
    /// It has a request, and one of its requests was let in.
    Known,
}

/// What the requests of a connection share. It is an extension of each request.
#[derive(Debug)]
pub(super) struct ConnectionRequests {
    /// How many hold a [`HeldPlace`].
    placed: AtomicUsize,
    /// Whether a request was let in.
    is_known: AtomicBool,
    /// Over HTTP/2 each request has a turn until it is answered.
    pub(super) turns: Semaphore,
    /// Whether the connection ends when no request holds a [`HeldPlace`] any more.
    leaves: AtomicBool,
    /// Wakes the task of the connection when `leaves` was set.
    pub(super) leave_requested: Notify,
    /// When a request last arrived or was answered; before that, when the connection was accepted.
    pub(super) moved: LastMoved,
}

impl Default for ConnectionRequests {
    fn default() -> Self {
        Self {
            placed: AtomicUsize::new(0),
            is_known: AtomicBool::new(false),
            turns: Semaphore::new(1),
            leaves: AtomicBool::new(false),
            leave_requested: Notify::new(),
            moved: LastMoved::default(),
        }
    }
}

impl ConnectionRequests {
    pub(super) fn standing(&self) -> Standing {
        match (self.placed() > 0, self.is_known()) {
            (false, _) => Standing::Silent,
            (true, false) => Standing::Stranger,
            (true, true) => Standing::Known,
        }
    }

    pub(super) fn placed(&self) -> usize {
        self.placed.load(Ordering::Relaxed)
    }

    /// A complete request has arrived, for which the connection is kept until the place is dropped.
    /// `None` once the connection leaves.
    pub(super) fn place(self: &Arc<Self>) -> Option<HeldPlace> {
        if self.leaves() {
            return None;
        }
        self.placed.fetch_add(1, Ordering::Relaxed);
        self.moved.mark();
        Some(HeldPlace(Arc::clone(self)))
    }

    /// A request is let in, and others need not wait for its answer.
    pub(super) fn let_in(&self) {
        if !self.is_known.swap(true, Ordering::Relaxed) {
            self.turns.add_permits(STREAMS as usize - 1);
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    pub(super) fn leave(&self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.leave_requested.notify_one();
    }

    pub(super) fn leaves(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }
}

/// One of the requests for which a connection is kept.
pub(super) struct HeldPlace(Arc<ConnectionRequests>);

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.0.placed.fetch_sub(1, Ordering::Relaxed);
        self.0.moved.mark();
    }
}

/// The answer to a request, which has its place until its last part is handed to the connection.
pub(super) struct PlacedBody {
    pub(super) body: Body,
    pub(super) _place: Option<HeldPlace>,
}

impl HttpBody for PlacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
