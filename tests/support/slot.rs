//! A number that belongs to one test world as long as it lives, and the directory that goes with
//! it.
//!
//! Bridge, subnet, ports and cgroup root follow from the number, so that worlds of several tests
//! and test binaries run side by side. Each user has numbers of its own, so tests of two users at
//! once may use the same ports. The number is held by a kernel lock: it is free again however its
//! owner ended. Whoever takes it next first removes what the last owner left.

use super::containerd;
use std::{
    fs::{self, DirBuilder, File, TryLockError},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// 200 and up are for scripts: `scripts/demo` and `scripts/text-order`.
const SLOTS: u8 = 200;

/// A number with its directory; both are given back when it is dropped.
pub struct Slot {
    number: u8,
    dir: PathBuf,
    _lock: File,
}

impl Slot {
    /// Takes a free number.
    pub fn take() -> Self {
        let slot = (0..SLOTS).find_map(Self::lock);
        let slot = slot.unwrap_or_else(|| panic!("all {SLOTS} slots are taken"));
        slot.clean();
        fs::create_dir(&slot.dir).unwrap();
        slot
    }

    /// Takes a number, with everything that its last owner has left; `None` when it is taken.
    fn lock(number: u8) -> Option<Self> {
        let base = base();
        let lock = File::create(base.join(format!("{number}.lock"))).unwrap();
        match lock.try_lock() {
            Ok(()) => Some(Self { number, dir: base.join(number.to_string()), _lock: lock }),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(err)) => panic!("cannot lock slot {number}: {err}"),
        }
    }

    /// The number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// An empty directory at first.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A port of its own on loopback.
    pub fn port(&self) -> u16 {
        21_000 + u16::from(self.number)
    }

    /// The port of an agent's HTTPS API.
    pub fn api_port(&self) -> u16 {
        20_000 + u16::from(self.number)
    }

    /// Another one. Those from 22,000 on are a scenario's, and from 24,000 on a control plane's.
    pub fn second_port(&self) -> u16 {
        23_000 + u16::from(self.number)
    }

    /// The first of two ports of the host that pods take, on all addresses.
    pub fn host_ports(&self) -> u16 {
        28_000 + 2 * u16::from(self.number)
    }

    /// The cgroup that is made together with the slot's containerd, for the agent.
    pub fn cgroup_root(&self) -> String {
        format!("/nodelet-{}", self.number)
    }

    /// The name of a network namespace of its own, for who makes one.
    pub fn network_namespace(&self) -> String {
        format!("nodelet-link-{}", self.number)
    }

    /// Ends and removes everything that carries this slot's names.
    fn clean(&self) {
        self.kill_processes();
        if self.dir.join("containerd").exists() {
            containerd::remove(&self.dir.join("containerd"));
        }
        let namespace = self.network_namespace();
        if Path::new("/run/netns").join(&namespace).exists() {
            // The wire into it goes along.
            let removed = Command::new("ip").args(["netns", "del", &namespace]).status();
            if !removed.is_ok_and(|status| status.success()) {
                super::say_loudly(&format!("cannot remove network namespace {namespace}"));
            }
        }
        for mount in mounts_under(&self.dir) {
            if let Err(err) = nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH) {
                super::say_loudly(&format!("cannot unmount {}: {err}", mount.display()));
            }
        }
        if let Err(err) = fs::remove_dir_all(&self.dir)
            && err.kind() != std::io::ErrorKind::NotFound
        {
            super::say_loudly(&format!("cannot remove {}: {err}", self.dir.display()));
        }
    }

    /// Kills whatever was started with a path in our directory.
    fn kill_processes(&self) {
        let mut pids: Vec<i32> = Vec::new();
        let ours = format!("{}/", self.dir.display());
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if let Some(pid) = pid
                && String::from_utf8_lossy(&command).contains(&ours)
            {
                pids.push(pid);
            }
        }
        for pid in pids {
            // Gone already is fine: that is what is wanted.
            let _gone = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.clean();
    }
}

/// The directory of all slots. Files below it name programs that root runs, so nobody else may
/// write there. It is not in /tmp, which may be in memory.
fn base() -> PathBuf {
    let user = nix::unistd::geteuid();
    let base = PathBuf::from(format!("/var/tmp/nodelet-test-{user}"));
    // Others may pass through it: a pod with `hostUsers: false` does so as another user.
    if let Err(err) = DirBuilder::new().mode(0o711).create(&base)
        && err.kind() != std::io::ErrorKind::AlreadyExists
    {
        panic!("cannot make {}: {err}", base.display());
    }
    let found = fs::symlink_metadata(&base).unwrap();
    let is_ours = found.is_dir() && found.uid() == user.as_raw() && found.mode() & 0o022 == 0;
    assert!(is_ours, "{} must be a directory in which only user {user} writes", base.display());
    base
}

/// Removes what tests that were killed have left: everything of the numbers that nobody holds.
pub fn clean_abandoned() {
    let base = base();
    let left = (0..SLOTS).filter(|number| base.join(number.to_string()).exists());
    left.filter_map(Slot::lock).for_each(drop);
}

/// Mount points under `dir`, the innermost first.
pub fn mounts_under(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut mounts: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    mounts.reverse();
    mounts
}
