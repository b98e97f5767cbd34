//! Running another program: a plugin that an administrator names and that prints credentials, for
//! the API server (`api`) or for registries (`image`), `mount` and `umount` (`worker`), or
//! `journalctl` (`serve`).
//!
//! A program is not trusted to end or to print little. It runs without a shell, in a process group
//! of its own, which is killed when the program takes too long, prints too much, or is not waited
//! for any more. What a plugin prints to standard output is never logged.

use crate::blocking::Pool;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    fmt, io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// The longest time that a plugin may run.
pub const PLUGIN_DEADLINE: Duration = Duration::from_secs(60);
/// The most that a program may print, in bytes. A token and a certificate have a few thousand.
const MAX_OUTPUT: u64 = 1 << 20;
/// How much of standard error is kept, in bytes.
const MAX_SAID: usize = 1024;

/// A program and how it is run.
#[derive(Clone, PartialEq, Eq)]
pub struct Program {
    /// The program: a path, or a name that is looked up in `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables in addition to those of the agent.
    pub env: Vec<(String, String)>,
}

/// Arguments and environment may hold secrets.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("program", &self.program).finish_non_exhaustive()
    }
}

/// What becomes of a program's standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardError {
    /// Nobody sees it.
    Dropped,
    /// Its beginning is part of the error.
    Shown,
}

/// Why a program printed nothing that can be used. The texts go on from the program's name.
#[derive(Debug, Error)]
pub enum ProgramFailure {
    /// It could not be started.
    #[error("can't be run: {0}")]
    Start(io::Error),
    /// Its output could not be read.
    #[error("printed something that can't be read: {0}")]
    Read(io::Error),
    /// It ran too long, and was killed.
    #[error("did not end within {} s and was killed{said}", .deadline.as_secs())]
    Late {
        /// The time that it had.
        deadline: Duration,
        /// Its standard error.
        said: Said,
    },
    /// It printed too much, and was killed.
    #[error("printed more than {MAX_OUTPUT} bytes and was killed")]
    TooLong,
    /// It said itself that it failed.
    #[error("failed ({0}){1}")]
    Failed(ExitStatus, Said),
}

/// The beginning of what a program has printed to standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said(Vec<u8>);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.0);
        match text.trim() {
            "" => f.write_str("; run it by hand to see why"),
            text => write!(f, ": {}", text.replace(char::is_control, " ")),
        }
    }
}

/// Kills the process group of a program, unless it was waited for.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0.take()
            && let Err(err) = killpg(group, Signal::SIGKILL)
        {
            tracing::debug!(%err, "cannot kill the process group of a program");
        }
    }
}

/// A program that runs. The fields are dropped in this order: the group's leader is not reaped yet
/// when its group is killed, so no other group can have its number.
struct Running {
    group: Group,
    child: Child,
}

/// What a program prints, while it runs. It has no limit and no deadline: whoever reads has them.
/// Dropping it kills the program and its children.
pub struct ProgramOutput {
    from: ChildStdout,
    errors: Option<ChildStderr>,
    running: Running,
}

impl ProgramOutput {
    /// Reads some bytes of its standard output; none when it has ended well. The exit code 1
    /// without a word on standard error counts as that: `journalctl --grep` has found nothing.
    ///
    /// # Errors
    /// It has failed: the error has the beginning of its standard error.
    ///
    /// # Cancel safety
    /// Nothing of the output is lost.
    pub async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(bytes).await?;
        if length > 0 {
            return Ok(length);
        }
        let mut said = Said::default();
        listen(self.errors.take(), &mut said.0).await;
        let status = self.running.child.wait().await?;
        self.running.group.0 = None;
        let found_nothing = status.code() == Some(1) && said.0.is_empty();
        if status.success() || found_nothing {
            return Ok(0);
        }
        Err(io::Error::other(ProgramFailure::Failed(status, said)))
    }
}

/// Starts a program whose output may be long.
///
/// # Errors
/// It can't be started.
///
/// # Cancel safety
/// Dropping it kills the program.
pub async fn output(command: Program, pool: &'static Pool) -> io::Result<ProgramOutput> {
    let started = pool.run(move || start(&command, Stdio::null(), StandardError::Shown)).await;
    let mut running = started.map_err(io::Error::other).flatten()?;
    let Child { stdout, stderr, .. } = &mut running.child;
    let (from, errors) = (stdout.take().ok_or(io::ErrorKind::BrokenPipe)?, stderr.take());
    Ok(ProgramOutput { from, errors, running })
}

