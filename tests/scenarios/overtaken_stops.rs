//! A pod that is to end while containers of it are being stopped for another reason.

use super::shutdown::{Logind, held_up, held_up_with};
use crate::support::{
    manifest::{FOREVER, Pod, STUBBORN},
    proxy::Call,
    status::Status,
    stays,
    world::{Kind, World},
};
use nodelet::cri::v1;
use serde_json::json;
use std::{fs, time::Duration};
use tempfile::TempDir;

/// The grace period of the liveness probe, in seconds: no test waits that long.
const LONG: i64 = 600;

fn calls_for(world: &World, method: &str, container: &str) -> Vec<Call> {
    let mut calls = world.proxy.calls();
    calls.retain(|call| {
        call.method == method && call.pod.as_ref().is_some_and(|pod| pod.container == container)
    });
    calls
}

/// A pod in whose container `main` the liveness probe fails when the test wants it. `main` takes no
/// notice of SIGTERM, and `other` ends at once.
struct Unhealthy {
    world: World,
    dir: TempDir,
}

impl Unhealthy {
    /// The pod runs. `hook` is the command of the preStop hook of `main`.
    fn start(kind: Kind, grace_seconds: u32, hook: Option<&str>) -> Self {
        Self::start_in(World::start(kind), grace_seconds, hook)
    }

    fn start_in(world: World, grace_seconds: u32, hook: Option<&str>) -> Self {
        Self::start_with(world, (grace_seconds, LONG), hook)
    }

    /// `periods` are the grace periods of the pod and of the probe, in seconds.
    fn start_with(world: World, periods: (u32, i64), hook: Option<&str>) -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("alive"), "yes\n").unwrap();
        let probe = json!({
            "exec": { "command": ["cat", "/host/alive"] },
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": 1,
            "terminationGracePeriodSeconds": periods.1,
        });
        let mut pod = Pod::with_main("web", STUBBORN)
            .container("other", FOREVER)
            .set("terminationGracePeriodSeconds", periods.0)
            .set("containers/0/livenessProbe", probe);
        if let Some(hook) = hook {
            let command = ["sh", "-c", hook];
            let hook = json!({ "preStop": { "exec": { "command": command } } });
            pod = pod.set("containers/0/lifecycle", hook);
        }
        world.drop_pod(&pod.host_dir(dir.path()));
        world.wait_running("web");
        Self { world, dir }
    }

    fn fail_probe(&self) {
        fs::remove_file(self.dir.path().join("alive")).unwrap();
    }

    /// Calls of this method for a container.
    fn calls(&self, method: &str, container: &str) -> Vec<Call> {
        calls_for(&self.world, method, container)
    }

    /// The calls of the hook.
    fn hooks(&self) -> Vec<Call> {
        let mut calls = self.calls("ExecSync", "main");
        calls.retain(|call| call.request::<v1::ExecSyncRequest>().cmd[0] == "sh");
        calls
    }

    /// The timeouts with which a container was stopped, in seconds.
    fn stops(&self, container: &str) -> Vec<i64> {
        let calls = self.calls("StopContainer", container);
        calls.iter().map(|call| call.request::<v1::StopContainerRequest>().timeout).collect()
    }

    #[track_caller]
    fn wait_until_main_is_stopped(&self) {
        self.world.wait_until("main is stopped", || self.stops("main"), |stops| !stops.is_empty());
    }
}

pub fn a_removed_pod_does_not_wait_for_the_stop_of_a_container(kind: Kind) {
    let pod = Unhealthy::start(kind, 3, None);
    pod.fail_probe();
    pod.wait_until_main_is_stopped();
    assert!(pod.stops("other").is_empty());
    pod.world.remove("web.yaml");
    pod.world.wait_gone("web");
    assert_eq!((pod.stops("main"), pod.stops("other")), (vec![LONG, 3], vec![3]));
    let [first, second] = &pod.calls("StopContainer", "main")[..] else { unreachable!() };
    let other = &pod.calls("StopContainer", "other")[0];
    assert!(other.at < second.answered.unwrap().1, "they are stopped at the same time");
    let removed = pod.calls("RemoveContainer", "main")[0].at;
    assert!(first.answered.unwrap().1 <= removed, "the first call has an answer");
    assert!(!pod.world.proxy.has_cut_short());
    pod.world.finish();
}

