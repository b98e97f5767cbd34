//! The part of the node's status about pressure.

use super::EvictionTask;
use crate::{
    clock,
    model::{
        CollectOrdered as _, EvictedView, Now, PartlyMeasured, PodKey, Pressure, PressureView,
        ReliefView, Signal, SignalView, format_duration,
    },
    presentation::shown,
    pressure::core::{
        EvictionSettings, MeasuredPod, PressureStep, ReadingProblem, Threshold, Waiting,
    },
};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// The number of steps that are shown.
const STEPS: usize = 32;
/// The time between two views while nothing is short.
const CALM_PERIOD: Duration = Duration::from_secs(1);

/// What the view shows of earlier rounds.
#[derive(Default)]
pub(super) struct ViewHistory {
    /// Boot time of the last view.
    viewed: Duration,
    steps: VecDeque<ReliefView>,
    /// Whether each signal is crossed, and since when.
    signals: BTreeMap<Signal, (bool, Timestamp)>,
    /// Pods of which the last measurement is incomplete, and the parts that it lacks.
    partly: BTreeMap<PodKey, String>,
}

impl ViewHistory {
    pub(super) fn push_step(&mut self, step: ReliefView) {
        if self.steps.len() >= STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    pub(super) fn note_partly_measured(&mut self, pods: &[MeasuredPod]) {
        for pod in pods {
            let before = self.partly.remove(&pod.view.key);
            if pod.usage.partly == PartlyMeasured::default() {
                continue;
            }
            let what = pod.missing.join("; ");
            if before.is_none() {
                tracing::info!(pod = %pod.view.key, "could not be measured completely: {what}");
            }
            self.partly.insert(pod.view.key.clone(), what);
        }
    }

    /// One sentence for each pod that was measured in part.
    fn suspects(&self) -> impl Iterator<Item = String> {
        self.partly.iter().map(|(pod, what)| {
            format!("pod {pod} could not be measured completely ({what}): it is a suspect")
        })
    }

    /// Notes whether a signal is crossed now; returns since when it is (or is not).
    fn crossed_since(&mut self, signal: Signal, crossed: bool, now: Now) -> Timestamp {
        let entry = self.signals.entry(signal).or_insert((crossed, now.wall));
        if entry.0 != crossed {
            *entry = (crossed, now.wall);
        }
        entry.1
    }
}

impl EvictionTask {
    pub(super) fn publish(&mut self, step: &PressureStep, settings: &EvictionSettings) {
        let now = clock::now();
        {
            let views = self.channels.pods.borrow();
            let live = |pod: &PodKey| views.get(pod).is_some_and(|view| !view.has_stopped());
            self.history.partly.retain(|pod, _| live(pod));
        }
        let short = step.met.iter().map(|met| met.threshold.signal).collect_ordered();
        self.outside.retain(&short, Instant::now());
        let read_often = step.looks.values().any(|look| *look < CALM_PERIOD);
        let calm = step.met.is_empty() && step.changes.is_empty() && read_often;
        if calm && now.boot.saturating_sub(self.history.viewed) < CALM_PERIOD {
            return;
        }
        self.history.viewed = now.boot;
        let view = PressureView {
            signals: self.signals(step, settings, now),
            evicted: self.evicted(step, now),
            steps: self.history.steps.iter().cloned().collect(),
            trouble: self.trouble(step),
        };
        self.channels.view.send_if_modified(|published| {
            let changed = !looks_same(published, &view);
            if changed {
                *published = Arc::new(view);
            }
            changed
        });
    }

    pub(super) fn signals(
        &mut self,
        step: &PressureStep,
        settings: &EvictionSettings,
        now: Now,
    ) -> Vec<SignalView> {
        let mut views: Vec<SignalView> = Vec::new();
        for threshold in &settings.thresholds {
            let signal = threshold.signal;
            let reading = self.readings.shown(signal);
            // A file system without a table of inodes.
            if reading.is_some_and(|reading| reading.capacity == 0) {
                continue;
            }
            let mark = reading.map(|reading| threshold.value.resolve(reading.capacity));
            if let Some(view) = views.iter_mut().find(|view| view.signal == signal) {
                view.thresholds.push(text(threshold));
                view.marks.extend(mark);
                continue;
            }
            let crossed = step.met.iter().any(|met| met.threshold.signal == signal);
            views.push(SignalView {
                signal,
                available: reading.map(|reading| reading.available),
                capacity: reading.map(|reading| reading.capacity),
                thresholds: vec![text(threshold)],
                marks: mark.into_iter().collect(),
                crossed,
                since: Some(self.history.crossed_since(signal, crossed, now)),
            });
        }
        views
    }

    pub(super) fn evicted(&self, step: &PressureStep, now: Now) -> Vec<EvictedView> {
        let evictions = self.relief.evictions();
        let away = evictions.records().filter(|record| record.back.is_none());
        away.filter_map(|record| {
            let (key, at, message) = (record.key.clone(), record.at, record.hold.message.clone());
            if record.for_good {
                let waits_for = "does not run again; it is listed until it is deleted".to_owned();
                return Some(EvictedView { key, at, message, back_at: None, waits_for });
            }
            let waiting = evictions.waiting(&record.key, &step.conditions, step.known, now)?;
            Some(EvictedView {
                key,
                at,
                message,
                back_at: now.wall.checked_add(waiting.pause).ok(),
                waits_for: waits_for(&waiting),
            })
        })
        .collect()
    }

    pub(super) fn trouble(&self, step: &PressureStep) -> Vec<String> {
        let problems = step.problems.iter().map(|(signal, problem)| {
            if let ReadingProblem::TooSmall(reading) = problem {
                let capacity = shown(*signal, reading.capacity);
                return format!(
                    "a threshold of {signal} has no effect: it is not below the capacity, {capacity}"
                );
            }
            match self.readings.sample.missing.get(signal) {
                Some(why) => format!("{signal} is not watched: {why}"),
                None => format!("{signal} is not watched: it {problem}"),
            }
        });
        // A pod without limits of its own is measured only then.
        let short = step.met.iter().any(|met| met.threshold.signal.condition() == Pressure::Disk);
        let suspects = short.then(|| self.history.suspects());
        problems.chain(self.outside.messages()).chain(suspects.into_iter().flatten()).collect()
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
        // Rounded up to ten seconds, so that the view does not change every second.
        let seconds = waiting.pause.as_secs().div_ceil(10) * 10;
        let pause = format_duration(Duration::from_secs(seconds));
        parts.push(format!("its back-off is over (about {pause} more)"));
    }
    format!("comes back when {}", parts.join(" and "))
}

/// True when two views differ by less than a reader would notice: an available amount counts as
/// changed from a hundredth of the capacity on.
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
