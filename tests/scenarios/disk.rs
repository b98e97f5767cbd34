//! The root directory's disk is full: of bytes, or of inodes.

use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    status::Status,
    stays,
    world::{Kind, World},
};
use nix::mount::{MsFlags, mount};
use serde_json::json;
use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    time::Duration,
};

/// What runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    Bytes,
    Inodes,
}

/// A file system of its own under the agent's root directory.
struct SmallDisk {
    dir: PathBuf,
}

impl SmallDisk {
    /// Before the agent starts. It goes with the world.
    fn under(world: &World) -> Self {
        let dir = world.agent.root_dir();
        let options = "size=1m,nr_inodes=256,mode=755";
        mount(Some("small"), &dir, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
        Self { dir }
    }

    fn ballast(&self) -> PathBuf {
        self.dir.join("ballast")
    }

    fn fill(&self, full: Full) {
        fs::create_dir(self.ballast()).unwrap();
        let error = match full {
            Full::Bytes => {
                let mut file = File::create(self.ballast().join("bytes")).unwrap();
                loop {
                    if let Err(error) = file.write_all(&[1; 512]) {
                        break error;
                    }
                }
            }
            Full::Inodes => {
                let made = (0..).map(|n| File::create(self.ballast().join(format!("{n}"))));
                made.map(Result::err).find_map(|error| error).unwrap()
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    }

    fn empty(&self) {
        fs::remove_dir_all(self.ballast()).unwrap();
    }
}

fn warned(status: &Status) -> bool {
    let said =
        |w: &String| w.starts_with("cannot write state files") && w.contains("No space left");
    status.node.warnings.iter().any(said)
}

/// With a volume, so that it needs a place of its own on the disk.
fn with_volume(name: &str) -> Pod {
    Pod::running(name)
        .set("volumes", json!([{ "name": "scratch", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "scratch", "mountPath": "/scratch" }]))
}

fn disk_is_full(full: Full) {
    let world = World::prepare(Kind::Real, &Settings::for_kind(Kind::Real));
    let disk = SmallDisk::under(&world);
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
        let said = || why.iter().any(|reason| status.has_event(reason, "No space left"));
        warned(status) && (status.runs("new") || said())
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
        !warned(status) && ["web", "rich", "quiet", "new"].iter().all(|pod| status.runs(pod))
    });
    assert_eq!(world.running_ids("web"), web);
    let record = world.agent.root_dir().join("nodelet/pods/default_new-node1.json");
    world.wait_until("the new pod has a record", || record.exists(), |there| *there);
    world.finish();
}

pub fn a_disk_without_space_stops_nothing(_: Kind) {
    disk_is_full(Full::Bytes);
}

pub fn a_disk_without_inodes_stops_nothing(_: Kind) {
    disk_is_full(Full::Inodes);
}
