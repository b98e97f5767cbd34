//! What comes out: tables on the terminal; JSON, the same tables and a plot as files.

use crate::{
    measure::Plan,
    plot,
    results::{Figures, Goal, Row, SCRAPE_PERIODS, SCRAPES, Table},
    stage::Candidate,
};
use serde_json::{Value, json};
use std::{fmt::Write as _, fs, io::Write as _, path::Path};

/// Writes all of it into `dir` and the table to the terminal.
pub fn write(figures: &Figures, plan: &Plan, facts: &Value, dir: &Path) {
    let json = json!({ "facts": facts, "rows": figures.to_json() });
    fs::write(dir.join("bench.json"), serde_json::to_string_pretty(&json).unwrap()).unwrap();
    fs::write(dir.join("bench.svg"), plot::svg(figures, plan)).unwrap();
    let mut terminal = std::io::stdout().lock();
    for table in Table::ALL {
        let (path, cells) = (dir.join(table.file()), cells(figures, plan, table));
        if cells.len() == 1 {
            // That of an earlier run would be published as this one's.
            fs::remove_file(path).ok();
            continue;
        }
        let has_floor = cells[1..].iter().any(|row| !row[2].is_empty());
        let measured = circumstances(facts, table, has_floor);
        fs::write(path, format!("{}\n{measured}", markdown(&cells))).unwrap();
        writeln!(terminal, "\n{}\n{measured}", aligned(&cells)).unwrap();
    }
    writeln!(terminal, "Written into {}", dir.display()).unwrap();
}

/// A table: a head and a row of cells for everything that was measured.
fn cells(figures: &Figures, plan: &Plan, table: Table) -> Vec<[String; 6]> {
    let head = ["", "kubelet", "floor", "nodelet", "goal", ""].map(str::to_owned);
    let mut cells = vec![head];
    for row in Row::all().into_iter().filter(|row| row.table() == table) {
        let shown = |candidate| {
            figures.figure(row, candidate).map_or_else(String::new, |value| row.show(value))
        };
        let figures_of = [Candidate::Kubelet, Candidate::Floor, Candidate::Nodelet].map(shown);
        if figures_of.iter().all(String::is_empty) {
            continue;
        }
        let [kubelet, floor, nodelet] = figures_of;
        let goal = goal(figures, row);
        cells.push([row.label(plan.pods), kubelet, floor, nodelet, goal, figures.verdict(row)]);
    }
    cells
}

fn goal(figures: &Figures, row: Row) -> String {
    let bound = figures.bound(row).map(|bound| row.show(bound));
    match (row.goal(), bound) {
        (Goal::None, _) => String::new(),
        (Goal::TimesFloor(times), None) => format!("≤ {times} × floor"),
        (Goal::TimesFloor(times), Some(bound)) => format!("≤ {bound} ({times} × floor)"),
        (Goal::AboveFloor(more), None) => format!("≤ floor + {}", row.show(more)),
        (Goal::AboveFloor(more), Some(bound)) => format!("≤ {bound} (floor + {})", row.show(more)),
        (Goal::BelowKubelet, _) => "less than the kubelet".to_owned(),
        (Goal::TenthOfKubelet, _) => "a tenth of the kubelet".to_owned(),
        (Goal::AtMost(_), bound) => format!("≤ {}", bound.unwrap_or_default()),
    }
}

fn markdown(cells: &[[String; 6]]) -> String {
    let mut text = String::new();
    for (number, row) in cells.iter().enumerate() {
        writeln!(text, "| {} |", row.join(" | ")).unwrap();
        if number == 0 {
            text.push_str("|---|---|---|---|---|---|\n");
        }
    }
    text
}

fn aligned(cells: &[[String; 6]]) -> String {
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..6).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in cells {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let gap = " ".repeat(widths[column] - cell.chars().count());
            // Figures to the right, words to the left.
            let padded = if (1..4).contains(&column) { gap + cell } else { cell.clone() + &gap };
            line.push_str(&padded);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn circumstances(facts: &Value, table: Table, has_floor: bool) -> String {
    // The others are parts of the act of features.
    let is_of_agent = table == Table::Agent;
    let text = |pointer: &str| match facts.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "none".to_owned(),
        Some(other) => other.to_string(),
    };
    let floor: Vec<String> = facts["floor"]["measured"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|at| format!("{:.1} s at {}", at["seconds"].as_f64().unwrap_or(0.0), at["at_a_time"]))
        .collect();
    let floor = match floor.is_empty() {
        true => "as given by BENCH_FLOOR.".to_owned(),
        false => format!("its best: a full node took {}.", floor.join(", ")),
    };
    let rounds = if is_of_agent { "/plan/rounds" } else { "/plan/feature_rounds" };
    let rounds = match text(rounds).as_str() {
        "1" => "1 round".to_owned(),
        rounds => format!("Medians of {rounds} rounds"),
    };
    let at_a_time = text("/floor/at_a_time");
    let floor = match table {
        Table::Agent | Table::ApiPods if has_floor => {
            format!("The floor makes {at_a_time} calls at a time, {floor}\n")
        }
        Table::Agent | Table::ApiPods | Table::Features | Table::Api => String::new(),
    };
    let singles = text("/plan/singles");
    let samples = match table {
        Table::Api => String::new(),
        Table::Agent | Table::Features => {
            format!(" ({singles} pods each where one pod is measured)")
        }
        Table::ApiPods => format!(" (single pods: {singles}, Deployments of each size: {singles})"),
    };
    let idle = text("/plan/idle_seconds");
    let windows = match table {
        Table::Agent => format!("; windows of {idle} s, {} each", text("/plan/idle_rounds")),
        Table::Features => {
            let scrapes = (SCRAPE_PERIODS[0] * SCRAPES).as_secs();
            format!("; windows of {idle} s, and of {scrapes} s for scrapes every 15 s")
        }
        Table::Api => format!("; windows of {idle} s"),
        Table::ApiPods => String::new(),
    };
    format!(
        "Measured on {date} ({profile}): {processor}, {cores} cores, {memory}; {system}, Linux {kernel}, cgroup {cgroup}.\n\
         nodelet {nodelet}, kubelet {kubelet}, containerd {containerd}, runc {runc}.\n\
         {rounds}{samples}{windows}.\n{floor}",
        date = text("/date"),
        profile = text("/profile"),
        processor = text("/machine/processor"),
        cores = text("/machine/cores"),
        memory = text("/machine/memory"),
        system = text("/machine/system"),
        kernel = text("/machine/kernel"),
        cgroup = text("/machine/cgroup"),
        nodelet = text("/versions/nodelet"),
        kubelet = text("/versions/kubelet"),
        containerd = text("/versions/containerd"),
        runc = text("/versions/runc"),
    )
}
