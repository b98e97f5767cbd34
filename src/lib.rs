//! nodelet: a node agent for Linux that runs Kubernetes pods from manifests on a CRI runtime.
//!
//! The crate is one program; it is a library as well so that its tests and benchmarks can name its
//! parts. ARCHITECTURE.md has the flow, the code map and the invariants.

mod admission;
pub mod agent;
pub mod api;
mod beneath;
mod blocking;
pub mod cgroup;
pub mod cli;
pub mod clock;
pub mod config;
pub mod cri;
mod desired;
mod document;
mod event;
mod eviction;
mod files;
mod hostfiles;
mod housekeeping;
pub mod image;
mod logging;
mod machine;
mod machine_report;
pub mod manifest;
mod mirror;
pub mod model;
mod node;
mod notify;
mod patch;
mod plan;
mod pleg;
pub mod podspec;
mod pressure;
mod serve;
pub mod signals;
mod source;
mod status;
mod store;
mod systemd;
pub mod volume;
mod worker;
