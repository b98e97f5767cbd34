//! Reading what an API server, or a proxy before it, sends: never more than fits, whatever it is.
//!
//! Bytes are not the only measure: three bytes (`{},`) become an object of half a kilobyte. So the
//! values in a text are counted before it is decoded.

use super::{ApiError, Status, client::Body};
use crate::{
    mirror::Deletion,
    model::{TerminalPhase, from_json},
};
use http::Response;
use http_body_util::BodyExt as _;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::value::RawValue;

/// The largest object that is decoded, in bytes.
pub(super) const MAX_OBJECT_BYTES: usize = 4 << 20;
/// The most that is read of a line of a watch or of a page of a list, in bytes. etcd takes objects
/// of 1.5 MiB, and JSON of the API server has six bytes for each `<`: they become 9 MiB.
pub(super) const MAX_TEXT_BYTES: usize = 10 << 20;
/// The most values in one object. A node with a hundred images has a thousand.
const MAX_VALUES: usize = 25_000;
/// What a value takes in memory besides its text, roughly.
const VALUE_BYTES: usize = 200;
/// The most that is read of an error.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// The longest message of an error that is kept, in characters.
const MAX_MESSAGE: usize = 1024;

/// The body of an answer that is no error.
pub(super) async fn accepted(response: Response<Body>) -> Result<Body, ApiError> {
    let code = response.status();
    if !code.is_client_error() && !code.is_server_error() {
        return Ok(response.into_body());
    }
    let text = text(response.into_body(), MAX_ERROR_BYTES).await.unwrap_or_default();
    let status = object::<Status>(&text).ok().filter(|status| status.code != 0);
    let status = status.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&text);
        // An API server may close the connection of a client that it does not know before its words
        // have arrived.
        let message = match text.trim() {
            "" => code.canonical_reason().unwrap_or_default(),
            text => text,
        };
        Status { code: code.as_u16(), reason: "no Status".to_owned(), message: message.to_owned() }
    });
    Err(refused(status))
}

/// What an API server says of a failure, cut to what people read.
pub(super) fn refused(mut status: Status) -> ApiError {
    for text in [&mut status.message, &mut status.reason] {
        if let Some((end, _)) = text.char_indices().nth(MAX_MESSAGE) {
            text.truncate(end);
            text.push_str("...");
        }
    }
    ApiError::Refused(Box::new(status))
}

/// A whole body of at most `limit` bytes.
pub(super) async fn text(mut body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame?.into_data() {
            if text.len() + bytes.len() > limit {
                return Err(ApiError::TooLarge(limit));
            }
            text.extend_from_slice(&bytes);
        }
    }
    Ok(text)
}

/// An object from its JSON.
pub(super) fn object<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    if text.len() > MAX_OBJECT_BYTES {
        return Err(ApiError::TooLarge(MAX_OBJECT_BYTES));
    }
    if values(text) > MAX_VALUES {
        return Err(ApiError::TooMany(MAX_VALUES));
    }
    from_json(text).map_err(|error| damaged(&error))
}

/// The kind of a mistake, and its place in what is no JSON. Its text repeats what was sent.
fn damaged(error: &serde_json::Error) -> ApiError {
    let kind = if error.is_data() {
        "of another type than expected".to_owned()
    } else {
        format!("not JSON (line {}, column {})", error.line(), error.column())
    };
    ApiError::Failed(format!("the answer is {kind}"))
}

/// Number of values in a JSON text, roughly: one for each that can begin.
fn values(text: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (1, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' | b',' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

/// What an object takes in memory, roughly.
pub(super) fn weight(object: &impl Serialize) -> usize {
    serde_json::to_vec(object).map_or(0, |text| text.len() + values(&text) * VALUE_BYTES)
}

/// One event of a watch.
#[derive(Debug, PartialEq)]
pub(super) enum WatchEvent<T> {
    /// Added or modified.
    Changed(MaybeRead<T>),
    Deleted {
        /// `namespace/name`, or the name.
        key: String,
    },
    /// Behind the last initial event, or somewhere else.
    Bookmark {
        initial_end: bool,
    },
    Error(Box<Status>),
}

/// An object, or what is known of one that is not read.
pub(super) type MaybeRead<T> = Result<T, Box<Unread>>;

/// An object that can't be read, or is not, because it is too large.
#[derive(Debug, PartialEq)]
pub(super) struct Unread {
    /// `namespace/name`, or the name; empty where not even that can be read.
    pub key: String,
    pub head: ObjectHead,
    pub error: ApiError,
}

/// What is read of the metadata of every object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectHead {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`: grows with every write to the API server.
    pub version: u64,
    /// Somebody deleted it.
    pub deletion: Option<Deletion>,
    /// `status.phase`, if it is the final one of a pod.
    pub phase: Option<TerminalPhase>,
}

/// A list, with its items as text.
#[derive(Deserialize)]
pub(super) struct Page<'a> {
    pub metadata: PageMetadata,
    #[serde(borrow)]
    pub items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub resource_version: String,
    /// Asks for the next page; empty on the last one.
    #[serde(default, rename = "continue")]
    pub next: String,
}

