//! Where, when and with what a run was made.

use crate::{measure::Plan, upstream};
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command};

/// All of it.
pub fn gather(plan: &Plan, floor_at_a_time: &[(usize, f64)], kubelet: Option<&Path>) -> Value {
    let floor: Vec<Value> = floor_at_a_time
        .iter()
        .map(|(calls, seconds)| json!({ "at_a_time": calls, "seconds": seconds }))
        .collect();
    json!({
        "date": nodelet::clock::now().wall.strftime("%Y-%m-%d").to_string(),
        "machine": {
            "processor": proc_value("/proc/cpuinfo", "model name"),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "memory": proc_value("/proc/meminfo", "MemTotal"),
            "system": os_name(),
            "kernel": read("/proc/sys/kernel/osrelease"),
            "cgroup": if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "v2" } else { "v1" },
        },
        "versions": {
            "nodelet": format!("{}{}", env!("CARGO_PKG_VERSION"), commit()),
            "kubelet": kubelet.map(upstream::version),
            "containerd": first_line("containerd", &["--version"], 2),
            "runc": first_line("runc", &["--version"], 2),
        },
        "profile": if cfg!(debug_assertions) { "debug: not to be compared with anything" } else { "release" },
        "plan": {
            "rounds": plan.rounds,
            "feature_rounds": plan.feature_rounds,
            "singles": plan.singles,
            "pods": plan.pods,
            "idle_seconds": plan.idle.as_secs(),
            "idle_rounds": plan.idle_rounds,
        },
        "floor": { "at_a_time": plan.floor_at_a_time, "measured": floor },
        "load_average": read("/proc/loadavg"),
    })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn proc_value(path: &str, name: &str) -> String {
    let text = read(path);
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
}

fn os_name() -> String {
    let text = read("/etc/os-release");
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.unwrap_or_default().trim_matches('"').to_owned()
}

/// Word number `word` of the first line that a program prints.
fn first_line(program: &str, arguments: &[&str], word: usize) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().split_whitespace().nth(word).unwrap_or("?").to_owned()
}

/// ` (commit)`, where the source is a git checkout.
fn commit() -> String {
    let dir = env!("CARGO_MANIFEST_DIR");
    let output = Command::new("git").args(["-C", dir, "rev-parse", "--short", "HEAD"]).output();
    match output {
        Ok(output) if output.status.success() => {
            format!(" ({})", String::from_utf8_lossy(&output.stdout).trim())
        }
        _ => String::new(),
    }
}
