//! What differs between versions of containerd: what it calls itself, and which events it has.

use crate::support::{
    agent::Settings,
    containerd::Suite,
    manifest::Pod,
    proxy::Call,
    say_loudly,
    status::Status,
    world::{Kind, SOON, World},
};
use nodelet::cri::v1;
use std::{collections::BTreeMap, ops::Range, time::Duration};
use tokio::time::Instant;
use tonic::Code;

/// Well below the time between two listings of everything while events arrive, and above that of
/// listings that follow one another after a connection.
const LISTED_LATELY: Range<Duration> = Duration::from_secs(2)..Duration::from_secs(4);

pub fn the_version_is_told(kind: Kind) {
    let Kind::Debian(suite) = kind else { panic!("for a Debian release") };
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    let status = world.wait_running("web");
    let version = &status.node.runtime.version;
    say_loudly(&format!("containerd of {}: {version}", suite.name()));
    let upstream = version.trim_start_matches('v').split(['~', '+', '-']).next().unwrap();
    assert_eq!(upstream, suite.version());
    // Where a suite moves on, nothing is asked of its version.
    match suite {
        Suite::Bookworm => assert!(upstream.starts_with("1.6."), "{version}"),
        Suite::Trixie => assert!(upstream.starts_with("1.7."), "{version}"),
        Suite::Sid => {}
    }
    world.finish();
}

/// Whether a call lists all containers of everybody.
fn lists_everything(call: &Call) -> bool {
    call.method == "ListContainers" && {
        let filter = call.request::<v1::ListContainersRequest>().filter;
        filter.is_none_or(|filter| filter == v1::ContainerFilter::default())
    }
}

/// Kills a container of `pod` and sees it restarted because an event told of its end: nobody has
/// listed everything in between.
#[track_caller]
pub fn restarted_by_an_event(world: &World, pod: &str) {
    let id = world.running_id(pod, "main");
    let restarts = world.agent.status().unwrap().restarts(pod, "main");
    let last_listing = || world.proxy.calls().into_iter().rfind(lists_everything).map(|c| c.at);
    let lately = |at: &Option<Instant>| at.is_some_and(|at| LISTED_LATELY.contains(&at.elapsed()));
    world.wait_until("everything was listed a moment ago", last_listing, lately);
    let killed = Instant::now();
    world.kill_container(&id);
    world.wait("it is restarted", |s| s.restarts(pod, "main") == restarts + 1 && s.runs(pod));
    let calls = world.proxy.calls();
    let since = || calls.iter().filter(|call| call.at >= killed);
    // The restart begins with it, and may take long.
    let first = since().find(|call| call.mutating.is_some() && call.is_for(pod)).unwrap();
    let listings: Vec<&Call> =
        since().filter(|call| call.at < first.at && lists_everything(call)).collect();
    assert!(listings.is_empty(), "{listings:?} came before {first:?}");
}

pub fn ends_are_told_by_events(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait("events arrive", |s| s.runs("web") && s.node.pleg.events_connected);
    restarted_by_an_event(&world, "web");
    world.finish();
}

/// As with a runtime that is no containerd. containerd 1.6 has none: there the frequent listing
/// does it.
pub fn ends_are_told_by_cri_events_where_there_are_any(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    world.proxy.on("Subscribe").fail(Code::Unimplemented, "unknown service");
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let asked = || {
        let calls = world.proxy.calls();
        calls.into_iter().filter(|call| call.method == "GetContainerEvents").count()
    };
    world.wait_until("CRI events are asked for", asked, |n| *n > 0);
    if kind == Kind::Debian(Suite::Bookworm) {
        world.wait("it is said that there are none", |s| !s.node.pleg.events_connected);
        world.kill_container(&world.running_id("web", "main"));
        world.wait("it is restarted", |s| s.restarts("web", "main") == 1 && s.runs("web"));
    } else {
        world.wait("events arrive", |status| status.node.pleg.events_connected);
        restarted_by_an_event(&world, "web");
    }
    world.finish();
}

/// Ids of what runs, with pids, by pod.
type Running = BTreeMap<String, Vec<(String, i32)>>;

fn running(world: &World, pods: &[String]) -> Running {
    let with_pid = |id: String| (id.clone(), world.cri.container_pid(&id));
    let of = |pod: &String| world.running_ids(pod).into_iter().map(with_pid).collect();
    pods.iter().map(|pod| (pod.clone(), of(pod))).collect()
}

fn sandbox_ids(world: &World) -> Vec<String> {
    let mut ids: Vec<String> = world.cri.sandboxes().into_iter().map(|s| s.id).collect();
    ids.sort();
    ids
}

/// One data directory carried from release to release under running pods.
pub fn upgraded_in_place(suites: [Suite; 3]) {
    const PODS: usize = 20;
    let world = World::start(Kind::Debian(suites[0]));
    let quiet: Vec<String> = (0..PODS - 2).map(|n| format!("pod{n:02}")).collect();
    for name in &quiet {
        world.drop_pod(&Pod::running(name));
    }
    // One for each upgrade: a second restart would have to wait for its back-off, and listings go
    // on meanwhile.
    let dying = ["dies1", "dies2"];
    for name in dying {
        world.drop_pod(&Pod::running(name));
    }
    let all_run = |status: &Status| {
        quiet.iter().all(|pod| status.runs(pod) && status.restarts(pod, "main") == 0)
            && dying.iter().all(|pod| status.runs(pod))
    };
    world.wait_for(3 * SOON, "all run", all_run);
    let (containers, sandboxes) = (running(&world, &quiet), sandbox_ids(&world));
    for (suite, dies) in suites.into_iter().skip(1).zip(dying) {
        world.proxy.forget_calls();
        world.runtime.containerd().upgrade(suite);
        world.wait_for(2 * SOON, "the new version is seen, and events arrive", |status| {
            let runtime = &status.node.runtime;
            runtime.version.contains(&suite.version())
                && runtime.not_ready.is_none()
                && status.node.pleg.events_connected
                && all_run(status)
        });
        assert_eq!(running(&world, &quiet), containers, "after {suite:?}");
        assert_eq!(sandbox_ids(&world), sandboxes, "after {suite:?}");
        restarted_by_an_event(&world, dies);
        let calls = world.proxy.mutating_calls();
        let others: Vec<_> = calls.iter().filter(|call| !call.is_for(dies)).collect();
        assert!(others.is_empty(), "{others:#?}");
    }
    // What the oldest one made, the newest one ends; and what the newest one makes runs beside it.
    world.remove("pod00.yaml");
    world.wait_gone("pod00");
    world.drop_pod(&Pod::running("new"));
    world.wait_running("new");
    world.agent.kill();
    world.proxy.forget_calls();
    world.agent.start();
    let quiet = &quiet[1..];
    let found = |s: &Status| quiet.iter().all(|pod| s.runs(pod)) && s.runs("new");
    world.wait_for(2 * SOON, "all is found again", found);
    assert_eq!(world.proxy.mutating_calls().len(), 0, "{:#?}", world.proxy.mutating_calls());
    let mut expected = containers;
    expected.remove("pod00");
    assert_eq!(running(&world, quiet), expected);
    world.finish();
}
