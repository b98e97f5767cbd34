//! The view of the cluster for people, assembled from the states that the tasks of this module
//! publish.

use super::{LeaseState, Link, NodeState, PodsReport, Trouble, WatchCache, pods::LEFT_OUT};
use crate::{
    mirror::SeenPod,
    model::{CLIENT_CERTIFICATE, ClusterTrouble, ClusterView, k8s},
    node::NodeRef,
    publish::{PublishIfChanged as _, changed_if_there},
};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Changes that come within this time are published together.
const SETTLE: Duration = Duration::from_millis(100);

/// Keeps the view of the cluster up to date.
#[derive(Debug)]
pub struct ClusterViewTask {
    /// The kubeconfig file as it was given.
    pub kubeconfig: String,
    /// The way to the server.
    pub link: watch::Receiver<Link>,
    /// Why the credentials cannot be used.
    pub credentials: watch::Receiver<Option<String>>,
    /// What the client certificate waits for, where the agent looks after it.
    pub client_certificate: Option<watch::Receiver<Option<Trouble>>>,
    /// What the certificate of the HTTPS API waits for, where the agent looks after it.
    pub serving_certificate: Option<watch::Receiver<Option<Trouble>>>,
    /// The watch of the own node.
    pub nodes: watch::Receiver<Arc<WatchCache<k8s::Node>>>,
    /// The watch of the pods of this node.
    pub pods: watch::Receiver<Arc<WatchCache<SeenPod>>>,
    /// Why watches of objects that pods need do not go on, where the node runs pods of the API
    /// server.
    pub objects: Option<watch::Receiver<Option<String>>>,
    /// The registered node.
    pub registered: watch::Receiver<Option<NodeRef>>,
    /// The reporting of the node.
    pub node: watch::Receiver<NodeState>,
    /// The lease.
    pub lease: watch::Receiver<LeaseState>,
    /// The mirror pods.
    pub mirrors: watch::Receiver<Arc<PodsReport>>,
    /// The number of events that are not written yet.
    pub events_waiting: watch::Receiver<usize>,
    /// The view.
    pub published: watch::Sender<Option<Arc<ClusterView>>>,
}

impl ClusterViewTask {
    /// Publishes the view whenever one of its parts changes, until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let view = self.assemble();
            self.published.publish_if_changed(Some(Arc::new(view)));
            // Cancel-safe: every arm only waits for a change, and the next view reads all channels
            // again.
            let changed = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = self.link.changed() => changed,
                changed = self.credentials.changed() => changed,
                changed = changed_if_there(&mut self.client_certificate) => changed,
                changed = changed_if_there(&mut self.serving_certificate) => changed,
                changed = self.nodes.changed() => changed,
                changed = self.pods.changed() => changed,
                changed = changed_if_there(&mut self.objects) => changed,
                changed = self.registered.changed() => changed,
                changed = self.node.changed() => changed,
                changed = self.lease.changed() => changed,
                changed = self.mirrors.changed() => changed,
                changed = self.events_waiting.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    fn assemble(&mut self) -> ClusterView {
        let link = self.link.borrow_and_update().clone();
        let nodes = Arc::clone(&self.nodes.borrow_and_update());
        let pods = Arc::clone(&self.pods.borrow_and_update());
        let node = self.node.borrow_and_update().clone();
        let lease = self.lease.borrow_and_update().clone();
        let mirrors = Arc::clone(&self.mirrors.borrow_and_update());
        let of = |what: &str, trouble: Option<Trouble>| {
            let told = |trouble: Trouble| ClusterTrouble {
                what: what.to_owned(),
                error: trouble.what,
                since: Some(trouble.since),
            };
            trouble.map(told)
        };
        let plain = |what: &str, error: Option<String>| {
            error.map(|error| ClusterTrouble { what: what.to_owned(), error, since: None })
        };
        let objects = self.objects.as_mut();
        let objects = objects.and_then(|trouble| trouble.borrow_and_update().clone());
        let watch = nodes.trouble.clone().or_else(|| pods.trouble.clone()).or(objects);
        let latest = |trouble: &mut Option<watch::Receiver<Option<Trouble>>>| {
            trouble.as_mut()?.borrow_and_update().clone()
        };
        let client = latest(&mut self.client_certificate);
        let serving = latest(&mut self.serving_certificate);
        let credentials = self.credentials.borrow_and_update().clone();
        // That there is no kubeconfig yet is no news while the first certificate is awaited.
        let credentials = credentials.filter(|_| link.is_some() || client.is_none());
        let troubles = [
            plain("credentials", credentials),
            of(CLIENT_CERTIFICATE, client),
            of("serving certificate", serving),
            plain("watch", watch),
            of("node status", node.trouble),
            of("lease", lease.trouble),
            of("pods", mirrors.trouble.clone()),
        ];
        ClusterView {
            kubeconfig: self.kubeconfig.clone(),
            certificate_until: link.as_ref().and_then(|clients| clients.certificate_until),
            server: link.map(|clients| clients.server.to_string()),
            node_uid: self.registered.borrow_and_update().clone().map(|node| node.uid),
            watching: nodes.live && pods.live,
            status_posted: node.posted,
            lease_renewed: lease.renewed,
            mirrors: mirrors.mirrored,
            mirror_pods: mirrors.shown,
            api_pods: mirrors.bound,
            pods_waiting: mirrors.waiting,
            events_waiting: *self.events_waiting.borrow_and_update(),
            troubles: troubles.into_iter().flatten().collect(),
            notes: node.notes.into_iter().chain(notes(&mirrors)).collect(),
        }
    }
}

/// The API server's refusals of single pods, one sentence each.
fn notes(pods: &PodsReport) -> impl Iterator<Item = String> {
    let refused =
        pods.refused.iter().map(|(key, why)| format!("{key} is not up to date in the API: {why}"));
    let declined = pods.declined.iter().map(|key| {
        format!(
            "{key} was bound to this node by the API server and does not run: this node runs static pods only (apiPods: false)"
        )
    });
    let left_out =
        pods.left_out.iter().map(|(key, why)| format!("{key} is left out: {why}. {LEFT_OUT}"));
    refused.chain(declined).chain(left_out)
}
