//! Deleting trees: linear in their entries, in bounded memory, a slice of time after the other.
//!
//! ```text
//! entry ─► delete it ─► gone
//!             └─► a directory with entries ─► enter it ─► its end ─► list it again, as long as that deletes something
//!                                                           └─► leave it ─► delete it, or fail
//! ```
//!
//! A call ends when its [`Slice`] is over, and the next call begins anew with what is left: between
//! two of them nothing is held. A directory in which something failed is listed once, so that what
//! can't be deleted is tried once.

use super::{
    open_base, open_same_mount,
    walk::{Cursor, Entry, Left, is_gone},
};
use nix::{
    errno::Errno,
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::{CStr, CString, OsStr},
    io,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    time::Duration,
};
use tokio::time::Instant;

/// How often one directory is listed when others create files in it meanwhile, or when the file
/// system leaves entries out after deletions.
const PASSES: u8 = 10;

/// What one call of a removal has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Removal {
    /// Nothing is left.
    Complete,
    /// The slice was over: to be called again.
    Unfinished,
}

/// The time that a removal works before it gives its thread back. Counted from the first deletion:
/// every slice deletes something, however long it takes to find it.
#[derive(Debug)]
pub(crate) struct Slice {
    length: Duration,
    begun: Option<Instant>,
    /// Entries that were looked at, for tests.
    looked_at: u64,
}

impl Slice {
    /// A slice of this length.
    pub(crate) fn new(length: Duration) -> Self {
        Self { length, begun: None, looked_at: 0 }
    }

    /// Entries that were looked at.
    #[cfg(test)]
    pub(super) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    fn begin(&mut self) {
        self.begun.get_or_insert_with(Instant::now);
    }

    fn is_over(&self) -> bool {
        self.begun.is_some_and(|begun| begun.elapsed() >= self.length)
    }
}

/// Deletes `name` in `parent` with everything below it. Never follows a symlink and never enters
/// another mount, a bind mount of the same file system included: those fail with `EXDEV` or
/// `EBUSY`. Goes on past failures and returns the first. Nothing to do when it doesn't exist.
///
/// # Errors
/// What couldn't be deleted.
pub(crate) fn remove_tree(parent: &Path, name: &OsStr, slice: &mut Slice) -> io::Result<Removal> {
    remove(parent, name, Contents::Everything, slice)
}

/// Removes the cgroup `name` in `parent` with those below it. The files in them are the kernel's
/// and go with them.
///
/// # Errors
/// `EBUSY` when processes are in one of them.
pub(crate) fn remove_cgroups(
    parent: &Path,
    name: &OsStr,
    slice: &mut Slice,
) -> io::Result<Removal> {
    remove(parent, name, Contents::Cgroups, slice)
}

/// What is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Everything,
    /// Nothing but directories.
    Cgroups,
}

enum Deleted {
    Gone,
    /// A directory that is not empty, in the kernel's words.
    NotEmpty(Errno),
}

fn remove(
    parent: &Path,
    name: &OsStr,
    contents: Contents,
    slice: &mut Slice,
) -> io::Result<Removal> {
    let parent = match open_base(parent) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Removal::Complete),
        result => result?,
    };
    let name = CString::new(name.as_bytes())?;
    let delete = || contents.delete(parent.as_fd(), &name, None);
    match delete()? {
        Deleted::Gone => return Ok(Removal::Complete),
        Deleted::NotEmpty(_) => {}
    }
    let top = match open_same_mount(parent.as_fd(), OsStr::from_bytes(name.to_bytes())) {
        Err(err) if is_gone(&err) => return Ok(Removal::Complete),
        result => result?,
    };
    let mut remover = Remover { cursor: Cursor::new(top), contents, slice, error: None };
    match remover.run()? {
        Removal::Unfinished => return Ok(Removal::Unfinished),
        Removal::Complete => {}
    }
    if let Some(error) = remover.error {
        return Err(error);
    }
    match delete()? {
        Deleted::Gone => Ok(Removal::Complete),
        Deleted::NotEmpty(errno) => Err(errno.into()),
    }
}

