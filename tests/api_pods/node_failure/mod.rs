//! The classic experiments of node failure: an agent that is away, for shorter or longer than pods
//! tolerate it, or until its pods were deleted by force; a node that is cut off from the API server;
//! a container runtime that stops or hangs; a node that is drained. docs/node-failure.md has the
//! timelines, with real timings, of nodelet and the upstream kubelet, and one of many pods that come
//! and go (`rollout`).
//!
//! ```text
//!   place the workloads ─► begin the fault ─► wait until the control plane has done what the
//!   length says ─► end the fault ─► wait until all is well ─► check what Kubernetes promises
//! ```

mod bench;
mod rollout;
mod timeline;

use super::{
    support::{pause, say_loudly, skips::skip_without},
    upstream,
};
use bench::{Bench, Candidate, Direction, LATE, Originals, SCHEDULING, Timings, WORKLOADS};
use std::{fmt::Write as _, fs, path::Path, time::Duration};
use timeline::{Facts, Timeline, side_by_side};
use tokio::time::Instant;

/// What happens to `node2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Its agent is killed, and started again at the end.
    AgentStopped,
    /// Packets between it and the API server are lost.
    Cut(Direction),
    /// Its container runtime is killed, and started again at the end. Containers run on.
    RuntimeStopped,
    /// Its container runtime stands still.
    RuntimeHung,
    /// Its pods are evicted, as `kubectl drain` does. In the end it takes pods again.
    Drained,
}

/// What the control plane does before the fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// Nothing.
    Unnoticed,
    /// It marks the node and its pods as not ready.
    NotReady,
    /// It also deletes the pods, which tolerate it no longer, and replaces what can be replaced.
    Evicted,
    /// It marks the node and its pods, which a person then deletes by force.
    Forced,
    /// It replaces the pods, which the agent has stopped.
    Moved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Experiment {
    title: &'static str,
    fault: Fault,
    length: Length,
}

impl Experiment {
    const fn away(title: &'static str, length: Length) -> Self {
        Self { title, fault: Fault::AgentStopped, length }
    }

    const fn cut(title: &'static str, direction: Direction, length: Length) -> Self {
        Self { title, fault: Fault::Cut(direction), length }
    }
}

const AWAY_BRIEFLY: Experiment =
    Experiment::away("The agent is away for less than pods tolerate", Length::NotReady);
const AWAY_LONG: Experiment =
    Experiment::away("The agent is away for longer than pods tolerate", Length::Evicted);
const AWAY_FORCED: Experiment = Experiment::away("The pods are deleted by force", Length::Forced);
const CUT_UNNOTICED: Experiment =
    Experiment::cut("The network is cut briefly", Direction::Both, Length::Unnoticed);
const CUT_BOTH: Experiment = Experiment::cut(
    "The network is cut for longer than the grace period",
    Direction::Both,
    Length::NotReady,
);
const CUT_TO_NODE: Experiment = Experiment::cut(
    "Packets are lost in one direction: to the node",
    Direction::ToNode,
    Length::NotReady,
);
const CUT_FROM_NODE: Experiment = Experiment::cut(
    "Packets are lost in one direction: from the node",
    Direction::FromNode,
    Length::NotReady,
);
const CUT_LONG: Experiment = Experiment::cut(
    "The network is cut for longer than pods tolerate",
    Direction::Both,
    Length::Evicted,
);

const RUNTIME_UNNOTICED: Experiment = Experiment {
    title: "containerd is away briefly",
    fault: Fault::RuntimeStopped,
    length: Length::Unnoticed,
};
const RUNTIME_STOPPED: Experiment = Experiment {
    title: "containerd is away for longer",
    fault: Fault::RuntimeStopped,
    length: Length::NotReady,
};
const RUNTIME_HUNG: Experiment =
    Experiment { title: "containerd hangs", fault: Fault::RuntimeHung, length: Length::NotReady };
const DRAINED: Experiment =
    Experiment { title: "The node is drained", fault: Fault::Drained, length: Length::Moved };

