//! Pods that wait for a walk of their directories.

use super::{
    usage::PodPlaces,
    walk::{self, Turn, Turns, WalkError},
};
use crate::model::PodUid;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;

/// Pods whose directories are walked at a time.
const WALKS: usize = 4;

/// Turns for the walks of one kind of directory. A file system that hangs keeps the turns of the
/// walks on it. Cheap to clone; all clones take turns.
#[derive(Clone, Debug)]
pub(super) struct WalkQueue {
    pub(super) turns: Turns,
    /// The pods that had no turn when they were measured last. They come first the next time.
    turned_away: Arc<Mutex<BTreeSet<PodUid>>>,
}

impl Default for WalkQueue {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(WALKS)), turned_away: Arc::default() }
    }
}

impl WalkQueue {
    /// The pods, with their places in `pods`, in the order in which they get turns: first those that
    /// had none when they were measured last. That is forgotten with this call.
    pub(super) fn in_order<'a>(
        &self,
        pods: &'a [PodPlaces],
    ) -> impl Iterator<Item = (usize, &'a PodPlaces)> + use<'a> {
        let mut turned_away = self.turned_away();
        let (first, then): (Vec<_>, Vec<_>) =
            pods.iter().enumerate().partition(|(_, pod)| turned_away.remove(&pod.uid));
        first.into_iter().chain(then)
    }

    /// Waits for the turn of a pod, and remembers it if none comes `within` this time.
    ///
    /// # Errors
    /// When none comes.
    pub(super) async fn turn(&self, pod: PodUid, within: Duration) -> Result<Turn, WalkError> {
        let turn = walk::turn(&self.turns, within).await;
        if turn.is_err() {
            self.turned_away().insert(pod);
        }
        turn
    }

    /// Forgets the pods that are gone.
    pub(super) fn keep(&self, is_there: impl Fn(&PodUid) -> bool) {
        self.turned_away().retain(is_there);
    }

    fn turned_away(&self) -> MutexGuard<'_, BTreeSet<PodUid>> {
        // Each change of it is whole.
        self.turned_away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
