//! The kubeconfig and what it names, read again when they change.
//!
//! ```text
//!   files ──changed, SIGHUP, each minute─► read ──┬── good, other than before ─► plugin, if any ─► Link (new clients)
//!                                                 ├── a plugin's are rejected (401), or expire ─► plugin ─► the header, or Link
//!                                                 ├── another token, no more ──► the header of the clients there are
//!                                                 ├── the same ────────────────► nothing
//!                                                 └── bad ─────────────────────► why; what was good before is used on
//! ```
//!
//! A kubeconfig that is missing, half-written or wrong is no reason to end: the agent runs its
//! pods, publishes what is wrong, and reads the files again when they change. Files are read on a
//! thread of [`CREDENTIALS`], one reading at a time: one that hangs on a dead file system delays
//! nothing but the next reading. A plugin is a child of this task and is killed with it.

use super::{
    client::{Clients, Connector},
    credentials::{self, Authorization, Credentials, CredentialsReading},
    plugin::{self, Issued},
};
use crate::{
    blocking::CREDENTIALS, clock, model::Order as _, names::HostNames,
    publish::PublishIfChanged as _,
};
use http::HeaderValue;
use inotify::{Inotify, WatchMask};
use rustls_pki_types::CertificateDer;
use std::{
    fs,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long after a change files are left to settle.
const SETTLE: Duration = Duration::from_millis(200);
/// Between two readings when nothing tells of a change.
const RESYNC: Duration = Duration::from_secs(60);
/// Between two runs of a plugin.
const PLUGIN_PAUSE: Duration = Duration::from_secs(10);
/// A plugin runs again this long before its credentials expire.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);
/// A reading or a plugin that takes longer is published as trouble until it ends.
const LATE: Duration = Duration::from_secs(3);

/// The clients of the API server, made from the last valid kubeconfig; `None` until there is one.
/// When it changes, all users start again with the new clients.
pub type Link = Option<Arc<Clients>>;

/// The task behind [`Link`].
#[derive(Debug)]
pub struct Connections {
    kubeconfig: PathBuf,
    /// A certificate that stands for the kubeconfig's own.
    rotated: Option<PathBuf>,
    user_agent: String,
    published: watch::Sender<Link>,
    trouble: watch::Sender<Option<String>>,
    in_use: Option<InUse>,
    /// Kept when the credentials change.
    names: HostNames,
}

/// What the published clients are made from.
#[derive(Debug)]
struct InUse {
    digest: [u8; 32],
    authorization: watch::Sender<Option<HeaderValue>>,
    /// The certificates that a plugin gave.
    certificates: Vec<CertificateDer<'static>>,
    /// When what a plugin gave expires.
    expires: Option<jiff::Timestamp>,
    /// Told when the API server rejects what a plugin gave.
    rejected: Option<Arc<Notify>>,
}

/// The task, and what it publishes: the way, and why the present files can't be used. A certificate
/// with its key in the file `rotated` stands for the kubeconfig's own as long as it is valid.
#[must_use]
pub fn link_channel(
    kubeconfig: PathBuf,
    rotated: Option<PathBuf>,
    version: &str,
) -> (Connections, watch::Receiver<Link>, watch::Receiver<Option<String>>) {
    let (published, link) = watch::channel(Link::default());
    let (trouble, troubles) = watch::channel(None);
    let user_agent = format!("nodelet/{version} (linux/{})", std::env::consts::ARCH);
    let names = HostNames::of_api_server();
    let connections =
        Connections { kubeconfig, rotated, user_agent, published, trouble, in_use: None, names };
    (connections, link, troubles)
}

impl Connections {
    /// Reads and publishes until `shutdown`; reads again whenever `reload` changes.
    pub async fn run(self, reload: watch::Receiver<u64>, shutdown: CancellationToken) {
        // Cancel-safe: a plugin that is dropped is killed, and nothing else has to be finished.
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.work(reload) => {}
        }
    }

    async fn work(mut self, mut reload: watch::Receiver<u64>) {
        let named = (self.kubeconfig.clone(), self.rotated.clone());
        let mut files = vec![self.kubeconfig.clone()];
        loop {
            let late = || {
                format!(
                    "{}: no answer from the file system of it or of a file that it names",
                    self.shown()
                )
            };
            let (hints, reading) = self.unless_late(late, look(&named, &files)).await;
            if files != reading.files {
                // Watched before they are read: a change in between is seen.
                files = reading.files;
                continue;
            }
            let (digest, begun) = (reading.digest(), Instant::now());
            let mut change = pin!(changed(hints));
            let pause = {
                let mut taking = pin!(self.take_up(reading));
                loop {
                    // Cancel-safe: both are pinned outside. A plugin that runs is killed only when
                    // the files differ: it may itself write in their directories.
                    tokio::select! {
                        pause = &mut taking => break Some(pause),
                        () = &mut change => tokio::time::sleep(SETTLE).await,
                        () = asked(&mut reload) => {}
                    }
                    let (hints, again) = look(&named, &files).await;
                    if again.digest() != digest {
                        break None;
                    }
                    change.set(changed(hints));
                }
            };
            let Some(pause) = pause else { continue };
            // Cancel-safe: every arm only waits.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = &mut change => tokio::time::sleep(SETTLE).await,
                () = asked(&mut reload) => {}
                () = self.rejected(begun) => {}
            }
        }
    }

    /// Waits until the API server rejects what a plugin gave: it has expired, or was revoked. The
    /// plugin runs again then, [`PLUGIN_PAUSE`] after the last reading `begun` at the earliest.
    async fn rejected(&mut self, begun: Instant) {
        match &mut self.in_use {
            Some(InUse { rejected: Some(rejected), expires, .. }) => {
                rejected.notified().await;
                tokio::time::sleep_until(begun + PLUGIN_PAUSE).await;
                *expires = Some(clock::now().wall);
            }
            Some(InUse { rejected: None, .. }) | None => std::future::pending().await,
        }
    }

    /// Publishes what was read, where it differs. The time until the next reading.
    async fn take_up(&mut self, reading: CredentialsReading) -> Duration {
        match reading.outcome {
            Err(why) => {
                self.tell(Some(format!("{}: {why}", self.shown())));
                RESYNC
            }
            Ok(credentials) => match self.authorize(credentials).await {
                Ok(()) => self.pause(),
                Err((why, pause)) => {
                    self.tell(Some(format!("{}: {why}", self.shown())));
                    pause
                }
            },
        }
    }

    /// Publishes new credentials, after a plugin has made them complete.
    async fn authorize(&mut self, mut credentials: Credentials) -> Result<(), (String, Duration)> {
        let now = clock::now().wall;
        let in_use = self.in_use.as_ref().filter(|in_use| in_use.digest == credentials.digest);
        let issued = match &credentials.authorization {
            Authorization::Header(header) => {
                if let Some(in_use) = in_use {
                    in_use.authorization.publish_if_changed(header.clone());
                    self.tell(None);
                    return Ok(());
                }
                Issued { header: header.clone(), identity: None, expires: None }
            }
            Authorization::Plugin(plugin, cluster) => {
                if in_use.is_some_and(|in_use| !is_over(in_use.expires, now)) {
                    self.tell(None);
                    return Ok(());
                }
                let late =
                    || format!("{}: {}: the plugin has not ended yet", self.shown(), plugin.field);
                let run = plugin::run(plugin, cluster.clone());
                let issued = self.unless_late(late, run).await;
                issued.map_err(|why| (format!("{}: {why}", plugin.field), PLUGIN_PAUSE))?
            }
        };
        let certificates: Vec<CertificateDer<'static>> =
            issued.identity.iter().flat_map(|identity| identity.certificates.clone()).collect();
        if let Some(in_use) = &mut self.in_use
            && in_use.digest == credentials.digest
            && in_use.certificates == certificates
        {
            // Another token for the same connections, or all the same once more.
            in_use.authorization.publish_if_changed(issued.header);
            in_use.expires = issued.expires;
            self.tell(None);
            return Ok(());
        }
        if issued.identity.is_some() {
            credentials.identity = issued.identity;
        }
        let digest = credentials.digest;
        let is_plugin = matches!(credentials.authorization, Authorization::Plugin(..));
        let (user_agent, names) = (self.user_agent.clone(), self.names.clone());
        // The system's certificates are read where the kubeconfig names none.
        let connector = move || Connector::new(credentials, &user_agent, names);
        let prepared = CREDENTIALS.run(connector).await;
        let connector = match prepared {
            Ok(connector) => connector.map_err(|error| (error.to_string(), RESYNC))?,
            Err(crashed) => return Err((crashed.to_string(), RESYNC)),
        };
        let (authorization, shown) = watch::channel(issued.header);
        let clients = Clients::new(&connector, &shown);
        tracing::info!(server = %clients.server, "using new credentials for the API server");
        self.published.send_replace(Some(Arc::new(clients)));
        let rejected = is_plugin.then(|| connector.rejected());
        let expires = issued.expires;
        self.in_use = Some(InUse { digest, authorization, certificates, expires, rejected });
        self.tell(None);
        Ok(())
    }

    /// Until the files are read again: sooner where the credentials of a plugin expire.
    fn pause(&self) -> Duration {
        let Some(expires) = self.in_use.as_ref().and_then(|in_use| in_use.expires) else {
            return RESYNC;
        };
        let left = expires.duration_since(clock::now().wall).unsigned_abs();
        if is_over(Some(expires), clock::now().wall) {
            return PLUGIN_PAUSE;
        }
        left.saturating_sub(EXPIRY_MARGIN).clamp(PLUGIN_PAUSE, RESYNC)
    }

    /// Waits for `work`, however long it takes, and publishes `what` once that is long.
    async fn unless_late<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        match timeout(LATE, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                self.tell(Some(what()));
                work.await
            }
        }
    }

    fn shown(&self) -> std::path::Display<'_> {
        self.kubeconfig.display()
    }

    /// Publishes what is wrong where that is something new.
    fn tell(&self, trouble: Option<String>) {
        let changed = self.trouble.publish_if_changed(trouble.clone());
        if let Some(why) = trouble.filter(|_| changed) {
            tracing::warn!("{why}");
        }
    }
}

