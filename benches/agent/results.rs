//! Figures, their medians, and what they are held to.

use crate::{api_pod_rows::ApiPodRow, api_rows::ApiRow, stage::Candidate};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// Pods at which idleness was measured, by the place in `Rss` and its like.
pub const IDLE_PODS: [usize; 3] = [0, 20, 110];

/// How fast memory is taken, in MiB a second, by the place in `Evicted` and `Past`.
pub const RATES: [usize; 3] = [50, 200, 1000];
/// The place in [`RATES`] at which the machine's own signal is measured.
pub const MACHINE_RATE: usize = 1;

/// What is away for a minute, by the place in `Healed`.
pub const FAULTS: [&str; 3] = ["API server killed", "all packets lost", "agent killed"];

/// What is measured. Numbers are places in [`IDLE_PODS`], or in [`RATES`] and whether the node is
/// full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Seconds until a full node's manifests, dropped at once, all run.
    Batch,
    /// Seconds until one manifest runs.
    One,
    /// Seconds until a killed container runs again.
    Restart,
    /// Seconds until a removed manifest's pod is gone.
    Gone,
    /// Seconds from the start of a killed agent until the next manifest runs.
    Comeback,
    /// Resident memory in MiB.
    Rss(usize),
    /// Of that, memory that only the agent has.
    RssAnon(usize),
    /// Of that, pages of its program and of libraries.
    RssFile(usize),
    /// The most resident memory ever, in MiB.
    Peak,
    /// Threads.
    Threads(usize),
    /// The agent's CPU time in percent of one core.
    Cpu(usize),
    /// How often a second the agent wakes up.
    Wakeups(usize),
    /// What it writes to disks, in KiB an hour.
    Written(usize),
    /// containerd's and its shims'.
    RuntimeCpu(usize),
    /// Seconds from the crossing of a threshold of the pods' memory until the hog is dead.
    Evicted(usize, usize),
    /// How far it came past the threshold, in MiB.
    Past(usize, usize),
    /// Seconds from the crossing of the machine's own threshold of memory until the hog is dead.
    EvictedByMachine,
    /// Seconds from the crossing of a threshold of a disk until the room is back.
    DiskEvicted,
    /// CPU time more than without thresholds, in percent of one core: far from them, near one.
    Watching(usize),
    /// Pods that went although nothing but page cache was large.
    FalseEvictions,
    /// CPU time of a full node with three HTTP probes a second for each pod, in percent of one core.
    ProbeCpu,
    /// By how many milliseconds the distance of two probes differs from their period while the
    /// machine is busy, for 99 of 100.
    ProbeJitter,
    /// CPU time with ten exec probes a second, in percent of one core.
    ExecCpu,
    /// What they cost containerd and its shims; `runc exec` is not counted.
    ExecRuntimeCpu,
    /// Seconds from the last good liveness probe of 1 s until the container runs again.
    Liveness,
    /// Seconds from the edit of a ConfigMap's file until a container reads the new data.
    ConfigSeen,
    /// How far a log gets past its size at 200 MiB/s, in MiB.
    LogPast,
    /// Seconds between the last process of an old image and the first of its successor, by its place
    /// in [`UPDATES`].
    Downtime(usize),
    /// CPU time that scrapes cost a full node and its runtime, in percent of one core, by the place of
    /// the period in [`SCRAPE_PERIODS`].
    ScrapeCpu(usize),
    /// Resident memory that this takes, in MiB.
    ScrapeRss,
    /// Resident memory of a full node with probes, a ConfigMap and rotation, in MiB more than
    /// without.
    FeaturesRss,
    /// Of the HTTPS API.
    Api(ApiRow),
    /// Of pods of the API server.
    ApiPod(ApiPodRow),
    /// Seconds from the agent's start until the API server shows its node as Ready.
    Ready,
    /// Seconds from the crossing of a threshold of a disk until the API server shows the condition.
    ConditionShown,
    /// Seconds from a container's start until the API server shows its pod as Ready.
    Shown,
    /// Seconds until a full node's manifests are all shown so.
    AllShown,
    /// Seconds from the end of a fault, by its place in [`FAULTS`], until the API server shows all
    /// as it is.
    Healed(usize),
    /// Requests in five quiet minutes.
    Requests,
    /// KiB that they and their answers were, as carried.
    KibCarried,
    /// [`Self::Rss`] in a cluster.
    ClusterRss(usize),
    /// [`Self::Peak`] in a cluster.
    ClusterPeak,
    /// [`Self::Cpu`] in a cluster.
    ClusterCpu(usize),
}

