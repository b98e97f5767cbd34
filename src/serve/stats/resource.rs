//! `/metrics/resource`: what metrics-server reads.

use crate::metrics::{Family, Kind, Samples, labels, number, unix};
use crate::model::{CgroupStats, ContainerStats, PodStats, Stats};
use Kind::{Counter, Gauge};
use Tells::{Containers, Failed, Node, Pods, Starts};

/// A family and where its samples come from.
pub(super) struct Series {
    pub(super) family: Family,
    tells: Tells,
}

type Value = fn(&CgroupStats) -> Option<f64>;

enum Tells {
    Node(Value),
    Containers(Value),
    Pods(Value),
    Starts,
    Failed,
}

const fn series(name: &'static str, kind: Kind, help: &'static str, tells: Tells) -> Series {
    Series { family: Family { name, kind, help }, tells }
}

pub(super) const SERIES: &[Series] = &[
    series(
        "node_cpu_usage_seconds_total",
        Counter,
        "CPU time that the node has used, in seconds",
        Node(cpu),
    ),
    series(
        "node_memory_working_set_bytes",
        Gauge,
        "Working set of the node, in bytes",
        Node(working_set),
    ),
    series("node_swap_usage_bytes", Gauge, "Swap that the node uses, in bytes", Node(swap)),
    series(
        "container_cpu_usage_seconds_total",
        Counter,
        "CPU time that the container has used, in seconds",
        Containers(cpu),
    ),
    series(
        "container_memory_working_set_bytes",
        Gauge,
        "Working set of the container, in bytes",
        Containers(working_set),
    ),
    series(
        "container_swap_usage_bytes",
        Gauge,
        "Swap that the container uses, in bytes",
        Containers(swap),
    ),
    series(
        "container_swap_limit_bytes",
        Gauge,
        "Swap that the container may use, in bytes; absent without a limit",
        Containers(|stats| stats.swap?.limit.map(number)),
    ),
    series(
        "container_start_time_seconds",
        Gauge,
        "When the container was started, in seconds since 1970",
        Starts,
    ),
    series(
        "pod_cpu_usage_seconds_total",
        Counter,
        "CPU time that the pod has used, in seconds",
        Pods(cpu),
    ),
    series(
        "pod_memory_working_set_bytes",
        Gauge,
        "Working set of the pod, in bytes",
        Pods(working_set),
    ),
    series("pod_swap_usage_bytes", Gauge, "Swap that the pod uses, in bytes", Pods(swap)),
    series(
        "resource_scrape_error",
        Gauge,
        "1 when the use of the node could not be read, else 0",
        Failed,
    ),
];

impl Series {
    /// The text of all its samples.
    pub(super) fn text(&self, stats: &Stats) -> String {
        self.family.text(|samples| self.put(stats, samples))
    }

    fn put(&self, stats: &Stats, samples: &mut Samples) {
        match self.tells {
            Node(value) => put(samples, "", Some(&stats.node.machine), value),
            Containers(value) => {
                for (pod, container) in containers(stats) {
                    put(samples, &of_container(pod, container), container.stats.as_ref(), value);
                }
            }
            Pods(value) => {
                for pod in &stats.pods {
                    let names = [("namespace", &*pod.key.namespace), ("pod", &*pod.key.name)];
                    put(samples, &labels(names), pod.stats.as_ref(), value);
                }
            }
            // metrics-server leaves out the whole pod when a container has this and no use.
            Starts => {
                for (pod, container) in containers(stats).filter(|(_, one)| is_measured(one)) {
                    samples.put(&of_container(pod, container), unix(container.started_at), None);
                }
            }
            Failed => {
                let failed = stats.node.machine.memory.is_none();
                samples.put("", f64::from(u8::from(failed)), None);
            }
        }
    }
}

fn put(samples: &mut Samples, labels: &str, stats: Option<&CgroupStats>, value: Value) {
    if let Some((value, at)) = stats.and_then(|stats| Some((value(stats)?, stats.at))) {
        samples.put(labels, value, Some(at));
    }
}

fn cpu(stats: &CgroupStats) -> Option<f64> {
    Some(stats.cpu?.usage.as_secs_f64())
}

fn working_set(stats: &CgroupStats) -> Option<f64> {
    Some(number(stats.memory?.working_set))
}

fn swap(stats: &CgroupStats) -> Option<f64> {
    Some(number(stats.swap?.usage))
}

fn is_measured(container: &ContainerStats) -> bool {
    container.stats.as_ref().is_some_and(|stats| stats.cpu.is_some() && stats.memory.is_some())
}

fn containers(stats: &Stats) -> impl Iterator<Item = (&PodStats, &ContainerStats)> {
    stats.pods.iter().flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)))
}

fn of_container(pod: &PodStats, container: &ContainerStats) -> String {
    let (namespace, name) = (&*pod.key.namespace, &*pod.key.name);
    labels([("container", &container.name), ("namespace", namespace), ("pod", name)])
}
