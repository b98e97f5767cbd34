//! When each probe of a container is made next, and what follows from what it finds. Pure: the
//! prober makes the attempts and keeps the time.
//!
//! ```text
//!             the container has started, its initial delay is over
//!  Waiting ─────────────────────► Due ──► Trying ──► Due, one period later
//!     ▲                                     │
//!     └─ begins anew with each instance     └──────► Done: nothing that it could find matters
//! ```
//!
//! All probes share one queue. Results are counted for each probe: a result is published when as
//! many attempts in a row as its threshold says have found the same. Source of the rules: the
//! Kubernetes documentation on probes, and the kubelet where that is silent.

mod schedule;
mod settings;

use crate::{
    model::{
        ContainerId, Event, EventKind, EventTarget, Finding, Now, PodKey, PodProbes, PodUid,
        ProbeKind, ProbeView, k8s,
    },
    plan::kind_of,
    podspec::container_of,
};
use jiff::Timestamp;
use schedule::{Probe, Stage};
pub use settings::ProbeSettings;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The longest output of a probe in an event or a view, in bytes.
const OUTPUT_LIMIT: usize = 1024;

/// A pod whose containers are probed.
#[derive(Clone, Debug)]
pub struct ProbedPod {
    pub uid: PodUid,
    pub pod: Arc<k8s::Pod>,
    /// It is being stopped. Only its readiness is of interest then.
    pub terminating: bool,
    /// The containers that run.
    pub instances: Vec<ProbedInstance>,
}

/// A container that runs.
#[derive(Clone, Debug)]
pub struct ProbedInstance {
    pub id: ContainerId,
    pub name: Box<str>,
    pub started_at: Timestamp,
    /// Its startup probe has succeeded, or it has none.
    pub started: bool,
}

/// Names one probe of one container instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(u64);

/// An attempt that is to be made now.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub id: ProbeId,
    pub key: PodKey,
    pub pod: Arc<k8s::Pod>,
    pub instance: ContainerId,
    /// The name of the container.
    pub container: Box<str>,
    pub kind: ProbeKind,
    /// How long the attempt may take.
    pub timeout: Duration,
}

/// What follows from an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// The pod of the probe.
    pub key: PodKey,
    /// A result of the pod has changed.
    pub changed: bool,
    pub event: Option<Event>,
}

/// The probes of all containers of the node.
#[derive(Debug)]
pub struct Prober {
    /// When the agent started.
    since: Now,
    pods: BTreeMap<PodKey, Pod>,
    probes: BTreeMap<ProbeId, Probe>,
    /// The probes that are due, by boot time.
    queue: BTreeSet<(Duration, ProbeId)>,
    next_id: u64,
}

#[derive(Debug)]
struct Pod {
    uid: PodUid,
    pod: Arc<k8s::Pod>,
    probes: Vec<ProbeId>,
}

impl Prober {
    /// Without any probe. `since` is when the agent started: the first attempts on containers that
    /// ran before are spread over their periods.
    #[must_use]
    pub fn new(since: Now) -> Self {
        Self {
            since,
            pods: BTreeMap::new(),
            probes: BTreeMap::new(),
            queue: BTreeSet::new(),
            next_id: 0,
        }
    }

    /// Takes in what runs of a pod. Probes of instances that have ended, or that the specification
    /// no longer has, are dropped; an attempt that is under way counts for nothing then. Returns
    /// true when results were dropped.
    pub fn observe(&mut self, key: &PodKey, probed: Option<&ProbedPod>, now: Now) -> bool {
        let mut former = self.pods.remove(key).map(|pod| pod.probes).unwrap_or_default();
        let mut probes = Vec::new();
        if let Some(probed) = probed {
            for instance in &probed.instances {
                let Some(container) = container_of(&probed.pod, &instance.name) else { continue };
                for kind in wanted(probed.terminating) {
                    let Some(spec) = kind.of(container) else { continue };
                    let settings = ProbeSettings::of(spec);
                    let same = |id: &ProbeId| {
                        let probe = self.probes.get(id);
                        probe.is_some_and(|p| p.kind == *kind && p.instance == instance.id)
                    };
                    let id = match former.iter().position(same) {
                        Some(index) => former.swap_remove(index),
                        None => self.add(key, instance, *kind, settings),
                    };
                    probes.push(id);
                    self.update(id, settings, instance, now);
                }
            }
        }
        let mut dropped = false;
        for id in former {
            dropped |= self.remove(id);
        }
        if let Some(probed) = probed.filter(|_| !probes.is_empty()) {
            let pod = Pod { uid: probed.uid.clone(), pod: Arc::clone(&probed.pod), probes };
            self.pods.insert(key.clone(), pod);
        }
        dropped
    }

    /// The next boot time at which an attempt is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Begins every attempt that is due. Each of them must be followed by a call of
    /// [`Self::finish`].
    pub fn begin(&mut self, now: Now) -> Vec<Attempt> {
        let mut attempts = Vec::new();
        while let Some((due, id)) = self.queue.first().copied().filter(|(due, _)| *due <= now.boot)
        {
            self.queue.remove(&(due, id));
            let Some(probe) = self.probes.get_mut(&id) else { continue };
            probe.stage = Stage::Trying { due };
            let Some(pod) = self.pods.get(&probe.key) else { continue };
            attempts.push(Attempt {
                id,
                key: probe.key.clone(),
                pod: Arc::clone(&pod.pod),
                instance: probe.instance.clone(),
                container: probe.container.clone(),
                kind: probe.kind,
                timeout: probe.settings.timeout,
            });
        }
        attempts
    }

