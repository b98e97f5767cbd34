//! What people do to manifests, on purpose and by mistake.

use crate::support::{
    agent::Settings,
    images::BUSYBOX,
    manifest::{Pod, STUBBORN},
    proxy::Call,
    status::Status,
    stays,
    world::{Kind, World},
};
use nix::mount::{MsFlags, mount, umount};
use nodelet::{cri::v1, model::FileVerdict};
use serde_json::json;
use std::{fs, time::Duration};

pub fn an_edit_replaces_the_pod_after_the_old_one_is_gone(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::with_main("web", STUBBORN).set("terminationGracePeriodSeconds", 3);
    world.drop_pod(&pod);
    let before = world.wait_running("web").pod("web").unwrap().uid.clone();
    world.proxy.forget_calls();
    world.drop_pod(&pod.clone().env("VERSION", "2").set("terminationGracePeriodSeconds", 1));
    let status = world.wait("the new pod runs", |status| {
        status.runs("web") && status.pod("web").is_some_and(|pod| pod.uid != before)
    });
    replaced_in_order(&world, before.as_str(), status.pod("web").unwrap().uid.as_str(), 3);
    assert_eq!(world.running_ids("web").len(), 1);
    world.finish();
}

/// The old pod was stopped with its own grace and only then the new one begun.
#[track_caller]
pub fn replaced_in_order(world: &World, old: &str, new: &str, grace_seconds: i64) {
    let calls = world.proxy.mutating_calls();
    let of = |method: &'static str, uid: &str| {
        let uid = uid.to_owned();
        move |call: &&Call| call.method == method && call.pod.as_ref().is_some_and(|p| p.uid == uid)
    };
    let stop = calls.iter().find(of("StopContainer", old)).expect("the old container is stopped");
    let timeout = stop.request::<v1::StopContainerRequest>().timeout;
    assert_eq!(timeout, grace_seconds, "with its own grace period");
    let stop_sandbox = calls.iter().find(of("StopPodSandbox", old)).expect("and its sandbox");
    let begin = calls.iter().find(of("RunPodSandbox", new)).expect("the new one is begun");
    let (_, stopped_at) = stop_sandbox.answered.expect("the stop was answered");
    assert!(begin.at >= stopped_at, "the new pod began before the old one was gone: {calls:#?}");
}

/// Its manifest comes back before any listing has shown that the pod is gone.
pub fn a_pod_that_comes_back_at_once_begins_anew(kind: Kind) {
    let world = World::start(kind);
    let web = Pod::running("web");
    world.drop_pod(&web);
    let uid = world.wait_running("web").pod("web").unwrap().uid.clone();
    world.remove("web.yaml");
    world.proxy.on("ListPodSandbox").delay(Duration::from_secs(1));
    world.wait_gone("web");
    world.proxy.forget_calls();
    world.drop_pod(&web);
    let status = world.wait_running("web");
    assert_eq!(status.pod("web").unwrap().uid, uid, "the same manifest");
    assert_eq!(status.restarts("web", "main"), 0);
    assert_eq!(world.proxy.count("CreateContainer", "web"), 1, "{:#?}", world.proxy.calls());
    world.proxy.lift_all();
    world.finish();
}

pub fn an_edit_of_comments_changes_nothing(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::running("web");
    world.drop_pod(&pod);
    world.wait_running("web");
    let ids = world.running_ids("web");
    world.write("web.yaml", &format!("# looked at and left alone\n\n{}", pod.text()));
    // Written later, and seen: so the edit was read.
    world.drop_pod(&Pod::running("later"));
    world.wait_running("later");
    stays(
        "the same container",
        Duration::from_secs(3),
        || world.running_ids("web"),
        |now| *now == ids,
    );
    world.finish();
}

