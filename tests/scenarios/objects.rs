//! ConfigMaps and Secrets in files: what pods find of them, and what nobody finds.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    process::Process,
    stays,
    world::{Kind, World},
};
use nodelet::{cri::v1, model::FileVerdict};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// Data of a Secret that are looked for everywhere.
const PASSWORD: &str = "hunter2-correct-horse";

fn config_map(name: &str, data: &Value) -> String {
    let metadata = json!({ "name": name });
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data })
        .to_string()
}

fn secret(name: &str, data: &Value) -> String {
    let metadata = json!({ "name": name });
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data })
        .to_string()
}

/// A pod `web` with a volume at `/etc/web` and a variable from ConfigMap `web`, and a variable from
/// Secret `db`.
fn reader() -> Pod {
    let from_map = json!({ "configMapKeyRef": { "name": "web", "key": "greeting" } });
    let from_secret = json!({ "secretKeyRef": { "name": "db", "key": "password" } });
    Pod::running("web")
        .set("volumes", json!([{ "name": "conf", "configMap": { "name": "web" } }]))
        .set("containers/0/volumeMounts", json!([{ "name": "conf", "mountPath": "/etc/web" }]))
        .set(
            "containers/0/env",
            json!([
                { "name": "GREETING", "valueFrom": from_map },
                { "name": "PASSWORD", "valueFrom": from_secret },
            ]),
        )
}

/// The last request for a container of the pod.
fn request(world: &World) -> v1::ContainerConfig {
    let calls = world.proxy.mutating_calls();
    let call =
        calls.iter().rev().find(|call| call.method == "CreateContainer").expect("a container");
    call.request::<v1::CreateContainerRequest>().config.unwrap()
}

/// Where the runtime was told to find what the container has at `target`.
fn host_path(config: &v1::ContainerConfig, target: &str) -> PathBuf {
    let mount = config.mounts.iter().find(|mount| mount.container_path == target).expect("mounted");
    assert!(mount.readonly, "{target} can be written to");
    mount.host_path.as_str().into()
}

fn env(config: &v1::ContainerConfig, name: &str) -> String {
    let variable = config.envs.iter().find(|variable| variable.key == name);
    variable.map(|variable| String::from_utf8(variable.value.clone()).unwrap()).unwrap_or_default()
}

/// Waits until the file holds the text.
fn wait_for_text(world: &World, file: &Path, text: &str) {
    let read = || fs::read_to_string(file).unwrap_or_default();
    world.wait_until(&format!("{} holds {text:?}", file.display()), read, |found| found == text);
}

pub fn objects_written_beside_a_pod_are_there_at_its_start(kind: Kind) {
    let world = World::start(kind);
    let map = config_map("web", &json!({ "greeting": "hello", "site.conf": "listen 80\n" }));
    let secret = secret("db", &json!({ "password": PASSWORD }));
    let pod = reader().text();
    world.write("web.yaml", &format!("{pod}\n---\n{map}\n---\n{secret}\n"));
    let status = world.wait_running("web");
    assert!(!status.has_event("FailedMount", "web"), "they were looked for too early");
    let config = request(&world);
    assert_eq!(env(&config, "GREETING"), "hello");
    assert_eq!(env(&config, "PASSWORD"), PASSWORD);
    let volume = host_path(&config, "/etc/web");
    assert_eq!(fs::read_to_string(volume.join("site.conf")).unwrap(), "listen 80\n");
    assert_eq!(fs::read_to_string(volume.join("greeting")).unwrap(), "hello");
    let status = world.wait("three verdicts", |status| status.verdicts("web.yaml").len() == 3);
    let accepted: Vec<String> = status
        .verdicts("web.yaml")
        .iter()
        .map(|verdict| match verdict {
            FileVerdict::Accepted { key, .. } => key.to_string(),
            FileVerdict::Object { key, .. } => key.to_string(),
            FileVerdict::Rejected { .. } | FileVerdict::Skipped { .. } => format!("{verdict:?}"),
        })
        .collect();
    assert_eq!(accepted, ["default/web-node1", "ConfigMap default/web", "Secret default/db"]);
    world.finish();
}

