//! Events of the runtime about containers. They are hints: an event names a container, and the
//! relist loop then reads its state. An end tells the exit code as well.
//!
//! containerd's own event service is asked first, since it exists in every containerd; a runtime
//! without it is asked for CRI's events. CRI's view changes a little after containerd tells of an
//! exit: the receiver has to look until it sees it.

use super::{
    CriError, RuntimeClient,
    containerd::{
        events::{ContainerDelete, TaskExit, TaskOom, TaskStart},
        services::{Envelope, SubscribeRequest, events_client::EventsClient},
    },
    v1,
};
use jiff::Timestamp;
use prost::Message as _;
use tonic::Streaming;

/// containerd's namespace of everything that came through CRI.
pub(super) const NAMESPACE: &str = "k8s.io";
const START: &str = "/tasks/start";
const EXIT: &str = "/tasks/exit";
const OOM: &str = "/tasks/oom";
const DELETE: &str = "/containers/delete";

/// Something happened to a container or to a sandbox (which containerd runs as a container of the
/// same id).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// Its process runs.
    Started {
        /// Id of the container or sandbox.
        id: String,
    },
    /// Its process ended.
    Exited {
        /// Id of the container or sandbox.
        id: String,
        /// Exit code; 128 + n for signal n. `None` when the runtime does not tell it.
        exit_code: Option<i32>,
    },
    /// The kernel killed something in it for lack of memory.
    OutOfMemory {
        /// Id of the container or sandbox.
        id: String,
    },
    /// It is gone.
    Removed {
        /// Id of the container or sandbox.
        id: String,
    },
}

/// An event, and when it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// What happened.
    pub event: RuntimeEvent,
    /// Wall time; `None` when the runtime does not tell it.
    pub at: Option<Timestamp>,
}

/// A subscription.
#[derive(Debug)]
pub struct EventStream(Source);

#[derive(Debug)]
enum Source {
    Containerd(Streaming<Envelope>),
    Cri(Streaming<v1::ContainerEventResponse>),
}

impl RuntimeClient {
    /// Subscribes to containerd's event service.
    ///
    /// A server made with grpc-go sends the head of its answer along with the first event, so this
    /// may take as long as until something happens. A runtime that can't serve it says so at once.
    ///
    /// # Errors
    /// `Unimplemented` when the runtime is no containerd; `Unavailable` when there is no response.
    ///
    /// # Cancel safety
    /// Dropping it ends the subscription, nothing else.
    pub async fn subscribe_containerd(&self) -> Result<EventStream, CriError> {
        let topics = [START, EXIT, OOM, DELETE];
        let filters = topics.map(|topic| format!("namespace=={NAMESPACE},topic==\"{topic}\""));
        let mut request = tonic::Request::new(SubscribeRequest { filters: filters.to_vec() });
        let namespace = tonic::metadata::MetadataValue::from_static(NAMESPACE);
        request.metadata_mut().insert("containerd-namespace", namespace);
        let mut events = EventsClient::new(self.channel.clone());
        match events.subscribe(request).await {
            Ok(answer) => Ok(EventStream(Source::Containerd(answer.into_inner()))),
            Err(status) => Err(CriError::from_status(&status, "Subscribe", &self.endpoint)),
        }
    }

    /// Subscribes to CRI's container events. Everything said of [`Self::subscribe_containerd`]
    /// holds here too.
    ///
    /// # Errors
    /// `Unimplemented` when the runtime has none; `Unavailable` when there is no response.
    pub async fn subscribe_cri(&self) -> Result<EventStream, CriError> {
        Ok(EventStream(Source::Cri(self.cri_events().await?)))
    }
}

