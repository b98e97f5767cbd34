use super::{core::*, systemd::fake::FakeSystemd, *};
use crate::{
    model::{NodeCapacity, ToldDriver},
    podspec::{HugepageLimit, PodCgroup},
    skips::{say_skipped, skip_without},
};
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Command},
    sync::atomic::{AtomicUsize, Ordering},
};

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
90 31 0:36 / /mnt/again rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";

fn settings(root: &str) -> CgroupSettings {
    CgroupSettings {
        root: root.to_owned(),
        per_qos: true,
        driver: CgroupDriver::Cgroupfs,
        systemd: SystemdSockets { private: "/nonexistent".into(), bus: "/nonexistent".into() },
    }
}

/// On these hierarchies, below a runtime that does not tell its driver.
fn told(hierarchies: Vec<Hierarchy>, settings: &CgroupSettings) -> Cgroups {
    let cgroups = Cgroups::on_hierarchies(hierarchies, settings).unwrap();
    cgroups.runtime_tells(ToldDriver::NotOffered);
    cgroups
}

fn burstable(uid: &str) -> [String; 3] {
    ["kubepods".to_owned(), "burstable".to_owned(), format!("pod{uid}")]
}

fn values() -> PodCgroup {
    PodCgroup {
        cpu_shares: 256,
        cpu_quota_micros: Some(50_000),
        cpu_period_micros: 100_000,
        memory_limit_bytes: Some(64 << 20),
        pids_max: Some(100),
        hugepage_limits: vec![HugepageLimit { page_size_bytes: 2 << 20, limit_bytes: 4 << 20 }],
    }
}

/// The values of a pod without limits.
fn unlimited() -> PodCgroup {
    PodCgroup { cpu_shares: 2, cpu_period_micros: 100_000, ..PodCgroup::default() }
}

#[test]
fn finds_the_mounted_hierarchies() {
    let found = hierarchies(HYBRID.as_bytes());
    let names: Vec<String> = found.iter().map(|h| h.controllers.join(",")).collect();
    assert_eq!(names, ["cpu,cpuacct", "memory", "pids", "name=systemd", ""]);
    assert!(found[4].unified && !found[0].unified);
    assert_eq!(found[2].mount_point, Path::new("/sys/fs/cgroup/pids"));
    let v2 = hierarchies(b"30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n");
    assert_eq!(v2.len(), 1);
    assert!(v2[0].unified);
}

#[test]
fn writes_v1_and_v2_values_in_an_order_that_the_kernel_takes() {
    let limits = Limits::of_pod(&values());
    let line = |s: &Setting| format!("{}={}", s.file, s.value);
    assert_eq!(
        settings_v1(&limits).iter().map(line).collect::<Vec<_>>(),
        [
            "cpu.shares=256",
            "cpu.cfs_period_us=100000",
            "cpu.cfs_quota_us=50000",
            "memory.limit_in_bytes=67108864",
            "pids.max=100",
            "hugetlb.2MB.limit_in_bytes=4194304",
            "hugetlb.2MB.rsvd.limit_in_bytes=4194304",
        ]
    );
    assert_eq!(
        settings_v2(&limits).iter().map(line).collect::<Vec<_>>(),
        [
            "cpu.weight=10",
            "cpu.max=50000 100000",
            "memory.max=67108864",
            "pids.max=100",
            "hugetlb.2MB.max=4194304",
            "hugetlb.2MB.rsvd.max=4194304",
        ]
    );
    let unlimited = Limits::of_pod(&unlimited());
    assert_eq!(
        settings_v1(&unlimited).iter().map(line).collect::<Vec<_>>(),
        [
            "cpu.shares=2",
            "cpu.cfs_period_us=100000",
            "cpu.cfs_quota_us=-1",
            "memory.limit_in_bytes=-1",
            "pids.max=max",
        ]
    );
    assert_eq!(
        settings_v2(&unlimited).iter().map(line).collect::<Vec<_>>(),
        ["cpu.weight=1", "cpu.max=max 100000", "memory.max=max", "pids.max=max"]
    );
}

