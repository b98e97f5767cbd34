//! Pods of the API server that run here: their status and their last deletion.

use super::*;
use crate::{
    mirror::status::says_the_same,
    model::{ContainerInstance, Origin, SourceKind},
    patch::POD_STATUS,
};
use std::time::Duration;

/// A pod of the API server as it runs.
fn running(uid: &str, phase: &str) -> PodView {
    let origin = Origin { source: SourceKind::Api, location: "api".into(), document: 0, line: 1 };
    let container = ContainerInstance {
        name: "web".into(),
        id: "c1".into(),
        restart_count: 0,
        running_since: None,
        started: false,
        in_post_start: false,
    };
    PodView { origin: Some(origin), containers: vec![container], ..view(uid, "r1", phase) }
}

/// Its object, which has the status of `running(uid, phase)`.
fn object(uid: &str, phase: &str) -> SeenPod {
    SeenPod { uid: uid.to_owned(), mirrors: None, revision: None, owner: None, ..mirror(phase) }
}

fn deleted(seen: SeenPod) -> SeenPod {
    SeenPod { deletion: Some(DELETION), ..seen }
}

fn decide_api(view: Option<&PodView>, seen: Option<&SeenPod>) -> String {
    let (node, refusals) = (node("node-1"), Refusals::default());
    in_words(plan(&Case {
        key: &key(),
        view,
        seen,
        node: Some(&node),
        gone: true,
        refusals: &refusals,
        runs_api_pods: true,
    }))
}

/// The next step, with what is remembered.
fn plan_api(
    memory: &mut MirrorMemory,
    view: &PodView,
    seen: &Arc<SeenPod>,
    now: Duration,
) -> MirrorStep {
    let (key, node) = (key(), node("node-1"));
    let sight = Sight {
        key: &key,
        view: Some(view),
        shown: Some(seen),
        live: true,
        node: Some(&node),
        runs_api_pods: true,
    };
    memory.plan(&sight, |_: &SeenPod| false, now)
}

#[test]
fn a_pod_whose_specification_is_not_known_yet_has_no_status_to_write() {
    let view = PodView {
        pod: None,
        status: Arc::default(),
        containers: Vec::new(),
        ..running("u1", "Running")
    };
    assert_eq!(decide_api(Some(&view), Some(&object("u1", "Running"))), "nothing");
}

fn terminated(exit_code: i32, reason: &str) -> Value {
    json!({"name": "web", "image": "web:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": exit_code, "reason": reason}}})
}

#[test]
fn the_status_of_a_pod_is_written_where_it_differs() {
    let run = running("u1", "Running");
    assert_eq!(decide_api(Some(&run), Some(&object("u1", "Running"))), "nothing");
    let step = decide_api(Some(&run), Some(&object("u1", "Pending")));
    assert!(step.starts_with("patch u1@7"), "{step}");
    assert!(step.contains("\"phase\":\"Running\""), "{step}");
}

#[test]
fn the_last_deletion_waits_for_the_status_and_the_end_of_the_pod() {
    const LAST: &str = "delete u1: it was deleted and has ended";
    for (phase, seen, stopped, deleting, expected) in [
        ("Running", "Running", false, true, "nothing"),
        ("Failed", "Failed", false, true, "nothing"),
        ("Failed", "Running", true, true, "patch u1@7"),
        ("Failed", "Failed", true, true, LAST),
        ("Succeeded", "Succeeded", true, true, LAST),
        ("Succeeded", "Succeeded", true, false, "nothing"),
    ] {
        let view = PodView { stopped, terminating: deleting, ..running("u1", phase) };
        let seen = object("u1", seen);
        let seen = if deleting { deleted(seen) } else { seen };
        let step = decide_api(Some(&view), Some(&seen));
        assert!(step.starts_with(expected), "{phase} {stopped} {deleting}: {step}");
    }
    let delete = MirrorStep::Delete { uid: "u1".to_owned(), why: "" }.body().unwrap();
    assert_eq!(delete["gracePeriodSeconds"], 0);
    assert_eq!(delete["preconditions"], json!({"uid": "u1"}));
}

