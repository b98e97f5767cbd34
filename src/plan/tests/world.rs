//! A model world: a runtime that does what actions say, programs that end when they are told to, an
//! agent that can be killed. It drives the planner as the worker does and writes down what happens.

use crate::{
    model::{
        ApiObjects, ContainerAmounts, ContainerId, ContainerState, DesiredPod, Hold, NetworkMode,
        NodeObjects, Now, ObservedContainer, ObservedPod, ObservedSandbox, Origin, PodEnd, PodKey,
        PodProbes, PodUid, ResizeWait, RuntimeView, SandboxState, Shutdown, SourceKind, k8s,
    },
    plan::{
        Action, ContainerKind, Failure, HeldPod, Incarnation, KillPod, KillPurpose, NameInput,
        Outcome, Picture, PlanSettings, PodMemory, PodOrders, PodPlan, Pull, Resize, Restart,
        StartContainer, Step, Taken, Wish, plan_name,
    },
    podspec::{any_container_of, container_amounts, container_hash, is_static, needed_images},
    status::{
        StatusContext, StatusInput, display_status, held_status, pod_status, ready_column, restarts,
    },
};
use jiff::Timestamp;
use serde_json::json;
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
    Pull,
    ImageNever,
    /// Before anybody looks for the image.
    Config,
    Create,
    Start,
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
    loops: BTreeMap<(PodUid, Box<str>), (ContainerId, Duration, Duration)>,
    ends: BTreeMap<ContainerId, (Duration, i32)>,
    /// The ephemeral containers that have run in an incarnation that is not removed.
    ran_once: BTreeSet<(PodUid, Box<str>)>,
    next_id: u32,
    trace: Vec<String>,
}

/// A pod from a spec, restart policy and the like included.
pub(super) fn desired(uid: &str, spec: &serde_json::Value) -> DesiredPod {
    let pod: k8s::Pod = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-n1", "namespace": "default", "uid": uid,
                     "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": spec,
    }))
    .unwrap();
    DesiredPod {
        key: PodKey::new("default", "web-n1"),
        uid: uid.into(),
        revision: uid.into(),
        pod: Arc::new(pod),
        origin: Origin {
            source: SourceKind::File,
            location: "/m/web.yaml".into(),
            document: 0,
            line: 1,
        },
    }
}

/// No objects, all of them known.
fn known_objects() -> NodeObjects {
    let services = Some(Arc::default());
    let api = Arc::new(ApiObjects { services, ..ApiObjects::default() });
    NodeObjects { known: true, api, ..NodeObjects::default() }
}

/// The same pod from an API server.
pub(super) fn from_api(mut pod: DesiredPod) -> DesiredPod {
    let source = ("kubernetes.io/config.source".to_owned(), "api".to_owned());
    Arc::make_mut(&mut pod.pod).metadata.annotations = Some([source].into());
    pod.origin.source = SourceKind::Api;
    pod
}

