//! What pods use, measured when a decision needs it: memory and tasks from their cgroups; logs,
//! emptyDirs, writable layers and the files that the agent and the runtime provide by looking at
//! every file; layers whose place is not known as the runtime answers, which may be ten seconds
//! old. What can't be measured is missing in the answer, and the rest is there. A walk that is not
//! finished in time has counted a lower bound ([`PartlyMeasured`]).

use super::{
    memory::{cgroup_memory, cgroup_tasks},
    stats::{any_process, network},
    walk::{self, Turn, WalkError},
    walk_queue::WalkQueue,
};
use crate::{
    clock,
    model::{
        CgroupDirs, ContainerId, ContainerUse, InterfaceStats, PartlyMeasured, PodKey, PodUid,
        PodUse, PodView, Space, VolumePlace, VolumeUse,
    },
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

/// How long a pod may wait for its turn. Pods that make their walks last delay the others by no
/// more than this. Those that had no turn come first the next time.
const TURN_PATIENCE: Duration = Duration::from_secs(15);
/// Directories in a pod's directory that are not counted with its files: emptyDirs are measured one
/// by one, and what is mounted for a `subPath` may be the host's.
const NO_FILES: &[&str] = &["volumes", "volume-subpaths"];

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
    /// Its directory below the root directory.
    pub files: Option<PathBuf>,
    /// Files of the runtime that its containers can write to.
    pub runtime_files: Vec<PathBuf>,
    /// Directories of the runtime that its containers can write to, besides layers.
    pub runtime_dirs: Vec<PathBuf>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlaces {
    /// Name in the pod.
    pub name: Box<str>,
    /// The runtime's id of its newest instance.
    pub id: Option<ContainerId>,
    /// Its writable layer, where the runtime has told that.
    pub layer: Option<PathBuf>,
}

/// Finds the places of a pod; `None` for what remains of one whose specification is lost.
pub type FindPlaces = Arc<dyn Fn(&PodView) -> Option<PodPlaces> + Send + Sync>;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Memory and tasks: takes microseconds for a pod, no thread, and no look at a disk.
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
    /// Walks of directories that are the agent's: logs, emptyDirs, files.
    pub(super) agent_walks: WalkQueue,
    /// Walks of the runtime's, which may lie on another disk: when that hangs, the agent's are
    /// measured all the same.
    pub(super) runtime_walks: WalkQueue,
    pub(super) turn_patience: Duration,
}

impl Default for Measurer {
    fn default() -> Self {
        let (agent_walks, runtime_walks) = (WalkQueue::default(), WalkQueue::default());
        Self { agent_walks, runtime_walks, turn_patience: TURN_PATIENCE }
    }
}

/// A part of a pod that is walked.
enum Part {
    Files(PathBuf),
    RuntimeFiles(Vec<PathBuf>),
    RuntimeDir(PathBuf),
    Logs(PathBuf),
    /// Of its nth container.
    Layer(usize, PathBuf),
    /// Its nth volume.
    Volume(usize, VolumePlace),
}

impl Part {
    /// The parts of a pod in the agent's directories. Those that are large in most pods come last:
    /// they have the time that the others leave.
    fn of_agent(pod: &PodPlaces) -> Vec<Self> {
        let volumes = pod.volumes.iter().cloned().enumerate();
        let volumes = volumes.map(|(nth, volume)| Self::Volume(nth, volume));
        let files = pod.files.clone().map(Self::Files);
        let logs = pod.logs.clone().map(Self::Logs);
        files.into_iter().chain(logs).chain(volumes).collect()
    }

    /// The same for the runtime's directories.
    fn of_runtime(pod: &PodPlaces) -> Vec<Self> {
        let layers = pod.containers.iter().enumerate();
        let layers = layers.filter_map(|(nth, one)| Some(Self::Layer(nth, one.layer.clone()?)));
        let dirs = pod.runtime_dirs.iter().cloned().map(Self::RuntimeDir);
        let files = Self::RuntimeFiles(pod.runtime_files.clone());
        [files].into_iter().chain(layers).chain(dirs).collect()
    }

