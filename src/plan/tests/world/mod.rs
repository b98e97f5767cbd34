//! A model world: a runtime that does what actions say, programs that end when they are told to, an
//! agent that can be killed. It drives the planner as the worker does and writes down what happens.

mod events;
mod invariants;
mod pods;
mod runtime;

pub(super) use events::{Happening, happen};
pub(super) use pods::{container, desired, from_api, long_ago};

use crate::{
    model::{
        ContainerAmounts, ContainerId, CpuMemory, DesiredPod, Hold, NodeObjects, Now,
        ObservedContainer, ObservedPod, ObservedSandbox, PodEnd, PodKey, PodProbes, PodUid,
        ResizeWait, RuntimeView, Shutdown, k8s,
    },
    plan::{
        Action, Crashed, HeldPod, Incarnation, NameInput, Picture, PlanSettings, PodMemory,
        PodOrders, PodPlan, Wish, plan_name,
    },
    podspec::is_static,
    status::{
        StatusContext, StatusInput, display_status, held_status, pod_status, ready_column, restarts,
    },
};
use pods::{admitted, known_objects};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

pub(super) const OWNER: &str = "me";
/// Boot time at which every world begins.
const START: Duration = Duration::from_secs(1000);
/// How long an action takes.
const STEP: Duration = Duration::from_millis(1);
/// Passes without convergence after which a test fails.
const PATIENCE: usize = 60;

/// What a container does once started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Program {
    Forever,
    /// Ends after this many seconds with this code.
    Ends(u64, i32),
}

/// What goes wrong with the next action of a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    Prepare,
    Sandbox,
    /// The sandbox is made, the call fails, and the next one says that the name is reserved.
    SandboxHalf,
    /// The sandbox is made and has no address.
    NoAddress,
    Pull,
    ImageNever,
    /// Before anybody looks for the image.
    Config,
    Create,
    Start,
    /// The container starts, and the call fails.
    StartUnanswered,
    Kill,
    Remove,
    Release,
    CleanUp,
    /// The first container is resized, and then the runtime refuses.
    Resize,
}

#[derive(Clone, Debug)]
pub(super) enum Want {
    Run(Box<DesiredPod>),
    Gone,
    Undecided,
}

#[allow(clippy::struct_excessive_bools, reason = "each is an input that a test switches")]
pub(super) struct World {
    pub(super) key: PodKey,
    pub(super) want: Want,
    /// What runs of the wanted pod may go on, and nothing is started.
    pub(super) keep: bool,
    /// The wanted pod was deleted, or has ended by the API server.
    pub(super) end: Option<PodEnd>,
    pub(super) now: Now,
    /// What really is in the runtime.
    pub(super) truth: ObservedPod,
    pub(super) runtime: RuntimeView,
    pub(super) shutdown: Option<Shutdown>,
    pub(super) hold: Option<(PodUid, Hold)>,
    pub(super) waits: Option<&'static str>,
    pub(super) after: Option<&'static str>,
    pub(super) resize_wait: Option<Arc<ResizeWait>>,
    pub(super) clear_dead: bool,
    pub(super) records_saved: bool,
    /// With what containers end that are stopped.
    pub(super) on_term: i32,
    pub(super) programs: BTreeMap<String, VecDeque<Program>>,
    pub(super) faults: VecDeque<Fault>,
    pub(super) records: BTreeMap<PodUid, Incarnation>,
    pub(super) memory: PodMemory,
    /// What the probes of the containers have found.
    pub(super) probes: PodProbes,
    /// ConfigMaps and Secrets. A test that changes them also clears `volumes_current`.
    pub(super) objects: NodeObjects,
    pub(super) volumes_current: bool,
    /// The incarnations that have volumes and cgroups.
    pub(super) prepared: BTreeSet<PodUid>,
    pub(super) outdated: BTreeSet<ContainerId>,
    /// What containers have that were resized.
    pub(super) resized: BTreeMap<ContainerId, ContainerAmounts>,
    /// What the cgroups of pods have.
    pub(super) cgroups: BTreeMap<PodUid, CpuMemory>,
    pub(super) picture: Picture,
    pub(super) settings: PlanSettings,
    pub(super) plan: PodPlan,
    pub(super) status: Option<k8s::PodStatus>,
    /// Actions executed.
    pub(super) count: usize,
    /// The agent dies right after this action, its outcome unrecorded.
    pub(super) die_after: Option<usize>,
    /// The agent dies right before this action, when it has saved that it begins it.
    pub(super) die_before: Option<usize>,
    /// Sandboxes that a call of a former life is still making: not listed, their names taken.
    pub(super) hidden: Vec<ObservedSandbox>,
    /// When instances ended, by boot time.
    finished: BTreeMap<ContainerId, Duration>,
    /// An account of back-offs of its own: the instance last replaced, when, and the delay after
    /// the next.
    loops: BTreeMap<(PodUid, Box<str>), (Crashed, Duration, Duration)>,
    ends: BTreeMap<ContainerId, (Duration, i32)>,
    /// The ephemeral containers that have run in an incarnation that is not removed.
    ran_once: BTreeSet<(PodUid, Box<str>)>,
    next_id: u32,
    trace: Vec<String>,
}

