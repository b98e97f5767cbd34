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
//! keep the last good revision. Deciding that is [`core`], without any I/O. Merging sources and
//! what becomes of the pods is not done here.

pub mod core;
mod directory;
mod hints;
mod inspect;
mod lister;
mod names;
mod output;
mod reader;
mod url;

pub use core::Forgotten;
pub use directory::DirectorySource;
pub use inspect::{inspect, inspect_text};
pub use url::UrlSource;

use crate::{
    desired::SourceSnapshot,
    manifest::Settings,
    model::{NodeObjects, Origin, PodKey},
};
use output::Command;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot, watch};

/// No source looks more often than this by the clock, whatever was configured.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);

/// Which documents a source takes; others get a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accepts {
    /// Pods, ConfigMaps and Secrets.
    #[default]
    All,
    /// Pods alone: a URL.
    Pods,
    /// ConfigMaps and Secrets alone: `configPath`.
    Objects,
}

/// Where the values of credentials are, which Secrets in files may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CredentialsDirectory {
    /// Nobody has given the agent any.
    #[default]
    None,
    /// `$CREDENTIALS_DIRECTORY` of the agent.
    At(PathBuf),
    /// This is not the agent, so it can't tell which there are.
    Unknown,
}

/// What a source is made from besides its place.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    pub accepts: Accepts,
    pub credentials: CredentialsDirectory,
    pub node_name: String,
    pub settings: Settings,
    /// Between two looks, without a hint.
    pub check_every: Duration,
    /// What [`SourceHandle::saved`] had last in an earlier life, from the store.
    pub saved: SavedState,
    /// The pods of this source that have a record in the store, and where they were written. A record
    /// may be newer than what was saved.
    pub admitted: Vec<(PodKey, Origin)>,
}

/// What is left of an earlier life.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SavedState {
    /// There was none.
    #[default]
    None,
    /// It was lost: nothing is removed before manifests were seen again.
    Lost,
    Saved(serde_json::Value),
}

/// The receiving end of a source.
#[derive(Clone, Debug)]
pub struct SourceHandle {
    /// What it wants, from before its first look on (`Unknown`, or `Checkpoint` with the last good
    /// pods).
    pub snapshots: watch::Receiver<Arc<SourceSnapshot>>,
    /// The ConfigMaps and Secrets that it has. Those that were written beside a pod are published
    /// before it.
    pub objects: watch::Receiver<Arc<NodeObjects>>,
    /// What is to be saved; changes when last good revisions change.
    pub saved: watch::Receiver<Arc<core::Saved>>,
    /// The last sign of life of its task, as `clock::awake`; zero before the first.
    pub heartbeat: watch::Receiver<Duration>,
    commands: mpsc::Sender<Command>,
}

impl SourceHandle {
    /// Has the source look now, not when its clock or a hint says so.
    pub fn look_again(&self) {
        // A full queue has such a request already, or will lead to a look.
        self.commands.try_send(Command::Look).ok();
    }

    /// Drops the last good revision of a pod whose manifest is broken or gone.
    pub async fn forget(&self, key: &PodKey) -> Forgotten {
        let (reply, answer) = oneshot::channel();
        let command = Command::Forget { key: key.clone(), reply };
        if self.commands.send(command).await.is_err() {
            return Forgotten::Unknown;
        }
        // The source ends in between only when the agent does.
        answer.await.unwrap_or(Forgotten::Unknown)
    }
}
