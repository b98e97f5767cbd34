//! Tests of the bench itself: that the fake answers as a real containerd does, that the proxy is
//! transparent until told otherwise, and that a private containerd leaves nothing behind. And tests
//! of what the benchmark computes.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "../benches/agent/sightings.rs"]
mod sightings;
mod support;

use nodelet::cri::{
    containerd::services::{SubscribeRequest, events_client::EventsClient},
    v1,
};
use serde_json::{Value, json};
use sightings::{Sighting, Sightings, kind_of, percentile};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{
    cri::Cri,
    images::BUSYBOX,
    poll_until,
    proxy::{EventFault, Moment, Proxy},
    registry::{self, Registry},
    slot::Slot,
    wait_until,
    world::{Kind, Runtime},
};
use tonic::{Code, transport::Endpoint};

const SOON: Duration = Duration::from_secs(60);

/// A runtime behind the proxy, with a client before it and one behind.
struct Setup {
    through: Cri,
    direct: Cri,
    proxy: Proxy,
    runtime: Runtime,
    slot: Slot,
}

impl Setup {
    fn of(kind: Kind) -> Self {
        let slot = Slot::take();
        let runtime = Runtime::start(kind, &slot);
        let proxy = Proxy::start(&slot.dir().join("proxy.sock"), &runtime.socket());
        let through = Cri::new(proxy.socket());
        Self { through, direct: Cri::new(&runtime.socket()), proxy, runtime, slot }
    }

    fn sandbox_config(&self, name: &str, attempt: u32) -> v1::PodSandboxConfig {
        let labels = [
            ("io.kubernetes.pod.name", name),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "u1"),
        ];
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                uid: "u1".to_owned(),
                namespace: "default".to_owned(),
                attempt,
            }),
            log_directory: self.slot.dir().join("logs").display().to_string(),
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: self.slot.cgroup_root(),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(own_pid_namespace()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn start_container(&self, sandbox: &str, attempt: u32, script: &str) -> String {
        let config = container_config(attempt, script);
        let pod = self.sandbox_config("web", 0);
        let id = self.through.create_container(sandbox, config, pod).unwrap();
        self.through.start_container(&id).unwrap();
        id
    }

    #[track_caller]
    fn wait_exit(&self, id: &str) -> v1::ContainerStatus {
        wait_until(
            "the container exits",
            SOON,
            || self.direct.container_status(id),
            |status| status.state() == v1::ContainerState::ContainerExited,
        )
    }
}

