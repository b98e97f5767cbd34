//! The runtime dies, its sandboxes die, and it serves others too.

use crate::support::{
    agent::Settings,
    images::BUSYBOX,
    manifest::{FOREVER, Pod},
    status::Status,
    stays,
    world::{Kind, Runtime, World},
};
use nodelet::cri::v1;
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

pub fn a_dead_daemon_restarts_nothing(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.drop_pod(&Pod::running("unlucky"));
    world.wait_running("web");
    world.wait_running("unlucky");
    let ids = world.running_ids("web");
    let kill_unlucky = world.container_killer(&world.running_id("unlucky", "main"));
    world.proxy.forget_calls();
    world.runtime.kill();
    // As with the kubelet, the runtime counts as down after 30 s without an answer; this is told at
    // once.
    world.wait("the agent says that no events arrive", |status| !status.node.pleg.events_connected);
    kill_unlucky();
    world.drop_pod(&Pod::running("late"));
    world.runtime.start_again();
    world.wait("all run, the dead one again", |status| {
        status.runs("late") && status.runs("unlucky") && status.restarts("unlucky", "main") == 1
    });
    assert_eq!(world.running_ids("web"), ids);
    assert_eq!(world.proxy.count("StopContainer", "web"), 0);
    world.finish();
}

pub fn a_node_without_its_runtime_is_not_ready(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    world.runtime.kill();
    world.agent.start();
    // Until it has answered once, 30 s of patience would say nothing.
    world.wait("the runtime is shown as down", |status| status.node.runtime.not_ready.is_some());
    world.runtime.start_again();
    world.wait("the runtime is shown as ready", |status| {
        status.node.runtime.not_ready.is_none() && !status.node.runtime.name.is_empty()
    });
    world.finish();
}

pub fn a_dead_sandbox_is_replaced(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.drop_pod(&Pod::running("other"));
    world.wait_running("web");
    world.wait_running("other");
    let other = world.running_ids("other");
    let before = world.running_id("web", "main");
    world.kill_sandbox(&world.sandboxes("web")[0].id);
    let attempt = |world: &World| {
        let newest = world.sandboxes("web").into_iter().next();
        newest.map(|s| (s.metadata.as_ref().unwrap().attempt, s.state()))
    };
    let ready = v1::PodSandboxState::SandboxReady;
    world.wait_until("a new sandbox", || attempt(&world), |seen| *seen == Some((1, ready)));
    let status = world.wait("the pod runs in it", |status| {
        status.runs("web") && status.restarts("web", "main") == 1
    });
    assert!(status.has_event("SandboxChanged", "web"), "{status:?}");
    assert_ne!(world.running_id("web", "main"), before);
    assert_eq!(world.running_ids("other"), other);
    world.finish();
}

/// A pod as another agent would make it.
fn make_foreign_pod(world: &World) -> (String, String) {
    let labels: BTreeMap<String, String> = [
        ("io.kubernetes.pod.name", "stranger"),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", "1234"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "stranger".to_owned(),
            uid: "1234".to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        labels: labels.clone(),
        log_directory: world.slot.dir().join("foreign-logs").display().to_string(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: world.slot.cgroup_root(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let sandbox = world.cri.run_sandbox(config.clone()).unwrap();
    let mut container_labels = labels;
    container_labels.insert("io.kubernetes.container.name".to_owned(), "main".to_owned());
    let container = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: BUSYBOX.to_owned(), ..Default::default() }),
        command: vec!["sleep".to_owned(), "100000".to_owned()],
        labels: container_labels,
        log_path: "main.log".to_owned(),
        ..Default::default()
    };
    let id = world.cri.create_container(&sandbox, container, config).unwrap();
    world.cri.start_container(&id).unwrap();
    (sandbox, id)
}

pub fn a_foreign_pod_is_left_alone(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let (sandbox, container) = make_foreign_pod(&world);
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    world.wait("the foreign pod is listed", |status| {
        status.runs("web") && status.node.foreign.iter().any(|pod| &*pod.key.name == "stranger")
    });
    world.agent.kill();
    world.agent.start();
    world.remove("web.yaml");
    world.wait_gone("web");
    let touched =
        || world.proxy.mutating_calls().into_iter().filter(|c| c.is_for("stranger")).count();
    stays("nobody touches it", Duration::from_secs(2), touched, |n| *n == 0);
    let state = world.cri.container_status(&container).state();
    assert_eq!(state, v1::ContainerState::ContainerRunning);
    world.cri.remove_sandbox(&sandbox).unwrap();
    world.finish();
}

