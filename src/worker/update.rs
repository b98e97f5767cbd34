//! Updates of a pod: which revision the worker acts on, the images that are fetched before a new
//! revision takes over, and the trial of the new revision. `plan::update` and `plan::rollback`
//! decide.

use super::{
    Input,
    execute::{Host, Request, fetch},
    task::Worker,
};
use crate::{
    clock,
    model::{Event, EventKind, EventTarget, Hold, Now, ObservedPod, PodUpdate, TerminalPhase, k8s},
    plan::{
        Fetch, Fetched, Notice, Occupancy, PodPlan, Rollout, Trial, TrialInput, UpdateInput,
        UpdatePlan, Wish, plan_update,
    },
    podspec::is_static,
};
use std::{pin::Pin, sync::Arc, time::Duration};

/// The reason of the event about a new revision that cannot take over.
const WAITING: &str = "UpdateWaiting";
/// The reason of the event about a revision that is rolled back.
const ROLLED_BACK: &str = "RolledBack";

/// An image that is being fetched.
pub(super) struct Fetching {
    fetch: Fetch,
    outcome: Pin<Box<dyn Future<Output = Fetched> + Send>>,
}

impl Fetching {
    fn begin(host: &Arc<Host>, request: Request, wanted: Fetch) -> Self {
        let (host, of_fetch) = (Arc::clone(host), wanted.clone());
        let outcome = Box::pin(async move { fetch(&host, &request, &of_fetch).await });
        Self { fetch: wanted, outcome }
    }

    /// Whether it is for the same revision. Another of its images may be wanted by now, because a
    /// back-off has ended; this one is needed as well.
    fn is_of(&self, other: &Fetch) -> bool {
        (&self.fetch.pod.uid, &self.fetch.pod.revision) == (&other.pod.uid, &other.pod.revision)
    }
}

/// How a new revision stands beside an action of the old one.
#[derive(Default)]
pub(super) struct Following {
    /// The boot time at which to look again.
    pub(super) wake_at: Option<Duration>,
    /// It begins a pull, and none of its pulls has failed. Where pulls take turns, one of the old
    /// revision may be in its way.
    pub(super) needs_turn: bool,
}

/// Waits for the end of a fetch; for ever when there is none. It may be dropped and called again.
pub(super) async fn fetched(fetching: &mut Option<Fetching>) -> (Fetch, Fetched) {
    let Some(current) = fetching.as_mut() else { return std::future::pending().await };
    let outcome = (&mut current.outcome).await;
    let fetch = current.fetch.clone();
    *fetching = None;
    (fetch, outcome)
}

impl Worker {
    /// Decides which revision of the pod is acted on.
    pub(super) fn plan_update(&self, input: &Input, observed: &ObservedPod) -> UpdatePlan {
        let wished = input.orders.wish.pod();
        let standing = wished.and_then(|wished| self.records.replaced_by(wished));
        let standing = standing.filter(|(_, ended)| !ended).map(|(standing, _)| standing);
        plan_update(
            &UpdateInput {
                orders: &input.orders,
                standing: standing.as_ref(),
                observed,
                settings: &self.host.settings.plan,
                memory: &self.memory,
                objects: &input.objects,
                runtime: &input.runtime,
            },
            clock::now(),
        )
    }

    /// The input with the orders that are acted on.
    pub(super) fn acted_on(&self, input: &Input) -> Input {
        let observed = self.picture.shared();
        let plan = observed.map(|observed| self.plan_update(input, &observed));
        let orders = plan.map_or_else(|| Arc::clone(&input.orders), |plan| plan.orders);
        Input { orders, ..input.clone() }
    }

    /// Fetches what a new revision needs beside an action of the old one, as each pass does, and
    /// tells why the new one waits.
    pub(super) fn follow_update(&mut self, input: &Input) -> Following {
        let Some(observed) = self.picture.shared() else { return Following::default() };
        let mut update = self.plan_update(input, &observed);
        let fetch = update.fetch.take();
        let goes_on = |wanted: &Fetch| self.fetching.as_ref().is_some_and(|f| f.is_of(wanted));
        let first = update.waits.as_ref().is_some_and(|wait| !wait.failed);
        let needs_turn = fetch.as_ref().is_some_and(|f| first && f.pull_allowed && !goes_on(f));
        self.take_fetch(input, fetch);
        let mut told = PodPlan::default();
        self.tell_update(&update, &mut told);
        self.announce(&mut told, clock::now());
        Following { wake_at: update.wake_at.into_iter().chain(told.wake_at).min(), needs_turn }
    }

    /// Begins the fetch that the plan wants, and drops every other one.
    pub(super) fn take_fetch(&mut self, input: &Input, wanted: Option<Fetch>) {
        let goes_on = |fetching: &Fetching| wanted.as_ref().is_some_and(|f| fetching.is_of(f));
        if self.fetching.as_ref().is_some_and(goes_on) {
            return;
        }
        self.fetching = wanted.map(|wanted| {
            let request = self.request_beside(input, &wanted.pod);
            Fetching::begin(&self.host, request, wanted)
        });
    }

    /// Takes the end of a fetch in.
    pub(super) fn take_fetched(&mut self, fetch: &Fetch, outcome: &Fetched) {
        self.memory.fetched(fetch, outcome, clock::now());
    }

