//! What is counted and noted of the node: its start and shutdown, cgroups, the runtime's events,
//! and the HTTPS API.

use super::{COMMON, REQUEST, maker::Maker};
use jiff::Timestamp;
use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntGaugeVec};
use std::time::Duration;

/// What is counted and noted of the node. A gauge without labels is told once it was set.
pub(crate) struct NodeMetrics {
    startup: [GaugeVec; 5],
    shutdown_start: GaugeVec,
    shutdown_end: GaugeVec,
    pub(crate) pod_relist_seconds: Histogram,
    pub(crate) event_streams: IntCounter,
    pub(crate) event_stream_errors: IntCounter,
    pub(crate) event_latency_seconds: Histogram,
    pub(crate) cgroup_seconds: HistogramVec,
    pub(crate) eviction_stats_age_seconds: HistogramVec,
    pub(crate) requests_in_flight: IntGaugeVec,
}

/// A part of the time from the boot of the machine until its node is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartupPart {
    PreKubelet,
    PreRegistration,
    Registration,
    PostRegistration,
    /// All of it.
    Total,
}

impl NodeMetrics {
    pub(super) fn make(make: &mut Maker<'_>) -> Self {
        Self {
            // In the order of `StartupPart`.
            startup: [
                make.gauges(
                    "kubelet_node_startup_pre_kubelet_duration_seconds",
                    "Time from the boot of the machine to the start of the agent; like the next four, only when this run of the agent has made the Node",
                    &[],
                ),
                make.gauges(
                    "kubelet_node_startup_pre_registration_duration_seconds",
                    "Time from the start of the agent to its first try to register the node",
                    &[],
                ),
                make.gauges(
                    "kubelet_node_startup_registration_duration_seconds",
                    "Time from the first try to register the node until it was registered",
                    &[],
                ),
                make.gauges(
                    "kubelet_node_startup_post_registration_duration_seconds",
                    "Time from the registration of the node until it was ready",
                    &[],
                ),
                make.gauges(
                    "kubelet_node_startup_duration_seconds",
                    "Time from the boot of the machine until the node was ready",
                    &[],
                ),
            ],
            shutdown_start: make.gauges(
                "kubelet_graceful_shutdown_start_time_seconds",
                "When the last shutdown of the machine began to stop pods, in seconds since 1970; absent before the first",
                &[],
            ),
            shutdown_end: make.gauges(
                "kubelet_graceful_shutdown_end_time_seconds",
                "When the last shutdown of the machine had stopped all pods or was cancelled, in seconds since 1970; 0: it goes on",
                &[],
            ),
            pod_relist_seconds: make.histogram(
                "kubelet_pleg_pod_relist_duration_seconds",
                "Duration of a listing of single pods, after an event or an action",
                COMMON,
            ),
            event_streams: make.counter(
                "kubelet_evented_pleg_connection_success_count",
                "Streams of runtime events that were opened",
            ),
            event_stream_errors: make.counter(
                "kubelet_evented_pleg_connection_error_count",
                "Streams of runtime events that could not be opened or broke off",
            ),
            event_latency_seconds: make.histogram(
                "kubelet_evented_pleg_connection_latency_seconds",
                "Time from a runtime event until the agent had it",
                COMMON,
            ),
            cgroup_seconds: make.histograms(
                "kubelet_cgroup_manager_duration_seconds",
                "Duration of the work on the cgroup of a pod (`create`, `update`, `destroy`)",
                COMMON,
                &["operation_type"],
            ),
            eviction_stats_age_seconds: make.histograms(
                "kubelet_eviction_stats_age_seconds",
                "Age of the reading for which a pod was evicted",
                COMMON,
                &["eviction_signal"],
            ),
            requests_in_flight: make.levels(
                "kubelet_http_inflight_requests",
                "Requests to the HTTPS API that are being answered, sessions and followed logs included",
                REQUEST,
            ),
        }
    }

    /// Notes how long a part of the start of the node took.
    pub(crate) fn node_started(&self, part: StartupPart, took: Duration) {
        self.startup[part as usize].with_label_values::<&str>(&[]).set(took.as_secs_f64());
    }

    /// Notes that pods are stopped because the machine goes down.
    pub(crate) fn shutdown_began(&self, now: Timestamp) {
        self.shutdown_start.with_label_values::<&str>(&[]).set(super::unix(now));
        self.shutdown_end.with_label_values::<&str>(&[]).set(0.0);
    }

    /// Notes that no pod is stopped any more for a shutdown of the machine.
    pub(crate) fn shutdown_ended(&self, now: Timestamp) {
        self.shutdown_end.with_label_values::<&str>(&[]).set(super::unix(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_or_shutdown_that_never_was_is_not_told() {
        let metrics = super::super::Metrics::make().0;
        let untold = metrics.text();
        assert!(!untold.contains("_startup_") && !untold.contains("graceful"), "{untold}");
        metrics.node.node_started(StartupPart::Total, Duration::from_millis(1500));
        metrics.node.shutdown_began(Timestamp::from_second(1_700_000_000).unwrap_or_default());
        let text = metrics.text();
        for line in [
            "kubelet_node_startup_duration_seconds 1.5",
            "kubelet_graceful_shutdown_start_time_seconds 1700000000",
            "kubelet_graceful_shutdown_end_time_seconds 0",
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("registration_duration"), "{text}");
    }
}
