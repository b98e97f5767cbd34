//! Scripted worlds: what is read and which pods run, round by round, and the actions of each round.

mod api_pods;
mod disk;
mod memory;
mod restart;

use super::*;
use crate::model::{
    Completeness, ContainerInstance, HoldStop, Known, PodView, Pressure, PressureOrders, Readings,
};
use std::collections::BTreeSet;

/// A node whose readings, pods and clock the test sets. Actions are short texts such as
/// `evict hog`.
struct World {
    relief: Relief,
    settings: EvictionSettings,
    layout: DiskLayout,
    now: Now,
    /// Available and capacity of each signal.
    signals: BTreeMap<Signal, (u64, u64)>,
    pods: BTreeMap<PodKey, Arc<PodView>>,
    usage: BTreeMap<PodKey, PodUse>,
    /// Boot time of all readings; `None`: they are new in each round.
    read_at: Option<Duration>,
    known: Known,
    kubepods_known: bool,
    dead_containers: usize,
    without_tasks: BTreeSet<PodUid>,
    /// Measurements that are not answered yet.
    measuring: Vec<(MeasurePurpose, Vec<Arc<PodView>>)>,
    last: Option<ReliefPlan>,
}

impl World {
    /// A node on which nothing is short, whose pods are known.
    fn new(settings: EvictionSettings) -> Self {
        Self::resumed(Evictions::default(), settings)
    }

    /// The same after a restart of the agent.
    fn resumed(evictions: Evictions, settings: EvictionSettings) -> Self {
        let now = now(100, 1_000_000);
        let mut world = Self {
            relief: Relief::restored(evictions, &settings, now),
            settings,
            layout: DiskLayout::Single,
            now,
            signals: BTreeMap::new(),
            pods: BTreeMap::new(),
            usage: BTreeMap::new(),
            read_at: None,
            known: Known { listed: true, ..Known::default() },
            kubepods_known: true,
            dead_containers: 0,
            without_tasks: BTreeSet::new(),
            measuring: Vec::new(),
            last: None,
        };
        for threshold in &world.settings.thresholds {
            let pieces = matches!(threshold.signal.resource(), "pids" | "inodes");
            let capacity = if pieces { 1000 } else { 1000 * MI };
            world.signals.insert(threshold.signal, (capacity / 2, capacity));
        }
        world
    }

    /// A pod that runs, with what it uses.
    fn run(&mut self, pod: Pod) {
        self.publish(&pod, true);
        self.usage.insert(pod.key.clone(), pod.usage);
    }

    fn publish(&mut self, pod: &Pod, running: bool) {
        let container = ContainerInstance {
            name: "c".into(),
            id: "c1".into(),
            restart_count: 0,
            running_since: running.then_some(jiff::Timestamp::UNIX_EPOCH),
            started: running,
            in_post_start: false,
        };
        let view = PodView {
            key: pod.key.clone(),
            uid: pod.uid.clone(),
            pod: Some(Arc::clone(&pod.pod)),
            status: Arc::default(),
            containers: vec![container],
            origin: None,
            config: crate::model::PodConfig::Desired,
            terminating: false,
            stopped: false,
            hung: None,
            waiting: None,
            update: None,
            previous: None,
            probes: Vec::new(),
        };
        self.pods.insert(pod.key.clone(), Arc::new(view));
    }

    /// The pod has stopped.
    fn end(&mut self, name: &str) {
        let view = self.pods.get_mut(&PodKey::new("default", name)).unwrap();
        let phase = Some("Failed".to_owned());
        let status = Arc::new(k8s::PodStatus { phase, ..k8s::PodStatus::default() });
        *view = Arc::new(PodView { status, containers: Vec::new(), ..PodView::clone(view) });
    }

    fn read(&mut self, signal: Signal, available: u64) {
        self.signals.get_mut(&signal).unwrap().0 = available;
    }

    /// One round after this many milliseconds, by new readings unless `read_at` is set.
    fn round(&mut self, after_millis: u64) -> Vec<String> {
        self.now.boot += Duration::from_millis(after_millis);
        self.now.wall += Duration::from_millis(after_millis);
        let at = self.read_at.unwrap_or(self.now.boot);
        let readings: Readings = self
            .signals
            .iter()
            .map(|(signal, (available, capacity))| {
                (*signal, Reading { available: *available, capacity: *capacity, at })
            })
            .collect();
        let plan = self.relief.plan(&Seen {
            settings: &self.settings,
            layout: self.layout,
            readings: &readings,
            kubepods_known: self.kubepods_known,
            pods: &self.pods,
            known: &self.known,
            dead_containers: self.dead_containers,
            without_tasks: &self.without_tasks,
            now: self.now,
        });
        let mut shown: Vec<String> = plan.actions.iter().filter_map(shown).collect();
        if plan.orders.clear_dead && !self.orders().clear_dead {
            shown.push("clear dead containers".to_owned());
        }
        for action in &plan.actions {
            if let ReliefAction::Measure { purpose, pods } = action {
                self.measuring.push((*purpose, pods.clone()));
            }
        }
        self.last = Some(plan);
        shown
    }

