//! `/containerLogs`: the log of one run of a container, as long as the client reads it.

use super::relay::Refused;
use crate::{
    blocking::LOG_READS,
    clock,
    logs::{Hints, LAST_LINES, LogDir, LogError, LogQuery, Progress, QueryError, RunReader, hints},
    model::{PodView, PodViews, k8s},
    podspec::{all_containers, pod_log_directory_name},
    serve::follow::Pace,
    status::{container_statuses, present_run},
};
use axum::{
    body::{Body, Bytes},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use futures_util::stream::unfold;
use std::{io, path::Path, sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{sleep, timeout},
};
use tokio_stream::StreamExt as _;

/// Between two looks when no hint comes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A log that is sent.
struct Sending {
    reader: Option<RunReader>,
    /// Whether the run that is read still goes on.
    run: RunOf,
    follow: bool,
    hints: Option<Hints>,
    pace: Pace,
    _place: OwnedSemaphorePermit,
}

/// A run of a container, as its pod's view shows it.
struct RunOf {
    views: watch::Receiver<Arc<PodViews>>,
    view: Arc<PodView>,
    container: String,
    number: u32,
}

impl RunOf {
    /// False when the run has ended: nothing more is written to its log.
    fn goes_on(&self) -> bool {
        let views = self.views.borrow();
        let view = views.get(&self.view.key).filter(|view| view.uid == self.view.uid);
        view.is_some_and(|view| {
            view.containers.iter().any(|one| {
                *one.name == *self.container
                    && one.restart_count == self.number
                    && one.running_since.is_some()
            })
        })
    }
}

/// Answers with the log of a container.
pub(super) async fn container_logs(
    dir: &Path,
    views: watch::Receiver<Arc<PodViews>>,
    (view, container): (Arc<PodView>, String),
    query: &[(String, String)],
    place: OwnedSemaphorePermit,
) -> Result<Response, Refused> {
    let query = LogQuery::parse(query, clock::now().wall).map_err(|error| {
        let status = match error {
            QueryError::Undecodable => StatusCode::BAD_REQUEST,
            QueryError::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Refused::new(status, error.to_string())
    })?;
    let number = number(&view, &container, query.previous)?;
    let pod = pod_log_directory_name(&view.key, &view.uid);
    let logs = LogDir::bounded(dir, &format!("{pod}/{container}"));
    let hints = if query.follow { hints(logs.path()).ok() } else { None };
    let follow = query.follow && !query.previous;
    let opened = LOG_READS
        .run(move || RunReader::open(logs, number, query.tail, query.wanted, follow))
        .await
        .map_err(|crashed| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, crashed.to_string()))?;
    let reader = opened.map_err(|error| match error {
        LogError::NotFound => Refused::new(
            StatusCode::BAD_REQUEST,
            format!(
                "unable to retrieve container logs of {container:?} in pod {}: there are none",
                view.key
            ),
        ),
        LogError::Io(error) => Refused::new(
            StatusCode::BAD_REQUEST,
            format!(
                "unable to retrieve container logs of {container:?} in pod {}: {error}",
                view.key
            ),
        ),
    })?;
    let run = RunOf { views, view, container, number };
    let pace = Pace::default();
    let sending =
        Sending { reader: Some(reader), run, follow, hints, pace: pace.clone(), _place: place };
    let parts = unfold(sending, |mut sending| async move {
        let part = sending.next().await.transpose()?;
        Some((part, sending))
    });
    let mut response = Body::from_stream(parts).into_response();
    response.extensions_mut().insert(pace);
    Ok(response)
}

impl Sending {
    /// The next part; `None` at the end.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        self.pace.moves();
        loop {
            let Some(mut reader) = self.reader.take() else { return Ok(None) };
            // Looked at before the file: what was written before the end is then read.
            let last = self.follow && !self.run.goes_on();
            let read = LOG_READS.run(move || {
                if last {
                    reader.stop_following();
                }
                let progress = reader.advance();
                (reader, progress)
            });
            let (mut reader, progress) = read.await.map_err(io::Error::other)?;
            let part = reader.take();
            let progress = progress?;
            if progress == Progress::LastLines {
                sleep(LAST_LINES).await;
            }
            if progress != Progress::Ended {
                self.reader = Some(reader);
            }
            if !part.is_empty() {
                return Ok(Some(part.into()));
            }
            if progress == Progress::Waits {
                self.wait().await;
            }
        }
    }

    /// Waits until there may be more: the directory or the pod has changed, or a second has passed.
    async fn wait(&mut self) {
        self.pace.waits(true);
        let changed = async {
            match &mut self.hints {
                // Without inotify the look once a second is all there is.
                None => sleep(LOOK_AGAIN).await,
                Some(hints) => drop(hints.next().await),
            }
        };
        // Cancel-safe: a hint that is lost is made up for by the next look.
        let waited = async {
            tokio::select! {
                () = changed => {}
                _ = self.run.views.changed() => {}
            }
        };
        // Running out of time is a reason to look, like a hint.
        drop(timeout(LOOK_AGAIN, waited).await);
        self.pace.waits(false);
        // The client has taken everything: a read that follows does not count as a slow client.
        self.pace.moves();
    }
}

/// The number of the run whose log is wanted.
fn number(view: &PodView, container: &str, previous: bool) -> Result<u32, Refused> {
    let bad = |text: String| Refused::new(StatusCode::BAD_REQUEST, text);
    let pod = &view.key.name;
    let spec = view.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    let known = spec.is_some_and(|spec| all_containers(spec).any(|one| one.name == container));
    if !known {
        let text = format!("container {container:?} not found in pod {pod:?}");
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    }
    let newest = view.containers.iter().find(|one| &*one.name == container);
    let state = status(view, container).and_then(|status| status.state.as_ref());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let Some(newest) = newest else {
        let Some(waiting) = waiting else {
            return Err(bad(format!("container {container:?} in pod {pod:?} is not available")));
        };
        let reason = match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            reason => reason,
        };
        let text = format!("container {container:?} in pod {pod:?} is waiting to start: {reason}");
        return Err(bad(text));
    };
    if !previous {
        return Ok(newest.restart_count);
    }
    status(view, container).and_then(|one| present_run(one).checked_sub(1)).ok_or_else(|| {
        bad(format!("previous terminated container {container:?} in pod {pod:?} not found"))
    })
}

fn status<'a>(view: &'a PodView, container: &str) -> Option<&'a k8s::ContainerStatus> {
    container_statuses(&view.status).find(|status| status.name == container)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::json;
    use tokio::sync::Semaphore;

    #[tokio::test]
    async fn a_quiet_log_goes_on_while_it_is_read_again() {
        let view = json!({
            "key": {"namespace": "default", "name": "web"}, "uid": "u1", "pod": null, "status": {},
            "origin": null, "terminating": false, "hung": null, "waiting": null,
        });
        let view: Arc<PodView> = Arc::new(serde_json::from_value(view).unwrap());
        // Nobody publishes views any more, so that waiting ends at once.
        let (_, views) = watch::channel(Arc::default());
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let pace = Pace::default();
        let mut sending = Sending {
            reader: None,
            run: RunOf { views, view, container: "main".to_owned(), number: 0 },
            follow: true,
            hints: None,
            pace: pace.clone(),
            _place: place,
        };
        assert!(!pace.goes_on(), "nothing was asked for");
        sending.wait().await;
        assert!(pace.goes_on());
    }
}