fn container_config(attempt: u32, script: &str) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "main".to_owned(), attempt }),
        image: Some(v1::ImageSpec { image: BUSYBOX.to_owned(), ..Default::default() }),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        labels: BTreeMap::from([("io.kubernetes.pod.name".to_owned(), "web".to_owned())]),
        log_path: format!("main-{attempt}.log"),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(own_pid_namespace()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Each container's first process is pid 1, as in any pod without shareProcessNamespace.
fn own_pid_namespace() -> v1::NamespaceOption {
    v1::NamespaceOption { pid: v1::NamespaceMode::Container.into(), ..Default::default() }
}

/// What nodelet relies on, asked of both runtimes.
fn answers_as_containerd(kind: Kind) {
    let setup = Setup::of(kind);
    let cri = &setup.through;
    assert!(cri.has_image(BUSYBOX) && !cri.has_image("nodelet.test/absent:1"));

    let sandbox = cri.run_sandbox(setup.sandbox_config("web", 0)).unwrap();
    let status = cri.sandbox_status(&sandbox);
    assert_eq!(status.state(), v1::PodSandboxState::SandboxReady);
    assert!(!status.network.unwrap().ip.is_empty());
    let taken = cri.run_sandbox(setup.sandbox_config("web", 0)).unwrap_err();
    let expected = format!("name \"web_default_u1_0\" is reserved for \"{sandbox}\"");
    assert!(taken.message().contains(&expected), "{taken:?}");

    let id = setup.start_container(&sandbox, 0, "echo hello; exit 3");
    let status = setup.wait_exit(&id);
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));
    // containerd notes the start after the process began: one that ends at once has finished
    // "before" it.
    assert!(status.created_at < status.started_at && status.created_at < status.finished_at);
    let log = wait_until(
        "the log is written",
        SOON,
        || std::fs::read_to_string(setup.slot.dir().join("logs/main-0.log")).unwrap_or_default(),
        |log| !log.is_empty(),
    );
    assert!(log.ends_with(" stdout F hello\n"), "{log}");
    assert!(cri.start_container(&id).is_err(), "an exited container does not start again");
    let pod = setup.sandbox_config("web", 0);
    let taken = cri.create_container(&sandbox, container_config(0, "true"), pod).unwrap_err();
    let expected = format!("name \"main_web_default_u1_0\" is reserved for \"{id}\"");
    assert!(taken.message().contains(&expected), "{taken:?}");
    assert_eq!(cri.start_container("nothing").unwrap_err().code(), Code::NotFound);
    assert_eq!(cri.stop_container("nothing", 1).unwrap_err().code(), Code::NotFound);

    stops_as_containerd(&setup, &sandbox);
    outlives_its_sandbox(&setup, &sandbox);

    cri.remove_sandbox(&sandbox).unwrap();
    assert!(cri.sandboxes().is_empty() && cri.containers().is_empty());
    let leaks = || match &setup.runtime {
        Runtime::Fake(fake) => fake.leaks(),
        // Shims end a moment after their sandbox was removed.
        Runtime::Real(containerd) => containerd.leaks(),
    };
    wait_until("nothing is left", SOON, leaks, Vec::is_empty);
}

/// SIGTERM first, SIGKILL after the timeout.
fn stops_as_containerd(setup: &Setup, sandbox: &str) {
    let cri = &setup.through;
    let polite = setup.start_container(sandbox, 1, "trap 'exit 7' TERM; sleep 1000 & wait");
    cri.stop_container(&polite, 2).unwrap();
    let code = setup.wait_exit(&polite).exit_code;
    // A signal that comes before the shell has set its trap is lost on a first process.
    assert!(code == 7 || code == 137, "{code}");
    let stubborn = setup.start_container(sandbox, 2, "sleep 1000");
    cri.stop_container(&stubborn, 1).unwrap();
    assert_eq!(setup.wait_exit(&stubborn).exit_code, 137);
}

