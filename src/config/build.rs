//! What was merged, validated into a [`Config`].

use super::{
    admission, cluster, container_logs, eviction,
    guards::SWAP,
    image_gc, names,
    read::{Reader, Zero, texts},
    server,
    settings::{
        CgroupConfig, Config, CriConfig, DnsConfig, Endpoint, Enforce, HealthConfig, ImagesConfig,
        LogFormat, LoggingConfig, NodeConfig, PathsConfig, PidsLimit, PodsConfig, ProcessConfig,
        Reserved, SourceConfig, SwapBehavior,
    },
    shutdown,
    tree::{Mistake, Place, Tree},
};
use crate::{
    image::{AllowedImages, VerificationPolicy},
    model::{CgroupDriver, Quantity, parse_duration},
    podspec::sysctl_name,
};
use hyper::{
    Uri,
    header::{HeaderName, HeaderValue},
};
use serde_json::Value as Json;
use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

/// Longest path that fits into a socket's address.
const MAX_SOCKET_PATH: usize = 107;
const MILLISECOND: Duration = Duration::from_millis(1);
const POSITIVE: RangeInclusive<Duration> = MILLISECOND..=Duration::MAX;

/// Everything but the node, from both documents; adds to `notices` what is not acted on.
pub(super) fn build(
    kubelet: &mut Reader<'_>,
    nodelet: &mut Reader<'_>,
    notices: &mut Vec<Mistake>,
) -> Config {
    let cgroup = cgroup(kubelet, notices);
    Config {
        cluster: cluster::settings(kubelet),
        node: NodeConfig { labels: admission::node_labels(nodelet), ..NodeConfig::default() },
        paths: paths(kubelet, nodelet),
        source: source(kubelet, nodelet),
        cri: cri(kubelet),
        pods: pods(kubelet, nodelet),
        eviction: eviction::settings(kubelet, nodelet, cgroup.enforce, notices),
        cgroup,
        images: images(kubelet, nodelet),
        logs: container_logs::settings(kubelet, nodelet),
        health: health(kubelet),
        server: server::settings(kubelet, notices),
        logging: logging(kubelet),
        process: process(kubelet),
        shutdown: shutdown::periods(kubelet),
        notices: Vec::new(),
        effective: Box::default(),
        flags: Box::default(),
    }
}

fn paths(kubelet: &mut Reader<'_>, nodelet: &mut Reader<'_>) -> PathsConfig {
    let default = PathsConfig::default();
    let pod_logs_dir = kubelet.path("podLogsDir").filter(|path| {
        let ascii = path.to_str().is_some_and(str::is_ascii);
        if let Some((text, place)) = kubelet.text("podLogsDir").filter(|_| !ascii) {
            kubelet.invalid(place, "podLogsDir", Json::from(text), "must be ASCII");
        }
        ascii
    });
    let owner = nodelet.filled_text("owner").and_then(|(text, place)| {
        if let Err(must) = names::label_value(text) {
            nodelet.invalid(place, "owner", Json::from(text), must);
            return None;
        }
        Some(text.to_owned())
    });
    PathsConfig {
        root_dir: default.root_dir,
        run_dir: nodelet.path("runDir").unwrap_or(default.run_dir),
        pod_logs_dir: pod_logs_dir.unwrap_or(default.pod_logs_dir),
        container_links_dir: nodelet
            .path("containerLogLinksDir")
            .unwrap_or(default.container_links_dir),
        owner,
        home_dir: None,
    }
}

