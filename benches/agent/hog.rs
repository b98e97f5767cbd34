//! A process that takes memory at a pace, in the cgroup of a pod's container as if it had been
//! started there.

use crate::stage::{Moment, now, pause};
use nodelet::{
    model::Signal,
    signals::{MachineReader, MemorySignal, SampleRequest, cgroup_memory},
};
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::Duration,
};
use tokio::time::Instant;

/// With this argument the bench is the process itself.
pub const ARGUMENT: &str = "--take-memory";
const MIB: usize = 1 << 20;
/// The kernel's counters of a cgroup differ by at most this from what its processes have written.
const CGROUP_BLUR: usize = 8;
/// Other processes take and give back at most this while a hog runs.
const MACHINE_BLUR: usize = 64;

/// The threshold that a hog crosses; in MiB.
pub struct Bound {
    used: Box<dyn Fn() -> usize>,
    at: usize,
    blur: usize,
}

impl Bound {
    /// All pods together, one of which has the process `pid`, use this much.
    pub fn of_all_pods(pid: i32, at: usize) -> Self {
        let (all_pods, _) = cgroups_of(pid);
        Self { used: Box::new(move || memory_mib(&all_pods)), at, blur: CGROUP_BLUR }
    }

    /// `memory.available` of the machine falls to this much.
    pub fn of_machine(available: usize) -> Self {
        let capacity = machine_mib().0;
        let used = move || capacity - machine_mib().1;
        Self { used: Box::new(used), at: capacity - available, blur: MACHINE_BLUR }
    }
}

/// Capacity and `memory.available` of the machine, in MiB.
pub fn machine_mib() -> (usize, usize) {
    let mut reader = MachineReader::new(Path::new("/proc"), MemorySignal::WorkingSet);
    let signals = BTreeSet::from([Signal::MemoryAvailable]);
    let sample =
        reader.sample(SampleRequest { signals: &signals, pods: None, is_far: &|_, _| false });
    let reading = sample.readings[&Signal::MemoryAvailable];
    let mib = |bytes: u64| usize::try_from(bytes).unwrap() / MIB;
    (mib(reading.capacity), mib(reading.available))
}

/// The process: reads how much to take at once, and then a pace and a bound; tells how much it has.
pub fn take_memory() {
    let mut lines = std::io::stdin().lines();
    let mut number = || -> usize { lines.next().unwrap().unwrap().trim().parse().unwrap() };
    let mut taken = Vec::new();
    let at_once = number();
    while taken.len() < at_once {
        taken.push(vec![1_u8; MIB]);
    }
    let mut output = std::io::stdout().lock();
    let mut tell = |mib: usize| writeln!(output, "{} {mib}", now()).unwrap();
    tell(taken.len());
    let (per_second, most) = (number(), number());
    let begun = Instant::now();
    for nth in 0..most {
        let due = Duration::from_micros(u64::try_from(nth * 1_000_000 / per_second).unwrap());
        let early = due.saturating_sub(begun.elapsed());
        if early > Duration::from_millis(2) {
            pause(early);
        }
        taken.push(vec![1_u8; MIB]);
        tell(taken.len());
    }
    // Until somebody ends it.
    number();
}

/// How it ended.
pub struct End {
    /// From the moment at which the threshold was crossed until it was dead and its memory free.
    pub seconds: f64,
    /// How far it came past the threshold.
    pub mib_past: f64,
}

/// Lets a process in the container of `pid` take memory at a pace, up to the bound and `most` MiB
/// more. `None`: it was alive `patience` after it had crossed the bound.
pub fn let_loose(
    pid: i32,
    per_second: usize,
    bound: &Bound,
    most: usize,
    patience: Duration,
) -> Option<End> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for procs in cgroups_of(pid).1 {
        fs::write(procs.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    let told = lines_of(child.stdout.take().unwrap());
    // A run-up, in which the agent sees it come.
    let run_up = (per_second * 3 / 10).max(32);
    let at_once =
        bound.at.checked_sub((bound.used)() + run_up).expect("too much is used without the hog");
    say(&mut child, at_once);
    told.recv().unwrap();
    pause(Duration::from_millis(500));
    let blur = bound.blur;
    let left = bound.at.checked_sub((bound.used)()).expect("the run-up is too short");
    let bound = at_once + left;
    say(&mut child, per_second);
    say(&mut child, bound - at_once + most);
    let mut crossed = None;
    let mut last = (now(), at_once);
    let end = loop {
        let left = match crossed {
            None => Duration::from_secs(60),
            Some(at) => patience.saturating_sub(since(at)),
        };
        match told.recv_timeout(left) {
            Ok((at, mib)) => {
                last = (at, mib);
                if mib >= bound {
                    crossed.get_or_insert(at);
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => break None,
            Err(mpsc::RecvTimeoutError::Disconnected) => break Some(now()),
        }
    };
    let ended = child.try_wait().unwrap().is_some();
    if !ended {
        child.kill().unwrap();
    }
    child.wait().unwrap();
    assert!(last.1 + blur >= bound, "it was ended {} MiB before the threshold", bound - last.1);
    let crossed = crossed.unwrap_or(last.0);
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    let mib_past = last.1.saturating_sub(bound) as f64;
    end.map(|end| End { seconds: crate::stage::seconds(crossed, end), mib_past })
}

/// What all pods together use, one of which has this process.
pub fn pods_memory_mib(pid: i32) -> usize {
    memory_mib(&cgroups_of(pid).0)
}

fn memory_mib(cgroup: &Path) -> usize {
    usize::try_from(cgroup_memory(cgroup).unwrap()).unwrap() / MIB
}

fn say(child: &mut Child, number: usize) {
    writeln!(child.stdin.as_mut().unwrap(), "{number}").unwrap();
}

fn since(moment: Moment) -> Duration {
    Duration::from_secs_f64(crate::stage::seconds(moment, now()))
}

/// What it tells; ends when the process has, its memory being free then.
fn lines_of(output: ChildStdout) -> mpsc::Receiver<(Moment, usize)> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let (at, mib) = line.split_once(' ').unwrap();
            if sender.send((at.parse().unwrap(), mib.parse().unwrap())).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The memory cgroup of all pods, and every cgroup that a process is in.
fn cgroups_of(pid: i32) -> (PathBuf, Vec<PathBuf>) {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let mut all = Vec::new();
    let mut pods = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap(), fields.next().unwrap());
        let at = Path::new("/sys/fs/cgroup");
        let mounts = [at.join(controllers.trim_start_matches("name=")), at.join("unified")];
        let is_it = |mount: &&PathBuf| mount.join("cgroup.procs").exists();
        let Some(mount) = mounts.iter().find(is_it) else { continue };
        let directory = mount.join(path.trim_start_matches('/'));
        if directory.join("memory.stat").exists() {
            let above = directory.ancestors().find(|path| path.ends_with("kubepods"));
            pods = Some(above.expect("it is in a pod").to_owned());
        }
        all.push(directory);
    }
    (pods.expect("there is a memory hierarchy"), all)
}
