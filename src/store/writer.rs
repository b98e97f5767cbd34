//! The writer: takes what waits, writes it in one go, tells who waits for it. What fails is kept
//! and tried again with the next write or after a pause, the latest content of each file only.

use super::files;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Writes taken at once: they share the syncs of their directories.
const BATCH: usize = 128;
/// Pauses between tries while the disk takes nothing.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// How every warning about the disk begins, to find it again when the trouble is over.
const CANNOT_WRITE: &str = "cannot write state files";

/// It is not on disk. It is kept in memory and tried again; [`super::Store::warnings`] says so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot save {path}: {message}")]
pub struct NotSaved {
    /// The file.
    pub path: String,
    /// The system's words.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// Survives a loss of power.
    Synced,
    /// Survives the agent.
    Cached,
}

/// A file to replace, or to remove when there is no content.
#[derive(Debug)]
pub(super) struct Job {
    pub path: PathBuf,
    pub content: Option<Vec<u8>>,
    pub durability: Durability,
    pub done: oneshot::Sender<Result<(), NotSaved>>,
}

type Pending = BTreeMap<PathBuf, (Option<Vec<u8>>, Durability)>;

/// The task that does the file work.
#[derive(Debug)]
pub struct Writer {
    queue: mpsc::Receiver<Job>,
    warnings: watch::Sender<Arc<Vec<String>>>,
    pending: Pending,
}

impl Writer {
    pub(super) fn new(
        queue: mpsc::Receiver<Job>,
        warnings: watch::Sender<Arc<Vec<String>>>,
    ) -> Self {
        Self { queue, warnings, pending: Pending::new() }
    }

    /// Writes what the handles ask for until `shutdown`, then what is left.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut jobs = Vec::new();
        let mut pause = FIRST_PAUSE;
        loop {
            // Cancel-safe: recv_many takes nothing out before it is ready; the others only wait.
            tokio::select! {
                biased;
                taken = self.queue.recv_many(&mut jobs, BATCH) => if taken == 0 { return },
                () = tokio::time::sleep(pause), if !self.pending.is_empty() => {}
                // What workers still write while they finish is taken by the arm above.
                () = shutdown.cancelled(), if !self.queue.is_closed() => self.queue.close(),
            }
            let waiting = self.take_in(&mut jobs);
            let work = std::mem::take(&mut self.pending);
            let failed = match tokio::task::spawn_blocking(move || write_all(work)).await {
                Ok(failed) => failed,
                Err(error) => {
                    tracing::error!(err = %error, "writing state files has crashed");
                    return;
                }
            };
            self.publish(&failed);
            for (path, done) in waiting {
                let result = match failed.errors.get(&path) {
                    None => Ok(()),
                    Some(message) => {
                        Err(NotSaved { path: path.display().to_string(), message: message.clone() })
                    }
                };
                // Whoever waited may be gone.
                drop(done.send(result));
            }
            self.pending = failed.pending;
            pause = if self.pending.is_empty() { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
        }
    }

    fn take_in(
        &mut self,
        jobs: &mut Vec<Job>,
    ) -> Vec<(PathBuf, oneshot::Sender<Result<(), NotSaved>>)> {
        let mut waiting = Vec::new();
        for job in jobs.drain(..) {
            waiting.push((job.path.clone(), job.done));
            self.pending.insert(job.path, (job.content, job.durability));
        }
        waiting
    }

    /// Shows the disk's troubles among the warnings as long as they last.
    fn publish(&self, failed: &Failed) {
        self.warnings.send_if_modified(|published| {
            let others = published.iter().filter(|w| !w.starts_with(CANNOT_WRITE));
            let now: Vec<String> =
                others.cloned().chain(failed.sentences.iter().cloned()).collect();
            if **published == now {
                return false;
            }
            for sentence in failed.sentences.iter().filter(|s| !published.contains(s)) {
                tracing::warn!("{sentence}; they are kept in memory and tried again");
            }
            if failed.sentences.is_empty() {
                tracing::info!("state files can be written again");
            }
            *published = Arc::new(now);
            true
        });
    }
}

/// What could not be written.
#[derive(Default)]
struct Failed {
    pending: Pending,
    errors: BTreeMap<PathBuf, String>,
    sentences: BTreeSet<String>,
}

impl Failed {
    fn add(&mut self, path: PathBuf, what: (Option<Vec<u8>>, Durability), error: &io::Error) {
        let dir = path.parent().unwrap_or(&path);
        self.sentences.insert(format!("{CANNOT_WRITE} in {dir:?}: {error}"));
        self.errors.insert(path.clone(), error.to_string());
        self.pending.insert(path, what);
    }
}

/// Writes every file: all contents first, then all renames, then one sync for each directory.
fn write_all(work: Pending) -> Failed {
    let mut failed = Failed::default();
    let mut ready = Vec::new();
    for (path, (content, durability)) in work {
        let sync = durability == Durability::Synced;
        let unfinished = match &content {
            None => Ok(None),
            Some(content) => files::write_unfinished(&path, content, sync).map(Some),
        };
        match unfinished {
            Ok(unfinished) => ready.push((path, unfinished, content, durability)),
            Err(error) => failed.add(path, (content, durability), &error),
        }
    }
    let mut renamed: BTreeMap<PathBuf, Vec<_>> = BTreeMap::new();
    for (path, unfinished, content, durability) in ready {
        let done = match unfinished {
            Some(unfinished) => fs::rename(unfinished, &path),
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        };
        match done {
            Ok(()) if durability == Durability::Synced => {
                let dir = path.parent().map(Path::to_owned).unwrap_or_default();
                renamed.entry(dir).or_default().push((path, content));
            }
            Ok(()) => {}
            Err(error) => failed.add(path, (content, durability), &error),
        }
    }
    for (dir, files) in renamed {
        if let Err(error) = files::sync_dir(&dir) {
            for (path, content) in files {
                failed.add(path, (content, Durability::Synced), &error);
            }
        }
    }
    failed
}
