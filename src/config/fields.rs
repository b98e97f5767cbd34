//! Every field of KubeletConfiguration v1beta1 (1.36) and of NodeletConfiguration: name, type, and
//! what becomes of it. Decoding, `--help` and docs/configuration.md are all made from these tables.

use crate::document::{Field, Setting, Type};
use Type::{Any, Bool, Duration, Float, Int32, Int64, List, Map, Object, Quantity, String};

const WATCHED: &str = "the agent always watches ConfigMaps and Secrets";
const PROFILING: &str = "the agent is not profiled over the network";
const PINNING: &str = "this version does not reserve CPUs, memory nodes or devices for containers";
const CGROUP_OTHERS: &str = "the agent manages only the cgroups of pods";
const IPTABLES: &str = "the kubelet no longer uses it";
const KERNEL_MEMORY: &str = "the agent does not set memory.high and memory.min";

const EVICTION_HARD: &str = "{memory.available: 100Mi, nodefs.available: 10%, nodefs.inodesFree: 5%, \
     imagefs.available: 15%, imagefs.inodesFree: 5%}";

// The groups of flags in `--help`.
pub(super) const NODE: &str = "Node";
pub(super) const DIRECTORIES: &str = "Directories";
const CONTAINER_RUNTIME: &str = "Container runtime";
const MANIFESTS: &str = "Manifests";
const PODS: &str = "Pods";
pub(super) const IMAGE_PULLS: &str = "Image pulls";
const CGROUPS: &str = "Cgroups";
const CONTAINER_LOGS: &str = "Container logs";
const LOG: &str = "Log";
const SERVER: &str = "HTTPS API";
pub(super) const THE_AGENT_ITSELF: &str = "The agent itself";

/// The flag of a field that is acted on, and its group in `--help`.
const fn flag(name: &'static str, heading: &'static str) -> Setting {
    Setting { flag: Some(name), heading, ..Setting::NONE }
}
/// A flag that `--help` does not show.
const fn hidden_flag(name: &'static str) -> Setting {
    flag(name, "")
}
/// The default of a field without a flag; words with spaces are shown as they are.
const fn default(text: &'static str) -> Setting {
    Setting::NONE.default(text)
}

/// A field that is acted on, with its effect.
const fn yes(name: &'static str, ty: Type, effect: &'static str) -> Field {
    Field { note: effect, ..Field::yes(name, ty) }
}
const fn differs(name: &'static str, ty: Type, note: &'static str) -> Field {
    Field::differs(name, ty, note)
}
const fn ignored(name: &'static str, ty: Type, note: &'static str) -> Field {
    Field::ignored(name, ty, note)
}

/// The same, with a flag or a default.
const fn yes_with(
    name: &'static str,
    ty: Type,
    setting: &'static Setting,
    effect: &'static str,
) -> Field {
    yes(name, ty, effect).with(setting)
}
const fn differs_with(
    name: &'static str,
    ty: Type,
    setting: &'static Setting,
    note: &'static str,
) -> Field {
    differs(name, ty, note).with(setting)
}
const fn ignored_with(
    name: &'static str,
    ty: Type,
    setting: &'static Setting,
    note: &'static str,
) -> Field {
    ignored(name, ty, note).with(setting)
}
const fn no_with(
    name: &'static str,
    ty: Type,
    setting: &'static Setting,
    note: &'static str,
) -> Field {
    Field::no(name, ty, note).with(setting)
}