/// The runtime can't make the directory: the outer volume is read-only.
pub fn a_volume_is_mounted_inside_a_volume_of_files(kind: Kind) {
    let world = World::start(kind);
    world.write("map.yaml", &config_map("web", &json!({ "greeting": "hello" })));
    world.write("secret.yaml", &secret("db", &json!({ "password": PASSWORD })));
    let pod = Pod::running("web")
        .set(
            "volumes",
            json!([
                { "name": "conf", "configMap": { "name": "web" } },
                { "name": "db", "secret": { "secretName": "db" } },
                { "name": "cache", "emptyDir": {} },
            ]),
        )
        .set(
            "containers/0/volumeMounts",
            json!([
                { "name": "cache", "mountPath": "/etc/web/secrets/db/cache" },
                { "name": "conf", "mountPath": "/etc/web" },
                { "name": "db", "mountPath": "/etc/web/secrets/db" },
            ]),
        );
    world.drop_pod(&pod);
    world.wait_running("web");
    let main = Process::of(&world, "web", "main");
    assert_eq!(main.read("/etc/web/greeting"), "hello");
    assert_eq!(main.read("/etc/web/secrets/db/password"), PASSWORD);
    fs::write(main.path("/etc/web/secrets/db/cache/file"), "x").unwrap();
    // An edit reaches the files, and leaves the other volumes where they are.
    world.write("map.yaml", &config_map("web", &json!({ "greeting": "again" })));
    let read = || main.read("/etc/web/greeting");
    world.wait_until("the edit is there", read, |greeting| greeting == "again");
    assert_eq!(main.read("/etc/web/secrets/db/cache/file"), "x");
    world.finish();
}

pub fn a_pod_waits_for_objects_and_starts_when_they_come(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&reader());
    let missing = "MountVolume.SetUp failed for volume \"conf\" : configmap \"web\" not found";
    let status = world.wait("it waits for its ConfigMap", |status| {
        let pod = status.pod("web");
        pod.is_some_and(|pod| pod.waiting.as_deref() == Some(missing))
    });
    assert!(status.has_event("FailedMount", "web"));
    assert!(world.sandboxes("web").is_empty(), "nothing is made before");
    world.write("objects.yaml", &config_map("web", &json!({ "greeting": "hello" })));
    world.wait("it waits for its Secret", |status| {
        status.waiting_reason("web", "main") == "CreateContainerConfigError"
    });
    world.write("secret.yaml", &secret("db", &json!({ "other": "x" })));
    world.wait("the key is missing", |status| {
        let state =
            status.container("web", "main").and_then(|c| c.state.as_ref()?.waiting.as_ref());
        let message = state.and_then(|waiting| waiting.message.as_deref());
        message == Some("couldn't find key password in Secret default/db")
    });
    world.write("secret.yaml", &secret("db", &json!({ "password": PASSWORD })));
    world.wait_running("web");
    assert_eq!(env(&request(&world), "PASSWORD"), PASSWORD);
    world.finish();
}

pub fn an_edited_object_reaches_the_volume_and_restarts_nothing(kind: Kind) {
    let world = World::start(kind);
    let map = |text: &str| config_map("web", &json!({ "greeting": text }));
    world.write("map.yaml", &map("one"));
    world.write("secret.yaml", &secret("db", &json!({ "password": PASSWORD })));
    world.drop_pod(&reader());
    world.wait_running("web");
    let ids = world.running_ids("web");
    let file = host_path(&request(&world), "/etc/web").join("greeting");
    world.write("map.yaml", &map("two"));
    wait_for_text(&world, &file, "two");
    // A bad edit changes nothing, and neither does the end of the file.
    world.write("map.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndta: {}\n");
    let status = world.wait("the bad edit is told", |status| status.rejected("map.yaml"));
    let verdict = status.verdicts("map.yaml");
    assert!(
        matches!(verdict[..], [FileVerdict::Rejected { last_good: true, object: Some(_), .. }]),
        "{verdict:?}"
    );
    world.remove("map.yaml");
    world.drop_pod(&Pod::running("later"));
    world.wait_running("later");
    let read = || (fs::read_to_string(&file).unwrap(), world.running_ids("web"));
    stays("file and container", Duration::from_secs(2), read, |(text, now)| {
        text == "two" && *now == ids
    });
    // Also across a restart of the agent, which knows nothing of the data any more.
    world.agent.kill();
    world.write("map.yaml", &map("three"));
    world.agent.start();
    wait_for_text(&world, &file, "three");
    assert_eq!(world.running_ids("web"), ids);
    world.finish();
}