/// How a pod gets a new image: with it already there before the old pod is stopped, or not. The
/// kubelet's only way is the second; the floor has the image in both.
pub const UPDATES: [&str; 2] = ["as by default", "prepareUpdates: false"];
/// How often Prometheus reads a node.
pub const SCRAPE_PERIODS: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(1)];
/// At least this many scrapes, and as long without them. The CPU time of the runtime's shims varies: in
/// a shorter window, that would be a large part of the difference.
pub const SCRAPES: u32 = 16;
/// Of the image.
pub const UPDATE_MIB: u64 = 64;

/// A table, with the circumstances of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Of the agent with static pods, alone and in a cluster.
    Agent,
    /// Of the act of features.
    Features,
    /// Of the HTTPS API.
    Api,
    /// Of pods of the API server.
    ApiPods,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Features, Self::Api, Self::ApiPods];

    /// Its file.
    pub fn file(self) -> &'static str {
        match self {
            Self::Agent => "bench.md",
            Self::Features => "features.md",
            Self::Api => "api.md",
            Self::ApiPods => "pods.md",
        }
    }
}

/// What a figure of nodelet's is held to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// None.
    None,
    /// At most this many times the floor's.
    TimesFloor(f64),
    /// At most this much more than the floor's.
    AboveFloor(f64),
    /// At most this.
    AtMost(f64),
    /// Less than the kubelet's.
    BelowKubelet,
    /// A tenth of the kubelet's.
    TenthOfKubelet,
}

impl Row {
    /// All of them, in the order of the table.
    pub fn all() -> Vec<Self> {
        let mut rows = vec![Self::Batch, Self::One, Self::Restart, Self::Gone, Self::Comeback];
        let places = 0..IDLE_PODS.len();
        rows.extend(places.clone().map(Self::Rss));
        rows.extend(places.clone().map(Self::RssAnon));
        rows.extend(places.clone().map(Self::RssFile));
        rows.push(Self::Peak);
        rows.extend(places.clone().map(Self::Threads));
        rows.extend(places.clone().map(Self::Cpu));
        rows.extend(places.clone().map(Self::Wakeups));
        rows.extend(places.clone().map(Self::Written));
        rows.extend(places.clone().map(Self::RuntimeCpu));
        for full in [0, 1] {
            rows.extend((0..RATES.len()).map(|rate| Self::Evicted(rate, full)));
            rows.extend((0..RATES.len()).map(|rate| Self::Past(rate, full)));
        }
        rows.extend([
            Self::EvictedByMachine,
            Self::DiskEvicted,
            Self::Watching(0),
            Self::Watching(1),
            Self::FalseEvictions,
            Self::ProbeCpu,
            Self::ProbeJitter,
            Self::ExecCpu,
            Self::ExecRuntimeCpu,
            Self::Liveness,
            Self::ConfigSeen,
            Self::LogPast,
            Self::Downtime(0),
            Self::Downtime(1),
            Self::ScrapeCpu(0),
            Self::ScrapeCpu(1),
            Self::ScrapeRss,
            Self::FeaturesRss,
        ]);
        rows.extend(ApiRow::ALL.map(Self::Api));
        rows.extend(ApiPodRow::all().into_iter().map(Self::ApiPod));
        rows.extend([Self::Ready, Self::ConditionShown, Self::Shown, Self::AllShown]);
        rows.extend((0..FAULTS.len()).map(Self::Healed));
        rows.extend([Self::Requests, Self::KibCarried]);
        rows.extend(places.clone().map(Self::ClusterRss));
        rows.push(Self::ClusterPeak);
        rows.extend(places.map(Self::ClusterCpu));
        rows
    }

