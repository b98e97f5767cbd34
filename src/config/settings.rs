//! The agent's configuration: one sub-struct per subsystem. `Default` is what an agent does that is
//! started on a fresh machine with no file and no flag.

use crate::{
    image::{CredentialProvider, VerificationPolicy},
    log_rotation::RotationSettings,
    model::{CgroupDriver, CloudProvider, ShutdownPeriods, SystemLogs},
    podspec::IDS_PER_POD,
    pressure::core::EvictionSettings,
};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// Everything that was configured, validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// This node's identity.
    pub node: NodeConfig,
    /// Where things lie on the host.
    pub paths: PathsConfig,
    /// Where manifests come from.
    pub source: SourceConfig,
    /// The container runtime.
    pub cri: CriConfig,
    /// How pods are run.
    pub pods: PodsConfig,
    /// The cgroup tree of pods.
    pub cgroup: CgroupConfig,
    /// What is done when the node runs short of something.
    pub eviction: EvictionSettings,
    /// Images.
    pub images: ImagesConfig,
    /// How container logs are rotated.
    pub logs: RotationSettings,
    /// The health server on TCP.
    pub health: HealthConfig,
    /// The HTTPS API of the node.
    pub server: ServerConfig,
    /// The agent's own log.
    pub logging: LoggingConfig,
    /// The agent's own process.
    pub process: ProcessConfig,
    /// How long pods have when the machine shuts down: `shutdownGracePeriod`,
    /// `shutdownGracePeriodCriticalPods`, `shutdownGracePeriodByPodPriority`. Default: no time;
    /// under systemd 30 s, the last 10 of them for critical pods.
    pub shutdown: Option<ShutdownPeriods>,
    /// The cluster that the node is part of, where it has one.
    pub cluster: ClusterConfig,
    /// Fields and flags that were set and are not acted on, one sentence each with its place:
    /// what the agent logs at start, and `check` and `status` show.
    pub notices: Vec<String>,
    /// The KubeletConfiguration that is in effect, as JSON. Empty where none was read.
    pub effective: Box<str>,
    /// The flags that were given, `name=value`, a line for each. Secrets are masked.
    pub flags: Box<str>,
}

impl Config {
    /// `--cert-dir`: the directory of the certificates that the agent obtains or makes. Default
    /// `pki` in the root directory.
    #[must_use]
    pub fn certificate_dir(&self) -> PathBuf {
        let given = self.server.certificate_dir.clone();
        given.unwrap_or_else(|| self.paths.root_dir.join("pki"))
    }
}

/// This node's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConfig {
    /// `--hostname-override`, lower case. Default `None`: the name kept in the root directory, at
    /// first start the host's name.
    pub name_override: Option<String>,
    /// `--node-ip`: one address, or one of each family. Default none: taken from the host.
    pub ips: Vec<IpAddr>,
    /// `nodeLabels`: the node's labels besides those that every node has. Default none.
    pub labels: BTreeMap<String, String>,
}

/// The cluster that the node is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// `--kubeconfig`: how the API server is reached. Default `None`: the agent contacts no API
    /// server.
    pub kubeconfig: Option<PathBuf>,
    /// How the agent comes by its client certificate.
    pub identity: IdentityConfig,
    /// `registerNode`: make the Node object. Default true.
    pub register: bool,
    /// `enableControllerAttachDetach`: annotate the Node for the attach-detach controller. Default
    /// true.
    pub attach_detach: bool,
    /// `registerWithTaints`. Default none besides the agent's own.
    pub taints: Vec<NodeTaint>,
    /// `providerID`. Default none.
    pub provider_id: Option<String>,
    /// `--cloud-provider`. Default none.
    pub cloud_provider: CloudProvider,
    /// `nodeStatusUpdateFrequency`: how often the status is computed. Default 10 s.
    pub status_update: Duration,
    /// `nodeStatusReportFrequency`: how often it is written although nothing has changed. Default 5
    /// min.
    pub status_report: Duration,
    /// `nodeLeaseDurationSeconds`. Default 40.
    pub lease_seconds: i32,
    /// `nodeStatusMaxImages`; `None` (-1): all. Default 50.
    pub max_images: Option<usize>,
    /// `kubeAPIQPS` (0: 5), `kubeAPIBurst`. Default 50, 100.
    pub api: Rate,
    /// `eventRecordQPS` (0: no bound), `eventBurst`. Default 50, 100.
    pub events: Rate,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        let rate = Rate { qps: 50, burst: 100 };
        Self {
            kubeconfig: None,
            identity: IdentityConfig::default(),
            register: true,
            attach_detach: true,
            taints: Vec::new(),
            provider_id: None,
            cloud_provider: CloudProvider::None,
            status_update: Duration::from_secs(10),
            status_report: Duration::from_secs(300),
            lease_seconds: 40,
            max_images: Some(50),
            api: rate,
            events: rate,
        }
    }
}

