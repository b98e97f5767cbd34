//! Which cgroup driver is in use, and what is said where agent and runtime do not agree.

use crate::support::{
    agent::Settings,
    manifest::Pod,
    world::{Kind, Runtime, World},
};
use nodelet::{cri::v1, model::CgroupDriver};
use std::time::Duration;
use tonic::Code;

/// For the fake alone: a real one uses one driver.
pub fn the_runtimes_cgroup_driver_counts(kind: Kind) {
    let mut settings = Settings::for_kind(kind);
    settings.kubelet = "cgroupDriver: systemd\n".to_owned();
    let world = World::prepare(kind, &settings);
    let Runtime::Fake(fake) = &world.runtime else { panic!("a real runtime uses one driver") };
    world.agent.start();
    world.wait("what is configured counts while the runtime does not tell", |status| {
        status.node.cgroup_driver == Some(CgroupDriver::Systemd) && status.node.warnings.is_empty()
    });
    fake.kill();
    fake.set_cgroup_driver(Some(v1::CgroupDriver::Cgroupfs));
    fake.start_again();
    let status = world.wait("it tells another one after its restart", |status| {
        status.node.cgroup_driver == Some(CgroupDriver::Cgroupfs)
            && !status.node.warnings.is_empty()
    });
    assert_eq!(
        status.node.warnings,
        ["cgroupDriver: systemd is configured, but the container runtime uses cgroupfs, which is \
          what counts: set them to the same"]
    );
    fake.kill();
    fake.set_cgroup_driver(Some(v1::CgroupDriver::Systemd));
    fake.start_again();
    world.wait("and then the one that is configured", |status| {
        status.node.cgroup_driver == Some(CgroupDriver::Systemd) && status.node.warnings.is_empty()
    });
    world.finish();
}

pub fn a_runtime_with_the_other_cgroup_driver_is_named(kind: Kind) {
    let world = World::start(kind);
    let words = "failed to create containerd task: failed to create shim task: OCI runtime create \
                 failed: runc create failed: expected cgroupsPath to be of format \
                 \"slice:prefix:name\" for systemd cgroups, got \"/kubepods/besteffort/pod1/2\" \
                 instead: unknown";
    let refused = world.proxy.on("RunPodSandbox").pod("web").fail(Code::Unknown, words);
    world.drop_pod(&Pod::running("web"));
    let setting = "set `cgroupDriver: systemd`";
    world.wait("the setting is named, for the node and for the pod", |status| {
        status.node.warnings.iter().any(|warning| warning.contains(setting))
            && status.has_event("FailedCreatePodSandBox", setting)
            && status.has_event("FailedCreatePodSandBox", "slice:prefix:name")
    });
    world.proxy.lift(refused);
    world.wait_for(Duration::from_secs(60), "it runs, and nothing is said any more", |status| {
        status.runs("web") && status.node.warnings.is_empty()
    });
    world.finish();
}
