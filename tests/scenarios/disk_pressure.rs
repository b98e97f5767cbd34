//! Disks run short: who goes, what is removed before anybody has to, who stays, what is told, and
//! that the space is back. On small file systems of their own, under a real containerd.

use crate::support::{
    agent::Settings,
    images::{self, BUSYBOX, PAUSE},
    loop_disk::LoopDisk,
    manifest::{FOREVER, Pod},
    process::Process,
    proxy::Moment,
    registry::Registry,
    status::Status,
    stays,
    world::{Kind, SOON, World},
};
use nodelet::model::{Pressure, Signal};
use serde_json::json;
use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};
use tokio::time::Instant;

const MIB: u64 = 1 << 20;
/// Size of a disk, and what has to stay free of it.
const DISK_MIB: u64 = 128;
const FREE_MIB: u64 = 40;
const INODES: u64 = 4096;
const FREE_INODES: u64 = 1500;
/// Who runs beside those that fill a disk.
const INNOCENT: [&str; 3] = ["innocent0", "innocent1", "innocent2"];

/// A world on small disks. Pods fill them when they are told to.
struct Node {
    world: World,
    /// Of the root directory and the logs.
    disk: LoopDisk,
    /// Of containerd, where that has one of its own.
    images: Option<LoopDisk>,
    /// Which pods are to fill a disk: a file for each.
    control: PathBuf,
}

const THRESHOLDS: &str = "nodefs.available: 40Mi, imagefs.available: 40Mi, nodefs.inodesFree: \"1500\", \
    imagefs.inodesFree: \"1500\"";

/// A log that is rotated would fill no disk.
fn settings(kind: Kind, thresholds: &str) -> Settings {
    Settings::for_kind(kind).kubelet(&format!(
        "evictionHard: {{ {thresholds} }}\nevictionPressureTransitionPeriod: 2s\n\
         imageMinimumGCAge: 1s\nimageGCHighThresholdPercent: 100\ncontainerLogMaxSize: \"-1\"\n"
    ))
}

impl Node {
    /// The agent is not started.
    fn prepare(kind: Kind, images_apart: bool, settings: &Settings) -> Self {
        let world = World::prepare(kind, settings);
        let disk = LoopDisk::make(&world.slot, "disk", DISK_MIB, INODES);
        disk.over("root", &world.agent.root_dir());
        disk.over("logs", &world.agent.pod_logs());
        let images = images_apart.then(|| LoopDisk::make(&world.slot, "images", DISK_MIB, INODES));
        let containerd = world.runtime.containerd();
        containerd.kill();
        images.as_ref().unwrap_or(&disk).over("containerd", &containerd.root_dir());
        containerd.start_again();
        containerd.import_images();
        let control = world.slot.dir().join("control");
        fs::create_dir(&control).unwrap();
        Self { world, disk, images, control }
    }

    /// With the agent and the innocent.
    fn start(kind: Kind, images_apart: bool) -> Self {
        let node = Self::prepare(kind, images_apart, &settings(kind, THRESHOLDS));
        node.world.agent.start();
        for name in INNOCENT {
            node.world.drop_pod(&Pod::running(name));
        }
        node.world.wait("the innocent run", |status| INNOCENT.iter().all(|name| status.runs(name)));
        node
    }

    /// A pod that does something when it is told to, and has an emptyDir at `/scratch`.
    fn pod(&self, name: &str, does: &str) -> Pod {
        let script =
            format!("until [ -e /control/{name} ]; do sleep 0.1; done; {does}; sleep 100000");
        let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
        Pod::with_main(name, &script)
            .set("volumes", json!([
                { "name": "scratch", "emptyDir": {} },
                { "name": "control", "hostPath": { "path": self.control, "type": "Directory" } },
            ]))
            .set("containers/0/volumeMounts", json!([mount("scratch"), mount("control")]))
    }

    fn tell(&self, pod: &str, go: bool) {
        let path = self.control.join(pod);
        if go { fs::write(path, "").unwrap() } else { fs::remove_file(path).unwrap() }
    }

