use super::{resources::page_size_name, *};
use crate::cri::v1;
use crate::podspec::any_container_of;
use serde_json::{Value, json};

fn node() -> NodeFacts {
    NodeFacts {
        memory_bytes: 1_000_000_000,
        cgroup_v2: true,
        hugepage_sizes_bytes: vec![2 << 20, 1 << 30],
        swap: Some(Swap::No),
        cpu_cfs_quota: true,
        cpu_period_micros: 100_000,
        single_process_oom_kill: None,
        seccomp_default: false,
        selinux: true,
        seccomp_root: "/var/lib/nodelet/seccomp".to_owned(),
        masked_paths: vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".to_owned()],
    }
}

fn pod(spec: &Value) -> k8s::Pod {
    let pod = json!({
        "metadata": {
            "name": "web-node1", "namespace": "default", "uid": "1a2b",
            "labels": {"app": "web", "io.kubernetes.pod.name": "overridden"},
            "annotations": {"kubernetes.io/config.source": "file"},
        },
        "spec": spec,
    });
    serde_json::from_value(pod).unwrap()
}

fn sandbox(spec: &Value, node: &NodeFacts) -> v1::PodSandboxConfig {
    sandbox_of(&pod(spec), spec, node)
}

fn sandbox_of(pod: &k8s::Pod, spec: &Value, node: &NodeFacts) -> v1::PodSandboxConfig {
    let dns = DnsInputs {
        servers: vec!["10.96.0.10".to_owned()],
        searches: vec!["default.svc.cluster.local".to_owned()],
        options: vec!["ndots:5".to_owned()],
    };
    sandbox_config(&SandboxInputs {
        pod,
        attempt: 1,
        owner: "owner-1",
        hostname: "web-node1",
        dns: &dns,
        log_directory: "/var/log/pods/default_web-node1_1a2b",
        cgroup_parent: "/kubepods/burstable/pod1a2b",
        volume_groups: &groups_of(spec),
        ids: ids_of(spec),
        node,
    })
}

fn ids_of(spec: &Value) -> Option<IdRange> {
    (spec["hostUsers"] == false).then_some(IdRange { first: 131_072, length: 65_536 })
}

/// The groups of the volumes of a pod that has a group for its own ones.
fn groups_of(spec: &Value) -> BTreeSet<i64> {
    if spec["securityContext"]["fsGroup"].is_null() { BTreeSet::new() } else { [7, 3000].into() }
}

const IMAGE: ImageInputs<'_> = ImageInputs { reference: "sha256:abc", uid: None, username: "" };

/// Configuration of the first container of `spec`.
fn container_with(
    spec: &Value,
    image: ImageInputs<'_>,
    node: &NodeFacts,
) -> Result<v1::ContainerConfig, ConfigError> {
    let pod = pod(spec);
    let env = [("WHO".to_owned(), "you".to_owned())];
    let mounts = [
        MountInput {
            source: MountSource::Path("/srv".to_owned()),
            container_path: "data".to_owned(),
            access: Access::ReadOnly,
            selinux_relabel: false,
            propagation: Propagation::HostToContainer,
        },
        MountInput {
            source: MountSource::Path("/var/lib/nodelet/pods/1a2b/etc-hosts".to_owned()),
            container_path: "/etc/hosts".to_owned(),
            access: Access::ReadWrite,
            selinux_relabel: true,
            propagation: Propagation::Private,
        },
    ];
    container_config(&ContainerInputs {
        pod: &pod,
        container: &pod.spec.as_ref().unwrap().containers[0],
        restart_count: 2,
        image,
        env: &env,
        mounts: &mounts,
        target: None,
        volume_groups: &groups_of(spec),
        ids: ids_of(&serde_json::to_value(pod.spec.as_ref()).unwrap()),
        node,
    })
}