impl Fault {
    fn begin(self, bench: &Bench, originals: &Originals) {
        match self {
            Self::AgentStopped => bench.kill_agent(),
            Self::Cut(direction) => bench.lose(direction, true),
            Self::RuntimeStopped => bench.kill_runtime(),
            Self::RuntimeHung => bench.freeze_runtime(),
            Self::Drained => bench.drain(&EVICTED.map(|app| &originals[app])),
        }
    }

    fn end(self, bench: &Bench) {
        match self {
            Self::AgentStopped => bench.start_agent(),
            Self::Cut(direction) => bench.lose(direction, false),
            Self::RuntimeStopped => bench.start_runtime(),
            Self::RuntimeHung => bench.thaw_runtime(),
            Self::Drained => bench.uncordon(),
        }
    }

    /// The marks of its beginning and its end.
    fn marks(self) -> [&'static str; 2] {
        match self {
            Self::AgentStopped => ["the agent is stopped", "the agent is started"],
            Self::Cut(_) => ["packets are lost", "packets arrive again"],
            Self::RuntimeStopped => ["containerd is stopped", "containerd is started"],
            Self::RuntimeHung => ["containerd hangs", "containerd goes on"],
            Self::Drained => ["the node is drained", "the node takes pods again"],
        }
    }

    /// Whether the agent runs and can't start a pod meanwhile.
    fn holds_up_pods(self) -> bool {
        match self {
            Self::AgentStopped | Self::Drained => false,
            Self::Cut(_) | Self::RuntimeStopped | Self::RuntimeHung => true,
        }
    }

    /// The state of the node while the fault lasts, and why it is tainted: it says so itself, or the
    /// controllers do not hear of it.
    fn marked(self) -> [&'static str; 2] {
        match self {
            Self::AgentStopped | Self::Cut(_) => ["Unknown", "unreachable"],
            Self::RuntimeStopped | Self::RuntimeHung => ["not Ready", "not-ready"],
            Self::Drained => ["Ready", "none"],
        }
    }

    /// Whether the node is marked, and the pods of a node that is not heard of.
    fn is_marked(self, timeline: &Timeline) -> bool {
        let [node, taint] = self.marked();
        let pods = node != "Unknown" || all(timeline, "pod", &WORKLOADS, "not Ready");
        timeline.state("node") == node
            && all(timeline, "taint", &["NoSchedule", "NoExecute"], taint)
            && pods
    }
}

/// An experiment under way.
struct Run<'a> {
    bench: &'a Bench,
    began: Instant,
    timeline: Timeline,
}

impl<'a> Run<'a> {
    fn begin(bench: &'a Bench, mark: &str, facts: Facts) -> Self {
        Self { bench, began: Instant::now(), timeline: Timeline::begin(mark, facts) }
    }

    fn mark(&mut self, mark: &str) {
        self.timeline.mark(mark, self.began.elapsed());
    }

    /// Looks, and notes what changes, until something is so.
    #[track_caller]
    fn watch(
        &mut self,
        what: &str,
        look: impl Fn() -> Facts,
        accept: impl Fn(&Timeline, Duration) -> bool,
    ) {
        let begun = Instant::now();
        let deadline = self.bench.timings().deadline();
        loop {
            self.timeline.note(look(), self.began.elapsed());
            if accept(&self.timeline, begun.elapsed()) {
                return;
            }
            if begun.elapsed() > deadline {
                let table = side_by_side(&[("here", &self.timeline)]);
                panic!(
                    "not within {deadline:?}: {what}\n{table}\n{:#?}\n--- the agent's log: {}",
                    self.timeline,
                    self.bench.log_tail()
                );
            }
            pause(Duration::from_millis(100));
        }
    }
}

/// Whether `KIND WORKLOAD` is in a state that begins like this, for all these workloads.
fn all(timeline: &Timeline, kind: &str, workloads: &[&str], state: &str) -> bool {
    let mut states = workloads.iter().map(|app| timeline.state(&format!("{kind} {app}")));
    states.all(|now| now.starts_with(state))
}

