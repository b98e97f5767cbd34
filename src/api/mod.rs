//! The Kubernetes API server, where the agent has one (`--kubeconfig`): reports the node and its
//! pods, and reads the objects that pods from there need.
//!
//! ```text
//!  kubeconfig, certificates ─► connection ─► Link ─┬─► reflect ─► what the API server has: our Node, our pods
//!                                                  ├─► node    ─► registration, status       (decided by crate::node)
//!                                                  ├─► lease   ─► kube-node-lease/NAME, on a connection of its own
//!                                                  ├─► pods    ─► mirror pods, their status  (decided by crate::mirror)
//!                                                  ├─► objects ─► what pods of the API server read there
//!                                                  ├─► events
//!                                                  ├─► reviews ─► users of the HTTPS API and what they may do
//!                                                  ├─► identity ─► certificates: requested, renewed
//!                                                  └─► view    ─► the view of the cluster, for people
//! ```
//!
//! No static pod waits for anything in here. A pod of the API server waits for its objects before a
//! start, and keeps running without them. Every task is level-triggered: it compares what the node
//! is like with what the API server was last seen to have and writes the difference, so that an
//! absence of any length ends in one write per object. Every request has a deadline, every pause is
//! capped at [`MAX_PAUSE`], or at [`MAX_REFUSAL_PAUSE`] where the API server answers and refuses.

mod answer;
mod client;
mod connection;
mod credentials;
mod error;
mod events;
mod identity;
mod kubeconfig;
mod lease;
mod node;
mod objects;
mod plugin;
mod pod_cidr;
mod pod_source;
mod pods;
mod reflect;
mod reviews;
mod secret;
mod startup;
mod tls;
mod view;

pub use client::{ApiClient, Clients, Connector, Verb, call, write};
pub use connection::{Link, link_channel};
pub use credentials::Credentials;
pub use error::{ApiError, Status};
pub use events::EventsTask;
pub use identity::{IdentitySettings, IdentityTask, serving_certificate};
pub use lease::{LeaseState, LeaseTask};
pub use node::{NodeState, NodeTask};
pub use objects::ObjectsTask;
pub use pod_cidr::PodCidrTask;
pub use pod_source::PodSourceTask;
pub use pods::{PodsInputs, PodsReport, PodsTask};
pub use reflect::{LeftOut, Reflector, WatchCache, Watched};
pub use reviews::{ReviewError, review_access, review_token};
pub use view::ClusterViewTask;

use std::time::Duration;

/// A request that has no answer after this long has failed (the kubelet's heartbeat deadline).
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// As [`REQUEST_DEADLINE`], for writes of pods and events, which go through admission webhooks: the
/// API server waits for a webhook that hangs, for 10 s by default. If the agent gave up before, a
/// webhook that may fail (`failurePolicy: Ignore`) would make every write fail.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(15);
/// The longest pause between two tries of anything. Longer ones are what makes a node stay away
/// after its API server is back.
pub const MAX_PAUSE: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause after the API server has refused something. It answers, so in most cases an
/// object must change before another try can succeed.
pub const MAX_REFUSAL_PAUSE: Duration = Duration::from_secs(20);

/// The pause before the next try: doubles from 100 ms up to [`MAX_PAUSE`] or
/// [`MAX_REFUSAL_PAUSE`], each shortened at random by up to a quarter, so that the nodes of a
/// cluster do not all come back at once. Failures while the API server is away do not lengthen the
/// pause after a refusal: it may refuse everything for a moment when it is back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pause {
    failures: u32,
    refusals: u32,
}

impl Pause {
    /// How long to wait after one more failure.
    pub fn after_failure(&mut self) -> Duration {
        pause(&mut self.failures, MAX_PAUSE)
    }

    /// How long to wait after one more refusal.
    pub fn after_refusal(&mut self) -> Duration {
        pause(&mut self.refusals, MAX_REFUSAL_PAUSE)
    }

    /// How long to wait after one more error.
    pub fn after(&mut self, error: &ApiError) -> Duration {
        if error.is_refusal() { self.after_refusal() } else { self.after_failure() }
    }

    /// After a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

fn pause(count: &mut u32, longest: Duration) -> Duration {
    let full = FIRST_PAUSE.saturating_mul(1 << (*count).min(8)).min(longest);
    *count = count.saturating_add(1);
    full - jitter(full / 4)
}

/// What does not work, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// One sentence.
    pub what: String,
    /// Wall time of the first failure since the last success.
    pub since: jiff::Timestamp,
}

impl Trouble {
    /// One more failure: the reason may be another one, the time stays. Whether the reason is new.
    pub(crate) fn note(trouble: &mut Option<Self>, what: String, now: jiff::Timestamp) -> bool {
        let since = trouble.as_ref().map_or(now, |before| before.since);
        let is_new = trouble.as_ref().is_none_or(|before| before.what != what);
        *trouble = Some(Self { what, since });
        is_new
    }
}

/// A random time below `most`.
#[must_use]
pub fn jitter(most: Duration) -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    // A new RandomState has new keys: the standard library's own randomness, which is good enough
    // to spread load.
    let random = RandomState::new().hash_one(0_u8);
    let part = u32::try_from(random & 0xffff).unwrap_or_default();
    most.saturating_mul(part) / 0x1_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_below_their_cap() {
        let mut pause = Pause::default();
        let mut full = FIRST_PAUSE;
        for _ in 0..10 {
            let next = pause.after_failure();
            assert!(next <= full && next >= full * 3 / 4, "{next:?} of {full:?}");
            full = (full * 2).min(MAX_PAUSE);
        }
        pause.reset();
        assert!(pause.after_failure() <= FIRST_PAUSE);
    }

    #[test]
    fn refusals_have_longer_pauses_of_their_own() {
        let refused = |code| ApiError::Refused(Box::new(Status { code, ..Status::default() }));
        let mut pause = Pause::default();
        let mut longest = |error: &ApiError| {
            let first = pause.after(error);
            (first, (0..10).map(|_| pause.after(error)).max().unwrap_or_default())
        };
        let (first, last) = longest(&ApiError::Late(REQUEST_DEADLINE));
        assert!(first <= FIRST_PAUSE && last <= MAX_PAUSE, "{first:?} {last:?}");
        let (first, last) = longest(&refused(403));
        assert!(first <= FIRST_PAUSE, "it may only be starting: {first:?}");
        assert!(last > MAX_REFUSAL_PAUSE / 2 && last <= MAX_REFUSAL_PAUSE, "{last:?}");
        let (_, last) = longest(&refused(500));
        assert!(last <= MAX_PAUSE, "{last:?}");
    }
}