#[test]
fn an_image_is_mounted_by_its_id_and_noted_for_the_collection() {
    let pod = pod(&json!({"containers": [{"name": "web", "image": "nginx:1"}]}));
    let image = |id: &str, sub_path: &str| MountInput {
        source: MountSource::Image {
            id: id.to_owned(),
            reference: "r/models:1".to_owned(),
            sub_path: sub_path.to_owned(),
        },
        container_path: "/models".to_owned(),
        access: Access::ReadOnly,
        selinux_relabel: false,
        propagation: Propagation::Private,
    };
    let made = container_config(&ContainerInputs {
        pod: &pod,
        container: &pod.spec.as_ref().unwrap().containers[0],
        restart_count: 0,
        image: IMAGE,
        env: &[],
        mounts: &[image("sha256:b", "a/b"), image("sha256:a", ""), image("sha256:b", "")],
        target: None,
        volume_groups: &BTreeSet::new(),
        ids: None,
        node: &node(),
    })
    .unwrap();
    let mount = &made.mounts[0];
    assert_eq!((mount.host_path.as_str(), mount.image_sub_path.as_str()), ("", "a/b"));
    assert!(mount.readonly);
    let image = mount.image.as_ref().unwrap();
    assert_eq!(image.image, "sha256:b");
    assert_eq!(image.user_specified_image, "r/models:1");
    assert_eq!(made.annotations["nodelet.dev/image-volumes"], "sha256:a,sha256:b");
}

#[test]
fn what_would_make_a_listing_large_is_left_out() {
    let large = "x".repeat(10_000);
    let spec = json!({"containers": [{
        "name": "web", "image": "nginx:1", "ports": [{"containerPort": 80}],
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", large]}}},
    }]});
    let mut pod = pod(&spec);
    let annotations = [("a", &large), ("b", &large), ("c", &"small".to_owned())];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.clone()));
    pod.metadata.annotations = Some(annotations.into());
    let made = sandbox_of(&pod, &spec, &node());
    assert_eq!(made.annotations.keys().collect::<Vec<_>>(), ["a", "c"]);
    assert!(made.labels.contains_key("io.kubernetes.pod.uid"));
    let made = container_with(&spec, IMAGE, &node()).unwrap().annotations;
    assert!(made.contains_key("io.kubernetes.container.ports"));
    assert!(!made.contains_key("io.kubernetes.container.preStopHandler"));
}

fn security(spec: &Value) -> v1::LinuxContainerSecurityContext {
    container_with(spec, IMAGE, &node()).unwrap().linux.unwrap().security_context.unwrap()
}

fn resources(spec: &Value, node: &NodeFacts) -> v1::LinuxContainerResources {
    container_with(spec, IMAGE, node).unwrap().linux.unwrap().resources.unwrap()
}

fn is_golden(made: &impl std::fmt::Debug, golden: &str) {
    let made = format!("{made:#?}\n");
    assert!(made == golden, "differs from the golden text:\n{made}");
}

/// A pod that uses most of what there is.
fn full() -> Value {
    json!({
        "containers": [{
            "name": "web", "image": "nginx:1", "workingDir": "/srv",
            "command": ["sh", "-c", "echo $(WHO)"], "args": ["$(NONE)"],
            "stdin": true, "stdinOnce": true, "tty": true,
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}},
            "ports": [
                {"name": "http", "containerPort": 80, "hostPort": 8080, "protocol": "TCP"},
                {"name": "http", "containerPort": 81, "protocol": "TCP"},
                {"containerPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
            ],
            "resources": {
                "requests": {"cpu": "250m", "memory": "100M", "hugepages-2Mi": "4Mi"},
                "limits": {"cpu": "500m", "memory": "200M", "hugepages-2Mi": "4Mi"},
            },
            "securityContext": {
                "runAsUser": 1000, "runAsGroup": 1001, "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false,
                "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
                "seLinuxOptions": {"level": "s0:c1"},
            },
        }],
        "initContainers": [{"name": "init", "ports": [{"containerPort": 99}]}],
        "terminationGracePeriodSeconds": 30,
        "shareProcessNamespace": true,
        "overhead": {"cpu": "100m", "memory": "10M"},
        "securityContext": {
            "fsGroup": 2000, "supplementalGroups": [3000], "runAsUser": 5,
            "sysctls": [{"name": "net/ipv4/ip_forward", "value": "1"}],
        },
    })
}

