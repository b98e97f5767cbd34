//! What containers, pods and the node have used, collected when a client asks for it.
//!
//! ```text
//!  request ─► Collector ─┬─► cgroups, /proc: read now, unless that was done within a second
//!                        ├─► rates: CPU time since an earlier reading
//!                        ├─► readings of the disks, which the evictions have anyway
//!                        ├─► file systems of PersistentVolumes: asked every ten seconds at most
//!                        └─► survey: logs, volumes, writable layers, once a period
//! ```
//!
//! Nothing is read while nobody asks. Clients that ask at the same time share one collection.

mod graphs;
mod rates;
mod survey;

pub use graphs::GraphsTask;

use crate::{
    blocking::STATS,
    cgroup::Cgroups,
    clock,
    cri::RuntimeClient,
    model::{
        CgroupStats, ClaimStats, CollectOrdered as _, ContainerId, ContainerStats, FsStats,
        LogSize, MeasuredSpace, NodeStats, Now, PodStats, PodView, PodViews, Signal, Space, Stats,
        StatsDepth, VolumeStats, k8s,
    },
    podspec::{MeasuredClaim, image_of},
    signals::{
        self, ContainerCgroups, ContainerLogs, DiskReadings, DiskSample, FindPlaces, Measurer,
        PodPlaces, VolumeDisks,
    },
};
use jiff::Timestamp;
use rates::Rates;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use survey::{Survey, Surveys};
use tokio::sync::{Mutex, watch};

/// A collection that is younger answers further requests.
const FRESH: Duration = Duration::from_secs(1);
/// The same for sizes of logs.
const LOGS_FRESH: Duration = Duration::from_secs(10);
/// How long the logs of all pods together are measured.
const LOGS_PATIENCE: Duration = Duration::from_millis(500);
/// The same two for PersistentVolumes.
const CLAIMS_FRESH: Duration = Duration::from_secs(10);
const CLAIMS_PATIENCE: Duration = Duration::from_millis(500);

/// Finds the PersistentVolumes of a pod that are measured.
pub type FindClaims = Arc<dyn Fn(&k8s::Pod) -> Vec<MeasuredClaim> + Send + Sync>;

/// The parts of the agent that statistics are collected from.
pub struct StatsParts {
    /// The cgroups of pods.
    pub cgroups: Cgroups,
    /// The runtime, for writable layers.
    pub runtime: RuntimeClient,
    /// Finds what is measured of a pod.
    pub places: FindPlaces,
    /// Finds the PersistentVolumes that are measured of a pod.
    pub claims: FindClaims,
    /// Every pod's view.
    pub pods: watch::Receiver<Arc<PodViews>>,
    /// Readings of the disks.
    pub disks: DiskReadings,
    /// `volumeStatsAggPeriod`: time between two surveys of file systems; `None`: there are none, and
    /// PersistentVolumes are not measured either.
    pub survey_period: Option<Duration>,
}

/// Collects statistics. Cheap to clone; all clones share what was collected.
#[derive(Clone)]
pub struct Collector {
    parts: Arc<StatsParts>,
    state: Arc<Mutex<State>>,
    logs: Arc<Mutex<Logs>>,
    claims: Arc<Mutex<Claims>>,
}

/// PersistentVolumes, as they were measured last.
#[derive(Default)]
struct Claims {
    disks: VolumeDisks,
    /// Boot time; `None`: not measured yet.
    at: Option<Duration>,
    found: Arc<[ClaimStats]>,
}

/// The sizes of logs, as they were measured last.
#[derive(Default)]
struct Logs {
    measurer: Measurer,
    /// Boot time; `None`: not measured yet.
    at: Option<Duration>,
    sizes: Arc<[LogSize]>,
}

struct State {
    latest: Option<Collected>,
    rates: Rates,
    surveys: Surveys,
}

struct Collected {
    depth: StatsDepth,
    /// Boot time.
    at: Duration,
    stats: Arc<Stats>,
}

