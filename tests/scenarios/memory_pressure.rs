//! Memory runs short for many reasons: the pod that is the reason goes, whatever else happens
//! meanwhile, and nobody else.
//!
//! All pods of a world share a limit far below what the machine has, so that no hog can do harm to
//! anything else.

use super::pressure::{has_event, holds, memory_kib, reason};
use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    process::Process,
    say_loudly,
    status::Status,
    stays,
    world::{Kind, World, full_name},
};
use nodelet::{
    cri::v1,
    model::{Pressure, Signal},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use tokio::time::Instant;

/// What all pods together may use, in MiB.
const ALL_PODS_MIB: u64 = 700;
/// What of it has to stay free.
const FREE_MIB: u64 = 300;
const MIB: u64 = 1 << 20;

/// A node whose pods may use little together.
fn node(kind: Kind, thresholds: &str) -> Settings {
    let reserved = memory_kib() - ALL_PODS_MIB * 1024;
    Settings::for_kind(kind).kubelet(&format!(
        "systemReserved: {{ memory: {reserved}Ki }}\nevictionPressureTransitionPeriod: 1s\n{thresholds}\n"
    ))
}

/// One that evicts without delay.
fn strict_node(kind: Kind) -> Settings {
    node(kind, &format!("evictionHard: {{ memory.available: {FREE_MIB}Mi }}"))
}

/// Shell: keeps that much memory until `until` is true.
fn keeps(mib: u64, until: &str) -> String {
    let bytes = mib * MIB;
    format!(
        "head -c {bytes} /dev/zero | tail -c {bytes} | {{ until {until}; do sleep 0.1; done; }}\n"
    )
}

/// Shell: takes 10 MiB more every `pause` seconds, for ever.
fn grows(pause: &str) -> String {
    format!(
        "while :; do head -c 10485760 /dev/zero | tail -c 10485760 | sleep 1000 & sleep {pause}; done\n"
    )
}

/// A directory that test and pods share: files in it are signs.
struct Signs(PathBuf);

impl Signs {
    fn make(world: &World) -> Self {
        let dir = world.slot.dir().join("signs");
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// A pod whose `main` finds the directory at `/signs`.
    fn pod(&self, name: &str, script: &str) -> Pod {
        Pod::with_main(name, script)
            .set("volumes", json!([{ "name": "signs", "hostPath": { "path": self.0 } }]))
            .set("containers/0/volumeMounts", json!([{ "name": "signs", "mountPath": "/signs" }]))
    }

    fn give(&self, sign: &str) {
        fs::write(self.0.join(sign), "").unwrap();
    }

    fn has(&self, sign: &str) -> bool {
        self.0.join(sign).exists()
    }
}

/// Waits for a sign.
fn sign(name: &str) -> String {
    format!("[ -e /signs/{name} ]")
}

/// The running containers of pods whose names begin with `prefix`.
fn running(world: &World, prefix: &str) -> BTreeMap<String, String> {
    let mut all = world.cri.containers();
    all.retain(|container| container.state() == v1::ContainerState::ContainerRunning);
    let name = |c: &v1::Container| c.labels.get("io.kubernetes.pod.name").cloned();
    let named = all.into_iter().filter_map(|c| Some((c.id.clone(), name(&c)?)));
    named.filter(|(_, name)| name.starts_with(prefix)).collect()
}

/// Pods that do nothing wrong, and what runs of them.
struct Innocents<'a> {
    world: &'a World,
    ids: BTreeMap<String, String>,
}

impl<'a> Innocents<'a> {
    fn start(world: &'a World, count: usize) -> Self {
        let names: Vec<String> = (0..count).map(|n| format!("innocent{n:02}")).collect();
        for name in &names {
            world.drop_pod(&Pod::running(name));
        }
        let all = |status: &Status| names.iter().all(|name| status.runs(name));
        world.wait_for(Duration::from_secs(120), "the innocent run", all);
        Self { world, ids: running(world, "innocent") }
    }

    #[track_caller]
    fn are_untouched(&self) {
        assert_eq!(running(self.world, "innocent"), self.ids, "nobody else is touched");
    }
}

/// Whether the pod was told to go.
fn is_told(status: &Status, pod: &str) -> bool {
    told(status, pod) > 0
}

/// How often people were told that it was evicted.
fn told(status: &Status, pod: &str) -> i64 {
    let (name, evicted) = (full_name(pod), json!("Evicted"));
    let ours = |event: &&serde_json::Value| {
        event["reason"] == evicted && event["involvedObject"]["name"] == json!(name)
    };
    status.events.iter().filter(ours).filter_map(|event| event["count"].as_i64()).sum()
}

/// Waits until a pod is evicted; gives the status.
#[track_caller]
fn wait_evicted(world: &World, pod: &str) -> Status {
    let patience = Duration::from_secs(60);
    let evicted = |status: &Status| reason(status, pod) == "Evicted";
    let status = world.wait_for(patience, &format!("{pod} is evicted"), evicted);
    let message = status.pod(pod).unwrap().status.message.clone().unwrap();
    assert!(message.starts_with("The node was low on resource: memory. "), "{message}");
    assert!(world.sandboxes(pod).is_empty(), "nothing of it is left");
    assert_eq!(told(&status, pod), 1);
    status
}

/// Takes an evicted pod's manifest away and waits until memory is there again.
#[track_caller]
fn wait_over(world: &World, pod: &str) {
    world.remove(&format!("{pod}.yaml"));
    world.wait_gone(pod);
    world.wait("the pressure is over", |status| !holds(status, Pressure::Memory));
}

/// What a cgroup uses, page cache included.
fn usage(cgroup: &Path) -> u64 {
    let files = ["memory.usage_in_bytes", "memory.current"].map(|name| cgroup.join(name));
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok());
    text.unwrap().trim().parse().unwrap()
}

