//! What the API server has: a copy of a few objects, kept by a watch.
//!
//! ```text
//!  begin ─► watch with initial events ─► every object, a mark ─► WatchCache, then each change
//!    ▲             │ the server has no such thing                     │
//!    │             └─► list, watch from its version ──────────────────┤
//!    └── a pause of 2 s at most ◄── the stream ends, breaks or is too old
//! ```
//!
//! A watch that is broken is always begun anew with everything: so what changed meanwhile is seen
//! at once, and no version has to be remembered. That the way to the server is broken is noticed by
//! the connection's pings. What was seen last stays published, as it is better than nothing;
//! [`WatchCache::live`] tells the difference.

use super::{
    ApiError, Link, Pause, REQUEST_DEADLINE,
    answer::{self, Events, WatchEvent},
    client::{ApiClient, Body, Clients},
    jitter,
};
use http::Request;
use http_body_util::Full;
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// How long a watch is asked to last; the server ends it then. Spread, so that not every node of a
/// cluster comes back at once.
const WATCH_FOR: Duration = Duration::from_secs(300);
/// The same for a watch of a single object, as in the kubelet. With 300 objects and 5 minutes, an
/// idle node would begin a watch every second.
const ONE_OF_MANY_FOR: Duration = Duration::from_secs(1800);
/// A watch that lasted this long was a good one.
const WORTHWHILE: Duration = Duration::from_secs(5);
/// How long the server may take to end a watch, and to send what there is at its beginning.
const GRACE: Duration = Duration::from_secs(30);

/// An object as far as it is of interest here. Whatever else the server sends of it is not kept.
pub trait Watched: DeserializeOwned + Clone + Send + Sync + 'static {
    /// `namespace/name`, or the name.
    fn key(&self) -> String;

    /// What it takes in memory, roughly, in bytes.
    fn weight(&self) -> usize;

    /// Shares what it has in common with the object as it was shown before.
    fn share(&mut self, _previous: &Self) {}
}

/// What a watch has shown.
#[derive(Clone, Debug)]
pub struct WatchCache<T> {
    /// By [`Watched::key`].
    pub objects: BTreeMap<String, Arc<T>>,
    /// Whether everything was seen at least once.
    pub whole: bool,
    /// Whether the watch goes on: what is here is what the server has.
    pub live: bool,
    /// Why it does not.
    pub trouble: Option<String>,
    /// The same, if the API server is there and refuses the watch or sends more than the agent
    /// keeps.
    pub refusal: Option<String>,
}

impl<T> Default for WatchCache<T> {
    fn default() -> Self {
        let objects = BTreeMap::new();
        Self { objects, whole: false, live: false, trouble: None, refusal: None }
    }
}

/// Keeps a [`WatchCache`] of what a collection has.
#[derive(Debug)]
pub struct Reflector<T> {
    /// `/api/v1/pods`
    collection: Box<str>,
    /// `spec.nodeName=node1`
    field_selector: String,
    manner: Manner,
    link: watch::Receiver<Link>,
    published: watch::Sender<Arc<WatchCache<T>>>,
}

/// The connection, the duration and the log level of a watch.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// One of the few watches of collections.
    Alone,
    /// One of the watches of single objects. Hundreds of them fail at once when the API server goes
    /// away. So they log at debug level, and people learn it from the watch of the node.
    OneOfMany {
        /// Selects the connection.
        number: usize,
    },
}

impl Manner {
    fn client(self, clients: &Clients) -> &ApiClient {
        match self {
            Self::Alone => &clients.main,
            Self::OneOfMany { number } => clients.of_watch(number),
        }
    }

    fn duration(self) -> Duration {
        let least = match self {
            Self::Alone => WATCH_FOR,
            Self::OneOfMany { .. } => ONE_OF_MANY_FOR,
        };
        least + jitter(least)
    }
}

/// How a stream came to its end.
enum End {
    /// As agreed, or too old: begin anew at once.
    Over,
    /// The server does not send initial events.
    NoInitialEvents,
}

impl<T: Watched> Reflector<T> {
    /// The task, and what it publishes.
    #[must_use]
    pub fn new(
        collection: &str,
        field_selector: String,
        link: watch::Receiver<Link>,
    ) -> (Self, watch::Receiver<Arc<WatchCache<T>>>) {
        let (published, picture) = watch::channel(Arc::default());
        let (collection, manner) = (collection.into(), Manner::Alone);
        (Self { collection, field_selector, manner, link, published }, picture)
    }

