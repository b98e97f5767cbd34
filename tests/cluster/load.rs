//! How much a node asks of its API server: nothing but its lease when it is quiet, no more than its budget when it is not.

use super::{
    agent::{Member, figure, hasty, ready},
    controlplane::Options,
    objects::{LEASES, PODS},
    support::{manifest::Pod, say_loudly},
};
use std::time::Duration;
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
    figure("110 pods at once: all run", begun.elapsed());
    let shown = || {
        let status = world.agent.status().ok()?.node.cluster.clone()?;
        Some((status.mirrors, status.pods_waiting))
    };
    member.wait("all mirrors are as they should be", shown, |shown| *shown == Some((pods, 0)));
    figure("110 pods at once: all mirrors as they should be", begun.elapsed());
    let all = member.plane.admin.get(PODS)["items"].clone();
    assert_eq!(all.as_array().unwrap().iter().filter(|pod| ready(pod)).count(), pods);
    // kubeAPIQPS and kubeAPIBurst: never more in any second than what was saved up and what comes in.
    let writes: Vec<Instant> = member
        .link
        .http
        .requests()
        .iter()
        .filter(|r| r.path.starts_with(PODS) && r.verb != "WATCH")
        .map(|r| r.at)
        .collect();
    let second = Duration::from_secs(1);
    let in_a_second =
        |from: &Instant| writes.iter().filter(|at| (*from..*from + second).contains(at)).count();
    let most = writes.iter().map(in_a_second).max().unwrap_or_default();
    say_loudly(&format!(
        "110 pods at once: {} writes about pods, {most} in the fullest second",
        writes.len()
    ));
    assert!(most <= 150 && writes.len() >= 2 * pods, "{most} of {}", writes.len());
    member.finish();
}
