//! Records with a store of their own.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    model::{
        ContainerState, Hold, HoldStop, ObservedContainer, ObservedPod, Origin, ResizeWait,
        SourceKind,
    },
    plan::HeldPod,
    store::Writer,
};
use jiff::Timestamp;
use std::{fs, path::PathBuf};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// A store in a directory of its own. Nothing is written unless the writer runs.
fn open() -> (TempDir, Store, Writer) {
    let dir = tempfile::tempdir().unwrap();
    let (root, run) = (dir.path().join("root"), dir.path().join("run"));
    let (store, writer, _) = Store::lock_and_open(&root, &run, None).unwrap();
    (dir, store, writer)
}

/// A store that writes.
struct Bed {
    dir: TempDir,
    store: Store,
    tasks: JoinSet<()>,
}

impl Bed {
    fn new() -> Self {
        let (dir, store, writer) = open();
        let mut tasks = JoinSet::new();
        tasks.spawn(writer.run());
        Self { dir, store, tasks }
    }

    fn pods(&self) -> PathBuf {
        self.dir.path().join("root/nodelet/pods")
    }

    /// What is written of the only pod.
    fn text(&self) -> String {
        let file = fs::read_dir(self.pods()).unwrap().next().unwrap();
        fs::read_to_string(file.unwrap().path()).unwrap()
    }

    async fn end(mut self) {
        drop(self.store);
        while self.tasks.join_next().await.is_some() {}
    }
}

#[tokio::test]
async fn the_record_of_an_api_pod_has_its_deletion_and_its_end() {
    let bed = Bed::new();
    let pod: k8s::Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"annotations": {"kubernetes.io/config.source": "api"}},
        "status": {"startTime": "2026-01-01T00:00:00Z"},
    }))
    .unwrap();
    let key = PodKey::new("default", "web");
    let desired = DesiredPod {
        key: key.clone(),
        uid: "a".into(),
        revision: "r".into(),
        pod: Arc::new(pod),
        origin: Origin { source: SourceKind::Api, location: "api".into(), document: 0, line: 1 },
    };
    let wish = Wish::Run(Arc::new(desired));
    let uid: PodUid = "a".into();
    let mut records = Records::new(key, Vec::new(), clock::now());
    assert!(!records.note_deleted(&uid), "without a record");
    assert!(records.admit(&uid, &wish, false, clock::now()));
    let started_at = records.of(&uid).unwrap().started_at;
    assert_eq!(started_at, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    assert!(records.note_deleted(&uid) && !records.note_deleted(&uid));
    assert!(incarnation(records.of(&uid).unwrap(), clock::now()).deleted);

    // A pod that has never run gets a record for its end.
    records.records.clear();
    let terminal = Terminal::of_phase(crate::model::TerminalPhase::Failed);
    records.end(&bed.store, &wish, &uid, (&terminal, None)).await;
    assert!(records.of(&uid).unwrap().has_ended());
    assert!(!records.note_deleted(&uid), "its phase is known");
    bed.end().await;
}

fn desired(revision: &str, pod: serde_json::Value) -> DesiredPod {
    let origin = Origin { source: SourceKind::File, location: "f".into(), document: 0, line: 1 };
    DesiredPod {
        key: PodKey::new("default", "web"),
        uid: "a".into(),
        revision: revision.into(),
        pod: Arc::new(serde_json::from_value(pod).unwrap()),
        origin,
    }
}

fn orders(wish: DesiredPod) -> PodOrders {
    PodOrders {
        wish: Wish::Run(Arc::new(wish)),
        shutdown: None,
        hold: None,
        waits: None,
        after: None,
        resize_wait: None,
        asked: None,
        clear_dead: false,
    }
}

/// Takes an edit while nothing runs.
async fn edit(records: &mut Records, store: &Store, orders: &PodOrders) {
    let observed = ObservedPod::default();
    records.take_edit(store, orders, Occupancy::new(&observed, "me")).await;
}

fn pod_of(source: &str, cpu: &str, grace_seconds: u32) -> serde_json::Value {
    serde_json::json!({
        "metadata": {"annotations": {"kubernetes.io/config.source": source}},
        "spec": {
            "terminationGracePeriodSeconds": grace_seconds,
            "containers": [{"name": "web", "resources": {"requests": {"cpu": cpu}}}],
        },
    })
}

