//! `RemoveContainer`, `RemoveSandbox`, `Release` and `CleanUp`.

use super::{Host, HostError, Request, blocking, nfs};
use crate::{
    beneath::{Removal, Slice},
    blocking::{CGROUPS, PODS, REMOVALS, UNMOUNTS},
    cgroup::CgroupError,
    cri::CriError,
    hostfiles::HostFiles,
    model::{CollectOrdered as _, ContainerId, PodKey, PodUid},
    plan::{Outcome, RemoveContainer, RemoveSandbox, Step},
    podspec::pod_cgroup_name,
    volume::Volumes,
};
use std::{collections::BTreeSet, time::Duration};

/// A removal gives its thread back after this time and queues again. So a removal of a million
/// entries delays a small one by at most this time.
const SLICE: Duration = Duration::from_millis(250);

pub(super) async fn container(host: &Host, request: &Request, remove: &RemoveContainer) -> Outcome {
    // The logs are removed before the container: on a full disk, the runtime can't record the
    // removal of the container. These logs may be the reason why the disk is full.
    if !remove.keep_logs && !remove.name.is_empty() {
        let (files, key, uid) = (host.files.clone(), request.key.clone(), request.uid.clone());
        let (name, id, count) = (remove.name.clone(), remove.id.clone(), remove.restart_count);
        // Not in the pool of removals, because the restart of the container waits for this.
        let removed =
            blocking(&PODS, move || files.remove_container_logs((&key, &uid), &name, &id, count))
                .await;
        if let Err(error) = removed {
            // The pod's log directory is removed with the pod, including these files.
            tracing::warn!(pod = %request.key, container = %remove.name, err = %error.message(), "cannot remove its logs");
        }
    }
    let deadline = host.settings.request_timeout;
    let call = || Box::pin(host.runtime.remove_container(&remove.id));
    let mut removed = request.awaited("RemoveContainer", deadline, call()).await;
    if removed.as_ref().is_err_and(CriError::is_failed_precondition)
        && end_task(host, request, &remove.id).await
    {
        removed = request.awaited("RemoveContainer", deadline, call()).await;
    }
    if let Err(error) = removed {
        let step = Step::RemoveContainer { id: remove.id.clone() };
        return Outcome::Failed(request.failure(step, "RemoveContainerError", error.message()));
    }
    Outcome::ContainerRemoved { uid: remove.uid.clone(), id: remove.id.clone() }
}

/// Ends what runs of a container that CRI shows as ended. If the agent dies during StartContainer,
/// containerd 1.6 may show the container as ended and keep its task. It then refuses to remove the
/// container because it runs, however often it is asked. Returns whether the task is deleted. A
/// process that was killed may not be dead yet; the next attempt deletes its task.
async fn end_task(host: &Host, request: &Request, id: &ContainerId) -> bool {
    let (cgroups, uid, container) = (host.cgroups.clone(), request.uid.clone(), id.clone());
    let killed = blocking(&CGROUPS, move || {
        let mut any = false;
        for pod in cgroups.list_pods()?.into_iter().filter(|pod| pod.uid == uid) {
            any |= cgroups.kill_container(&pod.name, &container)?;
        }
        Ok::<_, CgroupError>(any)
    });
    match killed.await {
        Ok(false) => {}
        Ok(true) => {
            tracing::warn!(pod = %request.key, container = %id, "the runtime showed the container as ended while its processes ran: they were killed");
        }
        Err(error) => {
            tracing::warn!(pod = %request.key, container = %id, err = %error.message(), "cannot kill its processes");
        }
    }
    let deleted = host.runtime.delete_task(id, host.settings.request_timeout).await;
    deleted
        .inspect_err(|err| tracing::debug!(container = %id, %err, "cannot delete its task"))
        .is_ok()
}

pub(super) async fn sandbox(host: &Host, request: &Request, remove: &RemoveSandbox) -> Outcome {
    let deadline = host.settings.request_timeout;
    let failed = |message: String| {
        let step = Step::RemoveSandbox { id: remove.id.clone() };
        Outcome::Failed(request.failure(step, "RemovePodSandboxError", message))
    };
    if let Err(error) = host.stop_sandbox(request, &remove.id).await {
        return failed(error.message());
    }
    let call = Box::pin(host.runtime.remove_sandbox(&remove.id));
    if let Err(error) = request.awaited("RemovePodSandbox", deadline, call).await {
        return failed(error.message());
    }
    Outcome::SandboxRemoved { uid: remove.uid.clone(), id: remove.id.clone() }
}

pub(super) async fn release(host: &Host, request: &Request) -> Outcome {
    match try_release(host, request).await {
        Ok(()) => Outcome::Released { uid: request.uid.clone() },
        Err(error) => {
            Outcome::Failed(request.failure(Step::Release, "FailedCleanUp", error.message()))
        }
    }
}

