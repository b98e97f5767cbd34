//! Changes of cpu and memory while containers run.

use crate::support::{
    manifest::{FOREVER, Pod},
    process::{Process, cgroup_value},
    status::Status,
    world::{Kind, World},
};
use serde_json::{Value, json};

/// A pod `web` with these resources; without limits where they are null.
fn web(requests: &Value, limits: &Value) -> Pod {
    let resources = json!({ "requests": requests, "limits": limits });
    Pod::running("web").set("containers/0/resources", resources)
}

fn amounts(cpu: &str, memory: &str) -> Value {
    json!({ "cpu": cpu, "memory": memory })
}

/// Quota in microseconds and memory limit in bytes, of the container and of its pod; -1 for none.
fn limits(process: &Process) -> [(i64, i64); 2] {
    let of = |levels: usize| {
        let at =
            |controller| process.cgroup(controller).ancestors().nth(levels).unwrap().to_owned();
        let quota = cgroup_value(&at("cpu"), "cpu.cfs_quota_us", "cpu.max");
        let memory = cgroup_value(&at("memory"), "memory.limit_in_bytes", "memory.max");
        // On v1 no limit is the largest number of whole pages.
        let number = |text: &str| text.split(' ').next().unwrap().parse().unwrap_or(-1);
        (number(&quota), Some(number(&memory)).filter(|limit| *limit < 1 << 60).unwrap_or(-1))
    };
    [of(0), of(1)]
}

fn in_progress(status: &Status) -> Option<String> {
    let conditions = status.pod("web")?.status.conditions.as_ref()?;
    let found = conditions.iter().find(|one| one.type_ == "PodResizeInProgress")?;
    Some(format!("{:?} {:?}", found.reason, found.message))
}

/// How often the runtime was asked to change a container.
fn updates(world: &World) -> usize {
    let calls = world.proxy.calls();
    calls.iter().filter(|call| call.method == "UpdateContainerResources").count()
}

const MIB: i64 = 1 << 20;

pub fn an_edit_of_cpu_and_memory_changes_what_runs(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&web(&amounts("100m", "32Mi"), &amounts("200m", "64Mi")));
    world.wait_running("web");
    let ids = world.running_ids("web");
    let process = Process::of(&world, "web", "main");
    let look = || limits(&process);
    assert_eq!(look(), [(20_000, 64 * MIB); 2]);
    // Up, down, and none at all.
    world.drop_pod(&web(&amounts("200m", "48Mi"), &amounts("400m", "128Mi")));
    world.wait_until("it has more", look, |found| *found == [(40_000, 128 * MIB); 2]);
    world.drop_pod(&web(&amounts("50m", "16Mi"), &amounts("100m", "32Mi")));
    world.wait_until("it has less", look, |found| *found == [(10_000, 32 * MIB); 2]);
    let limit = |status: &Status| {
        let statuses = status.pod("web")?.status.container_statuses.as_ref()?;
        let limits = statuses[0].resources.as_ref()?.limits.as_ref()?;
        Some(limits.get("memory")?.0.clone())
    };
    world.wait("the status says so", |status| {
        limit(status).as_deref() == Some("32Mi") && in_progress(status).is_none()
    });
    world.drop_pod(&web(&amounts("50m", "16Mi"), &Value::Null));
    world.wait_until("nothing is limited", look, |found| *found == [(-1, -1); 2]);
    // The status has the old amounts until the agent knows that the runtime has taken the new ones.
    let status = world.wait("the resize has ended", |status| {
        in_progress(status).is_none() && limit(status).is_none() && status.runs("web")
    });
    for reason in ["ResizeStarted", "ResizeCompleted"] {
        assert!(status.has_event(reason, "web"), "{status:?}");
    }
    assert_eq!((world.running_ids("web"), status.restarts("web", "main")), (ids.clone(), 0));
    // A new agent knows what the containers have.
    let before = updates(&world);
    world.agent.kill();
    world.agent.start();
    world.wait_running("web");
    world.drop_pod(&Pod::running("other"));
    world.wait_running("other");
    assert_eq!(updates(&world), before);
    assert_eq!(world.running_ids("web"), ids);
    world.finish();
}

