//! Whatever happens, a deleted pod of the API server is stopped, and nothing of it starts again.

use super::{
    super::world::{Fault, Happening, Program, World, container, happen},
    deleted, forget, hold, phase, shutdown,
};
use crate::model::{ContainerState, HoldStop, SandboxState};
use proptest::prelude::*;
use serde_json::{Value, json};

const NAMES: [&str; 3] = ["c0", "c1", "i0"];

fn happening() -> impl Strategy<Value = Happening> {
    let faults = prop::sample::select(vec![
        Fault::Prepare,
        Fault::Sandbox,
        Fault::SandboxHalf,
        Fault::Pull,
        Fault::Start,
        Fault::StartUnanswered,
        Fault::Kill,
        Fault::Remove,
        Fault::Release,
    ]);
    prop_oneof![
        4 => (0_u64..60).prop_map(Happening::Advance),
        4 => (prop::sample::select(&NAMES), prop::sample::select(vec![0, 1, 137]))
            .prop_map(|(container, code)| Happening::Ends(container, code)),
        2 => Just(Happening::SandboxDies),
        2 => Just(Happening::AgentRestarts),
        3 => (1_usize..6).prop_map(Happening::AgentDiesAfter),
        3 => (1_usize..6).prop_map(Happening::AgentDiesBefore),
        1 => Just(Happening::Reboot),
        2 => any::<bool>().prop_map(Happening::Kept),
        4 => faults.prop_map(Happening::Fails),
        1 => Just(Happening::Held(hold("Evicted", HoldStop::Within(10)))),
        1 => Just(Happening::ShutsDown(shutdown(0))),
    ]
}

fn spec() -> impl Strategy<Value = Value> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let init = prop::option::of(any::<bool>());
    (policy, init, 1_usize..=2).prop_map(|(policy, init, regular)| {
        let init: Vec<Value> = init
            .into_iter()
            .map(|sidecar| {
                let mut container = container(NAMES[2]);
                if sidecar {
                    container["restartPolicy"] = json!("Always");
                }
                container
            })
            .collect();
        let containers: Vec<Value> =
            NAMES.iter().take(regular).map(|name| container(name)).collect();
        json!({"restartPolicy": policy, "initContainers": init, "containers": containers})
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The world fails when anything is prepared or started after the deletion was seen, and when a
    /// pod is shown as stopped while it runs or has volumes.
    #[test]
    fn a_deleted_pod_is_stopped_and_nothing_of_it_starts_again(
        spec in spec(),
        before in prop::collection::vec(happening(), 0..12),
        seconds in 0_u32..60,
        after in prop::collection::vec(happening(), 0..12),
        ends in prop::collection::vec((0_u64..30, prop::sample::select(vec![0, 1])), 0..3),
        on_term in prop::sample::select(vec![0, 137]),
    ) {
        let mut programs: Vec<Program> =
            ends.into_iter().map(|(after, code)| Program::Ends(after, code)).collect();
        programs.push(Program::Forever);
        let mut world = World::of_api(&spec).program("c0", &programs);
        world.on_term = on_term;
        world.run();
        for happening in &before {
            happen(&mut world, &spec, happening);
        }
        let final_phase = phase(&world);
        world.end = deleted(seconds);
        world.run();
        for happening in &after {
            happen(&mut world, &spec, happening);
        }
        world.faults.clear();
        (world.die_after, world.die_before) = (None, None);
        world.run();
        world.advance(300);
        prop_assert!(world.plan.stopped, "{}", world.take_trace());
        let alive = world.truth.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
            || world.truth.containers.iter().any(|c| matches!(c.state, ContainerState::Running { .. }));
        prop_assert!(!alive && world.prepared.is_empty(), "{}", world.take_trace());
        prop_assert!(phase(&world).is_some());
        if final_phase.is_some() {
            prop_assert_eq!(phase(&world), final_phase, "a final phase never changes");
        }
        forget(&mut world);
    }
}