/// How the agent comes by its client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityConfig {
    /// `--bootstrap-kubeconfig`: with what the first one is requested. Default `None`.
    pub bootstrap: Option<PathBuf>,
    /// `rotateCertificates`: a new one is requested before it expires. Default false.
    pub rotate: bool,
}

/// A taint of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTaint {
    /// A label key.
    pub key: String,
    /// A label value, may be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// How many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// A second.
    pub qps: u32,
    /// At once.
    pub burst: u32,
}

/// Where things lie on the host. All absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathsConfig {
    /// `--root-dir`: directory of state that must survive a reboot. Default `/var/lib/nodelet`.
    pub root_dir: PathBuf,
    /// `runDir`: the socket, and what may be lost at a reboot. Default `/run/nodelet`.
    pub run_dir: PathBuf,
    /// `podLogsDir`. Default `/var/log/pods`.
    pub pod_logs_dir: PathBuf,
    /// `containerLogLinksDir`: links named for pod and container, for log shippers. Default
    /// `/var/log/containers`.
    pub container_links_dir: PathBuf,
    /// `owner`: written on every sandbox. Default `None`: made at first start and kept in the root
    /// directory.
    pub owner: Option<String>,
    /// `HOME` of the environment, below which `.docker/config.json` is looked for. Default `None`.
    pub home_dir: Option<PathBuf>,
}

impl Default for PathsConfig {
    fn default() -> Self {
        Self {
            root_dir: "/var/lib/nodelet".into(),
            run_dir: "/run/nodelet".into(),
            pod_logs_dir: "/var/log/pods".into(),
            container_links_dir: "/var/log/containers".into(),
            owner: None,
            home_dir: None,
        }
    }
}

/// Where manifests come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// `staticPodPath`: a directory or one file; `None`: no such source. Default
    /// `/etc/nodelet/static-pods`.
    pub static_pod_path: Option<PathBuf>,
    /// `configPath`: a directory or one file with ConfigMaps and Secrets. Default `None`.
    pub config_path: Option<PathBuf>,
    /// `CREDENTIALS_DIRECTORY` of the environment: credentials that systemd has given the agent,
    /// which Secrets in files may name.
    pub credentials: Option<PathBuf>,
    /// `staticPodURL`. Default `None`.
    pub url: Option<String>,
    /// `staticPodURLHeader`: name and value of each header, several of one name allowed. Default
    /// none.
    pub headers: Vec<(String, String)>,
    /// `fileCheckFrequency`: between two listings of the directory. Default 20 s.
    pub file_check: Duration,
    /// `httpCheckFrequency`: between two requests. Default 20 s.
    pub http_check: Duration,
    /// `apiPods`: run the pods that an API server binds to the node. Default true.
    pub api_pods: bool,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self {
            static_pod_path: Some("/etc/nodelet/static-pods".into()),
            config_path: None,
            credentials: None,
            url: None,
            headers: Vec::new(),
            file_check: Duration::from_secs(20),
            http_check: Duration::from_secs(20),
            api_pods: true,
        }
    }
}

/// A Unix socket, written `unix:///run/containerd/containerd.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

impl Endpoint {
    /// The socket at an absolute path.
    #[must_use]
    pub fn unix(path: PathBuf) -> Self {
        Self(path)
    }
}

/// `unix:///run/containerd/containerd.sock`
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

/// The container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriConfig {
    /// `containerRuntimeEndpoint`. Default `unix:///run/containerd/containerd.sock`.
    pub endpoint: Endpoint,
    /// `imageServiceEndpoint`. Default: the same.
    pub image_endpoint: Endpoint,
    /// `runtimeRequestTimeout`: deadline of a read, soft deadline of a mutating call. Default 2
    /// min.
    pub request_timeout: Duration,
}

impl Default for CriConfig {
    fn default() -> Self {
        let endpoint = Endpoint::unix("/run/containerd/containerd.sock".into());
        Self {
            image_endpoint: endpoint.clone(),
            endpoint,
            request_timeout: Duration::from_secs(120),
        }
    }
}

