//! The fields of a pod, as its processes find them: on the real runtime only.

use crate::support::{
    agent::Settings,
    images::BUSYBOX,
    ip,
    manifest::{FOREVER, Pod},
    process::{Process, cgroup_value, myself},
    status::{Status, exchange},
    stays,
    world::{Kind, World},
};
use serde_json::json;
use std::{
    fs,
    net::TcpStream,
    os::unix::fs::{MetadataExt, PermissionsExt},
    time::Duration,
};

pub fn environment_and_command(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::running("web")
        .meta("labels", json!({ "app": "web", "tier": "front" }))
        .meta("annotations", json!({ "note": "read me" }))
        .set("containers/0/args", json!(["$(GREETING)", "$$(GREETING)", "$(MISSING)"]))
        .set("containers/0/workingDir", "/tmp")
        .set(
            "containers/0/resources",
            json!({ "requests": { "cpu": "250m" }, "limits": { "memory": "64Mi", "cpu": "1500m" } }),
        )
        .set(
            "containers/0/env",
            json!([
                { "name": "WHO", "value": "world" },
                { "name": "GREETING", "value": "hello $(WHO)" },
                { "name": "LITERAL", "value": "$$(WHO) $(LATER)" },
                { "name": "LATER", "value": "too late" },
                { "name": "EMPTY" },
                { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                { "name": "SPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
                { "name": "UID", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } },
                { "name": "TIER", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['tier']" } } },
                { "name": "NOTE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.annotations['note']" } } },
                { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
                { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
                { "name": "MEMORY", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory", "divisor": "1Mi" } } },
                { "name": "CPUS", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } },
                { "name": "MILLI", "valueFrom": { "resourceFieldRef": { "resource": "requests.cpu", "divisor": "1m" } } },
            ]),
        );
    world.drop_pod(&pod);
    let status = world.wait_running("web");
    let view = status.pod("web").unwrap();
    let process = Process::of(&world, "web", "main");
    let env = process.env();
    for (name, value) in [
        ("GREETING", "hello world"),
        ("LITERAL", "$(WHO) $(LATER)"),
        ("EMPTY", ""),
        ("POD", "web-node1"),
        ("SPACE", "default"),
        ("UID", view.uid.as_str()),
        ("TIER", "front"),
        ("NOTE", "read me"),
        ("NODE", "node1"),
        ("IP", view.status.pod_ip.as_deref().unwrap()),
        ("MEMORY", "64"),
        ("CPUS", "2"),
        ("MILLI", "250"),
        ("PATH", "/bin"),
        ("HOSTNAME", "web-node1"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name} in {env:#?}");
    }
    let arguments = process.command_line();
    assert_eq!(arguments[3..], ["hello world", "$(GREETING)", "$(MISSING)"], "{arguments:?}");
    world.finish();
}

/// A limit that is not set reads as what pods can use of the machine.
pub fn missing_limits_read_as_allocatable(kind: Kind) {
    const KEPT: u64 = 3 << 20;
    let world = World::start_with(
        kind,
        &Settings::for_kind(kind).kubelet(
            "evictionHard: { memory.available: 2Mi, nodefs.available: 2Mi }\n\
             kubeReserved: { memory: 1Mi, ephemeral-storage: 1Mi }\n",
        ),
    );
    let limit = |name: &str, resource: &str| {
        let reference = json!({ "resource": format!("limits.{resource}") });
        json!({ "name": name, "valueFrom": { "resourceFieldRef": reference } })
    };
    let env = json!([limit("MEMORY", "memory"), limit("STORAGE", "ephemeral-storage")]);
    world.drop_pod(&Pod::running("web").set("containers/0/env", env));
    world.wait_running("web");
    let env = Process::of(&world, "web", "main").env();
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let bytes = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |line| line.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10)
    };
    let left = bytes("MemTotal:") - bytes("Hugetlb:") - KEPT;
    let disk = nix::sys::statvfs::statvfs(&world.agent.root_dir()).unwrap();
    assert_eq!(env["MEMORY"], left.to_string());
    assert_eq!(env["STORAGE"], (disk.blocks() * disk.fragment_size() - KEPT).to_string());
    world.finish();
}

pub fn names_and_dns(kind: Kind) {
    let world = World::start(kind);
    let aliases = json!([{ "ip": "192.0.2.9", "hostnames": ["db", "db.internal"] }]);
    let pod = Pod::running("web").set("hostname", "front").set("hostAliases", aliases).set(
        "dnsConfig",
        json!({ "nameservers": ["192.0.2.2"], "searches": ["more.invalid"], "options": [{ "name": "ndots", "value": "2" }] }),
    );
    world.drop_pod(&pod);
    let status = world.wait_running("web");
    let ip = status.pod("web").unwrap().status.pod_ip.clone().unwrap();
    let process = Process::of(&world, "web", "main");
    let hosts = process.read("/etc/hosts");
    assert!(
        hosts.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"),
        "{hosts}"
    );
    assert!(hosts.contains(&format!("\n{ip}\tfront\n")), "{hosts}");
    let aliases = "\n# Entries added by HostAliases.\n192.0.2.9\tdb\tdb.internal\n";
    assert!(hosts.ends_with(aliases), "{hosts}");
    assert_eq!(process.read("/etc/hostname").trim(), "front");
    let dns = process.read("/etc/resolv.conf");
    for line in ["nameserver 192.0.2.1", "nameserver 192.0.2.2", "ndots:2", "more.invalid"] {
        assert!(dns.contains(line), "{dns}");
    }
    world.finish();
}

pub fn volumes(kind: Kind) {
    let world = World::start(kind);
    let host = world.slot.dir().join("host");
    fs::create_dir_all(host.join("dir/inner")).unwrap();
    fs::write(host.join("dir/inner/file"), "from the host").unwrap();
    let at = |name: &str| host.join(name).display().to_string();
    let pod = Pod::running("web")
        .container("other", FOREVER)
        .set(
            "volumes",
            json!([
                { "name": "disk", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
                { "name": "large", "emptyDir": { "medium": "Memory", "sizeLimit": "128Mi" } },
                { "name": "dir", "hostPath": { "path": at("dir"), "type": "Directory" } },
                { "name": "made", "hostPath": { "path": at("made"), "type": "DirectoryOrCreate" } },
                { "name": "file", "hostPath": { "path": at("file"), "type": "FileOrCreate" } },
            ]),
        )
        .set(
            "containers/0/volumeMounts",
            json!([
                { "name": "disk", "mountPath": "/disk" },
                { "name": "memory", "mountPath": "/memory" },
                { "name": "large", "mountPath": "/large" },
                { "name": "dir", "mountPath": "/dir", "readOnly": true },
                { "name": "dir", "mountPath": "/inner", "subPath": "inner" },
                { "name": "disk", "mountPath": "/sub", "subPath": "new/deep" },
                { "name": "made", "mountPath": "/made" },
                { "name": "file", "mountPath": "/file" },
            ]),
        )
        .set("containers/1/volumeMounts", json!([{ "name": "disk", "mountPath": "/shared" }]))
        .set("containers/1/resources", json!({ "limits": { "memory": "64Mi" } }));
    world.drop_pod(&pod);
    world.wait_running("web");
    let main = Process::of(&world, "web", "main");
    let other = Process::of(&world, "web", "other");
    fs::write(main.path("/disk/note"), "shared").unwrap();
    assert_eq!(other.read("/shared/note"), "shared");
    assert_eq!(main.path("/disk").metadata().unwrap().permissions().mode() & 0o7777, 0o777);
    let tmpfs = main.mount("/memory");
    assert!(tmpfs.contains(" tmpfs ") && tmpfs.contains("size=1024k"), "{tmpfs}");
    let large = main.mount("/large");
    assert!(large.contains("size=131072k"), "the limit of one container bounds no volume: {large}");
    let read_only = main.mount("/dir");
    assert!(read_only.split(' ').nth(5).unwrap().split(',').any(|o| o == "ro"), "{read_only}");
    assert_eq!(main.read("/inner/file"), "from the host");
    assert!(other.path("/shared/new/deep").is_dir(), "a subPath is made within its volume");
    fs::write(main.path("/made/by-pod"), "x").unwrap();
    assert!(host.join("made/by-pod").exists() && host.join("file").is_file());

    world.remove("web.yaml");
    world.wait_gone("web");
    assert!(host.join("dir/inner/file").exists(), "what is the host's stays");

    let wrong = Pod::running("wrong")
        .set(
            "volumes",
            json!([{ "name": "v", "hostPath": { "path": at("absent"), "type": "Directory" } }]),
        )
        .set("containers/0/volumeMounts", json!([{ "name": "v", "mountPath": "/v" }]));
    world.drop_pod(&wrong);
    world.wait("the failed mount is told", |status| status.has_event("FailedMount", "absent"));
    fs::create_dir(host.join("absent")).unwrap();
    world.wait_for(Duration::from_secs(60), "it runs once the directory is there", |status| {
        status.runs("wrong")
    });

    let seed = host.join("seed");
    fs::write(&seed, "x").unwrap();
    let seeded = Pod::running("seeded")
        .init("setup", "test -f /seed")
        .set("volumes", json!([{ "name": "v", "hostPath": { "path": seed, "type": "File" } }]))
        .set("initContainers/0/volumeMounts", json!([{ "name": "v", "mountPath": "/seed" }]));
    world.drop_pod(&seeded);
    world.wait_running("seeded");
    fs::remove_file(&seed).unwrap();
    world.kill_container(&world.running_id("seeded", "main"));
    world.wait("a path that only its init container used is not asked for again", |status| {
        status.runs("seeded") && status.restarts("seeded", "main") == 1
    });
    world.finish();
}

pub fn security_context(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::running("tight")
        .set(
            "securityContext",
            json!({ "runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000, "supplementalGroups": [4000],
                    "sysctls": [{ "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" }] }),
        )
        .set(
            "containers/0/securityContext",
            json!({ "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" } }),
        )
        .container("loose", FOREVER)
        .set("containers/1/securityContext", json!({ "privileged": true, "runAsUser": 0 }))
        .set("volumes", json!([{ "name": "v", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "v", "mountPath": "/v" }]));
    world.drop_pod(&pod);
    world.wait_running("tight");
    let tight = Process::of(&world, "tight", "main");
    assert_eq!(tight.status("Uid"), "1000 1000 1000 1000");
    assert_eq!(tight.status("Gid"), "3000 3000 3000 3000");
    let groups = tight.status("Groups");
    for group in ["2000", "4000"] {
        assert!(groups.split(' ').any(|g| g == group), "{groups}");
    }
    assert_eq!(tight.status("CapEff"), "0".repeat(16));
    assert_eq!(
        (tight.status("NoNewPrivs"), tight.status("Seccomp")),
        ("1".to_owned(), "2".to_owned())
    );
    assert!(tight.mount("/").split(' ').nth(5).unwrap().starts_with("ro"), "{}", tight.mount("/"));
    assert_eq!(tight.path("/v").metadata().unwrap().gid(), 2000, "fsGroup owns the volume");
    let loose = Process::of(&world, "tight", "loose");
    assert_eq!(
        (loose.status("Seccomp"), loose.status("NoNewPrivs")),
        ("0".to_owned(), "0".to_owned())
    );
    assert_eq!(loose.status("CapEff"), myself().status("CapBnd"));
    assert!(loose.path("/dev/mem").exists() || loose.path("/dev/loop-control").exists());
    world.finish();
}

pub fn images_with_users_and_non_root_checks(kind: Kind) {
    let world = World::start(kind);
    let non_root = |name: &str, image: &str| {
        Pod::running(name)
            .set("containers/0/image", image)
            .set("securityContext", json!({ "runAsNonRoot": true }))
    };
    world.drop_pod(&non_root("good", "nodelet.test/busybox:user"));
    world.drop_pod(&non_root("root", BUSYBOX));
    world.drop_pod(&non_root("named", "nodelet.test/busybox:named"));
    world.wait("each is judged", |status| {
        status.runs("good")
            && status.waiting_reason("root", "main") == "CreateContainerConfigError"
            && status.waiting_reason("named", "main") == "CreateContainerConfigError"
    });
    assert_eq!(Process::of(&world, "good", "main").status("Uid"), "1000 1000 1000 1000");
    world.finish();
}

pub fn resources_become_cgroups(kind: Kind) {
    let world = World::start(kind);
    let resources = |pod: Pod, value| pod.set("containers/0/resources", value);
    let both = json!({ "cpu": "200m", "memory": "64Mi" });
    world.drop_pod(&resources(Pod::running("guaranteed"), json!({ "limits": both })));
    let some =
        json!({ "requests": { "cpu": "100m", "memory": "32Mi" }, "limits": { "memory": "128Mi" } });
    world.drop_pod(&resources(Pod::running("burstable"), some));
    world.drop_pod(&Pod::running("besteffort"));
    for pod in ["guaranteed", "burstable", "besteffort"] {
        world.wait_running(pod);
    }
    let root = world.slot.cgroup_root();
    for (pod, tier) in
        [("guaranteed", ""), ("burstable", "burstable/"), ("besteffort", "besteffort/")]
    {
        let status = world.agent.status().unwrap();
        let view = status.pod(pod).unwrap();
        let process = Process::of(&world, pod, "main");
        let cgroup = process.cgroup("memory");
        let parent = format!("{root}/kubepods/{tier}pod{}/", view.uid);
        assert!(cgroup.to_string_lossy().contains(&parent), "{} in {parent}", cgroup.display());
    }
    let guaranteed = Process::of(&world, "guaranteed", "main");
    let memory = guaranteed.cgroup("memory");
    for cgroup in [memory.as_path(), memory.parent().unwrap()] {
        assert_eq!(cgroup_value(cgroup, "memory.limit_in_bytes", "memory.max"), "67108864");
    }
    let cpu = guaranteed.cgroup("cpu");
    for cgroup in [cpu.as_path(), cpu.parent().unwrap()] {
        let quota = cgroup_value(cgroup, "cpu.cfs_quota_us", "cpu.max");
        assert_eq!(quota.split(' ').next(), Some("20000"), "{}", cgroup.display());
    }
    let pids = guaranteed.cgroup("pids");
    let limit: i64 = cgroup_value(pids.parent().unwrap(), "pids.max", "pids.max").parse().unwrap();
    assert!(limit >= 1024, "{limit}");
    let burstable = Process::of(&world, "burstable", "main");
    let adjusted = burstable.oom_score_adj();
    assert!((3..1000).contains(&adjusted), "{adjusted}");
    assert_eq!(Process::of(&world, "besteffort", "main").oom_score_adj(), 1000);
    let limit = cgroup_value(&burstable.cgroup("memory"), "memory.limit_in_bytes", "memory.max");
    assert_eq!(limit, "134217728");
    world.finish();
}

/// A machine that gets its address after the agent has started, loses it, and gets another.
pub fn addresses_of_the_node_are_followed(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("host").set("hostNetwork", true));
    world.wait_running("host");
    let name = world.slot.network_namespace();
    let inside = |arguments: &str| ip(&format!("-n {name} {arguments}"));
    ip(&format!("netns add {name}"));
    inside("link set lo up");
    world.agent.kill();
    world.agent.in_network_namespace(&name);
    world.agent.start();
    let addresses = |status: &Status| {
        let status = &status.pod("host")?.status;
        Some((status.host_ip.clone(), status.pod_ip.clone()))
    };
    let both = |address: &str| Some((Some(address.to_owned()), Some(address.to_owned())));
    world.wait("there is no address yet", |status| addresses(status) == Some((None, None)));

    inside("link add lan type veth peer name far");
    inside("link set lan up");
    inside("link set far up");
    inside("address add 192.0.2.7/24 dev lan");
    inside("route add default via 192.0.2.1");
    world.wait("the first address is shown", |status| addresses(status) == both("192.0.2.7"));

    inside("address flush dev lan");
    inside("address add 198.51.100.9/24 dev lan");
    stays(
        "without a default route the address is kept",
        Duration::from_secs(2),
        || addresses(&world.agent.status().unwrap()),
        |shown| *shown == both("192.0.2.7"),
    );
    inside("route add default via 198.51.100.1");
    world.wait("the next address is shown", |status| addresses(status) == both("198.51.100.9"));

    world.finish();
}

