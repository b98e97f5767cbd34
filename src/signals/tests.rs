#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    model::{
        CgroupDirs, ContainerId, DiskLayout, PartlyMeasured, PodKey, PodUid, Reading, Space,
        VolumePlace,
    },
    skips::{root, say_skipped, skip_without},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);
const MEMINFO: &str = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 450 kB\nBuffers: 50 kB\n\
    Cached: 350 kB\nAnonPages: 400 kB\nInactive(file): 200 kB\n";

/// A machine made of files.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(TempDir::new().unwrap());
        files.put("proc/meminfo", MEMINFO);
        files.put("proc/loadavg", "0.1 0.1 0.1 3/800 4711\n");
        files.put("proc/sys/kernel/pid_max", "32768\n");
        files.put("proc/sys/kernel/threads-max", "4000\n");
        files
    }

    fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn machine(&self, signal: MemorySignal) -> MachineReader {
        MachineReader::new(&self.path("proc"), signal)
    }
}

/// What an exact look says of a signal.
fn exactly(
    machine: &mut MachineReader,
    signal: Signal,
    pods: Option<&Path>,
) -> Result<Reading, NoReading> {
    let look = SampleRequest { signals: &BTreeSet::from([signal]), pods, is_far: &|_, _| false };
    let sample = machine.sample(look);
    assert!(sample.at_least.is_empty());
    let missing = sample.missing.get(&signal).cloned();
    sample.readings.get(&signal).copied().ok_or_else(|| missing.unwrap())
}

fn numbers(reading: &Reading) -> (u64, u64) {
    (reading.available, reading.capacity)
}

#[test]
fn memory_is_the_working_set_or_the_estimate_of_the_kernel() {
    let files = Files::new();
    let read = |signal| exactly(&mut files.machine(signal), Signal::MemoryAvailable, None).unwrap();
    let reading = read(MemorySignal::WorkingSet);
    assert_eq!(numbers(&reading), ((1000 - (400 + 350 + 50 - 200)) << 10, 1_024_000));
    assert!(reading.at > Duration::ZERO);
    assert_eq!(numbers(&read(MemorySignal::MemAvailable)), (450 << 10, 1_024_000));
}

/// What those below have counted may show above two seconds later only: page cache that is read
/// meanwhile is no use.
#[test]
fn a_cgroup_whose_files_lag_is_read_by_those_below() {
    const MIB: u64 = 1 << 20;
    let (mib_of, zero) = (|n: u64| n * MIB, 0);
    let stat = |v1: bool, anon: u64, file: u64| {
        let all = [("inactive_file", file), ("active_file", zero), ("shmem", zero)];
        let more = [("unevictable", zero)];
        let own =
            if v1 { [("rss", anon), ("cache", file)] } else { [("anon", anon), ("file", file)] };
        let lines = own.into_iter().chain(all).chain(more);
        let prefix = if v1 { "total_" } else { "" };
        lines.map(|(name, n)| format!("{prefix}{name} {}\n", mib_of(n))).collect::<String>()
    };
    for v1 in [true, false] {
        let files = Files::new();
        let (usage, limit) = match v1 {
            true => ("memory.usage_in_bytes", "memory.limit_in_bytes"),
            false => ("memory.current", "memory.max"),
        };
        let put =
            |dir: &str, name: &str, text: &str| files.put(&format!("kubepods/{dir}/{name}"), text);
        put("", usage, &mib_of(600).to_string());
        put("", limit, &mib_of(700).to_string());
        put("", "memory.stat", &stat(v1, 40, 10));
        put("pod1", "memory.stat", &stat(v1, 40, 10));
        put("pod1/one", "memory.stat", &stat(v1, 40, 250));
        put("pod1/two", "memory.stat", &stat(v1, 0, 200));
        put("pod2/three", "memory.stat", &stat(v1, 0, 80));
        put("pod2/going", "cgroup.procs", "");
        let pods = files.path("kubepods");
        let available = |files: &Files| {
            let mut machine = files.machine(MemorySignal::WorkingSet);
            exactly(&mut machine, Signal::AllocatableMemoryAvailable, Some(&pods))
                .unwrap()
                .available
        };
        let by_leaves = mib_of(700 - (600 - 250 - 200 - 80));
        assert_eq!(available(&files), by_leaves, "v1 {v1}");
        // 50 MiB are still not explained; with the kernel's part nearly all is.
        put("", "memory.stat", &stat(v1, 300, 250));
        assert_eq!(available(&files), by_leaves, "v1 {v1}");
        match v1 {
            true => drop(put("", "memory.kmem.usage_in_bytes", &mib_of(40).to_string())),
            false => drop(put(
                "",
                "memory.stat",
                &(stat(v1, 300, 250) + &format!("kernel {}\n", mib_of(40))),
            )),
        }
        assert_eq!(available(&files), mib_of(700 - (600 - 250)), "v1 {v1}");
        // With more cgroups than are looked at, what it says itself counts.
        put("", "memory.stat", &stat(v1, 40, 10));
        for n in 0..1000 - 6 {
            fs::create_dir(files.path(&format!("kubepods/pod2/{n}"))).unwrap();
        }
        let one_more = files.path("kubepods/pod2/going/one-more");
        fs::create_dir(&one_more).unwrap();
        assert_eq!(available(&files), mib_of(700 - (600 - 10)), "v1 {v1}");
        fs::remove_dir(&one_more).unwrap();
        assert_eq!(available(&files), by_leaves, "v1 {v1}");
    }
}

