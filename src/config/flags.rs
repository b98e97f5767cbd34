//! The table of `run`'s flags: nodelet's own, the kubelet's that mean something here, and the rest
//! of the kubelet's with what to say about each.
//!
//! A flag that mirrors a configuration field is only that: its name, its field. Type, default,
//! effect and support are the field's.

use super::fields::{KUBELET, NODELET, default_of, field_at};
use crate::document::{Field, Support, Type};

/// A flag of `run`.
#[derive(Debug)]
pub struct Flag {
    /// Without the dashes.
    pub name: &'static str,
    /// What it does.
    pub effect: Effect,
}

/// What a flag does.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// Sets this KubeletConfiguration field.
    Kubelet(&'static str),
    /// Sets this NodeletConfiguration field.
    Nodelet(&'static str),
    /// Has no field. What it takes (a name in capitals), and its help.
    Own(&'static str, &'static str),
    /// The kubelet's, and harmless to ignore: reported. Whether it takes a value, and why.
    Ignored(Takes, &'static str),
    /// The kubelet's, now or once, and nothing that could be ignored: an error, with what to do.
    Refused(Takes, &'static str),
}

/// How a flag is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// By nothing, or by `=true` or `=false`.
    Switch,
    /// By a value, after `=` or as the next argument.
    Value,
}

impl Flag {
    /// The field that it sets, if it sets one.
    #[must_use]
    pub fn field(&self) -> Option<&'static Field> {
        match self.effect {
            Effect::Kubelet(path) => field_at(KUBELET, path),
            Effect::Nodelet(path) => field_at(NODELET, path),
            Effect::Own(..) | Effect::Ignored(..) | Effect::Refused(..) => None,
        }
    }

    /// How it is followed.
    #[must_use]
    pub fn takes(&self) -> Takes {
        match (self.effect, self.field()) {
            (Effect::Ignored(takes, _) | Effect::Refused(takes, _), _) => takes,
            (_, Some(Field { ty: Type::Bool, .. })) => Takes::Switch,
            (_, _) => Takes::Value,
        }
    }

    /// Whether it is for people to use here: shown in `--help`.
    #[must_use]
    pub fn is_acted_on(&self) -> bool {
        match self.effect {
            Effect::Own(..) => true,
            Effect::Ignored(..) | Effect::Refused(..) => false,
            Effect::Kubelet(_) | Effect::Nodelet(_) => {
                self.field().is_some_and(|f| matches!(f.support, Support::Yes | Support::Differs))
            }
        }
    }

    /// One line for `--help`, without the default.
    #[must_use]
    pub fn help(&self) -> &'static str {
        match self.effect {
            Effect::Own(_, help) => help,
            Effect::Ignored(_, note) | Effect::Refused(_, note) => note,
            Effect::Kubelet(_) | Effect::Nodelet(_) => self.field().map_or("", |f| f.note),
        }
    }

    /// What stands between a key and its value.
    #[must_use]
    pub fn separator(&self) -> char {
        match self.effect {
            Effect::Kubelet("evictionHard" | "evictionSoft") => '<',
            Effect::Kubelet(_)
            | Effect::Nodelet(_)
            | Effect::Own(..)
            | Effect::Ignored(..)
            | Effect::Refused(..) => '=',
        }
    }

    /// What stands for its value in `--help`.
    #[must_use]
    pub fn value_name(&self) -> &'static str {
        match (self.effect, self.field().map(|f| f.ty)) {
            (Effect::Own(name, _), _) => name,
            (Effect::Nodelet("runDir"), _) => "DIR",
            (Effect::Kubelet("staticPodPath" | "resolvConf"), _) => "PATH",
            (Effect::Kubelet("staticPodURL"), _) => "URL",
            (Effect::Kubelet("containerRuntimeEndpoint" | "imageServiceEndpoint"), _) => "SOCKET",
            (Effect::Kubelet("logging.format"), _) => "FORMAT",
            (Effect::Kubelet("cgroupDriver"), _) => "DRIVER",
            (Effect::Kubelet("cgroupRoot"), _) => "CGROUP",
            (Effect::Kubelet("healthzBindAddress"), _) => "IP",
            (Effect::Kubelet("clusterDomain"), _) => "DOMAIN",
            (_, Some(Type::Bool)) => "BOOL",
            (_, Some(Type::Duration)) => "DURATION",
            (_, Some(Type::Int32 | Type::Int64)) => "N",
            (_, Some(Type::List(_))) => "A,B,...",
            (_, Some(Type::Map(Type::List(_)))) => "NAME:VALUE",
            (Effect::Kubelet("evictionHard" | "evictionSoft"), _) => "SIGNAL<VALUE,...",
            (_, Some(Type::Map(_))) => "K=V,...",
            (_, _) => "TEXT",
        }
    }

    /// Its default as text.
    #[must_use]
    pub fn default(&self) -> Option<&'static str> {
        match self.effect {
            Effect::Kubelet(path) | Effect::Nodelet(path) => default_of(path),
            Effect::Own(..) => OWN_DEFAULTS.iter().find(|(n, _)| *n == self.name).map(|(_, d)| *d),
            Effect::Ignored(..) | Effect::Refused(..) => None,
        }
    }
}

