//! A real control plane for one test: etcd, kube-apiserver and, where wanted,
//! kube-controller-manager and kube-scheduler, as processes with everything of theirs in one
//! directory; and the way to it, [`link`], with its faults.
//!
//! `tests/upstream/build controlplane` finds or builds the programs. Names, ports and directories
//! follow from the slot, as with containerd: what a killed test leaves is removed by the slot's
//! next owner.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "each test uses its own part; a panic is how a test fails"
)]

pub mod client;
pub mod component;
mod flags;
pub mod kubeadm;
pub mod kubeconfig;
pub mod link;
pub mod metrics;
pub mod objects;
pub mod pki;

use crate::support::{slot::Slot, wait_until};
use client::Client;
use component::Component;
use flags::Flags;
use kubeconfig::Kubeconfig;
use pki::{Authority, Identity, Validity};
use serde_json::Value;
use std::{
    fs,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

/// The account of metrics-server and its rights, as objects for `kubectl apply`.
pub const METRICS_SERVER_ACCOUNT: &str = include_str!("metrics-server-account.yaml");

/// The words of each line of a table.
pub type Rows = Vec<Vec<String>>;

/// Long enough for the control plane to come up on a busy machine with two cores.
const UP: Duration = Duration::from_secs(120);

/// What may differ between control planes.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Flags of kube-apiserver besides the bench's own.
    pub apiserver: Vec<String>,
    /// The kube-apiserver, where it is not that of the other programs.
    pub apiserver_program: Option<PathBuf>,
    /// Whether kube-apiserver can pass requests on to other API servers.
    pub aggregation: bool,
    /// Whether there is a kube-controller-manager, and its flags besides the bench's own.
    pub controller_manager: Option<Vec<String>>,
    /// Whether there is a kube-scheduler.
    pub scheduler: bool,
    /// More addresses at which nodes find kube-apiserver, for its certificate.
    pub addresses: Vec<Ipv4Addr>,
    /// The address that kube-apiserver listens on and publishes in the Service `kubernetes`. `None`
    /// for loopback, which is not published.
    pub listens_on: Option<Ipv4Addr>,
}

impl Options {
    /// Adds a flag of kube-apiserver.
    #[must_use]
    pub fn apiserver(mut self, flag: &str) -> Self {
        self.apiserver.push(flag.to_owned());
        self
    }

    /// With a kube-apiserver of another version than the other programs.
    #[must_use]
    pub fn apiserver_program(mut self, program: PathBuf) -> Self {
        self.apiserver_program = Some(program);
        self
    }

    /// With the aggregation layer: an APIService can name another API server.
    #[must_use]
    pub fn aggregation(mut self) -> Self {
        self.aggregation = true;
        self
    }

    /// With a kube-controller-manager that has these flags besides.
    #[must_use]
    pub fn controller_manager(mut self, flags: &[&str]) -> Self {
        self.controller_manager = Some(flags.iter().copied().map(str::to_owned).collect());
        self
    }

    /// Adds an address at which nodes find kube-apiserver, for its certificate.
    #[must_use]
    pub fn address(mut self, address: Ipv4Addr) -> Self {
        self.addresses.push(address);
        self
    }

    /// With a kube-apiserver that pods reach: it listens on this address of the host.
    #[must_use]
    pub fn listen_on(mut self, address: Ipv4Addr) -> Self {
        self.listens_on = Some(address);
        self
    }

    /// With a kube-scheduler.
    #[must_use]
    pub fn scheduler(mut self) -> Self {
        self.scheduler = true;
        self
    }
}

/// A control plane. Fields are dropped in this order.
pub struct ControlPlane {
    /// Where the options want one.
    pub scheduler: Option<Component>,
    /// Where the options want one.
    pub controller_manager: Option<Component>,
    /// The API server.
    pub apiserver: Component,
    /// Its store.
    pub etcd: Component,
    /// Asks as the administrator.
    pub admin: Client,
    authority: Arc<Authority>,
    server_identity: Identity,
    programs: PathBuf,
    dir: PathBuf,
    address: SocketAddr,
}

/// What etcd held at some time.
pub struct Snapshot(PathBuf);

/// The first of the 16 ports that a slot has for this.
fn first_port(slot: &Slot) -> u16 {
    24_000 + 16 * u16::from(slot.number())
}