/// Another agent with the same node name and the same manifest, that came a moment earlier.
pub fn a_name_that_another_agent_took_is_left_to_it(kind: Kind) {
    let world = World::start(kind);
    let web = Pod::running("web");
    world.drop_pod(&web);
    world.wait_running("web");
    let calls = world.proxy.calls();
    let made = calls.iter().find(|call| call.method == "RunPodSandbox" && call.is_for("web"));
    let mut config = made.unwrap().request::<v1::RunPodSandboxRequest>().config.unwrap();
    config.labels.insert("nodelet.dev/owner".to_owned(), "another".to_owned());
    world.remove("web.yaml");
    world.wait_gone("web");

    world.proxy.forget_calls();
    world.proxy.on("RunPodSandbox").pod("web").times(1).delay(Duration::from_secs(3));
    world.drop_pod(&web);
    world.wait_until(
        "the agent asks for the name",
        || world.proxy.count("RunPodSandbox", "web"),
        |n| *n == 1,
    );
    let theirs = world.cri.run_sandbox(config).unwrap();
    world.wait("it says whose the name is", |status| {
        status.has_event("FailedCreatePodSandBox", "belongs to the nodelet with owner id another")
    });
    let ready = || {
        let sandboxes = world.cri.sandboxes().into_iter();
        sandboxes.filter(|s| s.state() == v1::PodSandboxState::SandboxReady).map(|s| s.id).collect()
    };
    stays(
        "theirs runs, and nothing beside it",
        Duration::from_secs(4),
        ready,
        |ids: &Vec<String>| *ids == [theirs.clone()],
    );
    world.cri.remove_sandbox(&theirs).unwrap();
    world.wait_for(Duration::from_secs(60), "the name is free", |status| status.runs("web"));
    world.finish();
}

pub fn pods_wait_for_the_network_and_host_network_pods_do_not(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    world.runtime.set_network_ready(false);
    world.agent.start();
    let away = |status: &Status| status.node.runtime.network_not_ready.is_some();
    world.wait("the network is said to be away", away);
    world.drop_pod(&Pod::running("web"));
    world.drop_pod(&Pod::running("host").set("hostNetwork", true));
    let status = world.wait("the host-network pod runs", |status| status.runs("host"));
    assert!(!status.runs("web"), "{status:?}");
    world.wait("the waiting pod says why", |status| {
        status.has_event("NetworkNotReady", "web")
            && status.pod("web").is_some_and(|pod| pod.waiting.is_some())
    });
    assert_eq!(world.proxy.count("RunPodSandbox", "web"), 0);
    world.runtime.set_network_ready(true);
    world.wait_running("web");
    world.finish();
}

/// For the fake alone: what a real one supports does not change.
pub fn strict_groups_wait_for_a_runtime_that_supports_them(kind: Kind) {
    let world = World::start(kind);
    let Runtime::Fake(fake) = &world.runtime else { panic!("a real runtime does not change") };
    let strict = json!({ "supplementalGroupsPolicy": "Strict" });
    world.drop_pod(&Pod::running("web").set("securityContext", strict));
    world.wait("the pod is refused", |status| {
        status.has_event("SupplementalGroupsPolicyNotSupported", "web")
    });
    assert_eq!(world.proxy.count("RunPodSandbox", "web"), 0);
    fake.set_strict_groups(true);
    world.wait_running("web");
    world.finish();
}

pub fn a_second_agent_refuses_and_names_the_first(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let ids = world.running_ids("web");
    let refused = world.agent.run_to_end().expect("a second agent must not run");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    let pid = world.agent.pid().to_string();
    assert!(said.contains(&pid), "it names the process {pid}: {said}");
    assert_eq!(world.running_ids("web"), ids);
    world.finish();
}

/// Once for a pod, however many containers it has; an agent without a cluster does not tell it.
pub fn a_pod_without_cluster_dns_is_told_in_a_cluster(kind: Kind) {
    const REASON: &str = "MissingClusterDNS";
    const TEXT: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
         \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let world = World::start(kind);
    world.drop_pod(&Pod::running("alone"));
    let status = world.wait_running("alone");
    assert!(!status.has_event(REASON, ""), "{:#?}", status.events);
    world.agent.terminate();
    let kubeconfig = world.agent.config_file().with_file_name("kubeconfig");
    // Nothing answers there.
    std::fs::write(
        &kubeconfig,
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{name: c, cluster: {server: \"http://127.0.0.1:9\"}}]\n\
         contexts: [{name: c, context: {cluster: c, user: u}}]\n\
         users: [{name: u, user: {token: t}}]\n",
    )
    .unwrap();
    world.agent.join(&kubeconfig);
    world.agent.start();
    world.drop_pod(&Pod::running("web").container("other", FOREVER));
    world.drop_pod(&Pod::running("none").set("dnsPolicy", "Default"));
    world.wait_running("web");
    world.wait_running("none");
    let status = world.wait("the events are told", |status| {
        status.events.iter().filter(|event| event["reason"] == REASON).count() >= 2
    });
    let about = |name: &str| -> Vec<_> {
        let of = |event: &&serde_json::Value| event["reason"] == REASON;
        let events = status.events.iter().filter(of);
        events.filter(|event| event["involvedObject"]["name"] == name).collect()
    };
    let uid = &status.pod("web").unwrap().uid;
    let of_pod = format!("pod: \"web-node1_default({uid})\". {TEXT}");
    for (name, message) in [("web-node1", of_pod.as_str()), ("node1", TEXT)] {
        let events = about(name);
        assert_eq!(events.len(), 1, "{:#?}", status.events);
        assert_eq!(events[0]["message"], serde_json::Value::from(message));
        assert_eq!(events[0]["count"], 1, "{:#?}", events[0]);
    }
    assert_eq!(about("none-node1").len(), 0, "{:#?}", status.events);
    world.finish();
}
