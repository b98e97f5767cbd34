//! Mirror pods and the status of pods: carries out what [`crate::mirror`] decides.
//!
//! ```text
//!  views, watch, Node, Known ──changed──► the pods concerned ─► queue ─► plan ─► request (a few at a time, one per pod) ─┐
//!        every 10 s, and when the watch is live again: all ─►    ▲                                                       │
//!                                                                └── at once, or after the pod's pause ◄── settle ◄──────┘
//! ```
//!
//! A pod is in the queue at most once, and its step is planned when its turn comes: the latest
//! state counts, however long the API server was away. While it does not answer, one request at a
//! time finds out when it does again.

mod requests;

use super::{
    LeftOut, Link, Pause, Trouble, WatchCache, Watched,
    answer::{self, ObjectHead},
};
use crate::{
    clock,
    metrics::metrics,
    mirror::{Answer, MirrorMemory, MirrorStep, Next, SeenPod, Sight},
    model::{
        Bucket, CollectOrdered as _, Event, EventKind, EventTarget, Known, PodKey, PodUid, PodView,
        PodViews, TerminalPhase,
    },
    node::NodeRef,
    publish::PublishIfChanged as _,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// Requests at a time.
const PARALLEL: usize = 8;
/// Between two comparisons of all pods when nothing tells of a change, and between two tries of
/// what was refused.
const RECONCILE: Duration = Duration::from_secs(10);
/// After this many failures in a row a refused pod is tried again every [`RECONCILE`].
const HASTY: u32 = 5;

impl Watched for SeenPod {
    /// By this measure, most pods weigh 30 KiB, and one of 20 KiB of JSON weighs 150 KiB.
    const MAX_WEIGHT: usize = 48 << 20;
    /// Whoever may make pods must not make the agent deaf to those of others.
    const LEAVES_OUT: bool = true;

    fn key(&self) -> String {
        self.key.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    fn head(&self) -> ObjectHead {
        let Self { uid, version, deletion, .. } = self;
        // There is something to be done for a mirror also after its pod has ended.
        let phase = TerminalPhase::of(&self.status).filter(|_| self.mirrors.is_none());
        ObjectHead { uid: uid.clone(), version: *version, deletion: *deletion, phase }
    }

    fn weight(&self) -> usize {
        let desired = self.desired.as_ref().map(|desired| answer::weight(&*desired.pod));
        let mirrors = self.mirrors.as_ref().map_or(0, |uid| uid.as_str().len());
        let texts = [Some(&self.uid), self.revision.as_ref(), self.owner.as_ref()];
        let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
        answer::weight(&self.status) + desired.unwrap_or_default() + mirrors + texts
    }
    fn share(&mut self, previous: &Self) {
        Self::share(self, previous);
    }
}

/// What the task reads and where it tells.
pub struct PodsInputs {
    /// The way to the API server.
    pub link: watch::Receiver<Link>,
    /// `/api/v1/pods` with `spec.nodeName` of this node.
    pub picture: watch::Receiver<Arc<WatchCache<SeenPod>>>,
    /// What runs here.
    pub views: watch::Receiver<Arc<PodViews>>,
    /// Which pods there still are.
    pub known: watch::Receiver<Arc<Known>>,
    /// This node, once it is registered.
    pub node: watch::Receiver<Option<NodeRef>>,
    /// Takes events; never waits.
    pub events: Box<dyn Fn(Event) + Send + Sync>,
    /// Pods that the API server has bound to the node are run (`apiPods`).
    pub runs_api_pods: bool,
    /// How often it may write (`kubeAPIQPS`, `kubeAPIBurst`); `None` for no limit.
    pub budget: Option<Bucket>,
    /// How far it is.
    pub report: watch::Sender<Arc<PodsReport>>,
}

/// How far what the API server has is what it should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodsReport {
    /// Static pods whose mirror and status are as they should be.
    pub mirrored: usize,
    /// Mirror pods that the watch shows.
    pub shown: usize,
    /// Pods that the API server has bound to the node; `None` when they are not run.
    pub bound: Option<usize>,
    /// Pods for which something has to be written.
    pub waiting: usize,
    /// The last request had no answer, or one that says that the API server can't.
    pub trouble: Option<Trouble>,
    /// What the API server said against single pods.
    pub refused: Vec<(PodKey, String)>,
    /// Pods that were bound to this node through the API, and are not run.
    pub declined: Vec<PodKey>,
    /// Pods whose objects the agent does not read, and why.
    pub left_out: Vec<(PodKey, String)>,
}

/// The task. Nothing else writes pods.
pub struct PodsTask {
    inputs: PodsInputs,
    pods: BTreeMap<PodKey, Pod>,
    queue: VecDeque<PodKey>,
    jobs: JoinSet<(PodKey, MirrorStep, Answer)>,
    /// Leave to send a request that was not needed yet.
    has_token: bool,
    start: Instant,
    /// The watch goes on.
    live: bool,
    /// Pods whose objects are not read.
    left_out: BTreeMap<String, LeftOut>,
    server: Server,
    compare_all_at: Instant,
}

/// One name.
#[derive(Default)]
struct Pod {
    view: Option<Arc<PodView>>,
    shown: Option<Arc<SeenPod>>,
    memory: MirrorMemory,
    turn: Turn,
    /// Something is to be written.
    behind: bool,
    /// When its status changed first, since the API server had it.
    changed_at: Option<Instant>,
    pause: Pause,
    failures: u32,
    not_before: Option<Instant>,
    /// When the minor changes that are left to be written have waited long enough for others.
    delayed_until: Option<Instant>,
}

/// Where a pod is on its way to a request.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    Idle,
    Queued,
    /// A request is under way.
    Busy,
}

