//! Who uses what is short when no pod does: the largest processes outside the pods' cgroups, the largest directories
//! of the usual places. For people to read: nobody is ever stopped and nothing removed because of it.

use super::{
    core::{Process, is_below, process},
    walk::{self, Turns},
};
use crate::model::Space;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// Where large directories are usually found; each of their directories is measured by itself.
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

/// A directory outside the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeDirectory {
    /// Which.
    pub path: PathBuf,
    /// What lies in it, on its own file system.
    pub space: Space,
}

/// The `most` processes outside the cgroups `pods` (names from the root: `/kubepods`) with the largest `size`, the
/// largest first. Blocks for about 20 µs a process: not for the event loop. A process that goes away meanwhile
/// does not count.
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

/// The `most` largest directories in the usual places on the file system of `same`, by `size`, without those in
/// `known` (which are accounted for otherwise: the root directory, the runtime's, logs of pods). What is not
/// measured `within` this time altogether does not count.
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
    directories_in(&PLACES.map(PathBuf::from), same, known, most, (within, size)).await
}

pub(super) async fn directories_in(
    places: &[PathBuf],
    same: &Path,
    known: &[PathBuf],
    most: usize,
    (within, size): (Duration, fn(&Space) -> u64),
) -> Vec<LargeDirectory> {
    let until = Instant::now() + within;
    let turns: Turns = Arc::new(Semaphore::new(1));
    let (all, here, others) = (places.to_vec(), same.to_owned(), known.to_vec());
    let list = move |_: &mut _| Ok(candidates(&all, &here, &others));
    let Ok(candidates) = walk::on_thread(&turns, same, within, list).await else {
        return Vec::new();
    };
    let mut found: BTreeMap<(u64, PathBuf), Space> = BTreeMap::new();
    for path in candidates {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let Ok(tree) = walk::walk(&turns, &path, left).await else { continue };
        found.insert((size(&tree.all), path), tree.all);
        while found.len() > most {
            found.pop_first();
        }
    }
    let largest = found.into_iter().rev();
    largest.map(|((_, path), space)| LargeDirectory { path, space }).collect()
}

/// The directories in `places` that lie on the file system of `same`, none of them in another.
fn candidates(places: &[PathBuf], same: &Path, known: &[PathBuf]) -> Vec<PathBuf> {
    let device = |path: &Path| {
        fs::symlink_metadata(path).ok().filter(fs::Metadata::is_dir).map(|found| found.dev())
    };
    let Ok(wanted) = fs::metadata(same).map(|found| found.dev()) else { return Vec::new() };
    let entries = places.iter().flat_map(fs::read_dir).flatten().flatten();
    let counts = |path: &PathBuf| {
        let is_known = known.iter().any(|k| k.starts_with(path) || path.starts_with(k));
        !places.contains(path) && !is_known && device(path) == Some(wanted)
    };
    entries.map(|entry| entry.path()).filter(counts).collect()
}
