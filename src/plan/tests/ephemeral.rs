//! Ephemeral containers, which are added to a pod that runs.

use super::world::{Fault, Program, Want, World, container, desired};
use crate::{
    model::{ContainerState, DesiredPod, k8s},
    plan::{Action, ContainerKind, Pull, StartContainer, kind_of, replaces},
};
use serde_json::{Value, json};

fn web() -> Value {
    json!({"containers": [container("web")]})
}

/// The pod `spec` with the ephemeral container `debug`, under the same uid.
fn debugged(spec: &Value, debug: &Value) -> DesiredPod {
    let mut spec = spec.clone();
    spec["ephemeralContainers"] = json!([debug]);
    DesiredPod { revision: "debugged".into(), ..desired("a", &spec) }
}

impl World {
    /// Adds the ephemeral container `debug`, and takes the trace from there on.
    fn debug(&mut self, spec: &Value) {
        self.debug_with(spec, &container("debug"));
    }

    fn debug_with(&mut self, spec: &Value, debug: &Value) {
        self.take_trace();
        self.want = Want::Run(Box::new(debugged(spec, debug)));
        self.run();
    }

    fn debug_status(&self) -> &k8s::ContainerStatus {
        &self.status.as_ref().unwrap().ephemeral_container_statuses.as_ref().unwrap()[0]
    }

    /// The reason and the message of the waiting ephemeral container.
    fn debug_waits(&self) -> (&str, &str) {
        let waiting = self.debug_status().state.as_ref().unwrap().waiting.as_ref().unwrap();
        (waiting.reason.as_deref().unwrap(), waiting.message.as_deref().unwrap_or_default())
    }

    fn phase(&self) -> &str {
        self.status.as_ref().unwrap().phase.as_deref().unwrap()
    }
}

#[test]
fn an_ephemeral_container_is_added_to_a_running_pod() {
    let mut world = World::of(&web());
    world.run();
    world.debug(&web());
    let trace = world.take_trace();
    assert_eq!(trace, "\n   0 prepare\n   0 start debug\n");
    assert_eq!(world.line(), "Running 1/1 0");
    assert!(world.running("web").is_some() && world.running("debug").is_some());
}

#[test]
fn an_ephemeral_container_is_never_restarted() {
    for code in [0, 1, 137] {
        let mut world = World::of(&web());
        world.run();
        world.debug(&web());
        world.kill("debug", code);
        world.take_trace();
        world.run();
        world.restart_agent();
        world.run();
        world.advance(1000);
        world.reboot();
        world.run();
        let trace = world.take_trace();
        assert!(!trace.contains("start debug") && trace.contains("start web"), "{trace}");
        let state = world.debug_status().state.as_ref().unwrap();
        assert_eq!(state.terminated.as_ref().unwrap().exit_code, code);
        assert_eq!(world.phase(), "Running");
    }
}

#[test]
fn an_ephemeral_container_does_not_follow_into_a_new_sandbox() {
    let mut world = World::of(&web());
    world.run();
    world.debug(&web());
    world.take_trace();
    world.sandbox_dies();
    world.run();
    let trace = world.take_trace();
    assert!(!trace.contains("start debug"), "{trace}");
    assert!(world.running("web").is_some() && world.running("debug").is_none());
    let kept = world.truth.containers.iter().find(|one| &*one.name == "debug").unwrap();
    assert!(matches!(kept.state, ContainerState::Exited { .. }));
}

#[test]
fn an_ephemeral_container_does_not_wait_for_init_containers() {
    let spec = json!({"initContainers": [container("setup")], "containers": [container("web")]});
    let mut world = World::of(&spec).program("setup", &[Program::Forever]);
    world.run();
    world.debug(&spec);
    assert!(world.running("debug").is_some() && world.running("web").is_none());
    assert_eq!(world.line(), "Init:0/1 0/1 0");
}

