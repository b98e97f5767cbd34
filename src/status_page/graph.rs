//! Small graphs and bars, as SVG.

use crate::model::{UseHistory, Used};
use maud::{Markup, html};
use std::{fmt::Write as _, time::Duration};

const WIDTH: u64 = 120;
const HEIGHT: u64 = 24;
/// What the width of a graph stands for.
const SPAN: Duration = Duration::from_secs(300);
/// Width of a bar.
const BAR: u64 = 300;

/// A line of what was used, newest at the right. `least` is the smallest amount that fills the
/// height, so that noise does not look like load. Nothing is drawn until there are two samples.
pub(super) fn line(
    samples: impl Iterator<Item = (Duration, Used)>,
    amount: fn(Used) -> Option<u64>,
    least: u64,
    name: &str,
) -> Markup {
    let samples: Vec<(Duration, u64)> =
        samples.filter_map(|(ago, used)| Some((ago, amount(used)?))).collect();
    let most = samples.iter().map(|(_, amount)| *amount).max().unwrap_or_default().max(least);
    if samples.len() < 2 {
        return Markup::default();
    }
    let mut points = String::new();
    for (ago, amount) in samples {
        let x = WIDTH - scaled(ago.as_secs().min(SPAN.as_secs()), SPAN.as_secs(), WIDTH);
        let y = HEIGHT - 1 - scaled(amount, most.max(1), HEIGHT - 2);
        // Writing to a String can't fail.
        write!(points, "{x},{y} ").ok();
    }
    html! {
        svg class="graph" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(name) {
            title { (name) }
            polyline points=(points.trim_end()) {}
        }
    }
}

/// How much of something is taken, with a mark for each threshold.
pub(super) fn bar(available: u64, capacity: u64, marks: &[u64], name: &str) -> Markup {
    let at = |available: u64| BAR - scaled(available.min(capacity), capacity.max(1), BAR);
    html! {
        svg class="bar" viewBox=(format!("0 0 {BAR} 12")) role="img" aria-label=(name) {
            title { (name) }
            rect class="all" width=(BAR) height="12" rx="2" {}
            rect class="taken" width=(at(available)) height="12" rx="2" {}
            @for &mark in marks {
                rect class="mark" x=(at(mark).min(BAR - 2)) width="2" height="12" {}
            }
        }
    }
}

/// `part / of * to`, without overflow.
fn scaled(part: u64, of: u64, to: u64) -> u64 {
    let scaled = u128::from(part) * u128::from(to) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(to)
}

/// Room for every sample of a history.
const _: () = assert!(UseHistory::MOST as u64 <= WIDTH);

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(samples: &[(u64, u64)], least: u64) -> String {
        let samples = samples.iter().map(|&(ago, memory)| {
            (Duration::from_secs(ago), Used { cpu: None, memory: Some(memory) })
        });
        line(samples, |used| used.memory, least, "m").into_string()
    }

    #[test]
    fn a_line_goes_from_old_to_new() {
        assert_eq!(drawn(&[(0, 5)], 0), "");
        let drawn = drawn(&[(300, 0), (150, 50), (0, 100)], 0);
        assert!(drawn.contains(r#"points="0,23 60,12 120,1""#), "{drawn}");
    }

    #[test]
    fn little_use_stays_at_the_bottom() {
        let drawn = drawn(&[(1000, 1), (0, u64::MAX)], 0);
        assert!(drawn.contains(r#"points="0,23 120,1""#), "{drawn}");
        let drawn = super::tests::drawn(&[(5, 1), (0, 2)], 1000);
        assert!(drawn.contains(r#"points="118,23 120,23""#), "{drawn}");
    }

    #[test]
    fn a_bar_has_its_thresholds() {
        let drawn = bar(25, 100, &[10, 200], "memory").into_string();
        assert!(drawn.contains(r#"class="taken" width="225""#), "{drawn}");
        assert!(drawn.contains(r#"class="mark" x="270""#), "{drawn}");
        assert!(drawn.contains(r#"class="mark" x="0""#), "{drawn}");
        assert!(bar(1, 0, &[], "none").into_string().contains(r#"width="300""#));
    }
}
