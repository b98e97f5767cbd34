//! What a worker has saved when a call reaches the runtime, and which calls it makes after a
//! failure, a changed order or a foreign pod.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bench;

use crate::support::{
    manifest::{FOREVER, Pod},
    proxy::Call,
};
use bench::{Bench, Entry, UNKNOWN_CLASS, desired};
use nodelet::{
    cri::v1,
    model::{HoldStop, PodView},
};
use serde_json::{Value, json};
use std::{
    fs,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    slice,
    time::Duration,
};
use tonic::Code;

/// Every value of a field in a tree.
fn values_of<'a>(tree: &'a Value, field: &str) -> Vec<&'a Value> {
    let below: Vec<&Value> = match tree {
        Value::Object(map) => map.values().collect(),
        Value::Array(list) => list.iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    let here = tree.get(field).into_iter();
    here.chain(below.into_iter().flat_map(|tree| values_of(tree, field))).collect()
}

/// The restarts that are saved, by the container whose end they follow.
fn saved_restarts(entry: &Entry) -> Vec<String> {
    let crashes = entry.memory.iter().flat_map(|memory| values_of(memory, "crash"));
    crashes.filter_map(|crash| crash["after"].as_str().map(str::to_owned)).collect()
}

fn timeout(call: &Call) -> i64 {
    call.request::<v1::StopContainerRequest>().timeout
}

#[test]
fn a_restart_is_saved_before_its_container_is_made() {
    let bench = Bench::start();
    bench.wish(&[&Pod::with_main("crash", "exit 3")]);
    let created = bench.wait_called("CreateContainer", "crash", 2);
    let started = bench.wait_called("StartContainer", "crash", 2);
    let first = started[0].call.request::<v1::StartContainerRequest>().container_id;
    for entry in [&created[1], &started[1]] {
        assert_eq!(saved_restarts(entry), slice::from_ref(&first), "{entry:#?}");
    }
    for entry in [&created[0], &started[0]] {
        assert!(saved_restarts(entry).is_empty(), "{entry:#?}");
    }
}

#[test]
fn a_record_is_saved_before_the_sandbox_is_made() {
    let bench = Bench::start();
    let pod = Pod::running("web");
    bench.wish(&[&pod]);
    let edited = pod.clone().env("VERSION", "2");
    bench.wait_running("web");
    bench.wish(&[&edited]);
    let made = bench.wait_called("RunPodSandbox", "web", 2);
    for (entry, pod) in made.iter().zip([pod, edited]) {
        let uid = desired(&pod).uid;
        let saved = entry.records.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        let recorded = saved.iter().any(|record| record["uid"] == json!(uid));
        assert!(recorded, "no record of {uid} in {entry:#?}");
    }
}

#[test]
fn a_plan_ends_with_its_first_failed_action() {
    let bench = Bench::start();
    // Prepare, then a sandbox.
    let missing =
        json!([{ "name": "v", "hostPath": { "path": "/nonexistent/x", "type": "File" } }]);
    let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
    let unready = Pod::running("unready").set("volumes", missing);
    let unready = unready.set("containers/0/volumeMounts", mounts);
    let web = Pod::running("web");
    bench.wish(&[&unready, &web]);
    bench.wait_running("web");
    // The end of the pod, then the removals.
    bench.proxy.on("StopPodSandbox").pod("web").times(2).fail(Code::Unknown, "not now");
    bench.proxy.on("RemoveContainer").pod("web").times(2).fail(Code::Unknown, "not now");
    bench.wish(&[&unready]);
    bench.wait_gone("web");
    let calls = bench.proxy.mutating_calls();
    let first = |method: &str| {
        let of_pod = calls.iter().filter(|call| call.is_for("web") && call.method == method);
        of_pod.filter(|call| call.reached).map(|call| call.number).min()
    };
    assert!(first("StopPodSandbox") < first("RemoveContainer"), "{calls:#?}");
    assert!(first("RemoveContainer") < first("RemovePodSandbox"), "{calls:#?}");
    let refused = calls.iter().filter(|call| call.is_for("web") && !call.reached).count();
    assert_eq!(refused, 4, "{calls:#?}");
    // It was prepared twice by now, and each try failed.
    assert_eq!(bench.order("unready"), Vec::<String>::new());
}

