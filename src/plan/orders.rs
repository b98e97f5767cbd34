//! The orders for one pod name: everything that is decided outside of its worker.
//!
//! The set of workers makes one [`PodOrders`] value from its whole state and publishes it when it
//! differs from the last one. The worker and its plans read that value. A new order is a field of
//! this type, and nothing else has to pass it on or compare it.

use super::Incarnation;
use crate::model::{
    Asked, DesiredPod, Hold, HoldStop, PodEnd, PodUid, ResizeWait, Shutdown, k8s, priority_of,
};
use crate::podspec::{grace_seconds, has_same_class, is_static};
use std::sync::Arc;

/// Everything that the set of workers tells one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct PodOrders {
    /// What the sources want of the name.
    pub wish: Wish,
    /// The machine is shutting down.
    pub shutdown: Option<Shutdown>,
    /// The incarnation that must not run for now.
    pub hold: Option<HeldPod>,
    /// Why the wished incarnation must wait before it begins; one sentence.
    pub waits: Option<Arc<str>>,
    /// Which pods the wished incarnation waits for before it begins in this boot of the machine; one
    /// sentence.
    pub after: Option<Arc<str>>,
    /// Why the cpu and memory of the wished pod are not changed yet.
    pub resize_wait: Option<Arc<ResizeWait>>,
    /// What people have asked for last.
    pub asked: Option<Arc<Asked>>,
    /// A disk is short: dead containers that are kept only for people to read are removed.
    pub clear_dead: bool,
}

/// What the sources want of a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    Run(Arc<DesiredPod>),
    /// The containers of this pod that run keep running. A kill that has begun is finished, and the
    /// pod ends when the machine shuts down. Apart from that, nothing of a static pod is started,
    /// stopped or removed. A pod of the API server also ends when its time is over, and its
    /// containers start again in the sandbox that runs.
    Keep {
        pod: Arc<DesiredPod>,
        /// What has to be known before more is done; the rest of a sentence.
        why: &'static str,
    },
    /// This pod of the API server is to end, or has ended, and its object is still there: what runs
    /// of it is stopped, and its containers stay for its status and logs.
    End {
        pod: Arc<DesiredPod>,
        end: PodEnd,
    },
    /// Nothing of this name may run, and every source has spoken.
    Gone,
    /// No source wants the name, and some source has not spoken yet. What runs keeps running, and
    /// nothing is done, except that a kill that has begun is finished.
    Undecided,
}

/// An incarnation that must not run for now, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldPod {
    pub uid: PodUid,
    pub hold: Arc<Hold>,
}

impl PodOrders {
    /// The incarnation that is killed at once, without asking the runtime.
    #[must_use]
    pub fn killed_at_once(&self) -> Option<&HeldPod> {
        self.hold.as_ref().filter(|held| held.hold.stop == HoldStop::AtOnce)
    }

    /// The hold on this incarnation, even if the incarnation has ended for good.
    #[must_use]
    pub fn hold_on(&self, uid: &PodUid) -> Option<&Hold> {
        self.hold.as_ref().filter(|held| held.uid == *uid).map(|held| &*held.hold)
    }

    /// Why a static pod must not run for now. An incarnation that has ended for good is not held,
    /// and one of the API server ends for good.
    #[must_use]
    pub fn hold_of(&self, uid: &PodUid, known: Option<&Incarnation>) -> Option<&Hold> {
        let hold = self.hold_on(uid)?;
        let ended = known.is_some_and(|known| known.terminal.is_some());
        let recorded = known.and_then(|known| known.pod.as_deref());
        let wished = self.wish.pod().filter(|pod| pod.uid == *uid).map(|pod| &*pod.pod);
        let from_api = recorded.or(wished).is_some_and(|pod| !is_static(pod));
        (!ended && !from_api).then_some(hold)
    }

    /// True when this incarnation is to be removed: no source wants it, it is held, or it begins
    /// anew.
    #[must_use]
    pub fn retires(&self, uid: &PodUid, known: Option<&Incarnation>) -> bool {
        let recorded = known.and_then(|known| known.pod.as_deref());
        self.wish.is_without(uid)
            || self.hold_of(uid, known).is_some()
            || recorded.is_some_and(|pod| self.wish.begins_anew(uid, pod))
    }