impl World {
    pub(super) fn new(pod: DesiredPod) -> Self {
        Self {
            key: pod.key.clone(),
            want: Want::Run(Box::new(pod)),
            keep: false,
            end: None,
            now: Now { boot: START, wall: "2026-11-20T10:00:00Z".parse().unwrap() },
            truth: ObservedPod::default(),
            runtime: RuntimeView::default(),
            shutdown: None,
            hold: None,
            waits: None,
            after: None,
            resize_wait: None,
            clear_dead: false,
            records_saved: true,
            on_term: 137,
            programs: BTreeMap::new(),
            faults: VecDeque::new(),
            records: BTreeMap::new(),
            memory: PodMemory::default(),
            probes: PodProbes::new(),
            objects: known_objects(),
            volumes_current: false,
            prepared: BTreeSet::new(),
            outdated: BTreeSet::new(),
            resized: BTreeMap::new(),
            cgroups: BTreeMap::new(),
            picture: Picture::default(),
            settings: PlanSettings {
                owner: OWNER.into(),
                crash_loop_cap: Duration::from_secs(300),
                prepare_updates: true,
                runtime_classes: BTreeMap::new(),
            },
            plan: PodPlan::default(),
            status: None,
            count: 0,
            die_after: None,
            die_before: None,
            hidden: Vec::new(),
            finished: BTreeMap::new(),
            loops: BTreeMap::new(),
            ends: BTreeMap::new(),
            ran_once: BTreeSet::new(),
            next_id: 0,
            trace: Vec::new(),
        }
    }

    /// The world of a pod with this spec, uid `a`.
    pub(super) fn of(spec: &serde_json::Value) -> Self {
        Self::new(desired("a", spec))
    }

    /// A pod of the API server.
    pub(super) fn of_api(spec: &serde_json::Value) -> Self {
        Self::new(from_api(desired("a", spec)))
    }

    pub(super) fn program(mut self, name: &str, programs: &[Program]) -> Self {
        self.programs.insert(name.to_owned(), programs.iter().copied().collect());
        self
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }

    /// What happened since the last call, one line each.
    pub(super) fn take_trace(&mut self) -> String {
        let trace = std::mem::take(&mut self.trace);
        trace.iter().fold(String::new(), |text, line| text + "\n" + line) + "\n"
    }

    pub(super) fn note(&mut self, line: &str) {
        let time = (self.now.boot.checked_sub(START).unwrap()).as_secs();
        self.trace.push(format!("{time:>4} {line}"));
    }

