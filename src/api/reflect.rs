//! What the API server has: a copy of a few objects, kept by a watch.
//!
//! ```text
//!  begin ─► watch with initial events ─► every object, a mark ─► WatchCache, then each change
//!    ▲             │ the server has no such thing                  ▲    │
//!    │             └─► list ────► watch from a version ────────────┘    │
//!    │                              ▲                                   │
//!    │                              └── its time is over ◄──────────────┤
//!    └── a pause of 2 s at most ◄── the stream breaks, ends early, is too old, or a resync is due
//!         (20 s where the server sends more than the agent keeps)
//! ```
//!
//! The server ends a watch after the time that was asked for. The next one goes on from the newest
//! version, so that nothing is shown twice, unless everything is due again ([`RESYNC`]). A watch that
//! ends in any other way is begun anew with everything: the server may be another one, or have lost
//! what it had. That the way to the server is broken is noticed by the connection's pings. What was
//! seen last stays published, as it is better than nothing; [`WatchCache::live`] tells the
//! difference.

use super::{
    ApiError, Link, Pause, REQUEST_DEADLINE,
    answer::{self, Events, MaybeRead, Unread, WatchEvent},
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
/// A watch that ends this long after the last one with everything began is begun anew with
/// everything, in case an event was lost.
const RESYNC: Duration = Duration::from_secs(3600);
/// A watch that lasted this long was a good one.
const WORTHWHILE: Duration = Duration::from_secs(5);
/// What an object takes besides its own memory, roughly, in bytes: its places in two maps.
const ENTRY_BYTES: usize = 256;
/// How long the server may take to end a watch, and to send the next object while it sends what
/// there is at its beginning.
const GRACE: Duration = Duration::from_secs(30);

/// An object as far as it is of interest here. Whatever else the server sends of it is not kept.
pub trait Watched: DeserializeOwned + Clone + Send + Sync + 'static {
    /// The most that all the objects of a watch may weigh together, in bytes. A watch that shows
    /// more is refused: it is not what the agent asked for.
    const MAX_WEIGHT: usize;
    /// Whether the other objects are followed on when one can't be read or does not fit into
    /// [`Self::MAX_WEIGHT`]. Otherwise the watch fails.
    const LEAVES_OUT: bool = false;

    /// `namespace/name`, or the name.
    fn key(&self) -> String;

    /// `metadata.uid`, where [`Self::LEAVES_OUT`].
    fn uid(&self) -> &str {
        ""
    }

    /// What it takes in memory besides the structure itself, roughly, in bytes.
    fn weight(&self) -> usize;

    /// Shares what it has in common with the object as it was shown before.
    fn share(&mut self, _previous: &Self) {}
}

/// What a watch has shown.
#[derive(Clone, Debug)]
pub struct WatchCache<T> {
    /// By [`Watched::key`].
    pub objects: BTreeMap<String, Arc<T>>,
    /// The objects that are there and are left out ([`Watched::LEAVES_OUT`]), by their keys.
    pub left_out: BTreeMap<String, LeftOut>,
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

/// An object that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// `metadata.uid`
    pub uid: String,
    /// For people.
    pub why: String,
}

impl<T> Default for WatchCache<T> {
    fn default() -> Self {
        let (objects, left_out) = (BTreeMap::new(), BTreeMap::new());
        Self { objects, left_out, whole: false, live: false, trouble: None, refusal: None }
    }
}

impl<T> WatchCache<T> {
    fn put(&mut self, key: String, found: Found<T>) {
        match found {
            Found::Object(object) => {
                self.left_out.remove(&key);
                self.objects.insert(key, object);
            }
            Found::LeftOut(left_out) => {
                self.objects.remove(&key);
                self.left_out.insert(key, left_out);
            }
        }
    }

    fn remove(&mut self, key: &str) {
        self.objects.remove(key);
        self.left_out.remove(key);
    }
}

/// What is known of an object that is there.
enum Found<T> {
    Object(Arc<T>),
    LeftOut(LeftOut),
}