impl ControlPlane {
    /// Starts one in `slot` with the programs in `programs`; it answers when this returns.
    pub fn start(slot: &Slot, programs: &Path, options: &Options) -> Self {
        let dir = slot.dir().join("controlplane");
        fs::create_dir_all(&dir).unwrap();
        let authority = Arc::new(Authority::new("test-ca"));
        let mut addresses =
            vec![Ipv4Addr::LOCALHOST, link::address_in(slot), Ipv4Addr::new(10, 213, 0, 1)];
        addresses.extend(options.listens_on);
        addresses.extend_from_slice(&options.addresses);
        let addresses: Vec<IpAddr> = addresses.into_iter().map(IpAddr::V4).collect();
        let server_identity = authority.server(&addresses);
        let port = first_port(slot);
        let listens_on = options.listens_on.unwrap_or(Ipv4Addr::LOCALHOST);
        let address = SocketAddr::from((listens_on, port + 2));
        let admin = authority.client("admin", &["system:masters"], Validity::Long);
        let flags = Flags { dir: &dir, port };
        flags.write_files(&authority, &server_identity);
        let component = |name: &str, flags| Component::prepare(&programs.join(name), &dir, flags);
        let mut apiserver = flags.apiserver(listens_on, &options.apiserver);
        if options.aggregation {
            apiserver.extend(flags.aggregation());
        }
        let managed = |name: &str, user: &str| {
            let identity = authority.client(user, &[], Validity::Long);
            let kubeconfig = Kubeconfig::new(address, &authority, &identity);
            kubeconfig.write(&dir.join(name).with_extension("kubeconfig"))
        };
        let controller_manager = options.controller_manager.as_ref().map(|more| {
            let kubeconfig = managed("kcm", "system:kube-controller-manager");
            component("kube-controller-manager", flags.controller_manager(&kubeconfig, more))
        });
        let scheduler = options.scheduler.then(|| {
            let kubeconfig = managed("scheduler", "system:kube-scheduler");
            component("kube-scheduler", flags.scheduler(&kubeconfig))
        });
        let cluster = Self {
            scheduler,
            controller_manager,
            apiserver: match &options.apiserver_program {
                Some(program) => Component::prepare(program, &dir, apiserver),
                None => component("kube-apiserver", apiserver),
            },
            etcd: component("etcd", flags.etcd()),
            admin: Client::new(address, &authority, Some(&admin)),
            authority,
            server_identity,
            programs: programs.to_owned(),
            dir,
            address,
        };
        cluster.write_kubeconfig("admin", &admin);
        cluster.start_all();
        cluster
    }

    /// Starts whatever does not run, and waits until the API server answers and has its namespaces.
    pub fn start_all(&self) {
        if !self.etcd.is_running() {
            self.etcd.start();
        }
        // The API server gives up after 20 s without it.
        let store = (Ipv4Addr::LOCALHOST, self.address.port() - 2);
        wait_until("etcd listens", UP, || TcpStream::connect(store).is_ok(), |listens| *listens);
        if !self.apiserver.is_running() {
            self.apiserver.start();
        }
        self.wait_ready();
        // Both give up soon when there is no API server.
        for component in self.controller_manager.iter().chain(&self.scheduler) {
            if !component.is_running() {
                component.start();
            }
        }
    }

    /// `kill -9` to all of it.
    pub fn kill_all(&self) {
        for component in self.scheduler.iter().chain(&self.controller_manager) {
            component.kill();
        }
        self.apiserver.kill();
        self.etcd.kill();
    }

    /// Waits until the API server answers and has its namespaces.
    #[track_caller]
    pub fn wait_ready(&self) {
        let namespaces = ["default", "kube-system", "kube-node-lease"];
        let missing = || -> Vec<String> {
            let mut paths = vec!["/readyz?verbose".to_owned()];
            paths.extend(namespaces.map(|name| format!("/api/v1/namespaces/{name}")));
            paths.retain(|path| !self.answers(path));
            paths
        };
        let fits = |missing: &Vec<String>| missing.is_empty() || !self.apiserver.is_running();
        let missing = wait_until("the API server is ready", UP, missing, fits);
        assert!(missing.is_empty(), "kube-apiserver ended:\n{}", self.apiserver.log_tail(20));
    }