fn source(r: &mut Reader<'_>, nodelet: &mut Reader<'_>) -> SourceConfig {
    let default = SourceConfig::default();
    let static_pod_path = match r.text("staticPodPath") {
        None => default.static_pod_path,
        Some(("", _)) => None,
        Some(_) => r.path("staticPodPath"),
    };
    let url = r.filled_text("staticPodURL").and_then(|(text, place)| {
        let uri: Option<Uri> = text.parse().ok();
        let authority = uri.as_ref().and_then(Uri::authority);
        let has_user = authority.is_some_and(|authority| authority.as_str().contains('@'));
        let good = uri.is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
        });
        // The URL is not repeated: a query may carry a token.
        let wrong = match (good, has_user) {
            (true, false) => return Some(text.to_owned()),
            (true, true) => {
                "must not have a user name; set an Authorization header in staticPodURLHeader instead"
            }
            (false, _) => "must be an http or https URL",
        };
        r.mistakes.push(place.mistake("staticPodURL", format!("Invalid value: {wrong}")));
        None
    });
    SourceConfig {
        static_pod_path,
        config_path: nodelet.filled_text("configPath").and_then(|_| nodelet.path("configPath")),
        credentials: None,
        url,
        headers: headers(r),
        file_check: r
            .duration("fileCheckFrequency", Zero::Unset, POSITIVE)
            .unwrap_or(default.file_check),
        http_check: r
            .duration("httpCheckFrequency", Zero::Unset, POSITIVE)
            .unwrap_or(default.http_check),
        api_pods: nodelet.bool("apiPods").unwrap_or(default.api_pods),
    }
}

fn headers(r: &mut Reader<'_>) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for (name, values) in r.entries("staticPodURLHeader") {
        let path = format!("staticPodURLHeader[{name}]");
        let place = values.place();
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            r.invalid(place, &path, Json::from(name), "must be the name of an HTTP header");
        }
        for (value, place) in texts(values).unwrap_or_default() {
            // Not repeated in the message: headers carry tokens.
            if HeaderValue::from_str(value).is_err() {
                r.mistakes.push(
                    place.mistake(&path, "Invalid value: must be the value of an HTTP header"),
                );
            }
            headers.push((name.to_owned(), value.to_owned()));
        }
    }
    headers
}

fn cri(r: &mut Reader<'_>) -> CriConfig {
    let default = CriConfig::default();
    let endpoint = endpoint(r, "containerRuntimeEndpoint").unwrap_or(default.endpoint);
    CriConfig {
        image_endpoint: self::endpoint(r, "imageServiceEndpoint")
            .unwrap_or_else(|| endpoint.clone()),
        endpoint,
        request_timeout: r
            .duration("runtimeRequestTimeout", Zero::Unset, POSITIVE)
            .unwrap_or(default.request_timeout),
    }
}

fn endpoint(r: &mut Reader<'_>, path: &str) -> Option<Endpoint> {
    let (text, place) = r.filled_text(path)?;
    let socket = text.strip_prefix("unix://").unwrap_or(text);
    if !socket.starts_with('/') || socket.len() > MAX_SOCKET_PATH || socket.contains('\0') {
        let must = "must be a Unix socket, like unix:///run/containerd/containerd.sock";
        r.invalid(place, path, Json::from(text), must);
        return None;
    }
    Some(Endpoint::unix(PathBuf::from(socket)))
}

fn pods(r: &mut Reader<'_>, nodelet: &mut Reader<'_>) -> PodsConfig {
    let default = PodsConfig::default();
    let cfs = MILLISECOND..=Duration::from_secs(1);
    let cfs_period = r.duration("cpuCFSQuotaPeriod", Zero::Value, cfs).or(default.cfs_period);
    let cap = Duration::from_secs(1)..=Duration::from_secs(300);
    PodsConfig {
        start_concurrency: nodelet.count("startConcurrency", Zero::Unset).filter(|n| *n > 0),
        prepare_updates: nodelet.bool("prepareUpdates").unwrap_or(default.prepare_updates),
        sync_frequency: r
            .duration("syncFrequency", Zero::Unset, POSITIVE)
            .unwrap_or(default.sync_frequency),
        volume_stats_period: volume_stats_period(r, default.volume_stats_period),
        crash_loop_cap: r
            .duration("crashLoopBackOff.maxContainerRestartPeriod", Zero::Value, cap)
            .unwrap_or(default.crash_loop_cap),
        pids_limit: match r.int("podPidsLimit", Zero::Value, i64::MIN..=i64::MAX) {
            None => PidsLimit::Automatic,
            Some(tasks) if tasks > 0 => PidsLimit::Tasks(tasks),
            Some(_) => PidsLimit::Unlimited,
        },
        dns: dns(r),
        cfs_period: cfs_period.filter(|_| r.bool("cpuCFSQuota").unwrap_or(true)),
        seccomp_default: r.bool("seccompDefault").unwrap_or(default.seccomp_default),
        single_process_oom_kill: r.bool("singleProcessOOMKill"),
        swap: eviction::choice(
            r,
            SWAP,
            [("NoSwap", SwapBehavior::NoSwap), ("LimitedSwap", SwapBehavior::LimitedSwap)],
        ),
        allowed_unsafe_sysctls: sysctls(r),
        priority_classes: eviction::priority_classes(nodelet),
        runtime_classes: admission::runtime_classes(nodelet),
        max_pods: r.count("maxPods", Zero::Unset).unwrap_or(default.max_pods),
        ids_per_pod: admission::ids_per_pod(r).unwrap_or(default.ids_per_pod),
        pods_per_core: r.count("podsPerCore", Zero::Unset).unwrap_or(default.pods_per_core),
    }
}

