//! Space and inodes of file systems. Asking one that does not answer (a dead NFS server, a disk
//! that is gone) never returns, so each is asked on a thread of its own that is there from the
//! start: under pressure there may be no other to be had, and a hung one is not asked again before
//! it has answered.

use super::{NoReading, Sample, core, core::FileSystemUse, unreadable};
use crate::{
    clock,
    model::{CollectOrdered as _, DiskLayout, FsStats, Reading, Signal, rough_seconds},
};
use nix::sys::{stat::stat, statvfs::statvfs};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::Instant,
};

/// Enough for two system calls.
const STACK: usize = 64 << 10;

/// The file systems that count.
#[derive(Debug)]
pub struct Disks {
    root: PathBuf,
    /// A path on the file system of images, which may be the root directory; and of writable
    /// layers.
    images: Result<PathBuf, NoReading>,
    layers: Result<PathBuf, NoReading>,
    layout: DiskLayout,
    /// Those that are asked, and those that were and have not answered.
    systems: BTreeMap<PathBuf, FileSystem>,
    look: Look,
}

/// How a file system is asked, which may take for ever.
type Look = fn(&Path) -> io::Result<FileSystemUse>;

/// One file system, asked on its own thread.
#[derive(Debug)]
struct FileSystem {
    path: PathBuf,
    /// Which device it was at first.
    device: Option<u64>,
    asks: mpsc::SyncSender<Ask>,
    /// An answer that did not come in time, and since when it is waited for (boot time).
    pending: Option<(oneshot::Receiver<Answer>, Duration)>,
}

type Answer = io::Result<FileSystemUse>;
type Ask = oneshot::Sender<Answer>;

