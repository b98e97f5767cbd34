//! What a source publishes, and the requests that it takes: the same for a directory and a URL.

use super::{
    SavedState, SourceHandle, SourceOptions,
    core::{Forgotten, Listing, Saved, State},
    reader::Reader,
};
use crate::{
    clock,
    desired::SourceSnapshot,
    model::{FileReport, FileVerdict, NodeObjects, PodKey, SourceKind},
    publish::PublishIfChanged as _,
};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot, watch};

/// Requests that may wait.
const QUEUE: usize = 16;
/// Between two signs of life.
const HEARTBEAT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) enum Command {
    /// Drops the last good revision of a pod.
    Forget {
        key: PodKey,
        reply: oneshot::Sender<Forgotten>,
    },
    Look,
}

/// The sending end of a [`SourceHandle`], and the state behind it.
#[derive(Debug)]
pub(super) struct Output {
    state: State,
    last: Option<Listing>,
    snapshots: watch::Sender<Arc<SourceSnapshot>>,
    objects: watch::Sender<Arc<NodeObjects>>,
    saved: watch::Sender<Arc<Saved>>,
    commands: mpsc::Receiver<Command>,
    heartbeat: watch::Sender<Duration>,
}

impl Output {
    /// Takes in what an earlier life saved.
    pub(super) fn new(
        kind: SourceKind,
        location: &str,
        options: SourceOptions,
    ) -> (Self, Reader, SourceHandle) {
        let reader = Reader {
            kind,
            accepts: options.accepts,
            credentials: options.credentials,
            node_name: options.node_name.into(),
            settings: Arc::new(options.settings),
        };
        let saved: Option<Result<Saved, serde_json::Error>> = match options.saved {
            SavedState::None => None,
            SavedState::Lost => Some(Err(serde::de::Error::custom("lost"))),
            SavedState::Saved(value) => Some(serde_json::from_value(value)),
        };
        let lost = matches!(saved, Some(Err(_)));
        let mut state = State::new(kind, location, lost);
        match saved {
            Some(Ok(saved)) => {
                let now = clock::now().wall;
                let decode = |manifest: &_, origin: &_| reader.again(manifest, origin, now);
                state.restore(saved, decode);
            }
            Some(Err(error)) => {
                tracing::error!(%location, err = %error, "the manifests accepted earlier are lost");
            }
            None => {}
        }
        state.restore_admitted(options.admitted);
        let first = state.before_first_look();
        if let Some(error) = &first.view.error {
            tracing::error!(%location, "{error}");
        }
        let (snapshots, snapshot_reader) = watch::channel(Arc::new(first));
        let (objects, object_reader) = watch::channel(Arc::default());
        let (saved, saved_reader) = watch::channel(Arc::new(state.saved()));
        let (sender, commands) = mpsc::channel(QUEUE);
        let (heartbeat, heartbeat_reader) = watch::channel(Duration::ZERO);
        let handle = SourceHandle {
            snapshots: snapshot_reader,
            objects: object_reader,
            saved: saved_reader,
            commands: sender,
            heartbeat: heartbeat_reader,
        };
        let output = Self { state, last: None, snapshots, objects, saved, commands, heartbeat };
        (output, reader, handle)
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Publishes what follows from a look; until when to look again, in boot time.
    pub(super) fn take_in(&mut self, listing: Listing) -> Option<Duration> {
        let step = self.state.step(&listing, clock::now());
        self.last = Some(listing);
        self.publish(step.snapshot);
        step.wake_at
    }

    /// Gives signs of life for as long as the source's task is polled, in the same `select!` as its
    /// work.
    ///
    /// They go on while a look hangs in the file system: the status shows that look, and a restart
    /// of the agent would not end it.
    pub(super) fn beats(&self) -> impl Future<Output = Infallible> + use<> {
        let heartbeat = self.heartbeat.clone();
        async move {
            loop {
                heartbeat.send_replace(clock::awake());
                tokio::time::sleep(HEARTBEAT).await;
            }
        }
    }

    /// The next request; `None` when all senders are gone.
    ///
    /// # Cancel safety
    /// A request is taken whole or stays queued.
    pub(super) async fn command(&mut self) -> Option<Command> {
        self.commands.recv().await
    }

    /// Answers a request; whether to look again because of it.
    pub(super) fn answer(&mut self, command: Command) -> bool {
        let (key, reply) = match command {
            Command::Look => return true,
            Command::Forget { key, reply } => (key, reply),
        };
        let forgotten = self.state.forget(&key);
        let done = matches!(forgotten, Forgotten::Done { .. });
        if done {
            tracing::info!(pod = %key, "last good revision forgotten");
            let snapshot = self.snapshot();
            self.publish(snapshot);
        }
        // Whoever asked may be gone.
        reply.send(forgotten).ok();
        done
    }

    /// Says that a look does not end, and no longer waits for it.
    pub(super) fn complain(&mut self, error: &str) {
        self.state.stop_waiting();
        let mut snapshot = self.snapshot();
        Arc::make_mut(&mut snapshot.view).error = Some(error.to_owned());
        self.publish(snapshot);
    }

    /// What is wanted by what is known now.
    fn snapshot(&self) -> SourceSnapshot {
        match &self.last {
            Some(listing) => self.state.snapshot(listing),
            None => self.state.before_first_look(),
        }
    }

    fn publish(&mut self, snapshot: SourceSnapshot) {
        // Before the pods that may read them.
        self.objects.publish_if_changed(Arc::new(self.state.objects()));
        self.snapshots.send_if_modified(|published| {
            if is_same(published, &snapshot) {
                return false;
            }
            tell(published, &snapshot);
            *published = Arc::new(snapshot);
            true
        });
        // Not before the first look: there is nothing new, and a lost record is not overwritten
        // with nothing.
        if self.state.may_be_saved() || self.last.is_none() {
            let saved = self.state.saved();
            self.saved.publish_if_changed(Arc::new(saved));
        }
    }
}

fn is_same(a: &SourceSnapshot, b: &SourceSnapshot) -> bool {
    a.knowledge == b.knowledge
        && a.view == b.view
        && a.unconfirmed == b.unconfirmed
        && a.pods.len() == b.pods.len()
        && a.pods.iter().zip(&b.pods).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// Logs what became different.
fn tell(before: &SourceSnapshot, after: &SourceSnapshot) {
    let location = &after.view.location;
    match (&before.view.error, &after.view.error) {
        (old, Some(error)) if old.as_ref() != Some(error) => tracing::warn!(%location, "{error}"),
        (Some(_), None) => tracing::info!(%location, "the manifests have no problems any more"),
        (_, _) => {}
    }
    let mut old = before.view.files.iter().peekable();
    // Both sorted by location.
    for file in &after.view.files {
        while old.next_if(|old| old.location < file.location).is_some() {}
        if old.peek().is_none_or(|old| **old != *file) {
            tell_file(file);
        }
    }
}

fn tell_file(file: &FileReport) {
    let location = &file.location;
    for verdict in &file.verdicts {
        match verdict {
            FileVerdict::Accepted { key, warnings } => {
                tracing::debug!(%location, pod = %key, "manifest accepted");
                for warning in warnings {
                    tracing::warn!(%location, pod = %key, "{warning}");
                }
            }
            FileVerdict::Object { key, warnings } => {
                tracing::debug!(%location, object = %key, "accepted");
                for warning in warnings {
                    tracing::warn!(%location, object = %key, "{warning}");
                }
            }
            FileVerdict::Rejected { key, object, problems, last_good, .. } => {
                let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
                let pod = key.as_ref().map(ToString::to_string);
                let object = object.as_ref().map(ToString::to_string);
                let problems = problems.join("; ");
                let note = match (last_good, &object) {
                    (true, Some(_)) => "; its last good data stays in use",
                    (true, None) => "; its last good revision keeps running",
                    (false, _) => "",
                };
                tracing::warn!(%location, pod, object, "manifest rejected: {problems}{note}");
            }
            FileVerdict::Skipped { reason } => tracing::debug!(%location, "skipped: {reason}"),
        }
    }
}
