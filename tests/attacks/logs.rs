//! A container that can write where the node keeps the logs of containers, as some log shippers can.

use crate::{
    support::{
        agent::Settings,
        manifest::{FOREVER, Pod},
        say_loudly, stays,
        world::World,
    },
    watchdog::Watchdog,
};
use serde_json::json;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

const SETTINGS: &str = "containerLogMaxSize: 64Ki\ncontainerLogMonitorInterval: 3s\n";
/// Makes about 60 KiB of log ten times a second.
const TALKS: &str = "while :; do seq 10000 11365; sleep 0.1; done";

/// Impostors of files that were set aside long ago.
const PIPE: &str = "0.log.20250104-000000";
const LINK: &str = "0.log.20250107-000000";
/// An old log.
const OLD: &str = "0.log.20250110-000000";

/// A file of the host to which impostors lead. It outlives the world.
struct Canary {
    _dir: TempDir,
    path: PathBuf,
    before: [i64; 4],
}

impl Canary {
    fn make() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canary");
        fs::write(&path, "precious").unwrap();
        let before = Self::state(&path);
        Self { _dir: dir, path, before }
    }

    fn state(path: &Path) -> [i64; 4] {
        let metadata = fs::metadata(path).unwrap();
        let length = i64::try_from(metadata.len()).unwrap();
        [metadata.ctime(), metadata.ctime_nsec(), metadata.mode().into(), length]
    }

    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(Self::state(&self.path), self.before, "the agent has followed a link");
    }
}

/// A pod that runs a script with the log directories of all pods at `/logs`.
fn vandal(world: &World, script: &str) -> Pod {
    Pod::with_main("vandal", script)
        .set("volumes", json!([{ "name": "logs", "hostPath": { "path": world.agent.pod_logs() } }]))
        .set("containers/0/volumeMounts", json!([{ "name": "logs", "mountPath": "/logs" }]))
}

/// The log directory of a container.
fn directory(world: &World, pod: &str, container: &str) -> PathBuf {
    let uid = world.wait_running(pod).pod(pod).unwrap().uid.clone();
    world.agent.pod_logs().join(format!("default_{pod}-node1_{uid}")).join(container)
}

/// The stamps of the regular files that the agent has set aside in this test: they have fractions
/// of a second, and those of impostors have none.
fn set_aside(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let names = files.map(|entry| entry.file_name().into_string().unwrap());
    let stamp = |name: String| {
        let stamp = name.strip_prefix("0.log.")?;
        let stamp = stamp.strip_suffix(".gz").unwrap_or(stamp);
        (stamp.contains('.') && !stamp.ends_with(".tmp")).then(|| stamp.to_owned())
    };
    names.filter_map(stamp).collect()
}

/// Waits until the log was rotated so many times.
#[track_caller]
fn is_rotated(world: &World, directory: &Path, times: usize) {
    for _ in 0..times {
        let before = set_aside(directory);
        let newer = |now: &BTreeSet<String>| now.last() > before.last();
        world.wait_until("the log is rotated", || set_aside(directory), newer);
    }
}

/// Everything that is no log file, under the names of files that were set aside; and again beside
/// each file that is set aside later.
#[test]
fn impostors_among_log_files_stop_no_rotation() {
    let settings = format!("{SETTINGS}containerLogMaxFiles: 25\n");
    let Some(world) = crate::world(|s: Settings| s.kubelet(&settings)) else { return };
    let canary = Canary::make();
    let host = world.slot.dir().join("host");
    fs::create_dir(&host).unwrap();
    let dog = Watchdog::start(&world);
    // Slowly at first: the impostors, whose stamps are the oldest, are to be there for a while.
    let talks = TALKS.replace("sleep 0.1", "[ -e /host/fast ] && sleep 0.1 || sleep 1");
    world.drop_pod(&Pod::with_main("web", &talks).host_dir(&host));
    let directory = directory(&world, "web", "main");
    let path = canary.path.display();
    let script = format!(
        "cd /logs/default_web-node1_*/main && \
         mkdir -p 0.log.20250101-000000/below 0.log.20250102-000000.gz 0.log.20250103-000000.gz.tmp && \
         mkfifo {PIPE} 0.log.20250105-000000.gz 0.log.20250106-000000.gz.tmp && \
         ln -s {path} {LINK} && ln -s {path} 0.log.20250108-000000.gz.tmp && \
         ln -s / 0.log.20250109-000000.gz && \
         seq 1000 >{OLD} && touch -d '2025-01-10 00:00:00' {OLD} && \
         while :; do for f in 0.log.????????-??????.??????; do \
           ln -s {path} $f.gz.tmp; mkdir $f.gz; done 2>/dev/null; sleep 0.05; done"
    );
    world.drop_pod(&vandal(&world, &script));
    let told = || world.agent.log().contains("cannot compress the container's old logs");
    world.wait_until("impostors are not compressed", told, |told| *told);
    let compressed = || directory.join(format!("{OLD}.gz")).is_file();
    world.wait_until("a file is compressed", compressed, |done| *done);
    is_rotated(&world, &directory, 1);
    for impostor in [PIPE, LINK] {
        assert!(fs::symlink_metadata(directory.join(impostor)).is_ok(), "{impostor} is gone");
    }
    // They go like the oldest logs when there are too many.
    fs::write(host.join("fast"), "").unwrap();
    let gone = || [PIPE, LINK].map(|name| fs::symlink_metadata(directory.join(name)).is_err());
    world.wait_until("the oldest go", gone, |gone| *gone == [true, true]);
    is_rotated(&world, &directory, 3);
    let kept = set_aside(&directory);
    assert!(kept.len() < 25, "{kept:?}");
    canary.assert_untouched();
    say_loudly(&format!("{:?}", dog.finish(&world)));
    world.finish();
    canary.assert_untouched();
}

