//! Decides what to do next about one pod name: a pure function of what is wished, what runs, what
//! is remembered and the time.
//!
//! ```text
//!  PodOrders ────────────┐
//!  Incarnation[] ────────┤
//!  Picture::current() ───┼─► plan_name ─► PodPlan { actions, wake_at, waiting, ... }
//!  PodMemory ────────────┤                   │ executed in order by the worker
//!  Now ──────────────────┘                   ▼
//!        ▲                              Outcome per action
//!        └── PodMemory::record, Picture::record ──┘   then plan again, until no action is left
//! ```
//!
//! A plan ends after an action whose result later decisions depend on (a created sandbox, a started
//! init container): the worker folds the outcome in and plans again at once, without a relist.
//! Nothing in here waits, retries or talks to anybody; a wrong decision is reproduced from its
//! input. Invariant: no container of the wished incarnation is started while anything of another
//! incarnation of the same name is left.

mod action;
mod asked;
mod backoff;
mod end;
mod ephemeral;
mod gc;
mod init;
mod kill;
mod memory;
mod name;
mod objects;
mod occupancy;
mod orders;
mod outcome;
mod picture;
mod pod;
mod probes;
mod regular;
mod resize;
mod restart;
mod rollback;
mod sandbox;
mod shutdown;
mod types;
mod update;

pub use action::{
    Action, ContainerKind, Crashed, CreateSandbox, KillContainer, KillPod, KillPurpose,
    MIN_STOP_SECONDS, Pull, RemoveContainer, RemoveSandbox, Resize, ResizeContainer, Restart,
    StartContainer,
};
pub use asked::{NoRestart, Restarts, select_restarts};
pub(crate) use kill::{Stop, kind_of};
pub use memory::PodMemory;
pub use name::plan_name;
pub(crate) use occupancy::{Occupancy, Own};
pub use orders::{HeldPod, PodOrders, Wish};
pub use outcome::{Failure, Outcome, Step, Taken};
pub use picture::Picture;
pub(crate) use regular::stops_for_edit;
pub use resize::resize_details;
pub use rollback::{FailedRevision, Rollout, Trial, TrialInput};
pub(crate) use sandbox::serves;
pub use shutdown::NODE_SHUTDOWN;
pub use types::{
    Incarnation, KillDeadline, NameInput, Notice, PlanSettings, PodPlan, Terminal, Waiting,
};
pub use update::{Fetch, Fetched, UpdateInput, UpdatePlan, UpdateWait, plan_update, replaces};

#[cfg(test)]
mod tests;
