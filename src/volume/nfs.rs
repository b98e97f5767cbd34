//! NFS volumes. A server that is down makes every look at a mounted directory hang, so this module
//! knows mounts by the kernel's mount table alone. It makes and removes the directories below them
//! while nothing is mounted there; mounting and unmounting is for `mount` and `umount`, which its
//! callers run.

use super::{
    VolumeError, Volumes, check_name,
    core::{Plugin, VolumeKind, kind_of},
    place::VolumePaths,
    root::{make_directory, mounts_at_or_below},
};
use crate::{
    model::{MountEntry, PodUid, k8s},
    podspec::{ClaimedVolumes, is_mounted},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// An NFS volume that is to be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsMount {
    /// The volume's name.
    pub volume: String,
    /// `SERVER:PATH`
    pub export: String,
    /// Where it is mounted: the volume's directory, which is there.
    pub directory: PathBuf,
    /// Whether nothing can be written through it.
    pub read_only: bool,
    /// `mountOptions` of the PersistentVolume.
    pub options: Vec<Box<str>>,
}

/// By the volume's name, why an NFS volume could not be mounted.
pub type NfsFailures = BTreeMap<String, String>;

impl Volumes {
    /// The NFS volumes that a container of the pod mounts and that are not mounted yet: those of the
    /// pod, and its PersistentVolumes. Makes their directories.
    ///
    /// # Errors
    /// When the mount table can't be read or a directory can't be made.
    pub fn nfs_to_mount(
        &self,
        pod: &k8s::Pod,
        uid: &PodUid,
        claimed: &ClaimedVolumes,
    ) -> Result<Vec<NfsMount>, VolumeError> {
        let Some(spec) = &pod.spec else { return Ok(Vec::new()) };
        let mut wanted = Vec::new();
        for volume in spec.volumes.iter().flatten() {
            // One that can't be mounted as it is written fails when it is set up.
            let Ok(VolumeKind::Nfs { export, read_only, options }) = kind_of(volume, claimed)
            else {
                continue;
            };
            let directory = self.nfs_directory(uid, &volume.name)?;
            if !is_mounted(spec, &volume.name) || is_nfs_mounted(&directory)? {
                continue;
            }
            make_directory(&directory)?;
            let volume = volume.name.clone();
            wanted.push(NfsMount { volume, export, directory, read_only, options });
        }
        Ok(wanted)
    }

    /// Where the NFS volume of this name is mounted, once it is.
    ///
    /// # Errors
    /// For names that are no plain file names.
    pub fn nfs_directory(&self, uid: &PodUid, volume: &str) -> Result<PathBuf, VolumeError> {
        check_name(volume)?;
        Ok(VolumePaths::new(&self.pod_dir(uid)?, Plugin::Nfs, volume).directory())
    }

    /// The directories where NFS volumes of the pod are mounted.
    ///
    /// # Errors
    /// When the mount table can't be read, or something else is mounted there.
    pub fn nfs_mounted(&self, uid: &PodUid) -> Result<Vec<PathBuf>, VolumeError> {
        let directory = self.pod_dir(uid)?.join("volumes").join(Plugin::Nfs.directory());
        if !directory.exists() {
            return Ok(Vec::new());
        }
        let mounts = mounts_at_or_below(&directory)?;
        if let Some(foreign) = mounts.iter().find(|mount| !is_nfs(mount)) {
            return Err(VolumeError::StillMounted { path: foreign.mount_point.clone() });
        }
        // What the kernel has mounted below a volume, as it does at the borders of the server's
        // file systems, goes with the volume.
        let volumes = mounts.into_iter().map(|mount| mount.mount_point);
        Ok(volumes.filter(|path| path.parent() == Some(&directory)).collect())
    }
}

/// An NFS volume is set up when it is mounted.
pub(super) fn check(directory: &Path, failure: Option<String>) -> Result<(), VolumeError> {
    if is_nfs_mounted(directory)? {
        return Ok(());
    }
    let why = failure.unwrap_or_else(|| "it is not mounted".to_owned());
    Err(VolumeError::Nfs { why })
}

fn is_nfs_mounted(directory: &Path) -> Result<bool, VolumeError> {
    let mut mounts = mounts_at_or_below(directory)?;
    mounts.retain(|mount| mount.mount_point == directory);
    if mounts.iter().all(is_nfs) {
        return Ok(!mounts.is_empty());
    }
    Err(VolumeError::ForeignMount { path: directory.to_owned() })
}

fn is_nfs(mount: &MountEntry) -> bool {
    matches!(&*mount.fs_type, "nfs" | "nfs4")
}
