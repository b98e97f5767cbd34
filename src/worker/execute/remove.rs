//! `RemoveContainer`, `RemoveSandbox`, `Release` and `CleanUp`.

use super::{Host, Request, blocking, chain};
use crate::{
    blocking::{CGROUPS, REMOVALS},
    plan::{Outcome, RemoveContainer, RemoveSandbox, Step},
    podspec::pod_cgroup_name,
};

pub(super) async fn container(host: &Host, request: &Request, remove: &RemoveContainer) -> Outcome {
    // Before the container: on a disk that is full, of these logs perhaps, the runtime can't write down that it is gone.
    if !remove.keep_logs && !remove.name.is_empty() {
        let (files, key, uid) = (host.files.clone(), request.key.clone(), request.uid.clone());
        let (name, id, count) = (remove.name.clone(), remove.id.clone(), remove.restart_count);
        let removed = blocking(&REMOVALS, move || {
            files.remove_container_logs((&key, &uid), &name, &id, count)
        })
        .await;
        let error = match removed {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(chain(&error)),
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            // The pod's log directory goes with the pod, whatever is left in it.
            tracing::warn!(pod = %request.key, container = %remove.name, err = %error, "cannot remove its logs");
        }
    }
    let deadline = host.settings.request_timeout;
    let call = Box::pin(host.runtime.remove_container(&remove.id));
    let step = Step::RemoveContainer { id: remove.id.clone() };
    if let Err(error) = request.awaited("RemoveContainer", deadline, call).await {
        return Outcome::Failed(request.failure(step, "RemoveContainerError", error.message()));
    }
    Outcome::ContainerRemoved { uid: remove.uid.clone(), id: remove.id.clone() }
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
        Err(message) => Outcome::Failed(request.failure(Step::Release, "FailedCleanUp", message)),
    }
}

pub(super) async fn clean_up(host: &Host, request: &Request) -> Outcome {
    let failed =
        |message| Outcome::Failed(request.failure(Step::CleanUp, "FailedCleanUp", message));
    if let Err(message) = try_release(host, request).await {
        return failed(message);
    }
    let (volumes, files) = (host.volumes.clone(), host.files.clone());
    let (key, uid) = (request.key.clone(), request.uid.clone());
    let removed = blocking(&REMOVALS, move || -> Result<(), String> {
        volumes.remove_pod_dir(&uid).map_err(|error| chain(&error))?;
        files.remove_pod_logs(&key, &uid).map_err(|error| chain(&error))
    });
    if let Err(message) = removed.await.and_then(|done| done) {
        return failed(message);
    }
    Outcome::CleanedUp { uid: request.uid.clone() }
}

/// Volumes first: a mount that is busy keeps the rest for the next try.
async fn try_release(host: &Host, request: &Request) -> Result<(), String> {
    let (volumes, uid) = (host.volumes.clone(), request.uid.clone());
    blocking(&REMOVALS, move || volumes.teardown(&uid)).await?.map_err(|error| chain(&error))?;
    let names = match &request.pod {
        Some(pod) => vec![pod_cgroup_name(pod)],
        None => {
            let (cgroups, uid) = (host.cgroups.clone(), request.uid.clone());
            let found =
                blocking(&CGROUPS, move || cgroups.list_pods()).await?.map_err(|e| chain(&e))?;
            found.into_iter().filter(|pod| pod.uid == uid).map(|pod| pod.name).collect()
        }
    };
    for name in names {
        host.cgroups.remove_pod(&name).await.map_err(|error| chain(&error))?;
    }
    Ok(())
}