/// The working set of a cgroup, from the files of v1 or v2.
fn working_set(cgroup: &Path) -> u64 {
    let read = |name: &str| fs::read_to_string(cgroup.join(name)).unwrap_or_default();
    let stat = read("memory.stat");
    let field = |name: &str| -> Option<u64> {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
    };
    let number = |name: &str| read(name).trim().parse::<u64>().ok();
    let used = number("memory.usage_in_bytes")
        .or_else(|| number("memory.current"))
        .or_else(|| Some(field("anon")? + field("file")?));
    // What is on no list is on its way out.
    let file = |v1: &str, v2: &str| field(v1).or_else(|| field(v2)).unwrap_or_default();
    let cache = file("total_cache", "file").saturating_sub(file("total_shmem", "shmem"));
    let active = file("total_active_file", "active_file");
    used.unwrap_or_default().saturating_sub(cache.saturating_sub(active))
}

/// What came of a hog, seen from outside.
#[derive(Debug)]
struct Seen {
    /// From less being free than should be to the death of its last process.
    lived: Duration,
    /// How far memory went past the threshold, in MiB.
    past: u64,
}

/// Watches all pods' memory and a pod's processes, from now on to its end.
fn watch(world: &World, pod: &str, free_mib: u64) -> thread::JoinHandle<Seen> {
    let process = Process::of(world, pod, "main");
    let pod_dir = |controller: &str| process.cgroup(controller).parent().unwrap().to_owned();
    let memory = pod_dir("memory");
    let is_all = |dir: &&Path| dir.ends_with("kubepods") || dir.ends_with("kubepods.slice");
    let all = memory.ancestors().find(is_all).unwrap().to_owned();
    let tasks = pod_dir("pids").join("pids.current");
    thread::spawn(move || {
        let bound = (ALL_PODS_MIB - free_mib) * MIB;
        let (mut crossed, mut most) = (None, 0);
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let used = working_set(&all);
            most = most.max(used);
            if used > bound {
                crossed.get_or_insert_with(Instant::now);
            }
            let left = fs::read_to_string(&tasks).unwrap_or_default();
            if matches!(left.trim(), "" | "0") {
                break;
            }
            crate::support::pause(Duration::from_millis(2));
        }
        let lived = crossed.map(|since| since.elapsed()).unwrap_or_default();
        Seen { lived, past: most.saturating_sub(bound) / MIB }
    })
}

