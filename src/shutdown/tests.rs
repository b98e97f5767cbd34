//! The real listener and conductor against a logind of the test's own.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../tests/support/logind.rs"]
mod fake;

use super::*;
use crate::{event, model::ShutdownPeriod};
use fake::{FakeLogind, LOGIND, OWNER};
use std::{collections::BTreeSet, fs, sync::Arc};
use tokio::task::JoinSet;

/// The task between a fake logind and workers that the test plays.
struct Bench {
    logind: FakeLogind,
    machine: watch::Receiver<MachineState>,
    ending: watch::Sender<Ending>,
    stage: watch::Receiver<Stage>,
    trouble: watch::Receiver<Vec<String>>,
    log: watch::Receiver<Arc<event::EventLog>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    dir: tempfile::TempDir,
}

/// Times of the groups with priorities 0, 1, 2, ...
fn bench(seconds: &[u32], prepare: impl FnOnce(&FakeLogind)) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let (bus, drop_in) = (dir.path().join("bus"), dir.path().join("logind.conf.d/99-nodelet.conf"));
    let logind = FakeLogind::start(&bus, &drop_in);
    prepare(&logind);
    let groups = seconds.iter().zip(0..);
    let groups = groups.map(|(&seconds, priority)| ShutdownPeriod { priority, seconds });
    let (recorder, events, log) = event::channel();
    let (ending, endings) = watch::channel(Ending::default());
    let task = ShutdownTask {
        places: Places { bus, drop_in },
        periods: ShutdownPeriods::new(groups.collect()),
        machine: watch::Sender::default(),
        ending: endings,
        stage: watch::Sender::default(),
        trouble: watch::Sender::default(),
        events: recorder,
    };
    let (machine, stage) = (task.machine.subscribe(), task.stage.subscribe());
    let trouble = task.trouble.subscribe();
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(events.run(stop.clone()));
    tasks.spawn(task.run(stop.clone()));
    Bench { logind, machine, ending, stage, trouble, log, stop, tasks, dir }
}

