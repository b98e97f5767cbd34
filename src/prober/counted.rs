//! Counts attempts of probes, for `/metrics/probes`.

use crate::{
    metrics::metrics,
    model::{Finding, PodView, ProbeKind},
    podspec::uid_of,
    probe::Attempt,
};
use std::time::Duration;

const SUCCESSFUL: &str = "successful";
const FAILED: &str = "failed";
const UNKNOWN: &str = "unknown";

fn probe_type(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Startup => "Startup",
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
    }
}

/// Counts an attempt.
pub(super) fn count(attempt: &Attempt, finding: &Finding, took: Duration) {
    let result = match finding {
        Finding::Success | Finding::Warning(_) => SUCCESSFUL,
        Finding::Failure(_) => FAILED,
        Finding::Error(_) => UNKNOWN,
    };
    let (container, kind) = (&*attempt.container, probe_type(attempt.kind));
    let (namespace, pod) = (&*attempt.key.namespace, &*attempt.key.name);
    let uid = uid_of(&attempt.pod);
    let labels = [container, namespace, pod, uid.as_str(), kind, result];
    metrics().probe_attempts.with_label_values(&labels).inc();
    let labels = [container, namespace, pod, kind];
    metrics().probe_seconds.with_label_values(&labels).observe(took.as_secs_f64());
}

/// Forgets the probes of a pod that is gone.
pub(super) fn forget(view: &PodView) {
    let Some(spec) = view.pod.as_ref().and_then(|pod| pod.spec.as_ref()) else { return };
    let (namespace, pod) = (&*view.key.namespace, &*view.key.name);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    for container in containers {
        for kind in [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness] {
            if kind.of(container).is_none() {
                continue;
            }
            let (name, kind) = (&*container.name, probe_type(kind));
            for result in [SUCCESSFUL, FAILED, UNKNOWN] {
                let labels = [name, namespace, pod, view.uid.as_str(), kind, result];
                metrics().forget_probes(&labels, &[name, namespace, pod, kind]);
            }
        }
    }
}
