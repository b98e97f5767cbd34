//! Fields of a pod that a container can see, each in a container that looks at itself. One world
//! holds many pods, because a world costs more time than a pod.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    process::{Process, cgroup_value},
    status::exchange,
    world::{Kind, World},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// What a container has printed into `/seen/NAME`, a directory of the host that all share.
struct Seen(PathBuf);

impl Seen {
    fn make(world: &World) -> Self {
        let dir = world.slot.dir().join("seen");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        Self(dir)
    }

    /// Mounts the directory in every container of the pod, besides what is mounted there.
    fn show(&self, mut pod: Pod) -> Pod {
        let add = |pod: Pod, pointer: &str, item: Value| {
            let mut list = pod.value()["spec"].pointer(&format!("/{pointer}")).cloned();
            let list = list.get_or_insert_with(|| json!([]));
            list.as_array_mut().unwrap().push(item);
            pod.set(pointer, list.clone())
        };
        for n in 0..pod.value()["spec"]["containers"].as_array().unwrap().len() {
            let mount = json!({ "name": "seen", "mountPath": "/seen" });
            pod = add(pod, &format!("containers/{n}/volumeMounts"), mount);
        }
        add(pod, "volumes", json!({ "name": "seen", "hostPath": { "path": self.0 } }))
    }

    /// Lines that are there in whole: they are renamed into place.
    #[track_caller]
    fn lines(&self, world: &World, name: &str) -> Vec<String> {
        let look = || fs::read_to_string(self.0.join(name)).ok();
        let text = world.wait_until(&format!("{name} has looked"), look, Option::is_some);
        text.unwrap().lines().map(str::to_owned).collect()
    }
}

/// Shell: writes what the commands print into `/seen/NAME`, and runs on.
fn prints(name: &str, commands: &str) -> String {
    format!("{{ {commands}; }} >/seen/.{name}; mv /seen/.{name} /seen/{name}; {FOREVER}")
}

fn link(process: &Process, container_path: &str) -> PathBuf {
    fs::read_link(process.in_proc(container_path)).unwrap()
}

