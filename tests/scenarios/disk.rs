//! A disk is full, of bytes or of inodes, or read-only: the agent's root directory's, containerd's,
//! and /run.

use crate::support::{
    agent::Settings,
    containerd::Containerd,
    manifest::{FOREVER, Pod},
    process::Process,
    status::Status,
    stays,
    world::{Kind, World},
};
use nix::mount::{MsFlags, mount};
use serde_json::json;
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

/// What runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Bytes,
    Inodes,
    Both,
}

/// A small file system mounted over a directory. It goes with the world.
pub struct SmallDisk {
    dir: PathBuf,
}

impl SmallDisk {
    /// Mounts it. `size` is what tmpfs(5) takes for it: `size=1m,nr_inodes=256`.
    pub fn over(dir: PathBuf, size: &str) -> Self {
        let options = format!("{size},mode=755");
        let options = Some(options.as_str());
        mount(Some("small"), &dir, Some("tmpfs"), MsFlags::empty(), options).unwrap();
        Self { dir }
    }

    fn ballast(&self) -> PathBuf {
        self.dir.join("ballast")
    }

    /// Takes all that is left.
    pub fn fill(&self, full: Full) {
        fs::create_dir(self.ballast()).unwrap();
        let mut bytes = File::create(self.ballast().join("bytes")).unwrap();
        if full != Full::Inodes {
            for size in [1 << 16, 512] {
                let written = (0..).map(|_| bytes.write_all(&vec![1; size]));
                ran_out(written);
            }
        }
        if full != Full::Bytes {
            ran_out((0..).map(|n| File::create(self.ballast().join(format!("{n}"))).map(drop)));
        }
    }

    /// Takes nothing that is new, or does again. Refused while somebody has a file open for
    /// writing.
    pub fn read_only(&self, read_only: bool) {
        let flags = if read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        let nothing = None::<&str>;
        mount(nothing, &self.dir, nothing, MsFlags::MS_REMOUNT | flags, nothing).unwrap();
    }

    /// Gives back what [`Self::fill`] has taken.
    pub fn empty(&self) {
        fs::remove_dir_all(self.ballast()).unwrap();
    }
}

/// Goes on until there is no space left.
fn ran_out(mut attempts: impl Iterator<Item = io::Result<()>>) {
    let error = attempts.find_map(Result::err).unwrap();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
}

fn warned(status: &Status, why: &str) -> bool {
    let said = |w: &String| w.starts_with("cannot write state files") && w.contains(why);
    status.node.warnings.iter().any(said)
}

const NO_SPACE: &str = "No space left";
const READ_ONLY: &str = "Read-only file system";

/// With a volume, so that it needs a place of its own on the disk.
fn with_volume(name: &str) -> Pod {
    Pod::running(name)
        .set("volumes", json!([{ "name": "scratch", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "scratch", "mountPath": "/scratch" }]))
}

fn disk_is_full(kind: Kind, full: Full) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let disk = SmallDisk::over(world.agent.root_dir(), "size=1m,nr_inodes=256");
    world.agent.start();
    world.drop_pod(&with_volume("web"));
    world.drop_pod(&Pod::running("rich").init("setup", "true").sidecar("proxy", FOREVER));
    world.drop_pod(&Pod::running("leaves"));
    world.drop_pod(&Pod::running("quiet"));
    for pod in ["web", "rich", "leaves", "quiet"] {
        world.wait_running(pod);
    }
    disk.fill(full);
    let web = world.running_ids("web");

    // A new pod runs all the same, or says why it does not; and the disk is named.
    world.drop_pod(&with_volume("new"));
    let status = world.wait("the disk is named, and the new pod runs or says why", |status| {
        let why = ["FailedMount", "Failed"];
        let said = || why.iter().any(|reason| status.has_event(reason, NO_SPACE));
        warned(status, NO_SPACE) && (status.runs("new") || said())
    });
    assert!(status.runs("web") && status.runs("rich"), "{status:?}");
    let new_ids = world.running_ids("new");

    // A crash is healed, and a removal carried out.
    world.kill_container(&world.running_id("rich", "main"));
    world.remove("leaves.yaml");
    world.wait("the crashed one is back or, where it needs a new file, says why", |status| {
        let says_why = status.waiting_reason("rich", "main") == "CreateContainerConfigError";
        status.restarts("rich", "main") == 1 && status.runs("rich")
            || full == Full::Inodes && says_why
    });
    world.wait_gone("leaves");

    // The agent dies and starts on the full disk; everything is found.
    world.agent.kill();
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("everything is found", |status| status.runs("web") && status.runs("quiet"));
    let touched =
        || world.proxy.count("StopContainer", "web") + world.proxy.count("StopContainer", "new");
    stays("nothing that runs is stopped", Duration::from_secs(3), touched, |n| *n == 0);
    assert_eq!(world.running_ids("web"), web);
    if !new_ids.is_empty() {
        assert_eq!(world.running_ids("new"), new_ids);
    }

    disk.empty();
    world.wait_for(Duration::from_secs(60), "all is well again without help", |status| {
        !warned(status, NO_SPACE)
            && ["web", "rich", "quiet", "new"].iter().all(|pod| status.runs(pod))
    });
    assert_eq!(world.running_ids("web"), web);
    let record = world.agent.root_dir().join("nodelet/pods/default_new-node1.json");
    world.wait_until("the new pod has a record", || record.exists(), |there| *there);
    world.finish();
}