pub(super) fn container(name: &str) -> serde_json::Value {
    json!({"name": name, "image": format!("registry/{name}:1")})
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
        let shared = |pod: &DesiredPod| Arc::new(pod.clone());
        let orders = PodOrders {
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
        };
        let input = NameInput {
            key: &self.key,
            orders: &orders,
            known: &known,
            observed: &observed,
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

    /// Passes until nothing is left to do: plan, execute, fold, plan again. Ends with a fresh
    /// listing, from which there is nothing to do either.
    pub(super) fn run(&mut self) {
        self.list();
        for _ in 0..PATIENCE {
            let plan = self.plan();
            for event in self.memory.announce(&plan) {
                self.note(&format!("event {} {}", event.reason, event.message));
            }
            let idle = plan.actions.is_empty();
            if plan.stopped && self.picture.unconfirmed_since().is_none() {
                self.check_stopped();
            }
            self.plan = plan.clone();
            self.publish();
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
                let open = matches!(
                    outcome,
                    Outcome::ContainerKilled { exit_matters: true, .. }
                        | Outcome::PodKilled { exit_matters: true, .. }
                );
                self.picture.record(outcome, self.now);
                if open {
                    self.list();
                }
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

    /// Ends the running instance of a container.
    pub(super) fn kill(&mut self, name: &str, code: i32) {
        let running =
            self.truth.containers.iter().find(|c| &*c.name == name && c.state.is_running());
        let id = running.expect("runs").id.clone();
        self.end(&id, code);
    }

    fn end(&mut self, id: &ContainerId, code: i32) {
        self.ends.remove(id);
        let at = self.now.wall;
        let Some(container) = self.truth.containers.iter_mut().find(|c| c.id == *id) else {
            return;
        };
        let ContainerState::Running { started_at } = container.state else { return };
        let reason = if code == 0 { "Completed" } else { "Error" };
        container.state = ContainerState::Exited {
            started_at: Some(started_at),
            finished_at: at,
            exit_code: code,
            reason: reason.into(),
            message: "".into(),
        };
        self.finished.insert(id.clone(), self.now.boot);
        let line = format!("-- {} ended with {code}", container.name);
        self.note(&line);
    }

    /// The pod may run again.
    pub(super) fn lift(&mut self) {
        self.hold = None;
        self.status = None;
    }

    /// The pause container and everything in it dies.
    pub(super) fn sandbox_dies(&mut self) {
        let ready = self.truth.sandboxes.iter_mut().find(|s| s.state == SandboxState::Ready);
        let sandbox = ready.expect("ready sandbox");
        sandbox.state = SandboxState::NotReady;
        let id = sandbox.id.clone();
        self.note("-- sandbox died");
        let inside: Vec<ContainerId> = self
            .truth
            .containers
            .iter()
            .filter(|c| c.sandbox_id == id && c.state.is_running())
            .map(|c| c.id.clone())
            .collect();
        for id in inside {
            self.end(&id, 137);
        }
    }

    /// kill -9 and start: the picture is lost, records and memory (through its file) stay.
    pub(super) fn restart_agent(&mut self) {
        self.note("-- agent restarted");
        self.picture = Picture::default();
        self.volumes_current = false;
        let file = serde_json::to_string(&self.memory).unwrap();
        self.memory = serde_json::from_str(&file).unwrap();
    }

    /// The machine went down and came up: nothing runs, `/run` is empty, boot time starts over.
    pub(super) fn reboot(&mut self) {
        self.note("-- machine rebooted");
        for sandbox in &mut self.truth.sandboxes {
            sandbox.state = SandboxState::NotReady;
        }
        let running: Vec<ContainerId> = self
            .truth
            .containers
            .iter()
            .filter(|c| c.state.is_running())
            .map(|c| c.id.clone())
            .collect();
        for id in running {
            self.end(&id, 255);
        }
        self.memory = PodMemory::default();
        self.loops.clear();
        self.picture = Picture::default();
        self.pass_time(Duration::from_secs(60));
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

    /// Takes the next fault when it is one of these.
    fn fails(&mut self, faults: &[Fault]) -> Option<Fault> {
        let fault = *self.faults.front().filter(|fault| faults.contains(fault))?;
        self.faults.pop_front();
        Some(fault)
    }

    fn failed(uid: &PodUid, step: Step, reason: &str, message: &str) -> Outcome {
        Outcome::Failed(Failure {
            uid: uid.clone(),
            step,
            reason: reason.to_owned(),
            message: message.to_owned(),
            taken: None,
            left: None,
        })
    }

    fn new_id(&mut self, prefix: &str) -> String {
        self.next_id += 1;
        format!("{prefix}{}", self.next_id)
    }

    fn kill_pod(&mut self, uid: PodUid, kill: &KillPod) -> Outcome {
        if let KillPurpose::Retire { deadline } = &kill.purpose {
            let pod = None;
            let record = self.records.entry(uid.clone()).or_insert_with(|| Incarnation {
                uid: uid.clone(),
                pod,
                started_at: None,
                kill: None,
                terminal: None,
                deleted: false,
                interrupted: Vec::new(),
            });
            record.kill = Some(*deadline);
        }
        if let (KillPurpose::Terminal, Some(record)) = (&kill.purpose, self.records.get_mut(&uid)) {
            record.deleted |= record.terminal.is_none();
        }
        if let (KillPurpose::Shutdown, Some(record)) = (&kill.purpose, self.records.get_mut(&uid)) {
            record.interrupted.extend(kill.containers().map(|c| c.id.clone()));
        }
        if self.fails(&[Fault::Kill]).is_some() {
            Self::failed(&uid, Step::KillPod, "FailedKillPod", "cannot kill")
        } else {
            for container in kill.containers() {
                self.end_or_settle(&container.id);
            }
            for sandbox in &mut self.truth.sandboxes {
                if kill.sandboxes.contains(&sandbox.id) {
                    sandbox.state = SandboxState::NotReady;
                }
            }
            let containers = kill.containers().map(|c| c.id.clone()).collect();
            let (sandboxes, exit_matters) = (kill.sandboxes.clone(), kill.exit_matters());
            Outcome::PodKilled { uid, containers, sandboxes, exit_matters }
        }
    }

    fn execute(&mut self, action: &Action) -> Outcome {
        self.pass_time(STEP);
        let uid = action.uid().clone();
        self.note(&action.to_string());
        let outcome = match action {
            Action::PreparePod { .. } => {
                let outcome = self.prepare(&uid);
                self.volumes_current |= outcome.is_success();
                outcome
            }
            Action::CreateSandbox(create) => self.create_sandbox(&uid, create.attempt),
            Action::StartContainer(start) => self.start(start),
            Action::Resize(resize) => self.resize(resize),
            Action::KillContainer(kill) => {
                if self.fails(&[Fault::Kill]).is_some() {
                    let (container, id) = (kill.name.clone(), kill.id.clone());
                    Self::failed(&uid, Step::KillContainer { container, id }, "FailedKillPod", "no")
                } else {
                    self.end_or_settle(&kill.id);
                    let exit_matters = kill.restart == Restart::ByPolicy;
                    Outcome::ContainerKilled { uid, id: kill.id.clone(), exit_matters }
                }
            }
            Action::KillPod(kill) => self.kill_pod(uid, kill),
            Action::RemoveContainer(remove) => {
                let id = remove.id.clone();
                if self.fails(&[Fault::Remove]).is_some() {
                    Self::failed(&uid, Step::RemoveContainer { id }, "", "cannot remove")
                } else {
                    let alive =
                        self.truth.containers.iter().any(|c| c.id == id && c.state.is_running());
                    assert!(!alive, "{id} is removed while it runs:{}", self.take_trace());
                    self.truth.containers.retain(|c| c.id != id);
                    if self.is_retiring(&uid) {
                        self.ran_once.remove(&(uid.clone(), remove.name.clone()));
                    }
                    Outcome::ContainerRemoved { uid, id }
                }
            }
            Action::RemoveSandbox(remove) => {
                let id = remove.id.clone();
                self.truth.sandboxes.retain(|s| s.id != id);
                self.hidden.retain(|s| s.id != id);
                self.truth.containers.retain(|c| c.sandbox_id != id);
                Outcome::SandboxRemoved { uid, id }
            }
            Action::Release { .. } => {
                if self.fails(&[Fault::Release]).is_some() {
                    Self::failed(&uid, Step::Release, "FailedCleanUp", "volume is busy")
                } else {
                    self.prepared.remove(&uid);
                    Outcome::Released { uid }
                }
            }
            Action::CleanUp { .. } => {
                if self.fails(&[Fault::CleanUp]).is_some() {
                    Self::failed(&uid, Step::CleanUp, "", "volume is busy")
                } else {
                    self.records.remove(&uid);
                    self.prepared.remove(&uid);
                    self.loops.retain(|(of, _), _| *of != uid);
                    self.status = None;
                    Outcome::CleanedUp { uid }
                }
            }
        };
        self.check(action);
        outcome
    }

    /// True when the incarnation is removed: what runs under its uid later begins anew.
    fn is_retiring(&self, uid: &PodUid) -> bool {
        let wanted = matches!(&self.want, Want::Run(pod) if pod.uid == *uid);
        !wanted || self.records.get(uid).is_some_and(|record| record.kill.is_some())
    }

    fn resize(&mut self, resize: &Resize) -> Outcome {
        let fails = self.fails(&[Fault::Resize]).is_some();
        let count = if fails { 1 } else { resize.containers.len() };
        let done: Vec<_> = resize.containers.iter().take(count).cloned().collect();
        self.resized.extend(done.iter().map(|one| (one.id.clone(), one.to)));
        let uid = resize.uid.clone();
        if fails {
            return Self::failed(&uid, Step::Resize { done }, "ResizeError", "below usage");
        }
        Outcome::Resized { uid, containers: done, finished: resize.finish }
    }

    fn end_or_settle(&mut self, id: &ContainerId) {
        self.ends.remove(id);
        self.finished.insert(id.clone(), self.now.boot);
        let at = self.now.wall;
        if let Some(container) = self.truth.containers.iter_mut().find(|c| c.id == *id) {
            container.state = ContainerState::Exited {
                started_at: None,
                finished_at: at,
                exit_code: self.on_term,
                reason: if self.on_term == 0 { "Completed" } else { "Error" }.into(),
                message: "".into(),
            };
        }
    }

    fn prepare(&mut self, uid: &PodUid) -> Outcome {
        let Want::Run(pod) = &self.want else { panic!("prepares what nobody wants") };
        assert_eq!(pod.uid, *uid);
        assert!(
            self.end.is_none(),
            "prepares what has ended:{}",
            self.trace.join(
                "
"
            )
        );
        let wall = self.now.wall;
        let record = self.records.entry(uid.clone()).or_insert_with(|| admitted(pod, wall));
        record.pod = Some(Arc::clone(&pod.pod));
        self.prepared.insert(uid.clone());
        if self.fails(&[Fault::Prepare]).is_some() {
            return Self::failed(uid, Step::Prepare, "FailedMount", "no such device");
        }
        Outcome::Prepared { uid: uid.clone() }
    }

    fn create_sandbox(&mut self, uid: &PodUid, attempt: u32) -> Outcome {
        assert!(self.end.is_none(), "starts what has ended:{}", self.trace.join("\n"));
        let step = Step::Sandbox { attempt };
        let all = self.truth.sandboxes.iter().chain(&self.hidden);
        let taken = all.into_iter().find(|s| s.uid == *uid && s.attempt == attempt);
        if let Some(taken) = taken {
            let by = Taken::ByUs(taken.id.to_string());
            let reason = "FailedCreatePodSandBox".to_owned();
            let message = format!("name is reserved for {}", taken.id);
            let left = None;
            return Outcome::Failed(Failure {
                uid: uid.clone(),
                step,
                reason,
                message,
                taken: Some(by),
                left,
            });
        }
        let fault = self.fails(&[Fault::Sandbox, Fault::SandboxHalf]);
        if fault == Some(Fault::Sandbox) {
            return Self::failed(uid, step, "FailedCreatePodSandBox", "no address left");
        }
        let host =
            matches!(&self.want, Want::Run(pod) if crate::podspec::is_host_network(&pod.pod));
        let sandbox = ObservedSandbox {
            id: self.new_id("s").into(),
            uid: uid.clone(),
            attempt,
            state: SandboxState::Ready,
            created_at: self.now.wall,
            ips: if host { Vec::new() } else { vec!["10.0.0.7".parse().unwrap()] },
            network: if host { NetworkMode::Node } else { NetworkMode::Pod },
            owner: Some(OWNER.into()),
        };
        self.truth.sandboxes.push(sandbox.clone());
        if fault.is_some() {
            return Self::failed(uid, step, "FailedCreatePodSandBox", "deadline exceeded");
        }
        Outcome::SandboxCreated(sandbox)
    }

    /// What goes wrong before a container exists.
    fn fail_before_create(
        &mut self,
        start: &StartContainer,
        name: &str,
        image: &str,
    ) -> Option<Outcome> {
        let step =
            |pull_tried| Step::Image { container: name.into(), image: image.into(), pull_tried };
        let faults = [Fault::Pull, Fault::ImageNever, Fault::Config, Fault::Create];
        let fault = self.fails(&faults)?;
        let (step, reason, message) = if fault == Fault::Config {
            let step = Step::Config { container: name.into() };
            (step, "CreateContainerConfigError", "no such user")
        } else if fault == Fault::Create {
            let restart_count = start.restart_count.unwrap_or(0);
            let step = Step::Create { container: name.into(), restart_count };
            (step, "CreateContainerError", "no space")
        } else if fault == Fault::ImageNever {
            (step(false), "ErrImageNeverPull", "not present")
        } else if !matches!(start.pull, Pull::NotNow(_)) {
            (step(true), "ErrImagePull", "registry is down")
        } else {
            self.faults.push_front(fault);
            (step(false), "ImagePullBackOff", "still absent")
        };
        Some(Self::failed(&start.uid, step, reason, message))
    }

    fn start(&mut self, start: &StartContainer) -> Outcome {
        self.check_back_off(start);
        assert!(self.end.is_none(), "starts what has ended:{}", self.trace.join("\n"));
        let Want::Run(pod) = &self.want else { panic!("starts what nobody wants") };
        let container = any_container_of(&pod.pod, &start.name).unwrap().into_owned();
        let made_with = container_amounts(&pod.pod, &container);
        let name: Box<str> = start.name.clone();
        let image: Box<str> = container.image.clone().unwrap_or_default().into();
        // The one that is pulled first.
        let first = needed_images(&pod.pod, &container).next().unwrap().image.to_owned();
        if let Some(failed) = self.fail_before_create(start, &name, &first) {
            return failed;
        }
        let home = self.truth.sandboxes.iter().find(|s| s.id == start.sandbox_id);
        assert_eq!(home.map(|s| s.state), Some(SandboxState::Ready), "{start:?}");
        let id = match &start.created {
            Some(id) => id.clone(),
            None => self.new_id("c").into(),
        };
        let running = ContainerState::Running { started_at: self.now.wall };
        let started = ObservedContainer {
            sandbox_id: start.sandbox_id.clone(),
            uid: start.uid.clone(),
            name,
            restart_count: start.restart_count.unwrap_or_default(),
            made_with: Some(Box::new(made_with)),
            hash: container_hash(&container).into(),
            created_at: self.now.wall,
            image: image.clone(),
            image_ref: format!("sha256:{image}").into(),
            ..ObservedContainer::example(id.as_str(), running)
        };
        if start.kind == ContainerKind::Ephemeral {
            let fresh = self.ran_once.insert((start.uid.clone(), start.name.clone()));
            assert!(fresh, "{} runs again:{}", start.name, self.trace.join("\n"));
        }
        self.truth.containers.retain(|c| c.id != id);
        self.truth.containers.push(started.clone());
        if self.fails(&[Fault::Start]).is_some() {
            let failed = self.truth.containers.last_mut().unwrap();
            failed.state = ContainerState::Exited {
                started_at: None,
                finished_at: self.now.wall,
                exit_code: 128,
                reason: "StartError".into(),
                message: "exec failed".into(),
            };
            self.finished.insert(id.clone(), self.now.boot);
            let step = Step::Start { container: started.name.clone(), id };
            let Outcome::Failed(failure) =
                Self::failed(&start.uid, step, "RunContainerError", "exec failed")
            else {
                unreachable!()
            };
            let left =
                Some(Box::new(ObservedContainer { state: ContainerState::Created, ..started }));
            return Outcome::Failed(Failure { left, ..failure });
        }
        let programs = self.programs.get_mut(&*start.name);
        let program = match programs {
            Some(programs) if programs.len() > 1 => programs.pop_front(),
            Some(programs) => programs.front().copied(),
            None => None,
        };
        let default = match start.kind {
            ContainerKind::Init => Program::Ends(1, 0),
            ContainerKind::Sidecar | ContainerKind::Regular | ContainerKind::Ephemeral => {
                Program::Forever
            }
        };
        if let Program::Ends(after, code) = program.unwrap_or(default) {
            self.ends.insert(id, (self.now.boot + Duration::from_secs(after), code));
        }
        Outcome::ContainerStarted(started)
    }

    /// Keeps its own account of crash loops and checks that a start is due.
    fn check_back_off(&mut self, start: &StartContainer) {
        let Some(exited) = &start.restart_of else { return };
        let key = (start.uid.clone(), start.name.clone());
        let finished = self.finished[exited];
        let mut next = Duration::from_secs(10).min(self.settings.crash_loop_cap);
        if let Some((last, at, delay)) = self.loops.get(&key) {
            if last == exited {
                return;
            }
            if finished.saturating_sub(*at) <= Duration::from_secs(600) {
                let waited = self.now.boot.saturating_sub(finished);
                assert!(
                    waited >= *delay,
                    "{} after {waited:?}:{}",
                    start.name,
                    self.trace.join("\n")
                );
                next = (*delay * 2).min(self.settings.crash_loop_cap);
            }
        }
        self.loops.insert(key, (exited.clone(), self.now.boot, next));
    }

    /// What must hold after every action.
    fn check(&mut self, action: &Action) {
        let ready = self
            .truth
            .sandboxes
            .iter()
            .filter(|s| s.state == SandboxState::Ready && s.owner.as_deref() == Some(OWNER));
        let ready: Vec<_> = ready.collect();
        if matches!(action, Action::CreateSandbox(_)) {
            assert!(ready.len() <= 1, "two live sandboxes: {ready:?}{}", self.trace.join("\n"));
        }
        if matches!(action, Action::CreateSandbox(_) | Action::StartContainer(_)) {
            let Want::Run(pod) = &self.want else { panic!() };
            let others = self.records.keys().filter(|uid| **uid != pod.uid).count();
            let alive = self.truth.containers.iter().any(|c| c.uid != pod.uid)
                || self
                    .truth
                    .sandboxes
                    .iter()
                    .any(|s| s.uid != pod.uid && s.owner.as_deref() == Some(OWNER));
            assert!(!alive && others == 0, "another incarnation is left:{}", self.trace.join("\n"));
        }
        if let Action::StartContainer(start) = action {
            let running = self
                .truth
                .containers
                .iter()
                .filter(|c| c.name == start.name && c.state.is_running());
            assert!(running.count() <= 1, "{} runs twice:{}", start.name, self.trace.join("\n"));
        }
    }

    /// The object of a pod that is shown as stopped may go.
    fn check_stopped(&self) {
        let Want::Run(pod) = &self.want else { panic!("what nobody wants is stopped") };
        let sandboxes = self.truth.sandboxes.iter().filter(|s| s.uid == pod.uid);
        let containers = self.truth.containers.iter().filter(|c| c.uid == pod.uid);
        let runs = sandboxes.map(|s| s.state == SandboxState::Ready);
        let mut runs = runs.chain(containers.map(|c| c.state.is_running()));
        assert!(!runs.any(|runs| runs), "it runs:{}", self.trace.join("\n"));
        assert!(!self.prepared.contains(&pod.uid), "volumes are left:{}", self.trace.join("\n"));
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

/// The record of a pod that is admitted at this time.
fn admitted(pod: &DesiredPod, at: Timestamp) -> Incarnation {
    Incarnation {
        uid: pod.uid.clone(),
        pod: Some(Arc::clone(&pod.pod)),
        started_at: Some(at),
        kill: None,
        terminal: None,
        deleted: false,
        interrupted: Vec::new(),
    }
}

/// A time in the past of every world.
pub(super) fn long_ago() -> Timestamp {
    "2026-11-19T10:00:00Z".parse().unwrap()
}
