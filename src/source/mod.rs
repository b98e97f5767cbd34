//! Reads manifests from a directory (or one file) and from a URL, and says which pods they want.
//!
//! ```text
//!  inotify (hint) ─┐
//!  timer ──────────┴─► look: list, read, decode ─► core::step ─► SourceSnapshot (watch)
//!                                                      └──────► Saved (watch) ─► store, by the agent
//! ```
//!
//! Once accepted, a pod stays wanted until its manifest is cleanly removed: a manifest that turns
//! invalid, half-written, unreadable or duplicated, a directory that vanishes or a URL that fails
//! keep the last good revision. Deciding that is [`core`], without any I/O. Merging sources and what
//! becomes of the pods is not done here.

pub mod core;

use crate::{desired::SourceSnapshot, manifest::Settings, model::PodKey};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// What a source is made from besides its place.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// This node's name.
    pub node_name: String,
    /// What manifests may ask for.
    pub settings: Settings,
    /// Between two looks, without a hint.
    pub check_every: Duration,
    /// What [`SourceHandle::saved`] had last in an earlier life, from the store.
    pub saved: SavedState,
}

/// What is left of an earlier life.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SavedState {
    /// There was none.
    #[default]
    None,
    /// It was lost: nothing is removed before manifests were seen again.
    Lost,
    /// As saved.
    Saved(serde_json::Value),
}

/// The receiving end of a source.
#[derive(Clone, Debug)]
pub struct SourceHandle {
    /// What it wants, from before its first look on (`Unknown`, or `Checkpoint` with the last good pods).
    pub snapshots: watch::Receiver<Arc<SourceSnapshot>>,
    /// What is to be saved; changes when last good revisions change.
    pub saved: watch::Receiver<Arc<core::Saved>>,
    commands: mpsc::Sender<Command>,
}

#[derive(Debug)]
struct Command {
    key: PodKey,
    reply: oneshot::Sender<Forgotten>,
}

/// What became of a request to forget a last good revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Dropped: the pod goes.
    Done,
    /// The source does not have it.
    Unknown,
    /// Its manifest is there and valid: remove or change that.
    Written {
        /// The file or URL.
        location: String,
    },
}

/// The directory or file of `staticPodPath`.
#[derive(Debug)]
pub struct DirectorySource {}

/// The URL of `staticPodURL`.
#[derive(Debug)]
pub struct UrlSource {}

impl SourceHandle {
    /// Drops the last good revision of a pod whose manifest is broken or gone.
    pub async fn forget(&self, key: &PodKey) -> Forgotten {
        unimplemented!("in the next commit")
    }
}

impl DirectorySource {
    /// A source that reads `path`, a directory or a file.
    pub fn new(path: PathBuf, options: SourceOptions) -> (Self, SourceHandle) {
        unimplemented!("in the next commit")
    }
    /// Looks until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        unimplemented!("in the next commit")
    }
}

impl UrlSource {
    /// A source that asks `url` with these headers (name and value; several of one name allowed).
    pub fn new(
        url: &str,
        headers: &[(String, String)],
        options: SourceOptions,
    ) -> (Self, SourceHandle) {
        unimplemented!("in the next commit")
    }
    /// Asks until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        unimplemented!("in the next commit")
    }
}
