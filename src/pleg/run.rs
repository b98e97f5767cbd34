//! The loop: decides when to list, keeps inspections going, gives out news.
//!
//! One listing is under way at a time; pods asked for in the meantime share the next one. Between
//! listings lies a pause in proportion to what the last one took, so that a batch of starts is not
//! slowed down by being watched; after a quiet time there is none.

use super::{
    Health, Pleg, PlegSettings, PlegUpdate,
    core::{Found, Inspection, Listing, News, Object, RuntimeSnapshot, Scope, Subject},
    events,
    hints::Hints,
    inspect, readiness,
};
use crate::{
    clock,
    cri::{CriError, RuntimeClient},
    metrics::{metrics, unix},
    model::{ObservedContainer, PodKey},
    publish::PublishIfChanged as _,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// Pause after a listing that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// A listing is followed by a pause this many times as long as it took.
const SPACING: u32 = 10;
const LONGEST_SPACING: Duration = Duration::from_millis(100);
/// With more pods asked for at once everything is listed: that is cheaper than one by one.
const FEW: usize = 2;
/// Inspections at a time of pods that seem unchanged since before the agent began.
const UNHURRIED: usize = 2;
/// Such an inspection is followed by a pause this many times as long as it took: hundreds of them
/// would take the processors from the runtime while it starts the pods that are new.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_millis(10);
const HINTS: usize = 64;
/// The runtime's conditions are asked for this often while one does not hold.
const STATUS_WHEN_NOT_READY: Duration = Duration::from_secs(1);
const FAR: Duration = Duration::from_secs(3600);

/// Something that was waited for.
pub(super) enum Done {
    Listed { took: Duration, result: Result<Listing, CriError> },
    Inspected { key: PodKey, object: Object, found: Found },
    Readiness(Result<readiness::Answer, CriError>),
    EndSeen { key: PodKey, container: Option<Box<ObservedContainer>> },
}

/// A listing under way.
struct InFlight {
    scope: Scope,
    asked: BTreeSet<PodKey>,
    /// When it began, as [`clock::awake`].
    began: Duration,
}

/// An inspection under way. Without a deadline it is past it: hung, and not counted.
struct Inspecting {
    key: PodKey,
    begun: Instant,
    deadline: Option<Instant>,
    /// It was in [`Inspections::unhurried`].
    unhurried: bool,
}

pub(super) struct Loop {
    pub(super) client: RuntimeClient,
    settings: PlegSettings,
    looks: mpsc::Receiver<PodKey>,
    published: watch::Sender<Arc<Health>>,
    pub(super) health: Health,
    heartbeat: watch::Sender<Duration>,
    pub(super) picture: RuntimeSnapshot,
    pub(super) tasks: JoinSet<Done>,
    pub(super) listing: Listings,
    inspections: Inspections,
    pub(super) hints: Hints,
    pub(super) status: Status,
}

/// When to list what.
pub(super) struct Listings {
    in_flight: Option<InFlight>,
    /// Asked for since the last listing began.
    pub(super) wanted: BTreeSet<PodKey>,
    /// When everything is to be listed.
    pub(super) due: Instant,
    /// Whatever is asked for, nothing is listed before.
    not_before: Instant,
    /// When everything was listed last.
    began: Option<Instant>,
    /// When the last listing of everything that succeeded began, as [`clock::awake`].
    listed: Option<Duration>,
    fails: bool,
}

/// Inspections to make and under way.
#[derive(Default)]
struct Inspections {
    queue: VecDeque<Inspection>,
    /// Those of pods that seem to run as before the agent began. After a restart of the agent there
    /// are hundreds; they leave room for the pods in `queue`.
    unhurried: VecDeque<Inspection>,
    /// Until when none of `unhurried` begins.
    rest: Option<Instant>,
    running: BTreeMap<Object, Inspecting>,
}

impl Inspections {
    /// Adds what a listing has found. Pods that somebody asked for come before the others.
    fn add(&mut self, found: Vec<Inspection>, scope: &Scope) {
        match scope {
            Scope::All => self.queue.extend(found),
            Scope::Asked => found.into_iter().rev().for_each(|one| self.queue.push_front(one)),
        }
    }

    /// Moves inspections of pods that somebody asks for into the queue.
    fn hurry(&mut self, asked: &BTreeSet<PodKey>) {
        let wanted = |(key, _): &Inspection| asked.contains(key);
        let all = mem::take(&mut self.unhurried).into_iter();
        let (wanted, others): (VecDeque<_>, _) = all.partition(wanted);
        self.unhurried = others;
        self.queue.extend(wanted);
    }

    /// The next inspection to make, and whether it is one of `unhurried`. At most `most` are under
    /// way at a time, those that hang not counted. At most [`UNHURRIED`] of them are of pods that
    /// seem unchanged, unless one hangs. Of two places or more, such a pod gets the last one, so
    /// that a queue that is never empty does not stop them.
    fn next(&mut self, most: usize, now: Instant) -> Option<(Inspection, bool)> {
        self.rest.take_if(|rest| *rest <= now);
        let counted = || self.running.values().filter(|i| i.deadline.is_some());
        let (all, unhurried) = (counted().count(), counted().filter(|i| i.unhurried).count());
        if all >= most {
            return None;
        }
        let hangs = all < self.running.len();
        let takes_last = all + 1 == most && unhurried < UNHURRIED.min(most - 1);
        let takes_idle = self.queue.is_empty() && (hangs || unhurried < UNHURRIED);
        if (takes_last || takes_idle)
            && self.rest.is_none()
            && let Some(next) = self.unhurried.pop_front()
        {
            return Some((next, true));
        }
        self.queue.pop_front().map(|next| (next, false))
    }

    /// Takes an inspection that has ended off the list; whether it had hung.
    fn end(&mut self, object: &Object, now: Instant) -> bool {
        let Some(ended) = self.running.remove(object) else { return false };
        if ended.unhurried {
            let rest = now.saturating_duration_since(ended.begun).saturating_mul(REST);
            self.rest = Some(now + rest.min(LONGEST_REST));
        }
        ended.deadline.is_none()
    }
}

/// When to ask for the runtime's conditions.
pub(super) struct Status {
    /// `None` while an answer is awaited.
    pub(super) due: Option<Instant>,
    /// When to see how old the last answers are, while one is awaited.
    recheck: Instant,
    /// When the last answer said ready, as [`clock::awake`].
    good: Option<Duration>,
    fails: bool,
    /// Version and cgroup driver are to be asked for: it may be another runtime than before.
    pub(super) about: bool,
}

impl Loop {
    pub(super) fn new(pleg: Pleg) -> (Self, mpsc::Sender<PlegUpdate>) {
        let now = Instant::now();
        let health = Health::clone(&pleg.health.borrow());
        let this = Self {
            client: pleg.client,
            settings: pleg.settings,
            looks: pleg.looks,
            published: pleg.health,
            heartbeat: pleg.heartbeat,
            health,
            picture: RuntimeSnapshot::default(),
            tasks: JoinSet::new(),
            listing: Listings {
                in_flight: None,
                wanted: BTreeSet::new(),
                due: now,
                not_before: now,
                began: None,
                listed: None,
                fails: false,
            },
            inspections: Inspections::default(),
            hints: Hints::default(),
            status: Status { recheck: now, due: Some(now), good: None, fails: false, about: true },
        };
        (this, pleg.updates)
    }

    pub(super) async fn run(
        mut self,
        updates: mpsc::Sender<PlegUpdate>,
        shutdown: CancellationToken,
    ) {
        let (hint, mut hints) = mpsc::channel(HINTS);
        let mut follower = JoinSet::new();
        follower.spawn(events::follow(self.client.clone(), hint));
        loop {
            self.heartbeat.send_replace(clock::awake());
            self.advance();
            let wake = self.wake_at();
            // Every arm is cancel safe: channels keep what was not received, join_next keeps what
            // was not joined, and a reserved place that is dropped is given back.
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if self.done(done).is_break() {
                        return;
                    }
                }
                Some(key) = self.looks.recv() => {
                    self.listing.wanted.insert(key);
                }
                Some(hint) = hints.recv() => self.hint(hint),
                place = updates.reserve(), if self.picture.has_news() => {
                    let Ok(place) = place else { return };
                    if let Some(news) = self.picture.take_news() {
                        let News { listed_at, complete, pods, listed } = news;
                        place.send(PlegUpdate { listed_at, complete, pods, listed });
                    }
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Begins whatever is due.
    fn advance(&mut self) {
        let now = Instant::now();
        // Whatever else was asked for by now shares the listing.
        while let Ok(key) = self.looks.try_recv() {
            self.listing.wanted.insert(key);
        }
        self.overdue_inspections(now);
        self.later_hints(now);
        if self.status.due.is_some_and(|due| due <= now) {
            self.status.due = None;
            self.status.recheck = now + self.settings.status_period;
            let client = self.client.clone();
            let about = mem::take(&mut self.status.about);
            self.tasks.spawn(async move { Done::Readiness(readiness::ask(&client, about).await) });
        }
        if self.awaits() && self.status.recheck <= now {
            self.status.recheck = now + self.settings.status_period;
            readiness::aged(&mut self.health, self.status.good, clock::awake());
            self.publish();
        }
        if self.listing.in_flight.is_none() && self.listing.not_before <= now {
            // A listing of everything waits for the inspections of the one before it.
            let due = self.listing.due <= now && self.picture.is_settled();
            if due || self.listing.wanted.len() > FEW {
                self.list(Scope::All);
            } else if !self.listing.wanted.is_empty() {
                self.list(Scope::Asked);
            }
        }
        self.inspect_more(now);
    }

    /// Whether the runtime owes an answer that says how it is.
    fn awaits(&self) -> bool {
        self.status.due.is_none() || self.listing.in_flight.is_some()
    }

    fn wake_at(&self) -> Instant {
        let mut wake = Instant::now() + FAR;
        if self.awaits() {
            wake = self.status.recheck;
        }
        if self.listing.in_flight.is_none() {
            let due = if self.listing.wanted.is_empty() {
                self.listing.due
            } else {
                self.listing.not_before
            };
            // While inspections run, their ends wake the loop.
            if !self.listing.wanted.is_empty() || self.picture.is_settled() {
                wake = wake.min(due.max(self.listing.not_before));
            }
        }
        let deadlines = self.inspections.running.values().filter_map(|i| i.deadline);
        let later = self.hints.later.values().map(|(due, _)| *due);
        let rest = self.inspections.rest.filter(|_| !self.inspections.unhurried.is_empty());
        deadlines.chain(later).chain(rest).chain(self.status.due).fold(wake, Instant::min)
    }

    fn list(&mut self, scope: Scope) {
        let asked = mem::take(&mut self.listing.wanted);
        let (of, began) = (asked.clone(), clock::awake());
        self.listing.in_flight = Some(InFlight { scope: scope.clone(), asked: of, began });
        let client = self.client.clone();
        let began = (self.settings.clock)().boot;
        if scope == Scope::All {
            self.count_relist();
            // What becomes due while it is under way needs another listing.
            self.listing.due = Instant::now() + FAR;
        }
        self.tasks.spawn(async move {
            let begun = Instant::now();
            let result = inspect::list(&client, began, &scope, &asked).await;
            Done::Listed { took: begun.elapsed(), result }
        });
    }

    fn count_relist(&mut self) {
        let now = Instant::now();
        if let Some(before) = self.listing.began.replace(now) {
            metrics().relist_interval_seconds.observe((now - before).as_secs_f64());
        }
    }

    fn inspect_more(&mut self, now: Instant) {
        let most = self.settings.inspect_concurrency;
        while let Some(((key, subject), unhurried)) = self.inspections.next(most, now) {
            let deadline = Some(now + self.settings.inspect_patience);
            let inspecting = Inspecting { key: key.clone(), begun: now, deadline, unhurried };
            self.inspections.running.insert(subject.object(), inspecting);
            self.tasks.spawn(inspection(self.client.clone(), key, subject));
        }
    }

    fn overdue_inspections(&mut self, now: Instant) {
        let mut any = false;
        for (object, inspecting) in &mut self.inspections.running {
            if inspecting.deadline.is_some_and(|deadline| deadline <= now) {
                inspecting.deadline = None;
                any = true;
                warn!(pod = %inspecting.key, ?object, "an inspection hangs");
                self.picture.overdue(&inspecting.key, object);
            }
        }
        if any {
            self.publish();
        }
    }

    /// Takes in what was waited for. Breaks when that is lost: whatever waits for it would wait
    /// for ever, and the end of the loop ends the agent.
    fn done(&mut self, done: Result<Done, JoinError>) -> ControlFlow<()> {
        match done {
            Ok(Done::Listed { took, result }) => self.listed(took, result),
            Ok(Done::Inspected { key, object, found }) => {
                let hung = self.inspections.end(&object, Instant::now());
                let more = self.picture.inspected(&key, &object, found);
                self.inspections.queue.extend(more);
                self.early_ends();
                self.soon_if_uncertain();
                if hung {
                    info!(pod = %key, ?object, "an inspection that hung has ended");
                    self.publish();
                }
            }
            Ok(Done::Readiness(answer)) => self.readiness(answer),
            Ok(Done::EndSeen { key, container }) => {
                self.hints.waits = self.hints.waits.saturating_sub(1);
                if let Some(container) = container {
                    self.picture.ended(&key, *container);
                }
                self.listing.wanted.insert(key);
            }
            // Tasks are never aborted while the loop runs, so this one panicked.
            Err(err) => {
                error!(%err, "a task of the relist loop failed");
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn listed(&mut self, took: Duration, result: Result<Listing, CriError>) {
        let now = Instant::now();
        let Some(InFlight { scope, asked, began }) = self.listing.in_flight.take() else { return };
        self.listing.not_before = now + took.saturating_mul(SPACING).min(LONGEST_SPACING);
        let listing = match result {
            Ok(listing) => listing,
            Err(err) => {
                if !self.listing.fails {
                    warn!(%err, "listing what runs failed; trying again");
                }
                self.listing.fails = true;
                self.listing.wanted.extend(asked);
                self.listing.not_before = now + AFTER_FAILURE;
                self.listing.due = self.listing.not_before;
                self.publish();
                return;
            }
        };
        if mem::take(&mut self.listing.fails) {
            info!("listing what runs succeeds again");
            self.status.due = self.status.due.map(|_| now);
        }
        match scope {
            Scope::All => {
                metrics().relist_seconds.observe(took.as_secs_f64());
                metrics().relisted_at.set(unix((self.settings.clock)().wall));
                self.health.last_relist = Some(listing.began);
                self.listing.listed = Some(began);
                self.listing.due = self.listing.due.min(now + self.period());
            }
            Scope::Asked => metrics().node.pod_relist_seconds.observe(took.as_secs_f64()),
        }
        let inspections = self.picture.apply(listing, &scope, &asked);
        let unhurried =
            |(key, _): &Inspection| !asked.contains(key) && self.picture.seems_unchanged(key);
        let (unhurried, found): (Vec<_>, _) = inspections.into_iter().partition(unhurried);
        self.inspections.unhurried.extend(unhurried);
        self.inspections.hurry(&asked);
        self.inspections.add(found, &scope);
        self.early_ends();
        self.soon_if_uncertain();
        self.publish();
    }

    fn period(&self) -> Duration {
        match self.health.events_connected {
            true => self.settings.relist_period_with_events,
            false => self.settings.relist_period,
        }
    }

    /// What could not be inspected is looked at again without waiting for the long period, and so
    /// is an end that is waited for no longer and does not show yet.
    fn soon_if_uncertain(&mut self) {
        let late = self.hints.waits == 0 && self.picture.has_late_ends();
        if late || self.picture.has_suspects() {
            self.listing.due = self.listing.due.min(Instant::now() + self.settings.relist_period);
        }
    }

    fn readiness(&mut self, answer: Result<readiness::Answer, CriError>) {
        if let Err(err) = &answer {
            if !self.status.fails {
                warn!(%err, "the runtime does not report its status");
            }
            self.status.fails = true;
            self.status.about = true;
        } else if mem::take(&mut self.status.fails) {
            info!("the runtime reports its status again");
        }
        if let Some(err) = answer.as_ref().ok().and_then(readiness::Answer::driver_error) {
            warn!(%err, "the runtime does not report its cgroup driver");
            self.status.about = true;
        }
        readiness::take(&mut self.health, &mut self.status.good, answer, clock::awake());
        let runtime = &self.health.runtime;
        let ready = runtime.not_ready.is_none() && runtime.network_not_ready.is_none();
        let period = if ready && !self.status.fails {
            self.settings.status_period
        } else {
            STATUS_WHEN_NOT_READY.min(self.settings.status_period)
        };
        self.status.due = Some(Instant::now() + period);
        self.publish();
    }

    /// Publishes the health of the relist loop if it has changed.
    pub(super) fn publish(&mut self) {
        self.health.unhealthy = readiness::unhealthy(self.listing.listed, clock::awake());
        self.health.hung = self.picture.hung();
        self.published.publish_if_changed(Arc::new(self.health.clone()));
    }
}

async fn inspection(client: RuntimeClient, key: PodKey, subject: Subject) -> Done {
    let object = subject.object();
    let found = inspect::inspect(&client, subject).await;
    Done::Inspected { key, object, found }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::{NetworkMode, ObservedSandbox, SandboxState};

    fn inspection_of(pod: &str) -> Inspection {
        let sandbox = ObservedSandbox {
            id: pod.into(),
            uid: pod.into(),
            attempt: 0,
            state: SandboxState::Ready,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            ips: Vec::new(),
            network: NetworkMode::Pod,
            owner: None,
        };
        (PodKey::new("default", pod), Subject::Sandbox(sandbox))
    }

    /// Begins the next inspections, and returns their pods.
    fn begin_at(now: Instant, inspections: &mut Inspections, most: usize) -> Vec<String> {
        let mut begun = Vec::new();
        while let Some(((key, subject), unhurried)) = inspections.next(most, now) {
            begun.push(key.name.to_string());
            let inspecting = Inspecting { key, begun: now, deadline: Some(now), unhurried };
            inspections.running.insert(subject.object(), inspecting);
        }
        begun
    }

    fn begin(inspections: &mut Inspections, most: usize) -> Vec<String> {
        begin_at(Instant::now(), inspections, most)
    }

    fn end_at(now: Instant, inspections: &mut Inspections, pod: &str) {
        let object = inspection_of(pod).1.object();
        assert!(inspections.running.contains_key(&object), "{pod}");
        assert!(!inspections.end(&object, now), "{pod} did not hang");
    }

    fn end(inspections: &mut Inspections, pod: &str) {
        let begun = inspections.running[&inspection_of(pod).1.object()].begun;
        end_at(begun, inspections, pod);
    }

    #[test]
    fn a_queue_that_is_never_empty_stops_no_unchanged_pod() {
        let mut inspections = Inspections::default();
        inspections.queue.extend(["q0", "q1", "q2", "q3", "q4"].map(inspection_of));
        inspections.unhurried.extend(["u0", "u1", "u2", "u3"].map(inspection_of));
        assert_eq!(begin(&mut inspections, 4), ["q0", "q1", "q2", "u0"]);
        end(&mut inspections, "q0");
        assert_eq!(begin(&mut inspections, 4), ["u1"]);
        end(&mut inspections, "q1");
        assert_eq!(begin(&mut inspections, 4), ["q3"], "two at a time");
        end(&mut inspections, "u0");
        assert_eq!(begin(&mut inspections, 4), ["u2"]);
        for pod in ["q2", "q3", "u1"] {
            end(&mut inspections, pod);
        }
        assert_eq!(begin(&mut inspections, 4), ["q4", "u3"]);
    }

    #[test]
    fn unchanged_pods_leave_the_runtime_time_for_others() {
        let mut inspections = Inspections::default();
        inspections.unhurried.extend(["u0", "u1", "u2", "u3", "u4"].map(inspection_of));
        let begun = Instant::now();
        let after = |micros| begun + Duration::from_micros(micros);
        assert_eq!(begin_at(begun, &mut inspections, 8), ["u0", "u1"]);
        end_at(after(500), &mut inspections, "u0");
        assert_eq!(inspections.rest, Some(after(2000)));
        assert!(begin_at(after(1999), &mut inspections, 8).is_empty());
        inspections.queue.push_back(inspection_of("q0"));
        assert_eq!(begin_at(after(1999), &mut inspections, 8), ["q0"], "it does not wait");
        assert_eq!(begin_at(after(2000), &mut inspections, 8), ["u2"]);
        end_at(after(900_000), &mut inspections, "u2");
        assert_eq!(inspections.rest, Some(after(910_000)), "of a slow runtime");
    }

    #[test]
    fn hurried_inspections_do_not_stop_those_of_unchanged_pods() {
        let mut inspections = Inspections::default();
        inspections.queue.extend(["q0", "q1"].map(inspection_of));
        inspections.unhurried.extend(["u0", "u1", "u2"].map(inspection_of));
        assert_eq!(begin(&mut inspections, 8), ["q0", "q1", "u0", "u1"]);
        let hung = inspection_of("u0").1.object();
        inspections.running.get_mut(&hung).unwrap().deadline = None;
        assert_eq!(begin(&mut inspections, 8), ["u2"]);
    }
}