    /// Running containers of the innocent, who must stay the same.
    fn innocent(&self) -> BTreeMap<&'static str, Vec<String>> {
        INNOCENT.iter().map(|name| (*name, self.world.running_ids(name))).collect()
    }

    /// Has a pod fill a disk, and waits until it alone has gone for it and all is well again.
    #[track_caller]
    fn fill_and_go(&self, name: &str, resource: &str) -> Status {
        let innocent = self.innocent();
        let away = evicted(&self.world.agent.status().unwrap());
        let begun = Instant::now();
        self.tell(name, true);
        let status = self.goes(name, resource, begun);
        self.tell(name, false);
        let others = evicted(&status).into_iter().filter(|other| *other != name);
        assert!(
            others.clone().all(|other| away.contains(&other)),
            "{away:?} {:?}",
            evicted(&status)
        );
        assert_eq!(innocent, self.innocent(), "nobody else is touched");
        let over = |status: &Status| !holds(status) && crossed(status).is_empty();
        let status = self.world.wait(&format!("the pressure of {name} is over"), over);
        assert!(status.has_event("NodeHasNoDiskPressure", ""), "{status:?}");
        say(&format!("{name}: all is well after {:.1?}", begun.elapsed()));
        status
    }

    #[track_caller]
    fn goes(&self, name: &str, resource: &str, begun: Instant) -> Status {
        let mut crossed_at = None;
        let status = self.world.wait_for(2 * SOON, &format!("{name} is evicted"), |status| {
            if crossed_at.is_none() && holds(status) {
                crossed_at = Some(Instant::now());
            }
            reason(status, name) == "Evicted"
        });
        let crossed_at = crossed_at.unwrap_or_else(Instant::now);
        let (before, after) = (crossed_at - begun, crossed_at.elapsed());
        say(&format!("{name}: crossed after {before:.1?}, evicted {after:.1?} later"));
        let pod = status.pod(name).unwrap();
        let message = pod.status.message.as_deref().unwrap();
        let expected = format!("The node was low on resource: {resource}. Threshold quantity: ");
        assert!(message.starts_with(&expected), "{message}");
        let conditions = pod.status.conditions.as_ref().unwrap();
        assert!(conditions.iter().any(|c| c.type_ == "DisruptionTarget" && c.status == "True"));
        assert!(self.world.containers(name).is_empty(), "nothing of it is left");
        for reason in ["Evicted", "EvictionThresholdMet", "NodeHasDiskPressure"] {
            assert!(status.has_event(reason, ""), "{reason} in {:#?}", status.events);
        }
        assert!(status.has_event("Evicted", name), "{:#?}", status.events);
        let step = |status: &Status| {
            let mut steps = status.node.pressure.steps.iter();
            steps.find(|step| step.what.contains(&format!("/{name}-"))).cloned()
        };
        let told = self.world.wait("what was freed is told", |status| step(status).is_some());
        let step = step(&told).unwrap();
        say(&format!(
            "{name}: {} {}, freed {:?}, expected {:?}",
            step.signal, step.what, step.freed, step.expected
        ));
        let (freed, used) = (step.freed.unwrap(), step.expected.unwrap());
        assert!(freed >= used / 2, "the space is back: {step:?}");
        status
    }

    fn finish(self) {
        self.world.finish();
    }
}

#[expect(clippy::print_stderr, reason = "figures for people, shown with --nocapture")]
fn say(text: &str) {
    eprintln!("{text}");
}

fn holds(status: &Status) -> bool {
    status.node.conditions.held().any(|held| held == Pressure::Disk)
}

fn crossed(status: &Status) -> Vec<Signal> {
    let signals = status.node.pressure.signals.iter();
    signals.filter(|one| one.crossed || one.available.is_none()).map(|one| one.signal).collect()
}

fn reason<'a>(status: &'a Status, pod: &str) -> &'a str {
    status.pod(pod).and_then(|pod| pod.status.reason.as_deref()).unwrap_or_default()
}

/// Who is away, as in manifests.
fn evicted(status: &Status) -> Vec<String> {
    let away = status.node.pressure.evicted.iter();
    away.map(|one| one.key.name.trim_end_matches("-node1").to_owned()).collect()
}

/// Writes 30 MiB to a file at once, which crosses no threshold, and then for ever by 5 MiB a second
/// at most: what is left has to last until the container has ended, as containerd can't remove
/// anything from a disk that is full.
fn filling(file: &str) -> String {
    format!(
        "{{ head -c 31457280 /dev/zero; while head -c 524288 /dev/zero; do sleep 0.1; done; }} >{file}"
    )
}