/// Watches the directories of `files`, then reads the kubeconfig and what it names. `named` is the
/// kubeconfig and the certificate that may stand for its own.
async fn look(
    named: &(PathBuf, Option<PathBuf>),
    files: &[PathBuf],
) -> (Option<AsyncFd<Inotify>>, CredentialsReading) {
    let ((path, rotated), known) = (named.clone(), files.to_owned());
    let job = CREDENTIALS.run(move || {
        let hints = watched(&directories(known.iter().map(PathBuf::as_path)));
        (hints, credentials::read(&path, rotated.as_deref()))
    });
    match job.await {
        Ok((hints, reading)) => (hints.and_then(asynchronous), reading),
        Err(crashed) => (None, CredentialsReading::crashed(files.to_owned(), crashed)),
    }
}

/// Whether credentials have expired, or are about to.
fn is_over(expires: Option<jiff::Timestamp>, now: jiff::Timestamp) -> bool {
    let margin = jiff::SignedDuration::try_from(EXPIRY_MARGIN).unwrap_or_default();
    expires.is_some_and(|expires| expires.duration_since(now) <= margin)
}

/// The directories of files and of what they link to (a rotated certificate is a link that is
/// replaced). For a directory that is not there yet, the nearest one above it.
fn directories<'a>(files: impl IntoIterator<Item = &'a Path>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for file in files {
        let target = fs::canonicalize(file).ok();
        let both = [
            file.ancestors().skip(1).find(|above| above.is_dir()).map(Path::to_owned),
            target.and_then(|t| t.parent().map(Path::to_owned)),
        ];
        found.extend(both.into_iter().flatten());
    }
    found.order();
    found.dedup();
    found
}

