//! The way to the API server does to a client what its faults say, and nothing else.

use super::{
    control_plane,
    controlplane::{
        ControlPlane, Options,
        client::{Answer, Client},
        kubeconfig::Kubeconfig,
        link::{Link, Moment},
        pki::{Identity, Validity},
    },
    objects::{self, NODES},
    support::{
        on_path,
        skips::{self, skip_without},
        wait_until,
    },
};
use hyper::Method;
use serde_json::json;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(2);
const VERSION: &str = "/version";

/// Somebody who asks through a link.
fn asker(cluster: &ControlPlane, link: &Link, identity: &Identity) -> Client {
    Client::new(link.address(), &cluster.authority(), Some(identity)).with_deadline(SOON)
}

fn ask(client: &Client) -> Result<u16, String> {
    client.send(Method::GET, VERSION, None).map(|answer| answer.status)
}

fn name_of(client: &Client) -> String {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = client.create(path, &review).unwrap().ok();
    answer["status"]["userInfo"]["username"].as_str().unwrap().to_owned()
}

/// Nothing is answered, for as long as one who waits shortly waits.
#[track_caller]
fn silent(client: Client) {
    let answer = ask(&client.with_deadline(SHORT));
    assert!(answer.as_ref().is_err_and(|err| err.contains("no answer within")), "{answer:?}");
}

#[test]
fn connections_fail_as_told() {
    let Some((cluster, slot)) = control_plane(&Options::default()) else { return };
    let link = Link::start(&slot, &cluster, 0);
    let identity = cluster.node_identity("one");
    let new = || asker(&cluster, &link, &identity);
    let old = new();
    assert_eq!(ask(&old), Ok(200));
    assert_eq!(link.tcp.connections(), 1);
    let before = link.tcp.bytes();
    let used_again = || {
        let connections = link.tcp.connections();
        ask(&old) == Ok(200) && link.tcp.connections() == connections
    };
    wait_until("the connection is used again", SOON, used_again, |again| *again);
    // The link counts what it has passed on, after it was passed on.
    wait_until(
        "what was carried is counted",
        SOON,
        || link.tcp.bytes(),
        |after| after.sent > before.sent && after.received > before.received + 200,
    );

    link.tcp.refuse(true);
    // Who has a connection may first meet its end.
    ask(&old).unwrap_err();
    for client in [&old, &new()] {
        let refused = ask(client).unwrap_err();
        assert!(refused.contains("Connection refused"), "{refused}");
    }
    link.tcp.refuse(false);
    assert_eq!(ask(&old), Ok(200));

    link.tcp.silence(true);
    silent(old);
    silent(new());
    // What was on its way arrives afterwards.
    let patient = new();
    thread::scope(|scope| {
        let seen = link.tcp.connections();
        let asked = scope.spawn(|| ask(&patient));
        wait_until("it has connected", SOON, || link.tcp.connections(), |now| *now > seen);
        link.tcp.silence(false);
        assert_eq!(asked.join().unwrap(), Ok(200));
    });

    let latency = Duration::from_millis(400);
    link.tcp.delay(latency);
    let begun = Instant::now();
    assert_eq!(ask(&patient), Ok(200));
    assert!(begun.elapsed() >= 2 * latency, "{:?}", begun.elapsed());
    link.heal();

    let hold = link.http.on("GET", VERSION).hang();
    thread::scope(|scope| {
        link.http.forget();
        let asked = scope.spawn(|| ask(&patient));
        let held = || link.http.count("GET", VERSION);
        wait_until("the request is under way", SOON, held, |count| *count == 1);
        link.tcp.cut();
        asked.join().unwrap().unwrap_err();
    });
    link.http.lift(hold);
    assert_eq!(ask(&patient), Ok(200));

    let flapping = link.tcp.flap(Duration::from_millis(300));
    for _ in 0..2 {
        wait_until("it is down", SOON, || ask(&new()).is_ok(), |up| !up);
        wait_until("it is up", SOON, || ask(&new()).is_ok(), |up| *up);
    }
    drop(flapping);
    wait_until("it stays up", SOON, || ask(&new()).is_ok(), |up| *up);
}