/// What was seen, told to whoever runs the test, and held against what a busy machine needs.
#[track_caller]
fn check(world: &World, what: &str, watched: thread::JoinHandle<Seen>) {
    let seen = watched.join().unwrap();
    say_loudly(&format!("{what}: {seen:?}"));
    let quick = seen.lived < Duration::from_secs(3) && seen.past < FREE_MIB;
    assert!(quick, "{seen:?}\n--- agent's log: {}", world.agent.log_tail(60));
}

/// Page cache is no pressure; then hogs of every kind, one after the other, among many that take
/// little.
pub fn of_many_pods_those_that_eat_memory_go(kind: Kind) {
    let world = World::start_with(kind, &strict_node(kind));
    let signs = Signs::make(&world);
    // More page cache than pods may use together, again and again: it is nobody's loss. Each page
    // is read once, by a call that has it whole.
    let reads = format!(
        "for n in 1 2 3 4 5 6 7 8; do truncate -s 550M /large$n; dd if=/large$n of=/dev/null bs=4M; \
         touch /signs/read$n; until {}; do sleep 0.1; done; rm /large$n; done; {FOREVER}",
        sign("seen$n")
    );
    world.drop_pod(&signs.pod("reader", &reads));
    world.wait_running("reader");
    let cache = Process::of(&world, "reader", "main").cgroup("memory");
    let held = || holds(&world.agent.status().unwrap(), Pressure::Memory);
    for n in 1..=8 {
        // Looked at all the while: something else may free it at once (DAMON).
        let mut most = 0;
        let mut read = || {
            most = most.max(usage(&cache));
            signs.has(&format!("read{n}"))
        };
        world.wait_until("the file is read", &mut read, |read| *read);
        assert!(most > (ALL_PODS_MIB - FREE_MIB) * MIB, "{most} bytes");
        stays("page cache is no pressure", Duration::from_millis(300), held, |held| !held);
        signs.give(&format!("seen{n}"));
    }
    // Not kept: a kernel that sorts pages by itself (DAMON) may take these for active later, which
    // is use by the kubelet's formula.
    world.remove("reader.yaml");
    world.wait_gone("reader");
    assert!(!has_event(&world.agent.status().unwrap(), "NodeHasInsufficientMemory"));
    let innocents = Innocents::start(&world, 30);

    let fast = format!("until {}; do sleep 0.05; done\n{}", sign("fast"), grows("0.05"));
    world.drop_pod(&signs.pod("fast", &fast));
    world.wait_running("fast");
    let watched = watch(&world, "fast", FREE_MIB);
    signs.give("fast");
    let status = wait_evicted(&world, "fast");
    check(&world, "200 MiB/s among 31", watched);
    for reason in ["Evicted", "EvictionThresholdMet", "NodeHasInsufficientMemory"] {
        assert!(has_event(&status, reason), "{reason} in {:#?}", status.events);
    }
    let mut events = status.events.iter();
    let event = events.find(|event| event["reason"] == "Evicted").unwrap();
    let annotations = &event["metadata"]["annotations"];
    assert_eq!(annotations["starved_resource"], "memory", "{event}");
    assert_eq!(annotations["offending_containers"], "main", "{event}");
    innocents.are_untouched();
    wait_over(&world, "fast");

    world.drop_pod(&Pod::with_main(
        "slow",
        &format!("{}&\n{}", keeps(250, "false").trim(), grows("0.5")),
    ));
    wait_evicted(&world, "slow");
    innocents.are_untouched();
    wait_over(&world, "slow");

    // Takes and gives back, each time more.
    let teeth = [100, 200, 300].map(|mib| {
        let tooth = format!("/signs/tooth{mib}");
        format!("{}touch {tooth}\n", keeps(mib, &format!("touch {tooth}.full && sleep 0.5")))
    });
    let last = keeps(500, "false");
    world.drop_pod(&signs.pod("sawtooth", &format!("{}{last}", teeth.concat())));
    wait_evicted(&world, "sawtooth");
    assert!(signs.has("tooth300"), "what stays below the threshold is left alone");
    innocents.are_untouched();
    wait_over(&world, "sawtooth");

    let fills = "n=0; while :; do dd if=/dev/zero of=/ram/$n bs=1M count=10 2>/dev/null; n=$((n+1)); sleep 0.05; done";
    let ram = Pod::with_main("ram", fills)
        .set("volumes", json!([{ "name": "ram", "emptyDir": { "medium": "Memory" } }]))
        .set("containers/0/volumeMounts", json!([{ "name": "ram", "mountPath": "/ram" }]));
    world.drop_pod(&ram);
    wait_evicted(&world, "ram");
    innocents.are_untouched();
    wait_over(&world, "ram");

    many_small_ones(&world, &signs);
    innocents.are_untouched();
    world.finish();
}

