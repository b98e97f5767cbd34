//! What people see of it.

use super::{
    CALM_VIEW, PressureTask,
    usage::{Measured, has_ended},
};
use crate::{
    model::{
        EvictedView, Now, PartlyMeasured, PodKey, Pressure, PressureCondition, PressureView,
        ReliefView, Signal, SignalView, format_duration,
    },
    pressure::core::{Spare, Spared, Step, Threshold, Waiting},
};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

/// Steps that are remembered.
const STEPS: usize = 32;
const CONDITIONS: [Pressure; 3] = [Pressure::Memory, Pressure::Disk, Pressure::Pid];

/// What happened up to now.
#[derive(Default)]
pub(super) struct History {
    steps: VecDeque<ReliefView>,
    /// Whether each signal is crossed, and since when.
    signals: BTreeMap<Signal, (bool, Timestamp)>,
    /// The same of conditions.
    conditions: BTreeMap<Pressure, (bool, Timestamp)>,
    /// Signals that an event was told of, as long as they are crossed.
    told: BTreeSet<Signal>,
    /// Who was spared at the last look, and why, as long as a signal is crossed.
    spared: BTreeMap<Signal, BTreeMap<PodKey, Spare>>,
    /// Pods whose directories were counted in part when they were measured last, and which
    /// directories.
    partly: BTreeMap<PodKey, String>,
}

