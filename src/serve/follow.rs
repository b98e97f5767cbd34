//! Answers that go on: first everything that there is, then each change, one [`FollowLine`] a line.
//!
//! ```text
//!  watch channel ─► what differs from the last value taken ─► queue ─► line by line to the client
//! ```
//!
//! Nothing is polled. While a client does not read, its queue stays as it is and the channel keeps
//! only the newest value. So such a client costs one queue of references and one old value, and a
//! later look takes up what differs by then. [`Pace`] tells the connection whether the client still
//! reads. Followers have a limited number of places, so that other requests always find one.

use super::{FollowLine, health};
use crate::{
    event::{self, Entry, EventLog},
    model::{CollectOrdered as _, NodeView, PodKey, PodView, PodViews},
};
use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::stream::unfold;
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The most followers at a time.
pub(super) const FOLLOWERS: usize = 8;

/// Answers with everything in `followed` and with what becomes of it. Refuses when all places are
/// taken.
pub(super) fn follow(followed: Followed, places: &Arc<Semaphore>) -> Response {
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        let text = format!("{FOLLOWERS} other commands follow this agent already");
        return health::plain((StatusCode::TOO_MANY_REQUESTS, text));
    };
    let pace = Pace::default();
    let follower = Follower { followed, queue: VecDeque::new(), pace: pace.clone(), _place: place };
    let lines = unfold(follower, |mut follower| async move {
        let line = follower.next().await?;
        Some((to_bytes(&line), follower))
    });
    let json = [(header::CONTENT_TYPE, "application/json")];
    let mut response = (json, Body::from_stream(lines)).into_response();
    response.extensions_mut().insert(pace);
    response
}

fn to_bytes(line: &FollowLine) -> Result<Bytes, serde_json::Error> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes.into())
}

/// Whether the client of an answer that goes on reads. It is an extension of the response.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace(Arc<Steps>);

#[derive(Debug, Default)]
struct Steps {
    /// Every line was taken, and there is no further one.
    waits: AtomicBool,
    /// A line was asked for since the last look.
    moved: AtomicBool,
}

impl Pace {
    /// The client has taken what there was.
    pub(super) fn moves(&self) {
        self.0.moved.store(true, Ordering::Relaxed);
    }

    /// Whether there is nothing for the client to take.
    pub(super) fn waits(&self, waits: bool) {
        self.0.waits.store(waits, Ordering::Relaxed);
    }

    /// True unless a line has been waiting for the client since the last call.
    pub(super) fn goes_on(&self) -> bool {
        let moved = self.0.moved.swap(false, Ordering::Relaxed);
        moved || self.0.waits.load(Ordering::Relaxed)
    }
}

/// What is followed, and its last value that was taken.
pub(super) enum Followed {
    Events {
        log: watch::Receiver<Arc<EventLog>>,
        node_name: Arc<str>,
        taken: Option<Arc<EventLog>>,
    },
    Pods {
        pods: watch::Receiver<Arc<PodViews>>,
        node: watch::Receiver<Arc<NodeView>>,
        taken: Option<Pods>,
    },
}

/// What lines about pods are made from.
#[derive(Default)]
pub(super) struct Pods {
    views: Arc<PodViews>,
    /// The pods that run from their last good revision.
    last_good: BTreeSet<PodKey>,
}

/// A line that waits for the client.
#[derive(Debug)]
enum Waiting {
    /// Becomes an object when its turn comes.
    Event(Arc<Entry>, Arc<str>),
    Line(FollowLine),
}

struct Follower {
    followed: Followed,
    queue: VecDeque<Waiting>,
    pace: Pace,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    /// The next line; `None` when the agent ends.
    async fn next(&mut self) -> Option<FollowLine> {
        self.pace.moves();
        loop {
            match self.queue.pop_front() {
                Some(Waiting::Event(entry, node_name)) => {
                    let event = event::to_object(&entry, &node_name);
                    return Some(FollowLine::Event(Box::new(event)));
                }
                Some(Waiting::Line(line)) => return Some(line),
                None => {}
            }
            self.pace.waits(true);
            let changed = self.followed.changed().await;
            self.pace.waits(false);
            changed.ok()?;
            self.queue = self.followed.take_changes();
        }
    }
}

