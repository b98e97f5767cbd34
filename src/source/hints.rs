//! inotify: what says "look now". Only a hint: events get lost, and some file systems have none.
//!
//! Watched are the directory itself, and around it whatever can make its path mean another
//! directory: its parent, the nearest parent that exists while it does not, and every symbolic link
//! on the way with the place that it points to.

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};
use tokio::io::unix::AsyncFd;

const BUFFER: usize = 16 << 10;
/// Links that are followed on the way; the kernel's limit is 40.
const MAX_LINKS: usize = 20;

pub(super) struct Hints {
    inotify: Option<AsyncFd<Inotify>>,
    buffer: Vec<u8>,
    watched: Watched,
    /// Names closed by their writer, or moved here, since they last changed.
    pub(super) closed: Names,
    /// Names written to since the last look.
    pub(super) written: Names,
}

/// What is watched, by descriptor.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The directory, with the one name that matters in it where the source is a file.
    main: Option<(WatchDescriptor, Option<OsString>)>,
    /// Directories around it, with the names that matter in them.
    around: Vec<(WatchDescriptor, BTreeSet<OsString>)>,
}

pub(super) type Names = BTreeSet<Box<str>>;

/// What an event asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hint {
    None,
    /// A file is being written.
    Soon,
    /// Something is there, gone, or finished.
    Now,
}

impl Hints {
    /// No hints yet: see [`Self::revive`].
    pub(super) fn new() -> Self {
        Self {
            inotify: None,
            buffer: vec![0; BUFFER],
            watched: Watched::default(),
            closed: BTreeSet::new(),
            written: BTreeSet::new(),
        }
    }

    /// Starts inotify where it does not run.
    ///
    /// # Errors
    /// The kernel gives none: too many instances.
    pub(super) fn revive(&mut self) -> io::Result<()> {
        if self.inotify.is_none() {
            #[expect(
                deprecated,
                reason = "its successor is an unsafe function; Inotify owns its descriptor"
            )]
            let inotify = AsyncFd::new(Inotify::init()?)?;
            self.inotify = Some(inotify);
            self.watched = Watched::default();
        }
        Ok(())
    }

    /// To be passed to [`arm`], which blocks.
    pub(super) fn lend(&mut self) -> (Option<Watches>, Watched) {
        let watches = self.inotify.as_ref().map(|inotify| inotify.get_ref().watches());
        (watches, std::mem::take(&mut self.watched))
    }

    pub(super) fn give_back(&mut self, watched: Watched) {
        self.watched = watched;
    }

    /// Waits for events and takes in what there is; waits for ever without inotify.
    ///
    /// # Cancel safety
    /// Events are taken in whole or stay queued.
    pub(super) async fn next(&mut self) -> Hint {
        let Some(inotify) = &mut self.inotify else { return std::future::pending().await };
        let error = match inotify.readable_mut().await {
            Ok(mut guard) => {
                let empty = guard.try_io(|fd| match fd.get_mut().read_events(&mut self.buffer) {
                    Ok(events) => {
                        Ok(take_in(events, &self.watched, &mut self.closed, &mut self.written))
                    }
                    Err(error) => Err(error),
                });
                match empty {
                    Ok(Ok(hint)) => return hint,
                    Ok(Err(error)) => error,
                    Err(_would_block) => return Hint::None,
                }
            }
            Err(error) => error,
        };
        tracing::warn!(err = %error, "inotify failed: manifests are read periodically");
        self.inotify = None;
        Hint::Now
    }

    /// Takes in what is queued, without waiting.
    pub(super) fn drain(&mut self) -> Hint {
        let mut all = Hint::None;
        while let Some(inotify) = &mut self.inotify {
            // WouldBlock: that was all. Another error comes up again in `next`.
            let Ok(events) = inotify.get_mut().read_events(&mut self.buffer) else { break };
            let hint = take_in(events, &self.watched, &mut self.closed, &mut self.written);
            all = all.max(hint);
        }
        all
    }
}

