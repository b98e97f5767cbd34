//! Tables: a series of readings, and what holds and is acted on after each.

use super::*;
use crate::model::{Pressure, Readings};

/// One signal out of a capacity of 1000 MiB, read each time.
struct Node {
    state: PressureState,
    settings: EvictionSettings,
    now: Duration,
}

const CAPACITY: u64 = 1000 * MI;

fn mib(signal: Signal, available: u64, at: Duration) -> (Signal, Reading) {
    (signal, Reading { available: available * MI, capacity: CAPACITY, at })
}

impl Node {
    fn new(thresholds: Vec<Threshold>) -> Self {
        let (settings, now) = (settings(thresholds), seconds(100));
        Self { state: PressureState::default(), settings, now }
    }

    fn step(&mut self, readings: &Readings) -> PressureStep {
        self.state.step(&self.settings, readings, self.now)
    }

    /// Memory is read `after` seconds later.
    fn memory(&mut self, after: u64, available: u64) -> PressureStep {
        self.now += seconds(after);
        self.step(&Readings::from([mib(Signal::MemoryAvailable, available, self.now)]))
    }
}

fn hard_memory() -> Node {
    Node::new(thresholds("memory.available=100Mi", "", "", ""))
}

/// Signals that are acted on, with `!` for hard ones.
fn acted(step: &PressureStep) -> Vec<String> {
    let text = |acting: &Acting| {
        let bang = if acting.threshold.is_hard() { "!" } else { "" };
        format!("{}{bang}", acting.threshold.signal)
    };
    step.acting.iter().map(text).collect()
}

fn holds(step: &PressureStep, condition: Pressure) -> bool {
    step.conditions.contains(&condition)
}

#[test]
fn a_hard_threshold_is_acted_on_at_once_and_only_below_it() {
    let mut node = hard_memory();
    let step = node.memory(0, 100);
    assert!(step.acting.is_empty() && step.met.is_empty(), "equal is not less");
    assert!(step.known);
    let step = node.memory(1, 99);
    assert_eq!(acted(&step), ["memory.available!"]);
    assert_eq!(step.acting[0].shortfall, MI);
    assert_eq!(step.acting[0].reading.available, 99 * MI);
    assert_eq!(step.changes, [Change { condition: Pressure::Memory, holds: true }]);
    assert_eq!(step.met[0].since, node.now);
    let step = node.memory(1, 98);
    assert_eq!(acted(&step), ["memory.available!"], "a new reading, so again");
    assert_eq!(step.met[0].since, node.now - seconds(1));
    assert_eq!(step.changes, [], "told once");
}

#[test]
fn a_soft_threshold_is_acted_on_after_its_grace() {
    let soft = thresholds("", "memory.available=100Mi", "memory.available=30s", "");
    let mut node = Node::new(soft);
    let step = node.memory(0, 50);
    assert!(holds(&step, Pressure::Memory) && step.acting.is_empty());
    assert!(node.memory(29, 50).acting.is_empty());
    assert_eq!(acted(&node.memory(1, 50)), ["memory.available"]);
    // It leaves: its grace begins anew.
    assert!(node.memory(1, 100).acting.is_empty());
    assert!(node.memory(1, 50).acting.is_empty());
    assert!(node.memory(29, 50).acting.is_empty());
    assert_eq!(acted(&node.memory(1, 50)), ["memory.available"]);
}

#[test]
fn the_grace_of_a_soft_threshold_goes_by_readings() {
    let soft = thresholds("", "memory.available=100Mi", "memory.available=20s", "");
    let mut node = Node::new(soft);
    let taken = node.now;
    node.memory(0, 50);
    node.now += seconds(25);
    let old = Readings::from([mib(Signal::MemoryAvailable, 50, taken)]);
    assert!(node.step(&old).acting.is_empty(), "nothing shows that it was low all the time");
    assert_eq!(acted(&node.memory(0, 50)), ["memory.available"]);
}

#[test]
fn what_was_acted_on_goes_on_until_the_minimum_reclaim_is_there() {
    let mut node = Node::new(thresholds("memory.available=100Mi", "", "", "memory.available=50Mi"));
    assert!(node.memory(0, 120).acting.is_empty(), "never below, so no reclaim is due");
    let step = node.memory(1, 90);
    assert_eq!(step.acting[0].shortfall, 60 * MI);
    let step = node.memory(1, 149);
    assert_eq!(acted(&step), ["memory.available!"]);
    assert_eq!(step.acting[0].shortfall, MI);
    assert!(node.memory(1, 150).acting.is_empty());
    assert!(node.memory(1, 149).acting.is_empty(), "it was relieved");
}