#[test]
fn the_first_separator_of_a_sysctl_decides() {
    for (written, sent) in [
        ("net.ipv4.ip_forward", "net.ipv4.ip_forward"),
        ("net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        ("net.ipv4.conf.eth0/1.rp_filter", "net.ipv4.conf.eth0/1.rp_filter"),
        ("net/ipv4/conf/eth0.1/rp_filter", "net.ipv4.conf.eth0/1.rp_filter"),
    ] {
        let spec = json!({
            "containers": [{ "name": "web", "image": "nginx" }],
            "securityContext": { "sysctls": [{ "name": written, "value": "1" }] },
        });
        let sysctls = sandbox(&spec, &node()).linux.unwrap().sysctls;
        assert_eq!(sysctls.into_keys().collect::<Vec<_>>(), [sent], "{written}");
    }
}

#[test]
fn a_user_namespace_maps_ids_of_sandbox_containers_and_mounts() {
    let spec = json!({ "hostUsers": false, "containers": [{ "name": "web", "image": "nginx" }] });
    let mapping = vec![v1::IdMapping { host_id: 131_072, container_id: 0, length: 65_536 }];
    let check = |options: Option<v1::NamespaceOption>| {
        let users = options.unwrap().userns_options.unwrap();
        assert_eq!(users.mode(), v1::NamespaceMode::Pod);
        assert_eq!((&users.uids, &users.gids), (&mapping, &mapping));
    };
    let of_sandbox = sandbox(&spec, &node()).linux.unwrap().security_context.unwrap();
    check(of_sandbox.namespace_options);
    check(security(&spec).namespace_options);
    for mount in container_with(&spec, IMAGE, &node()).unwrap().mounts {
        assert_eq!((&mount.uid_mappings, &mount.gid_mappings), (&mapping, &mapping), "{mount:?}");
    }
}

#[test]
fn a_full_sandbox() {
    is_golden(&sandbox(&full(), &node()), include_str!("golden/sandbox.txt"));
}

#[test]
fn a_full_container() {
    let made = container_with(&full(), IMAGE, &node()).unwrap();
    is_golden(&made, include_str!("golden/container.txt"));
}

#[test]
fn a_bare_container_on_cgroup_v1() {
    let spec = json!({"containers": [{"name": "web", "image": "nginx"}]});
    let node = NodeFacts { cgroup_v2: false, ..node() };
    let made = container_with(&spec, IMAGE, &node).unwrap();
    is_golden(&made, include_str!("golden/container-bare-v1.txt"));
}

/// Configuration of the ephemeral container of `spec`, with this target.
fn ephemeral_with(spec: &Value, target: Option<&str>) -> v1::ContainerConfig {
    let pod = pod(spec);
    let target = target.map(ContainerId::from);
    container_config(&ContainerInputs {
        pod: &pod,
        container: &any_container_of(&pod, "debug").unwrap(),
        restart_count: 0,
        image: IMAGE,
        env: &[],
        mounts: &[],
        target: target.as_ref(),
        volume_groups: &BTreeSet::new(),
        ids: None,
        node: &node(),
    })
    .unwrap()
}

fn debugged() -> Value {
    let limits = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    json!({
        "containers": [{"name": "web", "image": "nginx", "resources": limits}],
        "ephemeralContainers": [{
            "name": "debug", "image": "busybox:1", "command": ["sh"], "stdin": true, "tty": true,
            "targetContainerName": "web", "terminationMessagePath": "/dev/termination-log",
            "securityContext": {"privileged": true, "runAsUser": 7},
        }],
    })
}

#[test]
fn an_ephemeral_container_with_a_target() {
    let made = ephemeral_with(&debugged(), Some("c1"));
    is_golden(&made, include_str!("golden/container-ephemeral.txt"));
}

#[test]
fn a_target_replaces_only_a_namespace_of_the_containers_own() {
    let pid = |more: &Value, target| {
        let mut spec = debugged();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let context = ephemeral_with(&spec, target).linux.unwrap().security_context.unwrap();
        let options = context.namespace_options.unwrap();
        (options.pid(), options.target_id)
    };
    let none = String::new;
    assert_eq!(pid(&json!({}), None), (v1::NamespaceMode::Container, none()));
    assert_eq!(pid(&json!({}), Some("c1")), (v1::NamespaceMode::Target, "c1".to_owned()));
    let shared = json!({"shareProcessNamespace": true});
    assert_eq!(pid(&shared, Some("c1")), (v1::NamespaceMode::Pod, none()));
    assert_eq!(pid(&json!({"hostPID": true}), Some("c1")), (v1::NamespaceMode::Node, none()));
}

#[test]
fn a_privileged_ephemeral_container_makes_the_sandbox_privileged() {
    let context = sandbox(&debugged(), &node()).linux.unwrap().security_context.unwrap();
    assert!(context.privileged);
}

#[test]
fn namespaces_of_the_host() {
    let spec = json!({
        "containers": [{"name": "a", "securityContext": {"privileged": true}}],
        "hostNetwork": true, "hostPID": true, "hostIPC": true,
    });
    let context = sandbox(&spec, &node()).linux.unwrap().security_context.unwrap();
    let options = context.namespace_options.unwrap();
    assert_eq!(options.network(), v1::NamespaceMode::Node);
    assert_eq!(options.pid(), v1::NamespaceMode::Node);
    assert_eq!(options.ipc(), v1::NamespaceMode::Node);
    assert!(context.privileged);
    let own = json!({"containers": [{"name": "a"}]});
    let context = sandbox(&own, &node()).linux.unwrap().security_context.unwrap();
    let options = context.namespace_options.unwrap();
    assert_eq!(options.network(), v1::NamespaceMode::Pod);
    assert_eq!(options.pid(), v1::NamespaceMode::Container);
    assert_eq!(options.userns_options.unwrap().mode(), v1::NamespaceMode::Node);
}

#[test]
fn who_may_not_be_root() {
    let check = |pod: Value, own: Value, uid: Option<i64>, username: &str| {
        let spec = json!({
            "containers": [{"name": "web", "securityContext": own}], "securityContext": pod,
        });
        let image = ImageInputs { reference: "i", uid, username };
        container_with(&spec, image, &node()).map(drop).map_err(|e| e.to_string())
    };
    let never = json!({"runAsNonRoot": true});
    assert_eq!(
        check(never.clone(), json!({"runAsUser": 0}), None, "").unwrap_err(),
        "container's runAsUser breaks non-root policy \
         (pod: \"web-node1_default(1a2b)\", container: web)"
    );
    for uid in [None, Some(0)] {
        assert_eq!(
            check(never.clone(), json!({}), uid, "").unwrap_err(),
            "container has runAsNonRoot and image will run as root \
             (pod: \"web-node1_default(1a2b)\", container: web)"
        );
    }
    assert_eq!(
        check(never.clone(), json!({}), None, "nginx").unwrap_err(),
        "container has runAsNonRoot and image has non-numeric user (nginx), cannot verify user \
         is non-root (pod: \"web-node1_default(1a2b)\", container: web)"
    );
    assert_eq!(check(never.clone(), json!({}), Some(7), ""), Ok(()));
    assert_eq!(check(never.clone(), json!({"runAsUser": 7}), Some(0), ""), Ok(()));
    assert_eq!(check(never, json!({"runAsNonRoot": false}), Some(0), ""), Ok(()));
    assert_eq!(check(json!({}), json!({"runAsNonRoot": true}), Some(7), ""), Ok(()));
}

#[test]
fn the_user_is_the_specs_else_the_images() {
    let user = |own: Value, uid, username| {
        let spec = json!({"containers": [{"name": "web", "securityContext": own}]});
        let image = ImageInputs { reference: "i", uid, username };
        let made = container_with(&spec, image, &node()).unwrap();
        let context = made.linux.unwrap().security_context.unwrap();
        (context.run_as_user.map(|user| user.value), context.run_as_username)
    };
    assert_eq!(user(json!({"runAsUser": 7}), Some(8), ""), (Some(7), String::new()));
    assert_eq!(user(json!({}), Some(8), ""), (Some(8), String::new()));
    assert_eq!(user(json!({}), None, "www"), (None, "www".to_owned()));
    assert_eq!(user(json!({}), None, ""), (Some(0), String::new()));
}

#[test]
fn seccomp_is_the_containers_else_the_pods_else_the_nodes() {
    use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
    let spec = |pod: Value, own: Value| json!({"containers": [{"name": "web", "securityContext": own}], "securityContext": pod});
    let profile = |spec: &Value| security(spec).seccomp.unwrap();
    assert_eq!(profile(&spec(json!({}), json!({}))).profile_type(), Unconfined);
    let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}});
    let made = profile(&spec(json!({"seccompProfile": {"type": "RuntimeDefault"}}), local));
    assert_eq!(made.profile_type(), Localhost);
    assert_eq!(made.localhost_ref, "/var/lib/nodelet/seccomp/a/b.json");
    let made = profile(&spec(json!({"seccompProfile": {"type": "RuntimeDefault"}}), json!({})));
    assert_eq!(made.profile_type(), RuntimeDefault);
    let strict = NodeFacts { seccomp_default: true, ..node() };
    let made = container_with(&spec(json!({}), json!({})), IMAGE, &strict).unwrap();
    let made = made.linux.unwrap().security_context.unwrap().seccomp.unwrap();
    assert_eq!(made.profile_type(), RuntimeDefault);
    let nameless = spec(json!({}), json!({"seccompProfile": {"type": "Localhost"}}));
    let error = container_with(&nameless, IMAGE, &node()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "localhostProfile must be set if seccomp profile type is Localhost"
    );
}

