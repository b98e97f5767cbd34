//! `/metrics/cadvisor`: the series of cAdvisor that the dashboards and rules of kube-prometheus use,
//! and others that the kernel tells. A row is a cgroup: the root, all pods, a pod, a container.
//!
//! cAdvisor has the network of a pod in the row of its sandbox; here it is in that of the pod.

use super::MachineFacts;
use crate::metrics::{Family, Kind, Samples, labels, number, unix};
use crate::model::{
    CgroupStats, CpuStats, DeviceIo, FsStats, InterfaceStats, MeasuredSpace, MemoryStats, Psi,
    Stats, Throttling,
};
use Kind::{Counter, Gauge};
use Tells::{Each, OfDevice, OfInterface, OnDisk, Read, Set};
use jiff::Timestamp;
use std::{sync::Arc, time::Duration};

/// The rows of some statistics.
pub(super) struct Rows {
    stats: Arc<Stats>,
    rows: Vec<RowAt>,
}

struct RowAt {
    labels: String,
    what: RowOf,
}

#[derive(Clone, Copy)]
enum RowOf {
    Machine,
    AllPods,
    Pod(usize),
    Container(usize, usize),
}

/// A row with its numbers.
struct Row<'a> {
    labels: &'a str,
    stats: &'a CgroupStats,
    started_at: Timestamp,
    network: &'a [InterfaceStats],
    layer: Option<MeasuredSpace>,
    /// The file system that `layer` lies on; for the machine the one of the root directory.
    fs: Option<FsStats>,
    is_machine: bool,
}

impl Rows {
    pub(super) fn of(stats: Arc<Stats>) -> Self {
        Self { rows: places(&stats), stats }
    }

    fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|row| row.of(&self.stats))
    }
}

fn places(stats: &Stats) -> Vec<RowAt> {
    let of = |id: &str, names: [&str; 5]| {
        let [container, image, name, namespace, pod] = names;
        labels([
            ("container", container),
            ("id", id),
            ("image", image),
            ("name", name),
            ("namespace", namespace),
            ("pod", pod),
        ])
    };
    let nobody = ["", "", "", "", ""];
    let mut rows = vec![RowAt { labels: of("/", nobody), what: RowOf::Machine }];
    if stats.node.pods.is_some() {
        rows.push(RowAt { labels: of(&stats.node.pods_cgroup, nobody), what: RowOf::AllPods });
    }
    for (nth, pod) in stats.pods.iter().enumerate() {
        let (namespace, name) = (&*pod.key.namespace, &*pod.key.name);
        if pod.stats.is_some() {
            let labels = of(&pod.cgroup, ["", "", "", namespace, name]);
            rows.push(RowAt { labels, what: RowOf::Pod(nth) });
        }
        for (which, one) in pod.containers.iter().enumerate() {
            if one.stats.is_some() {
                let names = [&*one.name, &*one.image, &*one.id, namespace, name];
                let labels = of(&one.cgroup, names);
                rows.push(RowAt { labels, what: RowOf::Container(nth, which) });
            }
        }
    }
    rows
}

impl RowAt {
    /// The numbers of a row, from the statistics that it was made for.
    fn of<'a>(&'a self, all: &'a Stats) -> Row<'a> {
        let node = &all.node;
        let row = Row {
            labels: &self.labels,
            stats: &node.machine,
            started_at: node.booted_at,
            network: &[],
            layer: None,
            fs: node.container_fs,
            is_machine: false,
        };
        // There are rows only for cgroups that were read.
        let of = |stats: &'a Option<CgroupStats>| stats.as_ref().unwrap_or(row.stats);
        match self.what {
            RowOf::Machine => {
                Row { network: &node.network, fs: node.root_fs, is_machine: true, ..row }
            }
            RowOf::AllPods => Row { stats: of(&node.pods), ..row },
            RowOf::Pod(nth) => {
                let pod = &all.pods[nth];
                let started_at = pod.started_at.unwrap_or(row.started_at);
                Row { stats: of(&pod.stats), started_at, network: &pod.network, ..row }
            }
            RowOf::Container(nth, which) => {
                let one = &all.pods[nth].containers[which];
                let (stats, started_at, layer) = (of(&one.stats), one.started_at, one.layer);
                Row { stats, started_at, layer, ..row }
            }
        }
    }
}

