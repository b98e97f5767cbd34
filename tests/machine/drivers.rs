//! The systemd cgroup driver on a real systemd: slices hold what manifests ask, whatever systemd
//! does meanwhile, and go with their pods; and what is said where containerd uses another driver
//! than the agent.

use crate::{
    cgroups,
    machine::SOON,
    node::{Driver, MANIFESTS, Node, Options},
    support::{
        manifest::{FOREVER, Pod},
        wait_until,
    },
};
use serde_json::json;

const PODS: [&str; 3] = ["solid", "elastic", "free"];

/// systemd has no property for these: they are written to the files.
fn huge_pages(node: &Node) -> String {
    node.sh("find /sys/fs/cgroup/kubepods.slice -name '*pod[0-9a-f][0-9a-f][0-9a-f]*.slice' -exec cat {}/hugetlb.2MB.max ';'")
}

/// How many slices of pods systemd has; `None` while it does not answer because it executes itself
/// anew.
fn slices(node: &Node) -> Option<usize> {
    let answer = node.run("systemctl list-units --all --plain --no-legend 'kubepods*pod*.slice'");
    (answer.code == 0).then(|| answer.output.lines().count())
}

#[track_caller]
fn wait_for_slices(node: &Node, what: &str, count: usize) {
    wait_until(what, SOON * 2, || slices(node), |slices| *slices == Some(count));
}

pub fn slices_hold_what_manifests_ask() {
    let kubelet = format!("{}\nreadOnlyPort: 10255", cgroups::PIDS_LIMIT);
    let driver = Driver::Systemd;
    let node = Node::start(&Options { driver, kubelet, ..Options::default() });
    node.drop_pods(&cgroups::pods());
    let status = node.wait_running(&PODS);
    node.note("three pods run");
    assert_eq!(status.node["cgroupDriver"], "systemd");
    cgroups::check(&node, driver);
    assert_eq!(huge_pages(&node), "0\n0\n0\n");
    let running = node.running();
    for what in [
        "systemctl daemon-reload",
        "systemctl daemon-reexec",
        "systemctl restart nodelet",
        "systemctl kill -s KILL nodelet",
    ] {
        node.sh(what);
        node.wait_running(&PODS);
        // What runc wrote to its scopes without telling systemd is gone after the first reload.
        cgroups::check_with(&node, driver, "0");
        assert_eq!(huge_pages(&node), "0\n0\n0\n", "{what}");
        assert_eq!(node.running(), running, "{what}");
        node.note(what);
    }
    a_resize_reaches_the_slice_and_the_scope(&node);
    assert_eq!(node.running(), running, "a resize restarts nothing");
    node.note("a resize, up and down");
    statistics_tell_of_scopes(&node);
    node.note("statistics");
    an_empty_dir_lies_on_huge_pages(&node);
    assert_eq!(node.running(), running, "nothing else restarts");
    node.note("huge pages");
    a_burstable_pod_has_its_part_of_the_swap(&node);
    assert_eq!(node.running(), running, "nothing else restarts");
    node.note("swap");
    over_the_bus_and_without_one(&node);
    node.note("over the bus, and without one");
    systemd_executes_itself_anew_all_the_time(&node);
    node.finish();
}

/// What the kernel counts on cgroup v2, read where systemd and the runtime have put it.
fn statistics_tell_of_scopes(node: &Node) {
    let id = node.running()["elastic/main"].id.clone();
    let request = r"GET /metrics/cadvisor HTTP/1.0\r\n\r\n";
    let cadvisor = node
        .sh(&format!("exec 3<>/dev/tcp/127.0.0.1/10255; printf '{request}' >&3; grep {id} <&3"));
    let of_elastic = |name: &str| {
        let is_it = |line: &&str| {
            line.starts_with(&format!("{name}{{")) && line.contains(&format!("name=\"{id}\""))
        };
        let line = cadvisor.lines().find(is_it);
        let line = line.unwrap_or_else(|| panic!("no {name} of {id} in {cadvisor}"));
        assert!(line.contains(&format!("/cri-containerd-{id}.scope\",")), "{line}");
        let value = line.rsplit_once("} ").unwrap().1.split(' ').next().unwrap();
        value.parse::<f64>().unwrap()
    };
    assert!(of_elastic("container_memory_working_set_bytes") > 4096.0);
    assert!(of_elastic("container_cpu_usage_seconds_total") > 0.0);
    assert!((of_elastic("container_spec_memory_limit_bytes") - 67_108_864.0).abs() < 1.0);
    assert!((of_elastic("container_spec_cpu_quota") - 30_000.0).abs() < 1.0);
    assert!(of_elastic("container_memory_max_usage_bytes") > 4096.0);
    assert!(of_elastic("container_pressure_cpu_waiting_seconds_total") >= 0.0);
    assert!(of_elastic("container_threads") >= 1.0);
    let top = node.sh("nodelet top elastic");
    assert!(top.contains("elastic-"), "{top}");
}

