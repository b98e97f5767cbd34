//! `PodStatus` as the kubelet would report it: a pure function of the spec, what runs and the plan.
//!
//! The worker calls [`pod_status`] after each pass and hands the result back as `previous` the next
//! time: transition times, IPs of a pod that is going away and the last known states live there.
//! Writing statuses anywhere is not done here.

mod conditions;
mod containers;
mod display;
mod phase;
mod resources;

pub use containers::container_instances;
pub use display::{container_statuses, display_status, present_run, ready_column, restarts};

use crate::{
    model::{Hold, Now, ObservedPod, Order as _, PodUid, ResizeWait, SandboxState, k8s},
    plan::{PodMemory, PodPlan, Terminal},
    podspec::{is_host_network, is_static, primary_ips, qos_class, reported_start},
};
use containers::Statuses;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::net::IpAddr;

/// What the status of one incarnation is made from.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// Metadata and spec as running.
    pub pod: &'a k8s::Pod,
    pub uid: &'a PodUid,
    /// What runs under its name: [`crate::plan::Picture::shared`].
    pub observed: &'a ObservedPod,
    /// The last plan of the name; `None` for an incarnation that it was not made for (a retiring
    /// one).
    pub plan: Option<&'a PodPlan>,
    /// What is remembered of the name: which containers have started and are ready.
    pub memory: &'a PodMemory,
    /// Why its cpu and memory are not changed yet.
    pub resize_wait: Option<&'a ResizeWait>,
    /// How it ended for good: [`PodPlan::terminal`], else from its record.
    pub terminal: Option<&'a Terminal>,
    /// When it was accepted, from its record.
    pub started_at: Option<Timestamp>,
    pub terminating: bool,
    /// The status reported last for the same uid (kept in its record over a restart of the agent).
    pub previous: Option<&'a k8s::PodStatus>,
}

/// What statuses of all pods have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusContext {
    /// Name of the runtime (CRI `Version`): `containerd`.
    pub runtime_name: String,
    /// The node's addresses, primary first; empty when there is no default route (yet).
    pub host_ips: Vec<IpAddr>,
    /// Whether the pod's runtime handler can make mounts read-only with everything below them.
    pub recursive_read_only: bool,
}