/// Together they take 100 MiB too much and some: as few go as it takes.
fn many_small_ones(world: &World, signs: &Signs) {
    let script = format!("until {}; do sleep 0.1; done\n{}", sign("all"), keeps(30, "false"));
    let small: Vec<String> = (0..16).map(|n| format!("small{n:02}")).collect();
    for name in &small {
        world.drop_pod(&signs.pod(name, &script));
    }
    let all = |status: &Status| small.iter().all(|name| status.runs(name));
    world.wait_for(Duration::from_secs(90), "the small ones run", all);
    let before = running(world, "small");
    signs.give("all");
    let is_low = |status: &Status| {
        let mut signals = status.node.pressure.signals.iter();
        signals.any(|one| one.signal == Signal::AllocatableMemoryAvailable && one.crossed)
    };
    // People are told first; what is shown of the node, and what was freed, follows together.
    let status = world.wait("enough of them have gone", |status| {
        let told = small.iter().filter(|name| is_told(status, name)).count();
        let steps = status.node.pressure.steps.iter();
        let freed = steps.filter(|step| step.what.contains("/small")).count();
        told > 0 && freed == told && !is_low(status) && !holds(status, Pressure::Memory)
    });
    let gone = small.iter().filter(|name| is_told(&status, name)).count();
    assert!((2..=7).contains(&gone), "{gone} have gone: {status:?}");
    // The agent kills through the cgroup; the runtime notices each death a moment later.
    let left = world.wait_until(
        "the runtime has noticed every death",
        || running(world, "small"),
        |left| left.len() <= small.len() - gone,
    );
    assert!(left.iter().all(|(id, name)| before.get(id) == Some(name)), "{before:?} {left:?}");
    assert_eq!(left.len(), small.len() - gone);
    for name in &small {
        world.remove(&format!("{name}.yaml"));
    }
    world.wait_for(Duration::from_secs(90), "the small ones are gone", |status| {
        small.iter().all(|name| status.pod(name).is_none())
    });
}