    /// Makes it one of many watches. Each has another `number`, from 0. Watches with low numbers
    /// share the connection of all other requests.
    #[must_use]
    pub(super) fn one_of_many(mut self, number: usize) -> Self {
        self.manner = Manner::OneOfMany { number };
        self
    }

    /// Follows until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut pause = Pause::default();
        let mut streams = true;
        loop {
            let link = self.link.borrow_and_update().clone();
            let begun = Instant::now();
            let path = self.collection_path();
            // Cancel-safe: a watch that is dropped is a watch that ends.
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = self.link.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                outcome = follow(&link, &path, (self.manner, streams), &self.published) => outcome,
            };
            match outcome {
                Ok(End::Over) => {}
                Ok(End::NoInitialEvents) => {
                    streams = false;
                    continue;
                }
                Err(error) => self.tell(&error),
            }
            // The next one may be another, newer server.
            streams = true;
            // One that ends at once is not asked again at once.
            if begun.elapsed() >= WORTHWHILE {
                pause.reset();
            }
            self.published.send_if_modified(|picture| {
                let was = picture.live;
                if was {
                    Arc::make_mut(picture).live = false;
                }
                was
            });
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause.after_failure()) => {}
                // The credentials are others: why wait.
                _ = self.link.changed() => self.link.mark_changed(),
            }
        }
    }

    fn collection_path(&self) -> String {
        format!("{}?fieldSelector={}", self.collection, self.field_selector.replace('=', "%3D"))
    }

    fn tell(&self, error: &ApiError) {
        let told = error.to_string();
        self.published.send_if_modified(|picture| {
            if picture.trouble.as_ref() == Some(&told) {
                return false;
            }
            match self.manner {
                Manner::Alone => tracing::warn!(err = told, "cannot watch {}", self.collection),
                Manner::OneOfMany { .. } => {
                    tracing::debug!(err = told, "cannot watch {}", self.collection_path());
                }
            }
            let picture = Arc::make_mut(picture);
            picture.refusal = error.is_refusal().then(|| told.clone());
            picture.trouble = Some(told);
            true
        });
    }
}

async fn follow<T: Watched>(
    link: &Link,
    path: &str,
    (manner, streams): (Manner, bool),
    published: &watch::Sender<Arc<WatchCache<T>>>,
) -> Result<End, ApiError> {
    let Some(clients) = link else { return std::future::pending().await };
    let client = manner.client(clients);
    let timeout = manner.duration();
    let mut query =
        format!("{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={}", timeout.as_secs());
    let mut seen = Seen::default();
    if streams {
        query += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=";
    } else {
        let text = in_time(list(client, path)).await?;
        let (items, version) = answer::page::<T>(&text)?;
        query = format!("{query}&resourceVersion={version}");
        for mut item in items {
            if let Some(previous) = published.borrow().objects.get(&item.key()) {
                item.share(previous);
            }
            seen.put(item)?;
        }
        seen.publish_all(published, manner);
    }
    let mut events = match in_time(begin(client, &query)).await {
        Ok(body) => Events::new(body),
        // 400, 403 or 422, by the server's age: it knows no initial events.
        Err(error) => match error.code() {
            Some(400 | 422) if streams => return Ok(End::NoInitialEvents),
            _ => return Err(error),
        },
    };
    let end = Instant::now() + timeout + GRACE;
    let whole_by = Instant::now() + GRACE;
    loop {
        // A way that loses packets and says nothing is not waited on for ever.
        let deadline = if seen.coming.is_some() { whole_by } else { end };
        let Ok(next) = tokio::time::timeout_at(deadline, events.next::<T>()).await else {
            return Err(ApiError::Late(GRACE));
        };
        match next? {
            None => return Ok(End::Over),
            Some(WatchEvent::Changed(object)) => {
                let mut object = object;
                if let Some(previous) = published.borrow().objects.get(&object.key()) {
                    object.share(previous);
                }
                if let Some((key, object)) = seen.put(object)? {
                    published.send_modify(|picture| {
                        Arc::make_mut(picture).objects.insert(key, object);
                    });
                }
            }
            Some(WatchEvent::Deleted(object)) => {
                let key = object.key();
                if seen.remove(&key) {
                    published.send_modify(|picture| {
                        Arc::make_mut(picture).objects.remove(&key);
                    });
                }
            }
            Some(WatchEvent::Bookmark { initial_end }) => {
                if initial_end {
                    seen.publish_all(published, manner);
                }
            }
            Some(WatchEvent::Error(status)) => match status.code {
                410 => return Ok(End::Over),
                _ => return Err(answer::refused(*status)),
            },
        }
    }
}

