//! The control plane that kubeadm makes: certificates, kubeconfigs and the manifests of four static
//! pods, for whoever runs them.
//!
//! kubeadm writes below a root of its own (`--rootfs`). It is told where the images come from, and
//! to have everything listen on one address; ports and probes are as it makes them. Only the host
//! paths of the manifests get that root in front, since a controller manager's and a scheduler's
//! kubeconfig have a fixed place below `/etc`.

use super::{client::Client, pki};
use crate::support::{agent::NODE_NAME, images};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// The pods, each with one container of its name.
pub const PARTS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// What comes before the names of the images.
const REPOSITORY: &str = "nodelet.test/kubeadm";
/// What a Debian machine has, and kubeadm mounts where it is.
const CERTIFICATES: [&str; 3] =
    ["etc/ca-certificates", "usr/share/ca-certificates", "usr/local/share/ca-certificates"];

/// What kubeadm has made.
pub struct Kubeadm {
    root: PathBuf,
    address: SocketAddr,
}

impl Kubeadm {
    /// Has the kubeadm among `programs` make everything for a node whose control plane listens on
    /// `address`, below `root`, which it makes.
    pub fn init(programs: &Path, root: &Path, address: Ipv4Addr) -> Self {
        let kubeadm = Self { root: root.to_owned(), address: (address, 6443).into() };
        for dir in CERTIFICATES {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let version = run(programs, &["version", "--output", "short"]);
        fs::write(root.join("kubeadm.yaml"), configuration(version.trim(), address)).unwrap();
        for phase in [["certs", "all"], ["kubeconfig", "all"], ["etcd", "local"]] {
            kubeadm.phase(programs, phase);
        }
        kubeadm.phase(programs, ["control-plane", "all"]);
        kubeadm
    }

    fn phase(&self, programs: &Path, [phase, part]: [&str; 2]) {
        let root = self.root.to_str().unwrap();
        let config = ["--config", "/kubeadm.yaml", "--rootfs", root];
        run(programs, &[&["init", "phase", phase, part][..], &config].concat());
    }

    /// The manifest of a part, with the host paths below the root.
    pub fn manifest(&self, part: &str) -> String {
        let path = self.root.join("etc/kubernetes/manifests").join(part).with_extension("yaml");
        let text = fs::read_to_string(path).unwrap();
        let host_path = "- hostPath:\n      path: ";
        assert!(text.contains(host_path), "{text}");
        text.replace(host_path, &format!("{host_path}{}", self.root.display()))
    }

    /// Makes an archive of the images that the manifests name, of one static program that becomes
    /// what it is called. `dir` takes what is made.
    pub fn images(&self, programs: &Path, dir: &Path) -> PathBuf {
        let bin = dir.join("root/usr/local/bin");
        fs::create_dir_all(&bin).unwrap();
        for part in PARTS {
            let program = fs::canonicalize(programs.join(part)).unwrap();
            let name = program.file_name().unwrap();
            if !bin.join(name).exists() {
                fs::copy(&program, bin.join(name)).unwrap();
            }
            if name != part {
                symlink(name, bin.join(part)).unwrap();
            }
        }
        let manifests = PARTS.map(|part| self.manifest(part));
        let named = manifests.iter().flat_map(|text| text.lines());
        let names: Vec<&str> =
            named.filter_map(|line| line.trim().strip_prefix("image: ")).collect();
        assert_eq!(names.len(), PARTS.len(), "{names:?}");
        assert!(names.iter().all(|name| name.starts_with(REPOSITORY)), "{names:?}");
        images::archive_of(dir, &dir.join("root"), &names)
    }

    /// The kubeconfig of the node.
    pub fn kubelet_conf(&self) -> PathBuf {
        self.kubeconfig("kubelet")
    }

    fn kubeconfig(&self, name: &str) -> PathBuf {
        self.root.join("etc/kubernetes").join(name).with_extension("conf")
    }

    /// Asks the API server as the administrator.
    pub fn admin(&self) -> Client {
        let text = fs::read_to_string(self.kubeconfig("super-admin")).unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
            STANDARD.decode(line.unwrap().trim_start_matches(": ")).unwrap()
        };
        let certificate = |name| CertificateDer::from_pem_slice(&field(name)).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&field("client-key-data")).unwrap();
        let own = (vec![certificate("client-certificate-data")], key);
        let tls = pki::client_config(certificate("certificate-authority-data"), Some(own));
        Client::with_tls(self.address, tls)
    }
}

/// Every part of it may run beside others of its kind on the same machine, because all listen on an
/// address of their own.
fn configuration(version: &str, address: Ipv4Addr) -> String {
    let bind = format!("extraArgs: [{{ name: bind-address, value: {address} }}]");
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
         nodeRegistration: {{ name: {NODE_NAME}, criSocket: 'unix:///run/none.sock' }}\n\
         localAPIEndpoint: {{ advertiseAddress: {address} }}\n\
         ---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
         kubernetesVersion: {version}\nimageRepository: {REPOSITORY}\n\
         apiServer: {{ {bind} }}\ncontrollerManager: {{ {bind} }}\nscheduler: {{ {bind} }}\n\
         etcd:\n  local:\n    extraArgs:\n\
         \x20   - {{ name: listen-client-urls, value: 'https://{address}:2379' }}\n\
         \x20   - {{ name: advertise-client-urls, value: 'https://{address}:2379' }}\n\
         \x20   - {{ name: listen-metrics-urls, value: 'http://{address}:2381' }}\n"
    )
}

/// Runs kubeadm, which must succeed; gives what it printed.
#[track_caller]
pub fn run(programs: &Path, arguments: &[&str]) -> String {
    let output = Command::new(programs.join("kubeadm")).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubeadm {}: {errors}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}
