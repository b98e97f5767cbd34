//! PersistentVolumes of kind `local`: directories of the node that an administrator has prepared,
//! usually the mount point of a disk. They are never made, unmounted or removed here.
//!
//! The runtime gets the directory itself. One with mount options is mounted for each pod in the
//! pod's directory first, with these options, as the kubelet does.

use super::{
    VolumeError,
    core::single_options,
    io_error,
    root::{make_directory, mounts_at_or_below},
};
use nix::{
    mount::{MsFlags, mount},
    sys::statvfs::{FsFlags, statvfs},
};
use std::{fs, io, path::Path};

/// `MS_NOSYMFOLLOW`, which nix does not name.
const NO_SYMFOLLOW: MsFlags = MsFlags::from_bits_retain(1 << 8);
/// The options that a bind mount can have of its own, each with its opposite. The kernel ignores
/// other options there.
const OPTIONS: [(&str, &str, MsFlags); 9] = [
    ("ro", "rw", MsFlags::MS_RDONLY),
    ("nosuid", "suid", MsFlags::MS_NOSUID),
    ("nodev", "dev", MsFlags::MS_NODEV),
    ("noexec", "exec", MsFlags::MS_NOEXEC),
    ("nosymfollow", "symfollow", NO_SYMFOLLOW),
    ("noatime", "atime", MsFlags::MS_NOATIME),
    ("nodiratime", "diratime", MsFlags::MS_NODIRATIME),
    ("relatime", "norelatime", MsFlags::MS_RELATIME),
    ("strictatime", "nostrictatime", MsFlags::MS_STRICTATIME),
];
/// What a bind mount takes over from the mount that it shows, and would lose when its flags are set.
/// The kernel keeps how times of access are written, unless an option is about that.
const KEPT: [(FsFlags, MsFlags); 4] = [
    (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
    (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
    (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
    (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
];

/// Checks that the path is a directory. (The kubelet also mounts block devices.)
pub(super) fn check(path: &str) -> Result<(), VolumeError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(VolumeError::LocalPathKind { path: path.to_owned() }),
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            Err(VolumeError::NoLocalPath { path: path.to_owned() })
        }
        Err(source) => Err(io_error("stat", path.as_ref(), source)),
    }
}

/// Mounts the volume at `directory` with these options. Where it is mounted, only the options are
/// set again: an agent that was killed may not have come to that.
pub(super) fn mount_at(
    directory: &Path,
    path: &str,
    options: &[Box<str>],
    read_only: bool,
) -> Result<(), VolumeError> {
    let nothing = None::<&str>;
    if !is_mounted_at(directory)? {
        make_directory(directory)?;
        mount(Some(path), directory, nothing, MsFlags::MS_BIND, nothing)
            .map_err(|errno| io_error("mount", directory, errno.into()))?;
    }
    let failed = |errno: nix::Error| io_error("set the mount options of", directory, errno.into());
    let present = statvfs(directory).map_err(failed)?.flags();
    let kept = KEPT.iter().filter(|(kept, _)| present.contains(*kept)).map(|(_, flag)| *flag);
    let options = single_options(options).chain(read_only.then_some("ro"));
    let flags = kept.collect::<MsFlags>().union(MsFlags::MS_BIND).union(MsFlags::MS_REMOUNT);
    mount(nothing, directory, nothing, with_options(flags, options), nothing).map_err(failed)
}

/// # Errors
/// When the volume is not mounted at `directory`: the container would write to the disk of the node.
pub(super) fn check_mounted(directory: &Path) -> Result<(), VolumeError> {
    match is_mounted_at(directory)? {
        true => Ok(()),
        false => Err(VolumeError::NotMounted { path: directory.to_owned() }),
    }
}

fn is_mounted_at(directory: &Path) -> Result<bool, VolumeError> {
    let mounts = mounts_at_or_below(directory)?;
    Ok(mounts.iter().any(|mount| mount.mount_point == directory))
}

/// Of two options that contradict each other, the last one counts.
fn with_options<'a>(flags: MsFlags, options: impl Iterator<Item = &'a str>) -> MsFlags {
    options.fold(flags, |flags, option| {
        match OPTIONS.iter().find(|(on, off, _)| [on, off].contains(&&option)) {
            Some((on, _, flag)) if *on == option => flags | *flag,
            Some((_, _, flag)) => flags - *flag,
            None => flags,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags() {
        let flags = |options: &str| with_options(MsFlags::MS_NODEV, options.split(','));
        assert_eq!(flags("noexec,discard"), MsFlags::MS_NODEV | MsFlags::MS_NOEXEC);
        assert_eq!(flags("dev,noatime,ro,rw"), MsFlags::MS_NOATIME);
        assert_eq!(flags("nosymfollow").bits(), (MsFlags::MS_NODEV | NO_SYMFOLLOW).bits());
    }
}
