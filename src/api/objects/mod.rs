//! Reads what the pods of the API server need from there: ConfigMaps, Secrets, service account
//! tokens, PersistentVolumeClaims, RuntimeClasses and Services.
//!
//! ```text
//!  pods ─┬─► object references ─► one watch for each object ──┐
//!        ├─► token sources ─────► TokenRequest, renewals ─────┤
//!        ├─► volume claims ─────► read until they are usable ─┼─► NodeObjects (watch) ─► workers
//!        ├─► runtime classes ───► one watch of all of them ───┤
//!        └─► any pod at all ────► one watch of Services ──────┘
//! ```
//!
//! The task owns the watches, the tokens and the claims. It opens a watch for the first pod that
//! refers to an object, shares it between pods, and closes it with the last one. Tokens and data of
//! Secrets are kept in memory only. While the API server is away, the last answers stay published,
//! and an object without an answer stays unknown. The task does not decide whether a pod waits:
//! `plan` does.

mod claims;
mod requests;
mod seen;
mod tokens;
mod watches;

use super::{ApiClient, Link, Verb, call};
use crate::{
    clock,
    desired::SourceSnapshot,
    model::{
        ApiObjects, ClaimAnswer, ClaimKey, CollectOrdered as _, DesiredPod, NodeObjects,
        NodeScheduling, PersistentSource, PodUid, SavedAnswers, ServiceAccountToken, SourceKind,
        TokenKey,
    },
    podspec::{claim_keys, runtime_class, token_keys},
    publish::PublishIfChanged as _,
};
use claims::Claims;
use requests::RequestOutcome;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokens::{Bound, Tokens};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use watches::Watches;

/// Requests for tokens and claims at a time.
const PARALLEL: usize = 4;
/// The longest sleep. Renewals are due by boot time, which includes the time while the machine is
/// suspended. The timer of a sleep does not.
const LOOK: Duration = Duration::from_secs(60);
/// The node authorizer may learn of a new pod later than the node. So a refusal counts as no answer
/// for this long.
const AUTHORIZER_LAG: Duration = Duration::from_secs(5);

/// The task.
pub struct ObjectsTask {
    link: watch::Receiver<Link>,
    pods: watch::Receiver<Arc<SourceSnapshot>>,
    /// Claims are read once the labels of the Node are known.
    node: watch::Receiver<Option<Arc<NodeScheduling>>>,
    published: watch::Sender<Arc<NodeObjects>>,
    trouble: watch::Sender<Option<String>>,
    watches: Watches,
    tokens: Tokens,
    claims: Claims,
    /// The answers that an earlier run of the agent has got, until there are newer ones. The claims
    /// are taken over with the first pods.
    remembered: SavedAnswers,
    /// The pods that have a record of that run. Its Services and RuntimeClasses count for them
    /// alone: they may lack what a new pod needs.
    recorded: Arc<BTreeSet<PodUid>>,
    /// The namespaces of the pods. Only their Services are published.
    namespaces: BTreeSet<Arc<str>>,
    requests: JoinSet<Requested>,
}

/// A finished request.
enum Requested {
    Token(TokenKey, RequestOutcome<ServiceAccountToken>),
    Claim(ClaimKey, RequestOutcome<ClaimAnswer>),
}

impl std::fmt::Debug for ObjectsTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectsTask").field("watches", &self.watches).finish_non_exhaustive()
    }
}

impl ObjectsTask {
    /// What is published at first. Static pods must not wait for this place, which has no objects
    /// for them.
    #[must_use]
    pub fn nothing() -> NodeObjects {
        NodeObjects { known: true, ..NodeObjects::default() }
    }

