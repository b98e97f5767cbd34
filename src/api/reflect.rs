//! What the API server has: a copy of a few objects, kept by a watch.
//!
//! ```text
//!  begin ─► watch with initial events ─► every object, a mark ─► WatchCache, then each change
//!    ▲             │ the server has no such thing                  ▲    │
//!    │             └─► list ────► watch from a version ────────────┘    │
//!    │                              ▲                                   │
//!    │                              └── its time is over ◄──────────────┤
//!    └── a pause of 2 s at most ◄── the stream breaks, ends early, is too old, or a resync is due
//!         (20 s where the server refuses it or sends more than the agent keeps, and for watches of
//!          single objects where it answers with any error)
//! ```
//!
//! The server ends a watch after the time that was asked for. The next one goes on from the newest
//! version, so that nothing is shown twice, unless everything is due again ([`RESYNC`]). A watch that
//! ends in any other way is begun anew with everything: the server may be another one, or have lost
//! what it had. That the way to the server is broken is noticed by the connection's pings. What was
//! seen last stays published, as it is better than nothing; [`WatchCache::live`] tells the
//! difference.

mod seen;

pub use seen::{LeftOut, WatchCache, Watched};

use super::{
    ApiError, Link, Pause, REQUEST_DEADLINE,
    answer::{self, Events, WatchEvent},
    client::{ApiClient, Body, Clients},
    jitter,
};
use http::Request;
use http_body_util::Full;
use seen::Seen;
use std::{sync::Arc, time::Duration};
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
/// How long the server may take to end a watch, and to send the next object while it sends what
/// there is at its beginning.
const GRACE: Duration = Duration::from_secs(30);
/// Items of a page of a list, at first.
const PAGE_ITEMS: usize = 100;

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

    /// How long to wait after an error. An API server that answers with an error may be overloaded:
    /// hundreds of watches do not ask it again and again.
    fn pause(self, pause: &mut Pause, error: &ApiError) -> Duration {
        match self {
            Self::OneOfMany { .. } if error.code().is_some() => pause.after_refusal(),
            Self::Alone | Self::OneOfMany { .. } => pause.after(error),
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
    /// It ended early, its version is too old, everything is due again, or there is room for what
    /// was left out. The next one begins with everything.
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
            // One that ends at once, or that never shows everything, is not asked again at once.
            if self.published.borrow().live && begun.elapsed() >= WORTHWHILE {
                pause.reset();
            }
            // A server without initial events is asked for them again after each failure: the next
            // one may be newer.
            let mut resumes = false;
            let wait = match outcome {
                Ok(End::TimeOver { seen, version }) => {
                    resumes = true;
                    begin = Begin::Resume { seen, version };
                    pause.after_failure()
                }
                Ok(End::Over) => pause.after_failure(),
                Ok(End::NoInitialEvents) => {
                    begin = Begin::List;
                    continue;
                }
                Err(error) => {
                    self.tell(&error);
                    self.manner.pause(&mut pause, &error)
                }
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
                () = tokio::time::sleep(wait) => {}
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
                publish(published, &mut seen, manner);
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
            Ok(body) => Events::new(body, T::LEAVES_OUT),
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
            let deadline = if seen.is_whole() { end } else { next_by };
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
                    // Apart, because the picture is borrowed for it.
                    let change = seen.take(read, &published.borrow())?;
                    if let Some((key, found)) = change {
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
                        publish(published, &mut seen, manner);
                    }
                }
                Some(WatchEvent::Error(status)) => match status.code {
                    410 => return Ok(End::Over),
                    _ => return Err(answer::refused(*status)),
                },
            }
            if seen.has_room_again() {
                return Ok(End::Over);
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

async fn in_time<T>(work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    let late = Err(ApiError::Late(REQUEST_DEADLINE));
    tokio::time::timeout(REQUEST_DEADLINE, work).await.unwrap_or(late)
}

async fn open(client: &ApiClient, query: &str) -> Result<Body, ApiError> {
    let request = Request::get(query)
        .header(http::header::ACCEPT, "application/json")
        .body(Full::default())
        .map_err(|error| ApiError::Failed(error.to_string()))?;
    answer::accepted(client.send(request).await?).await
}

/// Everything, and its version. Pages become smaller where one is larger than the agent reads.
async fn list<T: Watched>(
    client: &ApiClient,
    path: &str,
    published: &watch::Sender<Arc<WatchCache<T>>>,
) -> Result<(Seen<T>, String), ApiError> {
    let (mut seen, mut limit, mut rest) = (Seen::default(), PAGE_ITEMS, String::new());
    loop {
        let query = format!("{path}&limit={limit}{rest}");
        let text =
            async { answer::text(open(client, &query).await?, answer::MAX_TEXT_BYTES).await };
        let text = match in_time(text).await {
            // A page has room for any single object.
            Err(ApiError::TooLarge(_)) if limit > 1 => {
                limit /= 10;
                continue;
            }
            text => text?,
        };
        let (items, metadata) = answer::page::<T>(&text)?;
        for item in items {
            seen.take(item, &published.borrow())?;
        }
        if metadata.next.is_empty() {
            return Ok((seen, metadata.resource_version));
        }
        rest = format!("&continue={}", metadata.next);
    }
}

/// Publishes everything, the first time that everything was shown.
fn publish<T: Watched>(
    published: &watch::Sender<Arc<WatchCache<T>>>,
    seen: &mut Seen<T>,
    manner: Manner,
) {
    let Some(all) = seen.take_all() else { return };
    if published.borrow().trouble.is_some() {
        match manner {
            Manner::Alone => tracing::info!("the API server is watched again"),
            Manner::OneOfMany { .. } => tracing::debug!("an object is watched again"),
        }
    }
    published.send_replace(Arc::new(all));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{
        api::{
            MAX_PAUSE, MAX_REFUSAL_PAUSE,
            client::{self, ApiClient},
            error::Status,
        },
        model::k8s,
    };
    use futures_util::{StreamExt as _, stream};
    use http::Response;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::Frame;
    use std::sync::Mutex;
    use tokio::task::JoinSet;

    #[test]
    fn watches_of_single_objects_leave_an_overloaded_server_alone() {
        let code = 429;
        let overloaded = ApiError::Refused(Box::new(Status { code, ..Status::default() }));
        let away = ApiError::Failed("connection refused".to_owned());
        for (manner, error, longest) in [
            (Manner::OneOfMany { number: 7 }, &overloaded, MAX_REFUSAL_PAUSE),
            (Manner::OneOfMany { number: 7 }, &away, MAX_PAUSE),
            (Manner::Alone, &overloaded, MAX_PAUSE),
        ] {
            let mut pause = Pause::default();
            let last = (0..10).map(|_| manner.pause(&mut pause, error)).last().unwrap();
            assert!(last > longest / 2 && last <= longest, "{manner:?} {error}: {last:?}");
        }
    }

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
        asked_with(Duration::from_secs(1), RESYNC, answers).await
    }

    async fn asked_with(
        at_least: Duration,
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
        let reflector = Reflector { at_least, resync, ..reflector };
        let mut tasks = JoinSet::new();
        tasks.spawn(reflector.run(CancellationToken::new()));
        let all = asked.wait_for(|asked| asked.len() == last).await.unwrap().clone();
        (all, Arc::clone(&picture.borrow()))
    }

    fn names(picture: &WatchCache<k8s::Node>) -> Vec<&str> {
        picture.objects.keys().map(String::as_str).collect()
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
        // The resync period is over just before the second watch is.
        let (watch, resync) = (Duration::from_secs(3), Duration::from_millis(5900));
        let answers = vec![InTime(FIRST), InTime(SECOND), InTime(FIRST), Silence];
        let (versions, picture) = asked_with(watch, resync, answers).await;
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

    #[tokio::test]
    async fn a_list_comes_in_pages_that_are_small_enough() {
        let client = ApiClient::new(|request| {
            let item = |name: &str, next: &str| {
                format!(
                    r#"{{"metadata": {{"resourceVersion": "7", "continue": "{next}"}},
                        "items": [{{"metadata": {{"name": "{name}"}}}}]}}"#
                )
            };
            let text = match request.uri().query().unwrap() {
                "fieldSelector=&limit=100" => "x".repeat(answer::MAX_TEXT_BYTES + 1),
                "fieldSelector=&limit=10" => item("n1", "more"),
                "fieldSelector=&limit=10&continue=more" => item("n2", ""),
                query => panic!("{query}"),
            };
            async { Ok(Response::new(client::whole(text))) }
        });
        let published = watch::Sender::default();
        let listed = list::<k8s::Node>(&client, "/api/v1/nodes?fieldSelector=", &published).await;
        let (mut seen, version) = listed.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(version, "7");
        assert_eq!(names(&seen.take_all().unwrap()), ["n1", "n2"]);
    }

    /// An object that takes more than half of the room.
    #[derive(Clone, serde::Deserialize)]
    struct Large {
        metadata: serde_json::Value,
    }

    impl Watched for Large {
        const MAX_WEIGHT: usize = 10_000;
        const LEAVES_OUT: bool = true;

        fn key(&self) -> String {
            self.metadata["name"].as_str().unwrap().to_owned()
        }

        fn head(&self) -> answer::ObjectHead {
            answer::ObjectHead { uid: self.key(), ..answer::ObjectHead::default() }
        }

        fn weight(&self) -> usize {
            6_000
        }
    }

    #[tokio::test]
    async fn a_watch_begins_anew_when_there_is_room_for_more() {
        const LINES: [&str; 4] = [
            r#"{"type": "ADDED", "object": {"metadata": {"name": "1"}}}"#,
            r#"{"type": "ADDED", "object": {"metadata": {"name": "2"}}}"#,
            FIRST[1],
            r#"{"type": "DELETED", "object": {"metadata": {"name": "1"}}}"#,
        ];
        let long = Duration::from_secs(3600);
        let client = ApiClient::new(move |_| {
            let answer = Response::new(body(&LINES, long));
            async { Ok(answer) }
        });
        let link = Some(Arc::new(Clients::of_client(&client)));
        let (reflector, picture) =
            Reflector::<Large>::new("/api/v1/pods", String::new(), watch::channel(None).1);
        let watched = reflector.follow(&link, Begin::InitialEvents);
        let end = tokio::time::timeout(Duration::from_secs(30), watched).await;
        assert!(matches!(end, Ok(Ok(End::Over))));
        assert_eq!(picture.borrow().left_out.keys().collect::<Vec<_>>(), ["2"]);
    }
}
