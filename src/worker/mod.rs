//! Workers: one task for each pod name. It is the only one that makes mutating runtime calls for
//! the name.
//!
//! ```text
//!  sources ─► desired ─┐                     ┌─► execute ─► runtime, cgroups, volumes, host files
//!  pleg updates ───────┼─► set ─► Input ─► task ─► plan_name ─► actions ─► outcomes ─┐
//!  pleg health ────────┘         (watch)     └◄────────────────────────────────────┘
//!                                              └─► Report ─► set ─► views (watch)
//! ```
//!
//! The set passes inputs on, decides with `admission` which pods may run, and publishes. A task
//! observes, decides (`plan`), acts (`execute`) and publishes its view, and then sleeps until its
//! input changes or its plan's `wake_at` comes. `execute` holds no policy.
//!
//! Invariant: nothing is planned before the runtime was listed once.
//!
//! Invariant: a mutating call is awaited to its end, also when the agent stops. Only an image pull
//! and a hook are dropped, when their pod is no longer wanted or a person wants a restart. A pod that
//! is to end does not wait for a stop of containers after which it was to go on (`earlier`).

mod counted;
mod deadline;
mod earlier;
mod execute;
mod objects;
mod perform;
mod records;
mod report;
mod set;
mod task;
mod update;

pub use execute::{Host, HostSettings, Leftovers, StartTurns, Turn, UserNamespaces, VolumeTurns};
pub use set::{Asking, Known, SetInputs, SetView, WorkerSet};

use crate::{
    model::{NodeObjects, ObservedPod, PodProbes, RuntimeView},
    plan::PodOrders,
};
use std::sync::Arc;

/// The input of a worker. Only the latest value counts.
#[derive(Clone, Debug)]
struct Input {
    /// What other parts have decided about this pod name.
    orders: Arc<PodOrders>,
    observed: Arc<ObservedPod>,
    runtime: Arc<RuntimeView>,
    /// What the probes of the pod's containers have found.
    probes: Arc<PodProbes>,
    /// ConfigMaps and Secrets.
    objects: Arc<NodeObjects>,
    /// Counts the inputs, so that the set knows whether a report answers the latest one.
    sequence: u64,
}
