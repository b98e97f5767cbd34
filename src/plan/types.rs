//! The input of a plan, and the plan itself.

use super::{Action, PodMemory, PodOrders};
use crate::model::{
    ContainerId, Event, Hold, NodeObjects, ObservedPod, PodKey, PodProbes, PodUid, REFUSAL_PREFIX,
    RuntimeClasses, RuntimeView, TerminalPhase, k8s,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Everything that a decision about one pod name depends on, except the time.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an input of its own")]
pub struct NameInput<'a> {
    pub key: &'a PodKey,
    pub orders: &'a PodOrders,
    /// All incarnations that the agent has a record of, in any order. The wished one is among them
    /// once [`Action::PreparePod`] has written its record.
    pub known: &'a [Incarnation],
    /// What runs: [`super::Picture::shared`]. The worker does not plan before the runtime was
    /// listed.
    pub observed: &'a ObservedPod,
    /// False while a listing is to show what came of a call that failed, or with which codes
    /// containers ended: [`super::Picture::awaits_listing`]. Nothing is decided for good then.
    pub settled: bool,
    /// What has happened before. The worker calls [`PodMemory::look`] with the same picture and
    /// [`PodMemory::take_probes`] with the same results first.
    pub memory: &'a PodMemory,
    /// What the probes of the pod's containers have found.
    pub probes: &'a PodProbes,
    pub settings: &'a PlanSettings,
    /// ConfigMaps and Secrets.
    pub objects: &'a NodeObjects,
    /// The volumes of the wished pod were written from these objects, and from its labels and
    /// annotations as they are now.
    pub volumes_current: bool,
    /// Containers of a pod with [`RESTART_ON_CONFIG_CHANGE`] that began with other objects.
    pub outdated: &'a BTreeSet<ContainerId>,
    /// Readiness of the runtime and its network (`not_ready`, `network_not_ready`), as the PLEG
    /// published it last.
    pub runtime: &'a RuntimeView,
    /// The end of each ended pod is on disk, so that the pod does not run again when its containers
    /// are removed. [`PodOrders::clear_dead`] and evicted pods wait for that.
    pub records_saved: bool,
}

/// An incarnation (uid) of the name, as in its record.
#[derive(Clone, Debug, PartialEq)]
pub struct Incarnation {
    pub uid: PodUid,
    /// The pod as it runs. It gives the grace period and the order in which containers stop. `None`
    /// when the record was damaged.
    pub pod: Option<Arc<k8s::Pod>>,
    /// `status.startTime`: when the pod was accepted.
    pub started_at: Option<Timestamp>,
    /// Its removal has begun: an action with [`super::KillPurpose::Retire`] has saved this
    /// deadline. It is never taken back: a pod that is wished again under the same uid is first
    /// removed, and then starts anew.
    pub kill: Option<KillDeadline>,
    /// How it has ended, from an earlier [`PodPlan::terminal`].
    pub terminal: Option<Terminal>,
    /// Its object in the API server was deleted, and an action with
    /// [`super::KillPurpose::Terminal`] has begun.
    pub deleted: bool,
    /// Its containers that a shutdown of the machine has ended. They have not succeeded, whatever
    /// their exit codes are.
    pub interrupted: Vec<ContainerId>,
}

/// How long an incarnation has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillDeadline {
    /// The whole grace period, in seconds.
    pub grace_seconds: u32,
    /// The boot time at which it ends. (On disk it is a wall time, because boot time does not
    /// survive a reboot.)
    pub at: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSettings {
    /// This agent's owner id. Sandboxes with another owner id, or without one, are never touched.
    pub owner: Box<str>,
    /// The longest delay of a crash loop, 1 s to 300 s
    /// (`crashLoopBackOff.maxContainerRestartPeriod`).
    pub crash_loop_cap: Duration,
    /// A new revision of a pod takes over when its images and objects are there (`prepareUpdates`).
    pub prepare_updates: bool,
    /// The handlers of the runtime classes of static pods.
    pub runtime_classes: RuntimeClasses,
}

