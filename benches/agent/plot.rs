//! The plot: how a full node comes up, and what an idle agent costs beside the kubelet.

use crate::{
    measure::Plan,
    results::{Figures, Row},
    stage::Candidate,
};
use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
/// The left panel's area: left, top, right, bottom.
const CURVES: [f64; 4] = [55.0, 50.0, 500.0, 330.0];
const BARS_LEFT: f64 = 590.0;
const BARS_WIDTH: f64 = 180.0;

/// Readable on light and on dark ground.
fn colour(candidate: Candidate) -> &'static str {
    match candidate {
        Candidate::Floor => "#8a8a8a",
        Candidate::Nodelet => "#d9622b",
        Candidate::Kubelet => "#3f7fd1",
    }
}

/// The whole picture.
pub fn svg(figures: &Figures, plan: &Plan) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#777\">\n"
    );
    curves(&mut out, figures, plan);
    let mut top = 50.0;
    for (title, row) in [
        (format!("{} manifests → all running", plan.pods), Row::Batch),
        ("one manifest → running".to_owned(), Row::One),
        ("container killed → restarted".to_owned(), Row::Restart),
        (format!("RSS idle, {} pods", plan.pods), Row::Rss(2)),
        (format!("CPU idle, {} pods", plan.pods), Row::Cpu(2)),
    ] {
        top = bars(&mut out, figures, row, &title, top);
    }
    out.push_str("</svg>\n");
    out
}

fn curves(out: &mut String, figures: &Figures, plan: &Plan) {
    let [left, top, right, bottom] = CURVES;
    text(
        out,
        left,
        top - 22.0,
        &format!("pods running, after {} manifests were dropped at once", plan.pods),
    );
    let all = [Candidate::Floor, Candidate::Nodelet, Candidate::Kubelet];
    let ends = all.iter().filter_map(|candidate| figures.curve(*candidate)?.last().copied());
    let longest = ends.fold(1.0, f64::max);
    let count = count(plan.pods);
    let x = |at: f64| left + (right - left) * at / longest;
    let y = |running: f64| bottom - (bottom - top) * running / count;
    writeln!(
        out,
        "<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"#999\" stroke-width=\"1\"/>"
    )
    .unwrap();
    let step = if longest > 12.0 { 5 } else { 2 };
    for second in (0..100).step_by(step).map(f64::from).take_while(|second| *second <= longest) {
        text(out, x(second) - 4.0, bottom + 16.0, &format!("{second} s"));
    }
    for part in [0.5, 1.0] {
        text(out, left - 32.0, y(part * count) + 4.0, &format!("{:.0}", part * count));
    }
    for (number, candidate) in all.into_iter().enumerate() {
        let Some(curve) = figures.curve(candidate) else { continue };
        let mut path = format!("M{:.1} {:.1}", x(0.0), y(0.0));
        for (running, at) in (1..=curve.len()).map(self::count).zip(&curve) {
            write!(path, "L{:.1} {:.1}", x(*at), y(running)).unwrap();
        }
        let colour = colour(candidate);
        writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>")
            .unwrap();
        let at = left + 20.0;
        let line = top + 14.0 + 16.0 * self::count(number);
        writeln!(
            out,
            "<text x=\"{at}\" y=\"{line}\" fill=\"{colour}\">{}</text>",
            candidate.name()
        )
        .unwrap();
    }
}

/// A bar for each candidate; gives where the next group may begin.
fn bars(out: &mut String, figures: &Figures, row: Row, title: &str, top: f64) -> f64 {
    let all = [Candidate::Floor, Candidate::Nodelet, Candidate::Kubelet];
    let values: Vec<(Candidate, f64)> =
        all.into_iter().filter_map(|c| Some((c, figures.figure(row, c)?))).collect();
    if values.is_empty() {
        return top;
    }
    let longest = values.iter().map(|(_, value)| *value).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    text(out, BARS_LEFT, top - 4.0, title);
    let mut y = top;
    for (candidate, value) in values {
        let width = BARS_WIDTH * value / longest;
        let colour = colour(candidate);
        writeln!(
            out,
            "<rect x=\"{BARS_LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"11\" fill=\"{colour}\"/>"
        )
        .unwrap();
        text(out, BARS_LEFT + width + 5.0, y + 10.0, &row.show(value));
        y += 13.0;
    }
    y + 24.0
}

fn text(out: &mut String, x: f64, y: f64, what: &str) {
    writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\">{what}</text>").unwrap();
}

fn count(pods: usize) -> f64 {
    f64::from(u32::try_from(pods).unwrap_or(u32::MAX))
}