#[test]
fn the_end_of_a_pod_does_not_wait_for_its_ephemeral_container() {
    let spec = json!({"restartPolicy": "Never", "containers": [container("web")]});
    let mut world = World::of(&spec);
    world.run();
    world.debug(&spec);
    world.kill("web", 0);
    world.run();
    let trace = world.take_trace();
    assert!(trace.contains("kill pod (end) [debug 30 s]"), "{trace}");
    assert_eq!(world.phase(), "Succeeded");
    assert!(world.running("debug").is_none());
    assert!(world.debug_status().state.as_ref().unwrap().terminated.is_some());
}

#[test]
fn a_failed_ephemeral_container_does_not_fail_its_pod() {
    let spec = json!({"restartPolicy": "Never", "containers": [container("web")]});
    let mut world = World::of(&spec);
    world.run();
    world.debug(&spec);
    world.kill("debug", 1);
    world.run();
    assert_eq!((world.phase(), &*world.line()), ("Running", "Running 1/1 0"));
}

#[test]
fn an_ephemeral_container_stops_with_the_regular_ones() {
    let sidecar = json!({"name": "proxy", "image": "registry/proxy:1", "restartPolicy": "Always"});
    let spec = json!({"initContainers": [sidecar], "containers": [container("web")]});
    let mut world = World::of(&spec);
    world.run();
    world.debug(&spec);
    world.want = Want::Gone;
    world.run();
    let trace = world.take_trace();
    assert!(trace.contains("[web 30 s, debug 30 s] [proxy 30 s]"), "{trace}");
    assert!(world.truth.is_empty() && world.records.is_empty() && world.memory.is_empty());
}

#[test]
fn a_failed_pull_backs_off() {
    let mut world = World::of(&web());
    world.run();
    for _ in 0..3 {
        world.fault(Fault::Pull);
    }
    world.debug(&web());
    assert_eq!(world.debug_waits(), ("ErrImagePull", "registry is down"));
    world.advance(25);
    assert_eq!(world.debug_waits().0, "ImagePullBackOff");
    assert_eq!(world.line(), "Running 1/1 0");
    let trace = world.take_trace();
    assert!(trace.contains("Back-off pulling image \"registry/debug:1\""), "{trace}");
    world.advance(60);
    assert!(world.running("debug").is_some());
}

#[test]
fn a_container_that_could_not_be_created_is_tried_again() {
    for fault in [Fault::Config, Fault::Create] {
        let mut world = World::of(&web());
        world.run();
        world.fault(fault);
        world.debug(&web());
        assert!(world.running("debug").is_none(), "{fault:?}");
        let reason = if fault == Fault::Config { "ConfigError" } else { "Error" };
        assert_eq!(world.debug_waits().0, format!("CreateContainer{reason}"));
        world.advance(20);
        assert!(world.running("debug").is_some(), "{fault:?}");
    }
}

#[test]
fn a_container_that_could_not_be_started_has_had_its_turn() {
    let mut world = World::of(&web());
    world.run();
    world.fault(Fault::Start);
    world.debug(&web());
    world.advance(1000);
    assert_eq!(
        world.debug_status().state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code,
        128
    );
    assert!(world.running("debug").is_none());
}

#[test]
fn a_created_instance_is_started() {
    let mut world = World::of(&web());
    world.run();
    world.debug(&web());
    let created = world.truth.containers.iter_mut().find(|one| &*one.name == "debug").unwrap();
    created.state = ContainerState::Created;
    let id = created.id.clone();
    world.list();
    let plan = world.plan();
    let Some(Action::StartContainer(start)) = plan.actions.last() else { panic!("{plan:?}") };
    assert_eq!((&*start.name, start.created.as_ref()), ("debug", Some(&id)));
}

