//! State, directories and processes that are not this agent's, or that were taken away from it.

use crate::{
    support::{
        agent::{Agent, Settings},
        manifest::Pod,
        stays,
        world::{Kind, World},
    },
    watchdog::Watchdog,
};
use nodelet::model::Pressure;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

/// The uid of a pod that another kubelet runs.
const FOREIGN: &str = "2f3a9c1e-0000-4000-8000-5d1f00c0ffee";
/// Longer than the agent needs after its start to look for leftovers.
const A_WHILE: Duration = Duration::from_secs(4);

/// A process in a cgroup that carries a pod's uid.
struct ForeignProcess {
    child: Child,
    cgroup: PathBuf,
}

impl ForeignProcess {
    fn start(world: &World, uid: &str) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let tree = if v1.is_dir() { v1 } else { Path::new("/sys/fs/cgroup") };
        let root = tree.join(world.slot.cgroup_root().trim_start_matches('/'));
        let cgroup = root.join("kubepods/burstable").join(format!("pod{uid}"));
        fs::create_dir_all(&cgroup).unwrap();
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        fs::write(cgroup.join("cgroup.procs"), child.id().to_string()).unwrap();
        Self { child, cgroup }
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The agent's own cgroups above it go with the slot.
        fs::remove_dir(&self.cgroup).ok();
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn state(world: &World, name: &str) -> PathBuf {
    world.agent.root_dir().join("nodelet").join(name)
}

/// A second agent whose root or run directory is a link to that of the world's agent.
fn second_agent(world: &World, shared: &str, target: &Path) -> Agent {
    let dir = world.slot.dir().join(format!("second-{shared}"));
    let settings = Settings::for_kind(Kind::Real);
    let agent = Agent::prepare_in(dir.clone(), &world.slot, world.proxy.socket(), &settings);
    fs::remove_dir(dir.join(shared)).unwrap();
    symlink(target, dir.join(shared)).unwrap();
    agent
}

#[track_caller]
fn assert_refused(second: &Agent, world: &World, named: &Path) {
    let output = second.run_to_end().unwrap();
    let told = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!output.status.success(), "{told}");
    let named = named.file_name().unwrap().to_str().unwrap();
    let pid = format!("another nodelet (pid {}", world.agent.pid());
    assert!(told.contains(&pid) && told.contains(named), "{told}");
}

/// `rm -rf`. Some of it may be made again meanwhile, and the root directory may be a mount point.
fn delete(dir: &Path) {
    Command::new("rm").arg("-rf").arg(dir).output().unwrap();
}

#[test]
fn a_foreign_pod_directory_is_listed_and_never_touched() {
    let Some(world) = crate::prepared(|settings| settings) else { return };
    let pod_dir = world.agent.root_dir().join("pods").join(FOREIGN);
    let data = pod_dir.join("volumes/kubernetes.io~empty-dir/data/db");
    let logs = world.agent.pod_logs().join(format!("default_db_{FOREIGN}"));
    let link = world.agent.log_links().join("db_default_db-0123.log");
    write(&data, "precious");
    write(&logs.join("db/0.log"), "precious");
    // As while the other kubelet rotates the log.
    symlink(logs.join("db/1.log"), &link).unwrap();
    let mut process = ForeignProcess::start(&world, FOREIGN);
    world.agent.start();
    let dog = Watchdog::start(&world);
    world.wait("the directory is listed", |status| {
        status.node.warnings.iter().any(|warning| warning.contains(FOREIGN))
    });
    let mut untouched = || {
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        (text(&data), text(&logs.join("db/0.log")), link.is_symlink(), process.runs())
    };
    let expected = ("precious".to_owned(), "precious".to_owned(), true, true);
    stays("nothing foreign is touched", A_WHILE, &mut untouched, |seen| *seen == expected);
    // A manifest that claims the uid does not get the directory either, nor is it removed with the
    // manifest.
    world.drop_pod(&Pod::running("thief").meta("uid", FOREIGN));
    stays("nothing foreign is touched", A_WHILE, &mut untouched, |seen| *seen == expected);
    world.remove("thief.yaml");
    world.wait_gone("thief");
    assert_eq!(untouched(), expected);
    dog.finish(&world);
    world.agent.kill();
    world.agent.start();
    world.wait("it is listed again", |status| {
        status.node.warnings.iter().any(|warning| warning.contains(FOREIGN))
    });
    stays("nothing foreign is touched", A_WHILE, &mut untouched, |seen| *seen == expected);
    drop(process);
    fs::remove_dir_all(pod_dir).unwrap();
    fs::remove_dir_all(logs).unwrap();
    fs::remove_file(link).unwrap();
    world.finish();
}

