//! The loop against a fake runtime on a socket.

mod fake;

use super::*;
use crate::cri::v1::ContainerState::{ContainerExited, ContainerRunning};
use fake::Fake;
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};
use tokio::{task::JoinSet, time::timeout};

const PATIENCE: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_secs(3600);

struct Bench {
    fake: Fake,
    handle: PlegHandle,
    updates: mpsc::Receiver<PlegUpdate>,
    server: JoinSet<()>,
    socket: PathBuf,
    _pleg: JoinSet<()>,
    _dir: tempfile::TempDir,
}

/// A loop that lists on its own only in the beginning and when events begin to arrive.
fn lazy() -> PlegSettings {
    PlegSettings {
        relist_period: NEVER,
        relist_period_with_events: NEVER,
        ..PlegSettings::new(crate::clock::now)
    }
}

/// A loop that lists all the time.
fn eager() -> PlegSettings {
    PlegSettings {
        relist_period: Duration::from_millis(20),
        relist_period_with_events: Duration::from_millis(20),
        ..PlegSettings::new(crate::clock::now)
    }
}

fn bench(settings: PlegSettings, prepare: impl FnOnce(&Fake)) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri.sock");
    let fake = Fake::default();
    prepare(&fake);
    let server = fake.serve(&socket);
    let client = RuntimeClient::new(socket.to_str().unwrap(), None, PATIENCE).unwrap();
    let (pleg, handle, updates) = Pleg::new(client, settings);
    let mut set = JoinSet::new();
    set.spawn(pleg.run(CancellationToken::new()));
    Bench { fake, handle, updates, server, socket, _pleg: set, _dir: dir }
}

fn key(pod: &str) -> PodKey {
    PodKey::new("default", pod)
}

impl Bench {
    async fn update(&mut self) -> PlegUpdate {
        timeout(PATIENCE, self.updates.recv()).await.expect("no update").unwrap()
    }

    /// The next picture of `pod` that is as wanted.
    async fn seen(&mut self, pod: &str, wanted: impl Fn(&ObservedPod) -> bool) -> Arc<ObservedPod> {
        let mut last = None;
        let found = timeout(PATIENCE, async {
            while let Some(update) = self.updates.recv().await {
                for (_, observed) in update.pods.into_iter().filter(|(k, _)| *k == key(pod)) {
                    if wanted(&observed) {
                        return Some(observed);
                    }
                    last = Some(observed);
                }
            }
            None
        });
        let found = found.await;
        found.ok().flatten().unwrap_or_else(|| panic!("{pod} was not seen as wanted: {last:#?}"))
    }

    async fn healthy_when(&self, wanted: impl Fn(&Health) -> bool) -> Arc<Health> {
        let mut health = self.handle.health();
        let found =
            timeout(PATIENCE, health.wait_for(|h| wanted(h))).await.map(|h| h.unwrap().clone());
        found.unwrap_or_else(|_| panic!("not as wanted: {:#?}", self.handle.health().borrow()))
    }
}

fn is_running(pod: &ObservedPod) -> bool {
    pod.containers.first().is_some_and(|c| c.state.is_running())
}

fn is_exited(pod: &ObservedPod) -> bool {
    pod.containers.first().is_some_and(|c| !c.state.is_running())
}

#[tokio::test]
async fn the_first_update_has_everything_and_later_ones_what_changed() {
    let mut bench = bench(eager(), |fake| {
        fake.world.lock().unwrap().no_events = true;
        fake.set("a", ContainerRunning);
        fake.set("b", ContainerRunning);
    });
    let first = bench.update().await;
    assert!(first.complete);
    assert_eq!(first.listed.len(), 2);
    let mut inspected = BTreeSet::new();
    while inspected.len() < 2 {
        inspected.extend(bench.update().await.pods.into_iter().map(|(key, _)| key));
    }
    bench.fake.set("b", ContainerExited);
    let changed = loop {
        let update = bench.update().await;
        if !update.pods.is_empty() {
            break update;
        }
        assert!(update.complete);
    };
    assert_eq!(changed.pods.len(), 1);
    assert!(is_exited(&changed.pods[0].1));
    assert_eq!(bench.fake.world.lock().unwrap().inspections, 3);
    let health = bench.healthy_when(|h| h.unhealthy.is_none()).await;
    assert!(!health.events_connected && health.hung.is_empty());
}

#[tokio::test]
async fn a_time_in_suspend_makes_nothing_unhealthy() {
    static SUSPENDED: AtomicU64 = AtomicU64::new(0);
    fn clock() -> Now {
        let now = crate::clock::now();
        let suspended = Duration::from_secs(SUSPENDED.load(Ordering::Relaxed));
        Now { boot: now.boot + suspended, ..now }
    }
    let settings = PlegSettings { clock, status_period: Duration::from_millis(20), ..lazy() };
    let bench = bench(settings, |_| {});
    bench.healthy_when(|h| h.unhealthy.is_none() && h.runtime.not_ready.is_none()).await;
    SUSPENDED.store(3600, Ordering::Relaxed);
    bench.fake.world.lock().unwrap().network_down = true;
    let health = bench.healthy_when(|h| h.runtime.network_not_ready.is_some()).await;
    assert_eq!((&health.unhealthy, &health.runtime.not_ready), (&None, &None));
}

