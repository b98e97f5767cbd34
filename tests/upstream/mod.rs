//! The upstream kubelet as a process: standalone or joined to a cluster, with all its directories
//! under one, fenced in by `run` so that the machine does not notice it. `build` finds or builds
//! the binary, those of a control plane, kube-proxy, metrics-server and CoreDNS.
//!
//! Its configuration is the kubelet's default except for what any bench needs (own paths, ports and
//! cgroup root) and what keeps it alive and quiet on such a machine: cgroup v1 and swap allowed, no
//! evictions, no image collection, no iptables chains.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "the comparison and the benchmark each use their own part; a panic is how either fails"
)]

use crate::support::{agent::NODE_NAME, slot::Slot};
use nix::mount::{MsFlags, mount};
use std::{
    cell::RefCell,
    fs::{self, File},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Where the kubelet is, or nothing where there is none and none can be built; `build` has said why
/// then.
pub fn binary() -> Option<PathBuf> {
    find("kubelet")
}

/// The directory that the programs of a control plane are in, or nothing, as with [`binary`].
pub fn control_plane() -> Option<PathBuf> {
    find("controlplane")
}

/// Where kube-proxy is, or nothing, as with [`binary`].
pub fn kube_proxy() -> Option<PathBuf> {
    find("kube-proxy")
}

/// Where CoreDNS is, or nothing, as with [`binary`].
pub fn coredns() -> Option<PathBuf> {
    find("coredns")
}

/// Where the kube-apiserver of Kubernetes 1.35 is, or nothing, as with [`binary`].
pub fn earlier_apiserver() -> Option<PathBuf> {
    find("apiserver-1.35")
}

/// Where metrics-server is, or nothing, as with [`binary`].
pub fn metrics_server() -> Option<PathBuf> {
    find("metrics-server")
}

fn find(what: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upstream/build");
    // Beside CARGO_TARGET_TMPDIR, which is TARGET/tmp.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("upstream");
    let output = Command::new(here).arg(what).arg(dir).stderr(Stdio::inherit()).output().unwrap();
    match output.status.code() {
        Some(0) => Some(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())),
        Some(3) => None,
        _ => panic!("tests/upstream/build failed"),
    }
}

/// What the binary calls itself: `v1.36.2`.
pub fn version(binary: &Path) -> String {
    let output = Command::new(binary).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().rsplit(' ').next().unwrap_or_default().to_owned()
}

/// A kubelet, running or not, and its directories.
pub struct Kubelet {
    dir: PathBuf,
    binary: PathBuf,
    containerd: PathBuf,
    kubeconfig: Option<PathBuf>,
    api_port: u16,
    flags: Vec<String>,
    node_name: String,
    /// The network namespace that it runs in; `None` for the one of the test.
    namespace: Option<String>,
    child: RefCell<Option<Child>>,
}

impl Kubelet {
    /// Prepares one in `slot` that talks CRI to `endpoint`. Its cAdvisor talks to `containerd`, as
    /// it does wherever containerd has its usual address. `lines` are added to the configuration.
    /// It is not started.
    pub fn prepare(
        slot: &Slot,
        binary: &Path,
        endpoint: &Path,
        containerd: &Path,
        lines: &str,
    ) -> Self {
        let dir = slot.dir().join("kubelet");
        for name in ["manifests", "root", "logs", "pki", "plugins"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        share(&dir.join("root"));
        fs::write(dir.join("resolv.conf"), "nameserver 192.0.2.1\nsearch test.invalid\n").unwrap();
        let eviction = match lines.contains("evictionHard") {
            true => "",
            false => {
                "evictionHard: { memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, \
                 imagefs.available: 0% }\n"
            }
        };
        let api_port = slot.port() + 1000;
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             staticPodPath: {at}/manifests\npodLogsDir: {at}/logs\nresolvConf: {at}/resolv.conf\n\
             volumePluginDir: {at}/plugins\ncontainerRuntimeEndpoint: unix://{endpoint}\n\
             address: 127.0.0.1\nport: {port}\nhealthzPort: {healthz}\noomScoreAdj: 0\n\
             cgroupDriver: cgroupfs\ncgroupRoot: {cgroup}\nregisterNode: false\n\
             authentication: {{ anonymous: {{ enabled: true }}, webhook: {{ enabled: false }} }}\n\
             authorization: {{ mode: AlwaysAllow }}\nfailCgroupV1: false\nfailSwapOn: false\n\
             {eviction}imageGCHighThresholdPercent: 100\nimageGCLowThresholdPercent: 99\n\
             makeIPTablesUtilChains: false\n{lines}\n",
            at = dir.display(),
            endpoint = endpoint.display(),
            port = api_port,
            healthz = slot.port(),
            cgroup = slot.cgroup_root(),
        );
        fs::write(dir.join("config.yaml"), config).unwrap();
        let (binary, containerd) = (binary.to_owned(), containerd.to_owned());
        Self {
            dir,
            binary,
            containerd,
            kubeconfig: None,
            api_port,
            flags: Vec::new(),
            node_name: NODE_NAME.to_owned(),
            namespace: None,
            child: RefCell::default(),
        }
    }