#[test]
fn leftovers_of_ours_are_removed_without_their_record() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let volumes = json!([{ "name": "data", "emptyDir": {} }]);
    let mounts = json!([{ "name": "data", "mountPath": "/data" }]);
    let pod = Pod::with_main("web", "echo x > /data/file; sleep 1000")
        .set("volumes", volumes)
        .set("containers/0/volumeMounts", mounts);
    world.drop_pod(&pod);
    world.wait_running("web");
    dog.finish(&world);
    world.agent.kill();
    world.remove("web.yaml");
    for name in ["pods/default_web-node1.json", "sources.json"] {
        fs::remove_file(state(&world, name)).unwrap();
    }
    for container in world.running_ids("web") {
        world.cri.stop_container(&container, 0).unwrap();
    }
    for sandbox in world.sandboxes("web") {
        world.cri.remove_sandbox(&sandbox.id).unwrap();
    }
    // What a crash in the last step of a removal leaves.
    let pods = world.agent.root_dir().join("pods");
    fs::create_dir(pods.join("00000000-0000-4000-8000-000000000002")).unwrap();
    world.agent.start();
    let left = || fs::read_dir(&pods).unwrap().count();
    // That of the innocent pod.
    world.wait_until("the leftovers are removed", left, |left| *left == 1);
    world.finish();
}

#[test]
fn pods_of_a_release_without_owner_marks_are_cleaned_up() {
    let Some(world) = crate::world(|settings| settings) else { return };
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    world.agent.kill();
    let pods = fs::read_dir(world.agent.root_dir().join("pods")).unwrap();
    for pod in pods.flatten() {
        fs::remove_file(pod.path().join(".nodelet-owner")).unwrap();
    }
    fs::remove_file(state(&world, "pods-owner")).unwrap();
    world.agent.start();
    world.wait_running("web");
    // It ends without a trace.
    world.finish();
}

#[test]
fn a_second_agent_is_refused_the_run_directory() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let second = second_agent(&world, "run", &world.agent.run_dir());
    assert_refused(&second, &world, &world.agent.root_dir());
    dog.finish(&world);
    // A start while the predecessor's end is under way is no second agent.
    world.agent.kill();
    world.agent.start();
    world.wait_running("innocent");
    world.finish();
}

/// A record of an eviction for want of memory.
fn evicted(pod: &str) -> Value {
    json!({
        "key": { "namespace": "default", "name": format!("{pod}-node1") },
        "uid": "u", "cause": { "signal": "memory.available" },
        "hold": { "reason": "Evicted", "message": "The node was low on resource: memory.", "stop": "atOnce" },
        "at": jiff::Timestamp::now().to_string(), "count": 1, "pauseSeconds": 300,
    })
}

#[test]
fn volatile_state_of_another_agent_is_set_aside() {
    let Some(world) = crate::prepared(|settings| settings) else { return };
    let file = |owner: &str| json!({ "version": 1, "owner": owner, "content": [evicted("db")] });
    let run = world.agent.run_dir();
    let path = run.join("evictions.json");
    write(&path, &file("of-another").to_string());
    world.agent.start();
    let dog = Watchdog::start(&world);
    let status = world.wait("the file is named", |status| {
        let mut warnings = status.node.warnings.iter();
        warnings
            .any(|warning| warning.contains("evictions.json") && warning.contains("another agent"))
    });
    let mut held = status.node.conditions.held();
    assert!(held.next().is_none(), "{:?}", status.node.conditions);
    assert!(run.join("evictions.json.of-ofanother").exists());
    dog.finish(&world);

    // Its own record of a condition that no threshold raises any more.
    world.agent.kill();
    let owner = fs::read_to_string(state(&world, "owner")).unwrap();
    write(&path, &file(&owner).to_string());
    world.agent.start();
    let status = world.wait_running("innocent");
    let mut held = status.node.conditions.held();
    assert!(held.all(|held| held != Pressure::Memory), "{:?}", status.node.conditions);
    world.finish();
}