/// Every way of spoiling a manifest, with a name.
fn bad_edits(good: &Pod) -> Vec<(&'static str, Vec<u8>)> {
    let text = good.text();
    let edit = |pod: Pod| pod.text().into_bytes();
    let mut other_kind = good.value().clone();
    other_kind["kind"] = json!("Deployment");
    vec![
        ("not YAML", b"kind: [Pod\n  - : {".to_vec()),
        ("half of it", text.as_bytes()[..text.len() / 2].to_vec()),
        ("nothing", Vec::new()),
        ("only a comment", b"# moved elsewhere\n".to_vec()),
        ("binary", vec![0, 159, 146, 150, 255, 254, 0, 1]),
        ("another kind", other_kind.to_string().into_bytes()),
        ("no kind", b"just: words\n".to_vec()),
        ("a scalar", b"hello\n".to_vec()),
        ("no image", edit(good.clone().set("containers", json!([{ "name": "main" }])))),
        ("no containers", edit(good.clone().set("containers", json!([])))),
        ("an unknown field", edit(good.clone().set("contaners", json!([])))),
        ("a wrong type", edit(good.clone().set("containers", "one"))),
        ("a bad name", edit(good.clone().meta("name", "Web_1"))),
        ("a bad container name", edit(good.clone().set("containers/0/name", "Main!"))),
        ("a doubled key", format!("kind: Pod\n{{}}\nkind: Pod\n{text}").into_bytes()),
        (
            "a volume that is not supported",
            edit(
                good.clone()
                    .set("volumes", json!([{ "name": "c", "gitRepo": { "repository": "c" } }])),
            ),
        ),
        ("an image name with a space", edit(good.clone().set("containers/0/image", "BUSY box"))),
        (
            "the same container twice",
            edit(good.clone().set(
                "containers",
                json!([{ "name": "a", "image": BUSYBOX }, { "name": "a", "image": BUSYBOX }]),
            )),
        ),
    ]
}

pub fn bad_edits_keep_the_pod(kind: Kind) {
    let world = World::start(kind);
    let good = Pod::running("web");
    world.drop_pod(&good);
    world.wait_running("web");
    let ids = world.running_ids("web");
    for (shape, content) in bad_edits(&good) {
        fs::write(world.manifest_path("web.yaml"), &content).unwrap();
        world.wait(&format!("a verdict on a manifest that is {shape}"), |status| {
            let verdicts = status.verdicts("web.yaml");
            !verdicts.iter().any(|verdict| matches!(verdict, FileVerdict::Accepted { .. }))
                && status.runs("web")
        });
        assert_eq!(world.running_ids("web"), ids, "a manifest that is {shape}");
        world.drop_pod(&good);
        world.wait("the good manifest is accepted again", |status| {
            let verdicts = status.verdicts("web.yaml");
            verdicts.iter().any(|verdict| matches!(verdict, FileVerdict::Accepted { .. }))
        });
        assert_eq!(world.running_ids("web"), ids, "after a manifest that was {shape}");
    }
    world.finish();
}

pub fn a_vanished_directory_keeps_its_pods(kind: Kind) {
    let settings = Settings::for_kind(kind).kubelet("fileCheckFrequency: 1s\n");
    let world = World::start_with(kind, &settings);
    let pod = Pod::running("web");
    world.drop_pod(&pod);
    world.wait_running("web");
    let ids = world.running_ids("web");
    let (there, away) = (world.agent.manifests(), world.agent.manifests().with_extension("away"));

    fs::rename(&there, &away).unwrap();
    world.wait("the source is reported as missing", |status| {
        status.node.sources.iter().any(|source| source.error.is_some())
    });
    let same = |now: &Vec<String>| *now == ids;
    let span = Duration::from_secs(3);
    stays("the pod outlives its directory", span, || world.running_ids("web"), same);

    fs::create_dir(&there).unwrap();
    world.wait("the source says that this is another directory", |status| {
        let errors = status.node.sources.iter().filter_map(|source| source.error.as_ref());
        errors.into_iter().any(|error| error.contains("another directory"))
    });
    stays("another, empty directory removes nothing", span, || world.running_ids("web"), same);

    world.drop_pod(&pod);
    world.wait("the source is fine again", |status| {
        status.node.sources.iter().all(|source| source.error.is_none())
    });
    stays("the same manifest again changes nothing", span, || world.running_ids("web"), same);
    world.remove("web.yaml");
    world.wait_gone("web");
    world.finish();
}

