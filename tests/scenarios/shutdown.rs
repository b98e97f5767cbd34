//! The machine goes down: pods end before it does, and it waits for them.

use super::stats::counted;
use crate::support::{
    agent::Settings,
    logind::FakeLogind,
    manifest::{FOREVER, Pod, STUBBORN},
    stays,
    world::{Kind, World},
};
use nodelet::cri::v1;
use std::{path::Path, thread::JoinHandle, time::Duration};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

const PERIODS: &str = "shutdownGracePeriodByPodPriority:\n\
    - { priority: 1000, shutdownGracePeriodSeconds: 20 }\n\
    - { priority: 2000000000, shutdownGracePeriodSeconds: 20 }\n\
    - { priority: 0, shutdownGracePeriodSeconds: 4 }\n";

/// A logind on a thread of its own.
pub struct Logind {
    fake: Option<FakeLogind>,
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Logind {
    /// One that delays a shutdown for long enough.
    pub fn start(bus: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            // Dropped or sent: it is over.
            let _over = runtime.block_on(ended);
        });
        let fake = handle.block_on(async { FakeLogind::start(bus, Path::new("/nonexistent")) });
        // So that no drop-in is written.
        fake.set(|state| state.delay = Duration::from_secs(600));
        Self { fake: Some(fake), runtime: handle, end: Some(end), thread: Some(thread) }
    }

    /// The fake itself.
    pub fn fake(&self) -> &FakeLogind {
        self.fake.as_ref().unwrap()
    }

    /// Signals that the machine goes down, or that it stays up after all.
    pub fn prepare_for_shutdown(&self, down: bool) {
        self.runtime.block_on(self.fake().prepare_for_shutdown(down));
    }
}