pub fn host_namespaces(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(
        &Pod::running("host").set("hostNetwork", true).set("hostPID", true).set("hostIPC", true),
    );
    world.drop_pod(
        &Pod::running("shared").container("other", FOREVER).set("shareProcessNamespace", true),
    );
    world.drop_pod(&Pod::running("apart").container("other", FOREVER));
    for pod in ["host", "shared", "apart"] {
        world.wait_running(pod);
    }
    let host = Process::of(&world, "host", "main");
    for namespace in ["net", "pid", "ipc"] {
        assert_eq!(host.namespace(namespace), myself().namespace(namespace), "{namespace}");
    }
    assert!(
        host.read("/etc/hosts").starts_with("# Kubernetes-managed hosts file (host network).\n")
    );
    let pair = |pod: &str, kind: &str| {
        let of = |name: &str| Process::of(&world, pod, name).namespace(kind);
        (of("main"), of("other"))
    };
    let (main, other) = pair("shared", "pid");
    assert_eq!(main, other);
    let (main, other) = pair("apart", "pid");
    assert_ne!(main, other);
    let (main, other) = pair("apart", "net");
    assert_eq!(main, other);
    assert_ne!(main, myself().namespace("net"));
    world.finish();
}

pub fn a_host_port_leads_to_its_pod(kind: Kind) {
    let world = World::start(kind);
    let port = 22_000 + u16::from(world.slot.number());
    let script =
        "mkdir /tmp/page; echo served > /tmp/page/index.html; exec httpd -f -p 8080 -h /tmp/page";
    let pod = Pod::with_main("web", script)
        .set("containers/0/ports", json!([{ "containerPort": 8080, "hostPort": port }]));
    world.drop_pod(&pod);
    let status = world.wait_running("web");
    let ip = status.pod("web").unwrap().status.pod_ip.clone().unwrap();
    for address in [format!("{ip}:8080"), format!("127.0.0.1:{port}")] {
        let look =
            || TcpStream::connect(&address).and_then(|mut stream| exchange(&mut stream, "/"));
        let page = world.wait_until(&format!("{address} serves"), look, Result::is_ok);
        assert_eq!(page.unwrap(), "served\n");
    }
    world.finish();
}

