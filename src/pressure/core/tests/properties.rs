//! Whatever is read and whoever runs: no condition flaps, nothing is done twice by one reading, and
//! nobody is evicted who may not be or would not help.

use super::*;
use crate::{
    model::{Pressure, Readings},
    podspec::is_static,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What is read of a signal at a look.
#[derive(Clone, Copy, Debug)]
enum Read {
    /// So much, now.
    Mib(u64),
    /// The same as the last time, with its time.
    Again,
    Missing,
    Absurd,
}

fn read() -> impl Strategy<Value = Read> {
    prop_oneof![
        6 => (0_u64..300).prop_map(Read::Mib),
        2 => (80_u64..160).prop_map(Read::Mib),
        1 => Just(Read::Again),
        1 => Just(Read::Missing),
        1 => Just(Read::Absurd),
    ]
}

const SIGNALS: [Signal; 3] =
    [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable];

/// Milliseconds since the last look, what is read, and whether something is done about it.
type Look = (u64, [Read; 3], bool);

fn looks() -> impl Strategy<Value = Vec<Look>> {
    let after = prop_oneof![3 => 1_u64..2_000, 2 => 2_000_u64..40_000, 1 => 200_000_u64..400_000];
    prop::collection::vec((after, [read(), read(), read()], any::<bool>()), 1..60)
}

fn watched() -> EvictionSettings {
    settings(thresholds(
        "memory.available=100Mi nodefs.available=100Mi pid.available=50Mi",
        "memory.available=150Mi nodefs.available=200Mi",
        "memory.available=30s nodefs.available=5s",
        "memory.available=40Mi",
    ))
}

fn reading(read: Read, last: Option<&Reading>, at: Duration) -> Option<Reading> {
    let capacity = 1000 * MI;
    match read {
        Read::Mib(mib) => Some(Reading { available: mib * MI, capacity, at }),
        Read::Again => last.copied(),
        Read::Missing => None,
        Read::Absurd => Some(Reading { available: 2 * capacity, capacity, at }),
    }
}

/// What the property asserts about a series: a model of it beside the state.
#[derive(Default)]
struct Seen {
    holding: BTreeSet<Pressure>,
    /// When each condition was met last.
    met: BTreeMap<Pressure, Duration>,
    acted: BTreeMap<Signal, Duration>,
    done: Option<Duration>,
    /// Since when readings without a gap were below each threshold.
    below: BTreeMap<Threshold, Duration>,
}

impl Seen {
    fn check(
        &mut self,
        settings: &EvictionSettings,
        readings: &Readings,
        step: &PressureStep,
        now: Duration,
    ) {
        for met in &step.met {
            let relieved = met.threshold.relieved_at(met.reading.capacity);
            assert!(met.reading.available < relieved, "{met:?}");
            self.met.insert(met.threshold.signal.condition(), now);
        }
        self.below(settings, readings);
        for acting in &step.acting {
            let signal = acting.threshold.signal;
            assert_eq!(readings[&signal], acting.reading);
            assert!(acting.reading.available <= acting.reading.capacity, "absurd: {acting:?}");
            let newer = |than: Option<&Duration>| than.is_none_or(|than| acting.reading.at > *than);
            assert!(newer(self.acted.get(&signal)), "twice by one reading: {acting:?}");
            assert!(newer(self.done.as_ref()), "a reading from before the last thing: {acting:?}");
            let since = self.below.get(&acting.threshold).unwrap();
            let grace = acting.threshold.grace.unwrap_or_default();
            assert!(acting.reading.at - *since >= grace, "before its grace: {acting:?}");
            assert!(acting.shortfall > 0);
        }
        self.conditions(settings, step, now);
        let order: Vec<(bool, bool)> = step
            .acting
            .iter()
            .map(|a| (a.threshold.signal != Signal::MemoryAvailable, !a.threshold.is_hard()))
            .collect();
        assert!(order.is_sorted(), "{order:?}");
        assert!((Duration::from_millis(50)..=seconds(10)).contains(&step.next_look));
    }

    /// A signal that is not read, or is above the threshold with its minimum reclaim, is not below
    /// it.
    fn below(&mut self, settings: &EvictionSettings, readings: &Readings) {
        for threshold in &settings.thresholds {
            let below = readings
                .get(&threshold.signal)
                .filter(|reading| reading.available < threshold.relieved_at(reading.capacity));
            match below {
                Some(reading) => drop(self.below.entry(*threshold).or_insert(reading.at)),
                None => drop(self.below.remove(threshold)),
            }
        }
    }

    fn conditions(&mut self, settings: &EvictionSettings, step: &PressureStep, now: Duration) {
        for change in &step.changes {
            let changed = if change.holds {
                self.holding.insert(change.condition)
            } else {
                self.holding.remove(&change.condition)
            };
            assert!(changed, "told twice: {change:?}");
            let met = self.met.get(&change.condition).copied().unwrap();
            if change.holds {
                assert_eq!(met, now, "raised by nothing: {change:?}");
            } else {
                assert!(now - met >= settings.transition, "flaps: {change:?}");
            }
        }
        assert_eq!(step.conditions, self.holding);
        for (condition, met) in &self.met {
            let holds = now - *met < settings.transition;
            assert_eq!(self.holding.contains(condition), holds, "{condition} at {now:?}");
        }
    }
}

/// A pod by name, priority, request and use in MiB (of which nothing may be known), and whether it
/// is of an API server.
type Runs = (i32, u64, Option<u64>, bool);

fn pods() -> impl Strategy<Value = Vec<Runs>> {
    let priority = prop::sample::select(vec![-5, 0, 0, 7, 1_999_999_999, 2_000_000_000]);
    let used = prop::option::weighted(0.9, 0_u64..50);
    prop::collection::vec((priority, 0_u64..40, used, any::<bool>()), 0..12)
}

fn built(runs: &[Runs]) -> Vec<Pod> {
    let pod = |(index, (priority, request, used, api)): (usize, &Runs)| {
        let mut pod = Pod::requesting(&format!("p{index:02}"), *priority, &format!("{request}Mi"));
        pod.usage.memory = used.map(|mib| mib * MI);
        pod.usage.processes = *used;
        if *api { pod.api() } else { pod }
    };
    runs.iter().enumerate().map(pod).collect()
}

fn names(victims: &[Victim<'_>]) -> Vec<String> {
    victims.iter().map(|victim| victim.candidate.key.name.to_string()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_series_of_readings_makes_a_condition_flap_or_acts_twice(looks in looks()) {
        let (settings, mut state) = (watched(), PressureState::default());
        let (mut seen, mut now, mut last) = (Seen::default(), seconds(1000), Readings::new());
        for (after, reads, done) in looks {
            now += Duration::from_millis(after);
            let readings: Readings = SIGNALS
                .into_iter()
                .zip(reads)
                .filter_map(|(signal, read)| Some((signal, reading(read, last.get(&signal), now)?)))
                .collect();
            let step = state.step(&settings, &readings, now);
            for (signal, problem) in &step.problems {
                prop_assert!(step.met.iter().all(|met| met.threshold.signal != *signal), "{problem}");
            }
            let usable: Readings = readings
                .into_iter()
                .filter(|(signal, _)| !step.problems.contains_key(signal))
                .collect();
            seen.check(&settings, &usable, &step, now);
            last.extend(usable);
            // The others keep their readings.
            if let Some(first) = step.acting.first() {
                state.use_readings(first.threshold.signal, first.reading.at);
                seen.acted.insert(first.threshold.signal, first.reading.at);
                if done {
                    state.acted(now);
                    seen.done = Some(now);
                }
            }
        }
    }

    #[test]
    fn victims_are_sorted_stable_and_helpful(
        runs in pods(),
        shortfall in 1_u64..400,
        by_pids in any::<bool>(),
        never in any::<bool>(),
        rotate in 0_usize..12,
    ) {
        let signal = if by_pids { Signal::PidAvailable } else { Signal::MemoryAvailable };
        let unit = if by_pids { 1 } else { MI };
        let acting = acting(signal, shortfall * unit);
        let static_pods = if never { StaticPods::Never } else { StaticPods::Ranked };
        let pods = built(&runs);
        let mut candidates: Vec<Candidate<'_>> = pods.iter().map(Pod::candidate).collect();
        let ranking = rank(&candidates, &acting, DiskLayout::Single, static_pods);
        let may = |candidate: &Candidate<'_>| {
            candidate.priority < 2_000_000_000 && (!is_static(candidate.pod) || !never)
        };
        let used = |candidate: &Candidate<'_>| candidate.usage.memory.map_or(0, |bytes| bytes / MI * unit);
        let kept_free = 100 * unit;
        let of = |wanted: &dyn Fn(&Candidate<'_>) -> bool| -> Vec<u64> {
            let all = candidates.iter().filter(|c| may(c) && wanted(c)).map(used);
            all.filter(|used| *used > 0).collect()
        };
        let over = of(&|c| by_pids || used(c) > c.request("memory"));
        let all = of(&|_| true);
        let many = if over.is_empty() { &all } else { &over };
        let together: u64 = many.iter().sum();
        // A twentieth of what is kept free, or as much as the average of those that may be the
        // cause together.
        let large = |used: u64| {
            let average = together >= kept_free && used * u64::try_from(many.len()).unwrap() >= together;
            used * 20 >= kept_free || average
        };
        prop_assert_eq!(ranking.victims.len() + ranking.spared.len(), pods.len());

        for victim in &ranking.victims {
            prop_assert!(may(&victim.candidate));
            prop_assert!(victim.used > 0 && large(victim.used));
        }
        for spared in &ranking.spared {
            let used = used(&spared.candidate);
            prop_assert!(!may(&spared.candidate) || used == 0 || !large(used), "{:?}", spared);
        }
        // Whoever may go and is the cause together can't escape by being many.
        prop_assert!(together < kept_free || !ranking.victims.is_empty());
        for pair in ranking.victims.windows(2) {
            let [first, second] = pair else { unreachable!() };
            let over = |victim: &Victim<'_>| victim.used > victim.requested;
            let statics = [first, second].map(|victim| is_static(victim.candidate.pod));
            prop_assert!(statics[0] <= statics[1]);
            if statics[0] != statics[1] {
                continue;
            }
            prop_assert!(by_pids || over(first) >= over(second));
            if !by_pids && over(first) != over(second) {
                continue;
            }
            prop_assert!(first.candidate.priority <= second.candidate.priority);
            if first.candidate.priority == second.candidate.priority {
                let above = |v: &Victim<'_>| i128::from(v.used) - i128::from(v.requested);
                prop_assert!(above(first) >= above(second));
            }
        }
        let order = names(&ranking.victims);
        let by = rotate.min(candidates.len());
        candidates.rotate_left(by);
        candidates.reverse();
        prop_assert_eq!(names(&rank(&candidates, &acting, DiskLayout::Single, static_pods).victims), order);
    }
}
