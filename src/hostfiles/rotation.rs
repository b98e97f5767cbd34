//! The files of one container's log when it is rotated: set aside, put back, compressed, removed.
//! Which files those are is decided by [`crate::log_rotation`].

use super::{HostFileError, HostFiles, gzip, io_error, logs::for_each_name};
use crate::{
    beneath,
    log_rotation::files::{
        LAST_FILE_IDLE, NodeLogs, OldFile, SETTLED, SetAside, compressed_name, is_stamp,
        plain_name, stamp_at,
    },
    model::{LogKind, LogName, MOST_LOG_NAMES, PodKey, PodUid},
};
use jiff::Timestamp;
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::stat::{FileStat, Mode, SFlag, UtimensatFlags, fstat, fstatat, utimensat},
    sys::time::TimeSpec,
    unistd::{UnlinkatFlags, unlinkat},
};
use rustix::fs::{RenameFlags, renameat, renameat_with, statat};
use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    time::Duration,
};

/// The most files that a measurement offers for removal.
const MOST_OLD: usize = MOST_LOG_NAMES;
/// The largest file that is compressed, in bytes. One with holes may say any size.
const MOST_COMPRESSED: u64 = 16 << 30;

/// The log of one instance of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace {
    pub key: PodKey,
    pub uid: PodUid,
    pub container: Box<str>,
    pub restart_count: u32,
}

/// What [`HostFiles::tidy_log`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Files that were compressed, or are too large for that.
    pub compressed: usize,
    /// Files that are to be compressed later: they were written to a moment ago.
    pub left: usize,
}

impl LogPlace {
    fn current(&self) -> String {
        format!("{}.log", self.restart_count)
    }
}

