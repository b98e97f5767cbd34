//! Kubeconfig files, with certificates and keys in files beside them: good ones, and some that a
//! cluster or a client must not take.

use super::pki::{Authority, Identity};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// What a kubeconfig says.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    /// Where the API server is.
    pub server: SocketAddr,
    /// Who signs the API server's certificate.
    pub authority_pem: String,
    /// Whom it is for.
    pub identity: Identity,
}

impl Kubeconfig {
    /// For `identity`.
    pub fn new(server: SocketAddr, authority: &Authority, identity: &Identity) -> Self {
        Self { server, authority_pem: authority.pem().to_owned(), identity: identity.clone() }
    }

    /// Writes it and the files that it names, each by rename; gives `path`.
    pub fn write(&self, path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let [authority, certificate, key] = Self::files(path);
        replace(&authority, &self.authority_pem);
        replace(&certificate, &self.identity.certificate_pem);
        replace(&key, &self.identity.key_pem);
        replace(
            path,
            &format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
                 clusters:\n- name: test\n  cluster:\n    server: https://{server}\n    certificate-authority: {authority}\n\
                 users:\n- name: test\n  user:\n    client-certificate: {certificate}\n    client-key: {key}\n\
                 contexts:\n- name: test\n  context: {{ cluster: test, user: test }}\n",
                server = self.server,
                authority = authority.display(),
                certificate = certificate.display(),
                key = key.display(),
            ),
        );
        path.to_owned()
    }

    /// The files that the one at `path` names: CA certificate, client certificate, client key.
    pub fn files(path: &Path) -> [PathBuf; 3] {
        ["ca.crt", "client.crt", "client.key"].map(|file| {
            let name = path.file_name().unwrap().to_string_lossy();
            path.with_file_name(format!("{name}.{file}"))
        })
    }
}

/// As a careful person writes: beside, then renamed.
pub fn replace(path: &Path, content: &str) {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, content).unwrap();
    fs::rename(beside, path).unwrap();
}