impl History {
    pub(super) fn step(&mut self, step: ReliefView) {
        if self.steps.len() >= STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// Whether nothing was told of the signal since it is crossed.
    pub(super) fn is_new(&mut self, signal: Signal) -> bool {
        self.told.insert(signal)
    }

    /// Logs who is spared, where that is new.
    pub(super) fn spare(&mut self, signal: Signal, spared: &[Spared<'_>]) {
        let named = spared.iter().map(|spared| (spared.candidate.key.clone(), spared.why));
        let now: BTreeMap<PodKey, Spare> = named.collect();
        let before = self.spared.entry(signal).or_default();
        for (pod, why) in now.iter().filter(|(pod, why)| before.get(*pod) != Some(*why)) {
            tracing::debug!(%pod, %signal, "spared: {}", why.as_str());
        }
        *before = now;
    }

    /// Takes in a measurement: which pods were counted in part.
    pub(super) fn measured(&mut self, pods: &[Measured]) {
        for pod in pods {
            let before = self.partly.remove(&pod.view.key);
            if pod.usage.partly == PartlyMeasured::default() {
                continue;
            }
            let what = pod.missing.join("; ");
            if before.is_none() {
                tracing::info!(pod = %pod.view.key, "could not be measured whole: {what}");
            }
            self.partly.insert(pod.view.key.clone(), what);
        }
    }

    /// Pods that were counted in part, a sentence each.
    fn suspects(&self) -> impl Iterator<Item = String> {
        self.partly.iter().map(|(pod, what)| {
            format!("pod {pod} could not be measured whole ({what}): it is a suspect when a disk is short")
        })
    }

    /// Takes in what is crossed now.
    pub(super) fn seen(&mut self, step: &Step) {
        let met: BTreeSet<Signal> = step.met.iter().map(|met| met.threshold.signal).collect();
        self.told.retain(|signal| met.contains(signal));
        self.spared.retain(|signal, _| met.contains(signal));
    }
}

/// Changes `kept` to `value` at `now` unless it is that already; gives since when it is.
fn since<K: Ord + Copy>(
    kept: &mut BTreeMap<K, (bool, Timestamp)>,
    key: K,
    value: bool,
    now: Now,
) -> Timestamp {
    let entry = kept.entry(key).or_insert((value, now.wall));
    if entry.0 != value {
        *entry = (value, now.wall);
    }
    entry.1
}

impl PressureTask {
    pub(super) fn publish(&mut self, step: &Step, now: Now) {
        self.history.seen(step);
        let views = self.inputs.pods.borrow().clone();
        self.history.partly.retain(|pod, _| views.get(pod).is_some_and(|view| !has_ended(view)));
        // While nothing is short, not with each of many looks.
        let calm = step.met.is_empty() && step.changes.is_empty() && step.next_look < CALM_VIEW;
        if calm && now.boot.saturating_sub(self.viewed) < CALM_VIEW {
            return;
        }
        self.viewed = now.boot;
        let view = PressureView {
            signals: self.signals(step, now),
            conditions: CONDITIONS
                .into_iter()
                .map(|condition| {
                    let holds = step.conditions.contains(&condition);
                    let since = since(&mut self.history.conditions, condition, holds, now);
                    PressureCondition { condition, holds, since: Some(since) }
                })
                .collect(),
            evicted: self.evicted(step, now),
            steps: self.history.steps.iter().cloned().collect(),
            trouble: self.trouble(step),
        };
        self.inputs.view.send_if_modified(|published| {
            let changed = !looks_same(published, &view);
            if changed {
                *published = Arc::new(view);
            }
            changed
        });
    }

    fn signals(&mut self, step: &Step, now: Now) -> Vec<SignalView> {
        let mut views: Vec<SignalView> = Vec::new();
        for threshold in &self.effective.thresholds {
            let signal = threshold.signal;
            if let Some(view) = views.iter_mut().find(|view| view.signal == signal) {
                view.thresholds.push(text(threshold));
                continue;
            }
            let reading = self.sample.readings.get(&signal);
            let reading = match self.sample.at_least.contains(&signal) {
                true => self.exact.get(&signal),
                false => reading,
            };
            let crossed = step.met.iter().any(|met| met.threshold.signal == signal);
            views.push(SignalView {
                signal,
                available: reading.map(|reading| reading.available),
                capacity: reading.map(|reading| reading.capacity),
                thresholds: vec![text(threshold)],
                crossed,
                since: Some(since(&mut self.history.signals, signal, crossed, now)),
            });
        }
        views
    }

    fn evicted(&self, step: &Step, now: Now) -> Vec<EvictedView> {
        let evictions = &self.inputs.evictions;
        let away = evictions.records().filter(|record| record.back.is_none());
        away.filter_map(|record| {
            let waiting = evictions.waiting(&record.key, &step.conditions, step.known, now)?;
            Some(EvictedView {
                key: record.key.clone(),
                at: record.at,
                message: record.hold.message.clone(),
                back_at: now.wall.checked_add(waiting.pause).ok(),
                waits_for: waits_for(&waiting),
            })
        })
        .collect()
    }

    fn trouble(&self, step: &Step) -> Vec<String> {
        let problems =
            step.problems.iter().map(|(signal, problem)| match self.sample.missing.get(signal) {
                Some(why) => format!("{signal} is not watched: {why}"),
                None => format!("{signal} is not watched: it {problem}"),
            });
        let short: BTreeSet<Signal> = step.met.iter().map(|met| met.threshold.signal).collect();
        problems.chain(self.blame.shown(&short)).chain(self.history.suspects()).collect()
    }
}

/// `100Mi`, `10% (soft, 1m0s)`
fn text(threshold: &Threshold) -> String {
    match threshold.grace {
        None => threshold.value.to_string(),
        Some(grace) => format!("{} (soft, {})", threshold.value, format_duration(grace)),
    }
}

fn waits_for(waiting: &Waiting) -> String {
    let mut parts = Vec::new();
    if waiting.stopping {
        parts.push("it has stopped".to_owned());
    }
    if let Some(condition) = waiting.condition {
        parts.push(format!("{condition} is over"));
    }
    if waiting.unknown {
        parts.push("every signal was read".to_owned());
    }
    if !waiting.pause.is_zero() {
        // In whole tens: the view does not change all the time.
        let seconds = waiting.pause.as_secs().div_ceil(10) * 10;
        let pause = format_duration(Duration::from_secs(seconds));
        parts.push(format!("its pause is over (about {pause} more)"));
    }
    format!("comes back when {}", parts.join(" and "))
}

/// Numbers that change all the time are published when a person could see it: by a hundredth of the
/// capacity.
fn looks_same(shown: &PressureView, view: &PressureView) -> bool {
    let near = |shown: &SignalView, new: &SignalView| {
        let step = new.capacity.unwrap_or_default() / 100;
        let both = shown.available.zip(new.available);
        both.is_some_and(|(shown, new)| shown.abs_diff(new) <= step)
    };
    let mut view = view.clone();
    for (shown, new) in shown.signals.iter().zip(&mut view.signals) {
        if near(shown, new) {
            new.available = shown.available;
        }
    }
    for (shown, new) in shown.evicted.iter().zip(&mut view.evicted) {
        new.back_at = shown.back_at;
    }
    *shown == view
}
