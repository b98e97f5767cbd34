//! Notifications to systemd: the agent is ready, its status line (`STATUS=`), and, if the service
//! has a watchdog, that its loops make progress.
//!
//! READY=1 is sent when all parts exist. This needs a valid configuration, the lock and the
//! sources, but not the runtime: an agent without a runtime is ready and reports the problem in its
//! status. The watchdog does not depend on the runtime either, because restarting the agent would
//! not help when containerd hangs. For the same reason, a manifest directory or a volume on a file
//! system that does not answer only appears in the status. A write of state files that does not end
//! counts as a loop that hangs.

use crate::{
    model::{NodeView, PodViews},
    notify,
};
use std::{ffi::OsString, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// Changes within this time are sent together.
const SETTLE: Duration = Duration::from_secs(1);
/// A loop without a heartbeat for this time hangs: three times its longest period.
const LATE: Duration = Duration::from_secs(180);
/// Longer than any process runs.
const NEVER: Duration = Duration::from_secs(3600 * 24 * 365);

/// The task.
#[derive(Debug)]
pub struct SystemdTask {
    /// The notification socket of systemd.
    pub socket: OsString,
    /// The watchdog interval; `None` without a watchdog.
    pub watchdog: Option<Duration>,
    /// The node's view, for `STATUS=`.
    pub node: watch::Receiver<Arc<NodeView>>,
    /// The pods' views, for `STATUS=`.
    pub pods: watch::Receiver<Arc<PodViews>>,
    /// The loops that the watchdog supervises.
    pub loops: Vec<Pulse>,
}

/// The heartbeat of a loop, and when it was last seen to change.
#[derive(Debug)]
pub struct Pulse {
    name: &'static str,
    beats: watch::Receiver<Duration>,
    seen: Instant,
}

impl Pulse {
    /// The heartbeat of a loop.
    #[must_use]
    pub fn new(name: &'static str, beats: watch::Receiver<Duration>) -> Self {
        Self { name, beats, seen: Instant::now() }
    }

    /// True when the loop hangs. Uses the clock of the timers, which stops while the machine is
    /// suspended, so a suspended machine makes no loop late.
    fn is_late(&mut self, now: Instant) -> bool {
        // The sender is gone when the loop has ended. The agent ends then, too.
        if self.beats.has_changed().unwrap_or(false) {
            self.beats.mark_unchanged();
            self.seen = now;
        }
        now.duration_since(self.seen) > LATE
    }
}

impl SystemdTask {
    /// Runs until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut told = None;
        let mut next_status = self.tell_status(&mut told);
        let interval = self.watchdog.map_or(NEVER, |watchdog| watchdog / 2);
        let mut next_sign = Instant::now();
        loop {
            let far = Instant::now() + NEVER;
            // Cancel-safe: every arm only waits, and the state is read again afterwards.
            tokio::select! {
                () = shutdown.cancelled() => {
                    let down = self.node.borrow().shutdown.is_some();
                    let containers = if down { "" } else { "; containers keep running" };
                    self.tell(&format!("STOPPING=1\nSTATUS=stopping{containers}\n"));
                    return;
                }
                Ok(()) = self.node.changed() => {
                    next_status.get_or_insert(Instant::now() + SETTLE);
                }
                Ok(()) = self.pods.changed() => {
                    next_status.get_or_insert(Instant::now() + SETTLE);
                }
                () = sleep_until(next_status.unwrap_or(far)) => {
                    next_status = self.tell_status(&mut told);
                }
                () = sleep_until(next_sign) => {
                    next_sign = Instant::now() + interval;
                    if self.watchdog.is_some() {
                        self.give_sign(Instant::now());
                    }
                }
            }
        }
    }

    fn give_sign(&mut self, now: Instant) {
        let late: Vec<&str> = self
            .loops
            .iter_mut()
            .filter_map(|pulse| pulse.is_late(now).then_some(pulse.name))
            .collect();
        if late.is_empty() {
            self.tell("WATCHDOG=1\n");
        } else {
            tracing::error!(
                loops = late.join(", "),
                "hangs: leaving the agent to systemd's watchdog"
            );
        }
    }

    /// One line for `systemctl status`.
    fn status(&mut self) -> String {
        let pods = self.pods.borrow_and_update();
        let running =
            pods.values().filter(|pod| pod.status.phase.as_deref() == Some("Running")).count();
        let mut line = format!("{running} of {} pods running", pods.len());
        let node = self.node.borrow_and_update();
        let node_troubles =
            [&node.shutdown, &node.runtime.not_ready, &node.runtime.network_not_ready];
        for trouble in node_troubles.into_iter().flatten() {
            line.push_str("; ");
            line.push_str(trouble);
        }
        if !node.warnings.is_empty() {
            line.push_str(&format!("; {} warnings, see nodelet status", node.warnings.len()));
        }
        // A line break would begin another assignment.
        line.replace(|c: char| c.is_control(), " ")
    }

    /// Tells the status if it is another than the one that was `told`; with the first one, that the
    /// agent is ready. Returns when to try again, if systemd's queue is full.
    fn tell_status(&mut self, told: &mut Option<String>) -> Option<Instant> {
        let status = self.status();
        let ready = if told.is_none() { "READY=1\n" } else { "" };
        if told.as_ref() == Some(&status) {
            return None;
        }
        if !self.tell(&format!("{ready}STATUS={status}\n")) {
            return Some(Instant::now() + SETTLE);
        }
        *told = Some(status);
        None
    }

    /// Returns false when systemd's queue is full.
    fn tell(&self, assignments: &str) -> bool {
        let Err(err) = notify::send(&self.socket, assignments) else { return true };
        tracing::warn!(%err, "cannot tell systemd how the agent is");
        err.kind() != std::io::ErrorKind::WouldBlock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    struct Bench {
        systemd: UnixDatagram,
        node: watch::Sender<Arc<NodeView>>,
        beats: watch::Sender<Duration>,
        shutdown: CancellationToken,
        _pods: watch::Sender<Arc<PodViews>>,
        _dir: tempfile::TempDir,
    }

    fn bench(watchdog: Option<Duration>) -> (Bench, SystemdTask) {
        let dir = tempfile::tempdir().unwrap();
        let systemd = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        systemd.set_nonblocking(true).unwrap();
        let (node, nodes) = watch::channel(Arc::<NodeView>::default());
        let (pods, views) = watch::channel(Arc::<PodViews>::default());
        let (beats, heartbeat) = watch::channel(Duration::ZERO);
        let task = SystemdTask {
            socket: dir.path().join("notify").into(),
            watchdog,
            node: nodes,
            pods: views,
            loops: vec![Pulse::new("workers", heartbeat)],
        };
        let shutdown = CancellationToken::new();
        (Bench { systemd, node, beats, shutdown, _pods: pods, _dir: dir }, task)
    }

    impl Bench {
        /// Everything that was told since the last look.
        fn told(&self) -> String {
            let (mut text, mut buffer) = (String::new(), [0; 4096]);
            while let Ok(length) = self.systemd.recv(&mut buffer) {
                text.push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
            text
        }
    }

    /// Waits until something was told.
    async fn next(bench: &Bench) -> String {
        for _ in 0..500 {
            let told = bench.told();
            if !told.is_empty() {
                return told;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nothing is told");
    }

    #[tokio::test]
    async fn the_status_says_what_is_wrong_with_the_runtime() {
        let (bench, task) = bench(None);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(task.run(bench.shutdown.clone()));
        assert_eq!(next(&bench).await, "READY=1\nSTATUS=0 of 0 pods running\n");
        bench.node.send_modify(|node| {
            Arc::make_mut(node).runtime.not_ready = Some("no\nanswer".to_owned());
        });
        assert_eq!(next(&bench).await, "STATUS=0 of 0 pods running; no answer\n");
        bench.shutdown.cancel();
        assert!(next(&bench).await.starts_with("STOPPING=1\n"));
        tasks.join_next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn that_it_is_ready_is_told_until_systemd_takes_it() {
        let (bench, task) = bench(None);
        let full = UnixDatagram::unbound().unwrap();
        full.set_nonblocking(true).unwrap();
        let socket = bench._dir.path().join("notify");
        while full.send_to(b"X=1\n", &socket).is_ok() {}
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(task.run(bench.shutdown.clone()));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let others = bench.told();
        assert!(others.starts_with("X=1\n") && !others.contains("READY=1"), "{others}");
        assert_eq!(next(&bench).await, "READY=1\nSTATUS=0 of 0 pods running\n");
    }

    #[tokio::test]
    async fn signs_of_life_come_twice_as_often_as_wanted() {
        let watchdog = Duration::from_millis(400);
        let (bench, task) = bench(Some(watchdog));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(task.run(bench.shutdown.clone()));
        let mut told = String::new();
        let begun = Instant::now();
        while told.matches("WATCHDOG=1\n").count() < 4 {
            told.push_str(&next(&bench).await);
        }
        assert!(begun.elapsed() >= watchdog * 3 / 2, "not more often than that");
        tasks.abort_all();
    }

    #[tokio::test]
    async fn watchdog_signs_stop_while_a_loop_does_not_come_round() {
        let (bench, mut task) = bench(Some(Duration::from_secs(60)));
        let begun = Instant::now();
        task.give_sign(begun + LATE / 2);
        assert_eq!(bench.told(), "WATCHDOG=1\n");
        task.give_sign(begun + LATE * 2);
        assert_eq!(bench.told(), "");
        bench.beats.send_replace(Duration::from_secs(1));
        task.give_sign(begun + LATE * 2);
        task.give_sign(begun + LATE * 3);
        assert_eq!(bench.told(), "WATCHDOG=1\nWATCHDOG=1\n");
    }
}
