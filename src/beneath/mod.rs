//! Opening, making and deleting below a directory without being led out of it.
//!
//! What a container can write to is hostile: a symlink planted between a check and a use must not
//! make us open, create or delete anything elsewhere on the host. Everything here goes by file
//! descriptors, and resolution is bounded by the kernel (`openat2`) where it can. The container
//! also controls the number of entries, the length of their names and the depth of the tree:
//! `walk` visits any tree in bounded memory and with few descriptors, `remove` deletes with it.
//!
//! Shared by the volumes, the log directories and the cgroups of pods, and by `nodelet cp`. All
//! functions block.

mod remove;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use remove::{Removal, Slice, remove_cgroups, remove_tree};
pub(crate) use walk::{visit_entries, visit_tree};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat},
    sys::stat::{Mode, SFlag, fchmod, fstat, mkdirat},
};
use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

/// How often a resolution is repeated that the kernel gave up because of a concurrent rename.
const RACES: usize = 100;

/// Opens a directory that is trusted, symlinks included, as a base.
pub(crate) fn open_base(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}

/// Opens (`O_PATH`) what `relative` names below `base`. Symlinks are followed while they stay
/// below it.
///
/// # Errors
/// `EXDEV` when the path leads out of `base`, and the usual ones.
pub(crate) fn open_path(base: BorrowedFd<'_>, relative: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    match resolve_with(base, relative, flags, resolve) {
        Err(Errno::ENOSYS) => Ok(open_by_component(base, relative, MAX_LINKS)?),
        result => Ok(result?),
    }
}

/// Opens (`O_PATH`) a regular file below `base`. No symlink is followed, and it is not on another
/// file system than its directory.
///
/// # Errors
/// As [`open_plain_directory`] and [`open_entry`]; when it is no regular file.
pub(crate) fn open_plain_file(base: BorrowedFd<'_>, relative: &Path) -> io::Result<OwnedFd> {
    let directory = relative.parent().unwrap_or(Path::new("."));
    let name = relative.file_name().ok_or(Errno::EISDIR)?;
    let directory = open_plain_directory(base, directory, OFlag::O_PATH)?;
    let found = open_entry(directory.as_fd(), name)?;
    if kind_of(fstat(&found)?.st_mode) != SFlag::S_IFREG {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(found)
}

/// Opens a regular file for reading that [`open_path`] has found.
///
/// # Errors
/// The usual ones.
pub(crate) fn reopen(found: BorrowedFd<'_>) -> io::Result<File> {
    // The descriptor's own link is followed: what it names cannot be exchanged. Another process may
    // hold a lease on the file, for which an open without O_NONBLOCK waits.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(nix::fcntl::open(path.as_str(), flags, Mode::empty())?.into())
}

fn resolve_with(
    base: BorrowedFd<'_>,
    relative: &Path,
    flags: OFlag,
    resolve: ResolveFlag,
) -> nix::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags).resolve(resolve);
    let mut result = openat2(base, relative, how);
    for _ in 0..RACES {
        match result {
            Err(Errno::EAGAIN | Errno::EINTR) => result = openat2(base, relative, how),
            Ok(_) | Err(_) => break,
        }
    }
    result
}

/// How many symlinks Linux follows in one path.
const MAX_LINKS: usize = 40;
/// The deepest directory below `base` for [`open_by_component`], which holds a descriptor for each
/// level.
const MAX_DEPTH: usize = 256;

/// For kernels before 5.6: one component at a time. At most `links` symlinks are followed, while they
/// stay below `base`.
fn open_by_component(
    base: BorrowedFd<'_>,
    relative: &Path,
    mut links: usize,
) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut current = openat(base, ".", flags, Mode::empty())?;
    let mut left = relative.to_owned();
    loop {
        let mut components = left.components();
        let Some(component) = components.next() else { return Ok(current) };
        let mut rest = components.as_path().to_owned();
        match component {
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(Errno::EXDEV),
            Component::ParentDir => current = above.pop().ok_or(Errno::EXDEV)?,
            Component::Normal(name) => {
                let next = openat(&current, name, flags, Mode::empty())?;
                if kind_of(fstat(&next)?.st_mode) == SFlag::S_IFLNK {
                    links = links.checked_sub(1).ok_or(Errno::ELOOP)?;
                    rest = PathBuf::from(readlinkat(&next, "")?).join(rest);
                } else if above.len() < MAX_DEPTH {
                    above.push(std::mem::replace(&mut current, next));
                } else {
                    return Err(Errno::ENAMETOOLONG);
                }
            }
        }
        left = rest;
    }
}