impl Bench {
    /// Waits until something is so.
    async fn until<T: PartialEq + std::fmt::Debug>(&self, wanted: T, look: impl Fn(&Self) -> T) {
        for _ in 0..1000 {
            if look(self) == wanted {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(look(self), wanted);
    }

    fn turn(&self) -> Option<usize> {
        self.machine.borrow().shutdown().map(|shutdown| shutdown.turn)
    }

    /// The workers have taken in what they were told last, and these pods are left.
    fn left(&self, pods: &[&str]) {
        let left: BTreeSet<_> =
            pods.iter().map(|name| crate::model::PodKey::new("default", name)).collect();
        let shutdown = self.machine.borrow().shutdown().cloned();
        self.ending.send_replace(Ending { shutdown, left });
    }

    fn events(&self) -> Vec<String> {
        let log = self.log.borrow();
        let mut told: Vec<_> =
            log.entries.iter().map(|entry| entry.event.message.clone()).collect();
        told.sort();
        told
    }
}

#[tokio::test]
async fn groups_end_in_order_and_then_the_lock_is_released() {
    let bench = bench(&[60, 60], |_| {});
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    assert_eq!(bench.turn(), None);
    bench.logind.prepare_for_shutdown(true).await;
    bench.until(Some(0), Bench::turn).await;
    assert_eq!(*bench.stage.borrow(), Stage::Ending);
    // An answer to nothing: the workers have not been told yet.
    bench.ending.send_replace(Ending::default());
    bench.left(&["a", "b"]);
    sleep(Duration::from_millis(50)).await;
    bench.left(&["b"]);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.turn(), Some(0), "one is left");
    bench.left(&[]);
    bench.until(Some(1), Bench::turn).await;
    assert_eq!(bench.logind.locks(), (1, 1), "held while the last ones end");
    bench.left(&[]);
    bench.until((1, 0), |bench| bench.logind.locks()).await;
    assert_eq!(*bench.stage.borrow(), Stage::Over);
    assert_eq!(bench.turn(), Some(1), "nobody starts anything again");
    bench.until(vec!["Shutdown manager detected shutdown event".to_owned()], Bench::events).await;
}

#[tokio::test]
async fn a_group_has_its_time_and_no_more() {
    let bench = bench(&[1, 0, 1], |_| {});
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    let begun = Instant::now();
    bench.logind.prepare_for_shutdown(true).await;
    bench.until(Some(0), Bench::turn).await;
    bench.left(&["stubborn"]);
    bench.until(Some(2), Bench::turn).await;
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(bench.logind.locks(), (1, 1));
    bench.until((1, 0), |bench| bench.logind.locks()).await;
    assert!(begun.elapsed() >= Duration::from_secs(2));
    assert_eq!(*bench.stage.borrow(), Stage::Over);
}

#[tokio::test]
async fn a_shutdown_that_is_called_off_takes_a_new_lock() {
    let bench = bench(&[60], |_| {});
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    bench.logind.prepare_for_shutdown(true).await;
    bench.until(Some(0), Bench::turn).await;
    bench.left(&[]);
    bench.until((1, 0), |bench| bench.logind.locks()).await;
    bench.logind.prepare_for_shutdown(false).await;
    bench.until(None, Bench::turn).await;
    bench.until((2, 1), |bench| bench.logind.locks()).await;
    assert_eq!(*bench.stage.borrow(), Stage::Up);
    let cancelled = "Shutdown manager detected shutdown cancellation".to_owned();
    let begun = "Shutdown manager detected shutdown event".to_owned();
    bench.until(vec![cancelled, begun], Bench::events).await;
    bench.logind.prepare_for_shutdown(true).await;
    bench.until(Some(0), Bench::turn).await;
}

#[tokio::test]
async fn logind_is_told_to_wait_longer_where_it_has_to() {
    let bench = bench(&[20, 10], |_| {});
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    let calls = ["KillUnit systemd-logind.service all 1", "Inhibit shutdown nodelet delay"];
    assert_eq!(bench.logind.calls(), calls);
    let dir = bench.dir.path().join("logind.conf.d");
    let text = fs::read_to_string(dir.join("99-nodelet.conf")).unwrap();
    assert!(text.ends_with("[Login]\nInhibitDelayMaxSec=30\n"), "{text}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "nothing beside it");
    assert!(bench.trouble.borrow().is_empty());
}

#[tokio::test]
async fn nothing_is_written_where_logind_waits_long_enough() {
    let bench = bench(&[20, 10], |logind| logind.set(|s| s.delay = Duration::from_secs(30)));
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    assert_eq!(bench.logind.calls(), ["Inhibit shutdown nodelet delay"]);
    assert!(!bench.dir.path().join("logind.conf.d").exists());
}

#[tokio::test]
async fn a_delay_that_stays_too_short_is_told_and_used() {
    let bench = bench(&[30], |logind| logind.set(|state| state.drop_in = None));
    let told = "pods need 30s when the machine shuts down, but logind's InhibitDelayMaxSec is 5s: \
                another setting overrides it";
    // Published after logind has given the lock.
    bench.until(vec![told.to_owned()], |bench| bench.trouble.borrow().clone()).await;
    assert_eq!(bench.logind.locks(), (1, 1));
}

#[tokio::test]
async fn the_lock_of_a_logind_without_systemd_is_taken() {
    let bench = bench(&[30], |logind| logind.set(|state| state.without_systemd = true));
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    let told = "pods need 30s when the machine shuts down, but logind's InhibitDelayMaxSec is 5s: \
                KillUnit: org.freedesktop.DBus.Error.ServiceUnknown: nobody";
    bench.until(vec![told.to_owned()], |bench| bench.trouble.borrow().clone()).await;
    assert_eq!(bench.logind.connections(), 1, "the connection is kept");
}

#[tokio::test]
async fn the_lock_is_held_while_the_bus_is_away() {
    let mut bench = bench(&[60], |_| {});
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    bench.logind.restart_bus().await;
    assert_eq!(bench.logind.locks(), (1, 1));
    bench.until((2, 1), |bench| bench.logind.locks()).await;
    bench.logind.prepare_for_shutdown(true).await;
    bench.until(Some(0), Bench::turn).await;
    bench.left(&["a"]);
    bench.logind.restart_bus().await;
    sleep(AGAIN * 2).await;
    assert_eq!(bench.turn(), Some(0), "the machine still goes down");
    assert_eq!(bench.logind.locks(), (2, 1), "and waits");
    bench.left(&[]);
    bench.until((2, 0), |bench| bench.logind.locks()).await;
}

#[tokio::test]
async fn a_good_connection_ends_a_row_of_losses() {
    let dir = tempfile::tempdir().unwrap();
    let (bus, drop_in) = (dir.path().join("bus"), dir.path().join("drop-in.conf"));
    let mut fake = FakeLogind::start(&bus, &drop_in);
    let (tell, mut told) = mpsc::channel(TOLD);
    let places = Places { bus, drop_in };
    let wanted = Duration::from_secs(1);
    let listener = Listener { places, wanted, tell, trouble: watch::Sender::default() };
    let mut lost = true;
    let logind = Logind::connect(&listener.places.bus).await.unwrap();
    let lose = async {
        while !matches!(told.recv().await, None | Some(Told::Lock(_))) {}
        fake.restart_bus().await;
    };
    let (error, ()) = tokio::join!(listener.listen(logind, &mut lost), lose);
    assert!(error.is_err() && !lost);
    lost = true;
    let logind = Logind::connect(&listener.places.bus).await.unwrap();
    fake.restart_bus().await;
    assert!(listener.listen(logind, &mut lost).await.is_err());
    assert!(lost, "logind has not answered");
}

#[tokio::test]
async fn an_agent_that_comes_during_a_shutdown_goes_on_with_it() {
    let bench = bench(&[60], |logind| logind.set(|state| state.preparing = true));
    bench.until(Some(0), Bench::turn).await;
    assert_eq!(bench.logind.locks(), (0, 0));
    bench.left(&[]);
    bench.until(Stage::Over, |bench| *bench.stage.borrow()).await;
}

#[tokio::test]
async fn pods_wait_for_the_first_answer_of_logind() {
    let late = Duration::from_millis(500);
    let late = |logind: &FakeLogind| logind.set(|state| state.answers_after = late);
    let machine = |bench: &Bench| bench.machine.borrow().clone();
    let up = bench(&[60], late);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(machine(&up), MachineState::Unknown);
    up.until(MachineState::Up, machine).await;
    let down = bench(&[60], |logind| {
        late(logind);
        logind.set(|state| state.preparing = true);
    });
    let mut states = down.machine.clone();
    states.changed().await.unwrap();
    assert_eq!(down.turn(), Some(0), "never up in between");
}

#[tokio::test]
async fn pods_do_not_wait_for_a_logind_that_hangs_or_is_not_there() {
    let hour = Duration::from_secs(3600);
    let hung = bench(&[60], |logind| logind.set(|state| state.answers_after = hour));
    let begun = Instant::now();
    let mut states = hung.machine.clone();
    states.changed().await.unwrap();
    assert_eq!(*states.borrow(), MachineState::Up);
    assert!(begun.elapsed() >= FIRST_ANSWER && begun.elapsed() < FIRST_ANSWER * 3);

    let absent: fn() -> Bench = || {
        let error = "org.freedesktop.DBus.Error.ServiceUnknown";
        bench(&[60], |logind| logind.set(|state| state.away = Some(error)))
    };
    let no_bus = || bench(&[60], |logind| fs::remove_file(logind.bus()).unwrap());
    let no_time = || bench(&[0], |_| {});
    for make in [absent, no_bus, no_time] {
        let mut quickest = Duration::MAX;
        // The machine may be busy now and then.
        for _ in 0..3 {
            let bench = make();
            let begun = Instant::now();
            bench.until(MachineState::Up, |bench| bench.machine.borrow().clone()).await;
            quickest = quickest.min(begun.elapsed());
        }
        assert!(quickest < FIRST_ANSWER, "{quickest:?}");
    }
}

#[tokio::test]
async fn only_logind_is_believed() {
    let bench = bench(&[60], |_| {});
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    let manager = "org.freedesktop.login1.Manager";
    bench.logind.signal(":1.66", manager, "PrepareForShutdown", &true).await;
    bench.logind.signal(OWNER, "org.example.Manager", "PrepareForShutdown", &true).await;
    bench.logind.signal(OWNER, manager, "PrepareForSleep", &true).await;
    let changed = (LOGIND, OWNER, ":1.66");
    bench.logind.signal(":1.66", "org.freedesktop.DBus", "NameOwnerChanged", &changed).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!((bench.turn(), bench.logind.locks()), (None, (1, 1)));
    bench.logind.prepare_for_shutdown(true).await;
    bench.until(Some(0), Bench::turn).await;
}

#[tokio::test]
async fn a_logind_that_comes_later_is_used() {
    for error in ["ServiceUnknown", "Spawn.ChildExited", "AccessDenied"] {
        let error: &'static str = format!("org.freedesktop.DBus.Error.{error}").leak();
        let bench = bench(&[60], |logind| logind.set(|state| state.away = Some(error)));
        sleep(AGAIN + AGAIN / 5).await;
        assert_eq!(bench.logind.locks(), (0, 0));
        assert_eq!(bench.logind.connections(), 1, "nobody asks again and again: {error}");
        bench.logind.set(|state| state.away = None);
        let changed = (LOGIND, "", OWNER);
        let bus = "org.freedesktop.DBus";
        bench.logind.signal(bus, bus, "NameOwnerChanged", &changed).await;
        bench.until((1, 1), |bench| bench.logind.locks()).await;
    }
}

#[tokio::test]
async fn an_agent_that_stops_lets_go_and_ends_nothing() {
    let mut bench = bench(&[60], |_| {});
    bench.until((1, 1), |bench| bench.logind.locks()).await;
    bench.stop.cancel();
    while bench.tasks.join_next().await.is_some() {}
    assert_eq!((bench.turn(), bench.logind.locks()), (None, (1, 0)));
}

#[tokio::test]
async fn without_time_for_pods_nobody_is_asked() {
    let bench = bench(&[0, 0], |_| {});
    sleep(Duration::from_millis(100)).await;
    assert_eq!(bench.logind.connections(), 0);
}
