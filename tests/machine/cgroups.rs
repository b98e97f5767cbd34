//! The cgroup tree of three pods, one of each class, compared with what their manifests ask, from
//! outside and inside.

use crate::{
    node::{Driver, Node},
    support::manifest::{FOREVER, Pod},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// `podPidsLimit` of the nodes that are looked at.
pub const PIDS_LIMIT: &str = "podPidsLimit: 300";

/// The files that are compared.
const FILES: [&str; 5] = ["memory.max", "cpu.max", "cpu.weight", "pids.max", "memory.oom.group"];
const MIB: u64 = 1 << 20;

struct Case {
    name: &'static str,
    tier: &'static str,
    resources: Value,
    /// `memory.max`, `cpu.max` and `cpu.weight`, of the pod and of its container alike.
    limits: [&'static str; 3],
}

fn cases() -> [Case; 3] {
    [
        Case {
            name: "solid",
            tier: "",
            resources: json!({ "limits": { "cpu": "100m", "memory": "64Mi" } }),
            // 100m is 102 shares, which is 4 on the way from 2..262144 to 1..10000.
            limits: ["67108864", "10000 100000", "4"],
        },
        Case {
            name: "elastic",
            tier: "burstable",
            resources: json!({
                "requests": { "cpu": "200m", "memory": "32Mi" },
                "limits": { "memory": "96Mi" },
            }),
            limits: ["100663296", "max 100000", "8"],
        },
        Case {
            name: "free",
            tier: "besteffort",
            resources: json!({}),
            limits: ["max", "max 100000", "1"],
        },
    ]
}

/// The pods to look at.
pub fn pods() -> Vec<Pod> {
    let pod = |case: Case| {
        let pod = Pod::with_main(case.name, FOREVER);
        pod.set("containers/0/resources", case.resources)
    };
    cases().into_iter().map(pod).collect()
}

/// Looks at [`pods`] when they run and no others are wished.
#[track_caller]
pub fn check(node: &Node, driver: Driver) {
    check_with(node, driver, "1");
}

/// As [`check`], for containers with this `memory.oom.group`.
#[track_caller]
pub fn check_with(node: &Node, driver: Driver, oom_group: &str) {
    let status = node.status().unwrap();
    let running = node.running();
    let tree = tree(node);
    let memory_kib = node.sh("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo");
    let memory: u64 = memory_kib.trim().parse::<u64>().unwrap() * 1024;
    // systemd limits the tasks of every scope.
    let tasks = match driver {
        Driver::Cgroupfs => "max".to_owned(),
        Driver::Systemd => node.sh("systemctl show --value -p DefaultTasksMax").trim().to_owned(),
    };
    let mut expected: BTreeSet<String> = BTreeSet::new();
    let mut expect = |dir: &str, limits: [&str; 5]| {
        expected.insert(dir.to_owned());
        for (file, limit) in FILES.iter().zip(limits) {
            let seen = tree.get(&format!("{dir}/{file}")).map(String::as_str);
            assert_eq!(seen, Some(limit), "{dir}/{file} in {tree:#?}");
        }
    };
    // All processors and all memory; the share of two processors, the least share, and the sum of
    // the tier.
    let pids = node.sh("sort -n /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max | head -n 1");
    let top = driver.path(&["kubepods"]);
    expect(&top, [&memory.to_string(), "max 100000", "79", pids.trim(), "0"]);
    expect(&driver.path(&["kubepods", "besteffort"]), ["max", "max 100000", "1", "max", "0"]);
    expect(&driver.path(&["kubepods", "burstable"]), ["max", "max 100000", "8", "max", "0"]);
    for case in cases() {
        let uid = status.pod(case.name).unwrap().metadata.uid.clone().unwrap();
        let pod_name = format!("pod{uid}");
        let names = ["kubepods", case.tier, &pod_name];
        let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
        let pod = driver.path(&names);
        let [memory_max, cpu_max, cpu_weight] = case.limits;
        expect(&pod, [memory_max, cpu_max, cpu_weight, "300", "0"]);
        let container = &running[&format!("{}/main", case.name)];
        let own = format!("{pod}/{}", driver.scope(&container.id));
        // All processes of a container end together when one is killed for memory.
        expect(&own, [memory_max, cpu_max, cpu_weight, &tasks, oom_group]);
        expect(
            &format!("{pod}/{}", driver.scope(&container.sandbox)),
            ["max", "max 100000", "1", &tasks, "0"],
        );
        let main = node.cri.container_pid(&container.id);
        let adjustment = match case.name {
            "solid" => -997,
            "elastic" => 1000 - i64::try_from(1000 * 32 * MIB / memory).unwrap(),
            _ => 1000,
        };
        let pause = node.cri.sandbox_pid(&container.sandbox);
        let inside = format!(
            "cd /proc/{main}/root/sys/fs/cgroup && cat memory.max cpu.max cpu.weight pids.max memory.oom.group; \
             cat /proc/{main}/oom_score_adj /proc/{pause}/oom_score_adj; cut -d: -f3 /proc/{main}/cgroup"
        );
        let seen = node.sh(&inside);
        let expected_inside = format!(
            "{memory_max}\n{cpu_max}\n{cpu_weight}\n{tasks}\n{oom_group}\n{adjustment}\n-998\n/{own}\n"
        );
        assert_eq!(seen, expected_inside, "{} from inside", case.name);
    }
    let dirs: BTreeSet<String> =
        tree.keys().map(|file| file.rsplit_once('/').unwrap().0.to_owned()).collect();
    assert_eq!(dirs, expected, "the whole tree");
}

/// Every compared file below `kubepods`, by its path, with what is in it.
fn tree(node: &Node) -> BTreeMap<String, String> {
    let names: Vec<String> = FILES.iter().map(|file| format!("-name {file}")).collect();
    let script = format!(
        "cd /sys/fs/cgroup && find kubepods* '(' {} ')' -exec grep -H . '{{}}' +",
        names.join(" -o ")
    );
    let listing = node.sh(&script);
    let entry = |line: &str| {
        let (path, value) = line.split_once(':').unwrap();
        (path.to_owned(), value.to_owned())
    };
    listing.lines().map(entry).collect()
}

impl Driver {
    /// Where a cgroup lies, by the kubelet's names.
    fn path(self, names: &[&str]) -> String {
        match self {
            Self::Cgroupfs => names.join("/"),
            Self::Systemd => {
                let names: Vec<String> = names.iter().map(|name| name.replace('-', "_")).collect();
                let slices = (1..=names.len()).map(|n| format!("{}.slice", names[..n].join("-")));
                slices.collect::<Vec<_>>().join("/")
            }
        }
    }

    /// The name of a container's own cgroup.
    fn scope(self, id: &str) -> String {
        match self {
            Self::Cgroupfs => id.to_owned(),
            Self::Systemd => format!("cri-containerd-{id}.scope"),
        }
    }
}
