//! The API server answers, and not as it should: late, with refusals of everything, like an older
//! one.

use super::{
    agent::{Member, figure, labelled, ready, uid},
    faults::goes_and_comes,
    objects::{NODES, PODS, WEBHOOKS, silent_webhook},
    support::manifest::Pod,
};
use serde_json::Value;
use std::{cell::Cell, net::TcpListener, time::Duration};
use tokio::time::Instant;

const SHORT: Duration = Duration::from_secs(3);
const INITIAL_EVENTS: &str = "sendInitialEvents=true";

/// Answers that come later than anybody waits for: what is behind them is given up, and what is not
/// behind them goes on.
#[test]
fn answers_that_take_half_a_minute_hold_nothing_up() {
    let Some(member) = Member::with_web() else { return };
    let half_a_minute = Duration::from_secs(30);
    goes_and_comes(
        &member,
        "30 s an answer",
        SHORT,
        || _ = member.link.http.on("*", "/api/").delay(half_a_minute),
        || {
            member.wait_told("pods: no answer within 15s");
            let begun = Instant::now();
            member.wait_renewed();
            figure("30 s an answer, but not for leases → next renewal", begun.elapsed());
            member.link.http.on("*", "/apis/").delay(half_a_minute);
            member.wait_told("lease: no answer within 10s");
            member.link.http.lift_all();
        },
    );
    member.wait_renewed();
    member.wait_untroubled();
    member.finish();
}

/// The API server waits ten seconds for the webhook at each write, and goes on without it.
#[test]
fn a_webhook_that_hangs_and_may_fail_only_costs_time() {
    let Some(member) = Member::with_web() else { return };
    let admin = &member.plane.admin;
    member.plane.kubectl_text(&["create", "serviceaccount", "default", "-n", "default"]);
    // The kernel takes its connections, and nobody speaks.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let webhook = silent_webhook(silent.local_addr().unwrap(), "app", "minded");
    admin.create(WEBHOOKS, &webhook).unwrap().ok();
    let asks = || {
        let begun = Instant::now();
        let trial = labelled("trial", "minded");
        admin.create(&format!("{PODS}?dryRun=All"), &trial).unwrap().ok();
        begun.elapsed()
    };
    member.wait("the webhook is waited for", asks, |took| *took > Duration::from_secs(5));
    member.world.drop_pod(&Pod::running("minded"));
    member.wait("its mirror is Ready", || member.mirror("minded"), ready);
    member.wait_untroubled();
    member.finish();
}

/// Conflicts, and versions that are too old: everything is looked at anew.
#[test]
fn refusals_of_everything_cost_no_pod() {
    let Some(member) = Member::with_web() else { return };
    for status in [409, 410] {
        let watches = || member.link.http.count("WATCH", "/");
        let before = Cell::new(0);
        goes_and_comes(
            &member,
            &format!("all answered with {status}"),
            SHORT,
            || {
                member.link.http.on("*", "/").answer(status);
                before.set(watches());
                member.link.tcp.cut();
            },
            || {
                member.wait("watches are refused", watches, |now| *now >= before.get() + 2);
                member.link.http.forget();
                member.link.http.lift_all();
            },
        );
        member.wait_renewed();
        member.wait_untroubled();
        // Nothing of what was seen before is built upon.
        let requests = member.link.http.requests();
        let begun: Vec<&str> =
            requests.iter().filter(|r| r.verb == "WATCH").map(|r| r.query.as_str()).collect();
        assert!(begun.len() >= 2 && begun.iter().all(|q| q.contains(INITIAL_EVENTS)), "{begun:?}");
    }
    member.finish();
}

/// An API server that knows no initial events is asked for a list, and the next one is asked for
/// them again.
#[test]
fn an_older_api_server_is_listed_and_watched() {
    let Some(member) = Member::with_web() else { return };
    let watched = |query: &str| {
        let requests = member.link.http.requests();
        ["/api/v1/nodes", "/api/v1/pods"].iter().all(|path| {
            let mut of_path = requests.iter().filter(|r| r.verb == "WATCH" && r.path == **path);
            of_path.any(|r| r.query.contains(query) && r.answered_bytes > 0)
        })
    };
    let lists = || member.link.http.count("GET", NODES);
    member.link.http.on("WATCH", NODES).times(1).answer(400);
    member.link.http.on("WATCH", "/api/v1/pods").times(1).answer(400);
    member.link.http.forget();
    member.link.tcp.cut();
    member.wait("nodes are listed", lists, |lists| *lists == 1);
    // Only a watch that goes on shows this.
    let label = [
        "label",
        "node",
        super::support::agent::NODE_NAME,
        "kubernetes.io/os=plan9",
        "--overwrite",
    ];
    member.plane.kubectl_text(&label);
    member.wait(
        "the node's label is put right",
        || member.node(),
        |node| node["metadata"]["labels"]["kubernetes.io/os"] == "linux",
    );
    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
    let old = uid(&member.mirror("web"));
    member.plane.kubectl_text(&["delete", "pod", "web-node1", "--wait=false"]);
    let anew = |pod: &Value| ready(pod) && uid(pod) != old;
    member.wait("the mirror is made again", || member.mirror("web"), anew);
    assert!(!watched(INITIAL_EVENTS));
    member.link.http.forget();
    member.link.tcp.cut();
    member.wait("initial events are asked for again", || watched(INITIAL_EVENTS), |seen| *seen);
    assert_eq!(lists(), 0);
    member.wait_untroubled();
    member.finish();
}

/// What a watch missed while etcd was compacted is found by the next one.
#[test]
fn a_watch_that_has_expired_begins_anew() {
    let Some(member) = Member::with_web() else { return };
    let http = &member.link.http;
    http.forget();
    // Each of its watches (its Node's, its pods') meets it at least once.
    http.on("WATCH", "/").times(3).expire();
    member.link.tcp.cut();
    let before = uid(&member.mirror("web"));
    let delete = ["delete", "pod", "-n", "default", "web-node1", "--wait=false"];
    member.plane.kubectl_text(&delete);
    member.wait("it is asked again", || http.count("WATCH", "/"), |count| *count >= 5);
    member.wait(
        "the mirror is made again",
        || member.mirror("web"),
        |pod| ready(pod) && uid(pod) != before,
    );
    member.wait_untroubled();
    member.finish();
}
