//! The files of a certificate of the node, as the kubelet lays them out below `--cert-dir`; those of
//! the HTTPS API's have `server` for `client`:
//!
//! ```text
//!  kubelet-client.key.tmp            the key of a request that has no answer yet
//!  kubelet-client-<date>.pem         a certificate, those of its issuers, and its key
//!  kubelet-client-current.pem        a link to the one in use
//! ```

use super::super::{
    credentials::{self, CredentialsError},
    kubeconfig::{Cluster, Content},
    secret,
};
use crate::{
    certificate::{self, Lifetime},
    clock,
    files::{read_regular, replace, sync_dir},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::KeyPair;
use serde_json::json;
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use thiserror::Error;

const UNFINISHED: &str = ".unfinished";
/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file can't be written.
#[derive(Debug, Error)]
pub(super) enum StoreError {
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, io::Error),
    #[error("{} is a file: it has to be a link to the certificate in use", .0.display())]
    NoLink(PathBuf),
    #[error("a key can't be made: {0}")]
    Key(rcgen::Error),
}

/// Where the certificates for one purpose are.
#[derive(Clone, Debug)]
pub(super) struct Store {
    directory: PathBuf,
    /// What the names of the files begin with.
    name: &'static str,
}

/// What the agent has to prove who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The kubeconfig does not exist.
    Absent,
    /// There is a client certificate.
    Certificate(Lifetime),
    /// The client certificate or its key is missing or damaged.
    Damaged,
    /// Something else, such as a token, or a kubeconfig that can't be read.
    Other,
}

/// Reads what there is. `rotated` may stand for the kubeconfig's own certificate.
pub(super) fn standing(kubeconfig: &Path, rotated: Option<&Path>) -> Standing {
    match credentials::read(kubeconfig, rotated).outcome {
        Err(CredentialsError::Unreadable(why)) if why.is_not_found() => Standing::Absent,
        Err(why) if why.is_of_identity() => Standing::Damaged,
        Err(_) => Standing::Other,
        Ok(credentials) => credentials
            .identity
            .and_then(|identity| Lifetime::of_der(identity.certificates.first()?))
            .map_or(Standing::Other, Standing::Certificate),
    }
}

impl Store {
    /// That of the client certificate.
    pub(super) fn client(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), name: "kubelet-client" }
    }

    /// That of the HTTPS API's certificate.
    pub(super) fn serving(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), name: "kubelet-server" }
    }

    fn file(&self, rest: &str) -> PathBuf {
        self.directory.join(format!("{}{rest}", self.name))
    }

    /// The certificate in use, where this agent or a kubelet has requested one.
    pub(super) fn current(&self) -> PathBuf {
        self.file("-current.pem")
    }

    /// When the certificate in use is valid, and for which names it is; `None` where there is none
    /// that can be read.
    pub(super) fn in_use(&self) -> Option<(Lifetime, BTreeSet<String>)> {
        let pem = read_regular(&self.current(), MAX_BYTES).ok()?;
        let found = certificate::parse(secret::certificates(&pem).ok()?.first()?)?;
        Some((Lifetime::of(&found)?, certificate::names(&found)))
    }

    /// The key of the request that has no answer yet; a new one where there is none.
    pub(super) fn pending_key(&self) -> Result<KeyPair, StoreError> {
        let path = self.file(".key.tmp");
        let pem = read_regular(&path, MAX_BYTES).ok().and_then(|pem| String::from_utf8(pem).ok());
        if let Some(key) = pem.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
            return Ok(key);
        }
        let key = KeyPair::generate().map_err(StoreError::Key)?;
        fs::create_dir_all(&self.directory)
            .and_then(|()| replace(&path, UNFINISHED, key.serialize_pem().as_bytes()))
            .map_err(|error| StoreError::File(path, error))?;
        Ok(key)
    }

    /// Forgets that key: its certificate is in use, or its request was refused.
    pub(super) fn forget_key(&self) {
        let path = self.file(".key.tmp");
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(err = %error, "cannot remove {}", path.display());
        }
    }

    /// Takes a certificate into use. The one before stays beside it, older ones are removed.
    pub(super) fn put(&self, certificates: &[u8], key: &str) -> Result<(), StoreError> {
        let current = self.current();
        let before = match fs::symlink_metadata(&current) {
            Ok(found) if !found.is_symlink() => return Err(StoreError::NoLink(current)),
            Ok(_) | Err(_) => fs::read_link(&current).ok(),
        };
        let time = clock::now().wall.strftime("%Y-%m-%d-%H-%M-%S");
        let path = self.file(&format!("-{time}.pem"));
        let mut pem = certificates.to_vec();
        if !pem.ends_with(b"\n") {
            pem.push(b'\n');
        }
        pem.extend_from_slice(key.as_bytes());
        replace(&path, UNFINISHED, &pem).map_err(|error| StoreError::File(path.clone(), error))?;
        // Becomes the current one by a rename.
        let updated = self.file("-updated.pem");
        drop(fs::remove_file(&updated));
        symlink(&path, &updated)
            .and_then(|()| fs::rename(&updated, &current))
            .and_then(|()| sync_dir(&self.directory))
            .map_err(|error| StoreError::File(current, error))?;
        self.remove_others(&[Some(path), before]);
        Ok(())
    }

    /// Removes certificates that are neither in use nor the last one before.
    fn remove_others(&self, kept: &[Option<PathBuf>]) {
        let kept: Vec<_> = kept.iter().flatten().filter_map(|path| path.file_name()).collect();
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let dated = name.to_str().is_some_and(|name| {
                let date = name
                    .strip_prefix(self.name)
                    .and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".pem"));
                date.is_some_and(|date| date.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
            });
            if dated && !kept.contains(&name.as_os_str()) {
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}

