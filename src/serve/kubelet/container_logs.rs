//! `/containerLogs`: the log of one run of a container, as long as the client reads it.

use super::relay::Refused;
use crate::{
    blocking::LOG_READS,
    clock,
    logs::{
        Hints, LAST_LINES, LogDir, LogError, LogQuery, Progress, QueryError, RunReader, hints,
        watch_directory,
    },
    model::{PodView, PodViews, k8s},
    podspec::{all_containers, pod_log_directory_name},
    serve::follow::Pace,
    status::{container_statuses, present_run},
};
use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header},
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
    let follow = query.follow && !query.previous;
    let (opened, watch) = LOG_READS
        .run(move || {
            let watch = query.follow.then(|| watch_directory(logs.path()).ok()).flatten();
            (RunReader::open(logs, number, query.tail, query.wanted, follow), watch)
        })
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
    let hints = watch.and_then(|watch| hints(watch).ok());
    let sending =
        Sending { reader: Some(reader), run, follow, hints, pace: pace.clone(), _place: place };
    let parts = unfold(sending, |mut sending| async move {
        let part = sending.next().await.transpose()?;
        Some((part, sending))
    });
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    let mut response = (kind, Body::from_stream(parts)).into_response();
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
    let status = status(view, container);
    if previous {
        return status.and_then(|one| present_run(one).checked_sub(1)).ok_or_else(|| {
            bad(format!("previous terminated container {container:?} in pod {pod:?} not found"))
        });
    }
    let state = status.and_then(|status| status.state.as_ref());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let newest = view.containers.iter().find(|one| &*one.name == container);
    let run = newest.map(|one| one.restart_count);
    // A container that was created and is not started has no log. As with the kubelet, the log is
    // that of the run before it.
    let not_started = waiting.is_some() && status.map(present_run) == run;
    let run = if not_started { run.and_then(|run| run.checked_sub(1)) } else { run };
    run.ok_or_else(|| {
        let Some(waiting) = waiting else {
            return bad(format!("container {container:?} in pod {pod:?} is not available"));
        };
        let reason = match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            reason => reason,
        };
        bad(format!("container {container:?} in pod {pod:?} is waiting to start: {reason}"))
    })
}

fn status<'a>(view: &'a PodView, container: &str) -> Option<&'a k8s::ContainerStatus> {
    container_statuses(&view.status).find(|status| status.name == container)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::ContainerInstance;
    use serde_json::{Value, json};
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

    /// A view of a pod with the container `main`, restarted once, in a state.
    fn view_with(state: &Value, last: &Value, created: bool) -> PodView {
        let mut view: PodView = serde_json::from_value(json!({
            "key": {"namespace": "default", "name": "web"}, "uid": "u1",
            "pod": {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}},
            "status": {"containerStatuses": [{
                "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
                "containerID": "containerd://c1", "state": state, "lastState": last,
            }]},
            "origin": null, "terminating": false, "hung": null, "waiting": null,
        }))
        .unwrap();
        let instance = ContainerInstance {
            name: "main".into(),
            id: "c1".into(),
            restart_count: 1,
            running_since: None,
            started: false,
            in_post_start: false,
        };
        view.containers.extend(created.then_some(instance));
        view
    }

    #[test]
    fn a_container_that_is_not_started_has_the_log_of_the_run_before() {
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": id}});
        let before = ended("containerd://c0");
        let created = view_with(&waits("ContainerCreating"), &before, true);
        assert_eq!(number(&created, "main", false).unwrap(), 0);
        assert_eq!(number(&created, "main", true).unwrap(), 0);

        let backs_off = view_with(&waits("CrashLoopBackOff"), &ended("containerd://c1"), true);
        assert_eq!(number(&backs_off, "main", false).unwrap(), 1);
        assert_eq!(number(&backs_off, "main", true).unwrap(), 1);

        let has_ended = view_with(&ended("containerd://c1"), &before, true);
        assert_eq!(number(&has_ended, "main", false).unwrap(), 1);
        assert_eq!(number(&has_ended, "main", true).unwrap(), 0);

        let none = view_with(&waits("ErrImagePull"), &json!(null), false);
        let refused = number(&none, "main", false).unwrap_err();
        assert!(format!("{refused:?}").contains("waiting to start: image can't be pulled"));
    }

    #[test]
    fn the_first_container_that_is_not_started_has_no_log() {
        let mut view =
            view_with(&json!({"waiting": {"reason": "CreateError"}}), &json!(null), true);
        let mut status = k8s::PodStatus::clone(&view.status);
        status.container_statuses.as_mut().unwrap()[0].restart_count = 0;
        view.status = Arc::new(status);
        view.containers[0].restart_count = 0;
        let refused = number(&view, "main", false).unwrap_err();
        let words = r#"container \"main\" in pod \"web\" is waiting to start: CreateError"#;
        assert!(format!("{refused:?}").contains(words), "{refused:?}");
    }
}
