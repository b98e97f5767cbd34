//! examples/monitoring: promtool accepts it, and it names only series that the agent has.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use support::{program, skips::skip_without};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/monitoring").join(name)
}

#[test]
fn promtool_accepts_the_configuration_and_the_rules() {
    let promtool = program("promtool");
    if skip_without(&[(promtool.is_some(), "promtool (scripts/prerequisites test)")]) {
        return;
    }
    // The files that it names.
    let dir = tempfile::tempdir().unwrap();
    for name in ["prometheus.yml", "rules.yml"] {
        fs::copy(example(name), dir.path().join(name)).unwrap();
    }
    for name in ["token", "node-ca.crt"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    for check in [["check", "config", "prometheus.yml"], ["check", "rules", "rules.yml"]] {
        let mut command = Command::new(promtool.as_ref().unwrap());
        let output = command.args(check).current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{check:?}: {output:?}");
    }
}

/// The names of series on the page that describes them, which a test of the agent compares with a
/// scrape.
fn described() -> BTreeSet<String> {
    let page = include_str!("../docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let mut names = BTreeSet::new();
    for (name, rest) in rows {
        if rest.starts_with("histogram") {
            names.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
        }
        names.insert(name.to_owned());
    }
    names
}

/// The words of an expression that are names of series.
fn named(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let prefixes = ["container_", "kubelet_", "nodelet_", "machine_", "prober_", "process_"];
    words.filter(move |word| prefixes.iter().any(|prefix| word.starts_with(prefix)))
}

#[track_caller]
fn check(expressions: &[String]) {
    assert!(expressions.len() >= 10, "{expressions:?}");
    let described = described();
    let unknown: Vec<&str> = expressions
        .iter()
        .flat_map(|expression| named(expression))
        // It is a label of some.
        .filter(|name| *name != "container_type" && !described.contains(*name))
        .collect();
    assert!(unknown.is_empty(), "docs/metrics.md does not have {unknown:?}");
}

#[test]
fn the_dashboard_shows_series_that_there_are() {
    let text = fs::read_to_string(example("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions: Vec<String> =
        targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    check(&expressions);
}

#[test]
fn the_alerts_are_about_series_that_there_are() {
    let text = fs::read_to_string(example("rules.yml")).unwrap();
    let lines = text.lines().filter(|line| !line.contains("summary:"));
    check(&lines.map(str::to_owned).collect::<Vec<_>>());
}