pub(super) async fn clean_up(host: &Host, request: &Request) -> Outcome {
    let failed = |error: HostError| {
        Outcome::Failed(request.failure(Step::CleanUp, "FailedCleanUp", error.message()))
    };
    match may_remove(host, request).await {
        Ok(true) => {}
        Ok(false) => return Outcome::CleanedUp { uid: request.uid.clone() },
        Err(error) => return failed(error),
    }
    if let Err(error) = try_release(host, request).await {
        return failed(error);
    }
    let removal = remove_host_directories(
        &host.volumes,
        &host.files,
        &request.uid,
        vec![request.key.clone()],
    );
    if let Err(error) = request.shown("removing the pod's directories", removal).await {
        return failed(error);
    }
    Outcome::CleanedUp { uid: request.uid.clone() }
}

/// Volumes first: if a mount is busy, the rest stays for the next try.
async fn try_release(host: &Host, request: &Request) -> Result<(), HostError> {
    if !may_remove(host, request).await? {
        return Ok(());
    }
    request.shown("unmounting volumes", unmount(&host.volumes, &request.uid)).await?;
    request.shown("removing volumes", delete_volumes(&host.volumes, &request.uid)).await?;
    request.shown("removing cgroups", remove_cgroups(host, request)).await?;
    host.user_namespaces.release(&request.uid);
    Ok(())
}

/// Removes the cgroup of the pod and every other one that its uid has: an edit of a manifest that
/// sets the uid may have changed the QoS class before this agent replaced such pods.
async fn remove_cgroups(host: &Host, request: &Request) -> Result<(), HostError> {
    let (cgroups, uid) = (host.cgroups.clone(), request.uid.clone());
    let found = blocking(&CGROUPS, move || cgroups.list_pods()).await?;
    let found = found.into_iter().filter(|pod| pod.uid == uid).map(|pod| pod.name);
    let named = request.pod.as_deref().map(pod_cgroup_name);
    let names: BTreeSet<Vec<String>> = found.chain(named).collect_ordered();
    for name in names {
        host.cgroups.remove_pod(&name).await?;
    }
    Ok(())
}

/// Unmounts the pod's volumes and deletes its emptyDirs.
///
/// # Cancel safety
/// Dropping it leaves a part of them; the next call goes on.
pub(super) async fn unmount_and_delete(volumes: &Volumes, uid: &PodUid) -> Result<(), HostError> {
    unmount(volumes, uid).await?;
    delete_volumes(volumes, uid).await
}

async fn unmount(volumes: &Volumes, uid: &PodUid) -> Result<(), HostError> {
    let (unmounted, of) = (volumes.clone(), uid.clone());
    blocking(&UNMOUNTS, move || unmounted.unmount(&of)).await?;
    nfs::unmount_all(volumes, uid).await
}

async fn delete_volumes(volumes: &Volumes, uid: &PodUid) -> Result<(), HostError> {
    let (volumes, uid) = (volumes.clone(), uid.clone());
    in_slices(move |slice| volumes.delete(&uid, slice)).await
}

/// Removes the logs of the pod under these names, and then its directory below the root directory.
///
/// # Cancel safety
/// As [`unmount_and_delete`].
pub(super) async fn remove_host_directories(
    volumes: &Volumes,
    files: &HostFiles,
    uid: &PodUid,
    keys: Vec<PodKey>,
) -> Result<(), HostError> {
    for key in keys {
        let (files, uid) = (files.clone(), uid.clone());
        in_slices(move |slice| files.remove_pod_logs(&key, &uid, slice)).await?;
    }
    let (volumes, uid) = (volumes.clone(), uid.clone());
    in_slices(move |slice| volumes.remove_pod_dir(&uid, slice)).await
}

/// Runs a removal to its end, a slice of time after the other.
async fn in_slices<E: Send + 'static>(
    removal: impl Fn(&mut Slice) -> Result<Removal, E> + Clone + Send + 'static,
) -> Result<(), HostError>
where
    HostError: From<E>,
{
    loop {
        let removal = removal.clone();
        match blocking(&REMOVALS, move || removal(&mut Slice::new(SLICE))).await? {
            Removal::Complete => return Ok(()),
            Removal::Unfinished => {}
        }
    }
}

/// Whether the pod's directory is this agent's. The cgroup and the logs of the uid belong to the
/// directory's owner: nothing is removed when another program made the directory, and the pod was
/// never started then.
async fn may_remove(host: &Host, request: &Request) -> Result<bool, HostError> {
    let (volumes, uid) = (host.volumes.clone(), request.uid.clone());
    let owner = host.settings.owner.clone();
    let ours = blocking(&REMOVALS, move || volumes.may_remove(&uid, &owner)).await?;
    if !ours {
        tracing::warn!(pod = %request.key, uid = %request.uid, "its directory was not created by this agent; the directory, logs and cgroup of this uid are left alone");
    }
    Ok(ours)
}
