//! Pods from `staticPodURL`.

use crate::support::{
    agent::Settings,
    manifest::Pod,
    status::Status,
    stays,
    web::Web,
    world::{Kind, World},
};
use serde_json::{Value, json};
use std::time::Duration;

const TOKEN: &str = "x-token: s3cret";

/// The body of a list.
fn list(names: &[&str]) -> String {
    let pods: Vec<Value> = names.iter().map(|name| Pod::running(name).value().clone()).collect();
    json!({ "apiVersion": "v1", "kind": "PodList", "items": pods }).to_string()
}

fn settings(kind: Kind, url: &str) -> Settings {
    Settings::for_kind(kind).kubelet(&format!(
        "staticPodURL: {url}\nhttpCheckFrequency: 1s\nstaticPodURLHeader: {{ X-Token: [s3cret] }}\n"
    ))
}

/// The error of the URL.
fn error(status: &Status) -> Option<&str> {
    let url = status.node.sources.iter().find(|source| source.location.starts_with("http"))?;
    url.error.as_deref()
}

/// Takes the pods of the URL away, so that the world can end.
fn finish(world: World, web: &Web, path: &str) {
    web.serve(path, &list(&[]));
    world.finish();
}

pub fn pods_of_a_url_stay_while_it_is_away(kind: Kind) {
    let web = Web::start();
    let path = "/pods?token=hidden";
    web.serve(path, &list(&["one", "two"]));
    let world = World::start_with(kind, &settings(kind, &web.url(path)));
    for name in ["one", "two"] {
        world.wait_running(name);
    }
    assert!(web.asked(path)[0].contains(TOKEN), "{:?}", web.asked(path));
    let both = || ["one", "two"].map(|name| world.running_ids(name));
    let running = both();

    web.go_away(true);
    let status = world.wait("the URL is away", |status| error(status).is_some());
    let said = format!("{status:?} {}", world.agent.log());
    assert!(said.contains(&web.url("/pods")) && !said.contains("hidden"), "{said}");
    stays("its pods stay", Duration::from_secs(3), both, |now| *now == running);
    // An agent that starts meanwhile knows the pods, and restarts what dies.
    world.agent.kill();
    world.agent.start();
    world.wait("the pods are found", |status| {
        error(status).is_some() && status.runs("one") && status.runs("two")
    });
    assert_eq!(both(), running);
    world.kill_container(&world.running_id("one", "main"));
    world.wait("a dead one is restarted", |status| {
        status.restarts("one", "main") == 1 && status.runs("one")
    });

    let two = world.running_ids("two");
    web.serve(path, &list(&["two", "three"]));
    web.go_away(false);
    world.wait_running("three");
    world.wait_gone("one");
    let status = world.wait("all is well", |status| error(status).is_none());
    assert_eq!(world.running_ids("two"), two);
    assert_eq!(status.pods.len(), 2, "{status:?}");
    finish(world, &web, path);
}

pub fn redirects_of_a_url_take_headers_nowhere_else(kind: Kind) {
    let (web, other) = (Web::start(), Web::start());
    web.serve("/end", &list(&["web"]));
    for n in 0..10 {
        let to = if n == 9 { "/end".to_owned() } else { format!("/{}", n + 1) };
        web.redirect(&format!("/{n}"), &to);
    }
    let world = World::start_with(kind, &settings(kind, &web.url("/0")));
    world.wait_running("web");
    let ids = world.running_ids("web");
    for path in ["/0", "/1", "/9", "/end"] {
        let asked = web.asked(path);
        assert!(asked.iter().all(|head| head.contains(TOKEN)) && !asked.is_empty(), "{asked:?}");
    }

    // One more is too many.
    web.serve("/last", &list(&["other"]));
    web.redirect("/end", "/last");
    let status = world.wait("the redirects are too many", |status| {
        error(status).is_some_and(|error| error.contains("stopped after 10 redirects"))
    });
    assert!(status.pod("other").is_none() && web.asked("/last").is_empty(), "{status:?}");
    assert_eq!(world.running_ids("web"), ids, "its pod stays");

    // Another port is another server.
    other.serve("/pods", &list(&["web", "other"]));
    web.redirect("/0", &other.url("/pods"));
    world.wait_running("other");
    let asked = other.asked("/pods");
    assert!(asked.iter().all(|head| !head.contains("token")) && !asked.is_empty(), "{asked:?}");
    assert_eq!(world.running_ids("web"), ids);
    finish(world, &other, "/pods");
}
