//! How a certificate is obtained, whatever it is for.
//!
//! ```text
//!  key on the disk ─► request sent ─► approved ─► signed ─► files
//!        ▲                 │  ▲          │
//!        │                 │  └─ gone ◄──┤ nobody has answered for long
//!        └── a new one ◄───┴── denied, failed
//! ```
//!
//! The key is on the disk before its request is sent, and the request's name follows from the key:
//! whatever an agent is killed between, the next one goes on with the same request.

use super::{
    AFTER_DENIAL, AGAIN,
    request::{Answer, COLLECTION, Purpose, Seen, SigningRequest},
    store::{Store, StoreError},
};
use crate::{
    api::{
        Link, Pause, Trouble, Verb, call,
        reflect::{Reflector, WatchCache},
    },
    blocking::CREDENTIALS,
    clock,
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

/// Obtains certificates for one purpose.
#[derive(Debug)]
pub(super) struct Obtainer {
    pub(super) store: Store,
    /// Whom the certificates are for.
    pub(super) node_name: String,
    /// The agent's own way to the API server.
    pub(super) link: watch::Receiver<Link>,
    /// What the certificate waits for.
    published: watch::Sender<Option<Trouble>>,
}

/// Why a request came to nothing.
pub(super) enum Missed {
    /// There will be no certificate for it.
    Refused(NoAnswer),
    /// A file can't be written.
    Store(StoreError),
    Crashed,
}

/// Why a request gets no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// It was denied, or its signing has failed.
    #[error("{name} {why}")]
    Refused { name: String, why: String },
    #[error("can't be made: {0}")]
    NotMade(rcgen::Error),
    #[error("is not followed any more")]
    NotFollowed,
}

impl Obtainer {
    /// With what the certificate waits for.
    pub(super) fn new(
        store: Store,
        node_name: String,
        link: watch::Receiver<Link>,
    ) -> (Self, watch::Receiver<Option<Trouble>>) {
        let (published, trouble) = watch::channel(None);
        (Self { store, node_name, link, published }, trouble)
    }

    /// Requests a certificate and takes it into use. Its key stays the pending one until everything
    /// that names the certificate is written, too: the same request gives it once more.
    pub(super) async fn obtain(
        &self,
        link: watch::Receiver<Link>,
        purpose: Purpose,
    ) -> Result<(), Missed> {
        let store = self.store.clone();
        let key = CREDENTIALS.run(move || store.pending_key()).await;
        let key = key.map_err(|_| Missed::Crashed)?.map_err(Missed::Store)?;
        let request = SigningRequest::new(key, &self.node_name, purpose);
        let own = format!("metadata.name={}", request.name);
        let (watch, seen) = Reflector::<Seen>::new(COLLECTION, own, link.clone());
        // Cancel-safe: the API server keeps the request. The watch ends only with the link, and then
        // nothing is followed either.
        let answer = tokio::select! {
            answer = self.follow(&request, seen, link) => answer,
            () = Box::pin(watch.run(CancellationToken::new())) => return Err(Missed::Crashed),
        };
        let (store, key) = (self.store.clone(), request.key_pem());
        let stored = CREDENTIALS.run(move || match answer {
            Ok(certificates) => store.put(&certificates, &key).map_err(Missed::Store),
            Err(why) => {
                store.forget_key();
                Err(Missed::Refused(why))
            }
        });
        stored.await.map_err(|_| Missed::Crashed)?
    }

    /// Forgets the key of a request whose certificate is in use.
    pub(super) async fn forget_key(&self) {
        let store = self.store.clone();
        _ = CREDENTIALS.run(move || store.forget_key()).await;
    }

    /// Sends a request, unless the API server has it, and awaits its answer.
    async fn follow(
        &self,
        request: &SigningRequest,
        mut seen: watch::Receiver<Arc<WatchCache<Seen>>>,
        link: watch::Receiver<Link>,
    ) -> Result<Vec<u8>, NoAnswer> {
        let name = &request.name;
        let mut pause = Pause::default();
        loop {
            let cache = Arc::clone(&seen.borrow_and_update());
            let clients = link.borrow().clone();
            let mut again = AGAIN;
            if let Some(csr) = cache.objects.get(name) {
                match request.answer(csr) {
                    Answer::Issued(certificates) => return Ok(certificates),
                    Answer::Refused(why) => {
                        return Err(NoAnswer::Refused { name: name.clone(), why });
                    }
                    Answer::Wait { approved: false } => self.tell(format!(
                        "the certificate signing request {name} waits for approval (kubectl certificate approve {name})"
                    )),
                    Answer::Wait { approved: true } => self.tell(format!(
                        "the certificate signing request {name} is approved and not signed yet"
                    )),
                }
            } else if let Some(clients) = clients.filter(|_| cache.live) {
                let object = request.object().map_err(NoAnswer::NotMade)?;
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
                    return Err(NoAnswer::NotFollowed);
                },
                () = sleep(again) => {}
            }
        }
    }

    /// Publishes what is wrong with a kubeconfig. Does not end.
    pub(super) async fn tell_all(&self, mut troubles: watch::Receiver<Option<String>>) {
        loop {
            if let Some(trouble) = troubles.borrow_and_update().clone() {
                self.tell(trouble);
            }
            if troubles.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Publishes why there is no certificate. How long to wait for the next try.
    pub(super) fn tell_missed(&self, missed: Missed) -> Duration {
        match missed {
            Missed::Refused(why) => {
                self.tell(format!("the certificate signing request {why}"));
                return AFTER_DENIAL;
            }
            Missed::Store(error) => self.tell(error.to_string()),
            Missed::Crashed => self.tell("reading or writing it has crashed"),
        }
        AGAIN
    }

    /// Publishes that all is well.
    pub(super) fn tell_nothing(&self) {
        self.published.send_if_modified(|told| told.take().is_some());
    }

    fn tell(&self, what: impl Into<String>) {
        let what = what.into();
        self.published.send_if_modified(|told| {
            let is_new = Trouble::note(told, what.clone(), clock::now().wall);
            if is_new {
                tracing::warn!("{what}");
            }
            is_new
        });
    }
}
