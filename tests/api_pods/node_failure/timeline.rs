//! What changed in a cluster, and when, as data: the lines of a table that shows two agents beside
//! each other. Nothing here looks at a clock or at a cluster.
//!
//! A timeline is divided by marks (the fault, its end). Every moment is counted from the last mark.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

/// The state of everything that is observed, in words, by its name: `pod web` is `Ready`.
pub type Facts = BTreeMap<String, String>;

/// Something that took on a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What: `pod web`.
    pub subject: String,
    /// What it became: `not Ready`.
    pub state: String,
    /// How long after the mark.
    pub after: Duration,
}

/// A mark, and what changed between it and the next one.
#[derive(Clone, Debug)]
struct Phase {
    mark: String,
    /// Since the beginning of the timeline.
    at: Duration,
    moments: Vec<Moment>,
}

/// Changes of the facts in the order in which they were seen.
#[derive(Clone, Debug)]
pub struct Timeline {
    facts: Facts,
    phases: Vec<Phase>,
}

impl Timeline {
    /// One that begins at a mark, when everything is as in `facts`.
    pub fn begin(mark: &str, facts: Facts) -> Self {
        let first = Phase { mark: mark.to_owned(), at: Duration::ZERO, moments: Vec::new() };
        Self { facts, phases: vec![first] }
    }

    /// Sets a mark. Times are since the beginning.
    pub fn mark(&mut self, mark: &str, at: Duration) {
        self.phases.push(Phase { mark: mark.to_owned(), at, moments: Vec::new() });
    }

    /// Notes every fact that has changed. What `facts` does not have is as it was. Times are since
    /// the beginning.
    pub fn note(&mut self, facts: Facts, at: Duration) {
        let phase = self.phases.last_mut().expect("it begins with a mark");
        for (subject, state) in &facts {
            if self.facts.get(subject) != Some(state) {
                phase.moments.push(Moment {
                    subject: subject.clone(),
                    state: state.clone(),
                    after: at.saturating_sub(phase.at),
                });
            }
        }
        self.facts.extend(facts);
    }

    /// Has everything that is noted next count as a change.
    pub fn forget(&mut self) {
        self.facts.clear();
    }

    /// The number of marks.
    pub fn phases(&self) -> usize {
        self.phases.len()
    }

    /// The state of something as last noted; empty for what was never seen.
    pub fn state(&self, subject: &str) -> &str {
        self.facts.get(subject).map_or("", String::as_str)
    }

    /// Whether something has ever changed to a state.
    pub fn has_seen(&self, subject: &str, state: &str) -> bool {
        let mut moments = self.phases.iter().flat_map(|phase| &phase.moments);
        moments.any(|moment| moment.subject == subject && moment.state == state)
    }

    /// How long after the last mark something changed to a state for the last time.
    pub fn since_last_mark(&self, subject: &str, state: &str) -> Option<Duration> {
        let mut moments = self.phases.last()?.moments.iter().rev();
        let found = moments.find(|moment| moment.subject == subject && moment.state == state);
        found.map(|moment| moment.after)
    }

    /// Where something came to its last state between two marks more than `slack` later in this
    /// timeline than in the other one, from the mark with the number `first` on.
    pub fn slower_than(&self, other: &Self, first: usize, slack: Duration) -> Vec<String> {
        let phases = self.phases.iter().zip(&other.phases).skip(first);
        phases.flat_map(|(ours, theirs)| ours.slower_than(theirs, slack)).collect()
    }
}

impl Phase {
    /// The last state of everything that changed.
    fn last(&self) -> BTreeMap<&str, (&str, Duration)> {
        let moments = self.moments.iter();
        moments.map(|one| (one.subject.as_str(), (one.state.as_str(), one.after))).collect()
    }

    fn slower_than(&self, other: &Self, slack: Duration) -> Vec<String> {
        let others = other.last();
        let late = self.last().into_iter().filter_map(|(subject, (state, ours))| {
            // A replacement may be Ready on another node.
            let kind = |state: &str| state.split(' ').next().map(str::to_owned);
            let theirs = match others.get(subject) {
                Some((other_state, _)) if kind(other_state) != kind(state) => return None,
                Some((_, theirs)) => *theirs,
                // What has not changed there took no time there.
                None => Duration::ZERO,
            };
            (ours > theirs + slack).then(|| {
                let (ours, theirs) = (seconds(Some(ours)), seconds(Some(theirs)));
                format!("{subject} {state}: {ours}, and {theirs} in the other one")
            })
        });
        late.collect()
    }
}

/// A line of the table: each state that a subject takes on between two marks, by how often it had
/// taken it on before.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Line<'a> {
    subject: &'a str,
    state: &'a str,
    repetition: usize,
}

/// The times of a phase.
fn lines(phase: &Phase) -> BTreeMap<Line<'_>, Duration> {
    let mut lines = BTreeMap::new();
    for Moment { subject, state, after } in &phase.moments {
        let mut line = Line { subject, state, repetition: 0 };
        while lines.contains_key(&line) {
            line.repetition += 1;
        }
        lines.insert(line, *after);
    }
    lines
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
}

