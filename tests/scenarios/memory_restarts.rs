//! Memory runs short while the agent restarts or the runtime hangs: the eviction goes on, and no
//! other pod is evicted.

use super::{
    memory_rig::*,
    pressure::{has_event, holds, reason},
};
use crate::support::{
    manifest::Pod,
    process::Process,
    status::Status,
    stays,
    world::{Kind, World, full_name},
};
use nodelet::model::Pressure;
use serde_json::json;
use std::time::Duration;

/// Who was told to go by an earlier life of the agent, and takes its time, is waited for: nobody
/// else goes meanwhile.
pub fn who_still_goes_after_a_restart_is_waited_for(kind: Kind) {
    let settings = node(
        kind,
        &format!(
            "evictionHard: {{ memory.available: 100Mi }}\n\
             evictionSoft: {{ allocatableMemory.available: {FREE_MIB}Mi }}\n\
             evictionSoftGracePeriod: {{ allocatableMemory.available: 1s }}\n\
             evictionMaxPodGracePeriod: 60"
        ),
    );
    let world = World::start_with(kind, &settings);
    world.drop_pod(&Pod::with_main("other", &keeps(60, "false")).set("priority", 5));
    world.wait_running("other");
    let other = world.running_id("other", "main");
    let stubborn = format!("trap '' TERM\n{}", keeps(400, "false"));
    let stubborn = Pod::with_main("stubborn", &stubborn).set("terminationGracePeriodSeconds", 60);
    world.drop_pod(&stubborn);
    world.wait("it is to go", |status| is_told(status, "stubborn"));
    world.agent.kill();
    world.agent.start();
    world.wait("all is found again", |status| status.runs("other"));
    let hog = || world.sandboxes("stubborn").len();
    let told = || is_told(&world.agent.status().unwrap(), "other");
    stays("nobody else is to go", Duration::from_secs(5), told, |told| !told);
    assert_eq!(hog(), 1, "it still goes");
    world.kill_container(&world.running_id("stubborn", "main"));
    let evicted = |status: &Status| reason(status, "stubborn") == "Evicted";
    let status = world.wait("it has gone", evicted);
    assert!(!is_told(&status, "other"));
    wait_over(&world, "stubborn");
    assert_eq!(world.running_id("other", "main"), other);
    world.finish();
}

/// Containerd stands still: who eats memory is dead at once all the same, and is shown as evicted
/// when containerd goes on.
pub fn a_hog_dies_while_the_runtime_hangs(kind: Kind) {
    let world = World::start_with(kind, &strict_node(kind));
    let signs = Signs::make(&world);
    let innocents = Innocents::start(&world, 4);
    let script = format!("until {}; do sleep 0.05; done\n{}", sign("now"), grows("0.05"));
    world.drop_pod(&signs.pod("hog", &script));
    world.wait_running("hog");
    let watched = watch(&world, "hog", FREE_MIB);
    let frozen = world.runtime.containerd().freeze();
    signs.give("now");
    check(&world, "200 MiB/s while containerd hangs", watched);
    let status = world.wait("people are told", |status| is_told(status, "hog"));
    // It may be over before anybody has looked.
    assert!(has_event(&status, "NodeHasInsufficientMemory"));
    world.wait("the pressure is over, and it has still to stop", |status| {
        let away = &status.node.pressure.evicted;
        !holds(status, Pressure::Memory)
            && away.iter().any(|one| one.waits_for.contains("it has stopped"))
    });
    drop(frozen);
    wait_evicted(&world, "hog");
    innocents.are_untouched();
    wait_over(&world, "hog");
    world.finish();
}

/// `kill -9` before and after it is written down who has to go, and while that one is being
/// stopped.
pub fn an_agent_killed_in_an_eviction_ends_it(kind: Kind) {
    let world = World::prepare(kind, &strict_node(kind));
    let writes = world.agent.state_writes();
    world.agent.start();
    let innocents = Innocents::start(&world, 4);
    world.agent.revive_when_dead(true);
    for (name, step) in [("before", "before rename"), ("after", "after rename")] {
        writes.kill_at(&format!("{step} run/evictions.json"));
        world.drop_pod(&Pod::with_main(name, &grows("0.1")));
        world.wait_until("the agent dies", || writes.is_armed(), |armed| !armed);
        let evicted = |status: &Status| reason(status, name) == "Evicted";
        world.wait("it is evicted", evicted);
        assert!(writes.disarm());
        innocents.are_untouched();
        world.remove(&format!("{name}.yaml"));
        world.wait_gone(name);
        world.wait("the pressure is over", |status| !holds(status, Pressure::Memory));
    }
    let hung = world.proxy.on("StopPodSandbox").pod("hog").hang();
    world.drop_pod(&Pod::with_main("hog", &grows("0.1")));
    let stopped = |n: &usize| *n > 0;
    world.wait_until("it is being stopped", || world.proxy.count("StopPodSandbox", "hog"), stopped);
    world.agent.kill();
    world.proxy.lift(hung);
    let evicted = |status: &Status| reason(status, "hog") == "Evicted";
    let status = world.wait("it is stopped", evicted);
    assert_eq!(told(&status, "hog"), 0, "that is the same eviction");
    assert!(world.sandboxes("hog").is_empty());
    innocents.are_untouched();
    wait_over(&world, "hog");
    world.finish();
}

/// The agent finds too little memory at its start: who takes it goes, who runs stays, and who is
/// new waits. Before that there are no thresholds, and the kernel alone looks after a container's
/// own limit.
pub fn a_threshold_that_is_crossed_at_the_start_is_acted_on(kind: Kind) {
    let world = World::start_with(kind, &node(kind, "evictionHard: {}"));
    let innocents = Innocents::start(&world, 4);
    let greedy = Pod::with_main("greedy", "exec tail -c 100000000 /dev/zero")
        .set("containers/0/resources", json!({ "limits": { "memory": "32Mi" } }));
    world.drop_pod(&greedy);
    world.wait("the kernel has killed it, and that is told", |status| {
        let ended = status.terminated("greedy", "main");
        ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled"))
            && status.restarts("greedy", "main") > 0
    });
    world.remove("greedy.yaml");
    world.wait_gone("greedy");

    world.drop_pod(&Pod::with_main("heavy", &keeps(500, "false")));
    let status = world.wait_running("heavy");
    assert!(!has_event(&status, "Evicted") && !holds(&status, Pressure::Memory));
    let memory = Process::of(&world, "heavy", "main").cgroup("memory");
    let full = |used: &u64| *used > 480 * MIB;
    world.wait_until("it has its memory", || working_set(&memory), full);
    world.agent.kill();
    world.drop_pod(&Pod::running("new"));
    let hard = format!("evictionHard: {{ memory.available: {FREE_MIB}Mi }}");
    restart_with(&world, "evictionHard: {}", &hard);
    let status = wait_evicted(&world, "heavy");
    let waits = |event: &serde_json::Value| {
        let message = event["message"].as_str().unwrap_or_default();
        event["involvedObject"]["name"] == json!(full_name("new"))
            && message.contains("The node had condition: [MemoryPressure]. ")
    };
    assert!(status.events.iter().any(waits), "{:#?}", status.events);
    innocents.are_untouched();
    world.wait("it is let in", |status| status.runs("new"));
    innocents.are_untouched();
    world.finish();
}
