//! Accepts connections and serves a router on them, under one policy for each listener.
//!
//! ```text
//!  accepted ──► waits for a request ──head complete──► answers ──► closed
//!                    │                                    │
//!                    ├── head deadline ───────────────────┤
//!                    └── dropped for a newer connection ──┴── lifetime
//! ```
//!
//! A connection carries one request. A new connection always gets in: when all places are taken,
//! the oldest connection without a complete request is dropped for it. A client that sends nothing,
//! sends slowly or never reads its answer therefore keeps its place only as long as no other client
//! needs it.
//!
//! The accept loop yields whenever it has accepted a quarter of its places. A new connection reads
//! what its client has sent before it can be dropped, and a flood of connections leaves every other
//! task its turn.

use axum::Router;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    task::{AbortHandle, Id, JoinSet, yield_now},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Bytes that are read ahead for each connection. A request whose head is longer is refused.
const READ_BUFFER: usize = 16 * 1024;
/// How long nothing is accepted after accepting has failed, which is when the process is out of
/// file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the clients of one listener are allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionPolicy {
    /// The most connections at a time.
    pub(super) places: usize,
    /// How long a client may take to send the head of its request.
    pub(super) head: Duration,
    /// How long a connection may last, from its acceptance until the client has read the answer.
    pub(super) lifetime: Duration,
}

/// Something that connections come from.
pub(super) trait Accept {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    async fn connection(&self) -> io::Result<Self::Stream>;
}

impl Accept for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn connection(&self) -> io::Result<Self::Stream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn connection(&self) -> io::Result<Self::Stream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Serves until `shutdown`; connections that are open then are closed.
pub(super) async fn serve(
    listener: &impl Accept,
    router: Router,
    policy: ConnectionPolicy,
    shutdown: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    let mut open: Vec<Connection> = Vec::new();
    let mut since_yield = 0;
    loop {
        // Cancel-safe: accept, join_next_with_id and cancelled lose nothing when dropped.
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                open.retain(|connection| connection.id() != id);
                continue;
            }
            accepted = listener.connection() => accepted,
        };
        match accepted {
            Ok(stream) => {
                while open.len() >= policy.places {
                    let asked = open.iter().map(Connection::has_asked);
                    open.remove(dispensable(asked)).task.abort();
                }
                let asked = Arc::new(AtomicBool::new(false));
                let answer = answer(stream, router.clone(), policy, Arc::clone(&asked));
                open.push(Connection { task: tasks.spawn(answer), asked });
                since_yield += 1;
                if since_yield >= policy.places / 4 {
                    since_yield = 0;
                    yield_now().await;
                }
            }
            Err(err) => {
                tracing::warn!(%err, "a connection can't be accepted");
                // Cancel-safe: both arms only wait.
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}

struct Connection {
    task: AbortHandle,
    /// Whether the head of its request has arrived.
    asked: Arc<AtomicBool>,
}

impl Connection {
    fn id(&self) -> Id {
        self.task.id()
    }

    fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Which connection is dropped for a new one: the oldest without a complete request, else the
/// oldest. `asked` says for each connection, oldest first, whether its request is complete.
fn dispensable(mut asked: impl Iterator<Item = bool>) -> usize {
    asked.position(|asked| !asked).unwrap_or(0)
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    policy: ConnectionPolicy,
    asked: Arc<AtomicBool>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        asked.store(true, Ordering::Relaxed);
        hyper::service::Service::call(&router, request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(policy.head)
        .keep_alive(false)
        .max_buf_size(READ_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(policy.lifetime, served).await {
        Ok(Ok(())) => {}
        Ok(Err(err)) => tracing::debug!(%err, "a connection ended with an error"),
        Err(_) => tracing::debug!("a connection was closed at the end of its lifetime"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_without_a_request_is_dropped_first() {
        assert_eq!(dispensable([true, false, false].into_iter()), 1);
        assert_eq!(dispensable([false, true].into_iter()), 0);
        assert_eq!(dispensable([true, true].into_iter()), 0);
    }
}