/// What to do now for one pod name, and what to report about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    /// The actions, in order. After an action that has failed, the worker goes on only where
    /// [`Action::failure_ends_pass`] is false. After the last action, or the failed one, it plans
    /// again.
    pub actions: Vec<Action>,
    /// The boot time at which to plan again without any change of the input: a back-off or a
    /// deadline ends.
    pub wake_at: Option<Duration>,
    /// By container name, why containers of the wished incarnation wait, where the reason is more
    /// than `ContainerCreating`.
    pub waiting: BTreeMap<Box<str>, Waiting>,
    /// Why the wished pod as a whole waits (for `PodView::waiting`); one sentence.
    pub blocked: Option<String>,
    /// Events that belong to a state, not to an action. The worker passes them through
    /// [`PodMemory::announce`], which drops those that were recorded for the same occasion lately.
    pub notices: Vec<Notice>,
    /// The wished incarnation has ended for good. The worker saves this in the record and gives it
    /// back in [`Incarnation::terminal`], so that the pod is not run again, even when its
    /// containers are removed.
    pub terminal: Option<Terminal>,
    /// The wished incarnation is being ended because the machine shuts down. It is shown and not
    /// saved.
    pub interrupted: Option<Terminal>,
    /// Nothing of the held incarnation is left. Nothing of it starts until the hold ends.
    pub held: bool,
    /// The wished incarnation has ended for good, nothing of it runs, and its volumes and cgroup
    /// are gone.
    pub stopped: bool,
    /// The number of dead containers of the wished incarnation that are kept only for people to
    /// read.
    pub dead: usize,
}

/// Why a container waits: `state.waiting` in its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// `CrashLoopBackOff`, `ErrImagePull`, ...
    pub reason: String,
    /// One sentence; may be empty.
    pub message: String,
}

/// An event that is recorded for each occasion, and again while the state lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What makes it the same occasion, for example the id of the crashed container.
    pub occasion: String,
    pub event: Event,
}

/// How a pod has ended: its final phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub phase: TerminalPhase,
    /// `status.reason`: `DeadlineExceeded`, `Terminated`, ...; `None` when its containers have just
    /// ended.
    pub reason: Option<String>,
    /// `status.message`.
    pub message: Option<String>,
    /// Reason and message of the condition `DisruptionTarget`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<(String, String)>,
}

impl Terminal {
    /// `status.reason` of a pod that was ended because the machine shuts down.
    pub(crate) const SHUTDOWN: &'static str = "Terminated";

    #[must_use]
    pub fn by_shutdown() -> Self {
        let message = "Pod was terminated in response to imminent node shutdown.";
        Self {
            phase: TerminalPhase::Failed,
            reason: Some(Self::SHUTDOWN.to_owned()),
            message: Some(message.to_owned()),
            disruption: Some(("TerminationByKubelet".to_owned(), message.to_owned())),
        }
    }

    /// The end of a pod of the API server that comes while the machine shuts down.
    #[must_use]
    pub fn refused_by_shutdown() -> Self {
        let message = format!("{REFUSAL_PREFIX}{}", super::shutdown::REFUSED);
        Self {
            reason: Some(super::shutdown::NODE_SHUTDOWN.to_owned()),
            message: Some(message),
            ..Self::of_phase(TerminalPhase::Failed)
        }
    }

    /// The end of a pod of the API server that must not run on this node.
    #[must_use]
    pub fn by_hold(hold: &Hold) -> Self {
        Self {
            phase: TerminalPhase::Failed,
            reason: Some(hold.reason.clone()),
            message: Some(hold.message.clone()),
            disruption: hold.disruption.clone(),
        }
    }

    /// True for a pod of the API server that was evicted.
    #[must_use]
    pub fn is_eviction(&self) -> bool {
        self.reason.as_deref() == Some("Evicted")
    }

    /// True for a pod of the API server that was not admitted, as opposed to one that was ended
    /// after its start. It is read from the message, which records of all versions have.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.message.as_ref().is_some_and(|message| message.starts_with(REFUSAL_PREFIX))
    }

    /// The end of a pod whose containers have ended.
    #[must_use]
    pub fn of_phase(phase: TerminalPhase) -> Self {
        Self { phase, reason: None, message: None, disruption: None }
    }
}