#[test]
#[allow(deprecated, reason = "the text form is sent too")]
fn apparmor_in_both_forms() {
    use v1::security_profile::ProfileType::{Localhost, Unconfined};
    let own = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}});
    let made = security(&json!({"containers": [{"name": "web", "securityContext": own}]}));
    assert_eq!(made.apparmor_profile, "localhost/p");
    let profile = made.apparmor.unwrap();
    assert_eq!((profile.profile_type(), profile.localhost_ref.as_str()), (Localhost, "p"));
    let made = security(&json!({
        "containers": [{"name": "web"}],
        "securityContext": {"appArmorProfile": {"type": "Unconfined"}},
    }));
    assert_eq!(made.apparmor_profile, "unconfined");
    assert_eq!(made.apparmor.unwrap().profile_type(), Unconfined);
    let made = security(&json!({"containers": [{"name": "web"}]}));
    assert_eq!((made.apparmor, made.apparmor_profile.as_str()), (None, ""));
}

#[test]
fn paths_are_masked_for_privileged_containers_too() {
    let with = |own: Value| {
        let made = security(&json!({"containers": [{"name": "web", "securityContext": own}]}));
        (made.masked_paths.len(), made.readonly_paths.len())
    };
    assert_eq!(with(json!({"privileged": true})), (13, 5));
    assert_eq!(with(json!({"procMount": "Unmasked"})), (0, 0));
}