/// `podPidsLimit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PidsLimit {
    /// Not set: max(1024, the host's pid capacity / 8). The kubelet would set no limit.
    #[default]
    Automatic,
    /// Set to 0 or less.
    Unlimited,
    /// Tasks in a pod.
    Tasks(i64),
}

/// What of swap containers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapBehavior {
    /// None.
    NoSwap,
    /// A part of the node's, by their memory requests.
    LimitedSwap,
}

/// How pods are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsConfig {
    /// How many sandboxes and containers start at a time; `None`: the agent's choice.
    /// `startConcurrency`, default `None`.
    pub start_concurrency: Option<u32>,
    /// `prepareUpdates`: the images and objects of a changed manifest are there before its pod is
    /// stopped. Default true.
    pub prepare_updates: bool,
    /// `syncFrequency`: how late the main loop may be, twice, before `/healthz` fails. Default 1
    /// min.
    pub sync_frequency: Duration,
    /// `volumeStatsAggPeriod`: statistics of file systems that are older are measured anew when a
    /// client asks for them; `None`: there are none. Default 1 min.
    pub volume_stats_period: Option<Duration>,
    /// `crashLoopBackOff.maxContainerRestartPeriod`: where the back-off ends. Default 5 min.
    pub crash_loop_cap: Duration,
    /// `podPidsLimit`.
    pub pids_limit: PidsLimit,
    /// DNS of pods.
    pub dns: DnsConfig,
    /// `cpuCFSQuotaPeriod` where `cpuCFSQuota` is on; `None`: CPU limits are not enforced. Default
    /// 100 ms.
    pub cfs_period: Option<Duration>,
    /// `seccompDefault`: containers without a profile get RuntimeDefault. Default false.
    pub seccomp_default: bool,
    /// `singleProcessOOMKill`: an OOM kill takes one process instead of the whole container
    /// (cgroup v2). Default `None`: false on v2; v1 knows nothing else than true.
    pub single_process_oom_kill: Option<bool>,
    /// `memorySwap.swapBehavior`. Default `NoSwap`.
    pub swap: SwapBehavior,
    /// `allowedUnsafeSysctls`: names, or prefixes with `*` at the end. Default none.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// `priorityClasses`: the priority of pods that name a class and no priority. Default none; the
    /// system's own classes are not among them.
    pub priority_classes: BTreeMap<String, i32>,
    /// `runtimeClasses`: the handler of the container runtime for each runtime class. Default none.
    pub runtime_classes: BTreeMap<String, String>,
    /// `maxPods`: how many pods the node takes. Default 110.
    pub max_pods: u32,
    /// `userNamespaces.idsPerPod`: ids of a pod with a user namespace. Default 65536.
    pub ids_per_pod: u32,
    /// `podsPerCore`: no more than this for each CPU; 0: no matter. Default 0.
    pub pods_per_core: u32,
}

impl Default for PodsConfig {
    fn default() -> Self {
        Self {
            start_concurrency: None,
            prepare_updates: true,
            sync_frequency: Duration::from_secs(60),
            volume_stats_period: Some(Duration::from_secs(60)),
            crash_loop_cap: Duration::from_secs(300),
            pids_limit: PidsLimit::Automatic,
            dns: DnsConfig::default(),
            cfs_period: Some(Duration::from_millis(100)),
            seccomp_default: false,
            single_process_oom_kill: None,
            swap: SwapBehavior::NoSwap,
            allowed_unsafe_sysctls: Vec::new(),
            priority_classes: BTreeMap::new(),
            runtime_classes: BTreeMap::new(),
            max_pods: 110,
            ids_per_pod: IDS_PER_POD,
            pods_per_core: 0,
        }
    }
}

/// DNS of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// `resolvConf`; `None` (set to `""`): nothing is taken from the host. Default
    /// `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
    /// `clusterDNS`. Default none.
    pub cluster_dns: Vec<IpAddr>,
    /// `clusterDomain`; empty: none. Default empty.
    pub cluster_domain: String,
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self {
            resolv_conf: Some("/etc/resolv.conf".into()),
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
        }
    }
}

/// The cgroup tree of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupConfig {
    /// `cgroupRoot`: an existing cgroup, `/` for the root. Default `/`.
    pub root: String,
    /// `cgroupsPerQOS`: without it no cgroup is made and the runtime gets an empty parent. Default
    /// true.
    pub per_qos: bool,
    /// `cgroupDriver`, for a runtime that does not report its driver. Default cgroupfs.
    pub driver: CgroupDriver,
    /// `enforceNodeAllocatable`. Default: pods.
    pub enforce: Enforce,
    /// `systemReserved`. Default nothing.
    pub system_reserved: Reserved,
    /// `kubeReserved`. Default nothing.
    pub kube_reserved: Reserved,
}

