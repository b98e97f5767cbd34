//! What the agent knows of all pods together.

use super::{ContainerId, PodUid};
use std::collections::BTreeSet;

/// What must not be taken for a leftover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The runtime was listed and each pod inspected, and every source has published something, for
    /// example its last good manifests: every pod that runs is known. It stays true until the agent
    /// ends.
    pub listed: bool,
    /// In addition, every source was read completely: an unknown pod is not wanted. A refused
    /// manifest may prevent this for ever.
    pub complete: bool,
    /// Pods that are wished, recorded or found in the runtime, including pods of other programs.
    pub uids: BTreeSet<PodUid>,
    /// Containers found in the runtime.
    pub containers: BTreeSet<ContainerId>,
    /// `cpu.shares` of the tier of burstable pods.
    pub burstable_shares: u64,
}

impl Known {
    /// True when nothing of a pod is left and no source wishes it.
    #[must_use]
    pub fn is_gone(&self, uid: &PodUid) -> bool {
        self.complete && !self.uids.contains(uid)
    }
}
