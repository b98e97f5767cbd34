//! What planning remembers between passes: back-offs, failures, and the events that were recorded.
//! It is kept in the run directory, so it outlives the agent but not a reboot.

use super::{
    Action, CreateSandbox, Failure, Incarnation, KillContainer, KillPurpose, Outcome, PlanSettings,
    PodPlan, ResizeContainer, Restart, StartContainer, Step, Taken,
    backoff::{Ends, Exited, ImageBackOff, Moment, Retry, StartFailure},
    rollback::Readiness,
    update::Preparation,
};
use crate::model::{
    Asked, ContainerAmounts, ContainerId, ContainerState, CpuMemory, Event, EventTarget, Now,
    ObservedContainer, ObservedPod, PodProbes, PodUid, SandboxId, SandboxState,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// An event about a state that still holds is recorded again after this time: the API server keeps
/// an event for an hour.
const ANNOUNCED_FOR: Duration = Duration::from_secs(30 * 60);

/// The memory of one pod name, with all its incarnations.
///
/// The worker calls [`Self::look`] before planning, whenever its picture or records have changed;
/// [`Self::announce`] with each plan; [`Self::begin`] right before it executes an action; and
/// [`Self::record`] with each outcome. It saves the memory after `begin` and before the action, so
/// that a crash of the agent never shortens a back-off. The worker compares the memory with the
/// last saved value to find out whether it must be saved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodMemory {
    // In a box, like the containers below: a map has room for eleven values from the first one on,
    // and nearly every pod has one incarnation.
    incarnations: BTreeMap<PodUid, Box<Recollection>>,
    /// The images of a revision that has not taken over yet, or has not started all containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) preparation: Option<Box<Preparation>>,
    /// The container that is being started, if it has a postStart hook.
    #[serde(skip)]
    post_start: Option<Box<(PodUid, Box<str>)>>,
}

/// The memory of one incarnation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Recollection {
    /// When the pod was accepted.
    pub(crate) started: Option<Moment>,
    pub(crate) containers: BTreeMap<Box<str>, Box<ContainerMemory>>,
    /// Key: image as in the spec.
    pub(crate) images: BTreeMap<Box<str>, ImageBackOff>,
    pub(crate) retries: BTreeMap<Stage, Retry>,
    /// The sandboxes that have died, or lack an address.
    pub(crate) sandbox: Ends,
    /// The lowest attempt of a sandbox whose name is not taken, as far as known.
    pub(crate) sandbox_attempt: u32,
    /// Incomplete objects of the runtime that hold a name.
    pub(crate) leftovers: Vec<Leftover>,
    /// `Release` has succeeded.
    pub(crate) released: bool,
    /// The stop of a pod that has ended, or is to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ending: Option<Ending>,
    /// A resize has begun and not finished: the pod's cgroup may have other limits than its
    /// specification.
    pub(crate) resizing: bool,
    /// What the pod's cgroup was given last. It is saved before the pod has a sandbox. `None`: an
    /// earlier release made the cgroup, or the agent makes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cgroup: Option<CpuMemory>,
    pub(super) readiness: Readiness,
    pub(crate) first_start: FirstStart,
    /// Instances that a person wants restarted. One that has ended starts without its back-off.
    pub(crate) asked: BTreeSet<ContainerId>,
    /// The last events about states. Key: reason and field path.
    announcements: BTreeMap<String, Announcement>,
}

/// An event about a state that was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Announcement {
    occasion: String,
    /// The boot time at which it was recorded.
    at: Duration,
}

/// Whether an incarnation has begun since the machine has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FirstStart {
    #[default]
    Ahead,
    /// A sandbox ran, or the making of one has begun.
    Begun,
}

/// The stop of a pod that has ended, or is to end. It is begun again when it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// When it began.
    since: Moment,
    /// The shortest grace period so far, in seconds from the beginning.
    grace_seconds: u32,
}

impl Ending {
    /// What is left of a grace period of `seconds`, in whole seconds. A grace period only shrinks.
    pub(crate) fn time_left(self, seconds: u32, now: Now) -> u32 {
        let seconds = seconds.min(self.grace_seconds);
        let due = self.since.after(Duration::from_secs(seconds.into()));
        whole_seconds(due.saturating_sub(now.boot)).min(seconds)
    }

