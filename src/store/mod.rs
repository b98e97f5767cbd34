//! The only writer of state files: what has to outlive the agent and can't be asked of the runtime.
//!
//! ```text
//! <root>/nodelet/lock               held while an agent runs; its process id
//! <root>/nodelet/owner{,.copy}      made once: the label of everything that is ours
//! <root>/nodelet/node-name          kept from the first start
//! <root>/nodelet/pods/NS_NAME.json  every incarnation of a name that is admitted or being stopped
//! <root>/nodelet/sources.json       last good manifests of the directory; sources-http.json: of the URL
//! <root>/nodelet/evictions.json     pods that were evicted and are not back
//! <run>/evictions.json              the same, written first: the disk may be the reason
//! <root>/nodelet/images.json        which images the agent has pulled, and when each was last used
//! <run>/pods/NS_NAME.json           back-offs and the like: gone after a reboot
//! ```
//!
//! A file is replaced, never changed: temporary file, fsync, rename, fsync of the directory. What is
//! damaged or of an unknown version is set aside under another name and reported. What can't be
//! written stays in memory, is reported and tried again: nothing stops because a disk is full.
//! [`Store`] is a handle; the file work is done by [`Writer::run`], away from the event loop.

mod files;
mod identity;
mod load;
mod record;
mod writer;

pub use load::{Loaded, LoadedSource};
pub use record::{KillRecord, PodRecord};
pub use writer::{NotSaved, Writer};

use crate::model::{PodKey, SourceKind};
use nix::fcntl::Flock;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use writer::{Durability, Job};

/// Writes that may wait for the writer.
const QUEUE: usize = 256;

/// Why the state files can't be used at all.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another agent holds the lock.
    #[error(
        "another nodelet (pid {pid}) uses {root:?}: stop it, or give this one a root directory of its own (--root-dir)"
    )]
    Locked {
        /// Its process id; `unknown` where the lock file does not tell.
        pid: String,
        /// The root directory.
        root: PathBuf,
    },
    /// A directory or file without which nothing works.
    #[error("cannot {operation} {path:?}")]
    Io {
        /// `create`, `lock`, ...
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The handle to the state files. Cheap to clone; the kernel lock is held until the last clone is gone.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state_dir: PathBuf,
    memory_dir: PathBuf,
    /// What has to survive a loss of power.
    synced: mpsc::Sender<Job>,
    /// What has to survive the agent.
    cached: mpsc::Sender<Job>,
    warnings: watch::Sender<Arc<Vec<String>>>,
    /// Held as long as the agent runs.
    _lock: Flock<File>,
}

impl Store {
    /// Takes the kernel lock, makes the directories, removes leftovers of interrupted writes and reads
    /// everything. Blocks; to be called once, before the event loop has work.
    ///
    /// # Errors
    /// Another agent uses `root`, or the directories can't be made. Nothing else is fatal: see
    /// [`Self::warnings`].
    pub fn open(root: &Path, run: &Path) -> Result<(Self, Writer, Loaded), StoreError> {
        let (state_dir, memory_dir) = (root.join("nodelet"), run.join("pods"));
        let pods_dir = state_dir.join("pods");
        let dirs = [&state_dir, &pods_dir, &memory_dir];
        for dir in dirs {
            files::make_private_dir(dir)?;
        }
        let lock = identity::lock(&state_dir, root)?;
        for dir in dirs {
            files::remove_leftovers(dir);
        }
        let (loaded, found) = load::all(&state_dir, &memory_dir);
        for warning in &found {
            tracing::warn!("{warning}");
        }
        let warnings = watch::Sender::new(Arc::new(found));
        let (synced, synced_queue) = mpsc::channel(QUEUE);
        let (cached, cached_queue) = mpsc::channel(QUEUE);
        let writer = Writer::new([synced_queue, cached_queue], &warnings);
        let inner = Inner { state_dir, memory_dir, synced, cached, warnings, _lock: lock };
        Ok((Self { inner: Arc::new(inner) }, writer, loaded))
    }

    /// This agent's owner id: `configured` as it is, else the kept one, made at the first call ever
    /// (32 lowercase hex digits).
    ///
    /// # Errors
    /// When it can neither be read nor made.
    pub fn owner(&self, configured: Option<&str>) -> Result<String, StoreError> {
        let (owner, warnings) = identity::owner(&self.inner.state_dir, configured)?;
        for warning in warnings {
            self.warn(warning);
        }
        Ok(owner)
    }

    /// This node's name: `wanted` (`--hostname-override`), else the one kept from the first start,
    /// else `hostname`. Lower case. A difference from the kept one is a warning.
    ///
    /// # Errors
    /// When there is none, or it can't be read or kept.
    pub fn node_name(&self, hostname: &str, wanted: Option<&str>) -> Result<String, StoreError> {
        let (name, warning) = identity::node_name(&self.inner.state_dir, wanted, hostname)?;
        if let Some(warning) = warning {
            self.warn(warning);
        }
        Ok(name)
    }

