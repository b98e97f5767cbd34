//! What a node goes through: the agent comes, goes, hangs and is killed, containerd too, the
//! machine is started anew.

use crate::{
    cgroups,
    machine::SOON,
    node::{Driver, MANIFESTS, Node, Options},
    support::{
        figures::{self, Table},
        manifest::{FOREVER, Pod},
        say_loudly,
    },
};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// One machine, from its first start to the removal of the last pod.
pub fn a_node_through_its_life() {
    let driver = Driver::Cgroupfs;
    let options = Options { driver, kubelet: cgroups::PIDS_LIMIT.to_owned(), ..Options::default() };
    let node = Node::boot(&options);
    the_unit_is_good_and_up_without_a_runtime(&node);
    node.note("the unit is good");
    node.drop_pods(&cgroups::pods());
    node.wait_running(&["solid", "elastic", "free"]);
    node.note("three pods run");
    cgroups::check(&node, driver);
    node.note("cgroups are as asked");
    volumes_reach_the_runtime(&node);
    node.note("volumes reach the runtime");
    node.drop_pods(&[witness()]);
    node.wait("the witness runs", |status| status.runs("witness"));
    every_sandbox_has_one_shim(&node);
    nothing_that_happens_to_daemons_restarts_a_container(&node);
    after_a_reboot_pods_run_again(&node);
    node.note("all is as before the reboot");
    node.finish();
}

fn the_unit_is_good_and_up_without_a_runtime(node: &Node) {
    let verified = node.sh("systemd-analyze verify --man=no nodelet.service 2>&1");
    assert_eq!(verified, "", "systemd-analyze verify");
    node.sh("systemctl mask --quiet --runtime --now containerd");
    node.sh("systemctl enable --quiet --now nodelet");
    figure("agent executed → READY=1, first start, no runtime", exec_to_ready(node));
    let status = || node.property("nodelet", "StatusText");
    node.wait_until("systemd is told what is wrong", status, |text| {
        text.starts_with("0 of 0 pods running; ")
    });
    node.sh("systemctl unmask --quiet --runtime containerd; systemctl start containerd");
    node.wait_for_runtime();
    node.wait_until("systemd is told that all is well", status, |text| {
        text == "0 of 0 pods running"
    });
}

/// How long something took: for people, and for docs/performance.md.
fn figure(what: &str, took: Duration) {
    figures::figure(Table::Machine, what, took);
}

/// From the execution of the agent until it said that it is up, by systemd's stamps.
fn exec_to_ready(node: &Node) -> Duration {
    let stamp = |name: &str| {
        let micros: u64 = node.property("nodelet", name).parse().unwrap();
        Duration::from_micros(micros)
    };
    stamp("ActiveEnterTimestampMonotonic") - stamp("ExecMainStartTimestampMonotonic")
}

/// Kills the agent and waits until the next one has told systemd that all its pods run.
fn kill_to_adopted(node: &Node, pods: usize) -> Duration {
    let agent = node.agent_pid();
    let millis = node.sh(&format!(
        "begun=$(date +%s%N); systemctl kill -s KILL nodelet
         until told=$(systemctl show -p MainPID -p StatusText nodelet)
             [[ $told != *MainPID=@({agent}|0)$'\n'* && $told = *'StatusText={pods} of {pods} pods running'* ]]
         do sleep 0.05; done
         echo $((($(date +%s%N) - begun) / 1000000))"
    ));
    Duration::from_millis(millis.trim().parse().unwrap())
}

/// From the kernel's start until the process of the last container started, as containerd stamps
/// it.
fn kernel_start_to_running(node: &Node) -> Duration {
    let kernel = "echo $(($(date +%s%N) - $(cut -d' ' -f1 /proc/uptime | tr -d .)0000000))";
    let kernel: i64 = node.sh(kernel).trim().parse().unwrap();
    let ids = node.running().into_values().map(|container| container.id);
    let last = ids.map(|id| node.cri.container_status(&id).started_at).max().unwrap();
    Duration::from_nanos(u64::try_from(last - kernel).unwrap())
}

/// Where the witness writes.
const ENDED: &str = "/var/tmp/witness/ended";

/// A pod that leaves a word on the machine when it is told to end: when the machine goes down, and
/// never before.
fn witness() -> Pod {
    let script = "trap 'echo ended >/host/ended; exit 0' TERM; sleep 100000 & wait";
    let directory = json!({ "path": "/var/tmp/witness", "type": "DirectoryOrCreate" });
    Pod::with_main("witness", script)
        .set("volumes", json!([{ "name": "host", "hostPath": directory }]))
        .set("containers/0/volumeMounts", json!([{ "name": "host", "mountPath": "/host" }]))
}

