//! Where no pod would help, nobody goes: who uses what is short is looked for beside the loop, and
//! people are told.

use super::PressureTask;
use crate::{
    blocking::LOOKS,
    clock,
    model::{EventKind, Pressure, Signal},
    pressure::core::{Acting, measured as amount},
    signals::{self, outsiders},
    worker::blocking,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::task::JoinSet;

/// Between two words about the same signal, also when it was not short meanwhile.
const PERIOD: Duration = Duration::from_secs(600);
/// Users that are named.
const NAMED: usize = 3;
/// How long looking for large directories may take.
const DIRECTORIES_PATIENCE: Duration = Duration::from_secs(5);
/// How long anything may take: without a thread (a fork bomb) it would take for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who was found, or is being looked for.
#[derive(Default)]
pub(super) struct Blame {
    looking: JoinSet<Found>,
    /// Of each signal: when it was looked into last (boot time).
    since: BTreeMap<Signal, Duration>,
    /// What people were told.
    told: BTreeMap<Signal, String>,
}

/// What a look has shown.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    signal: Signal,
    message: String,
}

impl Blame {
    /// Whether nobody looks, or has looked lately.
    fn is_due(&self, signal: Signal, now: Duration) -> bool {
        self.since.get(&signal).is_none_or(|since| now.saturating_sub(*since) >= PERIOD)
    }

    /// Begins to look who uses what is short, where ending a pod (`which` ones) would not help;
    /// `users` may hang, and is given up after a time.
    fn look(
        &mut self,
        (acting, which): (&Acting, &'static str),
        (now, within): (Duration, Duration),
        users: impl Future<Output = Vec<String>> + Send + 'static,
    ) {
        let (signal, threshold) = (acting.threshold.signal, acting.threshold.value);
        self.since.insert(signal, now);
        self.looking.spawn(async move {
            let users = tokio::time::timeout(within, users).await.unwrap_or_default();
            let users = match users.is_empty() {
                true => "nobody that can be seen".to_owned(),
                false => users.join(", "),
            };
            let message = format!(
                "{signal} is below its threshold of {threshold}, and ending {which} would change that. The largest users outside pods: {users}"
            );
            Found { signal, message }
        });
    }

    /// Waits for what a look shows; for ever where nobody looks. Cancel-safe.
    pub(super) async fn next(&mut self) -> Found {
        loop {
            match self.looking.join_next().await {
                Some(Ok(found)) => return found,
                Some(Err(err)) => tracing::debug!(%err, "looking for users has crashed"),
                None => std::future::pending().await,
            }
        }
    }

    /// What people were told of signals that are short.
    pub(super) fn shown(&self, short: &BTreeSet<Signal>) -> impl Iterator<Item = String> {
        let shown = self.told.iter().filter(|(signal, _)| short.contains(signal));
        shown.map(|(_, message)| message.clone())
    }
}

impl PressureTask {
    /// Has people told who uses what is short. `all`: every pod was measured.
    pub(super) fn blame(&mut self, acting: &Acting, all: bool) {
        let signal = acting.threshold.signal;
        let now = clock::now().boot;
        if !self.blame.is_due(signal, now) {
            return;
        }
        let which = if all { "no pod" } else { "none of the pods that could be measured" };
        match signal.condition() {
            Pressure::Memory => {
                let users = self.largest_processes(|process| process.resident);
                self.blame.look((acting, which), (now, PATIENCE), users);
            }
            Pressure::Pid => {
                let users = self.largest_processes(|process| process.threads);
                self.blame.look((acting, which), (now, PATIENCE), users);
            }
            Pressure::Disk => {
                let users = self.largest_directories(signal);
                self.blame.look((acting, which), (now, PATIENCE), users);
            }
        }
    }

    pub(super) fn tell_blame(&mut self, found: Found) {
        self.blame.told.insert(found.signal, found.message.clone());
        self.node_event(EventKind::Warning, "EvictionFoundNoPod", found.message);
    }

