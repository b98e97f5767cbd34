//! Lists the directory and reads what is new in it. Blocking file work, all of it here.
//!
//! The directory is opened once per look and everything in it is reached through that descriptor,
//! so that a directory that is swapped in the middle is not seen half and half. A file that did not
//! change is not read again; one whose bytes did not change is not decoded again, nor one with the
//! bytes that an earlier run of the agent has decoded.

use super::{
    core::{Budget, EntryLook, Identity, Listed, Listing, ParsedFile, SETTLING, SourcePlace},
    names::why_skipped,
    reader::Reader,
};
use crate::{
    document::READING,
    manifest::MAX_TEXT_BYTES,
    model::{DesiredPod, Now, Order as _, Position, Problem, hex},
};
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::stat::{FileStat, Mode, SFlag, fstat, fstatat},
};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

/// Largest manifest, in bytes.
const MAX_FILE_BYTES: u64 = MAX_TEXT_BYTES as u64;
/// Most entries of a directory, of any kind. One with more is not taken for a directory of
/// manifests (`/tmp`, a spool): pods that run keep running, and nothing of it is read.
const MAX_ENTRIES: usize = 1000;
/// A file that did not change for this long is written, without a second look. By its ctime, which
/// can't be set, on the wall clock; where that runs backwards, a second look decides.
const AGED: Duration = Duration::from_millis(200);

/// Why a directory can't be listed.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("{} cannot be read: {}", .0.display(), .1.desc())]
    Unreadable(PathBuf, Errno),
    #[error("{} has more than {MAX_ENTRIES} entries: none is read until some are removed", .0.display())]
    TooMany(PathBuf),
}

/// The files of one directory, or the one file.
#[derive(Debug)]
pub(super) struct Lister {
    path: PathBuf,
    /// The path was a file, not a directory, at the last look.
    single: bool,
    reader: Reader,
    seen: BTreeMap<Box<str>, Seen>,
    /// [`State::read_before`], of the files that were not read yet.
    ///
    /// [`State::read_before`]: super::core::State::read_before
    read_before: BTreeMap<Box<str>, Arc<ParsedFile>>,
}

/// One look at the directory.
#[derive(Debug)]
struct Looking<'a> {
    directory: &'a OwnedFd,
    known: &'a LookContext,
    now: Now,
    budget: Budget,
}

/// What a look depends on besides the files.
#[derive(Debug)]
pub(super) struct LookContext {
    /// The last directory that had manifests: tells a file that was removed from a directory that
    /// vanished.
    pub(super) home: Option<Identity>,
    /// What is accepted now.
    pub(super) accepted: Vec<Arc<DesiredPod>>,
    /// Names that were closed by their writer, or moved here, since they last changed.
    pub(super) closed: BTreeSet<Box<str>>,
    /// Names that a writer has open. They are not read, however long the writer pauses.
    pub(super) open: BTreeSet<Box<str>>,
}

/// One file as it was seen last.
#[derive(Debug)]
struct Seen {
    stamp: Stamp,
    /// Boot time of the first look with this stamp.
    since: Duration,
    /// What was read last, maybe at an earlier stamp.
    read: Option<LastRead>,
}

#[derive(Clone, Debug)]
struct LastRead {
    stamp: Stamp,
    digest: Arc<str>,
    look: EntryLook,
}

/// What changes when a file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    mtime: (i64, i64),
    ctime: (i64, i64),
    /// Permission bits.
    mode: u32,
}

impl Stamp {
    fn of(stat: &FileStat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            mtime: (stat.st_mtime, stat.st_mtime_nsec),
            ctime: (stat.st_ctime, stat.st_ctime_nsec),
            mode: stat.st_mode & 0o777,
        }
    }

    /// Whether it did not change for a while, by the wall clock.
    fn is_aged(&self, now: Now) -> bool {
        let changed = self.mtime.max(self.ctime);
        i32::try_from(changed.1)
            .ok()
            .and_then(|nanos| jiff::Timestamp::new(changed.0, nanos).ok())
            .is_some_and(|changed| now.age_of(changed) >= AGED)
    }
}

