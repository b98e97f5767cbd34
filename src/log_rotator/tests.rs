#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    hostfiles::HostFilePaths,
    model::{PodKey, PodUid},
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

const NOW: Duration = Duration::from_secs(100);

/// A rotator of one empty log, which is due.
fn bench() -> (TempDir, LogRotatorTask, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = Path::new("/nonexistent").to_owned();
    let files = HostFiles::new(HostFilePaths {
        root_dir: nowhere.clone(),
        pod_logs_dir: dir.path().to_owned(),
        links_dir: nowhere.clone(),
        node_hosts: nowhere.clone(),
        network_results_dir: nowhere,
    });
    let place = LogPlace {
        key: PodKey::new("default", "web"),
        uid: PodUid::from("u"),
        container: "main".into(),
        restart_count: 0,
    };
    files.ensure_container_log_dir(&place.key, &place.uid, &place.container).unwrap();
    let path = files.current_log(&place).unwrap();
    fs::write(&path, "").unwrap();
    let runtime = RuntimeClient::new("unix:///nowhere.sock", None, REOPEN_DEADLINE).unwrap();
    let (settings, pods) = (RotationSettings::default(), watch::channel(Arc::default()).1);
    let mut task = LogRotatorTask::new(LogRotatorParts { runtime, files, settings, pods });
    task.hints = Hints::new();
    let log = Log { look_at: NOW, ..Log::new(place, NOW) };
    task.logs.insert(ContainerId::from("c"), log);
    (dir, task, path)
}

#[tokio::test]
async fn a_hint_that_comes_before_the_end_of_the_look_counts() {
    let (_dir, mut task, path) = bench();
    task.begin(NOW);
    let done = task.jobs.next().await.unwrap();
    fs::write(&path, "grows").unwrap();
    let event = next_event(&mut task.hints).await;
    task.wake(event);
    task.take(done);
    let log = &task.logs[&ContainerId::from("c")];
    let until = log.look_at.saturating_sub(clock::now().boot);
    assert!(log.watch.is_none() && until < Duration::from_secs(1), "{until:?}");
    let hints = task.hints.unwrap();
    assert!(hints.watched.is_empty() && hints.ended.is_empty());
}

#[tokio::test]
async fn a_log_that_does_not_grow_is_watched() {
    let (_dir, mut task, path) = bench();
    task.begin(NOW);
    let done = task.jobs.next().await.unwrap();
    task.take(done);
    assert!(task.logs[&ContainerId::from("c")].watch.is_some());
    fs::write(&path, "grows").unwrap();
    let event = next_event(&mut task.hints).await;
    task.wake(event);
    assert!(task.logs[&ContainerId::from("c")].watch.is_none());
}
