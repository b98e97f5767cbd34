//! Process ids run short: a fork bomb is kept within its pod, or goes.

use super::{
    memory_rig::restart_with,
    pressure::{has_event, holds, reason},
};
use crate::support::{
    agent::Settings,
    manifest::Pod,
    process::Process,
    say_loudly,
    status::Status,
    world::{Kind, World},
};
use nodelet::model::Pressure;
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tokio::time::Instant;

/// Forks for ever, without running anything.
const BOMB: &str = "mkfifo /wait; while :; do read x </wait & done";
/// What the threshold leaves, and what the bomb may have: on an idle machine it makes 2,500 tasks
/// in 0.4 s, in which the agent gets the CPU rarely. Others use the machine too.
const MARGIN: u64 = 2500;
const MOST: u64 = 12_000;

fn number(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Process ids that are left on the machine.
fn available() -> u64 {
    let most =
        ["pid_max", "threads-max"].map(|name| number(&Path::new("/proc/sys/kernel").join(name)));
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let tasks = load.split_whitespace().nth(3).and_then(|tasks| tasks.split_once('/')).unwrap().1;
    most.into_iter().min().unwrap() - tasks.parse::<u64>().unwrap()
}

/// The directory of a pod's cgroup with its `pids.current`.
fn pids_of(world: &World, pod: &str) -> PathBuf {
    Process::of(world, pod, "main").cgroup("pids").parent().unwrap().to_owned()
}

/// The agent in a cgroup in which it can make no thread; what is dropped lets it out again.
struct Confined {
    dir: PathBuf,
    before: PathBuf,
    pid: u32,
}

impl Confined {
    fn agent(world: &World, threads: u64) -> Self {
        let pid = world.agent.pid();
        let before = Process::by_pid(i32::try_from(pid).unwrap()).cgroup("pids");
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let root = if v1.exists() { v1 } else { Path::new("/sys/fs/cgroup") };
        let dir = root.join(format!("nodelet-agent-{}", world.slot.number()));
        fs::create_dir_all(&dir).unwrap();
        let confined = Self { dir, before, pid };
        fs::write(confined.dir.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(confined.dir.join("pids.max"), threads.to_string()).unwrap();
        confined
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // Gone already is fine.
        let _gone = fs::write(self.before.join("cgroup.procs"), self.pid.to_string());
        let _left = fs::remove_dir(&self.dir);
    }
}

/// A bomb that its pod's limit keeps, one that would take the machine's process ids, and an agent
/// that finds none left.
pub fn a_fork_bomb_affects_no_other_pod(kind: Kind) {
    let settings = Settings::for_kind(kind)
        .kubelet("evictionHard: {}\npodPidsLimit: 60\nevictionPressureTransitionPeriod: 1s\n");
    let world = World::start_with(kind, &settings);
    world.drop_pod(&Pod::running("innocent"));
    world.wait_running("innocent");
    let innocent = world.running_id("innocent", "main");
    // The shell that can't fork ends; the first one stays.
    world.drop_pod(&Pod::with_main("kept", &format!("({BOMB})\nsleep 100000")));
    world.wait_running("kept");
    let pids = pids_of(&world, "kept");
    let full = |tasks: &u64| (55..=60).contains(tasks);
    world.wait_until("it finds its limit", || number(&pids.join("pids.current")), full);
    world.remove("kept.yaml");
    world.wait_gone("kept");

    world.agent.kill();
    let hard = format!("evictionHard: {{ pid.available: \"{}\" }}", available() - MARGIN);
    let lines = "evictionHard: {}\npodPidsLimit: 60";
    restart_with(&world, lines, &format!("{hard}\npodPidsLimit: {MOST}"));
    world.wait_running("innocent");
    let script = format!("until [ -e /go ]; do sleep 0.05; done\n{BOMB}");
    world.drop_pod(&Pod::with_main("bomb", &script));
    world.wait_running("bomb");
    let process = Process::of(&world, "bomb", "main");
    let pids = pids_of(&world, "bomb");
    // Its first thread, and one that is always there.
    let confined = Confined::agent(&world, 2);
    let watched = thread::spawn({
        let pids = pids.join("pids.current");
        move || {
            let (mut crossed, mut most) = (None, 0);
            let end = Instant::now() + Duration::from_secs(60);
            while Instant::now() < end {
                let tasks = number(&pids);
                most = most.max(tasks);
                if tasks > MARGIN {
                    crossed.get_or_insert_with(Instant::now);
                }
                if tasks == 0 {
                    break;
                }
                crate::support::pause(Duration::from_millis(2));
            }
            (crossed.map(|since| since.elapsed()), most)
        }
    });
    fs::write(process.path("/go"), "").unwrap();
    let (lived, most) = watched.join().unwrap();
    say_loudly(&format!("fork bomb: {most} tasks, threshold at {MARGIN}, dead {lived:?} after it"));
    assert!(most < MOST, "the threshold ends it, not its own limit: {most}");
    drop(confined);
    let status = world.wait("it is evicted", |status: &Status| reason(status, "bomb") == "Evicted");
    let message = status.pod("bomb").unwrap().status.message.clone().unwrap();
    assert!(message.starts_with("The node was low on resource: pids. "), "{message}");
    for reason in ["NodeHasInsufficientPID", "EvictionThresholdMet", "Evicted"] {
        assert!(has_event(&status, reason), "{reason} in {:#?}", status.events);
    }
    let over = |status: &Status| !holds(status, Pressure::Pid);
    let status = world.wait("the pressure is over", over);
    assert!(has_event(&status, "NodeHasSufficientPID"));
    assert_eq!(world.running_id("innocent", "main"), innocent);
    world.finish();
}