#[test]
fn node_limits_take_off_what_is_reserved() {
    let capacity = NodeCapacity {
        cpu_milli: 4000,
        memory_bytes: 8 << 30,
        pids: 32_768,
        hugepages: BTreeMap::from([(2 << 20, 0)]),
    };
    let reserved = Reserved { cpu_milli: 500, memory_bytes: 1 << 30, pids: 1000 };
    let limits = node_limits(&capacity, &reserved, true);
    assert_eq!(limits.cpu_shares, Some(3584));
    assert_eq!(limits.memory_bytes, Some(7 << 30));
    assert_eq!(limits.pids, Some(31_768));
    assert!(limits.hugepages.is_empty());
    assert_eq!(node_limits(&capacity, &reserved, false).memory_bytes, Some(8 << 30));
    let all = Reserved { cpu_milli: 9000, memory_bytes: 9 << 30, pids: 0 };
    assert_eq!(node_limits(&capacity, &all, true).memory_bytes, Some(0));
}

#[test]
fn files_are_read_strictly() {
    assert_eq!(parse_procs("12\n0\n1\n34\n"), [12, 34]);
    assert_eq!(page_size_of_file("hugetlb.2MB.max"), Some("2MB"));
    assert_eq!(page_size_of_file("hugetlb.1GB.limit_in_bytes"), Some("1GB"));
    assert_eq!(page_size_of_file("hugetlb.1GB.rsvd.max"), None);
    assert_eq!(page_size_name(64), "64KB");
    assert_eq!(page_size_name(2048), "2MB");
    assert_eq!(page_size_name(1 << 20), "1GB");
}

#[test]
fn refuses_what_it_cannot_work_with() {
    let error = Cgroups::on_hierarchies(Vec::new(), &settings("/")).unwrap_err();
    assert!(matches!(error, CgroupError::NoHierarchy));
    let dir = tempfile::tempdir().unwrap();
    let error = Cgroups::on_hierarchies(fake_v2(dir.path()), &settings("/a/../b")).unwrap_err();
    assert!(matches!(error, CgroupError::InvalidName { .. }));
    // As on a Raspberry Pi, whose firmware switches the memory controller off.
    let cgroups = Cgroups::on_hierarchies(fake_v2(dir.path()), &settings("/")).unwrap();
    cgroups.require_controllers().unwrap();
    populate(dir.path(), Some("cpuset cpu io pids"));
    assert_eq!(
        cgroups.require_controllers().unwrap_err().to_string(),
        "cgroup v2 controllers are missing: memory. Pods can't be limited without them. Enable them \
         on the kernel's command line (cgroup_enable=memory), or delegate them to the container or \
         unit around the agent (Delegate=yes)"
    );
}

#[tokio::test]
async fn nothing_is_managed_without_a_tree_per_qos() {
    let dir = tempfile::tempdir().unwrap();
    let off = CgroupSettings { per_qos: false, ..settings("/") };
    let cgroups = Cgroups::on_hierarchies(fake_v2(dir.path()), &off).unwrap();
    let name = burstable("1");
    assert_eq!(cgroups.cri_parent(&name).unwrap(), "");
    assert!(cgroups.pod_exists(&name));
    assert!(!cgroups.ensure_pod(&name, &values()).await.unwrap());
    cgroups.ensure_shared(&Limits::default(), 100).await.unwrap();
    assert!(cgroups.list_pods().unwrap().is_empty());
    assert!(!dir.path().join("kubepods").exists());
}

#[test]
fn huge_pages_are_limited_only_with_the_hugetlb_controller() {
    let machine = NodeCapacity {
        hugepages: BTreeMap::from([(2 << 20, 0), (1 << 30, 0)]),
        ..NodeCapacity::default()
    };
    let sizes = |hierarchies| {
        let cgroups = Cgroups::on_hierarchies(hierarchies, &settings("/")).unwrap();
        cgroups.limited_page_sizes(&machine)
    };
    let all = [2 << 20, 1 << 30];
    // v1: whether a hierarchy with the controller is mounted.
    let without = hierarchies(HYBRID.as_bytes());
    let mut with = without.clone();
    with.push(Hierarchy {
        mount_point: "/sys/fs/cgroup/hugetlb".into(),
        controllers: vec!["hugetlb".to_owned()],
        unified: false,
    });
    assert_eq!(sizes(without), [0_u64; 0]);
    assert_eq!(sizes(with), all);
    // v2: whether the root lists it.
    let dir = tempfile::tempdir().unwrap();
    let v2 = fake_v2(dir.path());
    assert_eq!(sizes(v2.clone()), all);
    populate(dir.path(), Some("cpuset cpu io memory pids"));
    assert_eq!(sizes(v2), [0_u64; 0]);
}