/// A table of timelines with the same marks, each under its name. The lines between two marks are
/// in the order in which the first of the timelines came to them.
pub fn side_by_side(timelines: &[(&str, &Timeline)]) -> String {
    let mut text = String::new();
    let mut row = |first: &str, cells: &mut dyn Iterator<Item = String>| {
        write!(text, "{first:44}").expect("writing to a String");
        cells.for_each(|cell| write!(text, "{cell:>12}").expect("writing to a String"));
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    row("", &mut timelines.iter().map(|(name, _)| (*name).to_owned()));
    let phases = timelines.iter().map(|(_, timeline)| timeline.phases.len()).max().unwrap_or(0);
    for index in 0..phases {
        let phases: Vec<Option<&Phase>> =
            timelines.iter().map(|(_, timeline)| timeline.phases.get(index)).collect();
        let mark = phases.iter().flatten().next().map_or("", |phase| phase.mark.as_str());
        row(mark, &mut phases.iter().map(|phase| seconds(phase.map(|phase| phase.at))));
        let columns: Vec<BTreeMap<Line<'_>, Duration>> =
            phases.iter().map(|phase| phase.map(lines).unwrap_or_default()).collect();
        let earliest =
            |line: &Line<'_>| columns.iter().filter_map(|of| of.get(line)).min().copied();
        let mut all: Vec<&Line<'_>> = columns.iter().flat_map(BTreeMap::keys).collect();
        all.sort();
        all.dedup();
        all.sort_by_key(|line| earliest(line));
        for line in all {
            let label = format!("  {} {}", line.subject, line.state);
            let mut cells = columns.iter().map(|of| {
                let time = of.get(line).copied();
                time.map_or("-".to_owned(), |time| format!("+{}", seconds(Some(time))))
            });
            row(&label, &mut cells);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> Facts {
        pairs.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A node that is marked after a minute, and is Ready so long after the fault is over.
    fn outage(ready_after: u64) -> Timeline {
        let well = facts(&[("node", "Ready"), ("pod web", "Ready")]);
        let mut timeline = Timeline::begin("stopped", well.clone());
        timeline.note(well.clone(), at(30));
        timeline.note(facts(&[("node", "Unknown"), ("pod web", "Ready")]), at(50));
        timeline.note(facts(&[("node", "Unknown"), ("pod web", "not Ready")]), at(51));
        timeline.mark("started", at(60));
        timeline.note(facts(&[("node", "Ready"), ("pod web", "not Ready")]), at(61));
        timeline.note(well, at(60 + ready_after));
        timeline
    }

    #[test]
    fn only_changes_are_noted_from_the_last_mark_on() {
        let timeline = outage(2);
        assert_eq!(timeline.state("pod web"), "Ready");
        assert!(timeline.has_seen("pod web", "not Ready"));
        assert!(!timeline.has_seen("node", "NotReady"));
        assert_eq!(timeline.since_last_mark("node", "Ready"), Some(at(1)));
        assert_eq!(timeline.since_last_mark("pod web", "Ready"), Some(at(2)));
        assert_eq!(timeline.since_last_mark("node", "Unknown"), None);
    }

    #[test]
    fn the_table_has_a_line_for_each_moment() {
        let table = side_by_side(&[("nodelet", &outage(2)), ("kubelet", &outage(9))]);
        let lines: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = [
            "nodelet kubelet",
            "stopped 0.0 s 0.0 s",
            "node Unknown +50.0 s +50.0 s",
            "pod web not Ready +51.0 s +51.0 s",
            "started 60.0 s 60.0 s",
            "node Ready +1.0 s +1.0 s",
            "pod web Ready +2.0 s +9.0 s",
        ];
        let expected: Vec<Vec<&str>> =
            expected.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines, expected, "{table}");
    }

    #[test]
    fn a_state_that_comes_back_has_a_line_for_each_time() {
        let mut flaps = outage(2);
        flaps.note(facts(&[("node", "Unknown"), ("pod web", "Ready")]), at(70));
        flaps.note(facts(&[("node", "Ready"), ("pod web", "Ready")]), at(75));
        let table = side_by_side(&[("nodelet", &flaps), ("kubelet", &outage(9))]);
        let ready: Vec<&str> = table.lines().filter(|line| line.contains("node Ready")).collect();
        assert_eq!(ready.len(), 2, "{table}");
        assert!(ready[0].contains("+1.0 s") && ready[1].ends_with('-'), "{table}");
    }

    #[test]
    fn who_is_slower_is_named() {
        let (fast, slow) = (outage(2), outage(9));
        assert_eq!(fast.slower_than(&slow, 0, at(1)), Vec::<String>::new());
        assert_eq!(slow.slower_than(&fast, 0, at(7)), Vec::<String>::new());
        let late = slow.slower_than(&fast, 1, at(6));
        assert_eq!(late, ["pod web Ready: 9.0 s, and 2.0 s in the other one"]);
    }

    #[test]
    fn phases_are_compared_from_the_first_that_counts() {
        let well = facts(&[("node", "Ready")]);
        let mut noticed = Timeline::begin("hangs", well.clone());
        noticed.note(facts(&[("node", "not Ready")]), at(30));
        noticed.mark("goes on", at(40));
        let mut unnoticed = Timeline::begin("hangs", well);
        unnoticed.mark("goes on", at(40));
        // What has not changed in the other one took no time there.
        let late = noticed.slower_than(&unnoticed, 0, at(5));
        assert_eq!(late, ["node not Ready: 30.0 s, and 0.0 s in the other one"]);
        assert_eq!(noticed.slower_than(&unnoticed, 1, at(5)), Vec::<String>::new());
    }
}