    /// The task. It sends no request before [`ObjectsTask::run`]. It ignores pods that do not come
    /// from the API server. `remembered` are the answers that an earlier run of the agent has
    /// got: containers start again with them while the API server is away.
    #[must_use]
    pub fn new(
        link: watch::Receiver<Link>,
        pods: watch::Receiver<Arc<SourceSnapshot>>,
        node: watch::Receiver<Option<Arc<NodeScheduling>>>,
        published: watch::Sender<Arc<NodeObjects>>,
        remembered: SavedAnswers,
    ) -> Self {
        let recorded = pods.borrow().pods.iter().map(|pod| pod.uid.clone()).collect_ordered();
        let recorded = Arc::new(recorded);
        Self {
            remembered,
            recorded,
            watches: Watches::new(link.clone()),
            link,
            pods,
            node,
            published,
            trouble: watch::Sender::default(),
            tokens: Tokens::default(),
            claims: Claims::default(),
            namespaces: BTreeSet::new(),
            requests: JoinSet::new(),
        }
    }

    /// Why Services or RuntimeClasses can't be watched, on which containers may wait.
    #[must_use]
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// Follows until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        self.take_pods();
        let changed = self.watches.changed();
        loop {
            self.send_requests();
            let wait = self.publish();
            // Cancel-safe: every arm only waits. A finished request stays in its set until it is
            // taken out, and a change of a watch stays noted until the task has looked.
            tokio::select! {
                () = shutdown.cancelled() => return,
                Ok(()) = self.pods.changed() => self.take_pods(),
                Ok(()) = self.link.changed() => self.hurry(),
                Ok(()) = self.node.changed() => self.claims.repeat(clock::now().boot),
                () = changed.notified() => {}
                Some(done) = self.requests.join_next() => match done {
                    Ok(requested) => self.settle(requested),
                    Err(error) => return tracing::error!(err = %error, "a request has panicked"),
                },
                Some(error) = self.watches.panicked() => {
                    return tracing::error!(err = %error, "a watch of an object has panicked");
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Opens and closes watches, and begins and drops tokens and claims, as the pods are now.
    fn take_pods(&mut self) {
        let pods = Arc::clone(&self.pods.borrow_and_update());
        let has_ended = |key| pods.ends.get(key).is_some_and(|end| end.phase.is_some());
        let of_api = pods.pods.iter().filter(|pod| pod.origin.source == SourceKind::Api);
        let of_api = of_api.filter(|pod| !has_ended(&pod.key));
        self.watches.follow(of_api.clone().map(|pod| &*pod.pod));
        let (mut tokens, mut claims) = (BTreeMap::new(), BTreeMap::new());
        let mut names_class = false;
        self.namespaces.clear();
        for pod in of_api {
            tokens.extend(token_keys(&pod.pod).into_iter().map(|key| (key, bound(pod))));
            claims.extend(claim_keys(&pod.pod).into_iter().map(|key| (key, ())));
            names_class |= runtime_class(&pod.pod).is_some();
            self.namespaces.insert(pod.key.namespace.clone());
        }
        self.watches.follow_services(!self.namespaces.is_empty());
        self.watches.follow_runtime_classes(names_class);
        let now = clock::now().boot;
        self.tokens.want(tokens, now);
        self.claims.want(claims, now);
        for (key, value) in std::mem::take(&mut self.remembered.claims) {
            // An older version may have saved a kind that this version mounts.
            if let PersistentSource::Other(_) = value.source {
                continue;
            }
            let value = ClaimAnswer::Bound(value);
            let bound = RequestOutcome::Answered { value, again_after: None };
            self.claims.settle(&key, bound, now);
        }
    }

    fn hurry(&mut self) {
        let now = clock::now().boot;
        self.tokens.hurry(now);
        self.claims.hurry(now);
    }

    fn settle(&mut self, requested: Requested) {
        let now = clock::now().boot;
        match requested {
            Requested::Token(key, outcome) => self.tokens.settle(&key, outcome, now),
            Requested::Claim(key, outcome) => self.claims.settle(&key, outcome, now),
        }
    }

    /// Begins the requests that are due, a few at a time.
    fn send_requests(&mut self) {
        let Some(clients) = self.link.borrow().clone() else { return };
        let node = self.node.borrow().clone();
        let now = clock::now().boot;
        while self.requests.len() < PARALLEL {
            let client = clients.main.clone();
            let claim = node.as_ref().and_then(|node| Some((self.claims.next(now)?, node)));
            if let Some(((key, ()), node)) = claim {
                let node = Arc::clone(node);
                self.requests.spawn(async move {
                    let outcome = claims::read(&client, &key, &node).await;
                    Requested::Claim(key, outcome)
                });
            } else if let Some((key, bound)) = self.tokens.next(now) {
                self.requests.spawn(async move {
                    let outcome = request_token(&client, &key, &bound).await;
                    Requested::Token(key, outcome)
                });
            } else {
                return;
            }
        }
    }

    /// Publishes all answers. Returns how long to wait if nothing changes.
    fn publish(&mut self) -> Duration {
        let now = clock::now().boot;
        let (objects, answer_at) = self.watches.answers(now);
        let services = self.watches.services(&self.namespaces);
        let services = newest(services, &mut self.remembered.services);
        let runtime_classes = self.watches.runtime_classes();
        let runtime_classes = newest(runtime_classes, &mut self.remembered.runtime_classes);
        let pods_of = |remembered: bool| remembered.then(|| Arc::clone(&self.recorded));
        let services_for = pods_of(self.remembered.services.is_some());
        let runtime_classes_for = pods_of(self.remembered.runtime_classes.is_some());
        let tokens = self.tokens.answers(now, tokens::answer);
        let claims = self.claims.answers(now, claims::answer);
        let claims_due_at = self.node.borrow().as_ref().and_then(|_| self.claims.wake_at());
        let due_at = self.tokens.wake_at().into_iter().chain(claims_due_at).min();
        let api = ApiObjects {
            objects,
            tokens,
            claims,
            services,
            services_for,
            runtime_classes,
            runtime_classes_for,
        };
        let all = NodeObjects { api: Arc::new(api), ..Self::nothing() };
        self.published.publish_if_changed(Arc::new(all));
        self.trouble.publish_if_changed(self.watches.trouble(&self.namespaces));
        // Without a way to the API server, or with all requests under way, nothing can begin.
        let can_begin = self.link.borrow().is_some() && self.requests.len() < PARALLEL;
        let due_at = due_at.filter(|_| can_begin);
        let waits = answer_at.into_iter().chain(due_at).map(|at| at.saturating_sub(now));
        waits.fold(LOOK, Duration::min)
    }
}

/// What was read now, or else what is remembered.
fn newest<T: Clone>(read: Option<T>, remembered: &mut Option<T>) -> Option<T> {
    if read.is_some() {
        *remembered = None;
    }
    read.or_else(|| remembered.clone())
}

async fn request_token(
    client: &ApiClient,
    key: &TokenKey,
    bound: &Bound,
) -> RequestOutcome<ServiceAccountToken> {
    let Some(path) = tokens::path(key, bound) else { return tokens::impossible() };
    let body = tokens::request(key, bound);
    let answer = call(client, Verb::Create, &path, Some(&body)).await;
    tokens::outcome(answer, key, super::jitter(tokens::SPREAD))
}

/// The pod to which its tokens are bound.
fn bound(pod: &DesiredPod) -> Bound {
    Bound { namespace: pod.key.namespace.clone(), pod: pod.key.name.clone() }
}

/// True when an object can have this name. No other name may become part of a path or a query.
fn is_object_name(name: &str) -> bool {
    let is_allowed =
        |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.');
    // `..` is a step up in a path.
    let is_only_dots = name.bytes().all(|c| c == b'.');
    name.len() <= 253 && name.bytes().all(is_allowed) && !is_only_dots
}

#[cfg(test)]
mod tests;