#[test]
fn what_all_pods_may_still_use_needs_a_limit() {
    let files = Files::new();
    let pods = files.path("cgroup/kubepods");
    let signal = Signal::AllocatableMemoryAvailable;
    // One machine throughout: it keeps files open, and finds those that come later.
    let mut machine = files.machine(MemorySignal::WorkingSet);
    let mut allocatable = || match exactly(&mut machine, signal, Some(&pods)) {
        Ok(reading) => (Some(numbers(&reading)), None),
        Err(why) => (None, Some(why)),
    };
    assert!(matches!(allocatable().1, Some(NoReading::Unreadable { .. })));
    files.put("cgroup/kubepods/memory.max", "max\n");
    files.put("cgroup/kubepods/memory.current", "5000\n");
    files.put("cgroup/kubepods/memory.stat", "anon 0\nfile 1000\ninactive_file 1000\n");
    assert_eq!(allocatable(), (None, Some(NoReading::NoLimit)));
    files.put("cgroup/kubepods/memory.max", "10000\n");
    assert_eq!(allocatable(), (Some((6000, 10_000)), None));
    files.put("cgroup/kubepods/memory.max", "3000\n");
    assert_eq!(allocatable(), (Some((0, 3000)), None), "just lowered");
    files.put("cgroup/kubepods/memory.stat", "");
    assert!(matches!(allocatable().1, Some(NoReading::Absurd { .. })));
    assert_eq!(exactly(&mut machine, signal, None), Err(NoReading::NoLimit));
}

/// Far from every threshold the cheaper files will do.
#[test]
fn cheap_readings_come_first() {
    let files = Files::new();
    let pods = files.path("cgroup/kubepods");
    let mut machine = files.machine(MemorySignal::WorkingSet);
    files.put("cgroup/kubepods/memory.max", "800000\n");
    let signal = Signal::AllocatableMemoryAvailable;
    let mut available = |bound: u64| {
        let is_far = |available, _| available > bound;
        let signals = BTreeSet::from([signal]);
        let look = SampleRequest { signals: &signals, pods: Some(&pods), is_far: &is_far };
        let sample = machine.sample(look);
        let found = sample.readings.get(&signal).map(|reading| reading.available);
        (found, sample.at_least.contains(&signal))
    };
    // No file of a cgroup is there but the limit: meminfo alone.
    let at_least = 800_000 - ((1000 - 100 - 200) << 10);
    assert_eq!(available(0), (Some(at_least), true));
    assert_eq!(available(at_least), (None, false));
    files.put("cgroup/kubepods/memory.current", "5000\n");
    assert_eq!(available(at_least), (Some(795_000), true));
    files.put("cgroup/kubepods/memory.stat", "anon 0\nfile 1000\ninactive_file 1000\n");
    assert_eq!(available(795_000), (Some(796_000), false));
}

#[test]
fn a_missing_or_absurd_reading_is_no_shortage() {
    let files = Files::new();
    let read =
        |files: &Files, signal| exactly(&mut files.machine(MemorySignal::WorkingSet), signal, None);
    let why = |files: &Files| read(files, Signal::MemoryAvailable).unwrap_err();
    files.put("proc/meminfo", &MEMINFO.replace("AnonPages: 400", "AnonPages: 900"));
    assert!(why(&files).to_string().contains("larger than the machine's memory"));
    files.put("proc/meminfo", "MemTotal: 0 kB\n");
    assert!(why(&files).to_string().contains("meminfo"), "{}", why(&files));
    let pids = |files: &Files| read(files, Signal::PidAvailable);
    assert_eq!(numbers(&pids(&files).unwrap()), (3200, 4000));
    files.put("proc/loadavg", "0.1 0.1 0.1 3/9000 4711\n");
    assert_eq!(numbers(&pids(&files).unwrap()), (0, 4000), "threads-max was lowered");
    for absurd in ["", "0.1 0.1 0.1 3/0 4711", "nonsense"] {
        files.put("proc/loadavg", absurd);
        assert!(matches!(pids(&files), Err(NoReading::Absurd { .. })), "{absurd}");
    }
    files.put("proc/sys/kernel/pid_max", "0\n");
    assert!(pids(&files).unwrap_err().to_string().contains("pid_max"));
    fs::remove_file(files.path("proc/sys/kernel/pid_max")).unwrap();
    assert!(matches!(pids(&files), Err(NoReading::Unreadable { .. })));
}

#[test]
fn a_later_sample_replaces_reading_and_reason() {
    let reading = Reading { available: 1, capacity: 2, at: Duration::ZERO };
    let mut sample = Sample::default();
    sample.put(Signal::PidAvailable, Ok(reading));
    sample.put(Signal::NodefsAvailable, Err(NoReading::NotTold));
    let mut later = Sample::default();
    later.put(Signal::PidAvailable, Err(NoReading::NotTold));
    sample.update(later.clone());
    assert!(sample.readings.is_empty() && sample.missing.len() == 2);
    later.put(Signal::NodefsAvailable, Ok(reading));
    sample.update(later);
    assert_eq!(sample.readings.len(), 1);
    assert_eq!(sample.missing.keys().collect::<Vec<_>>(), [&Signal::PidAvailable]);
}

