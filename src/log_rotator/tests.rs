#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    hostfiles::HostFilePaths,
    model::{ContainerInstance, PodKey, PodUid, PodView},
};
use jiff::Timestamp;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
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

/// The log grows while it is looked at: it is looked at again soon, and not watched until then.
async fn grow_during_a_look(task: &mut LogRotatorTask, path: &Path) {
    task.begin(NOW);
    let done = task.jobs.next().await.unwrap();
    fs::write(path, "grows").unwrap();
    let event = next_event(&mut task.hints).await;
    task.wake(event);
    task.take(done);
    let log = &task.logs[&ContainerId::from("c")];
    let until = log.look_at.saturating_sub(clock::now().boot);
    assert!(log.watch.is_none() && until < Duration::from_secs(1), "{until:?}");
}

#[tokio::test]
async fn a_hint_that_comes_before_the_end_of_the_look_counts() {
    let (_dir, mut task, path) = bench();
    grow_during_a_look(&mut task, &path).await;
    let hints = task.hints.unwrap();
    assert!(hints.watched.is_empty() && hints.ended.is_empty());
}

#[tokio::test]
async fn a_hint_during_a_look_at_a_watched_log_counts() {
    let (_dir, mut task, path) = bench();
    task.begin(NOW);
    let done = task.jobs.next().await.unwrap();
    task.take(done);
    let log = task.logs.get_mut(&ContainerId::from("c")).unwrap();
    assert!(log.watch.is_some());
    log.look_at = NOW;
    grow_during_a_look(&mut task, &path).await;
}

#[tokio::test]
async fn files_of_ended_instances_count_and_go() {
    let (_dir, mut task, path) = bench();
    let view = serde_json::json!({
        "key": {"namespace": "default", "name": "web"}, "uid": "u", "pod": null, "status": {},
        "origin": null, "terminating": false, "hung": null, "waiting": null,
    });
    let mut view: PodView = serde_json::from_value(view).unwrap();
    view.containers.push(ContainerInstance {
        name: "main".into(),
        id: "c".into(),
        restart_count: 1,
        running_since: Some(Timestamp::UNIX_EPOCH),
        started: true,
        in_post_start: false,
    });
    let pods: PodViews = [(view.key.clone(), Arc::new(view))].into_iter().collect();
    task.parts.pods = watch::channel(Arc::new(pods)).1;
    let names = ["0.log", "1.log", "1.log.20260101-000001"];
    for (name, size) in names.into_iter().zip([3000, 1000, 1000]) {
        let path = path.with_file_name(name);
        fs::write(&path, vec![b'x'; size]).unwrap();
        let file = File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    task.parts.settings.max_total_size = Some(100_000);
    let measured = task.keep_total(5000).await;
    task.take(measured);
    assert_eq!(task.limit(), 47_000, "the file of the former instance counts");
    let measured = task.keep_total(4999).await;
    task.take(measured);
    let sizes = names.map(|name| path.with_file_name(name).metadata().unwrap().len());
    assert_eq!(sizes, [0, 1000, 1000]);
    assert_eq!(task.limit(), 50_000);
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