    /// The table that shows it.
    pub fn table(self) -> Table {
        let is_of_features = matches!(
            self,
            Self::ProbeCpu
                | Self::ProbeJitter
                | Self::ExecCpu
                | Self::ExecRuntimeCpu
                | Self::Liveness
                | Self::ConfigSeen
                | Self::LogPast
                | Self::Downtime(_)
                | Self::ScrapeCpu(_)
                | Self::ScrapeRss
                | Self::FeaturesRss
        );
        if is_of_features {
            Table::Features
        } else if matches!(self, Self::Api(_)) {
            Table::Api
        } else if matches!(self, Self::ApiPod(_)) {
            Table::ApiPods
        } else {
            Table::Agent
        }
    }

    /// In words.
    pub fn label(self, pods: usize) -> String {
        let at = |place: usize| if place == 2 { pods } else { IDLE_PODS[place].min(pods) };
        let count =
            |pods: usize| if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
        match self {
            Self::Batch => format!("{pods} manifests dropped at once → all running"),
            Self::One => "one manifest → running".to_owned(),
            Self::Restart => "container killed → restarted".to_owned(),
            Self::Gone => "manifest removed → pod gone".to_owned(),
            Self::Comeback => {
                format!("agent killed and started → next manifest running, {pods} pods")
            }
            Self::Rss(place) => format!("RSS idle, {} pods", at(place)),
            Self::RssAnon(place) => format!("of that anonymous, {} pods", at(place)),
            Self::RssFile(place) => format!("of that pages of files, {} pods", at(place)),
            Self::Peak => format!("peak RSS, {pods} pods at once"),
            Self::Threads(place) => format!("threads, {} pods", at(place)),
            Self::Cpu(place) => format!("CPU idle, {} pods", at(place)),
            Self::Wakeups(place) => format!("wakeups a second, idle, {} pods", at(place)),
            Self::Written(place) => format!("written to disk an hour, idle, {} pods", at(place)),
            Self::RuntimeCpu(place) => {
                format!("containerd's CPU caused while idle, {} pods", at(place))
            }
            Self::Evicted(rate, full) => format!(
                "memory crossed at {} MiB/s, {} → hog dead",
                RATES[rate],
                count([1, pods][full])
            ),
            Self::Past(rate, full) => {
                format!("how far past, {} MiB/s, {}", RATES[rate], count([1, pods][full]))
            }
            Self::EvictedByMachine => {
                format!("the machine's memory crossed at {} MiB/s → hog dead", RATES[MACHINE_RATE])
            }
            Self::DiskEvicted => "disk crossed → room is back".to_owned(),
            Self::Watching(0) => "CPU of watching, idle".to_owned(),
            Self::Watching(_) => "CPU of watching, 100 MiB from a threshold".to_owned(),
            Self::FalseEvictions => "evictions for churning page cache, 20 s".to_owned(),
            Self::ProbeCpu => format!("CPU of 3 HTTP probes a second for each pod, {pods} pods"),
            Self::ProbeJitter => "probes 1 s apart, machine busy: 99 % within".to_owned(),
            Self::ExecCpu => "CPU of 10 exec probes a second".to_owned(),
            Self::ExecRuntimeCpu => {
                "containerd's CPU for 10 exec probes a second, without runc".to_owned()
            }
            Self::Liveness => "last good liveness probe → restarted".to_owned(),
            Self::ConfigSeen => "ConfigMap file edited → read in the container".to_owned(),
            Self::LogPast => "how far a log gets past 10 MiB, 200 MiB/s".to_owned(),
            Self::Downtime(how) => {
                format!("a new image of {UPDATE_MIB} MiB → downtime, {}", UPDATES[how])
            }
            Self::ScrapeCpu(place) => {
                let period = SCRAPE_PERIODS[place].as_secs();
                format!(
                    "CPU caused by a scrape every {period} s, containerd's included, {pods} pods"
                )
            }
            Self::ScrapeRss => format!("RSS for scrapes, {pods} pods"),
            Self::FeaturesRss => {
                format!("RSS for probes, a ConfigMap and rotation, {pods} pods")
            }
            Self::Api(row) => row.label(),
            Self::ApiPod(row) => row.label(pods),
            Self::Ready => "cluster: agent start → node Ready".to_owned(),
            Self::ConditionShown => "cluster: disk crossed → DiskPressure shown".to_owned(),
            Self::Shown => "cluster: container started → pod shown as Ready".to_owned(),
            Self::AllShown => {
                format!("cluster: {} manifests dropped at once → all shown as Ready", pods - at(1))
            }
            Self::Healed(fault) => format!(
                "cluster: {} for a minute, healed → all shown as it is, {} pods",
                FAULTS[fault],
                at(1)
            ),
            Self::Requests => format!("cluster: requests in 5 quiet minutes, {} pods", at(1)),
            Self::KibCarried => format!("cluster: carried in 5 quiet minutes, {} pods", at(1)),
            Self::ClusterRss(place) => format!("cluster: RSS idle, {} pods", at(place)),
            Self::ClusterPeak => format!("cluster: peak RSS, {pods} pods"),
            Self::ClusterCpu(place) => format!("cluster: CPU idle, {} pods", at(place)),
        }
    }