/// The manifest names the uid, so that an edit of labels replaces nothing.
pub fn an_edited_label_reaches_the_volume_and_restarts_nothing(kind: Kind) {
    let world = World::start(kind);
    let item = json!({ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } });
    let pod = |label: &str| {
        Pod::running("web")
            .meta("uid", "0aa5cbd1-7a4e-4c52-9a3b-3a7e7a6a4f10")
            .meta("labels", json!({ "a": label }))
            .set("volumes", json!([{ "name": "v", "downwardAPI": { "items": [item] } }]))
            .set("containers/0/volumeMounts", json!([{ "name": "v", "mountPath": "/v" }]))
    };
    world.drop_pod(&pod("one"));
    world.wait_running("web");
    let ids = world.running_ids("web");
    let file = host_path(&request(&world), "/v").join("labels");
    wait_for_text(&world, &file, "a=\"one\"");
    world.drop_pod(&pod("two"));
    wait_for_text(&world, &file, "a=\"two\"");
    // Also across a restart of the agent.
    world.agent.kill();
    world.drop_pod(&pod("three"));
    world.agent.start();
    wait_for_text(&world, &file, "a=\"three\"");
    assert_eq!(world.running_ids("web"), ids);
    world.finish();
}

/// One container of the pod runs and another one waits for its image. It begins with what there is
/// when the image has come.
pub fn a_pull_that_hangs_delays_no_change_of_objects(kind: Kind) {
    let world = World::start(kind);
    let map = |text: &str| config_map("web", &json!({ "greeting": text }));
    world.write("map.yaml", &map("one"));
    world.write("secret.yaml", &secret("db", &json!({ "password": PASSWORD })));
    let hangs = world.proxy.on("PullImage").hang();
    let greeting = json!({ "configMapKeyRef": { "name": "web", "key": "greeting" } });
    let pod = reader()
        .container("slow", FOREVER)
        .set("containers/1/imagePullPolicy", "Always")
        .set("containers/1/env", json!([{ "name": "GREETING", "valueFrom": greeting }]));
    world.drop_pod(&pod);
    world.wait("one container runs", |status| {
        let main = status.container("web", "main");
        main.is_some_and(|main| main.ready)
    });
    world.wait_until(
        "the other one is pulled",
        || world.proxy.count("PullImage", "web"),
        |n| *n > 0,
    );
    let ids = world.running_ids("web");
    let file = host_path(&request(&world), "/etc/web").join("greeting");
    for text in ["two", "three"] {
        world.write("map.yaml", &map(text));
        wait_for_text(&world, &file, text);
    }
    assert_eq!(world.proxy.count("PullImage", "web"), 1, "it is still the same pull");
    assert_eq!(world.running_ids("web"), ids);
    world.proxy.lift(hangs);
    world.wait_running("web");
    assert_eq!(env(&request(&world), "GREETING"), "three");
    world.finish();
}

pub fn a_pod_that_asks_for_it_restarts_when_its_data_change(kind: Kind) {
    let world = World::start(kind);
    let map = |text: &str| config_map("web", &json!({ "greeting": text }));
    world.write("map.yaml", &map("one"));
    world.write("secret.yaml", &secret("db", &json!({ "password": PASSWORD })));
    let annotation = json!({ "nodelet.dev/restart-on-config-change": "true" });
    world.drop_pod(&reader().meta("annotations", annotation));
    world.wait_running("web");
    for (value, restarts) in [("two", 1), ("three", 2)] {
        world.write("map.yaml", &map(value));
        world.wait("it has restarted", |status| {
            status.runs("web") && status.restarts("web", "main") == restarts
        });
        assert_eq!(env(&request(&world), "GREETING"), value);
    }
    // Neither another place, the end of the file nor a restart of the agent is a change.
    let ids = world.running_ids("web");
    world.write("map.yaml", &format!("# moved down\n\n{}", map("three")));
    world.drop_pod(&Pod::running("between"));
    world.wait_running("between");
    world.remove("map.yaml");
    world.agent.kill();
    world.agent.start();
    world.drop_pod(&Pod::running("later"));
    world.wait_running("later");
    stays(
        "the same container",
        Duration::from_secs(2),
        || world.running_ids("web"),
        |now| *now == ids,
    );
    world.finish();
}