    fn warn(&self, warning: String) {
        tracing::warn!("{warning}");
        self.inner.warnings.send_modify(|warnings| Arc::make_mut(warnings).push(warning));
    }

    /// Saves every record of a name in place of what was saved for it; none: removes the file.
    /// Returns when it is on disk, or when that failed and was reported.
    ///
    /// # Errors
    /// It is not on disk (yet).
    ///
    /// # Cancel safety
    /// The write happens all the same.
    pub async fn put_pods(&self, key: &PodKey, records: &[PodRecord]) -> Result<(), NotSaved> {
        let path = self.inner.state_dir.join("pods").join(file_name(key));
        let content = (!records.is_empty()).then(|| files::encode(&records));
        self.write(path, content, Durability::Synced).await
    }

    /// Saves the state of a source.
    ///
    /// # Errors
    /// It is not on disk (yet).
    pub async fn put_source<T: Serialize + Sync>(
        &self,
        kind: SourceKind,
        state: &T,
    ) -> Result<(), NotSaved> {
        let path = self.inner.state_dir.join(load::source_file(kind));
        self.write(path, Some(files::encode(state)), Durability::Synced).await
    }

    /// Saves what is remembered of images.
    ///
    /// # Errors
    /// It is not on disk (yet).
    pub async fn put_images<T: Serialize + Sync>(&self, images: &T) -> Result<(), NotSaved> {
        let path = self.inner.state_dir.join(load::IMAGES_FILE);
        self.write(path, Some(files::encode(images)), Durability::Synced).await
    }

    /// Saves what a reboot may take away; `None` removes it.
    ///
    /// # Errors
    /// It is not written (yet).
    pub async fn put_memory<T: Serialize + Sync>(
        &self,
        key: &PodKey,
        memory: Option<&T>,
    ) -> Result<(), NotSaved> {
        let path = self.inner.memory_dir.join(file_name(key));
        let content =
            memory.map(|memory| files::encode(&load::Memory { key: key.clone(), memory }));
        self.write(path, content, Durability::Cached).await
    }

    /// Saves which pods were evicted. Returns when it will survive the agent; what has to survive a loss of power is written
    /// behind its back, and tried again for as long as the disk takes nothing.
    ///
    /// # Errors
    /// It would not survive the agent (yet).
    pub async fn put_evictions<T: Serialize + Sync>(&self, evictions: &T) -> Result<(), NotSaved> {
        let content = files::encode(evictions);
        let (done, _) = oneshot::channel();
        let path = self.inner.state_dir.join(load::EVICTIONS);
        let job =
            Job { path, content: Some(content.clone()), durability: Durability::Synced, done };
        if self.inner.synced.try_send(job).is_err() {
            // Its disk holds the writer up, and is perhaps the reason for the eviction: nothing waits for it.
            tracing::debug!("which pods were evicted is not safe from a loss of power yet");
        }
        let run = self.inner.memory_dir.with_file_name(load::EVICTIONS);
        self.write(run, Some(content), Durability::Cached).await
    }

    /// What a person should know: files set aside, files that can't be written, a changed host name.
    #[must_use]
    pub fn warnings(&self) -> watch::Receiver<Arc<Vec<String>>> {
        self.inner.warnings.subscribe()
    }

    async fn write(
        &self,
        path: PathBuf,
        content: Option<Vec<u8>>,
        durability: Durability,
    ) -> Result<(), NotSaved> {
        let (done, written) = oneshot::channel();
        let shown = path.display().to_string();
        let job = Job { path, content, durability, done };
        let ended =
            || NotSaved { path: shown.clone(), message: "the agent is stopping".to_owned() };
        let lane = match durability {
            Durability::Synced => &self.inner.synced,
            Durability::Cached => &self.inner.cached,
        };
        lane.send(job).await.map_err(|_| ended())?;
        written.await.map_err(|_| ended())?
    }
}

/// Longest `<namespace>_<name>`, in bytes: with every ending it has to stay below 255.
const MAX_STEM: usize = 200;

/// `<namespace>_<name>.json`: neither part can contain an underscore. Of a name that is too long for a
/// file, the beginning and a digest.
fn file_name(key: &PodKey) -> String {
    let stem = format!("{}_{}", key.namespace, key.name);
    if stem.len() <= MAX_STEM {
        return format!("{stem}.json");
    }
    let digest = Sha256::digest(&stem);
    let start: String = stem.chars().take(MAX_STEM - 16).collect();
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{start}{digest}.json")
}

#[cfg(test)]
mod tests;