    /// Takes in what an attempt has found. `None`: the probe is gone.
    pub fn finish(&mut self, id: ProbeId, finding: &Finding, now: Now) -> Option<Attempted> {
        let probe = self.probes.get_mut(&id)?;
        let changed = probe.take(finding, now);
        let (key, kind, instance) = (probe.key.clone(), probe.kind, probe.instance.clone());
        let has_started = changed && kind == ProbeKind::Startup && probe.result == Some(true);
        self.schedule(id, now);
        if has_started {
            self.start_others(&key, &instance, now);
        }
        let event = self.event(id, finding);
        Some(Attempted { key, changed, event })
    }

    /// The results of a pod, by container instance.
    #[must_use]
    pub fn results(&self, key: &PodKey) -> PodProbes {
        let mut results = PodProbes::new();
        for probe in self.probes_of(key).filter(|probe| probe.result.is_some()) {
            let of_instance = results.entry(probe.instance.clone()).or_default();
            *of_instance.result_mut(probe.kind) = probe.result;
        }
        results
    }

    /// The probes of a pod as people see them, in the order of its containers.
    #[must_use]
    pub fn views(&self, key: &PodKey) -> Vec<ProbeView> {
        self.probes_of(key).map(Probe::view).collect()
    }

    fn probes_of(&self, key: &PodKey) -> impl Iterator<Item = &Probe> {
        let ids = self.pods.get(key).map(|pod| pod.probes.as_slice()).unwrap_or_default();
        ids.iter().filter_map(|id| self.probes.get(id))
    }

    fn add(
        &mut self,
        key: &PodKey,
        instance: &ProbedInstance,
        kind: ProbeKind,
        settings: ProbeSettings,
    ) -> ProbeId {
        let id = ProbeId(self.next_id);
        self.next_id += 1;
        self.probes.insert(id, Probe::new(key, instance, kind, settings));
        id
    }

    /// Removes a probe. Returns true when it had a result.
    fn remove(&mut self, id: ProbeId) -> bool {
        let Some(probe) = self.probes.remove(&id) else { return false };
        if let Stage::Due(due) = probe.stage {
            self.queue.remove(&(due, id));
        }
        probe.result.is_some()
    }

    /// Takes in the current specification of a probe, and whether its container has started.
    fn update(
        &mut self,
        id: ProbeId,
        settings: ProbeSettings,
        instance: &ProbedInstance,
        now: Now,
    ) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        probe.settings = settings;
        let waits = match probe.kind {
            // Its result is known from an earlier life of the agent.
            ProbeKind::Startup if instance.started && probe.stage == Stage::Waiting => {
                probe.stage = Stage::Done;
                probe.result = Some(true);
                return;
            }
            ProbeKind::Startup => false,
            ProbeKind::Liveness | ProbeKind::Readiness => !instance.started,
        };
        if probe.stage == Stage::Waiting && !waits {
            probe.stage = Stage::Due(probe.first(id, self.since, now));
            self.queue.extend(probe.due().map(|due| (due, id)));
        }
    }

    /// Starts the probes that have waited for the startup of an instance.
    fn start_others(&mut self, key: &PodKey, instance: &ContainerId, now: Now) {
        let ids = self.pods.get(key).map(|pod| pod.probes.as_slice()).unwrap_or_default();
        for id in ids {
            let Some(probe) = self.probes.get_mut(id) else { continue };
            if probe.instance == *instance && probe.stage == Stage::Waiting {
                probe.stage = Stage::Due(probe.first(*id, self.since, now));
                self.queue.extend(probe.due().map(|due| (due, *id)));
            }
        }
    }

    /// Sets when the next attempt is due after one has ended.
    fn schedule(&mut self, id: ProbeId, now: Now) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        probe.stage = probe.next(now);
        self.queue.extend(probe.due().map(|due| (due, id)));
    }

    /// The event about a finding, in the words of the kubelet. A success makes none.
    fn event(&self, id: ProbeId, finding: &Finding) -> Option<Event> {
        let probe = self.probes.get(&id)?;
        let pod = self.pods.get(&probe.key)?;
        let title = probe.kind.title();
        let (reason, message) = match finding {
            Finding::Success => return None,
            Finding::Warning(output) => {
                ("ProbeWarning", format!("{title} probe warning: {}", cut(output)))
            }
            Finding::Failure(output) => {
                ("Unhealthy", format!("{title} probe failed: {}", cut(output)))
            }
            Finding::Error(error) => (
                "Unhealthy",
                format!("{title} probe errored and resulted in unknown state: {}", cut(error)),
            ),
        };
        let target = EventTarget::Pod {
            key: probe.key.clone(),
            uid: pod.uid.clone(),
            field_path: Some(
                kind_of(Some(&pod.pod), &probe.container).field_path(&probe.container),
            ),
        };
        Some(Event { target, kind: EventKind::Warning, reason, message })
    }
}

/// The kinds of probes that matter.
fn wanted(terminating: bool) -> &'static [ProbeKind] {
    if terminating { &[ProbeKind::Readiness] } else { &ProbeKind::ALL }
}

/// The beginning of an output.
fn cut(output: &str) -> &str {
    let output = output.trim_end();
    &output[..output.floor_char_boundary(OUTPUT_LIMIT)]
}

#[cfg(test)]
mod tests;
