use super::{
    assemble::{SourceFile, assemble},
    fields::{KUBELET, NODELET, leaves},
    read::Bases,
    tree::Layer,
    *,
};
use crate::{
    document::{Support, Type},
    model::{CgroupDriver, CloudProvider, ShutdownPeriods, Signal},
};
use std::{collections::HashSet, fs, time::Duration};

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const OWN_HEAD: &str = "apiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n";

fn given(flags: &[(&str, &[&str])]) -> Vec<GivenFlag> {
    flags
        .iter()
        .map(|(name, values)| GivenFlag {
            flag: flag(name).unwrap(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        })
        .collect()
}

/// Bodies of the main file (its head is added) and of drop-ins, and flags.
fn try_load(
    main: &str,
    drop_ins: &[&str],
    flags: &[(&str, &[&str])],
    host: &HostFacts,
) -> Result<Loaded, ConfigError> {
    let file = |name: &str, text: &str, layer| SourceFile {
        name: name.into(),
        text: format!("{HEAD}{text}").into_bytes(),
        layer,
    };
    let mut files = vec![file("main.yaml", main, Layer::Main)];
    for (index, text) in drop_ins.iter().enumerate() {
        files.push(file(&format!("{index}.conf"), text, Layer::DropIn));
    }
    let bases = Bases { main: "/etc/nodelet".into(), working: "/home/me".into() };
    assemble(&files, &given(flags), &bases, host)
}

fn config(main: &str) -> Config {
    try_load(main, &[], &[], &HostFacts::default()).unwrap().config
}

fn mistakes(main: &str, flags: &[(&str, &[&str])]) -> Vec<String> {
    let error = try_load(main, &[], flags, &HostFacts::default()).unwrap_err();
    error.mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn no_file_and_an_empty_configuration_are_the_defaults() {
    let nothing = load(&[], &HostFacts::default()).unwrap();
    assert_eq!(nothing.config, Config::default());
    assert_eq!(config(""), Config::default());
    let both = parse_and_validate(format!("{HEAD}---\n{OWN_HEAD}").as_bytes()).unwrap();
    assert_eq!(both.config, Config::default());
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let tables = [(KUBELET, HEAD), (NODELET, OWN_HEAD)];
    let fields = tables.into_iter().flat_map(|(table, head)| {
        leaves(table).into_iter().map(move |(path, field)| (path, field, head))
    });
    let mut checked = 0;
    for (path, field, head) in fields {
        let Some(text) = field.default() else { continue };
        assert_ne!(field.support, Support::Ignored, "{path}: the default of a field not acted on");
        checked += 1;
        // Told in words, not as a value.
        if ["singleProcessOOMKill", "podPidsLimit", "imageServiceEndpoint"].contains(&path.as_str())
        {
            continue;
        }
        let nested = path.rsplit('.').skip(1).fold(
            format!("{}: {text}", path.rsplit('.').next().unwrap_or_default()),
            |inner, outer| format!("{outer}: {{{inner}}}"),
        );
        let written = format!("{nested}\n");
        // Alone it would mean the report frequency as well.
        let beside = match path.as_str() {
            "nodeStatusUpdateFrequency" => "nodeStatusReportFrequency: 5m\n",
            _ => "",
        };
        let loaded = parse_and_validate(format!("{head}{written}{beside}").as_bytes())
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(loaded.config, Config::default(), "{path}: {text}");
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn every_value_lands_where_it_belongs() {
    let text = "\
staticPodPath: manifests\npodLogsDir: /logs\nsyncFrequency: 30s\nfileCheckFrequency: 5s\n\
httpCheckFrequency: 6s\nstaticPodURL: https://example.com/pods\nstaticPodURLHeader: {X-A: [b, c]}\n\
registryPullQPS: 0\nregistryBurst: 3\nhealthzPort: 0\n\
oomScoreAdj: 0\nclusterDomain: cluster.local\nclusterDNS: [10.96.0.10, 'fd00::a']\n\
cgroupRoot: /demo/\ncgroupDriver: systemd\nsingleProcessOOMKill: true\nruntimeRequestTimeout: 10s\n\
podPidsLimit: 100\nresolvConf: ''\ncpuCFSQuota: false\nmaxOpenFiles: 1024\n\
maxParallelImagePulls: 4\nsystemReserved: {cpu: 500m, memory: 1Gi, pid: '10'}\n\
kubeReserved: {cpu: '1', ephemeral-storage: '0'}\nenforceNodeAllocatable: []\n\
allowedUnsafeSysctls: ['net.*', kernel/msgmax, net.ipv4.conf.eth0/1.*]\nlogging: {format: json, verbosity: 4}\n\
crashLoopBackOff: {maxContainerRestartPeriod: 10s}\nseccompDefault: true\nmemorySwap: {swapBehavior: LimitedSwap}\n\
containerRuntimeEndpoint: unix:///run/demo.sock\nenableControllerAttachDetach: false\n---\n";
    let own = "runDir: /run/demo\nowner: me\ncontainerLogLinksDir: /links\nstartConcurrency: 3\n";
    let config = config(&format!("{text}{OWN_HEAD}{own}"));
    let mut want = Config::default();
    want.source.static_pod_path = Some("/etc/nodelet/manifests".into());
    want.paths.pod_logs_dir = "/logs".into();
    want.pods.sync_frequency = Duration::from_secs(30);
    want.source.file_check = Duration::from_secs(5);
    want.source.http_check = Duration::from_secs(6);
    want.source.url = Some("https://example.com/pods".to_owned());
    want.source.headers =
        vec![("X-A".to_owned(), "b".to_owned()), ("X-A".to_owned(), "c".to_owned())];
    want.images = ImagesConfig { parallel: Some(4), qps: 0, burst: 3, ..ImagesConfig::default() };
    want.health.address = None;
    want.process.oom_score_adj = 0;
    want.process.max_open_files = 1024;
    want.pods.dns = DnsConfig {
        resolv_conf: None,
        cluster_dns: vec!["10.96.0.10".parse().unwrap(), "fd00::a".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
    };
    want.cgroup.root = "/demo".to_owned();
    want.cgroup.driver = CgroupDriver::Systemd;
    want.cgroup.enforce = Enforce::Nothing;
    want.eviction.thresholds.retain(|t| t.signal != Signal::AllocatableMemoryAvailable);
    want.cgroup.system_reserved =
        Reserved { cpu_milli: 500, memory_bytes: 1 << 30, pids: 10, ..Reserved::default() };
    want.cgroup.kube_reserved = Reserved { cpu_milli: 1000, ..Reserved::default() };
    want.pods.single_process_oom_kill = Some(true);
    want.pods.swap = SwapBehavior::LimitedSwap;
    want.cri.request_timeout = Duration::from_secs(10);
    want.cri.endpoint = Endpoint::unix("/run/demo.sock".into());
    want.cri.image_endpoint = want.cri.endpoint.clone();
    want.pods.pids_limit = PidsLimit::Tasks(100);
    want.pods.cfs_period = None;
    want.pods.seccomp_default = true;
    let sysctls = ["net.*", "kernel.msgmax", "net.ipv4.conf.eth0/1.*"];
    want.pods.allowed_unsafe_sysctls = sysctls.map(str::to_owned).into();
    want.pods.crash_loop_cap = Duration::from_secs(10);
    want.pods.start_concurrency = Some(3);
    want.logging = LoggingConfig { format: LogFormat::Json, verbosity: 4 };
    want.cluster.attach_detach = false;
    want.paths.run_dir = "/run/demo".into();
    want.paths.owner = Some("me".to_owned());
    want.paths.container_links_dir = "/links".into();
    assert_eq!(config, want);
}

#[test]
fn zero_and_null_are_nothing_where_the_kubelet_says_so() {
    let zeros = "fileCheckFrequency: 0s\nsyncFrequency: null\n\
        registryBurst: 0\ncontainerRuntimeEndpoint: ''\ncgroupRoot: ''\nmaxOpenFiles: 0\n\
        healthzBindAddress: ''\nregistryPullQPS: null\npodPidsLimit: null\ncgroupDriver: ''\n\
        logging: {format: ''}\ncrashLoopBackOff: {}\nstaticPodPath: null\n";
    assert_eq!(config(zeros), Config::default());
    let kept = config("registryPullQPS: 0\npodPidsLimit: -1\nstaticPodPath: ''\n");
    assert_eq!(kept.images.qps, 0);
    assert_eq!(kept.pods.pids_limit, PidsLimit::Unlimited);
    assert_eq!(kept.source.static_pod_path, None);
    // client-go's own rate, from a file and from a flag.
    assert_eq!(config("kubeAPIQPS: 0\n").cluster.api.qps, 5);
    let flags: &[(&str, &[&str])] = &[("kube-api-qps", &["0"])];
    let flagged = try_load("", &[], flags, &HostFacts::default()).unwrap();
    assert_eq!(flagged.config.cluster.api.qps, 5);
}

#[test]
fn flags_win_over_drop_ins_and_those_over_the_file() {
    let host = HostFacts::default();
    let burst = |drop_ins: &[&str], flags: &[(&str, &[&str])]| {
        try_load("registryBurst: 15\n", drop_ins, flags, &host).unwrap().config.images.burst
    };
    assert_eq!(burst(&[], &[]), 15);
    assert_eq!(burst(&["registryBurst: 20\n"], &[]), 20);
    assert_eq!(burst(&["registryBurst: 20\n", "registryBurst: 30\n"], &[]), 30);
    assert_eq!(
        burst(&["registryBurst: null\n"], &[]),
        10,
        "null takes away, the default comes back"
    );
    assert_eq!(burst(&["registryBurst: 20\n"], &[("registry-burst", &["40"])]), 40);
    assert_eq!(burst(&[], &[("registry_burst", &["50", "0"])]), 0, "a flag's zero is a value");
}

#[test]
fn drop_ins_merge_objects_and_replace_lists() {
    let main = "systemReserved: {cpu: 100m, memory: 1Gi}\nclusterDNS: [10.0.0.1]\nlogging: {verbosity: 3}\n";
    let drop_in = "systemReserved: {cpu: 200m}\nclusterDNS: [10.0.0.2]\nlogging: {format: json}\n";
    let loaded = try_load(main, &[drop_in], &[], &HostFacts::default()).unwrap().config;
    assert_eq!(loaded.cgroup.system_reserved.cpu_milli, 200);
    assert_eq!(loaded.cgroup.system_reserved.memory_bytes, 1 << 30);
    assert_eq!(loaded.pods.dns.cluster_dns, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(loaded.logging, LoggingConfig { format: LogFormat::Json, verbosity: 3 });

    let gone = "systemReserved: {memory: null}\nlogging: null\n";
    let loaded = try_load(main, &[gone], &[], &HostFacts::default()).unwrap().config;
    assert_eq!(loaded.cgroup.system_reserved, Reserved { cpu_milli: 100, ..Reserved::default() });
    assert_eq!(loaded.logging, LoggingConfig::default());

    // A map given by a flag replaces the file's.
    let flags: &[(&str, &[&str])] = &[("system-reserved", &["pid=5", "cpu=1"])];
    let loaded = try_load(main, &[], flags, &HostFacts::default()).unwrap().config;
    let want = Reserved { cpu_milli: 1000, pids: 5, ..Reserved::default() };
    assert_eq!(loaded.cgroup.system_reserved, want);
}

#[test]
fn only_the_main_files_update_frequency_means_the_report() {
    let periods = |main: &str, drop_ins: &[&str], flags: &[(&str, &[&str])]| {
        let cluster = try_load(main, drop_ins, flags, &HostFacts::default()).unwrap();
        let cluster = cluster.config.cluster;
        (cluster.status_update.as_secs(), cluster.status_report.as_secs())
    };
    let (main, drop_in) = ("nodeStatusUpdateFrequency: 20s\n", "nodeStatusUpdateFrequency: 30s\n");
    let flags: &[(&str, &[&str])] = &[("node-status-update-frequency", &["40s"])];
    assert_eq!(periods(main, &[], &[]), (20, 20));
    assert_eq!(periods("", &[drop_in], &[]), (30, 300));
    assert_eq!(periods("", &[], flags), (40, 300));
    assert_eq!(periods(main, &[drop_in], flags), (40, 20));
    assert_eq!(periods(main, &["nodeStatusReportFrequency: 1m\n"], flags), (40, 60));
    // A drop-in that takes the report frequency away makes it the update frequency of the files.
    let taken_away = "nodeStatusReportFrequency: 0s\n";
    assert_eq!(periods("", &[drop_in, taken_away], &[]), (30, 30));
    assert_eq!(periods("", &[taken_away], &[]), (10, 10));
    assert_eq!(periods("", &["nodeStatusReportFrequency: null\n"], flags), (40, 10));
}

#[test]
fn a_flag_that_is_repeated_adds_to_its_list_except_taints() {
    let loaded = |flag: &str, values: &[&str]| {
        let main = "registerWithTaints: [{key: file, effect: NoExecute}]\n";
        try_load(main, &[], &[(flag, values)], &HostFacts::default()).unwrap().config
    };
    let taints = |values: &[&str]| -> Vec<String> {
        let taints = loaded("register-with-taints", values).cluster.taints;
        taints.into_iter().map(|taint| taint.key).collect()
    };
    assert_eq!(taints(&["a=:NoSchedule", "b=:NoSchedule,c=1:NoExecute"]), ["b", "c"]);
    assert_eq!(taints(&["a=:NoSchedule", ""]), [""; 0]);
    let dns = loaded("cluster-dns", &["10.0.0.1", "10.0.0.2,10.0.0.3"]).pods.dns.cluster_dns;
    assert_eq!(dns.len(), 3);
}

#[test]
fn a_node_label_needs_no_value_and_headers_are_trimmed() {
    let flags: &[(&str, &[&str])] = &[
        ("node-labels", &["edge, disk = ssd ,rack="]),
        ("manifest-url-header", &["X-A: b , X-C:d:e"]),
    ];
    let config = try_load("", &[], flags, &HostFacts::default()).unwrap().config;
    let labels: Vec<(&str, &str)> = config.node.labels.iter().map(|(k, v)| (&**k, &**v)).collect();
    assert_eq!(labels, [("disk", "ssd"), ("edge", ""), ("rack", "")]);
    let headers: Vec<(&str, &str)> =
        config.source.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(headers, [("X-A", "b"), ("X-C", "d:e")]);
    assert_eq!(
        mistakes("", &[("system-reserved", &["cpu"])]),
        ["--system-reserved: Invalid value: \"cpu\": must be KEY=VALUE"]
    );
}

#[test]
fn relative_paths_belong_to_the_directory_of_the_main_file() {
    let host = HostFacts::default();
    let path = |main: &str, drop_ins: &[&str], flags: &[(&str, &[&str])]| {
        let loaded = try_load(main, drop_ins, flags, &host).unwrap();
        loaded.config.source.static_pod_path.unwrap().display().to_string()
    };
    assert_eq!(path("staticPodPath: ./m\n", &[], &[]), "/etc/nodelet/m");
    assert_eq!(path("staticPodPath: /x/m/\n", &[], &[]), "/x/m");
    assert_eq!(path("", &["staticPodPath: m\n"], &[]), "/home/me/m");
    assert_eq!(path("", &[], &[("pod-manifest-path", &["m"])]), "/home/me/m");
    assert_eq!(
        mistakes("staticPodPath: ../m\n", &[]),
        [
            "main.yaml: line 3, column 16: staticPodPath: Invalid value: \"../m\": must be a path without \"..\""
        ]
    );
}

#[test]
fn the_flags_without_a_field_are_read() {
    let flags: &[(&str, &[&str])] = &[
        ("root-dir", &["state"]),
        ("run-dir", &["/run/demo"]),
        ("hostname-override", &["Node-1 "]),
        ("node-ip", &["10.0.0.1,fd00::1"]),
        ("manifest-url-header", &["A:1,B:2", "A:3"]),
        ("cluster-dns", &["10.0.0.1,10.0.0.2"]),
        ("cluster-dns", &["10.0.0.1,10.0.0.2"]),
        ("v", &["5"]),
        ("kubeconfig", &[""]),
    ];
    let loaded = try_load("", &[], flags, &HostFacts::default()).unwrap();
    let config = loaded.config;
    assert_eq!(config.paths.root_dir.to_str(), Some("/home/me/state"));
    assert_eq!(config.paths.run_dir.to_str(), Some("/run/demo"));
    assert_eq!(config.node.name_override.as_deref(), Some("node-1"));
    assert_eq!(config.node.ips.len(), 2);
    assert_eq!(config.source.headers.len(), 3);
    assert_eq!(config.pods.dns.cluster_dns.len(), 2);
    assert_eq!(config.logging.verbosity, 5);
    assert_eq!(config.notices, Vec::<String>::new());
}

#[test]
fn everything_wrong_is_said_at_once_with_its_place() {
    let text = "\
registryBurst: many
healthzPort: 70000
clusterDNS: [10.0.0.1, nowhere]
systemReserved: {gpu: '1', cpu: -1}
syncFrequency: 60
cgroupDriver: cgroups
registryBurst: 5
maxParallelImagePulls: 2
serializeImagePulls: true
cpuCFSQuotaPeriod: 2s
enforceNodeAllocatable: [none, pods]
runOnce: true
allowedUnsafeSysctls: [vm.swappiness]
staticPodURL: ftp://x/
containerRuntimeEndpoint: tcp://1.2.3.4:5
---
apiVersion: nodelet.dev/v1alpha1
kind: NodeletConfiguration
runDirectory: /x
owner: '-'
startConcurrency: -1
";
    assert_eq!(
        mistakes(text, &[("registry-burst", &["ten"]), ("healthz-bind-address", &["localhost"])]),
        [
            "main.yaml: line 3, column 16: registryBurst: Invalid value: \"many\": must be a whole number",
            "main.yaml: line 4, column 14: healthzPort: Invalid value: 70000: must be between 0 and 65535",
            "main.yaml: line 5, column 24: clusterDNS[1]: Invalid value: \"nowhere\": must be an IP address",
            "main.yaml: line 6, column 23: systemReserved[gpu]: cannot reserve \"gpu\" resource: only cpu, memory, ephemeral-storage and pid",
            "main.yaml: line 6, column 33: systemReserved[cpu]: Invalid value: -1: must be text; YAML reads this as a number, put it in quotes",
            "main.yaml: line 7, column 16: syncFrequency: Invalid value: 60: must be a duration with units, like 90s, 1m30s or 100ms",
            "main.yaml: line 8, column 15: cgroupDriver: Invalid value: \"cgroups\": must be cgroupfs or systemd",
            "main.yaml: line 9, column 1: registryBurst: Duplicate value: \"registryBurst\": this key was written before, at line 3",
            "main.yaml: line 11, column 22: serializeImagePulls: Invalid value: true: must be false where maxParallelImagePulls is 2",
            "main.yaml: line 12, column 20: cpuCFSQuotaPeriod: Invalid value: \"2s\": must be between 1ms and 1s",
            "main.yaml: line 13, column 26: enforceNodeAllocatable[0]: Invalid value: \"none\": must be the only item",
            "main.yaml: line 14, column 1: runOnce: Unsupported: the kubelet rejects it too: run the agent as a service",
            "main.yaml: line 15, column 24: allowedUnsafeSysctls[0]: Invalid value: \"vm.swappiness\": must be the name of a sysctl that each pod has its own of (kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.*, net.*), with a `*` at the end at most",
            "main.yaml: line 16, column 15: staticPodURL: Invalid value: must be an http or https URL",
            "main.yaml: line 17, column 27: containerRuntimeEndpoint: Invalid value: \"tcp://1.2.3.4:5\": must be a Unix socket, like unix:///run/containerd/containerd.sock",
            "main.yaml: line 21, column 1: runDirectory: unknown field",
            "main.yaml: line 22, column 8: owner: Invalid value: \"-\": must be letters, digits, '-', '_' and '.', begin and end with a letter or digit, and be at most 63 characters long",
            "main.yaml: line 23, column 19: startConcurrency: Invalid value: -1: must be 0 or more",
            "--registry-burst: Invalid value: \"ten\": must be a whole number",
            "--healthz-bind-address: Invalid value: \"localhost\": must be an IP address",
        ]
    );
}

#[test]
fn what_was_asked_for_and_is_not_there_is_an_error() {
    let host = HostFacts {
        swap_on: true,
        cgroup_v1: true,
        kernel: vec![KernelSetting { name: "kernel/panic", expected: 10, actual: 0 }],
    };
    assert!(try_load("failSwapOn: false\nfailCgroupV1: false\n", &[], &[], &host).is_ok());
    let all = "failSwapOn: true\nfailCgroupV1: true\nsingleProcessOOMKill: false\nprotectKernelDefaults: true\nmemorySwap: {swapBehavior: LimitedSwap}\n";
    let error = try_load(all, &[], &[], &host).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 5, "{error}");
    assert!(
        error.contains("invalid kernel flag: kernel/panic, expected value: 10, actual value: 0")
    );
    let swap = "memorySwap.swapBehavior: Invalid value: \"LimitedSwap\": this host uses cgroup v1";
    assert!(error.contains(swap), "{error}");
    assert!(try_load(all, &[], &[], &HostFacts::default()).is_ok());
    assert!(try_load("", &[], &[("fail-swap-on", &["true"])], &host).is_err());
}

#[test]
fn unknown_fields_are_told_and_do_not_stop_a_start() {
    let loaded = try_load(
        "maxPod: 5\nfutureThing: {a: b}\nprepareUpdates: false\n",
        &[],
        &[],
        &HostFacts::default(),
    )
    .unwrap();
    let unknown: Vec<String> = loaded.unknown.iter().map(ToString::to_string).collect();
    assert_eq!(
        unknown,
        [
            "main.yaml: line 3, column 1: maxPod: unknown field, did you mean \"maxPods\"?",
            "main.yaml: line 4, column 1: futureThing: unknown field",
            "main.yaml: line 5, column 1: prepareUpdates: unknown field; it belongs in a document of kind NodeletConfiguration",
        ]
    );
    assert_eq!(loaded.config.notices, unknown);
}

#[test]
fn what_is_known_and_not_acted_on_is_told() {
    let main =
        "memoryThrottlingFactor: 0\ncontentType: application/json\nqosReserved: {memory: 50%}\n";
    let config = try_load(main, &[], &[], &HostFacts::default()).unwrap().config;
    assert_eq!(
        config.notices,
        [
            "main.yaml: line 4, column 1: contentType: not acted on: the agent always uses JSON",
            "main.yaml: line 5, column 1: qosReserved: not acted on: this version does not reserve the requests of Guaranteed pods",
        ]
    );
}

#[test]
fn a_zero_that_differs_from_the_default_is_reported() {
    let reported = |main: &str, flags: &[(&str, &[&str])]| -> Vec<String> {
        let notices = try_load(main, &[], flags, &HostFacts::default()).unwrap().notices;
        let name = |notice: Mistake| match notice.problem.path {
            path if path.is_empty() => notice.location.to_string(),
            path => path,
        };
        notices.into_iter().map(name).collect()
    };
    let meant = "enableServer: false\nauthentication: {webhook: {enabled: false}}\n\
        iptablesDropBit: 0\nfeatureGates: {SomeGate: false}\nreservedSystemCPUs: '0'\n\
        qosReserved: {memory: '0'}\n";
    assert_eq!(
        reported(meant, &[]),
        ["iptablesDropBit", "featureGates", "reservedSystemCPUs", "qosReserved",]
    );
    let unset = "readOnlyPort: 0\nrotateCertificates: false\ntlsCertFile: ''\nrunOnce: false\n\
        authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0m0s}, x509: {}}\n\
        volumeStatsAggPeriod: 0s\nstreamingConnectionIdleTimeout: 0s\nfeatureGates: {}\n\
        logging: {flushFrequency: 0, options: {json: {splitStream: false, infoBufferSize: '0'}}}\n";
    assert_eq!(reported(unset, &[]), Vec::<String>::new());
    let flags: &[(&str, &[&str])] = &[
        ("enable-server", &["false"]),
        ("reserved-cpus", &["0"]),
        ("read-only-port", &["0"]),
        ("anonymous-auth", &["false"]),
        ("volume-stats-agg-period", &["0s"]),
        ("tls-cert-file", &[""]),
    ];
    assert_eq!(reported("", flags), ["--reserved-cpus"]);
}

#[test]
fn kubeadms_file_starts_the_agent() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/config/kubeadm.yaml");
    let loaded = parse_and_validate(&fs::read(path).unwrap()).unwrap();
    assert_eq!(loaded.unknown, []);
    let mut want = Config::default();
    want.source.static_pod_path = Some("/etc/kubernetes/manifests".into());
    want.server.client_ca = Some("/etc/kubernetes/pki/ca.crt".into());
    want.pods.dns.cluster_dns = vec!["10.96.0.10".parse().unwrap()];
    want.pods.dns.cluster_domain = "cluster.local".to_owned();
    want.cluster.identity.rotate = true;
    want.cgroup.driver = CgroupDriver::Systemd;
    // It writes 0s: a shutdown does not wait.
    want.shutdown = Some(ShutdownPeriods::default());
    want.notices = loaded.config.notices.clone();
    assert_eq!(loaded.config, want);
    let fields: Vec<&str> =
        want.notices.iter().map(|notice| notice.split(": ").nth(2).unwrap()).collect();
    assert_eq!(fields, ["authentication.x509.clientCAFile"]);
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    for (text, message) in [
        ("", "config: the file is empty"),
        ("# nothing\n---\n", "config: the file is empty"),
        (
            "registryBurst: 5\n",
            "config: line 1, column 1: kind: Required value: KubeletConfiguration or NodeletConfiguration",
        ),
        (
            "kind: KubeletConfig\n",
            "config: line 1, column 7: kind: Unsupported value: \"KubeletConfig\": supported values: \"KubeletConfiguration\", \"NodeletConfiguration\"",
        ),
        (
            "kind: KubeletConfiguration\n",
            "config: line 1, column 1: apiVersion: Required value: kubelet.config.k8s.io/v1beta1",
        ),
        (
            "kind: KubeletConfiguration\napiVersion: v1\n",
            "config: line 2, column 13: apiVersion: Unsupported value: \"v1\": supported values: \"kubelet.config.k8s.io/v1beta1\"",
        ),
        (
            "{\"kind\": \"KubeletConfiguration\", \"apiVersion\": \"kubelet.config.k8s.io/v1beta1\", \"registryBurst\": \"5\"}",
            "config: line 1, column 98: registryBurst: Invalid value: \"5\": must be a whole number; remove the quotes",
        ),
    ] {
        assert_eq!(parse_and_validate(text.as_bytes()).unwrap_err().to_string(), message, "{text}");
    }
    let twice = format!("{HEAD}---\n{HEAD}");
    let error = parse_and_validate(twice.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("a second document of kind KubeletConfiguration"), "{error}");
    let sentence = parse_and_validate(b"just words").unwrap_err().to_string();
    assert!(sentence.starts_with("config: line 1, column 1: kind: Required value"), "{sentence}");
}

#[test]
fn the_kubelets_other_flags_have_an_answer() {
    let notices = |flags: &[(&str, &[&str])]| {
        try_load("", &[], flags, &HostFacts::default()).unwrap().config.notices
    };
    assert_eq!(
        notices(&[
            ("tls-curve-preferences", &["29"]),
            ("register-node", &["false"]),
            ("experimental-mounter-path", &["/usr/bin/mounter"]),
        ]),
        [
            "--tls-curve-preferences: not acted on: the agent's TLS library chooses the key exchange",
            "--experimental-mounter-path: not acted on: the agent runs the `mount` program of the node for NFS volumes, and no program for other volumes",
        ]
    );
    for (name, part) in [
        (
            "container-runtime",
            "--container-runtime: was removed from the kubelet: name the runtime's socket",
        ),
        ("runonce", "--runonce: Unsupported: "),
        ("node-ip", "--node-ip: Invalid value: "),
        ("fail-swap-on", "--fail-swap-on: Invalid value: \"x=!\": must be true or false"),
    ] {
        let found = mistakes("", &[(name, &[if name == "runonce" { "true" } else { "x=!" }])]);
        assert!(found.len() == 1 && found[0].starts_with(part), "{found:?}");
    }
}

#[test]
fn a_node_ip_is_no_multicast_or_link_local_address() {
    for ip in ["224.0.0.1", "ff02::1", "169.254.1.1", "fe80::1"] {
        let expected = format!(
            "--node-ip: Invalid value: {ip:?}: must not be a multicast or link-local address"
        );
        assert_eq!(mistakes("", &[("node-ip", &[ip])]), [expected]);
    }
    for ip in ["0.0.0.0", "::", "127.0.0.7", "10.0.0.1,fd00::1"] {
        assert!(try_load("", &[], &[("node-ip", &[ip])], &HostFacts::default()).is_ok(), "{ip}");
    }
}

#[test]
fn the_cloud_provider_is_external_or_none() {
    let external = |flags: &[(&str, &[&str])]| {
        let loaded = try_load("", &[], flags, &HostFacts::default()).unwrap();
        (loaded.config.cluster.cloud_provider == CloudProvider::External, loaded.config.notices)
    };
    let joined: (&str, &[&str]) = ("kubeconfig", &["/etc/nodelet/kubeconfig"]);
    assert_eq!(external(&[joined]), (false, vec![]));
    assert_eq!(external(&[joined, ("cloud-provider", &[""])]), (false, vec![]));
    assert_eq!(external(&[("cloud-provider", &["external"]), joined]), (true, vec![]));
    let alone = "--cloud-provider: not acted on: there is no Node without --kubeconfig";
    assert_eq!(external(&[("cloud-provider", &["external"])]), (true, vec![alone.to_owned()]));
    assert_eq!(
        mistakes("", &[joined, ("cloud-provider", &["aws"])]),
        ["--cloud-provider: Invalid value: \"aws\": must be external or empty"]
    );
}

#[test]
fn secrets_in_headers_are_not_repeated() {
    let found = mistakes(
        "staticPodURLHeader: {Authorization: [\"s3cret\\u0001\"]}\n",
        &[("manifest-url-header", &["s3cret"])],
    );
    assert!(found.iter().all(|m| !m.contains("s3cret")) && !found.is_empty(), "{found:?}");
    let found = mistakes("staticPodURL: https://jane:s3cret@example.com/pods\n", &[]);
    assert!(found.iter().all(|m| m.contains("user name") && !m.contains("s3cret")), "{found:?}");
    assert_eq!(found.len(), 1);
}

#[test]
fn the_table_of_flags_is_sound() {
    let mut names = HashSet::new();
    for flag in flags() {
        assert!(names.insert(flag.name), "--{} is there twice", flag.name);
        assert!(!flag.help().is_empty(), "--{} says nothing", flag.name);
        assert_eq!(!flag.heading().is_empty(), flag.is_acted_on(), "--{}: its group", flag.name);
        if let Some(target) = flag.target().filter(|_| flag.is_acted_on()) {
            let ty = target.field.ty;
            assert!(!matches!(ty, Type::Object(_) | Type::Any), "--{} can't be read", flag.name);
        }
    }
}

#[test]
fn drop_ins_are_found_in_lexical_order_below_directories() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("30-more")).unwrap();
    for (name, max) in [
        ("40-d.conf", 4),
        ("30-more/x.conf", 3),
        ("20-b.conf", 2),
        ("10-a.conf", 1),
        ("99.yaml", 9),
    ] {
        fs::write(at(name), format!("{HEAD}registryBurst: {max}\nclusterDomain: d{max}\n"))
            .unwrap();
    }
    fs::write(at("40-d.conf"), format!("{HEAD}clusterDomain: null\n")).unwrap();
    std::os::unix::fs::symlink(at("99.yaml"), at("30-more/y.conf")).unwrap();
    let path = dir.path().to_str().unwrap();
    let config = load(&given(&[("config-dir", &[path])]), &HostFacts::default()).unwrap().config;
    assert_eq!((config.images.burst, config.pods.dns.cluster_domain.as_str()), (9, ""));

    std::os::unix::fs::symlink(at("nothing"), at("50.conf")).unwrap();
    let error = load(&given(&[("config-dir", &[path])]), &HostFacts::default()).unwrap_err();
    assert!(error.to_string().contains("50.conf: cannot be read: No such file"), "{error}");
}

#[test]
fn damaged_files_are_answered_and_never_panic() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/config/kubeadm.yaml");
    let whole = fs::read(path).unwrap();
    let mut seed: u64 = 1;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let alphabet = b" :-#{}[]\"'\n0a&*!|%\t,";
    let mut accepted = 0;
    for _ in 0..500 {
        let mut text = whole.clone();
        for _ in 0..=next(4) {
            let at = next(text.len());
            match next(4) {
                0 => text.truncate(at.max(1)),
                1 => text[at] = alphabet[next(alphabet.len())],
                2 => drop(text.remove(at)),
                _ => text.insert(at, alphabet[next(alphabet.len())]),
            }
            if text.len() < 2 {
                break;
            }
        }
        accepted += usize::from(parse_and_validate(&text).is_ok());
    }
    assert!(accepted > 20, "{accepted}: the damage is so great that nothing is tested");
}

#[test]
fn verification_of_present_images_is_as_configured() {
    use crate::image::{AllowedImages, VerificationPolicy};
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    const LIST: &str = "preloadedImagesVerificationAllowlist";
    let policy = |text: &str| config(text).images.verification;
    let only = |name: &str| policy(&format!("{POLICY}: {name}\n"));
    assert_eq!(policy(""), VerificationPolicy::NeverVerifyPreloadedImages);
    assert_eq!(only("''"), VerificationPolicy::NeverVerifyPreloadedImages);
    assert_eq!(only("NeverVerify"), VerificationPolicy::NeverVerify);
    assert_eq!(only("AlwaysVerify"), VerificationPolicy::AlwaysVerify);
    let text = format!("{POLICY}: NeverVerifyAllowlistedImages\n{LIST}: [busybox, 'r.io/a/*']\n");
    let list = ["busybox", "r.io/a/*"].map(|one| AllowedImages::parse(one).unwrap());
    assert_eq!(policy(&text), VerificationPolicy::NeverVerifyAllowlistedImages(list.into()));

    for (text, mistake) in [
        (
            format!("{POLICY}: Sometimes\n"),
            "line 3, column 41: imagePullCredentialsVerificationPolicy: Invalid value: \"Sometimes\": must be NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify",
        ),
        (
            format!("{POLICY}: AlwaysVerify\n{LIST}: [busybox]\n"),
            "line 4, column 40: preloadedImagesVerificationAllowlist: may be set only where imagePullCredentialsVerificationPolicy is NeverVerifyAllowlistedImages",
        ),
        (
            format!("{POLICY}: NeverVerifyAllowlistedImages\n{LIST}: [busybox, 'a:1']\n"),
            "line 4, column 49: preloadedImagesVerificationAllowlist[1]: Invalid value: \"a:1\": must have neither a tag nor a digest",
        ),
    ] {
        let error = try_load(&text, &[], &[], &HostFacts::default()).unwrap_err();
        assert!(error.to_string().contains(mistake), "{error}");
        assert_eq!(error.mistakes.len(), 1, "{error}");
    }
}
