//! The interfaces of a running agent: the local socket, the health port, the HTTPS API (`kubelet`)
//! and the read-only port.
//!
//! `<run_dir>/nodelet.sock` speaks HTTP/1.1 to root alone (mode 0600): `GET /status`, `/pods`,
//! `/events`, `/healthz`, `/configz`, `/stats/summary`, `/metrics`, `/ui`, `POST /forget`, `/restart`,
//! `/retry`, and the upgrades `/exec`, `/attach`, `/portForward`. With `?watch=true` the answers of
//! `/events` and `/status` go on (`follow`). The health port serves `/healthz` and the paths below it
//! to every client that can reach it. Answers are made from published views, so they do not depend on
//! the runtime; statistics wait for it for a few seconds at most. The only request that is passed on
//! is a [`Command`]; its answer is awaited up to a deadline. Each listener has a
//! [`ConnectionPolicy`], which bounds connections and their lifetimes. [`Client`] is the other end.

mod client;
mod connections;
mod document;
mod follow;
mod health;
mod http2;
mod kubelet;
mod last_moved;
mod requests;
mod routes;
mod socket;
mod stats;
mod ui;

pub use kubelet::{GuardSettings, KubeletApi, NotReviewed, Permissions, Reviews, TlsSettings};
pub use stats::{MachineFacts, StatsSource};
pub use ui::Graphs;

pub use client::{Client, ClientError, Upgraded};
pub use document::{
    AskRequest, FollowLine, ForgetAnswer, ForgetRequest, StatusDocument, pod_object,
};

use crate::{
    cri::RuntimeClient,
    event::EventLog,
    model::{Ask, AskAnswer, NodeView, PodKey, PodViews, ProbeViews},
};
use axum::Router;
use connections::{ConnectionPolicy, Plain};
use jiff::Timestamp;
use socket::LocalSocket;
use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Name of the socket in the run directory.
pub const SOCKET_NAME: &str = "nodelet.sock";

/// Only root may connect, and many sessions may begin at once. The command of a session is in the
/// head of its request. The lifetime is longer than a session may take to begin
/// ([`client::SESSION_DEADLINE`]).
const LOCAL_POLICY: ConnectionPolicy = ConnectionPolicy {
    places: 256,
    head: Duration::from_secs(5),
    head_bytes: client::MAX_TARGET + connections::HEAD_BYTES,
    lifetime: Duration::from_secs(90),
    kept: None,
};

/// What answers are made from.
#[derive(Clone, Debug)]
pub struct Views {
    pub pods: watch::Receiver<Arc<PodViews>>,
    pub probes: watch::Receiver<ProbeViews>,
    pub node: watch::Receiver<Arc<NodeView>>,
    pub events: watch::Receiver<Arc<EventLog>>,
    /// When the loops that make up the agent last came round, as `clock::awake`; zero before the
    /// first time.
    pub heartbeats: Vec<watch::Receiver<Duration>>,
    /// What the node and its pods have used.
    pub stats: StatsSource,
    /// The graphs of the status page.
    pub graphs: Graphs,
}

/// What a person can tell the agent to do.
#[derive(Debug)]
pub enum Command {
    /// Drop the last good revision of a pod whose manifest is invalid, gone or unreadable now.
    Forget { key: PodKey, reply: oneshot::Sender<ForgetAnswer> },
    /// Do something with a pod that runs.
    Ask { key: PodKey, ask: Ask, reply: oneshot::Sender<AskAnswer> },
}

/// Where to listen, and what else there is to tell.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// Directory of the socket: created with mode 0700 if missing.
    pub run_dir: PathBuf,
    /// The health port; `None`: not served.
    pub healthz: Option<SocketAddr>,
    /// `readOnlyPort`; `None`: not served.
    pub read_only: Option<SocketAddr>,
    /// Told to clients, which read container logs themselves.
    pub pod_logs_dir: PathBuf,
    /// `streamingConnectionIdleTimeout`: a session on which nothing is sent for so long is closed.
    pub stream_idle: Duration,
    /// The KubeletConfiguration that is in effect, as JSON.
    pub configuration: Box<str>,
    /// What the machine is known by in metrics.
    pub machine: MachineFacts,
    /// `syncFrequency`: the main loop is late after twice this time, at least after 5 minutes.
    pub sync_frequency: Duration,
}

