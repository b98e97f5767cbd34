//! The text of a kubeconfig to what the agent uses of it: the cluster and the user of the current
//! context. Pure.
//!
//! The text is not trusted: every value that ends up in a header, a URL or a certificate is checked
//! here, because the libraries behind it panic on some of them. An error names the field and never
//! repeats a value that may be secret.

use super::secret::{SecretError, bearer, decode_base64};
use crate::{
    document::{self, Node, Value},
    model::Position,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue, Uri};
use rustls_pki_types::ServerName;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Longest URL of an API server, in bytes. The URL of a request has room for 65,534.
const MAX_SERVER_BYTES: usize = 2048;

/// The version of the plugin interface, where the kubeconfig names none.
const DEFAULT_API_VERSION: &str = "client.authentication.k8s.io/v1";

/// What is wrong with the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KubeconfigError {
    /// The text is no YAML, or not one mapping.
    #[error("{}the text is not a kubeconfig (one YAML mapping is expected)", place(.0))]
    Syntax(Position),
    /// One field is wrong.
    #[error("{field}: {wrong}")]
    Field {
        /// `users[node].user.token`
        field: String,
        /// What is wrong with it.
        wrong: FieldError,
    },
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FieldError {
    /// It must be set.
    #[error("required")]
    Required,
    /// Its type is another one.
    #[error("must be {0}")]
    Type(&'static str),
    /// It names something that is not in the file.
    #[error("nothing in this file has this name")]
    Unknown,
    /// It is no URL of an API server.
    #[error("expected a URL that begins with https://, without user name and query")]
    Server,
    /// It is set, and can't be obeyed.
    #[error("is set, and {0}")]
    Unsupported(&'static str),
    /// Its value can't be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// It is no name that a certificate can have.
    #[error("is no DNS name or IP address")]
    ServerName,
}

fn place(position: &Position) -> String {
    match position.line {
        0 => String::new(),
        line => format!("line {line}, column {}: ", position.column),
    }
}

/// What a kubeconfig says about its current context.
#[derive(Debug)]
pub(super) struct Kubeconfig {
    pub cluster: Cluster,
    pub user: User,
}

/// How the API server is reached and known.
#[derive(Debug)]
pub(super) struct Cluster {
    pub server: Uri,
    pub authority: Option<Named>,
    pub skip_verify: bool,
    pub server_name: Option<ServerName<'static>>,
    /// Extension for exec plugins, as it is written.
    pub plugin_config: Option<serde_json::Value>,
}

/// PEM text, or the file that has it, and the field that says so.
#[derive(Debug)]
pub(super) struct Named {
    pub field: String,
    pub content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Inline(Inline),
    File(PathBuf),
}

/// PEM text in a kubeconfig. `Debug` doesn't show it.
pub(super) struct Inline(pub Vec<u8>);

impl std::fmt::Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inline(..)")
    }
}

/// As whom the agent logs in.
#[derive(Debug)]
pub(super) struct User {
    /// Client certificate and its key.
    pub identity: Option<(Named, Named)>,
    pub login: Login,
    /// `Impersonate-User` and its like.
    pub impersonation: Vec<(HeaderName, HeaderValue)>,
}

/// What the `Authorization` header is made from.
#[derive(Debug)]
pub(super) enum Login {
    Nothing,
    Header(HeaderValue),
    /// The token of a file, or `token` while that can't be read.
    TokenFile {
        field: String,
        path: PathBuf,
        token: Option<HeaderValue>,
    },
    Exec(Plugin),
}

/// An exec plugin.
#[derive(Clone)]
pub(super) struct Plugin {
    /// `users[node].user.exec`
    pub field: String,
    pub command: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub api_version: String,
    pub wants_cluster: bool,
}

/// Arguments and environment may hold secrets.
impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("command", &self.command).finish_non_exhaustive()
    }
}

type Outcome<T> = Result<T, KubeconfigError>;

/// Reads the text of a kubeconfig in `directory`, to which relative paths in it refer.
pub(super) fn parse(text: &[u8], directory: &Path) -> Outcome<Kubeconfig> {
    let documents =
        document::parse(text).map_err(|problem| KubeconfigError::Syntax(problem.position))?;
    let root = match documents.as_slice() {
        [one] if matches!(one.root.value, Value::Map(_)) => Field::new(&one.root, String::new()),
        [_, second, ..] => return Err(KubeconfigError::Syntax(second.root.position)),
        _ => return Err(KubeconfigError::Syntax(Position::default())),
    };
    let name = root
        .text("current-context")?
        .ok_or_else(|| root.wrong("current-context", FieldError::Required))?;
    let context = root
        .named("contexts", &name, "context")?
        .ok_or_else(|| root.wrong("current-context", FieldError::Unknown))?;
    let name =
        context.text("cluster")?.ok_or_else(|| context.wrong("cluster", FieldError::Required))?;
    let cluster = root
        .named("clusters", &name, "cluster")?
        .ok_or_else(|| context.wrong("cluster", FieldError::Unknown))?;
    let user = match context.text("user")? {
        None => None,
        // As for client-go, a user that is not there is one without credentials.
        Some(name) => root.named("users", &name, "user")?,
    };
    Ok(Kubeconfig {
        cluster: read_cluster(&cluster, directory)?,
        user: match user {
            Some(user) => read_user(&user, directory)?,
            None => User { identity: None, login: Login::Nothing, impersonation: Vec::new() },
        },
    })
}

