//! One base pod with mutations: what its status says. The statuses of whole scenarios are in
//! `plan/tests`.

use super::*;
use crate::{
    model::{
        ContainerAmounts, ContainerState, CpuMemory, NetworkMode, ObservedContainer,
        ObservedSandbox, SandboxState, TerminalPhase,
    },
    plan::Waiting,
};
use serde_json::{Value, json};
use std::time::Duration;

const UID: &str = "u";

fn now() -> Now {
    Now { boot: Duration::from_secs(1000), wall: "2026-11-20T10:00:00.25Z".parse().unwrap() }
}

fn ago(seconds: i64) -> Timestamp {
    now().wall.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap()
}

/// Two containers behind an init container and a sidecar.
fn pod() -> k8s::Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": UID},
        "spec": {
            "initContainers": [
                {"name": "setup", "image": "setup:1"},
                {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"},
            ],
            "containers": [
                {"name": "web", "image": "web:1", "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "etc", "mountPath": "/etc/x", "readOnly": true},
                ]},
                {"name": "api", "image": "api:1"},
            ],
        },
    }))
    .unwrap()
}

fn running() -> ContainerState {
    ContainerState::Running { started_at: ago(60) }
}

fn exited(exit_code: i32) -> ContainerState {
    ContainerState::Exited {
        started_at: Some(ago(60)),
        finished_at: ago(30),
        exit_code,
        reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
        message: "".into(),
    }
}

fn instance(name: &str, restart_count: u32, state: ContainerState) -> ObservedContainer {
    ObservedContainer {
        uid: UID.into(),
        name: name.into(),
        restart_count,
        created_at: ago(60),
        image: format!("docker.io/library/{name}:1").into(),
        image_ref: format!("docker.io/library/{name}@sha256:0").into(),
        ..ObservedContainer::example(&format!("{name}-{restart_count}"), state)
    }
}

fn sandbox() -> ObservedSandbox {
    ObservedSandbox {
        id: "s".into(),
        uid: UID.into(),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: ago(90),
        ips: vec!["fd00::7".parse().unwrap(), "10.0.0.7".parse().unwrap()],
        network: NetworkMode::Pod,
        owner: None,
    }
}

fn observed(containers: Vec<ObservedContainer>) -> ObservedPod {
    ObservedPod { sandboxes: vec![sandbox()], containers, ..Default::default() }
}

fn up() -> ObservedPod {
    observed(vec![
        instance("setup", 0, exited(0)),
        instance("proxy", 0, running()),
        instance("web", 0, running()),
        instance("api", 0, running()),
    ])
}

struct Case {
    pod: k8s::Pod,
    observed: ObservedPod,
    plan: PodPlan,
    memory: PodMemory,
    terminal: Option<Terminal>,
    terminating: bool,
    resize_wait: Option<ResizeWait>,
    previous: Option<k8s::PodStatus>,
    recursive_read_only: bool,
}

impl Case {
    fn of(observed: ObservedPod) -> Self {
        Self {
            pod: pod(),
            observed,
            plan: PodPlan::default(),
            memory: PodMemory::default(),
            terminal: None,
            terminating: false,
            resize_wait: None,
            previous: None,
            recursive_read_only: false,
        }
    }

    fn waiting(mut self, name: &str, reason: &str) -> Self {
        let waiting = Waiting { reason: reason.to_owned(), message: "m".to_owned() };
        self.plan.waiting.insert(name.into(), waiting);
        self
    }

    fn ended(mut self, phase: TerminalPhase) -> Self {
        self.terminal = Some(Terminal::of_phase(phase));
        self
    }

    fn status(&self) -> k8s::PodStatus {
        self.status_at(now())
    }

    fn status_at(&self, now: Now) -> k8s::PodStatus {
        self.status_of("containerd", now)
    }

    fn status_of(&self, runtime_name: &str, now: Now) -> k8s::PodStatus {
        let uid = PodUid::from(UID);
        let input = StatusInput {
            pod: &self.pod,
            uid: &uid,
            observed: &self.observed,
            plan: Some(&self.plan),
            memory: &self.memory,
            resize_wait: self.resize_wait.as_ref(),
            terminal: self.terminal.as_ref(),
            started_at: Some(ago(100)),
            terminating: self.terminating,
            previous: self.previous.as_ref(),
        };
        let runtime_name = runtime_name.to_owned();
        let cx = StatusContext {
            runtime_name,
            recursive_read_only: self.recursive_read_only,
            ..StatusContext::default()
        };
        pod_status(&input, &cx, now)
    }

    /// Phase and the columns of kubectl.
    fn line(&self) -> String {
        let status = self.status();
        let ready = ready_column(&self.pod, &status);
        let shown = display_status(&self.pod, &status, self.terminating);
        format!(
            "{} {shown} {ready} {}",
            status.phase.as_deref().unwrap(),
            restarts(&self.pod, &status).0
        )
    }
}

