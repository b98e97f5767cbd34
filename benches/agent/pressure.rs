//! The act of pressure: who takes too much memory or disk, how soon it is gone, how far it came;
//! and what watching costs.

use crate::{
    hog::{self, Bound},
    measure::Plan,
    process::Process,
    results::{Figures, MACHINE_RATE, RATES, Row},
    stage::{Candidate, SmallDisk, Stage, now, pause, seconds},
    support::manifest::{FOREVER, Pod},
};
use serde_json::json;
use std::{fs, path::Path, time::Duration};
use tokio::time::Instant;

/// What all pods together may use, and what of it has to stay free; MiB.
const ALL_PODS: usize = 1800;
const FREE: usize = 1000;
/// How far past the threshold the hog goes by itself: the limit of all pods is never reached.
const MOST: usize = 900;
/// How long an agent may take; the kubelet looks every 10 s.
const PATIENCE: Duration = Duration::from_secs(25);
/// A window of watching, and of churning page cache.
const WINDOW: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(5);
/// Pods while watching is measured.
const WATCHED: usize = 20;
/// Of the small file system: all of it, and what has to stay free.
const DISK: &str = "size=256m";
const DISK_FREE: u64 = 64 << 20;

/// One round of it.
pub fn pressure(candidate: Candidate, plan: &Plan, kubelet: Option<&Path>, figures: &mut Figures) {
    match candidate {
        // It has no agent.
        Candidate::Floor => {}
        // It evicts no static pod, and with one hog that is shown.
        Candidate::Kubelet => memory(candidate, plan, kubelet, figures, &[(1, 0)]),
        Candidate::Nodelet => {
            let all: Vec<(usize, usize)> = [0, 1]
                .into_iter()
                .flat_map(|full| (0..RATES.len()).map(move |r| (r, full)))
                .collect();
            memory(candidate, plan, kubelet, figures, &all);
            machine(figures);
            disk(figures);
            watching(figures);
            churn(figures);
        }
    }
}

/// The machine has enough; what pods may use together is bounded.
fn bounded(all_pods: usize, free: usize) -> String {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let total: usize = total.trim().trim_end_matches("kB").trim().parse().unwrap();
    format!(
        "systemReserved: {{ memory: {}Ki }}\nevictionHard: {{ memory.available: {free}Mi }}\n\
         evictionPressureTransitionPeriod: 1s\n",
        total - all_pods * 1024
    )
}

/// Hogs of these rates, alone or on a full node.
fn memory(
    candidate: Candidate,
    plan: &Plan,
    kubelet: Option<&Path>,
    figures: &mut Figures,
    cases: &[(usize, usize)],
) {
    let stage = begin(candidate, kubelet, &bounded(ALL_PODS, FREE));
    let others: Vec<Pod> =
        (1..plan.pods).map(|n| Pod::with_main(&format!("innocent-{n}"), FOREVER)).collect();
    let mut running = Vec::new();
    for &(rate, full) in cases {
        if full == 1 && running.is_empty() {
            stage.drop_pods(&others);
            stage.started(&others);
            pause(SETTLE);
            running = stage.containers(&others);
        }
        let pod = [Pod::running(&format!("hog-{rate}-{full}"))];
        stage.drop_pods(&pod);
        stage.started(&pod);
        let pid = stage.victim(&pod[0]).pid();
        let bound = Bound::of_all_pods(pid, ALL_PODS - FREE);
        let end = hog::let_loose(pid, RATES[rate], &bound, MOST, PATIENCE);
        let (took, past) = end.map_or((f64::INFINITY, f64::INFINITY), |e| (e.seconds, e.mib_past));
        figures.add(Row::Evicted(rate, full), candidate, took);
        figures.add(Row::Past(rate, full), candidate, past);
        stage.remove_pods(&pod);
        stage.gone(&pod);
    }
    assert_eq!(stage.containers(&others[..running.len()]), running, "the innocent are untouched");
}

/// A hog that the node's own signal shows: nothing bounds what pods use together.
fn machine(figures: &mut Figures) {
    let free = hog::machine_mib().1.checked_sub(ALL_PODS - FREE).expect("memory for a hog");
    let stage = begin(
        Candidate::Nodelet,
        None,
        &format!(
            "evictionHard: {{ memory.available: {free}Mi }}\n\
             evictionPressureTransitionPeriod: 1s\n"
        ),
    );
    let pod = [Pod::running("hog-of-the-machine")];
    stage.drop_pods(&pod);
    stage.started(&pod);
    let bound = Bound::of_machine(free);
    let rate = RATES[MACHINE_RATE];
    let end = hog::let_loose(stage.victim(&pod[0]).pid(), rate, &bound, MOST, PATIENCE);
    figures.add(
        Row::EvictedByMachine,
        Candidate::Nodelet,
        end.map_or(f64::INFINITY, |end| end.seconds),
    );
    stage.remove_pods(&pod);
    stage.gone(&pod);
}