/// Whether the pod is reported as evicted.
fn is_evicted(view: Option<&PodView>) -> bool {
    view.is_some_and(|view| view.status.reason.as_deref() == Some("Evicted"))
}

#[test]
fn a_refused_pod_starts_when_the_node_gets_its_label() {
    let bench = Bench::start();
    let pod = Pod::running("web").set("nodeSelector", json!({ "disk": "ssd" }));
    bench.wish(&[&pod]);
    let reason = |view: Option<&PodView>| view.and_then(|view| view.status.reason.clone());
    bench.wait_view("the pod is refused", "web", |view| {
        reason(view).as_deref() == Some("NodeAffinity")
    });
    bench.label("disk", "ssd");
    bench.wait_running("web");
}

#[test]
fn a_pod_of_an_unknown_runtime_class_waits_and_is_tried_again() {
    let bench = Bench::start();
    bench.wish(&[&Pod::running("web").set("runtimeClassName", UNKNOWN_CLASS)]);
    let why = "RuntimeClass \"unknown\" not found in runtimeClasses of the configuration";
    let count = || bench.events("FailedCreatePodSandBox", why);
    bench.wait("a second try", count, |count| *count > 1);
    bench.wait_view("the pod waits", "web", |view| {
        let phase = |view: &PodView| view.status.phase.as_deref() == Some("Pending");
        view.is_some_and(|view| {
            phase(view) && view.waiting.as_deref().is_some_and(|waits| waits.contains(why))
        })
    });
    assert_eq!(bench.order("web"), Vec::<String>::new());
}

/// A process of the test's own, which ends with it.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn an_eviction_kills_no_foreign_pod_of_the_same_uid() {
    let bench = Bench::start_with_cgroups();
    let sleeper = Sleeper::start();
    let (ours, theirs) = (Pod::running("ours"), Pod::running("theirs"));
    let cgroups = [&ours, &theirs].map(|pod| bench.cgroup(pod));
    bench.make_foreign_sandbox(&theirs, 7);
    bench.wish(&[&ours, &theirs]);
    bench.wait_running("ours");
    bench.wait_view("the pod waits", "theirs", |view| view.is_some());
    for cgroup in &cgroups {
        fs::write(cgroup.join("cgroup.procs"), format!("{}\n", sleeper.0.id())).unwrap();
    }
    let killed = |cgroup: &Path| fs::read_to_string(cgroup.join("cgroup.kill")).unwrap() == "1";
    bench.evict(&[&theirs], HoldStop::AtOnce);
    bench.wait_view("the pod is evicted", "theirs", is_evicted);
    bench.evict(&[&ours], HoldStop::AtOnce);
    bench.wait("the pod's cgroup is killed", || killed(&cgroups[0]), |killed| *killed);
    assert!(!killed(&cgroups[1]));
}

#[test]
fn every_cgroup_of_the_uid_is_removed_with_its_pod() {
    let bench = Bench::start_with_cgroups();
    let web = Pod::running("web");
    bench.cgroup(&web);
    bench.wish(&[&web]);
    bench.wait_running("web");
    // As an edit of the QoS class has left it.
    let earlier = bench.cgroup_path("burstable", &web);
    fs::create_dir(&earlier).unwrap();
    let files = bench.cgroup_path("besteffort", &web);
    bench.wish(&[]);
    bench.wait_called("StopPodSandbox", "web", 1);
    // The files of a real cgroup are in no way of its removal.
    for entry in fs::read_dir(&files).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    bench.wait_gone("web");
    assert!(!earlier.exists());
}

