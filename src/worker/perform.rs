//! Executes one action of a worker while the worker still reads its input.

use super::{
    Input, counted,
    deadline::Deadline,
    earlier::{EarlierWork, ended},
    execute::{Call, Progress, Request, StopControl, execute},
    objects::ObjectsRead,
    report::Remembered,
    task::{RESYNC, Worker},
    update::fetched,
};
use crate::{
    clock,
    model::{DesiredPod, ObservedPod, PodUid, k8s},
    plan::{Action, Outcome, PodPlan},
    podspec::{self, are_objects_known},
};
use futures_util::future::join;
use std::{
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The action that is being executed.
struct Execution {
    action: Arc<Action>,
    request: Arc<Request>,
    /// The image of the container that it starts.
    image: Option<String>,
    deadline: Deadline,
    /// Volumes that are being written beside it.
    refresh: Option<EarlierWork>,
    /// What volumes could not be written from.
    refused: Option<ObjectsRead>,
    /// The latest input.
    input: Input,
    /// The boot time at which to look again at a new revision that waits.
    update_at: Option<Duration>,
}

impl Execution {
    /// Overtakes the action if the pod is to end and its end can begin beside the action. Returns
    /// true if so.
    fn overtake(&self, observed: &ObservedPod) -> bool {
        let ends = self.input.orders.ends(&self.request.uid) && !self.action.ends_pod();
        ends && self.request.stop_control.overtake(observed)
    }
}

impl Worker {
    /// Saves what must be known before an action is executed, and kills what must not wait for it.
    async fn begin(&mut self, input: &Input, action: &Action) {
        if matches!(action, Action::KillPod(_)) {
            // A process may have been started since.
            self.at_once = None;
            self.kill_at_once(input);
        }
        let (now, host) = (clock::now(), Arc::clone(&self.host));
        self.memory.begin(action, &host.settings.plan, now);
        // That changes nothing for `PreparePod`, and the next action saves what is new by then.
        if !matches!(action, Action::PreparePod { .. }) {
            self.keep().await;
        }
        self.records.begin(&host.store, action, &input.orders, now).await;
    }

    /// Begins to execute an action, beside an earlier stop.
    fn execute(
        &mut self,
        input: &Input,
        action: &Arc<Action>,
    ) -> (Arc<Request>, Call<'static, Outcome>) {
        let (uid, earlier) = (action.uid(), self.earlier.take());
        let progress = earlier.as_ref().map(EarlierWork::progress).unwrap_or_default();
        self.reporter.progress = Some(progress.subscribe());
        let mut request = self.request(input, uid, self.records.pod_for(uid, input), progress);
        request.earlier_stop = earlier.as_ref().map(EarlierWork::control);
        let request = Arc::new(request);
        let (host, action) = (Arc::clone(&self.host), Arc::clone(action));
        let of_call = Arc::clone(&request);
        let running: Call<'static, Outcome> = Box::pin(async move {
            let outcome = execute(&host, &of_call, &action).await;
            counted::count(counted::started(&action), &outcome);
            outcome
        });
        let running = match earlier {
            Some(earlier) => earlier.beside(running),
            None => running,
        };
        (request, running)
    }

    /// Executes one action and still reads the input: a changed wish cancels a pull, a listing
    /// appears in the view, and a call past its soft deadline is shown. Returns `None` in two cases.
    /// The agent stops while the action may be dropped: its next start plans the action again. Or
    /// the pod is to end while the action stops containers: the action goes on as [`EarlierWork`].
    pub(super) async fn perform(
        &mut self,
        input: &Input,
        plan: &PodPlan,
        action: Action,
    ) -> Option<Outcome> {
        self.begin(input, &action).await;
        let pod = self.records.pod_for(action.uid(), input);
        self.memory.set_post_start(pod.and_then(|pod| post_start_of(&pod, &action)));
        let outcome = self.carry_out(input, plan, Arc::new(action)).await;
        self.memory.set_post_start(None);
        outcome
    }

    async fn carry_out(
        &mut self,
        input: &Input,
        plan: &PodPlan,
        action: Arc<Action>,
    ) -> Option<Outcome> {
        let (request, mut running) = self.execute(input, &action);
        let mut current = Execution {
            image: image_of(self.records.pod_for(action.uid(), input).as_deref(), &action),
            deadline: Deadline::of(&action, request.pod.clone(), &input.orders),
            refresh: None,
            refused: None,
            input: input.clone(),
            update_at: None,
            action,
            request,
        };
        let mut listening = true;
        // An action may hang, for example in a postStart hook. Meanwhile the trial of a revision can
        // end, and a revision that waits can fetch its images.
        self.catch_up(&mut current).await;
        let mut wake_at = self.next_look(&current.input, plan, current.update_at).await;
        // `running`, the refresh and the fetch are pinned outside and polled again when another arm
        // wins; a watch's `changed` loses nothing when it is dropped. `until` is made anew from a
        // fixed time.
        loop {
            let Execution { request, deadline, refresh, input, .. } = &mut current;
            let mut again = false;
            tokio::select! {
                biased;
                outcome = &mut running => {
                    self.pod_start.images_took(&request.uid, request.images_took());
                    self.begun_with = request.begun_with.get().cloned();
                    // The next action may write the same volumes, so it waits. The write may hang.
                    self.earlier = refresh.take();
                    let earlier = self.earlier.as_ref().map(EarlierWork::progress);
                    self.reporter.progress = earlier.map(|progress| progress.subscribe());
                    return Some(outcome);
                }
                (done, objects) = ended(refresh) => {
                    if done.is_success() {
                        self.objects.take(&done, objects);
                        self.offer_objects(&current);
                    } else {
                        current.refused = Some(objects);
                    }
                    current.refresh = self.refresh(&current);
                }
                changed = self.input.changed(), if listening => {
                    listening = changed.is_ok();
                    self.take_input(&mut current, listening).await;
                }
                () = deadline.passed() => {
                    self.kill_processes(&request.uid, input);
                    request.stop_control.cut();
                }
                (fetch, outcome) = fetched(&mut self.fetching) => {
                    self.take_fetched(&fetch, &outcome);
                    again = true;
                }
                () = self.reporter.progressed() => {}
                () = until(wake_at) => again = true,
                () = self.shutdown.cancelled(), if !request.cancel.is_cancelled() => {
                    request.cancel.cancel();
                }
            }
            if again && listening {
                self.take_input(&mut current, listening).await;
            }
            if self.shutdown.is_cancelled() && current.request.progress.borrow().may_be_dropped {
                return None;
            }
            let Some(observed) = self.picture.shared() else { continue };
            if current.overtake(&observed) {
                self.pod_start.images_took(&current.request.uid, current.request.images_took());
                let outcome = beside(running, current.refresh.take());
                let objects = ObjectsRead::default();
                self.earlier = Some(EarlierWork::new(&current.request, outcome, objects));
                return None;
            }
            if self.memory.take_probes(&current.input.probes, &observed) {
                self.keep().await;
            }
            let known = Remembered { records: &self.records, memory: &self.memory };
            self.reporter.report(&current.input, &observed, known, plan, None).await;
            wake_at = self.next_look(&current.input, plan, current.update_at).await;
        }
    }

    /// Takes over what has changed during the action before this one.
    async fn catch_up(&mut self, current: &mut Execution) {
        let latest = self.input.borrow().clone();
        if Arc::ptr_eq(&latest.objects, &current.input.objects) {
            self.follow(current, &latest);
        } else {
            self.take_input(current, true).await;
        }
    }

    /// Follows a new revision during an action.
    fn follow(&mut self, current: &mut Execution, latest: &Input) {
        let update = self.follow_update(latest);
        current.update_at = update.wake_at;
        if update.needs_turn {
            current.request.cancel_pull.cancel();
        }
    }

    /// Judges the trial of a revision during an action. Returns the boot time at which to look
    /// again, at the latest `update_at`.
    async fn next_look(
        &mut self,
        input: &Input,
        plan: &PodPlan,
        update_at: Option<Duration>,
    ) -> Option<Duration> {
        let judged = self.judge(input, plan, clock::now()).await;
        judged.into_iter().chain(update_at).min()
    }

    /// Takes over the latest input during an action. `listening` is false when there will be no
    /// more input, because the worker is to end.
    async fn take_input(&mut self, current: &mut Execution, listening: bool) {
        let latest = self.input.borrow().clone();
        if listening {
            self.follow(current, &latest);
        } else {
            current.update_at = None;
        }
        let request = &current.request;
        let latest = self.acted_on(&latest);
        // The same uid may be wished with another image: the manifest names the uid.
        let pod = latest.orders.goes_on(&request.uid).map(|wished| &*wished.pod);
        if !listening || pod.is_none() || image_of(pod, &current.action) != current.image {
            request.cancel.cancel();
        }
        if !listening {
            return;
        }
        current.deadline.look(&latest.orders);
        current.input = latest;
        self.offer_objects(current);
        self.picture.observe(Arc::clone(&current.input.observed));
        if self.take_asked(&current.input).await {
            let request = &current.request;
            request.cancel_pull.cancel();
            if self.is_restart_asked(current) {
                request.cancel_hook.cancel();
            }
        }
        self.kill_at_once(&current.input);
        if current.refresh.is_none() && matches!(*current.action, Action::StartContainer(_)) {
            current.refresh = self.refresh(current);
        }
    }

    /// Lets the container that is being started begin with the latest objects, once the volumes are
    /// written from them: a container whose environment is newer than its files would not be
    /// restarted for the files.
    fn offer_objects(&self, current: &Execution) {
        if self.objects.are_written(&current.input) {
            let latest = Arc::clone(&current.input.objects);
            current.request.latest_objects.send_replace(latest);
        }
    }

    /// Whether a person wants the container restarted that the action has started.
    fn is_restart_asked(&self, current: &Execution) -> bool {
        let Action::StartContainer(start) = &*current.action else { return false };
        let Some(observed) = self.picture.shared() else { return false };
        observed.containers.iter().any(|container| {
            *container.name == *start.name
                && container.state.is_running()
                && self.memory.of(current.action.uid()).asked.contains(&container.id)
        })
    }

    /// Writes the volumes of a pod whose objects have changed, beside the start of a container,
    /// which lasts as long as the pull of its image. A write that has failed is not tried again with
    /// the same objects: the next `PreparePod` is, and has a back-off.
    fn refresh(&self, current: &Execution) -> Option<EarlierWork> {
        let (input, uid) = (&current.input, current.action.uid());
        let pod = input.orders.goes_on(uid)?;
        let objects = ObjectsRead::of(&pod.pod, &input.objects);
        let known = || are_objects_known(&pod.pod, &input.objects);
        let refused = current.refused.as_ref().is_some_and(|tried| tried.has_same_data(&objects));
        if objects.is_empty() || refused || self.objects.are_written(input) || !known() {
            return None;
        }
        let request = Arc::new(self.request_beside(input, pod));
        let (host, of_call) = (Arc::clone(&self.host), Arc::clone(&request));
        let outcome = Box::pin(async move {
            let action = Action::PreparePod { uid: of_call.uid.clone() };
            execute(&host, &of_call, &action).await
        });
        Some(EarlierWork::new(&request, outcome, objects))
    }

    /// A request for work beside the actions of a plan.
    pub(super) fn request_beside(&self, input: &Input, pod: &DesiredPod) -> Request {
        let progress = watch::Sender::default();
        self.request(input, &pod.uid, Some(Arc::clone(&pod.pod)), progress)
    }

    fn request(
        &self,
        input: &Input,
        uid: &PodUid,
        pod: Option<Arc<k8s::Pod>>,
        progress: watch::Sender<Progress>,
    ) -> Request {
        let cancel = CancellationToken::new();
        Request {
            key: self.key.clone(),
            uid: uid.clone(),
            pod,
            observed: self.picture.shared().unwrap_or_default(),
            objects: Arc::clone(&input.objects),
            latest_objects: watch::Sender::new(Arc::clone(&input.objects)),
            begun_with: OnceLock::new(),
            cancel_pull: cancel.child_token(),
            cancel_hook: cancel.child_token(),
            cancel,
            progress,
            stop_control: StopControl::default(),
            earlier_stop: None,
            images_millis: AtomicU64::new(0),
        }
    }
}