#[test]
fn resources_by_node() {
    let spec =
        json!({"containers": [{"name": "web", "resources": {"limits": {"memory": "64Mi"}}}]});
    let v1_node = NodeFacts { cgroup_v2: false, ..node() };
    let made = resources(&spec, &v1_node);
    assert_eq!((made.memory_limit_in_bytes, made.memory_swap_limit_in_bytes), (64 << 20, 64 << 20));
    assert!(made.unified.is_empty());
    let made = resources(&spec, &node());
    let unified: Vec<String> = made.unified.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(unified, ["memory.oom.group=1", "memory.swap.max=0"]);
    let shared = json!({"containers": [{"name": "web", "resources": {
        "requests": {"memory": "64Mi"}, "limits": {"memory": "128Mi"},
    }}]});
    let memory_bytes = node().memory_bytes;
    let swaps = NodeFacts { swap: Some(Swap::Limited { node_bytes: 2 * memory_bytes }), ..node() };
    assert_eq!(resources(&shared, &swaps).unified["memory.swap.max"], "134217728");
    assert_eq!(resources(&spec, &swaps).unified["memory.swap.max"], "0");
    let single = NodeFacts { single_process_oom_kill: Some(true), swap: None, ..node() };
    assert!(resources(&spec, &single).unified.is_empty());
    let no_quota = NodeFacts { cpu_cfs_quota: false, ..node() };
    let limited = json!({"containers": [{"name": "w", "resources": {"limits": {"cpu": "1"}}}]});
    let made = resources(&limited, &no_quota);
    assert_eq!((made.cpu_period, made.cpu_quota, made.cpu_shares), (0, 0, 1024));
}