impl Lister {
    pub(super) fn new(
        path: PathBuf,
        reader: Reader,
        read_before: BTreeMap<Box<str>, Arc<ParsedFile>>,
    ) -> Self {
        Self { path, single: false, reader, seen: BTreeMap::new(), read_before }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn look(&mut self, known: &LookContext, now: Now) -> Listing {
        match self.try_look(known, now) {
            Ok(listing) => listing,
            Err(why) => Listing { place: SourcePlace::Away(why.to_string()), files: Vec::new() },
        }
    }

    /// Takes back what was read of files that turn out to have been written to meanwhile.
    pub(super) fn unsettle(&mut self, listing: &mut Listing, names: &BTreeSet<Box<str>>, now: Now) {
        for file in listing.files.iter_mut().filter(|file| names.contains(&file.name)) {
            if let (EntryLook::Read(_) | EntryLook::Unread(_), Some(seen)) =
                (&file.look, self.seen.get_mut(&file.name))
                && seen.since == now.boot
            {
                seen.read = None;
                file.look = EntryLook::Settling;
            }
        }
    }

    fn try_look(&mut self, known: &LookContext, now: Now) -> Result<Listing, ListError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let opened = nix::fcntl::open(&self.path, flags, Mode::empty());
        let was_file = known.home.is_some_and(|home| home.single_file);
        let (directory, only) = match opened {
            Ok(directory) => (directory, None),
            Err(Errno::ENOENT) if !was_file => {
                return Err(ListError::Missing(self.path.clone()));
            }
            Err(Errno::ENOTDIR | Errno::ENOENT) => {
                let parent = self.path.parent().unwrap_or(Path::new("/"));
                let name = self.path.file_name().unwrap_or_default().to_string_lossy();
                let directory = nix::fcntl::open(parent, flags, Mode::empty())
                    .map_err(|error| unreadable(parent, error))?;
                (directory, Some(name.into_owned()))
            }
            Err(error) => return Err(unreadable(&self.path, error)),
        };
        self.single = only.is_some();
        let place =
            identity(&directory, self.single).map_err(|error| unreadable(&self.path, error))?;
        let mut files = Vec::new();
        let mut look = Looking { directory: &directory, known, now, budget: Budget::new() };
        if let Some(name) = only {
            let stat = fstatat(&directory, &*name, AtFlags::empty());
            let is_link = || fstatat(&directory, &*name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
            if stat != Err(Errno::ENOENT) || is_link() {
                files.push(self.entry(&mut look, &name, stat));
            }
        } else {
            let mut names = names(&directory).map_err(|error| unreadable(&self.path, error))?;
            if names.len() > MAX_ENTRIES {
                return Err(ListError::TooMany(self.path.clone()));
            }
            names.sort_unstable();
            for name in names {
                match name.into_string() {
                    Ok(name) => files.extend(self.in_directory(&mut look, &name)),
                    Err(bad) => files.push(not_utf8(&self.path, bad.into_cstring().to_bytes())),
                }
            }
        }
        files.order_by(|a, b| a.name.cmp(&b.name));
        self.seen.retain(|name, _| files.binary_search_by(|f| f.name.cmp(name)).is_ok());
        self.read_before.retain(|location, _| {
            files.iter().any(|file| file.look == EntryLook::Settling && file.location == *location)
        });
        Ok(Listing { place: SourcePlace::Here(place), files })
    }

    /// One entry of a directory; `None` when it vanished since it was listed.
    fn in_directory(&mut self, look: &mut Looking<'_>, name: &str) -> Option<Listed> {
        if let Some(why) = why_skipped(name) {
            let look = EntryLook::Skipped { reason: why.to_owned(), manifest_name: false };
            return Some(self.listed(name, look));
        }
        let stat = fstatat(look.directory, name, AtFlags::empty());
        if stat == Err(Errno::ENOENT)
            && fstatat(look.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_err()
        {
            return None;
        }
        Some(self.entry(look, name, stat))
    }

    /// A file with a manifest's name, or the one file whatever its name.
    fn entry(&mut self, look: &mut Looking<'_>, name: &str, stat: nix::Result<FileStat>) -> Listed {
        let look = match stat {
            Ok(stat) => match what_it_is(&stat) {
                None => self.within_budget(look, name, Stamp::of(&stat)),
                Some(what) => EntryLook::Skipped { reason: what.to_owned(), manifest_name: true },
            },
            Err(Errno::ENOENT) => EntryLook::Unread(problem("a link to nothing".to_owned())),
            Err(error) => EntryLook::Unread(problem(format!("cannot be read: {}", error.desc()))),
        };
        self.listed(name, look)
    }

    fn listed(&self, name: &str, look: EntryLook) -> Listed {
        Listed { name: name.into(), location: self.location(name).into(), look }
    }

    fn location(&self, name: &str) -> String {
        let path = if self.single { &self.path } else { &self.path.join(name) };
        path.to_string_lossy().into_owned()
    }

    /// What a regular file says, where the files before it leave room for it. Of one without room
    /// nothing is kept.
    fn within_budget(&mut self, look: &mut Looking<'_>, name: &str, stamp: Stamp) -> EntryLook {
        let size = u64::try_from(stamp.size).unwrap_or(u64::MAX);
        let found = look.budget.take_text(size).then(|| self.settled(look, name, stamp));
        match found {
            Some(found) if look.budget.take_look(&found) => found,
            Some(_) | None => {
                self.seen.remove(name);
                EntryLook::Unread(problem(Budget::exhausted()))
            }
        }
    }

    /// What a regular file says, once it is written.
    fn settled(&mut self, look: &Looking<'_>, name: &str, stamp: Stamp) -> EntryLook {
        let Looking { directory, known, now, .. } = *look;
        let before = self.seen.remove(name);
        let since = before.as_ref().filter(|seen| seen.stamp == stamp).map(|seen| seen.since);
        let last = before.and_then(|seen| seen.read);
        let (look, since, read) = match last {
            // A file that was closed after it was written is read in any case: two writes within one
            // tick of the clock of files may leave the same stamp.
            Some(last) if last.stamp == stamp && !known.closed.contains(name) => {
                (last.look.clone(), since.unwrap_or(now.boot), Some(last))
            }
            last => {
                let since = since.unwrap_or(now.boot);
                let holds = now.boot.saturating_sub(since) >= SETTLING || stamp.is_aged(now);
                if known.closed.contains(name) || (holds && !known.open.contains(name)) {
                    let text = read_file(directory, name, stamp);
                    let (look, read) = match text {
                        Ok(None) => (EntryLook::Settling, last),
                        Err(error) => {
                            (EntryLook::Unread(problem(format!("cannot be read: {error}"))), last)
                        }
                        Ok(Some(text)) => {
                            let digest = digest_of(&text);
                            let look = match last {
                                // A warning depends on the permissions.
                                Some(last)
                                    if last.digest == digest && last.stamp.mode == stamp.mode =>
                                {
                                    last.look
                                }
                                Some(_) | None => {
                                    self.decode(name, (&text, &digest), stamp, known, now)
                                }
                            };
                            (look.clone(), Some(LastRead { stamp, digest, look }))
                        }
                    };
                    (look, now.boot, read)
                } else {
                    (EntryLook::Settling, since, last)
                }
            }
        };
        self.seen.insert(name.into(), Seen { stamp, since, read });
        look
    }

    fn decode(
        &mut self,
        name: &str,
        (text, digest): (&[u8], &Arc<str>),
        stamp: Stamp,
        known: &LookContext,
        now: Now,
    ) -> EntryLook {
        let (location, mode) = (self.location(name), Some(stamp.mode));
        let digest = Some(Arc::clone(digest));
        let before = self.read_before.remove(&*location);
        if let Some(parsed) = before.filter(|parsed| parsed.digest == digest) {
            return EntryLook::Read(parsed);
        }
        match self.reader.read(text, &location, &known.accepted, now.wall, mode) {
            Ok(reading) => EntryLook::Read(Arc::new(ParsedFile { digest, ..reading })),
            Err(problem) => EntryLook::Unread(problem),
        }
    }
}

/// Digest of a text and of how it is read: 32 lowercase hex digits.
fn digest_of(text: &[u8]) -> Arc<str> {
    let version = concat!(env!("CARGO_PKG_VERSION"), "\n");
    let digest = Sha256::new()
        .chain_update(version)
        .chain_update(READING)
        .chain_update("\n")
        .chain_update(text);
    hex(&digest.finalize()[..16]).into()
}

/// Why it is not opened; `None` for a regular file of a bearable size.
fn what_it_is(stat: &FileStat) -> Option<&'static str> {
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => None,
        SFlag::S_IFDIR => Some("a directory"),
        SFlag::S_IFIFO => Some("a named pipe"),
        SFlag::S_IFSOCK => Some("a socket"),
        _ => Some("a device"),
    }
}

