//! The network between a node and its API server comes and goes, or swallows everything.

use super::{
    agent::{Member, figure, hasty, ready, restarts},
    controlplane::{Options, link::Link},
    faults::{LONG, goes_and_comes},
    support::{
        manifest::Pod,
        on_path,
        skips::{self, skip_without},
        stays,
    },
};
use std::time::Duration;
use tokio::time::Instant;

/// Stands for 20 s: longer than the longest pause between two tries, so that each time that it is
/// up is made use of.
const FLAP: Duration = Duration::from_secs(3);

#[test]
fn a_way_that_comes_and_goes_is_used_while_it_is_there() {
    let Some(member) = Member::with_web() else { return };
    let world = &member.world;
    let before = restarts(&member.mirror("web"));
    let flapping = member.link.tcp.flap(FLAP);
    world.kill_container(&world.running_id("web", "main"));
    world.drop_pod(&Pod::running("late"));
    let begun = Instant::now();
    world.wait("pods are run all the same", |status| status.runs("web") && status.runs("late"));
    member.wait("the new pod is mirrored", || member.mirror("late"), ready);
    member.wait(
        "the restart is shown",
        || member.mirror("web"),
        |pod| ready(pod) && restarts(pod) == before + 1,
    );
    let running = world.running_ids("web");
    figure(
        "network up and down every 3 s → a new pod and a restart shown meanwhile",
        begun.elapsed(),
    );
    let begun = Instant::now();
    for _ in 0..2 {
        member.wait_renewed();
    }
    figure("network up and down every 3 s → two renewals of the lease", begun.elapsed());
    stays("nobody is restarted", 2 * FLAP, || world.running_ids("web"), |ids| *ids == running);
    drop(flapping);
    let begun = Instant::now();
    member.wait_untroubled();
    member.wait("the node is Ready", || member.node(), ready);
    figure("network up for good → node Ready, and no trouble told", begun.elapsed());
    member.finish();
}

#[test]
fn lost_packets_cost_no_pod() {
    if skip_without(&[skips::root(), (on_path("iptables"), "iptables")]) {
        return;
    }
    let link = Link::start_in_namespace;
    let Some(member) = Member::prepare_by(link, &Options::default(), &hasty()) else { return };
    let member = member.started().shows_web();
    goes_and_comes(
        &member,
        "packets lost",
        LONG,
        || member.link.lose_packets(true),
        || {
            // Not even a new connection comes about.
            member.wait_told("lease: ");
            member.link.heal();
        },
    );
    member.wait_renewed();
    member.wait_untroubled();
    member.finish();
}