    /// As files call it.
    pub fn id(self) -> String {
        match self {
            Self::Batch => "batch_seconds".to_owned(),
            Self::One => "one_seconds".to_owned(),
            Self::Restart => "restart_seconds".to_owned(),
            Self::Gone => "gone_seconds".to_owned(),
            Self::Comeback => "comeback_seconds".to_owned(),
            Self::Rss(place) => format!("rss_mib_{}", IDLE_PODS[place]),
            Self::RssAnon(place) => format!("rss_anon_mib_{}", IDLE_PODS[place]),
            Self::RssFile(place) => format!("rss_file_mib_{}", IDLE_PODS[place]),
            Self::Peak => "peak_rss_mib".to_owned(),
            Self::Threads(place) => format!("threads_{}", IDLE_PODS[place]),
            Self::Cpu(place) => format!("cpu_percent_{}", IDLE_PODS[place]),
            Self::Wakeups(place) => format!("wakeups_per_second_{}", IDLE_PODS[place]),
            Self::Written(place) => format!("written_kib_per_hour_{}", IDLE_PODS[place]),
            Self::RuntimeCpu(place) => format!("runtime_cpu_percent_{}", IDLE_PODS[place]),
            Self::Evicted(rate, full) => {
                format!("evicted_seconds_{}{}", RATES[rate], ["", "_full"][full])
            }
            Self::Past(rate, full) => format!("past_mib_{}{}", RATES[rate], ["", "_full"][full]),
            Self::EvictedByMachine => "evicted_by_machine_seconds".to_owned(),
            Self::DiskEvicted => "disk_evicted_seconds".to_owned(),
            Self::Watching(near) => format!("watching_percent_{}", ["far", "near"][near]),
            Self::FalseEvictions => "false_evictions".to_owned(),
            Self::ProbeCpu => "probe_cpu_percent".to_owned(),
            Self::ProbeJitter => "probe_jitter_milliseconds".to_owned(),
            Self::ExecCpu => "exec_cpu_percent".to_owned(),
            Self::ExecRuntimeCpu => "exec_runtime_cpu_percent".to_owned(),
            Self::Liveness => "liveness_seconds".to_owned(),
            Self::ConfigSeen => "config_seen_seconds".to_owned(),
            Self::LogPast => "log_past_mib".to_owned(),
            Self::Downtime(how) => format!("downtime_seconds_{}", ["prepared", "at_once"][how]),
            Self::ScrapeCpu(place) => {
                format!("scrape_cpu_percent_{}", SCRAPE_PERIODS[place].as_secs())
            }
            Self::ScrapeRss => "scrape_rss_mib".to_owned(),
            Self::FeaturesRss => "features_rss_mib".to_owned(),
            Self::Api(row) => row.id().to_owned(),
            Self::ApiPod(row) => row.id(),
            Self::Ready => "cluster_ready_seconds".to_owned(),
            Self::ConditionShown => "cluster_condition_shown_seconds".to_owned(),
            Self::Shown => "cluster_shown_seconds".to_owned(),
            Self::AllShown => "cluster_all_shown_seconds".to_owned(),
            Self::Healed(fault) => {
                format!("cluster_healed_seconds_{}", FAULTS[fault].to_lowercase().replace(' ', "_"))
            }
            Self::Requests => "cluster_requests".to_owned(),
            Self::KibCarried => "cluster_carried_kib".to_owned(),
            Self::ClusterRss(place) => format!("cluster_rss_mib_{}", IDLE_PODS[place]),
            Self::ClusterPeak => "cluster_peak_rss_mib".to_owned(),
            Self::ClusterCpu(place) => format!("cluster_cpu_percent_{}", IDLE_PODS[place]),
        }
    }