#[tokio::test]
async fn who_asks_is_answered_from_a_listing_that_began_after() {
    let mut bench = bench(lazy(), |fake| fake.set("a", ContainerRunning));
    bench.seen("a", is_running).await;
    bench.healthy_when(|h| h.events_connected).await;
    for pod in ["a", "none"] {
        let asked = crate::clock::now().boot;
        bench.handle.look_now(key(pod)).await.unwrap();
        let observed = bench.seen(pod, |observed| observed.listed_at >= asked).await;
        assert_eq!(observed.is_empty(), pod == "none");
    }
}

#[tokio::test]
async fn many_questions_share_a_listing() {
    let mut bench = bench(lazy(), |fake| fake.set("a", ContainerRunning));
    bench.seen("a", is_running).await;
    bench.healthy_when(|h| h.events_connected && h.last_relist.is_some()).await;
    let before = bench.fake.world.lock().unwrap().listings;
    for n in 0..50 {
        bench.handle.look_now(key(&format!("p{n}"))).await.unwrap();
    }
    let mut answered = BTreeSet::new();
    while answered.len() < 50 {
        answered.extend(bench.update().await.pods.into_iter().map(|(key, _)| key));
    }
    let after = bench.fake.world.lock().unwrap().listings;
    assert!(after.0 + after.1 - before.0 - before.1 < 10, "{before:?} {after:?}");
}

#[tokio::test]
async fn an_event_is_followed_until_the_runtime_shows_it() {
    let mut bench = bench(lazy(), |fake| fake.set("a", ContainerRunning));
    bench.seen("a", is_running).await;
    bench.healthy_when(|h| h.events_connected).await;
    bench.fake.tell_exit("a");
    // The runtime's own view is late.
    let told = bench.seen("a", |pod| pod.containers[0].ended_with.is_some()).await;
    assert_eq!((is_running(&told), told.containers[0].ended_with), (true, Some(3)));
    tokio::time::sleep(Duration::from_millis(40)).await;
    bench.fake.set("a", ContainerExited);
    let ended = bench.seen("a", is_exited).await;
    assert_eq!(ended.containers[0].ended_with, None);
}

#[tokio::test]
async fn an_end_that_shows_late_is_looked_for_again_and_again() {
    let settings = PlegSettings { relist_period: Duration::from_millis(20), ..lazy() };
    let mut bench = bench(settings, |fake| fake.set("a", ContainerRunning));
    bench.seen("a", is_running).await;
    bench.healthy_when(|h| h.events_connected).await;
    bench.fake.tell_exit("a");
    bench.seen("a", |pod| pod.containers[0].ended_with.is_some()).await;
    // Longer than the end is asked for after its event.
    tokio::time::sleep(inspect::LAG + Duration::from_millis(200)).await;
    bench.fake.set("a", ContainerExited);
    bench.seen("a", is_exited).await;
}

#[tokio::test]
async fn an_end_is_shown_without_a_listing() {
    let mut bench = bench(lazy(), |fake| fake.set("a", ContainerRunning));
    bench.seen("a", is_running).await;
    bench.healthy_when(|h| h.events_connected).await;
    bench.fake.world.lock().unwrap().lists_fail = true;
    bench.fake.set("a", ContainerExited);
    bench.fake.tell_exit("a");
    let ended = bench.seen("a", is_exited).await;
    assert_eq!(ended.sandboxes.len(), 1, "the rest as listed before");
    bench.fake.world.lock().unwrap().lists_fail = false;
    bench.seen("a", |pod| pod.listed_at > ended.listed_at).await;
}

#[tokio::test]
async fn an_end_reported_before_its_container_is_not_forgotten() {
    let mut bench = bench(lazy(), |_| {});
    bench.update().await;
    bench.healthy_when(|h| h.events_connected).await;
    bench.fake.set("a", ContainerRunning);
    bench.fake.tell_exit("a");
    bench.handle.look_now(key("a")).await.unwrap();
    // The runtime still shows it running.
    let told =
        bench.seen("a", |pod| pod.containers.first().is_some_and(|c| c.ended_with.is_some()));
    assert_eq!(told.await.containers[0].ended_with, Some(3));
    bench.fake.set("a", ContainerExited);
    bench.seen("a", is_exited).await;
}

