//! `Resize`: other cpu and memory for containers that run, and for the cgroup of their pod.

use super::{Host, Request, error_chain};
use crate::{
    cgroup::CgroupError,
    cri::{CriError, to_cri},
    model::EventKind,
    plan::{Outcome, Resize, ResizeContainer, Step, resize_details},
    podspec::{cgroup_amounts, container_of, pod_cgroup, pod_cgroup_name},
};
use thiserror::Error;

/// Why a pod was not resized.
#[derive(Debug, Error)]
enum ResizeError {
    /// The kernel would kill the container, or refuse the limit.
    #[error(
        "attempting to set container {container:?} memory limit ({limit}) below current usage ({used})"
    )]
    BelowUse { container: Box<str>, limit: i64, used: u64 },
    #[error(transparent)]
    Runtime(#[from] CriError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

pub(super) async fn resize(host: &Host, request: &Request, resize: &Resize) -> Outcome {
    let (uid, mut done) = (resize.uid.clone(), Vec::new());
    let result = try_resize(host, request, resize, &mut done).await;
    let (kind, reason, how) = match &result {
        Ok(()) if !resize.finish => {
            return Outcome::Resized { uid, containers: done, cgroup: None };
        }
        Ok(()) => (EventKind::Normal, "ResizeCompleted", "completed"),
        Err(_) => (EventKind::Warning, "ResizeError", "error"),
    };
    let error = result.as_ref().err().map(|error| error_chain(error));
    if let Some(pod) = &request.pod {
        let details = resize_details(pod, error.as_deref());
        host.record(request, kind, reason, format!("Pod resize {how}: {details}"));
    }
    match error {
        None => {
            let spec = request.pod.as_ref().and_then(|pod| pod.spec.as_ref());
            let cgroup = Some(spec.map(cgroup_amounts).unwrap_or_default());
            Outcome::Resized { uid, containers: done, cgroup }
        }
        Some(message) => Outcome::Failed(request.failure(Step::Resize { done }, reason, message)),
    }
}

async fn try_resize(
    host: &Host,
    request: &Request,
    resize: &Resize,
    done: &mut Vec<ResizeContainer>,
) -> Result<(), ResizeError> {
    let Some(pod) = request.pod.as_deref() else { return Ok(()) };
    let Some(spec) = &pod.spec else { return Ok(()) };
    let (name, values) = (pod_cgroup_name(pod), pod_cgroup(spec, &host.settings.cgroup));
    host.cgroups.raise_pod(&name, &values).await?;
    for order in &resize.containers {
        let Some(container) = container_of(pod, &order.name) else { continue };
        fits(host, order).await?;
        let resources = to_cri::resized(pod, container, &host.settings.facts);
        let call = Box::pin(host.runtime.update_container_resources(&order.id, resources));
        request.awaited("UpdateContainerResources", host.settings.request_timeout, call).await?;
        done.push(order.clone());
    }
    if resize.finish {
        host.cgroups.set_pod(&name, &values).await?;
    }
    Ok(())
}

/// Whether a container uses no more memory than it is to have. On cgroup v2 the kernel would kill
/// it.
async fn fits(host: &Host, order: &ResizeContainer) -> Result<(), ResizeError> {
    let Some(limit) = order.to.memory_bound() else { return Ok(()) };
    if order.from.memory_bound().is_some_and(|before| before <= limit) {
        return Ok(());
    }
    let used = host.runtime.working_set(&order.id).await?;
    if i64::try_from(used).is_ok_and(|used| used <= limit) {
        return Ok(());
    }
    Err(ResizeError::BelowUse { container: order.name.clone(), limit, used })
}
