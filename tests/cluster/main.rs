//! Nodes in a real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler
//! of Kubernetes 1.36, each test with one of its own. Needs their programs and metrics-server, or Go
//! to build them (`tests/upstream/build`); says so when it must skip.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    unreachable_pub,
    reason = "a panic is how a test fails"
)]

#[path = "../controlplane/mod.rs"]
mod controlplane;
#[path = "../support/mod.rs"]
mod support;
#[path = "../upstream/mod.rs"]
mod upstream;

mod addresses;
mod agent;
mod answers;
mod certificates;
mod clock;
mod credentials;
mod faults;
mod identity;
mod kubeadm;
mod kubelet_api;
mod kubelet_api_alone;
mod links;
mod load;
mod metrics_server;
mod network;
mod objects;
mod planes;
mod reference;
mod refusals;
mod rivals;
mod status_page;

use controlplane::{ControlPlane, Options};
use std::path::PathBuf;
use support::{skips::skip_without, slot::Slot};

/// Where the control plane's programs are; `None` when the test must be skipped.
fn programs() -> Option<PathBuf> {
    let found = upstream::control_plane();
    if found.is_none() {
        skip_without(&[(false, "a control plane or Go to build it")]);
    }
    found
}

/// A control plane of one's own, in a slot of its own.
fn control_plane(options: &Options) -> Option<(ControlPlane, Slot)> {
    let programs = programs()?;
    let slot = Slot::take();
    Some((ControlPlane::start(&slot, &programs, options), slot))
}
