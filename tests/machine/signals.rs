//! Disk space, inodes, process ids and memory with a soft threshold on a small machine with cgroup
//! v2: the pod that uses up the resource is evicted, and every other container keeps running.
//!
//! All pods start together and wait for a file that tells them to begin. The conditions of the node
//! stay true for a long time in the first part, so that the test sees them however slow the machine
//! is. The second part runs with another configuration, because a soft threshold needs figures of
//! the machine.

use crate::{
    machine::{Hardware, SOON},
    node::{Node, Options, Running, Status},
    support::{
        manifest::{FOREVER, Pod},
        world,
    },
};
use nodelet::model::{Pressure, ReliefView, Signal};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

const MIB: u64 = 1 << 20;
/// The root directory of the agent.
const DISK: &str = "truncate -s 64M /var/small.img && mke2fs -q -t ext4 -m 0 -N 2048 /var/small.img && \
    mkdir -p /var/lib/nodelet && mount -o loop /var/small.img /var/lib/nodelet && rmdir /var/lib/nodelet/lost+found";
/// A pod may have more processes than the threshold leaves to all of them.
const THRESHOLDS: &str = "evictionHard: { memory.available: 1Mi, nodefs.available: 20Mi, nodefs.inodesFree: \"500\", \
    imagefs.available: 0%, imagefs.inodesFree: 0%, pid.available: 80% }\n\
    podPidsLimit: 2000\nevictionPressureTransitionPeriod: 10m";
/// Files in it tell pods what to do. It is in memory, so that it can be used while the disk is full.
const CONTROL: &str = "/run/control";
/// How long the soft threshold has to be met before a pod is evicted.
const SOFT_GRACE: Duration = Duration::from_secs(15);
/// Waits until the agent has told that memory is short, in the machine itself: a look from outside
/// may take as long as the soft threshold allows.
const UNTIL_TOLD: &str = "until journalctl -q -u nodelet --since @$since | grep -q NodeHasInsufficientMemory; do sleep 0.2; done";
/// When the agent told that memory is short, and when it told that a pod is evicted.
const TOLD_TIMES: &str = "journalctl -q -u nodelet -o short-unix | \
    grep -e NodeHasInsufficientMemory -e 'reason=\"Evicted\"' | tail -n 2 | cut -d ' ' -f 1";
/// When the pod got SIGTERM, and when it was seen to run last.
const LIVED_TIMES: &str = "cd /run/control && stat -c %.Y told alive";
/// How much a pod may take before the soft threshold is met, and how much it takes.
const LEFT_MIB: u64 = 80;
const TAKEN_MIB: u64 = 160;

/// What a pod does to the machine, and what the agent says about it.
struct Case {
    pod: &'static str,
    /// Runs once `/control/POD` exists.
    script: &'static str,
    signal: Signal,
    resource: &'static str,
    /// The event that tells about the condition.
    event: &'static str,
}

const CASES: [Case; 3] = [
    // As fast as the machine can, until the disk is full.
    Case {
        pod: "volume",
        script: "head -c 1073741824 /dev/zero >/scratch/file",
        signal: Signal::NodefsAvailable,
        resource: "ephemeral-storage",
        event: "NodeHasDiskPressure",
    },
    Case {
        pod: "files",
        script: "cd /scratch; seq 1000000 | xargs touch",
        signal: Signal::NodefsInodesFree,
        resource: "inodes",
        event: "NodeHasDiskPressure",
    },
    // Forks for ever, without running anything.
    Case {
        pod: "bomb",
        script: "mkfifo /wait; while :; do read x </wait & done",
        signal: Signal::PidAvailable,
        resource: "pids",
        event: "NodeHasInsufficientPID",
    },
];