#[test]
fn a_start_names_the_target_and_the_kind() {
    let mut debug = container("debug");
    debug["targetContainerName"] = "web".into();
    let mut world = World::of(&web());
    world.run();
    world.want = Want::Run(Box::new(debugged(&web(), &debug)));
    world.list();
    let plan = world.plan();
    let web = world.running("web").unwrap();
    assert_eq!(
        plan.actions[1],
        Action::StartContainer(StartContainer {
            uid: "a".into(),
            name: "debug".into(),
            kind: ContainerKind::Ephemeral,
            sandbox_id: web.sandbox_id.clone(),
            created: None,
            restart_count: None,
            pull: Pull::ByPolicy,
            target: Some(web.id.clone()),
            restart_of: None,
        })
    );
    assert!(!plan.actions[1].failure_ends_pass());
}

#[test]
fn an_ephemeral_container_waits_for_its_target() {
    let spec = json!({"initContainers": [container("setup")], "containers": [container("web")]});
    let mut debug = container("debug");
    debug["targetContainerName"] = "web".into();
    let mut world = World::of(&spec).program("setup", &[Program::Ends(5, 0)]);
    world.run();
    world.debug_with(&spec, &debug);
    let message = "unable to find target container web";
    assert_eq!(world.debug_waits(), ("CreateContainerConfigError", message));
    assert!(world.take_trace().contains(&format!("event Failed Error: {message}")));
    world.advance(5);
    assert!(world.running("web").is_some() && world.running("debug").is_some());
}

#[test]
fn an_ephemeral_container_with_an_unsupported_feature_waits() {
    let mut spec = web();
    spec["volumes"] = json!([{"name": "data", "csi": {"driver": "d"}}]);
    let mut mounts = container("debug");
    mounts["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let mut reads = container("debug");
    reads["env"] = json!([{"name": "A", "valueFrom": {"new": {}}}]);
    let mount =
        "MountVolume.SetUp failed for volume \"data\" : csi volumes are not supported by this node";
    let variable = "env[].valueFrom (unknown kind) is not supported by this node";
    for (debug, message, event) in [
        (mounts, mount, format!("event FailedMount {mount}")),
        (reads, variable, format!("event Failed Error: {variable}")),
    ] {
        let mut world = World::of(&spec);
        world.run();
        world.debug_with(&spec, &debug);
        assert_eq!(world.debug_waits(), ("CreateContainerConfigError", message));
        world.advance(600);
        world.run();
        let trace = world.take_trace();
        assert_eq!(trace.matches(&event).count(), 1, "{trace}");
        assert!(!trace.contains("prepare"), "nothing is tried: {trace}");
        assert_eq!((world.phase(), &*world.line()), ("Running", "Running 1/1 0"));
    }
}

#[test]
fn a_target_that_has_ended_is_not_joined() {
    let spec = json!({"restartPolicy": "OnFailure",
        "containers": [container("web"), container("api")]});
    let mut debug = container("debug");
    debug["targetContainerName"] = "web".into();
    let mut world = World::of(&spec);
    world.run();
    world.kill("web", 0);
    world.run();
    world.debug_with(&spec, &debug);
    let message = "target container web is not running";
    assert_eq!(world.debug_waits(), ("CreateContainerConfigError", message));
    assert_eq!(world.phase(), "Running");
}

#[test]
fn a_restart_of_all_containers_ends_an_ephemeral_container() {
    let rules = json!([{"action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [42]}}]);
    let mut web = container("web");
    web["restartPolicy"] = "Never".into();
    web["restartPolicyRules"] = rules;
    let spec = json!({"containers": [web]});
    let mut world = World::of(&spec);
    world.run();
    world.debug(&spec);
    world.kill("web", 42);
    world.run();
    world.advance(60);
    assert!(world.running("web").is_some() && world.running("debug").is_none());
    assert!(world.debug_status().state.as_ref().unwrap().terminated.is_some());
}

#[test]
fn a_new_ephemeral_container_replaces_no_revision() {
    let (old, new) = (desired("a", &web()), debugged(&web(), &container("debug")));
    assert!(!replaces(&new, &old.uid, &old.revision, &old.pod));
    let kind = kind_of(Some(&new.pod), "debug");
    assert_eq!(kind.field_path("debug"), "spec.ephemeralContainers{debug}");
}
