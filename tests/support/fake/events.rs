//! containerd's event service: what happens to tasks, told to whoever subscribed.

use super::Shared;
use nodelet::cri::containerd::{
    events::{ContainerDelete, TaskExit, TaskStart},
    services::{Envelope, SubscribeRequest, events_server::Events},
};
use prost::Message;
use prost_types::Any;
use std::{pin::Pin, sync::Arc};
use tokio::sync::{broadcast, mpsc};
use tonic::{Request, Response, Status};

fn now() -> prost_types::Timestamp {
    let now = jiff::Timestamp::now();
    prost_types::Timestamp { seconds: now.as_second(), nanos: now.subsec_nanosecond() }
}

/// A topic and what is said under it.
#[derive(Clone)]
pub(super) struct Event {
    topic: &'static str,
    content: Any,
}

fn event(topic: &'static str, type_name: &str, content: &impl Message) -> Event {
    // containerd's own type URLs are the bare type name.
    let content = Any { type_url: type_name.to_owned(), value: content.encode_to_vec() };
    Event { topic, content }
}

/// A sandbox's or a container's first process runs.
pub(super) fn started(id: &str) -> Event {
    let content = TaskStart { container_id: id.to_owned(), pid: 1 };
    event("/tasks/start", "containerd.events.TaskStart", &content)
}

/// It ended.
pub(super) fn exited(id: &str, code: i32) -> Event {
    let content = TaskExit {
        container_id: id.to_owned(),
        id: id.to_owned(),
        pid: 1,
        exit_status: code.unsigned_abs(),
    };
    event("/tasks/exit", "containerd.events.TaskExit", &content)
}

/// It was removed.
pub(super) fn deleted(id: &str) -> Event {
    event(
        "/containers/delete",
        "containerd.events.ContainerDelete",
        &ContainerDelete { id: id.to_owned() },
    )
}

impl Shared {
    /// Tells every subscriber.
    pub(super) fn send(&self, event: Event) {
        // Nobody listening is fine.
        let _subscribers = self.events.send(event);
    }
}

/// The service.
pub(super) struct EventService(pub(super) Arc<Shared>);

type EnvelopeStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<Envelope, Status>> + Send>>;

#[tonic::async_trait]
impl Events for EventService {
    type SubscribeStream = EnvelopeStream;

    async fn subscribe(
        &self,
        _request: Request<SubscribeRequest>,
    ) -> Result<Response<EnvelopeStream>, Status> {
        let mut subscription = Subscription::new(self.0.events.subscribe());
        // containerd sends its headers with the first event: until then the subscriber's call is
        // under way.
        let first = subscription.receiver.recv().await;
        subscription.first = first;
        Ok(Response::new(Box::pin(subscription)))
    }
}

/// A subscriber's stream: a task moves what is broadcast into a channel that can be polled.
struct Subscription {
    first: Option<Envelope>,
    receiver: mpsc::Receiver<Envelope>,
    _task: tokio::task::JoinSet<()>,
}

impl Subscription {
    fn new(mut events: broadcast::Receiver<Event>) -> Self {
        let (sender, receiver) = mpsc::channel(64);
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            loop {
                match events.recv().await {
                    Ok(Event { topic, content }) => {
                        let envelope = Envelope {
                            timestamp: Some(now()),
                            namespace: "k8s.io".to_owned(),
                            topic: topic.to_owned(),
                            event: Some(content),
                        };
                        if sender.send(envelope).await.is_err() {
                            return;
                        }
                    }
                    // A slow subscriber loses events in containerd too.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        Self { first: None, receiver, _task: task }
    }
}

impl tokio_stream::Stream for Subscription {
    type Item = Result<Envelope, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return std::task::Poll::Ready(Some(Ok(first)));
        }
        self.receiver.poll_recv(cx).map(|envelope| envelope.map(Ok))
    }
}