pub fn a_memory_limit_below_use_waits(kind: Kind) {
    let world = World::start(kind);
    let script = format!(
        "dd if=/dev/zero of=/dev/shm/data bs=1M count=40; until [ -e /host/go ]; do sleep 0.1; done; \
         rm /dev/shm/data; {FOREVER}"
    );
    let pod = |limit| {
        let resources = json!({ "limits": { "memory": limit } });
        let pod = Pod::with_main("web", &script).set("containers/0/resources", resources);
        pod.host_dir(world.slot.dir())
    };
    world.drop_pod(&pod("64Mi"));
    world.wait_running("web");
    let process = Process::of(&world, "web", "main");
    let used = || {
        let cgroup = process.cgroup("memory");
        cgroup_value(&cgroup, "memory.usage_in_bytes", "memory.current").parse::<i64>().unwrap()
    };
    world.wait_until("it uses its memory", used, |used| *used >= 40 * MIB);
    let ids = world.running_ids("web");
    world.drop_pod(&pod("16Mi"));
    let status = world.wait("the resize waits and says why", |status| {
        in_progress(status).is_some_and(|why| why.contains("below current usage"))
    });
    assert!(status.has_event("ResizeError", "below current usage"), "{status:?}");
    assert_eq!(limits(&process)[0].1, 64 * MIB);
    std::fs::write(world.slot.dir().join("go"), "").unwrap();
    let look = || limits(&process);
    world.wait_until("it has less", look, |found| found[0].1 == 16 * MIB && found[1].1 == 16 * MIB);
    let status = world.wait("the resize has ended", |status| in_progress(status).is_none());
    assert_eq!((world.running_ids("web"), status.restarts("web", "main")), (ids, 0));
    world.finish();
}

pub fn a_resize_policy_restarts_its_container(kind: Kind) {
    let world = World::start(kind);
    let pod = |cpu, memory| {
        let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
        web(&amounts(cpu, memory), &amounts(cpu, memory)).set("containers/0/resizePolicy", policy)
    };
    world.drop_pod(&pod("100m", "32Mi"));
    world.wait_running("web");
    let ids = world.running_ids("web");
    let look = || limits(&Process::of(&world, "web", "main"));
    world.drop_pod(&pod("200m", "32Mi"));
    world.wait_until("it has more cpu", look, |found| *found == [(20_000, 32 * MIB); 2]);
    assert_eq!(world.running_ids("web"), ids);
    world.drop_pod(&pod("200m", "64Mi"));
    world.wait("it is restarted", |status| {
        status.restarts("web", "main") == 1 && status.runs("web") && in_progress(status).is_none()
    });
    world.wait_until("it has more memory", look, |found| *found == [(20_000, 64 * MIB); 2]);
    world.finish();
}

pub fn a_resize_in_a_crash_loop_reaches_the_pod(kind: Kind) {
    let world = World::start(kind);
    let pod = |cpu, memory| {
        let script = format!("[ -e /host/go ] || exit 1; {FOREVER}");
        let resources = json!({ "requests": amounts(cpu, memory), "limits": amounts(cpu, memory) });
        let pod = Pod::with_main("web", &script).set("containers/0/resources", resources);
        pod.host_dir(world.slot.dir())
    };
    world.drop_pod(&pod("100m", "32Mi"));
    world.wait("it backs off", |status| status.waiting_reason("web", "main") == "CrashLoopBackOff");
    std::fs::write(world.slot.dir().join("go"), "").unwrap();
    world.drop_pod(&pod("200m", "64Mi"));
    world.wait_running("web");
    let look = || limits(&Process::of(&world, "web", "main"));
    world
        .wait_until("pod and container have more", look, |found| *found == [(20_000, 64 * MIB); 2]);
    world
        .wait("the resize has ended", |status| status.runs("web") && in_progress(status).is_none());
    world.finish();
}

