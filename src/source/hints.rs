//! inotify: what says "look now". Only a hint: events get lost, and some file systems have none.
//!
//! Watched are the directory itself, and around it whatever can make its path mean another
//! directory: its parent, the nearest parent that exists while it does not, and every symbolic link
//! on the way with the place that it points to.

use crate::{clock, model::CollectOrdered as _};
use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::io::unix::AsyncFd;

const BUFFER: usize = 16 << 10;
/// Links that are followed on the way; the kernel's limit is 40.
const MAX_LINKS: usize = 20;

/// Most open writers that are kept. Files beyond that count as written once they hold.
const MAX_OPEN: usize = 1000;

pub(super) struct Hints {
    inotify: Option<AsyncFd<Inotify>>,
    buffer: Vec<u8>,
    watched: Watched,
    pub(super) files: FileHints,
    /// How long a writer that writes nothing counts as open.
    longest_write: Duration,
}

/// What the events say about the files of the directory.
#[derive(Debug, Default)]
pub(super) struct FileHints {
    /// Names closed by their writer, or moved here, since they last changed.
    pub(super) closed: Names,
    /// Names written to since the last look.
    pub(super) written: Names,
    /// Names that were written to and not closed, with the time of the last write as
    /// [`clock::awake`]: a writer can't write while the machine is suspended.
    open: BTreeMap<Box<str>, Duration>,
}

/// What is watched, by descriptor.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The directory, with the one name that matters in it where the source is a file.
    main: Option<(WatchDescriptor, Option<OsString>)>,
    /// Directories around it, with the names that matter in them.
    around: Vec<(WatchDescriptor, BTreeSet<OsString>)>,
    /// The directory is another one than before.
    pub(super) is_replaced: bool,
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
    pub(super) fn new(longest_write: Duration) -> Self {
        Self {
            inotify: None,
            buffer: vec![0; BUFFER],
            watched: Watched::default(),
            files: FileHints::default(),
            longest_write,
        }
    }

    /// Starts inotify where it does not run.
    ///
    /// # Errors
    /// The kernel gives none: too many instances.
    pub(super) fn revive(&mut self) -> io::Result<()> {
        if self.inotify.is_none() {
            self.files.open.clear();
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
        if watched.is_replaced {
            self.files.open.clear();
        }
        self.watched = watched;
    }

    /// The names that a writer has open now.
    pub(super) fn open(&mut self) -> Names {
        self.files.open_at(clock::awake(), self.longest_write)
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
                        Ok(take_in(events, &self.watched, &mut self.files, clock::awake()))
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
            let hint = take_in(events, &self.watched, &mut self.files, clock::awake());
            all = all.max(hint);
        }
        all
    }
}

