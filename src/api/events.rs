//! Writes events to the API server: what the log has and the server was not told yet.
//!
//! The log is bounded and aggregates by itself, so that an absence of any length costs no more
//! memory than the log, and ends in one write per entry with the count that it has by then.

use super::{ApiError, Clients, Link, Pause, Verb, write};
use crate::{
    clock,
    event::{Entry, EventLog, MAX_ENTRIES, to_object},
    model::{Bucket, k8s},
    publish::PublishIfChanged as _,
};
use serde::de::IgnoredAny;
use serde_json::json;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Writes of one type about one object: so many at once, and one more in so many seconds (the
/// kubelet's spam filter).
const OBJECT_BURST: u32 = 25;
const OBJECT_REFILL: Duration = Duration::from_secs(300);
/// Between two looks at what had to wait.
const LATER: Duration = Duration::from_secs(10);
/// A write that takes this long probably waits for a webhook.
const SLOW: Duration = Duration::from_secs(5);

/// The task.
#[derive(Debug)]
pub struct EventsTask {
    /// Name of the node.
    pub node: String,
    /// The way to the server.
    pub link: watch::Receiver<Link>,
    /// What happened.
    pub log: watch::Receiver<Arc<EventLog>>,
    /// `eventRecordQPS` and `eventBurst`; no limit without.
    pub budget: Option<Bucket>,
    /// How many events wait.
    pub waiting: watch::Sender<usize>,
}

/// Counts that the server was told, by number of the entry.
type Written = HashMap<u64, u32>;
/// When each subject ([`subject_of`]) may have all of its writes again, by boot time.
type Allowances = HashMap<String, Duration>;

impl EventsTask {
    /// Writes until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut written: Written = Written::new();
        let mut allowances: Allowances = Allowances::new();
        let mut pause = Pause::default();
        loop {
            let clients = self.link.borrow_and_update().clone();
            let log = Arc::clone(&self.log.borrow_and_update());
            let outcome = match clients {
                None => Ok(Duration::MAX),
                Some(clients) => {
                    // Cancel-safe: a write that is dropped is made again; the name makes that
                    // harmless.
                    tokio::select! {
                        () = shutdown.cancelled() => return,
                        outcome = self.write(&clients, &log, &mut written, &mut allowances) => outcome,
                    }
                }
            };
            let (wait, failed) = match outcome {
                Ok(wait) => (wait, false),
                Err(error) => {
                    tracing::debug!(err = %error, "cannot write an event");
                    (pause.after_failure(), true)
                }
            };
            if !failed {
                pause.reset();
            }
            // Cancel-safe: every arm only waits.
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                changed = self.link.changed() => if changed.is_err() { return },
                // One more event is no reason to think that the API server is back.
                changed = self.log.changed(), if !failed => if changed.is_err() { return },
            }
        }
    }

    /// Writes what is new. How long to wait when nothing happens meanwhile.
    async fn write(
        &mut self,
        clients: &Clients,
        log: &EventLog,
        written: &mut Written,
        allowances: &mut Allowances,
    ) -> Result<Duration, ApiError> {
        if written.len() > 2 * MAX_ENTRIES {
            let kept: HashSet<u64> = log.entries.iter().map(|entry| entry.number).collect();
            written.retain(|number, _| kept.contains(number));
        }
        let mut pass = Pass::default();
        for entry in &log.entries {
            if is_written(entry, written) {
                continue;
            }
            let object = to_object(entry, &self.node);
            if pass.leaves_out(&object) {
                continue;
            }
            let now = clock::now().boot;
            let subject = subject_of(&object);
            if !may_write(allowances, &subject, now) {
                pass.wait = LATER;
                continue;
            }
            while let Some(rest) = self.budget.as_mut().and_then(|b| b.wait(clock::now().boot)) {
                tokio::time::sleep(rest).await;
            }
            let known = written.contains_key(&entry.number);
            let begun = clock::now().boot;
            let sent = send(clients, &object, known).await;
            let took = clock::now().boot.saturating_sub(begun);
            match sent {
                Ok(()) => {
                    charge(allowances, subject, now);
                    written.insert(entry.number, entry.count);
                }
                Err(error) => {
                    if let Err(error) = pass.go_on_after(error, &object) {
                        self.publish_waiting(log, written);
                        return Err(error);
                    }
                }
            }
            pass.note_time(took, &object);
        }
        self.publish_waiting(log, written);
        Ok(pass.wait)
    }

    fn publish_waiting(&self, log: &EventLog, written: &Written) {
        let waiting = log.entries.iter().filter(|entry| !is_written(entry, written)).count();
        self.waiting.publish_if_changed(waiting);
    }
}

/// One look at all entries.
struct Pass {
    /// Before the next one, when nothing happens meanwhile.
    wait: Duration,
    /// The namespace of the write whose answer came late, or never.
    late_in: Option<String>,
}

