//! Whether a container that has ended starts again, and when.

use super::{
    Action, ContainerKind, Crashed, KillPod, KillPurpose, PodPlan, Pull, Restart, StartContainer,
    backoff::{Exited, ImageBackOff, ImageTurn},
    ephemeral::target_id,
    kill::{Stop, kind_of, remove},
    memory::Stage,
    name::Cx,
    objects::environment_ready,
    pod::restart_policy,
};
use crate::model::{
    ContainerState, EventKind, ObservedContainer, ObservedSandbox, format_duration, k8s,
};
use crate::podspec::{
    NeededImage, back_off_hash, container_hash, container_of, is_sidecar, needed_images,
};

/// What the restart policies say about an instance that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Restart,
    /// All containers of the pod start again.
    RestartAll,
    Stay,
}

/// Applies the container's rules, its own restart policy and the pod's, in this order. An instance
/// that was killed in order to be replaced starts again in any case; one whose probe failed, unless
/// the policy is `Never`.
pub(crate) fn verdict(
    cx: &Cx<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
) -> Verdict {
    let Some(exit_code) = exit_code(cx, instance) else { return Verdict::Stay };
    let memory = cx.memory.container(&container.name);
    if memory.forced.as_ref() == Some(&instance.id) {
        return Verdict::Restart;
    }
    if memory.failed_probe.as_ref() == Some(&instance.id)
        && container_policy(cx, container) != "Never"
    {
        return Verdict::Restart;
    }
    let policy = match &container.restart_policy {
        Some(own) => {
            let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
            match rules.iter().find(|rule| matches(rule, exit_code)).map(|r| r.action.as_str()) {
                Some("Restart") => return Verdict::Restart,
                Some("RestartAllContainers") => return Verdict::RestartAll,
                Some(_) | None => own.as_str(),
            }
        }
        None => restart_policy(cx),
    };
    match policy {
        "Never" => Verdict::Stay,
        "OnFailure" if exit_code == 0 && !ran_out_of_memory(cx, container, instance) => {
            Verdict::Stay
        }
        _ => Verdict::Restart,
    }
}

/// The container's own restart policy, or else the pod's.
pub(crate) fn container_policy<'a>(cx: &Cx<'a>, container: &'a k8s::Container) -> &'a str {
    container.restart_policy.as_deref().unwrap_or_else(|| restart_policy(cx))
}

/// The exit code that counts, also one that only an event tells. A container that was ended by a
/// shutdown of the machine has not succeeded, whatever its exit code after SIGTERM is.
pub(crate) fn exit_code(cx: &Cx<'_>, instance: &ObservedContainer) -> Option<i32> {
    const SIGTERM: i32 = 143;
    let exit_code = match instance.state {
        ContainerState::Exited { exit_code, .. } => exit_code,
        ContainerState::Running { .. } => instance.ended_with?,
        ContainerState::Created | ContainerState::Unknown => return None,
    };
    let known = cx.input.incarnation(cx.uid);
    let interrupted = known.is_some_and(|known| known.interrupted.contains(&instance.id));
    Some(if interrupted && exit_code == 0 { SIGTERM } else { exit_code })
}

