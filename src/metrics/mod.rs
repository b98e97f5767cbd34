//! What the agent counts of its own work, for `/metrics`: counters and histograms under the
//! kubelet's names where it has one of that meaning.
//!
//! What is a fact at the moment of a scrape (how many pods run) is counted by whoever serves it;
//! here are events, which are counted when they happen.

mod exposition;
mod maker;
mod node;
mod pods;

pub(crate) use exposition::{Family, Kind, Samples, TEXT, labels, number, unix};

use maker::{Described, Maker};
use node::NodeMetrics;
pub(crate) use node::StartupPart;
use pods::PodMetrics;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Registry, TextEncoder,
    exponential_buckets,
};
use std::{sync::LazyLock, time::Duration};

/// The kubelet's buckets for most durations, in seconds.
const COMMON: &[f64] = prometheus::DEFAULT_BUCKETS;
/// Those for starts of pods.
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const PULLS: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];
/// The labels of a request to the HTTPS API.
const REQUEST: &[&str] = &["method", "path", "server_type", "long_running"];

/// The kubelet's names of image sizes, and where they end.
const SIZES: [(u64, &str); 11] = [
    (10 << 20, "0-10MB"),
    (100 << 20, "10MB-100MB"),
    (500 << 20, "100MB-500MB"),
    (1 << 30, "500MB-1GB"),
    (5 << 30, "1GB-5GB"),
    (10 << 30, "5GB-10GB"),
    (20 << 30, "10GB-20GB"),
    (30 << 30, "20GB-30GB"),
    (40 << 30, "30GB-40GB"),
    (60 << 30, "40GB-60GB"),
    (100 << 30, "60GB-100GB"),
];

static METRICS: LazyLock<Metrics> = LazyLock::new(|| Metrics::make().0);

/// The counters of this process.
#[must_use]
pub fn metrics() -> &'static Metrics {
    &METRICS
}

/// Everything that is counted.
pub struct Metrics {
    registry: Registry,
    probes: Registry,
    slis: Registry,
    pub(crate) runtime_operations: IntCounterVec,
    pub(crate) runtime_operation_errors: IntCounterVec,
    pub(crate) runtime_operation_seconds: HistogramVec,
    pub(crate) relist_seconds: Histogram,
    pub(crate) relist_interval_seconds: Histogram,
    pub(crate) relisted_at: Gauge,
    pub(crate) pod_worker_seconds: HistogramVec,
    pub(crate) pod_start_seconds: Histogram,
    pub(crate) pod_start_sli_seconds: Histogram,
    pub(crate) started_pods: IntCounter,
    pub(crate) started_pod_errors: IntCounter,
    pub(crate) started_containers: IntCounterVec,
    pub(crate) started_container_errors: IntCounterVec,
    pub(crate) pull_seconds: HistogramVec,
    pub(crate) images_removed: IntCounterVec,
    pub(crate) evictions: IntCounterVec,
    pub(crate) comebacks: IntCounter,
    pub(crate) requests: IntCounterVec,
    pub(crate) request_seconds: HistogramVec,
    pub(crate) api_requests: IntCounterVec,
    pub(crate) lease_renewals: IntCounterVec,
    pub(crate) lease_renewed_at: Gauge,
    pub(crate) client_renew_errors: IntCounter,
    pub(crate) server_renew_errors: IntCounter,
    health_check: GaugeVec,
    health_checks: IntCounterVec,
    pub(crate) probe_attempts: IntCounterVec,
    pub(crate) probe_seconds: HistogramVec,
    /// Pods: their admission, their workers, the ends of their containers.
    pub(crate) pods: PodMetrics,
    /// The node: its start and its shutdown, cgroups, events of the runtime, what it serves.
    pub(crate) node: NodeMetrics,
}

