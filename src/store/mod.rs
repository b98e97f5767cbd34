//! The only writer of state files: what has to outlive the agent and can't be asked of the runtime.
//!
//! ```text
//! <root>/nodelet/lock               held while an agent runs; its process id
//! <root>/nodelet/owner{,.copy}      made once: the label of everything that is ours
//! <root>/nodelet/node-name          kept from the first start
//! <root>/nodelet/pods-owner         the owner id that the pod directories are marked with
//! <root>/nodelet/pods/NS_NAME.json  every incarnation of a name that is admitted or being stopped
//! <root>/nodelet/rollouts/NS_NAME.json  the last Ready revision of a pod whose newest one is not proven
//! <root>/nodelet/sources.json       last good manifests of the directory; sources-http.json: of the URL
//! <root>/nodelet/evictions.json     pods that were evicted and are not back
//! <run>/evictions.json              the same, written first: the disk may be the reason
//! <root>/nodelet/images.json        which images the agent has pulled, and when each was last used
//! <root>/nodelet/answers.json       Services, volumes and runtime classes of pods of the API server
//! <run>/pods/NS_NAME.json           back-offs and the like: gone after a reboot, also where the directory is not
//! <run>/conditions.json             the node's conditions, with the times of their transitions
//! <run>/lock                        process id and root directory of the agent that uses the run directory
//! ```
//!
//! A file is replaced, never changed: temporary file, fsync, rename, fsync of the directory. A file
//! that is damaged or of an unknown version is renamed and reported. Content that can't be written
//! stays in memory, is reported and tried again: a full disk stops nothing. Agents may have shared
//! the run directory, so its files name their owner, and files of another owner are renamed. Both
//! directories are locked while the agent runs. If they are deleted meanwhile, [`Store::repair`]
//! creates them again, and [`Store::losses`] makes all tasks with state save it again. [`Store`] is
//! a handle; the file work is done by [`Writer::run`], away from the event loop.

mod files;
mod identity;
mod load;
mod lock;
mod record;
mod repair;
mod writer;

pub use load::{Loaded, LoadedSource, parse_saved};
pub use record::{KillRecord, PodRecord};
pub use repair::Repaired;
pub use writer::{NotSaved, Writer};

use crate::{
    model::{PodKey, SourceKind},
    plan::Rollout,
};
use repair::Locks;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
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
        root: PathBuf,
    },
    /// Another agent holds the lock of the run directory.
    #[error(
        "another nodelet (pid {pid}, root directory {root}) uses the run directory {run:?}: stop it, or give this one a run directory of its own (--run-dir)"
    )]
    RunLocked {
        /// Its process id; `unknown` where the lock file does not tell.
        pid: String,
        root: String,
        run: PathBuf,
    },
    /// The root directory was replaced by one with another agent's state.
    #[error(
        "{root:?} is another directory now, with the state of owner id {owner} (is it mounted late?): starting again with that"
    )]
    Replaced {
        root: PathBuf,
        /// The owner id that lies in it.
        owner: String,
    },
    /// A directory or file without which nothing works.
    #[error("cannot {operation} {path:?}")]
    Io {
        /// `create`, `lock`, ...
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// The directories of the state files, locked for this agent.
#[derive(Debug)]
pub struct Locked {
    root: PathBuf,
    run: PathBuf,
    locks: Locks,
}

/// The handle to the state files. Cheap to clone; the kernel lock is held until the last clone is
/// gone.
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
    root: PathBuf,
    owner: String,
    /// The kernel's id of this boot.
    boot_id: String,
    /// The owner id is kept in the state directory, not configured.
    keeps_owner: bool,
    /// Held as long as the agent runs. Only [`Store::repair`] touches them, for a moment.
    locks: Mutex<Locks>,
    losses: watch::Sender<u64>,
}

impl Store {
    /// Makes the directories and takes the kernel locks. Blocks, for 2 s where another agent holds
    /// a lock; to be called once, before the event loop has work.
    ///
    /// # Errors
    /// Another agent uses `root` or `run`, or the directories can't be made.
    pub fn lock(root: PathBuf, run: PathBuf) -> Result<Locked, StoreError> {
        repair::make_dirs(&root, &run)?;
        let locks = Locks::take(&root, &run)?;
        Ok(Locked { root, run, locks })
    }

    /// Removes leftovers of interrupted writes and reads everything. The owner id is `owner` as it
    /// is, else the kept one, made at the first start (32 lowercase hex digits). `boot_id` is the
    /// kernel's. Blocks.
    ///
    /// # Errors
    /// The owner id can neither be read nor made. Nothing else is fatal: see [`Self::warnings`].
    pub fn open(
        locked: Locked,
        owner: Option<&str>,
        boot_id: &str,
    ) -> Result<(Self, Writer, Loaded), StoreError> {
        let Locked { root, run, locks } = locked;
        let (state_dir, memory_dir) = (root.join("nodelet"), run.join("pods"));
        let (pods, rollouts) = (state_dir.join("pods"), state_dir.join(load::ROLLOUTS));
        for dir in [&state_dir, &pods, &rollouts, &memory_dir, &run] {
            files::remove_leftovers(dir);
        }
        let owner = identity::owner(&state_dir, owner)?;
        let belief = match owner.is_new {
            true => files::Belief::Own(&owner.id),
            false => files::Belief::OwnOrUnnamed(&owner.id),
        };
        let (loaded, mut found) = load::all(&state_dir, &memory_dir, belief, boot_id);
        found.extend(owner.warnings);
        for warning in &found {
            tracing::warn!("{warning}");
        }
        let warnings = watch::Sender::new(Arc::new(found));
        let (synced, synced_queue) = mpsc::channel(QUEUE);
        let (cached, cached_queue) = mpsc::channel(QUEUE);
        let writer = Writer::new([synced_queue, cached_queue], &warnings);
        let inner = Inner {
            state_dir,
            memory_dir,
            synced,
            cached,
            warnings,
            root,
            owner: owner.id,
            boot_id: boot_id.to_owned(),
            keeps_owner: owner.is_kept,
            locks: Mutex::new(locks),
            losses: watch::Sender::default(),
        };
        Ok((Self { inner: Arc::new(inner) }, writer, loaded))
    }

