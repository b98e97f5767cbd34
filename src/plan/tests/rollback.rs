//! Trials of new revisions, and what comes back.

use super::world::{OWNER, World, container, desired};
use crate::{
    model::{DesiredPod, MIN_READY_SECONDS, PROGRESS_DEADLINE_SECONDS, ROLLBACK, TerminalPhase},
    plan::{Occupancy, Rollout, Terminal, Trial, TrialInput},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// Revision `uid` of the pod, with annotations.
fn revision(uid: &str, annotations: &[(&str, &str)]) -> DesiredPod {
    let base = desired(uid, &json!({"containers": [container("web")]}));
    let mut pod = (*base.pod).clone();
    let all = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    pod.metadata.annotations = Some(all.collect());
    DesiredPod { revision: format!("of {uid}").into(), pod: Arc::new(pod), ..base }
}

const TRIED: [(&str, &str); 3] =
    [(ROLLBACK, "true"), (PROGRESS_DEADLINE_SECONDS, "60"), (MIN_READY_SECONDS, "5")];

const BEGAN: Duration = Duration::from_secs(1000);

/// Pod `a` runs; it is proven if it says so.
fn running(proven: bool) -> World {
    let mut world = World::of(&json!({"containers": [container("web")]}));
    world.run();
    world.memory.note_ready(&revision("a", &[]), true, proven, world.now);
    world
}

fn taken_over(world: &World, before: &Rollout, wished: &DesiredPod) -> Rollout {
    let standing = revision("a", &[]);
    let own = Occupancy::new(&world.truth, OWNER).own(&standing.uid, true);
    before.taken_over(&standing, &own, &world.memory, wished)
}

fn failed_end() -> Terminal {
    Terminal::of_phase(TerminalPhase::Failed)
}

/// Judges a trial that began at boot time [`BEGAN`], in which the machine was not suspended.
fn judge(world: &World, rollout: &Rollout, wished: &DesiredPod, end: Option<&Terminal>) -> Trial {
    judge_after(world.now.boot.saturating_sub(BEGAN), world, rollout, wished, end)
}

fn judge_after(
    tried_for: Duration,
    world: &World,
    rollout: &Rollout,
    wished: &DesiredPod,
    terminal: Option<&Terminal>,
) -> Trial {
    let not_ready = Some("containers with unready status: [web]");
    let memory = &world.memory;
    let trial = TrialInput { wished, memory, terminal, tried_for, not_ready };
    rollout.judge(&trial, world.now)
}

#[test]
fn a_proven_revision_is_kept_with_its_image_ids() {
    let world = running(true);
    let rollout = taken_over(&world, &Rollout::default(), &revision("b", &TRIED));
    let previous = rollout.previous.unwrap();
    let container = &previous.pod.spec.as_ref().unwrap().containers[0];
    let image = format!("sha256:{}", super::world::container("web")["image"].as_str().unwrap());
    assert_eq!(container.image.as_deref(), Some(&*image));
    assert_eq!(container.image_pull_policy.as_deref(), Some("Never"));
    assert_eq!(&*previous.revision, "of a");
    assert_ne!(previous.uid, "a".into(), "it begins anew");
    assert_eq!(previous.pod.metadata.uid.as_deref(), Some(previous.uid.as_str()));
    let annotations = previous.pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["kubernetes.io/config.hash"], previous.uid.as_str());
}

#[test]
fn only_a_manifest_that_asks_is_tried() {
    let world = running(true);
    for annotations in [&[][..], &[(ROLLBACK, "false")]] {
        let wished = revision("b", annotations);
        assert!(taken_over(&world, &Rollout::default(), &wished).is_empty());
    }
    let unproven = running(false);
    assert!(taken_over(&unproven, &Rollout::default(), &revision("b", &TRIED)).is_empty());
}

#[test]
fn an_unproven_revision_in_between_does_not_count() {
    let first = taken_over(&running(true), &Rollout::default(), &revision("b", &TRIED));
    let second = taken_over(&running(false), &first, &revision("c", &TRIED));
    assert_eq!(second, first);
}

#[test]
fn a_revision_is_proven_when_it_stays_ready() {
    let mut world = running(false);
    let pod = revision("a", &[(MIN_READY_SECONDS, "5")]);
    let due = world.memory.note_ready(&pod, true, false, world.now);
    assert_eq!(due, Some(world.now.boot + Duration::from_secs(5)));
    world.pass_time(Duration::from_secs(4));
    world.memory.note_ready(&pod, false, false, world.now);
    world.pass_time(Duration::from_secs(4));
    world.memory.note_ready(&pod, true, false, world.now);
    assert!(!world.memory.is_proven(&pod.uid), "it was not Ready without a break");
    world.restart_agent();
    world.pass_time(Duration::from_secs(5));
    assert_eq!(world.memory.note_ready(&pod, true, false, world.now), None);
    assert!(world.memory.is_proven(&pod.uid));
    world.memory.note_ready(&pod, false, false, world.now);
    assert!(world.memory.is_proven(&pod.uid), "once is enough");
}

