//! `runtimeClassName` by the map of handlers in the configuration.

use crate::support::{
    agent::Settings,
    manifest::Pod,
    world::{Kind, World},
};

pub fn a_class_chooses_the_handler(kind: Kind) {
    let mut settings = Settings::for_kind(kind);
    settings.nodelet.push_str("runtimeClasses: { second: other, lost: nowhere }\n");
    let world = World::start_with(kind, &settings);
    let pod = |name: &str, class: &str| Pod::running(name).set("runtimeClassName", class);
    world.drop_pod(&pod("web", "second"));
    world.drop_pod(&Pod::running("plain"));
    world.drop_pod(&pod("astray", "lost"));
    world.drop_pod(&pod("unknown", "third"));
    world.wait_running("web");
    world.wait_running("plain");
    let handler = |pod: &str| world.sandboxes(pod)[0].runtime_handler.clone();
    assert_eq!((handler("web").as_str(), handler("plain").as_str()), ("other", ""));
    let status = world.wait("the runtime says that it has no such handler", |status| {
        status.has_event("FailedCreatePodSandBox", "no runtime for")
    });
    assert!(status.pod("unknown").is_none(), "{status:?}");
    let verdict = format!("{:?}", status.verdicts("unknown.yaml"));
    assert!(verdict.contains("add it to runtimeClasses"), "{verdict}");
    // The handler stays over a restart of the sandbox.
    world.kill_sandbox(&world.sandboxes("web")[0].id);
    world.wait("it runs in another sandbox", |status| {
        status.runs("web") && world.sandboxes("web").iter().any(|one| one.state == 0)
    });
    assert_eq!(handler("web"), "other");
    world.remove("astray.yaml");
    world.finish();
}