/// The items of a page of a list from its JSON, and what is said of the list.
pub(super) fn page<T: DeserializeOwned>(
    text: &[u8],
) -> Result<(Vec<MaybeRead<T>>, PageMetadata), ApiError> {
    let page: Page<'_> = serde_json::from_slice(text).map_err(|error| damaged(&error))?;
    let items = page.items.into_iter().map(|item| {
        let text = item.get().as_bytes();
        read(text, || metadata(text).unwrap_or_default())
    });
    Ok((items.collect(), page.metadata))
}

fn read<T: DeserializeOwned>(text: &[u8], metadata: impl FnOnce() -> Metadata) -> MaybeRead<T> {
    object(text).map_err(|error| {
        let metadata = metadata();
        Box::new(Unread { key: metadata.key(), head: metadata.into_head(final_phase(text)), error })
    })
}

/// The events of a watch: lines of a body.
pub(super) struct Events {
    body: Body,
    /// The longest line, in bytes.
    longest: usize,
    read: Vec<u8>,
    /// Bytes of `read` that were searched for the end of a line.
    searched: usize,
    version: String,
}

impl Events {
    /// `leaves_out`: an object that is too large is left out, and so its line has to be read to the
    /// end.
    pub(super) fn new(body: Body, leaves_out: bool) -> Self {
        let longest = if leaves_out { MAX_TEXT_BYTES } else { MAX_OBJECT_BYTES };
        Self { body, longest, read: Vec::new(), searched: 0, version: String::new() }
    }

    /// The resource version of the newest event, from which another watch can go on; empty before
    /// there is one.
    pub(super) fn into_version(self) -> String {
        self.version
    }

    /// The next event; `None` at the end of the stream. What is left of a line there is dropped.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
    pub(super) async fn next<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<WatchEvent<T>>, ApiError> {
        loop {
            let fresh = self.read.get(self.searched..).unwrap_or_default();
            if let Some(end) = fresh.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                let line = self.read.get(..end).unwrap_or_default().trim_ascii();
                let event = (!line.is_empty()).then(|| event(line)).transpose()?;
                self.read.drain(..=end);
                self.searched = 0;
                if self.read.is_empty() {
                    // An idle watch must not keep a buffer as large as its largest object.
                    self.read = Vec::new();
                }
                let Some((event, version)) = event else { continue };
                if !version.is_empty() {
                    self.version = version;
                }
                return Ok(Some(event));
            }
            self.searched = self.read.len();
            if self.read.len() > self.longest {
                return Err(ApiError::TooLarge(self.longest));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.read.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}

/// An event and the version of its object; empty where the object has none.
fn event<T: DeserializeOwned>(line: &[u8]) -> Result<(WatchEvent<T>, String), ApiError> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let Line { kind, object: text } = match serde_json::from_slice(line) {
        Ok(line) => line,
        // A failure may also be said as it is.
        Err(error) => {
            let status = object::<Status>(line).ok().filter(|status| status.code != 0);
            return Err(status.map_or_else(|| damaged(&error), refused));
        }
    };
    let text = text.get().as_bytes();
    let metadata = metadata(text)?;
    let version = metadata.resource_version.clone();
    let event = match kind {
        "ADDED" | "MODIFIED" => WatchEvent::Changed(read(text, || metadata)),
        "DELETED" => WatchEvent::Deleted { key: metadata.key() },
        "BOOKMARK" => {
            let end = metadata.annotations.initial_end.is_some_and(|end| end == "true");
            WatchEvent::Bookmark { initial_end: end }
        }
        "ERROR" => WatchEvent::Error(object(text)?),
        _ => return Err(ApiError::Failed("the watch has an event of an unknown type".to_owned())),
    };
    Ok((event, version))
}

/// The part that all objects have in common, of an object of any size.
fn metadata(text: &[u8]) -> Result<Metadata, ApiError> {
    #[derive(Deserialize)]
    struct Object {
        #[serde(default)]
        metadata: Metadata,
    }
    let read = serde_json::from_slice(text).map_err(|error| damaged(&error));
    read.map(|Object { metadata }| metadata)
}

/// `status.phase` of an object of any size, if it is the final one of a pod.
fn final_phase(text: &[u8]) -> Option<TerminalPhase> {
    #[derive(Deserialize)]
    struct Object {
        status: Phase,
    }
    #[derive(Deserialize)]
    struct Phase {
        phase: TerminalPhase,
    }
    serde_json::from_slice(text).ok().map(|Object { status }| status.phase)
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: Option<String>,
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Vec<IgnoredAny>,
    annotations: EventAnnotations,
}

impl Metadata {
    /// As [`Watched::key`](super::reflect::Watched::key).
    fn key(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }

