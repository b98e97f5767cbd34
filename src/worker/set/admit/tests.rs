mod api_pods;

use super::{super::Handle, *};
use crate::{
    admission::Progress,
    model::{
        Completeness, MachineState, NetworkMode, ObservedPod, ObservedSandbox, Origin, PodEnd,
        SandboxState, Shutdown, ShutdownPeriods, SourceKind, TerminalPhase, k8s,
    },
    store::PodRecord,
    worker,
};
use tokio::sync::watch;

const OWNER: &str = "me";

fn web() -> PodKey {
    PodKey::new("default", "web")
}

/// A pod of this source.
fn pod_of(source: SourceKind) -> Arc<k8s::Pod> {
    let mut pod = k8s::Pod::default();
    let source = ("kubernetes.io/config.source".to_owned(), source.as_str().to_owned());
    pod.metadata.annotations = Some([source].into());
    Arc::new(pod)
}

fn recorded(uid: &str, ended: bool) -> Recorded {
    Recorded { uid: uid.into(), pod: pod_of(SourceKind::File), ended }
}

fn desired(uid: &str) -> Arc<DesiredPod> {
    Arc::new(DesiredPod {
        key: web(),
        uid: uid.into(),
        revision: "1".into(),
        pod: pod_of(SourceKind::File),
        origin: Origin {
            source: SourceKind::File,
            location: "web.yaml".into(),
            document: 0,
            line: 1,
        },
    })
}

fn sandbox(uid: &str) -> ObservedSandbox {
    ObservedSandbox {
        id: format!("sandbox of {uid}").into(),
        uid: uid.into(),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: jiff::Timestamp::UNIX_EPOCH,
        ips: Vec::new(),
        network: NetworkMode::Pod,
        owner: Some(OWNER.into()),
    }
}

/// A set that was told of these records, and whose runtime runs these incarnations.
fn state(records: &[Recorded], running: &[&str]) -> State {
    let mut state = State { owner: OWNER.into(), listed: true, ..State::default() };
    state.desired.complete = Completeness::All;
    if !records.is_empty() {
        state.recorded.insert(web(), records.to_vec());
    }
    if !running.is_empty() {
        let sandboxes = running.iter().map(|uid| sandbox(uid)).collect();
        let observed = ObservedPod { sandboxes, ..ObservedPod::default() };
        state.observed.insert(web(), Arc::new(observed));
    }
    state
}

#[test]
fn a_pod_that_has_ended_is_not_counted_as_active() {
    let (pod, running) = (desired("a"), state(&[recorded("a", false)], &[]));
    assert!(!running.has_ended(&pod));
    assert!(!state(&[recorded("before", true)], &[]).has_ended(&pod));
    assert!(state(&[recorded("a", true)], &[]).has_ended(&pod));
    let mut in_api = running;
    in_api.desired.ends.insert(web(), PodEnd { phase: None, deleted: Some(30) });
    assert!(!in_api.has_ended(&pod), "it is still being stopped");
    let phase = Some(TerminalPhase::Succeeded);
    in_api.desired.ends.insert(web(), PodEnd { phase, deleted: None });
    assert!(in_api.has_ended(&pod));
}

/// The worker has reported and shows this incarnation.
fn with_worker(mut state: State, shown: Option<&str>) -> State {
    let (input, _) = watch::channel(worker::Input {
        orders: Arc::new(state.orders(&web())),
        observed: Arc::default(),
        runtime: Arc::default(),
        probes: Arc::default(),
        objects: Arc::default(),
        sequence: 0,
    });
    let shown = shown.map(PodUid::from);
    let handle = Handle {
        input,
        shown,
        priority: 0,
        alive: false,
        progress: Progress::NotReady,
        dead: 0,
        update_waits: false,
        answered: None,
    };
    state.workers.insert(web(), handle);
    state
}

#[test]
fn the_shown_uid_comes_before_records_and_sandboxes() {
    let standing = |state: &State| state.standing_uid(&web()).map(PodUid::to_string);
    assert_eq!(standing(&state(&[], &[])), None);
    assert_eq!(standing(&state(&[], &["c"])).as_deref(), Some("c"));
    let all = || state(&[recorded("b", false)], &["c"]);
    assert_eq!(standing(&all()).as_deref(), Some("b"));
    assert_eq!(standing(&with_worker(all(), None)).as_deref(), Some("b"));
    assert_eq!(standing(&with_worker(all(), Some("a"))).as_deref(), Some("a"));
}

#[test]
fn the_manifest_in_use_is_the_one_merged_last_or_recorded() {
    let in_use = |state: &State| state.in_use(&web()).map(|origin| origin.location.to_string());
    let mut state = state(&[recorded("a", false)], &["a"]);
    assert_eq!(in_use(&state), None);
    let origin = Origin { location: "old.yaml".into(), ..desired("a").origin.clone() };
    let record = PodRecord::new(web(), "a".into(), pod_of(SourceKind::File));
    state.records.insert(web(), vec![PodRecord { origin: Some(origin), ..record }]);
    assert_eq!(in_use(&state).as_deref(), Some("old.yaml"));
    state.desired.pods.insert(web(), desired("b"));
    assert_eq!(in_use(&state).as_deref(), Some("web.yaml"));
}

#[test]
fn a_record_says_how_a_pod_stands_whatever_is_shown() {
    let standing = |state: &State, uid: &str| state.standing(&web(), &uid.into());
    let records = [recorded("old", false), recorded("job", true)];
    for state in [state(&records, &["run"]), with_worker(state(&records, &["run"]), None)] {
        assert_eq!(standing(&state, "old"), Standing::Running);
        assert_eq!(standing(&state, "job"), Standing::Ended);
        assert_eq!(standing(&state, "run"), Standing::Running, "no worker shows anything else");
        assert_eq!(standing(&state, "new"), Standing::New { since: None });
    }
    let state = with_worker(state(&records, &["run"]), Some("old"));
    assert_eq!(standing(&state, "job"), Standing::Ended);
    assert_eq!(standing(&state, "run"), Standing::New { since: None }, "the worker knows better");
}