    /// A stop with this grace period, in seconds, begins now.
    fn shrink(&mut self, seconds: u32, now: Now) {
        let elapsed = u32::try_from(self.since.elapsed(now).as_secs()).unwrap_or(u32::MAX);
        let until = elapsed.saturating_add(seconds);
        self.grace_seconds = self.grace_seconds.min(until);
    }
}

/// Whole seconds, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> u32 {
    let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    u32::try_from(whole).unwrap_or(u32::MAX)
}

/// The memory of one container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerMemory {
    pub(crate) ends: Ends,
    /// The instance was killed in order to start again, whatever the restart policy says.
    pub(crate) forced: Option<ContainerId>,
    /// Why the last start failed; `None` after a success.
    pub(crate) failure: Option<StartFailure>,
    /// The lowest restart count that no instance has had.
    pub(crate) next_count: Option<u32>,
    /// The instance was killed because a probe had failed.
    pub(crate) failed_probe: Option<ContainerId>,
    /// The instance whose startup probe has succeeded.
    pub(crate) started: Option<ContainerId>,
    /// The instance whose readiness probe has succeeded and has not failed since.
    pub(crate) ready: Option<ContainerId>,
    /// The instance that was resized last, with the amounts that it has got.
    pub(crate) resized: Option<(ContainerId, ContainerAmounts)>,
}

/// A part of the plan that is retried as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Stage {
    Prepare,
    Sandbox,
    Resize,
    Kill,
    Remove,
    Release,
    CleanUp,
}

/// An object of the runtime that holds a name which the pod needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Leftover {
    Sandbox(SandboxId),
    Container(ContainerId),
}

static NOTHING: Recollection = Recollection {
    started: None,
    containers: BTreeMap::new(),
    images: BTreeMap::new(),
    retries: BTreeMap::new(),
    sandbox: Ends::NONE,
    sandbox_attempt: 0,
    leftovers: Vec::new(),
    released: false,
    ending: None,
    resizing: false,
    cgroup: None,
    readiness: Readiness::NotReady,
    first_start: FirstStart::Ahead,
    asked: BTreeSet::new(),
    announcements: BTreeMap::new(),
};

static NO_CONTAINER: ContainerMemory = ContainerMemory {
    ends: Ends::NONE,
    forced: None,
    failure: None,
    next_count: None,
    failed_probe: None,
    started: None,
    ready: None,
    resized: None,
};

impl Recollection {
    pub(crate) fn container(&self, name: &str) -> &ContainerMemory {
        self.containers.get(name).map_or(&NO_CONTAINER, |memory| memory)
    }

    /// The cpu and memory that an instance runs with; `None` when that is not known.
    pub(crate) fn amounts_of(&self, instance: &ObservedContainer) -> Option<ContainerAmounts> {
        match &self.container(&instance.name).resized {
            Some((id, amounts)) if *id == instance.id => Some(*amounts),
            Some(_) | None => instance.made_with.as_deref().copied(),
        }
    }

    /// Forgets every delay, as if nothing had failed before.
    fn drop_back_offs(&mut self) {
        self.images.clear();
        self.retries.clear();
        self.sandbox.crash = None;
        for container in self.containers.values_mut() {
            container.ends.crash = None;
            container.failure = None;
        }
    }

    /// The retry of a stage, if it is not due yet.
    pub(crate) fn held_back(&self, stage: Stage, now: Now) -> Option<(&Retry, Duration)> {
        let retry = self.retries.get(&stage)?;
        let due = retry.due();
        (due > now.boot).then_some((retry, due))
    }
}

impl PodMemory {
    /// The memory of `uid`.
    pub(crate) fn of(&self, uid: &PodUid) -> &Recollection {
        self.incarnations.get(uid).map_or(&NOTHING, |memory| memory)
    }

    /// The memory of an incarnation that has one.
    pub(super) fn incarnation(&mut self, uid: &PodUid) -> Option<&mut Recollection> {
        self.incarnations.get_mut(uid).map(|memory| &mut **memory)
    }