    /// A figure with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            _ if value.is_infinite() => "never".to_owned(),
            Self::Batch | Self::AllShown => format!("{value:.1} s"),
            Self::Ready | Self::ConditionShown | Self::Shown | Self::Healed(_) => {
                format!("{value:.2} s")
            }
            Self::Evicted(..) | Self::EvictedByMachine | Self::DiskEvicted => {
                format!("{value:.3} s")
            }
            Self::Past(..) => format!("{value:.0} MiB"),
            Self::FalseEvictions | Self::Threads(_) | Self::Requests => format!("{value:.0}"),
            Self::One | Self::Restart | Self::Gone | Self::Comeback => format!("{value:.3} s"),
            Self::Liveness | Self::ConfigSeen | Self::Downtime(_) => format!("{value:.3} s"),
            Self::ProbeCpu | Self::ExecCpu | Self::ExecRuntimeCpu => format!("{value:.2} %"),
            Self::ProbeJitter => format!("{value:.1} ms"),
            Self::ScrapeCpu(_) => format!("{value:.2} %"),
            Self::Api(row) => row.show(value),
            Self::ApiPod(row) => row.show(value),
            Self::LogPast | Self::ScrapeRss | Self::FeaturesRss => format!("{value:.1} MiB"),
            Self::Rss(_)
            | Self::RssAnon(_)
            | Self::RssFile(_)
            | Self::Peak
            | Self::ClusterRss(_)
            | Self::ClusterPeak => format!("{value:.1} MiB"),
            Self::Cpu(_) | Self::RuntimeCpu(_) | Self::Watching(_) | Self::ClusterCpu(_) => {
                format!("{value:.3} %")
            }
            Self::Wakeups(_) => format!("{value:.1}"),
            Self::Written(_) | Self::KibCarried => format!("{value:.0} KiB"),
        }
    }

    /// What nodelet is held to.
    pub fn goal(self) -> Goal {
        match self {
            Self::Batch => Goal::TimesFloor(1.1),
            Self::One => Goal::TimesFloor(1.1),
            Self::Restart => Goal::AboveFloor(0.02),
            Self::Comeback => Goal::AboveFloor(0.05),
            Self::Rss(place) => Goal::AtMost([8.0, 9.0, 12.0][place]),
            Self::RssAnon(place) => Goal::AtMost([1.2, 2.0, 5.0][place]),
            Self::Peak => Goal::AtMost(16.0),
            Self::Cpu(place) => Goal::AtMost([0.03, 0.05, 0.10][place]),
            Self::ClusterCpu(place) => Goal::AtMost([0.08, 0.10, 0.20][place]),
            Self::Written(_) => Goal::AtMost(0.0),
            Self::RuntimeCpu(2) => Goal::BelowKubelet,
            Self::Evicted(1, _) | Self::EvictedByMachine => Goal::AtMost(0.2),
            Self::Past(1, _) => Goal::AtMost(20.0),
            Self::Watching(0) => Goal::AtMost(0.05),
            Self::FalseEvictions => Goal::AtMost(0.0),
            Self::ProbeCpu => Goal::TimesFloor(1.3),
            Self::Liveness => Goal::TimesFloor(1.15),
            Self::ConfigSeen => Goal::AtMost(1.0),
            Self::ScrapeCpu(_) => Goal::TenthOfKubelet,
            Self::ScrapeRss => Goal::AtMost(2.0),
            Self::FeaturesRss => Goal::AtMost(1.5),
            Self::Api(row) => row.goal(),
            Self::ApiPod(row) => row.goal(),
            Self::ProbeJitter | Self::ExecCpu | Self::ExecRuntimeCpu | Self::LogPast => Goal::None,
            Self::Ready => Goal::AtMost(1.0),
            Self::Healed(_) => Goal::AtMost(1.0),
            Self::ClusterRss(2) => Goal::AtMost(15.0),
            Self::ClusterPeak => Goal::AtMost(24.0),
            Self::Requests => Goal::BelowKubelet,
            Self::ConditionShown | Self::Shown | Self::AllShown | Self::Downtime(_) => Goal::None,
            Self::KibCarried | Self::RssFile(_) | Self::ClusterRss(_) => Goal::None,
            Self::Evicted(..) | Self::Past(..) | Self::DiskEvicted | Self::Watching(_) => {
                Goal::None
            }
            Self::Gone | Self::Threads(_) | Self::Wakeups(_) | Self::RuntimeCpu(_) => Goal::None,
        }
    }
}