#[tokio::test]
async fn a_removal_retires_what_is_held_and_no_evicted_api_pod() {
    let (_dir, store, _writer) = open();
    let failed = Terminal::of_phase(crate::model::TerminalPhase::Failed);
    for (source, terminal, retired) in [
        ("file", None, true),
        ("file", Some(failed.clone()), false),
        ("api", None, false),
        ("api", Some(failed), false),
    ] {
        let desired = desired("r", pod_of(source, "1", 30));
        let record = PodRecord {
            terminal: terminal.clone(),
            ..PodRecord::new(desired.key.clone(), "a".into(), Arc::clone(&desired.pod))
        };
        let mut records = Records::new(desired.key.clone(), vec![record], clock::now());
        let stop = HoldStop::AtOnce;
        let (reason, message) = ("Evicted".to_owned(), "no room".to_owned());
        let hold = Arc::new(Hold { reason, message, stop, disruption: None });
        let orders = PodOrders { hold: Some(HeldPod { uid: "a".into(), hold }), ..orders(desired) };
        let remove = Action::CleanUp { uid: "a".into() };
        let begun = records.begin(&store, &remove, &orders, clock::now());
        // Nothing answers a write here.
        tokio::time::timeout(Duration::from_millis(20), begun).await.ok();
        let record = records.of(&"a".into()).unwrap();
        assert_eq!(record.kill.is_some(), retired, "{source} {terminal:?}");
    }
}

#[tokio::test]
async fn a_record_gets_the_exit_codes_after_the_end_was_decided() {
    let bed = Bed::new();
    let (key, uid) = (PodKey::new("default", "web"), PodUid::from("a"));
    let mut records = Records::new(key.clone(), Vec::new(), clock::now());
    records.records.push(PodRecord::new(key, uid.clone(), Arc::default()));
    let status = |state: serde_json::Value| -> Option<Arc<k8s::PodStatus>> {
        let status = serde_json::json!({"containerStatuses": [
            {"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
             "state": state},
        ]});
        Some(Arc::new(serde_json::from_value(status).unwrap()))
    };
    let terminal = Terminal::of_phase(crate::model::TerminalPhase::Failed);
    let runs = |since: &str| status(serde_json::json!({"running": {"startedAt": since}}));
    let ended = status(serde_json::json!({"terminated": {"exitCode": 3}}));
    let (first, second) = (runs("2026-01-01T00:00:00Z"), runs("2026-01-01T00:00:01Z"));
    for (shown, saved, written) in [
        (&first, &first, true),
        (&second, &first, false),
        (&ended, &ended, true),
        (&ended, &ended, false),
    ] {
        records.saved = false;
        records.end(&bed.store, &Wish::Gone, &uid, (&terminal, shown.clone())).await;
        assert_eq!(records.of(&uid).unwrap().status, *saved);
        assert_eq!(records.saved, written);
    }
    bed.end().await;
}

#[tokio::test]
async fn an_edit_that_starts_nothing_is_saved_once() {
    let bed = Bed::new();
    let uid: PodUid = "a".into();
    let mut records = Records::new(PodKey::new("default", "web"), Vec::new(), clock::now());
    let first = orders(desired("1", pod_of("file", "1", 30)));
    edit(&mut records, &bed.store, &first).await;
    assert!(records.is_empty(), "it has not begun");
    assert!(records.admit(&uid, &first.wish, false, clock::now()));
    records.write(&bed.store).await;
    let text = || bed.text();
    let grace = |seconds: u32| format!("\"terminationGracePeriodSeconds\":{seconds}");

    let second = orders(desired("2", pod_of("file", "1", 5)));
    edit(&mut records, &bed.store, &second).await;
    assert!(text().contains(&grace(5)), "{}", text());
    assert_eq!(records.of(&uid).unwrap().revision.as_deref(), Some("2"));
    let pod = records.incarnations()[0].pod.clone().unwrap();
    assert_eq!(pod.spec.as_ref().unwrap().termination_grace_period_seconds, Some(5));

    // The amounts wait, and so does the revision.
    let message = "no room".to_owned();
    let wait = ResizeWait { reason: "Deferred", message };
    let wanted = orders(desired("3", pod_of("file", "2", 6)));
    let third = PodOrders { resize_wait: Some(Arc::new(wait)), ..wanted };
    edit(&mut records, &bed.store, &third).await;
    assert!(text().contains(&grace(6)) && text().contains("\"cpu\":\"1\""), "{}", text());
    assert_eq!(records.of(&uid).unwrap().revision.as_deref(), Some("2"));
    let before = Arc::clone(&records.of(&uid).unwrap().pod);
    edit(&mut records, &bed.store, &third).await;
    assert!(Arc::ptr_eq(&before, &records.of(&uid).unwrap().pod), "nothing has changed");

    // What ends is stopped as it runs.
    records.records[0].kill =
        Some(KillRecord { grace_seconds: 6, deadline: Timestamp::UNIX_EPOCH });
    edit(&mut records, &bed.store, &orders(desired("4", pod_of("file", "1", 7)))).await;
    assert!(text().contains(&grace(6)), "{}", text());
    bed.end().await;
}