impl Default for Pass {
    fn default() -> Self {
        Self { wait: Duration::MAX, late_in: None }
    }
}

impl Pass {
    /// Events of a namespace whose webhook hangs wait for the next pass.
    fn leaves_out(&self, event: &k8s::Event) -> bool {
        self.late_in.is_some() && self.late_in == event.metadata.namespace
    }

    /// The other events of a namespace wait when one of them took long, whatever came of it.
    fn note_time(&mut self, took: Duration, event: &k8s::Event) {
        if took >= SLOW && self.late_in.is_none() {
            self.late_in.clone_from(&event.metadata.namespace);
            self.wait = LATER;
        }
    }

    /// Goes on after a failure that may have to do with this event alone. If the API server itself
    /// hangs, the next write fails, too.
    fn go_on_after(&mut self, error: ApiError, event: &k8s::Event) -> Result<(), ApiError> {
        if matches!(error, ApiError::Late(_)) && self.late_in.is_none() {
            self.late_in.clone_from(&event.metadata.namespace);
        } else if !error.is_of_webhook() {
            return Err(error);
        }
        tracing::debug!(err = %error, "cannot write an event");
        self.wait = LATER;
        Ok(())
    }
}

fn is_written(entry: &Entry, written: &Written) -> bool {
    written.get(&entry.number) == Some(&entry.count)
}

/// Events of one type about one incarnation of an object share an allowance.
fn subject_of(event: &k8s::Event) -> String {
    let (type_, uid) = (event.type_.as_deref(), event.involved_object.uid.as_deref());
    format!("{} {}", type_.unwrap_or_default(), uid.unwrap_or_default())
}

fn may_write(allowances: &mut Allowances, subject: &str, now: Duration) -> bool {
    allowances.retain(|_, full_at| *full_at > now);
    let full_at = allowances.get(subject).copied().unwrap_or(now);
    full_at + OBJECT_REFILL <= now + OBJECT_REFILL * OBJECT_BURST
}

/// Only what was written counts: an API server that is away uses nothing up.
fn charge(allowances: &mut Allowances, subject: String, now: Duration) {
    *allowances.entry(subject).or_insert(now) += OBJECT_REFILL;
}

/// Creates it, or counts it up. What the server refuses for good counts as written.
async fn send(clients: &Clients, object: &k8s::Event, known: bool) -> Result<(), ApiError> {
    let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let events = format!("/api/v1/namespaces/{namespace}/events");
    let path = format!("{events}/{name}");
    if known {
        match count_up(clients, &path, object).await {
            // It has expired there.
            Err(error) if error.is_not_found() => {}
            counted => return counted.or_else(settled),
        }
    }
    match write::<IgnoredAny>(&clients.main, Verb::Create, &events, Some(object)).await {
        Ok(_) => Ok(()),
        // The answer to an earlier try was lost.
        Err(error) if !known && error.code() == Some(409) => {
            count_up(clients, &path, object).await.or_else(settled)
        }
        Err(error) => settled(error),
    }
}

async fn count_up(clients: &Clients, path: &str, object: &k8s::Event) -> Result<(), ApiError> {
    let patch = json!({
        "count": object.count,
        "lastTimestamp": object.last_timestamp,
        "message": object.message,
    });
    write::<IgnoredAny>(&clients.main, Verb::Patch, path, Some(&patch)).await.map(drop)
}