impl Metrics {
    #[allow(clippy::too_many_lines, reason = "one list of all metrics")]
    fn make() -> (Self, Vec<Described>) {
        let [registry, probes, slis] = [(); 3].map(|()| Registry::new());
        let mut described = Vec::new();
        let mut of_health = Maker { registry: &slis, described: &mut described };
        let health_check = of_health.gauges(
            "kubernetes_healthcheck",
            "Whether a check of `/healthz` succeeds, 1 or 0",
            &["name", "type"],
        );
        let health_checks = of_health.counters(
            "kubernetes_healthchecks_total",
            "Checks of `/healthz`, by their result (`success`, `error`)",
            &["name", "status", "type"],
        );
        let mut of_probes = Maker { registry: &probes, described: &mut described };
        let probe_attempts = of_probes.counters(
            "prober_probe_total",
            "Attempts of probes, by their result (`successful`, `failed`, `unknown`)",
            &["container", "namespace", "pod", "pod_uid", "probe_type", "result"],
        );
        let probe_seconds = of_probes.histograms(
            "prober_probe_duration_seconds",
            "Duration of an attempt of a probe",
            COMMON,
            &["container", "namespace", "pod", "probe_type"],
        );
        let mut make = Maker { registry: &registry, described: &mut described };
        let operations = exponential_buckets(0.005, 2.5, 14).expect("they are valid");
        let operation: &[&str] = &["operation_type"];
        let container: &[&str] = &["container_type"];
        let metrics = Self {
            runtime_operations: make.counters(
                "kubelet_runtime_operations_total",
                "Calls to the container runtime",
                operation,
            ),
            runtime_operation_errors: make.counters(
                "kubelet_runtime_operations_errors_total",
                "Calls to the container runtime that failed",
                operation,
            ),
            runtime_operation_seconds: make.histograms(
                "kubelet_runtime_operations_duration_seconds",
                "Duration of a call to the container runtime",
                &operations,
                operation,
            ),
            relist_seconds: make.histogram(
                "kubelet_pleg_relist_duration_seconds",
                "Duration of a listing of everything that runs",
                COMMON,
            ),
            relist_interval_seconds: make.histogram(
                "kubelet_pleg_relist_interval_seconds",
                "Time between the beginnings of two listings of everything that runs",
                COMMON,
            ),
            relisted_at: make.gauge(
                "kubelet_pleg_last_seen_seconds",
                "When everything that runs was listed last, in seconds since 1970",
            ),
            pod_worker_seconds: make.histograms(
                "kubelet_pod_worker_duration_seconds",
                "Duration of the actions for a pod that were planned together (`create`, `sync`, `kill`)",
                COMMON,
                operation,
            ),
            pod_start_seconds: make.histogram(
                "kubelet_pod_start_duration_seconds",
                "Time from the first sight of a pod until all its containers run",
                STARTS,
            ),
            pod_start_sli_seconds: make.histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "The same without the time in which images were pulled",
                STARTS,
            ),
            started_pods: make.counter("kubelet_started_pods_total", "Sandboxes that were to be started"),
            started_pod_errors: make.counter(
                "kubelet_started_pods_errors_total",
                "Sandboxes that could not be started",
            ),
            started_containers: make.counters(
                "kubelet_started_containers_total",
                "Containers that were to be started",
                container,
            ),
            started_container_errors: make.counters(
                "kubelet_started_containers_errors_total",
                "Containers that could not be started, by the reason in their status",
                &["code", "container_type"],
            ),
            pull_seconds: make.histograms(
                "kubelet_image_pull_duration_seconds",
                "Duration of a successful pull of an image",
                PULLS,
                &["image_size_in_bytes"],
            ),
            images_removed: make.counters(
                "kubelet_image_garbage_collected_total",
                "Unused images that were removed (`age`, `space`)",
                &["reason"],
            ),
            evictions: make.counters(
                "kubelet_evictions",
                "Pods that were evicted, by what ran short",
                &["eviction_signal"],
            ),
            comebacks: make.counter(
                "nodelet_comebacks_total",
                "Evicted pods that were started again",
            ),
            requests: make.counters(
                "kubelet_http_requests_total",
                "Requests to the HTTPS API that were let in",
                REQUEST,
            ),
            request_seconds: make.histograms(
                "kubelet_http_requests_duration_seconds",
                "Time from a request to the HTTPS API to the head of its answer",
                COMMON,
                REQUEST,
            ),
            api_requests: make.counters(
                "rest_client_requests_total",
                "Requests to the API server, by the code of the answer; `<error>`: there was none",
                &["code", "host", "method"],
            ),
            lease_renewals: make.counters(
                "nodelet_lease_renewals_total",
                "Tries to renew the lease of the node (`success`, `error`)",
                &["result"],
            ),
            client_renew_errors: make.counter(
                "kubelet_certificate_manager_client_expiration_renew_errors",
                "Client certificates that could not be obtained: the request was refused, or a file not written",
            ),
            server_renew_errors: make.counter(
                "kubelet_server_expiration_renew_errors",
                "The same for certificates of the HTTPS API",
            ),
            lease_renewed_at: make.gauge(
                "nodelet_lease_renewed_seconds",
                "When the lease of the node was renewed last, in seconds since 1970; 0: not yet",
            ),
            pods: PodMetrics::make(&mut make),
            node: NodeMetrics::make(&mut make),
            health_check,
            health_checks,
            probe_attempts,
            probe_seconds,
            registry,
            probes,
            slis,
        };
        (metrics, described)
    }

    /// Everything but the metrics of probes, in the text format.
    #[must_use]
    pub fn text(&self) -> String {
        text(&self.registry)
    }

    /// The metrics of probes, in the text format.
    #[must_use]
    pub fn text_of_probes(&self) -> String {
        text(&self.probes)
    }

    /// The metrics of health checks, in the text format.
    #[must_use]
    pub fn text_of_slis(&self) -> String {
        text(&self.slis)
    }

    /// Notes the result of a check of `/healthz`.
    pub(crate) fn health_checked(&self, check: &str, succeeded: bool) {
        let value = f64::from(u8::from(succeeded));
        self.health_check.with_label_values(&[check, "healthz"]).set(value);
        let status = if succeeded { "success" } else { "error" };
        self.health_checks.with_label_values(&[check, status, "healthz"]).inc();
    }

    /// Begins to count checks of `/healthz` anew.
    pub(crate) fn forget_health_checks(&self) {
        self.health_check.reset();
        self.health_checks.reset();
    }

    /// Every family with its labels.
    #[cfg(test)]
    pub(crate) fn described() -> Vec<Described> {
        Self::make().1
    }

    /// Notes a call to the container runtime; `call` is its name in CRI.
    pub(crate) fn runtime_called(&self, call: &str, took: Duration, failed: bool) {
        let operation = operation_type(call);
        let labels = &[&*operation];
        self.runtime_operations.with_label_values(labels).inc();
        self.runtime_operation_seconds.with_label_values(labels).observe(took.as_secs_f64());
        if failed {
            self.runtime_operation_errors.with_label_values(labels).inc();
        }
    }

    /// Notes a pull of an image of so many bytes.
    pub(crate) fn pulled(&self, bytes: u64, took: Duration) {
        let below = SIZES.iter().find(|(end, _)| bytes < *end);
        let size = below.map_or("GT100GB", |(_, name)| name);
        self.pull_seconds.with_label_values(&[size]).observe(took.as_secs_f64());
    }

    /// Forgets the probes of a container that is gone.
    pub(crate) fn forget_probes(&self, attempts: &[&str], seconds: &[&str]) {
        // Fails where it was never counted.
        self.probe_attempts.remove_label_values(attempts).ok();
        self.probe_seconds.remove_label_values(seconds).ok();
    }
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    // Fails for a family without metrics, and gather leaves those out.
    if let Err(err) = TextEncoder::new().encode_utf8(&registry.gather(), &mut text) {
        tracing::error!(%err, "metrics can't be written");
    }
    text
}

