//! Every field of KubeletConfiguration v1beta1 (1.36) and of NodeletConfiguration: name, type, and
//! what becomes of it. Decoding, `--help` and docs/configuration.md are all made from these tables.

use crate::document::{Field, Support, Type};
use Type::{Any, Bool, Duration, Float, Int32, Int64, List, Map, Object, Quantity, String};

const API: &str =
    "this version does not run pods, mount volumes or request certificates from an API server";
const SERVER: &str = "this version does not serve the kubelet API over TCP";
const ROTATION: &str = "this version does not rotate container logs";
const PINNING: &str = "this version does not reserve CPUs, memory nodes or devices for containers";
const CGROUP_OTHERS: &str = "the agent manages only the cgroups of pods";
const IPTABLES: &str = "the kubelet no longer uses it";
const KERNEL_MEMORY: &str = "the agent does not set memory.high and memory.min";

/// A field that is acted on, with its effect.
const fn yes(name: &'static str, ty: Type, effect: &'static str) -> Field {
    Field { name, ty, support: Support::Yes, note: effect }
}
const fn differs(name: &'static str, ty: Type, note: &'static str) -> Field {
    Field { name, ty, support: Support::Differs, note }
}
const fn ignored(name: &'static str, ty: Type, note: &'static str) -> Field {
    Field { name, ty, support: Support::Ignored, note }
}

