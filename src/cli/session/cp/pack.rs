//! Packs a local file or directory into an archive for `tar` in a container.
//!
//! The named file or directory may be a symlink, which is followed. Below it no symlink is followed,
//! even if another user exchanges a directory for one meanwhile: a symlink is packed as a symlink.
//! Owners are left out, so that the copy belongs to the user as whom the container runs commands.

use super::{CopyError, Report, pipe::PipeWriter};
use crate::{
    beneath::{self, kind_of},
    cli::session::carry::INPUT,
    files::{self, ReadError},
    model::{Order as _, printable},
};
use nix::{
    dir::Dir,
    fcntl::{AtFlags, OFlag, openat, readlinkat},
    sys::stat::{FileStat, Mode, SFlag, fstat, fstatat},
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufWriter, Read as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};
use tar::{Builder, EntryType, Header};

/// What is to be packed, opened.
pub(super) struct Source {
    path: PathBuf,
    opened: Opened,
}

enum Opened {
    File(File),
    Directory(OwnedFd),
}

impl Source {
    /// # Errors
    /// When it can't be opened, or is neither a file nor a directory.
    pub(super) fn open(path: &Path) -> Result<Self, CopyError> {
        let failed = |source| CopyError::Read { path: path.to_owned(), source };
        let opened = if path.is_dir() {
            Opened::Directory(beneath::open_base(path).map_err(failed)?)
        } else {
            let opened = files::open_regular(path);
            Opened::File(opened.map_err(ReadError::into).map_err(failed)?)
        };
        Ok(Self { path: path.to_owned(), opened })
    }

    /// Sends the archive, in which the source has this name. The content of a directory without a
    /// name is at the top of the archive. What can't be read is reported and left out.
    ///
    /// # Errors
    /// When something was left out, a file could not be read to its end, or the session ended.
    pub(super) fn pack(
        self,
        name: Option<&OsStr>,
        to: PipeWriter,
        report: Report<'_>,
    ) -> Result<(), CopyError> {
        let archive = Builder::new(BufWriter::with_capacity(INPUT, to));
        let mut packer = Packer { source: self.path, archive, report, left_out: 0 };
        let name = name.map(PathBuf::from).unwrap_or_default();
        match self.opened {
            Opened::File(file) => {
                let path = packer.source.clone();
                let failed = |source| CopyError::Read { path: path.clone(), source };
                let stat = fstat(&file).map_err(|errno| failed(errno.into()))?;
                packer.put_file(file, &stat, &path, &name)?;
            }
            Opened::Directory(directory) => packer.put_tree(&directory, &name)?,
        }
        packer.finish()
    }
}

struct Packer<'a> {
    source: PathBuf,
    archive: Builder<BufWriter<PipeWriter>>,
    report: Report<'a>,
    /// Files and directories that could not be read.
    left_out: u64,
}

impl Packer<'_> {
    /// Packs the directory `top`, which has this name in the archive. Each directory comes before
    /// what is in it.
    fn put_tree(&mut self, top: &OwnedFd, name: &Path) -> Result<(), CopyError> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(relative) = waiting.pop() {
            let (directory, entries) = match open_directory(top.as_fd(), &relative) {
                Ok(opened) => opened,
                Err(error) => {
                    self.leave_out(&relative, &error);
                    continue;
                }
            };
            let in_archive = name.join(&relative);
            // The directory into which the content goes directly keeps its mode.
            if !in_archive.as_os_str().is_empty() {
                match fstat(&directory) {
                    Ok(stat) => self.put(EntryType::Directory, &stat, &in_archive, io::empty())?,
                    Err(errno) => self.leave_out(&relative, &errno.into()),
                }
            }
            let first = waiting.len();
            for entry in &entries {
                let path = relative.join(entry);
                match self.put_entry(directory.as_fd(), entry, &path, &name.join(&path)) {
                    Ok(true) => waiting.push(path),
                    Ok(false) => {}
                    Err(PackError::Skip(error)) => self.leave_out(&path, &error),
                    Err(PackError::End(error)) => return Err(error),
                }
            }
            // The last one is popped first.
            waiting[first..].reverse();
        }
        Ok(())
    }

    /// Packs an entry of a directory, unless it is a directory: then gives true.
    fn put_entry(
        &mut self,
        directory: BorrowedFd<'_>,
        entry: &OsStr,
        path: &Path,
        in_archive: &Path,
    ) -> Result<bool, PackError> {
        let stat = fstatat(directory, entry, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        match kind_of(stat.st_mode) {
            SFlag::S_IFDIR => return Ok(true),
            SFlag::S_IFREG => {
                let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
                let file = openat(directory, entry, flags | OFlag::O_CLOEXEC, Mode::empty())?;
                let stat = fstat(&file)?;
                // It may have been exchanged since.
                if kind_of(stat.st_mode) != SFlag::S_IFREG {
                    return Err(PackError::Skip(io::Error::other("it is not a regular file")));
                }
                let path = self.source.join(path);
                self.put_file(file.into(), &stat, &path, in_archive)?;
            }
            SFlag::S_IFLNK => {
                let target = readlinkat(directory, entry)?;
                let mut header = header(EntryType::Symlink, &stat);
                self.archive
                    .append_link(&mut header, in_archive, Path::new(&target))
                    .map_err(CopyError::Send)?;
            }
            _ => self.warn(path, "is not a file, directory or symlink"),
        }
        Ok(false)
    }

    fn put_file(
        &mut self,
        file: File,
        stat: &FileStat,
        path: &Path,
        in_archive: &Path,
    ) -> Result<(), CopyError> {
        let mut header = header(EntryType::Regular, stat);
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        header.set_size(size);
        let mut content = Content { file: file.take(size), error: None };
        let put = self.archive.append_data(&mut header, in_archive, &mut content);
        if let Some(source) = content.error {
            return Err(CopyError::Read { path: path.to_owned(), source });
        }
        put.map_err(CopyError::Send)
    }

    fn put(
        &mut self,
        kind: EntryType,
        stat: &FileStat,
        in_archive: &Path,
        content: impl io::Read,
    ) -> Result<(), CopyError> {
        let mut header = header(kind, stat);
        self.archive.append_data(&mut header, in_archive, content).map_err(CopyError::Send)
    }

    fn leave_out(&mut self, path: &Path, error: &io::Error) {
        self.left_out += 1;
        self.warn(path, &error.to_string());
    }

    fn warn(&mut self, path: &Path, problem: &str) {
        let path = self.source.join(path);
        (self.report)(&format!(
            "nodelet: not copied: {}: {problem}",
            printable(&path.to_string_lossy())
        ));
    }

    fn finish(self) -> Result<(), CopyError> {
        let written = self.archive.into_inner().map_err(CopyError::Send)?;
        let pipe = written.into_inner().map_err(|error| CopyError::Send(error.into_error()))?;
        pipe.finish();
        if self.left_out > 0 { Err(CopyError::Incomplete(self.left_out)) } else { Ok(()) }
    }
}