#[test]
fn a_pods_limit_bounds_its_containers() {
    let spec = json!({
        "containers": [{"name": "web", "resources": {"limits": {"cpu": "1"}}}],
        "resources": {"limits": {"cpu": "3", "memory": "1Gi"}},
    });
    let made = resources(&spec, &node());
    assert_eq!((made.cpu_quota, made.memory_limit_in_bytes), (100_000, 1 << 30));
}

#[test]
fn huge_pages_of_a_pod_are_those_of_its_containers() {
    let limits = |own: Value, whole: Value| {
        let spec = json!({
            "containers": [{"name": "web", "resources": {"limits": own}}],
            "resources": {"limits": whole},
        });
        let made = resources(&spec, &node()).hugepage_limits;
        made.iter().map(|l| format!("{}={}", l.page_size, l.limit >> 20)).collect::<Vec<_>>()
    };
    let whole = json!({"hugepages-2Mi": "16Mi"});
    assert_eq!(limits(json!({}), whole.clone()), ["2MB=16", "1GB=0"]);
    assert_eq!(limits(json!({"hugepages-2Mi": "4Mi"}), whole.clone()), ["2MB=4", "1GB=0"]);
    assert_eq!(limits(json!({"hugepages-1Gi": "1Gi"}), whole), ["2MB=16", "1GB=1024"]);
    assert_eq!(limits(json!({}), json!({})), ["2MB=0", "1GB=0"]);
}

#[test]
fn page_sizes_have_the_names_of_cgroup_files() {
    for (bytes, name) in
        [(64 << 10, "64KB"), (2 << 20, "2MB"), (1 << 30, "1GB"), (16 << 30, "16GB")]
    {
        assert_eq!(page_size_name(bytes), name);
    }
}

#[test]
fn thermal_throttle_directories_are_found() {
    let dir = tempfile::tempdir().unwrap();
    for cpu in ["cpu0", "cpu10", "cpu2", "cpufreq", "cpuidle"] {
        std::fs::create_dir_all(
            dir.path().join(format!("devices/system/cpu/{cpu}/thermal_throttle")),
        )
        .unwrap();
    }
    std::fs::create_dir_all(dir.path().join("devices/system/cpu/cpu3")).unwrap();
    let paths = thermal_throttle_paths(dir.path());
    let of = |n| format!("/sys/devices/system/cpu/cpu{n}/thermal_throttle");
    assert_eq!(paths, [of(0), of(2), of(10)]);
}
