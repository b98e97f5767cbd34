//! A walk through a directory tree, depth first, whatever its depth and width.
//!
//! The cursor stands in one directory. It holds the descriptors of the nearest [`OPEN`] levels; it
//! closes those above, remembers where it was in their listings, and finds them again through `..`.
//! A directory that was moved meanwhile is noticed by its identity. Directories are read in batches
//! of [`BATCH`] bytes. So the walk takes [`OPEN`] descriptors and batches, and about 64 bytes for
//! each level, at most [`LEVELS`] of them.

use super::open_same_mount;
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::stat::{Mode, fstat},
};
use rustix::fs::{FileType, RawDir, SeekFrom, seek};
use std::{
    collections::VecDeque,
    ffi::{CStr, CString, OsStr},
    hash::{BuildHasher as _, RandomState},
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

/// Levels whose directories stay open.
const OPEN: usize = 8;
/// Levels that are remembered; about 12 MiB.
const LEVELS: usize = 200_000;
/// Bytes of a directory that are read at a time: between 14 and 170 entries.
const BATCH: usize = 4096;

/// An entry of the directory in which the cursor stands.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: CString,
    /// `None`: the file system does not say.
    pub(super) is_directory: Option<bool>,
    /// Where the listing has it.
    offset: u64,
}

impl Entry {
    pub(super) fn os_name(&self) -> &OsStr {
        OsStr::from_bytes(self.name.to_bytes())
    }
}

/// Where [`Cursor::leave`] has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Into the parent. If the child is still there, it is the next entry.
    ToParent,
    /// Nowhere: the cursor stands in the directory in which the walk began.
    AtTop,
    /// Nowhere: the levels above are no longer remembered.
    Forgotten,
}

/// Walks through a tree; `S` is what the caller notes about each directory.
#[derive(Debug)]
pub(super) struct Cursor<S> {
    here: Listing,
    state: S,
    /// Outermost first.
    above: VecDeque<Level<S>>,
    has_forgotten: bool,
    /// The name of the directory that was left last, hashed.
    left: Option<u64>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Listing {
    directory: OwnedFd,
    /// What was read and not given out yet; the next one is the last.
    batch: Vec<Entry>,
    /// Where the next batch begins.
    offset: u64,
}

/// A directory above the one in which the cursor stands.
#[derive(Debug)]
struct Level<S> {
    place: ListingState,
    state: S,
    /// The name of the entry that was entered, hashed.
    entered: u64,
}

#[derive(Debug)]
enum ListingState {
    Open(Listing),
    Closed { device: u64, inode: u64, offset: u64 },
}

impl<S: Default> Cursor<S> {
    /// Stands in `directory`, which is open for reading.
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self {
            here: Listing::new(directory),
            state: S::default(),
            above: VecDeque::new(),
            has_forgotten: false,
            left: None,
            hasher: RandomState::new(),
        }
    }

    /// The directory in which the cursor stands.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.here.directory.as_fd()
    }

    /// What the caller notes about that directory.
    pub(super) fn state(&mut self) -> &mut S {
        &mut self.state
    }

    /// The next entry of the directory; `None` at its end.
    pub(super) fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        if self.here.batch.is_empty() {
            self.here.read()?;
        }
        Ok(self.here.batch.pop())
    }

    /// Lists the directory from its beginning again.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        self.here.batch.clear();
        self.here.go_to(0)
    }

    /// Goes into a directory that was the last entry given out.
    ///
    /// # Errors
    /// `EXDEV` for a mount point, `ENOTDIR` or `ELOOP` for what is no directory.
    pub(super) fn enter(&mut self, entry: Entry) -> io::Result<()> {
        let child = open_same_mount(self.directory(), entry.os_name())?;
        self.close_one_above()?;
        let entered = self.hash(&entry.name);
        let mut listing = std::mem::replace(&mut self.here, Listing::new(child));
        // It is the next one again when the cursor comes back.
        listing.batch.push(entry);
        let state = std::mem::take(&mut self.state);
        self.above.push_back(Level { place: ListingState::Open(listing), state, entered });
        if self.above.len() > LEVELS {
            self.above.pop_front();
            self.has_forgotten = true;
        }
        self.left = None;
        Ok(())
    }

    /// Goes back into the directory above.
    ///
    /// # Errors
    /// `ESTALE` when the directory was moved elsewhere.
    pub(super) fn leave(&mut self) -> io::Result<Left> {
        let Some(level) = self.above.pop_back() else {
            return Ok(if self.has_forgotten { Left::Forgotten } else { Left::AtTop });
        };
        self.here = match level.place {
            ListingState::Open(listing) => listing,
            ListingState::Closed { device, inode, offset } => {
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                let parent = openat(self.directory(), "..", flags, Mode::empty())?;
                let found = fstat(&parent)?;
                if (found.st_dev, found.st_ino) != (device, inode) {
                    return Err(Errno::ESTALE.into());
                }
                let mut listing = Listing::new(parent);
                listing.go_to(offset)?;
                listing
            }
        };
        self.state = level.state;
        self.left = Some(level.entered);
        Ok(Left::ToParent)
    }

    /// Whether `entry`, which was just given out, is the directory that was just left.
    pub(super) fn has_left(&mut self, entry: &Entry) -> bool {
        let hash = self.hash(&entry.name);
        self.left.take() == Some(hash)
    }

    /// How many directories are open, and how many names are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        let above = self.above.iter().filter_map(|level| match &level.place {
            ListingState::Open(listing) => Some(listing),
            ListingState::Closed { .. } => None,
        });
        let open: Vec<&Listing> = above.chain([&self.here]).collect();
        (open.len(), open.iter().map(|listing| listing.batch.len()).sum())
    }

    fn close_one_above(&mut self) -> io::Result<()> {
        let Some(index) = self.above.len().checked_sub(OPEN) else { return Ok(()) };
        let Some(level) = self.above.get_mut(index) else { return Ok(()) };
        if let ListingState::Open(listing) = &level.place {
            let found = fstat(&listing.directory)?;
            // The entry that was entered.
            let offset = listing.batch.last().map_or(listing.offset, |entry| entry.offset);
            level.place =
                ListingState::Closed { device: found.st_dev, inode: found.st_ino, offset };
        }
        Ok(())
    }

    fn hash(&self, name: &CStr) -> u64 {
        self.hasher.hash_one(name)
    }
}

