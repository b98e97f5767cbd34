use super::{core::*, *};
use crate::podspec::{HugepageLimit, PodCgroup};
use std::{
    fs,
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
        create_root: false,
    }
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

#[test]
fn finds_the_mounted_hierarchies() {
    let found = hierarchies(HYBRID);
    let names: Vec<String> = found.iter().map(|h| h.controllers.join(",")).collect();
    assert_eq!(names, ["cpu,cpuacct", "memory", "pids", "name=systemd", ""]);
    assert!(found[4].unified && !found[0].unified);
    assert_eq!(found[2].mount_point, Path::new("/sys/fs/cgroup/pids"));
    let v2 = hierarchies("30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n");
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
    let unlimited = PodCgroup { cpu_shares: 2, cpu_period_micros: 100_000, ..PodCgroup::default() };
    let files: Vec<String> = settings_v2(&Limits::of_pod(&unlimited)).iter().map(line).collect();
    assert_eq!(files, ["cpu.weight=1"]);
}

#[test]
fn node_limits_take_off_what_is_reserved() {
    let capacity = NodeCapacity {
        cpu_milli: 4000,
        memory_bytes: 8 << 30,
        pids: 32_768,
        hugepages: vec![("2MB".to_owned(), 0)],
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
fn names_and_files_are_read_strictly() {
    assert!(is_component("podab-12") && is_component("kubepods"));
    assert!(!is_component("..") && !is_component("") && !is_component("a/b"));
    assert_eq!(uid_of_directory("pod12-34"), Some("12-34"));
    assert_eq!(uid_of_directory("pod"), None);
    assert_eq!(uid_of_directory("cri-containerd-1.scope"), None);
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
    let systemd = CgroupSettings { driver: CgroupDriver::Systemd, ..settings("/") };
    let error = Cgroups::on_hierarchies(hierarchies(HYBRID), &systemd).unwrap_err();
    assert!(matches!(error, CgroupError::SystemdDriver));
    let error = Cgroups::on_hierarchies(Vec::new(), &settings("/")).unwrap_err();
    assert!(matches!(error, CgroupError::NoHierarchy));
    let dir = tempfile::tempdir().unwrap();
    let error = Cgroups::on_hierarchies(fake_v2(dir.path()), &settings("/nodelet-no-such"));
    assert!(matches!(error.unwrap_err(), CgroupError::RootMissing { .. }));
    let error = Cgroups::on_hierarchies(fake_v2(dir.path()), &settings("/a/../b")).unwrap_err();
    assert!(matches!(error, CgroupError::InvalidName { .. }));
}

#[test]
fn reads_the_machines_capacity() {
    let dir = tempfile::tempdir().unwrap();
    let (proc_root, sys_root) = (dir.path().join("proc"), dir.path().join("sys"));
    let pool = sys_root.join("kernel/mm/hugepages/hugepages-2048kB");
    fs::create_dir_all(proc_root.join("sys/kernel")).unwrap();
    fs::create_dir_all(&pool).unwrap();
    fs::write(proc_root.join("cpuinfo"), "processor\t: 0\nx: y\nprocessor\t: 1\n").unwrap();
    fs::write(proc_root.join("meminfo"), "MemTotal:       16374612 kB\nMemFree: 1 kB\n").unwrap();
    fs::write(proc_root.join("sys/kernel/pid_max"), "4194304\n").unwrap();
    fs::write(proc_root.join("sys/kernel/threads-max"), "127000\n").unwrap();
    fs::write(pool.join("nr_hugepages"), "3\n").unwrap();
    let capacity = NodeCapacity::read(&proc_root, &sys_root).unwrap();
    assert_eq!(
        capacity,
        NodeCapacity {
            cpu_milli: 2000,
            memory_bytes: 16_374_612 * 1024,
            pids: 127_000,
            hugepages: vec![("2MB".to_owned(), 6 << 20)],
        }
    );
    let real = NodeCapacity::read(Path::new("/proc"), Path::new("/sys")).unwrap();
    assert!(real.cpu_milli >= 1000 && real.memory_bytes > 0 && real.pids > 0);
}

#[test]
fn nothing_is_managed_without_a_tree_per_qos() {
    let dir = tempfile::tempdir().unwrap();
    let off = CgroupSettings { per_qos: false, ..settings("/") };
    let cgroups = Cgroups::on_hierarchies(fake_v2(dir.path()), &off).unwrap();
    let name = burstable("1");
    assert_eq!(cgroups.cri_parent(&name), "");
    assert!(cgroups.pod_exists(&name));
    assert!(!cgroups.ensure_pod(&name, &values()).unwrap());
    cgroups.ensure_qos_tiers(100).unwrap();
    cgroups.ensure_node_allocatable(&Limits::default()).unwrap();
    assert!(cgroups.list_pods().unwrap().is_empty());
    assert!(!dir.path().join("kubepods").exists());
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

#[test]
fn v2_enables_controllers_down_the_chain_and_writes_values_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let all = "cpuset cpu io memory hugetlb pids";
    let pod = root.join("own/kubepods/burstable/pod1");
    populate(&pod, None);
    for parent in ["own", "own/kubepods", "own/kubepods/burstable", "own/kubepods/besteffort"] {
        populate(&root.join(parent), Some(all));
    }
    let cgroups = Cgroups::on_hierarchies(fake_v2(root), &settings("/own/")).unwrap();
    assert_eq!(cgroups.version(), CgroupVersion::V2);
    let name = burstable("1");
    assert_eq!(cgroups.cri_parent(&name), "/own/kubepods/burstable/pod1");
    cgroups.ensure_node_allocatable(&Limits { pids: Some(7), ..Limits::default() }).unwrap();
    cgroups.ensure_qos_tiers(1024).unwrap();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(read("own/kubepods/pids.max"), "7");
    assert_eq!(read("own/kubepods/burstable/cpu.weight"), "39");
    assert_eq!(read("own/kubepods/besteffort/cpu.weight"), "1");

    // A directory without its controllers counts as missing: it gets them and its values.
    assert!(!cgroups.pod_exists(&name));
    assert!(cgroups.ensure_pod(&name, &values()).unwrap());
    for parent in ["", "own", "own/kubepods", "own/kubepods/burstable"] {
        let enabled = read(format!("{parent}/cgroup.subtree_control").trim_start_matches('/'));
        assert_eq!(enabled, "+cpuset +cpu +io +memory +hugetlb +pids", "{parent:?}");
    }
    assert_eq!(read("own/kubepods/burstable/pod1/cgroup.subtree_control"), "");
    assert_eq!(read("own/kubepods/burstable/pod1/memory.max"), "67108864");
    assert_eq!(read("own/kubepods/burstable/pod1/cpu.max"), "50000 100000");
    assert_eq!(read("own/kubepods/burstable/pod1/hugetlb.2MB.max"), "4194304");
    assert_eq!(read("own/kubepods/burstable/pod1/hugetlb.1GB.max"), "0");

    populate(&pod, Some(all));
    assert!(cgroups.pod_exists(&name));
    assert!(!cgroups.ensure_pod(&name, &values()).unwrap(), "values are written only once");
    assert_eq!(read("own/kubepods/burstable/pod1/memory.max"), "");
    cgroups.lower_cpu(&name).unwrap();
    assert_eq!(read("own/kubepods/burstable/pod1/cpu.weight"), "1");
    let found = cgroups.list_pods().unwrap();
    assert_eq!(found, [FoundPod { uid: "1".into(), name: name.to_vec() }]);
}

/// A cgroup root of this test alone in every hierarchy; gone at the end, whatever happens.
struct TestRoot {
    hierarchies: Vec<Hierarchy>,
    name: String,
    children: Vec<Child>,
}

impl TestRoot {
    /// `None`, said loudly, where the kernel doesn't let us.
    fn make(hierarchies: Vec<Hierarchy>) -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nodelet-test-{}-{n}", std::process::id());
        let root = Self { hierarchies, name, children: Vec::new() };
        for hierarchy in &root.hierarchies {
            if let Err(err) = fs::create_dir(hierarchy.mount_point.join(&root.name)) {
                loud(&format!("skipped: needs root and a writable cgroup tree ({err})"));
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
    loud(&format!("{} was left behind", path.display()));
}

#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn loud(text: &str) {
    eprintln!("{text}");
}

fn mounted() -> Vec<Hierarchy> {
    hierarchies(&fs::read_to_string("/proc/self/mountinfo").unwrap())
}

#[tokio::test]
async fn v1_pod_is_made_limited_killed_and_removed_for_real() {
    let mounted = mounted();
    if !mounted.iter().any(|h| h.controllers.iter().any(|c| c == "memory")) {
        loud("skipped: no cgroup v1 memory hierarchy is mounted here");
        return;
    }
    let Some(mut root) = TestRoot::make(mounted) else { return };
    let cgroups = Cgroups::on_hierarchies(root.hierarchies.clone(), &settings(&root.name)).unwrap();
    assert_eq!(cgroups.version(), CgroupVersion::V1);
    let limits = Limits { memory_bytes: Some(1 << 30), pids: Some(500), ..Limits::default() };
    cgroups.ensure_node_allocatable(&limits).unwrap();
    cgroups.ensure_qos_tiers(512).unwrap();
    let name = burstable("0123");
    let pod = PodCgroup { hugepage_limits: Vec::new(), ..values() };
    assert!(cgroups.ensure_pod(&name, &pod).unwrap());
    assert!(!cgroups.ensure_pod(&name, &pod).unwrap());
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

    // As the runtime does it: a cgroup below the pod's in every hierarchy, one of them paused.
    let containers = root.paths("kubepods/burstable/pod0123/container");
    root.spawn_in(&containers);
    root.spawn_in(&containers);
    for path in containers.iter().filter(|path| path.join("freezer.state").exists()) {
        fs::write(path.join("freezer.state"), "FROZEN").unwrap();
    }
    assert!(cgroups.remove_directories(&name).is_err(), "processes hold it");
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
async fn v1_leftovers_in_a_hierarchy_that_only_the_runtime_uses_are_found_and_removed() {
    let mounted = mounted();
    let foreign = |h: &&Hierarchy| h.controllers.iter().any(|c| c == "devices" || c == "blkio");
    let Some(foreign) = mounted.iter().find(foreign).cloned() else {
        loud("skipped: no v1 devices or blkio hierarchy is mounted here");
        return;
    };
    let Some(root) = TestRoot::make(mounted) else { return };
    let cgroups = Cgroups::on_hierarchies(root.hierarchies.clone(), &settings(&root.name)).unwrap();
    let left = foreign.mount_point.join(&root.name).join("kubepods/besteffort/podx/c");
    fs::create_dir_all(&left).unwrap();
    let found = cgroups.list_pods().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].uid.as_str(), "x");
    cgroups.remove_pod(&found[0].name).await.unwrap();
    assert!(!left.exists());
    assert!(cgroups.list_pods().unwrap().is_empty());
}

/// The kernel's own v2 tree, with whatever controllers it has on this machine.
#[tokio::test]
async fn v2_pod_is_killed_and_removed_for_real() {
    let unified: Vec<Hierarchy> = mounted().into_iter().filter(|h| h.unified).collect();
    if unified.is_empty() {
        loud("skipped: no cgroup2 tree is mounted here");
        return;
    }
    let Some(mut root) = TestRoot::make(unified) else { return };
    let cgroups = Cgroups::on_hierarchies(root.hierarchies.clone(), &settings(&root.name)).unwrap();
    assert_eq!(cgroups.version(), CgroupVersion::V2);
    cgroups.ensure_node_allocatable(&Limits::default()).unwrap();
    cgroups.ensure_qos_tiers(2).unwrap();
    let name = burstable("77");
    assert!(cgroups.ensure_pod(&name, &values()).unwrap());
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
    assert!(matches!(
        cgroups.remove_directories(&name).unwrap_err(),
        CgroupError::Busy { pids, .. } if pids.len() == 1
    ));
    assert!(cgroups.kill_pod(&name).unwrap());
    for mut child in root.children.drain(..) {
        child.wait().unwrap();
    }
    cgroups.remove_pod(&name).await.unwrap();
    assert!(!pod.exists());
}