#[test]
fn an_unread_pod_goes_when_it_is_deleted_and_nothing_of_it_runs() {
    const ENDED: &str = "delete u1: it was deleted and has ended";
    const UNKNOWN: &str = "delete u1: it was deleted and does not run here";
    let unread = |deletion| SeenPod::unread(key(), "u1".to_owned(), 8, deletion);
    let view = |uid, stopped| PodView { stopped, ..running(uid, "Failed") };
    let decide = |view: Option<PodView>, deletion, gone| {
        let (node, refusals, seen) = (node("node-1"), Refusals::default(), unread(deletion));
        in_words(plan(&Case {
            key: &key(),
            view: view.as_ref(),
            seen: Some(&seen),
            node: Some(&node),
            gone,
            refusals: &refusals,
            runs_api_pods: true,
        }))
    };
    for (view, deletion, gone, expected) in [
        (Some(view("u1", false)), DELETION, false, "nothing"),
        (Some(view("u1", true)), DELETION, false, ENDED),
        (Some(view("u1", true)), HELD, false, "nothing"),
        (Some(view("u0", true)), DELETION, false, "nothing"),
        (Some(view("u0", true)), DELETION, true, UNKNOWN),
        (None, DELETION, false, "nothing"),
        (None, DELETION, true, UNKNOWN),
        (None, HELD, true, "nothing"),
    ] {
        let case = format!("{:?} {deletion:?} {gone}", view.as_ref().map(|view| &view.uid));
        assert_eq!(decide(view, deletion, gone), expected, "{case}");
    }
}

#[test]
fn a_pod_that_waits_for_finalizers_is_not_deleted_again() {
    let view = PodView { stopped: true, ..running("u1", "Failed") };
    let held = SeenPod { deletion: Some(HELD), ..object("u1", "Failed") };
    assert_eq!(decide_api(Some(&view), Some(&held)), "nothing");
    let status = status(json!({"phase": "Running"}));
    let step = decide_api(Some(&view), Some(&SeenPod { status, ..held }));
    assert!(step.starts_with("patch u1@7"), "its status is still written: {step}");
}

#[test]
fn nothing_is_written_for_an_incarnation_that_is_not_shown() {
    let stopped = PodView { stopped: true, ..running("old", "Failed") };
    for seen in [object("u1", "Pending"), deleted(object("u1", "Pending"))] {
        assert_eq!(decide_api(Some(&stopped), Some(&seen)), "nothing");
        assert_eq!(decide_api(None, Some(&seen)), "nothing");
    }
    // The object was force-deleted: its pod has no mirror.
    let leaving = PodView { terminating: true, ..running("u1", "Running") };
    for view in [running("u1", "Running"), leaving] {
        assert_eq!(decide_api(Some(&view), None), "nothing");
    }
}

#[test]
fn a_static_pod_keeps_a_name_from_a_pod_of_the_api_server() {
    let file = Origin { source: SourceKind::File, location: "a".into(), document: 0, line: 1 };
    let view = PodView { origin: Some(file), ..view("a", "r1", "Running") };
    let seen = object("u1", "Pending");
    let expected = "wait: the API has a pod default/web-n1 that is not its mirror";
    assert_eq!(decide_api(Some(&view), Some(&seen)), expected);
    let expected = "delete u1: it was deleted and does not run here";
    assert_eq!(decide_api(Some(&view), Some(&deleted(seen))), expected);
}