    pub(super) fn pass_time(&mut self, by: Duration) {
        self.now.boot += by;
        self.now.wall =
            self.now.wall.checked_add(jiff::SignedDuration::try_from(by).unwrap()).unwrap();
    }

    /// A listing that begins now.
    pub(super) fn list(&mut self) {
        self.pass_time(STEP);
        self.truth.listed_at = self.now.boot;
        self.picture.observe(Arc::new(self.truth.clone()));
        self.pass_time(STEP);
    }

    /// What the set of workers would tell the worker now.
    pub(super) fn orders(&self) -> PodOrders {
        let shared = |pod: &DesiredPod| Arc::new(pod.clone());
        PodOrders {
            wish: match (&self.want, self.end) {
                (Want::Run(pod), Some(end)) => Wish::End { pod: shared(pod), end },
                (Want::Run(pod), None) if self.keep => Wish::Keep { pod: shared(pod), why: "kept" },
                (Want::Run(pod), None) => Wish::Run(shared(pod)),
                (Want::Gone, _) => Wish::Gone,
                (Want::Undecided, _) => Wish::Undecided,
            },
            shutdown: self.shutdown.clone(),
            hold: self.hold.clone().map(|(uid, hold)| HeldPod { uid, hold: Arc::new(hold) }),
            waits: self.waits.map(Arc::from),
            after: self.after.map(Arc::from),
            resize_wait: self.resize_wait.clone(),
            asked: None,
            clear_dead: self.clear_dead,
        }
    }

    /// One plan from the current picture.
    pub(super) fn plan(&mut self) -> PodPlan {
        let known: Vec<Incarnation> = self.records.values().cloned().collect();
        let observed = self.picture.shared().expect("listed");
        let wished = match &self.want {
            Want::Run(pod) => Some(&pod.uid),
            Want::Gone | Want::Undecided => None,
        };
        self.memory.look(wished, &known, &observed, self.now);
        self.memory.take_probes(&self.probes, &observed);
        let orders = self.orders();
        let input = NameInput {
            key: &self.key,
            orders: &orders,
            known: &known,
            observed: &observed,
            settled: !self.picture.awaits_listing(),
            memory: &self.memory,
            probes: &self.probes,
            objects: &self.objects,
            volumes_current: self.volumes_current,
            outdated: &self.outdated,
            settings: &self.settings,
            runtime: &self.runtime,
            records_saved: self.records_saved,
        };
        let plan = plan_name(&input, self.now);
        let (want, wall) = (&self.want, self.now.wall);
        if let (Some(terminal), Want::Run(pod)) = (&plan.terminal, want) {
            if !is_static(&pod.pod) {
                // It may have ended without ever having run.
                self.records.entry(pod.uid.clone()).or_insert_with(|| admitted(pod, wall));
            }
            if let Some(record) = self.records.get_mut(&pod.uid) {
                record.terminal = Some(terminal.clone());
            }
        }
        plan
    }

    /// The agent dies at the action with this number: before it, or after it.
    pub(super) fn die_at(&mut self, number: usize, before: bool) {
        let death = if before { &mut self.die_before } else { &mut self.die_after };
        *death = Some(number);
    }