/// The flag of a name without dashes; `_` and `-` are the same.
#[must_use]
pub fn flag(name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    FLAGS.iter().find(|f| f.name == name)
}

const OWN_DEFAULTS: [(&str, &str); 2] =
    [("root-dir", "/var/lib/nodelet"), ("hostname-override", "the name kept from the first start")];

const fn field(name: &'static str, path: &'static str) -> Flag {
    Flag { name, effect: Effect::Kubelet(path) }
}
const fn own(name: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, effect: Effect::Own(value, help) }
}
const fn ignored(name: &'static str, why: &'static str) -> Flag {
    Flag { name, effect: Effect::Ignored(Takes::Value, why) }
}
const fn ignored_switch(name: &'static str, why: &'static str) -> Flag {
    Flag { name, effect: Effect::Ignored(Takes::Switch, why) }
}
const fn refused(name: &'static str, why: &'static str) -> Flag {
    Flag { name, effect: Effect::Refused(Takes::Value, why) }
}

const BOOTSTRAP: &str = "this version makes no certificate signing requests: create a certificate for the node \
     (system:node:NAME in group system:nodes), and name it in a kubeconfig with --kubeconfig";
const STATS: &str = "nodelet does not contain cAdvisor";
const REMOVED_CRI: &str =
    "was removed from the kubelet: name the runtime's socket with --container-runtime-endpoint";
const REMOVED_CNI: &str = "was removed from the kubelet: the container runtime calls the CNI \
     plugins, configure it there";
const REMOVED: &str = "was removed from the kubelet: leave it out";
const REMOVED_LOG: &str = "was removed from the kubelet: the log goes to standard error; redirect \
     it from there";

