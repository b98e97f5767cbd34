//! The volumes that the agent writes: ConfigMaps, Secrets, projected and downward API volumes.

use super::{Host, MARKER, ask, container, part};
use crate::{
    support::{
        manifest::{FOREVER, Pod},
        process::Process,
        say_loudly,
        world::World,
    },
    watchdog::Watchdog,
};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::symlink};

/// A name like those that the agent gives to directories.
const FORGED: &str = "..2026_01_01_00_00_00.000000000";

/// Volumes that the agent writes: the name, the directory of its kind, and the source.
fn written_volumes() -> [(&'static str, &'static str, Value); 4] {
    let annotation = json!({ "fieldPath": "metadata.annotations['file']" });
    let items = json!([{ "path": "file", "fieldRef": annotation }]);
    let sources = json!([{ "configMap": { "name": "web" } }]);
    [
        ("map", "kubernetes.io~configmap", json!({ "configMap": { "name": "web" } })),
        ("secret", "kubernetes.io~secret", json!({ "secret": { "secretName": "web" } })),
        ("many", "kubernetes.io~projected", json!({ "projected": { "sources": sources } })),
        ("down", "kubernetes.io~downward-api", json!({ "downwardAPI": { "items": items } })),
    ]
}

/// Writes the ConfigMap and the Secret.
fn write_objects(world: &World, text: &str) {
    let object = |kind: &str, field: &str| {
        let (metadata, data) = (json!({ "name": "web" }), json!({ "file": text }));
        json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, field: data })
    };
    let (map, secret) = (object("ConfigMap", "data"), object("Secret", "stringData"));
    world.write("objects.yaml", &format!("{map}\n---\n{secret}\n"));
}

/// The container of each volume sees these texts in its parts, and can write to none of them.
#[track_caller]
fn assert_sees(world: &World, texts: [&str; 4]) {
    for ((name, ..), text) in written_volumes().into_iter().zip(texts) {
        let process = Process::of(world, "web", name);
        for file in ["/all/file", "/file", "/deep"] {
            assert_eq!(process.read(file), text, "{name}: {file}");
        }
        for mount in ["/all", "/file", "/deep"] {
            let line = process.mount(mount);
            let options = line.split(' ').nth(5).unwrap();
            assert!(options.split(',').any(|option| option == "ro"), "{name}: {line}");
        }
    }
}

/// The links in these volumes are the agent's. A container of another pod that can write to the
/// agent's directory, as root of the node can, replaces them.
#[test]
fn links_in_volumes_that_the_agent_writes_lead_nowhere_else() {
    let Some(world) = crate::world(|s| s) else { return };
    let host = Host::make();
    let mut pod = Pod::named("web").meta("annotations", json!({ "file": "down" }));
    for (name, ..) in written_volumes() {
        let mounts = json!([
            part(name, "/all", "..data", false),
            part(name, "/file", "file", false),
            part(name, "/deep", "", true),
        ]);
        pod = container(pod, name, FOREVER, mounts, "..data/file");
    }
    let volumes = written_volumes().map(|(name, _, mut source)| {
        source["name"] = json!(name);
        source
    });
    let dog = Watchdog::start(&world);
    write_objects(&world, "first");
    world.drop_pod(&pod.set("volumes", json!(volumes)));
    let status = world.wait_running("web");
    assert_sees(&world, ["first", "first", "first", "down"]);
    let path = host.outside();
    let path = path.display();
    // In the place of everything that the agent has made.
    let attack = written_volumes().map(|(name, directory, _)| {
        format!(
            "cd /volumes/{directory}/{name} && rm -r ..2* ..data file && ln -s {path} ..data && \
             ln -s {path}/{MARKER} file && ln -s {path} {FORGED} && "
        )
    });
    let pods = world.agent.root_dir().join("pods");
    let all = pods.join(status.pod("web").unwrap().uid.as_str()).join("volumes");
    let vandal = Pod::with_main("vandal", &format!("{}{FOREVER}", attack.concat()))
        .set("volumes", json!([{ "name": "all", "hostPath": { "path": all } }]))
        .set("containers/0/volumeMounts", json!([{ "name": "all", "mountPath": "/volumes" }]));
    world.drop_pod(&vandal);
    world.wait_running("vandal");
    let last = all.join("kubernetes.io~downward-api/down").join(FORGED);
    world.wait_until("the last link is there", || last.is_symlink(), |there| *there);
    host.assert_untouched();
    write_objects(&world, "second");
    let written = || fs::read_to_string(all.join("kubernetes.io~secret/secret/file")).ok();
    world.wait_until("the volumes are written", written, |text| text.as_deref() == Some("second"));
    ask(&world, "restart", "web");
    world.wait("all are restarted", |status| {
        status.runs("web") && written_volumes().iter().all(|v| status.restarts("web", v.0) == 1)
    });
    assert_sees(&world, ["second", "second", "second", "down"]);
    host.assert_untouched();
    world.remove("vandal.yaml");
    world.wait_gone("vandal");
    // The links lead out when the volumes are removed.
    for (name, directory, _) in written_volumes() {
        let volume = all.join(directory).join(name);
        fs::remove_file(volume.join("..data")).unwrap();
        symlink(host.outside(), volume.join("..data")).unwrap();
    }
    say_loudly(&format!("{:?}", dog.finish(&world)));
    world.finish();
    host.assert_untouched();
}
