//! The node's certificates: that of the client, requested when the node joins, and that of the HTTPS
//! API. Both are renewed before they expire.
//!
//! ```text
//!  none that can be used     ─► bootstrap kubeconfig ─► obtain ─► files ─► kubeconfig
//!  70 to 90 % of its time    ─► the agent's own link ─► obtain ─► files
//!  other addresses, or none  ─► the agent's own link ─► obtain ─► files   (HTTPS API)
//! ```
//!
//! Files take effect by being there: [`super::connection`] and the HTTPS API look at them. No pod
//! waits for any of this.

mod obtain;
mod request;
mod store;

use super::{Link, Trouble, WatchCache, connection, credentials};
use crate::{
    blocking::CREDENTIALS,
    clock,
    metrics::metrics,
    model::{CollectOrdered as _, k8s},
};
use obtain::{Missed, Obtainer};
use prometheus::IntCounter;
use request::Purpose;
use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use store::{Standing, Store, StoreError};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

/// Between two looks at the files. A renewal is due by wall time, which may be set.
const RESYNC: Duration = Duration::from_secs(60);
/// A try that takes longer looks at the files again: a person may have changed them.
const TRY: Duration = Duration::from_secs(15 * 60);
/// Between two tries that the API server has refused.
const AGAIN: Duration = Duration::from_secs(30);
/// Before a new request when one was denied.
const AFTER_DENIAL: Duration = Duration::from_secs(300);

/// Where the client certificate is kept, and how it is obtained.
#[derive(Clone, Debug)]
pub struct IdentitySettings {
    /// `--kubeconfig`
    pub kubeconfig: PathBuf,
    /// `--bootstrap-kubeconfig`
    pub bootstrap: Option<PathBuf>,
    /// `rotateCertificates`
    pub rotate: bool,
    /// `--cert-dir`
    pub directory: PathBuf,
    /// Whom the certificate is for.
    pub node_name: String,
    /// The agent's version.
    pub version: &'static str,
}

impl IdentitySettings {
    /// The certificate that stands for the kubeconfig's own, where certificates are renewed.
    #[must_use]
    pub fn rotated(&self) -> Option<PathBuf> {
        self.rotate.then(|| Store::client(&self.directory).current())
    }
}

/// The certificate of the HTTPS API that was requested last, with its key, in this directory.
#[must_use]
pub fn serving_certificate(directory: &Path) -> PathBuf {
    Store::serving(directory).current()
}

/// Looks after one certificate.
#[derive(Debug)]
pub struct IdentityTask {
    role: Role,
    obtainer: Obtainer,
}

#[derive(Debug)]
enum Role {
    Client(IdentitySettings),
    /// The HTTPS API at the addresses of this Node.
    Serving(OwnNode),
}

/// What became of a look at a certificate.
enum CertificateLook {
    Obtained,
    /// The one in use is good for now.
    InUse,
    /// It is not known yet what is to be obtained, or there is no way to obtain it.
    Unknown,
}

/// Our Node, as the server has it.
type OwnNode = watch::Receiver<Arc<WatchCache<k8s::Node>>>;

impl Role {
    /// Counts the certificates that could not be obtained.
    fn renew_errors(&self) -> &'static IntCounter {
        match self {
            Self::Client(_) => &metrics().client_renew_errors,
            Self::Serving(_) => &metrics().server_renew_errors,
        }
    }
}

impl IdentityTask {
    /// The task for the client certificate, and what that waits for. `None` where the certificate is
    /// somebody else's business.
    #[must_use]
    pub fn client(
        settings: IdentitySettings,
        link: watch::Receiver<Link>,
    ) -> Option<(Self, watch::Receiver<Option<Trouble>>)> {
        if settings.bootstrap.is_none() && !settings.rotate {
            return None;
        }
        let store = Store::client(&settings.directory);
        let (obtainer, trouble) = Obtainer::new(store, settings.node_name.clone(), link);
        Some((Self { role: Role::Client(settings), obtainer }, trouble))
    }

    /// The task for the certificate of the HTTPS API (`serverTLSBootstrap`), and what that waits for.
    #[must_use]
    pub fn serving(
        directory: &Path,
        node_name: String,
        node: watch::Receiver<Arc<WatchCache<k8s::Node>>>,
        link: watch::Receiver<Link>,
    ) -> (Self, watch::Receiver<Option<Trouble>>) {
        let (obtainer, trouble) = Obtainer::new(Store::serving(directory), node_name, link);
        (Self { role: Role::Serving(node), obtainer }, trouble)
    }

