//! How much lies below a directory: what `du` counts.
//!
//! Allocated blocks and inodes; each hard-linked file once; no other mount below; no symbolic link
//! followed. Containers write there while it is walked, and may try to lead the walk astray or to
//! make it last. Every directory is opened from its parent. The first [`SHALLOW`] and the last
//! [`RECENT`] directories on the way down are open; one between them is opened again through `..`
//! of the directory below it, and only used when it is still the same directory. A walk has a time
//! budget. What it has counted by then is a lower bound ([`Tree::whole`] is false), as it is where
//! something could not be looked at.

use super::core::NoReading;
use crate::model::Space;
use nix::{
    dir::{Dir, OwningIter},
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::{
        stat::{FileStat, Mode, SFlag, fstat, fstatat, stat},
        statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs},
        statvfs::statvfs,
    },
    unistd::{Whence, dup, lseek},
};
use std::{
    collections::{BTreeMap, HashSet},
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};
use thiserror::Error;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};

/// Directories next to the top that stay open until they are finished: a walk that has lost its way
/// goes on there.
const SHALLOW: usize = 16;
/// Directories next to the deepest one that are open. A directory between these and the shallow
/// ones is closed.
const RECENT: usize = 16;
/// Directories below each other. What lies deeper is not counted.
const DEEPEST: usize = 50_000;
/// Files with several names that are remembered. Of more than these each name counts as its share.
const REMEMBERED: usize = 100_000;
/// Directories below the top one whose own sum is kept.
const BRANCHES: usize = 1000;
/// `st_blocks` counts these, whatever the file system's blocks are.
const SECTOR: u64 = 512;
/// Parts of an inode, for files whose names count as shares.
const INODE: u64 = 1 << 20;
/// How long after its time budget a walk may take to return what it has counted. A walk that takes
/// longer hangs.
const GRACE: Duration = Duration::from_millis(500);
const STACK: usize = 256 << 10;

/// Why it is not known how much lies there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WalkError {
    /// It can't be looked at.
    #[error(transparent)]
    Unreadable(#[from] NoReading),
    /// It hangs, or no thread was free for it.
    #[error("it could not be measured within {0:?}")]
    Late(Duration),
}

/// What lies below a directory, it itself included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    /// What was counted.
    pub(super) all: Space,
    /// The same for each directory in it, of a thousand at most.
    pub(super) branches: BTreeMap<OsString, Space>,
    /// Everything was counted. Otherwise there may be more.
    pub(super) whole: bool,
    /// It is an emptyDir on tmpfs or huge pages.
    pub(super) in_memory: bool,
}

impl Tree {
    /// What lies in a directory of it; nothing where there is none.
    pub(super) fn branch(&self, name: &str) -> Space {
        self.branches.get(OsStr::new(name)).copied().unwrap_or_default()
    }
}

/// Turns for walks, shared by all.
pub(super) type Turns = Arc<Semaphore>;

/// A turn. It is over when its owner has dropped it and all work that was begun with it has ended.
#[derive(Debug)]
pub(super) struct Turn {
    permit: Arc<OwnedSemaphorePermit>,
    /// The thread that works. It ends when the turn is dropped; one that hangs is abandoned.
    thread: Mutex<Option<mpsc::Sender<Work>>>,
}

/// Work for the thread of a turn.
type Work = Box<dyn FnOnce() + Send>;

impl Turn {
    /// Begins work, on the thread that has done what was begun before.
    fn begin(&self, work: Work) -> io::Result<()> {
        let mut thread = self.thread();
        let kept = match thread.take() {
            Some(kept) => kept,
            None => working_thread()?,
        };
        kept.send(work).map_err(|_| io::Error::other("its thread has crashed"))?;
        *thread = Some(kept);
        Ok(())
    }

    /// Has what is begun next done by another thread.
    fn leave_thread(&self) {
        self.thread().take();
    }

