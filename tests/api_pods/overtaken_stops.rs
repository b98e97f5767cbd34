//! A pod is deleted while one of its containers is being stopped for another reason.

use super::node::{Node, plain};
use nodelet::cri::v1;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};
use tokio::time::Instant;

/// Notes each SIGTERM, and takes no other notice of it.
const STUBBORN: &str = "trap 'echo main >>/host/signals' TERM; touch /host/up; \
    while true; do sleep 1 & wait $!; done";
/// Notes SIGTERM and ends.
const ENDS: &str =
    "trap 'echo other >>/host/signals; exit 0' TERM; while true; do sleep 1 & wait $!; done";
/// The grace period of the pods, in seconds. No test waits that long.
const LONG: u32 = 120;

/// A hook that runs a script.
fn shell(script: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", script] } })
}

/// A pod with two containers. The liveness probe of `main` fails when the test wants it.
struct Unhealthy<'a> {
    node: &'a Node,
    name: &'static str,
    /// The directory of the host that both containers have.
    host: PathBuf,
}

impl<'a> Unhealthy<'a> {
    /// `hook` is the preStop hook of `main`.
    fn create(node: &'a Node, name: &'static str, hook: Option<&str>) -> Self {
        let lifecycle = hook.map(|hook| json!({ "preStop": shell(hook) }));
        Self::with_lifecycle(node, name, lifecycle)
    }

    /// `lifecycle` has the hooks of `main`.
    fn with_lifecycle(node: &'a Node, name: &'static str, lifecycle: Option<Value>) -> Self {
        let host = node.world.slot.dir().join(name);
        fs::create_dir(&host).unwrap();
        fs::write(host.join("alive"), "").unwrap();
        let mut pod = plain(name, STUBBORN);
        let spec = &mut pod["spec"];
        spec["terminationGracePeriodSeconds"] = json!(LONG);
        spec["volumes"] = json!([{ "name": "host", "hostPath": { "path": host } }]);
        let main = &mut spec["containers"][0];
        main["volumeMounts"] = json!([{ "name": "host", "mountPath": "/host" }]);
        let mut other = main.clone();
        (other["name"], other["command"][2]) = (json!("other"), json!(ENDS));
        main["livenessProbe"] = json!({
            "exec": { "command": ["cat", "/host/alive"] },
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": 1,
        });
        if let Some(lifecycle) = lifecycle {
            main["lifecycle"] = lifecycle;
        }
        spec["containers"].as_array_mut().unwrap().push(other);
        node.create(&pod);
        Self { node, name, host }
    }

    fn fail_probe(&self) {
        fs::remove_file(self.host.join("alive")).unwrap();
    }

    /// The lines that containers have written, sorted.
    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.host.join(file)).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[track_caller]
    fn wait_lines(&self, file: &str, expected: &[&str]) {
        let what = format!("{file} of {} has {expected:?}", self.name);
        self.node.wait(&what, || self.lines(file), |lines| lines == expected);
    }

    #[track_caller]
    fn delete(&self, grace_seconds: u32) {
        let grace = format!("--grace-period={grace_seconds}");
        self.node.plane.kubectl_text(&["delete", "pod", self.name, &grace, "--wait=false"]);
    }

    /// As [`Self::wait_gone_with`], with both containers.
    #[track_caller]
    fn wait_gone(&self, since: Instant) {
        self.wait_gone_with(since, &["main", "other"]);
    }

    /// The pod goes long before the period of the earlier stop is over. Each of these containers
    /// has got one signal, and the others have not run.
    #[track_caller]
    fn wait_gone_with(&self, since: Instant, containers: &[&str]) {
        self.node.wait_pod_gone(self.name);
        let took = since.elapsed();
        assert!(took.as_secs() < u64::from(LONG / 2), "{} went after {took:?}", self.name);
        assert_eq!(self.lines("signals"), containers, "{}", self.name);
    }
}

#[test]
fn a_deletion_does_not_wait_for_the_stop_of_a_container() {
    let Some(node) = Node::start() else { return };
    let plain = Unhealthy::create(&node, "plain", None);
    let ended = Unhealthy::create(&node, "ended", Some("echo hook >>/host/hooks"));
    let runs = Unhealthy::create(&node, "runs", Some("echo hook >>/host/hooks; sleep 1000"));
    let pods = [plain, ended, runs];
    for pod in &pods {
        node.wait_pod_ready(pod.name);
        pod.fail_probe();
    }
    let [plain, ended, runs] = &pods;
    plain.wait_lines("signals", &["main"]);
    ended.wait_lines("signals", &["main"]);
    runs.wait_lines("hooks", &["hook"]);
    let begun = Instant::now();
    // Long enough to see that the other container does not wait for this one.
    plain.delete(LONG / 2);
    ended.delete(3);
    runs.delete(3);
    plain.wait_lines("signals", &["main", "other"]);
    node.wait("main still has time", || node.running("plain").len(), |running| *running == 1);
    plain.delete(1);
    for pod in &pods {
        pod.wait_gone(begun);
    }
    for pod in [ended, runs] {
        assert_eq!(pod.lines("hooks"), ["hook"], "{}", pod.name);
    }
    node.finish();
}

#[test]
fn a_deletion_does_not_wait_for_a_restart_or_a_failed_hook() {
    let Some(node) = Node::start() else { return };
    let fails = json!({ "postStart": shell("until [ -e /host/up ]; do sleep 0.1; done; exit 3") });
    let hook = "echo hook >>/host/hooks; sleep 1000";
    let restarts = Unhealthy::create(&node, "restarts", None);
    let hooked = Unhealthy::create(&node, "hooked", Some(hook));
    let replaced = Unhealthy::create(&node, "replaced", None);
    let failed = Unhealthy::with_lifecycle(&node, "failed", Some(fails));
    for pod in [&restarts, &hooked, &replaced] {
        node.wait_pod_ready(pod.name);
    }
    for arguments in [&["restart", "restarts", "-c", "main"][..], &["restart", "hooked"]] {
        let asked = node.world.agent.cli(arguments);
        assert!(asked.status.success(), "{asked:?}");
    }
    let sandboxes = node.world.cri.sandboxes();
    let of_replaced = |sandbox: &&v1::PodSandbox| {
        sandbox.metadata.as_ref().is_some_and(|metadata| metadata.name == replaced.name)
    };
    node.world.kill_sandbox(&sandboxes.iter().find(of_replaced).unwrap().id);
    restarts.wait_lines("signals", &["main"]);
    hooked.wait_lines("hooks", &["hook"]);
    replaced.wait_lines("signals", &["main", "other"]);
    failed.wait_lines("signals", &["main"]);
    let begun = Instant::now();
    for pod in [&restarts, &hooked, &replaced, &failed] {
        pod.delete(3);
    }
    for pod in [&restarts, &hooked, &replaced] {
        pod.wait_gone(begun);
    }
    failed.wait_gone_with(begun, &["main"]);
    assert_eq!(hooked.lines("hooks"), ["hook"]);
    node.finish();
}

#[test]
fn a_deletion_during_a_stop_goes_on_after_a_crash_of_the_agent() {
    let Some(node) = Node::start() else { return };
    let pod = Unhealthy::create(&node, "web", Some("echo hook >>/host/hooks"));
    node.wait_pod_ready("web");
    pod.fail_probe();
    pod.wait_lines("signals", &["main"]);
    let begun = Instant::now();
    pod.delete(15);
    pod.wait_lines("signals", &["main", "other"]);
    node.world.agent.kill();
    node.world.agent.start();
    pod.wait_gone(begun);
    node.finish();
}
