//! Who uses what is short when no pod does: the largest processes outside the pods' cgroups, the
//! largest directories and files of the usual places. For people to read: no process is ever
//! stopped and nothing removed because of it.

use super::{
    core::{Process, is_below, process, tops},
    walk::{self, Turns},
};
use crate::model::Space;
use nix::sys::stat::{major, minor};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// Where large directories are usually found, besides the top of a file system; each of what is in
/// them is measured by itself.
const PLACES: [&str; 8] =
    ["/var", "/var/lib", "/var/log", "/var/cache", "/tmp", "/home", "/root", "/opt"];

/// A process outside the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outsider {
    /// Its process id.
    pub pid: u32,
    /// What it is called and uses.
    pub process: Process,
}

/// A directory, or a file, outside the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeDirectory {
    /// Which.
    pub path: PathBuf,
    /// What lies in it, on its own file system.
    pub space: Space,
}

/// The `most` processes outside the cgroups `pods` (names from the root: `/kubepods`) with the
/// largest `size`, the largest first. Blocks for about 20 µs a process: not for the event loop. A
/// process that goes away meanwhile does not count.
#[must_use]
pub fn processes(
    proc: &Path,
    pods: &[String],
    most: usize,
    size: fn(&Process) -> u64,
) -> Vec<Outsider> {
    let mut found: Vec<Outsider> = Vec::new();
    for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let text = |name: &str| super::read(&entry.path().join(name)).ok();
        let Some(process) = text("status").as_deref().and_then(process) else { continue };
        let beaten = |last: &Outsider| size(&last.process) < size(&process);
        let large = found.len() < most || found.last().is_some_and(beaten);
        // The cgroup is only read of those that matter.
        let ours = || text("cgroup").is_none_or(|cgroup| is_below(&cgroup, pods));
        if size(&process) == 0 || !large || ours() {
            continue;
        }
        let at = found.partition_point(|other| size(&other.process) >= size(&process));
        found.insert(at, Outsider { pid, process });
        found.truncate(most);
    }
    found
}

/// The `most` largest directories and files in the usual places on the file system of `same`, by
/// `size`, without those in `known`, which are accounted for otherwise: the root directory and the
/// logs of pods. The runtime's directory is not among them, because images belong to no pod. All of
/// it takes no longer than `within`: what was counted by then counts.
///
/// # Cancel safety
/// Nothing is lost; walks end soon after.
pub async fn directories(
    same: &Path,
    known: &[PathBuf],
    most: usize,
    within: Duration,
    size: fn(&Space) -> u64,
) -> Vec<LargeDirectory> {
    let here = same.to_owned();
    let tops = move || tops_of(&here);
    directories_in((&PLACES.map(PathBuf::from), tops), same, known, most, (within, size)).await
}

pub(super) async fn directories_in(
    (places, tops): (&[PathBuf], impl FnOnce() -> Vec<PathBuf> + Send + 'static),
    same: &Path,
    known: &[PathBuf],
    most: usize,
    (within, size): (Duration, fn(&Space) -> u64),
) -> Vec<LargeDirectory> {
    let until = Instant::now() + within;
    let turns: Turns = Arc::new(Semaphore::new(1));
    let (mut all, here, others) = (places.to_vec(), same.to_owned(), known.to_vec());
    let list = move |_: &mut _| {
        all.extend(tops());
        Ok(candidates(&all, &here, &others))
    };
    let Ok(turn) = walk::turn(&turns, within).await else { return Vec::new() };
    let Ok(candidates) = walk::on_thread(&turn, same, within, list).await else {
        return Vec::new();
    };
    let mut found: BTreeMap<(u64, PathBuf), Space> = BTreeMap::new();
    for (path, file) in candidates {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let space = match file {
            Some(space) => space,
            None => match walk::walk(&turn, &path, &[], left).await {
                Ok(tree) => tree.all,
                Err(_) => continue,
            },
        };
        found.insert((size(&space), path), space);
        while found.len() > most {
            found.pop_first();
        }
    }
    let largest = found.into_iter().rev();
    largest.map(|((_, path), space)| LargeDirectory { path, space }).collect()
}

/// Where the whole file system of a path is mounted.
fn tops_of(same: &Path) -> Vec<PathBuf> {
    let Ok(device) = fs::metadata(same).map(|found| found.dev()) else { return Vec::new() };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = format!("{}:{}", major(device), minor(device));
    tops(&mounts, &device).into_iter().map(PathBuf::from).collect()
}

/// What is in `places` and lies on the file system of `same`, none of it in another: directories,
/// which are still to be measured, and files.
fn candidates(places: &[PathBuf], same: &Path, known: &[PathBuf]) -> Vec<(PathBuf, Option<Space>)> {
    let Ok(wanted) = fs::metadata(same).map(|found| found.dev()) else { return Vec::new() };
    let entries = places.iter().flat_map(fs::read_dir).flatten().flatten();
    let candidate = |path: PathBuf| {
        let is_known = known.iter().any(|k| k.starts_with(&path) || path.starts_with(k));
        let found = fs::symlink_metadata(&path).ok().filter(|found| found.dev() == wanted)?;
        if places.contains(&path) || is_known || !(found.is_dir() || found.is_file()) {
            return None;
        }
        let space = Space { bytes: found.blocks().saturating_mul(512), inodes: 1 };
        Some((path, found.is_file().then_some(space)))
    };
    entries.filter_map(|entry| candidate(entry.path())).collect()
}
