//! Reading a kubeconfig and every file that it names. Blocks: runs on a thread of
//! [`crate::blocking`].

use super::{
    kubeconfig::{self, Cluster, Content, Kubeconfig, KubeconfigError, Login, Named, Plugin},
    secret::{self, SecretError},
    tls::{self, ClientIdentity, Trust},
};
use crate::{
    blocking::Crashed,
    certificate::Lifetime,
    clock,
    files::{ReadError, read_regular},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue, Uri};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The largest kubeconfig, certificate or token file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why the files can't be used.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// The kubeconfig itself can't be read.
    #[error("the kubeconfig can't be read: {0}")]
    Unreadable(ReadError),
    /// Its text is wrong.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// A file that it names can't be read.
    #[error("{field}: {}: {why}", path.display())]
    File {
        /// Field that names the file.
        field: String,
        /// The file.
        path: PathBuf,
        /// Why.
        why: ReadError,
    },
    /// A file that it names, or a field of it, has a content that can't be used.
    #[error("{field}: {why}")]
    Content {
        /// Field.
        field: String,
        /// Why.
        why: SecretError,
    },
    /// The reading itself has failed.
    #[error(transparent)]
    Crashed(Crashed),
}

impl CredentialsError {
    /// Whether the client certificate or its key is missing or damaged.
    #[must_use]
    pub fn is_of_identity(&self) -> bool {
        let (Self::File { field, .. } | Self::Content { field, .. }) = self else { return false };
        field.rsplit('.').next().is_some_and(|name| name.starts_with("client-"))
    }
}

/// What was read, and what has to be watched for changes.
#[derive(Debug)]
pub(super) struct CredentialsReading {
    /// The kubeconfig and every file that it names.
    pub files: Vec<PathBuf>,
    pub outcome: Result<Credentials, CredentialsError>,
}

impl CredentialsReading {
    /// What tells one good reading from another.
    pub(super) fn digest(&self) -> Option<[u8; 32]> {
        self.outcome.as_ref().ok().map(|credentials| credentials.digest)
    }

    /// A reading that did not come to its end.
    pub(super) fn crashed(files: Vec<PathBuf>, crashed: Crashed) -> Self {
        Self { files, outcome: Err(CredentialsError::Crashed(crashed)) }
    }
}

/// The content of a kubeconfig and its files, checked.
#[derive(Debug)]
pub struct Credentials {
    /// Everything but the token of a token file: clients are made anew when it changes.
    pub(super) digest: [u8; 32],
    pub(super) server: Uri,
    pub(super) trust: Trust,
    /// The client certificate.
    pub(super) identity: Option<ClientIdentity>,
    pub(super) server_name: Option<ServerName<'static>>,
    /// Headers of every request, besides `Authorization`.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) authorization: Authorization,
}

/// Where the `Authorization` header is from.
#[derive(Debug)]
pub(super) enum Authorization {
    Header(Option<HeaderValue>),
    /// A plugin, and the information about the cluster that it gets.
    Plugin(Plugin, Value),
}

impl Credentials {
    /// Reads a kubeconfig and the files that it names. Runs no plugin.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        read(path, None).outcome
    }
}

/// Reads a kubeconfig and the files that it names. A client certificate is taken from `rotated`
/// instead, with its key, where that is valid.
pub(super) fn read(path: &Path, rotated: Option<&Path>) -> CredentialsReading {
    let mut files = Files { read: vec![path.to_owned()], digest: Sha256::new() };
    let outcome = assemble(path, rotated, &mut files);
    CredentialsReading { files: files.read, outcome }
}

struct Files {
    read: Vec<PathBuf>,
    digest: Sha256,
}

impl Files {
    fn read(&mut self, field: &str, path: &Path) -> Result<Vec<u8>, CredentialsError> {
        self.read.push(path.to_owned());
        read_regular(path, MAX_FILE_BYTES).map_err(|why| CredentialsError::File {
            field: field.to_owned(),
            path: path.to_owned(),
            why,
        })
    }

    /// A certificate that was obtained later than the kubeconfig was written, with its key. `None`
    /// where there is none that is valid.
    fn rotated(&mut self, path: &Path) -> Option<ClientIdentity> {
        self.read.push(path.to_owned());
        let pem = read_regular(path, MAX_FILE_BYTES).ok()?;
        let certificates = secret::certificates(&pem).ok()?;
        let key = secret::private_key(&pem).ok()?;
        let lifetime = Lifetime::of_der(certificates.first()?)?;
        if lifetime.is_over(clock::now().wall) || !tls::fit(&pem, &pem) {
            return None;
        }
        self.digest.update(&pem);
        Some(ClientIdentity { certificates, key })
    }