#[test]
fn a_deleted_run_directory_is_made_again() {
    let Some(world) = crate::world(|settings| settings) else { return };
    world.drop_pod(&Pod::running("innocent"));
    world.wait_running("innocent");
    let ids = world.running_ids("innocent");
    delete(&world.agent.run_dir());
    let named = |status: &crate::support::status::Status| {
        status.node.warnings.iter().any(|warning| warning.contains("created again"))
    };
    world.wait_for(Duration::from_secs(20), "it answers again, and says so", named);
    let dog = Watchdog::watch(&world);
    let second = second_agent(&world, "run", &world.agent.run_dir());
    assert_refused(&second, &world, &world.agent.root_dir());
    dog.finish(&world);
    fs::remove_file(world.agent.run_dir().join("nodelet.sock")).unwrap();
    world.wait_for(Duration::from_secs(20), "it has a socket again", |status| {
        status.runs("innocent")
    });
    assert_eq!(world.running_ids("innocent"), ids);
    world.finish();
}

#[test]
fn no_second_agent_starts_on_a_deleted_state_directory() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let ids = ["web", "innocent"].map(|pod| world.running_ids(pod));
    let files = ["owner", "owner.copy", "lock", "node-name", "sources.json", "pods-owner"];
    let records = ["pods/default_web-node1.json", "pods/default_innocent-node1.json"];
    let owner = fs::read_to_string(state(&world, "owner")).unwrap();
    let second = second_agent(&world, "root", &world.agent.root_dir());
    // The whole root directory last: it is a mount point where the test can share its mounts.
    for dir in [world.agent.root_dir().join("nodelet"), world.agent.root_dir()] {
        delete(&dir);
        assert_refused(&second, &world, &world.agent.root_dir());
        let missing = || {
            let all = files.iter().chain(&records);
            all.filter(|name| !state(&world, name).exists()).collect::<Vec<_>>()
        };
        world.wait_until("everything is written again", missing, Vec::is_empty);
        assert_eq!(fs::read_to_string(state(&world, "owner")).unwrap(), owner);
        assert_refused(&second, &world, &world.agent.root_dir());
    }
    world.wait("the loss is named", |status| {
        status.node.warnings.iter().any(|warning| warning.contains("created again"))
    });
    dog.finish(&world);
    world.agent.kill();
    world.agent.start();
    world.wait("both run", |status| status.runs("web") && status.runs("innocent"));
    assert_eq!(["web", "innocent"].map(|pod| world.running_ids(pod)), ids);
    world.finish();
}

#[test]
fn directories_are_made_for_root_alone() {
    let Some(world) = crate::prepared(|settings| settings) else { return };
    for dir in [world.agent.root_dir(), world.agent.run_dir(), world.agent.pod_logs()] {
        fs::remove_dir(dir).unwrap();
    }
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let root = world.agent.root_dir();
    let pod = fs::read_dir(root.join("pods")).unwrap().flatten().next().unwrap().path();
    let modes = [
        (root.clone(), 0o750),
        (root.join("nodelet"), 0o700),
        (root.join("pods"), 0o750),
        (pod, 0o750),
        (world.agent.run_dir(), 0o700),
        (world.agent.run_dir().join("pods"), 0o700),
        (world.agent.pod_logs(), 0o750),
    ];
    for (dir, mode) in modes {
        let found = fs::metadata(&dir).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, mode, "{}: {found:o}", dir.display());
    }
    world.finish();
}