    /// Looks after the certificate until `shutdown`.
    pub async fn run(self, reload: watch::Receiver<u64>, shutdown: CancellationToken) {
        // Cancel-safe: what is on the disk is whole at any moment.
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.work(reload) => {}
        }
    }

    async fn work(&self, mut reload: watch::Receiver<u64>) {
        let mut node = match &self.role {
            Role::Client(_) => None,
            Role::Serving(node) => Some(node.clone()),
        };
        loop {
            // Cancel-safe: a try that is dropped goes on with the same key, and so the same request.
            let outcome = tokio::select! {
                outcome = self.look() => outcome,
                () = pause(TRY, &mut reload, node.as_mut()) => continue,
            };
            let next = match outcome {
                Ok(next) => {
                    self.obtainer.tell_nothing();
                    next
                }
                Err(missed) => {
                    self.role.renew_errors().inc();
                    self.obtainer.tell_missed(missed)
                }
            };
            pause(next, &mut reload, node.as_mut()).await;
        }
    }

    /// Looks what there is, and obtains what is missing. How long to wait for the next look.
    async fn look(&self) -> Result<Duration, Missed> {
        let looked = match &self.role {
            Role::Client(settings) => self.look_at_client(settings).await?,
            Role::Serving(node) => {
                let addresses = addresses(node);
                self.look_at_server(addresses).await?
            }
        };
        // Whatever was to be obtained is in use. Otherwise an earlier run of the agent may have sent
        // a request that waits for its approval.
        if let CertificateLook::Obtained | CertificateLook::InUse = looked {
            self.obtainer.forget_key().await;
        }
        Ok(match looked {
            // An authority that signs for a very short time is not asked without a pause.
            CertificateLook::Obtained => AGAIN,
            CertificateLook::InUse | CertificateLook::Unknown => RESYNC,
        })
    }

    async fn look_at_client(&self, settings: &IdentitySettings) -> Result<CertificateLook, Missed> {
        let (kubeconfig, rotated) = (settings.kubeconfig.clone(), settings.rotated());
        let bootstrap = settings.bootstrap.clone();
        let look = CREDENTIALS.run(move || {
            let standing = store::standing(&kubeconfig, rotated.as_deref());
            (standing, bootstrap.is_some_and(|file| file.exists()))
        });
        let (standing, can_join) = look.await.unwrap_or((Standing::Other, false));
        let now = clock::now().wall;
        match (standing, &settings.bootstrap) {
            (Standing::Absent, Some(bootstrap)) => self.join(settings, bootstrap.clone()).await?,
            (Standing::Damaged, Some(bootstrap)) if can_join => {
                self.join(settings, bootstrap.clone()).await?;
            }
            (Standing::Certificate(lifetime), Some(bootstrap))
                if lifetime.is_over(now) && can_join =>
            {
                self.join(settings, bootstrap.clone()).await?;
            }
            (Standing::Certificate(lifetime), _)
                if settings.rotate && now.as_second() >= lifetime.renewal() =>
            {
                tracing::info!("the client certificate is to be renewed");
                self.obtainer.obtain(self.obtainer.link.clone(), Purpose::Client).await?;
            }
            (Standing::Certificate(_), _) => return Ok(CertificateLook::InUse),
            (Standing::Absent | Standing::Damaged | Standing::Other, _) => {
                return Ok(CertificateLook::Unknown);
            }
        }
        Ok(CertificateLook::Obtained)
    }

    async fn look_at_server(&self, addresses: BTreeSet<String>) -> Result<CertificateLook, Missed> {
        if !addresses.iter().any(|address| address.parse::<IpAddr>().is_ok()) {
            return Ok(CertificateLook::Unknown);
        }
        let store = self.obtainer.store.clone();
        let in_use = CREDENTIALS.run(move || store.in_use()).await.unwrap_or(None);
        let now = clock::now().wall.as_second();
        // The signer may add names, and writes an address in its own way.
        let has_all = |of: BTreeSet<String>| canonical(&of).is_superset(&canonical(&addresses));
        if in_use.is_some_and(|(lifetime, of)| now < lifetime.renewal() && has_all(of)) {
            return Ok(CertificateLook::InUse);
        }
        self.obtainer.obtain(self.obtainer.link.clone(), Purpose::Serving(addresses)).await?;
        tracing::info!("the HTTPS API has a new certificate");
        Ok(CertificateLook::Obtained)
    }

    /// Obtains the first certificate with the bootstrap kubeconfig, and writes the kubeconfig. One
    /// that a person has written meanwhile stays.
    async fn join(&self, settings: &IdentitySettings, bootstrap: PathBuf) -> Result<(), Missed> {
        tracing::info!(bootstrap = %bootstrap.display(), "requesting a client certificate for the node");
        let (connections, link, troubles) =
            connection::link_channel(bootstrap.clone(), None, settings.version);
        let kubeconfig = settings.kubeconfig.clone();
        let before = CREDENTIALS.run(move || store::text_of(&kubeconfig));
        let before = before.await.map_err(|_| Missed::Crashed)?;
        let (_reload, never) = watch::channel(0);
        // Cancel-safe: see `obtain`. The other two do not end before it.
        tokio::select! {
            outcome = self.obtainer.obtain(link, Purpose::Client) => outcome?,
            () = Box::pin(connections.run(never, CancellationToken::new())) => return Err(Missed::Crashed),
            () = self.obtainer.tell_all(troubles) => return Err(Missed::Crashed),
        }
        let (kubeconfig, current) = (settings.kubeconfig.clone(), self.obtainer.store.current());
        let written = CREDENTIALS.run(move || {
            let now = store::text_of(&kubeconfig);
            if now.is_some() && now != before {
                return Ok(false);
            }
            let cluster = match credentials::cluster(&bootstrap) {
                Ok(cluster) => cluster,
                Err(error) => {
                    let error = std::io::Error::other(error.to_string());
                    return Err(StoreError::File(bootstrap, error));
                }
            };
            store::write_kubeconfig(&kubeconfig, &current, &cluster).map(|()| true)
        });
        let kubeconfig = settings.kubeconfig.display();
        match written.await.map_err(|_| Missed::Crashed)?.map_err(Missed::Store)? {
            true => tracing::info!(%kubeconfig, "the node has its client certificate"),
            false => {
                tracing::info!(%kubeconfig, "the kubeconfig was changed meanwhile, and is kept");
            }
        }
        Ok(())
    }
}