/// A directory that stands for a v2 mount. The kernel's part, making files in a new cgroup, is
/// played by [`populate`] beforehand.
fn fake_v2(root: &Path) -> Vec<Hierarchy> {
    populate(root, Some("cpuset cpu io memory hugetlb pids"));
    vec![Hierarchy { mount_point: root.to_owned(), controllers: Vec::new(), unified: true }]
}

fn populate(directory: &Path, controllers: Option<&str>) {
    fs::create_dir_all(directory).unwrap();
    for file in [
        "cgroup.subtree_control",
        "cpu.weight",
        "cpu.max",
        "memory.max",
        "pids.max",
        "hugetlb.2MB.max",
        "hugetlb.1GB.max",
    ] {
        fs::write(directory.join(file), "").unwrap();
    }
    if let Some(controllers) = controllers {
        fs::write(directory.join("cgroup.controllers"), controllers).unwrap();
    }
}

#[tokio::test]
async fn v2_enables_controllers_before_values_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let all = "cpuset cpu io memory hugetlb pids";
    let pod = root.join("own/kubepods/burstable/pod1");
    populate(&pod, None);
    for parent in ["own", "own/kubepods", "own/kubepods/burstable", "own/kubepods/besteffort"] {
        populate(&root.join(parent), Some(all));
    }
    let cgroups = told(fake_v2(root), &settings("/own/"));
    assert_eq!(cgroups.version(), CgroupVersion::V2);
    let name = burstable("1");
    assert_eq!(cgroups.cri_parent(&name).unwrap(), "/own/kubepods/burstable/pod1");
    cgroups.ensure_shared(&Limits { pids: Some(7), ..Limits::default() }, 1024).await.unwrap();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(read("own/kubepods/pids.max"), "7");
    assert_eq!(read("own/kubepods/burstable/cpu.weight"), "39");
    assert_eq!(read("own/kubepods/besteffort/cpu.weight"), "1");

    // A directory without its controllers counts as missing: it gets them and its values.
    assert!(!cgroups.pod_exists(&name));
    assert!(cgroups.ensure_pod(&name, &values()).await.unwrap());
    for parent in ["", "own", "own/kubepods", "own/kubepods/burstable"] {
        let enabled = read(format!("{parent}/cgroup.subtree_control").trim_start_matches('/'));
        assert_eq!(enabled, "+cpuset +cpu +io +memory +hugetlb +pids", "{parent:?}");
    }
    assert_eq!(read("own/kubepods/burstable/pod1/cgroup.subtree_control"), "");
    assert_eq!(read("own/kubepods/burstable/pod1/memory.max"), "67108864");
    assert_eq!(read("own/kubepods/burstable/pod1/cpu.max"), "50000 100000");
    assert_eq!(read("own/kubepods/burstable/pod1/hugetlb.2MB.max"), "4194304");
    assert_eq!(read("own/kubepods/burstable/pod1/hugetlb.1GB.max"), "0");

    // One that is there and empty may be what an agent began that was killed.
    populate(&pod, Some(all));
    assert!(cgroups.pod_exists(&name));
    assert!(cgroups.ensure_pod(&name, &values()).await.unwrap());
    assert_eq!(read("own/kubepods/burstable/pod1/memory.max"), "67108864");
    populate(&pod, Some(all));
    fs::write(pod.join("cgroup.procs"), "4242\n").unwrap();
    assert!(!cgroups.ensure_pod(&name, &values()).await.unwrap(), "something runs in it");
    assert_eq!(read("own/kubepods/burstable/pod1/memory.max"), "");
    let found = cgroups.list_pods().unwrap();
    assert_eq!(found, [FoundPod { uid: "1".into(), name: name.to_vec() }]);
}

#[tokio::test]
async fn limits_that_a_new_revision_lacks_are_lifted() {
    let dir = tempfile::tempdir().unwrap();
    let cgroups = told(fake_v2(dir.path()), &settings("/"));
    let pod = dir.path().join("kubepods/burstable/pod1");
    for parent in ["kubepods", "kubepods/burstable", "kubepods/burstable/pod1"] {
        populate(&dir.path().join(parent), Some("cpu memory hugetlb pids"));
    }
    // As an attempt with limits has left it. A kernel without CPU quotas lacks their file.
    fs::write(pod.join("memory.max"), "4").unwrap();
    fs::remove_file(pod.join("cpu.max")).unwrap();
    assert!(cgroups.ensure_pod(&burstable("1"), &unlimited()).await.unwrap());
    let read = |file: &str| fs::read_to_string(pod.join(file)).unwrap();
    assert_eq!((read("memory.max"), read("pids.max")), ("max".to_owned(), "max".to_owned()));
}