impl Default for CgroupConfig {
    fn default() -> Self {
        Self {
            root: "/".to_owned(),
            per_qos: true,
            driver: CgroupDriver::default(),
            enforce: Enforce::Pods,
            system_reserved: Reserved::default(),
            kube_reserved: Reserved::default(),
        }
    }
}

/// What `enforceNodeAllocatable` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforce {
    /// Nothing.
    Nothing,
    /// All pods together stay below capacity minus what is reserved.
    #[default]
    Pods,
}

/// An amount that pods do not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory_bytes: i64,
    /// Bytes of the file system with the root directory.
    pub ephemeral_storage_bytes: i64,
    /// Tasks.
    pub pids: i64,
}

/// Images: pulls, and which are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagesConfig {
    /// `serializeImagePulls` and `maxParallelImagePulls` together: how many pulls run at a time,
    /// `None` for no bound. Default 1.
    pub parallel: Option<u32>,
    /// `registryPullQPS`: image pulls per second, 0 for no limit. Default 5.
    pub qps: u32,
    /// `registryBurst`: pulls that may begin at once while below `qps` on average. Default 10.
    pub burst: u32,
    /// Which images are removed, and when.
    pub gc: ImageGcConfig,
    /// Plugins for registry credentials, of `--image-credential-provider-config`. Default none.
    pub providers: Vec<CredentialProvider>,
    /// `imagePullCredentialsVerificationPolicy` with `preloadedImagesVerificationAllowlist`. Default
    /// `NeverVerifyPreloadedImages`.
    pub verification: VerificationPolicy,
}

impl Default for ImagesConfig {
    fn default() -> Self {
        Self {
            parallel: Some(1),
            qps: 5,
            burst: 10,
            gc: ImageGcConfig::default(),
            providers: Vec::new(),
            verification: VerificationPolicy::default(),
        }
    }
}

/// Which images are removed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGcConfig {
    /// `imageGCHighThresholdPercent`, 0..=100: of the images' file system in use. Default 85.
    pub high_percent: u8,
    /// `imageGCLowThresholdPercent`, below the high one. Default 80.
    pub low_percent: u8,
    /// `imageMinimumGCAge`. Default 2 min.
    pub minimum_age: Duration,
    /// `imageMaximumGCAge`; `None` (set to 0s): there is none. Default `None`.
    pub maximum_age: Option<Duration>,
    /// `imageGC.includeForeign`: also images that the agent did not pull itself. Default false.
    pub include_foreign: bool,
}

impl Default for ImageGcConfig {
    fn default() -> Self {
        Self {
            high_percent: 85,
            low_percent: 80,
            minimum_age: Duration::from_secs(120),
            maximum_age: None,
            include_foreign: false,
        }
    }
}

/// The health server on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// `healthzBindAddress` and `healthzPort`; `None` where the port is 0: not served. Default
    /// 127.0.0.1:10248.
    pub address: Option<SocketAddr>,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { address: Some((Ipv4Addr::LOCALHOST, 10248).into()) }
    }
}

/// The HTTPS API of the node: the kubelet API.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "switches of the kubelet's configuration")]
pub struct ServerConfig {
    /// `enableServer`. Default true.
    pub enabled: bool,
    /// `address` and `port`. Default 0.0.0.0:10250.
    pub address: SocketAddr,
    /// `address` and `readOnlyPort`: a part of it, served to everybody. Default `None`.
    pub read_only: Option<SocketAddr>,
    /// `tlsCertFile` and `tlsPrivateKeyFile`. Default `None`: a self-signed certificate in
    /// `certificate_dir`.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// `serverTLSBootstrap`: the certificate is requested from the cluster. Default false. Never with
    /// a certificate of one's own, and never without a kubeconfig.
    pub bootstrap: bool,
    /// `--cert-dir`. Default `pki` in the root directory.
    pub certificate_dir: Option<PathBuf>,
    /// `tlsMinVersion: VersionTLS13`. Default false.
    pub tls13_only: bool,
    /// `tlsCipherSuites`: those of TLS 1.2 that are allowed. Default none: all.
    pub tls12_suites: Vec<&'static str>,
    /// `authentication.x509.clientCAFile`. Default `None`: client certificates prove nothing.
    pub client_ca: Option<PathBuf>,
    /// `authentication.webhook.enabled`: the API server is asked who has a bearer token. Default
    /// true.
    pub tokens: bool,
    /// `authentication.anonymous.enabled`. Default false.
    pub anonymous: bool,
    /// `authorization.mode`. Default Webhook.
    pub authorization: Authorization,
    /// `authentication.webhook.cacheTTL`. Default 2 min.
    pub token_ttl: Duration,
    /// `authorization.webhook.cacheAuthorizedTTL`. Default 5 min.
    pub allowed_ttl: Duration,
    /// `authorization.webhook.cacheUnauthorizedTTL`. Default 30 s.
    pub denied_ttl: Duration,
    /// `streamingConnectionIdleTimeout`. Default 4 h.
    pub stream_idle: Duration,
    /// `enableDebuggingHandlers`: logs, exec, attach, port-forward. Default true.
    pub debugging_handlers: bool,
    /// `enableSystemLogHandler` and `enableSystemLogQuery`. Default off.
    pub system_logs: SystemLogs,
}

