//! Containers that put links, pipes and sockets where other containers of their pod mount a part
//! of the same volume by `subPath`.

mod written;

use crate::{
    support::{
        agent::Settings,
        manifest::{FOREVER, Pod},
        process::Process,
        say_loudly,
        status::Status,
        world::World,
    },
    watchdog::Watchdog,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::Instant;

/// The volumes that containers can write to.
const KINDS: [&str; 3] = ["disk", "memory", "host"];
const INSIDE: &str = "inside the volume";
const MARKER: &str = "marker";
/// For many starts on a busy machine.
const LATE: Duration = Duration::from_secs(60);

/// Directories of the host: `volume` is the pod's `hostPath`. `outside` belongs to no pod, and
/// contains one file. They outlive the world.
struct Host {
    dir: TempDir,
    before: [i64; 3],
}

impl Host {
    fn make() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join(MARKER), "of the host").unwrap();
        let before = Self::state(&outside);
        Self { dir, before }
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    /// A relative path that leads outside from any directory.
    fn upward(&self) -> PathBuf {
        let outside = self.outside();
        Path::new(&"../".repeat(40)).join(outside.strip_prefix("/").unwrap())
    }

    /// Differs after any change of the entries or the mode.
    fn state(path: &Path) -> [i64; 3] {
        let metadata = fs::metadata(path).unwrap();
        [metadata.ctime(), metadata.ctime_nsec(), metadata.mode().into()]
    }

    #[track_caller]
    fn assert_untouched(&self) {
        let outside = self.outside();
        let entries = fs::read_dir(&outside).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [MARKER]);
        assert_eq!(Self::state(&outside), self.before, "the directory was changed");
        assert_eq!(fs::read_to_string(outside.join(MARKER)).unwrap(), "of the host");
    }

    /// Volume `KIND` of a pod.
    fn volume(&self, kind: &str) -> Value {
        match kind {
            "disk" => json!({ "name": kind, "emptyDir": {} }),
            "memory" => json!({ "name": kind, "emptyDir": { "medium": "Memory" } }),
            _ => {
                let path = self.dir.path().join("volume");
                let path = json!({ "path": path, "type": "DirectoryOrCreate" });
                json!({ "name": kind, "hostPath": path })
            }
        }
    }

    /// The directory of volume `KIND`. The test does faster there what a container can do.
    fn directory(&self, world: &World, pod: &str, kind: &str) -> PathBuf {
        if kind == "host" {
            return self.dir.path().join("volume");
        }
        let uid = world.agent.status().unwrap().pod(pod).unwrap().uid.clone();
        let pod = world.agent.root_dir().join("pods").join(uid.as_str());
        pod.join("volumes/kubernetes.io~empty-dir").join(kind)
    }
}

/// Adds a container with these mounts. `WHERE` is a variable for `subPathExpr`.
fn container(pod: Pod, name: &str, script: &str, mounts: Value, path: &str) -> Pod {
    let index = pod.value()["spec"]["containers"].as_array().unwrap().len();
    pod.container(name, script)
        .set(&format!("containers/{index}/volumeMounts"), mounts)
        .set(&format!("containers/{index}/env"), json!([{ "name": "WHERE", "value": path }]))
}

/// A mount of a part of a volume.
fn part(volume: &str, target: &str, path: &str, by_expression: bool) -> Value {
    let mut mount = json!({ "name": volume, "mountPath": target });
    if by_expression {
        mount["subPathExpr"] = json!("$(WHERE)");
    } else {
        mount["subPath"] = json!(path);
    }
    mount
}

fn waiting_message(status: &Status, pod: &str, container: &str) -> String {
    let state = status.container(pod, container).and_then(|status| status.state.clone());
    state.and_then(|state| state.waiting?.message).unwrap_or_default()
}

/// Whether the container is not created because of its mount, and its pod says so.
fn is_refused(status: &Status, pod: &str, container: &str) -> bool {
    let reasons = ["failed to create subPath directory", "failed to prepare subPath"];
    let message = waiting_message(status, pod, container);
    status.waiting_reason(pod, container) == "CreateContainerConfigError"
        && reasons.iter().any(|reason| message.starts_with(reason))
        && message.contains(&format!("of container {container:?}"))
}