/// A negative duration means: no statistics of volumes.
fn volume_stats_period(r: &mut Reader<'_>, default: Option<Duration>) -> Option<Duration> {
    let path = "volumeStatsAggPeriod";
    let Some((text, place)) = r.filled_text(path) else { return default };
    let negative = text.strip_prefix('-');
    match parse_duration(negative.unwrap_or(text)) {
        Some(period) if period.is_zero() => default,
        Some(period) => negative.is_none().then_some(period),
        None => {
            r.invalid(place, path, Json::from(text), "must be a duration, like 1m0s or -1s");
            default
        }
    }
}

fn dns(r: &mut Reader<'_>) -> DnsConfig {
    let default = DnsConfig::default();
    let resolv_conf = match r.text("resolvConf") {
        None => default.resolv_conf,
        Some(("", _)) => None,
        Some(_) => r.path("resolvConf"),
    };
    let mut cluster_dns = Vec::new();
    for (index, text, place) in listed(r, "clusterDNS") {
        match text.parse() {
            Ok(ip) => cluster_dns.push(ip),
            Err(_) => {
                let path = format!("clusterDNS[{index}]");
                r.invalid(place, &path, Json::from(text), "must be an IP address");
            }
        }
    }
    let cluster_domain = r.filled_text("clusterDomain").map_or("", |(text, place)| {
        let name = text.strip_suffix('.').unwrap_or(text);
        if let Err(must) = names::subdomain(name) {
            r.invalid(place, "clusterDomain", Json::from(text), must);
        }
        text
    });
    DnsConfig { resolv_conf, cluster_dns, cluster_domain: cluster_domain.to_owned() }
}

fn sysctls(r: &mut Reader<'_>) -> Vec<String> {
    let mut patterns = Vec::new();
    for (index, text, place) in listed(r, "allowedUnsafeSysctls") {
        let name = sysctl_name(text);
        let namespaced = name == "kernel.sem"
            || ["kernel.shm", "kernel.msg", "fs.mqueue.", "net."]
                .iter()
                .any(|p| name.starts_with(p));
        let one_star = name.find('*').is_none_or(|at| at + 1 == name.len());
        if !namespaced || !one_star {
            let must = "must be the name of a sysctl that each pod has its own of (kernel.shm*, \
                        kernel.msg*, kernel.sem, fs.mqueue.*, net.*), with a `*` at the end at most";
            r.invalid(place, &format!("allowedUnsafeSysctls[{index}]"), Json::from(text), must);
        }
        patterns.push(name);
    }
    patterns
}

