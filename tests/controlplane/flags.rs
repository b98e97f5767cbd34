//! The command lines of the programs, and the files that they name.

use super::pki::{self, Authority, Identity, Validity};
use std::{fs, net::Ipv4Addr, path::Path};

/// Where the programs find everything.
pub(super) struct Flags<'a> {
    /// Where files are.
    pub(super) dir: &'a Path,
    /// The first port.
    pub(super) port: u16,
}

impl Flags<'_> {
    /// What they name.
    pub(super) fn write_files(&self, authority: &Authority, server: &Identity) {
        let (private, public) = pki::bare_key();
        // Who the API server is for nodes.
        let of_nodes =
            authority.client("kube-apiserver-kubelet-client", &["system:masters"], Validity::Long);
        for (name, content) in [
            ("ca.crt", authority.pem()),
            ("ca.key", authority.key_pem()),
            ("server.crt", &server.certificate_pem),
            ("server.key", &server.key_pem),
            ("kubelet-client.crt", &of_nodes.certificate_pem),
            ("kubelet-client.key", &of_nodes.key_pem),
            ("accounts.key", &private),
            ("accounts.pub", &public),
        ] {
            fs::write(self.dir.join(name), content).unwrap();
        }
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    pub(super) fn etcd(&self) -> Vec<String> {
        let (client, peer) = (self.port, self.port + 1);
        let (client, peer) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        vec![
            format!("--data-dir={}", self.file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // Only a loss of power could tell.
            "--unsafe-no-fsync".to_owned(),
        ]
    }

    pub(super) fn apiserver(&self, address: Ipv4Addr, more: &[String]) -> Vec<String> {
        let mut flags = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.port),
            format!("--secure-port={}", self.port + 2),
            format!("--tls-cert-file={}", self.file("server.crt")),
            format!("--tls-private-key-file={}", self.file("server.key")),
            format!("--client-ca-file={}", self.file("ca.crt")),
            format!("--kubelet-client-certificate={}", self.file("kubelet-client.crt")),
            format!("--kubelet-client-key={}", self.file("kubelet-client.key")),
            format!("--service-account-key-file={}", self.file("accounts.pub")),
            format!("--service-account-signing-key-file={}", self.file("accounts.key")),
        ];
        flags.extend(["bind", "advertise"].map(|what| format!("--{what}-address={address}")));
        if address.is_loopback() {
            // It would refuse to publish a loopback address.
            flags.push("--endpoint-reconciler-type=none".to_owned());
        }
        let constant = [
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.213.0.0/24",
        ];
        flags.extend(constant.map(str::to_owned));
        flags.extend_from_slice(more);
        flags
    }

    /// The flags of an API server that passes requests on to other servers, which then know it by a
    /// client certificate. Writes that and its authority.
    pub(super) fn aggregation(&self) -> Vec<String> {
        let authority = Authority::new("front-proxy-ca");
        let proxy = authority.client("front-proxy-client", &[], Validity::Long);
        for (name, content) in [
            ("front-proxy-ca.crt", authority.pem()),
            ("front-proxy-client.crt", &proxy.certificate_pem),
            ("front-proxy-client.key", &proxy.key_pem),
        ] {
            fs::write(self.dir.join(name), content).unwrap();
        }
        vec![
            format!("--requestheader-client-ca-file={}", self.file("front-proxy-ca.crt")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", self.file("front-proxy-client.crt")),
            format!("--proxy-client-key-file={}", self.file("front-proxy-client.key")),
        ]
    }

    pub(super) fn controller_manager(&self, kubeconfig: &Path, more: &[String]) -> Vec<String> {
        let mut flags = self.managed(kubeconfig, self.port + 3);
        flags.extend([
            format!("--cluster-signing-cert-file={}", self.file("ca.crt")),
            format!("--cluster-signing-key-file={}", self.file("ca.key")),
            format!("--root-ca-file={}", self.file("ca.crt")),
            format!("--service-account-private-key-file={}", self.file("accounts.key")),
            "--use-service-account-credentials".to_owned(),
        ]);
        flags.extend_from_slice(more);
        flags
    }

    pub(super) fn scheduler(&self, kubeconfig: &Path) -> Vec<String> {
        self.managed(kubeconfig, self.port + 4)
    }

    fn managed(&self, kubeconfig: &Path, port: u16) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", self.file("server.crt")),
            format!("--tls-private-key-file={}", self.file("server.key")),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
        ]
    }
}