/// A log and an emptyDir, one after the other, where everything is on one disk. The last one takes
/// all there is at once.
pub fn who_fills_the_disk_goes_alone(kind: Kind) {
    let node = Node::start(kind, false);
    let hogs = [
        ("log", "while yes a line for the log | head -c 524288; do sleep 0.1; done".to_owned()),
        ("volume", "head -c 1073741824 /dev/zero >/scratch/file".to_owned()),
    ];
    for (name, does) in &hogs {
        node.world.drop_pod(&node.pod(name, does));
        node.world.wait_running(name);
    }
    for (name, _) in &hogs {
        let before = node.disk.available();
        node.fill_and_go(name, "ephemeral-storage");
        let after = node.disk.available();
        assert!(after + 8 * MIB > before, "{name}: {before} {after}");
    }
    node.finish();
}

/// Containerd does not stop who fills the disk: it is dead when its second is over all the same.
pub fn who_fills_a_disk_is_dead_in_time_while_the_runtime_hangs(kind: Kind) {
    let node = Node::start(kind, false);
    let world = &node.world;
    world.drop_pod(&node.pod("volume", &filling("/scratch/file")));
    world.wait_running("volume");
    let process = Process::of(world, "volume", "main");
    let innocent = node.innocent();
    let hung = world.proxy.on("StopContainer").pod("volume").hang();
    node.tell("volume", true);
    world.wait("it is to go", |status| status.has_event("Evicted", ""));
    let begun = Instant::now();
    world.wait_until("it is dead", || process.is_there(), |there| !there);
    say(&format!("dead {:.1?} after it was told to go", begun.elapsed()));
    assert!(begun.elapsed() < Duration::from_secs(8));
    assert!(world.proxy.count("StopContainer", "volume") > 0, "it was asked to");
    world.proxy.lift(hung);
    world.wait("it is evicted", |status| reason(status, "volume") == "Evicted");
    node.tell("volume", false);
    assert_eq!(innocent, node.innocent(), "nobody else is touched");
    world.wait("the pressure is over", |status| !holds(status) && crossed(status).is_empty());
    node.finish();
}

/// Layers take from the images' disk; who has much on the other one stays.
pub fn with_images_apart_who_fills_their_disk_goes(kind: Kind) {
    let node = Node::start(kind, true);
    node.world.drop_pod(&node.pod("layer", &filling("/file")));
    // It has a lot on the disk that is not short.
    let much = format!("head -c 31457280 /dev/zero >/scratch/file; {FOREVER}");
    node.world.drop_pod(&node.pod("large", &much));
    node.tell("large", true);
    for name in ["layer", "large"] {
        node.world.wait_running(name);
    }
    let large = node.world.running_ids("large");
    let free = node.images.as_ref().unwrap().available();
    let status = node.fill_and_go("layer", "ephemeral-storage");
    assert!(crossed_first(&status) == Signal::ImagefsAvailable, "{:?}", status.node.pressure.steps);
    assert!(node.images.as_ref().unwrap().available() + 8 * MIB > free, "the space is back");
    assert_eq!(node.world.running_ids("large"), large);
    node.finish();
}

/// For what somebody was evicted first.
fn crossed_first(status: &Status) -> Signal {
    let mut steps = status.node.pressure.steps.iter();
    steps.find(|step| step.what.starts_with("evicted")).unwrap().signal
}

/// The last of them too.
pub fn who_takes_all_inodes_goes_alone(kind: Kind) {
    let node = Node::start(kind, false);
    let files = "n=0; while :; do : >/scratch/$n; n=$((n+1)); done";
    node.world.drop_pod(&node.pod("files", files));
    node.world.wait_running("files");
    let before = node.disk.inodes();
    assert!(before > FREE_INODES + 200, "{before}");
    node.fill_and_go("files", "inodes");
    assert!(node.disk.inodes() + 100 > before, "{before} {}", node.disk.inodes());
    node.finish();
}

/// With images apart, who makes files in its writable layer takes those of the images' disk; who
/// has many on the other one stays.
pub fn with_images_apart_inodes_have_their_own_culprit(kind: Kind) {
    let node = Node::start(kind, true);
    let make = |dir: &str, most: u32| {
        format!(
            "mkdir -p {dir}/many; n=0; while [ $n -lt {most} ]; do : >{dir}/many/$n; n=$((n+1)); done"
        )
    };
    node.world.drop_pod(&node.pod("other", &make("/scratch", 1000)));
    node.world.drop_pod(&node.pod("files", &make("", 1_000_000)));
    for name in ["other", "files"] {
        node.world.wait_running(name);
    }
    let disk = node.images.as_ref().unwrap();
    let (before, left) = (disk.inodes(), node.disk.inodes());
    assert!(before > FREE_INODES + 200, "{before}");
    node.tell("other", true);
    let made = |inodes: &u64| *inodes + 1000 <= left;
    node.world.wait_until("the other one has its files", || node.disk.inodes(), made);
    let other = node.world.running_ids("other");
    let status = node.fill_and_go("files", "inodes");
    assert_eq!(crossed_first(&status), Signal::ImagefsInodesFree);
    assert!(disk.inodes() + 100 > before, "{before} {}", disk.inodes());
    assert_eq!(node.world.running_ids("other"), other);
    node.finish();
}

