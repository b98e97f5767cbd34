//! Container statuses: newest instance as `state`, the one before as `lastState`, waiting reasons
//! from the plan.

use super::{
    StatusContext, StatusInput,
    conditions::previous_condition,
    phase::{has_ended_before, is_waiting},
    resources::container_resources,
    time,
};
use crate::{
    model::{
        ContainerInstance, ContainerState, ObservedContainer, ObservedPod, PodUid, SandboxState,
        k8s,
    },
    plan::{ContainerKind, PodMemory, Waiting},
    podspec::{all_containers, as_container, ephemeral_containers, is_sidecar},
};
use jiff::Timestamp;

/// All termination messages of a pod together, in bytes.
const MESSAGES_LIMIT: usize = 12 * 1024;
/// Exit code of a container whose end was not observed.
const UNKNOWN_EXIT: i32 = 137;
const UNKNOWN_REASON: &str = "ContainerStatusUnknown";

/// The statuses of a pod, each list in the order of the spec. Nothing else in the status of the pod
/// depends on those of ephemeral containers.
pub(super) struct Statuses {
    pub(super) init: Vec<k8s::ContainerStatus>,
    pub(super) regular: Vec<k8s::ContainerStatus>,
    pub(super) ephemeral: Vec<k8s::ContainerStatus>,
}

pub(super) fn init_of(pod: &k8s::Pod) -> &[k8s::Container] {
    pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default()
}

pub(super) fn regular_of(pod: &k8s::Pod) -> &[k8s::Container] {
    pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default()
}

/// The statuses of all containers of the spec.
pub(super) fn statuses(input: &StatusInput<'_>, cx: &StatusContext) -> Statuses {
    let (init, regular) = (init_of(input.pod), regular_of(input.pod));
    let ephemeral = ephemeral_containers(input.pod);
    let count = (init.len() + regular.len() + ephemeral.len()).max(1);
    let view = View {
        input,
        runtime: runtime_name(input, cx),
        recursive_read_only: cx.recursive_read_only,
        message_limit: MESSAGES_LIMIT / count,
        sandbox: ready_sandbox(input),
    };
    let of_init = |container| match is_sidecar(container) {
        true => view.status(container, ContainerKind::Sidecar),
        false => view.status(container, ContainerKind::Init),
    };
    let of_regular = |container| view.status(container, ContainerKind::Regular);
    let of_ephemeral = |one| view.status(&as_container(one), ContainerKind::Ephemeral);
    let mut statuses = Statuses {
        init: init.iter().map(of_init).collect(),
        regular: regular.iter().map(of_regular).collect(),
        ephemeral: ephemeral.iter().map(of_ephemeral).collect(),
    };
    if input.terminal.is_some() {
        end_missing_containers(input, &mut statuses);
    }
    statuses
}

/// Gives the containers of an ended pod that are gone from the runtime an unknown end, as the
/// kubelet does. Containers whose turn to start never came keep waiting: the init containers after
/// the last one that has begun, and the regular ones of a pod that was not initialized.
fn end_missing_containers(input: &StatusInput<'_>, statuses: &mut Statuses) {
    let initialized = was_initialized(input, statuses);
    let reached = statuses.init.iter().rposition(has_begun).map_or(1, |last| last + 1);
    let Statuses { init, regular, .. } = statuses;
    let regular = regular.iter_mut().filter(|_| initialized);
    for status in init.iter_mut().take(reached).chain(regular) {
        let is_missing = newest(input.observed, input.uid, &status.name).is_none();
        if is_missing && is_waiting(status) {
            let message = "The container could not be located when the pod was terminated";
            status.state = Some(terminated_state(unknown_end(message)));
        }
    }
}

/// True when the turn of the regular containers of a pod has come at least once.
fn was_initialized(input: &StatusInput<'_>, statuses: &Statuses) -> bool {
    let (Some(container), Some(last)) = (init_of(input.pod).last(), statuses.init.last()) else {
        return true;
    };
    let succeeded = |state: &Option<k8s::ContainerState>| {
        let ended = state.as_ref().and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.exit_code == 0)
    };
    let last_is_done = match is_sidecar(container) {
        true => last.started == Some(true),
        false => succeeded(&last.state) || succeeded(&last.last_state),
    };
    // A sidecar that has started and was stopped since has left nothing but this condition. A pod
    // that succeeded has the condition with a reason, initialized or not.
    let before = previous_condition(input, "Initialized");
    let before = before.is_some_and(|before| before.status == "True" && before.reason.is_none());
    before || last_is_done || statuses.regular.iter().any(has_begun)
}

