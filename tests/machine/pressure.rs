//! Memory runs short on a small machine with cgroup v2: by a pod, by page cache, by a process
//! outside of the pods; the kernel's own killer never comes, and nobody goes but who has to. What
//! was evicted and what ran is known after the power was lost, too.

use crate::{
    machine::{Hardware, SOON},
    node::{Node, Options, Running, Status},
    support::{manifest::Pod, pause},
};
use nodelet::model::{ReliefView, Signal};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

/// What has to stay free, of about 480 MiB. Some 50 of it are the kernel's own memory, which the
/// signal does not count.
const FREE_MIB: u64 = 130;
const MIB: u64 = 1 << 20;
const INNOCENT: [&str; 3] = ["ant", "bee", "cow"];
/// What a pod sees as `/host`: files that are gone with a reboot, and a large one.
const HUNGER: &str = "/run/hunger";
const READING: &str = "/var/tmp/reading";
/// Waits for a file with a number in it and takes that many MiB at once, in a file in memory. Then
/// takes memory of its own as fast as it can: busybox would need two minutes for all of it.
const HOG: &str = "until [ -s /host/hungry ]; do sleep 1; done; \
    dd if=/dev/zero of=/scratch/file bs=1M count=$(cat /host/hungry); \
    head -c 419430400 /dev/zero | tail -c 419430400 | sleep 100000";
/// How much the hog takes of its own before the threshold is met.
const OWN_MIB: u64 = 30;
/// Reads a file again and again, so that all of it is page cache in use.
const READER: &str = "while :; do dd if=/host/large of=/dev/null bs=1M 2>/dev/null; done";

/// One machine of 512 MiB.
pub fn memory_pressure_on_a_small_machine() {
    let options = Options {
        hardware: Hardware { memory_mib: 512, ..Hardware::default() },
        kubelet: format!(
            "evictionHard: {{ memory.available: {FREE_MIB}Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, \
             imagefs.available: 0%, imagefs.inodesFree: 0% }}\n\
             evictionPressureTransitionPeriod: 5s"
        ),
        ..Options::default()
    };
    let node = Node::boot(&options);
    node.start_agent();
    node.drop_pods(&INNOCENT.map(Pod::running));
    node.wait_running(&INNOCENT);
    let before = innocent(&node);
    node.note("the innocent run");
    the_kernel_is_listened_to(&node);
    page_cache_is_reclaimed(&node, &before);
    a_hog_goes_before_the_kernel_kills(&node, &before);
    kills_by_the_kernel_are_told(&node, &before);
    a_loss_of_power_under_pressure(&node);
    node.finish();
}

/// A pod that sees a directory of the machine.
fn with_host(name: &str, directory: &str, script: &str) -> Pod {
    let directory = json!({ "path": directory, "type": "DirectoryOrCreate" });
    Pod::with_main(name, script)
        .set("volumes", json!([{ "name": "host", "hostPath": directory }]))
        .set("containers/0/volumeMounts", json!([{ "name": "host", "mountPath": "/host" }]))
}

/// A pod that takes memory when it is told to by [`feed`].
fn hog() -> Pod {
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
    let directory = json!({ "path": HUNGER, "type": "DirectoryOrCreate" });
    let scratch = json!({ "name": "scratch", "emptyDir": { "medium": "Memory" } });
    Pod::with_main("hog", HOG)
        .set("volumes", json!([{ "name": "host", "hostPath": directory }, scratch]))
        .set("containers/0/volumeMounts", json!([mount("host"), mount("scratch")]))
}

/// Tells the hog to take memory until it is evicted.
fn feed(node: &Node, status: &Status) {
    let at_once = (available(status) / MIB).saturating_sub(FREE_MIB + OWN_MIB);
    node.sh(&format!("echo {at_once} >{HUNGER}/hungry"));
}

/// PSI and the kernel's log are open under the shipped unit.
fn the_kernel_is_listened_to(node: &Node) {
    let agent = node.agent_pid();
    let open = node.sh(&format!("readlink /proc/{agent}/fd/*"));
    for file in ["/proc/pressure/memory", "/dev/kmsg"] {
        assert!(open.lines().any(|line| line == file), "{file} in:\n{open}");
    }
    assert_eq!(node.sh(&format!("cat /proc/{agent}/oom_score_adj")), "-999\n");
}

