//! The example manifests of `static-pods/edge`, unchanged but for images, ports of the host and
//! paths of the host. Stand-ins for the images check what the real programs need.

use crate::support::{
    images::BUSYBOX,
    manifest::FOREVER,
    process::Process,
    world::{Kind, World},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

const PODS: [&str; 5] = ["web", "database", "mqtt", "log-shipper", "nightly"];

/// What runs instead of an image: its name without registry and tag, and a script. The script of an
/// image without one is the manifest's own.
const STAND_INS: [(&str, &str); 4] = [
    (
        "nginx",
        "grep -q 'listen 8080' /etc/nginx/conf.d/default.conf; grep -q ^admin: /etc/nginx/auth/htpasswd; \
         mkdir /tmp/web; echo ok >/tmp/web/healthz; httpd -p 8080 -h /tmp/web",
    ),
    (
        "postgres",
        "[ $(stat -c %u:%a $PGDATA) = 70:700 ]; [ $(cat $POSTGRES_PASSWORD_FILE) = change-me ]; \
         touch $PGDATA/PG_VERSION; httpd -p 5432",
    ),
    (
        "eclipse-mosquitto",
        "grep -q 'listener 1883' /mosquitto/config/mosquitto.conf; touch /mosquitto/data/mosquitto.db; \
         echo mosquitto is up; httpd -p 1883",
    ),
    (
        "fluent-bit",
        "grep -q forward $1; until grep -q 'mosquitto is up' /var/log/pods/*/*/*.log; do sleep 0.1; done; \
         touch /state/tail.db",
    ),
];

/// The manifest with a stand-in for each image.
fn with_stand_ins(manifest: &str) -> String {
    let mut lines = Vec::new();
    for line in manifest.lines() {
        let Some((indent, image)) = line.split_once("image: ") else {
            lines.push(line.to_owned());
            continue;
        };
        lines.push(format!("{indent}image: {BUSYBOX}"));
        let name = image.rsplit('/').next().unwrap().split(':').next().unwrap();
        if let Some((_, script)) = STAND_INS.iter().find(|(of, _)| *of == name) {
            lines.push(format!("{indent}command: [sh, -c, \"set -e; {script}; {FOREVER}\"]"));
        }
    }
    lines.join("\n")
}

fn example(name: &str) -> String {
    let path = format!("static-pods/edge/{name}.yaml");
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The `sleep` that the container's shell waits for.
fn clock_of(container: &Process) -> Option<i32> {
    let tasks = fs::read_dir(container.in_proc("task")).unwrap().map(Result::unwrap);
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap());
    let children: String = children.collect();
    let mut pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
    pids.find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n")
    })
}

pub fn edge_pods_run(kind: Kind) {
    let world = World::start(kind);
    let host = world.slot.dir().join("host");
    let on_host = |path: &str| host.join(path.trim_start_matches('/')).display().to_string();
    let port = world.slot.host_ports();
    fs::create_dir_all(host.join("srv/data")).unwrap();
    fs::write(host.join("srv/data/file"), "kept").unwrap();
    fs::create_dir_all(host.join("var/lib")).unwrap();
    fs::create_dir_all(host.join("var/backups")).unwrap();
    for name in PODS {
        let mut manifest = with_stand_ins(&example(name));
        for path in ["/var/lib/database", "/var/lib/log-shipper", "/srv/data", "/var/backups/data"]
        {
            manifest =
                manifest.replace(&format!("path: {path},"), &format!("path: {},", on_host(path)));
        }
        let logs = format!("path: {},", world.agent.pod_logs().display());
        let manifest = manifest
            .replace("path: /var/log/pods,", &logs)
            .replace("hostPort: 80}", &format!("hostPort: {port}}}"))
            .replace("hostPort: 1883", &format!("hostPort: {}", port + 1));
        world.write(&format!("{name}.yaml"), &manifest);
    }
    for name in PODS {
        world.wait_running(name);
    }
    let data = fs::metadata(host.join("var/lib/database/pg")).unwrap();
    assert_eq!((data.uid(), data.permissions().mode() & 0o777), (70, 0o700));
    let broker = Process::of(&world, "mqtt", "mosquitto");
    assert_eq!(broker.status("Uid"), "1883 1883 1883 1883");
    let seen = || host.join("var/lib/log-shipper/tail.db").exists();
    world.wait_until("the logs of other pods are read", seen, |seen| *seen);
    // Its night comes when its clock, `sleep`, ends.
    let nightly = Process::of(&world, "nightly", "backup");
    let clock = world.wait_until("it waits for the night", || clock_of(&nightly), Option::is_some);
    kill(Pid::from_raw(clock.unwrap()), Signal::SIGKILL).unwrap();
    let log = || String::from_utf8(world.agent.cli(&["logs", "nightly"]).stdout).unwrap();
    world.wait_until("the backup is made, and the next one waited for", log, |log| {
        log.contains("backup made") && log.matches("the next backup is made in").count() == 2
    });
    assert_eq!(fs::read_dir(host.join("var/backups/data")).unwrap().count(), 1);
    let status = world.agent.status().unwrap();
    for name in PODS {
        let containers = status.pod(name).unwrap().status.container_statuses.iter().flatten();
        assert_eq!(containers.map(|one| one.restart_count).sum::<i32>(), 0, "{name}");
    }
    world.finish();
}