#[test]
fn what_runs_has_a_record_or_is_wished_is_no_leftover() {
    let bench = Bench::start();
    let [wished, made, ends, foreign] = ["wished", "made", "ends", "foreign"].map(Pod::running);
    bench.make_foreign_sandbox(&foreign, 7);
    bench.wish(&[&wished, &ends]);
    bench.wait_running("wished");
    bench.wait_running("ends");
    // One that has only a record: its sandbox is not there yet, and its manifest is gone.
    bench.proxy.on("RunPodSandbox").pod("made").hang();
    bench.proxy.on("StopContainer").pod("ends").hang();
    bench.wish(&[&wished, &made, &ends]);
    bench.wait_called("RunPodSandbox", "made", 1);
    bench.wish(&[&wished]);
    bench.wait_called("StopContainer", "ends", 1);
    for pod in [&wished, &made, &ends, &foreign] {
        let uid = desired(pod).uid;
        let known = bench.known();
        assert!(
            known.is_complete() && known.uids.contains(&uid),
            "{:?}: {known:?}",
            desired(pod).key
        );
    }
    bench.proxy.lift_all();
    for pod in ["made", "ends"] {
        bench.wait_gone(pod);
    }
    let known = || bench.known();
    let uids = [&made, &ends].map(|pod| desired(pod).uid);
    bench.wait("they are known no more", known, |known| {
        uids.iter().all(|uid| !known.uids.contains(uid))
    });
}

#[test]
fn later_stop_groups_have_what_is_left_of_the_grace_period() {
    let bench = Bench::start();
    let pod = Pod::running("web").sidecar("proxy", FOREVER).set("terminationGracePeriodSeconds", 9);
    bench.wish(&[&pod]);
    bench.wait_running("web");
    bench.proxy.on("StopContainer").pod("web").times(1).delay(Duration::from_millis(1100));
    bench.wish(&[]);
    bench.wait_gone("web");
    let stopped = bench.calls("StopContainer", "web");
    let names = stopped.iter().map(|entry| entry.call.pod.as_ref().unwrap().container.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["main", "proxy"]);
    let timeouts = [timeout(&stopped[0].call), timeout(&stopped[1].call)];
    assert!((2..=9).contains(&timeouts[0]) && timeouts[1] < timeouts[0], "{timeouts:?}");
}

#[test]
fn an_eviction_ends_the_plan_that_is_being_executed() {
    let bench = Bench::start();
    let (web, last) = (Pod::running("web").container("other", FOREVER), Pod::running("z"));
    let held = bench.proxy.on("CreateContainer").pod("web").times(1).hang();
    bench.wish(&[&web, &last]);
    bench.wait_running("z");
    bench.wait_called("CreateContainer", "web", 1);
    bench.evict(&[&web, &last], HoldStop::Within(1));
    bench.wait_view("the last pod is evicted, and so is the first", "z", is_evicted);
    bench.proxy.lift(held);
    bench.wait_called("RemovePodSandbox", "web", 1);
    assert_eq!(bench.calls("CreateContainer", "web").len(), 1, "{:?}", bench.order("web"));
}

#[test]
fn the_created_container_of_a_deleted_pod_is_not_started() {
    let bench = Bench::start();
    let (web, last) = (Pod::running("web"), Pod::running("z"));
    let held = bench.proxy.on("CreateContainer").pod("web").times(1).hang();
    bench.wish(&[&web, &last]);
    bench.wait_running("z");
    bench.wait_called("CreateContainer", "web", 1);
    bench.wish(&[]);
    // The workers hear of it in the order of the pods' names.
    bench.wait_gone("z");
    bench.proxy.lift(held);
    bench.wait_gone("web");
    let order = bench.order("web");
    assert!(order.iter().all(|method| method != "StartContainer"), "{order:?}");
    assert!(order.iter().any(|method| method == "RemoveContainer"), "{order:?}");
}

/// A pod with a volume of the ConfigMap `settings` and a host path, whose volumes are therefore
/// written on a thread of their own.
fn configured_pod() -> Pod {
    let volumes = json!([
        { "name": "config", "configMap": { "name": "settings" } },
        { "name": "host", "hostPath": { "path": "/" } },
    ]);
    let mounts = json!([{ "name": "config", "mountPath": "/config" }]);
    Pod::running("web").set("volumes", volumes).set("containers/0/volumeMounts", mounts)
}

/// The file that tells that the volume of [`configured_pod`] is complete.
fn marker_of(bench: &Bench, pod: &Pod) -> PathBuf {
    bench.pod_dir(pod).join("plugins/kubernetes.io~configmap/config/ready")
}

