//! `hostUsers: false`: ids of a pod's own. Needs containerd 2 and runc 1.2 or newer, whose runtime
//! handler is called "own".

use crate::support::{
    agent::Settings,
    images::BUSYBOX,
    manifest::{FOREVER, Pod},
    process::{Process, myself},
    world::{Kind, World},
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

fn start(kind: Kind) -> World {
    let mut settings = Settings::for_kind(kind);
    settings.nodelet.push_str("runtimeClasses: { own: own }\n");
    World::start_with(kind, &settings)
}

fn apart(pod: Pod) -> Pod {
    pod.set("hostUsers", false).set("runtimeClassName", "own")
}

/// The ids of a container's user namespace: first id inside, first id on the host, how many.
fn ids(world: &World, pod: &str, container: &str) -> Vec<u32> {
    let process = Process::of(world, pod, container);
    let maps = ["uid_map", "gid_map"].map(|file| {
        let text = fs::read_to_string(process.in_proc(file)).unwrap();
        text.split_whitespace().map(|number| number.parse().unwrap()).collect::<Vec<u32>>()
    });
    assert_eq!(maps[0], maps[1]);
    maps[0].clone()
}

pub fn a_pod_has_ids_of_its_own(kind: Kind) {
    let world = start(kind);
    let host = world.slot.dir().join("host");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("secret"), "for root").unwrap();
    fs::set_permissions(host.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
    let mounts = json!([mount("disk"), mount("memory"), mount("host"), mount("image")]);
    let sees = format!(
        "touch /disk/of-root /memory/of-root; cat /host/secret >/disk/read; stat -c %u:%g /image/bin/busybox >/disk/owner; {FOREVER}"
    );
    let pod = apart(Pod::with_main("web", &sees))
        .container("user", FOREVER)
        .set("securityContext", json!({ "fsGroup": 2000 }))
        .set(
            "volumes",
            json!([
                { "name": "disk", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory" } },
                { "name": "host", "hostPath": { "path": host } },
                { "name": "image", "image": { "reference": BUSYBOX } },
            ]),
        )
        .set("containers/0/volumeMounts", mounts.clone())
        .set("containers/0/securityContext", json!({ "procMount": "Unmasked" }))
        .set("containers/1/volumeMounts", mounts)
        .set("containers/1/securityContext", json!({ "runAsUser": 1000 }));
    world.drop_pod(&pod);
    world.wait_running("web");
    let (root, user) = (Process::of(&world, "web", "main"), Process::of(&world, "web", "user"));
    assert_eq!(ids(&world, "web", "main"), [0, 65_536, 65_536]);
    assert_eq!(ids(&world, "web", "user"), [0, 65_536, 65_536]);
    assert_ne!(root.namespace("user"), myself().namespace("user"));
    assert_eq!(root.status("Uid"), "65536 65536 65536 65536");
    assert_eq!(user.status("Uid"), "66536 66536 66536 66536");
    let read = || fs::read_to_string(root.path("/disk/read")).unwrap_or_default();
    world.wait_until("root of the pod reads what is root's on the host", read, |t| t == "for root");
    let owner = || fs::read_to_string(root.path("/disk/owner")).unwrap_or_default();
    world.wait_until("files of an image are nobody's", owner, |owner| owner == "65534:65534\n");
    // The host sees files of the pod as the pod does.
    let uid = world.agent.status().unwrap().pod("web").unwrap().uid.clone();
    let volumes = world.agent.root_dir().join("pods").join(uid.as_str()).join("volumes");
    for volume in ["disk", "memory"] {
        let dir = volumes.join("kubernetes.io~empty-dir").join(volume);
        assert_eq!(dir.metadata().unwrap().gid(), 2000);
        let file = dir.join("of-root").metadata().unwrap();
        assert_eq!((file.uid(), file.gid()), (0, 2000), "{volume}");
    }
    assert!(root.read("/etc/hosts").contains("web-node1"));
    let is_guarded = |process: &Process| {
        let mounts = fs::read_to_string(process.in_proc("mountinfo")).unwrap();
        mounts.contains(" /proc/sys ")
    };
    assert!(!is_guarded(&root) && is_guarded(&user));

    // The default handler has an older runc.
    world.drop_pod(&Pod::running("old").set("hostUsers", false));
    world.wait("it is refused", |status| {
        let why = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        status.has_event("FailedCreatePodSandBox", why)
    });
    assert_eq!(world.proxy.count("RunPodSandbox", "old"), 0);
    world.remove("old.yaml");
    world.wait_gone("old");
    world.finish();
}

/// Ids outlive the agent, no two pods have the same, and those of a pod that has ended or is gone
/// are free.
pub fn ids_are_kept_until_their_pod_is_gone(kind: Kind) {
    let world = start(kind);
    let first = |pod: &str| ids(&world, pod, "main")[1];
    for pod in ["one", "two"] {
        world.drop_pod(&apart(Pod::running(pod)));
        world.wait_running(pod);
    }
    assert_eq!((first("one"), first("two")), (65_536, 131_072));
    world.agent.kill();
    world.kill_container(&world.running_id("two", "main"));
    world.agent.start();
    world.wait("its container runs again", |status| {
        status.runs("two") && status.restarts("two", "main") == 1
    });
    world.drop_pod(&apart(Pod::running("three")));
    world.wait_running("three");
    let old = world.sandboxes("two")[0].id.clone();
    world.kill_sandbox(&old);
    world.wait("it runs in another sandbox", |status| {
        let sandboxes = world.sandboxes("two");
        let other = sandboxes.iter().any(|one| one.state == 0 && one.id != old);
        other && status.runs("two") && status.restarts("two", "main") == 2
    });
    assert_eq!(["one", "two", "three"].map(first), [65_536, 131_072, 196_608]);
    world.remove("one.yaml");
    world.wait_gone("one");
    world.drop_pod(&apart(Pod::running("four")));
    world.wait_running("four");
    assert_eq!(first("four"), 65_536);
    // A message, which the container writes through a mount of its own.
    let ends = Pod::with_main("ends", "echo told >/dev/termination-log; exit 3");
    world.drop_pod(&apart(ends.set("restartPolicy", "Never")));
    let status = world.wait("it has ended", |status| status.phase("ends") == "Failed");
    let message = status.terminated("ends", "main").unwrap().message.clone();
    assert_eq!(message.as_deref(), Some("told\n"));
    // Its range is free when nothing of it runs, its sandbox included.
    let sandboxes = || world.sandboxes("ends");
    world.wait_until("its sandbox has stopped", sandboxes, |all| {
        all.iter().all(|one| one.state != 0)
    });
    world.agent.kill();
    world.agent.start();
    world.drop_pod(&apart(Pod::running("five")));
    world.wait_running("five");
    assert_eq!(first("five"), 262_144);
    world.finish();
}

/// `supplementalGroupsPolicy`: the groups that the image gives its users count, or do not.
pub fn groups_of_the_image_count_unless_the_policy_is_strict(kind: Kind) {
    let world = World::start(kind);
    let pod = |name: &str, policy: Value| {
        let context = json!({ "runAsUser": 65_534, "runAsGroup": 65_534,
                              "supplementalGroups": [4000], "supplementalGroupsPolicy": policy });
        Pod::running(name).set("containers/0/image", BUSYBOX).set("securityContext", context)
    };
    world.drop_pod(&pod("merged", json!("Merge")));
    world.drop_pod(&pod("strict", json!("Strict")));
    for (name, groups) in [("merged", "4000 5555 65534"), ("strict", "4000 65534")] {
        world.wait_running(name);
        assert_eq!(Process::of(&world, name, "main").status("Groups"), groups, "{name}");
    }
    world.finish();
}