#[test]
fn packets_are_lost() {
    if skip_without(&[skips::root(), (on_path("iptables"), "iptables")]) {
        return;
    }
    let Some((cluster, slot)) = control_plane(&Options::default()) else { return };
    let link = Link::start_in_namespace(&slot, &cluster);
    let identity = cluster.node_identity("one");
    let old = asker(&cluster, &link, &identity);
    assert_eq!(ask(&old), Ok(200));
    link.lose_packets(true);
    silent(old);
    silent(asker(&cluster, &link, &identity));
    // Nothing else is lost.
    cluster.admin.get(VERSION);
    link.heal();
    let answers = || ask(&asker(&cluster, &link, &identity)).is_ok();
    wait_until("it answers again", SOON, answers, |up| *up);
    let namespace = Path::new("/run/netns").join(slot.network_namespace());
    assert!(namespace.exists());
    drop(link);
    assert!(!namespace.exists());
}

#[test]
fn requests_fail_as_told() {
    let Some((cluster, slot)) = control_plane(&Options::default()) else { return };
    let link = Link::start(&slot, &cluster, 0);
    let client = asker(&cluster, &link, &cluster.node_identity("one"));
    let create = || client.create(NODES, &objects::node("one"));
    let path = format!("{NODES}/one");

    link.http.on("POST", NODES).times(1).answer(500);
    let refused = create().unwrap();
    assert_eq!((refused.status, refused.json()["reason"].clone()), (500, json!("InternalError")));
    assert!(cluster.admin.find(&path).is_none(), "it was not executed");
    link.http.on("POST", "/api/v1/pods").answer(500);
    assert_eq!(create().unwrap().status, 201, "another path");
    link.http.lift_all();

    let throttled = link.http.on("*", NODES).answer_retry_after(429, 7);
    let get = || client.send(Method::GET, &path, None).unwrap();
    let Answer { status, headers, text } = get();
    assert_eq!((status, headers["retry-after"].as_bytes()), (429, &b"7"[..]), "{text}");
    link.http.lift(throttled);
    assert_eq!(get().status, 200);
    for status in [409, 410] {
        link.http.on("WATCH", NODES).times(1).answer(status);
        assert_eq!(get().status, 200, "no watch");
        let watch =
            format!("{NODES}?watch=true&fieldSelector=metadata.name%3Done&timeoutSeconds=1");
        let refused = client.send(Method::GET, &watch, None).unwrap();
        assert_eq!(refused.status, status);
        assert_eq!(client.send(Method::GET, &watch, None).unwrap().status, 200);
    }

    link.http.on("GET", &path).times(1).delay(Duration::from_secs(1));
    let begun = Instant::now();
    assert_eq!(get().status, 200);
    assert!(begun.elapsed() >= Duration::from_secs(1));

    // Executed or not, the client can't tell.
    let annotate = |value: &str| {
        let patch = json!({ "metadata": { "annotations": { "seen": value } } });
        asker(&cluster, &link, &cluster.node_identity("one")).patch(&path, &patch)
    };
    let seen = || cluster.admin.get(&path)["metadata"]["annotations"]["seen"].clone();
    // The connection ends when the request has come as far as it is to come.
    let unanswered = |value: &str, has_come: &dyn Fn() -> bool| {
        thread::scope(|scope| {
            let asked = scope.spawn(|| annotate(value));
            wait_until("the request is under way", SOON, has_come, |come| *come);
            link.tcp.cut();
            asked.join().unwrap().unwrap_err();
        });
    };
    let hold = link.http.on("PATCH", NODES).times(1).hang();
    unanswered("hung", &|| link.http.count("PATCH", NODES) == 1);
    assert_eq!(seen(), json!(null));
    link.http.lift(hold);
    for (moment, value) in [(Moment::Before, json!("held back")), (Moment::After, json!("after"))] {
        let ran = Arc::new(AtomicBool::new(false));
        let of_hook = Arc::clone(&ran);
        link.http.on("PATCH", NODES).run(moment, move || of_hook.store(true, Ordering::SeqCst));
        let hold = link.http.on("PATCH", NODES).hang_answer();
        let has_run = || ran.load(Ordering::SeqCst);
        match moment {
            Moment::Before => {
                unanswered("before", &has_run);
                assert_ne!(seen(), json!("before"));
                unanswered("held back", &|| seen() == value);
            }
            Moment::After => unanswered("after", &|| has_run() && seen() == value),
        }
        link.http.lift(hold);
    }
    link.http.lift_all();
    annotate("done").unwrap().ok();
}

