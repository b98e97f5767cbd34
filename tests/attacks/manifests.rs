//! Small manifests that multiply into much work, memory or output.

use crate::{
    prepared,
    support::{
        agent::Agent,
        images::BUSYBOX,
        manifest::{FOREVER, Pod},
        status::{Status, phase},
        world::World,
    },
    watchdog::Watchdog,
    world,
};
use nodelet::model::FileVerdict;
use serde_json::{Value, json};
use std::{fmt::Write as _, fs, path::Path, time::Duration};

/// Most lines that the agent may log about one attack at verbosity 3, whatever it reads.
const MOST_LOG_LINES: usize = 5_000;
/// Largest status document without the pods that the manifests ask for, in bytes.
const LARGEST_STATUS: usize = 2 << 20;
/// For attacks that need several looks at a directory on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

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
        FileVerdict::Accepted { warnings, .. } | FileVerdict::Object { warnings, .. } => {
            warnings.clone()
        }
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
    // Not `finish`, which holds the agent to what an idle one uses: the allocator keeps what
    // decoding has taken.
    world.remove_all();
}

#[test]
fn list_with_more_items_than_a_node_has_pods() {
    let Some(world) = world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let items = ["{a: 1}"; 501].join(", ");
    world.write("list.yaml", &format!("apiVersion: v1\nkind: PodList\nitems: [{items}]\n"));
    world.wait("the list is rejected", |status| status.rejected("list.yaml"));
    let said = said(&world, "list.yaml");
    assert!(said.contains("items: Too many: 501: must have at most 500 items"), "{said}");
    // Several files together.
    let items = ["{a: 1}"; 300].join(", ");
    for name in ["one", "two"] {
        let text = format!("apiVersion: v1\nkind: PodList\nitems: [{items}]\n");
        world.write(&format!("{name}.yaml"), &text);
    }
    // A file that is being written has one verdict too.
    world.wait("the first is read and the second has no room", |status| {
        let counts = ["one.yaml", "two.yaml"].map(|file| status.verdicts(file).len());
        counts == [300, 1] && status.rejected("two.yaml")
    });
    for name in ["list", "one", "two"] {
        world.remove(&format!("{name}.yaml"));
    }
    let items: String = (0..200)
        .map(|n| format!("{{metadata: {{name: p{n}}}, spec: {{nodeSelector: {{no: such}}, containers: [{{name: c, image: i}}]}}}}, "))
        .collect();
    world.write("pods.yaml", &format!("apiVersion: v1\nkind: PodList\nitems: [{items}]\n"));
    world.wait_for(PATIENCE, "every pod is refused", |status| {
        status.pods.iter().filter(|pod| phase(pod) == "Failed").count() == 200
    });
    check_output_is_bounded(&world);
    dog.finish(&world);
    world.finish();
}

#[test]
fn pods_with_thousands_of_containers_volumes_and_variables() {
    let Some(world) = world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let list = |item: &str, count: usize| {
        (0..count).fold(String::new(), |mut text, n| {
            write!(text, "{{name: n{n}, {item}}}, ").unwrap();
            text
        })
    };
    for (name, spec) in [
        ("containers", format!("containers: [{}]", list("image: i", 9_000))),
        (
            "volumes",
            format!("containers: [{{name: c, image: i}}], volumes: [{}]", list("", 15_000)),
        ),
        ("env", format!("containers: [{{name: c, image: i, env: [{}]}}]", list("", 16_000))),
        ("nested", format!("containers: {}{}", "[".repeat(60), "]".repeat(60))),
        (
            "unknown",
            format!("containers: [{{{}}}]", list("", 1).replace("n0", &"x".repeat(1 << 20))),
        ),
    ] {
        let text =
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n");
        world.write(&format!("{name}.yaml"), &text);
    }
    for file in ["containers.yaml", "volumes.yaml", "nested.yaml", "unknown.yaml"] {
        world.wait("it is rejected", |status| status.rejected(file));
    }
    let said = said(&world, "volumes.yaml");
    assert!(said.contains("spec.volumes: Too many: 15000: must have at most 250 items"), "{said}");
    check_output_is_bounded(&world);
    dog.finish(&world);
    // Not `finish`, which holds the agent to what an idle one uses: the allocator keeps what
    // decoding has taken.
    world.remove_all();
}