/// `authorization.mode`: who decides what a known user may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authorization {
    /// The API server (SubjectAccessReview).
    #[default]
    Webhook,
    /// Whoever is known may do everything.
    AlwaysAllow,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            address: (Ipv4Addr::UNSPECIFIED, 10250).into(),
            read_only: None,
            certificate: None,
            bootstrap: false,
            certificate_dir: None,
            tls13_only: false,
            tls12_suites: Vec::new(),
            client_ca: None,
            tokens: true,
            anonymous: false,
            authorization: Authorization::Webhook,
            token_ttl: Duration::from_secs(120),
            allowed_ttl: Duration::from_secs(300),
            denied_ttl: Duration::from_secs(30),
            stream_idle: Duration::from_secs(4 * 3600),
            debugging_handlers: true,
            system_logs: SystemLogs::Off,
        }
    }
}

impl ServerConfig {
    /// Whether the server runs, with an API server or without.
    #[must_use]
    pub fn is_served(&self, in_cluster: bool) -> bool {
        self.enabled && self.off_because(in_cluster).is_none()
    }

    /// Says why the server must not run. Without an API server, only a client certificate can
    /// identify a client. `nodelet check` does not know whether the agent will run with
    /// `--kubeconfig`, so the sentence about that is true in both cases.
    #[must_use]
    pub fn off_because(&self, in_cluster: bool) -> Option<&'static str> {
        let allows_all = self.authorization == Authorization::AlwaysAllow;
        if allows_all && self.anonymous {
            Some(
                "the HTTPS API is not served: authentication.anonymous.enabled and authorization.mode AlwaysAllow would let anybody in",
            )
        } else if !in_cluster && (!allows_all || self.client_ca.is_none()) {
            Some(
                "the HTTPS API is not served unless --kubeconfig is given, or both authentication.x509.clientCAFile and authorization.mode AlwaysAllow are set",
            )
        } else if self.client_ca.is_none() && !self.tokens && !self.anonymous {
            Some(
                "the HTTPS API is not served: nobody could be known: set authentication.x509.clientCAFile or authentication.webhook.enabled",
            )
        } else {
            None
        }
    }
}

/// How the agent's own log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The agent's own log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoggingConfig {
    /// `logging.format`. Default text.
    pub format: LogFormat,
    /// `logging.verbosity`: 0-1 info, 2-3 the agent's debug lines, 4 and more: debug lines of its
    /// libraries too. Default 0.
    pub verbosity: u8,
}

/// The agent's own process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessConfig {
    /// `oomScoreAdj`, -1000..=1000. Default -999.
    pub oom_score_adj: i32,
    /// `maxOpenFiles`: RLIMIT_NOFILE. Default 1000000.
    pub max_open_files: u64,
    /// `NOTIFY_SOCKET` of the environment: where systemd waits for READY=1.
    pub notify_socket: Option<OsString>,
    /// `WATCHDOG_USEC` of the environment: systemd wants a sign of life this often.
    pub watchdog: Option<Duration>,
    /// The system bus: `DBUS_SYSTEM_BUS_ADDRESS` of the environment, where it is a socket's path.
    /// Default `/run/dbus/system_bus_socket`.
    pub system_bus: PathBuf,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            oom_score_adj: -999,
            max_open_files: 1_000_000,
            notify_socket: None,
            watchdog: None,
            system_bus: "/run/dbus/system_bus_socket".into(),
        }
    }
}
