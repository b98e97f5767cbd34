//! The records of one pod name: what was admitted, until when it has to stop, and how it ended.
//! `store` keeps them on disk; the plan gets them as incarnations.
//!
//! Invariant: a record is written before the first thing that it is needed to undo (a sandbox, a
//! cgroup, a volume), and removed after the last of them is gone. If the disk does not take it, the
//! store keeps it in memory and tries again. No pod waits for that.

use super::{
    Input,
    execute::{Host, blocking},
};
use crate::{
    blocking::PODS,
    clock,
    model::{DesiredPod, Now, Origin, PodKey, PodUid, RUN_FROM_CHECKPOINT, SourceKind, k8s},
    plan::{
        Action, Incarnation, KillDeadline, KillPod, KillPurpose, Occupancy, Outcome, PodOrders,
        Restart, Terminal, Wish, replaces, stops_for_edit,
    },
    podspec::{has_same_class, is_static, reported_start, shows_metadata, with_amounts_of},
    store::{KillRecord, PodRecord, Store},
};
use std::{sync::Arc, time::Duration};

/// An incarnation that the agent has a record of, with the fields that the set of workers needs.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) uid: PodUid,
    /// The pod as it runs.
    pub(super) pod: Arc<k8s::Pod>,
    /// True when it has ended for good.
    pub(super) ended: bool,
}

impl From<&PodRecord> for Recorded {
    fn from(record: &PodRecord) -> Self {
        let (uid, pod) = (record.uid.clone(), Arc::clone(&record.pod));
        Self { uid, pod, ended: record.has_ended() }
    }
}

/// The pod is compared by its address, because every copy is the same `Arc`.
impl PartialEq for Recorded {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid && self.ended == other.ended && Arc::ptr_eq(&self.pod, &other.pod)
    }
}

pub(super) struct Records {
    key: PodKey,
    records: Vec<PodRecord>,
    /// The same records as the plan needs them, in the same order.
    incarnations: Vec<Incarnation>,
    /// True when the last write has succeeded.
    saved: bool,
}

impl Records {
    /// Takes over the records that an earlier run of the agent wrote.
    pub(super) fn new(key: PodKey, records: Vec<PodRecord>, now: Now) -> Self {
        let incarnations = records.iter().map(|record| incarnation(record, now)).collect();
        Self { key, records, incarnations, saved: true }
    }

    /// True when the records are on disk as they are here. If the last write failed, it is tried
    /// again.
    pub(super) async fn are_saved(&mut self, store: &Store) -> bool {
        if !self.saved {
            self.write(store).await;
        }
        self.saved
    }

    /// Writes the records again and marks the pods' directories again, after both were deleted
    /// while the agent ran.
    pub(super) async fn save_again(&mut self, host: &Host) {
        if self.records.is_empty() {
            return;
        }
        for record in &self.records {
            let (volumes, uid) = (host.volumes.clone(), record.uid.clone());
            let (key, owner) = (self.key.clone(), host.settings.owner.clone());
            let marked = blocking(&PODS, move || volumes.mark(&uid, &key, &owner)).await;
            if let Err(error) = marked {
                tracing::warn!(pod = %self.key, err = %error.message(), "cannot mark its directory");
            }
        }
        self.write(&host.store).await;
    }

    pub(super) fn incarnations(&self) -> &[Incarnation] {
        &self.incarnations
    }

    pub(super) fn of(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.records.iter().find(|record| record.uid == *uid)
    }

    fn of_mut(&mut self, uid: &PodUid) -> Option<&mut PodRecord> {
        self.records.iter_mut().find(|record| record.uid == *uid)
    }

