//! Looks at host paths, which may lie on a file system that does not answer: a dead NFS server,
//! say.

use super::{Host, Request, TURN, blocking};
use crate::blocking::PODS;
use std::{sync::Arc, thread, time::Duration};
use tokio::sync::{Semaphore, oneshot};

/// Pods that may look at their host paths at a time; more wait, and give up after [`TURN`].
const TURNS: usize = 16;
/// When a look counts as hung.
const HANGS: Duration = Duration::from_secs(10);

/// Turns for looking at host paths.
#[derive(Debug)]
pub struct HostPaths(Arc<Semaphore>);

impl Default for HostPaths {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TURNS)))
    }
}

/// Runs work on the pod's volumes off the event loop. Where there are host paths it has a thread of
/// its own: it may hang for as long as the file system does, and nobody else waits for that thread.
pub(super) async fn with_volumes<T: Send + 'static>(
    host: &Host,
    request: &Request,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let volumes = request.pod.as_ref().and_then(|pod| pod.spec.as_ref()?.volumes.as_ref());
    if !volumes.is_some_and(|all| all.iter().any(|volume| volume.host_path.is_some())) {
        return blocking(&PODS, work).await;
    }
    let turn = tokio::time::timeout(TURN, Arc::clone(&host.host_paths.0).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        return Err(format!(
            "{TURNS} other pods are waiting for host paths on file systems that do not answer"
        ));
    };
    let (sender, answer) = oneshot::channel();
    thread::Builder::new()
        .name("host-paths".to_owned())
        .spawn(move || {
            // Given back when the thread is done, whoever still waits for it.
            let _turn = turn;
            sender.send(work()).ok();
        })
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let looked = request.awaited("looking at host paths", HANGS, Box::pin(answer)).await;
    looked.map_err(|_| "looking at host paths has crashed".to_owned())
}