pub fn nothing_is_removed_while_an_earlier_stop_is_under_way(kind: Kind) {
    let pod = Unhealthy::start(kind, 2, None);
    let world = &pod.world;
    let held = world.proxy.on("StopContainer").pod("web").times(1).hang_answer();
    pod.fail_probe();
    pod.wait_until_main_is_stopped();
    world.remove("web.yaml");
    let ended = || pod.calls("StopContainer", "main").get(1).is_some_and(|c| c.answered.is_some());
    world.wait_until("the second call has an answer", ended, |ended| *ended);
    let calls = || {
        let methods = ["RemoveContainer", "RemovePodSandbox"];
        methods.map(|method| world.proxy.count(method, "web"))
    };
    stays("nothing is removed", Duration::from_secs(2), calls, |calls| *calls == [0, 0]);
    world.proxy.lift(held);
    world.wait_gone("web");
    pod.world.finish();
}

pub fn a_pre_stop_hook_that_has_ended_is_not_called_again(kind: Kind) {
    let pod = Unhealthy::start(kind, 3, Some("true"));
    pod.fail_probe();
    pod.wait_until_main_is_stopped();
    pod.world.remove("web.yaml");
    pod.world.wait_gone("web");
    assert_eq!(pod.hooks().len(), 1);
    pod.world.finish();
}

pub fn a_pre_stop_hook_that_runs_may_end_within_the_new_grace_period(kind: Kind) {
    let pod = Unhealthy::start(kind, 60, Some("sleep 10"));
    pod.fail_probe();
    pod.world.wait_until("the hook is called", || pod.hooks().len(), |hooks| *hooks == 1);
    pod.world.remove("web.yaml");
    pod.world.wait_until("other is stopped", || pod.stops("other").len(), |stops| *stops == 1);
    assert!(pod.stops("main").is_empty(), "its hook runs");
    pod.wait_until_main_is_stopped();
    let hook = &pod.hooks()[0];
    let ended = hook.answered.unwrap().1;
    assert!(ended - hook.at >= Duration::from_secs(10), "{hook:?}");
    assert!(pod.calls("StopContainer", "main")[0].at >= ended);
    pod.world.kill_container_if_there(&pod.world.running_id("web", "main"));
    pod.world.wait_gone("web");
    assert_eq!(pod.hooks().len(), 1);
    let status = pod.world.agent.status().unwrap();
    assert!(!status.has_event("FailedPreStopHook", "web"), "{status:?}");
    pod.world.finish();
}

pub fn a_pre_stop_hook_ends_with_the_new_grace_period(kind: Kind) {
    let pod = Unhealthy::start(kind, 3, Some("sleep 100000"));
    pod.fail_probe();
    pod.world.wait_until("the hook is called", || pod.hooks().len(), |hooks| *hooks == 1);
    pod.world.remove("web.yaml");
    pod.world.wait_gone("web");
    assert_eq!(pod.hooks().len(), 1);
    let status = pod.world.agent.status().unwrap();
    assert!(status.has_event("FailedPreStopHook", "web"), "{status:?}");
    pod.world.finish();
}

pub fn a_shutdown_does_not_wait_for_the_stop_of_a_container(kind: Kind) {
    let (world, logind) = held_up(kind);
    let pod = Unhealthy::start_in(world, 5, None);
    pod.fail_probe();
    pod.wait_until_main_is_stopped();
    logind.prepare_for_shutdown(true);
    let locks = || logind.fake().locks();
    pod.world.wait_until("the machine may go down", locks, |locks| *locks == (1, 0));
    // The shutdown grants less than the pod has.
    assert_eq!((pod.stops("main"), pod.stops("other")), (vec![LONG, 4], vec![4]));
    logind.prepare_for_shutdown(false);
    fs::write(pod.dir.path().join("alive"), "yes\n").unwrap();
    pod.world.wait_running("web");
    pod.world.finish();
}

/// A pod that a shutdown ends while its container `main`, which takes no notice of SIGTERM, is being
/// stopped with a grace period that no test waits for.
struct ShutDown {
    world: World,
    logind: Logind,
    dir: TempDir,
}

impl ShutDown {
    /// `pod` begins. Its containers find the file `/host/alive`, if it is to be there at once.
    fn start(kind: Kind, pod: Pod, alive: bool) -> Self {
        let (world, logind) = held_up(kind);
        let this = Self { world, logind, dir: TempDir::new().unwrap() };
        if alive {
            this.revive();
        }
        let pod = pod.set("terminationGracePeriodSeconds", LONG);
        this.world.drop_pod(&pod.host_dir(this.dir.path()));
        this
    }

