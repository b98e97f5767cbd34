//! nodelet: a node agent for Linux that runs Kubernetes pods from manifests on a CRI runtime.
//!
//! The crate is one program; it is a library as well so that its tests and benchmarks can name its
//! parts. ARCHITECTURE.md has the flow, the code map and the invariants.

pub mod admission;
pub mod agent;
pub mod api;
mod beneath;
pub mod blocking;
pub mod cgroup;
pub mod cli;
pub mod clock;
pub mod config;
pub mod cri;
pub mod desired;
pub mod document;
pub mod event;
pub mod eviction;
pub mod files;
pub mod hostfiles;
pub mod housekeeping;
pub mod image;
pub mod logging;
pub mod manifest;
pub mod mirror;
pub mod model;
pub mod node;
pub mod notify;
pub mod patch;
pub mod plan;
pub mod pleg;
pub mod podspec;
pub mod pressure;
pub mod serve;
pub mod signals;
pub mod source;
pub mod status;
pub mod store;
pub mod systemd;
pub mod volume;
pub mod worker;
