//! Conditions of a pod, with transition times that change only when the status does.

use super::{
    StatusInput,
    containers::{Statuses, init_of, regular_of},
    time,
};
use crate::{
    model::{ContainerState, Now, SandboxState, k8s},
    plan::serves,
    podspec::is_sidecar,
};

const OURS: [&str; 9] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "AllContainersRestarting",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
];

/// A condition before it has times.
struct Finding<'a> {
    status: bool,
    reason: Option<&'a str>,
    message: Option<String>,
}

impl<'a> Finding<'a> {
    fn yes() -> Self {
        Self { status: true, reason: None, message: None }
    }

    fn no(reason: &'a str, message: Option<String>) -> Self {
        Self { status: false, reason: Some(reason), message }
    }
}

/// All conditions: ours in the kubelet's order, then those that somebody else put into the previous
/// status.
pub(super) fn conditions(
    input: &StatusInput<'_>,
    statuses: &Statuses,
    phase: &str,
    now: Now,
) -> Vec<k8s::PodCondition> {
    let containers = containers_ready(input, statuses, phase);
    let ready = pod_ready(input, &containers);
    let start = match has_sandbox(input) {
        true => Finding::yes(),
        false => Finding { status: false, reason: None, message: None },
    };
    let mut findings = vec![
        ("PodReadyToStartContainers", start),
        ("Initialized", initialized(input, statuses, phase)),
        ("Ready", ready),
        ("ContainersReady", containers),
        ("PodScheduled", Finding::yes()),
    ];
    let restarting = input.plan.is_some_and(|plan| {
        plan.waiting.values().any(|waiting| waiting.reason == "RestartingAllContainers")
    });
    if may_restart_all(input) {
        let reason = restarting.then_some("RestartAllContainersStarted");
        let message = restarting.then(|| "container exited with restart policy rule".to_owned());
        findings.push(("AllContainersRestarting", Finding { status: restarting, reason, message }));
    }
    let disruption = input.terminal.and_then(|terminal| terminal.disruption.as_ref());
    if let Some((reason, message)) = disruption {
        let (reason, message) = (Some(reason.as_str()), Some(message.clone()));
        findings.push(("DisruptionTarget", Finding { status: true, reason, message }));
    }
    if let (None, Some(wait)) = (input.terminal, input.resize_wait) {
        let (reason, message) = (Some(wait.reason), Some(wait.message.clone()));
        findings.push(("PodResizePending", Finding { status: true, reason, message }));
    }
    if let (None, Some(error)) = (input.terminal, input.memory.resize_of(input.uid)) {
        let (reason, message) = (error.map(|_| "Error"), error.map(ToOwned::to_owned));
        findings.push(("PodResizeInProgress", Finding { status: true, reason, message }));
    }
    let mut conditions: Vec<_> = findings
        .into_iter()
        .map(|(type_, finding)| condition(input, type_, finding, now))
        .collect();
    let previous = input.previous.and_then(|previous| previous.conditions.as_ref());
    let foreign = previous.into_iter().flatten().filter(|c| !OURS.contains(&c.type_.as_str()));
    conditions.extend(foreign.cloned());
    conditions
}

fn condition(
    input: &StatusInput<'_>,
    type_: &str,
    finding: Finding<'_>,
    now: Now,
) -> k8s::PodCondition {
    let status = if finding.status { "True" } else { "False" };
    let is_same = |condition: &&k8s::PodCondition| condition.status == status;
    let previous = previous_condition(input, type_).filter(is_same);
    // The first status keeps the time at which the scheduler has bound a pod of the API server.
    let previous = previous.or_else(|| written_condition(input, type_).filter(is_same));
    let since = previous.and_then(|previous| previous.last_transition_time.clone());
    k8s::PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: finding.reason.map(ToOwned::to_owned),
        message: finding.message,
        last_transition_time: Some(since.unwrap_or_else(|| time(now.wall))),
        observed_generation: input.pod.metadata.generation,
        ..Default::default()
    }
}

pub(super) fn previous_condition<'a>(
    input: &StatusInput<'a>,
    type_: &str,
) -> Option<&'a k8s::PodCondition> {
    input.previous?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}