/// A container for each group of fields.
fn pod_of_many_fields() -> Pod {
    let look = "hostname; cat /proc/sys/net/core/somaxconn; cat /proc/sys/kernel/shm_rmid_forced";
    let sysctl = |name: &str, value: &str| json!({ "name": name, "value": value });
    let limit = json!({ "containerName": "plain", "resource": "limits.memory" });
    Pod::with_main("web", &prints("main", look))
        .meta("namespace", "other")
        .set("os", json!({ "name": "linux" }))
        .set("hostname", "front")
        .set("subdomain", "group")
        .set("setHostnameAsFQDN", true)
        .set(
            "securityContext",
            json!({ "runAsUser": 1000, "runAsGroup": 1001, "sysctls": [
                sysctl("net.core.somaxconn", "200"), sysctl("kernel.shm_rmid_forced", "1"),
            ] }),
        )
        .set("volumes", json!([{ "name": "data", "emptyDir": {} }]))
        .set("containers/0/workingDir", "/var/log")
        .set(
            "containers/0/env",
            json!([
                { "name": "PART", "value": "two" },
                { "name": "LIMIT", "valueFrom": { "resourceFieldRef": limit } },
                { "name": "NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } },
            ]),
        )
        .set(
            "containers/0/volumeMounts",
            json!([{ "name": "data", "mountPath": "/part", "subPathExpr": "one/$(PART)" }]),
        )
        .set(
            "containers/0/securityContext",
            json!({ "runAsUser": 2000, "runAsGroup": 2001, "procMount": "Default",
                    "capabilities": { "add": ["NET_ADMIN"], "drop": ["CHOWN"] } }),
        )
        .container("plain", FOREVER)
        .set("containers/1/resources", json!({ "limits": { "memory": "48Mi" } }))
        .set("containers/1/volumeMounts", json!([{ "name": "data", "mountPath": "/data" }]))
        .container("terminal", FOREVER)
        .set("containers/2/tty", true)
        .set("containers/2/stdin", true)
        .container("listens", &format!("read line; echo \"$line\" >/tmp/line; {FOREVER}"))
        .set("containers/3/stdin", true)
}

/// Ids, capabilities, names, kernel settings, terminals, paths: one pod with a container for each
/// group of fields.
pub fn a_container_finds_what_its_manifest_says(kind: Kind) {
    let world = World::start_with(
        kind,
        &Settings::for_kind(kind).kubelet(
            "clusterDomain: cluster.test\nclusterDNS: [192.0.2.10]\n\
             allowedUnsafeSysctls: [net.core.somaxconn]\n",
        ),
    );
    let seen = Seen::make(&world);
    world.drop_pod(&seen.show(pod_of_many_fields()));
    let status = world.wait_running("web");
    let ip = status.pod("web").unwrap().status.pod_ip.clone().unwrap();
    let of = |container: &str| Process::of(&world, "web", container);
    let (main, plain) = (of("main"), of("plain"));

    assert_eq!(seen.lines(&world, "main"), ["front.group.other.svc.cluster.test", "200", "1"]);
    let hosts = main.read("/etc/hosts");
    let entry = format!("\n{ip}\tfront.group.other.svc.cluster.test\tfront");
    assert!(hosts.contains(&entry), "{hosts}");
    assert_eq!(
        main.read("/etc/resolv.conf"),
        "search other.svc.cluster.test svc.cluster.test cluster.test test.invalid\n\
         nameserver 192.0.2.10\noptions ndots:5\n"
    );
    assert_eq!(main.status("Uid"), "2000 2000 2000 2000");
    assert_eq!(main.status("Gid"), "2001 2001 2001 2001");
    assert_eq!((plain.status("Uid"), plain.status("Gid")).0, "1000 1000 1000 1000");
    assert_eq!(plain.status("Gid"), "1001 1001 1001 1001");
    let bounds = |process: &Process| u64::from_str_radix(&process.status("CapBnd"), 16).unwrap();
    let (chown, net_admin) = (1, 1 << 12);
    assert_eq!(bounds(&main) & (chown | net_admin), net_admin);
    assert_eq!(bounds(&plain) & (chown | net_admin), chown);
    assert_eq!(bounds(&main) & !(chown | net_admin), bounds(&plain) & !(chown | net_admin));
    // Not every kernel has all of them.
    let kept_secret = ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"];
    for masked in kept_secret.into_iter().filter(|path| Path::new(path).exists()) {
        main.mount(masked);
    }
    let options = main.mount("/proc/sys");
    assert!(options.split(' ').nth(5).unwrap().starts_with("ro"), "{options}");
    assert_eq!(link(&main, "cwd"), Path::new("/var/log"));
    assert_eq!(main.env()["LIMIT"], (48 << 20).to_string());
    assert_eq!(main.env()["NAME"], "web-node1");
    fs::write(main.path("/part/file"), "").unwrap();
    assert!(plain.path("/data/one/two/file").exists());

    assert_eq!(link(&plain, "fd/0"), Path::new("/dev/null"));
    let terminal = of("terminal");
    for number in 0..3 {
        let file = link(&terminal, &format!("fd/{number}"));
        assert!(file.starts_with("/dev/pts"), "{}", file.display());
    }
    let line = stdin_of(&world, "web", "listens");
    fs::File::options().write(true).open(line).unwrap().write_all(b"told\n").unwrap();
    let listens = of("listens");
    let heard = || fs::read_to_string(listens.path("/tmp/line")).unwrap_or_default();
    world.wait_until("it has read its input", heard, |line| line == "told\n");
    world.finish();
}

/// The pipe through which a container gets its standard input.
fn stdin_of(world: &World, pod: &str, container: &str) -> PathBuf {
    let id = world.running_id(pod, container);
    let dir = world.runtime.containerd().state_dir();
    let dir = dir.join("io.containerd.grpc.v1.cri/containers").join(&id).join("io");
    let mut inner = fs::read_dir(&dir).unwrap();
    inner.next().unwrap().unwrap().path().join(format!("{id}-stdin"))
}

/// What one pod can have only once, each in a pod of its own.
pub fn pods_differ_as_their_manifests_say(kind: Kind) {
    let world =
        World::start_with(kind, &Settings::for_kind(kind).kubelet("clusterDNS: [192.0.2.10]\n"));
    let seen = Seen::make(&world);
    let named = |name: &str| seen.show(Pod::with_main(name, &prints(name, "hostname")));
    let nodes = |values: Value| {
        let term = json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": values }],
                           "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "Exists" }] });
        json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } } })
    };
    let both = |cpu: &str, memory: &str| json!({ "cpu": cpu, "memory": memory });
    let dns = json!({ "nameservers": ["192.0.2.53"], "searches": ["one.invalid"],
                      "options": [{ "name": "ndots", "value": "3" }, { "name": "rotate" }] });
    let pods = [
        named("own")
            .set("hostnameOverride", "chosen.example")
            .set("dnsPolicy", "None")
            .set("dnsConfig", dns),
        named("node-dns")
            .set("dnsPolicy", "Default")
            .set("nodeSelector", json!({ "kubernetes.io/hostname": "node1" }))
            .set("affinity", nodes(json!(["node1"]))),
        named("host").set("hostNetwork", true).set("dnsPolicy", "ClusterFirstWithHostNet"),
        Pod::running("bounded").container("other", FOREVER).set(
            "resources",
            json!({ "requests": both("100m", "32Mi"), "limits": both("300m", "64Mi") }),
        ),
        Pod::running("heavy")
            .set("containers/0/resources", json!({ "limits": both("200m", "64Mi") }))
            .set("overhead", both("100m", "16Mi")),
        Pod::running("gated").set("readinessGates", json!([{ "conditionType": "test/open" }])),
        Pod::running("elsewhere").set("nodeSelector", json!({ "kubernetes.io/hostname": "node2" })),
        Pod::running("apart").set("affinity", nodes(json!(["node2"]))),
    ];
    for pod in &pods {
        world.drop_pod(pod);
    }
    let (run, others) = pods.split_at(5);
    let refused = &others[1..];
    let name = |pod: &Pod| pod.value()["metadata"]["name"].as_str().unwrap().to_owned();
    for pod in run {
        world.wait_running(&name(pod));
    }
    world.wait("nothing opens the gate", |status| {
        let conditions = status.pod("gated").and_then(|pod| pod.status.conditions.as_ref());
        let ready = conditions.and_then(|all| all.iter().find(|one| one.type_ == "Ready"));
        ready
            .and_then(|ready| ready.message.as_deref())
            .is_some_and(|why| why.contains("test/open"))
    });
    for pod in refused.iter().map(name) {
        world.wait(&format!("{pod} is refused"), |status| {
            let reason = status.pod(&pod).and_then(|pod| pod.status.reason.as_deref());
            reason == Some("NodeAffinity")
        });
        assert!(world.sandboxes(&pod).is_empty());
    }
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    for (pod, hostname) in
        [("own", "chosen.example"), ("node-dns", "node-dns-node1"), ("host", &host)]
    {
        assert_eq!(seen.lines(&world, pod), [hostname], "{pod}");
    }
    let dns = |pod: &str| Process::of(&world, pod, "main").read("/etc/resolv.conf");
    assert_eq!(dns("own"), "search one.invalid\nnameserver 192.0.2.53\noptions ndots:3 rotate\n");
    assert_eq!(dns("node-dns"), "search test.invalid\nnameserver 192.0.2.1\n");
    assert!(dns("host").contains("nameserver 192.0.2.10\n"), "{}", dns("host"));
    for (pod, quota, mib) in [("bounded", 30_000, 64), ("heavy", 30_000, 80)] {
        let process = Process::of(&world, pod, "main");
        let of_pod = |controller| process.cgroup(controller).parent().unwrap().to_owned();
        let memory = cgroup_value(&of_pod("memory"), "memory.limit_in_bytes", "memory.max");
        let cpu = cgroup_value(&of_pod("cpu"), "cpu.cfs_quota_us", "cpu.max");
        assert_eq!(memory, (mib << 20).to_string(), "{pod}");
        assert_eq!(cpu.split(' ').next(), Some(&*quota.to_string()), "{pod}");
    }
    world.finish();
}