/// A tree in which systemd makes the directories and the kernel their files.
async fn with_systemd(root: &Path, driver: CgroupDriver) -> (FakeSystemd, Cgroups) {
    let fake = FakeSystemd::start(&root.join("sockets")).await;
    let tree = root.join("tree");
    let all = "cpuset cpu io memory hugetlb pids";
    let cgroups = Cgroups::on_hierarchies(
        fake_v2(&tree),
        &CgroupSettings { driver, systemd: fake.sockets(), ..settings("/") },
    )
    .unwrap();
    // A slice lies in the slices that its name tells.
    fake.on_start(move |slice| {
        let stem = slice.strip_suffix(".slice").unwrap();
        let ends = stem.match_indices('-').map(|(at, _)| at).chain([stem.len()]);
        let path =
            ends.fold(tree.clone(), |path, end| path.join(format!("{}.slice", &stem[..end])));
        populate(&path, Some(all));
    });
    (fake, cgroups)
}

#[tokio::test]
async fn slices_are_made_through_systemd_and_finished_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let (fake, cgroups) = with_systemd(dir.path(), CgroupDriver::Cgroupfs).await;
    let name = burstable("12-34");
    assert!(!cgroups.pod_exists(&name), "nothing is there before the driver is known");
    cgroups.runtime_tells(ToldDriver::Uses(CgroupDriver::Systemd));
    let limits = Limits { pids: Some(7), memory_bytes: Some(1 << 30), ..Limits::default() };
    cgroups.ensure_shared(&limits, 1024).await.unwrap();
    let pods = dir.path().join("tree/kubepods.slice/kubepods-burstable.slice");
    let pod = pods.join("kubepods-burstable-pod12_34.slice");
    assert!(cgroups.ensure_pod(&name, &values()).await.unwrap());
    assert_eq!(
        fake.calls(),
        [
            "StartTransientUnit kubepods.slice Description=Kubernetes pods: kubepods \
             DefaultDependencies=false CPUAccounting=true MemoryAccounting=true TasksAccounting=true \
             IOAccounting=true MemoryMax=1073741824 TasksMax=7",
            "StartTransientUnit kubepods-burstable.slice \
             Description=Kubernetes pods: kubepods/burstable DefaultDependencies=false \
             CPUAccounting=true MemoryAccounting=true TasksAccounting=true IOAccounting=true \
             CPUWeight=39",
            "StartTransientUnit kubepods-besteffort.slice \
             Description=Kubernetes pods: kubepods/besteffort DefaultDependencies=false \
             CPUAccounting=true MemoryAccounting=true TasksAccounting=true IOAccounting=true \
             CPUWeight=1",
            "StartTransientUnit kubepods-burstable-pod12_34.slice \
             Description=Kubernetes pods: kubepods/burstable/pod12-34 DefaultDependencies=false \
             CPUAccounting=true MemoryAccounting=true TasksAccounting=true IOAccounting=true \
             CPUWeight=10 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 MemoryMax=67108864 \
             TasksMax=100",
        ]
    );
    assert_eq!(
        cgroups.cri_parent(&name).unwrap(),
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice"
    );
    // The same files as with the other driver, huge pages among them.
    let read = |file: &str| fs::read_to_string(pod.join(file)).unwrap();
    assert_eq!(
        (read("cpu.max").as_str(), read("memory.max").as_str()),
        ("50000 100000", "67108864")
    );
    assert_eq!(
        (read("hugetlb.2MB.max").as_str(), read("hugetlb.1GB.max").as_str()),
        ("4194304", "0")
    );
    let enabled = fs::read_to_string(pods.join("cgroup.subtree_control")).unwrap();
    assert_eq!(enabled, "+cpuset +cpu +io +memory +hugetlb +pids");

    assert!(cgroups.pod_exists(&name));
    fs::write(pod.join("cgroup.procs"), "4242\n").unwrap();
    assert!(!cgroups.ensure_pod(&name, &values()).await.unwrap(), "something runs in it");
    fs::remove_file(pod.join("cgroup.procs")).unwrap();
    cgroups.ensure_shared(&limits, 2048).await.unwrap();
    assert_eq!(
        fake.calls()[4..],
        [
            "SetUnitProperties kubepods.slice MemoryMax=1073741824 TasksMax=7",
            "SetUnitProperties kubepods-burstable.slice CPUWeight=79",
            "SetUnitProperties kubepods-besteffort.slice CPUWeight=1",
        ]
    );
    let found = cgroups.list_pods().unwrap();
    assert_eq!(found, [FoundPod { uid: "12-34".into(), name: name.to_vec() }]);
    // Nothing of the pod runs yet, and a new revision of it has no limits.
    assert!(cgroups.ensure_pod(&name, &unlimited()).await.unwrap());
    assert_eq!(
        fake.calls()[7..],
        ["SetUnitProperties kubepods-burstable-pod12_34.slice CPUWeight=1 \
          CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=18446744073709551615 \
          MemoryMax=18446744073709551615 TasksMax=18446744073709551615"]
    );
}

