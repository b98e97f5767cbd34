//! Goes on printing a container's log while it is written: across rotations of the file and across
//! restarts of the container, until the pod's log directory is gone.
//!
//! inotify says when to look; a look once a second stands behind it.

use super::{find, line::Printer, read::LogFile};
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

/// The run that is printed.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) number: u32,
    pub(super) path: PathBuf,
    pub(super) log: LogFile,
}

/// Prints until `container`, the directory, is gone.
pub(super) async fn follow(
    container: &Path,
    mut position: Position,
    printer: &mut Printer<impl Write>,
) -> io::Result<()> {
    // Without inotify (a machine has so many watches) the look once a second is all there is.
    let mut hints = hints(container).ok();
    loop {
        position.log.print(printer)?;
        printer.flush()?;
        if let Some(next) = next_file(container, &position)? {
            // What was written between the last look and the switch.
            position.log.print(printer)?;
            position.log.finish(printer)?;
            if next.number != position.number {
                printer.finish()?;
            }
            position = next;
            continue;
        }
        if !container.is_dir() {
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

/// Changes of the log directory.
fn hints(container: &Path) -> io::Result<inotify::EventStream<Vec<u8>>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE_SELF;
    inotify.watches().add(container, mask)?;
    inotify.into_event_stream(vec![0; 4096])
}

/// The file to go on with: what a rotation put in place of this one, or the first file of the next
/// run.
fn next_file(container: &Path, position: &Position) -> io::Result<Option<Position>> {
    let number = position.number;
    match fs::metadata(&position.path) {
        Ok(found) if found.ino() != position.log.file().metadata()?.ino() => {
            return open(number, position.path.clone());
        }
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let later = find::runs(container)?.into_iter().find(|(found, _)| *found > number);
    match later {
        Some((number, run)) => match run.rotated.into_iter().next().or(run.current) {
            Some(path) => open(number, path),
            None => Ok(None),
        },
        None => Ok(None),
    }
}

fn open(number: u32, path: PathBuf) -> io::Result<Option<Position>> {
    match LogFile::open(&path, 0) {
        Ok(log) => Ok(Some(Position { number, path, log })),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
