#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    cgroup::{CgroupSettings, Hierarchy, SystemdSockets},
    event,
    model::{
        CgroupDriver, Hold, HoldStop, PartlyMeasured, PodKey, PodUse, PodView, Reading, Signal,
    },
    pressure::core::{Cause, MeasuredPod, PressureState},
    signals::Disks,
};
use serde_json::json;
use std::{collections::BTreeMap, fs};
use tempfile::TempDir;

/// An eviction loop without a runtime and without cgroups, and the receivers of what it publishes.
struct Rig {
    dir: TempDir,
    task: EvictionTask,
    orders: watch::Receiver<Arc<PressureOrders>>,
    tasks: JoinSet<()>,
    _senders: (watch::Sender<Arc<PodViews>>, watch::Sender<Arc<Known>>, watch::Sender<usize>),
    images: mpsc::Receiver<FreeRequest>,
}

impl Rig {
    /// With one pod that an earlier run has evicted.
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (root, run) = (dir.path().join("root"), dir.path().join("run"));
        let (store, writer, _) = Store::lock_and_open(&root, &run, Some("eviction-test")).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(writer.run());
        let nowhere = Hierarchy {
            mount_point: "/nonexistent".into(),
            controllers: Vec::new(),
            unified: true,
        };
        let cgroups = CgroupSettings {
            root: "/".to_owned(),
            per_qos: false,
            driver: CgroupDriver::Cgroupfs,
            systemd: SystemdSockets { private: "/nonexistent".into(), bus: "/nonexistent".into() },
        };
        let parts = EvictionParts {
            node_name: "node".into(),
            store,
            events: event::channel().0,
            runtime: RuntimeClient::new("unix:///nonexistent", None, Duration::from_secs(1))
                .unwrap(),
            cgroups: Cgroups::on_hierarchies(vec![nowhere], &cgroups).unwrap(),
            places: Arc::new(|_| None),
        };
        let (pods, pods_of_task) = watch::channel(Arc::default());
        let (known, known_of_task) = watch::channel(Arc::default());
        let (dead, dead_of_task) = watch::channel(0);
        let (orders, given) = watch::channel(Arc::default());
        let (images, requests) = mpsc::channel(1);
        let channels = EvictionChannels {
            disks: DiskReadings::new(watch::channel(Arc::default()).1, Arc::default()),
            disk_period: watch::channel(Duration::from_secs(10)).0,
            pods: pods_of_task,
            known: known_of_task,
            dead: dead_of_task,
            orders,
            view: watch::channel(Arc::default()).0,
            images,
        };
        let settings = EvictionSettings::default();
        let evictions = Evictions::restored([record()], clock::now());
        let logs = dir.path().join("logs");
        let task = EvictionTask::new(settings, evictions, root, logs, parts, channels);
        let _senders = (pods, known, dead);
        Self { dir, task, orders: given, tasks, _senders, images: requests }
    }

    /// The plan of a round in which the pod was evicted.
    fn plan(&self) -> ReliefPlan {
        let evicted = self.task.relief.evictions().away();
        let settings = &self.task.settings;
        let step = PressureState::default().step(settings, &BTreeMap::new(), Duration::ZERO);
        ReliefPlan {
            save: true,
            orders: PressureOrders { evicted, ..PressureOrders::default() },
            actions: Vec::new(),
            read_disks: false,
            wake_in: Duration::ZERO,
            disk_period: Duration::from_secs(10),
            step,
        }
    }
}

fn record() -> EvictionRecord {
    EvictionRecord {
        key: PodKey::new("default", "hog"),
        uid: "hog".into(),
        cause: Cause::Signal(Signal::MemoryAvailable),
        hold: Arc::new(Hold {
            reason: "Evicted".to_owned(),
            message: String::new(),
            stop: HoldStop::AtOnce,
            disruption: None,
        }),
        at: clock::now().wall,
        count: 1,
        pause_seconds: 30,
        for_good: false,
        back: None,
    }
}

#[tokio::test]
async fn an_eviction_is_saved_before_the_workers_get_the_order() {
    let mut rig = Rig::start();
    let file = rig.dir.path().join("run/evictions.json");
    let mut orders = rig.orders.clone();
    rig.tasks.spawn(async move {
        orders.changed().await.unwrap();
        let saved = fs::read_to_string(&file).unwrap_or_default();
        assert!(saved.contains("\"hog\""), "{saved:?}");
    });
    let plan = rig.plan();
    rig.task.save_patience = Duration::from_secs(60);
    rig.task.execute(&plan).await;
    assert!(rig.orders.borrow().evicted.contains_key(&PodKey::new("default", "hog")));
    // The store's writer goes on; the watcher of the orders ends.
    rig.tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test]