#[test]
fn a_condition_holds_for_the_transition_period() {
    let mut node = hard_memory();
    node.memory(0, 50);
    assert!(holds(&node.memory(10, 50), Pressure::Memory));
    let step = node.memory(299, 500);
    assert!(holds(&step, Pressure::Memory) && step.changes.is_empty());
    let step = node.memory(1, 500);
    assert!(!holds(&step, Pressure::Memory));
    assert_eq!(step.changes, [Change { condition: Pressure::Memory, holds: false }]);
    // Seen again in between, the period begins anew.
    node.memory(1, 50);
    node.memory(200, 500);
    node.memory(1, 50);
    assert!(holds(&node.memory(299, 500), Pressure::Memory));
    assert!(!holds(&node.memory(1, 500), Pressure::Memory));
}

#[test]
fn the_end_of_a_condition_is_not_missed() {
    let mut node = hard_memory();
    node.memory(0, 50);
    let mut plenty = |after| {
        node.now += after;
        let reading = Reading { available: 1 << 40, capacity: 1 << 40, at: node.now };
        node.step(&Readings::from([(Signal::MemoryAvailable, reading)])).next_look
    };
    assert_eq!(plenty(seconds(1)), seconds(10));
    assert_eq!(plenty(seconds(296)), seconds(3));
    assert_eq!(plenty(Duration::from_millis(2_999)), Duration::from_millis(50));
    assert_eq!(plenty(Duration::from_millis(1)), seconds(10));
}

#[test]
fn the_end_of_one_condition_is_not_missed_while_another_holds() {
    let mut node = Node::new(thresholds("memory.available=1Gi nodefs.available=1Gi", "", "", ""));
    let mut look = |after, memory, nodefs| {
        node.now += seconds(after);
        let reading = |available| Reading { available, capacity: 1 << 40, at: node.now };
        node.step(&Readings::from([
            (Signal::MemoryAvailable, reading(memory)),
            (Signal::NodefsAvailable, reading(nodefs)),
        ]))
        .next_look
    };
    look(0, 0, 0);
    look(100, 1 << 40, 0);
    assert_eq!(look(195, 1 << 40, 0), seconds(5));
}

#[test]
fn without_a_period_a_condition_holds_while_it_is_seen() {
    let mut node = hard_memory();
    node.settings.transition = Duration::ZERO;
    assert!(holds(&node.memory(0, 50), Pressure::Memory));
    assert!(holds(&node.memory(1, 50), Pressure::Memory));
    assert!(!holds(&node.memory(1, 100), Pressure::Memory));
}

#[test]
fn nothing_is_acted_on_twice_by_one_reading() {
    let mut node = hard_memory();
    let first = node.now;
    let same = Readings::from([mib(Signal::MemoryAvailable, 50, first)]);
    assert_eq!(acted(&node.step(&same)), ["memory.available!"]);
    assert_eq!(acted(&node.step(&same)), ["memory.available!"], "no step was begun");
    node.state.use_readings(Signal::MemoryAvailable, first);
    node.now += seconds(1);
    let step = node.step(&same);
    assert!(step.acting.is_empty() && step.met.len() == 1, "met, as it was");
    assert!(holds(&step, Pressure::Memory));
    assert_eq!(acted(&node.memory(1, 50)), ["memory.available!"]);
}

#[test]
fn a_reading_from_before_the_last_step_is_not_acted_on() {
    let mut node = hard_memory();
    node.memory(0, 50);
    node.state.acted(node.now + seconds(3));
    node.state.acted(node.now);
    assert!(node.memory(2, 50).acting.is_empty(), "taken while the pod was being killed");
    assert!(node.memory(1, 50).acting.is_empty(), "just when it was dead");
    assert_eq!(acted(&node.memory(1, 50)), ["memory.available!"]);
}

#[test]
fn missing_and_invalid_readings_are_reported_and_ignored() {
    let at = seconds(100);
    let reading = |available, capacity, at| Some(Reading { available, capacity, at });
    let full = Reading { available: 11, capacity: 10, at };
    let shrunk = Reading { available: 5, capacity: 100 * MI, at };
    for (reading, problem, told) in [
        (None, ReadingProblem::Missing, "could not be read"),
        (reading(0, 0, at), ReadingProblem::NoCapacity, "has no capacity"),
        (
            Some(full),
            ReadingProblem::MoreThanAll(full),
            "makes no sense: more than all 10 are available",
        ),
        (
            Some(shrunk),
            ReadingProblem::TooSmall(shrunk),
            "has a threshold that is not below its capacity of 104857600",
        ),
        (
            reading(0, CAPACITY, at + seconds(1)),
            ReadingProblem::OtherClock,
            "was read at a time that makes no sense",
        ),
        (
            reading(0, CAPACITY, at - seconds(31)),
            ReadingProblem::TooOld(seconds(31)),
            "was not read for 20 s or more",
        ),
    ] {
        let mut node = hard_memory();
        let readings: Readings =
            reading.map(|r| (Signal::MemoryAvailable, r)).into_iter().collect();
        let step = node.step(&readings);
        assert_eq!(step.problems, BTreeMap::from([(Signal::MemoryAvailable, problem)]));
        assert_eq!(problem.to_string(), told);
        assert!(step.acting.is_empty() && step.met.is_empty() && step.conditions.is_empty());
        assert_eq!(step.next_look, seconds(1), "{problem:?}: looked at again soon");
    }
    let mut node = hard_memory();
    let step = node.step(&Readings::from([mib(Signal::MemoryAvailable, 50, at - seconds(30))]));
    assert!(step.problems.is_empty(), "not too old yet");
}