    fn token(&mut self, field: &str, path: &Path) -> Result<HeaderValue, CredentialsError> {
        let token = self.read(field, path)?;
        let token = std::str::from_utf8(&token).map_err(|_| SecretError::NotHeader);
        let field = field.to_owned();
        token.and_then(secret::bearer).map_err(|why| CredentialsError::Content { field, why })
    }

    /// PEM text that counts for the digest.
    fn content(&mut self, named: &Named) -> Result<Vec<u8>, CredentialsError> {
        let pem = match &named.content {
            Content::Inline(inline) => inline.0.clone(),
            Content::File(path) => self.read(&named.field, path)?,
        };
        self.digest.update(&pem);
        Ok(pem)
    }
}

/// The cluster of a kubeconfig.
pub(super) fn cluster(path: &Path) -> Result<Cluster, CredentialsError> {
    let text = read_regular(path, MAX_FILE_BYTES).map_err(CredentialsError::Unreadable)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    Ok(kubeconfig::parse(&text, directory)?.cluster)
}

fn assemble(
    path: &Path,
    rotated: Option<&Path>,
    files: &mut Files,
) -> Result<Credentials, CredentialsError> {
    let text = read_regular(path, MAX_FILE_BYTES).map_err(CredentialsError::Unreadable)?;
    files.digest.update(&text);
    let directory = path.parent().unwrap_or(Path::new("/"));
    let Kubeconfig { cluster, user } = kubeconfig::parse(&text, directory)?;
    let of = |field: &str| {
        let field = field.to_owned();
        move |why| CredentialsError::Content { field, why }
    };
    let mut trust = Trust::System;
    let mut authority = None;
    if let Some(named) = &cluster.authority {
        let pem = files.content(named)?;
        trust = Trust::Authorities(secret::certificates(&pem).map_err(of(&named.field))?);
        authority = Some(STANDARD.encode(&pem));
    }
    if cluster.skip_verify {
        trust = Trust::Anyone;
    }
    let mut identity = None;
    if user.identity.is_some() {
        identity = rotated.and_then(|path| files.rotated(path));
    }
    if let Some((certificate, key)) = user.identity.as_ref().filter(|_| identity.is_none()) {
        let pem = files.content(certificate)?;
        let certificates = secret::certificates(&pem).map_err(of(&certificate.field))?;
        let pem = files.content(key)?;
        let key = secret::private_key(&pem).map_err(of(&key.field))?;
        identity = Some(ClientIdentity { certificates, key });
    }
    let authorization = match user.login {
        Login::Nothing => Authorization::Header(None),
        Login::Header(header) => Authorization::Header(Some(header)),
        Login::TokenFile { field, path, token } => {
            let header = files.token(&field, &path).or_else(|error| token.ok_or(error))?;
            Authorization::Header(Some(header))
        }
        Login::Exec(plugin) => {
            let told = json!({
                "server": cluster.server.to_string(),
                "tls-server-name": cluster.server_name.as_ref().map(ServerName::to_str),
                "insecure-skip-tls-verify": cluster.skip_verify,
                "certificate-authority-data": authority,
                "config": cluster.plugin_config,
            });
            Authorization::Plugin(plugin, told)
        }
    };
    Ok(Credentials {
        digest: files.digest.clone().finalize().into(),
        server: cluster.server,
        trust,
        identity,
        server_name: cluster.server_name,
        headers: user.impersonation,
        authorization,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::fs;

    #[test]
    fn a_token_file_counts_before_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let (kubeconfig, file) = (dir.path().join("kubeconfig"), dir.path().join("token"));
        let text = "current-context: a\nclusters: [{name: c, cluster: {server: \"https://10.0.0.1\"}}]\n\
             contexts: [{name: a, context: {cluster: c, user: u}}]\n\
             users: [{name: u, user: {token: first, tokenFile: token}}]\n";
        fs::write(&kubeconfig, text).unwrap();
        let sent = || match Credentials::read(&kubeconfig).unwrap().authorization {
            Authorization::Header(header) => header.unwrap().to_str().unwrap().to_owned(),
            Authorization::Plugin(plugin, _) => panic!("{plugin:?}"),
        };
        assert_eq!(sent(), "Bearer first", "there is no file");
        fs::write(&file, "later\n").unwrap();
        assert_eq!(sent(), "Bearer later");
        fs::write(&kubeconfig, text.replace("token: first, ", "")).unwrap();
        assert_eq!(sent(), "Bearer later");
        fs::remove_file(&file).unwrap();
        let error = Credentials::read(&kubeconfig).unwrap_err().to_string();
        assert!(error.contains("users[u].user.tokenFile"), "{error}");
    }
}
