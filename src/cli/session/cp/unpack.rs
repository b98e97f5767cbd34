//! Unpacks the archive that a container sends, below a directory of this machine.
//!
//! The container made the archive, so nothing in it is trusted. Files and directories are made
//! through descriptors of directories below the destination, and the kernel follows no symlink on
//! the way to them. An entry whose name leads elsewhere is refused. Links, devices and FIFOs are
//! never made. A file appears under its name when it is complete, and takes the place of nothing
//! but a file. It gets permission bits as the umask permits, and no setuid bit.

#[cfg(test)]
mod tests;

use super::{CopyError, Report, place::Target};
use crate::{
    beneath::{self, kind_of},
    model::printable,
};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, renameat},
    sys::stat::{Mode, SFlag, fstatat},
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    cell::Cell,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
    process,
    rc::Rc,
};
use tar::{Archive, Entry, EntryType};

/// The most bytes of headers, long names and extensions between the contents of two entries.
const HEADERS: u64 = 1 << 20;
/// Bytes of a file that are copied at a time.
const BUFFER: usize = 64 << 10;

/// What is expected in the archive, and where it goes.
pub(super) struct Unpacker {
    /// The name with which all entries begin; `None`: the archive has the content of a directory.
    source: Option<OsString>,
    target: Target,
    copied: u64,
    refused: u64,
}

impl Unpacker {
    pub(super) fn new(source: Option<&OsStr>, target: Target) -> Self {
        Self { source: source.map(OsStr::to_owned), target, copied: 0, refused: 0 }
    }

    /// Unpacks the archive below `base`, the directory of the target. Entries that are refused or
    /// skipped are reported.
    ///
    /// # Errors
    /// When the archive is damaged or incomplete, a file can't be written, an entry was refused, or
    /// the archive had nothing that is copied.
    pub(super) fn unpack(
        &mut self,
        from: impl Read,
        base: BorrowedFd<'_>,
        report: Report<'_>,
    ) -> Result<(), CopyError> {
        let limit = Rc::new(Cell::new(HEADERS));
        let mut from = Limited { from, read: 0, limit: Rc::clone(&limit) };
        let mut archive = Archive::new(&mut from);
        for entry in archive.entries().map_err(CopyError::Archive)? {
            let mut entry = entry.map_err(CopyError::Archive)?;
            limit.set(u64::MAX);
            let name = entry.path_bytes().into_owned();
            match self.put(&mut entry, base) {
                Ok(Put::Copied) => self.copied += 1,
                Ok(Put::Ignored) => {}
                Ok(Put::Skipped(what)) => warn(report, &name, what),
                Err(UnpackError::Refused(reason)) => {
                    self.refused += 1;
                    warn(report, &name, &reason);
                }
                Err(UnpackError::End(error)) => return Err(error),
            }
            let size = entry.size().max(entry.header().entry_size().unwrap_or_default());
            let end = entry.raw_file_position().saturating_add(size);
            limit.set(end.saturating_add(HEADERS));
        }
        // The session ends when all of its output was read.
        limit.set(u64::MAX);
        io::copy(&mut from, &mut io::sink()).map_err(CopyError::Archive)?;
        match (self.copied, self.refused) {
            (0, 0) => Err(CopyError::Nothing),
            (_, 0) => Ok(()),
            (_, refused) => Err(CopyError::Incomplete(refused)),
        }
    }

    fn put(
        &self,
        entry: &mut Entry<'_, impl Read>,
        base: BorrowedFd<'_>,
    ) -> Result<Put, UnpackError> {
        let name = entry.path_bytes().into_owned();
        let mode = Mode::from_bits_truncate(entry.header().mode().unwrap_or_default() & 0o777);
        match entry.header().entry_type() {
            EntryType::XGlobalHeader => Ok(Put::Ignored),
            EntryType::Directory => self.put_directory(&name, mode, base),
            // Archives of the oldest form mark directories like this.
            EntryType::Regular if name.ends_with(b"/") && entry.size() == 0 => {
                self.put_directory(&name, mode, base)
            }
            EntryType::Regular | EntryType::Continuous => {
                let path = self.local_path(&name)?;
                self.put_file(entry, &path, mode, base)
            }
            EntryType::Symlink => Ok(Put::Skipped("it is a symlink")),
            EntryType::Link => Ok(Put::Skipped("it is a hard link")),
            EntryType::Char | EntryType::Block => Ok(Put::Skipped("it is a device")),
            EntryType::Fifo => Ok(Put::Skipped("it is a FIFO")),
            EntryType::GNUSparse => Err(UnpackError::refused("it is packed as a sparse file")),
            // The library reads these itself, as a part of the next entry.
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => {
                Err(UnpackError::refused("it is no entry"))
            }
            _ => Err(UnpackError::refused("its type is unknown")),
        }
    }