fn conditions(status: &k8s::PodStatus) -> Vec<String> {
    let conditions = status.conditions.iter().flatten();
    conditions
        .map(|c| {
            let reason = c.reason.as_deref().map(|r| format!(" {r}")).unwrap_or_default();
            let message = c.message.as_deref().map(|m| format!(": {m}")).unwrap_or_default();
            format!("{}={}{reason}{message}", c.type_, c.status)
        })
        .collect()
}

fn container<'a>(status: &'a k8s::PodStatus, name: &str) -> &'a k8s::ContainerStatus {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.into_iter().find(|container| container.name == name).unwrap()
}

fn to_json(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn phases_and_columns() {
    let with = |changes: &[(&str, u32, ContainerState)]| {
        let mut observed = up();
        for (name, count, state) in changes {
            observed.containers.retain(|c| &*c.name != *name);
            observed.containers.push(instance(name, *count, state.clone()));
        }
        Case::of(observed)
    };
    let only = |containers| Case::of(observed(containers));
    let cases = [
        ("all up", with(&[]), "Running Running 3/3 0"),
        ("nothing yet", Case::of(ObservedPod::default()), "Pending Init:0/2 0/3 0"),
        ("initialising", only(vec![instance("setup", 0, running())]), "Pending Init:0/2 0/3 0"),
        (
            "an init container failed",
            only(vec![instance("setup", 2, exited(1))]).waiting("setup", "CrashLoopBackOff"),
            "Pending Init:CrashLoopBackOff 0/3 2",
        ),
        ("init done", only(vec![instance("setup", 0, exited(0))]), "Pending Init:1/2 0/3 0"),
        (
            "sidecar up",
            only(vec![instance("setup", 0, exited(0)), instance("proxy", 1, running())]),
            "Pending PodInitializing 1/3 1",
        ),
        (
            "a regular one in a crash loop",
            with(&[("web", 4, exited(1))]).waiting("web", "CrashLoopBackOff"),
            "Running CrashLoopBackOff 2/3 4",
        ),
        (
            "an image that can't be pulled",
            only(vec![instance("setup", 0, exited(0)), instance("proxy", 0, running())])
                .waiting("api", "ErrImagePull"),
            "Pending ErrImagePull 1/3 0",
        ),
        ("one of two ended", with(&[("web", 0, exited(0))]), "Running NotReady 2/3 0"),
        (
            "all ended, to be restarted",
            with(&[("web", 0, exited(1)), ("api", 0, exited(0))]),
            "Running Completed 1/3 0",
        ),
        (
            "succeeded",
            with(&[("web", 0, exited(0)), ("api", 0, exited(0)), ("proxy", 0, exited(137))])
                .ended(TerminalPhase::Succeeded),
            "Succeeded Completed 0/3 0",
        ),
        (
            "failed",
            with(&[("web", 0, exited(1)), ("api", 0, exited(0))]).ended(TerminalPhase::Failed),
            "Failed Completed 1/3 0",
        ),
        ("being removed", Case { terminating: true, ..with(&[]) }, "Running Terminating 3/3 0"),
    ];
    for (name, case, expected) in cases {
        assert_eq!(case.line(), expected, "{name}");
    }
}

#[test]
fn a_running_container_is_described_in_full() {
    let mut case = Case::of(up());
    case.observed.containers.push(instance("web", 1, running()));
    case.observed.containers.iter_mut().for_each(|c| {
        if c.id.as_str() == "web-0" {
            c.state = exited(137);
        }
        c.user = Some((1000, 1000, vec![5]));
    });
    let status = case.status();
    let expected = json!({
        "name": "web",
        "image": "docker.io/library/web:1",
        "imageID": "docker.io/library/web@sha256:0",
        "containerID": "containerd://web-1",
        "ready": true,
        "started": true,
        "restartCount": 1,
        "state": {"running": {"startedAt": "2026-11-20T09:59:00Z"}},
        "lastState": {"terminated": {
            "containerID": "containerd://web-0", "exitCode": 137, "reason": "Error",
            "startedAt": "2026-11-20T09:59:00Z", "finishedAt": "2026-11-20T09:59:30Z",
        }},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "etc", "mountPath": "/etc/x", "readOnly": true, "recursiveReadOnly": "Disabled"},
        ],
        "user": {"linux": {"uid": 1000, "gid": 1000, "supplementalGroups": [5]}},
    });
    assert_eq!(to_json(container(&status, "web")), expected);
    let names: Vec<_> =
        status.container_statuses.iter().flatten().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["api", "web"]);
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.7"));
    let ips: Vec<_> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    assert_eq!(ips, ["10.0.0.7", "fd00::7"]);
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(to_json(status.start_time), json!("2026-11-20T09:58:20Z"));
}

#[test]
fn an_end_is_told_once() {
    // It was to start again, and the pod ends before that.
    let mut observed = up();
    observed.containers[2].state = exited(0);
    let mut case = Case::of(observed).waiting("web", "CrashLoopBackOff");
    let waits = case.status();
    let last = container(&waits, "web").last_state.as_ref().unwrap();
    assert_eq!(last.terminated.as_ref().unwrap().exit_code, 0);
    case.previous = Some(waits);
    case.plan = PodPlan::default();
    let ended = case.ended(TerminalPhase::Failed).status();
    let web = container(&ended, "web");
    assert!(web.state.as_ref().unwrap().terminated.is_some(), "{web:?}");
    assert_eq!(web.last_state, None);
}

