//! Counts attempts of probes, for `/metrics/probes`.

use crate::{
    metrics::metrics,
    model::{Finding, PodView, ProbeKind},
    podspec::{all_containers, any_container_of, uid_of},
    probe::Attempt,
};
use std::{sync::Arc, time::Duration};

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

/// Forgets those probes of a pod that are gone. `now`: the same pod as it is now, if it is there
/// and has probes.
pub(super) fn forget(view: &PodView, now: Option<&PodView>) {
    let Some(pod) = &view.pod else { return };
    let now = now.and_then(|view| view.pod.as_ref());
    if now.is_some_and(|now| Arc::ptr_eq(now, pod)) {
        return;
    }
    let (namespace, name_of_pod) = (&*view.key.namespace, &*view.key.name);
    for container in pod.spec.iter().flat_map(all_containers) {
        let kept = now.and_then(|now| any_container_of(now, &container.name));
        for kind in [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness] {
            let is_kept = kept.as_ref().is_some_and(|kept| kind.of(kept).is_some());
            if kind.of(&container).is_none() || is_kept {
                continue;
            }
            let (name, kind) = (&*container.name, probe_type(kind));
            for result in [SUCCESSFUL, FAILED, UNKNOWN] {
                let labels = [name, namespace, name_of_pod, view.uid.as_str(), kind, result];
                metrics().forget_probes(&labels, &[name, namespace, name_of_pod, kind]);
            }
        }
    }
}