/// An action that ends when the volumes are written as well, so that nothing is removed before.
/// What it was written from is not remembered: the pod is to end.
fn beside(running: Call<'static, Outcome>, refresh: Option<EarlierWork>) -> Call<'static, Outcome> {
    let Some(refresh) = refresh else { return running };
    Box::pin(async move { join(running, refresh.finish()).await.0 })
}

/// Sleeps until a boot time, at most [`RESYNC`]: timers stop while the machine is suspended.
async fn until(boot: Option<Duration>) {
    match boot {
        Some(at) => tokio::time::sleep(at.saturating_sub(clock::now().boot).min(RESYNC)).await,
        None => std::future::pending().await,
    }
}

/// The container that an action starts, if it has a postStart hook.
fn post_start_of(pod: &k8s::Pod, action: &Action) -> Option<(PodUid, Box<str>)> {
    let Action::StartContainer(start) = action else { return None };
    let container = podspec::container_of(pod, &start.name)?;
    container.lifecycle.as_ref()?.post_start.as_ref()?;
    Some((start.uid.clone(), start.name.clone()))
}

/// The image of the container that a start is about.
fn image_of(pod: Option<&k8s::Pod>, action: &Action) -> Option<String> {
    let Action::StartContainer(start) = action else { return None };
    podspec::image_of(pod?.spec.as_ref()?, &start.name).map(ToOwned::to_owned)
}