impl Followed {
    /// Waits until there may be something to tell; not at all the first time.
    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        match self {
            Self::Events { taken: None, .. } | Self::Pods { taken: None, .. } => Ok(()),
            Self::Events { log, .. } => log.changed().await,
            // Cancel-safe: both arms only wait for a value that has not been seen.
            Self::Pods { pods, node, .. } => tokio::select! {
                changed = pods.changed() => changed,
                changed = node.changed() => changed,
            },
        }
    }

    fn take_changes(&mut self) -> VecDeque<Waiting> {
        match self {
            Self::Events { log, node_name, taken } => {
                let now = Arc::clone(&log.borrow_and_update());
                let changes = event_changes(taken.as_deref(), &now, node_name);
                *taken = Some(now);
                changes
            }
            Self::Pods { pods, node, taken } => {
                let views = Arc::clone(&pods.borrow_and_update());
                let last_good =
                    node.borrow_and_update().last_good().into_iter().cloned().collect_ordered();
                let now = Pods { views, last_good };
                let changes = pod_changes(taken.as_ref(), &now);
                *taken = Some(now);
                changes
            }
        }
    }
}

/// The entries that were made or counted since an earlier log; at the beginning all that are kept.
/// An entry that has changed is another one in memory, because the earlier log shares those that
/// have not.
fn event_changes(
    before: Option<&EventLog>,
    now: &EventLog,
    node_name: &Arc<str>,
) -> VecDeque<Waiting> {
    let known: BTreeSet<*const Entry> =
        before.iter().flat_map(|log| &log.entries).map(Arc::as_ptr).collect_ordered();
    let changed = now.entries.iter().filter(|entry| !known.contains(&Arc::as_ptr(entry)));
    let waiting = |entry: &Arc<Entry>| Waiting::Event(Arc::clone(entry), Arc::clone(node_name));
    let mut lines: VecDeque<Waiting> = changed.map(waiting).collect();
    match before {
        // The entries that are kept have all changed, so there may have been more.
        Some(before) if lines.len() >= event::MAX_ENTRIES || now.dropped > before.dropped => {
            lines.push_front(Waiting::Line(FollowLine::Lost));
        }
        Some(_) => {}
        None => lines.push_back(Waiting::Line(FollowLine::Begun)),
    }
    lines
}