    async fn measure(&self, turn: &Turn, within: Duration) -> Result<walk::Tree, WalkError> {
        let whole = |all| walk::Tree { all, whole: true, ..walk::Tree::default() };
        match self {
            Self::Files(path) => walk::walk(turn, path, NO_FILES, within).await,
            Self::RuntimeFiles(paths) => walk::files(turn, paths, within).await.map(whole),
            Self::Volume(_, VolumePlace { path, in_memory, .. }) => {
                walk::empty_dir(turn, path, *in_memory, within).await
            }
            Self::RuntimeDir(path) | Self::Logs(path) | Self::Layer(_, path) => {
                walk::walk(turn, path, &[], within).await
            }
        }
    }

    /// For people.
    fn name(&self, usage: &PodUse) -> String {
        match self {
            Self::Files(_) => "its files".to_owned(),
            Self::RuntimeFiles(_) => "the runtime's files".to_owned(),
            Self::RuntimeDir(_) => "a volume of its image".to_owned(),
            Self::Logs(_) => "logs".to_owned(),
            Self::Layer(nth, _) => format!("layer of {:?}", usage.containers[*nth].name),
            Self::Volume(_, volume) => format!("volume {:?}", volume.name),
        }
    }
}

/// The containers of a pod, and the sizes of their logs.
pub type ContainerLogs = Vec<(Box<str>, Space)>;

/// Parts of a pod, and what was found there.
type WalkedParts = Vec<(Part, Result<walk::Tree, WalkError>)>;

impl Measurer {
    /// Measures all of `pods` and returns them in the same order. `within` is for all of the agent's
    /// directories of a pod together, from its turn on, and for all of the runtime's; `layers`,
    /// which runs meanwhile, tells the writable layer of containers where no place of it is known.
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
            self.begin_walks(&mut walks, &self.agent_walks, Part::of_agent, pods, within);
            self.begin_walks(&mut walks, &self.runtime_walks, Part::of_runtime, pods, within);
        }
        let walked = async {
            while let Some(walked) = walks.join_next().await {
                // One that panicked stays unmeasured.
                let Ok((nth, walked)) = walked else { continue };
                walked.into_iter().for_each(|part| put(&mut measured[nth], part));
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

    /// Begins to walk parts of all pods, which take turns.
    fn begin_walks(
        &self,
        walks: &mut JoinSet<(usize, WalkedParts)>,
        queue: &WalkQueue,
        parts_of: fn(&PodPlaces) -> Vec<Part>,
        pods: &[PodPlaces],
        within: Duration,
    ) {
        for (nth, pod) in queue.in_order(pods) {
            let (parts, patience) = (parts_of(pod), self.turn_patience);
            let (queue, uid) = (queue.clone(), pod.uid.clone());
            walks.spawn(async move {
                let turn = queue.turn(uid, patience).await;
                (nth, walk_all(turn, parts, within).await)
            });
        }
    }

    /// Forgets the pods that are gone.
    pub fn keep(&self, is_there: impl Fn(&PodUid) -> bool) {
        self.agent_walks.keep(&is_there);
        self.runtime_walks.keep(is_there);
    }

    /// The sizes of the logs of each container of pods, with the pods' places in `pods`. `within` is
    /// the time for all pods together. One whose logs can't be measured completely is missing.
    ///
    /// # Cancel safety
    /// Nothing is lost; a walk ends soon after.
    pub async fn logs(&self, pods: &[PodPlaces], within: Duration) -> Vec<(usize, ContainerLogs)> {
        let until = Instant::now() + within;
        let Ok(turn) = walk::turn(&self.agent_walks.turns, within).await else { return Vec::new() };
        let mut measured = Vec::with_capacity(pods.len());
        for (nth, pod) in pods.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let Some(directory) = pod.logs.as_ref().filter(|_| !left.is_zero()) else { continue };
            let Ok(tree) = walk::walk(&turn, directory, &[], left).await else { continue };
            let containers = pod.containers.iter();
            let sizes = containers.map(|one| (one.name.clone(), tree.branch(&one.name)));
            if tree.whole {
                measured.push((nth, sizes.collect()));
            }
        }
        measured
    }
}