/// The machine that this runs on: its own kernel's files.
#[test]
fn this_machine_is_read() {
    let mut machine = MachineReader::new(Path::new("/proc"), MemorySignal::WorkingSet);
    let memory = exactly(&mut machine, Signal::MemoryAvailable, None).unwrap();
    assert!(memory.available > 0 && memory.available < memory.capacity, "{memory:?}");
    let pids = exactly(&mut machine, Signal::PidAvailable, None).unwrap();
    assert!(pids.available > 0 && pids.available < pids.capacity, "{pids:?}");
    let signals = BTreeSet::from([Signal::MemoryAvailable]);
    let look = SampleRequest { signals: &signals, pods: None, is_far: &|_, _| true };
    let cheap = machine.sample(look).readings[&Signal::MemoryAvailable];
    let apart = cheap.available.abs_diff(memory.available);
    assert!(apart < memory.capacity / 16, "about the same: {cheap:?} {memory:?}");
}

#[tokio::test]
async fn disks_are_read_and_located_by_device() {
    let directory = TempDir::new().unwrap();
    let mut disks = Disks::new(directory.path());
    let sample = disks.sample(SOON).await;
    let nodefs = sample.readings[&Signal::NodefsAvailable];
    assert!(nodefs.capacity > 0 && nodefs.available <= nodefs.capacity);
    assert_eq!(sample.missing[&Signal::ImagefsAvailable], NoReading::NotTold);
    let below = directory.path().join("below");
    fs::create_dir(&below).unwrap();
    let gone = PathBuf::from("/nonexistent/images");
    let images = [gone.clone(), below.clone()];
    let located = disks.locate(&images, std::slice::from_ref(&below), SOON).await;
    assert_eq!(located, Ok(DiskLayout::Single));
    let sample = disks.sample(SOON).await;
    assert_eq!(
        sample.readings[&Signal::ImagefsAvailable],
        sample.readings[&Signal::NodefsAvailable]
    );
    // Another device: every Linux has a tmpfs or the like there.
    let shm = [PathBuf::from("/dev/shm")];
    assert_eq!(disks.locate(&shm, &shm, SOON).await, Ok(DiskLayout::DedicatedImages));
    let sample = disks.sample(SOON).await;
    let of = |signal| numbers(&sample.readings[&signal]).1;
    assert_ne!(of(Signal::ImagefsAvailable), of(Signal::NodefsAvailable));
    assert_eq!(of(Signal::ContainerfsAvailable), of(Signal::ImagefsAvailable));
    assert_eq!(disks.locate(&shm, std::slice::from_ref(&below), SOON).await, Ok(DiskLayout::Split));
    assert_eq!(
        disks.locate(std::slice::from_ref(&below), &shm, SOON).await,
        Err(NoReading::Layout)
    );
    assert_eq!(disks.layout(), DiskLayout::LayersElsewhere { images_on_root: true });
    let located = disks.locate(std::slice::from_ref(&gone), &shm, SOON).await;
    assert!(matches!(located, Err(NoReading::Unreadable { .. })), "{located:?}");
    let sample = disks.sample(SOON).await;
    assert!(sample.readings.contains_key(&Signal::NodefsAvailable));
    assert!(matches!(sample.missing[&Signal::ContainerfsAvailable], NoReading::Unreadable { .. }));
}

/// Answers until the word `hang` is in the file at the path; then when it is gone. The device is
/// the file's size.
fn scripted(path: &Path) -> std::io::Result<core::FileSystemUse> {
    while fs::read_to_string(path)?.starts_with("hang") {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let device = fs::metadata(path)?.len();
    let inodes = device.saturating_sub(1);
    Ok(core::FileSystemUse {
        device,
        block: 1,
        blocks: 100,
        blocks_free: 50,
        blocks_available: 40,
        inodes,
        inodes_available: 0,
    })
}

#[tokio::test]
async fn volumes_are_asked_for_their_use() {
    let files = Files::new();
    let (one, hung) = (files.put("one", "1"), files.put("hung", "hang"));
    let mut volumes = VolumeDisks::looking(scripted);
    let whole = [one.clone(), files.0.path().join("gone")].into();
    let found = volumes.ask(&whole, SOON).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), [&one], "the other one can't be looked at");
    let fs = found[&one];
    assert_eq!((fs.bytes, fs.inodes, fs.used_bytes), ((40, 100), None, 50));
    assert_eq!(volumes.asked(), [&hung; 0]);
    for _ in 0..2 {
        let found = volumes.ask(&[hung.clone()].into(), Duration::from_millis(20)).await;
        assert!(found.is_empty());
        assert_eq!(volumes.asked(), [&hung], "its thread is left");
    }
    fs::rename(files.put("next", "12"), &hung).unwrap();
    let found = volumes.ask(&[one.clone(), hung.clone()].into(), SOON).await;
    assert_eq!((found.len(), found[&hung].inodes), (2, Some((0, 1))));
    assert_eq!(volumes.asked(), [&hung; 0]);
}