/// Changes what the volume of [`configured_pod`] is made from. The files are written, and the end
/// of the write hangs until [`let_go`] opens the marker, which is returned.
fn write_and_hang(bench: &Bench, pod: &Pod, value: &str) -> PathBuf {
    let marker = marker_of(bench, pod);
    fs::remove_file(&marker).unwrap();
    nix::unistd::mkfifo(&marker, nix::sys::stat::Mode::S_IRWXU).unwrap();
    bench.configure("settings", value);
    let file = bench.pod_dir(pod).join("volumes/kubernetes.io~configmap/config/key");
    bench.wait("the volume is written", || fs::read_to_string(&file).unwrap(), |key| key == value);
    marker
}

/// Ends what [`write_and_hang`] has begun; the result is to be kept until then.
fn let_go(marker: &Path) -> fs::File {
    let mut reader = fs::OpenOptions::new();
    reader.read(true).custom_flags(nix::libc::O_NONBLOCK).open(marker).unwrap()
}

#[test]
fn a_pod_ends_while_the_write_of_its_volumes_hangs() {
    let bench = Bench::start();
    bench.configure("settings", "one");
    let web = configured_pod();
    let held = bench.proxy.on("StartContainer").pod("web").times(1).hang();
    bench.wish(&[&web]);
    bench.wait_called("StartContainer", "web", 1);
    let marker = write_and_hang(&bench, &web, "two");
    bench.proxy.lift(held);
    bench.wait_running("web");
    bench.wait_view("the hang is named", "web", |view| {
        let hung = view.and_then(|view| view.hung.as_deref());
        hung.is_some_and(|hung| hung.starts_with("looking at host paths"))
    });
    bench.wish(&[]);
    bench.wait_called("StopContainer", "web", 1);
    let _end = let_go(&marker);
    bench.wait_gone("web");
}

