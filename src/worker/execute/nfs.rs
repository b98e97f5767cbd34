//! Mounts and unmounts NFS volumes, by `mount` and `umount` in processes of their own: a server that
//! does not answer holds up such a process, and no thread of the agent.

use super::{Host, HostError, Request, blocking};
use crate::{
    blocking::{PODS, UNMOUNTS},
    model::{CollectOrdered as _, PodUid, k8s},
    podspec::{ClaimedVolumes, has_nfs_volume},
    program::{Program, ProgramFailure, StandardError, run},
    volume::{NfsFailures, NfsMount, Volumes},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// When a server counts as one that does not answer. Mounting is tried again later.
const MOUNT_DEADLINE: Duration = Duration::from_secs(30);
/// How long a server may take to answer what is left to be written, before that is given up.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(30);
/// Where `mount` finds its helpers.
const HELPERS: [&str; 2] = ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"];

/// Mounts the NFS volumes of a pod that are not mounted yet, all at once. Gives those that could not
/// be mounted.
///
/// # Cancel safety
/// As [`unmount_all`].
pub(super) async fn mount_all(
    host: &Host,
    request: &Request,
    pod: &Arc<k8s::Pod>,
    claimed: &ClaimedVolumes,
) -> Result<NfsFailures, HostError> {
    if !has_nfs_volume(pod, claimed) {
        return Ok(NfsFailures::new());
    }
    let (volumes, pod, uid) = (host.volumes.clone(), Arc::clone(pod), request.uid.clone());
    let claimed = claimed.clone();
    let wanted = blocking(&PODS, move || volumes.nfs_to_mount(&pod, &uid, &claimed)).await?;
    let mounted = futures_util::future::join_all(wanted.into_iter().map(mount));
    let results = request.shown("mounting NFS volumes", mounted).await;
    Ok(results.into_iter().flatten().collect_ordered())
}

/// The volume's name and why it could not be mounted, where it could not.
async fn mount(wanted: NfsMount) -> Option<(String, String)> {
    let options = options(&wanted);
    let NfsMount { volume, export, directory, .. } = wanted;
    if !HELPERS.iter().any(|helper| Path::new(helper).exists()) {
        let why = "there is no mount.nfs on this node; on Debian, install nfs-common";
        return Some((volume, why.to_owned()));
    }
    let arguments = ["-t", "nfs", "-o", &options, &export];
    let failure = run_on("mount", &arguments, &directory, MOUNT_DEADLINE).await.err()?;
    Some((volume, format!("cannot mount {export}: mount {failure}")))
}

/// The options of a mount. Of two that contradict each other, `mount` takes the last one.
fn options(wanted: &NfsMount) -> String {
    // This process tries once and stays in the foreground, and the agent tries again: a process in
    // the background could mount the volume after its pod is gone.
    let own = ["retry=0", "fg"].into_iter().chain(wanted.read_only.then_some("ro"));
    let all: Vec<&str> = wanted.options.iter().map(|option| &**option).chain(own).collect();
    all.join(",")
}

/// Unmounts the NFS volumes of a pod. What a server has not taken within a deadline is given up:
/// nothing of the pod is there any more that could wait for it.
///
/// # Cancel safety
/// Dropping it kills what it runs; the next call looks anew at what is mounted.
pub(super) async fn unmount_all(volumes: &Volumes, uid: &PodUid) -> Result<(), HostError> {
    for force in [false, true] {
        let mounted = mounted(volumes, uid).await?;
        if mounted.is_empty() {
            return Ok(());
        }
        let unmounted = mounted.iter().map(|directory| unmount(directory, force));
        futures_util::future::join_all(unmounted).await;
    }
    let left = mounted(volumes, uid).await?;
    match left.into_iter().next() {
        None => Ok(()),
        Some(directory) => Err(HostError::NfsBusy(directory)),
    }
}

async fn mounted(volumes: &Volumes, uid: &PodUid) -> Result<Vec<PathBuf>, HostError> {
    let (volumes, uid) = (volumes.clone(), uid.clone());
    blocking(&UNMOUNTS, move || volumes.nfs_mounted(&uid)).await
}

/// By options, `umount` looks at nothing that the server would have to answer.
async fn unmount(directory: &Path, force: bool) {
    let arguments: &[&str] = if force { &["-n", "-c", "-i", "-f"] } else { &["-n", "-c", "-i"] };
    if let Err(failure) = run_on("umount", arguments, directory, UNMOUNT_DEADLINE).await {
        tracing::warn!(directory = %directory.display(), force, "umount {failure}");
    }
}

async fn run_on(
    name: &str,
    arguments: &[&str],
    directory: &Path,
    deadline: Duration,
) -> Result<(), ProgramFailure> {
    // The root directory's path is UTF-8, and so is what the agent makes below it.
    let words = arguments.iter().map(|word| (*word).to_owned());
    let args = words.chain([directory.to_string_lossy().into_owned()]).collect();
    let program = Program { program: name.into(), args, env: Vec::new() };
    run(program, Vec::new(), StandardError::Shown, deadline, &PODS).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_the_agent_come_last() {
        let given = |given: &[&str], read_only| {
            options(&NfsMount {
                volume: "v".to_owned(),
                export: "nas:/srv".to_owned(),
                directory: PathBuf::new(),
                read_only,
                options: given.iter().map(|option| (*option).into()).collect(),
            })
        };
        assert_eq!(given(&[], false), "retry=0,fg");
        assert_eq!(given(&["bg", "rw", "nfsvers=4.1"], true), "bg,rw,nfsvers=4.1,retry=0,fg,ro");
    }
}