#[tokio::test]
async fn a_file_system_that_hangs_or_changes_has_no_reading() {
    let files = Files::new();
    let (root, images) = (files.put("root", "r"), files.put("images", "ii"));
    let mut disks = Disks::looking(&root, scripted);
    let at = std::slice::from_ref(&images);
    assert_eq!(disks.locate(at, at, SOON).await, Ok(DiskLayout::DedicatedImages));
    let sample = disks.sample(SOON).await;
    assert_eq!(numbers(&sample.readings[&Signal::ImagefsAvailable]), (40, 100));
    assert_eq!(numbers(&sample.readings[&Signal::NodefsInodesFree]), (0, 0));

    // Whole at any time, for the thread that reads it.
    let becomes = |text: &str| fs::rename(files.put("next", text), &images).unwrap();
    becomes("hang");
    for _ in 0..3 {
        let sample = disks.sample(Duration::from_secs(2)).await;
        assert_eq!(numbers(&sample.readings[&Signal::NodefsAvailable]), (40, 100));
        assert!(matches!(sample.missing[&Signal::ImagefsAvailable], NoReading::Hung { .. }));
        assert!(matches!(sample.missing[&Signal::ContainerfsAvailable], NoReading::Hung { .. }));
    }
    // Where it is does not change for that.
    let located = disks.locate(at, at, Duration::from_millis(400)).await;
    assert!(matches!(located, Err(NoReading::Hung { .. })), "{located:?}");
    assert_eq!((disks.layout(), disks.images()), (DiskLayout::DedicatedImages, Some(&*images)));
    // It answers the one question that it was asked.
    becomes("ii");
    let sample = disks.sample(SOON).await;
    assert_eq!(numbers(&sample.readings[&Signal::ImagefsAvailable]), (40, 100));

    becomes("another");
    let moved = NoReading::Moved { path: images.clone() };
    assert_eq!(disks.sample(SOON).await.missing[&Signal::ImagefsInodesFree], moved);
    assert_eq!(disks.locate(at, at, SOON).await, Ok(DiskLayout::DedicatedImages));
    assert!(disks.sample(SOON).await.readings.contains_key(&Signal::ImagefsAvailable));
}

/// Runs the kernel's real `/dev/kmsg` reader against what this process writes to it.
#[tokio::test]
async fn the_kernel_log_is_read_from_its_end() {
    let path = Path::new("/dev/kmsg");
    if skip_without(&[root(), (path.exists(), "/dev/kmsg")]) {
        return;
    }
    let mut log = KernelLog::open(path).unwrap();
    // Of a process, so none of it counts; the reader goes over it and waits.
    let mut writer = fs::OpenOptions::new().write(true).open(path).unwrap();
    let fake =
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task_memcg=/,task=x,pid=1,uid=0";
    writer.write_all(fake.as_bytes()).unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(200), log.next_oom()).await;
    assert!(waited.is_err(), "{waited:?}");
    let missing = KernelLog::open(Path::new("/nonexistent/kmsg")).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_psi_trigger_is_taken_by_the_kernel() {
    let proc = Path::new("/proc");
    if skip_without(&[root()]) {
        return;
    }
    if !proc.join("pressure/memory").exists() {
        say_skipped("this kernel has no PSI");
        return;
    }
    let mut trigger = PsiTrigger::memory(proc).unwrap();
    // Memory is not short: it only must not fail, and not fire for nothing at once.
    if let Ok(fired) = tokio::time::timeout(Duration::from_millis(50), trigger.fired()).await {
        fired.unwrap();
    }
    assert!(PsiTrigger::memory(Path::new("/nonexistent")).is_err());
}

#[tokio::test]
async fn page_cache_is_asked_for_where_that_would_help() {
    let files = Files::new();
    let directory = files.path("cgroup");
    assert!(reclaim(&directory, 1, 0).unwrap().is_none(), "cgroup v1");
    let file = files.put("cgroup/memory.reclaim", "");
    assert!(reclaim(&directory, 1, 0).is_err(), "no memory.stat");
    files.put("cgroup/memory.stat", "active_file 4096\ninactive_file 8192\n");
    assert!(reclaim(&directory, 4097, 0).unwrap().is_none(), "not so much is there");
    // Nothing goes from this memory.stat: all of the cache is asked for, and that is that.
    let mut reclaiming = reclaim(&directory, 4000, 4096).unwrap().unwrap();
    assert_eq!(reclaiming.ended().await, Ok(Reclaimed::Part));
    assert_eq!(fs::read_to_string(file).unwrap(), "12288 swappiness=0");
}

