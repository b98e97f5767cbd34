//! Opening, making and deleting below a directory without being led out of it.
//!
//! What a container can write to is hostile: a symlink planted between a check and a use must not
//! make us open, create or delete anything elsewhere on the host. Everything here goes by file
//! descriptors, and resolution is bounded by the kernel (`openat2`) where it can.

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, openat, openat2, renameat2},
    sys::stat::{Mode, SFlag, fchmod, fstat, fstatat, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

/// How often a resolution is repeated that the kernel gave up because of a concurrent rename.
const RACES: usize = 100;
/// Directories held open at once while deleting. What lies deeper is moved up first: depth is under
/// the control of whoever filled the volume, our stack and descriptors are not.
const MAX_DEPTH: usize = 64;

/// Opens a directory that is trusted, symlinks included, as a base.
pub(super) fn open_base(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}

/// Opens (`O_PATH`) what `relative` names below `base`. Symlinks are followed while they stay
/// below it.
///
/// # Errors
/// `EXDEV` when the path leads out of `base`, and the usual ones.
pub(super) fn open_path(base: BorrowedFd<'_>, relative: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    match resolve_with(base, relative, flags, resolve) {
        Err(Errno::ENOSYS) => Ok(open_by_component(base, relative)?),
        result => Ok(result?),
    }
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

/// For kernels before 5.6: one component at a time, no symlink followed at all.
fn open_by_component(base: BorrowedFd<'_>, relative: &Path) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut current = openat(base, ".", flags, Mode::empty())?;
    for component in relative.components() {
        match component {
            Component::CurDir => continue,
            Component::Normal(name) => current = openat(&current, name, flags, Mode::empty())?,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(Errno::EXDEV);
            }
        }
        if kind_of(fstat(&current)?.st_mode) == SFlag::S_IFLNK {
            return Err(Errno::ELOOP);
        }
    }
    Ok(current)
}

/// Makes the directories of `relative` that don't exist below `base`, with exactly `mode`. What
/// exists is left alone, whatever it is; returns it opened (`O_PATH`).
///
/// # Errors
/// As [`open_path`]; when a directory can't be made.
pub(super) fn make_directories(
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

/// Deletes `name` in `parent` with everything below it. Never follows a symlink and never enters
/// another mount, a bind mount of the same file system included: those fail with `EXDEV` or
/// `EBUSY`. Goes on past failures and returns the first. Nothing to do when it doesn't exist.
///
/// # Errors
/// What couldn't be deleted.
pub(super) fn remove_tree(parent: &Path, name: &OsStr) -> io::Result<()> {
    let parent = match open_base(parent) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    };
    remove_entry(parent.as_fd(), name, None)
}

/// Where subtrees beyond [`MAX_DEPTH`] are moved to.
struct Top<'a> {
    directory: BorrowedFd<'a>,
    depth: usize,
}

fn remove_entry(parent: BorrowedFd<'_>, name: &OsStr, top: Option<&Top<'_>>) -> io::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) if is_directory(parent, name)? => {}
        Err(errno) => return Err(errno.into()),
    }
    if let Some(top) = top
        && top.depth >= MAX_DEPTH
    {
        return move_up(parent, name, top);
    }
    let directory = open_same_mount(parent, name)?;
    match top {
        Some(top) => {
            let below = Top { directory: top.directory, depth: top.depth + 1 };
            remove_contents(directory.as_fd(), &below)?;
        }
        None => {
            let top = Top { directory: directory.as_fd(), depth: 1 };
            // Subtrees that were moved up are found by another look.
            while !entries(directory.as_fd())?.is_empty() {
                remove_contents(directory.as_fd(), &top)?;
            }
        }
    }
    match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn remove_contents(directory: BorrowedFd<'_>, top: &Top<'_>) -> io::Result<()> {
    let mut result = Ok(());
    for name in entries(directory)? {
        let removed = remove_entry(directory, &name, Some(top));
        result = result.and(removed);
    }
    result
}

fn move_up(parent: BorrowedFd<'_>, name: &OsStr, top: &Top<'_>) -> io::Result<()> {
    for n in 0..u32::MAX {
        let target = format!(".nodelet-deep-{n}");
        match renameat2(parent, name, top.directory, target.as_str(), RenameFlags::RENAME_NOREPLACE)
        {
            Err(Errno::EEXIST) => {}
            result => return Ok(result?),
        }
    }
    Err(io::Error::from(Errno::EEXIST))
}

/// Opens a directory for listing, unless it is a symlink or a mount point.
fn open_same_mount(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    match resolve_with(parent, Path::new(name), flags, resolve) {
        Err(Errno::ENOSYS) => {
            let directory = openat(parent, name, flags, Mode::empty())?;
            if fstat(&directory)?.st_dev != fstat(parent)?.st_dev {
                return Err(Errno::EXDEV.into());
            }
            Ok(directory)
        }
        result => Ok(result?),
    }
}

fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    // A descriptor of its own: reading moves the offset.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut dir = Dir::openat(directory, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn is_directory(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok(kind_of(stat.st_mode) == SFlag::S_IFDIR)
}

/// The file type bits of a mode.
pub(super) fn kind_of(mode: nix::libc::mode_t) -> SFlag {
    SFlag::from_bits_truncate(mode) & SFlag::S_IFMT
}