/// Those of a pod that has ended, and of a container that runs again: both keep what people are
/// shown of them, and neither runs again for it, also after a restart of the agent.
pub fn dead_containers_go_before_pods(kind: Kind) {
    let node = Node::start(kind, false);
    let world = &node.world;
    let job = "echo once; head -c 15728640 /dev/zero >/file; exit 3";
    world.drop_pod(&Pod::with_main("job", job).set("restartPolicy", "Never"));
    let crashes = "head -c 15728640 /dev/zero >/file; sleep 1; exit 4";
    let twice =
        format!("[ -e /scratch/again ] && {{ {FOREVER}; }}; touch /scratch/again; {crashes}");
    world.drop_pod(&node.pod("crashes", &twice));
    node.tell("crashes", true);
    let ended = |status: &Status| {
        let of_job = status.terminated("job", "main").map(|ended| ended.exit_code);
        let of_crashed = status.terminated("crashes", "main").map(|ended| ended.exit_code);
        status.phase("job") == "Failed"
            && of_job == Some(3)
            && status.runs("crashes")
            && of_crashed == Some(4)
            && status.restarts("crashes", "main") == 1
    };
    world.wait("one has ended, one runs again", ended);
    let (innocent, crashed) = (node.innocent(), world.running_ids("crashes"));
    let dead = || world.containers("job").len() + world.containers("crashes").len();
    assert_eq!(dead(), 3);
    let before = node.disk.available();
    let outside = node.disk.path("outside");
    fs::write(&outside, vec![1; usize::try_from(before - (FREE_MIB - 8) * MIB).unwrap()]).unwrap();
    let status = world.wait("the dead are removed", |status| {
        let mut steps = status.node.pressure.steps.iter();
        steps.any(|step| step.what.starts_with("removed 2 dead containers"))
    });
    let steps = &status.node.pressure.steps;
    say(&format!("{steps:?}"));
    assert!(steps[0].freed.unwrap() >= 8 * MIB, "{steps:?}");
    assert_eq!(dead(), 1);
    // Containerd frees the layers one after the other, a while later.
    let missing = || (FREE_MIB + 16) * MIB > node.disk.available();
    world.wait_until("both layers are free", missing, |missing| !missing);
    let over = |status: &Status| !holds(status) && ended(status);
    let status = world.wait("the pressure is over", over);
    assert!(evicted(&status).is_empty() && status.node.pressure.steps.len() == 1, "{status:?}");
    world.agent.kill();
    world.agent.start();
    world.wait("all is found again", |status| !crossed_or_unread(status) && ended(status));
    stays("nobody runs again", Duration::from_secs(2), dead, |dead| *dead == 1);
    assert_eq!((innocent, crashed), (node.innocent(), world.running_ids("crashes")));
    node.finish();
}

fn crossed_or_unread(status: &Status) -> bool {
    status.node.pressure.signals.is_empty() || !crossed(status).is_empty()
}