    fn largest_processes(
        &self,
        size: fn(&signals::Process) -> u64,
    ) -> impl Future<Output = Vec<String>> + Send + use<> {
        let (proc, names) = (self.proc.clone(), self.inputs.host.cgroups.kubepods_names());
        async move {
            let found = blocking(&LOOKS, move || outsiders::processes(&proc, &names, NAMED, size));
            let found = found.await.unwrap_or_default();
            let shown = |one: outsiders::Outsider| {
                format!("{} (pid {}, {})", one.process.name, one.pid, size(&one.process))
            };
            found.into_iter().map(shown).collect()
        }
    }

    fn largest_directories(
        &self,
        signal: Signal,
    ) -> impl Future<Output = Vec<String>> + Send + use<> {
        let root = self.inputs.root_dir.clone();
        let images = self.inputs.disks.latest.borrow().images.clone();
        let of_root = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
        let same = images.filter(|_| !of_root).unwrap_or_else(|| root.clone());
        let size: fn(&crate::model::Space) -> u64 = match signal.resource() {
            "inodes" => |space| space.inodes,
            _ => |space| space.bytes,
        };
        async move {
            let known = [root];
            let found = outsiders::directories(&same, &known, NAMED, DIRECTORIES_PATIENCE, size);
            let shown = |one: outsiders::LargeDirectory| {
                format!("{} ({})", one.path.display(), amount(signal, size(&one.space)))
            };
            found.await.into_iter().map(shown).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::Reading,
        pressure::core::{Amount, Threshold},
    };

    fn acting(signal: Signal) -> Acting {
        let value = Amount::Number(100);
        Acting {
            threshold: Threshold { signal, grace: None, value, min_reclaim: None },
            reading: Reading { available: 60, capacity: 1000, at: Duration::from_secs(1) },
            shortfall: 40,
        }
    }

    #[tokio::test]
    async fn what_hangs_holds_up_nobody_and_is_told_in_time() {
        let mut blame = Blame::default();
        let (memory, disk) = (Signal::MemoryAvailable, Signal::NodefsAvailable);
        let (second, signals) = (Duration::from_secs(1), BTreeSet::from([memory, disk]));
        let soon = Duration::from_millis(100);
        blame.look((&acting(disk), "no pod"), (second, soon), std::future::pending());
        assert!(!blame.is_due(disk, second) && blame.is_due(memory, second));
        blame.look((&acting(memory), "no pod"), (second, PATIENCE), async {
            vec!["yes (pid 7, 900)".to_owned()]
        });
        let found = blame.next().await;
        assert_eq!(found.signal, memory);
        assert!(found.message.ends_with("outside pods: yes (pid 7, 900)"), "{found:?}");
        let late = blame.next().await;
        assert_eq!(late.signal, disk);
        assert!(late.message.ends_with("outside pods: nobody that can be seen"), "{late:?}");
        blame.told.insert(memory, found.message.clone());
        assert_eq!(blame.shown(&signals).collect::<Vec<_>>(), [found.message]);
    }

    #[tokio::test]
    async fn a_signal_that_flaps_is_told_of_once_in_a_while() {
        let mut blame = Blame::default();
        let (memory, begun) = (Signal::MemoryAvailable, Duration::from_secs(1));
        blame.look((&acting(memory), "no pod"), (begun, PATIENCE), async { Vec::new() });
        let found = blame.next().await;
        blame.told.insert(memory, found.message);
        // It is not short any more, and short again.
        assert_eq!(blame.shown(&BTreeSet::new()).count(), 0);
        assert!(!blame.is_due(memory, begun + PERIOD - Duration::from_millis(1)));
        assert_eq!(blame.shown(&BTreeSet::from([memory])).count(), 1);
        assert!(blame.is_due(memory, begun + PERIOD));
    }
}
