//! How much lies below a directory: what `du` counts.
//!
//! Allocated blocks and inodes; each hard-linked file once; no other file system that is mounted below; no symbolic
//! link followed. Containers write there while it is walked, and may try to lead the walk astray or to make it last:
//! every directory is opened from its parent, descriptors and memory are bounded, and it ends when nobody waits for
//! it any more.

use super::core::NoReading;
use crate::model::Space;
use nix::{
    dir::{Dir, OwningIter},
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, openat},
    sys::{
        stat::{FileStat, Mode, SFlag, fstat, fstatat, stat},
        statvfs::statvfs,
    },
    unistd::dup,
};
use std::{
    collections::{BTreeMap, HashSet},
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};
use thiserror::Error;
use tokio::sync::{Semaphore, oneshot};

/// Directories held open at a time by one walk. What lies deeper is walked after the rest, from the top.
const DEPTH: usize = 64;
/// Directories that may be put off like that.
const PUT_OFF: usize = 10_000;
/// Files with several names that are remembered. Of more than these each name counts as its share.
const REMEMBERED: usize = 100_000;
/// Directories below the top one whose own sum is kept.
const BRANCHES: usize = 1000;
/// `st_blocks` counts these, whatever the file system's blocks are.
const SECTOR: u64 = 512;
/// Entries between two looks whether somebody still waits.
const LOOK_EVERY: u32 = 256;
const STACK: usize = 256 << 10;

/// Why it is not known how much lies there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WalkError {
    /// It can't be looked at.
    #[error(transparent)]
    Unreadable(#[from] NoReading),
    /// It takes too long, or hangs.
    #[error("it could not be measured within {0:?}")]
    Late(Duration),
    /// More directories below each other, and beside those, than anybody needs.
    #[error("its directories are nested too deeply to be measured")]
    TooDeep,
}

/// What lies below a directory, it itself included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) all: Space,
    /// The same for each directory in it, of a thousand at most.
    pub(super) branches: BTreeMap<OsString, Space>,
}

impl Tree {
    /// What lies in a directory of it; nothing where there is none.
    pub(super) fn branch(&self, name: &str) -> Space {
        self.branches.get(OsStr::new(name)).copied().unwrap_or_default()
    }
}

/// Turns for walks, shared by all.
pub(super) type Turns = Arc<Semaphore>;

/// How much lies below a directory.
///
/// Cancel-safe: the walk ends soon after.
pub(super) async fn walk(
    turns: &Turns,
    directory: &Path,
    within: Duration,
) -> Result<Tree, WalkError> {
    let here = directory.to_owned();
    on_thread(turns, directory, within, move |asker| Walk::new(asker).run(&here)).await
}

/// How much lies on a file system that is mounted at a directory and nowhere else, like the tmpfs of an emptyDir:
/// asked of the file system itself.
pub(super) async fn mounted(
    turns: &Turns,
    directory: &Path,
    within: Duration,
) -> Result<Space, WalkError> {
    let here = directory.to_owned();
    on_thread(turns, directory, within, move |_| {
        let failed = |errno: Errno| super::unreadable(&here, &errno.into());
        let device = |path: &Path| stat(path).map(|found| found.st_dev).map_err(failed);
        if device(&here)? == device(&here.join(".."))? {
            return Err(super::absurd(&here, "nothing is mounted there").into());
        }
        let found = statvfs(&here).map_err(failed)?;
        let blocks = found.blocks().saturating_sub(found.blocks_free());
        Ok(Space {
            bytes: blocks.saturating_mul(found.fragment_size()),
            inodes: found.files().saturating_sub(found.files_free()),
        })
    })
    .await
}

/// Works on a thread of its own, which may hang for as long as the file system does: its turn is taken for that long,
/// and nobody else waits for it. The deadline counts from its turn, for which it waits as long at most.
pub(super) async fn on_thread<T: Send + 'static>(
    turns: &Turns,
    directory: &Path,
    within: Duration,
    work: impl FnOnce(&mut Asker<T>) -> Result<T, WalkError> + Send + 'static,
) -> Result<T, WalkError> {
    let late = WalkError::Late(within);
    let turn = tokio::time::timeout(within, Arc::clone(turns).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else { return Err(late) };
    let (mut sender, answer) = oneshot::channel();
    let thread = thread::Builder::new().name("walk".to_owned()).stack_size(STACK);
    let run = move || {
        let _turn = turn;
        let worked = work(&mut sender);
        // Whoever asked may have stopped waiting.
        drop(sender.send(worked));
    };
    let failed = |error| WalkError::Unreadable(super::unreadable(directory, &error));
    thread.spawn(run).map_err(failed)?;
    match tokio::time::timeout(within, answer).await {
        Err(_) => Err(late),
        Ok(Ok(worked)) => worked,
        Ok(Err(_)) => Err(failed(std::io::Error::other("measuring it has crashed"))),
    }
}

/// Takes the result, and tells when nobody waits for it any more.
pub(super) type Asker<T> = oneshot::Sender<Result<T, WalkError>>;

/// One walk.
struct Walk<'a> {
    asker: &'a mut Asker<Tree>,
    device: u64,
    seen: HashSet<u64>,
    tree: Tree,
    put_off: Vec<Vec<OsString>>,
    looked: u32,
}

