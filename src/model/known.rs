//! What the agent knows of all pods together.

use super::{ContainerId, PodUid};
use std::collections::BTreeSet;

/// What must not be taken for a leftover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The runtime was listed, and every source has told something, be it the last good manifests:
    /// every pod that runs is known. For good, as long as the agent lives.
    pub listed: bool,
    /// Every source has said everything besides: who is not known is not wanted. With a manifest
    /// that is refused this may never come.
    pub complete: bool,
    /// Pods that are wished, recorded or found in the runtime, whoever made them.
    pub uids: BTreeSet<PodUid>,
    /// Containers found in the runtime.
    pub containers: BTreeSet<ContainerId>,
    /// `cpu.shares` of the tier of burstable pods.
    pub burstable_shares: u64,
}

impl Known {
    /// Whether nothing of a pod is left, and nobody wants it.
    #[must_use]
    pub fn is_gone(&self, uid: &PodUid) -> bool {
        self.complete && !self.uids.contains(uid)
    }
}