/// True when the container was more than waiting at some time.
fn has_begun(status: &k8s::ContainerStatus) -> bool {
    !is_waiting(status) || has_ended_before(status)
}

/// What the runtime calls itself; before it has told that to this life of the agent, what it told
/// to the one before.
fn runtime_name<'a>(input: &StatusInput<'a>, cx: &'a StatusContext) -> Option<&'a str> {
    let previous = || {
        let status = input.previous?;
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let mut ids = lists.into_iter().flatten().flatten().filter_map(|s| s.container_id.as_ref());
        ids.find_map(|id| Some(id.split_once("://")?.0))
    };
    Some(cx.runtime_name.as_str()).filter(|name| !name.is_empty()).or_else(previous)
}

/// The newest instance of each container of the spec: init containers, then regular ones, then
/// ephemeral ones.
#[must_use]
pub fn container_instances(
    pod: &k8s::Pod,
    uid: &PodUid,
    observed: &ObservedPod,
    memory: &PodMemory,
) -> Vec<ContainerInstance> {
    let all = pod.spec.iter().flat_map(all_containers);
    let newest = all.filter_map(|one| {
        let instance = newest(observed, uid, &one.name)?;
        Some((one, instance))
    });
    newest
        .map(|(container, instance)| ContainerInstance {
            name: instance.name.clone(),
            id: instance.id.clone(),
            restart_count: instance.restart_count,
            running_since: match instance.state {
                ContainerState::Running { started_at } => Some(started_at),
                ContainerState::Created
                | ContainerState::Exited { .. }
                | ContainerState::Unknown => None,
            },
            started: has_started(&container, instance, memory),
            in_post_start: memory.is_in_post_start(instance),
        })
        .collect()
}

/// True when an instance runs, no event has told its end, its postStart hook has ended, and its
/// startup probe has succeeded, if it has them.
fn has_started(
    container: &k8s::Container,
    instance: &ObservedContainer,
    memory: &PodMemory,
) -> bool {
    instance.state.is_running()
        && instance.ended_with.is_none()
        && !memory.is_in_post_start(instance)
        && (container.startup_probe.is_none() || memory.has_started(instance))
}

/// Whether a regular container exists in the sandbox in use (or, without one, at all).
pub(super) fn has_regular(input: &StatusInput<'_>) -> bool {
    let sandbox = ready_sandbox(input);
    regular_of(input.pod).iter().any(|container| {
        let newest = newest(input.observed, input.uid, &container.name);
        newest.is_some_and(|c| sandbox.is_none_or(|id| id == c.sandbox_id.as_str()))
    })
}

fn ready_sandbox<'a>(input: &StatusInput<'a>) -> Option<&'a str> {
    let ready = input
        .observed
        .sandboxes
        .iter()
        .filter(|s| s.uid == *input.uid && s.state == SandboxState::Ready);
    ready.max_by_key(|s| s.attempt).map(|s| s.id.as_str())
}

pub(super) fn newest<'a>(
    observed: &'a ObservedPod,
    uid: &PodUid,
    name: &str,
) -> Option<&'a ObservedContainer> {
    let instances = observed.containers.iter().filter(|c| c.uid == *uid && *c.name == *name);
    instances.max_by_key(|c| (c.restart_count, c.created_at))
}

/// What the status of one container is made from.
struct View<'a> {
    input: &'a StatusInput<'a>,
    /// Without it a container has no id that anybody else could use.
    runtime: Option<&'a str>,
    message_limit: usize,
    sandbox: Option<&'a str>,
    recursive_read_only: bool,
}