/// A directory that is open, and the entries of it that are still to come.
struct Level {
    directory: OwnedFd,
    entries: OwningIter,
}

impl Level {
    fn open(parent: impl AsFd, name: &OsStr, flags: OFlag) -> nix::Result<Self> {
        let flags = flags | OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = openat(parent, name, flags, Mode::empty())?;
        let entries = Dir::from_fd(dup(&directory)?)?.into_iter();
        Ok(Self { directory, entries })
    }

    /// Below a directory that others may change.
    fn below(&self, name: &OsStr) -> nix::Result<Self> {
        Self::open(&self.directory, name, OFlag::O_NOFOLLOW)
    }

    /// The next name in it; an error while reading it ends it.
    fn next(&mut self) -> Option<OsString> {
        let mut entries = self.entries.by_ref().map_while(Result::ok);
        let entry = entries.find(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))?;
        Some(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())
    }
}

impl<'a> Walk<'a> {
    fn new(asker: &'a mut Asker<Tree>) -> Self {
        Self {
            asker,
            device: 0,
            seen: HashSet::new(),
            tree: Tree::default(),
            put_off: Vec::new(),
            looked: 0,
        }
    }

    fn run(mut self, path: &Path) -> Result<Tree, WalkError> {
        let failed = |errno: Errno| WalkError::Unreadable(super::unreadable(path, &errno.into()));
        // The path to it is ours.
        let open = || Level::open(AT_FDCWD, path.as_os_str(), OFlag::empty()).map_err(failed);
        let top = open()?;
        let stat = fstat(&top.directory).map_err(failed)?;
        self.device = stat.st_dev;
        self.count(&stat, None);
        self.descend(top, Vec::new())?;
        while let Some(names) = self.put_off.pop() {
            let mut level = open()?;
            let opened = names.iter().try_for_each(|name| {
                level = level.below(name)?;
                Ok::<(), Errno>(())
            });
            // It may have gone meanwhile.
            if opened.is_ok() {
                self.descend(level, names)?;
            }
        }
        Ok(self.tree)
    }

    /// Counts everything below a directory; `names` lead from the top down to it.
    fn descend(&mut self, top: Level, mut names: Vec<OsString>) -> Result<(), WalkError> {
        let mut levels = vec![top];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { return Ok(()) };
            let Some(name) = level.next() else {
                levels.pop();
                names.pop();
                continue;
            };
            self.look_up()?;
            // What is gone since, or can't be looked at, does not count.
            let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
            let Ok(stat) = fstatat(&level.directory, name.as_os_str(), flags) else { continue };
            if stat.st_dev != self.device {
                continue;
            }
            let below = is_directory(&stat);
            let branch = names.first().or(below.then_some(&name));
            self.count(&stat, branch.map(OsString::as_os_str));
            if !below {
                continue;
            }
            if depth < DEPTH {
                if let Ok(next) = level.below(&name) {
                    names.push(name);
                    levels.push(next);
                }
            } else if self.put_off.len() < PUT_OFF {
                self.put_off.push(names.iter().cloned().chain([name]).collect());
            } else {
                return Err(WalkError::TooDeep);
            }
        }
    }

    fn count(&mut self, stat: &FileStat, branch: Option<&OsStr>) {
        let whole = Space {
            bytes: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(SECTOR),
            inodes: 1,
        };
        let space = match stat.st_nlink {
            links if links < 2 || is_directory(stat) => whole,
            _ if self.seen.contains(&stat.st_ino) => return,
            links if self.seen.len() >= REMEMBERED => {
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

    fn look_up(&mut self) -> Result<(), WalkError> {
        self.looked = (self.looked + 1) % LOOK_EVERY;
        let gone = self.looked == 0 && self.asker.is_closed();
        if gone { Err(WalkError::Late(Duration::ZERO)) } else { Ok(()) }
    }
}

fn is_directory(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR
}
