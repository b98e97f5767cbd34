//! Makes the recording of this release: README.md.

use super::{release::Release, *};
use crate::{scenarios::shutdown::Logind, support::world::Runtime};

/// Written again for each release; never for one that is out.
#[test]
#[ignore = "writes tests/upgrade/<version>: see the README.md there"]
fn record_this_release() {
    let world = World::prepare(Kind::Fake, &settings());
    let Runtime::Fake(fake) = &world.runtime else { panic!("the fake") };
    fake.publish_image("nodelet.test/pulled:1");
    let logind = Logind::start(&world.agent.system_bus());
    world.agent.start();
    drop_pods(&world);
    let has_settled = |status: &Status| {
        STILL.iter().chain(&["interrupted", "leaving"]).all(|pod| status.runs(pod))
            && status.phase("job") == "Succeeded"
            && status.restarts("crash", "main") == 3
            && status.waiting_reason("crash", "main") == "CrashLoopBackOff"
    };
    world.wait_for(Duration::from_secs(180), "all have settled", has_settled);
    // Late, because it comes back soon.
    world.drop_pod(&evicted());
    world.wait("one is evicted", is_evicted);
    world.write("kept.yaml", "apiVersion: v1\nkind: Pod\nmetadata: { name: kept }\n");
    world.remove("leaving.yaml");
    world.wait("one is being stopped", |status| status.pod("leaving").unwrap().terminating);
    logind.prepare_for_shutdown(true);
    world.wait("a shutdown has ended one", |s| s.phase("interrupted") == "Failed");
    world.agent.kill();
    Release::record(&world);
    world.agent.start();
    logind.prepare_for_shutdown(false);
    for pod in ["leaving", "stubborn"] {
        world.running_ids(pod).iter().for_each(|id| world.kill_container(id));
    }
}

/// It ends in the second group of a shutdown.
fn late(pod: Pod) -> Pod {
    pod.set("priority", 1500)
}

/// A pod that writes into a volume.
fn with_volume(name: &str, limit: &str) -> Pod {
    let mounts = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
    Pod::with_main(name, &format!("echo data > /scratch/file; {FOREVER}"))
        .set("volumes", json!([{ "name": "scratch", "emptyDir": { "sizeLimit": limit } }]))
        .set("containers/0/volumeMounts", mounts)
}

fn evicted() -> Pod {
    late(with_volume("evicted", "1"))
}

/// Pods of every kind; [`settings`] tells what the priorities are for.
fn drop_pods(world: &World) {
    let web = with_volume("web", "1Gi").init("setup", "true").sidecar("proxy", FOREVER);
    let pulled = Pod::running("pulled").set("containers/0/image", "nodelet.test/pulled:1");
    let long = |pod: Pod| pod.set("terminationGracePeriodSeconds", 600);
    for pod in [
        late(web),
        late(pulled),
        late(Pod::running("kept")),
        late(Pod::with_main("crash", "exit 3")),
        late(Pod::with_main("job", "exit 0").set("restartPolicy", "Never")),
        late(long(Pod::with_main("leaving", STUBBORN))),
        long(Pod::with_main("stubborn", STUBBORN)),
        long(Pod::running("interrupted").set("restartPolicy", "OnFailure")),
    ] {
        world.drop_pod(&pod);
    }
}
