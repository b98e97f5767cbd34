use super::world::{World, container};
use crate::{
    model::{ContainerState, Now, ObservedContainer, ObservedPod, SandboxState},
    plan::{Failure, Outcome, Picture, Step},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// A pod as it runs, and a time after its listing.
fn running() -> (ObservedPod, Now) {
    let mut world = World::of(&json!({"containers": [container("web")]}));
    world.run();
    (world.truth, world.now)
}

fn later(now: Now, millis: u64) -> Now {
    Now { boot: now.boot + Duration::from_millis(millis), ..now }
}

fn listing(pod: &ObservedPod, at: Now) -> Arc<ObservedPod> {
    Arc::new(ObservedPod { listed_at: at.boot, ..pod.clone() })
}

#[test]
fn an_outcome_holds_until_a_listing_that_began_after_it() {
    let (pod, now) = running();
    let container = pod.containers[0].clone();
    let without = ObservedPod { containers: Vec::new(), ..pod.clone() };
    let mut picture = Picture::default();
    assert_eq!(picture.current(), None);
    picture.observe(listing(&without, now));
    picture.record(Outcome::ContainerStarted(container.clone()), later(now, 10));
    assert_eq!(picture.current().unwrap().containers, std::slice::from_ref(&container));
    assert_eq!(picture.unconfirmed_since(), Some(later(now, 10).boot));
    // A listing that began before the outcome and misses the container.
    picture.observe(listing(&without, later(now, 5)));
    assert_eq!(picture.current().unwrap().containers, [container]);
    // One that began after: it has gone again.
    picture.observe(listing(&without, later(now, 11)));
    assert_eq!(picture.current().unwrap().containers, []);
    assert_eq!(picture.unconfirmed_since(), None);
    // An older one that arrives late changes nothing.
    picture.observe(listing(&pod, later(now, 7)));
    assert_eq!(picture.current().unwrap().containers, []);
}

#[test]
fn failures_without_end_take_no_room() {
    let (pod, now) = running();
    let mut picture = Picture::default();
    picture.observe(listing(&pod, now));
    let failed = || {
        Outcome::Failed(Failure {
            uid: pod.sandboxes[0].uid.clone(),
            step: Step::KillPod,
            reason: "FailedKillPod".to_owned(),
            message: "the runtime is away".to_owned(),
            taken: None,
            left: None,
        })
    };
    picture.record(failed(), later(now, 1));
    picture.record(failed(), later(now, 2));
    assert_eq!(format!("{picture:?}").matches("FailedKillPod").count(), 1);
    assert_eq!(picture.unconfirmed_since(), Some(later(now, 2).boot), "a listing is asked for");
    assert!(picture.awaits_listing(), "what failed may have been done");
    picture.observe(listing(&pod, later(now, 3)));
    assert!(!picture.awaits_listing());
}

#[test]
fn states_only_move_forward() {
    let (pod, now) = running();
    let started = pod.containers[0].clone();
    let ended = ObservedContainer {
        state: ContainerState::Exited {
            started_at: Some(now.wall),
            finished_at: now.wall,
            exit_code: 3,
            reason: "Error".into(),
            message: "".into(),
        },
        ..started.clone()
    };
    let mut listed = pod.clone();
    listed.containers = vec![ended.clone()];
    let mut picture = Picture::default();
    picture.observe(listing(&listed, now));
    picture.record(Outcome::ContainerStarted(started), later(now, 1));
    assert_eq!(picture.current().unwrap().containers, std::slice::from_ref(&ended));
    // A kill does not overwrite how it really ended.
    let (uid, id) = (ended.uid.clone(), ended.id.clone());
    picture.record(Outcome::ContainerKilled { uid, id, exit_matters: false }, later(now, 2));
    assert_eq!(picture.current().unwrap().containers, [ended]);
}

#[test]
fn a_removed_sandbox_takes_its_containers_along() {
    let (pod, now) = running();
    let uid = pod.containers[0].uid.clone();
    let sandbox = pod.sandboxes[0].id.clone();
    let mut picture = Picture::default();
    picture.observe(listing(&pod, now));
    assert!(!picture.current().unwrap().is_stopped(&uid));
    let killed = Outcome::PodKilled {
        uid: uid.clone(),
        containers: vec![pod.containers[0].id.clone()],
        sandboxes: vec![sandbox.clone()],
        exit_matters: false,
    };
    picture.record(killed, later(now, 1));
    assert!(picture.current().unwrap().is_stopped(&uid));
    assert_eq!(picture.current().unwrap().sandboxes[0].state, SandboxState::NotReady);
    // Listed as it was before, a moment ago: still stopped.
    picture.observe(listing(&pod, now));
    assert!(picture.current().unwrap().is_stopped(&uid));
    picture.record(Outcome::SandboxRemoved { uid, id: sandbox }, later(now, 2));
    assert!(picture.current().unwrap().is_empty());
}

#[test]
fn a_kill_whose_exit_code_matters_waits_for_a_listing() {
    let mut world = World::of(&json!({"containers": [container("web")]}));
    world.run();
    let id = world.truth.containers[0].id.clone();
    let killed = Outcome::ContainerKilled { uid: "a".into(), id, exit_matters: true };
    world.picture.record(killed, world.now);
    assert!(world.picture.awaits_listing());
    assert!(world.picture.current().unwrap().containers[0].state.is_running());
    world.list();
    assert!(!world.picture.awaits_listing());
}
