//! The wall clock of a node is wrong, and set: pods of the API server do not notice.

use super::{
    node::{Node, PODS, WAITS, condition, is_ready, plain, shell},
    support::{agent::NODE_NAME, skips::skip_without},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

const DAY: i64 = 24 * 3600;
const TOKENS: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";

/// Whether something was stamped by a clock that is so many seconds ahead.
fn is_of(stamp: &Value, clock: i64) -> bool {
    let stamp: Option<Timestamp> = stamp.as_str().and_then(|stamp| stamp.parse().ok());
    stamp.is_some_and(|stamp| {
        let ahead = stamp.duration_since(Timestamp::now()).as_secs();
        (clock - 60..=clock + 60).contains(&ahead)
    })
}

/// Ends with its grace period only.
fn stubborn(name: &str, grace_seconds: u32) -> Value {
    let mut pod = plain(name, "trap '' TERM; while true; do sleep 1; done");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(grace_seconds);
    pod
}

#[test]
fn a_clock_that_is_set_cuts_and_prolongs_nothing() {
    let lines = "nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 2s";
    let Some(node) = Node::prepare(lines, &[]) else { return };
    let clock = node.world.agent.has_own_clock();
    if skip_without(&[(clock, "libfaketime (scripts/prerequisites test)")]) {
        return;
    }
    node.world.agent.start();
    node.wait_ready();
    node.create(&shell("web", WAITS));
    let started = node.wait_pod_ready("web");
    for (name, clock) in [("ahead", DAY), ("behind", -DAY)] {
        let mut limited = plain(&format!("{name}-limited"), WAITS);
        limited["spec"]["activeDeadlineSeconds"] = json!(600);
        node.create(&limited);
        node.create(&stubborn(&format!("{name}-slow"), 4));
        node.wait_pod_ready(&format!("{name}-limited"));
        node.wait_pod_ready(&format!("{name}-slow"));
        set_clock(&node, clock);
        // What has begun before goes on as it would have.
        ends_after_its_grace_period(&node, &format!("{name}-slow"));
        let limited = node.wait_pod_ready(&format!("{name}-limited"));
        assert_eq!(limited["status"]["phase"], "Running", "{limited:#}");
        web_goes_on(&node, &started);
        // And what begins now.
        let after = format!("{name}-after");
        node.create(&plain(&after, WAITS));
        let pod = node.wait_pod_ready(&after);
        assert!(is_of(&condition(&pod, "Ready").unwrap()["lastTransitionTime"], clock), "{pod:#}");
        set_clock(&node, 0);
    }
    web_goes_on(&node, &started);
    deadlines_end_pods(&node);
    node.finish();
}

/// Sets the clock of the node, and waits until its status is written by that clock.
fn set_clock(node: &Node, seconds: i64) {
    node.world.agent.set_clock(seconds);
    let heard = || {
        let this = node.admin().get(&format!("/api/v1/nodes/{NODE_NAME}"));
        condition(&this, "Ready").unwrap()["lastHeartbeatTime"].clone()
    };
    node.wait("the status is written", heard, |stamp| is_of(stamp, seconds));
}

fn ends_after_its_grace_period(node: &Node, pod: &str) {
    let deleted = Instant::now();
    node.delete(pod);
    node.wait_pod_gone(pod);
    let took = deleted.elapsed();
    let sane = Duration::from_secs(3)..Duration::from_secs(60);
    assert!(sane.contains(&took), "{took:?} with a grace period of 4 s");
}

/// Its container was never restarted, its token is good, and was not requested again and again.
fn web_goes_on(node: &Node, started: &Value) {
    let web = node.pod("web").unwrap();
    let status = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        (status["containerID"].clone(), status["restartCount"].clone())
    };
    assert!(is_ready(&web), "{web:#}");
    assert_eq!(status(&web), status(started));
    let token = node.exec("web", &["cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"]);
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": { "token": token },
    });
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer = node.admin().create(reviews, &review).unwrap().ok();
    assert_eq!(answer["status"]["authenticated"], true, "{answer:#}");
    let requests = node.link.http.count("POST", TOKENS);
    assert!((1..=4).contains(&requests), "{requests} requests of tokens");
}

/// A deadline that ends while the clock is right.
fn deadlines_end_pods(node: &Node) {
    let mut short = plain("short", WAITS);
    short["spec"]["activeDeadlineSeconds"] = json!(1);
    node.create(&short);
    let failed = node.wait_pod("short", "has ended", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(failed["status"]["reason"], "DeadlineExceeded", "{failed:#}");
    node.admin().delete(&format!("{PODS}/short")).unwrap().ok();
}
