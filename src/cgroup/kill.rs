//! Killing what runs in a pod's cgroup, removing it, finding what is there.

use super::{
    CgroupError, Cgroups, FoundPod,
    core::{parse_procs, uid_of_directory},
    files::write_file,
};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Where pod cgroups are looked for, below `cgroupRoot`.
const PARENTS: [&[&str]; 3] =
    [&["kubepods"], &["kubepods", "burstable"], &["kubepods", "besteffort"]];
/// Rounds of signals where the kernel can't kill a whole cgroup: processes may fork meanwhile.
const ROUNDS: usize = 5;
/// Pauses of [`Cgroups::remove_pod`]: doubled from the first up to the last, about 5 s together.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);
const ATTEMPTS: usize = 17;

impl Cgroups {
    /// Sends SIGKILL to every process of the pod, at once and without the runtime. Does not wait
    /// for their deaths. Returns whether there was a process to kill; a pod without cgroup has none.
    ///
    /// # Errors
    /// When the processes can't be listed or signalled.
    pub fn kill_pod(&self, name: &[impl AsRef<str>]) -> Result<bool, CgroupError> {
        if !self.is_managed() {
            return Ok(false);
        }
        let pids = self.processes(name)?;
        if pids.is_empty() {
            return Ok(false);
        }
        let Some(directory) = self.freezer_path(name) else {
            return self.signal_rounds(name).map(|()| true);
        };
        // One write, race-free and recursive (v2, Linux 5.14).
        match write_file(&directory.join("cgroup.kill"), "1") {
            Ok(()) => return Ok(true),
            Err(err) if is_gone(&err) || err.kind() == io::ErrorKind::PermissionDenied => {}
            Err(source) => {
                let path = directory.join("cgroup.kill");
                return Err(CgroupError::Write { path, value: "1".to_owned(), source });
            }
        }
        // Frozen processes can't fork away from the signal; it takes effect when they thaw.
        set_frozen(&directory, true);
        let signalled = self.signal_rounds(name);
        thaw_tree(&directory);
        signalled.map(|()| true)
    }

    /// Removes the pod's cgroup in every hierarchy, also those that only the runtime made cgroups
    /// in. Kills what still runs there. Tried again for about 5 s while processes are dying.
    /// Nothing to do when there is none.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] when processes don't die (uninterruptible sleep); others as they come.
    ///
    /// # Cancel safety
    /// Dropping it leaves a part of the directories; the next call goes on.
    pub async fn remove_pod(&self, name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
        if !self.is_managed() {
            return Ok(());
        }
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            self.kill_pod(name)?;
            match self.remove_directories(name) {
                Err(CgroupError::Busy { .. }) if attempt < ATTEMPTS => {}
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        Ok(())
    }

    /// Every pod cgroup below `cgroupRoot`, in any hierarchy, whoever made it.
    ///
    /// # Errors
    /// When a directory can't be listed.
    pub fn list_pods(&self) -> Result<Vec<FoundPod>, CgroupError> {
        let mut found = BTreeSet::new();
        if !self.is_managed() {
            return Ok(Vec::new());
        }
        for parent in PARENTS {
            for path in self.all_paths(parent) {
                for child in children(&path)? {
                    let name = child.file_name().and_then(|name| name.to_str()).unwrap_or("");
                    if uid_of_directory(name).is_some() {
                        let parts = parent.iter().copied().chain([name]);
                        found.insert(parts.map(str::to_owned).collect::<Vec<String>>());
                    }
                }
            }
        }
        let pod = |name: Vec<String>| {
            let uid = name.last().and_then(|last| uid_of_directory(last))?.into();
            Some(FoundPod { uid, name })
        };
        Ok(found.into_iter().filter_map(pod).collect())
    }

    /// One attempt at removing the directories of `name`, bottom-up.
    pub(super) fn remove_directories(&self, name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
        let mut busy = None;
        for path in self.all_paths(name) {
            match remove_tree(&path) {
                Ok(()) => {}
                Err(err) if err.raw_os_error() == Some(Errno::EBUSY as i32) => busy = Some(path),
                Err(source) => return Err(CgroupError::Io { operation: "remove", path, source }),
            }
        }
        match busy {
            Some(path) => {
                let pids = self.processes(name)?.into_iter().collect();
                Err(CgroupError::Busy { path, pids })
            }
            None => Ok(()),
        }
    }

    /// Processes in the pod's cgroup and below, in any hierarchy.
    fn processes(&self, name: &[impl AsRef<str>]) -> Result<BTreeSet<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for path in self.all_paths(name) {
            collect_processes(&path, &mut pids)?;
        }
        // Nobody puts the agent there, but if somebody did, it would be the end of it.
        pids.remove(&Pid::this().as_raw());
        Ok(pids)
    }

    fn signal_rounds(&self, name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
        let mut signalled = BTreeSet::new();
        for _ in 0..ROUNDS {
            let mut new = false;
            for pid in self.processes(name)? {
                new |= signalled.insert(pid);
                match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(errno) => {
                        let path = self.own_paths(name).next().unwrap_or_default();
                        let source = io::Error::from(errno);
                        return Err(CgroupError::Io {
                            operation: "kill a process of",
                            path,
                            source,
                        });
                    }
                }
            }
            if !new {
                break;
            }
        }
        Ok(())
    }
}

/// v1 and v2 have different files for it; a cgroup that is gone needs none. Freezing only narrows
/// a race, so a refusal is no reason not to send the signals.
fn set_frozen(directory: &Path, frozen: bool) {
    let (state, number) = if frozen { ("FROZEN", "1") } else { ("THAWED", "0") };
    for (file, value) in [("freezer.state", state), ("cgroup.freeze", number)] {
        if let Err(err) = write_file(&directory.join(file), value)
            && !is_gone(&err)
        {
            tracing::debug!(directory = %directory.display(), %err, "cannot set the freezer to {value}");
        }
    }
}

/// Thaws the pod and everything below: a paused container would keep a pending SIGKILL for ever.
fn thaw_tree(directory: &Path) {
    set_frozen(directory, false);
    for child in children(directory).unwrap_or_default() {
        thaw_tree(&child);
    }
}

fn collect_processes(directory: &Path, pids: &mut BTreeSet<i32>) -> Result<(), CgroupError> {
    let path = directory.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => pids.extend(parse_procs(&text)),
        Err(err) if is_gone(&err) => {}
        // A threaded cgroup: its processes are listed by the domain above.
        Err(err) if err.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {}
        Err(source) => return Err(CgroupError::Io { operation: "read", path, source }),
    }
    for child in children(directory)? {
        collect_processes(&child, pids)?;
    }
    Ok(())
}

fn children(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let failed = |source| CgroupError::Io { operation: "list", path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(err) if is_gone(&err) => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut found = Vec::new();
    for entry in entries {
        match entry.and_then(|entry| Ok((entry.file_type()?, entry.path()))) {
            Ok((kind, path)) if kind.is_dir() => found.push(path),
            Ok(_) => {}
            Err(err) if is_gone(&err) => {}
            Err(source) => return Err(failed(source)),
        }
    }
    Ok(found)
}

/// `rmdir` from the leaves up. Files in a cgroup directory are the kernel's and go with it.
fn remove_tree(directory: &Path) -> io::Result<()> {
    for child in children(directory).map_err(io::Error::other)? {
        remove_tree(&child)?;
    }
    match fs::remove_dir(directory) {
        Err(err) if !is_gone(&err) => Err(err),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The directory or file is not there (any more); reading a cgroup that was just removed is ENODEV.
fn is_gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(Errno::ENODEV as i32)
}