#[test]
fn the_start_time_of_an_api_pod_never_moves() {
    let told = |seconds: i64| k8s::PodStatus {
        start_time: Some(time(ago(seconds))),
        ..k8s::PodStatus::default()
    };
    let start = |case: &Case| case.status().start_time.unwrap().0;
    // It waited before it was recorded, and the agent has told so.
    let mut case = Case::of(up());
    case.previous = Some(told(200));
    assert_eq!(start(&case), time(ago(200)).0);
    // Another life of the agent has told it.
    case.pod.status = Some(told(300));
    assert_eq!(start(&case), time(ago(300)).0);
    // A static pod starts when it is recorded, whatever its manifest says.
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    case.pod.metadata.annotations = Some([source].into());
    assert_eq!(start(&case), time(ago(100)).0);
}

/// What a new life of the agent reports first: the runtime was listed, and has not told its name.
#[test]
fn a_runtime_without_a_name_changes_nothing_that_is_known() {
    let mut case = Case::of(up());
    case.observed.containers.push(instance("web", 1, running()));
    let ended = case.observed.containers.iter_mut().find(|c| c.id.as_str() == "web-0");
    ended.unwrap().state = exited(4);
    let status = case.status_of("", now());
    assert_eq!(container(&status, "web").container_id, None);
    case.previous = Some(case.status());
    // Removed meanwhile, where a disk was short.
    case.observed.containers.retain(|c| c.id.as_str() != "web-0");
    let status = case.status_of("", now());
    assert_eq!(Some(&status), case.previous.as_ref());
    assert_eq!(to_json(container(&status, "web"))["lastState"]["terminated"]["exitCode"], 4);
}

#[test]
fn conditions_tell_what_is_missing() {
    let up_conditions = [
        "PodReadyToStartContainers=True",
        "Initialized=True",
        "Ready=True",
        "ContainersReady=True",
        "PodScheduled=True",
    ];
    assert_eq!(conditions(&Case::of(up()).status()), up_conditions);
    let early = Case::of(observed(vec![instance("setup", 0, running())])).status();
    let unready = "ContainersNotReady: containers with unready status: [proxy web api]";
    assert_eq!(
        conditions(&early)[1..4],
        [
            "Initialized=False ContainersNotInitialized: containers with incomplete status: [setup proxy]"
                .to_owned(),
            format!("Ready=False {unready}"),
            format!("ContainersReady=False {unready}"),
        ]
    );
    let mut dead = Case::of(up());
    dead.observed.sandboxes[0].state = SandboxState::NotReady;
    assert_eq!(conditions(&dead.status())[0], "PodReadyToStartContainers=False");
    let failed = Case::of(up()).ended(TerminalPhase::Failed).status();
    assert_eq!(
        conditions(&failed)[2..4],
        ["Ready=False PodFailed", "ContainersReady=False PodFailed"]
    );
    let ended = Case::of(up()).ended(TerminalPhase::Succeeded).status();
    assert_eq!(
        conditions(&ended)[..4],
        [
            "PodReadyToStartContainers=False",
            "Initialized=True PodCompleted",
            "Ready=False PodCompleted",
            "ContainersReady=False PodCompleted"
        ]
    );
    let mut gated = Case::of(up());
    gated.pod.spec.as_mut().unwrap().readiness_gates =
        Some(vec![k8s::PodReadinessGate { condition_type: "x/y".to_owned() }]);
    assert_eq!(
        conditions(&gated.status())[2],
        "Ready=False ReadinessGatesNotReady: corresponding condition of pod readiness gate \"x/y\" does not exist."
    );
}

#[test]
fn a_pod_with_the_rule_says_whether_all_containers_restart() {
    let condition = |case: &Case| {
        let status = case.status();
        let mut all = status.conditions.unwrap().into_iter();
        all.find(|condition| condition.type_ == "AllContainersRestarting")
    };
    let mut case = Case::of(up());
    assert_eq!(condition(&case), None);
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In"}});
    let mut pod = to_json(pod());
    pod["spec"]["initContainers"][1]["restartPolicyRules"] = json!([rule]);
    case.pod = serde_json::from_value(pod).unwrap();
    let rests = condition(&case).unwrap();
    assert_eq!((rests.status.as_str(), rests.reason, rests.message), ("False", None, None));
    let restarts = condition(&case.waiting("web", "RestartingAllContainers")).unwrap();
    assert_eq!(restarts.status, "True");
    assert_eq!(restarts.reason.as_deref(), Some("RestartAllContainersStarted"));
    let message = "container exited with restart policy rule";
    assert_eq!(restarts.message.as_deref(), Some(message));
}