fn cgroup(r: &mut Reader<'_>, notices: &mut Vec<Mistake>) -> CgroupConfig {
    let default = CgroupConfig::default();
    let per_qos = r.bool("cgroupsPerQOS").unwrap_or(default.per_qos);
    let root = r.filled_text("cgroupRoot").map_or(default.root, |(text, place)| {
        if !text.starts_with('/') || text.split('/').any(|part| part == ".." || part == ".") {
            let must = "must be the name of a cgroup from the root, like / or /machine";
            r.invalid(place, "cgroupRoot", Json::from(text), must);
        }
        let trimmed = text.trim_end_matches('/');
        if trimmed.is_empty() { "/".to_owned() } else { trimmed.to_owned() }
    });
    let mut driver = default.driver;
    if let Some((text, place)) = r.filled_text("cgroupDriver") {
        match text {
            "cgroupfs" => driver = CgroupDriver::Cgroupfs,
            "systemd" => driver = CgroupDriver::Systemd,
            _ => r.invalid(place, "cgroupDriver", Json::from(text), "must be cgroupfs or systemd"),
        }
    }
    CgroupConfig {
        root,
        per_qos,
        driver,
        enforce: enforce(r, per_qos, notices),
        system_reserved: reserved(r, "systemReserved"),
        kube_reserved: reserved(r, "kubeReserved"),
    }
}

fn enforce(r: &mut Reader<'_>, per_qos: bool, notices: &mut Vec<Mistake>) -> Enforce {
    let path = "enforceNodeAllocatable";
    let Some(values) = r.texts(path) else {
        return if per_qos { Enforce::Pods } else { Enforce::Nothing };
    };
    let mut enforce = Enforce::Nothing;
    for (index, (value, place)) in values.iter().copied().enumerate() {
        let at = format!("{path}[{index}]");
        match value {
            "pods" if !per_qos => {
                r.invalid(place, &at, Json::from("pods"), "needs cgroupsPerQOS: true");
            }
            "pods" => enforce = Enforce::Pods,
            "none" | "" if values.len() == 1 => {}
            "none" => r.invalid(place, &at, Json::from("none"), "must be the only item"),
            "system-reserved"
            | "kube-reserved"
            | "system-reserved-compressible"
            | "kube-reserved-compressible" => notices.push(place.mistake(
                &at,
                format!("{value:?} is not acted on: the agent manages only the cgroups of pods"),
            )),
            other => {
                let must = "must be pods, none, or system-reserved or kube-reserved, the latter two \
                            also with -compressible";
                r.invalid(place, &at, Json::from(other), must);
            }
        }
    }
    enforce
}

fn reserved(r: &mut Reader<'_>, path: &str) -> Reserved {
    let mut reserved = Reserved::default();
    for (key, tree) in r.entries(path) {
        let at = format!("{path}[{key}]");
        let place = tree.place();
        let amount = match tree {
            Tree::Leaf(_, value @ Json::String(text)) => {
                let amount = Quantity::parse(text).ok().filter(|q| !q.is_negative());
                if amount.is_none() {
                    r.invalid(place, &at, value, "must be a quantity that is not negative");
                }
                amount.unwrap_or_default()
            }
            Tree::Leaf(..) | Tree::List(..) | Tree::Object(..) => Quantity::ZERO,
        };
        match key {
            "cpu" => reserved.cpu_milli = amount.milli_value(),
            "memory" => reserved.memory_bytes = amount.value(),
            "ephemeral-storage" => reserved.ephemeral_storage_bytes = amount.value(),
            "pid" => reserved.pids = amount.value(),
            _ => {
                let message = format!(
                    "cannot reserve {key:?} resource: only cpu, memory, ephemeral-storage and pid"
                );
                r.mistakes.push(place.mistake(&at, message));
            }
        }
    }
    reserved
}

fn images(r: &mut Reader<'_>, nodelet: &Reader<'_>) -> ImagesConfig {
    let default = ImagesConfig::default();
    let path = "maxParallelImagePulls";
    let most =
        r.int(path, Zero::Value, 1..=i64::from(i32::MAX)).and_then(|n| u32::try_from(n).ok());
    let parallel = match (r.bool("serializeImagePulls"), most) {
        (Some(true) | None, None | Some(1)) => Some(1),
        (Some(false), None) => None,
        (Some(false) | None, Some(most)) => Some(most),
        (Some(true), Some(most)) => {
            if let Some(place) = r.switched_on("serializeImagePulls") {
                let must = format!("must be false where {path} is {most}");
                r.invalid(place, "serializeImagePulls", true, &must);
            }
            Some(1)
        }
    };
    ImagesConfig {
        parallel,
        qps: r.count("registryPullQPS", Zero::Value).unwrap_or(default.qps),
        burst: r.count("registryBurst", Zero::Unset).unwrap_or(default.burst),
        gc: image_gc::settings(r, nodelet),
        providers: Vec::new(),
        verification: verification(r),
    }
}