#[tokio::test]
async fn a_pod_of_the_other_driver_is_found_and_its_slice_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (fake, cgroups) = with_systemd(dir.path(), CgroupDriver::Systemd).await;
    cgroups.runtime_tells(ToldDriver::NotOffered);
    let name = burstable("1");
    assert!(cgroups.ensure_pod(&name, &values()).await.unwrap());
    cgroups.runtime_tells(ToldDriver::Uses(CgroupDriver::Cgroupfs));
    assert!(!cgroups.pod_exists(&name), "it is to be made anew before a sandbox is");
    assert_eq!(cgroups.cri_parent(&name).unwrap(), "/kubepods/burstable/pod1");
    assert_eq!(cgroups.list_pods().unwrap().len(), 1);
    // Files can't be removed from a directory that only stands for a cgroup.
    cgroups.remove_pod(&name).await.unwrap_err();
    assert_eq!(fake.calls()[1], "StopUnit kubepods-burstable-pod1.slice");
    let warnings: Vec<String> = cgroups.driver_state().borrow().warnings().cloned().collect();
    assert!(warnings[0].contains("the container runtime uses cgroupfs"), "{warnings:?}");
}

#[test]
fn a_refusal_is_explained_when_it_is_about_cgroups() {
    let dir = tempfile::tempdir().unwrap();
    let cgroups = told(fake_v2(dir.path()), &settings("/"));
    let refusal = "failed to create containerd task: failed to create shim task: OCI runtime create \
                   failed: runc create failed: expected cgroupsPath to be of format \
                   \"slice:prefix:name\" for systemd cgroups, got \"/kubepods/besteffort/pod1/2\" \
                   instead: unknown";
    assert!(cgroups.runtime_refused(refusal).unwrap().contains("`cgroupDriver: systemd`"));
    assert_eq!(cgroups.runtime_refused("no such image"), None);
}

#[tokio::test]
async fn a_slice_that_systemd_refuses_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (fake, cgroups) = with_systemd(dir.path(), CgroupDriver::Systemd).await;
    cgroups.runtime_tells(ToldDriver::NotOffered);
    fake.refuse("StartTransientUnit", "org.freedesktop.systemd1.ShuttingDown", "going down");
    let error = cgroups.ensure_pod(&burstable("1"), &values()).await.unwrap_err();
    assert_eq!(
        crate::model::error_chain(&error),
        "cannot make kubepods-burstable-pod1.slice (cgroup driver systemd): systemd refuses \
         StartTransientUnit: org.freedesktop.systemd1.ShuttingDown: going down"
    );
    assert!(!dir.path().join("tree/kubepods.slice").exists());
}

#[tokio::test]
async fn pods_wait_until_the_runtime_tells_its_driver() {
    let dir = tempfile::tempdir().unwrap();
    let (_fake, cgroups) = with_systemd(dir.path(), CgroupDriver::Cgroupfs).await;
    cgroups.ensure_shared(&Limits::default(), 2).await.unwrap();
    let name = burstable("1");
    let tells = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(!dir.path().join("tree/kubepods").exists());
        cgroups.runtime_tells(ToldDriver::Uses(CgroupDriver::Systemd));
    };
    let values = values();
    let (made, ()) = tokio::join!(cgroups.ensure_pod(&name, &values), tells);
    assert!(made.unwrap());
    assert!(dir.path().join("tree/kubepods.slice/kubepods-burstable.slice").exists());
}