/// What a kubeconfig says; `None` where there is none that can be read.
pub(super) fn text_of(kubeconfig: &Path) -> Option<Vec<u8>> {
    read_regular(kubeconfig, MAX_BYTES).ok()
}

/// Writes a kubeconfig that names the certificate in use, for the cluster of the bootstrap
/// kubeconfig.
pub(super) fn write_kubeconfig(
    path: &Path,
    current: &Path,
    cluster: &Cluster,
) -> Result<(), StoreError> {
    let authority = match cluster.authority.as_ref().map(|named| &named.content) {
        None => String::new(),
        Some(Content::File(file)) => format!("    certificate-authority: {}\n", json!(file)),
        Some(Content::Inline(pem)) => {
            format!("    certificate-authority-data: {}\n", STANDARD.encode(&pem.0))
        }
    };
    let skip = if cluster.skip_verify { "    insecure-skip-tls-verify: true\n" } else { "" };
    let name = cluster
        .server_name
        .as_ref()
        .map(|name| format!("    tls-server-name: {}\n", json!(name.to_str())));
    let current = json!(current);
    // Text of JSON is text of YAML.
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: default-cluster\n  cluster:\n    server: {}\n{authority}{skip}{}\
         contexts:\n- name: default-context\n  context:\n    cluster: default-cluster\n    namespace: default\n    user: default-auth\n\
         current-context: default-context\n\
         users:\n- name: default-auth\n  user:\n    client-certificate: {current}\n    client-key: {current}\n",
        json!(cluster.server.to_string()),
        name.unwrap_or_default(),
    );
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| replace(path, UNFINISHED, text.as_bytes()))
        .map_err(|error| StoreError::File(path.to_owned(), error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn certified() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["n1".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_key_stays_until_its_request_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("pki");
        let (store, file) = (Store::client(&dir), dir.join("kubelet-client.key.tmp"));
        let key = || store.pending_key().unwrap().serialize_pem();
        let first = key();
        assert_eq!(key(), first);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Half of a file is no key.
        fs::write(&file, &first[..40]).unwrap();
        let second = key();
        assert_ne!(second, first);
        let (certificate, of_it) = certified();
        store.put(certificate.as_bytes(), &of_it).unwrap();
        assert_eq!(key(), second);
        store.forget_key();
        assert_ne!(key(), second);
    }

    #[test]
    fn the_kubeconfig_names_the_certificate_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let (pki, path) = (dir.path().join("pki"), dir.path().join("etc/kubelet.conf"));
        assert_eq!(standing(&path, None), Standing::Absent);
        fs::create_dir(&pki).unwrap();
        let (certificate, key) = certified();
        let bootstrap = format!(
            "current-context: a\nclusters:\n- name: b\n  cluster: {{ server: \"https://10.0.0.1:6443\", \
             tls-server-name: api, certificate-authority-data: {} }}\ncontexts:\n- name: a\n  context: {{ cluster: b }}\n",
            STANDARD.encode(&certificate),
        );
        let cluster =
            crate::api::kubeconfig::parse(bootstrap.as_bytes(), dir.path()).unwrap().cluster;
        let store = Store::client(&pki);
        store.put(certificate.as_bytes(), &key).unwrap();
        write_kubeconfig(&path, &store.current(), &cluster).unwrap();
        assert_eq!(store.in_use().unwrap().1, ["n1".to_owned()].into());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = credentials::read(&path, None).outcome.unwrap();
        assert_eq!(read.server, "https://10.0.0.1:6443/");
        assert_eq!(read.server_name.unwrap().to_str(), "api");
        assert!(read.identity.is_some());
        assert!(matches!(standing(&path, None), Standing::Certificate(_)));
        // As after a loss of power, and as somebody leaves it who clears the directory.
        fs::write(store.current(), "").unwrap();
        assert_eq!(standing(&path, None), Standing::Damaged);
        fs::remove_dir_all(&pki).unwrap();
        assert_eq!(standing(&path, None), Standing::Damaged);
        fs::write(&path, "half a file").unwrap();
        assert_eq!(standing(&path, None), Standing::Other);
    }

    #[test]
    fn older_certificates_go_and_no_file_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (store, current) = (Store::client(dir), dir.join("kubelet-client-current.pem"));
        fs::write(dir.join("kubelet-server-2020-01-01-00-00-00.pem"), "another's").unwrap();
        for date in ["2020-01-01-00-00-00", "2021-01-01-00-00-00"] {
            fs::write(dir.join(format!("kubelet-client-{date}.pem")), "old").unwrap();
        }
        let last = dir.join("kubelet-client-2021-01-01-00-00-00.pem");
        symlink(&last, &current).unwrap();
        fs::write(dir.join("kubelet-client-own.pem"), "somebody's").unwrap();
        let (certificate, key) = certified();
        store.put(certificate.as_bytes(), &key).unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(dir)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let new = fs::read_link(&current).unwrap();
        assert!(new != last && last.exists() && new.exists());
        assert_eq!(names().len(), 5, "{:?}", names());
        fs::remove_file(&current).unwrap();
        fs::write(&current, "mine").unwrap();
        let error = store.put(certificate.as_bytes(), &key).unwrap_err();
        assert!(matches!(error, StoreError::NoLink(_)), "{error}");
        assert_eq!(fs::read_to_string(&current).unwrap(), "mine");
    }
}