impl View<'_> {
    fn status(&self, container: &k8s::Container, kind: ContainerKind) -> k8s::ContainerStatus {
        let newest = newest(self.input.observed, self.input.uid, &container.name);
        let previous = self.previous(&container.name, kind);
        let mut status = match newest {
            Some(instance) => self.of_instance(container, instance, previous),
            None => self.without_instance(container, kind, previous),
        };
        let runs_in_each_sandbox = match kind {
            ContainerKind::Init | ContainerKind::Sidecar => true,
            ContainerKind::Regular | ContainerKind::Ephemeral => false,
        };
        // In a new sandbox an init container runs again; until it does, its old end is history.
        let outdated = runs_in_each_sandbox
            && self.input.terminal.is_none()
            && newest.is_some_and(|c| self.sandbox.is_some_and(|id| id != c.sandbox_id.as_str()));
        // Once told as terminated, it could not be told as running again where the restart policy lets
        // its end stand: the API server refuses that.
        let replaced = kind != ContainerKind::Ephemeral
            && self.input.terminal.is_none()
            && newest.is_some_and(|c| self.input.memory.was_killed_to_restart(c));
        let waiting = self.input.plan.and_then(|plan| plan.waiting.get(container.name.as_str()));
        let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        if !running && (waiting.is_some() || outdated || replaced) {
            let ended = status.state.take().filter(|state| state.terminated.is_some());
            status.last_state = ended.or(status.last_state);
            status.state = Some(match waiting {
                Some(Waiting { reason, message }) => waiting_state(reason, message),
                None => waiting_state(self.default_reason(), ""),
            });
        }
        let memory = self.input.memory;
        let started = newest.filter(|instance| has_started(container, instance, memory));
        // An ephemeral container is never ready, and has no `started`, as with the kubelet.
        status.started = (kind != ContainerKind::Ephemeral).then_some(started.is_some());
        status.ready = match kind {
            ContainerKind::Init => {
                let ended = status.state.as_ref().and_then(|state| state.terminated.as_ref());
                ended.is_some_and(|ended| ended.exit_code == 0)
            }
            ContainerKind::Sidecar | ContainerKind::Regular => {
                let probed = container.readiness_probe.is_some();
                started.is_some_and(|instance| !probed || memory.is_ready(instance))
            }
            ContainerKind::Ephemeral => false,
        };
        status
    }

    fn previous(&self, name: &str, kind: ContainerKind) -> Option<&k8s::ContainerStatus> {
        let status = self.input.previous?;
        let list = match kind {
            ContainerKind::Init | ContainerKind::Sidecar => &status.init_container_statuses,
            ContainerKind::Regular => &status.container_statuses,
            ContainerKind::Ephemeral => &status.ephemeral_container_statuses,
        };
        list.iter().flatten().find(|status| status.name == name)
    }

    fn of_instance(
        &self,
        container: &k8s::Container,
        instance: &ObservedContainer,
        previous: Option<&k8s::ContainerStatus>,
    ) -> k8s::ContainerStatus {
        let was_running = previous
            .and_then(|previous| previous.state.as_ref())
            .is_some_and(|state| state.running.is_some());
        let unknown = instance.state == ContainerState::Unknown && was_running;
        let state = if unknown {
            let message = "The container could not be located when the pod was terminated";
            terminated_state(unknown_end(message))
        } else {
            self.state(instance)
        };
        let resources = container_resources(self.input, container, instance);
        k8s::ContainerStatus {
            restart_count: count(instance.restart_count.saturating_add(u32::from(unknown))),
            state: Some(state),
            // The instance before may be gone: a restart rule has removed it, or a disk was short.
            last_state: self.state_before(instance).or_else(|| {
                let previous = previous?;
                let replaced = previous.container_id != self.container_id(instance);
                let ended = previous.state.as_ref().filter(|state| state.terminated.is_some());
                let before = ended.filter(|_| replaced).or(previous.last_state.as_ref())?;
                // While it waited for its successor, its own end was told as the last one.
                let id = before.terminated.as_ref()?.container_id.as_ref();
                (id.is_none() || id != self.container_id(instance).as_ref()).then(|| before.clone())
            }),
            image: instance.image.to_string(),
            image_id: instance.image_ref.to_string(),
            container_id: self.container_id(instance),
            // A resize that waits has been given nothing yet.
            allocated_resources: match self.input.resize_wait {
                Some(_) => resources.as_ref().and_then(|r| r.requests.clone()),
                None => container.resources.as_ref().and_then(|r| r.requests.clone()),
            },
            resources,
            user: instance.user.as_ref().map(|(uid, gid, groups)| k8s::ContainerUser {
                linux: Some(k8s::LinuxContainerUser {
                    uid: *uid,
                    gid: *gid,
                    supplemental_groups: (!groups.is_empty()).then(|| groups.clone()),
                }),
            }),
            ..self.blank(container)
        }
    }

    fn without_instance(
        &self,
        container: &k8s::Container,
        kind: ContainerKind,
        previous: Option<&k8s::ContainerStatus>,
    ) -> k8s::ContainerStatus {
        let mut status = self.blank(container);
        if kind == ContainerKind::Init && has_regular(self.input) {
            let message = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";
            status.restart_count = previous.map_or(0, |previous| previous.restart_count);
            status.state = Some(terminated_state(k8s::ContainerStateTerminated {
                reason: Some("Completed".to_owned()),
                message: Some(message.to_owned()),
                ..Default::default()
            }));
            return status;
        }
        // A pod that has ended starts nothing again: the last known end of the container stays.
        let is_end = |previous: &&k8s::ContainerStatus| {
            previous.state.as_ref().is_some_and(|state| state.terminated.is_some())
        };
        if let Some(ended) = previous.filter(is_end).filter(|_| self.input.terminal.is_some()) {
            return ended.clone();
        }
        status.state = Some(waiting_state(self.default_reason(), ""));
        let Some(previous) = previous else { return status };
        status.restart_count = previous.restart_count;
        status.last_state.clone_from(&previous.last_state);
        let state = previous.state.as_ref();
        if state.is_some_and(|state| state.running.is_some()) {
            let message = "The container could not be located when the pod was deleted.  The container used to be Running";
            status.last_state = Some(terminated_state(unknown_end(message)));
            status.restart_count += i32::from(!self.input.terminating);
        } else if state.is_some_and(|state| state.terminated.is_some()) {
            status.last_state.clone_from(&previous.state);
        }
        status
    }

    /// The newest ended instance before `instance`.
    fn state_before(&self, instance: &ObservedContainer) -> Option<k8s::ContainerState> {
        let others = self.input.observed.containers.iter().filter(|c| {
            c.uid == instance.uid
                && c.name == instance.name
                && c.id != instance.id
                && matches!(c.state, ContainerState::Exited { .. })
        });
        others.max_by_key(|c| (c.restart_count, c.created_at)).map(|c| self.state(c))
    }

    fn state(&self, instance: &ObservedContainer) -> k8s::ContainerState {
        match &instance.state {
            ContainerState::Created | ContainerState::Unknown => {
                waiting_state(self.default_reason(), "")
            }
            ContainerState::Running { started_at } => k8s::ContainerState {
                running: Some(k8s::ContainerStateRunning { started_at: Some(time(*started_at)) }),
                ..Default::default()
            },
            ContainerState::Exited { started_at, finished_at, exit_code, reason, message } => {
                terminated_state(k8s::ContainerStateTerminated {
                    container_id: self.container_id(instance),
                    exit_code: *exit_code,
                    finished_at: Some(time(*finished_at)),
                    message: text(cut(message, self.message_limit)),
                    reason: text(reason),
                    signal: None,
                    started_at: Some(time(started_at.unwrap_or(Timestamp::UNIX_EPOCH))),
                })
            }
        }
    }

    fn container_id(&self, instance: &ObservedContainer) -> Option<String> {
        Some(format!("{}://{}", self.runtime?, instance.id))
    }

    /// The parts that come from the spec alone.
    fn blank(&self, container: &k8s::Container) -> k8s::ContainerStatus {
        let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty());
        let status = |mount| mount_status(mount, self.recursive_read_only);
        k8s::ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            volume_mounts: mounts.map(|mounts| mounts.iter().map(status).collect()),
            ..Default::default()
        }
    }

    fn default_reason(&self) -> &'static str {
        if init_of(self.input.pod).is_empty() { "ContainerCreating" } else { "PodInitializing" }
    }
}