/// Where the parts of a pod lie below `files`.
fn places(files: &Files) -> PodPlaces {
    let container = |name: &str, id: Option<&str>| ContainerPlaces {
        name: name.into(),
        id: id.map(ContainerId::from),
        layer: None,
    };
    let volume = |name: &str, in_memory, path| VolumePlace { name: name.into(), in_memory, path };
    PodPlaces {
        key: PodKey::new("default", "web"),
        uid: PodUid::from("u1"),
        cgroup: Some(CgroupDirs::unified(files.path("pod"))),
        containers: vec![
            container("one", Some("aa11")),
            container("two", Some("bb22")),
            container("three", None),
        ],
        volumes: vec![
            volume("scratch", false, files.path("scratch")),
            volume("shm", true, PathBuf::from("/dev/shm")),
            volume("unmounted", true, files.path("scratch")),
            volume("gone", false, files.path("gone")),
        ],
        logs: Some(files.path("logs")),
        files: Some(files.path("files")),
        runtime_files: vec![files.path("runtime/hostname"), files.path("runtime/gone")],
        runtime_dirs: vec![files.path("image-volume")],
    }
}

#[tokio::test]
async fn a_pod_is_measured_in_all_its_parts() {
    let files = Files::new();
    files.put("pod/memory.current", "9000");
    files.put("pod/memory.stat", "anon 1\nfile 8999\ninactive_file 1000\n");
    files.put("pod/pids.current", "7\n");
    files.put("pod/cri-containerd-aa11.scope/memory.current", "500");
    files.put(
        "pod/cri-containerd-aa11.scope/memory.stat",
        "anon 400\nfile 100\ninactive_file 100\n",
    );
    files.put("scratch/file", &"x".repeat(100_000));
    files.put("logs/one/0.log", &"x".repeat(50_000));
    files.put("logs/one/0.log.20260101-000000.gz", "x");
    files.put("logs/two/3.log", "x");
    files.put("files/etc-hosts", &"x".repeat(60_000));
    files.put("files/containers/one/1234abcd", &"x".repeat(70_000));
    files.put("files/volumes/kubernetes.io~empty-dir/data/file", &"x".repeat(1 << 20));
    files.put("files/volume-subpaths/host/one/0/file", &"x".repeat(1 << 20));
    files.put("runtime/hostname", &"x".repeat(80_000));
    files.put("image-volume/file", &"x".repeat(90_000));
    let layer = Space { bytes: 123, inodes: 4 };
    let layers = async { BTreeMap::from([(ContainerId::from("bb22"), layer)]) };
    let pods = [places(&files), places(&files)];
    let measured = Measurer::default().measure(&pods, Parts::Everything, SOON, layers).await;
    assert_eq!(measured.len(), 2);
    assert_eq!(measured[0].usage, measured[1].usage);
    let Measured { usage, missing, measured_at } = &measured[0];
    assert!(*measured_at > Duration::ZERO);
    assert_eq!((usage.memory, usage.processes), (Some(8000), Some(7)));
    let [one, two, three] = &usage.containers[..] else { panic!("{usage:?}") };
    assert_eq!((one.memory, two.memory, three.memory), (Some(400), None, None));
    assert_eq!((one.layer, two.layer), (None, Some(layer)));
    let (first, all) = (one.logs.unwrap(), usage.logs.unwrap());
    assert!(first.bytes >= 50_000 && first.inodes == 3, "{first:?}");
    assert_eq!(two.logs.unwrap().inodes, 2);
    assert_eq!(three.logs, Some(Space::default()), "it has written none");
    assert_eq!(all.inodes, 1 + 3 + 2);
    assert!(all.bytes >= first.bytes + two.logs.unwrap().bytes);
    let space = |n: usize| usage.volumes[n].space;
    assert!(space(0).unwrap().bytes >= 100_000 && space(0).unwrap().inodes == 2);
    assert!(space(1).is_some() && space(2).is_none() && space(3).is_none());
    // Neither emptyDirs, which are counted by themselves, nor what is mounted for a subPath.
    let own = usage.files.unwrap();
    assert!((130_000..1 << 20).contains(&own.bytes) && own.inodes == 1 + 1 + 2 + 1, "{own:?}");
    let runtime = usage.runtime_files.unwrap();
    assert!(runtime.bytes >= 170_000 && runtime.inodes == 3, "{runtime:?}");
    assert_eq!(usage.partly, PartlyMeasured::default());
    assert_eq!(missing.len(), 2, "{missing:?}");
    assert!(
        missing
            .iter()
            .any(|why| why.contains("\"unmounted\"") && why.contains("nothing is mounted"))
    );
}

