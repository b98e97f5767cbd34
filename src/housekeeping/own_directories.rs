//! Keeps the agent's own directories. Parts of the root and run directories that are deleted while
//! the agent runs are created again, locked again and named in the status.
//!
//! inotify reports deletions. A slow resync finds the rest: mounts over a directory, and all
//! deletions on a machine without a free inotify instance. [`Store::repair`] makes the directories,
//! [`Store::losses`] has every part of the agent save its state again, and the server checks its
//! socket whenever [`Keeper::looks`] changes.

use crate::{
    blocking::STATE,
    store::{Repaired, Store, StoreError},
};
use anyhow::Context as _;
use inotify::{Inotify, WatchDescriptor, WatchMask, Watches};
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{io::unix::AsyncFd, sync::watch};
use tokio_util::sync::CancellationToken;

/// The time between two looks without an event.
const RESYNC: Duration = Duration::from_secs(60);
/// The time between two looks without inotify.
const RESYNC_BLIND: Duration = Duration::from_secs(5);
/// The pause before a look, in which all events of one deletion arrive.
const SETTLE: Duration = Duration::from_millis(50);
/// The time until the next look while a directory can't be made.
const AGAIN: Duration = Duration::from_secs(1);
/// Size of the buffer for events, in bytes.
const BUFFER: usize = 4096;

/// The task that keeps the agent's own directories.
#[derive(Debug)]
pub struct Keeper {
    store: Store,
    node_name: String,
    root: PathBuf,
    run: PathBuf,
    looks: watch::Sender<u64>,
}

/// inotify and what it watches.
struct Events {
    inotify: AsyncFd<Inotify>,
    buffer: Vec<u8>,
    /// Watched parent directories, each with the one name that matters.
    parents: Vec<(WatchDescriptor, OsString)>,
}

impl Keeper {
    /// A loop for the directories `root` and `run` of this store.
    #[must_use]
    pub fn new(store: Store, node_name: String, root: PathBuf, run: PathBuf) -> Self {
        Self { store, node_name, root, run, looks: watch::Sender::default() }
    }

    /// A counter that changes after every look at the directories.
    #[must_use]
    pub fn looks(&self) -> watch::Receiver<u64> {
        self.looks.subscribe()
    }

    /// Runs until shutdown.
    ///
    /// # Errors
    /// When another agent has taken one of the directories. This agent must stop then.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut events = Events::open()
            .inspect_err(|err| tracing::warn!(%err, "no inotify: the agent checks its directories periodically"))
            .ok();
        // A directory was lost, and no look has found all directories in place since.
        let mut unsettled = false;
        let mut failing = false;
        loop {
            if let Some(events) = &mut events {
                events.arm(&self.root, &self.run).await;
            }
            let mut pause = if events.is_some() { RESYNC } else { RESYNC_BLIND };
            match self.look().await? {
                Ok(repaired) => {
                    self.warn(&repaired);
                    failing = false;
                    if !repaired.missing.is_empty() {
                        unsettled = true;
                        pause = AGAIN;
                    } else if std::mem::take(&mut unsettled) {
                        self.store.ask_to_save_again();
                    }
                }
                Err(error @ StoreError::Io { .. }) => {
                    if !std::mem::replace(&mut failing, true) {
                        let error = anyhow::Error::new(error);
                        tracing::warn!(
                            "the agent's directories were deleted and can't be created: {error:#}"
                        );
                    }
                    pause = AGAIN;
                }
                Err(error) => return Err(error.into()),
            }
            self.looks.send_modify(|looks| *looks += 1);
            // Cancel-safe: every arm only waits, and the next look finds what a lost event
            // reported.
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = next(&mut events) => {}
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    async fn look(&self) -> anyhow::Result<Result<Repaired, StoreError>> {
        let (store, node_name) = (self.store.clone(), self.node_name.clone());
        STATE.run(move || store.repair(&node_name)).await.context("looking at the own directories")
    }

    fn warn(&self, repaired: &Repaired) {
        if repaired.root_lost {
            self.store.warn(format!(
                "{:?} was deleted or replaced while the agent ran; the volumes of its pods may be lost",
                self.root
            ));
        }
        if !repaired.missing.is_empty() {
            self.store.warn(format!(
                "deleted while the agent ran, and created again: {:?}",
                repaired.missing
            ));
        }
    }
}

/// Waits for an event; waits for ever without inotify.
async fn next(events: &mut Option<Events>) {
    let Some(watching) = events else { return std::future::pending().await };
    if let Err(err) = watching.next().await {
        tracing::warn!(%err, "inotify failed: the agent checks its directories periodically");
        *events = None;
    }
}

impl Events {
    fn open() -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "its successor is an unsafe function; Inotify owns its descriptor"
        )]
        let inotify = AsyncFd::new(Inotify::init()?)?;
        Ok(Self { inotify, buffer: vec![0; BUFFER], parents: Vec::new() })
    }

    /// Watches the directories that exist now.
    async fn arm(&mut self, root: &Path, run: &Path) {
        let watches = self.inotify.get_ref().watches();
        let (root, run) = (root.to_owned(), run.to_owned());
        self.parents = STATE.run(move || arm(watches, &root, &run)).await.unwrap_or_default();
    }

    /// # Cancel safety
    /// No event is lost: one that was read is returned, or does not matter.
    async fn next(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable_mut().await?;
            let read = ready.try_io(|fd| {
                let mut events = fd.get_mut().read_events(&mut self.buffer)?;
                Ok(events.any(|event| {
                    let mut names =
                        self.parents.iter().filter(|(wd, _)| *wd == event.wd).peekable();
                    names.peek().is_none() || names.any(|(_, name)| event.name == Some(name))
                }))
            });
            match read {
                Ok(Ok(false)) | Err(_) => {}
                Ok(Ok(true)) => return Ok(()),
                Ok(Err(err)) if err.kind() == io::ErrorKind::WouldBlock => {}
                Ok(Err(err)) => return Err(err),
            }
        }
    }
}

/// Watches the directories and their parents. The resync covers those that can't be watched.
fn arm(mut watches: Watches, root: &Path, run: &Path) -> Vec<(WatchDescriptor, OsString)> {
    let mask = WatchMask::DELETE
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    let mut parents = Vec::new();
    for dir in [root, run] {
        if let (Some(parent), Some(name)) = (dir.parent(), dir.file_name())
            && let Ok(wd) = watches.add(parent, mask)
        {
            parents.push((wd, name.to_owned()));
        }
    }
    // After the parents: in a directory that is also a parent, every name matters.
    for dir in [root, &root.join("nodelet"), run] {
        if let Ok(wd) = watches.add(dir, mask) {
            parents.retain(|(parent, _)| *parent != wd);
        }
    }
    parents
}