    fn revive(&self) {
        fs::write(self.dir.path().join("alive"), "yes\n").unwrap();
    }

    /// The timeouts with which a container was stopped, in seconds.
    fn stops(&self, container: &str) -> Vec<i64> {
        let calls = calls_for(&self.world, "StopContainer", container);
        calls.iter().map(|call| call.request::<v1::StopContainerRequest>().timeout).collect()
    }

    #[track_caller]
    fn wait_stops(&self, container: &str, expected: &[i64]) {
        let what = format!("{container} is stopped with {expected:?}");
        self.world.wait_until(&what, || self.stops(container), |stops| stops == expected);
    }

    #[track_caller]
    fn restart(&self) {
        let asked = self.world.agent.cli(&["restart", "web"]);
        assert!(asked.status.success(), "{asked:?}");
    }

    /// The shutdown grants 4 s.
    #[track_caller]
    fn end_pods(&self) {
        self.logind.prepare_for_shutdown(true);
        let locks = || self.logind.fake().locks();
        self.world.wait_until("the machine may go down", locks, |locks| *locks == (1, 0));
    }

    #[track_caller]
    fn shut_down(&self) {
        self.end_pods();
        let calls = || calls_for(&self.world, "StopContainer", "main");
        let answered = |calls: &Vec<Call>| calls.iter().all(|call| call.answered.is_some());
        self.world.wait_until("both calls have an answer", calls, answered);
        let sandboxes = self.world.proxy.count("StopPodSandbox", "web");
        assert!(sandboxes <= 1, "the sandbox was stopped {sandboxes} times");
        assert!(!self.world.proxy.has_cut_short());
    }

    /// The machine stays up, and the pod runs again. Its end is cut short.
    #[track_caller]
    fn finish(self) {
        self.revive();
        self.logind.prepare_for_shutdown(false);
        self.world.wait_running("web");
        self.world.remove("web.yaml");
        self.world.wait("it ends", |status| status.pod("web").is_some_and(|pod| pod.terminating));
        self.world.kill_container(&self.world.running_id("web", "main"));
        self.world.wait_gone("web");
        self.world.finish();
    }
}

pub fn a_shutdown_does_not_wait_for_a_restart_that_was_asked_for(kind: Kind) {
    let pod = Pod::with_main("web", STUBBORN).container("other", FOREVER).sidecar("side", FOREVER);
    let pod = ShutDown::start(kind, pod, true);
    pod.world.wait_running("web");
    pod.restart();
    pod.wait_stops("main", &[LONG]);
    pod.wait_stops("other", &[LONG]);
    pod.shut_down();
    assert_eq!(pod.stops("main"), [LONG, 4]);
    // Whichever answer comes first tells that main has ended.
    let main = calls_for(&pod.world, "StopContainer", "main");
    let ended = main.iter().map(|call| call.answered.unwrap().1).min().unwrap();
    let side = calls_for(&pod.world, "StopContainer", "side");
    assert!(side.iter().all(|call| call.at >= ended), "it has its turn after main: {side:?}");
    pod.finish();
}

pub fn the_hook_of_an_asked_restart_ends_with_the_shutdown(kind: Kind) {
    let hook = json!({ "exec": { "command": ["sh", "-c", "sleep 16"] } });
    let pod = Pod::with_main("web", STUBBORN)
        .set("containers/0/lifecycle", json!({ "preStop": hook }))
        .sidecar("side", FOREVER);
    let pod = ShutDown::start(kind, pod, true);
    pod.world.wait_running("web");
    pod.restart();
    let hooks = || calls_for(&pod.world, "ExecSync", "main");
    pod.world.wait_until("the hook is called", || hooks().len(), |hooks| *hooks == 1);
    pod.shut_down();
    let stops = pod.stops("main");
    assert!(stops.len() == 2 && stops.contains(&2), "its hook has taken the time: {stops:?}");
    assert_eq!(hooks().len(), 1);
    let status = pod.world.agent.status().unwrap();
    assert!(status.has_event("FailedPreStopHook", "web"), "{status:?}");
    pod.finish();
}