/// `kind: KubeletConfiguration`, `apiVersion: kubelet.config.k8s.io/v1beta1`, in upstream's order.
pub(super) const KUBELET: &[Field] = &[
    yes("apiVersion", String, "must be `kubelet.config.k8s.io/v1beta1`"),
    yes("kind", String, "must be `KubeletConfiguration`"),
    yes_with(
        "enableServer",
        Bool,
        &flag("enable-server", SERVER).default("true"),
        "serve the HTTPS API. Without `--kubeconfig` it is served only with `authentication.x509.clientCAFile` and `authorization.mode: AlwaysAllow`",
    ),
    differs_with(
        "staticPodPath",
        String,
        &flag("pod-manifest-path", MANIFESTS).value("PATH").default("/etc/nodelet/static-pods"),
        "directory of manifests, or one manifest file; `\"\"` means that no directory is read. The kubelet has no default",
    ),
    yes_with("podLogsDir", String, &default("/var/log/pods"), "directory of the container logs"),
    differs_with(
        "syncFrequency",
        Duration,
        &flag("sync-frequency", THE_AGENT_ITSELF).default("1m"),
        "`/healthz` fails when the main loop completes no pass within twice this time, or within 5m if that is longer. Pods need no resync: the agent checks a pod whenever something changes",
    ),
    yes_with(
        "fileCheckFrequency",
        Duration,
        &flag("file-check-frequency", MANIFESTS).default("20s"),
        "how often the agent reads staticPodPath again; inotify also reports changes at once",
    ),
    yes_with(
        "httpCheckFrequency",
        Duration,
        &flag("http-check-frequency", MANIFESTS).default("20s"),
        "how often the agent requests staticPodURL",
    ),
    differs_with(
        "staticPodURL",
        String,
        &flag("manifest-url", MANIFESTS).value("URL"),
        "URL (http or https, without a user name) of a manifest, a PodList or several documents; the agent follows up to 10 redirects",
    ),
    differs_with(
        "staticPodURLHeader",
        Map(&List(&String)),
        &flag("manifest-url-header", MANIFESTS),
        "headers of the requests to staticPodURL; they are not sent to another host or port after a redirect",
    ),
    yes_with(
        "address",
        String,
        &flag("address", SERVER).value("IP").default("0.0.0.0"),
        "IP address of the HTTPS API and of the read-only port; `0.0.0.0` and `::` are all addresses, IPv4 and IPv6",
    ),
    yes_with("port", Int32, &flag("port", SERVER).default("10250"), "port of the HTTPS API"),
    yes_with(
        "readOnlyPort",
        Int32,
        &flag("read-only-port", SERVER).default("0"),
        "port that serves pods, statistics and metrics without TLS and without authentication; 0: none",
    ),
    yes_with(
        "tlsCertFile",
        String,
        &flag("tls-cert-file", SERVER).value("FILE"),
        "certificate of the HTTPS API, PEM, with those of its issuers after it. A file that is replaced is read again",
    ),
    yes_with(
        "tlsPrivateKeyFile",
        String,
        &flag("tls-private-key-file", SERVER).value("FILE"),
        "its private key",
    ),
    yes_with(
        "tlsCipherSuites",
        List(&String),
        &flag("tls-cipher-suites", SERVER),
        "the cipher suites of TLS 1.2; those of TLS 1.3 can't be chosen",
    ),
    ignored_with(
        "tlsCurvePreferences",
        List(&String),
        &hidden_flag("tls-curve-preferences"),
        "the agent's TLS library chooses the key exchange",
    ),
    yes_with(
        "tlsMinVersion",
        String,
        &flag("tls-min-version", SERVER).default("VersionTLS12"),
        "`VersionTLS13`: TLS 1.2 is refused",
    ),
    yes_with(
        "rotateCertificates",
        Bool,
        &flag("rotate-certificates", THE_AGENT_ITSELF).default("false"),
        "request a new client certificate after 70 to 90 % of the lifetime of the present one",
    ),
    yes_with(
        "serverTLSBootstrap",
        Bool,
        &flag("rotate-server-certificates", SERVER).default("false"),
        "request the certificate of the HTTPS API from the cluster, and renew it. Until somebody has approved the request, no connection to the HTTPS API succeeds",
    ),
    Field::yes("authentication", Object(AUTHENTICATION)),
    Field::yes("authorization", Object(AUTHORIZATION)),
    yes_with(
        "registryPullQPS",
        Int32,
        &flag("registry-qps", IMAGE_PULLS).default("5"),
        "image pulls per second; `0`: no limit",
    ),
    yes_with(
        "registryBurst",
        Int32,
        &flag("registry-burst", IMAGE_PULLS).default("10"),
        "largest burst of image pulls; on average registryPullQPS applies",
    ),
    yes_with(
        "imagePullCredentialsVerificationPolicy",
        String,
        &default("NeverVerifyPreloadedImages"),
        "which images that are present a pod may use only with credentials that have pulled them: \
         those that the agent has pulled; `NeverVerify`: none; `AlwaysVerify`: all; \
         `NeverVerifyAllowlistedImages`: all but those of preloadedImagesVerificationAllowlist",
    ),
    yes(
        "preloadedImagesVerificationAllowlist",
        List(&String),
        "images without a tag, or beginnings like `registry.example.com/team/*`, that every pod may \
         use; only with `NeverVerifyAllowlistedImages`",
    ),
    yes_with(
        "eventRecordQPS",
        Int32,
        &flag("event-qps", THE_AGENT_ITSELF).default("50"),
        "events written to the API server per second; `0`: no limit",
    ),
    yes_with(
        "eventBurst",
        Int32,
        &flag("event-burst", THE_AGENT_ITSELF).default("100"),
        "largest burst of events; on average eventRecordQPS applies",
    ),
    yes_with(
        "enableDebuggingHandlers",
        Bool,
        &flag("enable-debugging-handlers", SERVER).default("true"),
        "`false`: the HTTPS API has no logs, exec, attach, port-forward and run",
    ),
    ignored_with(
        "enableContentionProfiling",
        Bool,
        &hidden_flag("contention-profiling"),
        PROFILING,
    ),
    yes_with(
        "healthzPort",
        Int32,
        &flag("healthz-port", THE_AGENT_ITSELF).default("10248"),
        "port of `/healthz`; `0`: it is not served",
    ),
    yes_with(
        "healthzBindAddress",
        String,
        &flag("healthz-bind-address", THE_AGENT_ITSELF).value("IP").default("127.0.0.1"),
        "IP address of `/healthz`",
    ),
    yes_with(
        "oomScoreAdj",
        Int32,
        &flag("oom-score-adj", THE_AGENT_ITSELF).default("-999"),
        "the agent's own /proc/self/oom_score_adj",
    ),
    yes_with(
        "clusterDomain",
        String,
        &flag("cluster-domain", PODS).value("DOMAIN"),
        "DNS domain of pods with dnsPolicy ClusterFirst",
    ),
    yes_with(
        "clusterDNS",
        List(&String),
        &flag("cluster-dns", PODS),
        "DNS servers of pods with dnsPolicy ClusterFirst",
    ),
    yes_with(
        "streamingConnectionIdleTimeout",
        Duration,
        &flag("streaming-connection-idle-timeout", SERVER).default("4h"),
        "an exec, attach or port-forward on which nothing is sent for this long is closed; `0` as a flag: never",
    ),
    yes_with(
        "nodeStatusUpdateFrequency",
        Duration,
        &flag("node-status-update-frequency", THE_AGENT_ITSELF).default("10s"),
        "how often the agent computes the status of the Node; a changed condition is written at once",
    ),
    yes_with(
        "nodeStatusReportFrequency",
        Duration,
        &default("5m"),
        "how often the agent writes an unchanged status; where the `--config` file sets only nodeStatusUpdateFrequency, its value is used, which drop-ins and flags then do not change",
    ),
    yes_with(
        "nodeLeaseDurationSeconds",
        Int32,
        &default("40"),
        "how long the lease of the node is valid, in seconds; the agent renews it four times in this period",
    ),
    yes_with(
        "imageMinimumGCAge",
        Duration,
        &flag("minimum-image-ttl-duration", THE_AGENT_ITSELF).default("2m"),
        "an unused image is kept for at least this long after the agent first saw it",
    ),
    differs_with(
        "imageMaximumGCAge",
        Duration,
        &default("0s"),
        "an image that was unused for longer is removed even when the disk has room; `0s`: it is kept. The agent saves when each image was last used; the kubelet loses these times when it restarts",
    ),
    yes_with(
        "imageGCHighThresholdPercent",
        Int32,
        &flag("image-gc-high-threshold", THE_AGENT_ITSELF).default("85"),
        "when this percentage of the image file system is in use, unused images are removed; `100`: they are removed only under disk pressure",
    ),
    yes_with(
        "imageGCLowThresholdPercent",
        Int32,
        &flag("image-gc-low-threshold", THE_AGENT_ITSELF).default("80"),
        "unused images are removed until usage is down to this percentage",
    ),
    // Text, because a negative duration is allowed here.
    yes_with(
        "volumeStatsAggPeriod",
        String,
        &flag("volume-stats-agg-period", SERVER).value("DURATION").default("1m0s"),
        "statistics of logs, emptyDirs and writable layers that are older than this are measured anew when a client asks for them. Until that is done, it gets the old ones; if they are older than twice this, it waits up to 3s; negative: there are none, and none of PersistentVolumes. Evictions measure for themselves",
    ),
    ignored_with("kubeletCgroups", String, &hidden_flag("kubelet-cgroups"), CGROUP_OTHERS),
    ignored_with("systemCgroups", String, &hidden_flag("system-cgroups"), CGROUP_OTHERS),
    yes_with(
        "cgroupRoot",
        String,
        &flag("cgroup-root", CGROUPS).value("CGROUP").default("/"),
        "existing cgroup under which the agent creates `kubepods`",
    ),
    yes_with(
        "cgroupsPerQOS",
        Bool,
        &flag("cgroups-per-qos", CGROUPS).default("true"),
        "create cgroups for QoS classes and pods",
    ),
    yes_with(
        "cgroupDriver",
        String,
        &flag("cgroup-driver", CGROUPS).value("DRIVER").default("cgroupfs"),
        "how cgroups are created: `cgroupfs` or `systemd`. The driver that the runtime reports (CRI RuntimeConfig: containerd 2, CRI-O) takes precedence",
    ),
    ignored_with("cpuManagerPolicy", String, &hidden_flag("cpu-manager-policy"), PINNING),
    ignored_with(
        "cpuManagerPolicyOptions",
        Map(&String),
        &hidden_flag("cpu-manager-policy-options"),
        PINNING,
    ),
    ignored_with(
        "cpuManagerReconcilePeriod",
        Duration,
        &hidden_flag("cpu-manager-reconcile-period"),
        PINNING,
    ),
    ignored_with("memoryManagerPolicy", String, &hidden_flag("memory-manager-policy"), PINNING),
    ignored_with("topologyManagerPolicy", String, &hidden_flag("topology-manager-policy"), PINNING),
    ignored_with("topologyManagerScope", String, &hidden_flag("topology-manager-scope"), PINNING),
    ignored_with(
        "topologyManagerPolicyOptions",
        Map(&String),
        &hidden_flag("topology-manager-policy-options"),
        PINNING,
    ),
    yes_with(
        "singleProcessOOMKill",
        Bool,
        &default("false on cgroup v2, true on v1"),
        "when a container runs out of memory, kill one process instead of the whole container (cgroup v2)",
    ),
    ignored_with(
        "qosReserved",
        Map(&String),
        &hidden_flag("qos-reserved"),
        "this version does not reserve the requests of Guaranteed pods",
    ),
    yes_with(
        "runtimeRequestTimeout",
        Duration,
        &flag("runtime-request-timeout", CONTAINER_RUNTIME).default("2m"),
        "deadline of runtime calls that only read; a call that changes something is reported as hung after this time and goes on",
    ),
    ignored_with(
        "hairpinMode",
        String,
        &hidden_flag("hairpin-mode"),
        "the network belongs to the CNI plugin",
    ),
    yes_with(
        "maxPods",
        Int32,
        &flag("max-pods", PODS).default("110"),
        "largest number of pods on the node; further pods wait until there is room",
    ),
    ignored_with(
        "podCIDR",
        String,
        &hidden_flag("pod-cidr"),
        "the network belongs to the CNI plugin",
    ),
    differs_with(
        "podPidsLimit",
        Int64,
        &flag("pod-max-pids", PODS).default("the larger of 1024 and an eighth of the host's pids"),
        "largest number of tasks (processes and threads) in a pod; zero or negative: no limit. The kubelet's default is no limit",
    ),
    yes_with(
        "resolvConf",
        String,
        &flag("resolv-conf", PODS).value("PATH").default("/etc/resolv.conf"),
        "file that the DNS configuration of pods is based on; `\"\"` means none",
    ),
    no_with(
        "runOnce",
        Bool,
        &hidden_flag("runonce").default("false"),
        "the kubelet rejects it too: run the agent as a service",
    ),
    yes_with(
        "cpuCFSQuota",
        Bool,
        &flag("cpu-cfs-quota", PODS).default("true"),
        "enforce CPU limits",
    ),
    yes_with(
        "cpuCFSQuotaPeriod",
        Duration,
        &flag("cpu-cfs-quota-period", PODS).default("100ms"),
        "period over which a CPU limit applies, 1ms to 1s",
    ),
    yes_with(
        "nodeStatusMaxImages",
        Int32,
        &flag("node-status-max-images", THE_AGENT_ITSELF).default("50"),
        "number of images listed in the status of the Node, largest first; `-1`: all",
    ),
    yes_with(
        "maxOpenFiles",
        Int64,
        &flag("max-open-files", THE_AGENT_ITSELF).default("1000000"),
        "the agent raises its own RLIMIT_NOFILE to this, and never lowers it",
    ),
    ignored_with(
        "contentType",
        String,
        &hidden_flag("kube-api-content-type"),
        "the agent always uses JSON",
    ),
    yes_with(
        "kubeAPIQPS",
        Int32,
        &flag("kube-api-qps", THE_AGENT_ITSELF).default("50"),
        "writes about pods to the API server per second; what is written for the node, and what is read, is not counted; `0`: 5, the client library's own limit",
    ),
    yes_with(
        "kubeAPIBurst",
        Int32,
        &flag("kube-api-burst", THE_AGENT_ITSELF).default("100"),
        "largest burst of such writes; on average kubeAPIQPS applies",
    ),
    yes_with(
        "serializeImagePulls",
        Bool,
        &flag("serialize-image-pulls", IMAGE_PULLS).default("true"),
        "pull one image at a time",
    ),
    yes(
        "maxParallelImagePulls",
        Int32,
        "number of images pulled at the same time; a value above 1 disables serializeImagePulls unless that field is set",
    ),
    differs_with(
        "evictionHard",
        Map(&String),
        &flag("eviction-hard", THE_AGENT_ITSELF).value("SIGNAL<VALUE,...").default(EVICTION_HARD),
        "thresholds by signal, each a quantity or a percentage of the capacity (`0%` and `100%`: disabled). A pod is evicted as soon as one is met. A map replaces the whole default, and `{}` disables all thresholds; in a drop-in, a map is merged over the default, and `null` disables all. The kubelet uses the default only with a configuration file, and never evicts static pods",
    ),
    yes_with(
        "evictionSoft",
        Map(&String),
        &flag("eviction-soft", THE_AGENT_ITSELF).value("SIGNAL<VALUE,..."),
        "thresholds by signal. A pod is evicted after a threshold has been met for its grace period; the node's condition changes at once",
    ),
    yes_with(
        "evictionSoftGracePeriod",
        Map(&String),
        &flag("eviction-soft-grace-period", THE_AGENT_ITSELF),
        "grace period of each evictionSoft threshold; every threshold needs an entry",
    ),
    yes_with(
        "evictionPressureTransitionPeriod",
        Duration,
        &flag("eviction-pressure-transition-period", THE_AGENT_ITSELF).default("5m"),
        "how long a pressure condition stays true after the pressure was last observed; evicted pods do not return during this time",
    ),
    differs_with(
        "evictionMaxPodGracePeriod",
        Int32,
        &flag("eviction-max-pod-grace-period", THE_AGENT_ITSELF).default("0"),
        "longest grace period of a pod that is evicted for a soft threshold, in seconds; the pod always gets at least 1. Negative: the pod's own grace period, which the kubelet documents but does not implement",
    ),
    yes_with(
        "evictionMinimumReclaim",
        Map(&String),
        &flag("eviction-minimum-reclaim", THE_AGENT_ITSELF),
        "by signal, how much more than the threshold must be free before eviction stops",
    ),
    yes_with(
        "mergeDefaultEvictionSettings",
        Bool,
        &default("false"),
        "signals that evictionHard does not name keep their default threshold",
    ),
    yes_with(
        "podsPerCore",
        Int32,
        &flag("pods-per-core", PODS).default("0"),
        "largest number of pods for each CPU of the node, up to maxPods; `0`: only maxPods applies",
    ),
    yes_with(
        "enableControllerAttachDetach",
        Bool,
        &flag("enable-controller-attach-detach", THE_AGENT_ITSELF).default("true"),
        "annotate the Node with `volumes.kubernetes.io/controller-managed-attach-detach`",
    ),
    yes_with(
        "protectKernelDefaults",
        Bool,
        &flag("protect-kernel-defaults", THE_AGENT_ITSELF).default("false"),
        "refuse to start if a kernel setting differs from what the kubelet expects; when false, the agent does not check or change kernel settings",
    ),
    ignored_with(
        "makeIPTablesUtilChains",
        Bool,
        &hidden_flag("make-iptables-util-chains").zero_counts(),
        IPTABLES,
    ),
    ignored_with(
        "iptablesMasqueradeBit",
        Int32,
        &hidden_flag("iptables-masquerade-bit").zero_counts(),
        IPTABLES,
    ),
    ignored_with(
        "iptablesDropBit",
        Int32,
        &hidden_flag("iptables-drop-bit").zero_counts(),
        IPTABLES,
    ),
    ignored_with(
        "featureGates",
        Map(&Bool),
        &hidden_flag("feature-gates"),
        "nodelet has no feature gates",
    ),
    differs_with(
        "failSwapOn",
        Bool,
        &flag("fail-swap-on", THE_AGENT_ITSELF).default("false"),
        "refuse to start while swap is on; the kubelet's default is true",
    ),
    Field::yes(
        "memorySwap",
        Object(&[differs_with(
            "swapBehavior",
            String,
            &default("NoSwap"),
            "how much swap containers may use. `NoSwap`: none. `LimitedSwap` (cgroup v2): each container of a Burstable pod gets a share of the node's swap in proportion to its memory request, but none if its memory limit equals the request. This includes static pods, except those with a `priority` of 2000000000 and more; the kubelet gives static pods none",
        )]),
    ),
    yes_with(
        "containerLogMaxSize",
        Quantity,
        &flag("container-log-max-size", CONTAINER_LOGS).default("10Mi"),
        "size from which on a container's log is rotated; a negative value turns rotation off. A log that grows is watched by its rate, so the size is exceeded by little",
    ),
    yes_with(
        "containerLogMaxFiles",
        Int32,
        &flag("container-log-max-files", CONTAINER_LOGS).default("5"),
        "number of log files of a container instance, the current one included, at least 2; older ones are deleted",
    ),
    differs_with(
        "containerLogMaxWorkers",
        Int32,
        &default("1"),
        "number of logs that are compressed at a time, at most 4. Rotations do not wait for each other or for compressions, as they do in the kubelet",
    ),
    differs_with(
        "containerLogMonitorInterval",
        Duration,
        &default("10s"),
        "time between two looks at a log that does not grow, at least 3s; a log that grows is looked at more often",
    ),
    ignored("configMapAndSecretChangeDetectionStrategy", String, WATCHED),
    yes_with(
        "systemReserved",
        Map(&String),
        &flag("system-reserved", CGROUPS),
        "cpu, memory, ephemeral-storage and pid reserved for the system, not available to pods",
    ),
    yes_with(
        "kubeReserved",
        Map(&String),
        &flag("kube-reserved", CGROUPS),
        "resources reserved for Kubernetes components, in addition to systemReserved",
    ),
    ignored_with("reservedSystemCPUs", String, &hidden_flag("reserved-cpus"), PINNING),
    ignored("showHiddenMetricsForVersion", String, "the agent hides no metrics"),
    ignored_with(
        "systemReservedCgroup",
        String,
        &hidden_flag("system-reserved-cgroup"),
        CGROUP_OTHERS,
    ),
    ignored_with("kubeReservedCgroup", String, &hidden_flag("kube-reserved-cgroup"), CGROUP_OTHERS),
    differs_with(
        "enforceNodeAllocatable",
        List(&String),
        &flag("enforce-node-allocatable", CGROUPS).default("[pods]"),
        "`pods` limits the resources of all pods together; `none` or an empty list sets no limit; the other values are accepted and have no effect",
    ),
    yes_with(
        "allowedUnsafeSysctls",
        List(&String),
        &flag("allowed-unsafe-sysctls", PODS),
        "sysctls that a pod may set in addition to the safe ones; a trailing `*` matches any suffix",
    ),
    ignored_with(
        "volumePluginDir",
        String,
        &hidden_flag("volume-plugin-dir"),
        "there are no volume plugins",
    ),
    yes_with(
        "providerID",
        String,
        &flag("provider-id", THE_AGENT_ITSELF),
        "`spec.providerID` of the Node when the agent registers it",
    ),
    ignored_with(
        "kernelMemcgNotification",
        Bool,
        &hidden_flag("kernel-memcg-notification"),
        "the agent reads a signal more often the closer it is to its threshold",
    ),
    yes("logging", Object(LOGGING), "the agent's own log"),
    differs_with(
        "enableSystemLogHandler",
        Bool,
        &default("false"),
        "`true`: the HTTPS API serves files of /var/log below `/logs/`. Off by default; the kubelet's default is on",
    ),
    yes(
        "enableSystemLogQuery",
        Bool,
        "`true`: `/logs/?query=SERVICE` serves the logs of services, and `enableSystemLogHandler` is on, too, and must not be `false`",
    ),
    differs(
        "shutdownGracePeriod",
        Duration,
        "longest time that a shutdown of the machine waits for pods to end; `0s`: it does not wait. If none of the three shutdown fields is set, 30s in a unit with `Type=notify`; the kubelet does not wait then",
    ),
    differs(
        "shutdownGracePeriodCriticalPods",
        Duration,
        "part of shutdownGracePeriod that is reserved for critical pods (`priority` of 2000000000 and more), which end last. If none of the three shutdown fields is set, 10s in a unit with `Type=notify`",
    ),
    yes(
        "shutdownGracePeriodByPodPriority",
        List(&Object(SHUTDOWN_BY_PRIORITY)),
        "replaces the other two shutdown fields: the time of each group of pods; the group with the lowest `priority` ends first",
    ),
    yes("crashLoopBackOff", Object(CRASH_LOOP), "wait between restarts of a container"),
    ignored_with(
        "reservedMemory",
        List(&Object(RESERVED_MEMORY)),
        &hidden_flag("reserved-memory"),
        PINNING,
    ),
    ignored_with("enableProfilingHandler", Bool, &Setting::NONE.zero_counts(), PROFILING),
    ignored_with("enableDebugFlagsHandler", Bool, &Setting::NONE.zero_counts(), PROFILING),
    yes_with(
        "seccompDefault",
        Bool,
        &flag("seccomp-default", PODS).default("false"),
        "containers without a seccomp profile use the runtime's default profile",
    ),
    ignored("memoryThrottlingFactor", Float, KERNEL_MEMORY),
    ignored("memoryReservationPolicy", String, KERNEL_MEMORY),
    differs_with(
        "registerWithTaints",
        List(&Object(TAINT)),
        &flag("register-with-taints", THE_AGENT_ITSELF),
        "taints of the Node when the agent registers it. With `apiPods: false`, the taint `nodelet.dev/static-only:NoSchedule` is added, which keeps scheduled pods away",
    ),
    yes_with(
        "registerNode",
        Bool,
        &flag("register-node", THE_AGENT_ITSELF).default("true"),
        "create the Node object; `false`: update a Node that something else creates",
    ),
    ignored("tracing", Object(TRACING), "the agent sends no traces"),
    yes_with(
        "localStorageCapacityIsolation",
        Bool,
        &flag("local-storage-capacity-isolation", THE_AGENT_ITSELF).default("true"),
        "evict pods that exceed a local storage limit: the sizeLimit of an emptyDir volume or a limit on ephemeral-storage. `false` also takes ephemeral-storage from the resources of the Node",
    ),
    yes_with(
        "containerRuntimeEndpoint",
        String,
        &flag("container-runtime-endpoint", CONTAINER_RUNTIME)
            .value("SOCKET")
            .default("unix:///run/containerd/containerd.sock"),
        "the runtime's socket, `unix:///...`",
    ),
    yes_with(
        "imageServiceEndpoint",
        String,
        &flag("image-service-endpoint", CONTAINER_RUNTIME)
            .value("SOCKET")
            .default("containerRuntimeEndpoint"),
        "socket of the image service if it differs from the runtime's, `unix:///...`",
    ),
    differs_with(
        "failCgroupV1",
        Bool,
        &flag("fail-cgroupv1", THE_AGENT_ITSELF).default("false"),
        "refuse to start on a cgroup v1 host; the kubelet's default is true",
    ),
    Field::yes(
        "userNamespaces",
        Object(&[yes_with(
            "idsPerPod",
            Int64,
            &default("65536"),
            "user and group ids of a pod with `hostUsers: false`, a multiple of 65536. The ids come from the lines of the user `kubelet` in /etc/subuid and /etc/subgid; without such lines, from 65536 on",
        )]),
    ),
];