/// The pause process dies; the containers in the sandbox do not.
fn outlives_its_sandbox(setup: &Setup, sandbox: &str) {
    let cri = &setup.through;
    let pod = setup.sandbox_config("web", 0);
    let orphan = setup.start_container(sandbox, 3, "sleep 1000");
    match &setup.runtime {
        Runtime::Fake(fake) => fake.kill_sandbox(sandbox),
        Runtime::Real(_) => {
            let pid = nix::unistd::Pid::from_raw(setup.direct.sandbox_pid(sandbox));
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
    }
    wait_until(
        "the sandbox is not ready",
        SOON,
        || cri.sandbox_status(sandbox),
        |status| status.state() == v1::PodSandboxState::SandboxNotready,
    );
    let alive = cri.container_status(&orphan).state();
    assert_eq!(alive, v1::ContainerState::ContainerRunning, "containers outlive their sandbox");
    assert!(cri.create_container(sandbox, container_config(4, "true"), pod).is_err());
}

#[test]
fn the_fake_answers_as_containerd() {
    answers_as_containerd(Kind::Fake);
}

#[test]
fn containerd_answers_as_expected_of_the_fake() {
    if support::skip_without_containerd() {
        return;
    }
    answers_as_containerd(Kind::Real);
}

#[test]
fn the_proxy_records_and_faults() {
    let setup = Setup::of(Kind::Fake);
    let (cri, proxy) = (&setup.through, &setup.proxy);

    let rule = proxy.on("RunPodSandbox").pod("web").times(1).fail(Code::Unknown, "no luck");
    let failed = cri.run_sandbox(setup.sandbox_config("web", 0)).unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::Unknown, "no luck"));
    proxy.lift(rule);

    proxy.on("RunPodSandbox").times(1).lose_answer();
    let lost = cri.run_sandbox(setup.sandbox_config("web", 0)).unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable);
    assert_eq!(setup.direct.sandboxes().len(), 1, "the runtime has made it");

    let id = setup.direct.sandboxes().remove(0).id;
    assert_eq!(cri.sandboxes().len(), 1, "and the proxy has seen it in a listing");
    let rule = proxy.on("StopPodSandbox").pod("web").hang();
    let client = cri.clone();
    let hung = std::thread::spawn(move || client.remove_sandbox(&id));
    let stuck = || proxy.count("StopPodSandbox", "web");
    wait_until("the call is made", SOON, stuck, |n| *n == 1);
    let ready = v1::PodSandboxState::SandboxReady;
    assert_eq!(setup.direct.sandboxes()[0].state(), ready);
    proxy.lift(rule);
    hung.join().unwrap().unwrap();

    let methods: Vec<_> = proxy.mutating_calls().into_iter().map(|call| call.method).collect();
    let expected = ["RunPodSandbox", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];
    assert_eq!(methods, expected);
}

#[test]
fn hooks_run_around_the_nth_mutating_call() {
    for (moment, sandboxes) in [(Moment::Before, 1), (Moment::After, 2)] {
        let setup = Setup::of(Kind::Fake);
        let (sender, receiver) = std::sync::mpsc::channel();
        setup.proxy.at_mutating_call(1, moment, move || sender.send(()).unwrap());
        setup.through.run_sandbox(setup.sandbox_config("first", 0)).unwrap();
        let client = setup.through.clone();
        let config = setup.sandbox_config("second", 0);
        // Never answered: the thread ends with the proxy's connections.
        let second = std::thread::spawn(move || client.run_sandbox(config));
        receiver.recv_timeout(SOON).unwrap();
        assert_eq!(setup.direct.sandboxes().len(), sandboxes, "{moment:?}");
        drop(setup.proxy);
        assert!(second.join().unwrap().is_err());
    }
}

/// The kinds that can run here.
fn kinds() -> Vec<Kind> {
    match support::skip_without_containerd() {
        true => vec![Kind::Fake],
        false => vec![Kind::Fake, Kind::Real],
    }
}

/// Collects the topics of runtime events that come through the proxy, until the test ends.
fn collect_topics(setup: &Setup) -> Arc<Mutex<Vec<String>>> {
    let topics: Arc<Mutex<Vec<String>>> = Arc::default();
    let endpoint = format!("unix:{}", setup.proxy.socket().display());
    let (sender, receiver) = std::sync::mpsc::channel();
    let seen = Arc::clone(&topics);
    support::tokio_runtime().spawn(async move {
        let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
        let mut request = tonic::Request::new(SubscribeRequest::default());
        request.metadata_mut().insert("containerd-namespace", "k8s.io".parse().unwrap());
        sender.send(()).unwrap();
        let mut events = EventsClient::new(channel).subscribe(request).await.unwrap().into_inner();
        while let Ok(Some(event)) = events.message().await {
            seen.lock().unwrap().push(event.topic);
        }
    });
    receiver.recv_timeout(SOON).unwrap();
    // The call is answered with the first event only; that it was made is in the recording.
    let made = || setup.proxy.calls().iter().any(|call| call.method == "Subscribe" && call.reached);
    wait_until("the subscription is made", SOON, made, |made| *made);
    topics
}