/// The addresses of our Node in the API, by which clients reach it: names and IP addresses. None
/// while it is not registered.
fn addresses(node: &OwnNode) -> BTreeSet<String> {
    let cache = node.borrow();
    let statuses = cache.objects.values().filter_map(|node| node.status.as_ref());
    let addresses = statuses.filter_map(|status| status.addresses.as_ref()).flatten();
    addresses.map(|one| one.address.clone()).collect_ordered()
}

/// Waits, or until a person asks for another look or the addresses change.
async fn pause(time: Duration, reload: &mut watch::Receiver<u64>, node: Option<&mut OwnNode>) {
    let changed = async {
        if let Some(node) = node {
            let before = addresses(node);
            while node.changed().await.is_ok() {
                if addresses(node) != before {
                    return;
                }
            }
        }
        // There are none, or the agent ends.
        std::future::pending::<()>().await;
    };
    // Cancel-safe: every arm only waits.
    tokio::select! {
        () = sleep(time) => {}
        () = connection::asked(reload) => {}
        () = changed => {}
    }
}

/// Names and addresses, an address in the one way in which Rust writes it.
fn canonical(names: &BTreeSet<String>) -> BTreeSet<String> {
    let address = |name: &String| Some(name.parse::<IpAddr>().ok()?.to_canonical().to_string());
    names.iter().map(|name| address(name).unwrap_or_else(|| name.clone())).collect_ordered()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::json;

    #[test]
    fn the_two_certificates_have_their_own_error_counters() {
        let serving = Role::Serving(watch::channel(Arc::default()).1);
        let client = Role::Client(settings(Path::new("")));
        let metrics = metrics();
        assert!(std::ptr::eq(client.renew_errors(), &metrics.client_renew_errors));
        assert!(std::ptr::eq(serving.renew_errors(), &metrics.server_renew_errors));
    }

    fn settings(directory: &Path) -> IdentitySettings {
        IdentitySettings {
            kubeconfig: directory.join("kubeconfig"),
            bootstrap: None,
            rotate: true,
            directory: directory.to_owned(),
            node_name: String::new(),
            version: "",
        }
    }

    /// The Node with this address.
    fn node(address: &str) -> Arc<WatchCache<k8s::Node>> {
        let node = json!({"metadata": {"name": "n1"}, "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
        }});
        let node = Arc::new(serde_json::from_value(node).unwrap());
        let objects = [("n1".to_owned(), node)].into();
        Arc::new(WatchCache { objects, whole: true, live: true, ..WatchCache::default() })
    }

    #[tokio::test]
    async fn a_pending_request_outlives_a_restart_of_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let (shown, watched) = watch::channel(Arc::default());
        let link = watch::channel(None).1;
        let (task, _trouble) =
            IdentityTask::serving(dir.path(), "n1".to_owned(), watched, link.clone());
        let store = Store::serving(dir.path());
        let key = || store.pending_key().unwrap().serialize_pem();
        let pending = key();
        assert!(task.look().await.is_ok());
        assert_eq!(key(), pending, "the Node is not known yet");
        shown.send_replace(node("10.0.0.1"));
        let made = rcgen::generate_simple_self_signed(["10.0.0.1".to_owned()]).unwrap();
        store.put(made.cert.pem().as_bytes(), &made.signing_key.serialize_pem()).unwrap();
        assert!(task.look().await.is_ok());
        assert_ne!(key(), pending, "the certificate in use is good");

        let settings = settings(dir.path());
        let store = Store::client(dir.path());
        let key = || store.pending_key().unwrap().serialize_pem();
        let pending = key();
        std::fs::write(&settings.kubeconfig, "half a file").unwrap();
        let (task, _trouble) = IdentityTask::client(settings, link).unwrap();
        assert!(task.look().await.is_ok());
        assert_eq!(key(), pending, "the kubeconfig is not whole yet");
    }
}