    /// Passes until nothing is left to do: plan, execute, fold, plan again. Ends with a fresh
    /// listing, from which there is nothing to do either.
    pub(super) fn run(&mut self) {
        self.list();
        for _ in 0..PATIENCE {
            let mut plan = self.plan();
            for event in self.memory.announce(&mut plan, self.now) {
                self.note(&format!("event {} {}", event.reason, event.message));
            }
            let idle = plan.actions.is_empty();
            if plan.stopped && self.picture.unconfirmed_since().is_none() {
                self.check_stopped();
            }
            self.plan = plan.clone();
            self.publish();
            if self.picture.awaits_listing() {
                self.list();
                continue;
            }
            for action in &plan.actions {
                self.memory.begin(action, &self.settings, self.now);
                let saved = self.memory.clone();
                if self.die_before.is_some_and(|count| count <= self.count + 1) {
                    self.die_before = None;
                    self.restart_agent();
                    return self.run();
                }
                let outcome = self.execute(action);
                self.count += 1;
                if self.die_after == Some(self.count) {
                    self.die_after = None;
                    self.memory = saved;
                    self.restart_agent();
                    return self.run();
                }
                let failed = !outcome.is_success();
                self.memory.record(&outcome, self.now);
                self.picture.record(outcome, self.now);
                if failed && action.failure_ends_pass() {
                    break;
                }
            }
            if idle {
                if self.picture.unconfirmed_since().is_none() {
                    return;
                }
                self.list();
            }
        }
        panic!("no convergence:{}", self.take_trace());
    }

    /// Carries one action out, outside of a pass.
    pub(super) fn perform(&mut self, action: &Action) {
        self.memory.begin(action, &self.settings, self.now);
        let outcome = self.execute(action);
        self.memory.record(&outcome, self.now);
        self.picture.record(outcome, self.now);
    }

    /// Lets time pass: programs end, the agent wakes when it asked to.
    pub(super) fn advance(&mut self, seconds: u64) {
        let target = self.now.boot + Duration::from_secs(seconds);
        loop {
            let end = self.ends.values().map(|(at, _)| *at).min();
            let next = [end, self.plan.wake_at].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= target) else { break };
            self.pass_time(next.saturating_sub(self.now.boot));
            let due: Vec<_> = self
                .ends
                .iter()
                .filter(|(_, (at, _))| *at <= self.now.boot)
                .map(|(id, (_, code))| (id.clone(), *code))
                .collect();
            for (id, code) in due {
                self.end(&id, code);
            }
            self.run();
        }
        self.pass_time(target.saturating_sub(self.now.boot));
    }

    /// `Running 1/1 0`: STATUS, READY, RESTARTS.
    pub(super) fn line(&self) -> String {
        let Want::Run(pod) = &self.want else { return "-".to_owned() };
        let status = self.status.as_ref().expect("published");
        format!(
            "{} {} {}",
            display_status(&pod.pod, status, false),
            ready_column(&pod.pod, status),
            restarts(&pod.pod, status).0
        )
    }

    fn publish(&mut self) {
        let Want::Run(pod) = &self.want else { return };
        if let Some((_, hold)) = self.hold.as_ref().filter(|_| self.plan.held) {
            self.status = Some(held_status(&pod.pod, hold, self.status.as_ref(), self.now));
            return;
        }
        let input = StatusInput {
            pod: &pod.pod,
            uid: &pod.uid,
            observed: self.picture.current().expect("listed"),
            plan: Some(&self.plan),
            memory: &self.memory,
            resize_wait: self.resize_wait.as_deref(),
            terminal: self.plan.terminal.as_ref().or(self.plan.interrupted.as_ref()),
            started_at: self.records.get(&pod.uid).and_then(|record| record.started_at),
            terminating: self.end.is_some_and(|end| end.deleted.is_some()),
            previous: self.status.as_ref(),
        };
        let cx =
            StatusContext { runtime_name: "containerd".to_owned(), ..StatusContext::default() };
        let before = self.status.is_some().then(|| self.line());
        self.status = Some(pod_status(&input, &cx, self.now));
        let after = self.line();
        if before.as_ref() != Some(&after) {
            self.note(&format!("= {after}"));
        }
    }

    pub(super) fn running(&self, name: &str) -> Option<&ObservedContainer> {
        self.truth.containers.iter().find(|c| &*c.name == name && c.state.is_running())
    }

    pub(super) fn want_uid(&mut self, uid: &str, spec: &serde_json::Value) {
        self.want = Want::Run(Box::new(desired(uid, spec)));
        self.status = None;
        self.note(&format!("-- manifest changed, uid {uid}"));
    }
}
