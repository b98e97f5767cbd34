//! Many things going wrong at random, against a model of what should run: whatever happened, once
//! it stops, every pod that is wanted runs as last written, once, and nothing else is left. A pod to
//! which nothing has happened has its containers still.

use super::{
    disk::{Full, SmallDisk},
    writes::file,
};
use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    proxy::EventFault,
    random::Random,
    say_loudly,
    world::{Kind, World},
};
use nodelet::cri::v1;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    time::Duration,
};
use tokio::time::Instant;

const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
/// Long enough for a back-off of 20 s and a pod of several containers.
const SETTLED: Duration = Duration::from_secs(90);
/// After so many rounds all pods are removed, and nothing of them may be left.
const ROUNDS: usize = 10;

/// What may go wrong, besides edits, ends of containers and sandboxes, and of the agent.
#[derive(Clone, Copy)]
pub struct Dangers {
    /// The runtime is killed.
    pub runtime_dies: bool,
    /// The file system of the agent's root directory is full, or read-only.
    pub disk_fails: bool,
}

/// What is wrong with the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DiskFault {
    Full,
    ReadOnly,
}

/// What the directory says: pod to version.
type Model = BTreeMap<&'static str, usize>;

fn pod(name: &str, version: usize) -> Pod {
    let pod = Pod::running(name).env("VERSION", &version.to_string());
    // Odd versions are bigger, so that edits change the shape of a pod too.
    if version % 2 == 1 { pod.init("setup", "true").sidecar("proxy", FOREVER) } else { pod }
}

/// The containers of a pod that run: one, or its sidecar, too.
fn containers(version: usize) -> usize {
    if version % 2 == 1 { 2 } else { 1 }
}

/// A world in which things go wrong, from an empty node to an empty node.
struct Chaos<'a> {
    world: &'a World,
    dangers: Dangers,
    disk: Option<&'a SmallDisk>,
    disk_fault: Option<DiskFault>,
    random: Random,
    model: Model,
    /// Pods to which something has happened since all had settled.
    touched: BTreeSet<&'static str>,
    /// Containers and sandboxes that were killed since then, by their ids.
    killed: Vec<String>,
    /// The containers that ran when all had settled.
    settled: BTreeMap<&'static str, Vec<String>>,
    /// What has happened, a line each.
    history: String,
}