fn matches(rule: &k8s::ContainerRestartRule, exit_code: i32) -> bool {
    let Some(codes) = &rule.exit_codes else { return false };
    let listed = codes.values.as_ref().is_some_and(|values| values.contains(&exit_code));
    match codes.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

/// True when a plain init container has failed. Running out of memory counts as a failure even with
/// exit code 0.
pub(crate) fn is_init_failure(container: &k8s::Container, instance: &ObservedContainer) -> bool {
    match &instance.state {
        ContainerState::Exited { exit_code, reason, .. } => {
            !is_sidecar(container) && (*exit_code != 0 || &**reason == "OOMKilled")
        }
        ContainerState::Created | ContainerState::Running { .. } | ContainerState::Unknown => false,
    }
}

/// True when a plain init container has done its work, so that no rule restarts anything.
fn is_init_success(cx: &Cx<'_>, container: &k8s::Container, instance: &ObservedContainer) -> bool {
    is_plain_init(cx, container) && !is_init_failure(container, instance)
}

/// True when a plain init container with exit code 0 has failed.
fn ran_out_of_memory(
    cx: &Cx<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
) -> bool {
    is_plain_init(cx, container) && is_init_failure(container, instance)
}

fn is_plain_init(cx: &Cx<'_>, container: &k8s::Container) -> bool {
    kind_of(Some(cx.pod), &container.name) == ContainerKind::Init
}

/// True when the container was made from another definition (name or image).
pub(crate) fn is_changed(container: &k8s::Container, instance: &ObservedContainer) -> bool {
    !instance.hash.is_empty() && *instance.hash != *container_hash(container)
}

/// Starts a container that does not run, or sets why it waits.
pub(crate) fn plan_start(
    cx: &Cx<'_>,
    container: &k8s::Container,
    kind: ContainerKind,
    sandbox: &ObservedSandbox,
    plan: &mut PodPlan,
) {
    let newest = cx.own.newest(&container.name);
    let restart_of = newest.filter(|instance| has_crashed(cx, instance));
    let restart_of = restart_of.map(|instance| Crashed::of(cx, container, instance));
    if let Some(crashed) = &restart_of
        && !plan_crash_back_off(cx, &container.name, kind, crashed, plan)
    {
        return;
    }
    let created = newest.filter(|instance| instance.state == ContainerState::Created);
    if created.is_none() && !environment_ready(cx, container, kind, plan) {
        return;
    }
    let Some(pull) = plan_failure_back_off(cx, container, kind, plan) else { return };
    let unfit = created
        .filter(|instance| instance.sandbox_id != sandbox.id || is_changed(container, instance));
    // All reasons to wait are checked before anything is planned. Otherwise half of a start would
    // be repeated again and again.
    if unfit.is_some() && cx.held_back(Stage::Remove, plan) {
        return;
    }
    if !plan.actions.iter().any(|action| matches!(action, Action::PreparePod { .. })) {
        if cx.held_back(Stage::Prepare, plan) {
            return;
        }
        plan.actions.push(Action::PreparePod { uid: cx.uid.clone() });
    }
    let memory = cx.memory.container(&container.name);
    let (created, restart_count) = match newest {
        Some(instance) if created.is_some() && unfit.is_none() => {
            (Some(instance.id.clone()), Some(instance.restart_count))
        }
        // A created instance may have run: after a loss of power the runtime may not know of its
        // start. It counts, as with the kubelet, and the next one gets a log of its own.
        Some(instance) => {
            plan.actions.extend(unfit.map(|instance| remove(instance, true)));
            (None, memory.next_count.max(Some(instance.restart_count.saturating_add(1))))
        }
        None => (None, memory.next_count),
    };
    plan.actions.push(Action::StartContainer(StartContainer {
        uid: cx.uid.clone(),
        name: container.name.as_str().into(),
        kind,
        sandbox_id: sandbox.id.clone(),
        created,
        restart_count,
        pull,
        target: target_id(cx, &container.name, sandbox),
        restart_of,
    }));
}

/// True when the end of an instance counts as a crash. A person may want it restarted instead.
fn has_crashed(cx: &Cx<'_>, instance: &ObservedContainer) -> bool {
    let forced = cx.memory.container(&instance.name).forced.as_ref() == Some(&instance.id)
        || cx.memory.asked.contains(&instance.id);
    match instance.state {
        ContainerState::Exited { .. } => !forced,
        ContainerState::Running { .. } => !forced && instance.ended_with.is_some(),
        ContainerState::Created | ContainerState::Unknown => false,
    }
}

/// True when a running instance starts again now because an event tells its end, before the
/// runtime's own view shows that. Everything else waits for the view: a back-off shows how the
/// instance has ended, and so does a pod that has ended for good, whose log must be whole then.
///
/// Where processes outlive the first one, because they have no process namespace of their own, the
/// runtime kills them before the view shows the end: the successor waits for them. In the namespace
/// of the pod the end may be that of the whole sandbox besides.
pub(crate) fn restarts_at_once(
    cx: &Cx<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
) -> bool {
    let is_shared = |spec: &k8s::PodSpec| {
        spec.host_pid == Some(true) || spec.share_process_namespace == Some(true)
    };
    if instance.ended_with.is_none() || cx.pod.spec.as_ref().is_some_and(is_shared) {
        return false;
    }
    let crashed = Crashed::of(cx, container, instance);
    verdict(cx, container, instance) == Verdict::Restart
        && cx.memory.container(&container.name).ends.delay(&crashed.exited(), cx.now).is_zero()
}

impl Crashed {
    /// An instance that has ended, and the container as it starts next. While a resize of the pod
    /// waits, that has the resources of the record.
    fn of(cx: &Cx<'_>, container: &k8s::Container, instance: &ObservedContainer) -> Self {
        let waits = cx.input.orders.resize_wait.is_some();
        let known = cx.input.incarnation(cx.uid).filter(|_| waits);
        let recorded = known.and_then(|known| known.pod.as_deref());
        let recorded = recorded.and_then(|pod| container_of(pod, &container.name));
        let resources = recorded.unwrap_or(container).resources.as_ref();
        Self { id: instance.id.clone(), definition: back_off_hash(container, resources) }
    }

    pub(crate) fn exited(&self) -> Exited<'_> {
        Exited { id: self.id.as_str(), definition: Some(self.definition) }
    }
}

