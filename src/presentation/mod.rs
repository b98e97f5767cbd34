//! What people read about pods and the node, in the terminal and on the status page alike.

mod manifest;
mod node;
mod pod;
mod pressure;
mod text;

pub(crate) use manifest::{finding, findings, verdict_row};
pub(crate) use node::{UNREAD, manifest_counts, pleg, pod_counts, runtime};
pub(crate) use pod::{columns, exit, ip, manifest, reason_beside, started, updating};
pub(crate) use pressure::{bytes, shown};
pub(crate) use text::{age_at, one_line, time_and_age};