#[test]
fn a_final_status_of_the_api_server_stays_as_it_is() {
    let told = json!({
        "phase": "Failed", "reason": "Evicted", "message": "no room", "podIP": "10.0.0.7",
        "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [terminated(3, "Error")],
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    let seen = SeenPod { status: status(told), ..object("u1", "Failed") };
    // The record is lost, and so are the containers.
    let mut lost = running("u1", "Succeeded");
    let mut ours = serde_json::to_value(&*lost.status).unwrap();
    ours["containerStatuses"] = json!([terminated(137, "ContainerStatusUnknown")]);
    lost.status = Arc::new(status(ours));
    assert_eq!(decide_api(Some(&lost), Some(&seen)), "nothing");
    lost.containers.clear();
    assert_eq!(decide_api(Some(&lost), Some(&seen)), "nothing");
    let last = PodView { stopped: true, ..lost };
    let expected = "delete u1: it was deleted and has ended";
    assert_eq!(decide_api(Some(&last), Some(&deleted(seen))), expected);
}

#[test]
fn a_final_status_is_completed_with_container_ends() {
    // The pod garbage collector has ended the pod while the node was away.
    let waiting = json!({"name": "web", "image": "web:1", "imageID": "", "ready": true,
        "restartCount": 0, "state": {"running": {}}});
    let told = json!({"phase": "Failed", "reason": "NodeLost", "containerStatuses": [waiting]});
    let seen = SeenPod { status: status(told), ..object("u1", "Failed") };
    let mut view = running("u1", "Succeeded");
    let mut ours = serde_json::to_value(&*view.status).unwrap();
    ours["containerStatuses"] = json!([terminated(0, "Completed")]);
    view.status = Arc::new(status(ours));
    let step = decide_api(Some(&view), Some(&seen));
    assert!(step.starts_with("patch u1@7"), "{step}");
    assert!(step.contains("\"exitCode\":0") && !step.contains("phase"), "{step}");
    assert!(!step.contains("\"reason\":null"), "{step}");
}

#[test]
fn an_end_is_corrected_when_memory_had_run_out() {
    let seen_as = |id: &str| {
        let mut end = terminated(137, "Error");
        end["containerID"] = json!(id);
        let told = json!({"phase": "Failed", "containerStatuses": [end]});
        SeenPod { status: status(told), ..object("u1", "Failed") }
    };
    let mut view = running("u1", "Failed");
    let mut ours = serde_json::to_value(&*view.status).unwrap();
    let mut end = terminated(137, "OOMKilled");
    end["containerID"] = json!("containerd://c1");
    ours["containerStatuses"] = json!([end]);
    view.status = Arc::new(status(ours));
    let step = decide_api(Some(&view), Some(&seen_as("containerd://c1")));
    assert!(step.contains("OOMKilled"), "{step}");
    let step = decide_api(Some(&view), Some(&seen_as("containerd://c0")));
    assert!(!step.contains("OOMKilled"), "{step}");
}

#[test]
fn a_status_that_does_not_stay_keeps_no_object() {
    let view = PodView { stopped: true, ..running("u1", "Failed") };
    let seen = Arc::new(deleted(object("u1", "Running")));
    let mut memory = MirrorMemory::default();
    let step = plan_api(&mut memory, &view, &seen, Duration::ZERO);
    assert!(matches!(step, MirrorStep::PatchStatus { .. }), "{step:?}");
    // The API server answers with the object as it was.
    memory.settle(&step, &Answer::Pod(Arc::clone(&seen)), Duration::ZERO);
    let step = plan_api(&mut memory, &view, &seen, Duration::ZERO);
    assert_eq!(in_words(step), "delete u1: it was deleted and has ended");
}

/// An API server forbids that an init container which has ended runs again, as in a new sandbox.
#[test]
fn a_status_that_is_refused_is_tried_again_later() {
    let message =
        "status.initContainerStatuses: Forbidden: may not be transitioned to non-terminated state";
    let denial = Denial { code: 422, reason: "Invalid".to_owned(), message: message.to_owned() };
    let seen = Arc::new(object("u1", "Pending"));
    let mut memory = MirrorMemory::default();
    let step = plan_api(&mut memory, &running("u1", "Running"), &seen, Duration::ZERO);
    assert!(matches!(step, MirrorStep::PatchStatus { .. }), "{step:?}");
    assert_eq!(memory.settle(&step, &Answer::Refused(denial), Duration::ZERO), Next::Later);
    assert_eq!(memory.trouble.as_deref(), Some(message));
}

/// The status of a pod with one container in `state`; `sandbox` tells whether its sandbox is ready.
fn life(phase: &str, state: &Value, sandbox: &str, generation: i64) -> Value {
    let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation});
    let ready = if phase == "Running" { "True" } else { "False" };
    json!({
        "phase": phase, "startTime": "2026-01-01T00:00:00Z", "observedGeneration": generation,
        "podIP": (sandbox == "True").then_some("10.0.0.7"),
        "conditions": [condition("PodReadyToStartContainers", sandbox), condition("Ready", ready)],
        "containerStatuses": [{"name": "web", "image": "web:1", "imageID": "",
            "ready": phase == "Running", "restartCount": 0, "state": state}],
    })
}

#[test]
fn minor_changes_wait_for_what_follows_them() {
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let begun = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
    let scheduled = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let begins = life("Pending", &waiting("ContainerCreating"), "False", 1);
    let sandbox = life("Pending", &waiting("ContainerCreating"), "True", 1);
    let runs = life("Running", &begun, "True", 1);
    let deleted = life("Running", &begun, "True", 2);
    let over = life("Succeeded", &ended, "True", 1);
    for (from, to, is_minor) in [
        (&scheduled, &begins, true),
        (&scheduled, &sandbox, true),
        (&begins, &sandbox, true),
        (&sandbox, &begins, true),
        (&sandbox, &runs, false),
        (&scheduled, &runs, false),
        (&scheduled, &life("Pending", &waiting("ErrImagePull"), "True", 1), false),
        (&begins, &life("Pending", &waiting("ErrImagePull"), "False", 1), false),
        (&runs, &deleted, true),
        (&runs, &life("Running", &begun, "False", 2), true),
        (&runs, &life("Running", &ended, "True", 2), false),
        (&runs, &life("Running", &ended, "True", 1), false),
        (&runs, &over, false),
        (&over, &life("Succeeded", &ended, "False", 1), true),
    ] {
        let seen = Arc::new(SeenPod { status: status(from.clone()), ..object("u1", "Pending") });
        let view = PodView { status: Arc::new(status(to.clone())), ..running("u1", "Pending") };
        let mut told = Vec::new();
        let mut memory = MirrorMemory::default();
        for millis in [1000, 1499, 1500] {
            let step = plan_api(&mut memory, &view, &seen, Duration::from_millis(millis));
            told.push(in_words(step).chars().take(5).collect::<String>());
        }
        let expected = if is_minor { ["delay", "delay", "patch"] } else { ["patch"; 3] };
        assert_eq!(told, expected, "{from} -> {to}");
    }
}

