//! What pods use, measured on real ones.

use crate::support::{
    block_on,
    images::BUSYBOX,
    manifest::Pod,
    process::Process,
    tokio_runtime,
    world::{Kind, World, full_name},
};
use nodelet::{
    cgroup::{CgroupSettings, Cgroups, SystemdSockets},
    cri::{CriError, RuntimeClient},
    image::gc::{self, GcSettings, ImageHistory, KeptBecause},
    model::{
        CgroupDriver, ContainerId, DiskLayout, Now, PodKey, PodUse, Signal, Space, ToldDriver,
    },
    signals::{
        ContainerPlaces, Disks, MachineReader, Measurer, MemorySignal, Parts, PodPlaces,
        SampleRequest,
    },
    volume::Volumes,
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::Duration,
};

const MIB: u64 = 1 << 20;
const WITHIN: Duration = Duration::from_secs(10);

/// Writes 3 MiB into its layer, 2 and 1 into its volumes, half a one into its log, and keeps 16 in
/// memory.
const USES: &str = "head -c 3145728 /dev/zero >/layer; head -c 2097152 /dev/zero >/disk/file; \
    head -c 1048576 /dev/zero >/memory/file; head -c 16777216 /dev/zero >/held/file; \
    yes a line for the log | head -c 524288; \
    trap 'exit 0' TERM; sleep 100000 & wait";

fn cgroups(world: &World) -> Cgroups {
    let nowhere = SystemdSockets { private: "/nonexistent".into(), bus: "/nonexistent".into() };
    let settings = CgroupSettings {
        root: world.slot.cgroup_root(),
        per_qos: true,
        driver: CgroupDriver::Cgroupfs,
        systemd: nowhere,
    };
    let cgroups = Cgroups::detect(&settings).unwrap();
    cgroups.runtime_tells(ToldDriver::NotOffered);
    cgroups
}

fn client(world: &World) -> RuntimeClient {
    let _in_runtime = tokio_runtime().enter();
    RuntimeClient::new(world.runtime.socket().to_str().unwrap(), None, WITHIN).unwrap()
}

/// Where the parts of the pod `web` are.
fn places(world: &World, cgroups: &Cgroups) -> PodPlaces {
    let status = world.agent.status().unwrap();
    let view = status.pod("web").unwrap();
    let uid = view.uid.clone();
    let volumes = Volumes::open(&world.agent.root_dir(), None).unwrap();
    let name = ["kubepods".to_owned(), "besteffort".to_owned(), format!("pod{uid}")];
    let container = |name: &str| ContainerPlaces {
        name: name.into(),
        id: Some(ContainerId::from(world.running_id("web", name))),
        layer: None,
    };
    let logs = format!("default_{}_{uid}", full_name("web"));
    PodPlaces {
        key: PodKey::new("default", &full_name("web")),
        cgroup: Some(cgroups.pod_dirs(&name).unwrap()),
        containers: vec![container("main"), container("idle")],
        volumes: volumes.empty_dirs(view.pod.as_ref().unwrap(), &uid).unwrap(),
        logs: Some(world.agent.pod_logs().join(logs)),
        files: Some(volumes.pod_dir(&uid).unwrap()),
        runtime_files: Vec::new(),
        runtime_dirs: Vec::new(),
        uid,
    }
}

/// Whether it is this much and a little more, for directories and the like.
fn about(space: Option<Space>, bytes: u64) -> bool {
    space.is_some_and(|space| (bytes..bytes + MIB / 4).contains(&space.bytes))
}

