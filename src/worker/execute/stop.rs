//! `KillContainer` and `KillPod`.

use super::{Host, Request, blocking, error_chain};
use crate::{
    blocking::PODS,
    cri::CriError,
    model::{EventKind, PodKey, SandboxId, k8s},
    plan::{KillContainer, KillPod, MIN_STOP_SECONDS, Outcome, Step},
    podspec::pod_cgroup_name,
};
use std::time::Duration;
use tokio::time::Instant;

pub(super) async fn kill_container(
    host: &Host,
    request: &Request,
    kill: &KillContainer,
) -> Outcome {
    host.events.record(kill.event.clone());
    match stop(host, request, kill, Duration::ZERO).await {
        Ok(()) => {
            Outcome::ContainerKilled { uid: kill.uid.clone(), id: kill.id.clone(), inspected: None }
        }
        Err(error) => {
            let step = Step::KillContainer { container: kill.name.clone(), id: kill.id.clone() };
            Outcome::Failed(request.failure(step, "KillContainerError", error.message()))
        }
    }
}

pub(super) async fn kill_pod(host: &Host, request: &Request, kill: &KillPod) -> Outcome {
    match try_kill_pod(host, request, kill).await {
        Ok(()) => Outcome::PodKilled {
            uid: kill.uid.clone(),
            containers: kill.containers().map(|c| c.id.clone()).collect(),
            sandboxes: kill.sandboxes.clone(),
        },
        Err(error) => {
            let message = format!("error killing pod: {error}");
            host.record(request, EventKind::Warning, "FailedKillPod", message.clone());
            Outcome::Failed(request.failure(Step::KillPod, "FailedKillPod", message))
        }
    }
}

impl Host {
    /// Sends SIGKILL to every process of the pod, without the runtime. Processes that survive are
    /// stopped by the next request to the runtime. This runs on the event loop and blocks it,
    /// because a fork bomb may leave no free thread.
    pub(in crate::worker) fn kill_at_once(&self, key: &PodKey, pod: &k8s::Pod) {
        if let Err(error) = self.cgroups.kill_pod(&pod_cgroup_name(pod)) {
            let err = error_chain(&error);
            tracing::warn!(pod = %key, err, "cannot kill its cgroup");
        }
    }
}

/// Stops every container and sandbox, even if one of them fails, as the kubelet does: stopping the
/// sandbox ends its remaining containers. If the runtime can't be reached, the action ends.
async fn try_kill_pod(host: &Host, request: &Request, kill: &KillPod) -> Result<(), CriError> {
    let begun = Instant::now();
    let mut result = Ok(());
    for group in &kill.groups {
        let elapsed = begun.elapsed();
        for kill in group {
            host.events.record(kill.event.clone());
        }
        let stops = group.iter().map(|kill| stop(host, request, kill, elapsed));
        for stopped in all(stops.collect()).await {
            result = result.and(present(stopped)?);
        }
    }
    for id in &kill.sandboxes {
        result = result.and(present(host.stop_sandbox(request, id).await)?);
    }
    result
}

impl Host {
    /// Stops a sandbox. If a power loss has damaged CNI's cached result for its network, no try
    /// would ever succeed. So the cached result is removed, and the next try does not need it.
    pub(super) async fn stop_sandbox(
        &self,
        request: &Request,
        id: &SandboxId,
    ) -> Result<(), CriError> {
        let deadline = self.settings.request_timeout;
        let call = Box::pin(self.runtime.stop_sandbox(id));
        let answer = request.awaited("StopPodSandbox", deadline, call).await;
        if let Err(error) = &answer
            && error.message().contains("cached result")
        {
            let (files, sandbox) = (self.files.clone(), id.clone());
            match blocking(&PODS, move || files.remove_damaged_network_results(&sandbox)).await {
                Ok(removed) => {
                    for path in removed {
                        tracing::warn!(pod = %request.key, "removed {path:?}, which CNI could not read any more");
                    }
                }
                Err(error) => tracing::warn!(pod = %request.key, "{}", error.message()),
            }
        }
        answer
    }
}

/// An error that says that the runtime can't be reached ends an action. Every other error is a
/// result.
fn present(answer: Result<(), CriError>) -> Result<Result<(), CriError>, CriError> {
    match answer {
        Err(CriError::Unavailable { .. }) => answer.map(Ok),
        Ok(()) | Err(_) => Ok(answer),
    }
}

async fn stop(
    host: &Host,
    request: &Request,
    kill: &KillContainer,
    elapsed: Duration,
) -> Result<(), CriError> {
    let used = u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX);
    let grace = kill.grace_seconds.saturating_sub(used).max(MIN_STOP_SECONDS);
    let deadline = host.settings.request_timeout + Duration::from_secs(grace.into());
    let call = Box::pin(host.runtime.stop_container(&kill.id, grace.into()));
    request.awaited(&format!("StopContainer {}", kill.name), deadline, call).await
}

/// Awaits all futures at once and gives their results in order.
async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, result) in pinned.iter_mut().zip(&mut results) {
            if result.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(context)
            {
                *result = Some(output);
            }
        }
        if results.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