#[tokio::test]
async fn the_new_place_of_a_moved_manifest_is_saved() {
    let bed = Bed::new();
    let uid: PodUid = "a".into();
    let mut records = Records::new(PodKey::new("default", "web"), Vec::new(), clock::now());
    let mut manifest = desired("1", pod_of("file", "1", 30));
    assert!(records.admit(&uid, &orders(manifest.clone()).wish, false, clock::now()));
    manifest.origin.location = "/m/moved.yaml".into();
    edit(&mut records, &bed.store, &orders(manifest)).await;
    assert!(bed.text().contains("/m/moved.yaml"), "{}", bed.text());
    bed.end().await;
}

#[tokio::test]
async fn an_edit_of_metadata_is_saved_with_the_next_write() {
    let bed = Bed::new();
    let uid: PodUid = "a".into();
    let mut records = Records::new(PodKey::new("default", "web"), Vec::new(), clock::now());
    let first = orders(desired("1", pod_of("api", "1", 30)));
    assert!(records.admit(&uid, &first.wish, false, clock::now()));
    records.write(&bed.store).await;
    let text = || bed.text();
    let stamped = |stamp: &str, grace_seconds: u32| {
        let mut pod = pod_of("api", "1", grace_seconds);
        pod["metadata"]["annotations"]["stamp"] = stamp.into();
        pod
    };

    edit(&mut records, &bed.store, &orders(desired("2", stamped("noon", 30)))).await;
    assert!(!text().contains("noon"), "{}", text());
    assert_eq!(records.of(&uid).unwrap().revision.as_deref(), Some("2"));
    let pod = records.incarnations()[0].pod.clone().unwrap();
    assert_eq!(pod.metadata.annotations.as_ref().unwrap()["stamp"], "noon");
    records.write(&bed.store).await;
    assert!(text().contains("noon"), "{}", text());

    edit(&mut records, &bed.store, &orders(desired("3", stamped("one", 5)))).await;
    assert!(text().contains("one"), "the specification has changed: {}", text());
    let mut pod = stamped("two", 5);
    pod["metadata"]["annotations"][RUN_FROM_CHECKPOINT] = "true".into();
    edit(&mut records, &bed.store, &orders(desired("4", pod))).await;
    assert!(text().contains("two"), "the next start acts on it: {}", text());

    // Its containers see the metadata.
    let field = serde_json::json!({"fieldRef": {"fieldPath": "metadata.annotations['stamp']"}});
    let shown = |stamp: &str| {
        let mut pod = stamped(stamp, 5);
        pod["spec"]["containers"][0]["env"] =
            serde_json::json!([{"name": "STAMP", "valueFrom": field}]);
        pod
    };
    edit(&mut records, &bed.store, &orders(desired("5", shown("three")))).await;
    edit(&mut records, &bed.store, &orders(desired("6", shown("four")))).await;
    assert!(text().contains("four"), "{}", text());
    // What its readiness gates wait for.
    let mut gated = shown("four");
    gated["status"] =
        serde_json::json!({"conditions": [{"type": "example.com/gate", "status": "True"}]});
    edit(&mut records, &bed.store, &orders(desired("7", gated))).await;
    assert!(text().contains("example.com/gate"), "{}", text());
    bed.end().await;
}

