//! Asking the kernel to give page cache back (cgroup v2, Linux 5.19), before anybody is evicted for it.

use super::{NoReading, unreadable};
use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::Path,
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

const STACK: usize = 64 << 10;

/// What came of it. How much was freed shows in the next reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// As much as was asked for.
    All,
    /// Less: the kernel found no more.
    Part,
    /// The kernel was still at it after the time given; it goes on.
    Unfinished,
    /// The kernel can't: cgroup v1, or before Linux 5.19.
    Unsupported,
}

/// Has the kernel reclaim `bytes` from the cgroup at `directory` (of the unified hierarchy) and everything below:
/// page cache where it can be told so (Linux 6.10), else also what could be swapped out.
///
/// # Errors
/// When the file is there and takes nothing.
///
/// # Cancel safety
/// The kernel goes on.
pub async fn reclaim(
    directory: &Path,
    bytes: u64,
    within: Duration,
) -> Result<Reclaimed, NoReading> {
    let path = directory.join("memory.reclaim");
    if !path.exists() {
        return Ok(Reclaimed::Unsupported);
    }
    let (sender, answer) = oneshot::channel();
    let here = path.clone();
    // Of its own: it lasts as long as writing pages back does.
    let thread = thread::Builder::new().name("reclaim".to_owned()).stack_size(STACK);
    let work = move || drop(sender.send(write(&here, bytes)));
    thread.spawn(work).map_err(|error| unreadable(&path, &error))?;
    match tokio::time::timeout(within, answer).await {
        Err(_) => Ok(Reclaimed::Unfinished),
        Ok(Ok(written)) => written.map_err(|error| unreadable(&path, &error)),
        Ok(Err(_)) => Err(unreadable(&path, &io::Error::other("reclaiming has crashed"))),
    }
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