#[tokio::test]
async fn the_first_listing_waits_for_no_inspection() {
    let settings = PlegSettings { inspect_patience: NEVER, ..lazy() };
    let mut bench = bench(settings, |fake| {
        fake.set("a", ContainerRunning);
        fake.set("b", ContainerRunning);
        fake.world.lock().unwrap().hang.insert("a-c".to_owned());
    });
    let first = bench.update().await;
    assert_eq!((first.complete, first.listed.len()), (true, 2));
    bench.seen("b", is_running).await;
    bench.fake.world.lock().unwrap().hang.clear();
    bench.fake.released.notify_waiters();
    bench.seen("a", is_running).await;
}

#[tokio::test]
async fn pods_that_seem_unchanged_leave_room_for_others() {
    let settings = PlegSettings { inspect_patience: NEVER, ..lazy() };
    let old: Vec<String> = (0..20).map(|n| format!("old{n}")).collect();
    let mut bench = bench(settings, |fake| {
        for pod in &old {
            fake.set(pod, ContainerRunning);
            fake.world.lock().unwrap().hang.insert(format!("{pod}-c"));
        }
        fake.set("z", ContainerExited);
    });
    let first = bench.update().await;
    assert_eq!((first.complete, first.listed.len()), (true, 21));
    bench.seen("z", is_exited).await;
    bench.fake.set("new", ContainerRunning);
    bench.handle.look_now(key("new")).await.unwrap();
    bench.seen("new", is_running).await;
    // Somebody asks for one that would come last.
    bench.fake.world.lock().unwrap().hang.remove("old9-c");
    bench.handle.look_now(key("old9")).await.unwrap();
    bench.seen("old9", is_running).await;
    bench.fake.world.lock().unwrap().hang.clear();
    bench.fake.released.notify_waiters();
    for pod in old.iter().filter(|pod| *pod != "old9") {
        bench.handle.look_now(key(pod)).await.unwrap();
        bench.seen(pod, is_running).await;
    }
}

#[tokio::test]
async fn a_hanging_inspection_hangs_its_pod_only() {
    let settings = PlegSettings { inspect_patience: Duration::from_millis(300), ..eager() };
    let mut bench = bench(settings, |fake| {
        fake.set("a", ContainerRunning);
        fake.set("b", ContainerRunning);
        fake.world.lock().unwrap().hang.insert("a-c".to_owned());
    });
    let hung = bench.seen("a", |_| true).await;
    assert_eq!(hung.inspect_error.as_deref(), Some("ContainerStatus of a-c does not answer"));
    bench.fake.set("b", ContainerExited);
    bench.seen("b", |pod| is_exited(pod) && pod.inspect_error.is_none()).await;
    let health = bench.healthy_when(|h| !h.hung.is_empty()).await;
    assert_eq!((health.hung[0].key.clone(), health.unhealthy.as_deref()), (key("a"), None));
    bench.fake.world.lock().unwrap().hang.clear();
    bench.fake.released.notify_waiters();
    bench.seen("a", |pod| pod.inspect_error.is_none() && is_running(pod)).await;
    bench.healthy_when(|h| h.hung.is_empty()).await;
}

#[tokio::test]
async fn a_question_outlives_listings_that_fail() {
    let mut bench = bench(lazy(), |fake| {
        fake.set("a", ContainerRunning);
        fake.world.lock().unwrap().lists_fail = true;
    });
    bench.handle.look_now(key("a")).await.unwrap();
    let health = bench.healthy_when(|h| h.runtime.not_ready.is_none()).await;
    assert_eq!(health.unhealthy.as_deref(), Some("pleg has yet to be successful"));
    bench.fake.world.lock().unwrap().lists_fail = false;
    bench.seen("a", is_running).await;
    bench.healthy_when(|h| h.unhealthy.is_none()).await;
}

#[tokio::test]
async fn a_runtime_that_comes_back_is_looked_at_anew() {
    let mut bench = bench(lazy(), |fake| fake.set("a", ContainerRunning));
    bench.seen("a", is_running).await;
    bench.healthy_when(|h| h.events_connected).await;
    bench.server.shutdown().await;
    std::fs::remove_file(&bench.socket).unwrap();
    bench.healthy_when(|h| !h.events_connected).await;
    bench.fake.set("a", ContainerExited);
    bench.server = bench.fake.serve(&bench.socket);
    bench.seen("a", is_exited).await;
    bench.healthy_when(|h| h.events_connected).await;
}

#[tokio::test]
async fn the_runtimes_conditions_are_published() {
    let settings = PlegSettings { status_period: Duration::from_millis(20), ..lazy() };
    let bench = bench(settings, |fake| fake.world.lock().unwrap().network_down = true);
    let health = bench.healthy_when(|h| h.runtime.not_ready.is_none()).await;
    assert_eq!((&*health.runtime.name, &*health.runtime.version), ("fake", "1"));
    let network = health.runtime.network_not_ready.clone().unwrap();
    assert!(network.starts_with("container runtime network not ready: NetworkReady=false"));
    bench.fake.world.lock().unwrap().network_down = false;
    bench.healthy_when(|h| h.runtime.network_not_ready.is_none()).await;
}