/// One machine of 640 MiB.
pub fn signals_evict_only_the_pod_that_is_the_cause() {
    let options = Options {
        hardware: Hardware { memory_mib: 640, ..Hardware::default() },
        kubelet: THRESHOLDS.to_owned(),
        ..Options::default()
    };
    let node = Node::boot(&options);
    node.sh(DISK);
    node.start_agent();
    let mut pods = vec![pod("quiet", FOREVER), taker()];
    pods.extend(CASES.iter().map(culprit));
    node.drop_pods(&pods);
    node.wait_running(&["quiet", "taker", "volume", "files", "bomb"]);
    node.note("all pods run");
    let mut status = process_ids_are_those_of_the_machine(&node);
    let mut evicted = Vec::new();
    for case in &CASES {
        status = uses_all_and_is_evicted(&node, case, &status, &mut evicted);
    }
    let text = node.sh("nodelet status");
    assert!(text.contains("\nPressure: DiskPressure for "), "{text}");
    assert!(text.contains(", PIDPressure for "), "{text}");
    a_soft_threshold_leaves_time(&node, &status);
    assert_eq!(node.kernel_kills(), 0, "the kernel kills nobody");
    assert_eq!(node.property("nodelet", "NRestarts"), "0");
    assert_eq!(node.property("containerd", "NRestarts"), "0");
    node.finish();
}

/// With an emptyDir at `/scratch` and [`CONTROL`] at `/control`.
fn pod(name: &str, script: &str) -> Pod {
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
    let control = json!({ "path": CONTROL, "type": "DirectoryOrCreate" });
    Pod::with_main(name, script)
        // A network of its own would only cost time.
        .set("hostNetwork", true)
        .set(
            "volumes",
            json!([{ "name": "scratch", "emptyDir": {} }, { "name": "control", "hostPath": control }]),
        )
        .set("containers/0/volumeMounts", json!([mount("scratch"), mount("control")]))
}

fn culprit(case: &Case) -> Pod {
    let Case { pod: name, script, .. } = case;
    pod(name, &format!("until [ -e /control/{name} ]; do sleep 1; done; {script}; sleep 100000"))
}

/// Has a file in memory for as long as `/control/take` exists, and touches `/control/alive`
/// meanwhile. SIGTERM makes it touch `/control/told`, nothing else.
fn taker() -> Pod {
    let script = format!(
        "trap 'touch /control/told' TERM
         while sleep 0.5; do
             [ -e /control/take ] || {{ rm -f /scratch/file; continue; }}
             [ -e /scratch/file ] || dd if=/dev/zero of=/scratch/file bs=1M count={TAKEN_MIB}
             touch /control/alive
         done"
    );
    pod("taker", &script)
        .set("volumes/0/emptyDir", json!({ "medium": "Memory" }))
        .set("terminationGracePeriodSeconds", 3600)
}

/// The signal is about the smaller of the machine's limits, and about every task of the machine.
fn process_ids_are_those_of_the_machine(node: &Node) -> Status {
    let limits = "sort -n /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max | head -n 1";
    let limit: u64 = node.sh(limits).trim().parse().unwrap();
    node.wait("the tasks of the machine are counted", |status| {
        let seen = status.signal(Signal::PidAvailable);
        assert_eq!(seen.capacity, Some(limit));
        let tasks: u64 = node.sh("ps -eL --no-headers | wc -l").trim().parse().unwrap();
        // Some begin and end between the two looks.
        seen.available.is_some_and(|available| (limit - available).abs_diff(tasks) < 50)
    })
}

/// A pod begins, and is evicted. No other pod is evicted, and no other container ends.
fn uses_all_and_is_evicted(
    node: &Node,
    case: &Case,
    idle: &Status,
    evicted: &mut Vec<String>,
) -> Status {
    let before = others(node, case.pod);
    let available = |status: &Status| status.signal(case.signal).available;
    let idle = available(idle).unwrap();
    node.sh(&format!("touch {CONTROL}/{}", case.pod));
    let condition = case.signal.condition().as_str();
    let what = format!("{} is evicted, and its resource is back", case.pod);
    let status = node.wait_for(SOON * 2, &what, |status| {
        status.reason(case.pod) == "Evicted"
            && status.holds(condition)
            && step_against(status, case.pod).is_some()
            && available(status).is_some_and(|available| available > idle / 10 * 9)
    });
    evicted.push(world::full_name(case.pod));
    evicted.sort();
    let away: Vec<String> =
        status.pressure().evicted.iter().map(|one| one.key.name.to_string()).collect();
    assert_eq!(away, *evicted, "no other pod is evicted");
    let message = status.pod(case.pod).unwrap().status.as_ref().unwrap().message.clone().unwrap();
    let expected = format!("The node was low on resource: {}. Threshold quantity: ", case.resource);
    assert!(message.starts_with(&expected), "{message}");
    for (reason, about) in
        [("Evicted", message.as_str()), (case.event, ""), ("EvictionThresholdMet", "")]
    {
        assert!(status.has_event(reason, about), "{reason} {about}: {status:?}");
    }
    println!("{message}\n{:?}", step_against(&status, case.pod));
    assert_eq!(others(node, case.pod), before, "nobody else is touched");
    assert_eq!(node.running().len(), before.len(), "nothing of it runs");
    node.note(&format!("{} is evicted", case.pod));
    status
}