#[test]
fn an_edit_that_is_taken_back_is_taken_out_of_the_record() {
    let uid: PodUid = "a".into();
    let mut records = Records::new(PodKey::new("default", "web"), Vec::new(), clock::now());
    let first = orders(desired("1", pod_of("file", "1", 30)));
    assert!(records.admit(&uid, &first.wish, false, clock::now()));
    let second = orders(desired("2", pod_of("file", "2", 5)));
    assert!(records.admit(&uid, &second.wish, true, clock::now()), "its cpu waits");
    let grace = |records: &Records| {
        let spec = records.of(&uid).unwrap().pod.spec.clone().unwrap();
        spec.termination_grace_period_seconds
    };
    assert_eq!(grace(&records), Some(5));
    assert!(records.admit(&uid, &first.wish, false, clock::now()));
    assert_eq!(grace(&records), Some(30));
    // The agent starts again and reads the same manifest.
    let again = orders(desired("1", pod_of("file", "1", 30)));
    assert!(!records.admit(&uid, &again.wish, false, clock::now()));
}

#[test]
fn a_record_keeps_its_class_while_a_resize_waits() {
    let uid: PodUid = "a".into();
    let mut records = Records::new(PodKey::new("default", "web"), Vec::new(), clock::now());
    let mut pod = pod_of("file", "1", 30);
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    containers.push(serde_json::json!({"name": "helper"}));
    let first = orders(desired("1", pod.clone()));
    assert!(records.admit(&uid, &first.wish, false, clock::now()));

    pod["spec"]["containers"] = serde_json::json!([
        {"name": "helper", "resources": {"requests": {"cpu": "8"}}},
    ]);
    let second = orders(desired("2", pod));
    assert!(!records.admit(&uid, &second.wish, true, clock::now()));
    let recorded = &records.of(&uid).unwrap().pod;
    assert!(!second.wish.begins_anew(&uid, recorded), "{recorded:?}");
}

#[tokio::test]
async fn an_edit_is_saved_after_the_containers_that_it_stops() {
    let bed = Bed::new();
    let uid: PodUid = "a".into();
    let mut records = Records::new(PodKey::new("default", "web"), Vec::new(), clock::now());
    let mut pod = pod_of("file", "1", 30);
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    let hook = serde_json::json!({"preStop": {"sleep": {"seconds": 1}}});
    containers.push(serde_json::json!({"name": "helper", "lifecycle": hook}));
    let first = orders(desired("1", pod));
    assert!(records.admit(&uid, &first.wish, false, clock::now()));
    let second = orders(desired("2", pod_of("file", "1", 5)));
    let running = ContainerState::Running { started_at: Timestamp::UNIX_EPOCH };
    let helper = ObservedContainer {
        uid: uid.clone(),
        name: "helper".into(),
        ..ObservedContainer::example("c", running)
    };
    let observed = ObservedPod { containers: vec![helper], ..ObservedPod::default() };
    records.take_edit(&bed.store, &second, Occupancy::new(&observed, "me")).await;
    let names = |records: &Records| -> Vec<String> {
        let spec = records.of(&uid).unwrap().pod.spec.clone().unwrap();
        spec.containers.into_iter().map(|container| container.name).collect()
    };
    assert_eq!(names(&records), ["web", "helper"], "its hook is called");
    edit(&mut records, &bed.store, &second).await;
    assert_eq!(names(&records), ["web"]);
    bed.end().await;
}

#[tokio::test]
async fn a_write_that_failed_is_tried_again_when_somebody_needs_it() {
    let bed = Bed::new();
    let (pods, aside) = (bed.pods(), bed.dir.path().join("aside"));
    let key = PodKey::new("default", "web");
    let mut records = Records::new(key.clone(), Vec::new(), clock::now());
    records.records.push(PodRecord::new(key, "a".into(), Arc::default()));
    // Nothing can be written while there is a file in place of the directory.
    fs::rename(&pods, &aside).unwrap();
    fs::write(&pods, "").unwrap();
    records.write(&bed.store).await;
    assert!(!records.are_saved(&bed.store).await);
    fs::remove_file(&pods).unwrap();
    fs::rename(&aside, &pods).unwrap();
    assert!(records.are_saved(&bed.store).await);
    assert_eq!(fs::read_dir(&pods).unwrap().count(), 1);
    bed.end().await;
}