fn take_in<'a>(
    events: impl Iterator<Item = Event<&'a OsStr>>,
    watched: &Watched,
    files: &mut FileHints,
    now: Duration,
) -> Hint {
    let mut all = Hint::None;
    for event in events {
        let hint = match event.name {
            None => {
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    files.closed.clear();
                    files.open.clear();
                }
                Hint::Now
            }
            Some(name) => match &watched.main {
                Some((main, only))
                    if *main == event.wd && only.as_ref().is_none_or(|only| only == name) =>
                {
                    files.take_in(name, event.mask, now)
                }
                // The path of a single file may lead through a link beside it.
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

/// After each of these a file has no open writer under its name. `CREATE` does not open one: a link
/// is made without a close.
const ENDS_A_WRITE: EventMask = EventMask::CLOSE_WRITE
    .union(EventMask::MOVED_TO)
    .union(EventMask::MOVED_FROM)
    .union(EventMask::DELETE);

impl FileHints {
    /// Takes in an event of a file in the directory.
    fn take_in(&mut self, name: &OsStr, mask: EventMask, now: Duration) -> Hint {
        let Some(name) = name.to_str() else { return Hint::None };
        if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
            self.closed.insert(name.into());
        } else if mask.intersects(EventMask::MODIFY | EventMask::CREATE) {
            self.closed.remove(name);
            self.written.insert(name.into());
        }
        if mask.intersects(ENDS_A_WRITE) {
            self.open.remove(name);
        }
        if !mask.contains(EventMask::MODIFY) {
            return Hint::Now;
        }
        if self.open.len() < MAX_OPEN || self.open.contains_key(name) {
            self.open.insert(name.into(), now);
        }
        Hint::Soon
    }

    /// The names whose writer is open and wrote less than `longest` ago. Forgets the others.
    fn open_at(&mut self, now: Duration, longest: Duration) -> Names {
        self.open.retain(|_, written| now.saturating_sub(*written) < longest);
        self.open.keys().cloned().collect_ordered()
    }
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
    let is_replaced = now.main != before.main;
    let old = before.main.into_iter().map(|(wd, _)| wd);
    for wd in old.chain(before.around.into_iter().map(|(wd, _)| wd)).filter(|wd| !kept(wd)) {
        // It is gone already when its directory is.
        watches.remove(wd).ok();
    }
    Watched { is_replaced, ..now }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const LONGEST: Duration = Duration::from_secs(10);

    fn names(names: &[&str]) -> Names {
        names.iter().map(|name| Box::from(*name)).collect_ordered()
    }

    /// Takes in an event of a file, this many seconds after boot.
    fn event(files: &mut FileHints, name: &str, mask: EventMask, seconds: u64) -> Hint {
        files.take_in(OsStr::new(name), mask, Duration::from_secs(seconds))
    }

    fn open_at(files: &mut FileHints, seconds: u64) -> Names {
        files.open_at(Duration::from_secs(seconds), LONGEST)
    }

    #[test]
    fn a_writer_is_open_from_its_first_write_to_its_close() {
        let (close, delete) = (EventMask::CLOSE_WRITE, EventMask::DELETE);
        for end in [close, EventMask::MOVED_TO, EventMask::MOVED_FROM, delete] {
            let mut files = FileHints::default();
            for name in ["a.yaml", "b.yaml"] {
                assert_eq!(event(&mut files, name, EventMask::CREATE, 1), Hint::Now);
            }
            // A link needs no close.
            assert_eq!(open_at(&mut files, 1), names(&[]));
            for name in ["a.yaml", "b.yaml"] {
                assert_eq!(event(&mut files, name, EventMask::MODIFY, 1), Hint::Soon);
            }
            event(&mut files, "a.yaml", EventMask::ATTRIB, 1);
            assert_eq!(open_at(&mut files, 2), names(&["a.yaml", "b.yaml"]));
            assert_eq!(event(&mut files, "a.yaml", end, 2), Hint::Now);
            assert_eq!(open_at(&mut files, 2), names(&["b.yaml"]), "{end:?}");
        }
    }

    #[test]
    fn a_writer_that_stops_writing_is_forgotten_after_a_while() {
        let mut files = FileHints::default();
        event(&mut files, "a.yaml", EventMask::MODIFY, 1);
        event(&mut files, "b.yaml", EventMask::MODIFY, 1);
        event(&mut files, "a.yaml", EventMask::MODIFY, 9);
        assert_eq!(open_at(&mut files, 10), names(&["a.yaml", "b.yaml"]));
        assert_eq!(open_at(&mut files, 11), names(&["a.yaml"]));
        assert_eq!(open_at(&mut files, 19), names(&[]));
        assert!(files.open.is_empty());
    }

    #[test]
    fn the_number_of_open_writers_has_a_limit() {
        let mut files = FileHints::default();
        for n in 0..MAX_OPEN + 10 {
            event(&mut files, &format!("{n}.yaml"), EventMask::MODIFY, 1);
        }
        event(&mut files, "0.yaml", EventMask::MODIFY, 9);
        assert_eq!(files.open.len(), MAX_OPEN);
        assert_eq!(open_at(&mut files, 11), names(&["0.yaml"]));
    }

    #[test]
    fn a_link_beside_a_single_file_can_replace_it() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for revision in ["v1", "v2"] {
            fs::create_dir(at(revision)).unwrap();
            fs::write(at(revision).join("web.yaml"), revision).unwrap();
        }
        symlink("v1", at("current")).unwrap();
        symlink("current/web.yaml", at("web.yaml")).unwrap();
        let mut inotify = Inotify::init().unwrap();
        let watched = arm(&mut inotify.watches(), Watched::default(), &at("web.yaml"));
        let (mut files, mut buffer) = (FileHints::default(), [0; 1024]);
        let mut hint = || {
            let events = inotify.read_events(&mut buffer).unwrap();
            take_in(events, &watched, &mut files, LONGEST)
        };
        fs::write(at("api.yaml"), "another file").unwrap();
        symlink("v2", at("next")).unwrap();
        assert_eq!(hint(), Hint::None);
        fs::rename(at("next"), at("current")).unwrap();
        assert_eq!(hint(), Hint::Now);
    }

    #[test]
    fn lost_events_and_another_directory_end_all_writes() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("m");
        fs::create_dir(&path).unwrap();
        let inotify = Inotify::init().unwrap();
        let mut watches = inotify.watches();
        let watched = arm(&mut watches, Watched::default(), &path);
        let mut hints = Hints::new(LONGEST);
        let wd = watched.main.clone().unwrap().0;
        hints.give_back(watched);

        event(&mut hints.files, "a.yaml", EventMask::MODIFY, 1);
        let lost = Event { wd, mask: EventMask::Q_OVERFLOW, cookie: 0, name: None };
        take_in([lost].into_iter(), &hints.watched, &mut hints.files, LONGEST);
        assert_eq!(open_at(&mut hints.files, 1), names(&[]));

        event(&mut hints.files, "a.yaml", EventMask::MODIFY, 1);
        let (_, before) = hints.lend();
        hints.give_back(arm(&mut watches, before, &path));
        assert_eq!(open_at(&mut hints.files, 1), names(&["a.yaml"]));
        fs::rename(&path, root.path().join("old")).unwrap();
        fs::create_dir(&path).unwrap();
        let (_, before) = hints.lend();
        hints.give_back(arm(&mut watches, before, &path));
        assert_eq!(open_at(&mut hints.files, 1), names(&[]));
    }
}
