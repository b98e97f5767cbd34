//! Memory runs short for many reasons: the pod that is the reason is evicted, whatever else happens
//! meanwhile, and no other pod.
//!
//! All pods of a world share a limit far below what the machine has, so that no hog can do harm to
//! anything else.

use super::{
    memory_rig::*,
    pressure::{has_event, holds, reason},
};
use crate::support::{
    agent::Settings,
    manifest::{FOREVER, Pod},
    process::{Process, memory_kib},
    skips::skip_without,
    status::Status,
    stays,
    world::{Kind, World},
};
use nodelet::model::{Pressure, Signal};
use serde_json::json;
use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// Page cache is no pressure. Then, among many pods that take little, one fills its memory and one a
/// volume in memory.
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

    // The memory of a volume is free only when the pod was removed.
    let fills = "n=0; while :; do dd if=/dev/zero of=/ram/$n bs=1M count=10 2>/dev/null; n=$((n+1)); sleep 0.05; done";
    let ram = Pod::with_main("ram", fills)
        .set("volumes", json!([{ "name": "ram", "emptyDir": { "medium": "Memory" } }]))
        .set("containers/0/volumeMounts", json!([{ "name": "ram", "mountPath": "/ram" }]));
    world.drop_pod(&ram);
    wait_evicted(&world, "ram");
    innocents.are_untouched();
    wait_over(&world, "ram");
    world.finish();
}

/// A pod that was given time for a soft threshold has none any more when a hard one is crossed, also
/// when the agent was killed meanwhile.
pub fn a_hard_threshold_cuts_short_the_time_of_a_soft_one(kind: Kind) {
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
    let signs = Signs::make(&world);
    let innocents = Innocents::start(&world, 4);
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
        // On a busy machine it takes half a minute to fill 450 MiB.
        let patience = Duration::from_secs(60);
        world.wait_for(patience, "there is pressure", |status| holds(status, Pressure::Memory));
        world.wait("it is to go", |status| is_told(status, name));
        if again {
            // The next life of the agent knows that it goes, and that it has time.
            world.agent.kill();
            world.agent.start();
            world.wait("all is found again", |status| status.runs("innocent00"));
        }
        let watched = watch(&world, name, 100);
        signs.give(name);
        check(&world, "a hard threshold after a soft one", watched);
        let evicted = |status: &Status| reason(status, name) == "Evicted";
        world.wait("it has no time left", evicted);
        innocents.are_untouched();
        wait_over(&world, name);
    }
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

/// The kernel tells the agent when tasks wait for memory (PSI), whose evictions then look at once.
pub fn the_kernel_tells_that_tasks_wait_for_memory(kind: Kind) {
    if skip_without(&[(Path::new("/proc/pressure/memory").exists(), "a kernel with PSI")]) {
        return;
    }
    let world = World::prepare(kind, &Settings::for_kind(kind));
    world.agent.add_flag("--v=2".to_owned());
    world.agent.start();
    // They read more than the pod may use, and wait for each other's pages to go.
    let reads = "dd if=/dev/zero of=/large bs=1M count=64; \
         for n in 1 2 3 4; do while :; do dd if=/large of=/dev/null bs=64k; done & done; wait";
    let limits = json!({ "limits": { "memory": "16Mi" } });
    world.drop_pod(&Pod::with_main("waits", reads).set("containers/0/resources", limits));
    let told = || world.agent.log().contains("tasks wait for memory: reading it now");
    world.wait_until("the kernel tells", told, |told| *told);
    world.finish();
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
    world.wait_running("web");
    world.wait("the reading is told", |status| available(status) == Some(2000));
    let web = world.running_ids("web");

    meminfo(50);
    // The condition is told at once, and the reading when the agent has acted on it.
    let short = |status: &Status| holds(status, Pressure::Memory) && available(status) == Some(50);
    world.wait("the node is short of memory", short);
    world.drop_pod(&Pod::running("new"));
    let tolerates = |name: &str, operator: &str, value: Option<&str>, effect: &str| {
        let mut one = json!({ "key": "node.kubernetes.io/memory-pressure", "operator": operator, "effect": effect });
        if let Some(value) = value {
            one["value"] = json!(value);
        }
        if effect == "NoExecute" {
            one["tolerationSeconds"] = json!(600);
        }
        Pod::running(name).set("tolerations", json!([one]))
    };
    world.drop_pod(&tolerates("patient", "Exists", None, "NoSchedule"));
    world.drop_pod(&tolerates("valued", "Equal", Some("x"), "NoSchedule"));
    world.drop_pod(&tolerates("running", "Exists", None, "NoExecute"));
    world.wait_running("patient");
    world.wait("new pods are refused", |status| {
        ["new", "valued", "running"].iter().all(|pod| reason(status, pod) == "Evicted")
    });
    assert_eq!(world.running_ids("web"), web, "it is not what a pod has done");

    world.agent.kill();
    restart_with(&world, KERNELS, "");
    world.wait("by the working set there is enough", |status| {
        let enough = available(status) == Some(TOTAL_MIB - 1024);
        enough && !holds(status, Pressure::Memory) && status.runs("new")
    });
    assert_eq!(world.running_ids("web"), web);
    world.finish();
}