/// A cgroup root of this test alone in every hierarchy; gone at the end, whatever happens.
struct TestRoot {
    hierarchies: Vec<Hierarchy>,
    name: String,
    children: Vec<Child>,
}

impl TestRoot {
    /// `None` where the kernel doesn't let us.
    fn make(hierarchies: Vec<Hierarchy>) -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nodelet-test-{}-{n}", std::process::id());
        let root = Self { hierarchies, name, children: Vec::new() };
        for hierarchy in &root.hierarchies {
            if let Err(err) = fs::create_dir(hierarchy.mount_point.join(&root.name)) {
                skip_without(&[(false, &format!("root and a writable cgroup tree ({err})"))]);
                return None;
            }
        }
        Some(root)
    }

    /// Starts a process that ignores everything but SIGKILL and moves it into `path`.
    fn spawn_in(&mut self, paths: &[std::path::PathBuf]) -> i32 {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        self.children.push(child);
        for path in paths {
            fs::create_dir_all(path).unwrap();
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if path.join(file).exists() {
                    let value = fs::read_to_string(path.parent().unwrap().join(file)).unwrap();
                    fs::write(path.join(file), value.trim()).unwrap();
                }
            }
            fs::write(path.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        i32::try_from(pid).unwrap()
    }

    fn paths(&self, name: &str) -> Vec<std::path::PathBuf> {
        let place = |h: &Hierarchy| h.mount_point.join(&self.name).join(name);
        self.hierarchies.iter().map(place).collect()
    }
}

impl Drop for TestRoot {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        let paths: Vec<_> =
            self.hierarchies.iter().map(|h| h.mount_point.join(&self.name)).collect();
        for path in paths {
            remove_all(&path);
        }
    }
}

fn remove_all(path: &Path) {
    for child in fs::read_dir(path).into_iter().flatten().flatten() {
        if child.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_all(&child.path());
        }
    }
    // A killed process leaves its cgroup a moment after it was waited for.
    for _ in 0..1000 {
        if fs::remove_dir(path).is_ok() || !path.exists() {
            return;
        }
        std::thread::yield_now();
    }
    _ = writeln!(std::io::stderr(), "{} was left behind", path.display());
}

fn mounted() -> Vec<Hierarchy> {
    hierarchies(&fs::read("/proc/self/mountinfo").unwrap())
}

#[tokio::test]
async fn v1_pod_is_made_limited_killed_and_removed_for_real() {
    let mounted = mounted();
    if !mounted.iter().any(|h| h.controllers.iter().any(|c| c == "memory")) {
        say_skipped("no cgroup v1 memory hierarchy is mounted here");
        return;
    }
    let Some(mut root) = TestRoot::make(mounted) else { return };
    let cgroups = told(root.hierarchies.clone(), &settings(&root.name));
    assert_eq!(cgroups.version(), CgroupVersion::V1);
    let limits = Limits { memory_bytes: Some(1 << 30), pids: Some(500), ..Limits::default() };
    cgroups.ensure_shared(&limits, 512).await.unwrap();
    let name = burstable("0123");
    let pod = PodCgroup { hugepage_limits: Vec::new(), ..values() };
    assert!(cgroups.ensure_pod(&name, &pod).await.unwrap());
    assert!(cgroups.pod_exists(&name));

    let file = |controller: &str, file: &str| {
        let has = |h: &&Hierarchy| h.controllers.iter().any(|c| c == controller);
        let path = root.hierarchies.iter().find(has).unwrap().mount_point.join(&root.name);
        fs::read_to_string(path.join(file)).unwrap().trim().to_owned()
    };
    assert_eq!(file("memory", "kubepods/memory.limit_in_bytes"), (1_i64 << 30).to_string());
    assert_eq!(file("cpu", "kubepods/burstable/cpu.shares"), "512");
    let in_pod = |name: &str| format!("kubepods/burstable/pod0123/{name}");
    assert_eq!(file("memory", &in_pod("memory.limit_in_bytes")), (64_i64 << 20).to_string());
    assert_eq!(file("cpu", &in_pod("cpu.cfs_quota_us")), "50000");
    assert_eq!(file("pids", &in_pod("pids.max")), "100");
    assert_ne!(file("cpuset", &in_pod("cpuset.cpus")), "");

    let one = root.paths("kubepods/burstable/pod0123/one");
    root.spawn_in(&one);
    assert!(!cgroups.kill_container(&name, &"other".into()).unwrap());
    assert!(cgroups.kill_container(&name, &"one".into()).unwrap());
    for mut child in root.children.drain(..) {
        child.wait().unwrap();
    }
    assert!(!cgroups.kill_container(&name, &"one".into()).unwrap());
    // As the runtime does it: a cgroup below the pod's in every hierarchy, one of them paused.
    let containers = root.paths("kubepods/burstable/pod0123/container");
    root.spawn_in(&containers);
    root.spawn_in(&containers);
    assert!(!cgroups.ensure_pod(&name, &pod).await.unwrap(), "something runs in it");
    for path in containers.iter().filter(|path| path.join("freezer.state").exists()) {
        fs::write(path.join("freezer.state"), "FROZEN").unwrap();
    }
    let place = cgroups.place(CgroupDriver::Cgroupfs, &name);
    assert!(cgroups.remove_place(&place).await.is_err(), "processes hold it");
    assert!(cgroups.kill_pod(&name).unwrap());
    for mut child in root.children.drain(..) {
        child.wait().unwrap();
    }
    cgroups.remove_pod(&name).await.unwrap();
    assert!(!cgroups.pod_exists(&name));
    assert!(root.paths("kubepods/burstable/pod0123").iter().all(|path| !path.exists()));
    assert!(!cgroups.kill_pod(&name).unwrap());
    cgroups.remove_pod(&name).await.unwrap();
}