#[test]
fn a_threshold_that_became_too_large_leaves_the_others_in_force() {
    let mut node = Node::new(thresholds(
        "memory.available=100Mi",
        "memory.available=1Gi",
        "memory.available=1s",
        "",
    ));
    let step = node.memory(0, 500);
    let shrunk = Reading { available: 500 * MI, capacity: CAPACITY, at: node.now };
    let problem = ReadingProblem::TooSmall(shrunk);
    assert_eq!(step.problems, BTreeMap::from([(Signal::MemoryAvailable, problem)]));
    assert!(step.met.is_empty() && step.known);
    assert!(step.next_look < seconds(1), "by the other one");
    assert_eq!(acted(&node.memory(5, 50)), ["memory.available!"]);
}

#[test]
fn a_clock_that_goes_back_is_told() {
    let mut node = hard_memory();
    node.memory(0, 500);
    let back = node.now - seconds(5);
    let step = node.step(&Readings::from([mib(Signal::MemoryAvailable, 50, back)]));
    assert_eq!(step.problems[&Signal::MemoryAvailable], ReadingProblem::OtherClock);
    assert!(step.acting.is_empty() && !holds(&step, Pressure::Memory));
}

#[test]
fn a_file_system_without_inodes_never_runs_out_of_them() {
    let mut node = Node::new(thresholds("nodefs.inodesFree=5%", "", "", ""));
    let none = Reading { available: 0, capacity: 0, at: node.now };
    let step = node.step(&Readings::from([(Signal::NodefsInodesFree, none)]));
    assert!(step.problems.is_empty() && step.acting.is_empty() && step.known);
    assert_eq!(step.next_look, seconds(10));
}

#[test]
fn nothing_is_acted_on_before_all_of_its_kind_was_read() {
    let mut node = Node::new(thresholds(
        "memory.available=100Mi nodefs.available=10% imagefs.available=10%",
        "",
        "",
        "",
    ));
    let read = |node: &Node, signals: &[Signal]| -> Readings {
        signals.iter().map(|signal| mib(*signal, 50, node.now)).collect()
    };
    let (memory, nodefs, imagefs) =
        (Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::ImagefsAvailable);
    let readings = read(&node, &[memory, nodefs]);
    let step = node.step(&readings);
    assert_eq!(acted(&step), ["memory.available!"], "memory waits for no runtime");
    assert!(!step.known && holds(&step, Pressure::Disk));
    let mut patient = Node { state: node.state.clone(), settings: node.settings.clone(), ..node };

    node.now += seconds(1);
    let readings = read(&node, &[memory, nodefs, imagefs]);
    let step = node.step(&readings);
    assert!(step.known);
    assert_eq!(acted(&step), ["memory.available!", "nodefs.available!", "imagefs.available!"]);
    node.now += seconds(1);
    let readings = read(&node, &[nodefs]);
    assert_eq!(acted(&node.step(&readings)), ["nodefs.available!"], "read once is enough");

    patient.now += seconds(29);
    let readings = read(&patient, &[nodefs]);
    let step = patient.step(&readings);
    assert!(step.acting.is_empty() && !step.known);
    patient.now += seconds(1);
    let readings = read(&patient, &[nodefs]);
    let step = patient.step(&readings);
    assert_eq!(acted(&step), ["nodefs.available!"], "what can't be read holds nothing up for ever");
    assert!(step.known);
}

#[test]
fn memory_comes_first_and_hard_before_soft() {
    let mut node = Node::new(thresholds(
        "nodefs.available=10% pid.available=100Mi",
        "memory.available=100Mi imagefs.available=10% nodefs.available=20%",
        "memory.available=1s imagefs.available=1s nodefs.available=1s",
        "",
    ));
    let mut step = |after| {
        node.now += seconds(after);
        let signals = [
            Signal::PidAvailable,
            Signal::NodefsAvailable,
            Signal::ImagefsAvailable,
            Signal::MemoryAvailable,
        ];
        let readings = signals.into_iter().map(|signal| mib(signal, 50, node.now)).collect();
        node.state.step(&node.settings, &readings, node.now)
    };
    assert_eq!(acted(&step(0)), ["nodefs.available!", "pid.available!"]);
    assert_eq!(
        acted(&step(1)),
        [
            "memory.available",
            "nodefs.available!",
            "pid.available!",
            "nodefs.available",
            "imagefs.available"
        ]
    );
}

