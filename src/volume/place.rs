//! The place of a volume that the agent makes: a directory, a tmpfs or a hugetlbfs that lives as long
//! as the pod.

use super::{
    VolumeError,
    core::{self, Plugin},
    files, io_error,
    root::{make_directory, mounts_at_or_below, set_mode, unmount},
};
use crate::{
    beneath::{self, Removal, Slice},
    model::MountEntry,
    podspec::VolumeFiles,
};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    unistd::{Gid, chown},
};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

/// Where a volume's data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    /// tmpfs, at most this many bytes.
    Memory {
        size: Option<i64>,
    },
    /// hugetlbfs with pages of this size, at most this many bytes.
    HugePages {
        page_size: u64,
        size: u64,
    },
}

impl Medium {
    /// The mode of its root directory: as with the kubelet, the root of a tmpfs keeps its own.
    fn mode(self) -> u32 {
        match self {
            Self::Disk | Self::HugePages { .. } => 0o777,
            Self::Memory { .. } => 0o1777,
        }
    }

    /// The type of the file system that is mounted.
    fn fs_type(self) -> Option<&'static str> {
        match self {
            Self::Disk => None,
            Self::Memory { .. } => Some("tmpfs"),
            Self::HugePages { .. } => Some("hugetlbfs"),
        }
    }
}

/// The paths of one volume that the agent makes.
#[derive(Debug)]
pub(super) struct VolumePaths {
    name: OsString,
    /// `<pod>/volumes/<plugin>`
    parent: PathBuf,
    /// `<pod>/plugins/<plugin>/<name>`
    meta: PathBuf,
}

impl VolumePaths {
    pub(super) fn new(pod_dir: &Path, plugin: Plugin, name: impl Into<OsString>) -> Self {
        let (name, plugin) = (name.into(), plugin.directory());
        let meta = pod_dir.join("plugins").join(plugin).join(&name);
        Self { parent: pod_dir.join("volumes").join(plugin), meta, name }
    }

    /// The volume's directory.
    pub(super) fn directory(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Makes the volume, or leaves it as it is when that was finished before.
    pub(super) fn setup(&self, medium: Medium, fs_group: Option<i64>) -> Result<(), VolumeError> {
        if self.is_kept(medium)? {
            return Ok(());
        }
        self.make(medium)?;
        let directory = self.directory();
        // Only the directory itself: nothing ran yet that could have put something into it.
        if let Some(group) = fs_group.and_then(|group| u32::try_from(group).ok()) {
            chown(&directory, None, Some(Gid::from_raw(group)))
                .map_err(|errno| io_error("change the group of", &directory, errno.into()))?;
            set_mode(&directory, core::with_group_access(medium.mode()))?;
        }
        self.mark_ready(medium)
    }

    /// Makes a volume that holds exactly `files`. They are written to their medium alone: a Secret
    /// never reaches the disk below its tmpfs.
    pub(super) fn setup_files(
        &self,
        medium: Medium,
        files: &VolumeFiles,
        fs_group: Option<i64>,
        mount_points: &BTreeSet<PathBuf>,
    ) -> Result<(), VolumeError> {
        if !self.is_set_up(medium)? {
            self.make(medium)?;
        }
        let group = fs_group.and_then(|group| u32::try_from(group).ok());
        files::write(&self.directory(), files, group, mount_points)?;
        // No edit moves it. An empty marker needs no room on a full disk.
        self.mark_ready(Medium::Disk)
    }

    /// Makes the directory, and mounts its file system.
    fn make(&self, medium: Medium) -> Result<(), VolumeError> {
        let directory = self.directory();
        make_directory(&self.parent)?;
        make_directory(&directory)?;
        if !self.is_present(medium)? {
            match medium {
                Medium::Disk => {}
                Medium::Memory { size } => mount_tmpfs(&directory, size)?,
                Medium::HugePages { page_size, size } => {
                    mount_hugetlbfs(&directory, page_size, size)?;
                }
            }
        }
        set_mode(&directory, medium.mode())
    }

    /// Whether an emptyDir was set up before and is still there. A container may have mounted
    /// something on it since, with `mountPropagation: Bidirectional`. As with the kubelet, that is
    /// the pod's affair.
    fn is_kept(&self, medium: Medium) -> Result<bool, VolumeError> {
        if !self.ready_marker().exists() {
            return Ok(false);
        }
        let (directory, mounts) = self.mounts()?;
        let is_mounted = match medium.fs_type() {
            Some(ours) => mounts.iter().any(|m| m.fs_type == ours),
            None => !self.was_mounted() || mounts.iter().any(is_ours),
        };
        // What is mounted there may be dead, so that nothing can be asked of the directory.
        Ok(is_mounted && (!mounts.is_empty() || directory.is_dir()))
    }

    /// Whether a volume of files was set up before, and nothing of it was lost since. Nothing else
    /// may be mounted there: a Secret is never written to another file system.
    pub(super) fn is_set_up(&self, medium: Medium) -> Result<bool, VolumeError> {
        Ok(self.is_present(medium)? && self.ready_marker().exists())
    }

    /// Whether the volume's medium is there. A memory volume is gone after a reboot while its
    /// marker is not. A volume that was in memory before an edit of its pod stays there.
    fn is_present(&self, medium: Medium) -> Result<bool, VolumeError> {
        let (directory, mounts) = self.mounts()?;
        let (present, is_own) = match medium.fs_type() {
            None if self.ready_marker().exists() => {
                let is_lost = self.was_mounted() && mounts.is_empty();
                (directory.is_dir() && !is_lost, mounts.iter().all(is_ours))
            }
            None => (directory.is_dir(), mounts.is_empty()),
            Some(ours) => (!mounts.is_empty(), mounts.iter().all(|m| m.fs_type == ours)),
        };
        if is_own { Ok(present) } else { Err(VolumeError::ForeignMount { path: directory }) }
    }

    /// The volume's directory, and what is mounted there.
    fn mounts(&self) -> Result<(PathBuf, Vec<MountEntry>), VolumeError> {
        let directory = self.directory();
        let mut mounts = mounts_at_or_below(&directory)?;
        mounts.retain(|m| m.mount_point == directory);
        Ok((directory, mounts))
    }

    /// Does something for the volume unless it was finished before.
    pub(super) fn once(
        &self,
        work: impl FnOnce() -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        if self.ready_marker().exists() {
            return Ok(());
        }
        work()?;
        self.mark_ready(Medium::Disk)
    }

    /// The marker of an emptyDir holds the type of the file system that was mounted for it. The
    /// others, for which nobody asks that, are empty.
    fn mark_ready(&self, medium: Medium) -> Result<(), VolumeError> {
        let marker = self.ready_marker();
        make_directory(&self.meta)?;
        fs::write(&marker, medium.fs_type().unwrap_or_default())
            .map_err(|source| io_error("write", &marker, source))
    }

    /// Whether the emptyDir was put into memory or huge pages when it was set up, whatever its pod
    /// says now. Unknown, and so false, where an earlier release has set it up.
    fn was_mounted(&self) -> bool {
        fs::metadata(self.ready_marker()).is_ok_and(|marker| marker.len() > 0)
    }

    /// Unmounts the volume. What is mounted there must be ours, and nothing may be mounted below.
    pub(super) fn unmount(&self) -> Result<(), VolumeError> {
        let marker = self.ready_marker();
        match fs::remove_file(&marker) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &marker, err));
            }
            Ok(()) | Err(_) => {}
        }
        let directory = self.directory();
        let mounts = mounts_at_or_below(&directory)?;
        let ours = |m: &MountEntry| m.mount_point == directory && is_ours(m);
        if let Some(foreign) = mounts.iter().find(|m| !ours(m)) {
            return Err(VolumeError::StillMounted { path: foreign.mount_point.clone() });
        }
        if mounts.is_empty() { Ok(()) } else { unmount(&directory) }
    }

    /// Deletes the volume, which is not mounted.
    pub(super) fn delete(&self, slice: &mut Slice) -> Result<Removal, VolumeError> {
        let directory = self.directory();
        if let Some(mount) = mounts_at_or_below(&directory)?.first() {
            return Err(VolumeError::StillMounted { path: mount.mount_point.clone() });
        }
        let removal = beneath::remove_tree(&self.parent, &self.name, slice)
            .map_err(|source| io_error("delete", &directory, source))?;
        if removal == Removal::Complete {
            super::root::remove_empty(&self.meta)
                .map_err(|source| io_error("remove", &self.meta, source))?;
        }
        Ok(removal)
    }

    fn ready_marker(&self) -> PathBuf {
        self.meta.join("ready")
    }
}

