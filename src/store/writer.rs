//! The writer: takes the waiting writes, executes them as one batch, and reports the results. A
//! failed write is kept and tried again with the next batch or after a pause. Only the latest
//! content of each file is kept.

use super::files;
use crate::{blocking::STATE, clock, files::sync_dir};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc},
    thread::Builder,
    time::Duration,
};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

/// Writes taken at once: they share the syncs of their directories.
const BATCH: usize = 128;
/// Files of a batch that are written and synced at the same time.
const SYNCS: usize = 4;
/// Pauses between tries while writes fail.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// A queue comes round at least this often, so that a health check can tell it from one that hangs.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// How every warning about the disk begins.
const CANNOT_WRITE: &str = "cannot write state files";

/// It is not on disk. It is kept in memory and tried again; [`super::Store::warnings`] says so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot save {path}: {message}")]
pub struct NotSaved {
    pub path: String,
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

/// The task that does the file work. What has to survive a loss of power and what has not go
/// different ways: the second kind never waits for the syncs of the first.
#[derive(Debug)]
pub struct Writer {
    lanes: [Lane; 2],
}

/// One queue of files, written in the order of their coming.
#[derive(Debug)]
struct Lane {
    /// A thread of its own, see [`Standing`].
    standing: Option<Standing>,
    queue: mpsc::Receiver<Job>,
    warnings: watch::Sender<Arc<Vec<String>>>,
    pending: Pending,
    /// What of the warnings is ours.
    told: BTreeSet<String>,
    heartbeat: watch::Sender<Duration>,
}

/// Writing has panicked.
#[derive(Debug)]
struct Crashed;

impl Writer {
    pub(super) fn new(
        queues: [mpsc::Receiver<Job>; 2],
        warnings: &watch::Sender<Arc<Vec<String>>>,
    ) -> Self {
        let lane = |queue| Lane {
            standing: None,
            queue,
            warnings: warnings.clone(),
            pending: Pending::new(),
            told: BTreeSet::new(),
            heartbeat: watch::Sender::new(Duration::ZERO),
        };
        Self { lanes: queues.map(lane) }
    }

    /// Writes what the handles ask for until the last of them is gone: workers that finish a call
    /// while the agent stops still have something to write down. What is left then is tried once
    /// more.
    pub async fn run(self) {
        let [synced, mut cached] = self.lanes;
        // Eviction records are written this way.
        cached.standing = Some(Standing::make());
        // One that crashes ends the other: the agent ends with the task, and is started again.
        drop(tokio::try_join!(synced.run(), cached.run()));
    }

    /// When the two queues last came round, as [`clock::awake`]: not while a write is under way.
    pub fn heartbeats(&self) -> [watch::Receiver<Duration>; 2] {
        self.lanes.each_ref().map(|lane| lane.heartbeat.subscribe())
    }
}

/// A thread that is there before a fork bomb leaves none to be made. It is one of tokio's: as long
/// as that has any, work for further ones waits until they can be made; without one it would panic.
#[derive(Debug)]
struct Standing(std_mpsc::SyncSender<(Pending, oneshot::Sender<Failed>)>);

impl Standing {
    fn make() -> Self {
        let (sender, queue) = std_mpsc::sync_channel::<(Pending, oneshot::Sender<Failed>)>(1);
        // It ends with the sender.
        drop(tokio::task::spawn_blocking(move || {
            for (work, done) in queue {
                // Whoever waited may be gone.
                drop(done.send(write_all(work)));
            }
        }));
        Self(sender)
    }

    /// `None` when writing has panicked.
    async fn write(&self, work: Pending) -> Option<Failed> {
        let (done, written) = oneshot::channel();
        // Never full: a lane waits for the answer.
        self.0.try_send((work, done)).ok()?;
        written.await.ok()
    }
}

impl Lane {
    async fn run(mut self) -> Result<(), Crashed> {
        let mut jobs = Vec::new();
        let mut pause = FIRST_PAUSE;
        let mut ended = false;
        loop {
            self.heartbeat.send_replace(clock::awake());
            // Cancel-safe: recv_many takes nothing out before it is ready; the others only wait.
            tokio::select! {
                biased;
                taken = self.queue.recv_many(&mut jobs, BATCH) => ended = taken == 0,
                () = tokio::time::sleep(pause), if !self.pending.is_empty() => {}
                () = tokio::time::sleep(HEARTBEAT) => continue,
            }
            if ended && self.pending.is_empty() {
                return Ok(());
            }
            let waiting = self.take_in(&mut jobs);
            let work = std::mem::take(&mut self.pending);
            let failed = match &self.standing {
                Some(standing) => standing.write(work).await,
                None => STATE.run(move || write_all(work)).await.ok(),
            };
            let Some(failed) = failed else {
                tracing::error!("writing state files has crashed");
                return Err(Crashed);
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
            if ended {
                return Ok(());
            }
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
    fn publish(&mut self, failed: &Failed) {
        if self.told == failed.sentences {
            return;
        }
        for sentence in failed.sentences.difference(&self.told) {
            tracing::warn!("{sentence}; they are kept in memory and tried again");
        }
        for sentence in self.told.difference(&failed.sentences) {
            tracing::info!("over: {sentence}");
        }
        let told = std::mem::replace(&mut self.told, failed.sentences.clone());
        self.warnings.send_modify(|published| {
            let others = published.iter().filter(|sentence| !told.contains(*sentence));
            *published = Arc::new(others.chain(&self.told).cloned().collect());
        });
    }
}

#[derive(Debug, Default)]
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
    for ((path, (content, durability)), unfinished) in write_contents(work) {
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
        if let Err(error) = sync_dir(&dir) {
            for (path, content) in files {
                failed.add(path, (content, Durability::Synced), &error);
            }
        }
    }
    failed
}

/// A file to write, and the name that its content has for now: none for a file to remove.
type Written = ((PathBuf, (Option<Vec<u8>>, Durability)), io::Result<Option<PathBuf>>);

/// Writes and syncs the contents, several at a time: syncs that wait together share one commit of
/// the file system's journal. 110 files take a quarter of the time that they take one by one.
fn write_contents(work: Pending) -> Vec<Written> {
    let write = |(path, (content, durability)): (PathBuf, (Option<Vec<u8>>, Durability))| {
        let sync = durability == Durability::Synced;
        let unfinished = match &content {
            None => Ok(None),
            Some(content) => files::write_unfinished(&path, content, sync).map(Some),
        };
        ((path, (content, durability)), unfinished)
    };
    if work.len() < 2 * SYNCS {
        return work.into_iter().map(write).collect();
    }
    let left = Mutex::new(work.into_iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let share = || std::iter::from_fn(next).map(write).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        // Where no thread can be made, there is this one.
        let helpers = (1..SYNCS).filter_map(|_| Builder::new().spawn_scoped(scope, share).ok());
        let helpers: Vec<_> = helpers.collect();
        let mut written = share();
        for helper in helpers {
            match helper.join() {
                Ok(share) => written.extend(share),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        written
    })
}