#[test]
fn a_transition_time_moves_only_when_the_status_does() {
    let mut case = Case::of(up());
    let first = case.status();
    case.previous = Some(first.clone());
    let later = Now { wall: ago(-50), ..now() };
    assert_eq!(case.status_at(later), first);
    case.observed.containers.retain(|c| &*c.name != "api");
    case.observed.containers.push(instance("api", 0, exited(1)));
    let second = case.status_at(later);
    let times = |status: &k8s::PodStatus| -> Vec<Value> {
        let conditions = status.conditions.clone().unwrap();
        conditions.iter().map(|c| to_json(&c.last_transition_time)).collect()
    };
    let (old, new) = (json!("2026-11-20T10:00:00Z"), json!("2026-11-20T10:00:50Z"));
    assert_eq!(times(&second), [old.clone(), old.clone(), new.clone(), new, old]);
}

#[test]
fn addresses_and_a_terminal_phase_stay() {
    let mut case = Case::of(up()).ended(TerminalPhase::Failed);
    case.terminal.as_mut().unwrap().reason = Some("DeadlineExceeded".to_owned());
    case.previous = Some(case.status());
    assert_eq!(case.previous.as_ref().unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    case.observed = ObservedPod::default();
    let status = case.status();
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.7"));
    case.terminal = None;
    case.previous = Some(status);
    assert_eq!(case.status().phase.as_deref(), Some("Failed"));
}

#[test]
fn containers_that_vanish_are_accounted_for() {
    let mut case = Case::of(up());
    case.previous = Some(case.status());
    case.observed.containers.retain(|c| &*c.name == "api");
    let status = case.status();
    let web = to_json(container(&status, "web"));
    assert_eq!(web["state"], json!({"waiting": {"reason": "PodInitializing"}}));
    assert_eq!(web["lastState"]["terminated"]["reason"], "ContainerStatusUnknown");
    assert_eq!(web["restartCount"], 1);
    let setup = to_json(container(&status, "setup"));
    assert_eq!(setup["state"]["terminated"]["reason"], "Completed");
    assert_eq!(setup["ready"], true);
    // The next look changes nothing more.
    case.previous = Some(status.clone());
    assert_eq!(case.status(), status);
    // Of a pod that has ended, the last known end stays.
    let mut case = Case::of(up()).ended(TerminalPhase::Succeeded);
    case.observed.containers = vec![instance("web", 0, exited(0)), instance("api", 0, exited(0))];
    let status = case.status();
    case.previous = Some(status.clone());
    case.observed.containers.clear();
    assert_eq!(container(&case.status(), "web"), container(&status, "web"));
}

#[test]
fn a_new_instance_shows_the_end_of_one_that_is_gone() {
    let last = |case: &Case| {
        to_json(container(&case.status(), "web"))["lastState"]["terminated"]["exitCode"].clone()
    };
    let case = Case::of(observed(vec![instance("web", 0, exited(42))]));
    let ended = case.status();
    let waits = case.waiting("web", "RestartingAllContainers").status();
    for previous in [ended, waits.clone()] {
        let mut case = Case::of(observed(vec![instance("web", 1, running())]));
        case.previous = Some(previous);
        assert_eq!(last(&case), 42);
        // It ends: its own end is not the one before.
        case.previous = Some(case.status());
        case.observed = observed(vec![instance("web", 1, exited(3))]);
        assert_eq!(last(&case), 42);
        case.previous = Some(case.status());
        assert_eq!(last(&case), 42);
    }
    let mut case = Case::of(observed(Vec::new()));
    case.previous = Some(waits);
    case.previous = Some(case.status());
    case.observed = observed(vec![instance("web", 1, running())]);
    assert_eq!(last(&case), 42);
}

#[test]
fn a_container_whose_end_is_told_is_not_ready_and_its_pod_runs_on() {
    let told =
        |name: &str| ObservedContainer { ended_with: Some(1), ..instance(name, 0, running()) };
    let others = ["setup", "proxy", "api"].map(|name| match name {
        "setup" => instance(name, 0, exited(0)),
        _ => instance(name, 0, running()),
    });
    let mut case = Case::of(observed([told("web")].into_iter().chain(others.clone()).collect()));
    let status = case.status();
    let web = container(&status, "web");
    assert_eq!(
        (web.ready, web.restart_count, status.phase.as_deref()),
        (false, 0, Some("Running"))
    );
    case.previous = Some(status);
    // Its successor is made before the runtime shows the end.
    let next = instance("web", 1, ContainerState::Created);
    let containers = [next, told("web")].into_iter().chain(others);
    case.observed = observed(containers.collect());
    assert_eq!(case.line(), "Running PodInitializing 2/3 1");
}

/// The state of each container, init containers first: its exit code, why it waits, or `running`.
fn states(status: &k8s::PodStatus) -> String {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let texts = all.map(|container| {
        let state = container.state.as_ref().unwrap();
        let text = match (&state.terminated, &state.waiting) {
            (Some(ended), _) => ended.exit_code.to_string(),
            (None, Some(waiting)) => waiting.reason.clone().unwrap(),
            (None, None) => "running".to_owned(),
        };
        format!("{}={text}", container.name)
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// The base pod with its init containers cut to the first `count`.
fn with_init(count: usize, containers: Vec<ObservedContainer>) -> Case {
    let mut case = Case::of(observed(containers));
    let spec = case.pod.spec.as_mut().unwrap();
    spec.init_containers.as_mut().unwrap().truncate(count);
    case
}

#[test]
fn an_ended_pod_shows_which_containers_had_their_turn() {
    let setup = |code| instance("setup", 0, exited(code));
    let proxy = |state| instance("proxy", 0, state);
    let cases = [
        (
            "an init container failed",
            with_init(2, vec![setup(1)]),
            "setup=1 proxy=PodInitializing api=PodInitializing web=PodInitializing",
        ),
        (
            "it ended before its first container",
            with_init(2, vec![]),
            "setup=137 proxy=PodInitializing api=PodInitializing web=PodInitializing",
        ),
        (
            "only the second init container is left",
            with_init(2, vec![proxy(exited(1))]),
            "setup=137 proxy=1 api=PodInitializing web=PodInitializing",
        ),
        (
            "a sidecar that has not started is being stopped",
            Case {
                pod: serde_json::from_value(json!({"spec": {
                    "initContainers": [{"name": "proxy", "restartPolicy": "Always",
                        "startupProbe": {"exec": {"command": ["true"]}}}],
                    "containers": [{"name": "web"}],
                }}))
                .unwrap(),
                ..Case::of(observed(vec![proxy(running())]))
            },
            "proxy=running web=PodInitializing",
        ),
        (
            "the last sidecar has started",
            with_init(2, vec![setup(0), proxy(running())]),
            "setup=0 proxy=running api=137 web=137",
        ),
        (
            "the last init container succeeded",
            with_init(1, vec![setup(0)]),
            "setup=0 api=137 web=137",
        ),
        (
            "the last init container failed",
            with_init(1, vec![setup(2)]),
            "setup=2 api=PodInitializing web=PodInitializing",
        ),
        (
            "a regular container has begun",
            with_init(2, vec![setup(0), instance("web", 0, exited(1))]),
            "setup=0 proxy=PodInitializing api=137 web=1",
        ),
        ("there are no init containers", with_init(0, vec![]), "api=137 web=137"),
    ];
    for (name, case, expected) in cases {
        let mut case = case.ended(TerminalPhase::Failed);
        let status = case.status();
        assert_eq!(states(&status), expected, "{name}");
        case.previous = Some(status.clone());
        assert_eq!(case.status(), status, "{name}: it does not change by itself");
    }
}

#[test]
fn a_pod_stays_initialized_when_its_sidecar_is_stopped() {
    let setup = instance("setup", 0, exited(0));
    let mut case = with_init(2, vec![setup.clone(), instance("proxy", 0, running())]);
    case.previous = Some(case.status());
    case.observed = observed(vec![setup, instance("proxy", 0, exited(137))]);
    let case = case.ended(TerminalPhase::Failed);
    assert_eq!(states(&case.status()), "setup=0 proxy=137 api=137 web=137");
}

#[test]
fn the_end_of_a_container_that_vanished_keeps_its_restarts() {
    let mut case = Case::of(up());
    case.observed.containers.retain(|c| &*c.name != "web");
    case.observed.containers.push(instance("web", 3, running()));
    case.previous = Some(case.status());
    case.observed.containers.retain(|c| &*c.name != "web");
    case.terminating = true;
    let status = case.ended(TerminalPhase::Failed).status();
    let web = container(&status, "web");
    assert_eq!((web.restart_count, states(&status).contains("web=137")), (3, true));
}

#[test]
fn an_init_container_of_a_former_sandbox_has_to_run_again() {
    let mut case = Case::of(up());
    case.observed.sandboxes[0].id = "new".into();
    let status = case.status();
    let setup = to_json(container(&status, "setup"));
    assert_eq!(setup["state"], json!({"waiting": {"reason": "PodInitializing"}}));
    assert_eq!(setup["lastState"]["terminated"]["exitCode"], 0);
    assert_eq!((status.phase.as_deref(), &setup["ready"]), (Some("Pending"), &json!(false)));
}

#[test]
fn termination_messages_share_a_limit() {
    let mut case = Case::of(up());
    let mut web = instance("web", 0, exited(1));
    if let ContainerState::Exited { message, .. } = &mut web.state {
        *message = "ä".repeat(5000).into();
    }
    case.observed.containers.retain(|c| &*c.name != "web");
    case.observed.containers.push(web);
    let status = case.status();
    let state = container(&status, "web").state.clone().unwrap();
    let message = state.terminated.unwrap().message.unwrap();
    assert_eq!(message.len(), 12 * 1024 / 4);
}

#[test]
fn a_container_that_does_not_run_shows_the_resources_of_its_spec() {
    let shown = |state: ContainerState, waits: bool| {
        let own = CpuMemory { cpu_request: Some(100), ..CpuMemory::default() };
        let made_with = Some(ContainerAmounts { own, ..ContainerAmounts::default() }.into());
        let mut case = Case::of(up());
        case.observed.containers.retain(|c| &*c.name != "web");
        let web = ObservedContainer { made_with, ..instance("web", 0, state) };
        case.observed.containers.push(web);
        let spec = case.pod.spec.as_mut().unwrap();
        spec.containers[0].resources =
            serde_json::from_value(json!({"requests": {"cpu": "200m"}})).unwrap();
        let message = "no room".to_owned();
        case.resize_wait = waits.then_some(ResizeWait { reason: "Deferred", message });
        let web = to_json(container(&case.status(), "web"));
        let cpu = |list: &Value| list["cpu"].as_str().unwrap().to_owned();
        [cpu(&web["resources"]["requests"]), cpu(&web["allocatedResources"])]
    };
    for (state, waits, expected) in [
        (running(), false, ["100m", "200m"]),
        (running(), true, ["100m", "100m"]),
        (exited(0), false, ["200m", "200m"]),
        (ContainerState::Created, false, ["200m", "200m"]),
        (exited(0), true, ["100m", "100m"]),
    ] {
        assert_eq!(shown(state.clone(), waits), expected, "{state:?} {waits}");
    }
}

/// A running pod whose container `web` was made when the pod requested 500m cpu of its own, and
/// whose spec has `resources` now.
fn with_own_resources(resources: &Value) -> Case {
    let own = CpuMemory { memory_request: Some(64 << 20), ..CpuMemory::default() };
    let pod = CpuMemory { cpu_request: Some(500), ..CpuMemory::default() };
    let made_with = Some(ContainerAmounts { own, pod }.into());
    let web = ObservedContainer { made_with, ..instance("web", 0, running()) };
    let spec = json!({"spec": {
        "resources": resources,
        "overhead": {"memory": "16Mi"},
        "containers": [
            {"name": "web", "resources": {"requests": {"memory": "64Mi"}}},
            {"name": "api", "resources": {"limits": {"memory": "1Gi"}, "requests": {"a.b/c": "1"}}},
        ],
    }});
    Case { pod: serde_json::from_value(spec).unwrap(), ..Case::of(observed(vec![web])) }
}

#[test]
fn resources_of_a_pod_are_those_that_it_was_given() {
    let shown = |case: &Case| {
        let status = to_json(case.status());
        (status["allocatedResources"].clone(), status["resources"].clone())
    };
    let allocated = |cpu: &str| json!({"cpu": cpu, "memory": "80Mi", "a.b/c": "1"});
    let given = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "80Mi"}});
    let settled = with_own_resources(&json!({"requests": {"cpu": "500m"}}));
    assert_eq!(shown(&settled), (allocated("500m"), given("500m")));
    let mut resized = with_own_resources(&json!({"requests": {"cpu": "2"}}));
    assert_eq!(shown(&resized), (allocated("2"), given("500m")), "a resize is under way");
    let message = "no room".to_owned();
    resized.resize_wait = Some(ResizeWait { reason: "Deferred", message });
    assert_eq!(shown(&resized), (allocated("500m"), given("500m")), "it waits");
    resized.resize_wait = None;
    resized.observed.containers[0].state = exited(0);
    assert_eq!(shown(&resized), (allocated("2"), given("2")), "nothing runs");
}

#[test]
fn limits_of_a_pod_are_those_in_force() {
    let mut case = with_own_resources(&json!({
        "requests": {"cpu": "500m"}, "limits": {"hugepages-2Mi": "4Mi"},
    }));
    let limits = |case: &Case| to_json(case.status())["resources"]["limits"].clone();
    let pages = json!({"hugepages-2Mi": "4Mi"});
    assert_eq!(limits(&case), pages, "one container has no memory limit");
    case.pod.spec.as_mut().unwrap().containers.remove(0);
    assert_eq!(limits(&case), json!({"hugepages-2Mi": "4Mi", "memory": "1040Mi"}));
}

#[test]
fn only_a_pod_with_resources_of_its_own_shows_them() {
    for none in [json!(null), json!({}), json!({"requests": {}, "limits": {}})] {
        let status = with_own_resources(&none).status();
        assert_eq!((status.allocated_resources, status.resources), (None, None), "{none}");
    }
}

#[test]
fn if_possible_is_shown_as_what_the_runtime_can_do() {
    let shown = |mode: &str, supported| {
        let mut case = Case::of(up());
        let mount = k8s::VolumeMount {
            name: "data".to_owned(),
            mount_path: "/ro".to_owned(),
            read_only: Some(true),
            recursive_read_only: Some(mode.to_owned()),
            ..Default::default()
        };
        let spec = case.pod.spec.as_mut().unwrap();
        let web = spec.containers.iter_mut().find(|c| c.name == "web").unwrap();
        web.volume_mounts = Some(vec![mount]);
        case.recursive_read_only = supported;
        let status = case.status();
        let mounts = container(&status, "web").volume_mounts.as_ref().unwrap();
        mounts[0].recursive_read_only.clone().unwrap()
    };
    assert_eq!(shown("IfPossible", true), "Enabled");
    assert_eq!(shown("IfPossible", false), "Disabled");
    assert_eq!(shown("Enabled", true), "Enabled");
    assert_eq!(shown("Disabled", true), "Disabled");
}

/// The pod with two ephemeral containers, `z-debug` before `debug`.
fn debugged() -> k8s::Pod {
    let mut pod = pod();
    pod.spec.as_mut().unwrap().ephemeral_containers =
        serde_json::from_value(json!([{"name": "z-debug"}, {"name": "debug"}])).unwrap();
    pod
}

#[test]
fn ephemeral_containers_have_statuses_of_their_own() {
    let mut observed = up();
    observed.containers.push(instance("debug", 0, running()));
    let case = Case { pod: debugged(), ..Case::of(observed) }.waiting("z-debug", "ErrImagePull");
    let status = to_json(case.status());
    let debug = json!({
        "name": "debug", "image": "docker.io/library/debug:1",
        "imageID": "docker.io/library/debug@sha256:0", "containerID": "containerd://debug-0",
        "ready": false, "restartCount": 0,
        "state": {"running": {"startedAt": "2026-11-20T09:59:00Z"}},
    });
    let waiting = json!({
        "name": "z-debug", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull", "message": "m"}},
    });
    assert_eq!(status["ephemeralContainerStatuses"], json!([debug, waiting]));
    assert_eq!(status["containerStatuses"].as_array().unwrap().len(), 2);
}

#[test]
fn ephemeral_containers_change_nothing_else_in_the_status() {
    for state in [running(), exited(1), ContainerState::Created, ContainerState::Unknown] {
        let mut observed = up();
        observed.containers.push(instance("debug", 0, state));
        let case = Case { pod: debugged(), ..Case::of(observed) };
        let plain = Case::of(up());
        assert_eq!(case.line(), plain.line());
        assert_eq!(conditions(&case.status()), conditions(&plain.status()));
    }
}

#[test]
fn an_ephemeral_container_that_never_ran_is_not_missing_at_the_end() {
    let case = Case { pod: debugged(), ..Case::of(up()) }.ended(TerminalPhase::Succeeded);
    let status = case.status();
    let state = status.ephemeral_container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap();
    assert_eq!(state.waiting.as_ref().unwrap().reason.as_deref(), Some("PodInitializing"));
}

#[test]
fn instances_of_ephemeral_containers_are_listed_last() {
    let mut observed = up();
    observed.containers.insert(0, instance("debug", 0, running()));
    let instances = container_instances(&debugged(), &UID.into(), &observed, &PodMemory::default());
    let names: Vec<&str> = instances.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["setup", "proxy", "web", "api", "debug"]);
}

