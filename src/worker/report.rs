//! The report of a worker to the set after each pass: the view of its pod.

use super::{
    Input,
    execute::{Host, Progress},
    records::{Recorded, Records},
};
use crate::{
    clock,
    model::{
        CollectOrdered as _, ObservedPod, Origin, PodConfig, PodKey, PodUid, PodUpdate, PodView,
        k8s,
    },
    plan::{Occupancy, PodMemory, PodPlan, Rollout, Wish},
    status::{StatusContext, StatusInput, container_instances, held_status, pod_status},
};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::{mpsc, watch};

/// The view of a worker, and whether the worker is still needed.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub key: PodKey,
    /// `None` when nothing of the name is left.
    pub view: Option<Arc<PodView>>,
    /// The incarnations that the worker has records of.
    pub recorded: Vec<Recorded>,
    /// A sandbox or a container of this agent runs under the name.
    pub alive: bool,
    /// Nothing wished, recorded or observed.
    pub nothing_left: bool,
    /// The number of dead containers that are kept only for people to read.
    pub dead: usize,
    /// The revisions of the pod, while one is on trial or rolled back.
    pub rollout: Option<Arc<Rollout>>,
    /// The sequence number of the input that the report answers; `None` during an action, and until
    /// a listing has confirmed it.
    pub answers: Option<u64>,
    /// The number of the last request of a person that the worker has saved.
    pub asked: u64,
}

impl Report {
    /// True when the other report is equal. A report without a view never counts as equal, because
    /// the worker may have to end.
    fn says_the_same(&self, other: &Self) -> bool {
        let (Some(view), Some(last)) = (&other.view, &self.view) else { return false };
        same(view, last)
            && self.recorded == other.recorded
            && self.rollout == other.rollout
            && (self.answers, self.alive, self.dead) == (other.answers, other.alive, other.dead)
            && self.asked == other.asked
    }
}

/// What a worker knows of its pod besides what runs.
#[derive(Clone, Copy)]
pub(super) struct Remembered<'a> {
    pub(super) records: &'a Records,
    pub(super) memory: &'a PodMemory,
}

/// Makes reports, and sends a report if it differs from the last one.
pub(super) struct Reporter {
    key: PodKey,
    host: Arc<Host>,
    reports: mpsc::Sender<Report>,
    /// The last statuses by incarnation: transition times are taken over from them.
    statuses: BTreeMap<PodUid, Arc<k8s::PodStatus>>,
    last: Option<Report>,
    /// The progress of the action that is under way, and of an earlier stop.
    pub progress: Option<watch::Receiver<Progress>>,
    /// How the update to a new revision stands.
    pub update: Option<PodUpdate>,
    /// `None`: nothing is on trial or rolled back.
    rollout: Option<Arc<Rollout>>,
    /// The number of the last request of a person that is saved.
    pub asked: u64,
}

/// The incarnation that a report describes.
struct Subject {
    uid: PodUid,
    pod: Option<Arc<k8s::Pod>>,
    origin: Option<Origin>,
    /// It is the wished incarnation, to which the plan applies.
    wished: bool,
    terminating: bool,
}

impl Reporter {
    pub(super) fn new(key: PodKey, host: Arc<Host>, reports: mpsc::Sender<Report>) -> Self {
        Self {
            key,
            host,
            reports,
            statuses: BTreeMap::new(),
            last: None,
            progress: None,
            update: None,
            rollout: None,
            asked: 0,
        }
    }

    /// Restores the last statuses of an earlier run of the agent.
    pub(super) fn resume(
        &mut self,
        records: &Records,
        kept: &BTreeMap<PodUid, Arc<k8s::PodStatus>>,
    ) {
        // The status of an incarnation without a record tells only that it was held.
        let of_record = |uid: &PodUid| records.of(uid).is_some();
        let kept = kept.iter().filter(|(uid, _)| of_record(uid));
        self.statuses =
            kept.map(|(uid, status)| (uid.clone(), Arc::clone(status))).collect_ordered();
        for record in records.all() {
            if let Some(status) = &record.status {
                self.statuses.entry(record.uid.clone()).or_insert_with(|| Arc::clone(status));
            }
        }
    }

    pub(super) fn take_rollout(&mut self, rollout: &Rollout) {
        self.rollout = (!rollout.is_empty()).then(|| Arc::new(rollout.clone()));
    }