/// Another file system is mounted over the directory while the agent runs, as by somebody who mounts
/// a disk at the wrong place, and goes again.
pub fn a_mount_over_the_manifests_keeps_their_pods(kind: Kind) {
    let settings = Settings::for_kind(kind)
        .kubelet("fileCheckFrequency: 1s\ncrashLoopBackOff: { maxContainerRestartPeriod: 1s }\n");
    let world = World::start_with(kind, &settings);
    for name in ["web", "crashes"] {
        world.drop_pod(&Pod::running(name));
        world.wait_running(name);
    }
    let web = world.running_ids("web");
    let directory = world.agent.manifests();
    let error = |status: &Status| {
        let source = status.node.sources.iter().find(|source| source.error.is_some());
        source.and_then(|source| source.error.clone())
    };

    mount(Some("over"), &directory, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let told = |status: &Status| error(status).is_some_and(|e| e.contains("another directory"));
    world.wait("the source says that this is another directory", told);
    let kept = |status: &Status| {
        let verdicts = ["web.yaml", "crashes.yaml"].map(|file| status.verdicts(file));
        verdicts.iter().flatten().all(|verdict| matches!(verdict, FileVerdict::Rejected { .. }))
            && verdicts.iter().all(|verdicts| !verdicts.is_empty())
    };
    world.wait("each manifest is told to be kept", kept);
    world.kill_container(&world.running_id("crashes", "main"));
    world.wait("a dead container is restarted", |status| {
        status.restarts("crashes", "main") == 1 && status.runs("crashes")
    });
    world.agent.kill();
    world.proxy.forget_calls();
    world.agent.start();
    world.wait("an agent that starts now finds them", |status| {
        told(status) && status.runs("web") && status.runs("crashes")
    });
    stays("nothing ends", Duration::from_secs(3), || world.running_ids("web"), |ids| *ids == web);
    assert_eq!(world.proxy.count("StopContainer", ""), 0);

    // Not while the agent lists it.
    world.wait_until("it is unmounted", || umount(&directory), Result::is_ok).unwrap();
    let accepted = |status: &Status| {
        let verdicts = status.verdicts("web.yaml");
        error(status).is_none()
            && verdicts.iter().any(|verdict| matches!(verdict, FileVerdict::Accepted { .. }))
    };
    world.wait("all is as before", |status| {
        accepted(status) && status.runs("web") && status.runs("crashes")
    });
    assert_eq!(world.running_ids("web"), web);
    world.remove("web.yaml");
    world.wait_gone("web");
    world.drop_pod(&Pod::running("new"));
    world.wait_running("new");
    world.finish();
}

pub fn of_two_manifests_with_one_name_the_running_one_stays(kind: Kind) {
    let world = World::start(kind);
    let pod = Pod::running("web");
    world.write("second.yaml", &pod.text());
    let uid = world.wait_running("web").pod("web").unwrap().uid.clone();
    // Sorts before the one that runs.
    world.write("first.yaml", &pod.clone().env("OTHER", "1").text());
    let status = world.wait("the newcomer is rejected", |status| status.rejected("first.yaml"));
    let verdict = format!("{:?}", status.verdicts("first.yaml"));
    assert!(verdict.contains("second.yaml"), "the verdict names the other file: {verdict}");
    let running =
        || world.agent.status().ok().and_then(|s| s.pod("web").map(|pod| pod.uid.clone()));
    stays("the first one stays", Duration::from_secs(2), running, |now| now.as_ref() == Some(&uid));
    world.remove("second.yaml");
    world.wait("the other takes its place", |status| {
        status.runs("web") && status.pod("web").is_some_and(|pod| pod.uid != uid)
    });
    world.finish();
}

pub fn what_is_no_manifest_is_listed_with_its_reason(kind: Kind) {
    let world = World::start(kind);
    let text = Pod::running("web").text();
    let ignored =
        ["web.yaml.bak", "web.yaml~", ".web.yaml.swp", "#web.yaml#", "notes.txt", "web.yaml.orig"];
    for name in ignored {
        fs::write(world.manifest_path(name), &text).unwrap();
    }
    fs::create_dir(world.manifest_path("sub.yaml")).unwrap();
    world.drop_pod(&Pod::running("other"));
    world.wait_running("other");
    let listed = ["web.yaml.bak", "web.yaml~", "notes.txt", "web.yaml.orig", "sub.yaml"];
    let status = world.wait("each is listed with its reason", |status| {
        let skipped = |verdict: &&FileVerdict| matches!(verdict, FileVerdict::Skipped { .. });
        listed.iter().all(|name| status.verdicts(name).iter().any(skipped))
    });
    assert!(status.pod("web").is_none(), "no backup file is run: {status:?}");
    fs::remove_dir(world.manifest_path("sub.yaml")).unwrap();
    world.finish();
}