/// Makes the directories of `relative` that don't exist below `base`, with exactly `mode`. What
/// exists is left alone, whatever it is; returns it opened (`O_PATH`).
///
/// # Errors
/// As [`open_path`]; when a directory can't be made.
pub(crate) fn make_directories(
    base: BorrowedFd<'_>,
    relative: &Path,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let mut prefix = PathBuf::from(".");
    let mut current = open_path(base, &prefix)?;
    for component in relative.components() {
        let Component::Normal(name) = component else { continue };
        prefix.push(name);
        current = match open_path(base, &prefix) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                make_directory(current.as_fd(), name, mode)?;
                open_path(base, &prefix)?
            }
            result => result?,
        };
    }
    Ok(current)
}

fn make_directory(parent: BorrowedFd<'_>, name: &OsStr, mode: Mode) -> io::Result<()> {
    match mkdirat(parent, name, mode) {
        Ok(()) => {
            // The umask doesn't apply to a volume. Not followed, so a swapped-in symlink fails.
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            fchmod(openat(parent, name, flags, Mode::empty())?, mode)?;
            Ok(())
        }
        Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens the directory that `relative` names below `base`, with `flags`. No symlink is followed, not
/// even one that stays below `base`.
///
/// # Errors
/// `ELOOP` or `ENOTDIR` at a symlink, `EXDEV` when the path leads out of `base`, and the usual ones.
pub(crate) fn open_plain_directory(
    base: BorrowedFd<'_>,
    relative: &Path,
    flags: OFlag,
) -> io::Result<OwnedFd> {
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let flags = flags | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    match resolve_with(base, relative, flags, resolve) {
        Err(Errno::ENOSYS) => {
            Ok(openat(open_by_component(base, relative, 0)?, ".", flags, Mode::empty())?)
        }
        result => Ok(result?),
    }
}

/// As [`open_plain_directory`] with `O_PATH`, and makes the directories that don't exist, with
/// `mode` as the umask permits.
///
/// # Errors
/// As [`open_plain_directory`]; when a directory can't be made.
pub(crate) fn make_plain_directories(
    base: BorrowedFd<'_>,
    relative: &Path,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let open = |base: BorrowedFd<'_>, path: &Path| open_plain_directory(base, path, OFlag::O_PATH);
    match open(base, relative) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => {}
        result => return result,
    }
    let mut current = open(base, Path::new("."))?;
    for component in relative.components() {
        let Component::Normal(name) = component else { return Err(Errno::EXDEV.into()) };
        current = match open(current.as_fd(), Path::new(name)) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                match mkdirat(&current, name, mode) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                open(current.as_fd(), Path::new(name))?
            }
            result => result?,
        };
    }
    Ok(current)
}

/// Opens (`O_PATH`) an entry of `parent`, which may be a symlink.
///
/// # Errors
/// `EXDEV` when it is a mount point, and the usual ones.
pub(crate) fn open_entry(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    open_below_same_mount(parent, name, flags)
}

/// Opens a directory for listing, unless it is a symlink or a mount point.
fn open_same_mount(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    open_below_same_mount(parent, name, flags)
}

fn open_below_same_mount(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlag,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    match resolve_with(parent, Path::new(name), flags, resolve) {
        Err(Errno::ENOSYS) => {
            let entry = openat(parent, name, flags, Mode::empty())?;
            if fstat(&entry)?.st_dev != fstat(parent)?.st_dev {
                return Err(Errno::EXDEV.into());
            }
            Ok(entry)
        }
        result => Ok(result?),
    }
}

/// The file type bits of a mode.
pub(crate) fn kind_of(mode: nix::libc::mode_t) -> SFlag {
    SFlag::from_bits_truncate(mode) & SFlag::S_IFMT
}