#[tokio::test]
async fn v1_leftovers_in_a_hierarchy_of_the_runtime_are_removed() {
    let mounted = mounted();
    let foreign = |h: &&Hierarchy| h.controllers.iter().any(|c| c == "devices" || c == "blkio");
    let Some(foreign) = mounted.iter().find(foreign).cloned() else {
        say_skipped("no v1 devices or blkio hierarchy is mounted here");
        return;
    };
    let Some(root) = TestRoot::make(mounted) else { return };
    let cgroups = told(root.hierarchies.clone(), &settings(&root.name));
    let left = foreign.mount_point.join(&root.name).join("kubepods/besteffort/podx/c");
    fs::create_dir_all(&left).unwrap();
    let found = cgroups.list_pods().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].uid.as_str(), "x");
    cgroups.remove_pod(&found[0].name).await.unwrap();
    assert!(!left.exists());
    assert!(cgroups.list_pods().unwrap().is_empty());
}

/// Makes a chain of cgroups in which no path reaches the last.
fn nest(directory: &Path, depth: usize) -> std::os::fd::OwnedFd {
    let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_DIRECTORY;
    let mode = nix::sys::stat::Mode::S_IRWXU;
    let mut cgroup = nix::fcntl::open(directory, flags, mode).unwrap();
    for _ in 0..depth {
        nix::sys::stat::mkdirat(&cgroup, "n", mode).unwrap();
        cgroup = nix::fcntl::openat(&cgroup, "n", flags, mode).unwrap();
    }
    cgroup
}

#[tokio::test]
async fn cgroups_nested_deeper_than_a_path_are_killed_and_removed() {
    let Some(mut root) = TestRoot::make(mounted()) else { return };
    let cgroups = told(root.hierarchies.clone(), &settings(&root.name));
    let name = burstable("deep");
    let has = |h: &&Hierarchy| h.unified || h.controllers.iter().any(|c| c == "pids");
    let mount_point = root.hierarchies.iter().find(has).unwrap().mount_point.clone();
    let pod = mount_point.join(&root.name).join("kubepods/burstable/poddeep");
    fs::create_dir_all(&pod).unwrap();
    let deepest = nest(&pod, 2100);
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let flags = nix::fcntl::OFlag::O_WRONLY;
    let procs =
        nix::fcntl::openat(&deepest, "cgroup.procs", flags, nix::sys::stat::Mode::empty()).unwrap();
    nix::unistd::write(&procs, child.id().to_string().as_bytes()).unwrap();
    drop((deepest, procs));
    let removed = cgroups.remove_pod(&name);
    let reaped = tokio::task::spawn_blocking(move || child.wait());
    removed.await.unwrap();
    assert!(!reaped.await.unwrap().unwrap().success());
    assert!(!pod.exists());
    root.children.clear();
}

