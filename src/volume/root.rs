//! The root directory, and what is mounted below a path.

use super::{VolumeError, Volumes, io_error, place};
use crate::model::{MountEntry, parse_mountinfo};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
};

/// Mode of directories that only the agent uses.
const DIRECTORY_MODE: u32 = 0o750;
/// Directory below the root directory on which a tmpfs is mounted to test an option.
const NOSWAP_TEST: &str = "tmpfs-noswap-test";
/// How often one path is unmounted: mounts can be stacked.
const MAX_STACKED: usize = 100;

impl Volumes {
    /// Whether tmpfs supports the option `noswap`, which keeps memory volumes out of swap. Mounts a
    /// tmpfs below the root directory for a moment. Blocks.
    ///
    /// # Errors
    /// When no tmpfs can be mounted there.
    pub fn noswap_works(&self) -> Result<bool, VolumeError> {
        place::noswap_works(&self.inner.root.join(NOSWAP_TEST))
    }

    /// Makes the root directory a shared mount, unless it lies on one already, so that mounts made
    /// below it and mounts made by containers (`Bidirectional`) reach each other. The bind mount
    /// of the root on itself that this may take is left in place: running containers depend on it.
    ///
    /// # Errors
    /// When the kernel refuses (no CAP_SYS_ADMIN).
    pub fn share_root(&self) -> Result<(), VolumeError> {
        let root = &self.inner.root;
        let table = mount_table()?;
        let holds = |m: &&MountEntry| root.starts_with(&m.mount_point);
        // The longest prefix holds the root, and of several at one place the last one.
        let holder = table.iter().filter(holds).max_by_key(|m| m.mount_point.components().count());
        if holder.is_some_and(|m| m.shared) {
            return Ok(());
        }
        let nothing = None::<&str>;
        if holder.is_none_or(|m| m.mount_point != *root) {
            // Recursive: mounts of pods that run already must stay visible.
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(root), root, nothing, flags, nothing)
                .map_err(|errno| io_error("mount", root, errno.into()))?;
        }
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(nothing, root, nothing, flags, nothing)
            .map_err(|errno| io_error("share", root, errno.into()))
    }
}

/// Makes `path` (0750) with its parents where it is missing.
pub(super) fn make_directory(path: &Path) -> Result<(), VolumeError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
        .map_err(|source| io_error("create", path, source))
}

/// Sets exactly this mode, whatever the umask made of it.
pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), VolumeError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|source| io_error("change the mode of", path, source))
}

/// All mounts that this process sees.
pub(super) fn mount_table() -> Result<Vec<MountEntry>, VolumeError> {
    let path = Path::new("/proc/self/mountinfo");
    fs::read(path)
        .map(|table| parse_mountinfo(&table))
        .map_err(|source| io_error("read", path, source))
}

/// The mounts at `path` itself and below it, in the order of mounting.
pub(super) fn mounts_at_or_below(path: &Path) -> Result<Vec<MountEntry>, VolumeError> {
    let mut table = mount_table()?;
    table.retain(|m| m.mount_point.starts_with(path));
    Ok(table)
}

/// Unmounts what is mounted at `path`, all layers of it.
pub(super) fn unmount(path: &Path) -> Result<(), VolumeError> {
    for _ in 0..MAX_STACKED {
        match umount2(path, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // EINVAL: no mount point (any more).
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(io_error("unmount", path, errno.into())),
        }
    }
    Err(VolumeError::StillMounted { path: path.to_owned() })
}

/// As [`unmount`], with what is mounted below, of which `mounts` tells.
///
/// A bind mount shows what is mounted below its source later. Where the source is a shared mount,
/// as everything is under systemd, an unmount here would unmount it there, too
/// (mount_namespaces(7)). So the ties are cut first: a file system of the node stays mounted on the
/// node. All of it goes at once, because the paths below are the containers' own and may lead
/// anywhere by now.
pub(super) fn unmount_tree(path: &Path, mounts: &[MountEntry]) -> Result<(), VolumeError> {
    let is_below = |m: &MountEntry| m.mount_point != path && m.mount_point.starts_with(path);
    if mounts.iter().any(is_below) {
        let nothing = None::<&str>;
        let flags = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        mount(nothing, path, nothing, flags, nothing)
            .map_err(|errno| io_error("make private", path, errno.into()))?;
        umount2(path, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
            .map_err(|errno| io_error("unmount", path, errno.into()))?;
    }
    unmount(path)
}

/// Removes an empty directory; nothing to do when it doesn't exist.
pub(super) fn remove_empty(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