/// What one watch has shown so far, and what that weighs.
struct Seen<T> {
    /// What came before everything was shown; `None` from then on.
    coming: Option<BTreeMap<String, Arc<T>>>,
    weights: BTreeMap<String, usize>,
    weight: usize,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self { coming: Some(BTreeMap::new()), weights: BTreeMap::new(), weight: 0 }
    }
}

impl<T: Watched> Seen<T> {
    /// Takes an object; gives it back with its key when it is to be published at once.
    fn put(&mut self, object: T) -> Result<Option<(String, Arc<T>)>, ApiError> {
        let (key, weight) = (object.key(), object.weight());
        let before = self.weights.insert(key.clone(), weight).unwrap_or_default();
        self.weight = self.weight.saturating_sub(before).saturating_add(weight);
        if self.weight > answer::MAX_WEIGHT {
            return Err(ApiError::TooMuch);
        }
        let object = Arc::new(object);
        match &mut self.coming {
            Some(coming) => {
                coming.insert(key, object);
                Ok(None)
            }
            None => Ok(Some((key, object))),
        }
    }

    /// Drops an object; whether that is to be published at once.
    fn remove(&mut self, key: &str) -> bool {
        self.weight = self.weight.saturating_sub(self.weights.remove(key).unwrap_or_default());
        match &mut self.coming {
            Some(coming) => {
                coming.remove(key);
                false
            }
            None => true,
        }
    }

    /// Publishes everything, the first time.
    fn publish_all(&mut self, published: &watch::Sender<Arc<WatchCache<T>>>, manner: Manner) {
        if let Some(all) = self.coming.take() {
            publish(published, all, manner);
        }
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    let late = Err(ApiError::Late(REQUEST_DEADLINE));
    tokio::time::timeout(REQUEST_DEADLINE, work).await.unwrap_or(late)
}

async fn begin(client: &ApiClient, query: &str) -> Result<Body, ApiError> {
    let request = Request::get(query)
        .header(http::header::ACCEPT, "application/json")
        .body(Full::default())
        .map_err(|error| ApiError::Failed(error.to_string()))?;
    answer::accepted(client.send(request).await?).await
}

async fn list(client: &ApiClient, path: &str) -> Result<Vec<u8>, ApiError> {
    answer::text(begin(client, path).await?, answer::MAX_LIST_BYTES).await
}

fn publish<T>(
    published: &watch::Sender<Arc<WatchCache<T>>>,
    objects: BTreeMap<String, Arc<T>>,
    manner: Manner,
) {
    if published.borrow().trouble.is_some() {
        match manner {
            Manner::Alone => tracing::info!("the API server is watched again"),
            Manner::OneOfMany { .. } => tracing::debug!("an object is watched again"),
        }
    }
    published.send_replace(Arc::new(WatchCache {
        objects,
        whole: true,
        live: true,
        trouble: None,
        refusal: None,
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{
        api::client::{self, ApiClient},
        model::k8s,
    };
    use http::Response;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::task::JoinSet;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A server whose first watch shows node `n1` whole and ends, and that answers nothing later.
    fn link() -> Link {
        let node = json!({ "type": "ADDED", "object": { "metadata": { "name": "n1" } } });
        let annotations = json!({ "k8s.io/initial-events-end": "true" });
        let metadata = json!({ "metadata": { "annotations": annotations } });
        let end = json!({ "type": "BOOKMARK", "object": metadata });
        let lines = format!("{node}\n{end}\n");
        let watches = Arc::new(AtomicUsize::new(0));
        let client = ApiClient::new(move |_| {
            let first = watches.fetch_add(1, Ordering::Relaxed) == 0;
            let answer = Response::new(client::whole(lines.clone()));
            async move {
                if !first {
                    std::future::pending::<()>().await;
                }
                Ok(answer)
            }
        });
        Some(Arc::new(Clients::of_client(&client)))
    }

    #[tokio::test]
    async fn a_watch_that_ended_is_not_live() {
        let (_link, link) = watch::channel(link());
        let (reflector, mut picture) =
            Reflector::<k8s::Node>::new("/api/v1/nodes", "metadata.name=n1".to_owned(), link);
        let mut tasks = JoinSet::new();
        tasks.spawn(reflector.run(CancellationToken::new()));
        let ended = picture.wait_for(|picture| picture.whole && !picture.live);
        let ended = tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap();
        assert!(ended.objects.contains_key("n1"), "what was seen is kept");
    }
}
