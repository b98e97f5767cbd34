//! The node's client certificate: requested when the node joins, and renewed before it expires.
//!
//! ```text
//!  no kubeconfig, or expired ─► bootstrap kubeconfig ─► key ─► request ─► approved, signed ─► files ─► kubeconfig
//!  70 to 90 % of its time    ─► the agent's own link ──┘          │
//!                                                                 └─ denied, failed ─► a new key, after a while
//! ```
//!
//! The key is on the disk before its request is sent, and the request's name follows from the key:
//! whatever an agent is killed between, the next one goes on with the same request. Files take
//! effect by being there: [`super::connection`] watches them. No pod waits for any of this.

mod lifetime;
mod request;
mod store;

pub(super) use lifetime::Lifetime;

use super::{
    Link, Pause, Trouble, Verb, call, connection, credentials,
    reflect::{Reflector, WatchCache},
};
use crate::{blocking::CREDENTIALS, clock, metrics::metrics};
use request::{Answer, COLLECTION, Seen, SigningRequest};
use std::{path::PathBuf, sync::Arc, time::Duration};
use store::{Standing, StoreError};
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

/// Where the node's identity is kept, and how it is obtained.
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
        self.rotate.then(|| store::current(&self.directory))
    }
}

/// Keeps the node's certificate.
#[derive(Debug)]
pub struct IdentityTask {
    /// Where it is kept, and how it is obtained.
    pub settings: IdentitySettings,
    /// The agent's own way to the API server.
    pub link: watch::Receiver<Link>,
    /// What the certificate waits for.
    pub published: watch::Sender<Option<Trouble>>,
}

/// Why a request came to nothing.
enum Missed {
    /// It was denied, or its signing has failed.
    Refused(String),
    /// A file can't be written.
    Store(StoreError),
    Crashed,
}