/// A pod that uses nothing but page cache brings the signal down: the kernel is asked for it, again
/// and again, and the pod stays.
fn page_cache_is_reclaimed(node: &Node, before: &BTreeMap<String, Running>) {
    let large = available(&node.status().unwrap()) / MIB - FREE_MIB + 30;
    // A file of holes: reading it makes page cache without a disk.
    node.sh(&format!("mkdir -p {READING}; truncate -s {large}M {READING}/large"));
    node.drop_pods(&[with_host("reader", READING, READER)]);
    let reclaimed = |status: &Status| {
        steps(status)
            .iter()
            .filter(|step| step.starts_with("asked the kernel to reclaim page cache"))
            .count()
    };
    let status =
        node.wait("page cache was reclaimed more than once", |status| reclaimed(status) > 1);
    node.note("page cache was reclaimed");
    assert!(evictions(&status).is_empty(), "nobody goes for it: {:?}", steps(&status));
    println!("{}", steps(&status).join("\n"));
    assert!(status.runs("reader"), "{status:?}");
    assert_eq!(status.restarts("reader", "main"), 0);
    assert_eq!(innocent(node), *before, "nobody is touched");
    // Its cache stays for as long as the file is there.
    node.sh(&format!("rm /etc/nodelet/static-pods/reader.yaml {READING}/large"));
    node.wait("memory is enough again", |status| {
        status.pod("reader").is_none() && !status.holds("MemoryPressure")
    });
}

/// A container that takes memory as fast as it can goes alone, and comes back later.
fn a_hog_goes_before_the_kernel_kills(node: &Node, before: &BTreeMap<String, Running>) {
    node.drop_pods(&[hog()]);
    node.wait("the hog waits", |status| status.runs("hog"));
    let much = |status: &Status| available(status) > (FREE_MIB + 60) * MIB;
    let status = node.wait("there is something to take", much);
    feed(node, &status);
    let status = node.wait("the hog is evicted", |status| status.reason("hog") == "Evicted");
    node.note("the hog is evicted");
    let message = status.pod("hog").unwrap().status.as_ref().unwrap().message.clone().unwrap();
    assert!(message.starts_with("The node was low on resource: memory. "), "{message}");
    println!("{message}\n{}", steps(&status).join("\n"));
    println!("{}", node.sh("grep -H . /sys/fs/cgroup/kubepods/memory.peak; free -m"));
    assert_eq!(node.kernel_kills(), 0, "the kernel kills nobody");
    let events = node.sh("cat /sys/fs/cgroup/kubepods/memory.events");
    assert!(events.contains("oom 0\noom_kill 0\n"), "{events}");
    assert_eq!(innocent(node), *before, "nobody else is touched");
    assert_eq!(node.property("nodelet", "NRestarts"), "0");
    assert_eq!(node.property("containerd", "NRestarts"), "0");

    node.sh(&format!("rm {HUNGER}/hungry"));
    let status = node.wait("the hog comes back", |status| status.runs("hog"));
    assert!(!status.holds("MemoryPressure"));
    assert_eq!(status.restarts("hog", "main"), 0, "as if it had never run");
    assert_eq!(innocent(node), *before, "nobody else is touched");
    node.note("the hog is back");
}