/// Whether nothing is left of the pods of these workloads, and there are new ones.
fn are_replaced(timeline: &Timeline, workloads: &[&str]) -> bool {
    all(timeline, "pod", workloads, "gone")
        && all(timeline, "container", workloads, "stopped")
        && all(timeline, "volumes", workloads, "removed")
        && all(timeline, "replacement", workloads, "Ready")
}

/// What has a pod elsewhere when its node is away; a DaemonSet has not, and a StatefulSet must not.
const REPLACED: [&str; 2] = ["web", "work"];
/// Whose pods do not tolerate for ever that the node is away.
const EVICTED: [&str; 3] = ["web", "db", "work"];

impl Experiment {
    /// Runs it, and checks what Kubernetes promises.
    #[track_caller]
    fn run(&self, bench: &Bench) -> Timeline {
        let originals = bench.place();
        let [begun, ended] = self.fault.marks();
        let mut run = Run::begin(bench, begun, bench.observe(&originals));
        self.fault.begin(bench, &originals);
        self.watch_fault(&mut run, &originals);
        run.mark(ended);
        self.fault.end(bench);
        let look = || {
            assert!(bench.agent_runs(), "the agent has ended: {}", bench.log_tail());
            bench.observe(&originals)
        };
        run.watch("all is well", look, |timeline, _| self.is_over(timeline));
        self.check(&run, &originals);
        bench.clear();
        run.timeline
    }

    /// From the beginning of the fault to its end.
    fn watch_fault(&self, run: &mut Run<'_>, originals: &Originals) {
        let bench = run.bench;
        let look = || bench.observe(originals);
        if self.has_late_pod() {
            bench.create_late_pod();
        }
        match self.length {
            Length::Unnoticed => {
                let enough = bench.timings().unnoticed();
                run.watch("the time is over", look, |_, elapsed| elapsed >= enough);
            }
            Length::NotReady => {
                run.watch("the pods are marked", look, |now, _| self.fault.is_marked(now));
            }
            Length::Evicted => {
                run.watch("the pods are replaced", look, |timeline, _| {
                    all(timeline, "pod", &EVICTED, "Terminating")
                        && all(timeline, "replacement", &REPLACED, "Ready")
                });
                assert_eq!(run.timeline.state("replacement db"), "none");
                assert_eq!(run.timeline.state("pod daemon"), "not Ready");
            }
            Length::Forced => {
                run.watch("the pods are marked", look, |now, _| self.fault.is_marked(now));
                run.mark("the pods are deleted by force");
                bench.delete_by_force(originals);
                run.watch("they are replaced", look, |timeline, _| {
                    all(timeline, "pod", &WORKLOADS, "gone")
                        && all(timeline, "replacement", &EVICTED, "Ready")
                });
            }
            Length::Moved => {
                run.watch("the pods are replaced", look, |now, _| are_replaced(now, &EVICTED));
                assert_eq!(run.timeline.state(SCHEDULING), "off");
            }
        }
    }

    /// Whether a pod is bound to the node that the agent can only start when the fault is over, and
    /// of which it may not know before.
    fn has_late_pod(&self) -> bool {
        let lasts = matches!(self.length, Length::Unnoticed | Length::NotReady);
        lasts && self.fault.holds_up_pods()
    }

    /// Whether everything is as it must be in the end.
    fn is_over(&self, timeline: &Timeline) -> bool {
        let pods = match self.length {
            Length::Unnoticed | Length::NotReady => all(timeline, "pod", &WORKLOADS, "Ready"),
            Length::Evicted | Length::Moved => {
                are_replaced(timeline, &EVICTED) && timeline.state("pod daemon") == "Ready"
            }
            Length::Forced => are_replaced(timeline, &WORKLOADS),
        };
        let late = !self.has_late_pod() || timeline.state(&format!("pod {LATE}")) == "Ready";
        pods && late
            && timeline.state("node") == "Ready"
            && timeline.state(SCHEDULING) == "on"
            && all(timeline, "taint", &["NoSchedule", "NoExecute"], "none")
            && timeline.state("endpoint of the Service") == "ready"
    }

