//! Goes on printing a container's log while it is written: across rotations of the file and across
//! restarts of the container, until the pod's log directory is gone.
//!
//! inotify says when to look; a look once a second stands behind it.

use super::{
    find::{self, LogDir},
    line::Printer,
    read::LogFile,
};
use inotify::{Inotify, WatchMask};
use std::{
    fs, io,
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;

/// Between two looks when no hint comes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The time that the runtime has to write what a container wrote before a rotation.
pub const LAST_LINES: Duration = Duration::from_millis(50);

/// The run that is printed.
#[derive(Debug)]
pub struct Position {
    /// Its number: the restart count of the container.
    pub number: u32,
    /// The file that is read.
    pub path: PathBuf,
    /// How far it was read.
    pub log: LogFile,
}

/// Prints until `container`, the directory, is gone.
///
/// # Errors
/// When the log can't be read, or the output not be written.
pub async fn follow(
    container: &LogDir,
    mut position: Position,
    printer: &mut Printer<impl Write>,
) -> io::Result<()> {
    // Without inotify (a machine has so many watches) the look once a second is all there is.
    let mut hints = watch_directory(container.path()).and_then(hints).ok();
    loop {
        position.log.print(printer)?;
        printer.flush()?;
        if let Some(Next { at, newest }) = next_file(container, &mut position)? {
            if newest {
                // The runtime may still be writing what came before the rotation.
                sleep(LAST_LINES).await;
            }
            position.log.print(printer)?;
            position.log.finish(printer)?;
            if at.number != position.number {
                printer.finish_run()?;
            }
            position = at;
            continue;
        }
        if !container.path().is_dir() {
            position.log.finish(printer)?;
            return printer.finish();
        }
        // Running out of time is a reason to look, like a hint.
        match &mut hints {
            None => sleep(LOOK_AGAIN).await,
            Some(stream) => match timeout(LOOK_AGAIN, stream.next()).await {
                Ok(Some(Ok(_))) | Err(_) => {}
                Ok(Some(Err(_)) | None) => hints = None,
            },
        }
    }
}

/// Changes of a log directory.
pub type Hints = inotify::EventStream<Vec<u8>>;

/// Watches the directory of a container's logs. Looks up a path: it blocks.
///
/// # Errors
/// When the machine has no more watches, or the directory is gone.
pub fn watch_directory(container: &Path) -> io::Result<Inotify> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE_SELF;
    // A container with a writable host path may have put a link in its place.
    inotify.watches().add(container, mask | WatchMask::ONLYDIR | WatchMask::DONT_FOLLOW)?;
    Ok(inotify)
}

/// The changes that a watch sees. It must be called inside a runtime of tokio.
///
/// # Errors
/// When tokio can't wait for the watch.
pub fn hints(watch: Inotify) -> io::Result<Hints> {
    watch.into_event_stream(vec![0; 4096])
}

/// The file to go on with.
pub(super) struct Next {
    pub(super) at: Position,
    /// Nothing newer is there: it has been made a moment ago.
    pub(super) newest: bool,
}

/// The file to go on with: the one that was written after this one, or the first file of the next
/// run. Takes in the name that a rotation has given to this one.
pub(super) fn next_file(container: &LogDir, position: &mut Position) -> io::Result<Option<Next>> {
    let number = position.number;
    let inode = position.log.file().metadata()?.ino();
    let mut later = find::runs(container.path())?.split_off(&number);
    let files = later.remove(&number).unwrap_or_default().files;
    let ours = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.ino() == inode);
    let after = match files.iter().position(ours) {
        Some(index) => {
            position.path.clone_from(&files[index]);
            index + 1
        }
        // Compressed or removed before its new name was seen.
        None if find::is_current(&position.path) => {
            let last_written = position.log.file().metadata()?.modified()?;
            let is_newer = |path: &PathBuf| {
                fs::metadata(path)
                    .and_then(|found| found.modified())
                    .is_ok_and(|at| at >= last_written)
            };
            files.iter().position(is_newer).unwrap_or(files.len())
        }
        // Compressed or removed.
        None => {
            let is_newer = |path: &PathBuf| find::age(path) > find::age(&position.path);
            files.iter().position(is_newer).unwrap_or(files.len())
        }
    };
    let (number, files) = match files.get(after..) {
        Some(newer) if !newer.is_empty() => (number, newer.to_vec()),
        Some(_) | None => match later.pop_first() {
            Some((number, run)) => (number, run.files),
            None => return Ok(None),
        },
    };
    let Some(path) = files.first() else { return Ok(None) };
    match container.open(path) {
        Ok(file) => {
            let log = LogFile::new(file, 0)?;
            let at = Position { number, path: path.clone(), log };
            Ok(Some(Next { at, newest: files.len() == 1 }))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_in_the_place_of_a_log_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        watch_directory(&real).unwrap();
        watch_directory(&link).unwrap_err();
    }
}