/// That a cgroup outside of the pods reached its own limit is none of the node's concern; that the
/// machine had no memory left is.
fn kills_by_the_kernel_are_told(node: &Node, before: &BTreeMap<String, Running>) {
    let limited = "systemd-run --quiet --wait -p MemoryMax=20M bash -c 'head -c 60M /dev/zero | tail -c 60M >/dev/null'";
    node.run(limited);
    assert_eq!(node.kernel_kills(), 1, "the kernel has killed in a cgroup");
    node.sh("systemd-run --quiet --unit greedy -p OOMScoreAdjust=1000 bash -c 'head -c 40M /dev/zero | tail -c 40M | sleep 100000'");
    let anon = || node.sh("grep '^anon ' /sys/fs/cgroup/system.slice/greedy.service/memory.stat");
    node.wait_until("it has its memory", anon, |line| {
        line.trim().trim_start_matches("anon ").parse::<u64>().unwrap() > 38 * MIB
    });
    // `head` may end between the two reads.
    let procs = "/sys/fs/cgroup/system.slice/greedy.service/cgroup.procs";
    let find = format!(
        "for pid in $(cat {procs}); do [ \"$(cat /proc/$pid/comm 2>&1)\" != tail ] || echo $pid; done"
    );
    let pid = node.sh(&find).trim().to_owned();
    // What the kernel does by itself when there is nothing left.
    node.sh("echo f >/proc/sysrq-trigger");
    let told = |status: &Status| -> Vec<String> {
        let events = status.node["events"].as_array().into_iter().flatten();
        let told = events.filter(|event| event["reason"] == "SystemOOM");
        told.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    };
    let status = node.wait("the kill is told", |status| !told(status).is_empty());
    let expected = format!("System OOM encountered, victim process: tail, pid: {pid}");
    assert_eq!(told(&status), [expected], "and not the one in the cgroup");
    assert_eq!(innocent(node), *before, "nobody else is touched");
    node.run("systemctl stop greedy");
    node.note("kills are told");
}

/// The power goes right after an eviction, and the agent comes up with less memory than has to stay
/// free, which no pod has taken.
fn a_loss_of_power_under_pressure(node: &Node) {
    let more = "/etc/nodelet/config.d/20-more.conf";
    node.write(
        more,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         evictionHard: { memory.available: 95% }",
    );
    node.sh("sync");
    feed(node, &node.status().unwrap());
    node.wait("the hog is evicted again", |status| status.reason("hog") == "Evicted");
    // At once it only survives the agent: what is short may be the disk.
    let saved = || node.sh("cat /var/lib/nodelet/nodelet/evictions.json");
    node.wait_until("that is on the disk", saved, |text| text.contains("\"count\":2"));
    pause(Duration::from_secs(1));
    node.cut_power();
    node.power_on();
    node.wait_for_runtime();
    node.note("the power was lost");

    let all = |status: &Status| INNOCENT.iter().all(|name| status.runs(name));
    let status = node.wait_for(SOON * 2, "what ran runs again, under pressure", |status| {
        all(status) && status.holds("MemoryPressure")
    });
    assert_eq!(status.reason("hog"), "Evicted", "{status:?}");
    let before = innocent(node);
    node.drop_pods(&[Pod::running("late")]);
    node.wait("nothing new begins", |status| status.reason("late") == "Evicted");
    let status = node.wait("people are told who has the memory", |status| {
        let trouble = status.node["pressure"]["trouble"].to_string();
        trouble.contains("evicting a pod would not help") && trouble.contains("containerd (pid ")
    });
    assert!(evictions(&status).is_empty(), "nobody goes for it: {:?}", steps(&status));
    assert_eq!(node.kernel_kills(), 0, "the kernel kills nobody");
    assert_eq!(node.running().keys().filter(|name| name.starts_with("hog")).count(), 0);
    assert_eq!(innocent(node), before, "nobody is touched");
    node.note("what ran runs, and what was evicted does not");

    node.sh(&format!("rm {more}; systemctl restart nodelet"));
    node.wait("all come back", |status| status.runs("late") && status.runs("hog"));
    assert_eq!(innocent(node), before, "nobody is touched");
}

/// The containers of those that have nothing to do with it.
#[track_caller]
fn innocent(node: &Node) -> BTreeMap<String, Running> {
    let mut running = node.running();
    running.retain(|name, _| INNOCENT.iter().any(|pod| name.starts_with(&format!("{pod}/"))));
    assert_eq!(running.len(), INNOCENT.len(), "{running:?}");
    running
}

fn available(status: &Status) -> u64 {
    status.signal(Signal::MemoryAvailable).available.unwrap()
}

/// What was done, a line each.
fn steps(status: &Status) -> Vec<String> {
    let steps = status.pressure().steps.into_iter();
    let figure = |figure: Option<u64>| figure.map_or("?".to_owned(), |figure| figure.to_string());
    let line = |step: ReliefView| {
        format!("{}; freed {}, expected {}", step.what, figure(step.freed), figure(step.expected))
    };
    steps.map(line).collect()
}

fn evictions(status: &Status) -> Vec<String> {
    steps(status).into_iter().filter(|step| step.starts_with("evicted ")).collect()
}