/// `kind: KubeletConfiguration`, `apiVersion: kubelet.config.k8s.io/v1beta1`, in upstream's order.
pub(super) const KUBELET: &[Field] = &[
    yes("apiVersion", String, "must be `kubelet.config.k8s.io/v1beta1`"),
    yes("kind", String, "must be `KubeletConfiguration`"),
    ignored("enableServer", Bool, SERVER),
    differs(
        "staticPodPath",
        String,
        "directory of manifests, or one manifest file; `\"\"` means that no directory is read. The kubelet has no default",
    ),
    yes("podLogsDir", String, "directory of the container logs"),
    differs(
        "syncFrequency",
        Duration,
        "`/healthz` fails when the main loop completes no pass within twice this time, or within 5m if that is longer. Pods need no resync: the agent checks a pod whenever something changes",
    ),
    yes(
        "fileCheckFrequency",
        Duration,
        "how often the agent reads staticPodPath again; inotify also reports changes at once",
    ),
    yes("httpCheckFrequency", Duration, "how often the agent requests staticPodURL"),
    yes(
        "staticPodURL",
        String,
        "URL (http or https) of a manifest, a PodList or several documents; the agent follows up to 10 redirects",
    ),
    differs(
        "staticPodURLHeader",
        Map(&List(&String)),
        "headers of the requests to staticPodURL; they are not sent to another host or port after a redirect",
    ),
    ignored("address", String, SERVER),
    ignored("port", Int32, SERVER),
    ignored("readOnlyPort", Int32, SERVER),
    ignored("tlsCertFile", String, SERVER),
    ignored("tlsPrivateKeyFile", String, SERVER),
    ignored("tlsCipherSuites", List(&String), SERVER),
    ignored("tlsCurvePreferences", List(&String), SERVER),
    ignored("tlsMinVersion", String, SERVER),
    ignored("rotateCertificates", Bool, API),
    ignored("serverTLSBootstrap", Bool, SERVER),
    ignored("authentication", Object(AUTHENTICATION), SERVER),
    ignored("authorization", Object(AUTHORIZATION), SERVER),
    yes("registryPullQPS", Int32, "image pulls per second; `0`: no limit"),
    yes("registryBurst", Int32, "largest burst of image pulls; on average registryPullQPS applies"),
    ignored(
        "imagePullCredentialsVerificationPolicy",
        String,
        "an image that is present may be used by every pod",
    ),
    ignored(
        "preloadedImagesVerificationAllowlist",
        List(&String),
        "an image that is present may be used by every pod",
    ),
    yes("eventRecordQPS", Int32, "events written to the API server per second; `0`: no limit"),
    yes("eventBurst", Int32, "largest burst of events; on average eventRecordQPS applies"),
    ignored("enableDebuggingHandlers", Bool, SERVER),
    ignored("enableContentionProfiling", Bool, SERVER),
    yes("healthzPort", Int32, "port of `/healthz`; `0`: it is not served"),
    yes("healthzBindAddress", String, "IP address of `/healthz`"),
    yes("oomScoreAdj", Int32, "the agent's own /proc/self/oom_score_adj"),
    yes("clusterDomain", String, "DNS domain of pods with dnsPolicy ClusterFirst"),
    yes("clusterDNS", List(&String), "DNS servers of pods with dnsPolicy ClusterFirst"),
    ignored("streamingConnectionIdleTimeout", Duration, SERVER),
    yes(
        "nodeStatusUpdateFrequency",
        Duration,
        "how often the agent computes the status of the Node; a changed condition is written at once",
    ),
    yes(
        "nodeStatusReportFrequency",
        Duration,
        "how often the agent writes an unchanged status; if only nodeStatusUpdateFrequency is set, its value is used",
    ),
    yes(
        "nodeLeaseDurationSeconds",
        Int32,
        "how long the lease of the node is valid, in seconds; the agent renews it four times in this period",
    ),
    yes(
        "imageMinimumGCAge",
        Duration,
        "an unused image that the agent first saw more recently is kept",
    ),
    differs(
        "imageMaximumGCAge",
        Duration,
        "an image that was unused for longer is removed even when the disk has room; `0s`: it is kept. The agent saves when each image was last used; the kubelet loses these times when it restarts",
    ),
    yes(
        "imageGCHighThresholdPercent",
        Int32,
        "when this percentage of the image file system is in use, unused images are removed; `100`: they are removed only under disk pressure",
    ),
    yes(
        "imageGCLowThresholdPercent",
        Int32,
        "unused images are removed until usage is down to this percentage",
    ),
    // Text, because a negative duration is allowed here.
    ignored(
        "volumeStatsAggPeriod",
        String,
        "the agent measures volume usage when a decision needs it",
    ),
    ignored("kubeletCgroups", String, CGROUP_OTHERS),
    ignored("systemCgroups", String, CGROUP_OTHERS),
    yes("cgroupRoot", String, "existing cgroup under which the agent creates `kubepods`"),
    yes("cgroupsPerQOS", Bool, "create cgroups for QoS classes and pods"),
    yes(
        "cgroupDriver",
        String,
        "how cgroups are created: `cgroupfs` or `systemd`. The driver that the runtime reports (CRI RuntimeConfig: containerd 2, CRI-O) takes precedence",
    ),
    ignored("cpuManagerPolicy", String, PINNING),
    ignored("cpuManagerPolicyOptions", Map(&String), PINNING),
    ignored("cpuManagerReconcilePeriod", Duration, PINNING),
    ignored("memoryManagerPolicy", String, PINNING),
    ignored("topologyManagerPolicy", String, PINNING),
    ignored("topologyManagerScope", String, PINNING),
    ignored("topologyManagerPolicyOptions", Map(&String), PINNING),
    yes(
        "singleProcessOOMKill",
        Bool,
        "when a container runs out of memory, kill one process instead of the whole container (cgroup v2)",
    ),
    ignored(
        "qosReserved",
        Map(&String),
        "this version does not reserve the requests of Guaranteed pods",
    ),
    yes(
        "runtimeRequestTimeout",
        Duration,
        "deadline of runtime calls that only read; a call that changes something is reported as hung after this time and goes on",
    ),
    ignored("hairpinMode", String, "the network belongs to the CNI plugin"),
    yes(
        "maxPods",
        Int32,
        "largest number of pods on the node; further pods wait until there is room",
    ),
    ignored("podCIDR", String, "the network belongs to the CNI plugin"),
    differs(
        "podPidsLimit",
        Int64,
        "largest number of tasks (processes and threads) in a pod; negative: no limit. The kubelet's default is no limit",
    ),
    yes(
        "resolvConf",
        String,
        "file that the DNS configuration of pods is based on; `\"\"` means none",
    ),
    Field {
        name: "runOnce",
        ty: Bool,
        support: Support::No,
        note: "the kubelet rejects it too: run the agent as a service",
    },
    yes("cpuCFSQuota", Bool, "enforce CPU limits"),
    yes("cpuCFSQuotaPeriod", Duration, "period over which a CPU limit applies, 1ms to 1s"),
    yes(
        "nodeStatusMaxImages",
        Int32,
        "number of images listed in the status of the Node, largest first; `-1`: all",
    ),
    yes("maxOpenFiles", Int64, "the agent's own RLIMIT_NOFILE"),
    ignored("contentType", String, "the agent always uses JSON"),
    yes(
        "kubeAPIQPS",
        Int32,
        "requests about pods to the API server per second; requests for the node's status and lease are not counted",
    ),
    yes("kubeAPIBurst", Int32, "largest burst of requests; on average kubeAPIQPS applies"),
    yes("serializeImagePulls", Bool, "pull one image at a time"),
    yes(
        "maxParallelImagePulls",
        Int32,
        "number of images pulled at the same time; a value above 1 disables serializeImagePulls unless that field is set",
    ),
    differs(
        "evictionHard",
        Map(&String),
        "thresholds by signal, each a quantity or a percentage of the capacity (`0%` and `100%`: disabled). A pod is evicted as soon as one is met. A map replaces the whole default; `{}` disables all thresholds. The kubelet uses the default only with a configuration file, and never evicts static pods",
    ),
    yes(
        "evictionSoft",
        Map(&String),
        "thresholds by signal. A pod is evicted after a threshold has been met for its grace period; the node's condition changes at once",
    ),
    yes(
        "evictionSoftGracePeriod",
        Map(&String),
        "grace period of each evictionSoft threshold; every threshold needs an entry",
    ),
    yes(
        "evictionPressureTransitionPeriod",
        Duration,
        "how long a pressure condition stays true after the pressure was last observed; evicted pods do not return during this time",
    ),
    differs(
        "evictionMaxPodGracePeriod",
        Int32,
        "longest grace period of a pod that is evicted for a soft threshold, in seconds; the pod always gets at least 1. Negative: the pod's own grace period, which the kubelet documents but does not implement",
    ),
    yes(
        "evictionMinimumReclaim",
        Map(&String),
        "by signal, how much more than the threshold must be free before eviction stops",
    ),
    yes(
        "mergeDefaultEvictionSettings",
        Bool,
        "signals that evictionHard does not name keep their default threshold",
    ),
    yes(
        "podsPerCore",
        Int32,
        "largest number of pods for each CPU of the node, up to maxPods; `0`: only maxPods applies",
    ),
    yes(
        "enableControllerAttachDetach",
        Bool,
        "annotate the Node with `volumes.kubernetes.io/controller-managed-attach-detach`",
    ),
    yes(
        "protectKernelDefaults",
        Bool,
        "refuse to start if a kernel setting differs from what the kubelet expects; when false, the agent does not check or change kernel settings",
    ),
    ignored("makeIPTablesUtilChains", Bool, IPTABLES),
    ignored("iptablesMasqueradeBit", Int32, IPTABLES),
    ignored("iptablesDropBit", Int32, IPTABLES),
    ignored("featureGates", Map(&Bool), "nodelet has no feature gates"),
    differs("failSwapOn", Bool, "refuse to start while swap is on; the kubelet's default is true"),
    ignored(
        "memorySwap",
        Object(&[ignored("swapBehavior", String, KERNEL_MEMORY)]),
        "the agent does not limit how containers use swap",
    ),
    ignored("containerLogMaxSize", String, ROTATION),
    ignored("containerLogMaxFiles", Int32, ROTATION),
    ignored("containerLogMaxWorkers", Int32, ROTATION),
    ignored("containerLogMonitorInterval", Duration, ROTATION),
    ignored("configMapAndSecretChangeDetectionStrategy", String, API),
    yes(
        "systemReserved",
        Map(&String),
        "cpu, memory, ephemeral-storage and pid reserved for the system, not available to pods",
    ),
    yes(
        "kubeReserved",
        Map(&String),
        "resources reserved for Kubernetes components, in addition to systemReserved",
    ),
    ignored("reservedSystemCPUs", String, PINNING),
    ignored("showHiddenMetricsForVersion", String, SERVER),
    ignored("systemReservedCgroup", String, CGROUP_OTHERS),
    ignored("kubeReservedCgroup", String, CGROUP_OTHERS),
    differs(
        "enforceNodeAllocatable",
        List(&String),
        "`pods` limits the resources of all pods together; `none` or an empty list sets no limit; the other values are accepted and have no effect",
    ),
    yes(
        "allowedUnsafeSysctls",
        List(&String),
        "sysctls that a pod may set in addition to the safe ones; a trailing `*` matches any suffix",
    ),
    ignored("volumePluginDir", String, "there are no volume plugins"),
    yes("providerID", String, "`spec.providerID` of the Node when the agent registers it"),
    ignored(
        "kernelMemcgNotification",
        Bool,
        "the agent reads a signal more often the closer it is to its threshold",
    ),
    yes("logging", Object(LOGGING), "the agent's own log"),
    ignored("enableSystemLogHandler", Bool, SERVER),
    ignored("enableSystemLogQuery", Bool, SERVER),
    differs(
        "shutdownGracePeriod",
        Duration,
        "longest time that a shutdown of the machine waits for pods to end; `0s`: it does not wait. If none of the three shutdown fields is set, 30s under systemd; the kubelet does not wait then",
    ),
    differs(
        "shutdownGracePeriodCriticalPods",
        Duration,
        "part of shutdownGracePeriod that is reserved for critical pods (`priority` of 2000000000 and more), which end last. If none of the three shutdown fields is set, 10s under systemd",
    ),
    yes(
        "shutdownGracePeriodByPodPriority",
        List(&Object(SHUTDOWN_BY_PRIORITY)),
        "replaces the other two shutdown fields: the time of each group of pods; the group with the lowest `priority` ends first",
    ),
    yes("crashLoopBackOff", Object(CRASH_LOOP), "wait between restarts of a container"),
    ignored("reservedMemory", List(&Object(RESERVED_MEMORY)), PINNING),
    ignored("enableProfilingHandler", Bool, SERVER),
    ignored("enableDebugFlagsHandler", Bool, SERVER),
    yes(
        "seccompDefault",
        Bool,
        "containers without a seccomp profile use the runtime's default profile",
    ),
    ignored("memoryThrottlingFactor", Float, KERNEL_MEMORY),
    ignored("memoryReservationPolicy", String, KERNEL_MEMORY),
    differs(
        "registerWithTaints",
        List(&Object(TAINT)),
        "taints of the Node when the agent registers it, in addition to `nodelet.dev/static-only:NoSchedule`. That taint keeps away scheduled pods, which this version does not run",
    ),
    yes(
        "registerNode",
        Bool,
        "create the Node object; `false`: update a Node that something else creates",
    ),
    ignored("tracing", Object(TRACING), "the agent sends no traces"),
    yes(
        "localStorageCapacityIsolation",
        Bool,
        "evict pods that exceed a local storage limit: the sizeLimit of an emptyDir volume or a limit on ephemeral-storage",
    ),
    yes("containerRuntimeEndpoint", String, "the runtime's socket, `unix:///...`"),
    yes(
        "imageServiceEndpoint",
        String,
        "socket of the image service if it differs from the runtime's, `unix:///...`",
    ),
    differs(
        "failCgroupV1",
        Bool,
        "refuse to start on a cgroup v1 host; the kubelet's default is true",
    ),
    ignored(
        "userNamespaces",
        Object(&[ignored("idsPerPod", Int64, "")]),
        "pods with hostUsers: false are rejected",
    ),
];

