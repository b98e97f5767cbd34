//! Pods of the API server: what is wished of them, which orders they get, and how long they take
//! room.

use super::*;
use crate::{
    model::{Evicted, Hold, HoldStop, PodEnd, TerminalPhase},
    plan::Wish,
};

fn recorded_api(uid: &str, ended: bool) -> Recorded {
    Recorded { pod: pod_of(SourceKind::Api), ..recorded(uid, ended) }
}

fn desired_api(uid: &str) -> Arc<DesiredPod> {
    let mut desired = DesiredPod::clone(&desired(uid));
    (desired.pod, desired.origin.source) = (pod_of(SourceKind::Api), SourceKind::Api);
    Arc::new(desired)
}

/// The wish in a word.
fn wished(state: &State) -> &'static str {
    match state.wish(&web()) {
        Wish::Run(_) => "run",
        Wish::Keep { .. } => "keep",
        Wish::End { .. } => "end",
        Wish::Gone => "gone",
        Wish::Undecided => "undecided",
    }
}

fn up(mut state: State) -> State {
    state.machine = MachineState::Up;
    state
}

fn evict(state: &mut State, uid: &str) {
    let hold = Hold {
        reason: "Evicted".to_owned(),
        message: String::new(),
        stop: HoldStop::AtOnce,
        disruption: None,
    };
    let evicted = Evicted { uid: uid.into(), hold: Arc::new(hold) };
    Arc::make_mut(&mut state.pressure).evicted.insert(web(), evicted);
}

#[test]
fn a_removed_static_pod_does_not_wait_for_the_api_server() {
    use Completeness::{All, Api, None, Static};
    let records = |all: &[Recorded]| all.to_vec();
    for (records, running, complete, expected) in [
        (records(&[recorded("a", false)]), vec!["a"], Static, "gone"),
        (records(&[recorded("a", false)]), vec![], Static, "gone"),
        (records(&[recorded("a", false)]), vec!["a"], None, "undecided"),
        (records(&[recorded("a", false)]), vec!["a"], All, "gone"),
        // One of them may be a pod of the API server.
        (records(&[recorded("a", false)]), vec!["a", "b"], Static, "undecided"),
        (records(&[recorded("a", false), recorded_api("b", false)]), vec![], Static, "undecided"),
        (records(&[recorded_api("b", false)]), vec!["b"], Static, "undecided"),
        (records(&[recorded_api("b", false)]), vec!["b"], All, "gone"),
        // Nor does a pod of the API server wait for a refused manifest.
        (records(&[recorded_api("b", false)]), vec!["b"], Api, "gone"),
        (records(&[recorded_api("b", false)]), vec!["b"], None, "undecided"),
        (records(&[recorded_api("b", false)]), vec!["a", "b"], Api, "undecided"),
        (records(&[recorded("a", false)]), vec!["a"], Api, "undecided"),
        (records(&[recorded("a", false), recorded_api("b", false)]), vec![], Api, "undecided"),
        (records(&[]), vec!["c"], Static, "undecided"),
        (records(&[]), vec!["c"], Api, "undecided"),
        (records(&[]), vec!["c"], All, "gone"),
    ] {
        let mut state = up(state(&records, &running));
        state.desired.complete = complete;
        assert_eq!(wished(&state), expected, "{records:?} {running:?} {complete:?}");
    }
}

#[test]
fn an_end_comes_before_everything_else_that_is_wished() {
    let mut state = state(&[recorded_api("a", false)], &["a"]);
    state.desired.pods.insert(web(), desired_api("a"));
    assert_eq!(wished(&state), "keep", "logind has not answered");
    let why = state.starts_nothing(&web()).unwrap();
    assert_eq!(why, "waiting for logind to say whether the machine goes down");
    state.machine = MachineState::Up;
    assert_eq!(wished(&state), "run");
    state.desired.unconfirmed.insert(web());
    assert_eq!(wished(&state), "keep");
    let why = state.starts_nothing(&web()).unwrap();
    assert!(why.contains("the API server"), "{why}");
    state.desired.ends.insert(web(), PodEnd { deleted: Some(30), phase: None });
    state.machine = MachineState::Unknown;
    assert_eq!(wished(&state), "end");
}

#[test]
fn a_pod_takes_room_until_it_has_stopped() {
    let leaving = |state: &State| -> Vec<bool> {
        state.leaving().iter().map(|leaving| leaving.undecided).collect()
    };
    let mut deleted = up(state(&[recorded_api("a", false)], &["a"]));
    deleted.desired.pods.insert(web(), desired_api("a"));
    assert!(leaving(&deleted).is_empty(), "it stays");
    deleted.desired.ends.insert(web(), PodEnd { deleted: Some(30), phase: None });
    assert_eq!(leaving(&deleted), [false], "it is known to stop");

    let mut evicted = up(state(&[recorded_api("a", true)], &["a"]));
    evicted.desired.pods.insert(web(), desired_api("a"));
    assert_eq!(leaving(&evicted), [false], "its record says that it has ended");
    evicted.observed.clear();
    assert!(leaving(&evicted).is_empty());
    let mut handle = with_worker(evicted, Some("a"));
    handle.workers.get_mut(&web()).unwrap().alive = true;
    assert_eq!(leaving(&handle), [false], "by the report of its worker");

    let job = up(state(&[recorded("a", true)], &["a"]));
    assert!(leaving(&job).is_empty(), "a static pod that has ended takes nothing");
}

#[test]
fn an_eviction_holds_a_pod_while_it_stops() {
    let held = |state: &State| {
        let hold = state.orders(&web()).hold;
        hold.map(|held| held.uid.to_string())
    };
    for end in [
        PodEnd { deleted: Some(30), phase: None },
        PodEnd { deleted: None, phase: Some(TerminalPhase::Failed) },
    ] {
        let mut state = up(state(&[recorded_api("a", true)], &["a"]));
        state.desired.pods.insert(web(), desired_api("a"));
        state.desired.ends.insert(web(), end);
        assert_eq!(held(&state), None);
        evict(&mut state, "a");
        assert_eq!(held(&state).as_deref(), Some("a"));
        state.observed.clear();
        assert_eq!(held(&state), None, "it has stopped");
        state.desired.pods.insert(web(), desired_api("b"));
        assert_eq!(held(&state).as_deref(), Some("a"), "the old one goes first");
    }
    // A static pod that has ended may take long to stop, too.
    let mut state = up(state(&[recorded("a", true)], &["a"]));
    state.desired.pods.insert(web(), desired("a"));
    evict(&mut state, "a");
    assert_eq!(held(&state).as_deref(), Some("a"));
    state.observed.clear();
    assert_eq!(held(&state), None, "it has stopped");
}
