//! State files that are damaged, cut short, or gone.

use crate::support::{
    manifest::{FOREVER, Pod},
    status::Status,
    stays,
    world::{Kind, World},
};
use serde_json::Value;
use std::{fs, path::PathBuf, time::Duration};

/// State files of an agent, below its directory's parent.
fn state(world: &World, file: &str) -> PathBuf {
    world.agent.root_dir().join("nodelet").join(file)
}

fn run_file(world: &World, file: &str) -> PathBuf {
    world.agent.root_dir().with_file_name("run").join(file)
}

/// Cuts a file to half its length, as a crash of another file system may.
#[track_caller]
fn halve(path: &PathBuf) {
    let content = fs::read(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    fs::write(path, &content[..content.len() / 2]).unwrap();
}

fn settled(status: &Status) -> bool {
    status.runs("web")
        && status.runs("rich")
        && status.phase("job") == "Succeeded"
        && status.waiting_reason("crash", "main") == "CrashLoopBackOff"
}

/// A world with pods of every kind, as they are once all is done.
fn settled_world(kind: Kind) -> World {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.drop_pod(&Pod::running("rich").init("setup", "true").sidecar("proxy", FOREVER));
    world.drop_pod(&Pod::with_main("job", "exit 0").set("restartPolicy", "Never"));
    world.drop_pod(&Pod::with_main("crash", "exit 3"));
    world.wait("all have settled", settled);
    world.kill_container(&world.running_id("web", "main"));
    world
        .wait("one was restarted", |status| settled(status) && status.restarts("web", "main") == 1);
    world.wait_released("job");
    world
}

type Damage = (&'static str, fn(&World), &'static [&'static str]);

/// What is done to the files of a dead agent, and what the next one must name.
const DAMAGES: [Damage; 7] = [
    (
        "records cut short",
        |world| {
            for name in ["web", "rich", "job", "crash"] {
                halve(&state(world, &format!("pods/default_{name}-node1.json")));
            }
        },
        &["default_web-node1.json", "default_rich-node1.json", "default_job-node1.json"],
    ),
    (
        "manifests accepted earlier cut short",
        |world| halve(&state(world, "sources.json")),
        &["sources.json"],
    ),
    (
        "back-offs cut short",
        |world| {
            halve(&run_file(world, "pods/default_web-node1.json"));
            halve(&run_file(world, "pods/default_rich-node1.json"));
        },
        &["run/pods/default_web-node1.json"],
    ),
    (
        "empty files",
        |world| {
            fs::write(state(world, "pods/default_web-node1.json"), "").unwrap();
            fs::write(state(world, "sources.json"), "").unwrap();
        },
        &["default_web-node1.json", "sources.json"],
    ),
    (
        "files of a later version",
        |world| {
            let later = "{\"version\":99,\"content\":[]}";
            fs::write(state(world, "pods/default_rich-node1.json"), later).unwrap();
            fs::write(state(world, "sources.json"), later).unwrap();
        },
        &["default_rich-node1.json", "sources.json", "99"],
    ),
    (
        "binary rubbish, and a directory in a file's place",
        |world| {
            fs::write(state(world, "pods/default_web-node1.json"), [0xff; 4096]).unwrap();
            fs::remove_file(state(world, "pods/default_rich-node1.json")).unwrap();
            fs::create_dir(state(world, "pods/default_rich-node1.json")).unwrap();
            fs::write(state(world, "pods/stray.json"), "[]").unwrap();
            fs::write(state(world, "pods/default_web-node1.json.unfinished"), "{").unwrap();
        },
        &["default_web-node1.json", "default_rich-node1.json", "stray.json"],
    ),
    (
        "everything of the last life",
        |world| {
            fs::remove_dir_all(state(world, "pods")).unwrap();
            fs::remove_file(state(world, "sources.json")).unwrap();
        },
        &[],
    ),
];

pub fn damaged_state_files_are_named_and_restart_nothing(kind: Kind) {
    let world = settled_world(kind);
    let ids = ["web", "rich"].map(|pod| world.running_ids(pod));
    for (what, damage, named) in DAMAGES {
        world.agent.kill();
        damage(&world);
        world.proxy.forget_calls();
        world.agent.start();
        let status = world.wait(&format!("all is as it was after: {what}"), |status| {
            settled(status) && status.restarts("web", "main") == 1
        });
        for name in named {
            let warnings = &status.node.warnings;
            assert!(
                warnings.iter().any(|w| w.contains(name)),
                "{what}: no {name} in {warnings:#?}"
            );
        }
        let touched = || {
            let calls = world.proxy.mutating_calls();
            calls.into_iter().filter(|call| !call.is_for("crash")).collect::<Vec<_>>()
        };
        stays(what, Duration::from_secs(2), touched, Vec::is_empty);
        assert_eq!(["web", "rich"].map(|pod| world.running_ids(pod)), ids, "{what}");
    }
    // All that is known is known again: an edit replaces in order, a removal ends its pod.
    world.drop_pod(&Pod::running("web").env("VERSION", "2"));
    world.wait("the edited pod runs", |status| {
        status.runs("web") && status.restarts("web", "main") == 0
    });
    world.finish();
}

/// The other manifest is there: not everything is lost.
pub fn a_pod_stays_whose_manifest_is_broken_and_not_saved(kind: Kind) {
    let world = World::start(kind);
    let web = Pod::running("web");
    let pods = ["web", "rich"];
    world.drop_pod(&web);
    world.drop_pod(&Pod::running("rich"));
    for pod in pods {
        world.wait_running(pod);
    }
    let ids = pods.map(|pod| world.running_ids(pod));
    let lose_and_break = || {
        world.agent.kill();
        fs::write(state(&world, "sources.json"), "").unwrap();
        world.write("web.yaml", "{");
        world.agent.start();
    };
    let says_lost = |status: &Status| {
        let errors = status.node.sources.iter().filter_map(|source| source.error.as_ref());
        errors.into_iter().any(|error| error.contains("default/web-node1"))
    };
    lose_and_break();
    world.wait("the loss is told", |status| status.runs("rich") && says_lost(status));
    let running = || pods.map(|pod| world.running_ids(pod));
    stays("nothing is removed", Duration::from_secs(2), running, |now| *now == ids);
    world.drop_pod(&web);
    world.wait("its manifest is back", |status| status.runs("web") && !says_lost(status));
    assert_eq!(running(), ids);
    lose_and_break();
    world.wait("the loss is told again", says_lost);
    world.remove("web.yaml");
    world.wait_gone("web");
    assert_eq!(world.running_ids("rich"), ids[1]);
    world.finish();
}

pub fn a_lost_owner_id_restarts_nothing(kind: Kind) {
    let world = settled_world(kind);
    let ids = ["web", "rich"].map(|pod| world.running_ids(pod));
    let owner = fs::read_to_string(state(&world, "owner")).unwrap();
    for damage in ["", "0123"] {
        world.agent.kill();
        fs::write(state(&world, "owner"), damage).unwrap();
        world.proxy.forget_calls();
        world.agent.start();
        let status = world.wait(&format!("all is as it was after {damage:?}"), settled);
        assert!(status.node.warnings.iter().any(|w| w.contains("owner")), "{status:?}");
        assert_eq!(["web", "rich"].map(|pod| world.running_ids(pod)), ids, "{damage:?}");
        assert_eq!(fs::read_to_string(state(&world, "owner")).unwrap(), owner);
    }
    world.finish();
}

/// The runtime's CNI library does not sync what it remembers of networks. An empty file is what a
/// loss of power leaves of it.
pub fn what_cni_forgot_keeps_no_pod(kind: Kind) {
    let world = World::start(kind);
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let sandbox = world.sandboxes("web").remove(0).id;
    let remembered: Vec<PathBuf> = fs::read_dir("/var/lib/cni/results")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(&format!("-{sandbox}-eth0")))
        .collect();
    assert_eq!(remembered.len(), 1, "{remembered:?}");
    fs::write(&remembered[0], "").unwrap();
    world.remove("web.yaml");
    world.wait_gone("web");
    assert!(world.agent.log().contains("which CNI could not read any more"));
    world.finish();
}

pub fn node_conditions_are_saved_again_after_a_loss(kind: Kind) {
    let world = World::start(kind);
    let file = run_file(&world, "conditions.json");
    let is_saved = || {
        let saved = fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        saved.is_some_and(|saved: Value| saved["content"]["ready"]["holds"] == true)
    };
    world.wait_until("the node is ready, which is saved", is_saved, |saved| *saved);
    // In one step: the agent makes the directory again at once.
    let run = file.parent().unwrap();
    fs::rename(run, run.with_file_name("lost")).unwrap();
    world.wait_until("the conditions are saved again", is_saved, |saved| *saved);
    world.wait("the agent answers", |_| true);
}
