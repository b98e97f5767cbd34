//! The decisions about pressure: which resources are short, which pod is evicted, the texts about
//! it, and when an evicted pod may come back.
//!
//! ```text
//!  readings ─► state (thresholds) ─► conditions, next look
//!                    └─ acting ─► rank (use of pods) ─► victim ─► message ─► comeback (records) ─► orders
//!                     use of pods ─► limits ─────────────┘
//! ```
//!
//! Everything here is a function of its arguments: nothing reads a clock, a cgroup or a file
//! system. The terms, the rules and the texts are the kubelet's. Comments mark the rules that
//! differ.

mod amount;
mod comeback;
mod limits;
mod message;
mod rank;
mod relief;
mod settings;
mod state;
mod threshold;

pub use amount::{Amount, measured};
pub use comeback::{Cause, EvictionRecord, Evictions, Waiting};
pub use message::{EXCEEDED_GRACE_PERIOD, threshold_met_message};
pub use rank::Spare;
pub use relief::{
    ImagesFreed, MeasurePurpose, MeasuredPod, Outcome, ReclaimOutcome, Relief, ReliefAction,
    ReliefPlan, SEARCH_PERIOD, Seen,
};
pub use settings::{EvictionSettings, MemorySignal, StaticPods};
pub use state::{Acting, PressureStep, ReadingProblem};
pub use threshold::{DEFAULT_HARD, MistakeKind, Setting, Threshold, Written, parse};

#[cfg(test)]
pub use state::PressureState;

#[cfg(test)]
mod tests;