/// A soft threshold: who recovers in time stays, who has to go has time to, and none any more when
/// a hard one is crossed.
pub fn soft_thresholds_leave_time_until_a_hard_one_is_crossed(kind: Kind) {
    let grace = Duration::from_secs(5);
    let settings = node(
        kind,
        &format!(
            "evictionHard: {{ memory.available: 100Mi }}\n\
             evictionSoft: {{ allocatableMemory.available: {FREE_MIB}Mi }}\n\
             evictionSoftGracePeriod: {{ allocatableMemory.available: {}s }}\n\
             evictionMaxPodGracePeriod: 60",
            grace.as_secs()
        ),
    );
    let world = World::start_with(kind, &settings);
    let signs = Signs::make(&world);
    let innocents = Innocents::start(&world, 4);

    let peak = format!("{}{FOREVER}", keeps(450, &sign("enough")));
    world.drop_pod(&signs.pod("peak", &peak));
    world.wait("there is pressure", |status| holds(status, Pressure::Memory));
    signs.give("enough");
    let status = world.wait("it is over", |status| !holds(status, Pressure::Memory));
    assert!(has_event(&status, "NodeHasSufficientMemory") && !has_event(&status, "Evicted"));
    assert_eq!((status.runs("peak"), status.restarts("peak", "main")), (true, 0));
    let peak = world.running_id("peak", "main");

    // Takes no notice of SIGTERM, and all of its time.
    let stubborn = format!("trap '' TERM\n{}", keeps(450, "false"));
    let stubborn = Pod::with_main("stubborn", &stubborn).set("terminationGracePeriodSeconds", 6);
    world.drop_pod(&stubborn);
    world.wait("there is pressure", |status| holds(status, Pressure::Memory));
    let since = Instant::now();
    world.wait("it is to go", |status| is_told(status, "stubborn"));
    let (waited, begun) = (since.elapsed(), Instant::now());
    assert!(waited > grace - Duration::from_secs(1), "to go after {waited:?}");
    world.running_id("stubborn", "main");
    wait_evicted(&world, "stubborn");
    let had = begun.elapsed();
    assert!(had > Duration::from_secs(3), "gone after {had:?}");
    innocents.are_untouched();
    wait_over(&world, "stubborn");

    for again in [false, true] {
        let name = if again { "second" } else { "first" };
        let eats = format!(
            "{} &\nuntil {}; do sleep 0.05; done\n{}",
            keeps(450, "false").trim(),
            sign(name),
            grows("0.05")
        );
        let eats = format!("trap '' TERM\n{eats}");
        world.drop_pod(&signs.pod(name, &eats).set("terminationGracePeriodSeconds", 50));
        world.wait("it is to go", |status| is_told(status, name));
        if again {
            // The next life of the agent knows that it goes, and that it has time.
            world.agent.kill();
            world.agent.start();
            world.wait("all is found again", |status| status.runs("peak"));
        }
        let watched = watch(&world, name, 100);
        signs.give(name);
        check(&world, "a hard threshold after a soft one", watched);
        let evicted = |status: &Status| reason(status, name) == "Evicted";
        world.wait("it has no time left", evicted);
        innocents.are_untouched();
        wait_over(&world, name);
    }
    assert_eq!(world.running_id("peak", "main"), peak);
    world.finish();
}

/// Who was told to go by an earlier life of the agent, and takes its time, is waited for: nobody
/// else goes meanwhile.
pub fn who_still_goes_after_a_restart_is_waited_for(kind: Kind) {
    let settings = node(
        kind,
        &format!(
            "evictionHard: {{ memory.available: 100Mi }}\n\
             evictionSoft: {{ allocatableMemory.available: {FREE_MIB}Mi }}\n\
             evictionSoftGracePeriod: {{ allocatableMemory.available: 1s }}\n\
             evictionMaxPodGracePeriod: 60"
        ),
    );
    let world = World::start_with(kind, &settings);
    world.drop_pod(&Pod::with_main("other", &keeps(60, "false")).set("priority", 5));
    world.wait_running("other");
    let other = world.running_id("other", "main");
    let stubborn = format!("trap '' TERM\n{}", keeps(400, "false"));
    let stubborn = Pod::with_main("stubborn", &stubborn).set("terminationGracePeriodSeconds", 12);
    world.drop_pod(&stubborn);
    world.wait("it is to go", |status| is_told(status, "stubborn"));
    world.agent.kill();
    world.agent.start();
    world.wait("all is found again", |status| status.runs("other"));
    let hog = || world.sandboxes("stubborn").len();
    let told = || is_told(&world.agent.status().unwrap(), "other");
    stays("nobody else is to go", Duration::from_secs(5), told, |told| !told);
    assert_eq!(hog(), 1, "it still goes");
    let evicted = |status: &Status| reason(status, "stubborn") == "Evicted";
    let status = world.wait("it has gone", evicted);
    assert!(!is_told(&status, "other"));
    wait_over(&world, "stubborn");
    assert_eq!(world.running_id("other", "main"), other);
    world.finish();
}

