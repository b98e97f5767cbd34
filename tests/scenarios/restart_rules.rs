//! `restartPolicyRules`: what becomes of a container, or of all containers of a pod, goes by the
//! exit code. As upstream, rules come before the container's own policy, and the first rule that
//! matches counts.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod, STUBBORN},
    process::Process,
    status::Status,
    world::{Kind, World},
};
use serde_json::{Value, json};

fn rule(action: &str, operator: &str, codes: &[i32]) -> Value {
    json!({ "action": action, "exitCodes": { "operator": operator, "values": codes } })
}

/// Shell: adds a line to a file of this name, which outlives containers.
fn begins(name: &str) -> String {
    format!("echo begun >>/data/{name}")
}

/// Shell: ends with the first code, and with the other one from the second time on.
fn ends(first: i32, then: i32) -> String {
    format!("{}; [ $(wc -l </data/main) = 1 ] && exit {first}; exit {then}", begins("main"))
}

/// Gives every container of a pod the directory that outlives them.
fn with_data(mut pod: Pod) -> Pod {
    let mounts = json!([{ "name": "data", "mountPath": "/data" }]);
    for list in ["initContainers", "containers"] {
        let count = pod.value()["spec"][list].as_array().map_or(0, Vec::len);
        for n in 0..count {
            pod = pod.set(&format!("{list}/{n}/volumeMounts"), mounts.clone());
        }
    }
    pod.set("volumes", json!([{ "name": "data", "emptyDir": {} }]))
}

/// A pod whose container has rules and never restarts otherwise.
fn ruled(name: &str, script: &str, rules: &[Value]) -> Pod {
    Pod::with_main(name, script)
        .set("containers/0/restartPolicy", "Never")
        .set("containers/0/restartPolicyRules", json!(rules))
}

fn hasty(kind: Kind) -> Settings {
    Settings::for_kind(kind).kubelet("crashLoopBackOff: { maxContainerRestartPeriod: 1s }\n")
}

pub fn exit_codes_decide_about_restarts(kind: Kind) {
    let world = World::start_with(kind, &hasty(kind));
    let restart = |operator: &str, codes: &[i32]| rule("Restart", operator, codes);
    // Name, the two exit codes, rules, the policy of the pod, and how many restarts there are.
    let table = [
        ("listed", (42, 3), vec![restart("In", &[41, 42])], "Never", 1),
        ("unlisted", (7, 3), vec![restart("In", &[42])], "Always", 0),
        ("negated", (7, 5), vec![restart("NotIn", &[0, 5])], "Never", 1),
        ("second", (9, 0), vec![restart("In", &[8]), restart("NotIn", &[0])], "OnFailure", 1),
    ];
    for (name, (first, then), rules, policy, _) in &table {
        let pod = ruled(name, &ends(*first, *then), rules);
        world.drop_pod(&with_data(pod.set("restartPolicy", *policy)));
    }
    let ended = |status: &Status, name: &str| ["Failed", "Succeeded"].contains(&status.phase(name));
    let status = world.wait("all have ended for good", |status| {
        table.iter().all(|(name, ..)| ended(status, name))
    });
    for (name, (first, then), _, _, restarts) in &table {
        assert_eq!(status.restarts(name, "main"), *restarts, "{name}");
        let code = if *restarts == 0 { *first } else { *then };
        assert_eq!(status.terminated(name, "main").map(|t| t.exit_code), Some(code), "{name}");
        assert_eq!(status.phase(name), if code == 0 { "Succeeded" } else { "Failed" }, "{name}");
    }
    // An agent that starts later reads the same from what has ended.
    world.agent.kill();
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("all are found", |status| table.iter().all(|(name, ..)| ended(status, name)));
    for method in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        assert_eq!(world.proxy.count(method, ""), 0, "{:?}", world.proxy.mutating_calls());
    }
    world.finish();
}

/// Init containers run again, volumes and the sandbox stay.
pub fn an_exit_code_restarts_all_containers(kind: Kind) {
    let world = World::start_with(kind, &hasty(kind));
    let main = format!(
        "{}; until [ -e /data/other ] && [ -e /data/sidecar ]; do sleep 0.1; done; \
         [ $(wc -l </data/main) = 1 ] && exit 88; {FOREVER}",
        begins("main")
    );
    let runs = |name: &str| format!("{}; {STUBBORN}", begins(name));
    let pod = ruled("web", &main, &[rule("RestartAllContainers", "In", &[88])])
        .container("other", &runs("other"))
        .init("setup", &begins("setup"))
        .sidecar("sidecar", &runs("sidecar"));
    world.drop_pod(&with_data(pod));
    let all = ["main", "other", "setup", "sidecar"];
    let status = world.wait("all containers have begun anew", |status| {
        status.runs("web") && all.iter().all(|name| status.restarts("web", name) == 1)
    });
    let process = Process::of(&world, "web", "main");
    // The first instances are gone. That of `main` asked for this, and two others were killed.
    for (name, code) in [("main", 88), ("other", 137), ("setup", 0), ("sidecar", 137)] {
        let last = status.container("web", name).and_then(|of| of.last_state.as_ref());
        let ended = last.and_then(|state| state.terminated.as_ref());
        assert_eq!(ended.map(|ended| ended.exit_code), Some(code), "{name}: {last:?}");
    }
    for name in all {
        assert_eq!(process.read(&format!("/data/{name}")), "begun\nbegun\n", "{name}");
    }
    assert_eq!(world.proxy.count("RunPodSandbox", "web"), 1, "{status:?}");
    assert_eq!(world.sandboxes("web").len(), 1);
    world.finish();
}