impl EventStream {
    /// The next event; `None` when the stream ended.
    ///
    /// # Errors
    /// When the stream broke.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost.
    pub async fn next(&mut self) -> Result<Option<TimedEvent>, CriError> {
        let broken = |status: tonic::Status| CriError::from_status(&status, "events", "");
        loop {
            let event = match &mut self.0 {
                Source::Containerd(stream) => match stream.message().await.map_err(broken)? {
                    None => return Ok(None),
                    Some(envelope) => of_containerd(&envelope),
                },
                Source::Cri(stream) => match stream.message().await.map_err(broken)? {
                    None => return Ok(None),
                    Some(event) => Some(of_cri(event)),
                },
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }
}

/// `None` for what is no news about a container: ends of exec'ed processes, other namespaces,
/// payloads that don't decode.
fn of_containerd(envelope: &Envelope) -> Option<TimedEvent> {
    let at = envelope.timestamp.as_ref().and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
    Some(TimedEvent { event: news_of(envelope)?, at })
}

fn news_of(envelope: &Envelope) -> Option<RuntimeEvent> {
    if envelope.namespace != NAMESPACE {
        return None;
    }
    let payload = envelope.event.as_ref()?.value.as_slice();
    match envelope.topic.as_str() {
        START => Some(RuntimeEvent::Started { id: TaskStart::decode(payload).ok()?.container_id }),
        EXIT => {
            let exit = TaskExit::decode(payload).ok()?;
            let exit_code = i32::try_from(exit.exit_status).ok();
            let of_container = exit.id == exit.container_id;
            of_container.then_some(RuntimeEvent::Exited { id: exit.container_id, exit_code })
        }
        OOM => Some(RuntimeEvent::OutOfMemory { id: TaskOom::decode(payload).ok()?.container_id }),
        DELETE => Some(RuntimeEvent::Removed { id: ContainerDelete::decode(payload).ok()?.id }),
        _ => None,
    }
}

fn of_cri(event: v1::ContainerEventResponse) -> TimedEvent {
    let at = event.created_at;
    let kind = event.container_event_type();
    let id = event.container_id;
    let event = match kind {
        v1::ContainerEventType::ContainerCreatedEvent
        | v1::ContainerEventType::ContainerStartedEvent => RuntimeEvent::Started { id },
        v1::ContainerEventType::ContainerStoppedEvent => {
            RuntimeEvent::Exited { id, exit_code: None }
        }
        v1::ContainerEventType::ContainerDeletedEvent => RuntimeEvent::Removed { id },
    };
    let at = (at > 0).then(|| Timestamp::from_nanosecond(at.into()).ok()).flatten();
    TimedEvent { event, at }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(topic: &str, payload: Vec<u8>) -> Envelope {
        Envelope {
            timestamp: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 5 }),
            namespace: NAMESPACE.to_owned(),
            topic: topic.to_owned(),
            event: Some(prost_types::Any { type_url: String::new(), value: payload }),
        }
    }

    #[test]
    fn the_end_of_an_execed_process_is_no_end_of_a_container() {
        let exit = |id: &str| {
            let exit = TaskExit {
                container_id: "c".to_owned(),
                id: id.to_owned(),
                pid: 5,
                exit_status: 1,
            };
            of_containerd(&envelope(EXIT, exit.encode_to_vec()))
        };
        let at = Timestamp::new(1_700_000_000, 5).ok();
        let event = RuntimeEvent::Exited { id: "c".to_owned(), exit_code: Some(1) };
        let ended = TimedEvent { event, at };
        assert_eq!(exit("c"), Some(ended));
        assert_eq!(exit("probe-1"), None);
    }

    #[test]
    fn an_event_of_cri_may_have_no_time() {
        for (created_at, at) in [(1_500_000_000, Timestamp::from_millisecond(1500).ok()), (0, None)]
        {
            let event = v1::ContainerEventResponse { created_at, ..Default::default() };
            assert_eq!(of_cri(event).at, at);
        }
    }

    #[test]
    fn strange_envelopes_are_passed_over() {
        assert_eq!(of_containerd(&envelope(EXIT, vec![0xff; 9])), None);
        assert_eq!(of_containerd(&envelope("/images/create", Vec::new())), None);
        assert_eq!(of_containerd(&Envelope::default()), None);
        let mut foreign = envelope(OOM, TaskOom { container_id: "c".to_owned() }.encode_to_vec());
        foreign.namespace = "moby".to_owned();
        assert_eq!(of_containerd(&foreign), None);
    }
}
