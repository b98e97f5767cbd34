//! What is kept of a release: the directories of its agent, and what the fake runtime had.

use crate::support::world::{Runtime, World};
use jiff::{SignedDuration, Timestamp};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

/// Pods that ran when it was recorded, and have no reason to restart.
pub(super) const STILL: [&str; 4] = ["web", "pulled", "kept", "stubborn"];

/// How long the agent has been dead when the next one starts.
pub(super) const AWAY: Duration = Duration::from_secs(5);
/// Stands for the directory of the test in every text.
const SLOT: &str = "@SLOT@";
/// Stands for the id of the boot.
const BOOT: &str = "@BOOT@";
/// Directories of the agent that are kept.
const KEPT: [&str; 4] = ["manifests", "root", "run", "logs"];
/// Fields of state files with a time since the boot.
const BOOT_TIMES: [&str; 3] = ["seen", "at", "boot"];

/// When it was recorded.
#[derive(Serialize, Deserialize)]
struct Recorded {
    wall: Timestamp,
    boot_seconds: i64,
}

impl Recorded {
    fn now() -> Self {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
        Self { wall: Timestamp::now(), boot_seconds: boot.tv_sec() }
    }
}

/// A recorded release.
pub(super) struct Release {
    dir: PathBuf,
    /// The containers that ran, by the name of their pod in the manifest.
    running: BTreeMap<String, Vec<String>>,
}

impl Release {
    /// Every release that was recorded.
    pub(super) fn all() -> Vec<Self> {
        let entries = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
        let mut dirs: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
        dirs.sort();
        dirs.into_iter().map(Self::read).collect()
    }

    pub(super) fn newest() -> Self {
        Self::all().pop().unwrap()
    }

    fn read(dir: PathBuf) -> Self {
        let running = serde_json::from_slice(&fs::read(dir.join("running.json")).unwrap()).unwrap();
        Self { dir, running }
    }

    /// The containers of a pod that ran, sorted.
    pub(super) fn running_ids(&self, pod: &str) -> &[String] {
        &self.running[pod]
    }

    /// Writes what a world has, whose agent is dead, as that of this release.
    pub(super) fn record(world: &World) {
        let dir = root().join(env!("CARGO_PKG_VERSION"));
        if dir.exists() {
            fs::remove_dir_all(&dir).unwrap();
        }
        let slot = world.slot.dir().display().to_string();
        let generic = |text: String| text.replace(&slot, SLOT).replace(&boot_id(), BOOT);
        for name in KEPT {
            copy(&world.slot.dir().join("agent").join(name), &dir.join(name), &generic);
        }
        let write = |name: &str, value: Value| {
            let text = serde_json::to_string_pretty(&value).unwrap();
            fs::write(dir.join(name), generic(text + "\n")).unwrap();
        };
        write("runtime.json", fake(world).save());
        write("recorded.json", serde_json::to_value(Recorded::now()).unwrap());
        write("running.json", STILL.map(|pod| (pod, world.running_ids(pod))).into_iter().collect());
    }

    /// Gives a world what was recorded, as if the agent had died [`AWAY`] ago.
    pub(super) fn restore(&self, world: &World) {
        let read = |name: &str| fs::read_to_string(self.dir.join(name)).unwrap();
        let recorded: Recorded = serde_json::from_str(&read("recorded.json")).unwrap();
        let now = Recorded::now();
        let later =
            now.wall.duration_since(recorded.wall) - SignedDuration::try_from(AWAY).unwrap();
        let slot = world.slot.dir().display().to_string();
        let specific = |text: String| text.replace(SLOT, &slot).replace(BOOT, &boot_id());
        for name in KEPT {
            copy(&self.dir.join(name), &world.slot.dir().join("agent").join(name), &specific);
        }
        for file in state_files(world) {
            let mut content: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            let away = i64::try_from(AWAY.as_secs()).unwrap();
            move_times(&mut content, later, now.boot_seconds - recorded.boot_seconds - away);
            fs::write(&file, content.to_string()).unwrap();
        }
        let runtime = serde_json::from_str(&specific(read("runtime.json"))).unwrap();
        fake(world).restore(runtime, later);
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade")
}

fn fake(world: &World) -> &crate::support::fake::Fake {
    let Runtime::Fake(fake) = &world.runtime else { panic!("the fake") };
    fake
}

/// The state files of an agent.
pub(super) fn state_files(world: &World) -> Vec<PathBuf> {
    let dirs = [world.agent.root_dir().join("nodelet"), world.agent.run_dir()];
    let dirs = dirs.iter().flat_map(|dir| [dir.clone(), dir.join("pods")]);
    let files = dirs.flat_map(|dir| fs::read_dir(dir).unwrap().flatten()).map(|e| e.path());
    files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
}

/// Copies files and links below a directory, with another text. Sockets and locks stay behind.
fn copy(from: &Path, to: &Path, text: &impl Fn(String) -> String) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (kind, source, target) =
            (entry.file_type().unwrap(), entry.path(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&source, &target, text);
        } else if kind.is_symlink() {
            let place = fs::read_link(&source).unwrap().display().to_string();
            symlink(text(place), target).unwrap();
        } else if kind.is_file() && entry.file_name() != "lock" {
            fs::write(target, text(fs::read_to_string(&source).unwrap())).unwrap();
        }
    }
}

/// Moves every time in a state file; boot times by other seconds.
fn move_times(value: &mut Value, later: SignedDuration, boot_seconds: i64) {
    match value {
        Value::String(text) => {
            if let Ok(time) = text.parse::<Timestamp>() {
                *text = (time + later).to_string();
            }
        }
        Value::Array(list) => {
            list.iter_mut().for_each(|one| move_times(one, later, boot_seconds));
        }
        Value::Object(map) => {
            for (name, one) in map {
                match one.get("secs").and_then(Value::as_i64) {
                    Some(seconds) if BOOT_TIMES.contains(&name.as_str()) => {
                        // Before the boot counts as the boot.
                        one["secs"] = json!((seconds + boot_seconds).max(0));
                    }
                    Some(_) | None => move_times(one, later, boot_seconds),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
