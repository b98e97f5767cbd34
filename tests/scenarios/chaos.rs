//! Many things going wrong at random, against a model of what should run: whatever happened, once
//! it stops, every pod that is wanted runs as last written, once, and nothing else is left.

use super::writes::file;
use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    proxy::EventFault,
    random::Random,
    world::{Kind, World},
};
use nodelet::cri::v1;
use std::{collections::BTreeMap, fmt::Write as _, fs, time::Duration};
use tokio::time::Instant;

const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
/// Long enough for a back-off of 20 s and a pod of several containers.
const SETTLED: Duration = Duration::from_secs(90);

/// What the directory says: pod to version.
type Model = BTreeMap<&'static str, usize>;

fn pod(name: &str, version: usize) -> Pod {
    let pod = Pod::running(name).env("VERSION", &version.to_string());
    // Odd versions are bigger, so that edits change the shape of a pod too.
    if version % 2 == 1 { pod.init("setup", "true").sidecar("proxy", FOREVER) } else { pod }
}

/// One thing that happens; gives its description.
fn happen(world: &World, model: &mut Model, random: &mut Random, runtime_dies: bool) -> String {
    let name = *random.pick(&NAMES);
    let version = model.get(name).copied();
    match (random.below(13), version) {
        (0..=4, None) => {
            model.insert(name, 0);
            world.drop_pod(&pod(name, 0));
            format!("drop {name}")
        }
        (0..=1, Some(version)) => {
            model.insert(name, version + 1);
            world.drop_pod(&pod(name, version + 1));
            format!("edit {name}")
        }
        (2, Some(_)) => {
            model.remove(name);
            world.remove(&format!("{name}.yaml"));
            format!("remove {name}")
        }
        (3, Some(version)) => {
            // Broken and mended in one breath, or by and by.
            fs::write(world.manifest_path(&format!("{name}.yaml")), "kind: [").unwrap();
            crate::support::pause(Duration::from_millis(u64::try_from(random.below(800)).unwrap()));
            world.drop_pod(&pod(name, version));
            format!("break and mend {name}")
        }
        (5..=6, Some(_)) => {
            let running = world.running_ids(name);
            if running.is_empty() {
                return format!("{name} has nothing to kill");
            }
            // It may have gone meanwhile: whoever kills at random kills the dead too.
            let id: &String = random.pick(&running);
            world.kill_container_if_there(id);
            format!("kill a container of {name}")
        }
        (7, Some(_)) => {
            let ready = |s: &v1::PodSandbox| s.state() == v1::PodSandboxState::SandboxReady;
            if let Some(sandbox) = world.sandboxes(name).into_iter().find(ready) {
                world.kill_sandbox_if_there(&sandbox.id);
            }
            format!("kill the sandbox of {name}")
        }
        (8, _) if runtime_dies => {
            world.kill_runtime();
            crate::support::pause(Duration::from_millis(
                u64::try_from(random.below(1500)).unwrap(),
            ));
            world.runtime.start_again();
            "kill the runtime".to_owned()
        }
        (9, _) => {
            let faults =
                [EventFault::Drop, EventFault::Duplicate, EventFault::Reorder, EventFault::None];
            let fault = *random.pick(&faults);
            world.proxy.events(fault);
            format!("events: {fault:?}")
        }
        (10, _) => {
            revive(world);
            let step = step(name, random);
            world.agent.state_writes().kill_at(&step);
            let version = version.map_or(0, |version| version + 1);
            model.insert(name, version);
            world.drop_pod(&pod(name, version));
            format!("drop or edit {name}; the agent is to die {step}")
        }
        _ => {
            revive(world);
            world.agent.kill();
            world.agent.start();
            "kill the agent".to_owned()
        }
    }
}

/// A step of writing a state file, of a pod's or of the source's.
fn step(name: &str, random: &mut Random) -> String {
    let path = match random.below(3) {
        0 => "root/nodelet/sources.json".to_owned(),
        1 => format!("root/nodelet/pods/{}", file(name)),
        _ => format!("run/pods/{}", file(name)),
    };
    match *random.pick(&["after open", "before rename", "after rename", "before unlink"]) {
        "after open" => format!("after open {path}.unfinished"),
        step => format!("{step} {path}"),
    }
}

