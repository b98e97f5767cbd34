//! Reads file systems in a task of its own. A file system that hangs delays the readings of the
//! others by a second at most, and a runtime that hangs delays none.

use crate::{
    cri::{ImageFilesystems, RuntimeClient},
    signals::{DiskReadings, DiskSample, Disks, NoReading, Sample},
};
use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// How long a file system may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the runtime may take to report where it stores images.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(5);
/// The pause before the runtime is asked again after it did not report it.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The runtime is asked again after this time at the latest, because its configuration may change.
const ASK_ANYWAY: Duration = Duration::from_secs(60);

/// The task that reads file systems.
pub struct DiskTask {
    runtime: RuntimeClient,
    disks: Disks,
    runtime_dirs: Arc<[PathBuf]>,
    /// Time between two readings.
    period: watch::Receiver<Duration>,
    published: watch::Sender<Arc<DiskSample>>,
    wanted: Arc<Notify>,
}

/// A request to the runtime for the location of its images; `None` when it does not answer in time.
type Asked = Pin<Box<dyn Future<Output = Option<ImageFilesystems>> + Send>>;

impl DiskTask {
    /// A task that reads the file systems of `root_dir`, of images and of writable layers, once
    /// in every `period`; and the receiver of its readings.
    #[must_use]
    pub fn new(
        runtime: RuntimeClient,
        root_dir: &Path,
        period: watch::Receiver<Duration>,
    ) -> (Self, DiskReadings) {
        let (published, latest) = watch::channel(Arc::default());
        let wanted = Arc::<Notify>::default();
        let readings = DiskReadings::new(latest, Arc::clone(&wanted));
        (
            Self {
                runtime,
                disks: Disks::new(root_dir),
                runtime_dirs: Arc::default(),
                period,
                published,
                wanted,
            },
            readings,
        )
    }

    /// Runs until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut asked: Option<Asked> = Some(self.ask_runtime(Duration::ZERO));
        let mut located_at = Instant::now();
        loop {
            let sample = self.disks.sample(PATIENCE).await;
            let read = Instant::now();
            if asked.is_none() {
                let pause = asks_again(&sample, read - located_at);
                asked = pause.map(|pause| self.ask_runtime(pause));
            }
            let images = self.disks.images().map(Path::to_owned);
            let read_now = DiskSample {
                sample,
                layout: self.disks.layout(),
                images,
                runtime_dirs: Arc::clone(&self.runtime_dirs),
            };
            self.published.send_replace(Arc::new(read_now));
            // Every arm only waits, and the question to the runtime outlives the select.
            loop {
                let period = *self.period.borrow_and_update();
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = self.wanted.notified() => break,
                    () = tokio::time::sleep_until(read + period) => break,
                    changed = self.period.changed() => {
                        if changed.is_err() {
                            return shutdown.cancelled().await;
                        }
                    }
                    found = answer(&mut asked) => {
                        let located = self.locate(found).await;
                        asked = (!located).then(|| self.ask_runtime(ASK_AGAIN));
                        if located {
                            located_at = Instant::now();
                            break;
                        }
                    }
                }
            }
        }
    }

    fn ask_runtime(&self, pause: Duration) -> Asked {
        let runtime = self.runtime.clone();
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            let asked = tokio::time::timeout(RUNTIME_PATIENCE, runtime.image_filesystems()).await;
            asked.ok()?.ok()
        })
    }

    /// Stores the location of the images. Returns true when it is known now.
    async fn locate(&mut self, found: Option<ImageFilesystems>) -> bool {
        let Some(found) = found else { return false };
        self.runtime_dirs = found.images.iter().chain(&found.containers).cloned().collect();
        match self.disks.locate(&found.images, &found.containers, PATIENCE).await {
            Ok(layout) => {
                tracing::debug!(?layout, "file systems of root directory, images and layers");
                true
            }
            Err(err) => {
                tracing::debug!(%err, "the file systems of images and layers are not known");
                false
            }
        }
    }
}

async fn answer(asked: &mut Option<Asked>) -> Option<ImageFilesystems> {
    match asked {
        Some(asked) => asked.await,
        None => std::future::pending().await,
    }
}

/// The time after which the runtime is asked again for the location of its images; `None` when this
/// is not necessary. `ago` is the time since its last answer.
fn asks_again(sample: &Sample, ago: Duration) -> Option<Duration> {
    let missing = || sample.missing.values();
    if missing().any(|why| matches!(why, NoReading::Moved { .. })) || ago >= ASK_ANYWAY {
        return Some(Duration::ZERO);
    }
    missing().any(|why| matches!(why, NoReading::Unreadable { .. })).then_some(ASK_AGAIN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::Signal;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_runtime_is_asked_again_where_its_images_are() {
        let path = PathBuf::from("/images");
        let unreadable = NoReading::Unreadable { path: path.clone(), message: String::new() };
        let moved = NoReading::Moved { path: path.clone() };
        let (soon, long) = (Duration::from_secs(59), Duration::from_secs(60));
        for (why, ago, again) in [
            (None, soon, None),
            (None, long, Some(Duration::ZERO)),
            (Some(NoReading::Hung { path, seconds: 2 }), soon, None),
            (Some(unreadable), Duration::ZERO, Some(ASK_AGAIN)),
            (Some(moved), Duration::ZERO, Some(Duration::ZERO)),
        ] {
            let missing = why.map(|why| (Signal::ImagefsAvailable, why)).into_iter().collect();
            let sample = Sample { missing, ..Sample::default() };
            assert_eq!(asks_again(&sample, ago), again, "{sample:?} {ago:?}");
        }
    }

    #[tokio::test]
    async fn a_runtime_that_hangs_delays_no_reading() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("runtime.sock");
        // It listens and never answers.
        let _listener = UnixListener::bind(&socket).unwrap();
        let endpoint = format!("unix://{}", socket.display());
        let runtime = RuntimeClient::new(&endpoint, None, Duration::from_secs(60)).unwrap();
        let (_period, period) = watch::channel(Duration::from_secs(60));
        let (task, readings) = DiskTask::new(runtime, dir.path(), period);
        let stop = CancellationToken::new();
        let mut running = tokio::task::JoinSet::new();
        running.spawn(task.run(stop.clone()));
        for _ in 0..3 {
            assert!(readings.newer(Signal::NodefsAvailable).await.is_some());
        }
        let latest = Arc::clone(&readings.latest.borrow());
        assert_eq!(latest.sample.missing[&Signal::ImagefsAvailable], NoReading::NotTold);
        stop.cancel();
        running.join_next().await.unwrap().unwrap();
    }
}
