//! Reads file systems, apart from the loop: one that hangs holds up nothing but its own readings.

use crate::{
    cri::RuntimeClient,
    model::DiskLayout,
    signals::{Disks, NoReading, Sample},
};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// How long a file system may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the runtime may take to tell where its images lie, and the pause after it has not.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What was read last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::agent) struct DiskSample {
    pub sample: Sample,
    pub layout: DiskLayout,
}

pub(in crate::agent) struct DiskTask {
    pub runtime: RuntimeClient,
    pub root_dir: PathBuf,
    /// Time between two readings.
    pub period: watch::Receiver<Duration>,
    pub published: watch::Sender<Arc<DiskSample>>,
}

impl DiskTask {
    pub(in crate::agent) async fn run(mut self, shutdown: CancellationToken) {
        let mut disks = Disks::new(&self.root_dir);
        let mut located = false;
        loop {
            let sample = disks.sample(PATIENCE).await;
            let moved = |why: &NoReading| matches!(why, NoReading::Moved { .. });
            located &= !sample.missing.values().any(moved);
            let layout = disks.layout();
            self.published.send_replace(Arc::new(DiskSample { sample, layout }));
            if !located {
                located = self.locate(&mut disks).await;
                if located {
                    continue;
                }
            }
            let read = Instant::now();
            // Every arm only waits.
            loop {
                let mut period = *self.period.borrow_and_update();
                if !located {
                    period = period.min(ASK_AGAIN);
                }
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep_until(read + period) => break,
                    changed = self.period.changed() => {
                        if changed.is_err() {
                            return shutdown.cancelled().await;
                        }
                    }
                }
            }
        }
    }

    /// Asks the runtime where its images lie.
    async fn locate(&self, disks: &mut Disks) -> bool {
        let asked = tokio::time::timeout(RUNTIME_PATIENCE, self.runtime.image_filesystems()).await;
        let Ok(Ok(found)) = asked else { return false };
        match disks.locate(&found.images, &found.containers, PATIENCE).await {
            Ok(layout) => {
                tracing::debug!(?layout, "file systems of root directory, images and layers");
                true
            }
            Err(err) => {
                tracing::debug!(%err, "which file systems count is not known");
                false
            }
        }
    }
}
