//! `fsGroup` of a volume whose data are there before the pod: everything in it gets the group, and
//! the group gets access, as with the kubelet.
//!
//! Containers of other pods may write to the volume at the same time. So each entry is opened
//! without following a symlink, and changed by its descriptor. Mounts below the volume are left
//! alone.

use super::{VolumeError, io_error};
use crate::beneath::{kind_of, open_entry, visit_entries};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag},
    sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat},
    unistd::{Gid, fchownat},
};
use std::{
    ffi::OsStr,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

/// What the group may do with a file, and with a directory, whose files get its group.
const FILE: u32 = 0o660;
const DIRECTORY: u32 = 0o2770;

/// `fsGroup` and `fsGroupChangePolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FsGroup {
    pub(super) group: u32,
    /// `OnRootMismatch`: a volume whose own directory has the group is left as it is.
    pub(super) on_root_mismatch: bool,
}

/// Gives everything in `volume` to the group. The directory itself comes last. So
/// `OnRootMismatch` begins anew after an interruption. What the file system refuses to change stays
/// as it is, as with the kubelet: FAT has no groups, and the pod may do without.
pub(super) fn give_to_group(volume: &Path, fs_group: FsGroup) -> Result<(), VolumeError> {
    let failed = |source| io_error("change the group of", volume, source);
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let open = || nix::fcntl::open(volume, flags, Mode::empty());
    let top = open().map_err(|errno| failed(errno.into()))?;
    let stat = fstat(&top).map_err(|errno| failed(errno.into()))?;
    let has_access = stat.st_mode & DIRECTORY == DIRECTORY;
    if fs_group.on_root_mismatch && stat.st_gid == fs_group.group && has_access {
        return Ok(());
    }
    let group = Gid::from_raw(fs_group.group);
    let mut refused = None;
    let mut try_one = |entry: &OwnedFd| match give_one(entry, group) {
        Err(err) if is_refused(&err) => {
            refused.get_or_insert(err);
            Ok(())
        }
        given => given,
    };
    let give = |parent: BorrowedFd<'_>, name: &OsStr| match open_entry(parent, name) {
        Ok(entry) => try_one(&entry),
        // It is gone, or something is mounted there.
        Err(err) if matches!(err.raw_os_error(), Some(ENOENT | EXDEV)) => Ok(()),
        Err(err) => Err(err),
    };
    let listed = open().map_err(|errno| failed(errno.into()))?;
    visit_entries(listed, give).map_err(failed)?;
    try_one(&top).map_err(failed)?;
    if let Some(err) = refused {
        let volume = volume.display();
        tracing::warn!(%volume, %err, "fsGroup: the group of files in the volume cannot be changed");
    }
    Ok(())
}

/// True when the file system or the file does not allow the change.
fn is_refused(error: &io::Error) -> bool {
    let refusals = [Errno::EPERM, Errno::EROFS, Errno::EOPNOTSUPP, Errno::ENOSYS];
    refusals.iter().any(|refusal| error.raw_os_error() == Some(*refusal as i32))
}

const ENOENT: i32 = Errno::ENOENT as i32;
const EXDEV: i32 = Errno::EXDEV as i32;

fn give_one(entry: &OwnedFd, group: Gid) -> io::Result<()> {
    let FileStat { st_mode, .. } = fstat(entry)?;
    fchownat(entry, "", None, Some(group), AtFlags::AT_EMPTY_PATH)?;
    let access = match kind_of(st_mode) {
        // It has no permissions.
        SFlag::S_IFLNK => return Ok(()),
        SFlag::S_IFDIR => DIRECTORY,
        _ => FILE,
    };
    // After the change of the group, which takes setuid and setgid away.
    let mode = Mode::from_bits_truncate(st_mode | access);
    // Permissions can't be changed through a descriptor that was opened with O_PATH.
    let path = format!("/proc/self/fd/{}", entry.as_raw_fd());
    Ok(fchmodat(nix::fcntl::AT_FDCWD, &*path, mode, FchmodatFlags::FollowSymlink)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::skips::{root, skip_without};
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    };

    const GROUP: u32 = 4711;

    fn seen(path: &Path) -> (u32, u32) {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.gid(), metadata.mode() & 0o7777)
    }

    #[test]
    fn everything_in_a_volume_gets_the_group() {
        if skip_without(&[root()]) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(&outside, "").unwrap();
        fs::write(volume.join("a/b/file"), "").unwrap();
        for (path, mode) in [("", 0o700), ("a", 0o700), ("a/b", 0o755), ("a/b/file", 0o4600)] {
            fs::set_permissions(volume.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink(&outside, volume.join("link")).unwrap();
        let before = seen(&outside);
        give_to_group(&volume, FsGroup { group: GROUP, on_root_mismatch: true }).unwrap();
        assert_eq!(seen(&volume), (GROUP, 0o2770));
        assert_eq!(seen(&volume.join("a")), (GROUP, 0o2770));
        assert_eq!(seen(&volume.join("a/b")), (GROUP, 0o2775));
        assert_eq!(seen(&volume.join("a/b/file")), (GROUP, 0o4660));
        assert_eq!(seen(&volume.join("link")).0, GROUP);
        assert_eq!(seen(&outside), before, "a symlink is not followed");
    }

    #[test]
    fn the_policy_tells_whether_a_matching_volume_is_walked() {
        if skip_without(&[root()]) {
            return;
        }
        let volume = tempfile::tempdir().unwrap();
        let file = volume.path().join("file");
        let give = |on_root_mismatch| {
            give_to_group(volume.path(), FsGroup { group: GROUP, on_root_mismatch }).unwrap();
        };
        give(false);
        fs::write(&file, "").unwrap();
        chown(&file, None, Some(0)).unwrap();
        give(true);
        assert_eq!(seen(&file).0, 0);
        give(false);
        assert_eq!(seen(&file).0, GROUP);
    }

    #[test]
    fn what_may_not_be_changed_stays_as_it_is() {
        if skip_without(&[root()]) {
            return;
        }
        let volume = tempfile::tempdir().unwrap();
        fs::write(volume.path().join("file"), "").unwrap();
        let before = seen(&volume.path().join("file"));
        let remount = |flags| mount(none(), volume.path(), none(), flags, none()).unwrap();
        mount(Some(volume.path()), volume.path(), none(), MsFlags::MS_BIND, none()).unwrap();
        remount(MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY);
        let fs_group = FsGroup { group: GROUP, on_root_mismatch: false };
        let given = give_to_group(volume.path(), fs_group);
        umount2(volume.path(), MntFlags::MNT_DETACH).unwrap();
        given.unwrap();
        assert_eq!(seen(&volume.path().join("file")), before);
    }

    fn none() -> Option<&'static str> {
        None
    }
}
