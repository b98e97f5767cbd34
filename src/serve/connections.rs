//! Accepts connections and serves a router on them, both for the socket and for the port: a few at
//! a time, none for long. Further ones wait in the kernel's backlog.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{io, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// How many connections are served at a time, per listener.
const MAX_CONNECTIONS: usize = 16;
/// How long a connection may last, used or not.
const LIFETIME: Duration = Duration::from_secs(60);
/// How long a client may take to send the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes read ahead per connection, which bounds the head of a request as well.
const READ_BUFFER: usize = 16 * 1024;
/// After a failed accept (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

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

/// Serves until `shutdown`; what is being answered then is cut off.
pub(super) async fn serve(listener: &impl Accept, router: Router, shutdown: CancellationToken) {
    let mut open = JoinSet::new();
    loop {
        // Cancel-safe: accept, join_next and cancelled lose nothing when dropped.
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(_) = open.join_next() => {}
            accepted = listener.connection(), if open.len() < MAX_CONNECTIONS => match accepted {
                Ok(stream) => {
                    open.spawn(timeout(LIFETIME, answer(stream, router.clone())));
                }
                Err(err) => {
                    tracing::warn!(%err, "a connection can't be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(READ_BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(err) = served {
        tracing::debug!(%err, "a connection ended with an error");
    }
}