/// The kubelet's name of a call: `RunPodSandbox` is `run_podsandbox`, and
/// `UpdateContainerResources` is `update_container`.
fn operation_type(call: &str) -> String {
    let call = call.replace("PodSandbox", "Podsandbox").replace("ContainerResources", "Container");
    let mut name = String::with_capacity(call.len() + 4);
    for c in call.chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_the_kubelet() {
        for (call, name) in [
            ("RunPodSandbox", "run_podsandbox"),
            ("UpdateContainerResources", "update_container"),
            ("PodSandboxStatus", "podsandbox_status"),
            ("ListContainers", "list_containers"),
            ("ExecSync", "exec_sync"),
            ("Version", "version"),
        ] {
            assert_eq!(operation_type(call), name);
        }
    }

    #[test]
    fn what_was_counted_is_told() {
        let metrics = Metrics::make().0;
        metrics.runtime_called("StopContainer", Duration::from_millis(30), true);
        metrics.runtime_called("StopContainer", Duration::from_millis(1), false);
        let text = metrics.text();
        for line in [
            "# TYPE kubelet_runtime_operations_total counter",
            "kubelet_runtime_operations_total{operation_type=\"stop_container\"} 2",
            "kubelet_runtime_operations_errors_total{operation_type=\"stop_container\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"stop_container\",le=\"0.005\"} 1",
            "kubelet_runtime_operations_duration_seconds_count{operation_type=\"stop_container\"} 2",
            "kubelet_started_pods_total 0",
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
        assert_eq!(metrics.text_of_probes(), "");
    }
}