/// Whether it is of a type that the agent mounts.
fn is_ours(mount: &MountEntry) -> bool {
    matches!(&*mount.fs_type, "tmpfs" | "hugetlbfs")
}

/// Mounts a tmpfs with the option `noswap` on a new directory at `directory`, and removes both
/// again. False when the kernel does not know the option.
pub(super) fn noswap_works(directory: &Path) -> Result<bool, VolumeError> {
    make_directory(directory)?;
    let mounted = mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("noswap"));
    if mounted.is_ok() {
        unmount(directory)?;
    }
    super::root::remove_empty(directory).map_err(|source| io_error("remove", directory, source))?;
    match mounted {
        Ok(()) => Ok(true),
        Err(Errno::EINVAL) => Ok(false),
        Err(errno) => Err(io_error("mount a tmpfs at", directory, errno.into())),
    }
}

/// Without swap where the kernel can do it (6.4): what a pod puts into memory may be a secret.
fn mount_tmpfs(directory: &Path, size: Option<i64>) -> Result<(), VolumeError> {
    let size = size.map(|bytes| format!("size={bytes}"));
    let options = |noswap: Option<&str>| {
        size.as_deref().into_iter().chain(noswap).collect::<Vec<_>>().join(",")
    };
    let try_mount = |options: &str| {
        mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some(options))
    };
    match try_mount(&options(Some("noswap"))) {
        Err(Errno::EINVAL) => try_mount(&options(None)),
        result => result,
    }
    .map_err(|errno| io_error("mount a tmpfs at", directory, errno.into()))
}

/// The size bounds the files alone: memory that the pod maps without a file counts against the limit
/// of its cgroup.
fn mount_hugetlbfs(directory: &Path, page_size: u64, size: u64) -> Result<(), VolumeError> {
    let (fs, options) = (Some("hugetlbfs"), format!("pagesize={page_size},size={size}"));
    mount(fs, directory, fs, MsFlags::empty(), Some(&*options))
        .map_err(|errno| io_error("mount a hugetlbfs at", directory, errno.into()))
}
