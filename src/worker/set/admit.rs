//! Decides which of the wished pods may run. The decision is made again whenever the wishes, the
//! running pods, or the resources that are short have changed.

use super::{State, WorkerSet};
use crate::{
    admission::{
        Admissions, Decision, Input, Leaving, PREEMPTING, Ruling, Standing, Subject, admit,
    },
    clock,
    metrics::metrics,
    model::{CollectOrdered as _, DesiredPod, PodKey, PodUid, k8s},
    plan::{HeldPod, Occupancy, PodOrders, Wish},
    podspec::{has_same_amounts, is_static},
    publish::PublishIfChanged as _,
    worker::records::Recorded,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The last decisions, and since when each waiting pod has been waiting.
#[derive(Default)]
pub(super) struct Admitted {
    decisions: Admissions,
    since: BTreeMap<PodUid, Duration>,
}

impl WorkerSet {
    /// Decides again; the caller tells the workers.
    pub(super) fn admit(&mut self) {
        if !self.state.listed {
            return;
        }
        let now = clock::now().boot;
        self.state.after = self.state.waits_for_others();
        let state = &mut self.state;
        let wished = &state.desired.pods;
        let names = state.names_by_uid();
        let mut pods = Vec::with_capacity(wished.len());
        for pod in wished.values() {
            let standing = match state.standing(&pod.key, &pod.uid) {
                // It does not start any more, or runs only until it has stopped: `leaving`.
                Standing::New { .. } | Standing::Running
                    if state.desired.ends.contains_key(&pod.key) =>
                {
                    continue;
                }
                // The pod does not start yet, so it must not take room from other pods.
                Standing::New { .. } if state.starts_nothing(&pod.key).is_some() => continue,
                Standing::New { .. } if state.after.contains_key(&pod.key) => continue,
                Standing::New { .. } => {
                    let since = state.admitted.since.get(&pod.uid).copied();
                    Standing::New { since }
                }
                standing @ (Standing::Running | Standing::Ended) => standing,
            };
            let uid_user = match standing {
                Standing::New { .. } => state.uid_user(pod, names.get(&pod.uid)),
                Standing::Running | Standing::Ended => None,
            };
            let resize_of = state.resize_of(pod);
            pods.push(Subject { pod: Arc::clone(pod), standing, waits: uid_user, resize_of });
        }
        let new = pods.iter().filter_map(|subject| match subject.standing {
            Standing::New { since } => Some((subject.pod.uid.clone(), since.unwrap_or(now))),
            Standing::Running | Standing::Ended => None,
        });
        state.admitted.since = new.collect_ordered();
        let leaving = state.leaving();
        let scheduling = self.scheduling.as_mut();
        let scheduling = scheduling.and_then(|latest| latest.borrow_and_update().clone());
        let Ruling { admissions, events, preempted_for, asks_for_node } = admit(&Input {
            pods: &pods,
            leaving: &leaving,
            node: &self.node,
            scheduling: scheduling.as_deref(),
            runtime: &state.runtime,
            pressure: &state.pressure,
            before: &state.admitted.decisions,
        });
        state.admitted.decisions = admissions;
        if asks_for_node && let Some(since) = state.admitted.since.values().max() {
            self.node_wanted.publish_if_changed(*since);
        }
        preempted_for.iter().for_each(|resource| metrics().pods.preempted(resource));
        for event in events {
            if event.reason != PREEMPTING {
                metrics().pods.rejected(event.reason);
            }
            self.host.events.record(event);
        }
    }

    /// True when a pod that comes or goes can change a decision.
    pub(super) fn somebody_waits(&self) -> bool {
        let decisions = &self.state.admitted.decisions;
        !self.state.after.is_empty()
            || decisions.iter().any(|(_, admission)| {
                admission.decision != Decision::Admitted || admission.resize.is_some()
            })
    }
}

impl State {
    fn standing(&self, key: &PodKey, uid: &PodUid) -> Standing {
        if let Some(recorded) = self.recorded(key).iter().find(|recorded| recorded.uid == *uid) {
            return if self.begins_anew(key, recorded) {
                Standing::New { since: None }
            } else if recorded.ended {
                Standing::Ended
            } else {
                Standing::Running
            };
        }
        // A worker writes a record for everything that runs, and its report is newer than the
        // listing.
        let reported = self.workers.get(key).is_some_and(|handle| handle.shown.is_some());
        if !reported && self.runs(key, uid) {
            Standing::Running
        } else {
            Standing::New { since: None }
        }
    }

    /// True when the wished pod has the uid of this record and replaces it all the same.
    fn begins_anew(&self, key: &PodKey, recorded: &Recorded) -> bool {
        self.wish(key).begins_anew(&recorded.uid, &recorded.pod)
    }

    /// The pod as it runs, if the wished pod has other cpu or memory and does not begin anew.
    fn resize_of(&self, pod: &DesiredPod) -> Option<Arc<k8s::Pod>> {
        let recorded = self.recorded(&pod.key).iter().find(|recorded| recorded.uid == pod.uid)?;
        let same =
            Arc::ptr_eq(&recorded.pod, &pod.pod) || has_same_amounts(&recorded.pod, &pod.pod);
        let is_resized = !same && !self.begins_anew(&pod.key, recorded);
        is_resized.then(|| Arc::clone(&recorded.pod))
    }

    /// By uid, the names under which this agent or another one has something of it. It is computed
    /// once for all pods.
    fn names_by_uid(&self) -> BTreeMap<&PodUid, BTreeSet<&PodKey>> {
        let workers = self.workers.iter();
        let shown =
            workers.flat_map(|(name, handle)| handle.shown.iter().map(move |uid| (uid, name)));
        let recorded = self.recorded.iter();
        let recorded = recorded.flat_map(|(name, all)| all.iter().map(move |one| (&one.uid, name)));
        let observed = self
            .observed
            .iter()
            .flat_map(|(name, pod)| pod.sandboxes.iter().map(move |sandbox| (&sandbox.uid, name)));
        let mut names: BTreeMap<&PodUid, BTreeSet<&PodKey>> = BTreeMap::new();
        for (uid, name) in shown.chain(recorded).chain(observed) {
            names.entry(uid).or_default().insert(name);
        }
        names
    }

    /// Why a pod has to wait for its uid: another name among `names` has it. The cgroup, the
    /// directories and the volumes are named after the uid alone, so the pod would share them with
    /// the other pod, and lose them when that one is removed.
    fn uid_user(&self, pod: &DesiredPod, names: Option<&BTreeSet<&PodKey>>) -> Option<String> {
        let uid = &pod.uid;
        let others = || names.into_iter().flatten().filter(|name| ***name != pod.key);
        if let Some(other) = others().find(|name| self.has(name, uid)) {
            let goes = self.wish(other).is_without(uid);
            let end = if goes { ", which is being removed" } else { "" };
            return Some(format!("uid {uid} is still used by pod {other}{end}"));
        }
        others().find_map(|name| {
            let sandbox = self.occupancy(name)?.foreign_use(uid)?;
            let id = &sandbox.id;
            Some(format!("uid {uid} is used by pod {name} of another agent (sandbox {id})"))
        })
    }

    /// The recorded incarnations that still take room and are not to run.
    fn leaving(&self) -> Vec<Leaving> {
        let all = self.recorded.iter();
        let all = all.flat_map(|(key, all)| all.iter().map(move |recorded| (key, recorded)));
        let leaving = all.filter(|(key, recorded)| {
            if recorded.ended {
                // The end of a pod of the API server is recorded before its containers have
                // stopped.
                return !is_static(&recorded.pod) && self.is_alive(key);
            }
            self.desired.ends.contains_key(*key)
                || self.desired.pods.get(*key).is_none_or(|wished| wished.uid != recorded.uid)
                || self.begins_anew(key, recorded)
        });
        let leaving = leaving.map(|(key, recorded)| {
            let wish = self.wish(key);
            let ends = recorded.ended || matches!(wish, Wish::End { .. });
            let (uid, pod) = (&recorded.uid, &recorded.pod);
            let is_replaced = wish.is_without(uid) || wish.begins_anew(uid, pod);
            Leaving {
                key: key.clone(),
                pod: Arc::clone(pod),
                undecided: !ends && !is_replaced || self.update_waits(key),
            }
        });
        leaving.collect()
    }

    /// True when anything of this agent runs under a name.
    fn is_alive(&self, key: &PodKey) -> bool {
        self.workers.get(key).is_some_and(|handle| handle.alive)
            || self.occupancy(key).is_some_and(Occupancy::is_alive)
    }

    /// True when the old revision of a pod runs on until the new one can take over.
    fn update_waits(&self, key: &PodKey) -> bool {
        self.workers.get(key).is_some_and(|handle| handle.update_waits)
    }

    /// The orders for one name. The eviction of an incarnation that is no longer wished comes
    /// first, and the wished incarnation waits for its end.
    pub(super) fn orders(&self, key: &PodKey) -> PodOrders {
        let wished = self.desired.pods.get(key);
        let decision = wished.and_then(|pod| self.admitted.decisions.get(key, &pod.uid));
        let evicted = self.pressure.evicted.get(key);
        let old = evicted.filter(|evicted| wished.is_none_or(|pod| pod.uid != evicted.uid));
        // Admission does not decide about a pod of the API server that was deleted, and about a pod
        // that has ended.
        let may_stop = |pod: &DesiredPod| {
            !is_static(&pod.pod) || self.standing(key, &pod.uid) == Standing::Ended
        };
        let stopping =
            evicted.filter(|_| wished.is_some_and(|pod| may_stop(pod)) && self.is_alive(key));
        let waits: Option<Arc<str>> = match decision {
            Some(Decision::Waits(why)) => Some(why.as_str().into()),
            Some(Decision::Held(hold)) if old.is_some() => Some(hold.message.as_str().into()),
            Some(Decision::Admitted | Decision::Held(_)) | None => None,
        };
        let hold = match (old.or(stopping), wished, decision) {
            (Some(evicted), _, _) => {
                Some(HeldPod { uid: evicted.uid.clone(), hold: Arc::clone(&evicted.hold) })
            }
            (None, Some(pod), Some(Decision::Held(hold))) => {
                Some(HeldPod { uid: pod.uid.clone(), hold: Arc::clone(hold) })
            }
            (None, _, _) => None,
        };
        PodOrders {
            wish: self.wish(key),
            shutdown: self.machine.shutdown().cloned(),
            hold,
            waits,
            after: self.after.get(key).cloned(),
            resize_wait: wished
                .and_then(|pod| self.admitted.decisions.resize_wait(key, &pod.uid))
                .cloned(),
            asked: self.asked.get(key).map(|pending| Arc::clone(&pending.asked)),
            clear_dead: self.pressure.clear_dead,
        }
    }
}

#[cfg(test)]
mod tests;