impl Chaos<'_> {
    /// One thing that happens; gives its description.
    fn happen(&mut self) -> String {
        let name = *self.random.pick(&NAMES);
        let version = self.model.get(name).copied();
        match (self.random.below(14), version) {
            (0..=4, None) => {
                self.write(name, 0);
                format!("drop {name}")
            }
            (0..=1, Some(version)) => {
                self.write(name, version + 1);
                format!("edit {name}")
            }
            (2, Some(_)) => {
                self.remove(name);
                format!("remove {name}")
            }
            (3, Some(version)) => {
                // Broken and mended in one breath, or by and by.
                fs::write(self.world.manifest_path(&format!("{name}.yaml")), "kind: [").unwrap();
                self.pause(800);
                self.world.drop_pod(&pod(name, version));
                format!("break and mend {name}")
            }
            (5..=6, Some(_)) => self.kill_container(name),
            (7, Some(_)) => self.kill_sandbox(name),
            (8, _) if self.dangers.runtime_dies => {
                self.world.kill_runtime();
                self.pause(1500);
                self.world.runtime.start_again();
                "kill the runtime".to_owned()
            }
            (9, _) => {
                let faults = [
                    EventFault::Drop,
                    EventFault::Duplicate,
                    EventFault::Reorder,
                    EventFault::None,
                ];
                let fault = *self.random.pick(&faults);
                self.world.proxy.events(fault);
                format!("events: {fault:?}")
            }
            (10, _) => {
                self.revive();
                let step = step(name, &mut self.random);
                self.world.agent.state_writes().kill_at(&step);
                self.write(name, version.map_or(0, |version| version + 1));
                format!("drop or edit {name}; the agent is to die {step}")
            }
            (11, _) if self.disk.is_some() => self.break_or_mend_disk(),
            _ => {
                self.revive();
                self.world.agent.kill();
                self.world.agent.start();
                "kill the agent".to_owned()
            }
        }
    }

    /// Up to so many milliseconds.
    fn pause(&mut self, below: usize) {
        let time = u64::try_from(self.random.below(below)).unwrap();
        crate::support::pause(Duration::from_millis(time));
    }

    fn write(&mut self, name: &'static str, version: usize) {
        self.touched.insert(name);
        self.model.insert(name, version);
        self.world.drop_pod(&pod(name, version));
    }

    fn remove(&mut self, name: &'static str) {
        self.touched.insert(name);
        self.model.remove(name);
        self.world.remove(&format!("{name}.yaml"));
    }

    fn kill_container(&mut self, name: &'static str) -> String {
        let running = self.world.running_ids(name);
        if running.is_empty() {
            return format!("{name} has nothing to kill");
        }
        // It may have gone meanwhile: whoever kills at random kills the dead too.
        let id: &String = self.random.pick(&running);
        self.touched.insert(name);
        self.killed.push(id.clone());
        self.world.kill_container_if_there(id);
        format!("kill a container of {name}")
    }

    fn kill_sandbox(&mut self, name: &'static str) -> String {
        if let Some(sandbox) = self.world.sandboxes(name).into_iter().find(is_ready) {
            self.touched.insert(name);
            self.world.kill_sandbox_if_there(&sandbox.id);
            self.killed.push(sandbox.id);
        }
        format!("kill the sandbox of {name}")
    }

    fn break_or_mend_disk(&mut self) -> String {
        if self.mend_disk() {
            return "mend the disk".to_owned();
        }
        let disk = self.disk.unwrap();
        match self.random.below(4) {
            0 => {
                // Whoever has a file open for writing prevents it.
                self.revive();
                self.world.agent.kill();
                disk.read_only(true);
                self.disk_fault = Some(DiskFault::ReadOnly);
                self.world.agent.start();
                "kill the agent, and make the disk read-only".to_owned()
            }
            which => {
                let full = [Full::Bytes, Full::Inodes, Full::Both][which - 1];
                disk.fill(full);
                self.disk_fault = Some(DiskFault::Full);
                format!("fill the disk: {full:?}")
            }
        }
    }

    /// Whether something was wrong with the disk.
    fn mend_disk(&mut self) -> bool {
        match (self.disk, self.disk_fault.take()) {
            (Some(disk), Some(DiskFault::Full)) => disk.empty(),
            (Some(disk), Some(DiskFault::ReadOnly)) => disk.read_only(false),
            (_, _) => return false,
        }
        true
    }

    /// Starts the agent where it died at a step of writing; of nothing else may it have ended.
    #[track_caller]
    fn revive(&self) {
        let agent = &self.world.agent;
        if agent.state_writes().disarm() {
            self.world.wait_until("the agent has died", || agent.is_running(), |runs| !runs);
            agent.start();
        }
        assert!(agent.is_running(), "the agent ended by itself: {}", agent.log_tail(30));
    }

    /// Several things happen, and settle.
    #[track_caller]
    fn round(&mut self) {
        for _ in 0..=self.random.below(12) {
            let what = self.happen();
            writeln!(self.history, "{what}").unwrap();
            self.pause(700);
        }
        self.settle();
    }

    #[track_caller]
    fn settle(&mut self) {
        let world = self.world;
        world.proxy.lift_all();
        self.mend_disk();
        self.revive();
        let (model, history) = (&self.model, &self.history);
        let what = |what: &str| format!("{what}: {model:?}\n--- what happened:\n{history}");
        // An end is told soon after it.
        let killed = || {
            let running = NAMES.iter().flat_map(|name| world.running_ids(name));
            let ready = world.cri.sandboxes().into_iter().filter(is_ready).map(|one| one.id);
            running.chain(ready).filter(|id| self.killed.contains(id)).collect::<Vec<_>>()
        };
        world.wait_until(&what("what was killed has ended"), killed, Vec::is_empty);
        // A sidecar is waited for as well: one that was killed again and again has its back-off.
        world.wait_for(SETTLED, &what("all is as written"), |status| {
            status.pods.len() == model.len()
                && model.iter().all(|(name, version)| {
                    status.runs(name)
                        && running_by_status(status, name) == containers(*version)
                        && shown_version(status, name) == Some(version.to_string())
                })
        });
        let mut settled = BTreeMap::new();
        for name in NAMES {
            let expected = model.get(name).copied().map_or(0, containers);
            let count = format!("{name} runs {expected} containers in one sandbox");
            let is_settled = |running: &Running| {
                let Running { sandboxes, containers } = running;
                let of_them = |one: &v1::Container| sandboxes.contains(&one.pod_sandbox_id);
                sandboxes.len() == expected.min(1)
                    && containers.len() == expected
                    && containers.iter().all(of_them)
            };
            let running = world.wait_until(&what(&count), || Running::of(world, name), is_settled);
            let ids = running.ids();
            if !self.touched.contains(name) {
                let before = self.settled.get(name).cloned().unwrap_or_default();
                assert_eq!(ids, before, "{}", what(&format!("nothing has happened to {name}")));
            }
            settled.insert(name, ids);
        }
        self.settled = settled;
        writeln!(self.history, "all has settled").unwrap();
        self.touched.clear();
        self.killed.clear();
    }

    /// Everything is removed, and nothing may be left.
    #[track_caller]
    fn end(mut self) {
        self.world.check_usage(NAMES.len().try_into().unwrap());
        let names: Vec<_> = self.model.keys().copied().collect();
        for name in names {
            self.remove(name);
        }
        writeln!(self.history, "remove all").unwrap();
        self.settle();
        let what = format!("nothing is left after\n{}", self.history);
        self.world.wait_until(&what, || self.world.leaks(), Vec::is_empty);
    }
}