/// Limits of a pod and of its container, more and then less; systemd does not forget them.
fn a_resize_reaches_the_slice_and_the_scope(node: &Node) {
    let id = node.running()["elastic/main"].id.clone();
    let slice = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/*pod*.slice";
    let scope = format!("{slice}/cri-containerd-{id}.scope");
    let files =
        format!("cat {slice}/memory.max {slice}/cpu.max {scope}/memory.max {scope}/cpu.max");
    for (cpu, memory, expected) in [
        ("500m", "128Mi", "134217728\n50000 100000\n"),
        ("300m", "64Mi", "67108864\n30000 100000\n"),
    ] {
        let resources = json!({
            "requests": { "cpu": "200m", "memory": "32Mi" },
            "limits": { "cpu": cpu, "memory": memory },
        });
        let elastic = Pod::with_main("elastic", FOREVER);
        node.drop_pods(&[elastic.set("containers/0/resources", resources)]);
        let expected = format!("{expected}{expected}");
        let look = || node.run(&files).output;
        wait_until("the limits are changed", SOON * 2, look, |found| *found == expected);
        node.sh("systemctl daemon-reload");
        assert_eq!(node.run(&files).output, expected, "after a reload");
    }
    let of_slice = "systemctl show -p MemoryMax 'kubepods-burstable-pod*.slice'";
    assert_eq!(node.sh(of_slice), "MemoryMax=67108864\n");
}

/// An emptyDir on huge pages, which goes with its pod.
fn an_empty_dir_lies_on_huge_pages(node: &Node) {
    node.sh("sysctl -q vm.nr_hugepages=4");
    assert_eq!(node.sh("cat /proc/sys/vm/nr_hugepages"), "4\n");
    node.sh("systemctl restart nodelet");
    let sees = json!({ "exec": { "command": ["grep", " /pages hugetlbfs ", "/proc/mounts"] } });
    let huge = Pod::with_main("huge", &format!("truncate -s 2M /pages/file && {FOREVER}"))
        .set(
            "containers/0/resources",
            json!({ "limits": { "memory": "32Mi", "hugepages-2Mi": "8Mi" } }),
        )
        .set("containers/0/readinessProbe", sees)
        .set("containers/0/volumeMounts", json!([{ "name": "pages", "mountPath": "/pages" }]))
        .set("volumes", json!([{ "name": "pages", "emptyDir": { "medium": "HugePages" } }]));
    node.drop_pods(&[huge]);
    node.wait_running(&["solid", "elastic", "free", "huge"]);
    let volume = "/var/lib/nodelet/pods/*/volumes/kubernetes.io~empty-dir/pages";
    assert_eq!(node.sh(&format!("stat -f -c '%T %S %b' {volume}")), "hugetlbfs 2097152 4\n");
    assert_eq!(node.sh(&format!("stat -c '%a %s' {volume} {volume}/file")), "777 0\n644 2097152\n");
    let limits = huge_pages(node);
    assert!(limits.lines().any(|limit| limit == "8388608"), "{limits}");
    node.sh(&format!("rm {MANIFESTS}/huge.yaml"));
    node.wait_running(&PODS);
    wait_for_slices(node, "its slice goes with it", PODS.len());
    wait_until(
        "its volume is gone",
        SOON,
        || node.run(&format!("ls -d {volume}")).code,
        |code| *code != 0,
    );
    assert_eq!(node.run("grep hugetlbfs /proc/mounts").code, 1);
    node.sh("sysctl -q vm.nr_hugepages=0");
}