/// Keeps a [`WatchCache`] of what a collection has.
#[derive(Debug)]
pub struct Reflector<T> {
    /// `/api/v1/pods`
    collection: Box<str>,
    /// `spec.nodeName=node1`
    field_selector: String,
    manner: Manner,
    /// A watch is asked to last this long, and up to twice as long.
    at_least: Duration,
    /// [`RESYNC`]
    resync: Duration,
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
        match self {
            Self::Alone => WATCH_FOR,
            Self::OneOfMany { .. } => ONE_OF_MANY_FOR,
        }
    }
}

/// Where a watch begins.
enum Begin<T> {
    /// With everything, as initial events.
    InitialEvents,
    /// With everything, as a list.
    List,
    /// From this version on, after what was seen.
    Resume { seen: Seen<T>, version: String },
}

/// How a stream came to its end.
enum End<T> {
    /// The time that was asked for is over: it goes on from this version.
    TimeOver { seen: Seen<T>, version: String },
    /// It ended early, its version is too old, or everything is due again. The next one begins with
    /// everything.
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
        let at_least = manner.duration();
        let resync = RESYNC;
        (Self { collection, field_selector, manner, at_least, resync, link, published }, picture)
    }

    /// Makes it one of many watches. Each has another `number`, from 0. Watches with low numbers
    /// share the connection of all other requests.
    #[must_use]
    pub(super) fn one_of_many(mut self, number: usize) -> Self {
        self.manner = Manner::OneOfMany { number };
        self.at_least = self.manner.duration();
        self
    }

    /// Follows until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut pause = Pause::default();
        let mut begin = Begin::InitialEvents;
        let mut link = self.link.clone();
        loop {
            let from = std::mem::replace(&mut begin, Begin::InitialEvents);
            let clients = link.borrow_and_update().clone();
            let begun = Instant::now();
            // Cancel-safe: a watch that is dropped is a watch that ends.
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = link.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                outcome = self.follow(&clients, from) => outcome,
            };
            // A server without initial events is asked for them again after each failure: the next
            // one may be newer.
            let (mut resumes, mut sends_too_much) = (false, false);
            match outcome {
                Ok(End::TimeOver { seen, version }) => {
                    resumes = true;
                    begin = Begin::Resume { seen, version };
                }
                Ok(End::Over) => {}
                Ok(End::NoInitialEvents) => {
                    begin = Begin::List;
                    continue;
                }
                Err(error) => {
                    sends_too_much = error.is_too_much();
                    self.tell(&error);
                }
            }
            // One that ends at once, or that never shows everything, is not asked again at once.
            if self.published.borrow().live && begun.elapsed() >= WORTHWHILE {
                pause.reset();
            }
            let pause = match sends_too_much {
                true => pause.after_refusal(),
                false => pause.after_failure(),
            };
            self.published.send_if_modified(|picture| {
                let ends = picture.live && !resumes;
                if ends {
                    Arc::make_mut(picture).live = false;
                }
                ends
            });
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                // The credentials are others, so why wait? The server may be another one too.
                _ = link.changed() => {
                    link.mark_changed();
                    begin = Begin::InitialEvents;
                }
            }
        }
    }

    /// One watch, from its beginning to its end.
    async fn follow(&self, link: &Link, begin: Begin<T>) -> Result<End<T>, ApiError> {
        let Some(clients) = link else { return std::future::pending().await };
        let (client, path) = (self.manner.client(clients), &self.collection_path());
        // The server counts in seconds.
        let timeout = Duration::from_secs((self.at_least + jitter(self.at_least)).as_secs());
        let (published, manner) = (&self.published, self.manner);
        let streams = matches!(begin, Begin::InitialEvents);
        let resumes = matches!(begin, Begin::Resume { .. });
        let (mut seen, version) = match begin {
            Begin::InitialEvents => (Seen::default(), String::new()),
            Begin::List => {
                let (mut seen, version) = list(client, path, published).await?;
                seen.publish_all(published, manner);
                (seen, version)
            }
            Begin::Resume { seen, version } => (seen, version),
        };
        let mut query = format!(
            "{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={}",
            timeout.as_secs()
        );
        if streams {
            query += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        }
        query = format!("{query}&resourceVersion={version}");
        let begun = Instant::now();
        let mut events = match in_time(open(client, &query)).await {
            Ok(body) => Events::new(body),
            Err(error) => match error.code() {
                // By the server's age: it knows no initial events.
                Some(400 | 422) if streams => return Ok(End::NoInitialEvents),
                Some(410) if resumes => return Ok(End::Over),
                _ => return Err(error),
            },
        };
        let end = Instant::now() + timeout + GRACE;
        let mut next_by = Instant::now() + GRACE;
        loop {
            // A way that loses packets and says nothing is not waited on for ever.
            let deadline = if seen.coming.is_some() { next_by } else { end };
            let Ok(next) = tokio::time::timeout_at(deadline, events.next::<T>()).await else {
                return Err(ApiError::Late(GRACE));
            };
            next_by = Instant::now() + GRACE;
            match next? {
                None => {
                    let newest = events.into_version();
                    let version = if newest.is_empty() { version } else { newest };
                    // The server counts by its own clock.
                    let in_time = begun.elapsed() >= timeout - timeout / 100;
                    return Ok(
                        match in_time && seen.can_go_on(self.resync) && !version.is_empty() {
                            true => End::TimeOver { seen, version },
                            false => End::Over,
                        },
                    );
                }
                Some(WatchEvent::Changed(read)) => {
                    if let Some((key, found)) = seen.take(read, published)? {
                        published.send_modify(|picture| Arc::make_mut(picture).put(key, found));
                    }
                }
                Some(WatchEvent::Deleted { key }) => {
                    if seen.remove(&key) {
                        published.send_modify(|picture| Arc::make_mut(picture).remove(&key));
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

/// What a watch, and those before it that it goes on from, have shown, and what that weighs.
struct Seen<T> {
    /// What came before everything was shown; `None` from then on.
    coming: Option<WatchCache<T>>,
    weights: BTreeMap<String, usize>,
    weight: usize,
    since: Instant,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        let (coming, weights) = (Some(WatchCache::default()), BTreeMap::new());
        Self { coming, weights, weight: 0, since: Instant::now() }
    }
}

impl<T: Watched> Seen<T> {
    /// Takes an object; gives it back with its key when it is to be published at once.
    fn take(
        &mut self,
        read: MaybeRead<T>,
        published: &watch::Sender<Arc<WatchCache<T>>>,
    ) -> Result<Option<(String, Found<T>)>, ApiError> {
        let (key, found) = match read {
            Ok(object) => self.weigh(object, published)?,
            Err(unread) => {
                let Unread { key, uid, error } = *unread;
                (key.clone(), self.leave_out(&key, uid, error)?)
            }
        };
        match &mut self.coming {
            Some(coming) => {
                coming.put(key, found);
                Ok(None)
            }
            None => Ok(Some((key, found))),
        }
    }

    fn weigh(
        &mut self,
        mut object: T,
        published: &watch::Sender<Arc<WatchCache<T>>>,
    ) -> Result<(String, Found<T>), ApiError> {
        share_with_published(&mut object, published);
        let key = object.key();
        let weight = object.weight() + size_of::<T>() + 2 * key.len() + ENTRY_BYTES;
        self.forget_weight(&key);
        let found = if self.weight.saturating_add(weight) > T::MAX_WEIGHT {
            self.leave_out(&key, object.uid().to_owned(), ApiError::TooMuch)?
        } else {
            self.add_weight(&key, weight);
            Found::Object(Arc::new(object))
        };
        Ok((key, found))
    }

    /// Leaves an object out, where the watch need not fail over it. What is kept of it weighs, too,
    /// and may exceed the bound by an eighth.
    fn leave_out(&mut self, key: &str, uid: String, error: ApiError) -> Result<Found<T>, ApiError> {
        let why = error.to_string();
        self.forget_weight(key);
        self.add_weight(key, 3 * key.len() + uid.len() + why.len() + ENTRY_BYTES);
        if !T::LEAVES_OUT || key.is_empty() || uid.is_empty() {
            return Err(error);
        }
        if self.weight > T::MAX_WEIGHT + T::MAX_WEIGHT / 8 {
            return Err(ApiError::TooMuch);
        }
        Ok(Found::LeftOut(LeftOut { uid, why }))
    }

    fn forget_weight(&mut self, key: &str) {
        self.weight = self.weight.saturating_sub(self.weights.remove(key).unwrap_or_default());
    }

    fn add_weight(&mut self, key: &str, weight: usize) {
        self.weights.insert(key.to_owned(), weight);
        self.weight = self.weight.saturating_add(weight);
    }

    /// Drops an object; whether that is to be published at once.
    fn remove(&mut self, key: &str) -> bool {
        self.forget_weight(key);
        match &mut self.coming {
            Some(coming) => {
                coming.remove(key);
                false
            }
            None => true,
        }
    }

    /// Whether another watch may go on from here: everything was shown, not too long ago.
    fn can_go_on(&self, resync: Duration) -> bool {
        self.coming.is_none() && self.since.elapsed() < resync
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

fn share_with_published<T: Watched>(object: &mut T, published: &watch::Sender<Arc<WatchCache<T>>>) {
    if let Some(previous) = published.borrow().objects.get(&object.key()) {
        object.share(previous);
    }
}

async fn open(client: &ApiClient, query: &str) -> Result<Body, ApiError> {
    let request = Request::get(query)
        .header(http::header::ACCEPT, "application/json")
        .body(Full::default())
        .map_err(|error| ApiError::Failed(error.to_string()))?;
    answer::accepted(client.send(request).await?).await
}

/// Everything, and its version.
async fn list<T: Watched>(
    client: &ApiClient,
    path: &str,
    published: &watch::Sender<Arc<WatchCache<T>>>,
) -> Result<(Seen<T>, String), ApiError> {
    let text = async { answer::text(open(client, path).await?, answer::MAX_LIST_BYTES).await };
    let (items, version) = answer::page::<T>(&in_time(text).await?)?;
    let mut seen = Seen::default();
    for item in items {
        seen.take(item, published)?;
    }
    Ok((seen, version))
}

fn publish<T>(published: &watch::Sender<Arc<WatchCache<T>>>, all: WatchCache<T>, manner: Manner) {
    if published.borrow().trouble.is_some() {
        match manner {
            Manner::Alone => tracing::info!("the API server is watched again"),
            Manner::OneOfMany { .. } => tracing::debug!("an object is watched again"),
        }
    }
    published.send_replace(Arc::new(WatchCache { whole: true, live: true, ..all }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{
        api::client::{self, ApiClient},
        model::k8s,
    };
    use futures_util::{StreamExt as _, stream};
    use http::Response;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::Frame;
    use std::sync::Mutex;
    use tokio::task::JoinSet;

    /// What a server answers to one watch.
    enum Answered {
        /// These lines, and the end when the time is over that was asked for.
        InTime(&'static [&'static str]),
        /// These lines, and the end at once.
        AtOnce(&'static [&'static str]),
        Gone,
        /// Nothing.
        Silence,
    }

    const FIRST: &[&str] = &[
        r#"{"type": "ADDED", "object": {"metadata": {"name": "n1", "resourceVersion": "3"}}}"#,
        r#"{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7",
            "annotations": {"k8s.io/initial-events-end": "true"}}}}"#,
    ];
    const EXPIRED: &[&str] =
        &[r#"{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired",
            "message": "too old resource version: 7 (9)"}}"#];
    const SECOND: &[&str] =
        &[r#"{"type": "ADDED", "object": {"metadata": {"name": "n2", "resourceVersion": "9"}}}"#];

    fn body(lines: &[&str], then: Duration) -> Body {
        let text: String = lines.iter().map(|line| line.replace('\n', "") + "\n").collect();
        let first = stream::iter([Ok(Frame::data(text.into()))]);
        let wait = stream::once(tokio::time::sleep(then)).filter_map(|()| async { None });
        StreamBody::new(first.chain(wait)).boxed_unsync()
    }

    /// A reflector of a server with these answers, what it publishes, and the versions that it asks
    /// for: `all` for everything.
    async fn asked(answers: Vec<Answered>) -> (Vec<String>, Arc<WatchCache<k8s::Node>>) {
        asked_with(RESYNC, answers).await
    }

    async fn asked_with(
        resync: Duration,
        answers: Vec<Answered>,
    ) -> (Vec<String>, Arc<WatchCache<k8s::Node>>) {
        let last = answers.len();
        let answers = Mutex::new(answers.into_iter());
        let (versions, mut asked) = watch::channel(Vec::new());
        let client = ApiClient::new(move |request| {
            let path = request.uri().to_string();
            let field = |name: &str| {
                let found = path.split('&').find_map(|field| field.strip_prefix(name));
                found.unwrap_or_default().to_owned()
            };
            let version = match &*field("sendInitialEvents=") {
                "true" => "all".to_owned(),
                _ => field("resourceVersion="),
            };
            versions.send_modify(|all: &mut Vec<String>| all.push(version));
            let timeout = Duration::from_secs(field("timeoutSeconds=").parse().unwrap());
            let answer = match answers.lock().unwrap().next().unwrap() {
                Answered::InTime(lines) => Some(Response::new(body(lines, timeout))),
                Answered::AtOnce(lines) => Some(Response::new(body(lines, Duration::ZERO))),
                Answered::Gone => {
                    Some(Response::builder().status(410).body(client::whole("{}")).unwrap())
                }
                Answered::Silence => None,
            };
            async move {
                match answer {
                    Some(answer) => Ok(answer),
                    None => std::future::pending().await,
                }
            }
        });
        let (_link, link) = watch::channel(Some(Arc::new(Clients::of_client(&client))));
        let (reflector, picture) =
            Reflector::<k8s::Node>::new("/api/v1/nodes", "metadata.name=n1".to_owned(), link);
        let reflector = Reflector { at_least: Duration::from_secs(1), resync, ..reflector };
        let mut tasks = JoinSet::new();
        tasks.spawn(reflector.run(CancellationToken::new()));
        let all = asked.wait_for(|asked| asked.len() == last).await.unwrap().clone();
        (all, Arc::clone(&picture.borrow()))
    }

    fn names(picture: &WatchCache<k8s::Node>) -> Vec<&str> {
        picture.objects.keys().map(String::as_str).collect()
    }

    /// An object of a size of its own.
    #[derive(Clone, Debug, serde::Deserialize)]
    struct Thing<const LEAVES_OUT: bool> {
        name: String,
        weight: usize,
    }

    impl<const LEAVES_OUT: bool> Watched for Thing<LEAVES_OUT> {
        const MAX_WEIGHT: usize = 100_000;
        const LEAVES_OUT: bool = LEAVES_OUT;

        fn key(&self) -> String {
            self.name.clone()
        }

        fn weight(&self) -> usize {
            self.weight
        }

        fn uid(&self) -> &str {
            "uid"
        }
    }

    fn thing<const LEAVES_OUT: bool>(name: &str, weight: usize) -> MaybeRead<Thing<LEAVES_OUT>> {
        Ok(Thing { name: name.to_owned(), weight })
    }

    fn unread<T>(key: &str) -> MaybeRead<T> {
        let (key, uid) = (key.to_owned(), "uid".to_owned());
        Err(Box::new(Unread { key, uid, error: ApiError::TooMany(7) }))
    }

    #[test]
    fn one_object_that_is_too_large_hides_no_other() {
        let (published, _) = watch::channel(Arc::default());
        let mut seen = Seen::default();
        let mut take = |taken: MaybeRead<Thing<true>>| seen.take(taken, &published).map(drop);
        assert_eq!(take(thing("first", 60_000)), Ok(()));
        assert_eq!(take(thing("second", 60_000)), Ok(()));
        assert_eq!(take(unread("third")), Ok(()));
        assert_eq!(take(thing("fourth", 10_000)), Ok(()));
        // It was small enough before.
        assert_eq!(take(thing("fifth", 1)), Ok(()));
        assert_eq!(take(thing("fifth", 60_000)), Ok(()));
        assert_eq!(take(unread("")), Err(ApiError::TooMany(7)), "which one is not known");
        seen.publish_all(&published, Manner::Alone);
        let picture = Arc::clone(&published.borrow());
        assert_eq!(picture.objects.keys().collect::<Vec<_>>(), ["first", "fourth"]);
        let why: Vec<_> =
            picture.left_out.iter().map(|(key, one)| (key.as_str(), one.why.as_str())).collect();
        let too_much = "the watch shows more than the agent keeps";
        let too_many = "the answer has an object with more than 7 values";
        assert_eq!(why, [("fifth", too_much), ("second", too_much), ("third", too_many)]);
        // From now on each change is published at once.
        let change = seen.take(thing("second", 1), &published).unwrap();
        let (key, found) = change.unwrap();
        published.send_modify(|picture| Arc::make_mut(picture).put(key, found));
        assert!(published.borrow().objects.contains_key("second"));
        assert!(!published.borrow().left_out.contains_key("second"));
    }

    #[test]
    fn a_watch_may_also_fail_over_one_object() {
        let (published, _) = watch::channel(Arc::default());
        let mut seen = Seen::default();
        let mut take = |taken: MaybeRead<Thing<false>>| seen.take(taken, &published).map(drop);
        assert_eq!(take(unread("first")), Err(ApiError::TooMany(7)));
        assert_eq!(take(thing("second", 200_000)), Err(ApiError::TooMuch));
    }

    #[test]
    fn objects_that_are_left_out_have_a_bound() {
        let (published, _) = watch::channel(Arc::default());
        let mut seen = Seen::<Thing<true>>::default();
        let mut outcomes =
            (0..1000).map(|n| seen.take(unread(&format!("{n}")), &published).map(drop));
        assert_eq!(outcomes.find(Result::is_err), Some(Err(ApiError::TooMuch)));
    }

    #[tokio::test]
    async fn a_watch_whose_time_is_over_goes_on_from_its_version() {
        use Answered::{Gone, InTime, Silence};
        let (versions, picture) =
            asked(vec![InTime(FIRST), InTime(&[]), InTime(SECOND), Silence]).await;
        assert_eq!(versions, ["all", "7", "7", "9"]);
        assert!(picture.live);
        assert_eq!(names(&picture), ["n1", "n2"]);
        let (versions, picture) = asked(vec![InTime(FIRST), Gone, Silence]).await;
        assert_eq!(versions, ["all", "7", "all"]);
        assert!(!picture.live);
    }

    #[tokio::test]
    async fn everything_is_shown_again_after_the_resync_period() {
        use Answered::{InTime, Silence};
        // Each watch lasts a second.
        let resync = Duration::from_millis(1900);
        let answers = vec![InTime(FIRST), InTime(SECOND), InTime(FIRST), Silence];
        let (versions, picture) = asked_with(resync, answers).await;
        assert_eq!(versions, ["all", "7", "all", "7"]);
        assert_eq!(names(&picture), ["n1"], "the deletion of the other one was lost");
    }

    #[tokio::test]
    async fn a_version_that_expires_during_a_watch_begins_anew() {
        use Answered::{InTime, Silence};
        let (versions, picture) = asked(vec![InTime(FIRST), InTime(EXPIRED), Silence]).await;
        assert_eq!(versions, ["all", "7", "all"]);
        assert!(!picture.live);
        assert_eq!((&picture.trouble, names(&picture)), (&None, vec!["n1"]), "that is no trouble");
    }

    #[tokio::test]
    async fn a_watch_that_ends_early_begins_anew() {
        use Answered::{AtOnce, InTime, Silence};
        let (versions, picture) = asked(vec![AtOnce(FIRST), Silence]).await;
        assert_eq!(versions, ["all", "all"]);
        assert!(!picture.live);
        assert_eq!(names(&picture), ["n1"], "what was seen is kept");
        // Not everything was shown.
        let (versions, _) = asked(vec![InTime(&FIRST[..1]), Silence]).await;
        assert_eq!(versions, ["all", "all"]);
    }
}