    fn answers(&self, path: &str) -> bool {
        let answer = self.admin.send(hyper::Method::GET, path, None);
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// Where the API server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Who signs the certificates of servers and clients.
    pub fn authority(&self) -> Arc<Authority> {
        Arc::clone(&self.authority)
    }

    /// What the API server shows, and whoever takes its place.
    pub fn server_identity(&self) -> &Identity {
        &self.server_identity
    }

    /// A node's identity.
    pub fn node_identity(&self, name: &str) -> Identity {
        self.node_identity_for(name, Validity::Long)
    }

    /// As [`Self::node_identity`], good for as long as is said.
    pub fn node_identity_for(&self, name: &str, validity: Validity) -> Identity {
        self.authority.client(&format!("system:node:{name}"), &["system:nodes"], validity)
    }

    /// Asks as somebody, directly.
    pub fn client(&self, identity: &Identity) -> Client {
        Client::new(self.address, &self.authority, Some(identity))
    }

    /// A node's kubeconfig, with all its files in a directory of its own. `server` is the API
    /// server's address or a link's.
    pub fn node_kubeconfig(&self, name: &str, server: SocketAddr) -> PathBuf {
        let identity = self.node_identity(name);
        let dir = self.dir.join("nodes").join(name);
        Kubeconfig::new(server, &self.authority, &identity).write(&dir.join("kubeconfig"))
    }

    /// A kubeconfig for anybody, directly.
    pub fn write_kubeconfig(&self, name: &str, identity: &Identity) -> PathBuf {
        let path = self.dir.join(name).join("kubeconfig");
        Kubeconfig::new(self.address, &self.authority, identity).write(&path)
    }

    /// The administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin/kubeconfig")
    }

    /// kubectl with a kubeconfig, to be started.
    pub fn kubectl_command(&self, kubeconfig: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("kubectl"));
        command.arg("--kubeconfig").arg(kubeconfig).args(arguments);
        // It keeps caches there.
        command.env("HOME", &self.dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs kubectl as the administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        self.kubectl_as(&self.admin_kubeconfig(), arguments, "")
    }

    /// Runs kubectl with a kubeconfig and standard input.
    pub fn kubectl_as(&self, kubeconfig: &Path, arguments: &[&str], input: &str) -> Output {
        let mut child = self.kubectl_command(kubeconfig, arguments).spawn().unwrap();
        // One that reads nothing may have ended by now.
        _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// What kubectl prints, which must succeed.
    #[track_caller]
    pub fn kubectl_text(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {}: {errors}", arguments.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What `kubectl top` prints below its headings; an error when it fails.
    pub fn top(&self, words: &[&str]) -> Result<Rows, String> {
        let output = self.kubectl(&[&["top"], words].concat());
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8(output.stdout).unwrap();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        Ok(text.lines().skip(1).map(words).collect())
    }

    /// Counts of requests since the API server started, of everybody, by its own metrics.
    pub fn request_counts(&self) -> Vec<metrics::RequestCount> {
        let answer = self.admin.send(hyper::Method::GET, "/metrics", None).unwrap();
        metrics::request_counts(&answer.text)
    }

    /// What etcd holds now, as on a disk whose machine loses power now.
    pub fn snapshot(&self) -> Snapshot {
        let frozen = self.etcd.is_running().then(|| self.etcd.freeze());
        let to = (0..).map(|n| self.dir.join(format!("snapshot-{n}"))).find(|dir| !dir.exists());
        let to = to.unwrap();
        copy(&self.etcd_dir(), &to);
        drop(frozen);
        Snapshot(to)
    }

    /// The whole control plane goes down and comes back with what `snapshot` holds.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.replace_data(Some(snapshot));
    }

    /// The whole control plane goes down and comes back with nothing in it.
    pub fn wipe(&self) {
        self.replace_data(None);
    }

    fn replace_data(&self, snapshot: Option<&Snapshot>) {
        self.kill_all();
        fs::remove_dir_all(self.etcd_dir()).unwrap();
        if let Some(snapshot) = snapshot {
            copy(&snapshot.0, &self.etcd_dir());
        }
        self.start_all();
    }

    fn etcd_dir(&self) -> PathBuf {
        self.dir.join("etcd")
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "cp -a {} {}", from.display(), to.display());
}