/// The agent comes back and finds that the Secret is broken: what runs goes on, with the files that
/// it has, and what would begin waits.
pub fn a_secret_broken_meanwhile_leaves_volumes_as_they_are(kind: Kind) {
    let world = World::start(kind);
    let volume =
        json!([{ "name": "keys", "secret": { "secretName": "db", "defaultMode": 0o400 } }]);
    let mounts = json!([{ "name": "keys", "mountPath": "/keys" }]);
    let pod = |name: &str| {
        let script =
            "trap 'exit 0' TERM; while sleep 0.1; do cat /keys/password >/dev/null || exit 1; done";
        let pod = Pod::with_main(name, script).set("volumes", volume.clone());
        pod.set("containers/0/volumeMounts", mounts.clone())
    };
    world.write("secret.yaml", &secret("db", &json!({ "password": PASSWORD })));
    world.drop_pod(&pod("web"));
    world.wait_running("web");
    let process = Process::of(&world, "web", "main");
    assert_eq!(process.read("/keys/password"), PASSWORD);
    let mode = fs::metadata(process.path("/keys/password")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o400);
    let mount = process.mount("/keys");
    assert!(mount.contains("tmpfs") && mount.contains("ro"), "{mount}");
    let ids = world.running_ids("web");

    world.agent.kill();
    world.write("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\ndata: 7\n");
    world.agent.start();
    world.drop_pod(&pod("new"));
    let missing = "MountVolume.SetUp failed for volume \"keys\" : secret \"db\" not found";
    world.wait("the new pod waits", |status| {
        let waits = |pod: &nodelet::model::PodView| pod.waiting.as_deref() == Some(missing);
        status.pod("new").is_some_and(waits) && status.runs("web")
    });
    assert_eq!(world.running_ids("web"), ids);
    assert_eq!(process.read("/keys/password"), PASSWORD);
    world.write("secret.yaml", &secret("db", &json!({ "password": "changed" })));
    world.wait_running("new");
    world.wait_until(
        "the change arrives",
        || process.read("/keys/password"),
        |now| now == "changed",
    );
    assert_eq!(world.running_ids("web"), ids);
    world.finish();
}