    fn thread(&self) -> MutexGuard<'_, Option<mpsc::Sender<Work>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that works until its sender is gone.
fn working_thread() -> io::Result<mpsc::Sender<Work>> {
    let (sender, works) = mpsc::channel::<Work>();
    let thread = thread::Builder::new().name("walk".to_owned()).stack_size(STACK);
    thread.spawn(move || works.into_iter().for_each(|work| work()))?;
    Ok(sender)
}

/// Waits for a turn.
///
/// # Errors
/// When it does not come `within` this time.
pub(super) async fn turn(turns: &Turns, within: Duration) -> Result<Turn, WalkError> {
    let turn = tokio::time::timeout(within, Arc::clone(turns).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else { return Err(WalkError::Late(within)) };
    Ok(Turn { permit: Arc::new(turn), thread: Mutex::default() })
}

/// How much lies below a directory, without what lies in those directly below it whose names are in
/// `skipped`: all of it, or what was counted `within` this time.
///
/// Cancel-safe: the walk ends soon after.
pub(super) async fn walk(
    turn: &Turn,
    directory: &Path,
    skipped: &'static [&'static str],
    within: Duration,
) -> Result<Tree, WalkError> {
    let here = directory.to_owned();
    let until = Instant::now() + within;
    let work = move |asker: &mut Asker<Tree>| Walk::new(asker, skipped, until).run(&here);
    on_thread(turn, directory, within.saturating_add(GRACE), work).await
}

/// What files take that the runtime or the agent has made and a container can write to. A file that
/// is gone, or is no file, counts as nothing.
pub(super) async fn files(
    turn: &Turn,
    paths: &[std::path::PathBuf],
    within: Duration,
) -> Result<Space, WalkError> {
    let Some(first) = paths.first() else { return Ok(Space::default()) };
    let all = paths.to_vec();
    on_thread(turn, first, within, move |_| {
        let found = all.iter().filter_map(|path| nix::sys::stat::lstat(path).ok());
        let files = found.filter(|stat| kind(stat) == SFlag::S_IFREG);
        Ok(files.map(|stat| taken(&stat)).fold(Space::default(), |a, b| a + b))
    })
    .await
}

/// How much lies in an emptyDir. One on tmpfs or huge pages has a file system of its own, which is
/// asked. That an emptyDir `is_due_in_memory` is what its pod says, and one that was set up there
/// before an edit of the pod stays there.
///
/// Cancel-safe: a walk ends soon after.
pub(super) async fn empty_dir(
    turn: &Turn,
    directory: &Path,
    is_due_in_memory: bool,
    within: Duration,
) -> Result<Tree, WalkError> {
    let here = directory.to_owned();
    let until = Instant::now() + within;
    let work = move |asker: &mut Asker<Tree>| {
        if is_mounted_in_memory(&here)? {
            let all = used_of_file_system(&here)?;
            Ok(Tree { all, in_memory: true, whole: true, ..Tree::default() })
        } else if is_due_in_memory {
            Err(super::absurd(&here, "nothing is mounted there").into())
        } else {
            Walk::new(asker, &[], until).run(&here)
        }
    };
    on_thread(turn, directory, within.saturating_add(GRACE), work).await
}

/// Whether a file system without a disk is mounted at this directory, not above it.
fn is_mounted_in_memory(directory: &Path) -> Result<bool, NoReading> {
    let failed = |errno: Errno| super::unreadable(directory, &errno.into());
    let device = |path: &Path| stat(path).map(|found| found.st_dev).map_err(failed);
    let kind = statfs(directory).map_err(failed)?.filesystem_type();
    Ok([TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&kind)
        && device(directory)? != device(&directory.join(".."))?)
}

fn used_of_file_system(directory: &Path) -> Result<Space, NoReading> {
    let found = statvfs(directory).map_err(|errno| super::unreadable(directory, &errno.into()))?;
    let blocks = found.blocks().saturating_sub(found.blocks_free());
    Ok(Space {
        bytes: blocks.saturating_mul(found.fragment_size()),
        inodes: found.files().saturating_sub(found.files_free()),
    })
}

/// Works on the thread of a turn. It may hang for as long as the file system does: the turn is
/// taken for that long, and its owner goes on with another thread.
///
/// Cancel-safe: the work ends soon after, and what the turn's owner begins next waits for that.
pub(super) async fn on_thread<T: Send + 'static>(
    turn: &Turn,
    directory: &Path,
    within: Duration,
    work: impl FnOnce(&mut Asker<T>) -> Result<T, WalkError> + Send + 'static,
) -> Result<T, WalkError> {
    let permit = Arc::clone(&turn.permit);
    let (mut sender, answer) = oneshot::channel();
    let run = move || {
        let worked = work(&mut sender);
        // Before the answer: the next turn may begin as soon as it is there.
        drop(permit);
        // Whoever asked may have stopped waiting.
        drop(sender.send(worked));
    };
    let failed = |error| WalkError::Unreadable(super::unreadable(directory, &error));
    turn.begin(Box::new(run)).map_err(failed)?;
    let why = match tokio::time::timeout(within, answer).await {
        Ok(Ok(worked)) => return worked,
        Ok(Err(_)) => failed(io::Error::other("measuring it has crashed")),
        Err(_) => WalkError::Late(within),
    };
    turn.leave_thread();
    Err(why)
}

