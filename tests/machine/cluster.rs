//! A control plane on the host, for machines that are nodes of it. The tests add what they need to
//! the type, each in its module.

use crate::{
    controlplane::{ControlPlane, Options},
    machine::HOST,
    support::{skips::skip_without, slot::Slot},
    upstream,
};
use std::path::PathBuf;

/// Fields are dropped in this order.
pub struct Cluster {
    pub plane: ControlPlane,
    pub programs: PathBuf,
    pub slot: Slot,
}

impl Cluster {
    /// A control plane with these options, at the address by which machines reach the host; `None`
    /// where there are no programs to start.
    pub fn start(options: Options) -> Option<Self> {
        let Some(programs) = upstream::control_plane() else {
            skip_without(&[(false, "a control plane or Go to build it")]);
            return None;
        };
        let slot = Slot::take();
        let plane = ControlPlane::start(&slot, &programs, &options.address(HOST));
        Some(Self { plane, programs, slot })
    }
}