/// Starts the agent where it died at a step of writing; of nothing else may it have ended.
#[track_caller]
fn revive(world: &World) {
    if world.agent.state_writes().disarm() {
        world.wait_until("the agent has died", || world.agent.is_running(), |runs| !runs);
        world.agent.start();
    }
    assert!(world.agent.is_running(), "the agent ended by itself: {}", world.agent.log_tail(30));
}

/// Lets things happen for `span`, stopping now and then to see whether everything settles.
/// `runtime_dies`: whether the runtime is among what gets killed.
pub fn chaos(kind: Kind, span: Duration, runtime_dies: bool) {
    let mut random = Random::from_environment();
    // What is killed again and again is not to be waited for: its back-off is another test's.
    let settings =
        Settings::for_kind(kind).kubelet("crashLoopBackOff: { maxContainerRestartPeriod: 10s }\n");
    let world = World::prepare(kind, &settings);
    world.agent.state_writes();
    world.agent.start();
    let mut model = Model::new();
    let mut history = String::new();
    let end = Instant::now() + span;
    while Instant::now() < end {
        for _ in 0..=random.below(12) {
            let what = happen(&world, &mut model, &mut random, runtime_dies);
            writeln!(history, "{what}").unwrap();
            crate::support::pause(Duration::from_millis(u64::try_from(random.below(700)).unwrap()));
        }
        settle(&world, &model, &history);
    }
    world.proxy.lift_all();
    world.finish();
}

#[track_caller]
fn settle(world: &World, model: &Model, history: &str) {
    world.proxy.lift_all();
    revive(world);
    let what = format!("all is as written: {model:?}\n--- what happened:\n{history}");
    let containers = |version: &usize| if version % 2 == 1 { 2 } else { 1 };
    // A sidecar is waited for as well: one that was killed again and again has its back-off.
    world.wait_for(SETTLED, &what, |status| {
        status.pods.len() == model.len()
            && model.iter().all(|(name, version)| {
                status.runs(name)
                    && running_by_status(status, name) == containers(version)
                    && shown_version(status, name) == Some(version.to_string())
            })
    });
    for name in NAMES {
        let expected = model.get(name).map_or(0, containers);
        let running = || world.running_ids(name).len();
        world
            .wait_until(&format!("{name} runs {expected} containers"), running, |n| *n == expected);
        let ready = |s: &v1::PodSandbox| s.state() == v1::PodSandboxState::SandboxReady;
        let sandboxes = || world.sandboxes(name).iter().filter(|s| ready(s)).count();
        let what = format!("ready sandboxes of {name} after\n{history}");
        world.wait_until(&what, sandboxes, |n| *n == expected.min(1));
    }
}

/// Containers of a pod that run, sidecars included, by what the agent says.
fn running_by_status(status: &crate::support::status::Status, name: &str) -> usize {
    let Some(pod) = status.pod(name) else { return 0 };
    let regular = pod.status.container_statuses.iter().flatten();
    let init = pod.status.init_container_statuses.iter().flatten();
    let state = |one: &&nodelet::model::k8s::ContainerStatus| {
        one.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    regular.chain(init).filter(state).count()
}

fn shown_version(status: &crate::support::status::Status, name: &str) -> Option<String> {
    let spec = status.pod(name)?.pod.as_ref()?.spec.as_ref()?;
    let env = spec.containers.first()?.env.as_ref()?;
    env.iter().find(|variable| variable.name == "VERSION")?.value.clone()
}

/// A short run of it, for every test run. A real containerd is killed in scenarios of its own and
/// in `make soak`: killed in the middle of a call it may forget things for good, which is not what
/// every run is to wait for.
pub fn whatever_happens_all_ends_as_written(kind: Kind) {
    chaos(kind, Duration::from_secs(20), kind == Kind::Fake);
}
