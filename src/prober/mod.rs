//! Makes the attempts of all probes, and publishes what they find. One task for the whole node: it
//! decides with [`Prober`] when an attempt is due, and awaits all attempts that are under way at
//! once, so that none of them delays another one.

mod attempt;
mod counted;

use crate::{
    clock,
    cri::RuntimeClient,
    event::Recorder,
    handler::Handlers,
    model::{Finding, NodeProbes, Now, PodKey, PodView, PodViews, ProbeKind, ProbeViews},
    podspec::is_host_network,
    probe::{Attempt, ProbedInstance, ProbedPod, Prober},
};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// The longest sleep: a due time is boot time, which continues while the machine is suspended, but
/// timers stop then. It is also the period of the heartbeat.
const RESYNC: Duration = Duration::from_secs(60);

/// What the prober works with.
pub struct ProberParts {
    pub runtime: RuntimeClient,
    pub handlers: Handlers,
    pub events: Recorder,
    /// What runs.
    pub pods: watch::Receiver<Arc<PodViews>>,
    pub results: watch::Sender<Arc<NodeProbes>>,
}

/// An attempt under way.
type Trying = Pin<Box<dyn Future<Output = Tried> + Send>>;

/// An attempt that has ended.
struct Tried {
    attempt: Attempt,
    finding: Finding,
    took: Duration,
}

/// The task.
pub struct ProberTask {
    parts: ProberParts,
    prober: Prober,
    /// The views of pods with probes that were taken in last. The published map itself is not kept,
    /// because the set of workers would have to copy it for each change.
    seen: PodViews,
    attempts: FuturesUnordered<Trying>,
    views: watch::Sender<ProbeViews>,
    heartbeat: watch::Sender<Duration>,
}

impl ProberTask {
    #[must_use]
    pub fn new(parts: ProberParts) -> Self {
        Self {
            parts,
            prober: Prober::new(clock::now()),
            seen: PodViews::new(),
            attempts: FuturesUnordered::new(),
            views: watch::Sender::default(),
            heartbeat: watch::Sender::default(),
        }
    }

    /// The probes as people see them. The value is always current, but its changes wake nobody:
    /// on a full node it changes hundreds of times a second.
    #[must_use]
    pub fn views(&self) -> watch::Receiver<ProbeViews> {
        self.views.subscribe()
    }

    /// When the loop last came round, as [`clock::awake`].
    #[must_use]
    pub fn heartbeat(&self) -> watch::Receiver<Duration> {
        self.heartbeat.subscribe()
    }

    /// Runs until shutdown. Attempts that are under way are dropped then.
    pub async fn run(mut self, shutdown: CancellationToken) {
        self.parts.pods.mark_changed();
        loop {
            let now = clock::now();
            self.heartbeat.send_replace(clock::awake());
            for attempt in self.prober.begin(now) {
                self.attempts.push(self.trying(attempt));
            }
            let pause = self.prober.wake_at().map_or(RESYNC, |due| due.saturating_sub(now.boot));
            // Cancel-safe: every arm only waits, and the set of attempts keeps those that it holds.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                changed = self.parts.pods.changed() => {
                    if changed.is_err() {
                        // The workers end only with the agent.
                        shutdown.cancelled().await;
                        return;
                    }
                    self.observe();
                }
                Some(tried) = self.attempts.next() => self.finish(&tried),
                () = tokio::time::sleep(pause.min(RESYNC)) => {}
            }
        }
    }

    /// Takes in the pods whose views have changed.
    fn observe(&mut self) {
        let pods = Arc::clone(&self.parts.pods.borrow_and_update());
        let now = clock::now();
        let gone: Vec<PodKey> =
            self.seen.keys().filter(|key| !pods.contains_key(key)).cloned().collect();
        for key in gone {
            if let Some(view) = self.seen.remove(&key) {
                counted::forget(&view, None);
            }
            self.take(&key, None, now);
        }
        for (key, view) in &*pods {
            let (seen, has_probes) = (self.seen.get(key), has_probes(view));
            let known = seen.map_or(!has_probes, |seen| Arc::ptr_eq(seen, view));
            if known {
                continue;
            }
            self.take(key, probed(view).as_ref(), now);
            let before = match has_probes {
                true => self.seen.insert(key.clone(), Arc::clone(view)),
                false => self.seen.remove(key),
            };
            if let Some(before) = before {
                let same = has_probes.then_some(&**view).filter(|view| view.uid == before.uid);
                counted::forget(&before, same);
            }
        }
    }

    fn take(&mut self, key: &PodKey, probed: Option<&ProbedPod>, now: Now) {
        if self.prober.observe(key, probed, now) {
            self.publish(key);
        }
        self.show(key);
    }

    fn trying(&self, attempt: Attempt) -> Trying {
        let view = self.seen.get(&attempt.key);
        let host = view.and_then(|view| host_of(view)).map(Into::into);
        let (runtime, handlers) = (self.parts.runtime.clone(), self.parts.handlers.clone());
        Box::pin(async move {
            let begun = Instant::now();
            let finding = attempt::make(&runtime, &handlers, &attempt, host).await;
            Tried { attempt, finding, took: begun.elapsed() }
        })
    }

    /// Takes in what an attempt has found. One whose pod is gone is not counted either: its series
    /// would stay for ever.
    fn finish(&mut self, tried: &Tried) {
        let Tried { attempt, finding, took } = tried;
        let Some(attempted) = self.prober.finish(attempt.id, finding, clock::now()) else { return };
        counted::count(attempt, finding, *took);
        if let Some(event) = attempted.event {
            self.parts.events.record(event);
        }
        if attempted.changed {
            self.publish(&attempted.key);
        }
        self.show(&attempted.key);
    }

    /// Publishes the results of a pod.
    fn publish(&self, key: &PodKey) {
        let results = self.prober.results(key);
        self.parts.results.send_modify(|all| {
            let all = Arc::make_mut(all);
            if results.is_empty() {
                all.remove(key);
            } else {
                all.insert(key.clone(), Arc::new(results));
            }
        });
    }

    /// Updates what people see of the probes of a pod.
    fn show(&self, key: &PodKey) {
        let views = self.prober.views(key);
        self.views.send_if_modified(|all| {
            if views.is_empty() {
                all.remove(key);
            } else {
                all.insert(key.clone(), views);
            }
            false
        });
    }
}

/// What is to be probed of a pod; `None` when it has no probes or has ended for good.
fn probed(view: &PodView) -> Option<ProbedPod> {
    let pod = view.pod.as_ref().filter(|_| !view.has_ended() && has_probes(view))?;
    let instances = view.containers.iter().filter(|instance| !instance.in_post_start);
    let instances = instances.filter_map(|instance| {
        Some(ProbedInstance {
            id: instance.id.clone(),
            name: instance.name.clone(),
            started_at: instance.running_since?,
            started: instance.started,
        })
    });
    Some(ProbedPod {
        uid: view.uid.clone(),
        pod: Arc::clone(pod),
        terminating: view.terminating,
        instances: instances.collect(),
    })
}

fn has_probes(view: &PodView) -> bool {
    let spec = view.pod.iter().filter_map(|pod| pod.spec.as_ref());
    let mut containers =
        spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.any(|container| ProbeKind::ALL.iter().any(|kind| kind.of(container).is_some()))
}

/// The address at which the containers of a pod listen. Pods of the host network are asked at
/// 127.0.0.1 where the node has no address.
fn host_of(view: &PodView) -> Option<&str> {
    let host_network = is_host_network(view.pod.as_ref()?);
    view.status.pod_ip.as_deref().or_else(|| host_network.then_some("127.0.0.1"))
}
