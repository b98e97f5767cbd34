//! One program of the control plane as a process.

use crate::support::process::{Process, Stopped};
use nix::unistd::Pid;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard},
};

/// A program with its arguments, running or not.
pub struct Component {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Component {
    /// Prepares `program`, which logs to a file below `dir`; it is not started.
    pub fn prepare(program: &Path, dir: &Path, arguments: Vec<String>) -> Self {
        let name = program.file_name().unwrap().to_string_lossy().into_owned();
        let log = dir.join(name).with_extension("log");
        Self { program: program.to_owned(), arguments, log, child: Mutex::default() }
    }

    /// Starts it; does not wait until it answers.
    pub fn start(&self) {
        assert!(!self.is_running(), "{} runs already", self.program.display());
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        *self.child() = Some(command.spawn().unwrap());
    }

    /// `kill -9`, and waits until it is gone; gone already is fine.
    pub fn kill(&self) {
        let child = self.child().take();
        if let Some(mut child) = child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops it until what this gives is dropped: its ports are open and nobody answers.
    pub fn freeze(&self) -> Stopped {
        Stopped::stop(Pid::from_raw(i32::try_from(self.pid()).unwrap()))
    }

    /// The process id of the running program.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child().as_ref().expect("it runs").id()
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.child().as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Its resident memory in MiB.
    #[track_caller]
    pub fn rss_mib(&self) -> u64 {
        let text = Process::by_pid(i32::try_from(self.pid()).unwrap()).status("VmRSS");
        text.split(' ').next().unwrap().parse::<u64>().unwrap() / 1024
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap()
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        self.kill();
    }
}