#[tokio::test]
async fn a_pod_without_a_turn_comes_first_the_next_time() {
    let files = Files::new();
    files.put("logs/one/0.log", "x");
    let pods = ["a", "b", "c"].map(|uid| PodPlaces { uid: uid.into(), ..places(&files) });
    let turn_patience = Duration::from_millis(10);
    let mut measurer = Measurer { turn_patience, ..Measurer::default() };
    let measure = async |measurer: &Measurer, pods: &[PodPlaces]| {
        let none = async { BTreeMap::new() };
        measurer.measure(pods, Parts::Everything, SOON, none).await
    };
    let turns = std::sync::Arc::clone(&measurer.agent_walks.turns);
    let all = turns.available_permits();
    let taken = turns.acquire_many(u32::try_from(all).unwrap()).await.unwrap();
    let measured = measure(&measurer, &pods[1..]).await;
    assert!(measured.iter().all(|pod| pod.usage.logs.is_none()));
    assert_eq!(
        measurer.agent_walks.in_order(&pods).map(|(nth, _)| nth).collect::<Vec<_>>(),
        [1, 2, 0]
    );
    measure(&measurer, &pods[1..]).await;
    let none = measure(&measurer, &[]).await;
    assert!(none.is_empty());
    measurer.keep(|uid| uid.as_str() != "b");
    assert_eq!(
        measurer.agent_walks.in_order(&pods).map(|(nth, _)| nth).collect::<Vec<_>>(),
        [2, 0, 1]
    );
    drop(taken);
    measurer.turn_patience = SOON;
    let measured = measure(&measurer, &pods).await;
    assert!(measured.iter().all(|pod| pod.usage.logs.is_some()));
    assert_eq!(
        measurer.agent_walks.in_order(&pods).map(|(nth, _)| nth).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[tokio::test]
async fn a_hung_disk_of_the_runtime_does_not_keep_the_turns_of_the_others() {
    let files = Files::new();
    for file in ["logs/one/0.log", "scratch/file"] {
        files.put(file, "x");
    }
    let turn_patience = Duration::from_millis(10);
    let measurer = Measurer { turn_patience, ..Measurer::default() };
    // As walks keep them that do not end.
    let turns = &measurer.runtime_walks.turns;
    let all = turns.available_permits();
    let _taken = turns.acquire_many(u32::try_from(all).unwrap()).await.unwrap();
    let none = async { BTreeMap::new() };
    let measured = measurer.measure(&[places(&files)], Parts::Everything, SOON, none).await;
    let Measured { usage, missing, .. } = &measured[0];
    assert!(usage.logs.is_some() && usage.volumes[0].space.is_some(), "{usage:?}");
    assert_eq!(usage.runtime_files, None);
    assert!(missing.iter().any(|why| why.starts_with("the runtime's files: ")), "{missing:?}");
}

#[tokio::test]
async fn memory_alone_walks_nothing() {
    let files = Files::new();
    files.put("pod/memory.current", "9000");
    files.put("scratch/file", "x");
    let pods = [places(&files)];
    let none = async { BTreeMap::new() };
    let measured = Measurer::default().measure(&pods, Parts::Cgroups, SOON, none).await;
    let Measured { usage, missing, .. } = &measured[0];
    assert_eq!((usage.memory, usage.processes, usage.logs), (None, None, None));
    assert!(usage.volumes.iter().all(|volume| volume.space.is_none()));
    assert_eq!(missing.len(), 2, "memory.stat and pids.current: {missing:?}");
}

#[tokio::test]
async fn a_pod_that_takes_too_long_is_measured_in_part() {
    let files = Files::new();
    files.put("scratch/file", "x");
    files.put("logs/one/0.log", "x");
    let pods = [places(&files)];
    let none = async { BTreeMap::new() };
    let measurer = Measurer::default();
    let measured = measurer.measure(&pods, Parts::Everything, Duration::ZERO, none).await;
    let Measured { usage, missing, .. } = &measured[0];
    assert!(usage.partly.root_dir, "{usage:?}");
    assert_eq!(usage.volumes[0].space.unwrap().inodes, 1, "the directory itself");
    assert!(missing.contains(&"logs: there is more than could be counted".to_owned()));
}

#[tokio::test]
async fn a_pod_waits_for_its_turn_and_does_not_lose_its_time() {
    let files = Files::new();
    for n in 0..20 {
        files.put(&format!("scratch/{n}/file"), "x");
    }
    let pods: Vec<PodPlaces> = (0..40).map(|_| places(&files)).collect();
    let none = async { BTreeMap::new() };
    let measured = Measurer::default().measure(&pods, Parts::Everything, SOON, none).await;
    assert!(measured.iter().all(|one| one.usage.volumes[0].space.unwrap().inodes == 41));
}

async fn turn() -> walk::Turn {
    let turns = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
    walk::turn(&turns, SOON).await.unwrap()
}

async fn walked(path: &Path) -> walk::Tree {
    walk::walk(&turn().await, path, &[], SOON).await.unwrap()
}

#[tokio::test]
async fn walking_counts_what_du_counts() {
    let files = Files::new();
    let top = files.path("top");
    let large = files.put("top/a/large", &"x".repeat(200_000));
    fs::hard_link(&large, top.join("a/again")).unwrap();
    fs::create_dir(top.join("b")).unwrap();
    fs::hard_link(&large, top.join("b/third")).unwrap();
    symlink("/usr", top.join("b/link")).unwrap();
    let sparse = fs::File::create(top.join("b/sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    nix::unistd::mkfifo(&top.join("b/fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let tree = walked(&top).await;
    let blocks = |path: &str| fs::symlink_metadata(top.join(path)).unwrap().blocks() * 512;
    let names = ["", "a", "a/large", "b", "b/link", "b/sparse", "b/fifo"];
    let expected: u64 = names.into_iter().map(blocks).sum();
    assert_eq!(tree.all, Space { bytes: expected, inodes: 7 });
    assert!(tree.all.bytes < 1 << 20, "neither /usr nor the hole");
    let sum = tree.branch("a") + tree.branch("b");
    assert_eq!(sum.inodes, 6);
    assert_eq!(tree.branch("c"), Space::default());
}

#[tokio::test]
async fn walking_is_not_led_out_by_a_mount() {
    let files = Files::new();
    files.put("top/file", "x");
    let inner = files.path("top/inner");
    fs::create_dir(&inner).unwrap();
    let none: Option<&str> = None;
    let flags = nix::mount::MsFlags::empty();
    if skip_without(&[root()]) {
        return;
    }
    nix::mount::mount(Some("tmpfs"), &inner, Some("tmpfs"), flags, none).unwrap();
    fs::write(inner.join("large"), vec![b'x'; 1 << 20]).unwrap();
    // Whatever the pod says now.
    let [due, undue] = [true, false];
    let due = walk::empty_dir(&turn().await, &inner, due, SOON).await.unwrap();
    let undue = walk::empty_dir(&turn().await, &inner, undue, SOON).await.unwrap();
    let tree = walked(&files.path("top")).await;
    nix::mount::umount(&inner).unwrap();
    assert_eq!(tree.all.inodes, 2, "itself and one file");
    assert_eq!(due, undue);
    assert!(due.in_memory && due.whole);
    assert_eq!(due.all, Space { bytes: 1 << 20, inodes: 2 });
}

/// A chain of directories, the deepest of which is returned. Longer than a path can be.
fn chain(top: &Path, depth: u64, name: &str) -> std::os::fd::OwnedFd {
    fs::create_dir_all(top).unwrap();
    let name = CString::new(name).unwrap();
    let flags = nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_RDONLY;
    let mode = nix::sys::stat::Mode::S_IRWXU;
    let mut at = nix::fcntl::open(top, flags, mode).unwrap();
    for _ in 0..depth {
        nix::sys::stat::mkdirat(&at, name.as_c_str(), mode).unwrap();
        at = nix::fcntl::openat(&at, name.as_c_str(), flags, mode).unwrap();
    }
    at
}

#[tokio::test]
async fn a_deep_tree_is_walked_whole_with_few_descriptors() {
    let files = Files::new();
    let top = files.path("top");
    let depth = 300;
    chain(&top, depth, &"d".repeat(200));
    let tree = walked(&top).await;
    assert_eq!((tree.all.inodes, tree.whole), (depth + 1, true));
}

#[tokio::test]
async fn many_deep_directories_are_walked_whole() {
    let files = Files::new();
    let top = files.path("top");
    // One directory that is closed when the walk goes deeper below it, with more entries than are
    // read at once.
    let wide = chain(&top, 20, "d");
    let (mode, entries) = (nix::sys::stat::Mode::S_IRWXU, 3000);
    for n in 0..entries {
        nix::sys::stat::mkdirat(&wide, format!("{n:0100}").as_str(), mode).unwrap();
    }
    let flags = nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_RDONLY;
    let long = [0, 1, 1500, entries - 1].map(|n: u64| {
        let mut at = nix::fcntl::openat(&wide, format!("{n:0100}").as_str(), flags, mode).unwrap();
        for _ in 0..40 {
            nix::sys::stat::mkdirat(&at, "e", mode).unwrap();
            at = nix::fcntl::openat(&at, "e", flags, mode).unwrap();
        }
        40
    });
    let tree = walked(&top).await;
    let expected = 1 + 20 + entries + long.iter().sum::<u64>();
    assert_eq!((tree.all.inodes, tree.whole), (expected, true));
}

/// Directories are moved all the time while they are walked.
#[test]
fn a_walk_ends_though_its_directories_move_all_the_time() {
    let files = Files::new();
    let top = files.path("top");
    chain(&top.join("a"), 60, "d");
    chain(&top.join("b"), 60, "d");
    let deep = |name: &str| top.join(name).join(["d"; 30].join("/"));
    let over = std::sync::atomic::AtomicBool::new(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                fs::rename(deep("a"), top.join("b/moved")).unwrap();
                fs::rename(top.join("b/moved"), deep("a")).unwrap();
            }
        });
        // What moves from where the walk was to where it will be counts twice, and may be lost the
        // other way round.
        let ended = (0..30).all(|_| runtime.block_on(walked(&top)).all.inodes > 0);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(ended);
    });
    let tree = runtime.block_on(walked(&top));
    assert_eq!((tree.all.inodes, tree.whole), (1 + 2 * 61, true));
}

