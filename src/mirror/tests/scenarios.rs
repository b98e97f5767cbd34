//! A model of an API server with a watch that lags, and everything that may happen around it, in
//! any order.

use super::*;
use crate::patch::tests::apply;
use proptest::prelude::*;
use std::time::Duration;

/// One name of an API server.
#[derive(Default)]
struct Api {
    object: Option<Value>,
    version: u64,
    made: u32,
    node: String,
    /// What it was after each write; the watch shows them one after the other.
    log: Vec<Option<Value>>,
    /// Refuses a priority; has no such namespace.
    minds_priority: bool,
    no_namespace: bool,
    writes: usize,
}

impl Api {
    fn store(&mut self, object: Option<Value>) -> Answer {
        let unchanged = match (&self.object, &object) {
            (Some(old), Some(new)) => old == new,
            (None, _) | (_, None) => false,
        };
        self.object = object;
        if !unchanged {
            self.version += 1;
            self.writes += 1;
            if let Some(object) = &mut self.object {
                object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            }
            self.log.push(self.object.clone());
        }
        self.object.as_ref().map_or(Answer::Gone, |object| Answer::Pod(seen(object)))
    }

    fn handle(&mut self, step: &MirrorStep) -> Answer {
        let body = step.body().unwrap();
        let refuse = |code, reason: &str, message: &str| {
            Answer::Refused(Denial { code, reason: reason.to_owned(), message: message.to_owned() })
        };
        if let MirrorStep::Create(_) = step {
            if self.no_namespace {
                return refuse(404, "NotFound", "namespaces \"default\" not found");
            }
            if body["metadata"]["ownerReferences"][0]["uid"] != self.node.as_str() {
                return refuse(403, "Forbidden", "node n1 UID mismatch");
            }
            if self.minds_priority && !body["spec"]["priority"].is_null() {
                return refuse(
                    403,
                    "Forbidden",
                    "the integer value of priority (7) must not be provided",
                );
            }
            if self.object.is_some() {
                return refuse(409, "AlreadyExists", "pods \"web-n1\" already exists");
            }
            self.made += 1;
            let mut object = body;
            object["metadata"]["uid"] = json!(format!("m{}", self.made));
            object["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
            return self.store(Some(object));
        }
        let Some(object) = &self.object else { return Answer::Gone };
        let holder =
            if let MirrorStep::Delete { .. } = step { "preconditions" } else { "metadata" };
        let uid = &body[holder]["uid"];
        if object["metadata"]["uid"] != *uid {
            return refuse(409, "Conflict", "the UID in the precondition does not match");
        }
        if let MirrorStep::Delete { .. } = step {
            return self.store(None);
        }
        let version = &body["metadata"]["resourceVersion"];
        if !version.is_null() && object["metadata"]["resourceVersion"] != *version {
            return refuse(409, "Conflict", "the object has been modified");
        }
        let mut object = object.clone();
        let status = apply(&object["status"], body["status"].as_object());
        let is_final =
            |status: &Value| status["phase"] == "Succeeded" || status["phase"] == "Failed";
        assert!(
            !is_final(&object["status"]) || object["status"]["phase"] == status["phase"],
            "{} leaves its final phase for {}",
            object["status"],
            status
        );
        let ended =
            |status: &Value| !status["containerStatuses"][0]["state"]["terminated"].is_null();
        if ended(&object["status"]) && !ended(&status) && !status["containerStatuses"].is_null() {
            return refuse(
                422,
                "Invalid",
                "state: Forbidden: may not be transitioned to non-terminated state",
            );
        }
        object["status"] = status;
        self.store(Some(object))
    }
}

fn seen(object: &Value) -> Arc<SeenPod> {
    Arc::new(serde_json::from_value(object.clone()).unwrap())
}

struct World {
    api: Api,
    memory: MirrorMemory,
    view: Option<PodView>,
    /// The static pods that there still are.
    known: Vec<String>,
    node: Option<NodeRef>,
    now: Duration,
    /// How much of the log the watch has shown, and what it shows.
    at: usize,
    shown: Option<Arc<SeenPod>>,
}

impl World {
    fn new() -> Self {
        let api = Api { node: "node-1".to_owned(), ..Api::default() };
        let node = Some(node("node-1"));
        let (memory, now) = (MirrorMemory::default(), Duration::ZERO);
        Self { api, memory, view: None, known: Vec::new(), node, now, at: 0, shown: None }
    }