/// Those that the agent has pulled and nothing needs; with a setting also those that somebody else
/// has brought.
pub fn unused_images_go_before_pods(kind: Kind) {
    let node = Node::start(kind, true);
    let world = &node.world;
    let disk = node.images.as_ref().unwrap();
    let Some(mut registry) = Registry::prepare(&world.slot) else { return };
    registry.start(false);
    let containerd = world.runtime.containerd();
    let names = ["unused", "used", "named"].map(|name| {
        let image = made_image(world, name);
        registry.push(containerd, &image, &format!("{name}:1"));
        containerd.ctr(&["images", "rm", "--sync", &image]);
        registry.image(&format!("{name}:1"))
    });
    let [unused, used, named] = &names;
    let pod = |name: &str, image: &str| Pod::running(name).set("containers/0/image", image);
    for (name, image) in [("unused", unused), ("used", used), ("named", named)] {
        world.drop_pod(&pod(name, image));
        world.wait_running(name);
    }
    world.remove("unused.yaml");
    // Named by a manifest whose pod does not run.
    world.remove("named.yaml");
    world.wait_gone("unused");
    world.wait_gone("named");
    let waits = pod("named", named).init("setup", FOREVER);
    world.drop_pod(&waits);
    world.wait("its container does not run yet", |status| {
        status.waiting_reason("named", "main") == "PodInitializing"
    });
    // Somebody has brought this one.
    let foreign = made_image(world, "foreign");
    let there = |image: &str| world.cri.has_image(image);
    assert!(names.iter().all(|image| there(image)) && there(&foreign));
    let innocent = node.innocent();

    let short_by = |mib: u64| {
        let left = (FREE_MIB - mib) * MIB;
        let file = disk.path("outside");
        let _absent_at_first = fs::remove_file(&file);
        fs::write(&file, vec![1; usize::try_from(disk.available() - left).unwrap()]).unwrap();
    };
    short_by(6);
    let over = |status: &Status| {
        !holds(status) && !crossed_or_unread(status) && !status.node.pressure.steps.is_empty()
    };
    let status = world.wait("an image goes, and the pressure with it", over);
    let steps = &status.node.pressure.steps;
    say(&format!("{steps:?}"));
    assert_eq!(steps[0].what, "removed 1 unused images");
    assert!(steps[0].freed.unwrap() > 6 * MIB && steps.len() == 1, "{steps:?}");
    assert!(!there(unused));
    assert!([used, named, &foreign, BUSYBOX, PAUSE].iter().all(|image| there(image)));

    let config = fs::read_to_string(world.agent.config_file()).unwrap();
    fs::write(world.agent.config_file(), config + "imageGC: { includeForeign: true }\n").unwrap();
    world.agent.kill();
    world.agent.start();
    world.wait("all is found again", |status| status.runs("used") && !crossed_or_unread(status));
    short_by(6);
    let status = world.wait("the others go, and the pressure with them", over);
    assert!(!there(&foreign), "{:?}", status.node.pressure.steps);
    assert!([used, named, BUSYBOX, PAUSE].iter().all(|image| there(image)));
    assert!(evicted(&status).is_empty());
    assert_eq!(innocent, node.innocent());
    node.finish();
}

/// Makes an image of about 14 MiB, packed and unpacked, that shares nothing with others; gives its
/// name.
pub(super) fn made_image(world: &World, name: &str) -> String {
    let image = format!("nodelet.test/{name}:1");
    let archive = images::with_ballast(&world.slot.dir().join(format!("image-{name}")), &image, 5);
    world.runtime.containerd().ctr(&["images", "import", archive.to_str().unwrap()]);
    image
}

/// A file that is no pod's.
pub fn a_disk_that_no_pod_fills_evicts_nobody(kind: Kind) {
    let node = Node::start(kind, false);
    let world = &node.world;
    let innocent = node.innocent();
    let outside = node.disk.path("outside");
    fs::create_dir(&outside).unwrap();
    let size = node.disk.available() - (FREE_MIB - 20) * MIB;
    fs::write(outside.join("core"), vec![1; usize::try_from(size).unwrap()]).unwrap();
    let told = |status: &Status| {
        let mut trouble = status.node.pressure.trouble.iter();
        let named = format!("{} (", outside.display());
        trouble.any(|line| line.contains("evicting a pod would not help") && line.contains(&named))
    };
    let status = world.wait("people are told who uses the disk", told);
    assert!(holds(&status) && status.has_event("EvictionFoundNoPod", "outside"), "{status:?}");
    // Nobody begins meanwhile.
    world.drop_pod(&Pod::running("new"));
    let status = world.wait("a new one is refused", |status| reason(status, "new") == "Evicted");
    let message = status.pod("new").unwrap().status.message.clone().unwrap();
    assert!(message.contains("The node had condition: [DiskPressure]. "), "{message}");
    stays("everybody stays", Duration::from_secs(3), || node.innocent(), |now| *now == innocent);
    let log = world.agent.log();
    for name in INNOCENT {
        let lines = log.lines().filter(|line| line.contains("spared:") && line.contains(name));
        assert!(lines.count() <= 4, "said again and again:\n{log}");
    }
    fs::remove_dir_all(&outside).unwrap();
    world.wait("a new one runs when the pressure is over", |status| {
        status.runs("new") && !holds(status) && status.node.pressure.trouble.is_empty()
    });
    assert_eq!(innocent, node.innocent());
    node.finish();
}

