//! Checks host paths, which may be on a file system that does not answer, for example an NFS server
//! that is down.

use super::{Host, HostError, Request, TURN};
use crate::blocking::PODS;
use std::{sync::Arc, thread, time::Duration};
use tokio::sync::{Semaphore, oneshot};

/// The number of pods that may check their host paths at the same time. Further pods wait, and fail
/// after [`TURN`].
const TURNS: usize = 16;
/// When a check counts as hung.
const HANGS: Duration = Duration::from_secs(10);

/// Turns for checking host paths.
#[derive(Debug)]
pub struct HostPaths(Arc<Semaphore>);

impl Default for HostPaths {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TURNS)))
    }
}

/// Runs work on the pod's volumes outside of the event loop. For a pod with host paths it uses a
/// separate thread, because it may hang as long as the file system does.
pub(super) async fn with_volumes<T: Send + 'static>(
    host: &Host,
    request: &Request,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HostError> {
    let volumes = request.pod.as_ref().and_then(|pod| pod.spec.as_ref()?.volumes.as_ref());
    if !volumes.is_some_and(|all| all.iter().any(|volume| volume.host_path.is_some())) {
        return Ok(PODS.run(work).await?);
    }
    let turn = tokio::time::timeout(TURN, Arc::clone(&host.host_paths.0).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        return Err(HostError::HostPathsHang(TURNS));
    };
    let (sender, answer) = oneshot::channel();
    thread::Builder::new()
        .name("host-paths".to_owned())
        .spawn(move || {
            // The turn is released when the thread ends, even if its result is not awaited any
            // more.
            let _turn = turn;
            sender.send(work()).ok();
        })
        .map_err(HostError::Thread)?;
    let looked = request.awaited("looking at host paths", HANGS, Box::pin(answer)).await;
    looked.map_err(|_| HostError::HostPathsCrashed)
}
