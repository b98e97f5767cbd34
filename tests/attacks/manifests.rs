//! Small manifests that multiply into much work, memory or output.

use crate::{
    prepared,
    support::{
        agent::Agent,
        manifest::{FOREVER, Pod},
        world::World,
    },
    watchdog::Watchdog,
    world,
};
use nodelet::model::FileVerdict;
use serde_json::{Value, json};
use std::{fs, path::Path};

/// Most lines that the agent may log about one attack at verbosity 3, whatever it reads.
const MOST_LOG_LINES: usize = 5_000;
/// Largest status document without the pods that the manifests ask for, in bytes.
const LARGEST_STATUS: usize = 2 << 20;

/// 20 variables, each four times as long as the one before: 10 bytes become 2.7 TB.
fn expansion_bomb() -> Value {
    let value = |index: usize| match index {
        0 => "xxxxxxxxxx".to_owned(),
        _ => format!("$(A{})", index - 1).repeat(4),
    };
    (0..20).map(|n| json!({ "name": format!("A{n}"), "value": value(n) })).collect()
}

fn bomb_pod(name: &str) -> Pod {
    Pod::running(name).set("containers/0/env", expansion_bomb())
}

/// What the verdicts on a file say, in one text.
fn said(world: &World, file: &str) -> String {
    let status = world.agent.status().unwrap();
    let problems = status.verdicts(file).into_iter().flat_map(|verdict| match verdict {
        FileVerdict::Rejected { problems, .. } => problems.clone(),
        FileVerdict::Accepted { warnings, .. } => warnings.clone(),
        FileVerdict::Skipped { .. } => Vec::new(),
    });
    problems.map(|problem| problem.to_string()).collect::<Vec<_>>().join("\n")
}

fn log_lines(agent: &Agent) -> usize {
    agent.log().lines().count()
}

#[track_caller]
fn check_output_is_bounded(world: &World) {
    let lines = log_lines(&world.agent);
    assert!(lines < MOST_LOG_LINES, "{lines} lines in the log\n{}", world.agent.log_tail(20));
    let status = world.agent.cli(&["status"]).stdout.len();
    assert!(status < LARGEST_STATUS, "a status of {status} bytes");
}

#[test]
fn references_that_multiply_an_environment() {
    let Some(world) = prepared(|settings| settings) else { return };
    // One is there before the agent starts, one comes later.
    world.drop_pod(&bomb_pod("early"));
    world.agent.start();
    let dog = Watchdog::start(&world);
    world.drop_pod(&bomb_pod("late"));
    for file in ["early.yaml", "late.yaml"] {
        world.wait("the bomb is rejected", |status| status.rejected(file));
        let said = said(&world, file);
        assert!(said.contains("spec.containers[0].env[7].value: Too long"), "{said}");
        assert!(said.contains("131072 bytes after $(VAR) expansion"), "{said}");
        assert!(said.starts_with("line "), "{said}");
    }
    dog.finish(&world);
    world.finish();
}

/// The state files of an agent that admitted the pod of `manifest` when it had no limits.
fn forge_state(directory: &Path, containers: &Value) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            forge_state(&entry, containers);
        } else if entry.extension().is_some_and(|end| end == "json") {
            let mut content: Value = serde_json::from_slice(&fs::read(&entry).unwrap()).unwrap();
            replace_env(&mut content, containers);
            fs::write(&entry, content.to_string()).unwrap();
        }
    }
}

fn replace_env(value: &mut Value, env: &Value) {
    match value {
        Value::Object(map) => {
            if map.get("name").is_some_and(|name| name == "target") && map.contains_key("image") {
                map.insert("env".to_owned(), env.clone());
            }
            map.values_mut().for_each(|value| replace_env(value, env));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| replace_env(value, env)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn references_that_multiply_in_the_record_of_an_earlier_version() {
    let Some(world) = world(|settings| settings) else { return };
    let pod = Pod::named("old").container("target", FOREVER);
    world.drop_pod(&pod);
    world.wait_running("old");
    world.agent.kill();
    world.kill_container(&world.running_id("old", "target"));
    forge_state(&world.agent.root_dir().join("nodelet"), &expansion_bomb());
    forge_state(&world.agent.run_dir(), &expansion_bomb());
    world.write("old.yaml", &pod.set("containers/0/env", expansion_bomb()).text());
    world.agent.start();
    let dog = Watchdog::start(&world);
    world.wait("the manifest is rejected", |status| status.rejected("old.yaml"));
    assert_eq!(world.running_ids("old"), Vec::<String>::new());
    world.remove("old.yaml");
    world.wait_gone("old");
    dog.finish(&world);
    world.finish();
}

#[test]
fn lists_of_a_hundred_thousand_bad_items() {
    let Some(world) = world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let items = ["{a: 1}"; 99_000].join(", ");
    for number in 0..4 {
        let text = format!("apiVersion: v1\nkind: PodList\nitems: [{items}]\n");
        world.write(&format!("list{number}.yaml"), &text);
    }
    // Fewer items, each of them wrong in many ways.
    let fields: String = (0..50).map(|n| format!("f{n}: 1, ")).collect();
    let items = format!("{{{fields}}}, ").repeat(450);
    world.write("many.yaml", &format!("apiVersion: v1\nkind: PodList\nitems: [{items}]\n"));
    for file in ["list0.yaml", "list3.yaml", "many.yaml"] {
        world.wait("the list is rejected", |status| status.rejected(file));
    }
    let said = said(&world, "list0.yaml");
    assert!(said.contains("has more than 50000 values"), "{said}");
    check_output_is_bounded(&world);
    dog.finish(&world);
    world.finish();
}
