//! The Node object: what the agent says of its machine to an API server.
//!
//! ```text
//!  NodeReport (what the machine is like) ─┬─► new_node            first registration
//!  Node as the API server has it ─────────┼─► reconciled          metadata of one that was there before
//!                                         └─► status              what its status should be, and what to tell people
//! ```
//!
//! Pure. `crate::agent` fills the report, `crate::api` carries out what is decided here. The rules
//! are the kubelet's (pkg/kubelet/kubelet_node_status.go and nodestatus/setters.go of 1.36), with
//! two departures: every cause of a node that is not ready is named, and a node without an address
//! keeps the addresses it had.

mod conditions;
mod host;
mod lease;
mod object;
mod posting;
mod report;
mod status;

pub use host::{HostState, host_warnings};
pub use lease::{lease, renewed};
pub use object::{new_node, reconciled, static_only_taint, taint_note};
pub use posting::{Posting, ReportPeriods};
pub use report::{NodeRef, NodeReport, Registration, resources};
pub use status::{Computed, schedulable, status};

#[cfg(test)]
mod tests;