pub fn a_shutdown_does_not_wait_for_the_replacement_of_a_sandbox(kind: Kind) {
    let pod = Pod::with_main("web", STUBBORN).container("other", FOREVER);
    let pod = ShutDown::start(kind, pod, true);
    pod.world.wait_running("web");
    pod.world.kill_sandbox(&pod.world.sandboxes("web")[0].id);
    pod.wait_stops("main", &[LONG]);
    pod.shut_down();
    assert_eq!(pod.stops("main"), [LONG, 4]);
    pod.finish();
}

pub fn a_shutdown_does_not_wait_for_a_failed_post_start_hook(kind: Kind) {
    let hook = json!({ "exec": { "command": ["cat", "/host/alive"] } });
    let pod =
        Pod::with_main("web", STUBBORN).set("containers/0/lifecycle", json!({ "postStart": hook }));
    let pod = ShutDown::start(kind, pod, false);
    pod.wait_stops("main", &[LONG]);
    pod.shut_down();
    assert_eq!(pod.stops("main"), [LONG, 4]);
    pod.finish();
}

/// A job that has ended by itself, and a pod whose manifest is gone, are given less time by a later
/// shutdown.
pub fn a_shutdown_shortens_the_stops_of_pods_that_end_anyway(kind: Kind) {
    let job = Pod::with_main("web", FOREVER).sidecar("side", STUBBORN);
    let pod = ShutDown::start(kind, job.set("restartPolicy", "Never"), true);
    let removed = Pod::with_main("removed", STUBBORN).set("terminationGracePeriodSeconds", LONG);
    pod.world.drop_pod(&removed);
    pod.world.wait("both run", |status| status.runs("web") && status.runs("removed"));
    pod.world.kill_container(&pod.world.running_id("web", "main"));
    pod.world.remove("removed.yaml");
    pod.wait_stops("side", &[LONG]);
    pod.wait_stops("main", &[LONG]);
    pod.end_pods();
    for container in ["side", "main"] {
        let calls = calls_for(&pod.world, "StopContainer", container);
        assert!(calls.iter().all(|call| call.answered.is_some()), "{calls:?}");
        assert_eq!(pod.stops(container), [LONG], "{container} is stopped once");
    }
    pod.logind.prepare_for_shutdown(false);
    pod.world.wait_gone("removed");
    assert_eq!(pod.world.agent.status().unwrap().phase("web"), "Failed");
    pod.world.remove("web.yaml");
    pod.world.wait_gone("web");
    pod.world.finish();
}

/// The end of the pod can't begin: the runtime does not tell the state of a container.
pub fn an_earlier_stop_that_hangs_alone_is_named(kind: Kind) {
    let (world, logind) = held_up_with(kind, "runtimeRequestTimeout: 2s\n");
    let pod = Unhealthy::start_with(world, (5, 10), None);
    let world = &pod.world;
    world.proxy.on("StopContainer").pod("web").times(1).hang();
    pod.fail_probe();
    pod.wait_until_main_is_stopped();
    world.proxy.on("ContainerStatus").pod("web").hang();
    world.kill_container(&world.running_id("web", "other"));
    let hung = |status: &Status| status.pod("web").and_then(|pod| pod.hung.clone());
    world.wait("an inspection hangs", |status| {
        hung(status).is_some_and(|hung| hung.contains("ContainerStatus"))
    });
    logind.prepare_for_shutdown(true);
    // This is the plan after the stop, which is made only when the stop goes on alone.
    let end_waits = |status: &Status| {
        let waiting = status.pod("web").and_then(|pod| pod.waiting.as_deref());
        waiting.is_some_and(|waiting| waiting.contains("the runtime does not tell its state"))
    };
    world.wait("the end of the pod can't begin, and the stop is named", |status| {
        let named = |hung: String| hung.contains("StopContainer main: no answer for 12s");
        end_waits(status) && hung(status).is_some_and(named)
    });
    let [stop] = &pod.calls("StopContainer", "main")[..] else { panic!("{:?}", pod.stops("main")) };
    assert!(stop.answered.is_none(), "{stop:?}");
    assert_eq!(pod.stops("main"), [10], "the end of the pod has not begun");
    world.proxy.lift_all();
    world.wait("the stop has ended", |status| hung(status).is_none());
    logind.prepare_for_shutdown(false);
    fs::write(pod.dir.path().join("alive"), "yes\n").unwrap();
    world.wait_running("web");
    pod.world.finish();
}