pub fn projected_volumes_hold_what_all_their_sources_say(kind: Kind) {
    let world = World::start(kind);
    world.write("map.yaml", &config_map("web", &json!({ "site.conf": "listen 80\n" })));
    world.write("secret.yaml", &secret("db", &json!({ "password": PASSWORD, "user": "root" })));
    let pod = Pod::running("web")
        .meta("labels", json!({ "app": "web", "tier": "front" }))
        .meta("annotations", json!({ "note": "a\"b\n" }))
        .set("containers/0/resources", json!({ "limits": { "memory": "64Mi" } }))
        .set("securityContext", json!({ "fsGroup": 2000, "runAsUser": 1000 }))
        .set(
            "volumes",
            json!([
                { "name": "all", "projected": { "defaultMode": 0o440, "sources": [
                    { "configMap": { "name": "web" } },
                    { "secret": { "name": "db", "items": [{ "key": "password", "path": "db/password", "mode": 0o400 }] } },
                    { "secret": { "name": "not-there", "optional": true } },
                    { "downwardAPI": { "items": [
                        { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
                        { "path": "limit", "resourceFieldRef": { "containerName": "main", "resource": "limits.memory", "divisor": "1Mi" } },
                    ] } },
                ] } },
                { "name": "about", "downwardAPI": { "items": [
                    { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
                    { "path": "app", "fieldRef": { "fieldPath": "metadata.labels['app']" } },
                    { "path": "note", "fieldRef": { "fieldPath": "metadata.annotations['note']" } },
                ] } },
            ]),
        )
        .set(
            "containers/0/volumeMounts",
            json!([
                { "name": "all", "mountPath": "/all" },
                { "name": "about", "mountPath": "/about" },
                { "name": "all", "mountPath": "/etc/site.conf", "subPath": "site.conf" },
            ]),
        );
    world.drop_pod(&pod);
    world.wait_running("web");
    let process = Process::of(&world, "web", "main");
    for (path, content) in [
        ("/all/site.conf", "listen 80\n"),
        ("/all/db/password", PASSWORD),
        ("/all/labels", "app=\"web\"\ntier=\"front\""),
        ("/all/limit", "64"),
        ("/about/name", "web-node1"),
        ("/about/app", "web"),
        ("/about/note", "a\"b\n"),
        ("/etc/site.conf", "listen 80\n"),
    ] {
        assert_eq!(process.read(path), content, "{path}");
    }
    assert!(!process.path("/all/user").exists(), "a key that no item names");
    let group = |path: &str| {
        let metadata = fs::metadata(process.path(path)).unwrap();
        (std::os::unix::fs::MetadataExt::gid(&metadata), metadata.permissions().mode() & 0o777)
    };
    assert_eq!(group("/all/site.conf"), (2000, 0o440));
    assert_eq!(group("/all/db/password"), (2000, 0o440), "the group may read it");
    world.finish();
}

/// Data of Secrets are in no file of the agent, in no answer and in no line of its log.
pub fn nothing_of_a_secret_is_told(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let objects = world.agent.root_dir().with_file_name("objects");
    fs::create_dir(&objects).unwrap();
    let config = fs::read_to_string(world.agent.config_file()).unwrap();
    let config = config.replace("verbosity: 3", "verbosity: 10");
    fs::write(world.agent.config_file(), format!("{config}configPath: {}\n", objects.display()))
        .unwrap();
    let file = objects.join("secret.yaml");
    let write = |text: &str| {
        fs::write(objects.join(".new"), text).unwrap();
        fs::set_permissions(objects.join(".new"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(objects.join(".new"), &file).unwrap();
    };
    write(&secret("db", &json!({ "password": PASSWORD })));
    world.write("map.yaml", &config_map("web", &json!({ "greeting": "hello" })));
    world.agent.start();
    world.drop_pod(&reader());
    world.wait_running("web");
    world.wait("no warning", |status| {
        matches!(status.verdicts("secret.yaml")[..], [FileVerdict::Object { warnings, .. }] if warnings.is_empty())
    });
    // Broken in ways that a message could repeat.
    for broken in [
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\ndata: {{password: {PASSWORD}}}\n"
        ),
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {PASSWORD}\n"),
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: [{PASSWORD}\n"),
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {{password: *{PASSWORD}}}\n"
        ),
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {{password: !{PASSWORD}}}\n"
        ),
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {{password: !!int {PASSWORD}}}\n"
        ),
        format!("kind: Secret\npassword: {PASSWORD}\n"),
    ] {
        write(&broken);
        world.wait("a verdict", |status| status.rejected("secret.yaml"));
        write(&secret("db", &json!({ "password": PASSWORD })));
        world.wait("it is good again", |status| !status.rejected("secret.yaml"));
    }
    // Others can read it.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    world.wait("a warning", |status| {
        let told = |verdict: &&FileVerdict| {
            matches!(verdict, FileVerdict::Object { warnings, .. }
            if warnings.iter().any(|problem| problem.message.contains("make its file 0600")))
        };
        status.verdicts("secret.yaml").iter().any(told)
    });
    for arguments in [
        &["status", "--output", "json"][..],
        &["status"],
        &["status", "web"],
        &["status", "web", "-o", "yaml"],
    ] {
        let output = world.agent.cli(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("web") && !text.contains(PASSWORD), "{arguments:?}: {text}");
    }
    let log = world.agent.log();
    let told: Vec<&str> = log.lines().filter(|line| line.contains(PASSWORD)).collect();
    assert!(told.is_empty(), "in the log: {told:#?}");
    let encoded = "aHVudGVyMi1jb3JyZWN0LWhvcnNl";
    for directory in [world.agent.root_dir(), world.agent.run_dir(), world.agent.pod_logs()] {
        for file in files_below(&directory) {
            let content = fs::read(&file).unwrap_or_default();
            let text = String::from_utf8_lossy(&content);
            assert!(!text.contains(PASSWORD) && !text.contains(encoded), "in {}", file.display());
        }
    }
    world.finish();
}

/// All files, not through links.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => found.extend(files_below(&path)),
            Ok(metadata) if metadata.is_file() => found.push(path),
            Ok(_) | Err(_) => {}
        }
    }
    found
}
