//! Pods from the API server: a node with a private containerd, in a control plane of Kubernetes
//! 1.36 with all its controllers. Needs root, their programs, or Go to build them
//! (`tests/upstream/build`); says so when it must skip.

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

mod clock;
mod cluster;
mod demo;
mod eviction;
mod failures;
mod lifecycle;
mod node;
mod node_failure;
mod objects;
mod overtaken_stops;
mod rejoin;
mod runtime;
mod runtime_faults;
mod scale;
mod two_nodes;
mod updates;
mod versions;
mod volumes;
