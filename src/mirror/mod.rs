//! Static pods in the API: what is to be written for one pod name, decided from what runs and what
//! the API server has.
//!
//! ```text
//!  PodView (what runs) ─────────────────┐           MirrorStep: create, delete,
//!  SeenPod (what the watch shows,       ├─► plan ─► patch the status ─► the API server
//!    or a newer answer: MirrorMemory) ──┘                                     │
//!  MirrorMemory: what was answered, refused ◄── settle ◄── Answer ◄───────────┘
//! ```
//!
//! A mirror pod only shows a static pod. Nothing in here touches a container: a mirror that is
//! deleted is made again, and one that can't become what it should be (another manifest, another
//! Node object, a status that may not be left) is replaced.
//!
//! Invariant: an answer of the API server counts until the watch shows it or something newer, so
//! that nothing is written twice because the watch is slow.

mod bound;
mod contest;
mod memory;
mod plan;
mod pod;
mod refusal;
mod seen;
mod status;

pub use bound::{bound_pods, recorded_pods, wants_the_same};
pub use memory::{Answer, MirrorMemory, Next, Sight};
pub use plan::{Case, MirrorStep, plan};
pub use pod::mirror_pod;
pub use refusal::{Denial, MirrorRefusal, Refusals};
pub use seen::{Deletion, SeenPod};

#[cfg(test)]
mod tests;