#[test]
fn events_arrive_and_are_dropped_and_doubled() {
    for kind in kinds() {
        let setup = Setup::of(kind);
        let topics = collect_topics(&setup);
        let count =
            |topic: &str| topics.lock().unwrap().iter().filter(|seen| *seen == topic).count();
        let sandbox = setup.through.run_sandbox(setup.sandbox_config("web", 0)).unwrap();
        wait_until("the sandbox's start is told", SOON, || count("/tasks/start"), |n| *n == 1);
        setup.proxy.events(EventFault::Duplicate);
        let id = setup.start_container(&sandbox, 0, "true");
        setup.wait_exit(&id);
        wait_until("the exit is told twice", SOON, || count("/tasks/exit"), |n| *n == 2);
        setup.proxy.events(EventFault::Drop);
        let id = setup.start_container(&sandbox, 1, "true");
        setup.wait_exit(&id);
        setup.proxy.events(EventFault::None);
        let id = setup.start_container(&sandbox, 2, "true");
        setup.wait_exit(&id);
        wait_until("of two exits one is told", SOON, || count("/tasks/exit"), |n| *n == 3);
        setup.through.remove_sandbox(&sandbox).unwrap();
    }
}

#[test]
fn a_private_containerd_reports_its_leaks_and_leaves_no_trace() {
    if support::skip_without_containerd() {
        return;
    }
    let setup = Setup::of(Kind::Real);
    let sandbox = setup.through.run_sandbox(setup.sandbox_config("web", 0)).unwrap();
    setup.start_container(&sandbox, 0, "sleep 100000");
    let Runtime::Real(containerd) = &setup.runtime else { unreachable!() };
    let leaks = containerd.leaks().join("\n");
    let kinds =
        ["container ", "task ", "shim process ", "mount ", "network namespace ", "pod address "];
    for kind in kinds {
        assert!(leaks.contains(kind), "no {kind}in\n{leaks}");
    }
    let (dir, bridge) = (setup.slot.dir().to_owned(), format!("nodelet{}", setup.slot.number()));
    let interface = std::path::Path::new("/sys/class/net").join(bridge);
    assert!(dir.exists() && interface.exists());
    let sandbox_pid = setup.direct.sandbox_pid(&sandbox);
    drop(setup);
    assert!(!dir.exists() && !interface.exists());
    let process = std::path::PathBuf::from(format!("/proc/{sandbox_pid}"));
    wait_until("the pause process is reaped", SOON, || process.exists(), |there| !there);
    assert_eq!(support::slot::mounts_under(&dir), [""; 0].map(std::path::PathBuf::from));
}

#[test]
fn images_are_pulled_from_a_registry_on_loopback() {
    if support::skip_without_containerd() {
        return;
    }
    let setup = Setup::of(Kind::Real);
    let Some(mut registry) = Registry::prepare(&setup.slot) else { return };
    let Runtime::Real(containerd) = &setup.runtime else { unreachable!() };
    registry.start(false);
    registry.push(containerd, BUSYBOX, "busybox:pulled");
    registry.stop();
    registry.start(true);
    let image = registry.image("busybox:pulled");
    assert!(setup.through.pull_image(&image, None).is_err(), "without a password");
    let wrong = setup.through.pull_image(&image, Some((registry::USER, "wrong")));
    assert!(wrong.is_err(), "with a wrong one");
    setup.through.pull_image(&image, Some((registry::USER, "secret"))).unwrap();
    assert!(setup.through.has_image(&image));
}

#[test]
fn containers_outlive_the_daemon() {
    for kind in kinds() {
        let setup = Setup::of(kind);
        let sandbox = setup.through.run_sandbox(setup.sandbox_config("web", 0)).unwrap();
        let id = setup.start_container(&sandbox, 0, "sleep 1000");
        setup.runtime.kill();
        assert!(setup.through.run_sandbox(setup.sandbox_config("other", 0)).is_err());
        setup.runtime.start_again();
        // The client may hold a connection that the proxy closed because the runtime was away.
        let through = &setup.through;
        wait_until("calls pass the proxy again", SOON, || through.answers(), |answer| *answer);
        let status = poll_until(
            SOON,
            || through.container_status(&id).state(),
            |state| *state == v1::ContainerState::ContainerRunning,
        );
        assert!(status.is_ok(), "{status:?}");
    }
}

