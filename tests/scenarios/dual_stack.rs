//! A pod network with an IPv4 and an IPv6 range, on a node with an address of each family.

use crate::support::{
    agent::Settings,
    manifest::Pod,
    process::Process,
    skips::say_skipped,
    status::Status,
    world::{Kind, World},
};
use nodelet::model::k8s;
use serde_json::json;
use std::path::Path;

/// Serves on the pod's primary address only, so that a probe of another address fails.
const SERVE: &str = "mkdir -p /www; echo hello >/www/index.html; at=$IP; \
    case $IP in *:*) at=\"[$IP]\" ;; esac; exec httpd -f -p \"$at:8080\" -h /www";

/// A pod that is ready when the server on its primary address answers a probe.
fn web(name: &str) -> Pod {
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    Pod::with_main(name, SERVE)
        .set(
            "containers/0/env",
            json!([
                field("IP", "status.podIP"),
                field("IPS", "status.podIPs"),
                field("HOST", "status.hostIP"),
                field("HOSTS", "status.hostIPs"),
            ]),
        )
        .set(
            "containers/0/readinessProbe",
            json!({ "httpGet": { "port": 8080, "path": "/index.html" }, "periodSeconds": 1 }),
        )
}

fn pod_ips(status: &k8s::PodStatus) -> Vec<&str> {
    status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect()
}

fn host_ips(status: &k8s::PodStatus) -> Vec<&str> {
    status.host_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect()
}

/// Checks everything that tells the addresses of a pod made by [`web`]; `first` is the start of its
/// primary address, `second` that of the other one.
#[track_caller]
fn check(world: &World, name: &str, [first, second]: [&str; 2], of_node: [&str; 2]) {
    let status = world.wait_running(name);
    let status = &status.pod(name).unwrap().status;
    let ips = pod_ips(status);
    assert!(
        ips.len() == 2 && ips[0].starts_with(first) && ips[1].starts_with(second),
        "{first} and {second} in {ips:?}"
    );
    assert_eq!(status.pod_ip.as_deref(), Some(ips[0]));
    assert_eq!(host_ips(status), of_node);
    assert_eq!(status.host_ip.as_deref(), Some(of_node[0]));

    let process = Process::of(world, name, "main");
    let env = process.env();
    let expected = [
        ("IP", ips[0].to_owned()),
        ("IPS", ips.join(",")),
        ("HOST", of_node[0].to_owned()),
        ("HOSTS", of_node.join(",")),
    ];
    for (variable, value) in expected {
        assert_eq!(env[variable], value, "{variable}");
    }
    let hosts = process.read("/etc/hosts");
    for ip in &ips {
        assert!(hosts.contains(&format!("\n{ip}\t{name}-node1\n")), "{ip} in {hosts}");
    }
    let printed = world.agent.cli(&["status", name]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let shown = |line: &str| {
        line.split_once("IPs:").is_some_and(|(_, value)| value.trim() == ips.join(", "))
    };
    assert!(printed.lines().any(shown), "{ips:?} in {printed}");
}

pub fn pods_have_an_address_of_each_family(kind: Kind) {
    if !Path::new("/proc/net/if_inet6").exists() {
        return say_skipped("this kernel has no IPv6");
    }
    let world = World::prepare(kind, &Settings::for_kind(kind));
    world.agent.add_flag("--node-ip=127.0.0.7,fd00::7".to_owned());
    world.runtime.set_network_ready(false);
    world.agent.start();
    let is_away = |status: &Status| status.node.runtime.network_not_ready.is_some();
    world.wait("the network is away", is_away);
    let containerd = world.runtime.containerd();
    containerd.set_network_of_two_families();
    let (v4, v6) = (containerd.pod_network(), containerd.pod_network_v6());
    world.drop_pod(&web("web4"));
    world.drop_pod(&Pod::running("plain"));
    world.drop_pod(&Pod::running("host").set("hostNetwork", true));
    check(&world, "web4", [&v4, &v6], ["127.0.0.7", "fd00::7"]);
    let status = world.wait_running("host");
    assert_eq!(pod_ips(&status.pod("host").unwrap().status), ["127.0.0.7", "fd00::7"]);
    let status = world.wait_running("plain");
    let before: Vec<String> =
        pod_ips(&status.pod("plain").unwrap().status).into_iter().map(str::to_owned).collect();
    world.remove("web4.yaml");
    world.wait_gone("web4");

    // The other family is the first one of the node from now on.
    let running = ["plain", "host"].map(|pod| world.running_ids(pod));
    world.agent.kill();
    world.agent.remove_flags("--node-ip");
    world.agent.add_flag("--node-ip=fd00::8,127.0.0.8".to_owned());
    world.agent.start();
    world.drop_pod(&web("web6"));
    check(&world, "web6", [&v6, &v4], ["fd00::8", "127.0.0.8"]);
    let status = world.wait_running("plain");
    assert_eq!(
        pod_ips(&status.pod("plain").unwrap().status),
        [&*before[1], &*before[0]],
        "before: {before:?}"
    );
    let status = world.wait_running("host");
    assert_eq!(pod_ips(&status.pod("host").unwrap().status), ["fd00::8", "127.0.0.8"]);
    assert_eq!(["plain", "host"].map(|pod| world.running_ids(pod)), running);
    world.finish();
}