/// The log directory of a container, opened.
struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl HostFiles {
    /// The file that the runtime writes.
    ///
    /// # Errors
    /// For names that are no file names.
    pub fn current_log(&self, place: &LogPlace) -> Result<PathBuf, HostFileError> {
        let directory = self.pod_log_dir(&place.key, &place.uid)?.join(&*place.container);
        Ok(directory.join(place.current()))
    }

    /// The size in bytes of the file that the runtime writes; `None` when there is none.
    ///
    /// # Errors
    /// When it can't be looked at, or something that is no file is at its place.
    pub fn log_size(&self, place: &LogPlace) -> Result<Option<u64>, HostFileError> {
        let Some(directory) = self.log_directory(place)? else { return Ok(None) };
        let stat = directory.stat(&place.current())?;
        Ok(stat.map(|stat| u64::try_from(stat.st_size).unwrap_or(0)))
    }

    /// Gives the current file another name, after removing the oldest ones so that `max_files` are
    /// left with the file that the runtime makes next. Returns the stamp of the new name.
    ///
    /// # Errors
    /// When a file can't be removed or renamed; then the current file has kept its name.
    pub fn set_log_aside(
        &self,
        place: &LogPlace,
        max_files: usize,
        now: Timestamp,
    ) -> Result<Option<String>, HostFileError> {
        let Some(directory) = self.log_directory(place)? else { return Ok(None) };
        let set_aside = directory.set_aside(place)?;
        for stamp in set_aside.surplus(max_files.saturating_sub(2)) {
            directory.remove(&plain_name(place.restart_count, stamp))?;
            directory.remove(&compressed_name(place.restart_count, stamp))?;
        }
        let stamp = set_aside.next_stamp(now);
        directory.rename(&place.current(), &plain_name(place.restart_count, &stamp))?;
        Ok(Some(stamp))
    }

    /// Gives a file that was set aside its old name again, unless the runtime has made a new file
    /// in its place.
    ///
    /// # Errors
    /// When it can't be renamed.
    pub fn put_log_back(&self, place: &LogPlace, stamp: &str) -> Result<(), HostFileError> {
        let Some(directory) = self.log_directory(place)? else { return Ok(()) };
        match directory.rename(&plain_name(place.restart_count, stamp), &place.current()) {
            Err(HostFileError::Io { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists =>
            {
                Ok(())
            }
            done => done,
        }
    }

    /// Compresses the files that were set aside, all but the newest and those that were written to
    /// a moment ago, and removes what an agent has left that ended meanwhile.
    ///
    /// # Errors
    /// The first failure, after trying everything.
    pub fn tidy_log(&self, place: &LogPlace, now: Timestamp) -> Result<Tidied, HostFileError> {
        let Some(directory) = self.log_directory(place)? else { return Ok(Tidied::default()) };
        let set_aside = directory.set_aside(place)?;
        let tidying = set_aside.tidying();
        let mut result = Ok(());
        for name in tidying.unfinished {
            result = result.and(directory.remove(name));
        }
        for stamp in tidying.doubled {
            result = result.and(directory.remove(&plain_name(place.restart_count, stamp)));
        }
        let mut tidied = Tidied::default();
        for stamp in tidying.to_compress {
            match directory.compress(place, stamp, now) {
                Ok(true) => tidied.compressed += 1,
                Ok(false) => tidied.left += 1,
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| tidied)
    }

    /// Every log file of these containers: the bytes on disk, and the files that may be removed.
    /// Those are the files that rotations set aside, and the last files of instances that have
    /// ended and were not written to for a while. Each container has the place of its first
    /// instance that may run: the instances before it have ended. Files of other programs beside
    /// the logs count and are never offered for removal. What can't be read is left out, and so are
    /// files beyond a number that no honest node has.
    #[must_use]
    pub fn measure_logs(&self, may_run: &[LogPlace], now: Timestamp) -> NodeLogs<LogPlace> {
        let mut logs = NodeLogs { total: 0, current: 0, ended: 0, old: Vec::new() };
        for first in may_run {
            let Ok(Some(directory)) = self.log_directory(first) else { continue };
            let Ok(names) = directory.names() else { continue };
            for name in names {
                let Some(LogName { restart_count, kind }) = LogName::parse(&name) else { continue };
                let Ok(Some(stat)) = directory.stat(&name) else { continue };
                let (size, place) =
                    (bytes_on_disk(&stat), LogPlace { restart_count, ..first.clone() });
                logs.total = logs.total.saturating_add(size);
                let stamp = match kind {
                    LogKind::SetAside { stamp, .. } => is_stamp(stamp).then(|| stamp.to_owned()),
                    LogKind::Current => {
                        logs.current = logs.current.saturating_add(size);
                        let ended = restart_count < first.restart_count
                            && size > 0
                            && name == place.current();
                        logs.ended += if ended { size } else { 0 };
                        let offered = ended && is_idle(&stat, now, LAST_FILE_IDLE);
                        offered.then(|| stamp_at(written_at(&stat)))
                    }
                    LogKind::Unfinished => None,
                };
                if let Some(stamp) = stamp
                    && logs.old.len() < MOST_OLD
                {
                    let is_last = kind == LogKind::Current;
                    logs.old.push(OldFile { place, stamp, size, is_last });
                }
            }
        }
        logs
    }

    /// Removes a file that [`Self::measure_logs`] has offered; one that was set aside in whatever
    /// form it is there. The last file of an instance is emptied: its name tells the restart count.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn remove_old_log(&self, old: &OldFile<LogPlace>) -> Result<(), HostFileError> {
        let Some(directory) = self.log_directory(&old.place)? else { return Ok(()) };
        if old.is_last {
            return directory.empty(&old.place.current());
        }
        directory.remove(&plain_name(old.place.restart_count, &old.stamp))?;
        directory.remove(&compressed_name(old.place.restart_count, &old.stamp))
    }

    fn log_directory(&self, place: &LogPlace) -> Result<Option<Directory>, HostFileError> {
        let path = self.pod_log_dir(&place.key, &place.uid)?.join(&*place.container);
        let fd = self.open_container_dir(&place.key, &place.uid, &place.container)?;
        Ok(fd.map(|fd| Directory { fd, path }))
    }
}

impl Directory {
    /// The names of log files. A directory with such a name is none: it can't be removed as a file.
    fn names(&self) -> Result<Vec<String>, HostFileError> {
        let mut names = Vec::new();
        for_each_name(&self.fd, &self.path, |name| {
            if names.len() < MOST_LOG_NAMES && LogName::parse(name).is_some() && !self.is_dir(name)
            {
                names.push(name.to_owned());
            }
        })?;
        Ok(names)
    }

    fn is_dir(&self, name: &str) -> bool {
        let stat = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| file_type(&stat) == SFlag::S_IFDIR)
    }

    fn set_aside(&self, place: &LogPlace) -> Result<SetAside, HostFileError> {
        let names = self.names()?;
        Ok(SetAside::of(names.iter().map(String::as_str), place.restart_count))
    }

    /// A regular file; `None` when there is none.
    fn stat(&self, name: &str) -> Result<Option<FileStat>, HostFileError> {
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if file_type(&stat) == SFlag::S_IFREG => Ok(Some(stat)),
            Ok(_) => Err(HostFileError::Suspicious {
                path: self.path.join(name),
                expected: "a regular file",
            }),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look at", name, errno.into())),
        }
    }

    fn remove(&self, name: &str) -> Result<(), HostFileError> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            // A directory is no log file.
            Ok(()) | Err(Errno::ENOENT | Errno::EISDIR) => Ok(()),
            Err(errno) => Err(self.failed("remove", name, errno.into())),
        }
    }

    /// Empties a regular file. It does not wait for a FIFO in its place.
    fn empty(&self, name: &str) -> Result<(), HostFileError> {
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = openat(&self.fd, name, flags, Mode::empty()).map(File::from);
        let emptied =
            opened.map_err(io::Error::from).and_then(|file| match file.metadata()?.is_file() {
                true => file.set_len(0),
                false => Ok(()),
            });
        match emptied {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            emptied => emptied.map_err(|err| self.failed("empty", name, err)),
        }
    }

    /// Replaces nothing.
    fn rename(&self, from: &str, to: &str) -> Result<(), HostFileError> {
        renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE)
            .or_else(|errno| self.rename_without_flag(errno, from, to))
            .map_err(|errno| self.failed("rename", from, errno.into()))
    }

    /// Renames where the file system does not know `NOREPLACE` (NFS, 9p, FUSE), which `refused`
    /// says. A file that appears between the look at `to` and the rename is replaced: such a file
    /// system has no better way.
    fn rename_without_flag(
        &self,
        refused: rustix::io::Errno,
        from: &str,
        to: &str,
    ) -> rustix::io::Result<()> {
        use rustix::io::Errno;
        if refused != Errno::INVAL && refused != Errno::NOSYS {
            return Err(refused);
        }
        match statat(&self.fd, to, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => renameat(&self.fd, from, &self.fd, to),
            Err(errno) => Err(errno),
        }
    }

    /// Replaces a plain file by a compressed one with the same mode and modification time; leaves
    /// one that is very large. False: it was written to a moment ago.
    fn compress(
        &self,
        place: &LogPlace,
        stamp: &str,
        now: Timestamp,
    ) -> Result<bool, HostFileError> {
        let plain = plain_name(place.restart_count, stamp);
        let compressed = compressed_name(place.restart_count, stamp);
        let unfinished = format!("{compressed}.tmp");
        let failed = |source| self.failed("compress", &plain, source);
        let Some(stat) = self.stat(&plain)? else { return Ok(true) };
        if !is_idle(&stat, now, SETTLED) {
            return Ok(false);
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > MOST_COMPRESSED {
            return Ok(true);
        }
        // Something else may have its name by now: a device, which does more than be read.
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = match openat(&self.fd, plain.as_str(), flags, Mode::empty()) {
            Ok(found) => found,
            // A rotation has removed it.
            Err(Errno::ENOENT) => return Ok(true),
            Err(errno) => return Err(failed(errno.into())),
        };
        let opened = fstat(&found).map_err(|errno| failed(errno.into()))?;
        let identity = |stat: &FileStat| (stat.st_dev, stat.st_ino, file_type(stat));
        if identity(&opened) != identity(&stat) {
            return Ok(false);
        }
        // No more than a byte of what is added meanwhile: that tells that it has changed.
        let mut source = beneath::reopen(found.as_fd()).map_err(failed)?.take(size + 1);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(stat.st_mode & 0o777);
        let target = openat(&self.fd, unfinished.as_str(), flags, mode)
            .map_err(|errno| self.failed("create", &unfinished, errno.into()))?;
        let done = deflate(&mut source, File::from(target)).map_err(failed).and_then(|size| {
            // The runtime has written to it after all, or it was removed.
            let unchanged = self.stat(&plain)?.is_some_and(|now| {
                now.st_ino == stat.st_ino && u64::try_from(now.st_size) == Ok(size)
            });
            if !unchanged {
                return Ok(false);
            }
            let times = [(stat.st_atime, stat.st_atime_nsec), (stat.st_mtime, stat.st_mtime_nsec)];
            let [atime, mtime] = times.map(|(s, nanos)| TimeSpec::new(s, nanos));
            let nofollow = UtimensatFlags::NoFollowSymlink;
            utimensat(&self.fd, unfinished.as_str(), &atime, &mtime, nofollow)
                .map_err(|errno| failed(errno.into()))?;
            self.rename(&unfinished, &compressed)?;
            Ok(true)
        });
        match done {
            Ok(true) => self.remove(&plain).map(|()| true),
            Ok(false) => self.remove(&unfinished).map(|()| false),
            Err(error) => {
                // The next attempt removes it, if this fails too.
                drop(self.remove(&unfinished));
                Err(error)
            }
        }
    }

    fn failed(&self, operation: &'static str, name: &str, source: io::Error) -> HostFileError {
        io_error(operation, &self.path.join(name), source)
    }
}