/// Containerd stands still: who eats memory is dead at once all the same, and is shown as evicted
/// when containerd goes on.
pub fn a_hog_dies_while_the_runtime_hangs(kind: Kind) {
    let world = World::start_with(kind, &strict_node(kind));
    let signs = Signs::make(&world);
    let innocents = Innocents::start(&world, 4);
    let script = format!("until {}; do sleep 0.05; done\n{}", sign("now"), grows("0.05"));
    world.drop_pod(&signs.pod("hog", &script));
    world.wait_running("hog");
    let watched = watch(&world, "hog", FREE_MIB);
    let frozen = world.runtime.containerd().freeze();
    signs.give("now");
    check(&world, "200 MiB/s while containerd hangs", watched);
    let status = world.wait("people are told", |status| is_told(status, "hog"));
    // It may be over before anybody has looked.
    assert!(has_event(&status, "NodeHasInsufficientMemory"));
    world.wait("the pressure is over, and it has still to stop", |status| {
        let away = &status.node.pressure.evicted;
        !holds(status, Pressure::Memory)
            && away.iter().any(|one| one.waits_for.contains("it has stopped"))
    });
    drop(frozen);
    wait_evicted(&world, "hog");
    innocents.are_untouched();
    wait_over(&world, "hog");
    world.finish();
}

/// `kill -9` before and after it is written down who has to go, and while that one is being
/// stopped.
pub fn an_agent_killed_in_an_eviction_ends_it(kind: Kind) {
    let world = World::prepare(kind, &strict_node(kind));
    let writes = world.agent.state_writes();
    world.agent.start();
    let innocents = Innocents::start(&world, 4);
    world.agent.revive_when_dead(true);
    for (name, step) in [("before", "before rename"), ("after", "after rename")] {
        writes.kill_at(&format!("{step} run/evictions.json"));
        world.drop_pod(&Pod::with_main(name, &grows("0.1")));
        world.wait_until("the agent dies", || writes.is_armed(), |armed| !armed);
        let evicted = |status: &Status| reason(status, name) == "Evicted";
        world.wait("it is evicted", evicted);
        assert!(writes.disarm());
        innocents.are_untouched();
        world.remove(&format!("{name}.yaml"));
        world.wait_gone(name);
        world.wait("the pressure is over", |status| !holds(status, Pressure::Memory));
    }
    let hung = world.proxy.on("StopPodSandbox").pod("hog").hang();
    world.drop_pod(&Pod::with_main("hog", &grows("0.1")));
    let stopped = |n: &usize| *n > 0;
    world.wait_until("it is being stopped", || world.proxy.count("StopPodSandbox", "hog"), stopped);
    world.agent.kill();
    world.proxy.lift(hung);
    let evicted = |status: &Status| reason(status, "hog") == "Evicted";
    let status = world.wait("it is stopped", evicted);
    assert_eq!(told(&status, "hog"), 0, "that is the same eviction");
    assert!(world.sandboxes("hog").is_empty());
    innocents.are_untouched();
    wait_over(&world, "hog");
    world.finish();
}

/// Starts the agent with other lines of configuration.
pub(super) fn restart_with(world: &World, lines: &str, others: &str) {
    let text = fs::read_to_string(world.agent.config_file()).unwrap();
    assert!(text.contains(lines), "{lines} in:\n{text}");
    fs::write(world.agent.config_file(), text.replace(lines, others)).unwrap();
    world.agent.start();
}

/// The agent finds too little memory at its start: who takes it goes, who runs stays, and who is
/// new waits. Before that there are no thresholds, and the kernel alone looks after a container's
/// own limit.
pub fn a_threshold_that_is_crossed_at_the_start_is_acted_on(kind: Kind) {
    let world = World::start_with(kind, &node(kind, "evictionHard: {}"));
    let innocents = Innocents::start(&world, 4);
    let greedy = Pod::with_main("greedy", "exec tail -c 100000000 /dev/zero")
        .set("containers/0/resources", json!({ "limits": { "memory": "32Mi" } }));
    world.drop_pod(&greedy);
    world.wait("the kernel has killed it, and that is told", |status| {
        let ended = status.terminated("greedy", "main");
        ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled"))
            && status.restarts("greedy", "main") > 0
    });
    world.remove("greedy.yaml");
    world.wait_gone("greedy");

    world.drop_pod(&Pod::with_main("heavy", &keeps(500, "false")));
    let status = world.wait_running("heavy");
    assert!(!has_event(&status, "Evicted") && !holds(&status, Pressure::Memory));
    let memory = Process::of(&world, "heavy", "main").cgroup("memory");
    let full = |used: &u64| *used > 480 * MIB;
    world.wait_until("it has its memory", || working_set(&memory), full);
    world.agent.kill();
    world.drop_pod(&Pod::running("new"));
    let hard = format!("evictionHard: {{ memory.available: {FREE_MIB}Mi }}");
    restart_with(&world, "evictionHard: {}", &hard);
    let status = wait_evicted(&world, "heavy");
    let waits = |event: &serde_json::Value| {
        let message = event["message"].as_str().unwrap_or_default();
        event["involvedObject"]["name"] == json!(full_name("new"))
            && message.contains("The node had condition: [MemoryPressure]. ")
    };
    assert!(status.events.iter().any(waits), "{:#?}", status.events);
    innocents.are_untouched();
    world.wait("it is let in", |status| status.runs("new"));
    innocents.are_untouched();
    world.finish();
}