/// `supported`: `IfPossible` has the effect of `Enabled`.
fn mount_status(mount: &k8s::VolumeMount, supported: bool) -> k8s::VolumeMountStatus {
    let read_only = mount.read_only.unwrap_or_default();
    let recursive = match mount.recursive_read_only.as_deref() {
        Some("Enabled") => "Enabled",
        Some("IfPossible") if supported => "Enabled",
        Some(_) | None => "Disabled",
    };
    k8s::VolumeMountStatus {
        mount_path: mount.mount_path.clone(),
        name: mount.name.clone(),
        read_only: read_only.then_some(true),
        recursive_read_only: read_only.then(|| recursive.to_owned()),
        ..Default::default()
    }
}

fn unknown_end(message: &str) -> k8s::ContainerStateTerminated {
    k8s::ContainerStateTerminated {
        exit_code: UNKNOWN_EXIT,
        reason: Some(UNKNOWN_REASON.to_owned()),
        message: Some(message.to_owned()),
        ..Default::default()
    }
}

fn waiting_state(reason: &str, message: &str) -> k8s::ContainerState {
    let waiting = k8s::ContainerStateWaiting { reason: text(reason), message: text(message) };
    k8s::ContainerState { waiting: Some(waiting), ..Default::default() }
}

fn terminated_state(terminated: k8s::ContainerStateTerminated) -> k8s::ContainerState {
    k8s::ContainerState { terminated: Some(terminated), ..Default::default() }
}

fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The beginning of a text, at most `limit` bytes.
fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

fn count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
