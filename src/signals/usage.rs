//! What pods use, measured when a decision needs it: memory and tasks from their cgroups; logs, emptyDirs and the
//! writable layers of running containers by looking at every file; other layers as the runtime answers, which may be
//! ten seconds old. Each part has its own deadline: what can't be measured is missing in the answer, and the rest is
//! there.

use super::{
    core::upper_dir,
    memory::{cgroup_memory, cgroup_tasks},
    walk::{self, Turns, WalkError},
};
use crate::{
    clock,
    model::{
        CgroupDirs, ContainerId, ContainerUse, PodKey, PodUid, PodUse, Space, VolumePlace,
        VolumeUse,
    },
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinSet};

/// Directories that are walked at a time.
const WALKS: usize = 4;

/// Where the parts of a pod are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlaces {
    /// Full name.
    pub key: PodKey,
    /// Which incarnation.
    pub uid: PodUid,
    /// Its cgroup; `None` where it has none.
    pub cgroup: Option<CgroupDirs>,
    /// Its containers.
    pub containers: Vec<ContainerPlaces>,
    /// Its emptyDirs.
    pub volumes: Vec<VolumePlace>,
    /// Its log directory, with one below it for each container.
    pub logs: Option<PathBuf>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlaces {
    /// Name in the pod.
    pub name: Box<str>,
    /// The runtime's id of its newest instance.
    pub id: Option<ContainerId>,
    /// Its writable layer, where that is known: [`find_layers`].
    pub layer: Option<PathBuf>,
}

/// Finds the writable layers of the containers that run: what their root is an overlay over. The kernel tells, so that
/// it needs no runtime. (A container that is privileged enough to forge it is measured wrongly, and nobody else.)
pub fn find_layers(pod: &mut PodPlaces) {
    let Some(dirs) = &pod.cgroup else { return };
    let below = children(&dirs.memory);
    for container in &mut pod.containers {
        let Some(id) = &container.id else { continue };
        let cgroup = below.iter().find(|(name, _)| is_of(name, id)).map(|(_, path)| path);
        container.layer = cgroup.and_then(|cgroup| {
            let processes = fs::read_to_string(cgroup.join("cgroup.procs")).ok()?;
            let first = processes.lines().next()?;
            upper_dir(&fs::read_to_string(format!("/proc/{first}/mountinfo")).ok()?)
        });
    }
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Memory and tasks: takes microseconds for a pod, and no thread.
    Cgroups,
    /// Logs and emptyDirs, and memory and tasks.
    Everything,
}

/// What a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The numbers.
    pub usage: PodUse,
    /// Boot time before the first of them was taken; writable layers have the runtime's own times.
    pub measured_at: Duration,
    /// What could not be measured and why, a sentence each.
    pub missing: Vec<String>,
}

/// Measures pods, several at once. Cheap to clone; all clones take turns.
#[derive(Clone, Debug)]
pub struct Measurer {
    turns: Turns,
}

impl Default for Measurer {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(WALKS)) }
    }
}

/// A part that is walked: the pod's logs, or its nth volume, or the layer of its nth container.
enum Walked {
    Logs(Result<walk::Tree, WalkError>),
    Layer(usize, Result<Space, WalkError>),
    Volume(usize, Result<Space, WalkError>),
}

impl Measurer {
    /// Measures all of `pods` and returns them in the same order. `within` is for each directory; `layers`, which
    /// runs meanwhile, tells the writable layer of each container that could be measured.
    ///
    /// # Cancel safety
    /// Nothing is lost; walks end soon after.
    pub async fn measure(
        &self,
        pods: &[PodPlaces],
        parts: Parts,
        within: Duration,
        layers: impl Future<Output = BTreeMap<ContainerId, Space>>,
    ) -> Vec<Measured> {
        let mut measured = Vec::with_capacity(pods.len());
        for pod in pods {
            measured.push(from_cgroups(pod));
            tokio::task::yield_now().await;
        }
        let mut walks = JoinSet::new();
        if parts == Parts::Everything {
            for (nth, pod) in pods.iter().enumerate() {
                self.start_walks(&mut walks, nth, pod, within);
            }
        }
        let walked = async {
            while let Some(walked) = walks.join_next().await {
                // One that panicked stays unmeasured.
                if let Ok((nth, part)) = walked {
                    put(&mut measured[nth], part);
                }
            }
        };
        let ((), layers) = tokio::join!(walked, layers);
        for (pod, measured) in pods.iter().zip(&mut measured) {
            for (place, container) in pod.containers.iter().zip(&mut measured.usage.containers) {
                let told = place.id.as_ref().and_then(|id| layers.get(id)).copied();
                // One that was never made has none.
                let none = place.id.is_none().then(Space::default);
                container.layer = container.layer.or(told).or(none);
            }
        }
        measured
    }