    /// One more flag, from its next start on. Flags go before the configuration.
    pub fn add_flag(&mut self, flag: String) {
        self.flags.push(flag);
    }

    /// Its node has this name instead of [`NODE_NAME`].
    #[must_use]
    pub fn named(mut self, node_name: &str) -> Self {
        node_name.clone_into(&mut self.node_name);
        self
    }

    /// It runs in a network namespace, with this address of the node.
    #[must_use]
    pub fn in_network_namespace(mut self, namespace: &str, address: Ipv4Addr) -> Self {
        self.namespace = Some(namespace.to_owned());
        self.add_flag(format!("--node-ip={address}"));
        self
    }

    /// The port of its HTTPS API.
    pub fn api_port(&self) -> u16 {
        self.api_port
    }

    /// From its next start on it is a node of the cluster that this kubeconfig leads to.
    pub fn join(&mut self, kubeconfig: &Path) {
        let path = self.dir.join("config.yaml");
        let config = fs::read_to_string(&path).unwrap();
        fs::write(path, config.replace("registerNode: false", "registerNode: true")).unwrap();
        self.kubeconfig = Some(kubeconfig.to_owned());
    }

    /// Starts it; does not wait until it answers.
    pub fn start(&self) {
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upstream/run");
        let mut command = match &self.namespace {
            None => Command::new(run),
            Some(name) => {
                let mut nsenter = Command::new("nsenter");
                nsenter.arg(format!("--net=/run/netns/{name}")).arg(run);
                nsenter
            }
        };
        command.arg(self.dir.join("fence")).arg(self.root_dir()).arg(&self.binary);
        command.arg("--config").arg(self.dir.join("config.yaml"));
        command.arg("--root-dir").arg(self.root_dir());
        command.arg("--cert-dir").arg(self.dir.join("pki"));
        command.arg("--containerd").arg(&self.containerd);
        command.arg("--hostname-override").arg(&self.node_name);
        if let Some(kubeconfig) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        command.args(&self.flags);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child.replace(Some(command.spawn().unwrap()));
    }

    /// Whether its process has become the kubelet: before, it is what prepares its start.
    pub fn is_past_preparation(&self) -> bool {
        fs::read_link(format!("/proc/{}/exe", self.pid())).unwrap() == self.binary
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&self) {
        let mut child = self.child.take().expect("the kubelet runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The process id of the running kubelet.
    pub fn pid(&self) -> u32 {
        self.child.borrow().as_ref().expect("the kubelet runs").id()
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.child.borrow_mut().as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Its `staticPodPath`.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// Its root directory.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Its `podLogsDir`.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("kubelet.log")
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
    }
}

/// Makes a directory a mount of its own that spreads what is mounted below it; gone with its slot.
pub fn share(dir: &Path) {
    let none: Option<&str> = None;
    mount(Some(dir), dir, none, MsFlags::MS_BIND, none).unwrap();
    mount(none, dir, none, MsFlags::MS_SHARED, none).unwrap();
}
