//! Killing what runs in a pod's cgroup, removing it, finding what is there.
//!
//! A privileged pod can make any number of cgroups below its own, deeper than a path can be long:
//! those are visited and removed by descriptors (`beneath`).

use super::{
    CgroupError, Cgroups, FoundPod,
    core::parse_procs,
    files::write_file,
    names::{self, DRIVERS, PARENTS},
    tree::{CgroupPlace, blocking, timed},
};
use crate::{
    beneath::{self, Removal, Slice},
    model::ContainerId,
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat},
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// Rounds of signals where the kernel can't kill a whole cgroup: processes may fork meanwhile.
const ROUNDS: usize = 5;
/// Pauses of [`Cgroups::remove_pod`]: doubled from the first up to the last, about 5 s together.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);
const ATTEMPTS: usize = 17;
/// The removal of many cgroups gives its thread back after this time.
const SLICE: Duration = Duration::from_millis(250);

impl Cgroups {
    /// Sends SIGKILL to every process of the pod, at once and without the runtime. Does not wait
    /// for their deaths. Returns whether there was a process to kill; a pod without cgroup has
    /// none.
    ///
    /// # Errors
    /// When the processes can't be listed or signalled.
    pub fn kill_pod(&self, name: &[impl AsRef<str>]) -> Result<bool, CgroupError> {
        if !self.is_managed() {
            return Ok(false);
        }
        let mut any = false;
        for place in self.places(name) {
            any |= self.kill_place(&place)?;
        }
        Ok(any)
    }