/// What the agent mounts below its root directory is what a container sees, although the service is
/// hardened.
fn volumes_reach_the_runtime(node: &Node) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "db", "annotations": { "nodelet.dev/credentials": "password=db" } },
    });
    node.sh(&format!(
        "mkdir -p /etc/systemd/system/nodelet.service.d
         echo hunter2 >/etc/db-password
         printf '[Service]\\nLoadCredential=db:/etc/db-password\\n' >/etc/systemd/system/nodelet.service.d/db.conf
         echo '{secret}' >{MANIFESTS}/db.yaml
         systemctl daemon-reload; systemctl restart nodelet"
    ));
    node.wait_for_runtime();
    let keeper = Pod::with_main(
        "keeper",
        &format!("echo kept >/data/file; echo quick >/mem/file; {FOREVER}"),
    )
    .set(
        "volumes",
        json!([
            { "name": "mem", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } },
            { "name": "data", "emptyDir": {} },
            { "name": "keys", "secret": { "secretName": "db" } },
        ]),
    )
    .set(
        "containers/0/volumeMounts",
        json!([
            { "name": "mem", "mountPath": "/mem" },
            { "name": "data", "mountPath": "/data", "subPath": "below/here" },
            { "name": "keys", "mountPath": "/keys" },
        ]),
    );
    node.drop_pods(&[keeper]);
    let status = node.wait("the pod with volumes runs", |status| status.runs("keeper"));
    let uid = status.pod("keeper").unwrap().metadata.uid.clone().unwrap();
    let pid = node.cri.container_pid(&node.running()["keeper/main"].id);
    let volumes = format!("/var/lib/nodelet/pods/{uid}/volumes/kubernetes.io~empty-dir");
    let script = format!(
        "cat {volumes}/data/below/here/file {volumes}/mem/file
         stat -f -c %T {volumes}/mem /proc/{pid}/root/mem
         cat /proc/{pid}/root/keys/password; stat -f -c %T /proc/{pid}/root/keys
         [ $(stat -c %d {volumes}/mem) = $(stat -c %d /proc/{pid}/root/mem) ] && echo same
         [ $(readlink /proc/1/ns/mnt) = $(readlink /proc/{agent}/ns/mnt) ] && echo 'no namespace of its own'",
        agent = node.agent_pid()
    );
    // It runs; what it writes first may be to come.
    let expected = "kept\nquick\ntmpfs\ntmpfs\nhunter2\ntmpfs\nsame\nno namespace of its own\n";
    node.wait_until("volumes are as asked", || node.run(&script).output, |seen| *seen == expected);
}

/// A shim that does not answer containerd within 100 ms, as happens on a machine that is emulated
/// on a busy one, is taken for dead when the pod's container is created: the container gets another
/// shim at the same address, and the next containerd finds no sandbox there. What is to be shown
/// here is that daemons are no reason for a restart: such a pod is made anew before.
fn every_sandbox_has_one_shim(node: &Node) {
    const TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
    for _ in 0..5 {
        let running = node.running();
        let ids = running.values().flat_map(|container| [&container.id, &container.sandbox]);
        let ids: Vec<&str> = ids.map(String::as_str).collect();
        // init.pid ends without a line break, so read fails there although it has read the number.
        let shims = node.sh(&format!(
            "set -e; cd {TASKS}; for id in {}; do
                 read -r pid <$id/init.pid || [ $pid ]; read -r _ _ _ shim _ </proc/$pid/stat; echo $id $shim
             done",
            ids.join(" ")
        ));
        let shims: BTreeMap<&str, &str> =
            shims.lines().filter_map(|line| line.split_once(' ')).collect();
        let torn: Vec<String> = running
            .iter()
            .filter(|(_, container)| {
                shims[container.id.as_str()] != shims[container.sandbox.as_str()]
            })
            .filter_map(|(name, _)| Some(name.split_once('/')?.0.to_owned()))
            .collect();
        if torn.is_empty() {
            return;
        }
        say_loudly(&format!("containerd gave containers a shim of their own, made anew: {torn:?}"));
        for pod in &torn {
            node.sh(&format!("mv {MANIFESTS}/{pod}.yaml /var/tmp"));
            node.wait("the pod is gone", |status| status.pod(pod).is_none());
            node.sh(&format!("mv /var/tmp/{pod}.yaml {MANIFESTS}"));
        }
        node.wait("they run again", |status| torn.iter().all(|pod| status.runs(pod)));
    }
    panic!("containerd tears sandbox and container apart again and again");
}