/// Takes the result, and knows when its receiver is gone.
pub(super) type Asker<T> = oneshot::Sender<Result<T, WalkError>>;

/// One walk.
struct Walk<'a> {
    asker: &'a mut Asker<Tree>,
    skipped: &'static [&'static str],
    until: Instant,
    device: u64,
    seen: HashSet<u64>,
    /// Shares of inodes with more names than are remembered, in parts of [`INODE`].
    shares: u64,
    tree: Tree,
}

/// A directory on the way down.
enum Level {
    Open(Open),
    Closed(Closed),
}

/// A directory that is open, and the entries of it that are still to come.
struct Open {
    directory: OwnedFd,
    entries: OwningIter,
    inode: u64,
    /// Where in the directory the entries begin that were read with the last one, and where they
    /// end.
    begin: i64,
    end: i64,
    /// Entries from there on that were given.
    given: u32,
}

/// What is needed to go on with a directory that was closed.
#[derive(Clone, Copy)]
struct Closed {
    inode: u64,
    begin: i64,
    given: u32,
}

impl Open {
    /// The directory is to be on `device`, if that is given; `ENOENT` where it is not.
    fn new(directory: OwnedFd, device: Option<u64>) -> nix::Result<(Self, FileStat)> {
        let stat = fstat(&directory)?;
        if device.is_some_and(|device| device != stat.st_dev) {
            return Err(Errno::ENOENT);
        }
        // Both share one position.
        let entries = Dir::from_fd(dup(&directory)?)?.into_iter();
        let (inode, begin, end, given) = (stat.st_ino, 0, 0, 0);
        Ok((Self { directory, entries, inode, begin, end, given }, stat))
    }

    /// One below a directory that others may change. Another mount is not entered.
    fn below(&self, name: &OsStr, device: u64) -> nix::Result<Self> {
        let flags = flags() | OFlag::O_NOFOLLOW;
        let resolve = ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS;
        let how = OpenHow::new().flags(flags).resolve(resolve);
        let opened = match openat2(&self.directory, name, how) {
            // Linux 5.5 and older.
            Err(Errno::ENOSYS) => openat(&self.directory, name, flags, Mode::empty()),
            opened => opened,
        };
        Ok(Self::new(opened?, Some(device))?.0)
    }

    /// The directory above this one, which was `closed`; `None` where another one is there now.
    fn above(&self, closed: Closed, device: u64) -> Option<Self> {
        let directory = openat(&self.directory, "..", flags(), Mode::empty()).ok()?;
        let (mut above, stat) = Self::new(directory, Some(device)).ok()?;
        if stat.st_ino != closed.inode {
            return None;
        }
        lseek(&above.directory, closed.begin, Whence::SeekSet).ok()?;
        (above.begin, above.end) = (closed.begin, closed.begin);
        for _ in 0..closed.given {
            above.entry();
        }
        Some(above)
    }

    fn closed(&self) -> Closed {
        Closed { inode: self.inode, begin: self.begin, given: self.given }
    }

    /// The next name in it.
    fn next(&mut self) -> Option<nix::Result<OsString>> {
        loop {
            match self.entry()? {
                Ok(name) if name == "." || name == ".." => {}
                entry => return Some(entry),
            }
        }
    }

    fn entry(&mut self) -> Option<nix::Result<OsString>> {
        let entry = self.entries.next()?;
        // Many entries are read at once: the position of the directory is behind the last of them.
        match lseek(&self.directory, 0, Whence::SeekCur) {
            Ok(position) if position == self.end => {}
            Ok(position) => (self.begin, self.end, self.given) = (self.end, position, 0),
            Err(errno) => return Some(Err(errno)),
        }
        self.given += 1;
        Some(entry.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()))
    }
}

fn flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC
}

/// Whether an entry that can't be looked at is gone, or something else than before.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV)
}