fn is_ready(status: &Status, pod: &str, container: &str) -> bool {
    status.container(pod, container).is_some_and(|container| container.ready)
}

/// Paths in a volume that lead out of it or to nothing: the container that mounts it, and the path.
const BAD: [(&str, &str); 14] = [
    ("root", "root"),
    ("etc", "etc/hostname"),
    ("outside", "outside"),
    ("below", "outside/made/deep"),
    ("up", "up"),
    ("below-up", "up/made"),
    ("parent", "parent/made"),
    ("chain", "first"),
    ("file", "marker"),
    ("process", "process/etc"),
    ("dangling", "dangling/made"),
    ("loop", "loop/made"),
    ("below-pipe", "pipe/made"),
    ("below-file", "real/file/made"),
];
/// Paths that stay in the volume.
const GOOD: [(&str, &str); 5] = [
    ("real", "real"),
    ("link", "link"),
    ("made", "link/made/deep"),
    ("pipe", "pipe"),
    ("link-to-pipe", "link-to-pipe"),
];

/// A pod whose init container makes links in a volume. Every other container mounts one of them, in
/// turns by `subPath` and by `subPathExpr`.
fn pod_with_links(kind: &str, host: &Host) -> Pod {
    let (path, up) = (host.outside(), host.upward());
    let path = path.display();
    let plant = format!(
        "cd /shared && mkdir real && printf '{INSIDE}' >real/file && ln -s real link && \
         mkfifo pipe && ln -s ./link/../pipe link-to-pipe && ln -s / root && ln -s /etc etc && \
         ln -s {path} outside && ln -s {} up && ln -s .. parent && ln -s second first && \
         ln -s real/../third second && ln -s {path} third && ln -s {path}/{MARKER} marker && \
         ln -s /proc/self/root process && ln -s {path}/absent dangling && ln -s loop loop",
        up.display()
    );
    let mut pod = Pod::named(kind)
        .init("planter", &plant)
        .set("initContainers/0/volumeMounts", json!([{ "name": kind, "mountPath": "/shared" }]));
    for (index, (name, path)) in BAD.into_iter().chain(GOOD).enumerate() {
        let mounts = json!([part(kind, "/part", path, index % 2 == 1)]);
        pod = container(pod, name, FOREVER, mounts, path);
    }
    pod.set("volumes", json!([host.volume(kind)]))
}

#[test]
fn links_in_a_volume_lead_no_sub_path_out_of_it() {
    let Some(world) = crate::world(|s| s) else { return };
    let host = Host::make();
    let dog = Watchdog::start(&world);
    for kind in KINDS {
        world.drop_pod(&pod_with_links(kind, &host));
    }
    for kind in KINDS {
        let status = world.wait_for(LATE, &format!("{kind}: each has started or not"), |status| {
            BAD.iter().all(|(name, _)| is_refused(status, kind, name))
                && GOOD.iter().all(|(name, _)| is_ready(status, kind, name))
        });
        for (name, _) in BAD {
            let message = waiting_message(&status, kind, name);
            let tells = message.contains(host.outside().to_str().unwrap());
            assert!(!tells, "it tells where a link leads: {message}");
        }
        let message = waiting_message(&status, kind, "outside");
        assert!(message.ends_with(": the path leads out of the volume"), "{message}");
        assert_eq!(world.containers(kind).len(), GOOD.len() + 1, "a container was created");
        let part = |name: &str| Process::of(&world, kind, name).path("/part");
        for name in ["real", "link"] {
            assert_eq!(fs::read_to_string(part(name).join("file")).unwrap(), INSIDE, "{kind}");
        }
        let volume = host.directory(&world, kind, kind);
        fs::write(part("made").join("file"), "").unwrap();
        assert!(volume.join("real/made/deep/file").exists(), "{kind}");
        for name in ["pipe", "link-to-pipe"] {
            assert!(fs::metadata(part(name)).unwrap().file_type().is_fifo(), "{kind}");
        }
        assert!(!volume.join("../made").exists(), "{kind}: it was made above the volume");
        host.assert_untouched();
    }
    say_loudly(&format!("{:?}", dog.finish(&world)));
    let kept = host.directory(&world, "host", "host").join("real/file");
    world.finish();
    assert_eq!(fs::read_to_string(kept).unwrap(), INSIDE, "what is the host's stays");
    host.assert_untouched();
}