/// Why an entry was not packed.
enum PackError {
    /// The others can be.
    Skip(io::Error),
    End(CopyError),
}

impl From<nix::Error> for PackError {
    fn from(errno: nix::Error) -> Self {
        Self::Skip(errno.into())
    }
}

impl From<CopyError> for PackError {
    fn from(error: CopyError) -> Self {
        Self::End(error)
    }
}

/// A file of which exactly as many bytes are read as its header says. It keeps its own failure
/// apart from those of the archive.
struct Content {
    file: io::Take<File>,
    error: Option<io::Error>,
}

impl io::Read for Content {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match self.file.read(into) {
            Ok(0) if self.file.limit() > 0 && !into.is_empty() => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"))
            }
            read => read,
        };
        read.map_err(|error| {
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                self.error = Some(error);
            }
            kind.into()
        })
    }
}

/// Opens a directory below `top` and gives the names in it, sorted.
fn open_directory(top: BorrowedFd<'_>, relative: &Path) -> io::Result<(OwnedFd, Vec<OsString>)> {
    let directory = beneath::open_plain_directory(top, relative, OFlag::O_RDONLY)?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(directory.try_clone()?)?.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.order();
    Ok((directory, names))
}

fn header(kind: EntryType, stat: &FileStat) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use nix::unistd::mkfifo;
    use std::{fs, os::unix::fs::symlink, thread};
    use tokio::sync::mpsc;

    /// Packs `path` under `name`: the entries with their content, what was reported, and the
    /// failure.
    fn packed(path: &Path, name: Option<&str>) -> (Vec<String>, Vec<String>, Option<String>) {
        let (parts, mut received) = mpsc::channel::<io::Result<Vec<u8>>>(1);
        let source = Source::open(path).unwrap();
        let reading = thread::spawn(move || {
            let mut bytes = Vec::new();
            while let Some(part) = received.blocking_recv() {
                bytes.extend(part.unwrap());
            }
            bytes
        });
        let mut reported = Vec::new();
        let done = source.pack(name.map(OsStr::new), PipeWriter::new(parts), &mut |text| {
            reported.push(text.to_owned());
        });
        let bytes = reading.join().unwrap();
        let mut archive = tar::Archive::new(&*bytes);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let mode = entry.header().mode().unwrap();
            let link = entry.link_name().unwrap().unwrap_or_default().into_owned();
            let (path, link) = (entry.path().unwrap(), link.display());
            format!("{} {mode:o} {link}{content}", path.display())
        });
        (entries.collect(), reported, done.err().map(|error| error.to_string()))
    }

    #[test]
    fn a_tree_is_packed_without_following_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("b/c")).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        fs::write(tree.join("a"), "alpha").unwrap();
        fs::write(tree.join("b/c/empty"), "").unwrap();
        symlink("../secret", tree.join("link")).unwrap();
        symlink("..", tree.join("b/up")).unwrap();
        mkfifo(&tree.join("fi\nfo"), Mode::S_IRWXU).unwrap();
        let long = "n".repeat(200);
        fs::write(tree.join(&long), "long").unwrap();
        let (entries, reported, failure) = packed(&tree, Some("new"));
        let long = format!("new/{long} 644 long");
        let expected = ["new/ 755 ", "new/a 644 alpha", "new/link 777 ../secret", &long];
        assert_eq!(entries[..4], expected);
        let expected = ["new/b 755 ", "new/b/up 777 ..", "new/b/c 755 ", "new/b/c/empty 644 "];
        assert_eq!(entries[4..], expected);
        assert_eq!(reported.len(), 1);
        assert!(reported[0].contains("tree/fi\\nfo: is not a file"), "{reported:?}");
        assert_eq!(failure, None);
        // Without a name: no entry for the directory itself.
        assert_eq!(packed(&tree.join("b"), None).0, ["up 777 ..", "c 755 ", "c/empty 644 "]);
        // A symlink that is named is followed.
        assert_eq!(packed(&tree.join("link"), Some("name")).0, ["name 644 secret"]);
        assert!(Source::open(&tree.join("fi\nfo")).is_err());
        assert!(Source::open(&tree.join("none")).is_err());
    }

    #[test]
    fn a_file_that_becomes_shorter_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "content").unwrap();
        let mut content = Content { file: File::open(&path).unwrap().take(8), error: None };
        let mut read = Vec::new();
        assert!(content.read_to_end(&mut read).is_err());
        assert_eq!(content.error.unwrap().to_string(), "the file became shorter");
    }
}