/// In the place of the file that the runtime writes there is a link, a pipe or a directory.
#[test]
fn an_impostor_of_a_log_stops_only_its_rotation() {
    let Some(world) = crate::world(|s: Settings| s.kubelet(SETTINGS)) else { return };
    let canary = Canary::make();
    let dog = Watchdog::start(&world);
    let host = world.slot.dir().join("host");
    fs::create_dir(&host).unwrap();
    let names = ["link", "pipe", "directory"];
    // No rotation is under way when the files are replaced: containerd would follow the link.
    let talks = format!("until [ -e /host/talk ]; do sleep 0.1; done; {TALKS}");
    let victims = names.iter().fold(Pod::named("victims"), |pod, name| pod.container(name, &talks));
    world.drop_pod(&victims.host_dir(&host));
    world.drop_pod(&Pod::with_main("web", TALKS));
    let attacked = names.map(|name| directory(&world, "victims", name));
    let web = directory(&world, "web", "main");
    let script = format!(
        "cd /logs/default_victims-node1_* && rm */0.log && ln -s {} link/0.log && \
         mkfifo pipe/0.log && mkdir directory/0.log && \
         until [ -e /logs/over ]; do sleep 0.1; done && \
         rm /logs/over link/0.log pipe/0.log && rmdir directory/0.log && {FOREVER}",
        canary.path.display()
    );
    world.drop_pod(&vandal(&world, &script));
    let is_impostor = |directory: &PathBuf| {
        fs::symlink_metadata(directory.join("0.log")).is_ok_and(|found| !found.is_file())
    };
    let all = || attacked.iter().all(is_impostor);
    world.wait_until("the impostors are there", all, |all| *all);
    fs::write(host.join("talk"), "").unwrap();
    is_rotated(&world, &web, 3);
    let told = || world.agent.log().matches("cannot watch a container's log").count();
    world.wait_until("each is told", told, |count| *count >= names.len());
    // Longer than the interval in which it is looked at.
    let span = Duration::from_secs(4);
    stays("it is told once", span, told, |count| *count == names.len());
    is_rotated(&world, &web, 1);
    assert!(attacked.iter().all(is_impostor), "an impostor was touched");
    canary.assert_untouched();
    fs::write(world.agent.pod_logs().join("over"), "").unwrap();
    for directory in &attacked {
        is_rotated(&world, directory, 1);
    }
    canary.assert_untouched();
    say_loudly(&format!("{:?}", dog.finish(&world)));
    world.finish();
    canary.assert_untouched();
}

/// More names of log files than the agent looks at, and long names.
#[test]
fn a_flood_of_names_among_log_files_takes_no_memory() {
    let total = "containerLogMaxTotalSize: 10Mi\n";
    let settings = |s: Settings| {
        let s = s.kubelet(SETTINGS);
        Settings { nodelet: s.nodelet.clone() + total, ..s }
    };
    let Some(world) = crate::world(settings) else { return };
    let dog = Watchdog::start(&world);
    world.drop_pod(&Pod::with_main("web", TALKS));
    let directory = directory(&world, "web", "main");
    is_rotated(&world, &directory, 1);
    // Filled here, it is filled sooner than by a container. A file can have 65,000 links.
    for file in 0..4_u32 {
        let source = directory.join(format!("source-{file}"));
        fs::write(&source, "").unwrap();
        for n in 0..25_000_u32 {
            let name = match file {
                0 | 1 => format!("{file}{n:0246}"),
                _ => format!("0.log.2025010{file}-{:06}.{n:06}", n % 60),
            };
            fs::hard_link(&source, directory.join(name)).unwrap();
        }
    }
    is_rotated(&world, &directory, 3);
    let seen = dog.finish(&world);
    assert!(seen.peak_anon_kib < 32 * 1024, "{seen:?}");
    say_loudly(&format!("{seen:?}"));
    world.finish();
}
