//! What a person sees and types.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    world::{Kind, World},
};
use std::process::Output;

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn status_shows_pods_manifests_and_reasons(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.drop_pod(&Pod::with_main("crash", "exit 3"));
    let broken = Pod::running("broken").set("contaners", serde_json::json!([]));
    world.write("broken.yaml", &broken.text());
    world.wait("all is reported", |status| {
        status.runs("web")
            && status.waiting_reason("crash", "main") == "CrashLoopBackOff"
            && status.rejected("broken.yaml")
    });
    let expected =
        ["web-node1", "Running", "CrashLoopBackOff", "broken.yaml", "containers", "containerd"];
    let table = || {
        let output = world.agent.cli(&["status"]);
        assert!(output.status.success(), "{output:?}");
        printed(&output)
    };
    // The back-off comes and goes.
    let whole = |table: &String| expected.iter().all(|text| table.contains(text));
    world.wait_until("the table shows it", table, whole);
    let one = printed(&world.agent.cli(&["status", "web"]));
    for expected in ["web-node1", "main", "Started", "nodelet.test/busybox:1"] {
        assert!(one.contains(expected), "no {expected} in\n{one}");
    }
    let json = printed(&world.agent.cli(&["status", "-o", "json"]));
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    let items = list["items"].as_array().unwrap();
    let web = items.iter().find(|item| item["metadata"]["name"] == "web-node1").unwrap();
    assert_eq!((&web["kind"], &web["status"]["phase"]), (&"Pod".into(), &"Running".into()));
    world.finish();
}

pub fn logs_are_printed(kind: Kind) {
    let world = World::start(kind);
    let script = format!("echo first line; echo second line; {FOREVER}");
    world.drop_pod(&Pod::with_main("web", &script));
    world.wait_running("web");
    let look = || printed(&world.agent.cli(&["logs", "web"]));
    world.wait_until("the log is printed", look, |log| log == "first line\nsecond line\n");
    let last = printed(&world.agent.cli(&["logs", "web", "-c", "main", "--tail", "1"]));
    assert_eq!(last, "second line\n");
    world.kill_container(&world.running_id("web", "main"));
    world.wait("it is restarted", |status| status.restarts("web", "main") == 1);
    assert_eq!(printed(&world.agent.cli(&["logs", "web", "-p"])), "first line\nsecond line\n");
    world.finish();
}

pub fn commands_say_when_no_agent_runs(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let output = world.agent.cli(&["status"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("not running") || said.contains("isn't running"), "{said}");
}
