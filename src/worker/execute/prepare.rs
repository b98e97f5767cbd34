//! `PreparePod`: saves the record first, then prepares what the pod needs on the host.

use super::{Host, HostError, Request, blocking, error_chain, nfs, volume_turns::with_volumes};
use crate::{
    blocking::PODS,
    cgroup::CgroupError,
    model::{
        CollectOrdered as _, ContainerState, CpuMemory, EventKind, ObservedContainer, SandboxState,
        k8s,
    },
    plan::{Occupancy, Outcome, Step},
    podspec::{
        EnvContext, FilesError, VolumeFiles, any_container_of, cgroup_amounts, claimed_volumes,
        ephemeral_containers, is_mounted, is_sidecar, pod_cgroup, pod_cgroup_name, volume_files,
    },
    volume::{Claim, Prepared},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(super) async fn prepare(host: &Host, request: &Request) -> Outcome {
    match try_prepare(host, request).await {
        Ok(cgroup) => Outcome::Prepared { uid: request.uid.clone(), cgroup },
        Err((reason, message)) => {
            host.record(request, EventKind::Warning, reason, message.clone());
            Outcome::Failed(request.failure(Step::Prepare, reason, message))
        }
    }
}

/// Returns what the pod's cgroup was given. A failure is the reason and the message of its event.
async fn try_prepare(
    host: &Host,
    request: &Request,
) -> Result<Option<CpuMemory>, (&'static str, String)> {
    let Some(pod) = request.pod.clone() else {
        return Err(("FailedSync", "the pod's specification is not known".to_owned()));
    };
    // First of all: a directory that another program made is not used, and neither is its cgroup.
    claim_directory(host, request).await.map_err(|error| ("FailedMount", error.message()))?;
    let cgroup = ensure_cgroup(host, &pod).await.map_err(|error| {
        let message = format!("unable to ensure pod container exists: {}", error_chain(&error));
        ("FailedCreatePodContainer", message)
    })?;
    set_up_volumes(host, request, pod).await?;
    Ok(cgroup)
}

/// Marks the pod's directory as this agent's. A pod that has a sandbox of this agent is this
/// agent's, whatever its directory says. What another pod with the same uid has left is removed
/// before: it has neither a worker nor a record nor a sandbox, or this pod would not have been
/// admitted.
async fn claim_directory(host: &Host, request: &Request) -> Result<(), HostError> {
    let uid = &request.uid;
    let Some(_turn) = host.leftovers.begin(uid) else {
        return Err(HostError::RemovalUnderWay);
    };
    if try_claim(host, request).await? == Claim::Done {
        return Ok(());
    }
    tracing::info!(pod = %request.key, %uid, "removing what another pod with this uid has left");
    let removal = host.leftovers.remove(uid);
    request.shown("removing what another pod with this uid has left", removal).await?;
    match try_claim(host, request).await? {
        Claim::Done => Ok(()),
        Claim::LeftByAnother => Err(HostError::LeftByAnother),
    }
}

async fn try_claim(host: &Host, request: &Request) -> Result<Claim, HostError> {
    let (volumes, uid, key) = (host.volumes.clone(), request.uid.clone(), request.key.clone());
    let owner = host.settings.owner.clone();
    let occupancy = Occupancy::new(&request.observed, &owner);
    let runs_ours = occupancy.own_sandboxes_of(&uid).next().is_some();
    let claim = move || match runs_ours {
        true => volumes.mark(&uid, &key, &owner).map(|()| Claim::Done),
        false => volumes.claim(&uid, &key, &owner),
    };
    blocking(&PODS, claim).await
}

/// Returns what the cgroup was given; `None` when it was left as it is.
async fn ensure_cgroup(host: &Host, pod: &k8s::Pod) -> Result<Option<CpuMemory>, CgroupError> {
    let Some(spec) = &pod.spec else { return Ok(None) };
    let values = pod_cgroup(spec, &host.settings.cgroup);
    let written = host.cgroups.ensure_pod(&pod_cgroup_name(pod), &values).await?;
    Ok(written.then(|| cgroup_amounts(spec)))
}

/// The files of the volumes that the agent writes, and that a container mounts.
fn files(
    host: &Host,
    request: &Request,
    pod: &k8s::Pod,
) -> BTreeMap<String, Result<VolumeFiles, FilesError>> {
    let host_ips = Arc::clone(&host.node_ips.borrow());
    let cx = EnvContext {
        node_name: &host.settings.node_name,
        host_ips: &host_ips,
        // No file tells the pod's addresses.
        pod_ips: &[],
        allocatable: &host.settings.allocatable,
        objects: &request.objects,
    };
    let Some(spec) = &pod.spec else { return BTreeMap::new() };
    let volumes = spec.volumes.iter().flatten().filter(|volume| is_mounted(spec, &volume.name));
    let files = |volume: &k8s::Volume| {
        let files = volume_files(pod, volume, &cx).transpose()?;
        Some((volume.name.clone(), files))
    };
    volumes.filter_map(files).collect_ordered()
}

/// The volumes that a container has which runs now, and those of which only init containers have
/// made use that are done.
fn volumes_in_use(request: &Request, pod: &k8s::Pod) -> BTreeSet<String> {
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let observed = &request.observed;
    let running = observed.containers.iter();
    let running = running.filter(|one| one.uid == request.uid && one.state.is_running());
    let running = running.filter_map(|one| any_container_of(pod, &one.name)?.volume_mounts.clone());
    let mut in_use: BTreeSet<String> = running.flatten().map(|mount| mount.name).collect_ordered();
    // In a new sandbox init containers run again.
    let sandbox = observed.sandboxes.iter().find(|one| one.uid == request.uid);
    let sandbox = sandbox.filter(|one| one.state == SandboxState::Ready).map(|one| &one.id);
    let latest = |container: &k8s::Container| {
        let mut own = observed.containers.iter().filter(|one| one.uid == request.uid);
        own.find(|one| *one.name == *container.name && Some(&one.sandbox_id) == sandbox)
    };
    let initialized = spec.containers.iter().any(|container| latest(container).is_some());
    let has_succeeded = |instance: &ObservedContainer| {
        matches!(instance.state, ContainerState::Exited { exit_code: 0, .. })
    };
    let is_done =
        |container: &k8s::Container| initialized || latest(container).is_some_and(has_succeeded);
    let mounts_of = |container: &k8s::Container| container.volume_mounts.clone();
    let ephemeral = ephemeral_containers(pod).iter().filter_map(|one| one.volume_mounts.clone());
    let (done, ahead): (Vec<_>, Vec<_>) = spec
        .init_containers
        .iter()
        .flatten()
        .partition(|container| !is_sidecar(container) && is_done(container));
    let ahead = ahead.into_iter().chain(&spec.containers).filter_map(mounts_of);
    let ahead = ahead.chain(ephemeral).flatten();
    let ahead: BTreeSet<String> = ahead.map(|mount| mount.name).collect_ordered();
    let done = done.into_iter().filter_map(mounts_of).flatten().map(|mount| mount.name);
    in_use.extend(done.filter(|volume| !ahead.contains(volume)));
    in_use
}

async fn set_up_volumes(
    host: &Host,
    request: &Request,
    pod: Arc<k8s::Pod>,
) -> Result<(), (&'static str, String)> {
    let (volumes, uid) = (host.volumes.clone(), request.uid.clone());
    let memory_limit = pod.spec.as_ref().and_then(|spec| cgroup_amounts(spec).memory_limit);
    let files = files(host, request, &pod);
    let claimed = claimed_volumes(&pod, &request.objects);
    let nfs_failures = nfs::mount_all(host, request, &pod, &claimed).await;
    let nfs_failures = nfs_failures.map_err(|error| ("FailedMount", error.message()))?;
    let in_use = volumes_in_use(request, &pod);
    let prepared = Prepared { files, nfs_failures, claimed, in_use };
    let set_up = move || volumes.setup(&pod, &uid, memory_limit, prepared);
    let done = with_volumes(host, request, set_up)
        .await
        .map_err(|error| ("FailedMount", error.message()))?;
    done.map_err(|failed| {
        // One event for each volume, and then the one that names them all, as the kubelet's.
        for failure in &failed.failures {
            tracing::warn!(pod = %request.key, volume = %failure.volume, err = %error_chain(&failure.error), "cannot set up a volume");
            host.record(request, EventKind::Warning, "FailedMount", failure.to_string());
        }
        let reasons: Vec<String> = failed.failures.iter().map(ToString::to_string).collect();
        ("FailedMount", format!("{failed}: {}", reasons.join("; ")))
    })
}
