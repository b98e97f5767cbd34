//! What is remembered, and for how long.

use super::world::{World, container, long_ago};
use crate::{
    model::{ContainerState, Event, EventKind, EventTarget, Now, ObservedPod, PodKey, PodUid},
    plan::{Failure, Outcome, PodMemory, PodPlan, Step, backoff::Moment},
};
use serde_json::json;
use std::time::Duration;

fn uid() -> PodUid {
    "a".into()
}

fn at(seconds: u64) -> Now {
    Now { boot: Duration::from_secs(seconds), wall: jiff::Timestamp::UNIX_EPOCH }
}

fn image_failed(container: &str, image: &str, pull_tried: bool) -> Outcome {
    Outcome::Failed(Failure {
        uid: uid(),
        step: Step::Image { container: container.into(), image: image.into(), pull_tried },
        reason: if pull_tried { "ErrImagePull" } else { "InvalidImageName" }.to_owned(),
        message: "no".to_owned(),
        taken: None,
        left: None,
    })
}

/// The images with a back-off.
fn images(memory: &PodMemory) -> Vec<&str> {
    memory.of(&uid()).images.keys().map(|image| &**image).collect()
}

#[test]
fn few_images_of_earlier_edits_keep_their_back_offs() {
    let mut memory = PodMemory::default();
    memory.record(&image_failed("side", "web:10", true), at(1000));
    for n in 10..100 {
        memory.record(&image_failed("web", &format!("web:{n}"), true), at(1000 + n));
    }
    // Another container has failed with the first one as well.
    assert_eq!(images(&memory), ["web:10", "web:95", "web:96", "web:97", "web:98", "web:99"]);
    let failure = memory.of(&uid()).container("web").failure.as_ref().unwrap();
    let earlier: Vec<&str> = failure.earlier_images.iter().map(|image| &**image).collect();
    assert_eq!(earlier, ["web:95", "web:96", "web:97", "web:98"]);
}

#[test]
fn back_offs_of_earlier_images_are_forgotten_in_time() {
    let mut memory = PodMemory::default();
    memory.record(&image_failed("web", "web:1", true), at(1000));
    memory.record(&image_failed("web", "web:2", true), at(1500));
    assert_eq!(images(&memory), ["web:1", "web:2"]);
    memory.record(&image_failed("web", "web:2", true), at(1601));
    assert_eq!(images(&memory), ["web:2"]);
}

#[test]
fn names_that_are_invalid_do_not_pile_up() {
    let mut memory = PodMemory::default();
    for n in 0..9 {
        memory.record(&image_failed("web", &format!("WEB:{n}"), false), at(1000 + n));
    }
    let failure = memory.of(&uid()).container("web").failure.as_ref().unwrap();
    assert!(failure.earlier_images.is_empty() && images(&memory).is_empty());
}

/// A plan with one notice for the pod and one for each of two containers.
fn plan() -> PodPlan {
    let mut plan = PodPlan::default();
    for field_path in [None, Some("spec.containers{web}"), Some("spec.containers{side}")] {
        let field_path = field_path.map(str::to_owned);
        let target =
            EventTarget::Pod { key: PodKey::new("default", "web"), uid: uid(), field_path };
        let (kind, message) = (EventKind::Warning, "it lacks something".to_owned());
        plan.notice("x", Event { target, kind, reason: "Failed", message });
    }
    plan
}

#[test]
fn a_state_that_lasts_is_announced_every_half_hour() {
    let mut memory = PodMemory::default();
    for (time, events, wakes) in
        [(1000, 3, 2800), (1001, 0, 2800), (2799, 0, 2800), (2800, 3, 4600), (9000, 3, 10800)]
    {
        let mut plan = plan();
        assert_eq!(memory.announce(&mut plan, at(time)).len(), events, "{time}");
        assert_eq!(plan.wake_at, Some(Duration::from_secs(wakes)), "{time}");
    }
}

#[test]
fn a_state_that_is_back_after_a_start_is_announced() {
    let mut world = World::of(&json!({"containers": [container("web"), container("side")]}));
    world.run();
    let (sandbox, web) = (world.truth.sandboxes[0].clone(), world.truth.containers[0].clone());
    assert_eq!(&*web.name, "web");
    let mut memory = PodMemory::default();
    let mut announced = |outcome: Option<Outcome>| -> Vec<Option<String>> {
        outcome.iter().for_each(|outcome| memory.record(outcome, at(1000)));
        let events = memory.announce(&mut plan(), at(1000));
        let paths = events.into_iter().map(|event| match event.target {
            EventTarget::Pod { field_path, .. } => field_path,
            EventTarget::Node => panic!("{event:?}"),
        });
        paths.collect()
    };
    assert_eq!(announced(None).len(), 3);
    assert_eq!(announced(None).len(), 0);
    assert_eq!(announced(Some(Outcome::SandboxCreated(sandbox))), [None]);
    let path = Some("spec.containers{web}".to_owned());
    assert_eq!(announced(Some(Outcome::ContainerStarted(web))), [path]);
}

#[test]
fn the_end_of_a_container_that_was_not_inspected_is_not_noted() {
    let mut world = World::of(&json!({"containers": [container("web")]}));
    world.run();
    world.kill("web", 1);
    let mut observed = world.truth.clone();
    let id = observed.containers[0].id.clone();
    let ended = observed.containers[0].state.clone();
    let ContainerState::Exited { finished_at, .. } = &mut observed.containers[0].state else {
        panic!("{ended:?}")
    };
    // What a listing tells: it is as old as the container.
    *finished_at = long_ago();
    observed.inspect_error = Some("ContainerStatus hangs".to_owned());
    let mut memory = PodMemory::default();
    let mut look = |observed: &ObservedPod| {
        memory.look(Some(&uid()), &[], observed, at(2000));
        memory.of(&uid()).container("web").ends.finished(id.as_str(), at(9000))
    };
    assert_eq!(look(&observed), Moment::just(at(9000)), "no end is known");
    observed.inspect_error = None;
    observed.containers[0].state = ended;
    assert_ne!(look(&observed), Moment::just(at(9000)));
}

#[test]
fn a_sandbox_that_was_not_inspected_has_not_ended() {
    let mut world = World::of(&json!({"containers": [container("web")]}));
    world.run();
    let mut observed = world.truth.clone();
    let id = observed.sandboxes[0].id.clone();
    observed.sandboxes[0].ips.clear();
    observed.inspect_error = Some("PodSandboxStatus hangs".to_owned());
    let mut look = |observed: &ObservedPod, seconds: u64| {
        world.memory.look(Some(&uid()), &[], observed, at(seconds));
        world.memory.of(&uid()).sandbox.finished(id.as_str(), at(9000))
    };
    assert_eq!(look(&observed, 2000), Moment::just(at(9000)), "no end is known");
    observed.inspect_error = None;
    assert_eq!(look(&observed, 3000), Moment::just(at(3000)));
}
