//! Whatever happens, the planner converges, and no invariant of the model world breaks (they are
//! asserted there after each action: one live sandbox, no incarnation beside another, no container
//! twice, no ephemeral container again, no start before its back-off is over).

use super::world::{Fault, Happening, Program, Want, World, container, desired, happen};
use proptest::prelude::*;
use serde_json::{Value, json};

const NAMES: [&str; 7] = ["i0", "i1", "i2", "c0", "c1", "c2", "e0"];
const UIDS: [&str; 3] = ["a", "b", "c"];

fn happening() -> impl Strategy<Value = Happening> {
    let faults = prop::sample::select(vec![
        Fault::Prepare,
        Fault::Sandbox,
        Fault::SandboxHalf,
        Fault::NoAddress,
        Fault::Pull,
        Fault::ImageNever,
        Fault::Create,
        Fault::Start,
        Fault::StartUnanswered,
        Fault::Kill,
        Fault::Remove,
        Fault::CleanUp,
    ]);
    prop_oneof![
        4 => (0_u64..120).prop_map(Happening::Advance),
        1 => (600_u64..1500).prop_map(Happening::Advance),
        5 => (prop::sample::select(&NAMES), prop::sample::select(vec![0, 1, 42, 137]))
            .prop_map(|(container, code)| Happening::Ends(container, code)),
        3 => (prop::sample::select(&NAMES), prop::sample::select(vec![0, 1, 42, 137]))
            .prop_map(|(container, code)| Happening::EndIsTold(container, code)),
        2 => Just(Happening::SandboxDies),
        2 => Just(Happening::AgentRestarts),
        3 => (1_usize..6).prop_map(Happening::AgentDiesAfter),
        3 => (1_usize..6).prop_map(Happening::AgentDiesBefore),
        1 => Just(Happening::Reboot),
        2 => Just(Happening::Goes),
        3 => prop::sample::select(&UIDS).prop_map(Happening::Comes),
        1 => Just(Happening::Undecided),
        2 => any::<bool>().prop_map(Happening::Kept),
        4 => faults.prop_map(Happening::Fails),
        1 => Just(Happening::NetworkGoes),
        2 => Just(Happening::NetworkComes),
    ]
}

fn spec() -> impl Strategy<Value = Value> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let init = prop::collection::vec(any::<bool>(), 0..=3);
    let rules = prop::option::of(prop::sample::select(vec!["Restart", "RestartAllContainers"]));
    let ephemeral = any::<bool>();
    let all = (policy, init, 1_usize..=3, rules, ephemeral);
    all.prop_map(|(policy, init, regular, rule, ephemeral)| {
        let init: Vec<Value> = init
            .into_iter()
            .zip(NAMES)
            .map(|(sidecar, name)| {
                let mut container = container(name);
                if sidecar {
                    container["restartPolicy"] = json!("Always");
                }
                container
            })
            .collect();
        let mut containers: Vec<Value> =
            NAMES[3..].iter().take(regular).map(|name| container(name)).collect();
        if let Some(action) = rule {
            containers[0]["restartPolicy"] = json!("Never");
            containers[0]["restartPolicyRules"] =
                json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
        }
        let mut spec =
            json!({"restartPolicy": policy, "initContainers": init, "containers": containers});
        if ephemeral {
            spec["ephemeralContainers"] = json!([container("e0")]);
        }
        spec
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_pod_gets_where_it_should(
        spec in spec(),
        happenings in prop::collection::vec(happening(), 1..25),
        ends in prop::collection::vec((0_u64..30, prop::sample::select(vec![0, 1])), 0..3),
    ) {
        let mut programs: Vec<Program> =
            ends.into_iter().map(|(after, code)| Program::Ends(after, code)).collect();
        programs.push(Program::Forever);
        let mut world = World::of(&spec).program("c0", &programs);
        world.run();
        for happening in &happenings {
            happen(&mut world, &spec, happening);
        }
        world.faults.clear();
        world.runtime.network_not_ready = None;
        (world.die_after, world.die_before) = (None, None);
        (world.want, world.keep) = (Want::Run(Box::new(desired("a", &spec))), false);
        world.run();
        world.advance(3000);
        // `run` ends only when a plan from a fresh listing has no action. What is reached:
        let policy = spec["restartPolicy"].as_str().unwrap();
        let forever = spec["containers"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap());
        if policy == "Always" && spec["containers"][0].get("restartPolicy").is_none() {
            for name in forever {
                prop_assert!(world.running(name).is_some(), "{name}{}", world.take_trace());
            }
            prop_assert!(world.line().starts_with("Running"), "{}", world.line());
        }
        let newest = world.truth.sandboxes.iter().map(|s| s.attempt).max();
        for sandbox in world.truth.sandboxes.iter().filter(|s| Some(s.attempt) != newest) {
            let inhabited = world.truth.containers.iter().any(|c| c.sandbox_id == sandbox.id);
            prop_assert!(inhabited, "kept for nothing: {sandbox:?}");
        }
        for name in NAMES {
            let instances = world.truth.containers.iter().filter(|c| &*c.name == name).count();
            prop_assert!(instances <= 2, "{:?}", world.truth.containers);
        }
        // And away again, completely.
        world.want = Want::Gone;
        world.run();
        world.advance(60);
        prop_assert!(world.truth.is_empty() && world.records.is_empty() && world.memory.is_empty());
    }

    #[test]
    fn memory_survives_its_file(
        spec in spec(),
        happenings in prop::collection::vec(happening(), 1..10),
    ) {
        let mut world = World::of(&spec);
        for happening in &happenings {
            happen(&mut world, &spec, happening);
        }
        let text = serde_json::to_string(&world.memory).unwrap();
        prop_assert_eq!(serde_json::from_str::<crate::plan::PodMemory>(&text).unwrap(), world.memory);
    }
}
