//! How much a node asks of its API server: nothing but its lease when it is quiet, no more than its
//! budget when it is not.

use super::{
    agent::{Member, figure, hasty, ready, uid},
    controlplane::Options,
    objects::{LEASES, PODS},
    support::{manifest::Pod, say_loudly},
};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// Looks at everything every second, and has nothing to say.
#[test]
fn a_quiet_node_renews_its_lease_and_nothing_else() {
    let settings =
        hasty().kubelet("nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 5m\n");
    let Some(member) = Member::prepare(&Options::default(), &settings) else { return };
    let member = member.started().shows_web();
    let http = &member.link.http;
    let others = || -> Vec<String> {
        let all = http.requests().into_iter().filter(|r| !r.path.starts_with(LEASES));
        all.map(|r| format!("{} {} {}", r.verb, r.path, String::from_utf8_lossy(&r.body))).collect()
    };
    // Events and the first images come a little later than the rest.
    let mut quiet_since = Instant::now();
    let mut last = Vec::new();
    let look = || {
        let others = others();
        if !others.is_empty() {
            (quiet_since, last) = (Instant::now(), others);
            http.forget();
        }
        (quiet_since.elapsed(), last.clone())
    };
    // Longer than anything that goes round (10 s).
    member.wait("it is quiet", look, |(quiet, _)| *quiet >= Duration::from_secs(12));
    assert!(http.count("PUT", LEASES) >= 2);
    member.finish();
}

/// As many pods as a node may have, dropped at once.
#[test]
fn a_hundred_and_ten_pods_are_shown_within_the_budget() {
    let Some(member) = Member::start(&Options::default()) else { return };
    let (pods, world) = (110, &member.world);
    member.link.http.forget();
    let begun = Instant::now();
    for number in 0..pods {
        world.drop_pod(&Pod::running(&format!("pod-{number}")));
    }
    world.wait_for(Duration::from_secs(120), "all pods run", |status| {
        (0..pods).all(|number| status.runs(&format!("pod-{number}")))
    });
    figure("110 pods at once → all run", begun.elapsed());
    let shown = || {
        let status = world.agent.status().ok()?.node.cluster.clone()?;
        Some((status.mirrors, status.pods_waiting))
    };
    member.wait("all mirrors are as they should be", shown, |shown| *shown == Some((pods, 0)));
    figure("110 pods at once → all mirror pods Ready", begun.elapsed());
    let all = member.plane.admin.get(PODS)["items"].clone();
    assert_eq!(all.as_array().unwrap().iter().filter(|pod| ready(pod)).count(), pods);
    let writes = || -> Vec<Instant> {
        let requests = member.link.http.requests();
        let writes = requests.iter().filter(|r| r.path.starts_with(PODS) && r.verb != "WATCH");
        writes.map(|r| r.at).collect()
    };
    say_loudly(&format!("110 pods at once: {} writes about pods", writes().len()));

    // With less to spend all mirrors are made again: never more at a time than was saved up and
    // comes in.
    let (qps, burst) = (10, 20);
    world.agent.add_flag(format!("--kube-api-qps={qps}"));
    world.agent.add_flag(format!("--kube-api-burst={burst}"));
    world.agent.kill();
    world.agent.start();
    member.wait("it has taken over", shown, |shown| *shown == Some((pods, 0)));
    member.link.http.forget();
    let before = uids(&member);
    member.plane.kubectl_text(&["delete", "pods", "--all", "-n", "default", "--wait=false"]);
    member.wait(
        "all mirrors are new",
        || uids(&member),
        |now| now.len() == pods && now.is_disjoint(&before),
    );
    member.wait("and as they should be", shown, |shown| *shown == Some((pods, 0)));
    let writes = writes();
    let window = Duration::from_secs(4);
    let in_window =
        |from: &Instant| writes.iter().filter(|at| (*from..*from + window).contains(at)).count();
    let most = writes.iter().map(in_window).max().unwrap_or_default();
    say_loudly(&format!("{} writes at {qps} a second: {most} in the fullest 4 s", writes.len()));
    // A request may arrive a little later than it was let go.
    assert!(most <= burst + 5 * qps && writes.len() >= 2 * pods, "{most} of {}", writes.len());
    member.finish();
}

fn uids(member: &Member) -> BTreeSet<String> {
    let all = member.plane.admin.get(PODS)["items"].clone();
    all.as_array().unwrap().iter().map(uid).collect()
}