    /// The path below the base for a name in the archive; empty for the base itself.
    fn local_path(&self, name: &[u8]) -> Result<PathBuf, UnpackError> {
        let mut components = Vec::new();
        for component in Path::new(OsStr::from_bytes(name)).components() {
            match component {
                Component::CurDir => {}
                Component::Normal(name) => components.push(name),
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(UnpackError::refused("its name leads out of the destination"));
                }
            }
        }
        let below = match &self.source {
            None => &components[..],
            Some(source) => match components.split_first() {
                Some((first, below)) if first == source => below,
                Some(_) | None => return Err(UnpackError::refused("it was not asked for")),
            },
        };
        Ok(self.target.name.as_deref().into_iter().chain(below.iter().copied()).collect())
    }

    fn put_directory(
        &self,
        name: &[u8],
        mode: Mode,
        base: BorrowedFd<'_>,
    ) -> Result<Put, UnpackError> {
        let path = self.local_path(name)?;
        if let (Some(name), parent) = (path.file_name(), path.parent()) {
            let parent = directory(base, parent.unwrap_or(Path::new("")))?;
            // What is in it comes later.
            beneath::make_plain_directories(parent.as_fd(), Path::new(name), mode | Mode::S_IRWXU)
                .map_err(|error| UnpackError::of(error, &path))?;
        }
        Ok(Put::Copied)
    }

    fn put_file(
        &self,
        entry: &mut Entry<'_, impl Read>,
        path: &Path,
        mode: Mode,
        base: BorrowedFd<'_>,
    ) -> Result<Put, UnpackError> {
        let Some(name) = path.file_name() else {
            return Err(UnpackError::refused("it is a file, and a directory was expected"));
        };
        let parent = directory(base, path.parent().unwrap_or(Path::new("")))?;
        may_replace(parent.as_fd(), name, path)?;
        let (unfinished, mut file) = Unfinished::create(&parent, mode, path)?;
        let mut buffer = vec![0; BUFFER];
        let mut left = entry.size();
        while left > 0 {
            let length = match entry.read(&mut buffer) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                read => read,
            };
            let length = length.map_err(CopyError::Archive)?;
            let written = file.write_all(&buffer[..length]);
            written.map_err(|source| CopyError::Write { path: path.to_owned(), source })?;
            left = left.saturating_sub(length.try_into().unwrap_or(u64::MAX));
        }
        unfinished.complete(name, path)?;
        Ok(Put::Copied)
    }
}

/// What became of an entry.
enum Put {
    Copied,
    /// It is no file of the container.
    Ignored,
    /// It is never copied, for this reason.
    Skipped(&'static str),
}

/// Why an entry was not copied.
enum UnpackError {
    /// The others can be.
    Refused(String),
    End(CopyError),
}

impl UnpackError {
    fn refused(reason: &str) -> Self {
        Self::Refused(reason.to_owned())
    }

    /// What the names in the archive can cause concerns one entry. Everything else, as a full disk,
    /// concerns the others as well.
    fn of(error: io::Error, path: &Path) -> Self {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ELOOP) => Self::refused("a symlink is in the way"),
            Some(Errno::ENOTDIR) => {
                Self::refused("something that is not a directory is in the way")
            }
            Some(
                Errno::EEXIST | Errno::EINVAL | Errno::EISDIR | Errno::ENAMETOOLONG | Errno::EXDEV,
            ) => Self::Refused(error.to_string()),
            _ => Self::End(CopyError::Write { path: path.to_owned(), source: error }),
        }
    }
}

impl From<CopyError> for UnpackError {
    fn from(error: CopyError) -> Self {
        Self::End(error)
    }
}

/// The directory `path` below the base, made if it does not exist.
fn directory(base: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, UnpackError> {
    let mode = Mode::from_bits_truncate(0o777);
    beneath::make_plain_directories(base, path, mode).map_err(|error| UnpackError::of(error, path))
}

/// A file takes the place of a file, and of nothing else.
fn may_replace(directory: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<(), UnpackError> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(UnpackError::of(errno.into(), path)),
        Ok(stat) => match kind_of(stat.st_mode) {
            SFlag::S_IFREG => Ok(()),
            SFlag::S_IFLNK => Err(UnpackError::refused("a symlink is in the way")),
            SFlag::S_IFDIR => Err(UnpackError::refused("a directory is in the way")),
            _ => Err(UnpackError::refused("a special file is in the way")),
        },
    }
}

/// A file that is not complete, under a name of its own. It is removed when this is dropped.
struct Unfinished<'a> {
    directory: &'a OwnedFd,
    name: OsString,
    is_complete: bool,
}

impl<'a> Unfinished<'a> {
    fn create(
        directory: &'a OwnedFd,
        mode: Mode,
        path: &Path,
    ) -> Result<(Self, File), UnpackError> {
        let name = OsString::from(format!(".nodelet-cp.{}", process::id()));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let file = openat(directory, &*name, flags | OFlag::O_CLOEXEC, mode)
            .map_err(|errno| UnpackError::of(errno.into(), path))?;
        Ok((Self { directory, name, is_complete: false }, file.into()))
    }

    fn complete(mut self, name: &OsStr, path: &Path) -> Result<(), UnpackError> {
        renameat(self.directory, &*self.name, self.directory, name)
            .map_err(|errno| UnpackError::of(errno.into(), path))?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            // There is nothing better to do about a failure than to leave the file.
            unlinkat(self.directory, &*self.name, UnlinkatFlags::NoRemoveDir).ok();
        }
    }
}

/// Fails when more is read than the limit. Only names and extensions are held in memory, so this
/// bounds the memory that an archive can take.
struct Limited<R> {
    from: R,
    read: u64,
    limit: Rc<Cell<u64>>,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.limit.get() {
            return Err(io::Error::other("a header is too long"));
        }
        let length = self.from.read(into)?;
        self.read = self.read.saturating_add(length.try_into().unwrap_or(u64::MAX));
        Ok(length)
    }
}

fn warn(report: Report<'_>, name: &[u8], problem: &str) {
    let name = String::from_utf8_lossy(name);
    report(&format!("nodelet: not copied: {}: {problem}", printable(&name)));
}
