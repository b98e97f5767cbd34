//! Container logs are rotated, and no line is lost or torn.

use crate::support::{
    agent::{Settings, binary},
    manifest::{FOREVER, Pod},
    world::{Kind, SOON, World},
};
use flate2::read::GzDecoder;
use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

const LIMIT: &str = "containerLogMaxSize: 256Ki\ncontainerLogMonitorInterval: 3s\n";
const KEEP_ALL: &str = "containerLogMaxFiles: 1000000\n";

fn start(kind: Kind, lines: &str) -> World {
    World::start_with(kind, &Settings::for_kind(kind).kubelet(lines))
}

/// The log directory of the only container of pod `web`.
fn directory(world: &World) -> PathBuf {
    let uid = world.wait_running("web").pod("web").unwrap().uid.clone();
    world.agent.pod_logs().join(format!("default_web-node1_{uid}/main"))
}

/// The names of the log files, the oldest first and the current one last.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_by_key(|name| (name == "0.log", name.clone()));
    names
}

/// How many files were set aside.
fn set_aside(directory: &Path) -> usize {
    names(directory).iter().filter(|name| name.starts_with("0.log.2")).count()
}

/// What the container has written, from all its log files. The pieces of a line are put together.
fn written(directory: &Path) -> String {
    let mut text = String::new();
    for name in names(directory) {
        let path = directory.join(&name);
        let mut records = String::new();
        // It may have got another name since it was listed.
        let Ok(file) = fs::File::open(&path) else { continue };
        if name.ends_with(".gz") {
            GzDecoder::new(file).read_to_string(&mut records).unwrap();
        } else {
            { file }.read_to_string(&mut records).unwrap();
        }
        // The last record may be on its way.
        records.truncate(records.rfind('\n').map_or(0, |end| end + 1));
        for record in records.lines() {
            let mut parts = record.splitn(4, ' ');
            let [time, stream, tag, line] = [(); 4].map(|()| parts.next().unwrap_or_default());
            assert!(time.ends_with('Z') || time.contains('+'), "{name}: {record}");
            assert_eq!(stream, "stdout", "{name}: {record}");
            text.push_str(line);
            if tag == "F" {
                text.push('\n');
            }
        }
    }
    text
}

/// What is wrong with a text that should be the numbers from 1 to `last`, each once, in order.
fn miscount(text: &str, last: usize) -> Option<String> {
    let mut expected = 1;
    for line in text.lines() {
        if line.parse() != Ok(expected) {
            return Some(format!("{line:?} stands where {expected} should"));
        }
        expected += 1;
    }
    (expected != last + 1).then(|| format!("it ends before {expected}"))
}

/// `nodelet logs -f web`, writing to a file.
struct Follower {
    child: Child,
    path: PathBuf,
}