/// The kernel's own v2 tree, with whatever controllers it has on this machine.
#[tokio::test]
async fn v2_pod_is_killed_and_removed_for_real() {
    let unified: Vec<Hierarchy> = mounted().into_iter().filter(|h| h.unified).collect();
    if unified.is_empty() {
        say_skipped("no cgroup2 tree is mounted here");
        return;
    }
    let Some(mut root) = TestRoot::make(unified) else { return };
    let cgroups = told(root.hierarchies.clone(), &settings(&root.name));
    assert_eq!(cgroups.version(), CgroupVersion::V2);
    cgroups.ensure_shared(&Limits::default(), 2).await.unwrap();
    let name = burstable("77");
    assert!(cgroups.ensure_pod(&name, &values()).await.unwrap());
    assert!(cgroups.pod_exists(&name));
    let pod = root.paths("kubepods/burstable/pod77").remove(0);
    let hugetlb = pod.join("hugetlb.2MB.max");
    if hugetlb.exists() {
        assert_eq!(fs::read_to_string(hugetlb).unwrap().trim(), (4 << 20).to_string());
    }
    let container = root.paths("kubepods/burstable/pod77/container");
    root.spawn_in(&container);
    if container[0].join("cgroup.freeze").exists() {
        fs::write(container[0].join("cgroup.freeze"), "1").unwrap();
    }
    // It stays where it runs, whatever the runtime would do with a new one.
    let parent = cgroups.cri_parent(&name).unwrap();
    cgroups.runtime_tells(ToldDriver::Uses(CgroupDriver::Systemd));
    assert_eq!(cgroups.cri_parent(&name).unwrap(), parent);
    assert!(!cgroups.ensure_pod(&name, &values()).await.unwrap());
    assert!(cgroups.cri_parent(&burstable("78")).unwrap().ends_with("pod78.slice"));
    cgroups.runtime_tells(ToldDriver::NotOffered);
    let place = cgroups.place(CgroupDriver::Cgroupfs, &name);
    assert!(matches!(
        cgroups.remove_place(&place).await.unwrap_err(),
        CgroupError::Busy { pids, .. } if pids.len() == 1
    ));
    assert!(cgroups.kill_pod(&name).unwrap());
    for mut child in root.children.drain(..) {
        child.wait().unwrap();
    }
    cgroups.remove_pod(&name).await.unwrap();
    assert!(!pod.exists());
}

#[test]
fn the_use_of_a_cgroup_is_read_where_it_is() {
    let root = tempfile::TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let hierarchy = |name: &str, unified| Hierarchy {
        mount_point: at(name),
        controllers: if unified { Vec::new() } else { vec![name.to_owned()] },
        unified,
    };
    let v1 = ["memory", "cpu", "pids"].map(|name| hierarchy(name, false)).to_vec();
    let cgroups = Cgroups::on_hierarchies(v1, &settings("/demo")).unwrap();
    assert_eq!(cgroups.kubepods_dirs(), None, "the driver is not known");
    cgroups.runtime_tells(ToldDriver::NotOffered);
    assert_eq!(cgroups.kubepods_dirs(), None, "it is not there");
    fs::create_dir_all(at("memory/demo/kubepods/burstable/pod1")).unwrap();
    let dirs = cgroups.kubepods_dirs().unwrap();
    assert_eq!(dirs.pids, at("pids/demo/kubepods"));
    let dirs = cgroups.pod_dirs(&burstable("1")).unwrap();
    assert_eq!(dirs.memory, at("memory/demo/kubepods/burstable/pod1"));
    assert_eq!(cgroups.pod_dirs(&burstable("2")), None);
    assert_eq!(cgroups.kubepods_names(), ["/demo/kubepods", "/demo.slice/demo-kubepods.slice"]);

    let v2 = Cgroups::on_hierarchies(vec![hierarchy("unified", true)], &settings("/")).unwrap();
    let slice = "unified/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice";
    fs::create_dir_all(at(slice)).unwrap();
    let dirs = v2.pod_dirs(&burstable("1")).unwrap();
    assert_eq!((&dirs.memory, &dirs.pids), (&at(slice), &at(slice)));
    // Of two, the one with processes.
    let plain = at("unified/kubepods/burstable/pod1");
    fs::create_dir_all(&plain).unwrap();
    fs::write(at(slice).join("cgroup.procs"), "4711\n").unwrap();
    assert_eq!(v2.pod_dirs(&burstable("1")).unwrap().memory, at(slice));
}