pub fn an_agent_killed_during_a_resize_finishes_it(kind: Kind) {
    let world = World::start(kind);
    let pod = |cpu, memory| web(&amounts(cpu, memory), &amounts(cpu, memory));
    world.drop_pod(&pod("100m", "32Mi"));
    world.wait_running("web");
    let ids = world.running_ids("web");
    let process = Process::of(&world, "web", "main");
    let rule = world.proxy.on("UpdateContainerResources").hang_answer();
    world.drop_pod(&pod("200m", "64Mi"));
    let look = || limits(&process);
    world.wait_until("the pod has more", look, |found| found[1] == (20_000, 64 * MIB));
    world.wait_until("the runtime is asked", || updates(&world), |count| *count == 1);
    world.agent.kill();
    world.proxy.lift(rule);
    world.agent.start();
    world.wait_until("the container has more", look, |found| *found == [(20_000, 64 * MIB); 2]);
    world
        .wait("the resize has ended", |status| status.runs("web") && in_progress(status).is_none());
    // A change of the class is no resize: the pod is replaced.
    world.drop_pod(&web(&amounts("100m", "32Mi"), &amounts("200m", "64Mi")));
    let count = || world.running_ids("web");
    world.wait_until("another pod runs", count, |found| found.len() == 1 && *found != ids);
    world.finish();
}

fn pending(status: &Status) -> Option<String> {
    let conditions = status.pod("web")?.status.conditions.as_ref()?;
    let found = conditions.iter().find(|one| one.type_ == "PodResizePending")?;
    Some(format!("{:?} {:?}", found.reason, found.message))
}

pub fn a_resize_without_room_waits(kind: Kind) {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let world = World::start(kind);
    let asks = |name: &str, cpu: String| {
        let resources = json!({ "requests": { "cpu": cpu } });
        Pod::running(name).set("containers/0/resources", resources)
    };
    // All but half a cpu.
    world.drop_pod(&asks("big", format!("{}m", cpus * 1000 - 500)));
    world.drop_pod(&asks("web", "100m".to_owned()));
    world.wait_running("big");
    world.wait_running("web");
    let ids = world.running_ids("web");
    let shares = || {
        let cgroup = Process::of(&world, "web", "main").cgroup("cpu");
        cgroup_value(&cgroup, "cpu.shares", "cpu.weight").parse::<u64>().unwrap()
    };
    let before = shares();
    // Never, later, now.
    world.drop_pod(&asks("web", format!("{}", cpus + 1)));
    let status = world.wait("there is never room", |status| {
        pending(status).is_some_and(|why| why.contains("Infeasible") && why.contains("capacity"))
    });
    assert!(status.has_event("ResizeInfeasible", "web"), "{status:?}");
    world.drop_pod(&asks("web", "700m".to_owned()));
    world.wait("there is no room yet", |status| {
        pending(status).is_some_and(|why| why.contains("Deferred") && why.contains("used"))
    });
    assert_eq!((shares(), updates(&world)), (before, 0));
    // Meanwhile it starts again with what it has, also under a new agent.
    world.agent.kill();
    world.agent.start();
    world.wait("the new agent says so", |status| {
        pending(status).is_some_and(|why| why.contains("Deferred"))
    });
    world.kill_container(&world.running_id("web", "main"));
    world.wait("it is restarted", |status| {
        status.restarts("web", "main") == 1 && status.runs("web")
    });
    assert_eq!(shares(), before);
    let ids = (ids, world.running_ids("web"));
    world.remove("big.yaml");
    world.wait_until("it has more", shares, |now| *now > before);
    world
        .wait("nothing waits", |status| pending(status).is_none() && in_progress(status).is_none());
    assert_eq!(world.running_ids("web"), ids.1);
    assert_ne!(ids.0, ids.1);
    world.finish();
}