fn nothing_that_happens_to_daemons_restarts_a_container(node: &Node) {
    // Rather than two minutes.
    node.sh("mkdir -p /run/systemd/system/nodelet.service.d
         printf '[Service]\\nWatchdogSec=20\\n' >/run/systemd/system/nodelet.service.d/watchdog.conf
         systemctl daemon-reload; systemctl restart nodelet");
    let before = node.running();
    let pods = ["solid", "elastic", "free", "keeper", "witness"];
    assert_eq!(before.len(), pods.len());
    let happens: [(&str, &str); 5] = [
        ("stopped and started", "systemctl stop nodelet; sleep 2; systemctl start nodelet"),
        ("restarted", "systemctl restart nodelet"),
        (
            "upgraded",
            "cd /usr/local/bin && cp -p nodelet .new && mv .new nodelet && systemctl restart nodelet",
        ),
        ("stopped in its tracks", "systemctl kill -s STOP nodelet"),
        ("containerd restarted", "systemctl restart containerd"),
    ];
    for (what, script) in happens {
        let (agent, begun) = (node.agent_pid(), Instant::now());
        node.sh(script);
        node.wait_for_runtime();
        let comes_anew = !what.contains("containerd");
        let anew = || node.agent_pid();
        node.wait_until(what, anew, |pid| *pid != 0 && (*pid != agent) == comes_anew);
        node.wait_running(&pods);
        node.note(&format!("{what}: all seen again after {:?}", begun.elapsed()));
        assert_eq!(node.running(), before, "{what}: no container is restarted");
    }
    figure(
        "kill -9 → all 5 pods adopted, with RestartSec=1 and 1 s of the status line",
        kill_to_adopted(node, pods.len()),
    );
    assert_eq!(node.running(), before, "killed: no container is restarted");
    let ended = node.run(&format!("cat {ENDED}"));
    assert_ne!(ended.code, 0, "nobody was told to end: {}", ended.output);
    let reasons = node.sh("journalctl -b -u nodelet -o cat --no-pager");
    assert!(reasons.contains("Watchdog timeout"), "the watchdog ended it: {reasons}");
}

fn after_a_reboot_pods_run_again(node: &Node) {
    let never =
        |name: &str, script: &str| Pod::with_main(name, script).set("restartPolicy", "Never");
    node.drop_pods(&[
        never("done", "exit 0"),
        never("cut", FOREVER),
        Pod::with_main(
            "crashed",
            &format!("[ -e /data/here ] || {{ touch /data/here; exit 1; }}; {FOREVER}"),
        )
        .init("setup", "true")
        .set("volumes", json!([{ "name": "data", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "data", "mountPath": "/data" }])),
    ]);
    node.wait("the pods are as they should be before the reboot", |status| {
        status.phase("done") == "Succeeded"
            && status.runs("cut")
            && status.runs("crashed")
            && status.restarts("crashed", "main") == 1
    });
    let (before, sandboxes) = (node.running(), node.ready_sandboxes());
    node.note("seven pods, one done, one crashed once");
    node.reboot();
    node.note("rebooted");
    let restarted = ["solid", "elastic", "free", "keeper", "crashed", "witness"];
    let status = node.wait_for(SOON * 2, "the pods run again", |status| {
        restarted.iter().all(|pod| status.runs(pod))
    });
    figure("kernel started → all 6 pods run", kernel_start_to_running(node));
    figure("agent executed → READY=1, at boot", exec_to_ready(node));
    node.sh(&format!("grep -q ended {ENDED}"));
    assert_eq!(status.phase("done"), "Succeeded", "{status:?}");
    assert_eq!(status.phase("cut"), "Failed", "what may not be restarted has failed: {status:?}");
    let (after, new_sandboxes) = (node.running(), node.ready_sandboxes());
    assert_eq!(after.len(), restarted.len(), "{after:#?}");
    for (name, now) in &after {
        let then = &before[name];
        // A start that containerd fails on a slow machine counts as another one.
        let counts = [1, 2].map(|more| then.restarts + more);
        assert!(counts.contains(&now.restarts), "{name}: a reboot counts as one restart: {now:?}");
        assert_ne!(now.sandbox, then.sandbox, "{name} has a new sandbox");
    }
    let pid = node.cri.container_pid(&after["keeper/main"].id);
    let keys = node.sh(&format!("cd /proc/{pid}/root/keys; cat password; stat -f -c %T ."));
    assert_eq!(keys, "hunter2\ntmpfs\n", "the Secret is there again");
    for (pod, id) in &new_sandboxes {
        assert_ne!(Some(id), sandboxes.get(pod));
    }
    cgroup_dirs_are_those_of_running_pods(node, restarted.len());
}

fn cgroup_dirs_are_those_of_running_pods(node: &Node, count: usize) {
    let list = || node.sh("find /sys/fs/cgroup/kubepods -type d -name 'pod*' | wc -l");
    node.wait_until("no cgroups but those", list, |dirs| dirs.trim() == count.to_string());
}