impl IdentityTask {
    /// Looks after the certificate until `shutdown`.
    pub async fn run(self, reload: watch::Receiver<u64>, shutdown: CancellationToken) {
        // Cancel-safe: what is on the disk is whole at any moment.
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.work(reload) => {}
        }
    }

    async fn work(&self, mut reload: watch::Receiver<u64>) {
        if self.settings.bootstrap.is_none() && !self.settings.rotate {
            // The certificate is somebody else's business.
            return std::future::pending().await;
        }
        loop {
            // Cancel-safe: a try that is dropped goes on with the same key, and so the same request.
            let outcome = tokio::select! {
                outcome = self.look() => outcome,
                () = until_reload(TRY, &mut reload) => continue,
            };
            let (what, pause) = match outcome {
                Ok(pause) => {
                    self.published.send_if_modified(|told| told.take().is_some());
                    until_reload(pause, &mut reload).await;
                    continue;
                }
                Err(Missed::Refused(why)) => {
                    (format!("the certificate signing request {why}"), AFTER_DENIAL)
                }
                Err(Missed::Store(error)) => (error.to_string(), AGAIN),
                Err(Missed::Crashed) => ("reading or writing it has crashed".to_owned(), AGAIN),
            };
            metrics().certificate_renew_errors.inc();
            self.tell(what);
            until_reload(pause, &mut reload).await;
        }
    }

    /// Looks what there is, and obtains what is missing. How long to wait for the next look.
    async fn look(&self) -> Result<Duration, Missed> {
        let (kubeconfig, rotated) = (self.settings.kubeconfig.clone(), self.settings.rotated());
        let look = CREDENTIALS.run(move || store::standing(&kubeconfig, rotated.as_deref()));
        let standing = look.await.unwrap_or(Standing::Other);
        let now = clock::now().wall;
        match (standing, &self.settings.bootstrap) {
            (Standing::Absent, Some(bootstrap)) => self.join(bootstrap.clone()).await?,
            (Standing::Certificate(lifetime), Some(bootstrap))
                if lifetime.is_over(now) && bootstrap.exists() =>
            {
                self.join(bootstrap.clone()).await?;
            }
            (Standing::Certificate(lifetime), _)
                if self.settings.rotate && now.as_second() >= lifetime.renewal() =>
            {
                tracing::info!("the client certificate is to be renewed");
                self.obtain(self.link.clone()).await?;
            }
            (Standing::Absent | Standing::Other, _) => return Ok(RESYNC),
            // Whatever was to be obtained is in use.
            (Standing::Certificate(_), _) => {
                self.forget_key().await;
                return Ok(RESYNC);
            }
        }
        self.forget_key().await;
        // An authority that signs for a very short time is not asked without a pause.
        Ok(AGAIN)
    }

    async fn forget_key(&self) {
        let directory = self.settings.directory.clone();
        _ = CREDENTIALS.run(move || store::forget_key(&directory)).await;
    }

    /// Obtains the first certificate with the bootstrap kubeconfig, and writes the kubeconfig.
    async fn join(&self, bootstrap: PathBuf) -> Result<(), Missed> {
        tracing::info!(bootstrap = %bootstrap.display(), "requesting a client certificate for the node");
        let (connections, link, troubles) =
            connection::link_channel(bootstrap.clone(), None, self.settings.version);
        let (_reload, never) = watch::channel(0);
        // Cancel-safe: see `obtain`. The other two do not end before it.
        tokio::select! {
            outcome = self.obtain(link) => outcome?,
            () = Box::pin(connections.run(never, CancellationToken::new())) => return Err(Missed::Crashed),
            () = self.tell_all(troubles) => return Err(Missed::Crashed),
        }
        let settings = self.settings.clone();
        let written = CREDENTIALS.run(move || {
            let cluster = match credentials::cluster(&bootstrap) {
                Ok(cluster) => cluster,
                Err(error) => {
                    let error = std::io::Error::other(error.to_string());
                    return Err(StoreError::File(bootstrap, error));
                }
            };
            store::write_kubeconfig(&settings.kubeconfig, &settings.directory, &cluster)
        });
        written.await.map_err(|_| Missed::Crashed)?.map_err(Missed::Store)?;
        tracing::info!(kubeconfig = %self.settings.kubeconfig.display(), "the node has its client certificate");
        Ok(())
    }

    /// Requests a certificate and takes it into use. Its key stays the pending one until everything
    /// that names the certificate is written, too: the same request gives it once more.
    async fn obtain(&self, link: watch::Receiver<Link>) -> Result<(), Missed> {
        let directory = self.settings.directory.clone();
        let key = CREDENTIALS.run(move || store::pending_key(&directory)).await;
        let key = key.map_err(|_| Missed::Crashed)?.map_err(Missed::Store)?;
        let request = SigningRequest::new(key, &self.settings.node_name);
        let own = format!("metadata.name={}", request.name);
        let (watch, seen) = Reflector::<Seen>::new(COLLECTION, own, link.clone());
        // Cancel-safe: the API server keeps the request. The watch ends only with the link, and then
        // nothing is followed either.
        let answer = tokio::select! {
            answer = self.follow(&request, seen, link) => answer,
            () = Box::pin(watch.run(CancellationToken::new())) => return Err(Missed::Crashed),
        };
        let (directory, key) = (self.settings.directory.clone(), request.key_pem());
        let stored = CREDENTIALS.run(move || match answer {
            Ok(certificates) => store::put(&directory, &certificates, &key).map_err(Missed::Store),
            Err(why) => {
                store::forget_key(&directory);
                Err(Missed::Refused(why))
            }
        });
        stored.await.map_err(|_| Missed::Crashed)?
    }

    /// Sends a request, unless the API server has it, and awaits its answer. An error is why there
    /// will be none.
    async fn follow(
        &self,
        request: &SigningRequest,
        mut seen: watch::Receiver<Arc<WatchCache<Seen>>>,
        link: watch::Receiver<Link>,
    ) -> Result<Vec<u8>, String> {
        let name = &request.name;
        let mut pause = Pause::default();
        loop {
            let cache = Arc::clone(&seen.borrow_and_update());
            let clients = link.borrow().clone();
            let mut again = AGAIN;
            if let Some(csr) = cache.objects.get(name) {
                match request.answer(csr) {
                    Answer::Issued(certificates) => return Ok(certificates),
                    Answer::Refused(why) => return Err(format!("{name} {why}")),
                    Answer::Wait { approved: false } => self.tell(format!(
                        "the certificate signing request {name} waits for approval (kubectl certificate approve {name})"
                    )),
                    Answer::Wait { approved: true } => self.tell(format!(
                        "the certificate signing request {name} is approved and not signed yet"
                    )),
                }
            } else if let Some(clients) = clients.filter(|_| cache.live) {
                let object = request.object().map_err(|error| format!("can't be made: {error}"))?;
                let sent = call::<Seen>(&clients.main, Verb::Create, COLLECTION, Some(&object));
                match sent.await {
                    Ok(_) => tracing::info!(name, "sent a certificate signing request"),
                    // The watch will show it.
                    Err(error) if error.code() == Some(409) => {}
                    Err(error) => {
                        self.tell(format!("a certificate signing request can't be sent: {error}"));
                        if error.may_pass() {
                            again = pause.after_failure();
                        }
                    }
                }
            } else if let Some(trouble) = &cache.trouble {
                self.tell(format!("certificate signing requests can't be watched: {trouble}"));
            }
            // Cancel-safe: both arms only wait.
            tokio::select! {
                changed = seen.changed() => if changed.is_err() {
                    return Err("is not followed any more".to_owned());
                },
                () = sleep(again) => {}
            }
        }
    }

    /// Publishes what is wrong with the bootstrap kubeconfig. Ends never, or with the connection.
    async fn tell_all(&self, mut troubles: watch::Receiver<Option<String>>) {
        loop {
            if let Some(trouble) = troubles.borrow_and_update().clone() {
                self.tell(trouble);
            }
            if troubles.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn tell(&self, what: impl Into<String>) {
        let what = what.into();
        self.published.send_if_modified(|told| {
            let is_new = Trouble::note(told, what.clone(), clock::now().wall);
            if is_new {
                tracing::warn!("client certificate: {what}");
            }
            is_new
        });
    }
}

/// Waits, or until a person asks for another look.
async fn until_reload(pause: Duration, reload: &mut watch::Receiver<u64>) {
    // Cancel-safe: both arms only wait.
    tokio::select! {
        () = sleep(pause) => {}
        () = connection::asked(reload) => {}
    }
}
