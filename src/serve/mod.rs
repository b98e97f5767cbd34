//! What the outside can ask a running agent: the local socket and the health port.
//!
//! `<run_dir>/nodelet.sock` speaks HTTP/1.1 to root alone (mode 0600 in a directory that only root may
//! enter): `GET /status`, `/pods`, `/events`, `/healthz`, and `POST /forget`. The health port answers
//! `/healthz` and what is below it, to anybody who can reach it.
//! Every answer is made from published views, so it comes also while the runtime hangs. The only
//! thing that reaches further is a [`Command`], which the agent answers in its own time, up to a deadline.
//! Connections, requests and their sizes are bounded.

mod document;

pub use document::{ForgetAnswer, ForgetRequest, StatusDocument};

use crate::{
    event::EventLog,
    model::{NodeView, PodKey, PodView},
};
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot, watch};

/// Name of the socket in the run directory.
pub const SOCKET_NAME: &str = "nodelet.sock";

/// What answers are made from.
#[derive(Clone, Debug)]
pub struct Views {
    /// Every pod.
    pub pods: watch::Receiver<Arc<BTreeMap<PodKey, Arc<PodView>>>>,
    /// The node.
    pub node: watch::Receiver<Arc<NodeView>>,
    /// What happened.
    pub events: watch::Receiver<Arc<EventLog>>,
    /// Boot time at which the main loop last came round; zero before the first time.
    pub heartbeat: watch::Receiver<Duration>,
}

/// What a person can tell the agent to do.
#[derive(Debug)]
pub enum Command {
    /// Drop the last good revision of a pod whose manifest is invalid, gone or unreadable now.
    Forget {
        /// Full name.
        key: PodKey,
        /// What came of it.
        reply: oneshot::Sender<ForgetAnswer>,
    },
}

/// Where to listen, and what else there is to tell.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// Directory of the socket: created with mode 0700 if missing.
    pub run_dir: PathBuf,
    /// The health port; `None`: not served.
    pub healthz: Option<SocketAddr>,
    /// Told to clients, which read container logs themselves.
    pub pod_logs_dir: PathBuf,
    /// `syncFrequency`: the main loop is late after twice this time, at least after 5 minutes.
    pub sync_frequency: Duration,
}

/// The local socket, bound, and the health port, yet to be bound.
#[derive(Debug)]
pub struct Server {
    settings: ServeSettings,
    views: Views,
    commands: mpsc::Sender<Command>,
}
