//! What the API server has: a copy of a few objects, kept by a watch.
//!
//! ```text
//!  begin ─► watch with initial events ─► every object, a mark ─► Picture (whole) ─► each change ─► Picture
//!    ▲             │ the server has no such thing                                       │
//!    │             └─► list, watch from its version ────────────────────────────────────┤
//!    └────── a pause of 2 s at most ◄── the stream ends, breaks or is too old ──────────┘
//! ```
//!
//! A watch that is broken is always begun anew with everything: so what changed meanwhile is seen at once, and no version has to be
//! remembered. That the way to the server is broken is noticed by the connection's pings. What was seen last stays
//! published, as it is better than nothing; [`Picture::live`] tells the difference.

use super::{
    ApiError, Link, Pause,
    client::{Clients, Verb, call},
    jitter,
};
use http::Request;
use kube::core::WatchEvent;
use serde::{Deserialize, de::DeserializeOwned};
use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

/// How long a watch is asked to last; the server ends it then. Spread, so that not every node of a cluster comes back at once.
const WATCH_FOR: Duration = Duration::from_secs(300);
/// A watch that lasted this long was a good one.
const WORTHWHILE: Duration = Duration::from_secs(5);
/// How long the server may take to end a watch, and to send what there is at its beginning.
const GRACE: Duration = Duration::from_secs(30);
/// Annotation of the bookmark behind the last initial event.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// An object as far as it is of interest here. Whatever else the server sends of it is not kept.
pub trait Watched: DeserializeOwned + Clone + Send + Sync + 'static {
    /// `namespace/name`, or the name.
    fn key(&self) -> String;
}

/// What a watch has shown.
#[derive(Clone, Debug)]
pub struct Picture<T> {
    /// By [`Watched::key`].
    pub objects: BTreeMap<String, Arc<T>>,
    /// Whether everything was seen at least once.
    pub whole: bool,
    /// Whether the watch goes on: what is here is what the server has.
    pub live: bool,
    /// Why it does not.
    pub trouble: Option<String>,
}

impl<T> Default for Picture<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), whole: false, live: false, trouble: None }
    }
}

/// Keeps a [`Picture`] of what a collection has.
#[derive(Debug)]
pub struct Reflector<T> {
    /// `/api/v1/pods`
    collection: &'static str,
    /// `spec.nodeName=node1`
    field_selector: String,
    link: watch::Receiver<Link>,
    published: watch::Sender<Arc<Picture<T>>>,
}

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    items: Vec<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
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
        collection: &'static str,
        field_selector: String,
        link: watch::Receiver<Link>,
    ) -> (Self, watch::Receiver<Arc<Picture<T>>>) {
        let (published, picture) = watch::channel(Arc::default());
        (Self { collection, field_selector, link, published }, picture)
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
                outcome = follow(&link, &path, streams, &self.published) => outcome,
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
            tracing::warn!(err = told, "cannot watch {}", self.collection);
            Arc::make_mut(picture).trouble = Some(told);
            true
        });
    }
}

async fn follow<T: Watched>(
    link: &Link,
    path: &str,
    streams: bool,
    published: &watch::Sender<Arc<Picture<T>>>,
) -> Result<End, ApiError> {
    let Some(clients) = link else { return std::future::pending().await };
    let timeout = WATCH_FOR + jitter(WATCH_FOR);
    let mut query =
        format!("{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={}", timeout.as_secs());
    let mut coming: Option<BTreeMap<String, Arc<T>>> = Some(BTreeMap::new());
    if streams {
        query += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=";
    } else {
        let page: Page<T> = list(clients, path).await?;
        query = format!("{query}&resourceVersion={}", page.metadata.resource_version);
        publish(
            published,
            page.items.into_iter().map(|item| (item.key(), Arc::new(item))).collect(),
        );
        coming = None;
    }
    let request = Request::get(query)
        .header(http::header::ACCEPT, "application/json")
        .body(Vec::new())
        .map_err(|error| ApiError::Failed(error.to_string()))?;
    let answer =
        tokio::time::timeout(super::REQUEST_DEADLINE, clients.main.request_events::<T>(request))
            .await;
    let events = match answer {
        Ok(Ok(events)) => events,
        Ok(Err(error)) => {
            let error = ApiError::from(error);
            // 400, 403 or 422, by the server's age: it knows no initial events.
            return match error.code() {
                Some(400 | 422) if streams => Ok(End::NoInitialEvents),
                _ => Err(error),
            };
        }
        Err(_) => return Err(ApiError::Late(super::REQUEST_DEADLINE)),
    };
    let mut events = pin!(events);
    let end = Instant::now() + timeout + GRACE;
    let whole_by = Instant::now() + GRACE;
    loop {
        // A way that loses packets and says nothing is not waited on for ever.
        let deadline = if coming.is_some() { whole_by } else { end };
        let Ok(next) = tokio::time::timeout_at(deadline, events.next()).await else {
            return Err(ApiError::Late(GRACE));
        };
        let Some(event) = next else { break };
        match (event?, &mut coming) {
            (WatchEvent::Added(object) | WatchEvent::Modified(object), Some(coming)) => {
                coming.insert(object.key(), Arc::new(object));
            }
            (WatchEvent::Deleted(object), Some(coming)) => {
                coming.remove(&object.key());
            }
            (WatchEvent::Added(object) | WatchEvent::Modified(object), None) => {
                published.send_modify(|picture| {
                    Arc::make_mut(picture).objects.insert(object.key(), Arc::new(object));
                });
            }
            (WatchEvent::Deleted(object), None) => {
                published.send_modify(|picture| {
                    Arc::make_mut(picture).objects.remove(&object.key());
                });
            }
            (WatchEvent::Bookmark(mark), _) => {
                let last =
                    mark.metadata.annotations.get(INITIAL_END).is_some_and(|end| end == "true");
                if last && let Some(all) = coming.take() {
                    publish(published, all);
                }
            }
            (WatchEvent::Error(status), _) => match status.code {
                410 => return Ok(End::Over),
                _ => return Err(ApiError::Refused(status)),
            },
        }
    }
    Ok(End::Over)
}

async fn list<T: Watched>(clients: &Clients, path: &str) -> Result<Page<T>, ApiError> {
    call(&clients.main, Verb::Get, path, None::<&()>).await
}

fn publish<T>(published: &watch::Sender<Arc<Picture<T>>>, objects: BTreeMap<String, Arc<T>>) {
    if published.borrow().trouble.is_some() {
        tracing::info!("the API server is watched again");
    }
    published.send_replace(Arc::new(Picture { objects, whole: true, live: true, trouble: None }));
}