/// A process that takes ever more memory, ended when this is dropped.
struct Eater(Child);

impl Eater {
    /// Takes that much.
    fn start(bytes: u64) -> Self {
        let mut child = Command::new("/bin/busybox")
            .args(["tail", "-c", &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        thread::spawn(move || {
            let zeros = vec![0; 1 << 20];
            for _ in 0..bytes / MIB {
                if input.write_all(&zeros).is_err() {
                    return;
                }
                crate::support::pause(Duration::from_micros(500));
            }
        });
        Self(child)
    }
}

impl Drop for Eater {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// What is left of the machine's memory.
fn available() -> u64 {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    let root = if v1.exists() { v1 } else { Path::new("/sys/fs/cgroup") };
    (memory_kib() * 1024).saturating_sub(working_set(root))
}

/// Nobody goes for what a process outside pods takes; people are told which one.
pub fn a_process_outside_pods_costs_no_pod_its_life(kind: Kind) {
    // Other people's processes come and go on the machine.
    const MARGIN: u64 = 1 << 30;
    let settings = Settings::for_kind(kind).kubelet(
        "evictionHard: {}\nenforceNodeAllocatable: []\nevictionPressureTransitionPeriod: 1s\n",
    );
    let world = World::start_with(kind, &settings);
    let innocents = Innocents::start(&world, 6);
    world.agent.kill();
    let threshold = available().saturating_sub(MARGIN);
    let hard = format!("evictionHard: {{ memory.available: \"{threshold}\" }}");
    restart_with(&world, "evictionHard: {}", &hard);
    world.wait("the innocent are found again", |status| status.runs("innocent00"));
    let eater = Eater::start(2 * MARGIN);
    let told = |status: &Status| -> Option<String> {
        let mut trouble = status.node.pressure.trouble.iter();
        trouble.find(|line| line.contains("evicting a pod would not help")).cloned()
    };
    let status = world.wait("people are told", |status| told(status).is_some());
    assert!(holds(&status, Pressure::Memory));
    let line = told(&status).unwrap();
    let named = format!("busybox (pid {}, ", eater.0.id());
    let larger = |line: &str| {
        let sizes =
            line.split(", ").filter_map(|part| part.trim_end_matches(')').parse::<u64>().ok());
        sizes.filter(|size| *size > MARGIN).count()
    };
    // The three largest are named, and somebody else's may be larger.
    assert!(line.contains(&named) || larger(&line) >= 3, "{named} in {line}");
    let evicted = || has_event(&world.agent.status().unwrap(), "Evicted");
    stays("nobody goes", Duration::from_secs(2), evicted, |evicted| !evicted);
    innocents.are_untouched();
    drop(eater);
    let over =
        |status: &Status| !holds(status, Pressure::Memory) || available() < threshold + MARGIN / 8;
    world.wait("the pressure is over", over);
    innocents.are_untouched();
    world.finish();
}

/// With `staticPodEviction: never`, a static pod that eats memory stays, and a person is told which
/// one it is. New static pods start under pressure, as they count as critical. With the default it
/// is evicted.
pub fn static_pods_stay_where_they_are_never_evicted(kind: Kind) {
    const NEVER: &str = "staticPodEviction: never\n";
    let mut settings = strict_node(kind);
    settings.nodelet = NEVER.to_owned();
    let world = World::start_with(kind, &settings);
    let innocents = Innocents::start(&world, 3);
    world.drop_pod(&Pod::with_main("hog", &keeps(500, "false")));
    let named = |status: &Status| {
        let mut trouble = status.node.pressure.trouble.iter();
        trouble.any(|line| line.contains("default/hog-node1"))
    };
    let status = world.wait("the hog is named", named);
    let trouble = status.node.pressure.trouble.join("\n");
    let expected = "the pods whose eviction would help are never evicted: default/hog-node1 \
        (it is static, and staticPodEviction is never). Largest users outside pods: ";
    assert!(trouble.contains(expected), "{trouble}");
    assert!(holds(&status, Pressure::Memory) && status.runs("hog"), "{status:?}");
    world.drop_pod(&Pod::running("new"));
    let status = world.wait_running("new");
    assert!(holds(&status, Pressure::Memory), "{status:?}");
    let hog = world.running_ids("hog");
    stays("the hog stays", Duration::from_secs(3), || world.running_ids("hog"), |now| *now == hog);
    let status = world.agent.status().unwrap();
    assert!(!has_event(&status, "Evicted") && status.node.pressure.evicted.is_empty());

    world.agent.kill();
    restart_with(&world, NEVER, "");
    wait_evicted(&world, "hog");
    wait_over(&world, "hog");
    innocents.are_untouched();
    assert!(world.agent.status().unwrap().runs("new"));
    world.finish();
}

/// `memorySignal`: memory that the kernel can't give, although no process and no page cache has it,
/// counts with `memAvailable` only.
pub fn memory_goes_by_the_configured_signal(kind: Kind) {
    const KERNELS: &str = "memorySignal: memAvailable\n";
    const TOTAL_MIB: u64 = 4096;
    let mut settings = Settings::for_kind(kind).kubelet(
        "evictionHard: { memory.available: 100Mi }\nevictionPressureTransitionPeriod: 1s\n\
         enforceNodeAllocatable: []\n",
    );
    settings.nodelet = KERNELS.to_owned();
    let world = World::prepare(kind, &settings);
    // 1 GiB is in use by processes, whatever the kernel says that is available.
    let meminfo = |available_mib: u64| {
        let line = |name: &str, mib: u64| format!("{name}: {} kB\n", mib * 1024);
        let rest = ["Buffers", "Cached", "Active(file)", "Inactive(file)", "Shmem", "Mapped"];
        let rest: String = rest.map(|name| line(name, 0)).concat();
        let text = [
            line("MemTotal", TOTAL_MIB),
            line("MemFree", 40),
            line("MemAvailable", available_mib),
            line("AnonPages", 1024),
            line("SwapTotal", 0),
            rest,
        ];
        world.agent.set_meminfo(&text.concat());
    };
    let available = |status: &Status| {
        let mut signals = status.node.pressure.signals.iter();
        let memory = signals.find(|one| one.signal == Signal::MemoryAvailable)?;
        memory.available.map(|bytes| bytes / MIB)
    };
    meminfo(2000);
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    let status = world.wait_running("web");
    assert_eq!(available(&status), Some(2000));
    let web = world.running_ids("web");

    meminfo(50);
    let short = |status: &Status| holds(status, Pressure::Memory);
    let status = world.wait("the node is short of memory", short);
    assert_eq!(available(&status), Some(50));
    world.drop_pod(&Pod::running("new"));
    world.wait("a new pod is refused", |status| reason(status, "new") == "Evicted");
    assert_eq!(world.running_ids("web"), web, "it is not what a pod has done");

    world.agent.kill();
    restart_with(&world, KERNELS, "");
    let status = world
        .wait("by the working set there is enough", |status| !short(status) && status.runs("new"));
    assert_eq!(available(&status), Some(TOTAL_MIB - 1024));
    assert_eq!(world.running_ids("web"), web);
    world.finish();
}