fn read_cluster(cluster: &Field<'_>, directory: &Path) -> Outcome<Cluster> {
    if cluster.text("proxy-url")?.is_some() {
        return Err(cluster.wrong(
            "proxy-url",
            FieldError::Unsupported(
                "this version has no proxies: remove it, and name in `server` what the node reaches by itself",
            ),
        ));
    }
    let server =
        cluster.text("server")?.ok_or_else(|| cluster.wrong("server", FieldError::Required))?;
    let server_name = cluster.text("tls-server-name")?.map(|name| {
        ServerName::try_from(name)
            .map_err(|_| cluster.wrong("tls-server-name", FieldError::ServerName))
    });
    Ok(Cluster {
        server: server_url(&server).ok_or_else(|| cluster.wrong("server", FieldError::Server))?,
        authority: cluster.content("certificate-authority", directory)?,
        skip_verify: cluster.truth("insecure-skip-tls-verify")?,
        server_name: server_name.transpose()?,
        plugin_config: cluster.plugin_config(),
    })
}

/// `None` where it can't be the base of requests, or holds a secret.
fn server_url(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let authority = uri.authority()?;
    let port = authority.as_str().rsplit_once(':').is_none_or(|(_, port)| {
        // `]` ends an IPv6 address without a port.
        port.ends_with(']') || port.parse::<u16>().is_ok()
    });
    let good = text.len() <= MAX_SERVER_BYTES
        && uri.scheme_str() == Some("https")
        && !authority.host().is_empty()
        && !authority.as_str().contains('@')
        && uri.query().is_none()
        && port;
    good.then_some(uri)
}

fn read_user(user: &Field<'_>, directory: &Path) -> Outcome<User> {
    let certificate = user.content("client-certificate", directory)?;
    let key = user.content("client-key", directory)?;
    let identity = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => return Err(user.wrong("client-key", FieldError::Required)),
        (None, Some(_)) => return Err(user.wrong("client-certificate", FieldError::Required)),
    };
    Ok(User { identity, login: login(user, directory)?, impersonation: impersonation(user)? })
}

/// The first of: provider, password, token file, token, plugin.
fn login(user: &Field<'_>, directory: &Path) -> Outcome<Login> {
    if let Some(provider) = user.map("auth-provider")? {
        return oidc(&provider).map(Login::Header);
    }
    if let (Some(name), Some(password)) = (user.text("username")?, user.text("password")?) {
        let basic = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
        let header =
            super::secret::header(&basic).map_err(|error| user.wrong("password", error.into()))?;
        return Ok(Login::Header(header));
    }
    let token = user.text("token")?.map(|token| bearer(&token)).transpose();
    let token = token.map_err(|error| user.wrong("token", error.into()))?;
    if let Some(path) = user.text("tokenFile")? {
        let (field, path) = (user.name("tokenFile"), directory.join(path));
        return Ok(Login::TokenFile { field, path, token });
    }
    if let Some(token) = token {
        return Ok(Login::Header(token));
    }
    match user.map("exec")? {
        Some(exec) => plugin(&exec, directory).map(Login::Exec),
        None => Ok(Login::Nothing),
    }
}

/// The token of an OpenID Connect provider. It is used as it is: the agent does not request a new
/// one.
fn oidc(provider: &Field<'_>) -> Outcome<HeaderValue> {
    if provider.text("name")?.as_deref() != Some("oidc") {
        let instead = "this version knows only `oidc`: use an exec plugin";
        return Err(provider.wrong("name", FieldError::Unsupported(instead)));
    }
    let config =
        provider.map("config")?.ok_or_else(|| provider.wrong("config", FieldError::Required))?;
    let token =
        config.text("id-token")?.ok_or_else(|| config.wrong("id-token", FieldError::Required))?;
    bearer(&token).map_err(|error| config.wrong("id-token", error.into()))
}

fn plugin(exec: &Field<'_>, directory: &Path) -> Outcome<Plugin> {
    let command =
        exec.text("command")?.ok_or_else(|| exec.wrong("command", FieldError::Required))?;
    let mut env = Vec::new();
    for variable in exec.list("env")? {
        if let (Some(name), Some(value)) = (variable.text("name")?, variable.text("value")?) {
            env.push((name, value));
        }
    }
    Ok(Plugin {
        field: exec.path.clone(),
        // A bare name is looked up in PATH.
        command: if command.contains('/') { directory.join(command) } else { command.into() },
        args: exec.texts("args")?,
        env,
        api_version: exec.text("apiVersion")?.unwrap_or_else(|| DEFAULT_API_VERSION.to_owned()),
        wants_cluster: exec.truth("provideClusterInfo")?,
    })
}

