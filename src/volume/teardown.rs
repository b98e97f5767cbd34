//! Unmounts and deletes volumes, and removes the directories of pods.

use super::{
    VolumeError, Volumes,
    core::{Plugin, is_component},
    io_error,
    owner::{is_marker, remove_marked},
    place::VolumePaths,
    root::{mounts_at_or_below, remove_empty, unmount_tree},
    sub_path,
};
use crate::{
    beneath::{self, Removal, Slice},
    model::PodUid,
};
use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

impl Volumes {
    /// Unmounts the pod's subPaths and file systems, except for NFS volumes ([`Self::nfs_mounted`]),
    /// which must be unmounted after this. Uses only what is on disk, not the specification.
    /// Call it when no container runs any more, and repeat it until it succeeds.
    ///
    /// # Errors
    /// The first failure, after trying everything.
    pub fn unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let pod_dir = self.pod_dir(uid)?;
        // SubPaths keep volumes busy: if they can't be unmounted, the volumes can't either.
        remove_sub_paths(&pod_dir.join(sub_path::DIRECTORY))?;
        let mut result = Ok(());
        for place in places(&pod_dir)? {
            result = result.and(place.unmount());
        }
        for local in children(&pod_dir.join("volumes").join(Plugin::Local.directory()))? {
            let unmounted =
                mounts_at_or_below(&local).and_then(|mounts| unmount_tree(&local, &mounts));
            result = result.and(unmounted);
        }
        result
    }

    /// Deletes the volumes that the agent has made, after they were unmounted. Repeat it until it succeeds.
    ///
    /// # Errors
    /// The first failure, after trying everything. Data below a foreign mount are not deleted.
    pub(crate) fn delete(&self, uid: &PodUid, slice: &mut Slice) -> Result<Removal, VolumeError> {
        let mut result = Ok(Removal::Complete);
        for place in places(&self.pod_dir(uid)?)? {
            match place.delete(slice) {
                Ok(Removal::Unfinished) => return Ok(Removal::Unfinished),
                Ok(Removal::Complete) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Removes the directory of a pod whose volumes were deleted. Directories of volumes are
    /// removed only if they are empty, because they may hold foreign data below a former mount.
    /// Everything else is removed with its content, but never across a mount. Does nothing when the
    /// directory does not exist.
    ///
    /// # Errors
    /// When something is still mounted, a volume's directory is not empty, or a removal fails.
    pub(crate) fn remove_pod_dir(
        &self,
        uid: &PodUid,
        slice: &mut Slice,
    ) -> Result<Removal, VolumeError> {
        let pod_dir = self.pod_dir(uid)?;
        if let Some(mount) = mounts_at_or_below(&pod_dir)?.first() {
            return Err(VolumeError::StillMounted { path: mount.mount_point.clone() });
        }
        let volumes = pod_dir.join("volumes");
        for plugin in children(&volumes)? {
            for volume in children(&plugin)? {
                remove_empty(&volume).map_err(|source| VolumeError::OrphanVolume {
                    uid: uid.as_str().to_owned(),
                    path: volume.display().to_string(),
                    source,
                })?;
            }
        }
        remove_sub_paths(&pod_dir.join(sub_path::DIRECTORY))?;
        for child in children(&pod_dir)? {
            let name = child.file_name().unwrap_or_default();
            if child == volumes {
                // Only empty directories should be left in it. If another process has added files,
                // this fails.
                remove_nested_empty(&volumes)?;
            } else if !is_marker(&child) {
                let removal = beneath::remove_tree(&pod_dir, name, slice)
                    .map_err(|source| io_error("delete", &child, source))?;
                if removal == Removal::Unfinished {
                    return Ok(Removal::Unfinished);
                }
            }
        }
        remove_marked(&pod_dir)?;
        Ok(Removal::Complete)
    }

    /// The uids of all pod directories, including directories of other programs.
    ///
    /// # Errors
    /// When `<root>/pods` can't be listed.
    pub fn list_pods(&self) -> Result<Vec<PodUid>, VolumeError> {
        let paths = children(&self.inner.root.join("pods"))?;
        let name = |path: &PathBuf| path.file_name().and_then(OsStr::to_str).map(PodUid::from);
        Ok(paths.iter().filter(|path| path.is_dir()).filter_map(name).collect())
    }
}

/// The volumes on disk that the agent has made.
fn places(pod_dir: &Path) -> Result<Vec<VolumePaths>, VolumeError> {
    let mut places = Vec::new();
    for plugin in Plugin::OWN {
        let paths = children(&pod_dir.join("volumes").join(plugin.directory()))?;
        let place = |path: &PathBuf| Some(VolumePaths::new(pod_dir, plugin, path.file_name()?));
        places.extend(paths.iter().filter_map(place));
    }
    Ok(places)
}

/// Unmounts every subPath and removes the mount points, which are exactly three levels below.
fn remove_sub_paths(directory: &Path) -> Result<(), VolumeError> {
    // Most pods have none, and the mount table of a full node is long.
    if directory.symlink_metadata().is_err_and(|err| err.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    let mounts = mounts_at_or_below(directory)?;
    for volume in children(directory)? {
        for container in children(&volume)? {
            for target in children(&container)? {
                unmount_tree(&target, &mounts)?;
                let removed = if target.symlink_metadata().is_ok_and(|m| m.is_dir()) {
                    remove_empty(&target)
                } else {
                    fs::remove_file(&target)
                };
                removed.map_err(|source| io_error("remove", &target, source))?;
            }
        }
    }
    remove_nested_empty(directory)
}

/// Removes a directory that contains only empty directories.
fn remove_nested_empty(directory: &Path) -> Result<(), VolumeError> {
    for child in children(directory)? {
        for grandchild in children(&child)? {
            remove_empty(&grandchild).map_err(|source| io_error("remove", &grandchild, source))?;
        }
        remove_empty(&child).map_err(|source| io_error("remove", &child, source))?;
    }
    remove_empty(directory).map_err(|source| io_error("remove", directory, source))
}

/// The entries of a directory, sorted; empty when it does not exist.
pub(super) fn children(directory: &Path) -> Result<Vec<PathBuf>, VolumeError> {
    let failed = |source| io_error("list", directory, source);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut paths: Vec<PathBuf> =
        entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>().map_err(failed)?;
    paths
        .retain(|path| path.file_name().is_some_and(|name| name.to_str().is_none_or(is_component)));
    paths.sort_unstable();
    Ok(paths)
}