impl Collector {
    /// A collector that has read nothing yet.
    #[must_use]
    pub fn new(parts: StatsParts) -> Self {
        let (latest, rates) = (None, Rates::default());
        let surveys = Surveys::new(parts.runtime.clone());
        let state = State { latest, rates, surveys };
        Self {
            parts: Arc::new(parts),
            state: Arc::new(Mutex::new(state)),
            logs: Arc::default(),
            claims: Arc::default(),
        }
    }

    /// The use of the node and its pods, not older than a second. What is measured once a period is
    /// as old as it says.
    ///
    /// # Cancel safety
    /// Nothing is lost but the answer.
    pub async fn collect(&self, depth: StatsDepth) -> Arc<Stats> {
        let mut state = self.state.lock().await;
        let now = clock::now();
        let usable = |latest: &&Collected| {
            latest.depth >= depth && now.boot.saturating_sub(latest.at) < FRESH
        };
        if let Some(latest) = state.latest.as_ref().filter(usable) {
            return Arc::clone(&latest.stats);
        }
        let everyone = Arc::clone(&self.parts.pods.borrow());
        let pods = self.pods(&everyone);
        let disks = self.parts.disks.latest.borrow().clone();
        let survey = match (depth, self.parts.survey_period) {
            (StatsDepth::Everything, Some(period)) => {
                let measured = pods.iter().map(|(_, places)| places.clone()).collect();
                let dirs = Arc::clone(&disks.runtime_dirs);
                state.surveys.latest(measured, &everyone, dirs, period).await
            }
            _ => None,
        };
        let claims = match depth {
            StatsDepth::Everything => self.claims().await,
            StatsDepth::Resources => Arc::default(),
        };
        let parts = Arc::clone(&self.parts);
        // The files of the kernel answer within microseconds, but there are hundreds of them.
        let read = STATS.run(move || {
            let pods = pods.iter().map(|(view, places)| pod_stats(&parts, view, places, depth));
            let pods = pods.collect();
            Stats { node: node_stats(&parts.cgroups, &disks, depth), pods }
        });
        let Ok(mut stats) = read.await else { return Arc::new(nothing(now)) };
        if let Some(survey) = survey {
            stats.node.images = survey.images;
            stats.pods.iter_mut().for_each(|pod| put_space(pod, &survey));
        }
        for pod in &mut stats.pods {
            pod.claims = claims.iter().filter(|one| one.uid == pod.uid).cloned().collect();
        }
        // Not when it began: those who waited for this collection take it as well.
        let at = clock::now().boot;
        state.rates.put(&mut stats, at);
        let stats = Arc::new(stats);
        state.latest = Some(Collected { depth, at, stats: Arc::clone(&stats) });
        stats
    }

    /// The sizes of the logs of containers that run, not older than ten seconds. Unlike a survey,
    /// this looks at log files alone, which are few. It takes a second at most, and a log that is
    /// not measured within half a second is missing.
    ///
    /// # Cancel safety
    /// Nothing is lost but the answer.
    pub async fn log_sizes(&self) -> Arc<[LogSize]> {
        let mut logs = self.logs.lock().await;
        let now = clock::now().boot;
        if logs.at.is_some_and(|at| now.saturating_sub(at) < LOGS_FRESH) {
            return Arc::clone(&logs.sizes);
        }
        let everyone = Arc::clone(&self.parts.pods.borrow());
        let (views, places): (Vec<_>, Vec<_>) = self.pods(&everyone).into_iter().unzip();
        let measured = logs.measurer.logs(&places, LOGS_PATIENCE).await;
        let of_pod = |(nth, containers): (usize, ContainerLogs)| {
            let (key, uid) = (views[nth].key.clone(), views[nth].uid.clone());
            containers.into_iter().map(move |(container, Space { bytes, .. })| {
                let (key, uid) = (key.clone(), uid.clone());
                LogSize { key, uid, container, bytes }
            })
        };
        logs.sizes = measured.into_iter().flat_map(of_pod).collect();
        logs.at = Some(now);
        Arc::clone(&logs.sizes)
    }