/// The pods that have come, changed or gone; at the beginning all of them.
fn pod_changes(before: Option<&Pods>, now: &Pods) -> VecDeque<Waiting> {
    let nothing = Pods::default();
    let old = before.unwrap_or(&nothing);
    let line = |pods: &Pods, view: &Arc<PodView>, gone| {
        let last_good = pods.last_good.contains(&view.key);
        Waiting::Line(FollowLine::Pod { view: Arc::clone(view), last_good, gone })
    };
    let come = now.views.values().filter(|view| {
        let is_same = old.views.get(&view.key).is_some_and(|old| Arc::ptr_eq(old, view));
        !is_same || old.last_good.contains(&view.key) != now.last_good.contains(&view.key)
    });
    let gone = old.views.values().filter(|view| !now.views.contains_key(&view.key));
    let lines = come.map(|view| line(now, view, false));
    let lines = lines.chain(gone.map(|view| line(old, view, true)));
    lines.chain(before.is_none().then_some(Waiting::Line(FollowLine::Begun))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{Annotations, Correlator},
        model::{Event, EventKind, EventTarget, Now},
    };
    use std::time::Duration;

    fn observe(correlator: &mut Correlator, pod: usize) {
        let key = PodKey::new("default", format!("pod-{pod}").as_str());
        let target = EventTarget::Pod { uid: key.name.as_ref().into(), key, field_path: None };
        let event =
            Event { target, kind: EventKind::Normal, reason: "Pulled", message: "m".into() };
        let now = Now { boot: Duration::from_secs(1), wall: jiff::Timestamp::UNIX_EPOCH };
        correlator.observe_annotated(event, Annotations::new(), now);
    }

    fn changes(before: Option<&EventLog>, now: &EventLog) -> VecDeque<Waiting> {
        event_changes(before, now, &"n1".into())
    }

    /// `pod-1 x1`, `Lost`, ...
    fn shown(lines: &VecDeque<Waiting>) -> Vec<String> {
        let show = |line: &Waiting| match line {
            Waiting::Event(entry, _) => match &entry.event.target {
                EventTarget::Pod { key, .. } => format!("{} x{}", key.name, entry.count),
                EventTarget::Node => "node".to_owned(),
            },
            Waiting::Line(FollowLine::Pod { view, last_good, gone }) => {
                format!("{} last good {last_good} gone {gone}", view.key)
            }
            Waiting::Line(line) => format!("{line:?}"),
        };
        lines.iter().map(show).collect()
    }

    #[test]
    fn entries_are_told_when_they_are_made_and_when_they_are_counted() {
        let mut correlator = Correlator::default();
        observe(&mut correlator, 1);
        observe(&mut correlator, 2);
        let first = correlator.log();
        assert_eq!(shown(&changes(None, &first)), ["pod-1 x1", "pod-2 x1", "Begun"]);
        assert!(changes(Some(&first), &correlator.log()).is_empty());
        observe(&mut correlator, 3);
        observe(&mut correlator, 1);
        let second = correlator.log();
        assert_eq!(shown(&changes(Some(&first), &second)), ["pod-3 x1", "pod-1 x2"]);
    }

    #[test]
    fn a_follower_is_told_that_events_are_missing() {
        let mut correlator = Correlator::default();
        observe(&mut correlator, 0);
        let first = correlator.log();
        for pod in 1..event::MAX_ENTRIES {
            observe(&mut correlator, pod);
        }
        let full = changes(Some(&first), &correlator.log());
        assert_eq!(shown(&full).first().unwrap(), "pod-1 x1", "pod-0 is still there");
        observe(&mut correlator, event::MAX_ENTRIES);
        observe(&mut correlator, event::MAX_ENTRIES + 1);
        let overrun = changes(Some(&first), &correlator.log());
        assert_eq!(shown(&overrun)[..2], ["Lost", "pod-2 x1"]);
        let before = correlator.log();
        correlator.lost(1);
        assert_eq!(shown(&changes(Some(&before), &correlator.log())), ["Lost"]);
    }

    fn pod_view(name: &str) -> (PodKey, Arc<PodView>) {
        let view = serde_json::json!({
            "key": {"namespace": "default", "name": name}, "uid": "u1", "pod": null, "status": {},
            "origin": null, "terminating": false, "hung": null, "waiting": null,
        });
        let view: PodView = serde_json::from_value(view).unwrap();
        (view.key.clone(), Arc::new(view))
    }

    #[test]
    fn pods_are_told_when_they_come_change_and_go() {
        let views: PodViews = [pod_view("a"), pod_view("b"), pod_view("c")].into();
        let first = Pods { views: Arc::new(views.clone()), last_good: BTreeSet::new() };
        let all = ["a", "b", "c"].map(|name| format!("default/{name} last good false gone false"));
        let begun = shown(&pod_changes(None, &first));
        assert_eq!((&begun[..3], &*begun[3]), (&all[..], "Begun"));
        let mut views = views;
        views.remove(&PodKey::new("default", "a"));
        views.extend([pod_view("b"), pod_view("d")]);
        let last_good = BTreeSet::from([PodKey::new("default", "c")]);
        let second = Pods { views: Arc::new(views), last_good };
        assert_eq!(
            shown(&pod_changes(Some(&first), &second)),
            [
                "default/b last good false gone false",
                "default/c last good true gone false",
                "default/d last good false gone false",
                "default/a last good false gone true",
            ]
        );
        assert!(pod_changes(Some(&second), &second).is_empty());
    }

    #[test]
    fn a_client_that_takes_no_line_does_not_go_on() {
        let pace = Pace::default();
        pace.0.moved.store(true, Ordering::Relaxed);
        assert!(pace.goes_on() && !pace.goes_on());
        pace.0.waits.store(true, Ordering::Relaxed);
        assert!(pace.goes_on() && pace.goes_on(), "there is nothing to take");
    }
}