/// The same pod from an API server.
fn from_api(mut case: Case) -> Case {
    let source = ("kubernetes.io/config.source".to_owned(), "api".to_owned());
    case.pod.metadata.annotations = Some([source].into());
    case
}

fn refusal() -> Terminal {
    Terminal {
        phase: TerminalPhase::Failed,
        reason: Some("OutOfcpu".to_owned()),
        message: Some("Pod was rejected: no room".to_owned()),
        disruption: None,
    }
}

#[test]
fn a_refused_pod_of_the_api_server_has_no_containers_in_its_status() {
    let mut case = from_api(Case::of(ObservedPod::default()));
    case.pod.metadata.generation = Some(4);
    case.terminal = Some(refusal());
    let status = serde_json::to_value(case.status()).unwrap();
    let expected = json!({
        "phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: no room",
        "qosClass": "BestEffort", "startTime": "2026-11-20T10:00:00Z", "observedGeneration": 4,
    });
    assert_eq!(status, expected);
    case.previous = Some(case.status());
    let later = Now { wall: now().wall + Duration::from_secs(60), ..now() };
    assert_eq!(case.status_at(later), case.status(), "it does not change by itself");
}

#[test]
fn an_evicted_pod_that_has_run_has_the_ends_of_its_containers() {
    let evicted = Terminal {
        reason: Some("Evicted".to_owned()),
        disruption: Some(("TerminationByKubelet".to_owned(), "no room".to_owned())),
        ..refusal()
    };
    let mut case = from_api(Case::of(observed(vec![instance("web", 0, exited(137))])));
    case.terminal = Some(evicted);
    let with_containers = case.status();
    let ends = |status: &k8s::PodStatus| {
        let all = status.container_statuses.iter().flatten();
        let of_web = all.filter(|status| status.name == "web");
        let end =
            of_web.filter_map(|status| Some(status.state.as_ref()?.terminated.as_ref()?.exit_code));
        end.collect::<Vec<_>>()
    };
    assert_eq!(ends(&with_containers), [137]);
    let disrupted = conditions(&with_containers);
    let disrupted = disrupted.iter().find(|text| text.starts_with("DisruptionTarget"));
    assert_eq!(disrupted.unwrap(), "DisruptionTarget=True TerminationByKubelet: no room");
    // Its dead containers are removed.
    case.previous = Some(with_containers);
    case.observed = ObservedPod::default();
    assert_eq!(ends(&case.status()), [137]);
}

