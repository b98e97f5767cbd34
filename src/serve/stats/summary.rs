//! `/stats/summary`, field by field as the kubelet's `Summary`
//! (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`). What is not known is left out.

use crate::model::{
    CgroupStats, ClaimStats, CollectOrdered as _, ContainerStats, FsStats, InterfaceStats,
    MeasuredSpace, NodeStats, PodStats, Psi, Stall,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The node. `short`: CPU, memory and swap alone.
pub(super) fn node(
    node: &NodeStats,
    name: &str,
    agent_started_at: Option<Timestamp>,
    short: bool,
) -> Value {
    let mut systems = vec![system("kubelet", &node.agent, agent_started_at)];
    systems.extend(node.pods.as_ref().map(|pods| system("pods", pods, Some(node.booted_at))));
    let machine = &node.machine;
    let mut fields = object([
        ("nodeName", name.into()),
        ("startTime", time(node.booted_at)),
        ("systemContainers", systems.into()),
        ("cpu", cpu(machine)),
        ("memory", memory(machine)),
        ("swap", swap(machine)),
    ]);
    if !short {
        let images = node.image_fs.map(|fs| {
            let taken = node.images.unwrap_or_default();
            file_system(Some(fs), taken.bytes.into(), taken.inodes.into(), fs.at)
        });
        let whole = |fs: Option<FsStats>| {
            let fs = fs?;
            Some(file_system(Some(fs), fs.used_bytes.into(), fs.inodes_used().into(), fs.at))
        };
        let tasks = machine.tasks_limit.zip(machine.tasks).map(
            |(limit, tasks)| json!({ "time": time(machine.at), "maxpid": limit, "curproc": tasks }),
        );
        fields.extend(object([
            ("io", io(machine)),
            ("network", network(&node.network, machine.at)),
            ("fs", whole(node.root_fs).unwrap_or_default()),
            (
                "runtime",
                Value::Object(object([
                    ("imageFs", images.unwrap_or_default()),
                    ("containerFs", whole(node.container_fs).unwrap_or_default()),
                ])),
            ),
            ("rlimit", tasks.unwrap_or_default()),
        ]));
    }
    Value::Object(fields)
}

fn system(name: &str, stats: &CgroupStats, started_at: Option<Timestamp>) -> Value {
    Value::Object(object([
        ("name", name.into()),
        ("startTime", started_at.map(time).unwrap_or_default()),
        ("cpu", cpu(stats)),
        ("memory", memory(stats)),
        ("swap", swap(stats)),
    ]))
}

/// A pod of the node.
pub(super) fn pod(node: &NodeStats, pod: &PodStats, short: bool) -> Value {
    let containers: Vec<Value> =
        pod.containers.iter().map(|one| container(node, one, short)).collect();
    let used = pod.stats.as_ref();
    let of = |value: fn(&CgroupStats) -> Value| used.map(value).unwrap_or_default();
    let mut fields = object([
        ("podRef", json!({ "name": pod.key.name, "namespace": pod.key.namespace, "uid": pod.uid })),
        ("startTime", pod.started_at.map(time).unwrap_or_default()),
        ("containers", containers.into()),
        ("cpu", of(cpu)),
        ("memory", of(memory)),
        ("swap", of(swap)),
    ]);
    if !short {
        let volumes = pod.volumes.iter().map(|one| {
            let fs = node.root_fs.filter(|_| !one.in_memory);
            let mut volume = space(fs, Some(one.space));
            volume["name"] = Value::from(&*one.name);
            volume
        });
        let volumes: Vec<Value> = volumes.chain(pod.claims.iter().map(claim)).collect();
        let at = used.map(|used| used.at).unwrap_or_default();
        let stats = pod.containers.iter().filter_map(|one| one.stats.as_ref());
        let processes: Option<u64> =
            stats.filter_map(|stats| stats.processes).reduce(|all, one| all + one);
        fields.extend(object([
            ("io", of(io)),
            ("network", network(&pod.network, at)),
            ("volume", Some(volumes).filter(|all| !all.is_empty()).into()),
            ("ephemeral-storage", space(node.root_fs, pod.ephemeral_storage)),
            ("process_stats", processes.map(|n| json!({ "process_count": n })).into()),
        ]));
    }
    Value::Object(fields)
}

fn claim(claim: &ClaimStats) -> Value {
    let (bytes, inodes) = (claim.fs.used_bytes.into(), claim.fs.inodes_used().into());
    let mut volume = file_system(Some(claim.fs), bytes, inodes, claim.fs.at);
    volume["name"] = Value::from(&*claim.volume);
    volume["pvcRef"] = json!({ "name": claim.claim, "namespace": claim.key.namespace });
    volume
}

fn container(node: &NodeStats, container: &ContainerStats, short: bool) -> Value {
    let used = container.stats.as_ref();
    let of = |value: fn(&CgroupStats) -> Value| used.map(value).unwrap_or_default();
    let mut fields = object([
        ("name", (&*container.name).into()),
        ("startTime", time(container.started_at)),
        ("cpu", of(cpu)),
        ("memory", of(memory)),
        ("swap", of(swap)),
    ]);
    if !short {
        fields.extend(object([
            ("io", of(io)),
            ("rootfs", space(node.container_fs, container.layer)),
            ("logs", space(node.root_fs, container.logs)),
        ]));
    }
    Value::Object(fields)
}

fn cpu(stats: &CgroupStats) -> Value {
    let Some(cpu) = stats.cpu else { return Value::Null };
    Value::Object(object([
        ("time", time(stats.at)),
        ("usageNanoCores", stats.cpu_rate.into()),
        ("usageCoreNanoSeconds", nanos(cpu.usage)),
        ("psi", pressure(stats.cpu_pressure)),
    ]))
}

fn memory(stats: &CgroupStats) -> Value {
    let Some(memory) = stats.memory else { return Value::Null };
    let available = memory.limit.map(|limit| limit.saturating_sub(memory.working_set));
    Value::Object(object([
        ("time", time(stats.at)),
        ("availableBytes", available.into()),
        ("usageBytes", memory.usage.into()),
        ("workingSetBytes", memory.working_set.into()),
        ("rssBytes", memory.rss.into()),
        ("pageFaults", memory.page_faults.into()),
        ("majorPageFaults", memory.major_page_faults.into()),
        ("psi", pressure(stats.memory_pressure)),
    ]))
}

fn swap(stats: &CgroupStats) -> Value {
    let Some(swap) = stats.swap else { return Value::Null };
    Value::Object(object([
        ("time", time(stats.at)),
        ("swapAvailableBytes", swap.limit.map(|limit| limit.saturating_sub(swap.usage)).into()),
        ("swapUsageBytes", swap.usage.into()),
    ]))
}

fn io(stats: &CgroupStats) -> Value {
    match stats.io_pressure {
        Some(_) => json!({ "time": time(stats.at), "psi": pressure(stats.io_pressure) }),
        None => Value::Null,
    }
}

fn pressure(psi: Option<Psi>) -> Value {
    let stall = |stall: Stall| {
        let [avg10, avg60, avg300] = stall.averages;
        json!({
            "total": nanos(stall.total), "avg10": avg10, "avg60": avg60, "avg300": avg300,
        })
    };
    match psi {
        Some(psi) => json!({ "full": stall(psi.full), "some": stall(psi.some) }),
        None => Value::Null,
    }
}

/// All interfaces, and the numbers of `eth0`, where there is one.
fn network(interfaces: &[InterfaceStats], at: Timestamp) -> Value {
    let one = |interface: &InterfaceStats| {
        object([
            ("name", (&*interface.name).into()),
            ("rxBytes", interface.received.bytes.into()),
            ("rxErrors", interface.received.errors.into()),
            ("txBytes", interface.sent.bytes.into()),
            ("txErrors", interface.sent.errors.into()),
        ])
    };
    if interfaces.is_empty() {
        return Value::Null;
    }
    let all: Vec<Value> = interfaces.iter().map(|each| Value::Object(one(each))).collect();
    let mut fields = object([("time", time(at)), ("interfaces", all.into())]);
    fields.extend(interfaces.iter().filter(|each| each.name == "eth0").flat_map(one));
    Value::Object(fields)
}

/// What takes this much of a file system.
fn space(fs: Option<FsStats>, measured: Option<MeasuredSpace>) -> Value {
    match measured {
        Some(MeasuredSpace { space, at }) => {
            file_system(fs, space.bytes.into(), space.inodes.into(), at)
        }
        None => Value::Null,
    }
}

fn file_system(fs: Option<FsStats>, used: Value, inodes_used: Value, at: Timestamp) -> Value {
    let inodes = fs.and_then(|fs| fs.inodes);
    Value::Object(object([
        ("time", time(at)),
        ("availableBytes", fs.map(|fs| fs.bytes.0).into()),
        ("capacityBytes", fs.map(|fs| fs.bytes.1).into()),
        ("usedBytes", used),
        ("inodesFree", inodes.map(|inodes| inodes.0).into()),
        ("inodes", inodes.map(|inodes| inodes.1).into()),
        ("inodesUsed", inodes_used),
    ]))
}

/// The fields that are not null.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    let known = fields.into_iter().filter(|(_, value)| !value.is_null());
    known.map(|(name, value)| (name.to_owned(), value)).collect_ordered()
}

fn time(time: Timestamp) -> Value {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}

fn nanos(time: Duration) -> Value {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into()
}