#[test]
fn a_new_generation_is_written_to_each_condition_of_ours() {
    let begun = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let mut told = life("Running", &begun, "True", 1);
    let others = json!({"type": "example.org/gate", "status": "True", "observedGeneration": 1});
    told["conditions"].as_array_mut().unwrap().push(others);
    let seen = SeenPod { status: status(told), ..object("u1", "Running") };
    let ours = Arc::new(status(life("Running", &begun, "True", 2)));
    let view = PodView { status: ours, ..running("u1", "Running") };
    let step = decide_api(Some(&view), Some(&seen));
    let patch: Value = serde_json::from_str(step.strip_prefix("patch u1@7 ").unwrap()).unwrap();
    let sent = patch["conditions"].as_array().unwrap().iter();
    let sent: Vec<_> = sent.map(|one| (&one["type"], &one["observedGeneration"])).collect();
    let two = json!(2);
    let expected = [(&json!("PodReadyToStartContainers"), &two), (&json!("Ready"), &two)];
    assert_eq!(sent, expected, "{step}");
}

#[test]
fn minor_changes_of_a_deleted_pod_wait_for_its_end() {
    let begun = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let told = life("Running", &begun, "True", 1);
    let seen = Arc::new(deleted(SeenPod { status: status(told), ..object("u1", "Running") }));
    let ours = Arc::new(status(life("Running", &begun, "True", 2)));
    let view = PodView { status: ours, ..running("u1", "Running") };
    let mut memory = MirrorMemory::default();
    let told = [1000, 10_999, 11_000].map(|millis| {
        let step = plan_api(&mut memory, &view, &seen, Duration::from_millis(millis));
        in_words(step).chars().take(5).collect::<String>()
    });
    assert_eq!(told, ["delay", "delay", "patch"]);
}

#[test]
fn the_last_deletion_does_not_wait_for_minor_changes() {
    let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
    let told = life("Succeeded", &ended, "True", 1);
    let seen = deleted(SeenPod { status: status(told), ..object("u1", "Succeeded") });
    let ours = Arc::new(status(life("Succeeded", &ended, "False", 2)));
    let view = PodView { status: ours, stopped: true, ..running("u1", "Succeeded") };
    let expected = "delete u1: it was deleted and has ended";
    assert_eq!(decide_api(Some(&view), Some(&seen)), expected);
}

#[test]
fn two_statuses_say_the_same_only_without_a_patch() {
    let running = json!([{"name": "web", "image": "web:1", "imageID": "", "ready": true,
        "restartCount": 0, "state": {"running": {}}}]);
    let condition = |type_: &str, status: &str, time: &str| json!({"type": type_, "status": status, "lastTransitionTime": time});
    let seen = json!({
        "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "qosClass": "Burstable",
        "conditions": [
            condition("PodScheduled", "True", "2026-01-01T00:00:00Z"),
            condition("Ready", "True", "2026-01-01T00:00:00Z"),
        ],
        "containerStatuses": running,
    });
    let mut ours = seen.clone();
    ours["qosClass"] = json!("BestEffort");
    ours["conditions"] = json!([
        condition("Ready", "True", "2026-01-01T00:00:09Z"),
        condition("PodScheduled", "True", "2026-01-01T00:00:00Z"),
    ]);
    assert!(says_the_same(&status(seen.clone()), &status(ours.clone())));
    for (field, _) in POD_STATUS.fields {
        let other = match *field {
            "conditions" => json!([
                condition("Ready", "False", "2026-01-01T00:00:00Z"),
                condition("PodScheduled", "True", "2026-01-01T00:00:00Z"),
            ]),
            "containerStatuses" | "initContainerStatuses" | "ephemeralContainerStatuses" => {
                json!([terminated(0, "Completed")])
            }
            "allocatedResources" => json!({"cpu": "1"}),
            "resources" => json!({"requests": {"cpu": "1"}}),
            "hostIPs" | "podIPs" => json!([{"ip": "10.0.0.7"}]),
            "observedGeneration" => json!(2),
            "startTime" => json!("2026-01-01T00:00:01Z"),
            _ => json!("other"),
        };
        let mut changed = ours.clone();
        changed[field] = other;
        assert!(!says_the_same(&status(seen.clone()), &status(changed)), "{field}");
        let mut without = ours.clone();
        if without.as_object_mut().unwrap().remove(*field).is_some() {
            assert!(!says_the_same(&status(seen.clone()), &status(without)), "no {field}");
        }
    }
}
