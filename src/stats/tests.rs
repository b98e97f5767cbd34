#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    cgroup::{CgroupSettings, Hierarchy, SystemdSockets},
    model::{CgroupDirs, CgroupDriver, ContainerInstance, PodKey},
    signals::ContainerPlaces,
};
use std::fs;
use tempfile::TempDir;
use tokio::time::Instant;

const STAT: &str = "anon 4096\nfile 8192\nkernel 0\ninactive_file 2048\nfile_mapped 0\n\
    pgfault 5\npgmajfault 1\n";

/// A cgroup of cgroup v2, whose CPUs have worked for so long.
fn make_cgroup(directory: &Path, micros: u64) {
    fs::create_dir_all(directory).unwrap();
    let put = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    put("cpu.stat", &format!("usage_usec {micros}\nuser_usec 1\nsystem_usec 2\n"));
    put("cpu.max", "max 100000\n");
    put("cpu.weight", "1\n");
    put("memory.current", "12288\n");
    put("memory.stat", STAT);
    put("memory.max", "1048576\n");
    put("memory.swap.current", "0\n");
    put("memory.swap.max", "max\n");
    put("memory.events", "low 0\nmax 7\noom 1\noom_kill 1\n");
    put("pids.current", "3\n");
    put("pids.max", "max\n");
    put("io.stat", "");
    put("cgroup.procs", "");
}

/// A collector on a directory in which one container runs.
struct Rig {
    dir: TempDir,
    collector: Collector,
    pods: watch::Sender<Arc<PodViews>>,
}

impl Rig {
    fn pod(dir: &Path) -> PathBuf {
        dir.join("kubepods/pod1")
    }

    fn new() -> Self {
        Self::with_period(Duration::from_secs(60))
    }

    fn with_period(survey_period: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        make_cgroup(&Self::pod(dir.path()), 2_000_000);
        make_cgroup(&Self::pod(dir.path()).join("cri-containerd-c1.scope"), 1_000_000);
        let cgroups = CgroupSettings {
            root: "/".to_owned(),
            per_qos: true,
            driver: CgroupDriver::Cgroupfs,
            systemd: SystemdSockets { private: "/nonexistent".into(), bus: "/nonexistent".into() },
        };
        let hierarchy = Hierarchy {
            mount_point: dir.path().to_owned(),
            controllers: Vec::new(),
            unified: true,
        };
        let view = running_pod();
        let all: PodViews = [(view.key.clone(), Arc::new(view))].into_iter().collect();
        let (pods, views) = watch::channel(Arc::new(all));
        let cgroup = CgroupDirs::unified(Self::pod(dir.path()));
        let disk = dir.path().to_owned();
        let layer = dir.path().join("layer");
        fs::create_dir(&layer).unwrap();
        let collector = Collector::new(StatsParts {
            cgroups: Cgroups::on_hierarchies(vec![hierarchy], &cgroups).unwrap(),
            runtime: RuntimeClient::new("unix:///nonexistent", None, Duration::from_secs(1))
                .unwrap(),
            places: Arc::new(move |view| {
                Some(PodPlaces {
                    key: view.key.clone(),
                    uid: view.uid.clone(),
                    cgroup: Some(cgroup.clone()),
                    containers: vec![ContainerPlaces {
                        name: "main".into(),
                        id: Some("c1".into()),
                        layer: Some(layer.clone()),
                    }],
                    volumes: Vec::new(),
                    logs: None,
                    files: None,
                    runtime_files: Vec::new(),
                    runtime_dirs: Vec::new(),
                })
            }),
            claims: Arc::new(move |_| {
                let (volume, claim, path) = ("v".into(), "data".into(), disk.clone());
                vec![MeasuredClaim { volume, claim, path }]
            }),
            pods: views,
            disks: DiskReadings::new(watch::channel(Arc::default()).1, Arc::default()),
            survey_period: Some(survey_period),
        });
        Self { dir, collector, pods }
    }
}

fn running_pod() -> PodView {
    let spec = serde_json::json!({
        "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main", "image": "i:1"}]},
    });
    PodView {
        key: PodKey::new("default", "a"),
        uid: "u1".into(),
        pod: Some(Arc::new(serde_json::from_value(spec).unwrap())),
        status: Arc::default(),
        containers: vec![ContainerInstance {
            name: "main".into(),
            id: "c1".into(),
            restart_count: 0,
            running_since: Some(Timestamp::UNIX_EPOCH),
            started: true,
            in_post_start: false,
        }],
        origin: None,
        config: crate::model::PodConfig::Desired,
        terminating: false,
        stopped: false,
        hung: None,
        waiting: None,
        update: None,
        previous: None,
        probes: Vec::new(),
    }
}

#[tokio::test]
async fn claimed_volumes_are_told_when_everything_is_asked_for() {
    let rig = Rig::new();
    let short = rig.collector.collect(StatsDepth::Resources).await;
    assert_eq!(short.pods[0].claims, []);
    let stats = rig.collector.collect(StatsDepth::Everything).await;
    let [found] = &stats.pods[0].claims[..] else { panic!("{stats:?}") };
    assert_eq!((&*found.volume, &*found.claim), ("v", "data"));
    let (available, capacity) = found.fs.bytes;
    assert!(available <= capacity && found.fs.used_bytes <= capacity && capacity > 0, "{found:?}");
    assert_eq!(*rig.collector.claims().await, stats.pods[0].claims, "they are shared");
}

