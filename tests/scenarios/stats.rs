//! What containers and pods have used, in the kubelet's forms, on real ones.

use crate::support::{
    agent::Settings,
    images::BUSYBOX,
    manifest::Pod,
    status::{Status, get},
    world::{Kind, World},
};
use serde_json::{Value, json};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
};

const MIB: u64 = 1 << 20;

/// Writes 3 MiB into its layer, 2 and 1 into its volumes, half a one into its log, keeps 16 in
/// memory, and uses as much CPU as it is let.
const USES: &str = "head -c 3145728 /dev/zero >/layer; head -c 2097152 /dev/zero >/disk/file; \
    head -c 1048576 /dev/zero >/memory/file; head -c 16777216 /dev/zero >/held/file; \
    yes a line for the log | head -c 524288; while true; do :; done";

/// A pod that uses something of everything: a tenth of a CPU, 64 MiB at most.
fn user() -> Pod {
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
    let memory = json!({ "medium": "Memory" });
    Pod::with_main("user", USES)
        .set("containers/0/image", BUSYBOX)
        .set("containers/0/resources", json!({ "limits": { "cpu": "100m", "memory": "64Mi" } }))
        .set("containers/0/volumeMounts", json!([mount("disk"), mount("memory"), mount("held")]))
        .set(
            "volumes",
            json!([
                { "name": "disk", "emptyDir": {} },
                { "name": "memory", "emptyDir": memory },
                { "name": "held", "emptyDir": memory },
            ]),
        )
}

fn asked(world: &World, path: &str) -> String {
    get(&world.agent.run_dir().join("nodelet.sock"), path).unwrap_or_default()
}

fn summary(world: &World) -> Value {
    serde_json::from_str(&asked(world, "/stats/summary")).unwrap_or_default()
}

fn pod<'a>(summary: &'a Value, name: &str) -> &'a Value {
    let all = summary["pods"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_it = |pod: &&Value| pod["podRef"]["name"].as_str().is_some_and(|n| n.starts_with(name));
    all.iter().find(is_it).unwrap_or(&Value::Null)
}

#[track_caller]
fn within(value: &Value, low: u64, high: u64) -> u64 {
    let number = value.as_u64().unwrap_or_else(|| panic!("no number: {value}"));
    assert!((low..=high).contains(&number), "{number} is not between {low} and {high}");
    number
}

/// The value of the first sample whose name and labels contain these texts.
fn sample(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let of_name = text
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    let mut found = of_name.filter(|line| labels.iter().all(|label| line.contains(label)));
    let line = found.next()?;
    line.rsplit_once('}')
        .map_or(line.strip_prefix(name)?, |(_, rest)| rest)
        .split(' ')
        .nth(1)?
        .parse()
        .ok()
}

