//! Events: what happened to pods and to the node, in the field's words, kept for people to look at.
//!
//! Everybody records through a [`Recorder`], which never waits. One task ([`Events::run`])
//! aggregates (`core`, pure), writes each event to the agent's log once and publishes the
//! [`EventLog`]. Events live in memory only: they are gone with the agent.

mod core;
mod object;

pub use self::core::{Annotations, Correlator, Entry, EventLog, MAX_ENTRIES, Verdict};
pub use object::to_object;

use crate::{
    clock,
    model::{Event, EventKind, EventTarget, Now},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// How many events may wait to be aggregated; more are dropped and counted.
const QUEUE: usize = 1000;
/// How many waiting events are taken in before the log is published again.
const BATCH: usize = 64;

/// An event on its way.
#[derive(Debug)]
struct Told {
    event: Event,
    annotations: Annotations,
    at: Now,
}

/// Takes events from all parts of the agent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<Told>,
    overflow: Arc<AtomicU64>,
}

impl Recorder {
    /// Hands an event on, stamped with the time of this call. Never waits: when [`Events`] lags
    /// 1000 events behind, or has ended, the event is dropped, and counted in
    /// [`EventLog::dropped`].
    pub fn record(&self, event: Event) {
        self.record_annotated(event, Annotations::new());
    }

    /// The same with annotations.
    pub fn record_annotated(&self, event: Event, annotations: Annotations) {
        if self.queue.try_send(Told { event, annotations, at: clock::now() }).is_err() {
            self.overflow.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The task behind the recorders.
#[derive(Debug)]
pub struct Events {
    queue: mpsc::Receiver<Told>,
    overflow: Arc<AtomicU64>,
    log: watch::Sender<Arc<EventLog>>,
}

/// A recorder, the task behind it, and what it publishes.
#[must_use]
pub fn channel() -> (Recorder, Events, watch::Receiver<Arc<EventLog>>) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let (log, published) = watch::channel(Arc::default());
    let overflow = Arc::new(AtomicU64::new(0));
    let recorder = Recorder { queue: sender, overflow: Arc::clone(&overflow) };
    (recorder, Events { queue, overflow, log }, published)
}

impl Events {
    /// Aggregates until `shutdown`, or until the last recorder is gone; what waits by then is taken
    /// in first.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut correlator = Correlator::default();
        let mut batch = Vec::new();
        loop {
            // Cancel-safe: both arms only wait; recv_many takes nothing out before it is ready.
            let stopping = tokio::select! {
                biased;
                count = self.queue.recv_many(&mut batch, BATCH) => count == 0,
                () = shutdown.cancelled() => {
                    self.queue.close();
                    false
                }
            };
            if stopping {
                return;
            }
            self.take_in(&mut correlator, &mut batch);
        }
    }

    fn take_in(&self, correlator: &mut Correlator, batch: &mut Vec<Told>) {
        let lost = self.overflow.swap(0, Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(events = lost, "too many events at once, some were dropped");
            correlator.lost(lost);
        }
        if batch.is_empty() && lost == 0 {
            return;
        }
        for Told { event, annotations, at } in batch.drain(..) {
            let written = event.clone();
            write_to_log(&written, correlator.observe_annotated(event, annotations, at));
        }
        self.log.send_replace(Arc::new(correlator.log()));
    }
}

/// The first event of a kind is logged; repeats are logged only at debug level.
fn write_to_log(event: &Event, verdict: Verdict) {
    let reason = event.reason;
    let message = event.message.as_str();
    let (pod, uid) = match &event.target {
        EventTarget::Node => (None, None),
        EventTarget::Pod { key, uid, .. } => {
            (Some(tracing::field::display(key)), Some(tracing::field::display(uid)))
        }
    };
    match (verdict, event.kind) {
        (Verdict::New, EventKind::Normal) => tracing::info!(pod, uid, reason, "{message}"),
        (Verdict::New, EventKind::Warning) => tracing::warn!(pod, uid, reason, "{message}"),
        (Verdict::Counted(count), _) => tracing::debug!(pod, uid, reason, count, "{message}"),
        (Verdict::Dropped, _) => {
            tracing::debug!(pod, uid, reason, "over the allowance: {message}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PodKey;
    use std::time::Duration;

    fn event(n: usize) -> Event {
        let target = EventTarget::Pod {
            key: PodKey::new("default", "web"),
            uid: "u1".into(),
            field_path: None,
        };
        Event { target, kind: EventKind::Normal, reason: "Pulled", message: format!("m{n}") }
    }

    #[tokio::test]
    async fn recording_never_waits_and_everything_ends_up_in_the_log() {
        let (recorder, events, mut log) = channel();
        for _ in 0..QUEUE + 5 {
            recorder.record(event(1));
        }
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(5), events.run(shutdown)).await.unwrap();
        let log = log.borrow_and_update().clone();
        assert_eq!((log.entries.len(), log.dropped), (1, 5));
        assert_eq!(log.entries[0].count, u32::try_from(QUEUE).unwrap());
        recorder.record(event(2));
    }

    #[tokio::test]
    async fn readers_see_an_event_without_a_shutdown() {
        let (recorder, events, mut log) = channel();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(events.run(CancellationToken::new()));
        recorder.record(event(1));
        tokio::time::timeout(Duration::from_secs(5), log.changed()).await.unwrap().unwrap();
        assert_eq!(log.borrow().entries[0].event.message, "m1");
        drop(recorder);
        tokio::time::timeout(Duration::from_secs(5), tasks.join_next()).await.unwrap();
    }
}
