//! The rows of [`crate::api_pods`].

use crate::results::Goal;

/// Replicas of the Deployments, by the place in the rows.
pub const REPLICAS: [usize; 2] = [50, 100];

/// What is measured of pods of the API server. Numbers are places in [`REPLICAS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApiPodRow {
    /// Seconds from the creation of one pod until a watcher sees it Ready.
    One,
    /// Seconds from the start of its container until then.
    OneShown,
    /// Seconds from its deletion until a watcher sees its object gone.
    OneGone,
    /// Seconds from the creation of a Deployment until all its pods are Ready.
    AllReady(usize),
    /// Seconds that a pod of it takes from its creation until it is Ready: the median.
    PodReady(usize),
    /// The same, which one pod of a hundred exceeds.
    SlowPodReady(usize),
    /// Seconds from the start of a container until its pod is Ready, for 99 of 100.
    Shown(usize),
    /// Seconds from the deletion of a Deployment until the objects of all its pods are gone.
    AllGone(usize),
    /// Seconds from the deletion of a pod of it until its object is gone, for 99 of 100.
    SlowPodGone(usize),
    /// Requests of the node while it comes and goes, for each pod.
    Requests(usize),
    /// Resident memory of a full node, in MiB.
    FullRss,
    /// CPU time of a full node in percent of one core.
    FullCpu,
    /// Requests of a full node in five quiet minutes.
    FullRequests,
    /// KiB that they and their answers were, as carried.
    FullKibCarried,
    /// Seconds from the change of a ConfigMap until a container of a full node reads it.
    ConfigSeen,
}

impl ApiPodRow {
    /// All of them, in the order of the table.
    pub fn all() -> Vec<Self> {
        let mut rows = vec![Self::One, Self::OneShown, Self::OneGone];
        for place in 0..REPLICAS.len() {
            rows.extend([
                Self::AllReady(place),
                Self::PodReady(place),
                Self::SlowPodReady(place),
                Self::Shown(place),
                Self::AllGone(place),
                Self::SlowPodGone(place),
                Self::Requests(place),
            ]);
        }
        rows.extend([Self::FullRss, Self::FullCpu, Self::FullRequests, Self::FullKibCarried]);
        rows.push(Self::ConfigSeen);
        rows
    }

    /// In words; `pods` are those of a full node.
    pub fn label(self, pods: usize) -> String {
        let deployment = |place: usize| format!("Deployment of {}", REPLICAS[place].min(pods));
        let full = format!("{pods} pods with a token and a ConfigMap");
        match self {
            Self::One => "one pod created → Ready".to_owned(),
            Self::OneShown => "its container started → Ready seen by a watcher".to_owned(),
            Self::OneGone => "one pod deleted → object gone".to_owned(),
            Self::AllReady(place) => format!("{} created → all Ready", deployment(place)),
            Self::PodReady(place) => {
                format!("{}: a pod created → Ready, p50", deployment(place))
            }
            Self::SlowPodReady(place) => {
                format!("{}: a pod created → Ready, p99", deployment(place))
            }
            Self::Shown(place) => {
                format!("{}: container started → Ready seen, p99", deployment(place))
            }
            Self::AllGone(place) => format!("{} deleted → objects gone", deployment(place)),
            Self::SlowPodGone(place) => {
                format!("{}: a pod deleted → object gone, p99", deployment(place))
            }
            Self::Requests(place) => {
                format!("{}: requests to the API server for each pod", deployment(place))
            }
            Self::FullRss => format!("RSS idle, {full}"),
            Self::FullCpu => format!("CPU idle, {full}"),
            Self::FullRequests => format!("requests in 5 quiet minutes, {full}"),
            Self::FullKibCarried => format!("carried in 5 quiet minutes, {full}"),
            Self::ConfigSeen => format!("ConfigMap changed → read in a container, {full}"),
        }
    }

    /// As files call it.
    pub fn id(self) -> String {
        match self {
            Self::One => "api_pod_seconds".to_owned(),
            Self::OneShown => "api_pod_shown_seconds".to_owned(),
            Self::OneGone => "api_pod_gone_seconds".to_owned(),
            Self::AllReady(place) => format!("deployment_{}_seconds", REPLICAS[place]),
            Self::PodReady(place) => format!("deployment_{}_pod_p50_seconds", REPLICAS[place]),
            Self::SlowPodReady(place) => format!("deployment_{}_pod_p99_seconds", REPLICAS[place]),
            Self::Shown(place) => format!("deployment_{}_shown_p99_seconds", REPLICAS[place]),
            Self::AllGone(place) => format!("deployment_{}_gone_seconds", REPLICAS[place]),
            Self::SlowPodGone(place) => {
                format!("deployment_{}_pod_gone_p99_seconds", REPLICAS[place])
            }
            Self::Requests(place) => format!("deployment_{}_requests_per_pod", REPLICAS[place]),
            Self::FullRss => "api_pods_rss_mib".to_owned(),
            Self::FullCpu => "api_pods_cpu_percent".to_owned(),
            Self::FullRequests => "api_pods_requests".to_owned(),
            Self::FullKibCarried => "api_pods_carried_kib".to_owned(),
            Self::ConfigSeen => "api_config_seen_seconds".to_owned(),
        }
    }

    /// A figure with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::One | Self::OneShown | Self::OneGone | Self::Shown(_) | Self::ConfigSeen => {
                format!("{value:.3} s")
            }
            Self::AllReady(_) | Self::PodReady(_) | Self::SlowPodReady(_) => {
                format!("{value:.2} s")
            }
            Self::AllGone(_) | Self::SlowPodGone(_) => format!("{value:.2} s"),
            Self::Requests(_) => format!("{value:.1}"),
            Self::FullRss => format!("{value:.1} MiB"),
            Self::FullCpu => format!("{value:.3} %"),
            Self::FullRequests => format!("{value:.0}"),
            Self::FullKibCarried => format!("{value:.0} KiB"),
        }
    }

    /// What nodelet is held to.
    pub fn goal(self) -> Goal {
        match self {
            Self::OneShown => Goal::AtMost(0.1),
            Self::SlowPodReady(_) => Goal::TimesFloor(1.15),
            Self::Requests(_) => Goal::BelowKubelet,
            Self::FullRss => Goal::AtMost(20.0),
            Self::FullCpu => Goal::AtMost(0.3),
            Self::ConfigSeen => Goal::AtMost(2.0),
            Self::One | Self::OneGone | Self::AllReady(_) | Self::PodReady(_) => Goal::None,
            Self::Shown(_) | Self::AllGone(_) | Self::SlowPodGone(_) => Goal::None,
            Self::FullRequests | Self::FullKibCarried => Goal::None,
        }
    }
}
