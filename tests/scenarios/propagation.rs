//! `mountPropagation`: who sees a mount that a container makes. `recursiveReadOnly`: who may write to
//! a mount within a volume.

use crate::support::{
    containerd::Suite,
    manifest::{FOREVER, Pod},
    process::Process,
    status::Status,
    world::{Kind, World},
};
use nix::mount::{MsFlags, mount, umount};
use serde_json::json;
use std::{fs, path::Path};

/// Shell: makes a mount with a file in the volume, once it is told to.
const MAKES: &str = "until [ -e /volume/go ]; do sleep 0.1; done; mkdir /volume/inner; \
    mount -t tmpfs none /volume/inner; echo made >/volume/inner/file";
const FILE: &str = "/volume/inner/file";

/// Mounts the volume in a container, with this propagation.
fn mounted(pod: Pod, container: usize, propagation: &str) -> Pod {
    let mounts =
        json!([{ "name": "volume", "mountPath": "/volume", "mountPropagation": propagation }]);
    pod.set(&format!("containers/{container}/volumeMounts"), mounts)
}

fn maker(name: &str) -> Pod {
    let pod = Pod::with_main(name, &format!("{MAKES}; {FOREVER}"))
        .set("containers/0/securityContext", json!({ "privileged": true }));
    mounted(pod, 0, "Bidirectional")
}

fn sees(world: &World, pod: &str, container: &str) -> bool {
    Process::of(world, pod, container).path(FILE).exists()
}

/// What may be behind a mount that the agent has not made is not the pod's: the pod waits for its
/// end, and says so.
pub fn a_mount_of_a_container_is_seen_where_it_is_to_be(kind: Kind) {
    let world = World::start(kind);
    let pod = maker("web").container("told", FOREVER).container("apart", FOREVER);
    let pod = mounted(mounted(pod, 1, "HostToContainer"), 2, "None");
    world.drop_pod(&pod.set("volumes", json!([{ "name": "volume", "emptyDir": {} }])));
    let uid = world.wait_running("web").pod("web").unwrap().uid.clone();
    let volume = world.agent.root_dir().join("pods").join(uid.as_str());
    let volume = volume.join("volumes/kubernetes.io~empty-dir/volume");
    fs::write(volume.join("go"), "").unwrap();
    let on_host = |volume: &Path| volume.join("inner/file").exists();
    world.wait_until("the host sees the mount", || on_host(&volume), |seen| *seen);
    assert!(sees(&world, "web", "main") && sees(&world, "web", "told"));
    assert!(!sees(&world, "web", "apart"));
    world.remove("web.yaml");
    let inner = volume.join("inner");
    let named = format!("{:?} is still mounted", inner.display().to_string());
    world.wait("the pod that leaves names the mount", |status| {
        let pod = status.pod("web");
        pod.and_then(|pod| pod.waiting.as_ref()).is_some_and(|why| why.contains(&named))
    });
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "made\n");
    umount(&inner).unwrap();
    world.wait_gone("web");
    world.wait_until("the volume is gone", || volume.exists(), |there| !there);
    world.finish();
}

/// A sidecar mounts a file system on the volume that it shares with another container: that one is
/// restarted all the same, and sees it.
pub fn a_mount_on_the_volume_itself_lets_containers_restart(kind: Kind) {
    let world = World::start(kind);
    let makes = "mkdir /made; echo made >/made/file; mount --bind /made /volume";
    let pod = Pod::with_main("web", &format!("{makes}; {FOREVER}"))
        .set("containers/0/securityContext", json!({ "privileged": true }))
        .container("told", FOREVER);
    let pod = mounted(mounted(pod, 0, "Bidirectional"), 1, "HostToContainer");
    world.drop_pod(&pod.set("volumes", json!([{ "name": "volume", "emptyDir": {} }])));
    let uid = world.wait_running("web").pod("web").unwrap().uid.clone();
    let file = "/volume/file";
    let told = || Process::of(&world, "web", "told");
    world.wait_until("the other container sees the mount", || told().path(file).exists(), |it| *it);
    world.kill_container(&world.running_id("web", "told"));
    world.wait("the other container is restarted", |status| {
        status.container("web", "told").is_some_and(|told| {
            told.restart_count == 1 && told.state.as_ref().is_some_and(|it| it.running.is_some())
        })
    });
    assert!(told().path(file).exists());
    world.remove("web.yaml");
    let volume = world.agent.root_dir().join("pods").join(uid.as_str());
    let volume = volume.join("volumes/kubernetes.io~empty-dir/volume");
    let named = format!("{:?} is still mounted", volume.display().to_string());
    world.wait("the pod that leaves names the mount", |status| {
        let pod = status.pod("web");
        pod.and_then(|pod| pod.waiting.as_ref()).is_some_and(|why| why.contains(&named))
    });
    umount(&volume).unwrap();
    world.wait_gone("web");
    world.finish();
}