/// An event of a watch of a pod.
fn pod_event(kind: &str, pod: &Value) -> Value {
    json!({ "type": kind, "object": pod })
}

#[test]
fn each_thing_is_seen_of_a_pod_for_the_first_time() {
    let mut pod = json!({ "metadata": { "name": "web" }, "spec": {} });
    let mut seen = Sightings::default();
    seen.note(&pod_event("ADDED", &pod), 10);
    pod["spec"]["nodeName"] = json!("node1");
    seen.note(&pod_event("MODIFIED", &pod), 20);
    pod["status"] = json!({ "conditions": [{ "type": "Ready", "status": "False" }] });
    seen.note(&pod_event("MODIFIED", &pod), 30);
    pod["status"]["conditions"][0]["status"] = json!("True");
    seen.note(&pod_event("MODIFIED", &pod), 40);
    seen.note(&pod_event("MODIFIED", &pod), 50);
    let ready =
        Sighting { added: 10, bound: Some(20), ready: Some(40), deleting: None, gone: None };
    assert_eq!(seen.0["web"], ready);
    pod["metadata"]["deletionTimestamp"] = json!("2026-11-26T10:00:00Z");
    seen.note(&pod_event("MODIFIED", &pod), 60);
    seen.note(&pod_event("DELETED", &pod), 70);
    assert_eq!(seen.0["web"], Sighting { deleting: Some(60), gone: Some(70), ..ready });
}

#[test]
fn sights_of_many_pods_are_counted_and_timed() {
    let second = 1_000_000_000;
    let web = Sighting { added: second, ready: Some(3 * second), ..Sighting::default() };
    let slow = Sighting { ready: Some(6 * second), ..web };
    let pending = Sighting { ready: None, ..web };
    let pods = [("web", web), ("slow", slow), ("pending", pending)];
    let seen = Sightings(pods.map(|(name, pod)| (name.to_owned(), pod)).into());
    assert_eq!(seen.count(|pod| pod.ready), 2);
    assert_eq!(seen.last(|pod| pod.ready), Some(6 * second));
    assert_eq!(seen.last(|pod| pod.gone), None);
    assert_eq!(seen.times(|_, pod| Some(pod.added), |pod| pod.ready), [5.0, 2.0]);
    let only_web = |name: &str, pod: &Sighting| (name == "web").then_some(pod.added);
    assert_eq!(seen.times(only_web, |pod| pod.ready), [2.0]);
}

#[test]
fn percentiles_are_nearest_ranks() {
    let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
    for (values, percent, expected) in [
        (&hundred[..], 50, 50.0),
        (&hundred, 99, 99.0),
        (&hundred, 100, 100.0),
        // Of 50 values every one is more than a hundredth.
        (&hundred[50..], 99, 50.0),
        (&hundred[..1], 50, 100.0),
        (&[], 99, f64::INFINITY),
    ] {
        let found = percentile(values, percent);
        assert!(found.total_cmp(&expected).is_eq(), "{percent} %: {found}");
    }
}

#[test]
fn paths_of_one_kind_are_one() {
    for (path, kind) in [
        ("/api/v1/namespaces/default/pods/web-1/status", "pods/*/status"),
        ("/api/v1/namespaces/default/pods", "pods"),
        ("/api/v1/namespaces/default", "namespaces/*"),
        ("/api/v1/nodes/node1", "nodes/*"),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node1", "leases/*"),
        ("/api/v1/namespaces/default/serviceaccounts/default/token", "serviceaccounts/*/token"),
        ("/version", "/version"),
    ] {
        assert_eq!(kind_of(path), kind, "{path}");
    }
}