/// Runs a program with `input` on its standard input, and gives what it prints. Its file system may
/// not answer: it is started on a thread of `pool`.
///
/// # Errors
/// When the program does not end well within `deadline`, or prints too much.
///
/// # Cancel safety
/// Dropping it kills the program and its children.
pub async fn run(
    command: Program,
    input: Vec<u8>,
    standard_error: StandardError,
    deadline: Duration,
    pool: &'static Pool,
) -> Result<Vec<u8>, ProgramFailure> {
    let mut said = Said::default();
    let finished = timeout(deadline, async {
        let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
        let started = pool.run(move || start(&command, stdin, standard_error)).await;
        let started =
            started.map_err(|crashed| ProgramFailure::Start(io::Error::other(crashed)))?;
        finish(started.map_err(ProgramFailure::Start)?, input, &mut said.0).await
    });
    match finished.await {
        Err(_) => Err(ProgramFailure::Late { deadline, said }),
        Ok(Err(failure)) => Err(failure),
        Ok(Ok((text, status))) if status.success() => Ok(text),
        Ok(Ok((_, status))) => Err(ProgramFailure::Failed(status, said)),
    }
}

fn start(command: &Program, stdin: Stdio, standard_error: StandardError) -> io::Result<Running> {
    let child = Command::new(&command.program)
        .args(&command.args)
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        // These speak to systemd in the agent's name.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_PID")
        .env_remove("WATCHDOG_USEC")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(match standard_error {
            StandardError::Dropped => Stdio::null(),
            StandardError::Shown => Stdio::piped(),
        })
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    // The agent is protected from the OOM killer (OOMScoreAdjust= of its unit), and no other
    // program is.
    if let Some(pid) = child.id() {
        let path = format!("/proc/{pid}/oom_score_adj");
        if let Err(err) = std::fs::write(path, "0") {
            tracing::debug!(%err, "cannot set the OOM score of a program");
        }
    }
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    Ok(Running { group: Group(pid.map(Pid::from_raw)), child })
}

/// Everything that a program prints, and how it ended. `said` gets its standard error meanwhile.
async fn finish(
    mut running: Running,
    input: Vec<u8>,
    said: &mut Vec<u8>,
) -> Result<(Vec<u8>, ExitStatus), ProgramFailure> {
    let Child { stdin, stdout, stderr, .. } = &mut running.child;
    let (stdin, stdout, stderr) = (stdin.take(), stdout.take(), stderr.take());
    let (text, (), ()) = tokio::try_join!(
        async {
            let mut text = Vec::new();
            if let Some(output) = stdout {
                let read = output.take(MAX_OUTPUT + 1).read_to_end(&mut text).await;
                read.map_err(ProgramFailure::Read)?;
            }
            if u64::try_from(text.len()).is_ok_and(|length| length > MAX_OUTPUT) {
                return Err(ProgramFailure::TooLong);
            }
            Ok(text)
        },
        async {
            listen(stderr, said).await;
            Ok(())
        },
        async {
            feed(stdin, &input).await;
            Ok(())
        },
    )?;
    let status = running.child.wait().await.map_err(ProgramFailure::Read)?;
    running.group.0 = None;
    Ok((text, status))
}

/// Keeps the beginning and reads all, so that the program never waits for a reader.
async fn listen(from: Option<impl AsyncRead + Unpin>, said: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut part = [0; 512];
    // An error ends it: what matters is on standard output.
    while let Ok(length @ 1..) = from.read(&mut part).await {
        let room = MAX_SAID.saturating_sub(said.len()).min(length);
        said.extend_from_slice(&part[..room]);
    }
}