/// The agent finds it short at its start, and dies in the middle of the eviction, before and after
/// a call.
pub fn a_disk_that_is_short_at_the_start_costs_its_culprit_alone(kind: Kind) {
    let node = Node::prepare(kind, false, &settings(kind, "nodefs.available: 1Mi"));
    let world = &node.world;
    world.agent.start();
    for name in INNOCENT {
        world.drop_pod(&Pod::running(name));
    }
    let size = node.disk.available() - (FREE_MIB - 10) * MIB;
    let fill = format!("head -c {size} /dev/zero >/scratch/file; touch /control/done");
    world.drop_pod(&node.pod("volume", &fill));
    world.wait("all run", |status| {
        status.runs("volume") && INNOCENT.iter().all(|name| status.runs(name))
    });
    let innocent = node.innocent();
    node.tell("volume", true);
    let done = || node.control.join("done").exists();
    world.wait_until("it has filled the disk", done, |done| *done);
    world.agent.kill();
    let config = fs::read_to_string(world.agent.config_file()).unwrap();
    fs::write(world.agent.config_file(), config.replace("nodefs.available: 1Mi", THRESHOLDS))
        .unwrap();
    // It dies with the first call of the eviction; then with the second, whose answer it does not
    // get.
    for (n, moment) in [(0, Moment::Before), (1, Moment::After)] {
        world.proxy.forget_calls();
        world.agent.start();
        world.proxy.at_mutating_call(n, moment, world.agent.killer());
        let running = || world.agent.is_running();
        world.wait_until("it dies in the middle of it", running, |running| !running);
    }
    node.tell("volume", false);
    world.agent.start();
    // As long as the disk is short it can't come back.
    let status = world.wait("it is evicted all the same", |status| {
        reason(status, "volume") == "Evicted" && !evicted(status).is_empty()
    });
    assert_eq!(evicted(&status), ["volume".to_owned()]);
    world.wait("the pressure is over", |status| !holds(status) && !crossed_or_unread(status));
    assert_eq!(innocent, node.innocent(), "nobody else is touched");
    assert!(node.disk.available() > 70 * MIB, "the space is back");
    node.finish();
}

/// An emptyDir's, a container's, and that of a pod's containers together; on a disk that has room
/// for all of it.
pub fn limits_of_local_storage(kind: Kind) {
    let world = World::start(kind);
    let volume = |limit: &str| json!([{ "name": "scratch", "emptyDir": { "sizeLimit": limit } }]);
    let mounts = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
    let limits = |limit: &str| json!({ "limits": { "ephemeral-storage": limit } });
    let writes = |file: &str| format!("head -c 6291456 /dev/zero >{file}; {FOREVER}");
    let with_volume = |name: &str, limit: &str| {
        Pod::with_main(name, &writes("/scratch/file"))
            .set("volumes", volume(limit))
            .set("containers/0/volumeMounts", mounts.clone())
    };
    world.drop_pod(&with_volume("volume", "4Mi"));
    world.drop_pod(&with_volume("within", "16Mi"));
    let layer = Pod::with_main("layer", &writes("/file")).container("idle", FOREVER);
    let layer = layer.set("containers/0/resources", limits("4Mi"));
    world.drop_pod(&layer.set("containers/1/resources", limits("1Gi")));
    // No container exceeds its own limit at any time: 3 MiB of log with its times, 4 MiB of layer,
    // and 6 MiB of a volume, which counts for the pod alone.
    let log = format!("yes a line for the log | head -c 1048576; {}", writes("/scratch/file"));
    let layer = format!("head -c 4194304 /dev/zero >/file; {FOREVER}");
    let both = Pod::with_main("both", &log)
        .container("layer", &layer)
        .set("volumes", json!([{ "name": "scratch", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", mounts.clone())
        .set("containers/0/resources", limits("5Mi"));
    world.drop_pod(&both.set("containers/1/resources", limits("5Mi")));
    let expected = [
        ("volume", "Usage of EmptyDir volume \"scratch\" exceeds the limit \"4Mi\". "),
        ("layer", "Container main exceeded its local ephemeral storage limit \"4Mi\". "),
        ("both", "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "),
    ];
    let status = world.wait_for(2 * SOON, "each is evicted", |status| {
        expected.iter().all(|(name, _)| reason(status, name) == "Evicted")
    });
    for (name, message) in expected {
        assert_eq!(status.pod(name).unwrap().status.message.as_deref(), Some(message));
        assert!(world.containers(name).is_empty(), "nothing of {name} is left");
        assert!(status.events.iter().any(|event| event["message"] == message), "{message}");
    }
    assert!(!holds(&status) && status.runs("within"));
    assert_eq!(status.restarts("within", "main"), 0);
    world.finish();
}
