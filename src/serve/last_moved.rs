//! When something last moved on a connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// The time of the last move. It begins with now.
#[derive(Debug)]
pub(super) struct LastMoved(Mutex<Instant>);

impl Default for LastMoved {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl LastMoved {
    /// Something moves now.
    pub(super) fn mark(&self) {
        *self.lock() = Instant::now();
    }

    pub(super) fn at(&self) -> Instant {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        // One value, which is replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
