//! What the scenarios about short memory share: nodes whose pods may use little together, shell
//! scripts that take memory, and looks at what becomes of them.

use super::pressure::{holds, reason};
use crate::support::{
    agent::Settings,
    manifest::Pod,
    process::{Process, memory_kib},
    say_loudly,
    status::Status,
    world::{Kind, World, full_name},
};
use nodelet::{cri::v1, model::Pressure};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tokio::time::Instant;

/// What all pods together may use, in MiB.
pub(super) const ALL_PODS_MIB: u64 = 700;
/// What of it has to stay free.
pub(super) const FREE_MIB: u64 = 300;
pub(super) const MIB: u64 = 1 << 20;

/// A node whose pods may use little together.
pub(super) fn node(kind: Kind, thresholds: &str) -> Settings {
    let reserved = memory_kib() - ALL_PODS_MIB * 1024;
    Settings::for_kind(kind).kubelet(&format!(
        "systemReserved: {{ memory: {reserved}Ki }}\nevictionPressureTransitionPeriod: 1s\n{thresholds}\n"
    ))
}

/// One that evicts without delay.
pub(super) fn strict_node(kind: Kind) -> Settings {
    node(kind, &format!("evictionHard: {{ memory.available: {FREE_MIB}Mi }}"))
}

/// Shell: keeps that much memory until `until` is true.
pub(super) fn keeps(mib: u64, until: &str) -> String {
    let bytes = mib * MIB;
    format!(
        "head -c {bytes} /dev/zero | tail -c {bytes} | {{ until {until}; do sleep 0.1; done; }}\n"
    )
}

/// Shell: takes 10 MiB more every `pause` seconds, for ever.
pub(super) fn grows(pause: &str) -> String {
    format!(
        "while :; do head -c 10485760 /dev/zero | tail -c 10485760 | sleep 1000 & sleep {pause}; done\n"
    )
}

/// A directory that test and pods share: files in it are signs.
pub(super) struct Signs(PathBuf);

impl Signs {
    pub(super) fn make(world: &World) -> Self {
        let dir = world.slot.dir().join("signs");
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// A pod whose `main` finds the directory at `/signs`.
    pub(super) fn pod(&self, name: &str, script: &str) -> Pod {
        Pod::with_main(name, script)
            .set("volumes", json!([{ "name": "signs", "hostPath": { "path": self.0 } }]))
            .set("containers/0/volumeMounts", json!([{ "name": "signs", "mountPath": "/signs" }]))
    }

    pub(super) fn give(&self, sign: &str) {
        fs::write(self.0.join(sign), "").unwrap();
    }

    pub(super) fn has(&self, sign: &str) -> bool {
        self.0.join(sign).exists()
    }
}

/// Waits for a sign.
pub(super) fn sign(name: &str) -> String {
    format!("[ -e /signs/{name} ]")
}

/// The running containers of pods whose names begin with `prefix`.
pub(super) fn running(world: &World, prefix: &str) -> BTreeMap<String, String> {
    let mut all = world.cri.containers();
    all.retain(|container| container.state() == v1::ContainerState::ContainerRunning);
    let name = |c: &v1::Container| c.labels.get("io.kubernetes.pod.name").cloned();
    let named = all.into_iter().filter_map(|c| Some((c.id.clone(), name(&c)?)));
    named.filter(|(_, name)| name.starts_with(prefix)).collect()
}

/// Pods that do nothing wrong, and what runs of them.
pub(super) struct Innocents<'a> {
    world: &'a World,
    ids: BTreeMap<String, String>,
}

impl<'a> Innocents<'a> {
    pub(super) fn start(world: &'a World, count: usize) -> Self {
        let names: Vec<String> = (0..count).map(|n| format!("innocent{n:02}")).collect();
        for name in &names {
            world.drop_pod(&Pod::running(name));
        }
        let all = |status: &Status| names.iter().all(|name| status.runs(name));
        world.wait_for(Duration::from_secs(120), "the innocent run", all);
        Self { world, ids: running(world, "innocent") }
    }

    #[track_caller]
    pub(super) fn are_untouched(&self) {
        assert_eq!(running(self.world, "innocent"), self.ids, "nobody else is touched");
    }
}

/// Whether the pod was told to go.
pub(super) fn is_told(status: &Status, pod: &str) -> bool {
    told(status, pod) > 0
}

/// How often people were told that it was evicted.
pub(super) fn told(status: &Status, pod: &str) -> i64 {
    let (name, evicted) = (full_name(pod), json!("Evicted"));
    let ours = |event: &&serde_json::Value| {
        event["reason"] == evicted && event["involvedObject"]["name"] == json!(name)
    };
    status.events.iter().filter(ours).filter_map(|event| event["count"].as_i64()).sum()
}

