//! `nodelet cp`: files and directories are copied from and to a container.
//!
//! ```text
//!  from a container   tar cf - ── session ──► channel ──► thread: unpack below the destination
//!  to a container     thread: pack the source ──► channel ── session ──► tar xmf -
//! ```
//!
//! As with `kubectl cp`, `tar` in the container does its part. The container is not trusted: see
//! `unpack`.

mod pack;
mod pipe;
mod place;
mod unpack;

use super::{
    EXIT_NO_AGENT, Found, SessionError,
    carry::{Ends, InputEnd, Messages, OutputEnd},
    container, find, interrupted,
};
use crate::{
    beneath,
    cli::{
        args::{CpArgs, UsageError},
        complain,
    },
};
use pack::Source;
use pipe::{PipeReader, PipeWriter};
use place::{CopyPlace, Target, names_directory, own_name, parent};
use std::{
    ffi::OsStr,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use unpack::Unpacker;

/// Parts of an archive that wait to be unpacked or sent.
const PARTS: usize = 4;
/// How long an interrupted thread has to remove its unfinished file.
const CLEANUP: Duration = Duration::from_secs(2);
/// Exit codes with which a runtime may report that a command can't be started.
const NOT_STARTED: [u8; 2] = [126, 127];

/// Tells a problem that does not end the copying.
type Report<'a> = &'a mut dyn FnMut(&str);

/// Why files were not copied.
#[derive(Debug, Error)]
pub(in crate::cli) enum CopyError {
    #[error("can't read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("can't open the directory {path:?}")]
    Destination { path: PathBuf, source: io::Error },
    #[error("there is no directory {directory:?} in container {container}")]
    NoDirectory { directory: String, container: String },
    #[error("can't write {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("the archive that the container sent is damaged or incomplete")]
    Archive(#[source] io::Error),
    #[error("can't send the archive")]
    Send(#[source] io::Error),
    #[error("not copied: {0} of the files and directories")]
    Incomplete(u64),
    #[error("nothing was copied")]
    Nothing,
    #[error("tar in container {container} failed with exit code {code}")]
    Tar { container: String, code: u8 },
    #[error(
        "can't run tar in container {container}. It must be in the container's image: {reason}"
    )]
    NoTar { container: String, reason: String },
    #[error("the thread that copies files has crashed")]
    Crashed,
}

/// Copies files and directories between this machine and a container.
pub(in crate::cli) async fn cp(args: CpArgs) -> Result<ExitCode, SessionError> {
    let source = CopyPlace::parse(&args.source)?;
    let destination = CopyPlace::parse(&args.destination)?;
    let (pod, path, local, is_upload) = match (source, destination) {
        (CopyPlace::InPod { pod, path }, CopyPlace::Local(local)) => (pod, path, local, false),
        (CopyPlace::Local(local), CopyPlace::InPod { pod, path }) => (pod, path, local, true),
        (CopyPlace::Local(_), CopyPlace::Local(_))
        | (CopyPlace::InPod { .. }, CopyPlace::InPod { .. }) => {
            return Err(UsageError::OneInPod.into());
        }
    };
    let Some(found) = find(&args.agent, &pod, &args.namespace).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let container = container(&found.view, args.container.as_deref())?;
    let copy = Copy { found, container, path };
    if is_upload {
        copy.upload(&local).await?;
    } else {
        copy.download(&local).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A copy between a path in a container and one on this machine.
struct Copy {
    found: Found,
    container: String,
    path: String,
}

impl Copy {
    async fn download(&self, local: &Path) -> Result<(), SessionError> {
        let path = Path::new(&self.path);
        let is_directory = names_directory(local) || local.is_dir();
        let target = Target::new(local, is_directory, own_name(path));
        let base = beneath::open_base(&target.directory)
            .map_err(|source| CopyError::Destination { path: target.directory.clone(), source })?;
        let mut unpacker = Unpacker::new(own_name(path), target);
        let (stdout, parts) = mpsc::channel(PARTS);
        let work = on_thread(move || {
            unpacker.unpack(PipeReader::new(parts), base.as_fd(), &mut |text| complain(text))
        });
        // Options don't begin with `./`, whatever the name is.
        let (directory, name) = match own_name(path).and_then(OsStr::to_str) {
            Some(name) => (parent(path).to_str().unwrap_or_default(), format!("./{name}")),
            None => (&*self.path, ".".to_owned()),
        };
        let command = ["tar", "cf", "-", "-C", directory, &name];
        self.transfer(&command, InputEnd::None, Some(stdout), work).await
    }

    async fn upload(&self, local: &Path) -> Result<(), SessionError> {
        let source = Source::open(local)?;
        let path = Path::new(&self.path);
        let is_directory =
            names_directory(path) || self.is_directory(&self.path).await? == Some(true);
        let target = Target::new(path, is_directory, own_name(local));
        let directory = target.directory.to_str().unwrap_or_default().to_owned();
        // `tar` would fail as well. But a session of containerd 1.6 does not end while input waits
        // for a command that has ended.
        if self.is_directory(&directory).await? == Some(false) {
            let container = self.container.clone();
            return Err(CopyError::NoDirectory { directory, container }.into());
        }
        let (input, parts) = mpsc::channel(PARTS);
        let work = on_thread(move || {
            source.pack(target.name.as_deref(), PipeWriter::new(input), &mut |text| complain(text))
        });
        let command = ["tar", "xmf", "-", "-C", &directory];
        self.transfer(&command, InputEnd::Parts(parts), None, work).await
    }

    /// Whether a path is a directory in the container. `None` in a container that has no `test`.
    async fn is_directory(&self, path: &str) -> Result<Option<bool>, SessionError> {
        let output = OutputEnd::Parts { stdout: None, stderr: Messages::Dropped };
        let ends = Ends { input: InputEnd::None, output, tty: false };
        match self.found.exec(&self.container, &["test", "-d", path], ends).await {
            Ok(code) if NOT_STARTED.contains(&code) => Ok(None),
            Ok(code) => Ok(Some(code == 0)),
            Err(SessionError::Failed(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs `tar` in the container while `work` makes or reads its archive, until both have ended.
    async fn transfer(
        &self,
        command: &[&str],
        input: InputEnd,
        stdout: Option<mpsc::Sender<Vec<u8>>>,
        mut work: oneshot::Receiver<Result<(), CopyError>>,
    ) -> Result<(), SessionError> {
        let output = OutputEnd::Parts { stdout, stderr: Messages::Shown(Vec::new()) };
        let ends = Ends { input, output, tty: false };
        let both = async {
            let ended = self.found.exec(&self.container, command, ends).await;
            // The session has closed the channel: the thread comes to its end, too.
            let done = (&mut work).await.unwrap_or(Err(CopyError::Crashed));
            self.outcome(ended, done)
        };
        // Cancel-safe: after a signal the session is dropped with its channel.
        tokio::select! {
            outcome = both => return outcome,
            told = interrupted() => told?,
        }
        // A thread that hangs on a file system ends with this process.
        timeout(CLEANUP, work).await.ok();
        Err(SessionError::Interrupted)
    }

    /// A failure of the session comes first, because the thread then fails as well: its archive is
    /// incomplete. Only if the thread has ended the session is its own failure the cause.
    fn outcome(
        &self,
        ended: Result<u8, SessionError>,
        done: Result<(), CopyError>,
    ) -> Result<(), SessionError> {
        let container = self.container.clone();
        let no_tar = |reason| CopyError::NoTar { container: container.clone(), reason };
        match ended {
            Ok(0) => Ok(done?),
            Err(SessionError::Closed) => Err(done.err().map_or(SessionError::Closed, Into::into)),
            Ok(code) if NOT_STARTED.contains(&code) => {
                Err(no_tar(format!("exit code {code}")).into())
            }
            Ok(code) => Err(CopyError::Tar { container, code }.into()),
            Err(SessionError::Failed(reason)) if is_missing_program(&reason) => {
                Err(no_tar(reason).into())
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a runtime says that a program does not exist: runc in the words of Go, crun in its own.
fn is_missing_program(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    reason.contains("not found in $path") || reason.contains("no such file or directory")
}

/// Runs `work`, which blocks on its channel to the session. The thread is not one of the runtime:
/// the end of this process does not wait for it.
fn on_thread(
    work: impl FnOnce() -> Result<(), CopyError> + Send + 'static,
) -> oneshot::Receiver<Result<(), CopyError>> {
    let (done, result) = oneshot::channel();
    // Nobody receives it after an interrupt.
    thread::spawn(move || done.send(work()).ok());
    result
}