    /// Sends SIGKILL to every process of a container of the pod, without the runtime. Does not wait
    /// for their deaths. Returns whether there was a process to kill.
    ///
    /// # Errors
    /// As [`Self::kill_pod`].
    pub fn kill_container(
        &self,
        pod: &[impl AsRef<str>],
        id: &ContainerId,
    ) -> Result<bool, CgroupError> {
        if !self.is_managed() {
            return Ok(false);
        }
        let mut cgroups = Vec::new();
        for directory in self.places(pod).iter().flat_map(|place| self.all_paths(place)) {
            cgroups.extend(children(&directory)?);
        }
        cgroups.retain(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| id.has_cgroup(name))
        });
        let Some(first) = cgroups.first() else { return Ok(false) };
        signal_rounds(first, || {
            let mut pids = BTreeSet::new();
            cgroups.iter().try_for_each(|path| collect_processes(path, &mut pids))?;
            Ok(pids)
        })
    }

    fn kill_place(&self, place: &CgroupPlace) -> Result<bool, CgroupError> {
        if !self.is_inhabited(place)? {
            return Ok(false);
        }
        let Some(directory) = self.freezer_path(place) else {
            return self.signal_place(place);
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
        let signalled = self.signal_place(place);
        let thawed = thaw_tree(&directory);
        thawed.and(signalled)
    }

    /// Removes the pod's cgroup in every hierarchy, also those that only the runtime made cgroups
    /// in, and its slice, whichever driver made them. Kills what still runs there. Tried again for
    /// about 5 s while processes are dying. Nothing to do when there is none.
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
        timed("destroy", self.kill_and_remove(name)).await
    }

    async fn kill_and_remove(&self, name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let (this, places) = (self.clone(), self.places(name));
            blocking(move || places.iter().try_for_each(|place| this.kill_place(place).map(drop)))
                .await?;
            match self.remove_places(name).await {
                Err(CgroupError::Busy { .. }) if attempt < ATTEMPTS => {}
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        Ok(())
    }

    /// Every pod cgroup below `cgroupRoot`, in any hierarchy, including those of other programs.
    ///
    /// # Errors
    /// When a directory can't be listed.
    pub fn list_pods(&self) -> Result<Vec<FoundPod>, CgroupError> {
        let mut found = BTreeSet::new();
        if !self.is_managed() {
            return Ok(Vec::new());
        }
        for (parent, driver) in PARENTS.iter().flat_map(|p| DRIVERS.map(|driver| (*p, driver))) {
            let place = self.place(driver, parent);
            for path in self.all_paths(&place) {
                for child in children(&path)? {
                    let name = child.file_name().and_then(|name| name.to_str()).unwrap_or("");
                    let component = names::component(driver, place.last(), name);
                    if let Some(component) =
                        component.filter(|c| names::uid_of_component(c).is_some())
                    {
                        let parts = parent.iter().map(|part| (*part).to_owned());
                        found.insert(parts.chain([component]).collect::<Vec<String>>());
                    }
                }
            }
        }
        let pod = |name: Vec<String>| {
            let uid = name.last().and_then(|last| names::uid_of_component(last))?.into();
            Some(FoundPod { uid, name })
        };
        Ok(found.into_iter().filter_map(pod).collect())
    }

    async fn remove_places(&self, name: &[impl AsRef<str>]) -> Result<(), CgroupError> {
        for place in self.places(name) {
            self.remove_place(&place).await?;
        }
        Ok(())
    }

    /// One attempt at removing a cgroup. systemd would wait for processes: its slice is stopped
    /// when there are none.
    pub(super) async fn remove_place(&self, place: &CgroupPlace) -> Result<(), CgroupError> {
        let (this, here) = (self.clone(), place.clone());
        let pids = blocking(move || this.processes_in(&here)).await?;
        if !pids.is_empty() {
            let path = self.all_paths(place).next().unwrap_or_default();
            return Err(CgroupError::Busy { path, pids: pids.into_iter().collect() });
        }
        self.stop_slice(place).await?;
        loop {
            let (this, here) = (self.clone(), place.clone());
            match blocking(move || this.remove_directories(&here)).await? {
                Removal::Complete => return Ok(()),
                Removal::Unfinished => {}
            }
        }
    }

    /// Removes directories, bottom-up, for the time of a slice.
    fn remove_directories(&self, place: &CgroupPlace) -> Result<Removal, CgroupError> {
        let mut busy = None;
        let mut slice = Slice::new(SLICE);
        for path in self.all_paths(place) {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            match beneath::remove_cgroups(parent, name, &mut slice) {
                Ok(Removal::Complete) => {}
                Ok(Removal::Unfinished) => return Ok(Removal::Unfinished),
                Err(err) if err.raw_os_error() == Some(Errno::EBUSY as i32) => busy = Some(path),
                Err(source) => return Err(CgroupError::Io { operation: "remove", path, source }),
            }
        }
        match busy {
            Some(path) => {
                let pids = self.processes_in(place)?.into_iter().collect();
                Err(CgroupError::Busy { path, pids })
            }
            None => Ok(Removal::Complete),
        }
    }

    /// Processes in the cgroup of `name` and below, whichever driver made it.
    pub(super) fn processes(&self, name: &[impl AsRef<str>]) -> Result<BTreeSet<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for place in self.places(name) {
            pids.extend(self.processes_in(&place)?);
        }
        Ok(pids)
    }

    /// Processes in a cgroup and below, in any hierarchy.
    pub(super) fn processes_in(&self, place: &CgroupPlace) -> Result<BTreeSet<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for found in self.processes_by_hierarchy(place) {
            pids.extend(found?);
        }
        Ok(pids)
    }

    /// True when a process is in a cgroup or below. If so, the first of v1's ten hierarchies mostly
    /// tells.
    pub(super) fn is_inhabited(&self, place: &CgroupPlace) -> Result<bool, CgroupError> {
        for found in self.processes_by_hierarchy(place) {
            if !found?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn processes_by_hierarchy(
        &self,
        place: &CgroupPlace,
    ) -> impl Iterator<Item = Result<BTreeSet<i32>, CgroupError>> {
        self.all_paths(place).map(|path| {
            let mut pids = BTreeSet::new();
            collect_processes(&path, &mut pids)?;
            // The agent is not expected in such a cgroup. If it is, it must not kill itself.
            pids.remove(&Pid::this().as_raw());
            Ok(pids)
        })
    }

    fn signal_place(&self, place: &CgroupPlace) -> Result<bool, CgroupError> {
        let path = self.all_paths(place).next().unwrap_or_default();
        signal_rounds(&path, || self.processes_in(place)).map(|_| true)
    }
}

/// Sends SIGKILL until there is no process that has not had it. `cgroup` is for the error. Returns
/// whether there was one.
fn signal_rounds(
    cgroup: &Path,
    processes: impl Fn() -> Result<BTreeSet<i32>, CgroupError>,
) -> Result<bool, CgroupError> {
    let mut signalled = BTreeSet::new();
    for _ in 0..ROUNDS {
        let mut new = false;
        for pid in processes()? {
            new |= signalled.insert(pid);
            match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => {
                    let (path, source) = (cgroup.to_owned(), io::Error::from(errno));
                    return Err(CgroupError::Io { operation: "kill a process of", path, source });
                }
            }
        }
        if !new {
            break;
        }
    }
    Ok(!signalled.is_empty())
}

