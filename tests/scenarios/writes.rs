//! The agent's death at every step of every kind of state-file write: when the new file is begun,
//! before and after it takes the old one's place, before and after a file is removed.

use crate::support::{
    agent::{NODE_NAME, Settings},
    manifest::Pod,
    poll_until,
    status::Status,
    world::{Kind, World},
};
use nodelet::{cri::v1, model::PodUid};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};
use tonic::Code;

/// What happens to a pod, in the order of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chapter {
    Dropped,
    Edited,
    Crashed,
    Removed,
}

const LIFE: [Chapter; 4] = [Chapter::Dropped, Chapter::Edited, Chapter::Crashed, Chapter::Removed];

impl Chapter {
    fn begin(self, world: &World, name: &str) {
        match self {
            Self::Dropped => world.drop_pod(&Pod::running(name)),
            Self::Edited => world.drop_pod(&Pod::running(name).env("VERSION", "2")),
            Self::Crashed => world.kill_container(&world.running_id(name, "main")),
            Self::Removed => world.remove(&format!("{name}.yaml")),
        }
    }

    /// Waits until all is as it should be; `before` is the uid before it.
    #[track_caller]
    fn settle(self, world: &World, name: &str, before: Option<&PodUid>) {
        if self == Self::Removed {
            return world.wait_gone(name);
        }
        world.wait(&format!("{name} runs after: {self:?}"), |status| {
            status.runs(name)
                && status.restarts(name, "main") == i32::from(self == Self::Crashed)
                && (self != Self::Edited || uid(status, name) != before)
        });
    }
}

fn uid<'a>(status: &'a Status, name: &str) -> Option<&'a PodUid> {
    status.pod(name).map(|pod| &pod.uid)
}

/// Name of the files that are about a pod.
pub fn file(name: &str) -> String {
    format!("default_{name}-{NODE_NAME}.json")
}

/// Each step since the last look once, in order, of the files of this pod (`FILE`) and of the
/// sources.
fn steps_for(world: &World, name: &str) -> Vec<String> {
    let mut steps: Vec<String> = Vec::new();
    for step in world.agent.state_writes().steps() {
        let step = step.replace(&file(name), "FILE");
        if (step.contains("FILE") || step.contains("sources.json")) && !steps.contains(&step) {
            steps.push(step);
        }
    }
    steps
}

/// A chapter in the life of a pod, at one step of which the agent dies; whether it came to that
/// step.
#[track_caller]
fn live(world: &World, name: &str, chapter: Chapter, dies: Option<&String>) -> bool {
    let status = world.wait("the agent answers", |_| true);
    let before = uid(&status, name);
    let writes = world.agent.state_writes();
    world.proxy.forget_calls();
    if let Some(step) = dies {
        writes.kill_at(&step.replace("FILE", &file(name)));
    }
    chapter.begin(world, name);
    chapter.settle(world, name, before);
    // Statuses are written down in their own time: one of this chapter may come in the next, or not
    // at all.
    let waits = || dies.is_some() && writes.is_armed();
    poll_until(Duration::from_secs(2), waits, |armed| !armed).ok();
    let died = writes.disarm();
    if died {
        chapter.settle(world, name, before);
    }
    never_twice(world, name, chapter);
    died
}

/// Nothing was begun twice, and one pod runs.
#[track_caller]
fn never_twice(world: &World, name: &str, chapter: Chapter) {
    let mut begun: BTreeMap<(String, String), usize> = BTreeMap::new();
    for call in world.proxy.mutating_calls().iter().filter(|call| call.is_for(name)) {
        let done = call.answered.is_some_and(|(code, _)| code == Code::Ok);
        let pod = call.pod.as_ref().unwrap();
        if done && matches!(call.method.as_str(), "RunPodSandbox" | "StartContainer") {
            *begun.entry((pod.uid.clone(), pod.container.clone())).or_default() += 1;
        }
    }
    let calls = || world.proxy.mutating_calls();
    assert!(begun.values().all(|times| *times == 1), "{chapter:?}: {begun:?} in {:#?}", calls());
    if chapter == Chapter::Crashed {
        let sandboxes = begun.keys().filter(|(_, container)| container.is_empty()).count();
        assert_eq!(sandboxes, 0, "the sandbox goes on: {:#?}", calls());
    }
    let expected = usize::from(chapter != Chapter::Removed);
    assert_eq!(world.running_ids(name).len(), expected, "{chapter:?}");
    let ready = |s: &&v1::PodSandbox| s.state() == v1::PodSandboxState::SandboxReady;
    assert_eq!(world.sandboxes(name).iter().filter(ready).count(), expected, "{chapter:?}");
}