    fn into_head(self, phase: Option<TerminalPhase>) -> ObjectHead {
        let deletion = Deletion::new(
            self.deletion_timestamp.is_some(),
            self.deletion_grace_period_seconds,
            !self.finalizers.is_empty(),
        );
        let version = self.resource_version.parse().unwrap_or_default();
        ObjectHead { uid: self.uid, version, deletion, phase }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EventAnnotations {
    /// Of the bookmark behind the last initial event.
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_end: Option<String>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::api::client;
    use serde_json::{Value, json};

    fn body(text: impl Into<Vec<u8>>) -> Body {
        client::whole(text.into())
    }

    #[tokio::test]
    async fn events_are_lines() {
        let lines = concat!(
            "{\"type\": \"ADDED\", \"object\": {\"a\": 1}}\n\n",
            "{\"object\": {\"metadata\": {\"namespace\": \"a\", \"name\": \"b\"}}, \"type\": \"DELETED\"}\r\n",
            "{\"type\": \"BOOKMARK\", \"object\": {\"metadata\": {\"resourceVersion\": \"7\", \"annotations\": {\"k8s.io/initial-events-end\": \"true\"}}}}\n",
            "{\"type\": \"ADD",
        );
        let mut events = Events::new(body(lines), true);
        assert_eq!(
            events.next::<Value>().await.unwrap(),
            Some(WatchEvent::Changed(Ok(json!({"a": 1}))))
        );
        assert_eq!(
            events.next::<Value>().await.unwrap(),
            Some(WatchEvent::Deleted { key: "a/b".to_owned() })
        );
        assert_eq!(
            events.next::<Value>().await.unwrap(),
            Some(WatchEvent::Bookmark { initial_end: true })
        );
        assert_eq!(events.next::<Value>().await.unwrap(), None);
        assert_eq!(events.into_version(), "7");
    }

    #[tokio::test]
    async fn garbage_in_a_watch_is_an_error() {
        let deep = "[".repeat(100_000);
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        let texts =
            ["<html>\n", "null\n", "7\n", "{\"type\": \"X\", \"object\": 1}\n", &deep, &long];
        for text in texts {
            let outcome = Events::new(body(format!("{text}\n")), true).next::<Value>().await;
            let error = outcome.err().unwrap_or_else(|| panic!("{:.80} was taken", text));
            assert!(error.to_string().len() < 2000, "{error}");
        }
        for (leaves_out, longest) in [(true, MAX_TEXT_BYTES), (false, MAX_OBJECT_BYTES)] {
            let endless = Events::new(body(long.clone()), leaves_out).next::<Value>().await;
            assert_eq!(endless, Err(ApiError::TooLarge(longest)));
        }
    }

    #[tokio::test]
    async fn of_an_object_that_is_too_large_the_name_is_read() {
        // As the API server writes 1.2 MiB of `<`.
        let large = format!("\"spec\": \"{}\"", "\\u003c".repeat(1_200_000));
        let metadata = "\"metadata\": {\"namespace\": \"a\", \"name\": \"b\", \"uid\": \"u\"}";
        let large = format!("{{{large}, {metadata}}}");
        let unread = || {
            let head = ObjectHead { uid: "u".to_owned(), ..ObjectHead::default() };
            let error = ApiError::TooLarge(MAX_OBJECT_BYTES);
            Err(Box::new(Unread { key: "a/b".to_owned(), head, error }))
        };
        let lines = format!(
            "{{\"type\": \"ADDED\", \"object\": {large}}}\n{{\"type\": \"ADDED\", \"object\": {{}}}}\n"
        );
        let mut events = Events::new(body(lines), true);
        for expected in [unread(), Ok(json!({}))] {
            let event = events.next::<Value>().await.unwrap();
            assert_eq!(event, Some(WatchEvent::Changed(expected)));
        }
        assert_eq!(events.read.capacity(), 0, "an idle watch keeps no large buffer");
        let list =
            format!("{{\"metadata\": {{\"resourceVersion\": \"7\"}}, \"items\": [{large}, 1]}}");
        let (items, _) = page::<Value>(list.as_bytes()).unwrap();
        assert_eq!(items, [unread(), Ok(json!(1))]);
    }

    #[tokio::test]
    async fn of_an_object_with_too_many_values_the_name_is_read() {
        let wide = format!(
            "\"spec\": [{}0], \"status\": {{\"phase\": \"Failed\"}}",
            "{},".repeat(MAX_VALUES)
        );
        let metadata = "\"metadata\": {\"namespace\": \"a\", \"name\": \"b\", \"uid\": \"u\", \"resourceVersion\": \"6\", \
            \"deletionTimestamp\": \"2026-01-01T00:00:00Z\", \"deletionGracePeriodSeconds\": 7, \"finalizers\": [\"x/y\"]}";
        let unread = || Unread {
            key: "a/b".to_owned(),
            head: ObjectHead {
                uid: "u".to_owned(),
                version: 6,
                deletion: Some(Deletion { seconds: 7, held: false }),
                phase: Some(TerminalPhase::Failed),
            },
            error: ApiError::TooMany(MAX_VALUES),
        };
        let lines = format!(
            "{{\"type\": \"ADDED\", \"object\": {{{metadata}, {wide}}}}}\n\
             {{\"type\": \"DELETED\", \"object\": {{{metadata}, {wide}}}}}\n"
        );
        let mut events = Events::new(body(lines), true);
        let added = events.next::<Value>().await.unwrap();
        assert_eq!(added, Some(WatchEvent::Changed(Err(Box::new(unread())))));
        let deleted = events.next::<Value>().await.unwrap();
        assert_eq!(deleted, Some(WatchEvent::Deleted { key: "a/b".to_owned() }));
        let list = format!(
            "{{\"metadata\": {{\"resourceVersion\": \"7\"}}, \"items\": [{{{metadata}, {wide}}}, 1]}}"
        );
        let (items, _) = page::<Value>(list.as_bytes()).unwrap();
        assert_eq!(items, [Err(Box::new(unread())), Ok(json!(1))]);
    }

    #[tokio::test]
    async fn an_answer_is_bounded_and_its_errors_are_cut() {
        assert!(matches!(text(body("12345"), 4).await, Err(ApiError::TooLarge(4))));
        let html = format!("<html>{}", "x".repeat(5000));
        let response = Response::builder().status(502).body(body(html)).unwrap();
        let error = accepted(response).await.err().unwrap();
        assert_eq!(error.code(), Some(502));
        assert!(error.to_string().len() < 1200, "{error}");
        let endless = Response::builder().status(500).body(body(vec![b'x'; MAX_ERROR_BYTES + 1]));
        assert_eq!(accepted(endless.unwrap()).await.err().unwrap().code(), Some(500));
    }

    #[test]
    fn a_list_may_have_more_values_than_an_object() {
        let item = format!("{{\"a\": [{}0]}}", "0,".repeat(20_000));
        let list = format!(
            "{{\"metadata\": {{\"resourceVersion\": \"7\"}}, \"items\": [{item}, {item}]}}"
        );
        let (items, of_list) = page::<Value>(list.as_bytes()).unwrap();
        assert_eq!((items.len(), of_list.resource_version.as_str()), (2, "7"));
        assert!(matches!(object::<Value>(list.as_bytes()), Err(ApiError::TooMany(_))));
    }

    #[test]
    fn values_in_texts_are_not_counted() {
        assert_eq!(values(br#"{"a": "[[[,,\",", "b": [1, 2]}"#), 5);
    }
}