/// Runs `nodelet restart` or `nodelet retry` for the pod.
#[track_caller]
fn ask(world: &World, command: &str, pod: &str) {
    let output = world.agent.cli(&[command, pod]);
    assert!(output.status.success(), "{output:?}");
}

/// A pod with a container for each kind of volume, of which it mounts `part` at `/part`.
struct Parts<'a> {
    world: &'a World,
    volumes: Vec<PathBuf>,
}

impl<'a> Parts<'a> {
    fn start(world: &'a World, host: &Host) -> Self {
        let mut pod = Pod::named("web");
        for (index, kind) in KINDS.into_iter().enumerate() {
            let mounts = json!([part(kind, "/part", "part", index == 1)]);
            pod = container(pod, kind, FOREVER, mounts, "part");
        }
        world.drop_pod(&pod.set("volumes", json!(KINDS.map(|kind| host.volume(kind)))));
        world.wait_running("web");
        let volumes = KINDS.map(|kind| host.directory(world, "web", kind)).to_vec();
        for volume in &volumes {
            fs::write(volume.join("part/file"), INSIDE).unwrap();
        }
        Self { world, volumes }
    }

    /// Puts something else in the place of `part`. The directory itself is kept.
    fn replace(&self, make: impl Fn(&Path)) {
        for volume in &self.volumes {
            let part = volume.join("part");
            if fs::symlink_metadata(&part).unwrap().is_dir() {
                fs::rename(&part, volume.join("kept")).unwrap();
            } else {
                fs::remove_file(&part).unwrap();
            }
            make(&part);
        }
    }

    /// No container starts again.
    #[track_caller]
    fn refuses(&self, what: &str, make: impl Fn(&Path)) {
        self.replace(make);
        ask(self.world, "restart", "web");
        self.world.wait(&format!("{what} is refused"), |status| {
            KINDS.iter().all(|kind| is_refused(status, "web", kind))
        });
    }

    /// All containers start, and `check` is true of what they see.
    #[track_caller]
    fn mounts(&self, what: &str, make: impl Fn(&Path), check: impl Fn(&Path) -> bool) {
        self.replace(make);
        ask(self.world, "retry", "web");
        self.world.wait_running("web");
        for kind in KINDS {
            let seen = Process::of(self.world, "web", kind).path("/part");
            assert!(check(&seen), "{kind}: {what} is not what the container sees");
        }
    }
}

fn make_node(path: &Path, kind: nix::sys::stat::SFlag) {
    nix::sys::stat::mknod(path, kind, nix::sys::stat::Mode::S_IRWXU, 0).unwrap();
}

#[test]
fn a_sub_path_is_opened_anew_at_each_start() {
    use nix::sys::stat::SFlag;
    let Some(world) = crate::world(|s| s) else { return };
    let host = Host::make();
    let dog = Watchdog::start(&world);
    let parts = Parts::start(&world, &host);
    let link = |target: PathBuf| move |path: &Path| symlink(&target, path).unwrap();
    parts.refuses("a link to the host", link(host.outside()));
    let is_socket = |path: &Path| fs::metadata(path).unwrap().file_type().is_socket();
    parts.mounts("a socket", |path| make_node(path, SFlag::S_IFSOCK), is_socket);
    parts.refuses("a link upwards", link(host.upward()));
    let is_pipe = |path: &Path| fs::metadata(path).unwrap().file_type().is_fifo();
    parts.mounts("a pipe", |path| make_node(path, SFlag::S_IFIFO), is_pipe);
    parts.refuses("a link to a file", link(host.outside().join(MARKER)));
    let is_inside = |path: &Path| fs::read_to_string(path).is_ok_and(|text| text == INSIDE);
    parts.mounts("a file", link("kept/file".into()), is_inside);
    host.assert_untouched();
    say_loudly(&format!("{:?}", dog.finish(&world)));
    world.finish();
    host.assert_untouched();
}

