//! Listening on a Unix socket such that dropping the listener also cuts every connection: a
//! runtime that dies, not one that says goodbye.

use std::{future::Future, path::Path, sync::Arc, time::Duration};
use tokio::{
    net::{UnixListener, UnixStream},
    task::{AbortHandle, JoinSet},
};

/// Serves until dropped; nothing is answered any more when that is done.
pub struct Served {
    task: AbortHandle,
    /// The task and every connection have one, too.
    alive: Arc<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
        // An abort takes effect when the task would go on.
        let others = || Arc::strong_count(&self.alive) - 1;
        let ended = super::poll_until(Duration::from_secs(10), others, |others| *others == 0);
        assert!(
            ended.is_ok() || std::thread::panicking(),
            "{ended:?} connections are still served"
        );
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
    let alive = Arc::new(());
    let of_task = Arc::clone(&alive);
    let task = super::tokio_runtime().spawn(async move {
        let listener = UnixListener::from_std(std_listener).unwrap();
        // Dropped together with this task, and every connection with it.
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (served, of_connection) = (serve(stream), Arc::clone(&of_task));
            connections.spawn(async move {
                served.await;
                drop(of_connection);
            });
            while connections.try_join_next().is_some() {}
        }
    });
    Served { task: task.abort_handle(), alive }
}