/// The status of one incarnation, as the kubelet would report it.
#[must_use]
pub fn pod_status(input: &StatusInput<'_>, cx: &StatusContext, now: Now) -> k8s::PodStatus {
    if let Some(terminal) = input.terminal.filter(|terminal| is_refusal(input, terminal)) {
        return failed_status(input.pod, terminal, input.previous, now);
    }
    let statuses = containers::statuses(input, cx);
    let phase = phase::phase(input, &statuses);
    let conditions = conditions::conditions(input, &statuses, phase, now);
    let previous = input.previous;
    let (reason, message) = match input.terminal {
        Some(terminal) => (terminal.reason.clone(), terminal.message.clone()),
        None => (None, None),
    };
    let ips = pod_ips(input, cx);
    let (allocated_resources, resources) = resources::pod_resources(input);
    let host_ips: Vec<String> = cx.host_ips.iter().map(ToString::to_string).collect();
    let spec = input.pod.spec.as_ref();
    let qos = previous
        .and_then(|previous| previous.qos_class.clone())
        .or_else(|| Some(qos_class(spec?).as_str().to_owned()));
    let Statuses { init, regular, ephemeral } = statuses;
    k8s::PodStatus {
        phase: Some(phase.to_owned()),
        reason,
        message,
        conditions: Some(conditions),
        container_statuses: (!regular.is_empty()).then(|| sorted(regular)),
        init_container_statuses: (!init.is_empty()).then_some(init),
        ephemeral_container_statuses: (!ephemeral.is_empty()).then(|| sorted(ephemeral)),
        host_ip: host_ips.first().cloned(),
        host_ips: (!host_ips.is_empty())
            .then(|| host_ips.into_iter().map(|ip| k8s::HostIP { ip }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: (!ips.is_empty()).then(|| ips.into_iter().map(|ip| k8s::PodIP { ip }).collect()),
        qos_class: qos,
        start_time: Some(start_time(input, now)),
        allocated_resources,
        resources,
        observed_generation: input.pod.metadata.generation,
        ..Default::default()
    }
}

/// When the agent has first told of the pod. For a pod of the API server it never moves, although
/// its record is made later, when nothing that it waited for is missing any more.
fn start_time(input: &StatusInput<'_>, now: Now) -> Time {
    let before = input.previous.and_then(|previous| previous.start_time.as_ref());
    let before = before.map(|time| time.0);
    let known = match is_static(input.pod) {
        true => input.started_at.or(before),
        false => input.started_at.into_iter().chain(before).chain(reported_start(input.pod)).min(),
    };
    time(known.unwrap_or(now.wall))
}

/// True when a pod of the API server was refused, and has not run before that. The kubelet reports
/// all other ends with conditions, containers and addresses, also of a pod that got no container.
fn is_refusal(input: &StatusInput<'_>, terminal: &Terminal) -> bool {
    let observed = input.observed.containers.iter().any(|one| one.uid == *input.uid);
    let previous = input.previous.into_iter();
    let mut before = previous.flat_map(|previous| {
        let init = previous.init_container_statuses.iter().flatten();
        init.chain(previous.container_statuses.iter().flatten())
    });
    let had_container = before.any(|status| status.container_id.is_some());
    !is_static(input.pod) && terminal.is_refusal() && !observed && !had_container
}

/// The status of a pod that is held, once nothing of it is left: it takes the place of the former
/// one, as the kubelet's does for a pod that it rejects. `started_at` is taken from `previous`, or
/// is now.
#[must_use]
pub fn held_status(
    pod: &k8s::Pod,
    hold: &Hold,
    previous: Option<&k8s::PodStatus>,
    now: Now,
) -> k8s::PodStatus {
    failed_status(pod, &Terminal::by_hold(hold), previous, now)
}

fn failed_status(
    pod: &k8s::Pod,
    terminal: &Terminal,
    previous: Option<&k8s::PodStatus>,
    now: Now,
) -> k8s::PodStatus {
    let disruption = terminal.disruption.as_ref().map(|(reason, message)| {
        let mut before = previous.iter().flat_map(|status| status.conditions.iter().flatten());
        let before = before.find(|condition| condition.type_ == "DisruptionTarget");
        vec![k8s::PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.clone()),
            message: Some(message.clone()),
            last_transition_time: before
                .and_then(|condition| condition.last_transition_time.clone())
                .or_else(|| Some(time(now.wall))),
            observed_generation: pod.metadata.generation,
            ..Default::default()
        }]
    });
    k8s::PodStatus {
        phase: Some(terminal.phase.as_str().to_owned()),
        reason: terminal.reason.clone(),
        message: terminal.message.clone(),
        conditions: disruption,
        qos_class: pod.spec.as_ref().map(|spec| qos_class(spec).as_str().to_owned()),
        start_time: previous
            .and_then(|previous| previous.start_time.clone())
            .or_else(|| Some(time(now.wall))),
        observed_generation: pod.metadata.generation,
        ..Default::default()
    }
}

fn sorted(mut statuses: Vec<k8s::ContainerStatus>) -> Vec<k8s::ContainerStatus> {
    statuses.order_by(|a, b| a.name.cmp(&b.name));
    statuses
}

/// The addresses of a pod. They stay in the status of a pod that has lost its sandbox.
fn pod_ips(input: &StatusInput<'_>, cx: &StatusContext) -> Vec<String> {
    let pick = |ips: &[IpAddr]| -> Vec<String> {
        primary_ips(ips, &cx.host_ips).iter().map(ToString::to_string).collect()
    };
    if is_host_network(input.pod) {
        return pick(&cx.host_ips);
    }
    let ready = input
        .observed
        .sandboxes
        .iter()
        .filter(|s| s.uid == *input.uid && s.state == SandboxState::Ready)
        .max_by_key(|s| s.attempt);
    let current = ready.map(|sandbox| pick(&sandbox.ips)).unwrap_or_default();
    if !current.is_empty() {
        return current;
    }
    let kept = input.previous.and_then(|previous| previous.pod_ips.as_ref());
    kept.map(|ips| ips.iter().map(|ip| ip.ip.clone()).collect()).unwrap_or_default()
}

/// A time in a status: whole seconds, as the API stores them.
fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests;