/// What is written once, before anything else: who the agent is.
#[track_caller]
fn killed_while_it_is_made(world: &World) {
    let (agent, writes) = (&world.agent, world.agent.state_writes());
    agent.start();
    world.wait("the agent answers", |_| true);
    let steps = writes.steps();
    for name in ["owner", "owner.copy", "node-name"] {
        let step = format!("after rename root/nodelet/{name}");
        assert!(steps.contains(&step), "{step} is not in {steps:#?}");
    }
    agent.kill();
    let state = agent.root_dir().join("nodelet");
    fs::remove_dir_all(&state).unwrap();
    let mut owner = None;
    for step in &steps {
        writes.kill_at(step);
        agent.start();
        world.wait_until(&format!("the agent dies {step}"), || agent.is_running(), |runs| !runs);
        assert!(!writes.is_armed(), "the agent did not die of this: {step}");
        let now = fs::read_to_string(state.join("owner")).ok();
        assert!(owner.is_none() || owner == now, "{step}: {owner:?} became {now:?}");
        owner = now;
    }
    agent.start();
    let status = world.wait("the agent answers", |_| true);
    assert!(!status.node.warnings.iter().any(|w| w.contains("owner")), "{status:?}");
    let copy = fs::read_to_string(state.join("owner.copy")).unwrap();
    assert_eq!(owner, Some(copy));
}

pub fn killed_around_every_state_file_write(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    killed_while_it_is_made(&world);
    world.drop_pod(&Pod::running("other"));
    world.wait_running("other");
    let other = world.running_ids("other");

    let recording = LIFE.map(|chapter| {
        world.agent.state_writes().forget();
        live(&world, "recorded", chapter, None);
        steps_for(&world, "recorded")
    });
    for written in ["root/nodelet/sources.json", "root/nodelet/pods/FILE", "run/pods/FILE"] {
        for moment in ["before", "after"] {
            let step = format!("{moment} rename {written}");
            let seen = recording.iter().flatten().any(|seen| *seen == step);
            assert!(seen, "no {step} in {recording:#?}");
        }
    }

    world.agent.revive_when_dead(true);
    let mut died = BTreeSet::new();
    for n in 0..recording.iter().map(Vec::len).max().unwrap() {
        let name = format!("life{n}");
        for (chapter, steps) in LIFE.into_iter().zip(&recording) {
            let dies = steps.get(n);
            // The other chapters are needed to come to the next.
            if (dies.is_some() || chapter != Chapter::Crashed) && live(&world, &name, chapter, dies)
            {
                died.extend(dies);
            }
        }
        assert_eq!(world.running_ids("other"), other, "after {name}");
    }
    world.agent.revive_when_dead(false);
    let all: BTreeSet<&String> = recording.iter().flatten().collect();
    assert_eq!(died, all, "the agent died at every step of every kind");
    world.finish();
}

/// The steps up to the last rename to a file, and those after it.
fn around_last_rename<'a>(steps: &'a [String], file: &str) -> (&'a [String], &'a [String]) {
    let step = format!("after rename {file}");
    let place = steps.iter().rposition(|seen| *seen == step);
    steps.split_at(place.unwrap_or_else(|| panic!("no {step} in {steps:#?}")))
}

pub fn state_files_are_synced_before_and_after_their_rename(kind: Kind) {
    let world = World::prepare(kind, &Settings::for_kind(kind));
    let writes = world.agent.state_writes();
    world.agent.start();
    world.drop_pod(&Pod::running("web"));
    world.wait_running("web");
    let record = format!("root/nodelet/pods/{}", file("web"));
    for (file, dir) in [
        (record.as_str(), "root/nodelet/pods"),
        ("root/nodelet/sources.json", "root/nodelet"),
        ("root/nodelet/owner", "root/nodelet"),
        ("root/nodelet/owner.copy", "root/nodelet"),
        ("root/nodelet/node-name", "root/nodelet"),
    ] {
        // A write may be under way: its directory is synced soon.
        let synced = format!("after sync {dir}");
        let steps = world.wait_until(
            &format!("{dir} is synced after {file} was renamed"),
            || writes.steps_and_syncs(),
            |steps| around_last_rename(steps, file).1.contains(&synced),
        );
        let (before, _) = around_last_rename(&steps, file);
        let of_file = |step: &&String| step.ends_with(&format!(" {file}.unfinished"));
        let last = before.iter().rfind(of_file).map(String::as_str);
        assert_eq!(last, Some(&*format!("after sync {file}.unfinished")), "{steps:#?}");
    }
    // The record of a pod that is gone must not come back either.
    writes.forget();
    world.remove("web.yaml");
    world.wait_gone("web");
    let removed = format!("after unlink {record}");
    world.wait_until(
        "the directory is synced after the record was removed",
        || writes.steps_and_syncs(),
        |steps| {
            let place = steps.iter().rposition(|step| *step == removed);
            place.is_some_and(|place| {
                steps[place..].contains(&"after sync root/nodelet/pods".to_owned())
            })
        },
    );
    world.finish();
}