/// Why the local socket can't be had.
#[derive(Debug, Error)]
pub enum ServeError {
    /// An agent is serving there.
    #[error("another agent answers on {}", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket is in the way.
    #[error("{} exists and is not a socket", .0.display())]
    InTheWay(PathBuf),
    /// The directory or the socket can't be made.
    #[error("can't {operation} {}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

/// The local socket, bound, and the ports, which are bound in [`Server::run`].
#[derive(Debug)]
pub struct Server {
    local: LocalSocket,
    api: kubelet::Api,
    sessions: kubelet::Sessions,
    healthz: Option<SocketAddr>,
    read_only: Option<SocketAddr>,
    kubelet: Option<KubeletApi>,
    /// When the certificate of the HTTPS API expires.
    serving_until: watch::Sender<Option<Timestamp>>,
}

impl Server {
    /// Binds the local socket; a stale one is replaced when no agent answers on it. To be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// Another agent answers, something else is in the way, or the file system refuses.
    pub fn bind(
        settings: ServeSettings,
        views: Views,
        commands: mpsc::Sender<Command>,
        runtime: RuntimeClient,
        kubelet: Option<KubeletApi>,
    ) -> Result<Self, ServeError> {
        let local = LocalSocket::bind(&settings.run_dir)?;
        let health = health::Health::new(views.heartbeats.clone(), settings.sync_frequency);
        let followers = Arc::new(Semaphore::new(follow::FOLLOWERS));
        let pod_logs_dir = settings.pod_logs_dir;
        let machine = Arc::new(settings.machine);
        let configuration = settings.configuration.into();
        let (serving_until, certificate_until) = watch::channel(None);
        let app = routes::App {
            views,
            certificate_until,
            commands,
            health,
            pod_logs_dir,
            machine,
            configuration,
            followers,
        };
        let (relays, sessions) = kubelet::sessions(settings.stream_idle);
        let api = kubelet::Api { local: app, runtime, relays };
        let (healthz, read_only) = (settings.healthz, settings.read_only);
        Ok(Self { local, api, sessions, healthz, read_only, kubelet, serving_until })
    }

    /// Serves until `shutdown`, then removes the socket. Whenever `looks` changes, the socket is
    /// made again where its file is gone. A health port that can't be bound is logged and tried
    /// again every 5 seconds, like the kubelet's.
    pub async fn run(self, looks: watch::Receiver<u64>, shutdown: CancellationToken) {
        let app = self.api.local.clone();
        let health = health::serve(self.healthz, app.health.clone(), shutdown.clone());
        let read_only = kubelet::serve_read_only(self.read_only, app.clone(), shutdown.clone());
        let sessions = self.sessions.run(shutdown.clone());
        let router = routes::router(app).merge(kubelet::sessions_router(self.api.clone()));
        let (api, stop) = (self.api, shutdown.clone());
        let kubelet = async move {
            if let Some(kubelet) = self.kubelet {
                kubelet.serve(api, self.serving_until, stop).await;
            }
        };
        let local = serve_local(self.local, router, looks, shutdown);
        tokio::join!(health, Box::pin(read_only), local, sessions, Box::pin(kubelet));
    }
}

async fn serve_local(
    mut local: LocalSocket,
    router: Router,
    mut looks: watch::Receiver<u64>,
    shutdown: CancellationToken,
) {
    loop {
        // Cancel-safe: connections that are closed belong to a socket that clients can't reach any
        // more.
        tokio::select! {
            biased;
            () = connections::serve(&local.listener, Plain, router.clone(), LOCAL_POLICY, shutdown.clone()) => {
                local.path.remove();
                return;
            }
            () = local.path.lost(&mut looks) => {}
        }
        match local.path.bind_again() {
            Ok(bound) => {
                tracing::warn!("the local socket was deleted and is created again");
                local = bound;
            }
            // The next look tries again.
            Err(err) => {
                tracing::warn!(%err, "the local socket was deleted and can't be created again");
            }
        }
    }
}

#[cfg(test)]
mod tests;
