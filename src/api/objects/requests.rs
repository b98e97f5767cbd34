//! When each request for something of a pod is sent, and the last answer for it.
//!
//! ```text
//!  wanted ─► due ─► sent ─┬─► answered ─► due again after a time, or never
//!             ▲           └─► failed ─► due after a pause
//!             └───────────────────────────┘
//! ```
//!
//! Times are boot times. The last good answer stays until a newer one comes. After a restart of the
//! agent all tokens are requested again; claims that were bound are saved.

use super::{
    super::{ApiError, Pause},
    AUTHORIZER_LAG,
};
use crate::model::{CollectOrdered as _, PodUid};
use std::{collections::BTreeMap, fmt, time::Duration};

/// Identifies what a pod requests. `Display` names it for people.
pub(super) trait RequestKey: Ord + Clone + fmt::Display {
    /// The pod.
    fn pod(&self) -> &PodUid;
}

/// The outcome of a request.
pub(super) enum RequestOutcome<V> {
    Answered {
        value: V,
        /// When it is requested again; `None` when the answer is final.
        again_after: Option<Duration>,
    },
    Refused {
        why: String,
        /// The authorizer may not know the pod yet.
        is_forbidden: bool,
    },
    /// The API server is away or has a problem of its own.
    Failed(String),
}

impl<V> From<ApiError> for RequestOutcome<V> {
    fn from(error: ApiError) -> Self {
        let why = error.to_string();
        if error.is_refusal() {
            Self::Refused { why, is_forbidden: error.code() == Some(403) }
        } else {
            Self::Failed(why)
        }
    }
}

/// All requests of one kind. `C` is what a request needs besides its key, and `V` is the answer.
pub(super) struct Requests<K, C, V>(BTreeMap<K, PodRequest<C, V>>);

struct PodRequest<C, V> {
    context: C,
    answer: Option<V>,
    trouble: Option<RequestTrouble>,
    turn: RequestTurn,
    pause: Pause,
}

/// Why the last request failed.
struct RequestTrouble {
    why: String,
    /// The boot time from which it is published; `None` while the API server is away.
    told_from: Option<Duration>,
}

enum RequestTurn {
    /// A request is due at this boot time.
    DueAt(Duration),
    /// A request is under way.
    Busy,
    /// The answer is final.
    Done,
}

impl RequestTurn {
    /// Makes the next request due now.
    fn hurry(&mut self, now: Duration) {
        match self {
            Self::DueAt(at) => *at = now,
            Self::Busy | Self::Done => {}
        }
    }
}

impl<K, C, V> Default for Requests<K, C, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: RequestKey, C: Clone, V: Clone> Requests<K, C, V> {
    /// Keeps these and no others. New ones are due at once.
    pub(super) fn want(&mut self, wanted: BTreeMap<K, C>, now: Duration) {
        self.0.retain(|key, _| wanted.contains_key(key));
        for (key, context) in wanted {
            self.0.entry(key).or_insert_with(|| PodRequest {
                context,
                answer: None,
                trouble: None,
                turn: RequestTurn::DueAt(now),
                pause: Pause::default(),
            });
        }
    }

    /// The next request that is due, and marks it as being under way. Those without an answer come
    /// first.
    pub(super) fn next(&mut self, now: Duration) -> Option<(K, C)> {
        let due = self.0.iter_mut().filter(|(_, request)| match request.turn {
            RequestTurn::DueAt(at) => at <= now,
            RequestTurn::Busy | RequestTurn::Done => false,
        });
        let (key, request) = due.min_by_key(|(_, request)| request.answer.is_some())?;
        request.turn = RequestTurn::Busy;
        Some((key.clone(), request.context.clone()))
    }

    /// Records the outcome of a request.
    pub(super) fn settle(&mut self, key: &K, outcome: RequestOutcome<V>, now: Duration) {
        // The pod may have been removed in the meantime.
        let Some(request) = self.0.get_mut(key) else { return };
        let (trouble, pause) = match outcome {
            RequestOutcome::Answered { value, again_after } => {
                request.answer = Some(value);
                request.trouble = None;
                request.pause.reset();
                request.turn =
                    again_after.map_or(RequestTurn::Done, |delay| RequestTurn::DueAt(now + delay));
                return;
            }
            RequestOutcome::Refused { why, is_forbidden } => {
                let before = request.trouble.as_ref().and_then(|trouble| trouble.told_from);
                if before.is_none() {
                    // Failures before it were those of a server that was away.
                    request.pause.reset();
                }
                let patience = if is_forbidden { AUTHORIZER_LAG } else { Duration::ZERO };
                let told_from = before.unwrap_or(now + patience);
                let trouble = RequestTrouble { why, told_from: Some(told_from) };
                (trouble, request.pause.after_refusal())
            }
            RequestOutcome::Failed(why) => {
                (RequestTrouble { why, told_from: None }, request.pause.after_failure())
            }
        };
        if request.trouble.as_ref().is_none_or(|before| before.why != trouble.why) {
            tracing::warn!(uid = %key.pod(), err = trouble.why, "cannot get the {key}");
        }
        request.trouble = Some(trouble);
        request.turn = RequestTurn::DueAt(now + pause);
    }

    /// Makes failed requests due at once, because the connection to the API server is a new one.
    pub(super) fn hurry(&mut self, now: Duration) {
        let failed = self.0.values_mut().filter(|request| request.trouble.is_some());
        failed.for_each(|request| request.turn.hurry(now));
    }

    /// Makes all requests due at once whose answer is not final.
    pub(super) fn repeat(&mut self, now: Duration) {
        self.0.values_mut().for_each(|request| request.turn.hurry(now));
    }

    /// The boot time at which the next request is due.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let due = |request: &PodRequest<C, V>| match request.turn {
            RequestTurn::DueAt(at) => Some(at),
            RequestTurn::Busy | RequestTurn::Done => None,
        };
        self.0.values().filter_map(due).min()
    }

    /// The answers that are known, or why there is none. The first repetitions of a refused request
    /// come within seconds, so the caller asks again soon enough to publish the refusal.
    pub(super) fn answers<A>(
        &self,
        now: Duration,
        answer: impl Fn(Result<&V, &str>) -> A,
    ) -> BTreeMap<K, A> {
        let known = |request: &PodRequest<C, V>| match (&request.answer, &request.trouble) {
            (Some(value), _) => Some(answer(Ok(value))),
            (None, Some(RequestTrouble { why, told_from: Some(from) })) if *from <= now => {
                Some(answer(Err(why)))
            }
            (None, _) => None,
        };
        let all = self.0.iter();
        all.filter_map(|(key, request)| Some((key.clone(), known(request)?))).collect_ordered()
    }
}
