//! nodelet: a node agent for Linux that runs Kubernetes pods from manifests on a CRI runtime.
//!
//! The crate is one program; it is a library as well so that its tests and benchmarks can name its
//! parts. ARCHITECTURE.md has the flow, the code map and the invariants.

#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod admission;
pub mod agent;
pub mod api;
mod beneath;
mod blocking;
mod certificate;
pub mod cgroup;
pub mod cli;
pub mod clock;
pub mod config;
pub mod cri;
mod dbus;
#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod desired;
mod document;
mod echo;
#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod event;
mod eviction;
mod files;
#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod handler;
#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod hostfiles;
mod housekeeping;
pub mod image;
mod keep_alive;
mod log_rotation;
mod log_rotator;
mod logging;
mod logs;
mod machine;
mod machine_report;
pub mod manifest;
mod measure;
mod metrics;
mod mirror;
pub mod model;
pub mod names;
mod node;
mod node_view;
mod notify;
mod patch;
#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod plan;
#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod pleg;
pub mod podspec;
mod presentation;
mod pressure;
mod probe;
mod prober;
mod program;
mod publish;
mod serve;
mod shutdown;
pub mod signals;
#[cfg(test)]
#[path = "../tests/support/skips.rs"]
mod skips;
mod source;
mod stats;
mod status;
mod status_page;
#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod store;
mod systemd;
mod verifier;
pub mod volume;
#[allow(missing_docs, reason = "public for tests/workers alone")]
pub mod worker;