/// Ports of one address of the host, and of UDP.
pub fn host_ports_have_their_address_and_protocol(kind: Kind) {
    let world = World::start(kind);
    let port = 22_000 + u16::from(world.slot.number());
    let script = "mkdir /tmp/page; echo served >/tmp/page/index.html; \
        exec httpd -f -p 8080 -h /tmp/page";
    let pod = Pod::with_main("web", script).set(
        "containers/0/ports",
        json!([
            { "name": "page", "containerPort": 8080, "hostPort": port, "hostIP": "127.0.0.2" },
            { "containerPort": 5353, "hostPort": port, "protocol": "UDP" },
        ]),
    );
    world.drop_pod(&pod);
    let ip = world.wait_running("web").pod("web").unwrap().status.pod_ip.clone().unwrap();
    let connect = |address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        TcpStream::connect_timeout(&address, Duration::from_secs(2))
    };
    let page = |address: &str| connect(address).and_then(|mut stream| exchange(&mut stream, "/"));
    let direct = format!("{ip}:8080");
    let served = world.wait_until("it serves", || page(&direct), Result::is_ok);
    assert_eq!(served.unwrap(), "served\n");
    assert_eq!(page(&format!("127.0.0.2:{port}")).unwrap(), "served\n");
    assert!(connect(&format!("127.0.0.1:{port}")).is_err(), "the port is of one address");
    // No program of the image answers UDP.
    let rules = Command::new("iptables-save").args(["-t", "nat"]).output().unwrap().stdout;
    let rules = String::from_utf8(rules).unwrap();
    let forwards = |rule: &&str| rule.ends_with(&format!("--to-destination {ip}:5353"));
    let rule = rules.lines().find(forwards).unwrap_or_else(|| panic!("no rule for UDP:\n{rules}"));
    assert!(rule.contains("-p udp") && rule.contains(&format!("--dport {port} ")), "{rule}");
    world.finish();
}

