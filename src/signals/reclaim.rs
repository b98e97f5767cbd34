//! Asking the kernel to reclaim page cache (cgroup v2, Linux 5.19) before a pod is evicted for
//! memory.
//!
//! A working set counts the cache that was used lately (`active_file`) and leaves out the rest. The
//! kernel takes from the rest first, which changes no working set: so it is asked again, a step at
//! a time, until enough of what counts is gone.

use super::{NoReading, absurd, core, read, unreadable};
use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
    thread,
};
use tokio::sync::oneshot;

const STACK: usize = 64 << 10;
/// The minimum of one request: large enough that reading the counters between two requests is
/// cheap.
const STEP: u64 = 8 << 20;

/// The result. The next reading shows how much was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// The working set is smaller by what was asked for, as far as page cache is concerned.
    All,
    /// Less was reclaimed: the kernel found no more.
    Part,
}

/// A request that is under way. It ends soon after this value is dropped.
#[derive(Debug)]
pub struct Reclaiming {
    path: PathBuf,
    answer: oneshot::Receiver<Result<Reclaimed, NoReading>>,
}

impl Reclaiming {
    /// Waits for the end. Cancel-safe.
    ///
    /// # Errors
    /// When the kernel refuses, or a file can't be read.
    pub async fn ended(&mut self) -> Result<Reclaimed, NoReading> {
        let crashed = |_| Err(unreadable(&self.path, &io::Error::other("reclaiming has crashed")));
        (&mut self.answer).await.unwrap_or_else(crashed)
    }
}

/// Has the kernel make the working set of the cgroup at `directory` (of the unified hierarchy), and
/// of everything below, smaller by `bytes`, and by `spare` more if that is there: by page cache
/// where it can be told so (Linux 6.10), else also by what could be swapped out. `None` where that
/// can't be: cgroup v1, Linux before 5.19, or no `bytes` of page cache in the working set.
///
/// # Errors
/// When the cgroup can't be read.
pub fn reclaim(directory: &Path, bytes: u64, spare: u64) -> Result<Option<Reclaiming>, NoReading> {
    let path = directory.join("memory.reclaim");
    if !path.exists() {
        return Ok(None);
    }
    let stat = directory.join("memory.stat");
    let before = Cache::read(&stat)?;
    if before.active < bytes {
        return Ok(None);
    }
    let bytes = bytes.saturating_add(spare).min(before.active);
    let (sender, answer) = oneshot::channel();
    let here = path.clone();
    let work = move || {
        let done = shrink(&here, &stat, before, bytes, || sender.is_closed());
        // The receiver may be gone.
        drop(sender.send(done));
    };
    // A separate thread, because the request lasts as long as pages are written back.
    let thread = thread::Builder::new().name("reclaim".to_owned()).stack_size(STACK);
    thread.spawn(work).map_err(|error| unreadable(&path, &error))?;
    Ok(Some(Reclaiming { path, answer }))
}

/// Page cache of a cgroup.
#[derive(Clone, Copy, Debug)]
struct Cache {
    active: u64,
    inactive: u64,
}

impl Cache {
    fn read(stat: &Path) -> Result<Self, NoReading> {
        let text = read(stat)?;
        let field = |name: &str| {
            core::keyed(&text, name).ok_or_else(|| absurd(stat, format!("it holds no {name}")))
        };
        Ok(Self { active: field("active_file")?, inactive: field("inactive_file")? })
    }
}

/// Reclaims at most the whole inactive page cache, and then `bytes` of the active one.
fn shrink(
    path: &Path,
    stat: &Path,
    before: Cache,
    bytes: u64,
    unwanted: impl Fn() -> bool,
) -> Result<Reclaimed, NoReading> {
    let mut left = before.inactive.saturating_add(bytes);
    while left > 0 && !unwanted() {
        let step = left.min(STEP.max(bytes / 4));
        let written = write(path, step).map_err(|error| unreadable(path, &error))?;
        let gone = before.active.saturating_sub(Cache::read(stat)?.active);
        if gone >= bytes {
            return Ok(Reclaimed::All);
        }
        if written == Reclaimed::Part {
            return Ok(Reclaimed::Part);
        }
        left -= step;
    }
    Ok(Reclaimed::Part)
}

fn write(path: &Path, bytes: u64) -> io::Result<Reclaimed> {
    let write =
        |text: String| OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes());
    let mut written = write(format!("{bytes} swappiness=0"));
    if matches!(&written, Err(error) if error.kind() == io::ErrorKind::InvalidInput) {
        written = write(bytes.to_string());
    }
    match written {
        Ok(()) => Ok(Reclaimed::All),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Reclaimed::Part),
        Err(error) => Err(error),
    }
}