    /// The use of the PersistentVolumes of pods that run, not older than ten seconds. Their file
    /// systems are asked, as a kubelet does. One that has not answered within half a second is
    /// missing.
    ///
    /// # Cancel safety
    /// Nothing is lost but the answer.
    pub async fn claims(&self) -> Arc<[ClaimStats]> {
        if self.parts.survey_period.is_none() {
            return Arc::default();
        }
        let mut claims = self.claims.lock().await;
        let now = clock::now().boot;
        if claims.at.is_some_and(|at| now.saturating_sub(at) < CLAIMS_FRESH) {
            return Arc::clone(&claims.found);
        }
        let everyone = Arc::clone(&self.parts.pods.borrow());
        let of_pod = |view: &Arc<PodView>| {
            let found = view.pod.as_deref().map(|pod| (self.parts.claims)(pod));
            let view = Arc::clone(view);
            found.into_iter().flatten().map(move |claim| (Arc::clone(&view), claim))
        };
        let all: Vec<_> = everyone.values().filter(|view| runs(view)).flat_map(of_pod).collect();
        let paths = all.iter().map(|(_, claim)| claim.path.clone()).collect_ordered();
        let asked = claims.disks.ask(&paths, CLAIMS_PATIENCE).await;
        let measured = |(view, claim): (Arc<PodView>, MeasuredClaim)| {
            let fs = *asked.get(&claim.path)?;
            let (key, uid) = (view.key.clone(), view.uid.clone());
            let MeasuredClaim { volume, claim, .. } = claim;
            Some(ClaimStats { key, uid, volume, claim, fs })
        };
        claims.found = all.into_iter().filter_map(measured).collect();
        claims.at = Some(now);
        Arc::clone(&claims.found)
    }

    /// The pods of which a container runs, and where they are measured.
    fn pods(&self, views: &PodViews) -> Vec<(Arc<PodView>, PodPlaces)> {
        let place = |view: &Arc<PodView>| Some((Arc::clone(view), (self.parts.places)(view)?));
        views.values().filter(|view| runs(view)).filter_map(place).collect()
    }
}

/// True when a container of the pod runs.
fn runs(view: &PodView) -> bool {
    view.containers.iter().any(|one| one.running_since.is_some())
}

/// What is told when reading has crashed.
fn nothing(now: Now) -> Stats {
    let none = CgroupStats { at: now.wall, ..CgroupStats::default() };
    let (booted_at, machine) = (booted_at(now), none.clone());
    let node = NodeStats { booted_at, machine, agent: none, ..NodeStats::default() };
    Stats { node, pods: Vec::new() }
}