/// True when the crash-loop delay after the end of an instance is over.
fn plan_crash_back_off(
    cx: &Cx<'_>,
    name: &str,
    kind: ContainerKind,
    crashed: &Crashed,
    plan: &mut PodPlan,
) -> bool {
    let memory = cx.memory.container(name);
    let (ends, id) = (&memory.ends, crashed.id.as_str());
    let (finished, delay) = (ends.finished(id, cx.now), ends.delay(&crashed.exited(), cx.now));
    let by_probe = memory.failed_probe.as_ref() == Some(&crashed.id);
    if delay.is_zero() || by_probe && ends.outlived_delay(&crashed.exited(), cx.now) {
        return true;
    }
    // This is shown until the next instance runs, also while it is being started.
    let (pod, shown) = (cx.display(), format_duration(delay));
    let message = format!("back-off {shown} restarting failed container={name} pod={pod}");
    plan.wait(name, "CrashLoopBackOff", message);
    let due = finished.after(delay);
    if due <= cx.now.boot {
        return true;
    }
    plan.wake(due);
    let message = format!("Back-off restarting failed container {name} in pod {pod}");
    let event = cx.event(Some(kind.field_path(name)), EventKind::Warning, "BackOff", message);
    plan.notice(id, event);
    false
}

/// Whether the container may be started again after a failed start, and which images that start may
/// pull. `None`: not now.
fn plan_failure_back_off(
    cx: &Cx<'_>,
    container: &k8s::Container,
    kind: ContainerKind,
    plan: &mut PodPlan,
) -> Option<Pull> {
    let name = container.name.as_str();
    let failure = cx.memory.container(name).failure.as_ref();
    // The step that failed last is not repeated at once, even if a pull of the image is due.
    let held = failure.map(|f| f.retry.due()).filter(|due| *due > cx.now.boot);
    // The last failure is shown. The image's back-off limits pulls, whatever has failed since.
    let elsewhere = failure.filter(|failure| failure.image.is_none());
    let last_image = failure.and_then(|failure| failure.image.as_deref());
    let images: Vec<NeededImage<'_>> = needed_images(cx.pod, container).collect();
    let delayed: Vec<(&str, &ImageBackOff)> = images
        .iter()
        .filter_map(|needed| Some((needed.image, cx.memory.images.get(needed.image)?)))
        .collect();
    let shown = delayed.iter().find(|(image, _)| Some(*image) == last_image).or(delayed.first());
    match (shown, elsewhere, failure) {
        (Some((image, back_off)), None, _) => {
            show_back_off(cx, name, kind, (image, back_off), plan);
        }
        (_, Some(failure), _) | (None, None, Some(failure)) => {
            plan.wait(name, &failure.reason, failure.retry.message.clone());
        }
        (None, None, None) => {}
    }
    // Each start asks the registry for images of the policy `Always`. So a start that is only to
    // look for an image would defeat its back-off, or ask for the others in vain.
    let present_will_do = !images.iter().any(NeededImage::always_pulled);
    let mut no_pull = Vec::new();
    for (image, back_off) in delayed {
        match back_off.turn(present_will_do, cx.now) {
            ImageTurn::Wait(at) => {
                plan.wake(at);
                return None;
            }
            ImageTurn::Pull => {}
            ImageTurn::Look => no_pull.push(image.into()),
        }
    }
    if let Some(due) = held {
        plan.wake(due);
        return None;
    }
    Some(if !no_pull.is_empty() {
        Pull::NotNow(no_pull)
    } else if cx.input.memory.has_fetched(cx.uid, cx.pod, container) {
        Pull::Fetched
    } else {
        Pull::ByPolicy
    })
}