    #[cfg(test)]
    pub(crate) fn lock_and_open(
        root: &std::path::Path,
        run: &std::path::Path,
        owner: Option<&str>,
    ) -> Result<(Self, Writer, Loaded), StoreError> {
        Self::open(Self::lock(root.to_owned(), run.to_owned())?, owner, "this boot")
    }

    /// This agent's owner id.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.inner.owner
    }

    /// Whether the directories of recorded pods still have to be marked with the owner id: an
    /// earlier release has made them, or the owner id was another one.
    #[must_use]
    pub fn wants_marks(&self) -> bool {
        identity::marked_with(&self.inner.state_dir).as_deref() != Some(self.owner())
    }

    /// Notes that this was done. Where it can't be written, it is done again at the next start.
    pub fn note_marked(&self) {
        if let Err(err) = identity::note_marked(&self.inner.state_dir, self.owner()) {
            tracing::warn!(%err, "cannot note that the pod directories were marked");
        }
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

    /// Adds something that a person should know; it is shown once.
    pub fn warn(&self, warning: String) {
        tracing::warn!("{warning}");
        self.inner.warnings.send_if_modified(|warnings| {
            let new = !warnings.contains(&warning);
            if new {
                Arc::make_mut(warnings).push(warning);
            }
            new
        });
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
        let content = (!records.is_empty()).then(|| files::encode(None, &records));
        self.write(path, content, Durability::Synced).await
    }

    /// Saves which revision a pod goes back to; an empty rollout removes the file.
    ///
    /// # Errors
    /// It is not on disk (yet).
    pub async fn put_rollout(&self, key: &PodKey, rollout: &Rollout) -> Result<(), NotSaved> {
        let path = self.inner.state_dir.join(load::ROLLOUTS).join(file_name(key));
        let content = (!rollout.is_empty()).then(|| {
            files::encode(None, &load::RolloutFile { key: key.clone(), rollout: rollout.clone() })
        });
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
        let Some(file) = load::source_file(kind) else { return Ok(()) };
        let path = self.inner.state_dir.join(file);
        self.write(path, Some(files::encode(None, state)), Durability::Synced).await
    }

    /// Saves what is remembered of images.
    ///
    /// # Errors
    /// It is not on disk (yet).
    pub async fn put_images<T: Serialize + Sync>(&self, images: &T) -> Result<(), NotSaved> {
        let path = self.inner.state_dir.join(load::IMAGES_FILE);
        self.write(path, Some(files::encode(None, images)), Durability::Synced).await
    }

    /// Saves the answers of the API server with which containers of its pods start.
    ///
    /// # Errors
    /// It is not on disk (yet).
    pub async fn put_answers<T: Serialize + Sync>(&self, answers: &T) -> Result<(), NotSaved> {
        let path = self.inner.state_dir.join(load::ANSWERS);
        self.write(path, Some(files::encode(None, answers)), Durability::Synced).await
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
        let content = memory.map(|memory| {
            let (key, boot_id) = (key.clone(), self.inner.boot_id.clone());
            files::encode(Some(self.owner()), &load::MemoryFile { key, boot_id, memory })
        });
        self.write(path, content, Durability::Cached).await
    }

    /// Saves which pods were evicted. Returns when it will survive the agent. The copy that survives
    /// a loss of power is written later, and is tried again for as long as the disk takes nothing.
    /// Where the queue of such writes is full, the next eviction writes it.
    ///
    /// # Errors
    /// It would not survive the agent (yet).
    pub async fn put_evictions<T: Serialize + Sync>(&self, evictions: &T) -> Result<(), NotSaved> {
        let content = files::encode(None, evictions);
        let (done, _) = oneshot::channel();
        let path = self.inner.state_dir.join(load::EVICTIONS);
        let job = Job { path, content: Some(content), durability: Durability::Synced, done };
        if self.inner.synced.try_send(job).is_err() {
            // Its disk holds the writer up, and is perhaps the reason for the eviction: nothing
            // waits for it.
            tracing::debug!("which pods were evicted is not safe from a loss of power yet");
        }
        let run = self.inner.memory_dir.with_file_name(load::EVICTIONS);
        let content = files::encode(Some(self.owner()), evictions);
        self.write(run, Some(content), Durability::Cached).await
    }

    /// Saves the node's conditions, until the next reboot.
    ///
    /// # Errors
    /// They are not written (yet).
    pub async fn put_conditions<T: Serialize + Sync>(
        &self,
        conditions: &T,
    ) -> Result<(), NotSaved> {
        let path = self.inner.memory_dir.with_file_name(load::CONDITIONS);
        let content = files::encode(Some(self.owner()), conditions);
        self.write(path, Some(content), Durability::Cached).await
    }

    /// What a person should know: files set aside, files that can't be written, a changed host
    /// name.
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

/// `<namespace>_<name>.json`: neither part can contain an underscore. Of a name that is too long
/// for a file, the beginning and a digest.
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