/// Measures the parts of a pod one after the other. Each has an equal part of the time that is
/// left.
async fn walk_all(
    turn: Result<Turn, WalkError>,
    parts: Vec<Part>,
    within: Duration,
) -> WalkedParts {
    let turn = match turn {
        Ok(turn) => turn,
        Err(late) => return parts.into_iter().map(|part| (part, Err(late.clone()))).collect(),
    };
    let until = Instant::now() + within;
    let (mut walked, mut left) = (Vec::with_capacity(parts.len()), parts.len());
    for part in parts {
        let time = until.saturating_duration_since(Instant::now());
        let share = time / u32::try_from(left).unwrap_or(u32::MAX).max(1);
        let measured = part.measure(&turn, share).await;
        walked.push((part, measured));
        left -= 1;
    }
    walked
}

fn put(measured: &mut Measured, (part, walked): (Part, Result<walk::Tree, WalkError>)) {
    let Measured { usage, missing, .. } = measured;
    let name = part.name(usage);
    let tree = match walked {
        Ok(tree) => tree,
        Err(why) => return missing.push(format!("{name}: {why}")),
    };
    if !tree.whole {
        missing.push(format!("{name}: there is more than could be counted"));
        match part {
            Part::Layer(..) | Part::RuntimeFiles(_) | Part::RuntimeDir(_) => {
                usage.partly.layers = true;
            }
            Part::Files(_) | Part::Logs(_) | Part::Volume(..) => usage.partly.root_dir = true,
        }
    }
    match part {
        Part::Files(_) => usage.files = Some(tree.all),
        Part::RuntimeFiles(_) | Part::RuntimeDir(_) => {
            usage.runtime_files = Some(usage.runtime_files.unwrap_or_default() + tree.all);
        }
        Part::Logs(_) => {
            usage.logs = Some(tree.all);
            for container in &mut usage.containers {
                container.logs = Some(tree.branch(&container.name));
            }
        }
        Part::Layer(nth, _) => usage.containers[nth].layer = Some(tree.all),
        Part::Volume(nth, _) => {
            let volume = &mut usage.volumes[nth];
            volume.space = Some(tree.all);
            volume.in_memory |= tree.in_memory;
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
    let below = dirs.map(ContainerCgroups::of);
    let container = |place: &ContainerPlaces| {
        let cgroup = below.as_ref().zip(place.id.as_ref()).and_then(|(all, id)| all.find(id));
        ContainerUse {
            name: place.name.clone(),
            id: place.id.clone(),
            memory: cgroup.and_then(|cgroup| cgroup_memory(&cgroup.memory).ok()),
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
        files: None,
        runtime_files: None,
        partly: PartlyMeasured::default(),
    };
    Measured { usage, measured_at, missing }
}

/// The cgroups in a pod's.
#[derive(Debug)]
pub struct ContainerCgroups<'a> {
    pod: &'a CgroupDirs,
    names: Vec<String>,
}

impl<'a> ContainerCgroups<'a> {
    /// Lists what is in a pod's cgroup now.
    #[must_use]
    pub fn of(pod: &'a CgroupDirs) -> Self {
        let entries = fs::read_dir(&pod.memory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names = directories.filter_map(|entry| entry.file_name().into_string().ok());
        Self { pod, names: names.collect() }
    }

    /// The cgroup of a container. `None` when it does not run.
    #[must_use]
    pub fn find(&self, id: &ContainerId) -> Option<CgroupDirs> {
        let name = self.names.iter().find(|name| id.has_cgroup(name))?;
        Some(self.pod.child(name))
    }

    /// The network interfaces that the pod's processes see; empty when it has no process.
    #[must_use]
    pub fn network(&self, proc: &Path) -> Vec<InterfaceStats> {
        let pod = &self.pod.memory;
        let below = self.names.iter().map(|name| pod.join(name));
        let pid = below.chain([pod.clone()]).find_map(|cgroup| any_process(&cgroup));
        pid.map(|pid| network(proc, &pid)).unwrap_or_default()
    }
}