    /// True when there is nothing to save.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.incarnations.is_empty() && self.preparation.is_none()
    }

    /// Saves the times at which things were first seen (ends of containers, the start of the pod),
    /// and forgets incarnations that are not wished, recorded or observed.
    pub fn look(
        &mut self,
        wished: Option<&PodUid>,
        known: &[Incarnation],
        observed: &ObservedPod,
        now: Now,
    ) {
        self.incarnations.retain(|uid, _| {
            wished == Some(uid)
                || known.iter().any(|k| k.uid == *uid)
                || observed.containers.iter().any(|c| c.uid == *uid)
                || observed.sandboxes.iter().any(|s| s.uid == *uid)
        });
        for memory in self.incarnations.values_mut() {
            memory.asked.retain(|id| observed.containers.iter().any(|c| c.id == *id));
        }
        for incarnation in known {
            if let Some(started_at) = incarnation.started_at {
                self.at(&incarnation.uid)
                    .started
                    .get_or_insert_with(|| Moment::of_wall(started_at, now));
            }
        }
        for container in &observed.containers {
            let tracked = wished == Some(&container.uid)
                || known.iter().any(|known| known.uid == container.uid);
            if tracked {
                self.look_at(container, observed.inspect_error.is_none(), now);
            }
        }
        // Only an inspection tells addresses.
        let inspected = observed.inspect_error.is_none();
        for sandbox in &observed.sandboxes {
            if let Some(memory) = self.incarnations.get_mut(&sandbox.uid) {
                let next = sandbox.attempt.saturating_add(1);
                let lacks_address = inspected && sandbox.lacks_address();
                if (sandbox.state == SandboxState::NotReady || lacks_address)
                    && next >= memory.sandbox_attempt
                {
                    memory.sandbox.note(sandbox.id.as_str(), Moment::just(now));
                }
                memory.sandbox_attempt = memory.sandbox_attempt.max(next);
                if sandbox.state == SandboxState::Ready {
                    memory.first_start = FirstStart::Begun;
                }
            }
        }
    }

    /// `inspected`: otherwise the end may be made up, because no listing tells one.
    fn look_at(&mut self, container: &ObservedContainer, inspected: bool, now: Now) {
        let memory = self.container(&container.uid, &container.name);
        let next = container.restart_count.saturating_add(1);
        let newest = memory.next_count.is_none_or(|known| next >= known);
        memory.next_count = memory.next_count.max(Some(next));
        match &container.state {
            ContainerState::Exited { finished_at, .. } if newest && inspected => {
                memory.ends.note(container.id.as_str(), Moment::of_wall(*finished_at, now));
            }
            // Its start seemed to have failed.
            ContainerState::Running { .. } => memory.ends.runs_on(container.id.as_str()),
            ContainerState::Exited { .. } | ContainerState::Created | ContainerState::Unknown => {}
        }
    }

    /// The notices of the plan whose occasion is new, or that still hold after a while. The worker
    /// records them as events. The plan wakes when a notice is due again.
    pub fn announce(&mut self, plan: &mut PodPlan, now: Now) -> Vec<Event> {
        let (mut fresh, mut due) = (Vec::new(), None);
        for notice in &plan.notices {
            let EventTarget::Pod { uid, field_path, .. } = &notice.event.target else { continue };
            let key = format!("{} {}", notice.event.reason, field_path.as_deref().unwrap_or(""));
            let announcements = &mut self.at(uid).announcements;
            let last = announcements.get(&key).filter(|last| last.occasion == notice.occasion);
            let mut again = last.map_or(now.boot, |last| last.at + ANNOUNCED_FOR);
            if again <= now.boot {
                let occasion = notice.occasion.clone();
                announcements.insert(key, Announcement { occasion, at: now.boot });
                fresh.push(notice.event.clone());
                again = now.boot + ANNOUNCED_FOR;
            }
            due = due.into_iter().chain([again]).min();
        }
        due.into_iter().for_each(|at| plan.wake(at));
        fresh
    }

    /// Must be called, and the memory saved, right before an action is executed: a restart counts
    /// for the back-off as soon as it begins, even if the agent crashes before it knows the
    /// outcome.
    pub fn begin(&mut self, action: &Action, settings: &PlanSettings, now: Now) {
        let cap = settings.crash_loop_cap;
        match action {
            Action::StartContainer(StartContainer {
                uid, name, restart_of: Some(crash), ..
            }) => {
                self.container(uid, name).ends.count_restart(&crash.exited(), cap, now);
            }
            Action::CreateSandbox(CreateSandbox { uid, replaces, .. }) => {
                let memory = self.at(uid);
                memory.first_start = FirstStart::Begun;
                if let Some(id) = replaces {
                    let exited = Exited { id: id.as_str(), definition: None };
                    memory.sandbox.count_restart(&exited, cap, now);
                }
            }
            Action::Resize(resize) => self.at(&resize.uid).resizing = true,
            Action::KillContainer(kill) => self.begin_kill(kill),
            Action::KillPod(kill) => {
                match &kill.purpose {
                    KillPurpose::RestartAll { source, exited } => {
                        let ends = &mut self.container(&kill.uid, source).ends;
                        ends.count_restart(&exited.exited(), cap, now);
                    }
                    KillPurpose::Terminal => {
                        let seconds = kill.containers().map(|one| one.grace_seconds).max();
                        let ending = Ending { since: Moment::just(now), grace_seconds: u32::MAX };
                        let ending = self.at(&kill.uid).ending.get_or_insert(ending);
                        ending.shrink(seconds.unwrap_or(u32::MAX), now);
                    }
                    KillPurpose::Restart
                    | KillPurpose::Retire { .. }
                    | KillPurpose::Surplus
                    | KillPurpose::Asked
                    | KillPurpose::Shutdown => {}
                }
                for container in kill.containers() {
                    self.begin_kill(container);
                }
            }
            Action::PreparePod { .. }
            | Action::StartContainer(_)
            | Action::RemoveContainer(_)
            | Action::RemoveSandbox(_)
            | Action::Release { .. }
            | Action::CleanUp { .. } => {}
        }
    }

    fn begin_kill(&mut self, kill: &KillContainer) {
        let killed = Some(kill.id.clone());
        match kill.restart {
            Restart::ByPolicy => {}
            Restart::AtOnce => self.container(&kill.uid, &kill.name).forced = killed,
            Restart::AfterBackOff => self.container(&kill.uid, &kill.name).failed_probe = killed,
        }
    }

    /// Takes over what people have asked for. The worker saves the memory afterwards.
    pub fn ask(&mut self, asked: &Asked) {
        if asked.retry {
            self.incarnations.values_mut().for_each(|memory| memory.drop_back_offs());
            self.preparation = None;
        }
        if !asked.restart.is_empty() {
            self.at(&asked.uid).asked.extend(asked.restart.iter().cloned());
        }
    }

    /// Takes the results of probes in. An instance without a result stays as it was: one that was
    /// ready before a restart of the agent is ready until its probe fails. Returns true when an
    /// instance has become started, ready or unready, which is saved before it is told.
    pub fn take_probes(&mut self, probes: &PodProbes, observed: &ObservedPod) -> bool {
        let mut changed = false;
        for container in &observed.containers {
            let Some(results) = probes.get(&container.id) else { continue };
            if !self.incarnations.contains_key(&container.uid) {
                continue;
            }
            let memory = self.container(&container.uid, &container.name);
            let known = Some(&container.id);
            if results.startup == Some(true) && memory.started.as_ref() != known {
                memory.started = Some(container.id.clone());
                changed = true;
            }
            let ready = memory.ready.as_ref() == known;
            if results.readiness.is_some_and(|now| now != ready) {
                memory.ready = (!ready).then(|| container.id.clone());
                changed = true;
            }
        }
        changed
    }

    /// True when the startup probe of this instance has succeeded.
    #[must_use]
    pub fn has_started(&self, instance: &ObservedContainer) -> bool {
        self.of(&instance.uid).container(&instance.name).started.as_ref() == Some(&instance.id)
    }

    /// True when this instance was killed in order to start again, whatever its exit code is.
    #[must_use]
    pub fn was_killed_to_restart(&self, instance: &ObservedContainer) -> bool {
        let memory = self.of(&instance.uid).container(&instance.name);
        [&memory.forced, &memory.failed_probe].iter().any(|id| id.as_ref() == Some(&instance.id))
    }

    /// Notes which container with a postStart hook is being started; `None`: the start is over.
    pub fn set_post_start(&mut self, start: Option<(PodUid, Box<str>)>) {
        self.post_start = start.map(Box::new);
    }

    /// True while the postStart hook of this instance has not ended.
    #[must_use]
    pub fn is_in_post_start(&self, instance: &ObservedContainer) -> bool {
        let start = self.post_start.as_deref();
        start.is_some_and(|(uid, name)| *uid == instance.uid && *name == instance.name)
    }

    /// True when the readiness probe of this instance has succeeded and has not failed since.
    #[must_use]
    pub fn is_ready(&self, instance: &ObservedContainer) -> bool {
        self.of(&instance.uid).container(&instance.name).ready.as_ref() == Some(&instance.id)
    }

    /// The cpu and memory that an instance runs with; `None` when that is not known.
    #[must_use]
    pub fn amounts_of(&self, instance: &ObservedContainer) -> Option<ContainerAmounts> {
        self.of(&instance.uid).amounts_of(instance)
    }

    /// A resize of the pod is under way. `Some(Some(_))`: why the last attempt has failed.
    #[must_use]
    pub fn resize_of(&self, uid: &PodUid) -> Option<Option<&str>> {
        let memory = self.of(uid);
        let error = memory.retries.get(&Stage::Resize).map(|retry| retry.message.as_str());
        memory.resizing.then_some(error)
    }

    /// Takes the outcome of an action in.
    pub fn record(&mut self, outcome: &Outcome, now: Now) {
        match outcome {
            Outcome::Prepared { uid, cgroup } => {
                self.succeeded(uid, Stage::Prepare);
                if cgroup.is_some() {
                    self.at(uid).cgroup = *cgroup;
                }
            }
            Outcome::SandboxCreated(sandbox) => {
                self.succeeded(&sandbox.uid, Stage::Sandbox);
                let memory = self.at(&sandbox.uid);
                memory.sandbox_attempt =
                    memory.sandbox_attempt.max(sandbox.attempt.saturating_add(1));
                memory.released = false;
                // What was true of the pod is news when it is true again.
                memory.announcements.retain(|key, _| !key.ends_with(' '));
                // The old sandbox may have been the reason for earlier failures.
                for container in memory.containers.values_mut() {
                    container.failure = container.failure.take().filter(|f| f.image.is_some());
                }
            }
            Outcome::ContainerStarted(container) => {
                self.used_fetched(&container.uid, &container.name);
                self.had_images(&container.uid, &container.name);
                let of_container = format!("{{{}}}", container.name);
                self.at(&container.uid)
                    .announcements
                    .retain(|key, _| !key.ends_with(&of_container));
                let memory = self.container(&container.uid, &container.name);
                memory.failure = None;
                memory.next_count =
                    memory.next_count.max(Some(container.restart_count.saturating_add(1)));
            }
            Outcome::Resized { uid, containers, cgroup } => {
                self.succeeded(uid, Stage::Resize);
                self.resized(uid, containers);
                let memory = self.at(uid);
                memory.resizing = cgroup.is_none();
                memory.cgroup = cgroup.or(memory.cgroup);
            }
            Outcome::ContainerKilled { uid, .. } | Outcome::PodKilled { uid, .. } => {
                self.succeeded(uid, Stage::Kill);
            }
            Outcome::ContainerRemoved { uid, id } => {
                self.removed(uid, &Leftover::Container(id.clone()));
            }
            Outcome::SandboxRemoved { uid, id } => {
                self.removed(uid, &Leftover::Sandbox(id.clone()));
            }
            Outcome::Released { uid } => {
                self.succeeded(uid, Stage::Release);
                self.at(uid).released = true;
            }
            Outcome::CleanedUp { uid } => {
                self.incarnations.remove(uid);
            }
            Outcome::Failed(failure) => self.failed(failure, now),
        }
    }

    fn failed(&mut self, failure: &Failure, now: Now) {
        let uid = &failure.uid;
        match &failure.step {
            Step::Prepare => self.retry(failure, Stage::Prepare, now),
            Step::Sandbox { attempt } => {
                self.retry(failure, Stage::Sandbox, now);
                if let Some(taken) = &failure.taken {
                    let memory = self.at(uid);
                    if let Taken::ByUs(id) = taken {
                        memory.leftovers.push(Leftover::Sandbox(id.as_str().into()));
                    }
                    memory.sandbox_attempt = memory.sandbox_attempt.max(attempt.saturating_add(1));
                }
            }
            Step::Image { container, image, pull_tried } => {
                let memory = self.at(uid);
                if *pull_tried {
                    let back_off = memory.images.entry(image.clone()).or_default();
                    back_off.failed(&failure.reason, &failure.message, now);
                } else if let Some(back_off) = memory.images.get_mut(image) {
                    back_off.looked(now);
                }
                self.start_failed(failure, container, Some(image), now);
            }
            Step::Config { container } => self.start_failed(failure, container, None, now),
            Step::Start { container, .. } => {
                self.had_images(uid, container);
                self.start_failed(failure, container, None, now);
            }
            Step::Create { container, restart_count } => {
                self.had_images(uid, container);
                self.start_failed(failure, container, None, now);
                if let Some(taken) = &failure.taken {
                    if let Taken::ByUs(id) = taken {
                        self.at(uid).leftovers.push(Leftover::Container(id.as_str().into()));
                    }
                    let memory = self.container(uid, container);
                    memory.next_count =
                        memory.next_count.max(Some(restart_count.saturating_add(1)));
                }
            }
            Step::Resize { done } => {
                self.retry(failure, Stage::Resize, now);
                self.resized(uid, done);
            }
            Step::KillContainer { .. } | Step::KillPod => self.retry(failure, Stage::Kill, now),
            Step::RemoveContainer { id } => {
                self.retry(failure, Stage::Remove, now);
                self.drop_leftover(uid, &Leftover::Container(id.clone()));
            }
            Step::RemoveSandbox { id } => {
                self.retry(failure, Stage::Remove, now);
                self.drop_leftover(uid, &Leftover::Sandbox(id.clone()));
            }
            Step::Release => self.retry(failure, Stage::Release, now),
            Step::CleanUp => self.retry(failure, Stage::CleanUp, now),
            Step::Cancelled => {}
        }
    }

    fn resized(&mut self, uid: &PodUid, containers: &[ResizeContainer]) {
        for resized in containers {
            let amounts = Some((resized.id.clone(), resized.to));
            self.container(uid, &resized.name).resized = amounts;
        }
    }

    /// The container was created, so its images are present.
    fn had_images(&mut self, uid: &PodUid, container: &str) {
        let failure = self.container(uid, container).failure.as_mut();
        let images: Vec<_> = failure.into_iter().flat_map(StartFailure::take_images).collect();
        for image in images {
            self.at(uid).images.remove(&image);
        }
    }

    fn start_failed(&mut self, failure: &Failure, name: &str, image: Option<&str>, now: Now) {
        let Recollection { containers, images, .. } = self.at(&failure.uid);
        let memory = containers.entry(name.into()).or_default();
        let counts = |image: &str| images.get(image).is_some_and(|known| !known.is_forgotten(now));
        let mut failed = StartFailure::after(memory.failure.take(), &failure.reason, image, counts);
        failed.retry.failed(&failure.message, now);
        memory.failure = Some(failed);
        let failures = || containers.values().filter_map(|memory| memory.failure.as_ref());
        images.retain(|image, _| failures().any(|failed| failed.is_of(image)));
    }

    fn retry(&mut self, failure: &Failure, stage: Stage, now: Now) {
        let retry = self.at(&failure.uid).retries.entry(stage).or_default();
        retry.failed(&failure.message, now);
    }

    fn succeeded(&mut self, uid: &PodUid, stage: Stage) {
        if let Some(memory) = self.incarnations.get_mut(uid) {
            memory.retries.remove(&stage);
        }
    }

    fn removed(&mut self, uid: &PodUid, leftover: &Leftover) {
        self.succeeded(uid, Stage::Remove);
        self.drop_leftover(uid, leftover);
    }

    /// A leftover that could not be removed is forgotten as well. Its name is avoided from now on,
    /// and the listings show the object if it does exist.
    fn drop_leftover(&mut self, uid: &PodUid, leftover: &Leftover) {
        if let Some(memory) = self.incarnations.get_mut(uid) {
            memory.leftovers.retain(|known| known != leftover);
        }
    }

    fn at(&mut self, uid: &PodUid) -> &mut Recollection {
        self.incarnations.entry(uid.clone()).or_default()
    }

    fn container(&mut self, uid: &PodUid, name: &str) -> &mut ContainerMemory {
        self.at(uid).containers.entry(name.into()).or_default()
    }
}