#[tokio::test]
async fn files_with_many_names_count_once() {
    let files = Files::new();
    let first = files.put("top/0", &"x".repeat(1 << 20));
    let second = files.put("top/a/0", &"x".repeat(1 << 20));
    for n in 1..200 {
        fs::hard_link(&first, files.path("top").join(n.to_string())).unwrap();
        fs::hard_link(&second, files.path("top/a").join(n.to_string())).unwrap();
    }
    let tree = walked(&files.path("top")).await;
    assert_eq!(tree.all.inodes, 2 + 2);
    assert!((2 << 20..3 << 20).contains(&tree.all.bytes), "{tree:?}");
}

#[tokio::test]
async fn a_bind_mount_of_the_same_file_system_is_not_entered() {
    let files = Files::new();
    files.put("outside/large", &"x".repeat(1 << 20));
    files.put("top/file", "x");
    let inner = files.path("top/inner");
    fs::create_dir(&inner).unwrap();
    if skip_without(&[root()]) {
        return;
    }
    let (none, flags): (Option<&str>, _) = (None, nix::mount::MsFlags::MS_BIND);
    nix::mount::mount(Some(&files.path("outside")), &inner, none, flags, none).unwrap();
    let tree = walked(&files.path("top")).await;
    nix::mount::umount(&inner).unwrap();
    assert_eq!(tree.all.inodes, 3, "itself, one file and the mount point");
}