impl<'a> Walk<'a> {
    fn new(asker: &'a mut Asker<Tree>, skipped: &'static [&'static str], until: Instant) -> Self {
        let tree = Tree { whole: true, ..Tree::default() };
        let seen = HashSet::new();
        Self { asker, skipped, until, device: 0, seen, shares: 0, tree }
    }

    fn run(mut self, path: &Path) -> Result<Tree, WalkError> {
        let failed = |errno: Errno| WalkError::Unreadable(super::unreadable(path, &errno.into()));
        // The path to it is ours.
        let top = openat(AT_FDCWD, path, flags(), Mode::empty()).map_err(failed)?;
        let (top, stat) = Open::new(top, None).map_err(failed)?;
        self.device = stat.st_dev;
        self.count(&stat, None);
        self.descend(top);
        self.tree.all.inodes = self.tree.all.inodes.saturating_add(self.shares / INODE);
        Ok(self.tree)
    }

    /// Counts everything below a directory, until the time is over.
    fn descend(&mut self, top: Open) {
        let mut levels = vec![Level::Open(top)];
        // The directory in the top one that the walk is in.
        let mut branch: Option<OsString> = None;
        loop {
            if self.is_over() {
                self.tree.whole = false;
                return;
            }
            let depth = levels.len();
            let Some(Level::Open(level)) = levels.last_mut() else { return };
            let name = match level.next() {
                Some(Ok(name)) => name,
                ended => {
                    self.tree.whole &= ended.is_none();
                    self.ascend(&mut levels);
                    continue;
                }
            };
            if depth == 1 && self.skipped.iter().any(|skipped| name == *skipped) {
                continue;
            }
            let stat = fstatat(&level.directory, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
            let stat = match stat {
                Ok(stat) if stat.st_dev == self.device => stat,
                Ok(_) => continue,
                Err(errno) => {
                    self.tree.whole &= is_gone(errno);
                    continue;
                }
            };
            let is_directory = kind(&stat) == SFlag::S_IFDIR;
            if depth == 1 {
                branch = is_directory.then(|| name.clone());
            }
            self.count(&stat, branch.as_deref());
            if !is_directory {
                continue;
            }
            if depth >= DEEPEST {
                self.tree.whole = false;
                continue;
            }
            match level.below(&name, self.device) {
                Ok(next) => {
                    levels.push(Level::Open(next));
                    close_between(&mut levels);
                }
                Err(errno) => self.tree.whole &= is_gone(errno),
            }
        }
    }

    /// Goes up from a directory that is finished. Where the one above it was closed and can't be
    /// opened again, the walk goes on next to the top.
    fn ascend(&mut self, levels: &mut Vec<Level>) {
        let finished = levels.pop();
        let (Some(Level::Open(finished)), Some(Level::Closed(closed))) = (finished, levels.last())
        else {
            return;
        };
        match finished.above(*closed, self.device) {
            Some(above) => {
                levels.pop();
                levels.push(Level::Open(above));
            }
            None => {
                self.tree.whole = false;
                levels.truncate(SHALLOW);
            }
        }
    }

    fn count(&mut self, stat: &FileStat, branch: Option<&OsStr>) {
        let whole = taken(stat);
        #[allow(clippy::useless_conversion, reason = "it is an u32 on aarch64")]
        let links = u64::from(stat.st_nlink);
        let space = match links {
            _ if links < 2 || kind(stat) == SFlag::S_IFDIR => whole,
            _ if self.seen.contains(&stat.st_ino) => return,
            _ if self.seen.len() >= REMEMBERED => {
                self.shares = self.shares.saturating_add(INODE.div_ceil(links));
                Space { bytes: whole.bytes / links, inodes: 0 }
            }
            _ => {
                self.seen.insert(stat.st_ino);
                whole
            }
        };
        self.tree.all = self.tree.all + space;
        let Some(branch) = branch else { return };
        if let Some(sum) = self.tree.branches.get_mut(branch) {
            *sum = *sum + space;
        } else if self.tree.branches.len() < BRANCHES {
            self.tree.branches.insert(branch.to_owned(), space);
        }
    }

    /// True when the time is over or the receiver of the result is gone.
    fn is_over(&self) -> bool {
        Instant::now() >= self.until || self.asker.is_closed()
    }
}

/// Closes the directory that is neither among the shallow ones nor among the recent ones any more.
fn close_between(levels: &mut [Level]) {
    let Some(nth) = levels.len().checked_sub(RECENT + 1).filter(|nth| *nth >= SHALLOW) else {
        return;
    };
    if let Level::Open(open) = &levels[nth] {
        levels[nth] = Level::Closed(open.closed());
    }
}

/// What a file or directory takes.
fn taken(stat: &FileStat) -> Space {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    Space { bytes: blocks.saturating_mul(SECTOR), inodes: 1 }
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}