pub fn termination_messages(kind: Kind) {
    let world = World::start(kind);
    let job = |name: &str, script: &str| Pod::with_main(name, script).set("restartPolicy", "Never");
    world.drop_pod(&job("file", "echo told in a file > /dev/termination-log; exit 3"));
    let fallback = job("log", "echo told in the log; exit 3")
        .set("containers/0/terminationMessagePolicy", "FallbackToLogsOnError");
    world.drop_pod(&fallback);
    let elsewhere = job("path", "echo told elsewhere > /tmp/why; exit 3")
        .set("containers/0/terminationMessagePath", "/tmp/why");
    world.drop_pod(&elsewhere);
    world.drop_pod(&job("silent", "echo not told; exit 3"));
    let status = world.wait("all have ended", |status| {
        ["file", "log", "path", "silent"].iter().all(|pod| status.phase(pod) == "Failed")
    });
    let message = |pod: &str| {
        let ended = status.terminated(pod, "main").unwrap();
        ended.message.clone().unwrap_or_default().trim().to_owned()
    };
    assert_eq!(message("file"), "told in a file");
    assert_eq!(message("log"), "told in the log");
    assert_eq!(message("path"), "told elsewhere");
    assert_eq!(message("silent"), "");
    world.finish();
}

pub fn logs_lie_where_shippers_look(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::with_main("web", &format!("echo hello; {FOREVER}")));
    let uid = world.wait_running("web").pod("web").unwrap().uid.clone();
    let id = world.running_id("web", "main");
    let log = world.agent.pod_logs().join(format!("default_web-node1_{uid}/main/0.log"));
    let look = || fs::read_to_string(&log).unwrap_or_default();
    world.wait_until("the log is written", look, |text| text.ends_with(" stdout F hello\n"));
    let link = world.agent.log_links().join(format!("web-node1_default_main-{id}.log"));
    assert_eq!(fs::read_link(&link).unwrap(), log);
    world.kill_container(&id);
    let again = |status: &Status| status.restarts("web", "main") == 1 && status.runs("web");
    world.wait("it is restarted", again);
    assert!(log.with_file_name("1.log").exists());
    world.finish();
}

pub fn a_stopped_shim_holds_up_only_its_pod(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("stuck"));
    world.drop_pod(&Pod::running("free"));
    world.wait_running("stuck");
    world.wait_running("free");
    let container = world.cri.container_pid(&world.running_id("stuck", "main"));
    let shim = Process::by_pid(container).status("PPid").parse().unwrap();
    let shim = nix::unistd::Pid::from_raw(shim);
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGSTOP).unwrap();
    world.remove("stuck.yaml");
    world.kill_container(&world.running_id("free", "main"));
    world.drop_pod(&Pod::running("new"));
    world.wait_running("new");
    let status = world.wait("the other pod goes on", |status| {
        status.restarts("free", "main") == 1 && status.runs("free")
    });
    assert!(status.node.pleg.unhealthy.is_none(), "{status:?}");
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGCONT).unwrap();
    world.wait_gone("stuck");
    world.finish();
}
