//! The two acts that every candidate plays: one of speed, one of idleness.

use crate::{
    process::{Process, cpu_of},
    results::{Figures, Row},
    stage::{Candidate, Moment, Stage, now, pause, seconds},
    support::manifest::{FOREVER, Pod},
};
use std::{path::Path, time::Duration};
use tokio::time::Instant;

/// How old a manifest is at least when the agent starts. nodelet looks twice at a file that was
/// written in the last 0.2 s, because it may be half-written; this row is not about that.
const WRITTEN: Duration = Duration::from_millis(500);
/// After a start and after a batch, until what follows from it is over.
const SETTLE: Duration = Duration::from_secs(10);
/// After a comeback, until the agent has looked at all pods again.
const CAUGHT_UP: Duration = Duration::from_secs(3);
/// Before an idle window: containerd and its shims have after-work of their own when many pods were
/// started.
pub const CALM: Duration = Duration::from_secs(30);
/// Numbers of pods at which idleness is measured, where there are more in all.
pub const FEW: usize = 20;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How often each candidate plays.
    pub rounds: usize,
    /// How often each pod-by-pod figure is taken in a round.
    pub singles: usize,
    /// Pods of a full node.
    pub pods: usize,
    /// How long each idle window is.
    pub idle: Duration,
    /// How often each candidate idles.
    pub idle_rounds: usize,
    /// How often each candidate is under pressure.
    pub pressure_rounds: usize,
    /// How often each agent is a node of a cluster.
    pub cluster_rounds: usize,
    /// How often each candidate plays the act of features.
    pub feature_rounds: usize,
    /// The parts of it.
    pub features: Vec<String>,
    /// Calls that the floor makes at a time.
    pub floor_at_a_time: usize,
}

/// One pod after another, then a full node at once, then the agent's deaths.
pub fn speed(candidate: Candidate, plan: &Plan, kubelet: Option<&Path>, figures: &mut Figures) {
    let stage = begin(candidate, kubelet);
    for number in 0..plan.singles {
        // Spread over the phases of loops that wake up every second.
        let phase = u64::try_from(number).unwrap() * 370 % 1000;
        pause(Duration::from_millis(500 + phase));
        single(&stage, candidate, number, figures);
    }
    pause(Duration::from_secs(2));
    let pods = pods("batch", plan.pods);
    let begun = match stage.floor() {
        Some(floor) => floor.run_all(&pods, plan.floor_at_a_time),
        None => stage.drop_pods(&pods),
    };
    let curve: Vec<f64> = stage.started(&pods).iter().map(|at| seconds(begun, *at)).collect();
    figures.add(Row::Batch, candidate, *curve.last().unwrap());
    figures.add_curve(candidate, curve);
    pause(SETTLE);
    if let Some(agent) = stage.agent() {
        figures.add(Row::Peak, candidate, agent.memory_mib("VmHWM"));
    }
    for number in 0..plan.singles {
        comeback(&stage, candidate, number, figures);
    }
}

/// How long the floor takes for a full node at a number of calls at a time.
pub fn floor_batch(plan: &Plan, at_a_time: usize) -> f64 {
    let stage = begin(Candidate::Floor, None);
    let pods = pods("batch", plan.pods);
    let begun = stage.floor().unwrap().run_all(&pods, at_a_time);
    seconds(begun, *stage.started(&pods).last().unwrap())
}