#[test]
fn requests_are_recorded_and_passed_on_as_whoever_sent_them() {
    let Some((cluster, slot)) = control_plane(&Options::default()) else { return };
    let link = Link::start(&slot, &cluster, 0);
    let [one, two] = ["one", "two"].map(|name| cluster.node_identity(name));
    assert_eq!(name_of(&asker(&cluster, &link, &one)), "system:node:one");
    assert_eq!(name_of(&asker(&cluster, &link, &two)), "system:node:two");
    let expired = cluster.node_identity_for("one", Validity::Expired);
    assert_eq!(ask(&asker(&cluster, &link, &expired)), Ok(401));
    // kubectl speaks HTTP/2.
    let path = cluster.node_kubeconfig("one", link.address());
    let whoami = cluster.kubectl_as(&path, &["auth", "whoami"], "");
    assert!(String::from_utf8_lossy(&whoami.stdout).contains("system:node:one"), "{whoami:?}");

    link.http.forget();
    let client = asker(&cluster, &link, &one);
    client.create(NODES, &objects::node("one")).unwrap().ok();
    client.patch(&format!("{NODES}/one/status"), &json!({ "status": {} })).unwrap().ok();
    let mut requests = link.http.requests();
    assert_eq!(requests.len(), 2, "{requests:#?}");
    let patch = requests.pop().unwrap();
    assert_eq!((patch.verb.as_str(), patch.path.as_str()), ("PATCH", "/api/v1/nodes/one/status"));
    assert_eq!(patch.content_type, "application/strategic-merge-patch+json");
    assert_eq!((patch.body.as_slice(), patch.status), (&b"{\"status\":{}}"[..], Some(200)));
    assert!(patch.reached && patch.answered_bytes > 100, "{patch:?}");
    assert_eq!(link.http.count("*", NODES), 2);
    assert_eq!(link.http.count("PATCH", "/api/v1/nodes/one"), 1);

    // A watch through HTTP/2 ends with the API server.
    let watching = Kubeconfig::new(link.address(), &cluster.authority(), &one);
    let watching = watching.write(&path.with_file_name("watching"));
    let arguments = ["get", "node", "one", "--watch"];
    thread::scope(|scope| {
        let watch = scope.spawn(|| cluster.kubectl_as(&watching, &arguments, ""));
        let begun =
            || link.http.requests().iter().any(|r| r.verb == "WATCH" && r.answered_bytes > 0);
        // The second state of the object is what only a watch delivers.
        let change = || {
            let patch = json!({ "metadata": { "labels": { "time": format!("{:?}", Instant::now()).len().to_string() } } });
            cluster.admin.patch(&format!("{NODES}/one"), &patch).unwrap().ok();
            begun()
        };
        wait_until("the watch delivers", SOON, change, |begun| *begun);
        cluster.apiserver.kill();
        let ended = watch.join().unwrap();
        assert!(String::from_utf8_lossy(&ended.stdout).contains("one"), "{ended:?}");
    });
}