/// A program that does not read its input says by its output whether it needed it.
async fn feed(to: Option<ChildStdin>, input: &[u8]) {
    let Some(mut to) = to else { return };
    if let Err(err) = to.write_all(input).await {
        tracing::debug!(%err, "a program has not read its input");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::blocking::REGISTRIES;
    use std::path::Path;

    fn command(script: &str) -> Program {
        Program {
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![("GIVEN".to_owned(), "given".to_owned())],
        }
    }

    async fn run_shown(command: Program, input: &str) -> Result<Vec<u8>, ProgramFailure> {
        run(command, input.into(), StandardError::Shown, PLUGIN_DEADLINE, &REGISTRIES).await
    }

    async fn wait_gone(pid: &str) {
        let process = Path::new("/proc").join(pid.trim());
        let gone = async {
            // A killed process without a parent stays a zombie where nobody reaps it.
            let zombie = || {
                std::fs::read_to_string(process.join("stat"))
                    .is_ok_and(|text| text.contains(") Z "))
            };
            while process.exists() && !zombie() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the process is there");
    }

    #[tokio::test]
    async fn a_program_gets_its_input_and_environment() {
        let text = run_shown(command("cat; echo \" $GIVEN\"; echo warning >&2"), "asked").await;
        assert_eq!(text.unwrap(), b"asked given\n");
        // One that reads nothing is as good.
        assert_eq!(run_shown(command("echo x"), &"y".repeat(1000)).await.unwrap(), b"x\n");
        let quiet =
            run(command("cat"), Vec::new(), StandardError::Dropped, PLUGIN_DEADLINE, &REGISTRIES)
                .await;
        assert_eq!(quiet.unwrap(), b"");
    }

    #[tokio::test]
    async fn output_without_end_wait_cut_and_the_program_killed() {
        let error = run_shown(command("yes"), "").await.unwrap_err();
        assert!(matches!(error, ProgramFailure::TooLong), "{error}");
    }

    #[tokio::test]
    async fn standard_error_wait_cut_and_shown_where_it_is_asked_for() {
        let long =
            command("echo 'no\taccess' >&2; head -c 100000 /dev/zero | tr '\\0' x >&2; exit 3");
        let text = run_shown(long, "").await.unwrap_err().to_string();
        assert!(text.starts_with("failed (exit status: 3): no access xxx"), "{text}");
        assert!(text.len() < MAX_SAID + 100, "{}", text.len());
        let hidden = command("echo SECRET >&2; exit 3");
        let hidden =
            run(hidden, Vec::new(), StandardError::Dropped, PLUGIN_DEADLINE, &REGISTRIES).await;
        let text = hidden.unwrap_err().to_string();
        assert_eq!(text, "failed (exit status: 3); run it by hand to see why");
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("echo $$ > {}; echo asking >&2; exec sleep 1000", file.display());
        let deadline = Duration::from_secs(8);
        let input = b"x".to_vec();
        let late = run(command(&script), input, StandardError::Shown, deadline, &REGISTRIES);
        let error = late.await.unwrap_err().to_string();
        assert_eq!(error, "did not end within 8 s and was killed: asking");
        wait_gone(&std::fs::read_to_string(&file).unwrap()).await;
    }

    #[tokio::test]
    async fn dropping_kills_the_program_and_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pids");
        let script =
            format!("sleep 1000 & echo $! $$ > {0}.new; mv {0}.new {0}; wait", file.display());
        let started = async {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = run_shown(command(&script), "") => panic!("it ended"),
            () = started => {}
        }
        for pid in std::fs::read_to_string(&file).unwrap().split_whitespace() {
            wait_gone(pid).await;
        }
    }

    #[tokio::test]
    async fn long_output_is_read_while_the_program_runs() {
        let mut bytes = [0; 100];
        let mut endless = output(command("yes"), &REGISTRIES).await.unwrap();
        assert!(endless.read(&mut bytes).await.unwrap() > 0);
        drop(endless);
        let failing = output(command("echo out; echo why >&2; exit 3"), &REGISTRIES);
        let mut failing = failing.await.unwrap();
        assert_eq!(failing.read(&mut bytes).await.unwrap(), 4);
        let error = failing.read(&mut bytes).await.unwrap_err().to_string();
        assert_eq!(error, "failed (exit status: 3): why");
        let mut nothing = output(command("exit 1"), &REGISTRIES).await.unwrap();
        assert_eq!(nothing.read(&mut [0; 10]).await.unwrap(), 0);
        let mut short = output(command("echo out"), &REGISTRIES).await.unwrap();
        assert_eq!(short.read(&mut bytes).await.unwrap(), 4);
        assert_eq!(short.read(&mut bytes).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_program_that_can_not_be_run_is_an_error() {
        let missing = Program { program: "/nonexistent/program".into(), ..command("") };
        assert!(matches!(run_shown(missing, "").await, Err(ProgramFailure::Start(_))));
        let nul = Program { args: vec!["a\0b".to_owned()], ..command("") };
        assert!(matches!(run_shown(nul, "").await, Err(ProgramFailure::Start(_))));
    }
}