/// An emptyDir that fills the file system of the root directory.
fn disk(figures: &mut Figures) {
    let free = format!("evictionHard: {{ nodefs.available: {}Mi }}\n", DISK_FREE >> 20);
    let stage = Stage::with(Candidate::Nodelet, None, &free);
    let disk = SmallDisk::over(stage.root_dir(), DISK);
    stage.start();
    stage.wait_until_well();
    pause(SETTLE);
    let script = "sleep 3; dd if=/dev/zero of=/scratch/file bs=1M count=225; sleep 100000";
    let pod = [Pod::with_main("writer", script)
        .set("volumes", json!([{ "name": "scratch", "emptyDir": {} }]))
        .set("containers/0/volumeMounts", json!([{ "name": "scratch", "mountPath": "/scratch" }]))];
    stage.drop_pods(&pod);
    stage.started(&pod);
    let wait = |enough: bool| {
        let end = Instant::now() + PATIENCE;
        while (disk.available() >= DISK_FREE) != enough {
            if Instant::now() > end {
                return None;
            }
            pause(Duration::from_millis(1));
        }
        Some(now())
    };
    let crossed = wait(false).expect("the pod fills the disk");
    let took = wait(true).map_or(f64::INFINITY, |freed| seconds(crossed, freed));
    figures.add(Row::DiskEvicted, Candidate::Nodelet, took);
    stage.remove_pods(&pod);
}

/// What is used more with thresholds than without: far from all of them, and near one.
fn watching(figures: &mut Figures) {
    let off = "evictionHard: {}\n".to_owned();
    let stage = begin(Candidate::Nodelet, None, &off);
    let pods: Vec<Pod> =
        (0..WATCHED).map(|n| Pod::with_main(&format!("watched-{n}"), FOREVER)).collect();
    stage.drop_pods(&pods);
    stage.started(&pods);
    pause(SETTLE * 2);
    let without = cpu_percent(stage.agent().unwrap());
    let used = stage.pods_memory_mib(&pods[0]);
    // The defaults, but for disks: this one may be full. Then a hundred MiB from the threshold:
    // looks as often as it gets.
    let far = "evictionHard: { memory.available: 100Mi, nodefs.available: 1Mi, nodefs.inodesFree: \"10\" }\n";
    let near = bounded(used + 400, 300);
    for (place, lines) in [far.to_owned(), near].into_iter().enumerate() {
        stage.kill_agent();
        stage.configure(&lines);
        stage.start();
        stage.wait_until_well();
        pause(SETTLE * 2);
        let with = cpu_percent(stage.agent().unwrap());
        figures.add(Row::Watching(place), Candidate::Nodelet, with - without);
    }
}

fn cpu_percent(agent: Process) -> f64 {
    let (before, begun) = (agent.cpu(), Instant::now());
    pause(WINDOW);
    100.0 * (agent.cpu() - before).as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// A pod that reads far more than fits, again and again, beside others.
fn churn(figures: &mut Figures) {
    let stage = begin(Candidate::Nodelet, None, &bounded(1500, 300));
    let large = stage.root_dir().join("large");
    // Of holes: it is read without a disk.
    fs::File::create(&large).unwrap().set_len(3 << 30).unwrap();
    let script = "while :; do dd if=/large of=/dev/null bs=1M; done";
    let file = json!({ "path": large, "type": "File" });
    let mut pods: Vec<Pod> =
        (0..4).map(|n| Pod::with_main(&format!("innocent-{n}"), FOREVER)).collect();
    pods.push(
        Pod::with_main("reader", script)
            .set("volumes", json!([{ "name": "large", "hostPath": file }]))
            .set("containers/0/volumeMounts", json!([{ "name": "large", "mountPath": "/large" }])),
    );
    stage.drop_pods(&pods);
    stage.started(&pods);
    let before = stage.containers(&pods);
    pause(WINDOW);
    let after = stage.containers(&pods);
    let gone = before.iter().filter(|id| !after.contains(id)).count();
    figures.add(Row::FalseEvictions, Candidate::Nodelet, f64::from(u32::try_from(gone).unwrap()));
}

fn begin(candidate: Candidate, kubelet: Option<&Path>, lines: &str) -> Stage {
    let stage = Stage::with(candidate, kubelet, lines);
    stage.start();
    stage.wait_until_well();
    pause(SETTLE);
    stage
}