/// All figures of a run.
#[derive(Debug, Default)]
pub struct Figures {
    samples: BTreeMap<(Row, Candidate), Vec<f64>>,
    curves: BTreeMap<Candidate, Vec<Vec<f64>>>,
}

impl Figures {
    /// Adds one.
    pub fn add(&mut self, row: Row, candidate: Candidate, value: f64) {
        crate::progress(&format!("    {:26} {}", row.id(), row.show(value)));
        self.samples.entry((row, candidate)).or_default().push(value);
    }

    /// Adds when each pod of a batch ran, in seconds, in order.
    pub fn add_curve(&mut self, candidate: Candidate, curve: Vec<f64>) {
        self.curves.entry(candidate).or_default().push(curve);
    }

    /// The batch whose last pod is the median one; the mean of the two middle batches when their
    /// number is even.
    pub fn curve(&self, candidate: Candidate) -> Option<Vec<f64>> {
        let mut curves: Vec<&Vec<f64>> = self.curves.get(&candidate)?.iter().collect();
        curves.sort_by(|a, b| a.last().unwrap().total_cmp(b.last().unwrap()));
        let middle = curves.len() / 2;
        let upper = *curves.get(middle)?;
        Some(match curves.len() % 2 {
            1 => upper.clone(),
            _ => curves[middle - 1].iter().zip(upper).map(|(a, b)| f64::midpoint(*a, *b)).collect(),
        })
    }

    /// The median as the table shows it: containerd's CPU without what it uses when nobody asks it
    /// anything.
    pub fn figure(&self, row: Row, candidate: Candidate) -> Option<f64> {
        let median = self.median(row, candidate)?;
        match (row, candidate) {
            (Row::RuntimeCpu(_), Candidate::Nodelet | Candidate::Kubelet) => {
                Some(median - self.median(row, Candidate::Floor)?)
            }
            _ => Some(median),
        }
    }

    fn median(&self, row: Row, candidate: Candidate) -> Option<f64> {
        let mut values = self.samples.get(&(row, candidate))?.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(median)
    }

    /// The bound that a row's goal comes to in this run.
    pub fn bound(&self, row: Row) -> Option<f64> {
        match row.goal() {
            Goal::None => None,
            Goal::AtMost(bound) => Some(bound),
            Goal::TimesFloor(times) => Some(times * self.figure(row, Candidate::Floor)?),
            Goal::AboveFloor(more) => Some(more + self.figure(row, Candidate::Floor)?),
            Goal::BelowKubelet => self.figure(row, Candidate::Kubelet),
            Goal::TenthOfKubelet => Some(self.figure(row, Candidate::Kubelet)? / 10.0),
        }
    }

    /// Whether the goal is met, in words; empty when there is none.
    pub fn verdict(&self, row: Row) -> String {
        let figure = self.figure(row, Candidate::Nodelet);
        let (Some(bound), Some(figure)) = (self.bound(row), figure) else { return String::new() };
        if figure <= bound {
            return "met".to_owned();
        }
        if bound == 0.0 {
            return format!("missed by {}", row.show(figure));
        }
        format!("missed by {} ({:+.0} %)", row.show(figure - bound), 100.0 * (figure / bound - 1.0))
    }

    /// Everything, for a file.
    pub fn to_json(&self) -> Value {
        let mut rows = serde_json::Map::new();
        for row in Row::all() {
            let mut of_row = serde_json::Map::new();
            for ((_, candidate), values) in self.samples.iter().filter(|((r, _), _)| *r == row) {
                let figure = self.figure(row, *candidate);
                of_row.insert(
                    candidate.name().to_owned(),
                    json!({ "figure": figure, "samples": values }),
                );
            }
            if let Some(bound) = self.bound(row) {
                of_row.insert("goal_at_most".to_owned(), json!(bound));
                of_row.insert("goal".to_owned(), json!(self.verdict(row)));
            }
            if !of_row.is_empty() {
                rows.insert(row.id(), Value::Object(of_row));
            }
        }
        Value::Object(rows)
    }
}