impl Drop for Logind {
    fn drop(&mut self) {
        self.fake = None;
        self.end = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// A world with a logind that holds the machine up.
pub fn held_up(kind: Kind) -> (World, Logind) {
    held_up_with(kind, "")
}

/// As [`held_up`], with more lines for the agent's configuration.
pub fn held_up_with(kind: Kind, lines: &str) -> (World, Logind) {
    let lines = format!("{PERIODS}{lines}");
    let world = World::prepare(kind, &Settings::for_kind(kind).kubelet(&lines));
    let logind = Logind::start(&world.agent.system_bus());
    world.agent.start();
    world.wait_until("it holds the machine up", || logind.fake().locks(), |locks| *locks == (1, 1));
    (world, logind)
}

/// When the only container of a pod was told to stop, and how many seconds it was given.
fn told_to_stop(world: &World, pod: &str) -> (Instant, i64) {
    let calls = world.proxy.calls();
    let stops: Vec<_> = calls
        .iter()
        .filter(|call| call.method == "StopContainer" && call.is_for(pod))
        .map(|call| (call.at, call.request::<v1::StopContainerRequest>().timeout))
        .collect();
    assert_eq!(stops.len(), 1, "{pod} is stopped once");
    stops[0]
}

/// How long it took to stop the only container of a pod.
fn stop_took(world: &World, pod: &str) -> Duration {
    let calls = world.proxy.calls();
    let stop =
        calls.iter().find(|call| call.method == "StopContainer" && call.is_for(pod)).unwrap();
    let (_, answered) = stop.answered.unwrap();
    answered - stop.at
}

pub fn pods_end_by_priority_and_come_back_when_the_machine_stays_up(kind: Kind) {
    let (world, logind) = held_up(kind);
    let long = |pod: Pod| pod.set("terminationGracePeriodSeconds", 15);
    world.drop_pod(&long(Pod::with_main("stubborn", STUBBORN)));
    world.drop_pod(&long(Pod::running("job")).set("restartPolicy", "Never"));
    world.drop_pod(&long(Pod::running("middle")).set("priority", 1500));
    world.drop_pod(&long(Pod::running("critical")).set("priority", 2_000_000_001));
    let pods = ["stubborn", "job", "middle", "critical"];
    world.wait("all run", |status| pods.iter().all(|pod| status.runs(pod)));
    world.proxy.forget_calls();

    // So that there is time to look.
    let hang = world.proxy.on("StopContainer").pod("middle").hang();
    logind.prepare_for_shutdown(true);
    world.wait("it says so, and runs what has not its turn yet", |status| {
        status.node.shutdown.is_some() && status.phase("job") == "Failed" && status.runs("critical")
    });
    let shown = world.agent.cli(&["status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("Shutdown:       the machine is shutting down"), "{shown}");
    assert_eq!(logind.fake().locks(), (1, 1), "the machine waits");
    let began = counted(&world, "kubelet_graceful_shutdown_start_time_seconds", &[]);
    assert!(began > 1.7e9, "{began}");
    let ended = || counted(&world, "kubelet_graceful_shutdown_end_time_seconds", &[]);
    assert!(ended() == 0.0, "it goes on");
    world.proxy.lift(hang);
    let locks = || logind.fake().locks();
    world.wait_until("the machine may go down", locks, |locks| *locks == (1, 0));
    for pod in pods {
        assert_eq!(world.running_ids(pod), [""; 0], "{pod} had ended by then");
    }
    let status = world.wait("every status says why", |status| {
        pods.iter().all(|pod| status.phase(pod) == "Failed")
    });
    for pod in pods {
        let shown = &status.pod(pod).unwrap().status;
        assert_eq!(shown.reason.as_deref(), Some("Terminated"), "{pod}");
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(shown.message.as_deref(), Some(message), "{pod}");
    }
    assert!(status.has_event("Shutdown", "Shutdown manager detected shutdown event"));
    assert!(ended() > began);
    let stopped = pods.map(|pod| told_to_stop(&world, pod));
    assert_eq!(
        stopped.map(|(_, grace)| grace),
        [4, 4, 15, 15],
        "the shorter of the pod's and the group's"
    );
    let stopped = stopped.map(|(at, _)| at);
    let [stubborn, job, middle, critical] = stopped;
    let (first, after) = (stubborn.max(job), middle - stubborn);
    assert!(first < middle && middle < critical, "in the order of their priority: {stopped:?}");
    // It takes no notice of SIGTERM.
    let had = stop_took(&world, "stubborn");
    assert!(had >= Duration::from_millis(3_500), "it had its time: {had:?}");
    assert!(after < Duration::from_secs(20), "and no more: {after:?}");

    world.drop_pod(&Pod::running("late"));
    world.wait("a new pod is told off", |status| status.has_event("NodeShutdown", "late"));
    let refused = ["reason=\"NodeShutdown\""];
    assert!(counted(&world, "kubelet_admission_rejections_total", &refused) == 1.0);
    let starts = || pods.map(|pod| world.proxy.count("StartContainer", pod)).iter().sum::<usize>();
    stays("nothing is started", Duration::from_secs(1), starts, |count| *count == 0);

    logind.prepare_for_shutdown(false);
    let status = world.wait("all run again, and the new one", |status| {
        status.node.shutdown.is_none() && pods.iter().chain(&["late"]).all(|pod| status.runs(pod))
    });
    assert_eq!(status.restarts("job", "main"), 1, "it was interrupted, and had not failed");
    world.wait_until("the machine is held up again", locks, |locks| *locks == (2, 1));
    world.finish();
}

pub fn an_agent_that_is_stopped_during_a_shutdown_lets_pods_end(kind: Kind) {
    let (world, logind) = held_up(kind);
    // It ends by SIGKILL when its time is over.
    let slow = Pod::with_main("slow", STUBBORN).set("terminationGracePeriodSeconds", 3);
    world.drop_pod(&slow);
    world.drop_pod(&Pod::with_main("last", FOREVER).set("priority", 2_000_000_000));
    world.wait("both run", |status| status.runs("slow") && status.runs("last"));
    assert_eq!(world.agent.terminate(), Some(0));
    let running = || world.running_ids("slow").len() + world.running_ids("last").len();
    assert_eq!(running(), 2, "an agent that is stopped leaves pods alone");
    let locks = || logind.fake().locks();
    world.wait_until("and the machine", locks, |locks| *locks == (1, 0));
    world.agent.start();
    world.wait_until("until it comes again", locks, |locks| *locks == (2, 1));
    world.wait("it sees both", |status| status.runs("slow") && status.runs("last"));

    logind.prepare_for_shutdown(true);
    world.wait("a pod is told to end", |status| status.phase("slow") == "Failed");
    assert_eq!(world.agent.terminate(), Some(0));
    assert_eq!(running(), 0, "all had their time");
    assert_eq!(logind.fake().locks(), (2, 0));

    // Started again before the machine is down: nothing is begun.
    world.agent.start();
    world.wait("the new one knows", |status| status.node.shutdown.is_some());
    stays("nothing runs", Duration::from_secs(2), running, |count| *count == 0);
    logind.prepare_for_shutdown(false);
    world.wait("both run again", |status| status.runs("slow") && status.runs("last"));
    world.finish();
}

pub fn an_agent_restarted_during_a_shutdown_waits_for_logind(kind: Kind) {
    let (world, logind) = held_up(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    logind.prepare_for_shutdown(true);
    world.wait("it has ended", |status| status.phase("web") == "Failed");
    world.agent.kill();
    logind.fake().set(|state| state.answers_after = Duration::from_millis(500));
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("the new one knows", |status| status.node.shutdown.is_some());
    for method in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        assert_eq!(world.proxy.count(method, "web"), 0, "{method}");
    }
    logind.prepare_for_shutdown(false);
    world.wait_running("web");
    world.finish();
}

pub fn a_logind_that_does_not_answer_delays_pods_only_briefly(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind).kubelet(PERIODS));
    let logind = Logind::start(&world.agent.system_bus());
    logind.fake().set(|state| state.answers_after = Duration::from_secs(600));
    world.drop_pod(&Pod::running("web"));
    let begun = Instant::now();
    world.agent.start();
    world.wait_running("web");
    let told = "logind does not answer: pods start without knowing";
    assert!(world.agent.log().contains(told), "{}", world.agent.log_tail(20));
    let calls = world.proxy.calls();
    let first = calls.iter().find(|call| call.method == "RunPodSandbox").unwrap();
    let waited = first.at - begun;
    assert!(waited >= Duration::from_millis(1900), "{waited:?}");
    assert!(waited < Duration::from_secs(15), "logind hangs for 600 s: {waited:?}");
    world.finish();
}