/// Nothing happens, with no pods, with some, with a full node.
pub fn idleness(candidate: Candidate, plan: &Plan, kubelet: Option<&Path>, figures: &mut Figures) {
    let stage = begin(candidate, kubelet);
    let all = pods("idle", plan.pods);
    let mut running = 0;
    for (place, wanted) in [0, FEW.min(plan.pods), plan.pods].into_iter().enumerate() {
        let more = &all[running..wanted];
        if !more.is_empty() {
            match stage.floor() {
                Some(floor) => _ = floor.run_all(more, plan.floor_at_a_time),
                None => _ = stage.drop_pods(more),
            }
            stage.started(more);
        }
        running = wanted;
        pause(CALM);
        let agent = stage.agent();
        let before = agent.map(Used::by);
        let runtime = stage.runtime();
        let (runtime_before, begun) = (cpu_of(&runtime), Instant::now());
        pause(plan.idle);
        let passed = begun.elapsed().as_secs_f64();
        let percent = |cpu: Duration| 100.0 * cpu.as_secs_f64() / passed;
        let runtime_used = cpu_of(&runtime).saturating_sub(runtime_before);
        figures.add(Row::RuntimeCpu(place), candidate, percent(runtime_used));
        if let Some((agent, before)) = agent.zip(before) {
            let used = Used::by(agent).since(&before);
            #[expect(clippy::cast_precision_loss, reason = "counts of one window are small")]
            let per_second = |count: u64| count as f64 / passed;
            figures.add(Row::Cpu(place), candidate, percent(used.cpu));
            figures.add(Row::Wakeups(place), candidate, per_second(used.sleeps));
            figures.add(Row::Written(place), candidate, 3600.0 * per_second(used.written) / 1024.0);
            figures.add(Row::Rss(place), candidate, agent.memory_mib("VmRSS"));
            figures.add(Row::RssAnon(place), candidate, agent.memory_mib("RssAnon"));
            figures.add(Row::RssFile(place), candidate, agent.memory_mib("RssFile"));
            figures.add(Row::Threads(place), candidate, f64::from(agent.status("Threads")));
        }
    }
}

/// CPU time of a process over some time, in percent of one core.
pub fn cpu_percent(process: Process, span: Duration) -> f64 {
    let (before, begun) = (process.cpu(), Instant::now());
    pause(span);
    100.0 * process.cpu().saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// What an agent has used.
struct Used {
    cpu: Duration,
    sleeps: u64,
    written: u64,
}

impl Used {
    fn by(agent: Process) -> Self {
        Self { cpu: agent.cpu(), sleeps: agent.sleeps(), written: agent.written() }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            // Threads may have ended.
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            written: self.written.saturating_sub(before.written),
        }
    }
}

/// One pod: until it runs, until it runs again after its container was killed, until it is gone.
fn single(stage: &Stage, candidate: Candidate, number: usize, figures: &mut Figures) {
    let pod = [Pod::running(&format!("single-{number}"))];
    let started_by_floor = stage.floor().map(|floor| (floor, run_one(floor, &pod[0])));
    let begun = match &started_by_floor {
        Some((_, (_, begun))) => *begun,
        None => stage.drop_pods(&pod),
    };
    figures.add(Row::One, candidate, seconds(begun, stage.started(&pod)[0]));
    pause(Duration::from_secs(1));

    let victim = stage.victim(&pod[0]);
    let begun = match &started_by_floor {
        Some((floor, (started, _))) => floor.restart_on_exit(started, || victim.kill()),
        None => victim.kill(),
    };
    figures.add(Row::Restart, candidate, seconds(begun, stage.restarted(&pod[0], &victim.id)));
    pause(Duration::from_secs(1));

    let begun = match &started_by_floor {
        Some((floor, (started, _))) => floor.stop(started),
        None => stage.remove_pods(&pod),
    };
    figures.add(Row::Gone, candidate, seconds(begun, stage.gone(&pod)));
}

/// The agent dies on a full node, and the next one finds a new manifest.
fn comeback(stage: &Stage, candidate: Candidate, number: usize, figures: &mut Figures) {
    pause(CAUGHT_UP);
    let next = [Pod::running(&format!("next-{number}"))];
    let started_by_floor = stage.floor().map(|floor| (floor, run_one(floor, &next[0])));
    let begun = match &started_by_floor {
        Some((_, (_, begun))) => *begun,
        None => {
            stage.kill_agent();
            stage.drop_pods(&next);
            pause(WRITTEN);
            stage.start()
        }
    };
    figures.add(Row::Comeback, candidate, seconds(begun, stage.started(&next)[0]));
    pause(CAUGHT_UP);
    match &started_by_floor {
        Some((floor, (started, _))) => _ = floor.stop(started),
        None => _ = stage.remove_pods(&next),
    }
    stage.gone(&next);
}

fn run_one(floor: &crate::floor::Floor, pod: &Pod) -> (crate::floor::Started, Moment) {
    let begun = now();
    (floor.run(pod), begun)
}

fn begin(candidate: Candidate, kubelet: Option<&Path>) -> Stage {
    let stage = Stage::set(candidate, kubelet);
    stage.start();
    stage.wait_until_well();
    pause(SETTLE);
    stage
}

/// Pods that do nothing.
pub fn pods(prefix: &str, count: usize) -> Vec<Pod> {
    (0..count).map(|n| Pod::with_main(&format!("{prefix}-{n}"), FOREVER)).collect()
}
