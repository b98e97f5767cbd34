//! The power goes in the middle of a churn of manifests, again and again, on a machine that syncs nothing by itself.
//!
//! What the manifests' directory holds afterwards is the truth: whatever was lost of it is lost like anything that
//! was not synced. What the agent, containerd and the kernel have must agree with it.

use crate::{
    machine::SOON,
    node::{MANIFESTS, Node, Options},
    support::{manifest::Pod, pause, random::Random},
};
use serde_json::Value;
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

/// Starts a script that adds, edits and removes manifests until the power goes; some of it is synced, some is not.
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

/// Waits until exactly what is written runs, once, and looks at what lies on the disk.
fn all_agree(node: &Node) {
    let wished = wished(node);
    let agree = |status: &crate::node::Status| {
        status.pods.len() == wished.len()
            && wished.iter().all(|(name, version)| {
                let spec = status.pod(name).and_then(|pod| pod.spec.as_ref());
                let variables = spec.and_then(|spec| spec.containers[0].env.as_ref());
                let runs = variables.and_then(|list| list[0].value.as_ref()) == Some(version);
                runs && status.runs(name)
            })
    };
    let what = format!("what is written runs: {wished:?}");
    let status = node.wait_for(SOON * 2, &what, agree);
    assert_eq!(status.node["warnings"], serde_json::json!([]), "{status:?}");
    let (running, sandboxes) = (node.running(), node.ready_sandboxes());
    let names: Vec<String> = wished.keys().map(|name| format!("{name}/main")).collect();
    assert_eq!(running.keys().cloned().collect::<Vec<_>>(), names, "one container for each");
    assert_eq!(sandboxes.len(), wished.len(), "one sandbox for each: {sandboxes:?}");
    for (name, version) in &wished {
        let pid = node.cri.container_pid(&running[&format!("{name}/main")].id);
        let environment = node.sh(&format!("tr '\\0' '\\n' </proc/{pid}/environ"));
        assert!(environment.contains(&format!("{VARIABLE}={version}\n")), "{name}: {environment}");
    }
    let listing = node.sh("find /var/lib/nodelet/nodelet -type f");
    assert!(!listing.contains(".damaged"), "{listing}");
    for file in listing.lines().filter(|file| file.ends_with(".json")) {
        let text = node.sh(&format!("cat {file}"));
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{file} is torn: {text:?}");
    }
}

/// The version of every pod that is written, read from the directory.
fn wished(node: &Node) -> BTreeMap<String, String> {
    let text = node.sh(&format!("cd {MANIFESTS}; for f in *.yaml; do [ ! -e $f ] || cat $f; done"));
    let manifests = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let entry = |manifest: Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let version = text(&manifest["spec"]["containers"][0]["env"][0]["value"]);
        (text(&manifest["metadata"]["name"]), version)
    };
    manifests.map(|manifest| entry(manifest.unwrap())).collect()
}