/// A container that began with newer data than its volumes have would not be restarted for them.
#[test]
fn a_container_begins_with_no_newer_data_than_its_volumes_have() {
    let bench = Bench::start();
    bench.configure("settings", "one");
    let from_map = json!({ "configMapKeyRef": { "name": "settings", "key": "key" } });
    let web = configured_pod()
        .meta("annotations", json!({ "nodelet.dev/restart-on-config-change": "true" }))
        .set("containers/0/env", json!([{ "name": "KEY", "valueFrom": from_map }]))
        .set("containers/0/imagePullPolicy", "Always");
    let held = bench.proxy.on("PullImage").hang();
    bench.wish(&[&web]);
    bench.wait_called("PullImage", "web", 1);
    let marker = write_and_hang(&bench, &web, "two");
    bench.proxy.lift(held);
    bench.wait_called("StartContainer", "web", 1);
    let _end = let_go(&marker);
    // Restarted, it has the new data.
    bench.wait_called("StartContainer", "web", 2);
    let calls = bench.proxy.mutating_calls();
    let made = calls.iter().filter(|call| call.method == "CreateContainer");
    let values = made.map(|call| {
        let config = call.request::<v1::CreateContainerRequest>().config.unwrap();
        let value = config.envs.into_iter().find(|variable| variable.key == "KEY").unwrap().value;
        String::from_utf8(value).unwrap()
    });
    assert_eq!(values.collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn volumes_that_cannot_be_written_are_not_tried_at_each_input() {
    let bench = Bench::start();
    bench.configure("settings", "one");
    let web = configured_pod();
    bench.proxy.on("StartContainer").pod("web").hang();
    bench.wish(&[&web]);
    bench.wait_called("StartContainer", "web", 1);
    let marker = marker_of(&bench, &web);
    fs::remove_file(&marker).unwrap();
    fs::create_dir(&marker).unwrap();
    let failures = || bench.events("FailedMount", "unmounted volumes=[config]");
    for number in 1..=2 {
        bench.configure("settings", &format!("changed {number} times"));
        bench.wait("the write fails", failures, |count| *count >= number);
        let address = IpAddr::from([10, 0, 0, u8::try_from(number).unwrap()]);
        bench.address(address);
        bench.wait_view("the worker has read its input", "web", |view| {
            let shown = view.and_then(|view| view.status.host_ip.as_deref());
            shown == Some(&*address.to_string())
        });
    }
    assert_eq!(failures(), 2);
}

#[test]
fn a_runtime_that_goes_away_ends_a_kill_which_is_tried_again() {
    let bench = Bench::start();
    bench.wish(&[&Pod::running("web").container("other", FOREVER)]);
    bench.wait_running("web");
    bench.proxy.on("StopContainer").pod("web").times(2).fail(Code::Unavailable, "it dies");
    bench.wish(&[]);
    bench.wait_gone("web");
    let order = bench.order("web");
    let place = |method: &str| order.iter().position(|called| called == method).unwrap();
    let stops = order.iter().take(place("StopPodSandbox"));
    let stops = stops.filter(|method| *method == "StopContainer").count();
    assert_eq!(stops, 4, "both are stopped again before the sandbox: {order:?}");
}

/// The first id on the host of the user namespace of a new sandbox.
fn first_id(call: &Call) -> u32 {
    let request: v1::RunPodSandboxRequest = call.request();
    let context = request.config.unwrap().linux.unwrap().security_context.unwrap();
    context.namespace_options.unwrap().userns_options.unwrap().uids[0].host_id
}

#[test]
fn an_ended_pod_gives_the_ids_of_its_user_namespace_back() {
    let bench = Bench::start();
    let ended = Pod::with_main("ended", "exit 0").set("restartPolicy", "Never");
    let ended = ended.set("hostUsers", false);
    let [web, next] = ["web", "next"].map(|name| Pod::running(name).set("hostUsers", false));
    bench.wish(&[&ended]);
    bench.wait_view("it has ended for good", "ended", |view| view.is_some_and(|v| v.stopped));
    bench.wish(&[&ended, &web]);
    bench.wait_running("web");
    bench.wish(&[&ended, &web, &next]);
    bench.wait_running("next");
    let first = |pod: &str| first_id(&bench.calls("RunPodSandbox", pod)[0].call);
    assert_eq!(["ended", "web", "next"].map(first), [65_536, 65_536, 131_072]);
    assert!(bench.order("ended").iter().all(|method| method != "RemovePodSandbox"));
}

#[test]
fn an_event_about_a_failed_start_has_the_name_of_the_container() {
    let bench = Bench::start();
    // The sandbox is the first thing that this runtime makes.
    let id: &str = format!("{:016x}{}", 2, "f".repeat(48)).leak();
    let message: &str = format!("failed to create task {id:?}").leak();
    bench.proxy.on("StartContainer").pod("web").times(1).fail(Code::Unknown, message);
    bench.wish(&[&Pod::running("web")]);
    let started = bench.wait_called("StartContainer", "web", 1);
    assert_eq!(started[0].call.request::<v1::StartContainerRequest>().container_id, id);
    let told = || bench.events("Failed", "Error: failed to create task \"main\"");
    bench.wait("the event is told", told, |count| *count == 1);
    bench.wait_view("its status has the id", "web", |view| {
        let status = serde_json::to_value(view.map(|view| &*view.status)).unwrap();
        status["containerStatuses"][0]["state"]["waiting"]["message"] == message
    });
}

#[test]
fn a_pod_that_is_deleted_has_no_event_about_its_sandbox() {
    let bench = Bench::start();
    let (web, last) = (Pod::running("web"), Pod::running("z"));
    let held = bench.proxy.on("RunPodSandbox").pod("web").times(1).hang();
    bench.wish(&[&web, &last]);
    bench.wait_running("z");
    bench.wait_called("RunPodSandbox", "web", 1);
    // It has the name, so the call fails.
    let foreign = bench.make_foreign_sandbox(&web, 0);
    bench.wish(&[]);
    // The workers hear of it in the order of the pods' names.
    bench.wait_gone("z");
    bench.proxy.lift(held);
    let answer = || {
        let calls = bench.proxy.mutating_calls();
        let made = calls.iter().find(|one| one.method == "RunPodSandbox" && one.is_for("web"));
        made.and_then(|call| call.answered).map(|(code, _)| code)
    };
    bench.wait("the call fails", answer, |code| *code == Some(Code::Unknown));
    bench.cri.remove_sandbox(&foreign).unwrap();
    bench.wait_gone("web");
    assert_eq!(bench.events("FailedCreatePodSandBox", ""), 0);
}
