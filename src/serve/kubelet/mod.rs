//! The HTTPS API of the node, which the API server, Prometheus and people with a permission use: the
//! kubelet's paths on port 10250.
//!
//! ```text
//!  connection ─► tls ─► guard: who, and may they? ─► routes ─► published views
//!                                                       ├────► container_logs ─► log files
//!                                                       └────► relay ─► the runtime's streaming server
//! ```
//!
//! HTTP/1.1 and HTTP/2 are spoken, as the client chooses during the handshake (ALPN). Sessions need
//! HTTP/1.1: a request of HTTP/2 can't be upgraded.

mod access;
mod cache;
mod container_logs;
mod counted;
mod flagz_statusz;
mod guard;
mod relay;
mod routes;
mod self_signed;
mod system_logs;
mod tls;
mod user;

pub use guard::{GuardSettings, NotReviewed, Permissions, Reviews};
pub(super) use relay::{Sessions, sessions};
pub(super) use routes::{Api, sessions_router};
pub use tls::TlsSettings;

use super::{
    connections::{self, ConnectionPolicy, HttpVersion, Io, Open, OpenedConnection, Peer, Plain},
    routes as local,
};
use crate::model::SystemLogs;
use guard::Guard;
use jiff::Timestamp;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tls::Keys;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Everybody who reaches the port may connect. A log that is followed takes a place, too.
const POLICY: ConnectionPolicy = ConnectionPolicy {
    places: 256,
    head: Duration::from_secs(30),
    head_bytes: connections::HEAD_BYTES,
    lifetime: Duration::from_secs(120),
    // Longer than the usual period of a scrape.
    kept: Some(Duration::from_secs(100)),
};

/// Everybody who reaches the port may connect, and nobody proves anything. A summary of a full node
/// takes its time on a slow link, so an answer may take longer than one of the health port.
const READ_ONLY_POLICY: ConnectionPolicy = ConnectionPolicy {
    places: 64,
    head: Duration::from_secs(5),
    head_bytes: connections::HEAD_BYTES,
    lifetime: Duration::from_secs(60),
    kept: None,
};

/// What the HTTPS API needs.
#[derive(Debug)]
pub struct KubeletApi {
    pub address: SocketAddr,
    pub tls: TlsSettings,
    pub guard: GuardSettings,
    /// `enableDebuggingHandlers`
    pub debugging_handlers: bool,
    pub system_logs: SystemLogs,
    /// The flags that were given, `name=value`, a line for each.
    pub flags: Box<str>,
}

/// HTTP inside TLS.
#[derive(Clone)]
struct Secured(Arc<Keys>);

impl Open for Secured {
    async fn open(&self, stream: Io) -> Option<OpenedConnection> {
        let config = self.0.server().await?;
        let stream = match TlsAcceptor::from(config).accept(stream).await {
            Ok(stream) => stream,
            Err(err) => {
                tracing::debug!(%err, "a TLS handshake failed");
                return None;
            }
        };
        let session = stream.get_ref().1;
        let certificates = session.peer_certificates().unwrap_or_default();
        let peer = Peer(certificates.iter().map(|one| one.clone().into_owned()).collect());
        let version = match session.alpn_protocol() {
            Some(tls::HTTP2) => HttpVersion::Two,
            Some(_) | None => HttpVersion::One,
        };
        Some(OpenedConnection { stream: Box::new(stream), peer, version })
    }
}

impl KubeletApi {
    /// Serves until `shutdown`. `until` is told when the certificate in use expires.
    pub(super) async fn serve(
        self,
        api: Api,
        until: watch::Sender<Option<Timestamp>>,
        shutdown: CancellationToken,
    ) {
        let keys = Arc::new(Keys::new(self.tls, until));
        let guard = Arc::new(Guard::new(self.guard, Arc::clone(&keys)));
        let flagz_statusz = flagz_statusz::router(api.local.clone(), self.flags.into());
        let router = routes::router(api, self.debugging_handlers, self.system_logs);
        let router = routes::guarded(router.merge(flagz_statusz), guard);
        // A certificate is made now, and whatever is wrong with the files is told.
        drop(keys.server().await);
        let address = self.address;
        let bound = connections::bound(address, "the HTTPS API", &shutdown).await;
        let Some(listener) = bound else { return };
        tracing::info!(%address, "the HTTPS API is served");
        connections::serve(&listener, Secured(keys), router, POLICY, shutdown).await;
    }
}

/// Serves the read-only port until `shutdown`: a part of the HTTPS API, to everybody who reaches it.
pub(super) async fn serve_read_only(
    address: Option<SocketAddr>,
    app: local::App,
    shutdown: CancellationToken,
) {
    let Some(address) = address else { return };
    tracing::warn!(%address, "readOnlyPort: everybody who reaches it may read pods and statistics");
    let router = routes::read_only_router(app);
    if let Some(listener) = connections::bound(address, "the read-only port", &shutdown).await {
        connections::serve(&listener, Plain, router, READ_ONLY_POLICY, shutdown).await;
    }
}