impl Disks {
    /// The file system of the root directory. Where images and layers lie is not known yet: that is
    /// told with [`Self::locate`], and until then `imagefs` and `containerfs` have no reading.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self::looking(root, look)
    }

    pub(super) fn looking(root: &Path, look: Look) -> Self {
        Self {
            root: root.to_owned(),
            images: Err(NoReading::NotTold),
            layers: Err(NoReading::NotTold),
            layout: DiskLayout::Single,
            systems: BTreeMap::new(),
            look,
        }
    }

    /// Finds out on which file systems images and writable layers lie, of each the first path that
    /// can be looked at. To be called again when the runtime tells other paths, and when a reading
    /// is [`NoReading::Moved`]. Takes no longer than `within`.
    ///
    /// # Errors
    /// When that can't be found out; then they have no reading, with this reason. Where a file
    /// system only does not answer in time, what was known before stays known.
    ///
    /// # Cancel safety
    /// To be called again: that a file system becomes another one meanwhile is not noticed.
    pub async fn locate(
        &mut self,
        images: &[PathBuf],
        layers: &[PathBuf],
        within: Duration,
    ) -> Result<DiskLayout, NoReading> {
        let before: BTreeMap<PathBuf, Option<u64>> = self
            .systems
            .iter_mut()
            .map(|(path, system)| (path.clone(), system.device.take()))
            .collect_ordered();
        let located = self.find(images, layers, Instant::now() + within).await;
        if let Err(why) = &located {
            let known =
                self.images.is_ok() || matches!(self.layout, DiskLayout::LayersElsewhere { .. });
            if known && matches!(why, NoReading::Hung { .. }) {
                // One that is slow just now has not become another one.
                for (path, system) in &mut self.systems {
                    system.device = before.get(path).copied().flatten();
                }
            } else {
                (self.images, self.layers) = (Err(why.clone()), Err(why.clone()));
                if !matches!(why, NoReading::Layout) {
                    self.layout = DiskLayout::Single;
                }
            }
        }
        let used = [Some(&self.root), self.images.as_ref().ok(), self.layers.as_ref().ok()];
        self.systems.retain(|path, system| used.contains(&Some(path)) || system.pending.is_some());
        located
    }

    async fn find(
        &mut self,
        images: &[PathBuf],
        layers: &[PathBuf],
        until: Instant,
    ) -> Result<DiskLayout, NoReading> {
        let all: Vec<&PathBuf> = [&self.root].into_iter().chain(images).chain(layers).collect();
        let answers = ask_all(&mut self.systems, self.look, &all, until).await;
        let device = |path: &PathBuf| match answers.get(path) {
            Some(Ok((found, _))) => Ok((path.clone(), found.device)),
            Some(Err(why)) => Err(why.clone()),
            None => Err(NoReading::NotTold),
        };
        let first = |paths: &[PathBuf]| {
            let mut looked = paths.iter().map(device);
            let why = looked.next().unwrap_or(Err(NoReading::NotTold));
            why.or_else(|why| looked.find_map(Result::ok).ok_or(why))
        };
        let (_, root_device) = device(&self.root)?;
        let (images, images_device) = first(images)?;
        let (_, layers_device) = first(layers)?;
        self.layout = core::layout(root_device, images_device, layers_device);
        (self.images, self.layers) = match self.layout {
            DiskLayout::Single => (Ok(self.root.clone()), Ok(self.root.clone())),
            DiskLayout::DedicatedImages => (Ok(images.clone()), Ok(images)),
            DiskLayout::Split => (Ok(images), Ok(self.root.clone())),
            DiskLayout::LayersElsewhere { .. } => return Err(NoReading::Layout),
        };
        Ok(self.layout)
    }

    /// Which file systems are the same, as far as it is known.
    #[must_use]
    pub fn layout(&self) -> DiskLayout {
        self.layout
    }

    /// A path on the file system of images, where that is known.
    #[must_use]
    pub fn images(&self) -> Option<&Path> {
        self.images.as_deref().ok()
    }

    /// Reads all six signals of disks. Takes no longer than `within`: a file system that has not
    /// answered by then has no reading, and the others have theirs.
    ///
    /// # Cancel safety
    /// What was asked is not asked again, its answer is taken by the next call.
    pub async fn sample(&mut self, within: Duration) -> Sample {
        let root = Ok(self.root.clone());
        let all = [&root, &self.images, &self.layers];
        let paths = all.iter().filter_map(|place| place.as_ref().ok()).collect::<Vec<_>>();
        let answers = ask_all(&mut self.systems, self.look, &paths, Instant::now() + within).await;
        let mut sample = Sample::default();
        for (bytes, inodes, place) in [
            (Signal::NodefsAvailable, Signal::NodefsInodesFree, &root),
            (Signal::ImagefsAvailable, Signal::ImagefsInodesFree, &self.images),
            (Signal::ContainerfsAvailable, Signal::ContainerfsInodesFree, &self.layers),
        ] {
            let read = |of: Part| {
                let path = place.as_ref().map_err(NoReading::clone)?;
                let answer = answers.get(path).ok_or(NoReading::NotTold)?;
                let (found, at) = answer.as_ref().map_err(NoReading::clone)?;
                let (available, capacity) = of(found, path)?;
                Ok(Reading { available, capacity, at: *at })
            };
            let found = place.as_ref().ok().and_then(|path| answers.get(path)?.as_ref().ok());
            sample.taken.extend(found.map(|(found, _)| (bytes, found.taken())));
            sample.put(bytes, read(FileSystemUse::bytes));
            sample.put(inodes, read(FileSystemUse::inodes));
        }
        sample
    }
}

/// File systems of volumes. Each has a thread only while it is asked, or hangs.
#[derive(Debug)]
pub struct VolumeDisks {
    systems: BTreeMap<PathBuf, FileSystem>,
    look: Look,
}

impl Default for VolumeDisks {
    fn default() -> Self {
        Self::looking(look)
    }
}

impl VolumeDisks {
    pub(super) fn looking(look: Look) -> Self {
        Self { systems: BTreeMap::new(), look }
    }

    /// The file system at each path. One that has not answered `within` this time is missing, and
    /// so is one that can't be looked at.
    ///
    /// # Cancel safety
    /// The threads stay until the next call.
    pub async fn ask(
        &mut self,
        paths: &BTreeSet<PathBuf>,
        within: Duration,
    ) -> BTreeMap<PathBuf, FsStats> {
        let all: Vec<&PathBuf> = paths.iter().collect();
        let until = Instant::now() + within;
        // One whose answer came too late is asked again, or not needed any more.
        self.systems.retain(|_, system| system.hangs());
        let answers = ask_all(&mut self.systems, self.look, &all, until).await;
        self.systems.retain(|_, system| system.hangs());
        let now = clock::now();
        let told = |(path, answer): (PathBuf, Result<(FileSystemUse, Duration), _>)| {
            let (found, at) = answer.ok()?;
            let at = now.wall.checked_sub(now.boot.saturating_sub(at)).unwrap_or(now.wall);
            let inodes = found.inodes(&path).ok().filter(|(_, all)| *all > 0);
            let bytes = found.bytes(&path).ok()?;
            Some((path, FsStats { at, bytes, used_bytes: found.taken(), inodes }))
        };
        answers.into_iter().filter_map(told).collect_ordered()
    }