#[test]
fn what_is_yet_to_be_inspected_gets_no_worker() {
    let mut state = state(&[recorded("a", false)], &["a"]);
    assert!(state.needs_worker(&web()));
    state.uninspected.insert(web());
    assert!(!state.needs_worker(&web()));
    state.desired.pods.insert(web(), desired("a"));
    assert!(!state.needs_worker(&web()), "also when it is wished");
    assert_eq!(state.standing(&web(), &"a".into()), Standing::Running);
    state.uninspected.clear();
    assert!(!with_worker(state, None).needs_worker(&web()), "it has one");
}

#[test]
fn a_shutdown_before_the_first_listing_waits_for_recorded_pods() {
    let mut state = state(&[recorded("a", false)], &[]);
    state.listed = false;
    assert!(state.left().is_empty());
    let periods = ShutdownPeriods::default();
    state.machine = MachineState::GoingDown(Shutdown { periods, turn: 0 });
    assert_eq!(state.left(), BTreeSet::from([web()]));
    state.recorded.insert(web(), vec![recorded("a", true)]);
    assert!(state.left().is_empty(), "it has ended");
    state.recorded.insert(web(), vec![recorded("a", false)]);
    state.listed = true;
    assert!(state.left().is_empty(), "nothing of it runs");
}

#[test]
fn a_shutdown_waits_for_what_is_yet_to_be_inspected() {
    let mut state = state(&[], &["a"]);
    state.uninspected.insert(web());
    assert!(state.left().is_empty());
    state.machine =
        MachineState::GoingDown(Shutdown { periods: ShutdownPeriods::default(), turn: 0 });
    assert_eq!(state.left(), BTreeSet::from([web()]));
    state.owner = "another agent".into();
    assert!(state.left().is_empty(), "pods of others do not end");
}

#[test]
fn every_recorded_incarnation_that_is_not_wished_takes_room() {
    let records = [recorded("a", false), recorded("b", false), recorded("over", true)];
    let mut state = with_worker(state(&records, &[]), Some("a"));
    let leaving = |state: &State| -> Vec<bool> {
        state.leaving().iter().map(|leaving| leaving.undecided).collect()
    };
    assert_eq!(leaving(&state), [false, false], "both of them, and not the one that has ended");
    state.desired.complete = Completeness::None;
    assert_eq!(leaving(&state), [true, true]);
    state.desired.pods.insert(web(), desired("b"));
    state.machine = MachineState::Up;
    assert_eq!(leaving(&state), [false]);
}

#[test]
fn an_edit_of_the_qos_class_is_admitted_as_a_new_pod() {
    let spec = |cpu: &str| {
        let resources = serde_json::json!({"requests": {"cpu": cpu}});
        let containers = serde_json::json!([{"name": "web", "resources": resources}]);
        Some(serde_json::from_value(serde_json::json!({"containers": containers})).unwrap())
    };
    let mut edited = DesiredPod::clone(&desired("a"));
    Arc::make_mut(&mut edited.pod).spec = spec("8");
    let edited = Arc::new(edited);
    for ended in [false, true] {
        let mut state = state(&[recorded("a", ended)], &["a"]);
        state.desired.pods.insert(web(), Arc::clone(&edited));
        assert_ne!(state.standing(&web(), &"a".into()), Standing::New { since: None });
        assert!(state.leaving().is_empty(), "logind has not answered, so nothing is replaced");
        state.machine = MachineState::Up;
        assert_eq!(state.standing(&web(), &"a".into()), Standing::New { since: None });
        assert_eq!(state.resize_of(&edited), None);
        let leaving = state.leaving();
        let undecided: Vec<bool> = leaving.iter().map(|leaving| leaving.undecided).collect();
        assert_eq!(undecided, if ended { vec![] } else { vec![false] });
    }
    // An edit within the class is a resize.
    let mut burstable = recorded("a", false);
    Arc::make_mut(&mut burstable.pod).spec = spec("1");
    let mut state = state(&[burstable], &["a"]);
    state.desired.pods.insert(web(), Arc::clone(&edited));
    state.machine = MachineState::Up;
    assert_eq!(state.standing(&web(), &"a".into()), Standing::Running);
    assert!(state.resize_of(&edited).is_some() && state.leaving().is_empty());
}

#[test]
fn a_uid_that_another_name_has_must_be_waited_for() {
    let mut pod = (*desired("a")).clone();
    pod.key = PodKey::new("default", "other");
    let waits = |state: &State| {
        let names = state.names_by_uid();
        state.uid_user(&pod, names.get(&pod.uid))
    };
    assert_eq!(waits(&state(&[recorded("b", false)], &["c"])), None);
    let going = "uid a is still used by pod default/web, which is being removed";
    for used in [
        state(&[recorded("a", true)], &[]),
        state(&[], &["a"]),
        with_worker(state(&[], &[]), Some("a")),
    ] {
        assert_eq!(waits(&used).as_deref(), Some(going));
    }
    let mut foreign = state(&[], &[]);
    let sandboxes = vec![ObservedSandbox { owner: None, ..sandbox("a") }];
    let observed = ObservedPod { sandboxes, ..ObservedPod::default() };
    foreign.observed.insert(web(), Arc::new(observed));
    let others = "uid a is used by pod default/web of another agent (sandbox sandbox of a)";
    assert_eq!(waits(&foreign).as_deref(), Some(others));
}