const AUTHENTICATION: &[Field] = &[
    ignored("x509", Object(&[ignored("clientCAFile", String, SERVER)]), SERVER),
    ignored(
        "webhook",
        Object(&[ignored("enabled", Bool, SERVER), ignored("cacheTTL", Duration, SERVER)]),
        SERVER,
    ),
    ignored("anonymous", Object(&[ignored("enabled", Bool, SERVER)]), SERVER),
];
const AUTHORIZATION: &[Field] = &[
    ignored("mode", String, SERVER),
    ignored(
        "webhook",
        Object(&[
            ignored("cacheAuthorizedTTL", Duration, SERVER),
            ignored("cacheUnauthorizedTTL", Duration, SERVER),
        ]),
        SERVER,
    ),
];
const LOG_FLUSH: &str = "the agent writes every line at once";
const INFO_BUFFER: &[Field] =
    &[ignored("splitStream", Bool, LOG_FLUSH), ignored("infoBufferSize", Quantity, LOG_FLUSH)];
const LOGGING: &[Field] = &[
    yes("format", String, "`text` or `json`"),
    // A duration, or nanoseconds as a number: kubeadm writes 0.
    ignored("flushFrequency", Any, LOG_FLUSH),
    yes(
        "verbosity",
        Int64,
        "level of detail: 0-1 changes, 2-3 what the agent does, 4-5 what its libraries do, 6 and above everything",
    ),
    ignored(
        "vmodule",
        List(&Object(&[
            ignored("filePattern", String, LOG_FLUSH),
            ignored("verbosity", Int64, LOG_FLUSH),
        ])),
        "one verbosity applies to the whole program",
    ),
    ignored(
        "options",
        Object(&[
            ignored("text", Object(INFO_BUFFER), LOG_FLUSH),
            ignored("json", Object(INFO_BUFFER), LOG_FLUSH),
        ]),
        LOG_FLUSH,
    ),
];
const SHUTDOWN_BY_PRIORITY: &[Field] =
    &[yes("priority", Int32, ""), yes("shutdownGracePeriodSeconds", Int64, "")];