/// The condition of a readiness gate, which somebody else writes.
fn gate_condition<'a>(input: &StatusInput<'a>, type_: &str) -> Option<&'a k8s::PodCondition> {
    written_condition(input, type_).or_else(|| previous_condition(input, type_))
}

/// A condition that somebody else has written, which a pod of the API server brings.
fn written_condition<'a>(input: &StatusInput<'a>, type_: &str) -> Option<&'a k8s::PodCondition> {
    let written = input.pod.status.as_ref()?.conditions.as_ref()?;
    written.iter().find(|condition| condition.type_ == type_)
}

/// True when a restart rule of a container may restart all containers of the pod.
fn may_restart_all(input: &StatusInput<'_>) -> bool {
    let containers = init_of(input.pod).iter().chain(regular_of(input.pod));
    let mut rules = containers.flat_map(|one| one.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == "RestartAllContainers")
}

fn has_sandbox(input: &StatusInput<'_>) -> bool {
    input.terminal.is_none()
        && input.observed.sandboxes.iter().any(|sandbox| {
            sandbox.uid == *input.uid
                && sandbox.state == SandboxState::Ready
                && serves(sandbox, input.pod)
        })
}

fn initialized(input: &StatusInput<'_>, statuses: &Statuses, phase: &str) -> Finding<'static> {
    if phase == "Succeeded" {
        return Finding { status: true, reason: Some("PodCompleted"), message: None };
    }
    let started = regular_of(input.pod).iter().any(|container| {
        input.observed.instances(input.uid, &container.name).any(|c| match c.state {
            ContainerState::Running { .. } | ContainerState::Exited { .. } => true,
            ContainerState::Created | ContainerState::Unknown => false,
        })
    });
    let before = previous_condition(input, "Initialized");
    if started || before.is_some_and(|condition| condition.status == "True") {
        return Finding::yes();
    }
    let incomplete = init_of(input.pod).iter().zip(&statuses.init).filter(|(container, status)| {
        if is_sidecar(container) { status.started != Some(true) } else { !status.ready }
    });
    match names(incomplete.map(|(container, _)| container.name.as_str())) {
        None => Finding::yes(),
        Some(names) => {
            let message = format!("containers with incomplete status: {names}");
            Finding::no("ContainersNotInitialized", Some(message))
        }
    }
}

fn containers_ready(input: &StatusInput<'_>, statuses: &Statuses, phase: &str) -> Finding<'static> {
    match phase {
        "Succeeded" => return Finding::no("PodCompleted", None),
        "Failed" => return Finding::no("PodFailed", None),
        _ => {}
    }
    let sidecars = init_of(input.pod)
        .iter()
        .zip(&statuses.init)
        .filter(|(container, _)| is_sidecar(container));
    let regular = regular_of(input.pod).iter().zip(&statuses.regular);
    let unready = sidecars.chain(regular).filter(|(_, status)| !status.ready);
    match names(unready.map(|(container, _)| container.name.as_str())) {
        None => Finding::yes(),
        Some(names) => {
            let message = format!("containers with unready status: {names}");
            Finding::no("ContainersNotReady", Some(message))
        }
    }
}

fn pod_ready(input: &StatusInput<'_>, containers: &Finding<'static>) -> Finding<'static> {
    if !containers.status {
        return Finding { message: containers.message.clone(), ..*containers };
    }
    let gates = input.pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    let closed: Vec<String> = gates
        .into_iter()
        .flatten()
        .filter_map(|gate| {
            let gate = &gate.condition_type;
            match gate_condition(input, gate) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{gate}\" does not exist."
                )),
                Some(condition) if condition.status == "True" => None,
                Some(condition) => Some(format!(
                    "the status of pod readiness gate \"{gate}\" is not \"True\", but {}",
                    condition.status
                )),
            }
        })
        .collect();
    if closed.is_empty() {
        return Finding::yes();
    }
    Finding::no("ReadinessGatesNotReady", Some(closed.join(", ")))
}

/// `[a b]`; `None` for no name.
fn names<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| format!("[{}]", names.join(" ")))
}
