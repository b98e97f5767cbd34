//! Looks at host paths, PersistentVolumes and NFS volumes, which may be on a file system that does
//! not answer, for example that of an NFS server that is down.

use super::{Host, HostError, Request, TURN};
use crate::{
    blocking::PODS,
    model::k8s,
    podspec::{claimed_volumes, has_nfs_volume, is_claimed},
};
use std::{sync::Arc, thread, time::Duration};
use tokio::sync::{Semaphore, oneshot};

/// The number of pods that may look at the same time, those with NFS volumes apart from the others.
/// Further pods wait, and fail after [`TURN`].
const TURNS: usize = 16;
/// When a check counts as hung.
const HANGS: Duration = Duration::from_secs(10);

/// Turns for looking at host paths and NFS volumes.
#[derive(Debug)]
pub struct VolumeTurns {
    host_paths: Arc<Semaphore>,
    nfs: Arc<Semaphore>,
}

impl Default for VolumeTurns {
    fn default() -> Self {
        let turns = || Arc::new(Semaphore::new(TURNS));
        Self { host_paths: turns(), nfs: turns() }
    }
}

/// Runs work on the pod's volumes outside of the event loop. For a pod with host paths or
/// NFS volumes it uses a separate thread, because it may hang as long as the file system does.
pub(super) async fn with_volumes<T: Send + 'static>(
    host: &Host,
    request: &Request,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HostError> {
    let volumes = || request.pod.iter().filter_map(|pod| pod.spec.as_ref()?.volumes.as_ref());
    let has = |is: fn(&k8s::Volume) -> bool| volumes().flatten().any(is);
    let has_nfs =
        |pod: &Arc<k8s::Pod>| has_nfs_volume(pod, &claimed_volumes(pod, &request.objects));
    let turns = if request.pod.as_ref().is_some_and(has_nfs) {
        &host.volume_turns.nfs
    } else if has(|volume| volume.host_path.is_some() || is_claimed(volume)) {
        &host.volume_turns.host_paths
    } else {
        return Ok(PODS.run(work).await?);
    };
    let turn = tokio::time::timeout(TURN, Arc::clone(turns).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        return Err(HostError::VolumesHang(TURNS));
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
    let looked =
        request.awaited("looking at host paths and NFS volumes", HANGS, Box::pin(answer)).await;
    looked.map_err(|_| HostError::VolumesCrashed)
}