fn booted_at(now: Now) -> Timestamp {
    now.wall.checked_sub(now.boot).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn node_stats(cgroups: &Cgroups, disks: &DiskSample, depth: StatsDepth) -> NodeStats {
    let (proc, now) = (Path::new("/proc"), clock::now());
    let pods = cgroups.kubepods_dirs();
    let fs = |bytes, inodes| fs_stats(disks, bytes, inodes, now);
    let root_fs = fs(Signal::NodefsAvailable, Signal::NodefsInodesFree);
    let image_fs = fs(Signal::ImagefsAvailable, Signal::ImagefsInodesFree);
    let container_fs = fs(Signal::ContainerfsAvailable, Signal::ContainerfsInodesFree);
    NodeStats {
        booted_at: booted_at(now),
        machine: signals::machine_stats(proc, cgroups.root_dirs().as_ref(), depth),
        agent: signals::own_stats(proc),
        pods_cgroup: pods
            .as_ref()
            .and_then(|dirs| cgroups.path_of(&dirs.memory))
            .unwrap_or_default(),
        pods: pods.and_then(|dirs| signals::cgroup_stats(&dirs, depth)),
        network: match depth {
            StatsDepth::Resources => Vec::new(),
            StatsDepth::Everything => signals::network(proc, "self"),
        },
        // Where they lie on one file system, only the first is read.
        container_fs: container_fs.or(image_fs).or(root_fs),
        image_fs: image_fs.or(root_fs),
        root_fs,
        images: None,
    }
}

fn fs_stats(disks: &DiskSample, bytes: Signal, inodes: Signal, now: Now) -> Option<FsStats> {
    let read = disks.sample.readings.get(&bytes)?;
    // Without a table of inodes there is nothing to tell.
    let inodes = disks.sample.readings.get(&inodes).filter(|inodes| inodes.capacity > 0);
    Some(FsStats {
        at: now.wall.checked_sub(now.boot.saturating_sub(read.at)).unwrap_or(now.wall),
        bytes: (read.available, read.capacity),
        used_bytes: *disks.sample.taken.get(&bytes)?,
        inodes: inodes.map(|inodes| (inodes.available, inodes.capacity)),
    })
}

fn pod_stats(
    parts: &StatsParts,
    view: &PodView,
    places: &PodPlaces,
    depth: StatsDepth,
) -> PodStats {
    let dirs = places.cgroup.as_ref();
    let below = dirs.map(ContainerCgroups::of);
    let path = |memory: &PathBuf| parts.cgroups.path_of(memory).unwrap_or_default();
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    let containers = view.containers.iter().filter_map(|container| {
        let started_at = container.running_since?;
        let cgroup = below.as_ref().and_then(|below| below.find(&container.id));
        Some(ContainerStats {
            name: container.name.clone(),
            id: container.id.as_str().into(),
            image: spec.and_then(|spec| image_of(spec, &container.name)).unwrap_or_default().into(),
            started_at,
            cgroup: cgroup.as_ref().map(|dirs| path(&dirs.memory)).unwrap_or_default(),
            stats: cgroup.and_then(|dirs| signals::cgroup_stats(&dirs, depth)),
            layer: None,
            logs: None,
        })
    });
    let has_network =
        depth == StatsDepth::Everything && spec.is_some_and(|spec| spec.host_network != Some(true));
    PodStats {
        key: view.key.clone(),
        uid: view.uid.clone(),
        started_at: view.status.start_time.as_ref().map(|time| time.0),
        cgroup: dirs.map(|dirs| path(&dirs.memory)).unwrap_or_default(),
        containers: containers.collect(),
        stats: dirs.and_then(|dirs| signals::cgroup_stats(dirs, depth)),
        network: match below.filter(|_| has_network) {
            Some(below) => below.network(Path::new("/proc")),
            None => Vec::new(),
        },
        volumes: Vec::new(),
        claims: Vec::new(),
        ephemeral_storage: None,
    }
}

/// Fills in what a survey has found of a pod.
fn put_space(pod: &mut PodStats, survey: &Survey) {
    let Some(found) = survey.pods.get(&pod.uid) else { return };
    let measured = |space: Space| MeasuredSpace { space, at: survey.at };
    for container in &mut pod.containers {
        let found = found.containers.iter().find(|one| one.name == container.name);
        let is_measured = |id: &ContainerId| id.as_str() == &*container.id;
        // A layer belongs to one instance, the logs to all instances of the container.
        let of_instance = found.filter(|one| one.id.as_ref().is_some_and(is_measured));
        container.layer = of_instance.and_then(|one| one.layer).map(measured);
        container.logs = found.and_then(|one| one.logs).map(measured);
    }
    let volumes = found.volumes.iter();
    pod.volumes = volumes
        .filter_map(|one| {
            let space = measured(one.space?);
            Some(VolumeStats { name: one.name.clone(), in_memory: one.in_memory, space })
        })
        .collect();
    let on_disk = found.volumes.iter().filter(|one| !one.in_memory).filter_map(|one| one.space);
    let layers = found.containers.iter().filter_map(|one| one.layer);
    let others = [found.logs, found.files, found.runtime_files].into_iter().flatten();
    pod.ephemeral_storage =
        on_disk.chain(layers).chain(others).reduce(|all, one| all + one).map(measured);
}

#[cfg(test)]
mod tests;
