//! Dead containers where a disk is short: those go that are only there for people to look at.

use super::world::{Program, World, container};
use serde_json::json;

fn dead(world: &World) -> usize {
    world.truth.containers.iter().filter(|c| !c.state.is_running()).count()
}

#[test]
fn what_ended_before_the_one_that_runs_goes_and_is_still_shown() {
    let spec = json!({"containers": [container("web")], "initContainers": [container("setup")]});
    let mut world = World::of(&spec)
        .program("setup", &[Program::Ends(1, 0)])
        .program("web", &[Program::Ends(5, 1), Program::Forever]);
    world.run();
    world.advance(60);
    assert_eq!((world.line().as_str(), dead(&world), world.plan.dead), ("Running 1/1 1", 2, 1));
    (world.clear_dead, world.records_saved) = (true, false);
    world.run();
    assert_eq!((dead(&world), world.plan.dead), (2, 1), "the records are not on disk yet");
    world.records_saved = true;
    world.run();
    assert_eq!((dead(&world), world.plan.dead), (1, 0), "the init container tells that it has run");
    let shown = |world: &World| {
        let status = world.status.clone().unwrap().container_statuses.unwrap().remove(0);
        (status.restart_count, status.last_state.unwrap().terminated.unwrap().exit_code)
    };
    assert_eq!(shown(&world), (1, 1));
    world.restart_agent();
    world.run();
    world.advance(600);
    assert_eq!(shown(&world), (1, 1));
    assert_eq!((world.line().as_str(), dead(&world)), ("Running 1/1 1", 1));
}

#[test]
fn dead_containers_of_a_recorded_end_go_and_it_stays_ended() {
    let spec = json!({"containers": [container("job")], "restartPolicy": "OnFailure"});
    let mut world = World::of(&spec).program("job", &[Program::Ends(5, 0), Program::Forever]);
    world.run();
    world.advance(60);
    assert_eq!((dead(&world), world.plan.dead), (1, 1));
    world.clear_dead = true;
    world.run();
    assert_eq!((dead(&world), world.plan.dead), (0, 0));
    assert_eq!(world.line(), "Completed 0/1 0");
    world.clear_dead = false;
    world.restart_agent();
    world.run();
    world.advance(600);
    world.reboot();
    world.run();
    assert_eq!(world.line(), "Completed 0/1 0");
    assert!(world.truth.containers.is_empty(), "{}", world.take_trace());
}

#[test]
fn what_is_to_run_again_and_what_has_done_its_work_stay() {
    for (policy, code) in [("Always", 1), ("OnFailure", 1), ("OnFailure", 0)] {
        let spec = json!({
            "containers": [container("web"), container("other")],
            "restartPolicy": policy,
        });
        let mut world = World::of(&spec).program("web", &[Program::Ends(5, code); 3]);
        world.clear_dead = true;
        world.run();
        // In the middle of its back-off, where it is to run again.
        world.advance(12);
        let trace = world.take_trace();
        assert_eq!((dead(&world), world.plan.dead), (1, 0), "{policy} {code}:{trace}");
        let starts = trace.matches("start web").count();
        assert_eq!(starts, if code == 0 { 1 } else { 2 }, "{policy} {code}");
    }
}
