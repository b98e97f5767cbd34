//! The mounts of one container, as the runtime is asked for them.

use super::{
    VolumeError, Volumes, check_name,
    core::{self, Plugin, VolumeKind},
    local, nfs,
    place::VolumePaths,
    sub_path::SubPath,
};
use crate::{
    model::{PodUid, k8s},
    podspec::ClaimedVolumes,
};
use std::path::{Path, PathBuf};

/// One mount of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// What is mounted.
    pub source: MountSource,
    /// Absolute path in the container.
    pub container_path: String,
    /// Whether the container can't write through it.
    pub readonly: bool,
    /// `mountPropagation`.
    pub propagation: Propagation,
    /// `recursiveReadOnly`: for the caller to check against what the runtime can do.
    pub recursive_read_only: Option<RecursiveReadOnly>,
    /// Whether the content is the pod's own and may get the container's SELinux label.
    pub selinux_relabel: bool,
}

/// What a mount of a container shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// An absolute path on the host.
    Path(String),
    /// An image volume. The runtime resolves the path in it.
    Image {
        /// The volume's name.
        volume: String,
        /// `subPath`; empty for the whole image.
        sub_path: String,
    },
}

/// Which way mounts made later travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Neither.
    Private,
    /// From the host into the container.
    HostToContainer,
    /// Both.
    Bidirectional,
}

/// `recursiveReadOnly`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecursiveReadOnly {
    /// An error where the runtime can't.
    Enabled,
    /// Plain read-only where the runtime can't.
    IfPossible,
}

/// What [`Volumes::mounts_for`] works from.
#[derive(Clone, Copy, Debug)]
pub struct MountInputs<'a> {
    /// The pod.
    pub pod: &'a k8s::Pod,
    /// Its uid.
    pub uid: &'a PodUid,
    /// The container's name.
    pub container: &'a str,
    /// The container's `volumeMounts`.
    pub mounts: &'a [k8s::VolumeMount],
    /// `subPathExpr` of each mount, expanded with the container's environment; by the mount's
    /// position. Positions beyond the end have none.
    pub expanded_sub_paths: &'a [Option<String>],
    /// The pod's PersistentVolumes.
    pub claimed: &'a ClaimedVolumes,
}

impl Volumes {
    /// The container's mounts in the order of its specification. Call after [`Volumes::setup`].
    /// Missing subPath directories are made, subPaths are pinned.
    ///
    /// # Errors
    /// A reason not to create the container (`CreateContainerConfigError`).
    pub fn mounts_for(&self, inputs: &MountInputs<'_>) -> Result<Vec<HostMount>, VolumeError> {
        let pod_dir = self.pod_dir(inputs.uid)?;
        check_name(inputs.container)?;
        let of_mount = |(index, mount)| self.mount_for(inputs, &pod_dir, index, mount);
        inputs.mounts.iter().enumerate().map(of_mount).collect()
    }

    fn mount_for(
        &self,
        inputs: &MountInputs<'_>,
        pod_dir: &Path,
        index: usize,
        mount: &k8s::VolumeMount,
    ) -> Result<HostMount, VolumeError> {
        let volumes = inputs.pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
        let volume =
            volumes.unwrap_or_default().iter().find(|v| v.name == mount.name).ok_or_else(|| {
                VolumeError::UnknownVolume {
                    volume: mount.name.clone(),
                    container: inputs.container.to_owned(),
                }
            })?;
        check_name(&volume.name)?;
        let kind = core::kind_of(volume, inputs.claimed)?;
        // Only the agent writes to its files, and nobody to an image.
        let read_only = match &kind {
            VolumeKind::Files(_) | VolumeKind::Image => true,
            VolumeKind::Nfs { read_only, .. }
            | VolumeKind::HostPath { read_only, .. }
            | VolumeKind::Local { read_only, .. } => *read_only,
            VolumeKind::Disk | VolumeKind::Memory { .. } | VolumeKind::HugePages { .. } => false,
        };
        let own = match &kind {
            VolumeKind::HostPath { .. } | VolumeKind::Image | VolumeKind::Nfs { .. } => false,
            // As the kubelet, which counts a local volume that can be written to as the pod's own.
            VolumeKind::Local { read_only, .. } => !read_only,
            VolumeKind::Disk
            | VolumeKind::Memory { .. }
            | VolumeKind::HugePages { .. }
            | VolumeKind::Files(_) => true,
        };
        let expanded = inputs.expanded_sub_paths.get(index).and_then(Option::as_deref);
        let relative = expanded.or(mount.sub_path.as_deref()).unwrap_or("");
        core::check_sub_path(relative)?;
        let place = |plugin| VolumePaths::new(pod_dir, plugin, volume.name.as_str()).directory();
        let part_of = |base: PathBuf| -> Result<MountSource, VolumeError> {
            let sub_path = SubPath {
                pod_dir,
                volume: &volume.name,
                container: inputs.container,
                index,
                base: &base,
                relative: Path::new(relative),
            };
            let path = if relative.is_empty() { base.clone() } else { sub_path.prepare()? };
            Ok(MountSource::Path(path.to_string_lossy().into_owned()))
        };
        let source = match kind {
            VolumeKind::HostPath { path, .. } => part_of(PathBuf::from(path)),
            VolumeKind::Local { path, options, .. } => {
                // The runtime would make a directory that is missing.
                local::check(&path)?;
                if options.is_empty() {
                    part_of(PathBuf::from(path))
                } else {
                    let directory = place(Plugin::Local);
                    local::check_mounted(&directory).and_then(|()| part_of(directory))
                }
            }
            VolumeKind::Disk | VolumeKind::Memory { .. } | VolumeKind::HugePages { .. } => {
                part_of(place(Plugin::EmptyDir))
            }
            VolumeKind::Nfs { .. } => {
                // Without it the container would write to the disk of the node.
                let directory = place(Plugin::Nfs);
                nfs::check(&directory, None).and_then(|()| part_of(directory))
            }
            VolumeKind::Files(plugin) => part_of(place(plugin)),
            VolumeKind::Image => Ok(MountSource::Image {
                volume: volume.name.clone(),
                sub_path: relative.to_owned(),
            }),
        }?;
        Ok(HostMount {
            source,
            container_path: core::container_path(&mount.mount_path),
            readonly: read_only || mount.read_only.unwrap_or(false),
            propagation: core::propagation(mount),
            recursive_read_only: core::recursive_read_only(mount),
            selinux_relabel: own,
        })
    }
}