/// Shows that the pull of an image has failed, or that the next pull is delayed.
fn show_back_off(
    cx: &Cx<'_>,
    name: &str,
    kind: ContainerKind,
    (image, back_off): (&str, &ImageBackOff),
    plan: &mut PodPlan,
) {
    if !back_off.is_backing_off(cx.now) {
        plan.wait(name, &back_off.reason, back_off.message.clone());
        return;
    }
    let text = format!("Back-off pulling image \"{image}\"");
    let message = format!("{text}: {}: {}", back_off.reason, back_off.message);
    plan.wait(name, "ImagePullBackOff", message);
    let path = Some(kind.field_path(name));
    let event = cx.event(path.clone(), EventKind::Normal, "BackOff", text);
    plan.notice(back_off.occasion(), event);
    let failed = "Error: ImagePullBackOff".to_owned();
    let event = cx.event(path, EventKind::Warning, "Failed", failed);
    plan.notice(back_off.occasion(), event);
}

/// Carries out `RestartAllContainers`: stops and removes all containers, the one whose end asked
/// for it last. So an interrupted restart is found and finished. Ephemeral containers are stopped
/// and not removed, because they do not start again. Returns true while it goes on.
pub(crate) fn plan_restart_all(cx: &Cx<'_>, sandbox: &ObservedSandbox, plan: &mut PodPlan) -> bool {
    let source = cx.init.iter().chain(cx.regular).find_map(|container| {
        let instance = cx.own.newest_in(&container.name, sandbox)?;
        let done = is_init_success(cx, container, instance);
        let asked = instance.state.is_exited()
            && !done
            && verdict(cx, container, instance) == Verdict::RestartAll;
        asked.then_some((container, instance))
    });
    let Some((container, source)) = source else { return false };
    if cx.held_back(Stage::Remove, plan) {
        return true;
    }
    let kind = kind_of(Some(cx.pod), &container.name);
    let exited = Crashed::of(cx, container, source);
    if !plan_crash_back_off(cx, &container.name, kind, &exited, plan) {
        return false;
    }
    let pod = Some(cx.pod);
    let stop = Stop { key: cx.input.key, pod, grace_seconds: 0, restart: Restart::AtOnce };
    plan.actions.push(Action::KillPod(KillPod {
        uid: cx.uid.clone(),
        purpose: KillPurpose::RestartAll { source: source.name.clone(), exited },
        groups: stop.groups(&cx.own.containers),
        sandboxes: Vec::new(),
    }));
    let is_ephemeral =
        |c: &ObservedContainer| kind_of(Some(cx.pod), &c.name) == ContainerKind::Ephemeral;
    let others =
        cx.own.containers.iter().copied().filter(|c| c.id != source.id && !is_ephemeral(c));
    plan.actions.extend(others.chain([source]).map(|container| remove(container, true)));
    for container in cx.init.iter().chain(cx.regular) {
        let message = "A restart rule restarts all containers of the pod".to_owned();
        plan.wait(&container.name, "RestartingAllContainers", message);
    }
    true
}