/// Exchanges two entries of each of some directories without a pause, until it is dropped.
struct Exchange {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exchange {
    fn start(pairs: Vec<[PathBuf; 2]>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = Arc::clone(&over);
            move || {
                while !over.load(Ordering::Relaxed) {
                    for [one, other] in &pairs {
                        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                    }
                }
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the exchange has failed");
        }
    }
}

/// Starts that were refused because of a mount, of all containers together.
fn refusals(status: &Status) -> u64 {
    let refused = |event: &&Value| {
        let message = event["message"].as_str().unwrap_or_default();
        event["reason"] == "Failed" && message.contains("failed to create subPath directory")
    };
    status.events.iter().filter(refused).filter_map(|event| event["count"].as_u64()).sum()
}

/// Each container ends at once and is started again, while the part that it mounts is a directory
/// of its volume and a link to the host in turns.
#[test]
fn a_directory_exchanged_for_a_link_while_containers_start() {
    let hasty = "crashLoopBackOff: { maxContainerRestartPeriod: 1s }\n";
    let Some(world) = crate::world(|s: Settings| s.kubelet(hasty)) else { return };
    let host = Host::make();
    let looks = format!(
        "echo x >>/shared/starts; echo x >/part/written; [ ! -e /part/{MARKER} ] || \
         touch /shared/escaped; rm -f /part/written; rmdir /shared/*/made 2>/dev/null; exit 0"
    );
    let mut pod = Pod::named("web");
    for kind in KINDS {
        for (name, path) in [(kind.to_owned(), "part"), (format!("{kind}-made"), "part/made")] {
            let whole = json!({ "name": kind, "mountPath": "/shared" });
            let mounts = json!([whole, part(kind, "/part", path, path != "part")]);
            pod = container(pod, &name, &looks, mounts, path);
        }
    }
    let dog = Watchdog::start(&world);
    world.drop_pod(&pod.set("volumes", json!(KINDS.map(|kind| host.volume(kind)))));
    world.wait("the pod has begun", |status| status.pod("web").is_some());
    let volumes = KINDS.map(|kind| host.directory(&world, "web", kind));
    let has_parts = || volumes.iter().all(|volume| volume.join("part").is_dir());
    world.wait_until("the directories are there", has_parts, |all| *all);
    let targets = [host.outside(), host.upward(), "third".into()];
    let pairs = volumes.iter().zip(targets).map(|(volume, target)| {
        symlink(host.outside(), volume.join("third")).unwrap();
        symlink(target, volume.join("link")).unwrap();
        [volume.join("part"), volume.join("link")]
    });
    let exchange = Exchange::start(pairs.collect());
    let starts = || -> usize {
        let text = |volume: &PathBuf| fs::read_to_string(volume.join("starts")).unwrap_or_default();
        volumes.iter().map(|volume| text(volume).lines().count()).sum()
    };
    let before = (starts(), refusals(&world.agent.status().unwrap()));
    let mut asked = Instant::now();
    let status = world.wait_for(LATE, "many starts", |status| {
        if asked.elapsed() > Duration::from_millis(300) {
            asked = Instant::now();
            ask(&world, "retry", "web");
        }
        starts() >= before.0 + 20 && refusals(status) >= before.1 + 10
    });
    drop(exchange);
    say_loudly(&format!(
        "{} starts, {} refused",
        starts() - before.0,
        refusals(&status) - before.1
    ));
    for (volume, kind) in volumes.iter().zip(KINDS) {
        assert!(!volume.join("escaped").exists(), "{kind}: a container saw a file of the host");
    }
    host.assert_untouched();
    say_loudly(&format!("{:?}", dog.finish(&world)));
    world.finish();
    host.assert_untouched();
}
