//! Large quantities of what is harmless in small ones: log output, file events, pods of others.

use crate::{
    support::{
        dead_file_system::DeadFileSystem,
        manifest::Pod,
        process::Stopped,
        status::Status,
        world::{Kind, World, full_name},
    },
    watchdog::Watchdog,
};
use nix::unistd::Pid;
use nodelet::cri::v1;
use serde_json::json;
use std::{fs, time::Duration};
use tokio::time::Instant;

/// Prints the last line of a container's log; gives it with the time that this took.
#[track_caller]
fn last_line(world: &World, pod: &str) -> (Vec<u8>, Duration) {
    let begun = Instant::now();
    let logs = world.agent.pod_logs();
    let output =
        world.agent.cli(&["logs", pod, "--tail", "1", "--pod-logs-dir", logs.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.stdout, begun.elapsed())
}

#[test]
fn a_container_floods_its_log() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    // 200 MB, as fast as containerd takes it.
    let script = "yes 012345678901234567890123456789012345678901234567890123456789 | head -c 200000000; echo; echo over; sleep 100000";
    world.drop_pod(&Pod::with_main("flood", script));
    world.wait_running("flood");
    world.wait_until(
        "the flood is over",
        || last_line(&world, "flood").0,
        |line| line == b"over\n",
    );
    let (_, time) = last_line(&world, "flood");
    assert!(time < Duration::from_secs(10), "the last line took {time:?}");
    dog.finish(&world);
    world.finish();
}

#[test]
fn a_container_writes_a_line_of_100_mb() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let script = "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo over; sleep 100000";
    world.drop_pod(&Pod::with_main("line", script));
    world.wait_running("line");
    world.wait_until(
        "the line is written",
        || last_line(&world, "line").0,
        |line| line == b"over\n",
    );
    let (_, time) = last_line(&world, "line");
    assert!(time < Duration::from_secs(10), "the last line took {time:?}");
    dog.finish(&world);
    world.finish();
}

/// containerd cuts what a command has written at 16 MiB.
#[test]
fn commands_of_probes_write_without_end() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let probe = json!({
        "exec": { "command": ["head", "-c", "15000000", "/dev/zero"] },
        "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1000,
    });
    let pods = ["loud1", "loud2", "loud3"];
    for pod in pods {
        let pod = Pod::running(pod);
        let pod = pod.set("containers/0/readinessProbe", probe.clone());
        world.drop_pod(&pod.set("containers/0/livenessProbe", probe.clone()));
    }
    let has_failed_often = |status: &Status, pod: &str| {
        status.events.iter().any(|event| {
            event["involvedObject"]["name"] == full_name(pod)
                && event["message"].as_str().is_some_and(|text| text.contains("more than 1 MiB"))
                && event["count"].as_u64() >= Some(3)
        })
    };
    world.wait("every probe has failed often", |status| {
        pods.iter().all(|pod| has_failed_often(status, pod))
    });
    dog.finish(&world);
    world.remove_all();
}

/// The fake runtime makes a thousand sandboxes in a moment.
#[test]
fn a_thousand_pods_of_others_run_on_the_same_runtime() {
    const FOREIGN: usize = 1000;
    let world = World::start(Kind::Fake);
    let dog = Watchdog::start(&world);
    let mut ids = Vec::new();
    for n in 0..FOREIGN {
        let name = format!("stranger-{n}");
        let metadata = v1::PodSandboxMetadata {
            name: name.clone(),
            namespace: "default".to_owned(),
            uid: name.clone(),
            attempt: 0,
        };
        let labels = [
            ("io.kubernetes.pod.name", name.as_str()),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", name.as_str()),
        ];
        let config = v1::PodSandboxConfig {
            metadata: Some(metadata),
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..Default::default()
        };
        ids.push(world.cri.run_sandbox(config).unwrap());
    }
    world.wait("they are listed", |status| status.node.foreign.len() == FOREIGN);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    world.kill_container(&world.running_id("web", "main"));
    world.wait("the container is restarted", |s| s.runs("web") && s.restarts("web", "main") == 1);
    dog.finish(&world);
    for id in ids {
        world.cri.remove_sandbox(&id).unwrap();
    }
    world.remove_all();
}

#[test]
fn file_events_overflow_the_queue_of_inotify() {
    let queue: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let Some(world) = crate::world(|settings| settings) else { return };
    world.drop_pod(&Pod::running("early"));
    world.wait_running("early");
    let stopped = Stopped::stop(Pid::from_raw(i32::try_from(world.agent.pid()).unwrap()));
    // Each file is two events at least. What the last two manifests say is beyond the end of the
    // queue.
    for n in 0..=queue / 2 {
        let path = world.manifest_path(&format!("{n}.tmp"));
        fs::write(&path, "").unwrap();
        fs::remove_file(path).unwrap();
    }
    world.drop_pod(&Pod::running("late"));
    drop(stopped);
    let dog = Watchdog::watch(&world);
    world.wait_running("late");
    world.remove("late.yaml");
    world.wait_gone("late");
    dog.finish(&world);
    world.finish();
}

#[test]
fn a_file_system_that_hangs_covers_the_manifest_directory() {
    let Some(world) = crate::world(|settings| settings) else { return };
    let dog = Watchdog::start(&world);
    let dead = DeadFileSystem::mount(&world.agent.manifests());
    let hangs = |location: &str, error: &Option<String>| {
        location.ends_with("manifests")
            && error.as_deref().is_some_and(|e| e.contains("does not answer"))
    };
    world.wait("the directory is named", |status| {
        status.node.sources.iter().any(|source| hangs(&source.location, &source.error))
    });
    world.kill_container(&world.running_id("innocent", "main"));
    world.wait("its pod's container is restarted", |s| {
        s.runs("innocent") && s.restarts("innocent", "main") == 1
    });
    dog.finish_without_innocent(&world);
    assert_eq!(world.agent.terminate(), Some(0), "the agent ends all the same");
    drop(dead);
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    world.finish();
}