/// Freezing only narrows a race, so a refusal is no reason not to send the signals.
fn set_frozen(directory: &Path, frozen: bool) {
    if let Ok(Some(cgroup)) = open_cgroup(directory) {
        set_frozen_at(cgroup.as_fd(), frozen);
    }
}

/// v1 and v2 have different files for it; a cgroup that is gone needs none.
fn set_frozen_at(cgroup: BorrowedFd<'_>, frozen: bool) {
    let (state, number) = if frozen { ("FROZEN", "1") } else { ("THAWED", "0") };
    for (file, value) in [("freezer.state", state), ("cgroup.freeze", number)] {
        let written = open_file(cgroup, file, OFlag::O_WRONLY)
            .and_then(|mut file| file.write_all(value.as_bytes()));
        if let Err(err) = written
            && !is_gone(&err)
        {
            tracing::debug!(%err, "cannot set the freezer to {value}");
        }
    }
}

/// Thaws the pod and everything below: a paused container would keep a pending SIGKILL for ever.
fn thaw_tree(directory: &Path) -> Result<(), CgroupError> {
    visit_cgroups(directory, "thaw", |cgroup| {
        set_frozen_at(cgroup, false);
        Ok(())
    })
}

fn collect_processes(directory: &Path, pids: &mut BTreeSet<i32>) -> Result<(), CgroupError> {
    visit_cgroups(directory, "list the processes of", |cgroup| {
        let mut text = String::new();
        let read = open_file(cgroup, "cgroup.procs", OFlag::O_RDONLY)
            .and_then(|mut file| file.read_to_string(&mut text));
        match read {
            Ok(_) => pids.extend(parse_procs(&text)),
            Err(err) if is_gone(&err) => {}
            // A threaded cgroup: its processes are listed by the domain above.
            Err(err) if err.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {}
            Err(err) => return Err(err),
        }
        Ok(())
    })
}

/// Calls `visit` for a cgroup and all below it; nothing to do when it doesn't exist.
fn visit_cgroups(
    directory: &Path,
    operation: &'static str,
    visit: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
) -> Result<(), CgroupError> {
    let visited = match open_cgroup(directory) {
        Ok(Some(top)) => beneath::visit_tree(top, visit),
        Ok(None) => Ok(()),
        Err(err) => Err(err),
    };
    visited.map_err(|source| CgroupError::Io { operation, path: directory.to_owned(), source })
}

/// `None` when it doesn't exist.
fn open_cgroup(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match open(directory, flags, Mode::empty()).map_err(io::Error::from) {
        Err(err) if is_gone(&err) => Ok(None),
        opened => opened.map(Some),
    }
}

fn open_file(cgroup: BorrowedFd<'_>, name: &str, access: OFlag) -> io::Result<File> {
    let flags = access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(cgroup, name, flags, Mode::empty())?.into())
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

/// The directory or file is not there (any more); reading a cgroup that was just removed is ENODEV.
fn is_gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(Errno::ENODEV as i32)
}
