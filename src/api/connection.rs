//! The kubeconfig and what it names, read again when they change.
//!
//! ```text
//!   files ──changed, or every minute──► read ──┬── good, other than before ─► Link (new clients; old connections end)
//!                                              ├── the same ────────────────► nothing
//!                                              └── bad ─────────────────────► why; what was good before is used on
//! ```
//!
//! A kubeconfig that is missing, half-written or wrong is no reason to end: the agent runs its pods and says what is wrong, and
//! takes the file up when it is right.

use super::client::Clients;
use inotify::{Inotify, WatchMask};
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{io::unix::AsyncFd, sync::watch};
use tokio_util::sync::CancellationToken;

/// How long after a change files are left to settle.
const SETTLE: Duration = Duration::from_millis(200);
/// Between two readings when nothing tells of a change.
const RESYNC: Duration = Duration::from_secs(60);

/// The way to the API server: the clients of the last kubeconfig that was good; `None` while there was none. Changes when they are
/// others, and whoever uses them begins anew then.
pub type Link = Option<Arc<Clients>>;

/// The task behind [`Link`].
#[derive(Debug)]
pub struct Connections {
    kubeconfig: PathBuf,
    user_agent: String,
    published: watch::Sender<Link>,
    trouble: watch::Sender<Option<String>>,
}

/// The task, and what it publishes: the way, and why the present files can't be used.
#[must_use]
pub fn link_channel(
    kubeconfig: PathBuf,
    version: &str,
) -> (Connections, watch::Receiver<Link>, watch::Receiver<Option<String>>) {
    let (published, link) = watch::channel(Link::default());
    let (trouble, troubles) = watch::channel(None);
    let user_agent = format!("nodelet/{version} (linux/{})", std::env::consts::ARCH);
    (Connections { kubeconfig, user_agent, published, trouble }, link, troubles)
}

/// What was read.
struct Read {
    config: Config,
    digest: [u8; 32],
    files: Vec<PathBuf>,
}

impl Connections {
    /// Reads and publishes until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut last: Option<[u8; 32]> = None;
        let mut files = vec![self.kubeconfig.clone()];
        loop {
            // Armed before the files are read: a change in between is seen.
            let hints = watched(&directories(files.iter().map(PathBuf::as_path)));
            match self.read().await {
                Ok(read) => {
                    if last == Some(read.digest) {
                        self.tell(None);
                    } else if self.take_up(&read.config) {
                        last = Some(read.digest);
                    }
                    if files != read.files {
                        files = read.files;
                        continue;
                    }
                }
                Err(why) => self.tell(Some(why)),
            }
            // Cancel-safe: every arm only waits.
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(RESYNC) => {}
                () = changed(hints) => tokio::time::sleep(SETTLE).await,
            }
        }
    }

    /// Whether they can be used.
    fn take_up(&self, config: &Config) -> bool {
        match Clients::new(config) {
            Ok(clients) => {
                tracing::info!(server = %clients.server, "credentials for the API server are taken up");
                self.published.send_replace(Some(Arc::new(clients)));
                self.tell(None);
                true
            }
            Err(error) => {
                self.tell(Some(format!("{}: {error}", self.kubeconfig.display())));
                false
            }
        }
    }

    /// Publishes what is wrong where that is something new.
    fn tell(&self, trouble: Option<String>) {
        self.trouble.send_if_modified(|published| {
            let changed = *published != trouble;
            if changed {
                if let Some(why) = &trouble {
                    tracing::warn!("{why}");
                }
                *published = trouble;
            }
            changed
        });
    }

    async fn read(&self) -> Result<Read, String> {
        let path = &self.kubeconfig;
        let told = |error: &dyn std::error::Error| format!("{}: {error}", path.display());
        let text = fs::read(path).map_err(|error| {
            format!("{}: the kubeconfig can't be read: {error}", path.display())
        })?;
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| told(&error))?;
        let files: Vec<PathBuf> = files_of(&kubeconfig).collect();
        if let Some(name) = proxied(&kubeconfig) {
            return Err(format!(
                "{}: clusters[{name}].cluster.proxy-url is set, and this version has no proxies: remove it, and name in \
                 clusters[{name}].cluster.server what the node reaches by itself",
                path.display()
            ));
        }
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| told(&error))?;
        if config.cluster_url.scheme_str() != Some("https") {
            return Err(format!(
                "{}: clusters[].cluster.server is {:?}; expected a URL that begins with https://",
                path.display(),
                config.cluster_url.to_string()
            ));
        }
        config.proxy_url = None;
        config.default_retry = false;
        if let Ok(value) = http::HeaderValue::from_str(&self.user_agent) {
            config.headers.push((http::header::USER_AGENT, value));
        }
        let mut digest = Sha256::new_with_prefix(&text);
        for file in &files {
            // One that can't be read was found out above, or is a token that is read later.
            digest.update(fs::read(file).unwrap_or_default());
        }
        let all = std::iter::once(path.clone()).chain(files).collect();
        Ok(Read { config, digest: digest.finalize().into(), files: all })
    }
}

/// The cluster of the current context, if it is to be reached by a proxy.
fn proxied(kubeconfig: &Kubeconfig) -> Option<&str> {
    let current = kubeconfig.current_context.as_deref()?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == current)?;
    let name = context.context.as_ref()?.cluster.as_str();
    let named = kubeconfig.clusters.iter().find(|named| named.name == name)?;
    let url = named.cluster.as_ref()?.proxy_url.as_deref()?;
    (!url.is_empty()).then_some(name)
}

/// Certificates and keys that a kubeconfig names. Token files are not among them: they are read anew by themselves.
fn files_of(kubeconfig: &Kubeconfig) -> impl Iterator<Item = PathBuf> + '_ {
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let users = kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
    let authorities = clusters.filter_map(|cluster| cluster.certificate_authority.clone());
    let identities = users.flat_map(|user| {
        [user.client_certificate.clone(), user.client_key.clone()].into_iter().flatten()
    });
    authorities.chain(identities).map(PathBuf::from)
}

/// The directories of files and of what they link to (a rotated certificate is a link that is replaced).
fn directories<'a>(files: impl IntoIterator<Item = &'a Path>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for file in files {
        let target = fs::canonicalize(file).ok();
        let both = [
            file.parent().map(Path::to_owned),
            target.and_then(|t| t.parent().map(Path::to_owned)),
        ];
        found.extend(both.into_iter().flatten());
    }
    found.sort();
    found.dedup();
    found
}

/// inotify over directories; `None` where the kernel gives none, and the clock has to do.
fn watched(directories: &[PathBuf]) -> Option<AsyncFd<Inotify>> {
    let told = |error: &std::io::Error| {
        tracing::warn!(err = %error, "inotify: changes of credentials are seen by the clock");
    };
    let inotify = Inotify::init().inspect_err(told).ok()?;
    let what = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::DELETE;
    for directory in directories {
        if let Err(error) = inotify.watches().add(directory, what) {
            tracing::debug!(err = %error, "cannot watch {}", directory.display());
        }
    }
    #[expect(
        deprecated,
        reason = "its successor is an unsafe function; Inotify owns its descriptor"
    )]
    AsyncFd::new(inotify).inspect_err(told).ok()
}

/// Returns when something changed in one of the directories; never without inotify.
async fn changed(hints: Option<AsyncFd<Inotify>>) {
    match hints {
        None => std::future::pending().await,
        Some(hints) => {
            if let Err(error) = hints.readable().await {
                tracing::debug!(err = %error, "inotify broke");
                std::future::pending::<()>().await;
            }
        }
    }
}