    fn start_walks(
        &self,
        walks: &mut JoinSet<(usize, Walked)>,
        pod_nth: usize,
        pod: &PodPlaces,
        within: Duration,
    ) {
        if let Some(logs) = pod.logs.clone() {
            let turns = Arc::clone(&self.turns);
            walks.spawn(
                async move { (pod_nth, Walked::Logs(walk::walk(&turns, &logs, within).await)) },
            );
        }
        for (nth, container) in pod.containers.iter().enumerate() {
            let Some(layer) = container.layer.clone() else { continue };
            let turns = Arc::clone(&self.turns);
            walks.spawn(async move {
                let space = walk::walk(&turns, &layer, within).await.map(|tree| tree.all);
                (pod_nth, Walked::Layer(nth, space))
            });
        }
        for (nth, volume) in pod.volumes.iter().cloned().enumerate() {
            let turns = Arc::clone(&self.turns);
            walks.spawn(async move {
                let space = match volume.in_memory {
                    true => walk::mounted(&turns, &volume.path, within).await,
                    false => walk::walk(&turns, &volume.path, within).await.map(|tree| tree.all),
                };
                (pod_nth, Walked::Volume(nth, space))
            });
        }
    }
}

fn put(measured: &mut Measured, part: Walked) {
    let Measured { usage, missing, .. } = measured;
    match part {
        Walked::Logs(Ok(tree)) => {
            usage.logs = Some(tree.all);
            for container in &mut usage.containers {
                container.logs = Some(tree.branch(&container.name));
            }
        }
        Walked::Logs(Err(why)) => missing.push(format!("logs: {why}")),
        Walked::Layer(nth, space) => {
            let container = &mut usage.containers[nth];
            match space {
                Ok(space) => container.layer = Some(space),
                Err(why) => missing.push(format!("layer of {:?}: {why}", container.name)),
            }
        }
        Walked::Volume(nth, space) => {
            let volume = &mut usage.volumes[nth];
            match space {
                Ok(space) => volume.space = Some(space),
                Err(why) => missing.push(format!("volume {:?}: {why}", volume.name)),
            }
        }
    }
}

/// Memory and tasks; all else is there and not measured.
fn from_cgroups(pod: &PodPlaces) -> Measured {
    let mut missing = Vec::new();
    let measured_at = clock::now().boot;
    let mut told = |what: &str, read: Result<u64, super::NoReading>| {
        read.map_err(|why| missing.push(format!("{what}: {why}"))).ok()
    };
    let dirs = pod.cgroup.as_ref();
    let memory = dirs.and_then(|dirs| told("memory", cgroup_memory(&dirs.memory)));
    let processes = dirs.and_then(|dirs| told("tasks", cgroup_tasks(&dirs.pids)));
    let below = dirs.map_or_else(BTreeMap::new, |dirs| children(&dirs.memory));
    let container = |place: &ContainerPlaces| {
        // `<id>`, `cri-containerd-<id>.scope`, `crio-<id>.scope`; gone when it does not run.
        let has = |name: &&String| place.id.as_ref().is_some_and(|id| is_of(name, id));
        let directory = below.keys().find(has).and_then(|name| below.get(name));
        ContainerUse {
            name: place.name.clone(),
            memory: directory.and_then(|directory| cgroup_memory(directory).ok()),
            logs: None,
            layer: None,
        }
    };
    let volume = |place: &VolumePlace| VolumeUse {
        name: place.name.clone(),
        in_memory: place.in_memory,
        space: None,
    };
    let usage = PodUse {
        key: pod.key.clone(),
        uid: pod.uid.clone(),
        memory,
        processes,
        containers: pod.containers.iter().map(container).collect(),
        volumes: pod.volumes.iter().map(volume).collect(),
        logs: None,
    };
    Measured { usage, measured_at, missing }
}

/// The cgroups in a pod's.
fn children(directory: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let named =
        directories.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry)));
    named.map(|(name, entry)| (name, entry.path())).collect()
}

/// Whether a cgroup's directory is that of a container.
fn is_of(name: &str, id: &ContainerId) -> bool {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    name.strip_suffix(id.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
}