const AUTHENTICATION: &[Field] = &[
    Field::yes(
        "x509",
        Object(&[yes_with(
            "clientCAFile",
            String,
            &flag("client-ca-file", SERVER).value("FILE"),
            "certificates of the authorities whose client certificates are accepted. A file that is replaced is read again",
        )]),
    ),
    Field::yes(
        "webhook",
        Object(&[
            yes_with(
                "enabled",
                Bool,
                &flag("authentication-token-webhook", SERVER).default("true"),
                "ask the API server who has a bearer token (TokenReview)",
            ),
            yes_with(
                "cacheTTL",
                Duration,
                &flag("authentication-token-webhook-cache-ttl", SERVER).default("2m"),
                "how long the answer is cached",
            ),
        ]),
    ),
    Field::yes(
        "anonymous",
        Object(&[differs_with(
            "enabled",
            Bool,
            &flag("anonymous-auth", SERVER).default("false"),
            "`true`: a client without credentials is the user `system:anonymous`. `true` together with `authorization.mode: AlwaysAllow` would let everybody in, so the HTTPS API is not served then. Without a configuration file, the kubelet's default is true",
        )]),
    ),
];
const AUTHORIZATION: &[Field] = &[
    differs_with(
        "mode",
        String,
        &flag("authorization-mode", SERVER).default("Webhook"),
        "`Webhook`: the API server is asked (SubjectAccessReview), by default also without a configuration file; `AlwaysAllow`: everybody who is known may do everything",
    ),
    Field::yes(
        "webhook",
        Object(&[
            yes_with(
                "cacheAuthorizedTTL",
                Duration,
                &flag("authorization-webhook-cache-authorized-ttl", SERVER).default("5m"),
                "how long a permission is cached",
            ),
            yes_with(
                "cacheUnauthorizedTTL",
                Duration,
                &flag("authorization-webhook-cache-unauthorized-ttl", SERVER).default("30s"),
                "how long a refusal counts",
            ),
        ]),
    ),
];
const LOG_FLUSH: &str = "the agent writes every line at once";
const TEXT_LOG: &[Field] = &[
    ignored_with("splitStream", Bool, &hidden_flag("log-text-split-stream"), LOG_FLUSH),
    ignored_with("infoBufferSize", Quantity, &hidden_flag("log-text-info-buffer-size"), LOG_FLUSH),
];
const JSON_LOG: &[Field] = &[
    ignored_with("splitStream", Bool, &hidden_flag("log-json-split-stream"), LOG_FLUSH),
    ignored_with("infoBufferSize", Quantity, &hidden_flag("log-json-info-buffer-size"), LOG_FLUSH),
];
const LOGGING: &[Field] = &[
    yes_with(
        "format",
        String,
        &flag("logging-format", LOG).value("FORMAT").default("text"),
        "`text` or `json`",
    ),
    // A duration, or nanoseconds as a number: kubeadm writes 0.
    ignored_with("flushFrequency", Any, &hidden_flag("log-flush-frequency"), LOG_FLUSH),
    yes_with(
        "verbosity",
        Int64,
        &flag("v", LOG).default("0"),
        "level of detail: 0-1 changes, 2-3 what the agent does, 4 and above what its libraries do",
    ),
    ignored_with(
        "vmodule",
        List(&Object(&[
            ignored("filePattern", String, LOG_FLUSH),
            ignored("verbosity", Int64, LOG_FLUSH),
        ])),
        &hidden_flag("vmodule"),
        "one verbosity applies to the whole program",
    ),
    ignored(
        "options",
        Object(&[
            ignored("text", Object(TEXT_LOG), LOG_FLUSH),
            ignored("json", Object(JSON_LOG), LOG_FLUSH),
        ]),
        LOG_FLUSH,
    ),
];
const SHUTDOWN_BY_PRIORITY: &[Field] =
    &[yes("priority", Int32, ""), yes("shutdownGracePeriodSeconds", Int64, "")];
