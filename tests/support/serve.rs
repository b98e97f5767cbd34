//! Listening on a Unix socket such that dropping the listener also cuts every connection: a
//! runtime that dies, not one that says goodbye.

use std::{future::Future, path::Path};
use tokio::{
    net::{UnixListener, UnixStream},
    task::{AbortHandle, JoinSet},
};

/// Serves until dropped.
pub struct Served(AbortHandle);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Accepts connections on `socket` (replacing what lies there) and runs `serve` for each.
pub fn on_socket<F>(
    socket: &Path,
    serve: impl Fn(UnixStream) -> F + Send + Sync + 'static,
) -> Served
where
    F: Future<Output = ()> + Send + 'static,
{
    if socket.exists() {
        std::fs::remove_file(socket).unwrap();
    }
    let std_listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    std_listener.set_nonblocking(true).unwrap();
    let task = super::tokio_runtime().spawn(async move {
        let listener = UnixListener::from_std(std_listener).unwrap();
        // Dropped together with this task, and every connection with it.
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream));
            while connections.try_join_next().is_some() {}
        }
    });
    Served(task.abort_handle())
}
