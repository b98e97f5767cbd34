//! Follows the runtime's events, for ever: a broken stream is opened again, with growing pauses
//! while there is no response.

use crate::{
    clock,
    cri::{CriError, EventStream, RuntimeClient, RuntimeEvent, TimedEvent},
    metrics::metrics,
};
use std::{future::Future, pin::pin, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info};

/// A subscription that was not refused within this time counts as made: servers send the head of
/// their answer with the first event.
const REFUSED_BY: Duration = Duration::from_millis(300);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Pause before a runtime that has no events is asked again: it may be upgraded.
const UNSUPPORTED_PAUSE: Duration = Duration::from_secs(60);
/// A stream that lived this long was a good one: pauses start anew after it.
const GOOD_STREAM: Duration = Duration::from_secs(30);

/// Messages to the relist loop.
#[derive(Debug)]
pub(super) enum Hint {
    /// Events arrive from here on; what happened before is unknown.
    Connected,
    /// Events don't arrive any more.
    Lost,
    /// Something happened.
    Event(RuntimeEvent),
}

#[derive(Clone, Copy)]
enum Kind {
    Containerd,
    Cri,
}

/// Runs until the receiver of hints is gone.
pub(super) async fn follow(client: RuntimeClient, hints: mpsc::Sender<Hint>) {
    let mut pause = FIRST_PAUSE;
    let mut kind = Kind::Containerd;
    loop {
        let begun = Instant::now();
        let ended = match kind {
            Kind::Containerd => stream(client.subscribe_containerd(), &hints).await,
            Kind::Cri => stream(client.subscribe_cri(), &hints).await,
        };
        let error = match ended {
            Ended::Receiver => return,
            Ended::Refused(error) => Some(error),
            Ended::Broken(error) => {
                let err = error.as_ref().map(ToString::to_string);
                info!(err, "the stream of runtime events ended");
                if hints.send(Hint::Lost).await.is_err() {
                    return;
                }
                error
            }
        };
        if let Some(CriError::Unimplemented { call }) = error {
            debug!(call, "the runtime has no such events");
            (kind, pause) = match kind {
                Kind::Containerd => (Kind::Cri, Duration::ZERO),
                Kind::Cri => (Kind::Containerd, UNSUPPORTED_PAUSE),
            };
        } else {
            metrics().node.event_stream_errors.inc();
        }
        if begun.elapsed() >= GOOD_STREAM {
            pause = FIRST_PAUSE;
        }
        sleep(pause).await;
        pause = pause.saturating_mul(2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }
}

enum Ended {
    /// Nobody wants hints any more.
    Receiver,
    /// It never was.
    Refused(CriError),
    /// It was, and ended.
    Broken(Option<CriError>),
}

async fn stream(
    subscription: impl Future<Output = Result<EventStream, CriError>>,
    hints: &mpsc::Sender<Hint>,
) -> Ended {
    let mut subscription = pin!(subscription);
    let early = timeout(REFUSED_BY, &mut subscription).await;
    if let Ok(Err(error)) = early {
        return Ended::Refused(error);
    }
    metrics().node.event_streams.inc();
    if hints.send(Hint::Connected).await.is_err() {
        return Ended::Receiver;
    }
    let answer = match early {
        Ok(answer) => answer,
        Err(_) => subscription.await,
    };
    let mut events = match answer {
        Ok(events) => events,
        Err(error) => return Ended::Broken(Some(error)),
    };
    loop {
        match events.next().await {
            Ok(Some(TimedEvent { event, at })) => {
                if let Some(at) = at {
                    let took = clock::now().wall.duration_since(at);
                    metrics().node.event_latency_seconds.observe(took.as_secs_f64().max(0.0));
                }
                if hints.send(Hint::Event(event)).await.is_err() {
                    return Ended::Receiver;
                }
            }
            Ok(None) => return Ended::Broken(None),
            Err(error) => return Ended::Broken(Some(error)),
        }
    }
}