    /// Those that have a thread.
    #[cfg(test)]
    pub(super) fn asked(&self) -> Vec<&PathBuf> {
        self.systems.keys().collect()
    }
}

/// Bytes or inodes of an answer: what is left, and what there is.
type Part = fn(&FileSystemUse, &Path) -> Result<(u64, u64), NoReading>;

/// What each file system answered, with the boot time of its answer.
type Answers = BTreeMap<PathBuf, Result<(FileSystemUse, Duration), NoReading>>;

/// Asks all at the same time, each on its thread. Cancel-safe: what is under way is kept in
/// `systems`.
async fn ask_all(
    systems: &mut BTreeMap<PathBuf, FileSystem>,
    look: Look,
    paths: &[&PathBuf],
    until: Instant,
) -> Answers {
    let mut answers = Answers::new();
    for &path in paths {
        let system = match systems.entry(path.clone()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => FileSystem::new(path, look).map(|system| new.insert(system)),
        };
        if let Err(why) = system.and_then(FileSystem::ask) {
            answers.insert(path.clone(), Err(why));
        }
    }
    for &path in paths {
        if let (false, Some(system)) = (answers.contains_key(path), systems.get_mut(path)) {
            answers.insert(path.clone(), system.answer(until).await);
        }
    }
    answers
}

impl FileSystem {
    fn new(path: &Path, look: Look) -> Result<Self, NoReading> {
        let (asks, asked) = mpsc::sync_channel::<Ask>(1);
        let here = path.to_owned();
        let work = move || {
            // Ends with the other end of the channel.
            for answer in asked {
                // Whoever asked may have stopped waiting.
                drop(answer.send(look(&here)));
            }
        };
        let thread = thread::Builder::new().name("file-system".to_owned()).stack_size(STACK);
        thread.spawn(work).map_err(|error| unreadable(path, &error))?;
        Ok(Self { path: path.to_owned(), device: None, asks, pending: None })
    }

    /// Asks, unless an answer is outstanding.
    fn ask(&mut self) -> Result<(), NoReading> {
        if self.pending.is_none() {
            let (sender, answer) = oneshot::channel();
            self.asks.try_send(sender).map_err(|_| self.crashed())?;
            self.pending = Some((answer, clock::now().boot));
        }
        Ok(())
    }

    /// Whether it has not answered yet. An answer that has come is dropped.
    fn hangs(&mut self) -> bool {
        let pending = self.pending.as_mut().map(|(answer, _)| answer.try_recv());
        matches!(pending, Some(Err(TryRecvError::Empty)))
    }

    /// Waits for the answer, and returns it with the boot time of the question. Cancel-safe: it is
    /// kept until it has come.
    async fn answer(&mut self, until: Instant) -> Result<(FileSystemUse, Duration), NoReading> {
        let Some((answer, since)) = &mut self.pending else { return Err(self.crashed()) };
        let since = *since;
        let Ok(answered) = tokio::time::timeout_at(until, answer).await else {
            let seconds = rough_seconds(clock::now().boot.saturating_sub(since));
            return Err(NoReading::Hung { path: self.path.clone(), seconds });
        };
        self.pending = None;
        let found = answered.map_err(|_| self.crashed())?;
        let found = found.map_err(|error| unreadable(&self.path, &error))?;
        if *self.device.get_or_insert(found.device) != found.device {
            return Err(NoReading::Moved { path: self.path.clone() });
        }
        Ok((found, since))
    }

    fn crashed(&self) -> NoReading {
        unreadable(&self.path, &io::Error::other("asking it has crashed"))
    }
}

fn look(path: &Path) -> io::Result<FileSystemUse> {
    let (of_path, of_system) = (stat(path)?, statvfs(path)?);
    Ok(FileSystemUse {
        device: of_path.st_dev,
        block: match of_system.fragment_size() {
            0 => of_system.block_size(),
            fragment => fragment,
        },
        blocks: of_system.blocks(),
        blocks_free: of_system.blocks_free(),
        blocks_available: of_system.blocks_available(),
        inodes: of_system.files(),
        inodes_available: of_system.files_available(),
    })
}
