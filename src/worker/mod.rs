//! Workers: one task per pod name, the only one that makes mutating runtime calls for it.
//!
//! ```text
//!  sources ─► desired ─┐                     ┌─► execute ─► runtime, cgroups, volumes, host files
//!  pleg updates ───────┼─► set ─► Input ─► task ─► plan_name ─► actions ─► outcomes ─┐
//!  pleg health ────────┘         (watch)     └◄────────────────────────────────────┘
//!                                              └─► Report ─► set ─► views (watch)
//! ```
//!
//! The set routes and publishes; it decides which names have a worker and nothing else. A task
//! observes, decides (`plan`), acts (`execute`) and publishes its view, then sleeps until its input
//! changes or its plan's `wake_at`. `execute` holds no policy.
//!
//! Invariant: nothing is planned before the runtime was listed once.
//! Invariant: a mutating call is awaited to its end, also when the agent shuts down; only an image
//! pull is dropped, when its pod is no longer wanted.

mod execute;
mod records;
mod report;
mod set;
mod task;

pub use execute::{Host, HostPaths, HostSettings, Leftovers};
pub(crate) use set::any_changed;
pub use set::{Known, SetInputs, SetView, WorkerSet};

use crate::{
    model::{DesiredPod, Hold, HoldStop, ObservedPod, PodUid, RuntimeView, Shutdown, priority_of},
    plan::Wish,
};
use std::sync::Arc;

/// What a worker is told; the latest wins.
#[derive(Clone, Debug)]
struct Input {
    intent: Intent,
    observed: Arc<ObservedPod>,
    runtime: Arc<RuntimeView>,
    shutdown: Option<Shutdown>,
    /// This incarnation is not to run for now.
    hold: Option<Held>,
    /// The wished incarnation has to wait before it begins, and why.
    waits: Option<Arc<str>>,
    /// A disk is short: no dead container is kept for people to look at.
    clear_dead: bool,
    /// Counts the inputs, so that the set knows whether a report answers the latest.
    sequence: u64,
}

/// An incarnation that is not to run for now, and why.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    uid: PodUid,
    hold: Arc<Hold>,
}

impl Input {
    /// The incarnation that is to be killed without asking the runtime.
    fn killed_at_once(&self) -> Option<&Held> {
        self.hold.as_ref().filter(|held| held.hold.stop == HoldStop::AtOnce)
    }

    /// Whether this incarnation is not to run for now.
    fn holds(&self, uid: &PodUid) -> bool {
        self.hold.as_ref().is_some_and(|held| held.uid == *uid)
    }

    /// Whether the wished pod is to end because the machine goes down.
    fn ends(&self, pod: &DesiredPod) -> bool {
        let priority = priority_of(&pod.pod);
        self.shutdown.as_ref().is_some_and(|shutdown| shutdown.seconds_for(priority).is_some())
    }
}

/// What the sources want of a name, owned. The plan's [`Wish`] borrows from it.
#[derive(Clone, Debug, PartialEq)]
enum Intent {
    Run(Arc<DesiredPod>),
    /// What runs goes on, and nothing is started.
    Keep {
        pod: Arc<DesiredPod>,
        why: &'static str,
    },
    Gone,
    Undecided,
}

impl Intent {
    fn as_wish(&self) -> Wish<'_> {
        match self {
            Self::Run(pod) => Wish::Run(pod),
            Self::Keep { pod, why } => Wish::Keep { pod, why },
            Self::Gone => Wish::Gone,
            Self::Undecided => Wish::Undecided,
        }
    }

    /// Whether the sources are known not to want this incarnation.
    fn is_without(&self, uid: &crate::model::PodUid) -> bool {
        match self {
            Self::Run(pod) => pod.uid != *uid,
            Self::Gone => true,
            Self::Keep { .. } | Self::Undecided => false,
        }
    }

    fn pod(&self) -> Option<&Arc<DesiredPod>> {
        match self {
            Self::Run(pod) | Self::Keep { pod, .. } => Some(pod),
            Self::Gone | Self::Undecided => None,
        }
    }

    /// The wished pod, when it is this incarnation.
    fn desired(&self, uid: &PodUid) -> Option<Arc<DesiredPod>> {
        self.pod().filter(|pod| pod.uid == *uid).cloned()
    }
}