    /// What Kubernetes promises, once everything is over.
    fn check(&self, run: &Run<'_>, originals: &Originals) {
        let (timeline, bench) = (&run.timeline, run.bench);
        let table = side_by_side(&[("here", timeline)]);
        let kept: &[&str] = match self.length {
            Length::Unnoticed | Length::NotReady => &WORKLOADS,
            Length::Evicted | Length::Moved => &["daemon"],
            Length::Forced => &[],
        };
        for app in kept {
            assert!(bench.is_unchanged(&originals[app]), "{app} has changed\n{table}");
            assert!(!timeline.has_seen(&format!("container {app}"), "stopped"), "{app}\n{table}");
        }
        match self.length {
            Length::Unnoticed => {
                for marked in ["Unknown", "not Ready"] {
                    assert!(!timeline.has_seen("node", marked), "{table}");
                }
                assert!(!timeline.has_seen("endpoint of the Service", "not ready"), "{table}");
            }
            Length::NotReady | Length::Evicted | Length::Moved => {}
            // A person has said that the first one does not run.
            Length::Forced => return,
        }
        assert_eq!(bench.ran_twice(), None, "{table}");
    }
}

/// Runs experiments with one agent, one after the other; `None` when they must be skipped.
fn timelines(
    candidate: &Candidate,
    timings: Timings,
    experiments: &[Experiment],
) -> Option<Vec<Timeline>> {
    let bench = Bench::start(candidate, timings)?;
    let run = |experiment: &Experiment| {
        let timeline = experiment.run(&bench);
        // A run of many minutes shows how far it is.
        if timings == Timings::Real {
            let table = side_by_side(&[(candidate.name(), &timeline)]);
            say_loudly(&format!("\n{}\n{table}", experiment.title));
        }
        timeline
    };
    let timelines = experiments.iter().map(run).collect();
    bench.finish();
    Some(timelines)
}

/// How soon the node and its pods must be Ready when the fault is over.
const SOON: Duration = Duration::from_secs(15);

/// Runs experiments with nodelet and short timings.
#[track_caller]
fn with_nodelet(experiments: &[Experiment]) {
    let Some(timelines) = timelines(&Candidate::Nodelet, Timings::Short, experiments) else {
        return;
    };
    for (experiment, timeline) in experiments.iter().zip(&timelines) {
        for subject in ["node", "pod web", "pod db", "pod daemon", "pod work", "pod late"] {
            let ready = timeline.since_last_mark(subject, "Ready").unwrap_or_default();
            assert!(ready < SOON, "{}: {subject} after {ready:?}", experiment.title);
        }
    }
}

#[test]
fn agent_away_briefly_or_its_pods_deleted_by_force() {
    with_nodelet(&[AWAY_BRIEFLY, AWAY_FORCED]);
}

#[test]
fn agent_away_for_longer_than_pods_tolerate() {
    with_nodelet(&[AWAY_LONG]);
}

#[test]
fn network_cut_briefly_and_in_one_direction() {
    with_nodelet(&[CUT_UNNOTICED, CUT_BOTH, CUT_TO_NODE, CUT_FROM_NODE]);
}

#[test]
fn network_cut_for_longer_than_pods_tolerate() {
    with_nodelet(&[CUT_LONG]);
}

/// How much later nodelet may be than the kubelet: the controllers look at a node every 5 s, so
/// that they see the same change up to 5 s sooner or later.
const CONTROLLERS_LOOK_EVERY: Duration = Duration::from_secs(5);

/// An experiment that nodelet and the kubelet went through.
struct Compared {
    title: &'static str,
    ours: Timeline,
    theirs: Timeline,
    /// The number of the first phase whose end depends on the agent.
    first: usize,
}