/// Every flag.
pub static FLAGS: &[Flag] = &[
    own(
        "config",
        "FILE",
        "configuration file: a KubeletConfiguration and, as a second document, a NodeletConfiguration",
    ),
    own(
        "config-dir",
        "DIR",
        "directory of drop-ins (*.conf), merged over --config in lexical order",
    ),
    own("root-dir", "DIR", "directory of state that must survive a reboot"),
    Flag { name: "run-dir", effect: Effect::Nodelet("runDir") },
    own("hostname-override", "NAME", "the node's name, which is the suffix of static pod names"),
    own(
        "kubeconfig",
        "FILE",
        "how to reach the API server; without it the agent runs standalone and sends no packet",
    ),
    own("node-ip", "IP[,IP]", "the node's address, or one of each family"),
    own(
        "cloud-provider",
        "external",
        "a cloud controller manager initializes the Node and sets its addresses; needs --kubeconfig",
    ),
    Flag { name: "node-labels", effect: Effect::Nodelet("nodeLabels") },
    field("v", "logging.verbosity"),
    field("logging-format", "logging.format"),
    field("container-runtime-endpoint", "containerRuntimeEndpoint"),
    field("image-service-endpoint", "imageServiceEndpoint"),
    field("runtime-request-timeout", "runtimeRequestTimeout"),
    field("pod-manifest-path", "staticPodPath"),
    field("manifest-url", "staticPodURL"),
    field("manifest-url-header", "staticPodURLHeader"),
    field("file-check-frequency", "fileCheckFrequency"),
    field("http-check-frequency", "httpCheckFrequency"),
    field("sync-frequency", "syncFrequency"),
    field("max-pods", "maxPods"),
    field("pods-per-core", "podsPerCore"),
    field("pod-max-pids", "podPidsLimit"),
    field("cpu-cfs-quota", "cpuCFSQuota"),
    field("cpu-cfs-quota-period", "cpuCFSQuotaPeriod"),
    field("seccomp-default", "seccompDefault"),
    field("allowed-unsafe-sysctls", "allowedUnsafeSysctls"),
    field("resolv-conf", "resolvConf"),
    field("cluster-dns", "clusterDNS"),
    field("cluster-domain", "clusterDomain"),
    field("cgroup-root", "cgroupRoot"),
    field("cgroup-driver", "cgroupDriver"),
    field("cgroups-per-qos", "cgroupsPerQOS"),
    field("enforce-node-allocatable", "enforceNodeAllocatable"),
    field("system-reserved", "systemReserved"),
    field("kube-reserved", "kubeReserved"),
    field("serialize-image-pulls", "serializeImagePulls"),
    field("registry-qps", "registryPullQPS"),
    field("registry-burst", "registryBurst"),
    field("healthz-port", "healthzPort"),
    field("healthz-bind-address", "healthzBindAddress"),
    field("eviction-hard", "evictionHard"),
    field("eviction-soft", "evictionSoft"),
    field("eviction-soft-grace-period", "evictionSoftGracePeriod"),
    field("eviction-minimum-reclaim", "evictionMinimumReclaim"),
    field("eviction-pressure-transition-period", "evictionPressureTransitionPeriod"),
    field("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod"),
    field("local-storage-capacity-isolation", "localStorageCapacityIsolation"),
    field("oom-score-adj", "oomScoreAdj"),
    field("max-open-files", "maxOpenFiles"),
    field("fail-swap-on", "failSwapOn"),
    field("fail-cgroupv1", "failCgroupV1"),
    field("protect-kernel-defaults", "protectKernelDefaults"),
    field("runonce", "runOnce"),
    field("enable-controller-attach-detach", "enableControllerAttachDetach"),
    // Mirrors of fields that are not acted on.
    field("address", "address"),
    field("anonymous-auth", "authentication.anonymous.enabled"),
    field("authentication-token-webhook", "authentication.webhook.enabled"),
    field("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL"),
    field("authorization-mode", "authorization.mode"),
    field("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL"),
    field(
        "authorization-webhook-cache-unauthorized-ttl",
        "authorization.webhook.cacheUnauthorizedTTL",
    ),
    field("client-ca-file", "authentication.x509.clientCAFile"),
    field("container-log-max-files", "containerLogMaxFiles"),
    field("container-log-max-size", "containerLogMaxSize"),
    field("contention-profiling", "enableContentionProfiling"),
    field("cpu-manager-policy", "cpuManagerPolicy"),
    field("cpu-manager-policy-options", "cpuManagerPolicyOptions"),
    field("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod"),
    field("enable-debugging-handlers", "enableDebuggingHandlers"),
    field("enable-server", "enableServer"),
    field("event-burst", "eventBurst"),
    field("event-qps", "eventRecordQPS"),
    field("feature-gates", "featureGates"),
    field("hairpin-mode", "hairpinMode"),
    field("image-gc-high-threshold", "imageGCHighThresholdPercent"),
    field("image-gc-low-threshold", "imageGCLowThresholdPercent"),
    field("iptables-drop-bit", "iptablesDropBit"),
    field("iptables-masquerade-bit", "iptablesMasqueradeBit"),
    field("kernel-memcg-notification", "kernelMemcgNotification"),
    field("kube-api-burst", "kubeAPIBurst"),
    field("kube-api-content-type", "contentType"),
    field("kube-api-qps", "kubeAPIQPS"),
    field("kube-reserved-cgroup", "kubeReservedCgroup"),
    field("kubelet-cgroups", "kubeletCgroups"),
    field("log-flush-frequency", "logging.flushFrequency"),
    field("log-json-info-buffer-size", "logging.options.json.infoBufferSize"),
    field("log-json-split-stream", "logging.options.json.splitStream"),
    field("log-text-info-buffer-size", "logging.options.text.infoBufferSize"),
    field("log-text-split-stream", "logging.options.text.splitStream"),
    field("make-iptables-util-chains", "makeIPTablesUtilChains"),
    field("memory-manager-policy", "memoryManagerPolicy"),
    field("minimum-image-ttl-duration", "imageMinimumGCAge"),
    field("node-status-max-images", "nodeStatusMaxImages"),
    field("node-status-update-frequency", "nodeStatusUpdateFrequency"),
    field("pod-cidr", "podCIDR"),
    field("port", "port"),
    field("provider-id", "providerID"),
    field("qos-reserved", "qosReserved"),
    field("read-only-port", "readOnlyPort"),
    field("register-node", "registerNode"),
    field("register-with-taints", "registerWithTaints"),
    field("reserved-cpus", "reservedSystemCPUs"),
    field("reserved-memory", "reservedMemory"),
    field("rotate-certificates", "rotateCertificates"),
    field("rotate-server-certificates", "serverTLSBootstrap"),
    field("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout"),
    field("system-cgroups", "systemCgroups"),
    field("system-reserved-cgroup", "systemReservedCgroup"),
    field("tls-cert-file", "tlsCertFile"),
    field("tls-cipher-suites", "tlsCipherSuites"),
    field("tls-curve-preferences", "tlsCurvePreferences"),
    field("tls-min-version", "tlsMinVersion"),
    field("tls-private-key-file", "tlsPrivateKeyFile"),
    field("topology-manager-policy", "topologyManagerPolicy"),
    field("topology-manager-policy-options", "topologyManagerPolicyOptions"),
    field("topology-manager-scope", "topologyManagerScope"),
    field("vmodule", "logging.vmodule"),
    field("volume-plugin-dir", "volumePluginDir"),
    field("volume-stats-agg-period", "volumeStatsAggPeriod"),
    // The kubelet's flags that no field mirrors.
    ignored("cert-dir", "this version does not serve the kubelet API over TCP"),
    ignored(
        "image-credential-provider-bin-dir",
        "registry credentials come from docker's configuration files only",
    ),
    ignored(
        "image-credential-provider-config",
        "registry credentials come from docker's configuration files only",
    ),
    ignored("lock-file", "the agent locks its root directory, so that only one agent uses it"),
    ignored_switch(
        "exit-on-lock-contention",
        "the agent locks its root directory, so that only one agent uses it",
    ),
    ignored("runtime-cgroups", "the agent manages only the cgroups of pods"),
    ignored(
        "minimum-container-ttl-duration",
        "the agent removes dead containers by the kubelet's default rules",
    ),
    ignored(
        "maximum-dead-containers",
        "the agent removes dead containers by the kubelet's default rules",
    ),
    ignored(
        "maximum-dead-containers-per-container",
        "the agent removes dead containers by the kubelet's default rules",
    ),
    ignored_switch(
        "experimental-allocatable-ignore-eviction",
        "hard eviction thresholds always reduce the resources that pods may request",
    ),
    ignored("experimental-mounter-path", "no volume is mounted by an external program"),
    ignored("housekeeping-interval", STATS),
    ignored("max-housekeeping-interval", STATS),
    ignored("global-housekeeping-interval", STATS),
    ignored("application-metrics-count-limit", STATS),
    ignored("boot-id-file", STATS),
    ignored("machine-id-file", STATS),
    ignored("container-hints", STATS),
    ignored("containerd", STATS),
    ignored("containerd-namespace", STATS),
    ignored_switch("enable-load-reader", STATS),
    ignored("event-storage-age-limit", STATS),
    ignored("event-storage-event-limit", STATS),
    ignored_switch("log-cadvisor-usage", STATS),
    ignored("storage-driver-buffer-duration", STATS),
    ignored("storage-driver-db", STATS),
    ignored("storage-driver-host", STATS),
    ignored("storage-driver-password", STATS),
    ignored_switch("storage-driver-secure", STATS),
    ignored("storage-driver-table", STATS),
    ignored("storage-driver-user", STATS),
    // What would change what the agent is.
    refused("bootstrap-kubeconfig", BOOTSTRAP),
    // Fatal in the kubelet too.
    refused("container-runtime", REMOVED_CRI),
    refused("docker-endpoint", REMOVED_CRI),
    refused(
        "pod-infra-container-image",
        "was removed from the kubelet: set the pause image in the container runtime (containerd: sandbox_image)",
    ),
    refused("network-plugin", REMOVED_CNI),
    refused("cni-bin-dir", REMOVED_CNI),
    refused("cni-conf-dir", REMOVED_CNI),
    Flag { name: "keep-terminated-pod-volumes", effect: Effect::Refused(Takes::Switch, REMOVED) },
    refused(
        "azure-container-registry-config",
        "was removed from the kubelet: put credentials into docker's configuration file",
    ),
    refused("cloud-config", REMOVED),
    refused("dynamic-config-dir", "was removed from the kubelet: use --config and --config-dir"),
    Flag { name: "logtostderr", effect: Effect::Refused(Takes::Switch, REMOVED_LOG) },
    Flag { name: "alsologtostderr", effect: Effect::Refused(Takes::Switch, REMOVED_LOG) },
    refused("log-dir", REMOVED_LOG),
    refused("log-file", REMOVED_LOG),
    refused("stderrthreshold", REMOVED_LOG),
];
