//! `staticPodPath`: a directory, or one file.

use super::{
    SHORTEST_CHECK, SourceHandle, SourceOptions,
    core::{EntryLook, LONGEST_WRITE, Listed, Listing, SETTLING},
    hints::{self, Hint, Hints},
    lister::{Lister, LookContext},
    output::Output,
};
use crate::{blocking::SOURCES, clock, model::SourceKind};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Hints that follow each other this closely lead to one look.
const QUIET: Duration = Duration::from_millis(2);
/// No hint waits longer than this for others.
const PATIENCE: Duration = Duration::from_millis(10);
/// While files are being written they are looked at this often.
const WRITING: Duration = Duration::from_millis(100);
/// A look that takes longer than this is shown as hanging (a dead network file system).
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// The directory or file of `staticPodPath`.
#[derive(Debug)]
pub struct DirectorySource {
    lister: Lister,
    output: Output,
    check_every: Duration,
    /// How long a writer that writes nothing keeps its file from being read.
    longest_write: Duration,
}

impl DirectorySource {
    /// A source that reads `path`, a directory or a file. It need not exist.
    #[must_use]
    pub fn new(path: impl AsRef<Path>, options: SourceOptions) -> (Self, SourceHandle) {
        // Without the trailing slash, through which a link is not seen as one.
        let path: PathBuf = path.as_ref().components().collect();
        let check_every = options.check_every.max(SHORTEST_CHECK);
        let location = path.to_string_lossy().into_owned();
        let (output, reader, handle) = Output::new(SourceKind::File, &location, options);
        let lister = Lister::new(path, reader, output.state().read_before());
        (Self { lister, output, check_every, longest_write: LONGEST_WRITE }, handle)
    }

    /// Looks until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let beats = self.output.beats();
        // Cancel safety: nothing that `work` does must be finished. A look under way ends by itself
        // and is not used.
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.work() => {}
            never = beats => match never {},
        }
    }

    async fn work(self) {
        let Self { mut lister, mut output, check_every, longest_write } = self;
        let mut hints = Hints::new(longest_write);
        let (mut told, mut first) = (false, true);
        loop {
            if let Err(error) = hints.revive() {
                if !told {
                    tracing::warn!(err = %error, "no inotify: manifests are read periodically");
                }
                told = true;
            }
            hints.drain();
            let (back, listing, again) = look(lister, &mut hints, &mut output).await;
            lister = back;
            // At the start the pods of all files are admitted together, by priority. One of a file
            // that was written just before would come after those of the others.
            let writing = |file: &Listed| matches!(file.look, EntryLook::Settling);
            if std::mem::take(&mut first) && listing.files.iter().any(writing) {
                sleep(SETTLING).await;
                continue;
            }
            let wake_at = output.take_in(listing);
            let now = Instant::now();
            let wake = wake_at.map(|at| now + at.saturating_sub(clock::now().boot));
            let hinted = match again {
                Hint::None => None,
                Hint::Soon => Some(now + WRITING),
                Hint::Now => Some(now + QUIET),
            };
            let clock = now + check_every;
            let due = wake.into_iter().chain(hinted).fold(clock, Instant::min);
            wait(due, &mut hints, &mut output).await;
        }
    }
}

/// One look, away from the event loop. Requests are answered meanwhile. With what the events that
/// came during the look ask for.
async fn look(lister: Lister, hints: &mut Hints, output: &mut Output) -> (Lister, Listing, Hint) {
    let now = clock::now();
    let mut known = LookContext {
        home: output.state().home(),
        accepted: output.state().pods(),
        closed: std::mem::take(&mut hints.files.closed),
        open: hints.open(),
    };
    hints.files.written.clear();
    let (watches, watched) = hints.lend();
    let path = lister.path().display().to_string();
    let job = SOURCES.run(move || {
        let mut lister = lister;
        // Watched first, listed then: what changes in between is a hint to look again.
        let watched = match watches {
            Some(mut watches) => hints::arm(&mut watches, watched, lister.path()),
            None => watched,
        };
        if watched.is_replaced {
            known.open.clear();
        }
        let listing = lister.look(&known, now);
        (lister, watched, listing)
    });
    let slow = sleep(HANGS_AFTER);
    tokio::pin!(slow, job);
    // What a request wants to see may have changed after this look has read it.
    let mut asked = false;
    let (mut lister, watched, mut listing) = loop {
        // Cancel safety: the job is only borrowed, a command is received whole or not at all, and
        // the sleep is pinned outside.
        tokio::select! {
            done = &mut job => match done {
                Ok(done) => break done,
                Err(crashed) => panic!("{crashed}"),
            },
            Some(command) = output.command() => asked |= output.answer(command),
            () = &mut slow, if !slow.is_elapsed() => {
                output.complain(&format!("{path} does not answer"));
            }
        }
    };
    hints.give_back(watched);
    let hinted = hints.drain();
    let again = if asked { Hint::Now } else { hinted };
    lister.unsettle(&mut listing, &hints.files.written, now);
    (lister, listing, again)
}

/// Until `due`, or until a hint or a request asks for a look earlier.
async fn wait(mut due: Instant, hints: &mut Hints, output: &mut Output) {
    let mut first_hint: Option<Instant> = None;
    loop {
        // Cancel safety: events and commands are taken in whole or stay queued; the deadline is
        // absolute.
        tokio::select! {
            () = sleep_until(due) => return,
            hint = hints.next() => {
                let now = Instant::now();
                match hint {
                    Hint::None => {}
                    Hint::Soon => due = due.min(now + WRITING),
                    Hint::Now => {
                        let first = *first_hint.get_or_insert(now);
                        let quiet = (now + QUIET).min(first + PATIENCE);
                        due = if first == now { due.min(quiet) } else { quiet };
                    }
                }
            }
            Some(command) = output.command() => {
                if output.answer(command) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