/// What is noted about a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    /// How often it was listed to its end.
    passes: u8,
    /// Something was deleted since its listing began.
    deleted: bool,
    /// Something in it can't be deleted.
    failed: bool,
}

struct Remover<'a> {
    cursor: Cursor<Noted>,
    contents: Contents,
    slice: &'a mut Slice,
    /// The first failure.
    error: Option<io::Error>,
}

impl Remover<'_> {
    fn run(&mut self) -> io::Result<Removal> {
        while !self.slice.is_over() {
            match self.cursor.next_entry() {
                Ok(Some(entry)) => self.remove(entry),
                Ok(None) => {
                    if let Some(end) = self.end_directory()? {
                        return Ok(end);
                    }
                }
                Err(err) => {
                    if !is_gone(&err) {
                        self.fail(err);
                    }
                    if let Some(end) = self.leave()? {
                        return Ok(end);
                    }
                }
            }
        }
        Ok(Removal::Unfinished)
    }

    fn remove(&mut self, entry: Entry) {
        self.slice.looked_at += 1;
        let has_left = self.cursor.has_left(&entry);
        if self.contents == Contents::Cgroups && entry.is_directory == Some(false) {
            return;
        }
        let directory = self.cursor.directory();
        match self.contents.delete(directory, &entry.name, entry.is_directory) {
            Ok(Deleted::Gone) => {
                self.cursor.state().deleted = true;
                self.slice.begin();
            }
            // It was emptied as far as that goes.
            Ok(Deleted::NotEmpty(errno)) if has_left => self.fail(errno.into()),
            Ok(Deleted::NotEmpty(_)) => match self.cursor.enter(entry) {
                Ok(()) => {}
                Err(err) if is_gone(&err) => {}
                Err(err) => self.fail(err),
            },
            Err(errno) => self.fail(errno.into()),
        }
    }

    /// At the end of a listing. `Some`: the walk has come to its end.
    fn end_directory(&mut self) -> io::Result<Option<Removal>> {
        let noted = self.cursor.state();
        noted.passes += 1;
        if noted.deleted && !noted.failed && noted.passes < PASSES {
            noted.deleted = false;
            self.cursor.rewind()?;
            return Ok(None);
        }
        self.leave()
    }

    fn leave(&mut self) -> io::Result<Option<Removal>> {
        Ok(match self.cursor.leave()? {
            Left::ToParent => None,
            Left::AtTop => Some(Removal::Complete),
            // The deepest levels are gone, and the next call comes further; or none of them can go.
            Left::Forgotten if self.slice.begun.is_some() => Some(Removal::Unfinished),
            Left::Forgotten => Some(Removal::Complete),
        })
    }

    fn fail(&mut self, error: io::Error) {
        self.cursor.state().failed = true;
        self.error.get_or_insert(error);
    }
}

impl Contents {
    fn delete(
        self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        is_directory: Option<bool>,
    ) -> nix::Result<Deleted> {
        match self {
            Self::Everything => delete_anything(directory, name, is_directory),
            Self::Cgroups => match unlinkat(directory, name, UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT | Errno::ENODEV) => Ok(Deleted::Gone),
                // It has children or processes.
                Err(errno @ (Errno::EBUSY | Errno::ENOTEMPTY)) => Ok(Deleted::NotEmpty(errno)),
                Err(errno) => Err(errno),
            },
        }
    }
}

fn delete_anything(
    directory: BorrowedFd<'_>,
    name: &CStr,
    is_directory: Option<bool>,
) -> nix::Result<Deleted> {
    let mut refused = None;
    if is_directory != Some(true) {
        match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(Deleted::Gone),
            // What file systems say to a directory.
            Err(errno @ (Errno::EISDIR | Errno::EPERM)) => refused = Some(errno),
            Err(errno) => return Err(errno),
        }
    }
    match unlinkat(directory, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(Deleted::Gone),
        Err(errno @ (Errno::ENOTEMPTY | Errno::EEXIST)) => Ok(Deleted::NotEmpty(errno)),
        Err(Errno::ENOTDIR) => match refused {
            Some(refused) => Err(refused),
            // A file has taken the directory's place.
            None => delete_anything(directory, name, Some(false)),
        },
        Err(errno) => Err(errno),
    }
}