/// A family and where its samples come from.
pub(super) struct Series {
    pub(super) family: Family,
    tells: Tells,
}

type Value = fn(&Row<'_>) -> Option<f64>;
/// A value and when it was measured.
type ValueAt = fn(&Row<'_>) -> Option<(f64, Timestamp)>;

/// The samples of a series. All but [`Tells::Set`] have the time at which they were read.
enum Tells {
    /// One of each row that has this value.
    Read(Value),
    /// The same for what is configured.
    Set(Value),
    /// One of each row, with an empty device: which one it is lies with the runtime.
    OnDisk(ValueAt),
    /// One of each interface of a row.
    OfInterface(fn(&InterfaceStats) -> u64),
    /// One of each block device of a row.
    OfDevice(fn(&DeviceIo) -> u64),
    /// Whatever this tells of a row: more labels and a value.
    Each(fn(&Row<'_>) -> Vec<(String, f64)>),
}

const fn series(name: &'static str, kind: Kind, help: &'static str, tells: Tells) -> Series {
    Series { family: Family { name, kind, help }, tells }
}

impl Series {
    /// The text of all its samples.
    pub(super) fn text(&self, rows: &Rows) -> String {
        self.family.text(|samples| rows.iter().for_each(|row| self.put(&row, samples)))
    }

    fn put(&self, row: &Row<'_>, samples: &mut Samples) {
        let at = Some(row.stats.at);
        let mut more = |label: &str, value, at| {
            samples.put(&format!("{},{label}", row.labels), value, at);
        };
        match self.tells {
            Read(value) => {
                value(row).into_iter().for_each(|value| samples.put(row.labels, value, at));
            }
            Set(value) => {
                value(row).into_iter().for_each(|value| samples.put(row.labels, value, None));
            }
            OnDisk(value) => {
                let measured = value(row).into_iter();
                measured.for_each(|(value, at)| more("device=\"\"", value, Some(at)));
            }
            OfInterface(value) => row.network.iter().for_each(|interface| {
                more(&labels([("interface", &interface.name)]), number(value(interface)), at);
            }),
            OfDevice(value) => row.stats.io.iter().for_each(|io| {
                more(&labels([("device", &io.path)]), number(value(io)), at);
            }),
            Each(values) => values(row).iter().for_each(|(label, value)| more(label, *value, at)),
        }
    }
}

pub(super) const SERIES: &[Series] = &[
    series("container_cpu_usage_seconds_total", Counter, "CPU time in seconds", Each(cpu_total)),
    series(
        "container_cpu_user_seconds_total",
        Counter,
        "CPU time in programs, in seconds",
        Read(|row| cpu(row, |cpu| cpu.user)),
    ),
    series(
        "container_cpu_system_seconds_total",
        Counter,
        "CPU time in the kernel, in seconds",
        Read(|row| cpu(row, |cpu| cpu.system)),
    ),
    series(
        "container_cpu_cfs_periods_total",
        Counter,
        "Periods of the CPU quota in which something ran",
        Read(|row| quota(row, |quota| quota.periods)),
    ),
    series(
        "container_cpu_cfs_throttled_periods_total",
        Counter,
        "Periods in which the CPU quota was used up",
        Read(|row| quota(row, |quota| quota.throttled_periods)),
    ),
    series(
        "container_cpu_cfs_throttled_seconds_total",
        Counter,
        "Time in which tasks were not let run because the CPU quota was used up, in seconds",
        Read(|row| Some(row.stats.cpu?.throttling?.throttled.as_secs_f64())),
    ),
    series(
        "container_memory_usage_bytes",
        Gauge,
        "Memory in use, page cache included, in bytes",
        Read(|row| memory(row, |memory| memory.usage)),
    ),
    series(
        "container_memory_working_set_bytes",
        Gauge,
        "Memory in use that cannot easily be had back, in bytes",
        Read(|row| memory(row, |memory| memory.working_set)),
    ),
    series(
        "container_memory_rss",
        Gauge,
        "Anonymous memory, in bytes",
        Read(|row| memory(row, |memory| memory.rss)),
    ),
    series(
        "container_memory_cache",
        Gauge,
        "Page cache, in bytes",
        Read(|row| memory(row, |memory| memory.cache)),
    ),
    series(
        "container_memory_mapped_file",
        Gauge,
        "Files mapped into processes, in bytes",
        Read(|row| memory(row, |memory| memory.mapped_file)),
    ),
    series(
        "container_memory_swap",
        Gauge,
        "Swap in use, in bytes",
        Read(|row| Some(number(row.stats.swap?.usage))),
    ),
    series(
        "container_memory_max_usage_bytes",
        Gauge,
        "The most memory that was in use at any time, in bytes",
        Read(|row| row.stats.memory?.max_usage.map(number)),
    ),
    series(
        "container_memory_failcnt",
        Counter,
        "How often the memory limit was reached",
        Read(|row| row.stats.memory?.limit_hits.map(number)),
    ),
    series(
        "container_memory_failures_total",
        Counter,
        "Page faults, minor and major",
        Each(failures),
    ),
    series(
        "container_oom_events_total",
        Counter,
        "Processes that the kernel has killed because the memory limit was reached",
        Read(|row| row.stats.memory?.oom_kills.map(number)),
    ),
    series(
        "container_spec_cpu_period",
        Gauge,
        "Length of a period of the CPU quota, in microseconds",
        Set(|row| quota(row, |quota| quota.period_micros)),
    ),
    series(
        "container_spec_cpu_quota",
        Gauge,
        "CPU time that may be used in each period, in microseconds",
        Set(|row| quota(row, |quota| quota.quota_micros)),
    ),
    series(
        "container_spec_cpu_shares",
        Gauge,
        "Share of CPU time among siblings",
        Set(|row| row.stats.cpu?.shares.map(number)),
    ),
    series(
        "container_spec_memory_limit_bytes",
        Gauge,
        "Memory limit in bytes; 0: none",
        Set(|row| memory(row, |memory| memory.limit.unwrap_or(0))),
    ),
    series(
        "container_spec_memory_swap_limit_bytes",
        Gauge,
        "Swap limit in bytes; 0: none",
        Set(|row| Some(number(row.stats.swap?.limit.unwrap_or(0)))),
    ),
    series(
        "container_start_time_seconds",
        Gauge,
        "When it was started, in seconds since 1970",
        Set(|row| Some(unix(row.started_at))),
    ),
    series(
        "container_last_seen",
        Gauge,
        "When it was read, in seconds since 1970",
        Read(|row| Some(unix(row.stats.at).floor())),
    ),
    series(
        "container_network_receive_bytes_total",
        Counter,
        "Bytes received",
        OfInterface(|interface| interface.received.bytes),
    ),
    series(
        "container_network_receive_packets_total",
        Counter,
        "Packets received",
        OfInterface(|interface| interface.received.packets),
    ),
    series(
        "container_network_receive_packets_dropped_total",
        Counter,
        "Packets received that were thrown away",
        OfInterface(|interface| interface.received.dropped),
    ),
    series(
        "container_network_receive_errors_total",
        Counter,
        "Errors in packets received",
        OfInterface(|interface| interface.received.errors),
    ),
    series(
        "container_network_transmit_bytes_total",
        Counter,
        "Bytes sent",
        OfInterface(|interface| interface.sent.bytes),
    ),
    series(
        "container_network_transmit_packets_total",
        Counter,
        "Packets sent",
        OfInterface(|interface| interface.sent.packets),
    ),
    series(
        "container_network_transmit_packets_dropped_total",
        Counter,
        "Packets sent that were thrown away",
        OfInterface(|interface| interface.sent.dropped),
    ),
    series(
        "container_network_transmit_errors_total",
        Counter,
        "Errors in packets sent",
        OfInterface(|interface| interface.sent.errors),
    ),
    series(
        "container_fs_usage_bytes",
        Gauge,
        "What the writable layer takes, in bytes; of the machine: what the file system of the root directory holds",
        OnDisk(used_bytes),
    ),
    series(
        "container_fs_limit_bytes",
        Gauge,
        "Size of the file system, in bytes",
        OnDisk(|row| on_fs(row, |fs| Some(fs.bytes.1))),
    ),
    series(
        "container_fs_inodes_free",
        Gauge,
        "Inodes that are free on the file system",
        OnDisk(|row| on_fs(row, |fs| Some(fs.inodes?.0))),
    ),
    series(
        "container_fs_inodes_total",
        Gauge,
        "Inodes of the file system",
        OnDisk(|row| on_fs(row, |fs| Some(fs.inodes?.1))),
    ),
    series(
        "container_fs_reads_bytes_total",
        Counter,
        "Bytes read from a device",
        OfDevice(|io| io.read_bytes),
    ),
    series(
        "container_fs_writes_bytes_total",
        Counter,
        "Bytes written to a device",
        OfDevice(|io| io.written_bytes),
    ),
    series("container_fs_reads_total", Counter, "Reads from a device", OfDevice(|io| io.reads)),
    series("container_fs_writes_total", Counter, "Writes to a device", OfDevice(|io| io.writes)),
    series(
        "container_blkio_device_usage_total",
        Counter,
        "Bytes read from and written to a device, by `operation`",
        Each(of_devices),
    ),
    series(
        "container_processes",
        Gauge,
        "Processes in the cgroup itself: 0 for a pod, whose processes are in the cgroups below",
        Read(|row| row.stats.processes.map(number)),
    ),
    series(
        "container_threads",
        Gauge,
        "Processes and threads",
        Read(|row| row.stats.tasks.map(number)),
    ),
    series(
        "container_threads_max",
        Gauge,
        "How many processes and threads there may be; absent without a limit",
        Read(|row| row.stats.tasks_limit.map(number)),
    ),
    series(
        "container_pressure_cpu_stalled_seconds_total",
        Counter,
        "Time in which all tasks waited for a CPU, in seconds",
        Read(|row| stalled(row.stats.cpu_pressure)),
    ),
    series(
        "container_pressure_cpu_waiting_seconds_total",
        Counter,
        "Time in which a task waited for a CPU, in seconds",
        Read(|row| waiting(row.stats.cpu_pressure)),
    ),
    series(
        "container_pressure_memory_stalled_seconds_total",
        Counter,
        "Time in which all tasks waited for memory, in seconds",
        Read(|row| stalled(row.stats.memory_pressure)),
    ),
    series(
        "container_pressure_memory_waiting_seconds_total",
        Counter,
        "Time in which a task waited for memory, in seconds",
        Read(|row| waiting(row.stats.memory_pressure)),
    ),
    series(
        "container_pressure_io_stalled_seconds_total",
        Counter,
        "Time in which all tasks waited for a device, in seconds",
        Read(|row| stalled(row.stats.io_pressure)),
    ),
    series(
        "container_pressure_io_waiting_seconds_total",
        Counter,
        "Time in which a task waited for a device, in seconds",
        Read(|row| waiting(row.stats.io_pressure)),
    ),
];

/// What is told of the machine: labels and a value.
type OfMachine = fn(&MachineFacts) -> (String, f64);

pub(super) const MACHINE: &[(Family, OfMachine)] = &[
    (gauge("machine_scrape_error", "Always 0: the machine is read when the agent starts"), |_| {
        (String::new(), 0.0)
    }),
    (gauge("machine_cpu_physical_cores", "Physical cores of the machine"), |machine| {
        (ids(machine), number(machine.cores))
    }),
    (gauge("machine_cpu_cores", "CPUs of the machine"), |machine| {
        (ids(machine), number(machine.cpus.unsigned_abs()))
    }),
    (gauge("machine_memory_bytes", "Memory of the machine, in bytes"), |machine| {
        (ids(machine), number(machine.memory_bytes.unsigned_abs()))
    }),
    (gauge("machine_swap_bytes", "Swap of the machine, in bytes"), |machine| {
        (ids(machine), number(machine.swap_bytes.unsigned_abs()))
    }),
    (gauge("cadvisor_version_info", "The kernel and the operating system; always 1"), |machine| {
        (version(machine), 1.0)
    }),
];

/// Whether the use of the machine could not be read.
pub(super) const FAILED: Family =
    gauge("container_scrape_error", "1 when the use of the node could not be read, else 0");

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Gauge, help }
}

fn ids(machine: &MachineFacts) -> String {
    labels([
        ("boot_id", &machine.boot_id),
        ("machine_id", &machine.machine_id),
        ("system_uuid", &machine.system_uuid),
    ])
}

fn version(machine: &MachineFacts) -> String {
    labels([
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", &machine.kernel),
        ("osVersion", &machine.os),
    ])
}

fn cpu_total(row: &Row<'_>) -> Vec<(String, f64)> {
    let value = cpu(row, |cpu| cpu.usage);
    value.map(|value| ("cpu=\"total\"".to_owned(), value)).into_iter().collect()
}

fn failures(row: &Row<'_>) -> Vec<(String, f64)> {
    let Some(memory) = row.stats.memory else { return Vec::new() };
    let kinds = [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)];
    let of_kind = |(kind, value): (&str, u64)| {
        (labels([("failure_type", kind), ("scope", "hierarchy")]), number(value))
    };
    kinds.map(of_kind).into()
}

fn of_devices(row: &Row<'_>) -> Vec<(String, f64)> {
    let of = |io: &DeviceIo, operation: &str, bytes: u64| {
        let (major, minor) = (io.device.0.to_string(), io.device.1.to_string());
        let names = [
            ("device", &*io.path),
            ("major", &*major),
            ("minor", &*minor),
            ("operation", operation),
        ];
        (labels(names), number(bytes))
    };
    let all = row.stats.io.iter();
    all.flat_map(|io| [of(io, "Read", io.read_bytes), of(io, "Write", io.written_bytes)]).collect()
}

fn used_bytes(row: &Row<'_>) -> Option<(f64, Timestamp)> {
    match row.is_machine {
        true => row.fs.map(|fs| (number(fs.used_bytes), fs.at)),
        false => row.layer.map(|layer| (number(layer.space.bytes), layer.at)),
    }
}

fn on_fs(row: &Row<'_>, value: fn(&FsStats) -> Option<u64>) -> Option<(f64, Timestamp)> {
    let fs = row.measured_fs()?;
    Some((number(value(&fs)?), fs.at))
}

impl Row<'_> {
    /// The file system of the machine's row, and of each whose layer was measured.
    fn measured_fs(&self) -> Option<FsStats> {
        self.fs.filter(|_| self.is_machine || self.layer.is_some())
    }
}

fn cpu(row: &Row<'_>, value: fn(&CpuStats) -> Duration) -> Option<f64> {
    Some(value(row.stats.cpu.as_ref()?).as_secs_f64())
}

fn quota(row: &Row<'_>, value: fn(&Throttling) -> u64) -> Option<f64> {
    Some(number(value(row.stats.cpu.as_ref()?.throttling.as_ref()?)))
}

fn memory(row: &Row<'_>, value: fn(&MemoryStats) -> u64) -> Option<f64> {
    Some(number(value(row.stats.memory.as_ref()?)))
}

fn stalled(psi: Option<Psi>) -> Option<f64> {
    Some(psi?.full.total.as_secs_f64())
}

fn waiting(psi: Option<Psi>) -> Option<f64> {
    Some(psi?.some.total.as_secs_f64())
}
