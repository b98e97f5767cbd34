//! What may run short: each signal beside its thresholds, who was evicted, what was done.

use super::text::{self, Page};
use crate::{
    model::{NodeConditions, PressureView, ReliefView, SignalView},
    presentation::shown,
};
use jiff::Timestamp;

const INDENT: usize = 2;
/// Steps that are shown; `-o json` has all that are remembered.
const STEPS: usize = 5;

pub(super) fn render(
    page: &mut Page,
    conditions: &NodeConditions,
    view: &PressureView,
    now: Timestamp,
) {
    if *view == PressureView::default() {
        return;
    }
    page.line("");
    let holding = conditions.pressure.iter().filter(|(_, state)| state.holds);
    let holding: Vec<String> = holding
        .map(|(pressure, state)| format!("{pressure} for {}", text::age_at(state.since, now)))
        .collect();
    page.line(&match holding.is_empty() {
        true => "Pressure: none".to_owned(),
        false => format!("Pressure: {}", holding.join(", ")),
    });
    let rows: Vec<Vec<String>> = view.signals.iter().map(|signal| row(signal, now)).collect();
    page.block(INDENT, &text::table(&rows));
    for evicted in &view.evicted {
        let ago = text::age_at(evicted.at, now);
        page.block(
            INDENT,
            &format!("{} evicted {ago} ago: {}", evicted.key, text::one_line(&evicted.message)),
        );
        page.block(INDENT + 4, &text::one_line(&evicted.waits_for));
    }
    let skipped = view.steps.len().saturating_sub(STEPS);
    for step in view.steps.iter().skip(skipped) {
        page.block(INDENT, &relief(step, now));
    }
    for trouble in &view.trouble {
        page.block(INDENT, &text::one_line(trouble));
    }
}

/// `memory.available   1.2 GiB of 2.0 GiB   threshold 100Mi   ok for 3m`
fn row(signal: &SignalView, now: Timestamp) -> Vec<String> {
    let amount = match (signal.available, signal.capacity) {
        (Some(available), Some(capacity)) => {
            format!("{} of {}", shown(signal.signal, available), shown(signal.signal, capacity))
        }
        (_, _) => "not readable".to_owned(),
    };
    let thresholds = match signal.thresholds.is_empty() {
        true => "no threshold".to_owned(),
        false => format!("threshold {}", signal.thresholds.join(", ")),
    };
    let since =
        signal.since.map(|at| format!(" for {}", text::age_at(at, now))).unwrap_or_default();
    let state = match (signal.available, signal.crossed) {
        (None, _) => "unknown".to_owned(),
        (Some(_), true) => format!("CROSSED{since}"),
        (Some(_), false) => format!("ok{since}"),
    };
    vec![signal.signal.name().to_owned(), amount, thresholds, state]
}

fn relief(step: &ReliefView, now: Timestamp) -> String {
    let amount = |amount: Option<u64>| match amount {
        Some(amount) => shown(step.signal, amount),
        None => "unknown".to_owned(),
    };
    let ago = text::age_at(step.at, now);
    let expected = match step.expected {
        Some(expected) => format!(", expected {}", shown(step.signal, expected)),
        None => String::new(),
    };
    let what = text::one_line(&step.what);
    format!("{ago} ago, {}: {what}; freed {}{expected}", step.signal, amount(step.freed))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::{ConditionState, EvictedView, Pressure, Signal};

    #[test]
    fn a_person_sees_what_is_short_since_when_and_who_went() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let before: Timestamp = "2026-11-21T11:59:30Z".parse().unwrap();
        let signal = |signal, available, crossed| SignalView {
            signal,
            available,
            capacity: available.map(|_| 1 << 31),
            thresholds: vec!["100Mi".to_owned()],
            marks: vec![100 << 20],
            crossed,
            since: Some(before),
        };
        let view = PressureView {
            signals: vec![
                signal(Signal::MemoryAvailable, Some(94 << 20), true),
                signal(Signal::NodefsAvailable, Some(1 << 30), false),
                signal(Signal::ImagefsAvailable, None, false),
            ],
            evicted: vec![EvictedView {
                key: crate::model::PodKey::new("default", "hog-n1"),
                at: before,
                message: "The node was low on resource: memory. ".to_owned(),
                back_at: None,
                waits_for: "comes back when MemoryPressure is over".to_owned(),
            }],
            steps: vec![ReliefView {
                at: before,
                signal: Signal::MemoryAvailable,
                what: "evicted default/hog-n1".to_owned(),
                freed: Some(300 << 20),
                expected: Some(310 << 20),
            }],
            trouble: vec!["imagefs.available: hung".to_owned()],
        };
        let mut page = Page::default();
        let state = |holds| ConditionState { holds, since: before };
        let pressure = [(Pressure::Memory, state(true)), (Pressure::Disk, state(false))];
        let conditions = NodeConditions { pressure: pressure.into(), ..NodeConditions::default() };
        render(&mut page, &conditions, &view, now);
        let expected = "
Pressure: MemoryPressure for 30s
  memory.available    94.0 MiB of 2.0 GiB   threshold 100Mi   CROSSED for 30s
  nodefs.available    1.0 GiB of 2.0 GiB    threshold 100Mi   ok for 30s
  imagefs.available   not readable          threshold 100Mi   unknown
  default/hog-n1 evicted 30s ago: The node was low on resource: memory.
      comes back when MemoryPressure is over
  30s ago, memory.available: evicted default/hog-n1; freed 300.0 MiB, expected 310.0 MiB
  imagefs.available: hung
";
        assert_eq!(page.into_text(), expected);
    }
}