#[test]
fn only_a_refusal_leaves_containers_and_conditions_out() {
    let ended = |reason: &str, message: &str| Terminal {
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..refusal()
    };
    let saved = json!({"phase": "Failed", "reason": "Evicted", "message":
        "Pod was rejected: The node had condition: [MemoryPressure]. "});
    for (terminal, is_bare) in [
        (ended("DeadlineExceeded", "Pod was active on the node longer than the deadline"), false),
        (ended("Evicted", "The node was low on resource: memory."), false),
        (ended("Preempting", "Preempted in order to admit critical pod"), false),
        (Terminal::by_shutdown(), false),
        (Terminal::refused_by_shutdown(), true),
        (serde_json::from_value(saved).unwrap(), true),
        (refusal(), true),
    ] {
        let mut case = from_api(Case::of(observed(vec![])));
        case.terminal = Some(terminal.clone());
        let status = case.status();
        let shown = [
            status.container_statuses.is_some(),
            status.init_container_statuses.is_some(),
            conditions(&status).iter().any(|text| text == "Ready=False PodFailed"),
            status.pod_ip.is_some(),
        ];
        assert_eq!(shown, [!is_bare; 4], "{terminal:?}");
        assert_eq!((status.reason, status.message), (terminal.reason, terminal.message));
    }
}