fn file_type(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// What a file takes of the disk, no more than its size: one with holes may say any size. ZFS
/// counts what was just written after some seconds only.
fn bytes_on_disk(stat: &FileStat) -> u64 {
    /// What `st_blocks` counts in, in bytes.
    const BLOCK: i64 = 512;
    let bytes = stat.st_size.min(stat.st_blocks.saturating_mul(BLOCK));
    u64::try_from(bytes).unwrap_or(0)
}

/// Whether nothing was written to a file for this long. After the clock was set back this is not
/// known until the file's time has passed.
fn is_idle(stat: &FileStat, now: Timestamp, period: Duration) -> bool {
    Duration::try_from(now.duration_since(written_at(stat))).is_ok_and(|age| age >= period)
}

/// When a file was written to last.
fn written_at(stat: &FileStat) -> Timestamp {
    Timestamp::from_second(stat.st_mtime).unwrap_or(Timestamp::MAX)
}

/// Writes `source`, compressed, to `target` and to the disk. Returns the size of the source.
fn deflate(source: &mut impl io::Read, mut target: File) -> io::Result<u64> {
    let size = gzip::compress(source, &mut target)?;
    // The plain file goes: the compressed one must be on the disk before.
    target.sync_all()?;
    Ok(size)
}

#[cfg(test)]
mod tests;