#[tokio::test]
async fn cgroups_of_version_2_are_told() {
    let rig = Rig::new();
    let stats = rig.collector.collect(StatsDepth::Everything).await;
    let pod = &stats.pods[0];
    assert_eq!((&*pod.cgroup, pod.uid.as_str()), ("/kubepods/pod1", "u1"));
    assert_eq!(pod.stats.as_ref().unwrap().cpu.unwrap().usage, Duration::from_secs(2));
    let container = &pod.containers[0];
    assert_eq!((&*container.image, &*container.id), ("i:1", "c1"));
    assert_eq!(container.cgroup, "/kubepods/pod1/cri-containerd-c1.scope");
    let used = container.stats.as_ref().unwrap();
    assert_eq!(used.cpu.unwrap().usage, Duration::from_secs(1));
    assert_eq!((used.cpu.unwrap().throttling, used.cpu.unwrap().shares), (None, Some(2)));
    assert_eq!(used.cpu_rate, None, "one reading has no rate");
    let memory = used.memory.unwrap();
    assert_eq!((memory.usage, memory.working_set, memory.rss), (12_288, 10_240, 4096));
    assert_eq!(
        (memory.limit, memory.limit_hits, memory.oom_kills),
        (Some(1 << 20), Some(7), Some(1))
    );
    assert_eq!((used.tasks, used.tasks_limit), (Some(3), None));
    assert!(stats.node.machine.memory.is_some() && stats.node.agent.memory.unwrap().rss > 0);
}

#[tokio::test]
async fn a_survey_that_is_far_too_old_is_not_told() {
    let rig = Rig::with_period(FRESH / 4);
    let first = rig.collector.collect(StatsDepth::Everything).await;
    let first = first.pods[0].containers[0].layer.unwrap().at;
    tokio::time::sleep(FRESH + Duration::from_millis(50)).await;
    let asked = clock::now().wall;
    let stats = rig.collector.collect(StatsDepth::Everything).await;
    let found = stats.pods[0].containers[0].layer.unwrap().at;
    assert!(found >= asked, "asked at {asked}, measured at {found}, after {first}");
}

#[tokio::test]
async fn a_new_instance_does_not_have_the_layer_of_the_former_one() {
    let rig = Rig::new();
    let stats = rig.collector.collect(StatsDepth::Everything).await;
    assert!(stats.pods[0].containers[0].layer.is_some(), "{stats:?}");
    let mut view = running_pod();
    view.containers[0].id = "c2".into();
    rig.pods.send_replace(Arc::new([(view.key.clone(), Arc::new(view))].into_iter().collect()));
    tokio::time::sleep(FRESH + Duration::from_millis(50)).await;
    let stats = rig.collector.collect(StatsDepth::Everything).await;
    let container = &stats.pods[0].containers[0];
    assert_eq!((&*container.id, container.layer), ("c2", None));
}

#[tokio::test]
async fn clients_that_ask_at_the_same_time_share_a_collection() {
    let rig = Rig::new();
    let first = rig.collector.collect(StatsDepth::Resources).await;
    let again = rig.collector.collect(StatsDepth::Resources).await;
    assert!(Arc::ptr_eq(&first, &again));
    // More is wanted than was read.
    let deeper = rig.collector.collect(StatsDepth::Everything).await;
    assert!(!Arc::ptr_eq(&first, &deeper));
    let less = rig.collector.collect(StatsDepth::Resources).await;
    assert!(Arc::ptr_eq(&deeper, &less));
}

#[tokio::test]
async fn a_rate_comes_with_the_second_reading_and_goes_with_the_pod() {
    let rig = Rig::new();
    let begun = Instant::now();
    rig.collector.collect(StatsDepth::Resources).await;
    tokio::time::sleep(FRESH + Duration::from_millis(50)).await;
    make_cgroup(&Rig::pod(rig.dir.path()), 3_000_000);
    let stats = rig.collector.collect(StatsDepth::Resources).await;
    let rate = stats.pods[0].stats.as_ref().unwrap().cpu_rate.unwrap();
    // A second of CPU time between two readings, of which both are within this time.
    let least = 1_000_000_000_000 / u64::try_from(begun.elapsed().as_millis() + 1).unwrap();
    assert!((least..=1_000_000_000).contains(&rate), "{rate}, not {least}");
    rig.pods.send_replace(Arc::default());
    tokio::time::sleep(FRESH).await;
    assert!(rig.collector.collect(StatsDepth::Resources).await.pods.is_empty());
}

#[tokio::test]
async fn a_container_that_is_gone_has_no_numbers() {
    let rig = Rig::new();
    fs::remove_dir_all(Rig::pod(rig.dir.path()).join("cri-containerd-c1.scope")).unwrap();
    let stats = rig.collector.collect(StatsDepth::Everything).await;
    let container = &stats.pods[0].containers[0];
    assert_eq!((&container.stats, &*container.cgroup), (&None, ""));
}