/// inotify over directories; `None` where the kernel gives none, and the clock has to do.
fn watched(directories: &[PathBuf]) -> Option<Inotify> {
    let inotify = Inotify::init().inspect_err(no_hints).ok()?;
    let what = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::DELETE;
    for directory in directories {
        if let Err(error) = inotify.watches().add(directory, what) {
            tracing::debug!(err = %error, "cannot watch {}", directory.display());
        }
    }
    Some(inotify)
}

fn asynchronous(inotify: Inotify) -> Option<AsyncFd<Inotify>> {
    #[expect(
        deprecated,
        reason = "its successor is an unsafe function; Inotify owns its descriptor"
    )]
    AsyncFd::new(inotify).inspect_err(no_hints).ok()
}

fn no_hints(error: &std::io::Error) {
    tracing::warn!(err = %error, "inotify: credentials are read periodically");
}

/// Returns when credentials must be read again; never returns when the sender is gone.
pub(super) async fn asked(reload: &mut watch::Receiver<u64>) {
    if reload.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Writes a kubeconfig whose plugin gives the credential in `dir` and counts its runs there.
    fn write_with_plugin(kubeconfig: &Path, dir: &Path) {
        let script = format!("echo run >> {0}/runs; cat {0}/credential", dir.display());
        let text = format!(
            "current-context: a\n\
             clusters: [{{name: c, cluster: {{server: \"https://10.0.0.1\", insecure-skip-tls-verify: true}}}}]\n\
             contexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, \
             interactiveMode: Never, command: sh, args: [-c, {script:?}]}}}}}}]\n"
        );
        fs::write(kubeconfig, text).unwrap();
    }

    /// Puts a new credential, which expires soon, into `dir`.
    fn issue(dir: &Path) {
        let issued = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
        let expires = clock::now().wall + jiff::SignedDuration::from_secs(30);
        let credential = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {
                "clientCertificateData": issued.cert.pem(),
                "clientKeyData": issued.signing_key.serialize_pem(),
                "expirationTimestamp": expires.to_string(),
            },
        });
        fs::write(dir.join("credential"), credential.to_string()).unwrap();
    }

    #[tokio::test]
    async fn connections_stay_while_a_plugin_gives_the_same_certificate() {
        let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        issue(place.path());
        let kubeconfig = dir.path().join("kubeconfig");
        write_with_plugin(&kubeconfig, place.path());
        let (connections, mut link, _) = link_channel(kubeconfig, None, "1");
        let (reload, reloads) = watch::channel(0);
        let runs = || fs::read_to_string(place.path().join("runs")).unwrap().lines().count();
        let used = async {
            link.wait_for(Option::is_some).await.unwrap();
            let first = runs();
            while runs() < first + 2 {
                reload.send_modify(|count| *count += 1);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // The second run has begun after the first one was taken up.
            assert!(!link.has_changed().unwrap(), "the same certificate once more");
            issue(place.path());
            while !link.has_changed().unwrap() {
                reload.send_modify(|count| *count += 1);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = connections.run(reloads, CancellationToken::new()) => panic!("it has ended"),
            used = timeout(Duration::from_secs(60), used) => used.unwrap(),
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_awaited_above() {
        let dir = tempfile::tempdir().unwrap();
        let (above, below) = (dir.path().canonicalize().unwrap(), dir.path().join("a/b"));
        let file = above.join("a/b/kubeconfig");
        assert_eq!(directories([file.as_path()]), std::slice::from_ref(&above));
        fs::create_dir_all(&below).unwrap();
        assert_eq!(directories([file.as_path()]), [above.join("a/b")]);
        fs::write(above.join("target"), "").unwrap();
        std::os::unix::fs::symlink(above.join("target"), &file).unwrap();
        assert_eq!(directories([file.as_path()]), [above.clone(), above.join("a/b")]);
    }
}