#[test]
fn a_pod_that_ended_by_its_containers_is_no_refusal() {
    let case = from_api(Case::of(ObservedPod::default())).ended(TerminalPhase::Failed);
    assert!(case.status().container_statuses.is_some());
}

#[test]
fn the_observed_generation_is_that_of_the_pod() {
    let generations = |case: &Case| {
        let status = case.status();
        let of_conditions = status.conditions.iter().flatten();
        let mut all: Vec<_> = of_conditions.map(|one| one.observed_generation).collect();
        all.push(status.observed_generation);
        all.dedup();
        all
    };
    let mut case = from_api(Case::of(up()));
    assert_eq!(generations(&case), [None]);
    case.pod.metadata.generation = Some(3);
    assert_eq!(generations(&case), [Some(3)]);
    case = case.ended(TerminalPhase::Succeeded);
    assert_eq!(generations(&case), [Some(3)]);
    case.terminal = Some(Terminal::by_shutdown());
    assert_eq!(generations(&case), [Some(3)]);
    // A refusal has no other condition than `DisruptionTarget`.
    let disruption = Some(("TerminationByKubelet".to_owned(), "no room".to_owned()));
    case.terminal = Some(Terminal { disruption, ..refusal() });
    case.observed = ObservedPod::default();
    assert_eq!(case.status().conditions.unwrap().len(), 1);
    assert_eq!(generations(&case), [Some(3)]);
    // A condition of somebody else keeps its own.
    let mut status = Case { terminal: None, ..from_api(Case::of(up())) }.status();
    status.conditions.get_or_insert_default().push(k8s::PodCondition {
        type_: "example.org/gate".to_owned(),
        observed_generation: Some(1),
        ..Default::default()
    });
    let mut case = from_api(Case::of(up()));
    case.pod.metadata.generation = Some(3);
    case.previous = Some(status);
    assert_eq!(generations(&case), [Some(3), Some(1), Some(3)]);
}

