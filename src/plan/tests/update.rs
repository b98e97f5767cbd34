//! When a new revision takes over: one running pod, and a manifest that changes.

use super::world::{OWNER, World, container, desired, from_api};
use crate::{
    model::{DesiredPod, Hold, HoldStop, NodeObjects, PodUid, REFUSAL_PREFIX, k8s},
    plan::{
        ContainerKind, Fetch, Fetched, HeldPod, Occupancy, PodOrders, UpdateInput, UpdatePlan,
        UpdateWait, Wish, plan_update, replaces, stops_for_edit,
    },
    podspec::pod_cgroup_name,
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// A running pod and the revision that replaces it.
struct Update {
    world: World,
    standing: Arc<DesiredPod>,
    wished: Arc<DesiredPod>,
    hold: Option<HeldPod>,
    after: Option<&'static str>,
}

impl Update {
    fn to(spec: &Value) -> Self {
        let mut world = World::of(&json!({"containers": [container("web")]}));
        world.run();
        let standing = Arc::new(desired("a", &json!({"containers": [container("web")]})));
        Self { world, standing, wished: Arc::new(desired("b", spec)), hold: None, after: None }
    }

    fn to_image(image: &str, policy: &str) -> Self {
        Self::to(&json!({"containers": [
            {"name": "web", "image": image, "imagePullPolicy": policy},
        ]}))
    }

    fn plan(&self) -> UpdatePlan {
        let orders = Arc::new(PodOrders {
            wish: Wish::Run(Arc::clone(&self.wished)),
            shutdown: None,
            hold: self.hold.clone(),
            waits: Some("of the new revision".into()),
            after: self.after.map(Arc::from),
            resize_wait: None,
            clear_dead: false,
            asked: None,
        });
        let input = UpdateInput {
            orders: &orders,
            standing: Some(&self.standing),
            observed: &self.world.truth,
            settings: &self.world.settings,
            memory: &self.world.memory,
            objects: &self.world.objects,
            runtime: &self.world.runtime,
        };
        plan_update(&input, self.world.now)
    }

    /// The uid that the worker acts on.
    fn acts_on(&self) -> String {
        self.plan().orders.wish.pod().unwrap().uid.to_string()
    }

    fn waits(&self) -> Option<UpdateWait> {
        self.plan().waits
    }

    fn why(&self) -> String {
        self.waits().map(|wait| wait.why).unwrap_or_default()
    }

    /// Whether the images of the new revision's first container were fetched for its start.
    fn has_fetched(&self) -> bool {
        let pod = &self.wished.pod;
        let container = &pod.spec.as_ref().unwrap().containers[0];
        self.world.memory.has_fetched(&self.wished.uid, pod, container)
    }

    /// Ends the fetch that the plan wants.
    fn fetched(&mut self, outcome: &Fetched) -> Fetch {
        let fetch = self.plan().fetch.expect("an image to fetch");
        self.world.memory.fetched(&fetch, outcome, self.world.now);
        fetch
    }
}

fn down() -> Fetched {
    let (reason, message) = ("ErrImagePull".to_owned(), "registry is down".to_owned());
    Fetched::Failed { reason, message }
}

fn evicted(uid: &str) -> HeldPod {
    let hold = Hold {
        reason: "Evicted".to_owned(),
        message: "node was low on memory".to_owned(),
        disruption: None,
        stop: HoldStop::AtOnce,
    };
    HeldPod { uid: PodUid::from(uid), hold: Arc::new(hold) }
}

#[test]
fn an_update_from_or_to_a_pod_of_the_api_server_is_not_prepared() {
    for (standing, wished, expected) in
        [(false, false, "a"), (false, true, "b"), (true, false, "b"), (true, true, "b")]
    {
        let mut update = Update::to_image("registry/web:2", "Always");
        if standing {
            update.standing = Arc::new(from_api(DesiredPod::clone(&update.standing)));
        }
        if wished {
            update.wished = Arc::new(from_api(DesiredPod::clone(&update.wished)));
        }
        assert_eq!(update.acts_on(), expected, "{standing} {wished}");
        assert_eq!(update.plan().fetch.is_some(), expected == "a");
    }
}

#[test]
fn the_old_revision_runs_until_every_image_is_there() {
    let mut update = Update::to(&json!({
        "initContainers": [{"name": "setup", "image": "tools:2"}],
        "containers": [{"name": "web", "image": "web:2"}, {"name": "side", "image": "tools:2"}],
    }));
    let plan = update.plan();
    assert_eq!(update.acts_on(), "a");
    assert_eq!((&plan.orders.waits, &plan.orders.hold), (&None, &None), "they concern the new one");
    assert_eq!(
        plan.waits,
        Some(UpdateWait { why: "fetching image \"tools:2\"".to_owned(), failed: false })
    );
    let fetch = update.fetched(&Fetched::Present);
    assert_eq!(
        (&*fetch.image, fetch.kind, fetch.pull_allowed),
        ("tools:2", ContainerKind::Init, true)
    );
    assert_eq!(&*update.fetched(&Fetched::Present).image, "web:2", "tools:2 is there for both");
    assert_eq!(update.waits(), None);
    assert_eq!(update.acts_on(), "b");
}

#[test]
fn a_failed_pull_is_told_and_backed_off() {
    let mut update = Update::to_image("web:2", "IfNotPresent");
    update.fetched(&down());
    let plan = update.plan();
    assert_eq!(plan.fetch, None);
    let why = "ErrImagePull: registry is down".to_owned();
    assert_eq!(plan.waits, Some(UpdateWait { why: why.clone(), failed: true }));
    assert_eq!(plan.wake_at, Some(update.world.now.boot + Duration::from_secs(10)));
    update.world.pass_time(Duration::from_secs(10));
    update.fetched(&down());
    update.world.pass_time(Duration::from_secs(10));
    let fetch = update.plan().fetch.unwrap();
    assert!(!fetch.pull_allowed, "the next pull is due after 20 s; somebody may have imported it");
    assert_eq!(update.why(), why, "the failure is told during the next try");
    update.fetched(&Fetched::Failed {
        reason: "ImagePullBackOff".to_owned(),
        message: "still absent".to_owned(),
    });
    assert_eq!(update.why(), why);
    update.world.pass_time(Duration::from_secs(10));
    assert!(update.fetched(&Fetched::Present).pull_allowed);
    assert_eq!(update.acts_on(), "b");
}

#[test]
fn an_image_that_is_never_pulled_is_looked_for_every_ten_seconds() {
    let mut update = Update::to_image("web:2", "Never");
    for _ in 0..20 {
        update.fetched(&down());
        assert_eq!(update.plan().fetch, None, "not at once");
        update.world.pass_time(Duration::from_secs(10));
    }
}

#[test]
fn other_images_are_fetched_while_one_is_backed_off() {
    let mut update = Update::to(&json!({"containers": [
        {"name": "web", "image": "web:2"}, {"name": "side", "image": "side:2"},
    ]}));
    update.fetched(&down());
    assert_eq!(&*update.fetched(&Fetched::Present).image, "side:2");
    assert_eq!(update.plan().fetch, None);
    assert!(update.why().contains("registry is down"));
}

#[test]
fn an_update_waits_for_the_pods_that_it_starts_after() {
    let mut update = Update::to_image("web:2", "Always");
    update.after = Some("waiting for pod db");
    let plan = update.plan();
    assert_eq!(update.acts_on(), "a");
    let why = "waiting for pod db".to_owned();
    assert_eq!(plan.waits, Some(UpdateWait { why, failed: false }));
    assert_eq!(plan.fetch, None);
    update.after = None;
    update.fetched(&Fetched::Present);
    assert_eq!(update.acts_on(), "b");
}

#[test]
fn what_was_fetched_survives_the_agent_and_not_another_edit() {
    let mut update = Update::to_image("web:2", "Always");
    update.fetched(&Fetched::Present);
    update.world.restart_agent();
    assert_eq!(update.acts_on(), "b");
    assert!(update.has_fetched());
    let before = Arc::clone(&update.wished);
    let edited = Update::to_image("web:3", "Always").wished;
    let edited = DesiredPod { uid: "c".into(), revision: "3".into(), ..DesiredPod::clone(&edited) };
    update.world.memory.prepare_for(Some(&edited));
    update.wished = Arc::new(edited);
    assert_eq!(update.acts_on(), "a");
    update.wished = before;
    assert!(!update.has_fetched());
}

#[test]
fn the_image_of_a_volume_is_fetched_as_well_where_the_runtime_can_mount_it() {
    let mut web = container("web");
    web["volumeMounts"] = json!([{"name": "models", "mountPath": "/models"}]);
    let mut update = Update::to(&json!({
        "containers": [web],
        "volumes": [{"name": "models", "image": {"reference": "models:2"}}],
    }));
    let runtime = &mut update.world.runtime;
    (runtime.name, runtime.version) = ("containerd".to_owned(), "1.7.24".to_owned());
    assert!(update.why().contains("containerd 1.7.24 does not support image volumes"));
    assert_eq!((update.plan().fetch, update.acts_on()), (None, "a".to_owned()));
    "2.1.0".clone_into(&mut update.world.runtime.version);
    assert_eq!(&*update.fetched(&Fetched::Present).image, "models:2");
    assert!(!update.has_fetched());
    update.fetched(&Fetched::Present);
    assert!(update.has_fetched());
    assert_eq!(update.acts_on(), "b");
}

#[test]
fn a_new_revision_waits_for_a_runtime_that_can_run_it() {
    let mut update = Update::to(&json!({
        "runtimeClassName": "sandboxed", "hostUsers": false, "containers": [container("web")],
    }));
    assert!(update.why().contains("RuntimeClass \"sandboxed\" not found"), "{}", update.why());
    let classes = &mut update.world.settings.runtime_classes;
    classes.insert("sandboxed".to_owned(), "runsc".to_owned());
    assert!(update.why().contains("handler \"runsc\" does not support user namespaces"));
    assert_eq!((update.plan().fetch, update.acts_on()), (None, "a".to_owned()));
    update.world.runtime.handlers.push(k8s::NodeRuntimeHandler {
        name: Some("runsc".to_owned()),
        features: Some(k8s::NodeRuntimeHandlerFeatures {
            user_namespaces: Some(true),
            ..Default::default()
        }),
    });
    update.fetched(&Fetched::Present);
    assert_eq!(update.acts_on(), "b");
}

#[test]
fn a_new_revision_waits_for_its_objects() {
    let mut update = Update::to(&json!({
        "volumes": [{"name": "conf", "configMap": {"name": "web"}}],
        "containers": [{
            "name": "web", "image": "web:1",
            "volumeMounts": [{"name": "conf", "mountPath": "/conf"}],
            "envFrom": [{"secretRef": {"name": "keys"}}],
        }],
    }));
    let wait = update.waits().unwrap();
    assert!(wait.failed);
    let parts = [
        "volume \"conf\": ",
        "configmap \"web\" not found",
        "container \"web\": ",
        "secret \"keys\" not found",
    ];
    assert!(parts.iter().all(|part| wait.why.contains(part)), "{}", wait.why);
    assert_eq!(update.plan().fetch, None, "nothing is pulled for a pod that can't begin");
    update.world.objects = NodeObjects::default();
    let why = "ConfigMaps and Secrets have not been read yet".to_owned();
    assert_eq!(update.waits(), Some(UpdateWait { why, failed: false }));
}

#[test]
fn a_refused_revision_waits_and_an_evicted_pod_goes() {
    let mut update = Update::to_image("web:1", "IfNotPresent");
    update.hold = Some(evicted("b"));
    assert_eq!(update.why(), "node was low on memory");
    assert_eq!(update.acts_on(), "a");
    update.hold = Some(evicted("a"));
    assert_eq!(update.acts_on(), "b", "the hold takes the old one down");
}

#[test]
fn a_pod_that_has_never_run_is_replaced_at_once() {
    let mut update = Update::to_image("web:2", "IfNotPresent");
    update.world.truth.containers.clear();
    assert_eq!(update.acts_on(), "b");
}

#[test]
fn a_pod_whose_init_containers_have_run_is_kept() {
    let mut update = Update::to_image("web:2", "IfNotPresent");
    let with_init = json!({
        "initContainers": [container("restore")], "containers": [container("web")],
    });
    update.standing = Arc::new(desired("a", &with_init));
    for container in &mut update.world.truth.containers {
        container.name = "restore".into();
    }
    assert_eq!(update.acts_on(), "a");
}

#[test]
fn a_crashing_pod_is_kept_between_its_restarts() {
    let mut update = Update::to_image("web:2", "IfNotPresent");
    update.world.kill("web", 1);
    assert_eq!(update.acts_on(), "a");
}

#[test]
fn a_pod_is_kept_after_a_reboot_and_when_its_sandbox_dies() {
    let mut update = Update::to_image("web:2", "IfNotPresent");
    update.world.sandbox_dies();
    assert_eq!(update.acts_on(), "a");
    update.world.reboot();
    assert_eq!(update.acts_on(), "a");
}

#[test]
fn a_revision_without_room_takes_the_old_one_down() {
    let mut update = Update::to_image("web:2", "IfNotPresent");
    for reason in ["OutOfcpu", "Preempting"] {
        let hold = Hold { reason: reason.to_owned(), ..(*evicted("b").hold).clone() };
        update.hold = Some(HeldPod { uid: "b".into(), hold: Arc::new(hold) });
        assert_eq!(update.acts_on(), "b", "{reason}");
    }
}

#[test]
fn a_class_edit_that_is_refused_takes_no_running_pod_down() {
    let burstable = json!({"containers": [
        {"name": "web", "resources": {"requests": {"cpu": "8"}}},
    ]});
    let mut update = Update::to(&burstable);
    update.wished = Arc::new(DesiredPod { revision: "2".into(), ..desired("a", &burstable) });
    let kept = |update: &Update| update.plan().orders.wish.pod() == Some(&update.standing);
    let eviction = (*evicted("a").hold).clone();
    let refused = |reason: &str| Hold {
        reason: reason.to_owned(),
        message: format!("{REFUSAL_PREFIX}{reason}"),
        ..eviction.clone()
    };
    for (hold, expected) in
        [(refused("NodeAffinity"), true), (refused("OutOfcpu"), false), (eviction.clone(), false)]
    {
        let told = hold.reason.clone();
        update.hold = Some(HeldPod { uid: "a".into(), hold: Arc::new(hold) });
        assert_eq!(kept(&update), expected, "{told}");
    }
}

#[test]
fn a_look_does_not_satisfy_the_policy_always_of_another_container() {
    let mut update = Update::to(&json!({"containers": [
        {"name": "web", "image": "web:2", "imagePullPolicy": "IfNotPresent"},
        {"name": "side", "image": "web:2", "imagePullPolicy": "Always"},
    ]}));
    assert_eq!(&*update.fetched(&Fetched::Present).container, "web");
    assert_eq!(&*update.fetched(&Fetched::Present).container, "side");
    assert_eq!(update.acts_on(), "b");
}

#[test]
fn nothing_waits_where_updates_are_not_prepared() {
    let mut update = Update::to_image("web:2", "IfNotPresent");
    update.world.settings.prepare_updates = false;
    assert_eq!(update.acts_on(), "b");
    assert_eq!(update.plan().fetch, None);
}

#[test]
fn under_one_uid_another_image_or_class_replaces() {
    let old = desired("a", &json!({"containers": [{"name": "web", "image": "web:1"}]}));
    let new = |spec: Value| DesiredPod { revision: "2".into(), ..desired("a", &spec) };
    let is_replaced = |new: &DesiredPod| replaces(new, &old.uid, &old.revision, &old.pod);
    assert!(!is_replaced(&old));
    assert!(is_replaced(&desired("b", &json!({"containers": []}))));
    assert!(is_replaced(&new(json!({"containers": [{"name": "web", "image": "web:2"}]}))));
    let added = json!({"containers": [
        {"name": "web", "image": "web:1"}, {"name": "side", "image": "side:1"},
    ]});
    assert!(!is_replaced(&new(added)), "a container that is new interrupts nothing");
    let burstable = json!({"containers": [
        {"name": "web", "image": "web:1", "resources": {"requests": {"cpu": "1"}}},
    ]});
    assert!(is_replaced(&new(burstable)));
}

#[test]
fn an_edit_of_the_qos_class_begins_the_same_uid_anew() {
    let burstable = |cpu: &str| {
        json!({"containers": [
            {"name": "web", "image": "web:1", "resources": {"requests": {"cpu": cpu}}},
        ]})
    };
    let mut world = World::of(&json!({"containers": [container("web")]}));
    world.run();
    let before = world.truth.sandboxes.clone();
    world.take_trace();
    world.want_uid("a", &burstable("1"));
    world.keep = true;
    world.run();
    assert_eq!(world.truth.sandboxes, before);
    world.keep = false;
    world.run();
    let recorded = world.records[&PodUid::from("a")].pod.as_deref().unwrap();
    assert_eq!(pod_cgroup_name(recorded), ["kubepods", "burstable", "poda"]);
    let trace = world.take_trace();
    assert!(trace.contains("kill pod (retire)") && trace.contains("clean up"), "{trace}");
    let anew = world.truth.sandboxes.clone();
    assert!(world.running("web").is_some() && anew.len() == 1 && anew != before, "{trace}");

    world.want_uid("a", &burstable("2"));
    world.run();
    assert_eq!(world.truth.sandboxes, anew, "an edit within the class");
}

#[test]
fn an_edit_that_removes_or_changes_a_container_stops_it() {
    let spec = |image: &str, names: &[&str]| {
        let containers = names.iter().map(|name| json!({"name": name, "image": image}));
        json!({"containers": containers.collect::<Vec<_>>()})
    };
    let mut world = World::of(&spec("i:1", &["web", "side"]));
    world.run();
    let stops = |world: &World, spec: &Value| {
        let own = Occupancy::new(&world.truth, OWNER).own(&"a".into(), true);
        stops_for_edit(&own, &desired("a", spec).pod)
    };
    assert!(!stops(&world, &spec("i:1", &["web", "side", "new"])), "one is added");
    assert!(stops(&world, &spec("i:1", &["web"])), "one is removed");
    assert!(stops(&world, &spec("i:2", &["web", "side"])), "both are changed");
    world.kill("side", 0);
    assert!(!stops(&world, &spec("i:1", &["web"])), "it has stopped");
}
