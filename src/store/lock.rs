//! Kernel locks on directories: one agent for each root directory and for each run directory.
//!
//! The lock is on the directory itself, not only on a file in it: it holds when everything in the
//! directory is deleted. It ends with the process, however that ends, and children don't inherit it
//! (the file descriptor is close-on-exec). A directory that was deleted or replaced as a whole is
//! locked anew by [`DirLock::follow`]; when another agent was faster, this one has to stop.

use super::StoreError;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// Tries at start: 2 s together.
const TRIES: u32 = 100;

/// Why a lock can't be had.
#[derive(Debug)]
enum LockFailure {
    Held,
    Io(io::Error),
}

/// A locked directory, or a locked file.
#[derive(Debug)]
pub(super) struct DirLock {
    path: PathBuf,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Locked(Flock<File>),
    /// Its file system has no locks on directories (NFS): the lock file in it has to do.
    Unlocked(File),
}

impl Held {
    fn file(&self) -> &File {
        match self {
            Self::Locked(lock) => lock,
            Self::Unlocked(file) => file,
        }
    }
}

/// How long to wait for the end of another holder.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// 2 s: a process that was killed may hold the lock for a moment. Blocks the thread.
    AtStart,
    /// Not at all.
    None,
}

impl Patience {
    fn tries(self) -> u32 {
        match self {
            Self::AtStart => TRIES,
            Self::None => 1,
        }
    }
}

impl DirLock {
    /// Locks a directory. `None` when another process holds the lock as long as that.
    pub(super) fn of_dir(path: &Path, patience: Patience) -> Result<Option<Self>, StoreError> {
        Self::take(path, patience, || File::open(path))
    }

    /// Locks a file, which is made where it is missing.
    pub(super) fn of_file(path: &Path, patience: Patience) -> Result<Option<Self>, StoreError> {
        Self::take(path, patience, || open_file(path))
    }

    fn take(
        path: &Path,
        patience: Patience,
        open: impl Fn() -> io::Result<File>,
    ) -> Result<Option<Self>, StoreError> {
        for last in (0..patience.tries()).rev() {
            match try_lock(&open) {
                Ok(held) => {
                    let lock = Self { path: path.to_owned(), held };
                    // It may have been deleted between opening and locking.
                    if lock.is_in_place() {
                        return Ok(Some(lock));
                    }
                }
                Err(LockFailure::Held) => {}
                Err(LockFailure::Io(source)) => {
                    return Err(StoreError::Io {
                        operation: "lock",
                        path: path.to_owned(),
                        source,
                    });
                }
            }
            if last > 0 {
                wait();
            }
        }
        Ok(None)
    }

    /// Whether the path still leads to what is locked.
    pub(super) fn is_in_place(&self) -> bool {
        match (fs::metadata(&self.path), self.held.file().metadata()) {
            (Ok(found), Ok(locked)) => same(&found, &locked),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }

    /// Whether both locks would be on the same directory.
    pub(super) fn is_on(&self, path: &Path) -> bool {
        match (fs::metadata(path), self.held.file().metadata()) {
            (Ok(found), Ok(locked)) => same(&found, &locked),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }

    /// Writes the holder of the lock into the locked file. The lock does not depend on this text.
    pub(super) fn write(&mut self, text: &str) {
        let mut file = self.held.file();
        if let Err(err) = file.set_len(0).and_then(|()| file.write_all(text.as_bytes())) {
            tracing::warn!(%err, "cannot write the process id to {:?}", self.path);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "at start, before the event loop has work")]
fn wait() {
    thread::sleep(TRY_AGAIN);
}

fn try_lock(open: &impl Fn() -> io::Result<File>) -> Result<Held, LockFailure> {
    let file = open().map_err(LockFailure::Io)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Held::Locked(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Err(LockFailure::Held),
        Err((file, Errno::EBADF | Errno::EOPNOTSUPP | Errno::ENOLCK)) => Ok(Held::Unlocked(file)),
        Err((_, error)) => Err(LockFailure::Io(error.into())),
    }
}

fn same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// On a read-only disk the lock holds without being writable: what runs must be found there, too.
fn open_file(path: &Path) -> io::Result<File> {
    let writable = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    match writable {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        opened => opened,
    }
}

/// The lines of a lock file; none where there is no file.
pub(super) fn holder(path: &Path) -> Vec<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(8192).read_to_string(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    text.lines().map(str::to_owned).collect()
}