const CRASH_LOOP: &[Field] = &[yes_with(
    "maxContainerRestartPeriod",
    Duration,
    &default("5m"),
    "longest wait between restarts of a container that crashes, 1s to 5m",
)];
const RESERVED_MEMORY: &[Field] =
    &[ignored("numaNode", Int32, PINNING), ignored("limits", Map(&Quantity), PINNING)];
const TAINT: &[Field] = &[
    yes("key", String, "a label key"),
    yes("value", String, "a label value"),
    yes("effect", String, "`NoSchedule`, `PreferNoSchedule` or `NoExecute`"),
    ignored("timeAdded", String, "the API server sets it"),
];
const TRACING: &[Field] =
    &[ignored("endpoint", String, ""), ignored("samplingRatePerMillion", Int32, "")];

/// `kind: NodeletConfiguration`, `apiVersion: nodelet.dev/v1alpha1`.
pub(super) const NODELET: &[Field] = &[
    yes("apiVersion", String, "must be `nodelet.dev/v1alpha1`"),
    yes("kind", String, "must be `NodeletConfiguration`"),
    yes_with(
        "runDir",
        String,
        &flag("run-dir", DIRECTORIES).value("DIR").default("/run/nodelet"),
        "directory of the agent's socket, which `nodelet status` uses, and of state that may be lost at a reboot",
    ),
    yes(
        "owner",
        String,
        "value of the owner label on this agent's sandboxes; the agent does not touch pods with another owner. If not set, it is generated at the first start and saved in the root directory",
    ),
    yes(
        "configPath",
        String,
        "directory or file with ConfigMaps and Secrets for static pods, in addition to those in staticPodPath. So Secrets can lie in a place of their own, for example with mode 0600",
    ),
    yes_with(
        "containerLogLinksDir",
        String,
        &default("/var/log/containers"),
        "directory of links to the container logs, for log shippers; each link is named after its pod and container",
    ),
    yes(
        "containerLogMaxTotalSize",
        Quantity,
        "limit for all container logs of the node together. Above it, the oldest rotated files of all containers are deleted. The current files take at most half of it: with many containers, a log is rotated before it reaches containerLogMaxSize. This half includes the last files of instances that have ended: if they take too much, or deleting rotated files is not enough, the oldest of them are emptied. It applies also where containerLogMaxSize is negative",
    ),
    yes_with(
        "nodeLabels",
        Map(&String),
        &flag("node-labels", NODE),
        "labels of the node in addition to `kubernetes.io/hostname`, `kubernetes.io/os` and `kubernetes.io/arch`; the nodeSelector and node affinity of a pod must match them. In a cluster, the labels of the Node object count instead",
    ),
    yes_with(
        "startConcurrency",
        Int32,
        &default("0"),
        "number of sandboxes and containers that start at the same time; `0`: 4",
    ),
    yes_with(
        "prepareUpdates",
        Bool,
        &default("true"),
        "when a manifest changes, pull its new images and wait for its ConfigMaps and Secrets before the running pod is stopped; `false`: stop it at once, as the kubelet does",
    ),
    yes_with(
        "apiPods",
        Bool,
        &default("true"),
        "run the pods that the API server binds to this node. `false`: only static pods run, and the agent registers the Node with the taint `nodelet.dev/static-only:NoSchedule`",
    ),
    yes_with(
        "memorySignal",
        String,
        &default("workingSet"),
        "how memory.available is computed: `workingSet`, the kubelet's formula, or `memAvailable`, the kernel's estimate",
    ),
    yes_with(
        "staticPodEviction",
        String,
        &default("ranked"),
        "`ranked`: static pods are evicted too, in a cluster after the pods of the API server; `never`: they are never evicted, as in the kubelet",
    ),
    yes(
        "priorityClasses",
        Map(&Int32),
        "priority of each priority class, at most 1000000000, for pods that set priorityClassName but no priority. The two system classes are built in",
    ),
    yes(
        "runtimeClasses",
        Map(&String),
        "handler of the container runtime for each runtime class, for pods that set runtimeClassName: `gvisor: runsc`. The handlers are the names of the runtimes in containerd's configuration",
    ),
    yes("imageGC", Object(IMAGE_GC), "which images may be removed"),
];

const IMAGE_GC: &[Field] = &[yes_with(
    "includeForeign",
    Bool,
    &default("false"),
    "also remove images that the agent did not pull, as the kubelet does. On a machine without a registry, a removed image that was imported cannot be pulled again",
)];

/// Every field of a table that is no object, in order, with its path (`logging.format`).
pub(super) fn leaves(fields: &'static [Field]) -> Vec<(std::string::String, &'static Field)> {
    let below = |field: &'static Field| {
        let Object(inner) = field.ty else { return vec![(field.name.to_owned(), field)] };
        let inner = leaves(inner).into_iter();
        inner.map(|(path, leaf)| (format!("{}.{path}", field.name), leaf)).collect()
    };
    fields.iter().flat_map(below).collect()
}

/// The field at a path (`logging.format`).
pub(super) fn field_at(fields: &'static [Field], path: &str) -> Option<&'static Field> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(n, r)| (n, Some(r)));
    let field = fields.iter().find(|f| f.name == name)?;
    match (rest, field.ty) {
        (None, _) => Some(field),
        (Some(rest), Object(fields)) => field_at(fields, rest),
        (Some(_), _) => None,
    }
}