#[tokio::test]
async fn a_walk_that_runs_out_of_time_gives_a_lower_bound() {
    let files = Files::new();
    for n in 0..2000 {
        files.put(&format!("top/{n}"), "");
    }
    let turns = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
    let turn = walk::turn(&turns, SOON).await.unwrap();
    let tree = walk::walk(&turn, &files.path("top"), &[], Duration::ZERO).await.unwrap();
    assert_eq!((tree.all.inodes, tree.whole), (1, false));
    let late = walk::turn(&turns, Duration::ZERO).await;
    assert!(matches!(late, Err(WalkError::Late(_))), "its turn is not over: {late:?}");
    drop(turn);
    // Nothing of the walk runs any more.
    assert!(walk::turn(&turns, SOON).await.is_ok());
}

#[tokio::test]
async fn a_turn_has_one_thread_until_that_hangs_or_crashes() {
    let turns = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
    let turn = walk::turn(&turns, SOON).await.unwrap();
    let thread = async || {
        let works = |_: &mut _| Ok(std::thread::current().id());
        walk::on_thread(&turn, Path::new("/"), SOON, works).await.unwrap()
    };
    let first = thread().await;
    assert_eq!(thread().await, first);
    let (release, held) = std::sync::mpsc::channel::<()>();
    let hangs = move |_: &mut _| Ok(held.recv().is_ok());
    let hung = walk::on_thread(&turn, Path::new("/"), Duration::from_millis(20), hangs).await;
    assert!(matches!(hung, Err(WalkError::Late(_))), "{hung:?}");
    let second = thread().await;
    assert_ne!(second, first);
    let crashes = |_: &mut _| -> Result<(), WalkError> { panic!("as asked") };
    let crashed = walk::on_thread(&turn, Path::new("/"), SOON, crashes).await;
    assert!(matches!(crashed, Err(WalkError::Unreadable(_))), "{crashed:?}");
    assert_ne!(thread().await, second);
    // What hangs keeps the turn.
    drop(turn);
    let late = walk::turn(&turns, Duration::from_millis(20)).await;
    assert!(matches!(late, Err(WalkError::Late(_))), "{late:?}");
    drop(release);
    assert!(walk::turn(&turns, SOON).await.is_ok());
}

#[test]
fn processes_outside_the_pods_are_found() {
    let files = Files::new();
    for (pid, name, kibibytes, cgroup) in [
        (10, "small", 100, "0::/system.slice"),
        (11, "pod", 900, "5:memory:/kubepods/pod1/2\n0::/x"),
        (12, "large", 500, "0::/user.slice"),
        (13, "middle", 300, "0::/"),
        (14, "kernel", 0, "0::/"),
    ] {
        let status = format!("Name:\t{name}\nVmRSS:\t{kibibytes} kB\nThreads:\t{pid}\n");
        files.put(&format!("proc/{pid}/status"), &status);
        files.put(&format!("proc/{pid}/cgroup"), cgroup);
    }
    files.put("proc/15/status", "torn");
    let pods = ["/kubepods".to_owned()];
    let found = outsiders::processes(&files.path("proc"), &pods, 2, |process| process.resident);
    let names: Vec<_> = found.iter().map(|one| (one.pid, one.process.name.as_str())).collect();
    assert_eq!(names, [(12, "large"), (13, "middle")]);
    let found = outsiders::processes(&files.path("proc"), &pods, 1, |process| process.threads);
    assert_eq!(found[0].process.name, "kernel");
    let here = outsiders::processes(Path::new("/proc"), &pods, 3, |process| process.resident);
    assert!(!here.is_empty() && here[0].process.resident > 0);
}

#[tokio::test]
async fn large_directories_outside_the_pods_are_found() {
    let files = Files::new();
    files.put("var/log/app/large", &"x".repeat(300_000));
    files.put("var/log/small/file", "x");
    files.put("var/known/data/file", &"x".repeat(900_000));
    files.put("var/cache/file", &"x".repeat(100_000));
    let places = [files.path("var"), files.path("var/log")];
    let known = [files.path("var/known/data")];
    let size: fn(&Space) -> u64 = |space| space.bytes;
    let same = files.path("var");
    files.put("var/core", &"x".repeat(200_000));
    let found =
        outsiders::directories_in((&places, Vec::new), &same, &known, 2, (SOON, size)).await;
    let paths: Vec<_> = found.iter().map(|one| one.path.clone()).collect();
    assert_eq!(paths, [files.path("var/log/app"), files.path("var/core")]);
    assert!(found[0].space.bytes >= 300_000);
    let elsewhere = Path::new("/proc");
    let found = outsiders::directories_in((&places, Vec::new), elsewhere, &[], 2, (SOON, size));
    assert_eq!(found.await, []);
}
