//! What is counted of pods besides their starts.

use super::{COMMON, maker::Maker};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};
use std::time::Duration;

/// Bounds of the time until the API server has a status, in seconds; the kubelet's.
const STATUS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// The reasons of ended containers that get a label of their own. A runtime may give any other
/// text.
const END_REASONS: [&str; 6] = [
    "Completed",
    "Error",
    "OOMKilled",
    "StartError",
    "ContainerCannotRun",
    "ContainerStatusUnknown",
];
/// The reasons of refusals that the kubelet tells apart. It counts a lack of any other resource
/// under one label (`OutOfExtendedResources`), and all other reasons under another one (`Other`).
const REJECTIONS: [&str; 12] = [
    "AppArmor",
    "Evicted",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "UnexpectedAdmissionError",
];
const OTHER: &str = "Other";

/// What is counted of pods.
pub(crate) struct PodMetrics {
    rejections: IntCounterVec,
    preemptions: IntCounterVec,
    pub(crate) worker_start_seconds: Histogram,
    restarted: IntCounterVec,
    pub(crate) orphaned: IntCounter,
    terminated_containers: IntCounterVec,
    pub(crate) sandbox_seconds: HistogramVec,
    pub(crate) sandbox_errors: IntCounterVec,
    status_sync_seconds: HistogramVec,
}

impl PodMetrics {
    pub(super) fn make(make: &mut Maker<'_>) -> Self {
        Self {
            rejections: make.counters(
                "kubelet_admission_rejections_total",
                "Pods that were refused, by the reason in their status; a pod that is refused again for another reason counts again",
                &["reason"],
            ),
            preemptions: make.counters(
                "kubelet_preemptions",
                "Pods that were stopped to make room for a critical pod, by the first resource that it lacked",
                &["preemption_signal"],
            ),
            worker_start_seconds: make.histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "Time from the first sight of a pod until work on it begins",
                COMMON,
            ),
            restarted: make.counters(
                "kubelet_restarted_pods_total",
                "Pods that were wanted again, with the same uid, while they were being removed, and began anew",
                &["static"],
            ),
            orphaned: make.counter(
                "kubelet_orphaned_runtime_pods_total",
                "Pods of this agent that only the runtime knew, and that were removed",
            ),
            terminated_containers: make.counters(
                "kubelet_terminated_containers_total",
                "Containers that ended, by exit code and reason; those that were stopped with their whole pod are not counted",
                &["container_type", "exit_code", "reason"],
            ),
            sandbox_seconds: make.histograms(
                "kubelet_run_podsandbox_duration_seconds",
                "Duration of the call that starts a sandbox, by the handler of its runtime class",
                COMMON,
                &["runtime_handler"],
            ),
            sandbox_errors: make.counters(
                "kubelet_run_podsandbox_errors_total",
                "Calls to start a sandbox that failed, by the handler of its runtime class",
                &["runtime_handler"],
            ),
            status_sync_seconds: make.histograms(
                "kubelet_pod_status_sync_duration_seconds",
                "Time from a change of the status of a pod until the API server has it",
                STATUS,
                &[],
            ),
        }
    }

    /// Notes a pod that was refused.
    pub(crate) fn rejected(&self, reason: &str) {
        self.rejections.with_label_values(&[rejection(reason)]).inc();
    }

    /// Notes a pod that makes room for a critical one, which lacked this resource.
    pub(crate) fn preempted(&self, resource: &str) {
        self.preemptions.with_label_values(&[resource]).inc();
    }

    /// Notes a pod that begins anew under its uid.
    pub(crate) fn restarted(&self, is_static: bool) {
        self.restarted.with_label_values(&[if is_static { "true" } else { "" }]).inc();
    }

    /// Notes that the API server has a status, and how old the first change in it is.
    pub(crate) fn status_synced(&self, took: Duration) {
        self.status_sync_seconds.with_label_values::<&str>(&[]).observe(took.as_secs_f64());
    }

    /// Notes the end of a container.
    pub(crate) fn container_ended(&self, container_type: &str, exit_code: i32, reason: &str) {
        let known = END_REASONS.into_iter().find(|known| *known == reason);
        let (exit_code, reason) = (exit_code.to_string(), known.unwrap_or(OTHER));
        let labels = [container_type, exit_code.as_str(), reason];
        self.terminated_containers.with_label_values(&labels).inc();
    }
}

/// The label of a refusal for this reason.
fn rejection(reason: &str) -> &str {
    match REJECTIONS.into_iter().find(|known| *known == reason) {
        Some(known) => known,
        None if reason.starts_with("OutOf") => "OutOfExtendedResources",
        None => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_kubelets_labels() {
        for (reason, label) in [
            ("OutOfcpu", "OutOfcpu"),
            ("OutOfhugepages-2Mi", "OutOfExtendedResources"),
            ("Evicted", "Evicted"),
            ("NodePorts", "Other"),
        ] {
            assert_eq!(rejection(reason), label);
        }
    }

    #[test]
    fn an_unknown_reason_of_an_end_gets_no_label_of_its_own() {
        let metrics = super::super::Metrics::make().0;
        metrics.pods.container_ended("container", 137, "OOMKilled");
        metrics.pods.container_ended("init_container", 3, "made up by a runtime");
        let text = metrics.text();
        for labels in [
            r#"container_type="container",exit_code="137",reason="OOMKilled""#,
            r#"container_type="init_container",exit_code="3",reason="Other""#,
        ] {
            let line = format!("kubelet_terminated_containers_total{{{labels}}} 1");
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
    }
}