    fn run(&mut self, uid: &str, revision: &str, phase: &str) {
        let mut view = view(uid, revision, phase);
        if let Some(pod) = view.pod.as_mut().map(Arc::make_mut) {
            pod.spec.as_mut().unwrap().priority = Some(7);
        }
        let state = match phase {
            "Succeeded" | "Failed" => json!({"terminated": {"exitCode": 0}}),
            "Running" => json!({"running": {}}),
            _ => json!({"waiting": {"reason": "ContainerCreating"}}),
        };
        let mut now = serde_json::to_value(&*view.status).unwrap();
        now["containerStatuses"] = json!([{"name": "web", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": state}]);
        view.status = Arc::new(status(now));
        self.view = Some(view);
        self.known = vec![uid.to_owned()];
    }

    /// Plans and carries out; `lost` loses the answer on its way back.
    fn step(&mut self, lost: bool) -> (MirrorStep, Option<Next>) {
        let sight = Sight {
            key: &key(),
            view: self.view.as_ref(),
            shown: self.shown.as_ref(),
            live: true,
            runs_api_pods: false,
            node: self.node.as_ref(),
        };
        let known = &self.known;
        let gone = |pod: &SeenPod| {
            let uid = pod.mirrors.as_ref().map_or(pod.uid.as_str(), PodUid::as_str);
            !known.iter().any(|known| known == uid)
        };
        let step = self.memory.plan(&sight, gone, self.now);
        let Some(_) = step.body() else { return (step, None) };
        let mut answer = self.api.handle(&step);
        if lost {
            answer = Answer::Unclear("lost".to_owned());
        }
        let next = self.memory.settle(&step, &answer, self.now);
        (step, Some(next))
    }

    /// Steps until there is nothing more to do.
    fn settle(&mut self) {
        for _ in 0..20 {
            match self.step(false).0 {
                MirrorStep::Nothing | MirrorStep::Wait(_) => return,
                MirrorStep::Delay(at) => self.now = at,
                MirrorStep::Create(_)
                | MirrorStep::Delete { .. }
                | MirrorStep::PatchStatus { .. }
                | MirrorStep::Decline { .. } => {}
            }
        }
        panic!("no end: {:?} {:?}", self.step(false), self.api.object);
    }

    fn watch(&mut self, events: usize) {
        for _ in 0..events {
            if let Some(object) = self.api.log.get(self.at) {
                self.at += 1;
                self.shown = object.as_ref().map(seen);
            }
        }
    }

    fn relist(&mut self) {
        self.at = self.api.log.len();
        self.shown = self.api.object.as_ref().map(seen);
    }

    fn change(&mut self, what: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.api.object.clone() {
            what(&mut object);
            self.api.store(Some(object));
        }
    }

    /// Has the API server what it should have?
    fn check(&self) {
        let object = self.api.object.as_ref();
        let Some(view) = &self.view else {
            assert!(object.is_none(), "left over: {object:?}");
            return;
        };
        if self.api.no_namespace {
            return;
        }
        let pod = seen(object.expect("no mirror"));
        assert_eq!(pod.mirrors.as_ref(), Some(&view.uid));
        assert_eq!(pod.owner.as_deref(), Some(self.api.node.as_str()));
        assert_eq!(pod.status.phase, view.status.phase);
        assert_eq!(super::super::status::patch(&pod.status, &view.status), None);
        let annotations = &view.pod.as_ref().unwrap().metadata.annotations;
        assert_eq!(
            pod.revision.as_ref(),
            annotations.as_ref().unwrap().get("nodelet.dev/revision")
        );
    }
}

#[test]
fn nothing_is_written_twice_for_want_of_the_watch() {
    let mut world = World::new();
    world.run("a", "r1", "Running");
    world.settle();
    world.check();
    assert_eq!(world.api.writes, 2, "the mirror, its status");
    // The watch shows the creation, and later the status.
    for _ in 0..2 {
        world.watch(1);
        assert_eq!(world.step(false).0, MirrorStep::Nothing);
    }
    // A person deletes it before the watch has shown anything else.
    world.api.store(None);
    world.watch(1);
    world.settle();
    world.check();
    assert_eq!(world.api.made, 2);
}

#[test]
fn an_object_that_the_watch_never_shows_does_not_count_for_ever() {
    let mut world = World::new();
    world.run("a", "r1", "Running");
    world.settle();
    world.api.store(None);
    // The watch is begun anew and has nothing of it.
    world.relist();
    assert_eq!(world.step(false).0, MirrorStep::Nothing);
    world.now += Duration::from_secs(11);
    world.settle();
    world.check();
    assert_eq!(world.api.made, 2);
}

#[test]
fn a_pod_that_was_evicted_and_is_back_gets_a_new_mirror() {
    let mut world = World::new();
    world.run("a", "r1", "Failed");
    world.settle();
    world.check();
    world.run("a", "r1", "Pending");
    world.settle();
    world.check();
    assert_eq!(world.api.made, 2);
}

#[test]
fn a_final_phase_whose_answer_was_lost_is_not_left() {
    let mut world = World::new();
    world.run("a", "r1", "Failed");
    world.step(false);
    world.step(true);
    // Not seen yet.
    world.run("a", "r1", "Running");
    world.step(false);
    assert_eq!(world.api.object.as_ref().unwrap()["status"]["phase"], "Failed");
    world.relist();
    world.settle();
    world.check();
    assert_eq!(world.api.made, 2);
}

#[test]
fn a_restarted_container_gets_a_new_mirror() {
    let mut world = World::new();
    world.run("a", "r1", "Running");
    world.settle();
    world.change(|object| {
        object["status"]["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 0}});
    });
    world.relist();
    world.settle();
    world.check();
    assert_eq!(world.api.made, 2);
}

#[test]
fn refused_fields_are_left_out_and_other_refusals_reported() {
    let mut world = World::new();
    world.run("a", "r1", "Running");
    world.api.minds_priority = true;
    world.settle();
    world.check();
    let annotations = world.api.object.as_ref().unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations["nodelet.dev/left-out"], "spec.priority");

    let mut world = World::new();
    world.run("a", "r1", "Running");
    world.api.no_namespace = true;
    assert_eq!(world.step(false).1, Some(Next::Later));
    assert_eq!(world.memory.trouble.as_deref(), Some("namespaces \"default\" not found"));
    world.api.no_namespace = false;
    world.settle();
    world.check();
    assert_eq!(world.memory.trouble, None);
}

#[test]
fn a_status_that_does_not_stay_is_not_written_for_ever() {
    let mut world = World::new();
    world.run("a", "r1", "Running");
    world.settle();
    let step = MirrorStep::PatchStatus {
        uid: "m1".to_owned(),
        version: world.api.version,
        status: json!({"message": "x"}).as_object().unwrap().clone(),
        is_minor: false,
        of_mirror: true,
    };
    let object = seen(world.api.object.as_ref().unwrap());
    world.memory.settle(&step, &Answer::Pod(object), world.now);
    assert!(matches!(world.memory.without_repeats(step), MirrorStep::Wait(_)));
}

/// Another agent of the same name, which writes as often as this one.
#[test]
fn a_repeated_foreign_write_is_answered_once_in_a_while() {
    let of_status = |world: &mut World, _| happen(world, Happening::NodeController);
    let of_mirror = |world: &mut World, number: usize| {
        let mut object = world.api.object.clone().unwrap();
        object["metadata"]["uid"] = json!(format!("theirs{number}"));
        object["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("theirs");
        world.api.store(Some(object));
    };
    let rivals: [fn(&mut World, usize); 2] = [of_status, of_mirror];
    for rival in rivals {
        let mut world = World::new();
        world.run("a", "r1", "Running");
        world.settle();
        let mut answers = Vec::new();
        for number in 0..300 {
            world.now += Duration::from_millis(100);
            rival(&mut world, number);
            world.relist();
            let before = world.api.writes;
            world.settle();
            if world.api.writes > before {
                answers.push(number);
            }
        }
        assert_eq!(answers[..3], [0, 1, 2], "at once as long as it is not a habit");
        assert_eq!(answers.len(), 9, "{answers:?}");
        world.now += Duration::from_secs(60);
        world.settle();
        world.check();
    }
}

/// What may happen.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Runs(u8, u8, u8),
    Leaves,
    Gone,
    PersonDeletes,
    PersonForces,
    NodeController,
    NodeIsAnother,
    NodeIsSeen,
    Restart,
    Watch(u8),
    Relist,
    Step,
    StepAnswerLost,
    MindsPriority,
    NoNamespace(bool),
    Time,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0..2_u8, 0..2_u8, 0..4_u8).prop_map(|(uid, revision, phase)| Happening::Runs(uid, revision, phase)),
        1 => Just(Happening::Leaves),
        1 => Just(Happening::Gone),
        1 => Just(Happening::PersonDeletes),
        1 => Just(Happening::PersonForces),
        1 => Just(Happening::NodeController),
        1 => Just(Happening::NodeIsAnother),
        2 => Just(Happening::NodeIsSeen),
        1 => Just(Happening::Restart),
        4 => (1..3_u8).prop_map(Happening::Watch),
        1 => Just(Happening::Relist),
        8 => Just(Happening::Step),
        2 => Just(Happening::StepAnswerLost),
        1 => Just(Happening::MindsPriority),
        1 => any::<bool>().prop_map(Happening::NoNamespace),
        1 => Just(Happening::Time),
    ]
}

fn happen(world: &mut World, happening: Happening) {
    match happening {
        Happening::Runs(uid, revision, phase) => {
            let phase = ["Pending", "Running", "Succeeded", "Failed"][usize::from(phase)];
            world.run(["a", "b"][usize::from(uid)], ["r1", "r2"][usize::from(revision)], phase);
        }
        Happening::Leaves => {
            if let Some(view) = &mut world.view {
                view.terminating = true;
            }
        }
        Happening::Gone => (world.view, world.known) = (None, Vec::new()),
        Happening::PersonDeletes => world.change(|object| {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            object["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        }),
        Happening::PersonForces => {
            if world.api.object.is_some() {
                world.api.store(None);
            }
        }
        Happening::NodeController => world.change(|object| {
            let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:01:00Z"});
            object["status"]["conditions"] = json!([ready]);
        }),
        Happening::NodeIsAnother => {
            world.api.node = if world.api.node == "node-1" { "node-2" } else { "node-1" }.to_owned();
        }
        Happening::NodeIsSeen => world.node = Some(node(&world.api.node)),
        Happening::Restart => world.memory = MirrorMemory::default(),
        Happening::Watch(events) => world.watch(usize::from(events)),
        Happening::Relist => world.relist(),
        Happening::Step => {
            world.step(false);
        }
        Happening::StepAnswerLost => {
            world.step(true);
        }
        Happening::MindsPriority => world.api.minds_priority ^= true,
        Happening::NoNamespace(missing) => world.api.no_namespace = missing,
        Happening::Time => world.now += Duration::from_secs(6),
    }
}

proptest! {
    /// Whatever happens in whatever order: once it is quiet and the watch has caught up, the API
    /// server has what it should, and there is nothing more to write.
    #[test]
    fn what_the_api_has_converges(happenings in prop::collection::vec(happening(), 0..40)) {
        let mut world = World::new();
        for happening in happenings {
            happen(&mut world, happening);
        }
        if let Some(view) = &mut world.view {
            view.terminating = false;
        }
        world.node = Some(node(&world.api.node));
        world.api.no_namespace = false;
        world.now += Duration::from_secs(60);
        world.relist();
        world.settle();
        world.check();
        let writes = world.api.writes;
        world.relist();
        world.settle();
        prop_assert_eq!(world.api.writes, writes);
        prop_assert_eq!(&world.memory.trouble, &None);
    }
}