const CRASH_LOOP: &[Field] = &[yes(
    "maxContainerRestartPeriod",
    Duration,
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
    yes(
        "runDir",
        String,
        "directory of the agent's socket, which `nodelet status` uses, and of state that may be lost at a reboot",
    ),
    yes(
        "owner",
        String,
        "value of the owner label on this agent's sandboxes; the agent does not touch pods with another owner. If not set, it is generated at the first start and saved in the root directory",
    ),
    yes(
        "containerLogLinksDir",
        String,
        "directory of links to the container logs, for log shippers; each link is named after its pod and container",
    ),
    yes(
        "nodeLabels",
        Map(&String),
        "labels of the node in addition to `kubernetes.io/hostname`, `kubernetes.io/os` and `kubernetes.io/arch`; the nodeSelector and node affinity of a pod must match them",
    ),
    yes("startConcurrency", Int32, "number of pods that start at the same time; `0`: 4"),
    yes(
        "memorySignal",
        String,
        "how memory.available is computed: `workingSet`, the kubelet's formula, or `memAvailable`, the kernel's estimate",
    ),
    yes(
        "staticPodEviction",
        String,
        "`ranked`: static pods are ranked and evicted like other pods; `never`: they are never evicted, as in the kubelet",
    ),
    yes(
        "priorityClasses",
        Map(&Int32),
        "priority of each priority class, at most 1000000000, for pods that set priorityClassName but no priority. The two system classes are built in",
    ),
    yes("imageGC", Object(IMAGE_GC), "which images may be removed"),
];

const IMAGE_GC: &[Field] = &[yes(
    "includeForeign",
    Bool,
    "also remove images that the agent did not pull, as the kubelet does. On a machine without a registry, a removed image that was imported cannot be pulled again",
)];

/// Defaults of the fields that are acted on, as text for the documentation and `--help`; a field
/// that is not listed is empty unless set.
pub(super) const DEFAULTS: &[(&str, &str)] = &[
    ("staticPodPath", "/etc/nodelet/static-pods"),
    ("podLogsDir", "/var/log/pods"),
    ("syncFrequency", "1m"),
    ("fileCheckFrequency", "20s"),
    ("httpCheckFrequency", "20s"),
    ("registryPullQPS", "5"),
    ("registryBurst", "10"),
    ("imageMinimumGCAge", "2m"),
    ("imageMaximumGCAge", "0s"),
    ("imageGCHighThresholdPercent", "85"),
    ("imageGCLowThresholdPercent", "80"),
    ("healthzPort", "10248"),
    ("healthzBindAddress", "127.0.0.1"),
    ("oomScoreAdj", "-999"),
    ("cgroupRoot", "/"),
    ("cgroupsPerQOS", "true"),
    ("cgroupDriver", "cgroupfs"),
    ("singleProcessOOMKill", "false on cgroup v2, true on v1"),
    ("runtimeRequestTimeout", "2m"),
    ("maxPods", "110"),
    ("podsPerCore", "0"),
    ("podPidsLimit", "the larger of 1024 and an eighth of the host's pids"),
    ("resolvConf", "/etc/resolv.conf"),
    ("runOnce", "false"),
    ("cpuCFSQuota", "true"),
    ("cpuCFSQuotaPeriod", "100ms"),
    ("maxOpenFiles", "1000000"),
    ("serializeImagePulls", "true"),
    ("protectKernelDefaults", "false"),
    ("failSwapOn", "false"),
    ("enforceNodeAllocatable", "[pods]"),
    ("logging.format", "text"),
    ("logging.verbosity", "0"),
    ("crashLoopBackOff.maxContainerRestartPeriod", "5m"),
    ("seccompDefault", "false"),
    ("containerRuntimeEndpoint", "unix:///run/containerd/containerd.sock"),
    ("imageServiceEndpoint", "containerRuntimeEndpoint"),
    ("failCgroupV1", "false"),
    ("eventRecordQPS", "50"),
    ("eventBurst", "100"),
    ("nodeStatusUpdateFrequency", "10s"),
    ("nodeStatusReportFrequency", "5m"),
    ("nodeLeaseDurationSeconds", "40"),
    ("nodeStatusMaxImages", "50"),
    ("kubeAPIQPS", "50"),
    ("kubeAPIBurst", "100"),
    ("registerNode", "true"),
    ("enableControllerAttachDetach", "true"),
    ("runDir", "/run/nodelet"),
    ("containerLogLinksDir", "/var/log/containers"),
    ("startConcurrency", "0"),
    (
        "evictionHard",
        "{memory.available: 100Mi, nodefs.available: 10%, nodefs.inodesFree: 5%, imagefs.available: 15%, imagefs.inodesFree: 5%}",
    ),
    ("evictionPressureTransitionPeriod", "5m"),
    ("evictionMaxPodGracePeriod", "0"),
    ("mergeDefaultEvictionSettings", "false"),
    ("localStorageCapacityIsolation", "true"),
    ("memorySignal", "workingSet"),
    ("staticPodEviction", "ranked"),
    ("imageGC.includeForeign", "false"),
];

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

/// The default of a field as text.
pub(super) fn default_of(path: &str) -> Option<&'static str> {
    DEFAULTS.iter().find(|(p, _)| *p == path).map(|(_, text)| *text)
}