/// How the API server fares, by the answers.
#[derive(Default)]
struct Server {
    pause: Pause,
    not_before: Option<Instant>,
    trouble: Option<Trouble>,
}

impl std::fmt::Debug for PodsTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodsTask").field("pods", &self.pods.len()).finish_non_exhaustive()
    }
}

impl PodsTask {
    /// Reads nothing and writes nothing before [`PodsTask::run`].
    #[must_use]
    pub fn new(inputs: PodsInputs) -> Self {
        Self {
            inputs,
            pods: BTreeMap::new(),
            queue: VecDeque::new(),
            jobs: JoinSet::new(),
            has_token: false,
            start: Instant::now(),
            live: false,
            left_out: BTreeMap::new(),
            server: Server::default(),
            compare_all_at: Instant::now(),
        }
    }

    /// Writes until `shutdown`; what is on its way then is dropped.
    pub async fn run(mut self, shutdown: CancellationToken) {
        self.take_in_node();
        self.take_in_views();
        self.take_in_picture();
        loop {
            let turn = self.serve();
            self.publish();
            let wake_at = self.wake_at(turn);
            let inputs = &mut self.inputs;
            // Cancel-safe: every arm only waits; a finished request stays in the set until it is
            // taken out.
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(done) = self.jobs.join_next() => match done {
                    Ok((key, step, answer)) => self.settle(&key, &step, &answer),
                    // Requests are not aborted, so one has panicked; the agent ends over it as over
                    // any other panic.
                    Err(error) => return tracing::error!(err = %error, "a request to the API server has panicked"),
                },
                Ok(()) = inputs.views.changed() => self.take_in_views(),
                Ok(()) = inputs.picture.changed() => self.take_in_picture(),
                Ok(()) = inputs.node.changed() => self.take_in_node(),
                Ok(()) = inputs.link.changed() => self.take_in_link(),
                Ok(()) = inputs.known.changed() => self.take_in_known(),
                () = tokio::time::sleep_until(wake_at) => self.take_in_time(),
            }
        }
    }

    fn take_in_views(&mut self) {
        let views = Arc::clone(&self.inputs.views.borrow_and_update());
        let gone = |key: &PodKey| !views.contains_key(key);
        for (key, pod) in &mut self.pods {
            if pod.view.is_some() && gone(key) {
                pod.view = None;
                pod.hurry();
                enqueue(&mut self.queue, key, pod);
            }
        }
        for (key, view) in views.iter() {
            let pod = self.pods.entry(key.clone()).or_default();
            if pod.view.as_ref().is_none_or(|last| !Arc::ptr_eq(last, view)) {
                let same = pod.view.as_ref().map(|last| Arc::ptr_eq(&last.status, &view.status));
                if same != Some(true) {
                    pod.changed_at.get_or_insert_with(Instant::now);
                }
                pod.view = Some(Arc::clone(view));
                pod.hurry();
                enqueue(&mut self.queue, key, pod);
            }
        }
    }

    fn take_in_picture(&mut self) {
        let picture = Arc::clone(&self.inputs.picture.borrow_and_update());
        let unread: Vec<Arc<SeenPod>> =
            picture.left_out.iter().filter_map(|(key, one)| deleted_unread(key, one)).collect();
        let shown: BTreeMap<&PodKey, &Arc<SeenPod>> = picture
            .objects
            .values()
            .chain(&unread)
            .filter_map(|pod| Some((pod.key.as_ref()?, pod)))
            .collect_ordered();
        for (key, pod) in &mut self.pods {
            if pod.shown.is_some() && !shown.contains_key(key) {
                pod.shown = None;
                enqueue(&mut self.queue, key, pod);
            }
        }
        for (key, seen) in shown {
            let pod = self.pods.entry(key.clone()).or_default();
            let same =
                |last: &Arc<SeenPod>| Arc::ptr_eq(last, seen) || (seen.unread && last == seen);
            if !pod.shown.as_ref().is_some_and(same) {
                pod.shown = Some(Arc::clone(seen));
                enqueue(&mut self.queue, key, pod);
            }
        }
        for (key, left_out) in &picture.left_out {
            let uid = &left_out.head.uid;
            let known = self.left_out.get(key).is_some_and(|known| known.head.uid == *uid);
            // Nothing is missing of a pod that has ended.
            let silent = known || left_out.head.phase.is_some();
            if let (false, Some(key)) = (silent, pod_key(key)) {
                (self.inputs.events)(left_out_event(&key, left_out));
            }
        }
        self.left_out.clone_from(&picture.left_out);
        let was_live = std::mem::replace(&mut self.live, picture.live);
        if picture.live && !was_live {
            self.begin_anew();
        }
    }

    fn take_in_node(&mut self) {
        self.inputs.node.mark_unchanged();
        self.begin_anew();
    }

    fn take_in_link(&mut self) {
        self.inputs.link.mark_unchanged();
        self.begin_anew();
    }

    /// Only a pod without a view depends on it.
    fn take_in_known(&mut self) {
        self.inputs.known.mark_unchanged();
        for (key, pod) in &mut self.pods {
            if pod.view.is_none() {
                enqueue(&mut self.queue, key, pod);
            }
        }
    }

    fn take_in_time(&mut self) {
        let now = Instant::now();
        let all = now >= self.compare_all_at;
        if all {
            self.compare_all_at = now + RECONCILE;
        }
        for (key, pod) in &mut self.pods {
            let due = |at: &mut Instant| now >= *at;
            let is_due = [pod.not_before.take_if(due), pod.delayed_until.take_if(due)];
            if all || is_due.iter().any(Option::is_some) {
                enqueue(&mut self.queue, key, pod);
            }
        }
    }

    /// Whatever failed before may succeed now: everything is compared, and nothing waits.
    fn begin_anew(&mut self) {
        self.server.not_before = None;
        self.server.pause.reset();
        for (key, pod) in &mut self.pods {
            pod.hurry();
            enqueue(&mut self.queue, key, pod);
        }
    }

    /// When time itself changes something, or a request may begin.
    fn wake_at(&self, turn: Option<Instant>) -> Instant {
        let pauses =
            self.pods.values().flat_map(|pod| [pod.not_before, pod.delayed_until]).flatten();
        pauses.chain(turn).fold(self.compare_all_at, Instant::min)
    }

    /// Begins as many requests as may be under way. Gives when the next may begin, where time alone
    /// keeps it.
    fn serve(&mut self) -> Option<Instant> {
        let whole = self.inputs.picture.borrow().whole;
        let clients = self.inputs.link.borrow().clone().filter(|_| whole)?;
        let now = Instant::now();
        if let Some(at) = self.server.not_before.filter(|at| now < *at) {
            return Some(at);
        }
        let parallel = if self.server.trouble.is_some() { 1 } else { PARALLEL };
        let elapsed = self.start.elapsed();
        while !self.queue.is_empty() && self.jobs.len() < parallel {
            if !self.has_token {
                let wait = self.inputs.budget.as_mut().and_then(|budget| budget.wait(elapsed));
                if let Some(wait) = wait {
                    return Some(now + wait.min(RECONCILE));
                }
                self.has_token = true;
            }
            let Some((key, step)) = self.next(elapsed) else {
                let waits = |pod: &Pod| pod.not_before.is_some() || pod.delayed_until.is_some();
                let paused = self.pods.values().any(waits);
                if self.jobs.is_empty() && !paused {
                    // What could not be written is as it should be: nothing is left to ask for that
                    // would show it.
                    self.server = Server::default();
                }
                return None;
            };
            self.has_token = false;
            let client = clients.main.clone();
            self.jobs.spawn(async move {
                let answer = requests::carry_out(&client, &key, &step).await;
                (key, step, answer)
            });
        }
        None
    }

    /// The first in the queue that needs a request.
    fn next(&mut self, now: Duration) -> Option<(PodKey, MirrorStep)> {
        while let Some(key) = self.queue.pop_front() {
            if let Some(step) = self.step_of(&key, now) {
                return Some((key, step));
            }
        }
        None
    }

    /// The request that a pod needs whose turn has come.
    fn step_of(&mut self, key: &PodKey, now: Duration) -> Option<MirrorStep> {
        let pod = self.pods.get_mut(key)?;
        (pod.turn, pod.delayed_until) = (Turn::Idle, None);
        if pod.not_before.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let node = self.inputs.node.borrow().clone();
        let sight = Sight {
            key,
            view: pod.view.as_deref(),
            shown: pod.shown.as_ref(),
            live: self.live,
            node: node.as_ref(),
            runs_api_pods: self.inputs.runs_api_pods,
        };
        let (known, views) = (&self.inputs.known, &self.inputs.views);
        let gone = |pod: &SeenPod| {
            let (uid, is_gone) = match &pod.mirrors {
                Some(uid) => (uid.clone(), known.borrow().is_gone(uid)),
                None => {
                    let uid = PodUid::from(pod.uid.as_str());
                    let is_gone = known.borrow().is_gone_from_api(&uid);
                    (uid, is_gone)
                }
            };
            let lives_elsewhere =
                |(name, view): (&PodKey, &Arc<PodView>)| name != key && view.uid == uid;
            is_gone || views.borrow().iter().any(lives_elsewhere)
        };
        let step = pod.memory.plan(&sight, gone, now);
        pod.behind = false;
        match &step {
            MirrorStep::Nothing => {
                pod.changed_at = None;
                pod.calm();
                if pod.view.is_none() && pod.shown.is_none() && pod.memory.is_settled(now) {
                    self.pods.remove(key);
                }
                return None;
            }
            MirrorStep::Wait(_) => {
                pod.behind = true;
                return None;
            }
            MirrorStep::Delay(at) => {
                pod.behind = true;
                pod.delayed_until = Some(self.start + *at);
                return None;
            }
            MirrorStep::Decline { uid } => {
                (self.inputs.events)(declined(key, uid));
                return None;
            }
            MirrorStep::Create(_) => tracing::debug!(pod = %key, "the mirror pod is made"),
            MirrorStep::Delete { why, .. } => {
                tracing::info!(pod = %key, why, "the pod is deleted in the API");
            }
            MirrorStep::PatchStatus { .. } => tracing::debug!(pod = %key, "the status is written"),
        }
        pod.behind = true;
        pod.turn = Turn::Busy;
        Some(step)
    }

    fn settle(&mut self, key: &PodKey, step: &MirrorStep, answer: &Answer) {
        let now = Instant::now();
        self.server.hear(answer, now);
        let Some(pod) = self.pods.get_mut(key) else { return };
        pod.turn = Turn::Idle;
        if let (MirrorStep::PatchStatus { .. }, Answer::Pod(_)) = (step, answer)
            && let Some(changed_at) = pod.changed_at.take()
        {
            metrics().pods.status_synced(changed_at.elapsed());
        }
        let before = pod.memory.trouble.clone();
        match (pod.memory.settle(step, answer, self.start.elapsed()), answer) {
            (Next::Now, _) => {}
            (Next::Later, Answer::Unclear(_)) => {
                pod.not_before = Some(now + pod.pause.after_failure());
            }
            (Next::Later, _) => pod.fail(now),
        }
        if pod.memory.trouble.is_some() && pod.memory.trouble != before {
            tracing::warn!(pod = %key, err = pod.memory.trouble, "refused by the API server");
        }
        enqueue(&mut self.queue, key, pod);
    }

    fn publish(&self) {
        let bound = self.inputs.runs_api_pods.then_some(0);
        let mut report = PodsReport { bound, ..PodsReport::default() };
        for (key, pod) in &self.pods {
            let mirror = pod.shown.as_ref().is_some_and(|pod| pod.mirrors.is_some());
            let from_api = pod.shown.as_ref().is_some_and(|pod| pod.mirrors.is_none());
            let has_ended =
                pod.shown.as_ref().is_some_and(|pod| TerminalPhase::of(&pod.status).is_some());
            report.shown += usize::from(mirror);
            report.bound = report.bound.map(|bound| bound + usize::from(from_api));
            let runs_here = from_api && self.inputs.runs_api_pods;
            if pod.behind || pod.turn != Turn::Idle {
                report.waiting += 1;
            } else if pod.view.is_some() {
                report.mirrored += usize::from(!runs_here);
            } else if from_api && !runs_here && !has_ended {
                report.declined.push(key.clone());
            }
            report.refused.extend(pod.memory.trouble.clone().map(|text| (key.clone(), text)));
        }
        let left_out = self.left_out.iter().filter(|(_, one)| one.head.phase.is_none());
        report.left_out =
            left_out.filter_map(|(key, one)| Some((pod_key(key)?, one.why.clone()))).collect();
        report.trouble.clone_from(&self.server.trouble);
        self.inputs.report.publish_if_changed(Arc::new(report));
    }
}

