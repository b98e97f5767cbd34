//! Watches an agent under attack from the outside, as an administrator and an innocent pod would.

use crate::contention::CpuTimes;
use crate::support::{manifest::Pod, pause, status, world::World};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tokio::time::Instant;

/// Between two status requests.
const EVERY: Duration = Duration::from_millis(100);
/// The longest time that a status request may take during an attack, on a machine that has nothing
/// else to do.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);
/// The most anonymous memory that the agent may hold at any time during an attack, in KiB. The text
/// of the unoptimised test binary does not count.
const MEMORY_CEILING_KIB: u64 = 64 * 1024;
/// The pod that runs before the attack and must not notice it.
pub const INNOCENT: &str = "innocent";

/// Asks for the agent's status every 100 ms and reads its memory, until [`Watchdog::finish`].
///
/// A restart of the agent needs a new watchdog: [`Watchdog::finish`] before, [`Watchdog::watch`]
/// after.
pub struct Watchdog {
    innocent: Option<String>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// What a watchdog saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Status requests.
    pub requests: u32,
    /// The longest time until an answer.
    pub longest_answer: Duration,
    /// Answers that took longer than they may on a machine as busy as it was, with the limit.
    pub late: Vec<(Duration, Duration)>,
    /// Requests without an answer, with the error of the first.
    pub unanswered: Vec<String>,
    /// The largest RssAnon seen, in KiB.
    pub peak_anon_kib: u64,
}

impl Watchdog {
    /// Starts a pod that must not notice the attack, waits until it runs, and begins to watch.
    #[track_caller]
    pub fn start(world: &World) -> Self {
        world.drop_pod(&Pod::running(INNOCENT));
        world.wait_running(INNOCENT);
        Self { innocent: Some(world.running_id(INNOCENT, "main")), ..Self::watch(world) }
    }

    /// Watches an agent without a pod of its own: for attacks that let no pod start.
    pub fn watch(world: &World) -> Self {
        let (socket, pid) = (world.agent.run_dir().join("nodelet.sock"), world.agent.pid());
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = Arc::clone(&over);
            move || watch(&socket, pid, &over)
        });
        Self { innocent: None, over, thread }
    }

    /// Checks what was seen: every request answered in time, memory below the ceiling, the innocent
    /// pod untouched.
    #[track_caller]
    pub fn finish(self, world: &World) -> Seen {
        let innocent = self.innocent.clone();
        let seen = self.finish_without_innocent(world);
        if let Some(id) = innocent {
            let status = world.agent.status().unwrap();
            assert!(status.runs(INNOCENT), "the innocent pod does not run: {status:?}");
            assert_eq!(status.restarts(INNOCENT, "main"), 0, "the innocent pod was restarted");
            assert_eq!(world.running_ids(INNOCENT), [id], "the innocent pod was replaced");
        }
        seen
    }

    /// As [`Self::finish`], for a test that does something to the innocent pod itself.
    #[track_caller]
    pub fn finish_without_innocent(self, world: &World) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        let seen = self.thread.join().unwrap();
        let log = || world.agent.log_tail(40);
        assert!(seen.unanswered.is_empty(), "requests failed: {seen:#?}\n{}", log());
        assert!(seen.requests > 0, "the watchdog never asked");
        assert!(seen.late.is_empty(), "answers took too long: {seen:?}\n{}", log());
        assert!(seen.peak_anon_kib < MEMORY_CEILING_KIB, "too much memory: {seen:?}\n{}", log());
        seen
    }
}

fn watch(socket: &Path, pid: u32, over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    // A short test may be over before this thread runs.
    while seen.requests == 0 || !over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let times = CpuTimes::read(pid);
        let answer = status::get(socket, "/status");
        let took = asked.elapsed();
        seen.requests += 1;
        seen.longest_answer = seen.longest_answer.max(took);
        if took > LONGEST_ANSWER {
            let allowed = times.allowed(LONGEST_ANSWER, took, pid);
            seen.late.extend((took > allowed).then_some((took, allowed)));
        }
        if let Err(err) = answer {
            seen.unanswered.push(err.to_string());
        }
        seen.peak_anon_kib = seen.peak_anon_kib.max(anon_kib(pid));
        pause(EVERY.saturating_sub(asked.elapsed()));
    }
    seen
}

/// RssAnon of a process in KiB; 0 when it is gone.
fn anon_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