#[test]
fn hundred_manifests_of_a_megabyte() {
    let Some(world) = world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let large = |number: u32| {
        // 255 KiB of annotations are allowed; the rest is in variables.
        let variables: Vec<Value> = (0..7)
            .map(|n| json!({ "name": format!("V{n}"), "value": "v".repeat(100 << 10) }))
            .collect();
        // The pods are refused: no image is pulled and no container is started.
        Pod::running(&format!("large{number:02}"))
            .meta("annotations", json!({ "big": "a".repeat(255 << 10) }))
            .set("containers/0/env", variables)
            .set("nodeSelector", json!({ "no": "such-label" }))
    };
    for number in 0..100 {
        world.drop_pod(&large(number));
    }
    world.wait_for(PATIENCE, "the last has no room", |_| {
        said(&world, "large99.yaml").contains("the directory has more than")
    });
    let lines = log_lines(&world.agent);
    assert!(lines < MOST_LOG_LINES, "{lines} lines in the log");
    // The status is long, complete and made while the agent does its other work.
    let refused = |status: &Status| status.pods.iter().filter(|p| phase(p) == "Failed").count();
    world.wait_for(PATIENCE, "the first are refused", |status| refused(status) >= 3);
    world.drop_pod(&Pod::running("another"));
    world.wait_for(PATIENCE, "another pod runs", |status| status.runs("another"));
    // Where some go, the others have room.
    for number in 0..99 {
        world.remove(&format!("large{number:02}.yaml"));
    }
    world.wait_for(PATIENCE, "the last is read", |status| !status.rejected("large99.yaml"));
    dog.finish(&world);
    // Not `finish`, which holds the agent to what an idle one uses: the allocator keeps what
    // decoding has taken.
    world.remove_all();
}

#[test]
fn twenty_thousand_files_in_the_manifest_directory() {
    let Some(world) = world(|settings| settings) else { return };
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let dog = Watchdog::start(&world);
    for number in 0..20_000 {
        let text = format!("kind: Pod\nmetadata: {{name: p{number}}}\n");
        fs::write(world.manifest_path(&format!("{number}.yaml")), text).unwrap();
    }
    world.remove("web.yaml");
    let overfull =
        |error: Option<&String>| error.is_some_and(|e| e.contains("more than 1000 entries"));
    world.wait_for(PATIENCE, "it is said", |status| {
        status.node.sources.iter().any(|source| overfull(source.error.as_ref()))
    });
    // Nothing is removed because of it, until the directory can be read again.
    assert!(world.agent.status().unwrap().runs("web"));
    check_output_is_bounded(&world);
    for number in 0..20_000 {
        fs::remove_file(world.manifest_path(&format!("{number}.yaml"))).unwrap();
    }
    world.wait_gone("web");
    dog.finish(&world);
    world.finish();
}

#[test]
fn names_too_long_for_a_log_directory() {
    let Some(world) = world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let label = "p".repeat(59);
    let (namespace, name) = ("n".repeat(63), [&*label; 4].join("."));
    world.write(
        "long.yaml",
        &Pod::running(&name).meta("namespace", &*namespace).meta("labels", json!({})).text(),
    );
    world.wait("the pod is rejected", |status| status.rejected("long.yaml"));
    let said = said(&world, "long.yaml");
    assert!(said.contains("metadata.name: Invalid value"), "{said}");
    assert!(
        said.contains("log directory") && said.contains("shorten the name by 87 bytes"),
        "{said}"
    );
    // The longest name that has room runs, and goes.
    let longest = &name[..name.len() - 87];
    let pod = Pod::running(longest).meta("namespace", &*namespace).meta("labels", json!({}));
    world.write("long.yaml", &pod.text());
    let runs = |name: &str| !world.running_ids(name).is_empty();
    world.wait_until("the longest name runs", || runs(longest), |runs| *runs);
    dog.finish(&world);
    world.finish();
}

#[test]
fn escape_sequences_in_names_and_keys() {
    let Some(world) = world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let forged = "2026-01-31T15:04:05.000Z ERROR forged";
    let name = "\\e[31mred\\e[0m";
    world.write(
        "red.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"{name}\"\n  annotations:\n    \"a\\n{forged}\\u202e\": x\n\
             spec: {{containers: [{{name: c, image: {BUSYBOX}}}]}}\n"
        ),
    );
    let file = format!("name\n{forged}\u{1b}[2J.yaml");
    fs::write(world.manifest_path(&file), "kind: Pod\n").unwrap();
    world.drop_pod(
        &Pod::with_main("dies", "printf 'a\\033[31mb\\rc\\n' > /dev/termination-log; exit 1")
            .set("restartPolicy", "Never"),
    );
    world.wait("all is known", |status| {
        status.rejected("red.yaml") && status.rejected(&file) && status.phase("dies") == "Failed"
    });
    let path = |file: &str| world.manifest_path(file).display().to_string();
    let run = |arguments: &[&str]| {
        let output = world.agent.cli(arguments);
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat()
    };
    let check = std::process::Command::new(env!("CARGO_BIN_EXE_nodelet"))
        .args(["check", &path("red.yaml"), &path(&file)])
        .output()
        .unwrap();
    let outputs = [
        ("status", run(&["status"])),
        ("status POD", run(&["status", "dies"])),
        ("status -o json", run(&["status", "-o", "json"])),
        ("status -o yaml", run(&["status", "-o", "yaml"])),
        ("forget", run(&["forget", "\u{1b}[31mred\u{1b}[0m"])),
        ("check", String::from_utf8(check.stdout).unwrap()),
        ("log", world.agent.log()),
    ];
    for (what, output) in outputs {
        let steers = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!output.contains(steers), "{what}: {output:?}");
        assert!(!output.lines().any(|line| line.starts_with(forged)), "{what}: {output}");
    }
    dog.finish(&world);
    world.finish();
}