    /// Answers every measurement with the current usage.
    fn answer(&mut self) {
        for (purpose, pods) in std::mem::take(&mut self.measuring) {
            let measured = pods.iter().map(|view| MeasuredPod {
                view: Arc::clone(view),
                pod: view.pod.clone().unwrap(),
                usage: self.usage[&view.key].clone(),
                missing: Vec::new(),
            });
            let measured = measured.collect();
            self.relief.fold(Outcome::Measured(purpose, measured));
        }
    }

    /// One round, the answers to its measurements, and a round a millisecond later.
    fn decide(&mut self) -> Vec<String> {
        let mut shown = self.round(1000);
        self.answer();
        shown.extend(self.round(1));
        shown
    }

    fn orders(&self) -> PressureOrders {
        self.last.as_ref().map(|plan| plan.orders.clone()).unwrap_or_default()
    }

    /// The times until the next round and between two readings of the disks.
    fn pauses(&self) -> (Duration, Duration) {
        let plan = self.last.as_ref().unwrap();
        (plan.wake_in, plan.disk_period)
    }

    fn saved(&self) -> bool {
        self.last.as_ref().unwrap().save
    }

    /// How the workers are told to stop a pod.
    fn stop_of(&self, name: &str) -> Option<HoldStop> {
        let orders = self.orders();
        orders.evicted.get(&PodKey::new("default", name)).map(|evicted| evicted.hold.stop)
    }
}

/// The actions that scenarios are about, in words.
fn shown(action: &ReliefAction) -> Option<String> {
    Some(match action {
        ReliefAction::ReportEviction { key, .. } => format!("evict {}", key.name),
        ReliefAction::ReportLate { key, .. } => format!("{} is late", key.name),
        ReliefAction::ReportHurried(key) => format!("hurry {}", key.name),
        ReliefAction::ReportComeback(key) => format!("let {} back", key.name),
        ReliefAction::ReportStep(step) => step.what.clone(),
        ReliefAction::ReportNoPod { exempt, .. } if exempt.is_empty() => "no pod helps".to_owned(),
        ReliefAction::ReportNoPod { exempt, .. } => {
            let exempt: Vec<String> = exempt
                .iter()
                .map(|(key, why)| format!("{} ({})", key.name, why.as_str()))
                .collect();
            format!("only exempt pods help: {}", exempt.join(", "))
        }
        ReliefAction::ReclaimPageCache { .. } => "reclaim page cache".to_owned(),
        ReliefAction::FreeImages { .. } => "free images".to_owned(),
        ReliefAction::Measure { purpose, pods } => {
            let pods: Vec<&str> = pods.iter().map(|view| &*view.key.name).collect();
            let what = match purpose {
                MeasurePurpose::Cgroups => "cgroups",
                MeasurePurpose::Disk => "disks",
                MeasurePurpose::Limits => "limits",
            };
            format!("measure {what} of {}", pods.join(" "))
        }
        ReliefAction::ReportCondition(_)
        | ReliefAction::ReportThreshold(_)
        | ReliefAction::ReportSpared { .. } => return None,
    })
}

/// Settings of these hard thresholds, without checks of the pods' own limits.
fn hard(thresholds_text: &str) -> EvictionSettings {
    let thresholds = thresholds(thresholds_text, "", "", "");
    EvictionSettings { local_storage_limits: false, ..settings(thresholds) }
}

/// Settings of a hard and a soft threshold of memory. The soft one gives pods up to ten minutes.
fn soft_memory() -> EvictionSettings {
    let (hard, soft) = ("memory.available=100Mi", "memory.available=200Mi");
    let thresholds = thresholds(hard, soft, "memory.available=1s", "");
    EvictionSettings { max_pod_grace: 600, local_storage_limits: false, ..settings(thresholds) }
}

/// A world with these hard thresholds. The workers had their time to report after the first
/// listing.
fn reported(thresholds: &str) -> World {
    let mut world = World::new(hard(thresholds));
    assert!(world.round(0).is_empty());
    assert!(world.round(2000).is_empty());
    world
}

fn hard_memory() -> World {
    reported("memory.available=100Mi")
}

fn hard_disk() -> World {
    reported("nodefs.available=100Mi")
}

/// A world in which `pod` was told to stop for memory.
fn evicted_for_memory(pod: Pod) -> World {
    let name = pod.key.name.clone();
    let mut world = hard_memory();
    world.run(pod);
    world.read(Signal::MemoryAvailable, 60 * MI);
    assert_eq!(world.round(50), ["reclaim page cache"]);
    without_page_cache(&mut world);
    assert_eq!(world.decide(), [format!("measure cgroups of {name}"), format!("evict {name}")]);
    world
}

fn hog() -> Pod {
    Pod::new("hog", json!({})).memory(400 * MI)
}

fn disk_hog(name: &str) -> Pod {
    Pod::new(name, json!({})).disk(Some(space(300 * MI, 10)), Some(space(0, 0)))
}

/// A kernel that can't reclaim page cache.
fn without_page_cache(world: &mut World) {
    world.relief.fold(Outcome::Reclaimed(ReclaimOutcome::Unsupported));
}