#[test]
fn conditions_of_before_a_restart_are_those_that_are_passed_in() {
    let step = |held: Vec<Pressure>, after| {
        let mut state = PressureState::restored(held, seconds(100));
        let settings = hard_memory().settings;
        let at = seconds(100) + after;
        state.step(&settings, &Readings::from([mib(Signal::MemoryAvailable, 500, at)]), at)
    };
    assert!(step(vec![], seconds(1)).conditions.is_empty());
    let held = step(vec![Pressure::Memory], seconds(299));
    assert!(holds(&held, Pressure::Memory) && held.changes.is_empty());
    let gone = step(vec![Pressure::Memory], seconds(300));
    assert_eq!(gone.changes, [Change { condition: Pressure::Memory, holds: false }]);
}

#[test]
fn the_next_look_is_the_sooner_the_nearer_a_threshold_is() {
    let look = |hard: &str, signal: Signal, available: u64, capacity: u64| {
        let mut node = Node::new(thresholds(hard, "", "", ""));
        let step =
            node.step(&Readings::from([(signal, Reading { available, capacity, at: node.now })]));
        let of_disk = signal.condition() == Pressure::Disk;
        let expected = if of_disk { seconds(10) } else { step.looks[&signal] };
        assert_eq!(step.next_look, expected, "readings of disks come by themselves: {signal}");
        step.looks[&signal].as_millis()
    };
    let memory =
        |available| look("memory.available=1Gi", Signal::MemoryAvailable, available, 1 << 40);
    assert_eq!(memory(100 * GI), 10_000);
    assert_eq!(memory(21 * GI), 5_000);
    assert_eq!(memory(2 * GI), 250);
    assert_eq!(memory(GI), 50);
    assert_eq!(memory(GI - 1), 50, "met");
    let disk =
        |available| look("nodefs.available=1Gi", Signal::NodefsAvailable, available, 1 << 40);
    assert_eq!((disk(11 * GI), disk(GI), disk(100 * GI)), (5_000, 500, 10_000));
    let inodes = |free| look("nodefs.inodesFree=1k", Signal::NodefsInodesFree, free, 1 << 40);
    assert_eq!((inodes(1_001_000), inodes(1000)), (5_000, 500));
    let pids = |free| look("pid.available=1k", Signal::PidAvailable, free, 1 << 40);
    assert_eq!((pids(51_000), pids(1000)), (1_000, 50));
}

#[test]
fn the_nearest_threshold_of_a_signal_says_when_to_look() {
    let soft =
        thresholds("memory.available=1Gi", "memory.available=3Gi", "memory.available=1m", "");
    let mut node = Node::new(soft);
    let mut look = |after, available| {
        node.now += after;
        let reading = Reading { available, capacity: 1 << 40, at: node.now };
        let readings = Readings::from([(Signal::MemoryAvailable, reading)]);
        node.state.step(&node.settings, &readings, node.now).next_look.as_millis()
    };
    assert_eq!(look(Duration::ZERO, 7 * GI), 1000);
    assert_eq!(look(seconds(1), 2 * GI), 250, "the hard one is near");
    assert_eq!(look(seconds(58), 2 * GI), 250);
    assert_eq!(look(Duration::from_millis(1_900), 2 * GI), 100, "its grace is over soon");
}

#[test]
fn what_is_met_for_long_is_looked_at_less_often() {
    let mut node = hard_memory();
    let look = |node: &mut Node, after| node.memory(after, 50).next_look.as_millis();
    assert_eq!(look(&mut node, 0), 50);
    assert_eq!(look(&mut node, 4), 500);
    assert_eq!(look(&mut node, 100), 1000, "and not too seldom: it may get worse");
    let mut disk = Node::new(thresholds("nodefs.available=10%", "", "", ""));
    let mut step = |after| {
        disk.now += seconds(after);
        let readings = Readings::from([mib(Signal::NodefsAvailable, 50, disk.now)]);
        let step = disk.state.step(&disk.settings, &readings, disk.now);
        step.looks[&Signal::NodefsAvailable].as_millis()
    };
    assert_eq!((step(0), step(8), step(800)), (500, 1000, 10_000));
}

#[test]
fn what_was_read_up_to_the_last_thing_done_is_outdated() {
    let mut state = PressureState::default();
    assert!(!state.is_outdated(seconds(1)));
    state.acted(seconds(5));
    state.acted(seconds(3));
    assert!(state.is_outdated(seconds(5)) && !state.is_outdated(seconds(6)));
}
