//! Every field of KubeletConfiguration v1beta1 (1.36) and of NodeletConfiguration: name, type, and
//! what becomes of it. Decoding, `--help` and docs/configuration.md are all made from these tables.

use crate::document::{Field, Support, Type};
use Type::{Any, Bool, Duration, Float, Int32, Int64, List, Map, Object, Quantity, String};

const API: &str = "pods, volumes and certificates of an API server are not handled by this version";
const SERVER: &str = "this version serves no kubelet API on TCP";
const ROTATION: &str = "this version does not rotate container logs";
const PINNING: &str = "no CPUs, memory nodes or devices are set apart for containers";
const CGROUP_OTHERS: &str = "only the pods' own cgroups are managed";
const IPTABLES: &str = "nothing in the kubelet uses it any more";
const KERNEL_MEMORY: &str = "memory.high and memory.min are left alone";

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
        "directory with manifests, or one manifest; the kubelet has no default for it; `\"\"` means none",
    ),
    yes("podLogsDir", String, "directory of the containers' logs"),
    differs(
        "syncFrequency",
        Duration,
        "`/healthz` fails when the main loop did not come round for twice this long, at least 5m; pods need no resync, they are looked at whenever something changes",
    ),
    yes(
        "fileCheckFrequency",
        Duration,
        "how often staticPodPath is listed again; changes are seen at once through inotify as well",
    ),
    yes("httpCheckFrequency", Duration, "how often staticPodURL is asked"),
    yes(
        "staticPodURL",
        String,
        "URL (http or https) of a manifest, a PodList or several documents; up to 10 redirects are followed",
    ),
    differs(
        "staticPodURLHeader",
        Map(&List(&String)),
        "headers of the requests to staticPodURL; a redirect to another host or port does not get them",
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
    yes("registryPullQPS", Int32, "pulls per second, 0 for no bound"),
    yes("registryBurst", Int32, "pulls that may begin at once, above the rate"),
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
    yes("eventRecordQPS", Int32, "events written to the API server a second; 0: no bound"),
    yes("eventBurst", Int32, "events written at once while below eventRecordQPS on average"),
    ignored("enableDebuggingHandlers", Bool, SERVER),
    ignored("enableContentionProfiling", Bool, SERVER),
    yes("healthzPort", Int32, "port of `/healthz`, 0 for none"),
    yes("healthzBindAddress", String, "IP address of `/healthz`"),
    yes("oomScoreAdj", Int32, "the agent's own /proc/self/oom_score_adj"),
    yes("clusterDomain", String, "DNS domain of pods with dnsPolicy ClusterFirst"),
    yes("clusterDNS", List(&String), "DNS servers of pods with dnsPolicy ClusterFirst"),
    ignored("streamingConnectionIdleTimeout", Duration, SERVER),
    yes(
        "nodeStatusUpdateFrequency",
        Duration,
        "how often the status of the Node is computed; a condition that changes is written at once",
    ),
    yes(
        "nodeStatusReportFrequency",
        Duration,
        "how often it is written although nothing has changed; where only nodeStatusUpdateFrequency is set, that",
    ),
    yes(
        "nodeLeaseDurationSeconds",
        Int32,
        "how long the lease of the node holds; it is renewed four times as often",
    ),
    yes("imageMinimumGCAge", Duration, "images that have not been there for this long stay"),
    differs(
        "imageMaximumGCAge",
        Duration,
        "images that nobody has used for longer go without any need; `0s`: they stay. When an image was last used is kept over restarts, which the kubelet forgets",
    ),
    yes(
        "imageGCHighThresholdPercent",
        Int32,
        "percent in use of the images' file system from which on unused images are removed; `100`: only under disk pressure",
    ),
    yes("imageGCLowThresholdPercent", Int32, "percent in use down to which they are removed"),
    // Text, because a negative duration is allowed here.
    ignored(
        "volumeStatsAggPeriod",
        String,
        "the use of volumes is measured when a decision needs it",
    ),
    ignored("kubeletCgroups", String, CGROUP_OTHERS),
    ignored("systemCgroups", String, CGROUP_OTHERS),
    yes("cgroupRoot", String, "existing cgroup under which `kubepods` is made"),
    yes("cgroupsPerQOS", Bool, "make cgroups for QoS tiers and pods"),
    yes(
        "cgroupDriver",
        String,
        "who makes cgroups, `cgroupfs` or `systemd`; a runtime that tells which one it uses (CRI RuntimeConfig: containerd 2, CRI-O) is believed instead",
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
        "whether running out of memory kills one process instead of the whole container (cgroup v2)",
    ),
    ignored("qosReserved", Map(&String), "requests of Guaranteed pods are not set apart"),
    yes(
        "runtimeRequestTimeout",
        Duration,
        "deadline of calls to the runtime that read; calls that change something are shown as hung after it",
    ),
    ignored("hairpinMode", String, "the network belongs to the CNI plugin"),
    yes(
        "maxPods",
        Int32,
        "pods that the node takes; those that are too many wait until there is room",
    ),
    ignored("podCIDR", String, "the network belongs to the CNI plugin"),
    differs(
        "podPidsLimit",
        Int64,
        "tasks in a pod; negative for no bound. Not set, the kubelet sets no bound",
    ),
    yes("resolvConf", String, "the resolver configuration that pods start from; `\"\"` means none"),
    Field {
        name: "runOnce",
        ty: Bool,
        support: Support::No,
        note: "the kubelet refuses it too: run the agent as a service",
    },
    yes("cpuCFSQuota", Bool, "enforce CPU limits"),
    yes("cpuCFSQuotaPeriod", Duration, "period over which a CPU limit is counted, 1ms to 1s"),
    yes(
        "nodeStatusMaxImages",
        Int32,
        "images listed in the status of the Node, the largest first; -1: all",
    ),
    yes("maxOpenFiles", Int64, "the agent's own RLIMIT_NOFILE"),
    ignored("contentType", String, "JSON is spoken"),
    yes(
        "kubeAPIQPS",
        Int32,
        "requests about pods to the API server a second; the node's status and lease are not counted",
    ),
    yes("kubeAPIBurst", Int32, "requests at once while below kubeAPIQPS on average"),
    yes("serializeImagePulls", Bool, "one pull at a time"),
    yes(
        "maxParallelImagePulls",
        Int32,
        "pulls at a time; more than 1 turns serializeImagePulls off where that is not set",
    ),
    differs(
        "evictionHard",
        Map(&String),
        "thresholds by signal, a quantity or a percentage of the capacity (`0%`, `100%`: off), at which pods are evicted at once. A map replaces the default, `{}` switches all off. The kubelet has the default only with a file, and never evicts static pods",
    ),
    yes(
        "evictionSoft",
        Map(&String),
        "thresholds at which pods are evicted when they were met for the grace period; the node's condition shows it at once",
    ),
    yes(
        "evictionSoftGracePeriod",
        Map(&String),
        "how long each threshold of evictionSoft has to be met: each one needs an entry",
    ),
    yes(
        "evictionPressureTransitionPeriod",
        Duration,
        "how long a condition of pressure holds after it was last seen, and evicted pods stay away",
    ),
    differs(
        "evictionMaxPodGracePeriod",
        Int32,
        "seconds that a pod has to end when a soft threshold is met, at most, one at least; negative: its own grace period, which the kubelet says and does not do",
    ),
    yes(
        "evictionMinimumReclaim",
        Map(&String),
        "how much more than the threshold has to be free, by signal, before evicting stops",
    ),
    yes(
        "mergeDefaultEvictionSettings",
        Bool,
        "the signals that evictionHard does not name keep their default",
    ),
    yes(
        "podsPerCore",
        Int32,
        "pods that the node takes for each of its CPUs, up to maxPods; 0: no matter",
    ),
    yes(
        "enableControllerAttachDetach",
        Bool,
        "annotate the Node with `volumes.kubernetes.io/controller-managed-attach-detach`",
    ),
    yes(
        "protectKernelDefaults",
        Bool,
        "refuse to start where a kernel setting is not what the kubelet expects; without it settings are left as they are",
    ),
    ignored("makeIPTablesUtilChains", Bool, IPTABLES),
    ignored("iptablesMasqueradeBit", Int32, IPTABLES),
    ignored("iptablesDropBit", Int32, IPTABLES),
    ignored("featureGates", Map(&Bool), "nothing here is behind a feature gate"),
    differs("failSwapOn", Bool, "refuse to start while swap is on; the kubelet's default is true"),
    ignored(
        "memorySwap",
        Object(&[ignored("swapBehavior", String, KERNEL_MEMORY)]),
        "containers swap as the kernel lets them",
    ),
    ignored("containerLogMaxSize", String, ROTATION),
    ignored("containerLogMaxFiles", Int32, ROTATION),
    ignored("containerLogMaxWorkers", Int32, ROTATION),
    ignored("containerLogMonitorInterval", Duration, ROTATION),
    ignored("configMapAndSecretChangeDetectionStrategy", String, API),
    yes(
        "systemReserved",
        Map(&String),
        "what pods do not get of cpu, memory, ephemeral-storage and pid",
    ),
    yes("kubeReserved", Map(&String), "what pods do not get on top of systemReserved"),
    ignored("reservedSystemCPUs", String, PINNING),
    ignored("showHiddenMetricsForVersion", String, SERVER),
    ignored("systemReservedCgroup", String, CGROUP_OTHERS),
    ignored("kubeReservedCgroup", String, CGROUP_OTHERS),
    differs(
        "enforceNodeAllocatable",
        List(&String),
        "`pods` bounds all pods together; `none` or an empty list does not; the other values are accepted and not acted on",
    ),
    yes(
        "allowedUnsafeSysctls",
        List(&String),
        "sysctls that a pod may set besides the safe ones; a `*` at the end stands for any rest",
    ),
    ignored("volumePluginDir", String, "there are no volume plugins"),
    yes("providerID", String, "`spec.providerID` of the Node when it is registered"),
    ignored(
        "kernelMemcgNotification",
        Bool,
        "signals are read the more often the nearer they are to a threshold",
    ),
    yes("logging", Object(LOGGING), "the agent's own log"),
    ignored("enableSystemLogHandler", Bool, SERVER),
    ignored("enableSystemLogQuery", Bool, SERVER),
    differs(
        "shutdownGracePeriod",
        Duration,
        "how long a shutdown of the machine waits for pods to end, at most; `0s`: it does not wait. Not set (nor the other two): 30s under systemd, where the kubelet waits for nothing",
    ),
    differs(
        "shutdownGracePeriodCriticalPods",
        Duration,
        "the part of shutdownGracePeriod that is kept for critical pods (`priority` of 2000000000 and more), which end last. Where none of the three is set: 10s under systemd",
    ),
    yes(
        "shutdownGracePeriodByPodPriority",
        List(&Object(SHUTDOWN_BY_PRIORITY)),
        "in place of the other two: the time of each group of pods, the lowest `priority` ends first",
    ),
    yes("crashLoopBackOff", Object(CRASH_LOOP), "waiting between restarts of a container"),
    ignored("reservedMemory", List(&Object(RESERVED_MEMORY)), PINNING),
    ignored("enableProfilingHandler", Bool, SERVER),
    ignored("enableDebugFlagsHandler", Bool, SERVER),
    yes(
        "seccompDefault",
        Bool,
        "containers without a seccomp profile get the runtime's default one",
    ),
    ignored("memoryThrottlingFactor", Float, KERNEL_MEMORY),
    ignored("memoryReservationPolicy", String, KERNEL_MEMORY),
    differs(
        "registerWithTaints",
        List(&Object(TAINT)),
        "taints of the Node when it is registered, besides `nodelet.dev/static-only:NoSchedule`, which keeps pods away that this version would not run",
    ),
    yes(
        "registerNode",
        Bool,
        "make the Node object; `false`: report into one that somebody else makes",
    ),
    ignored("tracing", Object(TRACING), "no traces are sent"),
    yes(
        "localStorageCapacityIsolation",
        Bool,
        "evict pods that use more local storage than they may: sizeLimit of emptyDir volumes, limits on ephemeral-storage",
    ),
    yes("containerRuntimeEndpoint", String, "the runtime's socket, `unix:///...`"),
    yes(
        "imageServiceEndpoint",
        String,
        "socket of the image service where it is another one, `unix:///...`",
    ),
    differs(
        "failCgroupV1",
        Bool,
        "refuse to start on a cgroup v1 host; the kubelet's default is true",
    ),
    ignored(
        "userNamespaces",
        Object(&[ignored("idsPerPod", Int64, "")]),
        "pods with hostUsers: false are refused",
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
const LOG_FLUSH: &str = "every line is written at once";
const INFO_BUFFER: &[Field] =
    &[ignored("splitStream", Bool, LOG_FLUSH), ignored("infoBufferSize", Quantity, LOG_FLUSH)];
const LOGGING: &[Field] = &[
    yes("format", String, "`text` or `json`"),
    // A duration, or nanoseconds as a number: kubeadm writes 0.
    ignored("flushFrequency", Any, LOG_FLUSH),
    yes(
        "verbosity",
        Int64,
        "how much is logged: 0-1 what changes, 2-3 what the agent does, 4-5 what its libraries do, from 6 on everything",
    ),
    ignored(
        "vmodule",
        List(&Object(&[
            ignored("filePattern", String, LOG_FLUSH),
            ignored("verbosity", Int64, LOG_FLUSH),
        ])),
        "verbosity is one for the whole program",
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
    "longest wait between restarts of a crashing container, 1s to 5m",
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
        "directory of the socket that `nodelet status` asks, and of what may be lost at a reboot",
    ),
    yes(
        "owner",
        String,
        "what this agent's sandboxes are labelled with; pods with another label are left alone. Not set: made at the first start and kept in the root directory",
    ),
    yes(
        "containerLogLinksDir",
        String,
        "directory of links to the containers' logs, named for pod and container, where log shippers look",
    ),
    yes(
        "nodeLabels",
        Map(&String),
        "labels of the node besides `kubernetes.io/hostname`, `kubernetes.io/os` and `kubernetes.io/arch`: what the nodeSelector and the node affinity of a pod ask for",
    ),
    yes("startConcurrency", Int32, "pods that are started at a time; 0: chosen for the machine"),
    yes(
        "memorySignal",
        String,
        "what memory.available goes by: `workingSet`, the kubelet's formula, or `memAvailable`, the kernel's estimate",
    ),
    yes(
        "staticPodEviction",
        String,
        "`ranked`: static pods are evicted in their turn like any pod; `never`: none is, as the kubelet does",
    ),
    yes(
        "priorityClasses",
        Map(&Int32),
        "priority of pods that have a priorityClassName and no priority, by class, at most 1000000000; the two of the system are known",
    ),
    yes("imageGC", Object(IMAGE_GC), "which images may be removed"),
];

const IMAGE_GC: &[Field] = &[yes(
    "includeForeign",
    Bool,
    "also images that the agent did not pull itself, as the kubelet does; imported ones can't be had again on a machine without a registry",
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
