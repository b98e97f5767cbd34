//! Pods that claim another pod's identity, and pods that come back although their manifest is gone.

use crate::{
    support::{
        manifest::{FOREVER, Pod},
        status::Status,
        stays,
        world::World,
    },
    watchdog::Watchdog,
};
use serde_json::json;
use std::{fs, path::PathBuf, time::Duration};

const UID: &str = "22222222-2222-4222-8222-222222222222";

/// A pod of that uid with an emptyDir at /d, in which it leaves a file with its name and another
/// one when it finds anything there.
fn with_data(name: &str) -> Pod {
    let script = format!(
        "[ -z \"$(ls /d)\" ] || touch /d/found-by-{name}; touch /d/of-{name}; sleep 100000"
    );
    Pod::with_main(name, &script)
        .meta("uid", UID)
        .set("terminationGracePeriodSeconds", 6)
        .set("volumes", json!([{ "name": "d", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "d", "mountPath": "/d" }]))
}

/// What is in the emptyDir of that uid, sorted.
fn data(world: &World) -> Vec<String> {
    let directory: PathBuf =
        world.agent.root_dir().join("pods").join(UID).join("volumes/kubernetes.io~empty-dir/d");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn waits_for_uid(status: &Status, pod: &str) -> bool {
    let waiting = status.pod(pod).and_then(|pod| pod.waiting.as_deref());
    waiting.is_some_and(|why| why.starts_with(&format!("uid {UID} is still used by pod ")))
}

#[test]
fn a_renamed_pod_can_not_take_over_the_data_of_its_uid() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    world.write("pod.yaml", &with_data("alpha").text());
    world.wait_running("alpha");
    world.wait_until("alpha has data", || data(&world), |data| *data == ["of-alpha"]);
    let hang = world.proxy.on("StopContainer").pod("alpha").hang();
    world.write("pod.yaml", &with_data("beta").text());
    world.wait("beta waits", |status| waits_for_uid(status, "beta"));
    dog.finish(&world);

    world.agent.kill();
    world.agent.start();
    world.wait("beta waits on", |status| waits_for_uid(status, "beta"));
    let dog = Watchdog::watch(&world);
    assert_eq!(data(&world), ["of-alpha"], "alpha has its data while it stops");
    world.proxy.lift(hang);
    world.wait_running("beta");
    world.wait_until("beta has data", || data(&world), |data| *data == ["of-beta"]);
    let seen = || (data(&world), world.agent.status().unwrap().restarts("beta", "main"));
    let own = (vec!["of-beta".to_owned()], 0);
    stays("beta keeps its data", Duration::from_secs(3), seen, |seen| *seen == own);
    dog.finish(&world);
    world.finish();
}

#[test]
fn a_pod_gets_nothing_that_another_one_with_its_uid_left() {
    let Some(world) = crate::world(|settings| settings) else { return };
    world.drop_pod(&with_data("alpha"));
    world.wait_running("alpha");
    world.wait_until("alpha has data", || data(&world), |data| *data == ["of-alpha"]);
    world.agent.kill();
    // Nothing but the directory and the cgroup is left of it.
    world.remove("alpha.yaml");
    for name in ["pods/default_alpha-node1.json", "sources.json"] {
        fs::remove_file(world.agent.root_dir().join("nodelet").join(name)).unwrap();
    }
    for sandbox in world.sandboxes("alpha") {
        world.cri.remove_sandbox(&sandbox.id).unwrap();
    }
    world.drop_pod(&with_data("beta"));
    world.agent.start();
    let dog = Watchdog::start(&world);
    world.wait_running("beta");
    world.wait_until("beta has its own data", || data(&world), |data| *data == ["of-beta"]);
    let seen = || data(&world);
    stays("beta keeps its data", Duration::from_secs(3), seen, |data| *data == ["of-beta"]);
    dog.finish(&world);
    world.finish();
}

#[test]
fn a_second_pod_with_the_same_uid_is_rejected() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    world.drop_pod(&with_data("beta"));
    world.wait_running("beta");
    world.wait_until("it has data", || data(&world), |data| *data == ["of-beta"]);
    world.drop_pod(&with_data("alpha"));
    world.wait("the second one is rejected", |status| status.rejected("alpha.yaml"));
    let seen = || (data(&world), world.sandboxes("alpha").len());
    let own = (vec!["of-beta".to_owned()], 0);
    stays("the first one is alone", Duration::from_secs(2), seen, |seen| *seen == own);
    dog.finish(&world);
    world.finish();
}

#[test]
fn a_pod_removed_while_the_agent_was_down_stays_gone() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    for pod in ["db", "web"] {
        world.drop_pod(&Pod::with_main(pod, FOREVER));
        world.wait_running(pod);
    }
    dog.finish(&world);
    world.agent.kill();
    for sandbox in ["db", "web"].iter().flat_map(|pod| world.sandboxes(pod)) {
        world.cri.remove_sandbox(&sandbox.id).unwrap();
    }
    world.remove("db.yaml");
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("the agent answers", |_| true);
    let dog = Watchdog::watch(&world);
    world.wait_running("web");
    world.wait_gone("db");
    for method in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        assert_eq!(world.proxy.count(method, "db"), 0, "{method} for the removed pod");
    }
    dog.finish(&world);
    world.finish();
}