    /// Forgets the status of an incarnation. If it starts again under the same uid, it starts with
    /// a new status.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.statuses.remove(uid);
    }

    /// The last statuses by incarnation.
    pub(super) fn statuses(&self) -> &BTreeMap<PodUid, Arc<k8s::PodStatus>> {
        &self.statuses
    }

    pub(super) fn status(&self, uid: &PodUid) -> Option<&Arc<k8s::PodStatus>> {
        self.statuses.get(uid)
    }

    /// Waits until there is progress to report; for ever when nothing is under way. It may be
    /// dropped and called again.
    pub(super) async fn progressed(&mut self) {
        if let Some(progress) = &mut self.progress
            && progress.changed().await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// Sends a report if it differs from the last one. `answers` is for [`Report::answers`].
    pub(super) async fn report(
        &mut self,
        input: &Input,
        observed: &ObservedPod,
        known: Remembered<'_>,
        plan: &PodPlan,
        answers: Option<u64>,
    ) {
        let records = known.records;
        let occupancy = Occupancy::new(observed, &self.host.settings.owner);
        let (subject, alive) = (subject(input, records, occupancy), occupancy.is_alive());
        let nothing_left = subject.is_none() && records.is_empty();
        if subject.is_none() {
            self.statuses.retain(|uid, _| records.of(uid).is_some());
        }
        let mut view = subject.map(|subject| self.view(&subject, input, observed, known, plan));
        if let Some(view) = &mut view {
            // The object of the pod goes when this is true, so a listing has to confirm it.
            view.stopped &= answers.is_some();
        }
        let report = Report {
            key: self.key.clone(),
            view: view.map(Arc::new),
            recorded: records.all().iter().map(Recorded::from).collect(),
            alive,
            dead: plan.dead,
            nothing_left,
            rollout: self.rollout.clone(),
            answers,
            asked: self.asked,
        };
        if self.last.as_ref().is_some_and(|last| last.says_the_same(&report)) {
            return;
        }
        self.last = Some(report.clone());
        // The set outlives its workers, so a failure means that the agent ends.
        if self.reports.send(report).await.is_err() {
            tracing::debug!(pod = %self.key, "no receiver for reports any more");
        }
    }

    fn view(
        &mut self,
        subject: &Subject,
        input: &Input,
        observed: &ObservedPod,
        Remembered { records, memory }: Remembered<'_>,
        plan: &PodPlan,
    ) -> PodView {
        let record = records.of(&subject.uid);
        let status = match &subject.pod {
            None => Arc::new(k8s::PodStatus::default()),
            Some(pod) => {
                let held = input.orders.hold.as_ref().filter(|_| subject.wished && plan.held);
                let plan = Some(plan).filter(|_| subject.wished);
                let previous = self.statuses.get(&subject.uid).map(|status| &**status);
                let ended = record.and_then(|record| record.terminal.as_ref());
                let status = if let Some(held) = held {
                    held_status(pod, &held.hold, previous, clock::now())
                } else {
                    pod_status(
                        &StatusInput {
                            pod,
                            uid: &subject.uid,
                            observed,
                            plan,
                            memory,
                            resize_wait: plan.and(input.orders.resize_wait.as_deref()),
                            terminal: plan
                                .and_then(|plan| {
                                    plan.terminal.as_ref().or(plan.interrupted.as_ref())
                                })
                                .or(ended),
                            started_at: record.and_then(|record| record.started_at),
                            terminating: subject.terminating,
                            previous,
                        },
                        &StatusContext {
                            runtime_name: input.runtime.name.clone(),
                            host_ips: self.host.node_ips.borrow().to_vec(),
                            recursive_read_only: self.host.has_recursive_read_only(
                                pod,
                                &input.objects,
                                &input.runtime,
                            ),
                        },
                        clock::now(),
                    )
                };
                match self.statuses.get(&subject.uid) {
                    Some(last) if **last == status => Arc::clone(last),
                    Some(_) | None => Arc::new(status),
                }
            }
        };
        self.statuses.retain(|uid, _| *uid == subject.uid || records.of(uid).is_some());
        self.statuses.insert(subject.uid.clone(), Arc::clone(&status));
        let progress = self.progress.as_ref().map(|progress| progress.borrow().clone());
        let Progress { overdue, doing, .. } = progress.unwrap_or_default();
        let hung = (!overdue.is_empty()).then(|| overdue.join("; "));
        PodView {
            key: self.key.clone(),
            uid: subject.uid.clone(),
            pod: subject.pod.clone(),
            containers: subject
                .pod
                .as_ref()
                .map(|pod| container_instances(pod, &subject.uid, observed, memory))
                .unwrap_or_default(),
            status,
            origin: subject.origin.clone(),
            config: match (&subject.pod, input.orders.wish.is_without(&subject.uid)) {
                (None, _) => PodConfig::RuntimeOnly,
                (Some(_), false) => PodConfig::Desired,
                (Some(_), true) => PodConfig::Orphan,
            },
            terminating: subject.terminating,
            stopped: subject.wished && plan.stopped,
            hung: hung.or_else(|| observed.inspect_error.clone()),
            waiting: doing.or_else(|| plan.blocked.clone()),
            update: self.update.clone(),
            previous: self.rollout.as_ref().and_then(|rollout| {
                rollout.previous.as_ref().map(|previous| Arc::clone(&previous.pod))
            }),
            probes: Vec::new(),
        }
    }
}

/// The incarnation that the view shows: an earlier one while anything of it is left, otherwise the
/// wished one.
fn subject(input: &Input, records: &Records, occupancy: Occupancy<'_>) -> Option<Subject> {
    let wished = input.orders.wish.pod();
    let leaving = records.all().iter().find(|record| {
        record.kill.is_some() || wished.is_none_or(|wished| wished.uid != record.uid)
    });
    if let Some(record) = leaving {
        return Some(Subject {
            uid: record.uid.clone(),
            pod: Some(Arc::clone(&record.pod)),
            origin: record.origin.clone(),
            wished: false,
            terminating: record.kill.is_some() || input.orders.wish.is_without(&record.uid),
        });
    }
    if let Some(pod) = wished {
        return Some(Subject {
            uid: pod.uid.clone(),
            pod: Some(Arc::clone(&pod.pod)),
            origin: Some(pod.origin.clone()),
            wished: true,
            terminating: input.orders.deletion_seconds().is_some(),
        });
    }
    Some(Subject {
        uid: occupancy.newest_own_uid()?.clone(),
        pod: None,
        origin: None,
        wished: false,
        terminating: input.orders.wish == Wish::Gone,
    })
}

/// True when two views are equal.
fn same(a: &PodView, b: &PodView) -> bool {
    a.uid == b.uid
        && (a.config, a.terminating, a.stopped) == (b.config, b.terminating, b.stopped)
        && a.hung == b.hung
        && a.waiting == b.waiting
        && a.update == b.update
        && a.containers == b.containers
        && a.origin == b.origin
        && a.pod.as_ref().map(Arc::as_ptr) == b.pod.as_ref().map(Arc::as_ptr)
        && Arc::ptr_eq(&a.status, &b.status)
}