/// The running containers of all pods but one.
fn others(node: &Node, pod: &str) -> BTreeMap<String, Running> {
    let mut running = node.running();
    running.retain(|name, _| !name.starts_with(&format!("{pod}/")));
    running
}

/// The eviction of a pod. Its text goes on when the pod did not stop in time.
fn step_against(status: &Status, pod: &str) -> Option<ReliefView> {
    let what = format!("evicted default/{}", world::full_name(pod));
    status.pressure().steps.into_iter().find(|step| step.what.starts_with(&what))
}

/// A pod that gives its memory back in time stays. One that does not is told to end after the
/// threshold's grace period, and killed after `evictionMaxPodGracePeriod`, which is shorter than
/// its own.
fn a_soft_threshold_leaves_time(node: &Node, idle: &Status) {
    let available = idle.signal(Signal::MemoryAvailable).available.unwrap();
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         evictionSoft: {{ memory.available: {}Mi }}\n\
         evictionSoftGracePeriod: {{ memory.available: {}s }}\n\
         evictionMaxPodGracePeriod: 5\nevictionPressureTransitionPeriod: 2s",
        available / MIB - LEFT_MIB,
        SOFT_GRACE.as_secs(),
    );
    node.write("/etc/nodelet/config.d/20-soft.conf", &config);
    let culprits = CASES.map(|case| format!("{}.yaml", case.pod)).join(" ");
    // The transition period of two seconds has passed for all evictions when the agent starts again,
    // so none of their conditions is restored.
    node.sh(&format!(
        "systemctl stop nodelet; cd /etc/nodelet/static-pods; rm {culprits}; sleep 3; systemctl start nodelet"
    ));
    let no_pressure = |status: &Status| Pressure::ALL.iter().all(|one| !status.holds(one.as_str()));
    node.wait("there is no pressure any more", |status| {
        no_pressure(status)
            && status.pods.len() == 2
            && ["quiet", "taker"].iter().all(|pod| status.runs(pod))
    });
    let mut before = node.running();
    assert_eq!(before.len(), 2, "{before:?}");
    node.note("the next part begins");

    node.sh(&format!("since=$(date +%s); touch {CONTROL}/take; {UNTIL_TOLD}; rm {CONTROL}/take"));
    let status = node.wait("memory is back", |status| {
        status.has_event("NodeHasSufficientMemory", "") && no_pressure(status)
    });
    assert!(!status.has_event("Evicted", "") && status.reason("taker").is_empty(), "{status:?}");
    assert_eq!(node.running(), before, "nobody is touched");
    node.note("memory came back in time");

    node.sh(&format!("touch {CONTROL}/take"));
    let status = node.wait_for(SOON * 2, "the pod is evicted", |status| {
        status.reason("taker") == "Evicted" && step_against(status, "taker").is_some()
    });
    let message = status.pod("taker").unwrap().status.as_ref().unwrap().message.clone().unwrap();
    assert!(message.starts_with("The node was low on resource: memory. "), "{message}");
    println!("{message}\n{:?}", step_against(&status, "taker"));
    // The machine's own times: a slow test changes nothing. The first lack of memory does not count.
    let times = seconds(node, TOLD_TIMES);
    let waited = times[1] - times[0];
    assert!(waited > SOFT_GRACE.as_secs_f64() - 1.0, "evicted after {waited} s");
    let times = seconds(node, LIVED_TIMES);
    let lived = times[1] - times[0];
    println!("evicted after {waited:.1} s, lived for {lived:.1} s more");
    assert!(lived > 1.0, "it has a grace period: {lived} s");
    before.retain(|name, _| name == "quiet/main");
    assert_eq!(node.running(), before, "it alone has ended");
    node.note("memory did not come back in time");
}

/// Times that a script prints, a line each.
fn seconds(node: &Node, script: &str) -> Vec<f64> {
    node.sh(script).lines().map(|time| time.parse().unwrap()).collect()
}
