//! subPath: a part of a volume, pinned by a bind mount before the runtime sees it.
//!
//! The runtime gets the path of the bind mount, not one inside the volume: a container that shares
//! the volume can't redirect it by swapping in a symlink.

use super::{
    VolumeError,
    root::{make_directory, mounts_at_or_below, unmount_tree},
};
use crate::beneath::{self, kind_of};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sys::stat::{FileStat, Mode, SFlag, fstat, stat},
};
use std::{
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
};

/// Directory of the bind mounts in a pod's directory.
pub(super) const DIRECTORY: &str = "volume-subpaths";

/// A subPath to prepare.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubPath<'a> {
    pub(super) pod_dir: &'a Path,
    pub(super) volume: &'a str,
    pub(super) container: &'a str,
    /// Position among the container's volume mounts.
    pub(super) index: usize,
    /// The volume's directory, or the host's.
    pub(super) base: &'a Path,
    pub(super) relative: &'a Path,
}

impl SubPath<'_> {
    /// Makes the part where it is missing and mounts it at its place; returns that place. A mount
    /// that is there already and still shows the same thing is kept.
    pub(super) fn prepare(&self) -> Result<PathBuf, VolumeError> {
        let source = self.open_or_create().map_err(|source| VolumeError::CreateSubPath {
            volume: self.volume.to_owned(),
            container: self.container.to_owned(),
            source: explained(source),
        })?;
        self.bind(&source).map_err(|source| VolumeError::PrepareSubPath {
            volume: self.volume.to_owned(),
            container: self.container.to_owned(),
            source,
        })
    }

    fn open_or_create(&self) -> io::Result<OwnedFd> {
        let base = beneath::open_base(self.base)?;
        // Missing directories get the volume's own mode, set-group-id included.
        let mode = Mode::from_bits_truncate(fstat(&base)?.st_mode);
        beneath::make_directories(base.as_fd(), self.relative, mode)
    }

    fn bind(&self, source: &OwnedFd) -> io::Result<PathBuf> {
        let parent = self.pod_dir.join(DIRECTORY).join(self.volume).join(self.container);
        let target = parent.join(self.index.to_string());
        let wanted = fstat(source)?;
        let mounts = mounts_at_or_below(&target).map_err(io::Error::other)?;
        if !mounts.is_empty() {
            // The file system below an old mount may be gone, and mounted anew: ENOTCONN, ESTALE.
            if stat(&target).is_ok_and(|mounted| is_same(&wanted, &mounted)) {
                return Ok(target);
            }
            unmount_tree(&target, &mounts).map_err(io::Error::other)?;
        }
        make_directory(&parent).map_err(io::Error::other)?;
        make_target(&target, kind_of(wanted.st_mode) == SFlag::S_IFDIR)?;
        let pinned = format!("/proc/self/fd/{}", source.as_raw_fd());
        let nothing = None::<&str>;
        mount(Some(pinned.as_str()), &target, nothing, MsFlags::MS_BIND, nothing)?;
        Ok(target)
    }
}

/// The kernel's words for a path that leads out of the volume speak of a cross-device link.
fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) if number == Errno::EXDEV as i32 => {
            io::Error::new(error.kind(), "the path leads out of the volume")
        }
        Some(_) | None => error,
    }
}

fn is_same(a: &FileStat, b: &FileStat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// A directory is mounted on a directory, anything else on a file.
fn make_target(target: &Path, directory: bool) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() && !directory => fs::remove_dir(target)?,
        Ok(found) if !found.is_dir() && directory => fs::remove_file(target)?,
        Ok(_) => return Ok(()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => {}
        Err(err) => return Err(err),
    }
    if directory {
        fs::create_dir(target)
    } else {
        fs::OpenOptions::new().write(true).create_new(true).mode(0o640).open(target).map(drop)
    }
}