pub fn statistics_tell_what_a_pod_uses(kind: Kind) {
    let settings = Settings::for_kind(kind).kubelet("volumeStatsAggPeriod: 1s\n");
    let world = World::start_with(kind, &settings);
    world.drop_pod(&user());
    let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
    world.drop_pod(&Pod::running("idle").set("containers/0/readinessProbe", probe));
    world.write("broken.yaml", "kind: Pod\n");
    world.wait_running("user");
    world.wait_running("idle");
    // The runtime measures images every ten seconds.
    let measured = |summary: &Value| {
        let container = &pod(summary, "user")["containers"][0];
        container["rootfs"]["usedBytes"].as_u64() >= Some(3 * MIB)
            && container["logs"]["usedBytes"].as_u64() >= Some(MIB / 2)
            && container["cpu"]["usageNanoCores"].as_u64().is_some_and(|rate| rate > 50_000_000)
            && summary["node"]["runtime"]["imageFs"]["usedBytes"].as_u64() > Some(0)
    };
    let found = world.wait_until("all of it is measured", || summary(&world), measured);
    let user = pod(&found, "user");
    let container = &user["containers"][0];
    assert_eq!(container["name"], "main");
    let used = |volume: &str| {
        let all = user["volume"].as_array().unwrap();
        &all.iter().find(|one| one["name"] == volume).unwrap()["usedBytes"]
    };
    within(used("disk"), 2 * MIB, 2 * MIB + MIB / 4);
    within(used("memory"), MIB, MIB + MIB / 4);
    within(used("held"), 16 * MIB, 17 * MIB);
    within(&user["ephemeral-storage"]["usedBytes"], 5 * MIB + MIB / 2, 8 * MIB);
    // A tenth of a CPU, and what the kernel lets it have in bursts.
    within(&container["cpu"]["usageNanoCores"], 50_000_000, 150_000_000);
    let memory = within(&container["memory"]["workingSetBytes"], 17 * MIB, 64 * MIB);
    within(&container["memory"]["availableBytes"], 64 * MIB - memory, 64 * MIB - memory);
    within(&user["memory"]["workingSetBytes"], memory, 70 * MIB);
    assert_eq!(user["process_stats"]["process_count"], 1, "the shell, without the sandbox");
    within(&pod(&found, "idle")["cpu"]["usageNanoCores"], 0, 20_000_000);
    // The pod has its own network, of which the node's is none.
    assert_eq!(user["network"]["name"], "eth0");
    let node = &found["node"];
    assert_eq!(node["nodeName"], "node1");
    within(&node["memory"]["workingSetBytes"], 64 * MIB, u64::MAX);
    within(&node["cpu"]["usageCoreNanoSeconds"], 1_000_000_000, u64::MAX);
    let capacity = node["fs"]["capacityBytes"].as_u64().unwrap();
    within(&node["fs"]["usedBytes"], MIB, capacity);
    within(&node["runtime"]["imageFs"]["usedBytes"], 1, capacity);
    let systems: Vec<_> =
        node["systemContainers"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(systems, ["kubelet", "pods"]);
    let own = &node["systemContainers"][0]["memory"]["rssBytes"];
    within(own, world.agent.usage().anon_kib * 1024, 200 * MIB);

    tells_machines(&world);
    tells_of_its_work(&world);
    short_is_short(&world);
    people_see_it(&world);
    world.remove("user.yaml");
    world.wait_until("the pod is gone", || summary(&world), |all| pod(all, "user").is_null());
    assert_eq!(sample(&asked(&world, "/metrics/cadvisor"), "container_threads", &["user-"]), None);
    world.finish();
}

/// The same in the text format of Prometheus.
fn tells_machines(world: &World) {
    let resource = asked(world, "/metrics/resource");
    let of_container = ["container=\"main\"", "namespace=\"default\"", "pod=\"user-node1\""];
    let read = |name: &str, labels: &[&str]| sample(&resource, name, labels).unwrap();
    let cpu = read("container_cpu_usage_seconds_total", &of_container);
    assert!(cpu > 0.1, "{cpu}");
    assert!(read("pod_cpu_usage_seconds_total", &of_container[1..]) >= cpu);
    assert!(read("node_cpu_usage_seconds_total", &[]) > cpu);
    assert!(read("container_memory_working_set_bytes", &of_container) > 16.0 * 1024.0 * 1024.0);
    assert!(read("container_start_time_seconds", &of_container) > 1.7e9);
    assert!(read("resource_scrape_error", &[]) == 0.0);

    let cadvisor = asked(world, "/metrics/cadvisor");
    let read = |name: &str, labels: &[&str]| {
        sample(&cadvisor, name, labels)
            .unwrap_or_else(|| panic!("no {name} {labels:?}:\n{cadvisor}"))
    };
    let image = format!("image=\"{BUSYBOX}\"");
    let mut labels = of_container.to_vec();
    labels.extend([&*image, "name=\"", "id=\"/"]);
    assert!(
        read("container_cpu_usage_seconds_total", &[&labels[..], &["cpu=\"total\""]].concat())
            >= cpu
    );
    assert!(read("container_memory_working_set_bytes", &labels) > 16.0 * 1024.0 * 1024.0);
    assert!(read("container_spec_memory_limit_bytes", &labels) == 64.0 * 1024.0 * 1024.0);
    assert!(read("container_spec_cpu_quota", &labels) == 10_000.0);
    assert!(read("container_cpu_cfs_throttled_periods_total", &labels) > 1.0);
    assert!(read("container_fs_usage_bytes", &labels) >= 3.0 * 1024.0 * 1024.0);
    assert!(read("container_threads", &labels) >= 1.0);
    let pod = ["container=\"\"", "image=\"\"", "pod=\"user-node1\""];
    let on_network = [&pod[..], &["interface=\"eth0\""]].concat();
    assert!(read("container_network_receive_packets_total", &on_network) >= 0.0);
    assert!(read("container_memory_working_set_bytes", &["id=\"/\""]) > 0.0);
    assert!(read("machine_cpu_cores", &["boot_id=\""]) >= 1.0);
}

/// What the agent counts itself.
fn tells_of_its_work(world: &World) {
    let read = |name: &str, labels: &[&str]| {
        let text = asked(world, "/metrics");
        sample(&text, name, labels).unwrap_or_else(|| panic!("no {name} {labels:?}:\n{text}"))
    };
    assert!(read("kubelet_running_pods", &[]) == 2.0);
    assert!(read("kubelet_running_containers", &["container_state=\"running\""]) == 2.0);
    assert!(read("kubelet_started_pods_total", &[]) >= 2.0);
    assert!(read("kubelet_started_containers_total", &["container_type=\"container\""]) >= 2.0);
    for operation in ["run_podsandbox", "create_container", "start_container", "list_containers"] {
        let label = format!("operation_type=\"{operation}\"");
        assert!(read("kubelet_runtime_operations_total", &[&label]) >= 1.0, "{operation}");
        let name = "kubelet_runtime_operations_duration_seconds_count";
        assert!(read(name, &[&label]) >= 1.0, "{operation}");
    }
    assert!(read("kubelet_pod_start_duration_seconds_count", &[]) == 2.0);
    let longest = read("kubelet_pod_start_duration_seconds_sum", &[]);
    assert!(longest > 0.0 && read("kubelet_pod_start_sli_duration_seconds_sum", &[]) <= longest);
    assert!(
        read("kubelet_pod_worker_duration_seconds_count", &["operation_type=\"create\""]) >= 2.0
    );
    assert!(read("kubelet_pleg_relist_duration_seconds_count", &[]) >= 1.0);
    assert!(read("kubelet_pleg_last_seen_seconds", &[]) > 1.7e9);
    assert!(read("nodelet_rejected_manifests", &[]) == 1.0);
    assert!(read("process_resident_memory_bytes", &[]) > 1e6);
    let probes = asked(world, "/metrics/probes");
    let of_probe = ["pod=\"idle-node1\"", "probe_type=\"Readiness\"", "result=\"successful\""];
    assert!(sample(&probes, "prober_probe_total", &of_probe) >= Some(1.0), "{probes}");
    let slis = asked(world, "/metrics/slis");
    let of_check = ["name=\"syncloop\"", "type=\"healthz\""];
    assert_eq!(sample(&slis, "kubernetes_healthcheck", &of_check), Some(1.0), "{slis}");

    // Every series is on the page that describes them.
    let page = include_str!("../../docs/metrics.md");
    for path in ["", "/probes", "/slis", "/resource", "/cadvisor"] {
        let text = asked(world, &format!("/metrics{path}"));
        let types: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert!(types.len() > 1, "/metrics{path}:\n{text}");
        for (name, kind) in types.iter().filter_map(|line| line.split_once(' ')) {
            let row = format!("| `{name}` | {kind} |");
            assert!(page.contains(&row), "/metrics{path} has {name} ({kind}), docs/metrics.md not");
        }
    }
    world.remove("broken.yaml");
    world.remove("idle.yaml");
    world.wait("the pod is gone", |status| status.pod("idle").is_none());
    let text = asked(world, "/metrics/probes");
    assert_eq!(sample(&text, "prober_probe_total", &of_probe), None);
}

fn people_see_it(world: &World) {
    let top = |words: &[&str]| {
        let output = world.agent.cli(words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let words = |all: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        all.lines().map(words).collect()
    };
    // It wants a tenth of a processor, and gets less now and then.
    let tenth = |all: &String| {
        let lines = words(all);
        let user = lines.iter().find(|line| line.get(1).is_some_and(|name| name == "user-node1"));
        let millis: u32 = user.unwrap()[2].strip_suffix('m').unwrap().parse().unwrap();
        (50..=150).contains(&millis)
    };
    let all = world.wait_until("the use of a pod is shown", || top(&["top"]), tenth);
    let lines = words(&all);
    assert_eq!(lines[0], ["NODE", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"], "{all}");
    assert!(lines[1][0] == "node1" && lines[1].len() == 5, "{all}");
    let containers = top(&["top", "user", "--containers"]);
    assert!(containers.starts_with("NAMESPACE"), "{containers}");
    assert!(containers.lines().count() == 2 && containers.contains("   main   "), "{containers}");
    let missing = world.agent.cli(&["top", "other"]);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
}

fn short_is_short(world: &World) {
    let text = asked(world, "/stats/summary?only_cpu_and_memory=true");
    let short: Value = serde_json::from_str(&text).unwrap();
    let user = pod(&short, "user");
    assert!(user["containers"][0]["memory"]["workingSetBytes"].is_u64(), "{user}");
    assert!(user["network"].is_null() && user["volume"].is_null(), "{user}");
    assert!(short["node"]["fs"].is_null() && short["node"]["memory"].is_object());
}

/// The value of a series that the agent serves on `/metrics`; 0 where it has no such series.
pub(super) fn counted(world: &World, name: &str, labels: &[&str]) -> f64 {
    sample(&asked(world, "/metrics"), name, labels).unwrap_or_default()
}

#[track_caller]
fn wait_counted(world: &World, name: &str, labels: &[&str], wanted: f64) {
    let what = format!("{name} {labels:?} is {wanted}");
    world.wait_until(&what, || counted(world, name, labels), |value| (value - wanted).abs() < 0.1);
}

/// A pod that completes, one that crashes, one whose init container fails, and one that is stopped.
fn ends_are_counted(world: &World) {
    const ENDS: &str = "kubelet_terminated_containers_total";
    world.drop_pod(&Pod::with_main("job", "echo done").set("restartPolicy", "Never"));
    world.drop_pod(&Pod::with_main("crash", "exit 3"));
    let fails = Pod::running("fails").init("first", "exit 7").set("restartPolicy", "Never");
    world.drop_pod(&fails);
    let stops = Pod::running("stops").init("first", "true");
    world.drop_pod(&stops.set("terminationGracePeriodSeconds", 30));
    world.wait_running("stops");
    world.wait("the init container has failed", |status| status.phase("fails") == "Failed");
    world.wait("the job has ended", |status| status.phase("job") == "Succeeded");
    let completed = ["container_type=\"container\"", "exit_code=\"0\"", "reason=\"Completed\""];
    wait_counted(world, ENDS, &completed, 1.0);
    let of_init = |code| ["container_type=\"init_container\"", code];
    wait_counted(world, ENDS, &of_init("exit_code=\"7\""), 1.0);
    wait_counted(world, ENDS, &of_init("exit_code=\"0\""), 1.0);
    let crashed = ["container_type=\"container\"", "exit_code=\"3\"", "reason=\"Error\""];
    let restarted = |status: &Status| status.restarts("crash", "main") >= 1;
    world.wait("the crash has restarted", restarted);
    world.remove("crash.yaml");
    world.wait_gone("crash");
    let crashes = counted(world, ENDS, &crashed);
    assert!(crashes >= 1.0, "{crashes}");
    world.remove("fails.yaml");
    world.wait_gone("fails");
    // The agent itself stops its container.
    world.remove("stops.yaml");
    world.wait_gone("stops");
    let all = asked(world, "/metrics");
    let of_containers = all.lines().filter(|line| line.starts_with(ENDS));
    let labels =
        |line: &str| line.contains("\"0\"") || line.contains("\"3\"") || line.contains("\"7\"");
    assert!(of_containers.clone().all(labels), "{:?}", of_containers.collect::<Vec<_>>());
}

/// Containers that end, pods that are refused, preempted and removed, and what that takes.
pub fn ends_refusals_and_preemptions_are_counted(kind: Kind) {
    let world = World::start(kind);
    ends_are_counted(&world);
    let read = |name: &str, labels: &[&str]| counted(&world, name, labels);

    let working = |lifecycle: &str, wanted| {
        let labels =
            ["config=\"desired\"", &format!("lifecycle=\"{lifecycle}\""), "static=\"true\""];
        wait_counted(&world, "kubelet_working_pods", &labels, wanted);
    };
    working("terminated", 1.0);
    working("sync", 0.0);
    world.remove("job.yaml");
    world.wait_gone("job");

    let cpu = |name: &str, cpu: &str, priority: i64| {
        Pod::running(name)
            .set("priority", priority)
            .set("containers/0/resources", json!({ "requests": { "cpu": cpu } }))
    };
    world.drop_pod(&cpu("greedy", "1000", 0));
    wait_counted(&world, "kubelet_admission_rejections_total", &["reason=\"OutOfcpu\""], 1.0);
    world.remove("greedy.yaml");
    world.wait_gone("greedy");
    let most = std::thread::available_parallelism().unwrap().get();
    let most = format!("{}m", most * 1000 - 500);
    world.drop_pod(&cpu("victim", &most, 0));
    world.wait_running("victim");
    working("sync", 1.0);
    world.drop_pod(&cpu("critical", &most, 2_000_000_000));
    world.wait_running("critical");
    wait_counted(&world, "kubelet_preemptions", &["preemption_signal=\"cpu\""], 1.0);

    let log = ["container=\"main\"", "namespace=\"default\"", "pod=\"critical-node1\"", "uid=\""];
    world.wait_until(
        "the log of a container is measured",
        || sample(&asked(&world, "/metrics"), "kubelet_container_log_filesystem_used_bytes", &log),
        Option::is_some,
    );
    assert!(
        read("kubelet_run_podsandbox_duration_seconds_count", &["runtime_handler=\"\""]) >= 5.0
    );
    assert!(read("kubelet_pod_worker_start_duration_seconds_count", &[]) >= 5.0);
    assert!(read("kubelet_pleg_pod_relist_duration_seconds_count", &[]) >= 1.0);
    assert!(read("kubelet_evented_pleg_connection_success_count", &[]) >= 1.0);
    assert!(read("kubelet_evented_pleg_connection_latency_seconds_count", &[]) >= 3.0);
    let longest = read("kubelet_evented_pleg_connection_latency_seconds_sum", &[]);
    assert!((0.0..600.0).contains(&longest), "{longest}");
    let ttl = read("kubelet_certificate_manager_server_ttl_seconds", &[]);
    assert!(ttl == 0.0 || ttl > 24.0 * 3600.0, "{ttl}");
    // The machine does not go down, and there is no API server.
    for absent in ["kubelet_graceful_shutdown", "kubelet_node_startup", "kubelet_mirror_pods"] {
        assert!(!asked(&world, "/metrics").contains(absent), "{absent}");
    }
    if kind == Kind::Real {
        for operation in ["create", "destroy"] {
            let operation = format!("operation_type=\"{operation}\"");
            assert!(read("kubelet_cgroup_manager_duration_seconds_count", &[&operation]) >= 3.0);
        }
    }
    world.finish();
}

/// The status page for a browser, with graphs from the second look on.
pub fn the_status_page_is_printed(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let page = || {
        let output = world.agent.cli(&["status", "--html"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let first = page();
    assert!(first.starts_with("<!DOCTYPE html>") && first.ends_with("</html>\n"), "{first}");
    for part in ["Everything runs as it should.", "<h1>node1</h1>", "</span>web-node1</th>"] {
        assert!(first.contains(part), "no {part} in {first}");
    }
    // It needs nothing and does nothing.
    assert!(!first.contains("<script") && !first.contains("src="), "{first}");
    assert!(!first.contains("<polyline"), "nobody has looked before: {first}");
    let memory = "Memory in the last 5 minutes";
    world.wait_until("graphs begin with the first look", page, |page| page.contains(memory));
    world.write("broken.yaml", "kind: Pod\nspec: <script>");
    world.wait_until("the page tells what is wrong", page, |page| {
        page.contains("broken.yaml is rejected</li>") && !page.contains("<script")
    });
    let with_pod = world.agent.cli(&["status", "--html", "web"]);
    assert_eq!(with_pod.status.code(), Some(2), "{with_pod:?}");
    world.finish();
}

pub fn the_read_only_port_tells_and_changes_nothing(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let port = world.agent.api_port();
    world.agent.add_flag(format!("--read-only-port={port}"));
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let answer = |request: &str| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        write!(stream, "{request} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    for (request, part) in [
        ("GET /healthz", "\r\n\r\nok"),
        ("GET /pods", "\"name\":\"web-node1\""),
        ("GET /stats/summary", "\"nodeName\":\"node1\""),
        ("GET /metrics", "\nkubelet_running_pods 1\n"),
        ("GET /metrics/resource", "\nnode_memory_working_set_bytes "),
        ("GET /runningpods/", "405 Method Not Allowed"),
        ("POST /run/default/web-node1/main?cmd=id", "Debug endpoints are disabled."),
        ("GET /exec/default/web-node1/main?command=id&output=1", "Debug endpoints are disabled."),
        ("GET /configz", "404 Not Found"),
        ("DELETE /metrics/slis", "405 Method Not Allowed"),
        ("POST /restart", "404 Not Found"),
    ] {
        let text = answer(request);
        assert!(text.contains(part), "{request}: {text}");
    }
    world.finish();
}