pub fn what_a_pod_uses_is_measured(kind: Kind) {
    let world = World::start(kind);
    let memory = json!({ "medium": "Memory", "sizeLimit": "32Mi" });
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
    let volume = |name: &str, source| json!({ "name": name, "emptyDir": source });
    let volumes = json!([
        volume("disk", json!({})),
        volume("memory", memory.clone()),
        volume("held", memory)
    ]);
    let mounts = json!([mount("disk"), mount("memory"), mount("held")]);
    let pod = Pod::with_main("web", USES)
        .container("idle", "trap 'exit 0' TERM; sleep 100000 & wait")
        .set("volumes", volumes)
        .set("containers/0/volumeMounts", mounts);
    world.drop_pod(&pod);
    world.wait_running("web");
    let cgroups = cgroups(&world);
    let mut places = places(&world, &cgroups);
    let ids: Vec<ContainerId> = places.containers.iter().filter_map(|c| c.id.clone()).collect();
    let client = client(&world);
    let measured = || -> (PodUse, Vec<String>) {
        let layers = async {
            let answers = client.writable_layers(&ids, 2, WITHIN, WITHIN).await;
            let answered = answers.into_iter().filter_map(|(id, l)| Some((id, l.ok()?.space)));
            answered.collect::<BTreeMap<_, _>>()
        };
        let pods = std::slice::from_ref(&places);
        let measurer = Measurer::default();
        let measure = measurer.measure(pods, Parts::Everything, WITHIN, layers);
        let mut all = block_on(measure);
        let one = all.remove(0);
        (one.usage, one.missing)
    };
    // Each line has a time before it.
    let log = places.logs.as_ref().unwrap().join("main/0.log");
    let logged = || fs::metadata(&log).unwrap().blocks() * 512;
    // containerd measures layers every 10 s.
    let (usage, missing) = world.wait_until("every part is measured right", measured, |found| {
        let usage = &found.0;
        let [main, idle] = &usage.containers[..] else { return false };
        about(main.layer, 3 * MIB)
            && idle.layer.is_some_and(|layer| layer.bytes < MIB / 4)
            && logged() > MIB / 2
            && about(main.logs, logged())
            && idle.logs.is_some_and(|logs| logs.bytes < MIB / 4)
            && about(usage.logs, logged())
            && about(usage.volumes[0].space, 2 * MIB)
            && about(usage.volumes[1].space, MIB)
            && about(usage.volumes[2].space, 16 * MIB)
    });
    assert!(missing.is_empty(), "{missing:?}");
    // Layers are found where the runtime says that they lie.
    let found = block_on(client.all_write_places(&ids, 2, WITHIN));
    let told = block_on(client.image_filesystems()).unwrap().images;
    for container in &mut places.containers {
        let written = &found[container.id.as_ref().unwrap()];
        container.layer = written.layer(&told).map(Path::to_owned);
        assert!(container.layer.is_some(), "{written:?} {told:?}");
        let mut files: Vec<_> = written.files(&told).filter_map(Path::file_name).collect();
        files.sort();
        // The hosts file is the agent's.
        assert_eq!(files, ["hostname", "resolv.conf"], "{written:?}");
    }
    let pods = std::slice::from_ref(&places);
    let nothing = async { BTreeMap::new() };
    let measurer = Measurer::default();
    let again = block_on(measurer.measure(pods, Parts::Everything, WITHIN, nothing)).remove(0);
    assert!(about(again.usage.containers[0].layer, 3 * MIB), "{again:?}");
    assert!(again.usage.containers[1].layer.is_some() && again.missing.is_empty(), "{again:?}");
    let in_memory: Vec<bool> = usage.volumes.iter().map(|volume| volume.in_memory).collect();
    assert_eq!(in_memory, [false, true, true]);
    // What lies on a tmpfs is memory of the container that wrote it.
    let main = usage.containers[0].memory.unwrap();
    assert!((17 * MIB..64 * MIB).contains(&main), "{usage:?}");
    assert!(usage.memory.unwrap() > usage.containers[1].memory.unwrap() + main / 2, "{usage:?}");
    // Two shells with a child each, and the sandbox.
    assert!((5..20).contains(&usage.processes.unwrap()), "{usage:?}");
    world.finish();
}

pub fn the_machine_and_its_images_are_read(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let client = client(&world);
    let cgroups = cgroups(&world);
    let pods = cgroups.kubepods_dirs().unwrap();
    let look = SampleRequest {
        signals: &BTreeSet::from(Signal::ALL),
        pods: Some(&pods.memory),
        is_far: &|_, _| false,
    };
    let mut sample = MachineReader::new(Path::new("/proc"), MemorySignal::WorkingSet).sample(look);
    let found = block_on(client.image_filesystems()).unwrap();
    let mut disks = Disks::new(&world.agent.root_dir());
    let layout = block_on(disks.locate(&found.images, &found.containers, WITHIN)).unwrap();
    sample.update(block_on(disks.sample(WITHIN)));
    // The private containerd may lie on another disk than the root directory.
    assert_ne!(layout, DiskLayout::Split);
    for signal in Signal::ALL {
        let reading =
            sample.readings.get(&signal).unwrap_or_else(|| panic!("{signal}: {sample:?}"));
        assert!(reading.available <= reading.capacity && reading.capacity > 0, "{sample:?}");
    }

    let look = block_on(gc::look(&client)).unwrap();
    let settings = GcSettings {
        high_percent: 85,
        low_percent: 80,
        minimum_age: Duration::ZERO,
        maximum_age: None,
        include_foreign: false,
    };
    let now = Now { boot: look.began, wall: jiff::Timestamp::UNIX_EPOCH };
    let mut history = ImageHistory::default();
    history.observe(&look.present, &look.in_use, look.began, now, |_| false);
    let plan = gc::plan(&look.present, &look.in_use, &history, &settings, now);
    assert!(plan.removable.is_empty(), "all of them were imported: {plan:?}");
    assert_eq!(plan.kept[BUSYBOX], KeptBecause::InUse);
    world.finish();
}

pub fn a_stopped_shim_leaves_one_layer_unmeasured(kind: Kind) {
    let world = World::start(kind);
    let pods = ["stuck", "free", "other"];
    for pod in pods {
        world.drop_pod(&Pod::running(pod));
    }
    let ids = pods.map(|pod| {
        world.wait_running(pod);
        ContainerId::from(world.running_id(pod, "main"))
    });
    let client = client(&world);
    let deadline = Duration::from_secs(5);
    let measured = || {
        let layers = block_on(client.writable_layers(&ids, 1, deadline, WITHIN));
        ids.each_ref().map(|id| layers[id].clone())
    };
    drop(world.wait_until("all are measured", measured, |all| all.iter().all(Result::is_ok)));
    let container = world.cri.container_pid(ids[0].as_str());
    let pid = Process::by_pid(container).status("PPid").parse().unwrap();
    let shim = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGSTOP).unwrap();
    // The signal stops the threads of the shim one after the other.
    let states = || Process::by_pid(pid).thread_states();
    world.wait_until("every thread of the shim has stopped", states, |states| {
        states.iter().all(|state| *state == 'T')
    });
    let [stuck, free, other] = measured();
    let answered = block_on(client.writable_layers(&ids, 3, WITHIN, deadline));
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGCONT).unwrap();
    assert!(matches!(stuck, Err(CriError::DeadlineExceeded { .. })), "{stuck:?}");
    assert!(free.is_ok() && other.is_ok(), "{free:?} {other:?}");
    assert_eq!(answered.keys().collect::<BTreeSet<_>>(), BTreeSet::from([&ids[1], &ids[2]]));
    world.finish();
}