fn object(kind: &str, name: &str, field: &str, data: &Value) -> String {
    let metadata = json!({ "name": name });
    json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, field: data }).to_string()
}

/// `host` has a file and a socket.
fn volumes_of_every_kind(host: &Path) -> Value {
    let on_host = |name: &str, path: &Path, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
    let item = || json!([{ "key": "one", "path": "deep/first", "mode": 0o400 }]);
    let field = |path: &str, mode: Value| json!({ "path": path, "mode": mode, "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } });
    let resource = json!({ "path": "cpu", "resourceFieldRef":
        { "containerName": "main", "resource": "limits.cpu", "divisor": "1m" } });
    let files = json!([field("name", json!(0o440)), resource]);
    let mut volumes = json!([
        { "name": "map", "configMap": { "name": "map", "defaultMode": 0o604 } },
        { "name": "map-items", "configMap": { "name": "map", "items": item() } },
        { "name": "secret", "secret": { "secretName": "secret", "defaultMode": 0o604 } },
        { "name": "secret-items", "secret": { "secretName": "secret", "items": item() } },
        { "name": "downward", "downwardAPI": { "defaultMode": 0o604, "items": files } },
        { "name": "no-map", "configMap": { "name": "none", "optional": true } },
        { "name": "no-secret", "secret": { "secretName": "none", "optional": true } },
        { "name": "projected", "projected": { "defaultMode": 0o604, "sources": [
            { "configMap": { "name": "map", "items": [{ "key": "two", "path": "map" }] } },
            { "secret": { "name": "secret", "items": item() } },
            { "configMap": { "name": "none", "optional": true } },
            { "downwardAPI": { "items": files } },
        ] } },
        on_host("file", &host.join("file"), "File"),
        on_host("socket", &host.join("socket"), "Socket"),
        on_host("char", Path::new("/dev/null"), "CharDevice"),
        on_host("any", &host.join("file"), ""),
    ]);
    let block = fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap());
    let block =
        block.filter(|entry| entry.file_type().unwrap().is_block_device()).map(|e| e.path());
    if let Some(device) = block.min() {
        volumes.as_array_mut().unwrap().push(on_host("block", &device, "BlockDevice"));
    }
    volumes
}

/// Files of ConfigMaps, Secrets and the downward API with paths and modes of their own, variables
/// from whole objects, and what is left out because it is optional; the kinds of hostPath.
pub fn files_and_variables_come_as_items_say(kind: Kind) {
    let world = World::start(kind);
    let data = json!({ "one": "1", "two": "2" });
    world.write("map.yaml", &object("ConfigMap", "map", "data", &data));
    world.write("secret.yaml", &object("Secret", "secret", "stringData", &data));
    let host = world.slot.dir().join("host");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("file"), "").unwrap();
    let _listener = UnixListener::bind(host.join("socket")).unwrap();
    let volumes = volumes_of_every_kind(&host);
    let mount = |volume: &Value| {
        let name = volume["name"].as_str().unwrap();
        json!({ "name": name, "mountPath": format!("/v/{name}") })
    };
    let mounts: Vec<Value> = volumes.as_array().unwrap().iter().map(mount).collect();
    let key = |name: &str| json!({ "name": name, "key": "one", "optional": true });
    let pod = Pod::running("web")
        .set("containers/0/volumeMounts", mounts)
        .set("volumes", volumes)
        .set("containers/0/resources", json!({ "limits": { "cpu": "300m" } }))
        .set(
            "containers/0/envFrom",
            json!([
                { "prefix": "MAP_", "configMapRef": { "name": "map" } },
                { "prefix": "SECRET_", "secretRef": { "name": "secret" } },
                { "configMapRef": { "name": "none", "optional": true } },
                { "secretRef": { "name": "none", "optional": true } },
            ]),
        )
        .set(
            "containers/0/env",
            json!([
                { "name": "OF_MAP", "valueFrom": { "configMapKeyRef": key("map") } },
                { "name": "OF_SECRET", "valueFrom": { "secretKeyRef": key("secret") } },
                { "name": "NO_MAP", "valueFrom": { "configMapKeyRef": key("none") } },
                { "name": "NO_SECRET", "valueFrom": { "secretKeyRef": key("none") } },
            ]),
        );
    world.drop_pod(&pod);
    world.wait_running("web");
    let process = Process::of(&world, "web", "main");
    for (path, text, mode) in [
        ("map/one", "1", 0o604),
        ("map/two", "2", 0o604),
        ("map-items/deep/first", "1", 0o400),
        ("secret/one", "1", 0o604),
        ("secret-items/deep/first", "1", 0o400),
        ("downward/name", "web-node1", 0o440),
        ("downward/cpu", "300", 0o604),
        ("projected/map", "2", 0o604),
        ("projected/deep/first", "1", 0o400),
        ("projected/name", "web-node1", 0o440),
        ("projected/cpu", "300", 0o604),
    ] {
        let path = format!("/v/{path}");
        assert_eq!(process.read(&path), text, "{path}");
        let found = fs::metadata(process.path(&path)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{path}");
    }
    for absent in ["map-items/one", "secret-items/two", "no-map/one", "no-secret/one"] {
        assert!(!process.path(&format!("/v/{absent}")).exists(), "{absent}");
    }
    let kind_of =
        |name: &str| fs::metadata(process.path(&format!("/v/{name}"))).unwrap().file_type();
    assert!(kind_of("file").is_file() && kind_of("any").is_file());
    assert!(kind_of("socket").is_socket() && kind_of("char").is_char_device());
    let env = process.env();
    for (name, value) in [
        ("MAP_one", "1"),
        ("MAP_two", "2"),
        ("SECRET_two", "2"),
        ("OF_MAP", "1"),
        ("OF_SECRET", "1"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name} in {env:#?}");
    }
    assert!(!env.contains_key("NO_MAP") && !env.contains_key("NO_SECRET"), "{env:#?}");
    world.finish();
}