impl Follower {
    fn start(world: &World) -> Self {
        let path = world.slot.dir().join("followed");
        let mut command = Command::new(binary());
        command.args(["logs", "-f", "web", "--run-dir"]).arg(world.agent.run_dir());
        command.stdin(Stdio::null()).stdout(fs::File::create(&path).unwrap());
        Self { child: command.spawn().unwrap(), path }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

pub fn no_line_is_lost_over_rotations(kind: Kind) {
    let world = start(kind, &format!("{LIMIT}{KEEP_ALL}"));
    // Bursts for an agent, for the one that comes after it, each until there are enough, and then
    // without a pause.
    let bursts = |name: &str| {
        format!(
            "until [ -e /host/{name} ]; do sleep 0.1; done; until [ -e /host/{name}-end ]; \
             do seq $((n + 1)) $((n + 2000)); n=$((n + 2000)); sleep 0.05; done"
        )
    };
    let (first, second) = (bursts("first"), bursts("second"));
    let at_last = "last=$((n + 50000)); echo $last > /host/last; seq $((n + 1)) $last";
    let script = format!("n=0; {first}; {second}; {at_last}; {FOREVER}");
    world.drop_pod(&Pod::with_main("web", &script).host_dir(world.slot.dir()));
    let directory = directory(&world);
    let follower = Follower::start(&world);
    let say = |name: &str| fs::write(world.slot.dir().join(name), "").unwrap();
    let count = || set_aside(&directory);
    say("first");
    world.wait_until("the log is rotated", count, |count| *count >= 4);
    // In the middle of a burst.
    world.agent.kill();
    say("first-end");
    world.agent.start();
    let before = count();
    say("second");
    world.wait_until("the next agent rotates it", count, |count| *count >= before + 4);
    say("second-end");
    let last = || {
        let written = fs::read_to_string(world.slot.dir().join("last")).ok()?;
        written.strip_suffix('\n')?.parse().ok()
    };
    let last: usize = world.wait_until("the last line is known", last, Option::is_some).unwrap();
    let all = || miscount(&written(&directory), last);
    world.wait_until("every line is there", all, Option::is_none);
    let followed = || miscount(&fs::read_to_string(&follower.path).unwrap(), last);
    world.wait_until("the follower has printed every line", followed, Option::is_none);
    drop(follower);
    world.finish();
}

pub fn old_logs_are_compressed_and_the_oldest_go(kind: Kind) {
    let world = start(kind, &format!("{LIMIT}containerLogMaxFiles: 3\n"));
    // Each file `nN` in the directory lets it write once more: more than a log may have, and two
    // times are less than three logs, even if a log is rotated in the middle.
    let script = format!(
        "for n in 0 1 2 3; do until [ -e /host/n$n ]; do sleep 0.1; done; \
         seq $((n * 7000 + 1)) $((n * 7000 + 7000)); done; {FOREVER}"
    );
    world.drop_pod(&Pod::with_main("web", &script).host_dir(world.slot.dir()));
    let directory = directory(&world);
    let write = |n: usize| fs::write(world.slot.dir().join(format!("n{n}")), "").unwrap();
    let seen = || names(&directory);
    let rotated = |names: &Vec<String>| names.last().is_some_and(|name| name == "0.log");
    write(0);
    let all = || miscount(&written(&directory), 7_000);
    world.wait_until("a log is rotated", seen, |names| rotated(names) && names.len() == 2);
    world.wait_until("its lines are there", all, Option::is_none);
    write(1);
    world.wait_until("it is rotated again", seen, |names| rotated(names) && names.len() == 3);
    let packed = |names: &Vec<String>| names[0].ends_with(".gz");
    let names = world.wait_until("the older file is compressed", seen, packed);
    assert!(!names[1].ends_with(".gz"), "the newest stays as it is: {names:?}");
    let oldest = names[0].clone();
    assert_eq!(miscount(&written(&directory), 14_000), None);
    write(2);
    let gone = |names: &Vec<String>| !names.contains(&oldest) && names.len() == 3;
    world.wait_until("the oldest file is removed", seen, gone);
    assert!(seen()[0].starts_with(&names[1]), "the one after it stays: {:?}", seen());
    world.finish();
}

pub fn a_rotation_without_an_answer_loses_no_line(kind: Kind) {
    let world = start(kind, &format!("{LIMIT}{KEEP_ALL}"));
    let script = format!(
        "for n in 0 1 2; do until [ -e /host/n$n ]; do sleep 0.1; done; \
         seq $((n * 10000 + 1)) $((n * 10000 + 10000)); done; {FOREVER}"
    );
    world.drop_pod(&Pod::with_main("web", &script).host_dir(world.slot.dir()));
    let directory = directory(&world);
    let write = |n: usize| fs::write(world.slot.dir().join(format!("n{n}")), "").unwrap();
    let current = directory.join("0.log");
    // The runtime refuses: the file has its name again, and is rotated later.
    let refuses = tonic::Code::Unavailable;
    let rule = world.proxy.on("ReopenContainerLog").times(1).fail(refuses, "not now");
    write(0);
    let asked = || {
        let calls = world.proxy.calls();
        calls.iter().filter(|call| call.method == "ReopenContainerLog").count()
    };
    world.wait_until("the runtime is asked and refuses", asked, |asked| *asked >= 1);
    world.wait_until("the file has its name again", || current.exists(), |exists| *exists);
    world.proxy.lift(rule);
    // The runtime has made the new file, so no call of this rotation is on its way any more.
    let rotated = || (set_aside(&directory), current.exists());
    world.wait_until("it is rotated later", rotated, |seen| *seen == (1, true));
    // The agent dies before the runtime has made a new file: what is written meanwhile goes to the
    // file without a name of its own.
    let rule = world.proxy.on("ReopenContainerLog").hang();
    write(1);
    world.wait_until("the file has lost its name", || current.exists(), |exists| !exists);
    world.agent.kill();
    write(2);
    let all = || miscount(&written(&directory), 30_000);
    world.wait_until("everything is written", all, Option::is_none);
    assert!(!current.exists());
    world.proxy.lift(rule);
    world.agent.start();
    world.wait_until("there is a new file", || current.exists(), |exists| *exists);
    assert_eq!(miscount(&written(&directory), 30_000), None);
    world.finish();
}

pub fn all_logs_stay_below_their_total(kind: Kind) {
    let mut settings = Settings::for_kind(kind).kubelet(&format!("{LIMIT}{KEEP_ALL}"));
    settings.nodelet.push_str("containerLogMaxTotalSize: 2Mi\n");
    let world = World::start_with(kind, &settings);
    let last = 100_000;
    let script = format!(
        "n=0; while [ $n -lt {last} ]; do seq $((n + 1)) $((n + 1000)); n=$((n + 1000)); sleep 0.02; done; {FOREVER}"
    );
    world.drop_pod(&Pod::with_main("web", &script));
    let directory = directory(&world);
    let end = || {
        let text = written(&directory);
        text.lines().last().and_then(|line| line.parse::<usize>().ok())
    };
    world.wait_until("everything is written", end, |end| *end == Some(last));
    let size = || {
        let sizes = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().metadata());
        sizes.filter_map(Result::ok).map(|found| found.len()).sum::<u64>()
    };
    let size = world.wait_until("the oldest files are gone", size, |size| *size <= 2 << 20);
    // Not more than that.
    assert!(size > 1 << 20, "{size}");
    world.finish();
}
