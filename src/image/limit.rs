//! How many pulls run at a time and how fast they may begin.

use crate::model::Bucket;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// The limits, shared by all pods.
#[derive(Clone, Debug)]
pub(super) struct PullLimits {
    /// First come, first served.
    slots: Option<Arc<Semaphore>>,
    rate: Option<Arc<Rate>>,
}

#[derive(Debug)]
struct Rate {
    start: Instant,
    bucket: Mutex<Bucket>,
}

/// Leave to run one pull; given back by dropping it.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: Option<OwnedSemaphorePermit>,
    /// Whether other pulls had to end first.
    pub(super) waited: bool,
}

impl PullLimits {
    pub(super) fn new(parallel: Option<u32>, qps: u32, burst: u32) -> Self {
        let slots = parallel.map(|n| {
            let n = usize::try_from(n.max(1)).unwrap_or(usize::MAX);
            Arc::new(Semaphore::new(n.min(Semaphore::MAX_PERMITS)))
        });
        let rate = (qps > 0).then(|| {
            let bucket = Mutex::new(Bucket::new(qps, burst.max(1)));
            Arc::new(Rate { start: Instant::now(), bucket })
        });
        Self { slots, rate }
    }

    /// Waits for a turn.
    ///
    /// # Cancel safety
    /// Dropping it leaves the queue.
    pub(super) async fn slot(&self) -> Slot {
        let Some(slots) = &self.slots else { return Slot { _permit: None, waited: false } };
        if let Ok(permit) = Arc::clone(slots).try_acquire_owned() {
            return Slot { _permit: Some(permit), waited: false };
        }
        // The semaphore is never closed; without it there is nothing to wait for.
        let permit = Arc::clone(slots).acquire_owned().await.ok();
        Slot { _permit: permit, waited: true }
    }

    /// Whether a pull may begin now. Never waits: too fast is a failure (`pull QPS exceeded`).
    pub(super) fn may_begin(&self) -> bool {
        let Some(rate) = &self.rate else { return true };
        let mut bucket = rate.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(rate.start.elapsed())
    }
}
