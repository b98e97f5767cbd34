//! `PodStatus` as the kubelet would report it: a pure function of the spec, what runs and the plan.
//!
//! The worker calls [`pod_status`] after each pass and hands the result back as `previous` the next time:
//! transition times, IPs of a pod that is going away and the last known states live there.
//! Writing statuses anywhere is not done here.

use crate::{
    model::{ObservedPod, PodUid, k8s},
    plan::{PodPlan, Terminal},
};
use jiff::Timestamp;
use std::net::IpAddr;

/// What the status of one incarnation is made from.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// Metadata and spec as running.
    pub pod: &'a k8s::Pod,
    /// Which incarnation.
    pub uid: &'a PodUid,
    /// What runs under its name: [`crate::plan::Picture::current`].
    pub observed: &'a ObservedPod,
    /// The last plan of the name; `None` for an incarnation that it was not made for (a retiring one).
    pub plan: Option<&'a PodPlan>,
    /// How it ended for good: [`PodPlan::terminal`], else from its record.
    pub terminal: Option<&'a Terminal>,
    /// When it was accepted, from its record.
    pub started_at: Option<Timestamp>,
    /// It is being removed.
    pub terminating: bool,
    /// The status reported last for the same uid (kept in its record over a restart of the agent).
    pub previous: Option<&'a k8s::PodStatus>,
}

/// What statuses of all pods have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusContext {
    /// Name of the runtime (CRI `Version`): `containerd`.
    pub runtime_name: String,
    /// The node's addresses, primary first; empty when the agent has no node object.
    pub host_ips: Vec<IpAddr>,
}