    pub(super) fn all(&self) -> &[PodRecord] {
        &self.records
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// True when a pod of the API server among them was evicted.
    pub(super) fn have_evicted(&self) -> bool {
        let mut ends = self.records.iter().filter_map(|record| record.terminal.as_ref());
        ends.any(Terminal::is_eviction)
    }

    /// The pod as it runs, or as it is wished if it has no record yet.
    pub(super) fn pod_for(&self, uid: &PodUid, input: &Input) -> Option<Arc<k8s::Pod>> {
        let recorded = self.of(uid).map(|record| Arc::clone(&record.pod));
        recorded.or_else(|| input.orders.wish.desired(uid).map(|desired| Arc::clone(&desired.pod)))
    }

    /// The revision that `wished` is to replace and that is not being removed already, and whether
    /// it has ended for good. `None` when the wished one has begun, or nothing has.
    pub(super) fn replaced_by(&self, wished: &DesiredPod) -> Option<(Arc<DesiredPod>, bool)> {
        let is_it = |record: &PodRecord| {
            record.uid == wished.uid && record.revision.as_ref() == Some(&wished.revision)
        };
        if self.records.iter().any(is_it) {
            return None;
        }
        let record = self.records.iter().find(|record| record.kill.is_none())?;
        let desired = record.desired()?;
        replaces(wished, &desired.uid, &desired.revision, &desired.pod)
            .then(|| (Arc::new(desired), record.has_ended()))
    }

    /// Makes a record and the wish for the same revision share one copy of the pod. After a restart
    /// of the agent, one was read from the disk and the other from the manifest, and pods take most
    /// of the agent's memory.
    pub(super) fn share(&mut self, wish: &Wish) {
        let Some(desired) = wish.pod() else { return };
        let own = self.records.iter_mut().zip(&mut self.incarnations);
        for (record, incarnation) in own.filter(|(record, _)| record.uid == desired.uid) {
            let same = record.revision.as_ref() == Some(&desired.revision);
            if same && !Arc::ptr_eq(&record.pod, &desired.pod) {
                record.pod = Arc::clone(&desired.pod);
                incarnation.pod = Some(Arc::clone(&desired.pod));
            }
        }
    }

    /// Saves what has to be known before `action` is executed.
    pub(super) async fn begin(
        &mut self,
        store: &Store,
        action: &Action,
        orders: &PodOrders,
        now: Now,
    ) {
        let uid = action.uid();
        let changed = match action {
            Action::PreparePod { .. } => {
                let resize_waits = orders.resize_wait.is_some();
                self.admit(uid, &orders.wish, resize_waits, now)
            }
            Action::KillPod(kill) => match &kill.purpose {
                KillPurpose::Retire { deadline } => self.retire(uid, *deadline, now),
                KillPurpose::Shutdown => self.interrupt(uid, kill),
                KillPurpose::Terminal => self.note_deleted(uid),
                KillPurpose::Restart
                | KillPurpose::RestartAll { .. }
                | KillPurpose::Surplus
                | KillPurpose::Asked => false,
            },
            // The incarnation had ended by itself, so it is not killed. If it is wished again from
            // here on, it begins anew once this removal is done.
            Action::RemoveContainer(_) | Action::RemoveSandbox(_) | Action::CleanUp { .. } => {
                let at_once = KillDeadline { at: now.boot, grace_seconds: 0 };
                let known = self.incarnations.iter().find(|known| known.uid == *uid);
                orders.retires(uid, known) && self.retire(uid, at_once, now)
            }
            Action::CreateSandbox(_)
            | Action::StartContainer(_)
            | Action::Resize(_)
            | Action::KillContainer(_)
            | Action::Release { .. } => false,
        };
        if changed {
            self.write(store).await;
        }
    }

    /// Saves that the incarnation has ended for good, with its status. One of the API server may
    /// have ended without ever having run. The end may be decided while containers run: the status
    /// is saved once more when they have ended, because it has their exit codes then.
    pub(super) async fn end(
        &mut self,
        store: &Store,
        wish: &Wish,
        uid: &PodUid,
        (terminal, status): (&Terminal, Option<Arc<k8s::PodStatus>>),
    ) {
        if self.of(uid).is_none() && wish.pod().is_some_and(|pod| !is_static(&pod.pod)) {
            self.admit(uid, wish, false, clock::now());
        }
        let Some(record) = self.of_mut(uid) else {
            return;
        };
        let saved = record.terminal.as_ref() == Some(terminal);
        if saved && (record.status == status || status.as_deref().is_none_or(has_running)) {
            return;
        }
        record.terminal = Some(terminal.clone());
        record.status = status;
        self.write(store).await;
    }

    /// Removes an incarnation that was cleaned up, or a container that was removed, from the
    /// records.
    pub(super) async fn take(&mut self, store: &Store, outcome: &Outcome) {
        if let Outcome::CleanedUp { uid } = outcome {
            let before = self.records.len();
            self.records.retain(|record| record.uid != *uid);
            if self.records.len() != before {
                self.write(store).await;
            }
        }
        if let Outcome::ContainerRemoved { uid, id } = outcome
            && let Some(record) = self.of_mut(uid)
            && record.interrupted.contains(id)
        {
            record.interrupted.retain(|interrupted| interrupted != id);
            self.write(store).await;
        }
    }

    /// Writes a record for a wished pod that runs and has none, because its file was damaged or
    /// lost. The time at which it was accepted is not known any more; the creation of its oldest
    /// sandbox is the best guess.
    pub(super) async fn adopt(&mut self, store: &Store, wish: &Wish, occupancy: Occupancy<'_>) {
        let Some(desired) = wish.pod() else { return };
        if self.of(&desired.uid).is_some() {
            return;
        }
        let ours = occupancy.own_sandboxes_of(&desired.uid);
        let Some(oldest) = ours.map(|sandbox| sandbox.created_at).min() else { return };
        let now = clock::now();
        let now = Now { wall: oldest.min(now.wall), ..now };
        self.admit(&desired.uid, wish, false, now);
        self.write(store).await;
    }

    /// Writes an edit of a pod that goes on. Most edits under the same uid start nothing (the grace
    /// period, a hook), so no action would save them. A controller may change an annotation every
    /// second: metadata that the next start does not act on goes to the disk with the next write.
    /// An edit that stops a container is written afterwards: its preStop hook is in the record.
    pub(super) async fn take_edit(
        &mut self,
        store: &Store,
        orders: &PodOrders,
        occupancy: Occupancy<'_>,
    ) {
        let Wish::Run(desired) = &orders.wish else { return };
        let uid = &desired.uid;
        let ends = |record: &PodRecord| record.kill.is_some() || record.has_ended();
        let known = self.incarnations.iter().find(|known| known.uid == *uid);
        if self.of(uid).is_none_or(ends)
            || orders.goes_on(uid).is_none()
            || orders.retires(uid, known)
            || stops_for_edit(&occupancy.own(uid, true), &desired.pod)
        {
            return;
        }
        let recorded = |records: &Self| {
            records.of(uid).map(|record| (Arc::clone(&record.pod), record.origin.clone()))
        };
        let before = recorded(self);
        if !self.admit(uid, &orders.wish, orders.resize_wait.is_some(), clock::now()) {
            return;
        }
        match (before, recorded(self)) {
            (Some((before, from)), Some((now, to)))
                if place(from.as_ref()) == place(to.as_ref()) && runs_the_same(&before, &now) =>
            {
                self.refresh(clock::now());
            }
            (_, _) => self.write(store).await,
        }
    }

    /// `resize_waits`: the pod keeps the cpu and memory of its record, and its revision, so that
    /// the next admission takes the new ones.
    fn admit(&mut self, uid: &PodUid, wish: &Wish, resize_waits: bool, now: Now) -> bool {
        let Some(desired) = wish.desired(uid) else { return false };
        match self.of_mut(uid) {
            // An edit that was taken back may have changed the record all the same, if a resize in
            // it had to wait.
            Some(record) if record.revision.as_ref() == Some(&desired.revision) => {
                let changed = !Arc::ptr_eq(&record.pod, &desired.pod) && record.pod != desired.pod;
                if changed {
                    record.pod = Arc::clone(&desired.pod);
                }
                // A manifest that was moved says the same.
                let moved = place(record.origin.as_ref()) != place(Some(&desired.origin));
                record.origin = Some(desired.origin.clone());
                changed || moved
            }
            Some(record) if resize_waits => {
                let pod = with_amounts_of(&desired.pod, &record.pod);
                // A record of another class would say that the pod begins anew.
                let changed = pod != *record.pod && has_same_class(&pod, &record.pod);
                if changed {
                    record.pod = Arc::new(pod);
                }
                changed
            }
            // The same uid with another content: the manifest sets the uid itself, or the pod is
            // resized.
            Some(record) => {
                record.revision = Some(desired.revision.clone());
                record.origin = Some(desired.origin.clone());
                record.pod = Arc::clone(&desired.pod);
                true
            }
            None => {
                let pod = Arc::clone(&desired.pod);
                // It is mostly the only one.
                self.records.reserve_exact(1);
                self.records.push(PodRecord {
                    revision: Some(desired.revision.clone()),
                    origin: Some(desired.origin.clone()),
                    started_at: Some(reported_start(&desired.pod).unwrap_or(now.wall)),
                    ..PodRecord::new(self.key.clone(), uid.clone(), pod)
                });
                true
            }
        }
    }

    /// Adds the containers to those that an earlier try or an earlier shutdown has ended.
    fn interrupt(&mut self, uid: &PodUid, kill: &KillPod) -> bool {
        let Some(record) = self.of_mut(uid) else {
            return false;
        };
        let known = record.interrupted.len();
        // One with a restart by its policy had ended by itself.
        let stopped = kill.containers().filter(|one| one.restart != Restart::ByPolicy);
        for container in stopped {
            if !record.interrupted.contains(&container.id) {
                record.interrupted.push(container.id.clone());
            }
        }
        record.interrupted.len() > known
    }

    /// A pod that is stopped and has not ended was deleted: its phase is known when it has stopped.
    fn note_deleted(&mut self, uid: &PodUid) -> bool {
        let record = self.of_mut(uid);
        let Some(record) = record.filter(|record| record.terminal.is_none()) else { return false };
        !std::mem::replace(&mut record.deleted, true)
    }

    /// An incarnation without a record is known only from the runtime, and its deadline is not
    /// saved.
    fn retire(&mut self, uid: &PodUid, deadline: KillDeadline, now: Now) -> bool {
        let left = deadline.at.saturating_sub(now.boot);
        let Some(record) = self.of_mut(uid) else {
            return false;
        };
        if record.kill.is_some_and(|kill| kill.grace_seconds <= deadline.grace_seconds) {
            return false;
        }
        let ends = now.wall.checked_add(left).unwrap_or(now.wall);
        record.kill = Some(KillRecord { grace_seconds: deadline.grace_seconds, deadline: ends });
        true
    }

    async fn write(&mut self, store: &Store) {
        self.refresh(clock::now());
        let put = store.put_pods(&self.key, &self.records).await;
        self.saved = put.is_ok();
        if let Err(error) = put {
            // The store tries again, and shows it as a warning of the node.
            tracing::debug!(pod = %self.key, err = %error, "its record is not on disk yet");
        }
    }

    fn refresh(&mut self, now: Now) {
        self.incarnations = self.records.iter().map(|record| incarnation(record, now)).collect();
    }
}

/// True when a container of the pod runs.
fn has_running(status: &k8s::PodStatus) -> bool {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    all.any(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// Where the manifest of a pod lies: not where in a file, which changes with the pods around it.
fn place(origin: Option<&Origin>) -> Option<(SourceKind, &str)> {
    origin.map(|origin| (origin.source, &*origin.location))
}

/// True when an agent that starts with either of two records does the same.
fn runs_the_same(one: &k8s::Pod, other: &k8s::Pod) -> bool {
    fn checkpoint(pod: &k8s::Pod) -> Option<&String> {
        pod.metadata.annotations.as_ref()?.get(RUN_FROM_CHECKPOINT)
    }
    one.spec == other.spec
        && one.status == other.status
        && checkpoint(one) == checkpoint(other)
        && (!shows_metadata(one)
            || one.metadata.labels == other.metadata.labels
                && one.metadata.annotations == other.metadata.annotations)
}

fn incarnation(record: &PodRecord, now: Now) -> Incarnation {
    Incarnation {
        uid: record.uid.clone(),
        pod: Some(Arc::clone(&record.pod)),
        started_at: record.started_at,
        kill: record.kill.map(|kill| KillDeadline {
            grace_seconds: kill.grace_seconds,
            // Wall time may have jumped. The pod never gets more than its whole grace period.
            at: now.boot
                + Duration::try_from(kill.deadline.duration_since(now.wall))
                    .unwrap_or_default()
                    .min(Duration::from_secs(kill.grace_seconds.into())),
        }),
        terminal: record.terminal.clone(),
        deleted: record.deleted,
        interrupted: record.interrupted.clone(),
    }
}

#[cfg(test)]
mod tests;