fn take_in<'a>(
    events: impl Iterator<Item = Event<&'a OsStr>>,
    watched: &Watched,
    closed: &mut Names,
    written: &mut Names,
) -> Hint {
    let mut all = Hint::None;
    for event in events {
        let hint = match event.name {
            None => {
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    closed.clear();
                }
                Hint::Now
            }
            Some(name) => match &watched.main {
                Some((main, only)) if *main == event.wd => {
                    if only.as_ref().is_none_or(|only| only == name) {
                        in_directory(name, event.mask, closed, written)
                    } else {
                        Hint::None
                    }
                }
                Some(_) | None => {
                    let around = watched.around.iter();
                    let mut matching = around.filter(|(wd, _)| *wd == event.wd);
                    let matters = matching.any(|(_, names)| names.contains(name));
                    if matters { Hint::Now } else { Hint::None }
                }
            },
        };
        all = all.max(hint);
    }
    all
}

fn in_directory(name: &OsStr, mask: EventMask, closed: &mut Names, written: &mut Names) -> Hint {
    let Some(name) = name.to_str() else { return Hint::None };
    if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
        closed.insert(name.into());
    } else if mask.intersects(EventMask::MODIFY | EventMask::CREATE) {
        closed.remove(name);
        written.insert(name.into());
    }
    if mask.contains(EventMask::MODIFY) { Hint::Soon } else { Hint::Now }
}

const INSIDE: WatchMask = WatchMask::CREATE
    .union(WatchMask::MODIFY)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::ATTRIB)
    .union(AROUND);
const AROUND: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::MASK_ADD);

/// Watches what `path` means now; what it meant before is watched no more. Blocks. Errors are
/// not told: what can't be watched is looked at by the clock.
pub(super) fn arm(watches: &mut Watches, before: Watched, path: &Path) -> Watched {
    let mut now = Watched::default();
    let is_directory = path.is_dir();
    if is_directory {
        now.main = watches.add(path, INSIDE).ok().map(|wd| (wd, None));
    }
    let mut around: BTreeMap<PathBuf, BTreeSet<OsString>> = BTreeMap::new();
    for (directory, name) in places(path) {
        around.entry(directory).or_default().insert(name);
    }
    for (directory, names) in around {
        // Of a single file, the directory that it lies in (not one that its link points to).
        let single = !is_directory && path.parent() == Some(&*directory);
        let Ok(wd) = watches.add(&directory, if single { INSIDE } else { AROUND }) else {
            continue;
        };
        if single {
            now.main = Some((wd.clone(), path.file_name().map(OsStr::to_owned)));
        }
        now.around.push((wd, names));
    }
    let kept = |wd: &WatchDescriptor| {
        now.main.as_ref().is_some_and(|(main, _)| main == wd)
            || now.around.iter().any(|(around, _)| around == wd)
    };
    let old = before.main.into_iter().map(|(wd, _)| wd);
    for wd in old.chain(before.around.into_iter().map(|(wd, _)| wd)).filter(|wd| !kept(wd)) {
        // It is gone already when its directory is.
        watches.remove(wd).ok();
    }
    now
}

/// Directories and the names in them that decide what `path` means.
fn places(path: &Path) -> Vec<(PathBuf, OsString)> {
    let mut places = Vec::new();
    let mut next = Some(path.to_owned());
    for _ in 0..MAX_LINKS {
        let Some(path) = next.take() else { break };
        let mut ancestors: Vec<&Path> = path.ancestors().collect();
        ancestors.reverse();
        for at in ancestors {
            let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { continue };
            let link = fs::read_link(at).ok();
            // The last component, the first one that does not exist, and every link.
            let missing = fs::symlink_metadata(at).is_err();
            if link.is_some() || missing || at == path {
                places.push((parent.to_owned(), name.to_owned()));
            }
            if let (Some(link), Ok(rest)) = (link, path.strip_prefix(at)) {
                let target = parent.join(link);
                next = Some(if rest.as_os_str().is_empty() { target } else { target.join(rest) });
                break;
            }
            if missing {
                break;
            }
        }
    }
    places
}
