//! Whose is what under one name: tables over one running pod.

use super::world::{OWNER, World, container};
use crate::{
    model::{ContainerState, ObservedPod, PodUid, SandboxState},
    plan::Occupancy,
};
use jiff::SignedDuration;
use serde_json::json;

/// What the runtime has of a pod with one running container, and the pod's uid.
fn running() -> (ObservedPod, PodUid) {
    let mut world = World::of(&json!({"containers": [container("web")]}));
    world.run();
    let uid = world.truth.sandboxes[0].uid.clone();
    (world.truth, uid)
}

/// Adds a second sandbox of another incarnation, made an hour after the first.
fn with_later_sandbox(observed: &mut ObservedPod, uid: &PodUid, state: SandboxState) {
    let mut later = observed.sandboxes[0].clone();
    (later.id, later.uid, later.state) = ("later".into(), uid.clone(), state);
    later.created_at += SignedDuration::from_hours(1);
    observed.sandboxes.push(later);
}

#[test]
fn a_ready_sandbox_names_the_uid_before_a_newer_dead_one() {
    let (mut observed, uid) = running();
    let other = PodUid::from("other");
    with_later_sandbox(&mut observed, &other, SandboxState::NotReady);
    assert_eq!(Occupancy::new(&observed, OWNER).newest_own_uid(), Some(&uid));
    observed.sandboxes[1].state = SandboxState::Ready;
    assert_eq!(Occupancy::new(&observed, OWNER).newest_own_uid(), Some(&other), "the newer one");
    observed.sandboxes[1].owner = None;
    assert_eq!(Occupancy::new(&observed, OWNER).newest_own_uid(), Some(&uid), "only its own");
    observed.sandboxes[0].owner = None;
    assert_eq!(Occupancy::new(&observed, OWNER).newest_own_uid(), None);
}

#[test]
fn a_container_without_sandbox_belongs_to_its_record() {
    let (mut observed, uid) = running();
    let count = |observed: &ObservedPod, recorded| {
        Occupancy::new(observed, OWNER).own(&uid, recorded).containers.len()
    };
    assert_eq!((count(&observed, true), count(&observed, false)), (1, 1));
    observed.sandboxes[0].owner = Some("somebody-else".into());
    assert_eq!((count(&observed, true), count(&observed, false)), (0, 0));
    observed.sandboxes.clear();
    assert_eq!((count(&observed, true), count(&observed, false)), (1, 0));
}

#[test]
fn what_counts_as_alive_and_as_used_by_another_agent() {
    let exited = ContainerState::Exited {
        started_at: None,
        finished_at: jiff::Timestamp::UNIX_EPOCH,
        exit_code: 0,
        reason: "Completed".into(),
        message: "".into(),
    };
    // The owner of the sandbox, whether it is ready, whether the container runs; then whether
    // something of this agent is alive, and whether another agent uses the uid.
    let cases = [
        (OWNER, true, true, true, false),
        (OWNER, true, false, true, false),
        (OWNER, false, true, true, false),
        (OWNER, false, false, false, false),
        ("somebody-else", true, false, false, true),
        ("somebody-else", false, true, false, true),
        ("somebody-else", false, false, false, false),
    ];
    for case @ (owner, ready, runs, alive, used) in cases {
        let (mut observed, uid) = running();
        observed.sandboxes[0].owner = Some(owner.into());
        if !ready {
            observed.sandboxes[0].state = SandboxState::NotReady;
        }
        if !runs {
            observed.containers[0].state = exited.clone();
        }
        let occupancy = Occupancy::new(&observed, OWNER);
        let found = (occupancy.is_alive(), occupancy.foreign_use(&uid).is_some());
        assert_eq!(found, (alive, used), "{case:?}");
        assert!(occupancy.foreign_use(&"other".into()).is_none(), "{case:?}");
    }
}

#[test]
fn a_running_container_without_sandbox_counts_as_alive() {
    let (mut observed, _) = running();
    observed.sandboxes.clear();
    assert!(Occupancy::new(&observed, OWNER).is_alive());
}
