//! Reading a file that an administrator names, without trusting that it is a file of a sensible
//! size; and replacing a file of the agent, so that a crash leaves the former one or the new one.
//!
//! A FIFO would block the reader until somebody writes, opening some devices has side effects, and
//! `/dev/zero` has no end. [`read_regular`] refuses all of them before the first byte is read. A
//! file on a file system that does not answer still blocks: call it on a thread of
//! [`crate::blocking`] while the agent runs.

use nix::{
    fcntl::OFlag,
    sys::statfs::{FsType, statfs},
};
use std::{
    fs::{self, File, FileType, Metadata, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The file system of pipes without a name: `PIPEFS_MAGIC` in Linux's magic.h.
const PIPE_FS: FsType = FsType(0x5049_5045);

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system's error: the file does not exist, or may not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path names something other than a regular file.
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    /// The file has more bytes than the caller accepts.
    #[error("it is larger than {limit} bytes")]
    TooLarge {
        /// The most bytes that the caller accepts.
        limit: u64,
    },
}

impl ReadError {
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Io(error) => error.kind() == io::ErrorKind::NotFound,
            Self::NotRegular(_) | Self::TooLarge { .. } => false,
        }
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error,
            ReadError::NotRegular(_) => Self::new(io::ErrorKind::InvalidInput, error),
            ReadError::TooLarge { .. } => Self::new(io::ErrorKind::FileTooLarge, error),
        }
    }
}

/// Reads a regular file of at most `limit` bytes. Symbolic links are followed.
///
/// # Errors
/// When the file can't be opened or read, is a FIFO, socket, device or directory, or is larger than
/// `limit`. None of these waits for another process.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let file = open_regular(path)?;
    let length = file.metadata()?.len();
    if length > limit {
        return Err(ReadError::TooLarge { limit });
    }
    // The length in the metadata is only a hint: files in /proc have the length 0.
    let mut content = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if u64::try_from(content.len()).is_ok_and(|length| length > limit) {
        return Err(ReadError::TooLarge { limit });
    }
    Ok(content)
}

/// Whether a path names a program: a regular file that somebody may execute.
///
/// # Errors
/// When there is none, or it can't be looked at.
pub fn is_executable(path: &Path) -> io::Result<bool> {
    let metadata = fs::metadata(path)?;
    Ok(metadata.is_file() && metadata.mode() & 0o111 != 0)
}

/// Opens a regular file for reading. Symbolic links are followed.
///
/// # Errors
/// When the file can't be opened, or is a FIFO, socket, device or directory. None of these waits
/// for another process.
pub fn open_regular(path: &Path) -> Result<File, ReadError> {
    // Looked at before it is opened: opening a watchdog device arms it, opening a tape rewinds it.
    regular(&fs::metadata(path)?)?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    // Looked at again: the path may name something else by now.
    regular(&file.metadata()?)?;
    Ok(file)
}

/// As [`open_regular`], and opens a pipe without a name too: `/dev/stdin`, or `<(command)` in a
/// shell. Reading a pipe waits for the process that writes it. A FIFO, which has a name, is
/// refused.
///
/// # Errors
/// As [`open_regular`].
pub fn open_regular_or_pipe(path: &Path) -> Result<File, ReadError> {
    if statfs(path).is_ok_and(|found| found.filesystem_type() == PIPE_FS) {
        return Ok(File::open(path)?);
    }
    open_regular(path)
}

/// Replaces a file, or makes it, with mode 0600. The content is written to a file beside it whose
/// name ends with `unfinished`; only a crash leaves that file behind. On return the change is
/// durable.
///
/// # Errors
/// When the content can't be written or take the file's place, or its directory can't be synced.
pub fn replace(path: &Path, unfinished: &str, content: &[u8]) -> io::Result<()> {
    let written = write_unfinished(path, unfinished, content, true)?;
    fs::rename(&written, path).inspect_err(|_| drop(fs::remove_file(&written)))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// The first half of [`replace`]: writes the content, durably where `sync` says so, and gives the
/// path of what is to be renamed. When that fails, nothing of it is left.
///
/// # Errors
/// When the content can't be written.
pub fn write_unfinished(
    path: &Path,
    unfinished: &str,
    content: &[u8],
    sync: bool,
) -> io::Result<PathBuf> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(unfinished);
    let beside = PathBuf::from(beside);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(content)?;
            if sync { file.sync_data() } else { Ok(()) }
        });
    if let Err(error) = written {
        // On a full disk even the beginning of a file is in the way.
        drop(fs::remove_file(&beside));
        return Err(error);
    }
    Ok(beside)
}

/// Makes renames and removals in a directory durable.
///
/// # Errors
/// When it can't be opened or synced.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn regular(metadata: &Metadata) -> Result<(), ReadError> {
    let file_type = metadata.file_type();
    if file_type.is_file() { Ok(()) } else { Err(ReadError::NotRegular(describe(file_type))) }
}

fn describe(file_type: FileType) -> &'static str {
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_fifo() {
        "a FIFO"
    } else if file_type.is_socket() {
        "a socket"
    } else if file_type.is_char_device() || file_type.is_block_device() {
        "a device"
    } else {
        "something unknown"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use std::os::unix::net::UnixListener;

    fn refused(path: &Path) -> String {
        read_regular(path, 10).unwrap_err().to_string()
    }

    #[test]
    fn a_pipe_without_a_name_is_opened_and_a_fifo_is_not() {
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"piped").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let mut text = String::new();
        open_regular_or_pipe(Path::new(&path)).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "piped");
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let refused = open_regular_or_pipe(&fifo).unwrap_err().to_string();
        assert_eq!(refused, "it is a FIFO, not a regular file");
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "0123456789").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(read_regular(&file, 10).unwrap(), b"0123456789");
        assert_eq!(read_regular(&link, 10).unwrap(), b"0123456789");
        assert!(matches!(read_regular(&file, 9), Err(ReadError::TooLarge { limit: 9 })));
    }

    #[test]
    fn a_file_without_a_length_is_bounded_too() {
        let path = Path::new("/proc/self/smaps");
        assert!(matches!(read_regular(path, 100), Err(ReadError::TooLarge { limit: 100 })));
        assert!(!read_regular(Path::new("/proc/self/stat"), 10_000).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, socket) = (dir.path().join("fifo"), dir.path().join("socket"));
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(refused(&fifo), "it is a FIFO, not a regular file");
        assert_eq!(refused(&socket), "it is a socket, not a regular file");
        assert_eq!(refused(dir.path()), "it is a directory, not a regular file");
        assert_eq!(refused(Path::new("/dev/zero")), "it is a device, not a regular file");
    }

    #[test]
    fn a_missing_file_is_told_apart() {
        let missing = read_regular(Path::new("/nonexistent/file"), 10).unwrap_err();
        assert!(missing.is_not_found(), "{missing}");
        assert_eq!(io::Error::from(missing).kind(), io::ErrorKind::NotFound);
    }
}