/// What runs of a pod.
#[derive(Debug)]
struct Running {
    /// Their ids.
    sandboxes: Vec<String>,
    containers: Vec<v1::Container>,
}

impl Running {
    fn of(world: &World, name: &str) -> Self {
        let mut containers = world.containers(name);
        containers.retain(|one| one.state() == v1::ContainerState::ContainerRunning);
        let sandboxes = world.sandboxes(name).into_iter().filter(is_ready);
        Self { sandboxes: sandboxes.map(|one| one.id).collect(), containers }
    }

    /// The ids of its containers, sorted.
    fn ids(self) -> Vec<String> {
        let mut ids: Vec<String> = self.containers.into_iter().map(|one| one.id).collect();
        ids.sort();
        ids
    }
}

fn is_ready(sandbox: &v1::PodSandbox) -> bool {
    sandbox.state() == v1::PodSandboxState::SandboxReady
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

/// Lets things go wrong for `span`, stopping now and then to see whether everything settles. Every
/// few rounds it begins anew on the empty node, with a seed of its own that repeats the rest.
#[track_caller]
pub fn chaos(kind: Kind, span: Duration, dangers: Dangers) {
    let mut random = Random::from_environment();
    // What is killed again and again is not to be waited for: its back-off is another test's.
    let settings =
        Settings::for_kind(kind).kubelet("crashLoopBackOff: { maxContainerRestartPeriod: 10s }\n");
    let world = World::prepare(kind, &settings);
    let small_disk = || SmallDisk::over(world.agent.root_dir(), "size=2m,nr_inodes=512");
    let disk = dangers.disk_fails.then(small_disk);
    world.agent.state_writes();
    world.agent.start();
    let end = Instant::now() + span;
    while Instant::now() < end {
        let mut chaos = Chaos {
            world: &world,
            dangers,
            disk: disk.as_ref(),
            disk_fault: None,
            random,
            model: Model::new(),
            touched: BTreeSet::new(),
            killed: Vec::new(),
            settled: BTreeMap::new(),
            history: String::new(),
        };
        for _ in 0..ROUNDS {
            if Instant::now() < end {
                chaos.round();
            }
        }
        let seed = chaos.random.seed();
        chaos.end();
        if Instant::now() < end {
            say_loudly(&format!("nothing is left; it goes on as with NODELET_SEED={seed}"));
        }
        random = Random::from_seed(seed);
    }
    world.finish();
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
    let dangers = Dangers { runtime_dies: kind == Kind::Fake, disk_fails: false };
    chaos(kind, Duration::from_secs(20), dangers);
}