impl Pod {
    /// Something has changed: no reason to wait for longer.
    fn hurry(&mut self) {
        self.not_before = None;
        self.calm();
    }

    fn calm(&mut self) {
        self.pause.reset();
        self.failures = 0;
    }

    fn fail(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let pause = if self.failures > HASTY { RECONCILE } else { self.pause.after_failure() };
        self.not_before = Some(now + pause);
    }
}

impl Server {
    fn hear(&mut self, answer: &Answer, now: Instant) {
        match answer {
            Answer::Unclear(why) => {
                if Trouble::note(&mut self.trouble, why.clone(), clock::now().wall) {
                    tracing::warn!(err = why, "cannot write pods");
                }
                self.not_before = Some(now + self.pause.after_failure());
            }
            Answer::Pod(_) | Answer::Gone | Answer::Refused(_) => *self = Self::default(),
        }
    }
}

/// Each pod waits at most once. One that is under way or paused comes back by itself.
fn enqueue(queue: &mut VecDeque<PodKey>, key: &PodKey, pod: &mut Pod) {
    if pod.turn == Turn::Idle && pod.not_before.is_none() {
        pod.turn = Turn::Queued;
        queue.push_back(key.clone());
    }
}

/// A pod by the key of its object.
fn pod_key(key: &str) -> Option<PodKey> {
    key.split_once('/').map(|(namespace, name)| PodKey::new(namespace, name))
}

/// A pod that is left out and was deleted.
fn deleted_unread(key: &str, left_out: &LeftOut) -> Option<Arc<SeenPod>> {
    let ObjectHead { uid, version, deletion, phase: _ } = &left_out.head;
    Some(Arc::new(SeenPod::unread(pod_key(key)?, uid.clone(), *version, (*deletion)?)))
}

/// What people should know of a pod that is left out.
pub(super) const LEFT_OUT: &str = "What runs of it goes on as it is, until it is deleted";

fn left_out_event(key: &PodKey, left_out: &LeftOut) -> Event {
    Event {
        target: EventTarget::Pod {
            key: key.clone(),
            uid: left_out.head.uid.as_str().into(),
            field_path: None,
        },
        kind: EventKind::Warning,
        reason: "PodTooLarge",
        message: format!("the node leaves this pod out: {}. {LEFT_OUT}", left_out.why),
    }
}

fn declined(key: &PodKey, uid: &str) -> Event {
    Event {
        target: EventTarget::Pod { key: key.clone(), uid: uid.into(), field_path: None },
        kind: EventKind::Warning,
        reason: "StaticPodsOnly",
        message: "this node runs static pods only (apiPods: false)".to_owned(),
    }
}

#[cfg(test)]
mod tests;
