//! The only writer of state files: what has to outlive the agent and can't be asked of the runtime.
//!
//! ```text
//! <root>/nodelet/lock               held while an agent runs; its process id
//! <root>/nodelet/owner              made once: the label of everything that is ours
//! <root>/nodelet/node-name          kept from the first start
//! <root>/nodelet/pods/NS_NAME.json  every incarnation of a name that is admitted or being stopped
//! <root>/nodelet/sources.json       last good manifests of the directory; sources-http.json: of the URL
//! <run>/pods/NS_NAME.json           back-offs and the like: gone after a reboot
//! ```
//!
//! A file is replaced, never changed: temporary file, fsync, rename, fsync of the directory. What is
//! damaged or of an unknown version is set aside under another name and reported. What can't be
//! written stays in memory, is reported and tried again: nothing stops because a disk is full.
//! [`Store`] is a handle; the file work is done by [`Writer::run`], away from the event loop.

mod record;

pub use record::{KillRecord, PodRecord};

use crate::model::{PodKey, SourceKind};
use serde::Serialize;
use std::{collections::BTreeMap, path::Path, sync::Arc};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The handle to the state files. Cheap to clone; the kernel lock is held until the last clone and the
/// [`Writer`] are gone.
#[derive(Clone, Debug)]
pub struct Store {}

/// The task that does the file work.
#[derive(Debug)]
pub struct Writer {}

/// What was found at start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Pod records by name; never an empty list.
    pub pods: BTreeMap<PodKey, Vec<PodRecord>>,
    /// What [`Store::put_source`] saved last.
    pub sources: BTreeMap<SourceKind, LoadedSource>,
    /// What [`Store::put_memory`] saved last, since the last reboot.
    pub memory: BTreeMap<PodKey, serde_json::Value>,
}

/// The saved state of a source.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LoadedSource {
    /// Never saved.
    #[default]
    None,
    /// Was saved, and is damaged or can't be read.
    Lost,
    /// As it was saved.
    Saved(serde_json::Value),
}

/// Why the state files can't be used at all.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another agent holds the lock.
    #[error("another nodelet (pid {pid}) uses {root}")]
    Locked {
        /// Its process id; `unknown` where the lock file does not tell.
        pid: String,
        /// The root directory.
        root: String,
    },
}

/// It is not on disk. It is kept in memory and tried again; [`Store::warnings`] says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot save {path}: {message}")]
pub struct NotSaved {
    /// The file.
    pub path: String,
    /// The system's words.
    pub message: String,
}

impl Store {
    /// Takes the kernel lock, makes the directories, removes leftovers of interrupted writes and reads
    /// everything. Blocks; to be called once, before the event loop has work.
    ///
    /// # Errors
    /// Another agent uses `root`, or there is no way to hold the lock. Nothing else is fatal: see
    /// [`Self::warnings`].
    pub fn open(root: &Path, run: &Path) -> Result<(Self, Writer, Loaded), StoreError> {
        unimplemented!("in the next commit")
    }

    /// This agent's owner id: `configured` as it is, else the kept one, made at the first call ever
    /// (32 lowercase hex digits).
    pub fn owner(&self, configured: Option<&str>) -> String {
        unimplemented!("in the next commit")
    }

    /// This node's name: `wanted` (`--hostname-override`), else the one kept from the first start,
    /// else `hostname`. Lower case. A difference from the kept one is a warning.
    pub fn node_name(&self, hostname: &str, wanted: Option<&str>) -> String {
        unimplemented!("in the next commit")
    }

    /// Saves every record of a name in place of what was saved for it; none: removes the file.
    /// Returns when it is on disk, or when that failed and was reported.
    ///
    /// # Errors
    /// It is not on disk (yet).
    ///
    /// # Cancel safety
    /// When dropped after the first poll the write may or may not happen.
    pub async fn put_pods(&self, key: &PodKey, records: &[PodRecord]) -> Result<(), NotSaved> {
        unimplemented!("in the next commit")
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
        unimplemented!("in the next commit")
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
        unimplemented!("in the next commit")
    }

    /// What a person should know: files set aside, files that can't be written, a changed host name.
    pub fn warnings(&self) -> watch::Receiver<Arc<Vec<String>>> {
        unimplemented!("in the next commit")
    }
}

impl Writer {
    /// Writes what the handles ask for until `shutdown`, then what is left.
    pub async fn run(self, shutdown: CancellationToken) {
        unimplemented!("in the next commit")
    }
}
