//! What the agent knows of all pods together.

use super::{ContainerId, PodUid};
use std::collections::BTreeSet;

/// Which sources are complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completeness {
    /// Neither the API server nor all sources of static pods.
    #[default]
    None,
    /// The API server alone: a pod of it that it does not have any more is unwanted, whatever a
    /// source of static pods has.
    Api,
    /// All sources of static pods: a static pod that none of them has is unwanted, whatever the API
    /// server has.
    Static,
    /// Every source.
    All,
}

/// What must not be taken for a leftover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The runtime was listed and each pod inspected, and every source has published something, for
    /// example its last good manifests: every pod that runs is known. It stays true until the agent
    /// ends.
    pub listed: bool,
    /// In addition, which sources were read completely: an unknown pod of theirs is not wanted. A
    /// refused manifest may leave a source of static pods incomplete for ever.
    pub complete: Completeness,
    /// Pods that are wished, recorded or found in the runtime, including pods of other programs.
    pub uids: BTreeSet<PodUid>,
    /// Containers found in the runtime.
    pub containers: BTreeSet<ContainerId>,
    /// `cpu.shares` of the tier of burstable pods.
    pub burstable_shares: u64,
}

impl Known {
    /// Every source was read completely.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete == Completeness::All
    }

    /// True when nothing of a pod is left and no source wishes it.
    #[must_use]
    pub fn is_gone(&self, uid: &PodUid) -> bool {
        self.is_complete() && !self.uids.contains(uid)
    }

    /// As [`Self::is_gone`], for a pod of the API server.
    #[must_use]
    pub fn is_gone_from_api(&self, uid: &PodUid) -> bool {
        matches!(self.complete, Completeness::Api | Completeness::All) && !self.uids.contains(uid)
    }
}
