//! What a plan is made from, and the plan itself.

use super::{Action, PodMemory, PodOrders};
use crate::model::{ContainerId, Event, ObservedPod, PodKey, PodUid, RuntimeView, k8s};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Everything that a decision about one namespace/name depends on, the time aside.
#[derive(Clone, Copy, Debug)]
pub struct NameInput<'a> {
    pub key: &'a PodKey,
    pub orders: &'a PodOrders,
    /// Every incarnation that the agent has a record of, the wished one included once
    /// [`Action::PreparePod`] has written its record. In any order.
    pub known: &'a [Incarnation],
    /// What runs: [`super::Picture::current`]. The worker does not plan before the runtime was
    /// listed.
    pub observed: &'a ObservedPod,
    /// What happened before. The worker calls [`PodMemory::look`] with the same picture first.
    pub memory: &'a PodMemory,
    pub settings: &'a PlanSettings,
    /// Runtime and network readiness (`not_ready`, `network_not_ready`), as the PLEG published them
    /// last.
    pub runtime: &'a RuntimeView,
    /// What has ended is on disk, so that it is not run again for want of its containers. Without
    /// that [`PodOrders::clear_dead`] waits.
    pub records_saved: bool,
}

/// An incarnation (uid) of the name, as its record has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Incarnation {
    pub uid: PodUid,
    /// The pod as it runs; gives the grace period and the order of its stop. `None` when the record
    /// was damaged.
    pub pod: Option<Arc<k8s::Pod>>,
    /// `status.startTime`: when it was accepted.
    pub started_at: Option<Timestamp>,
    /// It is being removed, since an action with [`super::KillPurpose::Retire`] (or whoever else
    /// asks for its removal) wrote this. Never taken back: a pod wished again under the same uid is
    /// finished first and then starts clean.
    pub kill: Option<KillDeadline>,
    /// How it ended, from an earlier [`PodPlan::terminal`].
    pub terminal: Option<Terminal>,
    /// Its containers that a shutdown of the machine ended: they had not done their work, whatever
    /// their exit code.
    pub interrupted: Vec<ContainerId>,
}

/// Until when an incarnation has time to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillDeadline {
    /// The whole grace period, in seconds.
    pub grace_seconds: u32,
    /// Boot time at which it ends. (On disk it is a wall time: boot time does not survive a
    /// reboot.)
    pub at: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSettings {
    /// This agent's owner id: sandboxes with another one, or none, are never touched.
    pub owner: Box<str>,
    /// Longest crash-loop delay, 1 s to 300 s (`crashLoopBackOff.maxContainerRestartPeriod`).
    pub crash_loop_cap: Duration,
}

/// What to do now about one name, and what to tell about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    /// To be executed in order. After a failed action the worker goes on with the next one only
    /// where [`Action::failure_ends_pass`] says so; after the last (or an abandoned) action it
    /// plans again.
    pub actions: Vec<Action>,
    /// Boot time at which to plan again although nothing happened: a back-off or deadline ends.
    pub wake_at: Option<Duration>,
    /// Containers of the wished incarnation that are to start and don't run, with the reason where
    /// it is more than `ContainerCreating`. Key: container name.
    pub waiting: BTreeMap<Box<str>, Waiting>,
    /// Why the wished pod as a whole does not get on (for `PodView::waiting`); one sentence.
    pub blocked: Option<String>,
    /// Events that belong to a state rather than to an action; pass them through
    /// [`PodMemory::announce`], which lets each occasion through once.
    pub notices: Vec<Notice>,
    /// The wished incarnation has ended for good: to be kept in its record and given back in
    /// [`Incarnation::terminal`], so that it is not run again, whatever becomes of its containers.
    pub terminal: Option<Terminal>,
    /// The wished incarnation is ended because the machine goes down: to be shown, and not to be
    /// kept.
    pub interrupted: Option<Terminal>,
    /// Nothing of the held incarnation is left, and nothing of it runs until the hold is lifted.
    pub held: bool,
    /// Dead containers of the wished incarnation that are only there for people to look at.
    pub dead: usize,
}

/// Why a container waits: `state.waiting` of its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// `CrashLoopBackOff`, `ErrImagePull`, ...
    pub reason: String,
    /// One sentence; may be empty.
    pub message: String,
}

/// An event to be told once per occasion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What makes it the same occasion (the id of the crashed container, ...).
    pub occasion: String,
    pub event: Event,
}

/// The end of a pod: its final phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub phase: TerminalPhase,
    /// `status.reason`: `DeadlineExceeded`, later `Evicted`; `None` when its containers just ended.
    pub reason: Option<String>,
    /// `status.message`.
    pub message: Option<String>,
}

impl Terminal {
    /// `status.reason` of a pod that ended because the machine goes down.
    pub(crate) const SHUTDOWN: &'static str = "Terminated";

    #[must_use]
    pub fn by_shutdown() -> Self {
        let message = "Pod was terminated in response to imminent node shutdown.";
        Self {
            phase: TerminalPhase::Failed,
            reason: Some(Self::SHUTDOWN.to_owned()),
            message: Some(message.to_owned()),
        }
    }

    /// Whether it ended because the machine goes down.
    #[must_use]
    pub fn is_by_shutdown(&self) -> bool {
        self.reason.as_deref() == Some(Self::SHUTDOWN)
    }
}

/// A phase that is never left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminalPhase {
    /// Every container ended with code 0.
    Succeeded,
    /// Some did not, or the pod was ended from outside.
    Failed,
}

impl TerminalPhase {
    /// The phase as `status.phase` spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}