/// The bytes of a file; `None` when it is no longer what it was, or changes while it is read.
fn read_file(directory: &OwnedFd, name: &str, stamp: Stamp) -> io::Result<Option<Vec<u8>>> {
    // O_NONBLOCK: a pipe that took the place of the file since it was looked at must not hang us.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut file = match openat(directory, name, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::ENOENT) => return Ok(None),
        Err(error) => return Err(io::Error::other(error.desc())),
    };
    if Stamp::of(&fstat(&file)?) != stamp {
        return Ok(None);
    }
    if u64::try_from(stamp.size).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("larger than {} MiB", MAX_TEXT_BYTES >> 20)));
    }
    let mut text = Vec::with_capacity(usize::try_from(stamp.size).unwrap_or(0));
    (&mut file).take(MAX_FILE_BYTES).read_to_end(&mut text)?;
    Ok((Stamp::of(&fstat(&file)?) == stamp).then_some(text))
}

fn identity(directory: &OwnedFd, single_file: bool) -> nix::Result<Identity> {
    let stat = fstat(directory)?;
    let born = directory
        .try_clone()
        .and_then(|fd| File::from(fd).metadata()?.created())
        .ok()
        .and_then(|born| born.duration_since(UNIX_EPOCH).ok())
        .and_then(|born| i64::try_from(born.as_nanos()).ok());
    Ok(Identity { device: stat.st_dev, inode: stat.st_ino, born, single_file })
}

/// Every entry but `.` and `..`; at most one more than may be there. An error in the middle fails
/// the whole: half a listing would remove pods.
fn names(directory: &OwnedFd) -> nix::Result<Vec<CString>> {
    let copy = directory.try_clone().map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(copy)?.iter() {
        if names.len() > MAX_ENTRIES {
            break;
        }
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

fn not_utf8(directory: &Path, name: &[u8]) -> Listed {
    let name = String::from_utf8_lossy(name).into_owned();
    Listed {
        location: directory.join(&name).to_string_lossy().into(),
        name: name.into(),
        look: EntryLook::Skipped {
            reason: "its name is not UTF-8".to_owned(),
            manifest_name: false,
        },
    }
}

fn unreadable(path: &Path, error: Errno) -> ListError {
    ListError::Unreadable(path.to_owned(), error)
}

pub(super) fn problem(message: String) -> Problem {
    Problem { position: Position::default(), path: String::new(), message }
}
