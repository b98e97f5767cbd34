//! The power goes in the middle of a churn of manifests, again and again, on a machine that syncs
//! nothing by itself.
//!
//! What the manifests' directory holds afterwards is the truth: whatever was lost of it is lost
//! like anything that was not synced. What the agent, containerd and the kernel have must agree
//! with it.

use crate::{
    disk::state_files_are_whole,
    machine::SOON,
    node::{MANIFESTS, Node, Options, Status},
    support::{manifest::Pod, pause, random::Random},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// Names that come and go.
const NAMES: [&str; 4] = ["ant", "bee", "cat", "dog"];
const VARIABLE: &str = "VERSION";

/// `NODELET_POWER_CUTS` (2) losses of power.
pub fn power_losses_in_a_churn() {
    let cuts = std::env::var_os("NODELET_POWER_CUTS");
    let cuts = cuts.and_then(|text| text.to_str()?.parse().ok());
    let mut random = Random::from_environment();
    let node = Node::start(&Options::default());
    node.drop_pods(&[pod("ant", 0), pod("bee", 0)]);
    node.wait_running(&["ant", "bee"]);
    node.sh("sync");
    for cut in 0..cuts.unwrap_or(2) {
        churn(&node, &mut random);
        // At any moment of two steps of the churn, and of what the agent does about them.
        let moment = Duration::from_millis(u64::try_from(500 + random.below(12_000)).unwrap());
        pause(moment);
        node.cut_power();
        node.note(&format!("cut {cut}: the power goes {moment:?} into the churn"));
        node.power_on();
        node.wait_for_runtime();
        all_agree(&node);
        node.note(&format!("cut {cut}: all agree"));
    }
    node.finish();
}

fn pod(name: &str, version: usize) -> Pod {
    Pod::running(name).env(VARIABLE, &version.to_string())
}

/// Starts a script that adds, edits and removes manifests until the power goes; some of it is
/// synced, some is not.
fn churn(node: &Node, random: &mut Random) {
    let mut script = format!("cd {MANIFESTS}\n");
    for step in 1..20 {
        let (name, sync) = (random.pick(&NAMES), random.below(2) == 0);
        match random.below(3) {
            0 => script.push_str(&format!("rm -f {name}.yaml\n")),
            _ => {
                let text = pod(name, step).text();
                script.push_str(&format!("cat >.{name} <<'END'\n{text}\nEND\n"));
                script.push_str(&format!("mv .{name} {name}.yaml\n"));
            }
        }
        script.push_str(if sync { "sync\nsleep 2\n" } else { "sleep 1\n" });
    }
    node.sh(&format!(
        "cat >/run/churn <<'END-OF-CHURN'\n{script}\nEND-OF-CHURN\nsystemd-run --quiet bash /run/churn"
    ));
}

/// What the directory holds of a pod.
#[derive(Debug, PartialEq)]
enum Written {
    /// A manifest with this version.
    Whole(String),
    /// A file without content: its name was synced, and what it holds was not, when the power went.
    /// That is a manifest which has become invalid: the pod of its last good revision runs on,
    /// where one was ever accepted.
    Empty,
}

/// Waits until exactly what is written runs, once, and looks at what lies on the disk.
fn all_agree(node: &Node) {
    let written = written(node);
    let agree = |status: &Status| {
        let mut wished = 0;
        let as_written = written.iter().all(|(name, state)| {
            let right = match (state, last_good(status, name)) {
                (Written::Whole(wanted), _) => version(status, name).as_ref() == Some(wanted),
                (Written::Empty, Some(true)) => true,
                (Written::Empty, Some(false)) => return status.pod(name).is_none(),
                (Written::Empty, None) => return false,
            };
            wished += 1;
            right && status.runs(name)
        });
        as_written && status.pods.len() == wished
    };
    let what = format!("what is written runs: {written:?}");
    let status = node.wait_for(SOON * 2, &what, agree);
    assert_eq!(status.node["warnings"], json!([]), "{status:?}");
    let versions: BTreeMap<&String, String> =
        written.keys().filter_map(|name| Some((name, version(&status, name)?))).collect();
    let (running, sandboxes) = (node.running(), node.ready_sandboxes());
    let names: Vec<String> = versions.keys().map(|name| format!("{name}/main")).collect();
    assert_eq!(running.keys().cloned().collect::<Vec<_>>(), names, "one container for each");
    assert_eq!(sandboxes.len(), versions.len(), "one sandbox for each: {sandboxes:?}");
    for (name, version) in &versions {
        let pid = node.cri.container_pid(&running[&format!("{name}/main")].id);
        let environment = node.sh(&format!("tr '\\0' '\\n' </proc/{pid}/environ"));
        assert!(environment.contains(&format!("{VARIABLE}={version}\n")), "{name}: {environment}");
    }
    state_files_are_whole(node);
}

/// The version of a pod that is there.
fn version(status: &Status, name: &str) -> Option<String> {
    let spec = status.pod(name)?.spec.as_ref()?;
    spec.containers[0].env.as_ref()?[0].value.clone()
}

/// Whether the agent keeps an earlier revision of a file that it rejects; `None` for one that it
/// has not looked at or accepts.
fn last_good(status: &Status, name: &str) -> Option<bool> {
    let sources = status.node["sources"].as_array()?;
    let mut files = sources.iter().filter_map(|source| source["files"].as_array()).flatten();
    let file = files.find(|file| file["location"] == format!("{MANIFESTS}/{name}.yaml"))?;
    file["verdicts"][0]["lastGood"].as_bool()
}

/// Every file of the directory.
fn written(node: &Node) -> BTreeMap<String, Written> {
    let list = format!(
        "cd {MANIFESTS}; for f in *.yaml; do [ ! -e $f ] || {{ echo \"== ${{f%.yaml}}\"; cat $f; }}; done"
    );
    let text = node.sh(&list);
    let entry = |file: &str| {
        let (name, content) = file.split_once('\n').unwrap();
        if content.is_empty() {
            return (name.to_owned(), Written::Empty);
        }
        let manifest: Value = serde_json::from_str(content).unwrap();
        let version = manifest["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap();
        (name.to_owned(), Written::Whole(version.to_owned()))
    };
    text.split("== ").skip(1).map(entry).collect()
}