/// `LimitedSwap`: as much of the swap as the pod requests of the memory.
fn a_burstable_pod_has_its_part_of_the_swap(node: &Node) {
    let config = "/etc/nodelet/config.d/10-test.conf";
    node.sh("fallocate -l 64M /var/swap && chmod 600 /var/swap && mkswap -q /var/swap && swapon /var/swap");
    node.sh(&format!(
        "sed -i 's/^cgroupDriver:/memorySwap: {{ swapBehavior: LimitedSwap }}\\n&/' {config} && systemctl restart nodelet"
    ));
    let swaps = Pod::with_main("swaps", FOREVER)
        .set("containers/0/resources", json!({ "requests": { "memory": "256Mi" } }));
    let never = Pod::running("never");
    node.drop_pods(&[swaps, never]);
    node.wait_running(&["solid", "elastic", "free", "swaps", "never"]);
    let kib = |name: &str| -> u64 {
        let line = node.sh(&format!("grep -oP '^{name}: *\\K[0-9]+' /proc/meminfo"));
        line.trim().parse().unwrap()
    };
    let part = (256 << 20) * (kib("SwapTotal") << 10) / (kib("MemTotal") << 10);
    let limit = |pod: &str| {
        let id = node.running()[&format!("{pod}/main")].id.clone();
        let scope = format!("find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-{id}.scope'");
        node.sh(&format!("cat $({scope})/memory.swap.max")).trim().to_owned()
    };
    // The kernel counts in pages.
    assert_eq!(limit("swaps"), (part / 4096 * 4096).to_string());
    assert_eq!(limit("never"), "0");
    node.sh(&format!("rm {MANIFESTS}/swaps.yaml {MANIFESTS}/never.yaml"));
    node.wait_running(&PODS);
    node.sh("swapoff /var/swap && rm /var/swap");
}

/// Without systemd's own socket there is the bus; with it, no bus is needed.
fn over_the_bus_and_without_one(node: &Node) {
    node.sh("mv /run/systemd/private /run/systemd/private.away");
    node.drop_pods(&[Pod::running("late")]);
    node.wait_running(&["solid", "elastic", "free", "late"]);
    node.sh("mv /run/systemd/private.away /run/systemd/private");
    node.sh(&format!("systemctl stop dbus.socket dbus.service; rm {MANIFESTS}/late.yaml"));
    node.wait_running(&PODS);
    wait_for_slices(node, "its slice goes with it", PODS.len());
}

fn systemd_executes_itself_anew_all_the_time(node: &Node) {
    node.sh("(for i in 1 2 3 4 5 6; do systemctl daemon-reexec; sleep 1; done) >/dev/null 2>&1 &");
    let names: Vec<String> = (0..4).map(|n| format!("meanwhile{n}")).collect();
    node.drop_pods(&names.iter().map(|name| Pod::running(name)).collect::<Vec<_>>());
    let all: Vec<&str> = names.iter().map(String::as_str).chain(PODS).collect();
    node.wait_running(&all);
    wait_for_slices(node, "each has a slice", all.len());
    node.sh("(for i in 1 2 3 4 5 6; do systemctl daemon-reexec; sleep 1; done) >/dev/null 2>&1 &");
    node.sh(&format!("rm {MANIFESTS}/*.yaml"));
    wait_for_slices(node, "every slice goes", 0);
}

pub fn two_drivers_are_told_apart_and_changed() {
    let node = Node::boot(&Options { driver: Driver::Systemd, ..Options::default() });
    let agent = |driver: &str| {
        let config = "/etc/nodelet/config.d/10-test.conf";
        node.sh(&format!("sed -i 's/^cgroupDriver:.*/cgroupDriver: {driver}/' {config}"));
        node.sh("systemctl restart nodelet");
    };
    let warned = |what: &str| {
        node.wait(what, |status| status.node["warnings"].to_string().contains(what));
    };
    agent("cgroupfs");
    node.drop_pods(&[Pod::running("web")]);
    warned("set `cgroupDriver: systemd`");
    agent("systemd");
    let status = node.wait_running(&["web"]);
    assert_eq!(status.node["warnings"], json!([]), "{status:?}");

    let other = "/etc/containerd/config.toml";
    node.sh(&format!("sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' {other}"));
    node.sh("systemctl restart containerd");
    node.wait_for_runtime();
    node.drop_pods(&[Pod::running("astray")]);
    warned("the container runtime puts no process into the pods' slices");
    node.sh(&format!("rm {MANIFESTS}/astray.yaml"));
    agent("cgroupfs");
    node.wait_running(&["web"]);
    // The pod of the old driver goes on, under its own shim, which knows no other driver.
    let before = node.running()["web/main"].clone();
    node.sh(&format!("ctr -n k8s.io task kill -s KILL {}", before.id));
    node.wait("it is restarted", |status| {
        status.runs("web") && status.restarts("web", "main") == 1
    });
    let id = node.running()["web/main"].id.clone();
    node.sh(&format!("ls -d /sys/fs/cgroup/kubepods.slice/*/*/cri-containerd-{id}.scope"));
    node.drop_pods(&[Pod::running("new")]);
    node.wait_running(&["web", "new"]);
    let id = node.running()["new/main"].id.clone();
    node.sh(&format!("ls -d /sys/fs/cgroup/kubepods/besteffort/pod*/{id}"));
    node.finish();
}