fn impersonation(user: &Field<'_>) -> Outcome<Vec<(HeaderName, HeaderValue)>> {
    let mut headers = Vec::new();
    let mut add = |field: &str, name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| user.wrong(field, SecretError::NotHeader.into()))?;
        let value = HeaderValue::from_str(value)
            .map_err(|_| user.wrong(field, SecretError::NotHeader.into()))?;
        headers.push((name, value));
        Ok(())
    };
    if let Some(name) = user.text("as")? {
        add("as", "impersonate-user", &name)?;
    }
    if let Some(uid) = user.text("as-uid")? {
        add("as-uid", "impersonate-uid", &uid)?;
    }
    for group in user.texts("as-groups")? {
        add("as-groups", "impersonate-group", &group)?;
    }
    if let Some(extra) = user.map("as-user-extra")? {
        for entry in extra.node.entries() {
            let name = format!("impersonate-extra-{}", entry.key);
            for value in extra.texts(&entry.key)? {
                add("as-user-extra", &name, &value)?;
            }
        }
    }
    Ok(headers)
}

/// A mapping, with the name that errors have for it.
struct Field<'a> {
    node: &'a Node,
    path: String,
}

impl<'a> Field<'a> {
    fn new(node: &'a Node, path: String) -> Self {
        Self { node, path }
    }

    fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn wrong(&self, key: &str, wrong: FieldError) -> KubeconfigError {
        KubeconfigError::Field { field: self.name(key), wrong }
    }

    fn get(&self, key: &str) -> Option<&'a Node> {
        self.node.get(key).filter(|node| !node.is_null())
    }

    /// A text; an empty one is none.
    fn text(&self, key: &str) -> Outcome<Option<String>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let text =
            node.as_str().ok_or_else(|| self.wrong(key, FieldError::Type("text (in quotes)")))?;
        Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
    }

    fn truth(&self, key: &str) -> Outcome<bool> {
        match self.get(key).map(|node| &node.value) {
            None => Ok(false),
            Some(Value::Bool(truth)) => Ok(*truth),
            Some(_) => Err(self.wrong(key, FieldError::Type("true or false"))),
        }
    }

    fn map(&self, key: &str) -> Outcome<Option<Field<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(node) if matches!(node.value, Value::Map(_)) => {
                Ok(Some(Field::new(node, self.name(key))))
            }
            Some(_) => Err(self.wrong(key, FieldError::Type("a mapping"))),
        }
    }

    fn list(&self, key: &str) -> Outcome<Vec<Field<'a>>> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(node) if matches!(node.value, Value::List(_)) => {
                let item = |(index, node)| Field::new(node, format!("{}[{index}]", self.name(key)));
                Ok(node.items().iter().enumerate().map(item).collect())
            }
            Some(_) => Err(self.wrong(key, FieldError::Type("a list"))),
        }
    }

    fn texts(&self, key: &str) -> Outcome<Vec<String>> {
        let wrong = || self.wrong(key, FieldError::Type("a list of texts"));
        let text = |item: Field<'_>| item.node.as_str().map(str::to_owned).ok_or_else(wrong);
        self.list(key)?.into_iter().map(text).collect()
    }

    /// The mapping under `kind` in the item of a list that has this name.
    fn named(&self, list: &str, name: &str, kind: &str) -> Outcome<Option<Field<'a>>> {
        for item in self.list(list)? {
            if item.text("name")?.as_deref() == Some(name) {
                let found = Field::new(item.node, format!("{list}[{name}]"));
                return found.map(kind);
            }
        }
        Ok(None)
    }

    /// PEM text: `KEY-data` in base64, or the file that `KEY` names.
    fn content(&self, key: &str, directory: &Path) -> Outcome<Option<Named>> {
        let data = format!("{key}-data");
        if let Some(text) = self.text(&data)? {
            let pem = decode_base64(&text).map_err(|error| self.wrong(&data, error.into()))?;
            return Ok(Some(Named {
                field: self.name(&data),
                content: Content::Inline(Inline(pem)),
            }));
        }
        let file =
            |path| Named { field: self.name(key), content: Content::File(directory.join(path)) };
        Ok(self.text(key)?.map(file))
    }

    /// What a cluster has for exec plugins.
    fn plugin_config(&self) -> Option<serde_json::Value> {
        let extensions = self.get("extensions")?.items();
        let name = Some("client.authentication.k8s.io/exec");
        let found = extensions.iter().find(|e| e.get("name").and_then(Node::as_str) == name)?;
        Some(found.get("extension")?.to_json())
    }
}