async fn an_action_that_is_not_possible_is_planned_again_at_once() {
    let mut rig = Rig::start();
    let mut plan = rig.plan();
    plan.actions = vec![ReliefAction::ReclaimPageCache { bytes: 1, spare: 0 }];
    assert!(rig.task.execute(&plan).await, "pods have no cgroup");
    plan.actions = vec![ReliefAction::FreeImages { bytes: None }];
    assert!(!rig.task.execute(&plan).await);
    assert!(rig.task.execute(&plan).await, "an earlier request still waits");
}

#[tokio::test]
async fn a_request_for_images_is_dropped_when_its_step_is_over() {
    let mut rig = Rig::start();
    let mut plan = rig.plan();
    plan.actions = vec![ReliefAction::FreeImages { bytes: None }];
    rig.task.execute(&plan).await;
    let request = rig.images.try_recv().unwrap();
    assert!(!request.answer.is_closed());
    // The next round plans no step that waits for images.
    rig.task.run_round().await;
    assert!(request.answer.is_closed() && rig.task.freeing.is_none());
}

#[tokio::test]
async fn a_file_system_without_inodes_is_known_and_not_shown() {
    let mut rig = Rig::start();
    let signal = Signal::NodefsInodesFree;
    let settings = &mut rig.task.settings;
    settings.thresholds.retain(|threshold| threshold.signal == signal);
    assert_eq!(settings.thresholds.len(), 1);
    let settings = settings.clone();
    // It has no table of inodes, like btrfs.
    let sample = Disks::new(Path::new("/proc")).sample(Duration::from_secs(10)).await;
    rig.task.readings.sample.update(sample);
    let (readings, now) = (&rig.task.readings.sample.readings, clock::now());
    let step = PressureState::default().step(&settings, readings, now.boot);
    assert!(step.known && step.met.is_empty() && step.problems.is_empty(), "{step:?}");
    assert_eq!(step.looks[&signal], Duration::from_secs(10));
    assert_eq!(rig.task.signals(&step, &settings, now), []);
}

#[tokio::test]
async fn a_suspect_is_shown_while_a_disk_is_short() {
    let mut rig = Rig::start();
    let view = json!({
        "key": {"namespace": "default", "name": "hidden"},
        "uid": "1",
        "status": {},
        "terminating": false,
    });
    let view: Arc<PodView> = Arc::new(serde_json::from_value(view).unwrap());
    let usage = PodUse {
        key: view.key.clone(),
        uid: view.uid.clone(),
        memory: None,
        processes: None,
        containers: Vec::new(),
        volumes: Vec::new(),
        logs: None,
        files: None,
        runtime_files: None,
        partly: PartlyMeasured { layers: false, root_dir: true },
    };
    let missing = vec!["too many files".to_owned()];
    let measured = MeasuredPod { view, pod: Arc::default(), usage, missing };
    rig.task.history.note_partly_measured(&[measured]);
    for (signal, shown) in [(Signal::NodefsAvailable, true), (Signal::MemoryAvailable, false)] {
        let now = clock::now().boot;
        let reading = Reading { available: 1, capacity: 1 << 40, at: now };
        let readings = BTreeMap::from([(signal, reading)]);
        let step = PressureState::default().step(&rig.task.settings, &readings, now);
        assert_eq!(step.met.len(), 1);
        let trouble = rig.task.trouble(&step);
        assert_eq!(trouble.iter().any(|line| line.contains("hidden")), shown, "{trouble:?}");
    }
}

#[tokio::test]
async fn a_pod_that_is_evicted_for_good_is_not_shown_as_coming_back() {
    for (for_good, expected) in [
        (false, "comes back when every signal was read and its back-off is over (about 30s more)"),
        (true, "does not run again; it is listed until it is deleted"),
    ] {
        let mut rig = Rig::start();
        let record = EvictionRecord { for_good, ..record() };
        let evictions = Evictions::restored([record], clock::now());
        rig.task.relief = Relief::restored(evictions, &rig.task.settings, clock::now());
        let step = rig.plan().step;
        let shown = rig.task.evicted(&step, clock::now());
        assert_eq!(shown[0].waits_for, expected);
        assert_eq!(shown[0].back_at.is_none(), for_good);
    }
}