impl Listing {
    fn new(directory: OwnedFd) -> Self {
        Self { directory, batch: Vec::new(), offset: 0 }
    }

    fn go_to(&mut self, offset: u64) -> io::Result<()> {
        self.offset = offset;
        seek(&self.directory, SeekFrom::Start(offset))?;
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(BATCH);
        let mut raw = RawDir::new(&self.directory, buffer.spare_capacity_mut());
        // A batch of nothing but `.` and `..` is not the end.
        while self.batch.is_empty() {
            loop {
                let Some(entry) = raw.next() else {
                    self.batch.reverse();
                    return Ok(());
                };
                let entry = entry?;
                let (name, kind) = (entry.file_name(), entry.file_type());
                let offset = std::mem::replace(&mut self.offset, entry.next_entry_cookie());
                if name != c"." && name != c".." {
                    let is_directory =
                        (kind != FileType::Unknown).then_some(kind == FileType::Directory);
                    self.batch.push(Entry { name: name.to_owned(), is_directory, offset });
                }
                if raw.is_buffer_empty() {
                    break;
                }
            }
        }
        self.batch.reverse();
        Ok(())
    }
}

/// Calls `visit` with `top`, which is open for reading, and with every directory below it.
/// Directories that vanish meanwhile and mount points are left out.
///
/// # Errors
/// The first failure of `visit` or of the walk.
pub(crate) fn visit_tree<E: From<io::Error>>(
    top: OwnedFd,
    visit: impl FnMut(BorrowedFd<'_>) -> Result<(), E>,
) -> Result<(), E> {
    walk(top, |_, _| Ok(()), visit)
}

/// Calls `visit` with every entry below `top`, which is open for reading: the directory in which it
/// is, and its name. Goes into directories, except for mount points.
///
/// # Errors
/// The first failure of `visit` or of the walk.
pub(crate) fn visit_entries(
    top: OwnedFd,
    visit: impl FnMut(BorrowedFd<'_>, &OsStr) -> io::Result<()>,
) -> io::Result<()> {
    walk(top, visit, |_| Ok(()))
}

/// Calls `visit_entry` with every entry, and `visit_directory` with every directory.
fn walk<E: From<io::Error>>(
    top: OwnedFd,
    mut visit_entry: impl FnMut(BorrowedFd<'_>, &OsStr) -> Result<(), E>,
    mut visit_directory: impl FnMut(BorrowedFd<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut cursor = Cursor::<()>::new(top);
    visit_directory(cursor.directory())?;
    loop {
        let entry = match cursor.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => match cursor.leave()? {
                Left::ToParent => continue,
                Left::AtTop | Left::Forgotten => return Ok(()),
            },
            // A cgroup that was removed.
            Err(err) if is_gone(&err) => match cursor.leave()? {
                Left::ToParent => continue,
                Left::AtTop | Left::Forgotten => return Ok(()),
            },
            Err(err) => return Err(err.into()),
        };
        if cursor.has_left(&entry) {
            continue;
        }
        visit_entry(cursor.directory(), entry.os_name())?;
        if entry.is_directory == Some(false) {
            continue;
        }
        match cursor.enter(entry) {
            Ok(()) => visit_directory(cursor.directory())?,
            Err(err) if is_gone(&err) || is_no_directory(&err) || is_mount_point(&err) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

/// A file, or a symlink that took the place of a directory.
fn is_no_directory(err: &io::Error) -> bool {
    [Errno::ENOTDIR, Errno::ELOOP].iter().any(|errno| err.raw_os_error() == Some(*errno as i32))
}

fn is_mount_point(err: &io::Error) -> bool {
    err.raw_os_error() == Some(Errno::EXDEV as i32)
}

/// It is not there any more; reading a cgroup that was just removed is ENODEV.
pub(super) fn is_gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(Errno::ENODEV as i32)
}