/// Waits until a pod is evicted; gives the status.
#[track_caller]
pub(super) fn wait_evicted(world: &World, pod: &str) -> Status {
    let patience = Duration::from_secs(60);
    let evicted = |status: &Status| reason(status, pod) == "Evicted";
    let status = world.wait_for(patience, &format!("{pod} is evicted"), evicted);
    let message = status.pod(pod).unwrap().status.message.clone().unwrap();
    assert!(message.starts_with("The node was low on resource: memory. "), "{message}");
    assert!(world.sandboxes(pod).is_empty(), "nothing of it is left");
    assert_eq!(told(&status, pod), 1);
    status
}

/// Takes an evicted pod's manifest away and waits until memory is there again.
#[track_caller]
pub(super) fn wait_over(world: &World, pod: &str) {
    world.remove(&format!("{pod}.yaml"));
    world.wait_gone(pod);
    world.wait("the pressure is over", |status| !holds(status, Pressure::Memory));
}

/// What a cgroup uses, page cache included.
pub(super) fn usage(cgroup: &Path) -> u64 {
    let files = ["memory.usage_in_bytes", "memory.current"].map(|name| cgroup.join(name));
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok());
    text.unwrap().trim().parse().unwrap()
}

/// The working set of a cgroup, from the files of v1 or v2.
pub(super) fn working_set(cgroup: &Path) -> u64 {
    let read = |name: &str| fs::read_to_string(cgroup.join(name)).unwrap_or_default();
    let stat = read("memory.stat");
    let field = |name: &str| -> Option<u64> {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
    };
    let number = |name: &str| read(name).trim().parse::<u64>().ok();
    let used = number("memory.usage_in_bytes")
        .or_else(|| number("memory.current"))
        .or_else(|| Some(field("anon")? + field("file")?));
    // What is on no list is on its way out.
    let file = |v1: &str, v2: &str| field(v1).or_else(|| field(v2)).unwrap_or_default();
    let cache = file("total_cache", "file").saturating_sub(file("total_shmem", "shmem"));
    let active = file("total_active_file", "active_file");
    used.unwrap_or_default().saturating_sub(cache.saturating_sub(active))
}

/// What came of a hog, seen from outside.
#[derive(Debug)]
pub(super) struct Seen {
    /// From less being free than should be to the death of its last process.
    lived: Duration,
    /// How far memory went past the threshold, in MiB.
    past: u64,
}

/// Watches all pods' memory and a pod's processes, from now on to its end.
pub(super) fn watch(world: &World, pod: &str, free_mib: u64) -> thread::JoinHandle<Seen> {
    let process = Process::of(world, pod, "main");
    let pod_dir = |controller: &str| process.cgroup(controller).parent().unwrap().to_owned();
    let memory = pod_dir("memory");
    let is_all = |dir: &&Path| dir.ends_with("kubepods") || dir.ends_with("kubepods.slice");
    let all = memory.ancestors().find(is_all).unwrap().to_owned();
    let tasks = pod_dir("pids").join("pids.current");
    thread::spawn(move || {
        let bound = (ALL_PODS_MIB - free_mib) * MIB;
        let (mut crossed, mut most) = (None, 0);
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let used = working_set(&all);
            most = most.max(used);
            if used > bound {
                crossed.get_or_insert_with(Instant::now);
            }
            let left = fs::read_to_string(&tasks).unwrap_or_default();
            if matches!(left.trim(), "" | "0") {
                break;
            }
            crate::support::pause(Duration::from_millis(2));
        }
        let lived = crossed.map(|since| since.elapsed()).unwrap_or_default();
        Seen { lived, past: most.saturating_sub(bound) / MIB }
    })
}

/// What was seen, told to whoever runs the test, and held against what a busy machine needs.
#[track_caller]
pub(super) fn check(world: &World, what: &str, watched: thread::JoinHandle<Seen>) {
    let seen = watched.join().unwrap();
    say_loudly(&format!("{what}: {seen:?}"));
    let quick = seen.lived < Duration::from_secs(8) && seen.past < FREE_MIB;
    assert!(quick, "{seen:?}\n--- agent's log: {}", world.agent.log_tail(60));
}

/// Starts the agent with other lines of configuration.
pub(super) fn restart_with(world: &World, lines: &str, others: &str) {
    let text = fs::read_to_string(world.agent.config_file()).unwrap();
    assert!(text.contains(lines), "{lines} in:\n{text}");
    fs::write(world.agent.config_file(), text.replace(lines, others)).unwrap();
    world.agent.start();
}