    /// The wished pod, if it is this incarnation and neither ends nor is held.
    #[must_use]
    pub fn goes_on(&self, uid: &PodUid) -> Option<&Arc<DesiredPod>> {
        let pod = match &self.wish {
            Wish::Run(pod) | Wish::Keep { pod, .. } => pod,
            Wish::End { .. } | Wish::Gone | Wish::Undecided => return None,
        };
        let priority = priority_of(&pod.pod);
        let shutdown = self.shutdown.as_ref();
        let shut_down = shutdown.is_some_and(|all| all.seconds_for(priority).is_some());
        (pod.uid == *uid && !shut_down && self.hold_on(uid).is_none()).then_some(pod)
    }

    /// True when this incarnation is to end: no source wishes it, its object was deleted or has a
    /// final phase, it is held, or its turn in a shutdown has come. In a shutdown this is also
    /// true of a pod that no source has spoken of, before its turn.
    #[must_use]
    pub fn ends(&self, uid: &PodUid) -> bool {
        let stays = match &self.wish {
            Wish::Run(_) => self.goes_on(uid).is_some(),
            Wish::Keep { pod, .. } if pod.uid == *uid => self.goes_on(uid).is_some(),
            // Its priority, and so its turn in a shutdown, is not known here.
            Wish::Keep { .. } | Wish::Undecided => self.shutdown.is_none(),
            Wish::End { .. } | Wish::Gone => false,
        };
        !stays || self.hold_on(uid).is_some()
    }

    /// The shortest period, in seconds, that its deletion, a hold or its turn in a shutdown gives
    /// this incarnation to stop; `None` without any of them. A deletion may give more than the grace
    /// period of the pod.
    #[must_use]
    pub fn stop_seconds(&self, uid: &PodUid, pod: Option<&k8s::Pod>) -> Option<u32> {
        let is_wished = self.wish.pod().is_some_and(|wished| wished.uid == *uid);
        // A forced deletion of a pod that a finalizer holds says 0. As in the kubelet, a second is
        // the least, so that a preStop hook begins.
        let deletion = self.deletion_seconds().filter(|_| is_wished).map(|seconds| seconds.max(1));
        let hold = self.hold_on(uid).map(|hold| match hold.stop {
            HoldStop::AtOnce => 0,
            HoldStop::Within(seconds) => seconds,
        });
        let priority = pod.map(priority_of).unwrap_or_default();
        let shutdown = self.shutdown.as_ref().and_then(|all| all.seconds_for(priority));
        let within_grace = hold.into_iter().chain(shutdown).min();
        let within_grace = within_grace.map(|seconds| seconds.min(grace_seconds(pod)));
        deletion.into_iter().chain(within_grace).min()
    }

    /// How long the wished pod has to stop since it was deleted, in seconds.
    #[must_use]
    pub fn deletion_seconds(&self) -> Option<u32> {
        match &self.wish {
            Wish::End { end, .. } => end.deleted,
            Wish::Run(_) | Wish::Keep { .. } | Wish::Gone | Wish::Undecided => None,
        }
    }
}

impl Wish {
    /// True when the sources are known not to want this incarnation.
    #[must_use]
    pub fn is_without(&self, uid: &PodUid) -> bool {
        match self {
            Self::Run(pod) | Self::End { pod, .. } => pod.uid != *uid,
            Self::Gone => true,
            Self::Keep { .. } | Self::Undecided => false,
        }
    }

    /// True when the wished pod has the uid of this recorded incarnation and begins anew all the same:
    /// a manifest that sets the uid was given another QoS class. The class is in the name of the
    /// cgroup, so a pod can't change it.
    #[must_use]
    pub fn begins_anew(&self, uid: &PodUid, recorded: &k8s::Pod) -> bool {
        let Self::Run(pod) = self else { return false };
        pod.uid == *uid && is_static(&pod.pod) && !has_same_class(&pod.pod, recorded)
    }

    /// The pod that may run or keep running, or whose object is still there.
    #[must_use]
    pub fn pod(&self) -> Option<&Arc<DesiredPod>> {
        match self {
            Self::Run(pod) | Self::Keep { pod, .. } | Self::End { pod, .. } => Some(pod),
            Self::Gone | Self::Undecided => None,
        }
    }

    /// The wished pod, if it is this incarnation.
    #[must_use]
    pub fn desired(&self, uid: &PodUid) -> Option<Arc<DesiredPod>> {
        self.pod().filter(|pod| pod.uid == *uid).cloned()
    }
}