/// Whether a failure is the last word about an event.
fn settled(error: ApiError) -> Result<(), ApiError> {
    match error.code() {
        // Credentials may be replaced; a server that comes up is not ready to admit anything.
        Some(401 | 408 | 429 | 500..) | None => Err(error),
        Some(403) if error.to_string().contains("not yet ready") => Err(error),
        Some(code) => {
            tracing::debug!(code, err = %error, "the API server does not take an event");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{
        api::Status,
        event::Annotations,
        model::{Event, EventKind, EventTarget},
    };
    use jiff::Timestamp;
    use serde_json::Value;
    use std::sync::Mutex;

    /// The method of each request, and the count that it writes.
    type Requests = Arc<Mutex<Vec<(String, Value)>>>;

    /// A server that answers so to what makes an event, and to what counts it up.
    fn clients(requests: &Requests, (post, patch): (u16, u16)) -> Clients {
        let requests = Arc::clone(requests);
        Clients::of_server(move |method, _, body| {
            let status = if method == "PATCH" { patch } else { post };
            requests.lock().unwrap().push((method.to_string(), body["count"].clone()));
            (status, json!({ "status": "Failure", "code": status, "message": "gone" }))
        })
    }

    fn log_of(count: u32) -> EventLog {
        let event = Event {
            target: EventTarget::Node,
            kind: EventKind::Warning,
            reason: "BackOff",
            message: "again".to_owned(),
        };
        let at = Timestamp::UNIX_EPOCH;
        let annotations = Annotations::new();
        let entry =
            Entry { number: 1, event, annotations, combined: false, count, first: at, last: at };
        EventLog { entries: vec![Arc::new(entry)], dropped: 0 }
    }

    /// The requests that an event's first, third, third and fourth occurrence lead to.
    async fn requests_for_repeats(answers: (u16, u16)) -> Vec<(String, Value)> {
        let requests = Requests::default();
        let clients = clients(&requests, answers);
        let mut task = EventsTask {
            node: "n1".to_owned(),
            link: watch::channel(None).1,
            log: watch::channel(Arc::default()).1,
            budget: None,
            waiting: watch::Sender::default(),
        };
        let (mut written, mut allowances) = (Written::new(), Allowances::new());
        for count in [1, 3, 3, 4] {
            let log = log_of(count);
            let wait = task.write(&clients, &log, &mut written, &mut allowances).await.unwrap();
            assert_eq!(wait, Duration::MAX);
        }
        let requests = requests.lock().unwrap();
        requests.clone()
    }

    fn request(method: &str, count: u32) -> (String, Value) {
        (method.to_owned(), json!(count))
    }

    #[tokio::test]
    async fn repeats_are_written_with_their_count() {
        let [first, third, fourth] = [request("POST", 1), request("PATCH", 3), request("PATCH", 4)];
        assert_eq!(requests_for_repeats((201, 200)).await, [first, third, fourth]);
    }

    #[tokio::test]
    async fn a_repeat_of_an_expired_event_is_created_with_its_count() {
        let of = |count| [request("PATCH", count), request("POST", count)];
        let expected: Vec<_> = [request("POST", 1)].into_iter().chain(of(3)).chain(of(4)).collect();
        assert_eq!(requests_for_repeats((201, 404)).await, expected);
    }

    #[tokio::test]
    async fn an_event_that_a_lost_try_has_made_is_counted_up() {
        let first = [request("POST", 1), request("PATCH", 1)];
        let others = [request("PATCH", 3), request("PATCH", 4)];
        assert_eq!(requests_for_repeats((409, 200)).await, [first, others].concat());
    }

    #[test]
    fn a_pod_that_replaces_another_has_an_allowance_of_its_own() {
        let event = |type_: &str, uid: &str| {
            let mut event = to_object(&log_of(1).entries[0], "n1");
            event.type_ = Some(type_.to_owned());
            event.involved_object.uid = Some(uid.to_owned());
            subject_of(&event)
        };
        let (mut allowances, now) = (Allowances::new(), Duration::from_secs(1000));
        for _ in 0..OBJECT_BURST {
            assert!(may_write(&mut allowances, &event("Normal", "u1"), now));
            charge(&mut allowances, event("Normal", "u1"), now);
        }
        assert!(!may_write(&mut allowances, &event("Normal", "u1"), now));
        assert!(may_write(&mut allowances, &event("Warning", "u1"), now));
        assert!(may_write(&mut allowances, &event("Normal", "u2"), now));
    }

    #[test]
    fn a_webhook_that_hangs_holds_up_one_namespace_alone() {
        let event = |namespace: &str| {
            let mut event = to_object(&log_of(1).entries[0], "n1");
            event.metadata.namespace = Some(namespace.to_owned());
            event
        };
        let late = || ApiError::Late(Duration::from_secs(10));
        let mut pass = Pass::default();
        assert!(!pass.leaves_out(&event("a")));
        assert_eq!(pass.go_on_after(late(), &event("a")), Ok(()));
        assert_eq!([pass.leaves_out(&event("a")), pass.leaves_out(&event("b"))], [true, false]);
        assert_eq!(pass.wait, LATER);
        assert_eq!(pass.go_on_after(late(), &event("b")), Err(late()), "the server hangs");
        let mut pass = Pass::default();
        pass.note_time(SLOW - Duration::from_millis(1), &event("a"));
        assert_eq!((pass.leaves_out(&event("a")), pass.wait), (false, Duration::MAX));
        pass.note_time(SLOW, &event("a"));
        assert_eq!([pass.leaves_out(&event("a")), pass.leaves_out(&event("b"))], [true, false]);
        assert_eq!(pass.wait, LATER, "its answer came, but late");
        let away = || ApiError::Failed("connection refused".to_owned());
        assert_eq!(Pass::default().go_on_after(away(), &event("a")), Err(away()));
    }

    #[test]
    fn a_denial_by_a_webhook_is_the_last_word() {
        let of_webhook = |code, message: &str| {
            let message = format!("{message} \"a.example\"");
            ApiError::Refused(Box::new(Status { code, message, ..Status::default() }))
        };
        let denied = |code| of_webhook(code, "admission webhook");
        assert_eq!([settled(denied(400)), settled(denied(403))], [Ok(()), Ok(())]);
        let failed = || of_webhook(500, "failed calling webhook");
        assert_eq!(settled(failed()), Err(failed()));
    }
}
