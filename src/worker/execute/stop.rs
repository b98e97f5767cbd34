//! `KillContainer` and `KillPod`.

use super::{Host, Request, blocking, error_chain, hooks::Hooked};
use crate::{
    blocking::PODS,
    cri::CriError,
    model::{EventKind, PodKey, SandboxId, k8s},
    plan::{KillContainer, KillPod, MIN_STOP_SECONDS, Outcome, Restart, Step},
    podspec::{container_of, pod_cgroup_name},
};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::time::Duration;
use tokio::{sync::watch, time::Instant};

pub(super) async fn kill_container(
    host: &Host,
    request: &Request,
    kill: &KillContainer,
) -> Outcome {
    match stop_container(host, request, kill).await {
        Ok(()) => {
            let exit_matters = kill.restart == Restart::ByPolicy;
            Outcome::ContainerKilled { uid: kill.uid.clone(), id: kill.id.clone(), exit_matters }
        }
        Err(error) => {
            let step = Step::KillContainer { container: kill.name.clone(), id: kill.id.clone() };
            Outcome::Failed(request.failure(step, "KillContainerError", error.message()))
        }
    }
}

pub(super) async fn kill_pod(host: &Host, request: &Request, kill: &KillPod) -> Outcome {
    match try_kill_pod(host, request, kill).await {
        Ok(sandboxes) => Outcome::PodKilled {
            uid: kill.uid.clone(),
            containers: kill.containers().map(|c| c.id.clone()).collect(),
            sandboxes: sandboxes.to_vec(),
            exit_matters: kill.exit_matters(),
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
///
/// All preStop hooks begin at once. A container is stopped when its hook has ended and it is the
/// turn of its group. Returns the sandboxes that it has stopped: all, or none if the end of the pod
/// has overtaken it.
async fn try_kill_pod<'a>(
    host: &Host,
    request: &Request,
    kill: &'a KillPod,
) -> Result<&'a [SandboxId], CriError> {
    let begun = Instant::now();
    request.stop_control.begin(kill.containers().map(|container| &container.id));
    let turn = watch::Sender::new(0);
    let kills: FuturesUnordered<_> = kill
        .groups
        .iter()
        .enumerate()
        .flat_map(|(group, containers)| containers.iter().map(move |kill| (group, kill)))
        .map(|(group, kill)| {
            let mut turn = turn.subscribe();
            Box::pin(async move {
                host.events.record(kill.event.clone());
                pre_stop(host, request, kill).await;
                request.stop_control.end_hook(&kill.id);
                // The sender lives as long as this future.
                let came = turn.wait_for(|turn| *turn >= group).await.is_ok();
                debug_assert!(came, "the turns ended early");
                (group, stop(host, request, kill, begun.elapsed()).await)
            })
        })
        .collect();
    let stopped = in_turns(kills, &kill.groups, &turn).await;
    let sandboxes = if request.stop_control.end() { &kill.sandboxes[..] } else { &[] };
    let mut result = stopped?;
    for id in sandboxes {
        result = result.and(present(host.stop_sandbox(request, id).await)?);
    }
    result.map(|()| sandboxes)
}

/// Awaits the kills, and gives each group its turn when the one before it has ended. When the
/// runtime can't be reached, the group that has its turn is awaited to its end, and what is left of
/// the others, their hooks, is dropped.
async fn in_turns<F: Future<Output = (usize, Result<(), CriError>)>>(
    mut kills: FuturesUnordered<F>,
    groups: &[Vec<KillContainer>],
    turn: &watch::Sender<usize>,
) -> Result<Result<(), CriError>, CriError> {
    let mut left: Vec<usize> = groups.iter().map(Vec::len).collect();
    let (mut result, mut away) = (Ok(()), Ok(()));
    while let Some((group, stopped)) = kills.next().await {
        match present(stopped) {
            Ok(stopped) => result = result.and(stopped),
            Err(error) => away = Err(error),
        }
        left[group] -= 1;
        if left[group] == 0 {
            away.clone()?;
            turn.send_replace(group + 1);
        }
    }
    Ok(result)
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

/// Calls the preStop hook of a container, for as long as its grace period at most. A hook that
/// fails or takes longer changes nothing. If an earlier stop has called the hook, it is not called
/// again.
async fn pre_stop(host: &Host, request: &Request, kill: &KillContainer) {
    let grace = Duration::from_secs(kill.grace_seconds.into());
    if let Some(earlier) = request.earlier_stop.as_ref().filter(|stop| stop.stops(&kill.id)) {
        let grace = if kill.pre_stop { grace } else { Duration::ZERO };
        return earlier.take_over(&kill.id, grace, &request.stop_control).await;
    }
    let Some(pod) = request.pod.as_deref().filter(|_| kill.pre_stop) else { return };
    let Some(container) = container_of(pod, &kill.name) else { return };
    let lifecycle = container.lifecycle.as_ref();
    let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else { return };
    let hooked = Hooked { host, request, pod, container, id: &kill.id };
    // Both are cancel-safe.
    let ended = tokio::select! {
        biased;
        ended = tokio::time::timeout(grace, Box::pin(hooked.call(hook, Some(grace)))) => {
            ended.map_err(|_| "its preStop hook took longer than its grace period")
        }
        () = request.stop_control.wait_cut() => {
            Err("its preStop hook was ended before its grace period")
        }
    };
    let failure = match ended {
        Ok(Ok(())) => return,
        // A sleep may be as long as the grace period.
        Err(_) if hook.sleep.is_some() => return,
        Ok(Err(failed)) => failed.to_string(),
        Err(too_long) => too_long.to_owned(),
    };
    tracing::info!(pod = %request.key, container = %kill.name, "{failure}");
    hooked.event(EventKind::Warning, "FailedPreStopHook", "PreStopHook failed");
}

/// Records the event, calls the hook, and stops the container in the time that is left.
pub(super) async fn stop_container(
    host: &Host,
    request: &Request,
    kill: &KillContainer,
) -> Result<(), CriError> {
    let begun = Instant::now();
    request.stop_control.begin([&kill.id]);
    host.events.record(kill.event.clone());
    pre_stop(host, request, kill).await;
    request.stop_control.end_hook(&kill.id);
    stop(host, request, kill, begun.elapsed()).await
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