/// Experiments that share a cluster. Both agents go through them at the same time.
fn both(binary: &Path, timings: Timings, experiments: &[Experiment]) -> Option<Vec<Compared>> {
    let candidates = [Candidate::Nodelet, Candidate::Kubelet(binary.to_owned())];
    let [ours, theirs] = std::thread::scope(|scope| {
        let run = |of| scope.spawn(move || timelines(of, timings, experiments));
        candidates.each_ref().map(run).map(|thread| thread.join().unwrap())
    });
    let timelines = ours?.into_iter().zip(theirs?);
    let compared = experiments.iter().zip(timelines).map(|(experiment, (ours, theirs))| {
        let first = match experiment.fault {
            // The controllers see what is wrong, and the agent mends it.
            Fault::AgentStopped | Fault::Cut(_) => ours.phases() - 1,
            Fault::RuntimeStopped | Fault::RuntimeHung | Fault::Drained => 0,
        };
        Compared { title: experiment.title, ours, theirs, first }
    });
    Some(compared.collect())
}

/// Runs experiments with both agents, and writes the timelines to a file with this name.
#[track_caller]
fn beside(name: &str, compare: impl FnOnce(&Path, Timings) -> Option<Vec<Compared>>) {
    let Some(binary) = upstream::binary() else {
        skip_without(&[(false, "an upstream kubelet or Go to build it")]);
        return;
    };
    let timings = match std::env::var_os("NODE_FAILURE_TIMINGS") {
        Some(text) if text == "short" => Timings::Short,
        Some(_) | None => Timings::Real,
    };
    let Some(compared) = compare(&binary, timings) else { return };
    let version = upstream::version(&binary);
    let mut text = format!("Timings: {timings:?}. The kubelet is {version}.\n");
    let mut slower = Vec::new();
    for Compared { title, ours, theirs, first } in &compared {
        let table = side_by_side(&[("nodelet", ours), ("kubelet", theirs)]);
        write!(text, "\n{title}\n\n{table}").unwrap();
        let late = ours.slower_than(theirs, *first, CONTROLLERS_LOOK_EVERY);
        slower.extend(late.into_iter().map(|what| format!("{title}: {what}")));
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("node-failure");
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join(format!("{name}.txt"));
    fs::write(&file, &text).unwrap();
    say_loudly(&format!("{text}\nThis is in {}", file.display()));
    assert!(slower.is_empty(), "nodelet is slower:\n{}", slower.join("\n"));
}

#[test]
#[ignore = "takes ten minutes: make node-failure"]
fn beside_the_kubelet_the_agent_is_away() {
    beside("agent", |binary, timings| {
        both(binary, timings, &[AWAY_BRIEFLY, AWAY_LONG, AWAY_FORCED])
    });
}

#[test]
#[ignore = "takes ten minutes: make node-failure"]
fn beside_the_kubelet_the_network_is_cut() {
    let experiments = [CUT_UNNOTICED, CUT_BOTH, CUT_TO_NODE, CUT_FROM_NODE, CUT_LONG];
    beside("network", |binary, timings| both(binary, timings, &experiments));
}

#[test]
#[ignore = "takes five minutes: make node-failure"]
fn beside_the_kubelet_the_runtime_is_away_or_the_node_is_drained() {
    let experiments = [RUNTIME_UNNOTICED, RUNTIME_STOPPED, RUNTIME_HUNG, DRAINED];
    beside("runtime", |binary, timings| both(binary, timings, &experiments));
}

/// One agent after the other, so that neither waits for the other's containers.
#[test]
#[ignore = "takes ten minutes: make node-failure"]
fn beside_the_kubelet_many_pods_come_and_go() {
    beside("rollout", |binary, _| {
        let candidates = [Candidate::Nodelet, Candidate::Kubelet(binary.to_owned())];
        let [ours, theirs] = candidates.each_ref().map(rollout::timeline);
        Some(vec![Compared { title: rollout::TITLE, ours: ours?, theirs: theirs?, first: 0 }])
    });
}