    /// Saves what the old revision was, before its removal begins.
    pub(super) async fn take_over(
        &mut self,
        input: &Input,
        update: &UpdatePlan,
        observed: &ObservedPod,
    ) {
        let rollout = match &input.orders.wish {
            // A controller makes and rolls back its revisions itself.
            Wish::Run(wished) if !is_static(&wished.pod) => Rollout::default(),
            Wish::Run(wished) if update.waits.is_none() => match self.records.replaced_by(wished) {
                Some((standing, _)) => {
                    let occupancy = Occupancy::new(observed, &self.host.settings.owner);
                    let own = occupancy.own(&standing.uid, true);
                    self.rollout.taken_over(&standing, &own, &self.memory, wished)
                }
                None => self.rollout.begun_with(wished),
            },
            Wish::Gone => Rollout::default(),
            Wish::Run(_) | Wish::Keep { .. } | Wish::End { .. } | Wish::Undecided => return,
        };
        if rollout != self.rollout {
            self.save_rollout(rollout).await;
        }
    }

    /// Notes whether the pod is Ready, and judges the trial of a new revision. Returns the boot time
    /// at which to judge again.
    pub(super) async fn judge(
        &mut self,
        input: &Input,
        plan: &PodPlan,
        now: Now,
    ) -> Option<Duration> {
        let Wish::Run(wished) = &input.orders.wish else { return None };
        if !is_static(&wished.pod) {
            return None;
        }
        let terminal = plan.terminal.as_ref();
        let ready = self.reporter.status(&wished.uid).and_then(|status| condition(status, "Ready"));
        let is_ready = ready.is_some_and(|ready| ready.status == "True");
        let succeeded = terminal.is_some_and(|end| end.phase == TerminalPhase::Succeeded);
        let proven_at = self.memory.note_ready(wished, is_ready, succeeded, now);
        let orders = &input.orders;
        let updates = matches!(self.reporter.update, Some(PodUpdate::Waits(_)));
        // A revision for which there is no room fails its trial.
        let lacks_room = orders.hold_on(&wished.uid).is_some_and(Hold::is_for_room);
        let undisturbed =
            !updates && (lacks_room || orders.hold.is_none()) && orders.shutdown.is_none();
        let begun = lacks_room || self.records.of(&wished.uid).is_some();
        if !begun || !undisturbed {
            self.trial_began = None;
            return proven_at;
        }
        let awake = clock::awake();
        let began = match &self.trial_began {
            Some((revision, began)) if *revision == wished.revision => *began,
            Some(_) | None => {
                self.trial_began = Some((wished.revision.clone(), awake));
                awake
            }
        };
        let not_ready = ready.filter(|_| !is_ready).and_then(|ready| ready.message.clone());
        let trial = TrialInput {
            wished,
            memory: &self.memory,
            terminal,
            tried_for: awake.saturating_sub(began),
            not_ready: not_ready.as_deref(),
        };
        match self.rollout.judge(&trial, now) {
            Trial::None => proven_at,
            Trial::Until(at) => proven_at.into_iter().chain([at]).min(),
            Trial::Passed => {
                self.save_rollout(Rollout::default()).await;
                None
            }
            Trial::Failed(why) => {
                tracing::warn!(pod = %self.key, revision = %wished.revision, "rolled back: {why}");
                let message = format!(
                    "Revision {} is rolled back to the previous one: {why}",
                    wished.revision
                );
                let (key, uid) = (self.key.clone(), wished.uid.clone());
                let target = EventTarget::Pod { key, uid, field_path: None };
                let kind = EventKind::Warning;
                self.host.events.record(Event { target, kind, reason: ROLLED_BACK, message });
                self.save_rollout(self.rollout.rolled_back(wished, why)).await;
                // The next report tells the set of workers, which changes the wish.
                Some(now.boot)
            }
        }
    }

    pub(super) async fn save_rollout(&mut self, rollout: Rollout) {
        self.rollout = rollout;
        self.reporter.take_rollout(&self.rollout);
        if let Err(error) = self.host.store.put_rollout(&self.key, &self.rollout).await {
            // The store tries again, and shows it as a warning of the node.
            tracing::debug!(pod = %self.key, err = %error, "its rollout is not on disk yet");
        }
    }

    /// Tells the view and the events why the new revision of the pod waits.
    pub(super) fn tell_update(&mut self, update: &UpdatePlan, plan: &mut PodPlan) {
        let waits = update.waits.as_ref().map(|wait| PodUpdate::Waits(wait.why.clone()));
        let wished = update.orders.wish.pod();
        let rolled_back = || {
            let why = self.rollout.rolled_back_to(wished?)?;
            Some(PodUpdate::RolledBack(why.to_owned()))
        };
        self.reporter.update = waits.or_else(rolled_back);
        let failed = update.waits.as_ref().filter(|wait| wait.failed);
        if let (Some(wait), Some(pod)) = (failed, wished) {
            let message = format!(
                "The new revision of the manifest waits, the old one runs on: {}",
                wait.why
            );
            let (key, uid) = (self.key.clone(), pod.uid.clone());
            let target = EventTarget::Pod { key, uid, field_path: None };
            let event = Event {
                target,
                kind: EventKind::Warning,
                reason: WAITING,
                message: message.clone(),
            };
            plan.notices.push(Notice { occasion: message, event });
        }
    }
}

fn condition<'a>(status: &'a k8s::PodStatus, name: &str) -> Option<&'a k8s::PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == name)
}
