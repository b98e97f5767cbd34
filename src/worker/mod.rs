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
    model::{ObservedPod, RuntimeView},
    plan::PodOrders,
};
use std::sync::Arc;

/// The input of a worker; only the latest value counts.
#[derive(Clone, Debug)]
struct Input {
    /// Decisions of other parts about this pod name.
    orders: Arc<PodOrders>,
    observed: Arc<ObservedPod>,
    runtime: Arc<RuntimeView>,
    /// Counts the inputs, so that the set knows whether a report answers the latest.
    sequence: u64,
}