/// What a container mounts below a hostPath is the host's: other pods see it, and it outlives its
/// pod, as with the kubelet.
pub fn a_mount_in_a_host_path_outlives_its_pod(kind: Kind) {
    let world = World::start(kind);
    let shared = world.slot.dir().join("shared");
    fs::create_dir(&shared).unwrap();
    let none = None::<&str>;
    mount(Some(&shared), &shared, none, MsFlags::MS_BIND, none).unwrap();
    mount(none, &shared, none, MsFlags::MS_SHARED, none).unwrap();
    let volumes = json!([{ "name": "volume", "hostPath": { "path": shared } }]);
    let pods = [
        maker("maker"),
        mounted(Pod::running("told"), 0, "HostToContainer"),
        mounted(Pod::running("apart"), 0, "None"),
    ];
    for pod in pods {
        world.drop_pod(&pod.set("volumes", volumes.clone()));
    }
    for name in ["maker", "told", "apart"] {
        world.wait_running(name);
    }
    fs::write(shared.join("go"), "").unwrap();
    let on_host = || shared.join("inner/file").exists();
    world.wait_until("the host sees the mount", on_host, |seen| *seen);
    assert!(sees(&world, "told", "main") && !sees(&world, "apart", "main"));
    world.remove("maker.yaml");
    world.wait_gone("maker");
    assert!(on_host() && sees(&world, "told", "main"), "it is the host's");
    umount(&shared.join("inner")).unwrap();
    assert!(!sees(&world, "told", "main"));
    world.finish();
}

/// `recursiveReadOnly` reaches the mounts within a volume where the runtime can do that. Elsewhere
/// `IfPossible` has no effect, and `Enabled` starts nothing.
pub fn mounts_within_a_volume_are_read_only_where_the_runtime_can(kind: Kind) {
    let Kind::Debian(suite) = kind else { panic!("for a Debian release") };
    let world = World::start(kind);
    let outer = world.slot.dir().join("outer");
    let inner = outer.join("inner");
    fs::create_dir_all(&inner).unwrap();
    let none = None::<&str>;
    mount(Some("none"), &inner, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    for (name, asked) in [("maybe", "IfPossible"), ("must", "Enabled")] {
        let mounts = json!([{ "name": "volume", "mountPath": "/volume", "readOnly": true,
                              "recursiveReadOnly": asked }]);
        let pod = Pod::running(name).set("containers/0/volumeMounts", mounts);
        world.drop_pod(
            &pod.set("volumes", json!([{ "name": "volume", "hostPath": { "path": outer } }])),
        );
    }
    let told = |status: &Status, pod: &str| {
        let mounts = status.container(pod, "main").and_then(|main| main.volume_mounts.clone());
        mounts.into_iter().flatten().find_map(|mount| mount.recursive_read_only)
    };
    let may_write = |pod: &str| {
        let line = Process::of(&world, pod, "main").mount("/volume/inner");
        !line.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro")
    };
    let status = world.wait_running("maybe");
    if suite == Suite::Sid {
        let status = world.wait_running("must");
        for pod in ["maybe", "must"] {
            assert_eq!(told(&status, pod).as_deref(), Some("Enabled"), "{pod}");
            assert!(!may_write(pod), "{pod}");
        }
    } else {
        assert_eq!(told(&status, "maybe").as_deref(), Some("Disabled"));
        assert!(may_write("maybe"));
        world.wait("it waits for another runtime", |status| {
            status.waiting_reason("must", "main") == "CreateContainerConfigError"
        });
        assert_eq!(world.proxy.count("CreateContainer", "must"), 0);
    }
    for name in ["maybe", "must"] {
        world.remove(&format!("{name}.yaml"));
        world.wait_gone(name);
    }
    umount(&inner).unwrap();
    world.finish();
}
