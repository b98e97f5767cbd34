//! What a crash has left is removed; what belongs to a pod that still runs is not.

use super::writes::file;
use crate::support::{
    agent::NODE_NAME,
    manifest::{Pod, STUBBORN},
    world::{Kind, World},
};
use std::fs;

const ENDS: &str = "11111111-1111-4111-8111-111111111111";
const LOST: &str = "ffffffff-ffff-4fff-8fff-ffffffffffff";

/// Leftovers are removed in the order of their uids: the pod that still runs would come first.
pub fn leftovers_go_and_directories_of_running_pods_stay(kind: Kind) {
    let world = World::start(kind);
    let ends = Pod::with_main("ends", STUBBORN).meta("uid", ENDS);
    let lost = Pod::running("lost").meta("uid", LOST);
    for pod in [&ends, &lost, &Pod::running("stays")] {
        world.drop_pod(pod);
    }
    for pod in ["ends", "lost", "stays"] {
        world.wait_running(pod);
    }
    let directories = |name: &str, uid: &str| {
        let logs = format!("default_{name}-{}_{uid}", NODE_NAME);
        [world.agent.root_dir().join("pods").join(uid), world.agent.pod_logs().join(logs)]
    };
    let (of_ends, of_lost) = (directories("ends", ENDS), directories("lost", LOST));
    assert!(of_ends.iter().chain(&of_lost).all(|dir| dir.is_dir()), "{of_ends:?} {of_lost:?}");

    // While the agent is down, one pod is lost with all that is saved of it, and the manifests go.
    world.agent.kill();
    for sandbox in world.sandboxes("lost") {
        world.cri.remove_sandbox(&sandbox.id).unwrap();
    }
    let state = world.agent.root_dir().join("nodelet");
    for saved in [
        state.join("sources.json"),
        state.join("pods").join(file("lost")),
        world.agent.run_dir().join("pods").join(file("lost")),
    ] {
        fs::remove_file(saved).unwrap();
    }
    for pod in ["ends", "lost"] {
        world.remove(&format!("{pod}.yaml"));
    }
    let held = world.proxy.on("StopContainer").pod("ends").hang();
    world.agent.start();
    let left = || of_lost.iter().filter(|dir| dir.exists()).count();
    world.wait_until("the lost pod's directories are removed", left, |left| *left == 0);
    assert!(of_ends.iter().all(|dir| dir.is_dir()), "{of_ends:?}");
    assert_eq!(world.running_ids("ends").len(), 1);
    world.proxy.lift(held);
    world.wait_gone("ends");
    world.finish();
}