fn verification(r: &mut Reader<'_>) -> VerificationPolicy {
    use VerificationPolicy::{
        AlwaysVerify, NeverVerify, NeverVerifyAllowlistedImages, NeverVerifyPreloadedImages,
    };
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    const LIST: &str = "preloadedImagesVerificationAllowlist";
    let mut allowed = Vec::new();
    for (index, text, place) in listed(r, LIST) {
        match AllowedImages::parse(text) {
            Ok(images) => allowed.push(images),
            Err(must) => {
                let at = format!("{LIST}[{index}]");
                r.invalid(place, &at, Json::from(text), &must.to_string());
            }
        }
    }
    let policy = match r.filled_text(POLICY) {
        None | Some(("NeverVerifyPreloadedImages", _)) => NeverVerifyPreloadedImages,
        Some(("NeverVerify", _)) => NeverVerify,
        Some(("NeverVerifyAllowlistedImages", _)) => return NeverVerifyAllowlistedImages(allowed),
        Some(("AlwaysVerify", _)) => AlwaysVerify,
        Some((other, place)) => {
            let must = "must be NeverVerify, NeverVerifyPreloadedImages, \
                        NeverVerifyAllowlistedImages or AlwaysVerify";
            r.invalid(place, POLICY, Json::from(other), must);
            return VerificationPolicy::default();
        }
    };
    if let Some((_, _, place)) = listed(r, LIST).first() {
        let message = format!("may be set only where {POLICY} is NeverVerifyAllowlistedImages");
        r.mistakes.push(place.mistake(LIST, message));
    }
    policy
}

fn health(r: &mut Reader<'_>) -> HealthConfig {
    let Some(default) = HealthConfig::default().address else { return HealthConfig::default() };
    let ip = r.filled_text("healthzBindAddress").map_or(default.ip(), |(text, place)| {
        text.parse().unwrap_or_else(|_| {
            r.invalid(place, "healthzBindAddress", Json::from(text), "must be an IP address");
            default.ip()
        })
    });
    let port = r.int("healthzPort", Zero::Value, 0..=65535).and_then(|n| u16::try_from(n).ok());
    let port = port.unwrap_or(default.port());
    HealthConfig { address: (port != 0).then(|| (ip, port).into()) }
}

fn logging(r: &mut Reader<'_>) -> LoggingConfig {
    let format =
        r.filled_text("logging.format").map_or(LogFormat::Text, |(text, place)| match text {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            _ => {
                r.invalid(place, "logging.format", Json::from(text), "must be text or json");
                LogFormat::Text
            }
        });
    let verbosity = r.count("logging.verbosity", Zero::Value).unwrap_or(0);
    LoggingConfig { format, verbosity: u8::try_from(verbosity).unwrap_or(u8::MAX) }
}

fn process(r: &mut Reader<'_>) -> ProcessConfig {
    let default = ProcessConfig::default();
    let score = r.int("oomScoreAdj", Zero::Value, -1000..=1000).and_then(|n| i32::try_from(n).ok());
    let files =
        r.int("maxOpenFiles", Zero::Unset, 0..=i64::MAX).and_then(|n| u64::try_from(n).ok());
    ProcessConfig {
        oom_score_adj: score.unwrap_or(default.oom_score_adj),
        max_open_files: files.unwrap_or(default.max_open_files),
        notify_socket: None,
        watchdog: None,
        system_bus: default.system_bus,
    }
}

/// The texts of a list with their indices and places.
fn listed<'a>(r: &Reader<'a>, path: &str) -> Vec<(usize, &'a str, &'a Place)> {
    let texts = r.texts(path).unwrap_or_default();
    texts.into_iter().enumerate().map(|(index, (text, place))| (index, text, place)).collect()
}