#[test]
fn a_trial_ends_by_its_deadline_or_with_the_pod() {
    let mut world = running(true);
    let wished = revision("b", &TRIED);
    let rollout = taken_over(&world, &Rollout::default(), &wished);
    let until = Duration::from_secs(1060);
    assert_eq!(judge(&world, &rollout, &wished, None), Trial::Until(until));
    assert_eq!(
        judge(&world, &rollout, &wished, Some(&failed_end())),
        Trial::Failed("its pod has Failed".to_owned())
    );
    world.pass_time(until);
    let why = "it was not Ready within 60 s: containers with unready status: [web]";
    assert_eq!(judge(&world, &rollout, &wished, None), Trial::Failed(why.to_owned()));
    // Its manifest no longer asks for a trial.
    assert_eq!(judge(&world, &rollout, &revision("b", &[]), None), Trial::Passed);
    // The pod of the world stands in for the new revision.
    let proven = DesiredPod { uid: "a".into(), ..wished };
    assert_eq!(judge(&world, &rollout, &proven, None), Trial::Passed);
}

#[test]
fn the_deadline_of_a_trial_does_not_run_during_a_suspend() {
    let mut world = running(true);
    let wished = revision("b", &TRIED);
    let rollout = taken_over(&world, &Rollout::default(), &wished);
    let after = |seconds, world: &World| {
        judge_after(Duration::from_secs(seconds), world, &rollout, &wished, None)
    };
    world.pass_time(Duration::from_secs(3600));
    let until = world.now.boot + Duration::from_secs(50);
    assert_eq!(after(10, &world), Trial::Until(until), "it was awake for 10 s");
    assert!(matches!(after(60, &world), Trial::Failed(_)));
}

#[test]
fn a_revision_that_is_ready_at_its_deadline_is_waited_for() {
    let mut world = running(true);
    let wished = revision("b", &TRIED);
    let rollout = taken_over(&world, &Rollout::default(), &wished);
    world.memory = crate::plan::PodMemory::default();
    let wished = DesiredPod { uid: "a".into(), ..wished };
    world.pass_time(Duration::from_secs(60));
    world.run();
    world.memory.note_ready(&wished, true, false, world.now);
    let until = world.now.boot + Duration::from_secs(5);
    assert_eq!(judge(&world, &rollout, &wished, None), Trial::Until(until));
    world.memory.note_ready(&wished, false, false, world.now);
    assert!(matches!(judge(&world, &rollout, &wished, None), Trial::Failed(_)));
}

#[test]
fn an_edit_while_nothing_stands_ends_a_roll_back() {
    let world = running(true);
    let wished = revision("b", &TRIED);
    let rolled_back = taken_over(&world, &Rollout::default(), &wished)
        .rolled_back(&wished, "it was slow".to_owned());
    assert_eq!(rolled_back.begun_with(&wished), rolled_back);
    assert_eq!(rolled_back.begun_with(rolled_back.previous.as_ref().unwrap()), rolled_back);
    let next = rolled_back.begun_with(&revision("c", &TRIED));
    assert_eq!((&next.previous, &next.failed), (&rolled_back.previous, &None));
    assert!(rolled_back.begun_with(&revision("c", &[])).is_empty());
}

#[test]
fn after_a_roll_back_the_previous_revision_runs_until_the_next_edit() {
    let mut world = running(true);
    let wished = revision("b", &TRIED);
    let trial = taken_over(&world, &Rollout::default(), &wished);
    assert_eq!(trial.in_place_of(&wished), None);
    let rolled_back = trial.rolled_back(&wished, "it was slow".to_owned());
    let previous = rolled_back.in_place_of(&wished).unwrap();
    assert_eq!(Some(previous), trial.previous.as_ref());
    assert_eq!(rolled_back.rolled_back_to(previous), Some("it was slow"));
    // It takes over from the revision that failed, and is not tried itself.
    assert_eq!(taken_over(&world, &rolled_back, previous), rolled_back);
    world.pass_time(Duration::from_secs(5000));
    assert_eq!(judge(&world, &rolled_back, previous, Some(&failed_end())), Trial::None);
    let saved = serde_json::to_string(&rolled_back).unwrap();
    assert_eq!(serde_json::from_str::<Rollout>(&saved).unwrap(), rolled_back);

    let next = revision("c", &TRIED);
    assert_eq!(rolled_back.in_place_of(&next), None);
    let tried = taken_over(&running(false), &rolled_back, &next);
    assert_eq!((&tried.previous, &tried.failed), (&rolled_back.previous, &None));
    assert_eq!(taken_over(&world, &rolled_back, &revision("d", &[])), Rollout::default());
}