#[test]
fn the_first_status_keeps_the_time_of_the_schedule() {
    let mut case = from_api(Case::of(up()));
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastTransitionTime": "2025-12-31T00:00:00Z"
    });
    case.pod.status = serde_json::from_value(json!({"conditions": [scheduled]})).unwrap();
    let since = |status: &k8s::PodStatus| {
        let conditions = to_json(status)["conditions"].take();
        conditions.as_array().unwrap()[4]["lastTransitionTime"].clone()
    };
    let first = case.status();
    assert_eq!(since(&first), "2025-12-31T00:00:00Z");
    case.pod.status = None;
    assert_ne!(since(&case.status()), "2025-12-31T00:00:00Z");
    case.previous = Some(first);
    assert_eq!(since(&case.status()), "2025-12-31T00:00:00Z");
}

#[test]
fn readiness_gates_read_the_conditions_of_the_object() {
    let ready = |gate: Option<&str>| {
        let mut case = from_api(Case::of(up()));
        let spec = case.pod.spec.as_mut().unwrap();
        spec.readiness_gates = serde_json::from_value(json!([{"conditionType": "x/y"}])).unwrap();
        let written: Vec<Value> =
            gate.into_iter().map(|status| json!({"type": "x/y", "status": status})).collect();
        case.pod.status = serde_json::from_value(json!({"conditions": written})).unwrap();
        let status = case.status();
        let types = status.conditions.iter().flatten().map(|one| one.type_.as_str());
        assert!(!types.clone().any(|one| one == "x/y"), "others write it");
        conditions(&status).swap_remove(2)
    };
    assert_eq!(ready(Some("True")), "Ready=True");
    let closed = "Ready=False ReadinessGatesNotReady: the status of pod readiness gate \"x/y\" is not \"True\", but False";
    assert_eq!(ready(Some("False")), closed);
    let missing = "Ready=False ReadinessGatesNotReady: corresponding condition of pod readiness gate \"x/y\" does not exist.";
    assert_eq!(ready(None), missing);
}