pub fn a_disk_without_space_stops_nothing(kind: Kind) {
    disk_is_full(kind, Full::Bytes);
}

pub fn a_disk_without_inodes_stops_nothing(kind: Kind) {
    disk_is_full(kind, Full::Inodes);
}

/// An agent that dies on a disk that has become read-only starts on it, finds everything, says what
/// is wrong, and makes up for all of it when the disk can be written again.
pub fn a_read_only_disk_stops_nothing(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let disk = SmallDisk::over(world.agent.root_dir(), "size=1m,nr_inodes=256");
    world.agent.start();
    for pod in [with_volume("web"), Pod::running("crashes"), Pod::running("leaves")] {
        world.drop_pod(&pod);
    }
    for pod in ["web", "crashes", "leaves"] {
        world.wait_running(pod);
    }
    let web = world.running_ids("web");
    world.agent.kill();
    disk.read_only(true);
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("everything is found", |status| {
        ["web", "crashes", "leaves"].iter().all(|pod| status.runs(pod))
    });

    world.drop_pod(&with_volume("new"));
    world.kill_container(&world.running_id("crashes", "main"));
    world.remove("leaves.yaml");
    let status = world.wait("the disk is named, and why what needs it does not run", |status| {
        let crashed = status.waiting_reason("crashes", "main");
        warned(status, READ_ONLY)
            && status.has_event("FailedMount", READ_ONLY)
            && (crashed == "CreateContainerConfigError" || status.runs("crashes"))
    });
    assert!(status.runs("web") && !status.runs("new"), "{status:?}");
    world.wait_until("what was removed ends", || world.running_ids("leaves"), |ids| ids.is_empty());
    assert_eq!(world.proxy.count("StopContainer", "web"), 0);

    disk.read_only(false);
    world.wait_for(Duration::from_secs(60), "all is well again without help", |status| {
        !warned(status, READ_ONLY)
            && status.restarts("crashes", "main") == 1
            && ["web", "crashes", "new"].iter().all(|pod| status.runs(pod))
            && status.pod("leaves").is_none()
    });
    assert_eq!(world.running_ids("web"), web);
    world.finish();
}

/// A world whose containerd has a small disk of its own under one of its directories.
fn with_small_disk(kind: Kind, dir: fn(&Containerd) -> PathBuf, size: &str) -> (World, SmallDisk) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let containerd = world.runtime.containerd();
    containerd.kill();
    let disk = SmallDisk::over(dir(containerd), size);
    containerd.start_again();
    containerd.import_images();
    (world, disk)
}

/// Containerd can make nothing new; what runs stays, and all is made up for when there is room
/// again.
fn containerd_has_no_room(world: &World, disk: &SmallDisk) {
    world.agent.start();
    for pod in ["web", "dies", "leaves"] {
        world.drop_pod(&Pod::running(pod));
    }
    for pod in ["web", "dies", "leaves"] {
        world.wait_running(pod);
    }
    let web = world.running_ids("web");
    disk.fill(Full::Both);

    world.drop_pod(&Pod::running("new"));
    let status = world.wait("the new pod says why it does not run", |status| {
        ["FailedCreatePodSandBox", "Failed"]
            .iter()
            .any(|reason| status.has_event(reason, "no space left"))
    });
    assert!(!status.runs("new"), "{status:?}");
    // Containerd may have no room to note an end: what it lists is wrong then, until there is room
    // again.
    let leaves = Process::of(world, "leaves", "main");
    world.kill_container(&world.running_id("dies", "main"));
    world.remove("leaves.yaml");
    world.wait_until("its process ends", || leaves.is_there(), |there| !there);

    // An agent that dies over it starts, and finds what runs.
    world.agent.kill();
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("what runs is found", |status| status.runs("web"));
    let touched = || world.proxy.count("StopContainer", "web");
    stays("what runs is left alone", Duration::from_secs(2), touched, |n| *n == 0);

    disk.empty();
    world.wait_for(Duration::from_secs(60), "all is well again without help", |status| {
        ["web", "dies", "new"].iter().all(|pod| status.runs(pod))
            && status.restarts("dies", "main") > 0
            && status.pod("leaves").is_none()
    });
    assert_eq!(world.running_ids("web"), web);
    for pod in ["dies", "new"] {
        assert_eq!(world.running_ids(pod).len(), 1, "{pod}");
    }
}

/// Containerd's state and the agent's socket are on one small `/run`.
pub fn a_full_run_directory_stops_nothing(kind: Kind) {
    let (world, disk) = with_small_disk(kind, Containerd::state_dir, "size=4m,nr_inodes=4096");
    let bound = MsFlags::MS_BIND;
    mount(Some(&disk.dir), &world.agent.run_dir(), None::<&str>, bound, None::<&str>).unwrap();
    containerd_has_no_room(&world, &disk);
    world.finish();
}

pub fn a_full_disk_under_containerd_stops_nothing(kind: Kind) {
    let (world, disk) = with_small_disk(kind, Containerd::root_dir, "size=64m,nr_inodes=16384");
    containerd_has_no_room(&world, &disk);
    world.finish();
}
