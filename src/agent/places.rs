//! Where what a pod uses is measured.

use crate::{
    cgroup::Cgroups,
    hostfiles::HostFiles,
    model::NodeObjects,
    podspec::{measured_claims, pod_cgroup_name, uid_of},
    signals::{ContainerPlaces, FindPlaces, PodPlaces},
    stats::FindClaims,
    volume::Volumes,
};
use std::sync::Arc;
use tokio::sync::watch;

/// Looks among these for the PersistentVolumes of a pod.
pub(super) fn find_claims(
    objects: Vec<watch::Receiver<Arc<NodeObjects>>>,
    volumes: Volumes,
) -> FindClaims {
    Arc::new(move |pod| {
        let nfs_directory = |volume: &str| volumes.nfs_directory(&uid_of(pod), volume).ok();
        let claims = |place: &watch::Receiver<Arc<NodeObjects>>| {
            measured_claims(pod, &place.borrow(), nfs_directory)
        };
        objects.iter().flat_map(claims).collect()
    })
}

/// Looks among these for the places of a pod.
pub(super) fn find_places(cgroups: Cgroups, volumes: Volumes, files: HostFiles) -> FindPlaces {
    Arc::new(move |view| {
        let pod = view.pod.as_deref()?;
        let containers = view.containers.iter().map(|container| ContainerPlaces {
            name: container.name.clone(),
            id: Some(container.id.clone()),
            layer: None,
        });
        Some(PodPlaces {
            key: view.key.clone(),
            uid: view.uid.clone(),
            cgroup: cgroups.pod_dirs(&pod_cgroup_name(pod)),
            containers: containers.collect(),
            volumes: volumes.empty_dirs(pod, &view.uid).unwrap_or_default(),
            logs: files.pod_log_dir(&view.key, &view.uid).ok(),
            files: volumes.pod_dir(&view.uid).ok(),
            runtime_files: Vec::new(),
            runtime_dirs: Vec::new(),
        })
    })
}
